//! What the user asks for, and how it can end.

use iwarp_ddp::Stag;

use crate::atomic::AtomicOperation;
use crate::state::State;
use crate::wire::IMMEDIATE_LEN;

/// One operation for the send queue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Operation<B> {
    /// What to do.
    pub kind: OperationKind,
    /// Octets of the message; of a Read or Atomic, those that come back.
    pub len: u32,
    /// Wait until all earlier Reads and Atomics have completed.
    pub fence: bool,
    /// The local side: what to send, or where a Read goes. Comes back when the operation is done.
    pub buffer: B,
}

/// Kinds of operations.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum OperationKind {
    /// Send into the next receive of the peer.
    Send {
        /// Raise a solicited event there.
        solicited: bool,
        /// Invalidate this `STag` of the peer.
        invalidate: Option<Stag>,
    },
    /// RDMA Write to the peer's memory.
    Write {
        /// Names the peer's buffer.
        stag: Stag,
        /// Where in it.
        offset: u64,
    },
    /// RDMA Write to the peer's memory, and behind it Immediate Data into the next receive of the peer
    /// (RFC 7306 §6): one operation, which is done when both are.
    WriteImmediate {
        /// Names the peer's buffer.
        stag: Stag,
        /// Where in it.
        offset: u64,
        /// The data.
        immediate: [u8; IMMEDIATE_LEN],
        /// Raise a solicited event there.
        solicited: bool,
    },
    /// RDMA Read from the peer's memory.
    Read {
        /// Names the local buffer on the wire. Only compared with what the response says.
        sink_stag: Stag,
        /// Where in it, likewise.
        sink_offset: u64,
        /// Names the peer's buffer.
        source_stag: Stag,
        /// Where in it.
        source_offset: u64,
    },
    /// An Atomic Operation on 64 bits of the peer's memory (RFC 7306 §5). What they were is put into the
    /// local buffer, in the order of octets of this host; `len` is 8.
    Atomic {
        /// Names the peer's buffer.
        stag: Stag,
        /// Where in it.
        offset: u64,
        /// What to do.
        operation: Box<AtomicOperation>,
    },
    /// Work on the local memory that sends nothing, such as to bind a window: carried out by
    /// [`Memory::perform`](crate::Memory::perform) in its turn.
    ///
    /// It takes effect when TCP has accepted everything ahead of it, and before anything behind it
    /// begins; with a fence it waits for earlier Reads as well, so that all that is ahead is complete.
    Local,
}

/// How an operation or a receive ended.
///
/// At most one operation or receive of a stream ends with something else than [`Success`](Self::Success)
/// or [`Flushed`](Self::Flushed).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Outcome {
    /// Done.
    Success,
    /// The stream ended first.
    Flushed,
    /// The local buffer may not be used so.
    LocalProtection,
    /// The local buffer is too short, or the message that came for it too long.
    LocalLength,
    /// The operation cannot be carried out: a Read or Atomic where none may be outstanding, local work that is refused.
    LocalOperation,
    /// The peer refused access to its memory.
    RemoteAccess,
    /// The peer does not know this kind of message.
    RemoteInvalidRequest,
    /// The peer could not carry out the request.
    RemoteOperation,
    /// What came for a Read or Atomic is not what was asked for.
    BadResponse,
    /// The peer asked to invalidate an `STag` that it may not.
    InvalidateRefused,
}

/// An operation that came too late, and itself.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the stream takes no more operations: {state}")]
pub struct SubmitError<B> {
    /// State of the stream.
    pub state: State,
    /// The operation, untouched.
    pub operation: Operation<B>,
}
