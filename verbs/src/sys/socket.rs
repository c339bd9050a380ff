//! [`Socket`]: one TCP socket, never blocking, made by system calls of our own.
//!
//! rustix calls the kernel directly on Linux, so a preloaded library that replaces libc's socket
//! functions does not see these. Sockets of a [`MemoryNetwork`] and those that are recorded have the same calls;
//! which kind one is, is decided when it is opened, and costs the others a branch that is always the same.

use std::io;
use std::net::SocketAddr;
#[cfg(test)]
use std::net::TcpStream;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::Arc;
use std::time::Duration;

use iwarp_rdmap::UsableWindow;
use rustix::io::Errno;
use rustix::net::{self, AddressFamily, Shutdown, SocketType, sockopt};

use super::special::Special;
use crate::capture::{Capture, Tap};
use crate::mem::usable_window;
use crate::network::{MemoryNetwork, MemorySocket};

/// When a silent peer is asked whether it is still there, and given up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Keepalive {
    /// Silence before the first question. Whole seconds.
    pub(crate) idle: Duration,
    /// Between questions. Whole seconds.
    pub(crate) interval: Duration,
    /// Questions without an answer.
    pub(crate) count: u32,
}

/// A TCP socket of this process: not inherited by programs it starts, never blocking.
///
/// Dropping it closes it, which resets the connection if octets were left unread.
#[derive(Debug)]
pub(crate) struct Socket {
    fd: OwnedFd,
    /// Not there with plain TCP.
    special: Option<Box<Special>>,
}

/// What opens the sockets of a device.
#[derive(Clone, Debug, Default)]
pub(crate) struct Sockets {
    memory: Option<MemoryNetwork>,
    capture: Option<Arc<Capture>>,
}

impl Sockets {
    /// Of this network in memory, or of the host's TCP; recorded, if there is a capture.
    pub(crate) fn new(memory: Option<MemoryNetwork>, capture: Option<Arc<Capture>>) -> Self {
        Self { memory, capture }
    }

    /// Packets that the capture has left out.
    pub(crate) fn capture_lost(&self) -> u64 {
        self.capture.as_ref().map_or(0, |capture| capture.lost())
    }

    /// A socket for the family of `addr`, bound to nothing.
    pub(crate) fn open(&self, addr: &SocketAddr) -> io::Result<Socket> {
        let tap = self.capture.as_ref().map(Tap::new);
        let (fd, memory) = match &self.memory {
            Some(network) => {
                let (fd, memory) = MemorySocket::open(network)?;
                (fd, Some(memory))
            }
            None => (plain::open(addr)?, None),
        };
        let special = memory.is_some() || tap.is_some();
        Socket::new(fd, special.then(|| Box::new(Special { memory, tap })))
    }

    /// Takes over a TCP socket that the program made itself, whatever opens the others; fails for any other
    /// descriptor. Recorded as a connection that this side has begun, or the peer, and on which `read_ahead` has
    /// come.
    pub(crate) fn adopt(
        &self,
        descriptor: OwnedFd,
        initiates: bool,
        read_ahead: &[u8],
    ) -> io::Result<Socket> {
        let socket = Socket::adopt(descriptor)?;
        let tap = self.capture.as_ref().map(Tap::new);
        if let Some(tap) = tap.as_ref().filter(|_| initiates) {
            tap.initiates();
        }
        let special = tap.map(|tap| Box::new(Special { memory: None, tap: Some(tap) }));
        if let Some(special) = special.as_ref().filter(|_| !read_ahead.is_empty()) {
            special.came_before(socket.as_fd(), read_ahead);
        }
        Ok(Socket { special, ..socket })
    }
}

impl Socket {
    /// A TCP socket for the family of `addr`, bound to nothing.
    #[cfg(test)]
    pub(crate) fn open(addr: &SocketAddr) -> io::Result<Self> {
        Self::new(plain::open(addr)?, None)
    }

    fn new(fd: OwnedFd, special: Option<Box<Special>>) -> io::Result<Self> {
        let socket = Self { fd, special };
        socket.quiet()?;
        Ok(socket)
    }

    fn memory(&self) -> Option<&MemorySocket> {
        self.special.as_ref()?.memory.as_ref()
    }

    fn tap(&self) -> Option<&Tap> {
        self.special.as_ref()?.tap.as_ref()
    }

    /// Whether octets have to be in private memory when they are sent and received.
    #[inline]
    pub(crate) fn copies(&self) -> bool {
        self.special.is_some()
    }

    /// Whether octets may go in pieces at places that tell nothing, and attempts may find nothing although
    /// there is something ([`reads_again`](Self::reads_again)).
    #[inline]
    pub(crate) fn is_shaped(&self) -> bool {
        self.memory().is_some()
    }

    /// Whether the last attempt to receive found nothing although something is there: nothing will announce it,
    /// so whoever tried has to see that somebody tries again.
    #[inline]
    pub(crate) fn reads_again(&self) -> bool {
        self.memory().is_some_and(MemorySocket::reads_again)
    }

    /// The same for the last attempt to send.
    #[inline]
    pub(crate) fn writes_again(&self) -> bool {
        self.memory().is_some_and(MemorySocket::writes_again)
    }

    /// Gives the socket a local address; port 0 lets the system choose.
    pub(crate) fn bind(&self, addr: &SocketAddr) -> io::Result<()> {
        if let Some(memory) = self.memory() {
            return memory.bind(addr);
        }
        Ok(net::bind(&self.fd, addr)?)
    }

    /// Lets a listener take a port whose last connections are still closing.
    pub(crate) fn set_reuse_addr(&self, on: bool) -> io::Result<()> {
        if let Some(memory) = self.memory() {
            memory.set_reuse_addr(on);
            return Ok(());
        }
        Ok(sockopt::set_socket_reuseaddr(&self.fd, on)?)
    }

    /// Keeps an IPv6 listener from taking IPv4 connections as well (FC-052). Before `bind`.
    pub(crate) fn set_v6_only(&self, on: bool) -> io::Result<()> {
        if let Some(memory) = self.memory() {
            memory.set_v6_only(on);
            return Ok(());
        }
        Ok(sockopt::set_ipv6_v6only(&self.fd, on)?)
    }

    /// Takes connections from now on; up to `backlog` wait for [`accept`](Self::accept).
    pub(crate) fn listen(&self, backlog: u32) -> io::Result<()> {
        if let Some(memory) = self.memory() {
            return memory.listen(backlog);
        }
        Ok(net::listen(&self.fd, i32::try_from(backlog).unwrap_or(i32::MAX))?)
    }

    /// The next connection, with the peer's address; `WouldBlock` if there is none.
    ///
    /// A connection that was given up by its peer meanwhile is an error of its own
    /// (`ConnectionAborted`); out of descriptors stays an error until some are closed, while the
    /// listener stays readable.
    pub(crate) fn accept(&self) -> io::Result<(Self, SocketAddr)> {
        if let Some(memory) = self.memory() {
            let (fd, memory) = memory.accept(self.fd.as_fd())?;
            let peer = memory.name_of_peer()?;
            let special = self.special.as_ref().and_then(|own| own.of_accepted(Some(memory)));
            return Ok((Self::new(fd, special)?, peer));
        }
        let (accepted, peer) = plain::accept(&self.fd)?;
        let special = self.special.as_ref().and_then(|own| own.of_accepted(None));
        let accepted = Self::new(accepted, special)?;
        let peer = match peer {
            Some(peer) => peer.try_into()?,
            None => accepted.peer_addr()?,
        };
        Ok((accepted, peer))
    }

    /// Begins to connect. `true`: connected at once; `false`: under way, the socket becomes writable
    /// when it is decided and [`take_error`](Self::take_error) then tells how.
    ///
    /// `WouldBlock`, in memory only: the listener takes no more at present, try again later.
    pub(crate) fn connect(&self, addr: &SocketAddr) -> io::Result<bool> {
        if let Some(tap) = self.tap() {
            tap.initiates();
        }
        if let Some(memory) = self.memory() {
            return memory.connect(self.fd.as_fd(), addr).map(|()| true);
        }
        match net::connect(&self.fd, addr) {
            Ok(()) => Ok(true),
            // After a signal the attempt goes on.
            Err(Errno::INPROGRESS | Errno::INTR) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    /// What went wrong since the last call, if anything.
    pub(crate) fn take_error(&self) -> io::Result<Option<io::Error>> {
        if let Some(error) = self.memory().and_then(MemorySocket::take_error) {
            return Ok(Some(error));
        }
        Ok(sockopt::socket_error(&self.fd)?.err().map(io::Error::from))
    }

    pub(crate) fn local_addr(&self) -> io::Result<SocketAddr> {
        if let Some(memory) = self.memory() {
            return memory.local_addr();
        }
        Ok(net::getsockname(&self.fd)?.try_into()?)
    }

    /// `NotConnected` unless there is a connection. IPv6 addresses keep their scope (FC-053).
    pub(crate) fn peer_addr(&self) -> io::Result<SocketAddr> {
        if let Some(memory) = self.memory() {
            return memory.peer_addr();
        }
        let peer = net::getpeername(&self.fd)?.ok_or(Errno::NOTCONN)?;
        Ok(peer.try_into()?)
    }

    /// Receives up to `into.len()` octets. `Ok(0)`: the peer has closed its direction; `WouldBlock`:
    /// nothing is there.
    #[inline]
    pub(crate) fn recv(&self, into: &mut [u8]) -> io::Result<usize> {
        match &self.special {
            None => Ok(plain::recv(self.fd.as_fd(), into)?),
            Some(special) => special.recv(self.fd.as_fd(), into),
        }
    }

    /// As [`recv`](Self::recv); `None` if nothing is there, and more will be announced.
    #[inline]
    pub(crate) fn try_recv(&self, into: &mut [u8]) -> Option<io::Result<usize>> {
        if let Some(special) = &self.special {
            return match special.recv(self.fd.as_fd(), into) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock && !self.reads_again() => {
                    None
                }
                other => Some(other),
            };
        }
        match plain::recv(self.fd.as_fd(), into) {
            Ok(received) => Some(Ok(received)),
            Err(Errno::AGAIN) => None,
            Err(error) => Some(Err(error.into())),
        }
    }

    /// Sends octets, possibly not all; `WouldBlock` if none. Never raises SIGPIPE.
    #[inline]
    pub(crate) fn send(&self, octets: &[u8]) -> io::Result<usize> {
        match &self.special {
            None => Ok(plain::send(self.fd.as_fd(), octets)?),
            Some(special) => special.send(self.fd.as_fd(), octets, false),
        }
    }

    /// As [`send`](Self::send); what follows starts a new TCP segment (`MSG_EOR`), where the system knows
    /// that.
    #[inline]
    pub(crate) fn send_record(&self, octets: &[u8]) -> io::Result<usize> {
        match &self.special {
            None => Ok(plain::send_record(self.fd.as_fd(), octets)?),
            Some(special) => special.send(self.fd.as_fd(), octets, true),
        }
    }

    /// Sends a FIN after what was sent. Not connected any more is no error.
    pub(crate) fn shutdown_write(&self) -> io::Result<()> {
        if let Some(tap) = self.tap() {
            tap.closes();
        }
        match net::shutdown(&self.fd, Shutdown::Write) {
            Ok(()) | Err(Errno::NOTCONN) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// Closes with a reset: what was not sent yet is thrown away. Other copies of the descriptor, in a
    /// forked child for example, hold the reset back until they are closed too.
    pub(crate) fn abort(self) -> io::Result<()> {
        if let Some(tap) = self.tap() {
            tap.resets();
        }
        if let Some(memory) = self.memory() {
            memory.reset(self.fd.as_fd());
            return Ok(());
        }
        Ok(sockopt::set_socket_linger(&self.fd, Some(Duration::ZERO))?)
    }

    /// Sends small segments without waiting for acknowledgements (RFC 5044 §5.1).
    pub(crate) fn set_no_delay(&self, on: bool) -> io::Result<()> {
        if self.memory().is_some() {
            // Nothing is ever delayed, but by a plan.
            return Ok(());
        }
        Ok(sockopt::set_tcp_nodelay(&self.fd, on)?)
    }

    pub(crate) fn set_keepalive(&self, keepalive: Option<Keepalive>) -> io::Result<()> {
        if self.memory().is_some() {
            // A peer in memory cannot vanish without a trace.
            return Ok(());
        }
        if let Some(Keepalive { idle, interval, count }) = keepalive {
            sockopt::set_tcp_keepidle(&self.fd, idle)?;
            sockopt::set_tcp_keepintvl(&self.fd, interval)?;
            sockopt::set_tcp_keepcnt(&self.fd, count)?;
        }
        Ok(sockopt::set_socket_keepalive(&self.fd, keepalive.is_some())?)
    }

    /// How long sent octets may stay unacknowledged before the connection is given up; zero is the
    /// system's own limit. Where the system has no such setting nothing changes.
    pub(crate) fn set_user_timeout(&self, limit: Duration) -> io::Result<()> {
        if self.memory().is_some() {
            // What is sent needs no acknowledgement.
            return Ok(());
        }
        #[cfg(any(target_os = "linux", target_os = "android", target_os = "fuchsia"))]
        {
            let millis = u32::try_from(limit.as_millis()).unwrap_or(u32::MAX);
            sockopt::set_tcp_user_timeout(&self.fd, millis)?;
        }
        #[cfg(not(any(target_os = "linux", target_os = "android", target_os = "fuchsia")))]
        let _ = limit;
        Ok(())
    }

    /// The effective maximum segment size: octets of payload in one full TCP segment at present
    /// (RFC 5044 §2.1). Changes with the path; on Linux it also begins at half of the peer's first
    /// window and grows with that.
    pub(crate) fn emss(&self) -> io::Result<u32> {
        if let Some(memory) = self.memory() {
            return Ok(memory.emss());
        }
        // MPA-071: TCP options that every segment carries are taken off already.
        socket2::SockRef::from(&self.fd).tcp_mss()
    }

    /// How much TCP can send at once, besides what it has been given already. Unlimited where nobody knows.
    pub(crate) fn usable_window(&self) -> UsableWindow {
        // In memory there are neither windows nor segments.
        let usable = if self.memory().is_some() { None } else { usable_window(self.as_fd()) };
        usable.map_or(UsableWindow::UNLIMITED, |usable| UsableWindow {
            octets: usable.octets,
            in_words: usable.in_words,
            stale: false,
        })
    }

    /// Lets TCP take octets only while it holds fewer than so many that it cannot send yet, and gives what the limit
    /// was before; 0 is the system's own. Fails where the system has no such limit.
    pub(crate) fn set_unsent_most(&self, octets: u32) -> io::Result<u32> {
        #[cfg(target_os = "linux")]
        {
            let socket = socket2::SockRef::from(&self.fd);
            let before = socket.tcp_notsent_lowat()?;
            socket.set_tcp_notsent_lowat(octets)?;
            Ok(before)
        }
        #[cfg(not(target_os = "linux"))]
        {
            let _ = octets;
            Err(Errno::OPNOTSUPP.into())
        }
    }

    /// Takes over a TCP socket that the program made itself; fails for any other descriptor.
    fn adopt(descriptor: OwnedFd) -> io::Result<Self> {
        if sockopt::socket_type(&descriptor)? != SocketType::STREAM {
            return Err(Errno::PROTOTYPE.into());
        }
        let family = net::getsockname(&descriptor)?.address_family();
        if ![AddressFamily::INET, AddressFamily::INET6].contains(&family) {
            return Err(Errno::AFNOSUPPORT.into());
        }
        rustix::io::ioctl_fionbio(&descriptor, true)?;
        rustix::io::fcntl_setfd(&descriptor, rustix::io::FdFlags::CLOEXEC)?;
        Self::new(descriptor, None)
    }

    /// Takes over a connection that the program made itself.
    #[cfg(test)]
    pub(crate) fn from_stream(stream: TcpStream) -> io::Result<Self> {
        Self::adopt(stream.into())
    }

    /// Where a send cannot be told to raise no signal, the socket is.
    #[cfg_attr(
        not(target_vendor = "apple"),
        expect(clippy::unused_self, clippy::unnecessary_wraps, reason = "other systems need it")
    )]
    fn quiet(&self) -> io::Result<()> {
        #[cfg(target_vendor = "apple")]
        sockopt::set_socket_nosigpipe(&self.fd, true)?;
        Ok(())
    }
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl AsRawFd for Socket {
    fn as_raw_fd(&self) -> RawFd {
        self.fd.as_raw_fd()
    }
}

/// The system's calls.
pub(super) mod plain {
    use std::net::SocketAddr;
    use std::os::fd::{BorrowedFd, OwnedFd};

    use rustix::io::{Errno, retry_on_intr};
    use rustix::net::{self, AddressFamily, RecvFlags, SendFlags, SocketType, ipproto};

    #[cfg(not(target_vendor = "apple"))]
    const SEND: SendFlags = SendFlags::DONTWAIT.union(SendFlags::NOSIGNAL);
    #[cfg(target_vendor = "apple")]
    const SEND: SendFlags = SendFlags::DONTWAIT;

    pub(in super::super) fn recv(here: BorrowedFd<'_>, into: &mut [u8]) -> Result<usize, Errno> {
        let (received, _) = retry_on_intr(|| net::recv(here, &mut *into, RecvFlags::DONTWAIT))?;
        Ok(received)
    }

    #[inline]
    pub(in super::super) fn send(here: BorrowedFd<'_>, octets: &[u8]) -> Result<usize, Errno> {
        retry_on_intr(|| net::send(here, octets, SEND))
    }

    #[cfg(target_os = "linux")]
    #[inline]
    pub(in super::super) fn send_record(
        here: BorrowedFd<'_>,
        octets: &[u8],
    ) -> Result<usize, Errno> {
        retry_on_intr(|| net::send(here, octets, SEND | SendFlags::EOR))
    }

    #[cfg(not(target_os = "linux"))]
    #[inline]
    pub(in super::super) fn send_record(
        here: BorrowedFd<'_>,
        octets: &[u8],
    ) -> Result<usize, Errno> {
        send(here, octets)
    }

    pub(super) fn open(addr: &SocketAddr) -> Result<OwnedFd, Errno> {
        let family = match addr {
            SocketAddr::V4(_) => AddressFamily::INET,
            SocketAddr::V6(_) => AddressFamily::INET6,
        };
        open_of(family)
    }

    #[cfg(all(target_os = "linux", not(iwarp_portable)))]
    fn open_of(family: AddressFamily) -> Result<OwnedFd, Errno> {
        let flags = net::SocketFlags::CLOEXEC | net::SocketFlags::NONBLOCK;
        net::socket_with(family, SocketType::STREAM, flags, Some(ipproto::TCP))
    }

    #[cfg(not(all(target_os = "linux", not(iwarp_portable))))]
    fn open_of(family: AddressFamily) -> Result<OwnedFd, Errno> {
        let socket = net::socket(family, SocketType::STREAM, Some(ipproto::TCP))?;
        prepare(&socket)?;
        Ok(socket)
    }

    #[cfg(all(target_os = "linux", not(iwarp_portable)))]
    pub(super) fn accept(
        listener: &OwnedFd,
    ) -> Result<(OwnedFd, Option<net::SocketAddrAny>), Errno> {
        let flags = net::SocketFlags::CLOEXEC | net::SocketFlags::NONBLOCK;
        retry_on_intr(|| net::acceptfrom_with(listener, flags))
    }

    #[cfg(not(all(target_os = "linux", not(iwarp_portable))))]
    pub(super) fn accept(
        listener: &OwnedFd,
    ) -> Result<(OwnedFd, Option<net::SocketAddrAny>), Errno> {
        let (accepted, peer) = retry_on_intr(|| net::acceptfrom(listener))?;
        prepare(&accepted)?;
        Ok((accepted, peer))
    }

    /// What other systems do in one call.
    #[cfg(not(all(target_os = "linux", not(iwarp_portable))))]
    fn prepare(socket: &OwnedFd) -> Result<(), Errno> {
        rustix::io::fcntl_setfd(socket, rustix::io::FdFlags::CLOEXEC)?;
        rustix::io::ioctl_fionbio(socket, true)
    }
}
