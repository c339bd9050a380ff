//! What the user gets to see.

mod json;
mod plot;
mod table;

use anyhow::Result;

use crate::case::Pace;
use crate::cli::{Cli, What};
use crate::guard::environment::Environment;
use crate::plan::Figure;

pub(crate) fn print(
    cli: &Cli,
    environment: &Environment,
    rounds: usize,
    pace: Pace,
    figures: &[Figure],
) -> Result<()> {
    if let Some(file) = &cli.output.plot {
        plot::draw(file, figures)?;
    }
    if cli.output.json {
        return json::print(environment, rounds, pace, figures);
    }
    if matches!(cli.command, Some(What::Table { markdown: true, .. })) {
        print!("{}", table::markdown(figures));
    } else {
        print!("{}", table::plain(figures));
    }
    Ok(())
}
