//! The Rust style: connections as values, set up by futures or by blocking calls.

use std::fmt;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use event_listener::{EventListener, Listener as _};

use super::close::CloseReason;
use super::endpoint::{Agreement, Endpoint, Handle, PrivateData};
use super::error::ConnectError;
use crate::aio::Line;
use crate::qp::QueuePair;
use crate::wr::{RecvRequest, SendRequest};

/// A connection that is being set up, from either side: await it, or [`wait`](Self::wait) for it.
///
/// The set-up goes on in the background whether or not anybody waits, and ends by itself within its
/// time limit. Dropping this gives it up.
#[must_use = "dropping it gives the connection up"]
#[derive(Debug)]
pub struct Connecting {
    /// Present until the connection is handed out.
    setup: Option<(Handle, QueuePair)>,
    change: Option<EventListener>,
}

impl Connecting {
    pub(crate) const fn new(handle: Handle, qp: QueuePair) -> Self {
        Self { setup: Some((handle, qp)), change: None }
    }

    /// Waits, blocking the calling thread, and at most for `timeout` if there is one; the set-up is
    /// given up then. It has a time limit of its own, see
    /// [`ConnParam::timeout`](super::ConnParam::timeout).
    pub fn wait(
        mut self,
        timeout: impl Into<Option<Duration>>,
    ) -> Result<Connection, ConnectError> {
        super::check_origin(&self.endpoint().device)?;
        let deadline = timeout.into().and_then(|timeout| Instant::now().checked_add(timeout));
        loop {
            // Looked at before as well: who need not wait leaves nothing behind.
            if let Some(result) = self.settle() {
                return result;
            }
            let change = self.endpoint().listen();
            if let Some(result) = self.settle() {
                return result;
            }
            match deadline {
                None => change.wait(),
                Some(deadline) => {
                    if change.wait_deadline(deadline).is_none() {
                        let timed_out = self.endpoint().timed_out();
                        return self.settle().unwrap_or(Err(timed_out));
                    }
                }
            }
        }
    }

    fn endpoint(&self) -> &Endpoint {
        let (handle, _) = self.setup.as_ref().expect("polled after it was done");
        &handle.0
    }

    fn settle(&mut self) -> Option<Result<Connection, ConnectError>> {
        let settled = self.endpoint().settled()?;
        let (handle, qp) = self.setup.take()?;
        Some(settled.map(|settled| {
            Connection(Arc::new(ConnectionInner {
                handle,
                qp,
                agreement: settled.agreement,
                private_data: settled.private_data,
                lines: OnceLock::new(),
            }))
        }))
    }
}

impl Future for Connecting {
    type Output = Result<Connection, ConnectError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        loop {
            if let Some(result) = self.settle() {
                return Poll::Ready(result);
            }
            match &mut self.change {
                // A change between the look above and this is seen by the next look.
                None => self.change = Some(self.endpoint().listen()),
                Some(change) => {
                    ready!(Pin::new(change).poll(cx));
                    self.change = None;
                }
            }
        }
    }
}

/// An established connection, and the queue pair that carries it.
///
/// The await style of using it is described in [`aio`](crate::aio); requests of the polling style go to
/// [`qp`](Self::qp), and both may be mixed. Clones name the same connection; dropping the last one
/// behaves as [`disconnect`](Self::disconnect).
#[derive(Clone)]
pub struct Connection(pub(crate) Arc<ConnectionInner>);

pub(crate) struct ConnectionInner {
    // First: the end is reported to nobody once the handle is gone, so it has to go before the queue
    // pair.
    handle: Handle,
    pub(crate) qp: QueuePair,
    agreement: Arc<Agreement>,
    private_data: PrivateData,
    /// Made by the first awaited request.
    lines: OnceLock<Box<Lines>>,
}

/// Where awaited requests wait while their work queue is full.
#[derive(Default)]
pub(crate) struct Lines {
    pub(crate) sends: Arc<Line<SendRequest>>,
    pub(crate) receives: Arc<Line<RecvRequest>>,
}

impl ConnectionInner {
    pub(crate) fn lines(&self) -> &Lines {
        self.lines.get_or_init(Box::default)
    }
}

impl Connection {
    /// The queue pair, for requests of the polling style.
    #[must_use]
    pub fn qp(&self) -> &QueuePair {
        &self.0.qp
    }

    /// What the peer's program sent along during set-up. One that does not like it may
    /// [`disconnect`](Self::disconnect) at once (MPA-031).
    #[must_use]
    pub fn private_data(&self) -> &[u8] {
        &self.0.private_data
    }

    /// How many RDMA Reads of the peer this side serves at once.
    #[must_use]
    pub fn ird(&self) -> u32 {
        self.0.agreement.ird
    }

    /// How many RDMA Reads this side has outstanding at most; more wait in the send queue.
    #[must_use]
    pub fn ord(&self) -> u32 {
        self.0.agreement.ord
    }

    /// The revision of MPA in use, 1 or 2.
    #[must_use]
    pub fn revision(&self) -> u8 {
        self.0.agreement.revision
    }

    /// Whether CRCs are made and checked.
    #[must_use]
    pub fn crc(&self) -> bool {
        self.0.agreement.crc
    }

    /// The peer.
    #[must_use]
    pub fn peer_addr(&self) -> SocketAddr {
        self.0.agreement.peer
    }

    /// The local address.
    #[must_use]
    pub fn local_addr(&self) -> SocketAddr {
        self.0.agreement.local
    }

    /// Ends the connection: the FPDU in flight is finished, what else is posted is flushed, and TCP is
    /// closed in order. Returns at once. No error if the connection is over already (FC-047).
    pub fn disconnect(&self) {
        // An established connection is the only kind there is of this type.
        let _ = self.0.handle.0.disconnect();
    }

    /// Ends the connection after everything that is posted has been carried out, and waits for the end.
    ///
    /// Bounded in time: a peer that does not take what was posted is waited for no longer than the
    /// device's [`user_timeout`](crate::DeviceConfig::user_timeout) (20 s if that is zero), one that does
    /// not close its side no longer than its [`close_grace`](crate::DeviceConfig::close_grace). Dropped,
    /// it closes all the same.
    pub async fn close(&self) -> CloseReason {
        self.0.qp.0.inner.close();
        self.closed().await
    }

    /// Waits until the connection is over, whatever ends it. Cancel-safe.
    pub async fn closed(&self) -> CloseReason {
        loop {
            let change = self.0.handle.0.listen();
            if let Some(reason) = self.0.handle.0.close_reason() {
                return reason;
            }
            change.await;
        }
    }

    /// Waits until the connection is over, blocking the calling thread, and at most for `timeout` if
    /// there is one; `None` when the time is over first, and in a forked child, which never hears of it.
    pub fn wait_closed(&self, timeout: impl Into<Option<Duration>>) -> Option<CloseReason> {
        super::check_origin(&self.0.handle.0.device).ok()?;
        let deadline = timeout.into().and_then(|timeout| Instant::now().checked_add(timeout));
        loop {
            let change = self.0.handle.0.listen();
            if let Some(reason) = self.0.handle.0.close_reason() {
                return Some(reason);
            }
            match deadline {
                None => change.wait(),
                Some(deadline) => {
                    if change.wait_deadline(deadline).is_none() {
                        return self.0.handle.0.close_reason();
                    }
                }
            }
        }
    }
}

impl fmt::Debug for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connection")
            .field("local", &self.local_addr())
            .field("peer", &self.peer_addr())
            .field("ended", &self.0.handle.0.close_reason())
            .finish_non_exhaustive()
    }
}
