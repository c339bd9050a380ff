//! What a scripted peer can do to memory: nothing but what its keys allow, and nothing any more once they are gone.
#![allow(
    missing_docs,
    clippy::unwrap_used,
    clippy::cast_possible_truncation,
    reason = "test code; a panic is a failed test"
)]

use std::{
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::Duration,
};

use iwarp_tests::{
    live::{Live, Role, Served},
    peer::{self, Heard, Peer, ReadRequest, opcode},
};
use iwarp_verbs::{
    Access, DeviceConfig, MemoryRegion, QpConfig, RecvRequest, SendRequest, WcStatus,
    WorkCompletion, cm::ConnParam,
};

const OPEN: Access = Access::LOCAL_WRITE.union(Access::REMOTE_WRITE).union(Access::REMOTE_READ);

fn live() -> Live {
    Live::new(DeviceConfig::default())
}

fn connect(live: &Live, receives: u32) -> (Peer, Served) {
    live.establish(Role::Responder, &peer::request(), ConnParam::default(), receives)
}

fn read_of(region: &MemoryRegion, offset: u64, length: u32) -> ReadRequest {
    ReadRequest {
        sink_stag: 0x1234,
        sink_offset: 0,
        length,
        source_stag: region.rkey(),
        source_offset: region.addr().wrapping_add(offset),
    }
}

fn octets_of(region: &MemoryRegion) -> Vec<u8> {
    let mut octets = vec![0; region.len()];
    region.read_at(0, &mut octets).unwrap();
    octets
}

/// FC-058, DDP-057: a region of no octets grants none.
#[test]
fn fc_058_a_region_of_no_octets_is_no_blank_cheque() {
    let live = live();
    let Ok(region) = live.pd.alloc(0, OPEN) else {
        // To refuse it is right as well.
        return;
    };
    let (mut peer, _served) = connect(&live, 0);
    peer.send(&peer::write(region.rkey(), region.addr(), b"x"));
    assert_eq!(peer.hear_terminate().code, 0x1101);

    let (mut peer, _served) = connect(&live, 0);
    peer.send(&read_of(&region, 0, 1).ulpdu(1));
    assert_eq!(peer.hear_terminate().code, 0x0101);

    let (mut peer, served) = connect(&live, 1);
    peer.send(&peer::write(region.rkey(), region.addr(), b""));
    peer.send(&peer::send(1, b"still here"));
    assert!(served.end.next_receive().is_success());
}

/// DDP-057, DDP-058, RDMAP-026, RDMAP-078, SEC-03: the edges of a region, to the octet, and the top of the address space.
#[test]
fn bounds_hold_to_the_octet() {
    let live = live();
    let region = live.pd.alloc(4096, OPEN).unwrap();
    let (base, end) = (region.addr(), region.addr() + 4096);
    let bounds = Some((0x1101, 0x0101));
    let wraps = Some((0x1103, 0x0104));
    for (offset, length, refused) in [
        (base, 4096, None),
        (base, 1, None),
        (end - 1, 1, None),
        (base - 1, 1, bounds),
        (base - 1, 2, bounds),
        (base, 4097, bounds),
        (end - 1, 2, bounds),
        (end, 1, bounds),
        (0, 1, bounds),
        (u64::MAX, 1, wraps),
        (u64::MAX - 15, 32, wraps),
        (base.wrapping_neg(), 4096, bounds),
    ] {
        // FC-063
        let (mut peer, served) = connect(&live, 1);
        peer.send(&peer::write(region.rkey(), offset, &vec![0xAB; length]));
        peer.send(&peer::send(1, b""));
        match refused {
            None => assert!(served.end.next_receive().is_success(), "{offset:#x} {length}"),
            Some((code, _)) => assert_eq!(peer.hear_terminate().code, code, "{offset:#x} {length}"),
        }
        let changed = octets_of(&region).iter().filter(|octet| **octet != 0).count();
        assert_eq!(changed, if refused.is_none() { length } else { 0 }, "{offset:#x} {length}");
        region.fill(.., 0).unwrap();

        let (mut peer, _served) = connect(&live, 0);
        let length = u32::try_from(length).unwrap();
        let source_offset = offset;
        peer.send(&ReadRequest { source_offset, ..read_of(&region, 0, length) }.ulpdu(1));
        match refused {
            None => assert_eq!(peer.hear_ulpdu().len(), 14 + length as usize),
            Some((_, code)) => assert_eq!(peer.hear_terminate().code, code, "{offset:#x} {length}"),
        }
    }
}

/// SEC-05, SEC-13, DDP-056, D4: rights of regions, and of the queue pair.
#[test]
fn rights_are_kept() {
    let live = live();
    for (access, write, read) in [
        (Access::LOCAL_WRITE, false, false),
        (Access::LOCAL_WRITE | Access::REMOTE_WRITE, true, false),
        (Access::REMOTE_READ, false, true),
        (OPEN, true, true),
    ] {
        let region = live.pd.alloc(64, access).unwrap();
        let (mut peer, served) = connect(&live, 1);
        peer.send(&peer::write(region.rkey(), region.addr(), b"written"));
        peer.send(&peer::send(1, b""));
        if write {
            assert!(served.end.next_receive().is_success());
        } else {
            assert_eq!(peer.hear_terminate().code, 0x1100, "{access:?}");
        }
        assert_eq!(octets_of(&region)[..7] == *b"written", write, "{access:?}");

        let (mut peer, _served) = connect(&live, 0);
        peer.send(&read_of(&region, 0, 8).ulpdu(1));
        if read {
            assert_eq!(peer.hear_ulpdu()[1] & 0xf, opcode::READ_RESPONSE);
        } else {
            let terminate = peer.hear_terminate();
            assert_eq!(terminate.code, 0x0102, "{access:?}");
            assert_eq!(terminate.rdmap_header.len(), 28);
        }
        // SEC-13, RDMAP-027: no right is needed for no octets.
        let (mut peer, _served) = connect(&live, 0);
        peer.send(&read_of(&region, 0, 0).ulpdu(1));
        assert_eq!(peer.hear_ulpdu().len(), 14);
    }
    // A queue pair that allows nothing, whatever the region says.
    let region = live.pd.alloc(64, OPEN).unwrap();
    for write in [true, false] {
        let mut end = live.end(0);
        let config =
            QpConfig::new(&end.send_cq).recv_cq(&end.recv_cq).remote_access(Access::empty());
        end.qp = live.pd.create_qp(&config).unwrap();
        let (mut peer, _served) =
            live.establish_end(Role::Responder, &peer::request(), ConnParam::default(), end);
        if write {
            peer.send(&peer::write(region.rkey(), region.addr(), b"x"));
            assert_eq!(peer.hear_terminate().code, 0x1100);
        } else {
            peer.send(&read_of(&region, 0, 8).ulpdu(1));
            assert_eq!(peer.hear_terminate().code, 0x0102);
        }
    }
}

/// FC-059, SEC-07: keys that are gone open nothing, also after their slots were used again.
#[test]
fn fc_059_freed_keys_stay_dead() {
    let live = live();
    let keep: Vec<_> = (0..50).map(|_| live.pd.alloc(64, OPEN).unwrap()).collect();
    let mut dead = Vec::new();
    for _ in 0..2000 {
        let region = live.pd.alloc(64, OPEN).unwrap();
        dead.push((region.rkey(), region.addr()));
        region.deregister().unwrap();
    }
    let (mut peer, served) = connect(&live, 1);
    for region in &keep {
        peer.send(&peer::write(region.rkey(), region.addr(), b"alive"));
    }
    peer.send(&peer::send(1, b""));
    assert!(served.end.next_receive().is_success());
    assert!(keep.iter().all(|region| octets_of(region)[..5] == *b"alive"));
    for &(rkey, addr) in dead.iter().rev().take(100) {
        let (mut peer, _served) = connect(&live, 0);
        peer.send(&peer::write(rkey, addr, b"x"));
        assert_eq!(peer.hear_terminate().code, 0x1100);
    }
}

/// FC-061, SEC-04: while a peer streams Writes, memory is still once its key is gone.
#[test]
fn fc_061_deregistration_is_final() {
    let live = live();
    for round in 0..200u64 {
        let buffer = live.pd.register(vec![0u8; 4096], OPEN).unwrap();
        let (rkey, addr) = (buffer.region().rkey(), buffer.region().addr());
        let (mut peer, _served) = connect(&live, 0);
        let stop = AtomicBool::new(false);
        thread::scope(|threads| {
            threads.spawn(|| {
                let write = peer::write(rkey, addr, &[0xFF; 4096]);
                while !stop.load(Ordering::Relaxed) {
                    let octets = peer.fpdu(&write);
                    peer.say_perhaps(&octets);
                }
            });
            thread::sleep(Duration::from_micros(round * 37 % 1500));
            // The buffer comes back, and is this program's alone from here on.
            let mut octets = buffer.deregister();
            octets.fill(round.to_le_bytes()[0]);
            let before = octets.clone();
            thread::sleep(Duration::from_micros(500));
            let same = octets == before;
            stop.store(true, Ordering::Relaxed);
            assert!(same, "round {round}: an octet moved through a key that was gone");
        });
    }
}

/// FC-062, RDMAP-045, RDMAP-046: an invalidation that is refused leaves the key valid, and one that is not happens
/// before the receive completes.
#[test]
fn fc_062_check_first_then_invalidate() {
    let live = Live::new(DeviceConfig::default().strict_receive(true));
    let other_pd = live.device.alloc_pd();
    let elsewhere = other_pd.alloc(64, OPEN).unwrap();
    let local = live.pd.alloc(64, Access::LOCAL_WRITE).unwrap();
    let shared = live.pd.alloc(64, OPEN).unwrap();
    let mut bystander = live.bystander();
    let too_long = vec![1; iwarp_tests::live::RECEIVE + 1];
    for (name, stag, receives, payload, code) in [
        ("another domain's", elsewhere.rkey(), 1, &b"x"[..], 0x0109),
        ("unknown", 0x0bad_bad0, 1, b"x", 0x0209),
        ("without remote rights", local.rkey(), 1, b"x", 0x0102),
        ("no receive", shared.rkey(), 0, b"x", 0x1202),
        ("message too long", shared.rkey(), 1, &too_long, 0x1205),
    ] {
        let (mut peer, served) = connect(&live, receives);
        peer.send(&peer::send_invalidate(1, stag, payload));
        assert_eq!(peer.hear_terminate().code, code, "{name}");
        assert_eq!(peer.hear(), Heard::Fin, "{name}");
        drop(peer);
        served.closed();
        for region in [&elsewhere, &local, &shared] {
            assert!(region.is_valid(), "{name}");
        }
        bystander.goes_on();
    }
    // The key still works on another connection, which then revokes it.
    let (mut peer, served) = connect(&live, 2);
    peer.send(&peer::write(shared.rkey(), shared.addr(), b"works"));
    peer.send(&peer::send_invalidate(1, shared.rkey(), b"no more"));
    let completion = served.end.next_receive();
    assert_eq!(completion.invalidated_rkey, Some(shared.rkey()));
    assert!(!shared.is_valid());
    assert_eq!(octets_of(&shared)[..5], *b"works");
    peer.send(&peer::write(shared.rkey(), shared.addr(), b"again"));
    assert_eq!(peer.hear_terminate().code, 0x1100);
    assert_eq!(octets_of(&shared)[..5], *b"works");
}

/// FC-063: offsets beyond 4 GiB.
#[test]
fn fc_063_beyond_four_gibibytes() {
    let live = live();
    let border = 1usize << 32;
    let Ok(region) = live.pd.alloc(border + (2 << 20), OPEN) else {
        iwarp_tests::skip!("this machine gives no 4 GiB of address space");
    };
    let (mut peer, served) = connect(&live, 1);
    let payload: Vec<u8> = (0..60_000u32).map(|at| at.to_le_bytes()[0] ^ 0x55).collect();
    let start = border - 30_000;
    peer.send(&peer::write(region.rkey(), region.addr() + start as u64, &payload));
    peer.send(&peer::send(1, b""));
    assert!(served.end.next_receive().is_success());
    let mut got = vec![0; payload.len()];
    region.read_at(start, &mut got).unwrap();
    assert!(got == payload);
    peer.send(&read_of(&region, start as u64, 60_000).ulpdu(1));
    let mut back: Vec<u8> = Vec::new();
    while back.len() < payload.len() {
        back.extend(&peer.hear_ulpdu()[14..]);
    }
    assert!(back == payload);
    // Nothing landed at the same place below.
    let mut low = vec![0; 60_000];
    region.read_at(0, &mut low).unwrap();
    assert!(low.iter().all(|octet| *octet == 0));
}

/// FC-024: a thread that scribbles over the target of Writes causes no CRC error.
#[test]
fn fc_024_crc_over_octets_that_the_program_changes() {
    let live = live();
    let region = live.pd.alloc(65_536, OPEN).unwrap();
    let (mut peer, served) = connect(&live, 64);
    let stop = AtomicBool::new(false);
    thread::scope(|threads| {
        threads.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                region.fill(.., 0x11).unwrap();
            }
        });
        for msn in 1..=64 {
            for _ in 0..20 {
                peer.send(&peer::write(region.rkey(), region.addr(), &vec![0xEE; 30_000]));
            }
            peer.send(&peer::send(msn, b"mark"));
        }
        let marks = (0..64).map(|_| served.end.next_receive());
        let all_good = marks.filter(WorkCompletion::is_success).count() == 64;
        stop.store(true, Ordering::Relaxed);
        assert!(all_good);
    });
}

/// Design, promises: a source that changes while it is sent gives undefined data and a stream in order.
#[test]
fn a_changing_source_does_not_break_the_stream() {
    let live = live();
    let region = live.pd.alloc(65_536, OPEN).unwrap();
    let (mut peer, served) = connect(&live, 0);
    peer.send(&peer::write(0, 0, b""));
    let stop = AtomicBool::new(false);
    thread::scope(|threads| {
        threads.spawn(|| {
            let mut value = 0u8;
            while !stop.load(Ordering::Relaxed) {
                value = value.wrapping_add(1);
                region.fill(.., value).unwrap();
            }
        });
        let peers = iwarp_verbs::RemoteMemory { addr: 0, len: 1 << 20, rkey: 9 };
        for round in 0..50u32 {
            let write = SendRequest::write(round.into(), region.as_slice_all(), peers);
            served.end.qp.post_send(write).unwrap();
            peer.send(&read_of(&region, 0, 65_536).ulpdu(round + 1));
            let (mut written, mut read) = (0, 0);
            while written < 65_536 || read < 65_536 {
                // Each FPDU is checked, its CRC included.
                let ulpdu = peer.hear_ulpdu();
                match ulpdu[1] & 0xf {
                    opcode::WRITE => written += ulpdu.len() - 14,
                    _ => read += ulpdu.len() - 14,
                }
            }
            assert!(served.end.next_send().is_success());
        }
        stop.store(true, Ordering::Relaxed);
    });
}

/// RDMAP-072: a source that goes while its Response is being sent is reported with how far that was.
#[test]
fn a_source_that_goes_in_mid_response() {
    let live = live();
    let region = live.pd.alloc(64 << 20, OPEN).unwrap();
    let rkey = region.rkey();
    let (mut peer, _served) = connect(&live, 0);
    let request = read_of(&region, 0, 64 << 20);
    peer.send(&request.ulpdu(1));
    // More than the sockets hold is still to come.
    let first = peer.hear_ulpdu();
    assert_eq!(first[1] & 0xf, opcode::READ_RESPONSE);
    region.deregister().unwrap();
    let mut answered = (first.len() - 14) as u64;
    let terminate = loop {
        let ulpdu = peer.hear_ulpdu();
        match peer::Terminate::parse(&ulpdu) {
            Some(terminate) => break terminate,
            None => answered += (ulpdu.len() - 14) as u64,
        }
    };
    assert_eq!(terminate.code, 0x0100);
    let told: [u8; 28] = terminate.rdmap_header[..].try_into().unwrap();
    let ulpdu = [&[0; 18][..], &told].concat();
    let mut ulpdu = ulpdu;
    ulpdu[1] = 0x41;
    let told = ReadRequest::parse(&ulpdu).unwrap();
    assert_eq!(told.source_stag, rkey);
    assert_eq!(told.source_offset, request.source_offset + answered);
    assert_eq!(u64::from(told.length), u64::from(request.length) - answered);
    assert_eq!(told.sink_offset, request.sink_offset + answered);
}

/// DDP-053, RDMAP-042: a message that is too long touches nothing behind its receive.
#[test]
fn a_message_too_long_stays_inside_its_receive() {
    let live = live();
    let inbox = live.pd.alloc(256, Access::LOCAL_WRITE).unwrap();
    let end = live.end(0);
    end.qp.post_recv(RecvRequest::new(1, inbox.slice(64..128).unwrap())).unwrap();
    let (mut peer, served) =
        live.establish_end(Role::Responder, &peer::request(), ConnParam::default(), end);
    let header = iwarp_ddp::UntaggedHeader { last: false, ..peer::whole(opcode::SEND, 0, 1) };
    peer.send(&peer::untagged(header, &[0xFF; 60]));
    peer.send(&peer::untagged(
        iwarp_ddp::UntaggedHeader { last: true, offset: 60, ..header },
        &[0xFF; 5],
    ));
    assert_eq!(peer.hear_terminate().code, 0x1205);
    assert_eq!(served.end.next_receive().status, WcStatus::LocLenErr);
    let octets = octets_of(&inbox);
    assert!(octets[..64].iter().chain(&octets[128..]).all(|octet| *octet == 0));
}
