//! The verbs style: ids, events and their order.
#![allow(clippy::unwrap_used, reason = "a failed step is a failed test")]
#![allow(
    clippy::mutable_key_type,
    reason = "an id compares and hashes as the object that it names"
)]

mod cm_support;

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::{Arc, Barrier};
use std::time::{Duration, Instant};

use cm_support::*;
use iwarp_verbs::cm::{self, BindOptions, CloseReason, ConnParam, ConnectError, EventKind, Id};
use iwarp_verbs::{Access, QpState, QueuePair, RecvRequest, SendRequest, WcStatus};

#[test]
fn fc_013_private_data_comes_with_the_events_that_carry_it() {
    let ends = Ends::new();
    let (pair, [request, here, there]) = ends.connect(&[1; 256], &[2; 256]);
    assert_eq!(&request.private_data[..], [1; 256]);
    assert_eq!(&here.private_data[..], [2; 256]);
    assert!(there.private_data.is_empty());
    assert_eq!(here.peer, Some(ends.addr()));
    assert!([&request, &here, &there].iter().all(|event| event.status.is_none()));

    pair.active.disconnect().unwrap();
    for channel in [&ends.active, &ends.passive] {
        let event = expect(channel, EventKind::Disconnected);
        assert!(event.private_data.is_empty() && event.status.is_none());
    }

    // Abruptly too.
    let (pair, _) = ends.connect(&[3; 256], &[4; 256]);
    pair.active_qp.modify(QpState::Err).unwrap();
    for channel in [&ends.active, &ends.passive] {
        assert!(expect(channel, EventKind::Disconnected).private_data.is_empty());
    }
}

#[test]
fn fc_044_connect_and_destroy_never_block() {
    // RFC 5737 addresses lead nowhere, or are refused at once; either way no call waits for them.
    let world = World::new();
    let channel = world.channel();
    let blackhole: SocketAddr = "192.0.2.1:7471".parse().unwrap();
    let started = Instant::now();
    for _ in 0..300 {
        let (id, qp) = (Id::new(&channel), world.qp());
        id.connect(blackhole, &qp, ConnParam::default()).unwrap();
        drop(id);
    }
    let (id, qp) = (Id::new(&channel), world.qp());
    id.connect("no-such-host.invalid:7471", &qp, ConnParam::default()).unwrap();
    drop(id);
    assert!(started.elapsed() < GUARD);
    // Dropped ids have no events, whatever happened to their connections.
    expect_none(&channel);
}

#[test]
fn fc_044_an_id_dropped_in_any_phase_is_silent() {
    let ends = Ends::new();
    let (listener, silent) = raw_listener();

    // Connecting: the peer sees the connection go.
    let (id, qp) = (Id::new(&ends.active), ends.world.qp());
    id.connect(silent, &qp, ConnParam::default()).unwrap();
    let mut peer = Peer::accept(&listener);
    peer.read_request();
    drop(id);
    peer.expect_end();

    // A request that nobody answers is rejected.
    let (id, qp) = (Id::new(&ends.active), ends.world.qp());
    id.connect(ends.addr(), &qp, ConnParam::default()).unwrap();
    drop(expect(&ends.passive, EventKind::ConnectRequest));
    expect(&ends.active, EventKind::Rejected);

    // Accepted, and dropped before the peer's first message.
    let mut peer = Peer::connect(ends.addr());
    peer.send_frame(&request_p2p(iwarp_mpa::RtrTypes::all()));
    let event = expect(&ends.passive, EventKind::ConnectRequest);
    let qp = ends.world.qp();
    event.id.accept(&qp, ConnParam::default()).unwrap();
    peer.read_reply();
    drop(event);
    peer.expect_end();

    // Connected: the other side hears of it, this one does not.
    let (Pair { active, passive: _passive, active_qp: _a, passive_qp: _p }, events) =
        ends.connect(b"", b"");
    drop(events);
    drop(active);
    expect(&ends.passive, EventKind::Disconnected);
    expect_none(&ends.active);
    expect_none(&ends.passive);
}

#[test]
fn fc_046_calls_in_the_wrong_state_say_so_and_change_nothing() {
    let world = World::new();
    let channel = world.channel();
    let qp = world.qp();
    let refused = |result: Result<(), ConnectError>| match result {
        Err(error @ ConnectError::State { .. }) => {
            assert_eq!(error.errno(), 22);
            error.to_string()
        }
        other => panic!("{other:?}"),
    };

    let fresh = Id::new(&channel);
    assert!(refused(fresh.disconnect()).contains("neither bound nor connected"));
    refused(fresh.accept(&qp, ConnParam::default()));
    refused(fresh.reject(b""));
    refused(fresh.listen(1));
    assert_eq!((fresh.local_addr(), fresh.peer_addr()), (None, None));

    let bound = Id::new(&channel);
    bound.bind("127.0.0.1:0", BindOptions::default()).unwrap();
    refused(bound.bind("127.0.0.1:0", BindOptions::default()));
    assert!(refused(bound.disconnect()).contains("only bound"));
    refused(bound.accept(&qp, ConnParam::default()));

    bound.listen(1).unwrap();
    refused(bound.listen(1));
    assert!(refused(bound.connect("127.0.0.1:1", &qp, ConnParam::default())).contains("listens"));
    refused(bound.disconnect());

    let (listener, addr) = raw_listener();
    let connecting = Id::new(&channel);
    connecting.connect(addr, &qp, ConnParam::default()).unwrap();
    refused(connecting.connect(addr, &qp, ConnParam::default()));
    assert!(refused(connecting.disconnect()).contains("connecting"));
    refused(connecting.listen(1));
    assert_eq!(connecting.peer_addr(), Some(addr));
    Peer::accept(&listener).reset();
    Peer::accept(&listener).reset();
    expect(&channel, EventKind::Rejected);
    assert!(refused(connecting.disconnect()).contains("failed"));
    refused(connecting.connect(addr, &qp, ConnParam::default()));
    expect_none(&channel);

    // An id that is over stays so, but disconnecting it again is no error (FC-047).
    let ends = Ends::new();
    let (pair, _events) = ends.connect(b"", b"");
    pair.active.disconnect().unwrap();
    expect(&ends.active, EventKind::Disconnected);
    pair.active.disconnect().unwrap();
    let again = pair.active.connect(ends.addr(), &ends.world.qp(), ConnParam::default());
    assert!(refused(again).contains("is over"));
    assert_eq!(pair.active.peer_addr(), Some(ends.addr()));
}

#[test]
fn fc_047_both_sides_disconnect_at_once() {
    let ends = Ends::new();
    for round in 0..60 {
        let (pair, _events) = ends.connect(b"", b"");
        let barrier = Arc::new(Barrier::new(2));
        let other = std::thread::spawn({
            let (barrier, id) = (Arc::clone(&barrier), pair.passive.clone());
            move || {
                barrier.wait();
                id.disconnect()
            }
        });
        barrier.wait();
        if round % 3 != 2 {
            pair.active.disconnect().unwrap();
        }
        other.join().unwrap().unwrap();
        expect(&ends.active, EventKind::Disconnected);
        expect(&ends.passive, EventKind::Disconnected);
    }
    expect_none(&ends.active);
    expect_none(&ends.passive);
}

#[test]
fn fc_047_a_disconnect_with_much_queued_ends_once() {
    let ends = Ends::new();
    let region = ends.world.pd.alloc(1 << 20, Access::LOCAL_WRITE).unwrap();
    let (pair, _events) = ends.connect(b"", b"");
    for id in 0..4 {
        pair.passive_qp.post_recv(RecvRequest::new(4 + id, region.as_slice_all())).unwrap();
    }
    for id in 0..4 {
        pair.active_qp.post_send(SendRequest::send(id, region.as_slice_all())).unwrap();
    }
    pair.active.disconnect().unwrap();
    expect(&ends.active, EventKind::Disconnected);
    expect(&ends.passive, EventKind::Disconnected);
    // Every request comes back once, done or flushed.
    let mut ids: Vec<_> = ends.world.completions(8).iter().map(|wc| wc.wr_id).collect();
    ids.sort_unstable();
    assert_eq!(ids, [0, 1, 2, 3, 4, 5, 6, 7]);
    expect_none(&ends.active);
    expect_none(&ends.passive);
}

#[test]
fn a_disconnect_says_what_ended_the_connection() {
    let ends = Ends::new();
    let told = || {
        let [active, passive] = [&ends.active, &ends.passive]
            .map(|channel| expect(channel, EventKind::Disconnected).reason);
        (active.expect("a reason"), passive.expect("a reason"))
    };
    let (pair, _events) = ends.connect(b"", b"");
    pair.active.disconnect().unwrap();
    let (_, passive) = told();
    assert_eq!(passive, CloseReason::Orderly);

    let (pair, _events) = ends.connect(b"", b"");
    pair.passive_qp.modify(QpState::Sqe).unwrap();
    let (active, _) = told();
    assert!(matches!(active, CloseReason::PeerTerminated { .. }), "{active}");

    let (pair, _events) = ends.connect(b"", b"");
    pair.passive_qp.modify(QpState::Err).unwrap();
    let (active, _) = told();
    assert!(matches!(active, CloseReason::Lost(_)), "{active}");
}

#[test]
fn the_queue_pair_may_go_right_after_disconnect() {
    let ends = Ends::new();
    let (Pair { active, active_qp, .. }, _events) = ends.connect(b"", b"");
    active.disconnect().unwrap();
    active_qp.destroy().unwrap();
    drop(active_qp);
    expect(&ends.active, EventKind::Disconnected);
    expect(&ends.passive, EventKind::Disconnected);

    // Or without it.
    let (Pair { active: _active, passive: _passive, active_qp, passive_qp: _passive_qp }, _events) =
        ends.connect(b"", b"");
    drop(active_qp);
    expect(&ends.active, EventKind::Disconnected);
    expect(&ends.passive, EventKind::Disconnected);
}

#[test]
fn fc_048_events_and_destruction_in_two_threads() {
    const ROUNDS: usize = 150;
    let ends = Ends::new();
    // One thread fetches and accepts, another destroys queue pairs and ids as they disconnect.
    let (to_destroy, doomed) = std::sync::mpsc::channel::<(Id, QueuePair)>();
    let destroyer = std::thread::spawn(move || {
        for (id, qp) in doomed {
            qp.destroy().unwrap();
            drop(id);
        }
    });
    let passive = std::thread::spawn({
        let (channel, pd, cq) =
            (ends.passive.clone(), ends.world.pd.clone(), ends.world.cq.clone());
        move || {
            let mut qps = HashMap::new();
            let mut gone = 0;
            while gone < ROUNDS {
                let event = channel.wait_event(GUARD).unwrap();
                match event.kind {
                    EventKind::ConnectRequest => {
                        let qp = pd.create_qp(&iwarp_verbs::QpConfig::new(&cq)).unwrap();
                        event.id.accept(&qp, ConnParam::default()).unwrap();
                        qps.insert(event.id, qp);
                    }
                    EventKind::Disconnected | EventKind::ConnectError => {
                        let qp = qps.remove(&event.id).unwrap();
                        to_destroy.send((event.id, qp)).unwrap();
                        gone += 1;
                    }
                    EventKind::Established => {}
                    other => panic!("{other:?}"),
                }
            }
        }
    });
    for _ in 0..ROUNDS {
        let (id, qp) = (Id::new(&ends.active), ends.world.qp());
        id.connect(ends.addr(), &qp, ConnParam::default()).unwrap();
        expect(&ends.active, EventKind::Established);
        id.disconnect().unwrap();
        qp.destroy().unwrap();
    }
    passive.join().unwrap();
    destroyer.join().unwrap();
}

#[test]
fn fc_049_ids_may_be_destroyed_while_an_event_is_handled() {
    let ends = Ends::new();
    let clients = [ends.ask(), ends.ask()];
    let first = expect(&ends.passive, EventKind::ConnectRequest);
    let second = expect(&ends.passive, EventKind::ConnectRequest);
    let Ends { listening, world, active, passive, .. } = ends;
    // While the second is handled the first goes, and the listener, and then the second itself.
    drop(first);
    drop(listening);
    assert!(second.listener.is_some(), "an event keeps what it names");
    drop(second);
    expect(&active, EventKind::Rejected);
    expect(&active, EventKind::Rejected);
    expect_none(&passive);
    drop((clients, world));
}

#[test]
fn the_descriptor_is_readable_while_an_event_is_there() {
    let ends = Ends::new();
    assert!(!readable(&ends.passive));
    let started = Instant::now();
    let (id, qp) = (Id::new(&ends.active), ends.world.qp());
    id.connect(ends.addr(), &qp, ConnParam::default()).unwrap();
    while !readable(&ends.passive) {
        assert!(started.elapsed() < GUARD);
        std::thread::sleep(Duration::from_millis(1));
    }
    assert!(ends.active.get_event().is_none());
    let event = ends.passive.get_event().unwrap();
    assert!(!readable(&ends.passive));
    assert!(ends.passive.get_event().is_none());

    // Events of an id that goes are taken back, descriptor and all.
    event.id.reject(b"").unwrap();
    while !readable(&ends.active) {
        assert!(started.elapsed() < GUARD);
        std::thread::sleep(Duration::from_millis(1));
    }
    drop(id);
    assert!(!readable(&ends.active));
    assert!(ends.active.get_event().is_none());
}

#[test]
fn an_id_takes_its_events_along_to_another_channel() {
    let ends = Ends::new();
    let other = ends.world.channel();
    let (id, qp) = (Id::new(&ends.active), ends.world.qp());
    id.connect(ends.addr(), &qp, ConnParam::default()).unwrap();
    let request = expect(&ends.passive, EventKind::ConnectRequest);
    let server = ends.world.qp();
    request.id.accept(&server, ConnParam::default().private_data(b"moved")).unwrap();
    expect(&ends.passive, EventKind::Established);
    let started = Instant::now();
    while !readable(&ends.active) {
        assert!(started.elapsed() < GUARD);
        std::thread::sleep(Duration::from_millis(1));
    }
    id.migrate(&other).unwrap();
    assert!(!readable(&ends.active) && readable(&other));
    assert_eq!(&expect(&other, EventKind::Established).private_data[..], b"moved");
    request.id.disconnect().unwrap();
    expect(&other, EventKind::Disconnected);
    assert!(ends.active.get_event().is_none());

    // Requests that come later go where their listener points.
    ends.listening.migrate(&other).unwrap();
    let (id, qp) = (Id::new(&ends.active), ends.world.qp());
    id.connect(ends.addr(), &qp, ConnParam::default()).unwrap();
    let request = expect(&other, EventKind::ConnectRequest);
    request.id.reject(b"").unwrap();
    expect(&ends.active, EventKind::Rejected);

    let foreign = World::new().channel();
    assert!(matches!(id.migrate(&foreign), Err(ConnectError::State { .. })));
}

#[test]
fn queue_pairs_of_another_device_are_refused() {
    let ends = Ends::new();
    let stranger = World::new();
    let qp = stranger.qp();
    let id = Id::new(&ends.active);
    let error = id.connect(ends.addr(), &qp, ConnParam::default()).unwrap_err();
    assert!(error.to_string().contains("another device"), "{error}");
    assert_eq!(qp.state(), QpState::Init);
    // The id can still be used.
    let (client, server) = (ends.world.qp(), ends.world.qp());
    id.connect(ends.addr(), &client, ConnParam::default()).unwrap();
    let request = expect(&ends.passive, EventKind::ConnectRequest);
    assert!(request.id.accept(&qp, ConnParam::default()).is_err());
    request.id.accept(&server, ConnParam::default()).unwrap();
    expect(&ends.active, EventKind::Established);
}

#[test]
fn a_queue_pair_that_goes_during_set_up_takes_the_connection_along() {
    let ends = Ends::new();
    let (id, qp) = (Id::new(&ends.active), ends.world.qp());
    id.connect(ends.addr(), &qp, ConnParam::default()).unwrap();
    let request = expect(&ends.passive, EventKind::ConnectRequest);
    drop(qp);
    let server = ends.world.qp();
    request.id.accept(&server, ConnParam::default()).unwrap();
    let event = expect(&ends.active, EventKind::ConnectError);
    assert!(matches!(event.status, Some(ConnectError::QueuePair(_))), "{event:?}");
    // CONN-27: before the first message, so it was never established.
    expect(&ends.passive, EventKind::ConnectError);
}

#[test]
fn receives_posted_before_are_there_for_the_first_message() {
    let ends = Ends::new();
    let region = ends.world.pd.alloc(64, Access::LOCAL_WRITE).unwrap();
    let (id, qp) = (Id::new(&ends.active), ends.world.qp());
    qp.post_recv(RecvRequest::new(1, region.slice(0..32).unwrap())).unwrap();
    id.connect(ends.addr(), &qp, ConnParam::default()).unwrap();
    let request = expect(&ends.passive, EventKind::ConnectRequest);
    let server = ends.world.qp();
    server.post_recv(RecvRequest::new(2, region.slice(32..64).unwrap())).unwrap();
    request.id.accept(&server, ConnParam::default()).unwrap();
    expect(&ends.active, EventKind::Established);
    expect(&ends.passive, EventKind::Established);
    qp.post_send(SendRequest::send_inline(3, b"ping")).unwrap();
    server.post_send(SendRequest::send_inline(4, b"pong")).unwrap();
    let done = ends.world.completions(4);
    assert!(done.iter().all(|wc| wc.status == WcStatus::Success));
    let mut text = [0; 4];
    region.read_at(32, &mut text).unwrap();
    assert_eq!(&text, b"ping");
    region.read_at(0, &mut text).unwrap();
    assert_eq!(&text, b"pong");
}

#[tokio::test]
async fn events_can_be_awaited_and_a_dropped_wait_takes_none() {
    let ends = Ends::new();
    // Given up before anything came.
    for _ in 0..3 {
        let waiting = ends.passive.next();
        assert!(tokio::time::timeout(Duration::from_millis(5), waiting).await.is_err());
    }
    let (id, qp) = (Id::new(&ends.active), ends.world.qp());
    id.connect(ends.addr(), &qp, ConnParam::default()).unwrap();
    let request = tokio::time::timeout(GUARD, ends.passive.next()).await.unwrap();
    assert_eq!(request.kind, EventKind::ConnectRequest);
    request.id.reject(b"later").unwrap();
    let event = tokio::time::timeout(GUARD, ends.active.next()).await.unwrap();
    assert_eq!((event.kind, &event.private_data[..]), (EventKind::Rejected, &b"later"[..]));
    assert!(matches!(event.status, Some(cm::ConnectError::Rejected { .. })));
}
