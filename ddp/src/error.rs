//! What can be wrong with a segment, and the numbers that RFC 5041 §7.2 gives to it.

/// Why a segment is refused.
///
/// Every one of them is fatal for the stream (RFC 5041 §6.2.2, DDP-044): the layer above reports it to the peer
/// in a Terminate of layer 1 with [`error_type`](Self::error_type) and [`code`](Self::code), and no
/// segment that follows is looked at (DDP-059). DDP itself tears nothing down (DDP-040).
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The octets end inside the header of the segment. There is no number for it, so it goes out as a
    /// local catastrophic error, without headers.
    #[error("DDP segment of {len} octets ends inside its header")]
    HeaderTruncated {
        /// Length of the whole segment.
        len: usize,
    },
    /// A segment for a tagged buffer was refused.
    #[error("tagged DDP segment refused: {0}")]
    Tagged(#[from] TaggedError),
    /// A segment for an untagged buffer was refused.
    #[error("untagged DDP segment refused: {0}")]
    Untagged(#[from] UntaggedError),
}

impl Error {
    /// Error type of layer 1: 0 local catastrophic, 1 tagged buffer, 2 untagged buffer.
    #[must_use]
    pub const fn error_type(self) -> u8 {
        match self {
            Self::HeaderTruncated { .. } => 0,
            Self::Tagged(_) => 1,
            Self::Untagged(_) => 2,
        }
    }

    /// Error code within [`error_type`](Self::error_type).
    #[must_use]
    pub const fn code(self) -> u8 {
        match self {
            Self::HeaderTruncated { .. } => 0,
            Self::Tagged(error) => error.code(),
            Self::Untagged(error) => error.code(),
        }
    }
}

/// Faults of a segment for a tagged buffer: error type 1 of layer 1 (RFC 5041 §7.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
pub enum TaggedError {
    /// The `STag` names nothing, names something revoked, or does not allow this access.
    #[error("STag is not valid for this access")]
    InvalidStag,
    /// Octets would land outside the range the `STag` opens.
    #[error("offset or length is outside the range of the STag")]
    Bounds,
    /// The `STag` is valid, but not on this stream.
    #[error("STag is not associated with this stream")]
    NotAssociated,
    /// Offset and length add up to 2^64 or more.
    #[error("tagged offset wraps")]
    Wrap,
    /// The segment is of another DDP version.
    #[error("DDP version is not 1")]
    Version,
}

impl TaggedError {
    /// The number of the fault on the wire.
    #[must_use]
    pub const fn code(self) -> u8 {
        // DDP-061
        match self {
            Self::InvalidStag => 0,
            Self::Bounds => 1,
            Self::NotAssociated => 2,
            Self::Wrap => 3,
            Self::Version => 4,
        }
    }
}

/// Faults of a segment for an untagged buffer: error type 2 of layer 1 (RFC 5041 §7.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
pub enum UntaggedError {
    /// There is no such queue, or this message does not belong on it.
    #[error("queue number is not valid for this message")]
    InvalidQueue,
    /// No buffer is posted for the message.
    #[error("no buffer available for the message")]
    NoBuffer,
    /// The message sequence number is not the one that is due.
    #[error("message sequence number is out of range")]
    MsnRange,
    /// The message offset does not continue the message.
    #[error("message offset is not valid")]
    InvalidOffset,
    /// The message is longer than the buffer posted for it.
    #[error("message is too long for its buffer")]
    TooLong,
    /// The segment is of another DDP version.
    #[error("DDP version is not 1")]
    Version,
}

impl UntaggedError {
    /// The number of the fault on the wire.
    #[must_use]
    pub const fn code(self) -> u8 {
        // DDP-061
        match self {
            Self::InvalidQueue => 1,
            Self::NoBuffer => 2,
            Self::MsnRange => 3,
            Self::InvalidOffset => 4,
            Self::TooLong => 5,
            Self::Version => 6,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_those_of_the_registry() {
        // DDP-061
        let table = [
            (Error::HeaderTruncated { len: 13 }, (0, 0)),
            (TaggedError::InvalidStag.into(), (1, 0)),
            (TaggedError::Bounds.into(), (1, 1)),
            (TaggedError::NotAssociated.into(), (1, 2)),
            (TaggedError::Wrap.into(), (1, 3)),
            (TaggedError::Version.into(), (1, 4)),
            (UntaggedError::InvalidQueue.into(), (2, 1)),
            (UntaggedError::NoBuffer.into(), (2, 2)),
            (UntaggedError::MsnRange.into(), (2, 3)),
            (UntaggedError::InvalidOffset.into(), (2, 4)),
            (UntaggedError::TooLong.into(), (2, 5)),
            (UntaggedError::Version.into(), (2, 6)),
        ];
        for (error, number) in table {
            assert_eq!((error.error_type(), error.code()), number, "{error}");
        }
    }

    #[test]
    fn messages_say_what_and_where() {
        assert_eq!(
            Error::HeaderTruncated { len: 13 }.to_string(),
            "DDP segment of 13 octets ends inside its header"
        );
        assert_eq!(
            Error::from(TaggedError::Wrap).to_string(),
            "tagged DDP segment refused: tagged offset wraps"
        );
        assert_eq!(
            Error::from(UntaggedError::TooLong).to_string(),
            "untagged DDP segment refused: message is too long for its buffer"
        );
    }
}
