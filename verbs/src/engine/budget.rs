//! How much memory the connections of a device may hold between passes.

use std::sync::atomic::{AtomicUsize, Ordering};

/// Octets of partial FPDUs and of unsent data, counted over all connections of a device.
///
/// A pass looks whether there is room for the most that it can leave over, a whole staging buffer, before
/// it reads or builds, and charges what is left over when it ends. Without that room it goes on FPDU by
/// FPDU:
///
/// - Input is read up to the end of the next FPDU, known from its length field, and no further. What
///   stays over, because the rest has not come or a receive is missing, is part of one FPDU or one FPDU,
///   in memory of its size.
/// - Output is built in a batch that one FPDU fills. What TCP does not take is copied to memory of its
///   size, and nothing is built before that is sent.
///
/// *Live*: neither ever waits for memory. What one connection may do depends on its own socket, receives
/// and peer only; what others hold decides how much is done at a time, not whether. So nobody has to be
/// woken when memory is given back.
///
/// *Bounded*: what was left over with room is within the limit, and what was left over without is at
/// most one FPDU of each direction of a connection. So the limit and that much is the most that is ever
/// held. Passes in several threads may look at the same moment and each find the same room, which adds
/// what one pass leaves over for each thread inside of one. How long a peer can keep its FPDU is limited
/// by the time limits of the connection.
#[derive(Debug)]
pub(crate) struct Budget {
    limit: usize,
    used: AtomicUsize,
}

impl Budget {
    pub(crate) fn new(limit: usize) -> Self {
        Self { limit, used: AtomicUsize::new(0) }
    }

    /// Whether one more connection may begin to hold so many octets.
    #[inline]
    pub(super) fn has_room(&self, octets: usize) -> bool {
        self.used.load(Ordering::Relaxed).saturating_add(octets) <= self.limit
    }

    /// Whether so many octets more leave half of the limit free: enough for a connection to hold more than
    /// it has to, for speed.
    #[inline]
    pub(super) fn has_plenty(&self, octets: usize) -> bool {
        self.used.load(Ordering::Relaxed).saturating_add(octets) <= self.limit / 2
    }

    /// Octets held now.
    pub(crate) fn used(&self) -> usize {
        self.used.load(Ordering::Relaxed)
    }

    /// Changes what one connection holds.
    pub(super) fn change(&self, from: usize, to: usize) {
        if to >= from {
            self.used.fetch_add(to - from, Ordering::Relaxed);
        } else {
            self.used.fetch_sub(from - to, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn room_is_what_is_left_of_the_limit() {
        let budget = Budget::new(100);
        assert!(budget.has_room(100) && !budget.has_room(101));
        assert!(budget.has_plenty(50) && !budget.has_plenty(51));
        budget.change(0, 60);
        assert!(budget.has_room(40) && !budget.has_room(41));
        budget.change(0, 60);
        assert_eq!(budget.used(), 120);
        assert!(!budget.has_room(0), "over the limit already");
        budget.change(60, 0);
        budget.change(60, 10);
        assert_eq!(budget.used(), 10);
        assert!(budget.has_room(90) && !budget.has_room(usize::MAX));
    }
}
