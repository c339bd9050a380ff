//! Framing of what is sent (RFC 5044 §4.1).

use crate::crc::crc32c;
use crate::marker::Layout;
use crate::wire::{CRC_LEN, LENGTH_LEN, ULPDU_MAX_SENT};
use crate::{Error, Negotiated};

/// What the FPDUs of a connection look like.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Framing {
    /// Markers in what is sent: the peer asked for them.
    pub send_markers: bool,
    /// Markers in what is received: this side asked for them.
    pub receive_markers: bool,
    /// CRCs are made and checked, in both directions (MPA-054).
    pub crc: bool,
}

impl From<&Negotiated> for Framing {
    fn from(negotiated: &Negotiated) -> Self {
        Self {
            send_markers: negotiated.send_markers,
            receive_markers: negotiated.receive_markers,
            crc: negotiated.crc,
        }
    }
}

/// Octets of an FPDU without markers: a multiple of 4 (MPA-046, MPA-049).
#[inline]
pub(crate) const fn body_len(ulpdu_len: usize) -> usize {
    let padded = ulpdu_len.saturating_add(LENGTH_LEN + 3) & !3;
    padded.saturating_add(CRC_LEN)
}

/// Octets on the wire of the FPDU for a ULPDU of `ulpdu_len` octets, markers included, if it
/// starts at stream offset `position`.
#[inline]
#[must_use]
pub const fn framed_len(ulpdu_len: usize, markers: bool, position: u64) -> usize {
    Layout::of(markers, position).wire_len(body_len(ulpdu_len))
}

/// Why an FPDU was not built.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FrameError<E> {
    /// The FPDU could not be framed.
    #[error(transparent)]
    Mpa(#[from] Error),
    /// The ULPDU could not be written: what the caller's function answered.
    #[error("ULPDU could not be written")]
    Fill(E),
}

/// Builds the FPDUs of one direction, one after the other.
///
/// Nothing is allocated, and nothing is kept but the stream position.
#[derive(Debug)]
pub struct Framer {
    position: u64,
    markers: bool,
    crc: bool,
}

impl Framer {
    /// For a stream that is about to start.
    #[must_use]
    pub const fn new(framing: &Framing) -> Self {
        Self::with_position(framing, 0)
    }

    /// For a stream in which `position` octets have been sent, all of them whole FPDUs.
    ///
    /// An FPDU can only start at a multiple of 4; others are rounded down.
    #[must_use]
    pub const fn with_position(framing: &Framing, position: u64) -> Self {
        Self { position: position & !3, markers: framing.send_markers, crc: framing.crc }
    }

    /// Octets of FPDUs built so far: the stream offset of the next one.
    #[inline]
    #[must_use]
    pub const fn position(&self) -> u64 {
        self.position
    }

    /// Octets that the next FPDU takes on the wire if its ULPDU has `ulpdu_len`.
    #[inline]
    #[must_use]
    pub const fn framed_len(&self, ulpdu_len: usize) -> usize {
        framed_len(ulpdu_len, self.markers, self.position)
    }

    /// Builds one FPDU at the front of `out`, for one ULPDU (MPA-040); gives its length on the
    /// wire, [`Framer::framed_len`].
    ///
    /// `fill` gets exactly `ulpdu_len` octets, of any content, and writes the ULPDU into them. If
    /// it fails nothing has happened, except that octets of `out` may have been written. The CRC
    /// is taken over `out`, which nobody else can be changing, and never over what `fill` reads
    /// from.
    #[inline]
    pub fn frame<E>(
        &mut self,
        out: &mut [u8],
        ulpdu_len: usize,
        fill: impl FnOnce(&mut [u8]) -> Result<(), E>,
    ) -> Result<usize, FrameError<E>> {
        let length = ulpdu_length(ulpdu_len)?;
        let body = body_len(ulpdu_len);
        let layout = Layout::of(self.markers, self.position);
        let need = layout.wire_len(body);
        let have = out.len();
        let too_small = || Error::BufferTooSmall { need, have };

        let wire = out.get_mut(..need).ok_or_else(too_small)?;
        let (length_field, ulpdu, rest) =
            split(wire, layout.lead(), ulpdu_len).ok_or_else(too_small)?;
        *length_field = length;
        fill(ulpdu).map_err(FrameError::Fill)?;
        // MPA-047, and MPA-050: the CRC field is there, and zero, without CRC too.
        let trailer = body.saturating_sub(LENGTH_LEN).saturating_sub(ulpdu_len);
        if let Some(trailer) = rest.get_mut(..trailer) {
            zero(trailer);
        }
        if self.markers {
            layout.insert(wire, body);
        }
        // MPA-057: all that precedes the CRC on the wire, from the leading marker on.
        if self.crc
            && let Some((covered, field)) = wire.split_last_chunk_mut::<CRC_LEN>()
        {
            *field = crc32c(covered).to_le_bytes();
        }
        self.advance(need);
        Ok(need)
    }

    /// Whether [`Framer::frame_gathered`] can be used: neither CRC nor markers.
    #[inline]
    #[must_use]
    pub const fn can_gather(&self) -> bool {
        !self.crc && !self.markers
    }

    /// Builds an FPDU around a payload that goes to the wire from where it is.
    ///
    /// `ULPDU_Length` and `header`, the front of the ULPDU, are written to `head`, pad and CRC
    /// field to `tail`; the payload of `payload_len` octets goes between. Gives the octets
    /// written to each. The payload may change until it is sent: then its octets are undefined,
    /// but never the stream.
    pub fn frame_gathered(
        &mut self,
        header: &[u8],
        payload_len: usize,
        head: &mut [u8],
        tail: &mut [u8; 8],
    ) -> Result<(usize, usize), Error> {
        if !self.can_gather() {
            return Err(Error::GatherUnavailable);
        }
        let ulpdu_len = header.len().saturating_add(payload_len);
        let length = ulpdu_length(ulpdu_len)?;
        let body = body_len(ulpdu_len);
        let need = header.len().saturating_add(LENGTH_LEN);
        let have = head.len();
        let Some((length_field, room)) = head.split_first_chunk_mut::<LENGTH_LEN>() else {
            return Err(Error::BufferTooSmall { need, have });
        };
        let Some(room) = room.get_mut(..header.len()) else {
            return Err(Error::BufferTooSmall { need, have });
        };
        *length_field = length;
        room.copy_from_slice(header);
        *tail = [0; 8];
        self.advance(body);
        Ok((need, body.saturating_sub(need).saturating_sub(payload_len)))
    }

    const fn advance(&mut self, wire_len: usize) {
        self.position = self.position.wrapping_add(wire_len as u64);
    }
}

/// `ULPDU_Length` of a ULPDU that may be sent.
#[inline]
fn ulpdu_length(len: usize) -> Result<[u8; LENGTH_LEN], Error> {
    // MPA-043
    match u16::try_from(len) {
        Ok(length) if len <= ULPDU_MAX_SENT => Ok(length.to_be_bytes()),
        _ => Err(Error::UlpduTooLong { len, max: ULPDU_MAX_SENT }),
    }
}

/// Clears pad and CRC field, which are 4 to 7 octets: in two moves, where the compiler would call a function.
#[inline]
fn zero(trailer: &mut [u8]) {
    if let Some(front) = trailer.first_chunk_mut::<CRC_LEN>() {
        *front = [0; CRC_LEN];
    }
    if let Some(back) = trailer.last_chunk_mut::<CRC_LEN>() {
        *back = [0; CRC_LEN];
    }
}

type Parts<'a> = (&'a mut [u8; LENGTH_LEN], &'a mut [u8], &'a mut [u8]);

/// Length field, ULPDU, and what follows.
#[inline]
fn split(wire: &mut [u8], lead: usize, ulpdu_len: usize) -> Option<Parts<'_>> {
    let (length, rest) = wire.get_mut(lead..)?.split_first_chunk_mut()?;
    let (ulpdu, rest) = rest.split_at_mut_checked(ulpdu_len)?;
    Some((length, ulpdu, rest))
}

#[cfg(test)]
#[allow(clippy::indexing_slicing, reason = "a wrong index fails the test")]
mod tests {
    use super::*;

    const MARKED: Framing = Framing { send_markers: true, receive_markers: false, crc: true };
    const PLAIN: Framing = Framing { send_markers: false, receive_markers: true, crc: true };
    const BARE: Framing = Framing { send_markers: false, receive_markers: false, crc: false };

    fn frame(framer: &mut Framer, ulpdu: &[u8]) -> String {
        let mut out = [0xEE; 600];
        let len = framer
            .frame(&mut out, ulpdu.len(), |room| {
                room.copy_from_slice(ulpdu);
                Ok::<(), ()>(())
            })
            .unwrap();
        assert!(out[len..].iter().all(|octet| *octet == 0xEE), "nothing behind the FPDU changes");
        hex::encode(&out[..len])
    }

    fn send(msn: u8, payload: usize) -> Vec<u8> {
        let mut ulpdu = vec![0x41, 0x43, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, msn, 0, 0, 0, 0];
        ulpdu.extend(std::iter::repeat_n(0, payload));
        ulpdu
    }

    // MPA-030, MPA-057: RFC 5044 Figures 5 and 6, and Figure 5 without its marker.
    #[test]
    fn figures() {
        let zeros = "00".repeat(24);
        let figure_5 = format!("002a414300000000000000000000000100000000{zeros}");
        assert_eq!(
            frame(&mut Framer::new(&MARKED), &send(1, 24)),
            format!("00000000{figure_5}52239983")
        );
        assert_eq!(frame(&mut Framer::new(&PLAIN), &send(1, 24)), format!("{figure_5}b7243ec3"));

        let mut framer = Framer::with_position(&MARKED, 0x1EC);
        let header = "002a4143000000000000000000000002";
        assert_eq!(
            frame(&mut framer, &send(2, 24)),
            format!("{header}0000000000000014{zeros}84925898")
        );
        assert_eq!(framer.position(), 0x1EC + 52);
    }

    // MPA-049
    #[test]
    fn lengths() {
        for (ulpdu, fpdu) in [(0, 8), (14, 20), (18, 24), (19, 28), (22, 28), (65_535, 65_544)] {
            assert_eq!(framed_len(ulpdu, false, 12), fpdu);
        }
        assert_eq!(framed_len(18, true, 0), 28);
        // Due right behind the CRC: the next FPDU's.
        assert_eq!(framed_len(502, true, 0), 512);
        assert_eq!(framed_len(502, true, 512), 512);
        assert_eq!(framed_len(506, true, 0), 520);
        // Beyond what there can be, no more than a large number.
        assert_eq!(framed_len(usize::MAX, true, 4), usize::MAX);
    }

    // MPA-047, MPA-050
    #[test]
    fn without_crc_its_field_is_zero() {
        assert_eq!(frame(&mut Framer::new(&BARE), b"abc"), "000361626300000000000000");
    }

    #[test]
    fn gathering_is_for_bare_streams() {
        let mut head = [0; 20];
        let mut tail = [0xEE; 8];
        for framing in [MARKED, PLAIN] {
            let mut framer = Framer::new(&framing);
            assert!(!framer.can_gather());
            let refused = framer.frame_gathered(&[0; 14], 1_000, &mut head, &mut tail);
            assert_eq!(refused, Err(Error::GatherUnavailable));
            assert_eq!(framer.position(), 0);
        }
        let mut framer = Framer::new(&BARE);
        assert!(framer.can_gather());
        let short = framer.frame_gathered(&[0; 18], 4, &mut head[..19], &mut tail);
        assert_eq!(short, Err(Error::BufferTooSmall { need: 20, have: 19 }));
        let none = framer.frame_gathered(&[0; 14], 4, &mut [], &mut tail);
        assert_eq!(none, Err(Error::BufferTooSmall { need: 16, have: 0 }));
        let long = framer.frame_gathered(&[0; 14], 64_755, &mut head, &mut tail);
        assert_eq!(long, Err(Error::UlpduTooLong { len: 64_769, max: 64_768 }));
        assert_eq!(framer.position(), 0);
        let (head_len, tail_len) =
            framer.frame_gathered(&[7; 14], 1, &mut head, &mut tail).unwrap();
        assert_eq!((head_len, tail_len), (16, 7));
        assert_eq!(head[..16], [0, 15, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7]);
        assert_eq!((tail, framer.position()), ([0; 8], 24));
    }
}
