//! Segments: views of what came in, headers for what goes out.

use zerocopy::{FromBytes, IntoBytes};

use crate::error::{Error, TaggedError, UntaggedError};
use crate::segmenter::Cut;
use crate::stag::Stag;
use crate::wire::{Control, TAGGED_HEADER_LEN, TaggedLayout, UNTAGGED_HEADER_LEN, UntaggedLayout};

/// One DDP segment, seen through the ULPDU it came in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Segment<'a> {
    /// Goes where its `STag` and offset say.
    Tagged(TaggedSegment<'a>),
    /// Goes into the buffer that its queue has for its message.
    Untagged(UntaggedSegment<'a>),
}

impl<'a> Segment<'a> {
    /// Reads the header at the front of a ULPDU; nothing is copied.
    ///
    /// What is checked here holds for every segment: the header is there as a whole, and its version
    /// is 1. Reserved bits are not looked at. Whether the segment may be placed is the business of
    /// [`UntaggedQueue`](crate::UntaggedQueue) and [`Placement`](crate::Placement).
    #[inline]
    pub fn parse(ulpdu: &'a [u8]) -> Result<Self, Error> {
        let truncated = Error::HeaderTruncated { len: ulpdu.len() };
        // DDP-004, DDP-010
        let Some(&first) = ulpdu.first() else { return Err(truncated) };
        if Control::from_octet(first).is_tagged() {
            TaggedSegment::parse(ulpdu, truncated).map(Self::Tagged)
        } else {
            UntaggedSegment::parse(ulpdu, truncated).map(Self::Untagged)
        }
    }

    /// Whether this is the last segment of its message.
    #[inline]
    #[must_use]
    pub const fn is_last(&self) -> bool {
        match self {
            Self::Tagged(segment) => segment.last,
            Self::Untagged(segment) => segment.last,
        }
    }

    /// The octet that DDP carries for the layer above: the RDMAP control octet.
    #[inline]
    #[must_use]
    pub const fn rsvd_ulp(&self) -> u8 {
        match self {
            Self::Tagged(segment) => segment.rsvd_ulp,
            Self::Untagged(segment) => segment.rsvd_ulp,
        }
    }

    /// The octets behind the header.
    #[inline]
    #[must_use]
    pub const fn payload(&self) -> &'a [u8] {
        match self {
            Self::Tagged(segment) => segment.payload,
            Self::Untagged(segment) => segment.payload,
        }
    }

    /// The header as received, reserved bits and all.
    #[inline]
    #[must_use]
    pub const fn header(&self) -> &'a [u8] {
        match self {
            Self::Tagged(segment) => segment.header,
            Self::Untagged(segment) => segment.header,
        }
    }

    /// Length of the whole segment, header and payload.
    #[inline]
    #[must_use]
    pub const fn ulpdu_len(&self) -> usize {
        match self {
            Self::Tagged(segment) => segment.ulpdu_len,
            Self::Untagged(segment) => segment.ulpdu_len,
        }
    }
}

/// The DDP header at the front of `ulpdu`, 14 or 18 octets by its T bit; `None` if it is cut short.
///
/// Nothing else is checked. This is for reports about a segment that [`Segment::parse`] refused, and for
/// the headers inside the Terminate messages that peers send (DDP-060).
#[inline]
#[must_use]
pub fn header_octets(ulpdu: &[u8]) -> Option<&[u8]> {
    let (&first, _) = ulpdu.split_first()?;
    let len = if Control::from_octet(first).is_tagged() {
        TAGGED_HEADER_LEN
    } else {
        UNTAGGED_HEADER_LEN
    };
    ulpdu.get(..len)
}

/// A segment for a tagged buffer (RFC 5041 §4.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TaggedSegment<'a> {
    /// Last segment of its message.
    pub last: bool,
    /// Carried for the layer above: the RDMAP control octet.
    pub rsvd_ulp: u8,
    /// Names the buffer.
    pub stag: Stag,
    /// Tagged offset: where in the buffer the first octet of the payload goes.
    pub offset: u64,
    /// The octets to place; may be empty.
    pub payload: &'a [u8],
    /// The [`TAGGED_HEADER_LEN`] octets of the header as received.
    pub header: &'a [u8],
    /// Length of the whole segment, header and payload.
    pub ulpdu_len: usize,
}

impl<'a> TaggedSegment<'a> {
    #[inline]
    fn parse(ulpdu: &'a [u8], truncated: Error) -> Result<Self, Error> {
        // DDP-024, SEC-23, FC-015: no length is used before the header is known to be there.
        let (layout, payload) = TaggedLayout::ref_from_prefix(ulpdu).map_err(|_| truncated)?;
        if !layout.control.has_our_version() {
            return Err(TaggedError::Version.into()); // DDP-015
        }
        Ok(Self {
            last: layout.control.is_last(),
            rsvd_ulp: layout.rsvd_ulp,
            stag: Stag::from_raw(layout.stag.get()), // DDP-018
            offset: layout.offset.get(),
            payload,
            header: layout.as_bytes(),
            ulpdu_len: ulpdu.len(),
        })
    }
}

/// A segment for an untagged buffer (RFC 5041 §4.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UntaggedSegment<'a> {
    /// Last segment of its message.
    pub last: bool,
    /// Carried for the layer above: the RDMAP control octet.
    pub rsvd_ulp: u8,
    /// Carried for the layer above: the `STag` to invalidate, in messages that have one.
    pub rsvd_ulp_word: u32,
    /// Queue number.
    pub queue: u32,
    /// Message sequence number on that queue.
    pub msn: u32,
    /// Message offset: octets of the message before this segment.
    pub offset: u32,
    /// The octets to place; may be empty.
    pub payload: &'a [u8],
    /// The [`UNTAGGED_HEADER_LEN`] octets of the header as received.
    pub header: &'a [u8],
    /// Length of the whole segment, header and payload.
    pub ulpdu_len: usize,
}

impl<'a> UntaggedSegment<'a> {
    #[inline]
    fn parse(ulpdu: &'a [u8], truncated: Error) -> Result<Self, Error> {
        // DDP-024, SEC-23, FC-015
        let (layout, payload) = UntaggedLayout::ref_from_prefix(ulpdu).map_err(|_| truncated)?;
        if !layout.control.has_our_version() {
            return Err(UntaggedError::Version.into()); // DDP-015
        }
        Ok(Self {
            last: layout.control.is_last(),
            rsvd_ulp: layout.rsvd_ulp,
            rsvd_ulp_word: layout.rsvd_ulp_word.get(),
            queue: layout.queue.get(),
            msn: layout.msn.get(),
            offset: layout.offset.get(),
            payload,
            header: layout.as_bytes(),
            ulpdu_len: ulpdu.len(),
        })
    }

    /// Checks that the segment came on the queue where its message belongs.
    ///
    /// Which one that is, the layer above knows from the octet it carries in `rsvd_ulp`.
    #[inline]
    pub const fn check_queue(&self, expected: u32) -> Result<(), UntaggedError> {
        // DDP-050, REG-02
        if self.queue == expected { Ok(()) } else { Err(UntaggedError::InvalidQueue) }
    }
}

/// What the header of a tagged segment says; of a whole message, with `last` still to be set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TaggedHeader {
    /// Last segment of its message.
    pub last: bool,
    /// Carried for the layer above: the RDMAP control octet.
    pub rsvd_ulp: u8,
    /// Names the peer's buffer.
    pub stag: Stag,
    /// Tagged offset: where in the buffer the first octet of the payload goes.
    pub offset: u64,
}

impl TaggedHeader {
    /// Payload that fits beside this header into a segment of `mulpdu` octets.
    #[inline]
    #[must_use]
    pub fn max_payload(mulpdu: usize) -> u32 {
        payload_room(mulpdu, TAGGED_HEADER_LEN)
    }

    /// The header for one piece of the message that starts at this header's offset.
    #[inline]
    #[must_use]
    pub const fn for_cut(self, cut: Cut) -> Self {
        // DDP-016, DDP-019, DDP-028. Only the offset and L differ between the segments of a message. An offset
        // that wraps is refused by the peer at the segment that reaches 2^64, before any after it.
        let offset = self.offset.wrapping_add(cut.offset as u64);
        Self { last: cut.last, offset, ..self }
    }

    /// The octets on the wire.
    #[inline]
    #[must_use]
    pub fn to_bytes(self) -> [u8; TAGGED_HEADER_LEN] {
        zerocopy::transmute!(TaggedLayout {
            control: Control::tagged(self.last),
            rsvd_ulp: self.rsvd_ulp,
            stag: self.stag.raw().into(),
            offset: self.offset.into(),
        })
    }

    /// Writes the octets on the wire to `out`.
    #[inline]
    pub fn encode(self, out: &mut [u8; TAGGED_HEADER_LEN]) {
        *out = self.to_bytes();
    }
}

impl From<TaggedSegment<'_>> for TaggedHeader {
    fn from(segment: TaggedSegment<'_>) -> Self {
        let TaggedSegment { last, rsvd_ulp, stag, offset, .. } = segment;
        Self { last, rsvd_ulp, stag, offset }
    }
}

/// What the header of an untagged segment says; of a whole message, with `last` still to be set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UntaggedHeader {
    /// Last segment of its message.
    pub last: bool,
    /// Carried for the layer above: the RDMAP control octet.
    pub rsvd_ulp: u8,
    /// Carried for the layer above: the `STag` to invalidate, else 0.
    pub rsvd_ulp_word: u32,
    /// Queue number.
    pub queue: u32,
    /// Message sequence number on that queue: 1 for the first message, then one more each, modulo 2^32.
    pub msn: u32,
    /// Message offset: octets of the message before this segment.
    pub offset: u32,
}

impl UntaggedHeader {
    /// Payload that fits beside this header into a segment of `mulpdu` octets.
    #[inline]
    #[must_use]
    pub fn max_payload(mulpdu: usize) -> u32 {
        payload_room(mulpdu, UNTAGGED_HEADER_LEN)
    }

    /// The header for one piece of the message; the offset of `self` is not used.
    #[inline]
    #[must_use]
    pub const fn for_cut(self, cut: Cut) -> Self {
        // DDP-020, DDP-027
        Self { last: cut.last, offset: cut.offset, ..self }
    }

    /// The octets on the wire.
    #[inline]
    #[must_use]
    pub fn to_bytes(self) -> [u8; UNTAGGED_HEADER_LEN] {
        zerocopy::transmute!(UntaggedLayout {
            control: Control::untagged(self.last),
            rsvd_ulp: self.rsvd_ulp,
            rsvd_ulp_word: self.rsvd_ulp_word.into(),
            queue: self.queue.into(),
            msn: self.msn.into(),
            offset: self.offset.into(),
        })
    }

    /// Writes the octets on the wire to `out`.
    #[inline]
    pub fn encode(self, out: &mut [u8; UNTAGGED_HEADER_LEN]) {
        *out = self.to_bytes();
    }
}

impl From<UntaggedSegment<'_>> for UntaggedHeader {
    fn from(segment: UntaggedSegment<'_>) -> Self {
        let UntaggedSegment { last, rsvd_ulp, rsvd_ulp_word, queue, msn, offset, .. } = segment;
        Self { last, rsvd_ulp, rsvd_ulp_word, queue, msn, offset }
    }
}

fn payload_room(mulpdu: usize, header: usize) -> u32 {
    u32::try_from(mulpdu.saturating_sub(header)).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    #![allow(
        clippy::indexing_slicing,
        clippy::arithmetic_side_effects,
        reason = "a panic is a failed test"
    )]

    use super::*;

    const TAGGED: &[u8] = b"\xC1\x40\x00\xBE\xEF\x01\x01\x02\x03\x04\x05\x06\x07\x08data";
    const UNTAGGED: &[u8] =
        b"\x41\x44\x12\x34\x56\x78\0\0\0\x03\xFF\xFF\xFF\xFE\0\x01\0\x02payload";

    #[test]
    fn tagged_fields() {
        // DDP-016, DDP-018
        let Ok(Segment::Tagged(segment)) = Segment::parse(TAGGED) else { panic!("not tagged") };
        assert_eq!(
            segment,
            TaggedSegment {
                last: true,
                rsvd_ulp: 0x40,
                stag: Stag::from_raw(0x00be_ef01),
                offset: 0x0102_0304_0506_0708,
                payload: b"data",
                header: &TAGGED[..14],
                ulpdu_len: 18,
            }
        );
        assert_eq!(TaggedHeader::from(segment).to_bytes(), TAGGED[..14]);
    }

    #[test]
    fn untagged_fields() {
        // DDP-020
        let Ok(Segment::Untagged(segment)) = Segment::parse(UNTAGGED) else {
            panic!("not untagged")
        };
        assert_eq!(
            segment,
            UntaggedSegment {
                last: true,
                rsvd_ulp: 0x44,
                rsvd_ulp_word: 0x1234_5678,
                queue: 3,
                msn: 0xFFFF_FFFE,
                offset: 0x0001_0002,
                payload: b"payload",
                header: &UNTAGGED[..18],
                ulpdu_len: 25,
            }
        );
        assert_eq!(UntaggedHeader::from(segment).to_bytes(), UNTAGGED[..18]);
    }

    #[test]
    fn views_agree_with_the_segment_inside() {
        for octets in [TAGGED, UNTAGGED] {
            let segment = Segment::parse(octets).unwrap();
            assert!(segment.is_last());
            assert_eq!(segment.rsvd_ulp(), octets[1]);
            assert_eq!([segment.header(), segment.payload()].concat(), octets);
            assert_eq!(segment.ulpdu_len(), octets.len());
            assert_eq!(header_octets(octets), Some(segment.header()));
        }
    }

    #[test]
    fn version_error_is_of_the_kind_of_the_segment() {
        // DDP-015
        for version in [0, 2, 3] {
            let mut octets = TAGGED.to_vec();
            octets[0] = 0xC0 | version;
            assert_eq!(Segment::parse(&octets), Err(TaggedError::Version.into()));
            assert_eq!(header_octets(&octets), Some(&octets[..14]));
            let mut octets = UNTAGGED.to_vec();
            octets[0] = 0x40 | version;
            assert_eq!(Segment::parse(&octets), Err(UntaggedError::Version.into()));
            assert_eq!(header_octets(&octets), Some(&octets[..18]));
        }
    }

    #[test]
    fn missing_header_comes_before_a_wrong_version() {
        assert_eq!(Segment::parse(&[0xC0; 13]), Err(Error::HeaderTruncated { len: 13 }));
        assert_eq!(Segment::parse(&[0x40; 17]), Err(Error::HeaderTruncated { len: 17 }));
        assert_eq!(header_octets(&[0xC0; 13]), None);
        assert_eq!(header_octets(&[0x40; 17]), None);
        assert_eq!(header_octets(&[]), None);
    }

    #[test]
    fn queue_is_compared() {
        // DDP-050
        let Ok(Segment::Untagged(segment)) = Segment::parse(UNTAGGED) else {
            panic!("not untagged")
        };
        assert_eq!(segment.check_queue(3), Ok(()));
        assert_eq!(segment.check_queue(0), Err(UntaggedError::InvalidQueue));
    }

    #[test]
    fn segments_of_a_message_differ_in_offset_and_last_only() {
        let message =
            TaggedHeader { last: true, rsvd_ulp: 0x42, stag: Stag::from_raw(7), offset: 16_384 };
        let cut = Cut { offset: 1486, len: 100, last: false };
        // DDP-016, DDP-028
        assert_eq!(message.for_cut(cut), TaggedHeader { last: false, offset: 17_870, ..message });

        let message = UntaggedHeader {
            last: true,
            rsvd_ulp: 0x44,
            rsvd_ulp_word: 9,
            queue: 0,
            msn: 5,
            offset: 0,
        };
        // DDP-020, DDP-027
        assert_eq!(message.for_cut(cut), UntaggedHeader { last: false, offset: 1486, ..message });
    }

    #[test]
    fn room_beside_the_header() {
        assert_eq!(TaggedHeader::max_payload(1500), 1486);
        assert_eq!(UntaggedHeader::max_payload(1500), 1482);
        assert_eq!(TaggedHeader::max_payload(14), 0);
        assert_eq!(UntaggedHeader::max_payload(3), 0);
    }
}
