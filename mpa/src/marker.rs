//! Where markers stand in an FPDU, and how they get in and out (RFC 5044 §4.2, §4.3, MPA-061).
//!
//! Markers stand at the stream offsets 0, 512, 1024, … A marker due in front of an FPDU belongs
//! to it and *leads*; one due right behind its CRC belongs to the next one. All lengths in a
//! marked stream are multiples of 4, so that no marker ever splits a `ULPDU_Length` or a CRC.
#![allow(
    clippy::arithmetic_side_effects,
    reason = "lengths and offsets inside one FPDU have 17 bits, and callers have checked them"
)]

use zerocopy::{FromBytes, IntoBytes};

use crate::wire::MarkerField;

/// Octets of a marker.
pub(crate) const LEN: usize = 4;
/// Octets from one marker to the next, one of them counted in (MPA-062).
pub(crate) const INTERVAL: usize = 512;
/// Octets of FPDUs between two markers.
const BETWEEN: usize = INTERVAL - LEN;

/// Places of the markers of one FPDU.
///
/// *Body* is an FPDU without its markers: `ULPDU_Length`, ULPDU, pad and CRC.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Layout {
    /// Octets of the leading marker: [`LEN`] or 0.
    lead: usize,
    /// Octets of body in front of the first marker inside.
    gap: usize,
}

/// A marker that does not point to its FPDU.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Mismatch {
    /// Where it stands, in octets from the start of the FPDU on the wire.
    pub(crate) offset: usize,
    pub(crate) expected: u16,
    pub(crate) found: u16,
}

impl Layout {
    /// No markers at all.
    const UNMARKED: Self = Self { lead: 0, gap: usize::MAX };

    /// Of an FPDU that starts at stream offset `position`, a multiple of 4, if there are markers.
    #[inline]
    pub(crate) const fn of(markers: bool, position: u64) -> Self {
        if markers { Self::at(position) } else { Self::UNMARKED }
    }

    #[inline]
    const fn at(position: u64) -> Self {
        // Only the phase matters, so that no counter has to be as long as the stream (MPA-066).
        #[allow(clippy::cast_possible_truncation, reason = "less than 512")]
        match (position % INTERVAL as u64) as usize {
            // MPA-064
            0 => Self { lead: LEN, gap: BETWEEN },
            phase => Self { lead: 0, gap: INTERVAL - phase },
        }
    }

    /// Octets in front of `ULPDU_Length`.
    #[inline]
    pub(crate) const fn lead(self) -> usize {
        self.lead
    }

    /// Markers inside a body of so many octets; one due right behind it is none of them.
    #[inline]
    const fn inside(self, body: usize) -> usize {
        // Mostly there is none, and then nothing has to be divided.
        if body <= self.gap { 0 } else { (body - self.gap).div_ceil(BETWEEN) }
    }

    /// Octets that a body takes on the wire.
    #[inline]
    pub(crate) const fn wire_len(self, body: usize) -> usize {
        body.saturating_add(self.lead).saturating_add(LEN * self.inside(body))
    }

    /// Turns the body behind the lead of `wire` into a marked FPDU that fills `wire`.
    #[inline]
    pub(crate) fn insert(self, wire: &mut [u8], body: usize) {
        let Some((leading, wire)) = wire.split_at_mut_checked(self.lead) else { return };
        // MPA-030, MPA-063: it does not stand inside an FPDU, so it points nowhere.
        leading.fill(0);
        // From the back, so that nothing is overwritten before it has moved.
        for index in (0..self.inside(body)).rev() {
            let from = self.gap + BETWEEN * index;
            let marker = self.gap + INTERVAL * index;
            let to = marker + LEN;
            wire.copy_within(from..body.min(from + BETWEEN), to);
            if let Some(place) = wire.get_mut(marker..to) {
                place.copy_from_slice(MarkerField::new(pointer(marker)).as_bytes());
            }
        }
    }

    /// Checks what each marker of the FPDU in `wire` points to (MPA-065, MPA-082).
    #[inline]
    pub(crate) fn verify(self, wire: &[u8], body: usize) -> Result<(), Mismatch> {
        if self.lead != 0 {
            check(wire, 0, 0)?;
        }
        for index in 0..self.inside(body) {
            let marker = self.gap + INTERVAL * index;
            check(wire, self.lead + marker, pointer(marker))?;
        }
        Ok(())
    }

    /// Takes the markers out of the FPDU in `wire`: its body follows the lead in one piece
    /// (MPA-067).
    #[inline]
    pub(crate) fn strip(self, wire: &mut [u8], body: usize) {
        let Some(wire) = wire.get_mut(self.lead..) else { return };
        for index in 0..self.inside(body) {
            let to = self.gap + BETWEEN * index;
            let from = self.gap + INTERVAL * index + LEN;
            wire.copy_within(from..from + BETWEEN.min(body - to), to);
        }
    }
}

/// FPDUPTR of a marker so many octets behind the start of `ULPDU_Length`.
///
/// Up to the longest ULPDU that may be sent it has 16 bits. A peer that goes beyond has no way to
/// state it in full.
#[allow(clippy::cast_possible_truncation, reason = "meant")]
const fn pointer(distance: usize) -> u16 {
    distance as u16
}

fn check(wire: &[u8], offset: usize, expected: u16) -> Result<(), Mismatch> {
    let marker = wire.get(offset..).and_then(|at| MarkerField::ref_from_prefix(at).ok());
    let found = marker.map_or(0, |(marker, _)| marker.fpdu_pointer());
    if found == expected { Ok(()) } else { Err(Mismatch { offset, expected, found }) }
}

#[cfg(test)]
#[allow(
    clippy::indexing_slicing,
    clippy::cast_possible_truncation,
    reason = "a wrong index fails the test"
)]
mod tests {
    use super::*;

    /// Where the markers of a body stand, found by walking.
    fn walk(position: u64, body: usize) -> Vec<usize> {
        let mut places = Vec::new();
        let mut wire = 0;
        for _ in 0..body {
            if (position + wire as u64).is_multiple_of(INTERVAL as u64) {
                places.push(wire);
                wire += LEN;
            }
            wire += 1;
        }
        places
    }

    // MPA-062, MPA-064
    #[test]
    fn every_phase_and_length() {
        for position in (0..1_024).step_by(4).chain([(1 << 32) - 4, 1 << 32, u64::MAX - 3]) {
            let layout = Layout::at(position);
            for body in (4..2_200).step_by(4) {
                let places = walk(position % 512, body);
                assert_eq!(layout.wire_len(body), body + LEN * places.len());
                assert_eq!(layout.lead(), if position % 512 == 0 { LEN } else { 0 });
            }
        }
        assert_eq!(Layout::UNMARKED.wire_len(65_544), 65_544);
    }

    // MPA-063, MPA-065, MPA-067
    #[test]
    fn in_and_out_again() {
        for position in (0..512).step_by(4) {
            let layout = Layout::at(position);
            for body in [4, 8, 24, 504, 508, 512, 516, 1_012, 1_016, 1_020, 1_460, 2_048] {
                let octets: Vec<u8> = (0..body).map(|i| (i % 251) as u8 + 1).collect();
                let mut wire = vec![0xEE; layout.wire_len(body)];
                wire[layout.lead()..][..body].copy_from_slice(&octets);
                layout.insert(&mut wire, body);

                let places = walk(position, body);
                let start = layout.lead();
                for place in &places {
                    let expected = place.saturating_sub(start) as u32;
                    assert_eq!(wire[*place..][..LEN], expected.to_be_bytes());
                }
                assert_eq!(layout.verify(&wire, body), Ok(()));
                for place in &places {
                    let mut wrong = wire.clone();
                    wrong[place + 3] ^= 4;
                    let mismatch = layout.verify(&wrong, body).unwrap_err();
                    assert_eq!(mismatch.offset, *place);
                    assert_eq!(mismatch.found, mismatch.expected ^ 4);
                }
                layout.strip(&mut wire, body);
                assert_eq!(wire[start..][..body], octets);
            }
        }
    }

    /// FPDUPTR of the longest ULPDU that may be sent still has 16 bits.
    #[test]
    fn longest_distance() {
        let body = crate::fpdu::body_len(crate::ULPDU_MAX_SENT);
        for position in (0..512).step_by(4) {
            let last = walk(position, body).into_iter().next_back();
            assert!(last.is_some_and(|last| u16::try_from(last).is_ok()));
        }
    }
}
