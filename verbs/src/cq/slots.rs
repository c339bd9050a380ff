//! [`QueueSlots`]: how many requests of one work queue are outstanding.

use event_listener::Event;

use crate::sync::atomic::{AtomicU32, Ordering};

/// Places of one work queue: taken when a request is posted, free again when its completion, or a later
/// one of the same queue, has been polled (FC-066).
#[derive(Debug)]
pub(crate) struct QueueSlots {
    capacity: u32,
    taken: AtomicU32,
    /// Notified when places become free; for those who wait for one.
    pub(crate) freed: Event,
}

impl QueueSlots {
    pub(crate) fn new(capacity: u32) -> Self {
        Self { capacity, taken: AtomicU32::new(0), freed: Event::new() }
    }

    /// Takes `n` places, all or none.
    #[inline]
    #[must_use = "without places nothing may be posted"]
    pub(crate) fn reserve(&self, n: u32) -> bool {
        // Acquire: whoever takes a place sees what was done before it was given back.
        let mut taken = self.taken.load(Ordering::Relaxed);
        loop {
            let Some(wanted) = taken.checked_add(n).filter(|&wanted| wanted <= self.capacity)
            else {
                return false;
            };
            match self.taken.compare_exchange_weak(
                taken,
                wanted,
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
        let before = self.taken.fetch_sub(n, Ordering::Release);
        debug_assert!(before >= n, "{n} places given back, {before} were taken");
        self.freed.notify(usize::try_from(n).unwrap_or(usize::MAX));
    }

    /// Places that are taken now.
    #[cfg(test)]
    pub(crate) fn in_use(&self) -> u32 {
        self.taken.load(Ordering::Relaxed)
    }
}
