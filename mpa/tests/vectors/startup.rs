//! Start-up frames, one by one.

use bytes::Bytes;
use iwarp_mpa::{
    Error, FrameKind, Initiator, Offer, Outcome, Responder, Revision, StartupError, StartupFrame,
};
use serde::Deserialize;

use crate::common::now;
use crate::{FrameFields, Seen, book, every_cut, initiator, responder};

#[derive(Deserialize)]
struct StartupVector {
    name: String,
    kind: String,
    hex: String,
    length: usize,
    fields: StartupFields,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum StartupFields {
    Whole(FrameFields),
    Truncated { truncated: bool },
}

#[test]
fn startup_frames() {
    for vector in book::<StartupVector>("mpa_startup.json") {
        let name = vector.name.as_str();
        let octets = hex::decode(&vector.hex).unwrap();
        assert_eq!(octets.len(), vector.length, "{name}");
        match (vector.kind.as_str(), &vector.fields) {
            ("valid" | "lenient", StartupFields::Whole(fields)) => {
                let (frame, len) = StartupFrame::parse(fields.kind(), &octets).unwrap().unwrap();
                assert_eq!(len, octets.len(), "{name}");
                fields.check(name, &frame);
                for end in 0..octets.len() {
                    let part = StartupFrame::parse(fields.kind(), &octets[..end]);
                    assert_eq!(part, Ok(None), "{name} cut at {end}");
                }
                // MPA-016, MPA-017: what is odd on receipt is never sent.
                let again = frame.encode().unwrap();
                if vector.kind == "valid" {
                    assert_eq!(again, octets, "{name}");
                } else {
                    let odd = again.iter().zip(&octets).filter(|(ours, theirs)| ours != theirs);
                    assert!(odd.count() <= 2, "{name}");
                }
                whole_side(name, fields, &octets, &frame);
            }
            ("invalid", fields) => refused(name, fields, &octets),
            _ => panic!("{name}: a vector of a kind that is not known"),
        }
    }
}

fn whole_side(name: &str, fields: &FrameFields, octets: &[u8], frame: &StartupFrame) {
    match (fields.kind(), every_cut_of(fields.kind(), octets)) {
        // Well formed, and not served (MPA-018).
        (_, seen) if fields.rev == 0 => {
            assert_eq!(seen, Seen::Failed(StartupError::Revision(0).into()), "{name}");
        }
        (FrameKind::Request, Seen::Request(request)) => {
            assert_eq!(request.private_data, frame.private_data, "{name}");
            assert_eq!(request.enhanced, frame.enhanced, "{name}");
        }
        (FrameKind::Reply, Seen::Outcome(outcome)) => {
            assert_eq!(matches!(outcome, Outcome::Rejected(_)), fields.r, "{name}");
        }
        // The initiator here asks for an enhanced connection (CONN-06).
        (FrameKind::Reply, Seen::Failed(Error::Startup(StartupError::PlainReply(1)))) => {
            assert_eq!(fields.rev, 1, "{name}");
        }
        (_, seen) => panic!("{name}: {seen:?}"),
    }
}

fn every_cut_of(kind: FrameKind, octets: &[u8]) -> Seen {
    match kind {
        FrameKind::Request => every_cut(octets, responder),
        FrameKind::Reply => every_cut(octets, initiator),
    }
}

/// MPA-022, MPA-026: badly formed frames, each with the fault it is meant to show.
fn refused(name: &str, fields: &StartupFields, octets: &[u8]) {
    let (seen, expected) = match name {
        "bad-req-key" => (every_cut(octets, responder), StartupError::WrongKey { offset: 7 }),
        "bad-initiator-initiator" => {
            (every_cut(octets, initiator), StartupError::InitiatorInitiator)
        }
        "bad-reply-at-responder" => {
            (every_cut(octets, responder), StartupError::WrongKey { offset: 9 })
        }
        "bad-pd513" => (every_cut(octets, responder), StartupError::PrivateDataLength(513)),
        "bad-pd-65535" => (every_cut(octets, responder), StartupError::PrivateDataLength(65_535)),
        "bad-rev3" => (every_cut(octets, responder), StartupError::Revision(3)),
        "bad-enh-short" => (every_cut(octets, responder), StartupError::EnhancedTruncated(2)),
        "bad-pd-extra" => {
            let StartupFields::Whole(fields) = fields else { panic!("{name}") };
            let len = fields.private_data_present - fields.pd_length;
            // How many octets are seen to be too many depends on the cut; that there are, does not.
            for at in 1..octets.len() {
                let seen = responder(octets, &[at, usize::MAX]);
                assert!(
                    matches!(
                        seen,
                        Seen::Failed(Error::Startup(StartupError::DataAfterRequest { .. }))
                    ),
                    "{name} cut at {at}: {seen:?}"
                );
            }
            (responder(octets, &[]), StartupError::DataAfterRequest { len })
        }
        "bad-pd-short" | "bad-truncated-header" => {
            if let StartupFields::Truncated { truncated } = fields {
                assert!(truncated, "{name}");
            }
            let mut responder = Responder::new(Offer::default().timeout, now());
            assert_eq!(responder.handle_input(octets), Ok((octets.len(), None)), "{name}");
            let error = responder.handle_eof();
            (Seen::Failed(error), StartupError::Closed { received: octets.len() })
        }
        _ => panic!("{name}: a fault that is not known"),
    };
    assert_eq!(seen, Seen::Failed(expected.into()), "{name}");
}

/// MPA-021: what does not fit into a frame is refused before anything is sent.
#[test]
fn private_data_of_this_side() {
    let plain = |len| Offer {
        revision: Revision::V1,
        private_data: Bytes::from(vec![7; len]),
        ..Offer::default()
    };
    let enhanced = |len| Offer { private_data: Bytes::from(vec![7; len]), ..Offer::default() };
    assert!(Initiator::new(plain(512), now()).is_ok());
    assert!(Initiator::new(enhanced(508), now()).is_ok());
    let too_long = |len, max| Error::Startup(StartupError::PrivateDataTooLong { len, max });
    assert_eq!(Initiator::new(plain(513), now()).unwrap_err(), too_long(513, 512));
    assert_eq!(Initiator::new(enhanced(509), now()).unwrap_err(), too_long(509, 508));
}
