//! Registered memory: all unsafe code of the workspace, behind checked interfaces.
//!
//! A *region* is octets that the program, this library and peers may touch at once. It is a raw
//! pointer and a length inside an `Arc`, never a slice, and everything that touches it goes through
//! `copy.rs`. A peer or a work request names a region by a 32-bit key (lkey, rkey and `STag` are the
//! same number here); `table.rs` finds it, one function in `region.rs` decides whether the access is
//! allowed, and a use count held for that one copy or one system call is what deregistration and
//! invalidation wait for.
//!
//! | file | holds |
//! |---|---|
//! | `handle.rs` | what programs see: [`MemoryRegion`], [`Owned`], [`MrSlice`], [`RemoteMemory`] |
//! | `access.rs` | [`Access`] rights |
//! | `region.rs` | the region: checks, use guards, revocation |
//! | `use_count.rs` | the word that counts users and shuts them out |
//! | `copy.rs` | the loads and stores |
//! | `buffer.rs` | memory of our own, and what a given buffer must promise |
//! | `table.rs` | keys |
//! | `iov.rs` | one `sendmsg` over private octets and regions |
//! | `descriptor.rs` | no memory, but unsafe: descriptors in tokio's reactor |
//! | `fork.rs` | no memory, but unsafe: forked children find themselves out |
//! | `signals.rs` | no memory, but unsafe: threads without signals |

#![allow(
    unsafe_code,
    reason = "memory shared with peers is outside of what the language can describe"
)]

mod access;
mod buffer;
mod copy;
mod descriptor;
mod fork;
mod handle;
mod iov;
mod region;
mod register;
mod signals;
mod table;
#[cfg(test)]
#[cfg(not(loom))]
mod tests;
mod use_count;

pub use access::Access;
pub use buffer::StableBytes;
pub(crate) use descriptor::{watch, watch_socket};
pub(crate) use fork::{Origin, PerProcess, random_u32};
pub use handle::{MemoryRegion, MrSlice, Owned, RegisterError, RemoteMemory};
pub(crate) use iov::{GatherList, SendFlags};
pub(crate) use region::{Domain, PdId, Peer, Region};
pub(crate) use signals::without_signals;
pub(crate) use table::KeyTable;

/// Why registered memory cannot be used as asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum MemoryError {
    /// Bits that are no access right.
    #[error("access bits {bits:#x} are not known")]
    UnknownAccess {
        /// The bits in question.
        bits: u32,
    },
    /// Remote write and remote atomic access need local write access as well.
    #[error("{access:?} needs LOCAL_WRITE as well")]
    NeedsLocalWrite {
        /// The rights asked for.
        access: Access,
    },
    /// The last octet would lie beyond the address space.
    #[error("{len} octets at address {at:#x} go beyond the address space")]
    AddressWraps {
        /// First address.
        at: u64,
        /// Octets.
        len: u64,
    },
    /// More octets than an allocation can have.
    #[error("{len} octets are more than one region can have")]
    TooLarge {
        /// Octets asked for.
        len: usize,
    },
    /// The system has no memory left.
    #[error("no memory for a region of {len} octets")]
    OutOfMemory {
        /// Octets asked for.
        len: usize,
    },
    /// All keys of the process are in use.
    #[error("{live} regions are registered, no key is left")]
    NoKeyLeft {
        /// Regions registered at present.
        live: usize,
    },
    /// The system gave no random octets to make a key of.
    #[error("no random octets for a memory key: {0}")]
    NoRandomness(std::io::ErrorKind),
    /// Octets outside the region.
    #[error("{len} octets at {offset} are outside of {size} octets")]
    OutOfBounds {
        /// First octet asked for, counted from the start of the region or slice (for a raw work
        /// request: an address).
        offset: u64,
        /// Octets asked for.
        len: u64,
        /// Octets there are.
        size: u64,
    },
    /// An integer access that is not aligned.
    #[error("offset {offset} is not aligned to 8 octets")]
    Misaligned {
        /// The offset.
        offset: usize,
    },
    /// The region lacks a right.
    #[error("{need:?} is not among the rights {have:?}")]
    Rights {
        /// What the access needs.
        need: Access,
        /// What the region was registered with.
        have: Access,
    },
    /// The region belongs to another protection domain than the queue pair.
    #[error("the region belongs to another protection domain")]
    ForeignDomain,
    /// No region has this key.
    #[error("no region has key {key:#010x}")]
    UnknownKey {
        /// The key.
        key: u32,
    },
    /// The key was invalidated, by a peer or by a work request.
    #[error("the key of the region was invalidated")]
    Invalidated,
    /// The region was deregistered.
    #[error("the region was deregistered")]
    Deregistered,
    /// The protection domain, or its device, was destroyed.
    #[error("the protection domain was destroyed")]
    DomainDestroyed,
}

impl From<MemoryError> for iwarp_ddp::LocalFault {
    /// Whatever is wrong with the local memory of a running work request is a protection error.
    fn from(_: MemoryError) -> Self {
        Self::Protection
    }
}
