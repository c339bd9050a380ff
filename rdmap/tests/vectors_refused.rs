//! All vectors of refused input, of Terminates and of atomics, at the level of a stream.
#![allow(
    clippy::arithmetic_side_effects,
    clippy::cast_possible_truncation,
    clippy::indexing_slicing,
    reason = "a test"
)]

mod common;

use common::endpoint::{Endpoint, SEND, atomic, outcomes, read};
use common::memory::{Region, TestMemory};
use common::peer::{Peer, seen};
use common::vectors::{File, Fpdu, READ_ID, UNTOUCHED, Vector, expected_terminate, number};
use common::{CRC, config};
use iwarp_mpa::{Role, framed_len};
use iwarp_rdmap::{
    AtomicOperation, Event, Initiator, Need, Opcode, Outcome, Shutdown, State, Terminate,
    TerminateCode,
};
use serde_json::Value;

const NEGATIVE: &str = include_str!("vectors/negative.json");
const TERMINATE: &str = include_str!("vectors/terminate.json");
const ATOMIC: &str = include_str!("vectors/atomic_semantics.json");

const SINK: usize = 12_288;
const RECEIVES: usize = 12_400;

/// The receiver state that the notes of `negative.json` describe, as far as this version has it.
fn receiver_of_the_notes(vector: &Vector) -> Endpoint {
    let mut memory = TestMemory::new(16_384);
    memory.bytes.fill(UNTOUCHED);
    memory.regions = vec![
        Region::new(0x00be_ef01, 0x1000, 0, 4096),
        Region::new(0x00be_ef02, 0x1000, 4096, 4096).foreign(),
        Region::new(0x00be_ef03, 0x1000, 8192, 4096).local(),
    ];
    memory.post(1, RECEIVES, 64);
    memory.post(2, RECEIVES + 64, 64);
    let mut config = config(Role::Initiator);
    config.extensions = vector.context["rfc7306"] != Value::Bool(false);
    let mut endpoint = Endpoint::new(config, memory);
    endpoint.submit(READ_ID, read(0x0077_7700, 0), SINK, 100);
    let request = endpoint.transmit();
    assert_eq!(seen(&request)[0].opcode, Opcode::ReadRequest);
    // The notes have an Atomic outstanding as well. Where it is answered, it has to be the oldest request.
    if vector.name.starts_with("atomic-resp") {
        endpoint.feed(&Peer::new(CRC).response(0x1234_5678, 0x2000, &[UNTOUCHED; 100], true));
        assert_eq!(outcomes(&endpoint.events()), [(READ_ID, Outcome::Success)]);
        endpoint.submit(READ_ID, atomic(0x0077_7700, 0, AtomicOperation::fetch_add(1)), SINK, 8);
        assert_eq!(seen(&endpoint.transmit())[0].opcode, Opcode::AtomicRequest);
        return endpoint;
    }
    assert_eq!(endpoint.events(), [Event::Established]);
    endpoint
}

#[test]
fn refused_input_is_answered_by_its_terminate() {
    // RDMAP-010, RDMAP-026, RDMAP-042, RDMAP-061, RDMAP-065, RDMAP-068, RDMAP-071, RDMAP-074, RDMAP-075,
    // RDMAP-077, RDMAP-078, RDMAP-081, DDP-010, DDP-015, DDP-017, DDP-024, DDP-044, DDP-050, DDP-051, DDP-052,
    // DDP-053, DDP-054, DDP-055, DDP-056, DDP-057, DDP-058, DDP-060, DDP-063, MPA-058, MPA-084, REG-01, REG-02,
    // SEC-01, SEC-03, EXT-02, EXT-08, EXT-10, EXT-11, EXT-13, EXT-17, EXT-19, EXT-20, EXT-21,
    // EXT-30
    let file = File::parse(NEGATIVE);
    for vector in &file.vectors {
        if vector.expect.get("action").is_some() {
            refused_without_answer(vector);
            continue;
        }
        let index = vector.expect.get("offending_fpdu").map_or(0, |index| number(index) as usize);
        let part = |name: &str| number(&vector.expect[name]) as u8;
        refused(vector, (part("layer"), part("etype"), part("code")), index);
    }
    assert_eq!(file.vectors.len(), 87);
}

fn refused(vector: &Vector, code: (u8, u8, u8), index: usize) {
    let name = &vector.name;
    let ulpdus = vector.ulpdus();
    let octets = vector.octets();
    let mut endpoint = receiver_of_the_notes(vector);

    // What came before the culprit is valid, and its effects stay.
    let before: usize = ulpdus[..index].iter().map(|ulpdu| framed_len(ulpdu.len(), false, 0)).sum();
    endpoint.feed(&octets[..before]);
    let memory = endpoint.memory.bytes.clone();
    let early = outcomes(&endpoint.events());
    assert!(early.iter().all(|(_, outcome)| *outcome == Outcome::Success), "{name}");

    let input = endpoint.feed(&octets[before..]);
    assert_eq!(input.need, Need::Nothing, "{name}");
    assert!(endpoint.rx.is_empty(), "{name}");
    // The content of a receive is indeterminate until it completes (ORD-03): there, and only there, lies
    // the payload of a Send whose invalidation was refused.
    let watched = if name.starts_with("inv-") { RECEIVES } else { memory.len() };
    assert!(endpoint.memory.bytes[..watched] == memory[..watched], "{name}: memory");

    let events = endpoint.events();
    let local = TerminateCode::from_parts(code.0, code.1, code.2);
    let terminated: Vec<_> = events
        .iter()
        .filter_map(|event| match event {
            Event::Terminated { by: Initiator::Local, terminate, cause: Some(cause) } => {
                assert_eq!(cause.terminate_code(), Some(local), "{name}: {cause}");
                Some(terminate.code)
            }
            _ => None,
        })
        .collect();
    assert_eq!(terminated, [local], "{name}");

    let answer = endpoint.transmit();
    // The request of the outstanding Read went out first; nothing else of it is in the answer.
    assert_eq!(
        hex::encode(&answer),
        hex::encode(expected_terminate(code, &ulpdus[index])),
        "{name}"
    );
    assert_eq!(endpoint.shutdowns(), [Shutdown::Write], "{name}");
    assert_eq!(endpoint.stream.counters().terminates_out(), 1, "{name}");

    // DDP-059, MPA-083: whatever follows is not looked at, good or bad.
    let good = Peer::new(CRC).write(0x00be_ef01, 0x1000, b"late", true);
    endpoint.feed(&good);
    let after = &endpoint.memory.bytes[..watched];
    assert!(*after == memory[..watched], "{name}: memory after the end");
    assert_eq!(endpoint.transmit(), b"", "{name}: nothing behind the Terminate"); // RDMAP-053

    // The Read comes back, as the culprit if it is the one.
    let is_response = ulpdus[index].get(1).is_some_and(|octet| octet & 0x0f == 2) && code.0 == 1;
    let is_bad_response = is_response && vector.name.starts_with("rresp");
    // EXT-17
    let is_bad_response = is_bad_response || name == "atomic-resp-unknown-id";
    let read = if is_bad_response { Outcome::BadResponse } else { Outcome::Flushed };
    let mut all = outcomes(&events);
    all.extend(outcomes(&endpoint.events()));
    let reads: Vec<_> = all.iter().filter(|(id, _)| *id == READ_ID).collect();
    assert_eq!(reads, [&(READ_ID, read)], "{name}");
    let culprits =
        all.iter().filter(|(_, o)| !matches!(o, Outcome::Success | Outcome::Flushed)).count();
    assert!(culprits <= 1, "{name}: {all:?}");
    assert_receives_returned(&endpoint, &early, &all, name);
    // So does the receive that was being filled.
    let receive = match code {
        (1, 2, 5) => Outcome::LocalLength,
        (0, 2, 7) if name.starts_with("imm-") => Outcome::LocalLength,
        _ if name.starts_with("inv-") => Outcome::InvalidateRefused,
        _ => Outcome::Flushed,
    };
    let open = all.iter().find(|(id, _)| *id != READ_ID);
    assert!(open.is_none_or(|(_, outcome)| *outcome == receive), "{name}: {open:?}");

    endpoint.eof();
    let last = endpoint.events();
    assert!(matches!(last[..], [Event::PeerClosed, Event::Closed { clean: false, .. }]), "{name}");
    assert_eq!(endpoint.stream.state(), State::Closed, "{name}");
}

/// Every receive that was taken came back once.
fn assert_receives_returned(
    endpoint: &Endpoint,
    early: &[(u64, Outcome)],
    late: &[(u64, Outcome)],
    name: &str,
) {
    let mut returned: Vec<_> =
        early.iter().chain(late).map(|(id, _)| *id).filter(|id| *id != READ_ID).collect();
    returned.sort_unstable();
    assert_eq!(returned, endpoint.memory.taken, "{name}");
}

fn refused_without_answer(vector: &Vector) {
    // RDMAP-056
    let name = &vector.name;
    let mut endpoint = receiver_of_the_notes(vector);
    let memory = endpoint.memory.bytes.clone();
    endpoint.feed(&vector.octets());
    assert_eq!(endpoint.transmit(), b"", "{name}");
    assert_eq!(endpoint.shutdowns(), [Shutdown::Write], "{name}");
    assert!(endpoint.memory.bytes == memory, "{name}: memory");
    assert_eq!(endpoint.stream.state(), State::Terminating, "{name}");
    let events = endpoint.events();
    assert_eq!(outcomes(&events), [(READ_ID, Outcome::Flushed)], "{name}");
    let by_peer = events
        .iter()
        .filter(|event| matches!(event, Event::Terminated { by: Initiator::Remote, .. }))
        .count();
    assert_eq!(by_peer, usize::from(name == "after-terminate"), "{name}");
    let by_us =
        events.iter().any(|event| matches!(event, Event::Terminated { by: Initiator::Local, .. }));
    assert!(!by_us, "{name}");
    if name == "after-terminate" {
        assert!(endpoint.memory.taken.is_empty(), "{name}");
    }
}

#[test]
fn atomics_do_what_they_should() {
    // EXT-03, EXT-06, EXT-07, EXT-09, EXT-12, EXT-15, EXT-20
    let file = File::parse(ATOMIC);
    for vector in &file.vectors {
        let name = &vector.name;
        let mut endpoint = receiver_of_the_notes(vector);
        let at = vector.fpdus()[0].number("/atomic_request/remote_to") as usize - 0x1000;
        let value = |name: &str| number(&vector.expect[name]).to_ne_bytes();
        endpoint.memory.bytes[at..at + 8].copy_from_slice(&value("original"));
        let mut expected = endpoint.memory.bytes.clone();
        expected[at..at + 8].copy_from_slice(&value("result"));
        endpoint.feed(&vector.octets());
        assert_eq!(hex::encode(endpoint.transmit()), vector.response_hex, "{name}");
        assert!(endpoint.memory.bytes == expected, "{name}: memory");
        assert_eq!(endpoint.memory.atomics, 1, "{name}");
        // EXT-12: nobody is told, and no receive is taken.
        assert_eq!(endpoint.events(), [], "{name}");
        assert!(endpoint.memory.taken.is_empty(), "{name}");
    }
    assert_eq!(file.vectors.len(), 28);
}

#[test]
fn without_the_extensions_all_atomics_are_refused() {
    // EXT-02, EXT-21: Terminate with the DDP header and without an RDMAP header.
    for vector in File::parse(ATOMIC).vectors {
        let off = Vector { context: serde_json::json!({ "rfc7306": false }), ..vector };
        refused(&off, (0, 2, 6), 0);
    }
}

#[test]
fn every_terminate_is_read_and_written() {
    // RDMAP-007, RDMAP-050, RDMAP-052, RDMAP-054, RDMAP-079, RDMAP-080, DDP-061, REG-03, CONN-30
    let file = File::parse(TERMINATE);
    for vector in &file.vectors {
        let name = &vector.name;
        let mut endpoint = Endpoint::new(config(Role::Initiator), TestMemory::new(0));
        endpoint.submit(1, SEND, 0, 0);
        endpoint.feed(&vector.octets());
        let events = endpoint.events();
        let [Event::Established, Event::Terminated { by, terminate, cause }, rest @ ..] =
            &events[..]
        else {
            panic!("{name}: {events:?}");
        };
        assert_eq!((*by, cause), (Initiator::Remote, &None), "{name}");
        assert_eq!(outcomes(rest), [(1, Outcome::Flushed)], "{name}");
        // Never answered, and nothing else is sent.
        assert_eq!(endpoint.transmit(), b"", "{name}");
        assert_eq!(endpoint.shutdowns(), [Shutdown::Write], "{name}");
        assert_says(terminate, &vector.fpdus()[0], vector);

        if vector.kind == "valid" {
            let mut peer = Peer::new(CRC);
            assert_eq!(hex::encode(peer.terminate(terminate)), vector.hex, "{name}");
        }
    }
    assert_eq!(file.vectors.len(), 39);
}

fn assert_says(terminate: &Terminate, fpdu: &Fpdu, vector: &Vector) {
    let name = &vector.name;
    let part = |path: &str| fpdu.number(path) as u8;
    let code = TerminateCode::from_parts(
        part("/terminate/layer"),
        part("/terminate/etype"),
        part("/terminate/code"),
    );
    assert_eq!(terminate.code, code, "{name}");
    if let Value::Object(meant) = &vector.expect["meant"] {
        let part = |name: &str| number(&meant[name]) as u8;
        let meant = TerminateCode::from_parts(part("layer"), part("etype"), part("code"));
        assert_eq!(terminate.meant, Some(meant), "{name}");
        assert_eq!(terminate.likely_code(), meant, "{name}");
        assert!(terminate.segment_len.is_some() && terminate.ddp_header.is_some(), "{name}");
        return;
    }
    assert_eq!(terminate.meant, None, "{name}");
    assert_eq!(terminate.segment_len.is_some(), fpdu.flag("/terminate/m"), "{name}");
    if let Some(len) = terminate.segment_len {
        assert_eq!(u64::from(len), fpdu.number("/terminate/ddp_segment_length"), "{name}");
    }
    assert_eq!(terminate.ddp_header.is_some(), fpdu.flag("/terminate/d"), "{name}");
    if let Some(header) = terminate.ddp_header {
        assert_eq!(header.as_bytes(), fpdu.octets("/terminate/terminated_ddp_header"), "{name}");
    }
    assert_eq!(terminate.read_request.is_some(), fpdu.flag("/terminate/r"), "{name}");
    if let Some(request) = terminate.read_request {
        let octets = fpdu.octets("/terminate/terminated_rdma_header");
        assert_eq!(request.to_bytes()[..], octets, "{name}");
    }
}
