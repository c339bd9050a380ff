//! [`Clock`]: the time, for those who need it.

use std::time::Instant;

/// Tells a stream the time when it has to know it.
///
/// Time matters where a deadline begins, which the usual message never comes to, and reading a clock costs
/// as much as all checks of a small one. So a caller may leave the reading to the stream's question; it
/// has to give the same answer throughout one call, or later ones. An [`Instant`] answers with itself.
pub trait Clock {
    /// The present time.
    fn now(&mut self) -> Instant;
}

impl Clock for Instant {
    #[inline]
    fn now(&mut self) -> Instant {
        *self
    }
}

impl<C: Clock + ?Sized> Clock for &mut C {
    #[inline]
    fn now(&mut self) -> Instant {
        (**self).now()
    }
}
