//! The scripted peer: an iWARP end written out by hand over a plain TCP socket, which can say anything.
//!
//! It keeps no rules. It sends the octets it is told to, at the cuts and pauses it is told to, and reports what the
//! other side said, FPDU by FPDU. It blocks, with a limit of time ([`GUARD`]) that only a hang reaches.

use std::{
    fmt,
    io::{ErrorKind, Read, Write},
    net::{Shutdown, SocketAddr, TcpListener, TcpStream},
    thread,
    time::Duration,
};

use bytes::Bytes;
use iwarp_ddp::{Stag, TaggedHeader, UntaggedHeader};
use iwarp_mpa::{Deframer, Depth, Enhanced, FrameKind, Framing, RtrTypes, StartupFrame, Step};
use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    io::retry_on_intr,
};
use socket2::SockRef;

use crate::child::GUARD;

/// RDMAP opcodes as numbers, those that no RFC names included.
pub mod opcode {
    #![allow(missing_docs, reason = "the names are those of RFC 5040 and RFC 7306")]
    pub const WRITE: u8 = 0;
    pub const READ_REQUEST: u8 = 1;
    pub const READ_RESPONSE: u8 = 2;
    pub const SEND: u8 = 3;
    pub const SEND_INVALIDATE: u8 = 4;
    pub const SEND_SOLICITED: u8 = 5;
    pub const SEND_SOLICITED_INVALIDATE: u8 = 6;
    pub const TERMINATE: u8 = 7;
    pub const ATOMIC_REQUEST: u8 = 10;
}

/// A Request of revision 2 as the tests mostly want it: CRC, no markers, IRD and ORD of 16, client-server model.
#[must_use]
pub fn request() -> StartupFrame {
    StartupFrame {
        kind: FrameKind::Request,
        markers: false,
        crc: true,
        reject: false,
        revision: 2,
        enhanced: Some(depths(16, 16)),
        private_data: Bytes::new(),
    }
}

/// The accepting Reply that mirrors [`request`].
#[must_use]
pub fn reply() -> StartupFrame {
    StartupFrame { kind: FrameKind::Reply, ..request() }
}

/// An enhanced block of the client-server model.
#[must_use]
pub fn depths(ird: u16, ord: u16) -> Enhanced {
    Enhanced {
        peer_to_peer: false,
        rtr: RtrTypes::empty(),
        ird: Depth::Count(ird),
        ord: Depth::Count(ord),
    }
}

/// The ULPDU of one tagged segment.
#[must_use]
pub fn tagged(opcode: u8, last: bool, stag: u32, offset: u64, payload: &[u8]) -> Vec<u8> {
    let stag = Stag::from_raw(stag);
    let header = TaggedHeader { last, rsvd_ulp: 0x40 | opcode, stag, offset };
    [&header.to_bytes()[..], payload].concat()
}

/// The ULPDU of one untagged segment; everything in the header settable.
#[must_use]
pub fn untagged(header: UntaggedHeader, payload: &[u8]) -> Vec<u8> {
    [&header.to_bytes()[..], payload].concat()
}

/// The header of a whole untagged message: last, offset 0, nothing to invalidate.
#[must_use]
pub fn whole(opcode: u8, queue: u32, msn: u32) -> UntaggedHeader {
    UntaggedHeader { last: true, rsvd_ulp: 0x40 | opcode, rsvd_ulp_word: 0, queue, msn, offset: 0 }
}

/// A Send in one segment.
#[must_use]
pub fn send(msn: u32, payload: &[u8]) -> Vec<u8> {
    untagged(whole(opcode::SEND, 0, msn), payload)
}

/// A Send with Invalidate in one segment.
#[must_use]
pub fn send_invalidate(msn: u32, stag: u32, payload: &[u8]) -> Vec<u8> {
    let header = UntaggedHeader { rsvd_ulp_word: stag, ..whole(opcode::SEND_INVALIDATE, 0, msn) };
    untagged(header, payload)
}

/// An RDMA Write in one segment.
#[must_use]
pub fn write(stag: u32, offset: u64, payload: &[u8]) -> Vec<u8> {
    tagged(opcode::WRITE, true, stag, offset, payload)
}

/// An RDMA Read Response in one segment.
#[must_use]
pub fn read_response(stag: u32, offset: u64, payload: &[u8]) -> Vec<u8> {
    tagged(opcode::READ_RESPONSE, true, stag, offset, payload)
}

/// What a Read Request asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReadRequest {
    /// Where the data is to go: copied into the Response.
    pub sink_stag: u32,
    /// Offset there.
    pub sink_offset: u64,
    /// Octets.
    pub length: u32,
    /// Where the data is.
    pub source_stag: u32,
    /// Offset there.
    pub source_offset: u64,
}

impl ReadRequest {
    /// The ULPDU of the request as message `msn` of queue 1.
    #[must_use]
    pub fn ulpdu(&self, msn: u32) -> Vec<u8> {
        let body = [
            &self.sink_stag.to_be_bytes()[..],
            &self.sink_offset.to_be_bytes(),
            &self.length.to_be_bytes(),
            &self.source_stag.to_be_bytes(),
            &self.source_offset.to_be_bytes(),
        ]
        .concat();
        untagged(whole(opcode::READ_REQUEST, 1, msn), &body)
    }

    /// Reads a Read Request; `None` if the ULPDU is something else.
    #[must_use]
    pub fn parse(ulpdu: &[u8]) -> Option<Self> {
        let body: &[u8; 28] = ulpdu.get(18..)?.try_into().ok()?;
        if ulpdu[1] & 0x0f != opcode::READ_REQUEST {
            return None;
        }
        let word = |at: usize| u32::from_be_bytes(body[at..at + 4].try_into().expect("4 octets"));
        let long = |at: usize| u64::from_be_bytes(body[at..at + 8].try_into().expect("8 octets"));
        Some(Self {
            sink_stag: word(0),
            sink_offset: long(4),
            length: word(12),
            source_stag: word(16),
            source_offset: long(20),
        })
    }
}

/// A Terminate with layer, type and code as one number, without headers.
#[must_use]
pub fn terminate(code: u16) -> Vec<u8> {
    let [kind, code] = code.to_be_bytes();
    untagged(whole(opcode::TERMINATE, 2, 1), &[kind, code, 0, 0])
}

/// A Terminate that was received, taken apart (RFC 5040 §4.8).
#[derive(Clone, PartialEq, Eq)]
pub struct Terminate {
    /// Layer in the high four bits, error type in the next four, error code in the low octet.
    pub code: u16,
    /// DDP Segment Length, if M was set.
    pub segment_length: Option<u16>,
    /// The terminated DDP header, if D was set; else empty.
    pub ddp_header: Vec<u8>,
    /// The terminated Read Request header, if R was set; else empty.
    pub rdmap_header: Vec<u8>,
}

impl fmt::Debug for Terminate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [kind, code] = self.code.to_be_bytes();
        write!(f, "Terminate {}/{}/{code:02x}", kind >> 4, kind & 15)?;
        write!(f, " length {:?}", self.segment_length)?;
        write!(
            f,
            " ddp {} rdmap {}",
            hex::encode(&self.ddp_header),
            hex::encode(&self.rdmap_header)
        )
    }
}

impl Terminate {
    /// Takes a ULPDU apart; `None` if it is no Terminate.
    ///
    /// # Panics
    /// If it is one, and malformed.
    #[must_use]
    pub fn parse(ulpdu: &[u8]) -> Option<Self> {
        let (header, body) = ulpdu.split_at_checked(18)?;
        if header[0] & 0x80 != 0 || header[1] & 0x0f != opcode::TERMINATE {
            return None;
        }
        assert_eq!(header[..2], [0x41, 0x47], "untagged, last, version 1; version 1, Terminate");
        assert_eq!(header[2..], [0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 1, 0, 0, 0, 0], "queue 2, MSN 1");
        let &[kind, code, flags, 0, ref rest @ ..] = body else {
            panic!("Terminate control: {}", hex::encode(body))
        };
        assert_eq!(flags & 0x1f, 0, "reserved bits of the header control field");
        let (m, d, r) = (flags & 0x80 != 0, flags & 0x40 != 0, flags & 0x20 != 0);
        assert!((!d || m) && (!r || d), "RDMAP-079: R wants D, D wants M: {flags:02x}");
        let mut rest = rest;
        let mut take = |octets: usize| {
            let (head, tail) =
                rest.split_at_checked(octets).expect("the headers its flags announce");
            rest = tail;
            head.to_vec()
        };
        let segment_length = m.then(|| u16::from_be_bytes(take(2).try_into().expect("2 octets")));
        // Its own T bit says which header it is.
        let mut ddp_header = if d { take(1) } else { Vec::new() };
        if let Some(&first) = ddp_header.first() {
            ddp_header.extend(take(if first & 0x80 == 0 { 17 } else { 13 }));
        }
        let rdmap_header = if r { take(28) } else { Vec::new() };
        assert!(rest.is_empty(), "octets behind the Terminate: {}", hex::encode(rest));
        Some(Self {
            code: u16::from_be_bytes([kind, code]),
            segment_length,
            ddp_header,
            rdmap_header,
        })
    }
}

/// What came from the other side.
#[derive(Clone, PartialEq, Eq)]
pub enum Heard {
    /// A whole FPDU with a good CRC (if CRC is in use).
    Ulpdu(Vec<u8>),
    /// FIN, behind a whole FPDU.
    Fin,
    /// RST.
    Reset,
}

impl fmt::Debug for Heard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ulpdu(ulpdu) => match Terminate::parse(ulpdu) {
                Some(terminate) => terminate.fmt(f),
                None => write!(f, "Ulpdu({})", hex::encode(&ulpdu[..ulpdu.len().min(64)])),
            },
            Self::Fin => f.write_str("Fin"),
            Self::Reset => f.write_str("Reset"),
        }
    }
}

/// A listening socket for a scripted responder.
#[derive(Debug)]
pub struct PeerListener(TcpListener);

impl PeerListener {
    /// Listens on a free port of the loopback.
    #[must_use]
    pub fn bind() -> Self {
        Self(TcpListener::bind("127.0.0.1:0").expect("a free port"))
    }

    /// Has both sides of connections send no longer segments than these. On the loopback TCP's own grow with the window.
    pub fn limit_segments(&self, octets: u32) {
        socket2::SockRef::from(&self.0).set_tcp_mss(octets).expect("an option of TCP");
    }

    /// Where.
    #[must_use]
    pub fn addr(&self) -> SocketAddr {
        self.0.local_addr().expect("a bound socket")
    }

    /// The next TCP connection, nothing of it read.
    ///
    /// # Panics
    /// If nobody connects for [`GUARD`].
    #[must_use]
    pub fn accept(&self) -> Peer {
        let limit = Timespec::try_from(GUARD).expect("a time");
        let mut waiting = [PollFd::new(&self.0, PollFlags::IN)];
        let ready = retry_on_intr(|| poll(&mut waiting, Some(&limit))).expect("a socket");
        assert_eq!(ready, 1, "nobody connected within {GUARD:?}");
        Peer::new(self.0.accept().expect("a connection").0)
    }

    /// Whether nobody connects for so long.
    #[must_use]
    pub fn is_quiet_for(&self, time: Duration) -> bool {
        self.0.set_nonblocking(true).expect("a socket");
        thread::sleep(time);
        let quiet = self.0.accept().is_err();
        self.0.set_nonblocking(false).expect("a socket");
        quiet
    }

    /// Accepts, reads a Request, answers with `reply`; both sides are in Full Operation then.
    #[must_use]
    pub fn establish(&self, reply: &StartupFrame) -> (Peer, StartupFrame) {
        let mut peer = self.accept();
        let request = peer.read_startup(FrameKind::Request);
        peer.send_startup(reply);
        peer.begin(&request, reply);
        (peer, request)
    }
}

/// One end of a TCP connection that speaks iWARP by script.
#[derive(Debug)]
pub struct Peer {
    stream: TcpStream,
    input: Vec<u8>,
    framing: Framing,
    /// Octets sent in Full Operation, which is what markers are counted by.
    position: usize,
    deframer: Deframer,
}

impl Peer {
    /// Over a connected socket, before start-up.
    #[must_use]
    pub fn new(stream: TcpStream) -> Self {
        stream.set_nodelay(true).expect("a TCP socket");
        stream.set_read_timeout(Some(GUARD)).expect("a socket");
        stream.set_write_timeout(Some(GUARD)).expect("a socket");
        let framing = Framing { send_markers: false, receive_markers: false, crc: true };
        Self { stream, input: Vec::new(), position: 0, deframer: Deframer::new(&framing), framing }
    }

    /// Connects, and says nothing yet.
    #[must_use]
    pub fn dial(addr: SocketAddr) -> Self {
        Self::new(TcpStream::connect(addr).expect("a listener"))
    }

    /// Connects, sends `request`, reads an accepting Reply; both sides are in Full Operation then.
    #[must_use]
    pub fn establish(addr: SocketAddr, request: &StartupFrame) -> (Self, StartupFrame) {
        let mut peer = Self::dial(addr);
        peer.send_startup(request);
        let reply = peer.read_startup(FrameKind::Reply);
        assert!(!reply.reject, "the Request was refused");
        peer.begin(&reply, request);
        (peer, reply)
    }

    /// The socket.
    #[must_use]
    pub fn stream(&self) -> &TcpStream {
        &self.stream
    }

    /// The socket, and nothing that was kept beside it.
    #[must_use]
    pub fn into_stream(self) -> TcpStream {
        self.stream
    }

    // --- saying ------------------------------------------------------------------------------------------------

    /// Sends octets as they are.
    pub fn say(&mut self, octets: &[u8]) {
        self.stream.write_all(octets).expect("a peer that takes what is sent");
    }

    /// Sends octets to a side that may be gone, or may be about to close.
    pub fn say_perhaps(&mut self, octets: &[u8]) {
        let _ = self.stream.write_all(octets);
    }

    /// Sends octets in pieces of `piece` octets, with a pause behind each.
    pub fn trickle(&mut self, octets: &[u8], piece: usize, pause: Duration) {
        for octets in octets.chunks(piece) {
            self.say(octets);
            thread::sleep(pause);
        }
    }

    /// Sends a start-up frame.
    pub fn send_startup(&mut self, frame: &StartupFrame) {
        let octets = frame.encode().expect("a frame that can be written");
        self.say(&octets);
    }

    /// Enters Full Operation: `theirs` is the start-up frame that was received, `ours` the one that was sent.
    pub fn begin(&mut self, theirs: &StartupFrame, ours: &StartupFrame) {
        self.framing = Framing {
            send_markers: theirs.markers,
            receive_markers: ours.markers,
            crc: theirs.crc || ours.crc,
        };
        self.position = 0;
        self.deframer = Deframer::new(&self.framing);
    }

    /// The octets of a good FPDU, the next one of the stream: written out here, and not by what is under test.
    pub fn fpdu(&mut self, ulpdu: &[u8]) -> Vec<u8> {
        let length = u16::try_from(ulpdu.len()).expect("a length of 16 bits");
        let mut content = [&length.to_be_bytes()[..], ulpdu].concat();
        content.resize(content.len().next_multiple_of(4), 0);

        let mut octets = Vec::with_capacity(content.len() + content.len() / 100 + 16);
        // A marker in front belongs to this FPDU and points nowhere; those inside point back to its length.
        let mut header_at = self.position;
        if self.is_marker_due(&octets) {
            octets.extend([0; 4]);
            header_at += 4;
        }
        for group in content.chunks(4) {
            if self.position + octets.len() != header_at {
                self.mark(&mut octets, header_at);
            }
            octets.extend(group);
        }
        self.mark(&mut octets, header_at);
        let crc = if self.framing.crc { crc32c::crc32c(&octets) } else { 0 };
        octets.extend(crc.to_le_bytes());
        self.position += octets.len();
        octets
    }

    fn mark(&self, octets: &mut Vec<u8>, header_at: usize) {
        if self.is_marker_due(octets) {
            let back = u16::try_from(self.position + octets.len() - header_at).expect("16 bits");
            octets.extend([0, 0]);
            octets.extend(back.to_be_bytes());
        }
    }

    fn is_marker_due(&self, octets: &[u8]) -> bool {
        self.framing.send_markers && (self.position + octets.len()).is_multiple_of(512)
    }

    /// Sends a good FPDU.
    pub fn send(&mut self, ulpdu: &[u8]) {
        let octets = self.fpdu(ulpdu);
        self.say(&octets);
    }

    /// Sends an FPDU whose CRC is off by one bit.
    pub fn send_with_bad_crc(&mut self, ulpdu: &[u8]) {
        let mut octets = self.fpdu(ulpdu);
        if let Some(last) = octets.last_mut() {
            *last ^= 1;
        }
        self.say(&octets);
    }

    /// Ends this direction: FIN behind what was sent.
    pub fn half_close(&mut self) {
        let _ = self.stream.shutdown(Shutdown::Write);
    }

    /// Ends the connection with RST.
    pub fn reset(self) {
        SockRef::from(&self.stream).set_linger(Some(Duration::ZERO)).expect("a TCP socket");
    }

    // --- hearing -----------------------------------------------------------------------------------------------

    /// Reads a start-up frame; octets behind it stay for the FPDU stream.
    pub fn read_startup(&mut self, kind: FrameKind) -> StartupFrame {
        loop {
            match StartupFrame::parse(kind, &self.input).expect("a well-formed start-up frame") {
                Some((frame, length)) => {
                    self.input.drain(..length);
                    return frame;
                }
                None => assert_eq!(self.read_more(), Ok(true), "end before a start-up frame"),
            }
        }
    }

    /// The next FPDU, or the end.
    pub fn hear(&mut self) -> Heard {
        loop {
            match self.deframer.next(&mut self.input).expect("good FPDUs from the other side") {
                Step::Ulpdu(ulpdu) => {
                    let ulpdu = ulpdu.to_vec();
                    let length = self.deframer.consume();
                    self.input.drain(..length);
                    return Heard::Ulpdu(ulpdu);
                }
                Step::Need(_) => match self.read_more() {
                    Ok(true) => {}
                    Ok(false) => {
                        assert!(self.input.is_empty(), "FIN inside an FPDU: {:02x?}", self.input);
                        return Heard::Fin;
                    }
                    Err(Lost) => return Heard::Reset,
                },
            }
        }
    }

    /// The next FPDU.
    pub fn hear_ulpdu(&mut self) -> Vec<u8> {
        match self.hear() {
            Heard::Ulpdu(ulpdu) => ulpdu,
            end => panic!("{end:?} instead of an FPDU"),
        }
    }

    /// The next FPDU, which must be a Terminate.
    pub fn hear_terminate(&mut self) -> Terminate {
        let ulpdu = self.hear_ulpdu();
        Terminate::parse(&ulpdu)
            .unwrap_or_else(|| panic!("{:?} instead of a Terminate", Heard::Ulpdu(ulpdu)))
    }

    /// All that comes until the end, the end included.
    pub fn hear_out(&mut self) -> Vec<Heard> {
        let mut all = vec![self.hear()];
        while let Some(Heard::Ulpdu(_)) = all.last() {
            all.push(self.hear());
        }
        all
    }

    /// Whether nothing at all comes for so long.
    pub fn is_silent_for(&mut self, time: Duration) -> bool {
        self.stream.set_read_timeout(Some(time)).expect("a socket");
        let silent = self.input.is_empty()
            && {
                let mut octet = [0];
                let peeked = self.stream.peek(&mut octet);
                matches!(peeked, Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut))
            };
        self.stream.set_read_timeout(Some(GUARD)).expect("a socket");
        silent
    }

    /// Reads what is there; `Ok(false)` at FIN.
    fn read_more(&mut self) -> Result<bool, Lost> {
        let mut buffer = [0; 16_384];
        loop {
            match self.stream.read(&mut buffer) {
                Ok(0) => return Ok(false),
                Ok(length) => {
                    self.input.extend_from_slice(&buffer[..length]);
                    return Ok(true);
                }
                Err(error) => match error.kind() {
                    ErrorKind::Interrupted => {}
                    ErrorKind::WouldBlock | ErrorKind::TimedOut => {
                        panic!("the other side said nothing for {GUARD:?}")
                    }
                    _ => return Err(Lost),
                },
            }
        }
    }
}

/// The connection was reset.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Lost;
