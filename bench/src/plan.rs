//! What is compared with what, and what the ratio has to be.

use std::fmt::Write as _;

use serde::Serialize;

use crate::case::{Case, Octets, Op, Stack, Stream, Wait, Wire, Work};
use crate::stats::{Sample, Spread};

/// One figure: a case, and the one it is compared with.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Line {
    /// Row of the table of targets, if it belongs there.
    pub(crate) row: Option<u8>,
    pub(crate) what: String,
    pub(crate) ours: Case,
    pub(crate) reference: Option<Case>,
    pub(crate) metric: Metric,
    pub(crate) target: Option<Target>,
}

/// What of a sample counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Metric {
    /// Half a round trip: median of a round.
    HalfRoundTrip,
    /// A whole operation: median of a round.
    WholeOperation,
    /// 99th percentile of half round trips.
    Tail,
    /// From one end to the other: median of a round.
    OneWay,
    /// Slowest of a round.
    Slowest,
    Bandwidth,
    Rate,
    /// CPU seconds of both ends for 10⁹ octets.
    Cpu,
    /// User-space octets of a connection at the end that has more.
    Memory,
}

/// The bar must be met, the goal is what we are after.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(crate) struct Target {
    pub(crate) bar: f64,
    pub(crate) goal: f64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Verdict {
    Goal,
    Bar,
    Missed,
}

impl Metric {
    /// What it is in its unit.
    pub(crate) fn of(self, case: &Case, sample: &Sample) -> f64 {
        let times = |pick: fn(&crate::stats::Times) -> u64| {
            sample.times.as_ref().map_or(f64::NAN, |times| pick(times) as f64 / 1000.0)
        };
        match self {
            Self::HalfRoundTrip => times(|t| t.p50) / 2.0,
            Self::WholeOperation | Self::OneWay => times(|t| t.p50),
            Self::Tail => times(|t| t.p99) / 2.0,
            Self::Slowest => times(|t| t.max),
            Self::Bandwidth => sample.octets_per_second / 1e9,
            Self::Rate => sample.per_second / 1e6,
            Self::Cpu => (sample.cpu_client + sample.cpu_server) / case.size as f64 * 1e9,
            Self::Memory => {
                let ends = [sample.memory_client, sample.memory_server];
                ends.into_iter().flatten().fold(f64::NAN, f64::max)
            }
        }
    }

    pub(crate) const fn unit(self) -> &'static str {
        match self {
            Self::HalfRoundTrip
            | Self::WholeOperation
            | Self::Tail
            | Self::OneWay
            | Self::Slowest => "µs",
            Self::Bandwidth => "GB/s",
            Self::Rate => "M/s",
            Self::Cpu => "s/GB",
            Self::Memory => "B",
        }
    }

    pub(crate) const fn more_is_better(self) -> bool {
        matches!(self, Self::Bandwidth | Self::Rate)
    }

    /// Whether a target is for the value itself, and not for its ratio.
    pub(crate) const fn is_absolute(self) -> bool {
        matches!(self, Self::Memory)
    }

    pub(crate) fn verdict(self, target: Target, value: f64) -> Verdict {
        let reached = |limit: f64| {
            if self.more_is_better() { value >= limit } else { value <= limit }
        };
        match target {
            Target { goal, .. } if reached(goal) => Verdict::Goal,
            Target { bar, .. } if reached(bar) => Verdict::Bar,
            _ => Verdict::Missed,
        }
    }
}

/// A line with its samples, round by round.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Figure {
    #[serde(flatten)]
    pub(crate) line: Line,
    pub(crate) unit: &'static str,
    pub(crate) value: Option<Spread>,
    pub(crate) reference_value: Option<Spread>,
    /// Of the rounds, each with its own reference.
    pub(crate) ratio: Option<Spread>,
    /// The same of the means of rounds, where the value is a time: the tails count in it.
    pub(crate) ratio_of_means: Option<Spread>,
    pub(crate) verdict: Option<Verdict>,
    pub(crate) samples: Vec<Sample>,
    pub(crate) reference_samples: Vec<Sample>,
}

impl Figure {
    pub(crate) fn new(line: Line, samples: Vec<Sample>, reference_samples: Vec<Sample>) -> Self {
        let values = |case: &Case, samples: &[Sample]| -> Vec<f64> {
            samples.iter().map(|sample| line.metric.of(case, sample)).collect()
        };
        let ours = values(&line.ours, &samples);
        let theirs = line.reference.as_ref().map(|case| values(case, &reference_samples));
        let ratio = theirs.as_ref().and_then(|theirs| Spread::of_ratios(&ours, theirs));
        let value = Spread::of(ours);
        let means = |samples: &[Sample]| -> Vec<f64> {
            let mean = |sample: &Sample| sample.times.map_or(f64::NAN, |times| times.mean);
            samples.iter().map(mean).collect()
        };
        let by_median = matches!(line.metric, Metric::HalfRoundTrip | Metric::WholeOperation);
        let ratio_of_means = (by_median && theirs.is_some())
            .then(|| Spread::of_ratios(&means(&samples), &means(&reference_samples)))
            .flatten();
        let judged = if line.metric.is_absolute() { value } else { ratio };
        let verdict = line
            .target
            .zip(judged)
            .map(|(target, judged)| line.metric.verdict(target, judged.median));
        Self {
            unit: line.metric.unit(),
            value,
            reference_value: theirs.and_then(Spread::of),
            ratio,
            ratio_of_means,
            verdict,
            samples,
            reference_samples,
            line,
        }
    }
}

/// The cases that a list of lines needs, each once, what is compared with first.
pub(crate) fn cases(lines: &[Line]) -> Vec<Case> {
    let mut cases = Vec::new();
    for line in lines {
        for case in line.reference.iter().chain([&line.ours]) {
            if !cases.contains(case) {
                cases.push(case.clone());
            }
        }
    }
    cases
}

pub(crate) fn tcp(work: Work, size: usize, wait: Wait) -> Case {
    // TCP has one way to send.
    let work = match work {
        Work::PingPong { .. } => Work::PingPong { op: Op::Send },
        Work::Stream(s) => Work::Stream(Stream {
            op: Op::Write,
            depth: 1,
            list: 1,
            footprint: s.footprint,
            both_ways: s.both_ways,
            connections: 1,
            summed: s.summed,
        }),
        other => other,
    };
    Case { stack: Stack::Tcp, work, size, wait, wire: Wire::NONE }
}

pub(crate) fn iwarp(work: Work, size: usize, wait: Wait, wire: Wire) -> Case {
    Case { stack: Stack::Iwarp, work, size, wait, wire }
}

pub(crate) fn ping_pong(op: Op, size: usize, wait: Wait, wire: Wire) -> Line {
    let work = Work::PingPong { op };
    let metric = if op.is_answered() { Metric::WholeOperation } else { Metric::HalfRoundTrip };
    let style = match wait {
        Wait::Poll => "polling",
        Wait::Block => "blocking",
        Wait::Await => "await",
    };
    Line {
        row: None,
        what: format!("{op} {} {style}{}", Octets(size), crc(wire)),
        ours: iwarp(work, size, wait, wire),
        reference: Some(tcp(work, size, wait)),
        metric,
        target: None,
    }
}

pub(crate) fn stream(s: Stream, size: usize, wait: Wait, wire: Wire, metric: Metric) -> Line {
    let mut what = format!("{} {}", s.op, Octets(size));
    if s.list > 1 {
        let _ = write!(what, " in lists of {}", s.list);
    }
    let _ = write!(what, " depth {}", s.depth);
    if s.footprint > 1 {
        let _ = write!(what, " over {} buffers", s.footprint);
    }
    if s.both_ways {
        what += " both ways";
    }
    if s.connections > 1 {
        let _ = write!(what, " on {} connections", s.connections);
    }
    if wait != Wait::Poll {
        what += " blocking";
    }
    let summed = if s.summed { " / TCP copied+summed" } else { "" };
    let work = Work::Stream(s);
    let ours = Work::Stream(Stream { summed: false, ..s });
    Line {
        row: None,
        what: format!("{what}{}{summed}", crc(wire)),
        ours: iwarp(ours, size, wait, wire),
        reference: Some(tcp(work, size, wait)),
        metric,
        target: None,
    }
}

fn crc(wire: Wire) -> &'static str {
    if wire.crc { "" } else { " no CRC" }
}

impl Line {
    pub(crate) fn row(mut self, row: u8) -> Self {
        self.row = Some(row);
        self
    }

    pub(crate) fn target(mut self, bar: f64, goal: f64) -> Self {
        self.target = Some(Target { bar, goal });
        self
    }

    pub(crate) fn against(mut self, case: Case, what: &str) -> Self {
        self.reference = Some(case);
        self.what += what;
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn verdicts_know_their_direction() {
        let times = Target { bar: 1.15, goal: 1.05 };
        for (value, verdict) in [
            (1.0, Verdict::Goal),
            (1.05, Verdict::Goal),
            (1.1, Verdict::Bar),
            (1.2, Verdict::Missed),
        ] {
            assert_eq!(Metric::HalfRoundTrip.verdict(times, value), verdict, "{value}");
        }
        let rates = Target { bar: 0.9, goal: 0.96 };
        for (value, verdict) in [(1.0, Verdict::Goal), (0.9, Verdict::Bar), (0.89, Verdict::Missed)]
        {
            assert_eq!(Metric::Bandwidth.verdict(rates, value), verdict, "{value}");
        }
        assert_eq!(Metric::Rate.verdict(rates, f64::NAN), Verdict::Missed);
    }

    #[test]
    fn a_reference_runs_once_in_a_round_and_before_ours() {
        let wire = Wire { crc: true, ..Wire::NONE };
        let lines =
            [ping_pong(Op::Write, 64, Wait::Poll, wire), ping_pong(Op::Send, 64, Wait::Poll, wire)];
        let cases = cases(&lines);
        assert_eq!(cases.len(), 3);
        assert_eq!(cases[0].stack, Stack::Tcp);
    }
}
