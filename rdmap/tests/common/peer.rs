//! A peer that writes and reads octets without a stream.

use iwarp_ddp::{Segment, Stag, TaggedHeader, UntaggedHeader};
use iwarp_mpa::{Deframer, Framer, Framing, Step};
use iwarp_rdmap::{AtomicRequest, AtomicResponse, Opcode, ReadRequest, Terminate, TerminateCode};

/// Builds FPDUs, right or wrong.
#[derive(Debug)]
pub struct Peer {
    framer: Framer,
}

impl Peer {
    pub fn new(framing: Framing) -> Self {
        Self { framer: Framer::new(&framing) }
    }

    /// A FPDU around any octets.
    pub fn frame(&mut self, ulpdu: &[u8]) -> Vec<u8> {
        let mut out = vec![0; self.framer.framed_len(ulpdu.len())];
        let fill = |slot: &mut [u8]| {
            slot.copy_from_slice(ulpdu);
            Ok::<_, ()>(())
        };
        let len = self.framer.frame(&mut out, ulpdu.len(), fill).unwrap();
        assert_eq!(len, out.len());
        out
    }

    pub fn untagged(&mut self, header: UntaggedHeader, payload: &[u8]) -> Vec<u8> {
        self.frame(&[&header.to_bytes()[..], payload].concat())
    }

    pub fn tagged(&mut self, header: TaggedHeader, payload: &[u8]) -> Vec<u8> {
        self.frame(&[&header.to_bytes()[..], payload].concat())
    }

    /// A Send of one segment.
    pub fn send(&mut self, msn: u32, payload: &[u8]) -> Vec<u8> {
        self.send_part(msn, 0, payload, true)
    }

    pub fn send_part(&mut self, msn: u32, offset: u32, payload: &[u8], last: bool) -> Vec<u8> {
        let header = UntaggedHeader { last, offset, ..untagged(Opcode::Send, msn) };
        self.untagged(header, payload)
    }

    /// A segment of a Write.
    pub fn write(&mut self, stag: u32, offset: u64, payload: &[u8], last: bool) -> Vec<u8> {
        self.tagged(tagged(Opcode::Write, stag, offset, last), payload)
    }

    /// A segment of a Read Response.
    pub fn response(&mut self, stag: u32, offset: u64, payload: &[u8], last: bool) -> Vec<u8> {
        self.tagged(tagged(Opcode::ReadResponse, stag, offset, last), payload)
    }

    pub fn request(&mut self, msn: u32, request: ReadRequest) -> Vec<u8> {
        let header = UntaggedHeader { queue: 1, ..untagged(Opcode::ReadRequest, msn) };
        self.untagged(header, &request.to_bytes())
    }

    pub fn atomic(&mut self, msn: u32, request: AtomicRequest) -> Vec<u8> {
        let header = UntaggedHeader { queue: 1, ..untagged(Opcode::AtomicRequest, msn) };
        self.untagged(header, &request.to_bytes())
    }

    pub fn atomic_response(&mut self, msn: u32, id: u32, original: u64) -> Vec<u8> {
        let header = UntaggedHeader { queue: 3, ..untagged(Opcode::AtomicResponse, msn) };
        self.untagged(header, &AtomicResponse { id, original }.to_bytes())
    }

    pub fn terminate(&mut self, terminate: &Terminate) -> Vec<u8> {
        let header = UntaggedHeader { queue: 2, ..untagged(Opcode::Terminate, 1) };
        self.untagged(header, &terminate.to_vec())
    }
}

/// Header of an untagged message of one segment on queue 0.
pub fn untagged(opcode: Opcode, msn: u32) -> UntaggedHeader {
    UntaggedHeader {
        last: true,
        rsvd_ulp: 0x40 | opcode.raw(),
        rsvd_ulp_word: 0,
        queue: 0,
        msn,
        offset: 0,
    }
}

pub fn tagged(opcode: Opcode, stag: u32, offset: u64, last: bool) -> TaggedHeader {
    TaggedHeader { last, rsvd_ulp: 0x40 | opcode.raw(), stag: Stag::from_raw(stag), offset }
}

/// A Read Request as the vectors have it, but for what is read.
pub fn request(stag: u32, offset: u64, len: u32) -> ReadRequest {
    ReadRequest {
        sink_stag: Stag::from_raw(0x1234_5678),
        sink_offset: 0x2000,
        len,
        source_stag: Stag::from_raw(stag),
        source_offset: offset,
    }
}

/// One FPDU as an observer sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Seen {
    pub opcode: Opcode,
    pub last: bool,
    pub tagged: Option<(Stag, u64)>,
    pub untagged: Option<(u32, u32, u32)>,
    pub invalidate: u32,
    pub payload: Vec<u8>,
    pub ulpdu: Vec<u8>,
    /// Stream position behind it.
    pub end: u64,
}

/// Reads FPDUs off the wire, cut anyhow.
#[derive(Debug)]
pub struct Observer {
    deframer: Deframer,
    buffer: Vec<u8>,
}

impl Observer {
    /// For a direction in which `framing.receive_markers` tells of markers.
    pub fn new(framing: Framing) -> Self {
        Self { deframer: Deframer::new(&framing), buffer: Vec::new() }
    }

    pub fn see(&mut self, octets: &[u8]) -> Vec<Seen> {
        self.buffer.extend_from_slice(octets);
        let mut seen = Vec::new();
        let mut at = 0;
        loop {
            let ulpdu = match self.deframer.next(&mut self.buffer[at..]).expect("good framing") {
                Step::Need(_) => break,
                Step::Ulpdu(ulpdu) => ulpdu.to_vec(),
            };
            at += self.deframer.consume();
            let segment = Segment::parse(&ulpdu).expect("good segment");
            let opcode = Opcode::from_raw(segment.rsvd_ulp() & 0x0f).expect("known opcode");
            assert_eq!(segment.rsvd_ulp() & 0xf0, 0x40, "RDMAP version and reserved bits");
            let (tagged, untagged, invalidate) = match segment {
                Segment::Tagged(segment) => (Some((segment.stag, segment.offset)), None, 0),
                Segment::Untagged(segment) => {
                    let place = (segment.queue, segment.msn, segment.offset);
                    (None, Some(place), segment.rsvd_ulp_word)
                }
            };
            seen.push(Seen {
                opcode,
                last: segment.is_last(),
                tagged,
                untagged,
                invalidate,
                payload: segment.payload().to_vec(),
                end: self.deframer.position(),
                ulpdu: ulpdu.clone(),
            });
        }
        self.buffer.drain(..at);
        seen
    }

    /// Whether what was seen ends between two FPDUs.
    pub fn is_between(&self) -> bool {
        self.buffer.is_empty()
    }
}

/// The FPDUs in `octets`, which have CRCs and no markers and are whole.
pub fn seen(octets: &[u8]) -> Vec<Seen> {
    let mut observer = Observer::new(super::CRC);
    let seen = observer.see(octets);
    assert!(observer.is_between());
    seen
}

/// Their opcodes.
pub fn opcodes(octets: &[u8]) -> Vec<Opcode> {
    seen(octets).iter().map(|fpdu| fpdu.opcode).collect()
}

/// The codes of the Terminates among them.
pub fn terminates(octets: &[u8]) -> Vec<TerminateCode> {
    seen(octets)
        .iter()
        .filter(|fpdu| fpdu.opcode == Opcode::Terminate)
        .map(|fpdu| Terminate::parse(&fpdu.payload).expect("a whole Terminate").code)
        .collect()
}

pub fn code(layer: u8, error_type: u8, code: u8) -> TerminateCode {
    TerminateCode::from_parts(layer, error_type, code)
}
