//! [`Stag`]: the handle under which a peer names registered memory.

use std::fmt;

/// Steering tag: names a buffer that one side has opened to the other (RFC 5041 §4.2).
///
/// The protocol treats the 32 bits as one opaque value. By the convention of the verbs the upper 24
/// bits are an index, chosen by the owner of the memory, and the low 8 bits a key that changes when an
/// index is used again, so that a tag that was revoked does not come back to life.
///
/// ```
/// use iwarp_ddp::Stag;
///
/// let stag = Stag::from_parts(0x00_beef, 0x01);
/// assert_eq!(stag.raw(), 0x00be_ef01);
/// assert_eq!((stag.index(), stag.key()), (0x00_beef, 0x01));
/// assert_eq!(stag.to_string(), "0x00beef01");
/// ```
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Stag(u32);

impl Stag {
    /// The tag with this value, as it stands on the wire. Every value is possible, 0 included.
    #[inline]
    #[must_use]
    pub const fn from_raw(raw: u32) -> Self {
        Self(raw)
    }

    /// The tag made of an index and a key. The index has 24 bits; bits above them are dropped.
    #[inline]
    #[must_use]
    pub const fn from_parts(index: u32, key: u8) -> Self {
        let [_, high, middle, low] = index.to_be_bytes();
        Self(u32::from_be_bytes([high, middle, low, key]))
    }

    /// The value on the wire.
    #[inline]
    #[must_use]
    pub const fn raw(self) -> u32 {
        self.0
    }

    /// The upper 24 bits.
    #[inline]
    #[must_use]
    pub const fn index(self) -> u32 {
        self.0 >> 8
    }

    /// The low 8 bits.
    #[inline]
    #[must_use]
    pub const fn key(self) -> u8 {
        let [.., key] = self.0.to_be_bytes();
        key
    }
}

impl fmt::Display for Stag {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "0x{:08x}", self.0)
    }
}

impl fmt::Debug for Stag {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Stag({self})")
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn prints_as_eight_hexadecimal_digits() {
        assert_eq!(Stag::from_raw(0).to_string(), "0x00000000");
        assert_eq!(Stag::from_raw(u32::MAX).to_string(), "0xffffffff");
        assert_eq!(format!("{:?}", Stag::from_raw(0x0bad_bad0)), "Stag(0x0badbad0)");
    }

    #[test]
    fn index_beyond_24_bits_is_cut() {
        assert_eq!(Stag::from_parts(0xff12_3456, 0x78), Stag::from_raw(0x1234_5678));
    }

    proptest! {
        #[test]
        fn parts_and_raw_agree(raw: u32) {
            let stag = Stag::from_raw(raw);
            prop_assert_eq!(stag.raw(), raw);
            prop_assert_eq!(stag.index() << 8 | u32::from(stag.key()), raw);
            prop_assert_eq!(Stag::from_parts(stag.index(), stag.key()), stag);
        }
    }
}
