//! The command line.

use std::{net::SocketAddr, path::PathBuf};

use clap::{Args, Parser, Subcommand, ValueEnum};

use crate::case::{Fpdu, Op, Wait, parse_fpdu, parse_octets};

/// Speed of iWARP verbs, as a ratio to plain TCP doing the same work in the same run.
///
/// Without a command it runs the whole table of targets. The program starts itself a second time as the server, each of
/// both pinned to a processor of its own, in a network namespace of its own where that is allowed. With `serve` on one
/// host and `--connect` on the other it measures between two hosts.
///
/// Each case runs once in each round, plain TCP right before iWARP. A ratio is that of one round; what is shown is
/// the median over rounds, with minimum and maximum in brackets. Latencies are medians of a round.
#[derive(Debug, Parser)]
#[command(
    name = "iwarp-bench",
    version,
    max_term_width = 120,
    args_conflicts_with_subcommands = false
)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Option<What>,
    #[command(flatten)]
    pub(crate) run: Run,
    #[command(flatten)]
    pub(crate) wire: WireArgs,
    #[command(flatten)]
    pub(crate) output: Output,
}

#[derive(Debug, Subcommand)]
pub(crate) enum What {
    /// All rows of the table of targets, with bar, goal and verdict (the default).
    Table {
        /// Only these rows; fairness is row 17.
        #[arg(long, value_delimiter = ',', value_name = "ROW")]
        rows: Vec<u8>,
        /// Print the table as Markdown.
        #[arg(long)]
        markdown: bool,
    },
    /// One message at a time: half round trips of Writes and Sends, whole Reads and Atomics.
    Latency {
        /// What is measured. An Atomic works on 8 octets: of the sizes it takes that one.
        #[arg(long, value_enum, value_delimiter = ',', default_values = ["write", "send", "read"])]
        op: Vec<Op>,
        #[arg(long, value_enum, value_delimiter = ',', default_values = ["poll"])]
        wait: Vec<Wait>,
        /// Octets of a message.
        #[arg(long, value_delimiter = ',', value_parser = parse_octets,
              default_values = ["1", "8", "64", "256", "1k", "4k", "16k", "64k"])]
        size: Vec<usize>,
    },
    /// As many large messages as go.
    Bandwidth {
        /// What is measured. Atomics have no bandwidth, and are refused.
        #[arg(long, value_enum, value_delimiter = ',', default_values = ["write", "send", "read"])]
        op: Vec<Op>,
        #[arg(long, value_enum, value_delimiter = ',', default_values = ["poll"])]
        wait: Vec<Wait>,
        /// Octets of a message.
        #[arg(long, value_delimiter = ',', value_parser = parse_octets,
              default_values = ["4k", "16k", "64k", "256k", "1m"])]
        size: Vec<usize>,
        /// Messages that may be outstanding.
        #[arg(long, default_value_t = 16)]
        depth: usize,
        /// Buffers that are taken in turn, at the source and at the destination.
        #[arg(long, default_value_t = 1)]
        footprint: usize,
        /// Both ends send at once.
        #[arg(long)]
        bidirectional: bool,
    },
    /// As many small messages as go, against one write call for each.
    Rate {
        /// What is measured. An Atomic works on 8 octets: of the sizes it takes that one, and depths up to 128.
        #[arg(long, value_enum, value_delimiter = ',', default_values = ["write"])]
        op: Vec<Op>,
        /// Octets of a message.
        #[arg(long, value_delimiter = ',', value_parser = parse_octets, default_values = ["8", "64", "256"])]
        size: Vec<usize>,
        /// Messages that may be outstanding, at least as many as the list is long.
        #[arg(long, default_value_t = 64)]
        depth: usize,
        /// Requests that are posted with one call.
        #[arg(long, value_delimiter = ',', default_values = ["1", "64"])]
        list: Vec<usize>,
    },
    /// Many connections: what idle ones take and cost, and what busy ones share.
    Connections {
        /// Idle connections.
        #[arg(long, default_value_t = 10_000)]
        idle: usize,
        /// Busy connections.
        #[arg(long, value_delimiter = ',', default_values = ["2", "8", "64"])]
        busy: Vec<usize>,
    },
    /// A target that makes no call and only looks at its memory.
    Target,
    /// Small Sends beside a bulk Write of another queue pair.
    Fairness,
    /// Be the server, for a client on another host.
    Serve {
        /// Where to listen.
        #[arg(long, default_value = "0.0.0.0:18515")]
        listen: SocketAddr,
        /// End after one client.
        #[arg(long)]
        once: bool,
        /// End when the standard input does: with the process that started this one.
        #[arg(long, hide = true)]
        tied: bool,
    },
}

#[derive(Debug, Args)]
#[command(next_help_heading = "Run")]
pub(crate) struct Run {
    /// Fewer cases, 3 rounds, short: under a minute.
    #[arg(long, global = true)]
    pub(crate) quick: bool,
    /// Rounds. By default 5, or 3 with --quick.
    #[arg(long, global = true, value_parser = parse_rounds)]
    pub(crate) rounds: Option<usize>,
    /// Seconds of each case in each round. By default 0.4, or 0.12 with --quick. Warm-up is a fifth more.
    #[arg(long, global = true, value_parser = parse_seconds)]
    pub(crate) seconds: Option<f64>,
    /// Use a server that was started with `serve`.
    #[arg(long, global = true, value_name = "ADDRESS")]
    pub(crate) connect: Option<SocketAddr>,
    /// Processors of client and server, or none.
    #[arg(long, global = true, value_name = "CLIENT,SERVER", default_value = "0,1", value_parser = parse_pins)]
    pub(crate) pin: Pins,
    /// Congestion control in the namespace; default leaves what is.
    #[arg(long, global = true, value_name = "NAME", default_value = "reno")]
    pub(crate) congestion: String,
    /// Run in the network as it is, not in a namespace of its own.
    #[arg(long, global = true)]
    pub(crate) shared_network: bool,
}

/// Where both ends run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Pins(pub(crate) Option<(usize, usize)>);

#[derive(Debug, Args)]
#[command(next_help_heading = "Wire")]
pub(crate) struct WireArgs {
    /// CRC. The table has its own.
    #[arg(long, global = true, value_enum, default_value_t = Crc::On)]
    pub(crate) crc: Crc,
    /// Ask for markers.
    #[arg(long, global = true)]
    pub(crate) markers: bool,
    /// The longest FPDU, in octets, or emss for one TCP segment. Without it the library decides.
    #[arg(long, global = true, value_name = "emss|OCTETS", value_parser = parse_fpdu)]
    pub(crate) fpdu: Option<Fpdu>,
    /// Messages up to so many octets are posted as inline data; 0 for none.
    #[arg(long, global = true, value_name = "OCTETS", default_value_t = 128)]
    pub(crate) inline: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Crc {
    On,
    Off,
    Both,
}

#[derive(Debug, Args)]
#[command(next_help_heading = "Output")]
pub(crate) struct Output {
    /// Print everything as one JSON object: samples of all rounds, and the environment.
    #[arg(long, global = true)]
    pub(crate) json: bool,
    /// Draw latency and bandwidth against size, ours and TCP.
    #[arg(long, global = true, value_name = "FILE.svg")]
    pub(crate) plot: Option<PathBuf>,
}

fn parse_rounds(text: &str) -> Result<usize, String> {
    let rounds = text.parse().ok().filter(|rounds| (1..=1000).contains(rounds));
    rounds.ok_or_else(|| format!("{text}: expected rounds from 1 to 1000"))
}

fn parse_seconds(text: &str) -> Result<f64, String> {
    let seconds = text.parse().ok().filter(|seconds| (0.001..=60.0).contains(seconds));
    seconds.ok_or_else(|| format!("{text}: expected seconds from 0.001 to 60"))
}

fn parse_pins(text: &str) -> Result<Pins, String> {
    if text == "none" {
        return Ok(Pins(None));
    }
    text.split_once(',')
        .and_then(|(client, server)| {
            Some(Pins(Some((client.trim().parse().ok()?, server.trim().parse().ok()?))))
        })
        .ok_or_else(|| format!("{text}: expected two processors, like 0,1, or none"))
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;

    #[test]
    fn the_command_line_makes_sense() {
        Cli::command().debug_assert();
        let cli = Cli::try_parse_from([
            "iwarp-bench",
            "latency",
            "--size",
            "64,4k",
            "--wait",
            "poll,block",
            "--pin",
            "none",
            "--crc",
            "both",
        ])
        .expect("a command line");
        assert_eq!(cli.run.pin, Pins(None));
        assert_eq!(cli.wire.crc, Crc::Both);
        match cli.command {
            Some(What::Latency { size, wait, .. }) => {
                assert_eq!((size, wait), (vec![64, 4096], vec![Wait::Poll, Wait::Block]));
            }
            other => panic!("{other:?}"),
        }
        let bare = Cli::try_parse_from(["iwarp-bench", "--quick"]).expect("bare");
        assert!(bare.run.quick && bare.command.is_none());
    }

    #[test]
    fn pins_are_read() {
        assert_eq!(parse_pins("0,3"), Ok(Pins(Some((0, 3)))));
        assert_eq!(parse_pins("none"), Ok(Pins(None)));
        assert!(parse_pins("1").is_err());
        for text in ["nan", "0", "-1", "61", "x"] {
            assert!(parse_seconds(text).is_err(), "{text}");
        }
        assert_eq!(parse_seconds("0.25"), Ok(0.25));
        assert!(parse_rounds("0").is_err());
    }
}
