//! Recordings with siw on one side and octets made by hand, mostly wrong ones, on the other.
//!
//! Twice: a stream hears what siw said to those octets; and a stream is told the same octets, in siw's place, and its
//! verdict is compared with siw's.

use bytes::Bytes;
use iwarp_mpa::{
    FpduLimit, Initiator, Negotiated, Outcome, RESPONDER_TIMEOUT, Responder, Role, SizePlan,
};
use iwarp_rdmap::{Initiator as Ender, Opcode, StreamConfig, TerminateCode};

use super::capture::{Connection, Half, Side};
use super::common::endpoint::{closed, terminated};
use super::common::start;
use super::replay::{Lack, Replay};
use super::startup::offer;

/// A stream with what the frames say; `None` if there are not two that do not refuse.
fn config(connection: &Connection, side: Side) -> Option<StreamConfig> {
    let rows = Side::BOTH.map(|side| connection.half(side).startup.as_ref().map(|(row, _)| row));
    let [Some(request), Some(reply)] = rows else { return None };
    if request.kind != "Request" || reply.kind != "Reply" || reply.text("flags").contains('R') {
        return None;
    }
    let negotiated = Negotiated {
        role: if side == Side::Initiator { Role::Initiator } else { Role::Responder },
        revision: 2,
        crc: reply.text("flags").contains('C'),
        send_markers: false,
        receive_markers: false,
        ird: 4,
        ord: 4,
        peer_ird: None,
        peer_ord: None,
        rtr: None,
        private_data: Bytes::new(),
    };
    let mut config = StreamConfig::new(&negotiated, SizePlan::new(1456, FpduLimit::Emss, false));
    config.strict_receive = true;
    // siw has none of RFC 7306.
    config.extensions = false;
    Some(config)
}

fn connections(hand_made: Side) -> impl Iterator<Item = (&'static Connection, &'static str)> {
    let captures =
        super::captures().iter().filter(move |capture| capture.hand_made == Some(hand_made));
    captures.flat_map(|capture| &capture.connections).map(|connection| {
        let case = connection.name.split(['(', ')']).nth(1).unwrap();
        (connection, case)
    })
}

#[test]
fn what_siw_says_to_hand_made_octets_is_understood() {
    let mut heard = 0;
    for hand_made in Side::BOTH {
        for (connection, _) in connections(hand_made) {
            let Some(config) = config(connection, hand_made) else { continue };
            let siw = connection.half(hand_made.other());
            let mut replay = Replay::new(connection, hand_made, config, Lack::Nothing);
            replay.run(|all| all);
            let what = &connection.name;
            let counters = replay.endpoint.stream.counters();
            for opcode in Opcode::ALL {
                let named =
                    siw.messages.iter().filter(|message| message.row.kind == format!("{opcode:?}"));
                assert_eq!(
                    counters.messages_in.of(opcode),
                    named.count() as u64,
                    "{what}: {opcode:?}"
                );
            }
            assert_eq!(counters.fpdus_in as usize, siw.end.number("fpdus"), "{what}");
            let code = siw.terminate().map(|terminate| {
                let raw = [terminate.payload[0], terminate.payload[1]];
                (Ender::Remote, TerminateCode::from_raw(u16::from_be_bytes(raw)))
            });
            // siw leaves some Reads without an answer, and goes.
            let hand = connection.half(hand_made);
            let count = |half: &Half, kind| {
                half.messages.iter().filter(|message| message.row.kind == kind).count()
            };
            let is_answered = count(hand, "ReadRequest") <= count(siw, "ReadResponse");
            let unanswered = (!is_answered && siw.ended_by("FIN"))
                .then_some((Ender::Local, TerminateCode::STREAM_CATASTROPHIC));
            let code = code.or(unanswered);
            assert_eq!(terminated(&replay.events), code, "{what}");
            assert!(replay.endpoint.memory.bytes == replay.model, "{what}: memory");
            heard += counters.fpdus_in;
        }
    }
    assert_eq!(heard, 132);
}

/// What siw ended the connection with: layer, type and code, if with anything.
type Verdict = Option<(u8, u8, u8)>;

fn of_siw(half: &Half) -> Verdict {
    half.terminate().map(|terminate| {
        let [layer, kind, code] =
            ["layer", "type", "code"].map(|field| terminate.row.number(field) as u8);
        (layer, kind, code)
    })
}

/// What is said here where it is not what siw says, and why.
#[allow(clippy::match_same_arms, reason = "each has a reason of its own")]
fn differs(case: &str, is_peer_to_peer: bool) -> Option<Verdict> {
    let ours = match case {
        // MPA-029: a responder that has received no good FPDU says nothing, and ends.
        "crc-bad" | "crc-bad-write" => None,
        // siw takes an FPDU for damaged when its pad and CRC come in two pieces.
        case if case.starts_with("crc-cut") || case == "fpdu-one-byte-at-a-time" => None,
        // Said while setting up, and not by the stream.
        "reply-ord-200" | "reply-p2p-none" | "reply-p2p-refused" => None,
        "good" if is_peer_to_peer => None,
        // A message in the other buffer model than its opcode's: the opcode is unexpected there.
        "write-untagged" | "send-tagged" => Some((0, 2, 6)),
        // MPA has no code for a ULPDU that DDP can make nothing of.
        "ulpdu-0" | "ulpdu-10" | "ulpdu-short-send" => Some((1, 0, 0)),
        "write-wraps" => Some((1, 1, 3)),
        // There is no STag that a response without a request could name.
        "read-response-unasked" | "read-response-twice" | "write-op-changes" => Some((1, 1, 0)),
        // What siw does not check of a Read Request: queue, offset, length, and that it is one segment.
        "read-qn-0" => Some((1, 2, 1)),
        "read-mo-4" => Some((1, 2, 4)),
        "read-with-data" => Some((0, 2, 0xff)),
        "read-not-last" => Some((0, 2, 7)),
        // More Reads than the IRD find no buffer on queue 1.
        "read-9-at-once" => Some((1, 2, 2)),
        // D5: what cannot be invalidated ends the stream.
        "send-invalidate-unknown" => Some((0, 2, 9)),
        // FIN while a Read of this side is unanswered.
        "reply-ird-1" => Some((0, 2, 7)),
        "reply-p2p-read" if is_peer_to_peer => Some((0, 2, 7)),
        _ => return None,
    };
    Some(ours)
}

fn lack(case: &str) -> Lack {
    match case {
        "read-bad-stag" | "write-stag-0" | "send-invalidate-unknown" => Lack::Region,
        "read-bounds" => Lack::Room { before: 65_500, len: 65_536 },
        "send-5-for-4-receives" => Lack::LastReceive,
        "read-9-at-once" => Lack::Turns,
        case if case.starts_with("first-fpdu-at-once") => Lack::Region,
        _ => Lack::Nothing,
    }
}

#[test]
fn hand_made_octets_get_the_verdict_of_the_rfcs() {
    // MPA-029, MPA-048, MPA-055, MPA-058, MPA-074, DDP-014, DDP-015, DDP-022, DDP-030, RDMAP-004, RDMAP-005, RDMAP-027,
    // RDMAP-045, RDMAP-074, RDMAP-075, RDMAP-078, RDMAP-081, RDMAP-082
    let [mut same, mut other] = [0; 2];
    for hand_made in Side::BOTH {
        for (connection, case) in connections(hand_made) {
            let side = hand_made.other();
            let Some(config) = config(connection, side) else { continue };
            let mut replay = Replay::new(connection, side, config, lack(case));
            replay.run(|all| all);
            let ours = terminated(&replay.events).and_then(|(by, code)| {
                (by == Ender::Local).then(|| (code.layer(), code.error_type(), code.code()))
            });
            let siw = of_siw(connection.half(side));
            let what = &connection.name;
            assert!(closed(&replay.events).is_some(), "{what}: no end");
            match differs(case, what.starts_with("raw-responder-p2p")) {
                Some(expected) if expected != siw => {
                    assert_eq!(ours, expected, "{what}");
                    other += 1;
                }
                _ => {
                    assert_eq!(ours, siw, "{what}");
                    same += 1;
                }
            }
        }
    }
    assert_eq!((same, other), (121, 29), "verdicts as siw's, and others");
}

/// What a side makes of the hand-made start-up frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Start {
    Accepted,
    /// The Reply says no.
    Rejected,
    /// Full Operation, for a Terminate of MPA with this code.
    Unusable(u8),
    /// An error: no frame, or not one of this time and place.
    Refused,
    /// There is not all of it.
    Waiting,
}

/// The octets of the hand-made side that were there before siw answered them.
fn first_words(connection: &Connection, hand_made: Side) -> &[u8] {
    let siw = hand_made.other();
    let mut arrivals = connection.arrivals.iter();
    if siw == Side::Initiator {
        // Behind the Request.
        arrivals.find(|arrival| arrival.from == siw);
    }
    let heard = arrivals.take_while(|arrival| arrival.from == hand_made).last();
    &connection.half(hand_made).octets[..heard.map_or(0, |arrival| arrival.octets)]
}

fn start_of(connection: &Connection, hand_made: Side) -> Start {
    let words = first_words(connection, hand_made);
    if hand_made == Side::Initiator {
        return match Responder::new(RESPONDER_TIMEOUT, start()).handle_input(words) {
            Ok((_, Some(_))) => Start::Accepted,
            Ok((_, None)) => Start::Waiting,
            Err(_) => Start::Refused,
        };
    }
    let (request, _) = connection.half(Side::Initiator).startup.as_ref().unwrap();
    let mut initiator = Initiator::new(offer(request, 16), start()).unwrap();
    assert!(initiator.poll_transmit().is_some());
    match initiator.handle_input(words) {
        Ok((_, Some(Outcome::Accepted(_)))) => Start::Accepted,
        Ok((_, Some(Outcome::Rejected(_)))) => Start::Rejected,
        Ok((_, Some(Outcome::Unusable { reason, .. }))) => Start::Unusable(reason.code()),
        Ok((_, None)) => Start::Waiting,
        Err(_) => Start::Refused,
    }
}

/// What is to become of each, all others being accepted.
#[allow(clippy::match_same_arms, reason = "each has a reason of its own")]
fn due(capture: &str, case: &str) -> Start {
    match case {
        // MPA-006, MPA-007, MPA-008
        "mpa-bad-key" | "mpa-reply-key" | "reply-bad-key" | "reply-request-key" => Start::Refused,
        // MPA-018. siw takes revision 0.
        "mpa-rev-0" | "mpa-rev-3" | "reply-rev-0" | "reply-rev-3" => Start::Refused,
        // CONN-03
        "mpa-rev-2-S-no-data" => Start::Refused,
        // MPA-020
        "mpa-pipelined" | "mpa-pipelined-no-pd" => Start::Refused,
        "mpa-half-then-fin" | "mpa-silence" | "control of the test bed" => Start::Waiting,
        "fin-instead-of-reply" | "no-reply" => Start::Waiting,
        // CONN-06: a Reply is enhanced if the Request is, and only then.
        "reply-rev-1" | "reply-rev-2-no-S" if capture != "raw-responder-mpa-v1" => Start::Refused,
        "good" if capture == "raw-responder-mpa-v1" => Start::Refused,
        "reply-reject" | "reply-reject-v1" => Start::Rejected,
        // CONN-17. siw lets up to 128 pass.
        "reply-ord-100" | "reply-ord-200" => Start::Unusable(6),
        // CONN-25
        "good" | "reply-p2p-none" | "reply-p2p-refused" if capture == "raw-responder-p2p" => {
            Start::Unusable(7)
        }
        _ => Start::Accepted,
    }
}

#[test]
fn hand_made_start_up_frames_are_taken_or_refused() {
    // MPA-012, MPA-016, MPA-017, MPA-019: also markers, reserved flags, R in a Request and 512 octets of private data,
    // which siw does not take or sends back.
    let mut by_siw = 0;
    for hand_made in Side::BOTH {
        for (connection, case) in connections(hand_made) {
            let ours = start_of(connection, hand_made);
            let capture = connection.name.split(' ').next().unwrap();
            assert_eq!(ours, due(capture, case), "{}", connection.name);
            let siw = of_siw(connection.half(hand_made.other()));
            // What siw says to a Reply that cannot be used, it says in the same words.
            if let (Start::Unusable(code), Some(siw)) = (ours, siw) {
                assert_eq!(siw, (2, 0, code), "{}", connection.name);
                by_siw += 1;
            }
        }
    }
    assert_eq!(by_siw, 4);
}
