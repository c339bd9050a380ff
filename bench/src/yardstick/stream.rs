//! Messages in one direction, or in both, as fast as they go.

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use super::ping_pong::{send, turned_away};
use crate::case::{Case, Pace, Stream};
use crate::control::Stop;
use crate::guard::cpu;
use crate::stats::EndReport;

/// What a receiver reads at once at most.
pub(super) const READ: usize = 256 << 10;

/// Messages between two looks at the clock.
pub(crate) fn stride(size: usize) -> u64 {
    ((256 << 10) / size).clamp(1, 64) as u64
}

/// Buffers that are taken in turn, every page of them touched.
pub(super) struct Ring {
    octets: Vec<u8>,
    size: usize,
    at: usize,
}

impl Ring {
    pub(super) fn new(size: usize, footprint: usize) -> Self {
        let octets = (0..size * footprint).map(|i| (i % 251) as u8).collect();
        Self { octets, size, at: 0 }
    }

    /// Place of the next message.
    pub(super) fn next(&mut self) -> usize {
        let at = self.at;
        self.at = if at + self.size >= self.octets.len() { 0 } else { at + self.size };
        at
    }

    pub(super) fn into_octets(self) -> Vec<u8> {
        self.octets
    }

    pub(super) fn message(&mut self) -> &[u8] {
        let at = self.next();
        &self.octets[at..at + self.size]
    }
}

pub(super) fn drive(stream: &TcpStream, case: &Case, s: Stream, pace: Pace) -> Result<EndReport> {
    let mut ring = Ring::new(case.size, s.footprint);
    let report = timed(stride(case.size), pace, || send(stream, ring.message()))?;
    finish(stream)?;
    Ok(report)
}

/// Calls `one` for each message: for the warm-up first, then for the measurement.
pub(super) fn timed(
    stride: u64,
    pace: Pace,
    mut one: impl FnMut() -> Result<()>,
) -> Result<EndReport> {
    let mut total = 0;
    let begun = Instant::now();
    while begun.elapsed() < pace.warm_up() {
        for _ in 0..stride {
            one()?;
        }
        total += stride;
    }
    let meter = cpu::Meter::start();
    let begun = Instant::now();
    let mut operations = 0;
    let mut elapsed = Duration::ZERO;
    while elapsed < pace.seconds() {
        for _ in 0..stride {
            one()?;
        }
        operations += stride;
        elapsed = begun.elapsed();
    }
    total += operations;
    Ok(EndReport {
        cpu_seconds: meter.seconds(),
        cpu_over: operations,
        operations,
        seconds: elapsed.as_secs_f64(),
        total,
        ..EndReport::default()
    })
}

/// Returns when the server has everything.
pub(super) fn finish(mut stream: &TcpStream) -> Result<()> {
    stream.shutdown(Shutdown::Write)?;
    stream.set_nonblocking(false)?;
    let mut answer = [0];
    stream.read_exact(&mut answer).context("plain TCP: the server did not confirm the end")
}

pub(super) fn serve(mut stream: &TcpStream, case: &Case) -> Result<EndReport> {
    super::set_up(stream, case)?;
    let mut into = vec![0; READ];
    let meter = cpu::Meter::start();
    let (mut octets, mut empty) = (0_u64, 0);
    loop {
        match stream.read(&mut into) {
            Ok(0) => break,
            Ok(n) => (octets, empty) = (octets + n as u64, 0),
            Err(error) => turned_away(error, &mut empty).context("plain TCP: read")?,
        }
    }
    let cpu_seconds = meter.seconds();
    stream.set_nonblocking(false)?;
    stream.write_all(&[1])?;
    let total = octets / case.size as u64;
    Ok(EndReport { cpu_seconds, cpu_over: total, total, ..EndReport::default() })
}

/// Both directions at once, by turns in one thread: what one end does. The same at both ends.
pub(super) fn both(
    mut stream: &TcpStream,
    case: &Case,
    s: Stream,
    pace: Pace,
    stop: &Stop,
) -> Result<EndReport> {
    stream.set_nodelay(true)?;
    stream.set_nonblocking(true)?;
    let mut ring = Ring::new(case.size, s.footprint);
    let mut into = vec![0; READ];
    let (mut sent, mut at, mut base) = (0_u64, 0, ring.next());
    let (mut sending, mut receiving) = (true, true);
    let mut window: Option<(Instant, cpu::Meter, u64)> = None;
    let mut report = EndReport::default();
    let begun = Instant::now();
    let mut turns = 0_u32;
    while sending || receiving {
        if sending {
            match stream.write(&ring.octets[base + at..base + case.size]) {
                Ok(n) => at += n,
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                Err(error) => return Err(error).context("plain TCP: write"),
            }
            if at == case.size {
                (at, sent, base) = (0, sent + 1, ring.next());
            }
        }
        if receiving {
            match stream.read(&mut into) {
                Ok(0) => receiving = false,
                Ok(_) => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                Err(error) => return Err(error).context("plain TCP: read"),
            }
        }
        turns = turns.wrapping_add(1);
        if !sending || !turns.is_multiple_of(8) {
            if turns.is_multiple_of(1 << 16) {
                stop.check()?;
            }
            continue;
        }
        match window {
            None if begun.elapsed() < pace.warm_up() => {}
            None => {
                window = Some((Instant::now(), cpu::Meter::start(), sent));
            }
            Some((since, meter, before))
                if since.elapsed() >= pace.seconds() && at == 0 && sent > before =>
            {
                report.operations = sent - before;
                report.cpu_over = report.operations;
                report.seconds = since.elapsed().as_secs_f64();
                report.cpu_seconds = meter.seconds();
                stream.shutdown(Shutdown::Write)?;
                sending = false;
            }
            Some(_) => {}
        }
    }
    report.total = sent;
    Ok(report)
}
