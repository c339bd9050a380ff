//! What the stream makes of siw's messages, and the messages it sends in siw's place.

use iwarp_ddp::Stag;
use iwarp_mpa::{FpduLimit, Role, SizePlan};
use iwarp_rdmap::{
    CloseCause, Event, Initiator, LostCause, Opcode, Outcome, StreamConfig, TerminateCode,
};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

use super::capture::{Capture, Connection, Message, Side};
use super::common::endpoint::{closed, terminated};
use super::replay::{Lack, Replay};
use super::startup::{between_siws, depth_of_revision_1, settle};

/// A message that was refused: what is missing for it, what siw said, and what is said here. Both by the RFC's
/// layout: layer, type, code.
pub struct Refusal {
    pub lack: Lack,
    pub siw: Option<(u8, u8, u8)>,
    pub ours: (u8, u8, u8),
}

/// Of captures in which the responder refuses the initiator's last message: siw, or this stack, or both.
pub fn refusal(capture: &str) -> Option<Refusal> {
    let both = |lack, code| Some(Refusal { lack, siw: Some(code), ours: code });
    let other = |lack, siw, ours| Some(Refusal { lack, siw, ours });
    let name = capture.strip_prefix("crc-").unwrap_or(capture).strip_prefix("terminate-")?;
    match name {
        "write-bad-stag" | "write-unknown-stag" | "write-stag-0" => both(Lack::Region, (1, 1, 0)),
        "write-bounds" => both(Lack::Room { before: 65_500, len: 65_536 }, (1, 1, 1)),
        "write-bounds-long" => both(Lack::Room { before: 0, len: 65_536 }, (1, 1, 1)),
        "write-no-right" => both(Lack::Right, (1, 1, 0)),
        "write-other-pd" => both(Lack::Domain, (1, 1, 2)),
        "write-after-invalidate" => both(Lack::Nothing, (1, 1, 0)),
        "read-bad-stag" | "read-unknown-stag" | "read-second-bad" => both(Lack::Region, (0, 1, 0)),
        "read-bounds" => both(Lack::Room { before: 65_500, len: 65_536 }, (0, 1, 1)),
        "read-other-pd" => both(Lack::Domain, (0, 1, 3)),
        // siw answers a Read of memory that may not be read. Here the right is checked (RDMAP-078).
        "read-no-right" => other(Lack::Right, None, (0, 1, 2)),
        "send-no-receive" => both(Lack::Receives, (1, 2, 2)),
        // "No buffer" for a message that is too long for its buffer: DDP has a code of its own for that.
        "send-too-long" => other(Lack::ReceiveOf(32), Some((1, 2, 2)), (1, 2, 5)),
        "send-too-long-2-segments" => other(Lack::ReceiveOf(70_000), Some((1, 2, 2)), (1, 2, 5)),
        // siw does not look at the key of an STag to invalidate, and keeps quiet about one it cannot (D5).
        "send-invalidate-bad-stag" | "send-invalidate-unknown-stag" => {
            other(Lack::Region, None, (0, 2, 9))
        }
        "send-invalidate-other-pd" => other(Lack::Domain, None, (0, 1, 9)),
        // A receive whose memory is gone: a local catastrophic error, of DDP to siw, of RDMAP here.
        "send-invalidate-twice" => other(Lack::ReceiveMemory, Some((1, 0, 0)), (0, 0, 0)),
        // One Read more than the IRD: no buffer on queue 1, as RFC 5040 §5.5 has it.
        "ird-0" => other(Lack::Nothing, Some((0, 2, 7)), (1, 2, 2)),
        "ird-exceeded" => other(Lack::Turns, None, (1, 2, 2)),
        other => panic!("{other} is not in the list"),
    }
}

fn config(capture: &Capture, connection: &Connection, side: Side) -> Option<StreamConfig> {
    connection.half(side).startup.as_ref()?;
    connection.half(side.other()).startup.as_ref()?;
    let depth = depth_of_revision_1(&capture.name, side);
    let negotiated = settle(connection, side, depth, usize::MAX).ok()?.negotiated?;
    // siw fills a segment less what is over eight octets.
    let mut config =
        StreamConfig::new(&negotiated, SizePlan::new(capture.mss & !7, FpduLimit::Emss, false));
    config.strict_receive = true;
    if begins(&capture.name, side) {
        // A responder of this stack does not (MPA-029), and is played by one that may.
        config.role = Role::Initiator;
    }
    Some(config)
}

/// Responders whose FPDU is the first one of the connection.
pub fn begins(capture: &str, side: Side) -> bool {
    side == Side::Responder && matches!(capture, "responder-sends-first" | "reads-both-ways")
}

/// A stream in the place of one side; `None` if the connection did not come so far.
pub fn prepared(
    capture: &Capture,
    connection: &'static Connection,
    side: Side,
) -> Option<Replay<'static>> {
    let config = config(capture, connection, side)?;
    let refusal = (side == Side::Responder).then(|| refusal(&capture.name)).flatten();
    let lack = refusal.as_ref().map_or(Lack::Nothing, |refusal| refusal.lack);
    let mut replay = Replay::new(connection, side, config, lack);
    if refusal.is_some() {
        // Of Reads that come at once the first is the only one within the IRD.
        let sent = connection.half(side.other()).messages.len();
        replay.taken = if lack == Lack::Turns { 1 } else { sent - 1 };
    }
    Some(replay)
}

/// The same after the whole recording, in pieces cut like this.
pub fn replayed(
    capture: &Capture,
    connection: &'static Connection,
    side: Side,
    cut: impl FnMut(usize) -> usize,
) -> Option<Replay<'static>> {
    let mut replay = prepared(capture, connection, side)?;
    replay.run(cut);
    Some(replay)
}

#[test]
fn every_message_of_siw_is_understood() {
    // MPA-044, MPA-048, MPA-055, MPA-058, DDP-038, RDMAP-011, RDMAP-014, RDMAP-022, RDMAP-033, RDMAP-041, RDMAP-042, RDMAP-043, RDMAP-044,
    // RDMAP-045, RDMAP-052, RDMAP-066
    let mut sides = 0;
    let mut fpdus = 0;
    for (capture, connection) in between_siws() {
        for side in Side::BOTH {
            let Some(replay) = replayed(capture, connection, side, |all| all) else { continue };
            let what = format!("{}, {side:?}", connection.name);
            understood(capture, connection, side, &replay, &what);
            sides += 1;
            fpdus += replay.endpoint.stream.counters().fpdus_in;
        }
    }
    assert_eq!((sides, fpdus), (249, 1426), "streams, and the FPDUs they have heard");
}

#[test]
fn a_responder_of_this_stack_does_not_begin() {
    // MPA-029: what siw's responder sends at once waits here for the first FPDU of the initiator.
    let mut held = 0;
    for (capture, connection) in
        between_siws().filter(|(capture, _)| begins(&capture.name, Side::Responder))
    {
        let first = connection.half(Side::Responder).messages[0].start();
        let sender = connection.arrivals.iter().find(|arrival| match arrival.from {
            Side::Initiator => arrival.octets > connection.half(Side::Initiator).startup_len(),
            Side::Responder => arrival.octets > first,
        });
        assert_eq!(sender.unwrap().from, Side::Responder, "{}", connection.name);
        let mut config = config(capture, connection, Side::Responder).unwrap();
        config.role = Role::Responder;
        let mut replay = Replay::new(connection, Side::Responder, config, Lack::Nothing);
        replay.run(|all| all);
        assert_eq!(replay.sent_unheard, 0, "{}", connection.name);
        held += 1;
    }
    assert_eq!(held, 2);
}

#[test]
fn any_cut_of_the_stream_means_the_same() {
    // MPA-074, MPA-076: whatever the segmentation.
    let seed = rand::random();
    println!("seed {seed}");
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    let mut replays = 0;
    for (capture, connection) in between_siws() {
        for side in Side::BOTH {
            let whole = replayed(capture, connection, side, |all| all);
            for most in [1, 3, 40, 1500, 70_000] {
                let octets = connection.half(side.other()).octets.len();
                if most * 20_000 < octets {
                    continue;
                }
                let cut = |_| rng.random_range(1..=most);
                let Some(mut again) = prepared(capture, connection, side) else { continue };
                again.straight = most > 1000;
                again.run(cut);
                let whole = whole.as_ref().unwrap();
                let what = format!("{}, {side:?}, at most {most} octets", connection.name);
                assert_eq!(again.events, whole.events, "{what}");
                assert!(again.sent == whole.sent, "{what}: sent");
                assert!(
                    again.endpoint.memory.bytes == whole.endpoint.memory.bytes,
                    "{what}: memory"
                );
                replays += 1;
            }
        }
    }
    assert_eq!(replays, 1219);
}

fn understood(
    capture: &Capture,
    connection: &Connection,
    side: Side,
    replay: &Replay<'_>,
    what: &str,
) {
    let theirs = connection.half(side.other());
    let refusal = (side == Side::Responder).then(|| refusal(&capture.name)).flatten();
    let (good, refused) = theirs.messages.split_at(replay.taken);

    // Receives: lengths, solicited events, invalidated STags, and what is in the buffers.
    let sends: Vec<_> = good.iter().filter(|message| message.is_send()).collect();
    let received: Vec<_> = replay
        .events
        .iter()
        .filter_map(|event| match event {
            Event::ReceiveDone {
                outcome: Outcome::Success, len, solicited, invalidated, ..
            } => Some((*len as usize, *solicited, *invalidated)),
            _ => None,
        })
        .collect();
    let expected: Vec<_> = sends
        .iter()
        .map(|send| {
            let invalidated =
                send.row.has("invalidate").then(|| Stag::from_raw(send.row.stag("invalidate")));
            (send.row.number("len"), send.row.kind.contains("Solicited"), invalidated)
        })
        .collect();
    assert_eq!(received, expected, "{what}: Sends");

    // Reads: each is answered, by what the recording has.
    let answers = good.iter().filter(|message| message.row.kind == "ReadResponse").count();
    let is_read = |id: u64| {
        let ours = &connection.half(side).messages;
        id.checked_sub(1_000_000).is_some_and(|at| ours[at as usize].row.kind == "ReadRequest")
    };
    let read = replay.events.iter().filter(|event| {
        matches!(event, Event::OperationDone { buffer, outcome: Outcome::Success, .. } if is_read(buffer.id))
    });
    let hidden = usize::from(connection.half(side).messages.first().is_some_and(is_rtr_read));
    assert_eq!(read.count() + hidden, answers, "{what}: Reads");

    // All memory, of which a refused message has touched nothing. (One of several segments may have been good up to
    // the last of them, and what a Send brings is in its buffer before there is anything to invalidate.)
    if refused.iter().all(|message| message.fpdus.len() == 1 && !message.row.has("invalidate")) {
        assert!(replay.endpoint.memory.bytes == replay.model, "{what}: memory");
    }

    // Counts.
    let counters = replay.endpoint.stream.counters();
    for opcode in Opcode::ALL {
        let named = good.iter().filter(|message| message.row.kind == format!("{opcode:?}"));
        assert_eq!(counters.messages_in.of(opcode), named.count() as u64, "{what}: {opcode:?}");
    }
    if refusal.is_none() {
        assert_eq!(counters.fpdus_in as usize, theirs.end.number("fpdus"), "{what}: FPDUs");
        assert_eq!(counters.octets_in as usize, theirs.stream().len(), "{what}: octets");
    }
    assert_eq!(counters.crc_errors, 0, "{what}");
    ending(connection, side, replay, refusal.as_ref(), what);
}

/// The Read of nothing that is siw's RTR. Only the first message of an initiator can be it.
pub fn is_rtr_read(message: &Message) -> bool {
    let row = &message.row;
    row.kind == "ReadRequest" && row.number("size") == 0 && row.stag("source") == 1
}

/// The Terminate, and the way the stream ends.
fn ending(
    connection: &Connection,
    side: Side,
    replay: &Replay<'_>,
    refusal: Option<&Refusal>,
    what: &str,
) {
    let theirs = connection.half(side.other());
    let (clean, cause) = closed(&replay.events).unwrap_or_else(|| panic!("{what}: open"));
    if let Some(refusal) = refusal {
        let (layer, kind, code) = refusal.ours;
        let ours = TerminateCode::from_parts(layer, kind, code);
        assert_eq!(terminated(&replay.events), Some((Initiator::Local, ours)), "{what}");
        assert!(matches!(cause, CloseCause::Error(_)) && !clean, "{what}: {cause:?}");
    } else if let Some(terminate) = theirs.terminate() {
        // Read as the RFC has it, the octets are what they are: what siw meant is in another order of bits, and
        // nothing depends on it.
        let raw = u16::from_be_bytes([terminate.payload[0], terminate.payload[1]]);
        let code = TerminateCode::from_raw(raw);
        assert_eq!(terminated(&replay.events), Some((Initiator::Remote, code)), "{what}");
        let row = &terminate.row;
        assert_eq!(
            (usize::from(code.error_type()), usize::from(code.layer()), usize::from(code.code())),
            (row.number("layer"), row.number("type"), row.number("code")),
            "{what}"
        );
        assert!(matches!(cause, CloseCause::Terminated(_)) && !clean, "{what}: {cause:?}");
    } else {
        // A FIN inside a message is an error of this stream, which siw does not look for.
        let is_part = |message: &Message| message.row.kind.starts_with("Unfinished");
        let is_whole = !theirs.messages.iter().any(is_part);
        let error = (Initiator::Local, TerminateCode::STREAM_CATASTROPHIC);
        let is_reset = theirs.ended_by("RST") && !theirs.ended_by("FIN");
        let is_cut_off = !is_whole && !is_reset;
        assert_eq!(terminated(&replay.events), is_cut_off.then_some(error), "{what}");
        assert_eq!(*cause == CloseCause::Lost(LostCause::Reset), is_reset, "{what}: {cause:?}");
        assert_eq!(clean, is_whole && !is_reset, "{what}: {cause:?}");
    }
}
