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
//! | `region.rs` | the region: checks, revocation |
//! | `guard.rs` | one access to its octets, which revocation waits for |
//! | `use_count.rs` | the word that counts users and shuts them out |
//! | `copy.rs` | the loads and stores |
//! | `atomic.rs` | the atomic read-modify-writes |
//! | `error.rs` | [`MemoryError`] |
//! | `buffer.rs` | memory of our own, and what a given buffer must promise |
//! | `table.rs` | keys |
//! | `view.rs` | what windows and fast-registered regions have in common |
//! | `window.rs`, `fast.rs` | [`MemoryWindow`], [`FastRegion`] |
//! | `work.rs` | binding, registering and invalidating as work of the send queue |
//! | `tenants.rs` | what lies over a region, and keeps it from being given up |
//! | `mapped.rs` | whether raw memory is there |
//! | `iov.rs` | one `sendmsg` over private octets and regions |
//! | `receive.rs` | one `recvmsg` into a region |
//! | `register.rs`, `rereg.rs` | registration and reregistration |
//! | `descriptor.rs` | no memory, but unsafe: descriptors in tokio's reactor |
//! | `fork.rs` | no memory, but unsafe: forked children find themselves out |
//! | `signals.rs` | no memory, but unsafe: threads without signals |
//! | `usable.rs` | no memory, but unsafe: how much TCP can send at once |

#![allow(
    unsafe_code,
    reason = "memory shared with peers is outside of what the language can describe"
)]

mod access;
mod atomic;
mod buffer;
mod copy;
mod descriptor;
mod error;
mod fast;
mod fork;
mod guard;
mod handle;
mod iov;
mod mapped;
mod receive;
mod region;
mod register;
mod rereg;
mod signals;
mod table;
mod tenants;
#[cfg(test)]
#[cfg(not(loom))]
mod tests;
mod usable;
mod use_count;
mod view;
mod window;
mod work;

pub use access::Access;
pub use buffer::StableBytes;
pub(crate) use descriptor::{watch, watch_socket};
pub use error::MemoryError;
pub use fast::{FastRegion, Mapping};
pub(crate) use fork::{Origin, PerProcess, random_u32};
pub use handle::{MemoryRegion, MrSlice, Owned, RegisterError, RemoteMemory};
pub(crate) use iov::{GatherList, SendFlags};
pub(crate) use receive::{STRAIGHT_FROM, receive_into};
pub(crate) use region::{Domain, PdId, Peer, Region};
pub use rereg::{Reregister, ReregisterError};
pub(crate) use signals::without_signals;
pub(crate) use table::KeyTable;
pub(crate) use usable::usable_window;
pub use window::{MemoryWindow, WindowBinding, WindowType};
pub(crate) use work::LocalWork;
