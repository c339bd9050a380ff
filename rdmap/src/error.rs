//! What can end a stream, by the layer that found it. What goes to the peer for each of them is decided
//! in one place, the table of `terminate.rs`.

use iwarp_ddp::{LocalFault, Refusal, UntaggedError};

use crate::memory::{AtomicRefusal, InvalidateRefusal};
use crate::terminate::TerminateCode;

/// Why a stream came to an end.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The framing is broken, or the peer's half ended inside an FPDU.
    #[error(transparent)]
    Mpa(#[from] iwarp_mpa::Error),
    /// A segment of the peer cannot be placed.
    #[error(transparent)]
    Ddp(#[from] iwarp_ddp::Error),
    /// The peer asked for memory that it may not touch.
    #[error(transparent)]
    Protection(#[from] ProtectionError),
    /// The peer sent something that RDMAP does not allow.
    #[error(transparent)]
    Operation(#[from] OperationError),
    /// Something on this side failed.
    #[error(transparent)]
    Local(#[from] LocalError),
    /// The peer's Terminate is malformed.
    #[error(transparent)]
    BadTerminate(#[from] BadTerminate),
    /// The user of this side asked for a Terminate.
    #[error("Terminate {0} was asked for")]
    Requested(TerminateCode),
    /// An FPDU stayed incomplete for longer than [`StreamConfig::partial_fpdu`](crate::StreamConfig::partial_fpdu).
    #[error("the rest of an FPDU did not arrive in time: {missing} octets are missing")]
    FpduStalled {
        /// Octets that were still to come, as far as its length was known.
        missing: usize,
    },
}

impl From<UntaggedError> for Error {
    fn from(error: UntaggedError) -> Self {
        Self::Ddp(error.into())
    }
}

impl From<iwarp_ddp::TaggedError> for Error {
    fn from(error: iwarp_ddp::TaggedError) -> Self {
        Self::Ddp(error.into())
    }
}

/// Remote protection errors: layer 0, type 1 (RFC 5040 §4.8).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
pub enum ProtectionError {
    /// The `STag` of a Read or Atomic names no registered memory.
    #[error("peer's Read or Atomic names an STag that is not valid")]
    InvalidStag,
    /// A Read or Atomic reaches outside the memory it names.
    #[error("peer's Read or Atomic reaches outside the range of its STag")]
    Bounds,
    /// A Read or Atomic of memory that does not allow it.
    #[error("peer's Read or Atomic of memory without remote access of that kind")]
    Rights,
    /// A Read or Atomic of memory of another protection domain or stream.
    #[error("peer's Read or Atomic names an STag that is not associated with this stream")]
    NotAssociated,
    /// Offset and length of a Read or Atomic add up to 2^64 or more.
    #[error("tagged offset of the peer's Read or Atomic wraps")]
    Wrap,
    /// Invalidation of an `STag` without remote access.
    #[error("peer asked to invalidate an STag without remote access rights")]
    InvalidateRights,
    /// Invalidation of an `STag` that this peer may not invalidate.
    #[error("peer asked to invalidate an STag that it may not")]
    NotInvalidatable,
}

impl From<Refusal> for ProtectionError {
    fn from(refusal: Refusal) -> Self {
        match refusal {
            Refusal::InvalidStag => Self::InvalidStag,
            Refusal::NotAssociated => Self::NotAssociated,
            Refusal::Rights => Self::Rights,
            Refusal::Wrap => Self::Wrap,
            Refusal::Bounds => Self::Bounds,
        }
    }
}

impl From<AtomicRefusal> for Error {
    fn from(refusal: AtomicRefusal) -> Self {
        match refusal {
            AtomicRefusal::Access(refusal) => ProtectionError::from(refusal).into(),
            AtomicRefusal::Misaligned => OperationError::AtomicMisaligned.into(),
        }
    }
}

impl From<InvalidateRefusal> for Error {
    fn from(refusal: InvalidateRefusal) -> Self {
        // RDMAP-045, RDMAP-077; decision D5.
        match refusal {
            InvalidateRefusal::Unknown => OperationError::InvalidateUnknown.into(),
            InvalidateRefusal::NotInvalidatable => ProtectionError::NotInvalidatable.into(),
            InvalidateRefusal::Rights => ProtectionError::InvalidateRights.into(),
        }
    }
}

/// Remote operation errors: layer 0, type 2 (RFC 5040 §4.8).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
pub enum OperationError {
    /// The RDMAP version is not 1.
    #[error("RDMAP version {0} is not served")]
    Version(u8),
    /// The opcode has no name, or is one of RFC 7306 where those are not served.
    #[error("RDMAP opcode {0:#x} is not served")]
    Opcode(u8),
    /// A tagged segment with an untagged opcode, or the reverse.
    #[error("RDMAP opcode {0:#x} contradicts the T bit of its segment")]
    TagMismatch(u8),
    /// The opcode changes inside a message.
    #[error("RDMAP opcode {found:#x} inside a message of opcode {open:#x}")]
    OpcodeChanged {
        /// Opcode of the message that is open.
        open: u8,
        /// Opcode of the segment.
        found: u8,
    },
    /// A message of one segment, and its segment is not the last.
    #[error("message of one segment without the Last flag")]
    NotLast,
    /// A Read Request is shorter or longer than its header.
    #[error("Read Request of {len} octets, not 28")]
    RequestLength {
        /// Octets behind the DDP header.
        len: usize,
    },
    /// Immediate Data is shorter or longer than it may be.
    #[error("Immediate Data of {len} octets, not 8")]
    ImmediateLength {
        /// Octets behind the DDP header.
        len: usize,
    },
    /// An Atomic Request is shorter or longer than its header.
    #[error("Atomic Request of {len} octets, not 52")]
    AtomicRequestLength {
        /// Octets behind the DDP header.
        len: usize,
    },
    /// An Atomic Response is shorter or longer than its header.
    #[error("Atomic Response of {len} octets, not 12")]
    AtomicResponseLength {
        /// Octets behind the DDP header.
        len: usize,
    },
    /// The operation of an Atomic Request has no name.
    #[error("Atomic Operation {0} is not served")]
    AtomicOpcode(u32),
    /// An Atomic Request names memory that is not aligned.
    #[error("peer's Atomic names memory that is not aligned to 8 octets")]
    AtomicMisaligned,
    /// An Atomic Response answers no Atomic of this side, or not the one whose answer is due.
    #[error("Atomic Response with identifier {id:#010x} answers no request that is due")]
    AtomicUnmatched {
        /// The request identifier that it carries.
        id: u32,
    },
    /// The `STag` to invalidate names nothing.
    #[error("peer asked to invalidate an unknown STag")]
    InvalidateUnknown,
    /// The peer closed its half while there was work that cannot end without it.
    #[error("peer closed its half of the stream with work pending")]
    FinWithWork,
}

/// Errors of this side: layer 0, type 0 (RFC 5040 §4.8).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
pub enum LocalError {
    /// What an operation should send cannot be read.
    #[error("source of a Send or Write: {0}")]
    Source(LocalFault),
    /// The buffer of a Read or Atomic cannot be written.
    #[error("sink of a Read or Atomic: {0}")]
    Sink(LocalFault),
    /// The buffer of a receive cannot be written.
    #[error("receive: {0}")]
    Receive(LocalFault),
    /// A Read or Atomic was submitted, and the stream allows none.
    #[error("Read or Atomic on a stream with ORD 0")]
    NoOrd,
    /// The owner of the memory refused local work.
    #[error("local work request refused")]
    WorkRefused,
}

/// Why a peer's Terminate cannot be read. Such a message ends the stream like any other Terminate, and
/// like any other it is not answered (RDMAP-056).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
pub enum BadTerminate {
    /// It is tagged.
    #[error("Terminate in a tagged segment")]
    Tagged,
    /// Its queue, message number or offset is wrong.
    #[error("Terminate refused: {0}")]
    Segment(UntaggedError),
    /// It is not the last segment of its message.
    #[error("Terminate without the Last flag")]
    NotLast,
    /// It ends inside its control field, or inside a header that it announces.
    #[error("Terminate of {len} octets ends inside its header")]
    Truncated {
        /// Octets behind the DDP header.
        len: usize,
    },
}
