//! Who sleeps in a [`WaitSet`](super::WaitSet), so that one wake-up reaches all of them.

use parking_lot::Mutex;

/// A moment in the life of a wait set: taken before the last look at the queue, given to the wait.
///
/// A wake-up after the ticket was taken ends the wait, even if it has not begun by then.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ticket(u64);

/// Counts sleepers by generation.
///
/// A wake-up begins a new generation and makes the set's descriptor readable; the last sleeper of the
/// old ones makes it silent again. So none of them can swallow what the others wait for.
#[derive(Debug, Default)]
pub(super) struct Sleepers(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    generation: u64,
    /// Asleep, or about to be, in this generation.
    current: usize,
    /// Woken, but not yet gone.
    stale: usize,
}

impl Sleepers {
    pub(super) fn ticket(&self) -> Ticket {
        Ticket(self.0.lock().generation)
    }

    /// `false` if there was a wake-up since the ticket was taken: do not sleep.
    pub(super) fn enter(&self, ticket: Ticket) -> bool {
        let mut state = self.0.lock();
        let same = state.generation == ticket.0;
        if same {
            state.current += 1;
        }
        same
    }

    /// Ends what a successful `enter` began. `silence` is called if nobody is left who was woken.
    pub(super) fn leave(&self, ticket: Ticket, silence: impl FnOnce()) {
        let mut state = self.0.lock();
        if state.generation == ticket.0 {
            state.current -= 1;
            return;
        }
        state.stale -= 1;
        if state.stale == 0 {
            // With the lock held, so that it cannot undo the next wake-up.
            silence();
        }
    }

    /// `alarm` is called if somebody sleeps.
    pub(super) fn wake(&self, alarm: impl FnOnce()) {
        let mut state = self.0.lock();
        state.generation += 1;
        let sleeping = std::mem::take(&mut state.current);
        state.stale += sleeping;
        if sleeping > 0 {
            alarm();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    #[test]
    fn a_wake_up_between_ticket_and_sleep_is_not_lost() {
        let sleepers = Sleepers::default();
        let ticket = sleepers.ticket();
        sleepers.wake(|| panic!("nobody sleeps"));
        assert!(!sleepers.enter(ticket));
        assert!(sleepers.enter(sleepers.ticket()));
    }

    #[test]
    fn the_last_of_those_woken_makes_silence() {
        let sleepers = Sleepers::default();
        let alarm = Cell::new(0);
        let ring = || alarm.set(alarm.get() + 1);
        let silence = || alarm.set(0);
        let old = sleepers.ticket();
        assert!(sleepers.enter(old) && sleepers.enter(old));
        sleepers.wake(ring);
        let new = sleepers.ticket();
        assert!(sleepers.enter(new));
        sleepers.leave(old, silence);
        assert_eq!(alarm.get(), 1, "one of the old is still asleep");
        sleepers.wake(ring);
        sleepers.leave(new, silence);
        assert_eq!(alarm.get(), 2);
        sleepers.leave(old, silence);
        assert_eq!(alarm.get(), 0);
        let newest = sleepers.ticket();
        assert!(sleepers.enter(newest));
        sleepers.leave(newest, || panic!("was not woken"));
    }
}
