//! Atomics between real queue pairs: what they do, what they are refused for, and that none is lost.

use std::collections::HashSet;
use std::thread;

use proptest::prelude::*;

use super::*;
use crate::mem::RemoteMemory;
use crate::wc::WcOpcode;
use crate::wr::{PostErrorCause, RawSge, SendFlags, SendOperation, SendRequest};
use crate::{AtomicOperation, AtomicScope};

/// A region of so many octets that peers may do everything with.
fn open(end: &End, len: usize) -> MemoryRegion {
    alloc(&end.pd, len, ALL | Access::REMOTE_ATOMIC)
}

fn value(region: &MemoryRegion, offset: usize) -> u64 {
    region.load_u64(offset).expect("aligned")
}

/// EXT-03, EXT-09: each kind, and what a completion of it says.
#[test]
fn each_atomic_brings_what_was_there() {
    for setup in [Setup::default(), Setup { crc: false, ..Setup::default() }] {
        let Pair { a, b } = setup.connect();
        assert_eq!(a.device.attributes().atomics.value(), 2);
        let far = open(&b, 64);
        // FC-026: local write is enough for the original value.
        let near = alloc(&a.pd, 64, Access::LOCAL_WRITE);
        let remote = far.remote().slice(16..24).unwrap();
        let sink = || near.slice(24..32).unwrap();
        far.store_u64(16, 40).unwrap();
        let steps = [
            (SendRequest::fetch_add(1, sink(), remote, 2), WcOpcode::FetchAdd, 42),
            (SendRequest::fetch_add(2, sink(), remote, u64::MAX), WcOpcode::FetchAdd, 41),
            (SendRequest::compare_swap(3, sink(), remote, 41, 7), WcOpcode::CompSwap, 7),
            (SendRequest::compare_swap(4, sink(), remote, 41, 8), WcOpcode::CompSwap, 7),
            (SendRequest::swap(5, sink(), remote, u64::MAX), WcOpcode::CompSwap, u64::MAX),
            (
                SendRequest::atomic(
                    6,
                    sink(),
                    remote,
                    AtomicOperation::FetchAdd { add: 1, mask: 1 << 31 },
                ),
                WcOpcode::FetchAdd,
                0xffff_ffff_0000_0000,
            ),
            (
                SendRequest::atomic(
                    7,
                    sink(),
                    remote,
                    AtomicOperation::CompareSwap {
                        compare: 0,
                        compare_mask: 0xff,
                        swap: 0x12,
                        swap_mask: 0xff,
                    },
                ),
                WcOpcode::CompSwap,
                0xffff_ffff_0000_0012,
            ),
        ];
        for (id, (request, opcode, result)) in (1..).zip(steps) {
            let original = value(&far, 16);
            a.qp.post_send(request).unwrap();
            let wc = a.sent();
            assert_success(&wc, id);
            assert_eq!((wc.opcode, wc.byte_len), (opcode, 8));
            assert_eq!(value(&near, 24), original, "{id}");
            assert_eq!(value(&far, 16), result, "{id}");
        }
        // EXT-12: the peer's program hears nothing.
        assert!(b.recv_cq.poll_one().is_none() && b.send_cq.poll_one().is_none());
        // Nothing beside the eight octets has changed on either side.
        for (region, at) in [(&far, 16), (&near, 24)] {
            let mut octets = content(region);
            octets[at..at + 8].fill(0);
            assert_eq!(octets, [0; 64]);
        }
    }
}

/// The raw way, as a C program posts it.
#[test]
fn raw_atomics_name_their_memory_by_key() {
    let Pair { a, b } = Setup::default().connect();
    let (far, near) = (open(&b, 8), a.region(8));
    let sge = RawSge { addr: near.addr(), length: 8, lkey: near.lkey() };
    let add = SendOperation::FetchAdd { remote_addr: far.addr(), rkey: far.rkey(), add: 3 };
    for id in 0..3 {
        a.qp.post_send(SendRequest::raw(id, add, [sge], SendFlags::SIGNALED)).unwrap();
        assert_success(&a.sent(), id);
        assert_eq!((value(&near, 0), value(&far, 0)), (3 * id, 3 * id + 3));
    }
    // A key that is none is found when the answer comes, and is this side's own fault.
    let bad = RawSge { lkey: near.lkey() ^ 1, ..sge };
    a.qp.post_send(SendRequest::raw(9, add, [bad], SendFlags::empty())).unwrap();
    let wc = a.sent();
    assert_eq!((wc.wr_id, wc.status), (9, WcStatus::LocProtErr));
}

/// What posting refuses: the place has to be aligned, and the original value needs eight octets in one piece.
#[test]
fn posting_refuses_what_no_atomic_can_be() {
    let Pair { a, b } = Setup::default().connect();
    let (far, near) = (open(&b, 64), a.region(64));
    let unwritable = alloc(&a.pd, 8, Access::empty());
    let post = |request| a.qp.post_send(request).unwrap_err().cause;
    let word = far.remote().slice(..8).unwrap();
    let sink = |range: std::ops::Range<usize>| near.slice(range).unwrap();

    let odd = far.remote().slice(4..12).unwrap();
    let cause = PostErrorCause::Misaligned { addr: far.addr() + 4 };
    assert_eq!(post(SendRequest::fetch_add(1, sink(0..8), odd, 1)), cause);
    assert_eq!(cause.errno(), 22);
    for range in [0..7, 0..9, 0..0] {
        let len = range.len() as u64;
        let cause = PostErrorCause::AtomicSink { elements: 1, len };
        assert_eq!(post(SendRequest::swap(1, sink(range), word, 1)), cause);
    }
    let cause = PostErrorCause::AtomicSink { elements: 2, len: 8 };
    assert_eq!(post(SendRequest::swap(1, [sink(0..4), sink(4..8)], word, 1)), cause);
    let cause = PostErrorCause::AtomicSink { elements: 0, len: 0 };
    assert_eq!(post(SendRequest::swap(1, (), word, 1)), cause);
    let short = RemoteMemory { len: 7, ..word };
    let cause = PostErrorCause::OutOfBounds { len: 8, remote: 7 };
    assert_eq!(post(SendRequest::fetch_add(1, sink(0..8), short, 1)), cause);
    let cause = post(SendRequest::fetch_add(1, unwritable.as_slice_all(), word, 1));
    assert!(matches!(cause, PostErrorCause::Rights { .. }), "{cause}");
    let inline = SendOperation::FetchAdd { remote_addr: far.addr(), rkey: far.rkey(), add: 1 };
    let inline = SendRequest::raw_inline(1, inline, [[0; 8]], SendFlags::SIGNALED);
    for request in [
        inline,
        SendRequest::fetch_add(1, sink(0..8), word, 1).solicited(),
        SendRequest::fetch_add(1, sink(0..8), word, 1).invalidate(7),
    ] {
        let cause = post(request);
        assert!(matches!(cause, PostErrorCause::NotSupported(_)), "{cause}");
    }
    // FC-066: none of them has taken a place, and nothing was sent.
    assert_eq!(a.qp.stats().fpdus_sent, 0);
    a.qp.post_send(SendRequest::fetch_add(2, sink(0..8), word, 1).fence()).unwrap();
    assert_success(&a.sent(), 2);
}

/// FC-073, of atomics: without the extensions posting refuses them.
#[test]
fn without_the_extensions_posting_refuses_atomics() {
    let setup = Setup { config: DeviceConfig::default().extensions(false), ..Setup::default() };
    let Pair { a, b } = setup.connect();
    assert_eq!(a.device.attributes().atomics, AtomicScope::None);
    let (far, near) = (open(&b, 8), a.region(8));
    let request = SendRequest::fetch_add(1, near.as_slice_all(), far.remote(), 1);
    let cause = a.qp.post_send(request).unwrap_err().cause;
    assert!(matches!(cause, PostErrorCause::NotSupported(_)), "{cause}");
    assert_eq!(a.qp.stats().fpdus_sent, 0);
}

/// EXT-20, SEC-05, SEC-13: what the peer refuses, the status it comes back with, and that nothing has
/// changed. EXT-21: the Terminate shows the DDP header and no more.
#[test]
fn what_the_peer_refuses_changes_nothing() {
    type Offer = fn(&End) -> (MemoryRegion, RemoteMemory);
    let cases: [(&str, u16, WcStatus, Offer); 5] = [
        ("no right", 0x0102, WcStatus::RemAccessErr, |b| {
            let region = alloc(&b.pd, 16, ALL);
            (region.clone(), region.remote())
        }),
        ("no such key", 0x0100, WcStatus::RemAccessErr, |b| {
            let region = open(b, 16);
            (region.clone(), RemoteMemory { rkey: region.rkey() ^ 1, ..region.remote() })
        }),
        ("another domain", 0x0103, WcStatus::RemAccessErr, |b| {
            let region = alloc(&b.device.alloc_pd(), 16, ALL | Access::REMOTE_ATOMIC);
            (region.clone(), region.remote())
        }),
        ("outside", 0x0101, WcStatus::RemAccessErr, |b| {
            let region = open(b, 16);
            let remote = region.remote();
            (region, RemoteMemory { addr: remote.addr + 16, ..remote })
        }),
        ("half outside", 0x0101, WcStatus::RemAccessErr, |b| {
            let region = open(b, 12);
            let remote = region.remote();
            (region, RemoteMemory { addr: remote.addr + 8, len: 8, ..remote })
        }),
    ];
    for (what, code, status, offer) in cases {
        let Pair { a, b } = Setup::default().connect();
        let (region, remote) = offer(&b);
        region.fill(.., 0x11).unwrap();
        let near = a.region(8);
        let request = SendRequest::fetch_add(5, near.as_slice_all(), remote, 1).unsignaled();
        a.qp.post_send(request).unwrap();
        let wc = a.sent();
        assert_eq!((wc.wr_id, wc.status), (5, status), "{what}");
        assert_eq!(wc.vendor_err, code.into(), "{what}");
        assert!(content(&region).iter().all(|&octet| octet == 0x11), "{what}");
        assert_eq!(value(&near, 0), 0, "{what}");
        let terminate = a.qp.ending().expect("the peer's Terminate").terminate;
        assert!(terminate.ddp_header.is_some() && terminate.read_request.is_none(), "{what}");
    }
}

/// The queue pair's own rights come before those of the region (SEC-13).
#[test]
fn a_queue_pair_may_refuse_all_atomics() {
    let setup = Setup::default();
    let Pair { a, b: mut other } = setup.ends();
    let config = QpConfig::new(&other.send_cq)
        .recv_cq(&other.recv_cq)
        .remote_access(Access::REMOTE_WRITE | Access::REMOTE_READ);
    other.qp = other.pd.create_qp(&config).unwrap();
    let pair = Pair { a, b: other };
    setup.join(&pair);
    let Pair { a, b } = pair;
    let (far, near) = (open(&b, 8), a.region(8));
    a.qp.post_send(SendRequest::swap(1, near.as_slice_all(), far.remote(), 1)).unwrap();
    let wc = a.sent();
    assert_eq!((wc.status, wc.vendor_err), (WcStatus::RemAccessErr, 0x0102));
    assert_eq!(value(&far, 0), 0);
}

/// ORD-18, ORD-20: data that is read and the lock behind it given up in one row, without waiting in between.
#[test]
fn an_unlock_behind_a_read_does_not_overtake_it() {
    for crc in [true, false] {
        let Pair { a, b } = Setup { crc, ..Setup::default() }.connect();
        let data = b.pattern(1 << 20, 3);
        let lock = open(&b, 8);
        lock.store_u64(0, 1).unwrap();
        let (near, original) = (a.region(1 << 20), a.region(8));
        let expected = content(&data);
        thread::scope(|scope| {
            // Whoever finds the lock free changes the data.
            scope.spawn(|| {
                until("the lock to be free", || lock.compare_swap_u64(0, 0, 2) == Ok(0));
                data.fill(.., 0xee).unwrap();
            });
            let unlock = SendRequest::compare_swap(2, original.as_slice_all(), lock.remote(), 1, 0);
            let read = SendRequest::read(1, near.as_slice_all(), data.remote());
            a.qp.post_send_list([read, unlock]).unwrap();
            assert_success(&a.sent(), 1);
            assert_success(&a.sent(), 2);
        });
        assert!(content(&near) == expected, "crc {crc}");
        assert_eq!((value(&original, 0), value(&lock, 0)), (1, 2));
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 6, ..ProptestConfig::default() })]

    /// EXT-04, EXT-05: increments of one number from several queue pairs, of several devices, and from threads
    /// of the program itself. None is lost, and each has found another original value.
    #[test]
    fn no_increment_is_lost(
        peers in 2_usize..5,
        depth in 1_u32..17,
        rounds in 1_u64..150,
        crc: bool,
        masked: bool,
    ) {
        let setup = Setup { crc, depth, ..Setup::default() };
        let owner = setup.end();
        let counter = open(&owner, 64);
        let word = counter.remote().slice(8..16).unwrap();
        // One queue pair of the owner for each peer, all in one domain.
        let pairs: Vec<_> = (0..peers)
            .map(|_| {
                let config = QpConfig::new(&owner.send_cq).recv_cq(&owner.recv_cq);
                let qp = owner.pd.create_qp(&config).unwrap();
                let b = End {
                    device: owner.device.clone(),
                    pd: owner.pd.clone(),
                    send_cq: owner.send_cq.clone(),
                    recv_cq: owner.recv_cq.clone(),
                    qp,
                };
                let pair = Pair { a: setup.end(), b };
                setup.join(&pair);
                pair
            })
            .collect();
        let mut originals: Vec<u64> = Vec::new();
        thread::scope(|scope| {
            let remote: Vec<_> = pairs
                .iter()
                .map(|Pair { a, .. }| {
                    scope.spawn(move || {
                        let sinks = a.region(8 * rounds as usize);
                        for round in 0..rounds {
                            let at = 8 * round as usize;
                            let sink = sinks.slice(at..at + 8).unwrap();
                            // The mask names the top bit, so the field is the whole number.
                            let mask = if masked && round % 2 == 0 { 1 << 63 } else { 0 };
                            let operation = AtomicOperation::FetchAdd { add: 1, mask };
                            a.qp.post_send(SendRequest::atomic(round, sink, word, operation)).unwrap();
                        }
                        for round in 0..rounds {
                            assert_success(&a.sent(), round);
                        }
                        (0..rounds).map(|round| value(&sinks, 8 * round as usize)).collect::<Vec<_>>()
                    })
                })
                .collect();
            let local: Vec<_> = (0..2)
                .map(|swaps| {
                    let counter = &counter;
                    scope.spawn(move || {
                        let add = || counter.fetch_add_u64(8, 1).unwrap();
                        let swap = || loop {
                            let seen = value(counter, 8);
                            if counter.compare_swap_u64(8, seen, seen + 1) == Ok(seen) {
                                return seen;
                            }
                        };
                        (0..rounds).map(|_| if swaps == 1 { swap() } else { add() }).collect::<Vec<_>>()
                    })
                })
                .collect();
            for thread in remote.into_iter().chain(local) {
                originals.extend(thread.join().unwrap());
            }
        });
        let total = (peers as u64 + 2) * rounds;
        prop_assert_eq!(value(&counter, 8), total);
        prop_assert_eq!(originals.len() as u64, total);
        let distinct: HashSet<_> = originals.iter().copied().collect();
        prop_assert_eq!(distinct.len() as u64, total);
        prop_assert!(originals.iter().all(|&original| original < total));
    }
}

/// The await style.
#[tokio::test]
async fn awaited_atomics_return_what_was_there() {
    let Pair { a, b } = Setup::default().connect();
    let (far, near) = (open(&b, 8), a.region(8));
    let post = |request| a.qp.0.inner.post_send_awaited(request).unwrap();
    let word = far.remote();
    let first = post(SendRequest::fetch_add(0, near.as_slice_all(), word, 5));
    let wc = first.wait().await;
    assert!(wc.is_success());
    assert_eq!((wc.opcode, wc.byte_len), (WcOpcode::FetchAdd, 8));
    assert_eq!((value(&near, 0), value(&far, 0)), (0, 5));
    assert!(a.send_cq.poll_one().is_none());
}
