//! [`UseCount`]: who is using a thing, and the wait until nobody is.

use crate::sync::atomic::{AtomicU32, Ordering};
use crate::sync::{Condvar, Mutex, spin_loop};

/// Set for good once the thing may not be entered any more.
const CLOSED: u32 = 1 << 31;

/// Turns of looking before a closer sleeps. One copy of a segment takes a few microseconds at most;
/// sleeping and being woken costs about as much.
const SPINS: u32 = if cfg!(loom) { 1 } else { 200 };

/// Counts short uses of something that one day is taken away.
///
/// A use is one copy or one system call: it is entered, done and left without waiting for anything.
/// [`close`](Self::close) makes every later [`enter`](Self::enter) fail; when
/// [`wait_idle`](Self::wait_idle) has returned after it, all earlier uses have ended, and what they did
/// has happened before what follows. One atomic word changed by single read-modify-writes, so a user
/// is either seen by the closer or sees it.
#[derive(Debug)]
pub(crate) struct UseCount {
    /// [`CLOSED`], and below it the number of present users.
    word: AtomicU32,
    parked: Mutex<()>,
    idle: Condvar,
}

impl UseCount {
    pub(crate) fn new() -> Self {
        Self { word: AtomicU32::new(0), parked: Mutex::new(()), idle: Condvar::new() }
    }

    /// Begins a use; `false` once closed. Every `true` is owed one [`leave`](Self::leave).
    #[inline]
    pub(crate) fn enter(&self) -> bool {
        let mut seen = self.word.load(Ordering::Relaxed);
        loop {
            if seen & CLOSED != 0 {
                return false;
            }
            match self.word.compare_exchange_weak(
                seen,
                seen + 1,
                Ordering::Acquire,
                Ordering::Relaxed,
            ) {
                Ok(_) => return true,
                Err(now) => seen = now,
            }
        }
    }

    /// Ends a use, and wakes the closers if it was the last one they wait for.
    #[inline]
    pub(crate) fn leave(&self) {
        let before = self.word.fetch_sub(1, Ordering::Release);
        debug_assert_ne!(before & !CLOSED, 0, "left more often than entered");
        if before == CLOSED | 1 {
            self.wake_closers();
        }
    }

    #[cold]
    fn wake_closers(&self) {
        // A closer tests the word with this lock held, so it has either seen the last user leave or is
        // already waiting for this notification.
        drop(self.parked.lock());
        self.idle.notify_all();
    }

    /// Lets nobody enter any more. `false` if that was so already.
    pub(crate) fn close(&self) -> bool {
        self.word.fetch_or(CLOSED, Ordering::AcqRel) & CLOSED == 0
    }

    #[inline]
    pub(crate) fn is_closed(&self) -> bool {
        self.word.load(Ordering::Acquire) & CLOSED != 0
    }

    /// Waits until everybody who entered has left. Only useful after [`close`](Self::close).
    ///
    /// Must not be called by somebody who is inside: it would wait for itself.
    pub(crate) fn wait_idle(&self) {
        for _ in 0..SPINS {
            if self.is_idle() {
                return;
            }
            spin_loop();
        }
        let mut parked = self.parked.lock();
        while !self.is_idle() {
            self.idle.wait(&mut parked);
        }
    }

    fn is_idle(&self) -> bool {
        // Acquire: pairs with the Release of every `leave`; the count's other changes are
        // read-modify-writes and carry it on.
        self.word.load(Ordering::Acquire) & !CLOSED == 0
    }
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
    use std::thread;
    use std::time::Duration;

    use super::*;

    #[test]
    fn nobody_enters_once_closed() {
        let uses = UseCount::new();
        assert!(uses.enter() && uses.enter());
        assert!(uses.close());
        assert!(!uses.close(), "closed already");
        assert!(uses.is_closed());
        assert!(!uses.enter());
        uses.leave();
        uses.leave();
        uses.wait_idle();
        assert!(!uses.enter());
    }

    #[test]
    fn a_closer_sleeps_until_the_last_user_has_left() {
        let uses = UseCount::new();
        let left = AtomicBool::new(false);
        assert!(uses.enter());
        thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    uses.close();
                    uses.wait_idle();
                    assert!(left.load(Ordering::Relaxed));
                });
            }
            thread::sleep(Duration::from_millis(20));
            left.store(true, Ordering::Relaxed);
            uses.leave();
        });
    }

    /// Users write a stamp in two halves; after the wait both halves are equal and stay so.
    #[test]
    fn no_use_outlives_the_wait() {
        for _ in 0..if cfg!(miri) { 3 } else { 100 } {
            let uses = UseCount::new();
            let halves = [AtomicU64::new(0), AtomicU64::new(0)];
            thread::scope(|scope| {
                for user in 0..3_u64 {
                    let (uses, halves) = (&uses, &halves);
                    scope.spawn(move || {
                        for round in 0.. {
                            if !uses.enter() {
                                return;
                            }
                            halves[0].store(user << 32 | round, Ordering::Relaxed);
                            halves[1].store(user << 32 | round, Ordering::Relaxed);
                            uses.leave();
                        }
                    });
                }
                thread::yield_now();
                uses.close();
                uses.wait_idle();
                let seen = halves.each_ref().map(|half| half.load(Ordering::Relaxed));
                thread::yield_now();
                let later = halves.each_ref().map(|half| half.load(Ordering::Relaxed));
                assert_eq!(seen, later, "a use went on after the wait");
            });
        }
    }
}

#[cfg(test)]
#[cfg(loom)]
mod loom_tests {
    use loom::sync::Arc;
    use loom::sync::atomic::{AtomicU32, Ordering};
    use loom::thread;

    use super::*;

    /// `octet` is the memory: written by users and by the owner who took it back, without any ordering
    /// of its own.
    struct Model {
        uses: UseCount,
        octet: AtomicU32,
    }

    impl Model {
        fn new() -> Arc<Self> {
            Arc::new(Self { uses: UseCount::new(), octet: AtomicU32::new(0) })
        }

        fn place(&self, value: u32) -> bool {
            let entered = self.uses.enter();
            if entered {
                self.octet.store(value, Ordering::Relaxed);
                self.uses.leave();
            }
            entered
        }

        fn take_back(&self) {
            self.uses.close();
            self.uses.wait_idle();
        }
    }

    /// FC-061, SEC-04: what users wrote came before what the owner writes after the wait. Switches
    /// that the threads do not ask for are limited to three, which keeps the model to seconds.
    #[test]
    fn loom_deregistration_is_final() {
        let mut model = loom::model::Builder::new();
        model.preemption_bound = Some(3);
        model.check(|| {
            let model = Model::new();
            let users: Vec<_> = (1..3)
                .map(|value| {
                    let model = Arc::clone(&model);
                    thread::spawn(move || model.place(value))
                })
                .collect();
            model.take_back();
            model.octet.store(9, Ordering::Relaxed);
            for user in users {
                user.join().expect("a user");
            }
            assert_eq!(model.octet.load(Ordering::Relaxed), 9, "placed after the wait");
        });
    }

    /// Two closers and one user: both are woken, neither too early. A wake-up that is missed shows as
    /// a deadlock of the model.
    #[test]
    fn loom_every_closer_is_woken() {
        loom::model(|| {
            let model = Model::new();
            let user = {
                let model = Arc::clone(&model);
                thread::spawn(move || model.place(1))
            };
            let closer = {
                let model = Arc::clone(&model);
                thread::spawn(move || {
                    model.take_back();
                    model.octet.load(Ordering::Relaxed)
                })
            };
            model.take_back();
            let here = model.octet.load(Ordering::Relaxed);
            let there = closer.join().expect("a closer");
            let placed = u32::from(user.join().expect("a user"));
            assert_eq!([here, there], [placed, placed], "the use was still going on");
        });
    }
}
