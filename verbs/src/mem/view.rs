//! What windows and fast-registered regions have in common: an index for life, and from time to time
//! other memory under a new key.
//!
//! Each binding, and each fast registration, is a [`Region`] of its own, the *view*: it is made with
//! what it opens and never changed, so a peer's access finds and checks it as it does any region. A new
//! one takes the index over from the last one, which is closed for good.

use std::any::Any;
use std::ptr::NonNull;
use std::sync::{Arc, Weak};

use iwarp_ddp::Stag;
use parking_lot::Mutex;

use super::region::{Apart, Holdings, Owner};
use super::tenants::{Tenancy, Tenants};
use super::use_count::UseCount;
use super::{Access, Domain, KeyTable, MemoryError, Origin, PdId, Peer, Region};

/// What holds an index whose memory changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ViewKind {
    /// Bound by a call; used by every queue pair of the domain.
    WindowOne,
    /// Bound by a work request; used by the queue pair that carried it out.
    WindowTwo,
    /// Fast-registered; used by every queue pair of the domain.
    Fast,
}

/// What makes a region a view.
#[derive(Debug)]
pub(super) struct View {
    kind: ViewKind,
    /// The protection domain of the holder.
    home: PdId,
    /// Where the octets lie, in order, if not in one piece.
    parts: Box<[Part]>,
    /// How many octets there are up to the end of each part.
    ends: Box<[usize]>,
    /// The regions that the octets belong to, until the key is out of force.
    stays: Mutex<Vec<Stay>>,
}

/// Octets that lie in one piece.
#[derive(Clone, Copy, Debug)]
pub(super) struct Part {
    pub(super) at: NonNull<u8>,
    pub(super) len: usize,
}

// SAFETY: an address and a length; whoever uses the address says why it may.
unsafe impl Send for Part {}
// SAFETY: as above.
unsafe impl Sync for Part {}

/// Keeps a region from being given up.
#[derive(Debug)]
struct Stay {
    region: Arc<Region>,
    tenancy: Tenancy,
}

impl Drop for Stay {
    fn drop(&mut self) {
        if self.region.made.is_here() {
            self.region.tenants.leave(self.tenancy);
        }
    }
}

/// Everything of a view but its key.
pub(super) struct Opening {
    /// In order; none of them empty.
    pub(super) parts: Vec<Part>,
    /// Tagged offset of the first octet.
    pub(super) base: u64,
    pub(super) access: Access,
    /// Who may use it.
    pub(super) domain: PdId,
    /// Local and remote writes may go there.
    pub(super) writable: bool,
    /// The regions that the parts belong to.
    pub(super) grounds: Vec<Arc<Region>>,
}

impl View {
    pub(super) const fn is_window(&self) -> bool {
        matches!(self.kind, ViewKind::WindowOne | ViewKind::WindowTwo)
    }

    /// Whether this queue pair, or its peer, may take the key of `region` out of force. A window of type
    /// 2 is its queue pair's while it is bound, and its domain's otherwise; one of type 1 is only
    /// unbound by the call that binds it.
    pub(super) fn may_be_revoked(&self, region: &Region, peer: Peer) -> bool {
        match self.kind {
            ViewKind::WindowOne => false,
            ViewKind::WindowTwo if region.is_valid() => region.domain == peer.stream,
            ViewKind::WindowTwo | ViewKind::Fast => self.home == peer.domain,
        }
    }

    /// Leaves the regions below, once nobody moves octets through the key any more.
    pub(super) fn leave(&self) {
        let stays = std::mem::take(&mut *self.stays.lock());
        drop(stays);
    }

    /// The pieces that `len` octets at `offset` lie in, in order; `None` if they are not all there.
    pub(super) fn pieces(&self, offset: usize, len: usize) -> Option<Pieces<'_>> {
        let size = self.ends.last().copied().unwrap_or(0);
        if len > size.checked_sub(offset)? {
            return None;
        }
        // A peer may ask for any of thousands, again and again.
        let first = self.ends.partition_point(|&end| end <= offset);
        let before = first.checked_sub(1).and_then(|before| self.ends.get(before));
        let skip = offset - before.copied().unwrap_or(0);
        Some(Pieces { parts: self.parts.get(first..)?, skip, rest: len })
    }
}

/// Pieces of memory, see [`View::pieces`].
#[derive(Debug)]
pub(super) struct Pieces<'a> {
    parts: &'a [Part],
    /// Octets of the first part that are not meant.
    skip: usize,
    rest: usize,
}

impl Iterator for Pieces<'_> {
    type Item = (*mut u8, usize);

    fn next(&mut self) -> Option<Self::Item> {
        if self.rest == 0 {
            return None;
        }
        let (part, behind) = self.parts.split_first()?;
        self.parts = behind;
        let start = std::mem::take(&mut self.skip);
        let len = self.rest.min(part.len - start);
        self.rest -= len;
        Some((part.at.as_ptr().wrapping_add(start), len))
    }
}

/// An index of the key table, and the view that it leads to at present.
#[derive(Debug)]
pub(super) struct Holder {
    kind: ViewKind,
    home: PdId,
    made: Origin,
    state: Mutex<State>,
}

struct State {
    /// The present view or, after its end, the last one; one that was never valid at first.
    view: Arc<Region>,
    /// Key octet that was given out last, by the calls that choose it themselves.
    key: u8,
    /// Kept until the holder is given up: the protection domain.
    parent: Option<Arc<dyn Any + Send + Sync>>,
}

impl std::fmt::Debug for State {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.view.fmt(f)
    }
}

impl Holder {
    /// Takes an index. `remote`: rights of a peer that it may ever give.
    pub(super) fn new(domain: Domain, kind: ViewKind, remote: Access) -> Result<Self, MemoryError> {
        let Domain { id: home, parent } = domain;
        let stag = KeyTable::of_process().reserve()?;
        let nothing = Opening {
            parts: Vec::new(),
            base: 0,
            access: remote,
            domain: home,
            writable: false,
            grounds: Vec::new(),
        };
        let view = Region::view(kind, home, stag, nothing);
        view.by_key.close();
        KeyTable::of_process().publish(&view);
        let state = State { view, key: stag.key(), parent: Some(parent) };
        Ok(Self { kind, home, made: Origin::here(), state: Mutex::new(state) })
    }

    pub(super) const fn kind(&self) -> ViewKind {
        self.kind
    }

    pub(super) const fn home(&self) -> PdId {
        self.home
    }

    /// The key that is in force, or was last.
    pub(super) fn stag(&self) -> Stag {
        self.state.lock().view.stag()
    }

    pub(super) fn is_valid(&self) -> bool {
        self.state.lock().view.is_valid()
    }

    pub(super) fn view(&self) -> Arc<Region> {
        Arc::clone(&self.state.lock().view)
    }

    pub(super) fn check_alive(&self) -> Result<(), MemoryError> {
        if self.view().is_deregistered() { Err(MemoryError::Deregistered) } else { Ok(()) }
    }

    /// The next key octet of a holder that chooses it itself.
    pub(super) fn next_key(&self) -> u8 {
        let mut state = self.state.lock();
        state.key = state.key.wrapping_add(1);
        state.key
    }

    /// Opens memory under a key with this octet. `replaces`: ends the present view; otherwise there may be
    /// none in force. Nothing has changed on `Err`.
    pub(super) fn open(
        &self,
        key: u8,
        opening: Opening,
        tenancy: Tenancy,
        replaces: bool,
    ) -> Result<Arc<Region>, MemoryError> {
        let mut state = self.state.lock();
        let stag = state.view.stag();
        if state.view.is_deregistered() {
            return Err(MemoryError::Deregistered);
        }
        if state.view.is_valid() && !replaces {
            return Err(MemoryError::StillValid { key: stag.raw() });
        }
        let grounds = opening.grounds.clone();
        let empty = opening.parts.is_empty() && self.kind == ViewKind::WindowOne;
        let view = Region::view(self.kind, self.home, Stag::from_parts(stag.index(), key), opening);
        let mut stays = Vec::with_capacity(grounds.len());
        for region in grounds {
            let gone = |view: &Weak<Region>| view.strong_count() == 0;
            region.tenants.enter(tenancy, Arc::downgrade(&view), gone, || {
                // Looked at with the tenants locked, as is what takes the key out of force.
                if tenancy == Tenancy::Window && !region.is_valid() {
                    return Err(region.why_invalid());
                }
                Ok(())
            })?;
            stays.push(Stay { region, tenancy });
        }
        // Whatever is wrong has been found.
        state.view.invalidate()?;
        if empty {
            view.by_key.close();
        } else if let Some(view) = &view.view {
            *view.stays.lock() = stays;
        }
        KeyTable::of_process().publish(&view);
        state.view = Arc::clone(&view);
        Ok(view)
    }

    /// Gives the index up: no octet moves through its key when this returns.
    ///
    /// # Errors
    /// [`MemoryError::Deregistered`] if somebody else did it before; the wait is the same.
    /// [`MemoryError::Forked`].
    pub(super) fn destroy(&self) -> Result<(), MemoryError> {
        if !self.made.is_here() {
            return Err(MemoryError::Forked);
        }
        let (first, parent) = {
            // Locked to the end, so that nothing is opened meanwhile under another key.
            let mut state = self.state.lock();
            (state.view.end(), state.parent.take())
        };
        drop(parent);
        if first { Ok(()) } else { Err(MemoryError::Deregistered) }
    }
}

impl Drop for Holder {
    fn drop(&mut self) {
        // FC-064: in a child it is forgotten.
        _ = self.destroy();
    }
}

impl Region {
    /// A view. It opens nothing before it is published.
    fn view(kind: ViewKind, home: PdId, stag: Stag, opening: Opening) -> Arc<Self> {
        let Opening { parts, base, access, domain, writable, .. } = opening;
        let len = parts.iter().map(|part| part.len).sum();
        let (at, span, parts) = match parts[..] {
            [] => (NonNull::dangling(), 0, Box::default()),
            [Part { at, len }] => (at, len, Box::default()),
            [Part { at, .. }, ..] => (at, 0, parts.into_boxed_slice()),
        };
        let ends = parts.iter().scan(0, |end, part| {
            *end += part.len;
            Some(*end)
        });
        let ends = ends.collect();
        Arc::new(Self {
            at,
            span,
            len,
            base: if access.contains(Access::ZERO_BASED) { 0 } else { base },
            access,
            domain,
            stag,
            made: Origin::here(),
            program_writes: writable,
            view: Some(Box::new(View { kind, home, parts, ends, stays: Mutex::default() })),
            tenants: Tenants::new(),
            by_key: UseCount::new(),
            by_program: Apart(UseCount::new()),
            holdings: Mutex::new(Holdings { owner: Owner::Nobody, parent: None }),
        })
    }
}
