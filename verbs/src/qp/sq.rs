//! The send queue: requests that are posted and not yet in the hands of the stream.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use iwarp_rdmap::{Operation, OperationKind};
use parking_lot::Mutex;

use super::wqe::Wqe;
use crate::cq::QueueSlots;
use crate::engine::gather::{MOST_OCTETS, MOST_REQUESTS};

/// Posted operations, in order.
#[derive(Debug)]
pub(crate) struct SendQueue {
    pub(crate) slots: Arc<QueueSlots>,
    posted: Mutex<Posted>,
    /// Whether it holds anything: changed with it locked, looked at without. A pass that misses a
    /// change is followed by the one that the poster's kick asks for.
    any: AtomicBool,
}

#[derive(Debug, Default)]
struct Posted {
    operations: VecDeque<Operation<Wqe>>,
    /// Octets of the payloads that were gathered.
    gathered: u64,
    /// Requests that were.
    waiting: u64,
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
        let queue = &mut self.posted.lock().operations;
        begin_small(queue);
        queue.extend(operations);
        self.any.store(!queue.is_empty(), Ordering::Relaxed);
    }

    /// Appends an operation that may wait for more. `true`: there is enough, and the engine has to be run.
    pub(crate) fn gather(&self, operation: Operation<Wqe>) -> bool {
        let octets = match operation.kind {
            // Its request is small.
            OperationKind::Read { .. } | OperationKind::Atomic { .. } => 0,
            _ => u64::from(operation.len),
        };
        let mut posted = self.posted.lock();
        posted.gathered += octets;
        posted.waiting += 1;
        begin_small(&mut posted.operations);
        posted.operations.push_back(operation);
        self.any.store(true, Ordering::Relaxed);
        posted.operations.len() >= MOST_REQUESTS || posted.gathered >= MOST_OCTETS
    }

    /// Whether there is anything to take.
    pub(crate) fn any(&self) -> bool {
        self.any.load(Ordering::Relaxed)
    }

    /// Moves everything posted into `into`, which is empty, and tells how many of it were gathered.
    pub(crate) fn take(&self, into: &mut VecDeque<Operation<Wqe>>) -> u64 {
        debug_assert!(into.is_empty(), "operations would change their order");
        let mut posted = self.posted.lock();
        std::mem::swap(&mut posted.operations, into);
        posted.gathered = 0;
        self.any.store(false, Ordering::Relaxed);
        std::mem::take(&mut posted.waiting)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.posted.lock().operations.is_empty()
    }
}

/// A ring begins with one place, not with four: most queue pairs seldom need one at all.
fn begin_small(queue: &mut VecDeque<Operation<Wqe>>) {
    if queue.capacity() == 0 {
        queue.reserve_exact(1);
    }
}
