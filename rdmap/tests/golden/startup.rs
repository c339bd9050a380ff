//! The start-up frames of the recordings: read by the state machine of the other side, and made anew.

use bytes::Bytes;
use iwarp_mpa::{
    Depth, Initiator, Negotiated, Offer, Outcome, RESPONDER_TIMEOUT, Responder, Revision, RtrTypes,
};

use super::capture::{Capture, Connection, Row, Side};
use super::common::start;

/// Read depth of connections that negotiate none, both ways.
pub fn depth_of_revision_1(capture: &str, side: Side) -> u16 {
    match (capture, side) {
        ("terminate-ird-0", Side::Responder) => 0,
        ("terminate-ird-exceeded", Side::Responder) => 1,
        _ => 16,
    }
}

/// What one side made of the exchange, and what it sent.
#[derive(Debug)]
pub struct Settled {
    pub sent: Bytes,
    /// `None` if the connection was refused.
    pub negotiated: Option<Negotiated>,
}

/// The wishes that are in a frame.
pub fn offer(row: &Row, depth: u16) -> Offer {
    let private = row.text("private");
    let mut offer = Offer {
        revision: if row.has("ird") { Revision::V2 } else { Revision::V1 },
        crc: row.text("flags").contains('C'),
        ird: Depth::Count(depth),
        ord: Depth::Count(depth),
        rtr: RtrTypes::empty(),
        private_data: hex::decode(private.trim_start_matches('-')).unwrap().into(),
        ..Offer::default()
    };
    if row.has("ird") {
        [offer.ird, offer.ord] = ["ird", "ord"].map(|depth| Depth::Count(row.number(depth) as u16));
        let control = row.text("control");
        offer.rtr.set(RtrTypes::SEND, control.contains('B'));
        offer.rtr.set(RtrTypes::WRITE, control.contains('C'));
        offer.rtr.set(RtrTypes::READ, control.contains('D'));
    }
    offer
}

/// A side with the wishes that are in its frame, and the octets of the other's. `cut` octets come at a time.
pub fn settle(
    connection: &Connection,
    side: Side,
    depth: u16,
    cut: usize,
) -> Result<Settled, iwarp_mpa::Error> {
    let (row, _) = connection.half(side).startup.as_ref().unwrap();
    let theirs = connection.half(side.other());
    let offer = offer(row, depth);
    let mut taken = 0;
    match side {
        Side::Initiator => {
            let mut initiator = Initiator::new(offer, start())?;
            let sent = initiator.poll_transmit().unwrap();
            for piece in theirs.octets.chunks(cut) {
                let (octets, outcome) = initiator.handle_input(piece)?;
                taken += octets;
                let negotiated = match outcome {
                    Some(Outcome::Accepted(negotiated)) => Some(negotiated),
                    Some(Outcome::Rejected(_)) => None,
                    Some(Outcome::Unusable { .. }) => panic!("{outcome:?}"),
                    None => continue,
                };
                // MPA-001: nothing of what is behind the frame.
                assert_eq!(taken, theirs.startup_len());
                return Ok(Settled { sent, negotiated });
            }
        }
        Side::Responder => {
            let mut responder = Responder::new(RESPONDER_TIMEOUT, start());
            // The Request comes alone: there is nothing to send before the Reply.
            for piece in theirs.octets[..theirs.startup_len()].chunks(cut) {
                let (octets, request) = responder.handle_input(piece)?;
                taken += octets;
                let Some(request) = request else { continue };
                assert_eq!(taken, theirs.startup_len());
                if row.text("flags").contains('R') {
                    let sent = responder.reject_with_depths(
                        &request,
                        offer.ird,
                        offer.ord,
                        &offer.private_data,
                    )?;
                    return Ok(Settled { sent, negotiated: None });
                }
                let (sent, negotiated) = responder.accept(&request, &offer)?;
                return Ok(Settled { sent, negotiated: Some(negotiated) });
            }
        }
    }
    panic!("{}: no frame in {} octets", connection.name, theirs.octets.len());
}

/// The frames that this stack would not make of the same wishes, and why.
fn differs(capture: &str, side: Side) -> Option<&'static str> {
    match (capture, side) {
        // siw's own mark for large FPDUs in a bit that is reserved (MPA-016).
        ("gso-write-60000-mtu1500", _) => Some("reserved bit 0x08"),
        // Who wants the peer-to-peer model names a message that it can send (CONN-21).
        ("p2p-rtr-none", Side::Initiator) => Some("control flag A alone"),
        _ => None,
    }
}

/// Frames that nobody can make sense of.
fn is_broken(capture: &str) -> bool {
    // siw cannot count private data of 252 octets and more.
    matches!(capture, "pd-252" | "pd-255" | "pd-reply-252")
}

#[test]
fn start_up_frames_are_understood_and_made_as_siw_makes_them() {
    // MPA-001, MPA-016, MPA-019, CONN-06, CONN-12, CONN-13, CONN-16, CONN-22
    let [mut read, mut same, mut other] = [0; 3];
    for (capture, connection) in between_siws() {
        for side in Side::BOTH {
            if connection.half(side).startup.is_none() || is_broken(&capture.name) {
                continue;
            }
            let depth = depth_of_revision_1(&capture.name, side);
            let what = format!("{}, {side:?}", connection.name);
            let mut settled = None;
            for cut in [1, 7, 20, usize::MAX] {
                let again = settle(connection, side, depth, cut)
                    .unwrap_or_else(|error| panic!("{what}: {error}"));
                let before = settled.get_or_insert_with(|| again.sent.clone());
                assert_eq!(*before, again.sent, "{what}, cut {cut}");
                check_depths(connection, side, &again, &what);
            }
            read += 1;
            let half = connection.half(side);
            let is_same = settled.unwrap() == half.octets[..half.startup_len()];
            assert_eq!(is_same, differs(&capture.name, side).is_none(), "{what}");
            same += usize::from(is_same);
            other += usize::from(!is_same);
        }
    }
    assert_eq!([read, same, other], [254, 251, 3], "frames read, made again, and made otherwise");
}

/// What holds is what siw's frames say.
fn check_depths(connection: &Connection, side: Side, settled: &Settled, what: &str) {
    let [ours, theirs] = [side, side.other()].map(|side| &connection.half(side).startup);
    let (Some((ours, _)), Some((theirs, _))) = (ours, theirs) else { panic!("{what}") };
    let is_rejected = [ours, theirs].iter().any(|row| row.text("flags").contains('R'));
    assert_eq!(settled.negotiated.is_none(), is_rejected, "{what}");
    let Some(negotiated) = &settled.negotiated else { return };
    assert_eq!(negotiated.crc, ours.text("flags").contains('C'), "{what}");
    assert_eq!(usize::from(negotiated.revision), ours.number("rev"), "{what}");
    assert_eq!(
        hex::encode(&negotiated.private_data),
        theirs.text("private").trim_start_matches('-'),
        "{what}"
    );
    if ours.has("ird") {
        assert_eq!(negotiated.peer_ird, Some(theirs.number("ird") as u32), "{what}");
        assert_eq!(negotiated.peer_ord, Some(theirs.number("ord") as u32), "{what}");
        assert_eq!(negotiated.ord as usize, ours.number("ord").min(theirs.number("ird")), "{what}");
        assert_eq!(negotiated.ird as usize, ours.number("ird"), "{what}");
    }
}

#[test]
fn frames_with_a_wrong_length_are_refused() {
    // CONN-03, MPA-022, MPA-026: a Request, and a Reply, that is enhanced and has no room for that.
    let mut refused = 0;
    for (capture, connection) in between_siws() {
        if is_broken(&capture.name) {
            let [request, reply] = Side::BOTH.map(|side| connection.half(side).startup.is_some());
            assert!(request, "{}", connection.name);
            let result = if reply {
                settle(connection, Side::Initiator, 16, 1).map(|_| ())
            } else {
                let octets = &connection.half(Side::Initiator).octets;
                Responder::new(RESPONDER_TIMEOUT, start()).handle_input(octets).map(|_| ())
            };
            let error = result.unwrap_err();
            assert!(error.to_string().contains("enhanced"), "{}: {error}", connection.name);
            refused += 1;
        }
    }
    assert_eq!(refused, 3);
}

/// All connections whose both ends are siw.
pub fn between_siws() -> impl Iterator<Item = (&'static Capture, &'static Connection)> {
    let captures = super::captures().iter().filter(|capture| capture.hand_made.is_none());
    captures
        .flat_map(|capture| capture.connections.iter().map(move |connection| (capture, connection)))
}
