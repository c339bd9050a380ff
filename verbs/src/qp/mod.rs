//! Queue pairs: the two work queues, their states, and what posting checks.
//!
//! | file | holds |
//! |---|---|
//! | `mod.rs` | [`QueuePair`], what programs hold |
//! | `inner.rs` | what all holders share: set-up, the ways to end, destruction |
//! | `modify.rs` | changes of state and attributes; draining |
//! | `post.rs` | posting |
//! | `state.rs` | the states, as one table |
//! | `sq.rs`, `rq.rs` | the queues between posting and the engine |
//! | `wqe.rs`, `slot.rs` | a posted request; where an awaited one completes |
//! | `number.rs` | queue pair numbers |

mod inner;
mod modify;
mod number;
mod post;
pub(crate) mod rq;
pub(crate) mod slot;
pub(crate) mod sq;
pub(crate) mod state;
pub(crate) mod wqe;

use std::fmt;
use std::sync::{Arc, Weak};
use std::time::Duration;

pub use self::inner::Ending;
pub(crate) use self::inner::{NotStarted, QpInner};
use self::wqe::Reply;
use crate::attr::{QpAttributes, QpChange, QpConfig, QpState};
use crate::cq::CompletionQueue;
use crate::error::Error;
use crate::pd::{PdInner, ProtectionDomain};
use crate::srq::SharedReceiveQueue;
use crate::stats::QpStats;
use crate::users::Use;
use crate::wr::{PostError, RecvRequest, SendRequest};

/// A reliable, connected queue pair. Clones name the same one.
///
/// All calls are possible from any thread and none blocks, except [`destroy`](Self::destroy), which
/// waits for the end of a pass over the connection, and the two that say so by their names. A request
/// that is posted is retired exactly once, in the order of its queue: done, failed or flushed.
///
/// Dropping the last handle behaves as [`disconnect`](Self::disconnect) and lets the queue pair go once
/// its connection is over.
#[derive(Clone)]
pub struct QueuePair(pub(crate) Arc<QpHandle>);

/// The program's hold on a queue pair.
pub(crate) struct QpHandle {
    pub(crate) inner: Arc<QpInner>,
    /// Held by the program's handles only: a connection that is still closing keeps no domain in use.
    pd: Use<PdInner>,
    /// As long as there is a handle, events about it reach the program.
    srq: Option<SharedReceiveQueue>,
}

impl Drop for QpHandle {
    fn drop(&mut self) {
        if !self.inner.device.origin.is_here() {
            // FC-064: the parent's, and whoever held a lock of it is not here.
            std::mem::forget(Arc::clone(&self.inner));
            return;
        }
        self.inner.abandon();
    }
}

impl QueuePair {
    pub(crate) fn create(pd: Use<PdInner>, config: &QpConfig) -> Result<Self, Error> {
        let inner = QpInner::create(&pd, config)?;
        let handle = Arc::new(QpHandle { inner, pd, srq: config.srq.clone() });
        handle.inner.set_handle(&handle);
        Ok(Self(handle))
    }

    fn inner(&self) -> &Arc<QpInner> {
        &self.0.inner
    }

    /// Posts one request to the send queue and tries to send it at once, in the calling thread.
    ///
    /// From the third on, requests posted in a row may be gathered and sent with one system call: those of
    /// a program that polls between its rows. They go with its next empty poll, or wait or await, of one
    /// of the queue pair's completion queues, when there are 32 of them or 256 KiB, with the next that comes
    /// after a pause of a microsecond, or, if there is nothing of all that, within a millisecond.
    ///
    /// Refused without effect in `Reset` and `Init`, with a full queue, or if the request itself is
    /// wrong; the error gives it back. After the end of the connection requests are taken and flushed.
    pub fn post_send(&self, request: SendRequest) -> Result<(), PostError> {
        self.inner().post_send(request, Reply::Cq)
    }

    /// Posts requests in order, and tries to send them together.
    ///
    /// Stops at the first that is refused: those before it are posted, it comes back in the error, and
    /// those after it are not looked at (FC-065).
    pub fn post_send_list(
        &self,
        requests: impl IntoIterator<Item = SendRequest>,
    ) -> Result<(), PostError> {
        self.inner().post_send_list(requests)
    }

    /// Posts one receive. Possible from `Init` on, so that it is there when the first message comes. Refused if
    /// receives come from a [`SharedReceiveQueue`]: they are posted there.
    pub fn post_recv(&self, request: RecvRequest) -> Result<(), PostError<RecvRequest>> {
        self.inner().post_recv(request, Reply::Cq)
    }

    /// Posts receives in order; stops at the first that is refused, as
    /// [`post_send_list`](Self::post_send_list) does.
    pub fn post_recv_list(
        &self,
        requests: impl IntoIterator<Item = RecvRequest>,
    ) -> Result<(), PostError<RecvRequest>> {
        self.inner().post_recv_list(requests)
    }

    /// Number of the queue pair: 24 bits, unique in the process.
    #[must_use]
    pub fn number(&self) -> u32 {
        self.inner().number
    }

    /// Its state at this moment.
    #[must_use]
    pub fn state(&self) -> QpState {
        self.inner().state.get()
    }

    /// Its attributes at this moment.
    #[must_use]
    pub fn query(&self) -> QpAttributes {
        self.inner().query()
    }

    /// What has happened on its connection, or on the last one. Waits for the pass that may be running,
    /// which is short.
    #[must_use]
    pub fn stats(&self) -> QpStats {
        self.inner().stats()
    }

    /// The Terminate that ended its connection, sent or received; `None` if there was none, or the
    /// connection lives.
    #[must_use]
    pub fn ending(&self) -> Option<Ending> {
        self.inner().ending()
    }

    /// Changes it: its state, what its peer may do, or its ORD.
    ///
    /// States: `Err` resets the connection and flushes; `Sqd` is [`disconnect`](Self::disconnect); `Sqe`
    /// sends a Terminate; `Reset` is possible once everything is flushed, and puts windows of type 2 that are
    /// bound through it out of force; `Init` follows it, after which the queue pair can be connected anew.
    /// Everything else is refused: connecting is the connection manager's business.
    ///
    /// # Errors
    /// [`Error::State`] if the state does not allow it; [`Error::Busy`] for `Reset` while a connection or
    /// requests are left; [`Error::Limit`] for an ORD beyond the negotiated one;
    /// [`Error::QueuePairRights`]; [`Error::CqOverrun`] for `Init` with a broken completion queue;
    /// [`Error::Destroyed`]. Then nothing has changed.
    pub fn modify(&self, change: impl Into<QpChange>) -> Result<(), Error> {
        self.inner().modify(&change.into())
    }

    /// Moves it to `Err` and waits until everything that was posted has come back: as a completion in its
    /// queue, not necessarily polled. At most for `timeout` if there is one; `false` when the time is over.
    ///
    /// Blocks the calling thread, for moments only: nothing is waited for from the peer. Needs no room in
    /// the work queues. What is posted meanwhile is flushed as well.
    ///
    /// # Errors
    /// [`Error::Destroyed`].
    pub fn drain(&self, timeout: impl Into<Option<Duration>>) -> Result<bool, Error> {
        crate::aio::wait(self.drained(), timeout)
            .map_or(Ok(false), |drained| drained.map(|()| true))
    }

    /// [`drain`](Self::drain) for tasks. Works in any runtime. A dropped call leaves the queue pair in `Err`.
    ///
    /// # Errors
    /// [`Error::Destroyed`].
    pub async fn drained(&self) -> Result<(), Error> {
        self.modify(QpState::Err)?;
        self.inner().drained().await
    }

    /// Ends the connection: the FPDU in flight is finished, what else is posted is flushed, and TCP is
    /// closed in order. Nothing happens without a connection.
    pub fn disconnect(&self) {
        self.inner().disconnect();
    }

    /// Where requests of the send queue complete.
    #[must_use]
    pub fn send_cq(&self) -> CompletionQueue {
        CompletionQueue::from_inner(Arc::clone(&self.inner().send_cq))
    }

    /// Where receives complete.
    #[must_use]
    pub fn recv_cq(&self) -> CompletionQueue {
        CompletionQueue::from_inner(Arc::clone(&self.inner().recv_cq))
    }

    /// The shared receive queue that it takes its receives from, if it has none of its own.
    #[must_use]
    pub fn shared_receive_queue(&self) -> Option<SharedReceiveQueue> {
        self.0.srq.clone()
    }

    /// The protection domain of its memory.
    #[must_use]
    pub fn pd(&self) -> ProtectionDomain {
        ProtectionDomain(Arc::clone(&self.0.pd))
    }

    /// Destroys it, whatever its state, for all handles.
    ///
    /// Waits for the pass that may be running, which is short, and until the program has acknowledged the
    /// asynchronous events about it that it has fetched. When it returns nobody touches its memory
    /// or its completion queues any more: outstanding requests have vanished without completion, and
    /// completions that were not polled are gone. What TCP was already given is still delivered, and the
    /// connection is closed in order behind the scenes.
    pub fn destroy(&self) -> Result<(), Error> {
        self.inner().destroy(|| self.0.pd.end())
    }
}

/// The name of a queue pair, which keeps nothing alive: what an [event](crate::AsyncEvent) is about.
#[derive(Clone)]
pub struct WeakQueuePair {
    number: u32,
    handle: Weak<QpHandle>,
}

impl WeakQueuePair {
    pub(crate) fn new(number: u32, handle: Weak<QpHandle>) -> Self {
        Self { number, handle }
    }

    /// The name of a queue pair that nobody has.
    #[cfg(test)]
    pub(crate) fn nobody(number: u32) -> Self {
        Self::new(number, Weak::new())
    }

    /// Its number.
    #[must_use]
    pub fn number(&self) -> u32 {
        self.number
    }

    /// The queue pair, unless the last handle to it was dropped.
    #[must_use]
    pub fn upgrade(&self) -> Option<QueuePair> {
        self.handle.upgrade().map(QueuePair)
    }
}

impl QueuePair {
    /// Its name, which does not keep it alive.
    #[must_use]
    pub fn downgrade(&self) -> WeakQueuePair {
        WeakQueuePair::new(self.number(), Arc::downgrade(&self.0))
    }

    /// Acknowledges `n` events about it that were
    /// [left unacknowledged](crate::AsyncEvent::into_unacknowledged).
    ///
    /// # Errors
    /// [`Error::Acknowledged`] if there are fewer; none is acknowledged then.
    pub fn ack_events(&self, n: u64) -> Result<(), Error> {
        self.inner().device.events().ack_qp(self.number(), n)
    }
}

impl PartialEq for QueuePair {
    /// Whether both name the same queue pair.
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Eq for QueuePair {}

impl fmt::Debug for WeakQueuePair {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("WeakQueuePair").field(&self.number).finish()
    }
}

impl fmt::Debug for QueuePair {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner().fmt(f)
    }
}
