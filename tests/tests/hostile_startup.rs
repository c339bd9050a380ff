//! Floods of start-ups: silent ones beyond every limit, whole Requests that nobody takes, rejected ones that stay.
#![allow(
    missing_docs,
    clippy::unwrap_used,
    clippy::cast_possible_truncation,
    reason = "test code; a panic is a failed test"
)]

use std::{
    alloc::System,
    io::ErrorKind,
    mem::MaybeUninit,
    net::{SocketAddr, TcpStream},
    thread,
};

use cap::Cap;
use iwarp_mpa::FrameKind;
use iwarp_tests::{
    child::GUARD,
    hostile::{HALF_OPEN, NEVER, ONCE, Site, affordable, alone, descriptors, wait_until},
    live::Served,
    peer::{self, Heard, Peer},
    skip,
};
use iwarp_verbs::{
    DeviceConfig,
    cm::{ConnParam, ListenConfig, Listener},
};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use socket2::{Domain, Socket, Type};

#[global_allocator]
static ALLOCATOR: Cap<System> = Cap::new(System, usize::MAX);

fn allocated() -> usize {
    ALLOCATOR.allocated()
}

/// Attackers, where the system allows.
const PEERS: usize = 2000;

/// Peers that may be in the middle of their Request at once.
const PENDING: usize = 64;

fn config() -> DeviceConfig {
    DeviceConfig::default().max_pending_handshakes(PENDING).accept_timeout(NEVER).close_grace(NEVER)
}

/// SEC-22: silent peers beyond the limit make room for newcomers, the oldest first, so that an honest one is served
/// however many they are; and no more of them are held than the limit says.
#[test]
fn silent_peers_beyond_the_limit_make_room() {
    let _alone = alone();
    let count = affordable(PEERS);
    let mut site = Site::new(config(), allocated);
    let before = site.memory();
    let mut silent = Vec::with_capacity(count);
    for number in 0..count {
        silent.push(Socket::from(TcpStream::connect(site.live.addr()).unwrap()));
        // An honest one in the middle of the flood, which waits until those before it have had their time.
        if number % 400 == 399 {
            let (peer, served) = site.accept(&peer::request());
            site.neighbour.goes_on();
            drop(peer);
            site.dismiss([served]);
        }
    }
    site.neighbour.goes_on();
    let (peer, served) = site.accept(&peer::request());
    drop(peer);
    site.dismiss([served]);
    // All but those that have a place are closed.
    let closed = |socket: &Socket| {
        socket.set_nonblocking(true).unwrap();
        let looked = socket.peek(&mut [MaybeUninit::uninit()]);
        !looked.is_err_and(|error| error.kind() == ErrorKind::WouldBlock)
    };
    let open = silent.iter().filter(|socket| !closed(socket)).count();
    let grown = site.memory().saturating_sub(before);
    println!("{count} silent peers, {open} of them held, {grown} octets");
    assert!(open <= PENDING, "{open} are held, {PENDING} may be");
    assert!(grown <= PENDING * HALF_OPEN + ONCE, "{grown} octets");
    drop(silent);
    site.neighbour.goes_on();
}

/// SEC-22, FC-050: whole Requests that the program does not take fill its backlog and the places of start-ups, and
/// no memory beyond. What waits is served as soon as the program does.
#[test]
fn requests_that_nobody_takes_fill_the_backlog_only() {
    const BACKLOG: usize = 16;
    let _alone = alone();
    let count = affordable(PEERS) / 4;
    let mut site = Site::new(config(), allocated);
    let listening = ListenConfig::default().backlog(BACKLOG as u32);
    let listener = Listener::bind(&site.live.device, "127.0.0.1:0", listening).unwrap();
    let request = iwarp_mpa::StartupFrame { private_data: vec![7; 508].into(), ..peer::request() };
    let request = request.encode().unwrap();
    let before = site.memory();
    let mut knocking = Vec::with_capacity(count);
    let addr = socket2::SockAddr::from(listener.local_addr());
    for _ in 0..count {
        // Beyond both backlogs the system answers nobody, so this may not wait.
        let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
        socket.set_nonblocking(true).unwrap();
        let _ = socket.connect(&addr);
        let _ = socket.send(&request);
        knocking.push(socket);
    }
    site.neighbour.goes_on();
    let in_flight = BACKLOG + PENDING + 1;
    let received = || site.live.device.stats().requests_received as usize - 1;
    wait_until("the backlog is full", || received() >= BACKLOG);
    let received = received();
    let grown = site.memory().saturating_sub(before);
    println!("{count} Requests, {received} of them read, {grown} octets");
    assert!(received <= in_flight, "{received} Requests were read, {in_flight} may be");
    // A Request waits with its private data, the two names of its connection, and its socket.
    assert!(grown <= in_flight * HALF_OPEN + ONCE, "{grown} octets");
    drop(knocking);
    // The program comes back: those that are gone, it finds out; and an honest one is served, whose TCP had to wait.
    let mine =
        iwarp_mpa::StartupFrame { private_data: (&b"it is me"[..]).into(), ..peer::request() };
    let (mut honest, served) = thread::scope(|threads| {
        let dialling = threads.spawn(|| {
            let mut peer = Peer::dial(listener.local_addr());
            peer.send_startup(&mine);
            peer
        });
        let request = loop {
            let request = listener.accept(GUARD).unwrap();
            if request.private_data() == b"it is me" {
                break request;
            }
        };
        let mut peer = dialling.join().unwrap();
        let end = site.end();
        let accepting = request.accept(&end.qp, ConnParam::default()).unwrap();
        let reply = peer.read_startup(FrameKind::Reply);
        peer.begin(&reply, &mine);
        let connection = accepting.wait(GUARD).unwrap();
        (peer, Served { end, connection })
    });
    honest.send(&peer::send(1, b"at last"));
    assert!(served.end.next_receive().is_success());
    drop(honest);
    site.dismiss([served]);
    site.neighbour.goes_on();
}

/// SEC-22, FC-012: peers that are rejected and stay are waited for as long as they are few; all of them are told.
#[test]
fn rejected_peers_that_stay_are_not_waited_for_beyond_the_limit() {
    let _alone = alone();
    if descriptors().is_none() {
        skip!("this system does not tell which descriptors are in use");
    }
    let count = affordable(PEERS) / 4;
    let mut site = Site::new(config(), allocated);
    let (memory, before) = (site.memory(), descriptors().unwrap());
    let mut rejected = Vec::with_capacity(count);
    for _ in 0..count {
        let mut peer = Peer::dial(site.live.addr());
        peer.send_startup(&peer::request());
        site.live.listener.accept(GUARD).unwrap().reject(b"full").unwrap();
        rejected.push(peer);
    }
    site.neighbour.goes_on();
    // One descriptor is the peer's own.
    let most = before + count + PENDING;
    wait_until("most of the rejected peers to be left", || descriptors().unwrap() <= most);
    let grown = site.memory().saturating_sub(memory);
    println!(
        "{count} rejected peers, {} held, {grown} octets",
        descriptors().unwrap() - before - count
    );
    assert!(grown <= PENDING * HALF_OPEN + ONCE, "{grown} octets");
    for peer in &mut rejected {
        let reply = peer.read_startup(FrameKind::Reply);
        assert!(reply.reject);
        assert_eq!(&reply.private_data[..], b"full");
        assert_eq!(peer.hear(), Heard::Fin);
    }
    drop(rejected);
    wait_until("the rest of them to be left", || descriptors().unwrap() <= before);
    site.neighbour.goes_on();
}

/// SEC-17: a flood that takes the last descriptor stops newcomers, and nobody who is there already.
#[test]
fn a_flood_that_takes_all_descriptors_hurts_no_connection() {
    let _alone = alone();
    if descriptors().is_none() {
        skip!("this system does not tell which descriptors are in use");
    }
    let config = DeviceConfig::default().accept_timeout(NEVER);
    let mut site = Site::new(config, allocated);
    let sockets = || Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
    let attackers: Vec<_> = std::iter::repeat_with(sockets).take(64).collect();
    let limit = getrlimit(Resource::Nofile);
    let few = u64::try_from(descriptors().unwrap() + 16).unwrap();
    setrlimit(Resource::Nofile, Rlimit { current: Some(few), ..limit }).unwrap();
    let addr: SocketAddr = site.live.addr();
    for attacker in &attackers {
        attacker.connect(&addr.into()).unwrap();
    }
    wait_until("a shortage of descriptors", || {
        Socket::new(Domain::IPV4, Type::STREAM, None).is_err()
    });
    for _ in 0..20 {
        site.neighbour.goes_on();
    }
    drop(attackers);
    // Those who come now are served, without a change of the limit.
    let (peer, served) = site.accept(&peer::request());
    drop(peer);
    site.dismiss([served]);
    setrlimit(Resource::Nofile, limit).unwrap();
    site.neighbour.goes_on();
}
