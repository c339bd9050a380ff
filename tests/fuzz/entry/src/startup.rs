//! Start-up frames of a peer: in any cut they mean the same, no octet behind them is taken, and what was agreed
//! on is what both frames say.
//!
//! Input: an octet of flags of this side's offer (1: revision 1; 2: markers; 4: CRC; 8, 16, 32: RTR by Send, Write,
//! Read; 64: the right key stands in front of what follows), two octets each of IRD and ORD, one of private data,
//! three lengths of pieces, and then the octets of the peer.

use std::time::Duration;

use bytes::Bytes as Octets;
use iwarp_mpa::{
    Depth, Enhanced, Error, FrameKind, Initiator, Negotiated, Offer, Outcome, Request, Responder,
    Revision, Role, Rtr, RtrTypes, StartupError, StartupFrame,
};

use crate::bytes::{Bytes, pieces};
use crate::common::start;

/// The longest start-up frame.
const LONGEST: usize = 532;
const LIMIT: Duration = Duration::from_secs(5);

/// An initiator, and what a responder may answer it.
pub fn initiator(input: &[u8]) {
    let Case { offer, cuts, octets } = Case::read(input, *b"MPA ID Rep Frame");
    let now = start();
    let verdict = Verdict::of(FrameKind::Reply, &octets);
    parses_as(FrameKind::Reply, &octets, &verdict);

    let mut whole = Initiator::new(offer.clone(), now).expect("an offer that fits");
    check_request(&offer, &whole.poll_transmit().expect("a Request"));
    assert_eq!(whole.poll_transmit(), None, "sent once");
    let first = whole.handle_input(&octets);
    let mut cut = Initiator::new(offer.clone(), now).expect("as before");
    let mut taken = 0;
    let mut second = Ok(None);
    for piece in pieces(&octets, cuts) {
        match cut.handle_input(piece) {
            Ok((octets, outcome)) => {
                taken += octets;
                if let Some(outcome) = outcome {
                    second = Ok(Some(outcome));
                    break;
                }
                assert_eq!(octets, piece.len(), "without an outcome all is taken");
            }
            Err(error) => {
                second = Err(error);
                break;
            }
        }
    }
    // FC-002
    assert_eq!(first.as_ref().map(|(_, outcome)| outcome), second.as_ref(), "the cut tells");
    match first {
        Ok((octets, outcome)) => {
            assert_eq!(octets, taken);
            assert!(taken <= LONGEST);
            match (&verdict, outcome) {
                (Verdict::Frame(frame, len), Some(outcome)) => {
                    // FC-001
                    assert_eq!(taken, *len);
                    concluded(&offer, frame, outcome);
                    assert_eq!(whole.poll_timeout(), None);
                    assert_eq!(whole.handle_input(&octets_behind()), Ok((0, None)));
                }
                (Verdict::More, None) => {
                    assert_eq!(whole.poll_timeout(), now.checked_add(offer.timeout));
                    let error = whole.handle_eof();
                    assert_eq!(error, StartupError::Closed { received: taken }.into());
                }
                (verdict, outcome) => panic!("{outcome:?} of {verdict:?}"),
            }
        }
        Err(error) => {
            refused(&error, &verdict);
            // MPA-026: for ever.
            assert_eq!(whole.handle_input(&octets_behind()).as_ref(), Err(&error));
            assert_eq!(whole.poll_timeout(), None);
            assert_eq!(whole.handle_eof(), error);
        }
    }
}

/// A responder, and what an initiator may ask of it.
pub fn responder(input: &[u8]) {
    let Case { offer, cuts, octets } = Case::read(input, *b"MPA ID Req Frame");
    let now = start();
    let verdict = Verdict::of(FrameKind::Request, &octets);
    parses_as(FrameKind::Request, &octets, &verdict);

    let mut whole = Responder::new(LIMIT, now);
    let first = whole.handle_input(&octets);
    let mut cut = Responder::new(LIMIT, now);
    let mut seen = None;
    let mut failed = None;
    for piece in pieces(&octets, cuts) {
        assert_eq!(cut.poll_transmit(), None, "nothing is said before a whole Request");
        match cut.handle_input(piece) {
            Ok((taken, request)) => {
                assert_eq!(taken, piece.len());
                seen = seen.or(request);
            }
            Err(error) => {
                failed = Some(error);
                break;
            }
        }
    }
    match &verdict {
        Verdict::More => {
            assert_eq!(first, Ok((octets.len(), None)));
            assert_eq!((seen, failed), (None, None));
            assert_eq!(whole.poll_timeout(), now.checked_add(LIMIT));
            assert!(whole.handle_timeout(now + LIMIT).is_err());
        }
        Verdict::Frame(frame, len) if frame.revision > 0 => {
            let behind = octets.len() - len;
            if behind > 0 {
                // MPA-020
                let error = StartupError::DataAfterRequest { len: behind };
                assert_eq!(first, Err(error.into()));
                let error = failed.expect("data behind the Request");
                assert!(matches!(
                    error,
                    Error::Startup(StartupError::DataAfterRequest { len }) if len <= behind
                ));
            } else {
                let (taken, request) = first.expect("a Request");
                assert_eq!(taken, *len);
                assert_eq!(request, seen, "the cut tells");
                assert_eq!(whole.poll_timeout(), None);
                let request = request.expect("a Request");
                decided(&whole, &request, frame, &offer);
            }
        }
        Verdict::Frame(..) | Verdict::Bad(_) => {
            let error = first.expect_err("no Request");
            refused(&error, &verdict);
            // Of octets behind a frame of revision 0 the cut decides who complains first: the frame.
            assert_eq!(failed, Some(error.clone()));
            // MPA-018: only revision 0 gets an answer.
            let answer = whole.poll_transmit();
            assert_eq!(answer.is_some(), matches!(verdict, Verdict::Frame(..)));
            assert_eq!(whole.handle_input(&octets_behind()), Err(error));
        }
    }
}

/// Octets that stand behind something.
fn octets_behind() -> [u8; 3] {
    [0, 1, 2]
}

struct Case {
    offer: Offer,
    cuts: [u8; 3],
    octets: Vec<u8>,
}

impl Case {
    fn read(input: &[u8], key: [u8; 16]) -> Self {
        let mut input = Bytes::new(input);
        let flags = input.u8();
        let mut depth = || match input.u16() {
            count if count > Depth::MAX => Depth::NotNegotiated,
            count => Depth::Count(count),
        };
        let offer = Offer {
            revision: if flags & 1 != 0 { Revision::V1 } else { Revision::V2 },
            markers: flags & 2 != 0,
            crc: flags & 4 != 0,
            ird: depth(),
            ord: depth(),
            rtr: RtrTypes::from_bits_truncate(flags >> 3),
            private_data: vec![flags; input.u8().into()].into(),
            timeout: LIMIT,
        };
        let cuts = [input.u8(), input.u8(), input.u8()];
        let front = if flags & 64 != 0 { &key[..] } else { &[] };
        Self { offer, cuts, octets: [front, input.rest()].concat() }
    }
}

/// What the octets of a peer are, by the letter of RFC 5044 §7.1 and RFC 6581 §9.
#[derive(Debug)]
enum Verdict {
    More,
    /// A frame, and its length.
    Frame(StartupFrame, usize),
    Bad(StartupError),
}

impl Verdict {
    fn of(kind: FrameKind, octets: &[u8]) -> Self {
        let (key, other) = match kind {
            FrameKind::Request => (b"MPA ID Req Frame", b"MPA ID Rep Frame"),
            FrameKind::Reply => (b"MPA ID Rep Frame", b"MPA ID Req Frame"),
        };
        let wrong = (0..octets.len().min(16)).find(|&at| octets[at] != key[at]);
        if let Some(offset) = wrong {
            let is_other = octets.get(9) == Some(&other[9]);
            return Self::Bad(if kind == FrameKind::Reply && offset == 9 && is_other {
                StartupError::InitiatorInitiator
            } else {
                StartupError::WrongKey { offset }
            });
        }
        match octets {
            _ if octets.len() < 18 => return Self::More,
            _ if octets[17] > 2 => return Self::Bad(StartupError::Revision(octets[17])),
            _ if octets.len() < 20 => return Self::More,
            _ => {}
        }
        let (flags, revision) = (octets[16], octets[17]);
        let length = u16::from_be_bytes([octets[18], octets[19]]);
        if length > 512 {
            return Self::Bad(StartupError::PrivateDataLength(length));
        }
        let is_enhanced = revision == 2 && flags & 0x10 != 0;
        if is_enhanced && length < 4 {
            return Self::Bad(StartupError::EnhancedTruncated(length));
        }
        let len = 20 + usize::from(length);
        let Some(private_data) = octets.get(20..len) else { return Self::More };
        let (block, private_data) = private_data.split_at(if is_enhanced { 4 } else { 0 });
        let enhanced = is_enhanced.then(|| {
            let depth = |high: u8, low: u8| match u16::from_be_bytes([high & 0x3f, low]) {
                0x3fff => Depth::NotNegotiated,
                count => Depth::Count(count),
            };
            let peer_to_peer = block[0] & 0x80 != 0;
            let mut rtr = RtrTypes::empty();
            rtr.set(RtrTypes::SEND, peer_to_peer && block[0] & 0x40 != 0);
            rtr.set(RtrTypes::WRITE, peer_to_peer && block[2] & 0x80 != 0);
            rtr.set(RtrTypes::READ, peer_to_peer && block[2] & 0x40 != 0);
            let (ird, ord) = (depth(block[0], block[1]), depth(block[2], block[3]));
            Enhanced { peer_to_peer, rtr, ird, ord }
        });
        let frame = StartupFrame {
            kind,
            markers: flags & 0x80 != 0,
            crc: flags & 0x40 != 0,
            reject: flags & 0x20 != 0,
            revision,
            enhanced,
            private_data: Octets::copy_from_slice(private_data),
        };
        Self::Frame(frame, len)
    }
}

/// The parser says the same, and what it has read is written and read again.
fn parses_as(kind: FrameKind, octets: &[u8], verdict: &Verdict) {
    match (StartupFrame::parse(kind, octets), verdict) {
        (Ok(None), Verdict::More) => {}
        (Ok(Some((frame, len))), Verdict::Frame(expected, wanted)) => {
            assert_eq!((&frame, len), (expected, *wanted));
            let encoded = frame.encode().expect("a frame that came in can go out");
            let (again, len) = StartupFrame::parse(kind, &encoded).expect("good").expect("whole");
            assert_eq!(len, encoded.len());
            // MPA-017: R of a Request means nothing.
            let reject = frame.reject && kind == FrameKind::Reply;
            assert_eq!(again, StartupFrame { reject, ..frame });
        }
        (Err(error), Verdict::Bad(expected)) => assert_eq!(error, *expected),
        (parsed, verdict) => panic!("{parsed:?}, but {verdict:?}"),
    }
}

fn refused(error: &Error, verdict: &Verdict) {
    let Error::Startup(error) = error else { panic!("{error:?}") };
    match verdict {
        Verdict::Bad(expected) => assert_eq!(error, expected),
        // MPA-018, CONN-06
        Verdict::Frame(frame, _) => match error {
            StartupError::Revision(0) => assert_eq!(frame.revision, 0),
            StartupError::PlainReply(revision) => {
                assert_eq!((*revision, frame.enhanced), (frame.revision, None));
            }
            StartupError::EnhancedReply => assert!(frame.enhanced.is_some()),
            other => panic!("{other:?} for {frame:?}"),
        },
        Verdict::More => panic!("{error:?} though more has to come"),
    }
}

fn check_request(offer: &Offer, octets: &[u8]) {
    let (frame, len) =
        StartupFrame::parse(FrameKind::Request, octets).expect("good").expect("whole");
    assert_eq!(len, octets.len());
    assert!(len <= LONGEST);
    assert_eq!((frame.markers, frame.crc), (offer.markers, offer.crc));
    assert_eq!(frame.private_data, offer.private_data);
    if let Some(asked) = frame.enhanced {
        assert_eq!((asked.ird, asked.ord, asked.rtr), (offer.ird, offer.ord, offer.rtr));
    }
}

/// The outcome for an initiator follows from its offer and the Reply.
fn concluded(offer: &Offer, reply: &StartupFrame, outcome: Outcome) {
    let negotiated = match outcome {
        Outcome::Rejected(rejection) => {
            assert!(reply.reject);
            assert_eq!(rejection.private_data, reply.private_data);
            return;
        }
        Outcome::Accepted(negotiated) => negotiated,
        Outcome::Unusable { reason, negotiated } => {
            assert!(matches!(reason.code(), 6 | 7));
            negotiated
        }
    };
    assert!(!reply.reject);
    assert_eq!(negotiated.role, Role::Initiator);
    // MPA-011 to MPA-014
    assert_eq!(negotiated.crc, offer.crc || reply.crc);
    assert_eq!(negotiated.send_markers, reply.markers);
    assert_eq!(negotiated.receive_markers, offer.markers);
    assert_eq!(negotiated.private_data, reply.private_data);
    // CONN-16
    if let (Depth::Count(wanted), Some(held)) = (offer.ord, negotiated.peer_ird) {
        assert_eq!(negotiated.ord, held.min(wanted.into()));
    }
    check_rtr(offer.rtr, negotiated.rtr);
}

fn check_rtr(allowed: RtrTypes, rtr: Option<Rtr>) {
    assert!(rtr.is_none_or(|rtr| allowed.contains(rtr.into())), "an RTR that nobody offered");
}

/// Whatever a responder answers is a Reply that the initiator of that Request takes.
fn decided(responder: &Responder, request: &Request, frame: &StartupFrame, offer: &Offer) {
    assert_eq!(request.enhanced, frame.enhanced);
    assert_eq!(request.private_data, frame.private_data);
    let (reply, there) = responder.accept(request, offer).expect("private data fits");
    let refusal = responder.reject(request, &offer.private_data).expect("private data fits");
    assert!(reply.len() <= LONGEST && refusal.len() <= LONGEST);
    check_rtr(request.enhanced.map_or(RtrTypes::empty(), |asked| asked.rtr), there.rtr);
    if let Some(held) = there.peer_ird {
        // CONN-12
        assert!(matches!(offer.ord, Depth::NotNegotiated) || there.ord <= held);
    }
    let Some(asking) = offer_of(request) else { return };
    let answered = |reply: &[u8]| {
        let mut initiator = Initiator::new(asking.clone(), start()).expect("an offer that fits");
        let (taken, outcome) = initiator.handle_input(reply).expect("a Reply");
        assert_eq!(taken, reply.len());
        outcome.expect("an outcome")
    };
    match answered(&refusal) {
        Outcome::Rejected(rejection) => assert_eq!(rejection.private_data, offer.private_data),
        other => panic!("{other:?}"),
    }
    match answered(&reply) {
        Outcome::Accepted(here) | Outcome::Unusable { negotiated: here, .. } => {
            agree(&here, &there);
        }
        Outcome::Rejected(rejection) => panic!("{rejection:?}"),
    }
}

fn agree(here: &Negotiated, there: &Negotiated) {
    assert_eq!((here.crc, here.revision), (there.crc, there.revision));
    assert_eq!(here.send_markers, there.receive_markers);
    assert_eq!(here.receive_markers, there.send_markers);
    assert_eq!(here.rtr, there.rtr);
    if here.peer_ird.is_some() && there.peer_ord.is_some() {
        assert!(here.ord <= there.ird, "more Reads than the responder holds");
    }
}

/// The offer that makes such a Request, if this side would ever make it.
fn offer_of(request: &Request) -> Option<Offer> {
    let none = Depth::NotNegotiated;
    let (ird, ord, rtr) = match request.enhanced {
        None => (none, none, RtrTypes::empty()),
        // CONN-05: an enhanced Request that asks for nothing, or a model without a way to begin.
        Some(asked) if asked.peer_to_peer == asked.rtr.is_empty() => return None,
        Some(asked) if asked.rtr.is_empty() && (asked.ird, asked.ord) == (none, none) => {
            return None;
        }
        Some(asked) => (asked.ird, asked.ord, asked.rtr),
    };
    Some(Offer {
        revision: if request.enhanced.is_some() { Revision::V2 } else { Revision::V1 },
        markers: request.markers,
        crc: request.crc,
        ird,
        ord,
        rtr,
        private_data: request.private_data.clone(),
        timeout: LIMIT,
    })
}
