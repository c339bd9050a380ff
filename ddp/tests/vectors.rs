//! The test vectors, as far as they concern DDP: every FPDU of every message type, multi-segment messages,
//! and inputs that must be refused.
//!
//! The streams are unmarked. Their framing is taken off here by hand, the CRC unseen: that is the business
//! of the layer below.

#![allow(
    clippy::indexing_slicing,
    clippy::arithmetic_side_effects,
    clippy::cast_possible_truncation,
    clippy::unwrap_used,
    missing_docs,
    reason = "test code; a panic is a failed test"
)]

use std::collections::HashMap;

use iwarp_ddp::{
    Error, LocalFault, Placement, Position, Refusal, Segment, Segmenter, Stag, TaggedError,
    TaggedHeader, UntaggedError, UntaggedHeader, UntaggedQueue, UntaggedSegment, header_octets,
    range_in,
};
use serde::Deserialize;

#[derive(Deserialize)]
struct File {
    schema: String,
    count: usize,
    vectors: Vec<Vector>,
}

#[derive(Deserialize)]
struct Vector {
    name: String,
    kind: String,
    hex: String,
    fields: Fields,
    expect: Option<Expect>,
    #[serde(default)]
    context: Context,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Fields {
    Stream { fpdus: Vec<Fpdu> },
    Single(Box<Fpdu>),
}

#[derive(Deserialize)]
struct Fpdu {
    mpa: Mpa,
    ddp: Option<Ddp>,
    rdmap: Option<Rdmap>,
    ulpdu_hex: Option<String>,
    #[serde(default)]
    payload_length: usize,
    payload_hex: Option<String>,
    payload_pattern: Option<String>,
}

#[derive(Deserialize)]
struct Mpa {
    ulpdu_length: usize,
}

/// Fields that a truncated header does not reach are absent.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Ddp {
    tagged: bool,
    last: bool,
    rsvd: u8,
    dv: u8,
    qn: Option<u32>,
    msn: Option<u32>,
    mo: Option<u32>,
    rsvdulp_8_39: Option<String>,
    stag: Option<String>,
    to: Option<String>,
}

#[derive(Deserialize)]
struct Rdmap {
    rv: u8,
    rsv: u8,
    opcode: u8,
    invalidate_stag: Option<String>,
}

#[derive(Deserialize)]
struct Expect {
    layer: Option<u8>,
    etype: Option<u8>,
    code: Option<u8>,
    action: Option<String>,
    offending_fpdu: Option<usize>,
}

#[derive(Deserialize, Default)]
struct Context {
    next_msn: Option<u32>,
}

impl Vector {
    fn fpdus(&self) -> &[Fpdu] {
        match &self.fields {
            Fields::Stream { fpdus } => fpdus,
            Fields::Single(fpdu) => std::slice::from_ref(fpdu),
        }
    }

    /// The ULPDUs of the stream: length in two octets, ULPDU, pad to a multiple of 4, CRC.
    fn ulpdus(&self) -> Vec<Vec<u8>> {
        let stream = hex::decode(&self.hex).unwrap();
        let mut rest = stream.as_slice();
        let mut ulpdus = Vec::new();
        while let Some((length, behind)) = rest.split_first_chunk::<2>() {
            let len = usize::from(u16::from_be_bytes(*length));
            ulpdus.push(behind[..len].to_vec());
            rest = &rest[(2 + len).next_multiple_of(4) + 4..];
        }
        assert!(rest.is_empty(), "{}: {} octets left", self.name, rest.len());
        assert_eq!(ulpdus.len(), self.fpdus().len(), "{}", self.name);
        ulpdus
    }
}

fn load(json: &str) -> Vec<Vector> {
    let file: File = serde_json::from_str(json).unwrap();
    assert_eq!(file.schema, "iwarp-vectors/1");
    assert_eq!(file.vectors.len(), file.count);
    file.vectors
}

fn messages() -> Vec<Vector> {
    load(include_str!("vectors/messages.json"))
}

fn fpdus() -> Vec<Vector> {
    load(include_str!("vectors/fpdu.json"))
}

fn negatives() -> Vec<Vector> {
    load(include_str!("vectors/negative.json"))
}

fn word(text: &str) -> u32 {
    u32::from_str_radix(text.strip_prefix("0x").unwrap(), 16).unwrap()
}

fn long(text: &str) -> u64 {
    u64::from_str_radix(text.strip_prefix("0x").unwrap(), 16).unwrap()
}

/// The payload a vector describes, which begins `before` octets after the start of its message.
fn described_payload(fpdu: &Fpdu, before: usize) -> Vec<u8> {
    let ramp = |start: usize| {
        (start..start + fpdu.payload_length).map(|i| (i + (i >> 8)) as u8).collect::<Vec<u8>>()
    };
    let payload = match (&fpdu.payload_hex, fpdu.payload_pattern.as_deref()) {
        (Some(octets), None) => hex::decode(octets).unwrap(),
        (None, Some("ramp")) => ramp(0),
        (None, Some("ramp-continued")) => ramp(before),
        (None, None) => Vec::new(),
        other => panic!("payload described as {other:?}"),
    };
    assert_eq!(payload.len(), fpdu.payload_length);
    payload
}

/// Compares every DDP field of one segment with its description, and encodes it again.
///
/// Returns the payload. `before` are the octets of the message that came before the segment.
fn check_fields(name: &str, fpdu: &Fpdu, ulpdu: &[u8], before: usize) -> Vec<u8> {
    assert_eq!(ulpdu.len(), fpdu.mpa.ulpdu_length, "{name}");
    if let Some(octets) = &fpdu.ulpdu_hex {
        assert_eq!(&hex::encode(ulpdu), octets, "{name}");
    }
    let ddp = fpdu.ddp.as_ref().unwrap();
    let rdmap = fpdu.rdmap.as_ref().unwrap();

    // A segment of another version is refused before its fields can be seen: look at them as if the
    // version were ours.
    let mut octets = ulpdu.to_vec();
    if ddp.dv != 1 {
        octets[0] = octets[0] & !0x03 | 1;
    }
    let segment = Segment::parse(&octets).unwrap_or_else(|error| panic!("{name}: {error}"));
    assert_eq!((ulpdu[0] >> 2) & 0x0F, ddp.rsvd, "{name}");
    assert_eq!(ulpdu[0] & 0x03, ddp.dv, "{name}");
    assert_eq!(segment.is_last(), ddp.last, "{name}");
    assert_eq!(segment.rsvd_ulp(), rdmap.rv << 6 | rdmap.rsv << 4 | rdmap.opcode, "{name}");
    assert_eq!(segment.ulpdu_len(), ulpdu.len(), "{name}");
    assert_eq!([segment.header(), segment.payload()].concat(), octets, "{name}");

    let encoded = match segment {
        Segment::Tagged(segment) => {
            assert!(ddp.tagged, "{name}");
            assert_eq!(segment.stag, Stag::from_raw(word(ddp.stag.as_ref().unwrap())), "{name}");
            assert_eq!(segment.offset, long(ddp.to.as_ref().unwrap()), "{name}");
            TaggedHeader::from(segment).to_bytes().to_vec()
        }
        Segment::Untagged(segment) => {
            assert!(!ddp.tagged, "{name}");
            let carried = ddp.rsvdulp_8_39.as_ref().or(rdmap.invalidate_stag.as_ref()).unwrap();
            assert_eq!(segment.rsvd_ulp_word, word(carried), "{name}");
            assert_eq!(Some(segment.queue), ddp.qn, "{name}");
            assert_eq!(Some(segment.msn), ddp.msn, "{name}");
            assert_eq!(Some(segment.offset), ddp.mo, "{name}");
            UntaggedHeader::from(segment).to_bytes().to_vec()
        }
    };
    // DDP-014: reserved bits are not sent.
    let mut expected = segment.header().to_vec();
    expected[0] &= !0x3C;
    assert_eq!(encoded, expected, "{name}");

    // What the layer above puts in front of its payload is payload here.
    let payload = segment.payload();
    assert!(payload.ends_with(&described_payload(fpdu, before)), "{name}");
    payload.to_vec()
}

/// Checks the fields of all segments of a stream, counting octets per message as they go.
fn check_stream(vector: &Vector) {
    let mut before = 0;
    for (fpdu, ulpdu) in vector.fpdus().iter().zip(vector.ulpdus()) {
        let payload = check_fields(&vector.name, fpdu, &ulpdu, before);
        before = if fpdu.ddp.as_ref().unwrap().last { 0 } else { before + payload.len() };
    }
}

#[test]
fn every_message_type_is_decoded_and_encoded() {
    // DDP-004, DDP-010
    for vector in fpdus() {
        check_stream(&vector);
    }
}

#[test]
fn every_conversation_is_decoded_and_encoded() {
    for vector in messages() {
        check_stream(&vector);
    }
}

#[test]
fn reserved_bits_are_ignored() {
    // DDP-014
    let vector = fpdus().into_iter().find(|vector| vector.name == "ignore-ddp-rsvd").unwrap();
    let ulpdu = vector.ulpdus().remove(0);
    assert_eq!(ulpdu[0], 0x41 | 0x3C);
    let Ok(Segment::Untagged(segment)) = Segment::parse(&ulpdu) else { panic!("refused") };
    assert_eq!(UntaggedQueue::new().check_msn(&segment), Ok(Position::First));
}

/// A run of segments that belong to one message.
struct Message {
    ulpdus: Vec<Vec<u8>>,
    complete: bool,
}

/// Sorts the segments of a stream into messages. No vector interleaves two of the same kind.
fn messages_of(vector: &Vector) -> Vec<Message> {
    let mut messages: Vec<Message> = Vec::new();
    for ulpdu in vector.ulpdus() {
        let segment = Segment::parse(&ulpdu).unwrap();
        let tagged = matches!(segment, Segment::Tagged(_));
        let last = segment.is_last();
        match messages.last_mut() {
            Some(open)
                if !open.complete
                    && tagged
                        == matches!(Segment::parse(&open.ulpdus[0]), Ok(Segment::Tagged(_))) =>
            {
                open.ulpdus.push(ulpdu);
                open.complete = last;
            }
            _ => messages.push(Message { ulpdus: vec![ulpdu], complete: last }),
        }
    }
    messages
}

#[test]
fn segmenter_makes_the_segments_of_the_vectors() {
    // DDP-011, DDP-019, DDP-025, DDP-027, DDP-028
    let mut segmented = 0;
    for vector in messages() {
        for message in messages_of(&vector) {
            let mulpdu = message.ulpdus[0].len();
            if let Some((_, named)) = vector.name.split_once("-mulpdu") {
                let named = named.split('-').next().unwrap();
                assert_eq!(mulpdu.to_string(), named, "{}: first segment is not full", vector.name);
            }
            let parsed: Vec<_> =
                message.ulpdus.iter().map(|ulpdu| Segment::parse(ulpdu).unwrap()).collect();
            let payload: Vec<u8> = parsed.iter().flat_map(Segment::payload).copied().collect();
            // Of a message that was broken off, one octet more is known to have been there.
            let message_len = payload.len() as u32 + u32::from(!message.complete);
            let room = match parsed[0] {
                Segment::Tagged(_) => TaggedHeader::max_payload(mulpdu),
                Segment::Untagged(_) => UntaggedHeader::max_payload(mulpdu),
            };
            let made: Vec<Vec<u8>> = Segmenter::new(message_len, room)
                .take(parsed.len())
                .map(|cut| {
                    let from = cut.offset as usize;
                    let piece = &payload[from..from + cut.len as usize];
                    match parsed[0] {
                        Segment::Tagged(first) => {
                            [&TaggedHeader::from(first).for_cut(cut).to_bytes(), piece].concat()
                        }
                        Segment::Untagged(first) => {
                            [&UntaggedHeader::from(first).for_cut(cut).to_bytes(), piece].concat()
                        }
                    }
                })
                .collect();
            assert_eq!(made, message.ulpdus, "{}", vector.name);
            segmented += usize::from(made.len() > 1);
        }
    }
    assert_eq!(segmented, 9, "messages of more than one segment");
}

/// Receiver state as the vectors assume it: the untagged queues, and memory that is only looked up.
struct Receiver {
    queues: HashMap<u32, UntaggedQueue>,
    /// Buffers left on each queue, and the octets placed in the one that is open.
    buffers: HashMap<u32, usize>,
    placed: Vec<u8>,
    completed: Vec<(u32, u32)>,
    memory: Memory,
}

/// Octets of each buffer on an untagged queue.
const CAPACITY: u64 = 64;

impl Receiver {
    fn new(next_msn: u32) -> Self {
        Self {
            queues: (0..4)
                .map(|queue| {
                    let next = if queue == 0 { next_msn } else { 1 };
                    (queue, UntaggedQueue::with_next_msn(next))
                })
                .collect(),
            buffers: HashMap::from([(0, 2), (1, 2), (2, 1), (3, 1)]),
            placed: Vec::new(),
            completed: Vec::new(),
            memory: Memory::default(),
        }
    }

    fn receive(&mut self, ulpdu: &[u8]) -> Result<(), Error> {
        match Segment::parse(ulpdu)? {
            Segment::Tagged(segment) => segment.place(&mut self.memory)?,
            Segment::Untagged(segment) => self.receive_untagged(&segment)?,
        }
        Ok(())
    }

    fn receive_untagged(&mut self, segment: &UntaggedSegment<'_>) -> Result<(), UntaggedError> {
        // Which queue a message belongs on is the one thing DDP has to be told.
        let expected = match segment.rsvd_ulp & 0x0F {
            3..=6 | 8 | 9 => 0,
            1 | 10 => 1,
            7 => 2,
            11 => 3,
            _ => return Ok(()),
        };
        segment.check_queue(expected)?;
        let queue = self.queues.get_mut(&segment.queue).unwrap();
        if queue.check_msn(segment)? == Position::First {
            let left = self.buffers.get_mut(&segment.queue).unwrap();
            *left = left.checked_sub(1).ok_or(UntaggedError::NoBuffer)?;
            self.placed.clear();
        }
        let at = queue.check_placement(segment, CAPACITY)?;
        assert_eq!(at, self.placed.len() as u64);
        self.placed.extend_from_slice(segment.payload);
        if let Some(len) = queue.placed(segment) {
            assert_eq!(len as usize, self.placed.len());
            self.completed.push((segment.queue, len));
        }
        Ok(())
    }
}

/// The registered memory of the vectors, without octets: only what may be touched.
#[derive(Default)]
struct Memory {
    written: Vec<(u64, usize)>,
}

impl Placement for Memory {
    type Buffer = ();

    fn place_tagged(&mut self, stag: Stag, offset: u64, payload: &[u8]) -> Result<(), Refusal> {
        let (base, size) = match stag.raw() {
            0x00be_ef01 => (0x1000, 0x1000),
            0x00be_ef02 => return Err(Refusal::NotAssociated),
            0x00be_ef03 => return Err(Refusal::Rights),
            0x1234_5678 => (0x2000, 100),
            _ => return Err(Refusal::InvalidStag),
        };
        let at = range_in(base, size, offset, payload.len() as u64)?;
        self.written.push((at, payload.len()));
        Ok(())
    }

    fn place_local(&mut self, (): &(), _: u64, _: &[u8]) -> Result<(), LocalFault> {
        unreachable!("the vectors have no local buffers")
    }
}

#[test]
fn conversations_are_received_in_order() {
    // DDP-022, DDP-035, DDP-038
    for vector in messages() {
        let name = &vector.name;
        let mut queues: HashMap<u32, UntaggedQueue> = HashMap::new();
        let mut lengths = Vec::new();
        for ulpdu in vector.ulpdus() {
            let Segment::Untagged(segment) = Segment::parse(&ulpdu).unwrap() else { continue };
            let queue = queues.entry(segment.queue).or_insert_with(|| {
                UntaggedQueue::with_next_msn(vector.context.next_msn.unwrap_or(1))
            });
            queue.check_msn(&segment).unwrap_or_else(|error| panic!("{name}: {error}"));
            let at = queue
                .check_placement(&segment, 1 << 20)
                .unwrap_or_else(|error| panic!("{name}: {error}"));
            assert_eq!(at, u64::from(segment.offset), "{name}");
            lengths.extend(queue.placed(&segment));
        }
        let expected: Vec<u32> = messages_of(&vector)
            .iter()
            .filter_map(|message| {
                let parsed = message.ulpdus.iter().map(|ulpdu| Segment::parse(ulpdu).unwrap());
                let untagged = parsed.filter(|segment| matches!(segment, Segment::Untagged(_)));
                untagged.map(|segment| segment.payload().len() as u32).reduce(|sum, len| sum + len)
            })
            .collect();
        assert_eq!(lengths, expected, "{name}");
        assert!(queues.values().all(|queue| !queue.is_open()), "{name}");
    }
}

/// Faults that DDP cannot see: they are found by comparing a Read Response with its Read.
const SEEN_ABOVE: [&str; 2] = ["rresp-wrong-to", "rresp-too-little"];

#[test]
fn faults_are_refused_with_their_number() {
    // DDP-015, DDP-017, DDP-023, DDP-024, DDP-044, DDP-050, DDP-051, DDP-052, DDP-053, DDP-054, DDP-055,
    // DDP-056, DDP-057, DDP-058, DDP-061, DDP-063
    let mut refused = 0;
    for vector in negatives() {
        let expect = vector.expect.as_ref().unwrap();
        let mut receiver = Receiver::new(1);
        let ulpdus = vector.ulpdus();
        let outcomes = ulpdus.iter().map(|ulpdu| receiver.receive(ulpdu));
        let first_fault =
            outcomes.enumerate().find_map(|(at, outcome)| outcome.err().map(|error| (at, error)));

        let name = &vector.name;
        if expect.layer == Some(1) && !SEEN_ABOVE.contains(&name.as_str()) {
            let (at, error) = first_fault.unwrap_or_else(|| panic!("{name}: accepted"));
            assert_eq!(
                (Some(error.error_type()), Some(error.code())),
                (expect.etype, expect.code),
                "{name}: {error}"
            );
            assert_eq!(at, expect.offending_fpdu.unwrap_or(0), "{name}");
            refused += 1;
        } else if name == "term-bad-msn" {
            // Refused like any other message; that it goes unanswered is decided above.
            assert_eq!(first_fault, Some((0, UntaggedError::MsnRange.into())), "{name}");
            assert_eq!(expect.action.as_deref(), Some("close"));
        } else {
            // The fault is of another layer, so this one has nothing to object to.
            assert_eq!(first_fault, None, "{name}");
        }
    }
    assert_eq!(refused, 41, "vectors of layer 1");
}

#[test]
fn faulty_segments_are_still_decoded() {
    let mut truncated = 0;
    for vector in negatives() {
        assert_eq!(vector.kind, "invalid");
        if vector.expect.as_ref().unwrap().code == Some(0)
            && vector.expect.as_ref().unwrap().etype == Some(0)
        {
            // DDP-024, SEC-23
            let ulpdu = vector.ulpdus().remove(0);
            assert_eq!(
                Segment::parse(&ulpdu),
                Err(Error::HeaderTruncated { len: ulpdu.len() }),
                "{}",
                vector.name
            );
            assert_eq!(header_octets(&ulpdu), None);
            truncated += 1;
        } else {
            check_stream(&vector);
        }
    }
    assert_eq!(truncated, 4);
}

#[test]
fn other_versions_can_still_be_reported() {
    // DDP-060: the report of a version error carries the header that was refused.
    for vector in negatives().iter().filter(|vector| vector.name.starts_with("dv-")) {
        let ulpdu = vector.ulpdus().remove(0);
        let tagged = vector.name.ends_with("-tagged");
        assert_eq!(header_octets(&ulpdu), Some(&ulpdu[..if tagged { 14 } else { 18 }]));
        let fault: Error =
            if tagged { TaggedError::Version.into() } else { UntaggedError::Version.into() };
        assert_eq!(Segment::parse(&ulpdu), Err(fault), "{}", vector.name);
    }
}

#[test]
fn nothing_is_placed_of_a_refused_segment() {
    // DDP-059
    let vector =
        negatives().into_iter().find(|vector| vector.name == "write-second-segment-bad").unwrap();
    let mut receiver = Receiver::new(1);
    let ulpdus = vector.ulpdus();
    assert_eq!(receiver.receive(&ulpdus[0]), Ok(()));
    assert_eq!(receiver.receive(&ulpdus[1]), Err(TaggedError::Bounds.into()));
    assert_eq!(receiver.memory.written, [(0xF80, 64)]);

    let vector =
        negatives().into_iter().find(|vector| vector.name == "too-long-second-segment").unwrap();
    let mut receiver = Receiver::new(1);
    let ulpdus = vector.ulpdus();
    assert_eq!(receiver.receive(&ulpdus[0]), Ok(()));
    assert_eq!(receiver.receive(&ulpdus[1]), Err(UntaggedError::TooLong.into()));
    assert_eq!((receiver.placed.len(), receiver.completed.len()), (40, 0));
}
