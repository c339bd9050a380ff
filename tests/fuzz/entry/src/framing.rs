//! FPDUs: whatever comes, and however it is cut, what is taken for a ULPDU is what the RFC says it is.
//!
//! Input: an octet of flags (1: CRCs are in use; 2: the stream is about to pass 2^64), two octets of the stream
//! offset in words, three lengths of pieces, and then parts of the stream:
//!
//! | octet modulo 4 | part |
//! |---|---|
//! | 0 | a number and so many octets as they are |
//! | 1 | the same as the ULPDU of a good FPDU |
//! | 2 | two octets of length, of which those below 0x8000 count modulo 2048: a good FPDU around so many octets |
//! | 3 | as 1, then two octets that name a place of the FPDU, and one of changes to make there |

use iwarp_mpa::{Deframer, Error, Framer, Framing, Step, ULPDU_MAX_SENT};

use crate::bytes::{Bytes, pieces};
use crate::fpdu::{self, Content};

/// Streams are cut off behind so many octets.
const MOST: usize = 100_000;

/// FPDUs without markers.
pub fn deframer(input: &[u8]) {
    run(input, false);
}

/// FPDUs with markers.
pub fn deframer_markers(input: &[u8]) {
    run(input, true);
}

fn run(input: &[u8], markers: bool) {
    let mut input = Bytes::new(input);
    let flags = input.u8();
    let crc = flags & 1 != 0;
    let words = u64::from(input.u16()) * 4;
    let position = if flags & 2 != 0 { (u64::MAX - words) & !3 } else { words };
    let cuts = [input.u8(), input.u8(), input.u8()];
    let stream = stream(&mut input, position, markers, crc);

    let expected = fpdu::take_apart(&stream, position, markers, crc);
    let framing = Framing { send_markers: markers, receive_markers: markers, crc };
    let mut whole = Reader::new(framing, position);
    whole.read(&stream);
    whole.check(&expected, stream.len());
    let mut cut = Reader::new(framing, position);
    for piece in pieces(&stream, cuts) {
        cut.read(piece);
    }
    cut.check(&expected, stream.len());
    again(&expected, framing, position);
}

fn stream(input: &mut Bytes<'_>, position: u64, markers: bool, crc: bool) -> Vec<u8> {
    let mut stream = Vec::new();
    while !input.is_empty() && stream.len() < MOST {
        let here = position.wrapping_add(stream.len() as u64) & !3;
        let fpdu = |ulpdu: &[u8]| fpdu::build(ulpdu, here, markers, crc);
        match input.u8() % 4 {
            0 => stream.extend_from_slice(input.counted()),
            1 => stream.extend(fpdu(input.counted())),
            2 => {
                let len = match input.u16() {
                    len if len < 0x8000 => len % 2048,
                    len => len,
                };
                stream.extend(fpdu(&fpdu::ramp(len.into())));
            }
            _ => {
                let mut octets = fpdu(input.counted());
                let place = usize::from(input.u16()) % octets.len();
                octets[place] ^= input.u8();
                stream.extend(octets);
            }
        }
    }
    stream
}

/// What was read is framed as a sender frames it, and read again.
fn again(content: &Content, framing: Framing, position: u64) {
    let mut framer = Framer::with_position(&framing, position);
    let mut stream = Vec::new();
    let sendable = content.ulpdus.iter().take_while(|ulpdu| ulpdu.len() <= ULPDU_MAX_SENT);
    for ulpdu in sendable.clone() {
        let mut wire = vec![0xee; framer.framed_len(ulpdu.len())];
        let here = framer.position();
        framer
            .frame(&mut wire, ulpdu.len(), |room| {
                room.copy_from_slice(ulpdu);
                Ok::<_, ()>(())
            })
            .expect("a ULPDU that may be sent");
        assert_eq!(wire, fpdu::build(ulpdu, here, framing.send_markers, framing.crc));
        stream.extend(wire);
    }
    let mut reader = Reader::new(framing, position);
    reader.read(&stream);
    assert!(reader.ulpdus.iter().eq(sendable), "framed and read again is not the same");
    assert_eq!((&reader.error, reader.buffer.len()), (&None, 0));
}

/// Whoever has a deframer and keeps what it did not consume.
struct Reader {
    deframer: Deframer,
    buffer: Vec<u8>,
    ulpdus: Vec<Vec<u8>>,
    error: Option<Error>,
    start: u64,
}

impl Reader {
    fn new(framing: Framing, position: u64) -> Self {
        Self {
            deframer: Deframer::with_position(&framing, position),
            buffer: Vec::new(),
            ulpdus: Vec::new(),
            error: None,
            start: position,
        }
    }

    fn read(&mut self, piece: &[u8]) {
        self.buffer.extend_from_slice(piece);
        let mut at = 0;
        loop {
            match self.deframer.next(&mut self.buffer[at..]) {
                Ok(Step::Ulpdu(ulpdu)) => {
                    assert_eq!(self.error, None, "shown behind an error");
                    let ulpdu = ulpdu.to_vec();
                    let again = self.deframer.next(&mut self.buffer[at..]);
                    assert_eq!(again, Ok(Step::Ulpdu(&ulpdu)), "shown again until consumed");
                    self.ulpdus.push(ulpdu);
                    at += self.deframer.consume();
                    assert_eq!(self.deframer.consume(), 0, "consumed once");
                }
                Ok(Step::Need(need)) => {
                    assert!(need > self.buffer.len() - at, "needs what is there");
                    break;
                }
                Err(error) => {
                    let before = self.error.replace(error);
                    assert!(before.is_none() || before == self.error, "an error is for ever");
                    break;
                }
            }
        }
        self.buffer.drain(..at);
    }

    fn check(mut self, expected: &Content, len: usize) {
        assert_eq!(self.ulpdus, expected.ulpdus);
        assert_eq!(self.error, expected.error);
        assert_eq!(self.buffer.len(), len - expected.taken);
        let position = self.start.wrapping_add(expected.taken as u64);
        assert_eq!(self.deframer.position(), position);
        let eof = self.deframer.handle_eof(self.buffer.len());
        if let Some(error) = &expected.error {
            assert_eq!(eof.as_ref(), Err(error));
            return;
        }
        assert_eq!(self.deframer.next(&mut self.buffer), Ok(Step::Need(expected.need)));
        // MPA-088
        let received = self.buffer.len();
        let truncated = Error::Truncated { position, received };
        assert_eq!(eof, if received == 0 { Ok(()) } else { Err(truncated) });
    }
}
