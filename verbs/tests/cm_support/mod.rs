//! What the tests of the connection manager share: a device with queues, and a peer that speaks raw
//! octets.

#![allow(dead_code, unused_imports, reason = "each test binary uses its own part")]
#![allow(clippy::unwrap_used, reason = "a failed step is a failed test")]

mod ends;

use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsFd as _;
use std::time::{Duration, Instant};

use iwarp_mpa::{
    Deframer, Depth, Enhanced, FrameKind, Framer, Framing, RtrTypes, StartupFrame, Step,
};
use iwarp_verbs::cm::{
    self, ConnParam, Connection, Event, EventChannel, EventKind, ListenConfig, Listener,
};
use iwarp_verbs::{
    Access, CompletionQueue, Device, DeviceConfig, MemoryRegion, ProtectionDomain, QpConfig,
    QueuePair, WorkCompletion,
};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

pub(crate) use ends::{Ends, Pair};

/// No test waits longer than this for anything: it hangs only if something is broken.
pub(crate) const GUARD: Duration = Duration::from_secs(30);

/// How long nothing has to happen to count as "nothing happens".
pub(crate) const QUIET: Duration = Duration::from_millis(150);

/// A time-out that is meant to pass.
pub(crate) const SHORT: Duration = Duration::from_millis(200);

/// A device, a protection domain and a completion queue.
pub(crate) struct World {
    pub(crate) device: Device,
    pub(crate) pd: ProtectionDomain,
    pub(crate) cq: CompletionQueue,
}

impl World {
    pub(crate) fn new() -> Self {
        Self::with(DeviceConfig::default())
    }

    pub(crate) fn with(config: DeviceConfig) -> Self {
        let device = Device::open(config).unwrap();
        let pd = device.alloc_pd();
        let cq = device.create_cq(1024).unwrap();
        Self { device, pd, cq }
    }

    pub(crate) fn qp(&self) -> QueuePair {
        self.pd.create_qp(&QpConfig::new(&self.cq)).unwrap()
    }

    pub(crate) fn listener(&self) -> Listener {
        Listener::bind(&self.device, "127.0.0.1:0", ListenConfig::default()).unwrap()
    }

    pub(crate) fn channel(&self) -> EventChannel {
        EventChannel::new(&self.device).unwrap()
    }

    /// Waits for so many completions.
    pub(crate) fn completions(&self, count: usize) -> Vec<WorkCompletion> {
        let started = Instant::now();
        let mut found = Vec::new();
        while found.len() < count {
            assert!(started.elapsed() < GUARD, "only {} of {count} completions", found.len());
            match self.cq.poll_one() {
                Some(wc) => found.push(wc),
                None => std::thread::yield_now(),
            }
        }
        found
    }
}

/// One side of a connection between programs: a device of its own, so that nothing of the other side moves
/// it along, and memory.
pub(crate) struct Side {
    pub(crate) device: Device,
    pub(crate) pd: ProtectionDomain,
    pub(crate) cq: CompletionQueue,
    pub(crate) region: MemoryRegion,
}

impl Side {
    pub(crate) fn new() -> Self {
        Self::with_entries(4096)
    }

    pub(crate) fn with_entries(entries: u32) -> Self {
        let World { device, pd, .. } = World::new();
        let cq = device.create_cq(entries).unwrap();
        let rights = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ;
        let region = pd.alloc(64 << 10, rights).unwrap();
        Self { device, pd, cq, region }
    }

    pub(crate) fn qp(&self) -> QueuePair {
        self.pd.create_qp(&QpConfig::new(&self.cq)).unwrap()
    }

    pub(crate) fn listen(&self) -> Listener {
        Listener::bind(&self.device, "127.0.0.1:0", ListenConfig::default()).unwrap()
    }

    /// Polls until there is a completion, which has to be a success.
    pub(crate) fn polled(&self) -> WorkCompletion {
        let started = Instant::now();
        loop {
            if let Some(wc) = self.cq.poll_one() {
                return wc.ok().unwrap();
            }
            assert!(started.elapsed() < GUARD, "no completion");
        }
    }
}

/// A connection of `client` to `server`, whose device listens with `listener`.
pub(crate) fn connect(
    listener: &Listener,
    client: &QueuePair,
    server: &QueuePair,
) -> (Connection, Connection) {
    let connecting = cm::connect(listener.local_addr(), client, ConnParam::default()).unwrap();
    let request = listener.accept(GUARD).unwrap();
    let accepting = request.accept(server, ConnParam::default()).unwrap();
    (connecting.wait(GUARD).unwrap(), accepting.wait(GUARD).unwrap())
}

/// The next event, which has to be of this kind.
#[track_caller]
pub(crate) fn expect(channel: &EventChannel, kind: EventKind) -> Event {
    let event = channel.wait_event(GUARD).expect("an event");
    assert_eq!(event.kind, kind, "{event:?}");
    event
}

/// No event comes for a while.
#[track_caller]
pub(crate) fn expect_none(channel: &EventChannel) {
    if let Some(event) = channel.wait_event(QUIET) {
        panic!("unexpected {event:?}");
    }
}

/// Whether a descriptor is readable at this moment.
pub(crate) fn readable(channel: &EventChannel) -> bool {
    let mut fds = [PollFd::from_borrowed_fd(channel.as_fd(), PollFlags::IN)];
    poll(&mut fds, Some(&Timespec::default())).unwrap() == 1
}

/// One end of a TCP connection that does what a test says, well formed or not.
pub(crate) struct Peer {
    pub(crate) stream: TcpStream,
    framing: Framing,
    framer: Framer,
    deframer: Deframer,
    input: Vec<u8>,
    msn: u32,
}

impl Peer {
    pub(crate) fn connect(addr: SocketAddr) -> Self {
        Self::over(TcpStream::connect(addr).unwrap())
    }

    /// Waits for a connection; the listener is one of the test's own.
    pub(crate) fn accept(listener: &TcpListener) -> Self {
        listener.set_nonblocking(true).unwrap();
        let started = Instant::now();
        loop {
            match listener.accept() {
                Ok((stream, _)) => {
                    stream.set_nonblocking(false).unwrap();
                    return Self::over(stream);
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    assert!(started.elapsed() < GUARD, "nobody connects");
                    std::thread::sleep(Duration::from_millis(1));
                }
                Err(error) => panic!("{error}"),
            }
        }
    }

    /// The far end of a connection that is there already.
    pub(crate) fn over(stream: TcpStream) -> Self {
        stream.set_read_timeout(Some(GUARD)).unwrap();
        stream.set_write_timeout(Some(GUARD)).unwrap();
        stream.set_nodelay(true).unwrap();
        let framing = Framing { send_markers: false, receive_markers: false, crc: true };
        let (framer, deframer) = (Framer::new(&framing), Deframer::new(&framing));
        Self { stream, framing, framer, deframer, input: Vec::new(), msn: 1 }
    }

    /// What FPDUs look like from here on.
    pub(crate) fn frame_with(&mut self, framing: Framing) {
        self.framer = Framer::new(&framing);
        self.deframer = Deframer::new(&framing);
        self.framing = framing;
    }

    pub(crate) fn send(&mut self, octets: &[u8]) {
        self.stream.write_all(octets).unwrap();
    }

    pub(crate) fn send_frame(&mut self, frame: &StartupFrame) {
        self.send(&frame.encode().unwrap());
    }

    /// A whole start-up frame; what follows it stays for later.
    pub(crate) fn read_frame(&mut self, kind: FrameKind) -> StartupFrame {
        loop {
            if let Some((frame, taken)) = StartupFrame::parse(kind, &self.input).unwrap() {
                self.input.drain(..taken);
                return frame;
            }
            assert!(self.fill(), "the stream ended before a whole frame");
        }
    }

    pub(crate) fn read_request(&mut self) -> StartupFrame {
        self.read_frame(FrameKind::Request)
    }

    pub(crate) fn read_reply(&mut self) -> StartupFrame {
        self.read_frame(FrameKind::Reply)
    }

    /// The octets of one FPDU with this ULPDU, next in the stream.
    pub(crate) fn fpdu(&mut self, ulpdu: &[u8]) -> Vec<u8> {
        let mut out = vec![0; self.framer.framed_len(ulpdu.len())];
        let fill = |room: &mut [u8]| {
            room.copy_from_slice(ulpdu);
            Ok::<_, std::convert::Infallible>(())
        };
        let len = self.framer.frame(&mut out, ulpdu.len(), fill).unwrap();
        assert_eq!(len, out.len());
        out
    }

    /// The octets of one whole Send.
    pub(crate) fn send_fpdu(&mut self, payload: &[u8]) -> Vec<u8> {
        let ulpdu = send_ulpdu(self.msn, payload);
        self.msn += 1;
        self.fpdu(&ulpdu)
    }

    /// The next ULPDU, or `None` at the end of the stream.
    pub(crate) fn read_ulpdu(&mut self) -> Option<Vec<u8>> {
        loop {
            if let Step::Ulpdu(ulpdu) = self.deframer.next(&mut self.input).unwrap() {
                let ulpdu = ulpdu.to_vec();
                let used = self.deframer.consume();
                self.input.drain(..used);
                return Some(ulpdu);
            }
            if !self.fill() {
                assert!(self.input.is_empty(), "the stream ended inside an FPDU");
                return None;
            }
        }
    }

    fn fill(&mut self) -> bool {
        let mut buffer = [0; 4096];
        let received = self.stream.read(&mut buffer).unwrap();
        self.input.extend_from_slice(&buffer[..received]);
        received > 0
    }

    /// Nothing comes, and the stream stays open, for a while (MPA-005, MPA-029).
    #[track_caller]
    pub(crate) fn expect_silence(&mut self) {
        assert!(self.input.is_empty());
        self.stream.set_read_timeout(Some(QUIET)).unwrap();
        let silent = self.stream.read(&mut [0; 64]);
        self.stream.set_read_timeout(Some(GUARD)).unwrap();
        match silent {
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {}
            other => panic!("not silent: {other:?}"),
        }
    }

    /// FIN comes next, after nothing else, and no reset (FC-012).
    #[track_caller]
    pub(crate) fn expect_fin(&mut self) {
        assert!(self.input.is_empty());
        assert_eq!(self.stream.read(&mut [0; 64]).unwrap(), 0);
    }

    /// The connection ends, in whatever way, after nothing else.
    #[track_caller]
    pub(crate) fn expect_end(&mut self) {
        assert!(self.input.is_empty());
        match self.stream.read(&mut [0; 64]) {
            Ok(0) => {}
            Err(error) if error.kind() == ErrorKind::ConnectionReset => {}
            other => panic!("not closed: {other:?}"),
        }
    }

    pub(crate) fn fin(&self) {
        self.stream.shutdown(Shutdown::Write).unwrap();
    }

    /// Closes with a reset.
    pub(crate) fn reset(self) {
        socket2::SockRef::from(&self.stream).set_linger(Some(Duration::ZERO)).unwrap();
    }
}

/// Where a scripted responder listens.
pub(crate) fn raw_listener() -> (TcpListener, SocketAddr) {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let addr = listener.local_addr().unwrap();
    (listener, addr)
}

/// An address where nobody listens: bound, so that nobody else gets it, and that is all.
pub(crate) fn closed_port() -> (socket2::Socket, SocketAddr) {
    let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
    socket.bind(&SocketAddr::from((Ipv4Addr::LOCALHOST, 0)).into()).unwrap();
    let addr = socket.local_addr().unwrap().as_socket().unwrap();
    (socket, addr)
}

/// A plain Request of revision 1.
pub(crate) fn request_v1(private_data: &[u8]) -> StartupFrame {
    StartupFrame {
        kind: FrameKind::Request,
        markers: false,
        crc: true,
        reject: false,
        revision: 1,
        enhanced: None,
        private_data: private_data.to_vec().into(),
    }
}

/// An enhanced Request of the client-server model.
pub(crate) fn request_v2(ird: u16, ord: u16, private_data: &[u8]) -> StartupFrame {
    let enhanced = Enhanced {
        peer_to_peer: false,
        rtr: RtrTypes::empty(),
        ird: Depth::Count(ird),
        ord: Depth::Count(ord),
    };
    StartupFrame { revision: 2, enhanced: Some(enhanced), ..request_v1(private_data) }
}

/// An enhanced Request of the peer-to-peer model.
pub(crate) fn request_p2p(rtr: RtrTypes) -> StartupFrame {
    let mut frame = request_v2(4, 4, b"");
    if let Some(enhanced) = &mut frame.enhanced {
        enhanced.peer_to_peer = true;
        enhanced.rtr = rtr;
    }
    frame
}

/// The Reply that accepts a Request as it is, by the RTR message `rtr` if it asks for the peer-to-peer
/// model.
pub(crate) fn reply_to(request: &StartupFrame, rtr: RtrTypes, private_data: &[u8]) -> StartupFrame {
    let enhanced = request.enhanced.map(|asked| Enhanced {
        peer_to_peer: asked.peer_to_peer,
        rtr: if asked.peer_to_peer { rtr } else { RtrTypes::empty() },
        ird: asked.ord,
        ord: asked.ird,
    });
    StartupFrame {
        kind: FrameKind::Reply,
        markers: false,
        enhanced,
        private_data: private_data.to_vec().into(),
        ..request.clone()
    }
}

/// One untagged segment that is a whole Send.
pub(crate) fn send_ulpdu(msn: u32, payload: &[u8]) -> Vec<u8> {
    let mut ulpdu = vec![0x41, 0x43, 0, 0, 0, 0];
    ulpdu.extend_from_slice(&0u32.to_be_bytes());
    ulpdu.extend_from_slice(&msn.to_be_bytes());
    ulpdu.extend_from_slice(&0u32.to_be_bytes());
    ulpdu.extend_from_slice(payload);
    ulpdu
}

/// One tagged segment that is a whole RDMA Write.
pub(crate) fn write_ulpdu(stag: u32, offset: u64, payload: &[u8]) -> Vec<u8> {
    let mut ulpdu = vec![0xc1, 0x40];
    ulpdu.extend_from_slice(&stag.to_be_bytes());
    ulpdu.extend_from_slice(&offset.to_be_bytes());
    ulpdu.extend_from_slice(payload);
    ulpdu
}

/// The RDMAP opcode of a ULPDU.
pub(crate) fn opcode(ulpdu: &[u8]) -> u8 {
    ulpdu[1] & 0x0f
}

pub(crate) const WRITE: u8 = 0;
pub(crate) const READ_REQUEST: u8 = 1;
pub(crate) const SEND: u8 = 3;
pub(crate) const TERMINATE: u8 = 7;

/// Layer, type and code of a Terminate, as 16 bits.
#[track_caller]
pub(crate) fn terminate_code(ulpdu: &[u8]) -> u16 {
    assert_eq!(opcode(ulpdu), TERMINATE);
    u16::from_be_bytes([ulpdu[18], ulpdu[19]])
}
