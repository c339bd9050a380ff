//! The receive queue: receives that are posted and not yet taken by the stream.

use std::collections::VecDeque;
use std::sync::Arc;

use parking_lot::Mutex;

use super::wqe::RecvWqe;
use crate::cq::QueueSlots;

/// Posted receives, in order.
#[derive(Debug)]
pub(crate) struct ReceiveQueue {
    pub(crate) slots: Arc<QueueSlots>,
    posted: Mutex<Posted>,
}

#[derive(Debug, Default)]
struct Posted {
    queue: VecDeque<RecvWqe>,
    /// The stream wanted a receive and found none: whoever posts one has to run the engine.
    wanted: bool,
}

impl ReceiveQueue {
    pub(crate) fn new(capacity: u32) -> Self {
        Self { slots: Arc::new(QueueSlots::new(capacity)), posted: Mutex::default() }
    }

    /// Appends receives whose slots are reserved. Says whether the engine has to be run: because it
    /// waits for a receive, or because `flushing` (looked at with the queue locked) says that receives
    /// are flushed as they come.
    pub(crate) fn append(
        &self,
        receives: impl IntoIterator<Item = RecvWqe>,
        flushing: impl FnOnce() -> bool,
    ) -> bool {
        let receives = receives.into_iter();
        let mut posted = self.posted.lock();
        if posted.queue.capacity() == 0 {
            // As many as there are: most connections of a large server keep one receive posted, and a
            // ring that grows by itself begins with four.
            posted.queue.reserve_exact(receives.size_hint().0);
        }
        posted.queue.extend(receives);
        std::mem::take(&mut posted.wanted) | flushing()
    }

    /// The next receive for the stream.
    pub(crate) fn take(&self) -> Option<RecvWqe> {
        let mut posted = self.posted.lock();
        let next = posted.queue.pop_front();
        posted.wanted = next.is_none();
        next
    }

    /// Everything posted, for flushing.
    pub(crate) fn drain(&self) -> VecDeque<RecvWqe> {
        std::mem::take(&mut self.posted.lock().queue)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.posted.lock().queue.is_empty()
    }
}
