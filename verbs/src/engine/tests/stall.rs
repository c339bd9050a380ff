//! Peers that stop: for want of a receive, in the middle of an FPDU, behind a closed window.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::thread;

use super::*;
use crate::wr::{RecvRequest, SendRequest};

fn code(end: &End) -> Option<u16> {
    end.qp.0.inner.ending().map(|ending| ending.terminate.code.raw())
}

/// FC-030, decision D2: the fifth Send waits for the fifth receive.
#[test]
fn a_send_without_a_receive_is_held_back() {
    let Pair { a, b } = Setup::default().connect();
    let sink = b.region(64);
    let post = |id| b.qp.post_recv(RecvRequest::new(id, sink.as_slice_all())).unwrap();
    (0..4).for_each(post);
    for id in 0..50 {
        a.qp.post_send(SendRequest::send_inline(id, [id as u8; 64])).unwrap();
    }
    for id in 0..4 {
        assert_success(&b.received(), id);
    }
    thread::sleep(Duration::from_millis(50));
    assert!(b.recv_cq.poll_one().is_none());
    for id in 4..50 {
        post(id);
        assert_success(&b.received(), id);
        assert_eq!(content(&sink), [id as u8; 64]);
    }
    assert_eq!((a.qp.state(), b.qp.state()), (QpState::Rts, QpState::Rts));
    assert_eq!(b.device.0.driver().budget().used(), 0, "nothing is kept once it is consumed");
}

/// FC-030: after the limit, or at once in strict mode, or while own Reads wait, it is an error.
#[test]
fn a_send_is_not_held_back_for_ever() {
    let held = DeviceConfig::default().hold_back(Duration::from_millis(100));
    let strict = DeviceConfig::default().strict_receive(true);
    for config in [held, strict] {
        let Pair { a, b } = Setup { config, ..Setup::default() }.connect();
        a.qp.post_recv(RecvRequest::new(1, ())).unwrap();
        a.qp.post_send(SendRequest::send(2, ())).unwrap();
        assert_success(&a.sent(), 2);
        assert_eq!(a.received().status, WcStatus::WrFlushErr);
        a.wait_state(QpState::Err);
        b.wait_state(QpState::Err);
        // 1/2/02: no buffer.
        assert_eq!((code(&a), code(&b)), (Some(0x1202), Some(0x1202)));
    }
}

/// While a Send is held back, the loss of TCP is still noticed.
#[test]
fn a_reset_is_noticed_while_a_send_is_held_back() {
    let setup = Setup::default();
    let (wire, _) = wire_of(&setup, |a| {
        a.qp.post_send(SendRequest::send_inline(1, b"unwanted")).unwrap();
    });
    let end = setup.end();
    let (mut peer, right) = tcp_pair();
    setup.start(&end, right, Role::Responder);
    peer.write_all(&wire).unwrap();
    until("the hold", || end.qp.0.inner.is_held_back());
    socket2::SockRef::from(&peer).set_linger(Some(Duration::ZERO)).unwrap();
    drop(peer);
    end.wait_state(QpState::Err);
    end.qp.post_recv(RecvRequest::new(1, ())).unwrap();
    assert_eq!(end.received().status, WcStatus::WrFlushErr);
    assert_eq!(end.device.stats().connections_lost, 1);
}

/// What an initiator puts on the wire when it does something.
pub(super) fn wire_of(setup: &Setup, act: impl FnOnce(&End)) -> (Vec<u8>, End) {
    let end = setup.end();
    let (left, mut tap) = tcp_pair();
    setup.start(&end, left, Role::Initiator);
    act(&end);
    tap.set_read_timeout(Some(Duration::from_millis(100))).unwrap();
    let mut wire = Vec::new();
    let mut part = vec![0; 1 << 16];
    while let Ok(read) = tap.read(&mut part) {
        wire.extend_from_slice(&part[..read]);
    }
    (wire, end)
}

/// Many peers that stop in the middle of an FPDU cost the budget and that FPDU, for a limited time; a
/// connection beside them gets through.
#[test]
fn peers_stalled_in_mid_frame_cost_the_budget_and_a_frame_each() {
    const BUDGET: usize = 1 << 20;
    let setup = Setup {
        config: DeviceConfig::default()
            .memory_budget(BUDGET)
            .partial_fpdu(Duration::from_millis(400)),
        limit: FpduLimit::Octets(64_000),
        requests: 8,
        entries: 16,
        ..Setup::default()
    };
    let (wire, _) = wire_of(&setup, |a| {
        let region = a.pattern(60_000, 1);
        a.qp.post_send(SendRequest::send(1, region.as_slice_all())).unwrap();
    });
    assert!(wire.len() > 60_000, "one large FPDU");
    let end = setup.end();
    let config = QpConfig::new(&end.send_cq).max_send_wr(8).max_recv_wr(8);
    let stalled: Vec<(QueuePair, TcpStream)> = (0..100)
        .map(|index| {
            let qp = end.pd.create_qp(&config).unwrap();
            let (mut peer, right) = tcp_pair();
            let socket = Socket::from_stream(right).unwrap();
            let negotiated = setup.negotiated(Role::Responder);
            qp.0.inner.start(socket, &negotiated, Vec::new(), None, setup.limit, None).unwrap();
            // Cut at another place each.
            peer.write_all(&wire[..=index * 590]).unwrap();
            (qp, peer)
        })
        .collect();
    let budget = end.device.0.driver().budget();
    until("the budget to be used up", || budget.used() > BUDGET - 68 * 1024);

    // The other side has a device of its own, and room.
    let other = Setup { config: DeviceConfig::default(), ..setup.clone() }.end();
    let pair = Pair { a: other, b: end };
    setup.join(&pair);
    let (near, far) = (pair.a.pattern(1 << 20, 2), pair.b.region(1 << 20));
    pair.a.qp.post_send(SendRequest::write(1, near.as_slice_all(), far.remote())).unwrap();
    let back = pair.a.region(1 << 20);
    pair.a.qp.post_send(SendRequest::read(2, back.as_slice_all(), far.remote())).unwrap();
    // Beyond the budget, no connection holds more than its part of an FPDU.
    let limit = BUDGET + (stalled.len() + 1) * wire.len();
    let mut most = 0;
    let mut done = 0;
    until("the connection beside them", || {
        most = most.max(pair.b.device.0.driver().budget().used());
        done += usize::from(pair.a.send_cq.poll_one().is_some_and(|wc| wc.is_success()));
        done == 2
    });
    assert!(most <= limit, "{most} octets held, the budget is {BUDGET}");
    assert!(content(&back) == content(&near));
    for (qp, _) in &stalled {
        until("the stalled to be given up", || qp.state() == QpState::Err);
    }
    until("all to be given back", || pair.b.device.0.driver().budget().used() == 0);
}

/// A program that polls while TCP is full learns what the peer says all the same.
#[test]
fn input_is_read_while_tcp_is_full() {
    let setup = Setup::default();
    let (wire, _) = wire_of(&setup, |a| {
        for id in 0..2 {
            a.qp.post_send(SendRequest::send_inline(id, b"heard")).unwrap();
        }
    });
    let (first, second) = wire.split_at(wire.len() / 2);
    let end = setup.end();
    let (mut peer, right) = tcp_pair();
    (0..2).for_each(|id| {
        end.qp.post_recv(RecvRequest::new(id, end.region(8).as_slice_all())).unwrap();
    });
    setup.start(&end, right, Role::Responder);
    peer.write_all(first).unwrap();
    assert_success(&end.received(), 0);
    let region = end.pattern(16 << 20, 4);
    let remote = crate::mem::RemoteMemory { addr: 0, len: 1 << 40, rkey: 1 };
    end.qp.post_send(SendRequest::write(2, region.as_slice_all(), remote)).unwrap();
    for _ in 0..1000 {
        assert!(end.recv_cq.poll_one().is_none());
    }
    peer.write_all(second).unwrap();
    let heard = (0..1000).any(|_| end.recv_cq.poll_one().is_some_and(|wc| wc.is_success()));
    assert!(heard, "a thousand polls found nothing");
    assert!(end.send_cq.poll_one().is_none(), "the peer has not read");
}

/// Peers that do not read hold up nobody, and their octets come when they do read.
#[test]
fn closed_windows_hold_what_does_not_fit_and_no_more() {
    const BUDGET: usize = 1 << 20;
    const PEERS: usize = 12;
    let setup = Setup {
        config: DeviceConfig::default().memory_budget(BUDGET),
        requests: 8,
        entries: 1024,
        ..Setup::default()
    };
    let end = setup.end();
    let config = QpConfig::new(&end.send_cq).recv_cq(&end.recv_cq);
    let region = end.pattern(8 << 20, 3);
    let remote = crate::mem::RemoteMemory { addr: 0, len: 1 << 40, rkey: 1 };
    let peers: Vec<(QueuePair, TcpStream)> = (0..PEERS)
        .map(|_| {
            let qp = end.pd.create_qp(&config).unwrap();
            let (left, peer) = tcp_pair();
            let socket = Socket::from_stream(left).unwrap();
            let negotiated = setup.negotiated(Role::Initiator);
            qp.0.inner.start(socket, &negotiated, Vec::new(), None, setup.limit, None).unwrap();
            qp.post_send(SendRequest::write(1, region.as_slice_all(), remote)).unwrap();
            (qp, peer)
        })
        .collect();
    let budget = end.device.0.driver().budget();
    assert!(budget.used() <= BUDGET + 256 * 1024, "{} octets held", budget.used());
    let readers: Vec<_> = peers
        .iter()
        .map(|(_, peer)| {
            let mut peer = peer.try_clone().unwrap();
            thread::spawn(move || {
                let mut octets = 0;
                let mut part = vec![0; 1 << 16];
                while octets < 8 << 20 {
                    octets += peer.read(&mut part).unwrap();
                }
            })
        })
        .collect();
    for _ in 0..PEERS {
        assert_success(&poll(&end.send_cq), 1);
    }
    for reader in readers {
        reader.join().unwrap();
    }
    until("all to be given back", || budget.used() == 0);
}

/// A peer hurts only its own connection: with the budget used up by peers that stop in each way there is,
/// and that nobody gives up, a connection beside them moves data in both directions.
#[test]
fn over_budget_a_connection_beside_stalled_ones_gets_through() {
    const BUDGET: usize = 1 << 20;
    const EACH: usize = 4;
    let long = Duration::from_hours(1);
    let setup = Setup {
        config: DeviceConfig::default().memory_budget(BUDGET).partial_fpdu(long).hold_back(long),
        limit: FpduLimit::Octets(64_000),
        ..Setup::default()
    };
    let roomy = Setup { config: DeviceConfig::default(), ..setup.clone() };
    let (wire, _) = wire_of(&roomy, |a| {
        let region = a.pattern(60_000, 1);
        a.qp.post_send(SendRequest::send(1, region.as_slice_all())).unwrap();
    });
    let end = setup.end();
    end.device.0.driver().charge(0, BUDGET);
    let config = QpConfig::new(&end.send_cq).recv_cq(&end.recv_cq);
    let start = |role| {
        let qp = end.pd.create_qp(&config).unwrap();
        let (peer, ours) = tcp_pair();
        let socket = Socket::from_stream(ours).unwrap();
        let negotiated = setup.negotiated(role);
        qp.0.inner.start(socket, &negotiated, Vec::new(), None, setup.limit, None).unwrap();
        (qp, peer)
    };
    let region = end.pattern(8 << 20, 3);
    let remote = crate::mem::RemoteMemory { addr: 0, len: 1 << 40, rkey: 1 };
    let mut stalled = Vec::new();
    for _ in 0..EACH {
        let (qp, mut peer) = start(Role::Responder);
        peer.write_all(&wire[..40_000]).unwrap();
        stalled.push((qp, peer));
        let (qp, mut peer) = start(Role::Responder);
        peer.write_all(&wire).unwrap();
        until("the hold", || qp.0.inner.is_held_back());
        stalled.push((qp, peer));
        let (qp, peer) = start(Role::Initiator);
        qp.post_send(SendRequest::write(1, region.as_slice_all(), remote)).unwrap();
        stalled.push((qp, peer));
    }
    let budget = end.device.0.driver().budget();
    until("the budget to be used up", || budget.used() >= BUDGET + EACH * 80_000);

    let pair = Pair { a: roomy.end(), b: end };
    setup.join(&pair);
    let (near, far) = (pair.a.pattern(1 << 20, 2), pair.b.region(1 << 20));
    let back = pair.a.region(1 << 20);
    pair.a.qp.post_send(SendRequest::write(1, near.as_slice_all(), far.remote())).unwrap();
    pair.a.qp.post_send(SendRequest::read(2, back.as_slice_all(), far.remote())).unwrap();
    let budget = pair.b.device.0.driver().budget();
    let limit = BUDGET + (stalled.len() + 2) * 68 * 1024;
    let mut done = 0;
    until("the connection beside them", || {
        assert!(budget.used() <= limit, "{} octets held", budget.used());
        done += usize::from(pair.a.send_cq.poll_one().is_some_and(|wc| wc.is_success()));
        done == 2
    });
    assert!(content(&back) == content(&near));
    // Whoever was held back goes on with a receive, still over the budget.
    let sink = pair.b.region(60_000);
    stalled[1].0.post_recv(RecvRequest::new(7, sink.as_slice_all())).unwrap();
    assert_success(&pair.b.received(), 7);
    assert!(budget.used() > BUDGET && stalled.iter().all(|(qp, _)| qp.state() == QpState::Rts));
}

/// Over budget, the loss of TCP is noticed: in mid-frame, and while a Send is held back.
#[test]
fn a_reset_is_noticed_over_budget() {
    let setup = Setup {
        config: DeviceConfig::default().memory_budget(1 << 20).hold_back(Duration::from_hours(1)),
        ..Setup::default()
    };
    let (wire, _) = wire_of(&setup, |a| {
        a.qp.post_send(SendRequest::send_inline(1, [7; 300])).unwrap();
    });
    for cut in [1, 100, wire.len()] {
        let end = setup.end();
        end.device.0.driver().charge(0, 1 << 20);
        let (mut peer, right) = tcp_pair();
        setup.start(&end, right, Role::Responder);
        peer.write_all(&wire[..cut]).unwrap();
        let budget = end.device.0.driver().budget();
        until("the octets to be held", || budget.used() >= (1 << 20) + cut);
        socket2::SockRef::from(&peer).set_linger(Some(Duration::ZERO)).unwrap();
        drop(peer);
        end.wait_state(QpState::Err);
        assert_eq!(end.device.stats().connections_lost, 1);
        until("all to be given back", || budget.used() == 1 << 20);
    }
}
