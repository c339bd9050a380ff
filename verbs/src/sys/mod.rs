//! What the operating system offers: sockets, readiness, wake-ups and a timer.
//!
//! Nothing above this module knows which system it runs on. `linux.rs` is made of eventfd, epoll and
//! timerfd; `portable.rs` gives the same types from pipes, poll(2) and tokio's readiness, and is what
//! any other Unix gets. On Linux it can be chosen, and tested, with `RUSTFLAGS="--cfg iwarp_portable"`.
//! What differs between the two is only cost.
//!
//! | type | for |
//! |---|---|
//! | [`Socket`] | one TCP socket, never blocking |
//! | [`Notifier`] | a descriptor that is readable while something is to be told |
//! | [`DriverSet`] | the driver's sockets: told once, then silent until armed again |
//! | [`WaitSet`] | the sockets of one completion queue, for the threads and tasks that wait on it |

mod socket;
mod special;

#[cfg(all(target_os = "linux", not(iwarp_portable)))]
mod linux;
#[cfg(not(all(target_os = "linux", not(iwarp_portable))))]
mod portable;
mod sleepers;
#[cfg(test)]
#[cfg(not(any(loom, miri)))]
mod tests;

#[cfg(all(target_os = "linux", not(iwarp_portable)))]
use linux as imp;
#[cfg(not(all(target_os = "linux", not(iwarp_portable))))]
use portable as imp;

use std::io;
use std::os::fd::BorrowedFd;
use std::time::Instant;

pub(crate) use imp::{DriverSet, DriverWaiter, Notifier, TaskWaiter, WaitSet};
pub(crate) use socket::{Keepalive, Socket, Sockets};

/// What a socket is watched for. Errors and hang-ups are reported whatever is asked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Interest {
    pub(crate) read: bool,
    pub(crate) write: bool,
}

/// A socket has something to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ready {
    /// As given when the socket was added.
    pub(crate) key: u64,
    /// Octets, a connection, an end of the stream or an error is there to be received.
    pub(crate) readable: bool,
    /// Octets can be sent, or the attempt gives an error.
    pub(crate) writable: bool,
    /// Both directions are over.
    pub(crate) hangup: bool,
}

/// Why the driver woke, besides sockets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Wakeup {
    /// Somebody called [`DriverSet::wake`].
    pub(crate) woken: bool,
    /// The time set by [`DriverSet::set_timer`] has come.
    pub(crate) timer: bool,
}

/// Keys from here on are used inside the sets.
pub(crate) const KEY_MAX: u64 = u64::MAX - 8;

/// Sleeps until a descriptor is readable, or may be. `false`: the deadline has come.
pub(crate) fn wait_readable(fd: BorrowedFd<'_>, deadline: Option<Instant>) -> io::Result<bool> {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    use rustix::io::Errno;

    let left = deadline.map(|at| at.saturating_duration_since(Instant::now()));
    let is_over = left.is_some_and(|left| left.is_zero());
    // Durations that the system cannot express are as good as none.
    let left = left.and_then(|left| Timespec::try_from(left).ok());
    match poll(&mut [PollFd::from_borrowed_fd(fd, PollFlags::IN)], left.as_ref()) {
        Ok(ready) => Ok(ready > 0 || !is_over),
        Err(Errno::INTR) => Ok(true),
        Err(error) => Err(error.into()),
    }
}
