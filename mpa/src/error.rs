//! Everything that can go wrong below DDP, and what it means on the wire.

/// An error of MPA.
///
/// [`Error::code`] gives the error code of RFC 5044 §8 that belongs to it. Nothing here closes or
/// resets anything: what follows from an error is decided above, so that a Terminate can still go
/// out.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The exchange of start-up frames failed.
    #[error("MPA start-up failed: {0}")]
    Startup(#[from] StartupError),

    /// The CRC of an FPDU does not fit its octets; nothing of it was handed up.
    #[error(
        "CRC of the FPDU at stream offset {position} is {computed:#010x}, \
         the FPDU says {received:#010x}"
    )]
    Crc {
        /// Stream offset of the first octet of the FPDU.
        position: u64,
        /// CRC32c of the octets received.
        computed: u32,
        /// CRC32c the FPDU carries.
        received: u32,
    },

    /// A marker does not point to the FPDU that `ULPDU_Length` describes.
    #[error(
        "marker at stream offset {position} says {found}, its FPDU starts {expected} octets before"
    )]
    Marker {
        /// Stream offset of the marker.
        position: u64,
        /// FPDUPTR that would be right there.
        expected: u16,
        /// FPDUPTR received, without its two low bits.
        found: u16,
    },

    /// The peer ended its direction of the stream inside an FPDU.
    #[error("stream ended {received} octets into the FPDU at stream offset {position}")]
    Truncated {
        /// Stream offset of the first octet of the FPDU.
        position: u64,
        /// Octets of the FPDU that did arrive.
        received: usize,
    },

    /// A ULPDU to be sent is longer than MPA allows.
    #[error("ULPDU of {len} octets, at most {max} can be sent")]
    UlpduTooLong {
        /// Length asked for.
        len: usize,
        /// [`ULPDU_MAX_SENT`](crate::ULPDU_MAX_SENT).
        max: usize,
    },

    /// The room for an FPDU to be sent is too small.
    #[error("FPDU takes {need} octets, there is room for {have}")]
    BufferTooSmall {
        /// Octets the FPDU takes.
        need: usize,
        /// Octets that were there.
        have: usize,
    },

    /// A payload can stay where it is only while neither CRC nor markers are in use.
    #[error("payload cannot be gathered while CRC or markers are in use")]
    GatherUnavailable,
}

impl Error {
    /// The MPA error code: 1 closed, 2 CRC, 3 marker and length disagree, 4 invalid start-up frame.
    ///
    /// `None` for a mistake of this side's program, which no peer needs to hear of. Codes 2 and 3
    /// are for a Terminate (layer 2, type 0); 1 and 4 are reported locally only, as nothing can
    /// be sent any more.
    #[must_use]
    pub const fn code(&self) -> Option<u8> {
        // MPA-080, MPA-081
        match self {
            Self::Startup(error) => error.code(),
            Self::Truncated { .. } => Some(1),
            Self::Crc { .. } => Some(2),
            Self::Marker { .. } => Some(3),
            Self::UlpduTooLong { .. } | Self::BufferTooSmall { .. } | Self::GatherUnavailable => {
                None
            }
        }
    }
}

/// Why the exchange of start-up frames failed.
///
/// Whatever the peer did wrong here, the TCP connection is closed at once and without a Terminate
/// (MPA-085).
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum StartupError {
    /// The peer does not speak MPA, or not as the other side of this connection.
    #[error("start-up frame has a wrong key, first seen at octet {offset}")]
    WrongKey {
        /// Octet of the frame that differs first.
        offset: usize,
    },

    /// Both ends started as initiator: a Request came where the Reply was due.
    #[error("peer sent a Request where its Reply was due: both ends are initiators")]
    InitiatorInitiator,

    /// The peer's revision of MPA is not served.
    #[error("MPA revision {0} is not served")]
    Revision(u8),

    /// The peer announces more private data than MPA allows.
    #[error("peer announces {0} octets of private data, 512 are allowed")]
    PrivateDataLength(u16),

    /// An enhanced frame is too short for its enhanced block.
    #[error("enhanced frame with only {0} octets of private data, its block takes 4")]
    EnhancedTruncated(u16),

    /// An enhanced Request was answered by a plain Reply.
    #[error("peer answered an enhanced Request by a plain Reply of revision {0}")]
    PlainReply(u8),

    /// A plain Request was answered by an enhanced Reply.
    #[error("peer answered a plain Request by an enhanced Reply")]
    EnhancedReply,

    /// The peer went on sending although its Request had not been answered.
    #[error("{len} octets behind the Request, before it was answered")]
    DataAfterRequest {
        /// Octets too many, as far as they were seen.
        len: usize,
    },

    /// The peer closed or reset the connection before its frame was complete.
    #[error("connection closed after {received} octets of the peer's start-up frame")]
    Closed {
        /// Octets of the frame that did arrive.
        received: usize,
    },

    /// The peer's frame was not complete in time.
    #[error("peer's start-up frame was not complete in time")]
    TimedOut,

    /// Private data of this side does not fit into its frame.
    #[error("private data of {len} octets, the frame takes {max}")]
    PrivateDataTooLong {
        /// Octets given.
        len: usize,
        /// 512, or 508 beside an enhanced block.
        max: usize,
    },

    /// An IRD or ORD of this side does not fit into 14 bits.
    #[error("read depth {0} is above 16382")]
    DepthTooLarge(u16),
}

impl StartupError {
    /// Whether the peer may simply not know revision 2 (CONN-08).
    ///
    /// True if the connection was closed in answer to the Request, or the Request was answered as
    /// if it had been a plain one. An initiator that sent an *enhanced* Request may then try once
    /// more with [`Revision::V1`](crate::Revision::V1), on a new TCP connection (FC-007); one
    /// that sent a plain Request has nothing left to try.
    #[must_use]
    pub const fn suggests_revision_1(&self) -> bool {
        matches!(self, Self::Closed { received: 0 } | Self::PlainReply(_))
    }

    const fn code(&self) -> Option<u8> {
        match self {
            Self::Closed { .. } | Self::TimedOut => Some(1),
            Self::WrongKey { .. }
            | Self::InitiatorInitiator
            | Self::Revision(_)
            | Self::PrivateDataLength(_)
            | Self::EnhancedTruncated(_)
            | Self::PlainReply(_)
            | Self::EnhancedReply
            | Self::DataAfterRequest { .. } => Some(4),
            Self::PrivateDataTooLong { .. } | Self::DepthTooLarge(_) => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // MPA-080: one code for each of the four kinds, none for a mistake of this side.
    #[test]
    fn codes() {
        let startup = |error| Error::Startup(error).code();
        assert_eq!(startup(StartupError::Closed { received: 3 }), Some(1));
        assert_eq!(startup(StartupError::TimedOut), Some(1));
        assert_eq!(Error::Truncated { position: 0, received: 1 }.code(), Some(1));
        assert_eq!(Error::Crc { position: 0, computed: 1, received: 2 }.code(), Some(2));
        assert_eq!(Error::Marker { position: 512, expected: 8, found: 4 }.code(), Some(3));
        assert_eq!(startup(StartupError::WrongKey { offset: 0 }), Some(4));
        assert_eq!(startup(StartupError::Revision(3)), Some(4));
        assert_eq!(startup(StartupError::DataAfterRequest { len: 1 }), Some(4));
        assert_eq!(startup(StartupError::DepthTooLarge(16_383)), None);
        assert_eq!(Error::GatherUnavailable.code(), None);
    }

    // MPA-081: an error says what, and where.
    #[test]
    fn messages() {
        let crc = Error::Crc { position: 1460, computed: 0xE306_9283, received: 0 };
        assert_eq!(
            crc.to_string(),
            "CRC of the FPDU at stream offset 1460 is 0xe3069283, the FPDU says 0x00000000"
        );
        let marker = Error::Marker { position: 512, expected: 508, found: 504 };
        assert_eq!(
            marker.to_string(),
            "marker at stream offset 512 says 504, its FPDU starts 508 octets before"
        );
        assert_eq!(
            Error::from(StartupError::Revision(3)).to_string(),
            "MPA start-up failed: MPA revision 3 is not served"
        );
    }
}
