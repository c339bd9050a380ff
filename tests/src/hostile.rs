//! Many hostile peers against one device: what the tests named `hostile_*` share.
//!
//! A [`Site`] is the device under attack, with a [`Neighbour`]: a connection of the same device that has nothing to
//! do with the attackers, moves data all the time, and looks at every octet. Memory is what the allocator of the test
//! program counts. Both ends of everything are in this process; the attackers are sockets and nothing else, so what is
//! counted is the library's, but for the few octets that a [`Peer`] keeps.
//!
//! Nothing here judges how long something takes. What must happen is waited for, with a limit that only a hang reaches.

use std::{
    fs, io,
    net::{SocketAddr, TcpStream},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use iwarp_mpa::StartupFrame;
use iwarp_verbs::{
    Access, CompletionQueue, Device, DeviceConfig, MemoryRegion, QpConfig, QueuePair, SendRequest,
    cm::{self, ConnParam},
};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use socket2::{Domain, Protocol, Socket, Type};

use crate::{
    child::GUARD,
    live::{self, End, Live, RECEIVE, Role, Served},
    memory::settled,
    peer::Peer,
};

/// The most octets that one end of a connection takes which holds nothing of its peer: `tests/tests/idle_memory.rs`
/// shows that it takes no more.
pub const IDLE: usize = 2560;

/// The most octets of user memory that a peer takes in the middle of its Request, or behind it while nobody takes it:
/// the task that reads, what came of the frame, and its place among the others.
pub const HALF_OPEN: usize = 2560;

/// For limits of time that are not to be reached: longer than any test.
pub const NEVER: Duration = GUARD.saturating_mul(60);

/// Room in all bounds of memory for what a process makes once, whatever its peers do: tables that have grown, buffers
/// of a thread that came to work only now.
pub const ONCE: usize = 1 << 20;

/// Whether each round of an attack by so many connections leaves as much behind as the one before: no octet for any of
/// them. Tables that grow by doubling may still do so for some rounds.
pub fn stays_level(after: &[usize], connections: usize) {
    /// Less than the parts of a connection. Entries of tables may be smaller; those have tests of their own
    /// (`deadlines_of_connections_that_are_over_are_thrown_out`).
    const NOTHING: usize = 64;
    println!("in use after each round: {after:?}");
    let [.., previous, last] = after else { panic!("{} rounds", after.len()) };
    let left = last.saturating_sub(*previous);
    assert!(left <= connections * NOTHING, "{left} octets are left behind");
}

/// Entries of the completion queue that the attacked queue pairs share. Memory is taken as they are used.
const ENTRIES: u32 = 1 << 20;

/// Counts and limits are the process's, so one test runs at a time.
pub fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// How many connections with both ends here the process may have, at most `wanted`. Its limit of descriptors is raised
/// as far as it may be.
///
/// # Panics
/// If that is so few that a test with them would show nothing.
#[must_use]
pub fn affordable(wanted: usize) -> usize {
    const FEW: usize = 64;
    /// For the test program, the neighbour and the harness.
    const OTHERS: usize = 200;
    /// What is asked for where there is no maximum: not every system takes "no limit" for an answer.
    const PLENTY: u64 = 8192;
    let limit = getrlimit(Resource::Nofile);
    if limit.current.is_some_and(|current| current < limit.maximum.unwrap_or(PLENTY)) {
        let current = limit.maximum.or(Some(PLENTY));
        let _ = setrlimit(Resource::Nofile, Rlimit { current, ..limit });
    }
    let limit = getrlimit(Resource::Nofile).current;
    let room = limit.map_or(usize::MAX, |limit| usize::try_from(limit).unwrap_or(usize::MAX));
    let affordable = room.saturating_sub(OTHERS) / 2;
    if affordable < wanted {
        println!("{affordable} connections instead of {wanted}: the process may have {room} files");
        assert!(affordable >= FEW, "too few: see `ulimit -n`");
    }
    affordable.min(wanted)
}

/// Descriptors that the process has; `None` where the system does not tell.
#[must_use]
pub fn descriptors() -> Option<usize> {
    // One of them is the one that reads the directory.
    Some(fs::read_dir("/proc/self/fd").ok()?.count() - 1)
}

/// Waits for what must come.
///
/// # Panics
/// If it has not after [`GUARD`].
pub fn wait_until(what: &str, mut there: impl FnMut() -> bool) {
    let start = Instant::now();
    while !there() {
        assert!(start.elapsed() < GUARD, "waited in vain: {what}");
        thread::sleep(Duration::from_millis(2));
    }
}

/// A TCP connection as it would come over Ethernet, and with a small window. Over the loopback interface the system
/// lets each connection hold megabytes, which is its own affair.
///
/// # Errors
/// What the system says.
pub fn dial_narrow(addr: SocketAddr) -> io::Result<TcpStream> {
    let socket = Socket::new(Domain::for_address(addr), Type::STREAM, Some(Protocol::TCP))?;
    socket.set_tcp_mss(1448)?;
    socket.set_recv_buffer_size(4096)?;
    socket.connect(&addr.into())?;
    Ok(socket.into())
}

/// The device under attack.
#[derive(Debug)]
pub struct Site {
    /// Its device, main protection domain and listener.
    pub live: Live,
    /// What must not be hurt.
    pub neighbour: Neighbour,
    cq: CompletionQueue,
    inbox: MemoryRegion,
    allocated: fn() -> usize,
}

impl Site {
    /// A device with this configuration and a neighbour at work. `allocated` tells what the process holds.
    ///
    /// # Panics
    /// If they cannot be made.
    #[must_use]
    pub fn new(config: DeviceConfig, allocated: fn() -> usize) -> Self {
        let live = Live::new(config);
        let cq = live.device.create_cq(ENTRIES).expect("a completion queue");
        let inbox = live.pd.alloc(256 * RECEIVE, Access::LOCAL_WRITE).expect("memory");
        let neighbour = Neighbour::new(&live, allocated);
        Self { live, neighbour, cq, inbox, allocated }
    }

    /// A queue pair with one receive posted. All of a site share their completion queue and the memory of receives.
    #[must_use]
    pub fn end(&self) -> End {
        let config = QpConfig::new(&self.cq).max_send_wr(16).max_recv_wr(16);
        let qp = self.live.pd.create_qp(&config).expect("a queue pair");
        let (send_cq, recv_cq) = (self.cq.clone(), self.cq.clone());
        let end = End { qp, send_cq, recv_cq, inbox: self.inbox.clone() };
        end.post_recv(0);
        end
    }

    /// A peer that has been accepted, by this Request.
    #[must_use]
    pub fn accept(&self, request: &StartupFrame) -> (Peer, Served) {
        self.live.establish_end(Role::Responder, request, ConnParam::default(), self.end())
    }

    /// As [`accept`](Self::accept), over a connection that is there, with what this side offers.
    ///
    /// # Panics
    /// If the connection is not set up.
    #[must_use]
    pub fn accept_over(
        &self,
        stream: TcpStream,
        request: &StartupFrame,
        param: ConnParam,
    ) -> (Peer, Served) {
        let end = self.end();
        let mut peer = Peer::new(stream);
        peer.send_startup(request);
        let waiting = self.live.listener.accept(GUARD).expect("the peer's request");
        let accepting = waiting.accept(&end.qp, param).expect("an acceptable request");
        let reply = peer.read_startup(iwarp_mpa::FrameKind::Reply);
        peer.begin(&reply, request);
        let connection = accepting.wait(GUARD).expect("a connection");
        (peer, Served { end, connection })
    }

    /// What the process holds while neighbour and library rest.
    #[must_use]
    pub fn memory(&self) -> usize {
        let _resting = self.neighbour.pause();
        settled(self.allocated)
    }

    /// What the connections hold of their peers' octets and for them, as the device counts it.
    #[must_use]
    pub fn held(&self) -> usize {
        usize::try_from(self.live.device.stats().memory_in_use).expect("octets")
    }

    /// Waits for the end of these connections, and destroys their queue pairs.
    ///
    /// # Panics
    /// If one does not end.
    pub fn dismiss(&self, all: impl IntoIterator<Item = Served>) {
        for served in all {
            served.closed();
            served.end.qp.destroy().expect("nothing uses it");
        }
        assert!(!self.cq.has_overrun());
        let mut completions = Vec::new();
        while self.cq.poll(&mut completions) > 0 {
            completions.clear();
        }
    }
}

/// A connection between the device under attack and another one, over which data goes all the time.
///
/// Each round is a Write, a Read of what was written, and a Send, more than one FPDU each way, all of it compared. The
/// program at the device under attack makes no call for the first two.
#[derive(Debug)]
pub struct Neighbour {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug, Default)]
struct Shared {
    /// Held during a round.
    round: Mutex<()>,
    rounds: AtomicU64,
    /// The most that the process held at the end of a round.
    peak: AtomicUsize,
    stop: AtomicBool,
}

impl Neighbour {
    fn new(live: &Live, allocated: fn() -> usize) -> Self {
        let mut ends = NeighbourEnds::connect(live);
        // What both threads need once is there then.
        ends.exchange(0);
        let shared = Arc::new(Shared::default());
        let thread = {
            let shared = Arc::clone(&shared);
            thread::spawn(move || {
                for round in 1.. {
                    {
                        let _turn = lock(&shared.round);
                        ends.exchange(round);
                    }
                    shared.rounds.store(round, Ordering::Release);
                    shared.peak.fetch_max(allocated(), Ordering::Relaxed);
                    if shared.stop.load(Ordering::Relaxed) {
                        return;
                    }
                    thread::sleep(Duration::from_millis(1));
                }
            })
        };
        let mut neighbour = Self { shared, thread: Some(thread) };
        neighbour.goes_on();
        neighbour
    }

    /// Looks on for some more rounds, whole ones, at what goes on.
    ///
    /// # Panics
    /// If they do not come, or brought wrong data.
    pub fn goes_on(&mut self) {
        let wanted = self.shared.rounds.load(Ordering::Acquire) + 3;
        let (shared, thread) = (&self.shared, &mut self.thread);
        wait_until("the neighbour's data", || {
            if thread.as_ref().is_none_or(JoinHandle::is_finished) {
                let ended = thread.take().map(JoinHandle::join);
                panic!("the neighbour was hurt: {ended:?}");
            }
            shared.rounds.load(Ordering::Acquire) >= wanted
        });
    }

    /// Nothing of it is under way until the guard is dropped.
    #[must_use]
    pub fn pause(&self) -> impl Drop {
        lock(&self.shared.round)
    }

    /// The most that the process was seen to hold since the last call. The neighbour looks between its rounds.
    #[must_use]
    pub fn take_peak(&self) -> usize {
        self.shared.peak.swap(0, Ordering::Relaxed)
    }
}

impl Drop for Neighbour {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Relaxed);
        let ended = self.thread.take().map(JoinHandle::join);
        // A test that fails already has said why.
        assert!(thread::panicking() || !matches!(ended, Some(Err(_))), "the neighbour was hurt");
    }
}

fn lock(mutex: &Mutex<()>) -> MutexGuard<'_, ()> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Octets of each Write and each Read: two FPDUs.
const DATA: usize = 20_000;

/// Both ends of the neighbour's connection.
struct NeighbourEnds {
    client: QueuePair,
    client_cq: CompletionQueue,
    source: MemoryRegion,
    sink: MemoryRegion,
    target: MemoryRegion,
    server: End,
    written: Vec<u8>,
    read: Vec<u8>,
    /// Held while the queue pairs are.
    _rest: (cm::Connection, cm::Connection),
}

impl NeighbourEnds {
    fn connect(live: &Live) -> Self {
        let device = Device::open(DeviceConfig::default()).expect("a device");
        let pd = device.alloc_pd();
        let client_cq = device.create_cq(64).expect("a completion queue");
        let client = pd.create_qp(&QpConfig::new(&client_cq)).expect("a queue pair");
        let server = live.end(1);
        let connecting =
            cm::connect(live.addr(), &client, ConnParam::default()).expect("a connect");
        let request = live.listener.accept(GUARD).expect("the neighbour's request");
        let accepting = request.accept(&server.qp, ConnParam::default()).expect("acceptable");
        let connected = connecting.wait(GUARD).expect("a connection");
        let accepted = accepting.wait(GUARD).expect("a connection");
        // The descriptors to wait with are taken by the first wait, and may be scarce later.
        for cq in [&client_cq, &server.recv_cq] {
            let nothing = cq.wait(Duration::from_millis(1)).expect("descriptors");
            assert!(nothing.is_none());
        }
        let open = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ;
        let memory = |access| pd.alloc(DATA, access).expect("memory");
        Self {
            client,
            client_cq,
            source: memory(Access::empty()),
            sink: memory(Access::LOCAL_WRITE),
            target: live.pd.alloc(DATA, open).expect("memory"),
            server,
            written: vec![0; DATA],
            read: vec![0; DATA],
            _rest: (connected, accepted),
        }
    }

    fn exchange(&mut self, round: u64) {
        let [seed, ..] = round.to_le_bytes();
        for (octet, value) in self.written.iter_mut().zip((0..=250_u8).cycle()) {
            *octet = value ^ seed;
        }
        self.source.write_at(0, &self.written).expect("inside");
        let remote = self.target.remote();
        let post = |request| self.client.post_send(request).expect("room in the queue");
        post(SendRequest::write(1, self.source.as_slice_all(), remote));
        post(SendRequest::read(2, self.sink.as_slice_all(), remote));
        post(SendRequest::send_inline(3, round.to_be_bytes()));
        for id in 1..=3 {
            let completion = live::next(&self.client_cq);
            assert!(completion.is_success() && completion.wr_id == id, "{completion:?}");
        }
        self.sink.read_at(0, &mut self.read).expect("inside");
        assert!(self.read == self.written, "round {round}: other data was read than was written");
        let completion = self.server.next_receive();
        assert_eq!(self.server.received(&completion), round.to_be_bytes());
        self.server.post_recv(0);
    }
}
