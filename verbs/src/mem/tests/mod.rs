//! Regions and keys as peers, work requests and programs meet them.

mod checks;
mod keys;
mod model;
mod raw;
mod regions;
mod revocation;
mod views;

use std::sync::Arc;

use iwarp_ddp::{Refusal, Stag};

use super::*;

pub(super) fn domain() -> Domain {
    Domain { id: PdId::new(), parent: Arc::new(()) }
}

pub(super) fn all_rights() -> Access {
    Access::LOCAL_WRITE | Access::REMOTE
}

pub(super) fn peer_of(domain: &Domain) -> Peer {
    Peer { domain: domain.id, stream: PdId::new(), rights: Access::REMOTE, invalidates: true }
}

/// What the engine does with a peer's tagged segment.
pub(super) fn place(peer: Peer, stag: u32, to: u64, payload: &[u8]) -> Result<(), Refusal> {
    // DDP-030
    if payload.is_empty() {
        return Ok(());
    }
    let stag = Stag::from_raw(stag);
    let region = KeyTable::of_process().lookup(stag).ok_or(Refusal::InvalidStag)?;
    region.place(peer, stag, to, payload)
}

pub(super) fn fetch(peer: Peer, stag: u32, to: u64, len: usize) -> Result<Vec<u8>, Refusal> {
    if len == 0 {
        return Ok(Vec::new());
    }
    let stag = Stag::from_raw(stag);
    let region = KeyTable::of_process().lookup(stag).ok_or(Refusal::InvalidStag)?;
    let mut into = vec![0; len];
    region.fetch(peer, stag, to, &mut into).map(|()| into)
}

pub(super) fn contents(region: &MemoryRegion) -> Vec<u8> {
    let mut octets = vec![0; region.len()];
    region.read_at(0, &mut octets).unwrap();
    octets
}
