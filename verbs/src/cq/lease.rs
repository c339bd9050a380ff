//! [`Lease`]: the word of a completion queue that somebody is looking after its connections.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

/// Empty polls in a row that make a program one that polls.
const STREAK: u32 = 2;

/// While a program polls a completion queue, or sleeps on its sockets, the driver need not.
///
/// The driver asks [`is_held`](Self::is_held) when a socket has something to do, leaves the connection alone
/// if so, and looks again a little later: if [`polls`](Self::polls) has not moved since, the program has
/// turned to something else, and the driver takes over. So nothing ever depends on the lease but who does
/// the work and when: a word that is read or written late costs one look of the driver. That is why all
/// accesses are relaxed, and why the counters may lose an increment when two threads poll at once: what
/// counts is that they move. The polling thread never reads a clock.
#[derive(Debug, Default)]
pub(crate) struct Lease {
    leased: AtomicBool,
    /// Polls that found nothing, and wake-ups of those who wait.
    polls: AtomicU32,
    /// Polls that found nothing since one found something.
    streak: AtomicU32,
    /// Polls that found something.
    finds: AtomicU32,
    /// Threads inside of a wait, which will see each socket themselves.
    sleepers: AtomicU32,
}

impl Lease {
    /// Whether somebody looks after the connections of this queue.
    pub(crate) fn is_held(&self) -> bool {
        self.leased.load(Ordering::Relaxed) || self.sleepers.load(Ordering::Relaxed) > 0
    }

    /// A number that moves as long as somebody polls.
    #[inline]
    pub(crate) fn polls(&self) -> u32 {
        self.polls.load(Ordering::Relaxed)
    }

    /// A number that moves as long as polls find something.
    #[inline]
    pub(crate) fn finds(&self) -> u32 {
        self.finds.load(Ordering::Relaxed)
    }

    /// Ends the lease: the program has stopped polling.
    pub(crate) fn lapse(&self) {
        self.leased.store(false, Ordering::Relaxed);
    }

    /// A poll found nothing. Returns how many did so far.
    #[inline]
    pub(super) fn missed(&self) -> u32 {
        let streak = self.streak.load(Ordering::Relaxed).saturating_add(1);
        self.streak.store(streak, Ordering::Relaxed);
        if streak >= STREAK { self.take() } else { self.moved() }
    }

    /// A poll found something.
    #[inline]
    pub(super) fn found(&self) {
        let finds = self.finds.load(Ordering::Relaxed).wrapping_add(1);
        self.finds.store(finds, Ordering::Relaxed);
        if self.streak.load(Ordering::Relaxed) != 0 {
            self.streak.store(0, Ordering::Relaxed);
        }
    }

    /// Takes the lease, or shows that it is still used.
    #[inline]
    pub(super) fn take(&self) -> u32 {
        if !self.leased.load(Ordering::Relaxed) {
            self.leased.store(true, Ordering::Relaxed);
        }
        self.moved()
    }

    #[inline]
    fn moved(&self) -> u32 {
        let polls = self.polls.load(Ordering::Relaxed).wrapping_add(1);
        self.polls.store(polls, Ordering::Relaxed);
        polls
    }

    /// Marks a thread as waiting, until the result is dropped.
    pub(super) fn sleeper(&self) -> Sleeper<'_> {
        self.sleepers.fetch_add(1, Ordering::Relaxed);
        self.take();
        Sleeper(self)
    }
}

/// A thread inside of a wait.
#[derive(Debug)]
pub(super) struct Sleeper<'a>(&'a Lease);

impl Drop for Sleeper<'_> {
    fn drop(&mut self) {
        // It may well come back at once: the driver waits a little before it takes over.
        self.0.take();
        self.0.sleepers.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_second_empty_poll_in_a_row_takes_the_lease() {
        let lease = Lease::default();
        for _ in 0..3 {
            lease.missed();
            lease.found();
        }
        assert!(!lease.is_held(), "each poll but one found something");
        lease.missed();
        lease.missed();
        assert!(lease.is_held());
    }

    #[test]
    fn a_lease_in_use_shows_it_and_one_that_lapsed_is_taken_again() {
        let lease = Lease::default();
        lease.missed();
        lease.missed();
        let seen = lease.polls();
        assert_eq!(lease.polls(), seen, "nobody polls");
        lease.missed();
        assert_ne!(lease.polls(), seen);
        lease.lapse();
        assert!(!lease.is_held());
        lease.missed();
        assert!(lease.is_held());
    }

    #[test]
    fn a_sleeping_thread_holds_it_whatever_the_driver_thinks() {
        let lease = Lease::default();
        let sleeper = lease.sleeper();
        lease.lapse();
        assert!(lease.is_held());
        let seen = lease.polls();
        drop(sleeper);
        assert!(lease.is_held(), "it may come back at once");
        assert_ne!(lease.polls(), seen);
        lease.lapse();
        assert!(!lease.is_held());
    }
}
