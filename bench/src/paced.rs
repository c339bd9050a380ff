//! Time stamps that go one way: for a target that makes no call, and so cannot answer.
//!
//! They are of a clock that both processes share, so both ends have to be on one machine.

use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};

use crate::case::Pace;
use crate::control::Stop;
use crate::guard::cpu;
use crate::stats::{EndReport, Recorder};

/// Places for time stamps, taken in turn: more than can be under way.
pub(crate) const SLOTS: usize = 1 << 16;
/// Gaps between messages, in microseconds: from a busy stream to one that lets everybody fall asleep.
const GAPS: [u64; 8] = [5, 20, 50, 10, 200, 5, 1000, 100];
/// Gaps from here on are slept through, if the client sleeps at all.
const SLEEP: Duration = Duration::from_micros(20);
/// After the last one: until the target has surely seen it, or never will.
const SETTLE: Duration = Duration::from_millis(50);

/// Sends stamps with `send`, which is told their number and value, and calls `idle` in between, or sleeps.
pub(crate) fn stamps(
    pace: Pace,
    sleeps: bool,
    mut send: impl FnMut(u64, u64) -> Result<()>,
    mut idle: impl FnMut() -> Result<()>,
) -> Result<EndReport> {
    let meter = cpu::Meter::start();
    let begun = Instant::now();
    let mut total = 0_u64;
    while begun.elapsed() < pace.warm_up() + pace.seconds() {
        send(total, cpu::shared_nanos())?;
        let gap = Duration::from_micros(GAPS[(total / 16 % GAPS.len() as u64) as usize]);
        total += 1;
        let since = Instant::now();
        // The shortest gaps are no sleep: a burst.
        if sleeps && gap >= SLEEP {
            thread::sleep(gap);
            idle()?;
        }
        while since.elapsed() < gap {
            idle()?;
        }
    }
    let seconds = begun.elapsed().as_secs_f64();
    let cpu_seconds = meter.seconds();
    let since = Instant::now();
    while since.elapsed() < SETTLE {
        idle()?;
    }
    Ok(EndReport {
        cpu_seconds,
        cpu_over: total,
        operations: total,
        seconds,
        total,
        ..EndReport::default()
    })
}

/// Looks at slot after slot until a stamp is there, and records how old each is. Returns their number.
pub(crate) fn look(
    stop: &Stop,
    times: &mut Recorder,
    mut load: impl FnMut(usize) -> Result<u64>,
) -> Result<u64> {
    let (mut seen, mut last, mut turns) = (0_u64, 0, 0_u32);
    loop {
        // The slots are used again and again: what is new is younger than what was seen last.
        let stamp = load((seen % SLOTS as u64) as usize)?;
        if stamp > last {
            times.record_nanos(cpu::shared_nanos().saturating_sub(stamp));
            last = stamp;
            seen += 1;
            continue;
        }
        if stop.now() {
            return Ok(seen);
        }
        std::hint::spin_loop();
        turns = turns.wrapping_add(1);
        if turns.is_multiple_of(1 << 20) && stop.left().is_zero() {
            bail!("the client did not end");
        }
    }
}
