//! Payload that goes straight into its sink: nobody can tell, except by the time it takes.
#![allow(
    clippy::arithmetic_side_effects,
    clippy::cast_possible_truncation,
    clippy::indexing_slicing,
    reason = "a test"
)]

mod common;

use std::time::Duration;

use common::endpoint::{Endpoint, OPEN, SEND, SINK, read, terminated};
use common::memory::{Region, TestMemory};
use common::peer::{Peer, untagged};
use common::{config, ramp_of};
use iwarp_ddp::{Stag, TAGGED_HEADER_LEN};
use iwarp_mpa::{Framing, Role};
use iwarp_rdmap::{Initiator, LAST_OCTETS, Need, Opcode, State, TerminateCode};
use proptest::prelude::*;

const BARE: Framing = Framing { send_markers: false, receive_markers: false, crc: false };

/// Memory: open to the peer, sinks of two Reads, receives.
const OPEN_LEN: usize = 4096;
const READS: [(usize, usize); 2] = [(4096, 1500), (5596, 700)];
const RECEIVES: usize = 6296;
const LEN: usize = RECEIVES + 4 * 1000;

fn endpoint(framing: Framing) -> Endpoint {
    let mut config = config(Role::Initiator);
    config.framing = framing;
    let mut memory = TestMemory::new(LEN);
    memory.regions = vec![Region::new(OPEN, 0x1000, 0, OPEN_LEN as u64)];
    for id in 0..4 {
        memory.post(1000 + id, RECEIVES + 1000 * id as usize, 1000);
    }
    let mut endpoint = Endpoint::new(config, memory);
    for (id, (at, len)) in (0..).zip(READS) {
        endpoint.submit(id, read(7, 0), at, len);
    }
    endpoint.submit(2, SEND, 0, 10);
    endpoint.transmit();
    endpoint
}

/// A segment of the peer.
#[derive(Clone, Debug)]
enum Piece {
    /// Inside of the open memory, or partly not.
    Write {
        offset: u64,
        len: usize,
        last: bool,
    },
    /// With an `STag` that names nothing.
    Astray {
        len: usize,
    },
    Send {
        len: usize,
    },
    /// Tells the length of the Write before it.
    Immediate,
    /// The next part of the response that is due, which may be too long.
    Response {
        len: usize,
    },
}

fn piece() -> impl Strategy<Value = Piece> {
    prop_oneof![
        12 => (0x1000_u64..0x1900, 0_usize..1500, any::<bool>())
            .prop_map(|(offset, len, last)| Piece::Write { offset, len, last }),
        1 => (0x1000_u64..0x2010, 0_usize..1500)
            .prop_map(|(offset, len)| Piece::Write { offset, len, last: true }),
        1 => (0_usize..600).prop_map(|len| Piece::Astray { len }),
        3 => (0_usize..300).prop_map(|len| Piece::Send { len }),
        2 => Just(Piece::Immediate),
        6 => (0_usize..900).prop_map(|len| Piece::Response { len }),
    ]
}

fn wire(framing: Framing, pieces: &[Piece]) -> Vec<u8> {
    let mut peer = Peer::new(framing);
    let (mut msn, mut read, mut answered) = (1, 0, 0);
    let mut seed = 0_u8;
    let octets = |piece: &Piece| {
        seed = seed.wrapping_add(41);
        let payload = |len| ramp_of(len).iter().map(|octet| octet ^ seed).collect::<Vec<_>>();
        match *piece {
            Piece::Write { offset, len, last } => peer.write(OPEN, offset, &payload(len), last),
            Piece::Astray { len } => peer.write(0x77, 0x1000, &payload(len), true),
            Piece::Send { len } => {
                msn += 1;
                peer.send(msn - 1, &payload(len))
            }
            Piece::Immediate => {
                msn += 1;
                peer.untagged(untagged(Opcode::Immediate, msn - 1), &payload(8))
            }
            Piece::Response { len } => {
                let owed = READS.get(read).map_or(0, |&(_, len)| len) - answered;
                let last = len >= owed;
                // Most of those that are too long are cut to what is owed.
                let len = if len % 8 > 0 { len.min(owed) } else { len };
                let octets = peer.response(SINK, 0x2000 + answered as u64, &payload(len), last);
                (read, answered) = if last { (read + 1, 0) } else { (read, answered + len) };
                octets
            }
        }
    };
    pieces.iter().flat_map(octets).collect()
}

/// Octets that the stream waits for, or that there is something else it waits for.
fn missing(endpoint: &Endpoint) -> Result<usize, Option<Need>> {
    match endpoint.need {
        Some(Need::More(octets)) => Ok(octets - endpoint.rx.len()),
        other => Err(other),
    }
}

proptest! {
    /// Any cut of any stream, whatever goes wrong in it and when: the same octets in memory, the same events,
    /// answers, counters and deadlines.
    #[test]
    fn straight_or_through_the_buffer_is_the_same(
        pieces in proptest::collection::vec(piece(), 1..12),
        cuts in proptest::collection::vec(1_usize..700, 1..12),
        // After so many parts the memory is revoked.
        revoked in proptest::option::weighted(0.3, 0_usize..20),
        fin: bool,
    ) {
        let (mut plain, mut straight) = (endpoint(BARE), endpoint(BARE));
        let wire = wire(BARE, &pieces);
        let mut rest = &wire[..];
        let mut frozen = None;
        for (index, &len) in cuts.iter().cycle().enumerate() {
            if rest.is_empty() {
                break;
            }
            if revoked == Some(index) {
                for endpoint in [&mut plain, &mut straight] {
                    endpoint.memory.regions[0].valid = false;
                }
                frozen = Some(straight.memory.bytes[..OPEN_LEN].to_vec());
            }
            let (part, behind) = rest.split_at(len.min(rest.len()));
            rest = behind;
            plain.feed(part);
            straight.feed_straight(part);
            prop_assert_eq!(missing(&plain), missing(&straight));
            for endpoint in [&mut plain, &mut straight] {
                endpoint.now += Duration::from_millis(1);
            }
            let (base, now) = (plain.now, straight.now);
            let after = |at: Option<std::time::Instant>, now| at.map(|at| at.duration_since(now));
            prop_assert_eq!(
                after(plain.stream.poll_timeout(), base),
                after(straight.stream.poll_timeout(), now)
            );
        }
        if fin {
            plain.eof();
            straight.eof();
        }
        let failed = !plain.stream.state().accepts_work();
        prop_assert_eq!(plain.stream.state(), straight.stream.state());
        prop_assert_eq!(plain.stream.counters(), straight.stream.counters());
        prop_assert_eq!(plain.transmit(), straight.transmit());
        prop_assert_eq!(plain.events(), straight.events());
        let (one, other) = (&plain.memory.bytes, &straight.memory.bytes);
        if !failed && straight.rx.is_empty() {
            prop_assert!(one == other, "memory differs");
        }
        // Receives, and what nobody may touch, in any case.
        prop_assert!(one[RECEIVES..] == other[RECEIVES..]);
        // SEC-04, FC-061
        if let Some(frozen) = frozen {
            prop_assert!(frozen == other[..OPEN_LEN], "an octet moved through a revoked key");
        }
    }

    /// MPA-058: where there is a CRC or a marker, nothing takes the straight way.
    #[test]
    fn what_is_checked_first_never_goes_straight(
        crc: bool,
        len in 1_usize..1500,
        cut in 1_usize..1500,
    ) {
        let framing = Framing { crc, receive_markers: !crc, ..BARE };
        let mut endpoint = endpoint(framing);
        let sends = Framing { send_markers: framing.receive_markers, receive_markers: false, crc };
        let wire = wire(sends, &[Piece::Write { offset: 0x1000, len, last: true }]);
        let cut = cut.min(wire.len() - 1);
        let before = endpoint.memory.bytes.clone();
        for part in [&wire[..cut / 2], &wire[cut / 2..cut]] {
            prop_assert_eq!(endpoint.feed_straight(part), 0);
            prop_assert!(endpoint.memory.bytes == before, "placed before it was checked");
        }
        prop_assert_eq!(endpoint.feed_straight(&wire[cut..]), 0);
        prop_assert!(endpoint.memory.bytes[..len] != before[..len] || len < 8);
    }
}

/// Of the last octets of a segment none is there before all are, and all else is.
#[test]
fn the_last_octets_come_last() {
    let mut endpoint = endpoint(BARE);
    let wire = wire(BARE, &[Piece::Write { offset: 0x1000, len: 1000, last: true }]);
    let mut straight = 0;
    for (at, octet) in wire.iter().enumerate() {
        straight += endpoint.feed_straight(&[*octet]);
        let visible = endpoint.memory.bytes[..1000].iter().filter(|&&octet| octet != 0).count();
        assert_eq!(visible > 1000 - LAST_OCTETS, at + 1 == wire.len(), "octet {at}");
    }
    assert_eq!(straight, 1000 - LAST_OCTETS);
}

/// The front of a Write or Response with `len` octets of payload, of which `held` are there.
fn front(piece: &Piece, held: usize) -> Vec<u8> {
    let mut octets = wire(BARE, std::slice::from_ref(piece));
    octets.truncate(2 + TAGGED_HEADER_LEN + held);
    octets
}

/// Writes and Responses go straight where enough of them is missing, to the octet.
#[test]
fn what_goes_straight() {
    for len in LAST_OCTETS - 1..LAST_OCTETS + 10 {
        for held in [0, 5] {
            let pieces = [
                (Piece::Write { offset: 0x1000, len, last: true }, true),
                (Piece::Response { len }, true),
                (Piece::Send { len }, false),
                (Piece::Immediate, false),
            ];
            for (piece, goes) in pieces {
                let mut endpoint = endpoint(BARE);
                endpoint.feed(&front(&piece, held));
                let free = endpoint.stream.straight(&endpoint.rx).map(|straight| straight.free);
                let expected = len.checked_sub(held + LAST_OCTETS).filter(|&free| goes && free > 0);
                assert_eq!(free, expected, "{piece:?} of which {held} are there");
            }
        }
    }
}

/// A stream that takes nothing from the peer, not yet or not any more, takes nothing on this way either.
#[test]
fn nothing_goes_straight_where_nothing_is_received() {
    let piece = Piece::Write { offset: 0x1000, len: 1000, last: true };
    let mut ended = endpoint(BARE);
    ended.feed(&front(&piece, 10));
    assert!(ended.stream.straight(&ended.rx).is_some());
    ended.stream.disconnect(ended.now);
    assert_eq!(ended.stream.straight(&ended.rx), None);

    // MPA-029: the first FPDU of all is seen whole.
    let mut config = config(Role::Responder);
    config.framing = BARE;
    let mut responder = Endpoint::new(config, TestMemory::new(0));
    let mut peer = Peer::new(BARE);
    let first = peer.write(OPEN, 0x1000, &[7; 1000], true);
    responder.feed(&first[..30]);
    assert_eq!(responder.stream.straight(&responder.rx), None);
    let mut responder = Endpoint::new(config, TestMemory::new(0));
    responder.feed(&peer.write(0, 0, b"", true));
    responder.feed(&first[..30]);
    assert!(responder.stream.straight(&responder.rx).is_some());
}

/// What has come of a segment that never becomes whole is discarded, whichever way it came.
#[test]
fn cut_short_by_the_end_of_the_stream() {
    let wire = wire(BARE, &[Piece::Write { offset: 0x1000, len: 1000, last: true }]);
    let discarded = [true, false].map(|goes_straight| {
        let mut endpoint = endpoint(BARE);
        endpoint.feed(&wire[..20]);
        if goes_straight {
            assert_eq!(endpoint.feed_straight(&wire[20..500]), 480);
        } else {
            endpoint.feed(&wire[20..500]);
        }
        // The peer takes too long.
        endpoint.wait(Duration::from_secs(30));
        assert_eq!(endpoint.stream.state(), State::Closed);
        endpoint.feed(&wire[500..600]);
        endpoint.feed(&wire[600..]);
        endpoint.stream.counters().octets_discarded
    });
    assert_eq!(discarded, [wire.len() as u64; 2]);
}

/// The memory is revoked in the middle of a segment: it ends as it does if all of that comes through the
/// buffer, with the header and the length of the segment as the peer sent it.
#[test]
fn revoked_in_the_middle() {
    let wire = wire(BARE, &[Piece::Write { offset: 0x1000, len: 1000, last: false }]);
    let mut ends = [true, false].map(|goes_straight| {
        let mut endpoint = endpoint(BARE);
        let (front, back) = wire.split_at(500);
        if goes_straight {
            endpoint.feed_straight(&front[..20]);
            assert_eq!(endpoint.feed_straight(&front[20..]), 480);
        } else {
            endpoint.feed(front);
        }
        endpoint.memory.regions[0].valid = false;
        let placed = endpoint.memory.bytes.clone();
        assert_eq!(endpoint.feed_straight(back), 0);
        assert!(endpoint.memory.bytes == placed);
        let events = endpoint.events();
        // DDP, tagged buffer, invalid STag.
        let code = TerminateCode::from_raw(0x1100);
        assert_eq!(terminated(&events), Some((Initiator::Local, code)));
        (endpoint.transmit(), events)
    });
    let [straight, plain] = &mut ends;
    assert_eq!(straight, plain);
    // M and D: the length of the whole segment, then its header.
    let terminate = &straight.0[2 + 18..];
    assert_eq!(terminate[4..6], 1014_u16.to_be_bytes());
    assert_eq!(terminate[8..12], Stag::from_raw(OPEN).raw().to_be_bytes());
}
