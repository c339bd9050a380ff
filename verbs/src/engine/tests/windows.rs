//! Windows, fast registration and invalidation over a connection: order, statuses, and who may what.

use std::collections::VecDeque;

use iwarp_ddp::{Placement as _, Source as _, Stag};
use iwarp_rdmap::{AtomicOperation, Memory as _, Sink};

use super::*;
use crate::engine::memory::{QpMemory, Recent};
use crate::engine::outbox::Outbox;
use crate::engine::report::Reporter;
use crate::mem::{FastRegion, LocalWork, Mapping, MemoryWindow, WindowBinding, WindowType};
use crate::wc::{WcFlags, WcOpcode};
use crate::wr::{PostErrorCause, RawSge, RecvRequest, SendFlags, SendOperation, SendRequest};

const REMOTE: Access = Access::REMOTE_WRITE.union(Access::REMOTE_READ);
const BINDABLE: Access = Access::LOCAL_WRITE.union(Access::MW_BIND);

/// A region that windows can be bound to, and all of it as a binding.
fn bindable(end: &End, len: usize) -> (MemoryRegion, WindowBinding) {
    let region = alloc(&end.pd, len, BINDABLE);
    let all = WindowBinding::new(&region.as_slice_all(), REMOTE);
    (region, all)
}

fn window(end: &End, kind: WindowType) -> MemoryWindow {
    end.pd.alloc_window(kind).expect("a window")
}

fn fast(end: &End) -> FastRegion {
    end.pd.alloc_fast_region(1 << 20, 64, true).expect("a region")
}

/// Posts one request and gives its completion.
fn done(end: &End, request: SendRequest) -> WorkCompletion {
    end.qp.post_send(request).expect("posted");
    end.sent()
}

/// Two ends of which both may speak: the responder has heard of the initiator (MPA-029).
fn connect(setup: &Setup) -> Pair {
    let pair = setup.connect();
    flush(&pair.a);
    pair
}

/// A second connection of `end`'s domain.
fn beside(end: &End) -> Pair {
    let setup = Setup::default();
    let qp = end.pd.create_qp(&crate::QpConfig::new(&end.send_cq)).expect("a queue pair");
    let near = End {
        device: end.device.clone(),
        pd: end.pd.clone(),
        send_cq: end.send_cq.clone(),
        recv_cq: end.send_cq.clone(),
        qp,
    };
    let pair = Pair { a: near, b: setup.end() };
    setup.join(&pair);
    flush(&pair.a);
    pair
}

/// Lets the other side's queue pair see all that was sent: a Read of nothing.
fn flush(end: &End) {
    let nothing = crate::mem::RemoteMemory { addr: 0, len: 0, rkey: 0 };
    assert_success(&done(end, SendRequest::read(99, (), nothing)), 99);
}

#[test]
fn a_window_is_bound_before_its_key_is_told() {
    for crc in [true, false] {
        let Pair { a, b } = connect(&Setup { crc, ..Setup::default() });
        let (region, all) = bindable(&a, 8192);
        let window = window(&a, WindowType::Two);
        let key = window.rkey_with(5);
        let note = b.region(4);
        b.qp.post_recv(RecvRequest::new(1, note.as_slice_all())).unwrap();
        // The Send is posted with the binding, and the peer uses the key as soon as it knows it.
        let bind = SendRequest::bind_window(2, &window, 5, all);
        assert_eq!(bind.operation(), SendOperation::BindWindow { rkey: key });
        a.qp.post_send_list([bind, SendRequest::send_inline(3, key.to_be_bytes())]).unwrap();
        let wc = a.sent();
        assert_success(&wc, 2);
        assert_eq!((wc.opcode, wc.byte_len), (WcOpcode::BindMw, 0));
        assert_success(&a.sent(), 3);
        assert_success(&b.received(), 1);
        let told = u32::from_be_bytes(content(&note).try_into().unwrap());
        let remote = crate::mem::RemoteMemory { addr: region.addr(), len: 8192, rkey: told };
        let source = b.pattern(8192, 3);
        assert_success(&done(&b, SendRequest::write(4, source.as_slice_all(), remote)), 4);
        let back = b.region(8192);
        assert_success(&done(&b, SendRequest::read(5, back.as_slice_all(), remote)), 5);
        assert!(content(&region) == content(&source) && content(&back) == content(&source));
        assert_eq!(window.remote(), remote);
        assert_success(&done(&a, SendRequest::local_invalidate(6, key)), 6);
        // To invalidate what is invalid succeeds.
        let wc = done(
            &a,
            SendRequest::raw(
                7,
                SendOperation::LocalInvalidate { rkey: key },
                [],
                SendFlags::SIGNALED,
            ),
        );
        assert_success(&wc, 7);
        assert_eq!(wc.opcode, WcOpcode::LocalInv);
        b.qp.post_send(SendRequest::write(8, source.as_slice_all(), remote)).unwrap();
        a.wait_state(QpState::Err);
        assert_eq!(a.qp.ending().unwrap().terminate.likely_code().raw(), 0x1100);
    }
}

/// SEC-02, DDP-063: the key of a type 2 window is refused on every connection but the one it is bound on.
#[test]
fn a_window_of_type_2_is_one_connection_s() {
    let Pair { a, b } = connect(&Setup::default());
    let Pair { a: beside, b: stranger } = beside(&a);
    let (region, all) = bindable(&a, 64);
    let window = window(&a, WindowType::Two);
    assert_success(&done(&a, SendRequest::bind_window(1, &window, 1, all)), 1);
    let source = stranger.pattern(8, 1);
    stranger.qp.post_send(SendRequest::write(2, source.as_slice_all(), window.remote())).unwrap();
    beside.wait_state(QpState::Err);
    assert_eq!(beside.qp.ending().unwrap().terminate.likely_code().raw(), 0x1102);
    assert_eq!(content(&region), [0; 64]);
    // The window lives on, on its own connection.
    let source = b.pattern(8, 2);
    assert_success(&done(&b, SendRequest::write(3, source.as_slice_all(), window.remote())), 3);
    flush(&b);
    assert_eq!(content(&region)[..8], content(&source));
}

#[test]
fn a_window_of_type_1_is_bound_by_a_call() {
    let Pair { a, b } = connect(&Setup::default());
    let (region, all) = bindable(&a, 64);
    let one = window(&a, WindowType::One);
    let key = a.qp.bind_window(1, &one, all, SendFlags::SIGNALED).unwrap();
    assert_success(&a.sent(), 1);
    assert_eq!(one.rkey(), key);
    let source = b.pattern(8, 1);
    assert_success(&done(&b, SendRequest::write(2, source.as_slice_all(), one.remote())), 2);
    flush(&b);
    assert_eq!(content(&region)[..8], content(&source));
    // Bound again, to another part and unsignalled; its key is another.
    let part = WindowBinding::new(&region.slice(32..).unwrap(), Access::REMOTE_READ);
    let next = a.qp.bind_window(3, &one, part, SendFlags::FENCE).unwrap();
    assert_ne!(next, key);
    assert_success(&done(&a, SendRequest::send(4, ())), 4);
    assert_eq!((one.rkey(), one.remote().len), (next, 32));
    // Bound to nothing.
    let last = a.qp.bind_window(5, &one, WindowBinding::none(), SendFlags::SIGNALED).unwrap();
    assert_success(&a.sent(), 5);
    assert!(!one.is_bound() && one.rkey() == last);
    region.deregister().unwrap();
    // No work request binds or invalidates it, and no call binds the other type.
    let (_region, all) = bindable(&a, 8);
    let refused = a.qp.post_send(SendRequest::bind_window(6, &one, 1, all.clone())).unwrap_err();
    assert!(matches!(refused.cause, PostErrorCause::NotSupported(_)), "{refused}");
    let two = window(&a, WindowType::Two);
    let refused = a.qp.bind_window(7, &two, all, SendFlags::SIGNALED).unwrap_err();
    assert!(matches!(refused.cause, PostErrorCause::NotSupported(_)), "{refused}");
    let wc = done(&a, SendRequest::local_invalidate(8, one.rkey()));
    assert_eq!((wc.status, wc.vendor_err), (WcStatus::LocQpOpErr, 0));
}

#[test]
fn what_posting_refuses() {
    let Pair { a, b } = connect(&Setup::default());
    let refused = |request: SendRequest| a.qp.post_send(request).unwrap_err().cause;
    let is_memory = |cause: PostErrorCause| matches!(cause, PostErrorCause::Memory(_));
    let is_unsupported = |cause: PostErrorCause| matches!(cause, PostErrorCause::NotSupported(_));
    let two = window(&a, WindowType::Two);
    let (_far, foreign) = bindable(&b, 8);
    assert!(is_memory(refused(SendRequest::bind_window(1, &two, 1, foreign))));
    let plain = a.region(8);
    let to = WindowBinding::new(&plain.as_slice_all(), REMOTE);
    assert!(is_memory(refused(SendRequest::bind_window(1, &two, 1, to))));
    let fast = fast(&a);
    let far = Mapping::new([b.region(8).as_slice_all()], REMOTE);
    assert!(is_memory(refused(SendRequest::register(1, &fast, 1, far))));
    for operation in [SendOperation::BindWindow { rkey: 1 }, SendOperation::Register { rkey: 1 }] {
        let request = SendRequest::raw(1, operation, [], SendFlags::SIGNALED);
        assert!(is_unsupported(refused(request)), "{operation}");
    }
    let element = RawSge { addr: 0, length: 0, lkey: 0 };
    let operation = SendOperation::LocalInvalidate { rkey: 1 };
    let request = SendRequest::raw(1, operation, [element], SendFlags::SIGNALED);
    assert!(is_unsupported(refused(request)));
    assert!(is_unsupported(refused(SendRequest::local_invalidate(1, 1).solicited())));
    assert!(is_unsupported(refused(SendRequest::local_invalidate(1, 1).invalidate(2))));
    flush(&a);
}

/// The statuses of the verbs' section 6: the culprit at its place, what is behind it flushed, Terminate
/// without a code.
#[test]
fn refused_work_says_which_and_why() {
    type Make = fn(&End) -> SendRequest;
    let table: [(&str, WcStatus, WcOpcode, Make); 6] = [
        ("a range outside", WcStatus::MwBindErr, WcOpcode::BindMw, |end| {
            let (region, _) = bindable(end, 8);
            let to = WindowBinding::raw(&region, region.addr() + 1, 8, REMOTE);
            SendRequest::bind_window(2, &window(end, WindowType::Two), 1, to)
        }),
        ("a window that is bound", WcStatus::MwBindErr, WcOpcode::BindMw, |end| {
            let (_region, all) = bindable(end, 8);
            let two = window(end, WindowType::Two);
            end.qp
                .post_send(SendRequest::bind_window(0, &two, 1, all.clone()).unsignaled())
                .unwrap();
            SendRequest::bind_window(2, &two, 2, all)
        }),
        ("an unknown key", WcStatus::LocQpOpErr, WcOpcode::LocalInv, |_| {
            SendRequest::local_invalidate(2, 0xdead_be00)
        }),
        ("key 0", WcStatus::LocQpOpErr, WcOpcode::LocalInv, |_| {
            SendRequest::local_invalidate(2, 0)
        }),
        ("a region with a window", WcStatus::LocQpOpErr, WcOpcode::LocalInv, |end| {
            let (region, all) = bindable(end, 8);
            let two = window(end, WindowType::Two);
            end.qp.post_send(SendRequest::bind_window(0, &two, 1, all).unsignaled()).unwrap();
            // Kept alive by nothing but the test.
            std::mem::forget(two);
            SendRequest::local_invalidate(2, region.lkey())
        }),
        ("a valid region", WcStatus::LocQpOpErr, WcOpcode::RegMr, |end| {
            let (region, fast) = (end.region(8), fast(end));
            let all = || Mapping::new([region.as_slice_all()], REMOTE | Access::LOCAL_WRITE);
            end.qp.post_send(SendRequest::register(0, &fast, 1, all()).unsignaled()).unwrap();
            SendRequest::register(2, &fast, 2, all())
        }),
    ];
    for (what, status, opcode, make) in table {
        let Pair { a, b } = connect(&Setup::default());
        let note = b.region(1);
        b.qp.post_recv(RecvRequest::new(9, note.as_slice_all())).unwrap();
        a.qp.post_send(SendRequest::send(1, ())).unwrap();
        let request = make(&a).unsignaled();
        a.qp.post_send_list([request, SendRequest::send(3, ())]).unwrap();
        assert_success(&a.sent(), 1);
        let wc = a.sent();
        assert_eq!(
            (wc.wr_id, wc.status, wc.opcode, wc.vendor_err),
            (2, status, opcode, 0),
            "{what}"
        );
        let wc = a.sent();
        assert_eq!((wc.wr_id, wc.status), (3, WcStatus::WrFlushErr), "{what}");
        assert_success(&b.received(), 9);
        b.wait_state(QpState::Err);
        assert_eq!(b.qp.ending().unwrap().terminate.likely_code().raw(), 0, "{what}");
    }
}

/// Verbs' section 8: work takes effect in order, and its fence waits for the Reads ahead.
#[test]
fn a_fenced_invalidation_waits_for_the_read_into_its_memory() {
    let Pair { a, b } = connect(&Setup::default());
    let source = b.pattern(1 << 20, 9);
    for round in 0..8 {
        let sink = alloc(&a.pd, 1 << 20, Access::LOCAL_WRITE);
        a.qp.post_send_list([
            SendRequest::read(1, sink.as_slice_all(), source.remote()),
            SendRequest::local_invalidate(2, sink.lkey()).fence(),
            SendRequest::send_inline(3, b"").unsignaled(),
        ])
        .unwrap();
        b.qp.post_recv(RecvRequest::new(4, ())).unwrap();
        assert_success(&a.sent(), 1);
        assert_success(&a.sent(), 2);
        assert!(content(&sink) == content(&source) && !sink.is_valid(), "{round}");
        assert_success(&b.received(), 4);
        let wc = done(&a, SendRequest::read(5, (), source.remote().slice(0..0).unwrap()));
        assert_success(&wc, 5);
    }
}

#[test]
fn a_fast_registered_region_over_a_connection() {
    for crc in [true, false] {
        let Pair { a, b } = connect(&Setup { crc, ..Setup::default() });
        let (fast, region) = (fast(&a), a.region(300_000));
        // Uneven parts, so that segments lie across them.
        let parts: Vec<_> =
            (0..30).map(|i| region.slice(i * 10_000 + i..(i + 1) * 10_000 - i).unwrap()).collect();
        let len: usize = parts.iter().map(crate::mem::MrSlice::len).sum();
        let access = Access::LOCAL_WRITE | REMOTE;
        let mapping = Mapping::new(parts.clone(), access).iova(1 << 40);
        for key in 0..3 {
            let wc = done(&a, SendRequest::register(1, &fast, key, mapping.clone()));
            assert_success(&wc, 1);
            assert_eq!((wc.opcode, wc.opcode.value()), (WcOpcode::RegMr, 32));
            let remote = fast.remote();
            assert_eq!((remote.addr, remote.len as usize), (1 << 40, len));
            let source = b.pattern(len, key + 1);
            assert_success(&done(&b, SendRequest::write(2, source.as_slice_all(), remote)), 2);
            let back = b.region(len);
            assert_success(&done(&b, SendRequest::read(3, back.as_slice_all(), remote)), 3);
            assert!(content(&back) == content(&source));
            let mut there = Vec::new();
            for part in &parts {
                there.extend_from_slice(
                    &content(&region)[part.offset()..part.offset() + part.len()],
                );
            }
            assert!(there == content(&source));
            // As local memory, by its key.
            let at = |addr| RawSge { addr, length: 50_000, lkey: fast.rkey() };
            b.qp.post_recv(RecvRequest::new(4, back.slice(..50_000).unwrap())).unwrap();
            let send =
                SendRequest::raw(5, SendOperation::Send, [at((1 << 40) + 7)], SendFlags::SIGNALED);
            assert_success(&done(&a, send), 5);
            assert_success(&b.received(), 4);
            assert!(content(&back)[..50_000] == content(&source)[7..50_007]);
            // The peer takes it away.
            a.qp.post_recv(RecvRequest::new(6, ())).unwrap();
            assert_success(&done(&b, SendRequest::send(7, ()).invalidate(remote.rkey)), 7);
            let wc = a.received();
            assert_success(&wc, 6);
            assert_eq!((wc.flags, wc.invalidated_rkey), (WcFlags::WITH_INV, Some(remote.rkey)));
            assert!(!fast.is_valid());
        }
    }
}

/// A key that was used before may be used again: what a connection remembers of it is not taken for it.
#[test]
fn the_same_key_may_name_other_memory() {
    let Pair { a, b } = connect(&Setup::default());
    let two = window(&a, WindowType::Two);
    let source = b.pattern(16, 1);
    for round in 0..4 {
        let (region, all) = bindable(&a, 16);
        assert_success(&done(&a, SendRequest::bind_window(1, &two, 77, all)), 1);
        let write = SendRequest::write(2, source.as_slice_all(), two.remote());
        assert_success(&done(&b, write), 2);
        flush(&b);
        assert_eq!(content(&region), content(&source), "{round}");
        assert_success(&done(&a, SendRequest::local_invalidate(3, two.rkey())), 3);
        region.deregister().unwrap();
    }
}

/// Within one pass, too, a key may get other memory, and whatever comes by it finds that.
#[test]
fn every_access_finds_what_the_key_names_now() {
    type Try = fn(&mut QpMemory<'_>, Stag) -> bool;
    let table: [(&str, Try); 8] = [
        ("Write", |mem, stag| mem.place_tagged(stag, 0, b"octet").is_ok()),
        ("Write straight to its place", |mem, stag| straight(mem, stag, 0, 5)),
        ("Read", |mem, stag| mem.read_tagged(stag, 0, &mut [0; 5]).is_ok()),
        ("Read Request", |mem, stag| mem.check_tagged(stag, 0, 5).is_ok()),
        ("Read from its place", |mem, stag| mem.remote_source(stag, 0, 5).is_ok()),
        ("Atomic Request", |mem, stag| mem.check_atomic(stag, 0).is_ok()),
        ("Atomic", |mem, stag| mem.atomic(stag, 0, AtomicOperation::fetch_add(1)).is_ok()),
        ("invalidation", |mem, stag| mem.invalidate(stag).is_ok()),
    ];
    let end = Setup::default().end();
    let two = window(&end, WindowType::Two);
    let stag = Stag::from_raw(two.rkey_with(5));
    let qp = &end.qp.0.inner;
    let bind = || {
        let region = alloc(&end.pd, 8, BINDABLE);
        let binding =
            WindowBinding::new(&region.as_slice_all(), Access::REMOTE | Access::ZERO_BASED);
        let work = LocalWork::Bind { window: two.clone(), key: 5, binding };
        work.perform(qp.peer()).expect("bound");
    };
    for (what, access) in table {
        let (mut recent, mut reporter) = (Recent::default(), Reporter::default());
        let mut out = Outbox::default();
        let mut ahead = VecDeque::new();
        let mut mem = QpMemory::new(qp, &mut recent, &mut ahead, false, &mut reporter, &mut out);
        bind();
        mem.check_tagged(stag, 0, 8).expect("what is remembered");
        LocalWork::Invalidate { stag }.perform(qp.peer()).expect("invalid");
        bind();
        assert!(access(&mut mem, stag), "{what}");
        LocalWork::Invalidate { stag }.perform(qp.peer()).expect("invalid");
        assert_eq!(access(&mut mem, stag), what == "invalidation", "{what}");
    }
}

fn straight(mem: &mut QpMemory<'_>, stag: Stag, offset: u64, len: usize) -> bool {
    mem.straight_sink(&Sink::Tagged { stag, offset }, len).is_some()
}

/// The straight way is not even tried for octets in two pieces, which it would refuse each time.
#[test]
fn what_lies_in_one_piece_may_go_straight() {
    let end = Setup::default().end();
    let (fast, region) = (fast(&end), end.region(100));
    let parts = [region.slice(50..90).unwrap(), region.slice(0..30).unwrap()];
    let mapping = Mapping::new(parts, Access::LOCAL_WRITE | REMOTE).iova(0);
    let qp = &end.qp.0.inner;
    LocalWork::Register { region: fast.clone(), key: 7, mapping }.perform(qp.peer()).unwrap();
    let stag = Stag::from_raw(fast.rkey());
    let (mut recent, mut reporter) = (Recent::default(), Reporter::default());
    let (mut ahead, mut out) = (VecDeque::new(), Outbox::default());
    let mut mem = QpMemory::new(qp, &mut recent, &mut ahead, false, &mut reporter, &mut out);
    for (offset, len, fits) in [
        (0, 40, true),
        (10, 30, true),
        (10, 31, false),
        (39, 2, false),
        (40, 30, true),
        (0, 70, false),
        (40, 31, false),
    ] {
        assert_eq!(straight(&mut mem, stag, offset, len), fits, "{len} octets at {offset}");
    }
}

/// FC-062: whatever is wrong with an invalidation, the key goes on working for others.
#[test]
fn fc_062_a_refused_invalidation_changes_nothing() {
    type Make = fn(&End, &End) -> (u32, u16);
    let table: [(&str, Make); 5] = [
        ("another connection's window", |a, beside| {
            let (region, all) = bindable(a, 8);
            let two = window(a, WindowType::Two);
            assert_success(&done(beside, SendRequest::bind_window(1, &two, 1, all)), 1);
            std::mem::forget((region, two.clone()));
            (two.rkey(), 0x0109)
        }),
        ("a window of type 1", |a, _| {
            let (region, all) = bindable(a, 8);
            let one = window(a, WindowType::One);
            let key = a.qp.bind_window(1, &one, all, SendFlags::SIGNALED).unwrap();
            assert_success(&a.sent(), 1);
            std::mem::forget((region, one));
            (key, 0x0109)
        }),
        ("a region with a window", |a, _| {
            let region = alloc(&a.pd, 8, BINDABLE | REMOTE);
            let all = WindowBinding::new(&region.as_slice_all(), REMOTE);
            let two = window(a, WindowType::Two);
            assert_success(&done(a, SendRequest::bind_window(1, &two, 1, all)), 1);
            std::mem::forget(two);
            (region.rkey(), 0x0109)
        }),
        ("a window without rights", |a, _| {
            let region = alloc(&a.pd, 8, BINDABLE);
            let two = window(a, WindowType::Two);
            let all = WindowBinding::new(&region.as_slice_all(), Access::empty());
            assert_success(&done(a, SendRequest::bind_window(1, &two, 1, all)), 1);
            std::mem::forget(two.clone());
            (two.rkey(), 0x0102)
        }),
        ("a wrong key octet", |a, _| {
            let region = alloc(&a.pd, 8, BINDABLE | REMOTE);
            let key = region.rkey();
            std::mem::forget(region);
            (key ^ 1, 0x0209)
        }),
    ];
    for (what, make) in table {
        let Pair { a, b } = connect(&Setup::default());
        let pair = beside(&a);
        let (key, code) = make(&a, &pair.a);
        let found = || crate::mem::KeyTable::of_process().lookup(Stag::from_raw(key));
        let before = found().map(|region| region.is_valid());
        a.qp.post_recv(RecvRequest::new(5, ())).unwrap();
        b.qp.post_send(SendRequest::send(6, ()).invalidate(key)).unwrap();
        let wc = a.received();
        assert_eq!((wc.wr_id, wc.status), (5, WcStatus::RemInvReqErr), "{what}");
        assert_eq!(wc.vendor_err, code.into(), "{what}");
        assert_eq!(found().map(|region| region.is_valid()), before, "{what}");
    }
}

/// V5: the windows of a queue pair end with it, and 7.8: not before.
#[test]
fn windows_stay_bound_through_an_error_and_end_with_the_queue_pair() {
    let Pair { a, b } = connect(&Setup::default());
    let (region, all) = bindable(&a, 8);
    let (two, one) = (window(&a, WindowType::Two), window(&a, WindowType::One));
    assert_success(&done(&a, SendRequest::bind_window(1, &two, 1, all.clone())), 1);
    a.qp.bind_window(2, &one, all, SendFlags::SIGNALED).unwrap();
    assert_success(&a.sent(), 2);
    a.qp.modify(QpState::Err).unwrap();
    b.wait_state(QpState::Err);
    assert!(two.is_bound());
    a.qp.destroy().unwrap();
    assert!(!two.is_bound() && one.is_bound());
    assert!(region.clone().deregister().is_err(), "the window of type 1 is the domain's");
    one.destroy().unwrap();
    region.deregister().unwrap();
    // It is the domain's again, and can be bound through another queue pair.
    let Pair { a: other, b: _b } = beside(&a);
    let (_region, all) = bindable(&other, 8);
    assert_success(&done(&other, SendRequest::bind_window(3, &two, 2, all)), 3);
    drop(other.qp);
    until("the end of the window", || !two.is_bound());
}

/// SEC-02: whoever is connected to the queue pair next is another stream, and has nothing of the last one's.
#[test]
fn windows_end_when_the_queue_pair_begins_anew() {
    let setup = Setup::default();
    let Pair { a, b } = connect(&setup);
    let (region, all) = bindable(&a, 8);
    let (two, one) = (window(&a, WindowType::Two), window(&a, WindowType::One));
    assert_success(&done(&a, SendRequest::bind_window(1, &two, 1, all.clone())), 1);
    a.qp.bind_window(2, &one, all.clone(), SendFlags::SIGNALED).unwrap();
    assert_success(&a.sent(), 2);
    a.qp.modify(QpState::Err).unwrap();
    until("the end of the connection", || a.qp.modify(QpState::Reset).is_ok());
    assert!(!two.is_bound() && one.is_bound());
    a.qp.modify(QpState::Init).unwrap();
    let next = Pair { a, b: setup.end() };
    setup.join(&next);
    flush(&next.a);
    let Pair { a, b: stranger } = next;
    drop(b);
    let remote = crate::mem::RemoteMemory { len: 8, ..two.remote() };
    let source = stranger.pattern(8, 1);
    stranger.qp.post_send(SendRequest::write(3, source.as_slice_all(), remote)).unwrap();
    a.wait_state(QpState::Err);
    assert_eq!(a.qp.ending().unwrap().terminate.likely_code().raw(), 0x1100);
    assert_eq!(content(&region), [0; 8]);
}

/// A window is for peers: as an element of a request it is a protection error.
#[test]
fn a_window_is_no_element() {
    let Pair { a, b: _b } = connect(&Setup::default());
    let (region, all) = bindable(&a, 8);
    let two = window(&a, WindowType::Two);
    assert_success(&done(&a, SendRequest::bind_window(1, &two, 1, all)), 1);
    let element = RawSge { addr: region.addr(), length: 8, lkey: two.rkey() };
    let wc = done(&a, SendRequest::raw(2, SendOperation::Send, [element], SendFlags::SIGNALED));
    assert_eq!((wc.wr_id, wc.status), (2, WcStatus::LocProtErr));
}

#[test]
fn local_work_is_flushed_in_order() {
    let Pair { a, b: _b } = connect(&Setup::default());
    a.qp.modify(QpState::Err).unwrap();
    let (region, all) = bindable(&a, 8);
    let two = window(&a, WindowType::Two);
    a.qp.post_send_list([
        SendRequest::bind_window(1, &two, 1, all).unsignaled(),
        SendRequest::local_invalidate(2, region.lkey()),
    ])
    .unwrap();
    for (id, opcode) in [(1, WcOpcode::BindMw), (2, WcOpcode::LocalInv)] {
        let wc = a.sent();
        assert_eq!((wc.wr_id, wc.status, wc.opcode), (id, WcStatus::WrFlushErr, opcode));
    }
    assert!(!two.is_bound() && region.is_valid());
}
