//! Listening: strangers come in, their requests go to the program.

use std::collections::VecDeque;
use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use bytes::Bytes;
use event_listener::{IntoNotification as _, Listener as _};
use parking_lot::Mutex;
use rustix::io::Errno;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_util::sync::CancellationToken;

use super::accept::{Pending, take_request};
use super::address::Address;
use super::connection::Connecting;
use super::endpoint::{Endpoint, Handle, Stage};
use super::error::ConnectError;
use super::handshakes::Place;
use super::param::{ConnParam, ListenConfig};
use super::socket::{Bound, Conversation, ListeningSocket};
use crate::device::{Device, DeviceInner};
use crate::qp::QueuePair;
use crate::sys::Socket;
use crate::trace::SETUP;
use crate::users::{Use, User};

/// Requests that may wait for the program if it does not say how many (FC-050).
const DEFAULT_BACKLOG: u32 = 128;

/// Pause of a listener that cannot get a descriptor, so that it never spins.
const SHORTAGE_PAUSE: Duration = Duration::from_millis(100);

/// Takes a request that has come in, with its room in the backlog, which it holds until the program
/// has taken the request.
pub(crate) type Deliver = dyn Fn(Box<Pending>, OwnedSemaphorePermit) + Send + Sync;

/// A listening socket and the task that serves it. Both end when this is dropped: the port is free
/// then.
pub(crate) struct Acceptor {
    shared: Arc<Serving>,
}

struct Serving {
    device: Use<DeviceInner>,
    socket: ListeningSocket,
    addr: SocketAddr,
    /// As many permits as requests may wait for the program.
    room: Arc<Semaphore>,
    stop: CancellationToken,
    deliver: Box<Deliver>,
}

impl Acceptor {
    pub(crate) fn start(
        device: &Arc<DeviceInner>,
        bound: Bound,
        backlog: u32,
        deliver: Box<Deliver>,
    ) -> Result<Self, ConnectError> {
        let handle = super::runtime(device)?;
        let backlog = if backlog == 0 { DEFAULT_BACKLOG } else { backlog };
        let addr = bound.addr();
        let permits = usize::try_from(backlog).unwrap_or(usize::MAX).min(Semaphore::MAX_PERMITS);
        let shared = Arc::new(Serving {
            device: Use::begin_or_keep(device, User::Listener),
            socket: ListeningSocket::new(bound, backlog, &handle)?,
            addr,
            room: Arc::new(Semaphore::new(permits)),
            stop: CancellationToken::new(),
            deliver,
        });
        let stop = shared.stop.clone();
        handle.spawn(stop.run_until_cancelled_owned(Arc::clone(&shared).serve()));
        Ok(Self { shared })
    }

    pub(crate) fn addr(&self) -> SocketAddr {
        self.shared.addr
    }
}

impl Drop for Acceptor {
    fn drop(&mut self) {
        if !self.shared.device.origin.is_here() {
            // FC-064: the socket is the parent's, and so is the reactor.
            std::mem::forget(Arc::clone(&self.shared));
            return;
        }
        self.shared.device.end();
        self.shared.socket.close();
        // Also ends the start-ups that are under way.
        self.shared.stop.cancel();
    }
}

impl Serving {
    async fn serve(self: Arc<Self>) {
        loop {
            // While the program takes no requests, newcomers wait in the system's backlog.
            match self.room.acquire().await {
                Ok(room) => drop(room),
                Err(_) => return,
            }
            let Some(accepted) = self.socket.accept().await else { return };
            match accepted {
                Ok((socket, peer)) => {
                    let place = self.device.handshakes.enter().await;
                    tokio::spawn(Arc::clone(&self).greet(socket, peer, place));
                }
                Err(error) if is_shortage(&error) => {
                    tracing::warn!(addr = %self.addr, %error, "cannot accept connections at present");
                    tokio::time::sleep(SHORTAGE_PAUSE).await;
                }
                // The connection was gone before it was accepted.
                Err(error) => {
                    tracing::debug!(target: SETUP, addr = %self.addr, %error, "a connection was lost");
                }
            }
        }
    }

    /// From an accepted TCP connection to a request in the program's hands.
    async fn greet(self: Arc<Self>, socket: Socket, peer: SocketAddr, place: Place) {
        let limit = self.device.config.accept_timeout;
        let Ok(conversation) = Conversation::accepted(socket) else { return };
        // In memory of its own: whoever passes a future on by value has room for it twice, and there may be as many
        // of these as there are places.
        let request = place.occupy(Box::pin(take_request(conversation, peer, limit)));
        let taken = self.stop.run_until_cancelled(request).await;
        drop(place);
        let Some(pending) = taken.flatten().flatten() else { return };
        self.device.counters.requests_received.count();
        let revision = pending.request.revision;
        tracing::debug!(target: SETUP, %peer, local = %pending.local, revision, "request received");
        // Its time is the program's from here on.
        let room = Arc::clone(&self.room).acquire_owned();
        let Some(Ok(room)) = self.stop.run_until_cancelled(room).await else {
            return pending.decline_silently(&self.device);
        };
        (self.deliver)(pending, room);
    }
}

/// Whether trying again at once would find the same.
fn is_shortage(error: &io::Error) -> bool {
    let shortages = [Errno::MFILE, Errno::NFILE, Errno::NOBUFS, Errno::NOMEM];
    Errno::from_io_error(error).is_some_and(|errno| shortages.contains(&errno))
}

/// Waits for peers that want to connect: the Rust style.
///
/// Listening goes on in the background, whatever the program does. A peer that says nothing, or
/// nonsense, costs its own connection and is never heard of (FC-004). Dropping the listener frees the
/// port and rejects the requests that nobody took.
pub struct Listener {
    acceptor: Acceptor,
    queue: Arc<RequestQueue>,
}

#[derive(Default)]
struct RequestQueue {
    waiting: Mutex<VecDeque<(ConnectRequest, OwnedSemaphorePermit)>>,
    arrived: event_listener::Event,
}

impl Listener {
    /// Listens at an address; port 0 takes a free one, see [`local_addr`](Self::local_addr). A name is
    /// looked up in the calling thread, and its first address that can be bound is taken.
    pub fn bind(
        device: &Device,
        addr: impl Into<Address>,
        config: ListenConfig,
    ) -> Result<Self, ConnectError> {
        let bound = super::socket::bind_first(&device.0.sockets, &addr.into(), config.bind)?;
        let queue = Arc::<RequestQueue>::default();
        let device = &device.0;
        let deliver = {
            let device = Arc::clone(device);
            let queue = Arc::downgrade(&queue);
            move |pending, room| deliver(&device, &queue, pending, room)
        };
        let acceptor = Acceptor::start(device, bound, config.backlog, Box::new(deliver))?;
        Ok(Self { acceptor, queue })
    }

    /// Where it listens.
    #[must_use]
    pub fn local_addr(&self) -> SocketAddr {
        self.acceptor.addr()
    }

    /// Stops listening, as dropping it does: the port is free when this returns, and the requests that
    /// nobody took are rejected. Requests that were taken are not concerned. Never blocks.
    pub fn destroy(self) {
        drop(self);
    }

    /// Takes a request if one is there. Never blocks.
    #[must_use]
    pub fn try_accept(&self) -> Option<ConnectRequest> {
        super::check_origin(&self.acceptor.shared.device).ok()?;
        self.queue.pop()
    }

    /// Waits for a request, blocking the calling thread, and at most for `timeout` if there is one.
    pub fn accept(
        &self,
        timeout: impl Into<Option<Duration>>,
    ) -> Result<ConnectRequest, ConnectError> {
        super::check_origin(&self.acceptor.shared.device)?;
        let timeout = timeout.into();
        let deadline = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
        loop {
            let arrival = self.queue.arrived.listen();
            if let Some(request) = self.queue.pop() {
                return Ok(request);
            }
            match deadline {
                None => arrival.wait(),
                Some(deadline) => {
                    if arrival.wait_deadline(deadline).is_none() {
                        return self.queue.pop().ok_or_else(|| ConnectError::NoRequest {
                            addr: self.local_addr(),
                            after: timeout.unwrap_or_default(),
                        });
                    }
                }
            }
        }
    }

    /// Waits for a request, in any runtime. Cancel-safe: a dropped wait takes no request.
    pub async fn next(&self) -> ConnectRequest {
        loop {
            let arrival = self.queue.arrived.listen();
            if let Some(request) = self.try_accept() {
                return request;
            }
            arrival.await;
        }
    }
}

fn deliver(
    device: &Arc<DeviceInner>,
    queue: &Weak<RequestQueue>,
    pending: Box<Pending>,
    room: OwnedSemaphorePermit,
) {
    let Some(queue) = queue.upgrade() else { return pending.decline_silently(device) };
    let request = ConnectRequest::new(Arc::clone(device), pending);
    queue.waiting.lock().push_back((request, room));
    // One more waiter for each request, also if others that were told have not run yet.
    queue.arrived.notify(1.additional());
}

impl RequestQueue {
    fn pop(&self) -> Option<ConnectRequest> {
        let (request, room) = self.waiting.lock().pop_front()?;
        drop(room);
        Some(request)
    }
}

impl fmt::Debug for Listener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let waiting = self.queue.waiting.lock().len();
        f.debug_struct("Listener")
            .field("addr", &self.local_addr())
            .field("waiting", &waiting)
            .finish_non_exhaustive()
    }
}

/// A peer that wants to connect, for the program to [`accept`](Self::accept) or to
/// [`reject`](Self::reject).
///
/// There is no hurry on this side: no timer runs, though the peer has one of its own. Dropping the
/// request rejects it.
#[derive(Debug)]
pub struct ConnectRequest {
    handle: Handle,
    private_data: Bytes,
    peer: SocketAddr,
    local: SocketAddr,
    ird: Option<u32>,
    ord: Option<u32>,
}

impl ConnectRequest {
    fn new(device: Arc<DeviceInner>, pending: Box<Pending>) -> Self {
        Self {
            private_data: pending.request.private_data.clone(),
            peer: pending.peer,
            local: pending.local,
            ird: pending.request.ird(),
            ord: pending.request.ord(),
            handle: Handle(Endpoint::new(device, Stage::Requested(pending), None)),
        }
    }

    /// What the peer's program sent along, without the block of an enhanced request (FC-008).
    #[must_use]
    pub fn private_data(&self) -> &[u8] {
        &self.private_data
    }

    /// The peer.
    #[must_use]
    pub fn peer_addr(&self) -> SocketAddr {
        self.peer
    }

    /// The local address that the peer connected to.
    #[must_use]
    pub fn local_addr(&self) -> SocketAddr {
        self.local
    }

    /// The peer's IRD: a ceiling for the ORD of this side. `None` if it was not said (CONN-11).
    #[must_use]
    pub fn peer_ird(&self) -> Option<u32> {
        self.ird
    }

    /// The peer's ORD: what it wants from the IRD of this side. `None` if it was not said (CONN-11).
    #[must_use]
    pub fn peer_ord(&self) -> Option<u32> {
        self.ord
    }

    /// Accepts, and connects the queue pair. Receives posted before are there for the peer's first
    /// message.
    ///
    /// Returns at once, with what becomes of it. An error means that nothing was sent and the queue
    /// pair was not touched; the request is rejected then.
    pub fn accept(self, qp: &QueuePair, param: ConnParam) -> Result<Connecting, ConnectError> {
        self.handle.0.accept(qp, param)?;
        Ok(Connecting::new(self.handle, qp.clone()))
    }

    /// Rejects, with up to 508 octets for the peer's program, or 512 if it asked with revision 1. They
    /// are copied. Returns at once; the connection is closed in order in the background (FC-012).
    pub fn reject(self, private_data: &[u8]) -> Result<(), ConnectError> {
        self.handle.0.reject(private_data)
    }
}
