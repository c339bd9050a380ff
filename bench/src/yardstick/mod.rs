//! The same work over plain TCP: as little as a program can do about it, so that the ratio to it is what iWARP costs.

mod awaiting;
mod frame;
mod ping_pong;
mod stream;
mod target;

pub(crate) use self::awaiting::runtime;

use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use crate::case::{Case, Pace, Wait, Work};
use crate::control::{Offer, Stop};
use crate::stats::EndReport;

/// The server's end of a case.
pub(crate) struct Listening {
    listener: TcpListener,
    case: Case,
    pace: Pace,
}

pub(crate) fn offer(case: &Case, pace: Pace, ip: IpAddr) -> Result<Box<dyn Offer>> {
    let listener = TcpListener::bind((ip, 0)).context("cannot listen")?;
    Ok(Box::new(Listening { listener, case: case.clone(), pace }))
}

impl Offer for Listening {
    fn port(&self) -> u16 {
        self.listener.local_addr().map_or(0, |addr| addr.port())
    }

    fn run(self: Box<Self>, stop: &Stop) -> Result<EndReport> {
        let stream = accept(&self.listener, stop)?;
        let case = &self.case;
        match (case.work, case.wait) {
            (Work::PingPong { .. }, Wait::Await) => awaiting::serve(stream, case, stop),
            (Work::PingPong { .. }, _) => ping_pong::serve(&stream, case),
            (Work::Stream(s), _) if s.both_ways => stream::both(&stream, case, s, self.pace, stop),
            (Work::Stream(s), _) if s.summed => frame::serve(&stream, case, s),
            (Work::Stream(_), _) => stream::serve(&stream, case),
            (Work::Target { .. }, _) => target::serve(stream, stop),
            _ => bail!("plain TCP has no such case"),
        }
    }
}

/// The client's end.
pub(crate) fn drive(case: &Case, pace: Pace, addr: SocketAddr) -> Result<EndReport> {
    let stream = TcpStream::connect_timeout(&addr, Duration::from_secs(10))
        .with_context(|| format!("cannot connect to {addr}"))?;
    set_up(&stream, case)?;
    let stop = Stop::after(pace.limit());
    match (case.work, case.wait) {
        (Work::PingPong { .. }, Wait::Await) => awaiting::drive(stream, case, pace),
        (Work::PingPong { .. }, _) => ping_pong::drive(&stream, case, pace),
        (Work::Stream(s), _) if s.both_ways => stream::both(&stream, case, s, pace, &stop),
        (Work::Stream(s), _) if s.summed => frame::drive(&stream, case, s, pace),
        (Work::Stream(s), _) => stream::drive(&stream, case, s, pace),
        (Work::Target { sleeps }, _) => target::drive(&stream, pace, sleeps),
        _ => bail!("plain TCP has no such case"),
    }
}

fn accept(listener: &TcpListener, stop: &Stop) -> Result<TcpStream> {
    listener.set_nonblocking(true)?;
    let deadline = Instant::now() + Duration::from_secs(10);
    loop {
        match listener.accept() {
            Ok((stream, _)) => {
                stream.set_nonblocking(false)?;
                return Ok(stream);
            }
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {
                if stop.now() || Instant::now() > deadline {
                    bail!("the client did not connect");
                }
                std::thread::sleep(Duration::from_micros(200));
            }
            Err(error) => return Err(error).context("cannot accept"),
        }
    }
}

fn set_up(stream: &TcpStream, case: &Case) -> Result<()> {
    stream.set_nodelay(true)?;
    let spins = case.wait == Wait::Poll && !matches!(case.work, Work::Target { .. });
    stream.set_nonblocking(spins)?;
    // Only a blocked call ever looks at it.
    stream.set_read_timeout(Some(Duration::from_secs(20)))?;
    stream.set_write_timeout(Some(Duration::from_secs(20)))?;
    Ok(())
}
