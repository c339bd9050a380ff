//! The receive queue: receives that are posted and not yet taken by the stream.

use std::collections::VecDeque;
use std::sync::{Arc, Weak};

use parking_lot::Mutex;

use super::QpInner;
use super::wqe::RecvWqe;
use crate::cq::QueueSlots;
use crate::engine::Outbox;
use crate::mem::PdId;
use crate::srq::{Share, SrqInner};

/// Where a queue pair's receives come from.
#[derive(Debug)]
pub(crate) struct ReceiveQueue {
    /// Those that it holds: with a queue of its own all that are outstanding, with a shared one those that it
    /// has taken.
    pub(crate) slots: Arc<QueueSlots>,
    source: Source,
}

#[derive(Debug)]
enum Source {
    Own(Mutex<Posted>),
    Shared(Box<Share>),
}

/// Posted receives, in order.
#[derive(Debug, Default)]
struct Posted {
    queue: VecDeque<RecvWqe>,
    /// The stream wanted a receive and found none: whoever posts one has to run the engine.
    wanted: bool,
}

impl ReceiveQueue {
    pub(crate) fn own(capacity: u32) -> Self {
        Self { slots: Arc::new(QueueSlots::new(capacity)), source: Source::Own(Mutex::default()) }
    }

    /// That of the queue pair with this number, which holds at most `most` receives of `srq`.
    pub(crate) fn shared(
        srq: &Arc<SrqInner>,
        most: Option<u32>,
        number: u32,
        qp: &Weak<QpInner>,
    ) -> Self {
        let share = Share::new(srq, number, qp);
        let slots = Arc::new(share.slots(most));
        Self { slots, source: Source::Shared(Box::new(share)) }
    }

    /// What it has of a shared queue, if it has none of its own.
    #[inline]
    pub(crate) fn share(&self) -> Option<&Share> {
        match &self.source {
            Source::Own(_) => None,
            Source::Shared(share) => Some(share),
        }
    }

    /// The domain of the memory in its receives; `own` is that of the queue pair.
    #[inline]
    pub(crate) fn domain(&self, own: PdId) -> PdId {
        self.share().map_or(own, Share::domain)
    }

    /// Appends receives whose slots are reserved. Says whether the engine has to be run: because it
    /// waits for a receive, or because `flushing` (looked at with the queue locked) says that receives
    /// are flushed as they come. Only with a queue of its own.
    pub(crate) fn append(
        &self,
        receives: impl IntoIterator<Item = RecvWqe>,
        flushing: impl FnOnce() -> bool,
    ) -> bool {
        let Source::Own(posted) = &self.source else {
            debug_assert!(false, "refused before");
            return false;
        };
        let receives = receives.into_iter();
        let mut posted = posted.lock();
        if posted.queue.capacity() == 0 {
            // As many as there are: most connections of a large server keep one receive posted, and a
            // ring that grows by itself begins with four.
            posted.queue.reserve_exact(receives.size_hint().0);
        }
        posted.queue.extend(receives);
        std::mem::take(&mut posted.wanted) | flushing()
    }

    /// The next receive for the stream. Those behind it come along into `ahead`, which is empty, so that the queue
    /// is not locked for each; of a shared queue they stay where they are.
    pub(crate) fn take(&self, ahead: &mut VecDeque<RecvWqe>, out: &mut Outbox) -> Option<RecvWqe> {
        debug_assert!(ahead.is_empty(), "receives would change their order");
        match &self.source {
            Source::Own(posted) => {
                let mut posted = posted.lock();
                let next = posted.queue.pop_front();
                posted.wanted = next.is_none();
                if !posted.queue.is_empty() {
                    std::mem::swap(&mut posted.queue, ahead);
                }
                next
            }
            Source::Shared(share) => share.take(&self.slots, out),
        }
    }

    /// Everything posted to the queue pair, for flushing: it takes nothing any more. What is in a shared queue
    /// stays there.
    pub(crate) fn drain(&self, out: &mut Outbox) -> VecDeque<RecvWqe> {
        match &self.source {
            Source::Own(posted) => std::mem::take(&mut posted.lock().queue),
            Source::Shared(share) => {
                share.leave(out);
                VecDeque::new()
            }
        }
    }

    /// Whether there is nothing to flush.
    pub(crate) fn is_empty(&self) -> bool {
        match &self.source {
            Source::Own(posted) => posted.lock().queue.is_empty(),
            Source::Shared(_) => true,
        }
    }
}
