//! Storms of connections that end by a Terminate, and floods of Read Requests beyond IRD.
#![allow(
    missing_docs,
    clippy::unwrap_used,
    clippy::cast_possible_truncation,
    reason = "test code; a panic is a failed test"
)]

use std::{
    alloc::System,
    sync::atomic::{AtomicUsize, Ordering},
    thread,
};

use cap::Cap;
use iwarp_tests::{
    child::GUARD,
    hostile::{
        IDLE, ONCE, Site, affordable, alone, descriptors, dial_narrow, stays_level, wait_until,
    },
    live::Served,
    peer::{self, Heard, Peer, ReadRequest, opcode},
};
use iwarp_verbs::{
    Access, DeviceConfig,
    cm::{CloseReason, ConnParam},
};

#[global_allocator]
static ALLOCATOR: Cap<System> = Cap::new(System, usize::MAX);

fn allocated() -> usize {
    ALLOCATOR.allocated()
}

/// Connections of one storm; they come one behind the other, with some of them open at a time.
const STORM: usize = 1000;

/// Of which so many are open at a time.
const OPEN: usize = 50;

const ROUNDS: usize = 3;

/// Descriptors that are taken once, with the first of something.
const MADE_ONCE: usize = 8;

/// How a connection of the storm ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    /// The peer sends a Terminate, behind a whole message.
    Theirs,
    /// The peer's first message is a Terminate, which fails the set-up in the peer-to-peer model and ends the
    /// connection in this one.
    First,
    /// The peer has this side send one, and reads it.
    Ours,
    /// The same, and it is gone before it could have read it.
    OursUnread,
    /// Thousands of Terminates in one flight.
    Flood,
}

impl End {
    const ALL: [Self; 5] = [Self::Theirs, Self::First, Self::Ours, Self::OursUnread, Self::Flood];

    fn has_ours(self) -> bool {
        matches!(self, Self::Ours | Self::OursUnread)
    }

    /// What the peer says.
    fn say(self, peer: &mut Peer) {
        match self {
            Self::Theirs => {
                peer.send(&peer::send(1, b"farewell"));
                peer.send(&peer::terminate(0x0000));
            }
            Self::First => peer.send(&peer::terminate(0x1100)),
            Self::Ours => {
                // A responder says nothing before it has had one good FPDU (MPA-029).
                peer.send(&peer::send(1, b"whole"));
                peer.send_with_bad_crc(&peer::send(2, b"damaged"));
            }
            Self::OursUnread => peer.send(&peer::send(2, b"out of order")),
            Self::Flood => {
                let one = peer.fpdu(&peer::terminate(0x0200));
                peer.say_perhaps(&one.repeat(2000));
            }
        }
    }
}

/// RDMAP-054, RDMAP-068, SEC-17: however many connections end by a Terminate, of either side, each costs itself only;
/// none is answered by another Terminate; and what is left after one storm is what is left after many.
#[test]
fn storms_of_terminates_leave_nothing_behind() {
    let _alone = alone();
    let open = affordable(OPEN);
    let mut site = Site::new(DeviceConfig::default(), allocated);
    let fds = descriptors();
    let mut after = Vec::new();
    for _ in 0..ROUNDS {
        let before = site.live.device.stats();
        let (mut ours, mut theirs) = (0, 0);
        for wave in 0..STORM / open {
            let mut peers: Vec<(End, Peer, Served)> = (0..open)
                .map(|number| {
                    let (peer, served) = site.accept(&peer::request());
                    (End::ALL[(wave + number) % End::ALL.len()], peer, served)
                })
                .collect();
            for (end, peer, _) in &mut peers {
                end.say(peer);
            }
            for (end, mut peer, served) in peers {
                if end == End::OursUnread {
                    peer.reset();
                } else {
                    let heard = peer.hear_out();
                    let answers = heard.len() - 1;
                    assert_eq!(answers, usize::from(end.has_ours()), "{end:?}: {heard:?}");
                    drop(peer);
                }
                let reason = served.closed();
                match end {
                    End::Theirs | End::First | End::Flood => {
                        theirs += 1;
                        let told = matches!(reason, CloseReason::PeerTerminated { .. });
                        assert!(told, "{end:?}: {reason}");
                    }
                    End::Ours => {
                        ours += 1;
                        assert!(matches!(reason, CloseReason::Error(_)), "{reason}");
                    }
                    // RST may come first, and then there is nobody to tell.
                    End::OursUnread => {}
                }
                site.dismiss([served]);
            }
            site.neighbour.goes_on();
        }
        let stats = site.live.device.stats();
        assert_eq!(stats.terminates_received - before.terminates_received, theirs);
        assert!(stats.terminates_sent - before.terminates_sent >= ours);
        if let Some(fds) = fds {
            let few = fds + MADE_ONCE;
            wait_until("all sockets to be closed", || descriptors().is_some_and(|now| now <= few));
        }
        after.push(site.memory());
    }
    stays_level(&after, STORM);
}

/// CONN-27: the same before a connection is established: in the peer-to-peer model a first Terminate is a failed
/// set-up, of which the program hears as such and nothing is left.
#[test]
fn storms_of_set_ups_that_end_by_a_terminate() {
    let _alone = alone();
    let mut site = Site::new(DeviceConfig::default(), allocated);
    let request = iwarp_mpa::StartupFrame {
        enhanced: Some(iwarp_mpa::Enhanced {
            peer_to_peer: true,
            rtr: iwarp_mpa::RtrTypes::WRITE,
            ..peer::depths(16, 16)
        }),
        ..peer::request()
    };
    let before = site.memory();
    let failed = site.live.device.stats().setups_failed;
    for number in 0..STORM {
        let end = site.end();
        let mut peer = Peer::dial(site.live.addr());
        peer.send_startup(&request);
        let waiting = site.live.listener.accept(GUARD).unwrap();
        let accepting = waiting.accept(&end.qp, ConnParam::default()).unwrap();
        let reply = peer.read_startup(iwarp_mpa::FrameKind::Reply);
        peer.begin(&reply, &request);
        peer.send(&peer::terminate(0x0208));
        // Otherwise its end would be waited for.
        peer.half_close();
        accepting.wait(GUARD).unwrap_err();
        end.qp.destroy().unwrap();
        if number % 100 == 0 {
            site.neighbour.goes_on();
        }
    }
    site.dismiss([]);
    assert_eq!(site.live.device.stats().setups_failed - failed, STORM as u64);
    let left = site.memory().saturating_sub(before);
    println!("{STORM} set-ups failed, {left} octets are left");
    assert!(left <= ONCE, "{left} octets are left behind");
    site.neighbour.goes_on();
}

/// SEC-10, SEC-11, RDMAP-031: one Read Request more than IRD ends its connection, with the Terminate behind the FPDU
/// that is on its way; the thousands behind it are not looked at, nor is there memory for them.
#[test]
fn floods_of_reads_beyond_ird_end_their_connection() {
    const IRD: u32 = 16;
    const FLOOD: u32 = 2000;
    const LENGTH: u32 = 8 << 20;
    let _alone = alone();
    let count = affordable(60);
    let mut site = Site::new(DeviceConfig::default(), allocated);
    let region = site.live.pd.alloc(LENGTH as usize, Access::LOCAL_WRITE | Access::REMOTE_READ);
    let region = region.unwrap();
    region.fill(.., 0xA5).unwrap();
    let mut after = Vec::new();
    for _ in 0..ROUNDS {
        let mut all = Vec::with_capacity(count);
        for _ in 0..count {
            let stream = dial_narrow(site.live.addr()).unwrap();
            let param = ConnParam::default().ird(IRD as u16);
            let (mut peer, served) = site.accept_over(stream, &peer::request(), param);
            let mut flood = Vec::new();
            for msn in 1..=FLOOD {
                let request = ReadRequest {
                    sink_stag: 1,
                    sink_offset: 0,
                    length: LENGTH,
                    source_stag: region.rkey(),
                    source_offset: region.addr(),
                };
                flood.extend(peer.fpdu(&request.ulpdu(msn)));
            }
            // Sent whole: who is over reads on, and discards.
            peer.say_perhaps(&flood);
            all.push((peer, served));
        }
        site.neighbour.goes_on();
        for (mut peer, served) in all {
            let heard = peer.hear_out();
            let (answers, terminate) = match &heard[..] {
                [answers @ .., Heard::Ulpdu(last), Heard::Fin | Heard::Reset] => {
                    (answers, peer::Terminate::parse(last).expect("a Terminate"))
                }
                _ => panic!("{:?}", heard.last()),
            };
            // DDP's: no buffer for this message of the queue.
            assert_eq!(terminate.code, 0x1202);
            let read: usize = answers.iter().map(response_octets).sum();
            assert!(read < LENGTH as usize, "{read} octets, of a Read that TCP had no room for");
            drop(peer);
            let stats = served.end.qp.stats();
            assert_eq!(stats.reads_received, u64::from(IRD), "taken in");
            site.dismiss([served]);
        }
        site.neighbour.goes_on();
        after.push(site.memory());
    }
    stays_level(&after, count);
}

/// RFC 5042 §6.4.4: what costs this side most for an octet of the peer's, the shortest FPDUs of all kinds, without
/// end and from several peers: the neighbour has its turn, and there is no memory for any of it.
#[test]
fn floods_of_the_shortest_fpdus_stop_nobody() {
    const FLOODERS: usize = 4;
    const REPEATED: usize = 100;
    let _alone = alone();
    let mut site = Site::new(DeviceConfig::default(), allocated);
    let before = site.memory();
    let mut all: Vec<(Peer, Served)> =
        (0..FLOODERS).map(|_| site.accept(&peer::request())).collect();
    let mut shortest = Vec::new();
    let (first, _) = &mut all[0];
    for stag in 0..1000 {
        shortest.extend(first.fpdu(&peer::write(stag, 0, b"")));
    }
    let done = AtomicUsize::new(0);
    thread::scope(|threads| {
        for (peer, _) in &mut all {
            let (shortest, done) = (&shortest, &done);
            threads.spawn(move || {
                for _ in 0..REPEATED {
                    peer.say(shortest);
                }
                done.fetch_add(1, Ordering::Relaxed);
            });
        }
        // For as long as it lasts.
        while done.load(Ordering::Relaxed) < FLOODERS {
            site.neighbour.goes_on();
        }
    });
    let count = (1000 * REPEATED) as u64;
    for (_, served) in &all {
        wait_until("all of them to be read", || served.end.qp.stats().writes_received == count);
    }
    let grown = site.memory().saturating_sub(before);
    println!("{} FPDUs of 20 octets, {grown} octets", FLOODERS as u64 * count);
    assert!(grown <= FLOODERS * IDLE + ONCE, "{grown} octets");
    let (peers, served): (Vec<_>, Vec<_>) = all.into_iter().unzip();
    drop(peers);
    site.dismiss(served);
}

/// Payload of a segment of a Read Response, which all hold the same.
fn response_octets(heard: &Heard) -> usize {
    let Heard::Ulpdu(ulpdu) = heard else { panic!("{heard:?}") };
    assert_eq!(ulpdu[1] & 0xf, opcode::READ_RESPONSE);
    let payload = &ulpdu[14..];
    assert!(payload.iter().all(|octet| *octet == 0xA5));
    payload.len()
}
