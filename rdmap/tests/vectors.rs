//! All vectors of single FPDUs and messages, at the level of a stream: octets in, memory, events and octets out;
//! and the same octets made by a sender.
#![allow(
    clippy::arithmetic_side_effects,
    clippy::cast_possible_truncation,
    clippy::indexing_slicing,
    clippy::unwrap_used,
    reason = "a test"
)]

mod common;

use common::endpoint::{Endpoint, atomic, write};
use common::memory::{Region, TestMemory};
use common::peer::{Peer, seen};
use common::vectors::{File, Fpdu, READ_ID, UNTOUCHED, Vector};
use common::{CRC, config, ethernet, ramp_of};
use iwarp_ddp::Stag;
use iwarp_mpa::{Framing, Role, ULPDU_MAX_SENT};
use iwarp_rdmap::{
    AtomicOperation, AtomicRequest, AtomicResponse, Event, Opcode, OperationKind, Outcome, State,
    StreamConfig, TerminateCode,
};

const FPDU: &str = include_str!("vectors/fpdu.json");
const MESSAGES: &str = include_str!("vectors/messages.json");

/// The framing and message numbers a vector is about, for a stream that is to accept it.
fn config_for(vector: &Vector, role: Role) -> StreamConfig {
    let mut config = config(role);
    config.framing = Framing { crc: vector.crc, ..CRC };
    let first = vector.fpdus().into_iter().find(|fpdu| fpdu.has("/ddp/msn"));
    if let Some(fpdu) = first
        && fpdu.opcode() != Opcode::Terminate.raw()
    {
        config.first_msn = fpdu.number("/ddp/msn") as u32;
    }
    config.ird = 8;
    config.ord = 8;
    config
}

/// A stream that has what a vector needs: receives, regions, and a Read that waits for its response.
fn prepared(vector: &Vector) -> Endpoint {
    let mut memory = TestMemory::new(1 << 18);
    memory.bytes.fill(UNTOUCHED);
    // All 2^64 - 1 offsets from 0 on, of which the first are backed; and the sink of responses.
    memory.regions = vec![Region::new(0x00be_ef01, 0, 0, u64::MAX)];
    for id in 0..4 {
        memory.post(id, (1 << 17) + 4096 * id as usize, 4096);
    }
    let mut endpoint = Endpoint::new(config_for(vector, Role::Initiator), memory);
    let responses: Vec<_> = vector
        .fpdus()
        .into_iter()
        .filter(|fpdu| fpdu.opcode() == Opcode::ReadResponse.raw())
        .collect();
    if let Some(first) = responses.first() {
        let kind = OperationKind::Read {
            sink_stag: Stag::from_raw(first.stag("/ddp/stag")),
            sink_offset: first.number("/ddp/to"),
            source_stag: Stag::from_raw(0x0077_7700),
            source_offset: 0,
        };
        let len: u64 = responses.iter().map(|fpdu| fpdu.number("/payload_length")).sum();
        endpoint.submit(READ_ID, kind, 1 << 16, len as usize);
        endpoint.transmit();
    }
    let is_response = |fpdu: &Fpdu| fpdu.opcode() == Opcode::AtomicResponse.raw();
    if vector.fpdus().iter().any(is_response) {
        let kind = atomic(0x0077_7700, 0, AtomicOperation::fetch_add(1));
        endpoint.submit(READ_ID, kind, 1 << 16, 8);
        endpoint.transmit();
    }
    endpoint.events();
    endpoint
}

/// The octets of a vector. The identifier of a request of ours is our choice: in the answer to one it is the
/// number of that request.
fn answering_ours(vector: &Vector) -> Vec<u8> {
    match &vector.fpdus()[..] {
        [fpdu] if fpdu.opcode() == Opcode::AtomicResponse.raw() => {
            let response = AtomicResponse::parse(&vector.ulpdus()[0][18..]).unwrap();
            let msn = fpdu.number("/ddp/msn") as u32;
            Peer::new(CRC).atomic_response(msn, msn, response.original)
        }
        _ => vector.octets(),
    }
}

fn payload(fpdu: &Fpdu, ulpdu: &[u8]) -> Vec<u8> {
    let len = fpdu.number("/payload_length") as usize;
    let payload = ulpdu[ulpdu.len() - len..].to_vec();
    if fpdu.has("/payload_hex") {
        assert_eq!(payload, fpdu.octets("/payload_hex"));
    }
    payload
}

/// Number, length, solicited, invalidated, immediate data.
type Received = (u64, u32, bool, Option<u32>, Option<[u8; 8]>);

/// What the stream has to make of the messages of a vector, worked out from its fields.
#[derive(Default)]
struct Model {
    memory: Vec<u8>,
    received: Vec<Received>,
    /// Octets of the Write that came last.
    written: u32,
    open: Vec<u8>,
    reads: Vec<(u32, u64, u32, u32, u64)>,
    read_done: bool,
    terminated: bool,
    /// What Atomics find, in order.
    originals: Vec<AtomicResponse>,
    atomic_done: bool,
    writes: u64,
}

impl Model {
    fn of(vector: &Vector) -> Self {
        let mut model = Self { memory: vec![UNTOUCHED; 1 << 18], ..Self::default() };
        let mut sunk = 0;
        for (fpdu, ulpdu) in vector.fpdus().iter().zip(vector.ulpdus()) {
            let opcode = Opcode::from_raw(fpdu.opcode()).unwrap();
            let payload = payload(fpdu, &ulpdu);
            let last = fpdu.flag("/ddp/last");
            match opcode {
                Opcode::Write => {
                    let offset = fpdu.number("/ddp/to") as usize;
                    model.put(offset, &payload);
                    model.writes += u64::from(last);
                    model.written += payload.len() as u32;
                    continue;
                }
                Opcode::AtomicRequest => {
                    let request = AtomicRequest::parse(&ulpdu[18..]).unwrap();
                    let at = request.offset as usize;
                    let original = u64::from_ne_bytes(model.memory[at..at + 8].try_into().unwrap());
                    model.originals.push(AtomicResponse { id: request.id, original });
                    model.put(at, &request.operation.apply(original).to_ne_bytes());
                }
                Opcode::AtomicResponse => {
                    let response = AtomicResponse::parse(&ulpdu[18..]).unwrap();
                    model.put(1 << 16, &response.original.to_ne_bytes());
                    model.atomic_done = true;
                }
                opcode if opcode.is_immediate() => {
                    let data = fpdu.octets("/immediate/data_hex").try_into().unwrap();
                    let id = model.received.len() as u64;
                    let solicited = opcode.is_solicited();
                    model.received.push((id, model.written, solicited, None, Some(data)));
                }
                Opcode::ReadResponse => {
                    model.put((1 << 16) + sunk, &payload);
                    sunk += payload.len();
                    model.read_done = last;
                }
                Opcode::ReadRequest => model.reads.push((
                    fpdu.stag("/read_request/sink_stag"),
                    fpdu.number("/read_request/sink_to"),
                    fpdu.number("/read_request/size") as u32,
                    fpdu.stag("/read_request/source_stag"),
                    fpdu.number("/read_request/source_to"),
                )),
                Opcode::Terminate => model.terminated = true,
                _ => {
                    let id = model.received.len();
                    model.open.extend_from_slice(&payload);
                    let open = model.open.clone();
                    model.put((1 << 17) + 4096 * id, &open);
                    if last {
                        let stag =
                            opcode.invalidates().then(|| fpdu.stag("/rdmap/invalidate_stag"));
                        let len = open.len() as u32;
                        model.received.push((id as u64, len, opcode.is_solicited(), stag, None));
                        model.open.clear();
                    }
                }
            }
            if !matches!(opcode, Opcode::ReadResponse | Opcode::AtomicResponse) {
                model.written = 0;
            }
        }
        model
    }

    fn put(&mut self, at: usize, payload: &[u8]) {
        for (i, octet) in payload.iter().enumerate() {
            if let Some(slot) = self.memory.get_mut(at.wrapping_add(i)) {
                *slot = *octet;
            }
        }
    }
}

/// Feeds a vector to a stream in pieces of `step` octets and compares with the model.
fn accepted(vector: &Vector, step: usize) {
    let name = &vector.name;
    let model = Model::of(vector);
    let mut endpoint = prepared(vector);
    for piece in answering_ours(vector).chunks(step) {
        endpoint.feed(piece);
    }
    assert!(endpoint.rx.is_empty(), "{name}");
    let events = endpoint.events();
    let received: Vec<_> = events
        .iter()
        .filter_map(|event| match event {
            Event::ReceiveDone {
                buffer,
                outcome: Outcome::Success,
                len,
                solicited,
                invalidated,
                immediate,
            } => Some((buffer.id, *len, *solicited, invalidated.map(Stag::raw), *immediate)),
            _ => None,
        })
        .collect();
    assert_eq!(received, model.received, "{name}");
    let read = events.iter().any(|event| {
        matches!(event, Event::OperationDone { outcome: Outcome::Success, buffer, .. } if buffer.id == READ_ID)
    });
    assert_eq!(read, model.read_done || model.atomic_done, "{name}");
    let counters = endpoint.stream.counters();
    assert_eq!(counters.messages_in.of(Opcode::Write), model.writes, "{name}");
    assert_eq!(counters.messages_in.of(Opcode::ReadRequest), model.reads.len() as u64, "{name}");
    assert_eq!(counters.terminates_in(), u64::from(model.terminated), "{name}");
    assert_eq!(endpoint.stream.state() != State::Full, model.terminated, "{name}");
    if !model.originals.is_empty() {
        return atomic_answers(&mut endpoint, &model, name);
    }
    assert!(endpoint.memory.bytes == model.memory, "{name}: memory");
    answers(&mut endpoint, &model, name);
}

/// Atomics are carried out in their turn, behind the Reads before them, and answered with what they found.
fn atomic_answers(endpoint: &mut Endpoint, model: &Model, name: &str) {
    let sent = seen(&endpoint.transmit());
    let reads: Vec<_> = model.reads.iter().map(|_| Opcode::ReadResponse).collect();
    let atomics = model.originals.iter().map(|_| Opcode::AtomicResponse);
    let expected: Vec<_> = reads.into_iter().chain(atomics).collect();
    let found: Vec<_> = sent.iter().filter(|fpdu| fpdu.last).map(|fpdu| fpdu.opcode).collect();
    assert_eq!(found, expected, "{name}");
    let responses = sent.iter().filter(|fpdu| fpdu.opcode == Opcode::AtomicResponse);
    let originals: Vec<_> =
        responses.map(|fpdu| AtomicResponse::parse(&fpdu.payload).unwrap()).collect();
    assert_eq!(originals, model.originals, "{name}");
    assert!(endpoint.memory.bytes == model.memory, "{name}: memory");
}

/// Read Requests are answered with what they asked for. (Of very long ones, the first record is looked at.)
fn answers(endpoint: &mut Endpoint, model: &Model, name: &str) {
    let mut at = 0;
    for &(sink_stag, sink_offset, len, _, source_offset) in &model.reads {
        let record = endpoint.record().unwrap_or_else(|| panic!("{name}: no answer"));
        let segments = seen(&record);
        assert_eq!(segments[0].opcode, Opcode::ReadResponse, "{name}");
        assert_eq!(segments[0].tagged, Some((Stag::from_raw(sink_stag), sink_offset)), "{name}");
        let payload: Vec<u8> =
            segments.iter().flat_map(|segment| segment.payload.clone()).collect();
        let source = &model.memory[source_offset as usize..];
        assert!(source.starts_with(&payload[..payload.len().min(source.len())]), "{name}");
        if len < 1 << 16 {
            assert_eq!(payload.len(), len as usize, "{name}");
            assert!(segments.last().is_some_and(|segment| segment.last), "{name}");
        }
        endpoint.accepted(record.len());
        at += 1;
    }
    assert_eq!(at, model.reads.len());
}

#[test]
fn every_single_fpdu_is_dealt_with() {
    // EXT-01, EXT-10, EXT-11, EXT-12, EXT-30, EXT-32, RDMAP-001, RDMAP-002, RDMAP-005, RDMAP-006, RDMAP-013, RDMAP-025, RDMAP-027, RDMAP-040, DDP-014, DDP-030, MPA-044, MPA-048
    let file = File::parse(FPDU);
    for vector in &file.vectors {
        if vector.name == "send-mo-high" {
            // The end of a message of 4 GiB, alone: only its header can be tried here.
            refused_alone(vector, TerminateCode::from_raw(0x1204));
            continue;
        }
        let len = vector.hex.len() / 2;
        for step in [len, len - 1, 7.min(len), 1] {
            if step == 1 && len > 2000 {
                continue;
            }
            accepted(vector, step);
        }
    }
    assert_eq!(file.vectors.len(), 61);
}

fn refused_alone(vector: &Vector, code: TerminateCode) {
    let mut endpoint = prepared(vector);
    endpoint.feed(&vector.octets());
    let codes: Vec<_> = endpoint
        .events()
        .into_iter()
        .filter_map(|event| match event {
            Event::Terminated { terminate, .. } => Some(terminate.code),
            _ => None,
        })
        .collect();
    assert_eq!(codes, [code], "{}", vector.name);
}

#[test]
fn every_message_is_dealt_with() {
    // DDP-022, DDP-035, DDP-037, DDP-038, RDMAP-014, RDMAP-043, FC-018
    let file = File::parse(MESSAGES);
    for vector in &file.vectors {
        for step in [usize::MAX, 100, 3, 1] {
            accepted(vector, step.min(vector.hex.len() / 2));
        }
    }
    assert_eq!(file.vectors.len(), 15);
}

/// The operations that put the messages of a vector on the wire; `None` if there is one that only a lenient
/// or broken sender makes, or that is not an operation.
fn as_operations(vector: &Vector) -> Option<Vec<(OperationKind, Vec<u8>)>> {
    let mut operations: Vec<(OperationKind, Vec<u8>)> = Vec::new();
    let mut open = false;
    for (fpdu, ulpdu) in vector.fpdus().iter().zip(vector.ulpdus()) {
        let opcode = Opcode::from_raw(fpdu.opcode())?;
        let payload = payload(fpdu, &ulpdu);
        if open && (opcode.is_send() || opcode == Opcode::Write) {
            operations.last_mut()?.1.extend_from_slice(&payload);
        } else if opcode.is_immediate() {
            // It goes out behind a Write, and as one operation with it.
            let kind = &mut operations.last_mut()?.0;
            let OperationKind::Write { stag, offset } = *kind else { return None };
            let immediate = fpdu.octets("/immediate/data_hex").try_into().ok()?;
            let solicited = opcode.is_solicited();
            *kind = OperationKind::WriteImmediate { stag, offset, immediate, solicited };
        } else {
            let kind = match opcode {
                Opcode::Write => write(fpdu.stag("/ddp/stag"), fpdu.number("/ddp/to")),
                Opcode::ReadRequest => OperationKind::Read {
                    sink_stag: Stag::from_raw(fpdu.stag("/read_request/sink_stag")),
                    sink_offset: fpdu.number("/read_request/sink_to"),
                    source_stag: Stag::from_raw(fpdu.stag("/read_request/source_stag")),
                    source_offset: fpdu.number("/read_request/source_to"),
                },
                Opcode::AtomicRequest => {
                    // Bits that a sender leaves alone are set in one, and the identifier is ours.
                    let request = AtomicRequest::parse(&ulpdu[18..]).ok()?;
                    if request.id != fpdu.number("/ddp/msn") as u32
                        || ulpdu[18..] != request.to_bytes()
                    {
                        return None;
                    }
                    atomic(request.stag.raw(), request.offset, request.operation)
                }
                opcode if opcode.is_send() => OperationKind::Send {
                    solicited: opcode.is_solicited(),
                    invalidate: opcode
                        .invalidates()
                        .then(|| Stag::from_raw(fpdu.stag("/rdmap/invalidate_stag"))),
                },
                _ => return None,
            };
            operations.push((kind, payload));
        }
        open = !fpdu.flag("/ddp/last");
    }
    (!open).then_some(operations)
}

/// The longest ULPDU of a vector says how it was cut.
fn sender_of(vector: &Vector) -> StreamConfig {
    let mut config = config_for(vector, Role::Initiator);
    let longest = vector.ulpdus().iter().map(Vec::len).max().unwrap_or(0);
    let cut = vector.fpdus().iter().any(|fpdu| !fpdu.flag("/ddp/last"));
    config.size.mulpdu = if cut { longest } else { longest.max(ethernet().mulpdu) };
    if vector.name.contains("mulpdu1500") {
        config.size.mulpdu = 1500;
    }
    if vector.name.contains("mulpdu128") {
        config.size.mulpdu = 128;
    }
    config
}

#[test]
fn the_sender_makes_the_same_octets() {
    // EXT-01, EXT-30, EXT-31, RDMAP-003, RDMAP-004, RDMAP-010, RDMAP-012, RDMAP-060, DDP-011, DDP-012, DDP-033, RDMAP-021, RDMAP-030, DDP-016, DDP-019, DDP-020, DDP-023, DDP-025, DDP-027, DDP-028, DDP-029,
    // DDP-032, MPA-040, MPA-047, MPA-049, FC-019
    let mut compared = 0;
    for file in [FPDU, MESSAGES] {
        for vector in File::parse(file).vectors {
            let sendable = vector.kind == "valid"
                && !["crc-off-junk", "send-mo-high"].contains(&vector.name.as_str())
                && vector.ulpdus().iter().all(|ulpdu| ulpdu.len() <= ULPDU_MAX_SENT);
            let Some(operations) = as_operations(&vector).filter(|_| sendable) else { continue };
            let mut endpoint = Endpoint::new(sender_of(&vector), TestMemory::new(1 << 18));
            let mut at = 0;
            let request = |kind: &OperationKind| matches!(kind, OperationKind::Read { .. });
            for (id, (kind, payload)) in operations.iter().enumerate() {
                let len = if request(kind) {
                    let fpdu = &vector.fpdus()[id];
                    fpdu.number("/read_request/size") as usize
                } else {
                    endpoint.memory.bytes[at..at + payload.len()].copy_from_slice(payload);
                    payload.len()
                };
                endpoint.submit(id as u64, kind.clone(), at, len);
                at += payload.len();
            }
            assert_eq!(hex::encode(endpoint.transmit()), vector.hex, "{}", vector.name);
            compared += 1;
        }
    }
    assert_eq!(compared, 54);
}

#[test]
fn responses_have_the_same_octets() {
    // RDMAP-006, RDMAP-030
    for file in [FPDU, MESSAGES] {
        for vector in File::parse(file).vectors {
            let fpdus = vector.fpdus();
            // EXT-11, EXT-15: those to Atomics are compared with the semantics of theirs.
            if fpdus.iter().any(|fpdu| fpdu.opcode() != Opcode::ReadResponse.raw()) {
                continue;
            }
            let mut memory = TestMemory::new(1 << 16);
            memory.regions = vec![Region::new(0x00be_ef01, 0x1000, 0, 1 << 16)];
            memory.bytes[..2048].copy_from_slice(&ramp_of(2048));
            let mut config = sender_of(&vector);
            config.first_msn = 1;
            let mut endpoint = Endpoint::new(config, memory);
            let len: u64 = fpdus.iter().map(|fpdu| fpdu.number("/payload_length")).sum();
            let mut request = common::peer::request(0x00be_ef01, 0x1000, len as u32);
            request.sink_stag = Stag::from_raw(fpdus[0].stag("/ddp/stag"));
            request.sink_offset = fpdus[0].number("/ddp/to");
            endpoint.feed(&Peer::new(CRC).request(1, request));
            assert_eq!(hex::encode(endpoint.transmit()), vector.hex, "{}", vector.name);
        }
    }
}
