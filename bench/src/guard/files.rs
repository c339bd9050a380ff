//! The limit of open descriptors.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Descriptors that the process needs besides its idle connections.
const SPARE: u64 = 128;

/// Raises the limit as far as it goes. Returns how many idle connections fit under it, at most `wanted`.
pub(crate) fn connections_that_fit(wanted: usize) -> usize {
    let now = getrlimit(Resource::Nofile);
    let raised = Rlimit { current: now.maximum, maximum: now.maximum };
    // Where it fails the old limit counts.
    let _ = setrlimit(Resource::Nofile, raised);
    let limit = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    wanted.min(usize::try_from(limit.saturating_sub(SPARE)).unwrap_or(usize::MAX))
}
