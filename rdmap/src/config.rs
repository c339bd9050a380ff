//! What a stream is told when it starts.

use std::time::Duration;

use iwarp_mpa::{Framing, Negotiated, Role, Rtr, SizePlan};

/// Parameters of one stream: what the MPA start-up settled, and limits of this side.
#[derive(Clone, Debug, PartialEq, Eq)]
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
    /// Number of the first message on queues 0 and 1, in both directions. 1, and nothing else on a real
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
            hold_back: Duration::from_secs(5),
            partial_fpdu: Duration::from_secs(30),
            close_grace: Duration::from_secs(3),
            response_burst: 4,
            input_burst: 256,
            first_msn: 1,
        }
    }
}
