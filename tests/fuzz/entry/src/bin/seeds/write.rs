//! Inputs in the form in which the targets read them.

/// One direction of a connection, its start-up frame in front.
pub(crate) struct Direction<'a> {
    pub(crate) startup: &'a [u8],
    pub(crate) fpdus: &'a [u8],
}

impl<'a> Direction<'a> {
    /// `None` if there is no whole start-up frame.
    pub(crate) fn new(octets: &'a [u8]) -> Option<Self> {
        let length = octets.get(18..20)?;
        let length = usize::from(u16::from_be_bytes(length.try_into().ok()?));
        let (startup, fpdus) = octets.split_at_checked(20 + length)?;
        Some(Self { startup, fpdus })
    }

    pub(crate) fn crc(&self) -> bool {
        self.startup[16] & 0x40 != 0
    }
}

/// The ULPDUs of a stream without markers.
pub(crate) fn ulpdus(wire: &[u8]) -> Vec<&[u8]> {
    let mut ulpdus = Vec::new();
    let mut rest = wire;
    while let Some(length) = rest.first_chunk() {
        let len = usize::from(u16::from_be_bytes(*length));
        let Some(ulpdu) = rest.get(2..2 + len) else { break };
        ulpdus.push(ulpdu);
        rest = rest.get((2 + len).next_multiple_of(4) + 4..).unwrap_or_default();
    }
    ulpdus
}

fn opcode(ulpdu: &[u8]) -> Option<u8> {
    let (control, rdmap) = (ulpdu.first()?, ulpdu.get(1)?);
    (ulpdu.len() >= if control & 0x80 != 0 { 14 } else { 18 }).then_some(rdmap & 0x0f)
}

pub(crate) fn is_terminate(ulpdu: &[u8]) -> bool {
    opcode(ulpdu) == Some(7) && ulpdu[0] & 0x80 == 0
}

/// For `deframer` and `deframer_markers`.
pub(crate) fn stream(wire: &[u8], crc: bool, start: u64) -> Vec<u8> {
    let words = (start / 4) as u16;
    let mut input = vec![u8::from(crc)];
    input.extend_from_slice(&words.to_be_bytes());
    input.extend_from_slice(&[1, 7, 100]);
    for piece in wire.chunks(255) {
        input.extend_from_slice(&[0, piece.len() as u8]);
        input.extend_from_slice(piece);
    }
    input
}

/// For `initiator` and `responder`: the default offer, with a private data of 4 octets.
pub(crate) fn startup(frame: &[u8]) -> Vec<u8> {
    [&[0x3c, 0, 32, 0, 32, 4, 1, 5, 0][..], frame].concat()
}

/// For `ddp`.
pub(crate) fn segments(ulpdus: &[&[u8]]) -> Vec<u8> {
    let mut input = vec![8, 0, 0, 0, 0, 1, 0, 0, 8, 0, 5, 200];
    for ulpdu in ulpdus {
        let ulpdu = &ulpdu[..ulpdu.len().min(255)];
        input.extend_from_slice(&[0, ulpdu.len() as u8]);
        input.extend_from_slice(ulpdu);
    }
    input
}

/// For `rdmap`.
pub(crate) fn ulpdu_list(ulpdus: &[&[u8]]) -> Vec<u8> {
    let mut input = vec![16];
    for ulpdu in ulpdus {
        let ulpdu = &ulpdu[..ulpdu.len().min(255)];
        input.push(ulpdu.len() as u8);
        input.extend_from_slice(ulpdu);
    }
    input
}

/// What a stream starts with.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Seed {
    pub(crate) responder: bool,
    pub(crate) crc: bool,
    pub(crate) markers: bool,
}

/// Steps of `stream`, by their numbers there.
mod step {
    pub(super) const RAW: u8 = 1;
    pub(super) const WRITE: u8 = 4;
    pub(super) const FIN: u8 = 14;
    pub(super) const SUBMIT: u8 = 15;
    pub(super) const POST: u8 = 21;
    pub(super) const SEND: u8 = 22;
    pub(super) const OPEN: u8 = 26;
}

/// Kinds of operations: a Send, a Read whose sink is named, an Atomic.
mod kind {
    pub(super) const SEND: u8 = 0;
    pub(super) const READ: u8 = 20;
    pub(super) const ATOMIC: u8 = 6;
}

impl Seed {
    fn setup(self) -> Vec<u8> {
        let flags =
            u8::from(self.responder) | u8::from(self.crc) << 1 | u8::from(self.markers) << 2;
        vec![flags, 4 | 4 << 3, 7, 1, 40, 0]
    }

    /// The receiver that the vectors take for granted: two receives of 64 octets, a Read of 100 octets under way, an
    /// Atomic behind it.
    pub(crate) fn as_vectors_have_it(self, wire: &[u8]) -> Vec<u8> {
        let mut input = self.setup();
        input.extend_from_slice(&[step::POST, 64, step::POST, 64]);
        read(&mut input, 0x1234_5678, 0x2000, 100);
        input.extend_from_slice(&[step::SUBMIT, kind::ATOMIC, 0, 8, 0]);
        input.extend_from_slice(&[step::SUBMIT, kind::SEND, 0, 40, step::SEND]);
        raw(&mut input, wire);
        input.push(step::SEND);
        input
    }

    /// A receiver for a recorded direction: receives for all messages, memory where the peer writes, and the Reads that
    /// the other direction has asked for.
    pub(crate) fn as_captured(self, wire: &[u8], went: &[&[u8]]) -> Vec<u8> {
        let mut input = self.setup();
        if let Some((stag, base, len)) = written(&ulpdus(wire)) {
            input.push(step::OPEN);
            input.extend_from_slice(&stag.to_be_bytes());
            input.extend_from_slice(&base.to_be_bytes());
            input.extend_from_slice(&len.to_be_bytes());
            input.push(0);
        }
        for _ in 0..12 {
            input.extend_from_slice(&[step::POST, 255]);
        }
        for ulpdu in went.iter().filter(|ulpdu| opcode(ulpdu) == Some(1) && ulpdu.len() == 46) {
            let number = |at: usize, octets: usize| {
                ulpdu[at..at + octets].iter().fold(0, |sum, octet| sum << 8 | u64::from(*octet))
            };
            read(&mut input, number(18, 4) as u32, number(22, 8), number(30, 4) as u16);
        }
        input.push(step::SEND);
        raw(&mut input, wire);
        input.extend_from_slice(&[step::SEND, step::FIN]);
        input
    }
}

/// Two long Writes without CRC, of which most can go past the stream, and a third one that the peer's FIN cuts.
pub(crate) fn straight_and_truncated() -> Vec<u8> {
    let mut input = Seed::default().setup();
    input[3..6].copy_from_slice(&[20, 100, 0]);
    for _ in 0..2 {
        // To the front of the open memory, 1000 octets.
        input.extend_from_slice(&[step::WRITE, 0, 0, 2, 3, 232]);
    }
    input.extend_from_slice(&[step::RAW, 0, 4, 3, 232, 0x81, 0x40, step::FIN]);
    input
}

/// A Read of this side, with its sink as it goes on the wire.
fn read(input: &mut Vec<u8>, stag: u32, offset: u64, len: u16) {
    input.extend_from_slice(&[step::SUBMIT, kind::READ]);
    input.extend_from_slice(&len.to_be_bytes());
    input.extend_from_slice(&stag.to_be_bytes());
    input.extend_from_slice(&offset.to_be_bytes());
}

fn raw(input: &mut Vec<u8>, wire: &[u8]) {
    for piece in wire.chunks(0xffff) {
        input.push(step::RAW);
        input.extend_from_slice(&(piece.len() as u16).to_be_bytes());
        input.extend_from_slice(piece);
    }
}

/// `STag`, offset and length of the memory that the first Write goes to, as far as the Writes show it.
fn written(ulpdus: &[&[u8]]) -> Option<(u32, u64, u16)> {
    let mut all = ulpdus.iter().filter(|ulpdu| opcode(ulpdu) == Some(0)).map(|ulpdu| {
        let stag = u32::from_be_bytes(ulpdu[2..6].try_into().unwrap());
        let offset = u64::from_be_bytes(ulpdu[6..14].try_into().unwrap());
        (stag, offset, (ulpdu.len() - 14) as u64)
    });
    let (stag, mut base, len) = all.next()?;
    let mut end = base.checked_add(len)?;
    for (_, offset, len) in all.filter(|(other, ..)| *other == stag) {
        base = base.min(offset);
        end = end.max(offset.checked_add(len)?);
    }
    Some((stag, base, (end - base).min(4096) as u16))
}
