//! Any two offers: both ends come to the same end.
#![allow(clippy::unwrap_used, reason = "a failed step fails the test")]

mod common;

use bytes::Bytes;
use common::{config, now, pieces};
use iwarp_mpa::{
    Depth, FrameKind, Framing, Initiator, Negotiated, Offer, Outcome, Rejection, Request,
    Responder, Revision, Role, Rtr, RtrTypes, StartupFrame, Unusable,
};
use proptest::collection::vec;
use proptest::prelude::*;

fn depth() -> impl Strategy<Value = Depth> {
    prop_oneof![
        1 => Just(Depth::NotNegotiated),
        2 => (0_u16..4).prop_map(Depth::Count),
        2 => (0..=Depth::MAX).prop_map(Depth::Count),
    ]
}

prop_compose! {
    fn offer()(
        v1 in prop::bool::weighted(0.2),
        markers: bool,
        crc: bool,
        ird in depth(),
        ord in depth(),
        rtr in 0_u8..8,
        private_data in vec(any::<u8>(), 0..=508),
    ) -> Offer {
        Offer {
            revision: if v1 { Revision::V1 } else { Revision::V2 },
            markers,
            crc,
            ird,
            ord,
            rtr: RtrTypes::from_bits_truncate(rtr),
            private_data: Bytes::from(private_data),
            ..Offer::default()
        }
    }
}

/// The Request as the responder's program sees it, and the two sides at that point.
fn ask(offer: &Offer, cut: &[usize]) -> (Initiator, Responder, Request) {
    let mut initiator = Initiator::new(offer.clone(), now()).unwrap();
    let mut responder = Responder::new(offer.timeout, now());
    let request = initiator.poll_transmit().unwrap();
    assert_eq!(initiator.poll_transmit(), None, "sent once");
    let mut shown = None;
    for piece in pieces(&request, cut) {
        let (taken, now) = responder.handle_input(piece).unwrap();
        assert_eq!(taken, piece.len());
        // MPA-005: nothing is sent before the program has decided.
        assert_eq!(responder.poll_transmit(), None);
        shown = shown.or(now);
    }
    (initiator, responder, shown.unwrap())
}

fn answer(initiator: &mut Initiator, reply: &[u8], cut: &[usize]) -> Outcome {
    let mut outcome = None;
    for piece in pieces(reply, cut) {
        let (taken, now) = initiator.handle_input(piece).unwrap();
        assert_eq!(taken, piece.len());
        outcome = outcome.or(now);
    }
    assert_eq!(initiator.poll_timeout(), None);
    outcome.unwrap()
}

/// The number in force where nothing is negotiated.
fn own(depth: Depth) -> u32 {
    depth.count().unwrap_or(0)
}

fn preferred(types: RtrTypes) -> Option<Rtr> {
    // D12
    [Rtr::Write, Rtr::Read, Rtr::Send].into_iter().find(|rtr| types.contains((*rtr).into()))
}

proptest! {
    #![proptest_config(config(1_000))]

    #[test]
    fn any_two_offers_agree(
        asking in offer(),
        answering in offer(),
        cut in vec(1_usize..600, 1..6),
    ) {
        let (mut initiator, responder, request) = ask(&asking, &cut);
        prop_assert_eq!(&request.private_data, &asking.private_data);
        let (reply, there) = responder.accept(&request, &answering).unwrap();
        let (frame, _) = StartupFrame::parse(FrameKind::Reply, &reply).unwrap().unwrap();
        prop_assert_eq!(frame.revision, request.revision);
        // CONN-06
        prop_assert_eq!(frame.enhanced.is_some(), request.enhanced.is_some());

        let outcome = answer(&mut initiator, &reply, &cut);
        let (here, unusable) = match outcome {
            Outcome::Accepted(negotiated) => (negotiated, None),
            Outcome::Unusable { reason, negotiated } => (negotiated, Some(reason)),
            Outcome::Rejected(_) => return Err(TestCaseError::fail("nobody rejected")),
        };
        prop_assert_eq!((here.role, there.role), (Role::Initiator, Role::Responder));
        prop_assert_eq!(here.revision, there.revision);
        prop_assert_eq!(&here.private_data, &answering.private_data);
        prop_assert_eq!(&there.private_data, &asking.private_data);
        agreed_framing(&asking, &answering, &here, &there)?;

        if let (Some(asked), Some(answered)) = (request.enhanced, frame.enhanced) {
                // CONN-11
                prop_assert_eq!(here.peer_ird, answered.ird.count());
                prop_assert_eq!(here.peer_ord, answered.ord.count());
                prop_assert_eq!(there.peer_ird, asked.ird.count());
                prop_assert_eq!(there.peer_ord, asked.ord.count());
                agreed_depths(&asking, &answering, &here, &there, answered.rtr)?;
                agreed_rtr(&asking, &answering, &here, &there, unusable)?;
                // CONN-22, CONN-26, FC-009
                prop_assert_eq!(answered.peer_to_peer, asked.peer_to_peer);
                let named = answered.rtr.iter().count();
                prop_assert_eq!(named, usize::from(asked.peer_to_peer));
            } else {
                prop_assert_eq!(unusable, None);
                for (side, offer) in [(&here, &asking), (&there, &answering)] {
                    prop_assert_eq!((side.ird, side.ord), (own(offer.ird), own(offer.ord)));
                    prop_assert_eq!((side.peer_ird, side.peer_ord, side.rtr), (None, None, None));
                }
        }
    }

    /// Linux siw as initiator does not survive a Reply with S set and less than the four octets of IRD and ORD, nor
    /// one with more than 256 octets of private data, IRD and ORD included. Nothing but the program's own private data
    /// makes a Reply that long.
    #[test]
    fn replies_are_no_longer_than_the_program_makes_them(
        asking in offer(),
        answering in offer(),
        private_data in vec(any::<u8>(), 0..=252),
        rejected: bool,
    ) {
        let (_, responder, request) = ask(&asking, &[600]);
        let reply = if rejected {
            responder.reject(&request, &private_data).unwrap()
        } else {
            let answering = Offer { private_data: private_data.clone().into(), ..answering };
            responder.accept(&request, &answering).unwrap().0
        };
        let block = if reply[16] & 0x10 == 0 { 0 } else { 4 };
        let length = usize::from(u16::from_be_bytes([reply[18], reply[19]]));
        prop_assert_eq!(length, block + private_data.len());
        prop_assert_eq!(reply.len(), 20 + length);
        prop_assert!(length <= 256);
    }

    // MPA-023, MPA-027, CONN-11, CONN-15
    #[test]
    fn a_rejection_arrives_with_all_it_says(
        asking in offer(),
        private_data in vec(any::<u8>(), 0..=508),
        needed in prop::option::of((depth(), depth())),
        cut in vec(1_usize..600, 1..6),
    ) {
        let (mut initiator, responder, request) = ask(&asking, &cut);
        let reply = match needed {
            Some((ird, ord)) => responder.reject_with_depths(&request, ird, ord, &private_data),
            None => responder.reject(&request, &private_data),
        }
        .unwrap();
        let depths = request.enhanced.map(|asked| needed.unwrap_or((asked.ord, asked.ird)));
        let expected = Rejection {
            revision: request.revision,
            peer_ird: depths.and_then(|(ird, _)| ird.count()),
            peer_ord: depths.and_then(|(_, ord)| ord.count()),
            private_data: Bytes::from(private_data),
        };
        prop_assert_eq!(answer(&mut initiator, &reply, &cut), Outcome::Rejected(expected));
    }
}

// MPA-011, MPA-012, MPA-013, MPA-014
fn agreed_framing(
    asking: &Offer,
    answering: &Offer,
    here: &Negotiated,
    there: &Negotiated,
) -> Result<(), TestCaseError> {
    let (near, far) = (Framing::from(here), Framing::from(there));
    prop_assert_eq!((near.crc, far.crc), (asking.crc || answering.crc, near.crc));
    prop_assert_eq!(near.receive_markers, asking.markers);
    prop_assert_eq!(far.receive_markers, answering.markers);
    prop_assert_eq!(near.send_markers, far.receive_markers);
    prop_assert_eq!(far.send_markers, near.receive_markers);
    Ok(())
}

// CONN-12, CONN-13, CONN-14, CONN-16, CONN-18, CONN-19, CONN-20
fn agreed_depths(
    asking: &Offer,
    answering: &Offer,
    here: &Negotiated,
    there: &Negotiated,
    named: RtrTypes,
) -> Result<(), TestCaseError> {
    prop_assert_eq!(here.ird, own(asking.ird));
    if let (Depth::Count(wanted), Depth::Count(_)) = (asking.ord, answering.ird) {
        prop_assert!(here.ord <= there.ird, "more reads than the responder holds");
        prop_assert_eq!(here.ord, there.ird.min(wanted.into()));
    } else {
        prop_assert_eq!(here.ord, own(asking.ord));
    }
    // Raised for nothing but an RTR by Read.
    let least = u32::from(named == RtrTypes::READ);
    prop_assert_eq!(there.ird, own(answering.ird).max(least));
    if let (Depth::Count(held), Depth::Count(wanted)) = (asking.ird, answering.ord) {
        prop_assert_eq!(there.ord, u32::from(held.min(wanted)));
        prop_assert!(there.ord <= here.ird, "more reads than the initiator holds");
    } else {
        prop_assert_eq!(there.ord, own(answering.ord));
    }
    Ok(())
}

// CONN-21, CONN-22, CONN-23, CONN-24, CONN-25
fn agreed_rtr(
    asking: &Offer,
    answering: &Offer,
    here: &Negotiated,
    there: &Negotiated,
    unusable: Option<Unusable>,
) -> Result<(), TestCaseError> {
    prop_assert_eq!(here.rtr, there.rtr);
    let taken = if answering.rtr.is_empty() { RtrTypes::all() } else { answering.rtr };
    let common = preferred(asking.rtr & taken);
    prop_assert_eq!(here.rtr, common);
    let none = !asking.rtr.is_empty() && common.is_none();
    prop_assert_eq!(unusable, none.then_some(Unusable::NoCommonRtr));
    Ok(())
}
