//! What a downstream project writes: a small key-value client and server, tested under many seeds with cuts, delays
//! and drops of a [`MemoryNetwork`]. `docs/testing-your-code.md` explains it.
#![allow(clippy::unwrap_used, reason = "a failed step is a failed test")]

use std::error::Error;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use iwarp_verbs::cm::{self, ConnParam, Connection, ListenConfig, Listener};
use iwarp_verbs::{
    Access, CompletionQueue, ConnectionReport, Cuts, Device, DeviceConfig, Direction, Faults, Loss,
    MemoryNetwork, MemoryRegion, QpConfig, QueuePair, RemoteMemory, SendRequest,
};

/// Nothing takes as long unless it hangs.
const GUARD: Duration = Duration::from_secs(30);

/// An address that exists in the network under test only.
const SERVER: &str = "192.0.2.1:7471";

const SLOT: usize = 64;
const SLOTS: usize = 8;

type Fallible<T> = Result<T, Box<dyn Error>>;

/// Offers a table, which clients read and write by themselves.
struct Server {
    table: MemoryRegion,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Server {
    fn start(network: &MemoryNetwork) -> Self {
        let device = Device::open(DeviceConfig::default().network(network)).unwrap();
        let pd = device.alloc_pd();
        let rights = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ;
        let table = pd.alloc(SLOT * SLOTS, rights).unwrap();
        let offer = table.remote().to_bytes();
        let listener = Listener::bind(&device, SERVER, ListenConfig::default()).unwrap();
        let stop = Arc::new(AtomicBool::new(false));
        let ends = Arc::clone(&stop);
        let thread = thread::spawn(move || {
            let cq = device.create_cq(16).unwrap();
            let mut clients = Vec::new();
            while !ends.load(Ordering::Relaxed) {
                let Ok(request) = listener.accept(Duration::from_millis(2)) else { continue };
                let qp = pd.create_qp(&QpConfig::new(&cq)).unwrap();
                // A client that has gone meanwhile is no matter of the server's.
                clients.extend(request.accept(&qp, ConnParam::default().private_data(offer)));
            }
        });
        Self { table, stop, thread: Some(thread) }
    }

    fn slot(&self, slot: usize) -> Vec<u8> {
        let mut value = vec![0; SLOT];
        self.table.read_at(slot * SLOT, &mut value).unwrap();
        value
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.take().into_iter().for_each(|thread| thread.join().unwrap());
    }
}

/// The code under test: a client that connects anew after a loss, and tries again what it was about to do.
struct Client {
    device: Device,
    cq: CompletionQueue,
    link: Option<Link>,
    losses: usize,
}

struct Link {
    qp: QueuePair,
    table: RemoteMemory,
    buffer: MemoryRegion,
    _connection: Connection,
}

impl Client {
    fn new(network: &MemoryNetwork) -> Self {
        let device = Device::open(DeviceConfig::default().network(network)).unwrap();
        let cq = device.create_cq(16).unwrap();
        Self { device, cq, link: None, losses: 0 }
    }

    fn connect(&self) -> Fallible<Link> {
        let pd = self.device.alloc_pd();
        let qp = pd.create_qp(&QpConfig::new(&self.cq))?;
        let connection = cm::connect(SERVER, &qp, ConnParam::default())?.wait(GUARD)?;
        let table = RemoteMemory::from_bytes(connection.private_data().try_into()?);
        let buffer = pd.alloc(SLOT, Access::LOCAL_WRITE)?;
        Ok(Link { qp, table, buffer, _connection: connection })
    }

    fn link(&mut self) -> Fallible<&Link> {
        if self.link.is_none() {
            self.link = Some(self.connect()?);
        }
        self.link.as_ref().ok_or_else(|| "not connected".into())
    }

    fn put(&mut self, slot: usize, value: &[u8]) {
        self.until_done(|client| {
            let link = client.link()?;
            link.buffer.write_at(0, value)?;
            let at = link.table.slice((slot * SLOT) as u64..((slot + 1) * SLOT) as u64)?;
            let local = link.buffer.as_slice_all();
            // A Write is complete when it was sent; the Read behind it proves that it has arrived.
            let (write, proof) =
                (SendRequest::write(1, local, at).unsignaled(), SendRequest::read(2, (), at));
            link.qp.post_send_list([write, proof])?;
            client.complete(2)
        });
    }

    fn get(&mut self, slot: usize) -> Vec<u8> {
        self.until_done(|client| {
            let link = client.link()?;
            let at = link.table.slice((slot * SLOT) as u64..((slot + 1) * SLOT) as u64)?;
            link.qp.post_send(SendRequest::read(3, link.buffer.as_slice_all(), at))?;
            client.complete(3)?;
            let mut value = vec![0; SLOT];
            client.link()?.buffer.read_at(0, &mut value)?;
            Ok(value)
        })
    }

    fn complete(&self, id: u64) -> Fallible<()> {
        let completion = self.cq.wait(GUARD)?.ok_or("nothing completes")?.ok()?;
        assert_eq!(completion.wr_id, id, "each request completes once, and in its order");
        Ok(())
    }

    fn until_done<T>(&mut self, mut attempt: impl FnMut(&mut Self) -> Fallible<T>) -> T {
        loop {
            match attempt(self) {
                Ok(done) => return done,
                Err(_) => self.lose(),
            }
        }
    }

    /// Gives the connection up. What was posted is flushed, and not mistaken for something newer.
    fn lose(&mut self) {
        self.losses += 1;
        assert!(self.losses < 100, "no connection lasts");
        if let Some(link) = self.link.take() {
            link.qp.destroy().unwrap();
        }
        while self.cq.poll_one().is_some() {}
    }
}

/// Says how to run the same again, if the test fails.
struct Seed(MemoryNetwork);

impl Drop for Seed {
    fn drop(&mut self) {
        if thread::panicking() {
            eprintln!("seed {}", self.0.seed());
            for connection in self.0.connections() {
                eprintln!("{connection}");
            }
        }
    }
}

fn faults(seed: u64) -> Faults {
    let cut = Faults::none()
        .cut_reads(Cuts::of(1..=200).waits(0..=2))
        .cut_writes(Cuts::of(1..=300).waits(0..=1));
    cut.drop_within(3000, if seed.is_multiple_of(2) { Loss::Reset } else { Loss::Close })
}

/// Runs the client against a model, and gives what became of the connections.
fn run(seed: u64, faults: Faults) -> Vec<ConnectionReport> {
    let network = MemoryNetwork::new(seed);
    network.set_faults_of_next(3, faults);
    let seed = Seed(network.clone());
    let server = Server::start(&network);
    let mut client = Client::new(&network);
    let mut model = vec![vec![0; SLOT]; SLOTS];
    for step in 0..24_usize {
        let slot = (step * 5 + 3) % SLOTS;
        if step % 3 == 2 {
            assert_eq!(client.get(slot), model[slot], "step {step}");
        } else {
            let value = vec![u8::try_from(step).unwrap() + 1; SLOT];
            client.put(slot, &value);
            model[slot] = value;
        }
    }
    for (slot, value) in model.iter().enumerate() {
        assert_eq!(server.slot(slot), *value);
    }
    seed.0.connections()
}

#[test]
fn a_client_survives_whatever_happens_to_its_connections() {
    let mut drops = [0; 2];
    for seed in 0..200 {
        for connection in run(seed, faults(seed)) {
            if let Some((direction, ..)) = connection.dropped {
                drops[usize::from(direction == Direction::ToInitiator)] += 1;
            }
        }
    }
    assert!(drops.iter().all(|&drops| drops > 50), "{drops:?}: hardly tested");
}

#[test]
fn the_same_seed_drops_at_the_same_octet() {
    for seed in 0..10 {
        let [one, other] = [(); 2].map(|()| run(seed, faults(seed)));
        let dropped = |connections: &[ConnectionReport]| connections[0].dropped;
        assert_eq!(dropped(&one), dropped(&other));
        let Some((direction, octet, _)) = dropped(&one) else { continue };
        for connections in [&one, &other] {
            let sent = connections[0].sent[usize::from(direction == Direction::ToInitiator)];
            assert_eq!(sent, octet, "no octet more");
        }
    }
}

/// Each octet of a whole conversation, in both directions, is where the connection is dropped once.
#[test]
fn a_drop_at_any_octet_is_survived() {
    let [whole] = run(0, Faults::none()).try_into().unwrap();
    assert_eq!(whole.sent, whole.received);
    for (direction, total) in Direction::BOTH.into_iter().zip(whole.sent) {
        // The start-up and the first messages octet by octet, the rest in steps.
        let early = 0..total.min(200);
        for octet in early.chain((200..total).step_by(37)) {
            let network = MemoryNetwork::new(0);
            network.set_faults_of_next(1, Faults::none().drop_at(direction, octet, Loss::Reset));
            let _seed = Seed(network.clone());
            let server = Server::start(&network);
            let mut client = Client::new(&network);
            for slot in 0..SLOTS {
                client.put(slot, &[7; SLOT]);
            }
            assert!(client.losses <= 1);
            assert!((0..SLOTS).all(|slot| server.slot(slot) == [7; SLOT]));
        }
    }
}
