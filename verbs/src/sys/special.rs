//! What a socket can be besides plain TCP: one of a network in memory, or one that is recorded.

use std::io;
use std::net::SocketAddr;
use std::os::fd::BorrowedFd;

use rustix::net;

use super::socket::plain;
use crate::capture::Tap;
use crate::network::MemorySocket;

/// All of a socket but its descriptor, which is passed as `here`.
#[derive(Debug)]
pub(super) struct Special {
    pub(super) memory: Option<MemorySocket>,
    pub(super) tap: Option<Tap>,
}

impl Special {
    /// For an accepted connection of a socket like this one. Nothing, where plain TCP will do.
    pub(super) fn of_accepted(&self, memory: Option<MemorySocket>) -> Option<Box<Self>> {
        let tap = self.tap.as_ref().map(Tap::another);
        (memory.is_some() || tap.is_some()).then(|| Box::new(Self { memory, tap }))
    }

    /// The addresses of this side and of its peer.
    fn names(&self, here: BorrowedFd<'_>) -> Option<[SocketAddr; 2]> {
        if let Some(memory) = &self.memory {
            return Some([memory.local_addr().ok()?, memory.name_of_peer().ok()?]);
        }
        let local = net::getsockname(here).ok()?.try_into().ok()?;
        Some([local, net::getpeername(here).ok()??.try_into().ok()?])
    }

    /// The program has read these octets itself.
    pub(super) fn came_before(&self, here: BorrowedFd<'_>, octets: &[u8]) {
        if let Some(tap) = &self.tap {
            tap.received(octets, || self.names(here));
        }
    }

    pub(super) fn recv(&self, here: BorrowedFd<'_>, into: &mut [u8]) -> io::Result<usize> {
        let received = match &self.memory {
            Some(memory) => memory.recv(here, into),
            None => plain::recv(here, into).map_err(io::Error::from),
        };
        if let Some(tap) = &self.tap {
            match &received {
                Ok(0) => tap.closed(),
                Ok(received) => {
                    tap.received(into.get(..*received).unwrap_or_default(), || self.names(here));
                }
                Err(error) => note_loss(tap, error),
            }
        }
        received
    }

    pub(super) fn send(
        &self,
        here: BorrowedFd<'_>,
        octets: &[u8],
        end_of_record: bool,
    ) -> io::Result<usize> {
        // Asked before: a connection that is reset by what is sent has no names any more.
        let names = self.tap.as_ref().and_then(|_| self.names(here));
        let sent = match &self.memory {
            Some(memory) => memory.send(here, octets),
            None if end_of_record => plain::send_record(here, octets).map_err(io::Error::from),
            None => plain::send(here, octets).map_err(io::Error::from),
        };
        if let Some(tap) = &self.tap {
            match &sent {
                Ok(sent) => tap.sent(octets.get(..*sent).unwrap_or_default(), || names),
                Err(error) => note_loss(tap, error),
            }
        }
        sent
    }
}

fn note_loss(tap: &Tap, error: &io::Error) {
    if matches!(error.kind(), io::ErrorKind::ConnectionReset | io::ErrorKind::TimedOut) {
        tap.reset();
    }
}
