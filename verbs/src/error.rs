//! What can go wrong when objects are made, changed or waited for.
//!
//! Failures of connections are [`cm::ConnectError`](crate::cm::ConnectError), refused work requests
//! [`PostError`](crate::PostError), failed ones [`WcStatus`](crate::WcStatus).

use std::io;

use crate::attr::QpState;
use crate::config::ConfigError;
use crate::mem::MemoryError;

/// Why a call failed. The object is unchanged.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The configuration of a device is not usable.
    #[error(transparent)]
    Config(#[from] ConfigError),

    /// More was asked for than the device offers (FC-043, FC-071).
    #[error("{asked} {what} asked for, the limit is {max}")]
    Limit {
        /// The attribute, in words.
        what: &'static str,
        /// The value asked for.
        asked: u64,
        /// The largest value; [`DeviceAttributes`](crate::DeviceAttributes) tells it beforehand.
        max: u64,
    },

    /// An object without any room was asked for.
    #[error("a {what} without entries was asked for")]
    Empty {
        /// The object.
        what: &'static str,
    },

    /// Less was asked for than is in use already.
    #[error("{asked} {what} asked for, {needed} are in use")]
    TooSmall {
        /// The attribute, in words.
        what: &'static str,
        /// The value asked for.
        asked: u64,
        /// The least value possible at present.
        needed: u64,
    },

    /// A completion queue was armed that has no channel to tell.
    #[error("the completion queue was made without a completion channel")]
    NoChannel,

    /// Access rights that mean nothing here.
    #[error("{access:?} is no right of a queue pair")]
    QueuePairRights {
        /// The rights asked for.
        access: crate::Access,
    },

    /// Objects of two devices were put together.
    #[error("the {what} belongs to another device")]
    ForeignDevice {
        /// The object that does not fit.
        what: &'static str,
    },

    /// The process was forked from the one that opened the device, and has to open one of its own: the
    /// connections are the parent's (FC-064).
    #[error("the device belongs to the process that this one was forked from")]
    Forked,

    /// The object is still in use.
    #[error("the {what} is in use by {users} {by}")]
    Busy {
        /// The object.
        what: &'static str,
        /// How many objects use it.
        users: usize,
        /// What kind of objects.
        by: &'static str,
    },

    /// The object was destroyed through another handle.
    #[error("the {what} was destroyed")]
    Destroyed {
        /// The object.
        what: &'static str,
    },

    /// The state of the queue pair does not allow it.
    #[error("cannot {what} in state {state:?}")]
    State {
        /// What was to be done.
        what: &'static str,
        /// The state it was in.
        state: QpState,
    },

    /// Registered memory cannot be used so.
    #[error(transparent)]
    Memory(#[from] MemoryError),

    /// The completion queue has overrun: completions were lost, and its queue pairs are in error.
    #[error("the completion queue of {capacity} entries has overrun")]
    CqOverrun {
        /// Entries it can hold.
        capacity: u32,
    },

    /// A completion queue holds more completions than it is to have room for (FC-041).
    #[error("{stored} completions are stored, which do not fit into {asked} entries")]
    CqContent {
        /// Entries asked for.
        asked: u32,
        /// Completions that wait to be polled.
        stored: usize,
    },

    /// More events were acknowledged than are to be.
    #[error("cannot acknowledge {asked} events, {left} were fetched and left unacknowledged")]
    Acknowledged {
        /// Events to be acknowledged.
        asked: u64,
        /// Events that wait for it.
        left: u64,
    },

    /// The operating system refused.
    #[error("cannot {what}: {source}")]
    Io {
        /// What was to be done.
        what: &'static str,
        /// What the system said.
        source: io::Error,
    },
}

impl Error {
    pub(crate) fn io(what: &'static str, source: io::Error) -> Self {
        Self::Io { what, source }
    }

    /// The `errno` that the call of a C program would give for this error.
    #[must_use]
    pub fn errno(&self) -> i32 {
        use rustix::io::Errno;
        let errno = match self {
            Self::Memory(error) => return error.errno(),
            Self::Config(_)
            | Self::Limit { .. }
            | Self::Empty { .. }
            | Self::TooSmall { .. }
            | Self::NoChannel
            | Self::QueuePairRights { .. }
            | Self::ForeignDevice { .. }
            | Self::Destroyed { .. }
            | Self::State { .. }
            | Self::Acknowledged { .. }
            | Self::CqContent { .. } => Errno::INVAL,
            Self::Forked => Errno::NODEV,
            Self::Busy { .. } => Errno::BUSY,
            Self::CqOverrun { .. } => Errno::IO,
            Self::Io { source, .. } => {
                return source.raw_os_error().unwrap_or_else(|| Errno::IO.raw_os_error());
            }
        };
        errno.raw_os_error()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_say_what_and_where() {
        let error = Error::Limit { what: "completion queue entries", asked: 10, max: 9 };
        assert_eq!(error.to_string(), "10 completion queue entries asked for, the limit is 9");
        assert_eq!(error.errno(), 22);
        let refused = io::Error::from_raw_os_error(24);
        let error = Error::io("make an eventfd", refused);
        assert!(error.to_string().starts_with("cannot make an eventfd: "));
        assert_eq!(error.errno(), 24);
        let busy = Error::Busy { what: "completion queue", users: 2, by: "queue pairs" };
        assert_eq!(busy.to_string(), "the completion queue is in use by 2 queue pairs");
        assert_eq!(busy.errno(), 16);
    }
}
