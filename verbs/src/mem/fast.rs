//! [`FastRegion`]: a region whose memory is set, and taken away, in the order of the send queue.

use std::fmt;
use std::ptr::NonNull;
use std::sync::Arc;

use iwarp_ddp::Stag;

use super::tenants::Tenancy;
use super::view::{Holder, Opening, Part, ViewKind};
use super::{Access, Domain, MemoryError, MrSlice, PdId, Peer, Region, RemoteMemory, mapped};

/// A fast-registered region: an index of the key table that a work request gives memory to
/// ([`SendRequest::register`](crate::SendRequest::register)), and another takes it from
/// ([`SendRequest::local_invalidate`](crate::SendRequest::local_invalidate), or the peer with a Send with
/// Invalidate).
///
/// A handle, cheap to clone. Its memory is any number of parts of registered regions, as one range of
/// tagged offsets; raw requests can name it by its key as local memory. A region that it maps cannot be
/// deregistered. It ends with [`destroy`](Self::destroy), or when its last handle is dropped.
#[derive(Clone)]
pub struct FastRegion(Arc<Fast>);

#[derive(Debug)]
struct Fast {
    holder: Holder,
    max_len: usize,
    max_ranges: usize,
    remote: Access,
}

impl FastRegion {
    pub(super) fn new(
        domain: Domain,
        max_len: usize,
        max_ranges: usize,
        remote: bool,
    ) -> Result<Self, MemoryError> {
        let remote = if remote { Access::REMOTE } else { Access::empty() };
        let holder = Holder::new(domain, ViewKind::Fast, remote)?;
        Ok(Self(Arc::new(Fast { holder, max_len, max_ranges, remote })))
    }

    /// The key of the present registration or, after its end, of the last one. As `lkey` of raw requests,
    /// and for peers.
    #[must_use]
    pub fn rkey(&self) -> u32 {
        self.0.holder.stag().raw()
    }

    /// The key that a registration with this low octet has: the other 24 bits never change.
    #[must_use]
    pub fn rkey_with(&self, key: u8) -> u32 {
        Stag::from_parts(self.0.holder.stag().index(), key).raw()
    }

    /// Whether it has memory, and its key is in force.
    #[must_use]
    pub fn is_valid(&self) -> bool {
        self.0.holder.is_valid()
    }

    /// What a peer must be told to access all of it. Empty if it has no memory.
    #[must_use]
    pub fn remote(&self) -> RemoteMemory {
        let view = self.0.holder.view();
        let len = if view.is_valid() { view.len() as u64 } else { 0 };
        RemoteMemory { addr: view.base(), len, rkey: view.stag().raw() }
    }

    /// Frees it for all handles. When it returns, no octet moves through its key any more. Waits only for
    /// copies in progress.
    ///
    /// # Errors
    /// [`MemoryError::Deregistered`] if another handle did it before, [`MemoryError::Forked`] in a child of the
    /// process that made it.
    pub fn destroy(self) -> Result<(), MemoryError> {
        self.0.holder.destroy()
    }

    /// All that can be told before its turn comes.
    pub(crate) fn check(&self, mapping: &Mapping, domain: PdId) -> Result<(), MemoryError> {
        self.0.holder.check_alive()?;
        self.resolve(mapping, domain).map(drop)
    }

    /// Gives it memory.
    pub(super) fn register(
        &self,
        peer: Peer,
        key: u8,
        mapping: &Mapping,
    ) -> Result<Arc<Region>, MemoryError> {
        let opening = self.resolve(mapping, peer.domain)?;
        self.0.holder.open(key, opening, Tenancy::Mapping, false)
    }

    fn resolve(&self, mapping: &Mapping, domain: PdId) -> Result<Opening, MemoryError> {
        let access = mapping.access.check()?;
        if self.0.holder.home() != domain {
            return Err(MemoryError::ForeignDomain);
        }
        if access.contains(Access::MW_BIND) {
            let access = Access::MW_BIND;
            return Err(MemoryError::RightsOf { what: "fast-registered region", access });
        }
        if !self.0.remote.contains(access & Access::REMOTE) {
            let need = access & Access::REMOTE;
            return Err(MemoryError::Rights { need, have: self.0.remote });
        }
        let (parts, grounds) = mapping.memory.resolve(access, domain)?;
        if parts.len() > self.0.max_ranges {
            let max = self.0.max_ranges;
            return Err(MemoryError::TooManyRanges { have: parts.len(), max });
        }
        let sum = parts.iter().try_fold(0_usize, |sum, part| sum.checked_add(part.len));
        let Some(len) = sum.filter(|len| *len <= self.0.max_len) else {
            let (len, size) = (sum.unwrap_or(usize::MAX) as u64, self.0.max_len as u64);
            return Err(MemoryError::OutOfBounds { offset: 0, len, size });
        };
        let len = len as u64;
        let first = parts.first().map_or(0, |part| part.at.addr().get() as u64);
        let base = mapping.iova.unwrap_or(first);
        if base.checked_add(len).is_none() {
            return Err(MemoryError::AddressWraps { at: base, len });
        }
        let writable = access.contains(Access::LOCAL_WRITE);
        Ok(Opening { parts, base, access, domain, writable, grounds })
    }
}

impl fmt::Debug for FastRegion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FastRegion")
            .field("view", &self.0.holder.view())
            .field("max_len", &self.0.max_len)
            .field("max_ranges", &self.0.max_ranges)
            .finish()
    }
}

/// The memory that a [`FastRegion`] is to have, and what may be done with it.
#[derive(Clone, Debug)]
pub struct Mapping {
    memory: Memory,
    iova: Option<u64>,
    access: Access,
}

#[derive(Clone, Debug)]
enum Memory {
    Slices(Vec<MrSlice>),
    /// The program promised them.
    Raw(Vec<Part>),
}

impl Mapping {
    /// Parts of regions, one behind the other. Those that may be written need regions with
    /// [`Access::LOCAL_WRITE`]; nothing else of the regions' rights matters.
    ///
    /// Tagged offsets start at the address of the first octet, unless [`iova`](Self::iova) says otherwise, or
    /// at 0 with [`Access::ZERO_BASED`].
    pub fn new(slices: impl IntoIterator<Item = MrSlice>, access: Access) -> Self {
        Self { memory: Memory::Slices(slices.into_iter().collect()), iova: None, access }
    }

    /// Memory that is not registered otherwise, and that the program keeps in place: address and length of
    /// each part.
    ///
    /// # Errors
    /// Those of [`register_raw`](crate::ProtectionDomain::register_raw), for each part.
    ///
    /// # Safety
    ///
    /// As for [`register_raw`](crate::ProtectionDomain::register_raw), from the posting of the request that
    /// registers this mapping until the key is out of force, or the request has failed or is flushed.
    pub unsafe fn raw(
        parts: impl IntoIterator<Item = (NonNull<u8>, usize)>,
        access: Access,
    ) -> Result<Self, MemoryError> {
        let mut memory = Vec::new();
        for (at, len) in parts.into_iter().filter(|(_, len)| *len > 0) {
            mapped::check(at, len, access)?;
            memory.push(Part { at, len });
        }
        Ok(Self { memory: Memory::Raw(memory), iova: None, access })
    }

    /// Lets tagged offsets start here.
    #[must_use]
    pub const fn iova(mut self, iova: u64) -> Self {
        self.iova = Some(iova);
        self
    }
}

impl Memory {
    /// Where the octets are, and the regions that they belong to.
    fn resolve(
        &self,
        access: Access,
        domain: PdId,
    ) -> Result<(Vec<Part>, Vec<Arc<Region>>), MemoryError> {
        let slices = match self {
            Self::Raw(parts) => return Ok((parts.clone(), Vec::new())),
            Self::Slices(slices) => slices,
        };
        let (mut parts, mut grounds) = (Vec::new(), Vec::new());
        for slice in slices.iter().filter(|slice| !slice.is_empty()) {
            let region = slice.region().region();
            if region.domain() != domain {
                return Err(MemoryError::ForeignDomain);
            }
            let (need, have) = (access & Access::LOCAL_WRITE, region.access());
            if !have.contains(need) {
                return Err(MemoryError::Rights { need, have });
            }
            // The bounds of slices were checked when they were made.
            let Some(part) = region.part(slice.offset(), slice.len()) else {
                return Err(MemoryError::Deregistered);
            };
            parts.push(part);
            grounds.push(Arc::clone(region));
        }
        Ok((parts, grounds))
    }
}
