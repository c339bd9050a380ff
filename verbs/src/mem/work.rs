//! [`LocalWork`]: what requests of the send queue do to keys of this side.

use std::sync::Arc;

use iwarp_ddp::{Refusal, Stag};

use super::{
    FastRegion, KeyTable, Mapping, MemoryError, MemoryWindow, PdId, Peer, Region, WindowBinding,
};

/// A request that sends nothing.
#[derive(Clone, Debug)]
pub(crate) enum LocalWork {
    /// Takes a key out of force.
    Invalidate { stag: Stag },
    /// Binds a window under a key with this low octet.
    Bind { window: MemoryWindow, key: u8, binding: WindowBinding },
    /// Gives a fast-registered region memory, under a key with this low octet.
    Register { region: FastRegion, key: u8, mapping: Mapping },
}

impl LocalWork {
    /// All that can be told at posting.
    pub(crate) fn check(&self, domain: PdId) -> Result<(), MemoryError> {
        match self {
            // The key is looked at when the request's turn comes.
            Self::Invalidate { .. } => Ok(()),
            Self::Bind { window, binding, .. } => window.check(binding, domain),
            Self::Register { region, mapping, .. } => region.check(mapping, domain),
        }
    }

    /// Does it, for this queue pair. What it returns, if anything, is the queue pair's own from here on.
    pub(crate) fn perform(&self, peer: Peer) -> Result<Option<Arc<Region>>, MemoryError> {
        match self {
            Self::Invalidate { stag } => {
                let unknown = MemoryError::UnknownKey { key: stag.raw() };
                let region = KeyTable::of_process().lookup(*stag).ok_or(unknown)?;
                region.check_revocation(peer, *stag).map_err(|refusal| match refusal {
                    Refusal::NotAssociated => MemoryError::ForeignDomain,
                    _ => unknown,
                })?;
                region.invalidate()?;
                Ok(None)
            }
            Self::Bind { window, key, binding } => {
                let view = window.bind(peer, *key, binding)?;
                Ok((view.domain() == peer.stream).then_some(view))
            }
            Self::Register { region, key, mapping } => {
                region.register(peer, *key, mapping).map(|_| None)
            }
        }
    }
}
