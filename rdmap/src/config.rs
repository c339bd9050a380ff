//! What a stream is told when it starts.

use std::time::{Duration, Instant};

use iwarp_mpa::{Framing, Negotiated, Role, Rtr, SizePlan};

/// Parameters of one stream: what the MPA start-up settled, and limits of this side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct StreamConfig {
    /// This side of the start-up. A responder's sender is held until one FPDU was received (MPA-029).
    pub role: Role,
    /// Markers and CRC.
    pub framing: Framing,
    /// Read Requests of the peer that may be unanswered at a time.
    pub ird: u32,
    /// Own Read Requests that may be unanswered at a time. With 0, Reads fail.
    pub ord: u32,
    /// Initiator: the RTR message to send before anything else. Responder: the one agreed on.
    pub rtr: Option<Rtr>,
    /// Sizes of FPDUs.
    pub size: SizePlan,
    /// A Send that finds no receive posted ends the stream at once, instead of being held back
    /// (conformance decision D2).
    pub strict_receive: bool,
    /// Whether the messages of RFC 7306 are served: Immediate Data and Atomic Operations. By default they
    /// are; without, the peer learns that they are unexpected (EXT-02).
    pub extensions: bool,
    /// How long a Send may be held back. 5 s by default.
    pub hold_back: Duration,
    /// How long an FPDU may stay incomplete, from its first octet on. 30 s by default.
    pub partial_fpdu: Duration,
    /// How long an end may take: from the error, or from the last octet of an orderly close, to the
    /// peer's FIN. 3 s by default.
    pub close_grace: Duration,
    /// FPDUs in a row that Read Responses, or own messages, send while the other side of the two waits.
    /// 4 by default, at least 1.
    pub response_burst: usize,
    /// FPDUs that one call of [`Stream::handle_input`](crate::Stream::handle_input) works on at most. 256
    /// by default, at least 1.
    pub input_burst: usize,
    /// Number of the first message on queues 0, 1 and 3, in both directions. 1, and nothing else on a real
    /// connection (DDP-022): another value lets a test begin next to the wrap.
    pub first_msn: u32,
}

impl StreamConfig {
    /// What the start-up settled, with default limits.
    #[must_use]
    pub fn new(negotiated: &Negotiated, size: SizePlan) -> Self {
        Self {
            role: negotiated.role,
            framing: Framing::from(negotiated),
            ird: negotiated.ird,
            ord: negotiated.ord,
            rtr: negotiated.rtr,
            size,
            strict_receive: false,
            extensions: true,
            hold_back: Duration::from_secs(5),
            partial_fpdu: Duration::from_secs(30),
            close_grace: Duration::from_secs(3),
            response_burst: 4,
            input_burst: 256,
            first_msn: 1,
        }
    }
}

/// What of the parameters a stream needs all its life, in little memory.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    pub(crate) size: SizePlan,
    pub(crate) hold_back: Span,
    pub(crate) partial_fpdu: Span,
    pub(crate) close_grace: Span,
    /// At least 1.
    pub(crate) input_burst: u32,
    pub(crate) crc: bool,
}

impl From<&StreamConfig> for Limits {
    fn from(config: &StreamConfig) -> Self {
        Self {
            size: config.size,
            hold_back: Span::new(config.hold_back),
            partial_fpdu: Span::new(config.partial_fpdu),
            close_grace: Span::new(config.close_grace),
            input_burst: u32::try_from(config.input_burst.max(1)).unwrap_or(u32::MAX),
            crc: config.framing.crc,
        }
    }
}

/// A length of time in nanoseconds; the largest stands for all that is longer, 584 years and endless.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Span(u64);

impl Span {
    fn new(length: Duration) -> Self {
        Self(u64::try_from(length.as_nanos()).unwrap_or(u64::MAX))
    }

    /// When it is over; `None` if that is never.
    pub(crate) fn after(self, now: Instant) -> Option<Instant> {
        if self.0 == u64::MAX { None } else { now.checked_add(Duration::from_nanos(self.0)) }
    }
}
