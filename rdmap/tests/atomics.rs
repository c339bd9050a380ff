//! Atomics among everything else: their turn, their limits, and what becomes of them when something fails.
#![allow(
    clippy::arithmetic_side_effects,
    clippy::cast_possible_truncation,
    clippy::indexing_slicing,
    reason = "a test"
)]

mod common;

use common::endpoint::{
    Endpoint, FLUSHED, OPEN, SEND, SINK, SUCCESS, atomic, outcomes, read, target, terminated, write,
};
use common::memory::TestMemory;
use common::peer::{Peer, code, opcodes, request, seen, terminates};
use common::{CRC, config};
use iwarp_ddp::Stag;
use iwarp_mpa::Role;
use iwarp_rdmap::{
    AtomicOperation, AtomicRequest, AtomicResponse, Initiator, Opcode, Outcome, State, Terminate,
};

const ADD: AtomicOperation = AtomicOperation::fetch_add(1);

fn add_at(id: u32, offset: u64) -> AtomicRequest {
    AtomicRequest { id, stag: Stag::from_raw(OPEN), offset, operation: ADD }
}

fn word(endpoint: &Endpoint, at: usize) -> u64 {
    u64::from_ne_bytes(endpoint.memory.bytes[at..at + 8].try_into().expect("8 octets"))
}

fn set_word(endpoint: &mut Endpoint, at: usize, value: u64) {
    endpoint.memory.bytes[at..at + 8].copy_from_slice(&value.to_ne_bytes());
}

fn requester(ord: u32) -> Endpoint {
    let mut config = config(Role::Initiator);
    config.ord = ord;
    Endpoint::new(config, TestMemory::new(4096))
}

#[test]
fn an_atomic_waits_for_the_reads_before_it() {
    // ORD-18, ORD-20, EXT-14: the data first, then the word that unlocks them.
    let mut responder = target(config(Role::Initiator), 0);
    let data = responder.memory.bytes[..4096].to_vec();
    set_word(&mut responder, 4096, 7);
    let mut peer = Peer::new(CRC);
    responder.feed(&peer.request(1, request(OPEN, 0x1000, 4096)));
    responder.feed(&peer.atomic(2, add_at(2, 0x2000)));
    assert_eq!(word(&responder, 4096), 7, "not before its turn");
    let sent = seen(&responder.transmit());
    let last = sent.last().expect("an answer");
    assert!(sent.len() > 3, "the Response takes several segments");
    assert!(sent[..sent.len() - 1].iter().all(|fpdu| fpdu.opcode == Opcode::ReadResponse));
    let octets: Vec<_> = sent[..sent.len() - 1].iter().flat_map(|f| f.payload.clone()).collect();
    assert!(octets == data);
    let response = AtomicResponse { id: 2, original: 7 };
    assert_eq!((last.opcode, last.untagged), (Opcode::AtomicResponse, Some((3, 1, 0))));
    assert_eq!(last.payload, response.to_bytes());
    assert_eq!(word(&responder, 4096), 8);
}

#[test]
fn an_atomic_waits_also_for_what_is_read_as_tcp_takes_it() {
    // ORD-18: the Response is still in memory when its record was handed out.
    let mut config = config(Role::Initiator);
    config.framing.crc = false;
    let mut responder = target(config, 0);
    responder.batch.gather_from = Some(1);
    set_word(&mut responder, 0, 41);
    let mut peer = Peer::new(CRC);
    responder.feed(&peer.request(1, request(OPEN, 0x1000, 8)));
    responder.feed(&peer.atomic(2, add_at(9, 0x1000)));
    let read = responder.record().expect("the Read Response");
    assert!(responder.batch.chunks().len() > 1, "gathered");
    assert_eq!(word(&responder, 0), 41, "not yet read by TCP");
    responder.accepted(read.len());
    let rest = responder.transmit();
    assert_eq!(word(&responder, 0), 42);
    assert_eq!(rest[2 + 18..][..12], AtomicResponse { id: 9, original: 41 }.to_bytes());
}

#[test]
fn what_follows_an_atomic_may_be_ahead_of_its_answer() {
    // ORD-19: a later Write and a later Send are placed and delivered before it is carried out.
    let mut responder = target(config(Role::Initiator), 1);
    let mut peer = Peer::new(CRC);
    set_word(&mut responder, 0, 1);
    responder.feed(&peer.atomic(1, add_at(1, 0x1000)));
    responder.feed(&peer.write(OPEN, 0x1000, &100_u64.to_ne_bytes(), true));
    responder.feed(&peer.send(1, b"behind"));
    assert_eq!(outcomes(&responder.events()), [(1000, SUCCESS)]);
    let answer = seen(&responder.transmit());
    assert_eq!(answer[0].payload, AtomicResponse { id: 1, original: 100 }.to_bytes());
    assert_eq!(word(&responder, 0), 101);
}

#[test]
fn an_atomic_completes_with_its_response() {
    // ORD-17, ORD-13
    let mut requester = requester(2);
    requester.submit(0, atomic(OPEN, 8, ADD), 64, 8);
    requester.submit(1, SEND, 0, 4);
    assert_eq!(opcodes(&requester.transmit()), [Opcode::AtomicRequest, Opcode::Send]);
    assert_eq!(requester.stream.outstanding_reads(), 1);
    assert_eq!(outcomes(&requester.events()), []);
    requester.feed(&Peer::new(CRC).atomic_response(1, 1, 0x0102_0304_0506_0708));
    assert_eq!(outcomes(&requester.events()), [(0, SUCCESS), (1, SUCCESS)]);
    // EXT-09: as a number of this host.
    assert_eq!(word(&requester, 64), 0x0102_0304_0506_0708);
}

#[test]
fn reads_and_atomics_share_ord_and_numbers() {
    // EXT-10, EXT-16, RDMAP-062
    let mut requester = requester(2);
    requester.submit(0, read(OPEN, 0), 0, 4);
    requester.submit(1, atomic(OPEN, 8, ADD), 64, 8);
    requester.submit(2, atomic(OPEN, 8, ADD), 72, 8);
    requester.submit(3, read(OPEN, 0), 8, 4);
    let sent = seen(&requester.transmit());
    let place = |fpdu: &common::peer::Seen| (fpdu.opcode, fpdu.untagged.expect("untagged"));
    let sent: Vec<_> = sent.iter().map(place).collect();
    assert_eq!(sent, [(Opcode::ReadRequest, (1, 1, 0)), (Opcode::AtomicRequest, (1, 2, 0))]);
    let mut peer = Peer::new(CRC);
    requester.feed(&peer.response(SINK, 0x2000, b"data", true));
    assert_eq!(place(&seen(&requester.transmit())[0]), (Opcode::AtomicRequest, (1, 3, 0)));
    requester.feed(&peer.atomic_response(1, 2, 5));
    assert_eq!(place(&seen(&requester.transmit())[0]), (Opcode::ReadRequest, (1, 4, 0)));
    requester.feed(&peer.atomic_response(2, 3, 6));
    requester.feed(&peer.response(SINK, 0x2000, b"more", true));
    assert_eq!(outcomes(&requester.events()), [0, 1, 2, 3].map(|id| (id, SUCCESS)));
    assert_eq!((word(&requester, 64), word(&requester, 72)), (5, 6));
}

#[test]
fn reads_and_atomics_share_ird() {
    // EXT-16
    for kinds in [[true, true], [true, false], [false, true], [false, false]] {
        let mut responder = target(config(Role::Initiator), 0);
        let mut peer = Peer::new(CRC);
        for (msn, is_atomic) in (1..).zip(kinds) {
            responder.feed(&if is_atomic {
                peer.atomic(msn, add_at(msn, 0x1000))
            } else {
                peer.request(msn, request(OPEN, 0x1000, 4))
            });
        }
        assert_eq!(responder.stream.state(), State::Full);
        let before = responder.memory.bytes.clone();
        responder.feed(&peer.atomic(3, add_at(3, 0x1000)));
        assert_eq!(terminates(&responder.transmit()), [code(1, 2, 2)]);
        assert!(responder.memory.bytes == before, "none of them was carried out");
    }
}

#[test]
fn each_answer_makes_room_for_a_request() {
    // EXT-16: also where the first number is the last but one before the wrap.
    let mut config = config(Role::Initiator);
    config.ird = 1;
    config.first_msn = u32::MAX - 1;
    let mut responder = target(config, 0);
    set_word(&mut responder, 8, 0);
    let mut peer = Peer::new(CRC);
    for turn in 0..5_u32 {
        let msn = config.first_msn.wrapping_add(turn);
        responder.feed(&peer.atomic(msn, add_at(turn, 0x1008)));
        let answer = seen(&responder.transmit());
        assert_eq!(answer[0].untagged, Some((3, msn, 0)));
        let original = turn.into();
        assert_eq!(answer[0].payload, AtomicResponse { id: turn, original }.to_bytes());
    }
}

#[test]
fn an_atomic_whose_memory_is_gone_when_its_turn_comes() {
    // SEC-04, EXT-21: M and D, and no R.
    let mut responder = target(config(Role::Initiator), 0);
    let mut peer = Peer::new(CRC);
    let atomic = peer.atomic(1, add_at(1, 0x1000));
    responder.feed(&atomic);
    responder.memory.regions[0].valid = false;
    let before = responder.memory.bytes.clone();
    let sent = seen(&responder.transmit());
    let terminate = Terminate::parse(&sent[0].payload).expect("a Terminate");
    assert_eq!(terminate.code, code(0, 1, 0));
    assert_eq!(terminate.ddp_header.expect("D").as_bytes(), &atomic[2..20]);
    assert_eq!((terminate.segment_len, terminate.read_request), (Some(70), None));
    assert!(responder.memory.bytes == before);
}

#[test]
fn an_answer_of_the_other_kind_is_refused() {
    // EXT-17, EXT-18, RDMAP-035: the oldest request is the one that is answered.
    let mut requester = requester(2);
    requester.submit(0, read(OPEN, 0), 0, 4);
    requester.submit(1, atomic(OPEN, 8, ADD), 64, 8);
    requester.transmit();
    requester.feed(&Peer::new(CRC).atomic_response(1, 2, 9));
    assert_eq!(terminates(&requester.transmit()), [code(0, 2, 0xff)]);
    assert_eq!(outcomes(&requester.events()), [(0, FLUSHED), (1, FLUSHED)]);
    assert_eq!(word(&requester, 64), 0);

    let mut requester = self::requester(2);
    requester.submit(0, atomic(OPEN, 8, ADD), 64, 8);
    requester.submit(1, read(OPEN, 0), 0, 4);
    requester.transmit();
    requester.feed(&Peer::new(CRC).response(SINK, 0x2000, b"data", true));
    assert_eq!(terminates(&requester.transmit()), [code(1, 1, 0)]);
    assert_eq!(outcomes(&requester.events()), [(0, FLUSHED), (1, FLUSHED)]);
}

#[test]
fn an_answer_before_the_request_was_on_the_wire_is_refused() {
    // EXT-17
    let mut requester = requester(2);
    requester.submit(0, atomic(OPEN, 8, ADD), 64, 8);
    requester.record().expect("the request, which TCP has not accepted");
    requester.feed(&Peer::new(CRC).atomic_response(1, 1, 9));
    let events = requester.events();
    assert_eq!(terminated(&events), Some((Initiator::Local, code(0, 2, 0xff))));
    assert_eq!(word(&requester, 64), 0);
}

#[test]
fn an_answer_that_nobody_waits_for_is_refused() {
    // EXT-17
    let mut requester = requester(2);
    requester.feed(&Peer::new(CRC).atomic_response(1, 1, 9));
    assert_eq!(terminates(&requester.transmit()), [code(0, 2, 0xff)]);
}

#[test]
fn an_atomic_without_ord_fails() {
    // RDMAP-063
    let mut requester = requester(0);
    requester.submit(0, SEND, 0, 4);
    requester.submit(1, atomic(OPEN, 8, ADD), 64, 8);
    assert_eq!(opcodes(&requester.transmit()), [Opcode::Send, Opcode::Terminate]);
    assert_eq!(outcomes(&requester.events()), [(0, SUCCESS), (1, Outcome::LocalOperation)]);
}

#[test]
fn a_sink_that_cannot_be_written_fails_the_atomic() {
    for (broken, len, outcome) in
        [(true, 8, Outcome::LocalProtection), (false, 4, Outcome::LocalLength)]
    {
        let mut requester = requester(2);
        requester.submit(7, atomic(OPEN, 8, ADD), 64, len);
        requester.transmit();
        if broken {
            requester.memory.broken.push(7);
        }
        requester.feed(&Peer::new(CRC).atomic_response(1, 1, u64::MAX));
        assert_eq!(terminates(&requester.transmit()), [code(0, 0, 0)]);
        assert_eq!(outcomes(&requester.events()), [(7, outcome)]);
        assert_eq!(word(&requester, 64), 0, "all of it or nothing");
    }
}

#[test]
fn the_peers_terminate_names_the_atomic() {
    let table = [
        (code(0, 1, 2), Outcome::RemoteAccess),
        (code(0, 2, 6), Outcome::RemoteInvalidRequest),
        (code(0, 2, 7), Outcome::RemoteOperation),
        (code(1, 2, 2), Outcome::RemoteOperation),
    ];
    for (terminate, outcome) in table {
        let mut requester = requester(2);
        requester.submit(0, read(OPEN, 0), 0, 4);
        requester.submit(1, atomic(OPEN, 8, ADD), 64, 8);
        requester.submit(2, write(OPEN, 0), 0, 4);
        let sent = seen(&requester.transmit());
        let header = iwarp_rdmap::DdpHeader::from_front(&sent[1].ulpdu);
        let terminate =
            Terminate { segment_len: Some(70), ddp_header: header, ..Terminate::new(terminate) };
        requester.feed(&Peer::new(CRC).terminate(&terminate));
        let expected = [(0, FLUSHED), (1, outcome), (2, FLUSHED)];
        assert_eq!(outcomes(&requester.events()), expected, "{terminate:?}");
    }
}

#[test]
fn the_peers_fin_with_an_atomic_pending_is_no_clean_close() {
    // RDMAP-082
    let mut requester = requester(2);
    requester.submit(0, atomic(OPEN, 8, ADD), 64, 8);
    requester.transmit();
    requester.eof();
    assert_eq!(terminates(&requester.transmit()), [code(0, 2, 7)]);

    let mut responder = target(config(Role::Initiator), 0);
    set_word(&mut responder, 0, 1);
    responder.feed(&Peer::new(CRC).atomic(1, add_at(1, 0x1000)));
    responder.eof();
    assert_eq!(terminates(&responder.transmit()), [code(0, 2, 7)]);
    assert_eq!(word(&responder, 0), 1, "nobody waits for it any more");
}

#[test]
fn the_immediate_data_of_a_write_that_the_peer_refuses_is_blamed_on_it() {
    // FC-073, EXT-02: as long as the operation is not complete.
    let mut requester = requester(2);
    let kind = iwarp_rdmap::OperationKind::WriteImmediate {
        stag: Stag::from_raw(OPEN),
        offset: 0,
        immediate: [1; 8],
        solicited: false,
    };
    requester.submit(0, read(OPEN, 0), 0, 4);
    requester.submit(1, kind, 0, 4);
    let sent = seen(&requester.transmit());
    let header = iwarp_rdmap::DdpHeader::from_front(&sent[2].ulpdu);
    assert_eq!(sent[2].opcode, Opcode::Immediate);
    let terminate =
        Terminate { segment_len: Some(26), ddp_header: header, ..Terminate::new(code(0, 2, 6)) };
    requester.feed(&Peer::new(CRC).terminate(&terminate));
    let expected = [(0, FLUSHED), (1, Outcome::RemoteInvalidRequest)];
    assert_eq!(outcomes(&requester.events()), expected);
}
