//! As many messages as go: singly or in lists, over one connection or several, from one end or from both.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use iwarp_verbs::{SendRequest, WcOpcode, WorkCompletion};

use super::setup::{End, Session};
use crate::case::{Case, Op, Pace, Stream};
use crate::control::Stop;
use crate::guard::cpu;
use crate::stats::EndReport;

/// Completions between two looks at the clock.
const CLOCK_EVERY: u64 = 32;
/// Empty turns between two looks at the clock.
const TURNS: u32 = 64;
/// Receives that are posted again with one call.
const RECEIVES: usize = 16;

/// One end of a stream.
struct Pump<'a> {
    session: &'a Session,
    case: &'a Case,
    s: Stream,
    stop: &'a Stop,
    lines: Vec<Line>,
    inline: Option<Vec<u8>>,
    /// Messages sent and complete, over all connections.
    completed: u64,
    /// Messages received.
    received: u64,
    /// Receives used up and not posted again yet, of each connection.
    used: Vec<usize>,
    /// Which connection is served next.
    turn: usize,
    signal_every: u64,
    /// The other end, which sends as well, has sent all that it will.
    peer_has_ended: bool,
}

/// What one connection has in flight.
#[derive(Clone, Copy, Default)]
struct Line {
    posted: u64,
    completed: u64,
}

impl<'a> Pump<'a> {
    fn new(session: &'a Session, case: &'a Case, s: Stream, stop: &'a Stop) -> Self {
        let inline = !s.op.is_answered() && case.size <= case.wire.inline;
        Self {
            session,
            case,
            s,
            stop,
            lines: vec![Line::default(); session.ends.len()],
            inline: inline.then(|| vec![7; case.size]),
            completed: 0,
            received: 0,
            used: vec![0; session.ends.len()],
            turn: 0,
            signal_every: (s.depth as u64 / 4).max(1),
            peer_has_ended: false,
        }
    }

    /// Posts one list, or one request, wherever there is room. Tells whether there was.
    fn post(&mut self) -> Result<bool> {
        let (list, depth) = (self.s.list as u64, self.s.depth as u64);
        for _ in 0..self.lines.len() {
            let at = self.turn;
            self.turn = if at + 1 == self.lines.len() { 0 } else { at + 1 };
            let Line { posted, completed } = self.lines[at];
            if posted - completed + list > depth {
                continue;
            }
            let end = &self.session.ends[at];
            if list == 1 {
                let request = self.request(end, posted + 1)?;
                let signaled = (posted + 1).is_multiple_of(self.signal_every);
                end.qp.post_send(if signaled { request } else { request.unsignaled() })?;
            } else {
                let mut requests = Vec::with_capacity(self.s.list);
                for number in posted + 1..=posted + list {
                    let request = self.request(end, number)?;
                    let ends = number == posted + list;
                    requests.push(if ends { request } else { request.unsignaled() });
                }
                end.qp.post_send_list(requests)?;
            }
            self.lines[at].posted = posted + list;
            return Ok(true);
        }
        Ok(false)
    }

    fn request(&self, end: &End, number: u64) -> Result<SendRequest> {
        let size = self.case.size;
        let at = number as usize % self.s.footprint * size;
        if let Some(octets) = &self.inline {
            return Ok(match self.s.op {
                Op::Send => SendRequest::send_inline(number, octets),
                Op::WriteImm => {
                    let remote = self.remote(end, at)?;
                    SendRequest::write_inline_with_imm(number, octets, remote, number as u32)
                }
                _ => SendRequest::write_inline(number, octets, self.remote(end, at)?),
            });
        }
        let here = self.session.source.slice(at..at + size)?;
        Ok(match self.s.op {
            Op::Send => SendRequest::send(number, here),
            Op::Write => SendRequest::write(number, here, self.remote(end, at)?),
            Op::WriteImm => {
                SendRequest::write_with_imm(number, here, self.remote(end, at)?, number as u32)
            }
            Op::Read => SendRequest::read(number, here, self.remote(end, at)?),
            Op::Atomic => SendRequest::fetch_add(number, here, self.remote(end, at)?, 1),
        })
    }

    fn remote(&self, end: &End, at: usize) -> Result<iwarp_verbs::RemoteMemory> {
        Ok(end.remote.slice(at as u64..(at + self.case.size) as u64)?)
    }

    /// Takes one completion, if there is one.
    fn reap(&mut self) -> Result<bool> {
        let Some(wc) = self.session.next(self.case.wait)? else { return Ok(false) };
        self.account(&wc)?;
        Ok(true)
    }

    /// Takes one completion without sleeping.
    fn reap_now(&mut self) -> Result<bool> {
        let Some(wc) = self.session.poll()? else { return Ok(false) };
        self.account(&wc)?;
        Ok(true)
    }

    fn account(&mut self, wc: &WorkCompletion) -> Result<()> {
        let at = self.index(wc)?;
        if wc.opcode == WcOpcode::Recv && wc.byte_len == 0 {
            self.peer_has_ended = true;
            return Ok(());
        }
        if wc.opcode.is_receive() {
            self.received += 1;
            self.used[at] += 1;
            if self.used[at] == RECEIVES {
                self.used[at] = 0;
                let receive = self.session.receive(self.case)?;
                let receives = std::iter::repeat_n(receive, RECEIVES);
                self.session.ends[at].qp.post_recv_list(receives)?;
            }
            return Ok(());
        }
        // Requests complete in order, so all before it are complete as well.
        let line = &mut self.lines[at];
        self.completed += wc.wr_id - line.completed;
        line.completed = wc.wr_id;
        Ok(())
    }

    fn index(&self, wc: &WorkCompletion) -> Result<usize> {
        if self.lines.len() == 1 {
            return Ok(0);
        }
        let first = self.session.ends[0].qp.number();
        // Numbers are most often given in a row.
        let guess = wc.qp_num.wrapping_sub(first) as usize;
        if self.session.ends.get(guess).is_some_and(|end| end.qp.number() == wc.qp_num) {
            return Ok(guess);
        }
        let found = self.session.ends.iter().position(|end| end.qp.number() == wc.qp_num);
        found.context("a completion of an unknown queue pair")
    }

    /// Sends for so long.
    fn run(&mut self, time: Duration) -> Result<(u64, Duration, f64)> {
        let meter = cpu::Meter::start();
        let begun = Instant::now();
        let completed = self.completed;
        let (mut turns, mut next_look) = (0, self.completed + CLOCK_EVERY);
        loop {
            let posted = self.post()?;
            let mut reaped = if posted { false } else { self.reap()? };
            // What is there is taken at once, as a program would with an array of completions.
            while reaped && self.reap_more()? {}
            if reaped || posted {
                reaped = self.completed >= next_look;
            }
            turns += 1;
            if reaped || turns >= TURNS {
                turns = 0;
                next_look = self.completed + CLOCK_EVERY;
                let elapsed = begun.elapsed();
                // However short it was to be, something is to be counted.
                if elapsed >= time && self.completed > completed {
                    return Ok((self.completed - completed, elapsed, meter.seconds()));
                }
                self.stop.check()?;
            }
        }
    }

    fn reap_more(&mut self) -> Result<bool> {
        if self.session.cq.is_empty() {
            return Ok(false);
        }
        self.reap_now()
    }

    /// Returns when everything is complete here, and is placed at the peer.
    ///
    /// Not so where messages that take receives go both ways: they end with the last words of both ends. While a
    /// Read is outstanding, a message that finds no receive would end the connection, as the answer could be behind
    /// it.
    fn flush(&mut self) -> Result<()> {
        if self.s.both_ways && self.s.op.takes_receive() {
            return Ok(());
        }
        for (at, end) in self.session.ends.iter().enumerate() {
            let number = self.lines[at].posted + 1;
            let request = if self.s.op == Op::Read {
                self.request(end, number)?
            } else {
                // A Read is answered after all that was sent before it is placed.
                let len = self.case.size.min(8);
                let into = self.session.source.slice(..len)?;
                SendRequest::read(number, into, end.remote.slice(..len as u64)?)
            };
            end.qp.post_send(request)?;
            self.lines[at].posted = number;
        }
        while self.lines.iter().any(|line| line.completed < line.posted) {
            if !self.reap()? {
                self.stop.check()?;
            }
        }
        // Those of the flush are no messages.
        self.completed -= self.lines.len() as u64;
        Ok(())
    }

    /// Tells the other end that this one sends no more, and serves it until it says so too.
    fn part(&mut self) -> Result<()> {
        let Some(end) = self.session.ends.first() else { bail!("no connection") };
        self.lines[0].posted += 1;
        end.qp.post_send(SendRequest::send(self.lines[0].posted, ()))?;
        while !self.peer_has_ended || self.lines[0].completed < self.lines[0].posted {
            if !self.reap()? {
                self.stop.check()?;
            }
        }
        self.completed -= 1;
        Ok(())
    }

    fn measure(&mut self, pace: Pace) -> Result<EndReport> {
        self.run(pace.warm_up())?;
        let (operations, elapsed, cpu) = self.run(pace.seconds())?;
        self.flush()?;
        if self.s.both_ways {
            self.part()?;
        }
        Ok(EndReport {
            cpu_seconds: cpu,
            cpu_over: operations,
            operations,
            seconds: elapsed.as_secs_f64(),
            total: self.completed,
            ..EndReport::default()
        })
    }
}

pub(super) fn drive(
    session: &Session,
    case: &Case,
    s: Stream,
    pace: Pace,
    stop: &Stop,
) -> Result<EndReport> {
    if s.list > s.depth {
        bail!("a list of {} does not fit into a depth of {}", s.list, s.depth);
    }
    if s.op == Op::Atomic
        && let Some(ord) = session.ends.iter().map(|end| end.conn.ord()).min()
        && (ord as usize) < s.depth
    {
        bail!("{} Atomics do not fit into the {ord} that were granted (ORD)", s.depth);
    }
    Pump::new(session, case, s, stop).measure(pace)
}

pub(super) fn serve(
    session: &Session,
    case: &Case,
    s: Stream,
    pace: Pace,
    stop: &Stop,
) -> Result<EndReport> {
    let meter = cpu::Meter::start();
    let mut pump = Pump::new(session, case, s, stop);
    let mut report = EndReport::default();
    if s.both_ways {
        report = pump.measure(pace)?;
    }
    let mut turns = 0_u32;
    while !stop.now() {
        pump.reap()?;
        turns = turns.wrapping_add(1);
        if turns.is_multiple_of(1 << 16) {
            stop.check()?;
        }
    }
    // The peer ends when all is placed here, which may not all have been polled.
    while pump.reap_now()? {}
    if !s.both_ways {
        // Of Writes and Reads this end knows nothing: it is the client that counts.
        let total = if s.op == Op::Atomic { session.atomics()? } else { pump.received };
        report.cpu_seconds = meter.seconds();
        report.cpu_over = total;
        report.total = total;
    }
    Ok(report)
}
