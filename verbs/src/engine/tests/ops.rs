//! What the operations do, over every size and way of posting them.

use super::*;
use crate::mem::{Mapping, RemoteMemory, WindowBinding, WindowType};
use crate::wc::{WcFlags, WcOpcode};
use crate::wr::{RawSge, RecvRequest, SendFlags, SendOperation, SendRequest};

const SIZES: [usize; 18] = [
    0,
    1,
    2,
    3,
    4,
    7,
    64,
    255,
    1460,
    4096,
    16_383,
    16_384,
    65_535,
    65_536,
    100_001,
    262_144,
    1 << 20,
    (1 << 20) + 3,
];

fn settings() -> [Setup; 4] {
    [
        Setup::default(),
        Setup { crc: false, ..Setup::default() },
        Setup { markers: true, limit: FpduLimit::Emss, ..Setup::default() },
        Setup { crc: false, limit: FpduLimit::Octets(2048), ..Setup::default() },
    ]
}

#[test]
fn writes_of_all_sizes_arrive() {
    for setup in settings() {
        let Pair { a, b } = setup.connect();
        let note = b.region(1);
        for (seed, len) in (1..).zip(SIZES) {
            let source = a.pattern(len, seed);
            let sink = b.region(len + 16);
            let remote = sink.remote().slice(8..8 + len as u64).unwrap();
            b.qp.post_recv(RecvRequest::new(7, note.as_slice_all())).unwrap();
            a.qp.post_send(SendRequest::write(1, source.as_slice_all(), remote)).unwrap();
            a.qp.post_send(SendRequest::send(2, ())).unwrap();
            let wc = a.sent();
            assert_success(&wc, 1);
            assert_eq!((wc.opcode, wc.byte_len as usize), (WcOpcode::RdmaWrite, len));
            assert_success(&a.sent(), 2);
            assert_success(&b.received(), 7);
            // ORD-07: the Send says that the Write is there.
            let there = content(&sink);
            assert_eq!(there[..8], [0; 8], "{len}");
            assert!(there[8..8 + len] == octets(len, seed), "{len}");
            assert_eq!(there[8 + len..], [0; 8], "{len}");
        }
    }
}

#[test]
fn reads_of_all_sizes_arrive() {
    for setup in settings() {
        let Pair { a, b } = setup.connect();
        for (seed, len) in (1..).zip(SIZES) {
            let source = b.pattern(len, seed);
            // FC-026: local write is enough for a sink.
            let sink = alloc(&a.pd, len + 16, Access::LOCAL_WRITE);
            let place = sink.slice(8..8 + len).unwrap();
            a.qp.post_send(SendRequest::read(9, place, source.remote())).unwrap();
            let wc = a.sent();
            assert_success(&wc, 9);
            assert_eq!((wc.opcode, wc.byte_len as usize), (WcOpcode::RdmaRead, len));
            let there = content(&sink);
            assert_eq!(there[..8], [0; 8], "{len}");
            assert!(there[8..8 + len] == octets(len, seed), "{len}");
            assert_eq!(there[8 + len..], [0; 8], "{len}");
        }
    }
}

#[test]
fn sends_of_all_sizes_arrive() {
    for setup in settings() {
        let Pair { a, b } = setup.connect();
        let sink = b.region((1 << 20) + 16);
        for (seed, len) in (1..).zip(SIZES) {
            let source = a.pattern(len, seed);
            b.qp.post_recv(RecvRequest::new(3, sink.as_slice_all())).unwrap();
            a.qp.post_send(SendRequest::send(4, source.as_slice_all())).unwrap();
            assert_success(&a.sent(), 4);
            let wc = b.received();
            assert_success(&wc, 3);
            // DDP-038, RDMAP-041
            assert_eq!((wc.opcode, wc.byte_len as usize), (WcOpcode::Recv, len));
            assert!(content(&sink)[..len] == octets(len, seed), "{len}");
        }
    }
}

#[test]
fn both_sides_may_speak_and_the_responder_waits_for_the_first_fpdu() {
    // MPA-029: posted at once, sent once the initiator has spoken.
    let Pair { a, b } = Setup::default().connect();
    let (left, right) = (a.region(4), b.region(4));
    a.qp.post_recv(RecvRequest::new(1, left.as_slice_all())).unwrap();
    b.qp.post_recv(RecvRequest::new(2, right.as_slice_all())).unwrap();
    b.qp.post_send(SendRequest::send_inline(3, b"pong")).unwrap();
    assert!(b.send_cq.poll_one().is_none() && a.recv_cq.poll_one().is_none());
    a.qp.post_send(SendRequest::send_inline(4, b"ping")).unwrap();
    assert_success(&b.received(), 2);
    assert_success(&a.received(), 1);
    assert_eq!((content(&left), content(&right)), (b"pong".to_vec(), b"ping".to_vec()));
}

#[test]
fn the_ready_to_receive_message_is_invisible() {
    // FC-009, FC-036
    for rtr in [Rtr::Send, Rtr::Write, Rtr::Read] {
        let Pair { a, b } = Setup { rtr: Some(rtr), ..Setup::default() }.connect();
        let left = a.region(4);
        a.qp.post_recv(RecvRequest::new(1, left.as_slice_all())).unwrap();
        b.qp.post_send(SendRequest::send_inline(3, b"pong")).unwrap();
        assert_success(&a.received(), 1);
        assert_success(&b.sent(), 3);
        for cq in [&a.send_cq, &a.recv_cq, &b.send_cq, &b.recv_cq] {
            assert!(cq.poll_one().is_none(), "{rtr:?}");
        }
    }
}

/// FC-022: several elements of odd lengths, through a socket that takes little at a time.
#[test]
fn elements_are_gathered_and_scattered() {
    for crc in [true, false] {
        let setup = Setup { crc, send_buffer: Some(1), ..Setup::default() };
        let Pair { a, b } = setup.connect();
        let lens = [1, 3, 4093, 4097, 65_537, 0, 2, 1];
        let total: usize = lens.iter().sum();
        let cut = |region: &MemoryRegion| {
            let mut at = 0;
            lens.iter()
                .map(|len| {
                    // A gap of seven octets behind each element that must not move.
                    let slice = region.slice(at..at + len).unwrap();
                    at += len + 7;
                    slice
                })
                .collect::<Vec<_>>()
        };
        let source = a.region(total + 7 * lens.len());
        source.fill(.., 0xee).unwrap();
        let expected = octets(total, 5);
        let mut next = 0;
        for slice in cut(&source) {
            let part = &expected[next..next + slice.len()];
            source.write_at(slice.offset(), part).unwrap();
            next += slice.len();
        }
        let sink = b.region(source.len());
        let flat = b.region(total);
        let back = a.region(source.len());

        b.qp.post_recv(RecvRequest::new(1, cut(&sink))).unwrap();
        a.qp.post_send(SendRequest::write(2, cut(&source), flat.remote())).unwrap();
        a.qp.post_send(SendRequest::send(3, cut(&source))).unwrap();
        a.qp.post_send(SendRequest::read(4, cut(&back), flat.remote())).unwrap();
        assert_success(&b.received(), 1);
        for id in 2..=4 {
            assert_success(&a.sent(), id);
        }
        assert!(content(&flat) == expected);
        for (region, gap) in [(&sink, 0), (&back, 0)] {
            let there = content(region);
            let mut at = 0;
            let mut next = 0;
            for len in lens {
                assert!(there[at..at + len] == expected[next..next + len]);
                assert_eq!(there[at + len..at + len + 7], [gap; 7]);
                at += len + 7;
                next += len;
            }
        }
    }
}

/// FC-067: every part is copied at posting, and the limit counts their sum.
#[test]
fn inline_data_is_copied_from_all_parts() {
    let Pair { a, b } = Setup::default().connect();
    let sink = b.region(1024);
    for parts in 1..=16_u8 {
        let mut pieces: Vec<Vec<u8>> =
            (1..=parts).map(|part| octets(usize::from(part % 7) + 1, part)).collect();
        let expected = pieces.concat();
        let request = SendRequest::send_inline_parts(5, &pieces);
        let write = SendRequest::write_inline_parts(6, &pieces, sink.remote());
        for piece in &mut pieces {
            piece.fill(0);
        }
        b.qp.post_recv(RecvRequest::new(1, sink.slice(512..).unwrap())).unwrap();
        a.qp.post_send(write).unwrap();
        a.qp.post_send(request).unwrap();
        let wc = b.received();
        assert_success(&wc, 1);
        assert_eq!(wc.byte_len as usize, expected.len());
        assert_eq!(content(&sink)[512..512 + expected.len()], expected);
        assert_eq!(content(&sink)[..expected.len()], expected);
        assert_success(&a.sent(), 6);
        assert_success(&a.sent(), 5);
    }
}

/// FC-068: nothing is looked at where nothing is moved.
#[test]
fn messages_without_octets_need_no_valid_key() {
    let Pair { a, b } = Setup::default().connect();
    let nowhere = RemoteMemory { addr: 0xdead_0000, len: 0, rkey: 0 };
    let empty = RawSge { addr: 1, length: 0, lkey: 0xdead_beef };
    let flags = SendFlags::SIGNALED;
    let write = SendOperation::RdmaWrite { remote_addr: 5, rkey: 0xffff_ffff };
    let read = SendOperation::RdmaRead { remote_addr: 5, rkey: 0xffff_ffff };
    for _ in 0..3 {
        b.qp.post_recv(RecvRequest::new(1, ())).unwrap();
        b.qp.post_recv(RecvRequest::raw(2, [empty, empty])).unwrap();
        let requests = [
            SendRequest::write(10, (), nowhere),
            SendRequest::read(11, (), nowhere),
            SendRequest::send(12, ()),
            SendRequest::raw(13, write, [empty], flags),
            SendRequest::raw(14, read, [empty, empty], flags),
            SendRequest::raw(15, SendOperation::Send, [empty], flags),
        ];
        a.qp.post_send_list(requests).unwrap();
        for id in 10..=15 {
            let wc = a.sent();
            assert_success(&wc, id);
            // FC-027
            assert_eq!(wc.byte_len, 0);
        }
        for id in [1, 2] {
            let wc = b.received();
            assert_success(&wc, id);
            assert_eq!(wc.byte_len, 0);
        }
    }
}

/// FC-069: both values, flag set and unset, each operation, those that send nothing included.
#[test]
fn fc_069_what_is_reported_depends_on_flag_and_attribute() {
    for (signal_all, signaled) in [(false, false), (false, true), (true, false), (true, true)] {
        let Pair { a, b } = Setup { signal_all, ..Setup::default() }.connect();
        let (far, lent) = (b.region(64), b.region(64));
        let number = alloc(&b.pd, 8, ALL | Access::REMOTE_ATOMIC);
        let near = alloc(&a.pd, 64, ALL | Access::MW_BIND);
        let slice = || near.as_slice_all();
        let original = || near.slice(..8).unwrap();
        let window = a.pd.alloc_window(WindowType::Two).unwrap();
        let binding = WindowBinding::new(&slice(), Access::REMOTE_WRITE);
        let fast = a.pd.alloc_fast_region(64, 1, true).unwrap();
        let mapping = Mapping::new([slice()], Access::LOCAL_WRITE);
        for id in 0..3 {
            b.qp.post_recv(RecvRequest::new(id, far.as_slice_all())).unwrap();
        }
        let requests = [
            SendRequest::write(0, slice(), far.remote()),
            SendRequest::write_inline(1, b"x", far.remote()),
            SendRequest::read(2, slice(), far.remote()),
            SendRequest::send(3, slice()),
            SendRequest::send(4, ()).invalidate(lent.rkey()),
            SendRequest::write_with_imm(5, slice(), far.remote(), 7),
            SendRequest::bind_window(6, &window, 1, binding),
            SendRequest::local_invalidate(7, window.rkey_with(1)),
            SendRequest::register(8, &fast, 1, mapping),
            SendRequest::fetch_add(9, original(), number.remote(), 1),
            SendRequest::compare_swap(10, original(), number.remote(), 1, 2),
            SendRequest::swap(11, original(), number.remote(), 3),
        ];
        let count = requests.len() as u64;
        for request in requests {
            a.qp.post_send(if signaled { request } else { request.unsignaled() }).unwrap();
        }
        // Behind all of them.
        a.qp.post_send(SendRequest::read(99, slice(), far.remote()).fence()).unwrap();
        let all = signal_all || signaled;
        let expected: Vec<_> = (0..count).filter(|_| all).chain([99]).collect();
        let found = poll_n(&a.send_cq, expected.len());
        assert!(found.iter().all(WorkCompletion::is_success), "{found:?}");
        let found: Vec<_> = found.iter().map(|wc| wc.wr_id).collect();
        assert_eq!(found, expected, "in order of posting (ORD-13)");
        assert!(a.send_cq.poll_one().is_none());
        assert_eq!(a.qp.0.inner.sq.slots.in_use(), 0, "places come back (FC-066)");
    }
}

/// FC-072, FC-019: each kind of Send and the fields of the receive completion.
#[test]
fn receive_completions_fit_the_kind_of_send() {
    let Pair { a, b } = Setup::default().connect();
    let sink = b.region(64);
    for (id, (solicited, invalidate)) in
        (0..).zip([(false, false), (true, false), (false, true), (true, true)])
    {
        let lent = b.region(8);
        let mut request = SendRequest::send_inline(id, b"12345");
        if solicited {
            request = request.solicited();
        }
        if invalidate {
            request = request.invalidate(lent.rkey());
        }
        b.qp.post_recv(RecvRequest::new(100 + id, sink.as_slice_all())).unwrap();
        a.qp.post_send(request).unwrap();
        assert_success(&a.sent(), id);
        let wc = b.received();
        assert_success(&wc, 100 + id);
        assert_eq!((wc.opcode, wc.byte_len, wc.qp_num), (WcOpcode::Recv, 5, b.qp.number()));
        // RDMAP-046: the completion shows the key, which opens nothing any more.
        assert_eq!(wc.flags.contains(WcFlags::WITH_INV), invalidate);
        assert_eq!(wc.invalidated_rkey, invalidate.then_some(lent.rkey()));
        assert_eq!(lent.is_valid(), !invalidate);
    }
}

/// FC-025: a fenced request starts when all earlier Reads are done; seen by what the peer's memory
/// holds when each comes.
#[test]
fn a_fence_waits_for_all_earlier_reads() {
    let Pair { a, b } = Setup { depth: 2, ..Setup::default() }.connect();
    let far = b.pattern(1 << 20, 1);
    let first = content(&far);
    let near: Vec<_> = (0..8).map(|_| a.region(1 << 20)).collect();
    let other = a.pattern(1 << 20, 2);
    for (id, sink) in (0..).zip(&near) {
        a.qp.post_send(SendRequest::read(id, sink.as_slice_all(), far.remote())).unwrap();
    }
    // Without the fence this could reach the peer before it has answered.
    a.qp.post_send(SendRequest::write(8, other.as_slice_all(), far.remote()).fence()).unwrap();
    // FC-026 again: a fence on a Read is allowed (V2).
    let last = a.region(1 << 20);
    a.qp.post_send(SendRequest::read(9, last.as_slice_all(), far.remote()).fence()).unwrap();
    for id in 0..10 {
        assert_success(&a.sent(), id);
    }
    assert!(near.iter().all(|sink| content(sink) == first));
    assert!(content(&last) == content(&other), "ORD-09: a Read sees the Write before it");
}

/// FC-021: FPDUs above the default are used between ends that ask for them, and any size is taken.
#[test]
fn fpdu_sizes_are_a_choice() {
    for limit in [FpduLimit::Emss, FpduLimit::Octets(1000), FpduLimit::Octets(64_768)] {
        let Pair { a, b } = Setup { limit, ..Setup::default() }.connect();
        let far = b.region(1 << 20);
        let near = a.pattern(1 << 20, 3);
        a.qp.post_send(SendRequest::write(1, near.as_slice_all(), far.remote())).unwrap();
        a.qp.post_send(SendRequest::read(2, (), far.remote())).unwrap();
        assert_success(&a.sent(), 1);
        assert_success(&a.sent(), 2);
        assert!(content(&far) == content(&near));
    }
}

/// Awaited requests complete into their own slots and into no queue; both styles share a queue pair.
#[tokio::test]
async fn awaited_and_polled_requests_mix() {
    let Pair { a, b } = Setup::default().connect();
    let far = b.region(4096);
    let near = a.pattern(4096, 4);
    let sink = b.region(4096);
    let inner = &a.qp.0.inner;
    let receive = RecvRequest::new(0, sink.as_slice_all());
    let awaited = b.qp.0.inner.post_recv_awaited(receive).unwrap();
    let write = SendRequest::write(0, near.as_slice_all(), far.remote());
    let write = inner.post_send_awaited(write).unwrap();
    a.qp.post_send(SendRequest::read(5, (), far.remote())).unwrap();
    let back = a.region(4096);
    let read = SendRequest::read(0, back.as_slice_all(), far.remote());
    let read = inner.post_send_awaited(read).unwrap();
    // Dropped: it runs all the same.
    drop(inner.post_send_awaited(SendRequest::send(0, near.as_slice_all())).unwrap());
    let (write, received, read) = tokio::join!(write.wait(), awaited.wait(), read.wait());
    assert!(write.is_success() && received.is_success() && read.is_success());
    assert_eq!(received.byte_len, 4096);
    assert!(content(&sink) == content(&near) && content(&back) == content(&near));
    assert_success(&a.sent(), 5);
    assert!(a.send_cq.poll_one().is_none() && b.recv_cq.poll_one().is_none());
}
