//! Where FPDUs stand in TCP segments, as a wire would carry them: between two hosts with an MTU of 1500 and segmentation
//! offload switched off, seen by a packet socket.
#![allow(
    missing_docs,
    clippy::unwrap_used,
    clippy::cast_possible_truncation,
    reason = "test code; a panic is a failed test"
)]

use std::{
    collections::{BTreeMap, BTreeSet, btree_map::Entry},
    io::Read,
    net::Ipv4Addr,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU32, Ordering},
    },
    thread,
    time::Duration,
};

use iwarp_mpa::SizePlan;
use iwarp_tests::{
    child::{Child, GUARD, own_binary, role, tell},
    link::{ADDRESS_B, Link, switch_offload_off},
    live::next,
    netns::{Host, Hosts},
    skip,
};
use iwarp_verbs::{
    Access, CompletionQueue, Device, DeviceConfig, FpduLimit, QpConfig, QueuePair, RemoteMemory,
    SendRequest,
    cm::{self, ConnParam, ListenConfig, Listener},
};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use socket2::{Domain, Protocol, Socket, Type};

const NAME: &str = "fpdus_start_at_segments_and_trailers_stay_whole";
const PORT: u16 = 7174;
const SHARED: usize = 1 << 20;
const DEPTH: usize = 8;

/// Octets between two pauses for the capture, whose buffer is small on most machines.
const ROUND: usize = 2 << 20;
const ROUNDS: usize = 4;

/// What host A sends to host B.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Traffic {
    /// Writes of 1 MiB.
    Bulk,
    /// Writes of random sizes, so that most FPDUs are not full and many have a pad.
    Mixed,
    /// Answers to Reads of random sizes.
    Responses,
}

/// How large the buffer is that B's TCP receives into, and with that its window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Windows {
    /// As the system makes them: they end now and then.
    Usual,
    /// Less than the sender has to send, nearly always.
    Small,
}

/// MPA-042, MPA-072, design §11: FPDUs start at segments, and no pad and CRC come in two pieces, which Linux siw takes for
/// damage.
#[test]
fn fpdus_start_at_segments_and_trailers_stay_whole() {
    if let Some(role) = role() {
        let words: Vec<&str> = role.split(' ').collect();
        let traffic = match words[1] {
            "Bulk" => Traffic::Bulk,
            "Mixed" => Traffic::Mixed,
            _ => Traffic::Responses,
        };
        return if words[0] == "listens" { listen(traffic) } else { connect(words[0], traffic) };
    }
    for windows in [Windows::Small, Windows::Usual] {
        let hosts = match Hosts::make() {
            Ok(hosts) => hosts,
            Err(reason) => skip!(reason),
        };
        let _link = Link::good(&hosts, 1500);
        if let Err(reason) = switch_offload_off(&hosts) {
            skip!(reason);
        }
        if windows == Windows::Small {
            let set = hosts
                .command(Host::B, "sysctl")
                .args(["-q", "-w", "net.ipv4.tcp_rmem=4096 65536 131072"])
                .status();
            if !set.is_ok_and(|status| status.success()) {
                eprintln!("not run: windows cannot be made small on this machine");
                continue;
            }
        }
        for limit in ["emss", "16384", "65536"] {
            for traffic in [Traffic::Bulk, Traffic::Mixed, Traffic::Responses] {
                // A capture that lost packets early says too little: once more.
                let mut attempts = 0;
                while !is_aligned(&hosts, limit, traffic, windows) {
                    attempts += 1;
                    assert!(
                        attempts < 8,
                        "the capture loses packets, or records are short: limit {limit}, {traffic:?}"
                    );
                }
            }
        }
    }
}

/// Runs one kind of traffic and looks where FPDUs lie. `false`: too few were seen.
fn is_aligned(hosts: &Hosts, limit: &str, traffic: Traffic, windows: Windows) -> bool {
    let start = |host, role: String| {
        let mut command = hosts.command(host, own_binary());
        Child::start(Child::again_command(&mut command, NAME, &role))
    };
    let mut b = start(Host::B, format!("listens {traffic:?}"));
    assert_eq!(b.hear(), "listening");
    let mut a = start(Host::A, format!("{limit} {traffic:?}"));
    let told = a.hear();
    let ended = a.wait();
    let what = format!("limit {limit}, {traffic:?}, {windows:?} windows: {told}");
    assert!(ended.status.success(), "{what}: {}", ended.stderr);
    eprintln!("{what}");
    let counts: Vec<u32> = told.split(' ').filter_map(|word| word.parse().ok()).collect();
    let [fpdus, full, at_segments, split, _, pushed] = counts[..] else { panic!("{told}") };
    if fpdus < 100 || full < 20 {
        return false;
    }
    assert!(at_segments * 100 >= full * 99, "{what}");
    if windows == Windows::Small && split > 0 {
        // A reader that the scheduler keeps away for longer than a retransmission time-out has TCP probe its window
        // with a part of a segment: seldom, and not each time.
        return false;
    }
    assert_eq!(split, 0, "{what}");
    // Not at the price of a record for each FPDU. A window that is small since the machine is busy may take one.
    !(windows == Windows::Usual
        && traffic == Traffic::Bulk
        && limit == "emss"
        && pushed * 4 >= fpdus)
}

fn listen(traffic: Traffic) {
    let device = Device::open(DeviceConfig::default()).unwrap();
    let pd = device.alloc_pd();
    let cq = device.create_cq(64).unwrap();
    let shared = pd.alloc(SHARED, Access::LOCAL_WRITE | Access::REMOTE_WRITE).unwrap();
    let qp = pd.create_qp(&QpConfig::new(&cq)).unwrap();
    let listener = Listener::bind(&device, (ADDRESS_B, PORT), ListenConfig::default()).unwrap();
    tell("listening");
    let request = listener.accept(GUARD).unwrap();
    let there = RemoteMemory::from_bytes(request.private_data().try_into().unwrap());
    let key = ConnParam::default().private_data(shared.remote().to_bytes());
    let connection = request.accept(&qp, key).unwrap().wait(GUARD).unwrap();
    if traffic == Traffic::Responses {
        let mut random = ChaCha8Rng::seed_from_u64(12);
        for _ in 0..ROUNDS {
            round(traffic, &mut random, &qp, &cq, |id, octets| {
                let sink = shared.slice(..octets).unwrap();
                SendRequest::read(id, sink, there.slice(..octets as u64).unwrap())
            });
            // The other end's capture gets its rest.
            thread::sleep(Duration::from_millis(50));
        }
        connection.disconnect();
    }
    connection.wait_closed(GUARD).unwrap();
}

fn connect(limit: &str, traffic: Traffic) {
    let limit = limit.parse().map_or(FpduLimit::Emss, FpduLimit::Octets);
    let capture = Capture::start();
    let device = Device::open(DeviceConfig::default()).unwrap();
    let pd = device.alloc_pd();
    let cq = device.create_cq(64).unwrap();
    let source = pd.alloc(SHARED, Access::REMOTE_READ).unwrap();
    let qp = pd.create_qp(&QpConfig::new(&cq)).unwrap();
    let key = source.remote().to_bytes();
    let param = ConnParam::default().fpdu_limit(limit).private_data(key);
    let connection = cm::connect((ADDRESS_B, PORT), &qp, param).unwrap().wait(GUARD).unwrap();
    let there = RemoteMemory::from_bytes(connection.private_data().try_into().unwrap());
    if traffic != Traffic::Responses {
        let mut random = ChaCha8Rng::seed_from_u64(11);
        for _ in 0..ROUNDS {
            round(traffic, &mut random, &qp, &cq, |id, octets| {
                let there = there.slice(..octets as u64).unwrap();
                SendRequest::write(id, source.slice(..octets).unwrap(), there)
            });
            capture.catch_up();
        }
        connection.disconnect();
    }
    connection.wait_closed(GUARD).unwrap();
    capture.catch_up();
    let placement = capture.stop().placement(limit);
    let Placement { fpdus, full, at_segments, split, short, pushed } = placement;
    tell(format_args!(
        "{fpdus} FPDUs, {full} are full-size, of which {at_segments} start at a segment; {split} trailers split; \
         {short} short segments within FPDUs, {pushed} with PSH"
    ));
}

/// Posts some requests of one kind, several at a time, and waits for all of them.
fn round(
    traffic: Traffic,
    random: &mut ChaCha8Rng,
    qp: &QueuePair,
    cq: &CompletionQueue,
    request: impl Fn(u64, usize) -> SendRequest,
) {
    let (mut moved, mut posted, mut done) = (0, 0, 0);
    while moved < ROUND || done < posted {
        if moved < ROUND && posted - done < DEPTH {
            let octets = match traffic {
                Traffic::Bulk => SHARED,
                Traffic::Mixed | Traffic::Responses => match random.random_range(0..4) {
                    0 => random.random_range(1..3_000),
                    1 => random.random_range(1..200_000),
                    _ => random.random_range(1..60_000),
                },
            };
            qp.post_send(request(posted as u64, octets)).unwrap();
            moved += octets;
            posted += 1;
        } else {
            assert!(next(cq).is_success());
            done += 1;
        }
    }
}

#[derive(Clone, Copy, Debug, Default)]
struct Placement {
    fpdus: u32,
    /// Those of the greatest length.
    full: u32,
    /// Full-size ones at the start of a segment.
    at_segments: u32,
    split: u32,
    /// Segments that are not full, and end within an FPDU: the peer's window ended there.
    short: u32,
    /// Records, about.
    pushed: u32,
}

/// The segments that this host sends to the listener, taken from a packet socket.
struct Capture {
    stop: Arc<AtomicBool>,
    /// Times that the reader found nothing for a while.
    idle: Arc<AtomicU32>,
    reader: thread::JoinHandle<Stream>,
}

#[derive(Default)]
struct Stream {
    first: Option<u32>,
    /// Octets by their place in the stream; as they were sent first.
    segments: BTreeMap<u32, Vec<u8>>,
    /// Places of segments with PSH: mostly the last ones of records.
    pushed: BTreeSet<u32>,
}

impl Capture {
    fn start() -> Self {
        const ALL_PROTOCOLS: u16 = 0x0003;
        let protocol = Protocol::from(i32::from(ALL_PROTOCOLS.to_be()));
        let socket = Socket::new(Domain::PACKET, Type::RAW, Some(protocol)).unwrap();
        socket.set_recv_buffer_size(64 << 20).unwrap();
        socket.set_read_timeout(Some(Duration::from_millis(20))).unwrap();
        let stop = Arc::new(AtomicBool::new(false));
        let idle = Arc::new(AtomicU32::new(0));
        let reader = thread::spawn({
            let stop = Arc::clone(&stop);
            let idle = Arc::clone(&idle);
            move || {
                let mut stream = Stream::default();
                let mut packet = vec![0; 70_000];
                while !stop.load(Ordering::Relaxed) {
                    if let Ok(length) = (&socket).read(&mut packet) {
                        stream.take(&packet[..length]);
                    } else {
                        idle.fetch_add(1, Ordering::Relaxed);
                    }
                }
                stream
            }
        });
        Self { stop, idle, reader }
    }

    /// Waits until all has come that is on its way through the packet socket.
    fn catch_up(&self) {
        let before = self.idle.load(Ordering::Relaxed);
        // The first may have begun before the last packet.
        while self.idle.load(Ordering::Relaxed).wrapping_sub(before) < 2 {
            thread::sleep(Duration::from_millis(1));
        }
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
            if let Entry::Vacant(place) = self.segments.entry(at) {
                place.insert(payload.to_vec());
                if *tcp.get(13)? & 0x08 != 0 {
                    self.pushed.insert(at);
                }
            }
        }
        Some(())
    }

    fn placement(&self, limit: FpduLimit) -> Placement {
        let mut octets = Vec::new();
        for (at, segment) in &self.segments {
            // A busy machine may lose packets on their way to the capture: what is before the gap counts.
            let Some(known) = octets.len().checked_sub(*at as usize) else { break };
            octets.extend(segment.iter().skip(known));
        }
        let emss = self.segments.values().map(Vec::len).max().unwrap_or_default();
        let full = SizePlan::new(emss as u32, limit, false).mulpdu;
        // The Request comes first.
        let private_data = usize::from(u16::from_be_bytes([octets[18], octets[19]]));
        let mut at = 20 + private_data;
        let pushed = self.pushed.range(..octets.len() as u32).count() as u32;
        let mut placement = Placement { pushed, ..Placement::default() };
        while at + 2 <= octets.len() {
            let ulpdu = usize::from(u16::from_be_bytes([octets[at], octets[at + 1]]));
            let end = at + (2 + ulpdu).next_multiple_of(4) + 4;
            if end > octets.len() {
                break;
            }
            placement.fpdus += 1;
            if ulpdu == full {
                placement.full += 1;
                placement.at_segments += u32::from(self.segments.contains_key(&(at as u32)));
            }
            let starts_within = |from| self.segments.range(from as u32 + 1..end as u32);
            placement.split += u32::from(starts_within(at + 2 + ulpdu).next().is_some());
            let begun_before = |start: u32| self.segments.range(..start).next_back();
            let ends_short = |start: u32| begun_before(start).is_some_and(|(_, s)| s.len() < emss);
            placement.short +=
                starts_within(at).filter(|(start, _)| ends_short(**start)).count() as u32;
            at = end;
        }
        placement
    }
}
