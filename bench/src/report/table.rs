//! Tables for people.

use std::fmt::Write as _;

use crate::case::{Case, Op, Work};
use crate::plan::{Figure, Verdict};
use crate::rows::FAIRNESS;
use crate::stats::{Sample, Spread};

/// A column of text: the first is set left, the others right.
fn lay_out(rows: &[Vec<String>]) -> String {
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let width = |column: usize| {
        let cells = rows.iter().filter_map(|row| row.get(column));
        cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..columns).map(width).collect();
    let mut text = String::new();
    for row in rows {
        let mut line = String::new();
        for (column, (cell, &width)) in row.iter().zip(&widths).enumerate() {
            let room = width - cell.chars().count();
            let (before, after) = if column == 1 { (0, room) } else { (room, 0) };
            let _ = write!(line, "{}{cell}{}  ", " ".repeat(before), " ".repeat(after));
        }
        text += line.trim_end();
        text.push('\n');
    }
    text
}

const HEAD: [&str; 12] = [
    "row",
    "work",
    "ours",
    "reference",
    "",
    "ratio",
    "(min–max)",
    "verdict",
    "bar",
    "goal",
    "means",
    "others",
];
const CASES: [&str; 8] = ["", "case", "/s", "p50", "p99", "p99.9", "max", "CPU"];
const LEGEND: &str = "
`ratio`: median over rounds of ours/reference, in the unit shown. `means`: the same of mean times.
`others`: share of the machine that other processes used in the worst round, from 10 %.

medians over rounds: operations a second, times in µs (half a round trip for ping-pong, but whole Reads and
Atomics), CPU µs of client + server for an operation
";

/// The table, and below it percentiles and CPU seconds of each case.
pub(super) fn plain(figures: &[Figure]) -> String {
    let mut rows = vec![HEAD.map(String::from).to_vec()];
    rows.extend(figures.iter().map(|figure| cells(figure).to_vec()));
    let mut text = lay_out(&rows);
    text += LEGEND;
    let mut rows = vec![CASES.map(String::from).to_vec()];
    let mut seen: Vec<&Case> = Vec::new();
    for figure in figures {
        let reference =
            figure.line.reference.as_ref().map(|case| (case, &figure.reference_samples));
        for (case, samples) in reference.into_iter().chain([(&figure.line.ours, &figure.samples)]) {
            if !seen.contains(&case) {
                seen.push(case);
                rows.push(details(case, samples));
            }
        }
    }
    text += &lay_out(&rows);
    text
}

fn row_name(row: Option<u8>) -> String {
    match row {
        None => String::new(),
        Some(FAIRNESS) => "fair".into(),
        Some(row) => row.to_string(),
    }
}

fn cells(figure: &Figure) -> [String; 12] {
    let line = &figure.line;
    let spread = |spread: Option<Spread>| spread.map_or_else(String::new, |s| number(s.median));
    let target = |pick: fn(&crate::plan::Target) -> f64| {
        line.target.as_ref().map_or_else(String::new, |target| {
            let sign = if line.metric.more_is_better() { '≥' } else { '≤' };
            format!("{sign} {}", number(pick(target)))
        })
    };
    [
        row_name(line.row),
        line.what.clone(),
        spread(figure.value),
        spread(figure.reference_value),
        figure.unit.into(),
        figure.ratio.map_or_else(String::new, |ratio| format!("{:.3}", ratio.median)),
        figure
            .ratio
            .map_or_else(String::new, |ratio| format!("({:.2}–{:.2})", ratio.min, ratio.max)),
        figure
            .verdict
            .map_or("", |verdict| match verdict {
                Verdict::Goal => "goal",
                Verdict::Bar => "bar",
                Verdict::Missed => "MISSED",
            })
            .into(),
        target(|target| target.bar),
        target(|target| target.goal),
        figure.ratio_of_means.map_or_else(String::new, |ratio| format!("{:.2}", ratio.median)),
        disturbed(figure),
    ]
}

/// The most that others used of the machine during one of the cases, if it was worth a word.
fn disturbed(figure: &Figure) -> String {
    let samples = figure.samples.iter().chain(&figure.reference_samples);
    let most = samples.filter_map(|sample| sample.foreign_cpu).fold(0.0, f64::max);
    if most < 0.1 { String::new() } else { format!("{:.0} %", most * 100.0) }
}

fn details(case: &Case, samples: &[Sample]) -> Vec<String> {
    let whole = case.op().is_some_and(Op::is_answered)
        || matches!(case.work, Work::Stream(_) | Work::Target { .. });
    let unit = if whole { 1000.0 } else { 2000.0 };
    let median = |pick: &dyn Fn(&Sample) -> Option<f64>| {
        Spread::of(samples.iter().filter_map(pick)).map(|spread| spread.median)
    };
    let time = |pick: fn(&crate::stats::Times) -> u64| {
        median(&|sample| sample.times.as_ref().map(|times| pick(times) as f64 / unit))
            .map_or_else(String::new, number)
    };
    let cpu = |pick: fn(&Sample) -> f64| {
        median(&|sample| Some(pick(sample) * 1e6)).map_or_else(String::new, number)
    };
    let stalls: u64 = samples.iter().filter_map(|sample| Some(sample.times.as_ref()?.stalls)).sum();
    let mut remarks = Vec::new();
    if stalls > 0 {
        remarks.push(format!("{stalls} above 1 ms"));
    }
    if let Some(seconds) = median(&|sample| sample.connect_seconds) {
        remarks.push(format!("{} µs a connect", number(seconds * 1e6)));
    }
    if let (Some(client), Some(server)) =
        (median(&|sample| sample.memory_client), median(&|sample| sample.memory_server))
    {
        remarks.push(format!("client {client:.0} B, server {server:.0} B"));
    }
    vec![
        String::new(),
        case.to_string(),
        median(&|sample| Some(sample.per_second)).map_or_else(String::new, number),
        time(|t| t.p50),
        time(|t| t.p99),
        time(|t| t.p999),
        time(|t| t.max),
        format!("{} + {}", cpu(|sample| sample.cpu_client), cpu(|sample| sample.cpu_server)),
        remarks.join(", "),
    ]
}

/// The table of targets for a document.
pub(super) fn markdown(figures: &[Figure]) -> String {
    let mut text = String::from(
        "| # | work | ours | reference | unit | ratio: median (min–max) | bar | goal | verdict |\n\
         |---|---|---|---|---|---|---|---|---|\n",
    );
    for figure in figures {
        let [row, what, ours, reference, unit, ratio, range, verdict, bar, goal, _, _] =
            cells(figure);
        let _ = writeln!(
            text,
            "| {row} | {what} | {ours} | {reference} | {unit} | {ratio} {range} | {bar} | {goal} | {verdict} |"
        );
    }
    text
}

/// Three digits that count.
fn number(value: f64) -> String {
    match value.abs() {
        v if !v.is_finite() => "–".into(),
        v if v >= 100.0 => format!("{value:.0}"),
        v if v >= 10.0 => format!("{value:.1}"),
        v if v >= 1.0 || v == 0.0 => format!("{value:.2}"),
        _ => format!("{value:.3}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_as_wide_as_their_widest_cell() {
        let rows =
            [vec!["1".into(), "µs".into(), "9".into()], vec!["22".into(), "x".into(), "10".into()]];
        assert_eq!(lay_out(&rows), " 1  µs   9\n22  x   10\n");
    }

    #[test]
    fn numbers_have_three_digits() {
        let table =
            [(0.0, "0.00"), (0.1234, "0.123"), (1.0, "1.00"), (12.34, "12.3"), (4096.4, "4096")];
        for (value, text) in table {
            assert_eq!(number(value), text);
        }
        assert_eq!(number(f64::NAN), "–");
    }
}
