//! [`QueueSlots`]: how many requests of one work queue are outstanding.

use event_listener::{Event, EventListener};

use crate::sync::atomic::{AtomicU32, Ordering};

/// Places of one work queue: taken when a request is posted, free again when its completion, or a later
/// one of the same queue, has been polled (FC-066).
#[derive(Debug)]
pub(crate) struct QueueSlots {
    capacity: u32,
    /// Places that are taken, and [`AWAITED`].
    taken: AtomicU32,
    /// Notified when places become free, once somebody has waited for one.
    freed: Event,
}

/// Somebody has waited for a place. In the word that each release changes anyway, so that telling costs
/// those nothing that nobody waits for, neither time nor the memory that an event takes with its first use.
const AWAITED: u32 = 1 << 31;

impl QueueSlots {
    /// `capacity` is below 2^31.
    pub(crate) fn new(capacity: u32) -> Self {
        debug_assert!(capacity < AWAITED, "the highest bit is taken");
        Self { capacity, taken: AtomicU32::new(0), freed: Event::new() }
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
        // Acquire: whoever takes a place sees what was done before it was given back.
        let mut taken = self.taken.load(Ordering::Relaxed);
        loop {
            let awaited = taken & AWAITED;
            let wanted = (taken & !AWAITED).checked_add(n);
            let Some(wanted) = wanted.filter(|&wanted| wanted <= self.capacity) else {
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
        before & AWAITED != 0
    }

    /// Tells those who wait that `n` places were given back. Calls their wakers.
    pub(crate) fn tell(&self, n: u32) {
        self.freed.notify(usize::try_from(n).unwrap_or(usize::MAX));
    }

    /// Places that are taken now.
    #[cfg(test)]
    pub(crate) fn in_use(&self) -> u32 {
        self.taken.load(Ordering::Relaxed) & !AWAITED
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
}
