//! The work over iWARP.

mod awaiting;
mod fairness;
mod idle;
mod ping_pong;
mod pump;
mod setup;
mod target;

use std::net::{IpAddr, SocketAddr};

use anyhow::{Result, bail};

use self::setup::{Listening, Session};
use crate::case::{Case, Pace, Wait, Work};
use crate::control::{Offer, Stop};
use crate::guard::cpu;
use crate::stats::EndReport;

pub(crate) fn offer(case: &Case, pace: Pace, ip: IpAddr) -> Result<Box<dyn Offer>> {
    Ok(Box::new(Listening::new(case, pace, ip)?))
}

impl Offer for Listening {
    fn port(&self) -> u16 {
        self.local_port()
    }

    fn run(self: Box<Self>, stop: &Stop) -> Result<EndReport> {
        let (case, pace) = (self.case.clone(), self.pace);
        match (case.work, case.wait) {
            (Work::Idle { connections }, _) => idle::serve(*self, connections, stop),
            (Work::Target { .. }, _) => {
                // The library's thread starts with the first connection, and may then run everywhere.
                let free = cpu::unpinned()?;
                let session = self.accept(1, stop)?;
                drop(free);
                target::serve(&session, stop)
            }
            (Work::PingPong { .. }, Wait::Await) => {
                awaiting::serve(&self.accept(1, stop)?, &case, stop)
            }
            (Work::PingPong { op }, _) => ping_pong::serve(&self.accept(1, stop)?, &case, op, stop),
            (Work::Stream(s), _) => {
                let session = self.accept(s.connections, stop)?;
                pump::serve(&session, &case, s, pace, stop)
            }
            (Work::Fairness { .. }, _) => fairness::serve(&self.accept(2, stop)?, &case, stop),
        }
    }
}

/// The client's end. The connections are to live until the server has ended its own part.
pub(crate) fn drive(case: &Case, pace: Pace, addr: SocketAddr) -> Result<(EndReport, Connected)> {
    let stop = Stop::after(pace.limit());
    let session = match case.work {
        Work::Idle { connections } => {
            let (report, session) = idle::drive(case, pace, addr, connections, &stop)?;
            return Ok((report, Connected(session)));
        }
        Work::Stream(s) => Session::connect(case, addr, s.connections)?,
        Work::Fairness { .. } => Session::connect(case, addr, 2)?,
        Work::PingPong { .. } | Work::Target { .. } => Session::connect(case, addr, 1)?,
    };
    let report = match (case.work, case.wait) {
        (Work::PingPong { .. }, Wait::Await) => awaiting::drive(&session, case, pace),
        (Work::PingPong { op }, _) => ping_pong::drive(&session, case, op, pace, &stop),
        (Work::Stream(s), _) => pump::drive(&session, case, s, pace, &stop),
        (Work::Fairness { bulk }, _) => fairness::drive(&session, case, bulk, pace, &stop),
        (Work::Target { sleeps }, _) => target::drive(&session, pace, sleeps),
        (Work::Idle { .. }, _) => bail!("idle connections are another case"),
    };
    Ok((report?, Connected(session)))
}

/// Connections of a case that is measured already. Ended in order when dropped.
pub(crate) struct Connected(Session);

impl Drop for Connected {
    fn drop(&mut self) {
        self.0.close();
    }
}
