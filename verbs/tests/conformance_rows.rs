//! Requirements that no other test of this crate shows.
#![allow(clippy::unwrap_used, reason = "a failed step is a failed test")]

mod cm_support;

use std::time::Instant;

use cm_support::*;
use iwarp_mpa::RtrTypes;
use iwarp_verbs::cm::{self, CloseReason, ConnParam, ConnectError, Connection, EventKind};
use iwarp_verbs::{Access, MemoryRegion, QpConfig, QpState, QueuePair};

/// A connection that a scripted peer asked for.
fn accepted(world: &World, qp: &QueuePair) -> (Connection, Peer) {
    let listener = world.listener();
    let mut peer = Peer::connect(listener.local_addr());
    peer.send_frame(&request_v1(b""));
    let request = listener.accept(GUARD).unwrap();
    let accepting = request.accept(qp, ConnParam::default()).unwrap();
    assert!(!peer.read_reply().reject);
    (accepting.wait(GUARD).unwrap(), peer)
}

#[test]
fn mpa_003_no_full_operation_without_a_queue_pair() {
    // MPA-003
    let (world, elsewhere) = (World::new(), World::new());
    let channel = world.channel();
    let listening = cm::Id::new(&channel);
    listening.bind("127.0.0.1:0", cm::BindOptions::default()).unwrap();
    listening.listen(0).unwrap();
    let mut peer = Peer::connect(listening.local_addr().unwrap());
    peer.send_frame(&request_v1(b""));
    let id = expect(&channel, EventKind::ConnectRequest).id;

    let spent = world.qp();
    spent.modify(QpState::Err).unwrap();
    let taken = world.qp();
    let (_connection, _peer) = accepted(&world, &taken);
    for unfit in [elsewhere.qp(), spent, taken] {
        let error = id.accept(&unfit, ConnParam::default()).unwrap_err();
        assert!(matches!(error, ConnectError::QueuePair(_)), "{error}");
    }
    peer.expect_silence();
    // The Request still waits.
    id.accept(&world.qp(), ConnParam::default()).unwrap();
    assert!(!peer.read_reply().reject);
}

#[test]
fn mpa_031_an_initiator_may_leave_when_it_has_seen_the_private_data() {
    // MPA-031
    let world = World::new();
    let (listener, addr) = raw_listener();
    let param = ConnParam::default().rtr(RtrTypes::empty());
    let connecting = cm::connect(addr, &world.qp(), param).unwrap();
    let mut peer = Peer::accept(&listener);
    let request = peer.read_request();
    peer.send_frame(&reply_to(&request, RtrTypes::empty(), b"out of stock"));
    let connection = connecting.wait(GUARD).unwrap();
    assert_eq!(connection.private_data(), b"out of stock");
    connection.disconnect();
    peer.expect_fin();
    peer.fin();
    let reason = connection.wait_closed(GUARD);
    assert!(matches!(reason, Some(CloseReason::Orderly)), "{reason:?}");
}

fn wait_for(region: &MemoryRegion, expected: &[u8]) {
    let started = Instant::now();
    loop {
        let mut found = vec![0; expected.len()];
        region.read_at(0, &mut found).unwrap();
        if found == expected {
            return;
        }
        assert!(started.elapsed() < GUARD, "{found:?} instead of {expected:?}");
        std::thread::yield_now();
    }
}

#[test]
fn ddp_064_a_key_is_good_on_all_streams_of_its_domain() {
    // DDP-064, SEC-01
    let world = World::new();
    let region = world.pd.alloc(2, Access::LOCAL_WRITE | Access::REMOTE_WRITE).unwrap();
    let write = |peer: &mut Peer, offset: u64, octet: u8| {
        let fpdu = peer.fpdu(&write_ulpdu(region.rkey(), region.addr() + offset, &[octet]));
        peer.send(&fpdu);
    };
    let (_first, mut peer) = accepted(&world, &world.qp());
    write(&mut peer, 0, 7);
    wait_for(&region, &[7, 0]);
    let (_second, mut peer) = accepted(&world, &world.qp());
    write(&mut peer, 1, 8);
    wait_for(&region, &[7, 8]);

    let stranger = world.device.alloc_pd().create_qp(&QpConfig::new(&world.cq)).unwrap();
    let (_third, mut peer) = accepted(&world, &stranger);
    write(&mut peer, 0, 9);
    assert_eq!(terminate_code(&peer.read_ulpdu().unwrap()), 0x1102);
    wait_for(&region, &[7, 8]);
}
