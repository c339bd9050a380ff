//! Start-up frames and their state machines, wherever the stream is cut or ends.
#![allow(clippy::unwrap_used, reason = "a failed step fails the test")]

mod common;

use std::time::Duration;

use bytes::Bytes;
use common::{config, now, pieces};
use iwarp_mpa::{
    Depth, Enhanced, Error, FrameKind, Initiator, Offer, Responder, RtrTypes, STARTUP_HEADER_LEN,
    StartupError, StartupFrame,
};
use proptest::collection::vec;
use proptest::prelude::*;

fn depth() -> impl Strategy<Value = Depth> {
    // CONN-28
    prop_oneof![
        Just(Depth::NotNegotiated),
        Just(Depth::Count(0)),
        Just(Depth::Count(1)),
        Just(Depth::Count(Depth::MAX)),
        (0..=Depth::MAX).prop_map(Depth::Count),
    ]
}

fn enhanced() -> impl Strategy<Value = Enhanced> {
    (any::<bool>(), 0_u8..8, depth(), depth()).prop_map(|(peer_to_peer, rtr, ird, ord)| {
        let rtr = if peer_to_peer { RtrTypes::from_bits_truncate(rtr) } else { RtrTypes::empty() };
        Enhanced { peer_to_peer, rtr, ird, ord }
    })
}

fn kind() -> impl Strategy<Value = FrameKind> {
    prop_oneof![Just(FrameKind::Request), Just(FrameKind::Reply)]
}

fn startup_frame() -> impl Strategy<Value = StartupFrame> {
    let flags = (any::<bool>(), any::<bool>(), any::<bool>());
    (kind(), flags, 0_u8..=2, enhanced(), any::<bool>(), vec(any::<u8>(), 0..=508)).prop_map(
        |(kind, (markers, crc, reject), revision, enhanced, with_block, private_data)| {
            StartupFrame {
                kind,
                markers,
                crc,
                reject: reject && kind == FrameKind::Reply,
                revision,
                enhanced: (revision == 2 && with_block).then_some(enhanced),
                private_data: Bytes::from(private_data),
            }
        },
    )
}

/// What a side makes of octets that come in pieces: how many it took, and what it found.
fn drive(kind: FrameKind, octets: &[u8], cut: &[usize]) -> (usize, Option<Result<String, Error>>) {
    let mut taken = 0;
    match kind {
        FrameKind::Request => {
            let mut side = Responder::new(Duration::from_secs(1), now());
            for piece in pieces(octets, cut) {
                match side.handle_input(piece) {
                    Ok((some, request)) => {
                        taken += some;
                        if let Some(request) = request {
                            return (taken, Some(Ok(format!("{request:?}"))));
                        }
                    }
                    Err(error) => return (taken, Some(Err(error))),
                }
            }
        }
        FrameKind::Reply => {
            let mut side = Initiator::new(Offer::default(), now()).unwrap();
            for piece in pieces(octets, cut) {
                match side.handle_input(piece) {
                    Ok((some, outcome)) => {
                        taken += some;
                        if let Some(outcome) = outcome {
                            return (taken, Some(Ok(format!("{outcome:?}"))));
                        }
                    }
                    Err(error) => return (taken, Some(Err(error))),
                }
            }
        }
    }
    (taken, None)
}

proptest! {
    #![proptest_config(config(512))]

    // MPA-019, MPA-032, CONN-03, CONN-04
    #[test]
    fn a_frame_is_read_as_it_was_written(
        frame in startup_frame(),
        behind in vec(any::<u8>(), 0..40),
    ) {
        let octets = frame.encode().unwrap();
        let counted = frame.private_data.len() + if frame.enhanced.is_some() { 4 } else { 0 };
        prop_assert_eq!(octets.len(), STARTUP_HEADER_LEN + counted);
        let stream = [&octets[..], &behind[..]].concat();
        let parsed = StartupFrame::parse(frame.kind, &stream);
        prop_assert_eq!(parsed, Ok(Some((frame.clone(), octets.len()))));
        for end in 0..octets.len() {
            prop_assert_eq!(StartupFrame::parse(frame.kind, &octets[..end]), Ok(None));
        }
    }

    // MPA-001, MPA-037: a side takes the frame and not one octet more, in any cut.
    #[test]
    fn any_cut_of_a_frame_is_the_same(
        frame in startup_frame(),
        behind in vec(any::<u8>(), 0..40),
        cut in vec(1_usize..60, 1..20),
    ) {
        let octets = frame.encode().unwrap();
        let (taken, whole) = drive(frame.kind, &octets, &[]);
        let (taken_cut, pieced) = drive(frame.kind, &octets, &cut);
        prop_assert_eq!(&whole, &pieced);
        if matches!(whole, Some(Ok(_))) {
            prop_assert_eq!((taken, taken_cut), (octets.len(), octets.len()));
        }
        if frame.kind == FrameKind::Reply {
            // FC-001
            let glued = [&octets[..], &behind[..]].concat();
            let (taken_glued, glued) = drive(frame.kind, &glued, &[]);
            prop_assert_eq!(&whole, &glued);
            prop_assert_eq!(taken_glued, taken);
        }
    }

    /// Damaged frames: no panic, and the same verdict in any cut (MPA-006, MPA-007, MPA-018,
    /// MPA-020).
    #[test]
    fn any_cut_of_a_damaged_frame_is_the_same(
        frame in startup_frame(),
        damage in vec((0_usize..24, any::<u8>()), 0..3),
        cut in vec(1_usize..60, 1..20),
    ) {
        let mut octets = frame.encode().unwrap().to_vec();
        for (at, octet) in damage {
            if let Some(place) = octets.get_mut(at) {
                *place = octet;
            }
        }
        let (_, whole) = drive(frame.kind, &octets, &[]);
        let (_, pieced) = drive(frame.kind, &octets, &cut);
        let (_, trickled) = drive(frame.kind, &octets, &[1]);
        // Octets behind a Request are an error if they are seen with it, and not asked for here
        // else.
        if !matches!(
            whole,
            Some(Err(Error::Startup(StartupError::DataAfterRequest { .. })))
        ) {
            prop_assert_eq!(&whole, &pieced);
            prop_assert_eq!(&whole, &trickled);
        }
    }

    /// SEC-22: a fault is reported by the octet that shows it, whatever may follow.
    #[test]
    fn a_wrong_key_is_refused_at_its_first_wrong_octet(
        kind in kind(),
        at in 0_usize..16,
        wrong: u8,
    ) {
        let other = match kind {
            FrameKind::Request => b"MPA ID Req Frame",
            FrameKind::Reply => b"MPA ID Rep Frame",
        };
        let mut octets = other.to_vec();
        prop_assume!(octets[at] != wrong);
        octets[at] = wrong;
        prop_assert_eq!(StartupFrame::parse(kind, &octets[..at]), Ok(None));
        // MPA-008
        let expected = if kind == FrameKind::Reply && at == 9 && wrong == b'q' {
            StartupError::InitiatorInitiator
        } else {
            StartupError::WrongKey { offset: at }
        };
        prop_assert_eq!(StartupFrame::parse(kind, &octets[..=at]), Err(expected.clone()));
        prop_assert_eq!(StartupFrame::parse(kind, &octets), Err(expected));
    }

    /// The connection ends inside the frame: at every octet an error, and none of it is a frame.
    #[test]
    fn eof_at_every_octet(frame in startup_frame(), seconds in 1_u64..100) {
        prop_assume!(frame.revision != 0);
        let octets = frame.encode().unwrap();
        let start = now();
        let timeout = Duration::from_secs(seconds);
        for end in 0..octets.len() {
            let closed = Error::Startup(StartupError::Closed { received: end });
            if frame.kind == FrameKind::Request {
                let mut side = Responder::new(timeout, start);
                prop_assert_eq!(side.handle_input(&octets[..end]), Ok((end, None)));
                prop_assert_eq!(side.handle_eof(), closed.clone());
                prop_assert_eq!(side.handle_input(&octets[end..]), Err(closed));
                prop_assert_eq!(side.poll_timeout(), None);
                prop_assert_eq!(side.poll_transmit(), None);
            } else {
                let offer = Offer { timeout, ..Offer::default() };
                let mut side = Initiator::new(offer, start).unwrap();
                prop_assert_eq!(side.handle_input(&octets[..end]), Ok((end, None)));
                prop_assert_eq!(side.handle_eof(), closed.clone());
                // CONN-08
                let refused = StartupError::Closed { received: end };
                prop_assert_eq!(refused.suggests_revision_1(), end == 0);
                prop_assert_eq!(side.handle_input(&octets[end..]), Err(closed));
                prop_assert_eq!(side.poll_timeout(), None);
            }
        }
    }

    // MPA-009, MPA-010: the time runs from the start, whatever trickles in.
    #[test]
    fn the_time_is_for_the_whole_frame(
        frame in startup_frame(),
        millis in 1_u64..20_000,
        end: prop::sample::Index,
    ) {
        prop_assume!(frame.revision != 0);
        let octets = frame.encode().unwrap();
        let end = end.index(octets.len());
        let start = now();
        let timeout = Duration::from_millis(millis);
        let early = start + timeout.saturating_sub(Duration::from_nanos(1));
        let timed_out = Error::Startup(StartupError::TimedOut);
        if frame.kind == FrameKind::Request {
            let mut side = Responder::new(timeout, start);
            for octet in &octets[..end] {
                prop_assert_eq!(side.handle_input(&[*octet]), Ok((1, None)));
                prop_assert_eq!(side.poll_timeout(), Some(start + timeout));
                prop_assert_eq!(side.handle_timeout(early), Ok(()));
            }
            prop_assert_eq!(side.handle_timeout(start + timeout), Err(timed_out.clone()));
            prop_assert_eq!(side.handle_timeout(start), Err(timed_out));
            prop_assert_eq!(side.poll_timeout(), None);
        } else {
            let mut side = Initiator::new(Offer { timeout, ..Offer::default() }, start).unwrap();
            for octet in &octets[..end] {
                prop_assert_eq!(side.handle_input(&[*octet]), Ok((1, None)));
                prop_assert_eq!(side.poll_timeout(), Some(start + timeout));
                prop_assert_eq!(side.handle_timeout(early), Ok(()));
            }
            prop_assert_eq!(side.handle_timeout(start + timeout), Err(timed_out.clone()));
            prop_assert_eq!(side.handle_input(&octets[end..]).unwrap_err(), timed_out);
            prop_assert_eq!(side.poll_timeout(), None);
        }
    }

    /// Any octets whatever: no panic, and never more than a frame is taken.
    #[test]
    fn any_octets_are_survived(kind in kind(), octets in vec(any::<u8>(), 0..700)) {
        let (taken, _) = drive(kind, &octets, &[]);
        prop_assert!(taken <= STARTUP_HEADER_LEN + 512);
    }
}
