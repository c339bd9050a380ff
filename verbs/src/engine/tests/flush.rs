//! How requests end when the connection does.

use std::collections::HashMap;
use std::io::Read;
use std::sync::Arc;
use std::thread;

use super::*;
use crate::cq::Hand;
use crate::mem::RemoteMemory;
use crate::wr::{RawSge, RecvRequest, SendFlags, SendOperation, SendRequest};

const NOWHERE: RemoteMemory = RemoteMemory { addr: 0x1000, len: 1 << 30, rkey: 0x1234_5678 };

fn ids(wcs: &[WorkCompletion]) -> Vec<(u64, WcStatus)> {
    wcs.iter().map(|wc| (wc.wr_id, wc.status)).collect()
}

fn flushed(ids: impl IntoIterator<Item = u64>) -> Vec<(u64, WcStatus)> {
    ids.into_iter().map(|id| (id, WcStatus::WrFlushErr)).collect()
}

/// FC-031, FC-034: ten outstanding on each queue, then the peer is gone, then a marker on each.
#[test]
fn everything_outstanding_is_flushed_and_markers_come_last() {
    let setup = Setup::default();
    let end = setup.end();
    let (left, right) = tcp_pair();
    setup.start(&end, left, Role::Initiator);
    let region = end.region(64);
    for id in 0..10 {
        let slice = region.as_slice_all();
        end.qp.post_recv(RecvRequest::new(100 + id, slice.clone())).unwrap();
        // Never answered, so outstanding to the end. Not signalled: flushed all the same.
        let read = SendRequest::read(id, slice, NOWHERE);
        end.qp.post_send(if id % 2 == 0 { read } else { read.unsignaled() }).unwrap();
    }
    drop(right);
    end.wait_state(QpState::Err);
    end.qp.post_send(SendRequest::send(10, region.as_slice_all()).unsignaled()).unwrap();
    end.qp.post_recv(RecvRequest::new(110, region.as_slice_all())).unwrap();
    let sends = poll_n(&end.send_cq, 11);
    assert_eq!(ids(&sends), flushed(0..11));
    let receives = poll_n(&end.recv_cq, 11);
    assert_eq!(ids(&receives), flushed(100..111));
    assert!(sends.iter().chain(&receives).all(|wc| wc.qp_num == end.qp.number()));
    assert!(end.send_cq.poll_one().is_none() && end.recv_cq.poll_one().is_none());
    // The region is free again: nothing of the library holds it.
    region.deregister().unwrap();
}

/// FC-032: a list posted after the end completes as a list.
#[test]
fn a_list_posted_after_the_end_is_flushed_whole() {
    let Pair { a, b } = Setup::default().connect();
    a.qp.disconnect();
    a.wait_state(QpState::Err);
    b.wait_state(QpState::Err);
    for end in [&a, &b] {
        let region = end.region(64);
        let slice = || region.as_slice_all();
        let sends = (0..5).map(|id| match id % 3 {
            0 => SendRequest::send(id, slice()),
            1 => SendRequest::write(id, slice(), NOWHERE).unsignaled(),
            _ => SendRequest::read(id, slice(), NOWHERE),
        });
        end.qp.post_send_list(sends).unwrap();
        end.qp.post_recv_list((5..10).map(|id| RecvRequest::new(id, slice()))).unwrap();
        assert_eq!(ids(&poll_n(&end.send_cq, 5)), flushed(0..5));
        assert_eq!(ids(&poll_n(&end.recv_cq, 5)), flushed(5..10));
    }
}

/// FC-035, FC-070: a failed set-up flushes, and posting is still possible afterwards.
#[test]
fn a_failed_setup_flushes_receives() {
    let end = Setup::default().end();
    let inner = &end.qp.0.inner;
    assert_eq!(end.qp.state(), QpState::Init);
    inner.claim_setup().unwrap();
    assert!(inner.claim_setup().is_err(), "claimed already");
    end.qp.post_recv_list((0..8).map(|id| RecvRequest::new(id, ()))).unwrap();
    inner.fail_setup();
    assert_eq!(end.qp.state(), QpState::Err);
    assert_eq!(ids(&poll_n(&end.recv_cq, 8)), flushed(0..8));
    end.qp.post_recv(RecvRequest::new(8, ())).unwrap();
    end.qp.post_send(SendRequest::send(9, ())).unwrap();
    assert_eq!(ids(&poll_n(&end.recv_cq, 1)), flushed([8]));
    assert_eq!(ids(&poll_n(&end.send_cq, 1)), flushed([9]));
    // Back to the beginning, and a connection after all.
    end.qp.modify(QpState::Reset).unwrap();
    assert!(end.qp.post_recv(RecvRequest::new(1, ())).is_err());
    end.qp.modify(QpState::Init).unwrap();
    let other = Setup::default().end();
    let pair = Pair { a: end, b: other };
    Setup::default().join(&pair);
    pair.b.qp.post_recv(RecvRequest::new(1, ())).unwrap();
    pair.a.qp.post_send(SendRequest::send(2, ())).unwrap();
    assert_success(&pair.a.sent(), 2);
    assert_success(&pair.b.received(), 1);
}

/// FC-070: what may be asked for by hand, seen through a real connection.
#[test]
fn states_by_hand() {
    let Pair { a, b } = Setup::default().connect();
    assert_eq!((a.qp.state(), a.qp.query().state), (QpState::Rts, QpState::Rts));
    assert_eq!((a.qp.query().ird, a.qp.query().ord), (16, 16));
    for to in [QpState::Reset, QpState::Init, QpState::Rtr] {
        assert!(a.qp.modify(to).is_err(), "{to}");
    }
    a.qp.modify(QpState::Rts).unwrap();
    a.qp.post_recv(RecvRequest::new(1, ())).unwrap();
    b.qp.post_recv(RecvRequest::new(1, ())).unwrap();
    a.qp.modify(QpState::Err).unwrap();
    assert_eq!(a.qp.state(), QpState::Err);
    a.qp.modify(QpState::Err).unwrap();
    assert_eq!(ids(&[a.received()]), flushed([1]));
    b.wait_state(QpState::Err);
    assert_eq!(ids(&[b.received()]), flushed([1]));
    until("the end of the connection", || a.qp.modify(QpState::Reset).is_ok());

    // SQE: a Terminate 0/0/00, which the peer sees.
    let Pair { a, b } = Setup::default().connect();
    b.qp.post_recv(RecvRequest::new(1, ())).unwrap();
    a.qp.modify(QpState::Sqe).unwrap();
    assert!(matches!(a.qp.state(), QpState::Sqe | QpState::Err));
    b.wait_state(QpState::Err);
    a.wait_state(QpState::Err);
    assert_eq!(ids(&[b.received()]), flushed([1]));
    let ending = b.qp.0.inner.ending().expect("a Terminate came");
    assert_eq!(ending.terminate.code.raw(), 0);
    assert_eq!(b.device.stats().terminates_received, 1);
    assert_eq!(a.device.stats().terminates_sent, 1);

    // SQD: an orderly end.
    let Pair { a, b } = Setup::default().connect();
    a.qp.modify(QpState::Sqd).unwrap();
    a.wait_state(QpState::Err);
    b.wait_state(QpState::Err);
    assert!(b.device.next_async_event().unwrap().is_none(), "a clean close is no event");
}

/// The culprit keeps its place with a status of its own; those before it succeed, those behind it are
/// flushed.
#[test]
fn a_refused_read_fails_with_what_the_peer_says() {
    let Pair { a, b } = Setup::default().connect();
    let far = alloc(&b.pd, 64, Access::LOCAL_WRITE | Access::REMOTE_WRITE);
    let near = a.region(64);
    let slice = || near.as_slice_all();
    a.qp.post_recv(RecvRequest::new(9, ())).unwrap();
    a.qp.post_send_list([
        SendRequest::write(1, slice(), far.remote()),
        SendRequest::read(2, slice(), far.remote()),
        SendRequest::send(3, slice()).fence(),
    ])
    .unwrap();
    let wcs = poll_n(&a.send_cq, 3);
    let expected = [(1, WcStatus::Success), (2, WcStatus::RemAccessErr), (3, WcStatus::WrFlushErr)];
    assert_eq!(ids(&wcs), expected);
    // 0/1/02: no right to read. On every completion that is no success.
    assert_eq!(wcs.iter().map(|wc| wc.vendor_err).collect::<Vec<_>>(), [0, 0x0102, 0x0102]);
    let receive = a.received();
    assert_eq!((receive.status, receive.vendor_err), (WcStatus::WrFlushErr, 0x0102));
    a.wait_state(QpState::Err);
    b.wait_state(QpState::Err);
    // V9: told by the completion on one side, by an event on the other.
    assert!(a.device.next_async_event().unwrap().is_none());
    let event = b.device.next_async_event().unwrap().expect("an event");
    assert_eq!(event.kind(), crate::event::AsyncEventKind::QpAccessErr);
}

/// A failure: what is posted, what it becomes, and the code in the Terminate.
struct Case {
    name: &'static str,
    depth: u32,
    /// Posted by the initiator.
    request: fn(&End, &End) -> SendRequest,
    /// Completion at the initiator, at the responder's receive.
    sent: WcStatus,
    received: WcStatus,
    code: u32,
}

fn failures() -> Vec<Case> {
    vec![
        Case {
            name: "a source that names nothing",
            depth: 4,
            request: |_, _| {
                let bad = RawSge { addr: 0x1000, length: 8, lkey: 0xdead_beef };
                SendRequest::raw(1, SendOperation::Send, [bad], SendFlags::empty())
            },
            sent: WcStatus::LocProtErr,
            received: WcStatus::WrFlushErr,
            code: 0x0000,
        },
        Case {
            name: "a Read where none may be outstanding",
            depth: 0,
            request: |a, b| SendRequest::read(1, a.region(8).as_slice_all(), b.region(8).remote()),
            sent: WcStatus::LocQpOpErr,
            received: WcStatus::WrFlushErr,
            code: 0x0000,
        },
        Case {
            name: "a message longer than the receive",
            depth: 4,
            request: |a, _| SendRequest::send(1, a.region(65).as_slice_all()),
            sent: WcStatus::Success,
            received: WcStatus::LocLenErr,
            code: 0x1205,
        },
        Case {
            name: "an invalidation of nothing",
            depth: 4,
            request: |_, _| SendRequest::send(1, ()).invalidate(0xdead_beef),
            sent: WcStatus::Success,
            received: WcStatus::RemInvReqErr,
            code: 0x0209,
        },
        Case {
            name: "an invalidation of a region of another domain",
            depth: 4,
            request: |_, b| {
                // Of another protection domain, which the request does not keep alive.
                let other = alloc(&b.device.alloc_pd(), 8, ALL);
                let request = SendRequest::send(1, ()).invalidate(other.rkey());
                std::mem::forget(other);
                request
            },
            sent: WcStatus::Success,
            received: WcStatus::RemInvReqErr,
            code: 0x0109,
        },
        Case {
            name: "a Write to a key that names nothing",
            depth: 4,
            request: |a, _| SendRequest::write(1, a.region(8).as_slice_all(), NOWHERE),
            sent: WcStatus::Success,
            received: WcStatus::WrFlushErr,
            code: 0x1100,
        },
        Case {
            name: "a Write past the end",
            depth: 4,
            request: |a, b| {
                let far = b.region(8);
                let remote = RemoteMemory { len: 9, ..far.remote() };
                std::mem::forget(far);
                SendRequest::write(1, a.region(9).as_slice_all(), remote)
            },
            sent: WcStatus::Success,
            received: WcStatus::WrFlushErr,
            code: 0x1101,
        },
        Case {
            name: "a Read of a key that names nothing",
            depth: 4,
            request: |a, _| SendRequest::read(1, a.region(8).as_slice_all(), NOWHERE),
            sent: WcStatus::RemAccessErr,
            received: WcStatus::WrFlushErr,
            code: 0x0100,
        },
    ]
}

#[test]
fn failures_have_their_statuses_and_codes() {
    for case in failures() {
        let Pair { a, b } = Setup { depth: case.depth, ..Setup::default() }.connect();
        let sink = b.region(64);
        b.qp.post_recv(RecvRequest::new(2, sink.as_slice_all())).unwrap();
        let request = (case.request)(&a, &b);
        a.qp.post_send(request).unwrap();
        a.qp.post_send(SendRequest::read(3, (), NOWHERE)).unwrap();
        let name = case.name;
        let (sent, last) = (a.sent(), a.sent());
        assert_eq!((sent.wr_id, sent.status), (1, case.sent), "{name}");
        assert_eq!((last.wr_id, last.status), (3, WcStatus::WrFlushErr), "{name}");
        let received = b.received();
        assert_eq!((received.status, received.vendor_err), (case.received, case.code), "{name}");
        a.wait_state(QpState::Err);
        b.wait_state(QpState::Err);
        let codes = [&a, &b].map(|end| {
            end.qp.0.inner.ending().map(|ending| u32::from(ending.terminate.code.raw()))
        });
        assert_eq!(codes, [Some(case.code); 2], "{name}");
    }
}

/// FC-033: whatever happens, each request is reported exactly once, and in order.
#[test]
fn random_resets_report_everything_exactly_once() {
    const EACH: u64 = 24;
    let mut stream = octets(4096, 77).into_iter().map(usize::from);
    let mut random = move |below: usize| stream.next().expect("enough") % below;
    let mut outcomes: HashMap<WcStatus, u64> = HashMap::new();
    for round in 0..200 {
        let setup = Setup { entries: 256, requests: 128, ..Setup::default() };
        let Pair { a, b } = setup.connect();
        let (a, b) = (Arc::new(a), Arc::new(b));
        let len = [0, 64, 20_000][random(3)];
        let way = random(4);
        let after = random(40);
        let threads: Vec<_> = [&a, &b]
            .map(|end| {
                let end = Arc::clone(end);
                thread::spawn(move || {
                    let region = end.region(20_000);
                    for id in 0..EACH {
                        let slice = region.slice(..len).unwrap();
                        end.qp.post_recv(RecvRequest::new(id, region.as_slice_all())).unwrap();
                        end.qp.post_send(SendRequest::send(id, slice)).unwrap();
                    }
                })
            })
            .into();
        for _ in 0..after {
            thread::yield_now();
        }
        match way {
            0 => a.qp.modify(QpState::Err).unwrap(),
            1 => b.qp.modify(QpState::Err).unwrap(),
            2 => a.qp.disconnect(),
            _ => drop(b.qp.modify(QpState::Sqe)),
        }
        for thread in threads {
            thread.join().unwrap();
        }
        for end in [&a, &b] {
            for cq in [&end.send_cq, &end.recv_cq] {
                let wcs = poll_n(cq, EACH as usize);
                let found: Vec<u64> = wcs.iter().map(|wc| wc.wr_id).collect();
                assert_eq!(found, (0..EACH).collect::<Vec<_>>(), "round {round}");
                // Once one is flushed, all behind it are.
                assert!(
                    wcs.is_sorted_by_key(|wc| !wc.is_success()),
                    "round {round}: {:?}",
                    ids(&wcs)
                );
                for wc in wcs {
                    *outcomes.entry(wc.status).or_default() += 1;
                }
            }
        }
        a.wait_state(QpState::Err);
        b.wait_state(QpState::Err);
        for end in [&a, &b] {
            assert!(end.send_cq.poll_one().is_none() && end.recv_cq.poll_one().is_none());
        }
    }
    let only = [WcStatus::Success, WcStatus::WrFlushErr];
    assert!(outcomes.keys().all(|status| only.contains(status)), "{outcomes:?}");
    assert!(only.iter().all(|status| outcomes.contains_key(status)), "{outcomes:?}");
}

/// FC-029: what is posted goes out before FIN, and all of it arrives.
#[test]
fn a_close_sends_everything_first() {
    for crc in [true, false] {
        let Pair { a, b } = Setup { crc, ..Setup::default() }.connect();
        let near = a.pattern(1 << 20, 9);
        let far = b.region(1 << 20);
        let sinks = b.region(3 << 20);
        for id in 0..3 {
            let at = id << 20;
            let sink = sinks.slice(at..at + (1 << 20)).unwrap();
            b.qp.post_recv(RecvRequest::new(id as u64, sink)).unwrap();
        }
        b.qp.post_recv(RecvRequest::new(3, ())).unwrap();
        for id in 0..3 {
            a.qp.post_send(SendRequest::send(id, near.as_slice_all())).unwrap();
        }
        a.qp.post_send(SendRequest::read(3, near.slice(..64).unwrap(), far.remote())).unwrap();
        a.qp.0.inner.close();
        // Too late: flushed, behind all the others.
        a.qp.post_send(SendRequest::send(4, ())).unwrap();
        for id in 0..4 {
            assert_success(&a.sent(), id);
        }
        assert_eq!(a.sent().status, WcStatus::WrFlushErr);
        for id in 0..3 {
            assert_success(&b.received(), id);
        }
        assert_eq!(b.received().status, WcStatus::WrFlushErr);
        a.wait_state(QpState::Err);
        b.wait_state(QpState::Err);
        for end in [&a, &b] {
            assert_eq!(end.device.stats().connections_lost, 0);
            assert_eq!(end.device.stats().terminates_sent, 0);
            assert!(end.device.next_async_event().unwrap().is_none());
        }
    }
}

/// FC-029: a FIN inside an FPDU is an error; those before it are delivered.
#[test]
fn a_fin_inside_an_fpdu_is_an_error() {
    let setup = Setup::default();
    let from = setup.end();
    let (left, mut tap) = tcp_pair();
    setup.start(&from, left, Role::Initiator);
    for id in 0..3 {
        from.qp.post_send(SendRequest::send_inline(id, b"0123456789")).unwrap();
    }
    // 2 + 18 + 10 + 2 (pad) + 4
    let mut wire = [0; 3 * 36];
    tap.read_exact(&mut wire).unwrap();

    let to = setup.end();
    let (mut peer, right) = tcp_pair();
    let sink = to.region(64);
    for id in 0..4 {
        to.qp.post_recv(RecvRequest::new(id, sink.as_slice_all())).unwrap();
    }
    setup.start(&to, right, Role::Responder);
    std::io::Write::write_all(&mut peer, &wire[..3 * 36 - 1]).unwrap();
    peer.shutdown(std::net::Shutdown::Write).unwrap();
    assert_success(&to.received(), 0);
    assert_success(&to.received(), 1);
    assert_eq!(ids(&poll_n(&to.recv_cq, 2)), flushed([2, 3]));
    to.wait_state(QpState::Err);
}

/// FC-066: what succeeded unsignalled takes no place any more once the connection is over, neither for
/// a marker nor for the next connection.
#[test]
fn unsignalled_successes_free_their_places_with_the_connection() {
    let setup = Setup { requests: 2, ..Setup::default() };
    let pair = setup.connect();
    let Pair { a, b } = &pair;
    for round in 0..3 {
        for id in 0..2 {
            b.qp.post_recv(RecvRequest::new(id, ())).unwrap();
            a.qp.post_send(SendRequest::send(id, ()).unsignaled()).unwrap();
        }
        assert_success(&b.received(), 0);
        assert_success(&b.received(), 1);
        a.qp.disconnect();
        a.wait_state(QpState::Err);
        b.wait_state(QpState::Err);
        // The state is seen a moment before the flush.
        until("a place", || a.qp.post_send(SendRequest::send(9, ())).is_ok());
        assert_eq!(ids(&[a.sent()]), flushed([9]), "round {round}");
        for end in [a, b] {
            until("a reset", || end.qp.modify(QpState::Reset).is_ok());
            end.qp.modify(QpState::Init).unwrap();
            assert_eq!(end.qp.0.inner.sq.slots.in_use(), 0);
        }
        setup.join(&pair);
    }
}

/// Receives that come after the destruction of a queue pair that was never connected: nobody hears of
/// them, except who awaits one.
#[test]
fn a_receive_after_destruction_is_flushed() {
    let end = Setup { requests: 2, ..Setup::default() }.end();
    end.qp.destroy().unwrap();
    let inner = &end.qp.0.inner;
    for id in 0..4 {
        end.qp.post_recv(RecvRequest::new(id, ())).unwrap();
    }
    let slot = inner.post_recv_awaited(RecvRequest::new(4, ())).unwrap();
    let cx = std::task::Context::from_waker(std::task::Waker::noop());
    let std::task::Poll::Ready(wc) = slot.poll(&cx) else { panic!("awaited for ever") };
    assert_eq!(ids(&[wc]), flushed([4]));
    assert!(end.recv_cq.is_empty());
    assert_eq!(inner.rq.slots.in_use(), 0);
}

/// Three threads post to a queue pair that no driver serves: when all have returned, all is flushed,
/// without a call of anybody else.
#[test]
fn what_is_posted_without_a_driver_is_flushed_by_those_who_post() {
    const EACH: u64 = 40;
    for _ in 0..50 {
        let end = Setup::default().end();
        end.qp.modify(QpState::Err).unwrap();
        thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    for id in 0..EACH {
                        end.qp.post_send(SendRequest::send(id, ())).unwrap();
                        end.qp.post_recv(RecvRequest::new(id, ())).unwrap();
                    }
                });
            }
        });
        assert_eq!((end.send_cq.len(), end.recv_cq.len()), (120, 120));
    }
}

/// One posts while another one is inside of a poll, on a connection that is closing: it is flushed by that
/// poll or the next, and not when the close is over.
#[test]
fn what_is_posted_beside_a_poll_of_a_closing_connection_is_flushed() {
    let setup = Setup::default();
    let end = setup.end();
    let (left, _peer) = tcp_pair();
    setup.start(&end, left, Role::Initiator);
    let inner = &end.qp.0.inner;
    end.qp.disconnect();
    while !inner.kick.try_enter() {
        thread::yield_now();
    }
    end.qp.post_send(SendRequest::send_inline(5, [1; 8])).unwrap();
    // The poll that was inside ends, and finds nothing but what was posted.
    inner.kick.hand_over();
    inner.drive_for_poll(&mut Hand::default());
    assert_eq!(end.send_cq.len(), 1, "not flushed");
    assert_eq!(poll(&end.send_cq).status, WcStatus::WrFlushErr);
}
