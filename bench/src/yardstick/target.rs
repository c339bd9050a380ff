//! A target that spins on memory into which another thread, blocked in `read`, puts what comes.
//!
//! What a program without one-sided operations has to do for the same effect.

use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use anyhow::{Result, anyhow};

use super::ping_pong::{receive, send};
use crate::case::Pace;
use crate::control::Stop;
use crate::guard::cpu;
use crate::paced::{self, SLOTS};
use crate::stats::{EndReport, Recorder};

pub(super) fn drive(stream: &TcpStream, pace: Pace, sleeps: bool) -> Result<EndReport> {
    let send = |_, stamp: u64| send(stream, &stamp.to_le_bytes());
    let report = paced::stamps(pace, sleeps, send, || Ok(()))?;
    stream.shutdown(std::net::Shutdown::Write)?;
    Ok(report)
}

pub(super) fn serve(stream: TcpStream, stop: &Stop) -> Result<EndReport> {
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(Duration::from_secs(20)))?;
    let memory: Arc<Vec<AtomicU64>> = Arc::new((0..SLOTS).map(|_| AtomicU64::new(0)).collect());
    let reader = {
        let _free = cpu::unpinned()?;
        let memory = Arc::clone(&memory);
        thread::spawn(move || -> Result<()> {
            let mut octets = [0; 8];
            for slot in memory.iter().cycle() {
                if !receive(&stream, &mut octets)? {
                    break;
                }
                slot.store(u64::from_le_bytes(octets), Ordering::Release);
            }
            Ok(())
        })
    };
    let meter = cpu::Meter::start();
    let mut times = Recorder::new();
    let total = paced::look(stop, &mut times, |slot| Ok(memory[slot].load(Ordering::Acquire)))?;
    let cpu_seconds = meter.seconds();
    reader.join().map_err(|_| anyhow!("the reading thread panicked"))??;
    let times = Some(times.times());
    Ok(EndReport { cpu_seconds, cpu_over: total, total, times, ..EndReport::default() })
}
