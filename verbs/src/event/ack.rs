//! Acknowledgement: events that a program has fetched hold up the destruction of what they are about.

use std::sync::Arc;

use parking_lot::{Condvar, Mutex};

use crate::error::Error;

/// Events of one object that a program has fetched and not yet acknowledged.
#[derive(Debug, Default)]
pub(crate) struct Unacked {
    counts: Mutex<Counts>,
    none: Condvar,
}

/// Wide enough for any number of events (FC-040).
#[derive(Debug, Default)]
struct Counts {
    /// All that were fetched and not acknowledged.
    all: u64,
    /// Those of them that will be acknowledged by their number.
    left: u64,
}

impl Unacked {
    /// One more, until the result is dropped.
    pub(crate) fn issue(self: &Arc<Self>) -> Ack {
        self.counts.lock().all += 1;
        Ack(Some(Arc::clone(self)))
    }

    /// Acknowledges `n` of those that were [left](Ack::leave).
    ///
    /// # Errors
    /// [`Error::Acknowledged`] if there are fewer; then nothing is acknowledged.
    pub(crate) fn ack(&self, n: u64) -> Result<(), Error> {
        let mut counts = self.counts.lock();
        let left = counts.left;
        counts.left = left.checked_sub(n).ok_or(Error::Acknowledged { asked: n, left })?;
        self.settle(&mut counts, n);
        Ok(())
    }

    /// Blocks until all are acknowledged.
    pub(crate) fn wait_none(&self) {
        let mut counts = self.counts.lock();
        while counts.all > 0 {
            self.none.wait(&mut counts);
        }
    }

    fn settle(&self, counts: &mut Counts, n: u64) {
        counts.all -= n;
        if counts.all == 0 {
            self.none.notify_all();
        }
    }
}

/// One fetched event; dropping it acknowledges.
#[derive(Debug)]
pub(crate) struct Ack(Option<Arc<Unacked>>);

impl Ack {
    /// For an event about nothing that can be destroyed.
    pub(crate) const fn none() -> Self {
        Self(None)
    }

    /// Leaves the event unacknowledged: [`Unacked::ack`] has to follow some day.
    pub(crate) fn leave(mut self) {
        if let Some(of) = self.0.take() {
            of.counts.lock().left += 1;
        }
    }
}

impl Clone for Ack {
    /// Each copy is acknowledged for itself.
    fn clone(&self) -> Self {
        self.0.as_ref().map_or_else(Self::none, Unacked::issue)
    }
}

impl Drop for Ack {
    fn drop(&mut self) {
        if let Some(of) = self.0.take() {
            of.settle(&mut of.counts.lock(), 1);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::thread;
    use std::time::Duration;

    use super::*;

    /// FC-040: more events than 32 bits count, acknowledged at once.
    #[test]
    fn fc_040_one_call_acknowledges_any_number_of_events() {
        const MANY: u64 = (1 << 32) + 3;
        let unacked = Arc::new(Unacked::default());
        *unacked.counts.lock() = Counts { all: MANY, left: MANY };
        let last = unacked.issue();
        assert!(matches!(
            unacked.ack(MANY + 1),
            Err(Error::Acknowledged { asked, left }) if (asked, left) == (MANY + 1, MANY)
        ));
        last.leave();
        unacked.ack(MANY - 1).unwrap();
        let (told, done) = mpsc::channel();
        let waiter = {
            let unacked = Arc::clone(&unacked);
            thread::spawn(move || {
                unacked.wait_none();
                told.send(()).unwrap();
            })
        };
        assert!(done.recv_timeout(Duration::from_millis(20)).is_err(), "two are left");
        unacked.ack(2).unwrap();
        done.recv().unwrap();
        waiter.join().unwrap();
        assert!(unacked.ack(1).is_err());
        unacked.ack(0).unwrap();
    }
}
