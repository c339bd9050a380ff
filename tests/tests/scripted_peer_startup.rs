//! Start-up against a scripted peer, in both roles: every frame of the vectors, and what networks do to frames.
#![allow(
    missing_docs,
    clippy::unwrap_used,
    clippy::cast_possible_truncation,
    reason = "test code; a panic is a failed test"
)]

use std::{
    thread,
    time::{Duration, Instant},
};

use bytes::Bytes;
use iwarp_mpa::{Enhanced, FrameKind, Revision, RtrTypes, StartupFrame};
use iwarp_tests::{
    child::GUARD,
    live::{Live, QUIET, Role},
    peer::{self, Heard, Peer, PeerListener},
};
use iwarp_verbs::{
    DeviceConfig, SendRequest,
    cm::{self, ConnParam, ConnectError},
};
use serde::Deserialize;

#[derive(Debug, Deserialize)]
struct File {
    vectors: Vec<Vector>,
}

#[derive(Debug, Deserialize)]
struct Vector {
    name: String,
    kind: String,
    hex: String,
}

impl Vector {
    fn octets(&self) -> Vec<u8> {
        hex::decode(&self.hex).unwrap()
    }

    fn is_request(&self) -> bool {
        self.name.starts_with("req-")
    }
}

fn vectors() -> Vec<Vector> {
    let file: File = serde_json::from_str(include_str!("vectors/mpa_startup.json")).unwrap();
    file.vectors
}

/// Octet in which Request and Reply keys differ, and its two values.
const KEY_KIND: usize = 9;
const IN_REQUEST: u8 = 0x71;
const IN_REPLY: u8 = 0x70;

/// MPA-004, MPA-016, MPA-017, MPA-019, MPA-025, CONN-02, CONN-03, CONN-04, CONN-06, CONN-26, FC-008
#[test]
fn every_well_formed_request_is_answered() {
    let live = Live::new(DeviceConfig::default());
    for vector in
        vectors().iter().filter(|vector| vector.is_request() && vector.name != "req-v0-rdmac")
    {
        let name = &vector.name;
        let octets = vector.octets();
        let (sent, _) = StartupFrame::parse(FrameKind::Request, &octets).unwrap().unwrap();
        let mut peer = Peer::dial(live.addr());
        peer.say(&octets);
        let request = live.listener.accept(GUARD).unwrap();
        assert_eq!(request.private_data(), &sent.private_data, "{name}");
        let end = live.end(1);
        let param = ConnParam::default().private_data(b"welcome");
        let accepting = request.accept(&end.qp, param).unwrap();

        let reply = peer.read_startup(FrameKind::Reply);
        assert!(!reply.reject, "{name}");
        assert_eq!(reply.private_data, Bytes::from_static(b"welcome"), "{name}");
        assert_eq!(reply.revision, sent.revision, "{name}");
        assert_eq!(reply.enhanced.is_some(), sent.enhanced.is_some(), "{name}");
        let rtr = |frame: &StartupFrame| frame.enhanced.is_some_and(|it| it.peer_to_peer);
        assert_eq!(rtr(&reply), rtr(&sent), "{name}");

        // The connection works: whatever was negotiated, and with the RTR if one was.
        peer.begin(&reply, &sent);
        let first = peer.fpdu(&peer::write(1, 0, b""));
        peer.say(&first);
        peer.send(&peer::send(1, b"hello"));
        let connection = accepting.wait(GUARD).unwrap();
        let completion = end.next_receive();
        assert_eq!(end.received(&completion), b"hello", "{name}");
        connection.disconnect();
    }
}

/// MPA-006, MPA-018, MPA-020, MPA-022, MPA-085, SEC-22, CONN-03, FC-004
#[test]
fn a_malformed_request_costs_its_own_connection_only() {
    let live = Live::new(DeviceConfig::default());
    let mut bystander = live.bystander();
    let mut malformed: Vec<(String, Vec<u8>)> = vectors()
        .iter()
        .filter(|vector| vector.kind == "invalid" && vector.name != "bad-initiator-initiator")
        .map(|vector| (vector.name.clone(), vector.octets()))
        .collect();
    let good = peer::request().encode().unwrap();
    malformed
        .push(("wrong key text".into(), b"GET / HTTP/1.1\\r\\nHost: example\\r\\n\\r\\n".to_vec()));
    malformed.push(("revision 200".into(), [&good[..17], &[200], &good[18..]].concat()));
    malformed.push(("key cut after 7 octets".into(), good[..7].to_vec()));
    malformed.push(("nothing".into(), Vec::new()));
    for (name, octets) in malformed {
        let mut peer = Peer::dial(live.addr());
        peer.say_perhaps(&octets);
        peer.half_close();
        let heard = peer.hear_out();
        assert!(matches!(heard[..], [Heard::Fin | Heard::Reset]), "{name}: {heard:?}");

        // The same, and RST instead of FIN.
        let mut peer = Peer::dial(live.addr());
        peer.say_perhaps(&octets);
        peer.reset();
        bystander.goes_on();
    }
    // None of them was shown to the program; a correct one is.
    let (peer, served) = live.establish(Role::Responder, &peer::request(), ConnParam::default(), 0);
    assert!(live.listener.try_accept().is_none());
    drop(peer);
    served.closed();
}

/// MPA-018: a peer of revision 0 is told the lowest revision that is spoken here, and left.
#[test]
fn revision_0_is_answered_with_revision_1_and_closed() {
    let live = Live::new(DeviceConfig::default());
    let vector = vectors().into_iter().find(|vector| vector.name == "req-v0-rdmac").unwrap();
    let mut peer = Peer::dial(live.addr());
    peer.say(&vector.octets());
    let reply = peer.read_startup(FrameKind::Reply);
    assert_eq!(reply.revision, 1);
    assert!(matches!(peer.hear_out()[..], [Heard::Fin | Heard::Reset]));
    assert!(live.listener.try_accept().is_none());
}

/// MPA-007, MPA-026, MPA-027, MPA-028, CONN-06, CONN-11, CONN-20, CONN-24
#[test]
fn every_reply_of_the_vectors_is_taken_for_what_it_is() {
    let live = Live::new(DeviceConfig::default());
    for vector in vectors().iter().filter(|vector| vector.name.starts_with("rep-")) {
        let name = &vector.name;
        let octets = vector.octets();
        let (reply, _) = StartupFrame::parse(FrameKind::Reply, &octets).unwrap().unwrap();
        let rtr = reply.enhanced.is_some_and(|enhanced| enhanced.peer_to_peer);
        let param = ConnParam::default()
            .revision(if reply.revision == 2 { Revision::V2 } else { Revision::V1 })
            .rtr(if rtr { RtrTypes::all() } else { RtrTypes::empty() })
            .fallback(false);
        let listener = PeerListener::bind();
        let end = live.end(0);
        let connecting = cm::connect(listener.addr(), &end.qp, param).unwrap();
        let mut peer = listener.accept();
        let request = peer.read_startup(FrameKind::Request);
        peer.say(&octets);
        peer.begin(&request, &reply);
        let result = connecting.wait(GUARD);
        if name == "rep-v0-rdmac" {
            assert!(matches!(result, Err(ConnectError::Protocol { .. })), "{name}: {result:?}");
            continue;
        }
        if reply.reject {
            let Err(ConnectError::Rejected { private_data, ird, ord, .. }) = result else {
                panic!("{name}: {result:?}")
            };
            assert_eq!(private_data, reply.private_data, "{name}");
            let depths = reply.enhanced.map(|it| (it.ird.count(), it.ord.count()));
            let told = (ird, ord);
            assert_eq!(told, depths.unwrap_or_default(), "{name}");
            // FC-012: an end in order, not a reset.
            assert_eq!(peer.hear_out(), [Heard::Fin], "{name}");
            continue;
        }
        let connection = result.unwrap_or_else(|error| panic!("{name}: {error}"));
        assert_eq!(connection.private_data(), &reply.private_data, "{name}");
        if rtr {
            // CONN-09, CONN-24, D12: one RTR that both know, and nothing before it.
            let first = peer.hear_ulpdu();
            let allowed = reply.enhanced.map(|it| it.rtr).unwrap_or_default();
            let kind = match first[1] & 0xf {
                peer::opcode::WRITE => RtrTypes::WRITE,
                peer::opcode::READ_REQUEST => RtrTypes::READ,
                peer::opcode::SEND => RtrTypes::SEND,
                other => panic!("{name}: opcode {other} as RTR"),
            };
            assert!(allowed.contains(kind), "{name}: {kind:?}");
            if allowed.contains(RtrTypes::WRITE) {
                assert_eq!(kind, RtrTypes::WRITE, "{name}");
            }
        }
        end.qp.post_send(SendRequest::send_inline(1, b"hello")).unwrap();
        assert_eq!(peer.hear_ulpdu()[18..], *b"hello", "{name}");
    }
}

/// MPA-006, MPA-008, MPA-018, MPA-020, MPA-026, MPA-085, CONN-03
#[test]
fn a_malformed_reply_fails_the_connect_and_closes() {
    let live = Live::new(DeviceConfig::default());
    for vector in vectors().iter().filter(|vector| vector.kind == "invalid") {
        let name = &vector.name;
        if ["bad-reply-at-responder", "bad-pd-extra"].contains(&name.as_str()) {
            // As a Reply the first is a good one, and the second has an FPDU behind it.
            continue;
        }
        let mut octets = vector.octets();
        let initiators = name == "bad-initiator-initiator";
        if !initiators && octets[KEY_KIND] == IN_REQUEST {
            octets[KEY_KIND] = IN_REPLY;
        }
        let listener = PeerListener::bind();
        let end = live.end(3);
        let param = ConnParam::default().fallback(false);
        let connecting = cm::connect(listener.addr(), &end.qp, param).unwrap();
        let mut peer = listener.accept();
        peer.read_startup(FrameKind::Request);
        peer.say_perhaps(&octets);
        peer.half_close();
        let error = connecting.wait(GUARD).unwrap_err();
        let cut_short = ["bad-pd-short", "bad-truncated-header"].contains(&name.as_str());
        match &error {
            ConnectError::Closed { addr, .. } if cut_short => assert_eq!(*addr, listener.addr()),
            ConnectError::Protocol { addr, cause } if !cut_short => {
                assert_eq!(*addr, listener.addr());
                let says_so = matches!(cause, iwarp_mpa::StartupError::InitiatorInitiator);
                assert_eq!(says_so, initiators, "{name}: {error}");
            }
            _ => panic!("{name}: {error:?}"),
        }
        assert!(matches!(peer.hear_out()[..], [Heard::Fin | Heard::Reset]), "{name}");
        // FC-035: what was posted before comes back.
        let flushed: Vec<u64> = (0..3).map(|_| end.next_receive().wr_id).collect();
        assert_eq!(flushed, [0, 1, 2], "{name}");
        assert!(end.drain().is_empty(), "{name}");
    }
}

/// A peer that replies before it is ready is let be: no FPDU, ready-to-receive message included, comes before the time is
/// over, and what the peer says meanwhile is taken.
#[test]
fn the_first_fpdu_waits_for_as_long_as_asked() {
    let delay = Duration::from_millis(150);
    for rtr in [RtrTypes::empty(), RtrTypes::WRITE, RtrTypes::READ] {
        // As a parameter, or a default of the device.
        let (config, param) = if rtr.is_empty() {
            (DeviceConfig::default().first_fpdu_delay(delay), ConnParam::default())
        } else {
            let param = ConnParam::default().first_fpdu_delay(delay);
            (DeviceConfig::default().first_fpdu_delay(GUARD), param)
        };
        let live = Live::new(config);
        let enhanced = Enhanced { peer_to_peer: !rtr.is_empty(), rtr, ..peer::depths(16, 16) };
        let reply = StartupFrame { enhanced: Some(enhanced), ..peer::reply() };
        let listener = PeerListener::bind();
        let end = live.end(1);
        let connecting = cm::connect(listener.addr(), &end.qp, param.rtr(rtr)).unwrap();
        let mut peer = listener.accept();
        let request = peer.read_startup(FrameKind::Request);
        let began = Instant::now();
        peer.send_startup(&reply);
        peer.begin(&request, &reply);
        if rtr.is_empty() {
            peer.send(&peer::send(1, b"early"));
        }
        let connection = connecting.wait(GUARD).unwrap();
        end.qp.post_send(SendRequest::send_inline(1, b"hello")).unwrap();
        let first = peer.hear_ulpdu();
        // A lower bound: a slow machine makes it longer only.
        assert!(began.elapsed() >= delay, "{rtr:?}: {:?}", began.elapsed());
        if rtr.is_empty() {
            assert_eq!(first[18..], *b"hello");
            assert_eq!(end.received(&end.next_receive()), b"early");
        } else {
            let opcode = if rtr == RtrTypes::WRITE {
                peer::opcode::WRITE
            } else {
                peer::opcode::READ_REQUEST
            };
            assert_eq!(first[1] & 0xf, opcode);
        }
        drop(connection);
    }
}

/// Giving a set-up up in that time closes the connection at once, with nothing said.
#[test]
fn a_set_up_is_given_up_while_it_waits_for_its_first_fpdu() {
    let live = Live::new(DeviceConfig::default());
    let listener = PeerListener::bind();
    let end = live.end(1);
    let param = ConnParam::default().rtr(RtrTypes::empty()).first_fpdu_delay(Duration::MAX);
    let connecting = cm::connect(listener.addr(), &end.qp, param).unwrap();
    let (mut peer, _) = listener.establish(&peer::reply());
    assert!(peer.is_silent_for(QUIET));
    drop(connecting);
    assert!(matches!(peer.hear_out()[..], [Heard::Fin | Heard::Reset]));
    assert_eq!(end.next_receive().wr_id, 0, "what was posted before comes back");
}

/// FC-001, MPA-037: an FPDU that comes glued to the Reply, and the pair cut at every octet.
#[test]
fn fc_001_first_fpdu_glued_to_the_reply() {
    let live = Live::new(DeviceConfig::default());
    let reply = StartupFrame { private_data: Bytes::from_static(&[7; 16]), ..peer::reply() };
    let whole = {
        let mut octets = reply.encode().unwrap().to_vec();
        let (mut peer, _served) =
            live.establish(Role::Responder, &peer::request(), ConnParam::default(), 0);
        octets.extend(peer.fpdu(&peer::send(1, b"glued")));
        octets
    };
    for cut in 0..whole.len() {
        let listener = PeerListener::bind();
        let end = live.end(1);
        let param = ConnParam::default().rtr(RtrTypes::empty());
        let connecting = cm::connect(listener.addr(), &end.qp, param).unwrap();
        let mut peer = listener.accept();
        peer.read_startup(FrameKind::Request);
        peer.say(&whole[..cut]);
        if cut > 0 {
            thread::sleep(Duration::from_micros(500));
        }
        peer.say(&whole[cut..]);
        let connection = connecting.wait(GUARD).unwrap();
        assert_eq!(connection.private_data(), [7; 16], "cut at {cut}");
        let completion = end.next_receive();
        assert_eq!(end.received(&completion), b"glued", "cut at {cut}");
    }
}

/// FC-002: a Reply octet by octet is one Reply, complete with its last octet; short of one it is none.
#[test]
fn fc_002_reply_in_pieces() {
    let live = Live::new(DeviceConfig::default());
    let reply = StartupFrame { private_data: Bytes::from_static(b"in pieces"), ..peer::reply() };
    let octets = reply.encode().unwrap();
    let begin = |limit| {
        let listener = PeerListener::bind();
        let end = live.end(0);
        let param = ConnParam::default().rtr(RtrTypes::empty()).timeout(limit).fallback(false);
        let connecting = cm::connect(listener.addr(), &end.qp, param).unwrap();
        let mut peer = listener.accept();
        peer.read_startup(FrameKind::Request);
        (peer, end, connecting)
    };

    let (mut peer, _end, connecting) = begin(GUARD);
    peer.trickle(&octets, 1, Duration::from_millis(2));
    assert_eq!(connecting.wait(GUARD).unwrap().private_data(), b"in pieces");

    for cut in 1..octets.len() {
        let (mut peer, _end, connecting) = begin(GUARD);
        peer.trickle(&octets, cut, Duration::from_micros(500));
        assert_eq!(connecting.wait(GUARD).unwrap().private_data(), b"in pieces", "cut at {cut}");
    }

    let (mut peer, _end, connecting) = begin(Duration::from_millis(300));
    peer.say(&octets[..octets.len() - 1]);
    let error = connecting.wait(GUARD).unwrap_err();
    assert!(matches!(error, ConnectError::TimedOut { .. }), "{error:?}");
}

/// MPA-005, MPA-009, MPA-010: silence, and a Request that never gets anywhere, end at the limit; nothing is said before.
#[test]
fn silent_and_trickling_peers_are_left() {
    let config = DeviceConfig::default().accept_timeout(Duration::from_millis(300));
    let live = Live::new(config);
    let mut silent = Peer::dial(live.addr());
    assert_eq!(silent.hear_out().len(), 1);

    let request = peer::request().encode().unwrap();
    let mut peer = Peer::dial(live.addr());
    let begun = Instant::now();
    // Slower than the limit allows as a whole, though never silent for long.
    for octet in &request[..] {
        peer.say_perhaps(std::slice::from_ref(octet));
        thread::sleep(Duration::from_millis(50));
        if begun.elapsed() > Duration::from_secs(1) {
            break;
        }
    }
    assert!(matches!(peer.hear_out()[..], [Heard::Fin | Heard::Reset]));
    assert!(live.listener.try_accept().is_none());
}

/// SEC-22: strangers that connect and wait take places from one another, not from those who speak.
#[test]
fn half_open_start_ups_are_limited() {
    let live = Live::new(DeviceConfig::default().max_pending_handshakes(8));
    let strangers: Vec<Peer> = (0..100).map(|_| Peer::dial(live.addr())).collect();
    let (peer, served) = live.establish(Role::Responder, &peer::request(), ConnParam::default(), 0);
    drop(peer);
    served.closed();
    drop(strangers);
}

/// MPA-029: the responder says nothing before the first FPDU is in, and then everything in order.
#[test]
fn a_responder_waits_for_the_first_fpdu() {
    let live = Live::new(DeviceConfig::default());
    let (mut peer, served) =
        live.establish(Role::Responder, &peer::request(), ConnParam::default(), 0);
    for id in 0..5u64 {
        let request = SendRequest::send_inline(id, id.to_be_bytes());
        served.end.qp.post_send(request).unwrap();
    }
    assert!(peer.is_silent_for(QUIET));
    assert!(served.end.drain().is_empty());
    peer.send(&peer::write(1, 0, b""));
    for id in 0..5u64 {
        let ulpdu = peer.hear_ulpdu();
        assert_eq!((ulpdu[..2].to_vec(), &ulpdu[18..]), (vec![0x41, 0x43], &id.to_be_bytes()[..]));
        assert_eq!(served.end.next_send().wr_id, id);
    }
}

/// MPA-011, MPA-012, MPA-013, MPA-014, MPA-015, MPA-055, MPA-061, MPA-062, FC-005, FC-006: every combination of what the two sides ask for.
#[test]
fn crc_and_markers_as_either_side_asks() {
    let live = Live::new(DeviceConfig::default());
    for role in Role::BOTH {
        for bits in 0..16u8 {
            let [our_crc, their_crc, our_markers, their_markers] =
                [1, 2, 4, 8].map(|bit| bits & bit != 0);
            let case = format!("{role:?} {our_crc} {their_crc} {our_markers} {their_markers}");
            let frame = StartupFrame { crc: their_crc, markers: their_markers, ..peer::request() };
            let param = ConnParam::default().crc(our_crc).markers(our_markers);
            let (mut peer, served) = live.establish(role, &frame, param, 2);
            assert_eq!(served.connection.crc(), our_crc || their_crc, "{case}");
            // Long enough for several markers in either direction.
            for msn in 1..=40 {
                peer.send(&peer::send(msn, &[b'x'; 60]));
                let completion = served.end.next_receive();
                assert_eq!(served.end.received(&completion), [b'x'; 60], "{case}");
                served.end.post_recv(u64::from(msn));
                served.end.qp.post_send(SendRequest::send_inline(0, [b'y'; 61])).unwrap();
                assert_eq!(peer.hear_ulpdu()[18..], [b'y'; 61], "{case}");
                assert!(served.end.next_send().is_success());
            }
            // A bad CRC matters exactly when CRCs are in force.
            peer.send_with_bad_crc(&peer::send(41, b"damaged"));
            if our_crc || their_crc {
                let terminate = peer.hear_terminate();
                assert_eq!(terminate.code, 0x2002, "{case}");
            } else {
                assert_eq!(served.end.received(&served.end.next_receive()), b"damaged", "{case}");
            }
        }
    }
}

/// FC-007, CONN-08: a peer that resets Requests of revision 2 is tried once more with revision 1, and no oftener.
#[test]
fn fc_007_one_fallback_to_revision_1() {
    let live = Live::new(DeviceConfig::default());
    let listener = PeerListener::bind();
    let end = live.end(0);
    let connecting = cm::connect(listener.addr(), &end.qp, ConnParam::default()).unwrap();
    let mut peer = listener.accept();
    assert_eq!(peer.read_startup(FrameKind::Request).revision, 2);
    peer.reset();
    let plain = StartupFrame { revision: 1, enhanced: None, ..peer::reply() };
    let (_peer, request) = listener.establish(&plain);
    assert_eq!((request.revision, request.enhanced), (1, None::<Enhanced>));
    assert_eq!(connecting.wait(GUARD).unwrap().revision(), 1);

    let end = live.end(0);
    let connecting = cm::connect(listener.addr(), &end.qp, ConnParam::default()).unwrap();
    for revision in [2, 1] {
        let mut peer = listener.accept();
        assert_eq!(peer.read_startup(FrameKind::Request).revision, revision);
        peer.reset();
    }
    let error = connecting.wait(GUARD).unwrap_err();
    assert!(matches!(error, ConnectError::Closed { .. }), "{error:?}");
    assert!(listener.is_quiet_for(Duration::from_millis(500)));
}
