//! The test vectors that concern MPA, all of them, each in one read and cut at every octet.
#![allow(clippy::unwrap_used, reason = "a failed step fails the test")]

mod common;
#[path = "vectors/negotiation.rs"]
mod negotiation;
#[path = "vectors/startup.rs"]
mod startup;
#[path = "vectors/streams.rs"]
mod streams;

use std::path::Path;

use common::{now, pieces};
use iwarp_mpa::{
    Depth, Enhanced, Error, FrameKind, Initiator, Offer, Outcome, Request, Responder, RtrTypes,
    StartupFrame, mulpdu,
};
use serde::Deserialize;
use serde::de::DeserializeOwned;

#[derive(Deserialize)]
struct Book<V> {
    count: usize,
    vectors: Vec<V>,
}

fn book<V: DeserializeOwned>(name: &str) -> Vec<V> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/vectors").join(name);
    let book: Book<V> = serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
    assert_eq!(book.vectors.len(), book.count);
    book.vectors
}

#[derive(Deserialize)]
struct ExpectedTerminate {
    layer: u8,
    etype: u8,
    code: u8,
}

#[derive(Deserialize)]
struct FrameFields {
    key: String,
    m: bool,
    c: bool,
    r: bool,
    rev: u8,
    pd_length: usize,
    private_data_present: usize,
    enhanced: Option<EnhancedFields>,
    ulp_private_data_length: Option<usize>,
}

#[derive(Deserialize)]
#[allow(clippy::struct_excessive_bools, reason = "the control flags of the frame")]
struct EnhancedFields {
    a: bool,
    b: bool,
    c: bool,
    d: bool,
    ird: u16,
    ord: u16,
}

impl EnhancedFields {
    fn block(&self) -> Enhanced {
        let depth = |field| match field {
            0x3FFF => Depth::NotNegotiated,
            count => Depth::Count(count),
        };
        let mut rtr = RtrTypes::empty();
        // CONN-26
        rtr.set(RtrTypes::SEND, self.a && self.b);
        rtr.set(RtrTypes::WRITE, self.a && self.c);
        rtr.set(RtrTypes::READ, self.a && self.d);
        Enhanced { peer_to_peer: self.a, rtr, ird: depth(self.ird), ord: depth(self.ord) }
    }
}

impl FrameFields {
    fn kind(&self) -> FrameKind {
        if self.key == "MPA ID Rep Frame" { FrameKind::Reply } else { FrameKind::Request }
    }

    fn check(&self, name: &str, frame: &StartupFrame) {
        assert_eq!(frame.kind, self.kind(), "{name}");
        assert_eq!(frame.markers, self.m, "{name}");
        assert_eq!(frame.crc, self.c, "{name}");
        assert_eq!(frame.reject, self.r, "{name}");
        assert_eq!(frame.revision, self.rev, "{name}");
        assert_eq!(frame.enhanced, self.enhanced.as_ref().map(EnhancedFields::block), "{name}");
        let private_data = self.ulp_private_data_length.unwrap_or(self.pd_length);
        assert_eq!(frame.private_data.len(), private_data, "{name}");
    }
}

/// What a whole side makes of the octets, given to it in pieces.
#[derive(Debug, PartialEq)]
enum Seen {
    Request(Request),
    Outcome(Outcome),
    Failed(Error),
    Waiting,
}

fn responder(octets: &[u8], cut: &[usize]) -> Seen {
    let mut responder = Responder::new(Offer::default().timeout, now());
    let mut seen = Seen::Waiting;
    for piece in pieces(octets, cut) {
        match responder.handle_input(piece) {
            Ok((taken, request)) => {
                assert_eq!(taken, piece.len());
                if let Some(request) = request {
                    assert_eq!(seen, Seen::Waiting, "shown once");
                    seen = Seen::Request(request);
                }
            }
            Err(error) => return Seen::Failed(error),
        }
    }
    seen
}

fn initiator(octets: &[u8], cut: &[usize]) -> Seen {
    let mut initiator = Initiator::new(Offer::default(), now()).unwrap();
    let mut seen = Seen::Waiting;
    for piece in pieces(octets, cut) {
        match initiator.handle_input(piece) {
            Ok((taken, outcome)) => {
                assert_eq!(taken, piece.len());
                if let Some(outcome) = outcome {
                    assert_eq!(seen, Seen::Waiting, "shown once");
                    seen = Seen::Outcome(outcome);
                }
            }
            Err(error) => return Seen::Failed(error),
        }
    }
    seen
}

/// Feeds in one read, octet by octet, and in two pieces cut at each place; all must see the same.
fn every_cut(octets: &[u8], feed: impl Fn(&[u8], &[usize]) -> Seen) -> Seen {
    let whole = feed(octets, &[]);
    assert_eq!(whole, feed(octets, &[1]));
    for at in 1..octets.len() {
        assert_eq!(whole, feed(octets, &[at, usize::MAX]), "cut at {at}");
    }
    whole
}

#[derive(Deserialize)]
struct CrcVector {
    name: String,
    hex: String,
    fields: CrcFields,
}

#[derive(Deserialize)]
struct CrcFields {
    crc_value: String,
    crc_wire: String,
}

/// The bit-by-bit CRC that these tests compare FPDUs with is right itself. The one of the crate
/// is run over the same vectors where it is reachable, in its own file.
#[test]
fn reference_crc() {
    for vector in book::<CrcVector>("crc32c.json") {
        let name = vector.name.as_str();
        let crc = common::reference_crc(&hex::decode(&vector.hex).unwrap());
        assert_eq!(format!("{crc:#010x}"), vector.fields.crc_value, "{name}");
        assert_eq!(hex::encode(crc.to_le_bytes()), vector.fields.crc_wire, "{name}");
    }
}

#[derive(Deserialize)]
struct MulpduVector {
    name: String,
    fields: MulpduFields,
}

#[derive(Deserialize)]
struct MulpduFields {
    emss: u32,
    with_markers: usize,
    without_markers: usize,
}

#[test]
fn mulpdus() {
    for MulpduVector { name, fields } in book::<MulpduVector>("mulpdu.json") {
        // MPA-041, MPA-068, MPA-070
        assert_eq!(mulpdu(fields.emss, true), fields.with_markers, "{name}");
        assert_eq!(mulpdu(fields.emss, false), fields.without_markers, "{name}");
    }
}
