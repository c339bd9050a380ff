//! Connects that fail: what is refused by the call, and what each failure later is told as (FC-051).
#![allow(clippy::unwrap_used, reason = "a failed step is a failed test")]

mod cm_support;

use cm_support::*;
use iwarp_mpa::{Revision, RtrTypes, StartupError, StartupFrame};
use iwarp_verbs::cm::{self, Address, ConnParam, ConnectError, Connecting, Phase};
use iwarp_verbs::{Access, QpState, RecvRequest, WcStatus};

fn failure(connecting: Connecting) -> ConnectError {
    connecting.wait(GUARD).unwrap_err()
}

#[test]
fn private_data_that_does_not_fit_is_refused_by_the_call() {
    // MPA-021
    let world = World::new();
    let (_listener, addr) = raw_listener();
    let qp = world.qp();
    for (revision, max) in [(Revision::V1, 512), (Revision::V2, 508)] {
        let param = |len| ConnParam::default().revision(revision).private_data(vec![0; len]);
        let error = cm::connect(addr, &qp, param(max + 1)).unwrap_err();
        assert!(
            matches!(error, ConnectError::Param(StartupError::PrivateDataTooLong { .. })),
            "{error}"
        );
        assert_eq!(qp.state(), QpState::Init);
    }
    drop(cm::connect(addr, &qp, ConnParam::default().private_data([0; 508])).unwrap());
}

#[test]
fn depths_above_the_limit_are_refused_by_the_call() {
    let world = World::new();
    let (_listener, addr) = raw_listener();
    for param in [ConnParam::default().ird(129), ConnParam::default().ord(u16::MAX)] {
        let error = cm::connect(addr, &world.qp(), param).unwrap_err();
        assert!(error.to_string().contains("limit of 128"), "{error}");
    }
}

#[test]
fn a_queue_pair_connects_once_at_a_time() {
    let world = World::new();
    let (listener, addr) = raw_listener();
    let qp = world.qp();
    let first = cm::connect(addr, &qp, ConnParam::default()).unwrap();
    let error = cm::connect(addr, &qp, ConnParam::default()).unwrap_err();
    assert!(matches!(error, ConnectError::QueuePair(_)), "{error}");
    // The first attempt is not disturbed.
    let mut peer = Peer::accept(&listener);
    let request = peer.read_request();
    peer.send_frame(&reply_to(&request, RtrTypes::WRITE, b""));
    first.wait(GUARD).unwrap();
}

#[test]
fn fc_051_a_closed_port_refuses() {
    let world = World::new();
    let (_hold, addr) = closed_port();
    let channel = world.channel();
    let id = cm::Id::new(&channel);
    let qp = world.qp();
    id.connect(addr, &qp, ConnParam::default()).unwrap();
    let event = expect(&channel, cm::EventKind::Rejected);
    let status = event.status.unwrap();
    assert!(matches!(status, ConnectError::Refused { addr: at } if at == addr));
    assert_eq!(status.errno(), 111);
    assert!(status.to_string().contains(&addr.to_string()));
    expect_none(&channel);
}

#[test]
fn a_refused_connection_may_be_tried_for_a_while() {
    let world = World::new();
    let (hold, addr) = closed_port();
    let param = ConnParam::default().retry_refused(GUARD).timeout(GUARD);
    let connecting = cm::connect(addr, &world.qp(), param).unwrap();
    std::thread::sleep(SHORT);
    hold.listen(1).unwrap();
    let mut peer = Peer::accept(&hold.into());
    let request = peer.read_request();
    peer.send_frame(&reply_to(&request, RtrTypes::WRITE, b""));
    connecting.wait(GUARD).unwrap();
}

#[test]
fn fc_051_no_answer_times_out() {
    // MPA-010
    let world = World::new();
    let (listener, addr) = raw_listener();
    let channel = world.channel();
    let id = cm::Id::new(&channel);
    let qp = world.qp();
    id.connect(addr, &qp, ConnParam::default().timeout(SHORT)).unwrap();
    let mut peer = Peer::accept(&listener);
    peer.read_request();
    let event = expect(&channel, cm::EventKind::Unreachable);
    let status = event.status.unwrap();
    assert_eq!(status.errno(), 110);
    let text = status.to_string();
    assert!(text.contains(&addr.to_string()) && text.contains("MPA reply"), "{text}");
    peer.expect_end();
    expect_none(&channel);
}

#[test]
fn fc_051_a_peer_that_speaks_something_else_is_an_error_of_its_own() {
    // MPA-007, MPA-026, MPA-085
    let world = World::new();
    for (answer, reason) in [
        (&b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n"[..], "wrong key"),
        (b"MPA ID Req Frame\x40\x01\0\0", "both ends are initiators"),
        (b"MPA ID Rep Frame\x40\x03\0\0", "revision 3"),
        (b"MPA ID Rep Frame\x40\x02\x02\x01", "513 octets"),
        (b"MPA ID Rep Frame\x50\x02\x00\x02..", "enhanced frame with only 2"),
    ] {
        let channel = world.channel();
        let (listener, addr) = raw_listener();
        let id = cm::Id::new(&channel);
        let qp = world.qp();
        id.connect(addr, &qp, ConnParam::default()).unwrap();
        let mut peer = Peer::accept(&listener);
        peer.read_request();
        peer.send(answer);
        let event = expect(&channel, cm::EventKind::ConnectError);
        let status = event.status.unwrap();
        assert_eq!(status.errno(), 71, "{status}");
        assert!(status.to_string().contains(reason), "{status}");
        peer.expect_end();
    }
}

#[test]
fn conn_06_an_enhanced_request_wants_an_enhanced_reply() {
    // CONN-06, CONN-08: what answers plainly may know revision 1 only, and is asked in that once.
    let world = World::new();
    let (listener, addr) = raw_listener();
    let connecting = cm::connect(addr, &world.qp(), ConnParam::default()).unwrap();
    for _ in 0..2 {
        let mut peer = Peer::accept(&listener);
        let request = peer.read_request();
        let mut reply = reply_to(&request, RtrTypes::empty(), b"");
        (reply.revision, reply.enhanced) = (1, None);
        peer.send_frame(&reply);
        if request.revision == 2 {
            peer.expect_end();
        } else {
            assert_eq!(connecting.wait(GUARD).unwrap().revision(), 1);
            return;
        }
    }
    unreachable!("no second attempt");
}

#[test]
fn mpa_005_a_closing_peer_is_no_reply() {
    let world = World::new();
    let (listener, addr) = raw_listener();
    let connecting = cm::connect(addr, &world.qp(), ConnParam::default().fallback(false)).unwrap();
    let mut peer = Peer::accept(&listener);
    let request = peer.read_request();
    let reply = reply_to(&request, RtrTypes::WRITE, b"").encode().unwrap();
    peer.send(&reply[..10]);
    peer.fin();
    let error = failure(connecting);
    assert!(matches!(error, ConnectError::Closed { phase: Phase::Reply, .. }), "{error}");
    assert_eq!(error.errno(), 104);
}

#[test]
fn names_that_do_not_resolve_say_so() {
    let world = World::new();
    let channel = world.channel();
    let id = cm::Id::new(&channel);
    let qp = world.qp();
    // A name that no resolver may know (RFC 6761 §6.4).
    id.connect("no-such-host.invalid:7471", &qp, ConnParam::default()).unwrap();
    let event = expect(&channel, cm::EventKind::AddressError);
    let text = event.status.unwrap().to_string();
    assert!(text.contains("no-such-host.invalid"), "{text}");
}

#[test]
fn addresses_that_cannot_be_are_refused_by_the_call() {
    let world = World::new();
    let qp = world.qp();
    for (address, reason) in [
        (Address::from("127.0.0.1"), "port is missing"),
        (Address::from("[::1:7471"), "brackets"),
        (Address::from(("", 7471)), "host is missing"),
        (Address::from("127.0.0.1:0"), "port 0"),
        (Address::from("[fe80::1]:7471"), "needs its interface"),
    ] {
        let error = cm::connect(address, &qp, ConnParam::default()).unwrap_err();
        assert!(matches!(error, ConnectError::Address { .. }), "{error}");
        assert!(error.to_string().contains(reason), "{error}");
        assert_eq!(qp.state(), QpState::Init, "nothing was begun");
    }
}

#[test]
fn a_name_leads_to_every_address_it_has() {
    // FC-054, FC-056: localhost is IPv4, or both; the listener is IPv4 only.
    let world = World::new();
    let (listener, addr) = raw_listener();
    let connecting =
        cm::connect(("localhost", addr.port()), &world.qp(), ConnParam::default()).unwrap();
    let mut peer = Peer::accept(&listener);
    let request = peer.read_request();
    peer.send_frame(&reply_to(&request, RtrTypes::WRITE, b""));
    assert_eq!(connecting.wait(GUARD).unwrap().peer_addr().port(), addr.port());
}

#[test]
fn fc_035_a_failed_set_up_flushes_what_was_posted() {
    let world = World::new();
    let region = world.pd.alloc(64, Access::LOCAL_WRITE).unwrap();
    let (_hold, refused) = closed_port();
    let (rejecting, rejected) = raw_listener();
    let (silent, timed_out) = raw_listener();
    let short = ConnParam::default().timeout(SHORT);
    for (addr, param) in
        [(refused, ConnParam::default()), (rejected, ConnParam::default()), (timed_out, short)]
    {
        let qp = world.qp();
        for id in 0..8 {
            qp.post_recv(RecvRequest::new(id, region.as_slice_all())).unwrap();
        }
        let connecting = cm::connect(addr, &qp, param).unwrap();
        if addr == rejected {
            let mut peer = Peer::accept(&rejecting);
            let request = peer.read_request();
            let reply = reply_to(&request, RtrTypes::WRITE, b"");
            peer.send_frame(&StartupFrame { reject: true, ..reply });
        }
        connecting.wait(GUARD).unwrap_err();
        let flushed = world.completions(8);
        assert!(flushed.iter().all(|wc| wc.status == WcStatus::WrFlushErr));
        assert_eq!(flushed.iter().map(|wc| wc.wr_id).collect::<Vec<_>>(), [0, 1, 2, 3, 4, 5, 6, 7]);
        assert_eq!(qp.state(), QpState::Err);
    }
    drop(silent);
}

#[test]
fn a_time_out_of_the_caller_names_the_phase() {
    let world = World::new();
    let (listener, addr) = raw_listener();
    let connecting = cm::connect(addr, &world.qp(), ConnParam::default()).unwrap();
    let mut peer = Peer::accept(&listener);
    peer.read_request();
    let error = connecting.wait(SHORT).unwrap_err();
    assert!(matches!(error, ConnectError::TimedOut { phase: Phase::Reply, .. }), "{error}");
    // Waiting no longer gives the attempt up.
    peer.expect_end();
}
