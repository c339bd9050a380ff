//! Why a connection did not come about, or how it ended: what happened, and where.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use iwarp_mpa::StartupError;
use rustix::io::Errno;

/// Where a connection was in its set-up when it failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Phase {
    /// Looking up the name of the peer.
    Resolve,
    /// Opening the TCP connection.
    Tcp,
    /// Waiting for the peer's MPA Reply.
    Reply,
    /// Waiting for the peer's MPA Request, over a connection that the program made.
    Request,
    /// Waiting for the program at the other end of a Request to accept or reject it.
    Decision,
    /// Sending this side's MPA Reply.
    SendReply,
    /// Waiting for the initiator's ready-to-receive message (RFC 6581 §9.2).
    Rtr,
}

/// Why a connection could not be set up.
///
/// Every variant names the address or the object it is about. [`ConnectError::errno`] gives the number
/// a C program would see.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConnectError {
    /// The address cannot be used as it is written.
    #[error("address {text:?} cannot be used: {reason}")]
    Address {
        /// The address as it was given.
        text: String,
        /// What is wrong with it.
        reason: &'static str,
    },

    /// The name does not resolve.
    #[error("name {host:?} does not resolve: {cause}")]
    Resolve {
        /// The name.
        host: String,
        /// What the resolver said.
        cause: Arc<io::Error>,
    },

    /// The local address cannot be bound or listened on, for example because the port is in use.
    #[error("cannot bind to {addr}: {cause}")]
    Bind {
        /// The local address.
        addr: SocketAddr,
        /// What the system said.
        cause: Arc<io::Error>,
    },

    /// Nothing listens at the peer's port.
    #[error("{addr} refused the connection: nothing listens there")]
    Refused {
        /// The peer.
        addr: SocketAddr,
    },

    /// The peer cannot be reached: no route, or the system could not make the TCP connection.
    #[error("{addr} cannot be reached: {cause}")]
    Unreachable {
        /// The peer.
        addr: SocketAddr,
        /// What the system said.
        cause: Arc<io::Error>,
    },

    /// The peer did not answer in time.
    #[error("{peer} timed out after {after:?} {phase}")]
    TimedOut {
        /// The peer, as far as it was known.
        peer: String,
        /// What was being waited for.
        phase: Phase,
        /// How long the set-up had been going on.
        after: Duration,
    },

    /// The program at the peer refused, with whatever it had to say.
    #[error("{addr} rejected the connection with {} octets of private data", private_data.len())]
    Rejected {
        /// The peer.
        addr: SocketAddr,
        /// Its reason, in the program's own terms. Not text.
        private_data: Bytes,
        /// IRD the peer stated, if it used an enhanced frame (CONN-11).
        ird: Option<u32>,
        /// ORD the peer stated, if it used an enhanced frame (CONN-11).
        ord: Option<u32>,
    },

    /// The peer closed or reset the TCP connection during set-up.
    #[error("{addr} closed the connection {phase}")]
    Closed {
        /// The peer.
        addr: SocketAddr,
        /// What was being waited for.
        phase: Phase,
    },

    /// The peer does not follow MPA; the TCP connection was closed (MPA-085).
    #[error("{addr} does not speak MPA as it should: {cause}")]
    Protocol {
        /// The peer.
        addr: SocketAddr,
        /// What was wrong.
        cause: StartupError,
    },

    /// The peer's Reply asks for more RDMA Reads at once than this side can take; it was told so by a
    /// Terminate (CONN-17).
    #[error("{addr} needs a deeper IRD than this side has")]
    InsufficientIrd {
        /// The peer.
        addr: SocketAddr,
    },

    /// The two sides have no ready-to-receive message in common; the peer was told so by a Terminate
    /// (CONN-25).
    #[error("{addr} has no ready-to-receive message in common with this side")]
    NoCommonRtr {
        /// The peer.
        addr: SocketAddr,
    },

    /// The connection ended before the first message that would have established it.
    #[error("connection with {addr} ended before it was established: {reason}")]
    Ended {
        /// The peer.
        addr: SocketAddr,
        /// How it ended.
        reason: super::CloseReason,
    },

    /// A parameter of this side cannot be sent, such as private data that is too long.
    #[error("connection parameters cannot be used: {0}")]
    Param(StartupError),

    /// The system refused a resource on this side.
    #[error("no connection with {peer}: {cause}")]
    Local {
        /// The peer.
        peer: String,
        /// What the system said.
        cause: Arc<io::Error>,
    },

    /// The descriptor that was to carry the connection is not that of a TCP connection.
    #[error("descriptor carries no TCP connection: {0}")]
    NotConnected(Arc<io::Error>),

    /// A read depth above what the device serves.
    #[error("a read depth of {depth} is above the device's limit of {max}")]
    Depth {
        /// The IRD or ORD asked for.
        depth: u16,
        /// The most there can be.
        max: u16,
    },

    /// The device's driver thread, which carries set-ups, cannot be started.
    #[error("the device's driver cannot be started: {0}")]
    Driver(Arc<io::Error>),

    /// The queue pair cannot be connected: it is connected already, was used up by an earlier
    /// connection, or belongs to another device.
    #[error("queue pair cannot be connected: {0}")]
    QueuePair(Arc<crate::Error>),

    /// No peer asked for a connection in time.
    #[error("no connection request at {addr} within {after:?}")]
    NoRequest {
        /// Where the listener listens.
        addr: SocketAddr,
        /// How long it was waited for.
        after: Duration,
    },

    /// The id is not in a state for this call.
    #[error("{call} is not possible: {state}")]
    State {
        /// The call.
        call: &'static str,
        /// What the id is.
        state: &'static str,
    },

    /// The process was forked from the one that opened the device (FC-064).
    #[error("the device belongs to the process that this one was forked from")]
    Forked,

    /// The set-up was given up by this side: its id or future was dropped, or the device was closed.
    #[error("connection set-up was cancelled")]
    Cancelled,
}

impl ConnectError {
    /// What a failed exchange of start-up frames means.
    pub(crate) fn startup(addr: SocketAddr, phase: Phase, cause: StartupError) -> Self {
        match cause {
            StartupError::Closed { .. } => Self::Closed { addr, phase },
            cause => Self::Protocol { addr, cause },
        }
    }

    /// What a failed TCP connect means (FC-051).
    pub(crate) fn tcp(addr: SocketAddr, cause: io::Error) -> Self {
        match Errno::from_io_error(&cause) {
            Some(Errno::CONNREFUSED) => Self::Refused { addr },
            Some(Errno::CONNRESET | Errno::PIPE) => Self::Closed { addr, phase: Phase::Tcp },
            _ => Self::Unreachable { addr, cause: Arc::new(cause) },
        }
    }

    pub(crate) fn param(error: iwarp_mpa::Error) -> Self {
        Self::Param(startup_error(error))
    }

    pub(crate) fn queue_pair(error: crate::Error) -> Self {
        Self::QueuePair(Arc::new(error))
    }

    /// The peer, where it is known.
    #[must_use]
    pub fn peer(&self) -> Option<SocketAddr> {
        match self {
            Self::Refused { addr }
            | Self::Unreachable { addr, .. }
            | Self::Rejected { addr, .. }
            | Self::Closed { addr, .. }
            | Self::Protocol { addr, .. }
            | Self::InsufficientIrd { addr }
            | Self::NoCommonRtr { addr }
            | Self::Ended { addr, .. } => Some(*addr),
            Self::TimedOut { peer, .. } | Self::Local { peer, .. } => peer.parse().ok(),
            _ => None,
        }
    }

    /// The positive error number of the system that says the same, as a C program expects it (FC-051).
    #[must_use]
    pub fn errno(&self) -> i32 {
        let of = |cause: &io::Error| cause.raw_os_error();
        let errno = match self {
            Self::Address { .. }
            | Self::Param(_)
            | Self::Depth { .. }
            | Self::State { .. }
            | Self::QueuePair(_) => Errno::INVAL,
            Self::Resolve { cause, .. } => {
                return of(cause).unwrap_or_else(|| Errno::ADDRNOTAVAIL.raw_os_error());
            }
            Self::Bind { cause, .. }
            | Self::Local { cause, .. }
            | Self::NotConnected(cause)
            | Self::Driver(cause) => {
                return of(cause).unwrap_or_else(|| Errno::IO.raw_os_error());
            }
            Self::Unreachable { cause, .. } => {
                return of(cause).unwrap_or_else(|| Errno::HOSTUNREACH.raw_os_error());
            }
            Self::Refused { .. } | Self::Rejected { .. } => Errno::CONNREFUSED,
            Self::TimedOut { .. } | Self::NoRequest { .. } => Errno::TIMEDOUT,
            Self::Closed { .. } | Self::Ended { .. } => Errno::CONNRESET,
            Self::Protocol { .. } | Self::InsufficientIrd { .. } | Self::NoCommonRtr { .. } => {
                Errno::PROTO
            }
            Self::Forked => Errno::NODEV,
            Self::Cancelled => Errno::CANCELED,
        };
        errno.raw_os_error()
    }

    /// What the peer's program sent with its rejection; nothing for any other failure (FC-013).
    #[must_use]
    pub fn private_data(&self) -> &[u8] {
        match self {
            Self::Rejected { private_data, .. } => private_data,
            _ => &[],
        }
    }
}

/// The exchange of start-up frames has errors of its own kind only; the rest of MPA comes after it.
pub(crate) fn startup_error(error: iwarp_mpa::Error) -> StartupError {
    match error {
        iwarp_mpa::Error::Startup(cause) => cause,
        _ => StartupError::Closed { received: 0 },
    }
}

impl fmt::Display for Phase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Resolve => "while its name was being looked up",
            Self::Tcp => "while the TCP connection was being opened",
            Self::Reply => "before its MPA reply was complete",
            Self::Request => "before its MPA request was complete",
            Self::Decision => "before its request was answered",
            Self::SendReply => "while the MPA reply was being sent",
            Self::Rtr => "before its ready-to-receive message",
        })
    }
}
