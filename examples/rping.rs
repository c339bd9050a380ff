//! Await style: the program that RDMA networks are tried with first, in its own protocol.
//!
//! ```text
//! cargo run --release --example rping -- -s -v                              a server, for one client
//! cargo run --release --example rping -- -c -a HOST -v -V -C 10             a client
//! cargo run --release --example rping -- --help                             explains
//! ```
//!
//! Either end may be the `rping` of rdma-core, over whatever speaks iWARP there. One ping takes six messages, and the
//! server does all the moving:
//!
//! ```text
//! client                                              server
//!   | -- Send: the ping is here (address, key, length) -> |
//!   | <- RDMA Read of the ping -------------------------- |
//!   | <- Send: go on ------------------------------------ |
//!   | -- Send: the pong goes here ----------------------> |
//!   | <- RDMA Write of what was read -------------------- |
//!   | <- Send: it is there ------------------------------ |
//! ```
//!
//! `rping/protocol.rs` has the octets of it, `rping/client.rs` and `rping/server.rs` the two halves of the drawing.

#[path = "rping/client.rs"]
mod client;
#[path = "rping/end.rs"]
mod end;
#[path = "rping/protocol.rs"]
mod protocol;
#[path = "rping/server.rs"]
mod server;

use std::{num::NonZeroU64, process::ExitCode};

use clap::{ArgGroup, Parser};
use end::Talk;
use iwarp_examples::{
    failure::{Failure, Result},
    wire::WireArgs,
};
use protocol::{PORT, SIZE_DEFAULT, SIZE_MAX, SIZE_MIN};
use tokio::task::LocalSet;

/// Ping over RDMA: the client's data goes to the server by RDMA Read and comes back by RDMA Write.
///
/// Speaks with the `rping` of rdma-core, which has the same options.
#[derive(Debug, Parser)]
#[allow(clippy::struct_excessive_bools, reason = "options that are given or not")]
#[command(
    name = "rping",
    args_override_self = true,
    group(ArgGroup::new("role").required(true).args(["listen", "client"])),
    after_long_help = EXPLANATION
)]
struct Args {
    /// Be the server: serve one client until it leaves.
    #[arg(short = 's', long = "server")]
    listen: bool,
    /// Be the client. Needs -a.
    #[arg(short = 'c', long, requires = "address")]
    client: bool,
    /// Of a client: where its server is, a name or an IP address. Of a server: the local address to listen at, without
    /// which it is all of IPv4; `::` is all of IPv6.
    #[arg(short = 'a', long, value_name = "HOST")]
    address: Option<String>,
    /// TCP port. A server takes a free one for 0, and says which.
    #[arg(short = 'p', long, default_value_t = PORT)]
    port: u16,
    /// Of a client: so many pings; 0, or nothing said, is without end. Of a server: so many are expected of a client,
    /// and one that leaves earlier makes the server fail.
    #[arg(short = 'C', long, default_value_t = 0, hide_default_value = true)]
    count: u64,
    /// Octets of a ping, from 23 to 65535. Of a client: so many each time, 64 if nothing is said. Of a server: the most
    /// that it takes, 65535 if nothing is said.
    #[arg(short = 'S', long, value_name = "OCTETS", value_parser = parse_size)]
    size: Option<u32>,
    /// Print each ping: the client what came back, the server what it read.
    #[arg(short = 'v', long)]
    verbose: bool,
    /// Check every octet. Of a client: what came back is what was offered. Of a server: what was read is what `rping`
    /// clients offer.
    #[arg(short = 'V', long)]
    validate: bool,
    /// Tell each step on standard error.
    #[arg(short = 'd', long)]
    debug: bool,
    /// Of a server: serve any number of clients, at the same time too, until it is interrupted. One that fails is
    /// reported and leaves the others alone.
    #[arg(short = 'P', long, conflicts_with = "client")]
    persistent: bool,
    #[command(flatten)]
    wire: WireArgs,
}

const EXPLANATION: &str = "\
One ping:
  1. The client fills its source with \"rdma-ping-N: \" and letters, and sends address, key and length of it.
  2. The server reads the source by RDMA Read, and sends a go-ahead.
  3. The client sends address, key and length of its sink.
  4. The server writes what it read into the sink by RDMA Write, and sends another go-ahead.
  5. The client compares, if asked to.
The client's program never touches the network for the data: that is what the key was for.

With the rping of rdma-core:
  Both use port 7174. Its server takes pings up to its own -S, which is 64 octets if nothing is said: give both ends the
  same. It cannot read from a client that asks with --mpa-revision 1, which has no way to say that it serves Reads.
  Its client connects to no 127.0.0.1 over iWARP: name another address of the host.
  A server over Linux siw may not hear a client that speaks at once: let the client wait a moment, by
  IWARP_FIRST_FPDU_DELAY=0.1 in its environment.

  rping -s -a 192.0.2.1 -v                                              there
  cargo run --release --example rping -- -c -a 192.0.2.1 -C 10 -v -V    here

Exit code: 0 if all went as it must, 1 with one line on standard error if not, 2 for wrong usage.";

fn main() -> ExitCode {
    let args = Args::parse();
    let result =
        if args.listen { run(server::serve(args.plan())) } else { run(client::ping(args.plan())) };
    Failure::exit("rping", result)
}

/// What is to be done, with nothing left open.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    host: String,
    port: u16,
    count: Option<NonZeroU64>,
    /// Octets of a ping: of a client's, or of the largest that a server takes.
    size: u32,
    validate: bool,
    persistent: bool,
    talk: Talk,
    wire: WireArgs,
}

impl Args {
    fn plan(self) -> Plan {
        let (host, size) = if self.listen { ("0.0.0.0", SIZE_MAX) } else { ("", SIZE_DEFAULT) };
        Plan {
            host: self.address.unwrap_or_else(|| host.to_owned()),
            port: self.port,
            count: NonZeroU64::new(self.count),
            size: self.size.unwrap_or(size),
            validate: self.validate,
            persistent: self.persistent,
            talk: Talk { verbose: self.verbose, debug: self.debug },
            wire: self.wire,
        }
    }
}

fn parse_size(text: &str) -> Result<u32, String> {
    let size = text.parse().ok().filter(|size| (SIZE_MIN..=SIZE_MAX).contains(size));
    size.ok_or_else(|| format!("a ping has {SIZE_MIN} to {SIZE_MAX} octets"))
}

fn run<T>(task: impl Future<Output = Result<T>>) -> Result<T> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    LocalSet::new().block_on(&runtime, task)
}
