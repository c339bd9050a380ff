//! How FPDUs lie in records, and records in TCP segments.
#![allow(
    clippy::arithmetic_side_effects,
    clippy::cast_possible_truncation,
    clippy::indexing_slicing,
    reason = "a test"
)]

mod common;

use common::endpoint::{Endpoint, OPEN, SEND, read, target, write};
use common::memory::TestMemory;
use common::peer::{Observer, Peer, request, seen};
use common::{CRC, config, ramp_of};
use iwarp_mpa::{FpduLimit, Framing, Role, SizePlan};
use iwarp_rdmap::{Opcode, Terminate, TxBatch, UsableWindow};
use proptest::prelude::*;

fn sender(emss: u32, limit: FpduLimit, framing: Framing) -> Endpoint {
    let mut config = config(Role::Initiator);
    config.framing = framing;
    config.size = SizePlan::new(emss, limit, framing.send_markers);
    let mut memory = TestMemory::new(1 << 16);
    memory.bytes.copy_from_slice(&ramp_of(1 << 16));
    Endpoint::new(config, memory)
}

/// `(start, end, pad)` of each FPDU of a record.
fn places(record: &[u8]) -> Vec<(usize, usize, usize)> {
    let mut at = 0;
    seen(record)
        .iter()
        .map(|fpdu| {
            let body = 2 + fpdu.ulpdu.len();
            let pad = body.next_multiple_of(4) - body;
            let place = (at, at + body + pad + 4, pad);
            at = place.1;
            place
        })
        .collect()
}

proptest! {
    /// MPA-042, MPA-072, MPA-073, FC-003: whatever the messages. A record starts a segment; with FPDUs of one
    /// segment none lies in two; with larger ones pad and CRC never do.
    #[test]
    fn trailers_are_whole_and_fpdus_start_segments(
        emss in prop_oneof![Just(536_u32), 1200_u32..1461, Just(1461), Just(9000), Just(65_483)],
        limit in prop_oneof![
            Just(FpduLimit::Emss),
            Just(FpduLimit::Octets(16_384)),
            Just(FpduLimit::Octets(65_536)),
        ],
        lengths in proptest::collection::vec(
            prop_oneof![0_usize..20, 0_usize..3000, 0_usize..8000],
            1..8,
        ),
        capacity in 2000_usize..70_000,
    ) {
        let mut endpoint = sender(emss, limit, CRC);
        endpoint.batch = TxBatch::with_capacity(capacity);
        for (id, len) in lengths.iter().enumerate() {
            let kind = if id % 2 == 0 { SEND } else { write(9, 0) };
            endpoint.submit(id as u64, kind, id, *len);
        }
        let size = SizePlan::new(emss, limit, false);
        let emss = emss as usize;
        while let Some(record) = endpoint.record() {
            endpoint.accepted(record.len());
            prop_assert!(endpoint.batch.ends_record());
            for (start, end, pad) in places(&record) {
                prop_assert_eq!((end - 4 - pad) / emss, (end - 1) / emss, "pad and CRC apart");
                if size.mulpdu + 6 <= emss {
                    prop_assert_eq!(start / emss, (end - 1) / emss, "FPDU in two segments");
                }
            }
        }
    }

    /// MPA-042, MPA-072, FC-003: the same where TCP meets the end of the peer's window. What is beyond the window
    /// as it was known may be sent up to any word, or if the peer counts octets, to any octet: but a segment that fits
    /// is never divided.
    #[test]
    fn the_end_of_the_window_splits_no_trailer_and_moves_no_fpdu(
        emss in prop_oneof![1200_u32..1461, Just(1448), Just(1460), Just(1461), Just(9000)],
        limit in prop_oneof![
            Just(FpduLimit::Emss),
            Just(FpduLimit::Octets(16_384)),
            Just(FpduLimit::Octets(65_536)),
        ],
        lengths in proptest::collection::vec(
            prop_oneof![0_usize..20, 0_usize..3000, 0_usize..20_000],
            1..8,
        ),
        windows in proptest::collection::vec(
            (prop_oneof![Just(0_usize), 0_usize..5_000, 0_usize..70_000], 0_usize..20_000),
            1..8,
        ),
        in_words: bool,
    ) {
        let mut endpoint = sender(emss, limit, CRC);
        let (mut octets, mut sent) = (0, 0);
        for (id, len) in lengths.iter().enumerate() {
            let kind = if id % 2 == 0 { SEND } else { write(9, 0) };
            endpoint.submit(id as u64, kind, id, *len);
            octets += len;
        }
        let size = SizePlan::new(emss, limit, false);
        let emss = emss as usize;
        let mut windows = windows.iter().cycle();
        loop {
            let (window, beyond) = *windows.next().unwrap();
            let window = if in_words { window & !3 } else { window };
            endpoint.batch.window = UsableWindow { octets: window, in_words, stale: false };
            let Some(record) = endpoint.record() else { break };
            endpoint.accepted(record.len());
            sent += seen(&record).iter().map(|fpdu| fpdu.payload.len()).sum::<usize>();
            let places = places(&record);
            // Where TCP ends segments. It sends no part of what is one segment.
            let mut ends: Vec<usize> = (emss..record.len()).step_by(emss).collect();
            let mut edge = window + beyond;
            if in_words {
                edge &= !3;
            }
            if record.len() > emss && record.len() > window && edge >= window && edge < record.len() {
                ends.retain(|&end| end <= edge);
                ends.extend((edge..record.len()).step_by(emss).filter(|&end| end > 0));
            }
            for &(start, end, pad) in &places {
                let is_whole = |from: usize| ends.iter().all(|&cut| cut <= from || cut >= end);
                prop_assert!(is_whole(end - 4 - pad), "trailer at {} of {:?}", end, ends);
                if end - start == size.mulpdu + 6 {
                    prop_assert!(start == 0 || start % emss == 0 && ends.contains(&start));
                }
            }
        }
        prop_assert_eq!(sent, octets, "all of it, whatever the cuts");
    }

    /// MPA-062, MPA-074, DDP-001, DDP-002: sizes that change in the middle of a message, with and without markers;
    /// all octets arrive.
    #[test]
    fn the_emss_may_change_inside_a_message(
        changes in proptest::collection::vec((128_u32..3000, any::<bool>()), 1..12),
        markers: bool,
        crc: bool,
    ) {
        let framing = Framing { send_markers: markers, receive_markers: false, crc };
        let mut endpoint = sender(1460, FpduLimit::Emss, framing);
        endpoint.batch = TxBatch::with_capacity(3000);
        endpoint.submit(0, write(9, 0), 0, 12_000);
        endpoint.submit(1, SEND, 7, 3000);
        let mut observer = Observer::new(Framing { receive_markers: markers, ..framing });
        let mut fpdus = Vec::new();
        let mut changes = changes.into_iter();
        let mut most = 1454;
        while let Some(record) = endpoint.record() {
            endpoint.accepted(record.len());
            let new = observer.see(&record);
            prop_assert!(new.iter().all(|fpdu| fpdu.ulpdu.len() <= most));
            fpdus.extend(new);
            if let Some((emss, large)) = changes.next() {
                let limit = if large { FpduLimit::Octets(16_384) } else { FpduLimit::Emss };
                let size = SizePlan::new(emss, limit, markers);
                most = size.mulpdu;
                endpoint.stream.set_size(size);
            }
        }
        prop_assert!(observer.is_between());
        let all: Vec<u8> = fpdus.iter().flat_map(|fpdu| fpdu.payload.clone()).collect();
        let memory = &endpoint.memory.bytes;
        prop_assert!(all[..12_000] == memory[..12_000] && all[12_000..] == memory[7..3007]);
    }
}

/// A peer may announce segments in which the trailer of a Read Request or Terminate cannot be whole.
#[test]
fn messages_of_one_segment_are_never_cut() {
    // RDMAP-081
    for emss in 40..100 {
        let mut endpoint = sender(emss, FpduLimit::Emss, CRC);
        endpoint.submit(0, read(0x1000, 0), 0, 4);
        let sent = seen(&endpoint.transmit());
        assert_eq!(sent.len(), 1, "EMSS {emss}");
        assert!(sent[0].last && sent[0].payload.len() == 28, "EMSS {emss}");

        let mut config = config(Role::Initiator);
        config.size = SizePlan::new(emss, FpduLimit::Emss, false);
        let mut endpoint = target(config, 0);
        endpoint.feed(&Peer::new(CRC).request(1, request(OPEN, 0, 4)));
        let sent = seen(&endpoint.transmit());
        assert_eq!(sent.len(), 1, "EMSS {emss}");
        assert_eq!((sent[0].opcode, sent[0].last), (Opcode::Terminate, true), "EMSS {emss}");
        let terminate = Terminate::parse(&sent[0].payload).expect("a whole Terminate");
        assert!(terminate.read_request.is_some(), "EMSS {emss}");
    }
}

#[test]
fn full_size_fpdus_follow_each_other_and_small_ones_share_a_segment() {
    // MPA-073
    let mut endpoint = sender(1460, FpduLimit::Emss, CRC);
    endpoint.submit(0, write(9, 0), 0, 1440 * 3 + 10);
    for id in 1..4 {
        endpoint.submit(id, SEND, 0, 100);
    }
    endpoint.submit(4, SEND, 0, 1300);
    let records: Vec<Vec<usize>> = std::iter::from_fn(|| {
        let record = endpoint.record()?;
        endpoint.accepted(record.len());
        Some(places(&record).iter().map(|(start, end, _)| end - start).collect())
    })
    .collect();
    assert_eq!(records, [vec![1460, 1460, 1460, 32, 124, 124, 124], vec![1324]]);
}

#[test]
fn a_cut_that_would_split_a_trailer_is_moved() {
    // Linux siw wants pad and CRC in one segment. 2903 octets of a Write: the second segment would end
    // between them. At the start of a record some octets go into an FPDU of their own; behind others the
    // record ends first.
    let large = FpduLimit::Octets(16_384);
    let records = |lengths: &[usize]| -> Vec<Vec<(usize, bool)>> {
        let mut endpoint = sender(1460, large, CRC);
        for (id, len) in lengths.iter().enumerate() {
            endpoint.submit(id as u64, write(9, 0), 0, *len);
        }
        std::iter::from_fn(|| {
            let record = endpoint.record()?;
            endpoint.accepted(record.len());
            Some(seen(&record).iter().map(|fpdu| (fpdu.payload.len(), fpdu.last)).collect())
        })
        .collect()
    };
    assert_eq!(records(&[2903]), [[(2900, false), (3, true)]]);
    assert_eq!(records(&[2904]), [[(2904, true)]]);
    // An FPDU of 32 octets before it.
    assert_eq!(records(&[12, 2903 - 32]), [[(12, true)], [(2903 - 32, true)]]);
    assert_eq!(records(&[12, 2903]), [[(12, true), (2903, true)]]);
    // Without CRC nobody minds.
    let mut endpoint = sender(1460, large, Framing { crc: false, ..CRC });
    endpoint.submit(0, write(9, 0), 0, 2903);
    assert_eq!(endpoint.record().map(|record| record.len()), Some(2924));
    endpoint.accepted(2924);
    assert_eq!(endpoint.record(), None);
}

#[test]
fn a_record_stays_within_the_window_and_beyond_it_is_one_fpdu_or_one_segment() {
    let large = FpduLimit::Octets(16_384);
    let window = |octets, stale| UsableWindow { octets, in_words: true, stale };
    let lengths = |endpoint: &mut Endpoint| -> Option<Vec<usize>> {
        let record = endpoint.record()?;
        endpoint.accepted(record.len());
        Some(places(&record).iter().map(|(start, end, _)| end - start).collect())
    };
    let mut endpoint = sender(1460, large, CRC);
    endpoint.submit(0, write(9, 0), 0, 60_026);
    endpoint.batch.window = window(2 * 16_060 + 1000, true);
    assert_eq!(lengths(&mut endpoint), Some(vec![16_060, 16_060]));
    assert!(endpoint.batch.asks_window(), "the third ends behind it");
    endpoint.batch.window = window(1000, true);
    assert_eq!(lengths(&mut endpoint), None);
    assert!(endpoint.batch.asks_window(), "nothing else is in the way");
    endpoint.batch.window = window(1000, false);
    assert_eq!(lengths(&mut endpoint), Some(vec![16_060]), "somebody has looked");
    assert!(!endpoint.batch.asks_window());
    // 11,906 octets of payload are left, which need a pad of 2.
    for id in 1..4 {
        endpoint.submit(id, SEND, 0, 100);
    }
    endpoint.batch.window = window(0, false);
    assert_eq!(lengths(&mut endpoint), Some(vec![11_904 + 20]), "without a pad");
    assert_eq!(lengths(&mut endpoint), Some(vec![24, 124, 124, 124]), "together one segment");
    assert_eq!(lengths(&mut endpoint), None);
    assert!(!endpoint.batch.asks_window(), "all is sent");
    // Small messages never ask.
    endpoint.submit(5, SEND, 0, 1000);
    endpoint.batch.window = window(0, true);
    assert_eq!(lengths(&mut endpoint), Some(vec![1024]));
    // A peer that counts octets may cut anywhere.
    endpoint.submit(6, write(9, 0), 0, 3000);
    endpoint.batch.window = UsableWindow { octets: 0, in_words: false, stale: false };
    assert_eq!(lengths(&mut endpoint), Some(vec![1460]));
}

#[test]
fn full_size_fpdus_that_fill_no_segment_end_their_record() {
    // An EMSS that is no multiple of 4, and markers.
    for (emss, framing) in [(1461, CRC), (1460, Framing { send_markers: true, ..CRC })] {
        let mut endpoint = sender(emss, FpduLimit::Emss, framing);
        endpoint.submit(0, write(9, 0), 0, 10_000);
        let mut observer = Observer::new(Framing { receive_markers: framing.send_markers, ..CRC });
        while let Some(record) = endpoint.record() {
            endpoint.accepted(record.len());
            assert_eq!(observer.see(&record).len(), 1);
        }
    }
}

#[test]
fn a_batch_without_room_takes_one_fpdu_all_the_same() {
    let mut endpoint = sender(9000, FpduLimit::Emss, CRC);
    endpoint.batch = TxBatch::with_capacity(0);
    endpoint.submit(0, write(9, 0), 0, 20_000);
    let sent = seen(&endpoint.transmit());
    assert_eq!(sent.iter().map(|fpdu| fpdu.payload.len()).sum::<usize>(), 20_000);
}

#[test]
fn gathered_records_have_an_end() {
    // Their staged octets alone would let them grow on.
    let framing = Framing { crc: false, ..CRC };
    let mut endpoint = sender(1448, FpduLimit::Octets(16_384), framing);
    endpoint.memory = TestMemory::new(1 << 20);
    endpoint.batch.gather_from = Some(1024);
    endpoint.batch.most = 1 << 18;
    endpoint.submit(0, write(9, 0), 0, 1 << 20);
    let mut lengths = Vec::new();
    while let Some(record) = endpoint.record() {
        lengths.push(record.len());
        endpoint.accepted(record.len());
    }
    let full = (1_usize << 18).div_ceil(15_928) * 15_928;
    assert_eq!(lengths[..3], [full; 3]);
    assert_eq!(lengths.len(), 4);
}

#[test]
fn small_fpdus_share_a_segment_up_to_its_last_octet() {
    // MPA-073: two of 724 octets are as long as the full-size one of 1448.
    let mut endpoint = sender(1448, FpduLimit::Emss, CRC);
    for id in 0..3 {
        endpoint.submit(id, SEND, 0, 700);
    }
    let records: Vec<usize> = std::iter::from_fn(|| {
        let record = endpoint.record()?;
        endpoint.accepted(record.len());
        Some(record.len())
    })
    .collect();
    assert_eq!(records, [2 * 724, 724]);
}

#[test]
fn where_segments_are_shared_a_record_is_as_long_as_it_gets() {
    let mut config = config(Role::Initiator);
    config.framing = Framing { crc: false, ..CRC };
    config.size = SizePlan::new(65_483, FpduLimit::default(), false).sharing_segments();
    let mut endpoint = Endpoint::new(config, TestMemory::new(1000));
    endpoint.batch = TxBatch::with_capacity(1 << 18);
    for id in 0..100 {
        endpoint.submit(id, SEND, 0, 1000);
    }
    // More than one full-size FPDU, and none of them is one.
    assert_eq!(endpoint.record().map(|record| record.len()), Some(100 * 1024));
}

#[test]
fn a_cut_that_would_leave_nothing_is_not_moved() {
    // In segments so short the header alone would keep its trailer whole, and three octets more do not.
    let mut endpoint = sender(24, FpduLimit::Emss, CRC);
    endpoint.submit(0, SEND, 0, 3);
    let record = seen(&endpoint.record().expect("a record"));
    assert_eq!(record.len(), 1);
    assert_eq!((record[0].payload.len(), record[0].last), (3, true));
}

#[test]
fn gathered_fpdus_are_staged_as_close_as_they_fit() {
    // Staged are length and header, 16 octets, and pad and CRC, here 4: the second finds the 28 octets that
    // the longest would take.
    let mut endpoint = sender(1460, FpduLimit::Emss, Framing { crc: false, ..CRC });
    endpoint.batch = TxBatch::with_capacity(20 + 28);
    endpoint.batch.gather_from = Some(1);
    for id in 0..2 {
        endpoint.submit(id, write(9, 0), 0, 4);
    }
    assert_eq!(endpoint.record().map(|record| record.len()), Some(2 * 24));
    assert_eq!(endpoint.batch.staged().len(), 2 * 20);
}

#[test]
fn a_record_may_fill_the_window_to_its_last_octet() {
    let mut endpoint = sender(1460, FpduLimit::Emss, CRC);
    endpoint.batch.window = UsableWindow { octets: 2 * 1460, in_words: true, stale: true };
    endpoint.submit(0, write(9, 0), 0, 3 * 1440);
    assert_eq!(endpoint.record().map(|record| record.len()), Some(2 * 1460));
    assert!(endpoint.batch.asks_window(), "for the third");
}
