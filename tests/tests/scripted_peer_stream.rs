//! The FPDU stream against a scripted peer: any cut, any length, any order of segments.
#![allow(
    missing_docs,
    clippy::unwrap_used,
    clippy::cast_possible_truncation,
    reason = "test code; a panic is a failed test"
)]

use std::{collections::VecDeque, thread, time::Duration};

use iwarp_ddp::UntaggedHeader;
use iwarp_mpa::{FpduLimit, RtrTypes, StartupFrame};
use iwarp_tests::{
    live::{End, Live, QUIET, Role, Served},
    peer::{self, Heard, Peer, ReadRequest, opcode, whole},
};
use iwarp_verbs::{
    Access, DeviceConfig, MemoryRegion, RecvRequest, RemoteMemory, SendRequest, WcFlags, WcStatus,
    cm::ConnParam,
};
use socket2::SockRef;

fn live() -> Live {
    Live::new(DeviceConfig::default())
}

fn connect(live: &Live, role: Role, receives: u32) -> (Peer, Served) {
    live.establish(role, &peer::request(), ConnParam::default(), receives)
}

fn open_region(live: &Live, octets: usize) -> MemoryRegion {
    let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ;
    live.pd.alloc(octets, access).unwrap()
}

fn ramp(octets: usize) -> Vec<u8> {
    (0..octets).map(|at| (at + (at >> 8)).to_le_bytes()[0]).collect()
}

/// FC-003, MPA-074, MPA-076: an FPDU in two pieces is complete with its last octet, without any later traffic.
#[test]
fn fc_003_stall_at_every_cut() {
    let live = live();
    let (mut peer, served) = connect(&live, Role::Responder, 0);
    let inbox = live.pd.alloc(2048, Access::LOCAL_WRITE).unwrap();
    let mut msn = 0;
    for length in (1..=8).chain(1457..=1464) {
        let fpdu_len = (2 + 18 + length as usize).next_multiple_of(4) + 4;
        // All cuts of short ones; of long ones those around the headers and the trailer, and some between.
        let cuts = (1..fpdu_len).filter(|cut| *cut < 32 || *cut + 12 > fpdu_len || cut % 97 == 0);
        for cut in cuts {
            msn += 1;
            let payload = ramp(length as usize);
            let room = inbox.as_slice_all();
            served.end.qp.post_recv(RecvRequest::new(msn.into(), room)).unwrap();
            let octets = peer.fpdu(&peer::send(msn, &payload));
            assert_eq!(octets.len(), fpdu_len);
            peer.say(&octets[..cut]);
            thread::sleep(Duration::from_micros(200));
            peer.say(&octets[cut..]);
            let completion = served.end.next_receive();
            assert_eq!((completion.wr_id, completion.byte_len), (msn.into(), length), "cut {cut}");
            let mut got = vec![0; length as usize];
            inbox.read_at(0, &mut got).unwrap();
            assert_eq!(got, payload, "length {length}, cut {cut}");
        }
    }
}

/// MPA-074: many FPDUs in one write, and one octet a write.
#[test]
fn any_segmentation_will_do() {
    let live = live();
    for piece in [1, 3, 17, 1 << 20] {
        let (mut peer, served) = connect(&live, Role::Responder, 64);
        let octets: Vec<u8> =
            (1..=64).flat_map(|msn| peer.fpdu(&peer::send(msn, &ramp(37)))).collect();
        for octets in octets.chunks(piece) {
            peer.say(octets);
        }
        for id in 0..64 {
            let completion = served.end.next_receive();
            assert_eq!(completion.wr_id, id);
            assert_eq!(served.end.received(&completion), ramp(37));
        }
    }
}

/// FC-015, SEC-23, DDP-024: for every opcode, every length below that of its header.
#[test]
fn fc_015_segments_shorter_than_their_headers() {
    let live = live();
    let region = open_region(&live, 4096);
    let mut bystander = live.bystander();
    for kind in 0..16u8 {
        for (control, ddp_header) in [(0xC1u8, 14), (0x41, 18)] {
            let mut ulpdu = vec![0u8; ddp_header];
            ulpdu[..2].copy_from_slice(&[control, 0x40 | kind]);
            if control == 0xC1 {
                ulpdu[2..6].copy_from_slice(&region.rkey().to_be_bytes());
                ulpdu[6..14].copy_from_slice(&region.addr().to_be_bytes());
            } else {
                ulpdu[13] = 1;
            }
            for length in 0..ddp_header {
                let (mut peer, served) = connect(&live, Role::Responder, 1);
                peer.send(&ulpdu[..length]);
                let terminate = peer.hear_terminate();
                assert_eq!(terminate.code, 0x1000, "opcode {kind}, {length} octets");
                assert_eq!(peer.hear(), Heard::Fin);
                drop(peer);
                served.closed();
                let status = served.end.next_receive().status;
                assert_eq!(status, WcStatus::WrFlushErr);
            }
        }
        bystander.goes_on();
    }
    // RDMAP-081: the Read Request's own header, octet by octet.
    let read = ReadRequest {
        sink_stag: 1,
        sink_offset: 0,
        length: 4,
        source_stag: region.rkey(),
        source_offset: region.addr(),
    };
    for length in 18..46 {
        let (mut peer, _served) = connect(&live, Role::Responder, 0);
        peer.send(&read.ulpdu(1)[..length]);
        assert_eq!(peer.hear_terminate().code, 0x02FF, "{length} octets");
    }
    let mut octets = vec![1; 4096];
    region.read_at(0, &mut octets).unwrap();
    assert!(octets.iter().all(|octet| *octet == 0));
    // The smallest legal segments are accepted.
    let (mut peer, served) = connect(&live, Role::Responder, 1);
    peer.send(&peer::write(0, 0, b""));
    peer.send(&ReadRequest { length: 0, ..read }.ulpdu(1));
    peer.send(&peer::send(1, b""));
    assert!(served.end.next_receive().is_success());
    assert_eq!(peer.hear_ulpdu()[1] & 0xf, opcode::READ_RESPONSE);
}

/// What a peer answers with, given the Requests of two Reads of 4,096 octets.
type Answer = fn(&[ReadRequest]) -> Vec<Vec<u8>>;

/// FC-017, RDMAP-034, RDMAP-035, SEC-03: a Response that is longer, shorter, or of another Read.
#[test]
fn fc_017_responses_that_do_not_fit_the_read() {
    let live = live();
    let sink = live.pd.alloc(3 * 4096, Access::LOCAL_WRITE).unwrap();
    let remote = RemoteMemory { addr: 0x1000, len: 1 << 20, rkey: 0x55 };
    let post = |end: &End, id, from: usize| {
        let part = sink.slice(from..from + 4096).unwrap();
        end.qp.post_send(SendRequest::read(id, part, remote)).unwrap();
    };
    let answers: [(&str, Answer); 6] = [
        ("4,096 octets, not last, and as many again", |r| {
            let (stag, to) = (r[0].sink_stag, r[0].sink_offset);
            vec![
                peer::tagged(opcode::READ_RESPONSE, false, stag, to, &[1; 4096]),
                peer::tagged(opcode::READ_RESPONSE, true, stag, to + 4096, &[1; 4096]),
            ]
        }),
        ("4,097 octets in one", |r| {
            vec![peer::read_response(r[0].sink_stag, r[0].sink_offset, &[1; 4097])]
        }),
        ("4,095 octets and the last", |r| {
            vec![peer::read_response(r[0].sink_stag, r[0].sink_offset, &[1; 4095])]
        }),
        ("from one octet further on", |r| {
            vec![peer::read_response(r[0].sink_stag, r[0].sink_offset + 1, &[1; 4095])]
        }),
        ("of the second Read first", |r| {
            vec![peer::read_response(r[1].sink_stag, r[1].sink_offset, &[1; 4096])]
        }),
        ("a hole", |r| {
            let (stag, to) = (r[0].sink_stag, r[0].sink_offset);
            vec![
                peer::tagged(opcode::READ_RESPONSE, false, stag, to, &[1; 1024]),
                peer::tagged(opcode::READ_RESPONSE, true, stag, to + 2048, &[1; 3072]),
            ]
        }),
    ];
    for (name, answer) in answers {
        sink.fill(.., 0).unwrap();
        let (mut peer, served) = connect(&live, Role::Initiator, 0);
        post(&served.end, 1, 4096);
        post(&served.end, 2, 8192);
        let reads: Vec<_> = (0..2)
            .map(|_| ReadRequest::parse(&peer.hear_ulpdu()).expect("a Read Request"))
            .collect();
        let fpdus: Vec<u8> = answer(&reads).iter().flat_map(|ulpdu| peer.fpdu(ulpdu)).collect();
        peer.say(&fpdus);
        let code = peer.hear_terminate().code;
        // DDP: base or bounds; the second Read's STag is none that is due.
        assert_eq!(
            code,
            if name == "of the second Read first" { 0x1100 } else { 0x1101 },
            "{name}"
        );
        assert_eq!(peer.hear(), Heard::Fin, "{name}");
        drop(peer);
        served.closed();
        let ended: Vec<_> = served.end.drain().iter().map(|it| (it.wr_id, it.status)).collect();
        assert_eq!(ended, [(1, WcStatus::BadRespErr), (2, WcStatus::WrFlushErr)], "{name}");
        // Nothing outside the first sink, before or behind.
        let mut octets = vec![1; 3 * 4096];
        sink.read_at(0, &mut octets).unwrap();
        assert!(octets[..4096].iter().all(|octet| *octet == 0), "{name}");
        assert!(octets[8192..].iter().all(|octet| *octet == 0), "{name}");
    }

    // A Response when no Read is pending.
    let (mut peer, _served) = connect(&live, Role::Initiator, 0);
    peer.send(&peer::read_response(sink.rkey(), sink.addr(), &[1; 64]));
    assert_eq!(peer.hear_terminate().code, 0x1100);
}

/// FC-018, DDP-022, DDP-023, DDP-052: message numbers and offsets that are not the next ones.
#[test]
fn fc_018_msn_and_mo_bookkeeping() {
    let live = live();
    let of = |msn, offset, last| UntaggedHeader { last, offset, ..whole(opcode::SEND, 0, msn) };
    // The good FPDUs before, the bad one, the code.
    let cases: [(&str, Vec<UntaggedHeader>, UntaggedHeader, u16); 6] = [
        ("MSN 0 first", vec![], of(0, 0, true), 0x1203),
        ("MSN 2 first", vec![], of(2, 0, true), 0x1203),
        ("a repeat", vec![of(1, 0, true)], of(1, 0, true), 0x1203),
        ("a gap in MSN", vec![of(1, 0, true)], of(3, 0, true), 0x1203),
        ("a gap in MO", vec![of(1, 0, false)], of(1, 16, true), 0x1204),
        ("MO one too far", vec![of(1, 0, false)], of(1, 9, true), 0x1204),
    ];
    for (name, before, bad, code) in cases {
        let (mut peer, served) = connect(&live, Role::Responder, 4);
        for header in &before {
            peer.send(&peer::untagged(*header, &[1; 8]));
        }
        peer.send(&peer::untagged(bad, &[1; 8]));
        let terminate = peer.hear_terminate();
        assert_eq!(terminate.code, code, "{name}");
        assert_eq!(terminate.ddp_header, bad.to_bytes(), "{name}");
        drop(peer);
        served.closed();
        let good = before.iter().filter(|header| header.last).count();
        let ended = served.end.drain();
        assert_eq!(ended.iter().filter(|it| it.is_success()).count(), good, "{name}");
        assert_eq!(ended.len(), 4, "{name}");
    }
}

/// FC-019, RDMAP-040, RDMAP-044: four kinds of Send on the wire, and what they are at the receiver.
#[test]
fn fc_019_opcodes_match_the_verbs() {
    let live = live();
    let (mut peer, served) = connect(&live, Role::Initiator, 4);
    let end = &served.end;
    let plain = |id| SendRequest::send_inline(id, b"x");
    let requests = [
        (plain(0), opcode::SEND, 0),
        (plain(1).solicited(), opcode::SEND_SOLICITED, 0),
        (plain(2).invalidate(0xABCD_EF01), opcode::SEND_INVALIDATE, 0xABCD_EF01),
        (plain(3).solicited().invalidate(7), opcode::SEND_SOLICITED_INVALIDATE, 7u32),
    ];
    for (msn, (request, kind, stag)) in (1u32..).zip(requests) {
        end.qp.post_send(request).unwrap();
        let expected = UntaggedHeader { rsvd_ulp_word: stag, ..whole(kind, 0, msn) };
        assert_eq!(peer.hear_ulpdu(), peer::untagged(expected, b"x"));
    }
    // The other way round.
    let mine = open_region(&live, 64);
    for (msn, kind, stag) in [
        (1, opcode::SEND, 0),
        (2, opcode::SEND_SOLICITED, 0xFFFF_FFFF),
        (3, opcode::SEND_INVALIDATE, mine.rkey()),
        (4, opcode::SEND_SOLICITED_INVALIDATE, mine.rkey()),
    ] {
        let header = UntaggedHeader { rsvd_ulp_word: stag, ..whole(kind, 0, msn) };
        peer.send(&peer::untagged(header, b"y"));
        let completion = end.next_receive();
        assert!(completion.is_success(), "{completion:?}");
        let invalidates =
            kind == opcode::SEND_INVALIDATE || kind == opcode::SEND_SOLICITED_INVALIDATE;
        assert_eq!(completion.invalidated_rkey, invalidates.then_some(mine.rkey()));
        assert_eq!(completion.flags.contains(WcFlags::WITH_INV), invalidates);
        // RDMAP-005: in the others the field means nothing.
        assert_eq!(mine.is_valid(), !invalidates && msn < 3);
    }
}

/// FC-021: the longest ULPDU that the length field can say, and the longest that markers can be counted in.
#[test]
fn fc_021_longest_ulpdu() {
    let live = live();
    let region = open_region(&live, 1 << 20);
    for (markers, ulpdu) in [(false, 65_535), (true, 64_768)] {
        let param = ConnParam::default().markers(markers);
        let (mut peer, served) = live.establish(Role::Responder, &peer::request(), param, 1);
        region.fill(.., 0).unwrap();
        let payload = ramp(ulpdu - 14);
        peer.send(&peer::write(region.rkey(), region.addr(), &payload));
        peer.send(&peer::send(1, b""));
        assert!(served.end.next_receive().is_success(), "{markers}");
        let mut got = vec![0; payload.len() + 1];
        region.read_at(0, &mut got).unwrap();
        assert!(got[..payload.len()] == payload[..] && got[payload.len()] == 0, "{markers}");
    }
}

/// FC-021, MPA-041, MPA-042, MPA-043, DDP-025, DDP-028: FPDUs that are sent stay within the limit of the connection.
#[test]
fn fpdus_are_no_larger_than_the_limit() {
    let live = live();
    let source = live.pd.alloc(1 << 20, Access::empty()).unwrap();
    let octets: Vec<u8> = ramp(1 << 20);
    source.write_at(0, &octets).unwrap();
    let peers = RemoteMemory { addr: 0x1000, len: 1 << 20, rkey: 9 };
    for limit in [FpduLimit::Octets(1460), FpduLimit::Octets(16_384), FpduLimit::Emss] {
        let param = ConnParam::default().fpdu_limit(limit);
        let listener = peer::PeerListener::bind();
        listener.limit_segments(8192);
        let (mut peer, served) = Live::connect_to(&listener, &peer::request(), param, live.end(0));
        let emss = SockRef::from(peer.stream()).tcp_mss().unwrap();
        assert!(emss <= 8192);
        served.end.qp.post_send(SendRequest::write(1, source.as_slice_all(), peers)).unwrap();
        let (mut got, mut longest) = (Vec::new(), 0);
        loop {
            let ulpdu = peer.hear_ulpdu();
            longest = longest.max((2 + ulpdu.len()).next_multiple_of(4) + 4);
            assert_eq!(ulpdu[6..14], (0x1000 + got.len() as u64).to_be_bytes());
            got.extend_from_slice(&ulpdu[14..]);
            if ulpdu[0] & 0x40 != 0 {
                break;
            }
        }
        assert!(got == octets, "{limit:?}");
        // Of a limit below one segment the segment counts: smaller pieces would help nobody.
        let most = match limit {
            FpduLimit::Octets(octets) => emss.max(octets),
            FpduLimit::Emss => emss,
        };
        assert!(longest <= (most as usize).min(64_776), "{limit:?}: {longest}, EMSS {emss}");
    }
}

/// FC-022, DDP-026: many elements, a peer that reads in small gulps, octets as they were.
#[test]
fn fc_022_scattered_elements_and_a_slow_reader() {
    let live = live();
    let lengths = [1, 4093, 4097, 65_537];
    let gap = 64;
    let memory = live.pd.alloc(1 << 20, Access::empty()).unwrap();
    memory.fill(.., 0xEE).unwrap();
    let mut expected = Vec::new();
    let (mut at, mut elements) = (0, Vec::new());
    for length in lengths {
        let octets: Vec<u8> = ramp(length).iter().map(|octet| octet & 0x7f).collect();
        memory.write_at(at, &octets).unwrap();
        elements.push(memory.slice(at..at + length).unwrap());
        expected.extend(octets);
        at += length + gap;
    }
    for (crc, markers) in [(true, false), (false, false), (true, true)] {
        let frame = StartupFrame { crc, markers, ..peer::request() };
        let param = ConnParam::default().crc(crc);
        let (mut peer, served) = live.establish(Role::Initiator, &frame, param, 0);
        let peers = RemoteMemory { addr: 0x10_0000, len: 1 << 30, rkey: 9 };
        let rounds = 50;
        for id in 0..rounds {
            served.end.qp.post_send(SendRequest::write(id, elements.clone(), peers)).unwrap();
        }
        for _ in 0..rounds {
            let mut got: Vec<u8> = Vec::new();
            loop {
                let ulpdu = peer.hear_ulpdu();
                assert_eq!(ulpdu[6..14], (0x10_0000 + got.len() as u64).to_be_bytes());
                got.extend(&ulpdu[14..]);
                if ulpdu[0] & 0x40 != 0 {
                    break;
                }
            }
            assert!(got == expected, "crc {crc}, markers {markers}");
            thread::sleep(Duration::from_micros(200));
        }
        for id in 0..rounds {
            assert_eq!(served.end.next_send().wr_id, id);
        }
    }
}

/// FC-025, RDMAP-062, ORD-13: fenced requests wait for all Reads before them, and no more Reads than ORD are open.
#[test]
fn fc_025_fence_and_full_read_queue() {
    let live = live();
    let frame = StartupFrame { enhanced: Some(peer::depths(2, 2)), ..peer::request() };
    let param = ConnParam::default().ord(2);
    let (mut peer, served) = live.establish(Role::Initiator, &frame, param, 0);
    let sink = live.pd.alloc(64, Access::LOCAL_WRITE).unwrap();
    let remote = RemoteMemory { addr: 0x1000, len: 64, rkey: 5 };
    let mut requests = Vec::new();
    for half in 0..2u64 {
        for read in 0..8 {
            let part = sink.slice(..4).unwrap();
            requests.push(SendRequest::read(half * 9 + read, part, remote));
        }
        let fenced = match half {
            0 => SendRequest::send_inline(8, b"fenced"),
            _ => SendRequest::write_inline(17, b"fenced", remote),
        };
        requests.push(fenced.fence());
    }
    served.end.qp.post_send_list(requests).unwrap();

    let (mut open, mut seen) = (VecDeque::new(), 0);
    while seen < 18 || !open.is_empty() {
        let fenced = seen == 8 || seen == 17;
        let may_come = seen < 18 && if fenced { open.is_empty() } else { open.len() < 2 };
        if may_come {
            let read = ReadRequest::parse(&peer.hear_ulpdu());
            assert_eq!(read.is_none(), fenced, "request {seen}");
            open.extend(read);
            seen += 1;
            continue;
        }
        assert!(peer.is_silent_for(Duration::from_millis(10)), "behind request {seen}");
        if let Some(read) = open.pop_front() {
            peer.send(&peer::read_response(read.sink_stag, read.sink_offset, b"data"));
        }
    }
    for id in 0..18 {
        let completion = served.end.next_send();
        assert_eq!((completion.wr_id, completion.status), (id, WcStatus::Success));
    }
}

/// FC-026: the key of a Read's sink on the wire is good for the Response and for nothing else.
#[test]
fn fc_026_the_sink_of_a_read_is_no_way_in() {
    let live = live();
    let sink = live.pd.alloc(64, Access::LOCAL_WRITE).unwrap();
    let remote = RemoteMemory { addr: 0x1000, len: 64, rkey: 5 };
    for after in [false, true] {
        let (mut peer, served) = connect(&live, Role::Initiator, 0);
        sink.fill(.., 0).unwrap();
        let part = sink.slice(..16).unwrap();
        served.end.qp.post_send(SendRequest::read(1, part, remote)).unwrap();
        let read = ReadRequest::parse(&peer.hear_ulpdu()).unwrap();
        assert_ne!(read.sink_stag, sink.rkey());
        if after {
            peer.send(&peer::read_response(read.sink_stag, read.sink_offset, &[7; 16]));
            assert!(served.end.next_send().is_success());
        }
        peer.send(&peer::write(read.sink_stag, read.sink_offset, &[9; 16]));
        assert_eq!(peer.hear_terminate().code, 0x1100);
        let mut octets = [1; 64];
        sink.read_at(0, &mut octets).unwrap();
        assert!(octets[..16] == [if after { 7 } else { 0 }; 16] && octets[16..] == [0; 48]);
    }
}

/// FC-027, RDMAP-025, RDMAP-027, DDP-030: a Read of no octets, behind a Read as RTR, with no key to speak of.
#[test]
fn fc_027_zero_byte_reads() {
    let live = live();
    let frame = StartupFrame {
        enhanced: Some(iwarp_mpa::Enhanced {
            peer_to_peer: true,
            rtr: RtrTypes::READ,
            ..peer::depths(4, 4)
        }),
        ..peer::reply()
    };
    let listener = peer::PeerListener::bind();
    let end = live.end(0);
    let connecting =
        iwarp_verbs::cm::connect(listener.addr(), &end.qp, ConnParam::default()).unwrap();
    let (mut peer, _) = listener.establish(&frame);
    let _connection = connecting.wait(iwarp_tests::child::GUARD).unwrap();
    let rtr = ReadRequest::parse(&peer.hear_ulpdu()).expect("a Read as RTR");
    assert_eq!(rtr.length, 0);
    let nowhere = RemoteMemory { addr: 0, len: 0, rkey: 0 };
    let garbage = RemoteMemory { addr: u64::MAX, len: 0, rkey: 0xDEAD_BEEF };
    end.qp.post_send(SendRequest::read(1, (), nowhere)).unwrap();
    end.qp.post_send(SendRequest::read(2, (), garbage)).unwrap();
    peer.send(&peer::read_response(rtr.sink_stag, rtr.sink_offset, b""));
    for id in 1..=2 {
        let read = ReadRequest::parse(&peer.hear_ulpdu()).unwrap();
        peer.send(&peer::read_response(read.sink_stag, read.sink_offset, b""));
        let completion = end.next_send();
        assert_eq!(
            (completion.wr_id, completion.status, completion.byte_len),
            (id, WcStatus::Success, 0)
        );
    }
    thread::sleep(QUIET);
    assert!(end.drain().is_empty(), "FC-036: the RTR is no request of the program's");
}
