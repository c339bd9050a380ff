//! What the allocator has given out, so that the memory of a connection can be counted and not guessed.

use std::alloc::System;

use cap::Cap;

#[global_allocator]
static ALLOCATOR: Cap<System> = Cap::new(System, usize::MAX);

/// Octets of the heap that this process has in use.
pub(crate) fn allocated() -> usize {
    ALLOCATOR.allocated()
}
