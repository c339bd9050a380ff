//! The orderly ways a stream ends, disconnect, reset, and the timers that bound everything.
#![allow(
    clippy::arithmetic_side_effects,
    clippy::cast_possible_truncation,
    clippy::indexing_slicing,
    reason = "a test"
)]

mod common;

use std::time::Duration;

use common::endpoint::{FLUSHED, OPEN, SEND, SINK, SUCCESS, closed, outcomes, read, target, write};
use common::peer::{Peer, opcodes, request};
use common::{CRC, config};
use iwarp_ddp::Stag;
use iwarp_mpa::Role;
use iwarp_rdmap::{
    CloseCause, Error, Event, LostCause, Need, Opcode, OperationError, OperationKind, Shutdown,
    State, TerminateCode,
};

#[test]
fn close_carries_out_what_was_submitted() {
    // DDP-041, RDMAP-064
    let mut endpoint = target(config(Role::Initiator), 1);
    let mut peer = Peer::new(CRC);
    endpoint.submit(0, write(9, 0), 0, 5000);
    endpoint.submit(1, read(7, 0), 0, 4);
    endpoint.submit(2, SEND, 0, 4);
    endpoint.stream.close(endpoint.now);
    endpoint.stream.close(endpoint.now);
    assert_eq!(endpoint.stream.state(), State::Finishing);
    assert!(endpoint.try_submit(3, SEND, 0, 4).is_err());
    let sent = opcodes(&endpoint.transmit());
    assert_eq!(sent.last(), Some(&Opcode::Send));
    assert_eq!(endpoint.shutdowns(), [], "the Read is not answered");
    // Messages of the peer are taken, and its Reads answered, to the end.
    endpoint.feed(&[peer.send(1, b"data"), peer.request(1, request(OPEN, 0x1000, 4))].concat());
    endpoint.feed(&peer.response(SINK, 0x2000, b"data", true));
    assert_eq!(endpoint.shutdowns(), [], "the peer's Read is not answered");
    let answer = endpoint.record().expect("the answer");
    assert_eq!(opcodes(&answer), [Opcode::ReadResponse]);
    endpoint.accepted(answer.len() - 1);
    assert_eq!(endpoint.stream.state(), State::Finishing, "TCP has not taken all of it");
    endpoint.accepted(1);
    assert_eq!(endpoint.shutdowns(), [Shutdown::Write]);
    assert_eq!(endpoint.stream.state(), State::Closing);
    endpoint.eof();
    let events = endpoint.events();
    let expected = [(1000, SUCCESS), (0, SUCCESS), (1, SUCCESS), (2, SUCCESS)];
    let mut done = outcomes(&events);
    done.sort_unstable_by_key(|(id, _)| *id != 1000);
    assert_eq!(done, expected);
    assert_eq!(closed(&events), Some((true, &CloseCause::Orderly)));
    assert_eq!(endpoint.stream.poll_timeout(), None);
}

#[test]
fn close_with_nothing_to_do_sends_fin_at_once() {
    for role in [Role::Initiator, Role::Responder] {
        let mut endpoint = target(config(role), 1);
        endpoint.stream.close(endpoint.now);
        assert_eq!(endpoint.shutdowns(), [Shutdown::Write]);
        assert_eq!(endpoint.stream.state(), State::Closing);
        endpoint.eof();
        assert_eq!(closed(&endpoint.events()), Some((true, &CloseCause::Orderly)));
    }
}

#[test]
fn a_close_inside_of_a_message_of_the_peer_is_not_clean() {
    let mut peer = Peer::new(CRC);
    let begun = [peer.send_part(1, 0, b"half of", false), peer.write(OPEN, 0x1000, b"it", false)];
    for begun in begun {
        let mut endpoint = target(config(Role::Initiator), 1);
        endpoint.feed(&begun);
        endpoint.stream.close(endpoint.now);
        assert_eq!(endpoint.shutdowns(), [Shutdown::Write]);
        // The peer flushes the rest of it, and closes too.
        endpoint.eof();
        let events = endpoint.events();
        assert!(outcomes(&events).iter().all(|(_, outcome)| *outcome == FLUSHED), "{events:?}");
        assert_eq!(closed(&events), Some((false, &CloseCause::User)));
    }
}

#[test]
fn a_fin_with_nothing_to_do_is_answered() {
    // DDP-007, MPA-087
    for role in [Role::Initiator, Role::Responder] {
        let mut endpoint = target(config(role), 1);
        endpoint.events();
        endpoint.eof();
        assert_eq!(endpoint.shutdowns(), [Shutdown::Write]);
        let closed = Event::Closed { clean: true, cause: CloseCause::Orderly };
        assert_eq!(endpoint.events(), [Event::PeerClosed, closed]);
        endpoint.eof();
        assert!(endpoint.events().is_empty());
    }
}

#[test]
fn what_arrives_behind_our_own_fin_is_discarded_and_noted() {
    // Conformance §12: closing, FPDU arrives. The reset is left to TCP's own close, so that nothing the peer
    // has not read yet is lost.
    let mut endpoint = target(config(Role::Initiator), 1);
    endpoint.stream.close(endpoint.now);
    assert_eq!(endpoint.shutdowns(), [Shutdown::Write]);
    let before = endpoint.memory.bytes.clone();
    let mut peer = Peer::new(CRC);
    let late = [peer.write(OPEN, 0x1000, b"late", true), peer.send(1, b"late")].concat();
    assert_eq!(endpoint.feed(&late).need, Need::Nothing);
    assert!(endpoint.memory.bytes == before && endpoint.memory.taken.is_empty());
    endpoint.eof();
    assert_eq!(endpoint.shutdowns(), []);
    assert_eq!(closed(&endpoint.events()), Some((false, &CloseCause::LateInput)));
}

#[test]
fn a_peer_that_never_closes_its_half() {
    let mut endpoint = target(config(Role::Initiator), 1);
    endpoint.stream.close(endpoint.now);
    endpoint.shutdowns();
    // A look at nothing is no late input.
    assert_eq!(endpoint.read().need, Need::Nothing);
    endpoint.wait(Duration::from_secs(3));
    assert_eq!(closed(&endpoint.events()), Some((false, &CloseCause::GraceExpired)));
    assert_eq!(endpoint.shutdowns(), []);
}

#[test]
fn a_fin_that_was_due_is_not_sent_on_a_lost_connection() {
    let mut endpoint = target(config(Role::Initiator), 1);
    endpoint.stream.close(endpoint.now);
    endpoint.stream.handle_lost(LostCause::Reset);
    assert_eq!(endpoint.shutdowns(), []);
    let events = endpoint.events();
    assert_eq!(closed(&events), Some((false, &CloseCause::Lost(LostCause::Reset))));
}

#[test]
fn disconnect_finishes_the_fpdu_in_flight_and_flushes_the_rest() {
    let mut endpoint = target(config(Role::Initiator), 1);
    endpoint.submit(0, SEND, 0, 4);
    endpoint.submit(1, write(9, 0), 0, 60_000);
    endpoint.submit(2, SEND, 0, 4);
    endpoint.batch = iwarp_rdmap::TxBatch::with_capacity(2000);
    let record = endpoint.record().expect("a record");
    endpoint.accepted(3);
    endpoint.stream.disconnect(endpoint.now);
    assert_eq!(endpoint.shutdowns(), []);
    endpoint.accepted(record.len() - 3);
    assert_eq!(endpoint.transmit(), b"");
    assert_eq!(endpoint.shutdowns(), [Shutdown::Write]);
    let done = outcomes(&endpoint.events());
    assert_eq!(done, [(0, SUCCESS), (1, FLUSHED), (2, FLUSHED)]);
    endpoint.eof();
    assert_eq!(closed(&endpoint.events()), Some((false, &CloseCause::User)));

    // With nothing pending it is an orderly close.
    let mut endpoint = target(config(Role::Initiator), 1);
    endpoint.stream.disconnect(endpoint.now);
    assert_eq!(endpoint.shutdowns(), [Shutdown::Write]);
    endpoint.eof();
    assert_eq!(closed(&endpoint.events()), Some((true, &CloseCause::Orderly)));
}

#[test]
fn disconnect_leaves_the_peers_reads_unanswered() {
    let mut endpoint = target(config(Role::Initiator), 1);
    endpoint.feed(&Peer::new(CRC).request(1, request(OPEN, 0x1000, 4)));
    assert!(endpoint.stream.has_pending_work());
    endpoint.stream.disconnect(endpoint.now);
    assert_eq!(endpoint.transmit(), b"");
    assert!(!endpoint.stream.has_pending_work());
    endpoint.eof();
    assert_eq!(closed(&endpoint.events()), Some((false, &CloseCause::User)));
}

#[test]
fn disconnect_gives_back_the_receive_that_is_being_filled() {
    let mut endpoint = target(config(Role::Initiator), 1);
    endpoint.feed(&Peer::new(CRC).send_part(1, 0, b"part", false));
    endpoint.stream.disconnect(endpoint.now);
    let events = endpoint.events();
    assert_eq!(outcomes(&events), [(1000, FLUSHED)]);
    endpoint.eof();
    assert_eq!(closed(&endpoint.events()), Some((false, &CloseCause::User)));
}

#[test]
fn abort_resets_and_flushes_at_once() {
    let mut endpoint = target(config(Role::Initiator), 1);
    endpoint.submit(0, SEND, 0, 4);
    endpoint.submit(1, SEND, 0, 4);
    endpoint.record().expect("two Sends");
    endpoint.accepted(30);
    endpoint.stream.abort();
    assert_eq!(endpoint.shutdowns(), [Shutdown::Abort]);
    let events = endpoint.events();
    assert_eq!(outcomes(&events), [(0, SUCCESS), (1, FLUSHED)]);
    assert_eq!(closed(&events), Some((false, &CloseCause::User)));
    // Nothing happens any more.
    endpoint.stream.abort();
    endpoint.stream.handle_lost(LostCause::Reset);
    endpoint.stream.close(endpoint.now);
    endpoint.feed(b"anything");
    endpoint.eof();
    endpoint.wait(Duration::from_mins(1));
    assert!(endpoint.events().is_empty() && endpoint.shutdowns().is_empty());
    assert_eq!(endpoint.transmit(), b"");
}

#[test]
fn an_fpdu_that_stops_half_way() {
    // MPA-091
    let mut endpoint = target(config(Role::Initiator), 1);
    let mut peer = Peer::new(CRC);
    let fpdu = peer.send(1, b"data");
    assert_eq!(endpoint.stream.poll_timeout(), None);
    endpoint.feed(&fpdu[..1]);
    let begun = endpoint.now;
    assert_eq!(endpoint.stream.poll_timeout(), Some(begun + Duration::from_secs(30)));
    // An octet now and then does not prolong it.
    endpoint.wait(Duration::from_secs(20));
    endpoint.feed(&fpdu[1..20]);
    assert_eq!(endpoint.stream.poll_timeout(), Some(begun + Duration::from_secs(30)));
    // The whole of it does: the time runs again from the first octet of the next.
    endpoint.feed(&fpdu[20..]);
    assert_eq!(endpoint.stream.poll_timeout(), None);
    endpoint.wait(Duration::from_secs(20));
    endpoint.feed(&peer.send(2, b"data")[..27]);
    endpoint.wait(Duration::from_secs(30));
    assert_eq!(endpoint.shutdowns(), [Shutdown::Abort]);
    let events = endpoint.events();
    let stalled = CloseCause::Error(Error::FpduStalled { missing: 1 });
    assert_eq!(closed(&events), Some((false, &stalled)));
    assert_eq!(endpoint.transmit(), b"");
}

#[test]
fn the_time_of_an_fpdu_runs_from_its_own_first_octet() {
    let mut config = config(Role::Initiator);
    config.hold_back = Duration::from_secs(40);
    let mut endpoint = target(config, 1);
    let mut peer = Peer::new(CRC);
    let limit = Duration::from_secs(30);
    let octets = [peer.send(1, b"one"), peer.send(2, b"two")].concat();
    endpoint.feed(&octets[..20]);
    endpoint.wait(Duration::from_secs(20));
    endpoint.feed(&octets[20..30]);
    assert_eq!(endpoint.stream.poll_timeout(), Some(endpoint.now + limit));
    // An FPDU that is whole and waits for a receive has the time of the receive.
    endpoint.feed(&octets[30..]);
    assert!(endpoint.stream.is_blocked());
    assert_eq!(endpoint.stream.poll_timeout(), Some(endpoint.now + Duration::from_secs(40)));
    endpoint.memory.post(7, 0, 8);
    endpoint.read();
    assert_eq!(endpoint.stream.poll_timeout(), None);
}

#[test]
fn limits_that_are_endless_set_no_timer() {
    let mut config = config(Role::Initiator);
    config.hold_back = Duration::MAX;
    config.partial_fpdu = Duration::MAX;
    config.close_grace = Duration::MAX;
    let mut endpoint = target(config, 1);
    endpoint.memory.receives.clear();
    endpoint.feed(&Peer::new(CRC).send(1, b"data"));
    assert!(endpoint.stream.is_blocked());
    assert_eq!(endpoint.stream.poll_timeout(), None);
    endpoint.stream.disconnect(endpoint.now);
    assert_eq!(endpoint.stream.poll_timeout(), None);
}

#[test]
fn fin_behind_a_send_that_is_held_back() {
    // FIN is noticed at once, and takes effect in its place.
    let mut peer = Peer::new(CRC);
    let octets = [peer.send(1, b"one"), peer.send(2, b"two")].concat();
    let mut endpoint = target(config(Role::Initiator), 1);
    endpoint.feed(&octets);
    endpoint.eof();
    let events = endpoint.events();
    assert_eq!(events.last(), Some(&Event::PeerClosed));
    assert_eq!(endpoint.stream.state(), State::Full);
    assert_eq!(endpoint.read().need, Need::Receive);
    assert_eq!(endpoint.stream.state(), State::Full);
    endpoint.memory.post(1001, 0, 8);
    endpoint.read();
    let events = endpoint.events();
    assert_eq!(outcomes(&events), [(1001, SUCCESS)]);
    assert_eq!(closed(&events), Some((true, &CloseCause::Orderly)));
    assert_eq!(endpoint.shutdowns(), [Shutdown::Write]);

    // Cut off behind it: that shows when the receive has come.
    let mut endpoint = target(config(Role::Initiator), 1);
    endpoint.memory.receives.clear();
    endpoint.feed(&octets[..40]);
    endpoint.eof();
    endpoint.memory.post(1001, 0, 8);
    endpoint.read();
    let events = endpoint.events();
    assert_eq!(outcomes(&events), [(1001, SUCCESS)]);
    assert!(matches!(closed(&events), Some((false, CloseCause::Error(Error::Mpa(_))))));

    // No receive comes.
    let mut endpoint = target(config(Role::Initiator), 1);
    endpoint.memory.receives.clear();
    endpoint.feed(&octets);
    endpoint.eof();
    endpoint.wait(Duration::from_secs(5));
    assert_eq!(opcodes(&endpoint.transmit()), [Opcode::Terminate]);
    let events = endpoint.events();
    assert!(matches!(closed(&events), Some((false, CloseCause::Error(Error::Ddp(_))))));
}

#[test]
fn fin_while_the_budget_of_a_call_is_spent() {
    let mut config = config(Role::Initiator);
    config.input_burst = 1;
    let mut endpoint = target(config, 1);
    endpoint.memory.post(1001, 0, 8);
    let mut peer = Peer::new(CRC);
    let mut octets = [peer.send(1, b"one"), peer.send(2, b"two")].concat();
    let (memory, now) = (&mut endpoint.memory, endpoint.now);
    let input = endpoint.stream.handle_input(&mut octets, memory, now);
    assert_eq!((input.consumed, input.need), (28, Need::Again));
    endpoint.stream.handle_eof(28, now);
    let input = endpoint.stream.handle_input(&mut octets[28..], memory, now);
    assert_eq!((input.consumed, input.need), (28, Need::More(2)));
    let events = endpoint.events();
    assert_eq!(outcomes(&events), [(1000, SUCCESS), (1001, SUCCESS)]);
    assert_eq!(closed(&events), Some((true, &CloseCause::Orderly)));
}

#[test]
fn the_cause_that_came_first_stays() {
    let mut endpoint = target(config(Role::Initiator), 1);
    endpoint.submit(0, read(7, 0), 0, 4);
    endpoint.transmit();
    endpoint.eof();
    endpoint.stream.terminate(TerminateCode::LOCAL_CATASTROPHIC, endpoint.now);
    endpoint.stream.handle_lost(LostCause::Reset);
    let events = endpoint.events();
    let cause = CloseCause::Error(Error::Operation(OperationError::FinWithWork));
    assert_eq!(closed(&events), Some((false, &cause)));
    assert_eq!(outcomes(&events), [(0, FLUSHED)]);
}

#[test]
fn a_stream_that_ended_takes_no_operation_and_gives_it_back() {
    let kind = OperationKind::Write { stag: Stag::from_raw(9), offset: 3 };
    let mut endpoint = target(config(Role::Initiator), 1);
    endpoint.stream.handle_lost(LostCause::Io(std::io::ErrorKind::BrokenPipe));
    let refused = endpoint.try_submit(7, kind.clone(), 1, 2).expect_err("refused");
    assert_eq!(refused.state, State::Closed);
    assert_eq!((refused.operation.buffer.id, refused.operation.kind), (7, kind));
}
