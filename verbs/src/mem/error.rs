//! [`MemoryError`]: why registered memory cannot be used as asked.

use super::Access;

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
    /// The region was deregistered, or the window freed.
    #[error("the region was deregistered")]
    Deregistered,
    /// The region cannot be given up: something lies over it.
    #[error("{windows} windows are bound to the region, {registrations} fast registrations map it")]
    InUse {
        /// Windows that are bound to it.
        windows: u32,
        /// Fast-registered regions that have octets of it.
        registrations: u32,
    },
    /// The protection domain, or its device, was destroyed.
    #[error("the protection domain was destroyed")]
    DomainDestroyed,
    /// The process was forked from the one that registered the memory, or made the window or the protection
    /// domain (FC-064). What a region holds can still be read and written here.
    #[error("the memory was registered by the process that this one was forked from")]
    Forked,
    /// A window of type 2, or a fast-registered region, whose key is in force: it has to be invalidated
    /// before it can be bound or registered anew.
    #[error("key {key:#010x} is in force, it has to be invalidated before")]
    StillValid {
        /// The key.
        key: u32,
    },
    /// Rights that a window or fast registration cannot have.
    #[error("{access:?} cannot be among the rights of a {what}")]
    RightsOf {
        /// What they were meant for.
        what: &'static str,
        /// The rights in question.
        access: Access,
    },
    /// Windows can only be bound to regions whose tagged offsets are addresses.
    #[error("no window can be bound to a zero-based region")]
    ZeroBased,
    /// A window was named as local memory of a request.
    #[error("key {key:#010x} is that of a window, which is for peers only")]
    WindowKey {
        /// The key.
        key: u32,
    },
    /// More separate ranges than a fast-registered region was allocated for.
    #[error("{have} ranges for a region of at most {max}")]
    TooManyRanges {
        /// Ranges to be mapped.
        have: usize,
        /// The limit.
        max: usize,
    },
    /// Raw memory that is not there.
    #[error("nothing is mapped at address {at:#x}")]
    NotMapped {
        /// The first address without memory.
        at: u64,
    },
    /// Raw memory that may not be read, or with [`Access::LOCAL_WRITE`] not be written.
    #[error("the memory at address {at:#x} does not allow what {access:?} promises")]
    NotAccessible {
        /// The first address in question.
        at: u64,
        /// The rights asked for.
        access: Access,
    },
    /// The buffer belongs to an [`Owned`](crate::Owned): deregister that, and register the buffer again.
    #[error("the region's buffer is to be given back, so it cannot be reregistered")]
    OwnedBuffer,
}

impl MemoryError {
    /// The `errno` that a C program sees.
    #[must_use]
    pub fn errno(&self) -> i32 {
        use rustix::io::Errno;
        match self {
            Self::OutOfMemory { .. } | Self::NoKeyLeft { .. } => Errno::NOMEM,
            Self::InUse { .. } => Errno::BUSY,
            Self::NotMapped { .. } => Errno::FAULT,
            Self::NotAccessible { .. } => Errno::ACCESS,
            Self::Forked => Errno::NODEV,
            _ => Errno::INVAL,
        }
        .raw_os_error()
    }
}

impl From<MemoryError> for iwarp_ddp::LocalFault {
    /// Whatever is wrong with the local memory of a running work request is a protection error.
    fn from(_: MemoryError) -> Self {
        Self::Protection
    }
}
