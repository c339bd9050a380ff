//! Sizes of FPDUs, and where TCP cuts them.
#![allow(clippy::unwrap_used, reason = "a failed step fails the test")]

mod common;

use common::config;
use iwarp_mpa::{FpduLimit, MULPDU_MIN, SizePlan, ULPDU_MAX_SENT, framed_len, mulpdu};
use proptest::prelude::*;

fn emss() -> impl Strategy<Value = u32> {
    prop_oneof![
        4 => 500_u32..1_600,
        2 => 8_000_u32..9_100,
        1 => 60_000_u32..70_000,
        1 => 0_u32..300,
        1 => any::<u32>(),
    ]
}

fn limit() -> impl Strategy<Value = FpduLimit> {
    prop_oneof![
        Just(FpduLimit::Emss),
        Just(FpduLimit::default()),
        (0_u32..140_000).prop_map(FpduLimit::Octets),
        any::<u32>().prop_map(FpduLimit::Octets),
    ]
}

proptest! {
    #![proptest_config(config(2_000))]

    // MPA-041, MPA-043, MPA-068, MPA-070
    #[test]
    fn an_fpdu_of_mulpdu_fits_into_a_segment(emss in 136_u32..100_000, phase in 0_u64..128) {
        for markers in [false, true] {
            let ulpdu = mulpdu(emss, markers);
            prop_assert!((MULPDU_MIN..=ULPDU_MAX_SENT).contains(&ulpdu));
            let len = framed_len(ulpdu, markers, phase * 4);
            let room = usize::try_from(emss).unwrap();
            prop_assert!(len <= room || ulpdu == MULPDU_MIN, "{} in {}", len, room);
            if !markers && ulpdu < ULPDU_MAX_SENT {
                prop_assert!(framed_len(ulpdu + 1, false, 0) > room, "not the largest");
            }
        }
    }

    // MPA-072, and D14
    #[test]
    fn a_full_fpdu_fills_segments_or_ends_its_record(
        emss in emss(),
        limit in limit(),
        markers: bool,
        phase in 0_u64..128,
    ) {
        let plan = SizePlan::new(emss, limit, markers);
        prop_assert!((MULPDU_MIN..=ULPDU_MAX_SENT).contains(&plan.mulpdu));
        let segment = usize::try_from(emss).unwrap().max(1);
        let len = framed_len(plan.mulpdu, markers, phase * 4);
        if !plan.ends_record {
            prop_assert_eq!(len % segment, 0);
        }
        let bound = match limit {
            FpduLimit::Emss => segment,
            FpduLimit::Octets(octets) => segment.max(usize::try_from(octets).unwrap()),
        };
        prop_assert!(len <= bound || plan.mulpdu == MULPDU_MIN, "{} above {}", len, bound);
        if limit == FpduLimit::Emss {
            prop_assert_eq!(plan.mulpdu, mulpdu(emss, markers));
        }
    }

    /// Without markers, where the EMSS is a multiple of 4 as it nearly always is, nothing ends a
    /// record.
    #[test]
    fn usual_segments_are_filled(quarter in 128_u32..4_000, limit in limit()) {
        let emss = quarter * 4;
        let plan = SizePlan::new(emss, limit, false);
        prop_assert!(!plan.ends_record);
        prop_assert_eq!(framed_len(plan.mulpdu, false, 0) % usize::try_from(emss).unwrap(), 0);
    }

    /// The largest there is: no other number of whole segments within the limit holds more.
    #[test]
    fn no_whole_number_of_segments_holds_more(emss in 136_u32..20_000, octets in 0_u32..70_000) {
        let plan = SizePlan::new(emss, FpduLimit::Octets(octets), false);
        let segment = usize::try_from(emss).unwrap();
        let bound = segment.max(usize::try_from(octets).unwrap());
        for count in 1..=bound / segment {
            let room = segment * count;
            if room <= framed_len(ULPDU_MAX_SENT, false, 0) {
                // In the longest FPDU there is two octets are always pad.
                prop_assert!(plan.mulpdu >= (room - 6 - room % 4).min(ULPDU_MAX_SENT));
            }
        }
    }

    #[test]
    fn trailers_are_seen_where_tcp_cuts_them(
        emss in 500_u32..1_600,
        record in (0_usize..5_000).prop_map(|quarters| quarters * 4),
        ulpdu_len in 0_usize..5_000,
    ) {
        let plan = SizePlan::new(emss, FpduLimit::default(), false);
        let end = record + framed_len(ulpdu_len, false, 0);
        let pad = (4 - (ulpdu_len + 2) % 4) % 4;
        let segment = usize::try_from(emss).unwrap();
        let cut = (end - 4 - pad + 1..end).any(|octet| octet % segment == 0);
        prop_assert_eq!(plan.keeps_trailer_whole(record, ulpdu_len), !cut);
    }

    /// Wherever TCP ends a segment ahead of its time, and then goes on in whole ones.
    #[test]
    fn trailers_stay_whole_where_a_window_ends(
        emss in 500_u32..1_600,
        ulpdu_len in 16_usize..20_000,
        edge in 1_usize..20_000,
        in_words: bool,
    ) {
        let plan = SizePlan::new(emss, FpduLimit::default(), false);
        let len = plan.keeps_trailer_whole_in(ulpdu_len, in_words);
        prop_assert!(len <= ulpdu_len);
        let segment = usize::try_from(emss).unwrap();
        let end = framed_len(len, false, 0);
        prop_assert!(len + 3 >= ulpdu_len || (end <= segment && end + 4 > segment), "shorter than need be");
        if end > segment {
            let edge = if in_words { edge.next_multiple_of(4) } else { edge };
            let before = (segment..=edge).step_by(segment);
            let cuts: Vec<usize> = before.chain((edge..end).step_by(segment)).collect();
            let pad = (4 - (len + 2) % 4) % 4;
            prop_assert!(cuts.iter().all(|&cut| cut <= end - 4 - pad || cut >= end), "{:?}", cuts);
        }
    }
}

#[test]
fn usual_plans() {
    let plan = |emss, limit| {
        let plan = SizePlan::new(emss, limit, false);
        (plan.mulpdu, plan.ends_record)
    };
    // Eleven segments of Ethernet.
    assert_eq!(plan(1460, FpduLimit::default()), (16_054, false));
    assert_eq!(plan(1448, FpduLimit::default()), (15_922, false));
    assert_eq!(plan(1460, FpduLimit::Emss), (1_454, false));
    // One of loopback, which no FPDU can fill.
    assert_eq!(plan(65_483, FpduLimit::default()), (64_768, true));
    assert_eq!(plan(65_483, FpduLimit::Emss), (64_768, true));
    // Six segments are exactly the longest FPDU.
    assert_eq!(plan(10_796, FpduLimit::Octets(64_776)), (64_768, false));
    // As much as may be sent, in whole segments.
    assert_eq!(plan(1460, FpduLimit::Octets(u32::MAX)), (44 * 1460 - 6, false));
}
