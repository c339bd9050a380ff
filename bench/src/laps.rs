//! Times of operations that follow each other without a pause: the end of one is the begin of the next.

use std::time::{Duration, Instant};

use crate::guard::cpu;
use crate::stats::{EndReport, Recorder};

pub(crate) struct Laps {
    times: Recorder,
    meter: cpu::Meter,
    begun: Instant,
    last: Duration,
}

impl Laps {
    pub(crate) fn start() -> Self {
        let times = Recorder::new();
        Self { times, meter: cpu::Meter::start(), begun: Instant::now(), last: Duration::ZERO }
    }

    /// An operation is over. Looks at the clock, once.
    pub(crate) fn lap(&mut self) {
        let now = self.begun.elapsed();
        self.times.record(now.saturating_sub(self.last));
        self.last = now;
    }

    /// Whether the operations took less than so long.
    pub(crate) fn within(&self, time: Duration) -> bool {
        self.last < time
    }

    /// What the client tells, after `total` operations with those of the warm-up.
    pub(crate) fn report(self, total: u64) -> EndReport {
        let cpu_seconds = self.meter.seconds();
        let times = self.times.times();
        EndReport {
            cpu_seconds,
            cpu_over: times.count,
            operations: times.count,
            seconds: self.last.as_secs_f64(),
            total,
            times: Some(times),
            ..EndReport::default()
        }
    }
}
