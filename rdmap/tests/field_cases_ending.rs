//! Faults that other implementations have shown in the field, tried on this one: Terminate, close, back-pressure,
//! flush, invalidation.
#![allow(
    clippy::arithmetic_side_effects,
    clippy::cast_possible_truncation,
    clippy::indexing_slicing,
    reason = "a test"
)]

mod common;

use std::time::Duration;

use common::endpoint::{
    Endpoint, FLUSHED, OPEN, SEND, SUCCESS, closed, outcomes, read, target, write,
};
use common::memory::{Region, TestMemory};
use common::peer::{Peer, code, request, seen, terminates, untagged};
use common::{CRC, config, ramp_of};
use iwarp_ddp::{Stag, UntaggedHeader};
use iwarp_mpa::{Role, Rtr};
use iwarp_rdmap::{
    CloseCause, Event, LostCause, Need, Opcode, Outcome, Shutdown, State, Terminate, TerminateCode,
};

#[test]
fn fc_028_terminate_and_a_silent_peer() {
    // FC-028, RDMAP-067
    let grace = Duration::from_secs(3);
    // The peer terminates, and then leaves TCP open and silent.
    let mut endpoint = Endpoint::new(config(Role::Initiator), TestMemory::new(64));
    endpoint.submit(0, read(7, 0), 0, 1);
    endpoint.transmit();
    let terminate = Terminate::new(TerminateCode::LOCAL_CATASTROPHIC);
    endpoint.feed(&Peer::new(CRC).terminate(&terminate));
    assert_eq!(endpoint.transmit(), b"");
    assert_eq!(endpoint.shutdowns(), [Shutdown::Write]);
    assert_eq!(outcomes(&endpoint.events()), [(0, FLUSHED)]);
    assert_eq!(endpoint.stream.poll_timeout(), Some(endpoint.now + grace));
    endpoint.wait(Duration::from_millis(2999));
    assert!(endpoint.events().is_empty());
    endpoint.wait(Duration::from_millis(1));
    assert_eq!(closed(&endpoint.events()), Some((false, &CloseCause::Terminated(terminate))));
    assert_eq!(endpoint.shutdowns(), [], "what TCP has accepted it may still deliver");

    // The peer answers our Terminate with nothing.
    let mut endpoint = Endpoint::new(config(Role::Initiator), TestMemory::new(64));
    endpoint.stream.terminate(TerminateCode::LOCAL_CATASTROPHIC, endpoint.now);
    assert_eq!(terminates(&endpoint.transmit()), [TerminateCode::LOCAL_CATASTROPHIC]);
    assert_eq!(endpoint.shutdowns(), [Shutdown::Write]);
    endpoint.wait(grace);
    let events = endpoint.events();
    assert_eq!(closed(&events), Some((false, &CloseCause::User)));
    assert_eq!(endpoint.stream.poll_timeout(), None);
}

#[test]
fn fc_029_graceful_and_half_close() {
    // FC-029, DDP-043, MPA-087, RDMAP-082
    let mut peer = Peer::new(CRC);
    let sends = [peer.send(1, b"a"), peer.send(2, b"bb"), peer.send(3, b"ccc")].concat();

    // Three Sends and FIN at once, while two Sends of our own wait.
    let mut endpoint = target(config(Role::Initiator), 4);
    endpoint.submit(0, SEND, 0, 10);
    endpoint.submit(1, write(9, 0), 0, 5000);
    endpoint.feed(&sends);
    endpoint.eof();
    assert_eq!(endpoint.stream.state(), State::Finishing);
    assert!(endpoint.try_submit(2, SEND, 0, 1).is_err());
    assert_eq!(endpoint.shutdowns(), [], "FIN goes behind what is queued");
    let sent = seen(&endpoint.transmit());
    let opcodes: Vec<_> = sent.iter().filter(|fpdu| fpdu.last).map(|fpdu| fpdu.opcode).collect();
    assert_eq!(opcodes, [Opcode::Send, Opcode::Write]);
    assert_eq!(endpoint.shutdowns(), [Shutdown::Write], "and there is no reset");
    let events = endpoint.events();
    let expected = [(1000, SUCCESS), (1001, SUCCESS), (1002, SUCCESS), (0, SUCCESS), (1, SUCCESS)];
    assert_eq!(outcomes(&events), expected);
    assert_eq!(closed(&events), Some((true, &CloseCause::Orderly)));
    assert!(events.contains(&Event::PeerClosed));
    assert_eq!(endpoint.memory.taken.len(), 3, "the fourth receive was never taken");

    // The last FPDU cut at every octet.
    for cut in 1..32 {
        let mut endpoint = target(config(Role::Initiator), 4);
        endpoint.feed(&sends[..sends.len() - cut]);
        endpoint.eof();
        let events = endpoint.events();
        if cut == 28 {
            // That is between two FPDUs.
            assert_eq!(outcomes(&events), [(1000, SUCCESS), (1001, SUCCESS)]);
            continue;
        }
        let whole = if cut < 28 { 2 } else { 1 };
        let expected: Vec<_> = (0..whole).map(|i| (1000 + i, SUCCESS)).collect();
        assert_eq!(outcomes(&events), expected, "{cut} octets are missing");
        assert_eq!(endpoint.transmit(), b"", "nothing can be said any more"); // MPA-088
        assert_eq!(endpoint.shutdowns(), [Shutdown::Write]);
        let Some((false, CloseCause::Error(error))) = closed(&events) else {
            panic!("{events:?}");
        };
        assert!(matches!(error, iwarp_rdmap::Error::Mpa(iwarp_mpa::Error::Truncated { .. })));
    }
}

/// Leaves an endpoint in the middle of something.
type Prepare<'a> = &'a dyn Fn(&mut Endpoint, &mut Peer);

#[test]
fn fc_029_fin_with_work_that_needs_the_peer() {
    // RDMAP-082: with a Read outstanding, a message open, or a Read of the peer unanswered.
    let own_read = |endpoint: &mut Endpoint, _: &mut Peer| {
        endpoint.submit(0, read(7, 0), 0, 1);
        endpoint.transmit();
    };
    let queued_read = |endpoint: &mut Endpoint, _: &mut Peer| {
        endpoint.submit(0, SEND, 0, 1);
        endpoint.submit(1, read(7, 0), 0, 1);
    };
    let open_send = |endpoint: &mut Endpoint, peer: &mut Peer| {
        endpoint.feed(&peer.send_part(1, 0, b"part", false));
    };
    let open_write = |endpoint: &mut Endpoint, peer: &mut Peer| {
        endpoint.feed(&peer.write(OPEN, 0x1000, b"part", false));
    };
    let peers_read = |endpoint: &mut Endpoint, peer: &mut Peer| {
        endpoint.feed(&peer.request(1, request(OPEN, 0x1000, 100)));
    };
    let cases: [Prepare<'_>; 5] = [&own_read, &queued_read, &open_send, &open_write, &peers_read];
    for (case, prepare) in cases.into_iter().enumerate() {
        let mut endpoint = target(config(Role::Initiator), 1);
        prepare(&mut endpoint, &mut Peer::new(CRC));
        endpoint.eof();
        let sent = seen(&endpoint.transmit());
        assert_eq!(sent.len(), 1, "case {case}");
        let terminate = Terminate::parse(&sent[0].payload);
        // No segment caused it, so none is shown.
        assert_eq!(terminate, Ok(Terminate::new(TerminateCode::STREAM_CATASTROPHIC)));
        assert_eq!(endpoint.shutdowns(), [Shutdown::Write]);
        let events = endpoint.events();
        assert!(outcomes(&events).iter().all(|(_, outcome)| *outcome == FLUSHED), "case {case}");
        assert_eq!(closed(&events).map(|(clean, _)| clean), Some(false));
    }
}

#[test]
fn fc_030_a_send_without_a_receive() {
    // FC-030, DDP-051, DDP-062. Four receives, five Sends.
    let mut peer = Peer::new(CRC);
    let sends: Vec<u8> = (1..=5).flat_map(|msn| peer.send(msn, b"data")).collect();

    // Strict: at once.
    let mut strict = config(Role::Initiator);
    strict.strict_receive = true;
    let mut endpoint = target(strict, 4);
    endpoint.feed(&sends);
    assert_eq!(terminates(&endpoint.transmit()), [TerminateCode::NO_BUFFER]);

    // Held back, and delivered when the fifth receive comes a second later.
    let mut endpoint = target(config(Role::Initiator), 4);
    let input = endpoint.feed(&sends);
    assert_eq!(input.need, Need::Receive);
    assert!(endpoint.stream.is_blocked());
    assert_eq!(endpoint.rx.len(), 28);
    assert_eq!(outcomes(&endpoint.events()).len(), 4);
    for _ in 0..3 {
        // Shown again, nothing happens, and nothing is lost.
        assert_eq!(endpoint.read().need, Need::Receive);
    }
    assert_eq!(endpoint.stream.counters().held_back, 1);
    assert_eq!(endpoint.stream.counters().fpdus_in, 4);
    endpoint.wait(Duration::from_secs(1));
    endpoint.memory.post(7, 0, 64);
    assert_eq!(endpoint.read().need, Need::More(2));
    assert_eq!(outcomes(&endpoint.events()), [(7, SUCCESS)]);
    assert!(!endpoint.stream.is_blocked());
    assert_eq!(endpoint.stream.poll_timeout(), None);

    // Held back for too long.
    let mut endpoint = target(config(Role::Initiator), 4);
    endpoint.feed(&sends);
    assert_eq!(endpoint.stream.poll_timeout(), Some(endpoint.now + Duration::from_secs(5)));
    endpoint.wait(Duration::from_secs(5));
    let sent = seen(&endpoint.transmit());
    let terminate = Terminate::parse(&sent[0].payload).expect("a Terminate");
    assert_eq!(terminate.code, TerminateCode::NO_BUFFER);
    // RDMAP-071: with the header of the Send that was held back.
    let header = terminate.ddp_header.expect("a header");
    assert_eq!(
        header.as_bytes(),
        UntaggedHeader { msn: 5, ..untagged(Opcode::Send, 5) }.to_bytes()
    );
    assert_eq!(terminate.segment_len, Some(22));
}

#[test]
fn fc_030_not_while_own_reads_are_under_way() {
    // D2: the response would sit behind the Send.
    let mut endpoint = target(config(Role::Initiator), 0);
    endpoint.submit(0, read(7, 0), 0, 1);
    endpoint.transmit();
    endpoint.feed(&Peer::new(CRC).send(1, b"data"));
    assert_eq!(terminates(&endpoint.transmit()), [TerminateCode::NO_BUFFER]);
    assert_eq!(outcomes(&endpoint.events()), [(0, FLUSHED)]);

    // A Read that is submitted later waits until the Send has its receive; so does all that is behind it.
    let mut endpoint = target(config(Role::Initiator), 0);
    let mut peer = Peer::new(CRC);
    endpoint.feed(&peer.send(1, b"data"));
    endpoint.submit(0, SEND, 0, 1);
    endpoint.submit(1, read(7, 0), 0, 1);
    endpoint.submit(2, SEND, 0, 1);
    let sent: Vec<_> = seen(&endpoint.transmit()).iter().map(|fpdu| fpdu.opcode).collect();
    assert_eq!(sent, [Opcode::Send]);
    endpoint.memory.post(7, 0, 64);
    endpoint.read();
    let sent: Vec<_> = seen(&endpoint.transmit()).iter().map(|fpdu| fpdu.opcode).collect();
    assert_eq!(sent, [Opcode::ReadRequest, Opcode::Send]);
}

#[test]
fn fc_033_complete_or_flushed_never_both() {
    // FC-033. Sends both ways, and TCP lost at every octet that it accepts.
    for cut in 0..=3 * 28 {
        let mut endpoint = target(config(Role::Initiator), 3);
        for id in 0..3 {
            endpoint.submit(id, SEND, 0, 4);
        }
        let record = endpoint.record().expect("three Sends");
        assert_eq!(record.len(), 3 * 28);
        endpoint.accepted(cut);
        let mut peer = Peer::new(CRC);
        let sends: Vec<u8> = (1..=3).flat_map(|msn| peer.send(msn, b"data")).collect();
        endpoint.feed(&sends[..cut]);
        endpoint.stream.handle_lost(LostCause::Reset);
        endpoint.stream.handle_lost(LostCause::TimedOut);
        let events = endpoint.events();
        assert_eq!(closed(&events), Some((false, &CloseCause::Lost(LostCause::Reset))));
        let mut all = outcomes(&events);
        all.sort_unstable_by_key(|(id, _)| *id);
        let whole = cut / 28;
        let mut expected: Vec<_> = (0..3_u64)
            .map(|id| (id, if (id as usize) < whole { SUCCESS } else { FLUSHED }))
            .collect();
        expected.extend((0..whole as u64).map(|i| (1000 + i, SUCCESS)));
        assert_eq!(all, expected, "cut at {cut}");
        assert!(endpoint.events().is_empty());
    }
}

#[test]
fn fc_036_rtr_messages_never_show() {
    // FC-036, FC-009, CONN-09, CONN-24, CONN-29
    for rtr in [Rtr::Send, Rtr::Write, Rtr::Read] {
        let with_rtr = |role| {
            let mut config = config(role);
            config.rtr = Some(rtr);
            config.ord = 0; // CONN-14
            config.ird = 0;
            config
        };
        let mut initiator = Endpoint::new(with_rtr(Role::Initiator), TestMemory::new(64));
        let mut responder = target(with_rtr(Role::Responder), 1);
        initiator.submit(0, SEND, 0, 3);
        responder.submit(0, SEND, 0, 3);
        assert_eq!(responder.transmit(), b"", "{rtr:?}: held"); // MPA-029
        assert!(responder.events().is_empty());

        let sent = initiator.transmit();
        let first = &seen(&sent)[0];
        let opcode = match rtr {
            Rtr::Send => Opcode::Send,
            Rtr::Write => Opcode::Write,
            Rtr::Read => Opcode::ReadRequest,
        };
        assert_eq!(first.opcode, opcode);
        let payload = if rtr == Rtr::Read { 28 } else { 0 };
        assert_eq!(first.payload.len(), payload);

        // The RTR alone establishes.
        responder.feed(&sent[..first.end as usize]);
        assert_eq!(responder.events(), [Event::Established], "{rtr:?}");
        responder.feed(&sent[first.end as usize..]);
        assert_eq!(
            outcomes(&responder.events()),
            [(1000, SUCCESS)],
            "{rtr:?}: one receive, one Send"
        );

        let answer = responder.transmit();
        initiator.memory.post(1000, 32, 8);
        initiator.feed(&answer);
        let events = initiator.events();
        assert_eq!(outcomes(&events), [(0, SUCCESS), (1000, SUCCESS)], "{rtr:?}");
        assert_eq!(events.first(), Some(&Event::Established));
        initiator.stream.abort();
        responder.stream.handle_lost(LostCause::Reset);
        assert_eq!(outcomes(&initiator.events()), [], "{rtr:?}");
        assert_eq!(outcomes(&responder.events()), [(0, SUCCESS)], "{rtr:?}");
    }
}

#[test]
fn fc_036_rtr_messages_never_show_if_tcp_is_reset_at_once() {
    // FC-036
    for rtr in [Rtr::Send, Rtr::Write, Rtr::Read] {
        for sends_it in [false, true] {
            let mut config = config(Role::Initiator);
            config.rtr = Some(rtr);
            let mut endpoint = Endpoint::new(config, TestMemory::new(64));
            endpoint.submit(0, SEND, 0, 3);
            if sends_it {
                let record = endpoint.record().expect("RTR");
                endpoint.accepted(record.len());
            }
            endpoint.stream.handle_lost(LostCause::Reset);
            assert_eq!(outcomes(&endpoint.events()).len(), 1);
        }
    }
}

#[test]
fn fc_062_send_with_invalidate_checks_first() {
    // FC-062, RDMAP-045, RDMAP-046, RDMAP-077, SEC-06
    let invalidating = |peer: &mut Peer, stag: u32, payload: &[u8]| {
        let header =
            UntaggedHeader { rsvd_ulp_word: stag, ..untagged(Opcode::SendSolicitedInvalidate, 1) };
        peer.untagged(header, payload)
    };
    let setup = |receives| {
        let mut endpoint = target(config(Role::Initiator), receives);
        endpoint.memory.regions.push(Region::new(0x00be_ef02, 0, 4096, 64).foreign());
        endpoint.memory.regions.push(Region::new(0x00be_ef03, 0, 4096, 64).local());
        endpoint
    };
    let refused = Outcome::InvalidateRefused;
    let cases = [
        ("foreign", 0x00be_ef02, 8, code(0, 1, 9), refused),
        ("unknown", 0x00be_ef09, 8, code(0, 2, 9), refused),
        ("no remote rights", 0x00be_ef03, 8, code(0, 1, 2), refused),
        ("message too long", OPEN, 65, code(1, 2, 5), Outcome::LocalLength),
    ];
    for (what, stag, len, expected, outcome) in cases {
        let mut endpoint = setup(1);
        endpoint.feed(&invalidating(&mut Peer::new(CRC), stag, &ramp_of(len)));
        assert_eq!(terminates(&endpoint.transmit()), [expected], "{what}");
        assert_eq!(outcomes(&endpoint.events()), [(1000, outcome)], "{what}");
        let valid = endpoint.memory.regions.iter().all(|region| region.valid);
        assert!(valid, "{what}: the key still works");
    }
    // No receive: held back, and the key works until there is one.
    let mut endpoint = setup(0);
    endpoint.feed(&invalidating(&mut Peer::new(CRC), OPEN, b"payload"));
    assert!(endpoint.stream.is_blocked());
    assert!(endpoint.memory.regions.iter().all(|region| region.valid));
    endpoint.memory.post(7, 8192, 64);
    endpoint.read();
    let events = endpoint.events();
    let done = events.iter().find_map(|event| match event {
        Event::ReceiveDone { invalidated, solicited, len, .. } => {
            Some((*invalidated, *solicited, *len))
        }
        _ => None,
    });
    assert_eq!(done, Some((Some(Stag::from_raw(OPEN)), true, 7)));
    assert_eq!(&endpoint.memory.bytes[8192..8199], b"payload");
    // Access through it fails from now on.
    let mut peer = Peer::new(CRC);
    endpoint.feed(&peer.write(OPEN, 0x1000, b"late", true));
    assert_eq!(terminates(&endpoint.transmit()), [code(1, 1, 0)]);
}
