//! Polling style: how long a message takes, when both ends do nothing but look for it.
//!
//! ```text
//! cargo run --release --example ping_pong
//! cargo run --release --example ping_pong -- --operation write --size 4k
//! ```
//!
//! With `--operation send` each end looks for the completion of a receive. With `--operation write` there is nothing to
//! complete: the message is written straight into the other end's memory, and that end looks at the last word of it
//! until it changes, since the last octet of a message becomes visible last.
//!
//! Nothing here awaits, and no thread but the two that poll does any work: [`CompletionQueue::poll`] moves the data.

use std::{
    process::ExitCode,
    thread,
    time::{Duration, Instant},
};

use clap::{Parser, ValueEnum};
use hdrhistogram::Histogram;
use iwarp_examples::{
    failure::{Context, Failure, Result},
    human::{Octets, Time},
    mailbox::{Grant, read_note, write_note},
    wire::WireArgs,
};
use iwarp_verbs::{
    Access, CompletionQueue, Device, DeviceConfig, MemoryRegion, QpConfig, QueuePair, RecvRequest,
    RemoteMemory, SendRequest, WorkCompletion,
    cm::{self, Connection, ListenConfig, Listener},
};
use serde::{Deserialize, Serialize};

/// Round trips between two ends that poll, and how long they take.
#[derive(Debug, Parser)]
#[command(name = "ping_pong")]
struct Args {
    /// Be the listening end, for one connection.
    #[arg(long, value_name = "HOST:PORT", conflicts_with = "connect")]
    listen: Option<String>,
    /// Be the connecting end, which measures. Without --listen and --connect both ends run here.
    #[arg(long, value_name = "HOST:PORT")]
    connect: Option<String>,
    /// How a message gets to the other end.
    #[arg(long, value_enum, default_value_t = Operation::Send, conflicts_with = "listen")]
    operation: Operation,
    /// Octets of a message.
    #[arg(long, default_value = "64", conflicts_with = "listen")]
    size: Octets,
    /// Round trips that are measured.
    #[arg(long, default_value_t = 100_000, conflicts_with = "listen")]
    rounds: u64,
    /// Round trips before those.
    #[arg(long, default_value_t = 1_000, conflicts_with = "listen")]
    warm_up: u64,
    #[command(flatten)]
    wire: WireArgs,
    /// Print one JSON object.
    #[arg(long, conflicts_with = "listen")]
    json: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Operation {
    /// A Send, into a receive.
    Send,
    /// An RDMA Write, into memory that the other end looks at.
    Write,
}

/// What is to be played; goes with the connection request.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
struct Game {
    operation: Operation,
    octets: usize,
    rounds: u64,
    /// Memory of the connecting end. That of the listening end comes with the answer.
    memory: Grant,
}

const OCTETS_MAX: u64 = 1 << 30;
/// A request whose completion is not wanted gives back its place in the send queue with the next one that has a
/// completion, so now and then one must.
const SIGNAL_EVERY: u64 = 32;
/// For a leading end that fails before it connects to the one in the same process.
const LEAD_LIMIT: Option<Duration> = Some(Duration::from_secs(10));

fn main() -> ExitCode {
    let args = Args::parse();
    let result = match (&args.listen, &args.connect) {
        (Some(here), _) => listen(here).and_then(|(device, listener)| {
            println!("listening on {}", listener.local_addr());
            follow(&device, &listener, &args.wire, None)
        }),
        (None, Some(there)) => lead(&args, there),
        (None, None) => both(&args),
    };
    Failure::exit("ping_pong", result)
}

fn both(args: &Args) -> Result<()> {
    let (device, listener) = listen("127.0.0.1:0")?;
    let there = listener.local_addr().to_string();
    thread::scope(|threads| {
        let other = threads.spawn(|| follow(&device, &listener, &args.wire, LEAD_LIMIT));
        let led = lead(args, &there);
        let followed = other.join();
        let followed = followed.unwrap_or_else(|_| Err(Failure::new("the other end panicked")));
        led.and(followed)
    })
}

fn listen(here: &str) -> Result<(Device, Listener)> {
    let device = Device::open(DeviceConfig::from_env()?)?;
    let listener =
        Listener::bind(&device, here, ListenConfig::default()).context("cannot listen")?;
    Ok((device, listener))
}

/// The connecting end: serves, waits for the return, looks at the clock.
fn lead(args: &Args, there: &str) -> Result<()> {
    if args.size.0 < 8 || !args.size.0.is_multiple_of(8) || args.size.0 > OCTETS_MAX {
        return Err(Failure::new("--size must be a multiple of 8, from 8 to 1G"));
    }
    let octets = usize::try_from(args.size.0).map_err(Failure::new)?;
    let device = Device::open(DeviceConfig::from_env()?)?;
    let mut player = Player::new(&device, args.operation, octets)?;
    let game = Game {
        operation: args.operation,
        octets,
        rounds: args.warm_up + args.rounds,
        memory: player.memory.remote().into(),
    };
    let param = args.wire.param().private_data(write_note(&game)?);
    let conn = cm::connect(there, &player.qp, param)?.wait(None)?;
    player.their_memory = read_note::<Grant>(conn.private_data())?.into();

    let mut times = Histogram::<u64>::new(3).map_err(Failure::new)?;
    for round in 1..=game.rounds {
        let begun = Instant::now();
        player.play(round)?;
        player.wait_for(round, &conn)?;
        if round > args.warm_up {
            // Half a round trip is what one message takes.
            times.record(nanoseconds(begun.elapsed()) / 2).map_err(Failure::new)?;
        }
    }
    conn.disconnect();
    report(args, &times)
}

/// The other end: sends each message back.
fn follow(
    device: &Device,
    listener: &Listener,
    wire: &WireArgs,
    limit: Option<Duration>,
) -> Result<()> {
    let request = listener.accept(limit)?;
    let game: Game = read_note(request.private_data())?;
    if game.octets as u64 > OCTETS_MAX || !game.octets.is_multiple_of(8) {
        return Err(Failure::new("that is no game for this program"));
    }
    let mut player = Player::new(device, game.operation, game.octets)?;
    player.their_memory = game.memory.into();
    let grant = Grant::from(player.memory.remote());
    let param = wire.param().private_data(write_note(&grant)?);
    let conn = request.accept(&player.qp, param)?.wait(None)?;
    for round in 1..=game.rounds {
        player.wait_for(round, &conn)?;
        player.play(round)?;
    }
    conn.wait_closed(Duration::from_secs(10));
    Ok(())
}

/// One end of the table.
struct Player {
    operation: Operation,
    qp: QueuePair,
    cq: CompletionQueue,
    /// Where messages arrive. Their last word is the number of the round.
    memory: MemoryRegion,
    /// Where they are sent from.
    outgoing: MemoryRegion,
    their_memory: RemoteMemory,
    octets: usize,
    /// Completions of receives that were found while something else was looked for.
    arrived: u64,
    completions: Vec<WorkCompletion>,
}

impl Player {
    fn new(device: &Device, operation: Operation, octets: usize) -> Result<Self> {
        let pd = device.alloc_pd();
        let cq = device.create_cq(256)?;
        let qp = pd.create_qp(&QpConfig::new(&cq))?;
        let memory = pd.alloc(octets, Access::LOCAL_WRITE | Access::REMOTE_WRITE)?;
        let outgoing = pd.alloc(octets, Access::empty())?;
        if operation == Operation::Send {
            qp.post_recv(RecvRequest::new(0, memory.as_slice_all()))?;
        }
        Ok(Self {
            operation,
            qp,
            cq,
            their_memory: RemoteMemory { addr: 0, len: 0, rkey: 0 },
            memory,
            outgoing,
            octets,
            arrived: 0,
            completions: Vec::with_capacity(16),
        })
    }

    /// Sends the message of this round.
    fn play(&self, round: u64) -> Result<()> {
        self.outgoing.store_u64(self.octets - 8, round)?;
        let message = self.outgoing.as_slice_all();
        let mut request = match self.operation {
            Operation::Send => SendRequest::send(round, message),
            Operation::Write => SendRequest::write(round, message, self.their_memory),
        };
        if !round.is_multiple_of(SIGNAL_EVERY) {
            request = request.unsignaled();
        }
        Ok(self.qp.post_send(request)?)
    }

    /// Looks until the message of this round is here.
    fn wait_for(&mut self, round: u64, conn: &Connection) -> Result<()> {
        loop {
            // Also when the memory is what is looked at: it is the poll that moves the data, at once and in this
            // thread. Without polls the library's own thread would, some microseconds later.
            self.poll(conn)?;
            match self.operation {
                Operation::Send if self.arrived > 0 => {
                    self.arrived -= 1;
                    return self.check(round);
                }
                Operation::Write if self.last_word()? == round => return Ok(()),
                _ => std::hint::spin_loop(),
            }
        }
    }

    fn poll(&mut self, conn: &Connection) -> Result<()> {
        self.completions.clear();
        self.cq.poll(&mut self.completions);
        for completion in self.completions.drain(..) {
            let receive = completion.opcode.is_receive();
            if let Err(failed) = completion.ok() {
                let reason = conn.wait_closed(Duration::from_secs(1));
                return Err(reason.map_or_else(|| failed.into(), Failure::new));
            }
            if receive {
                self.arrived += 1;
                self.qp.post_recv(RecvRequest::new(0, self.memory.as_slice_all()))?;
            }
        }
        Ok(())
    }

    fn check(&self, round: u64) -> Result<()> {
        match self.last_word()? {
            word if word == round => Ok(()),
            word => Err(Failure::new(format_args!("message {word} came in round {round}"))),
        }
    }

    fn last_word(&self) -> Result<u64> {
        Ok(self.memory.load_u64(self.octets - 8)?)
    }
}

fn report(args: &Args, times: &Histogram<u64>) -> Result<()> {
    let at = |percent| times.value_at_percentile(percent);
    if args.json {
        #[derive(Serialize)]
        struct Report {
            operation: Operation,
            octets: u64,
            rounds: u64,
            nanoseconds: Nanoseconds,
        }
        #[derive(Serialize)]
        struct Nanoseconds {
            min: u64,
            p50: u64,
            p90: u64,
            p99: u64,
            p999: u64,
            max: u64,
        }
        let report = Report {
            operation: args.operation,
            octets: args.size.0,
            rounds: times.len(),
            nanoseconds: Nanoseconds {
                min: times.min(),
                p50: at(50.0),
                p90: at(90.0),
                p99: at(99.0),
                p999: at(99.9),
                max: times.max(),
            },
        };
        println!("{}", serde_json::to_string(&report)?);
        return Ok(());
    }
    println!(
        "{} messages of {} by {:?}, one way (half a round trip):",
        times.len() * 2,
        args.size,
        args.operation
    );
    for (name, time) in [
        ("fastest", times.min()),
        ("median", at(50.0)),
        ("90 %", at(90.0)),
        ("99 %", at(99.0)),
        ("99.9 %", at(99.9)),
        ("slowest", times.max()),
    ] {
        println!("  {name:<8} {:>9}", Time(Duration::from_nanos(time)).to_string());
    }
    Ok(())
}

fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}
