//! What an idle connection costs its process, counted by the allocator.
//!
//! Both ends live in this process, so it holds what the two need, and half of that is one end. The bound is
//! generous on purpose: it is there to show that somebody has put a buffer or a table into every connection.
#![allow(clippy::unwrap_used, reason = "a failed step is a failed test")]

use std::alloc::System;
use std::time::{Duration, Instant};

use cap::Cap;
use iwarp_tests::memory;
use iwarp_verbs::cm::{self, ConnParam, Connection, ListenConfig, Listener};
use iwarp_verbs::{
    Access, CompletionQueue, Device, DeviceConfig, MemoryRegion, ProtectionDomain, QpConfig,
    QueuePair, RecvRequest, SendRequest,
};

#[global_allocator]
static ALLOCATOR: Cap<System> = Cap::new(System, usize::MAX);

/// Connections that are counted. Tables that double as they grow are as full, or empty, as they are with
/// ten thousand.
const CONNECTIONS: usize = 240;

/// Of which so many at a time exchange messages.
const GROUP: usize = 30;

/// Before them, so that what a device needs once is there.
const WARM_UP: usize = 16;

/// Octets of one end, freshly connected and after a message each way.
const FRESH: usize = 2304;
const USED: usize = 2560;

const HANG: Duration = Duration::from_mins(1);

struct End {
    device: Device,
    pd: ProtectionDomain,
    cq: CompletionQueue,
    region: MemoryRegion,
}

impl End {
    fn new() -> Self {
        let device = Device::open(DeviceConfig::default()).unwrap();
        let pd = device.alloc_pd();
        let cq = device.create_cq(4096).unwrap();
        let region = pd.alloc(64, Access::LOCAL_WRITE).unwrap();
        Self { device, pd, cq, region }
    }

    /// A queue pair with one receive posted.
    fn qp(&self) -> QueuePair {
        let config = QpConfig::new(&self.cq).max_send_wr(16).max_recv_wr(16);
        let qp = self.pd.create_qp(&config).unwrap();
        self.post_recv(&qp);
        qp
    }

    fn post_recv(&self, qp: &QueuePair) {
        qp.post_recv(RecvRequest::new(0, self.region.as_slice_all())).unwrap();
    }
}

fn connect(ends: &[End; 2], listener: &Listener) -> [Connection; 2] {
    let [client, server] = ends;
    let connecting =
        cm::connect(listener.local_addr(), &client.qp(), ConnParam::default()).unwrap();
    let request = listener.accept(HANG).unwrap();
    let accepting = request.accept(&server.qp(), ConnParam::default()).unwrap();
    [connecting.wait(HANG).unwrap(), accepting.wait(HANG).unwrap()]
}

/// Octets in use once nothing is going on in the background any more.
fn settled() -> usize {
    memory::settled(|| ALLOCATOR.allocated())
}

#[test]
fn an_idle_connection_takes_little_memory() {
    let ends = [End::new(), End::new()];
    let listener = Listener::bind(&ends[1].device, "127.0.0.1:0", ListenConfig::default()).unwrap();
    let mut connections = Vec::with_capacity(WARM_UP + CONNECTIONS);
    connections.extend((0..WARM_UP).map(|_| connect(&ends, &listener)));
    exchange(&ends, &connections);
    let before = settled();
    connections.extend((0..CONNECTIONS).map(|_| connect(&ends, &listener)));
    let fresh = (settled() - before) / CONNECTIONS / 2;
    // The library's threads may come to work only now, and then make their own buffers, once. They do not
    // with every group.
    let groups = connections[WARM_UP..].chunks(GROUP).map(|group| {
        let before = settled();
        exchange(&ends, group);
        settled().saturating_sub(before) / group.len() / 2
    });
    let used = fresh + groups.min().unwrap();
    println!("one end of an idle connection: {fresh} octets, {used} after a message each way");
    assert!(fresh <= FRESH, "{fresh} octets, at most {FRESH} expected");
    assert!(used <= USED, "{used} octets after use, at most {USED} expected");
}

/// One message each way on each connection, and the receives posted anew.
fn exchange(ends: &[End; 2], connections: &[[Connection; 2]]) {
    let start = Instant::now();
    for pair in connections {
        for (end, connection) in ends.iter().zip(pair) {
            let request = SendRequest::send(0, end.region.as_slice_all());
            connection.qp().post_send(request).unwrap();
        }
        for (end, connection) in ends.iter().zip(pair) {
            // The Send of this end and the receive of this end.
            for _ in 0..2 {
                while end.cq.poll_one().map(|wc| assert!(wc.is_success(), "{wc:?}")).is_none() {
                    assert!(start.elapsed() < HANG, "a completion is missing");
                    std::thread::yield_now();
                }
            }
            end.post_recv(connection.qp());
        }
    }
}
