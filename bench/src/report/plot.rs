//! Latency and bandwidth against size, as a drawing.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context, Result, anyhow, bail};
use plotters::coord::ranged1d::{AsRangedCoord, KeyPointHint, Ranged, ValueFormatter};
use plotters::prelude::*;

use crate::case::{Case, Octets, Op, Stack, Wait, Work};
use crate::plan::{Figure, Metric};
use crate::stats::{Sample, Spread};

const SIZE: (u32, u32) = (1120, 480);
const TCP: RGBColor = RGBColor(110, 110, 110);
const WRITE: RGBColor = RGBColor(0, 90, 181);
const WRITE_WITHOUT: RGBColor = RGBColor(110, 175, 235);
const SEND: RGBColor = RGBColor(220, 110, 0);
const READ: RGBColor = RGBColor(20, 140, 90);
const WRITE_IMM: RGBColor = RGBColor(150, 60, 160);
const ATOMIC: RGBColor = RGBColor(190, 40, 60);
const FONT: &str = "sans-serif";

/// One curve: octets and values, with the spread over rounds.
type Curve = BTreeMap<usize, Spread>;

/// Names of curves in the order of the legend, with their colours.
type Curves = BTreeMap<(u8, String), (RGBColor, Curve)>;

/// Draws both charts into one file.
pub(super) fn draw(file: &Path, figures: &[Figure]) -> Result<()> {
    let latency = curves(figures, &[Metric::HalfRoundTrip, Metric::WholeOperation]);
    let bandwidth = curves(figures, &[Metric::Bandwidth]);
    let charts: Vec<_> = [
        ("Latency of one message, polling (Reads, Atomics: whole)", "µs", true, latency),
        ("Bandwidth of one connection", "GB/s", false, bandwidth),
    ]
    .into_iter()
    .filter(|(.., curves)| curves.values().any(|(_, curve)| curve.len() > 1))
    .collect();
    if charts.is_empty() {
        bail!("nothing to plot: it takes latency or bandwidth at several sizes");
    }
    let size = (SIZE.0 / 2 * charts.len() as u32, SIZE.1);
    let root = SVGBackend::new(file, size).into_drawing_area();
    let failed = |error: &dyn std::fmt::Display| anyhow!("{}: {error}", file.display());
    root.fill(&WHITE).map_err(|error| failed(&error))?;
    for (area, (title, unit, logarithmic, curves)) in
        root.split_evenly((1, charts.len())).iter().zip(&charts)
    {
        let (low, high) = bounds(curves);
        let drawn = if *logarithmic {
            let axis = Powers::around(low, high);
            chart(area, (title, unit), curves, axis, (f64::log2, |value| number(value.exp2())))
        } else {
            chart(area, (title, unit), curves, 0.0..high * 1.1, (|value| value, number))
        };
        drawn.with_context(|| file.display().to_string())?;
    }
    root.present().map_err(|error| failed(&error))
}

/// The curves that figures of some metrics give. TCP is the same whatever it is compared with.
fn curves(figures: &[Figure], metrics: &[Metric]) -> Curves {
    let mut curves = Curves::new();
    for figure in figures.iter().filter(|figure| metrics.contains(&figure.line.metric)) {
        // A whole Read is compared with two half round trips: that is no curve of its own.
        let reference = figure.line.reference.as_ref().filter(|case| {
            case.stack == Stack::Tcp && figure.line.metric != Metric::WholeOperation
        });
        let both =
            [(Some(&figure.line.ours), &figure.samples), (reference, &figure.reference_samples)];
        for (case, samples) in both {
            let Some((name, colour)) = case.and_then(name) else { continue };
            let Some(case) = case else { continue };
            let Some(value) = spread(figure.line.metric, case, samples) else { continue };
            let (_, curve) = curves.entry(name).or_insert_with(|| (colour, Curve::new()));
            curve.entry(case.size).or_insert(value);
        }
    }
    curves
}

fn spread(metric: Metric, case: &Case, samples: &[Sample]) -> Option<Spread> {
    Spread::of(samples.iter().map(|sample| metric.of(case, sample)))
}

/// Place in the legend, name and colour; `None` for what is not of the plain kind.
fn name(case: &Case) -> Option<((u8, String), RGBColor)> {
    if case.wait != Wait::Poll {
        return None;
    }
    let op = match case.work {
        Work::PingPong { op } => op,
        Work::Stream(s) if !s.summed && !s.both_ways && s.connections == 1 && s.list == 1 => s.op,
        _ => return None,
    };
    let crc = if case.wire.crc { "CRC" } else { "no CRC" };
    let (place, colour) = match (case.stack, op, case.wire.crc) {
        (Stack::Tcp, ..) => return Some(((0, "plain TCP".into()), TCP)),
        // Frames of another length than usual are another curve.
        _ if case.wire.fpdu.is_some() => return None,
        (_, Op::Write, true) => (1, WRITE),
        (_, Op::Write, false) => (2, WRITE_WITHOUT),
        (_, Op::Send, _) => (3, SEND),
        (_, Op::Read, _) => (4, READ),
        (_, Op::WriteImm, _) => (5, WRITE_IMM),
        (_, Op::Atomic, _) => (6, ATOMIC),
    };
    Some(((place, format!("{op}, {crc}")), colour))
}

fn bounds(curves: &Curves) -> (f64, f64) {
    let spreads = || curves.values().flat_map(|(_, curve)| curve.values());
    let low = spreads().map(|s| s.min).fold(f64::INFINITY, f64::min);
    let high = spreads().map(|s| s.max).fold(0.0, f64::max);
    (low, high)
}

/// Where a value is on an axis, and what a place of the axis is called.
type Scale = (fn(f64) -> f64, fn(f64) -> String);

fn chart<Y>(
    area: &DrawingArea<SVGBackend<'_>, plotters::coord::Shift>,
    (title, unit): (&str, &str),
    curves: &Curves,
    y: impl AsRangedCoord<CoordDescType = Y, Value = f64>,
    (scale, label): Scale,
) -> Result<()>
where
    Y: Ranged<ValueType = f64> + ValueFormatter<f64>,
{
    let failed = |error: &dyn std::fmt::Display| anyhow!("{error}");
    let sizes = || curves.values().flat_map(|(_, curve)| curve.keys().copied());
    let (low, high) = (sizes().min().unwrap_or(1), sizes().max().unwrap_or(1));
    let mut chart = ChartBuilder::on(area)
        .caption(title, (FONT, 17))
        .margin(14)
        .margin_right(26)
        .x_label_area_size(42)
        .y_label_area_size(56)
        .build_cartesian_2d(Powers::around(low as f64, high as f64), y)
        .map_err(|error| failed(&error))?;
    chart
        .configure_mesh()
        .bold_line_style(RGBColor(215, 215, 215))
        .light_line_style(RGBColor(242, 242, 242))
        .axis_style(RGBColor(120, 120, 120))
        .label_style((FONT, 13))
        .axis_desc_style((FONT, 14))
        .x_labels(9)
        .x_label_formatter(&|shift| octets(*shift))
        .y_label_formatter(&|value| label(*value))
        .x_desc("size of a message")
        .y_desc(unit)
        .draw()
        .map_err(|error| failed(&error))?;
    for ((_, name), (colour, curve)) in curves {
        let colour = *colour;
        let points = || curve.iter().map(|(&size, s)| ((size as f64).log2(), scale(s.median)));
        // From the slowest round to the fastest one.
        let ranges = curve.iter().map(|(&size, s)| {
            let x = (size as f64).log2();
            let ends = vec![(x, scale(s.min)), (x, scale(s.max))];
            PathElement::new(ends, colour.mix(0.35).stroke_width(4))
        });
        chart.draw_series(ranges).map_err(|error| failed(&error))?;
        chart
            .draw_series(LineSeries::new(points(), colour.stroke_width(2)))
            .map_err(|error| failed(&error))?
            .label(name)
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 22, y)], colour.stroke_width(3)));
        chart
            .draw_series(points().map(|at| Circle::new(at, 3, colour.filled())))
            .map_err(|error| failed(&error))?;
    }
    chart
        .configure_series_labels()
        .position(SeriesLabelPosition::UpperLeft)
        .background_style(WHITE.mix(0.85))
        .border_style(RGBColor(215, 215, 215))
        .label_font((FONT, 13))
        .draw()
        .map_err(|error| failed(&error))
}

fn octets(shift: f64) -> String {
    Octets(2_f64.powf(shift).round() as usize).to_string()
}

fn number(value: f64) -> String {
    // Small enough to be read, and without the noise of floating point.
    format!("{}", (value * 1000.0).round() / 1000.0)
}

/// An axis of powers of two, from one exponent to another.
struct Powers(i32, i32);

impl Powers {
    /// The shortest one that has both values.
    fn around(low: f64, high: f64) -> Self {
        let (low, high) = (low.log2().floor() as i32, high.log2().ceil() as i32);
        Self(low, high.max(low + 1))
    }
}

impl Ranged for Powers {
    type FormatOption = plotters::coord::ranged1d::DefaultFormatting;
    type ValueType = f64;

    fn map(&self, value: &f64, limit: (i32, i32)) -> i32 {
        let (low, high) = (f64::from(self.0), f64::from(self.1));
        let part = (value - low) / (high - low);
        limit.0 + (part * f64::from(limit.1 - limit.0)).round() as i32
    }

    fn key_points<Hint: KeyPointHint>(&self, hint: Hint) -> Vec<f64> {
        let most = hint.max_num_points().max(1);
        let step = (self.0.abs_diff(self.1) as usize).div_ceil(most).max(1);
        (self.0..=self.1).step_by(step).map(f64::from).collect()
    }

    fn range(&self) -> std::ops::Range<f64> {
        f64::from(self.0)..f64::from(self.1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::case::Wire;
    use crate::plan::ping_pong;
    use crate::stats::Times;

    fn sample(nanos: u64) -> Sample {
        let times = Times {
            count: 1,
            mean: nanos as f64,
            min: nanos,
            p50: nanos,
            p99: nanos,
            p999: nanos,
            max: nanos,
            stalls: 0,
        };
        Sample {
            operations: 1,
            seconds: 1.0,
            per_second: 1.0,
            octets_per_second: 1.0,
            times: Some(times),
            cpu_client: 0.0,
            cpu_server: 0.0,
            foreign_cpu: None,
            memory_client: None,
            memory_server: None,
            connect_seconds: None,
            connections: None,
        }
    }

    #[test]
    fn a_plot_names_its_curves() {
        let wire = Wire { crc: true, ..Wire::NONE };
        let figure = |size| {
            let line = ping_pong(Op::Write, size, Wait::Poll, wire);
            Figure::new(line, vec![sample(8000)], vec![sample(7000)])
        };
        let file = std::env::temp_dir().join(format!("iwarp-bench-{}.svg", std::process::id()));
        draw(&file, &[figure(8), figure(4096)]).expect("a plot");
        let text = std::fs::read_to_string(&file).expect("the plot");
        std::fs::remove_file(&file).expect("removed");
        for word in ["plain TCP", "Write, CRC", "µs", "4 KiB"] {
            assert!(text.contains(word), "{word}");
        }
        assert!(draw(&file, &[]).is_err());
    }

    #[test]
    fn an_axis_has_both_ends() {
        let axis = Powers::around(3.0, 20.0);
        assert_eq!((axis.0, axis.1), (1, 5));
        assert_eq!((axis.map(&1.0, (0, 100)), axis.map(&5.0, (0, 100))), (0, 100));
        assert_eq!(number(2_f64.exp2()), "4");
        assert_eq!(octets(16.0), "64 KiB");
    }
}
