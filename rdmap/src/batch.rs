//! [`TxBatch`]: octets on their way to TCP.

use std::ops::Range;

use iwarp_ddp::Stag;

/// One record for TCP: whole FPDUs, to be written with one system call if possible.
///
/// It belongs to whoever drives the stream and is used again and again. Its pieces, in order, are its
/// [`chunks`](Self::chunks): octets staged here, and, where no CRC and no markers are in use, payload
/// that stays where it is until it is written.
#[derive(Debug)]
pub struct TxBatch {
    staging: Vec<u8>,
    staged: usize,
    chunks: Vec<Chunk>,
    len: usize,
    /// Payloads of at least so many octets are not copied, if neither CRC nor markers are in use. `None`:
    /// everything is copied.
    pub gather_from: Option<u32>,
    /// The record ends with the FPDU that brings it to so many octets, or earlier where its staging is full.
    pub most: usize,
    /// What TCP can send at once. Unlimited unless it is set.
    pub window: UsableWindow,
    asks_window: bool,
}

/// How much TCP can send at once: the usable window of RFC 1122 §4.2.3.4, less what TCP has not sent yet.
///
/// Where the peer's window ends TCP sends what still fits, as a segment that is not full, and the rest of the
/// record comes to lie elsewhere in segments than it was cut for: FPDUs inside of segments, trailers across
/// two. So a record of several segments stays within the window, and beyond it each FPDU is a record of its own,
/// or a few together are one segment: then the next one starts a segment in any case (MPA-072), and
/// [`SizePlan::keeps_trailer_whole_in`](iwarp_mpa::SizePlan::keeps_trailer_whole_in) sees to its trailer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct UsableWindow {
    /// Octets that fit into the window besides those TCP has been given already. There may be more.
    pub octets: usize,
    /// Wherever the window ends, it is a whole number of words of 4 octets behind the start of an FPDU: the
    /// peer counts its window in such words, and acknowledges whole segments of such words.
    pub in_words: bool,
    /// There may be much more. Rather than go beyond the window, the record ends, and the batch
    /// [asks](TxBatch::asks_window).
    pub stale: bool,
}

impl UsableWindow {
    /// No window is ever in the way.
    pub const UNLIMITED: Self = Self { octets: usize::MAX, in_words: true, stale: false };
}

impl Default for UsableWindow {
    fn default() -> Self {
        Self::UNLIMITED
    }
}

/// A piece of a [`TxBatch`].
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Chunk {
    /// This range of [`TxBatch::staged`].
    Staged(Range<usize>),
    /// Octets of an own operation's buffer, which [`Stream::source_buffer`](crate::Stream::source_buffer)
    /// gives.
    Local {
        /// The operation.
        op: u64,
        /// Octets of the buffer before the piece.
        offset: u64,
        /// Octets of the piece.
        len: usize,
    },
    /// Octets of memory that the peer reads. Its rights were checked when the batch was filled, and have
    /// to be checked again when it is written.
    Remote {
        /// Names the memory.
        stag: Stag,
        /// Tagged offset of the piece.
        offset: u64,
        /// Octets of the piece.
        len: usize,
    },
}

impl Chunk {
    /// Octets of the piece.
    #[must_use]
    pub fn len(&self) -> usize {
        match self {
            Self::Staged(range) => range.len(),
            Self::Local { len, .. } | Self::Remote { len, .. } => *len,
        }
    }

    /// Whether the piece has no octets. Pieces of a batch always have some.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// Octets of a record that nobody has limited. Its staging alone would let one with gathered payload grow
/// far longer; shorter ones cost TCP more calls, and the peer a wait for each.
const MOST: usize = 1 << 20;

impl TxBatch {
    /// An empty batch that stages up to `octets`.
    ///
    /// It grows, once, if a single FPDU is larger. Everything is copied unless
    /// [`gather_from`](Self::gather_from) is set; then a record may be longer, up to 1 MiB or what is set as
    /// [`most`](Self::most).
    #[must_use]
    pub fn with_capacity(octets: usize) -> Self {
        Self {
            staging: vec![0; octets],
            staged: 0,
            chunks: Vec::new(),
            len: 0,
            gather_from: None,
            most: MOST,
            window: UsableWindow::UNLIMITED,
            asks_window: false,
        }
    }

    /// Drops the content and keeps the room.
    #[inline]
    pub fn clear(&mut self) {
        self.staged = 0;
        self.chunks.clear();
        self.len = 0;
        self.asks_window = false;
    }

    /// The pieces, in the order of the wire.
    #[must_use]
    pub fn chunks(&self) -> &[Chunk] {
        &self.chunks
    }

    /// The octets that [`Chunk::Staged`] pieces are ranges of.
    #[must_use]
    pub fn staged(&self) -> &[u8] {
        self.staging.get(..self.staged).unwrap_or_default()
    }

    /// Octets on the wire, all pieces together.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.len
    }

    /// Whether there is nothing in it.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Whether the record ends behind this batch (`MSG_EOR` where the system has it), so that the next
    /// FPDU starts a TCP segment (MPA-072). True of every batch that is not empty.
    #[must_use]
    pub const fn ends_record(&self) -> bool {
        self.len != 0
    }

    /// Whether the record ended, perhaps before it began, because the next FPDU goes beyond a
    /// [`window`](Self::window) that is stale: find out how large it is, and fill the batch again.
    #[inline]
    #[must_use]
    pub const fn asks_window(&self) -> bool {
        self.asks_window
    }

    /// The record ends here for want of a window.
    pub(crate) fn ask_window(&mut self) {
        self.asks_window = true;
    }

    /// Whether memory that the peer reads is still to be read, when TCP takes it.
    pub(crate) fn reads_remote(&self) -> bool {
        self.chunks.iter().any(|chunk| matches!(chunk, Chunk::Remote { .. }))
    }

    /// Room for `octets` more, made if the batch is empty; `None` if they do not fit.
    #[inline]
    pub(crate) fn room(&mut self, octets: usize) -> Option<&mut [u8]> {
        let end = self.staged.saturating_add(octets);
        if end > self.staging.len() {
            if !self.is_empty() {
                return None;
            }
            self.staging.resize(end, 0);
        }
        self.staging.get_mut(self.staged..end)
    }

    /// The first `octets` of the room are part of the record now.
    #[inline]
    pub(crate) fn push_staged(&mut self, octets: usize) {
        let end = self.staged.saturating_add(octets).min(self.staging.len());
        let start = std::mem::replace(&mut self.staged, end);
        if start == end {
            return;
        }
        self.len = self.len.saturating_add(end.saturating_sub(start));
        match self.chunks.last_mut() {
            // What is staged lies in one piece, so this one ends where the new octets begin.
            Some(Chunk::Staged(range)) => range.end = end,
            _ => self.chunks.push(Chunk::Staged(start..end)),
        }
    }

    /// A piece that stays where it is.
    pub(crate) fn push_gathered(&mut self, chunk: Chunk) {
        self.len = self.len.saturating_add(chunk.len());
        self.chunks.push(chunk);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neighbours_become_one_piece() {
        let mut batch = TxBatch::with_capacity(16);
        batch.room(4).unwrap().copy_from_slice(b"head");
        batch.push_staged(4);
        batch.room(4).unwrap().copy_from_slice(b"more");
        batch.push_staged(4);
        batch.push_gathered(Chunk::Local { op: 7, offset: 0, len: 100 });
        batch.room(2).unwrap().copy_from_slice(b"!!");
        batch.push_staged(2);

        assert_eq!(batch.staged(), b"headmore!!");
        let expected = [
            Chunk::Staged(0..8),
            Chunk::Local { op: 7, offset: 0, len: 100 },
            Chunk::Staged(8..10),
        ];
        assert_eq!(batch.chunks(), expected);
        assert!(batch.chunks().iter().all(|chunk| !chunk.is_empty()));
        assert!(Chunk::Staged(8..8).is_empty());
        assert_eq!(batch.len(), 110);
        assert!(batch.ends_record());
    }

    #[test]
    fn only_an_empty_batch_grows() {
        let mut batch = TxBatch::with_capacity(4);
        assert!(batch.room(8).is_some());
        batch.push_staged(8);
        assert!(batch.room(1).is_none());
        batch.clear();
        assert!(batch.is_empty() && !batch.ends_record());
        assert!(batch.room(8).is_some());
        // To its last octet it is as large as it is.
        batch.push_staged(5);
        assert!(batch.room(4).is_none());
        assert!(batch.room(3).is_some());
    }

    #[test]
    fn nothing_pushed_is_no_piece() {
        let mut batch = TxBatch::with_capacity(4);
        batch.push_staged(0);
        assert!(batch.chunks().is_empty());
    }
}
