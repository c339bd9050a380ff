//! Deframing of what is received, in the caller's buffer (RFC 5044 §4.1, §6).

use crate::Error;
use crate::crc::crc32c;
use crate::fpdu::{Framing, body_len};
use crate::marker::Layout;
use crate::wire::{CRC_LEN, LENGTH_LEN};

/// What [`Deframer::next`] found.
#[derive(Debug, PartialEq, Eq)]
pub enum Step<'b> {
    /// Nothing can be said before so many octets are at the front of the buffer.
    Need(usize),
    /// A ULPDU: the FPDU around it was whole, and its CRC right if CRCs are in use, of which
    /// nothing is to be seen here (MPA-053).
    Ulpdu(&'b [u8]),
}

/// What has come of an FPDU that is not whole yet ([`Deframer::unfinished`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unfinished<'b> {
    /// The front of the ULPDU, as far as it is in the buffer.
    pub ulpdu: &'b [u8],
    /// Octets that the whole ULPDU will have.
    pub ulpdu_len: usize,
    /// Octets that went past the buffer ([`Deframer::pass_by`]).
    pub passed_by: usize,
}

/// Takes the FPDUs of one direction apart, one after the other.
///
/// The octets stay in a buffer of the caller's, the present FPDU at its front. Nothing is
/// allocated and nothing copied, except that markers are taken out in place.
#[derive(Debug)]
pub struct Deframer {
    position: u64,
    markers: bool,
    crc: bool,
    /// Octets of the present FPDU that went past the buffer.
    passed_by: usize,
    shown: Option<Shown>,
    failed: Option<Error>,
}

#[derive(Clone, Copy, Debug)]
struct Shown {
    /// Where the ULPDU stands in the buffer.
    start: usize,
    end: usize,
    wire_len: usize,
}

impl Deframer {
    /// For a stream that is about to start.
    #[must_use]
    pub const fn new(framing: &Framing) -> Self {
        Self::with_position(framing, 0)
    }

    /// For a stream of which `position` octets have been taken, all of them whole FPDUs.
    ///
    /// An FPDU can only start at a multiple of 4; others are rounded down.
    #[must_use]
    pub const fn with_position(framing: &Framing, position: u64) -> Self {
        Self {
            position: position & !3,
            markers: framing.receive_markers,
            crc: framing.crc,
            passed_by: 0,
            shown: None,
            failed: None,
        }
    }

    /// Octets of FPDUs consumed so far: the stream offset of the present one.
    #[inline]
    #[must_use]
    pub const fn position(&self) -> u64 {
        self.position
    }

    /// Looks at the front of `buf`, where the present FPDU starts or will.
    ///
    /// While the FPDU is incomplete it says how many octets it needs there, and never more than
    /// it takes to go on: first those up to `ULPDU_Length`, then the whole FPDU, so that a caller
    /// who waits for them never waits for octets the peer has no reason to send (FC-003). Nothing
    /// of an FPDU is shown before all of it was checked.
    ///
    /// A ULPDU once shown is shown again, unchecked, until it is consumed; `buf` must still start
    /// with the octets that the first call left there. An error is for ever (MPA-083).
    #[inline]
    pub fn next<'b>(&mut self, buf: &'b mut [u8]) -> Result<Step<'b>, Error> {
        if let Some(shown) = self.shown {
            return Ok(buf
                .get(shown.start..shown.end)
                .map_or(Step::Need(shown.wire_len), Step::Ulpdu));
        }
        if let Some(error) = &self.failed {
            return Err(error.clone());
        }

        let layout = Layout::of(self.markers, self.position);
        let start = layout.lead().saturating_add(LENGTH_LEN);
        let length = buf.get(layout.lead()..).and_then(|at| at.first_chunk::<LENGTH_LEN>());
        let Some(length) = length else { return Ok(Step::Need(start)) };
        // MPA-074, MPA-075: boundaries are found by length, whatever TCP made of them; any length
        // that the field can state is taken.
        let ulpdu_len = usize::from(u16::from_be_bytes(*length));
        let body = body_len(ulpdu_len);
        let wire_len = layout.wire_len(body).saturating_sub(self.passed_by);
        // MPA-076
        let Some(wire) = buf.get_mut(..wire_len) else { return Ok(Step::Need(wire_len)) };

        if let Err(error) = self.check(layout, wire, body) {
            self.failed = Some(error.clone());
            return Err(error);
        }
        if self.markers {
            layout.strip(wire, body);
        }
        // MPA-044; the pad is dropped, whatever it holds (MPA-048).
        let end = start.saturating_add(ulpdu_len).saturating_sub(self.passed_by);
        self.shown = Some(Shown { start, end, wire_len });
        Ok(wire.get(start..end).map_or(Step::Need(wire_len), Step::Ulpdu))
    }

    #[inline]
    fn check(&self, layout: Layout, wire: &[u8], body: usize) -> Result<(), Error> {
        // MPA-058; without CRC the field may hold anything (MPA-015, MPA-055).
        if self.crc
            && let Some((covered, field)) = wire.split_last_chunk::<CRC_LEN>()
        {
            let (computed, received) = (crc32c(covered), u32::from_le_bytes(*field));
            if computed != received {
                return Err(Error::Crc { position: self.position, computed, received });
            }
        }
        if self.markers {
            layout.verify(wire, body).map_err(|mismatch| Error::Marker {
                position: self.position.wrapping_add(mismatch.offset as u64),
                expected: mismatch.expected,
                found: mismatch.found,
            })?;
        }
        Ok(())
    }

    /// What has come of the present FPDU, if part of it may go past the buffer: where no CRC wants to see
    /// all of it first (MPA-058), and no markers lie in between. `None` also for one that is whole, or of which
    /// the length is not known.
    #[must_use]
    pub fn unfinished<'b>(&self, buf: &'b [u8]) -> Option<Unfinished<'b>> {
        // A stream in which nothing is checked does not fail.
        if self.crc || self.markers || self.shown.is_some() {
            return None;
        }
        let (length, ulpdu) = buf.split_first_chunk::<LENGTH_LEN>()?;
        let ulpdu_len = usize::from(u16::from_be_bytes(*length));
        let passed_by = self.passed_by;
        let is_unfinished = ulpdu.len().saturating_add(passed_by) < ulpdu_len;
        is_unfinished.then_some(Unfinished { ulpdu, ulpdu_len, passed_by })
    }

    /// So many octets of the present FPDU, which is [unfinished](Self::unfinished), came or were taken from
    /// the stream another way: they are not in the buffer, nor will they be. What follows them comes behind
    /// what is there, and the ULPDU is shown without them.
    pub const fn pass_by(&mut self, octets: usize) {
        self.passed_by = self.passed_by.saturating_add(octets);
    }

    /// Octets of the present FPDU that [went past](Self::pass_by) the buffer.
    #[inline]
    #[must_use]
    pub const fn passed_by(&self) -> usize {
        self.passed_by
    }

    /// Nobody waits for the rest of the present FPDU any more; gives the octets of it that
    /// [went past](Self::pass_by) the buffer, once.
    pub const fn abandon(&mut self) -> usize {
        core::mem::replace(&mut self.passed_by, 0)
    }

    /// Goes on to the next FPDU; gives the octets of the one shown last, which the caller drops
    /// from the front of its buffer. 0 if none was shown.
    #[inline]
    pub fn consume(&mut self) -> usize {
        let Some(Shown { wire_len, .. }) = self.shown.take() else { return 0 };
        let all = wire_len.saturating_add(core::mem::take(&mut self.passed_by));
        self.position = self.position.wrapping_add(all as u64);
        wire_len
    }

    /// Whether a ULPDU was shown and not consumed yet.
    #[inline]
    #[must_use]
    pub const fn is_ready(&self) -> bool {
        self.shown.is_some()
    }

    /// The peer ended its direction, and `unread` octets at the front of the buffer were not
    /// consumed.
    ///
    /// Fails if that is inside an FPDU (MPA-088), or if the stream had failed already.
    pub fn handle_eof(&self, unread: usize) -> Result<(), Error> {
        match &self.failed {
            Some(error) => Err(error.clone()),
            None if unread == 0 => Ok(()),
            None => {
                let received = unread.saturating_add(self.passed_by);
                Err(Error::Truncated { position: self.position, received })
            }
        }
    }

    /// Where in the buffer the ULPDU shown last stands.
    #[cfg(feature = "codec")]
    pub(crate) fn shown(&self) -> Option<core::ops::Range<usize>> {
        self.shown.map(|shown| shown.start..shown.end)
    }
}

#[cfg(test)]
#[allow(clippy::indexing_slicing, reason = "a wrong index fails the test")]
mod tests {
    use super::*;
    use crate::Framer;

    const PLAIN: Framing = Framing { send_markers: false, receive_markers: false, crc: true };
    const MARKED: Framing = Framing { send_markers: true, receive_markers: true, crc: true };

    fn fpdu(framing: Framing, position: u64, ulpdu: &[u8]) -> Vec<u8> {
        let mut framer = Framer::with_position(&framing, position);
        let mut out = vec![0; framer.framed_len(ulpdu.len())];
        framer
            .frame(&mut out, ulpdu.len(), |room| {
                room.copy_from_slice(ulpdu);
                Ok::<(), ()>(())
            })
            .unwrap();
        out
    }

    // FC-003: the length first, then the FPDU, and no octet more.
    #[test]
    fn need_is_exact() {
        let mut plain = fpdu(PLAIN, 0, b"seven o");
        assert_eq!(plain.len(), 16);
        let mut marked = fpdu(MARKED, 0, b"seven o");
        assert_eq!(marked.len(), 20);
        for (framing, wire, length_at) in [(PLAIN, &mut plain, 2), (MARKED, &mut marked, 6)] {
            let mut deframer = Deframer::new(&framing);
            let len = wire.len();
            for have in 0..len {
                let need = if have < length_at { length_at } else { len };
                assert_eq!(deframer.next(&mut wire[..have]), Ok(Step::Need(need)));
                assert!(!deframer.is_ready());
            }
            assert_eq!(deframer.next(wire), Ok(Step::Ulpdu(b"seven o")));
        }
    }

    #[test]
    fn shown_until_consumed() {
        let mut wire = fpdu(MARKED, 500, &[9; 1_200]);
        let len = wire.len();
        wire.extend_from_slice(b"behind");
        let mut deframer = Deframer::with_position(&MARKED, 500);
        for _ in 0..3 {
            // The second look finds the markers gone, and does not look for them.
            assert_eq!(deframer.next(&mut wire), Ok(Step::Ulpdu(&[9; 1_200])));
            assert!(deframer.is_ready());
            assert_eq!(deframer.position(), 500);
        }
        assert_eq!(&wire[len..], b"behind");
        assert_eq!(deframer.consume(), len);
        assert_eq!((deframer.consume(), deframer.is_ready()), (0, false));
        assert_eq!(deframer.position(), 500 + len as u64);
    }

    // MPA-058, MPA-083
    #[test]
    fn nothing_follows_an_error() {
        let good = fpdu(PLAIN, 0, b"good");
        let mut bad = good.clone();
        bad[3] ^= 0x10;
        let mut deframer = Deframer::new(&PLAIN);
        let error = deframer.next(&mut bad).unwrap_err();
        assert!(matches!(error, Error::Crc { position: 0, .. }));
        assert_eq!(deframer.next(&mut good.clone()), Err(error.clone()));
        assert_eq!((deframer.consume(), deframer.is_ready()), (0, false));
        assert_eq!(deframer.handle_eof(0), Err(error));
    }

    /// A part that went past the buffer counts, and is all that is missing in what is shown.
    #[test]
    fn what_goes_past_the_buffer_is_left_out() {
        const BARE: Framing = Framing { crc: false, ..PLAIN };
        let ulpdu: Vec<u8> = (0..100).collect();
        let whole = [fpdu(BARE, 0, &ulpdu), b"behind".to_vec()].concat();
        let len = whole.len() - 6;
        let mut deframer = Deframer::new(&BARE);
        for have in 0..=whole.len() {
            let front = |ulpdu| Unfinished { ulpdu, ulpdu_len: 100, passed_by: 0 };
            // From `ULPDU_Length` on, and until there is nothing left to go past.
            let expected = (2..102).contains(&have).then(|| front(&whole[2..have]));
            assert_eq!(deframer.unfinished(&whole[..have]), expected, "{have} octets");
        }
        // Octets that were in the buffer, and then others.
        deframer.pass_by(10);
        deframer.pass_by(60);
        let front = Unfinished { ulpdu: &ulpdu[..4], ulpdu_len: 100, passed_by: 70 };
        assert_eq!(deframer.unfinished(&whole[..6]), Some(front));
        let mut short = [&whole[..6], &whole[76..]].concat();
        assert_eq!(deframer.next(&mut short[..20]), Ok(Step::Need(len - 70)));
        let error = Error::Truncated { position: 0, received: 90 };
        assert_eq!(deframer.handle_eof(20), Err(error));
        let shown = [&ulpdu[..4], &ulpdu[74..]].concat();
        assert_eq!(deframer.next(&mut short), Ok(Step::Ulpdu(&shown)));
        assert_eq!((deframer.passed_by(), deframer.unfinished(&short)), (70, None));
        assert_eq!(deframer.consume(), len - 70);
        assert_eq!((deframer.passed_by(), deframer.position()), (0, len as u64));
    }

    #[test]
    fn what_went_past_the_buffer_is_given_up_once() {
        let mut deframer = Deframer::new(&Framing { crc: false, ..PLAIN });
        deframer.pass_by(70);
        assert_eq!((deframer.abandon(), deframer.abandon(), deframer.passed_by()), (70, 0, 0));
    }

    // MPA-058: where there is something to check before, nothing goes past the buffer.
    #[test]
    fn what_is_to_be_checked_stays_in_the_buffer() {
        for framing in [PLAIN, MARKED, Framing { crc: false, ..MARKED }] {
            // With a marker in front, and with none, where the length is the first that comes.
            for position in [0, 4] {
                let wire = fpdu(framing, position, &[7; 100]);
                let deframer = Deframer::with_position(&framing, position);
                assert_eq!(deframer.unfinished(&wire[..30]), None);
            }
        }
    }

    // MPA-088: FIN is fine between FPDUs and an error inside.
    #[test]
    fn eof_at_every_octet() {
        let mut wire = fpdu(PLAIN, 8, b"seven o");
        let mut deframer = Deframer::with_position(&PLAIN, 8);
        assert_eq!(deframer.handle_eof(0), Ok(()));
        for have in 1..wire.len() {
            assert!(matches!(deframer.next(&mut wire[..have]), Ok(Step::Need(_))));
            let error = deframer.handle_eof(have).unwrap_err();
            assert_eq!(error, Error::Truncated { position: 8, received: have });
            assert_eq!(error.code(), Some(1));
        }
        assert!(deframer.next(&mut wire).is_ok());
        deframer.consume();
        assert_eq!(deframer.handle_eof(0), Ok(()));
    }

    /// An FPDU without a ULPDU is MPA's to frame and DDP's to refuse.
    #[test]
    fn no_ulpdu() {
        for crc in [false, true] {
            let framing = Framing { crc, ..PLAIN };
            let mut wire = fpdu(framing, 0, &[]);
            let mut deframer = Deframer::new(&framing);
            assert_eq!(deframer.next(&mut wire), Ok(Step::Ulpdu(&[])));
            assert_eq!(deframer.consume(), 8);
        }
    }

    // MPA-048: the pad may hold anything, and is under the CRC.
    #[test]
    fn pad_is_covered_and_ignored() {
        let mut wire = fpdu(PLAIN, 0, b"seven o");
        wire[9..12].copy_from_slice(b"pad");
        let mut deframer = Deframer::new(&PLAIN);
        assert!(matches!(deframer.next(&mut wire.clone()), Err(Error::Crc { .. })));
        let crc = crc32c(&wire[..12]);
        wire[12..].copy_from_slice(&crc.to_le_bytes());
        let mut deframer = Deframer::new(&PLAIN);
        assert_eq!(deframer.next(&mut wire), Ok(Step::Ulpdu(b"seven o")));
    }
}
