//! Requests that wait in the send queue for others: who sends them.

use std::sync::atomic::Ordering;

use proptest::collection::vec;
use proptest::prelude::*;

use super::*;
use crate::wr::{RecvRequest, SendRequest};

impl End {
    /// All single requests wait from here on.
    fn gather(&self) {
        self.qp.0.inner.gather.always.store(true, Ordering::Relaxed);
    }

    fn is_waiting(&self) -> bool {
        self.qp.0.inner.sq.any()
    }
}

/// A write of one octet to the octet of that number.
fn write(from: &MemoryRegion, to: &MemoryRegion, at: usize) -> SendRequest {
    let remote = to.remote().slice(at as u64..=at as u64).expect("inside");
    SendRequest::write(at as u64, from.slice(at..=at).expect("inside"), remote)
}

/// The program makes no call any more.
#[test]
fn the_driver_sends_what_is_left() {
    let Pair { a, b } = Setup::default().connect();
    let (near, far) = (a.pattern(8, 3), b.region(8));
    a.gather();
    for round in 0..3 {
        far.write_at(0, &[0; 8]).unwrap();
        for at in 0..8 {
            a.qp.post_send(write(&near, &far, at)).unwrap();
        }
        until("the driver", || content(&far) == content(&near));
        for at in 0..8 {
            assert_success(&a.sent(), at);
        }
        // Every other round begins when it has looked away.
        if round % 2 == 1 {
            let watch = &a.qp.0.inner.gather.watch;
            until("the end of its watch", || !watch.is_announced());
        }
    }
}

/// The post that makes it enough sends them, and none before. Where the driver has come in between, which
/// it may on a busy machine, nothing is learnt and the row is posted again.
#[test]
fn so_many_or_so_long_are_sent_at_once() {
    let Pair { a, b } = Setup::default().connect();
    let (near, far) = (a.pattern(160_000, 3), b.region(160_000));
    a.gather();
    let long = || SendRequest::write(0, near.as_slice_all(), far.remote());
    let rows: [(usize, &dyn Fn(usize) -> SendRequest); 2] =
        [(32, &|at| write(&near, &far, at)), (2, &|_| long())];
    for (len, request) in rows {
        until("a row without the driver", || {
            let before = a.qp.stats();
            for at in 0..len {
                a.qp.post_send(request(at)).unwrap();
            }
            let after = a.qp.stats();
            let undisturbed = after.passes_of_driver == before.passes_of_driver;
            if undisturbed {
                assert_eq!(after.passes_of_posts, before.passes_of_posts + 1, "a row of {len}");
                assert!(!a.is_waiting());
            }
            poll_n(&a.send_cq, len);
            undisturbed
        });
    }
    until("the octets", || content(&far) == content(&near));
}

/// Each call that is to come after what was posted, or looks for its end, sends it.
#[test]
fn other_calls_send_them_first() {
    let calls: [fn(&End); 6] = [
        |a| drop(a.send_cq.poll_one()),
        |a| drop(a.recv_cq.poll_one()),
        |a| drop(a.send_cq.wait(HANG)),
        |a| a.qp.disconnect(),
        |a| a.qp.destroy().expect("not destroyed yet"),
        |a| drop(a.qp.clone().modify(QpState::Err)),
    ];
    for (number, call) in calls.into_iter().enumerate() {
        let Pair { a, b } = Setup::default().connect();
        let (near, far) = (a.pattern(4, 3), b.region(4));
        a.gather();
        for at in 0..4 {
            a.qp.post_send(write(&near, &far, at)).unwrap();
        }
        call(&a);
        assert!(!a.is_waiting(), "call {number}");
        if number < 5 {
            until("the octets", || content(&far) == content(&near));
        }
    }
}

/// What the peer does to the connection meanwhile leaves nothing in the queue.
#[test]
fn they_are_flushed_with_the_connection() {
    let Pair { a, b } = Setup::default().connect();
    let (near, far) = (a.pattern(4, 3), b.region(4));
    a.gather();
    b.qp.0.inner.abort();
    a.wait_state(QpState::Err);
    for at in 0..4 {
        a.qp.post_send(write(&near, &far, at)).unwrap();
    }
    until("a flush", || a.send_cq.len() == 4);
    for at in 0..4 {
        let wc = a.sent();
        assert_eq!((wc.wr_id, wc.status), (at, WcStatus::WrFlushErr));
    }
}

#[derive(Debug, Clone, Copy)]
enum Step {
    Post(usize),
    Send,
    List(usize),
    Poll,
    Receive,
    Pause,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => (1..6_usize).prop_map(Step::Post),
        1 => Just(Step::Send),
        1 => (1..6_usize).prop_map(Step::List),
        2 => Just(Step::Poll),
        1 => Just(Step::Receive),
        1 => Just(Step::Pause),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    /// Any sequence of posts, polls and pauses; then no call at all. Everything arrives, and every
    /// request completes in its turn.
    #[test]
    fn all_arrive_in_order(steps in vec(step(), 1..60), always in any::<bool>()) {
        let Pair { a, b } = Setup { entries: 1024, ..Setup::default() }.connect();
        let (near, far) = (a.pattern(512, 3), b.region(512));
        let sink = b.region(1);
        if always {
            a.gather();
        }
        let (mut posted, mut done, mut sends) = (0, 0, 0);
        for id in 0..60 {
            b.qp.post_recv(RecvRequest::new(id, sink.as_slice_all())).unwrap();
        }
        let next = |posted: &mut usize| {
            *posted += 1;
            write(&near, &far, *posted - 1)
        };
        for step in steps {
            match step {
                Step::Post(n) => {
                    for _ in 0..n {
                        a.qp.post_send(next(&mut posted)).unwrap();
                    }
                }
                Step::Send => {
                    let send = SendRequest::send(posted as u64, near.slice(0..1).unwrap());
                    a.qp.post_send(send).unwrap();
                    far.write_at(posted, &content(&near)[posted..=posted]).unwrap();
                    posted += 1;
                    sends += 1;
                }
                Step::List(n) => {
                    let list: Vec<_> = (0..n).map(|_| next(&mut posted)).collect();
                    a.qp.post_send_list(list).unwrap();
                }
                Step::Poll => {
                    if let Some(wc) = a.send_cq.poll_one() {
                        assert_success(&wc, done);
                        done += 1;
                    }
                }
                Step::Receive => drop(a.recv_cq.poll_one()),
                Step::Pause => std::thread::sleep(Duration::from_micros(100)),
            }
        }
        until("the octets", || content(&far)[..posted] == content(&near)[..posted]);
        until("the messages", || b.recv_cq.len() == sends);
        prop_assert!(!a.is_waiting());
        for id in done..posted as u64 {
            assert_success(&a.sent(), id);
        }
        prop_assert!(a.send_cq.poll_one().is_none());
    }
}
