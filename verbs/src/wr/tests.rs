//! What posting checks of a request by itself.

use super::*;
use crate::mem::MemoryRegion;
use crate::{Device, DeviceConfig, ProtectionDomain, WcOpcode};

const CAPS: QpCaps = QpCaps {
    max_send_wr: 1,
    max_recv_wr: 1,
    max_send_sge: 3,
    max_recv_sge: 2,
    max_inline_data: 21,
};

const REMOTE: RemoteMemory = RemoteMemory { addr: 0x1000, len: 64, rkey: 7 };

fn domain() -> ProtectionDomain {
    Device::open(DeviceConfig::default()).unwrap().alloc_pd()
}

fn region(pd: &ProtectionDomain) -> MemoryRegion {
    pd.alloc(64, Access::LOCAL_WRITE).unwrap()
}

fn octets(request: &SendRequest) -> &[u8] {
    match &request.payload {
        Payload::Inline(octets) => octets,
        other => panic!("{other:?} is not inline"),
    }
}

#[test]
fn flags_and_operations_have_the_values_of_libibverbs() {
    let flags = [(SendFlags::FENCE, 1), (SendFlags::SIGNALED, 2), (SendFlags::SOLICITED, 4)];
    for (flag, value) in flags {
        assert_eq!(flag.bits(), value, "{flag:?}");
    }
    let operations = [
        (SendOperation::RdmaWrite { remote_addr: 0, rkey: 0 }, 0, WcOpcode::RdmaWrite),
        (
            SendOperation::RdmaWriteWithImm { remote_addr: 0, rkey: 0, imm: 0 },
            1,
            WcOpcode::RdmaWrite,
        ),
        (SendOperation::Send, 2, WcOpcode::Send),
        (SendOperation::SendWithImm { imm: 0 }, 3, WcOpcode::Send),
        (SendOperation::RdmaRead { remote_addr: 0, rkey: 0 }, 4, WcOpcode::RdmaRead),
        (
            SendOperation::CompareSwap { remote_addr: 0, rkey: 0, compare: 0, swap: 0 },
            5,
            WcOpcode::CompSwap,
        ),
        (SendOperation::FetchAdd { remote_addr: 0, rkey: 0, add: 0 }, 6, WcOpcode::FetchAdd),
        (SendOperation::SendWithInvalidate { rkey: 0 }, 9, WcOpcode::Send),
        (SendOperation::of_atomic(0, 0, AtomicOperation::swap(1)), 12, WcOpcode::CompSwap),
        (
            SendOperation::of_atomic(0, 0, AtomicOperation::FetchAdd { add: 1, mask: 1 }),
            13,
            WcOpcode::FetchAdd,
        ),
    ];
    for (operation, value, opcode) in operations {
        assert_eq!((operation.value(), operation.wc_opcode()), (value, opcode));
        let extension = matches!(value, 1 | 5 | 6 | 12 | 13);
        assert_eq!(operation.is_extension(), extension, "{operation}");
        if let Some((rkey, addr, atomic)) = operation.atomic() {
            assert_eq!(SendOperation::of_atomic(rkey, addr, atomic), operation);
        }
    }
}

/// FC-069: the flag is what decides when the queue pair does not signal everything.
#[test]
fn requests_are_signalled_unless_told_otherwise() {
    for request in [
        SendRequest::send(1, ()),
        SendRequest::send_inline(1, b"x"),
        SendRequest::write(1, (), REMOTE),
        SendRequest::write_inline(1, b"x", REMOTE),
        SendRequest::read(1, (), REMOTE),
        SendRequest::send(1, ()).invalidate(9),
    ] {
        assert_eq!(request.flags(), SendFlags::SIGNALED, "{request:?}");
        assert_eq!(request.unsignaled().fence().flags(), SendFlags::FENCE);
    }
    let raw = SendRequest::raw(1, SendOperation::Send, [], SendFlags::empty());
    assert_eq!(raw.flags(), SendFlags::empty());
    let raw = SendRequest::raw_inline(1, SendOperation::Send, [b"x"], SendFlags::SIGNALED);
    assert_eq!(raw.flags(), SendFlags::SIGNALED);
}

/// FC-067: every part is copied when the request is made; the limit is exact.
#[test]
fn inline_data_is_the_sum_of_its_parts() {
    let id = domain().0.id;
    for parts in 1..=7_usize {
        let mut buffers: Vec<Vec<u8>> =
            (0..parts).map(|part| vec![b'a' + u8::try_from(part).unwrap(); part]).collect();
        let expected = buffers.concat();
        let send = SendRequest::send_inline_parts(1, &buffers);
        let write = SendRequest::write_inline_parts(1, &buffers, REMOTE);
        for buffer in &mut buffers {
            buffer.fill(b'!');
        }
        assert_eq!(octets(&send), expected);
        assert_eq!(octets(&write), expected);
        assert_eq!(send.check(&CAPS, id), Ok(u32::try_from(expected.len()).unwrap()));
    }
    let at_limit = SendRequest::send_inline(1, [0; 21]);
    assert_eq!(at_limit.check(&CAPS, id), Ok(21));
    let over = SendRequest::write_inline(1, [0; 22], REMOTE);
    let too_long = PostErrorCause::InlineTooLong { len: 22, max: 21 };
    assert_eq!(over.check(&CAPS, id), Err(too_long.clone()));
    assert_eq!(too_long.errno(), 22);
}

/// FC-068: no octets, whether without elements or with empty ones, whoever owns those.
#[test]
fn messages_without_octets_are_requests_like_others() {
    let (pd, other) = (domain(), domain());
    let id = pd.0.id;
    let unwritable = pd.alloc(8, Access::empty()).unwrap();
    let gone = region(&pd);
    let empty = [
        region(&other).slice(3..3).unwrap(),
        unwritable.slice(..0).unwrap(),
        gone.slice(5..5).unwrap(),
    ];
    gone.deregister().unwrap();
    for request in [
        SendRequest::send(1, ()),
        SendRequest::send(1, empty.clone()),
        SendRequest::send(1, ()).invalidate(3),
        SendRequest::send_inline(1, b""),
        SendRequest::write(1, empty.clone(), RemoteMemory { len: 0, ..REMOTE }),
        SendRequest::read(1, (), REMOTE),
        SendRequest::read(1, empty.clone(), REMOTE),
    ] {
        assert_eq!(request.check(&CAPS, id), Ok(0), "{request:?}");
    }
    let [first, second, _] = empty;
    assert_eq!(RecvRequest::new(1, ()).check(CAPS.max_recv_sge, id), Ok(0));
    assert_eq!(RecvRequest::new(1, [first, second]).check(CAPS.max_recv_sge, id), Ok(0));
}

#[test]
fn elements_are_counted_and_looked_at_one_by_one() {
    let (pd, other) = (domain(), domain());
    let id = pd.0.id;
    let good = region(&pd);
    let slice = || good.slice(..16).unwrap();
    let foreign = region(&other).slice(..1).unwrap();
    let readable = pd.alloc(64, Access::empty()).unwrap();
    let gone = region(&pd);
    let stale = gone.slice(..1).unwrap();
    gone.deregister().unwrap();

    let three = SendRequest::send(1, [slice(), slice(), slice()]);
    assert_eq!(three.check(&CAPS, id), Ok(48));
    let four = SendRequest::send(1, vec![slice(); 4]);
    let count = PostErrorCause::TooManyElements { have: 4, max: 3 };
    assert_eq!(four.check(&CAPS, id), Err(count));
    let receive = RecvRequest::new(1, vec![slice(); 3]);
    let count = PostErrorCause::TooManyElements { have: 3, max: 2 };
    assert_eq!(receive.check(CAPS.max_recv_sge, id), Err(count));

    let mixed = SendRequest::write(1, [slice(), foreign.clone()], REMOTE);
    let cause = PostErrorCause::ForeignRegion { element: 1 };
    assert_eq!(mixed.check(&CAPS, id), Err(cause));
    let receive = RecvRequest::new(1, [slice(), foreign]);
    assert_eq!(
        receive.check(CAPS.max_recv_sge, id),
        Err(PostErrorCause::ForeignRegion { element: 1 })
    );

    // A source needs no right, a sink one.
    let unwritable = readable.slice(..8).unwrap();
    assert_eq!(SendRequest::send(1, unwritable.clone()).check(&CAPS, id), Ok(8));
    let rights =
        PostErrorCause::Rights { element: 0, need: Access::LOCAL_WRITE, have: Access::empty() };
    let read = SendRequest::read(1, unwritable.clone(), REMOTE);
    assert_eq!(read.check(&CAPS, id), Err(rights.clone()));
    assert_eq!(RecvRequest::new(1, unwritable).check(CAPS.max_recv_sge, id), Err(rights));

    let cause = PostErrorCause::Deregistered { element: 2 };
    let send = SendRequest::send(1, [slice(), slice(), stale]);
    assert_eq!(send.check(&CAPS, id), Err(cause));
}

#[test]
fn what_an_operation_does_not_know_is_refused() {
    let id = domain().0.id;
    let unsupported = [
        SendRequest::write(1, (), REMOTE).solicited(),
        SendRequest::read(1, (), REMOTE).solicited(),
        SendRequest::write(1, (), REMOTE).invalidate(1),
        SendRequest::read(1, (), REMOTE).invalidate(1),
        SendRequest::raw_inline(
            1,
            SendOperation::RdmaRead { remote_addr: 0, rkey: 1 },
            [b"x"],
            SendFlags::empty(),
        ),
        SendRequest::raw(1, SendOperation::Send, [], SendFlags::from_bits_retain(1 << 8)),
        SendRequest::write_with_imm(1, (), REMOTE, 2).invalidate(1),
        // V6
        SendRequest::raw(1, SendOperation::SendWithImm { imm: 2 }, [], SendFlags::SIGNALED),
    ];
    for request in unsupported {
        let cause = request.check(&CAPS, id).unwrap_err();
        assert!(matches!(cause, PostErrorCause::NotSupported(_)), "{request:?}: {cause}");
        assert_eq!(cause.errno(), 95);
    }
    // A fence is taken on all of them.
    assert_eq!(SendRequest::read(1, (), REMOTE).fence().check(&CAPS, id), Ok(0));
    let both = SendRequest::send(1, ()).solicited().invalidate(1);
    assert_eq!(both.operation(), SendOperation::SendWithInvalidate { rkey: 1 });
    assert_eq!(both.check(&CAPS, id), Ok(0));
    // It takes a receive, which may be a solicited event.
    let imm = SendRequest::write_with_imm(1, (), REMOTE, 2).solicited().fence();
    assert_eq!(imm.check(&CAPS, id), Ok(0));
    let more = SendRequest::write_inline_with_imm(1, [0; 21], REMOTE.slice(..20).unwrap(), 2);
    let outside = PostErrorCause::OutOfBounds { len: 21, remote: 20 };
    assert_eq!(more.check(&CAPS, id), Err(outside));
}

/// FC-063: lengths are summed in 64 bits.
#[test]
fn lengths_are_summed_without_wrapping() {
    let id = domain().0.id;
    let element = |length| RawSge { addr: 0, length, lkey: 1 };
    let most = SendRequest::raw(
        1,
        SendOperation::Send,
        [element(u32::MAX - 1), element(1)],
        SendFlags::empty(),
    );
    assert_eq!(most.check(&CAPS, id), Ok(u32::MAX));
    let wrapped = SendRequest::raw(
        1,
        SendOperation::Send,
        [element(1 << 31), element(1 << 31)],
        SendFlags::empty(),
    );
    let cause = PostErrorCause::MessageTooLong { len: 1 << 32, max: u32::MAX };
    assert_eq!(wrapped.check(&CAPS, id), Err(cause));
    // A receive may be that large.
    let receive = RecvRequest::raw(1, [element(1 << 31), element(1 << 31)]);
    assert_eq!(receive.check(CAPS.max_recv_sge, id), Ok(1 << 32));
}

#[test]
fn the_length_that_the_peer_offered_is_kept() {
    let pd = domain();
    let id = pd.0.id;
    let region = pd.alloc(128, Access::LOCAL_WRITE).unwrap();
    for len in [63, 64, 65] {
        let slice = region.slice(..len).unwrap();
        let expected = if len > 64 {
            Err(PostErrorCause::OutOfBounds { len: 65, remote: 64 })
        } else {
            Ok(u32::try_from(len).unwrap())
        };
        assert_eq!(SendRequest::write(1, slice.clone(), REMOTE).check(&CAPS, id), expected);
        assert_eq!(SendRequest::read(1, slice, REMOTE).check(&CAPS, id), expected);
    }
}
