//! [`Share`]: what a queue pair has of a shared receive queue.

use std::sync::{Arc, Weak};

use super::SrqInner;
use crate::cq::QueueSlots;
use crate::engine::Outbox;
use crate::error::Error;
use crate::mem::PdId;
use crate::qp::QpInner;
use crate::qp::wqe::RecvWqe;

/// A queue pair's hold on the shared receive queue that it takes its receives from.
#[derive(Debug)]
pub(crate) struct Share {
    srq: Arc<SrqInner>,
    /// Of the queue pair.
    number: u32,
    qp: Weak<QpInner>,
}

impl Share {
    pub(crate) fn new(srq: &Arc<SrqInner>, number: u32, qp: &Weak<QpInner>) -> Self {
        Self { srq: Arc::clone(srq), number, qp: Weak::clone(qp) }
    }

    /// The places that the queue pair will hold: up to `most` (SEC-12).
    pub(crate) fn slots(&self, most: Option<u32>) -> QueueSlots {
        let qp = Weak::clone(&self.qp);
        QueueSlots::part_of(&self.srq.slots, most, move || {
            if let Some(qp) = qp.upgrade() {
                // Whoever polls is in the middle of something, so this is work for the driver.
                qp.resume_later();
            }
        })
    }

    /// Makes the queue pair a user: the shared queue cannot be destroyed before [`detach`](Self::detach).
    pub(crate) fn attach(&self, slots: &Arc<QueueSlots>) -> Result<(), Error> {
        let mut state = self.srq.state.lock();
        if state.destroyed {
            return Err(Error::Destroyed { what: super::WHAT });
        }
        state.users.insert(self.number, Arc::clone(slots));
        Ok(())
    }

    /// Ends what [`attach`](Self::attach) began.
    pub(crate) fn detach(&self) {
        self.srq.state.lock().users.remove(&self.number);
    }

    /// The domain of the memory in its receives.
    pub(crate) fn domain(&self) -> PdId {
        self.srq.domain
    }

    /// The next receive for the stream of the queue pair, whose places are `slots`. If there is none, its
    /// engine is asked for another look as soon as there may be. Called from inside a pass, so by one thread
    /// at a time.
    pub(crate) fn take(&self, slots: &QueueSlots, out: &mut Outbox) -> Option<RecvWqe> {
        // SEC-12: who has its share waits for its program, and not for others.
        if !slots.await_place() {
            return None;
        }
        let taken = self.srq.state.lock().pool.take(self.number, || Weak::clone(&self.qp));
        if taken.low {
            out.srq_is_low(&self.srq);
        }
        let receive = taken.receive?;
        let reserved = slots.reserve(1);
        debug_assert!(reserved, "nobody else takes places here");
        Some(receive)
    }

    /// The queue pair takes nothing any more, so that whoever was behind it in the line comes before it.
    pub(crate) fn leave(&self, out: &mut Outbox) {
        let mut called = Vec::new();
        {
            let mut state = self.srq.state.lock();
            state.pool.leave(self.number);
            called.extend(std::iter::from_fn(|| state.pool.call()));
        }
        for qp in called.iter().filter_map(Weak::upgrade) {
            out.receive_is_there(qp);
        }
    }
}
