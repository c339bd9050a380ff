//! Connections that do nothing: what they take, and what they do to one that works.

use std::net::SocketAddr;
use std::time::Instant;

use anyhow::Result;

use super::ping_pong::{self, Player};
use super::setup::{Listening, Session};
use crate::case::{Case, Op, Pace};
use crate::control::Stop;
use crate::memory;
use crate::stats::EndReport;

pub(super) fn drive(
    case: &Case,
    pace: Pace,
    addr: SocketAddr,
    connections: usize,
    stop: &Stop,
) -> Result<(EndReport, Session)> {
    let mut session = Session::connect(case, addr, 1)?;
    let before = memory::allocated();
    let begun = Instant::now();
    session.connect_idle(case, addr, connections)?;
    let connect_seconds = begun.elapsed().as_secs_f64() / connections.max(1) as f64;
    let taken = memory::allocated().saturating_sub(before);
    let report = ping_pong::rounds(&mut Player::new(&session, case, Op::Write, stop)?, pace)?;
    let report = EndReport {
        memory_per_connection: (connections > 0).then(|| taken as f64 / connections as f64),
        connect_seconds: (connections > 0).then_some(connect_seconds),
        connections: Some(connections),
        ..report
    };
    Ok((report, session))
}

pub(super) fn serve(listening: Listening, connections: usize, stop: &Stop) -> Result<EndReport> {
    let case = listening.case.clone();
    let (session, taken) = listening.accept_idle(connections, stop)?;
    let report = ping_pong::serve(&session, &case, Op::Write, stop)?;
    Ok(EndReport {
        memory_per_connection: (connections > 0).then(|| taken as f64 / connections as f64),
        ..report
    })
}
