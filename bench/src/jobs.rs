//! What the command line asks for, as lines to measure.

use anyhow::{Result, bail};

use crate::case::{ATOMIC, Case, Op, Stream, Wait, Wire, Work};
use crate::cli::{Cli, Crc, What};
use crate::plan::{Line, Metric, ping_pong, stream};
use crate::rows::{self, Extent};

/// Idle connections that are asked for.
pub(crate) fn idle_wanted(cli: &Cli) -> usize {
    match cli.command {
        Some(What::Connections { idle, .. }) => idle,
        _ if cli.run.quick => 1000,
        _ => 10_000,
    }
}

fn wires(cli: &Cli) -> Vec<Wire> {
    let wire =
        |crc| Wire { crc, markers: cli.wire.markers, fpdu: cli.wire.fpdu, inline: cli.wire.inline };
    match cli.wire.crc {
        Crc::On => vec![wire(true)],
        Crc::Off => vec![wire(false)],
        Crc::Both => vec![wire(true), wire(false)],
    }
}

/// The sizes that are measured with an operation: an Atomic has one.
fn sizes(op: Op, asked: &[usize]) -> Result<Vec<usize>> {
    let sizes: Vec<usize> =
        asked.iter().copied().filter(|&size| op != Op::Atomic || size == ATOMIC).collect();
    if sizes.is_empty() {
        bail!("an Atomic works on {ATOMIC} octets, which --size does not have");
    }
    Ok(sizes)
}

/// The lines, in the order in which they are shown.
///
/// # Errors
///
/// An operation that makes no sense where it is asked for.
pub(crate) fn lines(cli: &Cli, idle: usize) -> Result<Vec<Line>> {
    let extent = if cli.run.quick { Extent::Quick } else { Extent::Full };
    let table = || rows::lines(extent, Wire { crc: true, ..wires(cli)[0] }, idle);
    let mut lines = Vec::new();
    match &cli.command {
        None => lines = table(),
        Some(What::Table { rows, .. }) => {
            lines = table();
            if !rows.is_empty() {
                lines.retain(|line| line.row.is_some_and(|row| rows.contains(&row)));
            }
        }
        Some(What::Latency { op, wait, size }) => {
            for wire in wires(cli) {
                for &wait in wait {
                    for &op in op {
                        let sizes = sizes(op, size)?.into_iter();
                        lines.extend(sizes.map(|size| ping_pong(op, size, wait, wire)));
                    }
                }
            }
        }
        Some(What::Bandwidth { op, wait, size, depth, footprint, bidirectional }) => {
            if op.contains(&Op::Atomic) {
                bail!("an Atomic moves 8 octets and has no bandwidth: ask for its rate or latency");
            }
            for wire in wires(cli) {
                for &wait in wait {
                    for &op in op {
                        let s = Stream {
                            op,
                            depth: (*depth).max(1),
                            footprint: (*footprint).max(1),
                            both_ways: *bidirectional,
                            ..Stream::default()
                        };
                        for &size in size {
                            lines.push(stream(s, size, wait, wire, Metric::Bandwidth));
                            if wire.crc && !s.both_ways && op == Op::Write && wait == Wait::Poll {
                                let s = Stream { summed: true, ..s };
                                lines.push(stream(s, size, wait, wire, Metric::Bandwidth));
                            }
                        }
                    }
                }
            }
        }
        Some(What::Rate { op, size, depth, list }) => {
            for wire in wires(cli) {
                for &op in op {
                    for &list in list {
                        let list = list.max(1);
                        let depth = if list > 1 { (*depth).max(2 * list) } else { (*depth).max(1) };
                        let s = Stream { op, depth, list, ..Stream::default() };
                        let sizes = sizes(op, size)?.into_iter();
                        lines.extend(
                            sizes.map(|size| stream(s, size, Wait::Poll, wire, Metric::Rate)),
                        );
                    }
                }
            }
        }
        Some(What::Connections { busy, .. }) => {
            for wire in wires(cli) {
                lines.extend(rows::idle(wire, idle));
                for &connections in busy {
                    lines.extend(rows::busy(wire, connections.max(1)));
                }
            }
        }
        Some(What::Target) => {
            lines = only(table(), |case| matches!(case.work, Work::Target { .. }));
        }
        Some(What::Fairness) => {
            lines = only(table(), |case| matches!(case.work, Work::Fairness { .. }));
        }
        Some(What::Serve { .. }) => {}
    }
    let is_table = matches!(cli.command, None | Some(What::Table { .. }));
    if is_table {
        lines.sort_by_key(|line| line.row);
    }
    if is_table && cli.output.plot.is_some() {
        lines.extend(rows::sweep(extent, wires(cli)[0]));
    }
    Ok(lines)
}

fn only(mut lines: Vec<Line>, wanted: impl Fn(&Case) -> bool) -> Vec<Line> {
    lines.retain(|line| wanted(&line.ours));
    lines
}
