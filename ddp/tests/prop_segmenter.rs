//! Messages of any size, cut for any transport, and put together again.

#![allow(
    clippy::indexing_slicing,
    clippy::arithmetic_side_effects,
    clippy::cast_possible_truncation,
    missing_docs,
    reason = "test code; a panic is a failed test"
)]

mod common;

use iwarp_ddp::{
    Cut, LocalFault, Placement, Position, Refusal, Segment, Segmenter, Stag, TaggedHeader,
    UntaggedHeader, UntaggedQueue, range_in,
};
use proptest::prelude::*;

/// Any length, the ends and the neighbourhood of segment boundaries more often than chance would.
fn message_len() -> impl Strategy<Value = u32> {
    prop_oneof![Just(0), Just(1), Just(u32::MAX), 0..4096_u32, any::<u32>()]
}

/// A segment size that cuts `len` octets into a bounded number of segments.
fn max_payload(len: u32) -> impl Strategy<Value = u32> {
    let least = (len / 1000).max(1);
    prop_oneof![Just(least), least..=u32::MAX, least..=least.saturating_add(100)]
}

/// The cuts of one message tile it: in order, without gap or overlap, the last one marked.
fn check_tiling(message_len: u32, cuts: &[Cut]) -> Result<(), TestCaseError> {
    let mut end = 0_u64;
    for (at, cut) in cuts.iter().enumerate() {
        // DDP-027, DDP-033
        prop_assert_eq!(u64::from(cut.offset), end);
        end += u64::from(cut.len);
        // DDP-011, DDP-012
        prop_assert_eq!(cut.last, at + 1 == cuts.len());
        // DDP-029
        prop_assert!(cut.len > 0 || message_len == 0);
    }
    // DDP-026
    prop_assert_eq!(end, u64::from(message_len));
    Ok(())
}

/// A message and the transport's segment sizes, one for each segment and the last for all that follow.
fn message_and_mulpdus() -> impl Strategy<Value = (Vec<u8>, Vec<usize>)> {
    (
        prop::collection::vec(any::<u8>(), 0..6000),
        prop::collection::vec(prop_oneof![19..200_usize, 128..1600_usize], 1..20),
    )
}

/// Cuts `message` as the transport's sizes say; `encode` makes the header of a cut.
fn send(
    message: &[u8],
    mulpdus: &[usize],
    max_payload: fn(usize) -> u32,
    encode: impl Fn(Cut) -> Vec<u8>,
) -> Result<Vec<Vec<u8>>, TestCaseError> {
    let mut segmenter = Segmenter::new(message.len() as u32, 1);
    let mut cuts = Vec::new();
    let mut ulpdus = Vec::new();
    for at in 0.. {
        let mulpdu = mulpdus[at.min(mulpdus.len() - 1)];
        let Some(cut) = segmenter.next_cut(max_payload(mulpdu)) else { break };
        let from = cut.offset as usize;
        let mut ulpdu = encode(cut);
        ulpdu.extend_from_slice(&message[from..from + cut.len as usize]);
        // MPA-042, DDP-025: never above the size of the moment, and only the last may be below.
        prop_assert!(ulpdu.len() <= mulpdu);
        prop_assert!(cut.last || ulpdu.len() == mulpdu);
        cuts.push(cut);
        ulpdus.push(ulpdu);
    }
    check_tiling(message.len() as u32, &cuts)?;
    Ok(ulpdus)
}

/// One registered buffer.
struct Memory {
    stag: Stag,
    base: u64,
    octets: Vec<u8>,
}

impl Placement for Memory {
    type Buffer = ();

    fn place_tagged(&mut self, stag: Stag, offset: u64, payload: &[u8]) -> Result<(), Refusal> {
        if stag != self.stag {
            return Err(Refusal::InvalidStag);
        }
        let size = self.octets.len() as u64;
        let at = range_in(self.base, size, offset, payload.len() as u64)? as usize;
        self.octets[at..at + payload.len()].copy_from_slice(payload);
        Ok(())
    }

    fn place_local(&mut self, (): &(), _: u64, _: &[u8]) -> Result<(), LocalFault> {
        Err(LocalFault::Protection)
    }
}

proptest! {
    #![proptest_config(common::config(500))]

    #[test]
    fn cuts_tile_the_message(
        (len, max) in message_len().prop_flat_map(|len| (Just(len), max_payload(len))),
    ) {
        let cuts: Vec<_> = Segmenter::new(len, max).collect();
        check_tiling(len, &cuts)?;
        // DDP-025: as few as possible, each full but the last.
        prop_assert_eq!(cuts.len() as u32, len.div_ceil(max).max(1));
        prop_assert!(cuts.iter().all(|cut| cut.len <= max));
        prop_assert!(cuts.iter().all(|cut| cut.last || cut.len == max));
    }

    #[test]
    fn cut_at_answers_what_the_iteration_did(
        (len, max) in message_len().prop_flat_map(|len| (Just(len), max_payload(len))),
    ) {
        let segmenter = Segmenter::new(len, max);
        for cut in segmenter.clone() {
            prop_assert_eq!(segmenter.cut_at(cut.offset), Some(cut));
        }
        if len > 0 {
            prop_assert_eq!(segmenter.cut_at(len), None);
        }
        if let Some(behind) = len.checked_add(1) {
            prop_assert_eq!(segmenter.cut_at(behind), None);
        }
    }

    #[test]
    fn room_and_header_fill_the_segment(mulpdu: usize) {
        let room = |header: usize| u32::try_from(mulpdu.saturating_sub(header)).unwrap_or(u32::MAX);
        prop_assert_eq!(TaggedHeader::max_payload(mulpdu), room(14));
        prop_assert_eq!(UntaggedHeader::max_payload(mulpdu), room(18));
    }

    #[test]
    fn untagged_message_is_put_together_again(
        (message, mulpdus) in message_and_mulpdus(),
        msn: u32,
        word: u32,
        spare in 0..3_usize,
    ) {
        // DDP-001, DDP-020
        let header = UntaggedHeader {
            last: false, rsvd_ulp: 0x46, rsvd_ulp_word: word, queue: 0, msn, offset: 0,
        };
        let ulpdus = send(&message, &mulpdus, UntaggedHeader::max_payload, |cut| {
            header.for_cut(cut).to_bytes().to_vec()
        })?;

        let mut queue = UntaggedQueue::with_next_msn(msn);
        let mut buffer = vec![0xEE; message.len() + spare];
        for (at, ulpdu) in ulpdus.iter().enumerate() {
            let Ok(Segment::Untagged(segment)) = Segment::parse(ulpdu) else {
                return Err(TestCaseError::fail("refused"));
            };
            prop_assert_eq!((segment.rsvd_ulp, segment.rsvd_ulp_word), (0x46, word));
            let position = if at == 0 { Position::First } else { Position::Continuation };
            prop_assert_eq!(queue.check_msn(&segment), Ok(position));
            let to = queue.check_placement(&segment, buffer.len() as u64).unwrap() as usize;
            buffer[to..to + segment.payload.len()].copy_from_slice(segment.payload);
            // DDP-037, DDP-038
            let complete = (at + 1 == ulpdus.len()).then_some(message.len() as u32);
            prop_assert_eq!(queue.placed(&segment), complete);
        }
        prop_assert_eq!(&buffer[..message.len()], &message[..]);
        prop_assert!(buffer[message.len()..].iter().all(|&octet| octet == 0xEE));
        prop_assert_eq!(queue, UntaggedQueue::with_next_msn(msn.wrapping_add(1)));
    }

    #[test]
    fn tagged_message_is_put_together_again(
        (message, mulpdus) in message_and_mulpdus(),
        stag: u32,
        // The whole buffer has to end below 2^64.
        base in 0..=u64::MAX - 6100,
        within in 0..50_usize,
    ) {
        // DDP-016, DDP-019, DDP-028
        let stag = Stag::from_raw(stag);
        let offset = base + within as u64;
        let header = TaggedHeader { last: false, rsvd_ulp: 0x40, stag, offset };
        let ulpdus = send(&message, &mulpdus, TaggedHeader::max_payload, |cut| {
            header.for_cut(cut).to_bytes().to_vec()
        })?;

        let mut memory = Memory { stag, base, octets: vec![0xEE; within + message.len() + 5] };
        for ulpdu in &ulpdus {
            let Ok(Segment::Tagged(segment)) = Segment::parse(ulpdu) else {
                return Err(TestCaseError::fail("refused"));
            };
            prop_assert_eq!((segment.rsvd_ulp, segment.stag), (0x40, stag));
            prop_assert_eq!(segment.place(&mut memory), Ok(()));
        }
        let end = within + message.len();
        prop_assert_eq!(&memory.octets[within..end], &message[..]);
        prop_assert!(memory.octets[..within].iter().all(|&octet| octet == 0xEE));
        prop_assert!(memory.octets[end..].iter().all(|&octet| octet == 0xEE));
    }
}
