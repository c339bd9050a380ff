//! What programs hold: [`MemoryRegion`], [`Owned`], [`MrSlice`] and [`RemoteMemory`].

use std::any::Any;
use std::fmt;
use std::marker::PhantomData;
use std::ops::{Bound, RangeBounds};
use std::ptr::NonNull;
use std::sync::Arc;

use iwarp_rdmap::AtomicOperation;

use super::buffer::{Pages, StableBytes};
use super::region::{Owner, Registration};
use super::{Access, Domain, MemoryError, Region, mapped};

/// Registered memory: octets that the program, this library and peers may touch at once.
///
/// A handle, cheap to clone. Work requests hold one, so memory in use is not freed by dropping the
/// others. The region ends with [`deregister`](Self::deregister), or when its last handle is dropped.
/// Nothing here blocks except `deregister`, which waits for copies in progress.
///
/// Since a peer may write at any moment, there is no safe way to borrow the octets as a slice: they
/// are copied in and out. Each access is safe at any time; a copy of octets that change meanwhile is
/// some mixture of old and new.
///
/// # Polling
///
/// The last octet of a message becomes visible last. A program that waits for a peer's Write may poll
/// an aligned word that ends the message with [`load_u64`](Self::load_u64): the word is seen whole,
/// old or new, and once it is new all of the message is there.
#[derive(Clone)]
pub struct MemoryRegion(Arc<Region>);

impl MemoryRegion {
    /// Allocates `len` zeroed octets at the start of a page, and registers them.
    pub(crate) fn alloc(domain: Domain, len: usize, access: Access) -> Result<Self, MemoryError> {
        access.check()?;
        let pages = Pages::new(len)?;
        let at = pages.at();
        let base = at.addr().get() as u64;
        let owner = Owner::Pages(pages);
        // SAFETY: the pages are valid until they are dropped, and nobody else knows them.
        let region =
            unsafe { Region::register(Registration { domain, at, len, base, access, owner }) };
        region.map(Self).map_err(|(cause, _)| cause)
    }

    /// Registers a buffer of the program's, which comes back when it is deregistered.
    pub(crate) fn register<B: StableBytes>(
        domain: Domain,
        buffer: B,
        access: Access,
    ) -> Result<Owned<B>, RegisterError<B>> {
        // Boxed before the pointer is taken: from here on the value itself stays where it is.
        let mut buffer = Box::new(buffer);
        let len = buffer.size();
        let at = NonNull::new(buffer.as_mut_ptr()).unwrap_or(NonNull::dangling());
        let base = at.addr().get() as u64;
        let owner = Owner::Given(buffer);
        // SAFETY: `StableBytes` promises valid and unaliased octets until the owner is used or
        // dropped; the region does neither before it is out of use.
        let region =
            unsafe { Region::register(Registration { domain, at, len, base, access, owner }) };
        match region {
            Ok(region) => Ok(Owned { region: Self(region), buffer: PhantomData }),
            Err((cause, Owner::Given(buffer))) => {
                Err(RegisterError { cause, buffer: unbox(buffer) })
            }
            Err(_) => unreachable!("a refused registration gives back the owner it was given"),
        }
    }

    /// Registers `len` octets at `at` that the program keeps in place; their tagged offsets start at
    /// `base` (normally the address; 0 with [`Access::ZERO_BASED`]).
    ///
    /// # Safety
    ///
    /// Until [`deregister`](Self::deregister) has returned, or the last handle and work request is gone
    /// *and* every queue pair of the domain has been destroyed:
    /// - the octets are readable, and writable if `access` has [`Access::LOCAL_WRITE`], from any
    ///   thread;
    /// - the program treats them as shared with a foreign writer: no `&[u8]` to them exists while a
    ///   peer or a work request may write them, no `&mut [u8]` while any may read or write them, and
    ///   other accesses are atomic or volatile.
    ///
    /// Memory that is not there at the time is refused, where the system can be asked (FC-060).
    pub(crate) unsafe fn register_raw(
        domain: Domain,
        at: NonNull<u8>,
        len: usize,
        base: u64,
        access: Access,
    ) -> Result<Self, MemoryError> {
        access.check()?;
        mapped::check(at, len, access)?;
        let owner = Owner::Promised;
        // SAFETY: the caller promises it.
        let region =
            unsafe { Region::register(Registration { domain, at, len, base, access, owner }) };
        region.map(Self).map_err(|(cause, _)| cause)
    }

    /// Tagged offset of the first octet, as a peer and a raw work request name it: the virtual
    /// address, unless the region was registered with another.
    #[must_use]
    pub fn addr(&self) -> u64 {
        self.0.base()
    }

    /// Octets.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there is no octet. Such a region can be named but never accessed.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The key for raw work requests of this process.
    #[must_use]
    pub fn lkey(&self) -> u32 {
        self.0.stag().raw()
    }

    /// The key that a peer needs (RFC 5040's `STag`). The same number as [`lkey`](Self::lkey).
    #[must_use]
    pub fn rkey(&self) -> u32 {
        self.0.stag().raw()
    }

    /// The rights it was registered with.
    #[must_use]
    pub fn access(&self) -> Access {
        self.0.access()
    }

    /// Whether the key is in force: neither deregistered nor invalidated by a peer or a work request.
    ///
    /// An invalidated region can still be read and written by the program, but no work request can use
    /// it.
    #[must_use]
    pub fn is_valid(&self) -> bool {
        self.0.is_valid()
    }

    /// What a peer must be told to access all of it.
    #[must_use]
    pub fn remote(&self) -> RemoteMemory {
        RemoteMemory { addr: self.addr(), len: self.len() as u64, rkey: self.rkey() }
    }

    /// A part of the region, for a work request.
    pub fn slice(&self, range: impl RangeBounds<usize>) -> Result<MrSlice, MemoryError> {
        let (offset, len) = resolve(range, self.len())?;
        Ok(MrSlice { region: self.clone(), offset, len })
    }

    /// All of the region, for a work request.
    #[must_use]
    pub fn as_slice_all(&self) -> MrSlice {
        MrSlice { region: self.clone(), offset: 0, len: self.len() }
    }

    /// Copies `into.len()` octets from `offset` on out of the region.
    pub fn read_at(&self, offset: usize, into: &mut [u8]) -> Result<(), MemoryError> {
        self.0.program_guard()?.copy_out(offset, into)
    }

    /// Copies octets into the region, the last word last (see [Polling](Self#polling)).
    ///
    /// The program may always write memory that it allocated here or gave away; raw memory only if it
    /// was registered with [`Access::LOCAL_WRITE`].
    pub fn write_at(&self, offset: usize, from: &[u8]) -> Result<(), MemoryError> {
        self.0.program_guard()?.copy_in(offset, from)
    }

    /// Sets the octets in `range` to `value`.
    pub fn fill(&self, range: impl RangeBounds<usize>, value: u8) -> Result<(), MemoryError> {
        let (offset, len) = resolve(range, self.len())?;
        self.0.program_guard()?.fill(offset, value, len)
    }

    /// Reads the eight octets at `offset`, in host order, at once and with Acquire: whatever was placed
    /// before them is visible afterwards. Their address must be a multiple of 8.
    pub fn load_u64(&self, offset: usize) -> Result<u64, MemoryError> {
        self.0.program_guard()?.load_u64(offset)
    }

    /// Writes the eight octets at `offset`, in host order, at once and with Release. Their address must
    /// be a multiple of 8.
    pub fn store_u64(&self, offset: usize, value: u64) -> Result<(), MemoryError> {
        self.0.program_guard()?.store_u64(offset, value)
    }

    /// Adds to the eight octets at `offset`, a number in host order, and returns what they were. Their
    /// address must be a multiple of 8.
    ///
    /// Atomic with respect to this method and the next, to the program's own `AtomicU64` at that place, and to
    /// all Atomics of peers, whatever queue pair they come by; sequentially consistent.
    ///
    /// # Errors
    /// [`MemoryError`] if the octets are not there, not aligned or not writable, or the region was
    /// deregistered.
    pub fn fetch_add_u64(&self, offset: usize, add: u64) -> Result<u64, MemoryError> {
        self.0.program_guard()?.update_u64(offset, AtomicOperation::fetch_add(add))
    }

    /// Replaces the eight octets at `offset`, a number in host order, by `swap` if they are `compare`, and
    /// returns what they were. Atomic as [`fetch_add_u64`](Self::fetch_add_u64).
    ///
    /// # Errors
    /// As [`fetch_add_u64`](Self::fetch_add_u64).
    pub fn compare_swap_u64(
        &self,
        offset: usize,
        compare: u64,
        swap: u64,
    ) -> Result<u64, MemoryError> {
        let operation = AtomicOperation::compare_swap(compare, swap);
        self.0.program_guard()?.update_u64(offset, operation)
    }

    /// The first octet, for programs that do their own volatile or atomic accesses.
    ///
    /// Dangles once the region is deregistered, and if it is empty.
    #[must_use]
    pub fn as_ptr(&self) -> *mut u8 {
        self.0.as_ptr()
    }

    /// Borrows the octets without a copy.
    ///
    /// # Safety
    ///
    /// As long as the slice lives, no peer writes here, no work request that receives or reads into it
    /// is posted, nobody calls a writing method, and the region is not deregistered through any handle.
    #[must_use]
    pub unsafe fn as_slice(&self) -> &[u8] {
        // SAFETY: the octets are initialised, and the caller promises that they stay and do not change.
        unsafe { std::slice::from_raw_parts(self.0.as_ptr(), self.len()) }
    }

    /// Ends the registration for all handles.
    ///
    /// When it returns, no octet moves through the key any more and, for memory allocated here, the
    /// memory is gone; work requests that still name the region fail with a protection error. Waits
    /// for copies in progress, each of which is short.
    ///
    /// # Errors
    /// [`MemoryError::InUse`] while windows are bound to it, or fast-registered regions map it; the region
    /// stays as it is, and lives on with its other handles or, if this was the last one, until those are
    /// gone. [`MemoryError::Deregistered`] if another handle did it before, after the same wait.
    /// [`MemoryError::Forked`] in a child of the process that registered it, where nobody comes by the key.
    pub fn deregister(self) -> Result<(), MemoryError> {
        if self.0.deregister()? { Ok(()) } else { Err(MemoryError::Deregistered) }
    }

    pub(super) const fn from_region(region: Arc<Region>) -> Self {
        Self(region)
    }

    pub(crate) fn region(&self) -> &Arc<Region> {
        &self.0
    }
}

impl fmt::Debug for MemoryRegion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A registered buffer that belongs to the program and comes back when it is deregistered.
///
/// Dropped without [`deregister`](Self::deregister), the buffer lives on until the last work request
/// that uses it is retired and the last handle is dropped, and is then dropped too.
pub struct Owned<B: StableBytes> {
    region: MemoryRegion,
    buffer: PhantomData<B>,
}

impl<B: StableBytes> Owned<B> {
    /// The region. Clones of it do not keep the buffer from coming back.
    #[must_use]
    pub fn region(&self) -> &MemoryRegion {
        &self.region
    }

    /// Deregisters, and gives the buffer back. Waits as [`MemoryRegion::deregister`] does.
    ///
    /// Windows that are bound to it, and fast registrations that map it, are put out of force first.
    #[must_use]
    pub fn deregister(self) -> B {
        let Some(buffer) = self.region.0.reclaim() else {
            unreachable!("only this call takes the buffer out, and it consumes the handle")
        };
        unbox(buffer)
    }
}

impl<B: StableBytes> fmt::Debug for Owned<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.region.fmt(f)
    }
}

fn unbox<B: StableBytes>(buffer: Box<dyn Any + Send>) -> B {
    match buffer.downcast() {
        Ok(buffer) => *buffer,
        Err(_) => unreachable!("registered as the type that the handle remembers"),
    }
}

/// A buffer that could not be registered, given back.
pub struct RegisterError<B> {
    /// Why.
    pub cause: MemoryError,
    /// The buffer, untouched.
    pub buffer: B,
}

impl<B> fmt::Debug for RegisterError<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RegisterError").field("cause", &self.cause).finish_non_exhaustive()
    }
}

impl<B> fmt::Display for RegisterError<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "buffer not registered: {}", self.cause)
    }
}

impl<B> std::error::Error for RegisterError<B> {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.cause)
    }
}

/// A part of a [`MemoryRegion`], as a work request names it. Bounds were checked when it was made.
#[derive(Clone, Debug)]
pub struct MrSlice {
    region: MemoryRegion,
    offset: usize,
    len: usize,
}

impl MrSlice {
    /// The region.
    #[must_use]
    pub fn region(&self) -> &MemoryRegion {
        &self.region
    }

    /// First octet, counted from the start of the region.
    #[must_use]
    pub fn offset(&self) -> usize {
        self.offset
    }

    /// Octets.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there is no octet.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// A part of this part; `range` counts from its start.
    pub fn slice(&self, range: impl RangeBounds<usize>) -> Result<Self, MemoryError> {
        let (offset, len) = resolve(range, self.len)?;
        Ok(Self { region: self.region.clone(), offset: self.offset + offset, len })
    }

    /// What a peer must be told to access this part.
    #[must_use]
    pub fn remote(&self) -> RemoteMemory {
        let addr = self.region.addr() + self.offset as u64;
        RemoteMemory { addr, len: self.len as u64, rkey: self.region.rkey() }
    }
}

/// A peer's memory, as its owner advertised it.
///
/// How it reaches the other side is the program's affair; [`to_bytes`](Self::to_bytes) is one way.
///
/// ```
/// use iwarp_verbs::RemoteMemory;
///
/// let all = RemoteMemory { addr: 0x1000, len: 4096, rkey: 0x0102_0304 };
/// assert_eq!(RemoteMemory::from_bytes(all.to_bytes()), all);
/// assert_eq!(all.slice(1024..2048)?.addr, 0x1400);
/// assert!(all.slice(4096..4097).is_err());
/// # Ok::<(), iwarp_verbs::MemoryError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RemoteMemory {
    /// Tagged offset of the first octet.
    pub addr: u64,
    /// Octets.
    pub len: u64,
    /// The key (RFC 5040's `STag`).
    pub rkey: u32,
}

impl RemoteMemory {
    /// A part of it; `range` counts octets from its start.
    pub fn slice(&self, range: impl RangeBounds<u64>) -> Result<Self, MemoryError> {
        let start = match range.start_bound() {
            Bound::Included(&start) => Some(start),
            Bound::Excluded(&before) => before.checked_add(1),
            Bound::Unbounded => Some(0),
        };
        let end = match range.end_bound() {
            Bound::Included(&last) => last.checked_add(1),
            Bound::Excluded(&end) => Some(end),
            Bound::Unbounded => Some(self.len),
        };
        let outside = |offset, len| MemoryError::OutOfBounds { offset, len, size: self.len };
        let (Some(start), Some(end)) = (start, end) else { return Err(outside(u64::MAX, 1)) };
        if start > end || end > self.len {
            return Err(outside(start, end.saturating_sub(start)));
        }
        let Some(addr) = self.addr.checked_add(start) else {
            return Err(MemoryError::AddressWraps { at: self.addr, len: self.len });
        };
        Ok(Self { addr, len: end - start, rkey: self.rkey })
    }

    /// `addr`, `len` and `rkey`, each in network order.
    #[must_use]
    pub fn to_bytes(&self) -> [u8; 20] {
        let mut octets = [0; 20];
        octets[..8].copy_from_slice(&self.addr.to_be_bytes());
        octets[8..16].copy_from_slice(&self.len.to_be_bytes());
        octets[16..].copy_from_slice(&self.rkey.to_be_bytes());
        octets
    }

    /// The reverse of [`to_bytes`](Self::to_bytes).
    #[must_use]
    pub fn from_bytes(octets: [u8; 20]) -> Self {
        let (mut addr, mut len, mut rkey) = ([0; 8], [0; 8], [0; 4]);
        addr.copy_from_slice(&octets[..8]);
        len.copy_from_slice(&octets[8..16]);
        rkey.copy_from_slice(&octets[16..]);
        Self {
            addr: u64::from_be_bytes(addr),
            len: u64::from_be_bytes(len),
            rkey: u32::from_be_bytes(rkey),
        }
    }
}

/// Offset and length of a range inside `size` octets.
fn resolve(range: impl RangeBounds<usize>, size: usize) -> Result<(usize, usize), MemoryError> {
    let start = match range.start_bound() {
        Bound::Included(&start) => Some(start),
        Bound::Excluded(&before) => before.checked_add(1),
        Bound::Unbounded => Some(0),
    };
    let end = match range.end_bound() {
        Bound::Included(&last) => last.checked_add(1),
        Bound::Excluded(&end) => Some(end),
        Bound::Unbounded => Some(size),
    };
    let outside = |offset: usize, len: usize| MemoryError::OutOfBounds {
        offset: offset as u64,
        len: len as u64,
        size: size as u64,
    };
    let (Some(start), Some(end)) = (start, end) else { return Err(outside(usize::MAX, 1)) };
    if start > end || end > size {
        return Err(outside(start, end.saturating_sub(start)));
    }
    Ok((start, end - start))
}
