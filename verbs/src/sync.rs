//! Atomics and locks, from the standard library and `parking_lot`, or from loom.
//!
//! Everything whose interleavings are modelled takes its primitives from here, so that the model runs
//! the very code that ships: `RUSTFLAGS="--cfg loom" cargo test -p iwarp-verbs --release --lib loom`.
//! The names and signatures are those of `std::sync::atomic` and of `parking_lot`.

#[cfg(not(loom))]
mod real {
    pub(crate) use parking_lot::{Condvar, Mutex};
    pub(crate) use std::hint::spin_loop;

    pub(crate) mod atomic {
        pub(crate) use std::sync::atomic::{AtomicU32, Ordering};
    }
}

#[cfg(loom)]
mod modelled {
    use std::ops::{Deref, DerefMut};

    pub(crate) use loom::hint::spin_loop;

    pub(crate) mod atomic {
        pub(crate) use loom::sync::atomic::{AtomicU32, Ordering};
    }

    /// loom's mutex with the face of `parking_lot`'s.
    #[derive(Debug, Default)]
    pub(crate) struct Mutex<T>(loom::sync::Mutex<T>);

    impl<T> Mutex<T> {
        pub(crate) fn new(value: T) -> Self {
            Self(loom::sync::Mutex::new(value))
        }

        pub(crate) fn lock(&self) -> MutexGuard<'_, T> {
            MutexGuard(Some(self.0.lock().expect("a model thread panicked")))
        }
    }

    /// Empty only while its condition variable waits.
    #[derive(Debug)]
    pub(crate) struct MutexGuard<'a, T>(Option<loom::sync::MutexGuard<'a, T>>);

    impl<T> Deref for MutexGuard<'_, T> {
        type Target = T;

        fn deref(&self) -> &T {
            self.0.as_ref().expect("held")
        }
    }

    impl<T> DerefMut for MutexGuard<'_, T> {
        fn deref_mut(&mut self) -> &mut T {
            self.0.as_mut().expect("held")
        }
    }

    /// loom's condition variable with the face of `parking_lot`'s.
    #[derive(Debug, Default)]
    pub(crate) struct Condvar(loom::sync::Condvar);

    impl Condvar {
        pub(crate) fn new() -> Self {
            Self(loom::sync::Condvar::new())
        }

        pub(crate) fn wait<T>(&self, guard: &mut MutexGuard<'_, T>) {
            let held = guard.0.take().expect("held");
            guard.0 = Some(self.0.wait(held).expect("a model thread panicked"));
        }

        pub(crate) fn notify_all(&self) {
            self.0.notify_all();
        }
    }
}

#[cfg(loom)]
pub(crate) use modelled::*;
#[cfg(not(loom))]
pub(crate) use real::*;
