//! Rules of order, one by one: what may not start, complete or be delivered before what (RFC 5040 §5.5).
#![allow(
    clippy::arithmetic_side_effects,
    clippy::cast_possible_truncation,
    clippy::indexing_slicing,
    reason = "a test"
)]

mod common;

use common::endpoint::{Endpoint, SEND, outcomes, read, write};
use common::memory::{Region, TestMemory};
use common::peer::{Peer, request, seen, tagged, untagged};
use common::{CRC, config, ramp_of};
use iwarp_ddp::UntaggedHeader;
use iwarp_mpa::{Role, Rtr};
use iwarp_rdmap::{Event, Need, Opcode, Outcome, Shutdown, State, Terminate, TerminateCode};

const OPEN: u32 = 0x00be_ef01;
const SINK: u32 = 0x1234_5678;
const SUCCESS: Outcome = Outcome::Success;

fn endpoint() -> Endpoint {
    let mut memory = TestMemory::new(32_768);
    memory.regions = vec![Region::new(OPEN, 0x1000, 0, 16_384)];
    memory.bytes[..16_384].copy_from_slice(&ramp_of(16_384));
    for id in 0..4 {
        memory.post(1000 + id, 16_384 + 4096 * id as usize, 4096);
    }
    Endpoint::new(config(Role::Initiator), memory)
}

fn opcodes(octets: &[u8]) -> Vec<Opcode> {
    seen(octets).iter().map(|fpdu| fpdu.opcode).collect()
}

#[test]
fn completion_is_in_order_of_submission() {
    // ORD-13, ORD-15: a Send and a Write behind a Read complete after it, though they went out long before.
    let mut endpoint = endpoint();
    endpoint.submit(0, read(7, 0), 0, 4);
    endpoint.submit(1, SEND, 0, 4);
    endpoint.submit(2, write(9, 0), 0, 4);
    let sent = opcodes(&endpoint.transmit());
    assert_eq!(sent, [Opcode::ReadRequest, Opcode::Send, Opcode::Write]);
    assert!(outcomes(&endpoint.events()).is_empty());
    assert_eq!(endpoint.stream.queued_operations(), 3);
    let mut peer = Peer::new(CRC);
    endpoint.feed(&peer.response(SINK, 0x2000, b"da", false));
    assert!(outcomes(&endpoint.events()).is_empty(), "half a response completes nothing");
    endpoint.feed(&peer.response(SINK, 0x2002, b"ta", true));
    assert_eq!(outcomes(&endpoint.events()), [0, 1, 2].map(|id| (id, SUCCESS)));
    assert_eq!(&endpoint.memory.bytes[..4], b"data");
}

#[test]
fn a_send_is_complete_when_tcp_has_it_and_not_before() {
    // ORD-12, ORD-06
    let mut endpoint = endpoint();
    endpoint.submit(0, SEND, 0, 4);
    let record = endpoint.record().expect("a Send");
    endpoint.accepted(record.len() - 1);
    assert!(outcomes(&endpoint.events()).is_empty());
    assert!(endpoint.stream.has_pending_work());
    endpoint.accepted(1);
    assert_eq!(outcomes(&endpoint.events()), [(0, SUCCESS)]);
    assert!(!endpoint.stream.has_pending_work());
}

#[test]
fn a_read_sees_what_was_written_before_it() {
    // ORD-09: also from memory that the same input wrote, and an empty one waits as well.
    let mut endpoint = endpoint();
    let mut peer = Peer::new(CRC);
    let octets = [
        peer.write(OPEN, 0x1000, b"new!", true),
        peer.request(1, request(OPEN, 0x1000, 4)),
        peer.request(2, request(OPEN, 0x1000, 0)),
    ]
    .concat();
    endpoint.feed(&octets);
    let sent = seen(&endpoint.transmit());
    assert_eq!(sent[0].payload, b"new!");
    assert_eq!(sent[1].payload, b"");
    assert!(sent[1].last);

    // Behind a Send that is held back nothing starts.
    let mut endpoint = self::endpoint();
    endpoint.memory.receives.clear();
    let mut peer = Peer::new(CRC);
    let octets = [peer.send(1, b"held"), peer.request(1, request(OPEN, 0x1000, 4))].concat();
    assert_eq!(endpoint.feed(&octets).need, Need::Receive);
    assert_eq!(endpoint.transmit(), b"");
    endpoint.memory.post(7, 16_384, 8);
    endpoint.read();
    assert_eq!(opcodes(&endpoint.transmit()), [Opcode::ReadResponse]);
}

#[test]
fn a_response_may_see_what_was_written_after_its_request() {
    // ORD-10: the memory is read when the response is made; that is what a fence is for.
    let mut endpoint = endpoint();
    let mut peer = Peer::new(CRC);
    endpoint.feed(&peer.request(1, request(OPEN, 0x1000, 4)));
    endpoint.feed(&peer.write(OPEN, 0x1000, b"late", true));
    assert_eq!(seen(&endpoint.transmit())[0].payload, b"late");
}

#[test]
fn sends_are_delivered_while_reads_wait() {
    // ORD-14, ORD-01: a Send of the peer is delivered before its earlier Read is answered.
    let mut endpoint = endpoint();
    let mut peer = Peer::new(CRC);
    endpoint.feed(&[peer.request(1, request(OPEN, 0x1000, 4)), peer.send(1, b"data")].concat());
    assert_eq!(outcomes(&endpoint.events()), [(1000, SUCCESS)]);
    assert_eq!(opcodes(&endpoint.transmit()), [Opcode::ReadResponse]);
}

#[test]
fn responses_are_in_the_order_of_requests() {
    // RDMAP-032, ORD-16
    let mut endpoint = endpoint();
    let mut peer = Peer::new(CRC);
    let mut second = request(OPEN, 0x1800, 4);
    second.sink_offset = 0x9000;
    let requests = [peer.request(1, request(OPEN, 0x1000, 3000)), peer.request(2, second)].concat();
    endpoint.feed(&requests);
    let offsets: Vec<_> = seen(&endpoint.transmit())
        .iter()
        .filter_map(|fpdu| fpdu.tagged.map(|(_, to)| to))
        .collect();
    assert_eq!(offsets, [0x2000, 0x2000 + 1440, 0x2000 + 2880, 0x9000]);
}

#[test]
fn ird_counts_what_is_not_answered() {
    // RDMAP-061, RDMAP-031, SEC-10, SEC-11: two at a time, as often as the peer likes.
    let mut endpoint = endpoint();
    let mut peer = Peer::new(CRC);
    for round in 0..3 {
        for i in 1..=2 {
            endpoint.feed(&peer.request(2 * round + i, request(OPEN, 0x1000, 4)));
        }
        assert_eq!(endpoint.stream.state(), State::Full);
        assert_eq!(opcodes(&endpoint.transmit()), [Opcode::ReadResponse; 2]);
    }
    for msn in 7..=9 {
        endpoint.feed(&peer.request(msn, request(OPEN, 0x1000, 4)));
    }
    let sent = seen(&endpoint.transmit());
    let terminate = Terminate::parse(&sent[0].payload).expect("a Terminate");
    assert_eq!(terminate.code, TerminateCode::NO_BUFFER);
    assert_eq!(sent.len(), 1, "the two Reads before it are not answered any more");
}

#[test]
fn an_rtr_by_read_takes_no_place_of_the_others() {
    // CONN-14, RDMAP-061: one more than IRD, until it is answered.
    let with_rtr = || {
        let mut config = config(Role::Responder);
        config.rtr = Some(Rtr::Read);
        config.ird = 1;
        let mut endpoint = endpoint();
        endpoint.stream = iwarp_rdmap::Stream::new(config);
        endpoint
    };
    let (rtr, read) = (request(1, 0, 0), request(OPEN, 0x1000, 4));
    let mut endpoint = with_rtr();
    let mut peer = Peer::new(CRC);
    endpoint.feed(&[peer.request(1, rtr), peer.request(2, read)].concat());
    assert_eq!(endpoint.stream.state(), State::Full);
    assert_eq!(opcodes(&endpoint.transmit()), [Opcode::ReadResponse; 2]);
    endpoint.feed(&peer.request(3, read));
    assert_eq!(endpoint.stream.state(), State::Full);
    endpoint.feed(&peer.request(4, read));
    assert_eq!(opcodes(&endpoint.transmit()), [Opcode::Terminate]);

    let mut endpoint = with_rtr();
    let mut peer = Peer::new(CRC);
    let requests = [peer.request(1, rtr), peer.request(2, read), peer.request(3, read)].concat();
    endpoint.feed(&requests);
    assert_eq!(opcodes(&endpoint.transmit()), [Opcode::Terminate]);

    // Where another message came first there is no RTR.
    let mut endpoint = with_rtr();
    let mut peer = Peer::new(CRC);
    let first = peer.write(0, 0, b"", true);
    endpoint.feed(&[first, peer.request(1, read), peer.request(2, read)].concat());
    assert_eq!(opcodes(&endpoint.transmit()), [Opcode::Terminate]);
}

#[test]
fn an_rtr_by_read_takes_one_place_of_the_peer() {
    // CONN-24, RDMAP-062: own Reads wait for it where the peer has room for one; Sends and fences do not.
    let mut config = config(Role::Initiator);
    config.rtr = Some(Rtr::Read);
    config.ord = 1;
    let mut endpoint = endpoint();
    endpoint.stream = iwarp_rdmap::Stream::new(config);
    endpoint.submit_fenced(0, SEND, 0, 4);
    endpoint.submit(1, read(7, 0), 0, 4);
    assert_eq!(opcodes(&endpoint.transmit()), [Opcode::ReadRequest, Opcode::Send]);
    assert_eq!(endpoint.stream.outstanding_reads(), 0);
    // Nor does it keep a Send of the peer from being held back: nobody waits for its answer.
    endpoint.memory.receives.clear();
    let mut peer = Peer::new(CRC);
    assert_eq!(endpoint.feed(&peer.send(1, b"data")).need, Need::Receive);
    endpoint.memory.post(1000, 16_384, 64);
    endpoint.read();
    endpoint.feed(&peer.response(0, 0, b"", true));
    assert_eq!(opcodes(&endpoint.transmit()), [Opcode::ReadRequest]);
    endpoint.feed(&peer.response(SINK, 0x2000, b"data", true));
    let done = outcomes(&endpoint.events());
    assert_eq!(done, [(0, SUCCESS), (1000, SUCCESS), (1, SUCCESS)]);
}

#[test]
fn close_waits_for_the_answer_to_an_rtr_by_read() {
    let mut config = config(Role::Initiator);
    config.rtr = Some(Rtr::Read);
    let mut endpoint = endpoint();
    endpoint.stream = iwarp_rdmap::Stream::new(config);
    endpoint.transmit();
    endpoint.stream.close(endpoint.now);
    assert_eq!(endpoint.shutdowns(), []);
    endpoint.feed(&Peer::new(CRC).response(0, 0, b"", true));
    assert_eq!(endpoint.shutdowns(), [Shutdown::Write]);
    endpoint.eof();
    let clean = endpoint.events().iter().any(|it| matches!(it, Event::Closed { clean: true, .. }));
    assert!(clean);
}

#[test]
fn a_long_response_lets_own_sends_through_and_the_other_way_round() {
    // Bounded bursts, FPDU by FPDU, but for two tagged messages.
    let mut config = config(Role::Initiator);
    config.response_burst = 2;
    let mut endpoint = endpoint();
    endpoint.stream = iwarp_rdmap::Stream::new(config);
    endpoint.feed(&Peer::new(CRC).request(1, request(OPEN, 0x1000, 10_000)));
    endpoint.submit(0, SEND, 0, 7000);
    endpoint.submit(1, write(9, 0), 0, 3000);
    endpoint.submit(2, SEND, 0, 4);
    let letters: String = seen(&endpoint.transmit())
        .iter()
        .map(|fpdu| match (fpdu.opcode, fpdu.last) {
            (Opcode::Send, false) => 's',
            (Opcode::Send, true) => 'S',
            (Opcode::Write, false) => 'w',
            (Opcode::Write, true) => 'W',
            (Opcode::ReadResponse, false) => 'r',
            (Opcode::ReadResponse, true) => 'R',
            (other, _) => panic!("{other}"),
        })
        .collect();
    // Seven segments of the response; the Write waits for the last.
    assert_eq!(letters, "ssrrssrrSrrRwwWS");
}

#[test]
fn own_writes_and_responses_take_turns() {
    // At the boundaries of messages nobody has a right of way: else the peer's Reads could hold back all Writes.
    let mut config = config(Role::Initiator);
    config.response_burst = 1;
    let mut endpoint = endpoint();
    endpoint.stream = iwarp_rdmap::Stream::new(config);
    let mut peer = Peer::new(CRC);
    for msn in 1..=2 {
        endpoint.feed(&peer.request(msn, request(OPEN, 0x1000, 4)));
    }
    for id in 0..3 {
        endpoint.submit(id, write(9, 0), 0, 4);
    }
    let (own, response) = (Opcode::Write, Opcode::ReadResponse);
    assert_eq!(opcodes(&endpoint.transmit()), [own, response, own, response, own]);
}

#[test]
fn ord_may_change_while_reads_are_outstanding() {
    // RDMAP-062, RDMAP-063: those that went out stay so, and only what follows is held to the new number.
    let mut endpoint = endpoint();
    for id in 0..4 {
        endpoint.submit(id, read(7, 0), 0, 4);
    }
    assert_eq!(opcodes(&endpoint.transmit()), [Opcode::ReadRequest; 2]);
    endpoint.stream.set_ord(1);
    let mut peer = Peer::new(CRC);
    let mut answer = || peer.response(SINK, 0x2000, b"data", true);
    endpoint.feed(&answer());
    assert_eq!(opcodes(&endpoint.transmit()), []);
    endpoint.feed(&answer());
    assert_eq!(opcodes(&endpoint.transmit()), [Opcode::ReadRequest]);
    endpoint.stream.set_ord(0);
    endpoint.feed(&answer());
    assert_eq!(opcodes(&endpoint.transmit()), [Opcode::Terminate]);
    let done = outcomes(&endpoint.events());
    assert_eq!(done, [(0, SUCCESS), (1, SUCCESS), (2, SUCCESS), (3, Outcome::LocalOperation)]);
}

#[test]
fn a_receiver_takes_messages_in_one_another() {
    // ORD-02, ORD-04, ORD-05: a Write, a Send, a Read Request, a Response and a Terminate between the segments
    // of others. RFC 5041 forbids no such thing, and each finds its place.
    let mut endpoint = endpoint();
    endpoint.submit(0, read(7, 0), 0, 8);
    endpoint.transmit();
    let mut peer = Peer::new(CRC);
    let octets = [
        peer.send_part(1, 0, b"one ", false),
        peer.write(OPEN, 0x2000, b"wri", false),
        peer.response(SINK, 0x2000, b"resp", false),
        peer.request(1, request(OPEN, 0x1000, 4)),
        peer.send_part(1, 4, b"two ", false),
        peer.write(OPEN, 0x2003, b"te", true),
        peer.response(SINK, 0x2004, b"onse", true),
        peer.send_part(1, 8, b"three", true),
    ]
    .concat();
    endpoint.feed(&octets);
    let events = endpoint.events();
    assert_eq!(outcomes(&events), [(0, SUCCESS), (1000, SUCCESS)]);
    assert_eq!(&endpoint.memory.bytes[16_384..16_397], b"one two three");
    assert_eq!(&endpoint.memory.bytes[0x1000..0x1005], b"write");
    assert_eq!(&endpoint.memory.bytes[..8], b"response");
    assert_eq!(opcodes(&endpoint.transmit()), [Opcode::ReadResponse]);
    let part = peer.send_part(2, 0, b"part", false);
    let terminate = peer.terminate(&Terminate::new(TerminateCode::LOCAL_CATASTROPHIC));
    endpoint.feed(&[part, terminate].concat());
    assert_eq!(outcomes(&endpoint.events()), [(1001, Outcome::Flushed)]);
}

#[test]
fn empty_segments_inside_messages_are_harmless() {
    // DDP-029 binds the sender; a receiver only counts octets.
    let mut endpoint = endpoint();
    endpoint.submit(0, read(7, 0), 0, 4);
    endpoint.transmit();
    let mut peer = Peer::new(CRC);
    let octets = [
        peer.send_part(1, 0, b"", false),
        peer.send_part(1, 0, b"data", false),
        peer.send_part(1, 4, b"", true),
        peer.response(0, 0, b"", false),
        peer.response(SINK, 0x2000, b"data", false),
        peer.response(0, 0, b"", true),
        peer.write(0, 0, b"", false),
        peer.write(0, 0, b"", true),
    ]
    .concat();
    endpoint.feed(&octets);
    assert_eq!(endpoint.stream.state(), State::Full);
    assert_eq!(outcomes(&endpoint.events()), [(1000, SUCCESS), (0, SUCCESS)]);
}

/// Which check comes before which, FPDUs whose last one fails both, and the code of the first.
type TwofoldFault = (&'static str, Vec<u8>, (u8, u8, u8));

fn twofold_faults() -> Vec<TwofoldFault> {
    let send = untagged(Opcode::Send, 1);
    let read = UntaggedHeader { queue: 1, ..untagged(Opcode::ReadRequest, 1) };
    let good = request(OPEN, 0x1000, 4).to_bytes();
    let bad_stag = request(0, 0, 4).to_bytes();
    let one = |header: UntaggedHeader, payload: &[u8]| Peer::new(CRC).untagged(header, payload);
    let tagged_one =
        |opcode, stag, offset| Peer::new(CRC).tagged(tagged(opcode, stag, offset, true), b"x");
    let in_message = |header: UntaggedHeader| {
        let mut peer = Peer::new(CRC);
        [peer.send_part(1, 0, b"open", false), peer.untagged(header, b"")].concat()
    };
    let versions = {
        let mut octets = send.to_bytes();
        (octets[0], octets[1]) = (0x42, 0x83);
        Peer::new(CRC).frame(&octets)
    };
    let third_read = {
        let mut peer = Peer::new(CRC);
        let numbers = [1, 2, 9];
        numbers.map(|msn| peer.untagged(UntaggedHeader { msn, ..read }, &good)).concat()
    };
    let other = UntaggedHeader { offset: 9, ..untagged(Opcode::SendSolicited, 9) };
    let not_last = UntaggedHeader { last: false, ..read };
    vec![
        ("DDP version before RDMAP version", versions, (1, 2, 6)),
        (
            "RDMAP version before opcode",
            one(UntaggedHeader { rsvd_ulp: 0x8f, ..send }, b""),
            (0, 2, 5),
        ),
        ("opcode before T", tagged_one(Opcode::Immediate, 0, 0), (0, 2, 6)),
        ("T before STag", tagged_one(Opcode::Send, 0, 0), (0, 2, 6)),
        ("queue before MSN", one(UntaggedHeader { queue: 1, msn: 9, ..send }, b""), (1, 2, 1)),
        ("MSN before MO", one(UntaggedHeader { msn: 9, offset: 9, ..send }, b""), (1, 2, 3)),
        ("opcode of the message before its MSN", in_message(other), (0, 2, 6)),
        (
            "MSN of the message before its MO",
            in_message(UntaggedHeader { msn: 2, offset: 9, ..send }),
            (1, 2, 3),
        ),
        ("MO before length", one(UntaggedHeader { offset: 1, ..send }, &ramp_of(1400)), (1, 2, 4)),
        ("MSN of a Read before its place", third_read, (1, 2, 3)),
        ("MO of a Read before L", one(UntaggedHeader { offset: 4, ..not_last }, &good), (1, 2, 4)),
        ("L of a Read before its length", one(not_last, &good[..20]), (0, 2, 7)),
        ("length of a Read before its STag", one(read, &bad_stag[..27]), (0, 2, 0xff)),
        ("STag before wrap", tagged_one(Opcode::Write, 3, u64::MAX), (1, 1, 0)),
        ("wrap before bounds", tagged_one(Opcode::Write, OPEN, u64::MAX), (1, 1, 3)),
    ]
}

#[test]
fn the_first_check_that_fails_counts() {
    // Conformance §11, RDMAP-076
    for (what, octets, (layer, error_type, code)) in twofold_faults() {
        let mut endpoint = endpoint();
        endpoint.memory.receives.iter_mut().for_each(|receive| receive.capacity = 64);
        endpoint.feed(&octets);
        let sent = seen(&endpoint.transmit());
        let codes: Vec<_> =
            sent.iter().filter_map(|fpdu| Terminate::parse(&fpdu.payload).ok()).collect();
        let expected = TerminateCode::from_parts(layer, error_type, code);
        assert_eq!(codes.iter().map(|it| it.code).collect::<Vec<_>>(), [expected], "{what}");
    }
}

#[test]
fn events_tell_what_was_received() {
    // RDMAP-041, RDMAP-011, RDMAP-022: lengths of Sends; nothing of Writes and of the peer's Reads.
    let mut endpoint = endpoint();
    let mut peer = Peer::new(CRC);
    let octets = [
        peer.write(OPEN, 0x1000, b"write", true),
        peer.request(1, request(OPEN, 0x1000, 4)),
        peer.send(1, &ramp_of(1000)),
    ]
    .concat();
    endpoint.feed(&octets);
    let events = endpoint.events();
    assert_eq!(events.len(), 2);
    assert!(matches!(events[1], Event::ReceiveDone { len: 1000, solicited: false, .. }));
    let counters = endpoint.stream.counters();
    for opcode in [Opcode::Write, Opcode::ReadRequest, Opcode::Send] {
        assert_eq!(counters.messages_in.of(opcode), 1);
    }
    assert_eq!(counters.fpdus_in, 3);
    assert_eq!(counters.octets_in, octets.len() as u64);
}

#[test]
fn immediate_data_tells_the_length_of_the_write_right_before_it() {
    // EXT-31: of no other. A Write that has not ended is not before it either.
    // In front of the Immediate Data, its MSN, and the length it tells.
    type Case<'a> = (&'a str, &'a dyn Fn(&mut Peer) -> Vec<u8>, u32, u32);
    let write = |peer: &mut Peer, last| peer.write(OPEN, 0x1000, b"write", last);
    let between: [Case<'_>; 6] = [
        ("nothing", &|peer| write(peer, true), 1, 5),
        ("no Write at all", &|_| Vec::new(), 1, 0),
        ("a Send", &|peer| [write(peer, true), peer.send(1, b"")].concat(), 2, 0),
        (
            "a Read Request",
            &|peer| [write(peer, true), peer.request(1, request(OPEN, 0x1000, 4))].concat(),
            1,
            0,
        ),
        (
            "other Immediate Data",
            &|peer| {
                let immediate = untagged(Opcode::Immediate, 1);
                [write(peer, true), peer.untagged(immediate, &[0; 8])].concat()
            },
            2,
            0,
        ),
        ("the rest of the Write", &|peer| write(peer, false), 1, 0),
    ];
    for (what, before, msn, expected) in between {
        let mut endpoint = endpoint();
        let mut peer = Peer::new(CRC);
        endpoint.feed(&before(&mut peer));
        endpoint.feed(&peer.untagged(untagged(Opcode::Immediate, msn), &[7; 8]));
        let events = endpoint.events();
        let Some(Event::ReceiveDone { len, immediate: Some([7, ..]), .. }) = events.last() else {
            panic!("{what}: {events:?}");
        };
        assert_eq!(*len, expected, "{what}");
    }
}
