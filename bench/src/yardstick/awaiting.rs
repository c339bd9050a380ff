//! The ping-pong in tokio's current-thread runtime.

use std::net::TcpStream;
use std::time::Instant;

use anyhow::{Context, Result};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::runtime::{Builder, Runtime};

use crate::case::{Case, Pace};
use crate::control::Stop;
use crate::guard::cpu;
use crate::laps::Laps;
use crate::stats::EndReport;

pub(crate) fn runtime() -> Result<Runtime> {
    Builder::new_current_thread().enable_all().build().context("no tokio runtime")
}

fn adopt(stream: TcpStream) -> Result<tokio::net::TcpStream> {
    stream.set_nodelay(true)?;
    stream.set_nonblocking(true)?;
    Ok(tokio::net::TcpStream::from_std(stream)?)
}

pub(super) fn drive(stream: TcpStream, case: &Case, pace: Pace) -> Result<EndReport> {
    let work = async {
        let mut stream = adopt(stream)?;
        let mut octets = vec![7; case.size];
        let mut total = 0;
        let begun = Instant::now();
        while begun.elapsed() < pace.warm_up() {
            stream.write_all(&octets).await?;
            stream.read_exact(&mut octets).await?;
            total += 1;
        }
        let mut laps = Laps::start();
        while laps.within(pace.seconds()) {
            stream.write_all(&octets).await?;
            stream.read_exact(&mut octets).await?;
            total += 1;
            laps.lap();
        }
        anyhow::Ok(laps.report(total))
    };
    runtime()?.block_on(async { tokio::time::timeout(pace.limit(), work).await })?
}

pub(super) fn serve(stream: TcpStream, case: &Case, stop: &Stop) -> Result<EndReport> {
    let work = async {
        let mut stream = adopt(stream)?;
        let mut octets = vec![0; case.size];
        let meter = cpu::Meter::start();
        let mut total = 0;
        while stream.read_exact(&mut octets).await.is_ok() {
            total += 1;
            stream.write_all(&octets).await?;
        }
        let cpu_seconds = meter.seconds();
        anyhow::Ok(EndReport { cpu_seconds, cpu_over: total, total, ..EndReport::default() })
    };
    runtime()?.block_on(async { tokio::time::timeout(stop.left(), work).await })?
}
