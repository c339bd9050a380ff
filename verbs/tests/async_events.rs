//! What the program is told of the end of a connection beside completions: the contract's table of causes, a
//! row at a time, with a peer that does what the row says.

#![allow(clippy::unwrap_used, reason = "a failed step is a failed test")]

mod cm_support;

use cm_support::{GUARD, Peer, SEND, World, opcode, request_v1, send_ulpdu, write_ulpdu};
use iwarp_verbs::AsyncEventKind::{QpAccessErr, QpFatal, QpReqErr};
use iwarp_verbs::cm::ConnParam;
use iwarp_verbs::{
    AsyncEventKind, EventSource, QpState, QueuePair, RecvRequest, RemoteMemory, SendRequest,
};

const NOWHERE: RemoteMemory = RemoteMemory { addr: 0x1000, len: 1 << 20, rkey: 0x1234_5678 };

/// The ULPDU of a Terminate without headers.
fn terminate(code: u16) -> Vec<u8> {
    let mut ulpdu = vec![0x41, 0x47, 0, 0, 0, 0];
    for word in [2_u32, 1, 0] {
        ulpdu.extend_from_slice(&word.to_be_bytes());
    }
    ulpdu.extend_from_slice(&code.to_be_bytes());
    ulpdu.extend_from_slice(&[0, 0]);
    ulpdu
}

/// Ends the connection in one way or other.
type Cause = fn(Peer, &QueuePair);

fn ulpdu(mut peer: Peer, ulpdu: &[u8]) {
    let fpdu = peer.fpdu(ulpdu);
    peer.send(&fpdu);
    linger(peer);
}

/// Reads to the end, so that the other side sees an orderly one.
fn linger(mut peer: Peer) {
    peer.fin();
    while peer.read_ulpdu().is_some() {}
}

/// Contract of errors and events: each cause, and what the program is told.
const CAUSES: &[(&str, Cause, Option<AsyncEventKind>)] = &[
    ("Terminate 0/1/02", |peer, _| ulpdu(peer, &terminate(0x0102)), Some(QpAccessErr)),
    ("Terminate 1/1/01", |peer, _| ulpdu(peer, &terminate(0x1101)), Some(QpAccessErr)),
    ("Terminate 0/2/06", |peer, _| ulpdu(peer, &terminate(0x0206)), Some(QpReqErr)),
    ("Terminate 1/2/03", |peer, _| ulpdu(peer, &terminate(0x1203)), Some(QpReqErr)),
    ("Terminate 2/0/02", |peer, _| ulpdu(peer, &terminate(0x2002)), Some(QpFatal)),
    ("Terminate 0/0/00", |peer, _| ulpdu(peer, &terminate(0x0000)), Some(QpFatal)),
    ("a reset", |peer, _| peer.reset(), Some(QpFatal)),
    (
        "a CRC that is wrong",
        |mut peer, _| {
            let mut fpdu = peer.fpdu(&send_ulpdu(2, b"text"));
            fpdu[20] ^= 1;
            peer.send(&fpdu);
            linger(peer);
        },
        Some(QpFatal),
    ),
    (
        "FIN inside of an FPDU",
        |mut peer, _| {
            let fpdu = peer.fpdu(&send_ulpdu(2, b"text"));
            peer.send(&fpdu[..9]);
            linger(peer);
        },
        Some(QpFatal),
    ),
    (
        "a version that is not",
        |peer, _| {
            let mut bad = send_ulpdu(2, b"");
            bad[0] = 0x43;
            ulpdu(peer, &bad);
        },
        Some(QpReqErr),
    ),
    (
        "an opcode that is not",
        |peer, _| {
            let mut bad = send_ulpdu(2, b"");
            bad[1] = 0x4f;
            ulpdu(peer, &bad);
        },
        Some(QpReqErr),
    ),
    ("a message that skips one", |peer, _| ulpdu(peer, &send_ulpdu(3, b"")), Some(QpReqErr)),
    (
        "a queue that is not",
        |peer, _| {
            let mut bad = send_ulpdu(2, b"");
            bad[9] = 9;
            ulpdu(peer, &bad);
        },
        Some(QpReqErr),
    ),
    (
        "a Write that is refused",
        |peer, _| ulpdu(peer, &write_ulpdu(0x7777_7777, 0, b"text")),
        Some(QpAccessErr),
    ),
    // V9: the completion tells.
    (
        "a message too long for its receive",
        |peer, _| ulpdu(peer, &send_ulpdu(2, b"too long")),
        None,
    ),
    (
        "FIN while a Read is outstanding",
        |peer, qp| {
            qp.post_send(SendRequest::read(1, (), NOWHERE)).unwrap();
            linger(peer);
        },
        Some(QpReqErr),
    ),
    ("a clean close of the peer", |peer, _| linger(peer), None),
    (
        "a clean close of this side",
        |peer, qp| {
            qp.disconnect();
            linger(peer);
        },
        None,
    ),
    (
        "an orderly end by modify",
        |peer, qp| {
            qp.modify(QpState::Sqd).unwrap();
            linger(peer);
        },
        None,
    ),
    (
        "a Terminate by modify",
        |peer, qp| {
            qp.modify(QpState::Sqe).unwrap();
            linger(peer);
        },
        None,
    ),
    ("a reset by modify", |_, qp| qp.modify(QpState::Err).unwrap(), None),
];

/// Contract of errors and events: each cause raises its event, about its queue pair, once, and no other.
#[test]
fn every_cause_of_an_end_raises_its_event() {
    let world = World::new();
    let listener = world.listener();
    for &(what, cause, expected) in CAUSES {
        let mut peer = Peer::connect(listener.local_addr());
        peer.send_frame(&request_v1(b""));
        let qp = world.qp();
        for id in 1..=2 {
            qp.post_recv(RecvRequest::new(id, ())).unwrap();
        }
        let accepting = listener.accept(GUARD).unwrap().accept(&qp, ConnParam::default()).unwrap();
        peer.read_reply();
        let connection = accepting.wait(GUARD).unwrap();
        // In full operation both ways.
        let first = peer.fpdu(&send_ulpdu(1, b""));
        peer.send(&first);
        assert!(world.cq.wait(GUARD).unwrap().expect(what).is_success(), "{what}");
        qp.post_send(SendRequest::send(3, ()).unsignaled()).unwrap();
        assert_eq!(opcode(&peer.read_ulpdu().unwrap()), SEND);

        cause(peer, &qp);
        connection.wait_closed(GUARD).expect(what);
        assert_eq!(qp.state(), QpState::Err, "{what}");
        let mut told = Vec::new();
        while let Some(event) = world.device.next_async_event().unwrap() {
            match event.source() {
                EventSource::QueuePair(about) => {
                    assert_eq!(about.upgrade().as_ref(), Some(&qp), "{what}");
                }
                other => panic!("{what}: {other:?}"),
            }
            told.push(event.kind());
        }
        assert_eq!(told, expected.into_iter().collect::<Vec<_>>(), "{what}");
        qp.destroy().unwrap();
    }
}

/// One descriptor tells of all of a device's events, and a task can await them.
#[tokio::test(flavor = "current_thread")]
async fn events_are_awaited_and_keep_no_queue_pair_alive() {
    let world = World::new();
    let listener = world.listener();
    let mut peer = Peer::connect(listener.local_addr());
    peer.send_frame(&request_v1(b""));
    let qp = world.qp();
    let request = listener.next().await;
    let accepting = request.accept(&qp, ConnParam::default()).unwrap();
    peer.read_reply();
    let (event, ()) = tokio::join!(world.device.async_event(), async { peer.reset() });
    let (kind, source) = event.unwrap().into_unacknowledged();
    assert_eq!(kind, AsyncEventKind::QpFatal);
    let EventSource::QueuePair(about) = source else { panic!("{source:?}") };
    assert_eq!(about.number(), qp.number());
    about.upgrade().unwrap().ack_events(1).unwrap();
    qp.destroy().unwrap();
    drop((qp, accepting));
    assert!(about.upgrade().is_none());
}
