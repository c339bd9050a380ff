//! Cases in rounds: each case once in each round, one after the other, so that what is compared ran under the same
//! conditions.

use std::io::{BufRead, BufReader, IsTerminal};
use std::net::SocketAddr;
use std::process::{Child, Command, Stdio};
use std::{env, io};

use anyhow::{Context, Result, anyhow, bail};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use crate::case::{Case, Op, Pace, Stack, Stream, Work};
use crate::control::Remote;
use crate::guard::cpu;
use crate::stats::{EndReport, Sample};
use crate::{product, yardstick};

/// What `serve` says first on its standard output.
pub(crate) const LISTENING: &str = "listening on ";

/// The server as a second process of this program. Ends with this value.
pub(crate) struct ServerProcess {
    child: Child,
    pub(crate) addr: SocketAddr,
}

impl ServerProcess {
    pub(crate) fn start() -> Result<Self> {
        let program = env::current_exe().context("cannot find this program")?;
        let mut child = Command::new(program)
            .args(["serve", "--listen", "127.0.0.1:0", "--once", "--tied"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .context("cannot start the server process")?;
        let mut line = String::new();
        let heard = match child.stdout.take() {
            Some(stdout) => BufReader::new(stdout).read_line(&mut line).map_err(Into::into),
            None => Err(anyhow!("it has no output")),
        };
        let addr = heard.and_then(|_| {
            let addr = line.trim().strip_prefix(LISTENING).unwrap_or_default();
            addr.parse().with_context(|| format!("it said {line:?}"))
        });
        match addr {
            Ok(addr) => Ok(Self { child, addr }),
            Err(error) => {
                drop(Self { child, addr: SocketAddr::from(([0, 0, 0, 0], 0)) });
                Err(error.context("the server process did not tell its address"))
            }
        }
    }
}

impl Drop for ServerProcess {
    fn drop(&mut self) {
        // It ends by itself with its control connection, or with its input when this process is killed; this is
        // for the case that it hangs.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Runs one case at both ends.
pub(crate) fn one(remote: &mut Remote, case: &Case, pace: Pace) -> Result<Sample> {
    let (busy, own) = (cpu::machine_busy(), cpu::Meter::start());
    let wall = std::time::Instant::now();
    let begun = remote.begin(case, pace)?;
    let (mine, kept) = match case.stack {
        Stack::Tcp => (yardstick::drive(case, pace, begun.addr), None),
        Stack::Iwarp => match product::drive(case, pace, begun.addr) {
            Ok((report, connected)) => (Ok(report), Some(connected)),
            Err(error) => (Err(error), None),
        },
    };
    let theirs = remote.end(&begun);
    let wall = wall.elapsed().as_secs_f64();
    drop(kept);
    let (mine, theirs) = match (mine, theirs) {
        (Ok(mine), Ok(theirs)) => (mine, theirs),
        (Err(mine), Err(theirs)) => bail!("client: {mine:#}; {theirs:#}"),
        (Err(mine), Ok(_)) => return Err(mine.context("client")),
        (Ok(_), Err(theirs)) => return Err(theirs),
    };
    check_counts(case, &mine, &theirs)?;
    let foreign = remote.is_local().then(|| {
        let others = cpu::machine_busy()? - busy?;
        let ours = own.seconds() + theirs.cpu_of_all;
        // Ticks are coarse, so the difference may come out below nothing.
        Some(((others - ours) / wall / cpu::processors() as f64).max(0.0))
    });
    Ok(sample(case, &mine, &theirs, foreign.flatten()))
}

/// What one end sent, the other must have seen.
fn check_counts(case: &Case, mine: &EndReport, theirs: &EndReport) -> Result<()> {
    let one_sided = match case.work {
        Work::Stream(Stream { both_ways: true, .. }) => true,
        Work::Stream(s) => case.stack == Stack::Iwarp && matches!(s.op, Op::Write | Op::Read),
        Work::PingPong { op } => op == Op::Read,
        Work::Idle { .. } | Work::Fairness { .. } | Work::Target { .. } => false,
    };
    if !one_sided && mine.total != theirs.total {
        bail!("{case}: the client sent {} messages, the server saw {}", mine.total, theirs.total);
    }
    Ok(())
}

fn sample(case: &Case, mine: &EndReport, theirs: &EndReport, foreign_cpu: Option<f64>) -> Sample {
    let per = |report: &EndReport, over: u64| match over {
        0 => report.cpu_seconds / mine.total.max(1) as f64,
        over => report.cpu_seconds / over as f64,
    };
    let both_ways = matches!(case.work, Work::Stream(Stream { both_ways: true, .. }));
    let rate = |report: &EndReport| report.operations as f64 / report.seconds.max(1e-9);
    let per_second = if both_ways { rate(mine) + rate(theirs) } else { rate(mine) };
    let operations = mine.operations + if both_ways { theirs.operations } else { 0 };
    // With both ways an operation of either end costs both: each end's CPU is shared by the sum.
    let share = if both_ways { 0.5 } else { 1.0 };
    Sample {
        operations,
        seconds: mine.seconds,
        per_second,
        octets_per_second: per_second * case.size as f64,
        times: mine.times.or(theirs.times),
        cpu_client: per(mine, mine.cpu_over) * share,
        cpu_server: per(theirs, theirs.cpu_over) * share,
        foreign_cpu,
        memory_client: mine.memory_per_connection,
        memory_server: theirs.memory_per_connection,
        connect_seconds: mine.connect_seconds,
        connections: mine.connections,
    }
}

/// Runs all cases `rounds` times, interleaved. The outer list is that of the cases.
pub(crate) fn rounds(
    remote: &mut Remote,
    cases: &[Case],
    rounds: usize,
    pace: Pace,
) -> Result<Vec<Vec<Sample>>> {
    let mut samples: Vec<Vec<Sample>> = cases.iter().map(|_| Vec::new()).collect();
    let bar = progress((cases.len() * rounds) as u64);
    for round in 1..=rounds {
        for (case, samples) in cases.iter().zip(&mut samples) {
            bar.set_message(format!("round {round}: {case}"));
            let sample = one(remote, case, pace);
            samples.push(sample.with_context(|| format!("round {round}, {case}"))?);
            bar.inc(1);
        }
    }
    bar.finish_and_clear();
    Ok(samples)
}

fn progress(steps: u64) -> ProgressBar {
    if !io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    // Drawn by this thread between cases only: a ticking thread would disturb them.
    let bar = ProgressBar::with_draw_target(Some(steps), ProgressDrawTarget::stderr());
    if let Ok(style) = ProgressStyle::with_template("{bar:30} {pos}/{len} {eta} left  {msg}") {
        bar.set_style(style);
    }
    bar
}
