//! The accepting side against a scripted initiator: strangers that lie, and friends that leave.
#![allow(clippy::unwrap_used, reason = "a failed step is a failed test")]

mod cm_support;

use std::io::Write as _;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Wake, Waker};
use std::thread;
use std::time::{Duration, Instant};

use cm_support::*;
use iwarp_mpa::{Depth, Framing, RtrTypes, StartupFrame};
use iwarp_verbs::cm::{self, ConnParam, ConnectError, EventKind, Listener, Phase};
use iwarp_verbs::{Access, DeviceConfig, RecvRequest, SendRequest, WcStatus};

/// A peer whose Request has come in.
fn requested(listener: &Listener, request: &StartupFrame) -> (cm::ConnectRequest, Peer) {
    let mut peer = Peer::connect(listener.local_addr());
    peer.send_frame(request);
    (listener.accept(GUARD).unwrap(), peer)
}

#[test]
fn mpa_005_nothing_is_said_before_a_request() {
    let world = World::new();
    let listener = world.listener();
    let mut peer = Peer::connect(listener.local_addr());
    peer.expect_silence();
    let request = request_v2(1, 1, b"").encode().unwrap();
    let (last, first) = request.split_last().unwrap();
    peer.send(first);
    peer.expect_silence();
    assert!(listener.try_accept().is_none());
    peer.send(&[*last]);
    let request = listener.accept(GUARD).unwrap();
    // The program takes its time, and nothing is said either.
    peer.expect_silence();
    assert_eq!(request.peer_addr(), peer.stream.local_addr().unwrap());
    assert_eq!(request.local_addr(), listener.local_addr());
}

#[test]
fn fc_004_a_bad_request_costs_only_its_connection() {
    // MPA-006, MPA-018, MPA-020, MPA-022, MPA-085, SEC-22
    let world = World::with(DeviceConfig::default().accept_timeout(SHORT));
    let listener = world.listener();
    let mut wrong_key = request_v1(b"").encode().unwrap().to_vec();
    wrong_key[3] ^= 0x20;
    let with = |position: usize, octets: &[u8]| {
        let mut frame = request_v1(b"").encode().unwrap().to_vec();
        frame[position..position + octets.len()].copy_from_slice(octets);
        frame
    };
    for (what, octets) in [
        ("wrong key", wrong_key),
        ("a Reply", reply_to(&request_v1(b""), RtrTypes::empty(), b"").encode().unwrap().to_vec()),
        ("HTTP", b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n".to_vec()),
        ("revision 200", with(17, &[200])),
        ("513 octets", with(18, &513u16.to_be_bytes())),
        ("65535 octets", with(18, &u16::MAX.to_be_bytes())),
        ("data behind the Request", [&request_v1(b"").encode().unwrap()[..], b"more"].concat()),
    ] {
        let mut peer = Peer::connect(listener.local_addr());
        peer.send(&octets);
        peer.expect_end();
        assert!(listener.try_accept().is_none(), "{what}");
    }
    // Half a key, and then FIN, reset, or silence.
    let half = &request_v1(b"").encode().unwrap()[..7];
    let mut peer = Peer::connect(listener.local_addr());
    peer.send(half);
    peer.fin();
    peer.expect_end();
    let mut peer = Peer::connect(listener.local_addr());
    peer.send(half);
    peer.reset();
    let mut peer = Peer::connect(listener.local_addr());
    peer.send(half);
    peer.expect_end();
    // MPA-009: silent from the start.
    Peer::connect(listener.local_addr()).expect_end();

    let (request, _peer) = requested(&listener, &request_v1(b"good"));
    assert_eq!(request.private_data(), b"good");
}

#[test]
fn mpa_018_revision_0_is_told_which_revision_would_do() {
    let world = World::new();
    let listener = world.listener();
    let mut peer = Peer::connect(listener.local_addr());
    let mut frame = request_v1(b"").encode().unwrap().to_vec();
    frame[17] = 0;
    peer.send(&frame);
    let reply = peer.read_reply();
    assert!(reply.reject);
    assert_eq!(reply.revision, 1);
    peer.expect_end();
}

#[test]
fn mpa_010_a_request_that_trickles_has_no_more_time_than_others() {
    let world = World::with(DeviceConfig::default().accept_timeout(SHORT * 2));
    let listener = world.listener();
    let mut peer = Peer::connect(listener.local_addr());
    let request = request_v1(&[0; 512]).encode().unwrap();
    let started = Instant::now();
    for octet in request.iter().cycle() {
        if peer.stream.write_all(&[*octet]).is_err() {
            break;
        }
        assert!(started.elapsed() < GUARD, "still open");
        std::thread::sleep(Duration::from_millis(20));
    }
    assert!(listener.try_accept().is_none());
}

#[test]
fn sec_22_silent_strangers_do_not_lock_out_honest_ones() {
    // SEC-22: more of them than there are places, with a time-out that does not help.
    let config = DeviceConfig::default().max_pending_handshakes(8).accept_timeout(GUARD * 10);
    let world = World::with(config);
    let listener = world.listener();
    let silent: Vec<_> = (0..16).map(|_| Peer::connect(listener.local_addr())).collect();
    let (request, _peer) = requested(&listener, &request_v1(b"honest"));
    assert_eq!(request.private_data(), b"honest");
    // The oldest made room.
    let mut silent = silent.into_iter();
    silent.next().unwrap().expect_end();
}

#[test]
fn fc_008_revision_1_is_served_plainly() {
    // CONN-02, CONN-04, CONN-06
    let world = World::new();
    let listener = world.listener();
    let words = [0, 0, 0, 4, 0, 0, 0, 8];
    let (request, mut peer) = requested(&listener, &request_v1(&words));
    assert_eq!(request.private_data(), words);
    assert_eq!((request.peer_ird(), request.peer_ord()), (None, None));
    let qp = world.qp();
    let accepting = request.accept(&qp, ConnParam::default().private_data([1; 512])).unwrap();
    let reply = peer.read_reply();
    assert_eq!((reply.revision, reply.enhanced, reply.reject), (1, None, false));
    assert_eq!(&reply.private_data[..], [1; 512]);
    let connection = accepting.wait(GUARD).unwrap();
    assert_eq!(connection.revision(), 1);
    assert_eq!(connection.private_data(), words);
}

#[test]
fn fc_008_two_listeners_of_one_process_may_differ() {
    let world = World::new();
    let strict = world.listener();
    let lax = world.listener();
    for (listener, param, crc, markers) in [
        (&strict, ConnParam::default().crc(true).markers(true), true, true),
        (&lax, ConnParam::default().crc(false).markers(false), false, false),
    ] {
        let (request, mut peer) =
            requested(listener, &StartupFrame { crc: false, ..request_v1(b"") });
        let accepting = request.accept(&world.qp(), param).unwrap();
        let reply = peer.read_reply();
        assert_eq!((reply.crc, reply.markers), (crc, markers));
        drop(accepting);
    }
}

#[test]
fn fc_005_crc_is_in_force_if_either_side_wants_it() {
    // MPA-014
    let world = World::new();
    let listener = world.listener();
    for (ours, theirs) in [(true, true), (true, false), (false, true), (false, false)] {
        let (request, mut peer) =
            requested(&listener, &StartupFrame { crc: theirs, ..request_v1(b"") });
        let qp = world.qp();
        let region = world.pd.alloc(8, Access::LOCAL_WRITE).unwrap();
        qp.post_recv(RecvRequest::new(1, region.as_slice_all())).unwrap();
        let accepting = request.accept(&qp, ConnParam::default().crc(ours)).unwrap();
        assert_eq!(peer.read_reply().crc, ours || theirs);
        let connection = accepting.wait(GUARD).unwrap();
        assert_eq!(connection.crc(), ours || theirs);
        let mut fpdu = peer.send_fpdu(b"");
        *fpdu.last_mut().unwrap() ^= 1;
        peer.send(&fpdu);
        let expected = if ours || theirs { WcStatus::WrFlushErr } else { WcStatus::Success };
        assert_eq!(world.completions(1)[0].status, expected, "ours {ours}, theirs {theirs}");
    }
}

#[test]
fn fc_006_each_side_gets_the_markers_it_requires() {
    // MPA-011, MPA-012, MPA-013, MPA-030
    let world = World::new();
    let listener = world.listener();
    for (ours, theirs) in [(false, true), (true, false), (true, true)] {
        let (request, mut peer) =
            requested(&listener, &StartupFrame { markers: theirs, ..request_v1(b"") });
        let qp = world.qp();
        let region = world.pd.alloc(3000, Access::LOCAL_WRITE).unwrap();
        region.write_at(0, &[8; 3000]).unwrap();
        qp.post_recv(RecvRequest::new(1, region.as_slice_all())).unwrap();
        let accepting = request.accept(&qp, ConnParam::default().markers(ours)).unwrap();
        assert_eq!(peer.read_reply().markers, ours);
        peer.frame_with(Framing { send_markers: ours, receive_markers: theirs, crc: true });
        let _connection = accepting.wait(GUARD).unwrap();
        let first = peer.send_fpdu(&[7; 1500]);
        peer.send(&first);
        let wc = &world.completions(1)[0];
        assert_eq!((wc.status, wc.byte_len), (WcStatus::Success, 1500));
        qp.post_send(SendRequest::send(2, region.slice(1500..3000).unwrap())).unwrap();
        let mut received = Vec::new();
        while received.len() < 1500 {
            received.extend_from_slice(&peer.read_ulpdu().unwrap()[18..]);
        }
        assert_eq!(received, [8; 1500]);
        world.completions(1);
    }
}

#[test]
fn mpa_029_the_responder_waits_for_the_first_fpdu() {
    // Client-server model: established when the Reply is out, and silent until spoken to.
    let world = World::new();
    let listener = world.listener();
    let (request, mut peer) = requested(&listener, &request_v2(4, 4, b""));
    let qp = world.qp();
    let region = world.pd.alloc(8, Access::LOCAL_WRITE).unwrap();
    qp.post_recv(RecvRequest::new(1, region.as_slice_all())).unwrap();
    let accepting = request.accept(&qp, ConnParam::default()).unwrap();
    peer.read_reply();
    let connection = accepting.wait(GUARD).unwrap();
    connection.qp().post_send(SendRequest::send_inline(2, b"early")).unwrap();
    peer.expect_silence();
    let first = peer.send_fpdu(b"first");
    peer.send(&first);
    let ulpdu = peer.read_ulpdu().unwrap();
    assert_eq!(&ulpdu[18..], b"early");
    let mut ids: Vec<_> = world.completions(2).iter().map(|wc| wc.wr_id).collect();
    ids.sort_unstable();
    assert_eq!(ids, [1, 2]);
}

#[test]
fn fc_009_the_rtr_establishes_and_shows_nowhere() {
    // CONN-22, CONN-23, CONN-29, FC-036
    for (asked, named) in [
        (RtrTypes::all(), RtrTypes::WRITE),
        (RtrTypes::SEND | RtrTypes::READ, RtrTypes::READ),
        (RtrTypes::SEND, RtrTypes::SEND),
        (RtrTypes::WRITE, RtrTypes::WRITE),
    ] {
        let world = World::new();
        let channel = world.channel();
        let listening = cm::Id::new(&channel);
        listening.bind("127.0.0.1:0", cm::BindOptions::default()).unwrap();
        listening.listen(0).unwrap();
        let mut peer = Peer::connect(listening.local_addr().unwrap());
        peer.send_frame(&request_p2p(asked));
        let event = expect(&channel, EventKind::ConnectRequest);
        let qp = world.qp();
        let region = world.pd.alloc(8, Access::LOCAL_WRITE).unwrap();
        qp.post_recv(RecvRequest::new(1, region.as_slice_all())).unwrap();
        event.id.accept(&qp, ConnParam::default()).unwrap();
        let reply = peer.read_reply();
        let enhanced = reply.enhanced.unwrap();
        assert!(enhanced.peer_to_peer);
        assert_eq!(enhanced.rtr, named);
        expect_none(&channel);
        peer.expect_silence();

        let rtr = match named {
            RtrTypes::WRITE => write_ulpdu(1, 0, b""),
            RtrTypes::READ => read_ulpdu(),
            _ => send_ulpdu(1, b""),
        };
        let rtr = peer.fpdu(&rtr);
        peer.send(&rtr);
        let event = expect(&channel, EventKind::Established);
        assert!(event.private_data.is_empty());
        // The server may speak first.
        qp.post_send(SendRequest::send_inline(2, b"welcome")).unwrap();
        loop {
            let ulpdu = peer.read_ulpdu().unwrap();
            if opcode(&ulpdu) == SEND {
                assert_eq!(&ulpdu[18..], b"welcome");
                break;
            }
            assert_eq!(named, RtrTypes::READ, "only a Read is answered");
        }
        assert_eq!(world.completions(1)[0].wr_id, 2);
        peer.reset();
        expect(&channel, EventKind::Disconnected);
        // The receive is still there to be flushed, and that is all.
        let flushed = &world.completions(1)[0];
        assert_eq!((flushed.wr_id, flushed.status), (1, WcStatus::WrFlushErr));
        assert!(world.cq.poll_one().is_none());
    }
}

/// A Read Request of no octets, as an RTR.
fn read_ulpdu() -> Vec<u8> {
    let mut ulpdu = vec![0x41, 0x41, 0, 0, 0, 0];
    for word in [1u32, 1, 0] {
        ulpdu.extend_from_slice(&word.to_be_bytes());
    }
    ulpdu.extend_from_slice(&[0; 28]);
    ulpdu
}

#[test]
fn conn_29_without_the_rtr_nothing_is_established() {
    let world = World::new();
    let listener = world.listener();
    // Never sent.
    let (request, mut peer) = requested(&listener, &request_p2p(RtrTypes::all()));
    let accepting = request.accept(&world.qp(), ConnParam::default().timeout(SHORT)).unwrap();
    peer.read_reply();
    let error = accepting.wait(GUARD).unwrap_err();
    assert!(matches!(error, ConnectError::TimedOut { phase: Phase::Rtr, .. }), "{error}");
    peer.expect_end();
    // The peer leaves instead, or talks nonsense.
    let leave: fn(Peer) = |peer| peer.reset();
    let close: fn(Peer) = |peer| peer.fin();
    let nonsense: fn(Peer) = |mut peer| peer.send(&[0xff; 8 * 1024]);
    for instead in [leave, close, nonsense] {
        let channel = world.channel();
        let listening = cm::Id::new(&channel);
        listening.bind("127.0.0.1:0", cm::BindOptions::default()).unwrap();
        listening.listen(0).unwrap();
        let mut peer = Peer::connect(listening.local_addr().unwrap());
        peer.send_frame(&request_p2p(RtrTypes::all()));
        let event = expect(&channel, EventKind::ConnectRequest);
        let qp = world.qp();
        event.id.accept(&qp, ConnParam::default()).unwrap();
        peer.read_reply();
        instead(peer);
        // FC-045
        let event = expect(&channel, EventKind::ConnectError);
        assert!(matches!(event.status, Some(ConnectError::Ended { .. })), "{event:?}");
        expect_none(&channel);
    }
}

#[test]
fn fc_010_depths_of_zero_are_depths() {
    // CONN-28, RDMAP-063
    let world = World::new();
    let listener = world.listener();
    let (request, mut peer) = requested(&listener, &request_v2(0, 0, b""));
    assert_eq!((request.peer_ird(), request.peer_ord()), (Some(0), Some(0)));
    let qp = world.qp();
    let region = world.pd.alloc(8, Access::LOCAL_WRITE).unwrap();
    qp.post_recv(RecvRequest::new(1, region.as_slice_all())).unwrap();
    let accepting = request.accept(&qp, ConnParam::default().ird(0).ord(0)).unwrap();
    let enhanced = peer.read_reply().enhanced.unwrap();
    assert_eq!((enhanced.ird, enhanced.ord), (Depth::Count(0), Depth::Count(0)));
    let connection = accepting.wait(GUARD).unwrap();
    assert_eq!((connection.ird(), connection.ord()), (0, 0));
    let first = peer.send_fpdu(b"x");
    peer.send(&first);
    assert_eq!(world.completions(1)[0].status, WcStatus::Success);
    let remote = region.remote();
    // What is no Read goes on as ever.
    qp.post_send(SendRequest::write_inline(2, b"written", remote)).unwrap();
    qp.post_send(SendRequest::send_inline(3, b"sent")).unwrap();
    assert_eq!(&peer.read_ulpdu().unwrap()[14..], b"written");
    assert_eq!(&peer.read_ulpdu().unwrap()[18..], b"sent");
    assert!(world.completions(2).iter().all(|done| done.status == WcStatus::Success));
    qp.post_send(SendRequest::read(4, region.slice(0..8).unwrap(), remote)).unwrap();
    assert_eq!(world.completions(1)[0].status, WcStatus::LocQpOpErr);

    // Nor may the peer read (RDMAP-031): there is no place for its request.
    let (request, mut peer) = requested(&listener, &request_v2(0, 0, b""));
    let qp = world.qp();
    let accepting = request.accept(&qp, ConnParam::default().ird(0).ord(0)).unwrap();
    peer.read_reply();
    let _connection = accepting.wait(GUARD).unwrap();
    let read = peer.fpdu(&read_ulpdu());
    peer.send(&read);
    // DDP, untagged buffer, no buffer.
    assert_eq!(terminate_code(&peer.read_ulpdu().unwrap()), 0x1202);
    peer.expect_fin();
}

#[test]
fn fc_011_depths_are_each_others_ceilings() {
    // CONN-11, CONN-12, CONN-13
    let world = World::new();
    let channel = world.channel();
    let listening = cm::Id::new(&channel);
    listening.bind("127.0.0.1:0", cm::BindOptions::default()).unwrap();
    listening.listen(0).unwrap();
    let mut peer = Peer::connect(listening.local_addr().unwrap());
    peer.send_frame(&request_v2(7, 3, b"who"));
    let event = expect(&channel, EventKind::ConnectRequest);
    assert_eq!((event.responder_resources, event.initiator_depth), (3, 7));
    assert_eq!(&event.private_data[..], b"who");
    assert_eq!(event.listener.as_ref(), Some(&listening));
    assert_eq!(event.peer, Some(peer.stream.local_addr().unwrap()));
    let qp = world.qp();
    event.id.accept(&qp, ConnParam::default().ird(2).ord(5)).unwrap();
    let enhanced = peer.read_reply().enhanced.unwrap();
    assert_eq!((enhanced.ird, enhanced.ord), (Depth::Count(2), Depth::Count(5)));
    expect(&channel, EventKind::Established);
    assert_eq!((qp.query().ird, qp.query().ord), (2, 5));

    // An ORD above what the peer holds is lowered.
    let mut peer = Peer::connect(listening.local_addr().unwrap());
    peer.send_frame(&request_v2(3, 3, b""));
    let event = expect(&channel, EventKind::ConnectRequest);
    let qp = world.qp();
    event.id.accept(&qp, ConnParam::default().ird(9).ord(9)).unwrap();
    let enhanced = peer.read_reply().enhanced.unwrap();
    assert_eq!((enhanced.ird, enhanced.ord), (Depth::Count(9), Depth::Count(3)));
    expect(&channel, EventKind::Established);
    assert_eq!(qp.query().ord, 3);
}

#[test]
fn fc_012_a_rejection_arrives_whole() {
    // MPA-023, MPA-024, CONN-06
    let world = World::new();
    let listener = world.listener();
    for (frame, reason) in [
        (request_v1(b""), vec![]),
        (request_v1(b""), vec![1]),
        (request_v1(b""), vec![2; 148]),
        (request_v1(b""), vec![3; 512]),
        (request_v2(4, 4, b""), vec![4; 508]),
        (request_p2p(RtrTypes::all()), vec![5; 10]),
    ] {
        let (request, mut peer) = requested(&listener, &frame);
        // The peer has something unread on its way, which would turn a hasty close into a reset.
        peer.send(b"impatient");
        std::thread::sleep(Duration::from_millis(5));
        request.reject(&reason).unwrap();
        let reply = peer.read_reply();
        assert!(reply.reject);
        assert_eq!(reply.revision, frame.revision);
        assert_eq!(reply.enhanced.is_some(), frame.enhanced.is_some());
        assert_eq!(&reply.private_data[..], reason);
        peer.expect_fin();
    }
}

#[test]
fn a_request_that_is_let_go_is_rejected() {
    let world = World::new();
    let listener = world.listener();
    let (request, mut peer) = requested(&listener, &request_v1(b""));
    drop(request);
    let reply = peer.read_reply();
    assert!(reply.reject && reply.private_data.is_empty());
    peer.expect_fin();

    // As are those that nobody took when the listener goes.
    let mut peer = Peer::connect(listener.local_addr());
    peer.send_frame(&request_v1(b""));
    let started = Instant::now();
    while !format!("{listener:?}").contains("waiting: 1") {
        assert!(started.elapsed() < GUARD);
        std::thread::sleep(Duration::from_millis(1));
    }
    drop(listener);
    assert!(peer.read_reply().reject);
    peer.expect_fin();
}

#[test]
fn a_rejection_outlives_the_device() {
    let World { device, pd, cq } = World::new();
    let listener = Listener::bind(&device, "127.0.0.1:0", cm::ListenConfig::default()).unwrap();
    let (request, mut peer) = requested(&listener, &request_v1(b""));
    request.reject(b"closing down").unwrap();
    drop((listener, device, pd, cq));
    assert_eq!(&peer.read_reply().private_data[..], b"closing down");
    peer.expect_fin();
}

#[test]
fn reasons_that_do_not_fit_are_refused_by_the_call() {
    // MPA-021
    let world = World::new();
    let channel = world.channel();
    let listening = cm::Id::new(&channel);
    listening.bind("127.0.0.1:0", cm::BindOptions::default()).unwrap();
    listening.listen(0).unwrap();
    let mut peer = Peer::connect(listening.local_addr().unwrap());
    peer.send_frame(&request_v2(1, 1, b""));
    let id = expect(&channel, EventKind::ConnectRequest).id;
    let qp = world.qp();
    assert!(matches!(id.reject(&[0; 509]), Err(ConnectError::Param(_))));
    let param = ConnParam::default().private_data([0; 509]);
    assert!(matches!(id.accept(&qp, param), Err(ConnectError::Param(_))));
    // Nothing was sent, and the request still waits.
    peer.expect_silence();
    id.accept(&qp, ConnParam::default().private_data([6; 508])).unwrap();
    assert_eq!(&peer.read_reply().private_data[..], [6; 508]);
    expect(&channel, EventKind::Established);
}

#[test]
fn fc_014_private_data_is_copied_by_the_call() {
    let world = World::new();
    let listener = world.listener();
    let (request, mut peer) = requested(&listener, &request_v1(b""));
    let mut reason = vec![0xaa; 100];
    request.reject(&reason).unwrap();
    reason.fill(0x55);
    drop(reason);
    assert_eq!(&peer.read_reply().private_data[..], [0xaa; 100]);
}

#[test]
fn fc_045_a_client_that_leaves_early_never_was_connected() {
    let world = World::new();
    let channel = world.channel();
    let listening = cm::Id::new(&channel);
    listening.bind("127.0.0.1:0", cm::BindOptions::default()).unwrap();
    listening.listen(0).unwrap();
    let fin: fn(Peer) = |peer| peer.fin();
    let reset: fn(Peer) = |peer| peer.reset();
    let talk: fn(Peer) = |mut peer| peer.send(b"early");
    for (leave, errno) in [(fin, 104), (reset, 104), (talk, 71)] {
        let mut peer = Peer::connect(listening.local_addr().unwrap());
        peer.send_frame(&request_v2(1, 1, b""));
        let event = expect(&channel, EventKind::ConnectRequest);
        leave(peer);
        // Until it has arrived here.
        std::thread::sleep(Duration::from_millis(20));
        let qp = world.qp();
        event.id.accept(&qp, ConnParam::default()).unwrap();
        let event = channel.wait_event(GUARD).unwrap();
        assert_eq!(event.kind, EventKind::ConnectError, "{event:?}");
        assert_eq!(event.status.unwrap().errno(), errno);
        expect_none(&channel);
    }
}

#[test]
fn fc_045_a_client_that_leaves_at_any_moment_is_told_in_order() {
    let world = World::new();
    let channel = world.channel();
    let listening = cm::Id::new(&channel);
    listening.bind("127.0.0.1:0", cm::BindOptions::default()).unwrap();
    listening.listen(0).unwrap();
    for round in 0..60 {
        let mut peer = Peer::connect(listening.local_addr().unwrap());
        peer.send_frame(&request_v2(1, 1, b""));
        let event = expect(&channel, EventKind::ConnectRequest);
        let qp = world.qp();
        let leaving = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_micros(round * 10));
            if round % 2 == 0 { peer.fin() } else { peer.reset() }
        });
        event.id.accept(&qp, ConnParam::default()).unwrap();
        let first = channel.wait_event(GUARD).unwrap();
        match first.kind {
            EventKind::Established => {
                expect(&channel, EventKind::Disconnected);
            }
            EventKind::ConnectError => {}
            other => panic!("{other:?} first"),
        }
        leaving.join().unwrap();
    }
    expect_none(&channel);
}

#[test]
fn a_request_is_answered_once() {
    let world = World::new();
    let channel = world.channel();
    let listening = cm::Id::new(&channel);
    listening.bind("127.0.0.1:0", cm::BindOptions::default()).unwrap();
    listening.listen(0).unwrap();
    let mut peer = Peer::connect(listening.local_addr().unwrap());
    peer.send_frame(&request_v1(b""));
    let id = expect(&channel, EventKind::ConnectRequest).id;
    id.reject(b"no").unwrap();
    let qp = world.qp();
    for error in [id.reject(b"no").unwrap_err(), id.accept(&qp, ConnParam::default()).unwrap_err()]
    {
        assert!(matches!(error, ConnectError::State { .. }), "{error}");
    }
    assert_eq!(&peer.read_reply().private_data[..], b"no");
    // The queue pair was not touched.
    assert_eq!(qp.state(), iwarp_verbs::QpState::Init);
}

#[derive(Default)]
struct Woken(AtomicBool);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::Release);
    }
}

/// Two requests that come at once wake two who wait, though the first has not run when the second comes.
#[test]
fn each_request_wakes_somebody() {
    let world = World::new();
    let listener = world.listener();
    let woken = [Arc::<Woken>::default(), Arc::default()];
    let mut waiting = [Box::pin(listener.next()), Box::pin(listener.next())];
    for (waits, woken) in waiting.iter_mut().zip(&woken) {
        let waker = Waker::from(Arc::clone(woken));
        assert!(pin!(waits).poll(&mut Context::from_waker(&waker)).is_pending());
    }
    let _peers: Vec<_> = (0..2)
        .map(|_| {
            let mut peer = Peer::connect(listener.local_addr());
            peer.send_frame(&request_v2(1, 1, b""));
            peer
        })
        .collect();
    let limit = Instant::now() + GUARD;
    while !woken.iter().all(|woken| woken.0.load(Ordering::Acquire)) {
        assert!(Instant::now() < limit, "a request came, and nobody hears of it");
        thread::sleep(Duration::from_millis(1));
    }
}
