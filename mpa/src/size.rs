//! How large FPDUs are made (RFC 5044 §4.5).

use crate::fpdu::body_len;
use crate::marker;
use crate::wire::{CRC_LEN, LENGTH_LEN, MULPDU_MIN, ULPDU_MAX_SENT};

/// Octets of the FPDU around the longest ULPDU that is sent, without markers.
const FPDU_MAX_SENT: usize = 64_776;
const _: () = assert!(FPDU_MAX_SENT == body_len(ULPDU_MAX_SENT));

/// Octets around a ULPDU that needs no pad.
const FRAME_LEN: usize = LENGTH_LEN + CRC_LEN;

/// How large the FPDUs of a connection may become.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FpduLimit {
    /// One TCP segment, as RFC 5044 recommends (MPA-042).
    Emss,
    /// So many octets, or one TCP segment if that is more.
    ///
    /// FPDUs above the EMSS are much cheaper for a sender in software, and legal to receive. Some
    /// adapters take at most 16 KiB (FC-021).
    Octets(u32),
}

impl Default for FpduLimit {
    fn default() -> Self {
        Self::Octets(16_384)
    }
}

/// MULPDU for an effective maximum segment size (EMSS) of so many octets: the longest ULPDU whose
/// FPDU fits into one segment whatever its place in the stream, but never below 128 or above
/// 64768.
#[must_use]
pub const fn mulpdu(emss: u32, markers: bool) -> usize {
    // MPA-068
    ulpdu_within(emss as usize, markers)
}

/// The longest ULPDU whose FPDU never takes more than `room` octets.
const fn ulpdu_within(room: usize, markers: bool) -> usize {
    let marked =
        if markers { marker::LEN.saturating_mul(room.div_ceil(marker::INTERVAL)) } else { 0 };
    let ulpdu = room.saturating_sub(FRAME_LEN).saturating_sub(marked).saturating_sub(room % 4);
    // MPA-041, MPA-043, MPA-070
    if ulpdu < MULPDU_MIN {
        MULPDU_MIN
    } else if ulpdu > ULPDU_MAX_SENT {
        ULPDU_MAX_SENT
    } else {
        ulpdu
    }
}

/// How the messages of a connection are cut into FPDUs, so that FPDUs start at TCP segments.
///
/// Made anew whenever the EMSS changes (DDP-001).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SizePlan {
    /// Longest ULPDU to send, in octets.
    pub mulpdu: usize,
    /// An FPDU of that size does not fill whole segments: the record is to end behind it
    /// (`MSG_EOR` where there is such a thing), or the next one would start inside a segment.
    pub ends_record: bool,
    /// FPDUs lie in segments wherever they come to lie, and a record is as long as it gets. See
    /// [`sharing_segments`](Self::sharing_segments).
    pub shares_segments: bool,
    emss: usize,
    markers: bool,
}

impl SizePlan {
    /// The largest FPDUs that fill at most as many whole segments of `emss` octets as `limit`
    /// allows.
    #[must_use]
    pub fn new(emss: u32, limit: FpduLimit, markers: bool) -> Self {
        let emss = usize::try_from(emss).unwrap_or(usize::MAX).max(1);
        let room = match limit {
            FpduLimit::Emss => emss,
            FpduLimit::Octets(octets) => {
                // Segments that the longest ULPDU cannot fill would only spoil the alignment.
                let octets = usize::try_from(octets).unwrap_or(usize::MAX).min(FPDU_MAX_SENT);
                let segments = octets.checked_div(emss).unwrap_or(1).max(1);
                emss.saturating_mul(segments)
            }
        };
        let mulpdu = ulpdu_within(room, markers);
        // With markers the length depends on the place in the stream.
        let fills = body_len(mulpdu).checked_rem(emss) == Some(0);
        Self { mulpdu, ends_record: markers || !fills, shares_segments: false, emss, markers }
    }

    /// The same FPDUs, with no regard to where segments begin: for segments that hold several, where
    /// ending one behind each FPDU costs more than alignment is worth.
    ///
    /// Nothing changes with markers, which are in use because the peer looks for the beginning of an FPDU.
    #[must_use]
    pub const fn sharing_segments(mut self) -> Self {
        self.shares_segments = !self.markers;
        self.ends_record = self.markers;
        self
    }

    /// Whether pad and CRC of an FPDU would arrive in one TCP segment, if the record starts at a
    /// segment and `record` octets of it precede the FPDU.
    ///
    /// With CRC on, Linux siw takes an FPDU for damaged if its pad and CRC come in two pieces. A
    /// sender that is told `false` ends the record first; if the FPDU is the first of its record,
    /// it cuts the message some octets earlier. Always true with markers, which those peers
    /// refuse.
    #[inline]
    #[must_use]
    pub fn keeps_trailer_whole(&self, record: usize, ulpdu_len: usize) -> bool {
        let last = record.saturating_add(body_len(ulpdu_len)).saturating_sub(1);
        // All in the first segment: the usual case, without a division.
        if self.markers || last < self.emss {
            return true;
        }
        let pad = record.saturating_add(LENGTH_LEN).saturating_add(ulpdu_len);
        pad.checked_div(self.emss) == last.checked_div(self.emss)
    }

    /// Whether so many octets are one TCP segment, which TCP sends as a whole or not at all.
    #[inline]
    #[must_use]
    pub const fn is_one_segment(&self, octets: usize) -> bool {
        octets <= self.emss
    }

    /// The longest ULPDU of at most `ulpdu_len` octets whose pad and CRC arrive in one TCP segment wherever
    /// TCP ends one before its time, if the FPDU has a record of its own.
    ///
    /// A sender does that where the peer's receive window ends. With `in_words` it is a whole number of
    /// words of 4 octets behind the start of the FPDU: then it is enough to leave no pad, and the CRC is one
    /// such word. Otherwise nothing helps but an FPDU of one segment. Always `ulpdu_len` with markers.
    #[must_use]
    pub const fn keeps_trailer_whole_in(&self, ulpdu_len: usize, in_words: bool) -> usize {
        if self.markers || body_len(ulpdu_len) <= self.emss {
            return ulpdu_len;
        }
        if in_words && self.emss.is_multiple_of(4) {
            ulpdu_len.saturating_sub(ulpdu_len.saturating_add(LENGTH_LEN) % 4)
        } else {
            ulpdu_within(self.emss, false)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // MPA-041, MPA-068, MPA-070
    #[test]
    fn mulpdu_for_usual_segments() {
        for (emss, with, without) in [
            (0, 128, 128),
            (140, 130, 134),
            (512, 502, 506),
            (536, 522, 530),
            (1_448, 1_430, 1_442),
            (1_461, 1_442, 1_454),
            (8_960, 8_882, 8_954),
            (65_483, 64_768, 64_768),
            (u32::MAX, 64_768, 64_768),
        ] {
            assert_eq!((mulpdu(emss, true), mulpdu(emss, false)), (with, without), "{emss}");
        }
    }

    #[test]
    fn segments_that_no_fpdu_fills() {
        // No multiple of 4, alone or eleven times; four of them are one.
        assert!(SizePlan::new(1_461, FpduLimit::Emss, false).ends_record);
        assert!(SizePlan::new(1_461, FpduLimit::default(), false).ends_record);
        assert!(!SizePlan::new(1_461, FpduLimit::Octets(4 * 1_461), false).ends_record);
        // Markers: the length changes along the stream.
        assert!(SizePlan::new(1_460, FpduLimit::Emss, true).ends_record);
        // The least MULPDU is more than a segment, and fills two of these.
        let least = SizePlan::new(68, FpduLimit::Emss, false);
        assert_eq!((least.mulpdu, least.ends_record), (128, false));
        assert!(SizePlan::new(0, FpduLimit::Emss, false).mulpdu == 128);
    }

    #[test]
    fn shared_segments_have_no_alignment_to_keep() {
        let plan = SizePlan::new(65_483, FpduLimit::default(), false);
        assert!(plan.ends_record && !plan.shares_segments);
        let shared = plan.sharing_segments();
        assert!(!shared.ends_record && shared.shares_segments);
        assert_eq!(shared.mulpdu, plan.mulpdu);
        // But a trailer in two pieces is worse than a record that ends.
        assert!(!shared.keeps_trailer_whole(65_352, 128));
        let marked = SizePlan::new(65_483, FpduLimit::default(), true);
        assert_eq!(marked.sharing_segments(), marked);
    }

    #[test]
    fn trailers() {
        let plan = SizePlan::new(1_460, FpduLimit::default(), false);
        assert!(plan.keeps_trailer_whole(0, plan.mulpdu));
        // 1464 octets: the CRC is alone in the second segment, with a pad of 2 left in the first.
        assert!(!plan.keeps_trailer_whole(0, 1_456));
        assert!(plan.keeps_trailer_whole(0, 1_458), "no pad, so nothing is left behind");
        assert!(plan.keeps_trailer_whole(0, 1_452));
        assert!(!plan.keeps_trailer_whole(1_440, 16));
        // The last octet of all is the first of the second segment.
        let odd = SizePlan::new(1_459, FpduLimit::Emss, false);
        assert!(!odd.keeps_trailer_whole(0, 1_454));
        let marked = SizePlan::new(1_460, FpduLimit::default(), true);
        assert!(marked.keeps_trailer_whole(0, 1_456));
        assert_eq!([1, 1_460, 1_461].map(|len| plan.is_one_segment(len)), [true, true, false]);
    }
}
