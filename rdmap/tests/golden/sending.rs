//! What the stream sends where siw sent the octets of the recording.
//!
//! The same operations, the same `STag`s and offsets, segments of the same size: then the octets are the same. They
//! may differ in these, and in nothing else:
//!
//! - *pad octets*, which are zero here and may hold anything in siw's FPDUs; and with them the CRC, which covers them;
//! - *the cut* of a long message: siw goes by what TCP would take at the moment, and above 64,768 octets (MPA-043);
//! - *a Terminate*: siw's control field is the other way round, its length field is that of the payload, the message
//!   number in the header of a failed Read that it returns is the length of that Read; and some codes
//!   ([`refusal`]);
//! - *the sink of a Read that is the RTR*: nothing comes there, siw names `STag` 0 and this stack 1, for a family of
//!   adapters that minds;
//! - *the order* of Read Responses among own messages, which nothing prescribes.

use iwarp_rdmap::Opcode;

use super::capture::{Connection, Half, Message, Side};
use super::common::peer::{Observer, Seen};
use super::common::vectors::expected_terminate;
use super::exchange::{is_rtr_read, refusal, replayed};
use super::replay::Replay;
use super::startup::between_siws;

/// Messages that were sent, by how like siw's they are.
#[derive(Debug, Default, PartialEq, Eq)]
struct Tally {
    /// Octet for octet, FPDUs and all.
    same: usize,
    /// But for pad octets that are not zero in the recording.
    pads: usize,
    /// In other segments.
    cut: usize,
    terminates: usize,
    rtr_reads: usize,
    /// Answers of siw that this stack does not give, as it refused the request.
    refused: usize,
    /// Messages that the recording has only a part of.
    part: usize,
}

/// A message that the stream has sent.
#[derive(Default)]
struct Sent {
    opcode: Option<Opcode>,
    payload: Vec<u8>,
    fpdus: Vec<(Vec<u8>, Seen)>,
}

impl Sent {
    fn is_answer(&self) -> bool {
        self.opcode == Some(Opcode::ReadResponse)
    }
}

/// What was sent, cut into messages.
fn messages(replay: &Replay<'_>, crc: bool) -> Vec<Sent> {
    let mut observer = Observer::new(iwarp_mpa::Framing { crc, ..super::common::CRC });
    let mut at = 0;
    let mut open: Vec<(Option<u32>, Sent)> = Vec::new();
    let mut messages = Vec::new();
    for seen in observer.see(&replay.sent) {
        let queue = seen.untagged.map(|(queue, ..)| queue);
        let place = open.iter().position(|(of, _)| *of == queue).unwrap_or_else(|| {
            open.push((queue, Sent::default()));
            open.len() - 1
        });
        let octets = replay.sent[at..seen.end as usize].to_vec();
        at = seen.end as usize;
        let sent = &mut open[place].1;
        sent.opcode = Some(seen.opcode);
        sent.payload.extend_from_slice(&seen.payload);
        let is_last = seen.last;
        sent.fpdus.push((octets, seen));
        if is_last {
            messages.push(open.remove(place).1);
        }
    }
    assert!(observer.is_between());
    messages
}

#[test]
fn the_same_operations_make_the_same_octets() {
    // MPA-043, MPA-046, MPA-047, MPA-050, MPA-056, DDP-010, DDP-011, DDP-014, DDP-020, DDP-027, DDP-028, DDP-029, RDMAP-002,
    // RDMAP-006, RDMAP-032
    let mut tally = Tally::default();
    for (capture, connection) in between_siws() {
        for side in Side::BOTH {
            let Some(replay) = replayed(capture, connection, side, |all| all) else { continue };
            let what = format!("{}, {side:?}", connection.name);
            let half = connection.half(side);
            let crc = half.startup.as_ref().is_some_and(|(row, _)| row.text("flags").contains('C'));
            let sent = messages(&replay, crc);
            let siw: Vec<_> = half.messages.iter().collect();
            let (answers, own): (Vec<_>, Vec<_>) = sent.iter().partition(|sent| sent.is_answer());
            let own = own.into_iter().filter(|sent| sent.opcode != Some(Opcode::Terminate));
            let is_answer = |message: &&&Message| message.row.kind.ends_with("ReadResponse");
            let is_own = |message: &&&Message| message.is_operation();
            let siw_answers: Vec<_> = siw.iter().filter(is_answer).copied().collect();
            let siw_own: Vec<_> = siw.iter().filter(is_own).copied().collect();
            compare(half, &siw_own, &own.collect::<Vec<_>>(), &what, &mut tally);
            let refuses = side == Side::Responder && refusal(&capture.name).is_some();
            let due =
                if refuses { answers.len().min(siw_answers.len()) } else { siw_answers.len() };
            tally.refused += siw_answers.len() - due;
            compare(half, &siw_answers[..due], &answers, &what, &mut tally);
            if refuses {
                terminate(connection, &capture.name, &sent, &what);
                tally.terminates += 1;
            }
            tally.part += half
                .messages
                .iter()
                .filter(|message| message.row.kind.starts_with("Unfinished"))
                .count();
        }
    }
    let expected =
        Tally { same: 964, pads: 47, cut: 17, terminates: 25, rtr_reads: 1, refused: 2, part: 2 };
    assert_eq!(tally, expected);
}

fn compare(half: &Half, siw: &[&Message], ours: &[&Sent], what: &str, tally: &mut Tally) {
    let siw: Vec<_> =
        siw.iter().filter(|message| !message.row.kind.starts_with("Unfinished")).collect();
    let kinds: Vec<_> = siw.iter().map(|message| message.row.kind.clone()).collect();
    let sent: Vec<_> = ours.iter().map(|sent| format!("{:?}", sent.opcode.unwrap())).collect();
    assert_eq!(sent, kinds, "{what}");
    for (nth, (siw, ours)) in siw.iter().zip(ours).enumerate() {
        let what = format!("{what}, message {nth} ({})", siw.row.kind);
        if is_rtr_read(siw) {
            assert_eq!(ours.payload[..4], [0, 0, 0, 1], "{what}: sink");
            assert_eq!(ours.payload[4..], siw.payload[4..], "{what}");
            tally.rtr_reads += 1;
            continue;
        }
        assert!(ours.payload == siw.payload, "{what}: payload");
        let siw_cut: Vec<_> = siw.fpdus.iter().map(|fpdu| fpdu.ulpdu.len()).collect();
        let our_cut: Vec<_> = ours.fpdus.iter().map(|(_, seen)| seen.ulpdu.len()).collect();
        if siw_cut != our_cut {
            let largest = siw_cut.iter().max();
            // Only what does not fit into one segment of this stack, or did not into one of TCP then.
            assert!(
                siw_cut.len() > 1 && largest > Some(&30_000),
                "{what}: {siw_cut:?} {our_cut:?}"
            );
            heads(half, siw, ours, &what);
            tally.cut += 1;
            continue;
        }
        let mut stale = false;
        for (fpdu, (octets, seen)) in siw.fpdus.iter().zip(&ours.fpdus) {
            let pad = &half.octets[fpdu.pad()];
            if pad.iter().any(|&octet| octet != 0) {
                stale = true;
                assert!(seen.ulpdu == half.octets[fpdu.ulpdu.clone()], "{what}: ULPDU");
                let pad = 2 + seen.ulpdu.len()..octets.len() - 4;
                assert!(octets[pad].iter().all(|&octet| octet == 0), "{what}: pad");
            } else {
                assert!(*octets == half.octets[fpdu.octets.clone()], "{what}: FPDU");
            }
        }
        *if stale { &mut tally.pads } else { &mut tally.same } += 1;
    }
}

/// Of a message that is cut otherwise: all but offset and L of the first header is as it was.
fn heads(half: &Half, siw: &Message, ours: &Sent, what: &str) {
    let theirs = &half.octets[siw.fpdus[0].ulpdu.clone()];
    let mine = &ours.fpdus[0].1.ulpdu;
    let len = if theirs[0] & 0x80 != 0 { 14 } else { 18 };
    assert_eq!(mine[0] & !0x40, theirs[0] & !0x40, "{what}: DDP control");
    assert_eq!(mine[1..len], theirs[1..len], "{what}: header");
}

/// The Terminate in answer to the initiator's last message.
fn terminate(connection: &Connection, capture: &str, sent: &[Sent], what: &str) {
    let refusal = refusal(capture).unwrap();
    let ours = sent.last().unwrap();
    assert_eq!(ours.opcode, Some(Opcode::Terminate), "{what}");
    let theirs = connection.half(Side::Initiator);
    let siw = connection.half(Side::Responder).terminate();
    let code = siw.map(|siw| ["layer", "type", "code"].map(|field| siw.row.number(field) as u8));
    assert_eq!(code, refusal.siw.map(|(layer, kind, code)| [layer, kind, code]), "{what}");
    let (Some(siw), true) = (siw, refusal.siw == Some(refusal.ours)) else { return };
    // All of it, from the segment that is refused; siw stops at the same one.
    assert_eq!(siw.payload.len(), ours.payload.len(), "{what}");
    let header = if ours.payload[6] & 0x80 != 0 { 14 } else { 18 };
    let refused = theirs.messages.iter().flat_map(|message| &message.fpdus).find(|fpdu| {
        theirs.octets[fpdu.ulpdu.clone()].get(..header) == Some(&ours.payload[6..6 + header])
    });
    let ulpdu = &theirs.octets[refused.unwrap().ulpdu.clone()];
    let (layer, kind, code) = refusal.ours;
    let expected = expected_terminate((layer, kind, code), ulpdu);
    let pieces = &ours.fpdus[0].0;
    assert_eq!(expected[..expected.len() - 4], pieces[..pieces.len() - 4], "{what}");
    // Where siw differs: control, length, and the number of a Read.
    let is_read = header == 18;
    let same = if is_read { 6..6 + 10 } else { 6..6 + header };
    assert_eq!(siw.payload[same.clone()], ours.payload[same], "{what}: header");
    assert_eq!(siw.payload[6 + header..], ours.payload[6 + header..], "{what}: Read Request");
}
