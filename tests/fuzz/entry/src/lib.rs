//! What the fuzz targets run: plain functions that take any octets, and panic where a promise is broken.
//!
//! | target | what it does |
//! |---|---|
//! | [`deframer`], [`deframer_markers`] | a stream of FPDUs, good and bad, in any cut, against a plain second deframer |
//! | [`initiator`], [`responder`] | start-up frames of a peer, in any cut, and the answers to them |
//! | [`ddp`] | segments against a plain second parser; an untagged queue against a model; cuts of a message |
//! | [`rdmap`] | ULPDUs for one side of a stream against a model of what each of them has to do |
//! | [`terminate`] | the content of a Terminate against a plain second parser, and what a stream makes of it |
//! | [`stream`] | a whole stream, with regions, receives and operations, against a peer that sends anything |
//!
//! Each file says at its head how it reads its input. None reads a clock for its decisions, draws a random
//! number or keeps anything: the same octets do the same every time.
//!
//! `tests/replay.rs` runs them over the corpora with plain `cargo test`; libFuzzer runs them through
//! `tests/fuzz/run`. `src/bin/seeds` makes the first inputs out of test vectors and captures.
#![allow(
    clippy::cast_possible_truncation,
    clippy::missing_panics_doc,
    reason = "a harness: a promise that is broken is a panic"
)]

mod bytes;
mod ddp;
mod fpdu;
mod framing;
mod rdmap;
mod startup;
mod stream;
mod terminate;

/// The support code of the tests of `iwarp-rdmap`: memory, a peer that writes its own octets, a stream that is
/// driven by hand.
#[path = "../../../../rdmap/tests/common/mod.rs"]
mod common;

pub use ddp::ddp;
pub use framing::{deframer, deframer_markers};
pub use rdmap::rdmap;
pub use startup::{initiator, responder};
pub use stream::stream;
pub use terminate::terminate;

/// A function to fuzz.
#[derive(Clone, Copy, Debug)]
pub struct Target {
    /// Names its corpus as well.
    pub name: &'static str,
    /// Takes one input.
    pub run: fn(&[u8]),
}

/// All of them.
pub const TARGETS: [Target; 8] = [
    Target { name: "deframer", run: deframer },
    Target { name: "deframer_markers", run: deframer_markers },
    Target { name: "initiator", run: initiator },
    Target { name: "responder", run: responder },
    Target { name: "ddp", run: ddp },
    Target { name: "rdmap", run: rdmap },
    Target { name: "terminate", run: terminate },
    Target { name: "stream", run: stream },
];
