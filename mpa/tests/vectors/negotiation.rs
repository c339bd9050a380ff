//! Pairs of Request and Reply, and what both sides make of them.

use iwarp_mpa::{
    Depth, Enhanced, FrameKind, Initiator, Negotiated, Offer, Outcome, Responder, Revision, Rtr,
    RtrTypes, StartupFrame, Unusable,
};
use serde::Deserialize;

use crate::common::{now, pieces};
use crate::{EnhancedFields, ExpectedTerminate, FrameFields, Seen, book, every_cut, responder};

#[derive(Deserialize)]
struct NegotiationVector {
    name: String,
    hex: String,
    reply_hex: String,
    fields: NegotiationFields,
    expect: Expected,
}

#[derive(Deserialize)]
struct NegotiationFields {
    request: FrameFields,
    reply: FrameFields,
}

#[derive(Deserialize, Default)]
#[serde(default, deny_unknown_fields)]
struct Expected {
    crc_in_use: Option<bool>,
    initiator_sends_markers: Option<bool>,
    responder_sends_markers: Option<bool>,
    initiator_ird: Option<serde_json::Value>,
    initiator_ord: Option<serde_json::Value>,
    responder_ird: Option<serde_json::Value>,
    responder_ord: Option<serde_json::Value>,
    terminate: Option<ExpectedTerminate>,
    rejected: bool,
    needed_ord: Option<u32>,
    rtr: Option<serde_json::Value>,
    enhanced: Option<bool>,
}

/// The offer whose frame has these fields.
fn offer(fields: &FrameFields) -> Offer {
    let block = fields.enhanced.as_ref().map(EnhancedFields::block);
    Offer {
        revision: if block.is_some() { Revision::V2 } else { Revision::V1 },
        markers: fields.m,
        crc: fields.c,
        ird: block.map_or(Depth::Count(5), |block| block.ird),
        ord: block.map_or(Depth::Count(6), |block| block.ord),
        rtr: block.map_or(RtrTypes::empty(), |block| block.rtr),
        ..Offer::default()
    }
}

/// The wish of the responder that made the reply, where the reply shows less than it.
fn responder_offer(vector: &NegotiationVector) -> Offer {
    let mut offer = offer(&vector.fields.reply);
    match vector.name.as_str() {
        "ird-responder-ord-capped" => offer.ord = Depth::Count(32),
        // What it says is not negotiated, it has all the same.
        "noneg-both" | "noneg-ord-only" | "noneg-ird-only" => {
            offer.ird = Depth::Count(7);
            offer.ord = Depth::Count(8);
            if vector.name == "noneg-ord-only" {
                offer.ord = Depth::Count(4);
            }
            if vector.name == "noneg-ird-only" {
                offer.ird = Depth::Count(4);
            }
        }
        "rtr-read-ord0" => offer.ird = Depth::Count(0),
        _ => {}
    }
    offer
}

#[test]
fn negotiations() {
    for vector in book::<NegotiationVector>("negotiation.json") {
        let name = vector.name.as_str();
        let request = hex::decode(&vector.hex).unwrap();
        let reply = hex::decode(&vector.reply_hex).unwrap();

        let initiator_offer = offer(&vector.fields.request);
        let mut initiator = Initiator::new(initiator_offer.clone(), now()).unwrap();
        let sent = initiator.poll_transmit().unwrap();
        if name == "noneg-both" {
            // CONN-05: an enhanced frame that asks for nothing is not sent.
            assert_eq!(sent[17], 1, "{name}");
        } else {
            assert_eq!(sent, request, "{name}");
        }

        let negotiated = responder_side(&vector, &request, &reply);
        if name == "noneg-both" {
            check_depths(&vector, None, &negotiated, &initiator_offer);
            continue;
        }
        for cut in [&[][..], &[1][..]] {
            let mut initiator = Initiator::new(initiator_offer.clone(), now()).unwrap();
            let mut outcome = None;
            for piece in pieces(&reply, cut) {
                let (taken, now) = initiator.handle_input(piece).unwrap();
                assert_eq!(taken, piece.len(), "{name}");
                outcome = outcome.or(now);
            }
            check_outcome(&vector, outcome.unwrap(), &negotiated, &initiator_offer);
        }
    }
}

fn responder_side(vector: &NegotiationVector, request: &[u8], reply: &[u8]) -> Negotiated {
    let name = vector.name.as_str();
    let Seen::Request(shown) = every_cut(request, responder) else { panic!("{name}") };
    let mut responder = Responder::new(Offer::default().timeout, now());
    responder.handle_input(request).unwrap();
    let offer = responder_offer(vector);
    let (sent, negotiated) = responder.accept(&shown, &offer).unwrap();
    let (sent, _) = StartupFrame::parse(FrameKind::Reply, &sent).unwrap().unwrap();
    let (mut expected, _) = StartupFrame::parse(FrameKind::Reply, reply).unwrap().unwrap();
    match name {
        // The initiator's wish is confirmed, some initiators go by the Reply alone.
        "crc-i1-r0" => expected.crc = true,
        // Replies that a responder of this crate would not send.
        "ird-insufficient-at-initiator" => {
            expected.enhanced.as_mut().unwrap().ord = Depth::Count(4);
        }
        "rtr-choice" => expected.enhanced.as_mut().unwrap().rtr = RtrTypes::WRITE,
        "ird-reject" => {
            let Enhanced { ird, ord, .. } = expected.enhanced.unwrap();
            let rejected = responder.reject_with_depths(&shown, ird, ord, &[]).unwrap();
            assert_eq!(rejected, reply, "{name}");
            return negotiated;
        }
        _ => {}
    }
    assert_eq!(sent, expected, "{name}");
    negotiated
}

fn check_outcome(
    vector: &NegotiationVector,
    outcome: Outcome,
    responder: &Negotiated,
    offer: &Offer,
) {
    let name = vector.name.as_str();
    let expect = &vector.expect;
    let initiator = match outcome {
        Outcome::Accepted(negotiated) => {
            assert!(expect.terminate.is_none() && !expect.rejected, "{name}");
            negotiated
        }
        Outcome::Rejected(rejection) => {
            assert!(expect.rejected, "{name}");
            assert_eq!(rejection.peer_ord, expect.needed_ord, "{name}");
            return;
        }
        Outcome::Unusable { reason, .. } => {
            let expected = expect.terminate.as_ref().unwrap();
            assert_eq!((expected.layer, expected.etype), (2, 0), "{name}");
            assert_eq!(reason.code(), expected.code, "{name}");
            assert_eq!(reason == Unusable::NoCommonRtr, name == "rtr-none", "{name}");
            return;
        }
    };
    if let Some(crc) = expect.crc_in_use {
        // MPA-014
        assert_eq!((initiator.crc, responder.crc), (crc, crc), "{name}");
    }
    if let Some(markers) = expect.initiator_sends_markers {
        // MPA-011, MPA-012
        assert_eq!((initiator.send_markers, responder.receive_markers), (markers, markers));
    }
    if let Some(markers) = expect.responder_sends_markers {
        // MPA-013
        assert_eq!((responder.send_markers, initiator.receive_markers), (markers, markers));
    }
    if let Some(enhanced) = expect.enhanced {
        // CONN-02
        assert!(!enhanced, "{name}");
        assert_eq!((initiator.revision, responder.revision), (1, 1), "{name}");
        assert_eq!(initiator.peer_ird, None, "{name}");
    }
    if let Some(rtr) = &expect.rtr {
        let one = match initiator.rtr {
            Some(Rtr::Send) => "send",
            Some(Rtr::Write) => "write",
            Some(Rtr::Read) => "read",
            None => "none",
        };
        // CONN-24
        let allowed = rtr.as_array().map_or_else(|| vec![rtr.clone()], Clone::clone);
        assert!(allowed.contains(&one.into()), "{name}: {one}");
        if name != "rtr-choice" {
            assert_eq!(initiator.rtr, responder.rtr, "{name}");
        }
    }
    check_depths(vector, Some(&initiator), responder, offer);
}

fn check_depths(
    vector: &NegotiationVector,
    initiator: Option<&Negotiated>,
    responder: &Negotiated,
    offer: &Offer,
) {
    let name = vector.name.as_str();
    let expect = &vector.expect;
    let answer = responder_offer(vector);
    let check = |expected: &Option<serde_json::Value>, found: u32, own: Depth| {
        let Some(expected) = expected else { return };
        match expected.as_u64() {
            Some(number) => assert_eq!(u64::from(found), number, "{name}"),
            None => assert_eq!(found, own.count().unwrap_or(0), "{name}: unchanged"),
        }
    };
    if let Some(initiator) = initiator {
        check(&expect.initiator_ird, initiator.ird, offer.ird);
        check(&expect.initiator_ord, initiator.ord, offer.ord);
    }
    check(&expect.responder_ird, responder.ird, answer.ird);
    check(&expect.responder_ord, responder.ord, answer.ord);
}
