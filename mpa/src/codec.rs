//! The same core as `tokio_util` codecs, for tools and scripted peers.

use std::io;

use bytes::{Bytes, BytesMut};
use tokio_util::codec::{Decoder, Encoder};

use crate::{Deframer, Error, FrameError, FrameKind, Framer, Framing, StartupFrame, Step};

/// Why a codec failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CodecError {
    /// The stream, or what was to be put on it, is not MPA's.
    #[error(transparent)]
    Mpa(#[from] Error),
    /// The transport failed.
    #[error(transparent)]
    Io(#[from] io::Error),
}

/// ULPDUs on a stream in Full Operation, both ways.
///
/// It knows nothing of RFC 5044's rule that the responder waits for the first FPDU.
#[derive(Debug)]
pub struct FpduCodec {
    framer: Framer,
    deframer: Deframer,
}

impl FpduCodec {
    /// For a connection that has just been set up.
    #[must_use]
    pub const fn new(framing: &Framing) -> Self {
        Self { framer: Framer::new(framing), deframer: Deframer::new(framing) }
    }
}

impl Decoder for FpduCodec {
    type Item = Bytes;
    type Error = CodecError;

    fn decode(&mut self, src: &mut BytesMut) -> Result<Option<Bytes>, CodecError> {
        if let Step::Need(total) = self.deframer.next(src)? {
            src.reserve(total.saturating_sub(src.len()));
            return Ok(None);
        }
        let ulpdu = self.deframer.shown();
        let fpdu = src.split_to(self.deframer.consume()).freeze();
        Ok(ulpdu.map(|range| fpdu.slice(range)))
    }

    fn decode_eof(&mut self, src: &mut BytesMut) -> Result<Option<Bytes>, CodecError> {
        let ulpdu = self.decode(src)?;
        if ulpdu.is_none() {
            self.deframer.handle_eof(src.len())?;
        }
        Ok(ulpdu)
    }
}

impl Encoder<Bytes> for FpduCodec {
    type Error = CodecError;

    fn encode(&mut self, ulpdu: Bytes, dst: &mut BytesMut) -> Result<(), CodecError> {
        let mut fpdu = vec![0; self.framer.framed_len(ulpdu.len())];
        let framed = self.framer.frame(&mut fpdu, ulpdu.len(), |room| {
            room.copy_from_slice(&ulpdu);
            Ok::<(), Error>(())
        });
        match framed {
            Ok(_) => {
                dst.extend_from_slice(&fpdu);
                Ok(())
            }
            Err(FrameError::Mpa(error) | FrameError::Fill(error)) => Err(error.into()),
        }
    }
}

/// Start-up frames: those of one kind in, of any kind out.
#[derive(Debug)]
pub struct StartupCodec {
    expected: FrameKind,
}

impl StartupCodec {
    /// To receive frames of the kind `expected`.
    #[must_use]
    pub const fn new(expected: FrameKind) -> Self {
        Self { expected }
    }
}

impl Decoder for StartupCodec {
    type Item = StartupFrame;
    type Error = CodecError;

    fn decode(&mut self, src: &mut BytesMut) -> Result<Option<StartupFrame>, CodecError> {
        let parsed = StartupFrame::parse(self.expected, src).map_err(Error::from)?;
        Ok(parsed.map(|(frame, len)| {
            let _ = src.split_to(len);
            frame
        }))
    }
}

impl Encoder<StartupFrame> for StartupCodec {
    type Error = CodecError;

    fn encode(&mut self, frame: StartupFrame, dst: &mut BytesMut) -> Result<(), CodecError> {
        dst.extend_from_slice(&frame.encode().map_err(Error::from)?);
        Ok(())
    }
}

#[cfg(test)]
#[allow(clippy::indexing_slicing, reason = "a wrong index fails the test")]
mod tests {
    use super::*;
    use crate::{Initiator, Offer, StartupError};

    const FRAMINGS: [Framing; 3] = [
        Framing { send_markers: false, receive_markers: false, crc: true },
        Framing { send_markers: true, receive_markers: true, crc: true },
        Framing { send_markers: true, receive_markers: true, crc: false },
    ];

    fn ulpdus() -> Vec<Bytes> {
        [0, 1, 18, 600, 1_442, 20_000].iter().map(|len| Bytes::from(vec![0xA5; *len])).collect()
    }

    #[test]
    fn there_and_back_in_any_piece() {
        for framing in FRAMINGS {
            let mut codec = FpduCodec::new(&framing);
            let mut stream = BytesMut::new();
            for ulpdu in ulpdus() {
                codec.encode(ulpdu, &mut stream).unwrap();
            }
            for piece in [1, 3, 64, 1_000, usize::MAX] {
                let mut codec = FpduCodec::new(&framing);
                let mut src = BytesMut::new();
                let mut found = Vec::new();
                for octets in stream.chunks(piece.min(stream.len())) {
                    src.extend_from_slice(octets);
                    while let Some(ulpdu) = codec.decode(&mut src).unwrap() {
                        found.push(ulpdu);
                    }
                }
                assert_eq!(found, ulpdus(), "in pieces of {piece}");
                assert!(codec.decode_eof(&mut src).unwrap().is_none());
            }
        }
    }

    // MPA-088
    #[test]
    fn eof_inside_an_fpdu() {
        let mut codec = FpduCodec::new(&FRAMINGS[0]);
        let mut stream = BytesMut::new();
        codec.encode(Bytes::from_static(b"ulpdu"), &mut stream).unwrap();
        stream.truncate(11);
        let error = FpduCodec::new(&FRAMINGS[0]).decode_eof(&mut stream).unwrap_err();
        let truncated = Error::Truncated { position: 0, received: 11 };
        assert!(matches!(error, CodecError::Mpa(error) if error == truncated));
    }

    #[test]
    fn errors_of_the_core_come_through() {
        let mut codec = FpduCodec::new(&FRAMINGS[0]);
        let mut stream = BytesMut::new();
        let long = codec.encode(Bytes::from(vec![0; 64_769]), &mut stream).unwrap_err();
        assert_eq!(long.to_string(), "ULPDU of 64769 octets, at most 64768 can be sent");
        assert!(stream.is_empty());
        codec.encode(Bytes::from_static(b"ulpdu"), &mut stream).unwrap();
        stream[4] ^= 1;
        assert!(matches!(codec.decode(&mut stream), Err(CodecError::Mpa(Error::Crc { .. }))));
    }

    #[test]
    fn startup_frames() {
        #[allow(clippy::disallowed_methods, reason = "the start of a test's own time")]
        let now = std::time::Instant::now();
        let request = Initiator::new(Offer::default(), now).unwrap().poll_transmit().unwrap();
        let mut src = BytesMut::from(&request[..10]);
        let mut codec = StartupCodec::new(FrameKind::Request);
        assert!(codec.decode(&mut src).unwrap().is_none());
        src.extend_from_slice(&request[10..]);
        src.extend_from_slice(b"behind");
        let frame = codec.decode(&mut src).unwrap().unwrap();
        assert_eq!(&src[..], b"behind");
        let mut again = BytesMut::new();
        codec.encode(frame, &mut again).unwrap();
        assert_eq!(again, request);

        let mut wrong = StartupCodec::new(FrameKind::Reply);
        let error = wrong.decode(&mut again).unwrap_err();
        let expected = Error::Startup(StartupError::InitiatorInitiator);
        assert!(matches!(error, CodecError::Mpa(error) if error == expected));
    }
}
