//! Writes to a target that makes no call: it only looks at its memory, and the library's thread has to do the rest.

use anyhow::Result;
use iwarp_verbs::SendRequest;

use super::setup::Session;
use crate::case::Pace;
use crate::control::Stop;
use crate::guard::cpu;
use crate::paced::{self, SLOTS};
use crate::stats::{EndReport, Recorder};

const SIGNAL_EVERY: u64 = 32;

pub(super) fn drive(session: &Session, pace: Pace, sleeps: bool) -> Result<EndReport> {
    let end = &session.ends[0];
    let send = |number: u64, stamp: u64| {
        let at = number % SLOTS as u64 * 8;
        let to = end.remote.slice(at..at + 8)?;
        let request = SendRequest::write_inline(number, stamp.to_ne_bytes(), to);
        let signaled = number.is_multiple_of(SIGNAL_EVERY);
        Ok(end.qp.post_send(if signaled { request } else { request.unsignaled() })?)
    };
    paced::stamps(pace, sleeps, send, || session.poll().map(drop))
}

pub(super) fn serve(session: &Session, stop: &Stop) -> Result<EndReport> {
    let meter = cpu::Meter::start();
    let mut times = Recorder::new();
    let total = paced::look(stop, &mut times, |slot| Ok(session.memory.load_u64(slot * 8)?))?;
    let cpu_seconds = meter.seconds();
    let times = Some(times.times());
    Ok(EndReport { cpu_seconds, cpu_over: total, total, times, ..EndReport::default() })
}
