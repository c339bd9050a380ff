//! A whole stream: work of this side, and a peer that sends anything.
//!
//! The same things happen to two or three equal streams. One is shown what the peer sends in whole steps, the next one
//! in pieces, and where neither CRC nor markers are in use a third one has long payload put past it into memory.
//! Nobody may be able to tell them apart.
//!
//! What has to hold whatever comes:
//!
//! - no octet of memory changes that was not granted, and none at all once the stream has ended;
//! - every operation comes back once, in order, and every receive that was taken; at most one of them ends in its
//!   own way, and all have succeeded if the end is a clean one; it is reported once, as the last thing, with the first
//!   cause;
//! - what goes out is in order up to the last octet: numbers follow each other, no more Reads are out than ORD, a
//!   Terminate is the last message, and a responder is silent until an FPDU has come;
//! - no more than IRD requests of the peer wait, and of its octets no more than one FPDU;
//! - after some time with no work left the stream is over.
//!
//! Input: an octet of flags (1: responder; 2: CRC; 4, 8: markers in what is received, sent; 16: strict receives; 32: no
//! extensions; 64, 128: the RTR), one of depths (IRD, ORD, 64: gather, 128: keep receives), one of the rest (bursts,
//! 32: message numbers about to wrap, 64, 128: FPDU size), three lengths of pieces, and then steps as in `script.rs`.

mod layout;
mod script;
mod side;

use iwarp_mpa::{Framing, Role, Rtr};
use iwarp_rdmap::{Opcode, State};

use self::script::{Script, Setup, Step};
use self::side::{Side, Way};
use crate::bytes::Bytes;

/// A whole stream against a peer that sends anything.
pub fn stream(input: &[u8]) {
    let mut input = Bytes::new(input);
    let setup = Setup::read(&mut input);
    let mut script = Script::new(setup);
    let Framing { receive_markers, crc, .. } = setup.config.framing;
    let mut ways = vec![Way::Whole, Way::Pieces(setup.cuts)];
    if !crc && !receive_markers {
        ways.push(Way::Straight(setup.cuts));
    }
    let mut sides: Vec<Side> = ways.into_iter().map(|way| Side::new(&setup, way)).collect();
    while let Some(step) = script.step(&mut input) {
        happens(&step, &mut sides, &mut script, &setup);
    }
    // What comes behind the end of a stream does nothing.
    if !sides[0].state().receives()
        && let Some(step) = script.another_write()
    {
        happens(&step, &mut sides, &mut script, &setup);
    }
    let end = if setup.ends_with_fin && script.fin() { Step::Eof } else { Step::Disconnect };
    happens(&end, &mut sides, &mut script, &setup);
    happens(&Step::Send, &mut sides, &mut script, &setup);
    // Whoever still waits for something waits no longer than this, three times over.
    for _ in 0..3 {
        happens(&Step::Wait(side::LONGEST_WAIT), &mut sides, &mut script, &setup);
        happens(&Step::Send, &mut sides, &mut script, &setup);
    }
    for side in &sides {
        side.check_end(&script.sinks);
    }
}

fn happens(step: &Step, sides: &mut [Side], script: &mut Script, setup: &Setup) {
    for side in &mut *sides {
        side.happens(step);
    }
    let [first, others @ ..] = sides else { unreachable!("there are two sides at least") };
    for other in others {
        first.compare(other);
    }
    script.saw(&first.take_seen());
    check(first, setup);
}

/// What holds at every moment.
fn check(side: &Side, setup: &Setup) {
    let counters = side.counters();
    let [came, went] = [&counters.messages_in, &counters.messages_out];
    let has_rtr = u64::from(setup.config.rtr == Some(Rtr::Read));
    let is_responder = setup.config.role == Role::Responder;
    // RDMAP-031. The Read that is the RTR has a place of its own, until it is answered.
    let requests = came.of(Opcode::ReadRequest) + came.of(Opcode::AtomicRequest);
    let answers = went.of(Opcode::ReadResponse) + went.of(Opcode::AtomicResponse);
    let rtr_place = if is_responder && answers == 0 { has_rtr } else { 0 };
    let places = u64::from(setup.config.ird) + rtr_place;
    assert!(requests - answers <= places, "more requests wait than IRD");
    // RDMAP-062
    let requests = went.of(Opcode::ReadRequest) + went.of(Opcode::AtomicRequest);
    let answers = came.of(Opcode::ReadResponse) + came.of(Opcode::AtomicResponse);
    let places = u64::from(setup.config.ord).max(if is_responder { 0 } else { has_rtr });
    assert!(requests - answers <= places, "more requests are out than ORD");
    // RDMAP-035
    assert!(answers <= side.requests_on_the_wire(), "an answer to what was not asked yet");
    // MPA-029. One that is held back has come as well.
    if is_responder && counters.fpdus_in == 0 && counters.held_back == 0 {
        assert_eq!(counters.fpdus_out, 0, "a responder has spoken first");
    }
    assert!(counters.terminates_out() <= 1 && counters.terminates_in() <= 1);
    if side.state() == State::Closed {
        assert!(side.is_closed(), "over, and not reported");
    }
}
