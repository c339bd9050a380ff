//! Errors, Terminates, and what becomes of everything else then.
#![allow(
    clippy::arithmetic_side_effects,
    clippy::cast_possible_truncation,
    clippy::indexing_slicing,
    reason = "a test"
)]

mod common;

use std::time::Duration;

use common::endpoint::{
    Endpoint, FLUSHED, OPEN, SEND, SINK, SUCCESS, closed, octets_of, outcomes, read, target,
    terminated, write,
};
use common::peer::{Peer, opcodes, request, seen, tagged, untagged};
use common::{CRC, config};
use iwarp_ddp::{LocalFault, Stag, UntaggedError, UntaggedHeader};
use iwarp_mpa::{Framing, Role, Rtr};
use iwarp_rdmap::{
    BadTerminate, Chunk, CloseCause, Error, Event, Initiator, LocalError, LostCause, Need, Opcode,
    Operation, OperationKind, Outcome, ReadRequest, Shutdown, State, Terminate, TerminateCode,
};

#[test]
fn a_responder_is_silent_until_the_first_fpdu() {
    // MPA-029, MPA-076, CONN-29
    let mut endpoint = target(config(Role::Responder), 1);
    endpoint.submit(0, SEND, 0, 4);
    endpoint.submit(1, write(9, 0), 0, 3000);
    assert_eq!(endpoint.stream.state(), State::FirstWait);
    assert_eq!(endpoint.transmit(), b"");
    let first = Peer::new(CRC).write(0, 0, b"", true);
    // All but the last octet of it: nothing happens.
    for cut in 0..first.len() - 1 {
        endpoint.feed(&first[cut..=cut]);
        assert_eq!(endpoint.transmit(), b"");
        assert!(endpoint.events().is_empty());
    }
    endpoint.feed(&first[first.len() - 1..]);
    assert_eq!(endpoint.stream.state(), State::Full);
    assert_eq!(endpoint.events(), [Event::Established]);
    // Then in order.
    let sent = opcodes(&endpoint.transmit());
    assert_eq!(sent, [Opcode::Send, Opcode::Write, Opcode::Write, Opcode::Write]);
}

#[test]
fn a_terminate_that_comes_first_establishes_nothing() {
    // CONN-27, CONN-29: the initiator could not follow. Nothing is said to it.
    let mut endpoint = target(config(Role::Responder), 1);
    endpoint.submit(0, SEND, 0, 4);
    endpoint.feed(&Peer::new(CRC).terminate(&Terminate::new(TerminateCode::SETUP_LOCAL)));
    assert_eq!(endpoint.transmit(), b"");
    assert_eq!(endpoint.shutdowns(), [Shutdown::Write]);
    endpoint.eof();
    let events = endpoint.events();
    assert!(!events.contains(&Event::Established), "{events:?}");
    assert_eq!(outcomes(&events), [(0, FLUSHED)]);
    let Some((false, CloseCause::Terminated(terminate))) = closed(&events) else {
        panic!("{events:?}");
    };
    assert_eq!(terminate.likely_code(), TerminateCode::SETUP_LOCAL);
}

#[test]
fn a_damaged_first_fpdu_is_not_answered_by_a_responder() {
    // D1, MPA-029, MPA-058
    let mut endpoint = target(config(Role::Responder), 1);
    endpoint.submit(0, SEND, 0, 4);
    let mut octets = Peer::new(CRC).write(OPEN, 0x1000, b"data", true);
    octets[17] ^= 1;
    let before = endpoint.memory.bytes.clone();
    assert_eq!(endpoint.feed(&octets).need, Need::Nothing);
    assert_eq!(endpoint.transmit(), b"");
    assert!(endpoint.memory.bytes == before);
    assert_eq!(endpoint.shutdowns(), [Shutdown::Write]);
    endpoint.eof();
    let events = endpoint.events();
    assert_eq!(terminated(&events), None);
    assert_eq!(outcomes(&events), [(0, FLUSHED)]);
    let Some((false, CloseCause::Error(Error::Mpa(error)))) = closed(&events) else {
        panic!("{events:?}")
    };
    assert_eq!(error.code(), Some(2)); // MPA-081
    assert_eq!(endpoint.stream.counters().crc_errors, 1);
}

#[test]
fn no_terminate_from_a_held_sender_whatever_the_reason() {
    // MPA-029
    let reasons: [&dyn Fn(&mut Endpoint); 4] = [
        &|it| it.stream.terminate(TerminateCode::SETUP_LOCAL, it.now),
        &|it| {
            it.stream.close(it.now);
            it.stream.terminate(TerminateCode::LOCAL_CATASTROPHIC, it.now);
        },
        &|it| {
            it.stream.close(it.now);
            it.eof();
        },
        &|it| it.eof(),
    ];
    for (i, reason) in reasons.into_iter().enumerate() {
        let mut endpoint = target(config(Role::Responder), 1);
        endpoint.submit(0, SEND, 0, 4);
        reason(&mut endpoint);
        assert_eq!(endpoint.transmit(), b"", "reason {i}");
        assert_eq!(endpoint.shutdowns(), [Shutdown::Write], "reason {i}");
        let events = endpoint.events();
        assert_eq!(terminated(&events), None, "reason {i}");
        assert_eq!(outcomes(&events), [(0, FLUSHED)], "reason {i}");
    }
}

#[test]
fn set_up_errors_go_out_before_anything_else() {
    // CONN-17, CONN-25, CONN-27, CONN-30: the initiator's Terminate right after the reply, without RTR.
    for code in [TerminateCode::SETUP_LOCAL, TerminateCode::SETUP_IRD, TerminateCode::SETUP_RTR] {
        let mut config = config(Role::Initiator);
        config.rtr = Some(Rtr::Write);
        let mut endpoint = target(config, 1);
        endpoint.stream.terminate(code, endpoint.now);
        let sent = seen(&endpoint.transmit());
        assert_eq!(sent.len(), 1);
        assert_eq!(Terminate::parse(&sent[0].payload), Ok(Terminate::new(code)));
        assert_eq!(endpoint.shutdowns(), [Shutdown::Write]);
        let events = endpoint.events();
        assert_eq!(terminated(&events), Some((Initiator::User, code)));
    }
}

#[test]
fn a_terminate_goes_behind_the_fpdu_in_flight_and_nothing_follows() {
    // RDMAP-051, RDMAP-053, RDMAP-055, RDMAP-060, RDMAP-065, MPA-084
    let mut endpoint = target(config(Role::Initiator), 1);
    endpoint.submit(0, SEND, 0, 4);
    endpoint.submit(1, write(9, 0), 0, 8000);
    endpoint.submit(2, SEND, 0, 4);
    let record = endpoint.record().expect("a record");
    endpoint.accepted(10);
    // Two bad FPDUs in one read: the first counts (RDMAP-073).
    let mut peer = Peer::new(CRC);
    let bad = [peer.write(5, 0, b"x", true), peer.send(9, b"x")].concat();
    endpoint.feed(&bad);
    assert!(endpoint.stream.submit(again(3)).is_err());
    assert_eq!(endpoint.shutdowns(), [], "the FPDU in flight comes first");
    assert!(outcomes(&endpoint.events()).is_empty());
    endpoint.accepted(record.len() - 10);

    let rest = endpoint.transmit();
    assert_eq!(opcodes(&[&record[..], &rest].concat()).last(), Some(&Opcode::Terminate));
    assert_eq!(opcodes(&rest), [Opcode::Terminate]);
    let terminate = Terminate::parse(&seen(&rest)[0].payload).expect("a Terminate");
    assert_eq!(terminate.code, TerminateCode::from_parts(1, 1, 0));
    assert_eq!(endpoint.shutdowns(), [Shutdown::Write]);
    // What TCP has is done, the rest is not.
    let done = outcomes(&endpoint.events());
    assert_eq!(done, [(0, SUCCESS), (1, FLUSHED), (2, FLUSHED)]);
    assert_eq!(endpoint.stream.counters().terminates_out(), 1);
}

fn again(id: u64) -> Operation<common::memory::Buf> {
    let buffer = common::memory::Buf { id, at: 0, len: 1 };
    Operation { kind: SEND, len: 1, fence: false, buffer }
}

#[test]
fn a_peer_that_does_not_read_gets_a_reset_instead_of_a_terminate() {
    // Conformance §7: if the FPDU being written cannot be finished, no Terminate.
    let mut endpoint = target(config(Role::Initiator), 1);
    endpoint.submit(0, SEND, 0, 4);
    endpoint.submit(1, SEND, 0, 4);
    let record = endpoint.record().expect("a record");
    endpoint.accepted(record.len() / 2 + 1);
    endpoint.feed(&Peer::new(CRC).send(9, b"x"));
    assert_eq!(outcomes(&endpoint.events()), [(0, SUCCESS)]);
    endpoint.wait(Duration::from_secs(3));
    assert_eq!(endpoint.shutdowns(), [Shutdown::Abort]);
    let events = endpoint.events();
    assert_eq!(outcomes(&events), [(1, FLUSHED)]);
    assert!(matches!(closed(&events), Some((false, CloseCause::Error(_)))));
    assert_eq!(endpoint.transmit(), b"");
    assert_eq!(endpoint.stream.state(), State::Closed);
}

#[test]
fn a_terminate_that_tcp_does_not_take_in_time_is_given_up() {
    let mut endpoint = target(config(Role::Initiator), 1);
    endpoint.stream.terminate(TerminateCode::LOCAL_CATASTROPHIC, endpoint.now);
    let record = endpoint.record().expect("the Terminate");
    endpoint.accepted(record.len() - 1);
    endpoint.wait(Duration::from_secs(3));
    assert_eq!(endpoint.shutdowns(), [Shutdown::Abort]);
    assert!(closed(&endpoint.events()).is_some());
    assert_eq!(endpoint.record(), None);
}

#[test]
fn input_behind_an_error_is_drained_and_ignored() {
    // MPA-083, DDP-006, DDP-059, RDMAP-068
    let mut endpoint = target(config(Role::Initiator), 1);
    let mut peer = Peer::new(CRC);
    let mut octets = peer.send(9, b"x");
    octets.extend(peer.write(OPEN, 0x1000, b"late", true));
    let before = endpoint.memory.bytes.clone();
    let input = endpoint.feed(&octets);
    assert_eq!((input.consumed, input.need), (octets.len(), Need::Nothing));
    let input = endpoint.feed(&[0xff; 1000]);
    assert_eq!((input.consumed, input.need), (1000, Need::Nothing));
    assert!(endpoint.memory.bytes == before);
    assert_eq!(endpoint.stream.counters().octets_discarded, 1024);
    assert_eq!(endpoint.stream.counters().fpdus_in, 1);
}

#[test]
fn a_peers_terminate_is_not_answered_and_tells_whom_it_is_about() {
    // RDMAP-052, RDMAP-054; verbs: at most one work request ends in its own way.
    let mut endpoint = target(config(Role::Initiator), 1);
    endpoint.submit(0, read(7, 0), 0, 10);
    endpoint.submit(1, read(8, 0), 16, 10);
    endpoint.submit(2, SEND, 0, 4);
    let sent = seen(&endpoint.transmit());
    let second = &sent[1];
    let header = iwarp_rdmap::DdpHeader::from_front(&second.ulpdu).expect("a header");
    let terminate = Terminate {
        segment_len: Some(46),
        ddp_header: Some(header),
        read_request: ReadRequest::parse(&second.payload),
        ..Terminate::new(TerminateCode::RIGHTS)
    };
    endpoint.feed(&Peer::new(CRC).terminate(&terminate));
    assert_eq!(endpoint.transmit(), b"");
    let events = endpoint.events();
    assert_eq!(outcomes(&events), [(0, FLUSHED), (1, Outcome::RemoteAccess), (2, FLUSHED)]);
    assert!(events.contains(&Event::Terminated { by: Initiator::Remote, terminate, cause: None }));
}

#[test]
fn terminates_and_the_operations_they_name() {
    // The table of verbs: which work request ends how.
    type Case<'a> = (&'a str, TerminateCode, Option<UntaggedHeader>, [Outcome; 3]);
    let request_of = |msn| Some(UntaggedHeader { queue: 1, ..untagged(Opcode::ReadRequest, msn) });
    let send_of = |msn| Some(untagged(Opcode::Send, msn));
    let code = TerminateCode::from_parts;
    let cases: [Case<'_>; 9] = [
        ("Read refused", code(0, 1, 1), request_of(1), [Outcome::RemoteAccess, FLUSHED, FLUSHED]),
        (
            "opcode of the Read",
            TerminateCode::UNEXPECTED_OPCODE,
            request_of(1),
            [Outcome::RemoteInvalidRequest, FLUSHED, FLUSHED],
        ),
        (
            "more Reads than IRD",
            TerminateCode::NO_BUFFER,
            request_of(1),
            [Outcome::RemoteOperation, FLUSHED, FLUSHED],
        ),
        (
            "a number that is none: the oldest Read",
            code(0, 1, 0),
            request_of(64),
            [Outcome::RemoteAccess, FLUSHED, FLUSHED],
        ),
        ("no header at all", code(0, 2, 7), None, [Outcome::RemoteOperation, FLUSHED, FLUSHED]),
        (
            "Send",
            TerminateCode::NO_BUFFER,
            send_of(1),
            [FLUSHED, Outcome::RemoteOperation, FLUSHED],
        ),
        ("a Send that was not sent", TerminateCode::NO_BUFFER, send_of(9), [FLUSHED; 3]),
        ("local error of the peer", code(0, 0, 0), None, [FLUSHED; 3]),
        ("CRC", TerminateCode::CRC, None, [FLUSHED; 3]),
    ];
    for (what, code, header, expected) in cases {
        let mut endpoint = target(config(Role::Initiator), 1);
        endpoint.submit(0, read(7, 0), 0, 10);
        endpoint.submit(1, SEND, 0, 4);
        endpoint.submit(2, write(9, 0x100), 0, 4);
        endpoint.transmit();
        let terminate = Terminate {
            segment_len: header.map(|_| 46),
            ddp_header: header
                .and_then(|header| iwarp_rdmap::DdpHeader::from_front(&header.to_bytes())),
            ..Terminate::new(code)
        };
        endpoint.feed(&Peer::new(CRC).terminate(&terminate));
        let done: Vec<_> =
            outcomes(&endpoint.events()).into_iter().map(|(_, outcome)| outcome).collect();
        assert_eq!(done, expected, "{what}");
    }
    // A Write, found by its STag and offset, also while half of it is sent.
    let mut endpoint = target(config(Role::Initiator), 1);
    endpoint.submit(0, read(7, 0), 0, 10);
    endpoint.submit(1, write(9, 0x100), 0, 4);
    endpoint.submit(2, write(9, 0x200), 0, 60_000);
    endpoint.batch = iwarp_rdmap::TxBatch::with_capacity(3000);
    let small = endpoint.record().expect("Read Request and small Write");
    endpoint.accepted(small.len());
    let begun = endpoint.record().expect("two segments of the large Write");
    assert_eq!(begun.len(), 2 * 1460);
    let header = common::peer::tagged(Opcode::Write, 9, 0x200 + 1446, false);
    let terminate = Terminate {
        segment_len: Some(1454),
        ddp_header: iwarp_rdmap::DdpHeader::from_front(&header.to_bytes()),
        ..Terminate::new(TerminateCode::from_parts(1, 1, 1))
    };
    endpoint.feed(&Peer::new(CRC).terminate(&terminate));
    endpoint.stream.handle_lost(LostCause::Reset);
    let done = outcomes(&endpoint.events());
    assert_eq!(done, [(0, FLUSHED), (1, FLUSHED), (2, Outcome::RemoteAccess)]);
}

#[test]
fn a_terminate_about_a_response_blames_no_write_to_the_same_buffer() {
    for (opcode, outcome) in
        [(Opcode::ReadResponse, FLUSHED), (Opcode::Write, Outcome::RemoteAccess)]
    {
        let mut endpoint = target(config(Role::Initiator), 1);
        endpoint.submit(0, write(9, 0x100), 0, 4);
        endpoint.record().expect("the Write, of which TCP accepts nothing");
        let header = common::peer::tagged(opcode, 9, 0x100, true);
        let terminate = Terminate {
            segment_len: Some(18),
            ddp_header: iwarp_rdmap::DdpHeader::from_front(&header.to_bytes()),
            ..Terminate::new(TerminateCode::from_parts(1, 1, 1))
        };
        endpoint.feed(&Peer::new(CRC).terminate(&terminate));
        endpoint.stream.handle_lost(LostCause::Reset);
        assert_eq!(outcomes(&endpoint.events()), [(0, outcome)], "{opcode}");
    }
}

#[test]
fn a_terminate_about_a_send_that_is_half_sent() {
    let mut endpoint = target(config(Role::Initiator), 1);
    endpoint.submit(0, SEND, 0, 4);
    endpoint.submit(1, SEND, 0, 8000);
    endpoint.submit(2, SEND, 0, 4);
    endpoint.batch = iwarp_rdmap::TxBatch::with_capacity(3000);
    for _ in 0..2 {
        let record = endpoint.record().expect("a record");
        endpoint.accepted(record.len());
    }
    let header = UntaggedHeader { offset: 1436, last: false, ..untagged(Opcode::Send, 2) };
    let terminate = Terminate {
        segment_len: Some(1454),
        ddp_header: iwarp_rdmap::DdpHeader::from_front(&header.to_bytes()),
        ..Terminate::new(TerminateCode::from_parts(1, 2, 5))
    };
    endpoint.feed(&Peer::new(CRC).terminate(&terminate));
    let done = outcomes(&endpoint.events());
    assert_eq!(done, [(0, SUCCESS), (1, Outcome::RemoteOperation), (2, FLUSHED)]);
}

/// A Terminate of the peer about a segment that this side sent, or could have sent.
fn about(code: TerminateCode, header: &[u8], read_request: Option<ReadRequest>) -> Vec<u8> {
    let ddp_header = iwarp_rdmap::DdpHeader::from_front(header);
    assert!(ddp_header.is_some());
    let segment_len = Some(100);
    let terminate = Terminate { segment_len, ddp_header, read_request, ..Terminate::new(code) };
    Peer::new(CRC).terminate(&terminate)
}

#[test]
fn a_terminate_about_one_of_two_writes_side_by_side() {
    // To the octet: the second begins where the first ends.
    let bounds = TerminateCode::from_parts(1, 1, 1);
    for (offset, culprit) in
        [(0x100, Some(1)), (0x10f, Some(1)), (0x110, Some(2)), (0x11f, Some(2)), (0x120, None)]
    {
        let mut endpoint = target(config(Role::Initiator), 0);
        // The Read keeps them from completing.
        endpoint.submit(0, read(7, 0), 0, 4);
        endpoint.submit(1, write(8, 0x100), 0, 16);
        endpoint.submit(2, write(8, 0x110), 0, 16);
        endpoint.transmit();
        let header = tagged(Opcode::Write, 8, offset, true).to_bytes();
        endpoint.feed(&about(bounds, &header, None));
        let expected = [0, 1, 2]
            .map(|id| (id, if culprit == Some(id) { Outcome::RemoteAccess } else { FLUSHED }));
        assert_eq!(outcomes(&endpoint.events()), expected, "{offset:#x}");
    }
}

#[test]
fn a_terminate_about_what_was_not_sent_blames_nothing() {
    let cases = [
        (write(8, 0), tagged(Opcode::Write, 8, 0, true).to_bytes().to_vec()),
        (SEND, untagged(Opcode::Send, 2).to_bytes().to_vec()),
    ];
    for (kind, header) in cases {
        let mut endpoint = target(config(Role::Initiator), 0);
        endpoint.submit(0, SEND, 0, 4);
        endpoint.transmit();
        endpoint.submit(1, kind, 0, 4);
        endpoint.feed(&about(TerminateCode::from_parts(1, 2, 1), &header, None));
        assert_eq!(outcomes(&endpoint.events()), [(0, SUCCESS), (1, FLUSHED)]);
    }
}

#[test]
fn a_terminate_about_a_write_whose_immediate_data_is_still_to_go() {
    let mut endpoint = target(config(Role::Initiator), 0);
    let kind = OperationKind::WriteImmediate {
        stag: Stag::from_raw(8),
        offset: 0,
        immediate: [1; 8],
        solicited: false,
    };
    endpoint.submit(0, kind, 0, 4);
    endpoint.batch.most = 1;
    let record = endpoint.record().expect("the Write");
    endpoint.accepted(record.len());
    assert_eq!(opcodes(&record), [Opcode::Write]);
    let header = &seen(&record)[0].ulpdu;
    endpoint.feed(&about(TerminateCode::from_parts(1, 1, 1), header, None));
    assert_eq!(outcomes(&endpoint.events()), [(0, Outcome::RemoteAccess)]);
}

#[test]
fn a_terminate_that_tells_a_read_by_its_request_alone() {
    // As Linux siw does: what it shows as the header has another number. The order counts only where the
    // request tells nothing.
    for (request_of, culprit) in [(Some(1), 1), (None, 0)] {
        let mut endpoint = target(config(Role::Initiator), 0);
        endpoint.submit(0, read(7, 0), 0, 4);
        endpoint.submit(1, read(8, 0), 0, 4);
        let sent = seen(&endpoint.transmit());
        let header = UntaggedHeader { queue: 1, ..untagged(Opcode::ReadRequest, 9) }.to_bytes();
        let shown = request_of.and_then(|index: usize| ReadRequest::parse(&sent[index].payload));
        endpoint.feed(&about(TerminateCode::RIGHTS, &header, shown));
        let expected =
            [0, 1].map(|id| (id, if id == culprit { Outcome::RemoteAccess } else { FLUSHED }));
        assert_eq!(outcomes(&endpoint.events()), expected);
    }
}

#[test]
fn a_terminate_that_cannot_be_read() {
    // RDMAP-056: the end, and no answer.
    let header = UntaggedHeader { queue: 2, ..untagged(Opcode::Terminate, 1) };
    let one = |header: UntaggedHeader, payload: &[u8]| Peer::new(CRC).untagged(header, payload);
    let content = [0, 0, 0, 0];
    let tagged = common::peer::tagged(Opcode::Terminate, 0, 0, true);
    let segment = |error| BadTerminate::Segment(error);
    let cases = [
        (Peer::new(CRC).tagged(tagged, &content), BadTerminate::Tagged),
        (
            one(UntaggedHeader { queue: 0, ..header }, &content),
            segment(UntaggedError::InvalidQueue),
        ),
        (one(UntaggedHeader { msn: 2, ..header }, &content), segment(UntaggedError::MsnRange)),
        (
            one(UntaggedHeader { offset: 4, ..header }, &content),
            segment(UntaggedError::InvalidOffset),
        ),
        (one(UntaggedHeader { last: false, ..header }, &content), BadTerminate::NotLast),
        (one(header, &content[..3]), BadTerminate::Truncated { len: 3 }),
        (one(header, &[0, 0, 0xc0, 0, 0, 46]), BadTerminate::Truncated { len: 6 }),
    ];
    for (octets, error) in cases {
        let mut endpoint = target(config(Role::Initiator), 1);
        endpoint.submit(0, SEND, 0, 4);
        endpoint.feed(&octets);
        assert_eq!(endpoint.transmit(), b"", "{error}");
        assert_eq!(endpoint.shutdowns(), [Shutdown::Write], "{error}");
        endpoint.eof();
        let events = endpoint.events();
        assert_eq!(terminated(&events), None, "{error}");
        let cause = CloseCause::Error(Error::BadTerminate(error));
        assert_eq!(closed(&events), Some((false, &cause)));
    }
}

#[test]
fn buffers_of_nothing_are_not_looked_at() {
    // RDMAP-027, DDP-030, and the same for Sends and receives: a zero-length element's key may be anything.
    let mut endpoint = target(config(Role::Initiator), 1);
    endpoint.memory.broken = vec![0, 1, 2, 1000];
    endpoint.submit(0, SEND, 0, 0);
    endpoint.submit(1, write(9, 0), 0, 0);
    endpoint.submit(2, read(7, 0), 0, 0);
    let sent = opcodes(&endpoint.transmit());
    assert_eq!(sent, [Opcode::Send, Opcode::Write, Opcode::ReadRequest]);
    let mut peer = Peer::new(CRC);
    endpoint.feed(&[peer.send(1, b""), peer.response(SINK, 0x2000, b"", true)].concat());
    let mut done = outcomes(&endpoint.events());
    done.sort_unstable_by_key(|(id, _)| *id);
    assert_eq!(done, [0, 1, 2, 1000].map(|id| (id, SUCCESS)));
    assert_eq!(endpoint.memory.buffers, 0);
}

#[test]
fn a_response_that_loses_its_memory_half_way() {
    // RDMAP-072, SEC-04: the request is shown advanced by what was answered.
    let mut endpoint = target(config(Role::Initiator), 1);
    endpoint.memory.remote_reads_left = Some(2);
    endpoint.feed(&Peer::new(CRC).request(1, request(OPEN, 0x1000, 8000)));
    let sent = seen(&endpoint.transmit());
    let opcodes: Vec<_> = sent.iter().map(|fpdu| fpdu.opcode).collect();
    assert_eq!(opcodes, [Opcode::ReadResponse, Opcode::ReadResponse, Opcode::Terminate]);
    let answered = sent[0].payload.len() + sent[1].payload.len();
    let terminate = Terminate::parse(&sent[2].payload).expect("a Terminate");
    assert_eq!(terminate.code, TerminateCode::INVALID_STAG);
    assert_eq!(terminate.segment_len, Some(46));
    let whole = request(OPEN, 0x1000, 8000);
    assert_eq!(terminate.read_request, Some(whole.advanced(answered as u32)));
    assert_eq!(terminate.read_request.map(|request| request.sink_offset), Some(0x2000 + 2880));
}

#[test]
fn a_source_that_cannot_be_read() {
    // RDMAP-070: a Terminate instead of the message, without headers; later segments as well as first ones.
    let fault = Error::Local(LocalError::Source(LocalFault::Protection));
    let mut endpoint = target(config(Role::Initiator), 1);
    endpoint.memory.broken = vec![1];
    endpoint.submit(0, SEND, 0, 4);
    endpoint.submit(1, SEND, 0, 4);
    endpoint.submit(2, SEND, 0, 4);
    assert_eq!(opcodes(&endpoint.transmit()), [Opcode::Send, Opcode::Terminate]);
    let events = endpoint.events();
    let expected = [(0, SUCCESS), (1, Outcome::LocalProtection), (2, FLUSHED)];
    assert_eq!(outcomes(&events), expected);
    assert!(events.contains(&Event::Terminated {
        by: Initiator::Local,
        terminate: Terminate::new(TerminateCode::LOCAL_CATASTROPHIC),
        cause: Some(fault),
    }));

    // Half way: the message stays unfinished, the FPDU does not.
    let mut endpoint = target(config(Role::Initiator), 1);
    endpoint.submit(0, write(9, 0), 0, 8000);
    endpoint.batch = iwarp_rdmap::TxBatch::with_capacity(2000);
    let first = endpoint.record().expect("a record");
    endpoint.accepted(first.len());
    endpoint.memory.broken = vec![0];
    assert_eq!(opcodes(&endpoint.transmit()), [Opcode::Terminate]);
    assert_eq!(outcomes(&endpoint.events()), [(0, Outcome::LocalProtection)]);

    // A buffer that is shorter than the message.
    let mut endpoint = target(config(Role::Initiator), 1);
    let buffer = common::memory::Buf { id: 5, at: 0, len: 3 };
    endpoint.stream.submit(Operation { kind: SEND, len: 4, fence: false, buffer }).expect("taken");
    assert_eq!(opcodes(&endpoint.transmit()), [Opcode::Terminate]);
    assert_eq!(outcomes(&endpoint.events()), [(5, Outcome::LocalLength)]);
}

#[test]
fn a_segment_that_cannot_be_framed() {
    // MPA-043: a size that no plan gives.
    let mut config = config(Role::Initiator);
    config.size.mulpdu = 70_000;
    let mut endpoint = target(config, 1);
    endpoint.submit(0, write(9, 0), 0, 70_000);
    let sent = seen(&endpoint.transmit());
    let local = Terminate::new(TerminateCode::LOCAL_CATASTROPHIC);
    assert_eq!(sent.len(), 1);
    assert_eq!(Terminate::parse(&sent[0].payload), Ok(local));
    assert_eq!(outcomes(&endpoint.events()), [(0, FLUSHED)]);
}

#[test]
fn a_sink_that_cannot_be_written() {
    // The read's own buffer, and a receive's.
    let mut endpoint = target(config(Role::Initiator), 1);
    endpoint.memory.broken = vec![0];
    endpoint.submit(0, read(7, 0), 0, 4);
    endpoint.submit(1, read(7, 0), 0, 4);
    endpoint.transmit();
    endpoint.feed(&Peer::new(CRC).response(SINK, 0x2000, b"data", true));
    let sent = seen(&endpoint.transmit());
    let local = Terminate::new(TerminateCode::LOCAL_CATASTROPHIC);
    assert_eq!(Terminate::parse(&sent[0].payload), Ok(local));
    let done = outcomes(&endpoint.events());
    assert_eq!(done, [(0, Outcome::LocalProtection), (1, FLUSHED)]);

    let mut endpoint = target(config(Role::Initiator), 1);
    endpoint.memory.broken = vec![1000];
    endpoint.feed(&Peer::new(CRC).send(1, b"data"));
    let sent = seen(&endpoint.transmit());
    assert_eq!(Terminate::parse(&sent[0].payload), Ok(local));
    assert_eq!(outcomes(&endpoint.events()), [(1000, Outcome::LocalProtection)]);
}

#[test]
fn a_read_where_none_is_allowed() {
    // RDMAP-063
    let mut config = config(Role::Initiator);
    config.ord = 0;
    let mut endpoint = target(config, 1);
    endpoint.submit(0, SEND, 0, 4);
    endpoint.submit(1, read(7, 0), 0, 4);
    endpoint.submit(2, SEND, 0, 4);
    assert_eq!(opcodes(&endpoint.transmit()), [Opcode::Send, Opcode::Terminate]);
    let done = outcomes(&endpoint.events());
    assert_eq!(done, [(0, SUCCESS), (1, Outcome::LocalOperation), (2, FLUSHED)]);
}

#[test]
fn gathered_memory_that_is_gone_resets_the_stream() {
    // An FPDU that cannot be finished: no Terminate can follow it.
    let mut config = config(Role::Initiator);
    config.framing = Framing { crc: false, ..CRC };
    let mut endpoint = target(config, 1);
    endpoint.batch.gather_from = Some(1);
    endpoint.submit(0, SEND, 0, 4);
    endpoint.submit(1, write(9, 0), 0, 100);
    let record = endpoint.record().expect("a record");
    let local: Vec<_> = endpoint
        .batch
        .chunks()
        .iter()
        .filter(|chunk| !matches!(chunk, Chunk::Staged(_)))
        .cloned()
        .collect();
    let expected =
        [Chunk::Local { op: 0, offset: 0, len: 4 }, Chunk::Local { op: 1, offset: 0, len: 100 }];
    assert_eq!(local, expected);
    assert_eq!(octets_of(&endpoint.batch, &endpoint.stream, &endpoint.memory), record);
    endpoint.accepted(28);
    endpoint.stream.handle_source_fault(&local[1]);
    assert_eq!(endpoint.shutdowns(), [Shutdown::Abort]);
    let events = endpoint.events();
    assert_eq!(outcomes(&events), [(0, SUCCESS), (1, Outcome::LocalProtection)]);
    assert_eq!(closed(&events), Some((false, &CloseCause::SourceLost)));
}

#[test]
fn gathered_responses_are_checked_when_they_are_framed() {
    // SEC-04
    let mut config = config(Role::Initiator);
    config.framing = Framing { crc: false, ..CRC };
    let mut endpoint = target(config, 1);
    endpoint.batch.gather_from = Some(1);
    let mut peer = Peer::new(config.framing);
    endpoint.feed(&peer.request(1, request(OPEN, 0x1000, 3000)));
    endpoint.record().expect("a record");
    let remote = endpoint
        .batch
        .chunks()
        .iter()
        .filter(
            |chunk| matches!(chunk, Chunk::Remote { stag, .. } if *stag == Stag::from_raw(OPEN)),
        )
        .map(Chunk::len)
        .sum::<usize>();
    assert_eq!(remote, 3000);
    endpoint.accepted(endpoint.batch.len());
    endpoint.feed(&peer.request(2, request(OPEN, 0x1000, 3000)));
    endpoint.memory.regions.clear();
    let sent = endpoint.record().expect("a Terminate");
    let mut observer = common::peer::Observer::new(config.framing);
    let sent = observer.see(&sent);
    assert_eq!(sent[0].opcode, Opcode::Terminate);
}
