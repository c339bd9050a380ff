//! The two headers as they lie on the wire (RFC 5041 §4.1 to §4.3).
//!
//! Layouts only: what the fields mean, and the types others see, is in [`segment`](crate::segment).

use zerocopy::byteorder::network_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Octets of the header of a tagged segment.
pub const TAGGED_HEADER_LEN: usize = 14;
/// Octets of the header of an untagged segment.
pub const UNTAGGED_HEADER_LEN: usize = 18;

const _: () = assert!(size_of::<TaggedLayout>() == TAGGED_HEADER_LEN);
const _: () = assert!(size_of::<UntaggedLayout>() == UNTAGGED_HEADER_LEN);

#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub(crate) struct TaggedLayout {
    pub(crate) control: Control,
    pub(crate) rsvd_ulp: u8,
    pub(crate) stag: U32,
    pub(crate) offset: U64,
}

#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub(crate) struct UntaggedLayout {
    pub(crate) control: Control,
    pub(crate) rsvd_ulp: u8,
    pub(crate) rsvd_ulp_word: U32,
    pub(crate) queue: U32,
    pub(crate) msn: U32,
    pub(crate) offset: U32,
}

/// First octet of every segment: T, L, four reserved bits, DDP version.
#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(transparent)]
pub(crate) struct Control(u8);

impl Control {
    const TAGGED: u8 = 0x80;
    const LAST: u8 = 0x40;
    const VERSION_MASK: u8 = 0x03;
    const VERSION: u8 = 1;

    /// Reserved bits are sent as zero (DDP-014), the version is always 1 (DDP-015, MPA-036).
    #[inline]
    pub(crate) const fn tagged(last: bool) -> Self {
        Self(Self::TAGGED | Self::last_bit(last) | Self::VERSION)
    }

    /// As [`tagged`](Self::tagged), with T clear.
    #[inline]
    pub(crate) const fn untagged(last: bool) -> Self {
        Self(Self::last_bit(last) | Self::VERSION)
    }

    const fn last_bit(last: bool) -> u8 {
        if last { Self::LAST } else { 0 }
    }

    #[inline]
    pub(crate) const fn from_octet(octet: u8) -> Self {
        Self(octet)
    }

    #[inline]
    pub(crate) const fn is_tagged(self) -> bool {
        self.0 & Self::TAGGED != 0
    }

    #[inline]
    pub(crate) const fn is_last(self) -> bool {
        self.0 & Self::LAST != 0
    }

    #[inline]
    pub(crate) const fn has_our_version(self) -> bool {
        self.0 & Self::VERSION_MASK == Self::VERSION
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_octets() {
        // DDP-015, MPA-036
        assert_eq!(Control::untagged(true).0, 0x41);
        assert_eq!(Control::untagged(false).0, 0x01);
        assert_eq!(Control::tagged(true).0, 0xC1);
        assert_eq!(Control::tagged(false).0, 0x81);
    }

    #[test]
    fn every_control_octet_reads_as_its_bits() {
        for octet in 0..=u8::MAX {
            let control = Control(octet);
            assert_eq!(control.is_tagged(), octet >= 0x80);
            assert_eq!(control.is_last(), (octet >> 6) & 1 == 1);
            // DDP-014: the four bits between are not looked at.
            assert_eq!(control.has_our_version(), octet % 4 == 1);
        }
    }
}
