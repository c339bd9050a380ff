//! Upward calls: DDP decides where octets go, the owner of the memory puts them there.

use crate::error::TaggedError;
use crate::segment::TaggedSegment;
use crate::stag::Stag;

/// Writes into memory that the local side has registered.
///
/// Implemented by whoever owns the memory. A call either does all of it or nothing: on `Err` not one
/// octet has changed. Neither call blocks.
pub trait Placement {
    /// The local side of a work request: a receive buffer, or the sink of a Read. Opaque here.
    type Buffer;

    /// Puts the payload of a peer's tagged segment at `offset` of the buffer named by `stag`.
    ///
    /// The implementation checks, in the order of [`Refusal`], that the tag is valid and belongs to this
    /// stream, that it lets the peer write, and that the range lies inside; [`range_in`] does the last
    /// two. The payload is never empty: use [`TaggedSegment::place`], which sees to that.
    fn place_tagged(&mut self, stag: Stag, offset: u64, payload: &[u8]) -> Result<(), Refusal>;

    /// Puts octets at `offset` of a work request's own buffer.
    fn place_local(
        &mut self,
        sink: &Self::Buffer,
        offset: u64,
        payload: &[u8],
    ) -> Result<(), LocalFault>;
}

/// Reads from memory that the local side has registered.
///
/// The memory may change while it is read, by local threads or by another peer; what is read then is
/// undefined, but it is read once, into private octets. Neither call blocks.
pub trait Source {
    /// The local side of a work request: what a Send or Write carries. Opaque here.
    type Buffer;

    /// Checks the whole range of a peer's Read when its request arrives: `len` octets, more than 0.
    fn check_tagged(&mut self, stag: Stag, offset: u64, len: u32) -> Result<(), Refusal>;

    /// Fills `into` from `offset` of the buffer named by `stag`, for one segment of a response.
    ///
    /// Checked again as in [`check_tagged`](Self::check_tagged): the tag may have been revoked since.
    fn read_tagged(&mut self, stag: Stag, offset: u64, into: &mut [u8]) -> Result<(), Refusal>;

    /// Fills `into` from `offset` of a work request's own buffer.
    fn read_local(
        &mut self,
        source: &Self::Buffer,
        offset: u64,
        into: &mut [u8],
    ) -> Result<(), LocalFault>;
}

/// Why a peer may not touch the memory it named. In the order of the checks: the first that fails counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
pub enum Refusal {
    /// The `STag` names nothing, or something revoked, or has another key.
    #[error("STag names no registered memory")]
    InvalidStag,
    /// The memory belongs to another protection domain, or to another stream.
    #[error("STag is not associated with this stream")]
    NotAssociated,
    /// The memory, or the stream, does not allow this kind of access.
    #[error("access is not allowed")]
    Rights,
    /// Offset and length add up to 2^64 or more.
    #[error("tagged offset wraps")]
    Wrap,
    /// Octets lie outside the memory.
    #[error("outside the registered range")]
    Bounds,
}

impl From<Refusal> for TaggedError {
    fn from(refusal: Refusal) -> Self {
        match refusal {
            // DDP-056: DDP has no number for missing rights (decision D4).
            Refusal::InvalidStag | Refusal::Rights => Self::InvalidStag,
            Refusal::NotAssociated => Self::NotAssociated,
            Refusal::Wrap => Self::Wrap,
            Refusal::Bounds => Self::Bounds,
        }
    }
}

/// Why the local buffer of a work request cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
pub enum LocalFault {
    /// A key is not valid any more, or the memory does not allow the access.
    #[error("local buffer is not accessible")]
    Protection,
    /// The octets do not fit into the buffer.
    #[error("local buffer is too short")]
    Length,
}

/// Where `len` octets at the tagged offset `offset` lie in a buffer of `size` octets that starts at `base`.
///
/// Returns the distance from the start of the buffer. Wrap comes before bounds; a sum of exactly 2^64
/// counts as a wrap (decision D11). To the octet: the last one inside is allowed, one more is not.
///
/// ```
/// use iwarp_ddp::{Refusal, range_in};
///
/// assert_eq!(range_in(0x1000, 0x1000, 0x1ff0, 16), Ok(0xff0));
/// assert_eq!(range_in(0x1000, 0x1000, 0x1ff1, 16), Err(Refusal::Bounds));
/// assert_eq!(range_in(0x1000, 0x1000, 0xffff_ffff_ffff_fff0, 16), Err(Refusal::Wrap));
/// ```
#[inline]
pub const fn range_in(base: u64, size: u64, offset: u64, len: u64) -> Result<u64, Refusal> {
    // DDP-058, FC-063
    if offset.checked_add(len).is_none() {
        return Err(Refusal::Wrap);
    }
    // DDP-057, SEC-03
    let Some(start) = offset.checked_sub(base) else { return Err(Refusal::Bounds) };
    match size.checked_sub(start) {
        Some(room) if len <= room => Ok(start),
        _ => Err(Refusal::Bounds),
    }
}

impl TaggedSegment<'_> {
    /// Places the payload, with all checks, unless there is none.
    #[inline]
    pub fn place(&self, memory: &mut impl Placement) -> Result<(), TaggedError> {
        // DDP-030: neither STag nor offset of an empty segment is looked at.
        if self.payload.is_empty() {
            return Ok(());
        }
        // DDP-017, DDP-055, DDP-063
        memory.place_tagged(self.stag, self.offset, self.payload).map_err(TaggedError::from)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Accepts everything and notes what it was asked to do.
    #[derive(Default)]
    struct Recorder {
        calls: Vec<(Stag, u64, Vec<u8>)>,
        answer: Option<Refusal>,
    }

    impl Placement for Recorder {
        type Buffer = ();

        fn place_tagged(&mut self, stag: Stag, offset: u64, payload: &[u8]) -> Result<(), Refusal> {
            self.calls.push((stag, offset, payload.to_vec()));
            self.answer.map_or(Ok(()), Err)
        }

        fn place_local(&mut self, (): &(), _: u64, _: &[u8]) -> Result<(), LocalFault> {
            Err(LocalFault::Protection)
        }
    }

    fn segment(payload: &[u8]) -> TaggedSegment<'_> {
        TaggedSegment {
            last: true,
            rsvd_ulp: 0x40,
            stag: Stag::from_raw(0),
            offset: u64::MAX,
            payload,
            header: &[],
            ulpdu_len: 17,
        }
    }

    #[test]
    fn empty_segment_is_not_checked() {
        // DDP-030
        let mut memory = Recorder { answer: Some(Refusal::InvalidStag), ..Recorder::default() };
        assert_eq!(segment(b"").place(&mut memory), Ok(()));
        assert!(memory.calls.is_empty());
    }

    #[test]
    fn payload_goes_to_the_memory_once() {
        // DDP-026, DDP-055
        let mut memory = Recorder::default();
        assert_eq!(segment(b"abc").place(&mut memory), Ok(()));
        assert_eq!(memory.calls, [(Stag::from_raw(0), u64::MAX, b"abc".to_vec())]);
    }

    #[test]
    fn every_refusal_has_a_fault() {
        let table = [
            (Refusal::InvalidStag, TaggedError::InvalidStag), // DDP-017, DDP-055
            (Refusal::NotAssociated, TaggedError::NotAssociated), // DDP-063
            (Refusal::Rights, TaggedError::InvalidStag),      // DDP-056
            (Refusal::Wrap, TaggedError::Wrap),               // DDP-058
            (Refusal::Bounds, TaggedError::Bounds),           // DDP-057
        ];
        for (refusal, fault) in table {
            let mut memory = Recorder { answer: Some(refusal), ..Recorder::default() };
            assert_eq!(segment(b"abc").place(&mut memory), Err(fault));
        }
    }

    #[test]
    fn range_to_the_octet() {
        // DDP-057, SEC-03
        assert_eq!(range_in(0x1000, 0x1000, 0x1000, 0x1000), Ok(0));
        assert_eq!(range_in(0x1000, 0x1000, 0x0fff, 4), Err(Refusal::Bounds));
        assert_eq!(range_in(0x1000, 0x1000, 0x1ffc, 4), Ok(0xffc));
        assert_eq!(range_in(0x1000, 0x1000, 0x1ffd, 4), Err(Refusal::Bounds));
        assert_eq!(range_in(0x1000, 0x1000, 0x2000, 1), Err(Refusal::Bounds));
        assert_eq!(range_in(0, 0, 0, 1), Err(Refusal::Bounds));
    }

    #[test]
    fn wrap_is_seen_before_bounds() {
        // DDP-058, FC-063
        assert_eq!(range_in(0x1000, 0x1000, u64::MAX - 7, 16), Err(Refusal::Wrap));
        assert_eq!(range_in(0x1000, 0x1000, u64::MAX - 15, 16), Err(Refusal::Wrap));
        assert_eq!(range_in(0x1000, 0x1000, u64::MAX - 16, 16), Err(Refusal::Bounds));
        // Memory up there is usable, save its very last octet.
        assert_eq!(range_in(u64::MAX - 31, 32, u64::MAX - 16, 16), Ok(15));
    }
}
