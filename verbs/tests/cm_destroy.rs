//! Explicit destruction of ids, listeners and channels: what it waits for, what it refuses, what it takes along.
#![allow(clippy::unwrap_used, reason = "a failed step is a failed test")]

mod cm_support;

use std::net::{TcpListener, TcpStream};
use std::sync::mpsc;
use std::thread;

use cm_support::*;
use iwarp_verbs::Error;
use iwarp_verbs::cm::{ConnParam, ConnectError, EventKind, Id, ListenConfig, Listener};

#[test]
fn fc_040_destroy_waits_until_fetched_events_are_acknowledged() {
    let ends = Ends::new();
    let (pair, [_request, established, _there]) = ends.connect(b"", b"");
    pair.active.disconnect().unwrap();
    let disconnected = expect(&ends.active, EventKind::Disconnected);
    // A copy counts for itself.
    let mut fetched = vec![disconnected.clone(), established, disconnected];
    let (done, destroyed) = mpsc::channel();
    let id = pair.active.clone();
    let thread = thread::spawn(move || {
        id.destroy().unwrap();
        done.send(()).unwrap();
    });
    while fetched.len() > 1 {
        fetched.pop();
        assert!(destroyed.recv_timeout(QUIET).is_err(), "{} are not acknowledged", fetched.len());
    }
    fetched.pop();
    destroyed.recv_timeout(GUARD).unwrap();
    thread.join().unwrap();
    let again = pair.active.destroy().unwrap_err();
    assert!(matches!(again, ConnectError::State { call: "destroy", .. }), "{again}");
    assert_eq!(again.errno(), 22);
}

#[test]
fn fc_040_events_that_nobody_fetched_hold_up_nobody() {
    let ends = Ends::new();
    let (pair, events) = ends.connect(b"", b"");
    drop(events);
    pair.active.disconnect().unwrap();
    expect(&ends.passive, EventKind::Disconnected);
    pair.active.destroy().unwrap();
    expect_none(&ends.active);
    assert!(pair.active.disconnect().is_err(), "for all handles");
}

#[test]
fn destroy_ends_what_goes_on() {
    let ends = Ends::new();
    // FC-044: a set-up.
    let (listener, silent) = raw_listener();
    let (id, qp) = (Id::new(&ends.active), ends.world.qp());
    id.connect(silent, &qp, ConnParam::default()).unwrap();
    let mut peer = Peer::accept(&listener);
    peer.read_request();
    id.destroy().unwrap();
    peer.expect_end();
    // A connection.
    let (pair, events) = ends.connect(b"", b"");
    drop(events);
    pair.passive.destroy().unwrap();
    expect(&ends.active, EventKind::Disconnected);
    // A listener, with a request that nobody took.
    let _client = ends.ask_and_wait();
    let addr = ends.addr();
    ends.listening.destroy().unwrap();
    assert!(!readable(&ends.passive));
    expect(&ends.active, EventKind::Rejected);
    expect_none(&ends.passive);
    assert!(TcpStream::connect(addr).is_err(), "somebody listens still");
}

#[test]
fn fc_049_a_request_holds_up_neither_its_id_nor_its_listener() {
    let ends = Ends::new();
    let clients = [ends.ask(), ends.ask()];
    let first = expect(&ends.passive, EventKind::ConnectRequest);
    let second = expect(&ends.passive, EventKind::ConnectRequest);
    // In the handling of the second: the other one, the listener, and itself.
    first.id.destroy().unwrap();
    second.listener.as_ref().unwrap().destroy().unwrap();
    second.id.destroy().unwrap();
    drop((first, second));
    for _ in &clients {
        expect(&ends.active, EventKind::Rejected);
    }
    expect_none(&ends.passive);
}

#[test]
fn a_channel_goes_when_no_id_uses_it() {
    let busy = |result: Result<(), Error>, count| match result {
        Err(error @ Error::Busy { .. }) => {
            assert_eq!(error.errno(), 16);
            let text = error.to_string();
            assert!(text.contains(&format!("event channel is in use by {count}")), "{text}");
        }
        other => panic!("{other:?}"),
    };
    let ends = Ends::new();
    let (pair, events) = ends.connect(b"", b"");
    drop(events);
    // The listener, and the id that came through it.
    busy(ends.passive.clone().destroy(), "2 ids");
    pair.passive.destroy().unwrap();
    busy(ends.passive.clone().destroy(), "1 id");
    // A request that waits in it is a user, too, as long as somebody could fetch it.
    let (id, _qp) = ends.ask_and_wait();
    busy(ends.passive.clone().destroy(), "2 ids");
    // Who waits for an event does not hold it, and finds out.
    let channel = ends.world.channel();
    let waiter = thread::spawn({
        let channel = channel.clone();
        move || channel.wait_event(None).is_none()
    });
    thread::sleep(QUIET);
    channel.clone().destroy().unwrap();
    assert!(matches!(channel.destroy(), Err(Error::Destroyed { .. })));
    assert!(waiter.join().unwrap());
    ends.listening.destroy().unwrap();
    ends.passive.destroy().unwrap();

    // An id that went elsewhere is no user any more.
    let elsewhere = ends.world.channel();
    for id in [&pair.active, &id] {
        id.migrate(&elsewhere).unwrap();
    }
    let gone = ends.active.clone();
    ends.active.destroy().unwrap();
    let error = id.migrate(&gone).unwrap_err();
    assert!(error.to_string().contains("channel was destroyed"), "{error}");
    drop((pair, id));
    elsewhere.destroy().unwrap();
}

#[test]
fn requests_follow_their_listener_to_another_channel() {
    let ends = Ends::new();
    let _client = ends.ask_and_wait();
    let other = ends.world.channel();
    ends.listening.migrate(&other).unwrap();
    assert!(!readable(&ends.passive) && readable(&other));
    let request = expect(&other, EventKind::ConnectRequest);
    // What happens to the new id is told there as well.
    let server = ends.world.qp();
    request.id.accept(&server, ConnParam::default()).unwrap();
    expect(&other, EventKind::Established);
    request.id.disconnect().unwrap();
    expect(&other, EventKind::Disconnected);
    expect_none(&ends.passive);
}

#[test]
fn a_destroyed_listener_frees_its_port() {
    let world = World::new();
    let listener = world.listener();
    let addr = listener.local_addr();
    let connecting = iwarp_verbs::cm::connect(addr, &world.qp(), ConnParam::default()).unwrap();
    let taken = listener.accept(GUARD).unwrap();
    listener.destroy();
    drop(TcpListener::bind(addr).unwrap());
    // What was taken from it lives on.
    let accepting = taken.accept(&world.qp(), ConnParam::default()).unwrap();
    accepting.wait(GUARD).unwrap();
    connecting.wait(GUARD).unwrap();
}

/// FC-012: whatever is closed meanwhile, the peer gets the reason.
#[test]
fn fc_012_a_rejection_outlives_the_destruction_of_its_device() {
    for _ in 0..20 {
        let World { device, pd, cq } = World::new();
        let listener = Listener::bind(&device, "127.0.0.1:0", ListenConfig::default()).unwrap();
        let mut peer = Peer::connect(listener.local_addr());
        peer.send_frame(&request_v1(b""));
        let request = listener.accept(GUARD).unwrap();
        request.reject(b"closing down").unwrap();
        drop((listener, pd, cq));
        let closing = thread::spawn(move || device.destroy());
        assert_eq!(&peer.read_reply().private_data[..], b"closing down");
        peer.expect_fin();
        drop(peer);
        closing.join().unwrap().unwrap();
    }
}
