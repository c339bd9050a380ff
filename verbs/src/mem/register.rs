//! How a protection domain registers memory. Here because one of the three ways is unsafe.

use std::ptr::NonNull;

use super::{
    Access, FastRegion, MemoryError, MemoryRegion, MemoryWindow, Owned, RegisterError, StableBytes,
    WindowType,
};
use crate::pd::ProtectionDomain;
use crate::users::User;

impl ProtectionDomain {
    /// Allocates `len` zeroed octets at the start of a page, and registers them.
    ///
    /// Large regions come straight from the system: pages that are never touched cost nothing. A
    /// region of no octets can be named, but every access to it fails (FC-058).
    ///
    /// # Errors
    /// [`MemoryError::NeedsLocalWrite`] if `access` lets a peer write but not this side;
    /// [`MemoryError::TooLarge`], [`MemoryError::OutOfMemory`], [`MemoryError::NoKeyLeft`] and
    /// [`MemoryError::NoRandomness`] if the system or the process has no more to give;
    /// [`MemoryError::DomainDestroyed`] if the domain is.
    pub fn alloc(&self, len: usize, access: Access) -> Result<MemoryRegion, MemoryError> {
        MemoryRegion::alloc(self.0.domain()?, len, access)
    }

    /// Registers a buffer of the program's. [`Owned::deregister`] gives it back.
    ///
    /// # Errors
    /// As for [`alloc`](Self::alloc); the buffer comes back with the error.
    pub fn register<B: StableBytes>(
        &self,
        buffer: B,
        access: Access,
    ) -> Result<Owned<B>, RegisterError<B>> {
        match self.0.domain() {
            Ok(domain) => MemoryRegion::register(domain, buffer, access),
            Err(cause) => Err(RegisterError { cause, buffer }),
        }
    }

    /// Registers `len` octets at `at` that the program keeps in place. Their tagged offsets start at
    /// the address, or at 0 with [`Access::ZERO_BASED`].
    ///
    /// # Errors
    /// As for [`alloc`](Self::alloc); [`MemoryError::AddressWraps`] if the octets do not end before the
    /// address space does. [`MemoryError::NotMapped`] and [`MemoryError::NotAccessible`] if there is no
    /// memory, or a mapped file is too short, or with [`Access::LOCAL_WRITE`] the memory may only be read:
    /// a peer could end the process otherwise (FC-060). Linux alone can be asked that, and only about the
    /// present.
    ///
    /// # Safety
    ///
    /// Until [`MemoryRegion::deregister`] has returned (for the region, and for what it was
    /// [reregistered](MemoryRegion::reregister) as), or the last handle and work request is gone *and* every
    /// queue pair of the domain has been destroyed:
    /// - the octets must be readable, and writable if `access` has [`Access::LOCAL_WRITE`], from any
    ///   thread: an access to a page that is not mapped ends the process;
    /// - the program must treat them as shared with a foreign writer. No `&[u8]` to them may exist while
    ///   a peer or a work request may write them, and no `&mut [u8]` while any may read or write them;
    ///   all its other accesses must be atomic or volatile, or go through the region.
    pub unsafe fn register_raw(
        &self,
        at: NonNull<u8>,
        len: usize,
        access: Access,
    ) -> Result<MemoryRegion, MemoryError> {
        let base = at.addr().get() as u64;
        let domain = self.0.domain()?;
        // SAFETY: the caller promises it.
        unsafe { MemoryRegion::register_raw(domain, at, len, base, access) }
    }

    /// As [`register_raw`](Self::register_raw), with tagged offsets that start at `iova`, whatever the
    /// address: peers, and raw work requests, name the octets by these.
    ///
    /// # Errors
    /// As for [`register_raw`](Self::register_raw); `iova + len` must not pass 2^64 - 1 either.
    ///
    /// # Safety
    ///
    /// As for [`register_raw`](Self::register_raw).
    pub unsafe fn register_raw_at(
        &self,
        at: NonNull<u8>,
        len: usize,
        iova: u64,
        access: Access,
    ) -> Result<MemoryRegion, MemoryError> {
        let domain = self.0.domain()?;
        // SAFETY: the caller promises it.
        unsafe { MemoryRegion::register_raw(domain, at, len, iova, access) }
    }

    /// Makes a memory window. It is not bound.
    ///
    /// # Errors
    /// [`MemoryError::NoKeyLeft`], [`MemoryError::NoRandomness`] and [`MemoryError::DomainDestroyed`].
    pub fn alloc_window(&self, window_type: WindowType) -> Result<MemoryWindow, MemoryError> {
        MemoryWindow::new(self.0.domain_for(User::MemoryWindow)?, window_type)
    }

    /// Makes a fast-registered region without memory, for at most `max_len` octets in at most `max_ranges`
    /// ranges. Only with `remote` may peers ever be given rights to it.
    ///
    /// # Errors
    /// [`MemoryError::NoKeyLeft`], [`MemoryError::NoRandomness`] and [`MemoryError::DomainDestroyed`].
    pub fn alloc_fast_region(
        &self,
        max_len: usize,
        max_ranges: usize,
        remote: bool,
    ) -> Result<FastRegion, MemoryError> {
        FastRegion::new(self.0.domain()?, max_len, max_ranges, remote)
    }
}
