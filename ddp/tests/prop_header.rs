//! Headers and parsing, for every value and for arbitrary octets.

#![allow(
    clippy::indexing_slicing,
    clippy::arithmetic_side_effects,
    missing_docs,
    reason = "test code; a panic is a failed test"
)]

mod common;

use iwarp_ddp::{
    Error, Segment, Stag, TAGGED_HEADER_LEN, TaggedError, TaggedHeader, UNTAGGED_HEADER_LEN,
    UntaggedError, UntaggedHeader, header_octets,
};
use proptest::prelude::*;

prop_compose! {
    fn tagged_header()(last: bool, rsvd_ulp: u8, stag: u32, offset: u64) -> TaggedHeader {
        TaggedHeader { last, rsvd_ulp, stag: Stag::from_raw(stag), offset }
    }
}

prop_compose! {
    fn untagged_header()(
        last: bool, rsvd_ulp: u8, rsvd_ulp_word: u32, queue: u32, msn: u32, offset: u32,
    ) -> UntaggedHeader {
        UntaggedHeader { last, rsvd_ulp, rsvd_ulp_word, queue, msn, offset }
    }
}

proptest! {
    #![proptest_config(common::config(2_000))]

    #[test]
    fn tagged_header_comes_back(
        header in tagged_header(),
        payload in prop::collection::vec(any::<u8>(), 0..64),
        reserved in 0_u8..16,
    ) {
        let mut octets = header.to_bytes().to_vec();
        let mut encoded = [0xAA; TAGGED_HEADER_LEN];
        header.encode(&mut encoded);
        prop_assert_eq!(&encoded[..], &octets[..]);
        // DDP-014
        prop_assert_eq!(octets[0] & 0x3C, 0);
        octets[0] |= reserved << 2;
        octets.extend_from_slice(&payload);

        let Ok(Segment::Tagged(segment)) = Segment::parse(&octets) else {
            return Err(TestCaseError::fail("refused"));
        };
        prop_assert_eq!(TaggedHeader::from(segment), header);
        prop_assert_eq!(segment.payload, payload);
        prop_assert_eq!(segment.header, &octets[..TAGGED_HEADER_LEN]);
        prop_assert_eq!(segment.ulpdu_len, octets.len());
    }

    #[test]
    fn untagged_header_comes_back(
        header in untagged_header(),
        payload in prop::collection::vec(any::<u8>(), 0..64),
        reserved in 0_u8..16,
    ) {
        let mut octets = header.to_bytes().to_vec();
        let mut encoded = [0xAA; UNTAGGED_HEADER_LEN];
        header.encode(&mut encoded);
        prop_assert_eq!(&encoded[..], &octets[..]);
        // DDP-014
        prop_assert_eq!(octets[0] & 0x3C, 0);
        octets[0] |= reserved << 2;
        octets.extend_from_slice(&payload);

        let Ok(Segment::Untagged(segment)) = Segment::parse(&octets) else {
            return Err(TestCaseError::fail("refused"));
        };
        prop_assert_eq!(UntaggedHeader::from(segment), header);
        prop_assert_eq!(segment.payload, payload);
        prop_assert_eq!(segment.header, &octets[..UNTAGGED_HEADER_LEN]);
        prop_assert_eq!(segment.ulpdu_len, octets.len());
    }

    /// Each field is where the format puts it, in network order.
    #[test]
    fn fields_lie_at_their_offsets(tagged in tagged_header(), untagged in untagged_header()) {
        let octets = tagged.to_bytes();
        prop_assert_eq!(octets[0], if tagged.last { 0xC1 } else { 0x81 });
        prop_assert_eq!(octets[1], tagged.rsvd_ulp);
        prop_assert_eq!(&octets[2..6], &tagged.stag.raw().to_be_bytes());
        prop_assert_eq!(&octets[6..14], &tagged.offset.to_be_bytes());

        let octets = untagged.to_bytes();
        prop_assert_eq!(octets[0], if untagged.last { 0x41 } else { 0x01 });
        prop_assert_eq!(octets[1], untagged.rsvd_ulp);
        prop_assert_eq!(&octets[2..6], &untagged.rsvd_ulp_word.to_be_bytes());
        prop_assert_eq!(&octets[6..10], &untagged.queue.to_be_bytes());
        prop_assert_eq!(&octets[10..14], &untagged.msn.to_be_bytes());
        prop_assert_eq!(&octets[14..18], &untagged.offset.to_be_bytes());
    }

    /// What parsing makes of octets depends on the first of them and their number only.
    #[test]
    fn arbitrary_octets_are_parsed_or_refused(octets in prop::collection::vec(any::<u8>(), 0..80)) {
        // DDP-024, SEC-23
        let Some(&first) = octets.first() else {
            prop_assert_eq!(Segment::parse(&octets), Err(Error::HeaderTruncated { len: 0 }));
            return Ok(());
        };
        let tagged = first & 0x80 != 0;
        let header = if tagged { TAGGED_HEADER_LEN } else { UNTAGGED_HEADER_LEN };
        prop_assert_eq!(header_octets(&octets), octets.get(..header));
        match Segment::parse(&octets) {
            Err(Error::HeaderTruncated { len }) => {
                prop_assert_eq!(len, octets.len());
                prop_assert!(len < header);
            }
            // DDP-015
            Err(Error::Tagged(TaggedError::Version)) => prop_assert!(tagged && first & 3 != 1),
            Err(Error::Untagged(UntaggedError::Version)) => prop_assert!(!tagged && first & 3 != 1),
            Err(error) => prop_assert!(false, "unexpected {}", error),
            Ok(segment) => {
                prop_assert_eq!(tagged, matches!(segment, Segment::Tagged(_)));
                prop_assert_eq!(first & 3, 1);
                prop_assert_eq!(segment.is_last(), first & 0x40 != 0);
                prop_assert_eq!(segment.rsvd_ulp(), octets[1]);
                prop_assert_eq!(segment.header(), &octets[..header]);
                prop_assert_eq!(segment.payload(), &octets[header..]);
                prop_assert_eq!(segment.ulpdu_len(), octets.len());
            }
        }
    }
}
