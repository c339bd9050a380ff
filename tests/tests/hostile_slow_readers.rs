//! Peers that ask for much and take nothing: full windows, piled up Read Responses.
#![allow(
    missing_docs,
    clippy::unwrap_used,
    clippy::cast_possible_truncation,
    reason = "test code; a panic is a failed test"
)]

use std::{alloc::System, time::Duration};

use cap::Cap;
use iwarp_tests::{
    child::GUARD,
    hostile::{IDLE, ONCE, Site, affordable, alone, dial_narrow, stays_level, wait_until},
    live::Served,
    peer::{self, Peer, ReadRequest, opcode},
    skip,
};
use iwarp_verbs::{
    Access, DeviceConfig, MemoryRegion,
    cm::{CloseReason, ConnParam},
};

#[global_allocator]
static ALLOCATOR: Cap<System> = Cap::new(System, usize::MAX);

fn allocated() -> usize {
    ALLOCATOR.allocated()
}

/// Slow readers, where the system allows. Each has its socket buffers full, so they are not thousands.
const PEERS: usize = 300;

/// Reads that each of them asks for at once: IRD of this side.
const READS: u32 = 16;

/// Octets of each Read.
const LENGTH: u32 = 128 << 10;

/// The longest FPDU of a connection whose segments are those of Ethernet: the default limit.
const FPDU: usize = 16 << 10;

/// What 16 Reads that wait for their turn take, above an idle connection.
const QUEUED: usize = 2048;

fn pattern(at: usize) -> u8 {
    (at ^ (at >> 8) ^ (at >> 16)) as u8
}

/// Promise 7, SEC-17: Responses that nobody takes are held within the budget and one FPDU for each connection, however
/// much was asked for. Who reads at last gets all of it, and right; who resets leaves nothing behind.
#[test]
fn responses_that_nobody_takes_stay_within_the_budget() {
    const BUDGET: usize = 1 << 20;
    let _alone = alone();
    let count = affordable(PEERS);
    // TCP itself gives up a peer whose window stays shut for so long; here nobody is to be given up.
    let config = DeviceConfig::default().memory_budget(BUDGET).user_timeout(Duration::ZERO);
    let mut site = Site::new(config, allocated);
    let region = site.live.pd.alloc(LENGTH as usize, Access::LOCAL_WRITE | Access::REMOTE_READ);
    let region = region.unwrap();
    let octets: Vec<u8> = (0..region.len()).map(pattern).collect();
    region.write_at(0, &octets).unwrap();
    let mut after = Vec::new();
    for (round, crc) in [true, false, true].into_iter().enumerate() {
        let mut readers: Vec<(Peer, Served)> = Vec::with_capacity(count);
        let before = site.memory();
        for number in 0..count {
            readers.push(ask(&site, &region, crc));
            if number % 100 == 0 {
                site.neighbour.goes_on();
            }
        }
        site.neighbour.goes_on();
        let peak = site.neighbour.take_peak();
        let (grown, held) = (site.memory().saturating_sub(before), site.held());
        let each = grown.saturating_sub(held) / count;
        let asked = count * READS as usize * LENGTH as usize;
        println!(
            "CRC {crc}: {count} readers asked for {asked} octets, {held} are held, {each} more each; peak {peak}"
        );
        assert!(held > 0, "nobody was slow");
        assert!(held <= BUDGET + count * (FPDU + 64), "{held} octets are held");
        let once = if round == 0 { ONCE / count } else { 0 };
        assert!(each <= IDLE + QUEUED + once, "{each} octets beside what is held");

        // Some read everything, after all this time; some one octet and another; the others leave.
        let mut served = Vec::with_capacity(count);
        for (number, (mut peer, end)) in readers.drain(..).enumerate() {
            served.push(end);
            match number % 20 {
                0 => {
                    for _ in 0..READS {
                        take_one(&mut peer, &octets);
                    }
                }
                1 => take_one(&mut peer, &octets),
                // Responses to come make this a close with work pending.
                2 => peer.half_close(),
                _ => peer.reset(),
            }
        }
        site.dismiss(served);
        assert_eq!(site.held(), 0);
        after.push(site.memory());
        site.neighbour.goes_on();
    }
    stays_level(&after, count);
}

/// SEC-17: a peer that takes nothing for the time of `user_timeout` is left by TCP, though it acknowledges that it is
/// there.
#[test]
fn who_keeps_the_window_shut_is_left() {
    let _alone = alone();
    if !counts_shut_windows() {
        skip!("TCP_USER_TIMEOUT counts shut windows from Linux 5.11 on");
    }
    let config = DeviceConfig::default().user_timeout(Duration::from_secs(1));
    let mut site = Site::new(config, allocated);
    let region = site.live.pd.alloc(LENGTH as usize, Access::REMOTE_READ).unwrap();
    let (_peer, served) = ask(&site, &region, true);
    let reason = served.closed();
    assert!(matches!(reason, CloseReason::Lost(_)), "{reason}");
    assert!(reason.to_string().contains("silent for too long"), "{reason}");
    site.dismiss([served]);
    wait_until("what was unsent to be given back", || site.held() == 0);
    site.neighbour.goes_on();
}

fn counts_shut_windows() -> bool {
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let mut numbers = release.split(|it: char| !it.is_ascii_digit()).map(str::parse::<u32>);
    let mut next = || numbers.next().and_then(Result::ok).unwrap_or_default();
    (next(), next()) >= (5, 11)
}

/// A peer with a small window that asks for all that it may, and does not read.
fn ask(site: &Site, region: &MemoryRegion, crc: bool) -> (Peer, Served) {
    let stream = dial_narrow(site.live.addr()).unwrap();
    let request = iwarp_mpa::StartupFrame { crc, ..peer::request() };
    let param = ConnParam::default().crc(crc).ird(READS as u16).timeout(GUARD);
    let (mut peer, served) = site.accept_over(stream, &request, param);
    let mut requests = Vec::new();
    for msn in 1..=READS {
        let read = ReadRequest {
            sink_stag: msn,
            sink_offset: 0,
            length: LENGTH,
            source_stag: region.rkey(),
            source_offset: region.addr(),
        };
        requests.extend(peer.fpdu(&read.ulpdu(msn)));
    }
    peer.say(&requests);
    (peer, served)
}

/// Takes one Response whole.
fn take_one(peer: &mut Peer, octets: &[u8]) {
    let mut at = 0;
    while at < octets.len() {
        let ulpdu = peer.hear_ulpdu();
        assert_eq!(ulpdu[1] & 0xf, opcode::READ_RESPONSE);
        let payload = &ulpdu[14..];
        assert!(payload == &octets[at..at + payload.len()], "wrong data at {at}");
        at += payload.len();
    }
}
