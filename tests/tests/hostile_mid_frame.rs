//! Thousands of peers that stop in the middle of a frame: of their start-up, of an FPDU.
#![allow(
    missing_docs,
    clippy::unwrap_used,
    clippy::cast_possible_truncation,
    reason = "test code; a panic is a failed test"
)]

use std::{alloc::System, net::TcpStream, time::Duration};

use cap::Cap;
use iwarp_tests::{
    hostile::{HALF_OPEN, IDLE, NEVER, ONCE, Site, affordable, alone, stays_level, wait_until},
    live::Served,
    peer::{self, Peer},
};
use iwarp_verbs::{Access, DeviceConfig, MemoryRegion, cm::CloseReason};

#[global_allocator]
static ALLOCATOR: Cap<System> = Cap::new(System, usize::MAX);

fn allocated() -> usize {
    ALLOCATOR.allocated()
}

/// Of each kind, where the system allows.
const PEERS: usize = 2000;

/// Rounds of the same attack. The first one makes what is made once.
const ROUNDS: usize = 3;

/// SEC-17, SEC-22: each half-open start-up takes little, at whatever octet it stops; all of it comes back; and honest
/// peers get through meanwhile.
#[test]
fn thousands_that_stop_inside_their_request() {
    let _alone = alone();
    let count = affordable(PEERS);
    let config = DeviceConfig::default().max_pending_handshakes(count + 8).accept_timeout(NEVER);
    let mut site = Site::new(config, allocated);
    let request = peer::request().encode().unwrap();
    let with_data =
        iwarp_mpa::StartupFrame { private_data: vec![7; 508].into(), ..peer::request() };
    let with_data = with_data.encode().unwrap();
    let mut peers = Vec::with_capacity(count);
    let mut after = Vec::new();
    for round in 0..ROUNDS {
        let before = site.memory();
        for number in 0..count {
            let mut peer = Peer::dial(site.live.addr());
            // Nothing at all, part of the key, of the header, of the private data; all but the last octet.
            let said = match number % 5 {
                0 => &[][..],
                1 => &request[..7],
                2 => &request[..19],
                3 => &with_data[..300],
                _ => &with_data[..with_data.len() - 1],
            };
            peer.say(said);
            peers.push(peer.into_stream());
        }
        // One that comes behind them all.
        let (peer, served) = site.accept(&peer::request());
        site.neighbour.goes_on();
        drop(peer);
        site.dismiss([served]);
        let each = site.memory().saturating_sub(before) / count;
        println!("{count} half-open start-ups, {each} octets each");
        let once = if round == 0 { ONCE / count } else { 0 };
        assert!(each <= HALF_OPEN + once, "{each} octets, at most {HALF_OPEN} expected");
        assert!(site.live.listener.try_accept().is_none(), "none of them is a request");
        leave(peers.drain(..));
        // The others left before it came, and their places are free.
        let (peer, served) = site.accept(&peer::request());
        drop(peer);
        site.dismiss([served]);
        after.push(site.memory());
        site.neighbour.goes_on();
    }
    stays_level(&after, count);
}

/// Promise 7, SEC-17: what stopped peers make this side hold is within the budget and what they really sent; nothing of
/// an FPDU is placed whose end has not come; and all of it comes back.
#[test]
fn thousands_that_stop_inside_an_fpdu() {
    let _alone = alone();
    let count = affordable(PEERS);
    for (budget, rounds) in [(1 << 20, ROUNDS), (64 << 20, 1)] {
        let config = DeviceConfig::default().memory_budget(budget).partial_fpdu(NEVER);
        let mut site = Site::new(config, allocated);
        let open = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
        let region = site.live.pd.alloc(1 << 16, open).unwrap();
        let starts = starts(&site, &region);
        let mut peers = Vec::with_capacity(count);
        let mut connected = Vec::with_capacity(count);
        let mut after = Vec::new();
        for round in 0..rounds {
            let before = site.memory();
            let mut said = 0;
            for number in 0..count {
                let (mut peer, served) = site.accept(&peer::request());
                let start = &starts[number % starts.len()];
                peer.say(start);
                said += start.len();
                peers.push(peer.into_stream());
                connected.push(served);
                if number % 500 == 0 {
                    site.neighbour.goes_on();
                }
            }
            site.neighbour.goes_on();
            let grown = site.memory().saturating_sub(before);
            let held = site.held();
            let each = grown.saturating_sub(held) / count;
            println!(
                "budget {budget}: {count} peers said {said} octets, {held} are held; {each} more each"
            );
            assert!(held <= budget + said, "{held} octets are held");
            let once = if round == 0 { ONCE / count } else { 0 };
            assert!(
                each <= IDLE + once,
                "{each} octets beside what is held, at most {IDLE} expected"
            );
            // MPA-058, DDP-006: the CRC of none of them has come.
            let mut octets = vec![0; region.len()];
            region.read_at(0, &mut octets).unwrap();
            assert!(octets.iter().all(|octet| *octet == 0), "octets without their CRC");
            leave(peers.drain(..));
            site.dismiss(connected.drain(..));
            assert_eq!(site.held(), 0);
            after.push(site.memory());
        }
        if rounds == ROUNDS {
            stays_level(&after, count);
        }
    }
}

/// Where the peers stop: beginnings of FPDUs, which all come first on their connections.
fn starts(site: &Site, region: &MemoryRegion) -> Vec<Vec<u8>> {
    let (mut peer, served) = site.accept(&peer::request());
    let mut write =
        |octets: usize| peer.fpdu(&peer::write(region.rkey(), region.addr(), &vec![0xEE; octets]));
    let (short, long) = (write(4000), write(65_000));
    let mut send = peer.fpdu(&peer::send(1, b"whole"));
    send.push(0);
    let starts = vec![
        long[..1].to_vec(),
        // Two octets that announce 64 KiB.
        long[..2].to_vec(),
        long[..16].to_vec(),
        long[..long.len() / 2].to_vec(),
        short[..3000].to_vec(),
        short[..short.len() - 1].to_vec(),
        send,
    ];
    drop(peer);
    site.dismiss([served]);
    starts
}

/// MPA-091: who stops inside an FPDU is left when its time is over, and told nothing; who is silent between FPDUs is not.
#[test]
fn who_stops_inside_an_fpdu_is_left() {
    let _alone = alone();
    let count = affordable(PEERS / 10);
    let config = DeviceConfig::default().partial_fpdu(Duration::from_secs(1));
    let mut site = Site::new(config, allocated);
    let region = site.live.pd.alloc(1 << 16, Access::LOCAL_WRITE | Access::REMOTE_WRITE).unwrap();
    let starts = starts(&site, &region);
    let (mut patient, waiting) = site.accept(&peer::request());
    let stopped: Vec<(Peer, Served)> = (0..count)
        .map(|number| {
            let (mut peer, served) = site.accept(&peer::request());
            peer.say(&starts[number % starts.len()]);
            (peer, served)
        })
        .collect();
    for (mut peer, served) in stopped {
        let reason = served.closed();
        assert!(matches!(reason, CloseReason::Error(_)), "{reason}");
        // RST: the rest of the stream is not to be told from garbage.
        assert_eq!(peer.hear(), peer::Heard::Reset);
        served.end.qp.destroy().unwrap();
    }
    site.neighbour.goes_on();
    patient.send(&peer::send(1, b"still here"));
    assert!(waiting.end.next_receive().byte_len > 0);
    wait_until("what was held to be given back", || site.held() == 0);
}

/// Half of them close in order, half by RST.
fn leave(peers: impl Iterator<Item = TcpStream>) {
    for (number, stream) in peers.enumerate() {
        if number % 2 == 1 {
            Peer::new(stream).reset();
        }
    }
}
