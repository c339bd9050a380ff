//! The send queue: requests that are posted and not yet in the hands of the stream.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use iwarp_rdmap::Operation;
use parking_lot::Mutex;

use super::wqe::Wqe;
use crate::cq::QueueSlots;

/// Posted operations, in order.
#[derive(Debug)]
pub(crate) struct SendQueue {
    pub(crate) slots: Arc<QueueSlots>,
    posted: Mutex<VecDeque<Operation<Wqe>>>,
    /// Whether `posted` holds anything: changed with it locked, looked at without. A pass that misses a
    /// change is followed by the one that the poster's kick asks for.
    any: AtomicBool,
}

impl SendQueue {
    pub(crate) fn new(capacity: u32) -> Self {
        Self {
            slots: Arc::new(QueueSlots::new(capacity)),
            posted: Mutex::default(),
            any: AtomicBool::new(false),
        }
    }

    /// Appends operations whose slots are reserved. The engine has to be run afterwards.
    pub(crate) fn append(&self, operations: impl IntoIterator<Item = Operation<Wqe>>) {
        let mut posted = self.posted.lock();
        posted.extend(operations);
        self.any.store(!posted.is_empty(), Ordering::Relaxed);
    }

    /// Whether there is anything to take.
    pub(crate) fn any(&self) -> bool {
        self.any.load(Ordering::Relaxed)
    }

    /// Moves everything posted into `into`, which is empty.
    pub(crate) fn take(&self, into: &mut VecDeque<Operation<Wqe>>) {
        debug_assert!(into.is_empty(), "operations would change their order");
        let mut posted = self.posted.lock();
        std::mem::swap(&mut *posted, into);
        self.any.store(false, Ordering::Relaxed);
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.posted.lock().is_empty()
    }
}
