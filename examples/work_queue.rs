//! A work queue: jobs go out and results come back by RDMA Write with immediate data, and all workers of the
//! dispatcher share their receives.
//!
//! ```text
//! cargo run --release --example work_queue                                a dispatcher and four workers here
//! cargo run --release --example work_queue -- --listen 0.0.0.0:7176       a dispatcher
//! cargo run --release --example work_queue -- --connect HOST:7176         a worker, as many as you like
//! ```
//!
//! A job is a piece of data, and its result the SHA-256 of it. The dispatcher writes a job straight into the
//! memory of a worker, and with the Write goes a number of 32 bits that tells the worker's program where to look.
//! The worker writes the result straight into the dispatcher's table, and the number that comes with it is that of
//! the job. Neither Write needs a message of its own.
//!
//! Each such number takes one receive at the other end. The dispatcher does not keep receives for each worker: it has
//! one shared receive queue for all of them, with room for what may come in at once. If there are more results than
//! receives, workers wait a little, and no worker can take more than its share. A worker that is lost, which the event
//! of its last receive tells, takes none of them with it, and its jobs go to others.

#[path = "work_queue/board.rs"]
mod board;
#[path = "work_queue/dispatcher.rs"]
mod dispatcher;
#[path = "work_queue/worker.rs"]
mod worker;

use std::{process::ExitCode, thread, time::Duration};

use clap::Parser;
use dispatcher::{Dispatcher, Figures, Plan};
use iwarp_examples::{
    failure::{Failure, Result},
    human::{Octets, Rate, Time},
    impair::parse_time,
    wire::WireArgs,
};
use tokio::{sync::oneshot, task::LocalSet};
use worker::Worker;

/// A work queue over RDMA: a dispatcher hands out jobs, and workers send results back.
#[derive(Debug, Parser)]
#[command(name = "work_queue")]
struct Args {
    /// Be the dispatcher: hand out jobs to all who connect, until all are done.
    #[arg(long, value_name = "HOST:PORT", conflicts_with = "connect")]
    listen: Option<String>,
    /// Be a worker of this dispatcher, until it has no more jobs.
    #[arg(long, value_name = "HOST:PORT")]
    connect: Option<String>,
    /// Jobs to be done.
    #[arg(long, default_value_t = 2000, conflicts_with = "connect")]
    jobs: u32,
    /// Octets of one job, such as 4096 or 16k.
    #[arg(long, default_value = "16k", conflicts_with = "connect")]
    size: Octets,
    /// Receives that the dispatcher's workers share. With fewer than four for each worker some have to wait.
    #[arg(long, default_value_t = 16, conflicts_with = "connect")]
    receives: u32,
    /// Workers that run here with the dispatcher.
    #[arg(long, default_value_t = 4, conflicts_with_all = ["listen", "connect"])]
    workers: usize,
    /// Time that a worker takes for a job, besides its work, such as 1ms.
    #[arg(long, value_parser = parse_time, conflicts_with = "listen")]
    takes: Option<Duration>,
    #[command(flatten)]
    wire: WireArgs,
    /// Print what happened as one JSON object.
    #[arg(long)]
    json: bool,
}

fn main() -> ExitCode {
    let args = Args::parse();
    let result = match (&args.listen, &args.connect) {
        (Some(here), _) => dispatch(&args, here),
        (None, Some(there)) => work(&args, there),
        (None, None) => demonstrate(&args),
    };
    Failure::exit("work_queue", result)
}

fn run<T>(task: impl Future<Output = Result<T>>) -> Result<T> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    LocalSet::new().block_on(&runtime, task)
}

fn plan(args: &Args) -> Plan {
    Plan { jobs: args.jobs, size: args.size, receives: args.receives, quiet: args.json }
}

fn dispatch(args: &Args, here: &str) -> Result<()> {
    let dispatcher = Dispatcher::new(here, plan(args), args.wire.clone())?;
    if !args.json {
        println!("listening on {}", dispatcher.listener().local_addr());
    }
    print(&run(dispatcher.run())?, args.json)
}

fn work(args: &Args, there: &str) -> Result<()> {
    let done = run(async {
        let worker = Worker::connect(there, &args.wire).await?;
        if !args.json {
            println!("working for {}", worker.dispatcher());
        }
        worker.run(args.takes).await
    })?;
    if args.json {
        println!("{}", serde_json::json!({ "jobs": done }));
    } else {
        println!("{done} jobs done");
    }
    Ok(())
}

/// A dispatcher and its workers, each in a thread of its own and with a device of its own.
fn demonstrate(args: &Args) -> Result<()> {
    let (address, addressed) = oneshot::channel();
    thread::scope(|threads| {
        let dispatcher = threads.spawn(move || {
            let dispatcher = Dispatcher::new("127.0.0.1:0", plan(args), args.wire.clone())?;
            let _ = address.send(dispatcher.listener().local_addr().to_string());
            run(dispatcher.run())
        });
        // One that did not start tells why below.
        if let Ok(there) = addressed.blocking_recv() {
            for _ in 0..args.workers {
                let there = there.clone();
                threads.spawn(move || {
                    let work =
                        async { Worker::connect(&there, &args.wire).await?.run(args.takes).await };
                    if let Err(failure) = run(work) {
                        eprintln!("worker: {failure}");
                    }
                });
            }
        }
        let figures =
            dispatcher.join().unwrap_or_else(|_| Err(Failure::new("the dispatcher panicked")))?;
        print(&figures, args.json)
    })
}

fn print(figures: &Figures, json: bool) -> Result<()> {
    if json {
        println!("{}", serde_json::to_string(figures)?);
        return Ok(());
    }
    let time = Duration::from_nanos(figures.nanoseconds);
    println!(
        "{} jobs of {} done in {} by {} workers ({}), and each result is right",
        figures.jobs,
        Octets(figures.octets_each),
        Time(time),
        figures.workers,
        Rate(u64::from(figures.jobs) * figures.octets_each, time),
    );
    println!(
        "they shared {} receives, of which the greediest held {}; {} times a worker had to wait for one, {} times they \
         became few",
        figures.receives, figures.most_held, figures.held_back, figures.limits_reached
    );
    if figures.workers_lost > 0 {
        println!(
            "{} workers were lost, and {} jobs handed out again",
            figures.workers_lost, figures.handed_out_again
        );
    }
    Ok(())
}
