//! Golden traffic: recordings of the Linux kernel's siw, with what is in them by another decoder, against the whole
//! core. A stream takes the place of each side in turn ([`replay`]); what it makes of siw's octets is compared with
//! `captures/messages.tsv`, and what it sends with what siw sent.
#![allow(
    clippy::arithmetic_side_effects,
    clippy::cast_possible_truncation,
    clippy::indexing_slicing,
    clippy::unwrap_used,
    clippy::must_use_candidate,
    unreachable_pub,
    reason = "a test"
)]

#[path = "golden/capture.rs"]
mod capture;
mod common;
#[path = "golden/exchange.rs"]
mod exchange;
#[path = "golden/hand_made.rs"]
mod hand_made;
#[path = "golden/replay.rs"]
mod replay;
#[path = "golden/sending.rs"]
mod sending;
#[path = "golden/startup.rs"]
mod startup;
#[path = "golden/tolerance.rs"]
mod tolerance;

use std::sync::OnceLock;

use capture::{Capture, Side};

/// All captures, read once.
fn captures() -> &'static [Capture] {
    static CAPTURES: OnceLock<Vec<Capture>> = OnceLock::new();
    CAPTURES.get_or_init(capture::captures)
}

#[test]
fn the_captures_are_all_there() {
    let all = captures();
    let connections: Vec<_> = all.iter().flat_map(|capture| &capture.connections).collect();
    let total = |field| -> usize {
        let of = |connection: &&capture::Connection| {
            Side::BOTH.map(|side| connection.half(side).end.number(field)).iter().sum::<usize>()
        };
        connections.iter().map(of).sum()
    };
    assert_eq!(all.len(), 119);
    assert_eq!(connections.len(), 305);
    assert_eq!([total("fpdus"), total("crcs"), total("pads")], [1714, 122, 48]);
    // Every file is in the index.
    let files = std::fs::read_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/captures")).unwrap();
    let names = files.map(|file| file.unwrap().file_name().into_string().unwrap());
    assert_eq!(
        names.filter(|name| name.rsplit_once('.').is_some_and(|(_, end)| end == "pcap")).count(),
        all.len()
    );
}
