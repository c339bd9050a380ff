//! [`UntaggedQueue`]: what the receiver knows about the messages of one untagged queue.

use crate::error::UntaggedError;
use crate::segment::UntaggedSegment;

/// How a segment stands to the message of its queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Position {
    /// It begins a message: a buffer has to be taken for it.
    First,
    /// It goes on with the message that is open.
    Continuation,
}

/// Receiver state of one untagged queue over a transport that keeps the order.
///
/// Segments cannot overtake each other on TCP, so the message that is due and the place in it are known
/// exactly, and anything else is an error: a gap, a repetition, a jump. One message is open at a time.
///
/// For each segment, in this order:
///
/// 1. [`check_msn`](Self::check_msn); on [`Position::First`] the caller takes a buffer, and if there is
///    none the error is [`UntaggedError::NoBuffer`] (DDP-051), or it waits and comes back with the same
///    segment;
/// 2. [`check_placement`](Self::check_placement) with the size of that buffer;
/// 3. the copy, by the caller;
/// 4. [`placed`](Self::placed), which tells the length of the message when it is complete.
///
/// The checks do not change the queue, so they can be repeated; after an error the stream is over and
/// the queue is not asked again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UntaggedQueue {
    /// Of the open message, else of the next one.
    msn: u32,
    open: bool,
    /// Octets of the open message; 0 if none is open.
    placed: u32,
}

impl UntaggedQueue {
    /// A queue at the start of a stream: the first message has the number 1.
    #[must_use]
    pub const fn new() -> Self {
        // DDP-022
        Self::with_next_msn(1)
    }

    /// A queue on which the next message has the number `msn`, to begin next to the wrap.
    #[must_use]
    pub const fn with_next_msn(msn: u32) -> Self {
        Self { msn, open: false, placed: 0 }
    }

    /// Checks the message number: that of the open message, else the next one.
    #[inline]
    pub const fn check_msn(
        &self,
        segment: &UntaggedSegment<'_>,
    ) -> Result<Position, UntaggedError> {
        // DDP-054, DDP-020, DDP-035, FC-018
        if segment.msn != self.msn {
            return Err(UntaggedError::MsnRange);
        }
        Ok(if self.open { Position::Continuation } else { Position::First })
    }

    /// Checks that the payload continues the message and fits into its buffer of `capacity` octets.
    ///
    /// Returns where in the buffer it goes. A message has less than 2^32 octets, however large the buffer.
    #[inline]
    pub fn check_placement(
        &self,
        segment: &UntaggedSegment<'_>,
        capacity: u64,
    ) -> Result<u64, UntaggedError> {
        // DDP-052, DDP-023, FC-018
        if segment.offset != self.placed {
            return Err(UntaggedError::InvalidOffset);
        }
        // DDP-053, SEC-23: in 64 bits, where the sum of an offset and a slice's length has room.
        let end = u64::from(segment.offset).saturating_add(segment.payload.len() as u64);
        if end > capacity.min(u64::from(u32::MAX)) {
            return Err(UntaggedError::TooLong);
        }
        Ok(u64::from(segment.offset))
    }

    /// Takes note of a segment that passed both checks and was copied.
    ///
    /// Returns the length of the message if this was its last segment (RFC 5041 §5.4).
    #[inline]
    pub fn placed(&mut self, segment: &UntaggedSegment<'_>) -> Option<u32> {
        let len = u32::try_from(segment.payload.len()).unwrap_or(u32::MAX);
        let placed = self.placed.saturating_add(len);
        // DDP-013, DDP-037: with L, all that came before it is in place already.
        if segment.last {
            // DDP-022: the number of the next message, 0 after the highest.
            *self = Self::with_next_msn(self.msn.wrapping_add(1));
            Some(placed) // DDP-038
        } else {
            self.open = true;
            self.placed = placed;
            None
        }
    }

    /// Whether a message has begun and not ended.
    #[inline]
    #[must_use]
    pub const fn is_open(&self) -> bool {
        self.open
    }

    /// The number of the open message, else of the next one.
    #[inline]
    #[must_use]
    pub const fn msn(&self) -> u32 {
        self.msn
    }
}

impl Default for UntaggedQueue {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::segment::{Segment, UntaggedHeader};

    /// Runs `check` on a segment of queue 0 with these fields.
    fn with_segment<T>(
        msn: u32,
        offset: u32,
        payload: &[u8],
        last: bool,
        check: impl FnOnce(&UntaggedSegment<'_>) -> T,
    ) -> T {
        let header =
            UntaggedHeader { last, rsvd_ulp: 0x43, rsvd_ulp_word: 0, queue: 0, msn, offset };
        let octets = [&header.to_bytes(), payload].concat();
        let Ok(Segment::Untagged(segment)) = Segment::parse(&octets) else {
            panic!("not an untagged segment")
        };
        check(&segment)
    }

    /// All checks and the note that it was placed: where it went, and the length of the message.
    fn receive(
        queue: &mut UntaggedQueue,
        (msn, offset, len, last): (u32, u32, usize, bool),
        capacity: u64,
    ) -> Result<(Position, u64, Option<u32>), UntaggedError> {
        with_segment(msn, offset, &vec![0; len], last, |segment| {
            let position = queue.check_msn(segment)?;
            let at = queue.check_placement(segment, capacity)?;
            Ok((position, at, queue.placed(segment)))
        })
    }

    #[test]
    fn message_of_three_segments() {
        use Position::{Continuation, First};
        let mut queue = UntaggedQueue::default();
        // DDP-013, DDP-037: complete with L, not before.
        assert_eq!(receive(&mut queue, (1, 0, 10, false), 30), Ok((First, 0, None)));
        assert!(queue.is_open());
        assert_eq!(receive(&mut queue, (1, 10, 10, false), 30), Ok((Continuation, 10, None)));
        // DDP-038, DDP-053: exactly full.
        assert_eq!(receive(&mut queue, (1, 20, 10, true), 30), Ok((Continuation, 20, Some(30))));
        assert!(!queue.is_open());
        assert_eq!(queue.msn(), 2);
    }

    #[test]
    fn first_number_is_1_and_0_follows_the_highest() {
        // DDP-022
        let mut queue = UntaggedQueue::new();
        assert_eq!(receive(&mut queue, (0, 0, 4, true), 64), Err(UntaggedError::MsnRange));
        assert!(receive(&mut queue, (1, 0, 4, true), 64).is_ok());

        let mut queue = UntaggedQueue::with_next_msn(u32::MAX);
        assert!(receive(&mut queue, (u32::MAX, 0, 4, true), 64).is_ok());
        assert_eq!(queue.msn(), 0);
        assert!(receive(&mut queue, (0, 0, 4, true), 64).is_ok());
    }

    #[test]
    fn refusals_change_nothing() {
        // DDP-059
        let mut queue = UntaggedQueue::new();
        receive(&mut queue, (1, 0, 16, false), 64).unwrap();
        let before = queue.clone();
        let refused = [
            ((2, 16, 8, true), UntaggedError::MsnRange), // DDP-054
            ((1, 15, 8, true), UntaggedError::InvalidOffset), // DDP-052
            ((1, 17, 8, true), UntaggedError::InvalidOffset), // DDP-052
            ((1, 0, 16, false), UntaggedError::InvalidOffset), // DDP-052
            ((1, 16, 49, true), UntaggedError::TooLong), // DDP-053
            ((2, 99, 99, true), UntaggedError::MsnRange), // the number comes first
            ((1, 99, 99, true), UntaggedError::InvalidOffset), // then the offset
        ];
        for (segment, error) in refused {
            assert_eq!(receive(&mut queue, segment, 64), Err(error), "{segment:?}");
            assert_eq!(queue, before);
        }
    }

    #[test]
    fn message_starts_at_offset_0() {
        // DDP-023
        let mut queue = UntaggedQueue::new();
        assert_eq!(receive(&mut queue, (1, 8, 4, true), 64), Err(UntaggedError::InvalidOffset));
        assert_eq!(receive(&mut queue, (1, 8, 0, true), 64), Err(UntaggedError::InvalidOffset));
    }

    #[test]
    fn empty_message_needs_no_room() {
        let mut queue = UntaggedQueue::new();
        assert_eq!(receive(&mut queue, (1, 0, 0, true), 0), Ok((Position::First, 0, Some(0))));
        assert_eq!(receive(&mut queue, (2, 0, 1, true), 0), Err(UntaggedError::TooLong));
    }
}
