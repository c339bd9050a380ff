//! [`Wakes`]: who is to be told of new completions, once no lock is held.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use event_listener::IntoNotification;
use smallvec::SmallVec;

use super::CqInner;
use crate::event::AsyncEventKind;

/// Wake-ups collected while completions are pushed, to be fired after the engine's lock is released.
///
/// Until [`fire`](Self::fire) nobody who sleeps hears of the completions; so whoever collects must fire,
/// whatever else goes wrong. Dropping does it too.
#[derive(Debug, Default)]
pub(crate) struct Wakes(SmallVec<[Wake; 2]>);

/// What is to be told about one queue.
#[derive(Debug)]
struct Wake {
    cq: Arc<CqInner>,
    news: News,
}

/// What pushing one completion, or several, gives reason to tell.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct News {
    /// Threads sleep on the sockets of the queue.
    pub(super) threads: bool,
    /// So many completions came while tasks awaited some.
    pub(super) tasks: usize,
    /// So many times the queue was armed and has fired.
    pub(super) events: u64,
    /// The queue has overrun just now.
    pub(super) overrun: bool,
}

impl News {
    #[inline]
    pub(super) fn is_none(self) -> bool {
        self == Self::default()
    }
}

impl Wakes {
    /// Whether nobody is to be told anything.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn add(&mut self, cq: &Arc<CqInner>, news: News) {
        let known = self.0.iter_mut().find(|wake| Arc::ptr_eq(&wake.cq, cq));
        let Some(Wake { news: sum, .. }) = known else {
            self.0.push(Wake { cq: Arc::clone(cq), news });
            return;
        };
        sum.threads |= news.threads;
        sum.tasks = sum.tasks.saturating_add(news.tasks);
        sum.events += news.events;
        sum.overrun |= news.overrun;
    }

    /// Wakes them all. May run the wakers of the program's tasks, and passes of queue pairs: no lock may
    /// be held.
    pub(crate) fn fire(mut self) {
        self.fire_all();
    }

    fn fire_all(&mut self) {
        for wake in self.0.drain(..) {
            // Wakers are the program's code. A panic of one keeps nothing from the other queues.
            if catch_unwind(AssertUnwindSafe(|| wake.tell())).is_err() {
                tracing::error!("a waker of the program panicked");
            }
        }
    }
}

impl Wake {
    fn tell(self) {
        let Self { cq, news } = self;
        if news.threads {
            cq.members().wake_threads();
        }
        if news.overrun {
            cq.device.counters.cq_overruns.count();
            cq.device.events().raise_cq(AsyncEventKind::CqErr, Arc::downgrade(&cq));
            cq.members().fail_all();
        }
        if let (Some(channel), 1..) = (&cq.channel, news.events) {
            channel.tell(&cq, news.events);
        }
        if news.tasks > 0 {
            // One more task for each completion, also if others that were told have not run yet.
            cq.told.notify(news.tasks.additional());
        }
    }
}

impl Drop for Wakes {
    fn drop(&mut self) {
        self.fire_all();
    }
}
