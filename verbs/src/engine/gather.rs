//! Gathering of requests that are posted one by one: which of them wait for company, and who sends them.
//!
//! A system call for each small message costs ten times what the message itself does. So when requests
//! follow each other without a pause, the later ones stay in the send queue for a moment, and one call
//! sends them all. It is sent by whatever comes first:
//!
//! - the next empty poll, wait or await of a completion queue of the queue pair, as part of its pass;
//! - the post that makes it [`MOST_REQUESTS`] or [`MOST_OCTETS`], or that comes after a pause;
//! - any other pass of the queue pair, whoever runs it and whatever for;
//! - the driver, when two of its looks (`watch.rs`) find that nothing was posted and nobody has run the engine
//!   in between, whatever else the program polled.
//!
//! # Which requests wait
//!
//! A request goes at once unless it is at least the third in a row, each posted within [`PAUSE`] of the
//! one before, without an empty poll in between. So a lone request never waits, nor do the two of a
//! Write and the message that announces it, and neither pays for the question: it is answered by two
//! counters that polls keep anyway.
//!
//! The latest of a row depend on what the program does next. If it polls, they go then. If it never
//! does, and spins on memory for the answer perhaps, they would have to wait for the driver. So only those
//! of a program that has shown that it polls between its rows are gathered ([`TRUST`]). Rows that end
//! without a poll count against it, and one that left requests to the driver has to show it twice as
//! often as before.
//!
//! The driver could come sooner, but should not. To set a timer for some tens of microseconds costs more
//! than the calls that gathering saves, on virtual machines at least. And where all processors are busy
//! it is the program that pauses for the driver: if that took the engine for the sake of a request that
//! its program is about to send, it might lose its processor inside, and the program would wait for it.
//!
//! Why none of them is left behind is told in `watch.rs`.

use std::sync::LazyLock;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use super::watch::Watch;

/// So many requests are sent without waiting for more.
pub(crate) const MOST_REQUESTS: usize = 32;

/// ... or so many octets of their payload: what one system call sends.
pub(crate) const MOST_OCTETS: u64 = 256 * 1024;

/// Requests that come later after one another are not of a row.
const PAUSE: Duration = Duration::from_micros(1);

/// A program that comes back later than this has waited for something. Interrupts are shorter, and the
/// answer of a peer takes longer.
const ABSENCE: Duration = Duration::from_micros(5);

/// Polls between posts that a program has to show before its requests are gathered.
const TRUST: u32 = 4;

/// ... at most, however often it was wrong to trust it.
const MOST_TRUST: u32 = 1 << 16;

/// What becomes of a request that is posted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Way {
    /// It goes at once, and so does the next one.
    Alone,
    /// It goes at once, as one of a row: [`Gather::sent`] is to be called after that.
    Follows,
    /// It waits in the queue.
    Waits,
}

/// Posts of one queue pair, as far as their rhythm matters.
///
/// All of it is a guess, written without any order. A value that is lost or read late makes a request go
/// at once that could have waited, or wait for a poll or a look of the driver; it is never lost.
#[derive(Debug)]
pub(crate) struct Gather {
    /// When the last request of a row was sent or put into the queue, in nanoseconds of [`now`];
    /// [`UNKNOWN`] if that was a lone one.
    last: AtomicU64,
    /// Polls of its completion queues when it was posted: those that found nothing, and all.
    empty: AtomicU32,
    polls: AtomicU32,
    /// Polls that were seen between posts, since it was last wrong to count on them.
    trust: AtomicU32,
    /// How many are enough.
    enough: AtomicU32,
    /// Requests gathered so far.
    gathered: AtomicU32,
    pub(crate) watch: Watch,
    /// All requests wait.
    #[cfg(test)]
    pub(super) always: std::sync::atomic::AtomicBool,
}

/// The end of a lone request is not worth reading a clock.
const UNKNOWN: u64 = 0;

/// How often the completion queues of a queue pair were polled, as far as that has been counted.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Polls {
    /// Those that found nothing, and so have driven the connection.
    pub(crate) empty: u32,
    pub(crate) all: u32,
}

impl Default for Gather {
    fn default() -> Self {
        Self {
            last: AtomicU64::new(UNKNOWN),
            empty: AtomicU32::new(0),
            polls: AtomicU32::new(0),
            trust: AtomicU32::new(0),
            enough: AtomicU32::new(TRUST),
            gathered: AtomicU32::new(0),
            watch: Watch::new(),
            #[cfg(test)]
            always: false.into(),
        }
    }
}

impl Gather {
    /// Decides on a request that is being posted.
    #[inline]
    pub(crate) fn post(&self, polls: Polls) -> Way {
        #[cfg(test)]
        if self.always.load(Ordering::Relaxed) {
            return self.wait();
        }
        self.decide(polls, now)
    }

    /// `now` is only asked for the time if it matters.
    #[inline]
    fn decide(&self, polls: Polls, now: impl FnOnce() -> u64) -> Way {
        if polls.empty != self.empty.load(Ordering::Relaxed) {
            self.empty.store(polls.empty, Ordering::Relaxed);
            self.polled(polls);
            self.last.store(UNKNOWN, Ordering::Relaxed);
            return Way::Alone;
        }
        let last = self.last.load(Ordering::Relaxed);
        if last == UNKNOWN {
            return Way::Follows;
        }
        let now = now();
        let pause = u128::from(now.saturating_sub(last));
        if !self.polled(polls) && pause > ABSENCE.as_nanos() {
            // A row has ended, and the program has not looked what became of it.
            let trust = self.trust.load(Ordering::Relaxed);
            self.trust.store(trust / 2, Ordering::Relaxed);
        }
        if pause > PAUSE.as_nanos() {
            self.last.store(UNKNOWN, Ordering::Relaxed);
            return Way::Alone;
        }
        if self.trust.load(Ordering::Relaxed) < self.enough.load(Ordering::Relaxed) {
            return Way::Follows;
        }
        self.last.store(now, Ordering::Relaxed);
        self.wait()
    }

    fn wait(&self) -> Way {
        let gathered = self.gathered.load(Ordering::Relaxed).wrapping_add(1);
        self.gathered.store(gathered, Ordering::Relaxed);
        Way::Waits
    }

    /// Requests of a row were sent just now.
    pub(crate) fn sent(&self) {
        self.last.store(now(), Ordering::Relaxed);
    }

    /// A poll has sent gathered requests: the row may go on.
    #[cold]
    pub(super) fn sent_by_poll(&self, polls: Polls) {
        self.empty.store(polls.empty, Ordering::Relaxed);
        self.sent();
    }

    /// Whether there was a poll since the last post; it is counted.
    #[inline]
    fn polled(&self, polls: Polls) -> bool {
        if polls.all == self.polls.load(Ordering::Relaxed) {
            return false;
        }
        self.polls.store(polls.all, Ordering::Relaxed);
        let trust = self.trust.load(Ordering::Relaxed);
        // Some more than enough, for the pauses of a program that is not alone on its processor.
        if trust < self.enough.load(Ordering::Relaxed) * 4 {
            self.trust.store(trust + 1, Ordering::Relaxed);
        }
        true
    }

    /// Requests gathered so far.
    pub(super) fn gathered(&self) -> u32 {
        self.gathered.load(Ordering::Relaxed)
    }

    /// Requests were left to the driver.
    pub(super) fn left(&self) {
        let enough = self.enough.load(Ordering::Relaxed);
        self.enough.store(enough.saturating_mul(2).min(MOST_TRUST), Ordering::Relaxed);
        self.trust.store(0, Ordering::Relaxed);
        self.last.store(UNKNOWN, Ordering::Relaxed);
    }
}

/// Nanoseconds of a clock that never goes back; not [`UNKNOWN`].
fn now() -> u64 {
    static START: LazyLock<Instant> = LazyLock::new(Instant::now);
    let start = *START;
    u64::try_from(start.elapsed().as_nanos()).unwrap_or(u64::MAX).max(UNKNOWN + 1)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    /// A program with a clock of its own.
    #[derive(Default)]
    struct Program {
        gather: Gather,
        polls: Polls,
        now: u64,
    }

    impl Program {
        /// Posts so many requests, 100 ns apart; each takes 2 us if it is sent.
        fn post(&mut self, n: usize) -> Vec<Way> {
            (0..n)
                .map(|_| {
                    self.now += 100;
                    let way = self.gather.decide(self.polls, || self.now);
                    if way != Way::Waits {
                        self.now += 2_000;
                    }
                    if way == Way::Follows {
                        self.gather.last.store(self.now, Ordering::Relaxed);
                    }
                    way
                })
                .collect()
        }

        fn poll(&mut self, found: bool) {
            self.polls.all += 1;
            self.polls.empty += u32::from(!found);
        }

        /// Becomes one whose requests are gathered.
        fn trusted() -> Self {
            let mut program = Self { now: 1_000_000, ..Self::default() };
            for _ in 0..TRUST * 2 {
                program.post(1);
                program.poll(false);
            }
            program
        }
    }

    const ROW: [Way; 5] = [Way::Alone, Way::Follows, Way::Waits, Way::Waits, Way::Waits];

    #[test]
    fn the_first_two_of_a_row_go_at_once_and_the_others_wait() {
        let mut program = Program::trusted();
        assert_eq!(program.post(5), ROW);
        program.poll(false);
        assert_eq!(program.post(2), ROW[..2], "a poll has sent the others");
    }

    #[test]
    fn a_lone_request_never_waits() {
        let mut program = Program::trusted();
        for _ in 0..10 {
            program.now += 2_000;
            assert_ne!(program.post(1), [Way::Waits], "it comes after a pause");
        }
        let mut program = Program::trusted();
        program.post(5);
        program.now += 2_000;
        assert_eq!(program.post(1), [Way::Alone], "and so do those that waited");
    }

    #[test]
    fn polls_that_find_something_leave_the_row_as_it_is() {
        let mut program = Program::trusted();
        program.post(5);
        for _ in 0..100 {
            program.poll(true);
            assert_eq!(program.post(1), [Way::Waits]);
        }
    }

    #[test]
    fn requests_of_a_program_that_does_not_poll_are_not_gathered() {
        let mut program = Program { now: 1_000_000, ..Program::default() };
        for _ in 0..100 {
            assert!(!program.post(8).contains(&Way::Waits));
            program.now += 20_000;
        }
        // It takes a few rows to find out about one that has stopped.
        let mut program = Program::trusted();
        let rows = (0..100).map(|_| {
            program.now += 20_000;
            program.post(8)
        });
        assert!(rows.filter(|row| row.contains(&Way::Waits)).count() <= 3);
    }

    #[test]
    fn a_program_that_left_requests_has_to_show_more_polls_each_time() {
        let mut program = Program::trusted();
        program.post(1);
        let mut needed = Vec::new();
        for _ in 0..4 {
            program.gather.left();
            let mut polls = 0;
            while !program.post(3).contains(&Way::Waits) {
                program.poll(false);
                polls += 1;
            }
            needed.push(polls);
        }
        assert_eq!(needed, [TRUST * 2, TRUST * 4, TRUST * 8, TRUST * 16]);
        (0..100).for_each(|_| program.gather.left());
        assert_eq!(program.gather.enough.load(Ordering::Relaxed), MOST_TRUST);
    }
}
