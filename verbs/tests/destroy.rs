//! Explicit destruction: each object against each user, in a table; and what happens to those who wait.

#![allow(clippy::unwrap_used, reason = "a failed step is a failed test")]

mod cm_support;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use cm_support::{GUARD, World, connect};
use iwarp_verbs::cm::{EventChannel, Id, ListenConfig, Listener};
use iwarp_verbs::{
    Access, CompletionQueue, Device, DeviceConfig, Error, MemoryError, Notify, QpConfig, QpState,
    QueuePair, RecvRequest, SendRequest, SrqConfig, WindowType, WorkCompletion,
};

/// Something that uses the object, and goes by being called.
type User = Box<dyn FnOnce()>;

/// An object of one kind, handles to it, and its destruction.
struct Row {
    object: &'static str,
    user: &'static str,
    /// What the error says about the user, and the number of them.
    by: (&'static str, usize),
    using: User,
    destroy: Box<dyn Fn() -> Result<(), Error>>,
}

/// A user that is destroyed by a call, though a handle to it is left.
fn destroyed<T: Clone + 'static>(
    user: &T,
    destroy: impl FnOnce(T) -> Result<(), Error> + 'static,
) -> User {
    let (user, handle) = (user.clone(), user.clone());
    Box::new(move || {
        destroy(user).unwrap();
        // Dropped only now.
        drop(handle);
    })
}

fn dropped<T: 'static>(user: T) -> User {
    Box::new(move || drop(user))
}

fn device_rows() -> Vec<Row> {
    let row = |user, by, using: fn(&Device) -> User| {
        let device = Device::open(DeviceConfig::default()).unwrap();
        let using = using(&device);
        let destroy = Box::new(move || device.clone().destroy());
        Row { object: "device", user, by, using, destroy }
    };
    vec![
        row("a protection domain", ("protection domain", 1), |device| {
            destroyed(&device.alloc_pd(), iwarp_verbs::ProtectionDomain::destroy)
        }),
        row("a dropped protection domain", ("protection domain", 1), |device| {
            dropped(device.alloc_pd())
        }),
        row("a completion queue", ("completion queue", 1), |device| {
            destroyed(&device.create_cq(4).unwrap(), CompletionQueue::destroy)
        }),
        row("two completion queues", ("completion queues", 2), |device| {
            dropped((device.create_cq(4).unwrap(), device.create_cq(4).unwrap()))
        }),
        row("a completion channel", ("completion channel", 1), |device| {
            destroyed(&device.create_channel().unwrap(), iwarp_verbs::CompletionChannel::destroy)
        }),
        row("a queue pair, which has a domain", ("completion queue", 1), |device| {
            let cq = device.create_cq(4).unwrap();
            dropped(device.alloc_pd().create_qp(&QpConfig::new(&cq)).unwrap())
        }),
        row("a region, which has a domain", ("protection domain", 1), |device| {
            dropped(device.alloc_pd().alloc(8, Access::empty()).unwrap())
        }),
        row("an event channel", ("event channel", 1), |device| {
            dropped(EventChannel::new(device).unwrap())
        }),
        row("an id, which has a channel", ("event channel", 1), |device| {
            dropped(Id::new(&EventChannel::new(device).unwrap()))
        }),
        row("a listener", ("listener", 1), |device| {
            dropped(Listener::bind(device, "127.0.0.1:0", ListenConfig::default()).unwrap())
        }),
    ]
}

fn domain_rows() -> Vec<Row> {
    let row = |user, by, using: fn(&World) -> User| {
        let world = World::new();
        let using = using(&world);
        let pd = world.pd.clone();
        let destroy = Box::new(move || {
            let _world = &world;
            pd.clone().destroy()
        });
        Row { object: "protection domain", user, by, using, destroy }
    };
    vec![
        row("a queue pair", ("queue pair", 1), |world| destroyed(&world.qp(), |qp| qp.destroy())),
        row("a dropped queue pair", ("queue pair", 1), |world| dropped(world.qp())),
        row("a shared receive queue", ("shared receive queue", 1), |world| {
            let srq = world.pd.create_srq(&SrqConfig::default()).unwrap();
            destroyed(&srq, |srq| srq.destroy())
        }),
        row("a queue pair and a region", ("queue pair", 1), |world| {
            dropped((world.qp(), world.pd.alloc(8, Access::empty()).unwrap()))
        }),
        row("a region of its own", ("memory region", 1), |world| {
            let region = world.pd.alloc(8, Access::empty()).unwrap();
            destroyed(&region, |region| region.deregister().map_err(Error::from))
        }),
        row("a dropped region", ("memory region", 1), |world| {
            dropped(world.pd.alloc(8, Access::empty()).unwrap())
        }),
        row("a memory window", ("memory window", 1), |world| {
            let window = world.pd.alloc_window(WindowType::Two).unwrap();
            destroyed(&window, |window| window.destroy().map_err(Error::from))
        }),
        row("a fast-registered region", ("memory region", 1), |world| {
            let region = world.pd.alloc_fast_region(64, 1, false).unwrap();
            destroyed(&region, |region| region.destroy().map_err(Error::from))
        }),
        row("a buffer of the program", ("memory region", 1), |world| {
            let owned = world.pd.register(vec![0; 8], Access::LOCAL_WRITE).unwrap();
            Box::new(move || drop(owned.deregister()))
        }),
        row("a region that only a slice holds", ("memory region", 1), |world| {
            dropped(world.pd.alloc(8, Access::empty()).unwrap().as_slice_all())
        }),
    ]
}

fn queue_rows() -> Vec<Row> {
    let row = |user, by, using: fn(&World, &CompletionQueue) -> User| {
        let world = World::new();
        let cq = world.device.create_cq(8).unwrap();
        let using = using(&world, &cq);
        let destroy = Box::new(move || {
            let _world = &world;
            cq.clone().destroy()
        });
        Row { object: "completion queue", user, by, using, destroy }
    };
    vec![
        row("a queue pair", ("queue pair", 1), |world, cq| {
            let qp = world.pd.create_qp(&QpConfig::new(cq)).unwrap();
            destroyed(&qp, |qp| qp.destroy())
        }),
        row("the sends of a queue pair", ("queue pair", 1), |world, cq| {
            dropped(world.pd.create_qp(&QpConfig::new(cq).recv_cq(&world.cq)).unwrap())
        }),
        row("the receives of two queue pairs", ("queue pairs", 2), |world, cq| {
            let config = QpConfig::new(&world.cq).recv_cq(cq);
            let pair = [(); 2].map(|()| world.pd.create_qp(&config).unwrap());
            dropped(pair)
        }),
    ]
}

fn channel_rows() -> Vec<Row> {
    let world = World::new();
    let channel = world.device.create_channel().unwrap();
    let cq = world.device.create_cq_with_channel(4, &channel).unwrap();
    vec![Row {
        object: "completion channel",
        user: "a completion queue",
        by: ("completion queue", 1),
        using: destroyed(&cq, CompletionQueue::destroy),
        destroy: Box::new(move || {
            let _world = &world;
            channel.clone().destroy()
        }),
    }]
}

fn shared_queue_rows() -> Vec<Row> {
    let row = |user, by, using: fn(QueuePair) -> User| {
        let world = World::new();
        let srq = world.pd.create_srq(&SrqConfig::default()).unwrap();
        let qp = world.pd.create_qp(&QpConfig::new(&world.cq).shared_receive_queue(&srq)).unwrap();
        let using = using(qp);
        let destroy = Box::new(move || {
            let _world = &world;
            srq.clone().destroy()
        });
        Row { object: "shared receive queue", user, by, using, destroy }
    };
    vec![
        row("a queue pair", ("queue pair", 1), |qp| destroyed(&qp, |qp| qp.destroy())),
        row("a dropped queue pair", ("queue pair", 1), dropped::<QueuePair>),
    ]
}

/// Contract of objects: refused by name while something uses it, done once when nothing does any more.
#[test]
fn nothing_in_use_is_destroyed_and_everything_else_once() {
    let rows = [device_rows(), domain_rows(), queue_rows(), channel_rows(), shared_queue_rows()];
    for Row { object, user, by, using, destroy } in rows.into_iter().flatten() {
        let error = destroy().expect_err(user);
        assert_eq!(error.errno(), 16, "{object} with {user}");
        match error {
            Error::Busy { what, users, by: name } => {
                assert_eq!((what, (name, users)), (object, by), "{object} with {user}");
            }
            other => panic!("{object} with {user}: {other}"),
        }
        using();
        destroy().unwrap_or_else(|error| panic!("{object} after {user}: {error}"));
        let again = destroy().expect_err("a second time");
        assert!(matches!(again, Error::Destroyed { what } if what == object), "{again}");
        assert_eq!(again.errno(), 22);
    }
}

/// FC-075: what is made from something that was destroyed is refused, through any handle.
#[test]
fn fc_075_nothing_is_made_from_what_was_destroyed() {
    let world = World::new();
    let (pd, cq) = (world.pd.clone(), world.cq.clone());
    let channel = world.device.create_channel().unwrap();
    let is_destroyed = |error: Error, what: &str| {
        assert_eq!(error.errno(), 22);
        assert_eq!(error.to_string(), format!("the {what} was destroyed"));
    };
    world.pd.clone().destroy().unwrap();
    let refused = pd.alloc(8, Access::empty()).unwrap_err();
    assert_eq!(refused, MemoryError::DomainDestroyed);
    let refused = pd.register(vec![1, 2], Access::LOCAL_WRITE).unwrap_err();
    assert_eq!((refused.cause, refused.buffer), (MemoryError::DomainDestroyed, vec![1, 2]));
    is_destroyed(pd.create_qp(&QpConfig::new(&cq)).unwrap_err(), "protection domain");
    let other = world.device.alloc_pd();
    world.cq.clone().destroy().unwrap();
    is_destroyed(other.create_qp(&QpConfig::new(&cq)).unwrap_err(), "send completion queue");
    is_destroyed(cq.wait(GUARD).unwrap_err(), "completion queue");
    channel.clone().destroy().unwrap();
    is_destroyed(channel.get_event().unwrap_err(), "completion channel");
    is_destroyed(
        world.device.create_cq_with_channel(4, &channel).unwrap_err(),
        "completion channel",
    );
    other.destroy().unwrap();
    world.device.clone().destroy().unwrap();
    is_destroyed(world.device.create_cq(4).unwrap_err(), "device");
    is_destroyed(world.device.create_channel().unwrap_err(), "device");
    is_destroyed(EventChannel::new(&world.device).unwrap_err(), "device");
    let unborn = world.device.alloc_pd();
    assert_eq!(unborn.alloc(8, Access::empty()).unwrap_err(), MemoryError::DomainDestroyed);
    let elsewhere = World::new();
    is_destroyed(unborn.create_qp(&QpConfig::new(&elsewhere.cq)).unwrap_err(), "device");
    assert!(
        Listener::bind(&world.device, "127.0.0.1:0", ListenConfig::default()).is_err(),
        "a listener of a device that was destroyed"
    );
}

/// A thread that sleeps on a channel hears of its destruction.
#[test]
fn a_destroyed_channel_wakes_who_waits() {
    let world = World::new();
    let channel = world.device.create_channel().unwrap();
    let waiters: Vec<_> = (0..3)
        .map(|_| {
            let channel = channel.clone();
            thread::spawn(move || channel.wait_event(None))
        })
        .collect();
    thread::sleep(Duration::from_millis(20));
    channel.destroy().unwrap();
    for waiter in waiters {
        assert!(matches!(waiter.join().unwrap(), Err(Error::Destroyed { .. })));
    }
}

/// FC-040: the destruction of a queue pair and of a completion queue waits for the events about them that
/// were fetched, in whatever way they are acknowledged.
#[test]
fn a_destroyed_device_wakes_who_waits() {
    let device = Device::open(DeviceConfig::default()).unwrap();
    let is_destroyed = |error| match error {
        Error::Destroyed { what } => assert_eq!(what, "device"),
        other => panic!("{other}"),
    };
    let threads: Vec<_> = (0..2)
        .map(|_| {
            let device = device.clone();
            thread::spawn(move || device.wait_async_event(None))
        })
        .collect();
    let task = {
        let device = device.clone();
        thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
            runtime.block_on(device.async_event())
        })
    };
    // Most often they wait by then; whoever comes too late finds it destroyed.
    thread::sleep(Duration::from_millis(20));
    device.clone().destroy().unwrap();
    for thread in threads {
        is_destroyed(thread.join().unwrap().unwrap_err());
    }
    is_destroyed(task.join().unwrap().unwrap_err());
    is_destroyed(device.next_async_event().unwrap_err());
}

#[test]
fn fc_040_destruction_waits_for_acknowledgement_by_number() {
    let world = World::new();
    let channel = world.device.create_channel().unwrap();
    let cq = world.device.create_cq_with_channel(64, &channel).unwrap();
    let qp = world.pd.create_qp(&QpConfig::new(&cq)).unwrap();
    qp.modify(QpState::Err).unwrap();
    for id in 0..3 {
        cq.arm(Notify::Any).unwrap();
        qp.post_recv(RecvRequest::new(id, ())).unwrap();
        let told = channel.wait_event(GUARD).unwrap().unwrap().into_unacknowledged();
        assert_eq!(told, cq);
    }
    qp.destroy().unwrap();
    assert!(cq.ack_events(4).is_err());
    let (tell, done) = mpsc::channel();
    let destroyer = {
        let cq = cq.clone();
        thread::spawn(move || {
            cq.destroy().unwrap();
            tell.send(()).unwrap();
        })
    };
    assert!(done.recv_timeout(Duration::from_millis(20)).is_err());
    cq.ack_events(2).unwrap();
    assert!(done.recv_timeout(Duration::from_millis(20)).is_err());
    cq.ack_events(1).unwrap();
    done.recv_timeout(GUARD).unwrap();
    destroyer.join().unwrap();
}

/// A device is closed after everything else: what its queue pairs have given to TCP still arrives, and
/// then its thread is gone.
#[test]
fn a_closed_device_has_delivered_what_it_sent_and_has_no_thread() {
    let (near, far) = (World::new(), World::new());
    let listener = far.listener();
    let (a, b) = (near.qp(), far.qp());
    let sink = far.pd.alloc(8, Access::LOCAL_WRITE).unwrap();
    b.post_recv(RecvRequest::new(1, sink.as_slice_all())).unwrap();
    let (near_end, _far_end) = connect(&listener, &a, &b);
    a.post_send(SendRequest::send_inline(1, b"farewell")).unwrap();
    // Until it is complete, the destruction of its queue pair may take it along.
    assert!(near.completions(1).remove(0).is_success());
    assert!(matches!(near.device.clone().destroy(), Err(Error::Busy { .. })));
    a.destroy().unwrap();
    drop(near_end);
    near.pd.destroy().unwrap();
    near.cq.destroy().unwrap();
    near.device.clone().destroy().unwrap();
    let received = far.completions(1).remove(0).ok().unwrap();
    assert_eq!(received.wr_id, 1);
    let mut text = [0; 8];
    sink.read_at(0, &mut text).unwrap();
    assert_eq!(&text, b"farewell");
    let again = near.device.destroy().unwrap_err();
    assert!(matches!(again, Error::Destroyed { what: "device" }), "{again}");
}

/// FC-076: destroyed while threads post, poll, wait and await: when the call returns, its completions have
/// come out for the last time and its memory is the program's own.
#[test]
fn fc_076_destruction_while_others_post_poll_wait_and_await() {
    let (near, far) = (World::new(), World::new());
    let listener = far.listener();
    for round in 0..60_u64 {
        let (a, b) = (near.qp(), far.qp());
        let near_memory =
            near.pd.register(vec![1_u8; 4096], Access::LOCAL_WRITE | Access::REMOTE_WRITE).unwrap();
        let far_memory =
            far.pd.register(vec![2_u8; 4096], Access::LOCAL_WRITE | Access::REMOTE_WRITE).unwrap();
        let _ends = connect(&listener, &a, &b);
        let (stop, gone) = (AtomicBool::new(false), AtomicBool::new(false));
        let regions = (near_memory.region().clone(), far_memory.region().clone());
        let running = || !stop.load(Ordering::Acquire);
        // Whether it was gone before the call that gave the completion began.
        let note = |was_gone: bool, wc: &WorkCompletion| {
            assert!(!was_gone || wc.qp_num != a.number(), "after its end: {wc:?}");
        };
        thread::scope(|scope| {
            for (qp, local, remote) in [
                (&a, &regions.0, &regions.1),
                (&b, &regions.1, &regions.0),
                (&a, &regions.0, &regions.1),
            ] {
                scope.spawn(move || {
                    while running() {
                        let slice = local.as_slice_all();
                        // Full queues, and the end, refuse.
                        let _ = qp.post_send(SendRequest::write(1, slice.clone(), remote.remote()));
                        let _ = qp.post_recv(RecvRequest::new(2, slice));
                    }
                });
            }
            scope.spawn(|| {
                while running() {
                    let was_gone = gone.load(Ordering::Acquire);
                    if let Some(wc) = near.cq.poll_one() {
                        note(was_gone, &wc);
                    }
                }
            });
            scope.spawn(|| {
                while running() {
                    let was_gone = gone.load(Ordering::Acquire);
                    if let Some(wc) = near.cq.wait(Duration::from_millis(1)).unwrap() {
                        note(was_gone, &wc);
                    }
                }
            });
            scope.spawn(|| {
                while running() {
                    let was_gone = gone.load(Ordering::Acquire);
                    let next = iwarp_verbs::aio::wait(near.cq.next(), Duration::from_millis(1));
                    if let Some(wc) = next {
                        note(was_gone, &wc.unwrap());
                    }
                }
            });
            scope.spawn(|| {
                while running() {
                    while far.cq.poll_one().is_some() {}
                }
            });
            thread::sleep(Duration::from_micros(round * 37 % 2000));
            if round % 3 == 2 {
                b.modify(QpState::Err).unwrap();
            }
            a.destroy().unwrap();
            gone.store(true, Ordering::Release);
            // Nobody writes to it any more.
            let mut buffer = near_memory.deregister();
            buffer.fill(0x55);
            thread::sleep(Duration::from_micros(200));
            assert!(buffer.iter().all(|&octet| octet == 0x55), "round {round}");
            stop.store(true, Ordering::Release);
        });
        b.destroy().unwrap();
        assert!(near.cq.is_empty(), "posted after the end, and reported");
    }
    near.cq.destroy().unwrap();
}
