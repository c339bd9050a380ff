//! The table of targets: sixteen kinds of work, each with the bar that must be met and the goal.

use crate::case::{Fpdu, Op, Stream, Wait, Wire, Work};
use crate::plan::{Line, Metric, iwarp, ping_pong, stream, tcp};

/// How much of the table is run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Extent {
    Quick,
    Full,
}

/// All lines of the table.
pub(crate) fn lines(extent: Extent, wire: Wire, idle: usize) -> Vec<Line> {
    let on = Wire { crc: true, ..wire };
    let off = Wire { crc: false, ..wire };
    let full = extent == Extent::Full;
    let mut lines = latency(full, on);
    lines.extend(bandwidth(full, on, off));
    lines.extend(small(on));
    lines.extend(self::idle(on, idle));
    for connections in if full { &[8, 64][..] } else { &[64] } {
        lines.extend(busy(on, *connections));
    }
    lines.extend(alone(on));
    lines
}

/// Rows 1 to 4.
fn latency(full: bool, on: Wire) -> Vec<Line> {
    let mut lines = Vec::new();
    let sizes: &[usize] = if full { &[1, 8, 64] } else { &[64] };
    let ways =
        [(1, Wait::Poll, 1.15, 1.05), (2, Wait::Block, 1.25, 1.08), (3, Wait::Await, 1.20, 1.08)];
    for (row, wait, bar, goal) in ways {
        for &size in sizes.iter().filter(|&&size| row == 1 || size != 8) {
            for op in [Op::Write, Op::Send] {
                lines.push(ping_pong(op, size, wait, on).row(row).target(bar, goal));
            }
        }
    }
    let sizes: &[usize] = if full { &[8, 64, 1024, 4096] } else { &[64, 4096] };
    for &size in sizes {
        lines.push(ping_pong(Op::Read, size, Wait::Poll, on).row(4).target(1.20, 1.05));
    }
    lines
}

/// Rows 5 to 7, 11 and 12.
fn bandwidth(full: bool, on: Wire, off: Wire) -> Vec<Line> {
    const K64: usize = 64 << 10;
    const M1: usize = 1 << 20;
    let write = Stream::default();
    let summed = Stream { summed: true, ..write };
    let read = Stream { op: Op::Read, ..write };
    let poll = |s, size, wire| stream(s, size, Wait::Poll, wire, Metric::Bandwidth);
    let mut lines = vec![
        poll(write, K64, off).row(5).target(0.90, 0.96),
        poll(write, K64, on).row(5).target(0.80, 0.90),
        poll(summed, K64, on).row(5),
        poll(write, M1, off).row(6).target(0.90, 0.98),
        poll(write, M1, on).row(6).target(0.75, 0.87),
        poll(summed, M1, on).row(6),
    ];
    let sizes: &[usize] = if full { &[K64, 256 << 10, M1] } else { &[K64, M1] };
    for &size in sizes {
        let own = iwarp(Work::Stream(write), size, Wait::Poll, on);
        lines.push(poll(read, size, on).against(own, " / own Write").row(7).target(0.90, 1.0));
    }
    let short = Wire { fpdu: Some(Fpdu::Octets(1408)), ..on };
    let mut line = poll(write, M1, short).row(11).target(0.45, 0.60);
    line.what += " in FPDUs of 1408";
    lines.push(line);
    for wait in [Wait::Poll, Wait::Block] {
        if !full && wait == Wait::Poll {
            continue;
        }
        for size in [K64, M1] {
            for (wire, bar, goal) in [(off, 1.20, 1.05), (on, 1.40, 1.20)] {
                let mut line = stream(write, size, wait, wire, Metric::Cpu);
                line.what = format!("CPU, {}", line.what);
                lines.push(line.row(12).target(bar, goal));
            }
        }
    }
    lines
}

/// Rows 8 to 10.
fn small(on: Wire) -> Vec<Line> {
    let rate = |s, size| stream(s, size, Wait::Poll, on, Metric::Rate);
    let lists = Stream { list: 64, depth: 128, ..Stream::default() };
    let singly = Stream { depth: 64, ..Stream::default() };
    let deep = Stream { depth: 32, ..Stream::default() };
    vec![
        rate(lists, 64).row(8).target(12.0, 30.0),
        rate(singly, 64).row(9).target(4.0, 12.0),
        rate(deep, 1024).row(10).target(4.0, 8.0),
        rate(deep, 4096).row(10).target(2.5, 4.0),
    ]
}

/// Rows 13 and 14.
pub(crate) fn idle(wire: Wire, idle: usize) -> Vec<Line> {
    let beside = |connections| iwarp(Work::Idle { connections }, 64, Wait::Poll, wire);
    let memory = Line {
        row: Some(13),
        what: format!("user memory of each of {idle} idle connections"),
        ours: beside(idle),
        reference: None,
        metric: Metric::Memory,
        target: None,
    };
    let latency = Line {
        row: Some(14),
        what: format!("Write 64 B beside {idle} idle connections / without"),
        reference: Some(beside(0)),
        metric: Metric::HalfRoundTrip,
        ..memory.clone()
    };
    vec![memory.target(4096.0, 2048.0), latency.target(1.10, 1.03)]
}

/// Row 15: bandwidth and rate of several connections, against one.
pub(crate) fn busy(wire: Wire, connections: usize) -> Vec<Line> {
    let lists = Stream { list: 64, depth: 128, ..Stream::default() };
    let cases = [(Stream::default(), 64 << 10, Metric::Bandwidth), (lists, 64, Metric::Rate)];
    let line = |(one, size, metric)| {
        let own = iwarp(Work::Stream(one), size, Wait::Poll, wire);
        let line = stream(Stream { connections, ..one }, size, Wait::Poll, wire, metric);
        line.against(own, " / one connection").row(15).target(0.90, 1.0)
    };
    cases.map(line).into()
}

/// Row 16, and fairness.
fn alone(on: Wire) -> Vec<Line> {
    let target = Line {
        row: Some(16),
        what: "Write 8 B to a target that makes no call, one way / TCP with a reading thread"
            .into(),
        ours: iwarp(Work::Target, 8, Wait::Poll, on),
        reference: Some(tcp(Work::Target, 8, Wait::Poll)),
        metric: Metric::OneWay,
        target: None,
    };
    let slowest =
        Line { what: "the same, slowest".into(), metric: Metric::Slowest, ..target.clone() };
    let fair = |bulk| iwarp(Work::Fairness { bulk }, 64, Wait::Poll, on);
    let fairness = Line {
        row: None,
        what: "fairness: p99 of Send 64 B beside a bulk Write / alone".into(),
        ours: fair(true),
        reference: Some(fair(false)),
        metric: Metric::Tail,
        target: None,
    };
    vec![target, slowest, fairness]
}
