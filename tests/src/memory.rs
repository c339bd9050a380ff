//! What a process holds, once nothing is going on in the background any more.

use std::{
    thread,
    time::{Duration, Instant},
};

use crate::child::GUARD;

/// What `allocated` tells when it has told the same for a while.
///
/// # Panics
/// If it goes up and down for [`GUARD`].
pub fn settled(allocated: impl Fn() -> usize) -> usize {
    const STILL: Duration = Duration::from_millis(300);
    let start = Instant::now();
    let mut seen = (allocated(), start);
    while seen.1.elapsed() < STILL {
        assert!(start.elapsed() < GUARD, "memory goes up and down for ever");
        thread::sleep(Duration::from_millis(10));
        let now = allocated();
        if now != seen.0 {
            seen = (now, Instant::now());
        }
    }
    seen.0
}
