//! `iwarp-bench`: how fast iWARP verbs are, as a ratio to plain TCP doing the same work in the same run.
//!
//! See `iwarp-bench --help`, and `docs/performance.md` for what it found.

#![forbid(unsafe_code)]
#![allow(
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "figures are for people, and sizes and counts are far below what their types hold"
)]

mod case;
mod cli;
mod control;
mod guard;
mod jobs;
mod laps;
mod memory;
mod paced;
mod plan;
mod product;
mod report;
mod rows;
mod run;
mod stats;
mod yardstick;

use std::io::Write as _;
use std::net::{SocketAddr, TcpListener};
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::Parser as _;

use crate::case::{Case, Pace, Stack};
use crate::cli::{Cli, What};
use crate::control::Remote;
use crate::guard::{cpu, environment::Environment, files, network, scheduler::Favoured};
use crate::plan::Figure;
use crate::run::{LISTENING, ServerProcess};

fn main() -> ExitCode {
    let cli = Cli::parse();
    let result = match cli.command {
        Some(What::Serve { listen, once, tied }) => {
            if tied {
                end_with_input();
            }
            serve(listen, once)
        }
        _ => measure(&cli),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("iwarp-bench: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// The client: sets up what it can, runs the cases, reports.
fn measure(cli: &Cli) -> Result<()> {
    let mut environment = prepare(cli);
    let _favoured = match Favoured::begin() {
        Ok(favoured) => Some(favoured),
        Err(error) => {
            let note = format!("the scheduler's group could not be favoured: {error}");
            environment.notes.push(note);
            None
        }
    };
    environment.scheduler_group = guard::scheduler::describe();
    let server = match cli.run.connect {
        Some(_) => None,
        None => Some(ServerProcess::start()?),
    };
    let addr = cli.run.connect.or_else(|| server.as_ref().map(|server| server.addr));
    let addr = addr.context("no server")?;
    if let Some((client, server)) = cli.run.pin.0 {
        environment.pinned = Some((client, server));
        if let Err(error) = cpu::pin(client) {
            environment.pinned = None;
            environment.notes.push(format!("the client could not be pinned to {client}: {error}"));
        }
    }
    let mut remote = Remote::connect(addr, cli.run.pin.0.map(|pins| pins.1))?;
    environment.both_ends_here = remote.is_local();
    environment.notes.extend(remote.notes.iter().map(|note| format!("server: {note}")));

    let idle = files::connections_that_fit(jobs::idle_wanted(cli));
    if idle < jobs::idle_wanted(cli) {
        let wanted = jobs::idle_wanted(cli);
        let note = format!("descriptors for {idle} idle connections only, not {wanted}");
        environment.notes.push(note);
    }
    let mut lines = jobs::lines(cli, idle)?;
    if !environment.both_ends_here {
        lines.retain(|line| !matches!(line.ours.work, case::Work::Target { .. }));
        environment.notes.push("no silent target: it needs both ends on one machine".into());
    }
    let rounds = cli.run.rounds.unwrap_or(if cli.run.quick { 3 } else { 5 });
    let seconds = cli.run.seconds.unwrap_or(if cli.run.quick { 0.12 } else { 0.4 });
    let pace = Pace::new(seconds);
    if !cli.output.json {
        for line in environment.lines() {
            println!("{line}");
        }
        println!("{rounds} rounds of {seconds} s, TCP and iWARP in turn\n");
    }

    let cases = plan::cases(&lines);
    let samples = run::rounds(&mut remote, &cases, rounds, pace)?;
    let samples_of = |case: &Case| {
        let at = cases.iter().position(|other| other == case);
        at.and_then(|at| samples.get(at)).cloned().unwrap_or_default()
    };
    let figures: Vec<Figure> = lines
        .into_iter()
        .map(|line| {
            let reference = line.reference.as_ref().map(samples_of).unwrap_or_default();
            let ours = samples_of(&line.ours);
            Figure::new(line, ours, reference)
        })
        .collect();
    report::print(cli, &environment, rounds, pace, &figures)
}

/// What has to happen before anything else: it may start the program anew.
fn prepare(cli: &Cli) -> Environment {
    if cli.run.connect.is_some() || cli.run.shared_network {
        let mut environment = Environment::look();
        if cli.run.congestion != "default" && environment.congestion != cli.run.congestion {
            let note = format!(
                "congestion control is {}, not {}",
                environment.congestion, cli.run.congestion
            );
            environment.notes.push(note);
        }
        return environment;
    }
    let network = network::enter(&cli.run.congestion);
    let mut environment = Environment::look();
    environment.own_namespace = network.own;
    environment.notes.extend(network.notes);
    environment
}

/// The server: serves one client after the other.
fn serve(listen: SocketAddr, once: bool) -> Result<()> {
    let listener =
        TcpListener::bind(listen).with_context(|| format!("cannot listen on {listen}"))?;
    println!("{LISTENING}{}", listener.local_addr()?);
    std::io::stdout().flush()?;
    loop {
        let (stream, peer) = listener.accept().context("cannot accept")?;
        let served = control::serve(&stream, prepare_server, |case, pace, ip| match case.stack {
            Stack::Tcp => yardstick::offer(case, pace, ip),
            Stack::Iwarp => product::offer(case, pace, ip),
        });
        if once {
            return served.with_context(|| format!("client at {peer}"));
        }
        if let Err(error) = served {
            eprintln!("iwarp-bench: client at {peer}: {error:#}");
        }
    }
}

/// Ends this process when whoever started it is gone, whatever it does then.
fn end_with_input() {
    std::thread::spawn(|| {
        let _ = std::io::copy(&mut std::io::stdin().lock(), &mut std::io::sink());
        std::process::exit(1);
    });
}

fn prepare_server(pin: Option<usize>) -> Vec<String> {
    let mut notes = Vec::new();
    files::connections_that_fit(usize::MAX);
    if let Some(processor) = pin
        && let Err(error) = cpu::pin(processor)
    {
        notes.push(format!("could not be pinned to {processor}: {error}"));
    }
    notes
}
