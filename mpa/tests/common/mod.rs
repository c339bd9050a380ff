//! What the tests of this crate share: a plain second implementation of FPDUs, and a careful
//! reader.
#![allow(dead_code, reason = "each test uses a part")]
#![allow(clippy::unwrap_used, reason = "a failed step fails the test")]

use std::time::Instant;

use iwarp_mpa::{Deframer, Error, FrameError, Framer, Framing, Step};
use proptest::test_runner::{Config, FileFailurePersistence};

/// Property tests leave what made them fail beside their source.
pub(crate) fn config(cases: u32) -> Config {
    Config {
        cases,
        failure_persistence: Some(Box::new(FileFailurePersistence::WithSource("regressions"))),
        ..Config::default()
    }
}

/// The start of a test's own time.
#[allow(clippy::disallowed_methods, reason = "from here on the time of a test is counted by hand")]
pub(crate) fn now() -> Instant {
    Instant::now()
}

pub(crate) fn framing(markers: bool, crc: bool) -> Framing {
    Framing { send_markers: markers, receive_markers: markers, crc }
}

/// Octets that differ from one place to the next.
pub(crate) fn ramp(len: usize) -> Vec<u8> {
    (0..len).map(|i| u8::try_from((i + (i >> 8)) % 256).unwrap()).collect()
}

/// CRC32c, bit by bit.
pub(crate) fn reference_crc(octets: &[u8]) -> u32 {
    let mut crc = !0_u32;
    for octet in octets {
        crc ^= u32::from(*octet);
        for _ in 0..8 {
            crc = if crc & 1 == 1 { (crc >> 1) ^ 0x82F6_3B78 } else { crc >> 1 };
        }
    }
    !crc
}

/// An FPDU made octet by octet, by the definition of markers.
pub(crate) fn reference_fpdu(ulpdu: &[u8], position: u64, markers: bool, crc: bool) -> Vec<u8> {
    let due = |wire: &[u8]| markers && (position + wire.len() as u64).is_multiple_of(512);
    let mut body = u16::try_from(ulpdu.len()).unwrap().to_be_bytes().to_vec();
    body.extend_from_slice(ulpdu);
    while !body.len().is_multiple_of(4) {
        body.push(0);
    }

    let mut wire = Vec::new();
    if due(&wire) {
        wire.extend_from_slice(&[0; 4]);
    }
    let start = wire.len();
    let marker = |wire: &mut Vec<u8>| {
        // Two octets are all there is, also for a ULPDU longer than may be sent.
        let distance = (wire.len() - start) % 65_536;
        wire.extend_from_slice(&u32::try_from(distance).unwrap().to_be_bytes());
    };
    for (index, octet) in body.iter().enumerate() {
        if index != 0 && due(&wire) {
            marker(&mut wire);
        }
        wire.push(*octet);
    }
    if due(&wire) {
        marker(&mut wire);
    }
    let sum = if crc { reference_crc(&wire) } else { 0 };
    wire.extend_from_slice(&sum.to_le_bytes());
    wire
}

/// One FPDU as the crate makes it.
pub(crate) fn frame(framer: &mut Framer, ulpdu: &[u8]) -> Vec<u8> {
    let mut out = vec![0xEE; framer.framed_len(ulpdu.len())];
    let len = framer
        .frame(&mut out, ulpdu.len(), |room| {
            room.copy_from_slice(ulpdu);
            Ok::<(), ()>(())
        })
        .unwrap();
    assert_eq!(len, out.len(), "framed_len and frame() disagree");
    out
}

/// As [`frame`], for ULPDUs that may be refused.
pub(crate) fn try_frame(framer: &mut Framer, ulpdu: &[u8]) -> Result<Vec<u8>, FrameError<()>> {
    let mut out = vec![0xEE; framer.framed_len(ulpdu.len())];
    framer.frame(&mut out, ulpdu.len(), |room| {
        room.copy_from_slice(ulpdu);
        Ok(())
    })?;
    Ok(out)
}

/// A reader that gets its octets in pieces and keeps what it has not used.
#[derive(Debug)]
pub(crate) struct Reader {
    deframer: Deframer,
    buffer: Vec<u8>,
    pub(crate) ulpdus: Vec<Vec<u8>>,
    pub(crate) error: Option<Error>,
    /// Octets wanted before anything more can be said.
    pub(crate) need: usize,
}

impl Reader {
    pub(crate) fn new(framing: Framing, position: u64) -> Self {
        Self {
            deframer: Deframer::with_position(&framing, position),
            buffer: Vec::new(),
            ulpdus: Vec::new(),
            error: None,
            need: 0,
        }
    }

    pub(crate) fn position(&self) -> u64 {
        self.deframer.position()
    }

    pub(crate) fn unread(&self) -> usize {
        self.buffer.len()
    }

    /// Octets that must still come before this reader can go on.
    pub(crate) fn missing(&self) -> usize {
        self.need.saturating_sub(self.buffer.len())
    }

    pub(crate) fn read(&mut self, piece: &[u8]) {
        self.buffer.extend_from_slice(piece);
        loop {
            match self.deframer.next(&mut self.buffer) {
                Ok(Step::Ulpdu(ulpdu)) => {
                    let ulpdu = ulpdu.to_vec();
                    // Shown again until it is consumed.
                    assert!(self.deframer.is_ready());
                    let again = self.deframer.next(&mut self.buffer);
                    assert_eq!(again, Ok(Step::Ulpdu(&ulpdu)));
                    self.ulpdus.push(ulpdu);
                    let consumed = self.deframer.consume();
                    assert_ne!(consumed, 0);
                    self.buffer.drain(..consumed);
                    assert_eq!(self.deframer.consume(), 0, "one FPDU is consumed once");
                }
                Ok(Step::Need(need)) => {
                    assert!(need > self.buffer.len(), "asks for what is there already");
                    self.need = need;
                    return;
                }
                Err(error) => {
                    // MPA-083
                    if let Some(before) = &self.error {
                        assert_eq!(*before, error);
                    }
                    self.error = Some(error);
                    return;
                }
            }
        }
    }

    pub(crate) fn eof(&self) -> Result<(), Error> {
        self.deframer.handle_eof(self.buffer.len())
    }
}

/// `octets` in pieces of the given lengths, over and over.
pub(crate) fn pieces<'a>(octets: &'a [u8], lengths: &'a [usize]) -> impl Iterator<Item = &'a [u8]> {
    let mut rest = octets;
    let mut lengths = lengths.iter().copied().cycle();
    std::iter::from_fn(move || {
        if rest.is_empty() {
            return None;
        }
        let (piece, after) =
            rest.split_at(lengths.next().unwrap_or(usize::MAX).clamp(1, rest.len()));
        rest = after;
        Some(piece)
    })
}
