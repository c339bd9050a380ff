//! Descriptors in tokio's reactor: unsafe there, hence here.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

use crate::sys::Socket;

/// Lets tasks of the present tokio runtime wait for the descriptor, which must not block.
///
/// # Panics
///
/// Outside of a tokio runtime, or in one without IO.
pub(crate) fn watch(
    descriptor: Arc<OwnedFd>,
    interest: Interest,
) -> io::Result<AsyncFd<Arc<OwnedFd>>> {
    // SAFETY: an `OwnedFd` is open until it is dropped, which the `Arc` inside the result prevents, and
    // always answers with the same descriptor.
    let watched = unsafe { AsyncFd::register_with_interest(descriptor, interest) };
    watched.map_err(|refused| refused.into_parts().1)
}

/// As [`watch`], for a socket that is being set up.
///
/// # Panics
///
/// Outside of a tokio runtime, or in one without IO.
pub(crate) fn watch_socket(socket: Socket, interest: Interest) -> io::Result<AsyncFd<Socket>> {
    // SAFETY: a `Socket` owns its descriptor, which is open until it is dropped; it always answers with
    // the same one, and `AsyncFd` gives it back before anybody can take it apart.
    let watched = unsafe { AsyncFd::register_with_interest(socket, interest) };
    watched.map_err(|refused| refused.into_parts().1)
}
