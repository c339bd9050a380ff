//! Terminate: what it says is what RFC 5040 §4.8 draws, what was read is written and read again, and no peer's
//! Terminate is ever answered.
//!
//! Input: the octets behind the DDP header of a Terminate.

use iwarp_ddp::header_octets;
use iwarp_mpa::Role;
use iwarp_rdmap::{
    BadTerminate, CloseCause, Error, Event, Initiator, Need, Opcode, ReadRequest, Terminate,
    TerminateCode,
};

use crate::common::endpoint::{Endpoint, SEND, closed, read, target, write};
use crate::common::peer::{Peer, seen, untagged};
use crate::common::{CRC, config};
use iwarp_ddp::UntaggedHeader;

/// The content of a peer's Terminate.
pub fn terminate(input: &[u8]) {
    let parsed = Terminate::parse(input);
    match &parsed {
        Ok(terminate) => said(terminate, input),
        Err(error) => assert_eq!(*error, BadTerminate::Truncated { len: input.len() }),
    }
    if let Some(expected) = by_the_letter(input) {
        let found = parsed.map(|terminate| {
            let header = terminate.ddp_header.map(|header| header.as_bytes().to_vec());
            (terminate.code, terminate.segment_len, header, terminate.read_request)
        });
        assert_eq!(found, expected);
    }
    received(input, &parsed);
}

type Parts = (TerminateCode, Option<u16>, Option<Vec<u8>>, Option<ReadRequest>);

/// The figure of RFC 5040 §4.8, read from left to right. `None` where it leaves open what is meant: the header
/// flags lie where it has none.
fn by_the_letter(octets: &[u8]) -> Option<Result<Parts, BadTerminate>> {
    let truncated = Some(Err(BadTerminate::Truncated { len: octets.len() }));
    let Some((control, mut rest)) = octets.split_at_checked(4) else { return truncated };
    let [length, ddp, rdmap] = [0x80, 0x40, 0x20].map(|flag| control[2] & flag != 0);
    if !(length || ddp || rdmap) && control[2] & 0x07 != 0 {
        return None;
    }
    let mut segment_len = None;
    if length || ddp {
        let Some((field, behind)) = rest.split_at_checked(2) else { return truncated };
        segment_len = length.then_some(u16::from_be_bytes([field[0], field[1]]));
        rest = behind;
    }
    let mut header = None;
    if ddp {
        let Some(octets) = header_octets(rest) else { return truncated };
        header = Some(octets.to_vec());
        rest = &rest[octets.len()..];
    }
    let mut request = None;
    if rdmap {
        let Some(octets) = rest.get(..28) else { return truncated };
        request = ReadRequest::parse(octets);
        assert_eq!(request.map(|request| request.to_bytes().to_vec()), Some(octets.to_vec()));
    }
    let code = TerminateCode::from_raw(u16::from_be_bytes([control[0], control[1]]));
    Some(Ok((code, segment_len, header, request)))
}

fn said(terminate: &Terminate, input: &[u8]) {
    assert_eq!(terminate.code.raw().to_be_bytes(), input[..2]);
    let again = terminate.to_vec();
    assert!(again.len() <= 52, "longer than any that is sent");
    // Written in the order of the standard, there is nothing left to guess.
    let expected = Terminate { meant: None, ..*terminate };
    assert_eq!(Terminate::parse(&again), Ok(expected));
    if let Some(header) = terminate.ddp_header {
        assert_eq!(header.is_tagged(), header.as_bytes().len() == 14);
    }
    // For people: any text will do, as long as there is one.
    assert!(!terminate.likely_code().to_string().is_empty());
}

/// A stream with work under way, and this Terminate as the next message.
fn received(input: &[u8], parsed: &Result<Terminate, BadTerminate>) {
    let mut endpoint = target(config(Role::Initiator), 2);
    endpoint.submit(0, write(7, 0), 0, 2000);
    endpoint.submit(1, read(7, 0), 100, 64);
    endpoint.submit(2, SEND, 0, 10);
    endpoint.submit(3, read(7, 64), 200, 64);
    endpoint.transmit();
    let before = endpoint.memory.bytes.clone();
    let mut peer = Peer::new(CRC);
    let header = UntaggedHeader { queue: 2, ..untagged(Opcode::Terminate, 1) };
    let octets = [peer.untagged(header, input), peer.send(1, b"behind")].concat();
    endpoint.feed(&octets);
    assert_eq!((endpoint.need, endpoint.rx.len()), (Some(Need::Nothing), 0));
    // RDMAP-054, RDMAP-056
    assert!(seen(&endpoint.transmit()).is_empty(), "a Terminate was answered");
    endpoint.eof();
    ended(&mut endpoint, parsed);
    assert!(endpoint.memory.bytes == before && endpoint.memory.taken.is_empty());
}

fn ended(endpoint: &mut Endpoint, parsed: &Result<Terminate, BadTerminate>) {
    let events = endpoint.events();
    let reported: Vec<_> = events
        .iter()
        .filter_map(|event| match event {
            Event::Terminated { by, terminate, .. } => Some((*by, *terminate)),
            _ => None,
        })
        .collect();
    let (clean, cause) = closed(&events).expect("closed by both");
    assert!(!clean);
    match parsed {
        Ok(terminate) => {
            assert_eq!(reported, [(Initiator::Remote, *terminate)]);
            assert_eq!(*cause, CloseCause::Terminated(*terminate));
        }
        Err(error) => {
            assert!(reported.is_empty());
            assert_eq!(*cause, CloseCause::Error(Error::BadTerminate(*error)));
        }
    }
    let outcomes = crate::common::endpoint::outcomes(&events);
    let ids: Vec<_> = outcomes.iter().map(|(id, _)| *id).collect();
    assert_eq!(ids, [0, 1, 2, 3]);
    let blamed = outcomes.iter().filter(|(_, outcome)| {
        use iwarp_rdmap::Outcome::{Flushed, Success};
        !matches!(outcome, Success | Flushed)
    });
    assert!(blamed.count() <= 1, "more than one culprit");
}
