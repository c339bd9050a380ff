//! What is measured: one case, as both ends are told.

use std::{fmt, time::Duration};

use anyhow::{Result, ensure};
use clap::ValueEnum;
use iwarp_verbs::{FpduLimit, cm::ConnParam};
use serde::{Deserialize, Serialize};

/// One thing to do for a while, with plain TCP or with iWARP.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Case {
    pub(crate) stack: Stack,
    pub(crate) work: Work,
    /// Octets of a message.
    pub(crate) size: usize,
    pub(crate) wait: Wait,
    pub(crate) wire: Wire,
}

/// Octets of all buffers of a case together.
const MEMORY_MOST: usize = 8 << 30;
/// Requests, and connections, of a case.
const COUNT_MOST: usize = 1 << 20;
/// Octets of what an Atomic works on.
pub(crate) const ATOMIC: usize = 8;
/// Reads or Atomics that a connection of a case may be granted (ORD).
pub(crate) const ORD_MOST: usize = 128;

impl Case {
    /// Whether it can be done at all: it may have come over the network.
    pub(crate) fn check(&self) -> Result<()> {
        ensure!(self.size > 0, "messages of no octets cannot be told apart");
        if self.op() == Some(Op::Atomic) {
            ensure!(self.size == ATOMIC, "an Atomic works on {ATOMIC} octets, not {}", self.size);
        }
        if let Work::Stream(Stream { op: Op::Atomic, depth, .. }) = self.work {
            ensure!(
                depth <= ORD_MOST,
                "{depth} Atomics are more than the {ORD_MOST} that may be outstanding (ORD)"
            );
        }
        let (footprint, counts) = match self.work {
            Work::Stream(s) => (s.footprint, [s.depth, s.list, s.footprint, s.connections]),
            Work::Idle { connections } => (1, [1, 1, 1, connections.max(1)]),
            Work::PingPong { .. } | Work::Fairness { .. } | Work::Target { .. } => (1, [1; 4]),
        };
        for count in counts {
            ensure!((1..=COUNT_MOST).contains(&count), "{count} is none of 1 to {COUNT_MOST}");
        }
        let octets = self.size.checked_mul(footprint);
        ensure!(
            octets.is_some_and(|octets| octets <= MEMORY_MOST),
            "{footprint} buffers of {} octets are more than {MEMORY_MOST} octets",
            self.size
        );
        Ok(())
    }

    /// The operation, where one can be chosen.
    pub(crate) fn op(&self) -> Option<Op> {
        match self.work {
            Work::PingPong { op } | Work::Stream(Stream { op, .. }) => Some(op),
            Work::Idle { .. } | Work::Fairness { .. } | Work::Target { .. } => None,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Stack {
    Tcp,
    Iwarp,
}

#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Work {
    /// Messages there and back, one at a time. Where the operation [is answered](Op::is_answered), the client has
    /// one of them at a time.
    PingPong { op: Op },
    /// As many messages as go, from the client or from both ends.
    Stream(Stream),
    /// Ping-pong by Write, beside connections that do nothing, and the memory that these take.
    Idle { connections: usize },
    /// Ping-pong by Send, beside a saturating Write of another queue pair of the same process.
    Fairness { bulk: bool },
    /// Writes to a target that makes no call, from a client that sleeps between them, or polls.
    Target { sleeps: bool },
}

#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Stream {
    pub(crate) op: Op,
    /// Messages of a connection that may be outstanding.
    pub(crate) depth: usize,
    /// Requests that are posted with one call.
    pub(crate) list: usize,
    /// Buffers taken in turn, at the source and at the destination.
    pub(crate) footprint: usize,
    pub(crate) both_ways: bool,
    pub(crate) connections: usize,
    /// For TCP: one copy and one CRC at each end, the least work that CRC on asks for.
    pub(crate) summed: bool,
}

impl Default for Stream {
    fn default() -> Self {
        Self {
            op: Op::Write,
            depth: 16,
            list: 1,
            footprint: 1,
            both_ways: false,
            connections: 1,
            summed: false,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Op {
    /// RDMA Write.
    Write,
    /// RDMA Write with immediate data, which completes a posted receive.
    WriteImm,
    /// Send, into a posted receive.
    Send,
    /// RDMA Read.
    Read,
    /// `FetchAdd` on one number of 64 bits: messages of 8 octets only.
    Atomic,
}

impl Op {
    /// Whether the peer's library answers each of them: what it takes is a whole operation.
    pub(crate) const fn is_answered(self) -> bool {
        matches!(self, Self::Read | Self::Atomic)
    }

    /// Whether each of them completes a receive of the peer.
    pub(crate) const fn takes_receive(self) -> bool {
        matches!(self, Self::Send | Self::WriteImm)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Wait {
    /// Both ends look for it all the time.
    Poll,
    /// Both ends sleep in the kernel.
    Block,
    /// Both ends await it, in tokio's current-thread runtime.
    Await,
}

/// How an iWARP stream looks on the wire.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Wire {
    pub(crate) crc: bool,
    pub(crate) markers: bool,
    pub(crate) fpdu: Option<Fpdu>,
    /// Messages up to so many octets are copied when they are posted (inline data).
    pub(crate) inline: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Fpdu {
    Emss,
    Octets(u32),
}

impl Wire {
    /// What plain TCP is given, so that equal cases are equal.
    pub(crate) const NONE: Self = Self { crc: false, markers: false, fpdu: None, inline: 0 };

    pub(crate) fn param(&self) -> ConnParam {
        let param = ConnParam::default().crc(self.crc).markers(self.markers);
        match self.fpdu {
            None => param,
            Some(Fpdu::Emss) => param.fpdu_limit(FpduLimit::Emss),
            Some(Fpdu::Octets(octets)) => param.fpdu_limit(FpduLimit::Octets(octets)),
        }
    }
}

/// How long a case takes.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Pace {
    /// Seconds before the measurement.
    pub(crate) warm_up: f64,
    /// Seconds of the measurement.
    pub(crate) seconds: f64,
}

impl Pace {
    pub(crate) fn new(seconds: f64) -> Self {
        Self { warm_up: seconds / 5.0, seconds }
    }

    /// Whether it is a time at all.
    pub(crate) fn check(self) -> Result<()> {
        for seconds in [self.warm_up, self.seconds] {
            ensure!((0.0..=3600.0).contains(&seconds), "{seconds} s is none of 0 to 3,600 s");
        }
        Ok(())
    }

    pub(crate) fn warm_up(self) -> Duration {
        Duration::from_secs_f64(self.warm_up)
    }

    pub(crate) fn seconds(self) -> Duration {
        Duration::from_secs_f64(self.seconds)
    }

    /// After so long something has gone wrong.
    pub(crate) fn limit(self) -> Duration {
        self.warm_up() + self.seconds() + Duration::from_secs(20)
    }
}

impl fmt::Display for Op {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Write => "Write",
            Self::WriteImm => "Write with immediate",
            Self::Send => "Send",
            Self::Read => "Read",
            Self::Atomic => "Atomic",
        })
    }
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.stack {
            Stack::Tcp => "TCP",
            Stack::Iwarp => "iWARP",
        })?;
        match self.work {
            Work::PingPong { op } if self.stack == Stack::Iwarp => write!(f, " {op} ping-pong")?,
            Work::PingPong { .. } => f.write_str(" ping-pong")?,
            Work::Stream(s) => {
                match self.stack {
                    Stack::Iwarp => write!(f, " {} stream, depth {}", s.op, s.depth)?,
                    Stack::Tcp => f.write_str(" stream")?,
                }
                if s.list > 1 {
                    write!(f, ", lists of {}", s.list)?;
                }
                if s.footprint > 1 {
                    write!(f, ", {} buffers", s.footprint)?;
                }
                if s.both_ways {
                    f.write_str(", both ways")?;
                }
                if s.connections > 1 {
                    write!(f, ", {} connections", s.connections)?;
                }
                if s.summed {
                    f.write_str(", copied and summed")?;
                }
            }
            Work::Idle { connections } => write!(f, " beside {connections} idle")?,
            Work::Fairness { bulk: true } => f.write_str(" Send beside a bulk Write")?,
            Work::Fairness { bulk: false } => f.write_str(" Send alone")?,
            Work::Target { sleeps: true } => f.write_str(" to a silent target, client sleeps")?,
            Work::Target { sleeps: false } => f.write_str(" to a silent target")?,
        }
        write!(f, ", {}", Octets(self.size))?;
        match self.wait {
            Wait::Poll => {}
            Wait::Block => f.write_str(", blocking")?,
            Wait::Await => f.write_str(", await")?,
        }
        if self.stack == Stack::Iwarp {
            f.write_str(if self.wire.crc { ", CRC" } else { ", no CRC" })?;
            if self.wire.markers {
                f.write_str(", markers")?;
            }
            match self.wire.fpdu {
                None => {}
                Some(Fpdu::Emss) => f.write_str(", FPDU emss")?,
                Some(Fpdu::Octets(octets)) => write!(f, ", FPDU {octets}")?,
            }
        }
        Ok(())
    }
}

/// A size for people: `64 B`, `4 KiB`.
pub(crate) struct Octets(pub(crate) usize);

impl fmt::Display for Octets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            n if n >= 1 << 20 && n.is_multiple_of(1 << 20) => write!(f, "{} MiB", n >> 20),
            n if n >= 1 << 10 && n.is_multiple_of(1 << 10) => write!(f, "{} KiB", n >> 10),
            n => write!(f, "{n} B"),
        }
    }
}

/// Reads `64`, `4k`, `1m`.
pub(crate) fn parse_octets(text: &str) -> Result<usize, String> {
    let lower = text.to_ascii_lowercase();
    let lower = lower.trim_end_matches("ib").trim_end_matches('b');
    let (digits, unit) = match lower.as_bytes().last() {
        Some(b'k') => (&lower[..lower.len() - 1], 1 << 10),
        Some(b'm') => (&lower[..lower.len() - 1], 1 << 20),
        Some(b'g') => (&lower[..lower.len() - 1], 1 << 30),
        _ => (lower, 1),
    };
    digits
        .parse::<usize>()
        .ok()
        .and_then(|n| n.checked_mul(unit))
        .filter(|n| (1..=1 << 30).contains(n))
        .ok_or_else(|| format!("{text}: expected octets from 1 to 1g, like 64, 4k or 1m"))
}

/// Reads `emss` or octets.
pub(crate) fn parse_fpdu(text: &str) -> Result<Fpdu, String> {
    if text.eq_ignore_ascii_case("emss") {
        return Ok(Fpdu::Emss);
    }
    let octets = parse_octets(text)?;
    u32::try_from(octets).map(Fpdu::Octets).map_err(|_| format!("{text} is too long"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cannot_be_done_is_refused() {
        let case =
            |size, work| Case { stack: Stack::Tcp, work, size, wait: Wait::Poll, wire: Wire::NONE };
        let stream = Stream::default();
        let refused = [
            case(0, Work::PingPong { op: Op::Send }),
            case(1, Work::Stream(Stream { depth: 0, ..stream })),
            case(1, Work::Stream(Stream { connections: COUNT_MOST + 1, ..stream })),
            case(usize::MAX, Work::Stream(Stream { footprint: 2, ..stream })),
            case(MEMORY_MOST + 1, Work::PingPong { op: Op::Send }),
            case(64, Work::PingPong { op: Op::Atomic }),
            case(1, Work::Stream(Stream { op: Op::Atomic, ..stream })),
            case(8, Work::Stream(Stream { op: Op::Atomic, depth: ORD_MOST + 1, ..stream })),
        ];
        assert!(refused.iter().all(|case| case.check().is_err()));
        assert!(case(1, Work::Stream(stream)).check().is_ok());
        let atomics = Stream { op: Op::Atomic, depth: ORD_MOST, ..stream };
        assert!(case(8, Work::Stream(atomics)).check().is_ok());
        assert!(case(8, Work::PingPong { op: Op::Atomic }).check().is_ok());
        for seconds in [-1.0, f64::NAN, f64::INFINITY] {
            assert!(Pace::new(seconds).check().is_err());
        }
        assert!(Pace::new(0.1).check().is_ok());
    }

    #[test]
    fn sizes_are_read_and_written() {
        for (text, octets) in
            [("1", 1), ("64", 64), ("4k", 4096), ("64KiB", 65536), ("1m", 1 << 20)]
        {
            assert_eq!(parse_octets(text), Ok(octets), "{text}");
        }
        for text in ["", "0", "k", "-1", "2g", "1.5k", "99999999999999999999"] {
            assert!(parse_octets(text).is_err(), "{text}");
        }
        assert_eq!(Octets(64).to_string(), "64 B");
        assert_eq!(Octets(4096).to_string(), "4 KiB");
        assert_eq!(Octets(1 << 20).to_string(), "1 MiB");
        assert_eq!(Octets(1500).to_string(), "1500 B");
    }

    #[test]
    fn fpdu_limits_are_read() {
        assert_eq!(parse_fpdu("emss"), Ok(Fpdu::Emss));
        assert_eq!(parse_fpdu("16k"), Ok(Fpdu::Octets(16384)));
        assert!(parse_fpdu("small").is_err());
    }

    #[test]
    fn a_case_survives_the_wire() {
        let case = Case {
            stack: Stack::Iwarp,
            work: Work::Stream(Stream { list: 64, ..Stream::default() }),
            size: 64,
            wait: Wait::Block,
            wire: Wire { crc: true, markers: false, fpdu: Some(Fpdu::Octets(1408)), inline: 128 },
        };
        let text = serde_json::to_string(&case).expect("text");
        assert_eq!(serde_json::from_str::<Case>(&text).expect("the same"), case);
    }
}
