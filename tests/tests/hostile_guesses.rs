//! Peers that guess keys: one guess a connection, no octet touched, nothing learnt.
#![allow(
    missing_docs,
    clippy::unwrap_used,
    clippy::cast_possible_truncation,
    reason = "test code; a panic is a failed test"
)]

use std::alloc::System;

use cap::Cap;
use iwarp_tests::{
    hostile::{ONCE, Site, affordable, alone},
    peer::{self, Heard, ReadRequest, opcode},
};
use iwarp_verbs::{Access, DeviceConfig, MemoryRegion, RemoteMemory};
use rand::{RngExt as _, SeedableRng as _};
use rand_chacha::ChaCha8Rng;

#[global_allocator]
static ALLOCATOR: Cap<System> = Cap::new(System, usize::MAX);

fn allocated() -> usize {
    ALLOCATOR.allocated()
}

/// Connections of the guessing peers.
const PEERS: usize = 2000;

/// Guesses in one flight, of which the first one counts.
const GUESSES: usize = 32;

const SIZE: usize = 4096;
const FILL: u8 = 0x5A;

/// How a key is used.
#[derive(Clone, Copy, Debug)]
enum Use {
    Write,
    Read,
    Invalidate,
    Atomic,
}

impl Use {
    const ALL: [Self; 4] = [Self::Write, Self::Read, Self::Invalidate, Self::Atomic];

    /// The ULPDU of this use; `msn` counts the messages of its queue.
    fn of(self, stag: u32, offset: u64, msn: u32) -> Vec<u8> {
        match self {
            Self::Write => peer::write(stag, offset, &[0xEE; 64]),
            Self::Read => read(stag, offset, 64, msn),
            Self::Invalidate => peer::send_invalidate(msn, stag, b"guess"),
            Self::Atomic => {
                // FetchAdd of 1, without a mask (RFC 7306 §5.2.1).
                let body = [
                    &0_u32.to_be_bytes()[..],
                    &msn.to_be_bytes(),
                    &stag.to_be_bytes(),
                    &offset.to_be_bytes(),
                    &1_u64.to_be_bytes(),
                    &0_u64.to_be_bytes(),
                    &0_u64.to_be_bytes(),
                    &u64::MAX.to_be_bytes(),
                ]
                .concat();
                peer::untagged(peer::whole(opcode::ATOMIC_REQUEST, 1, msn), &body)
            }
        }
    }

    /// What a key that names nothing is answered with: an invalid `STag`, found by DDP or by RDMAP.
    const fn refusal(self) -> u16 {
        match self {
            Self::Write => 0x1100,
            Self::Read | Self::Atomic => 0x0100,
            // That it cannot be invalidated (RFC 5040 §4.8).
            Self::Invalidate => 0x0209,
        }
    }
}

fn read(stag: u32, offset: u64, length: u32, msn: u32) -> Vec<u8> {
    let request = ReadRequest {
        sink_stag: 0x1234,
        sink_offset: 0,
        length,
        source_stag: stag,
        source_offset: offset,
    };
    request.ulpdu(msn)
}

/// Regions that a guess could meet: open to everything, of the peers' domain and of another one.
struct Targets {
    ours: MemoryRegion,
    foreign: MemoryRegion,
    /// The key of a region that is gone.
    gone: RemoteMemory,
}

impl Targets {
    fn new(site: &Site) -> Self {
        let open = Access::LOCAL_WRITE
            | Access::REMOTE_WRITE
            | Access::REMOTE_READ
            | Access::REMOTE_ATOMIC;
        let other = site.live.device.alloc_pd();
        let [ours, foreign, gone] =
            [&site.live.pd, &other, &site.live.pd].map(|pd| pd.alloc(SIZE, open).unwrap());
        for region in [&ours, &foreign] {
            region.fill(.., FILL).unwrap();
        }
        let key = gone.remote();
        gone.deregister().unwrap();
        Self { ours, foreign, gone: key }
    }

    fn is_live(&self, stag: u32) -> bool {
        stag == self.ours.rkey() || stag == self.foreign.rkey()
    }

    fn assert_untouched(&self) {
        let mut octets = vec![0; SIZE];
        for region in [&self.ours, &self.foreign] {
            assert!(region.is_valid(), "a key was taken out of force");
            region.read_at(0, &mut octets).unwrap();
            assert!(octets.iter().all(|octet| *octet == FILL), "an octet was changed");
        }
    }
}

/// SEC-07, SEC-01, RDMAP-054, DDP-044: a wrong key ends the connection with the first guess, so that those behind it
/// are not looked at, the right one among them; the Terminate tells of the first one and nothing of any memory.
#[test]
fn one_guess_a_connection() {
    let _alone = alone();
    let count = affordable(PEERS);
    let seed = rand::random();
    println!("seed {seed:#x}");
    let mut random = ChaCha8Rng::seed_from_u64(seed);
    let mut site = Site::new(DeviceConfig::default(), allocated);
    let targets = Targets::new(&site);
    let before = site.memory();
    let counted = site.live.device.stats();
    let mut served = Vec::with_capacity(count);
    for number in 0..count {
        let way = Use::ALL[number % 4];
        let right = targets.ours.rkey();
        // Keys at random, and those that are nearest to a right one: another key octet of its index, its
        // neighbours, that of a region that is gone, nothing.
        let guess = loop {
            let guess = match number / 4 % 6 {
                0 => right ^ random.random_range(1..=0xff),
                1 => right.wrapping_add(0x100),
                2 => targets.gone.rkey,
                3 => 0,
                _ => random.random(),
            };
            if !targets.is_live(guess) {
                break guess;
            }
        };
        let (mut peer, end) = site.accept(&peer::request());
        let offset = targets.ours.addr();
        let first = way.of(guess, offset, 1);
        let mut flight = peer.fpdu(&first);
        for msn in 2..GUESSES as u32 {
            flight.extend(peer.fpdu(&way.of(random.random(), offset, msn)));
        }
        flight.extend(peer.fpdu(&way.of(right, offset, GUESSES as u32)));
        peer.say_perhaps(&flight);
        let terminate = peer.hear_terminate();
        assert_eq!(terminate.code, way.refusal(), "{way:?} with {guess:#x}");
        // The header shown is the peer's own, of the first guess.
        let header = &terminate.ddp_header;
        assert_eq!(header[..], first[..header.len()], "{way:?}");
        assert!(header.len() >= 14, "{way:?} shows no header");
        // Nothing comes behind it. RST may overtake FIN, as the peer went on sending.
        assert!(matches!(peer.hear(), Heard::Fin | Heard::Reset));
        served.push(end);
        if number % 500 == 0 {
            targets.assert_untouched();
            site.neighbour.goes_on();
        }
    }
    for end in &served {
        let stats = end.end.qp.stats();
        assert_eq!(
            (stats.writes_received, stats.atomics_received, stats.reads_received),
            (0, 0, 0)
        );
        assert_eq!(stats.terminates_sent, 1);
    }
    site.dismiss(served);
    targets.assert_untouched();
    let stats = site.live.device.stats();
    assert_eq!(stats.terminates_sent - counted.terminates_sent, count as u64);
    site.neighbour.goes_on();
    let left = site.memory().saturating_sub(before);
    println!("{count} connections guessed, {left} octets are left");
    assert!(left <= ONCE, "{left} octets are left behind");
}

/// SEC-01: a key of another domain opens nothing. That it exists is what the error codes of the RFC tell.
#[test]
fn a_key_of_another_domain_opens_nothing() {
    let _alone = alone();
    let mut site = Site::new(DeviceConfig::default(), allocated);
    let targets = Targets::new(&site);
    for (way, code) in [(Use::Write, 0x1102), (Use::Read, 0x0103), (Use::Atomic, 0x0103)] {
        let (mut peer, served) = site.accept(&peer::request());
        peer.send(&way.of(targets.foreign.rkey(), targets.foreign.addr(), 1));
        assert_eq!(peer.hear_terminate().code, code, "{way:?}");
        site.dismiss([served]);
        targets.assert_untouched();
    }
    site.neighbour.goes_on();
}

/// DDP-030, RDMAP-027: accesses of no octets, which are not checked, are answered alike whatever they name. So they
/// are no way to try keys without being thrown out.
#[test]
fn accesses_of_no_octets_tell_nothing_of_keys() {
    let _alone = alone();
    let mut site = Site::new(DeviceConfig::default(), allocated);
    let targets = Targets::new(&site);
    let (mut peer, served) = site.accept(&peer::request());
    let mut random = ChaCha8Rng::seed_from_u64(7);
    let keys: Vec<u32> = [targets.ours.rkey(), targets.foreign.rkey(), targets.gone.rkey, 0]
        .into_iter()
        .chain(std::iter::repeat_with(|| random.random()).take(1000))
        .collect();
    for (msn, key) in (1..).zip(keys) {
        let offset = targets.ours.addr();
        peer.send(&peer::write(key, offset, b""));
        peer.send(&read(key, offset, 0, msn));
        // The sink of the request, and nothing else.
        assert_eq!(peer.hear_ulpdu(), peer::read_response(0x1234, 0, b""), "{key:#x}");
    }
    targets.assert_untouched();
    drop(peer);
    site.dismiss([served]);
    site.neighbour.goes_on();
}
