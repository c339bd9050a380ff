//! Samples of one case in one round, and what several rounds say together.

use std::time::Duration;

use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};

/// What one end tells of a case.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct EndReport {
    /// CPU seconds of the whole process in `cpu_over` operations.
    pub(crate) cpu_seconds: f64,
    /// Operations that those CPU seconds were spent on; 0 if this end does not know.
    pub(crate) cpu_over: u64,
    /// CPU seconds of the process for the whole case, set-up and end included.
    pub(crate) cpu_of_all: f64,
    /// Operations within the time that is measured.
    pub(crate) operations: u64,
    /// Length of that time.
    pub(crate) seconds: f64,
    /// Operations in all, with warm-up and end: what the other end must have seen.
    pub(crate) total: u64,
    pub(crate) times: Option<Times>,
    /// User-space octets per connection, counted by the allocator.
    pub(crate) memory_per_connection: Option<f64>,
    /// Seconds that it took to set up one connection, on average.
    pub(crate) connect_seconds: Option<f64>,
    /// Connections, where their number may be lower than was asked.
    pub(crate) connections: Option<usize>,
}

/// Distribution of the times of single operations, in nanoseconds.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct Times {
    pub(crate) count: u64,
    pub(crate) mean: f64,
    pub(crate) min: u64,
    pub(crate) p50: u64,
    pub(crate) p99: u64,
    pub(crate) p999: u64,
    pub(crate) max: u64,
    /// Times above a millisecond.
    pub(crate) stalls: u64,
}

/// Collects times without growing while the clock runs.
pub(crate) struct Recorder(Histogram<u64>);

impl Recorder {
    pub(crate) fn new() -> Self {
        // One minute is beyond any limit of a case.
        Self(Histogram::new_with_bounds(1, 60_000_000_000, 3).expect("bounds that are right"))
    }

    pub(crate) fn record(&mut self, time: Duration) {
        self.record_nanos(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX));
    }

    pub(crate) fn record_nanos(&mut self, nanos: u64) {
        self.0.saturating_record(nanos);
    }

    pub(crate) fn times(&self) -> Times {
        let h = &self.0;
        Times {
            count: h.len(),
            mean: h.mean(),
            min: h.min(),
            p50: h.value_at_quantile(0.5),
            p99: h.value_at_quantile(0.99),
            p999: h.value_at_quantile(0.999),
            max: h.max(),
            stalls: h.count_between(1_000_001, u64::MAX),
        }
    }
}

/// One case in one round, both ends together.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Sample {
    /// Operations of the time that was measured, both directions together.
    pub(crate) operations: u64,
    pub(crate) seconds: f64,
    /// Operations per second.
    pub(crate) per_second: f64,
    /// Octets of messages per second.
    pub(crate) octets_per_second: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) times: Option<Times>,
    /// CPU seconds per operation: of the client, and of the server.
    pub(crate) cpu_client: f64,
    pub(crate) cpu_server: f64,
    /// Share of the machine that others used meanwhile; none if it cannot be told.
    pub(crate) foreign_cpu: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) memory_client: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) memory_server: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) connect_seconds: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) connections: Option<usize>,
}

/// What a list of values says: its middle and its ends.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Spread {
    pub(crate) min: f64,
    pub(crate) median: f64,
    pub(crate) max: f64,
}

impl Spread {
    /// `None` without values.
    pub(crate) fn of(values: impl IntoIterator<Item = f64>) -> Option<Self> {
        let mut values: Vec<f64> = values.into_iter().filter(|v| v.is_finite()).collect();
        values.sort_unstable_by(f64::total_cmp);
        let (min, max) = (*values.first()?, *values.last()?);
        let half = values.len() / 2;
        let median = if values.len().is_multiple_of(2) {
            f64::midpoint(values[half - 1], values[half])
        } else {
            values[half]
        };
        Some(Self { min, median, max })
    }

    /// Ratios of pairs: each value to the other one of the same round.
    pub(crate) fn of_ratios(ours: &[f64], theirs: &[f64]) -> Option<Self> {
        Self::of(ours.iter().zip(theirs).map(|(a, b)| a / b))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_is_the_middle() {
        let spread = |v: &[f64]| Spread::of(v.iter().copied());
        assert_eq!(spread(&[]), None);
        assert_eq!(spread(&[3.0]), Some(Spread { min: 3.0, median: 3.0, max: 3.0 }));
        assert_eq!(spread(&[9.0, 1.0, 2.0]), Some(Spread { min: 1.0, median: 2.0, max: 9.0 }));
        assert_eq!(spread(&[4.0, 1.0, 2.0, 9.0]), Some(Spread { min: 1.0, median: 3.0, max: 9.0 }));
        assert_eq!(spread(&[f64::NAN, 2.0]), Some(Spread { min: 2.0, median: 2.0, max: 2.0 }));
    }

    /// The median of ratios, not the ratio of medians: rounds are paired.
    #[test]
    fn ratios_are_those_of_one_round() {
        let ours = [10.0, 40.0, 9.0];
        let theirs = [10.0, 20.0, 10.0];
        let ratio = Spread::of_ratios(&ours, &theirs).expect("three");
        assert_eq!(ratio, Spread { min: 0.9, median: 1.0, max: 2.0 });
        assert_eq!(Spread::of_ratios(&ours, &[]), None);
    }

    #[test]
    fn percentiles_count_stalls() {
        let mut times = Recorder::new();
        for nanos in 1..=1000 {
            times.record(Duration::from_nanos(nanos));
        }
        times.record(Duration::from_millis(5));
        let times = times.times();
        assert_eq!((times.count, times.min, times.stalls), (1001, 1, 1));
        assert!((499..=503).contains(&times.p50), "{}", times.p50);
        assert!((989..=993).contains(&times.p99), "{}", times.p99);
        assert!((4_990_000..5_010_000).contains(&times.max), "{}", times.max);
    }
}
