//! Reregistration: the same memory under a new key, with other rights, another domain or another range.

use std::fmt;
use std::ptr::NonNull;
use std::sync::Arc;

use super::region::{Owner, Registration};
use super::{Access, Domain, MemoryError, MemoryRegion, Region, mapped};
use crate::pd::ProtectionDomain;

/// What [`MemoryRegion::reregister`] is to change; everything else stays as it is.
#[derive(Clone, Debug, Default)]
pub struct Reregister {
    pd: Option<ProtectionDomain>,
    access: Option<Access>,
}

impl Reregister {
    /// Changes nothing but the key.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Moves the region to this protection domain.
    #[must_use]
    pub fn pd(mut self, pd: &ProtectionDomain) -> Self {
        self.pd = Some(pd.clone());
        self
    }

    /// Gives it these rights instead of those it has.
    #[must_use]
    pub const fn access(mut self, access: Access) -> Self {
        self.access = Some(access);
        self
    }
}

/// A region that was not reregistered.
#[derive(Debug)]
pub struct ReregisterError {
    /// Why.
    pub cause: MemoryError,
    /// The region as it was, if it is still registered.
    pub region: Option<MemoryRegion>,
}

impl fmt::Display for ReregisterError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let still = if self.region.is_some() { "as it was" } else { "registered no more" };
        write!(f, "region not reregistered, it is {still}: {}", self.cause)
    }
}

impl std::error::Error for ReregisterError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.cause)
    }
}

/// Where the octets are to be.
#[derive(Clone, Copy)]
struct Place {
    at: NonNull<u8>,
    len: usize,
    base: u64,
}

impl MemoryRegion {
    /// Deregisters the region, and registers its memory again without a moment in which it is nobody's.
    /// The new region has a new key; the other handles of the old one find it deregistered.
    ///
    /// Waits as [`deregister`](Self::deregister) does.
    ///
    /// # Errors
    /// While windows are bound to it or fast registrations map it, if it belongs to an
    /// [`Owned`](crate::Owned), if the new domain was destroyed, and if raw memory would have to be
    /// written that the program did not promise to be writable, nothing happens, and the error gives the
    /// region back. After every other error the old registration is gone (VD 7.3.2.3): rights that
    /// contradict each other, and no key left.
    pub fn reregister(self, change: &Reregister) -> Result<Self, ReregisterError> {
        let old = self.region();
        if old.is_promised() {
            let need = change.access.unwrap_or_default() & Access::LOCAL_WRITE;
            let have = old.access();
            if !have.contains(need) {
                let cause = MemoryError::Rights { need, have };
                return Err(ReregisterError { cause, region: Some(self) });
            }
        }
        // Zero-based, it has no other base than its address.
        let zero_based = old.access().contains(Access::ZERO_BASED);
        let address = old.as_ptr().addr() as u64;
        let base = if zero_based { address } else { old.base() };
        let place = Place { at: old.at, len: old.len, base };
        // SAFETY: the place of the old one.
        unsafe { self.again(change, place) }
    }

    /// As [`reregister`](Self::reregister), of raw memory, and with another range: `len` octets at `at`,
    /// whose tagged offsets start at the address, or at 0 with [`Access::ZERO_BASED`].
    ///
    /// # Errors
    /// As for [`reregister`](Self::reregister), and those of
    /// [`register_raw`](ProtectionDomain::register_raw), after which the old registration is gone.
    ///
    /// # Safety
    ///
    /// As for [`register_raw`](ProtectionDomain::register_raw).
    pub unsafe fn reregister_raw(
        self,
        at: NonNull<u8>,
        len: usize,
        change: &Reregister,
    ) -> Result<Self, ReregisterError> {
        if !self.region().is_promised() {
            let cause = MemoryError::OwnedBuffer;
            return Err(ReregisterError { cause, region: Some(self) });
        }
        let place = Place { at, len, base: at.addr().get() as u64 };
        // SAFETY: raw memory, as was just looked at, and the caller promises it.
        unsafe { self.again(change, place) }
    }

    /// # Safety
    ///
    /// `place` must be that of the old registration, or, only of raw memory, one that the program promises as for
    /// [`register_raw`](ProtectionDomain::register_raw).
    unsafe fn again(self, change: &Reregister, place: Place) -> Result<Self, ReregisterError> {
        let old = self.region();
        let prepared = new_domain(old, change).and_then(|domain| Ok((domain, old.surrender()?)));
        let (domain, owner) = match prepared {
            Ok(prepared) => prepared,
            Err(cause) => {
                let region = (!old.is_deregistered()).then_some(self);
                return Err(ReregisterError { cause, region });
            }
        };
        let Place { at, len, base } = place;
        let access = change.access.unwrap_or_else(|| old.access());
        let gone = |cause| ReregisterError { cause, region: None };
        access.check().map_err(gone)?;
        if let Owner::Promised = owner {
            mapped::check(at, len, access).map_err(gone)?;
        }
        // SAFETY: the caller's promise; what is not raw memory comes with its owner.
        let region =
            unsafe { Region::register(Registration { domain, at, len, base, access, owner }) };
        region.map(Self::from_region).map_err(|(cause, _)| gone(cause))
    }
}

fn new_domain(old: &Arc<Region>, change: &Reregister) -> Result<Domain, MemoryError> {
    match &change.pd {
        Some(pd) => pd.0.domain(),
        None => old.parent().ok_or(MemoryError::Deregistered),
    }
}
