//! Two real queue pairs over a real TCP connection, without the connection manager.

#![allow(clippy::cast_possible_truncation, reason = "the numbers of tests are small")]

mod atomics;
mod bulk;
mod faults;
mod flush;
mod gather;
mod immediate;
mod many;
mod ops;
mod post;
mod progress;
mod prop;
mod srq;
mod stall;
mod states;
mod straight;
mod windows;

use std::net::{TcpListener, TcpStream};
use std::time::{Duration, Instant};

use iwarp_mpa::{FpduLimit, Negotiated, Role, Rtr};

use crate::attr::{QpConfig, QpState};
use crate::cq::CompletionQueue;
use crate::device::{Device, DeviceConfig};
use crate::mem::{Access, MemoryRegion};
use crate::pd::ProtectionDomain;
use crate::qp::QueuePair;
use crate::sys::Socket;
use crate::wc::{WcStatus, WorkCompletion};

/// Longest that anything in a test may take: a hang, not a measurement.
pub(super) const HANG: Duration = Duration::from_mins(1);

/// All rights a region can have.
pub(super) const ALL: Access =
    Access::LOCAL_WRITE.union(Access::REMOTE_WRITE).union(Access::REMOTE_READ);

/// What the start-up would have settled.
#[derive(Debug, Clone)]
pub(super) struct Setup {
    pub(super) config: DeviceConfig,
    pub(super) crc: bool,
    pub(super) markers: bool,
    pub(super) depth: u32,
    pub(super) rtr: Option<Rtr>,
    pub(super) limit: FpduLimit,
    /// Size of the sockets' send buffers, if not the system's.
    pub(super) send_buffer: Option<usize>,
    pub(super) signal_all: bool,
    pub(super) entries: u32,
    pub(super) requests: u32,
}

impl Default for Setup {
    fn default() -> Self {
        Self {
            config: DeviceConfig::default(),
            crc: true,
            markers: false,
            depth: 16,
            rtr: None,
            limit: FpduLimit::default(),
            send_buffer: None,
            signal_all: false,
            entries: 4096,
            requests: 1024,
        }
    }
}

impl Setup {
    pub(super) fn negotiated(&self, role: Role) -> Negotiated {
        Negotiated {
            role,
            revision: 2,
            crc: self.crc,
            send_markers: self.markers,
            receive_markers: self.markers,
            ird: self.depth,
            ord: self.depth,
            peer_ird: None,
            peer_ord: None,
            rtr: self.rtr,
            private_data: bytes::Bytes::new(),
        }
    }

    pub(super) fn end(&self) -> End {
        let device = Device::open(self.config.clone()).expect("a device");
        let pd = device.alloc_pd();
        let send_cq = device.create_cq(self.entries).expect("a queue");
        let recv_cq = device.create_cq(self.entries).expect("a queue");
        let config = QpConfig::new(&send_cq)
            .recv_cq(&recv_cq)
            .max_send_wr(self.requests)
            .max_recv_wr(self.requests)
            .max_send_sge(16)
            .max_recv_sge(16)
            .max_inline_data(512)
            .signal_all(self.signal_all);
        let qp = pd.create_qp(&config).expect("a queue pair");
        End { device, pd, send_cq, recv_cq, qp }
    }

    /// Two ends, not connected yet.
    pub(super) fn ends(&self) -> Pair {
        Pair { a: self.end(), b: self.end() }
    }

    /// Two connected ends: `a` is the initiator.
    pub(super) fn connect(&self) -> Pair {
        let pair = self.ends();
        self.join(&pair);
        pair
    }

    pub(super) fn join(&self, pair: &Pair) {
        let (left, right) = tcp_pair();
        for stream in [&left, &right] {
            if let Some(size) = self.send_buffer {
                let socket = socket2::SockRef::from(stream);
                socket.set_send_buffer_size(size).expect("a buffer size");
            }
        }
        self.start(&pair.b, right, Role::Responder);
        self.start(&pair.a, left, Role::Initiator);
    }

    pub(super) fn start(&self, end: &End, stream: TcpStream, role: Role) {
        let socket = Socket::from_stream(stream).expect("a socket");
        let inner = &end.qp.0.inner;
        inner.claim_setup().expect("an idle queue pair");
        inner
            .start(socket, &self.negotiated(role), Vec::new(), None, self.limit, None)
            .expect("a connection");
    }
}

/// Everything on one side.
#[derive(Debug)]
pub(super) struct End {
    pub(super) device: Device,
    pub(super) pd: ProtectionDomain,
    pub(super) send_cq: CompletionQueue,
    pub(super) recv_cq: CompletionQueue,
    pub(super) qp: QueuePair,
}

impl End {
    pub(super) fn region(&self, len: usize) -> MemoryRegion {
        alloc(&self.pd, len, ALL)
    }

    /// A region filled with octets that depend on their place and on `seed`.
    pub(super) fn pattern(&self, len: usize, seed: u8) -> MemoryRegion {
        let region = self.region(len);
        region.write_at(0, &octets(len, seed)).expect("our own memory");
        region
    }

    /// The next completion of the send queue, polled for.
    pub(super) fn sent(&self) -> WorkCompletion {
        poll(&self.send_cq)
    }

    /// The next completion of the receive queue, polled for.
    pub(super) fn received(&self) -> WorkCompletion {
        poll(&self.recv_cq)
    }

    pub(super) fn wait_state(&self, state: QpState) {
        until("the state", || self.qp.state() == state);
    }
}

#[derive(Debug)]
pub(super) struct Pair {
    pub(super) a: End,
    pub(super) b: End,
}

pub(super) fn alloc(pd: &ProtectionDomain, len: usize, access: Access) -> MemoryRegion {
    MemoryRegion::alloc(pd.0.domain().unwrap(), len, access).expect("memory")
}

pub(super) fn tcp_pair() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let left = TcpStream::connect(listener.local_addr().expect("an address")).expect("a peer");
    let (right, _) = listener.accept().expect("a peer");
    (left, right)
}

pub(super) fn octets(len: usize, seed: u8) -> Vec<u8> {
    let mut word = u32::from(seed).wrapping_mul(0x9e37_79b9) | 1;
    (0..len)
        .map(|_| {
            word ^= word << 13;
            word ^= word >> 17;
            word ^= word << 5;
            word.to_le_bytes()[1]
        })
        .collect()
}

pub(super) fn content(region: &MemoryRegion) -> Vec<u8> {
    let mut octets = vec![0; region.len()];
    region.read_at(0, &mut octets).expect("our own memory");
    octets
}

/// Polls for one completion.
pub(super) fn poll(cq: &CompletionQueue) -> WorkCompletion {
    let mut found = None;
    until("a completion", || {
        found = cq.poll_one();
        found.is_some()
    });
    found.expect("just found")
}

/// Polls for so many completions.
pub(super) fn poll_n(cq: &CompletionQueue, n: usize) -> Vec<WorkCompletion> {
    (0..n).map(|_| poll(cq)).collect()
}

/// Waits, without touching any completion queue, until something is so.
pub(super) fn until(what: &str, mut so: impl FnMut() -> bool) {
    let start = Instant::now();
    while !so() {
        assert!(start.elapsed() < HANG, "still waiting for {what}");
        std::thread::yield_now();
    }
}

#[track_caller]
pub(super) fn assert_success(wc: &WorkCompletion, wr_id: u64) {
    assert_eq!((wc.status, wc.wr_id), (WcStatus::Success, wr_id), "{wc:?}");
}
