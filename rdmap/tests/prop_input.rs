//! Whatever a peer sends: no panic, no octet where none may go, and everything comes back.
#![allow(
    clippy::arithmetic_side_effects,
    clippy::cast_possible_truncation,
    clippy::indexing_slicing,
    reason = "a test"
)]

mod common;

use std::time::Duration;

use common::endpoint::{Endpoint, SEND, closed, outcomes, read, write};
use common::memory::{Region, TestMemory};
use common::peer::{Peer, request, seen};
use common::{config, ramp_of};
use iwarp_mpa::{Framing, Role, Rtr};
use iwarp_rdmap::{Need, Opcode, State, Terminate, TerminateCode};
use proptest::prelude::*;

const OPEN: u32 = 0x00be_ef01;
const SINK: u32 = 0x1234_5678;
/// Memory: open to the peer, sink of Reads, receives, and then what nobody may touch.
const READ_SINK: usize = 1024;
const RECEIVES: usize = 2048;
const GUARD: usize = 3072;

/// Something a peer may send.
#[derive(Clone, Debug)]
enum Piece {
    Send {
        last: bool,
        len: usize,
    },
    Write {
        offset: u64,
        len: usize,
    },
    Request {
        len: u32,
    },
    Response {
        len: usize,
        last: bool,
    },
    Terminate(Vec<u8>),
    /// Any ULPDU in a good frame; its first octets are mostly those of some message.
    Framed(Vec<u8>),
    /// A good message with some octets of its ULPDU changed.
    Bent {
        changes: Vec<(prop::sample::Index, u8)>,
        len: usize,
    },
    Raw(Vec<u8>),
}

fn piece() -> impl Strategy<Value = Piece> {
    let octets = |most| proptest::collection::vec(any::<u8>(), 0..most);
    let headed = (any::<bool>(), 0_u8..16, octets(80)).prop_map(|(tagged, opcode, mut ulpdu)| {
        let front = [if tagged { 0xc1 } else { 0x41 }, 0x40 | opcode];
        for (slot, octet) in ulpdu.iter_mut().zip(front) {
            *slot = octet;
        }
        Piece::Framed(ulpdu)
    });
    let changes = proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4);
    prop_oneof![
        4 => (any::<bool>(), 0_usize..100).prop_map(|(last, len)| Piece::Send { last, len }),
        4 => (0x1000_u64..0x1400, 0_usize..64).prop_map(|(offset, len)| Piece::Write { offset, len }),
        2 => (0_u32..900).prop_map(|len| Piece::Request { len }),
        2 => (0_usize..40, any::<bool>()).prop_map(|(len, last)| Piece::Response { len, last }),
        1 => octets(60).prop_map(Piece::Terminate),
        2 => headed,
        1 => octets(80).prop_map(Piece::Framed),
        3 => (changes, 0_usize..64).prop_map(|(changes, len)| Piece::Bent { changes, len }),
        1 => octets(200).prop_map(Piece::Raw),
    ]
}

/// Messages of the peer in their frames, with numbers that are due as long as nothing went wrong.
struct Script {
    peer: Peer,
    msn: u32,
    offset: u32,
    request: u32,
    answered: u64,
}

impl Script {
    fn octets(&mut self, piece: &Piece) -> Vec<u8> {
        match piece {
            Piece::Send { last, len } => {
                let octets = self.peer.send_part(self.msn, self.offset, &ramp_of(*len), *last);
                self.offset += *len as u32;
                if *last {
                    self.msn += 1;
                    self.offset = 0;
                }
                octets
            }
            Piece::Write { offset, len } => self.peer.write(OPEN, *offset, &ramp_of(*len), true),
            Piece::Request { len } => {
                let octets = self.peer.request(self.request, request(OPEN, 0x1000, *len));
                self.request += 1;
                octets
            }
            Piece::Response { len, last } => {
                let offset = 0x2000 + self.answered;
                self.answered = if *last { 0 } else { self.answered + *len as u64 };
                self.peer.response(SINK, offset, &ramp_of(*len), *last)
            }
            Piece::Terminate(octets) => {
                let header = [0x41, 0x47, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 1, 0, 0, 0, 0];
                self.peer.frame(&[&header[..], octets].concat())
            }
            Piece::Framed(ulpdu) => self.peer.frame(ulpdu),
            Piece::Bent { changes, len } => {
                let header = common::peer::tagged(Opcode::Write, OPEN, 0x1000, true);
                let mut ulpdu = [&header.to_bytes()[..], &ramp_of(*len)].concat();
                for (place, octet) in changes {
                    let place = place.index(ulpdu.len());
                    ulpdu[place] = *octet;
                }
                self.peer.frame(&ulpdu)
            }
            Piece::Raw(octets) => octets.clone(),
        }
    }
}

fn endpoint(role: Role, framing: Framing, rtr: Option<Rtr>, burst: usize) -> Endpoint {
    let mut config = config(role);
    config.framing = framing;
    config.rtr = rtr;
    config.input_burst = burst;
    let mut memory = TestMemory::new(4096);
    memory.bytes.fill(0xa5);
    memory.regions = vec![
        Region::new(OPEN, 0x1000, 0, 1024),
        Region::new(0x00be_ef02, 0x1000, GUARD, 1024).local(),
        Region::new(0x00be_ef03, 0x1000, GUARD, 1024).foreign(),
    ];
    for id in 0..4 {
        memory.post(1000 + id, RECEIVES + 256 * id as usize, 256);
    }
    let mut endpoint = Endpoint::new(config, memory);
    endpoint.submit(0, read(7, 0), READ_SINK, 100);
    endpoint.submit(1, SEND, 0, 10);
    endpoint.submit(2, read(7, 0), READ_SINK + 100, 30);
    endpoint.submit(3, write(9, 0), 0, 2000);
    endpoint
}

proptest! {
    /// SEC-03, SEC-22, SEC-23, MPA-074, RDMAP-068, DDP-031
    #[test]
    fn nothing_a_peer_sends_does_harm(
        responder: bool,
        crc: bool,
        markers: bool,
        rtr in prop_oneof![Just(None), Just(Some(Rtr::Send)), Just(Some(Rtr::Read))],
        burst in 1_usize..4,
        pieces in proptest::collection::vec(piece(), 0..20),
        step in prop_oneof![Just(1_usize), 2..50_usize, Just(10_000)],
        fin: bool,
    ) {
        let role = if responder { Role::Responder } else { Role::Initiator };
        let framing = Framing { send_markers: false, receive_markers: markers, crc };
        let mut endpoint = endpoint(role, framing, rtr, burst);
        let sends_markers = Framing { send_markers: markers, receive_markers: false, crc };
        let mut script = Script {
            peer: Peer::new(sends_markers),
            msn: 1,
            offset: 0,
            request: 1,
            answered: 0,
        };
        let octets: Vec<u8> = pieces.iter().flat_map(|piece| script.octets(piece)).collect();
        let mut events = Vec::new();
        let mut sent = endpoint.transmit();
        for chunk in octets.chunks(step) {
            let fed = endpoint.rx.len() + chunk.len();
            let input = endpoint.feed(chunk);
            prop_assert!(endpoint.rx.len() <= fed);
            match input.need {
                Need::More(octets) => prop_assert!(octets > endpoint.rx.len()),
                Need::Receive => prop_assert!(endpoint.stream.is_blocked()),
                Need::Nothing => prop_assert!(endpoint.rx.is_empty()),
                Need::Again => prop_assert!(false, "the endpoint goes on by itself"),
            }
            sent.extend(endpoint.transmit());
            events.extend(endpoint.events());
        }
        if fin {
            endpoint.eof();
        } else {
            endpoint.stream.disconnect(endpoint.now);
        }
        sent.extend(endpoint.transmit());
        // Whoever still waits for something waits no longer than this, three times over.
        for _ in 0..3 {
            endpoint.wait(Duration::from_secs(31));
            sent.extend(endpoint.transmit());
        }
        events.extend(endpoint.events());

        prop_assert_eq!(endpoint.stream.state(), State::Closed);
        prop_assert!(closed(&events).is_some());
        let memory = &endpoint.memory.bytes;
        prop_assert!(memory[GUARD..].iter().all(|octet| *octet == 0xa5));
        prop_assert!(memory[READ_SINK + 130..RECEIVES].iter().all(|octet| *octet == 0xa5));
        let mut ids: Vec<_> = outcomes(&events).iter().map(|(id, _)| *id).collect();
        ids.sort_unstable();
        let expected: Vec<_> = (0..4).chain(endpoint.memory.taken.iter().copied()).collect();
        prop_assert_eq!(ids, expected);
        // What this side sent is in order, up to the last octet.
        if crc {
            let fpdus = seen(&sent);
            let terminates = fpdus.iter().filter(|fpdu| fpdu.opcode == Opcode::Terminate).count();
            prop_assert!(terminates <= 1);
            if terminates == 1 {
                prop_assert_eq!(fpdus.last().map(|fpdu| fpdu.opcode), Some(Opcode::Terminate));
            }
        }
    }

    /// MPA-058, MPA-083: one octet of a CRC-protected stream changes, and nothing behind that place has any
    /// effect.
    #[test]
    fn a_changed_octet_is_the_end(place: prop::sample::Index, change in 1_u8..=255) {
        let framing = Framing { send_markers: false, receive_markers: false, crc: true };
        let mut peer = Peer::new(framing);
        let messages: Vec<Vec<u8>> =
            (0..8_u64).map(|i| peer.write(OPEN, 0x1000 + 16 * i, &[i as u8; 16], true)).collect();
        let mut octets = messages.concat();
        let place = place.index(octets.len());
        octets[place] ^= change;
        let mut endpoint = endpoint(Role::Initiator, framing, None, 256);
        endpoint.feed(&octets);
        endpoint.eof();
        let whole = place / 36;
        let expected: Vec<u8> = (0..1024)
            .map(|at| if at / 16 < whole { (at / 16) as u8 } else { 0xa5 })
            .collect();
        prop_assert!(endpoint.memory.bytes[..1024] == expected);
        prop_assert!(endpoint.stream.state() != State::Full);
        let sent = seen(&endpoint.transmit());
        // A changed length may leave the stream waiting for octets that never come.
        if let Some(last) = sent.last().filter(|last| last.opcode == Opcode::Terminate) {
            let terminate = Terminate::parse(&last.payload).expect("a Terminate");
            prop_assert_eq!(terminate.code, TerminateCode::CRC);
        }
    }
}
