//! Await style: a key-value store whose GETs are one-sided.
//!
//! ```text
//! cargo run --release --example kv_store                                       a server, four clients, and figures
//! cargo run --release --example kv_store -- --listen 0.0.0.0:7175              a server
//! cargo run --release --example kv_store -- --connect HOST:7175 put tea green  a client
//! ```
//!
//! The server keeps its table in memory that clients may read. To put or delete, a client sends a message and the
//! server's program answers. To get, a client reads the table itself by RDMA Read, and the server's program never
//! hears of it. `kv_store/table.rs` shows what that asks of the layout of the data, which is what most of the thinking
//! goes into when data is shared by one-sided operations.

#[path = "kv_store/client.rs"]
mod client;
#[path = "kv_store/server.rs"]
mod server;
#[path = "kv_store/table.rs"]
mod table;

use std::{
    process::ExitCode,
    thread,
    time::{Duration, Instant},
};

use clap::{Parser, Subcommand};
use client::Client;
use hdrhistogram::Histogram;
use iwarp_examples::{
    failure::{Failure, Result},
    human::Time,
    wire::WireArgs,
};
use iwarp_verbs::{Device, DeviceConfig};
use serde::Serialize;
use server::Server;
use tokio::{sync::oneshot, task::LocalSet};

/// A key-value store over RDMA: changes by message, reads without the server.
#[derive(Debug, Parser)]
#[command(name = "kv_store")]
struct Args {
    /// Be a server, until it is interrupted.
    #[arg(long, value_name = "HOST:PORT", conflicts_with = "connect")]
    listen: Option<String>,
    /// Be a client of this server.
    #[arg(long, value_name = "HOST:PORT")]
    connect: Option<String>,
    /// Slots of the table: of a server, or of the one that runs here.
    #[arg(long, default_value_t = 8192, conflicts_with = "connect")]
    slots: usize,
    #[command(flatten)]
    wire: WireArgs,
    /// Print the figures as one JSON object.
    #[arg(long, conflicts_with_all = ["listen", "connect"])]
    json: bool,
    #[command(subcommand)]
    command: Option<Command>,
}

/// What a client does.
#[derive(Clone, Debug, Subcommand)]
enum Command {
    /// Print a value.
    Get { key: String },
    /// Set a value.
    Put { key: String, value: String },
    /// Remove a key.
    Delete { key: String },
}

/// Clients of the demonstration, keys that each puts, values that each gets.
const CLIENTS: usize = 4;
const KEYS: usize = 250;
const GETS: usize = 2500;
/// Changes of one value while the other clients read it.
const CHANGES: usize = 500;

fn main() -> ExitCode {
    let args = Args::parse();
    let result = match (&args.listen, &args.connect, &args.command) {
        (Some(here), _, None) => listen(here, &args),
        (None, Some(there), Some(command)) => run(one_command(there, &args.wire, command)),
        (None, None, None) => demonstrate(&args),
        _ => Err(Failure::new("a command and --connect go together")),
    };
    Failure::exit("kv_store", result)
}

fn run<T>(task: impl Future<Output = Result<T>>) -> Result<T> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    LocalSet::new().block_on(&runtime, task)
}

fn listen(here: &str, args: &Args) -> Result<()> {
    let server = Server::new(here, args.slots, args.wire.clone())?;
    println!("listening on {}", server.listener().local_addr());
    run(async {
        tokio::select! {
            () = server.run() => Ok(()),
            end = tokio::signal::ctrl_c() => Ok(end?),
        }
    })
}

async fn one_command(there: &str, wire: &WireArgs, command: &Command) -> Result<()> {
    let device = Device::open(DeviceConfig::from_env()?)?;
    let mut store = Client::connect(&device, there, wire).await?;
    let found = match command {
        Command::Get { key } => store.get(key).await?.map(|value| println!("{value}")).is_some(),
        Command::Put { key, value } => store.put(key, value).await.map(|()| true)?,
        Command::Delete { key } => store.delete(key).await?,
    };
    store.close().await;
    if found { Ok(()) } else { Err(Failure::new("there is no such key")) }
}

/// A server in a thread of its own, with a device of its own, and clients here.
fn demonstrate(args: &Args) -> Result<()> {
    let (address, addressed) = oneshot::channel();
    let (stop, stopped) = oneshot::channel::<()>();
    thread::scope(|threads| {
        let server = threads.spawn(move || {
            let server = Server::new("127.0.0.1:0", args.slots, args.wire.clone())?;
            let _ = address.send(server.listener().local_addr().to_string());
            run(async {
                tokio::select! {
                    () = server.run() => {}
                    _ = stopped => {}
                }
                Ok(())
            })
        });
        let shown = run(async {
            // A server that did not start tells why below.
            let Ok(there) = addressed.await else { return Ok(()) };
            let figures = measure(&there, &args.wire).await?;
            print(&figures, args.json)
        });
        let _ = stop.send(());
        server.join().unwrap_or_else(|_| Err(Failure::new("the server panicked")))?;
        shown
    })
}

/// What the demonstration found out.
#[derive(Debug, Serialize)]
struct Figures {
    clients: usize,
    puts: usize,
    put_median_ns: u64,
    gets: usize,
    get_median_ns: u64,
    get_99_percent_ns: u64,
    /// Requests that the server's program handled while the clients put, and while they got.
    requests_during_puts: u64,
    requests_during_gets: u64,
    /// GETs of a value that was being changed, and Reads among them that met a change under way.
    racing_gets: usize,
    torn_reads: u64,
}

async fn measure(there: &str, wire: &WireArgs) -> Result<Figures> {
    let device = Device::open(DeviceConfig::from_env()?)?;
    let mut stores = Vec::new();
    for _ in 0..CLIENTS {
        stores.push(Client::connect(&device, there, wire).await?);
    }

    let before = stores[0].requests().await?;
    let puts = together(&mut stores, async |number, store| {
        let mut times = times()?;
        for key in 0..KEYS {
            let begun = Instant::now();
            store
                .put(&format!("{number}/{key}"), &format!("value {key} of client {number}"))
                .await?;
            record(&mut times, begun)?;
        }
        Ok(times)
    })
    .await?;
    // The question itself was one more.
    let after_puts = stores[0].requests().await?;

    let gets = together(&mut stores, async |number, store| {
        let mut times = times()?;
        for get in 0..GETS {
            let (owner, key) = ((number + get) % CLIENTS, get % KEYS);
            let begun = Instant::now();
            let value = store.get(&format!("{owner}/{key}")).await?;
            record(&mut times, begun)?;
            if value != Some(format!("value {key} of client {owner}")) {
                return Err(Failure::new(format_args!("{owner}/{key} was {value:?}")));
            }
        }
        Ok(times)
    })
    .await?;
    let after_gets = stores[0].requests().await?;

    let racing_gets = race(&mut stores).await?;
    let figures = Figures {
        clients: CLIENTS,
        puts: CLIENTS * KEYS,
        put_median_ns: puts.value_at_percentile(50.0),
        gets: CLIENTS * GETS,
        get_median_ns: gets.value_at_percentile(50.0),
        get_99_percent_ns: gets.value_at_percentile(99.0),
        requests_during_puts: after_puts - before - 1,
        requests_during_gets: after_gets - after_puts - 1,
        racing_gets,
        torn_reads: stores.iter().map(|store| store.torn).sum(),
    };
    for store in stores {
        store.close().await;
    }
    Ok(figures)
}

/// The first client changes a value all the time, the others read it: what they get is always one or the other.
async fn race(stores: &mut [Client]) -> Result<usize> {
    let values = ["a".repeat(200), "b".repeat(200)];
    stores[0].put("changing", &values[0]).await?;
    let got = together(stores, async |number, store| {
        let mut got = times()?;
        for turn in 0..CHANGES {
            if number == 0 {
                store.put("changing", &values[turn % 2]).await?;
                continue;
            }
            let begun = Instant::now();
            match store.get("changing").await? {
                Some(value) if values.contains(&value) => record(&mut got, begun)?,
                other => return Err(Failure::new(format_args!("a mixture: {other:?}"))),
            }
        }
        Ok(got)
    })
    .await?;
    usize::try_from(got.len()).map_err(Failure::new)
}

/// Runs the same for all clients at the same time, and puts their times together.
async fn together(
    stores: &mut [Client],
    task: impl AsyncFn(usize, &mut Client) -> Result<Histogram<u64>>,
) -> Result<Histogram<u64>> {
    let tasks = stores.iter_mut().enumerate().map(|(number, store)| task(number, store));
    let mut all = times()?;
    for times in futures_util::future::try_join_all(tasks).await? {
        all.add(times).map_err(Failure::new)?;
    }
    Ok(all)
}

fn times() -> Result<Histogram<u64>> {
    Histogram::new(3).map_err(Failure::new)
}

fn record(times: &mut Histogram<u64>, begun: Instant) -> Result<()> {
    let nanoseconds = u64::try_from(begun.elapsed().as_nanos()).map_err(Failure::new)?;
    times.record(nanoseconds).map_err(Failure::new)
}

fn print(figures: &Figures, json: bool) -> Result<()> {
    if json {
        println!("{}", serde_json::to_string(figures)?);
        return Ok(());
    }
    let time = |nanoseconds| Time(Duration::from_nanos(nanoseconds));
    println!(
        "{} clients put {} values: {} each (median); the server's program handled {} requests",
        figures.clients,
        figures.puts,
        time(figures.put_median_ns),
        figures.requests_during_puts
    );
    println!(
        "they got {} values by RDMA Read: {} each (median), 99 % within {}; the server's program handled {} requests",
        figures.gets,
        time(figures.get_median_ns),
        time(figures.get_99_percent_ns),
        figures.requests_during_gets
    );
    println!(
        "{} more GETs of a value that one client kept changing: never a mixture ({} Reads met a change under way and \
         were repeated)",
        figures.racing_gets, figures.torn_reads
    );
    Ok(())
}
