//! Forked children find themselves out: no memory of regions, but unsafe, hence here.
//!
//! A child has one thread, copies of all memory, and the descriptors of its parent, behind which are the
//! parent's very connections. Locks may be held by threads that it does not have. So nothing that a parent
//! has made is used by a child: each call that could move or take something asks [`Origin::is_here`] before
//! it takes a lock, and fails; what is dropped is forgotten instead of closed in order. A child that opens a
//! device of its own begins afresh, with keys and numbers of its own ([`PerProcess`], [`random_u32`]).
//!
//! Asking costs two loads: there is a page that the kernel gives to a child empty
//! (`MADV_WIPEONFORK`). Where there is none, the number of the process tells.

use std::cell::Cell;
use std::sync::OnceLock;

/// The process that something was made in, as far as its parent and its children are concerned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Origin(u32);

impl Origin {
    /// This process.
    #[inline]
    pub(crate) fn here() -> Self {
        Self(generation())
    }

    /// Whether this is the process in which it was made, and not a child of that one.
    #[inline]
    pub(crate) fn is_here(self) -> bool {
        self == Self::here()
    }
}

/// A value that each process has for itself: a child begins with a new one.
pub(crate) struct PerProcess<T: 'static> {
    make: fn() -> T,
    first: OnceLock<Entry<T>>,
}

struct Entry<T> {
    origin: Origin,
    value: T,
    /// Of the child, if this is its parent's.
    next: OnceLock<Box<Self>>,
}

impl<T> PerProcess<T> {
    pub(crate) const fn new(make: fn() -> T) -> Self {
        Self { make, first: OnceLock::new() }
    }

    #[inline]
    pub(crate) fn get(&self) -> &T {
        let mut entry = self.first.get_or_init(|| self.entry());
        while !entry.origin.is_here() {
            entry = entry.next.get_or_init(|| Box::new(self.entry()));
        }
        &entry.value
    }

    #[cold]
    fn entry(&self) -> Entry<T> {
        Entry { origin: Origin::here(), value: (self.make)(), next: OnceLock::new() }
    }
}

/// A number that nobody can guess; not one that a parent or a child draws too.
pub(crate) fn random_u32() -> u32 {
    thread_local! {
        static SEEDED: Cell<Option<Origin>> = const { Cell::new(None) };
    }
    let here = Some(Origin::here());
    // A thread that is ending has no generator of its own any more; `rand` then panics, too.
    let seeded = SEEDED.try_with(|seeded| seeded.replace(here) == here).unwrap_or(true);
    if !seeded && let Err(error) = rand::rng().reseed() {
        tracing::warn!(%error, "the generator of random numbers could not be seeded anew");
    }
    rand::random()
}

/// Different in a child from all that its parent has seen.
#[cfg(all(target_os = "linux", not(any(loom, miri))))]
#[inline]
fn generation() -> u32 {
    match linux::WITNESS.get_or_init(linux::Witness::new) {
        linux::Witness::Page(word) => linux::generation_of(word),
        linux::Witness::Number => linux::process_number(),
    }
}

#[cfg(not(any(target_os = "linux", loom, miri)))]
fn generation() -> u32 {
    rustix::process::getpid().as_raw_nonzero().get().cast_unsigned()
}

#[cfg(any(loom, miri))]
fn generation() -> u32 {
    1
}

#[cfg(all(target_os = "linux", not(any(loom, miri))))]
mod linux {
    use std::ptr::null_mut;
    use std::sync::OnceLock;
    use std::sync::atomic::{AtomicU32, Ordering};

    use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous};

    pub(super) static WITNESS: OnceLock<Witness> = OnceLock::new();

    pub(super) enum Witness {
        /// Zero in a child that has not looked yet.
        Page(&'static AtomicU32),
        /// The kernel is too old: the number of the process is all there is.
        Number,
    }

    impl Witness {
        pub(super) fn new() -> Self {
            // The smallest page there is; the kernel rounds up.
            const LEN: usize = 4096;
            let (protection, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE);
            // SAFETY: the kernel chooses an address where nothing is mapped.
            let Ok(page) = (unsafe { mmap_anonymous(null_mut(), LEN, protection, flags) }) else {
                return Self::Number;
            };
            // SAFETY: the page was just mapped here, and nobody else knows of it. It is never unmapped, also if
            // the advice is refused: that happens once.
            if unsafe { madvise(page, LEN, Advice::LinuxWipeOnFork) }.is_err() {
                return Self::Number;
            }
            // SAFETY: the page is aligned, begins with zeroes, which are an atomic integer, and stays mapped
            // for ever. Nothing but this reference leads to it; the kernel empties it where nobody runs.
            Self::Page(unsafe { &*page.cast::<AtomicU32>() })
        }
    }

    #[inline]
    pub(super) fn generation_of(word: &AtomicU32) -> u32 {
        match word.load(Ordering::Acquire) {
            0 => begin(word),
            known => known,
        }
    }

    /// The first look of a process.
    #[cold]
    fn begin(word: &AtomicU32) -> u32 {
        /// The highest that was given out in this process, or before it was forked.
        static LAST: AtomicU32 = AtomicU32::new(0);
        // Counted first, so that a child that comes in between draws another one.
        let next = LAST.fetch_add(1, Ordering::AcqRel) + 1;
        match word.compare_exchange(0, next, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => next,
            Err(other) => other,
        }
    }

    pub(super) fn process_number() -> u32 {
        rustix::process::getpid().as_raw_nonzero().get().cast_unsigned()
    }
}

#[cfg(test)]
#[cfg(not(any(loom, miri)))]
mod tests;
