//! Asynchronous events of a device: what happens to its objects beside completions.

use std::collections::{HashMap, VecDeque};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, Weak};
use std::{fmt, io};

use parking_lot::{Condvar, Mutex};

use crate::cq::{CompletionQueue, CqInner};
use crate::sys::Notifier;

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
        })
    }
}

/// Which object an event is about.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub enum EventSource {
    /// The queue pair with this number.
    QueuePair(u32),
    /// This completion queue.
    CompletionQueue(CompletionQueue),
}

/// An event, fetched with [`Device::next_async_event`](crate::Device::next_async_event).
///
/// Dropping it acknowledges it. The destruction of the object waits for that (FC-040).
#[derive(Debug)]
pub struct AsyncEvent {
    kind: AsyncEventKind,
    source: EventSource,
    /// Acknowledges when dropped.
    _ack: Ack,
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
}

/// Events of one object that a program has fetched and not yet acknowledged.
#[derive(Debug, Default)]
pub(crate) struct Unacked {
    /// Wide enough for any number of events (FC-040).
    count: Mutex<u64>,
    none: Condvar,
}

impl Unacked {
    /// One more, until the result is dropped.
    pub(crate) fn issue(self: &Arc<Self>) -> Ack {
        *self.count.lock() += 1;
        Ack(Arc::clone(self))
    }

    /// Blocks until all are acknowledged.
    pub(crate) fn wait_none(&self) {
        let mut count = self.count.lock();
        while *count > 0 {
            self.none.wait(&mut count);
        }
    }
}

/// One fetched event; dropping it acknowledges.
#[derive(Debug)]
pub(crate) struct Ack(Arc<Unacked>);

impl Drop for Ack {
    fn drop(&mut self) {
        let mut count = self.0.count.lock();
        *count -= 1;
        if *count == 0 {
            self.0.none.notify_all();
        }
    }
}

/// Events that nobody has fetched yet, and what waits for acknowledgement.
#[derive(Debug)]
pub(crate) struct AsyncEvents {
    notifier: Notifier,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    queue: VecDeque<Queued>,
    /// By number of the queue pair; entries exist only from the first fetched event on.
    unacked: HashMap<u32, Arc<Unacked>>,
}

#[derive(Debug)]
struct Queued {
    kind: AsyncEventKind,
    source: QueuedSource,
}

#[derive(Debug)]
enum QueuedSource {
    QueuePair(u32),
    /// Not kept alive by an event that nobody fetches.
    CompletionQueue(Weak<CqInner>),
}

impl AsyncEvents {
    pub(crate) fn new() -> io::Result<Self> {
        Ok(Self { notifier: Notifier::new(true)?, state: Mutex::default() })
    }

    pub(crate) fn raise_qp(&self, kind: AsyncEventKind, number: u32) {
        self.raise(Queued { kind, source: QueuedSource::QueuePair(number) });
    }

    pub(crate) fn raise_cq(&self, kind: AsyncEventKind, cq: Weak<CqInner>) {
        self.raise(Queued { kind, source: QueuedSource::CompletionQueue(cq) });
    }

    fn raise(&self, queued: Queued) {
        tracing::debug!(kind = %queued.kind, source = ?queued.source, "asynchronous event");
        self.state.lock().queue.push_back(queued);
        // After the event, so that whoever finds the descriptor readable finds the event too.
        if let Err(error) = self.notifier.notify(1) {
            tracing::error!(%error, "asynchronous event without notice");
        }
    }

    /// The next event, if there is one. Never blocks.
    pub(crate) fn next(&self) -> io::Result<Option<AsyncEvent>> {
        // One notice for each event, also for those whose object is gone by now.
        while self.notifier.try_take()?.is_some() {
            let mut state = self.state.lock();
            let Some(Queued { kind, source }) = state.queue.pop_front() else { continue };
            let (source, ack) = match source {
                QueuedSource::QueuePair(number) => {
                    let ack = state.unacked.entry(number).or_default().issue();
                    (EventSource::QueuePair(number), ack)
                }
                QueuedSource::CompletionQueue(cq) => {
                    let Some(cq) = cq.upgrade().filter(|cq| !cq.is_destroyed()) else { continue };
                    let ack = cq.unacked().issue();
                    (EventSource::CompletionQueue(CompletionQueue::from_inner(cq)), ack)
                }
            };
            return Ok(Some(AsyncEvent { kind, source, _ack: ack }));
        }
        Ok(None)
    }

    /// Drops what was not fetched about a queue pair that is being destroyed.
    pub(crate) fn forget_qp(&self, number: u32) {
        let about =
            |queued: &Queued| matches!(queued.source, QueuedSource::QueuePair(n) if n == number);
        // Its notices stay: they are taken with nothing behind them.
        self.state.lock().queue.retain(|queued| !about(queued));
    }

    /// Forgets a queue pair that is gone, whatever was fetched about it: its number is free for another.
    pub(crate) fn bury_qp(&self, number: u32) {
        self.forget_qp(number);
        self.state.lock().unacked.remove(&number);
    }

    /// Blocks until the program has acknowledged what it fetched about a queue pair.
    pub(crate) fn wait_qp_acked(&self, number: u32) {
        let unacked = self.state.lock().unacked.remove(&number);
        if let Some(unacked) = unacked {
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

    #[test]
    fn kinds_have_the_values_of_libibverbs() {
        let table = [
            (AsyncEventKind::CqErr, 0),
            (AsyncEventKind::QpFatal, 1),
            (AsyncEventKind::QpReqErr, 2),
            (AsyncEventKind::QpAccessErr, 3),
        ];
        for (kind, value) in table {
            assert_eq!(kind.value(), value, "{kind:?}");
        }
    }

    #[test]
    fn events_come_in_order_and_once() {
        let events = AsyncEvents::new().unwrap();
        assert!(events.next().unwrap().is_none());
        events.raise_qp(AsyncEventKind::QpReqErr, 5);
        events.raise_qp(AsyncEventKind::QpFatal, 6);
        let first = events.next().unwrap().unwrap();
        assert_eq!(first.kind(), AsyncEventKind::QpReqErr);
        assert!(matches!(first.source(), EventSource::QueuePair(5)));
        assert_eq!(events.next().unwrap().unwrap().kind(), AsyncEventKind::QpFatal);
        assert!(events.next().unwrap().is_none());
    }

    #[test]
    fn events_of_a_destroyed_queue_pair_vanish() {
        let events = AsyncEvents::new().unwrap();
        events.raise_qp(AsyncEventKind::QpFatal, 5);
        events.raise_qp(AsyncEventKind::QpFatal, 6);
        events.forget_qp(5);
        assert!(matches!(events.next().unwrap().unwrap().source(), EventSource::QueuePair(6)));
        assert!(events.next().unwrap().is_none());
    }

    /// FC-040: three fetched, and the wait ends with the third acknowledgement, not before.
    #[test]
    fn destruction_waits_for_the_last_acknowledgement() {
        let events = Arc::new(AsyncEvents::new().unwrap());
        for _ in 0..3 {
            events.raise_qp(AsyncEventKind::QpFatal, 5);
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
}
