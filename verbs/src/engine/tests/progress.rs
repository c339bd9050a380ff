//! Progress never depends on polling, nor on anybody's runtime.

use std::thread;

use super::*;
use crate::wr::{RecvRequest, SendRequest};

/// The target makes no call at all: its program sleeps.
#[test]
fn a_target_that_makes_no_calls_is_written_read_and_sent_to() {
    let Pair { a, b } = Setup::default().connect();
    let far = b.region(256 * 1024);
    let sink = b.region(64);
    for id in 0..8 {
        b.qp.post_recv(RecvRequest::new(id, sink.as_slice_all())).unwrap();
    }
    let (near, back) = (a.pattern(256 * 1024, 1), a.region(256 * 1024));
    for id in 0..8 {
        a.qp.post_send(SendRequest::write(id, near.as_slice_all(), far.remote())).unwrap();
        a.qp.post_send(SendRequest::send_inline(100 + id, [0; 64])).unwrap();
        a.qp.post_send(SendRequest::read(200 + id, back.as_slice_all(), far.remote())).unwrap();
        for id in [id, 100 + id, 200 + id] {
            assert_success(&a.sent(), id);
        }
        assert!(content(&back) == content(&near));
    }
    // Counted without driving anything.
    assert_eq!(b.recv_cq.len(), 8);
}

/// Neither side polls a completion queue: each spins on its memory, as latency tests do.
#[test]
fn two_programs_that_spin_on_memory_play_ping_pong() {
    let Pair { a, b } = Setup::default().connect();
    let regions = [a.region(8), b.region(8)];
    let rounds = 200;
    let player = |end: End, mine: MemoryRegion, theirs: crate::mem::RemoteMemory, first: bool| {
        thread::spawn(move || {
            for round in 1..=rounds {
                let serve = || {
                    let ball = SendRequest::write_inline(round, round.to_le_bytes(), theirs);
                    end.qp.post_send(ball.unsignaled()).unwrap();
                };
                if first {
                    serve();
                }
                until("the ball", || mine.load_u64(0).unwrap() == round.to_le());
                if !first {
                    serve();
                }
            }
            end
        })
    };
    let remotes = regions.each_ref().map(MemoryRegion::remote);
    let [left, right] = regions;
    let one = player(a, left, remotes[1], true);
    let two = player(b, right, remotes[0], false);
    one.join().unwrap();
    two.join().unwrap();
}

/// A program that polls takes the work from the driver; when it stops, the driver takes it back.
#[test]
fn a_lease_lapses_when_the_program_stops_polling() {
    let Pair { a, b } = Setup::default().connect();
    let far = b.region(8);
    for round in 1..=20_u64 {
        // Enough empty polls to take the lease, with traffic meanwhile.
        for _ in 0..50 {
            assert!(b.recv_cq.poll_one().is_none());
        }
        a.qp.post_send(SendRequest::write_inline(round, round.to_le_bytes(), far.remote()))
            .unwrap();
        assert_success(&a.sent(), round);
        // No poll here.
        until("the Write", || far.load_u64(0).unwrap() == round.to_le());
        until("the driver to be done", || {
            !b.qp.0.inner.parked.load(std::sync::atomic::Ordering::Relaxed)
        });
    }
}

/// Each segment for a member of the driver's set costs its sender time, whether it is armed or not.
#[test]
fn a_socket_that_a_program_polls_is_not_in_the_drivers_set() {
    let Pair { a, b } = Setup::default().connect();
    let far = b.region(8);
    let write = |round: u64| {
        let ball = SendRequest::write_inline(round, round.to_le_bytes(), far.remote());
        a.qp.post_send(ball).unwrap();
        assert_success(&a.sent(), round);
    };
    let is_listed = || b.qp.0.inner.engine.lock().link.as_ref().is_some_and(|link| link.listed);
    let mut round = 0;
    for _ in 0..3 {
        until("its program to be enough", || {
            round += 1;
            write(round);
            until("the Write", || {
                assert!(b.recv_cq.poll_one().is_none());
                far.load_u64(0).unwrap() == round.to_le()
            });
            !is_listed()
        });
        until("the end of the lease", is_listed);
        round += 1;
        write(round);
        until("the driver", || far.load_u64(0).unwrap() == round.to_le());
    }
}

/// The system may be out of memory for sockets that are watched: nobody polls, and nothing stands still.
#[test]
fn a_socket_that_could_not_be_armed_is_armed_later() {
    let Pair { a, b } = Setup::default().connect();
    let far = b.region(8);
    let driver = b.qp.0.inner.driver();
    for round in 1..=4_u64 {
        let before = driver.retries();
        driver.fail_arming(3);
        for half in [1, 2] {
            let ball = round * 2 + half;
            a.qp.post_send(SendRequest::write_inline(ball, ball.to_le_bytes(), far.remote()))
                .unwrap();
            assert_success(&a.sent(), ball);
            until("the driver", || far.load_u64(0).unwrap() == ball.to_le());
        }
        until("the attempts that fail", || driver.retries() >= before + 3);
    }
}

/// Polls of both sides spend their budgets in the middle of a transfer, and then nobody polls any more.
#[test]
fn a_transfer_goes_on_when_the_programs_stop_polling() {
    const LEN: usize = 8 << 20;
    let Pair { a, b } = Setup::default().connect();
    let (near, far) = (a.region(LEN), b.region(LEN));
    for round in 1..=4 {
        near.store_u64(LEN - 8, round).unwrap();
        a.qp.post_send(SendRequest::write(round, near.as_slice_all(), far.remote())).unwrap();
        for _ in 0..20 {
            assert!(b.recv_cq.poll_one().is_none() && a.recv_cq.poll_one().is_none());
        }
        until("the last octets", || far.load_u64(LEN - 8).unwrap() == round);
        until("the completion", || a.send_cq.len() == 1);
        assert_success(&a.sent(), round);
    }
}

/// The program spins inside its own single-threaded runtime and never yields to it.
#[test]
fn a_program_that_spins_in_its_own_runtime_stops_nothing() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let Pair { a, b } = Setup::default().connect();
        let sink = b.region(4);
        b.qp.post_recv(RecvRequest::new(1, sink.as_slice_all())).unwrap();
        // Somebody awaits in the same runtime, and is never polled again.
        let cq = b.send_cq.clone();
        tokio::spawn(async move { cq.next().await });
        tokio::task::yield_now().await;
        a.qp.post_send(SendRequest::send_inline(2, b"spin")).unwrap();
        assert_success(&a.sent(), 2);
        until("the message", || content(&sink) == b"spin");
        assert_success(&b.received(), 1);
        b.qp.post_send(SendRequest::read(3, (), a.region(8).remote())).unwrap();
        until("the answer", || b.send_cq.len() == 1);
    });
}

/// The runtime in which somebody awaited is dropped: connections go on.
#[test]
fn a_dropped_runtime_stops_nothing() {
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let Pair { a, b } = Setup::default().connect();
    for id in 0..2 {
        b.qp.post_recv(RecvRequest::new(id, ())).unwrap();
    }
    let (cq, other) = (b.recv_cq.clone(), a.recv_cq.clone());
    let task = runtime.spawn(async move { cq.next().await });
    runtime.spawn(async move { other.next().await });
    a.qp.post_send(SendRequest::send(5, ())).unwrap();
    let wc = runtime.block_on(task).unwrap().unwrap();
    assert_success(&wc, 0);
    drop(runtime);
    a.qp.post_send(SendRequest::send(6, ())).unwrap();
    assert_success(&a.sent(), 5);
    assert_success(&a.sent(), 6);
    until("the message", || b.recv_cq.len() == 1);
    assert_success(&b.received(), 1);
}

/// Threads that sleep in the wait call are woken by their sockets.
#[test]
fn blocking_waits_play_ping_pong() {
    let Pair { a, b } = Setup::default().connect();
    let rounds = 300;
    let player = |end: End, first: bool| {
        thread::spawn(move || {
            for id in 0..rounds {
                end.qp.post_recv(RecvRequest::new(id, ())).unwrap();
            }
            for id in 0..rounds {
                let serve = || end.qp.post_send(SendRequest::send(id, ()).unsignaled()).unwrap();
                if first {
                    serve();
                }
                let wc = end.recv_cq.wait(HANG).unwrap().expect("in time");
                assert_success(&wc, id);
                if !first {
                    serve();
                }
            }
            end
        })
    };
    // Receives are posted before anybody sends.
    let two = player(b, false);
    let one = player(a, true);
    one.join().unwrap();
    two.join().unwrap();
}

/// Several threads post to one queue pair while one polls: all is sent once, in each thread's order.
#[test]
fn threads_post_to_one_queue_pair() {
    const THREADS: u64 = 4;
    const EACH: u64 = 300;
    let setup = Setup { requests: 2048, entries: 8192, ..Setup::default() };
    let Pair { a, b } = setup.connect();
    let sink = b.region(16 * (THREADS * EACH) as usize);
    for id in 0..THREADS * EACH {
        let at = id as usize * 16;
        b.qp.post_recv(RecvRequest::new(id, sink.slice(at..at + 16).unwrap())).unwrap();
    }
    thread::scope(|scope| {
        for thread in 0..THREADS {
            let qp = &a.qp;
            scope.spawn(move || {
                for id in 0..EACH {
                    let mut octets = [0; 16];
                    octets[..8].copy_from_slice(&thread.to_le_bytes());
                    octets[8..].copy_from_slice(&id.to_le_bytes());
                    qp.post_send(SendRequest::send_inline(thread << 32 | id, octets)).unwrap();
                }
            });
        }
        let done = poll_n(&a.send_cq, (THREADS * EACH) as usize);
        let mut next = [0; THREADS as usize];
        for wc in done {
            let thread = (wc.wr_id >> 32) as usize;
            assert_success(&wc, (wc.wr_id >> 32) << 32 | next[thread]);
            next[thread] += 1;
        }
    });
    poll_n(&b.recv_cq, (THREADS * EACH) as usize);
    let octets = content(&sink);
    let mut next = [0; THREADS as usize];
    for message in octets.chunks(16) {
        let thread = u64::from_le_bytes(message[..8].try_into().unwrap()) as usize;
        let id = u64::from_le_bytes(message[8..].try_into().unwrap());
        assert_eq!(id, next[thread]);
        next[thread] += 1;
    }
}
