//! A connection: two streams of octets between two descriptors of this process, and what goes wrong on them.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};

use parking_lot::Mutex;
use rustix::io::Errno;
use rustix::net::{self, RecvFlags, SendFlags, Shutdown};

use super::faults::{Direction, Faults, Loss};
use super::plan::{Draw, DropPoint, Leave, Progress};

/// What both ends of a connection share.
#[derive(Debug)]
pub(super) struct Wire {
    number: u64,
    /// Of the initiator and of the responder.
    names: [SocketAddr; 2],
    lanes: [Lane; 2],
    drop: Option<DropPoint>,
    /// The drop has happened.
    dropped: AtomicBool,
    over: AtomicU8,
}

/// One direction.
#[derive(Debug)]
struct Lane {
    writes: Mutex<Progress>,
    reads: Mutex<Progress>,
}

/// Values of [`Wire::over`].
const OPEN: u8 = 0;
const RESET: u8 = 1;
const CLOSED: u8 = 2;

impl Wire {
    /// The `number`-th connection of a network with this seed.
    pub(super) fn new(seed: u64, number: u64, faults: &Faults, names: [SocketAddr; 2]) -> Self {
        let lane = |direction: Direction| {
            let label = direction.index() as u64 * 2;
            Lane {
                writes: Mutex::new(Progress::new(
                    faults.writes.as_ref(),
                    Draw::new(seed, [number, 1, label]),
                )),
                reads: Mutex::new(Progress::new(
                    faults.reads.as_ref(),
                    Draw::new(seed, [number, 1, label + 1]),
                )),
            }
        };
        Self {
            number,
            names,
            lanes: Direction::BOTH.map(lane),
            drop: DropPoint::of(faults, Draw::new(seed, [number, 2, 0])),
            dropped: AtomicBool::new(false),
            over: AtomicU8::new(OPEN),
        }
    }

    fn lane(&self, direction: Direction) -> &Lane {
        &self.lanes[direction.index()]
    }

    fn is_reset(&self) -> bool {
        self.over.load(Ordering::Acquire) == RESET
    }

    /// Ends both directions, at both ends. What was sent is still received.
    pub(super) fn lose(&self, end: BorrowedFd<'_>, loss: Loss) {
        let over = if loss == Loss::Reset { RESET } else { CLOSED };
        let _ = self.over.compare_exchange(OPEN, over, Ordering::AcqRel, Ordering::Acquire);
        // Wakes whoever waits at either end. An end that is closed already has nobody to wake.
        let _ = net::shutdown(end, Shutdown::Both);
    }

    /// Drops the connection if its time has come.
    fn drop_at(&self, direction: Direction, sent: u64, end: BorrowedFd<'_>) {
        if let Some(point) = self.drop
            && point.direction == direction
            && point.octet <= sent
            && !self.dropped.swap(true, Ordering::AcqRel)
        {
            self.lose(end, point.loss);
        }
    }

    /// Octets that may be sent before the connection is dropped.
    fn before_drop(&self, direction: Direction, sent: u64) -> u64 {
        match self.drop {
            Some(point) if point.direction == direction => point.octet.saturating_sub(sent),
            _ => u64::MAX,
        }
    }

    pub(super) fn report(&self) -> ConnectionReport {
        let dropped = self.dropped.load(Ordering::Acquire).then_some(self.drop).flatten();
        ConnectionReport {
            number: self.number,
            initiator: self.names[0],
            responder: self.names[1],
            sent: Direction::BOTH.map(|direction| self.lane(direction).writes.lock().at()),
            received: Direction::BOTH.map(|direction| self.lane(direction).reads.lock().at()),
            dropped: dropped.map(|point| (point.direction, point.octet, point.loss)),
        }
    }
}

/// What one end of a connection does with its descriptor, which its owner holds.
#[derive(Debug)]
pub(super) struct End {
    wire: Arc<Wire>,
    sends: Direction,
    local: SocketAddr,
    peer: SocketAddr,
    /// The last attempt to receive, or to send, was to find nothing, and nothing will announce the next.
    read_again: AtomicBool,
    write_again: AtomicBool,
}

impl End {
    /// The ends of the initiator, whose descriptor is `here`, and of the responder. `names` are those that the
    /// ends know each other by.
    pub(super) fn pair(
        wire: &Arc<Wire>,
        initiator: [SocketAddr; 2],
        responder: [SocketAddr; 2],
    ) -> (Self, Self) {
        let end = |sends, [local, peer]: [SocketAddr; 2]| Self {
            wire: Arc::clone(wire),
            sends,
            local,
            peer,
            read_again: AtomicBool::new(false),
            write_again: AtomicBool::new(false),
        };
        (end(Direction::ToResponder, initiator), end(Direction::ToInitiator, responder))
    }

    pub(super) const fn local(&self) -> SocketAddr {
        self.local
    }

    /// As with TCP, a connection that was reset has no names any more.
    pub(super) fn peer(&self) -> io::Result<SocketAddr> {
        if self.wire.is_reset() { Err(Errno::NOTCONN.into()) } else { Ok(self.peer) }
    }

    pub(super) const fn name_of_peer(&self) -> SocketAddr {
        self.peer
    }

    /// Drops a connection that is not to carry a single octet.
    pub(super) fn begin(&self, here: BorrowedFd<'_>) {
        for direction in Direction::BOTH {
            self.wire.drop_at(direction, 0, here);
        }
    }

    pub(super) fn recv(&self, here: BorrowedFd<'_>, into: &mut [u8]) -> io::Result<usize> {
        let direction = self.sends.reverse();
        let mut lane = self.wire.lane(direction).reads.lock();
        self.read_again.store(false, Ordering::Relaxed);
        if lane.waits() {
            // Only what is there can be late: who looks too early uses up no attempt.
            let mut first = [0];
            let there = receive(here, &mut first, RecvFlags::DONTWAIT | RecvFlags::PEEK)?;
            if there > 0 && lane.attempt() == Leave::Wait {
                self.read_again.store(true, Ordering::Relaxed);
                return Err(Errno::AGAIN.into());
            }
        }
        let Leave::Go(most) = lane.attempt() else {
            // The stream is over.
            return self.ended();
        };
        let most = usize::try_from(most).unwrap_or(usize::MAX).min(into.len());
        match receive(here, &mut into[..most], RecvFlags::DONTWAIT)? {
            0 => self.ended(),
            received => {
                lane.moved(received);
                Ok(received)
            }
        }
    }

    fn ended(&self) -> io::Result<usize> {
        if self.wire.is_reset() { Err(Errno::CONNRESET.into()) } else { Ok(0) }
    }

    pub(super) fn send(&self, here: BorrowedFd<'_>, octets: &[u8]) -> io::Result<usize> {
        let mut lane = self.wire.lane(self.sends).writes.lock();
        self.write_again.store(false, Ordering::Relaxed);
        let Leave::Go(most) = lane.attempt() else {
            self.write_again.store(true, Ordering::Relaxed);
            return Err(Errno::AGAIN.into());
        };
        let most = most.min(self.wire.before_drop(self.sends, lane.at()));
        let most = usize::try_from(most).unwrap_or(usize::MAX).min(octets.len());
        if most == 0 && !octets.is_empty() {
            // It was dropped, here or at the other end.
            return Err(self.refused(Errno::PIPE));
        }
        #[cfg(not(target_vendor = "apple"))]
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        #[cfg(target_vendor = "apple")]
        let flags = SendFlags::DONTWAIT;
        let sent = rustix::io::retry_on_intr(|| net::send(here, &octets[..most], flags))
            .map_err(|error| self.refused(error))?;
        lane.moved(sent);
        self.wire.drop_at(self.sends, lane.at(), here);
        Ok(sent)
    }

    fn refused(&self, error: Errno) -> io::Error {
        if error == Errno::PIPE && self.wire.is_reset() {
            return Errno::CONNRESET.into();
        }
        error.into()
    }

    pub(super) fn error(&self) -> Option<io::Error> {
        self.wire.is_reset().then(|| Errno::CONNRESET.into())
    }

    pub(super) fn reads_again(&self) -> bool {
        self.read_again.load(Ordering::Relaxed)
    }

    pub(super) fn writes_again(&self) -> bool {
        self.write_again.load(Ordering::Relaxed)
    }

    pub(super) fn reset(&self, here: BorrowedFd<'_>) {
        self.wire.lose(here, Loss::Reset);
    }
}

fn receive(here: BorrowedFd<'_>, into: &mut [u8], flags: RecvFlags) -> io::Result<usize> {
    let (received, _) = rustix::io::retry_on_intr(|| net::recv(here, &mut *into, flags))?;
    Ok(received)
}

/// Two descriptors for the ends of a connection: not inherited by programs that are started, never blocking.
#[cfg(all(target_os = "linux", not(iwarp_portable)))]
pub(super) fn descriptors() -> io::Result<(OwnedFd, OwnedFd)> {
    let flags = net::SocketFlags::CLOEXEC | net::SocketFlags::NONBLOCK;
    Ok(net::socketpair(net::AddressFamily::UNIX, net::SocketType::STREAM, flags, None)?)
}

#[cfg(not(all(target_os = "linux", not(iwarp_portable))))]
pub(super) fn descriptors() -> io::Result<(OwnedFd, OwnedFd)> {
    let flags = net::SocketFlags::empty();
    let (here, there) =
        net::socketpair(net::AddressFamily::UNIX, net::SocketType::STREAM, flags, None)?;
    for end in [&here, &there] {
        rustix::io::fcntl_setfd(end, rustix::io::FdFlags::CLOEXEC)?;
        rustix::io::ioctl_fionbio(end, true)?;
        #[cfg(target_vendor = "apple")]
        net::sockopt::set_socket_nosigpipe(end, true)?;
    }
    Ok((here, there))
}

/// What has become of a connection of a [`MemoryNetwork`](super::MemoryNetwork).
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ConnectionReport {
    /// Connections of the network count from 0, in the order in which they were made.
    pub number: u64,
    /// Where it was connected from.
    pub initiator: SocketAddr,
    /// Where it was connected to.
    pub responder: SocketAddr,
    /// Octets that were sent, to the responder and to the initiator.
    pub sent: [u64; 2],
    /// Octets of those that were received.
    pub received: [u64; 2],
    /// The drop that has ended it: in which direction, after so many octets, and how.
    pub dropped: Option<(Direction, u64, Loss)>,
}

impl fmt::Display for ConnectionReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { number, initiator, responder, sent, received, dropped } = self;
        write!(
            f,
            "connection {number} from {initiator} to {responder}: \
             {} octets to the responder ({} received), {} to the initiator ({} received)",
            sent[0], received[0], sent[1], received[1]
        )?;
        if let Some((direction, octet, loss)) = dropped {
            write!(f, ", {loss} after octet {octet} {direction}")?;
        }
        Ok(())
    }
}
