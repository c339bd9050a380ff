//! Why a work request was not posted.

use super::SendRequest;
use crate::attr::QpState;
use crate::mem::{Access, MemoryError};

/// A request that was not posted, and why.
///
/// Of a list, those before it are posted, it is the first that is not, and those behind it have not been
/// looked at: they are still in the iterator, if that was given as `&mut` (FC-065).
#[derive(Debug, thiserror::Error)]
#[error("work request {index} of the list was not posted: {cause}")]
pub struct PostError<R = SendRequest> {
    /// Its place in the list that was posted, from 0.
    pub index: usize,
    /// Why.
    #[source]
    pub cause: PostErrorCause,
    /// The request.
    pub request: Box<R>,
}

/// Why a request was not posted.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PostErrorCause {
    /// As many requests as the queue holds are outstanding. A place is free once the completion of a
    /// request, or of a later one of the same queue, has been polled (FC-066).
    #[error("all {capacity} places of the queue are taken")]
    QueueFull {
        /// Places of the queue.
        capacity: u32,
    },
    /// The queue pair is in a state in which such requests are not taken.
    #[error("the queue pair is in state {0}")]
    State(QpState),
    /// The queue pair takes its receives from a [`SharedReceiveQueue`](crate::SharedReceiveQueue), and they
    /// are posted there.
    #[error("the queue pair has no receives of its own: post to its shared receive queue")]
    SharedReceives,
    /// The queue was destroyed through another handle.
    #[error("the {what} was destroyed")]
    Destroyed {
        /// The object.
        what: &'static str,
    },
    /// More elements than the queue was created for.
    #[error("{have} elements, the queue takes {max}")]
    TooManyElements {
        /// Elements of the request.
        have: usize,
        /// The limit.
        max: u32,
    },
    /// More inline data than the queue pair was created for.
    #[error("{len} octets of inline data, the queue pair takes {max}")]
    InlineTooLong {
        /// Octets of the request.
        len: u64,
        /// The limit.
        max: u32,
    },
    /// A longer message than there can be.
    #[error("a message of {len} octets, {max} is the most")]
    MessageTooLong {
        /// Octets of the request.
        len: u64,
        /// The limit.
        max: u32,
    },
    /// More octets than the peer's memory has, by the [`RemoteMemory`](crate::RemoteMemory) of the request.
    #[error("{len} octets for remote memory of {remote} octets")]
    OutOfBounds {
        /// Octets of the request.
        len: u64,
        /// Octets of the peer's memory.
        remote: u64,
    },
    /// An element lies in a region of another protection domain.
    #[error("element {element} belongs to another protection domain")]
    ForeignRegion {
        /// The element, from 0.
        element: usize,
    },
    /// An element lies in a region that lacks a right.
    #[error("element {element} needs {need:?}, its region has {have:?}")]
    Rights {
        /// The element, from 0.
        element: usize,
        /// What the request needs.
        need: Access,
        /// What the region was registered with.
        have: Access,
    },
    /// An element lies in a region that was deregistered.
    #[error("the region of element {element} was deregistered")]
    Deregistered {
        /// The element, from 0.
        element: usize,
    },
    /// An Atomic brings eight octets, and needs one element of that length for them.
    #[error("an Atomic brings 8 octets into one element, not {len} into {elements}")]
    AtomicSink {
        /// Elements of the request.
        elements: usize,
        /// Octets of the request.
        len: u64,
    },
    /// An Atomic names a place that is not a multiple of 8.
    #[error("remote address {addr:#x} of an Atomic is not a multiple of 8")]
    Misaligned {
        /// The place.
        addr: u64,
    },
    /// The process was forked from the one that opened the device (FC-064).
    #[error("the device belongs to the process that this one was forked from")]
    Forked,
    /// A window or a region that cannot be bound or registered so.
    #[error(transparent)]
    Memory(#[from] MemoryError),
    /// Something that iWARP, or this version, does not know.
    #[error("{0} is not supported")]
    NotSupported(&'static str),
}

impl PostErrorCause {
    /// The `errno` that a C program sees.
    #[must_use]
    pub fn errno(&self) -> i32 {
        use rustix::io::Errno;
        match self {
            Self::QueueFull { .. } => Errno::NOMEM,
            Self::NotSupported(_) => Errno::OPNOTSUPP,
            Self::Forked => Errno::NODEV,
            Self::Memory(error) => return error.errno(),
            _ => Errno::INVAL,
        }
        .raw_os_error()
    }
}

impl<R> PostError<R> {
    /// The `errno` that a C program sees.
    #[must_use]
    pub fn errno(&self) -> i32 {
        self.cause.errno()
    }
}
