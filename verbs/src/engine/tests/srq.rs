//! Many queue pairs on one shared receive queue.

mod deaths;

use std::collections::BTreeMap;
use std::io::Write;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use super::*;
use crate::error::Error;
use crate::event::{AsyncEventKind, EventSource};
use crate::srq::{SharedReceiveQueue, SrqChange, SrqConfig};
use crate::wr::{PostErrorCause, RawSge, RecvRequest, SendRequest};

/// A server whose queue pairs share their receives, and a client for each of them.
struct Hall {
    setup: Setup,
    server: End,
    srq: SharedReceiveQueue,
    /// Of the server and of its clients, joined.
    pairs: Vec<Pair>,
}

impl Hall {
    fn new(n: usize, config: &SrqConfig) -> Self {
        Self::with(n, config, |qp| qp)
    }

    fn with(n: usize, config: &SrqConfig, adjust: impl Fn(QpConfig) -> QpConfig) -> Self {
        // Nobody is to be given up while a test looks the other way.
        let config_of_device = DeviceConfig::default().hold_back(HANG);
        let setup = Setup { config: config_of_device, ..Setup::default() };
        let server = setup.end();
        let client = setup.end();
        let srq = server.pd.create_srq(config).expect("a shared queue");
        let mut hall = Self { setup, server, srq, pairs: Vec::new() };
        for _ in 0..n {
            let b = hall.seat(&adjust);
            let a = sibling(&client, &QpConfig::new(&client.send_cq).recv_cq(&client.recv_cq));
            hall.pairs.push(Pair { a, b });
        }
        hall.pairs.iter().for_each(|pair| hall.setup.join(pair));
        hall
    }

    /// One more queue pair of the server, not connected.
    fn seat(&self, adjust: impl Fn(QpConfig) -> QpConfig) -> End {
        let config = QpConfig::new(&self.server.send_cq).recv_cq(&self.server.recv_cq);
        sibling(&self.server, &adjust(config.shared_receive_queue(&self.srq)))
    }

    fn post(&self, ids: std::ops::Range<u64>) {
        self.srq.post_recv_list(ids.map(|id| RecvRequest::new(id, ()))).expect("room");
    }

    fn send(&self, client: usize, id: u64) {
        let request = SendRequest::send(id, ()).unsignaled();
        self.pairs[client].a.qp.post_send(request).expect("room");
    }

    fn received(&self) -> WorkCompletion {
        poll(&self.server.recv_cq)
    }

    fn number(&self, client: usize) -> u32 {
        self.pairs[client].b.qp.number()
    }

    /// Waits until so many queue pairs are held back.
    fn until_waiting(&self, n: usize) {
        until("those that wait", || self.srq.query().waiting == n);
    }

    fn events(&self) -> Vec<(AsyncEventKind, Option<u32>)> {
        events(&self.server.device)
    }
}

fn sibling(of: &End, config: &QpConfig) -> End {
    End {
        device: of.device.clone(),
        pd: of.pd.clone(),
        send_cq: of.send_cq.clone(),
        recv_cq: of.recv_cq.clone(),
        qp: of.pd.create_qp(config).expect("a queue pair"),
    }
}

/// Events to be fetched, with the number of the queue pair.
fn events(device: &Device) -> Vec<(AsyncEventKind, Option<u32>)> {
    std::iter::from_fn(|| device.next_async_event().expect("a descriptor"))
        .map(|event| (event.kind(), event.source().queue_pair_number()))
        .collect()
}

/// Waits for so many events of a kind; gives their queue pairs, in ascending order.
fn wait_events(device: &Device, kind: AsyncEventKind, n: usize) -> Vec<Option<u32>> {
    let mut found = Vec::new();
    until("events", || {
        let new = events(device).into_iter().filter(|event| event.0 == kind);
        found.extend(new.map(|(_, number)| number));
        found.len() >= n
    });
    found.sort_unstable();
    assert_eq!(found.len(), n);
    found
}

/// First in, first out, whoever needs one; the completion names the queue pair, and polling it makes
/// room (FC-066).
#[test]
fn the_oldest_receive_serves_whoever_comes() {
    let hall = Hall::new(3, &SrqConfig { max_wr: 8, ..SrqConfig::default() });
    hall.post(0..8);
    for (id, client) in [2, 0, 0, 1, 2, 1].into_iter().enumerate() {
        hall.send(client, 0);
        until("the message", || hall.srq.query().available == 7);
        let full = hall.srq.post_recv(RecvRequest::new(99, ())).unwrap_err();
        assert_eq!(full.cause, PostErrorCause::QueueFull { capacity: 8 });
        assert_eq!(full.errno(), 12);
        let held = hall.srq.holders().into_iter().filter(|&(_, held)| held > 0);
        assert_eq!(held.collect::<Vec<_>>(), [(hall.number(client), 1)]);
        assert_eq!(hall.pairs[client].b.qp.query().receives_held, Some(1));
        let wc = hall.received();
        assert_success(&wc, id as u64);
        assert_eq!(wc.qp_num, hall.number(client));
        assert_eq!(hall.srq.query().outstanding, 7);
        hall.post(100 + id as u64..101 + id as u64);
    }
    let now = hall.srq.query();
    assert_eq!((now.available, now.outstanding, now.queue_pairs, now.waiting), (8, 8, 3, 0));
    assert_eq!((now.max_wr, now.max_sge, now.limit), (8, 4, 0));
}

/// FC-072: what a completion says does not depend on where the receive came from.
#[test]
fn completions_are_those_of_a_queue_of_its_own() {
    use crate::wc::{WcFlags, WcOpcode};

    let hall = Hall::new(1, &SrqConfig::default());
    let sink = hall.server.region(64);
    let key = hall.server.region(8);
    for id in 0..2 {
        hall.srq.post_recv(RecvRequest::new(id, sink.slice(..40).unwrap())).unwrap();
    }
    let client = &hall.pairs[0].a.qp;
    client.post_send(SendRequest::send_inline(1, [7; 33]).solicited()).unwrap();
    client.post_send(SendRequest::send_inline(2, [8; 2]).invalidate(key.rkey())).unwrap();
    let (first, second) = (hall.received(), hall.received());
    assert_success(&first, 0);
    assert_eq!((first.opcode, first.byte_len, first.flags), (WcOpcode::Recv, 33, WcFlags::empty()));
    assert_success(&second, 1);
    assert_eq!((second.byte_len, second.flags), (2, WcFlags::WITH_INV));
    assert_eq!(second.invalidated_rkey, Some(key.rkey()));
    assert_eq!(content(&sink)[..3], [8, 8, 7]);
    // FC-073: immediate data takes one receive and places nothing in it.
    let far = hall.server.region(16);
    hall.srq.post_recv(RecvRequest::new(2, sink.as_slice_all())).unwrap();
    hall.srq.post_recv(RecvRequest::new(3, ())).unwrap();
    let write = SendRequest::write_inline_with_imm(3, [9; 16], far.remote(), 0x1234_5678);
    client.post_send(write).unwrap();
    let third = hall.received();
    assert_success(&third, 2);
    assert_eq!((third.opcode, third.byte_len), (WcOpcode::RecvRdmaWithImm, 16));
    assert_eq!((third.flags, third.imm_data), (WcFlags::WITH_IMM, Some(0x1234_5678)));
    assert_eq!((content(&far), content(&sink)[0]), (vec![9; 16], 8));
    assert_eq!(hall.srq.query().available, 1);
}

/// A queue pair with a shared queue has none of its own, and says so.
#[test]
fn its_own_receive_queue_takes_nothing() {
    let hall = Hall::new(1, &SrqConfig::default());
    let qp = &hall.pairs[0].b.qp;
    let error = qp.post_recv(RecvRequest::new(5, ())).unwrap_err();
    assert_eq!((error.index, error.request.id()), (0, 5));
    assert_eq!(error.cause, PostErrorCause::SharedReceives);
    assert!(error.to_string().contains("shared receive queue"), "{error}");
    assert_eq!(error.errno(), 22);
    let error = qp.post_recv_list([RecvRequest::new(6, ())]).unwrap_err();
    assert_eq!(error.cause, PostErrorCause::SharedReceives);
    let caps = qp.query().caps;
    assert_eq!((caps.max_recv_wr, caps.max_recv_sge), (0, 0));
    assert_eq!(qp.shared_receive_queue(), Some(hall.srq.clone()));
    assert_eq!(hall.pairs[0].a.qp.shared_receive_queue(), None);
    assert_eq!(hall.pairs[0].a.qp.query().receives_held, None);
}

/// Buffers are of the domain of the shared queue, whatever those of its queue pairs are. Long messages without a CRC
/// go straight to where they belong, if they may.
#[test]
fn receives_are_checked_against_the_domain_of_the_shared_queue() {
    for (crc, len) in [(true, 32), (false, 32), (false, 300_000)] {
        let hall = Hall::new(0, &SrqConfig { max_sge: 2, ..SrqConfig::default() });
        let setup = Setup { crc, ..hall.setup.clone() };
        let other = hall.server.device.alloc_pd();
        let foreign = alloc(&other, len, ALL);
        let ours = hall.server.region(len);
        let config = QpConfig::new(&hall.server.send_cq).recv_cq(&hall.server.recv_cq);
        let qp = other.create_qp(&config.shared_receive_queue(&hall.srq)).unwrap();
        let mut pair = setup.ends();
        pair.b.qp = qp;
        setup.join(&pair);

        let refused = hall.srq.post_recv(RecvRequest::new(1, foreign.as_slice_all())).unwrap_err();
        assert_eq!(refused.cause, PostErrorCause::ForeignRegion { element: 0 });
        let three = [(); 3].map(|()| ours.slice(..8).unwrap());
        let refused = hall.srq.post_recv(RecvRequest::new(1, three)).unwrap_err();
        assert_eq!(refused.cause, PostErrorCause::TooManyElements { have: 3, max: 2 });
        let raw = |region: &MemoryRegion, len: usize| RawSge {
            addr: region.remote().addr,
            length: len as u32,
            lkey: region.lkey(),
        };
        let patterns = [1, 2, 3].map(|seed| pair.a.pattern(len, seed));
        let mut next = patterns.iter();
        let mut receive = |request: RecvRequest| {
            hall.srq.post_recv(request).unwrap();
            let pattern = next.next().expect("one for each").as_slice_all();
            pair.a.qp.post_send(SendRequest::send(0, pattern).unsignaled()).unwrap();
            hall.received()
        };
        assert_success(&receive(RecvRequest::new(2, ours.as_slice_all())), 2);
        assert!(content(&ours) == content(&patterns[0]), "{crc} {len}");
        assert_success(&receive(RecvRequest::raw(3, [raw(&ours, len)])), 3);
        assert!(content(&ours) == content(&patterns[1]), "{crc} {len}");
        let elements = [raw(&ours, len / 2), raw(&foreign, len / 2)];
        let wc = receive(RecvRequest::raw(4, elements));
        assert_eq!((wc.wr_id, wc.status), (4, WcStatus::LocProtErr), "{crc} {len}");
        assert!(content(&foreign).iter().all(|&octet| octet == 0), "{crc} {len}");
    }
}

/// An empty queue holds back those that need a receive and nobody else; each receive that comes resumes
/// one of them, in the order in which they came.
#[test]
fn an_empty_queue_holds_back_those_that_send() {
    const N: usize = 5;
    let hall = Hall::new(N, &SrqConfig::default());
    for client in 0..N - 1 {
        hall.send(client, 0);
        hall.send(client, 1);
        hall.until_waiting(client + 1);
    }
    // The others are not concerned.
    let far = hall.server.pattern(64, 3);
    let last = &hall.pairs[N - 1].a;
    let near = last.region(64);
    last.qp.post_send(SendRequest::read(7, near.as_slice_all(), far.remote())).unwrap();
    assert_success(&last.sent(), 7);
    assert_eq!(content(&near), content(&far));
    for id in 0..2 * (N as u64 - 1) {
        assert!(hall.server.recv_cq.poll_one().is_none(), "more than was posted");
        hall.post(id..id + 1);
        let wc = hall.received();
        assert_success(&wc, id);
        assert_eq!(wc.qp_num, hall.number(id as usize % (N - 1)), "out of turn");
        // Who has been served has something more, and comes last.
        let left = 2 * (N - 1) - 1 - id as usize;
        hall.until_waiting(left.min(N - 1));
    }
    assert!(hall.pairs.iter().all(|pair| pair.b.qp.state() == QpState::Rts));
    assert_eq!(hall.pairs[0].b.qp.stats().held_back, 2);
}

/// More wait than a posting thread drives itself.
#[test]
fn a_list_of_receives_serves_many() {
    const N: usize = 20;
    let hall = Hall::new(N, &SrqConfig::default());
    for client in 0..N {
        hall.send(client, 0);
    }
    hall.until_waiting(N);
    hall.post(0..12);
    let first: Vec<_> = poll_n(&hall.server.recv_cq, 12);
    hall.until_waiting(N - 12);
    assert!(hall.server.recv_cq.poll_one().is_none());
    hall.post(12..20);
    let all: Vec<_> = first.into_iter().chain(poll_n(&hall.server.recv_cq, 8)).collect();
    let mut ids: Vec<_> = all.iter().map(|wc| wc.wr_id).collect();
    ids.sort_unstable();
    assert_eq!(ids, (0..20).collect::<Vec<_>>());
    let mut qps: Vec<_> = all.iter().map(|wc| wc.qp_num).collect();
    qps.sort_unstable();
    qps.dedup();
    assert_eq!(qps.len(), N);
}

/// Ends the threads of a test with it.
struct Done<'a>(&'a AtomicBool);

impl Drop for Done<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Threads that post against threads that send, with a few places for all: every message gets through.
#[test]
fn nobody_is_forgotten_when_receives_are_scarce() {
    const CLIENTS: usize = 8;
    // Not signalled, so no place of a send queue is free again.
    const EACH: usize = 120;
    let hall = Hall::new(CLIENTS, &SrqConfig { max_wr: 3, ..SrqConfig::default() });
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        for client in 0..CLIENTS {
            let hall = &hall;
            scope.spawn(move || (0..EACH as u64).for_each(|id| hall.send(client, id)));
        }
        for _ in 0..2 {
            scope.spawn(|| {
                while !done.load(Ordering::Relaxed) {
                    // Most of the time there is no place.
                    drop(hall.srq.post_recv(RecvRequest::new(0, ())));
                    thread::yield_now();
                }
            });
        }
        // Also if this panics.
        let _done = Done(&done);
        let mut received = BTreeMap::new();
        for _ in 0..CLIENTS * EACH {
            let wc = hall.received();
            assert_success(&wc, 0);
            *received.entry(wc.qp_num).or_insert(0) += 1;
        }
        assert_eq!(received.into_values().collect::<Vec<_>>(), [EACH; CLIENTS]);
    });
    assert_eq!(hall.srq.query().waiting, 0);
    assert!(hall.pairs.iter().any(|pair| pair.b.qp.stats().held_back > 0));
}

/// The one whose turn it would be ends: the next gets the receive.
#[test]
fn whoever_dies_while_it_waits_gives_its_turn_away() {
    let hall = Hall::new(3, &SrqConfig::default());
    for client in 0..3 {
        hall.send(client, 0);
        hall.until_waiting(client + 1);
    }
    hall.pairs[0].b.qp.modify(QpState::Err).unwrap();
    hall.pairs[1].b.qp.destroy().unwrap();
    hall.until_waiting(1);
    hall.post(0..1);
    let wc = hall.received();
    assert_success(&wc, 0);
    assert_eq!(wc.qp_num, hall.number(2));
}

/// Decision D2: the time that a queue pair may be held back is its own, and its end takes no receive.
#[test]
fn a_queue_pair_is_not_held_back_for_ever() {
    let mut hall = Hall::new(0, &SrqConfig::default());
    hall.setup.config = DeviceConfig::default().hold_back(Duration::from_millis(100));
    let short = hall.setup.end();
    let srq = short.pd.create_srq(&SrqConfig::default()).unwrap();
    let config = QpConfig::new(&short.send_cq).recv_cq(&short.recv_cq);
    let b = sibling(&short, &config.shared_receive_queue(&srq));
    let pair = Pair { a: hall.setup.end(), b };
    hall.setup.join(&pair);
    pair.a.qp.post_send(SendRequest::send(1, ())).unwrap();
    pair.b.wait_state(QpState::Err);
    pair.a.wait_state(QpState::Err);
    let ending = pair.b.qp.ending().unwrap().terminate.code;
    // 1/2/02: no buffer.
    assert_eq!(ending.raw(), 0x1202);
    wait_events(&short.device, AsyncEventKind::QpLastWqeReached, 1);
    srq.post_recv(RecvRequest::new(1, ())).unwrap();
    assert_eq!((srq.query().available, srq.query().waiting), (1, 0));
}

/// FC-074: once for each time it is armed, when fewer are left, and not when as many are.
#[test]
fn fc_074_the_limit_is_told_once_per_arming() {
    let hall = Hall::new(2, &SrqConfig { max_wr: 16, limit: 3, ..SrqConfig::default() });
    let take = |n: u64| {
        for id in 0..n {
            hall.send(id as usize % 2, id);
            assert!(hall.received().is_success());
        }
    };
    hall.post(0..6);
    take(3);
    assert_eq!(hall.events(), [], "three are left");
    take(1);
    assert_eq!(hall.srq.query().limit, 0);
    let event = hall.server.device.next_async_event().unwrap().expect("an event");
    assert_eq!(event.kind(), AsyncEventKind::SrqLimitReached);
    assert!(matches!(event.source(), EventSource::SharedReceiveQueue(srq) if *srq == hall.srq));
    drop(event);
    take(2);
    hall.post(6..12);
    take(6);
    assert_eq!(hall.events(), [], "once is enough");
    // Armed while it is true already: told with the next that is taken.
    hall.srq.modify(SrqChange { limit: Some(5), ..SrqChange::default() }).unwrap();
    assert_eq!(hall.events(), []);
    hall.post(12..15);
    take(1);
    assert_eq!(hall.events(), [(AsyncEventKind::SrqLimitReached, None)]);
    // 0 wants to know nothing.
    hall.srq.modify(SrqChange { limit: Some(1), ..SrqChange::default() }).unwrap();
    hall.srq.modify(SrqChange { limit: Some(0), ..SrqChange::default() }).unwrap();
    take(2);
    assert_eq!(hall.events(), []);
}

#[test]
fn the_size_is_never_below_what_is_outstanding() {
    let hall = Hall::new(1, &SrqConfig { max_wr: 4, limit: 2, ..SrqConfig::default() });
    hall.post(0..4);
    hall.send(0, 0);
    until("the message", || hall.srq.query().available == 3);
    let resize = |max_wr| hall.srq.modify(SrqChange { max_wr: Some(max_wr), limit: None });
    // The one that is not polled counts.
    assert!(matches!(resize(3), Err(Error::TooSmall { asked: 3, needed: 4, .. })));
    assert!(hall.received().is_success());
    resize(3).unwrap();
    let full = hall.srq.post_recv(RecvRequest::new(9, ())).unwrap_err();
    assert_eq!(full.cause, PostErrorCause::QueueFull { capacity: 3 });
    resize(5).unwrap();
    hall.post(9..11);
    let refused = |change| hall.srq.modify(change).unwrap_err();
    let limit = refused(SrqChange { limit: Some(6), ..SrqChange::default() });
    assert!(matches!(limit, Error::Limit { asked: 6, max: 5, .. }), "{limit}");
    assert!(matches!(refused(SrqChange { max_wr: Some(0), limit: Some(0) }), Error::Empty { .. }));
    let most = hall.server.device.attributes().limits.max_srq_wr;
    let beyond = refused(SrqChange { max_wr: Some(most + 1), limit: None });
    assert!(matches!(beyond, Error::Limit { .. }), "{beyond}");
    assert_eq!((hall.srq.query().max_wr, hall.srq.query().limit), (5, 2), "nothing was changed");
    // Both at once: the new limit is held against the new size.
    hall.srq.modify(SrqChange { max_wr: Some(10), limit: Some(10) }).unwrap();
    assert_eq!((hall.srq.query().max_wr, hall.srq.query().limit), (10, 10));
}

/// SEC-12: a peer that sends more than its share is held back, and the others get theirs.
#[test]
fn sec_12_a_peer_cannot_take_the_receives_of_the_others() {
    let hall = Hall::with(2, &SrqConfig::default(), |qp| qp.max_shared_receives(3));
    hall.post(0..8);
    for id in 0..10 {
        hall.send(0, id);
    }
    let greedy = &hall.pairs[0].b.qp;
    until("its share", || greedy.0.inner.is_held_back());
    assert_eq!(greedy.query().receives_held, Some(3));
    assert_eq!((hall.srq.query().available, hall.srq.query().waiting), (5, 0));
    hall.send(1, 0);
    until("the other", || hall.srq.query().available == 4);
    // Taken is not yet complete, and what the first goes on with below is not to overtake it.
    until("its completion", || hall.server.recv_cq.len() == 4);
    let mut holders = hall.srq.holders();
    holders.sort_unstable();
    assert_eq!(holders, [(hall.number(0), 3), (hall.number(1), 1)]);
    // It goes on as its program polls, without another call.
    for id in 0..4 {
        assert_success(&hall.received(), id);
    }
    until("its share", || greedy.query().receives_held == Some(3));
    assert_eq!(hall.srq.query().available, 1);
    let rest: Vec<_> = poll_n(&hall.server.recv_cq, 4).iter().map(|wc| wc.wr_id).collect();
    assert_eq!(rest, [4, 5, 6, 7]);
    hall.until_waiting(1);
    hall.post(8..11);
    let rest: Vec<_> = poll_n(&hall.server.recv_cq, 3).iter().map(|wc| wc.wr_id).collect();
    assert_eq!(rest, [8, 9, 10]);
    let none = QpConfig::new(&hall.server.send_cq).max_shared_receives(0);
    assert!(matches!(hall.server.pd.create_qp(&none), Err(Error::Empty { .. })));
}

/// In use by queue pairs, also unconnected ones, it stays; after that everybody is told that it is gone.
#[test]
fn it_is_not_destroyed_under_its_queue_pairs() {
    let hall = Hall::new(1, &SrqConfig { limit: 1, ..SrqConfig::default() });
    let idle = hall.seat(|qp| qp);
    let region = hall.server.region(64);
    hall.srq.post_recv(RecvRequest::new(1, region.as_slice_all())).unwrap();
    let busy = hall.srq.destroy().unwrap_err();
    assert!(matches!(busy, Error::Busy { users: 2, .. }), "{busy}");
    assert_eq!(busy.errno(), 16);
    hall.send(0, 0);
    assert!(hall.received().is_success());
    let event = hall.server.device.next_async_event().unwrap().expect("the limit");
    hall.srq.modify(SrqChange { limit: Some(2), ..SrqChange::default() }).unwrap();
    hall.srq.post_recv(RecvRequest::new(2, region.as_slice_all())).unwrap();
    hall.srq.post_recv(RecvRequest::new(3, region.as_slice_all())).unwrap();
    hall.send(0, 1);
    assert!(hall.received().is_success());
    hall.pairs[0].b.qp.destroy().unwrap();
    assert!(matches!(hall.srq.destroy(), Err(Error::Busy { users: 1, .. })));
    idle.qp.destroy().unwrap();
    // FC-040: one event is fetched and not acknowledged.
    thread::scope(|scope| {
        let destroyer = scope.spawn(|| hall.srq.destroy());
        until("the destruction", || {
            let posted = hall.srq.post_recv(RecvRequest::new(4, ()));
            posted.is_err_and(|error| matches!(error.cause, PostErrorCause::Destroyed { .. }))
        });
        thread::sleep(Duration::from_millis(20));
        assert!(!destroyer.is_finished(), "too early");
        let (kind, _) = event.into_unacknowledged();
        assert_eq!(kind, AsyncEventKind::SrqLimitReached);
        assert!(matches!(hall.srq.ack_events(2), Err(Error::Acknowledged { left: 1, .. })));
        hall.srq.ack_events(1).unwrap();
        destroyer.join().unwrap().unwrap();
    });
    // The other one was not fetched, and the receive was not taken.
    assert!(hall.server.device.next_async_event().unwrap().is_none());
    region.deregister().unwrap();
    assert!(matches!(hall.srq.destroy(), Err(Error::Destroyed { .. })));
    assert!(matches!(hall.srq.modify(SrqChange::default()), Err(Error::Destroyed { .. })));
    let late = QpConfig::new(&hall.server.send_cq).shared_receive_queue(&hall.srq);
    assert!(matches!(hall.server.pd.create_qp(&late), Err(Error::Destroyed { .. })));
    let foreign = hall.setup.end();
    let config = QpConfig::new(&foreign.send_cq).shared_receive_queue(&hall.srq);
    assert!(matches!(foreign.pd.create_qp(&config), Err(Error::ForeignDevice { .. })));
}

/// The domain is in use as long as the program can post memory of it.
#[test]
fn a_shared_queue_keeps_its_domain_in_use() {
    let device = Device::open(DeviceConfig::default()).unwrap();
    let pd = device.alloc_pd();
    let srq = pd.create_srq(&SrqConfig::default()).unwrap();
    assert_eq!(srq.pd().device().attributes(), device.attributes());
    assert!(matches!(pd.destroy(), Err(Error::Busy { .. })));
    let pd = srq.pd();
    drop(srq);
    pd.destroy().unwrap();
    for config in [
        SrqConfig { max_wr: 0, ..SrqConfig::default() },
        SrqConfig { max_wr: 4, limit: 5, ..SrqConfig::default() },
    ] {
        let error = device.alloc_pd().create_srq(&config).unwrap_err();
        assert_eq!(error.errno(), 22, "{config:?}: {error}");
    }
}

/// FC-065 for a shared queue.
#[test]
fn a_list_stops_at_the_first_receive_that_is_not_taken() {
    let hall = Hall::new(0, &SrqConfig { max_wr: 3, max_sge: 0, ..SrqConfig::default() });
    let region = hall.server.region(8);
    let wrong = RecvRequest::new(1, region.as_slice_all());
    let list = [RecvRequest::new(0, ()), wrong, RecvRequest::new(2, ())];
    let error = hall.srq.post_recv_list(list).unwrap_err();
    assert_eq!((error.index, error.request.id()), (1, 1));
    assert_eq!(hall.srq.query().available, 1);
    let mut list = (0..5).map(|id| RecvRequest::new(id, ()));
    let error = hall.srq.post_recv_list(&mut list).unwrap_err();
    assert_eq!((error.index, error.cause), (2, PostErrorCause::QueueFull { capacity: 3 }));
    assert_eq!(list.count(), 2);
}

/// A receive that is being filled goes with its queue pair, to its completion queue; the others stay.
#[test]
fn a_receive_in_progress_is_flushed_with_its_queue_pair() {
    let hall = Hall::new(0, &SrqConfig::default());
    let setup = Setup { limit: FpduLimit::Octets(1400), ..hall.setup.clone() };
    let (wire, _) = super::stall::wire_of(&setup, |a| {
        let region = a.pattern(4000, 1);
        a.qp.post_send(SendRequest::send(1, region.as_slice_all())).unwrap();
    });
    let seat = hall.seat(|qp| qp);
    let (mut peer, right) = tcp_pair();
    setup.start(&seat, right, Role::Responder);
    let sink = hall.server.region(4000);
    for id in 0..3 {
        hall.srq.post_recv(RecvRequest::new(id, sink.as_slice_all())).unwrap();
    }
    // All but the end of the last FPDU.
    peer.write_all(&wire[..wire.len() - 100]).unwrap();
    until("the first segment", || hall.srq.query().available == 2);
    assert_eq!(seat.qp.query().receives_held, Some(1));
    seat.qp.modify(QpState::Err).unwrap();
    wait_events(&hall.server.device, AsyncEventKind::QpLastWqeReached, 1);
    let wc = hall.server.recv_cq.poll_one().expect("before the event");
    assert_eq!((wc.wr_id, wc.status), (0, WcStatus::WrFlushErr));
    assert_eq!(wc.qp_num, seat.qp.number());
    assert!(hall.server.recv_cq.poll_one().is_none());
    assert_eq!((hall.srq.query().available, hall.srq.query().outstanding), (2, 2));
}

/// Completions that nobody can poll any more hold no places of the shared queue: it would get smaller with
/// each completion queue that goes.
#[test]
fn a_completion_queue_that_goes_gives_the_places_back() {
    for destroyed in [true, false] {
        let hall = Hall::new(0, &SrqConfig { max_wr: 4, ..SrqConfig::default() });
        let cq = hall.server.device.create_cq(8).unwrap();
        let pair = Pair { a: hall.setup.end(), b: hall.seat(|config| config.recv_cq(&cq)) };
        hall.setup.join(&pair);
        hall.post(0..4);
        for id in 0..2 {
            pair.a.qp.post_send(SendRequest::send(id, ())).unwrap();
        }
        until("the messages", || cq.len() == 2);
        drop(pair);
        until("the end of the connection", || hall.srq.query().queue_pairs == 0);
        assert_eq!(hall.srq.query().outstanding, 4, "they may still be polled");
        if destroyed {
            let other = cq.clone();
            cq.destroy().unwrap();
            assert!(other.poll_one().is_none());
        } else {
            drop(cq);
        }
        until("the places", || hall.srq.query().outstanding == 2);
        hall.post(4..6);
    }
}
