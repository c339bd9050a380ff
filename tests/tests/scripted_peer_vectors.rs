//! Every bad FPDU of the vectors against a live endpoint, in both roles, as the first FPDU of the connection and as a
//! later one. What has to come out each time: the exact Terminate, memory as it was, every posted request completed
//! once, and the other connections of the device alive.
#![allow(
    missing_docs,
    clippy::unwrap_used,
    clippy::cast_possible_truncation,
    reason = "test code; a panic is a failed test"
)]

use iwarp_mpa::StartupFrame;
use iwarp_tests::{
    live::{End, Live, Role},
    peer::{self, Heard, Peer, ReadRequest, opcode},
};
use iwarp_verbs::{
    Access, DeviceConfig, MemoryRegion, ProtectionDomain, QpState, SendRequest, WcStatus,
    cm::ConnParam,
};
use serde::Deserialize;

/// Octets that every region is filled with.
const FILL: u8 = 0x5A;
const REGION: usize = 4096;
const READ: usize = 100;

#[derive(Debug, Deserialize)]
struct File {
    vectors: Vec<Vector>,
}

#[derive(Debug, Deserialize)]
struct Vector {
    name: String,
    hex: String,
    expect: Expect,
    #[serde(default)]
    context: Context,
}

/// What is different from the receiver of the notes.
#[derive(Debug, Default, Deserialize)]
struct Context {
    rfc7306: Option<bool>,
}

impl Vector {
    fn extensions(&self) -> bool {
        self.context.rfc7306 != Some(false)
    }
}

#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum Expect {
    Terminate { layer: u16, etype: u16, code: u16, offending_fpdu: Option<usize> },
    Action { action: String },
}

fn vectors() -> Vec<Vector> {
    let file: File = serde_json::from_str(include_str!("vectors/negative.json")).unwrap();
    file.vectors
}

/// The receiver that the notes of the vectors describe.
struct Target {
    live: Live,
    _other_pd: ProtectionDomain,
    /// What the vectors call 0x00beef01, 02 and 03.
    regions: [MemoryRegion; 3],
    sink: MemoryRegion,
}

impl Target {
    fn new(extensions: bool) -> Self {
        // A Send without a receive is refused at once, as the vectors expect.
        let config = DeviceConfig::default().strict_receive(true).extensions(extensions);
        let live = Live::new(config);
        let other_pd = live.device.alloc_pd();
        let open = Access::LOCAL_WRITE | Access::REMOTE;
        let alloc = |pd: &ProtectionDomain, access| {
            let region = pd.alloc(REGION, access).unwrap();
            region.fill(.., FILL).unwrap();
            region
        };
        let regions =
            [alloc(&live.pd, open), alloc(&other_pd, open), alloc(&live.pd, Access::LOCAL_WRITE)];
        let sink = alloc(&live.pd, Access::LOCAL_WRITE);
        Self { live, _other_pd: other_pd, regions, sink }
    }

    /// The keys and offsets of a vector, in terms of this target.
    fn translate(&self, ulpdu: &mut [u8], read: Option<ReadRequest>) {
        let Some((&control, &rdmap)) = ulpdu.first().zip(ulpdu.get(1)) else { return };
        let kind = rdmap & 0x0f;
        if control & 0x80 != 0 && ulpdu.len() >= 14 {
            let (stag, offset) = self.tagged(ulpdu, 2, 6, kind, read);
            ulpdu[2..6].copy_from_slice(&stag.to_be_bytes());
            ulpdu[6..14].copy_from_slice(&offset.to_be_bytes());
        } else if kind == opcode::READ_REQUEST && ulpdu.len() >= 46 {
            let (stag, offset) = self.tagged(ulpdu, 34, 38, kind, None);
            ulpdu[34..38].copy_from_slice(&stag.to_be_bytes());
            ulpdu[38..46].copy_from_slice(&offset.to_be_bytes());
        } else if kind == opcode::ATOMIC_REQUEST && ulpdu.len() >= 38 {
            let (stag, offset) = self.address(word(ulpdu, 26), long(ulpdu, 30));
            ulpdu[26..30].copy_from_slice(&stag.to_be_bytes());
            ulpdu[30..38].copy_from_slice(&offset.to_be_bytes());
        } else if kind == opcode::SEND_INVALIDATE && ulpdu.len() >= 18 {
            let (stag, _) = self.address(word(ulpdu, 2), 0);
            ulpdu[2..6].copy_from_slice(&stag.to_be_bytes());
        }
    }

    fn tagged(
        &self,
        ulpdu: &[u8],
        stag_at: usize,
        offset_at: usize,
        kind: u8,
        read: Option<ReadRequest>,
    ) -> (u32, u64) {
        let (stag, offset) = (word(ulpdu, stag_at), long(ulpdu, offset_at));
        match read {
            Some(read) if kind == opcode::READ_RESPONSE => {
                let stag = if stag == 0x1234_5678 { read.sink_stag } else { stag };
                (stag, offset.wrapping_sub(0x2000).wrapping_add(read.sink_offset))
            }
            _ => self.address(stag, offset),
        }
    }

    fn address(&self, stag: u32, offset: u64) -> (u32, u64) {
        let (region, stag) = match stag {
            0x00be_ef01 => (&self.regions[0], self.regions[0].rkey()),
            0x00be_ef02 => (&self.regions[1], self.regions[1].rkey()),
            0x00be_ef03 => (&self.regions[2], self.regions[2].rkey()),
            // The right index and another key.
            0x00be_efff => (&self.regions[0], self.regions[0].rkey() ^ 0xff),
            other => (&self.regions[0], other),
        };
        // Offsets near the top are meant as they are.
        let near = offset < 0x1_0000;
        let moved = region.addr().wrapping_add(offset).wrapping_sub(0x1000);
        (stag, if near { moved } else { offset })
    }

    fn assert_unchanged(&self, name: &str, except: Option<(usize, usize)>) {
        for (number, region) in self.regions.iter().chain([&self.sink]).enumerate() {
            let mut octets = vec![0; region.len()];
            region.read_at(0, &mut octets).unwrap();
            let changed = octets.iter().enumerate().position(|(at, &octet)| {
                let allowed =
                    number == 0 && except.is_some_and(|(from, to)| (from..to).contains(&at));
                octet != FILL && !allowed
            });
            assert_eq!(changed, None, "{name}: octet of region {number} changed");
            region.fill(.., FILL).unwrap();
        }
    }
}

fn word(octets: &[u8], at: usize) -> u32 {
    u32::from_be_bytes(octets[at..at + 4].try_into().unwrap())
}

fn long(octets: &[u8], at: usize) -> u64 {
    u64::from_be_bytes(octets[at..at + 8].try_into().unwrap())
}

/// The ULPDUs of the vector.
fn ulpdus(vector: &Vector) -> Vec<Vec<u8>> {
    let octets = hex::decode(&vector.hex).unwrap();
    let mut rest = &octets[..];
    let mut all = Vec::new();
    while !rest.is_empty() {
        let length = usize::from(u16::from_be_bytes([rest[0], rest[1]]));
        all.push(rest[2..2 + length].to_vec());
        rest = &rest[(2 + length).next_multiple_of(4) + 4..];
    }
    all
}

/// The Terminate that has to come for this ULPDU, its headers included.
fn terminate_for(code: u16, ulpdu: &[u8]) -> peer::Terminate {
    let (layer, etype) = (code >> 12, code >> 8 & 0xf);
    // Without headers: what MPA found, and a ULPDU that has no whole DDP header.
    let with_headers = layer != 2 && code != 0x1000;
    let header = if ulpdu.first().is_some_and(|control| control & 0x80 != 0) { 14 } else { 18 };
    // RDMAP-072: the Read Request header too, where it is at fault.
    let read_request =
        layer == 0 && etype == 1 && ulpdu.get(1).is_some_and(|octet| octet & 0xf == 1);
    let headers = |range: std::ops::Range<usize>, wanted: bool| {
        if wanted { ulpdu[range].to_vec() } else { Vec::new() }
    };
    peer::Terminate {
        code,
        segment_length: with_headers.then(|| u16::try_from(ulpdu.len()).unwrap()),
        ddp_header: headers(0..header, with_headers),
        rdmap_header: headers(18..46, read_request),
    }
}

/// Octets of region 0 that a vector may change: those of its good segments.
fn placed_before(vector: &Vector) -> Option<(usize, usize)> {
    (vector.name == "write-second-segment-bad").then_some((0xf80, 0xfc0))
}

/// What has to become of the two receives and of the Read, if there is one.
fn statuses(name: &str) -> ([WcStatus; 2], WcStatus) {
    use WcStatus::{BadRespErr, LocLenErr, RemInvReqErr, Success, WrFlushErr};
    let receives = match name {
        "too-long-one-segment"
        | "too-long-second-segment"
        | "imm-0"
        | "imm-4"
        | "imm-7"
        | "imm-9" => [LocLenErr, WrFlushErr],
        "inv-unknown" | "inv-other-pd" | "inv-no-rights" => [RemInvReqErr, WrFlushErr],
        "no-buffer" => [Success, Success],
        _ => [WrFlushErr, WrFlushErr],
    };
    // EXT-17: with a number that is not due, it is no answer to anything.
    let request = if name == "atomic-resp-msn" { WrFlushErr } else { BadRespErr };
    (receives, request)
}

/// One vector on a connection of its own; whether it applies.
fn try_vector(target: &Target, vector: &Vector, role: Role, first: bool) -> bool {
    let name = &vector.name;
    let answers_a_read = name.starts_with("rresp-");
    let answers_an_atomic = name.starts_with("atomic-resp-");
    if (answers_a_read || answers_an_atomic) && first && role == Role::Responder {
        // MPA-029: there is no Read before the peer's first FPDU.
        return false;
    }
    let param = ConnParam::default().ird(2);
    let frame = StartupFrame { enhanced: Some(peer::depths(16, 2)), ..peer::request() };
    let (mut peer, served) = target.live.establish(role, &frame, param, 2);
    if !first {
        // Neither key nor offset of a Write without octets is looked at (DDP-030).
        peer.send(&peer::write(0, 0, b""));
    }
    let read = answers_a_read.then(|| outstanding_read(target, &served.end, &mut peer));

    if answers_an_atomic {
        outstanding_atomic(target, &served.end, &mut peer);
    }

    let mut sent = ulpdus(vector);
    for ulpdu in &mut sent {
        target.translate(ulpdu, read);
    }
    let octets = if name == "crc-bad" {
        let mut octets = peer.fpdu(&sent[0]);
        *octets.last_mut().unwrap() ^= 1;
        octets
    } else {
        sent.iter().flat_map(|ulpdu| peer.fpdu(ulpdu)).collect()
    };
    // In one piece, so that what is wrong only together arrives together.
    peer.say(&octets);

    let code = match &vector.expect {
        // D1, MPA-029: with nothing received that was good, not even a Terminate may be sent.
        _ if name == "crc-bad" && first && role == Role::Responder => 0,
        Expect::Terminate { layer, etype, code, .. } => layer << 12 | etype << 8 | code,
        // RDMAP-056: a Terminate is never answered by one.
        Expect::Action { action } if action == "close" => 0,
        // Its code was 0/0/00, which says nothing.
        Expect::Action { .. } => 0,
    };
    let mut heard = peer.hear_out();
    // Reads that were in order may have been answered before.
    heard.retain(
        |heard| !matches!(heard, Heard::Ulpdu(ulpdu) if ulpdu[1] & 0xf == opcode::READ_RESPONSE),
    );
    let circumstances = format!("{name}, {role:?}, first: {first}");
    if code == 0 {
        assert!(matches!(heard[..], [Heard::Fin | Heard::Reset]), "{circumstances}: {heard:?}");
    } else {
        let offending = match &vector.expect {
            Expect::Terminate { offending_fpdu: Some(number), .. } => *number,
            _ => 0,
        };
        let expected = terminate_for(code, &sent[offending]);
        let [Heard::Ulpdu(ulpdu), Heard::Fin] = &heard[..] else {
            panic!("{circumstances}: {heard:?} instead of {expected:?} and FIN")
        };
        // RDMAP-051, RDMAP-053
        assert_eq!(peer::Terminate::parse(ulpdu), Some(expected), "{circumstances}");
    }
    drop(peer);

    served.closed();
    assert_eq!(served.end.qp.state(), QpState::Err, "{circumstances}");
    let mut ended = served.end.drain();
    let (receives, failed) = statuses(name);
    let request = (answers_a_read || answers_an_atomic).then_some((READ_ID, failed));
    let expected: Vec<(u64, WcStatus)> = request.into_iter().chain((0..).zip(receives)).collect();
    let found: Vec<_> = ended.iter().map(|ended| (ended.wr_id, ended.status)).collect();
    assert_eq!(found, expected, "{circumstances}");
    ended.retain(|ended| !ended.is_success());
    for failed in ended {
        assert_eq!(failed.vendor_err, u32::from(code), "{circumstances}: {failed:?}");
    }
    true
}

const READ_ID: u64 = 77;

/// Posts a Read and takes the Request; the Response is up to the vector.
fn outstanding_read(target: &Target, end: &End, peer: &mut Peer) -> ReadRequest {
    let remote = iwarp_verbs::RemoteMemory { addr: 0x1000, len: READ as u64, rkey: 0x1234 };
    let sink = target.sink.slice(..READ).unwrap();
    end.qp.post_send(SendRequest::read(READ_ID, sink, remote)).unwrap();
    let request = ReadRequest::parse(&peer.hear_ulpdu()).expect("a Read Request");
    assert_eq!((request.length, request.source_stag), (READ as u32, 0x1234));
    request
}

/// Posts an Atomic and takes the Request; the Response is up to the vector.
fn outstanding_atomic(target: &Target, end: &End, peer: &mut Peer) {
    let remote = iwarp_verbs::RemoteMemory { addr: 0x1000, len: 8, rkey: 0x1234 };
    let sink = target.sink.slice(..8).unwrap();
    end.qp.post_send(SendRequest::fetch_add(READ_ID, sink, remote, 1)).unwrap();
    let request = peer.hear_ulpdu();
    assert_eq!((request[1] & 0xf, request.len()), (opcode::ATOMIC_REQUEST, 70));
}

/// DDP-024, DDP-015, DDP-022, DDP-023, DDP-050, DDP-051, DDP-052, DDP-053, DDP-054, DDP-055, DDP-056, DDP-057, DDP-058,
/// DDP-063, RDMAP-004, RDMAP-010, RDMAP-021, RDMAP-034, RDMAP-035, RDMAP-040, RDMAP-042, RDMAP-045, RDMAP-071, RDMAP-072,
/// RDMAP-074, RDMAP-075, RDMAP-078, RDMAP-081, SEC-01, SEC-03, REG-01, REG-02, EXT-02, EXT-08, EXT-13, EXT-17, EXT-19, EXT-20, EXT-21, EXT-30, FC-015, FC-016, FC-018
#[test]
fn every_negative_vector_gets_its_terminate() {
    let targets = [Target::new(true), Target::new(false)];
    let mut bystander = targets[0].live.bystander();
    let mut tried = 0;
    for vector in vectors() {
        let target = &targets[usize::from(!vector.extensions())];
        for role in Role::BOTH {
            for first in [true, false] {
                if try_vector(target, &vector, role, first) {
                    tried += 1;
                }
                target.assert_unchanged(&vector.name, placed_before(&vector));
                bystander.goes_on();
            }
        }
    }
    assert!(tried > 250, "{tried}");
}
