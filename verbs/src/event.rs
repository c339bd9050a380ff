//! Asynchronous events of a device: what happens to its objects beside completions.
//!
//! An error that a completion tells is not told by an event as well (V9). The events of the contract that are
//! never raised, and why: `COMM_EST`, because no data comes before `Rts`; path migration, LID, partition key, GID and
//! subnet manager changes, because there is no fabric; `PORT_ACTIVE` and `PORT_ERR`, because the device is
//! all of this host's TCP and belongs to no interface: one that goes down takes no more with it than the
//! connections that TCP itself gives up.

mod ack;

use std::collections::{HashMap, VecDeque};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, Weak};
use std::time::Instant;
use std::{fmt, io};

use event_listener::{IntoNotification as _, listener};
use parking_lot::Mutex;

pub(crate) use self::ack::{Ack, Unacked};
use crate::cq::{CompletionQueue, CqInner};
use crate::error::Error;
use crate::qp::WeakQueuePair;
use crate::srq::{SharedReceiveQueue, SrqHandle};
use crate::sys::{Notifier, wait_readable};

/// What happened. The integers are those of `enum ibv_event_type`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u32)]
#[non_exhaustive]
pub enum AsyncEventKind {
    /// A completion queue has overrun; its queue pairs go to the error state.
    CqErr = 0,
    /// A queue pair has failed: its connection was lost, or broke in a way that no completion tells.
    QpFatal = 1,
    /// The peer, or this side, refused a request of the connection as invalid.
    QpReqErr = 2,
    /// The peer, or this side, refused an access to memory.
    QpAccessErr = 3,
    /// What was posted to the send queue before its queue pair was moved to `Sqd` has come back; raised for
    /// who asked for it with [`QpChange::notify_drained`](crate::QpChange::notify_drained).
    SqDrained = 5,
    /// The thread of the device cannot go on: its connections are over, and there will be no others.
    DeviceFatal = 8,
    /// A shared receive queue has failed. Never raised: it is memory of this process, and whatever is wrong with
    /// one of its receives ends the queue pair that took it, and no other.
    SrqErr = 14,
    /// A shared receive queue has fewer receives left than its limit, which has to be
    /// [set](crate::SharedReceiveQueue::modify) again to be told once more.
    SrqLimitReached = 15,
    /// A queue pair with a shared receive queue is in error and takes no receive any more: the completions
    /// of those that it took are in its queue (FC-074). Once for each time that it gets into error, also
    /// if it had none.
    QpLastWqeReached = 16,
}

impl AsyncEventKind {
    /// The integer libibverbs uses for this event.
    #[must_use]
    pub const fn value(self) -> u32 {
        self as u32
    }
}

impl fmt::Display for AsyncEventKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::CqErr => "completion queue overrun",
            Self::QpFatal => "queue pair failed",
            Self::QpReqErr => "invalid request",
            Self::QpAccessErr => "access violation",
            Self::SqDrained => "send queue drained",
            Self::DeviceFatal => "device failed",
            Self::SrqErr => "shared receive queue failed",
            Self::SrqLimitReached => "shared receive queue below its limit",
            Self::QpLastWqeReached => "last receive of a queue pair reached",
        })
    }
}

/// Which object an event is about.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub enum EventSource {
    /// This queue pair, which the event does not keep alive.
    QueuePair(WeakQueuePair),
    /// This completion queue.
    CompletionQueue(CompletionQueue),
    /// This shared receive queue.
    SharedReceiveQueue(SharedReceiveQueue),
    /// The device itself.
    Device,
}

impl EventSource {
    /// The number of the queue pair that the event is about, if it is about one.
    #[must_use]
    pub fn queue_pair_number(&self) -> Option<u32> {
        match self {
            Self::QueuePair(qp) => Some(qp.number()),
            Self::CompletionQueue(_) | Self::SharedReceiveQueue(_) | Self::Device => None,
        }
    }
}

/// An event, fetched with [`Device::next_async_event`](crate::Device::next_async_event).
///
/// Dropping it acknowledges it. The destruction of the object waits for that (FC-040).
#[derive(Debug)]
pub struct AsyncEvent {
    kind: AsyncEventKind,
    source: EventSource,
    /// Acknowledges when dropped.
    ack: Ack,
}

impl AsyncEvent {
    /// What happened.
    #[must_use]
    pub fn kind(&self) -> AsyncEventKind {
        self.kind
    }

    /// The object it happened to.
    #[must_use]
    pub fn source(&self) -> &EventSource {
        &self.source
    }

    /// Takes it apart without acknowledging it: `ack_events` of the object has to be called some day, and its
    /// destruction waits for that. For programs that acknowledge by counting, as those of libibverbs do.
    #[must_use = "the object is to be told of the acknowledgement"]
    pub fn into_unacknowledged(self) -> (AsyncEventKind, EventSource) {
        self.ack.leave();
        (self.kind, self.source)
    }
}

/// Events that nobody has fetched yet, and what waits for acknowledgement.
#[derive(Debug)]
pub(crate) struct AsyncEvents {
    notifier: Notifier,
    state: Mutex<State>,
    /// Notified for tasks that await one.
    arrived: event_listener::Event,
}

#[derive(Debug, Default)]
struct State {
    queue: VecDeque<Queued>,
    /// By number of the queue pair; entries exist from the first fetched event on, until the queue pair is
    /// gone.
    unacked: HashMap<u32, Arc<Unacked>>,
    /// There are to be no more.
    closed: bool,
}

#[derive(Debug)]
struct Queued {
    kind: AsyncEventKind,
    source: QueuedSource,
}

/// Nothing is kept alive by an event that nobody fetches.
#[derive(Debug)]
enum QueuedSource {
    QueuePair(WeakQueuePair),
    CompletionQueue(Weak<CqInner>),
    SharedReceiveQueue(Weak<SrqHandle>),
    Device,
}

impl AsyncEvents {
    pub(crate) fn new() -> io::Result<Self> {
        Ok(Self {
            notifier: Notifier::new(true)?,
            state: Mutex::default(),
            arrived: event_listener::Event::new(),
        })
    }

    /// Raises an event about a queue pair, unless `gone` says, with the events locked, that it is being
    /// destroyed: what came before is dropped by [`forget_qp`](Self::forget_qp).
    pub(crate) fn raise_qp(
        &self,
        kind: AsyncEventKind,
        qp: WeakQueuePair,
        gone: impl FnOnce() -> bool,
    ) {
        self.raise_unless(Queued { kind, source: QueuedSource::QueuePair(qp) }, gone);
    }

    pub(crate) fn raise_cq(&self, kind: AsyncEventKind, cq: Weak<CqInner>) {
        self.raise_unless(Queued { kind, source: QueuedSource::CompletionQueue(cq) }, || false);
    }

    /// Raises an event about a shared receive queue, unless `gone` says, with the events locked, that it was
    /// destroyed.
    pub(crate) fn raise_srq(
        &self,
        kind: AsyncEventKind,
        srq: Weak<SrqHandle>,
        gone: impl FnOnce() -> bool,
    ) {
        self.raise_unless(Queued { kind, source: QueuedSource::SharedReceiveQueue(srq) }, gone);
    }

    /// Raises an event about the device.
    pub(crate) fn raise_device(&self, kind: AsyncEventKind) {
        self.raise_unless(Queued { kind, source: QueuedSource::Device }, || false);
    }

    fn raise_unless(&self, queued: Queued, gone: impl FnOnce() -> bool) {
        tracing::debug!(kind = %queued.kind, source = ?queued.source, "asynchronous event");
        {
            let mut state = self.state.lock();
            if gone() {
                return;
            }
            state.queue.push_back(queued);
            // Inside, so that the descriptor never says more or less than the queue holds.
            if let Err(error) = self.notifier.notify(1) {
                tracing::error!(%error, "asynchronous event without notice");
            }
        }
        self.arrived.notify(1.additional());
    }

    /// The next event, if there is one. Never blocks.
    pub(crate) fn next(&self) -> io::Result<Option<AsyncEvent>> {
        loop {
            let mut state = self.state.lock();
            let Some(Queued { kind, source }) = state.queue.pop_front() else { return Ok(None) };
            self.notifier.try_take()?;
            let (source, ack) = match source {
                QueuedSource::QueuePair(qp) => {
                    let ack = state.unacked.entry(qp.number()).or_default().issue();
                    (EventSource::QueuePair(qp), ack)
                }
                QueuedSource::CompletionQueue(cq) => {
                    // Its last reference may be this one, and its end comes back here.
                    drop(state);
                    let Some(cq) = cq.upgrade() else { continue };
                    // Counted first, and then looked at: a destruction that is under way either waits for
                    // this event, or is seen here.
                    let ack = cq.unacked().issue();
                    if cq.is_destroyed() {
                        continue;
                    }
                    (EventSource::CompletionQueue(CompletionQueue::from_inner(cq)), ack)
                }
                QueuedSource::SharedReceiveQueue(srq) => {
                    drop(state);
                    let Some(srq) = srq.upgrade() else { continue };
                    let Some(ack) = srq.issue_ack() else { continue };
                    let srq = SharedReceiveQueue::from_handle(srq);
                    (EventSource::SharedReceiveQueue(srq), ack)
                }
                QueuedSource::Device => (EventSource::Device, Ack::none()),
            };
            return Ok(Some(AsyncEvent { kind, source, ack }));
        }
    }

    /// No event comes any more: whoever waits for one is told so.
    pub(crate) fn close(&self) {
        self.state.lock().closed = true;
        // Nobody takes this notice, so it wakes all who sleep, and whoever comes.
        if let Err(error) = self.notifier.notify(1) {
            tracing::error!(%error, "the end of events without notice");
        }
        self.arrived.notify(usize::MAX);
    }

    fn is_closed(&self) -> bool {
        self.state.lock().closed
    }

    /// Waits for the next event in the calling thread. `None`: the time is over, or there is none any more.
    pub(crate) fn wait(&self, deadline: Option<Instant>) -> io::Result<Option<AsyncEvent>> {
        loop {
            let event = self.next()?;
            if event.is_some() || self.is_closed() || !wait_readable(self.as_fd(), deadline)? {
                return Ok(event);
            }
        }
    }

    /// Waits for the next event in a task of any runtime. `None`: there is none any more. Cancel-safe.
    pub(crate) async fn arrival(&self) -> io::Result<Option<AsyncEvent>> {
        loop {
            listener!(self.arrived => arrived);
            let event = self.next()?;
            if event.is_some() || self.is_closed() {
                return Ok(event);
            }
            arrived.await;
        }
    }

    /// Drops what was not fetched about a queue pair that is being destroyed.
    pub(crate) fn forget_qp(&self, number: u32) {
        self.forget(
            |source| matches!(source, QueuedSource::QueuePair(qp) if qp.number() == number),
        );
    }

    /// Drops what was not fetched about a completion queue that is being destroyed.
    pub(crate) fn forget_cq(&self, cq: &CqInner) {
        self.forget(|source| {
            matches!(source, QueuedSource::CompletionQueue(of) if std::ptr::eq(of.as_ptr(), cq))
        });
    }

    /// Drops what was not fetched about a shared receive queue that is being destroyed.
    pub(crate) fn forget_srq(&self, srq: &SrqHandle) {
        self.forget(|source| {
            matches!(source, QueuedSource::SharedReceiveQueue(of) if std::ptr::eq(of.as_ptr(), srq))
        });
    }

    fn forget(&self, about: impl Fn(&QueuedSource) -> bool) {
        let mut state = self.state.lock();
        let before = state.queue.len();
        state.queue.retain(|queued| !about(&queued.source));
        for _ in state.queue.len()..before {
            if let Err(error) = self.notifier.try_take() {
                tracing::error!(%error, "notice of an event that is gone");
            }
        }
    }

    /// Forgets a queue pair that is gone, whatever was fetched about it: its number is free for another.
    pub(crate) fn bury_qp(&self, number: u32) {
        self.forget_qp(number);
        self.state.lock().unacked.remove(&number);
    }

    fn unacked_qp(&self, number: u32) -> Option<Arc<Unacked>> {
        self.state.lock().unacked.get(&number).map(Arc::clone)
    }

    /// Acknowledges events about a queue pair by their number.
    pub(crate) fn ack_qp(&self, number: u32, n: u64) -> Result<(), Error> {
        match self.unacked_qp(number) {
            Some(unacked) => unacked.ack(n),
            None if n == 0 => Ok(()),
            None => Err(Error::Acknowledged { asked: n, left: 0 }),
        }
    }

    /// Blocks until the program has acknowledged what it fetched about a queue pair.
    pub(crate) fn wait_qp_acked(&self, number: u32) {
        if let Some(unacked) = self.unacked_qp(number) {
            unacked.wait_none();
        }
    }
}

impl AsFd for AsyncEvents {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.notifier.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::thread;
    use std::time::Duration;

    use super::*;

    fn raise(events: &AsyncEvents, kind: AsyncEventKind, number: u32) {
        events.raise_qp(kind, WeakQueuePair::nobody(number), || false);
    }

    /// Whether the descriptor says that there is an event.
    fn is_readable(events: &AsyncEvents) -> bool {
        wait_readable(events.as_fd(), Some(Instant::now())).unwrap()
    }

    #[test]
    fn kinds_have_the_values_of_libibverbs() {
        let table = [
            (AsyncEventKind::CqErr, 0),
            (AsyncEventKind::QpFatal, 1),
            (AsyncEventKind::QpReqErr, 2),
            (AsyncEventKind::QpAccessErr, 3),
            (AsyncEventKind::SqDrained, 5),
            (AsyncEventKind::DeviceFatal, 8),
            (AsyncEventKind::SrqErr, 14),
            (AsyncEventKind::SrqLimitReached, 15),
            (AsyncEventKind::QpLastWqeReached, 16),
        ];
        for (kind, value) in table {
            assert_eq!(kind.value(), value, "{kind:?}");
        }
    }

    #[test]
    fn events_come_in_order_and_once() {
        let events = AsyncEvents::new().unwrap();
        assert!(events.next().unwrap().is_none());
        raise(&events, AsyncEventKind::QpReqErr, 5);
        raise(&events, AsyncEventKind::QpFatal, 6);
        let first = events.next().unwrap().unwrap();
        assert_eq!(first.kind(), AsyncEventKind::QpReqErr);
        assert_eq!(first.source().queue_pair_number(), Some(5));
        assert_eq!(events.next().unwrap().unwrap().kind(), AsyncEventKind::QpFatal);
        assert!(events.next().unwrap().is_none());
    }

    #[test]
    fn events_of_a_destroyed_queue_pair_vanish() {
        let events = AsyncEvents::new().unwrap();
        raise(&events, AsyncEventKind::QpFatal, 5);
        raise(&events, AsyncEventKind::QpFatal, 6);
        events.forget_qp(5);
        // Being destroyed already: nothing is raised.
        events.raise_qp(AsyncEventKind::QpFatal, WeakQueuePair::nobody(5), || true);
        assert!(is_readable(&events));
        assert_eq!(events.next().unwrap().unwrap().source().queue_pair_number(), Some(6));
        assert!(!is_readable(&events), "the descriptor says no more than there is");
        assert!(events.next().unwrap().is_none());
    }

    /// FC-040: three fetched, and the wait ends with the third acknowledgement, not before.
    #[test]
    fn destruction_waits_for_the_last_acknowledgement() {
        let events = Arc::new(AsyncEvents::new().unwrap());
        for _ in 0..3 {
            raise(&events, AsyncEventKind::QpFatal, 5);
        }
        let mut fetched: Vec<_> = (0..3).map(|_| events.next().unwrap().unwrap()).collect();
        let (done, destroyed) = mpsc::channel();
        let waiter = {
            let events = Arc::clone(&events);
            thread::spawn(move || {
                events.wait_qp_acked(5);
                done.send(()).unwrap();
            })
        };
        for _ in 0..2 {
            fetched.pop();
            assert!(destroyed.recv_timeout(Duration::from_millis(20)).is_err(), "too early");
        }
        fetched.pop();
        destroyed.recv().unwrap();
        waiter.join().unwrap();
        // Nothing fetched, nothing to wait for.
        events.wait_qp_acked(5);
    }
    /// Waiting in a thread and in a task, and events about the device.
    #[test]
    fn events_can_be_waited_for() {
        let events = Arc::new(AsyncEvents::new().unwrap());
        let soon = || Some(Instant::now() + Duration::from_millis(5));
        assert!(events.wait(soon()).unwrap().is_none());
        assert!(crate::aio::wait(events.arrival(), Duration::from_millis(5)).is_none());
        let waiters = [false, true].map(|task| {
            let events = Arc::clone(&events);
            thread::spawn(move || {
                let event = if task {
                    crate::aio::wait(events.arrival(), None).expect("no time limit")
                } else {
                    events.wait(None)
                };
                event.unwrap().expect("no end of it").into_unacknowledged()
            })
        });
        for _ in &waiters {
            thread::sleep(Duration::from_millis(2));
            events.raise_device(AsyncEventKind::DeviceFatal);
        }
        for waiter in waiters {
            let (kind, source) = waiter.join().unwrap();
            assert_eq!(kind, AsyncEventKind::DeviceFatal);
            assert!(matches!(source, EventSource::Device));
        }
    }

    /// FC-040: acknowledged by counting, as the programs of libibverbs do.
    #[test]
    fn fc_040_events_can_be_acknowledged_by_their_number() {
        let events = Arc::new(AsyncEvents::new().unwrap());
        assert!(events.ack_qp(5, 1).is_err(), "nothing was fetched");
        for _ in 0..2 {
            raise(&events, AsyncEventKind::QpFatal, 5);
            let (kind, source) = events.next().unwrap().unwrap().into_unacknowledged();
            assert_eq!((kind, source.queue_pair_number()), (AsyncEventKind::QpFatal, Some(5)));
        }
        let waiter = {
            let events = Arc::clone(&events);
            thread::spawn(move || events.wait_qp_acked(5))
        };
        thread::sleep(Duration::from_millis(10));
        events.ack_qp(5, 1).unwrap();
        assert!(!waiter.is_finished(), "too early");
        let error = events.ack_qp(5, 2).unwrap_err();
        assert_eq!(
            error.to_string(),
            "cannot acknowledge 2 events, 1 were fetched and left unacknowledged"
        );
        events.ack_qp(5, 1).unwrap();
        waiter.join().unwrap();
    }
}
