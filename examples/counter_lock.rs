//! A counter and a lock that programs on many hosts share, in the memory of one that does nothing.
//!
//! ```text
//! cargo run --release --example counter_lock                                  a host and four members here
//! cargo run --release --example counter_lock -- --listen 0.0.0.0:7177         a host
//! cargo run --release --example counter_lock -- --connect HOST:7177           a member, as many as it waits for
//! ```
//!
//! The counter is one word: members add to it by `FetchAdd`, and no increment is lost however many do. The lock is
//! another word, 0 while it is free: `CompareSwap` of 0 with a member's number takes it, whoever gets 0 back has it,
//! and writing 0 again gives it back. What it guards is an account that takes several steps to change, a Read and a
//! Write, and that would be wrong very soon without the lock. The Write needs no answer before the lock is given
//! back: an Atomic is carried out only after everything that was sent before it has arrived.
//!
//! The host's program takes no part in that. It sleeps, until a member says that it is done, or is lost: then, if the
//! lock has that member's number, the host frees it with a `CompareSwap` of its own, which is atomic with those of the
//! peers. In the end it adds up what the members have told, and compares.

#[path = "counter_lock/host.rs"]
mod host;
#[path = "counter_lock/member.rs"]
mod member;

use std::{
    process::ExitCode,
    thread,
    time::{Duration, Instant},
};

use clap::Parser;
use host::{Figures, Host};
use iwarp_examples::{
    failure::{Failure, Result},
    human::Time,
    impair::parse_time,
    wire::WireArgs,
};
use member::{Member, Plan, Told};
use tokio::{sync::oneshot, task::LocalSet};

/// A counter and a lock over RDMA Atomics, shared by many programs.
#[derive(Debug, Parser)]
#[command(name = "counter_lock")]
struct Args {
    /// Be the host of the counter and the lock, until all members have come and gone.
    #[arg(long, value_name = "HOST:PORT", conflicts_with = "connect")]
    listen: Option<String>,
    /// Be a member of this host.
    #[arg(long, value_name = "HOST:PORT")]
    connect: Option<String>,
    /// Members that the host waits for; without --listen they run here.
    #[arg(long, default_value_t = 4, conflicts_with = "connect")]
    members: u32,
    /// Increments of the counter by each member.
    #[arg(long, default_value_t = 10_000, conflicts_with = "listen")]
    increments: u64,
    /// Times that each member takes the lock and changes the account.
    #[arg(long, default_value_t = 1_000, conflicts_with = "listen")]
    turns: u64,
    /// Time for which a member keeps the lock besides its work, such as 1ms.
    #[arg(long, value_parser = parse_time, conflicts_with = "listen")]
    keeps: Option<Duration>,
    #[command(flatten)]
    wire: WireArgs,
    /// Print what happened as one JSON object.
    #[arg(long)]
    json: bool,
}

impl Args {
    fn plan(&self) -> Plan {
        Plan { increments: self.increments, turns: self.turns, keeps: self.keeps }
    }
}

fn main() -> ExitCode {
    let args = Args::parse();
    let result = match (&args.listen, &args.connect) {
        (Some(here), _) => serve(&args, here),
        (None, Some(there)) => take_part(&args, there),
        (None, None) => demonstrate(&args),
    };
    Failure::exit("counter_lock", result)
}

fn run<T>(task: impl Future<Output = Result<T>>) -> Result<T> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    LocalSet::new().block_on(&runtime, task)
}

fn serve(args: &Args, here: &str) -> Result<()> {
    let host = Host::new(here, args.members, args.wire.clone())?;
    if !args.json {
        println!("listening on {}", host.listener().local_addr());
    }
    print(&run(host.run())?, args.json)
}

fn take_part(args: &Args, there: &str) -> Result<()> {
    let (told, time) = run(async {
        let member = Member::connect(there, &args.wire).await?;
        if !args.json {
            println!("member {} of {}", member.number(), member.host());
        }
        let begun = Instant::now();
        Ok((member.run(args.plan(), args.json).await?, begun.elapsed()))
    })?;
    let Told { increments, turns, tries } = told;
    if args.json {
        println!("{}", serde_json::to_string(&told)?);
    } else {
        println!(
            "{increments} increments, and {turns} turns with the lock in {tries} tries, in {}",
            Time(time)
        );
    }
    Ok(())
}

/// A host and its members, each in a thread of its own and with a device of its own.
fn demonstrate(args: &Args) -> Result<()> {
    let (address, addressed) = oneshot::channel();
    thread::scope(|threads| {
        let host = threads.spawn(move || {
            let host = Host::new("127.0.0.1:0", args.members, args.wire.clone())?;
            let _ = address.send(host.listener().local_addr().to_string());
            run(host.run())
        });
        // One that did not start tells why below.
        if let Ok(there) = addressed.blocking_recv() {
            for member in 0..args.members {
                let there = there.clone();
                threads.spawn(move || {
                    // One bar is enough, and they go at the same pace.
                    let quiet = args.json || member > 0;
                    let part = async {
                        Member::connect(&there, &args.wire).await?.run(args.plan(), quiet).await
                    };
                    if let Err(failure) = run(part) {
                        eprintln!("member: {failure}");
                    }
                });
            }
        }
        let figures = host.join().unwrap_or_else(|_| Err(Failure::new("the host panicked")))?;
        print(&figures, args.json)
    })
}

fn print(figures: &Figures, json: bool) -> Result<()> {
    if json {
        println!("{}", serde_json::to_string(figures)?);
        return Ok(());
    }
    println!(
        "{} members in {}: the counter is {}, and no increment is lost",
        figures.members,
        Time(Duration::from_nanos(figures.nanoseconds)),
        figures.counter
    );
    println!(
        "the account was changed {} times with the lock, which took {} tries, and is right",
        figures.turns, figures.tries
    );
    if figures.members_lost > 0 {
        println!(
            "{} members were lost, and {} times with the lock, which was freed",
            figures.members_lost, figures.locks_freed
        );
    }
    Ok(())
}
