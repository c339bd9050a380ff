//! Where FPDUs stand in TCP segments, as a wire would carry them: between two hosts with an MTU of 1500 and segmentation
//! offload switched off, seen by a packet socket.
#![allow(
    missing_docs,
    clippy::unwrap_used,
    clippy::cast_possible_truncation,
    reason = "test code; a panic is a failed test"
)]

use std::{
    collections::BTreeMap,
    io::Read,
    net::Ipv4Addr,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::Duration,
};

use iwarp_tests::{
    child::{Child, GUARD, own_binary, role, tell},
    link::{ADDRESS_B, Link, switch_offload_off},
    live::next,
    netns::{Host, Hosts},
    skip,
};
use iwarp_verbs::{
    Access, Device, DeviceConfig, FpduLimit, QpConfig, RemoteMemory, SendRequest,
    cm::{self, ConnParam, ListenConfig, Listener},
};
use rand::{RngExt, SeedableRng};
use socket2::{Domain, Protocol, Socket, Type};

const NAME: &str = "fpdus_start_at_segments_and_trailers_stay_whole";
const PORT: u16 = 7174;
const SHARED: usize = 1 << 20;

/// MPA-042, MPA-072, design §11: FPDUs start at segments, and no pad and CRC come in two pieces, which Linux siw takes for
/// damage.
#[test]
fn fpdus_start_at_segments_and_trailers_stay_whole() {
    match role().as_deref() {
        Some("listens") => return listen(),
        Some(limit) => return connect(limit),
        None => {}
    }
    for limit in ["emss", "16384", "65536"] {
        let hosts = match Hosts::make() {
            Ok(hosts) => hosts,
            Err(reason) => skip!(reason),
        };
        let _link = Link::good(&hosts, 1500);
        if let Err(reason) = switch_offload_off(&hosts) {
            skip!(reason);
        }
        let start = |host, role| {
            let mut command = hosts.command(host, own_binary());
            Child::start(Child::again_command(&mut command, NAME, role))
        };
        // A capture that lost packets early says too little: once more.
        let mut attempts = 0;
        let (fpdus, at_segments, split, told) = loop {
            let mut b = start(Host::B, "listens");
            assert_eq!(b.hear(), "listening");
            let mut a = start(Host::A, limit);
            let told = a.hear();
            let ended = a.wait();
            assert!(ended.status.success(), "limit {limit}: {}", ended.stderr);
            eprintln!("limit {limit}: {told}");
            let counts: Vec<u32> = told.split(' ').filter_map(|word| word.parse().ok()).collect();
            let [fpdus, at_segments, split] = counts[..] else { panic!("{told}") };
            if fpdus > 300 {
                break (fpdus, at_segments, split, told);
            }
            attempts += 1;
            assert!(attempts < 5, "limit {limit}: {told}");
        };
        // A full socket buffer may cut a record anywhere, in a trailer too; what follows is off until the record ends, and
        // then a segment may end in a trailer as anywhere else. On a machine with nothing else to do one FPDU in a hundred
        // is off, and nearly never is a trailer split.
        assert!(at_segments * 100 >= fpdus * 75, "limit {limit}: {told}");
        assert!(split * 100 <= fpdus, "limit {limit}: {told}");
    }
}

fn listen() {
    let device = Device::open(DeviceConfig::default()).unwrap();
    let pd = device.alloc_pd();
    let cq = device.create_cq(16).unwrap();
    let shared = pd.alloc(SHARED, Access::LOCAL_WRITE | Access::REMOTE_WRITE).unwrap();
    let qp = pd.create_qp(&QpConfig::new(&cq)).unwrap();
    let listener = Listener::bind(&device, (ADDRESS_B, PORT), ListenConfig::default()).unwrap();
    tell("listening");
    let key = ConnParam::default().private_data(shared.remote().to_bytes());
    let connection = listener.accept(GUARD).unwrap().accept(&qp, key).unwrap().wait(GUARD).unwrap();
    connection.wait_closed(GUARD).unwrap();
}

/// Writes of random sizes, each waited for, so that each is a record of its own.
fn connect(limit: &str) {
    let limit = limit.parse().map_or(FpduLimit::Emss, FpduLimit::Octets);
    let capture = Capture::start();
    let device = Device::open(DeviceConfig::default()).unwrap();
    let pd = device.alloc_pd();
    let cq = device.create_cq(64).unwrap();
    let source = pd.alloc(SHARED, Access::empty()).unwrap();
    let qp = pd.create_qp(&QpConfig::new(&cq)).unwrap();
    let param = ConnParam::default().fpdu_limit(limit);
    let connection = cm::connect((ADDRESS_B, PORT), &qp, param).unwrap().wait(GUARD).unwrap();
    let key = RemoteMemory::from_bytes(connection.private_data().try_into().unwrap());
    let mut random = rand_chacha::ChaCha8Rng::seed_from_u64(11);
    for id in 0..300 {
        let octets = random.random_range(1..60_000);
        let there = key.slice(..octets as u64).unwrap();
        let write = SendRequest::write(id, source.slice(..octets).unwrap(), there);
        qp.post_send(write).unwrap();
        assert!(next(&cq).is_success());
    }
    connection.disconnect();
    connection.wait_closed(GUARD).unwrap();
    // What is on its way through the packet socket.
    thread::sleep(Duration::from_millis(200));
    let Placement { fpdus, at_segments, split } = capture.stop().placement();
    tell(format_args!("{fpdus} FPDUs, {at_segments} start at a segment, {split} trailers split"));
}

struct Placement {
    fpdus: u32,
    at_segments: u32,
    split: u32,
}

/// The segments that this host sends to the listener, taken from a packet socket.
struct Capture {
    stop: Arc<AtomicBool>,
    reader: thread::JoinHandle<Stream>,
}

#[derive(Default)]
struct Stream {
    first: Option<u32>,
    /// Octets by their place in the stream; as they were sent first.
    segments: BTreeMap<u32, Vec<u8>>,
}

impl Capture {
    fn start() -> Self {
        const ALL_PROTOCOLS: u16 = 0x0003;
        let protocol = Protocol::from(i32::from(ALL_PROTOCOLS.to_be()));
        let socket = Socket::new(Domain::PACKET, Type::RAW, Some(protocol)).unwrap();
        socket.set_recv_buffer_size(64 << 20).unwrap();
        socket.set_read_timeout(Some(Duration::from_millis(20))).unwrap();
        let stop = Arc::new(AtomicBool::new(false));
        let reader = thread::spawn({
            let stop = Arc::clone(&stop);
            move || {
                let mut stream = Stream::default();
                let mut packet = vec![0; 70_000];
                while !stop.load(Ordering::Relaxed) {
                    if let Ok(length) = (&socket).read(&mut packet) {
                        stream.take(&packet[..length]);
                    }
                }
                stream
            }
        });
        Self { stop, reader }
    }

    fn stop(self) -> Stream {
        self.stop.store(true, Ordering::Relaxed);
        self.reader.join().unwrap()
    }
}

impl Stream {
    /// Ethernet, IPv4, TCP; everything else is not ours.
    fn take(&mut self, packet: &[u8]) -> Option<()> {
        let ip = packet.get(14..)?;
        if packet[12..14] != [0x08, 0x00] || *ip.get(9)? != 6 {
            return None;
        }
        let to = Ipv4Addr::from(<[u8; 4]>::try_from(ip.get(16..20)?).ok()?);
        let total = usize::from(u16::from_be_bytes([ip[2], ip[3]]));
        let tcp = ip.get(usize::from(ip[0] & 15) * 4..total)?;
        if to.to_string() != ADDRESS_B || tcp.get(2..4)? != PORT.to_be_bytes() {
            return None;
        }
        let sequence = u32::from_be_bytes(tcp.get(4..8)?.try_into().ok()?);
        if *tcp.get(13)? & 0x02 != 0 {
            self.first = Some(sequence.wrapping_add(1));
        }
        let payload = tcp.get(usize::from(tcp[12] >> 4) * 4..)?;
        if !payload.is_empty() {
            let at = sequence.wrapping_sub(self.first?);
            self.segments.entry(at).or_insert_with(|| payload.to_vec());
        }
        Some(())
    }

    fn placement(&self) -> Placement {
        let mut octets = Vec::new();
        for (at, segment) in &self.segments {
            // A busy machine may lose packets on their way to the capture: what is before the gap counts.
            let Some(known) = octets.len().checked_sub(*at as usize) else { break };
            octets.extend(segment.iter().skip(known));
        }
        // The Request comes first.
        let private_data = usize::from(u16::from_be_bytes([octets[18], octets[19]]));
        let mut at = 20 + private_data;
        let mut placement = Placement { fpdus: 0, at_segments: 0, split: 0 };
        while at + 2 <= octets.len() {
            let ulpdu = usize::from(u16::from_be_bytes([octets[at], octets[at + 1]]));
            let end = at + (2 + ulpdu).next_multiple_of(4) + 4;
            if end > octets.len() {
                break;
            }
            placement.fpdus += 1;
            placement.at_segments += u32::from(self.segments.contains_key(&(at as u32)));
            let trailer = at + 2 + ulpdu;
            let cut = self.segments.range(trailer as u32 + 1..end as u32).next().is_some();
            placement.split += u32::from(cut);
            at = end;
        }
        placement
    }
}
