//! Everything, for programs.

use std::io::{self, Write};

use anyhow::Result;
use serde::Serialize;

use crate::case::Pace;
use crate::guard::environment::Environment;
use crate::plan::Figure;

#[derive(Serialize)]
struct Report<'a> {
    tool: &'static str,
    version: &'static str,
    environment: &'a Environment,
    rounds: usize,
    pace: Pace,
    figures: &'a [Figure],
}

pub(super) fn print(
    environment: &Environment,
    rounds: usize,
    pace: Pace,
    figures: &[Figure],
) -> Result<()> {
    let report = Report {
        tool: env!("CARGO_PKG_NAME"),
        version: env!("CARGO_PKG_VERSION"),
        environment,
        rounds,
        pace,
        figures,
    };
    let mut out = io::stdout().lock();
    serde_json::to_writer(&mut out, &report)?;
    writeln!(out)?;
    Ok(())
}
