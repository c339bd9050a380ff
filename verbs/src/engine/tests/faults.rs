//! What happens when something is taken away, or breaks, in the middle of traffic.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread;

use super::*;
use crate::engine::{Asked, Caller, Observer};
use crate::event::AsyncEventKind;
use crate::wr::{RecvRequest, SendRequest};

/// A panic inside a pass ends that queue pair, and no other; its requests come back.
#[test]
fn a_panic_ends_one_queue_pair_only() {
    let setup = Setup::default();
    let Pair { a, b } = setup.connect();
    // A second connection between the same devices, through the same completion queues.
    let config = |end: &End| QpConfig::new(&end.send_cq).recv_cq(&end.recv_cq);
    let (c, d) = (a.pd.create_qp(&config(&a)).unwrap(), b.pd.create_qp(&config(&b)).unwrap());
    let (left, right) = tcp_pair();
    let start = |qp: &QueuePair, stream, role| {
        let socket = Socket::from_stream(stream).unwrap();
        let negotiated = setup.negotiated(role);
        qp.0.inner.start(socket, &negotiated, Vec::new(), None, setup.limit, None).unwrap();
    };
    start(&d, right, Role::Responder);
    start(&c, left, Role::Initiator);

    a.qp.post_recv(RecvRequest::new(1, ())).unwrap();
    let near = a.region(8);
    a.qp.post_send(SendRequest::read(2, near.as_slice_all(), b.region(8).remote())).unwrap();
    a.qp.0.inner.ask(Asked::PANIC);
    a.qp.0.inner.drive(Caller::Post);
    // The driver may have been inside, and have run that pass.
    a.wait_state(QpState::Err);
    assert_eq!(a.received().status, WcStatus::WrFlushErr);
    // The Read may have been answered, or refused, before.
    assert_eq!(a.sent().wr_id, 2);
    b.wait_state(QpState::Err);
    until("an event", || {
        a.device
            .next_async_event()
            .unwrap()
            .is_some_and(|event| event.kind() == AsyncEventKind::QpFatal)
    });
    // Posting goes on as it does after any other end.
    a.qp.post_send(SendRequest::send(3, ())).unwrap();
    assert_eq!(a.sent().status, WcStatus::WrFlushErr);

    d.post_recv(RecvRequest::new(4, ())).unwrap();
    c.post_send(SendRequest::send(5, ())).unwrap();
    assert_success(&a.sent(), 5);
    assert_success(&b.received(), 4);
}

/// FC-061, SEC-04: when deregistration returns, nothing is placed any more.
#[test]
fn nothing_is_placed_after_deregistration() {
    for round in 0..60 {
        let Pair { a, b } = Setup { crc: round % 2 == 0, ..Setup::default() }.connect();
        let far = Box::leak(vec![0_u8; 64 * 1024].into_boxed_slice());
        let owned =
            MemoryRegion::register(b.pd.0.domain().unwrap(), Vec::from(&*far), ALL).unwrap();
        let remote = owned.region().remote();
        let near = a.pattern(64 * 1024, 1);
        let stop = Arc::new(AtomicBool::new(false));
        let writer = {
            let stop = Arc::clone(&stop);
            thread::spawn(move || {
                let mut id = 0;
                while !stop.load(Ordering::Relaxed) && a.qp.state() == QpState::Rts {
                    let write = SendRequest::write(id, near.as_slice_all(), remote);
                    if a.qp.post_send(write).is_ok() {
                        id += 1;
                    }
                    while a.send_cq.poll_one().is_some() {}
                }
                a
            })
        };
        until("the first octets", || owned.region().load_u64(0).unwrap() != 0);
        let mut buffer = owned.deregister();
        buffer.fill(0xaa);
        until("the end", || {
            while b.recv_cq.poll_one().is_some() {}
            b.qp.state() == QpState::Err
        });
        assert!(buffer.iter().all(|&octet| octet == 0xaa));
        stop.store(true, Ordering::Relaxed);
        let a = writer.join().unwrap();
        a.wait_state(QpState::Err);
        // 1/1/00, or 1/1/01 never: the key names nothing any more.
        let ending = b.qp.0.inner.ending().expect("a Terminate");
        assert_eq!(ending.terminate.code.raw(), 0x1100);
    }
}

/// A source that is taken away while it is being sent never breaks the framing: the peer sees a
/// Terminate, or a reset, and no bad CRC.
#[test]
fn a_source_taken_away_ends_the_connection_in_an_orderly_way() {
    for crc in [true, false] {
        let setup = Setup { crc, limit: FpduLimit::Emss, ..Setup::default() };
        let end = setup.end();
        let (left, right) = tcp_pair();
        setup.start(&end, left, Role::Initiator);
        let region = end.region(32 << 20);
        let other = end.region(8);
        let remote = crate::mem::RemoteMemory { addr: 0, len: 1 << 40, rkey: 1 };
        end.qp.post_send(SendRequest::write(1, region.as_slice_all(), remote)).unwrap();
        end.qp.post_send(SendRequest::write(2, other.as_slice_all(), remote)).unwrap();
        // TCP is full now, and the request in the middle.
        region.deregister().unwrap();
        let reader = thread::spawn(move || {
            let mut sink = vec![0; 1 << 20];
            while std::io::Read::read(&mut &right, &mut sink).is_ok_and(|read| read > 0) {}
        });
        let wc = end.sent();
        assert_eq!((wc.wr_id, wc.status), (1, WcStatus::LocProtErr), "crc {crc}");
        let wc = end.sent();
        assert_eq!((wc.wr_id, wc.status), (2, WcStatus::WrFlushErr), "crc {crc}");
        reader.join().unwrap();
        end.wait_state(QpState::Err);
    }
}

/// FC-024: memory that the program scribbles on, as source and as sink, never costs the connection.
#[test]
fn scribbling_on_memory_in_use_breaks_nothing() {
    let Pair { a, b } = Setup::default().connect();
    let (near, far) = (a.region(64 * 1024), b.region(64 * 1024));
    let stop = Arc::new(AtomicBool::new(false));
    let scribblers: Vec<_> = [near.clone(), far.clone()]
        .map(|region| {
            let stop = Arc::clone(&stop);
            thread::spawn(move || {
                for value in (0..=255).cycle() {
                    if stop.load(Ordering::Relaxed) {
                        break;
                    }
                    region.fill(.., value).unwrap();
                }
            })
        })
        .into();
    let start = Instant::now();
    let mut id = 0;
    while start.elapsed() < Duration::from_millis(700) {
        let write = SendRequest::write(id, near.as_slice_all(), far.remote());
        let read = SendRequest::read(id + 1, near.as_slice_all(), far.remote());
        a.qp.post_send_list([write, read]).unwrap();
        assert_success(&a.sent(), id);
        assert_success(&a.sent(), id + 1);
        id += 2;
    }
    stop.store(true, Ordering::Relaxed);
    for scribbler in scribblers {
        scribbler.join().unwrap();
    }
    assert_eq!((a.qp.state(), b.qp.state()), (QpState::Rts, QpState::Rts));
}

#[derive(Default)]
struct Ends(AtomicU32, AtomicU32);

impl Observer for Ends {
    fn established(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    fn closed(&self, _: &iwarp_rdmap::CloseCause, _: bool) {
        self.1.fetch_add(1, Ordering::Relaxed);
    }
}

/// FC-076: when destroy returns, nobody touches the buffers or the completion queues any more.
#[test]
fn destruction_is_final_under_load() {
    let setup = Setup { requests: 64, ..Setup::default() };
    let mut random = octets(400, 9).into_iter().map(u64::from);
    for round in 0..100 {
        let pair = setup.ends();
        let observers = [Arc::new(Ends::default()), Arc::new(Ends::default())];
        let (left, right) = tcp_pair();
        for (end, (stream, (role, observer))) in [&pair.b, &pair.a].into_iter().zip([
            (right, (Role::Responder, &observers[1])),
            (left, (Role::Initiator, &observers[0])),
        ]) {
            let socket = Socket::from_stream(stream).unwrap();
            let negotiated = setup.negotiated(role);
            let observer: Arc<dyn Observer> = Arc::<Ends>::clone(observer);
            end.qp
                .0
                .inner
                .start(socket, &negotiated, Vec::new(), Some(observer), setup.limit, None)
                .unwrap();
        }
        let Pair { a, b } = pair;
        let register = |end: &End| {
            MemoryRegion::register(end.pd.0.domain().unwrap(), vec![0_u8; 32 * 1024], ALL).unwrap()
        };
        let (near, far) = (register(&a), register(&b));
        let stop = Arc::new(AtomicBool::new(false));
        let (qa, qb) = (a.qp.clone(), b.qp.clone());
        let threads = [(qa, &near, &far), (qb, &far, &near)].map(|(qp, from, to)| {
            let (source, remote) = (from.region().clone(), to.region().remote());
            let stop = Arc::clone(&stop);
            thread::spawn(move || {
                while !stop.load(Ordering::Relaxed) {
                    let slice = source.as_slice_all();
                    let _ = qp.post_send(SendRequest::write(1, slice.clone(), remote));
                    let _ = qp.post_send(SendRequest::read(2, slice, remote));
                    while qp.send_cq().poll_one().is_some() {}
                }
            })
        });
        let wait = random.next().unwrap() * 4;
        thread::sleep(Duration::from_micros(wait));
        if round % 4 == 3 {
            a.qp.modify(QpState::Err).unwrap();
        }
        b.qp.destroy().unwrap();
        let polled = b.send_cq.poll_one();
        assert!(polled.is_none(), "purged, and none comes: {polled:?}");
        let mut buffer = far.deregister();
        buffer.fill(0x55);
        assert!(b.qp.destroy().is_err(), "once");
        b.send_cq.clone().destroy().expect("nobody uses it");
        until("the end at the other side", || {
            while a.send_cq.poll_one().is_some() {}
            a.qp.state() == QpState::Err
        });
        stop.store(true, Ordering::Relaxed);
        for thread in threads {
            thread.join().unwrap();
        }
        assert!(buffer.iter().all(|&octet| octet == 0x55), "round {round}");
        drop(near);
        for observer in &observers {
            until("the observers", || observer.1.load(Ordering::Relaxed) == 1);
        }
        assert_eq!(observers[0].0.load(Ordering::Relaxed), 1);
    }
}

/// Dropping all handles behaves as a disconnect: what was given to TCP arrives, the peer sees an orderly
/// end, and everything is let go.
#[test]
fn dropping_the_handles_ends_the_connection_and_frees_everything() {
    let Pair { a, b } = Setup::default().connect();
    let sink = b.region(8);
    b.qp.post_recv(RecvRequest::new(1, sink.as_slice_all())).unwrap();
    b.qp.post_recv(RecvRequest::new(2, ())).unwrap();
    a.qp.post_send(SendRequest::send_inline(1, b"farewell")).unwrap();
    let inner = Arc::downgrade(&a.qp.0.inner);
    let device = Arc::downgrade(&a.device.0);
    drop(a);
    assert_success(&b.received(), 1);
    assert_eq!(content(&sink), b"farewell");
    assert_eq!(b.received().status, WcStatus::WrFlushErr);
    b.wait_state(QpState::Err);
    until("the queue pair to go", || inner.strong_count() == 0);
    until("the device to go", || device.strong_count() == 0);
    assert_eq!(b.device.stats().connections_lost, 0);

    // Never connected.
    let end = Setup::default().end();
    end.qp.post_recv(RecvRequest::new(1, end.region(8).as_slice_all())).unwrap();
    let inner = Arc::downgrade(&end.qp.0.inner);
    let End { device, pd, send_cq, recv_cq, qp } = end;
    drop(qp);
    assert_eq!(inner.strong_count(), 0);
    pd.destroy().unwrap();
    send_cq.destroy().unwrap();
    recv_cq.destroy().unwrap();
    drop(device);
}

/// FC-042: an overrun costs the queue pairs of that completion queue their connections, and nothing is
/// overwritten.
#[test]
fn an_overrun_moves_the_queue_pairs_to_error() {
    let Pair { a, b } = Setup { entries: 4, ..Setup::default() }.connect();
    let far = b.region(8);
    for id in 0..10 {
        a.qp.post_send(SendRequest::write_inline(id, b"x", far.remote())).unwrap();
    }
    a.wait_state(QpState::Err);
    b.wait_state(QpState::Err);
    for id in 0..4 {
        assert_success(&a.sent(), id);
    }
    assert!(a.send_cq.poll_one().is_none());
    let mut kinds = Vec::new();
    until("both events", || {
        kinds.extend(a.device.next_async_event().unwrap().map(|event| event.kind()));
        kinds.len() == 2
    });
    assert_eq!(kinds, [AsyncEventKind::CqErr, AsyncEventKind::QpFatal]);
    let ending = b.qp.0.inner.ending().expect("a Terminate");
    assert_eq!(ending.terminate.code.raw(), 0x0207);
}

/// A task whose waker panics, and which counts that.
#[derive(Default)]
struct Panics(AtomicU32);

impl std::task::Wake for Panics {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::Relaxed);
        panic!("a waker of the program");
    }
}

/// A waker that panics is the program's fault: neither the thread that runs it nor the connection
/// suffers.
#[test]
fn a_waker_that_panics_stops_nothing() {
    let Pair { a, b } = Setup::default().connect();
    let panics = Arc::new(Panics::default());
    let waker = std::task::Waker::from(Arc::clone(&panics));
    let cx = std::task::Context::from_waker(&waker);
    for round in 0..3 {
        let slot = b.qp.0.inner.post_recv_awaited(RecvRequest::new(round, ())).unwrap();
        assert!(slot.poll(&cx).is_pending());
        // Nobody polls at the other end, so it is the driver that wakes.
        a.qp.post_send(SendRequest::send(round, ())).unwrap();
        assert_success(&a.sent(), round);
        until("the completion", || slot.poll(&cx).is_ready());
        until("the waker", || u64::from(panics.0.load(Ordering::Relaxed)) > round);
    }
    // On the program's own thread.
    b.qp.disconnect();
    b.wait_state(QpState::Err);
    let slot = b.qp.0.inner.post_recv_awaited(RecvRequest::new(7, ())).unwrap();
    until("the flush", || slot.poll(&cx).is_ready());
    until("the right to drive", || {
        b.qp.0.inner.drive(Caller::Post) == crate::engine::Drove::default()
    });
}

/// The thread of a device fails: its connections end with a Terminate 0/2/08, everything is flushed, there
/// are no new ones, and the program is told.
#[test]
fn a_device_whose_driver_fails_tells_so_and_ends_its_connections() {
    let setup = Setup::default();
    let Pair { a, b } = setup.connect();
    a.qp.post_recv(RecvRequest::new(7, ())).unwrap();
    a.device.0.driver().break_down();
    let event = a.device.wait_async_event(HANG).unwrap().expect("an event");
    assert_eq!(event.kind(), crate::event::AsyncEventKind::DeviceFatal);
    assert!(matches!(event.source(), crate::event::EventSource::Device));
    assert_eq!(a.qp.state(), QpState::Err);
    let flushed = a.received();
    assert_eq!((flushed.wr_id, flushed.status), (7, WcStatus::WrFlushErr));
    b.wait_state(QpState::Err);
    let ending = b.qp.ending().expect("a Terminate");
    assert_eq!(ending.terminate.code.to_string(), "0/2/08");
    // Posting is still flushing, and setting up is refused.
    a.qp.post_send(crate::wr::SendRequest::send(8, ())).unwrap();
    assert_eq!(a.sent().status, WcStatus::WrFlushErr);
    until("the end of the connection", || a.qp.modify(QpState::Reset).is_ok());
    a.qp.modify(QpState::Init).unwrap();
    let (left, _right) = tcp_pair();
    let inner = &a.qp.0.inner;
    inner.claim_setup().unwrap();
    let socket = Socket::from_stream(left).expect("a socket");
    let negotiated = setup.negotiated(Role::Initiator);
    let refused =
        inner.start(socket, &negotiated, Vec::new(), None, FpduLimit::default(), None).unwrap_err();
    assert!(refused.to_string().contains("has ended"), "{refused}");
    a.qp.destroy().unwrap();
}

/// Each id of the device hears of it, behind the end of what it was doing; and who waits for a set-up does
/// not wait for ever.
#[test]
fn ids_hear_of_a_device_whose_driver_fails() {
    use crate::cm::{BindOptions, ConnParam, ConnectError, EventChannel, EventKind, Id};

    let device = Device::open(DeviceConfig::default()).unwrap();
    let (pd, cq) = (device.alloc_pd(), device.create_cq(16).unwrap());
    let qp = || pd.create_qp(&QpConfig::new(&cq)).unwrap();
    let channel = EventChannel::new(&device).unwrap();
    let next = || channel.wait_event(HANG).expect("an event");
    let [listening, client, pending] = [0; 3].map(|_| Id::new(&channel));
    listening.bind("127.0.0.1:0", BindOptions::default()).unwrap();
    listening.listen(0).unwrap();
    let (here, there) = (qp(), qp());
    client.connect(listening.local_addr().unwrap(), &here, ConnParam::default()).unwrap();
    let request = next();
    request.id.accept(&there, ConnParam::default()).unwrap();
    assert_eq!([next().kind, next().kind], [EventKind::Established; 2]);
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let silent = silent.local_addr().unwrap();
    let waiting = [qp(), qp()];
    pending.connect(silent, &waiting[0], ConnParam::default()).unwrap();
    let connecting = crate::cm::connect(silent, &waiting[1], ConnParam::default()).unwrap();

    device.0.driver().break_down();
    let error = connecting.wait(None).unwrap_err();
    assert!(matches!(error, ConnectError::Driver(_)), "{error}");
    let mut told: Vec<_> = (0..7).map(|_| next()).collect();
    assert!(channel.get_event().is_none());
    let mut of = |id: &Id| -> Vec<EventKind> {
        let (of, others) = told.drain(..).partition(|event| event.id == *id);
        told = others;
        let of: Vec<crate::cm::Event> = of;
        of.iter().map(|event| event.kind).collect()
    };
    let ended = [EventKind::Disconnected, EventKind::DeviceRemoval];
    assert_eq!((of(&client), of(&request.id)), (ended.to_vec(), ended.to_vec()));
    assert_eq!(of(&pending), [EventKind::ConnectError, EventKind::DeviceRemoval]);
    assert_eq!(of(&listening), [EventKind::DeviceRemoval]);
    assert!(crate::cm::connect(silent, &qp(), ConnParam::default()).is_err());
    assert!(waiting.iter().all(|qp| qp.state() == QpState::Err));
}

/// Names are looked up by the system, in its own time: nobody waits for that who has given up the connection.
#[test]
fn a_look_up_that_hangs_does_not_hold_up_the_end_of_a_device() {
    let device = Device::open(DeviceConfig::default()).unwrap();
    let (answer, question) = std::sync::mpsc::channel::<()>();
    let (begins, begun) = std::sync::mpsc::channel();
    let runtime = device.0.driver().handle().unwrap();
    runtime.spawn_blocking(move || {
        begins.send(()).unwrap();
        question.recv()
    });
    begun.recv().unwrap();
    let (ends, ended) = std::sync::mpsc::channel();
    thread::spawn(move || ends.send(device.destroy()));
    ended.recv_timeout(HANG).expect("the look-up is waited for").unwrap();
    drop(answer);
}
