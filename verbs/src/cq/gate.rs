//! [`Gate`]: where those who bring completions and those who sleep for them meet.

use std::ops::DerefMut;

use crate::sync::Mutex;
use crate::sync::atomic::{AtomicU32, Ordering};

/// A value behind a lock, and who sleeps until it changes.
///
/// The rules, and why they lose no wake-up, are at the head of `wait.rs`.
#[derive(Debug)]
pub(super) struct Gate<T> {
    inside: Mutex<T>,
    threads: AtomicU32,
    tasks: AtomicU32,
}

/// Who has to be woken after a change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Waiting {
    pub(super) threads: bool,
    pub(super) tasks: bool,
}

impl<T> Gate<T> {
    pub(super) fn new(value: T) -> Self {
        Self { inside: Mutex::new(value), threads: AtomicU32::new(0), tasks: AtomicU32::new(0) }
    }

    /// To look, or to take something out: nobody sleeps for that.
    #[inline]
    pub(super) fn lock(&self) -> impl DerefMut<Target = T> {
        self.inside.lock()
    }

    /// Puts something in, and says who is to be woken once no lock is held.
    #[inline]
    pub(super) fn change<R>(&self, change: impl FnOnce(&mut T) -> R) -> (R, Waiting) {
        let mut inside = self.inside.lock();
        let result = change(&mut inside);
        // Read with the lock held, so that whoever looked before this and found nothing is seen.
        let waiting = Waiting {
            threads: self.threads.load(Ordering::Relaxed) > 0,
            tasks: self.tasks.load(Ordering::Relaxed) > 0,
        };
        drop(inside);
        (result, waiting)
    }

    /// Says that a thread is about to sleep, until the result is dropped. To be followed by a look.
    pub(super) fn thread(&self) -> Waiter<'_> {
        Waiter::new(&self.threads)
    }

    /// Says that a task is about to sleep, until the result is dropped. To be followed by a look.
    pub(super) fn task(&self) -> Waiter<'_> {
        Waiter::new(&self.tasks)
    }
}

/// Somebody who sleeps, or is about to.
#[derive(Debug)]
pub(super) struct Waiter<'a>(&'a AtomicU32);

impl<'a> Waiter<'a> {
    fn new(count: &'a AtomicU32) -> Self {
        count.fetch_add(1, Ordering::Relaxed);
        Self(count)
    }
}

impl Drop for Waiter<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_change_tells_who_waits() {
        let gate = Gate::new(0);
        let none = Waiting { threads: false, tasks: false };
        assert_eq!(gate.change(|value| *value += 1), ((), none));
        let thread = gate.thread();
        let tasks = [gate.task(), gate.task()];
        assert_eq!(gate.change(|value| *value).1, Waiting { threads: true, tasks: true });
        drop(thread);
        let [first, second] = tasks;
        drop(first);
        assert_eq!(gate.change(|value| *value).1, Waiting { threads: false, tasks: true });
        drop(second);
        assert_eq!(gate.change(|value| *value), (1, none));
        assert_eq!(*gate.lock(), 1);
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use loom::sync::Arc;
    use loom::thread;

    use super::*;
    use crate::sync::Condvar;

    /// `wait.rs` in small: completions are a count, the wait set is a generation with a condition.
    struct Model {
        gate: Gate<u32>,
        generation: Mutex<u32>,
        woken: Condvar,
    }

    impl Model {
        fn new() -> Arc<Self> {
            let (gate, generation) = (Gate::new(0), Mutex::new(0));
            Arc::new(Self { gate, generation, woken: Condvar::new() })
        }

        fn push(&self) {
            let ((), waiting) = self.gate.change(|stored| *stored += 1);
            if waiting.threads {
                *self.generation.lock() += 1;
                self.woken.notify_all();
            }
        }

        /// Sleeps until it has taken one.
        fn wait(&self) {
            let _waiter = self.gate.thread();
            loop {
                let ticket = *self.generation.lock();
                {
                    let mut stored = self.gate.lock();
                    if *stored > 0 {
                        *stored -= 1;
                        return;
                    }
                }
                let mut generation = self.generation.lock();
                while *generation == ticket {
                    self.woken.wait(&mut generation);
                }
            }
        }
    }

    /// loom fails a run in which a thread sleeps and nobody is left to wake it.
    fn run(waiters: usize, pushers: usize, pushes: usize) {
        let mut builder = loom::model::Builder::new();
        builder.preemption_bound = Some(3);
        builder.check(move || {
            let model = Model::new();
            let waiting: Vec<_> = (0..waiters)
                .map(|_| {
                    let model = Arc::clone(&model);
                    thread::spawn(move || model.wait())
                })
                .collect();
            let pushing: Vec<_> = (1..pushers)
                .map(|_| {
                    let model = Arc::clone(&model);
                    thread::spawn(move || (0..pushes).for_each(|_| model.push()))
                })
                .collect();
            (0..pushes).for_each(|_| model.push());
            for other in waiting.into_iter().chain(pushing) {
                other.join().expect("a thread of the model");
            }
            let left = *model.gate.lock() as usize;
            assert_eq!(left, pushers * pushes - waiters, "each completion taken once");
        });
    }

    #[test]
    fn loom_a_waiter_is_woken() {
        run(1, 1, 1);
        run(1, 2, 1);
    }

    #[test]
    fn loom_several_waiters_are_all_woken() {
        run(2, 1, 2);
    }
}
