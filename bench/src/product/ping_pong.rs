//! One message at a time: Writes or Sends there and back, or Reads or Atomics.

use std::time::Instant;

use anyhow::{Result, bail};
use iwarp_verbs::SendRequest;

use super::setup::{End, Session};
use crate::case::{Case, Op, Pace, Wait};
use crate::control::Stop;
use crate::guard::cpu;
use crate::laps::Laps;
use crate::stats::EndReport;

/// A request whose completion is not wanted gives back its place in the send queue with the next one that has a
/// completion, so now and then one must.
const SIGNAL_EVERY: u64 = 32;
/// Empty turns between two looks around.
const TURNS: u32 = 1 << 12;

/// One end of the table.
pub(super) struct Player<'a> {
    session: &'a Session,
    end: &'a End,
    case: &'a Case,
    op: Op,
    stop: &'a Stop,
    /// The message, for inline data.
    message: Vec<u8>,
    inline: bool,
    /// Messages that were found while something else was looked for.
    arrived: u64,
    /// Receives used up and not posted again yet.
    used: u32,
    /// Reads or Atomics that are complete.
    answered: u64,
}

impl<'a> Player<'a> {
    pub(super) fn new(
        session: &'a Session,
        case: &'a Case,
        op: Op,
        stop: &'a Stop,
    ) -> Result<Self> {
        let Some(end) = session.ends.first() else { bail!("no connection") };
        Ok(Self {
            session,
            end,
            case,
            op,
            stop,
            message: vec![7; case.size],
            inline: case.size <= case.wire.inline,
            arrived: 0,
            used: 0,
            answered: 0,
        })
    }

    /// Sends the message of this round, or asks for an answer. Receives are posted again behind the answer: there are
    /// enough of them.
    pub(super) fn play(&mut self, round: u64) -> Result<()> {
        self.send(round)?;
        for _ in 0..std::mem::take(&mut self.used) {
            self.end.qp.post_recv(self.session.receive(self.case)?)?;
        }
        Ok(())
    }

    fn send(&mut self, round: u64) -> Result<()> {
        let size = self.case.size;
        let wakes = self.op == Op::Write && self.case.wait != Wait::Poll;
        if self.op.is_answered() {
            let into = self.session.source.slice(..size)?;
            let remote = self.end.remote.slice(..size as u64)?;
            return Ok(self.end.qp.post_send(match self.op {
                Op::Atomic => SendRequest::fetch_add(round, into, remote, 1),
                _ => SendRequest::read(round, into, remote),
            })?);
        }
        // The last octets tell the round.
        if self.inline {
            let mark = round.to_ne_bytes();
            match self.message.last_chunk_mut::<8>() {
                Some(last) if size.is_multiple_of(8) => *last = mark,
                _ => self.message[size - 1] = round as u8,
            }
        } else if size.is_multiple_of(8) {
            self.session.source.store_u64(size - 8, round)?;
        } else {
            self.session.source.write_at(size - 1, &[round as u8])?;
        }
        let mut request = match (self.op, self.inline) {
            (Op::Send, true) => SendRequest::send_inline(round, &self.message),
            (Op::Send, false) => SendRequest::send(round, self.session.source.slice(..size)?),
            (Op::WriteImm, true) => {
                let (message, remote) = (&self.message, self.end.remote);
                SendRequest::write_inline_with_imm(round, message, remote, round as u32)
            }
            (Op::WriteImm, false) => {
                let from = self.session.source.slice(..size)?;
                SendRequest::write_with_imm(round, from, self.end.remote, round as u32)
            }
            (_, true) => SendRequest::write_inline(round, &self.message, self.end.remote),
            (_, false) => {
                let from = self.session.source.slice(..size)?;
                SendRequest::write(round, from, self.end.remote)
            }
        };
        if wakes || !round.is_multiple_of(SIGNAL_EVERY) {
            request = request.unsignaled();
        }
        if !wakes {
            return Ok(self.end.qp.post_send(request)?);
        }
        let mut wake = SendRequest::send(round, ());
        if !round.is_multiple_of(SIGNAL_EVERY) {
            wake = wake.unsignaled();
        }
        Ok(self.end.qp.post_send_list([request, wake])?)
    }

    /// Looks or sleeps until the message of this round is here. False if the other end has ended.
    pub(super) fn wait_for(&mut self, round: u64) -> Result<bool> {
        let mut turns = 0_u32;
        loop {
            // It is the poll that moves the data, at once and in this thread.
            if let Some(wc) = self.session.next(self.case.wait)? {
                if wc.opcode.is_receive() {
                    self.arrived += 1;
                    self.used += 1;
                    if self.op == Op::WriteImm && wc.imm_data != Some(round as u32) {
                        bail!("round {round} brought the immediate data {:?}", wc.imm_data);
                    }
                } else if self.op.is_answered() {
                    self.answered = wc.wr_id;
                }
            }
            let here = match self.op {
                Op::Read => self.answered == round,
                Op::Atomic if self.answered == round => {
                    // This end is the only one that adds.
                    let found = self.session.source.load_u64(0)?;
                    if found != round - 1 {
                        bail!("the Atomic of round {round} found {found}");
                    }
                    true
                }
                Op::Write if self.case.wait == Wait::Poll => self.is_marked(round)?,
                Op::Write | Op::WriteImm | Op::Send if self.arrived > 0 => {
                    self.arrived -= 1;
                    if !self.is_marked(round)? {
                        bail!("round {round} brought other octets than were sent");
                    }
                    true
                }
                Op::Atomic | Op::Write | Op::WriteImm | Op::Send => false,
            };
            if here {
                return Ok(true);
            }
            turns += 1;
            if self.stop.now() {
                return Ok(false);
            }
            if turns.is_multiple_of(TURNS) || self.case.wait != Wait::Poll {
                self.stop.check()?;
            }
        }
    }

    /// Whether the last octets are those of this round.
    fn is_marked(&self, round: u64) -> Result<bool> {
        let (memory, size) = (&self.session.memory, self.case.size);
        if size.is_multiple_of(8) {
            return Ok(memory.load_u64(size - 8)? == round);
        }
        let mut last = [0];
        memory.read_at(size - 1, &mut last)?;
        Ok(last[0] == round as u8)
    }
}

pub(super) fn drive(
    session: &Session,
    case: &Case,
    op: Op,
    pace: Pace,
    stop: &Stop,
) -> Result<EndReport> {
    rounds(&mut Player::new(session, case, op, stop)?, pace)
}

/// Plays for as long as the pace says.
pub(super) fn rounds(player: &mut Player<'_>, pace: Pace) -> Result<EndReport> {
    let mut round = 0;
    let begun = Instant::now();
    while begun.elapsed() < pace.warm_up() {
        round += 1;
        player.play(round)?;
        player.wait_for(round)?;
    }
    let mut laps = Laps::start();
    while laps.within(pace.seconds()) {
        round += 1;
        player.play(round)?;
        player.wait_for(round)?;
        laps.lap();
    }
    Ok(laps.report(round))
}

pub(super) fn serve(session: &Session, case: &Case, op: Op, stop: &Stop) -> Result<EndReport> {
    let meter = cpu::Meter::start();
    let mut player = Player::new(session, case, op, stop)?;
    let mut total = 0;
    if op.is_answered() {
        // The peer does everything; this end only lets it be done, in the same style.
        let mut turns = 0_u32;
        while !stop.now() {
            session.next(case.wait)?;
            turns = turns.wrapping_add(1);
            if turns.is_multiple_of(TURNS) {
                stop.check()?;
            }
        }
        if op == Op::Atomic {
            total = session.atomics()?;
        }
    } else {
        while player.wait_for(total + 1)? {
            total += 1;
            player.play(total)?;
        }
    }
    let cpu_seconds = meter.seconds();
    Ok(EndReport { cpu_seconds, cpu_over: total, total, ..EndReport::default() })
}
