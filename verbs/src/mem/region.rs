//! [`Region`]: registered octets, who may touch them, and the end of that.

use std::any::Any;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use iwarp_ddp::{Refusal, Stag, range_in};
use iwarp_rdmap::{AtomicOperation, AtomicRefusal};
use parking_lot::Mutex;

use super::buffer::Pages;
use super::guard::UseGuard;
use super::tenants::Tenants;
use super::use_count::UseCount;
use super::view::{Part, View};
use super::{Access, KeyTable, MemoryError, Origin};

/// Identity of what a key can be associated with: a protection domain, or the one queue pair that a
/// window of type 2 is bound to. Never used twice in a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct PdId(u64);

impl PdId {
    pub(crate) fn new() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        Self(NEXT.fetch_add(1, Ordering::Relaxed))
    }
}

/// The protection domain that a region is registered in.
#[derive(Clone)]
pub(crate) struct Domain {
    pub(crate) id: PdId,
    /// Kept until the region is deregistered or dropped: the protection domain itself.
    pub(crate) parent: Arc<dyn Any + Send + Sync>,
}

impl std::fmt::Debug for Domain {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.id.fmt(f)
    }
}

/// A connected queue pair as the memory sees it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Peer {
    pub(crate) domain: PdId,
    /// The queue pair itself.
    pub(crate) stream: PdId,
    /// What the queue pair itself lets its peer do.
    pub(crate) rights: Access,
    /// Whether the peer may take keys of the domain out of use (decision D7).
    pub(crate) invalidates: bool,
}

/// Octets under a key. Shared by the handles of the program, posted work requests, and whoever just
/// looked up the key; the key table only knows it weakly.
///
/// It is made once for each registration, and for each binding of a window: all that checks look at
/// stays as it is, and only the end of the key changes anything.
pub(crate) struct Region {
    pub(super) at: NonNull<u8>,
    /// Octets that lie in one piece at `at`: all, or none if they lie in several.
    pub(super) span: usize,
    pub(super) len: usize,
    /// Tagged offset of the first octet.
    pub(super) base: u64,
    pub(super) access: Access,
    /// Who may use the key: the queue pairs of this domain, or this one queue pair.
    pub(super) domain: PdId,
    pub(super) stag: Stag,
    /// Where it was made. In a forked child nobody comes by its key, no lock of it is taken, and who was
    /// inside of it is not there (FC-064).
    pub(super) made: Origin,
    /// The program may write although nobody else may.
    pub(super) program_writes: bool,
    /// Its memory is that of other regions: it is a window or fast-registered.
    pub(super) view: Option<Box<View>>,
    /// What lies over it.
    pub(super) tenants: Tenants,
    /// Users that came by the key: peers and work requests. Closed by invalidation.
    pub(super) by_key: UseCount,
    /// The program's own reads and writes. Closed by deregistration. A program that polls a flag
    /// counts up and down all the time, so its word must not share a cache line with the other.
    pub(super) by_program: Apart<UseCount>,
    pub(super) holdings: Mutex<Holdings>,
}

#[repr(align(128))]
pub(super) struct Apart<T>(pub(super) T);

/// What a region keeps alive until it is deregistered.
pub(super) struct Holdings {
    pub(super) owner: Owner,
    pub(super) parent: Option<Arc<dyn Any + Send + Sync>>,
}

/// To whom the octets belong.
pub(super) enum Owner {
    /// Us.
    Pages(#[expect(dead_code, reason = "freed when it is dropped")] Pages),
    /// The program, through a value that it gave us.
    Given(Box<dyn Any + Send>),
    /// The program, which promised to keep them in place.
    Promised,
    /// Given back or freed.
    Nobody,
}

/// Everything but the key.
pub(super) struct Registration {
    pub(super) domain: Domain,
    pub(super) at: NonNull<u8>,
    pub(super) len: usize,
    pub(super) base: u64,
    pub(super) access: Access,
    pub(super) owner: Owner,
}

impl Registration {
    fn check(&self) -> Result<(), MemoryError> {
        self.access.check()?;
        let size = self.len as u64;
        // The end must be an address, and so must its tagged offset (decision D11, FC-060).
        for start in [self.base, self.at.addr().get() as u64] {
            if start.checked_add(size).is_none() {
                return Err(MemoryError::AddressWraps { at: start, len: size });
            }
        }
        Ok(())
    }
}

// SAFETY: the pointer is only used by `UseGuard`, which goes through `copy.rs`; what it points to is
// owned by `holdings` or promised by the program for any thread, and every owner is `Send`.
unsafe impl Send for Region {}
// SAFETY: as above; `copy.rs` is made for concurrent use.
unsafe impl Sync for Region {}

impl Region {
    /// Registers octets under a new key.
    ///
    /// # Safety
    ///
    /// `at` must be valid for reading `len` octets, and for writing them if `access` has `LOCAL_WRITE` or
    /// the owner is not [`Owner::Promised`], from any thread, until the owner is dropped or taken
    /// out, or for a promised one until the region is deregistered or dropped; and nobody may have a
    /// Rust reference to them meanwhile, except under the rules of [`super::MemoryRegion::as_slice`].
    pub(super) unsafe fn register(of: Registration) -> Result<Arc<Self>, (MemoryError, Owner)> {
        let stag = match of.check().and_then(|()| KeyTable::of_process().reserve()) {
            Ok(stag) => stag,
            Err(cause) => return Err((cause, of.owner)),
        };
        let Registration { domain, at, len, base, access, owner } = of;
        let program_writes =
            access.contains(Access::LOCAL_WRITE) || !matches!(owner, Owner::Promised);
        let region = Arc::new(Self {
            at,
            span: len,
            len,
            base: if access.contains(Access::ZERO_BASED) { 0 } else { base },
            access,
            domain: domain.id,
            stag,
            made: Origin::here(),
            program_writes,
            view: None,
            tenants: Tenants::new(),
            by_key: UseCount::new(),
            by_program: Apart(UseCount::new()),
            holdings: Mutex::new(Holdings { owner, parent: Some(domain.parent) }),
        });
        KeyTable::of_process().publish(&region);
        Ok(region)
    }

    pub(crate) fn stag(&self) -> Stag {
        self.stag
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Tagged offset, and address in a raw work request, of the first octet.
    pub(crate) fn base(&self) -> u64 {
        self.base
    }

    pub(crate) fn access(&self) -> Access {
        self.access
    }

    pub(crate) fn domain(&self) -> PdId {
        self.domain
    }

    /// Where a part of it lies, for a view of it.
    pub(super) fn part(&self, offset: usize, len: usize) -> Option<Part> {
        let fits = self.len.checked_sub(offset).is_some_and(|room| len <= room);
        let at = NonNull::new(self.at.as_ptr().wrapping_add(offset))?;
        fits.then_some(Part { at, len })
    }

    pub(super) fn as_ptr(&self) -> *mut u8 {
        self.at.as_ptr()
    }

    /// Whether the key still opens the region.
    pub(crate) fn is_valid(&self) -> bool {
        !self.by_key.is_closed()
    }

    /// Fails in a process that was forked from the one that it was made in.
    pub(super) fn check_origin(&self) -> Result<(), MemoryError> {
        if self.made.is_here() { Ok(()) } else { Err(MemoryError::Forked) }
    }

    pub(crate) fn is_deregistered(&self) -> bool {
        self.by_program.0.is_closed()
    }

    /// Decides whether a peer may do `need` with `len` octets at tagged offset `to`, and where they are.
    ///
    /// Looks, but holds nothing: take a [`use_guard`](Self::use_guard) first if the answer must still
    /// be true when the octets move. An access of no octets is allowed whatever it names; whoever
    /// looks up the key must let it pass before.
    pub(crate) fn check_remote(
        &self,
        peer: Peer,
        stag: Stag,
        need: Access,
        to: u64,
        len: u64,
    ) -> Result<usize, Refusal> {
        // DDP-030
        if len == 0 {
            return Ok(0);
        }
        // All 32 bits count, and a stale cache must not revive a key.
        if self.stag != stag || !self.is_valid() {
            return Err(Refusal::InvalidStag);
        }
        // SEC-01, SEC-02, DDP-063
        if self.domain != peer.domain && self.domain != peer.stream {
            return Err(Refusal::NotAssociated);
        }
        // SEC-05, SEC-13
        if !(self.access & peer.rights).contains(need) {
            return Err(Refusal::Rights);
        }
        // SEC-03, FC-058, FC-063
        let offset = range_in(self.base, self.len as u64, to, len)?;
        usize::try_from(offset).map_err(|_| Refusal::Bounds)
    }

    /// Decides whether a work request of a queue pair in `domain` may use `len` octets at address
    /// `at`, and where they are. `need` is empty for a source, `LOCAL_WRITE` for a receive or a Read sink.
    pub(crate) fn check_local(
        &self,
        domain: PdId,
        need: Access,
        at: u64,
        len: u64,
    ) -> Result<usize, MemoryError> {
        if len == 0 {
            return Ok(0);
        }
        self.check_valid()?;
        if self.view.as_ref().is_some_and(|view| view.is_window()) {
            return Err(MemoryError::WindowKey { key: self.stag.raw() });
        }
        if self.domain != domain {
            return Err(MemoryError::ForeignDomain);
        }
        if !self.access.contains(need) {
            return Err(MemoryError::Rights { need, have: self.access });
        }
        let outside = MemoryError::OutOfBounds { offset: at, len, size: self.len as u64 };
        let offset = range_in(self.base, self.len as u64, at, len).map_err(|_| outside)?;
        usize::try_from(offset).map_err(|_| outside)
    }

    /// Decides whether a peer may invalidate the key. Nothing is changed (FC-062).
    ///
    /// A key that is invalid already passes.
    pub(crate) fn check_invalidate(&self, peer: Peer, stag: Stag) -> Result<(), Refusal> {
        self.check_revocation(peer, stag)?;
        // SEC-06: every queue pair of the domain may use the key, so a queue pair can be told that its
        // peer has no business in ending that for the others.
        if !peer.invalidates {
            return Err(Refusal::NotAssociated);
        }
        if !self.access.intersects(Access::REMOTE) || !peer.rights.intersects(Access::REMOTE) {
            return Err(Refusal::Rights);
        }
        Ok(())
    }

    /// Decides whether a queue pair may take the key out of force, whoever of its two sides asks.
    pub(super) fn check_revocation(&self, peer: Peer, stag: Stag) -> Result<(), Refusal> {
        if self.stag != stag || self.is_deregistered() {
            return Err(Refusal::InvalidStag);
        }
        // SEC-02
        let ours = match &self.view {
            Some(view) => view.may_be_revoked(self, peer),
            None => self.domain == peer.domain,
        };
        if !ours || self.tenants.windows() > 0 {
            return Err(Refusal::NotAssociated);
        }
        Ok(())
    }

    /// Places a peer's octets: all checks, then the copy, or nothing at all.
    pub(crate) fn place(
        &self,
        peer: Peer,
        stag: Stag,
        to: u64,
        payload: &[u8],
    ) -> Result<(), Refusal> {
        if payload.is_empty() {
            return Ok(());
        }
        let guard = self.use_guard().ok_or(Refusal::InvalidStag)?;
        let need = Access::REMOTE_WRITE;
        let offset = self.check_remote(peer, stag, need, to, payload.len() as u64)?;
        guard.copy_in(offset, payload).map_err(|_| Refusal::Bounds)
    }

    /// Reads octets for a peer: all checks, then the copy, or nothing at all.
    pub(crate) fn fetch(
        &self,
        peer: Peer,
        stag: Stag,
        to: u64,
        into: &mut [u8],
    ) -> Result<(), Refusal> {
        if into.is_empty() {
            return Ok(());
        }
        let guard = self.use_guard().ok_or(Refusal::InvalidStag)?;
        let need = Access::REMOTE_READ;
        let offset = self.check_remote(peer, stag, need, to, into.len() as u64)?;
        guard.copy_out(offset, into).map_err(|_| Refusal::Bounds)
    }

    /// Decides whether a peer may run an Atomic at tagged offset `to` (EXT-20). Looks, but holds nothing.
    pub(crate) fn check_atomic(
        &self,
        peer: Peer,
        stag: Stag,
        to: u64,
    ) -> Result<(), AtomicRefusal> {
        let guard = self.use_guard().ok_or(Refusal::InvalidStag)?;
        self.place_of_atomic(&guard, peer, stag, to).map(drop)
    }

    /// Runs an Atomic for a peer: all checks, then the operation, or nothing at all. Tells what was there.
    pub(crate) fn atomic(
        &self,
        peer: Peer,
        stag: Stag,
        to: u64,
        operation: AtomicOperation,
    ) -> Result<u64, AtomicRefusal> {
        let guard = self.use_guard().ok_or(Refusal::InvalidStag)?;
        let offset = self.place_of_atomic(&guard, peer, stag, to)?;
        guard.update_u64(offset, operation).map_err(|_| Refusal::Rights.into())
    }

    fn place_of_atomic(
        &self,
        guard: &UseGuard<'_>,
        peer: Peer,
        stag: Stag,
        to: u64,
    ) -> Result<usize, AtomicRefusal> {
        let offset = self.check_remote(peer, stag, Access::REMOTE_ATOMIC, to, 8)?;
        // EXT-08: the memory counts, not the tagged offset. What lies in two pieces is no word either.
        guard.aligned(offset).map_err(|_| AtomicRefusal::Misaligned)?;
        Ok(offset)
    }

    /// Copies into the memory of a work request: a receive buffer or a Read sink.
    pub(crate) fn copy_in(&self, offset: usize, from: &[u8]) -> Result<(), MemoryError> {
        let guard = self.use_guard().ok_or_else(|| self.why_invalid())?;
        let need = Access::LOCAL_WRITE;
        if !self.access.contains(need) {
            return Err(MemoryError::Rights { need, have: self.access });
        }
        guard.copy_in(offset, from)
    }

    /// Copies out of the memory of a work request: a Send or Write source.
    pub(crate) fn copy_out(&self, offset: usize, into: &mut [u8]) -> Result<(), MemoryError> {
        self.use_guard().ok_or_else(|| self.why_invalid())?.copy_out(offset, into)
    }

    pub(super) fn program_may_write(&self) -> Result<(), MemoryError> {
        if self.program_writes {
            return Ok(());
        }
        Err(MemoryError::Rights { need: Access::LOCAL_WRITE, have: self.access })
    }

    /// Takes the key out of force. When it returns no octet moves through it any more.
    ///
    /// The memory stays registered: the program can still read it, and the key still names it in a
    /// second invalidation. Waits for present users, each of which is busy with one copy.
    ///
    /// # Errors
    /// [`MemoryError::InUse`] while windows are bound to it.
    pub(crate) fn invalidate(&self) -> Result<(), MemoryError> {
        // SEC-04, FC-061
        self.tenants.without_windows(|| _ = self.by_key.close())?;
        self.by_key.wait_idle();
        if let Some(view) = &self.view {
            view.leave();
        }
        Ok(())
    }

    /// Ends the registration. When it returns nobody touches the octets any more.
    ///
    /// Memory of our own is freed here, although posted work requests may still hold the region.
    /// `false` if somebody else did it first; the wait is the same.
    ///
    /// # Errors
    /// [`MemoryError::InUse`] while windows are bound to it, or fast registrations map it;
    /// [`MemoryError::Forked`].
    pub(crate) fn deregister(&self) -> Result<bool, MemoryError> {
        self.check_origin()?;
        self.tenants.shut()?;
        Ok(self.end())
    }

    /// Deregisters, and gives whom the octets belong to, for another registration of them.
    ///
    /// # Errors
    /// As for [`deregister`](Self::deregister), with [`MemoryError::OwnedBuffer`] for octets that are to be given
    /// back; nothing has changed then. [`MemoryError::Deregistered`] if somebody else was faster.
    pub(super) fn surrender(&self) -> Result<Owner, MemoryError> {
        self.check_origin()?;
        let promised = match self.holdings.lock().owner {
            Owner::Given(_) => return Err(MemoryError::OwnedBuffer),
            Owner::Promised => true,
            Owner::Pages(_) | Owner::Nobody => false,
        };
        self.tenants.shut()?;
        let (first, owner) = self.end_with_owner();
        match owner {
            _ if !first => Err(MemoryError::Deregistered),
            Owner::Nobody if promised => Ok(Owner::Promised),
            owner => Ok(owner),
        }
    }

    /// Whether the octets are the program's, which promised to keep them in place.
    pub(super) fn is_promised(&self) -> bool {
        matches!(self.holdings.lock().owner, Owner::Promised)
    }

    /// Its protection domain, until it is deregistered.
    pub(super) fn parent(&self) -> Option<Domain> {
        let parent = self.holdings.lock().parent.clone()?;
        Some(Domain { id: self.domain, parent })
    }

    pub(super) fn end(&self) -> bool {
        let (first, owner) = self.end_with_owner();
        drop(owner);
        first
    }

    fn end_with_owner(&self) -> (bool, Owner) {
        let first = self.by_program.0.close();
        self.by_key.close();
        if first {
            KeyTable::of_process().remove(self.stag);
        }
        // SEC-04, FC-061
        if self.made.is_here() {
            self.by_key.wait_idle();
        }
        self.by_program.0.wait_idle();
        if let Some(view) = &self.view {
            view.leave();
        }
        let mut holdings = self.holdings.lock();
        let parent = holdings.parent.take();
        let owner = match holdings.owner {
            Owner::Pages(_) => std::mem::replace(&mut holdings.owner, Owner::Nobody),
            // Waits for whoever gave it.
            Owner::Given(_) | Owner::Promised | Owner::Nobody => Owner::Nobody,
        };
        // Unmapping and the end of a protection domain are no business of this lock.
        drop(holdings);
        drop(parent);
        (first, owner)
    }

    /// Deregisters, and gives back the value that the octets belong to. Puts out whatever lies over it.
    pub(super) fn reclaim(&self) -> Option<Box<dyn Any + Send>> {
        let views = if self.made.is_here() { self.tenants.shut_on() } else { Vec::new() };
        for view in views {
            if let Some(view) = view.upgrade() {
                let put_out = view.invalidate();
                debug_assert_eq!(put_out, Ok(()), "nothing lies over a view");
            }
        }
        self.end();
        let mut holdings = self.holdings.lock();
        match std::mem::replace(&mut holdings.owner, Owner::Nobody) {
            Owner::Given(value) => Some(value),
            Owner::Pages(_) | Owner::Promised | Owner::Nobody => None,
        }
    }

    /// Whether there are such octets, and they lie in one piece.
    pub(crate) fn is_in_one_piece(&self, offset: usize, len: usize) -> bool {
        self.span.checked_sub(offset).is_some_and(|room| len <= room)
            || self.range_in_parts(offset, len).is_ok()
    }

    /// Where octets are that may lie in one of several parts.
    #[cold]
    pub(super) fn range_in_parts(&self, offset: usize, len: usize) -> Result<*mut u8, MemoryError> {
        self.view
            .as_ref()
            .and_then(|view| {
                let mut pieces = view.pieces(offset, len)?;
                let (at, first) = pieces.next()?;
                (first == len).then_some(at)
            })
            .ok_or(MemoryError::OutOfBounds {
                offset: offset as u64,
                len: len as u64,
                size: self.len as u64,
            })
    }

    fn check_valid(&self) -> Result<(), MemoryError> {
        if self.is_valid() { Ok(()) } else { Err(self.why_invalid()) }
    }

    pub(super) fn why_invalid(&self) -> MemoryError {
        if self.is_deregistered() { MemoryError::Deregistered } else { MemoryError::Invalidated }
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        // Nobody holds it, so nobody is inside; what it owned is freed with the fields. The index of a
        // view is its holder's.
        if self.view.is_none() && !self.is_deregistered() {
            KeyTable::of_process().remove(self.stag);
        }
    }
}

impl std::fmt::Debug for Region {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Region")
            .field("key", &self.stag)
            .field("base", &format_args!("{:#x}", self.base))
            .field("len", &self.len)
            .field("access", &self.access)
            .field("valid", &self.is_valid())
            .finish_non_exhaustive()
    }
}
