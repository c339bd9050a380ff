//! Writes with immediate data: one receive, one completion at each end, and the value in between.

use super::*;
use crate::Notify;
use crate::wc::{WcFlags, WcOpcode};
use crate::wr::{PostErrorCause, RecvRequest, SendFlags, SendOperation, SendRequest};

const SIZES: [usize; 8] = [0, 1, 64, 1460, 16_385, 65_536, 262_144, (1 << 20) + 3];

fn settings() -> [Setup; 4] {
    [
        Setup::default(),
        Setup { crc: false, ..Setup::default() },
        Setup { markers: true, limit: FpduLimit::Emss, ..Setup::default() },
        Setup { crc: false, send_buffer: Some(1), ..Setup::default() },
    ]
}

/// FC-073: value, flag and one receive used; FC-069: one completion, after both.
#[test]
fn fc_073_the_value_comes_with_the_receive() {
    for setup in settings() {
        let Pair { a, b } = setup.connect();
        let note = b.region(16);
        note.fill(.., 0x5a).unwrap();
        for (seed, len) in (1_u8..).zip(SIZES) {
            let imm = 0xdead_0000 | u32::from(seed);
            let source = a.pattern(len, seed);
            let sink = b.region(len + 8);
            let remote = sink.remote().slice(..len as u64).unwrap();
            b.qp.post_recv(RecvRequest::new(7, note.as_slice_all())).unwrap();
            b.qp.post_recv(RecvRequest::new(8, ())).unwrap();
            let request = SendRequest::write_with_imm(1, source.as_slice_all(), remote, imm);
            a.qp.post_send(request).unwrap();
            let wc = a.sent();
            assert_success(&wc, 1);
            assert_eq!((wc.opcode, wc.byte_len as usize), (WcOpcode::RdmaWrite, len));
            assert_eq!((wc.flags, wc.imm_data), (WcFlags::empty(), None));

            let wc = b.received();
            assert_success(&wc, 7);
            // EXT-32, and the octets of the Write in front of it.
            assert_eq!((wc.opcode, wc.byte_len as usize), (WcOpcode::RecvRdmaWithImm, len));
            assert_eq!((wc.flags, wc.imm_data), (WcFlags::WITH_IMM, Some(imm)));
            assert_eq!(wc.invalidated_rkey, None);
            // EXT-33, ORD-04: the Write is there, and nothing in the receive.
            assert!(content(&sink)[..len] == octets(len, seed), "{len}");
            assert_eq!(content(&note), [0x5a; 16]);

            // EXT-30: just one receive was used. A Send behind it finds the next one.
            a.qp.post_send(SendRequest::send(2, ())).unwrap();
            assert_success(&a.sent(), 2);
            let wc = b.received();
            assert_success(&wc, 8);
            assert_eq!(
                (wc.opcode, wc.flags, wc.imm_data),
                (WcOpcode::Recv, WcFlags::empty(), None)
            );
            assert!(a.send_cq.poll_one().is_none() && b.recv_cq.poll_one().is_none());
        }
    }
}

/// EXT-31, ORD-21, ORD-13: among Sends, Reads and Writes, in the order of posting.
#[test]
fn the_order_is_that_of_posting() {
    let Pair { a, b } = Setup::default().connect();
    let far = b.region(4096);
    let near = a.region(4096);
    for id in 0..60 {
        b.qp.post_recv(RecvRequest::new(id, ())).unwrap();
    }
    for id in 0..60_u32 {
        let slice = near.as_slice_all();
        let request = match id % 4 {
            0 => SendRequest::write_with_imm(id.into(), slice, far.remote(), id),
            1 => SendRequest::read(id.into(), slice, far.remote()),
            2 => SendRequest::send(id.into(), ()),
            _ => SendRequest::write_inline_with_imm(id.into(), b"inline", far.remote(), id).fence(),
        };
        a.qp.post_send(request).unwrap();
    }
    for id in 0..60 {
        assert_success(&a.sent(), id);
    }
    let messages = (0..60).filter(|id| id % 4 != 1);
    for (receive, id) in (0..).zip(messages) {
        let wc = b.received();
        assert_success(&wc, receive);
        let expected = match id % 4 {
            0 => (WcOpcode::RecvRdmaWithImm, Some(id), 4096),
            2 => (WcOpcode::Recv, None, 0),
            _ => (WcOpcode::RecvRdmaWithImm, Some(id), 6),
        };
        assert_eq!((wc.opcode, wc.imm_data, wc.byte_len), expected);
    }
}

/// EXT-32: with Solicited Event it wakes who waits for that alone.
#[test]
fn a_solicited_one_is_a_solicited_event() {
    let setup = Setup::default();
    let Pair { a, b: mut sink } = setup.ends();
    let channel = sink.device.create_channel().unwrap();
    sink.recv_cq = sink.device.create_cq_with_channel(16, &channel).unwrap();
    let config = QpConfig::new(&sink.send_cq).recv_cq(&sink.recv_cq);
    sink.qp = sink.pd.create_qp(&config).unwrap();
    let pair = Pair { a, b: sink };
    setup.join(&pair);
    let Pair { a, b } = pair;
    let far = b.region(64);
    for (id, solicited) in (0..).zip([false, true]) {
        b.qp.post_recv(RecvRequest::new(id, ())).unwrap();
        b.recv_cq.arm(Notify::Solicited).unwrap();
        let request = SendRequest::write_inline_with_imm(9, b"octets", far.remote(), 7);
        let request = if solicited { request.solicited() } else { request };
        a.qp.post_send(request).unwrap();
        assert_success(&a.sent(), 9);
        assert_success(&b.received(), id);
        let event = channel.get_event().unwrap();
        assert_eq!(event.is_some(), solicited);
        event.map(crate::CqEvent::ack);
    }
}

/// What a receive shows that is flushed: neither value nor flag.
#[test]
fn a_flushed_receive_carries_no_value() {
    let Pair { a, b } = Setup::default().connect();
    b.qp.post_recv(RecvRequest::new(3, ())).unwrap();
    let far = b.region(8);
    a.qp.post_send(SendRequest::write_inline_with_imm(1, b"x", far.remote(), 1)).unwrap();
    assert_success(&b.received(), 3);
    b.qp.post_recv(RecvRequest::new(4, ())).unwrap();
    a.qp.disconnect();
    let wc = b.received();
    assert_eq!((wc.wr_id, wc.status), (4, WcStatus::WrFlushErr));
    assert_eq!((wc.flags, wc.imm_data), (WcFlags::empty(), None));
}

/// FC-030 with immediate data: without a receive it waits, and is not lost.
#[test]
fn without_a_receive_it_is_held_back() {
    let Pair { a, b } = Setup::default().connect();
    let far = b.region(8);
    a.qp.post_send(SendRequest::write_inline_with_imm(1, b"12345678", far.remote(), 5)).unwrap();
    until("the message to be held back", || b.qp.0.inner.is_held_back());
    b.qp.post_recv(RecvRequest::new(2, ())).unwrap();
    let wc = b.received();
    assert_success(&wc, 2);
    assert_eq!((wc.imm_data, wc.byte_len), (Some(5), 8));
    assert_success(&a.sent(), 1);
}

/// FC-073: toward a peer that is known not to serve RFC 7306 it is refused at posting, and nothing goes out.
#[test]
fn fc_073_without_the_extensions_posting_refuses_it() {
    let setup = Setup { config: DeviceConfig::default().extensions(false), ..Setup::default() };
    let Pair { a, b } = setup.connect();
    assert!(!a.qp.query().extensions);
    let far = b.region(8);
    let refused = a.qp.post_send(SendRequest::write_with_imm(1, (), far.remote(), 1)).unwrap_err();
    assert!(matches!(refused.cause, PostErrorCause::NotSupported(_)), "{refused}");
    assert_eq!(refused.errno(), 95);
    assert!(refused.to_string().contains("7306"), "{refused}");
    // The connection is as it was, and so are the places of the queue.
    b.qp.post_recv(RecvRequest::new(5, ())).unwrap();
    a.qp.post_send(SendRequest::send(2, ())).unwrap();
    assert_success(&a.sent(), 2);
    assert_success(&b.received(), 5);
    assert_eq!((a.qp.stats().fpdus_sent, b.qp.stats().fpdus_received), (1, 1));
}

/// V6: iWARP has no Send with immediate data, and says so.
#[test]
fn fc_073_a_send_with_immediate_data_is_refused_at_posting() {
    let Pair { a, b: _b } = Setup::default().connect();
    let operation = SendOperation::SendWithImm { imm: 1 };
    let refused =
        a.qp.post_send(SendRequest::raw(1, operation, [], SendFlags::SIGNALED)).unwrap_err();
    assert!(matches!(refused.cause, PostErrorCause::NotSupported(_)), "{refused}");
    assert!(refused.to_string().contains("iWARP cannot carry"), "{refused}");
    assert_eq!(refused.errno(), 95);
}

/// EXT-02: a peer that does not serve it ends the connection, with a Terminate that says why.
#[test]
fn a_peer_without_the_extensions_ends_the_connection() {
    let setup = Setup::default();
    let without = Setup { config: DeviceConfig::default().extensions(false), ..Setup::default() };
    let pair = Pair { a: setup.end(), b: without.end() };
    setup.join(&pair);
    let Pair { a, b } = pair;
    let far = b.region(8);
    b.qp.post_recv(RecvRequest::new(3, ())).unwrap();
    a.qp.post_send(SendRequest::write_inline_with_imm(1, b"x", far.remote(), 1)).unwrap();
    let wc = b.received();
    assert_eq!((wc.wr_id, wc.status, wc.vendor_err), (3, WcStatus::WrFlushErr, 0x0206));
    a.wait_state(QpState::Err);
    let ending = a.qp.ending().expect("the peer's Terminate");
    assert_eq!(ending.terminate.code.raw(), 0x0206);
}
