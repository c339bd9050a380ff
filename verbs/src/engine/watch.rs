//! The queue pairs that the driver looks at now and then: for requests that were gathered (`gather.rs`), or because a
//! pass has left something to do to polls, which try others first where there are many connections.
//!
//! # Why nothing is left behind
//!
//! Whoever gathers appends to the queue first, and then [announces](Watch::announce) it. The driver, once
//! it finds an announced queue pair idle, first [takes the announcement back](Watch::retire) and then
//! looks into the queue once more. Both change the same word, so one comes first: if it is the driver,
//! the other one finds no announcement and makes a new one; if it is the announcement, the driver's last
//! look comes after what was appended. While it is announced the driver looks again and again, and its
//! pass enters like any other (`kick.rs`). A connection that is closed, or ends by an error, empties the
//! queue as it always does, and what is appended behind that is flushed by the driver's pass.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use super::Caller;
use super::gather::Polls;
use crate::qp::QpInner;
use crate::sync::atomic::AtomicU32 as WatchWord;

/// Between the first gathered request and the driver's first look.
const FIRST_LOOK: Duration = Duration::from_micros(250);

/// Longest time between two looks of the driver. What is left waits for two of them at most.
const LAST_LOOK: Duration = Duration::from_micros(400);

/// Whether the driver looks at a queue pair now and then.
#[derive(Debug)]
pub(crate) struct Watch(WatchWord);

impl Watch {
    const OFF: u32 = 0;
    const ON: u32 = 1;

    pub(super) fn new() -> Self {
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

/// The queue pairs that the driver watches.
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

#[derive(Clone, Copy)]
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
            gathered: qp.gather.gathered(),
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
