//! [`UseGuard`]: one access to the octets of a region, which revocation waits for.

use iwarp_rdmap::AtomicOperation;

use super::use_count::UseCount;
use super::{MemoryError, Region, atomic, copy};

impl Region {
    /// Begins a use by key: one copy or one system call, and never a wait. `None` once invalid.
    #[inline]
    pub(crate) fn use_guard(&self) -> Option<UseGuard<'_>> {
        self.by_key.enter().then(|| UseGuard { region: self, count: &self.by_key })
    }

    /// Begins a use by the program itself, for which the key does not matter.
    #[inline]
    pub(super) fn program_guard(&self) -> Result<UseGuard<'_>, MemoryError> {
        let count = &self.by_program.0;
        if count.enter() {
            Ok(UseGuard { region: self, count })
        } else {
            Err(MemoryError::Deregistered)
        }
    }
}

/// One use of a region in progress. Revocation waits for its drop.
#[derive(Debug)]
pub(crate) struct UseGuard<'a> {
    region: &'a Region,
    count: &'a UseCount,
}

impl UseGuard<'_> {
    /// Copies private octets in, the final word last and with Release.
    ///
    /// Bounds are checked; rights are the caller's affair, except that memory which the program did
    /// not promise to be writable is not written.
    #[inline]
    pub(crate) fn copy_in(&self, offset: usize, from: &[u8]) -> Result<(), MemoryError> {
        self.region.program_may_write()?;
        let to = match self.range(offset, from.len()) {
            Ok(to) => to,
            Err(error) => return self.copy_in_parts(offset, from, error),
        };
        // SAFETY: the range lies in the region, whose memory stays while the guard is held, and is
        // writable; `from` is a slice, to which no region's memory ever belongs.
        unsafe { copy::copy_in(to, from.as_ptr(), from.len()) };
        Ok(())
    }

    /// As above, where the octets do not lie in one piece: `error` unless they lie in several.
    #[cold]
    fn copy_in_parts(
        &self,
        offset: usize,
        from: &[u8],
        error: MemoryError,
    ) -> Result<(), MemoryError> {
        let view = self.region.view.as_ref().ok_or(error)?;
        let mut rest = from;
        for (to, len) in view.pieces(offset, from.len()).ok_or(error)? {
            let (piece, behind) = rest.split_at_checked(len).ok_or(error)?;
            // SAFETY: the piece lies in the memory that the view holds on to while the guard is held, and
            // which is writable; `from` is a slice, to which no region's memory ever belongs.
            unsafe { copy::copy_in(to, piece.as_ptr(), len) };
            rest = behind;
        }
        Ok(())
    }

    /// Copies octets out to a private place.
    #[inline]
    pub(crate) fn copy_out(&self, offset: usize, into: &mut [u8]) -> Result<(), MemoryError> {
        let from = match self.range(offset, into.len()) {
            Ok(from) => from,
            Err(error) => return self.copy_out_parts(offset, into, error),
        };
        // SAFETY: the range lies in the region, whose memory stays while the guard is held; `into` is
        // exclusive.
        unsafe { copy::copy_out(into.as_mut_ptr(), from, into.len()) };
        Ok(())
    }

    /// As above, where the octets do not lie in one piece.
    #[cold]
    fn copy_out_parts(
        &self,
        offset: usize,
        into: &mut [u8],
        error: MemoryError,
    ) -> Result<(), MemoryError> {
        let view = self.region.view.as_ref().ok_or(error)?;
        let mut rest = &mut into[..];
        for (from, len) in view.pieces(offset, rest.len()).ok_or(error)? {
            let (piece, behind) = rest.split_at_mut_checked(len).ok_or(error)?;
            // SAFETY: the piece lies in the memory that the view holds on to while the guard is held;
            // `into` is exclusive.
            unsafe { copy::copy_out(piece.as_mut_ptr(), from, len) };
            rest = behind;
        }
        Ok(())
    }

    pub(super) fn fill(&self, offset: usize, value: u8, len: usize) -> Result<(), MemoryError> {
        self.region.program_may_write()?;
        let to = self.range(offset, len)?;
        // SAFETY: the range lies in the region, whose memory stays while the guard is held.
        unsafe { copy::fill(to, value, len) };
        Ok(())
    }

    #[inline]
    pub(super) fn load_u64(&self, offset: usize) -> Result<u64, MemoryError> {
        let at = self.aligned(offset)?;
        // SAFETY: eight aligned octets of the region, whose memory stays while the guard is held.
        Ok(unsafe { copy::load_u64(at) })
    }

    #[inline]
    pub(super) fn store_u64(&self, offset: usize, value: u64) -> Result<(), MemoryError> {
        self.region.program_may_write()?;
        let at = self.aligned(offset)?;
        // SAFETY: as above, and writable.
        unsafe { copy::store_u64(at, value) };
        Ok(())
    }

    /// Carries out an operation on eight octets at once, and tells what they were.
    pub(super) fn update_u64(
        &self,
        offset: usize,
        operation: AtomicOperation,
    ) -> Result<u64, MemoryError> {
        self.region.program_may_write()?;
        let at = self.aligned(offset)?;
        // SAFETY: eight aligned octets of the region, whose memory stays while the guard is held, and is
        // writable.
        Ok(unsafe { atomic::update(at, operation) })
    }

    pub(super) fn aligned(&self, offset: usize) -> Result<*mut u8, MemoryError> {
        let at = self.range(offset, 8)?;
        if at.addr().is_multiple_of(8) { Ok(at) } else { Err(MemoryError::Misaligned { offset }) }
    }

    /// Whether octets are there, but not in one piece.
    #[cold]
    pub(super) fn is_in_parts(&self, offset: usize, len: usize) -> bool {
        self.region.view.as_ref().is_some_and(|view| view.pieces(offset, len).is_some())
    }

    /// Where `len` octets at `offset` are. Valid while the guard lives. Fails also for those that do not
    /// lie in one piece.
    #[inline]
    pub(super) fn range(&self, offset: usize, len: usize) -> Result<*mut u8, MemoryError> {
        match self.region.span.checked_sub(offset) {
            Some(room) if len <= room => Ok(self.region.at.as_ptr().wrapping_add(offset)),
            _ => self.region.range_in_parts(offset, len),
        }
    }
}

impl Drop for UseGuard<'_> {
    #[inline]
    fn drop(&mut self) {
        self.count.leave();
    }
}
