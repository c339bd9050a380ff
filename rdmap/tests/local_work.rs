//! Operations that send nothing: their turn, their fence, and what becomes of them when a stream ends.
#![allow(clippy::indexing_slicing, clippy::cast_possible_truncation, reason = "a test")]

mod common;

use std::time::Duration;

use common::endpoint::{
    Endpoint, FLUSHED, OPEN, SEND, SINK, SUCCESS, closed, outcomes, read, target, terminated, write,
};
use common::peer::{Peer, request, seen};
use common::{CRC, config, ramp_of};
use iwarp_mpa::Role;
use iwarp_rdmap::{Initiator, Opcode, OperationKind, Outcome, State, TerminateCode};

const WORK: OperationKind = OperationKind::Local;

fn endpoint() -> Endpoint {
    target(config(Role::Initiator), 2)
}

fn opcodes(octets: &[u8]) -> Vec<Opcode> {
    seen(octets).iter().map(|fpdu| fpdu.opcode).collect()
}

#[test]
fn work_is_done_between_what_is_ahead_and_what_is_behind() {
    let mut endpoint = endpoint();
    endpoint.submit(0, write(9, 0), 0, 4);
    endpoint.submit(1, WORK, 0, 0);
    endpoint.submit(2, WORK, 0, 0);
    endpoint.submit(3, SEND, 0, 4);
    let first = endpoint.record().expect("the Write");
    assert_eq!(opcodes(&first), [Opcode::Write], "what is behind the work is not begun");
    assert!(endpoint.memory.performed.is_empty(), "TCP has not taken what is ahead");
    endpoint.accepted(first.len());
    let second = endpoint.record().expect("the Send");
    assert_eq!(opcodes(&second), [Opcode::Send]);
    assert_eq!(endpoint.memory.performed, [1, 2]);
    assert_eq!(outcomes(&endpoint.events()), [0, 1, 2].map(|id| (id, SUCCESS)));
    endpoint.accepted(second.len());
    assert_eq!(outcomes(&endpoint.events()), [(3, SUCCESS)]);
}

#[test]
fn a_fence_waits_for_reads_and_only_a_fence() {
    let mut endpoint = endpoint();
    endpoint.submit(0, read(7, 0), 0, 4);
    endpoint.submit(1, WORK, 0, 0);
    endpoint.submit_fenced(2, WORK, 0, 0);
    endpoint.submit(3, SEND, 0, 4);
    assert_eq!(opcodes(&endpoint.transmit()), [Opcode::ReadRequest]);
    assert_eq!(endpoint.memory.performed, [1]);
    // ORD-13: done, but reported behind the Read.
    assert!(outcomes(&endpoint.events()).is_empty());
    let mut peer = Peer::new(CRC);
    endpoint.feed(&peer.response(SINK, 0x2000, b"data", true));
    assert_eq!(opcodes(&endpoint.transmit()), [Opcode::Send]);
    assert_eq!(endpoint.memory.performed, [1, 2]);
    assert_eq!(outcomes(&endpoint.events()), [0, 1, 2, 3].map(|id| (id, SUCCESS)));
}

#[test]
fn the_peer_is_answered_while_work_waits_for_its_fence() {
    let mut endpoint = endpoint();
    endpoint.submit(0, read(7, 0), 0, 4);
    endpoint.submit_fenced(1, WORK, 0, 0);
    endpoint.transmit();
    let mut peer = Peer::new(CRC);
    endpoint.feed(&peer.request(1, request(OPEN, 0x1000, 4)));
    assert_eq!(opcodes(&endpoint.transmit()), [Opcode::ReadResponse]);
    assert!(endpoint.memory.performed.is_empty());
}

#[test]
fn a_responder_that_may_not_send_yet_works() {
    // MPA-029 holds messages back, and this is none.
    let mut endpoint = target(config(Role::Responder), 1);
    endpoint.submit(0, WORK, 0, 0);
    endpoint.submit(1, SEND, 0, 4);
    endpoint.submit(2, WORK, 0, 0);
    assert!(endpoint.transmit().is_empty());
    assert_eq!(endpoint.memory.performed, [0]);
    assert_eq!(outcomes(&endpoint.events()), [(0, SUCCESS)]);
    endpoint.feed(&Peer::new(CRC).write(OPEN, 0x1000, b"first", true));
    assert_eq!(opcodes(&endpoint.transmit()), [Opcode::Send]);
    assert_eq!(endpoint.memory.performed, [0, 2]);
}

#[test]
fn refused_work_ends_the_stream_and_is_the_culprit() {
    let mut endpoint = endpoint();
    endpoint.memory.broken.push(1);
    endpoint.submit(0, SEND, 0, 4);
    endpoint.submit(1, WORK, 0, 0);
    endpoint.submit(2, WORK, 0, 0);
    endpoint.submit(3, SEND, 0, 4);
    assert_eq!(opcodes(&endpoint.transmit()), [Opcode::Send, Opcode::Terminate]);
    let events = endpoint.events();
    assert_eq!(
        outcomes(&events),
        [(0, SUCCESS), (1, Outcome::LocalOperation), (2, FLUSHED), (3, FLUSHED)]
    );
    assert_eq!(terminated(&events), Some((Initiator::Local, TerminateCode::LOCAL_CATASTROPHIC)));
    assert!(endpoint.memory.performed.is_empty(), "nothing behind it takes effect");
}

#[test]
fn an_orderly_close_does_the_work_first() {
    let mut endpoint = endpoint();
    endpoint.submit(0, WORK, 0, 0);
    endpoint.stream.close(endpoint.now);
    assert_eq!(endpoint.stream.state(), State::Finishing);
    assert!(endpoint.transmit().is_empty());
    assert_eq!(endpoint.memory.performed, [0]);
    assert_eq!(endpoint.stream.state(), State::Closing);
    endpoint.eof();
    let events = endpoint.events();
    assert_eq!(outcomes(&events), [(0, SUCCESS)]);
    assert_eq!(closed(&events).map(|(clean, _)| clean), Some(true));
}

#[test]
fn work_that_waits_is_flushed_with_the_rest() {
    let mut endpoint = endpoint();
    endpoint.submit(0, read(7, 0), 0, 4);
    endpoint.submit_fenced(1, WORK, 0, 0);
    endpoint.submit(2, WORK, 0, 0);
    endpoint.transmit();
    endpoint.stream.disconnect(endpoint.now);
    endpoint.wait(Duration::from_hours(1));
    assert!(endpoint.transmit().is_empty());
    assert_eq!(outcomes(&endpoint.events()), [0, 1, 2].map(|id| (id, FLUSHED)));
    assert!(endpoint.memory.performed.is_empty());
}

#[test]
fn a_long_message_is_wholly_sent_before_the_work() {
    let mut endpoint = endpoint();
    endpoint.memory.bytes[..8192].copy_from_slice(&ramp_of(8192));
    endpoint.submit(0, write(9, 0), 0, 8192);
    endpoint.submit(1, WORK, 0, 0);
    let mut segments = 0;
    while let Some(record) = endpoint.record() {
        assert!(endpoint.memory.performed.is_empty());
        segments += seen(&record).len();
        endpoint.accepted(record.len());
    }
    assert!(segments > 1, "one segment shows nothing");
    assert_eq!(endpoint.memory.performed, [1]);
}
