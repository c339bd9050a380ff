//! Faults that other implementations have shown in the field, tried on this one: headers, the send path, the
//! read engine.
#![allow(
    clippy::arithmetic_side_effects,
    clippy::cast_possible_truncation,
    clippy::indexing_slicing,
    reason = "a test"
)]

mod common;

use common::endpoint::{
    Endpoint, FLUSHED, OPEN, SEND, SINK, SUCCESS, outcomes, read, target, terminated, write,
};
use common::memory::{Region, TestMemory};
use common::peer::{Peer, Seen, code, seen, terminates, untagged};
use common::{CRC, config, ramp_of};
use iwarp_ddp::{Stag, UntaggedHeader};
use iwarp_mpa::{FpduLimit, Role, Rtr, SizePlan};
use iwarp_rdmap::{Event, Initiator, Opcode, OperationKind, Outcome, State, TerminateCode};

#[test]
fn fc_015_length_below_the_header() {
    // FC-015, SEC-23, DDP-024
    for opcode in 0..16_u8 {
        for (control, header_len) in [(0xc1_u8, 14_usize), (0x41, 18)] {
            let whole: Vec<u8> =
                [control, 0x40 | opcode].into_iter().chain([0; 16]).take(header_len).collect();
            for len in 0..header_len {
                let mut endpoint = target(config(Role::Initiator), 1);
                let before = endpoint.memory.bytes.clone();
                endpoint.feed(&Peer::new(CRC).frame(&whole[..len]));
                let sent = endpoint.transmit();
                // RDMAP-080: no headers of a segment that has none.
                assert_eq!(sent.len(), 28);
                assert_eq!(terminates(&sent), [code(1, 0, 0)], "opcode {opcode}, {len} octets");
                assert!(endpoint.memory.bytes == before);
                assert!(endpoint.memory.taken.is_empty());
                assert_eq!(endpoint.stream.state(), State::Terminating);
            }
        }
    }
    // The smallest legal lengths.
    let mut endpoint = target(config(Role::Initiator), 1);
    let mut peer = Peer::new(CRC);
    let octets = [peer.write(0, 0, b"", true), peer.send(1, b"")].concat();
    endpoint.feed(&octets);
    assert_eq!(endpoint.stream.state(), State::Full);
    assert_eq!(outcomes(&endpoint.events()), [(1000, SUCCESS)]);
}

#[test]
fn fc_016_header_fault_in_the_very_first_fpdu() {
    // FC-016, RDMAP-074, RDMAP-075, DDP-015, REG-01, REG-02
    let send = untagged(Opcode::Send, 1);
    let ulpdu = |header: UntaggedHeader, change: fn(&mut [u8; 18])| {
        let mut octets = header.to_bytes();
        change(&mut octets);
        octets.to_vec()
    };
    // EXT-02: those of RFC 7306 where they are not served; and those that have no name anywhere.
    let mut cases: Vec<(Vec<u8>, TerminateCode)> = (0x8..=0xf_u8)
        .map(|opcode| {
            let header = UntaggedHeader { rsvd_ulp: 0x40 | opcode, ..send };
            (header.to_bytes().to_vec(), code(0, 2, 6))
        })
        .collect();
    cases.push((ulpdu(send, |octets| octets[0] = 0x40), code(1, 2, 6)));
    cases.push((ulpdu(send, |octets| octets[0] = 0x43), code(1, 2, 6)));
    cases.push((ulpdu(send, |octets| octets[0] = 0xc0), code(1, 1, 4)));
    cases.push((ulpdu(send, |octets| octets[1] = 0x03), code(0, 2, 5)));
    for queue in [3, u32::MAX] {
        cases.push((UntaggedHeader { queue, ..send }.to_bytes().to_vec(), code(1, 2, 1)));
    }
    for role in [Role::Initiator, Role::Responder] {
        for (ulpdu, code) in &cases {
            let mut config = config(role);
            config.extensions = false;
            let mut endpoint = target(config, 1);
            endpoint.feed(&Peer::new(CRC).frame(ulpdu));
            // Decision D1: valid for MPA, so a responder may answer.
            assert_eq!(terminates(&endpoint.transmit()), [*code], "{ulpdu:02x?}");
            let events = endpoint.events();
            assert_eq!(events.first(), Some(&Event::Established));
            assert_eq!(terminated(&events), Some((Initiator::Local, *code)));
        }
    }
}

/// An endpoint that has a Read of 4096 octets outstanding, with guards on both sides of its sink.
fn reader(reads: &[(u64, usize)]) -> Endpoint {
    let mut memory = TestMemory::new(32_768);
    memory.bytes.fill(0xa5);
    let mut endpoint = Endpoint::new(config(Role::Initiator), memory);
    for (id, len) in reads {
        let kind = OperationKind::Read {
            sink_stag: Stag::from_raw(SINK + *id as u32),
            sink_offset: 0x2000,
            source_stag: Stag::from_raw(7),
            source_offset: 0,
        };
        endpoint.submit(*id, kind, 8192 * (*id as usize + 1), *len);
    }
    endpoint.transmit();
    endpoint.events();
    endpoint
}

/// What a response does wrong, its segments (`STag`, offset, payload, L), the code that names it, and how many
/// octets it places all the same.
type Answer<'a> = (&'a str, Vec<(u32, u64, &'a [u8], bool)>, TerminateCode, usize);

#[test]
fn fc_017_response_longer_than_the_read_or_shorter() {
    // FC-017, RDMAP-034, RDMAP-035, DDP-057
    let octets = ramp_of(4097);
    let cases: Vec<Answer<'_>> = vec![
        (
            "4096 and then 4096 more",
            vec![(SINK, 0x2000, &octets[..4096], false), (SINK, 0x3000, &octets[..4096], true)],
            code(1, 1, 1),
            4096,
        ),
        ("4097 in one", vec![(SINK, 0x2000, &octets[..4097], true)], code(1, 1, 1), 0),
        ("4095 and L", vec![(SINK, 0x2000, &octets[..4095], true)], code(1, 1, 1), 0),
        ("nothing and L", vec![(SINK, 0x2000, &octets[..0], true)], code(1, 1, 1), 0),
        (
            "the second Read's first",
            vec![(SINK + 1, 0x2000, &octets[..100], true)],
            code(1, 1, 0),
            0,
        ),
        ("one octet off", vec![(SINK, 0x2001, &octets[..4096], true)], code(1, 1, 1), 0),
        (
            "a gap",
            vec![(SINK, 0x2000, &octets[..8], false), (SINK, 0x200c, &octets[..8], false)],
            code(1, 1, 1),
            8,
        ),
    ];
    for (what, answer, expected, placed) in cases {
        let mut endpoint = reader(&[(0, 4096), (1, 100)]);
        let mut peer = Peer::new(CRC);
        for (stag, offset, payload, last) in answer {
            endpoint.feed(&peer.response(stag, offset, payload, last));
        }
        assert_eq!(terminates(&endpoint.transmit()), [expected], "{what}");
        let events = endpoint.events();
        assert_eq!(outcomes(&events), [(0, Outcome::BadResponse), (1, FLUSHED)], "{what}");
        // Not an octet outside of what was asked for and came in order.
        assert!(endpoint.memory.bytes[..8192].iter().all(|octet| *octet == 0xa5), "{what}");
        assert!(endpoint.memory.bytes[8192..8192 + placed] == octets[..placed], "{what}");
        assert!(
            endpoint.memory.bytes[8192 + placed..].iter().all(|octet| *octet == 0xa5),
            "{what}"
        );
    }
    // No Read at all.
    let mut endpoint = Endpoint::new(config(Role::Initiator), TestMemory::new(64));
    endpoint.feed(&Peer::new(CRC).response(SINK, 0x2000, b"data", true));
    assert_eq!(terminates(&endpoint.transmit()), [code(1, 1, 0)]);
}

#[test]
fn a_response_to_a_request_that_is_not_on_the_wire_is_refused() {
    // RDMAP-035
    for accepted in [0, 51] {
        let mut endpoint = Endpoint::new(config(Role::Initiator), TestMemory::new(64));
        endpoint.submit(0, read(7, 0), 0, 4);
        let record = endpoint.record().expect("a request");
        assert_eq!(record.len(), 52);
        endpoint.accepted(accepted);
        endpoint.feed(&Peer::new(CRC).response(SINK, 0x2000, b"data", true));
        let local = Some((Initiator::Local, code(1, 1, 0)));
        let events = endpoint.events();
        assert_eq!(terminated(&events), local);
        // What is in flight is finished, then the Terminate follows.
        endpoint.accepted(52 - accepted);
        assert_eq!(terminates(&endpoint.transmit()), [code(1, 1, 0)]);
        assert_eq!(outcomes(&endpoint.events()), [(0, FLUSHED)]);
        assert_eq!(endpoint.memory.bytes[..4], [0; 4]);
    }
}

/// What Sends do wrong, MSN, MO and L of their segments, and the code that names it.
type Numbered<'a> = (&'a str, Vec<(u32, u32, bool)>, TerminateCode);

#[test]
fn fc_018_msn_and_mo() {
    // FC-018, DDP-022, DDP-052, DDP-054
    let refusals: [Numbered<'_>; 6] = [
        ("MSN 0", vec![(0, 0, true)], code(1, 2, 3)),
        ("MSN 2 for 1", vec![(2, 0, true)], code(1, 2, 3)),
        ("MSN twice", vec![(1, 0, true), (1, 0, true)], code(1, 2, 3)),
        ("gap in MO", vec![(1, 0, false), (1, 12, true)], code(1, 2, 4)),
        ("MO one too far", vec![(1, 0, false), (1, 9, true)], code(1, 2, 4)),
        ("MO again", vec![(1, 0, false), (1, 0, true)], code(1, 2, 4)),
    ];
    for (what, segments, expected) in refusals {
        let mut endpoint = target(config(Role::Initiator), 3);
        let mut peer = Peer::new(CRC);
        for (msn, offset, last) in segments {
            endpoint.feed(&peer.send_part(msn, offset, b"8 octets", last));
        }
        assert_eq!(terminates(&endpoint.transmit()), [expected], "{what}");
    }

    // Five messages across the wrap, both ways.
    let mut config = config(Role::Initiator);
    config.first_msn = 0xffff_fffe;
    let mut endpoint = target(config, 5);
    let mut peer = Peer::new(CRC);
    for (i, msn) in [0xffff_fffe, 0xffff_ffff, 0, 1, 2].into_iter().enumerate() {
        endpoint.feed(&peer.send(msn, b"x"));
        endpoint.submit(i as u64, SEND, 0, 1);
    }
    let numbers: Vec<_> =
        seen(&endpoint.transmit()).iter().filter_map(|fpdu| fpdu.untagged).collect();
    let expected: Vec<_> =
        [0xffff_fffe, 0xffff_ffff, 0, 1, 2].into_iter().map(|msn| (0, msn, 0)).collect();
    assert_eq!(numbers, expected);
    let events = endpoint.events();
    assert_eq!(outcomes(&events).len(), 10);
    assert!(outcomes(&events).iter().all(|(_, outcome)| *outcome == SUCCESS));
}

#[test]
fn fc_019_opcodes_and_flags_match_the_operation() {
    // FC-019, RDMAP-003, RDMAP-005, RDMAP-044
    for solicited in [false, true] {
        for invalidate in [None, Some(Stag::from_raw(OPEN))] {
            let mut sender = Endpoint::new(config(Role::Initiator), TestMemory::new(64));
            sender.submit(0, OperationKind::Send { solicited, invalidate }, 0, 5);
            let sent = sender.transmit();
            let fpdu = &seen(&sent)[0];
            assert_eq!(fpdu.opcode, Opcode::send(solicited, invalidate.is_some()));
            assert_eq!(fpdu.invalidate, invalidate.map_or(0, Stag::raw));
            assert_eq!(fpdu.untagged, Some((0, 1, 0)));

            let mut sink = target(config(Role::Responder), 1);
            sink.feed(&sent);
            let received: Vec<_> = sink
                .events()
                .into_iter()
                .filter_map(|event| match event {
                    Event::ReceiveDone { solicited, invalidated, len, .. } => {
                        Some((solicited, invalidated, len))
                    }
                    _ => None,
                })
                .collect();
            assert_eq!(received, [(solicited, invalidate, 5)]);
        }
    }
}

#[test]
fn fc_022_tcp_accepts_a_few_octets_at_a_time() {
    // FC-022, DDP-036, ORD-06, ORD-12
    let lengths = [1_usize, 3, 4093, 4097, 65_537];
    for step in [1, 7, 1459] {
        let mut memory = TestMemory::new(1 << 18);
        memory.bytes.copy_from_slice(&ramp_of(1 << 18));
        let mut endpoint = Endpoint::new(config(Role::Initiator), memory);
        let mut at = 11;
        for (id, len) in lengths.into_iter().enumerate() {
            endpoint.submit(id as u64, write(OPEN, 0x1000 * id as u64), at, len);
            at += len + 11;
        }
        let mut wire = Vec::new();
        let mut done: Vec<(u64, Outcome)> = Vec::new();
        let mut ends = Vec::new();
        while let Some(record) = endpoint.record() {
            for piece in record.chunks(step) {
                wire.extend_from_slice(piece);
                endpoint.accepted(piece.len());
                for one in outcomes(&endpoint.events()) {
                    done.push(one);
                    ends.push(wire.len());
                }
            }
        }
        assert_eq!(done, [0, 1, 2, 3, 4].map(|id| (id, SUCCESS)));
        // Each payload whole, from its place, and no octet of what lies between.
        let fpdus = seen(&wire);
        let mut at = 11;
        let mut fpdus = fpdus.iter();
        for (id, len) in lengths.into_iter().enumerate() {
            let mut payload = Vec::new();
            let last: &Seen = loop {
                let fpdu = fpdus.next().expect("another segment");
                let offset = 0x1000 * id as u64 + payload.len() as u64;
                assert_eq!(fpdu.tagged, Some((Stag::from_raw(OPEN), offset)));
                payload.extend_from_slice(&fpdu.payload);
                if fpdu.last {
                    break fpdu;
                }
            };
            assert!(payload == ramp_of(1 << 18)[at..at + len]);
            // Complete with the piece that held its last octet, and not with one before.
            let reported = ends[id];
            assert!(reported as u64 >= last.end && reported as u64 - last.end < step as u64);
            at += len + 11;
        }
    }
}

#[test]
fn fc_025_fence_and_full_read_queue() {
    // FC-025, RDMAP-062
    let mut endpoint = Endpoint::new(config(Role::Initiator), TestMemory::new(64));
    for id in 0..8 {
        endpoint.submit(id, read(7, 0), 0, 1);
    }
    endpoint.submit_fenced(8, SEND, 0, 1);
    for id in 9..17 {
        endpoint.submit(id, read(7, 0), 0, 1);
    }
    endpoint.submit_fenced(17, write(OPEN, 0), 0, 1);

    let mut peer = Peer::new(CRC);
    let mut open = 0;
    let mut answered = 0;
    loop {
        for fpdu in seen(&endpoint.transmit()) {
            match fpdu.opcode {
                Opcode::ReadRequest => open += 1,
                Opcode::Send => assert_eq!(answered, 8, "the fence waits for all eight"),
                Opcode::Write => assert_eq!(answered, 16),
                other => panic!("{other}"),
            }
            assert!(open <= 2, "more than two Reads open");
        }
        assert_eq!(endpoint.stream.outstanding_reads(), open);
        if open == 0 {
            break;
        }
        endpoint.feed(&peer.response(SINK, 0x2000, b"x", true));
        open -= 1;
        answered += 1;
    }
    assert_eq!(answered, 16);
    let done: Vec<_> = outcomes(&endpoint.events());
    let expected: Vec<_> = (0..18).map(|id| (id, SUCCESS)).collect();
    assert_eq!(done, expected);
}

#[test]
fn fc_026_the_sink_of_a_read_is_no_target_of_writes() {
    // FC-026. Before, during and after the Response.
    for moment in 0..3 {
        let mut memory = TestMemory::new(4096);
        memory.regions = vec![Region::new(SINK, 0x2000, 0, 64).local()];
        let mut endpoint = Endpoint::new(config(Role::Initiator), memory);
        endpoint.submit(0, read(7, 0), 0, 8);
        endpoint.transmit();
        let mut peer = Peer::new(CRC);
        if moment > 0 {
            endpoint.feed(&peer.response(SINK, 0x2000, b"1234", false));
        }
        if moment > 1 {
            endpoint.feed(&peer.response(SINK, 0x2004, b"5678", true));
            assert_eq!(outcomes(&endpoint.events()), [(0, SUCCESS)]);
        }
        let before = endpoint.memory.bytes.clone();
        endpoint.feed(&peer.write(SINK, 0x2000, b"evil", true));
        // Decision D4: DDP has no code for missing rights.
        assert_eq!(terminates(&endpoint.transmit()), [code(1, 1, 0)]);
        assert!(endpoint.memory.bytes == before);
    }
}

#[test]
fn fc_027_reads_of_nothing() {
    // FC-027, RDMAP-025, RDMAP-027, SEC-13
    let mut reader_config = config(Role::Initiator);
    reader_config.rtr = Some(Rtr::Read);
    let mut reader = Endpoint::new(reader_config, TestMemory::new(64));
    for (id, stag) in [0, 0xdead_beef].into_iter().enumerate() {
        let kind = OperationKind::Read {
            sink_stag: Stag::from_raw(stag),
            sink_offset: u64::MAX,
            source_stag: Stag::from_raw(stag),
            source_offset: u64::MAX,
        };
        reader.submit(id as u64, kind, 0, 0);
    }
    let mut target_config = config(Role::Responder);
    target_config.rtr = Some(Rtr::Read);
    let mut target = target(target_config, 0);
    let mut answers = 0;
    loop {
        let requests = reader.transmit();
        if requests.is_empty() {
            break;
        }
        target.feed(&requests);
        let responses = target.transmit();
        answers += seen(&responses).len();
        reader.feed(&responses);
    }
    assert_eq!(answers, 3);
    assert_eq!(target.memory.checks, 0, "of an empty Read nothing is checked");
    let done: Vec<_> = reader
        .events()
        .into_iter()
        .filter_map(|event| match event {
            Event::OperationDone { buffer, outcome, len, .. } => Some((buffer.id, outcome, len)),
            _ => None,
        })
        .collect();
    assert_eq!(done, [(0, SUCCESS, 0), (1, SUCCESS, 0)]);
    assert_eq!(target.events(), [Event::Established]);
}

#[test]
fn large_fpdus_are_used_only_if_asked_for() {
    // FC-021: both directions of the setting, at the level of segments.
    for (limit, most) in [(FpduLimit::Emss, 1460), (FpduLimit::Octets(16_384), 16_060)] {
        let mut config = config(Role::Initiator);
        config.size = SizePlan::new(1460, limit, false);
        let mut endpoint = Endpoint::new(config, TestMemory::new(1 << 16));
        endpoint.submit(0, write(OPEN, 0), 0, 1 << 16);
        let sent = seen(&endpoint.transmit());
        let longest = sent.iter().map(|fpdu| fpdu.ulpdu.len() + 6).max();
        assert_eq!(longest, Some(most));
    }
}
