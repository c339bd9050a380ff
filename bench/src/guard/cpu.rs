//! Where this process runs, what it uses, and what others use meanwhile.

use std::{fs, io, time::Duration};

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use rustix::time::{ClockId, clock_gettime};

/// CPU time of all threads of this process.
pub(crate) fn used() -> Duration {
    let now = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(u64::try_from(now.tv_sec).unwrap_or(0), u32::try_from(now.tv_nsec).unwrap_or(0))
}

/// Nanoseconds on a clock that all processes of a machine share.
pub(crate) fn shared_nanos() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    u64::try_from(now.tv_sec).unwrap_or(0) * 1_000_000_000 + u64::try_from(now.tv_nsec).unwrap_or(0)
}

/// Pins this thread, and those that it starts from now on, to one processor.
pub(crate) fn pin(processor: usize) -> io::Result<()> {
    if processor >= CpuSet::MAX_CPU {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "no such processor"));
    }
    let mut set = CpuSet::new();
    set.set(processor);
    Ok(sched_setaffinity(None, &set)?)
}

/// Lets this thread, and those that it starts, run on every processor, until the guard is dropped.
pub(crate) fn unpinned() -> io::Result<Pinned> {
    let before = sched_getaffinity(None)?;
    let mut all = CpuSet::new();
    for processor in 0..processors().min(CpuSet::MAX_CPU) {
        all.set(processor);
    }
    sched_setaffinity(None, &all)?;
    Ok(Pinned(before))
}

/// Goes back to where the thread was pinned.
pub(crate) struct Pinned(CpuSet);

impl Drop for Pinned {
    fn drop(&mut self) {
        // It was there before, so it may be there again.
        let _ = sched_setaffinity(None, &self.0);
    }
}

/// Processors of the machine, whatever this process may use.
pub(crate) fn processors() -> usize {
    let stat = fs::read_to_string("/proc/stat").unwrap_or_default();
    let lines = stat.lines().filter(|l| l.starts_with("cpu") && !l.starts_with("cpu "));
    lines.count().max(1)
}

/// Processors that this thread may use.
pub(crate) fn allowed() -> Vec<usize> {
    sched_getaffinity(None).map_or_else(
        |_| Vec::new(),
        |set| (0..CpuSet::MAX_CPU).filter(|&processor| set.is_set(processor)).collect(),
    )
}

/// Seconds that all processors together were busy since boot, in steps of a tick of the kernel.
pub(crate) fn machine_busy() -> Option<f64> {
    let stat = fs::read_to_string("/proc/stat").ok()?;
    busy_ticks(stat.lines().next()?).map(|ticks| ticks as f64 / TICKS_PER_SECOND)
}

/// `USER_HZ`, which is 100 on every architecture that Rust's std runs on.
const TICKS_PER_SECOND: f64 = 100.0;

fn busy_ticks(line: &str) -> Option<u64> {
    let fields: Vec<u64> =
        line.strip_prefix("cpu ")?.split_whitespace().map_while(|f| f.parse().ok()).collect();
    // user nice system (idle iowait) irq softirq; steal was another machine's, guest is within user.
    let part = |at: usize| fields.get(at).copied();
    Some(part(0)? + part(1)? + part(2)? + part(5)? + part(6)? + part(7).unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn busy_time_leaves_out_idle_time() {
        assert_eq!(busy_ticks("cpu  1 2 3 1000 500 4 5 6 0 0"), Some(21));
        assert_eq!(busy_ticks("cpu0 1 2 3 4 5 6 7"), None);
        assert_eq!(busy_ticks("cpu  1 2"), None);
    }

    #[test]
    fn this_process_uses_time() {
        let before = used();
        let mut x = 1_u64;
        for i in 0..1_000_000_u64 {
            x = std::hint::black_box(x.wrapping_mul(i | 1));
        }
        assert!(used() > before);
        assert!(processors() >= allowed().len().min(1));
    }
}
