//! Read Responses cut in any way, and with one fault at any place.
#![allow(
    clippy::arithmetic_side_effects,
    clippy::cast_possible_truncation,
    clippy::indexing_slicing,
    reason = "a test"
)]

mod common;

use common::endpoint::{Endpoint, outcomes, terminated};
use common::memory::TestMemory;
use common::peer::Peer;
use common::{CRC, config, ramp_of};
use iwarp_ddp::Stag;
use iwarp_mpa::Role;
use iwarp_rdmap::{Initiator, OperationKind, Outcome, TerminateCode};
use proptest::prelude::*;

const PLACE: usize = 4096;

fn sink(id: usize) -> (u32, u64) {
    (0x100 + id as u32, (u64::MAX - 50).wrapping_add(1000 * id as u64))
}

/// An endpoint with Reads of these lengths outstanding.
fn reader(lengths: &[usize]) -> Endpoint {
    let mut config = config(Role::Initiator);
    config.ord = lengths.len() as u32;
    let mut memory = TestMemory::new(PLACE * (lengths.len() + 1));
    memory.bytes.fill(0xa5);
    let mut endpoint = Endpoint::new(config, memory);
    for (id, len) in lengths.iter().enumerate() {
        let (stag, offset) = sink(id);
        let kind = OperationKind::Read {
            sink_stag: Stag::from_raw(stag),
            sink_offset: offset,
            source_stag: Stag::from_raw(7),
            source_offset: 0,
        };
        endpoint.submit(id as u64, kind, PLACE * id, *len);
    }
    endpoint.transmit();
    endpoint.events();
    endpoint
}

/// One segment of a response: `STag`, offset, payload, L.
type Part = (u32, u64, Vec<u8>, bool);

/// The response to a Read, cut at the places that `cuts` say, some of them twice.
fn parts(id: usize, len: usize, cuts: &[prop::sample::Index]) -> Vec<Part> {
    let octets = ramp_of(len);
    let (stag, offset) = sink(id);
    let mut ends: Vec<usize> = cuts.iter().map(|cut| cut.index(len + 1)).chain([len]).collect();
    ends.sort_unstable();
    let mut from = 0;
    let last = ends.len() - 1;
    ends.iter()
        .enumerate()
        .map(|(i, &end)| {
            let part =
                (stag, offset.wrapping_add(from as u64), octets[from..end].to_vec(), i == last);
            from = end;
            part
        })
        .collect()
}

fn cuts() -> impl Strategy<Value = Vec<prop::sample::Index>> {
    proptest::collection::vec(any::<prop::sample::Index>(), 0..5)
}

#[derive(Clone, Copy, Debug)]
enum Fault {
    Stag,
    Offset(u64),
    OneMore,
    LastTooEarly,
}

proptest! {
    /// RDMAP-030, RDMAP-033, RDMAP-034, ORD-08, ORD-16, DDP-028
    #[test]
    fn any_cut_is_put_together(
        reads in proptest::collection::vec((0_usize..3000, cuts()), 1..5),
        step in 1_usize..5000,
    ) {
        let lengths: Vec<_> = reads.iter().map(|(len, _)| *len).collect();
        let mut endpoint = reader(&lengths);
        let mut peer = Peer::new(CRC);
        let mut octets = Vec::new();
        for (id, (len, cuts)) in reads.iter().enumerate() {
            for (stag, offset, payload, last) in parts(id, *len, cuts) {
                octets.extend(peer.response(stag, offset, &payload, last));
            }
        }
        for piece in octets.chunks(step) {
            endpoint.feed(piece);
        }
        let expected: Vec<_> =
            (0..reads.len() as u64).map(|id| (id, Outcome::Success)).collect();
        prop_assert_eq!(outcomes(&endpoint.events()), expected);
        for (id, len) in lengths.iter().enumerate() {
            let memory = &endpoint.memory.bytes[PLACE * id..];
            prop_assert!(memory[..*len] == ramp_of(*len));
            prop_assert!(memory[*len..PLACE].iter().all(|octet| *octet == 0xa5));
        }
    }

    /// RDMAP-034, FC-017: what came before the fault stays, nothing of the faulty segment is placed, and the
    /// Read at whose turn it happens is the culprit.
    #[test]
    fn one_fault_ends_the_stream(
        reads in proptest::collection::vec((1_usize..3000, cuts()), 1..4),
        place: prop::sample::Index,
        fault in prop_oneof![
            Just(Fault::Stag),
            (1_u64..=u64::MAX).prop_map(Fault::Offset),
            Just(Fault::OneMore),
            Just(Fault::LastTooEarly),
        ],
    ) {
        let lengths: Vec<_> = reads.iter().map(|(len, _)| *len).collect();
        let mut endpoint = reader(&lengths);
        let mut all: Vec<(usize, Part)> = Vec::new();
        for (id, (len, cuts)) in reads.iter().enumerate() {
            all.extend(parts(id, *len, cuts).into_iter().map(|part| (id, part)));
        }
        let at = place.index(all.len());
        let (culprit, part) = &mut all[at];
        let culprit = *culprit;
        let (stag, offset, payload, last) = part;
        match fault {
            // Of an empty segment neither is looked at (DDP-030).
            Fault::Stag if !payload.is_empty() => *stag ^= 0x8000_0000,
            Fault::Offset(by) if !payload.is_empty() => *offset = offset.wrapping_add(by),
            Fault::LastTooEarly if !*last => *last = true,
            _ => payload.extend_from_slice(&[0; 3001]),
        }
        // A cut that leaves nothing for later makes an early L a right one.
        let sunk_before: usize =
            all[..at].iter().filter(|(id, _)| *id == culprit).map(|(_, part)| part.2.len()).sum();
        let is_whole = sunk_before + all[at].1.2.len() == lengths[culprit];
        prop_assume!(!(matches!(fault, Fault::LastTooEarly) && is_whole));

        let code = if matches!(fault, Fault::Stag) && all[at].1.0 & 0x8000_0000 != 0 {
            TerminateCode::from_parts(1, 1, 0)
        } else {
            TerminateCode::from_parts(1, 1, 1)
        };
        let mut peer = Peer::new(CRC);
        for (_, (stag, offset, payload, last)) in &all {
            endpoint.feed(&peer.response(*stag, *offset, payload, *last));
        }
        prop_assert!(!endpoint.transmit().is_empty());
        let events = endpoint.events();
        prop_assert_eq!(terminated(&events), Some((Initiator::Local, code)));
        let expected: Vec<_> = (0..reads.len())
            .map(|id| {
                let outcome = match id.cmp(&culprit) {
                    std::cmp::Ordering::Less => Outcome::Success,
                    std::cmp::Ordering::Equal => Outcome::BadResponse,
                    std::cmp::Ordering::Greater => Outcome::Flushed,
                };
                (id as u64, outcome)
            })
            .collect();
        prop_assert_eq!(outcomes(&events), expected);
        let memory = &endpoint.memory.bytes[PLACE * culprit..];
        prop_assert!(memory[..sunk_before] == ramp_of(sunk_before));
        prop_assert!(memory[sunk_before..].iter().all(|octet| *octet == 0xa5));
    }
}
