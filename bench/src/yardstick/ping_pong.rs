//! One message at a time, there and back.

use std::io::{self, ErrorKind, Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use crate::case::{Case, Pace};
use crate::guard::cpu;
use crate::stats::{EndReport, Recorder};

/// Empty turns between two looks at the clock, for a peer that is gone.
const PATIENCE: u32 = 1 << 24;

pub(super) fn drive(stream: &TcpStream, case: &Case, pace: Pace) -> Result<EndReport> {
    let out = vec![7; case.size];
    let mut into = vec![0; case.size];
    let mut times = Recorder::new();
    let mut total = 0;
    let mut turn = || -> Result<()> {
        send(stream, &out)?;
        if !receive(stream, &mut into)? {
            bail!("the server closed the connection");
        }
        total += 1;
        Ok(())
    };
    let begun = Instant::now();
    while begun.elapsed() < pace.warm_up() {
        turn()?;
    }
    let before = cpu::used();
    let begun = Instant::now();
    let mut last = Duration::ZERO;
    while last < pace.seconds() {
        turn()?;
        let now = begun.elapsed();
        times.record(now - last);
        last = now;
    }
    let cpu_seconds = (cpu::used() - before).as_secs_f64();
    stream.shutdown(std::net::Shutdown::Both)?;
    let times = times.times();
    Ok(EndReport {
        cpu_seconds,
        cpu_over: times.count,
        operations: times.count,
        seconds: last.as_secs_f64(),
        total,
        times: Some(times),
        ..EndReport::default()
    })
}

pub(super) fn serve(stream: &TcpStream, case: &Case) -> Result<EndReport> {
    super::set_up(stream, case)?;
    let mut into = vec![0; case.size];
    let before = cpu::used();
    let mut total = 0;
    while receive(stream, &mut into)? {
        total += 1;
        send(stream, &into)?;
    }
    let cpu_seconds = (cpu::used() - before).as_secs_f64();
    Ok(EndReport { cpu_seconds, cpu_over: total, total, ..EndReport::default() })
}

/// Writes all of it, spinning if the socket does not block.
pub(super) fn send(mut stream: &TcpStream, mut octets: &[u8]) -> Result<()> {
    let mut empty = 0;
    while !octets.is_empty() {
        match stream.write(octets) {
            Ok(n) => octets = &octets[n..],
            Err(error) => turned_away(error, &mut empty).context("plain TCP: write")?,
        }
    }
    Ok(())
}

/// Fills the buffer. False at the end of the stream.
pub(super) fn receive(mut stream: &TcpStream, into: &mut [u8]) -> Result<bool> {
    let mut got = 0;
    let mut empty = 0;
    while got < into.len() {
        match stream.read(&mut into[got..]) {
            Ok(0) => return Ok(false),
            Ok(n) => got += n,
            Err(error) if error.kind() == ErrorKind::ConnectionReset && got == 0 => {
                return Ok(false);
            }
            Err(error) => turned_away(error, &mut empty).context("plain TCP: read")?,
        }
    }
    Ok(true)
}

/// Decides what an error of a socket that may not block means: try again, or give up.
pub(super) fn turned_away(error: io::Error, empty: &mut u32) -> io::Result<()> {
    match error.kind() {
        ErrorKind::WouldBlock if *empty < PATIENCE => {
            *empty += 1;
            std::hint::spin_loop();
            Ok(())
        }
        ErrorKind::WouldBlock => {
            Err(io::Error::new(ErrorKind::TimedOut, "nothing came for many seconds"))
        }
        ErrorKind::Interrupted => Ok(()),
        _ => Err(error),
    }
}
