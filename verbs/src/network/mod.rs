//! A network in memory, for tests of programs.
//!
//! Connections are pairs of descriptors of this process; there is no TCP, and the host's network is not touched.
//! Everything above the socket is what it always is: threads, readiness, the MPA start-up, each octet of each FPDU.
//! What a network does to the octets, in what pieces they go and where they stop, is a function of its seed and of
//! their place in the stream.
//!
//! | file | holds |
//! |---|---|
//! | `mod.rs` | the network: names, listeners, connections |
//! | `faults.rs` | what may go wrong, as a program says it |
//! | `plan.rs` | where it does: drawn from the seed |
//! | `wire.rs` | a connection, its ends, and what is told of it |
//! | `socket.rs` | a socket from its opening to its end |

mod faults;
mod plan;
mod socket;
mod wire;

#[cfg(test)]
#[cfg(not(any(loom, miri)))]
mod tests;

use std::fmt;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::OwnedFd;
use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use rustix::io::Errno;

pub use self::faults::{Cuts, Direction, Faults, Loss};
pub(crate) use self::socket::MemorySocket;
use self::socket::Queue;
pub use self::wire::ConnectionReport;
use self::wire::{End, Wire};

/// The first port that is given away; those below are for whoever asks for them.
const FIRST_PORT: u16 = 49_152;

/// A network in memory, in place of TCP, for tests: [`DeviceConfig::network`](crate::DeviceConfig::network).
///
/// Devices that are given clones of one network can connect to each other, and to nobody else. All addresses are
/// those of the network: any may be listened on, and what listens at an unspecified one is reached at all of its
/// family. Names of hosts are looked up by the system as ever.
///
/// A seed and [`Faults`] make each connection a bad one, in the same way each time: octet 1234 is the last that
/// arrives, reads end at 17, 91 and 130. What remains to chance is what always does, which of two threads comes first
/// and how much is on its way in one direction when the other one is dropped. Print the seed when a test fails, and
/// [`connections`](Self::connections) with it.
///
/// ```
/// use std::time::Duration;
/// use iwarp_verbs::cm::{self, ConnParam, ListenConfig, Listener};
/// use iwarp_verbs::{Device, DeviceConfig, Direction, Faults, Loss, MemoryNetwork, QpConfig};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let faults = Faults::none().drop_at(Direction::ToInitiator, 10, Loss::Reset);
/// let network = MemoryNetwork::new(1).faults(faults);
/// let device = Device::open(DeviceConfig::default().network(&network))?;
/// let cq = device.create_cq(16)?;
/// let qp = device.alloc_pd().create_qp(&QpConfig::new(&cq))?;
///
/// // An address of the documentation, which nobody outside of the network has.
/// let listener = Listener::bind(&device, "192.0.2.1:7471", ListenConfig::default())?;
/// let connecting = cm::connect("192.0.2.1:7471", &qp, ConnParam::default())?;
/// listener.accept(Duration::from_secs(10))?.reject(b"busy")?;
///
/// // The reset comes in the middle of the Reply.
/// let error = connecting.wait(Duration::from_secs(10)).unwrap_err();
/// assert!(matches!(error, cm::ConnectError::Closed { .. }), "{error}");
/// println!("{}", network.connections()[0]);
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct MemoryNetwork(Arc<Inner>);

struct Inner {
    seed: u64,
    state: Mutex<State>,
}

struct State {
    faults: Faults,
    /// Connections that are still to have them.
    faulty: u64,
    segment: u32,
    names: Vec<Bound>,
    next_name: u64,
    next_port: u16,
    wires: Vec<Arc<Wire>>,
}

/// An address that a socket has.
#[derive(Debug)]
pub(crate) struct Name {
    addr: SocketAddr,
    id: u64,
}

struct Bound {
    id: u64,
    addr: SocketAddr,
    v6_only: bool,
    reuse: bool,
    queue: Option<Weak<Queue>>,
}

impl MemoryNetwork {
    /// A network without faults, until some are [set](Self::faults).
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self(Arc::new(Inner {
            seed,
            state: Mutex::new(State {
                faults: Faults::none(),
                faulty: 0,
                segment: 1460,
                names: Vec::new(),
                next_name: 0,
                next_port: FIRST_PORT,
                wires: Vec::new(),
            }),
        }))
    }

    /// The seed.
    #[must_use]
    pub fn seed(&self) -> u64 {
        self.0.seed
    }

    /// As [`set_faults`](Self::set_faults), to be used when it is made.
    #[must_use]
    pub fn faults(self, faults: Faults) -> Self {
        self.set_faults(faults);
        self
    }

    /// What goes wrong on connections that are made from here on. Those that are there keep theirs, so a test can
    /// connect anew without faults after a drop.
    pub fn set_faults(&self, faults: Faults) {
        self.set_faults_of_next(u64::MAX, faults);
    }

    /// What goes wrong on so many connections that are made from here on. Those that follow have no faults: a program
    /// that connects anew after each drop comes to its end.
    pub fn set_faults_of_next(&self, connections: u64, faults: Faults) {
        let mut state = self.0.state.lock();
        state.faults = faults;
        state.faulty = connections;
    }

    /// Octets in the largest segment, which the size of FPDUs follows. Default 1460, as on Ethernet.
    ///
    /// # Panics
    /// Below 536 and above 65,495: no TCP has such segments.
    #[must_use]
    pub fn segment(self, octets: u32) -> Self {
        assert!((536..=65_495).contains(&octets), "segments of {octets} octets: no TCP has them");
        self.0.state.lock().segment = octets;
        self
    }

    /// What has become of each connection so far, in the order in which they were made.
    #[must_use]
    pub fn connections(&self) -> Vec<ConnectionReport> {
        let wires = self.0.state.lock().wires.clone();
        wires.iter().map(|wire| wire.report()).collect()
    }

    fn segment_size(&self) -> u32 {
        self.0.state.lock().segment
    }

    fn reserve(&self, mut addr: SocketAddr, v6_only: bool, reuse: bool) -> io::Result<Name> {
        let mut state = self.0.state.lock();
        if addr.port() == 0 {
            addr.set_port(state.free_port()?);
        }
        let taken = state.names.iter().any(|name| {
            name.overlaps(&addr, v6_only) && !(reuse && name.reuse && name.is_silent())
        });
        if taken {
            return Err(Errno::ADDRINUSE.into());
        }
        let id = state.next_name;
        state.next_name += 1;
        state.names.push(Bound { id, addr, v6_only, reuse, queue: None });
        Ok(Name { addr, id })
    }

    fn release(&self, name: &Name) {
        self.0.state.lock().names.retain(|bound| bound.id != name.id);
    }

    fn listen(&self, name: &Name, queue: &Arc<Queue>) -> io::Result<()> {
        let mut state = self.0.state.lock();
        let own = state.names.iter().position(|bound| bound.id == name.id).ok_or(Errno::INVAL)?;
        let (addr, v6_only) = (state.names[own].addr, state.names[own].v6_only);
        if state.names.iter().any(|name| name.overlaps(&addr, v6_only) && !name.is_silent()) {
            return Err(Errno::ADDRINUSE.into());
        }
        state.names[own].queue = Some(Arc::downgrade(queue));
        Ok(())
    }

    /// The end of the connecting side. `far` is taken if there is a connection.
    fn connect(&self, from: &Name, to: SocketAddr, far: &mut Option<OwnedFd>) -> io::Result<End> {
        let to = local_of(&to);
        let mut state = self.0.state.lock();
        // The most exact name wins, as with TCP.
        let found = state
            .names
            .iter()
            .filter_map(|name| Some((name.exactness(&to)?, name.queue.as_ref()?.upgrade()?, name)))
            .max_by_key(|(exactness, ..)| *exactness);
        let Some((_, queue, listener)) = found else { return Err(Errno::CONNREFUSED.into()) };
        if !queue.has_room() {
            return Err(Errno::AGAIN.into());
        }
        let as_seen_there = if listener.addr.is_ipv6() { mapped } else { std::convert::identity };
        let number = state.wires.len() as u64;
        let mut from = from.addr;
        if from.ip().is_unspecified() {
            from.set_ip(to.ip());
        }
        let names = [from, to];
        let none = Faults::none();
        let faults = if state.faulty > 0 { &state.faults } else { &none };
        let wire = Arc::new(Wire::new(self.0.seed, number, faults, names));
        let (here, there) = End::pair(&wire, names, [as_seen_there(to), as_seen_there(from)]);
        let far = far.take().ok_or(Errno::ISCONN)?;
        state.wires.push(wire);
        state.faulty = state.faulty.saturating_sub(1);
        queue.push(far, there);
        Ok(here)
    }
}

impl State {
    fn free_port(&mut self) -> io::Result<u16> {
        for _ in FIRST_PORT..=u16::MAX {
            let port = self.next_port;
            self.next_port = port.checked_add(1).unwrap_or(FIRST_PORT);
            if self.names.iter().all(|name| name.addr.port() != port) {
                return Ok(port);
            }
        }
        Err(Errno::ADDRNOTAVAIL.into())
    }
}

impl Bound {
    fn is_silent(&self) -> bool {
        self.queue.is_none()
    }

    /// Whether both addresses would take a connection to one and the same.
    fn overlaps(&self, addr: &SocketAddr, v6_only: bool) -> bool {
        let covers = |wide: &SocketAddr, v6_only: bool, other: &SocketAddr| {
            wide.ip() == other.ip()
                || wide.ip().is_unspecified()
                    && (wide.is_ipv6() == other.is_ipv6() || wide.is_ipv6() && !v6_only)
        };
        self.addr.port() == addr.port()
            && (covers(&self.addr, self.v6_only, addr) || covers(addr, v6_only, &self.addr))
    }

    /// How well it fits a connection to `to`; `None`: not at all.
    fn exactness(&self, to: &SocketAddr) -> Option<u8> {
        if self.addr.port() != to.port() {
            return None;
        }
        if self.addr.ip() == to.ip() {
            return Some(2);
        }
        if !self.addr.ip().is_unspecified() {
            return None;
        }
        match (self.addr.is_ipv6(), to.is_ipv6()) {
            (true, false) if self.v6_only => None,
            (true, false) => Some(0),
            (false, true) => None,
            _ => Some(1),
        }
    }
}

/// Where a connection to this address goes: one to no address in particular stays in the host.
fn local_of(addr: &SocketAddr) -> SocketAddr {
    match addr.ip() {
        IpAddr::V4(Ipv4Addr::UNSPECIFIED) => {
            SocketAddr::new(Ipv4Addr::LOCALHOST.into(), addr.port())
        }
        IpAddr::V6(Ipv6Addr::UNSPECIFIED) => {
            SocketAddr::new(Ipv6Addr::LOCALHOST.into(), addr.port())
        }
        _ => *addr,
    }
}

/// An IPv4 address as sockets for both families show it.
fn mapped(addr: SocketAddr) -> SocketAddr {
    match addr.ip() {
        IpAddr::V4(v4) => SocketAddr::new(v4.to_ipv6_mapped().into(), addr.port()),
        IpAddr::V6(_) => addr,
    }
}

/// Clones are equal, and nothing else is.
impl PartialEq for MemoryNetwork {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Eq for MemoryNetwork {}

impl fmt::Debug for MemoryNetwork {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (names, connections) = {
            let state = self.0.state.lock();
            (state.names.len(), state.wires.len())
        };
        f.debug_struct("MemoryNetwork")
            .field("seed", &self.0.seed)
            .field("names", &names)
            .field("connections", &connections)
            .finish_non_exhaustive()
    }
}
