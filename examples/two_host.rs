//! Two hosts, every kind of RDMA operation, and a file.
//!
//! ```text
//! cargo run --release --example two_host                                  both ends here
//! cargo run --release --example two_host -- --listen 0.0.0.0:7174         on the one host
//! cargo run --release --example two_host -- --connect 192.0.2.1:7174      on the other
//! cargo run --release --example two_host -- --help                        explains
//! ```
//!
//! `two_host/tour.rs` is the place to read what an RDMA program looks like, `two_host/transfer.rs` how a stream of
//! data is made of one-sided operations.

#[path = "two_host/disk.rs"]
mod disk;
#[path = "two_host/end.rs"]
mod end;
#[path = "two_host/story.rs"]
mod story;
#[path = "two_host/tour.rs"]
mod tour;
#[path = "two_host/transfer.rs"]
mod transfer;

use std::{path::PathBuf, process::ExitCode, thread};

use clap::Parser;
use disk::Source;
use end::{End, Hello};
use iwarp_examples::{
    failure::{Context, Failure, Result},
    human::Octets,
    mailbox::read_note,
    wire::WireArgs,
};
use iwarp_verbs::{
    Device, DeviceConfig,
    cm::{ConnectRequest, ListenConfig, Listener},
};
use serde::Serialize;
use story::{Facts, Story};
use tokio::sync::oneshot;

/// The most memory that the listening end grants for a tour.
const TOUR_MAX: u64 = 1 << 32;

/// Show what RDMA is: two ends exchange data by Send, RDMA Write and RDMA Read, and revoke a key.
///
/// RDMA moves data between the memories of two programs. A program registers memory and gets a key for it. It may
/// hand the key to its peer; the peer can then write to that memory (RDMA Write) and read from it (RDMA Read)
/// without this program doing anything. That is called one-sided. A Send is two-sided: it lands where the receiver
/// has said that the next message goes. A key can be revoked, also by the peer, which says so in its last message
/// (Send with Invalidate); from then on it opens nothing.
///
/// This program does each of these once over iWARP, that is over TCP, and both ends check every octet that reaches
/// them. Without --listen and --connect it is both ends.
#[derive(Debug, Parser)]
#[command(name = "two_host", after_long_help = EXPLANATION)]
struct Args {
    /// Be the listening end, for one connection. Port 0 takes a free port.
    #[arg(long, value_name = "HOST:PORT", conflicts_with = "connect")]
    listen: Option<String>,
    /// Be the connecting end, which leads.
    #[arg(long, value_name = "HOST:PORT")]
    connect: Option<String>,
    /// How much the RDMA Write and the RDMA Read move, such as 64, 4k or 1M.
    #[arg(long, default_value = "1M", conflicts_with_all = ["listen", "file"])]
    size: Octets,
    /// Bring this file to the other end by RDMA Write, of any size, and compare digests.
    #[arg(long, value_name = "PATH", conflicts_with = "listen")]
    file: Option<PathBuf>,
    /// Save the file that arrives here. Without it the file is only checked.
    #[arg(long, value_name = "PATH", conflicts_with = "connect")]
    save: Option<PathBuf>,
    #[command(flatten)]
    wire: WireArgs,
    /// Print one JSON object on standard output at the end; the lines for people go to standard error.
    #[arg(long)]
    json: bool,
}

const EXPLANATION: &str = "\
How to read the times:
  A Send and an RDMA Write are done for their sender when the data has left its memory, not when it has arrived.
  So their times here end with the other program's answer that it knows. An RDMA Read is done when the data is here;
  its time is that of the operation alone.

How the two ends find each other's memory:
  The listening end puts address, length and key of its memory into its answer to the connection request (the
  private data of the MPA reply). A key is as good as the secrecy of that answer.

What happens to the revoked key:
  The connecting end tries it once more. The other end refuses, reports which rule was broken (a Terminate message)
  and ends the connection: RDMA has no lesser answer to an access that it does not allow.

Exit code: 0 if all went as it must, 1 with one line on standard error if not, 2 for wrong usage.

Two network namespaces on one machine, with a bad network between them: examples/two_hosts.sh";

fn main() -> ExitCode {
    let args = Args::parse();
    let result = match (&args.listen, &args.connect) {
        (Some(here), _) => {
            let story = Story::new("", args.json);
            let done = listen_alone(&args, here, &story);
            finish(&args, done, &[("listen", &story)])
        }
        (None, Some(there)) => {
            let story = Story::new("", args.json);
            let done = connect_alone(&args, there, &story);
            finish(&args, done, &[("connect", &story)])
        }
        (None, None) => {
            let (a, b) = (Story::new("A  ", args.json), Story::new("B  ", args.json));
            let done = both(&args, &a, &b);
            finish(&args, done, &[("connect", &a), ("listen", &b)])
        }
    };
    Failure::exit("two_host", result)
}

fn listen_alone(args: &Args, here: &str, story: &Story) -> Result<()> {
    let device = Device::open(DeviceConfig::from_env()?)?;
    let listener = listen(&device, here)?;
    run(serve(&device, &listener, story, args))
}

fn connect_alone(args: &Args, there: &str, story: &Story) -> Result<()> {
    let source = args.file.as_deref().map(Source::open).transpose()?;
    let device = Device::open(DeviceConfig::from_env()?)?;
    run(lead(&device, story, args, there, source))
}

/// Each end has a thread, a device and a runtime of its own: nothing is shared but the TCP connection.
fn both(args: &Args, a: &Story, b: &Story) -> Result<()> {
    let source = args.file.as_deref().map(Source::open).transpose()?;
    let device_b = Device::open(DeviceConfig::from_env()?)?;
    let listener = listen(&device_b, "127.0.0.1:0")?;
    let there = listener.local_addr().to_string();
    let (leads, led) = oneshot::channel::<()>();
    thread::scope(|threads| {
        let serving = threads.spawn(|| {
            run(async {
                tokio::select! {
                    served = serve(&device_b, &listener, b, args) => served,
                    // The connecting end has given up, and says why.
                    _ = led => Ok(()),
                }
            })
        });
        let device_a = Device::open(DeviceConfig::from_env()?)?;
        let done = run(lead(&device_a, a, args, &there, source));
        if done.is_err() {
            drop(leads);
        }
        let served = serving.join();
        let served = served.unwrap_or_else(|_| Err(Failure::new("the listening end panicked")));
        // What one end reports of the other's failure is less than that knows itself.
        served.and(done)
    })
}

fn run<T>(end: impl Future<Output = Result<T>>) -> Result<T> {
    tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(end)
}

fn listen(device: &Device, here: &str) -> Result<Listener> {
    Listener::bind(device, here, ListenConfig::default()).context("cannot listen")
}

/// The connecting end.
async fn lead(
    device: &Device,
    story: &Story,
    args: &Args,
    there: &str,
    source: Option<Source>,
) -> Result<()> {
    let param = args.wire.param();
    match source {
        None => tour::lead(device, story, there, param, args.size.0).await,
        Some(source) => transfer::send(device, story, there, param, source).await,
    }
}

/// The listening end: serves one connection.
async fn serve(device: &Device, listener: &Listener, story: &Story, args: &Args) -> Result<()> {
    story.say(format_args!("listening on {}", listener.local_addr()));
    let request = listener.next().await;
    let hello = match read_note(request.private_data()) {
        Ok(Hello::Tour { octets }) if octets > TOUR_MAX => {
            return refuse(request, &format!("more than {} is too much", Octets(TOUR_MAX)));
        }
        Ok(hello) => hello,
        Err(_) => return refuse(request, "this is the example two_host, which you are not"),
    };
    let param = args.wire.param();
    let end = End::new(device)?;
    match hello {
        Hello::Tour { octets } => tour::follow(end, story, request, param, octets).await,
        Hello::File { name, octets } => {
            let save = args.save.as_deref();
            transfer::receive(end, story, request, param, &name, octets, save).await
        }
    }
}

/// A refusal can say why; the words are between the programs.
fn refuse(request: ConnectRequest, why: &str) -> Result<()> {
    let peer = request.peer_addr();
    request.reject(why.as_bytes())?;
    Err(Failure::new(format_args!("refused {peer}: {why}")))
}

/// Prints the object for programs, also of a run that failed.
fn finish(args: &Args, done: Result<()>, stories: &[(&str, &Story)]) -> Result<()> {
    #[derive(Serialize)]
    struct Report<'a> {
        ok: bool,
        #[serde(skip_serializing_if = "Option::is_none")]
        error: Option<String>,
        #[serde(flatten)]
        ends: std::collections::BTreeMap<&'a str, Facts>,
    }
    if args.json {
        let ends = stories.iter().map(|(role, story)| (*role, story.facts())).collect();
        let error = done.as_ref().err().map(ToString::to_string);
        println!("{}", serde_json::to_string(&Report { ok: done.is_ok(), error, ends })?);
    }
    done
}
