//! What a pass leaves to be done once the engine's lock is released.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::task::Waker;

use iwarp_rdmap::CloseCause;
use smallvec::SmallVec;

use super::Observer;
use crate::cq::{Hand, Wakes};
use crate::event::AsyncEventKind;
use crate::qp::QpInner;
use crate::srq::SrqInner;

/// Wake-ups, events and reports collected during one pass.
#[derive(Default)]
pub(crate) struct Outbox {
    /// Of the poll that runs the pass, if it is one.
    pub(super) hand: Hand,
    /// Waiters of completion queues.
    pub(crate) wakes: Wakes,
    /// Tasks that await single requests.
    pub(crate) wakers: SmallVec<[Waker; 2]>,
    notices: Vec<Notice>,
}

/// Something to tell others about the connection.
enum Notice {
    Established,
    Closed {
        cause: CloseCause,
        clean: bool,
    },
    /// What was posted to a queue pair without a connection has come back.
    Flushed,
    Async(AsyncEventKind),
    /// A shared receive queue has come below its limit.
    SrqLow(Arc<SrqInner>),
    /// Another queue pair may have its turn at a shared receive queue.
    Receive(Arc<QpInner>),
}

impl Outbox {
    /// That of a pass which is run by this poll, if it is a poll.
    #[inline]
    pub(super) fn of(hand: &Hand) -> Self {
        Self { hand: hand.lend(), ..Self::default() }
    }

    pub(super) fn established(&mut self) {
        self.notices.push(Notice::Established);
    }

    pub(super) fn closed(&mut self, cause: CloseCause, clean: bool) {
        self.notices.push(Notice::Closed { cause, clean });
    }

    pub(super) fn flushed(&mut self) {
        self.notices.push(Notice::Flushed);
    }

    pub(super) fn raise(&mut self, kind: AsyncEventKind) {
        self.notices.push(Notice::Async(kind));
    }

    /// A shared receive queue has come below its limit.
    #[cold]
    pub(crate) fn srq_is_low(&mut self, srq: &Arc<SrqInner>) {
        self.notices.push(Notice::SrqLow(Arc::clone(srq)));
    }

    /// Another queue pair may have its turn at a shared receive queue.
    pub(crate) fn receive_is_there(&mut self, qp: Arc<QpInner>) {
        self.notices.push(Notice::Receive(qp));
    }

    /// Tells everybody. No lock is held.
    ///
    /// Wakers are the program's code and may panic. The thread that happens to run them has seldom to do
    /// with them, and the others who are told nothing at all: so a panic is logged, and ends here, on
    /// the driver as on the program's threads.
    #[inline]
    pub(crate) fn send(self, qp: &Arc<QpInner>) {
        if self.wakes.is_empty() && self.wakers.is_empty() && self.notices.is_empty() {
            // Mostly so. Nothing is owned then, and nothing has to be dropped.
            std::mem::forget(self);
        } else {
            self.tell(qp);
        }
    }

    #[inline(never)]
    fn tell(self, qp: &Arc<QpInner>) {
        // Completions first: a program that learns of the end polls them next.
        shielded(qp, || self.wakes.fire());
        for waker in self.wakers {
            shielded(qp, || waker.wake());
        }
        for notice in self.notices {
            shielded(qp, || notice.send(qp));
        }
    }
}

fn shielded(qp: &QpInner, tell: impl FnOnce()) {
    if catch_unwind(AssertUnwindSafe(tell)).is_err() {
        tracing::error!(qp = qp.number, "a waker of the program panicked");
    }
}

impl Notice {
    fn send(self, qp: &Arc<QpInner>) {
        let observer = || qp.observer.lock().clone();
        match self {
            Self::Established => {
                if let Some(observer) = observer() {
                    observer.established();
                }
            }
            Self::Closed { cause, clean } => {
                let observer: Option<Arc<dyn Observer>> = qp.observer.lock().take();
                if let Some(observer) = observer {
                    observer.closed(&cause, clean);
                }
                qp.closed.notify(usize::MAX);
            }
            Self::Flushed => {
                qp.closed.notify(usize::MAX);
            }
            Self::Async(kind) => qp.device.events().raise_qp(kind, qp.name(), || qp.is_gone()),
            Self::SrqLow(srq) => srq.raise_limit(),
            // Not here: it may find that it ends as well, and so on.
            Self::Receive(other) => other.resume_later(),
        }
    }
}
