//! Sockets while a connection is being set up: the one stretch of their life that is spent in tasks.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::runtime::Handle;

use super::address::Address;
use super::error::{ConnectError, Phase};
use super::param::BindOptions;
use crate::mem::watch_socket;
use crate::sys::{Socket, Sockets};

/// What a connection in set-up is watched for.
const CONVERSATION: Interest = Interest::READABLE.add(Interest::WRITABLE);

/// Pause before a listener in memory that takes no more is tried again.
const KNOCK_AGAIN: Duration = Duration::from_millis(5);

/// A socket with a local address, and nothing else yet.
#[derive(Debug)]
pub(crate) struct Bound {
    socket: Socket,
    source: Source,
}

/// How to get a socket with the same local address once more.
#[derive(Clone, Debug)]
pub(crate) struct Source {
    sockets: Sockets,
    /// As the program asked for it: port 0 stays 0.
    asked: SocketAddr,
    /// As the system gave it.
    addr: SocketAddr,
    options: BindOptions,
}

impl Bound {
    pub(crate) fn new(
        sockets: &Sockets,
        asked: SocketAddr,
        options: BindOptions,
    ) -> Result<Self, ConnectError> {
        let failed = |cause| ConnectError::Bind { addr: asked, cause: Arc::new(cause) };
        let bind = || {
            let socket = sockets.open(&asked)?;
            socket.set_reuse_addr(options.reuse)?;
            if let (SocketAddr::V6(_), Some(only)) = (asked, options.v6_only) {
                // FC-052
                socket.set_v6_only(only)?;
            }
            socket.bind(&asked)?;
            let addr = socket.local_addr()?;
            Ok(Self { socket, source: Source { sockets: sockets.clone(), asked, addr, options } })
        };
        bind().map_err(failed)
    }

    pub(crate) const fn addr(&self) -> SocketAddr {
        self.source.addr
    }

    pub(crate) fn source(&self) -> Source {
        self.source.clone()
    }
}

/// Binds to the first of an address's meanings that can be bound. Looks names up in the calling thread.
pub(crate) fn bind_first(
    sockets: &Sockets,
    address: &Address,
    options: BindOptions,
) -> Result<Bound, ConnectError> {
    let mut failure = None;
    for addr in address.resolve_blocking()? {
        match Bound::new(sockets, addr, options) {
            Ok(bound) => return Ok(bound),
            Err(error) => failure = failure.or(Some(error)),
        }
    }
    Err(failure.unwrap_or(ConnectError::Cancelled))
}

impl Source {
    pub(crate) fn bind_again(&self) -> Result<Bound, ConnectError> {
        Bound::new(&self.sockets, self.asked, self.options)
    }
}

/// A TCP connection on which start-up frames are exchanged. Belongs to the runtime it was made on.
#[derive(Debug)]
pub(crate) struct Conversation {
    io: AsyncFd<Socket>,
    local: SocketAddr,
}

impl Conversation {
    /// Opens a connection, from a bound socket if there is one. Cancel-safe: a dropped attempt is given
    /// up.
    pub(crate) async fn connect(
        sockets: &Sockets,
        addr: SocketAddr,
        bound: Option<Bound>,
    ) -> Result<Self, ConnectError> {
        let local = |cause| ConnectError::Local { peer: addr.to_string(), cause: Arc::new(cause) };
        let socket = match bound {
            Some(bound) => bound.socket,
            None => sockets.open(&addr).map_err(local)?,
        };
        let connected = loop {
            match socket.connect(&addr) {
                // As TCP does when nobody answers.
                Err(error) if error.kind() == io::ErrorKind::WouldBlock && socket.is_shaped() => {
                    tokio::time::sleep(KNOCK_AGAIN).await;
                }
                decided => break decided.map_err(|cause| ConnectError::tcp(addr, cause))?,
            }
        };
        let io = watch_socket(socket, CONVERSATION).map_err(local)?;
        if !connected {
            io.writable().await.map_err(local)?.retain_ready();
            if let Some(cause) = io.get_ref().take_error().map_err(local)? {
                return Err(ConnectError::tcp(addr, cause));
            }
        }
        let socket = io.get_ref();
        // Asked last: a connection that its peer has reset meanwhile has no names any more.
        let names = socket.peer_addr().and_then(|_| socket.local_addr());
        let local_addr = names.map_err(|_| ConnectError::Closed { addr, phase: Phase::Tcp })?;
        if local_addr == addr {
            // TCP connects a port to itself when nobody listens and the system happens to choose that
            // very port for this side.
            return Err(ConnectError::Refused { addr });
        }
        socket.set_no_delay(true).map_err(local)?;
        Ok(Self { io, local: local_addr })
    }

    /// Takes over a connection that a listener accepted. On the runtime that will drive it.
    pub(crate) fn accepted(socket: Socket) -> io::Result<Self> {
        socket.set_no_delay(true)?;
        let local = socket.local_addr()?;
        Ok(Self { io: watch_socket(socket, CONVERSATION)?, local })
    }

    pub(crate) const fn local_addr(&self) -> SocketAddr {
        self.local
    }

    /// Waits for octets; 0 is the end of the stream. Cancel-safe.
    pub(crate) async fn read(&self, into: &mut [u8]) -> io::Result<usize> {
        loop {
            let receive = |socket: &Socket| unless_again(socket.recv(into), socket.reads_again());
            if let Some(received) = self.io.async_io(Interest::READABLE, receive).await? {
                return Ok(received);
            }
            tokio::task::yield_now().await;
        }
    }

    /// Waits for octets and shows them to `take`; none is the end of the stream. They are on the stack of one look at
    /// the socket: a task that waits for a stranger keeps no buffer (SEC-22). Cancel-safe.
    pub(crate) async fn read_with<R>(&self, mut take: impl FnMut(&[u8]) -> R) -> io::Result<R> {
        loop {
            let look = |socket: &Socket| {
                let mut octets = [0; 1024];
                let received = unless_again(socket.recv(&mut octets), socket.reads_again())?;
                Ok(received.map(|received| take(octets.get(..received).unwrap_or_default())))
            };
            if let Some(taken) = self.io.async_io(Interest::READABLE, look).await? {
                return Ok(taken);
            }
            tokio::task::yield_now().await;
        }
    }

    /// What is there at this moment, or `WouldBlock`.
    pub(crate) fn try_read(&self, into: &mut [u8]) -> io::Result<usize> {
        self.io.get_ref().recv(into)
    }

    /// Sends all octets. Dropped half-way, it leaves the rest unsent.
    pub(crate) async fn write_all(&self, mut octets: &[u8]) -> io::Result<()> {
        while !octets.is_empty() {
            let write = |socket: &Socket| unless_again(socket.send(octets), socket.writes_again());
            match self.io.async_io(Interest::WRITABLE, write).await? {
                Some(sent) => octets = octets.get(sent..).unwrap_or_default(),
                None => tokio::task::yield_now().await,
            }
        }
        Ok(())
    }

    /// Sends FIN, and reads whatever comes until the peer's, or for `limit`: a close with unread input
    /// would reset the connection and might eat what was sent last (FC-012).
    pub(crate) async fn close_gracefully(self, limit: Duration) {
        let drain = async {
            self.io.get_ref().shutdown_write()?;
            while !self.read_with(<[u8]>::is_empty).await? {}
            io::Result::Ok(())
        };
        // However it ends, the socket is closed now.
        let _ = tokio::time::timeout(limit, drain).await;
    }

    /// Gives the socket to the engine.
    pub(crate) fn into_socket(self) -> Socket {
        self.io.into_inner()
    }
}

/// `None`: nothing moved, and readiness will not tell when it does, so try again.
fn unless_again(moved: io::Result<usize>, again: bool) -> io::Result<Option<usize>> {
    match moved {
        Err(error) if error.kind() == io::ErrorKind::WouldBlock && again => Ok(None),
        moved => moved.map(Some),
    }
}

/// A listening socket that one task accepts from and anybody may close, at once.
#[derive(Debug)]
pub(crate) struct ListeningSocket(Mutex<Option<AsyncFd<Socket>>>);

impl ListeningSocket {
    /// Listens; whoever accepts does so on the runtime of `handle`.
    pub(crate) fn new(bound: Bound, backlog: u32, handle: &Handle) -> Result<Self, ConnectError> {
        let addr = bound.addr();
        let failed = |cause| ConnectError::Bind { addr, cause: Arc::new(cause) };
        bound.socket.listen(backlog).map_err(failed)?;
        let _runtime = handle.enter();
        let io = watch_socket(bound.socket, Interest::READABLE).map_err(failed)?;
        Ok(Self(Mutex::new(Some(io))))
    }

    /// Waits for a connection; `None` once the socket is closed. Cancel-safe.
    pub(crate) async fn accept(&self) -> Option<io::Result<(Socket, SocketAddr)>> {
        std::future::poll_fn(|cx| self.poll_accept(cx)).await
    }

    fn poll_accept(&self, cx: &mut Context<'_>) -> Poll<Option<io::Result<(Socket, SocketAddr)>>> {
        let io = self.0.lock();
        let Some(io) = io.as_ref() else { return Poll::Ready(None) };
        loop {
            let mut ready = match ready!(io.poll_read_ready(cx)) {
                Ok(ready) => ready,
                Err(error) => return Poll::Ready(Some(Err(error))),
            };
            if let Ok(accepted) = ready.try_io(|io| io.get_ref().accept()) {
                return Poll::Ready(Some(accepted));
            }
        }
    }

    /// Closes the socket: the port is free when this returns.
    pub(crate) fn close(&self) {
        // Not in the lock's scope: deregistering takes the runtime's.
        let io = self.0.lock().take();
        drop(io);
    }
}
