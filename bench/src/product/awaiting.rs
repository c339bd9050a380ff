//! The ping-pong with futures, in tokio's current-thread runtime.

use std::time::Instant;

use anyhow::{Context, Result, ensure};
use futures_util::future::{join, join3};
use iwarp_verbs::SendRequest;

use super::setup::Session;
use crate::case::{Case, Op, Pace, Work};
use crate::control::Stop;
use crate::guard::cpu;
use crate::laps::Laps;
use crate::stats::EndReport;
use crate::yardstick::runtime;

/// What a Write with immediate data carries.
const IMMEDIATE: u32 = 7;

/// Posts the receive of the next message, then sends one; returns when both are done. A Write is followed by a Send
/// without octets, which wakes.
struct Exchange<'a> {
    session: &'a Session,
    case: &'a Case,
    message: Option<Vec<u8>>,
}

impl<'a> Exchange<'a> {
    fn new(session: &'a Session, case: &'a Case) -> Self {
        let message = (case.size <= case.wire.inline).then(|| vec![7; case.size]);
        Self { session, case, message }
    }

    async fn receive(&self) -> Result<()> {
        let conn = &self.session.ends[0].conn;
        match self.case.work {
            Work::PingPong { op: Op::Write } => conn.recv(()).await?,
            Work::PingPong { op: Op::WriteImm } => {
                let received = conn.recv(()).await?;
                let brought = received.imm_data;
                ensure!(brought == Some(IMMEDIATE), "a message with immediate data {brought:?}");
                received
            }
            _ => conn.recv(self.session.memory.slice(..self.case.size)?).await?,
        };
        Ok(())
    }

    async fn send_and_receive(&self) -> Result<()> {
        let end = &self.session.ends[0];
        let source = self.session.source.slice(..self.case.size)?;
        let conn = &end.conn;
        match (self.case.work, &self.message) {
            (Work::PingPong { op: Op::Write }, Some(message)) => {
                let write = conn.write_inline(message, end.remote);
                let (received, written, sent) = join3(self.receive(), write, conn.send(())).await;
                received?;
                written?;
                sent?;
            }
            (Work::PingPong { op: Op::Write }, None) => {
                let remote = end.remote.slice(..self.case.size as u64)?;
                let write = conn.write(source, remote);
                let (received, written, sent) = join3(self.receive(), write, conn.send(())).await;
                received?;
                written?;
                sent?;
            }
            (Work::PingPong { op: Op::Read }, _) => {
                conn.read(source, end.remote.slice(..self.case.size as u64)?).await?;
            }
            (Work::PingPong { op: Op::Atomic }, _) => {
                let number = end.remote.slice(..self.case.size as u64)?;
                conn.fetch_add(source, number, 1).await?;
            }
            (Work::PingPong { op: Op::WriteImm }, Some(message)) => {
                let request = SendRequest::write_inline_with_imm(0, message, end.remote, IMMEDIATE);
                let (received, written) = join(self.receive(), conn.request(request)).await;
                received?;
                written?;
            }
            (Work::PingPong { op: Op::WriteImm }, None) => {
                let write = conn.write_with_imm(source, end.remote, IMMEDIATE);
                let (received, written) = join(self.receive(), write).await;
                received?;
                written?;
            }
            (_, Some(message)) => {
                let (received, sent) = join(self.receive(), conn.send_inline(message)).await;
                received?;
                sent?;
            }
            (_, None) => {
                let (received, sent) = join(self.receive(), conn.send(source)).await;
                received?;
                sent?;
            }
        }
        Ok(())
    }
}

pub(super) fn drive(session: &Session, case: &Case, pace: Pace) -> Result<EndReport> {
    let work = async {
        let exchange = Exchange::new(session, case);
        let mut total = 0;
        let begun = Instant::now();
        while begun.elapsed() < pace.warm_up() {
            exchange.send_and_receive().await?;
            total += 1;
        }
        let mut laps = Laps::start();
        while laps.within(pace.seconds()) {
            exchange.send_and_receive().await?;
            total += 1;
            laps.lap();
        }
        anyhow::Ok(laps.report(total))
    };
    let report = runtime()?
        .block_on(async { tokio::time::timeout(pace.limit(), work).await })
        .context("nothing came from the server")??;
    session.ends[0].conn.disconnect();
    Ok(report)
}

pub(super) fn serve(session: &Session, case: &Case, stop: &Stop) -> Result<EndReport> {
    let meter = cpu::Meter::start();
    let mut total = 0;
    let work = async {
        let exchange = Exchange::new(session, case);
        if case.op().is_some_and(Op::is_answered) {
            // The peer does everything until it disconnects.
            session.ends[0].conn.closed().await;
            if case.op() == Some(Op::Atomic) {
                total = session.atomics()?;
            }
            return anyhow::Ok(());
        }
        let mut arrived = exchange.receive().await.is_ok();
        while arrived {
            total += 1;
            // The client disconnects when it is done.
            arrived = exchange.send_and_receive().await.is_ok();
        }
        Ok(())
    };
    runtime()?
        .block_on(async { tokio::time::timeout(stop.left(), work).await })
        .context("nothing came from the client")??;
    let cpu_seconds = meter.seconds();
    Ok(EndReport { cpu_seconds, cpu_over: total, total, ..EndReport::default() })
}
