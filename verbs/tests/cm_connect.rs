//! The connecting side against a scripted responder: every outcome, every cut, every lie.
#![allow(clippy::unwrap_used, reason = "a failed step is a failed test")]

mod cm_support;

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use cm_support::*;
use iwarp_mpa::{Depth, Framing, Revision, RtrTypes, StartupFrame};
use iwarp_verbs::cm::{self, ConnParam, ConnectError, Connecting, Connection, Phase};
use iwarp_verbs::{Access, DeviceConfig, QpState, QueuePair, RecvRequest, SendRequest, WcStatus};

/// A connection to a responder that accepts as asked.
fn connected(world: &World, param: ConnParam) -> (Connection, Peer, StartupFrame) {
    let (listener, addr) = raw_listener();
    let connecting = cm::connect(addr, &world.qp(), param).unwrap();
    let mut peer = Peer::accept(&listener);
    let request = peer.read_request();
    peer.send_frame(&reply_to(&request, RtrTypes::WRITE, b""));
    (connecting.wait(GUARD).unwrap(), peer, request)
}

fn failure(connecting: Connecting) -> ConnectError {
    connecting.wait(GUARD).unwrap_err()
}

/// A client-server connection of revision 2 without extras, whose first FPDU is the program's own.
fn plain() -> ConnParam {
    ConnParam::default().rtr(RtrTypes::empty())
}

#[test]
fn a_request_by_default_asks_for_everything() {
    // Decision D15; MPA-004, MPA-051, CONN-21
    let (connection, _peer, request) = connected(&World::new(), ConnParam::default());
    assert_eq!(request.revision, 2);
    assert!(request.crc && !request.markers && !request.reject);
    let enhanced = request.enhanced.unwrap();
    assert!(enhanced.peer_to_peer);
    assert_eq!(enhanced.rtr, RtrTypes::all());
    assert!(enhanced.ird.count().unwrap() > 0 && enhanced.ord.count().unwrap() > 0);
    assert_eq!(connection.revision(), 2);
    assert!(connection.crc());
}

#[test]
fn revision_1_is_asked_for_plainly() {
    // CONN-05, FC-008
    let param = ConnParam::default().revision(Revision::V1).private_data([9; 512]);
    let (connection, _peer, request) = connected(&World::new(), param);
    assert_eq!((request.revision, request.enhanced), (1, None));
    assert_eq!(&request.private_data[..], [9; 512]);
    assert_eq!(connection.revision(), 1);
}

#[test]
fn fc_001_an_fpdu_glued_to_the_reply_is_not_private_data() {
    let world = World::new();
    let region = world.pd.alloc(64, Access::LOCAL_WRITE).unwrap();
    // Every cut of Reply and Send in two writes, and none at all.
    let joint = {
        let (listener, addr) = raw_listener();
        let qp = world.qp();
        let connecting = cm::connect(addr, &qp, plain()).unwrap();
        let mut peer = Peer::accept(&listener);
        let request = peer.read_request();
        let reply = reply_to(&request, RtrTypes::empty(), &[7; 16]).encode().unwrap();
        drop(connecting);
        (reply.len(), reply.len() + peer.send_fpdu(b"glued").len())
    };
    for cut in (0..=joint.1).step_by(3).chain([joint.0, joint.0 + 1]) {
        let (listener, addr) = raw_listener();
        let qp = world.qp();
        qp.post_recv(RecvRequest::new(5, region.slice(0..64).unwrap())).unwrap();
        let connecting = cm::connect(addr, &qp, plain()).unwrap();
        let mut peer = Peer::accept(&listener);
        let request = peer.read_request();
        let mut octets = reply_to(&request, RtrTypes::empty(), &[7; 16]).encode().unwrap().to_vec();
        octets.extend(peer.send_fpdu(b"glued"));
        peer.send(&octets[..cut]);
        if cut % 2 == 0 {
            std::thread::sleep(Duration::from_millis(1));
        }
        peer.send(&octets[cut..]);

        let connection = connecting.wait(GUARD).unwrap();
        assert_eq!(connection.private_data(), [7; 16], "cut at {cut}");
        let wc = &world.completions(1)[0];
        assert_eq!((wc.wr_id, wc.status, wc.byte_len), (5, WcStatus::Success, 5), "cut at {cut}");
    }
}

#[test]
fn fc_002_a_reply_in_pieces_establishes_once() {
    // MPA-037
    let world = World::new();
    let channel = world.channel();
    let (listener, addr) = raw_listener();
    let id = cm::Id::new(&channel);
    let qp = world.qp();
    id.connect(addr, &qp, plain()).unwrap();
    let mut peer = Peer::accept(&listener);
    let request = peer.read_request();
    let reply = reply_to(&request, RtrTypes::empty(), b"slow").encode().unwrap();
    let (last, first) = reply.split_last().unwrap();
    for octet in first {
        peer.send(&[*octet]);
        std::thread::sleep(Duration::from_millis(2));
    }
    expect_none(&channel);
    peer.send(&[*last]);
    let event = expect(&channel, cm::EventKind::Established);
    assert_eq!(&event.private_data[..], b"slow");
    expect_none(&channel);
}

#[test]
fn fc_002_one_octet_short_ends_in_the_time_out() {
    // MPA-010
    let world = World::new();
    let (listener, addr) = raw_listener();
    let connecting = cm::connect(addr, &world.qp(), plain().timeout(SHORT)).unwrap();
    let mut peer = Peer::accept(&listener);
    let request = peer.read_request();
    let reply = reply_to(&request, RtrTypes::empty(), b"short").encode().unwrap();
    peer.send(&reply[..reply.len() - 1]);
    let error = failure(connecting);
    assert!(matches!(error, ConnectError::TimedOut { phase: Phase::Reply, .. }), "{error}");
    peer.expect_end();
}

#[test]
fn fc_005_crc_is_in_force_if_either_side_wants_it() {
    // MPA-014, MPA-054, MPA-055
    let world = World::new();
    for (ours, theirs) in [(true, true), (true, false), (false, true), (false, false)] {
        let (listener, addr) = raw_listener();
        let connecting = cm::connect(addr, &world.qp(), plain().crc(ours)).unwrap();
        let mut peer = Peer::accept(&listener);
        let request = peer.read_request();
        assert_eq!(request.crc, ours);
        let reply = reply_to(&request, RtrTypes::empty(), b"");
        peer.send_frame(&StartupFrame { crc: theirs, ..reply });
        let connection = connecting.wait(GUARD).unwrap();
        assert_eq!(connection.crc(), ours || theirs);

        // A damaged CRC is fatal exactly when CRC is in force.
        let mut fpdu = peer.send_fpdu(b"");
        *fpdu.last_mut().unwrap() ^= 1;
        let region = world.pd.alloc(8, Access::LOCAL_WRITE).unwrap();
        connection.qp().post_recv(RecvRequest::new(1, region.as_slice_all())).unwrap();
        peer.send(&fpdu);
        let expected = if ours || theirs { WcStatus::WrFlushErr } else { WcStatus::Success };
        assert_eq!(world.completions(1)[0].status, expected, "ours {ours}, theirs {theirs}");
    }
}

#[test]
fn fc_006_a_peer_that_requires_markers_gets_them() {
    // MPA-011, MPA-013, MPA-030
    let world = World::new();
    let (listener, addr) = raw_listener();
    let connecting = cm::connect(addr, &world.qp(), plain()).unwrap();
    let mut peer = Peer::accept(&listener);
    let request = peer.read_request();
    assert!(!request.markers);
    let reply = reply_to(&request, RtrTypes::empty(), b"");
    peer.send_frame(&StartupFrame { markers: true, ..reply });
    peer.frame_with(Framing { send_markers: false, receive_markers: true, crc: true });
    let connection = connecting.wait(GUARD).unwrap();
    let region = world.pd.alloc(2000, Access::empty()).unwrap();
    for id in 0..4 {
        let send = SendRequest::send(id, region.as_slice_all());
        connection.qp().post_send(send).unwrap();
    }
    for _ in 0..4 {
        let mut left = 2000;
        while left > 0 {
            let ulpdu = peer.read_ulpdu().unwrap();
            assert_eq!(opcode(&ulpdu), SEND);
            left -= ulpdu.len() - 18;
        }
    }
    world.completions(4);
}

#[test]
fn fc_006_markers_asked_for_are_expected() {
    // MPA-011, MPA-012
    let world = World::new();
    let (connection, mut peer, request) = connected(&world, plain().markers(true));
    assert!(request.markers);
    peer.frame_with(Framing { send_markers: true, receive_markers: false, crc: true });
    let region = world.pd.alloc(2000, Access::LOCAL_WRITE).unwrap();
    connection.qp().post_recv(RecvRequest::new(1, region.as_slice_all())).unwrap();
    let fpdu = peer.send_fpdu(&[3; 1200]);
    peer.send(&fpdu);
    let wc = &world.completions(1)[0];
    assert_eq!((wc.status, wc.byte_len), (WcStatus::Success, 1200));
}

#[test]
fn fc_007_the_fallback_to_revision_1_is_tried_once() {
    // CONN-08
    let world = World::new();
    let (listener, addr) = raw_listener();
    let param = ConnParam::default().private_data(b"same");
    let connecting = cm::connect(addr, &world.qp(), param).unwrap();
    let mut first = Peer::accept(&listener);
    assert_eq!(first.read_request().revision, 2);
    first.reset();
    let mut second = Peer::accept(&listener);
    let request = second.read_request();
    assert_eq!((request.revision, &request.private_data[..]), (1, &b"same"[..]));
    second.send_frame(&reply_to(&request, RtrTypes::empty(), b"old"));
    let connection = connecting.wait(GUARD).unwrap();
    assert_eq!((connection.revision(), connection.private_data()), (1, &b"old"[..]));
}

#[test]
fn fc_007_a_peer_that_resets_both_is_asked_twice() {
    let world = World::new();
    let channel = world.channel();
    let (listener, addr) = raw_listener();
    let id = cm::Id::new(&channel);
    let qp = world.qp();
    id.connect(addr, &qp, ConnParam::default()).unwrap();
    for revision in [2, 1] {
        let mut peer = Peer::accept(&listener);
        assert_eq!(peer.read_request().revision, revision);
        peer.reset();
    }
    let event = expect(&channel, cm::EventKind::Rejected);
    let status = event.status.unwrap();
    assert!(matches!(status, ConnectError::Closed { phase: Phase::Reply, .. }), "{status}");
    expect_none(&channel);
    listener.set_nonblocking(true).unwrap();
    assert!(listener.accept().is_err(), "a third attempt");
}

#[test]
fn fc_007_no_fallback_where_it_cannot_help() {
    let world = World::new();
    // Switched off, nothing left to fall back to, or an answer that shows that the peer knows revision
    // 2.
    let reset: fn(Peer, StartupFrame) = |peer, _| peer.reset();
    let reject: fn(Peer, StartupFrame) = |mut peer, request| {
        peer.send_frame(&StartupFrame { reject: true, ..reply_to(&request, RtrTypes::READ, b"") });
        peer.expect_fin();
    };
    for (param, answer) in [
        (ConnParam::default().fallback(false), reset),
        (ConnParam::default().revision(Revision::V1), reset),
        (ConnParam::default(), reject),
    ] {
        let (listener, addr) = raw_listener();
        let connecting = cm::connect(addr, &world.qp(), param).unwrap();
        let mut peer = Peer::accept(&listener);
        let request = peer.read_request();
        answer(peer, request);
        let error = failure(connecting);
        assert!(
            matches!(error, ConnectError::Closed { .. } | ConnectError::Rejected { .. }),
            "{error}"
        );
        listener.set_nonblocking(true).unwrap();
        assert!(listener.accept().is_err(), "another attempt after {error}");
    }
}

#[test]
fn fc_009_the_rtr_comes_first_and_shows_nowhere() {
    // FC-036, CONN-09, CONN-24, decision D12
    for (offered, named, first) in [
        (RtrTypes::all(), RtrTypes::WRITE, WRITE),
        (RtrTypes::all(), RtrTypes::READ, READ_REQUEST),
        (RtrTypes::all(), RtrTypes::SEND, SEND),
        (RtrTypes::all(), RtrTypes::all(), WRITE),
        (RtrTypes::SEND | RtrTypes::READ, RtrTypes::SEND | RtrTypes::READ, READ_REQUEST),
        (RtrTypes::SEND, RtrTypes::all(), SEND),
    ] {
        let world = World::new();
        let (listener, addr) = raw_listener();
        let qp = world.qp();
        let connecting = cm::connect(addr, &qp, ConnParam::default().rtr(offered)).unwrap();
        let mut peer = Peer::accept(&listener);
        let request = peer.read_request();
        assert_eq!(request.enhanced.unwrap().rtr, offered);
        peer.send_frame(&reply_to(&request, named, b""));
        let connection = connecting.wait(GUARD).unwrap();
        qp.post_send(SendRequest::send_inline(1, b"mine")).unwrap();
        let rtr = peer.read_ulpdu().unwrap();
        assert_eq!(opcode(&rtr), first);
        assert_eq!(
            rtr.len(),
            if first == WRITE {
                14
            } else if first == SEND {
                18
            } else {
                46
            }
        );
        let mine = peer.read_ulpdu().unwrap();
        assert_eq!((opcode(&mine), &mine[18..]), (SEND, &b"mine"[..]));
        assert_eq!(world.completions(1)[0].wr_id, 1);
        // FC-036: then the end, and nothing more than what was posted.
        peer.reset();
        assert!(connection.wait_closed(GUARD).is_some());
        assert_eq!(world.cq.poll_one().map(|wc| wc.wr_id), None);
    }
}

#[test]
fn fc_009_without_an_rtr_in_common_a_terminate_says_so() {
    // CONN-25, CONN-30
    let world = World::new();
    for lie in [RtrTypes::READ, RtrTypes::empty()] {
        let channel = world.channel();
        let (listener, addr) = raw_listener();
        let id = cm::Id::new(&channel);
        let qp = world.qp();
        id.connect(addr, &qp, ConnParam::default().rtr(RtrTypes::WRITE)).unwrap();
        let mut peer = Peer::accept(&listener);
        let request = peer.read_request();
        peer.send_frame(&reply_to(&request, lie, b""));
        let ulpdu = peer.read_ulpdu().unwrap();
        assert_eq!(terminate_code(&ulpdu), 0x2007);
        peer.expect_fin();
        let event = expect(&channel, cm::EventKind::ConnectError);
        assert!(matches!(event.status, Some(ConnectError::NoCommonRtr { .. })));
        expect_none(&channel);
    }
}

#[test]
fn conn_17_a_peer_that_wants_more_reads_than_there_is_room_for_is_told() {
    // CONN-17, CONN-30
    let world = World::new();
    let (listener, addr) = raw_listener();
    let qp = world.qp();
    let connecting = cm::connect(addr, &qp, plain().ird(4)).unwrap();
    let mut peer = Peer::accept(&listener);
    let request = peer.read_request();
    let mut reply = reply_to(&request, RtrTypes::empty(), b"");
    if let Some(enhanced) = &mut reply.enhanced {
        enhanced.ord = Depth::Count(5);
    }
    peer.send_frame(&reply);
    assert_eq!(terminate_code(&peer.read_ulpdu().unwrap()), 0x2006);
    peer.expect_fin();
    let error = failure(connecting);
    assert!(matches!(error, ConnectError::InsufficientIrd { .. }), "{error}");
    drop(peer);
    wait_for_state(&qp, QpState::Err);
}

#[test]
fn conn_27_a_queue_pair_lost_during_set_up_ends_in_a_terminate() {
    // CONN-27
    let world = World::new();
    let (listener, addr) = raw_listener();
    let qp = world.qp();
    let connecting = cm::connect(addr, &qp, plain()).unwrap();
    let mut peer = Peer::accept(&listener);
    let request = peer.read_request();
    qp.modify(QpState::Err).unwrap();
    peer.send_frame(&reply_to(&request, RtrTypes::empty(), b""));
    assert_eq!(terminate_code(&peer.read_ulpdu().unwrap()), 0x2005);
    peer.expect_fin();
    let error = failure(connecting);
    assert!(matches!(error, ConnectError::QueuePair(_)), "{error}");
}

fn wait_for_state(qp: &QueuePair, state: QpState) {
    let started = Instant::now();
    while qp.state() != state {
        assert!(started.elapsed() < GUARD, "still {:?}", qp.state());
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn fc_011_depths_are_each_others_ceilings() {
    // CONN-11, CONN-16
    let world = World::new();
    let channel = world.channel();
    let (listener, addr) = raw_listener();
    let id = cm::Id::new(&channel);
    let qp = world.qp();
    id.connect(addr, &qp, plain().ird(7).ord(3)).unwrap();
    let mut peer = Peer::accept(&listener);
    let request = peer.read_request();
    let asked = request.enhanced.unwrap();
    assert_eq!((asked.ird, asked.ord), (Depth::Count(7), Depth::Count(3)));
    let mut reply = reply_to(&request, RtrTypes::empty(), b"");
    if let Some(enhanced) = &mut reply.enhanced {
        (enhanced.ird, enhanced.ord) = (Depth::Count(2), Depth::Count(5));
    }
    peer.send_frame(&reply);
    let event = expect(&channel, cm::EventKind::Established);
    assert_eq!((event.initiator_depth, event.responder_resources), (2, 5));
    let attributes = qp.query();
    assert_eq!((attributes.ird, attributes.ord), (7, 2));

    // No more Reads are outstanding than the peer can hold.
    let region = world.pd.alloc(64, Access::LOCAL_WRITE).unwrap();
    let remote = region.remote();
    for id in 0..4 {
        qp.post_send(SendRequest::read(id, region.slice(0..8).unwrap(), remote)).unwrap();
    }
    for _ in 0..2 {
        assert_eq!(opcode(&peer.read_ulpdu().unwrap()), READ_REQUEST);
    }
    peer.expect_silence();
}

#[test]
fn fc_012_a_rejection_carries_its_reason() {
    // MPA-027, CONN-11
    let world = World::new();
    for reason in [&b""[..], &[1; 1], &[2; 148], &[3; 508]] {
        let (listener, addr) = raw_listener();
        let connecting = cm::connect(addr, &world.qp(), ConnParam::default()).unwrap();
        let mut peer = Peer::accept(&listener);
        let request = peer.read_request();
        let mut reply = reply_to(&request, RtrTypes::WRITE, reason);
        reply.reject = true;
        if let Some(enhanced) = &mut reply.enhanced {
            (enhanced.ird, enhanced.ord) = (Depth::Count(1), Depth::NotNegotiated);
        }
        peer.send_frame(&reply);
        match failure(connecting) {
            ConnectError::Rejected { addr: from, private_data, ird, ord } => {
                assert_eq!((from, &private_data[..]), (addr, reason));
                assert_eq!((ird, ord), (Some(1), None));
            }
            other => panic!("{other}"),
        }
        peer.expect_fin();
    }
}

#[test]
fn fc_014_private_data_is_copied_by_the_call() {
    let world = World::new();
    let (listener, addr) = raw_listener();
    let qp = world.qp();
    let mut buffer = vec![0xaa; 200];
    let param = ConnParam::default().private_data(&buffer);
    let _connecting = cm::connect(addr, &qp, param).unwrap();
    buffer.fill(0x55);
    drop(buffer);
    let mut peer = Peer::accept(&listener);
    assert_eq!(&peer.read_request().private_data[..], [0xaa; 200]);
}

#[test]
fn settings_of_the_device_are_the_defaults() {
    // FC-008: and each connection may have its own.
    let config = DeviceConfig::default()
        .crc(false)
        .markers(true)
        .mpa_revision(Revision::V2)
        .peer_to_peer(RtrTypes::READ)
        .ird(3)
        .ord(5);
    let world = World::with(config);
    let asked = |param: ConnParam| {
        let (listener, addr) = raw_listener();
        let qp = world.qp();
        let _connecting = cm::connect(addr, &qp, param).unwrap();
        Peer::accept(&listener).read_request()
    };
    let request = asked(ConnParam::default());
    assert!(!request.crc && request.markers);
    let enhanced = request.enhanced.unwrap();
    assert_eq!((enhanced.ird, enhanced.ord), (Depth::Count(3), Depth::Count(5)));
    assert_eq!(enhanced.rtr, RtrTypes::READ);
    let own = ConnParam::default().crc(true).markers(false).ird(1).ord(2).rtr(RtrTypes::SEND);
    let request = asked(own);
    assert!(request.crc && !request.markers);
    let enhanced = request.enhanced.unwrap();
    assert_eq!((enhanced.ird, enhanced.ord), (Depth::Count(1), Depth::Count(2)));
    assert_eq!(enhanced.rtr, RtrTypes::SEND);
}

#[test]
fn a_bound_id_connects_from_its_address() {
    let world = World::new();
    let channel = world.channel();
    let (listener, addr) = raw_listener();
    let id = cm::Id::new(&channel);
    id.bind("127.0.0.1:0", cm::BindOptions::default()).unwrap();
    let local: SocketAddr = id.local_addr().unwrap();
    assert_ne!(local.port(), 0);
    let qp = world.qp();
    id.connect(addr, &qp, ConnParam::default()).unwrap();
    let mut peer = Peer::accept(&listener);
    assert_eq!(peer.stream.peer_addr().unwrap(), local);
    let request = peer.read_request();
    peer.send_frame(&reply_to(&request, RtrTypes::WRITE, b""));
    expect(&channel, cm::EventKind::Established);
    assert_eq!(id.local_addr(), Some(local));
    assert_eq!(id.peer_addr(), Some(addr));
}
