//! The control connection: the client sends jobs as lines of JSON, the server tells what came of them.
//!
//! ```text
//! client                                server
//!   Job { id, case, pace, pin }   ──►     listens for the data connections of the case
//!                                 ◄──   Ready { id, port }
//!   connects, measures
//!   Stop { id }                   ──►     ends
//!                                 ◄──   Done { id, report }, or Failed { id, what } at any time after Job
//! ```
//!
//! Nothing waits for ever: each end gives up some seconds after the case should have been over, and the end of the
//! control connection ends whatever the server does for it.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail};
use serde::{Deserialize, Serialize, de::DeserializeOwned};

use crate::case::{Case, Pace};
use crate::guard::cpu;
use crate::stats::EndReport;

/// Both ends have to be of one version: cases are told as this version knows them.
const VERSION: &str = concat!("iwarp-bench ", env!("CARGO_PKG_VERSION"), " protocol 2");
/// A longer line is no message of ours.
const LINE_MAX: u64 = 1 << 16;
const HELLO_LIMIT: Duration = Duration::from_secs(10);

#[derive(Debug, Serialize, Deserialize)]
enum Request {
    Hello { version: String, pin: Option<usize> },
    Job { id: u64, case: Case, pace: Pace },
    Stop { id: u64 },
}

#[derive(Debug, Serialize, Deserialize)]
enum Reply {
    Hello { version: String, notes: Vec<String> },
    Ready { id: u64, port: u16 },
    Done { id: u64, report: EndReport },
    Failed { id: u64, what: String },
}

/// The listening end of a case, before its peer connects.
pub(crate) trait Offer {
    /// Where the data connections are to go.
    fn port(&self) -> u16;
    /// Plays its part until it is told to stop.
    fn run(self: Box<Self>, stop: &Stop) -> Result<EndReport>;
}

/// Tells a loop of the server, or of the client, when to end.
#[derive(Clone, Debug)]
pub(crate) struct Stop {
    latest: Arc<AtomicU64>,
    id: u64,
    deadline: Instant,
}

impl Stop {
    /// For the client, who is not told by anybody.
    pub(crate) fn after(limit: Duration) -> Self {
        Self { latest: Arc::default(), id: u64::MAX, deadline: Instant::now() + limit }
    }

    /// Whether the other end is done. Costs a load.
    pub(crate) fn now(&self) -> bool {
        self.latest.load(Ordering::Relaxed) >= self.id
    }

    /// Fails when the case should have been over for long. Looks at the clock.
    pub(crate) fn check(&self) -> Result<()> {
        if Instant::now() > self.deadline {
            bail!("nothing came from the other end for many seconds");
        }
        Ok(())
    }

    /// What is left until [`check`](Self::check) fails.
    pub(crate) fn left(&self) -> Duration {
        self.deadline.saturating_duration_since(Instant::now())
    }
}

/// The server, as the client sees it.
pub(crate) struct Remote {
    stream: BufReader<TcpStream>,
    peer: SocketAddr,
    next: u64,
    /// What the server could not set up.
    pub(crate) notes: Vec<String>,
}

/// A case that the server has begun.
pub(crate) struct Begun {
    id: u64,
    limit: Duration,
    pub(crate) addr: SocketAddr,
}

impl Remote {
    pub(crate) fn connect(addr: SocketAddr, pin: Option<usize>) -> Result<Self> {
        let stream = TcpStream::connect_timeout(&addr, HELLO_LIMIT)
            .with_context(|| format!("cannot connect to the server at {addr}"))?;
        stream.set_nodelay(true)?;
        let peer = stream.peer_addr()?;
        let mut remote = Self { stream: BufReader::new(stream), peer, next: 1, notes: Vec::new() };
        remote.say(&Request::Hello { version: VERSION.into(), pin })?;
        match remote.hear(HELLO_LIMIT)? {
            Reply::Hello { version, notes } if version == VERSION => remote.notes = notes,
            Reply::Hello { version, .. } => bail!("the server is {version}, this is {VERSION}"),
            other => bail!("the server greeted with {other:?}"),
        }
        Ok(remote)
    }

    /// Whether both ends run on one machine, as far as addresses tell.
    pub(crate) fn is_local(&self) -> bool {
        self.peer.ip().is_loopback()
            || self.stream.get_ref().local_addr().is_ok_and(|here| here.ip() == self.peer.ip())
    }

    pub(crate) fn begin(&mut self, case: &Case, pace: Pace) -> Result<Begun> {
        let id = self.next;
        self.next += 1;
        self.say(&Request::Job { id, case: case.clone(), pace })?;
        match self.hear(HELLO_LIMIT)? {
            Reply::Ready { id: same, port } if same == id => {
                Ok(Begun { id, limit: pace.limit(), addr: SocketAddr::new(self.peer.ip(), port) })
            }
            Reply::Failed { what, .. } => Err(anyhow!("server: {what}")),
            other => bail!("the server answered a job with {other:?}"),
        }
    }

    /// Ends a case, and fetches what the server saw.
    pub(crate) fn end(&mut self, begun: &Begun) -> Result<EndReport> {
        self.say(&Request::Stop { id: begun.id })?;
        match self.hear(begun.limit)? {
            Reply::Done { id, report } if id == begun.id => Ok(report),
            Reply::Failed { what, .. } => Err(anyhow!("server: {what}")),
            other => bail!("the server ended a job with {other:?}"),
        }
    }

    fn say(&mut self, request: &Request) -> Result<()> {
        write_line(self.stream.get_ref(), request).context("the control connection is lost")
    }

    fn hear(&mut self, limit: Duration) -> Result<Reply> {
        self.stream.get_ref().set_read_timeout(Some(limit))?;
        read_line(&mut self.stream)
            .context("the control connection is lost")?
            .ok_or_else(|| anyhow!("the server has gone"))
    }
}

fn write_line(mut to: &TcpStream, message: &impl Serialize) -> Result<()> {
    let mut line = serde_json::to_vec(message)?;
    line.push(b'\n');
    Ok(to.write_all(&line)?)
}

/// `None` at the end of the stream.
fn read_line<T: DeserializeOwned>(from: &mut BufReader<TcpStream>) -> Result<Option<T>> {
    let mut line = Vec::new();
    let read = from.by_ref().take(LINE_MAX).read_until(b'\n', &mut line)?;
    if read == 0 {
        return Ok(None);
    }
    if line.last() != Some(&b'\n') {
        bail!("a message without an end");
    }
    serde_json::from_slice(&line).map(Some).context("a message that is not one of ours")
}

/// Serves one client until it is gone.
///
/// `prepare` is given the processor that the client wants this end pinned to, and tells what could not be done.
/// `offer` makes the listening end of a case, at the address that the client came to.
pub(crate) fn serve(
    stream: &TcpStream,
    prepare: impl FnOnce(Option<usize>) -> Vec<String>,
    offer: impl Fn(&Case, Pace, IpAddr) -> Result<Box<dyn Offer>>,
) -> Result<()> {
    stream.set_nodelay(true)?;
    let ip = stream.local_addr()?.ip();
    let mut reader = BufReader::new(stream.try_clone()?);
    stream.set_read_timeout(Some(HELLO_LIMIT))?;
    match read_line(&mut reader)? {
        Some(Request::Hello { version, pin }) => {
            let notes = if version == VERSION { prepare(pin) } else { Vec::new() };
            write_line(stream, &Reply::Hello { version: VERSION.into(), notes })?;
        }
        other => bail!("a client that began with {other:?}"),
    }
    stream.set_read_timeout(None)?;

    let latest = Arc::new(AtomicU64::new(0));
    let (send, jobs) = mpsc::channel();
    let listening = thread::spawn({
        let latest = Arc::clone(&latest);
        move || listen(&mut reader, &latest, &send)
    });
    for (id, case, pace) in jobs {
        if let Err(error) = case.check().and_then(|()| pace.check()) {
            write_line(stream, &Reply::Failed { id, what: format!("{error:#}") })?;
            continue;
        }
        let stop =
            Stop { latest: Arc::clone(&latest), id, deadline: Instant::now() + pace.limit() };
        let meter = cpu::Meter::start();
        let done = offer(&case, pace, ip)
            .and_then(|offer| {
                write_line(stream, &Reply::Ready { id, port: offer.port() })?;
                offer.run(&stop)
            })
            .with_context(|| case.to_string());
        let reply = match done {
            Ok(report) => {
                let cpu_of_all = meter.seconds();
                Reply::Done { id, report: EndReport { cpu_of_all, ..report } }
            }
            Err(error) => Reply::Failed { id, what: format!("{error:#}") },
        };
        write_line(stream, &reply)?;
    }
    listening.join().map_err(|_| anyhow!("the thread that listens to the client panicked"))?
}

fn listen(
    reader: &mut BufReader<TcpStream>,
    latest: &AtomicU64,
    jobs: &mpsc::Sender<(u64, Case, Pace)>,
) -> Result<()> {
    let result = loop {
        match read_line(reader) {
            Ok(None) => break Ok(()),
            Ok(Some(Request::Job { id, case, pace })) => {
                if jobs.send((id, case, pace)).is_err() {
                    break Ok(());
                }
            }
            Ok(Some(Request::Stop { id })) => {
                latest.fetch_max(id, Ordering::Relaxed);
            }
            Ok(Some(Request::Hello { .. })) => break Err(anyhow!("a second greeting")),
            Err(error) => break Err(error),
        }
    };
    // Whatever runs has lost its reason.
    latest.store(u64::MAX, Ordering::Relaxed);
    result
}
