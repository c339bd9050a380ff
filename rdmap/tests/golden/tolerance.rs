//! What siw does and no RFC asks for, one by one: none of it may trouble a peer. `captures/README.md` has the list.

use iwarp_ddp::Stag;
use iwarp_mpa::{RESPONDER_TIMEOUT, Responder, Role, ULPDU_MAX_SENT};
use iwarp_rdmap::{CloseCause, Event, Initiator, Opcode, Outcome, Terminate, TerminateCode};

use super::capture::{Connection, Side};
use super::common::endpoint::{Endpoint, closed, outcomes, read, target};
use super::common::peer::Peer;
use super::common::{CRC, config, start};
use super::exchange::{prepared, replayed};
use super::replay::Replay;
use super::startup::between_siws;

fn connection(capture: &str) -> &'static Connection {
    &super::captures().iter().find(|of| of.name == capture).unwrap().connections[0]
}

/// What a side hears in a capture, whole and well.
fn hears(capture: &str, side: Side) -> Replay<'static> {
    let of = super::captures().iter().find(|of| of.name == capture).unwrap();
    replayed(of, &of.connections[0], side, |all| all).unwrap()
}

fn ends_well(replay: &Replay<'_>, what: &str) {
    assert_eq!(closed(&replay.events), Some((true, &CloseCause::Orderly)), "{what}");
    assert!(replay.endpoint.memory.bytes == replay.model, "{what}: memory");
}

/// The Terminates of all captures of two siws, without their DDP headers.
fn terminates() -> impl Iterator<Item = (&'static str, Vec<u8>)> {
    between_siws().flat_map(|(capture, connection)| {
        let messages = Side::BOTH.map(|side| connection.half(side).terminate());
        let found = messages.into_iter().flatten();
        found.map(|terminate| (&capture.name[..], terminate.payload.clone()))
    })
}

/// A stream with a Read under way hears this Terminate. What becomes of it.
fn hears_terminate(payload: &[u8]) -> (Endpoint, Vec<Event<super::common::memory::Buf>>) {
    let mut endpoint = target(config(Role::Initiator), 1);
    endpoint.submit(1, read(0x77, 0), 0, 64);
    endpoint.transmit();
    let header = [0x41, 0x47, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 1, 0, 0, 0, 0];
    let octets = Peer::new(CRC).frame(&[&header[..], payload].concat());
    endpoint.feed(&octets);
    endpoint.eof();
    endpoint.transmit();
    let events = endpoint.events();
    (endpoint, events)
}

#[test]
fn a_terminate_with_its_bits_in_the_other_order() {
    // RDMAP-052, RDMAP-056, RDMAP-066: it is the end, its code is for the report only, and no Terminate answers it.
    let mut heard = 0;
    for (what, payload) in terminates() {
        let (endpoint, events) = hears_terminate(&payload);
        let (clean, cause) = closed(&events).unwrap();
        assert!(!clean && matches!(cause, CloseCause::Terminated(_)), "{what}: {cause:?}");
        let done = outcomes(&events);
        let receive = (1000, Outcome::Flushed);
        assert!(matches!(done[0], (1, outcome) if outcome != Outcome::Success), "{what}: {done:?}");
        assert!(done[1..].iter().all(|done| *done == receive), "{what}: {done:?}");
        assert_eq!(endpoint.stream.counters().terminates_out(), 0, "{what}");
        heard += 1;
    }
    assert_eq!(heard, 20);
}

#[test]
fn a_terminate_with_the_length_of_the_payload() {
    // RDMAP-079: with the control field as it ought to be, all the rest as siw has it. The length that should be that
    // of the segment is short of its header, and 0 for a Read Request, whose number in the header is its length.
    let mut heard = 0;
    for (what, mut payload) in terminates() {
        let [layer_and_type, _, headers] = *payload.first_chunk().unwrap();
        payload[0] = layer_and_type.rotate_left(4);
        payload[2] = headers.reverse_bits();
        let terminate = Terminate::parse(&payload).unwrap();
        let header = payload.get(6..).unwrap_or_default();
        assert_eq!(terminate.ddp_header.is_some(), header.len() >= 14, "{what}");
        if let Some(len) = terminate.segment_len {
            let is_tagged = header[0] & 0x80 != 0;
            let is_read = !is_tagged && header[1] & 0x0f == Opcode::ReadRequest.raw();
            assert_eq!(len == 0, is_read, "{what}: {len}");
            assert_eq!(terminate.read_request.is_some(), is_read && payload.len() > 50, "{what}");
        }
        let (_, events) = hears_terminate(&payload);
        let code = TerminateCode::from_parts(payload[0] >> 4, payload[0] & 15, payload[1]);
        let reported = events.iter().find_map(|event| match event {
            Event::Terminated { by: Initiator::Remote, terminate, .. } => Some(*terminate),
            _ => None,
        });
        assert_eq!(reported, Some(terminate), "{what}");
        assert_eq!(reported.unwrap().code, code, "{what}");
        heard += 1;
    }
    assert_eq!(heard, 20);
}

#[test]
fn ulpdus_above_what_may_be_sent() {
    // MPA-041, MPA-043, MPA-075
    let mut heard = 0;
    for (capture, side) in
        [("ib_write_bw-65536", Side::Responder), ("ib_read_bw-65536", Side::Initiator)]
    {
        let of = super::captures().iter().find(|of| of.name == capture).unwrap();
        let connection = &of.connections[1];
        let theirs = connection.half(side.other());
        assert_eq!(theirs.end.number("largest"), 65_474);
        heard += theirs
            .messages
            .iter()
            .flat_map(|message| &message.fpdus)
            .filter(|fpdu| fpdu.ulpdu.len() > ULPDU_MAX_SENT)
            .count();
        let replay = replayed(of, connection, side, |all| all).unwrap();
        ends_well(&replay, capture);
    }
    assert_eq!(heard, 6);
}

#[test]
fn private_data_as_far_as_siw_counts() {
    // MPA-019, MPA-020, MPA-021
    for (capture, len) in [("pd-none", 0), ("pd-128", 128), ("pd-251", 251)] {
        for side in Side::BOTH {
            let (row, _) = connection(capture).half(side).startup.as_ref().unwrap();
            assert_eq!(row.text("private").trim_start_matches('-').len(), 2 * len, "{capture}");
            ends_well(&hears(capture, side), capture);
        }
    }
    // Beyond, siw's own length is wrong, and what follows is no frame and no FPDU.
    for capture in ["pd-252", "pd-255"] {
        let octets = &connection(capture).half(Side::Initiator).octets;
        assert_eq!(octets.len(), 20 + 256 + octets[19] as usize, "{capture}");
        let mut responder = Responder::new(RESPONDER_TIMEOUT, start());
        assert!(responder.handle_input(octets).is_err(), "{capture}");
    }
}

#[test]
fn reserved_flags_of_start_up_frames() {
    // MPA-016, MPA-017: siw's mark for large FPDUs, in both frames, and the FPDUs that go with it.
    let capture = "gso-write-60000-mtu1500";
    for side in Side::BOTH {
        let (row, _) = connection(capture).half(side).startup.as_ref().unwrap();
        assert_eq!(row.text("flags"), "S8");
        ends_well(&hears(capture, side), capture);
    }
    assert_eq!(connection(capture).half(Side::Initiator).end.number("largest"), 31_850);
}

#[test]
fn a_first_fpdu_of_the_responder() {
    // MPA-029 binds the responder; an initiator takes what comes.
    let replay = hears("responder-sends-first", Side::Initiator);
    assert_eq!(replay.endpoint.stream.counters().messages_in.of(Opcode::Send), 1);
    assert!(replay.sent.is_empty());
    ends_well(&replay, "responder-sends-first");
}

#[test]
fn pad_octets_that_are_left_over() {
    // MPA-048
    let mut stale = 0;
    for capture in ["send-lengths-0-8", "crc-send-lengths-0-8"] {
        let half = connection(capture).half(Side::Initiator);
        let pads = half.messages.iter().map(|message| half.octets[message.fpdus[0].pad()].to_vec());
        stale += pads.filter(|pad| pad.iter().any(|&octet| octet != 0)).count();
        let replay = hears(capture, Side::Responder);
        assert_eq!(replay.endpoint.stream.counters().messages_in.of(Opcode::Send), 9);
        ends_well(&replay, capture);
    }
    assert_eq!(stale, 3);
}

#[test]
fn trailers_in_a_segment_of_their_own() {
    // MPA-074, MPA-076: with and without CRC, heard segment by segment as they were sent.
    for capture in ["read-10001-mtu1500", "crc-read-10001-mtu1500"] {
        let of = super::captures().iter().find(|of| of.name == capture).unwrap();
        let connection = &of.connections[0];
        let mut before = connection.half(Side::Responder).startup_len();
        let mut alone = 0;
        for arrival in connection.arrivals.iter().filter(|arrival| arrival.from == Side::Responder)
        {
            let ends: Vec<_> = connection
                .half(Side::Responder)
                .messages
                .iter()
                .flat_map(|message| &message.fpdus)
                .map(|fpdu| (fpdu.ulpdu.end, fpdu.octets.end))
                .collect();
            alone += usize::from(ends.contains(&(before, arrival.octets)));
            before = arrival.octets;
        }
        assert_eq!(alone, 8, "{capture}: pad and CRC, and nothing else");
        let mut replay = prepared(of, connection, Side::Initiator).unwrap();
        replay.by_segment = true;
        replay.run(|all| all);
        ends_well(&replay, capture);
    }
}

#[test]
fn a_send_that_invalidates_with_another_key_octet() {
    // RDMAP-045: siw compares the index alone. Here it is another STag, and the end.
    let connection = connection("terminate-send-invalidate-bad-stag");
    let message = &connection.half(Side::Initiator).messages[0];
    let (frame, _) = connection.half(Side::Responder).startup.as_ref().unwrap();
    let good = u32::from_str_radix(&frame.text("private")[16..24], 16).unwrap();
    let [asked, good] = [message.row.stag("invalidate"), good].map(Stag::from_raw);
    assert_eq!((asked.index(), asked == good), (good.index(), false));
    let replay = hears("terminate-send-invalidate-bad-stag", Side::Responder);
    assert_eq!(replay.endpoint.stream.counters().terminates_out(), 1);
}
