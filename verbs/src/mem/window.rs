//! [`MemoryWindow`]: a key for a part of a region, given and taken back in the order of the send queue.

use std::fmt;
use std::sync::Arc;

use iwarp_ddp::{Stag, range_in};

use super::tenants::Tenancy;
use super::view::{Holder, Opening, Part, ViewKind};
use super::{Access, Domain, MemoryError, MemoryRegion, MrSlice, PdId, Peer, Region, RemoteMemory};

/// Kinds of memory windows. The integers are those of `enum ibv_mw_type`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u32)]
pub enum WindowType {
    /// Bound with [`QueuePair::bind_window`](crate::QueuePair::bind_window), which may replace one binding
    /// by another. Every peer of the protection domain can use it; no peer can invalidate it.
    One = 1,
    /// Bound with [`SendRequest::bind_window`](crate::SendRequest::bind_window). Only the peer of the queue
    /// pair that the request was posted to can use it, and that peer, or a work request, can invalidate it
    /// (type 2A of the verbs).
    Two = 2,
}

impl WindowType {
    /// The integer libibverbs uses for this type.
    #[must_use]
    pub const fn value(self) -> u32 {
        self as u32
    }
}

/// A memory window: lends a peer a part of a region under a key of its own, and takes it back, without a
/// registration.
///
/// A handle, cheap to clone. A new window is not bound, and its key opens nothing. While it is bound, its
/// region can be neither deregistered nor invalidated. The window ends with
/// [`destroy`](Self::destroy), or when its last handle is dropped; both unbind it.
///
/// A window of type 2 that was bound through a queue pair belongs to that queue pair: its key is refused on
/// every other connection (SEC-02), and out of force when the queue pair is destroyed (decision V5) or reset.
#[derive(Clone)]
pub struct MemoryWindow(Arc<Holder>);

impl MemoryWindow {
    pub(super) fn new(domain: Domain, kind: WindowType) -> Result<Self, MemoryError> {
        let kind = match kind {
            WindowType::One => ViewKind::WindowOne,
            WindowType::Two => ViewKind::WindowTwo,
        };
        Holder::new(domain, kind, Access::REMOTE).map(|holder| Self(Arc::new(holder)))
    }

    /// Its type.
    #[must_use]
    pub fn window_type(&self) -> WindowType {
        if self.0.kind() == ViewKind::WindowOne { WindowType::One } else { WindowType::Two }
    }

    /// The key of the present binding or, after its end, of the last one.
    #[must_use]
    pub fn rkey(&self) -> u32 {
        self.0.stag().raw()
    }

    /// The key that a binding with this low octet has: the other 24 bits never change.
    #[must_use]
    pub fn rkey_with(&self, key: u8) -> u32 {
        Stag::from_parts(self.0.stag().index(), key).raw()
    }

    /// Whether it is bound, and its key in force.
    #[must_use]
    pub fn is_bound(&self) -> bool {
        self.0.is_valid()
    }

    /// What a peer must be told to access all that it is bound to. Empty if it is not bound.
    #[must_use]
    pub fn remote(&self) -> RemoteMemory {
        let view = self.0.view();
        let len = if view.is_valid() { view.len() as u64 } else { 0 };
        RemoteMemory { addr: view.base(), len, rkey: view.stag().raw() }
    }

    /// Frees the window for all handles. When it returns, no octet moves through its key any more.
    ///
    /// Never blocks but for copies in progress, each of which is short. Requests that were to bind it
    /// fail.
    ///
    /// # Errors
    /// [`MemoryError::Deregistered`] if another handle did it before, [`MemoryError::Forked`] in a child of the
    /// process that made it.
    pub fn destroy(self) -> Result<(), MemoryError> {
        self.0.destroy()
    }

    /// The low octet of the next key, for a window that is bound by a call.
    pub(crate) fn next_key(&self) -> u8 {
        self.0.next_key()
    }

    /// All that can be told before its turn comes.
    pub(crate) fn check(&self, binding: &WindowBinding, domain: PdId) -> Result<(), MemoryError> {
        self.0.check_alive()?;
        binding.check_rights()?;
        if binding.in_turn {
            return Ok(());
        }
        self.resolve(binding, domain).map(drop)
    }

    /// Binds it for a queue pair.
    pub(super) fn bind(
        &self,
        peer: Peer,
        key: u8,
        binding: &WindowBinding,
    ) -> Result<Arc<Region>, MemoryError> {
        binding.check_rights()?;
        let (parts, grounds) = match self.resolve(binding, peer.domain)? {
            Some((region, part)) => (vec![part], vec![region]),
            None => (Vec::new(), Vec::new()),
        };
        let one = self.0.kind() == ViewKind::WindowOne;
        let opening = Opening {
            parts,
            base: binding.addr,
            access: binding.access,
            domain: if one { peer.domain } else { peer.stream },
            writable: binding.access.intersects(Access::REMOTE_WRITE | Access::REMOTE_ATOMIC),
            grounds,
        };
        self.0.open(key, opening, Tenancy::Window, one)
    }

    /// The memory of a binding; nothing if it has no octets.
    fn resolve(
        &self,
        binding: &WindowBinding,
        domain: PdId,
    ) -> Result<Option<(Arc<Region>, Part)>, MemoryError> {
        let WindowBinding { region, addr, len, access, .. } = binding;
        if self.0.home() != domain {
            return Err(MemoryError::ForeignDomain);
        }
        let Some(region) = region.as_ref().filter(|_| *len > 0) else { return Ok(None) };
        let region = region.region();
        if region.domain() != domain {
            return Err(MemoryError::ForeignDomain);
        }
        let have = region.access();
        if have.contains(Access::ZERO_BASED) {
            return Err(MemoryError::ZeroBased);
        }
        let mut need = Access::MW_BIND;
        if access.intersects(Access::REMOTE_WRITE | Access::REMOTE_ATOMIC) {
            need |= Access::LOCAL_WRITE;
        }
        if !have.contains(need) {
            return Err(MemoryError::Rights { need, have });
        }
        let outside =
            MemoryError::OutOfBounds { offset: *addr, len: *len, size: region.len() as u64 };
        let offset =
            range_in(region.base(), region.len() as u64, *addr, *len).map_err(|_| outside)?;
        let offset = usize::try_from(offset).map_err(|_| outside)?;
        let len = usize::try_from(*len).map_err(|_| outside)?;
        let part = region.part(offset, len).ok_or(outside)?;
        Ok(Some((Arc::clone(region), part)))
    }
}

impl fmt::Debug for MemoryWindow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemoryWindow")
            .field("type", &self.window_type())
            .field("view", &self.0.view())
            .finish()
    }
}

/// What a window is to be bound to, and what the peer may do there.
///
/// Tagged offsets are those of the region, or with [`Access::ZERO_BASED`] count from the window's first
/// octet. The other rights are any of [`Access::REMOTE`]: what the region itself lets peers do does not
/// matter, but it needs [`Access::MW_BIND`], and [`Access::LOCAL_WRITE`] for a window that a peer may write.
#[derive(Clone, Debug)]
pub struct WindowBinding {
    region: Option<MemoryRegion>,
    addr: u64,
    len: u64,
    access: Access,
    /// Looked at when its turn comes, not when it is posted.
    in_turn: bool,
}

impl WindowBinding {
    /// A part of a region. Posting checks it.
    #[must_use]
    pub fn new(slice: &MrSlice, access: Access) -> Self {
        let region = slice.region();
        let addr = region.addr() + slice.offset() as u64;
        Self { region: Some(region.clone()), addr, len: slice.len() as u64, access, in_turn: false }
    }

    /// `len` octets at the address `addr` of a region: what a C program asks for. Nothing but the rights is
    /// checked before the request's turn comes; then a wrong range or region fails it.
    #[must_use]
    pub fn raw(region: &MemoryRegion, addr: u64, len: u64, access: Access) -> Self {
        Self { region: Some(region.clone()), addr, len, access, in_turn: true }
    }

    /// Nothing: a window of type 1 is unbound so.
    #[must_use]
    pub const fn none() -> Self {
        Self { region: None, addr: 0, len: 0, access: Access::empty(), in_turn: false }
    }

    fn check_rights(&self) -> Result<(), MemoryError> {
        let other = self.access.difference(Access::REMOTE | Access::ZERO_BASED);
        if other.is_empty() {
            return Ok(());
        }
        Err(MemoryError::RightsOf { what: "memory window", access: other })
    }
}
