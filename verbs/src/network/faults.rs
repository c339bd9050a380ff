//! What a [`MemoryNetwork`](super::MemoryNetwork) does to its connections.

use std::fmt;
use std::ops::RangeInclusive;

/// One of the two streams of octets of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Direction {
    /// From the side that connected to the side that listened.
    ToResponder,
    /// From the side that listened to the side that connected.
    ToInitiator,
}

impl Direction {
    /// Both.
    pub const BOTH: [Self; 2] = [Self::ToResponder, Self::ToInitiator];

    pub(super) const fn index(self) -> usize {
        match self {
            Self::ToResponder => 0,
            Self::ToInitiator => 1,
        }
    }

    pub(super) const fn reverse(self) -> Self {
        match self {
            Self::ToResponder => Self::ToInitiator,
            Self::ToInitiator => Self::ToResponder,
        }
    }
}

impl fmt::Display for Direction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::ToResponder => "to the responder",
            Self::ToInitiator => "to the initiator",
        })
    }
}

/// How a connection is dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Loss {
    /// As by a TCP reset: what was sent before is still received, then both sides find the connection reset.
    Reset,
    /// As when the peer's process goes: both sides find the end of the stream, in the middle of an FPDU
    /// perhaps.
    Close,
}

impl fmt::Display for Loss {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Reset => "reset",
            Self::Close => "closed",
        })
    }
}

/// Places of a stream that no single read, or no single write, goes beyond.
///
/// The places depend on the seed and on nothing else: neither on time nor on what the other side does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cuts {
    pub(super) lengths: (u64, u64),
    pub(super) waits: (u64, u64),
}

impl Cuts {
    /// Cuts the stream into pieces of so many octets, drawn anew for each piece.
    ///
    /// # Panics
    /// If the range is empty or begins with 0: nothing would ever move.
    #[must_use]
    pub const fn of(lengths: RangeInclusive<u64>) -> Self {
        let (least, most) = (*lengths.start(), *lengths.end());
        assert!(least > 0, "pieces of no octets: nothing would ever move");
        assert!(least <= most, "the range of lengths is empty");
        Self { lengths: (least, most), waits: (0, 0) }
    }

    /// Has so many attempts, drawn anew for each piece, find that nothing goes before the piece does: an octet
    /// that is late, or a buffer that is full. Attempts are counted and no time is, so that no test waits.
    ///
    /// # Panics
    /// If the range is empty.
    #[must_use]
    pub const fn waits(mut self, attempts: RangeInclusive<u32>) -> Self {
        assert!(*attempts.start() <= *attempts.end(), "the range of attempts is empty");
        self.waits = (*attempts.start() as u64, *attempts.end() as u64);
        self
    }
}

/// What goes wrong on the connections of a [`MemoryNetwork`](super::MemoryNetwork).
///
/// ```
/// use iwarp_verbs::{Cuts, Faults};
///
/// let faults = Faults::none()
///     .cut_reads(Cuts::of(1..=100).waits(0..=2))
///     .cut_writes(Cuts::of(1..=1000))
///     .reset_within(10_000);
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Faults {
    pub(super) reads: Option<Cuts>,
    pub(super) writes: Option<Cuts>,
    pub(super) drop: Option<Drop>,
}

/// Where a connection is dropped.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Drop {
    At { direction: Direction, octet: u64, loss: Loss },
    Within { octets: u64, loss: Loss },
}

impl Faults {
    /// Octets arrive at once and in any amount, and connections last.
    #[must_use]
    pub const fn none() -> Self {
        Self { reads: None, writes: None, drop: None }
    }

    /// Has both sides receive no more than a piece at once.
    #[must_use]
    pub const fn cut_reads(mut self, cuts: Cuts) -> Self {
        self.reads = Some(cuts);
        self
    }

    /// Takes no more than a piece at once from either side.
    #[must_use]
    pub const fn cut_writes(mut self, cuts: Cuts) -> Self {
        self.writes = Some(cuts);
        self
    }

    /// Drops each connection once so many octets were sent in this direction, counted from the very first,
    /// the MPA start-up included. 0 drops it at once. Replaces an earlier drop.
    #[must_use]
    pub const fn drop_at(mut self, direction: Direction, octet: u64, loss: Loss) -> Self {
        self.drop = Some(Drop::At { direction, octet, loss });
        self
    }

    /// Resets each connection after fewer than so many octets of one direction; both are drawn. Replaces an
    /// earlier drop.
    ///
    /// # Panics
    /// If `octets` is 0.
    #[must_use]
    pub const fn reset_within(self, octets: u64) -> Self {
        self.drop_within(octets, Loss::Reset)
    }

    /// Drops each connection as [`reset_within`](Self::reset_within) does, in this way.
    ///
    /// # Panics
    /// If `octets` is 0.
    #[must_use]
    pub const fn drop_within(mut self, octets: u64, loss: Loss) -> Self {
        assert!(octets > 0, "no octet is within 0 octets");
        self.drop = Some(Drop::Within { octets, loss });
        self
    }
}
