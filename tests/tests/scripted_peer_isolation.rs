//! What goes wrong with one connection stays with it: overrun queues, races with the end, processes started meanwhile.
#![allow(
    missing_docs,
    clippy::unwrap_used,
    clippy::cast_possible_truncation,
    reason = "test code; a panic is a failed test"
)]

use std::{
    collections::HashMap,
    process::Command,
    sync::atomic::{AtomicUsize, Ordering},
    thread,
    time::Duration,
};

use iwarp_mpa::{RtrTypes, StartupFrame};
use iwarp_tests::{
    child::GUARD,
    live::{Live, Role},
    peer::{self, Heard, Peer},
};
use iwarp_verbs::{
    Access, AsyncEventKind, DeviceConfig, Error, QpConfig, QpState, RemoteMemory, SendRequest,
    cm::{ConnParam, EventChannel, EventKind, Id},
};

fn live() -> Live {
    Live::new(DeviceConfig::default())
}

/// SEC-09, FC-042: a completion queue that overruns takes its own queue pairs along, and no other.
#[test]
fn fc_042_an_overrun_hurts_its_own_queue_pairs_only() {
    let live = live();
    let mut bystander = live.bystander();
    let mut end = live.end(0);
    let small = live.device.create_cq(4).unwrap();
    let config = QpConfig::new(&small).recv_cq(&end.recv_cq).max_send_wr(64);
    end.qp = live.pd.create_qp(&config).unwrap();
    let (mut peer, served) =
        live.establish_end(Role::Initiator, &peer::request(), ConnParam::default(), end);
    for id in 0..10 {
        served.end.qp.post_send(SendRequest::send_inline(id, b"x")).unwrap();
    }
    assert!(!served.closed().is_orderly());
    while let Heard::Ulpdu(_) = peer.hear() {}
    drop(peer);
    // Nothing was overwritten: the first four are as they were.
    for id in 0..4 {
        let completion = iwarp_tests::live::next(&small);
        assert_eq!((completion.wr_id, completion.is_success()), (id, true));
    }
    assert!(matches!(small.wait(GUARD), Err(Error::CqOverrun { capacity: 4 })));
    let mut events = Vec::new();
    while let Some(event) = live.device.next_async_event().unwrap() {
        events.push(event.kind());
    }
    assert_eq!(
        events.iter().filter(|kind| **kind == AsyncEventKind::CqErr).count(),
        1,
        "{events:?}"
    );
    bystander.goes_on();
}

/// FC-023: the socket becomes writable again at the very moment that the peer resets.
#[test]
fn fc_023_writable_again_and_reset() {
    let live = live();
    let mut bystander = live.bystander();
    let source = live.pd.alloc(1 << 20, Access::empty()).unwrap();
    let peers = RemoteMemory { addr: 0, len: 1 << 20, rkey: 1 };
    for round in 0..100u64 {
        let (mut peer, served) =
            live.establish(Role::Initiator, &peer::request(), ConnParam::default(), 0);
        for id in 0..8 {
            served.end.qp.post_send(SendRequest::write(id, source.as_slice_all(), peers)).unwrap();
        }
        // More than sockets hold. Some of it is taken, so that there is room again; then RST.
        for _ in 0..round % 40 {
            peer.hear_ulpdu();
        }
        if round % 3 == 0 {
            thread::sleep(Duration::from_micros(round * 7));
        }
        peer.reset();
        served.closed();
        let ids: Vec<u64> = served.end.drain().iter().map(|it| it.wr_id).collect();
        assert_eq!(ids, (0..8).collect::<Vec<_>>(), "round {round}");
    }
    bystander.goes_on();
}

/// FC-064: a process started meanwhile has no descriptor of ours, and so holds no connection open.
#[test]
fn fc_064_other_processes_hold_nothing_open() {
    let live = live();
    let (mut peer, served) =
        live.establish(Role::Initiator, &peer::request(), ConnParam::default(), 0);
    let mut other = Command::new("sleep").arg("60").spawn().unwrap();
    served.connection.disconnect();
    let heard = peer.hear();
    let running = matches!(other.try_wait(), Ok(None));
    other.kill().unwrap();
    other.wait().unwrap();
    assert_eq!((heard, running), (Heard::Fin, true));
}

/// FC-048, FC-049: one thread takes connection events while another destroys queue pairs and ids; and requests are
/// destroyed, and the listener itself, while one of its requests is being looked at.
#[test]
fn fc_048_destruction_while_events_are_taken() {
    const CONNECTIONS: usize = 150;
    let live = live();
    let channel = EventChannel::new(&live.device).unwrap();
    let listener = Id::new(&channel);
    listener.bind("127.0.0.1:0", iwarp_verbs::cm::BindOptions::default()).unwrap();
    listener.listen(0).unwrap();
    let addr = listener.local_addr().unwrap();
    let (established, gone) = (AtomicUsize::new(0), AtomicUsize::new(0));
    thread::scope(|threads| {
        threads.spawn(|| {
            let (ended, to_destroy) = std::sync::mpsc::channel::<(Id, iwarp_verbs::QueuePair)>();
            threads.spawn(|| {
                for (id, qp) in to_destroy {
                    qp.destroy().unwrap();
                    drop(id);
                    gone.fetch_add(1, Ordering::Relaxed);
                }
            });
            let mut open = HashMap::new();
            let mut refused: Option<Id> = None;
            let mut seen = 0;
            while seen < CONNECTIONS * 2 {
                let event = channel.wait_event(Some(GUARD)).expect("an event");
                match event.kind {
                    EventKind::ConnectRequest => {
                        seen += 1;
                        // The request before this one goes while this one is being handled.
                        drop(refused.take());
                        if seen % 2 == 0 {
                            refused = Some(event.id);
                            continue;
                        }
                        let end = live.end(0);
                        event.id.accept(&end.qp, ConnParam::default()).unwrap();
                        open.insert(end.qp.number(), (event.id, end.qp));
                    }
                    EventKind::Established => {
                        established.fetch_add(1, Ordering::Relaxed);
                    }
                    EventKind::Disconnected | EventKind::ConnectError | EventKind::Rejected => {}
                    other => panic!("{other:?}"),
                }
                // Whatever they are doing at this time.
                open.retain(|_, (id, qp)| {
                    let over = qp.state() != QpState::Rts && qp.state() != QpState::Init;
                    if over {
                        ended.send((id.clone(), qp.clone())).unwrap();
                    }
                    !over
                });
            }
        });
        threads.spawn(|| {
            for round in 0..CONNECTIONS * 2 {
                let mut peer = Peer::dial(addr);
                peer.send_startup(&peer::request());
                // Some wait for an answer, some leave before.
                match round % 3 {
                    0 => peer.half_close(),
                    1 => peer.reset(),
                    _ => {
                        let _ = peer.is_silent_for(Duration::from_millis(2));
                    }
                }
            }
        });
    });
    assert!(established.into_inner() + gone.into_inner() > 0);
    // The listener goes while a request of its own is in hand.
    let mut peer = Peer::dial(addr);
    peer.send_startup(&peer::request());
    let request = loop {
        let event = channel.wait_event(Some(GUARD)).expect("an event");
        if event.kind == EventKind::ConnectRequest {
            break event;
        }
    };
    drop(listener);
    let end = live.end(0);
    request.id.accept(&end.qp, ConnParam::default()).unwrap();
    let reply = peer.read_startup(iwarp_mpa::FrameKind::Reply);
    assert!(!reply.reject);
}

/// CONN-01, CONN-10, MPA-036: what a Request says follows from what the program asked for, and every header says version 1.
#[test]
fn requests_say_what_the_program_asked_for() {
    let live = live();
    for (param, revision, peer_to_peer) in [
        (ConnParam::default(), 2, true),
        (ConnParam::default().rtr(RtrTypes::empty()), 2, false),
        (ConnParam::default().revision(iwarp_mpa::Revision::V1), 1, false),
    ] {
        let listener = peer::PeerListener::bind();
        let end = live.end(0);
        let param = param.ird(3).ord(5).private_data(b"all mine");
        let connecting = iwarp_verbs::cm::connect(listener.addr(), &end.qp, param).unwrap();
        let mut peer = listener.accept();
        let request = peer.read_startup(iwarp_mpa::FrameKind::Request);
        assert_eq!(request.revision, revision);
        assert_eq!(&request.private_data[..], b"all mine");
        let enhanced = request.enhanced.map(|it| (it.peer_to_peer, it.ird.count(), it.ord.count()));
        assert_eq!(enhanced, (revision == 2).then_some((peer_to_peer, Some(3), Some(5))));
        let reply = StartupFrame {
            revision,
            enhanced: request.enhanced.map(|it| iwarp_mpa::Enhanced {
                rtr: it.rtr & RtrTypes::WRITE,
                ..peer::depths(5, 3)
            }),
            ..peer::reply()
        };
        let reply = StartupFrame {
            enhanced: reply.enhanced.map(|it| iwarp_mpa::Enhanced { peer_to_peer, ..it }),
            ..reply
        };
        peer.send_startup(&reply);
        peer.begin(&request, &reply);
        let _connection = connecting.wait(GUARD).unwrap();
        end.qp.post_send(SendRequest::send_inline(0, b"x")).unwrap();
        let fpdus = if peer_to_peer { 2 } else { 1 };
        for _ in 0..fpdus {
            let ulpdu = peer.hear_ulpdu();
            assert_eq!((ulpdu[0] & 0x3f, ulpdu[1] >> 6), (0x01, 1), "reserved bits, DV and RV");
        }
    }
}
