//! [`Segmenter`]: cutting a message into the payloads of its segments.

/// One piece of a message: the payload of one segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cut {
    /// Octets of the message before this piece.
    pub offset: u32,
    /// Octets of this piece; 0 only for a message of length 0.
    pub len: u32,
    /// Nothing follows.
    pub last: bool,
}

/// Cuts a message into pieces that fit into segments (RFC 5041 §5.2).
///
/// A message of length 0 is one empty piece. The pieces come in rising order, and only the last one says
/// so. The largest payload may be changed between pieces with [`next_cut`](Self::next_cut), when the
/// layer below reports another maximum.
///
/// ```
/// use iwarp_ddp::{Segmenter, UntaggedHeader};
///
/// let room = UntaggedHeader::max_payload(1500);
/// let cuts: Vec<_> = Segmenter::new(2048, room).map(|cut| (cut.offset, cut.len, cut.last)).collect();
/// assert_eq!(cuts, [(0, 1482, false), (1482, 566, true)]);
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Segmenter {
    message_len: u32,
    max_payload: u32,
    offset: u32,
    finished: bool,
}

impl Segmenter {
    /// A message of `message_len` octets, in pieces of at most `max_payload`.
    ///
    /// A `max_payload` of 0 counts as 1, so that every message comes to an end.
    #[inline]
    #[must_use]
    pub const fn new(message_len: u32, max_payload: u32) -> Self {
        Self { message_len, max_payload, offset: 0, finished: false }
    }

    /// The piece that starts at `offset`; `None` behind the end of the message.
    ///
    /// Where the iteration stands does not change.
    #[inline]
    #[must_use]
    pub fn cut_at(&self, offset: u32) -> Option<Cut> {
        let rest = self.message_len.checked_sub(offset)?;
        // DDP-029: the end of the message is a piece of its own only if there is no other.
        if rest == 0 && offset != 0 {
            return None;
        }
        // DDP-025, MPA-042
        let len = rest.min(self.max_payload.max(1));
        // DDP-011, DDP-012
        Some(Cut { offset, len, last: len == rest })
    }

    /// The next piece, with at most `max_payload` octets; the value stays for the pieces after it.
    #[inline]
    pub fn next_cut(&mut self, max_payload: u32) -> Option<Cut> {
        // DDP-001, DDP-002: what was cut before stays as it is.
        self.max_payload = max_payload;
        self.next()
    }

    /// Octets of the message that were handed out.
    #[inline]
    #[must_use]
    pub const fn offset(&self) -> u32 {
        self.offset
    }

    /// Whether the last piece was handed out.
    #[inline]
    #[must_use]
    pub const fn is_finished(&self) -> bool {
        self.finished
    }
}

impl Iterator for Segmenter {
    type Item = Cut;

    #[inline]
    fn next(&mut self) -> Option<Cut> {
        if self.finished {
            return None;
        }
        let cut = self.cut_at(self.offset)?;
        // DDP-026, DDP-033. Cannot overflow: a cut ends within the message.
        self.offset = self.offset.saturating_add(cut.len);
        self.finished = cut.last;
        Some(cut)
    }
}

impl std::iter::FusedIterator for Segmenter {}

#[cfg(test)]
mod tests {
    use super::*;

    fn cut(offset: u32, len: u32, last: bool) -> Cut {
        Cut { offset, len, last }
    }

    #[test]
    fn empty_message_is_exactly_one_empty_segment() {
        // DDP-029
        let mut segmenter = Segmenter::new(0, 110);
        assert!(!segmenter.is_finished());
        assert_eq!(segmenter.next(), Some(cut(0, 0, true)));
        assert!(segmenter.is_finished());
        assert_eq!(segmenter.next(), None);
        assert_eq!(segmenter.next_cut(110), None);
    }

    #[test]
    fn full_segments_are_not_followed_by_an_empty_one() {
        // DDP-011
        let cuts: Vec<_> = Segmenter::new(220, 110).collect();
        assert_eq!(cuts, [cut(0, 110, false), cut(110, 110, true)]);
    }

    #[test]
    fn largest_message_ends_at_the_last_offset() {
        // DDP-025
        let cuts: Vec<_> = Segmenter::new(u32::MAX, 1 << 31).collect();
        assert_eq!(cuts, [cut(0, 1 << 31, false), cut(1 << 31, (1 << 31) - 1, true)]);
    }

    #[test]
    fn maximum_may_change_between_segments() {
        // DDP-001, DDP-002
        let mut segmenter = Segmenter::new(100, 60);
        assert_eq!(segmenter.next(), Some(cut(0, 60, false)));
        assert_eq!(segmenter.next_cut(30), Some(cut(60, 30, false)));
        assert_eq!(segmenter.offset(), 90);
        assert_eq!(segmenter.next_cut(200), Some(cut(90, 10, true)));
        assert_eq!(segmenter.offset(), 100);
    }

    #[test]
    fn a_cut_can_be_asked_for_again() {
        let segmenter = Segmenter::new(100, 60);
        assert_eq!(segmenter.cut_at(60), Some(cut(60, 40, true)));
        assert_eq!(segmenter.cut_at(99), Some(cut(99, 1, true)));
        assert_eq!(segmenter.cut_at(100), None);
        assert_eq!(segmenter.cut_at(101), None);
        assert_eq!(segmenter.offset(), 0);
    }

    #[test]
    fn no_room_still_comes_to_an_end() {
        let cuts: Vec<_> = Segmenter::new(3, 0).collect();
        assert_eq!(cuts, [cut(0, 1, false), cut(1, 1, false), cut(2, 1, true)]);
    }
}
