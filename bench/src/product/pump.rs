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
}

/// What one connection has in flight.
#[derive(Clone, Copy, Default)]
struct Line {
    posted: u64,
    completed: u64,
}

impl<'a> Pump<'a> {
    fn new(session: &'a Session, case: &'a Case, s: Stream, stop: &'a Stop) -> Self {
        let inline = s.op != Op::Read && case.size <= case.wire.inline;
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
                    let last = number == posted + list;
                    requests.push(if last { request } else { request.unsignaled() });
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
                _ => SendRequest::write_inline(number, octets, self.remote(end, at)?),
            });
        }
        let here = self.session.source.slice(at..at + size)?;
        Ok(match self.s.op {
            Op::Send => SendRequest::send(number, here),
            Op::Write => SendRequest::write(number, here, self.remote(end, at)?),
            Op::Read => SendRequest::read(number, here, self.remote(end, at)?),
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
        if wc.opcode == WcOpcode::Recv {
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
    fn run(&mut self, time: Duration) -> Result<(u64, Duration, Duration)> {
        let before = cpu::used();
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
                if elapsed >= time {
                    return Ok((self.completed - completed, elapsed, cpu::used() - before));
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
    fn flush(&mut self) -> Result<()> {
        if self.s.op != Op::Read {
            // A Read is answered after all that was sent before it is placed.
            let len = self.case.size.min(8);
            for (at, end) in self.session.ends.iter().enumerate() {
                let into = self.session.source.slice(..len)?;
                let from = end.remote.slice(..len as u64)?;
                self.lines[at].posted += 1;
                end.qp.post_send(SendRequest::read(self.lines[at].posted, into, from))?;
            }
        } else {
            for (at, end) in self.session.ends.iter().enumerate() {
                self.lines[at].posted += 1;
                end.qp.post_send(self.request(end, self.lines[at].posted)?)?;
            }
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

    fn measure(&mut self, pace: Pace) -> Result<EndReport> {
        self.run(pace.warm_up())?;
        let (operations, elapsed, cpu) = self.run(pace.seconds())?;
        self.flush()?;
        Ok(EndReport {
            cpu_seconds: cpu.as_secs_f64(),
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
    Pump::new(session, case, s, stop).measure(pace)
}

pub(super) fn serve(
    session: &Session,
    case: &Case,
    s: Stream,
    pace: Pace,
    stop: &Stop,
) -> Result<EndReport> {
    let before = cpu::used();
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
    if !s.both_ways {
        // Of Writes and Reads this end knows nothing: it is the client that counts.
        report.cpu_seconds = (cpu::used() - before).as_secs_f64();
        report.cpu_over = pump.received;
        report.total = pump.received;
    }
    Ok(report)
}
