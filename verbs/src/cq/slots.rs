//! [`QueueSlots`]: how many requests of one work queue are outstanding.

use std::fmt;
use std::sync::Arc;

use event_listener::{Event, EventListener};

use crate::sync::atomic::{AtomicU32, Ordering};

/// Places of one work queue: taken when a request is posted, free again when its completion, or a later
/// one of the same queue, has been polled (FC-066).
#[derive(Debug)]
pub(crate) struct QueueSlots {
    /// Changed by [`resize`](Self::resize) only.
    capacity: AtomicU32,
    /// Places that are taken, and [`AWAITED`].
    taken: AtomicU32,
    /// Notified when places become free, once somebody has waited for one.
    freed: Event,
    /// These are the places of a shared queue that one queue pair has.
    part: Option<Box<Part>>,
}

/// What a queue pair has of the places of a shared queue.
struct Part {
    whole: Arc<QueueSlots>,
    /// Called once a place is free that [`await_place`](QueueSlots::await_place) did not find.
    resume: Box<dyn Fn() + Send + Sync>,
}

impl fmt::Debug for Part {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Part").field("whole", &self.whole).finish_non_exhaustive()
    }
}

/// Somebody has waited for a place. In the word that each release changes anyway, so that telling costs
/// those nothing that nobody waits for, neither time nor the memory that an event takes with its first use.
const AWAITED: u32 = 1 << 31;

impl QueueSlots {
    /// `capacity` is below 2^31.
    pub(crate) fn new(capacity: u32) -> Self {
        debug_assert!(capacity < AWAITED, "the highest bit is taken");
        Self {
            capacity: AtomicU32::new(capacity),
            taken: AtomicU32::new(0),
            freed: Event::new(),
            part: None,
        }
    }

    /// Places of `whole` for one who takes up to `most` of them: each that is free again here is free there
    /// too. Places of `whole` are taken when requests are posted, and here when the one taker gets them.
    /// `resume` is called, with no lock held, when a place is free that
    /// [`await_place`](Self::await_place) did not find.
    pub(crate) fn part_of(
        whole: &Arc<Self>,
        most: Option<u32>,
        resume: impl Fn() + Send + Sync + 'static,
    ) -> Self {
        let part = Part { whole: Arc::clone(whole), resume: Box::new(resume) };
        let capacity = most.unwrap_or(AWAITED - 1).min(AWAITED - 1);
        Self { part: Some(Box::new(part)), ..Self::new(capacity) }
    }

    /// Gives it another number of places. To be called with nobody posting; whoever waits for places is not
    /// told of new ones. Fails with the number of those taken if that is more.
    pub(crate) fn resize(&self, capacity: u32) -> Result<(), u32> {
        let taken = self.in_use();
        if capacity < taken {
            return Err(taken);
        }
        self.capacity.store(capacity, Ordering::Relaxed);
        Ok(())
    }

    /// Whether there is a place for the only one who takes any. If not, `resume` of
    /// [`part_of`](Self::part_of) is called once there is.
    pub(crate) fn await_place(&self) -> bool {
        let has_place = |taken: u32| taken & !AWAITED < self.capacity.load(Ordering::Relaxed);
        // Acquire, and the second look: see `listen`.
        has_place(self.taken.load(Ordering::Acquire))
            || has_place(self.taken.fetch_or(AWAITED, Ordering::AcqRel))
    }

    /// To be called before the last look for a place; resolves when one may have become free since.
    pub(crate) fn listen(&self) -> EventListener {
        let listener = self.freed.listen();
        // Release: whoever sees the bit finds the listener. If the release of a place came first, the look
        // that follows finds the place.
        self.taken.fetch_or(AWAITED, Ordering::AcqRel);
        listener
    }

    /// Takes `n` places, all or none.
    #[inline]
    #[must_use = "without places nothing may be posted"]
    pub(crate) fn reserve(&self, n: u32) -> bool {
        let capacity = self.capacity.load(Ordering::Relaxed);
        // Acquire: whoever takes a place sees what was done before it was given back.
        let mut taken = self.taken.load(Ordering::Relaxed);
        loop {
            let awaited = taken & AWAITED;
            let wanted = (taken & !AWAITED).checked_add(n);
            let Some(wanted) = wanted.filter(|&wanted| wanted <= capacity) else {
                return false;
            };
            match self.taken.compare_exchange_weak(
                taken,
                wanted | awaited,
                Ordering::Acquire,
                Ordering::Relaxed,
            ) {
                Ok(_) => return true,
                Err(now) => taken = now,
            }
        }
    }

    /// Gives `n` places back.
    #[inline]
    pub(crate) fn release(&self, n: u32) {
        if self.give_back(n) {
            self.tell(n);
        }
    }

    /// Gives `n` places back without telling anybody. `true`: somebody waits, so [`tell`](Self::tell) has
    /// to follow.
    #[inline]
    #[must_use = "somebody may wait for a place"]
    pub(crate) fn give_back(&self, n: u32) -> bool {
        // Acquire: see `listen`.
        let before = self.taken.fetch_sub(n, Ordering::AcqRel);
        debug_assert!(before & !AWAITED >= n, "{n} places given back, {before:#x} were taken");
        let awaited = before & AWAITED != 0;
        if let Some(part) = &self.part {
            part.give_back(n);
            if awaited {
                // Before `tell`: the taker looks once more after that, and sets it again if need be.
                self.taken.fetch_and(!AWAITED, Ordering::AcqRel);
            }
        }
        awaited
    }

    /// Tells those who wait that `n` places were given back. Calls their wakers.
    pub(crate) fn tell(&self, n: u32) {
        match &self.part {
            None => {
                self.freed.notify(usize::try_from(n).unwrap_or(usize::MAX));
            }
            Some(part) => (part.resume)(),
        }
    }

    /// Places that are taken now.
    pub(crate) fn in_use(&self) -> u32 {
        self.taken.load(Ordering::Relaxed) & !AWAITED
    }
}

impl Part {
    /// Out of line: most queues are whole.
    #[cold]
    fn give_back(&self, n: u32) {
        // Nobody waits for places of a shared queue.
        let awaited = self.whole.give_back(n);
        debug_assert!(!awaited, "posting to a shared queue does not wait");
    }
}

#[cfg(loom)]
mod loom_tests {
    use event_listener::Listener as _;
    use loom::sync::Arc;
    use loom::thread;

    use super::*;

    /// One who waits for a place, against one who gives his back.
    #[test]
    fn loom_no_free_place_is_missed() {
        loom::model(|| {
            let slots = Arc::new(QueueSlots::new(1));
            assert!(slots.reserve(1));
            let releaser = {
                let slots = Arc::clone(&slots);
                thread::spawn(move || slots.release(1))
            };
            let freed = slots.listen();
            if !slots.reserve(1) {
                freed.wait();
                assert!(slots.reserve(1), "told of a place that is not there");
            }
            releaser.join().expect("a model thread panicked");
        });
    }

    /// One who takes places of a shared queue up to its bound, against one who gives one back.
    #[test]
    fn loom_a_bounded_taker_is_resumed() {
        loom::model(|| {
            let whole = std::sync::Arc::new(QueueSlots::new(4));
            assert!(whole.reserve(2));
            let resumed = std::sync::Arc::new(AtomicU32::new(0));
            let part = {
                let resumed = std::sync::Arc::clone(&resumed);
                QueueSlots::part_of(&whole, Some(1), move || {
                    resumed.fetch_add(1, Ordering::Relaxed);
                })
            };
            assert!(part.await_place() && part.reserve(1));
            let part = Arc::new(part);
            let releaser = {
                let part = Arc::clone(&part);
                thread::spawn(move || part.release(1))
            };
            let found = part.await_place();
            releaser.join().expect("a model thread panicked");
            let resumed = resumed.load(Ordering::Relaxed);
            assert!(found || resumed == 1, "held back for ever");
            assert!(part.await_place(), "the place is free");
            assert_eq!((part.in_use(), whole.in_use()), (0, 1));
        });
    }
}
