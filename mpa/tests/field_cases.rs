//! Faults that implementations have shown in the field, as far as MPA can show them.
#![allow(clippy::unwrap_used, reason = "a failed step fails the test")]

mod common;

use std::time::Duration;

use bytes::Bytes;
use common::{Reader, frame, framing, now, pieces, ramp, reference_fpdu};
use iwarp_mpa::{
    Depth, Error, FpduLimit, FrameKind, Framer, Framing, Initiator, Negotiated, Offer, Outcome,
    Request, Responder, Revision, Rtr, RtrTypes, SizePlan, StartupError, StartupFrame, Unusable,
    framed_len,
};

/// A Send of `len` octets, as DDP would hand it down.
fn send(len: usize) -> Vec<u8> {
    let header = [0x41, 0x43, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0];
    [&header[..], &ramp(len)].concat()
}

/// An RDMA Write of `len` octets.
fn write(len: usize) -> Vec<u8> {
    let header = [0xC1, 0x40, 0, 0xBE, 0xEF, 1, 0, 0, 0, 0, 0, 0, 0x10, 0];
    [&header[..], &ramp(len)].concat()
}

fn responder_with(octets: &[u8]) -> (Responder, Request) {
    let mut responder = Responder::new(Duration::from_secs(5), now());
    let (_, request) = responder.handle_input(octets).unwrap();
    (responder, request.unwrap())
}

/// Both sides of a set-up: what the Reply is, and what each end makes of it.
fn set_up(asking: &Offer, answering: &Offer) -> (Bytes, Outcome, Negotiated) {
    let mut initiator = Initiator::new(asking.clone(), now()).unwrap();
    let (responder, request) = responder_with(&initiator.poll_transmit().unwrap());
    let (reply, there) = responder.accept(&request, answering).unwrap();
    let (_, outcome) = initiator.handle_input(&reply).unwrap();
    (reply, outcome.unwrap(), there)
}

fn accepted(outcome: Outcome) -> Negotiated {
    match outcome {
        Outcome::Accepted(negotiated) => negotiated,
        other => panic!("{other:?}"),
    }
}

// FC-001
#[test]
fn fc_001_first_fpdu_glued_to_the_reply() {
    let asking = Offer::default();
    let mut initiator = Initiator::new(asking.clone(), now()).unwrap();
    let (responder, request) = responder_with(&initiator.poll_transmit().unwrap());
    let answering = Offer { private_data: Bytes::from(ramp(16)), ..Offer::default() };
    let (reply, there) = responder.accept(&request, &answering).unwrap();
    let ulpdu = send(100);
    let fpdu = frame(&mut Framer::new(&Framing::from(&there)), &ulpdu);
    let stream = [&reply[..], &fpdu].concat();

    for at in 0..=stream.len() {
        let mut initiator = Initiator::new(asking.clone(), now()).unwrap();
        let mut established = Vec::new();
        let mut behind = Vec::new();
        for piece in [&stream[..at], &stream[at..]] {
            let (taken, outcome) = initiator.handle_input(piece).unwrap();
            established.extend(outcome);
            behind.extend_from_slice(&piece[taken..]);
        }
        assert_eq!(established.len(), 1, "cut at {at}");
        let here = accepted(established.remove(0));
        assert_eq!(here.private_data, ramp(16), "cut at {at}");
        let mut reader = Reader::new(Framing::from(&here), 0);
        reader.read(&behind);
        assert_eq!(reader.ulpdus, [&ulpdu[..]], "cut at {at}");
    }
}

// FC-002
#[test]
fn fc_002_reply_in_pieces() {
    let asking = Offer::default();
    let start = now();
    let mut first = Initiator::new(asking.clone(), start).unwrap();
    let (responder, request) = responder_with(&first.poll_transmit().unwrap());
    let answering = Offer { private_data: Bytes::from(ramp(60)), ..Offer::default() };
    let (reply, _) = responder.accept(&request, &answering).unwrap();

    let due = start + asking.timeout;
    let established = |lengths: &[usize]| {
        let mut initiator = Initiator::new(asking.clone(), start).unwrap();
        let mut events = 0;
        let mut read = 0;
        for piece in pieces(&reply, lengths) {
            // The time goes on running, and what is there so far is neither success nor failure.
            assert_eq!(initiator.poll_timeout(), Some(due));
            let (taken, outcome) = initiator.handle_input(piece).unwrap();
            assert_eq!(taken, piece.len());
            read += taken;
            assert_eq!(outcome.is_some(), read == reply.len());
            events += usize::from(outcome.is_some());
        }
        assert_eq!(initiator.handle_input(&[]), Ok((0, None)));
        assert_eq!(initiator.handle_input(&[0; 9]), Ok((0, None)), "it is the FPDU stream's");
        assert_eq!(initiator.handle_timeout(due), Ok(()), "no timer is left");
        events
    };
    assert_eq!(established(&[1]), 1);
    for at in 1..reply.len() {
        assert_eq!(established(&[at, usize::MAX]), 1, "cut at {at}");
    }

    // One octet short ends in the time-out.
    let mut initiator = Initiator::new(asking.clone(), start).unwrap();
    let short = &reply[..reply.len() - 1];
    assert_eq!(initiator.handle_input(short), Ok((short.len(), None)));
    assert_eq!(initiator.handle_timeout(due), Err(StartupError::TimedOut.into()));
}

// FC-003
#[test]
fn fc_003_receive_never_stalls_inside_an_fpdu() {
    for len in (1..=8).chain(1_457..=1_464) {
        for markers in [false, true] {
            let framing = framing(markers, true);
            let ulpdu = write(len);
            let fpdu = frame(&mut Framer::new(&framing), &ulpdu);
            for at in 1..fpdu.len() {
                let mut reader = Reader::new(framing, 0);
                reader.read(&fpdu[..at]);
                assert!(at + reader.missing() <= fpdu.len(), "length {len} cut at {at}");
                reader.read(&fpdu[at..]);
                assert_eq!(reader.ulpdus, [&ulpdu[..]], "length {len} cut at {at}");
            }
        }
    }
}

// FC-004
#[test]
fn fc_004_bad_requests_end_their_own_connection_only() {
    let good = Initiator::new(Offer::default(), now()).unwrap().poll_transmit().unwrap();
    let bad = |change: fn(&mut [u8])| {
        let mut octets = good.to_vec();
        change(&mut octets);
        let mut responder = Responder::new(Duration::from_secs(5), now());
        let error = responder.handle_input(&octets).unwrap_err();
        // No timer is left, and nothing changes its mind.
        assert_eq!(responder.poll_timeout(), None);
        assert_eq!(responder.handle_input(&good).unwrap_err(), error);
        assert_eq!(responder.handle_eof(), error);
        match error {
            Error::Startup(error) => error,
            other => panic!("{other}"),
        }
    };
    assert_eq!(bad(|octets| octets[4] = b'i'), StartupError::WrongKey { offset: 4 });
    assert_eq!(bad(|octets| octets[17] = 0), StartupError::Revision(0));
    assert_eq!(bad(|octets| octets[17] = 200), StartupError::Revision(200));
    let long = bad(|octets| octets[18..20].copy_from_slice(&513_u16.to_be_bytes()));
    assert_eq!(long, StartupError::PrivateDataLength(513));
    let longest = bad(|octets| octets[18..20].copy_from_slice(&[0xFF; 2]));
    assert_eq!(longest, StartupError::PrivateDataLength(65_535));

    let mut cut = Responder::new(Duration::from_secs(5), now());
    assert_eq!(cut.handle_input(&good[..7]), Ok((7, None)));
    assert_eq!(cut.handle_eof(), StartupError::Closed { received: 7 }.into());
    assert_eq!(cut.poll_timeout(), None);

    let (_, request) = responder_with(&good);
    assert_eq!(request.revision, 2);
}

// FC-005
#[test]
fn fc_005_crc_wanted_by_one_side_only() {
    for here in [false, true] {
        for there in [false, true] {
            let asking = Offer { crc: here, ..Offer::default() };
            let answering = Offer { crc: there, ..Offer::default() };
            let mut initiator = Initiator::new(asking.clone(), now()).unwrap();
            let request = initiator.poll_transmit().unwrap();
            assert_eq!(request[16] & 0x40 != 0, here);
            let (reply, outcome, there_negotiated) = set_up(&asking, &answering);
            let in_force = here || there;
            // MPA-054; said again in the Reply, which is all that some initiators go by.
            assert_eq!(reply[16] & 0x40 != 0, in_force);
            let here_negotiated = accepted(outcome);
            for (from, to) in
                [(&here_negotiated, &there_negotiated), (&there_negotiated, &here_negotiated)]
            {
                let ulpdu = send(5);
                let mut fpdu = frame(&mut Framer::new(&Framing::from(from)), &ulpdu);
                // MPA-050: the field is there in any case.
                assert_eq!(fpdu, reference_fpdu(&ulpdu, 0, false, in_force));
                let mut reader = Reader::new(Framing::from(to), 0);
                reader.read(&fpdu);
                assert_eq!(reader.ulpdus.len(), 1);
                *fpdu.last_mut().unwrap() ^= 1;
                reader.read(&fpdu);
                // A wrong one is fatal exactly when in force.
                assert_eq!(reader.error.is_some(), in_force);
                assert_eq!(reader.ulpdus.len(), if in_force { 1 } else { 2 });
            }
        }
    }
}

// FC-006
#[test]
fn fc_006_peer_requires_markers() {
    for (here, there) in [(false, true), (true, false), (true, true)] {
        let asking = Offer { markers: here, ..Offer::default() };
        let answering = Offer { markers: there, ..Offer::default() };
        let (_, outcome, there_negotiated) = set_up(&asking, &answering);
        let here_negotiated = accepted(outcome);
        assert_eq!((here_negotiated.send_markers, here_negotiated.receive_markers), (there, here));
        assert_eq!(
            (there_negotiated.send_markers, there_negotiated.receive_markers),
            (here, there)
        );

        // A marker at 0, 512, 1024, …, each pointing back to its FPDU, in headers and CRCs' reach
        // too.
        let mut framer = Framer::new(&Framing::from(&here_negotiated));
        let mut starts = Vec::new();
        let mut stream = Vec::new();
        for len in (0..40).map(|step| step * 29) {
            starts.push(stream.len());
            stream.extend(frame(&mut framer, &send(len)));
        }
        if !there {
            assert_eq!(&stream[..2], &18_u16.to_be_bytes(), "unmarked");
            continue;
        }
        for at in (0..stream.len()).step_by(512) {
            let start = *starts.iter().rfind(|start| **start <= at).unwrap();
            // The header is behind the leading marker, if there is one.
            let header = if start % 512 == 0 { start + 4 } else { start };
            let expected = u32::try_from(at.saturating_sub(header)).unwrap();
            assert_eq!(&stream[at..at + 4], &expected.to_be_bytes(), "at {at}");
        }
    }
}

/// The part of the fallback that is MPA's: to tell what calls for it, and to ask plainly.
// FC-007
#[test]
fn fc_007_what_suggests_revision_1() {
    let mut asking = Initiator::new(Offer::default(), now()).unwrap();
    let request = asking.poll_transmit().unwrap();
    assert_eq!(request[17], 2);
    let error = asking.handle_eof();
    assert!(matches!(&error, Error::Startup(error) if error.suggests_revision_1()));
    assert_eq!(asking.poll_timeout(), None, "the timer of the failed try is gone");

    // CONN-06, CONN-08: a peer that answers as if it had been asked plainly.
    let (responder, _) = responder_with(&request);
    let plain = Offer { revision: Revision::V1, ..Offer::default() };
    let again = Initiator::new(plain, now()).unwrap().poll_transmit().unwrap();
    assert_eq!((again[16], again[17], again.len()), (0x40, 1, 20));
    let (_, plain_request) = responder_with(&again);
    let (reply, _) = responder.accept(&plain_request, &Offer::default()).unwrap();
    let mut asking = Initiator::new(Offer::default(), now()).unwrap();
    let error = asking.handle_input(&reply).unwrap_err();
    assert_eq!(error, StartupError::PlainReply(1).into());
    assert!(matches!(&error, Error::Startup(error) if error.suggests_revision_1()));

    for other in [
        StartupError::TimedOut,
        StartupError::WrongKey { offset: 0 },
        StartupError::InitiatorInitiator,
        StartupError::Closed { received: 12 },
    ] {
        assert!(!other.suggests_revision_1(), "{other}");
    }
}

// FC-008
#[test]
fn fc_008_revision_1_and_words_in_the_private_data() {
    let words = [0, 0, 0, 16, 0, 0, 0, 8];
    let asking = Offer {
        revision: Revision::V1,
        private_data: Bytes::copy_from_slice(&words),
        ..Offer::default()
    };
    let mut initiator = Initiator::new(asking, now()).unwrap();
    let (responder, request) = responder_with(&initiator.poll_transmit().unwrap());
    // CONN-02
    assert_eq!((request.revision, request.enhanced), (1, None));
    assert_eq!(request.private_data, words[..]);
    assert_eq!((request.ird(), request.ord()), (None, None));

    // Two listeners of one process, each with settings of its own.
    for (markers, crc, depth) in [(false, true, 3), (true, false, 9)] {
        let answering = Offer {
            markers,
            crc,
            ird: Depth::Count(depth),
            ord: Depth::Count(depth),
            private_data: Bytes::from_static(b"as it is"),
            ..Offer::default()
        };
        let (reply, negotiated) = responder.accept(&request, &answering).unwrap();
        assert_eq!(reply.len(), 28, "no enhanced block");
        assert_eq!((reply[16] & 0x10, reply[17]), (0, 1));
        assert_eq!(&reply[20..], b"as it is");
        assert_eq!((negotiated.ird, negotiated.ord), (u32::from(depth), u32::from(depth)));
        assert_eq!(negotiated.receive_markers, markers);
    }
}

// FC-009
#[test]
fn fc_009_exactly_one_rtr_is_named() {
    for asked in (1..8).map(RtrTypes::from_bits_truncate) {
        for taken in (0..8).map(RtrTypes::from_bits_truncate) {
            let asking = Offer { rtr: asked, ..Offer::default() };
            let answering = Offer { rtr: taken, ..Offer::default() };
            let (reply, outcome, there) = set_up(&asking, &answering);
            let (frame, _) = StartupFrame::parse(FrameKind::Reply, &reply).unwrap().unwrap();
            let named = frame.enhanced.unwrap().rtr;
            assert_eq!(named.iter().count(), 1, "{asked:?} {taken:?}");
            let all = if taken.is_empty() { RtrTypes::all() } else { taken };
            // CONN-22: one that the responder does take.
            assert!(all.contains(named));
            if asked.intersects(all) {
                // CONN-23, CONN-24
                assert!(asked.contains(named));
                let rtr = accepted(outcome).rtr;
                assert_eq!(rtr.map(RtrTypes::from), Some(named));
                assert_eq!(there.rtr, rtr);
            } else {
                // CONN-25
                let Outcome::Unusable { reason, negotiated } = outcome else { panic!() };
                assert_eq!((reason, reason.code()), (Unusable::NoCommonRtr, 7));
                assert_eq!((negotiated.rtr, there.rtr), (None, None));
            }
        }
    }
    // Of several that are named all the same, the initiator takes one: Write, Read, Send (D12).
    for (named, expected) in [
        (RtrTypes::all(), Rtr::Write),
        (RtrTypes::SEND | RtrTypes::READ, Rtr::Read),
        (RtrTypes::SEND, Rtr::Send),
    ] {
        let (reply, ..) = set_up(&Offer::default(), &Offer::default());
        let (mut frame, _) = StartupFrame::parse(FrameKind::Reply, &reply).unwrap().unwrap();
        frame.enhanced.as_mut().unwrap().rtr = named;
        let mut initiator = Initiator::new(Offer::default(), now()).unwrap();
        let (_, outcome) = initiator.handle_input(&frame.encode().unwrap()).unwrap();
        assert_eq!(accepted(outcome.unwrap()).rtr, Some(expected));
    }
}

// FC-010
#[test]
fn fc_010_no_reads_at_all() {
    let none = Offer { ird: Depth::Count(0), ord: Depth::Count(0), ..Offer::default() };
    for (asking, answering) in
        [(&none, &none), (&none, &Offer::default()), (&Offer::default(), &none)]
    {
        let (_, outcome, there) = set_up(asking, answering);
        let here = accepted(outcome);
        assert_eq!((here.ord, there.ord), (0, 0));
        assert_eq!(here.ird, asking.ird.count().unwrap());
        assert_eq!(there.ird, answering.ird.count().unwrap());
    }
    // CONN-14: unless the RTR is a Read, which needs a place.
    let by_read = Offer { rtr: RtrTypes::READ, ..none.clone() };
    let (reply, outcome, there) = set_up(&by_read, &none);
    assert_eq!(&reply[20..24], &[0x80, 1, 0x40, 0]);
    assert_eq!((accepted(outcome).ord, there.ird, there.ord), (0, 1, 0));
}

// FC-011
#[test]
fn fc_011_depths_are_mirrored() {
    let asking = Offer { ord: Depth::Count(3), ird: Depth::Count(7), ..Offer::default() };
    let mut initiator = Initiator::new(asking, now()).unwrap();
    let (responder, request) = responder_with(&initiator.poll_transmit().unwrap());
    // CONN-11
    assert_eq!((request.ord(), request.ird()), (Some(3), Some(7)));

    let answering = Offer { ird: Depth::Count(2), ord: Depth::Count(5), ..Offer::default() };
    let (reply, there) = responder.accept(&request, &answering).unwrap();
    let (frame, _) = StartupFrame::parse(FrameKind::Reply, &reply).unwrap().unwrap();
    let block = frame.enhanced.unwrap();
    assert_eq!((block.ird, block.ord), (Depth::Count(2), Depth::Count(5)));
    assert_eq!((there.ird, there.ord), (2, 5));
    assert_eq!((there.peer_ird, there.peer_ord), (Some(7), Some(3)));

    let here = accepted(initiator.handle_input(&reply).unwrap().1.unwrap());
    assert_eq!((here.ird, here.ord), (7, 2), "two reads at most");
    assert_eq!((here.peer_ird, here.peer_ord), (Some(2), Some(5)));
}

// FC-020
#[test]
fn fc_020_lengths_as_an_analyser_counts_them() {
    let lengths = (0..=9).chain(1_440..=1_470).chain([64_768 - 18]);
    let mut framer = Framer::new(&framing(false, true));
    for len in lengths {
        let ulpdu = send(len);
        let fpdu = frame(&mut framer, &ulpdu);
        // ULPDU_Length counts neither itself, nor pad, nor CRC.
        assert_eq!(usize::from(u16::from_be_bytes([fpdu[0], fpdu[1]])), 18 + len);
        let pad = fpdu.len() - 2 - ulpdu.len() - 4;
        assert!(pad < 4 && (2 + ulpdu.len() + pad).is_multiple_of(4), "{len}");
        // MPA-047
        assert_eq!(fpdu[2 + ulpdu.len()..][..pad], [0; 3][..pad]);
        assert_eq!(fpdu, reference_fpdu(&ulpdu, 0, false, true));
    }
}

// FC-021
#[test]
fn fc_021_size_limit_of_the_peer() {
    // Adapters that take one segment, or 16 KiB, each have a setting that suits them.
    for emss in [536, 1_448, 1_460, 8_960] {
        for markers in [false, true] {
            for (limit, most) in [
                (FpduLimit::Emss, emss),
                (FpduLimit::default(), 16_384),
                (FpduLimit::Octets(65_536), 65_536),
            ] {
                let plan = SizePlan::new(emss, limit, markers);
                for phase in (0..512).step_by(4) {
                    let len = framed_len(plan.mulpdu, markers, phase);
                    assert!(len <= usize::try_from(most).unwrap(), "{emss} {limit:?}");
                }
            }
        }
    }
    // The large setting is used.
    assert!(SizePlan::new(1_460, FpduLimit::Octets(65_536), false).mulpdu > 64_000);
    // And whatever the peer's setting, all that ULPDU_Length can say is taken.
    let ulpdu = write(65_535 - 14);
    let mut reader = Reader::new(framing(false, true), 0);
    reader.read(&reference_fpdu(&ulpdu, 0, false, true));
    assert_eq!(reader.ulpdus, [ulpdu]);
}
