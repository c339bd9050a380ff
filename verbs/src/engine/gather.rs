//! Gathering of requests that are posted one by one: which of them wait for company, and who sends them.
//!
//! A system call for each small message costs ten times what the message itself does. So when requests
//! follow each other without a pause, the later ones stay in the send queue for a moment, and one call
//! sends them all. It is sent by whatever comes first:
//!
//! - the next empty poll, wait or await of a completion queue of the queue pair, as part of its pass;
//! - the post that makes it [`MOST_REQUESTS`] or [`MOST_OCTETS`], or that comes after a pause;
//! - any other pass of the queue pair, whoever runs it and whatever for;
//! - the driver, when two of its looks, [`FIRST_LOOK`] to [`LAST_LOOK`] apart, find that nothing was posted
//!   and nobody has run the engine in between, whatever else the program polled.
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
//! # Why no request is left behind
//!
//! Whoever gathers appends to the queue first, and then [announces](Watch::announce) it. The driver, once
//! it finds an announced queue pair idle, first [takes the announcement back](Watch::retire) and then
//! looks into the queue once more. Both change the same word, so one comes first: if it is the driver,
//! the other one finds no announcement and makes a new one; if it is the announcement, the driver's last
//! look comes after what was appended. While it is announced the driver looks again and again, and its
//! pass enters like any other (`kick.rs`). A connection that is closed, or ends by an error, empties the
//! queue as it always does, and what is appended behind that is flushed by the driver's pass.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, LazyLock};
use std::time::{Duration, Instant};

use super::Caller;
use crate::qp::QpInner;
use crate::sync::atomic::AtomicU32 as WatchWord;

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

/// Between the first gathered request and the driver's first look.
const FIRST_LOOK: Duration = Duration::from_micros(250);

/// Longest time between two looks of the driver. What is left waits for two of them at most.
const LAST_LOOK: Duration = Duration::from_micros(400);

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

    /// Requests were left to the driver.
    fn left(&self) {
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

/// Whether the driver looks at a queue pair now and then.
#[derive(Debug)]
pub(crate) struct Watch(WatchWord);

impl Watch {
    const OFF: u32 = 0;
    const ON: u32 = 1;

    fn new() -> Self {
        Self(WatchWord::new(Self::OFF))
    }

    /// To be called once something is in the queue. `true`: the driver is to be told.
    #[inline]
    #[must_use = "the driver is to be told"]
    pub(crate) fn announce(&self) -> bool {
        // Written even if it stays the same: a mere look could miss that the driver takes it back,
        // while the driver misses what was appended.
        self.0.swap(Self::ON, Ordering::AcqRel) == Self::OFF
    }

    /// Takes the announcement back. To be followed by a look into the queue.
    fn retire(&self) {
        self.0.swap(Self::OFF, Ordering::AcqRel);
    }

    #[cfg(test)]
    pub(super) fn is_announced(&self) -> bool {
        self.0.load(Ordering::Relaxed) == Self::ON
    }
}

/// The queue pairs that the driver watches: for their gathered requests, or because a pass has left something
/// to do to polls, which try others first where there are many connections.
#[derive(Default)]
pub(super) struct Watching {
    watched: Vec<Watched>,
    pause: Duration,
    next_look: Option<Instant>,
}

struct Watched {
    qp: Arc<QpInner>,
    /// What it had gathered at the last look, the polls by then, and the runs of the engine.
    seen: Activity,
}

#[derive(Clone, Copy, PartialEq, Eq)]
struct Activity {
    gathered: u32,
    polls: Polls,
    runs: u32,
}

impl Watched {
    fn new(qp: Arc<QpInner>) -> Self {
        let seen = Self::activity(&qp);
        Self { qp, seen }
    }

    fn activity(qp: &QpInner) -> Activity {
        Activity {
            gathered: qp.gather.gathered.load(Ordering::Relaxed),
            polls: qp.polls(),
            runs: qp.runs.load(Ordering::Relaxed),
        }
    }

    /// One look. `false`: there is no reason for another one.
    fn look(&mut self) -> bool {
        let qp = &self.qp;
        let before = std::mem::replace(&mut self.seen, Self::activity(qp));
        let Activity { gathered, polls, runs } = self.seen;
        if !qp.has_rest() {
            if before.gathered != gathered {
                // There will be more.
                return true;
            }
            qp.gather.watch.retire();
            // Whoever has left something since may have seen the announcement.
            return qp.has_rest() && qp.gather.watch.announce();
        }
        // Polls count only if they came to this queue pair.
        if (before.gathered, before.runs) == (gathered, runs) {
            if before.polls == polls && qp.sq.any() {
                qp.gather.left();
            }
            qp.drive(Caller::Driver);
        }
        true
    }
}

impl Watching {
    /// Takes an announced queue pair over.
    pub(super) fn add(&mut self, qp: Arc<QpInner>) {
        if self.next_look.is_none() {
            self.pause = FIRST_LOOK;
            self.next_look = Some(Instant::now() + FIRST_LOOK);
        }
        self.watched.push(Watched::new(qp));
    }

    /// When [`look`](Self::look) is due.
    pub(super) fn next_look(&self) -> Option<Instant> {
        self.next_look
    }

    /// Sends what was left, and forgets those that gather no more.
    pub(super) fn look(&mut self, now: Instant) -> Option<Instant> {
        self.watched.retain_mut(Watched::look);
        self.pause = (self.pause * 2).min(LAST_LOOK);
        self.next_look = (!self.watched.is_empty()).then(|| now + self.pause);
        self.next_look
    }
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

    #[test]
    fn it_is_announced_once_until_that_is_taken_back() {
        let watch = Watch::new();
        assert!(watch.announce());
        assert!(!watch.announce());
        watch.retire();
        assert!(watch.announce());
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use loom::sync::Arc;
    use loom::thread;

    use super::*;
    use crate::engine::kick::Kick;
    use crate::sync::Mutex;

    /// A queue pair and its driver in small: what is in the queue is a count.
    struct Model {
        kick: Kick,
        watch: Watch,
        queue: Mutex<u32>,
        sent: Mutex<u32>,
        /// The driver has been told, and has not looked since.
        told: Mutex<bool>,
    }

    impl Model {
        fn new() -> Arc<Self> {
            Arc::new(Self {
                kick: Kick::new(),
                watch: Watch::new(),
                queue: Mutex::new(0),
                sent: Mutex::new(0),
                told: Mutex::new(false),
            })
        }

        fn any(&self) -> bool {
            *self.queue.lock() > 0
        }

        fn gather(&self) {
            *self.queue.lock() += 1;
            if self.watch.announce() {
                *self.told.lock() = true;
            }
        }

        fn pass(&self) {
            let taken = std::mem::take(&mut *self.queue.lock());
            *self.sent.lock() += taken;
        }

        fn run(&self) {
            loop {
                self.pass();
                if self.kick.leave() {
                    return;
                }
            }
        }

        /// Also what a close, a state change and an error do.
        fn poll(&self) {
            let waiting = self.any();
            if self.kick.try_enter() || (waiting && self.kick.enter()) {
                self.run();
            }
        }

        /// A turn of the driver: `watched` is what it remembers. Whether anything has happened since the
        /// last look only makes it look once more, so the model leaves it out.
        fn turn(&self, watched: &mut bool) {
            *watched |= std::mem::take(&mut *self.told.lock());
            if !*watched {
                return;
            }
            if self.any() {
                if self.kick.enter() {
                    self.run();
                }
                return;
            }
            self.watch.retire();
            *watched = self.any() && self.watch.announce();
        }
    }

    /// Whatever is in the queue when all is quiet, the driver watches it; and so it sends it.
    fn check(posters: usize, poller: bool) {
        let mut builder = loom::model::Builder::new();
        builder.preemption_bound = Some(3);
        builder.check(move || {
            let model = Model::new();
            let mut others: Vec<_> = (0..posters)
                .map(|_| {
                    let model = Arc::clone(&model);
                    thread::spawn(move || model.gather())
                })
                .collect();
            if poller {
                let model = Arc::clone(&model);
                others.push(thread::spawn(move || model.poll()));
            }
            let mut watched = false;
            for _ in 0..2 {
                model.turn(&mut watched);
            }
            for other in others {
                other.join().expect("a thread of the model");
            }
            assert!(!model.any() || watched || *model.told.lock(), "left behind");
            for _ in 0..2 {
                model.turn(&mut watched);
            }
            assert!(!model.any(), "watched, but not sent");
            assert_eq!(*model.sent.lock() as usize, posters);
            assert!(!watched && !*model.told.lock(), "watched for ever");
        });
    }

    #[test]
    fn loom_no_gathered_request_is_left_behind() {
        check(1, false);
        check(2, false);
    }

    #[test]
    fn loom_nor_when_others_send_it() {
        check(1, true);
    }
}
