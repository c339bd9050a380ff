//! What is told on the way: lines for people, one JSON object for programs.

use std::{
    fmt::Display,
    net::SocketAddr,
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use iwarp_examples::human::{Octets, Rate, Time};
use iwarp_verbs::cm::Connection;
use serde::Serialize;

/// One end's account of what happened.
#[derive(Debug)]
pub(crate) struct Story {
    /// Stands before each line where both ends tell theirs to one terminal.
    name: &'static str,
    /// Standard output belongs to the JSON object; the lines go to standard error.
    json: bool,
    facts: Mutex<Facts>,
}

/// The same for programs.
#[derive(Clone, Debug, Default, Serialize)]
pub(crate) struct Facts {
    #[serde(skip_serializing_if = "Option::is_none")]
    connection: Option<Wire>,
    steps: Vec<Step>,
}

/// What the two ends agreed on.
#[derive(Clone, Debug, Serialize)]
struct Wire {
    local: SocketAddr,
    peer: SocketAddr,
    mpa_revision: u8,
    crc: bool,
    reads_out: u32,
    reads_in: u32,
}

/// One thing that was done, and found to be right.
#[derive(Clone, Debug, Serialize)]
struct Step {
    operation: &'static str,
    octets: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    nanoseconds: Option<u64>,
    outcome: String,
}

impl Story {
    /// `name` is empty, or ends in what separates it from the lines.
    pub(crate) fn new(name: &'static str, json: bool) -> Self {
        Self { name, json, facts: Mutex::default() }
    }

    /// Tells a line.
    pub(crate) fn say(&self, line: impl Display) {
        if self.json {
            eprintln!("{}{line}", self.name);
        } else {
            println!("{}{line}", self.name);
        }
    }

    /// Tells how the connection came out.
    pub(crate) fn connected(&self, conn: &Connection, took: Option<Duration>) {
        let wire = Wire {
            local: conn.local_addr(),
            peer: conn.peer_addr(),
            mpa_revision: conn.revision(),
            crc: conn.crc(),
            reads_out: conn.ord(),
            reads_in: conn.ird(),
        };
        let took = took.map_or_else(String::new, |took| format!(" in {}", Time(took)));
        self.say(format_args!(
            "connected with {}{took}: MPA revision {}, CRC {}, RDMA Reads at once: {} out, {} in",
            wire.peer,
            wire.mpa_revision,
            if wire.crc { "on" } else { "off" },
            wire.reads_out,
            wire.reads_in,
        ));
        self.lock().connection = Some(wire);
    }

    /// Tells of something that was done.
    pub(crate) fn did(
        &self,
        operation: &'static str,
        octets: u64,
        took: Option<Duration>,
        outcome: impl Display,
    ) {
        let size = Octets(octets).to_string();
        let speed = took.map_or_else(String::new, |took| {
            let time = Time(took).to_string();
            // The rate of a small message says nothing.
            let rate = (octets >= 64 << 10).then(|| format!(", {}", Rate(octets, took)));
            format!(" in {time:>8}{}", rate.unwrap_or_default())
        });
        self.say(format_args!("{operation:<21} {size:>9}{speed}: {outcome}"));
        let nanoseconds = took.map(|took| u64::try_from(took.as_nanos()).unwrap_or(u64::MAX));
        let outcome = outcome.to_string();
        self.lock().steps.push(Step { operation, octets, nanoseconds, outcome });
    }

    /// What has been told, for programs.
    pub(crate) fn facts(&self) -> Facts {
        self.lock().clone()
    }

    fn lock(&self) -> MutexGuard<'_, Facts> {
        self.facts.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
