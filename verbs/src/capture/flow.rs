//! One connection of a capture: whose octets are whose, and their numbers.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use iwarp_mpa::{Deframer, Framing, Step};
use parking_lot::Mutex;

use super::Capture;
use super::packet::{Flags, Header, PAYLOAD_MOST};

/// What records a socket.
#[derive(Debug)]
pub(crate) struct Tap {
    capture: Arc<Capture>,
    /// This side connected; otherwise it accepted.
    initiates: AtomicBool,
    flow: Mutex<Flow>,
}

#[derive(Debug, Default)]
enum Flow {
    /// No octet has gone.
    #[default]
    Unborn,
    Here(Box<Sides>),
    /// The other end records it, or it is over.
    Elsewhere,
}

/// Both sides of a connection.
#[derive(Debug)]
struct Sides {
    local: Side,
    peer: Side,
    initiates: bool,
}

#[derive(Debug)]
struct Side {
    name: SocketAddr,
    /// The sequence number of the next octet.
    next: u32,
    finished: bool,
    reads: Reading,
    /// Its start-up frame asks for markers.
    wants_markers: bool,
}

/// How the octets of one side are cut into packets: so that a reader finds the start-up frame in one packet, by
/// which it knows MPA, and each FPDU at the front of one.
#[derive(Debug)]
enum Reading {
    /// What there is of the start-up frame.
    Opening(Vec<u8>),
    /// What there is of the next FPDU, and how much there has to be.
    Fpdus { deframer: Deframer, pending: Vec<u8>, need: usize },
    /// As they come: it is no MPA.
    Raw,
}

/// Where in a start-up frame its flags are, and that which asks for markers (RFC 5044 §7.1.1).
const FLAGS: usize = 16;
const MARKERS: u8 = 0x80;

/// Octets of a start-up frame in front of its private data, the last two of which tell its length.
const FRAME_HEADER: usize = 20;

/// The length of the start-up frame at the front; `None` if it is not known yet.
fn frame_len(octets: &[u8]) -> Option<usize> {
    let length = octets.get(FRAME_HEADER - 2..FRAME_HEADER)?;
    Some(FRAME_HEADER + usize::from(u16::from_be_bytes(length.try_into().ok()?)))
}

/// Sequence numbers of the SYNs of initiator and responder.
const FIRST: [u32; 2] = [1000, 2000];

impl Tap {
    pub(crate) fn new(capture: &Arc<Capture>) -> Self {
        Self {
            capture: Arc::clone(capture),
            initiates: AtomicBool::new(false),
            flow: Mutex::default(),
        }
    }

    /// Another one for the same file.
    pub(crate) fn another(&self) -> Self {
        Self::new(&self.capture)
    }

    /// This side connects.
    pub(crate) fn initiates(&self) {
        self.initiates.store(true, Ordering::Relaxed);
    }

    /// TCP was given these octets. `names` are the addresses of this side and of the peer.
    pub(crate) fn sent(&self, octets: &[u8], names: impl Fn() -> Option<[SocketAddr; 2]>) {
        self.with(names, |sides, capture| sides.carry(capture, false, octets));
    }

    /// These octets came.
    pub(crate) fn received(&self, octets: &[u8], names: impl Fn() -> Option<[SocketAddr; 2]>) {
        self.with(names, |sides, capture| sides.carry(capture, true, octets));
    }

    /// This side sends no more.
    pub(crate) fn closes(&self) {
        self.with(|| None, |sides, capture| sides.finish(capture, false, Flags::FIN));
    }

    /// The peer sends no more.
    pub(crate) fn closed(&self) {
        self.with(|| None, |sides, capture| sides.finish(capture, true, Flags::FIN));
    }

    /// This side resets the connection.
    pub(crate) fn resets(&self) {
        self.with(|| None, |sides, capture| sides.finish(capture, false, Flags::RST));
    }

    /// The connection was reset, by the peer as it seems.
    pub(crate) fn reset(&self) {
        self.with(|| None, |sides, capture| sides.finish(capture, true, Flags::RST));
    }

    fn with(
        &self,
        names: impl Fn() -> Option<[SocketAddr; 2]>,
        record: impl FnOnce(&mut Sides, &Capture),
    ) {
        let mut flow = self.flow.lock();
        if let Flow::Unborn = &*flow {
            let Some([local, peer]) = names() else { return };
            let initiates = self.initiates.load(Ordering::Relaxed);
            let mut sides = Sides::new(local, peer, initiates);
            let [initiator, responder] = sides.key();
            *flow = if self.capture.claim(initiator, responder) {
                sides.shake_hands(&self.capture);
                Flow::Here(Box::new(sides))
            } else {
                Flow::Elsewhere
            };
        }
        if let Flow::Here(sides) = &mut *flow {
            record(sides, &self.capture);
        }
    }
}

impl Drop for Tap {
    fn drop(&mut self) {
        if let Flow::Here(sides) = self.flow.get_mut() {
            sides.finish(&self.capture, false, Flags::FIN);
            let [initiator, responder] = sides.key();
            self.capture.unclaim(initiator, responder);
        }
    }
}

impl Sides {
    fn new(local: SocketAddr, peer: SocketAddr, initiates: bool) -> Self {
        // As both ends know them, whichever family their sockets are for.
        let canonical = |name: SocketAddr| SocketAddr::new(name.ip().to_canonical(), name.port());
        let side = |name, next| Side {
            name: canonical(name),
            next,
            finished: false,
            reads: Reading::Opening(Vec::new()),
            wants_markers: false,
        };
        let [own, other] = if initiates { FIRST } else { [FIRST[1], FIRST[0]] };
        Self { local: side(local, own), peer: side(peer, other), initiates }
    }

    fn key(&self) -> [SocketAddr; 2] {
        let (local, peer) = (self.local.name, self.peer.name);
        if self.initiates { [local, peer] } else { [peer, local] }
    }

    fn shake_hands(&mut self, capture: &Capture) {
        let by_peer = !self.initiates;
        self.packet(capture, by_peer, Flags::SYN, &[]);
        self.advance(by_peer, 1);
        self.packet(capture, !by_peer, Flags::SYN | Flags::ACK, &[]);
        self.advance(!by_peer, 1);
        self.packet(capture, by_peer, Flags::ACK, &[]);
    }

    fn carry(&mut self, capture: &Capture, by_peer: bool, octets: &[u8]) {
        match std::mem::replace(&mut self.side(by_peer).reads, Reading::Raw) {
            Reading::Raw => self.segments(capture, by_peer, octets),
            Reading::Opening(mut frame) => {
                frame.extend_from_slice(octets);
                let len = frame_len(&frame).filter(|&len| len <= frame.len());
                let Some((frame, rest)) = len.and_then(|len| frame.split_at_checked(len)) else {
                    self.side(by_peer).reads = Reading::Opening(frame);
                    return;
                };
                self.segments(capture, by_peer, frame);
                let asks = frame.get(FLAGS).is_some_and(|flags| flags & MARKERS != 0);
                self.side(by_peer).wants_markers = asks;
                let deframer = self.deframer(by_peer);
                self.fpdus(capture, by_peer, deframer, rest.to_vec(), 0);
            }
            Reading::Fpdus { mut deframer, mut pending, need } => {
                if deframer.position() == 0 && pending.is_empty() {
                    // Now the other side's frame was seen as well.
                    deframer = self.deframer(by_peer);
                }
                pending.extend_from_slice(octets);
                self.fpdus(capture, by_peer, deframer, pending, need);
            }
        }
    }

    fn deframer(&mut self, by_peer: bool) -> Deframer {
        let receive_markers = self.side(!by_peer).wants_markers;
        Deframer::new(&Framing { send_markers: false, receive_markers, crc: false })
    }

    /// Each FPDU in a packet of its own.
    fn fpdus(
        &mut self,
        capture: &Capture,
        by_peer: bool,
        mut deframer: Deframer,
        mut pending: Vec<u8>,
        mut need: usize,
    ) {
        let mut rest = &pending[..];
        while let Some(front) = rest.get(..need) {
            // A copy, since markers are taken out where they are.
            match deframer.next(&mut front.to_vec()) {
                Ok(Step::Need(more)) if more > need => need = more,
                Ok(Step::Ulpdu(_)) => {
                    let (fpdu, behind) = rest.split_at(deframer.consume().min(rest.len()));
                    self.segments(capture, by_peer, fpdu);
                    (rest, need) = (behind, 0);
                }
                Ok(Step::Need(_)) | Err(_) => return self.segments(capture, by_peer, rest),
            }
        }
        let done = pending.len() - rest.len();
        pending.drain(..done);
        self.side(by_peer).reads = Reading::Fpdus { deframer, pending, need };
    }

    fn side(&mut self, of_peer: bool) -> &mut Side {
        if of_peer { &mut self.peer } else { &mut self.local }
    }

    fn segments(&mut self, capture: &Capture, by_peer: bool, octets: &[u8]) {
        for piece in octets.chunks(PAYLOAD_MOST) {
            self.packet(capture, by_peer, Flags::PSH | Flags::ACK, piece);
            self.advance(by_peer, piece.len());
        }
    }

    /// Once for each side.
    fn finish(&mut self, capture: &Capture, by_peer: bool, how: Flags) {
        let side = self.side(by_peer);
        if std::mem::replace(&mut side.finished, true) {
            return;
        }
        // Less than a frame or an FPDU is shown as it is.
        if let Reading::Opening(part) | Reading::Fpdus { pending: part, .. } =
            std::mem::replace(&mut side.reads, Reading::Raw)
        {
            self.segments(capture, by_peer, &part);
        }
        self.packet(capture, by_peer, how | Flags::ACK, &[]);
        self.advance(by_peer, 1);
        if how == Flags::RST {
            // Nothing follows, from nobody.
            self.local.finished = true;
            self.peer.finished = true;
        }
    }

    fn advance(&mut self, by_peer: bool, octets: usize) {
        let side = self.side(by_peer);
        // Modulo 2^32, as they are meant.
        side.next = side.next.wrapping_add(u32::try_from(octets).unwrap_or(0));
    }

    fn packet(&self, capture: &Capture, by_peer: bool, flags: Flags, payload: &[u8]) {
        let (from, to) =
            if by_peer { (&self.peer, &self.local) } else { (&self.local, &self.peer) };
        let acknowledged = if flags.contains(Flags::ACK) { to.next } else { 0 };
        let header =
            Header { from: from.name, to: to.name, sequence: from.next, acknowledged, flags };
        capture.packet(&header, payload);
    }
}
