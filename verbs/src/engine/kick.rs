//! [`Kick`]: at most one thread drives a queue pair, and none of the others' requests is forgotten.

use crate::sync::atomic::{AtomicU32, Ordering};

/// Nobody drives.
const IDLE: u32 = 0;
/// Somebody drives and has been told everything.
const RUNNING: u32 = 1;
/// Somebody drives, and something was asked for since it last looked.
const RUNNING_AGAIN: u32 = 2;

/// The right to drive, and the request that it be done, in one word.
///
/// Whoever has work calls [`enter`](Self::enter). `true` makes it the holder: it does all the work it
/// finds and calls [`leave`](Self::leave), over and over until that is `true`. `false` means that
/// somebody else holds, and will look again before it leaves: work made visible before `enter` is
/// seen by that look.
///
/// A flag beside a `try_lock` cannot do this: on a weakly ordered processor the holder may read the
/// flag before it unlocks while the other side fails to lock before its flag is visible. Here each step
/// is one read-modify-write of one word, so the two sides agree on which came first.
#[derive(Debug)]
pub(crate) struct Kick(AtomicU32);

impl Kick {
    pub(crate) fn new() -> Self {
        Self(AtomicU32::new(IDLE))
    }

    /// Asks for a look, and takes the right to do it if nobody has it.
    #[inline]
    #[must_use = "who entered must leave"]
    pub(crate) fn enter(&self) -> bool {
        // Idle becomes running, running becomes running-again, which stays. Release so that the
        // holder's look sees our work; Acquire so that we see what the last holder did.
        let mut seen = self.0.load(Ordering::Relaxed);
        loop {
            let next = if seen == IDLE { RUNNING } else { RUNNING_AGAIN };
            match self.0.compare_exchange_weak(seen, next, Ordering::AcqRel, Ordering::Relaxed) {
                Ok(_) => return seen == IDLE,
                Err(now) => seen = now,
            }
        }
    }

    /// Takes the right to drive if nobody has it, without asking the holder for anything.
    #[inline]
    #[must_use = "who entered must leave"]
    pub(crate) fn try_enter(&self) -> bool {
        self.0.compare_exchange(IDLE, RUNNING, Ordering::Acquire, Ordering::Relaxed).is_ok()
    }

    /// Gives the right back, unless something was asked for meanwhile.
    ///
    /// `false`: the caller still holds and must look again, then call this again.
    #[inline]
    #[must_use = "`false` means that the caller still holds"]
    pub(crate) fn leave(&self) -> bool {
        // Running-again becomes running, running becomes idle. Release so that the next holder sees
        // what was done; Acquire so that the look after a refusal sees the work that was announced.
        let before = self.0.fetch_sub(1, Ordering::AcqRel);
        debug_assert_ne!(before, IDLE, "left without having entered");
        before == RUNNING
    }

    /// Gives the right back although a look may have been asked for: the caller has handed the rest to
    /// somebody who will [`enter`](Self::enter) in its turn.
    pub(crate) fn hand_over(&self) {
        self.0.swap(IDLE, Ordering::AcqRel);
    }
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
    use std::thread;

    use super::*;

    #[test]
    fn the_first_enters_and_looks_again_for_the_others() {
        let kick = Kick::new();
        assert!(kick.enter());
        assert!(!kick.try_enter());
        assert!(!kick.enter());
        assert!(!kick.enter());
        assert!(!kick.leave(), "two requests came");
        assert!(kick.leave(), "one more look serves both");
        assert!(kick.try_enter());
        assert!(kick.leave());
    }

    #[test]
    fn handing_over_frees_whatever_was_asked() {
        let kick = Kick::new();
        assert!(kick.enter());
        assert!(!kick.enter());
        kick.hand_over();
        assert!(kick.enter());
    }

    /// Every unit of work is done by whoever holds, and never by two at once.
    #[test]
    fn no_work_is_left_behind() {
        const THREADS: u64 = 4;
        const EACH: u64 = 50_000;
        let kick = Kick::new();
        let posted = AtomicU64::new(0);
        let done = AtomicU64::new(0);
        let inside = AtomicU32::new(0);
        thread::scope(|scope| {
            for _ in 0..THREADS {
                scope.spawn(|| {
                    for _ in 0..EACH {
                        posted.fetch_add(1, Ordering::Relaxed);
                        if !kick.enter() {
                            continue;
                        }
                        loop {
                            assert_eq!(inside.fetch_add(1, Ordering::Relaxed), 0);
                            done.store(posted.load(Ordering::Relaxed), Ordering::Relaxed);
                            inside.fetch_sub(1, Ordering::Relaxed);
                            if kick.leave() {
                                break;
                            }
                        }
                    }
                });
            }
        });
        assert_eq!(done.into_inner(), THREADS * EACH);
    }
}

#[cfg(test)]
#[cfg(loom)]
mod loom_tests {
    use loom::sync::Arc;
    use loom::sync::atomic::{AtomicU32, Ordering};
    use loom::thread;

    use super::*;

    /// `posted` is what posters make visible before they kick. `seen` and `passes` belong to the
    /// holder: they are read and written back without any ordering of their own, so that a second
    /// holder, or one that does not see what the last one did, loses a pass.
    struct Model {
        kick: Kick,
        posted: AtomicU32,
        inside: AtomicU32,
        seen: AtomicU32,
        passes: AtomicU32,
    }

    impl Model {
        fn new() -> Arc<Self> {
            Arc::new(Self {
                kick: Kick::new(),
                posted: AtomicU32::new(0),
                inside: AtomicU32::new(0),
                seen: AtomicU32::new(0),
                passes: AtomicU32::new(0),
            })
        }

        /// Returns the passes made.
        fn post(&self) -> u32 {
            self.posted.fetch_add(1, Ordering::Relaxed);
            if self.kick.enter() { self.drive() } else { 0 }
        }

        fn drive(&self) -> u32 {
            let mut made = 0;
            loop {
                self.pass();
                made += 1;
                if self.kick.leave() {
                    return made;
                }
            }
        }

        fn pass(&self) {
            assert_eq!(self.inside.fetch_add(1, Ordering::Relaxed), 0, "two holders");
            let posted = self.posted.load(Ordering::Relaxed);
            assert!(self.seen.load(Ordering::Relaxed) <= posted);
            self.seen.store(posted, Ordering::Relaxed);
            self.passes.store(self.passes.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
            self.inside.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// Three posters; switches that the threads do not ask for are limited to three, which keeps the
    /// model to seconds.
    #[test]
    fn loom_no_kick_is_lost_and_one_holds() {
        let mut model = loom::model::Builder::new();
        model.preemption_bound = Some(3);
        model.check(|| {
            let model = Model::new();
            let others: Vec<_> = (0..2)
                .map(|_| {
                    let model = Arc::clone(&model);
                    thread::spawn(move || model.post())
                })
                .collect();
            let mut passes = model.post();
            for other in others {
                passes += other.join().expect("a poster");
            }
            assert_eq!(model.seen.load(Ordering::Relaxed), 3, "somebody's work was left behind");
            assert_eq!(model.passes.load(Ordering::Relaxed), passes, "a pass was overwritten");
            assert!(model.kick.try_enter(), "nobody holds any more");
        });
    }

    /// Two posters, every interleaving.
    #[test]
    fn loom_two_posters() {
        loom::model(|| {
            let model = Model::new();
            let other = {
                let model = Arc::clone(&model);
                thread::spawn(move || model.post())
            };
            let mut passes = model.post();
            passes += other.join().expect("a poster");
            assert_eq!(model.seen.load(Ordering::Relaxed), 2, "somebody's work was left behind");
            assert_eq!(model.passes.load(Ordering::Relaxed), passes, "a pass was overwritten");
        });
    }

    /// A holder that has had enough hands over, and then the driver enters in its turn.
    #[test]
    fn loom_hand_over_loses_nothing() {
        loom::model(|| {
            let model = Model::new();
            let poster = {
                let model = Arc::clone(&model);
                thread::spawn(move || model.post())
            };
            let mut passes = 0;
            if model.kick.try_enter() {
                model.pass();
                passes += 1;
                model.kick.hand_over();
            }
            if model.kick.enter() {
                passes += model.drive();
            }
            passes += poster.join().expect("a poster");
            assert_eq!(model.seen.load(Ordering::Relaxed), 1, "the post was left behind");
            assert_eq!(model.passes.load(Ordering::Relaxed), passes, "a pass was overwritten");
            assert!(model.kick.try_enter(), "nobody holds any more");
        });
    }
}
