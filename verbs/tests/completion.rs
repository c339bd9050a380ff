//! Completion queues of live connections: polled, slept on, awaited, and left alone.

#![allow(clippy::unwrap_used, reason = "a failed step is a failed test")]

mod cm_support;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use cm_support::{GUARD as FORGOTTEN, Side, connect};
use iwarp_verbs::cm::{self, ConnParam, Connection};
use iwarp_verbs::{
    AsyncEventKind, Error, EventSource, Notify, QpConfig, QpState, RecvRequest, SendRequest,
    WcOpcode, WorkCompletion,
};

fn pair(client: &Side, server: &Side) -> (Connection, Connection) {
    connect(&server.listen(), &client.qp(), &server.qp())
}

#[test]
fn two_polling_programs_play_ping_pong() {
    let (client, server) = (Side::new(), Side::new());
    let (near, far) = pair(&client, &server);
    let rounds = 300_u64;
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            // Memory is polled, not the queue; the queue is polled so that the lease is held.
            let reply = server.region.slice(0..8).unwrap();
            let to = client.region.remote();
            for round in 1..=rounds {
                while server.region.load_u64(0).unwrap() != round {
                    assert!(server.cq.poll_one().is_none());
                }
                far.qp()
                    .post_send(SendRequest::write(round, reply.clone(), to).unsignaled())
                    .unwrap_or_else(|error| assert_eq!(error.errno(), 12, "{error}"));
                if round.is_multiple_of(64) {
                    far.qp().post_send(SendRequest::write(round, (), to)).unwrap();
                    assert_eq!(server.polled().wr_id, round);
                }
            }
            done.store(true, Ordering::Release);
        });
        let to = server.region.remote();
        for round in 1..=rounds {
            client.region.store_u64(8, round).unwrap();
            let ping = client.region.slice(8..16).unwrap();
            near.qp().post_send(SendRequest::write(round, ping, to)).unwrap();
            assert_eq!(client.polled().opcode, WcOpcode::RdmaWrite);
            while client.region.load_u64(0).unwrap() != round {
                assert!(client.cq.poll_one().is_none());
            }
        }
    });
    assert!(done.into_inner());
}

/// Nothing depends on polling: a program that polled, holds the lease, and turns to something else, is
/// still written to and read from.
#[test]
fn a_lease_that_is_not_used_holds_nobody_up() {
    let (client, server) = (Side::new(), Side::new());
    let (near, _far) = pair(&client, &server);
    for round in 1..=20 {
        // Takes the lease, after the driver had time to leave the connection to us.
        (0..100).for_each(|_| assert!(server.cq.poll_one().is_none()));
        client.region.store_u64(0, round).unwrap();
        let slice = client.region.slice(0..8).unwrap();
        let to = server.region.remote();
        near.qp().post_send(SendRequest::write(1, slice, to)).unwrap();
        let back = client.region.slice(8..16).unwrap();
        near.qp().post_send(SendRequest::read(2, back, to)).unwrap();
        assert_eq!((client.polled().wr_id, client.polled().wr_id), (1, 2));
        assert_eq!(client.region.load_u64(8).unwrap(), round);
    }
}

/// FC-043: more connections than a poll tries one by one, all busy and idle in turn, on one queue.
#[test]
fn many_connections_on_one_polled_queue() {
    const CONNECTIONS: usize = 40;
    const ROUNDS: u64 = 6;
    let (client, server) = (Side::new(), Side::new());
    let listener = server.listen();
    let pairs: Vec<_> =
        (0..CONNECTIONS).map(|_| connect(&listener, &client.qp(), &server.qp())).collect();
    let slice = server.region.slice(0..16).unwrap();
    for (_, far) in &pairs {
        for id in 0..ROUNDS {
            far.qp().post_recv(RecvRequest::new(id, slice.clone())).unwrap();
        }
    }
    thread::scope(|scope| {
        scope.spawn(|| {
            for round in 0..ROUNDS {
                // Each time in another order, and some twice in a row.
                for at in 0..CONNECTIONS {
                    let at = (at * 7 + usize::try_from(round).unwrap() * 3) % CONNECTIONS;
                    let send = SendRequest::send_inline(round, [0; 16]);
                    pairs[at].0.qp().post_send(send).unwrap();
                    if at.is_multiple_of(5) {
                        thread::sleep(Duration::from_millis(1));
                    }
                }
            }
        });
        let mut next: BTreeMap<u32, u64> =
            pairs.iter().map(|(_, far)| (far.qp().number(), 0)).collect();
        for _ in 0..CONNECTIONS as u64 * ROUNDS {
            let wc = server.polled();
            let expected = next.get_mut(&wc.qp_num).unwrap();
            assert_eq!(wc.wr_id, *expected, "order of queue pair {}", wc.qp_num);
            *expected += 1;
        }
    });
    for _ in 0..CONNECTIONS as u64 * ROUNDS {
        client.polled();
    }
}

/// FC-039: threads that poll and threads that sleep share one queue of several connections.
#[test]
fn pollers_sleepers_and_tasks_share_one_queue() {
    const CONNECTIONS: usize = 6;
    const EACH: u64 = 100;
    let (client, server) = (Side::new(), Side::new());
    let listener = server.listen();
    let pairs: Vec<_> =
        (0..CONNECTIONS).map(|_| connect(&listener, &client.qp(), &server.qp())).collect();
    let slice = server.region.slice(0..16).unwrap();
    for (_, far) in &pairs {
        for id in 0..EACH {
            far.qp().post_recv(RecvRequest::new(id, slice.clone())).unwrap();
        }
    }
    let total = EACH * CONNECTIONS as u64;
    let taken = AtomicU64::new(0);
    let log = std::sync::Mutex::new(BTreeSet::new());
    let note = |wc: WorkCompletion| {
        let wc = wc.ok().unwrap();
        assert!(log.lock().unwrap().insert((wc.qp_num, wc.wr_id)), "{wc:?} was there before");
        taken.fetch_add(1, Ordering::SeqCst);
    };
    let more = || taken.load(Ordering::SeqCst) < total;
    thread::scope(|scope| {
        for (near, _) in &pairs {
            scope.spawn(|| {
                for id in 0..EACH {
                    let send = SendRequest::send_inline(id, [0; 16]).unsignaled();
                    let signalled = SendRequest::send_inline(id, [0; 16]);
                    let send = if id % 16 == 0 { signalled } else { send };
                    near.qp().post_send(send).unwrap();
                    if id % 10 == 0 {
                        thread::sleep(Duration::from_millis(1));
                    }
                }
            });
        }
        scope.spawn(|| {
            while more() {
                server.cq.poll_one().map_or_else(thread::yield_now, note);
            }
        });
        for _ in 0..2 {
            scope.spawn(|| {
                while more() {
                    // The last completion may go to somebody else.
                    server.cq.wait(Duration::from_millis(50)).unwrap().into_iter().for_each(note);
                }
            });
        }
        scope.spawn(|| {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            runtime.unwrap().block_on(async {
                while more() {
                    let next = tokio::time::timeout(Duration::from_millis(50), server.cq.next());
                    // Given up now and then, which must lose nothing.
                    if let Ok(wc) = next.await {
                        note(wc.unwrap());
                    }
                }
            });
        });
    });
    assert_eq!(log.into_inner().unwrap().len() as u64, total);
}

/// A thread asleep on the queue is woken by the socket, whether or not the driver would come.
#[test]
fn a_sleeping_thread_moves_its_connections_itself() {
    let (client, server) = (Side::new(), Side::new());
    let (near, far) = pair(&client, &server);
    let slice = server.region.slice(0..16).unwrap();
    assert!(server.cq.wait(Duration::from_millis(5)).unwrap().is_none(), "nothing yet");
    assert!(server.cq.wait(Duration::ZERO).unwrap().is_none());
    for id in 0..50 {
        far.qp().post_recv(RecvRequest::new(id, slice.clone())).unwrap();
        thread::scope(|scope| {
            let sleeper = scope.spawn(|| server.cq.wait(FORGOTTEN).unwrap().expect("forgotten"));
            if id % 2 == 0 {
                // Long enough to be asleep.
                thread::sleep(Duration::from_millis(2));
            }
            near.qp().post_send(SendRequest::send_inline(id, b"wake up")).unwrap();
            assert_eq!(sleeper.join().unwrap().wr_id, id);
        });
        assert_eq!(client.cq.wait(FORGOTTEN).unwrap().unwrap().wr_id, id);
    }
}

#[tokio::test(flavor = "current_thread")]
async fn a_task_awaits_completions_of_its_connections() {
    let (client, server) = (Side::new(), Side::new());
    let listener = server.listen();
    let (client_qp, server_qp) = (client.qp(), server.qp());
    let connecting = cm::connect(listener.local_addr(), &client_qp, ConnParam::default()).unwrap();
    let request = listener.next().await;
    let accepting = request.accept(&server_qp, ConnParam::default()).unwrap();
    let (near, far) = (connecting.await.unwrap(), accepting.await.unwrap());
    let slice = server.region.slice(0..16).unwrap();
    for id in 0..50 {
        far.qp().post_recv(RecvRequest::new(id, slice.clone())).unwrap();
        let received = async {
            // Given up once on the way.
            let soon = tokio::time::timeout(Duration::from_millis(1), server.cq.next()).await;
            match soon {
                Ok(wc) => wc.unwrap(),
                Err(_) => server.cq.next().await.unwrap(),
            }
        };
        let sent = async {
            if id % 2 == 0 {
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
            near.qp().post_send(SendRequest::send_inline(id, b"wake up")).unwrap();
            client.cq.next().await.unwrap()
        };
        let (received, sent) = tokio::join!(received, sent);
        assert_eq!((received.ok().unwrap().wr_id, sent.ok().unwrap().wr_id), (id, id));
    }
}

/// The program's runtime is no more than an accelerator: one that spins in `poll`, and one that is gone,
/// stop nothing.
#[test]
fn a_runtime_that_spins_or_is_gone_stops_nothing() {
    let (client, server) = (Side::new(), Side::new());
    let (near, far) = pair(&client, &server);
    let slice = server.region.slice(0..16).unwrap();
    (0..3).for_each(|id| {
        far.qp().post_recv(RecvRequest::new(id, slice.clone())).unwrap();
    });
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let waiting = tokio::spawn({
            let cq = server.cq.clone();
            async move { cq.next().await.unwrap() }
        });
        // The task has registered with the reactor, which does not run from here on.
        tokio::task::yield_now().await;
        near.qp().post_send(SendRequest::send_inline(1, b"one")).unwrap();
        assert_eq!(server.polled().wr_id, 0);
        near.qp().post_send(SendRequest::send_inline(2, b"two")).unwrap();
        assert_eq!(waiting.await.unwrap().ok().unwrap().wr_id, 1);
    });
    drop(runtime);
    near.qp().post_send(SendRequest::send_inline(3, b"three")).unwrap();
    assert_eq!(server.cq.wait(FORGOTTEN).unwrap().unwrap().wr_id, 2);
}

/// FC-037 in real life: one thread serves two queues through one channel.
#[test]
fn a_channel_tells_of_the_queues_of_live_connections() {
    let (client, server) = (Side::new(), Side::new());
    let channel = server.device.create_channel().unwrap();
    let listener = server.listen();
    let ends: Vec<_> = (0..2)
        .map(|_| {
            let cq = server.device.create_cq_with_channel(64, &channel).unwrap();
            let qp = server.pd.create_qp(&QpConfig::new(&cq)).unwrap();
            let (near, far) = connect(&listener, &client.qp(), &qp);
            (cq, near, far)
        })
        .collect();
    let slice = server.region.slice(0..16).unwrap();
    for round in 0..50 {
        for (cq, _, far) in &ends {
            far.qp().post_recv(RecvRequest::new(round, slice.clone())).unwrap();
            cq.arm(Notify::Any).unwrap();
            assert!(cq.is_empty());
        }
        for (_, near, _) in &ends {
            near.qp().post_send(SendRequest::send_inline(round, b"ring")).unwrap();
        }
        let mut told = Vec::new();
        for _ in &ends {
            let cq = channel.wait_event(FORGOTTEN).unwrap().expect("forgotten").ack();
            let wc = cq.poll_one().unwrap().ok().unwrap();
            assert_eq!(wc.wr_id, round);
            assert!(!told.contains(&cq), "told twice");
            told.push(cq);
        }
        assert!(channel.get_event().unwrap().is_none());
    }
}

/// FC-042: ten signalled Writes for a queue of four.
#[test]
fn an_overrun_ends_the_queue_pairs_and_nothing_else() {
    let (client, server) = (Side::with_entries(4), Side::new());
    let (near, _far) = pair(&client, &server);
    let bystander = Side::new();
    let (other, _other_far) = pair(&bystander, &server);
    let slice = client.region.slice(0..8).unwrap();
    for id in 0..10 {
        let write = SendRequest::write(id, slice.clone(), server.region.remote());
        near.qp().post_send(write).unwrap();
    }
    let mut kinds = Vec::new();
    let started = Instant::now();
    while kinds.len() < 2 {
        assert!(started.elapsed() < FORGOTTEN, "only {kinds:?}");
        if let Some(event) = client.device.next_async_event().unwrap() {
            match event.source() {
                EventSource::CompletionQueue(cq) => assert_eq!(*cq, client.cq),
                EventSource::QueuePair(qp) => assert_eq!(qp.upgrade().as_ref(), Some(near.qp())),
                other => panic!("{other:?}"),
            }
            kinds.push(event.kind());
        }
    }
    assert_eq!(kinds, [AsyncEventKind::CqErr, AsyncEventKind::QpFatal]);
    let mut polled = Vec::with_capacity(16);
    client.cq.poll(&mut polled);
    let polled: Vec<_> = polled.into_iter().map(|wc| wc.ok().unwrap().wr_id).collect();
    assert_eq!(polled, [0, 1, 2, 3], "the first ones are intact");
    assert!(matches!(client.cq.wait(FORGOTTEN), Err(Error::CqOverrun { capacity: 4 })));
    while near.qp().state() != QpState::Err {
        assert!(started.elapsed() < FORGOTTEN, "still {}", near.qp().state());
        thread::yield_now();
    }
    assert!(client.device.next_async_event().unwrap().is_none(), "each told once");

    let slice = bystander.region.slice(0..8).unwrap();
    let write = SendRequest::write(1, slice, server.region.remote());
    other.qp().post_send(write).unwrap();
    assert_eq!(bystander.polled().wr_id, 1, "others are unaffected");
}
