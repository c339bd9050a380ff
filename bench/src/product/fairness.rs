//! Small Sends of one queue pair beside a saturating Write of another one, in one thread of one process.

use std::time::Instant;

use anyhow::Result;
use iwarp_verbs::{SendRequest, WcOpcode};

use super::setup::{BULK, Session};
use crate::case::{Case, Pace};
use crate::control::Stop;
use crate::guard::cpu;
use crate::laps::Laps;
use crate::stats::EndReport;

/// Bulk Writes that are outstanding.
const DEPTH: u64 = 8;
const SIGNAL_EVERY: u64 = 32;
const TURNS: u32 = 1 << 12;

/// The first connection plays ping-pong, the second one writes.
struct Both<'a> {
    session: &'a Session,
    case: &'a Case,
    message: Vec<u8>,
    sent: u64,
    arrived: u64,
    bulk: bool,
    written: u64,
    posted: u64,
}

impl<'a> Both<'a> {
    fn new(session: &'a Session, case: &'a Case, bulk: bool) -> Self {
        let message = vec![7; case.size];
        Self { session, case, message, sent: 0, arrived: 0, bulk, written: 0, posted: 0 }
    }

    fn send(&mut self) -> Result<()> {
        self.sent += 1;
        let request = if self.case.size <= self.case.wire.inline {
            SendRequest::send_inline(self.sent, &self.message)
        } else {
            SendRequest::send(self.sent, self.session.source.slice(..self.case.size)?)
        };
        let signaled = self.sent.is_multiple_of(SIGNAL_EVERY);
        let request = if signaled { request } else { request.unsignaled() };
        Ok(self.session.ends[0].qp.post_send(request)?)
    }

    /// One turn of the program's loop.
    fn turn(&mut self) -> Result<()> {
        if self.bulk && self.posted - self.written < DEPTH {
            self.posted += 1;
            let end = &self.session.ends[1];
            let from = self.session.source.slice(..BULK)?;
            let to = end.remote.slice(..BULK as u64)?;
            end.qp.post_send(SendRequest::write(self.posted, from, to))?;
        }
        if let Some(wc) = self.session.poll()? {
            match wc.opcode {
                WcOpcode::Recv => {
                    self.arrived += 1;
                    self.session.ends[0].qp.post_recv(self.session.receive(self.case)?)?;
                }
                WcOpcode::RdmaWrite => self.written = wc.wr_id,
                _ => {}
            }
        }
        Ok(())
    }
}

pub(super) fn drive(
    session: &Session,
    case: &Case,
    bulk: bool,
    pace: Pace,
    stop: &Stop,
) -> Result<EndReport> {
    let mut both = Both::new(session, case, bulk);
    let mut round = || -> Result<()> {
        let expected = both.arrived + 1;
        both.send()?;
        let mut turns = 0_u32;
        while both.arrived < expected {
            both.turn()?;
            turns += 1;
            if turns.is_multiple_of(TURNS) {
                stop.check()?;
            }
        }
        Ok(())
    };
    let begun = Instant::now();
    while begun.elapsed() < pace.warm_up() {
        round()?;
    }
    let mut laps = Laps::start();
    while laps.within(pace.seconds()) {
        round()?;
        laps.lap();
    }
    let report = laps.report(both.sent);
    // The bulk is ended before the connections are.
    both.bulk = false;
    while both.written < both.posted {
        both.turn()?;
        stop.check()?;
    }
    Ok(report)
}

pub(super) fn serve(session: &Session, case: &Case, stop: &Stop) -> Result<EndReport> {
    let meter = cpu::Meter::start();
    let mut both = Both::new(session, case, false);
    let mut turns = 0_u32;
    while !stop.now() {
        both.turn()?;
        if both.sent < both.arrived {
            both.send()?;
        }
        turns = turns.wrapping_add(1);
        if turns.is_multiple_of(1 << 16) {
            stop.check()?;
        }
    }
    let cpu_seconds = meter.seconds();
    Ok(EndReport { cpu_seconds, cpu_over: both.sent, total: both.sent, ..EndReport::default() })
}
