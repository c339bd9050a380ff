//! What the usual message does without: a clock, a look for output that there is not, an event kept aside.
#![allow(
    clippy::arithmetic_side_effects,
    clippy::cast_possible_truncation,
    clippy::indexing_slicing,
    reason = "a test"
)]

mod common;

use std::time::Instant;

use common::endpoint::{Endpoint, SEND, outcomes, read, write};
use common::memory::{Buf, Region, TestMemory};
use common::{config, ramp_of};
use iwarp_mpa::Role;
use iwarp_rdmap::{Clock, Event, Need, OperationKind, Outcome};

const OPEN: u32 = 0x00be_ef01;

struct NoClock;

impl Clock for NoClock {
    fn now(&mut self) -> Instant {
        panic!("no deadline begins here");
    }
}

fn endpoint(role: Role) -> Endpoint {
    let mut memory = TestMemory::new(32_768);
    memory.regions = vec![Region::new(OPEN, 0x1000, 0, 16_384)];
    memory.bytes[..16_384].copy_from_slice(&ramp_of(16_384));
    for id in 0..4 {
        memory.post(1000 + id, 16_384 + 4096 * id as usize, 4096);
    }
    Endpoint::new(config(role), memory)
}

/// All that one side has to send, accepted and taken in whole by the other.
fn exchange(from: &mut Endpoint, to: &mut Endpoint) {
    while from.stream.may_transmit() {
        if !from.stream.poll_transmit(&mut from.memory, &mut from.batch, NoClock) {
            return;
        }
        let mut octets = from.batch.staged().to_vec();
        from.stream.handle_transmitted(octets.len(), NoClock);
        let input = to.stream.handle_input(&mut octets, &mut to.memory, NoClock);
        assert_eq!((input.consumed, input.need), (octets.len(), Need::More(2)));
    }
}

#[test]
fn nobody_asks_for_the_time() {
    let (mut a, mut b) = (endpoint(Role::Initiator), endpoint(Role::Responder));
    assert_eq!(a.events(), [Event::Established]);
    for id in 0..3 {
        a.submit(id, write(OPEN, 0x1000), 0, 64);
        a.submit(10 + id, SEND, 0, 64);
        exchange(&mut a, &mut b);
        assert!(!a.stream.may_transmit());
        assert_eq!(outcomes(&a.events()), [(id, Outcome::Success), (10 + id, Outcome::Success)]);
    }
    a.submit(20, read(OPEN, 0x1000), 0, 64);
    exchange(&mut a, &mut b);
    assert!(b.stream.may_transmit(), "a request to answer");
    exchange(&mut b, &mut a);
    assert_eq!(outcomes(&a.events()), [(20, Outcome::Success)]);
}

/// ORD-13: successes alone, or events, or both by turns: each end comes once, and in order.
#[test]
fn a_success_is_the_event_that_it_stands_for() {
    let (mut a, mut b) = (endpoint(Role::Initiator), endpoint(Role::Responder));
    a.submit(0, SEND, 0, 8);
    exchange(&mut a, &mut b);
    assert!(a.stream.poll_success().is_none(), "another event comes first");
    assert_eq!(a.stream.poll_event(), Some(Event::Established));
    assert_eq!(a.stream.poll_success().map(|(buffer, len)| (buffer.id, len)), Some((0, 8)));

    a.submit(1, write(OPEN, 0x1000), 0, 9);
    a.submit(2, read(OPEN, 0x1000), 0, 10);
    a.submit(3, write(OPEN, 0x1000), 0, 11);
    exchange(&mut a, &mut b);
    assert_eq!(a.stream.poll_success().map(|(buffer, len)| (buffer.id, len)), Some((1, 9)));
    assert!(a.stream.poll_success().is_none(), "the Read waits for its response");
    exchange(&mut b, &mut a);
    assert_eq!(outcomes(&a.events()), [(2, Outcome::Success), (3, Outcome::Success)]);

    // What is not complete when the stream ends has failed, and is no success.
    a.submit(4, SEND, 0, 8);
    a.stream.abort();
    assert!(a.stream.poll_success().is_none());
    assert_eq!(outcomes(&a.events()), [(4, Outcome::Flushed)]);
}

/// A receive that is kept gives no event; one that comes behind other events is not offered, but is one of them.
#[test]
fn a_receive_is_kept_or_gives_an_event() {
    const SOLICITED: OperationKind = OperationKind::Send { solicited: true, invalidate: None };
    let (mut a, mut b) = (endpoint(Role::Initiator), endpoint(Role::Responder));
    b.memory.kept = Some(Vec::new());
    a.events();
    a.submit(0, SEND, 0, 8);
    exchange(&mut a, &mut b);
    let received = |event: Option<Event<Buf>>| match event {
        Some(Event::ReceiveDone { buffer, outcome, len, .. }) => (buffer.id, outcome, len),
        other => panic!("{other:?}"),
    };
    assert_eq!(b.memory.kept.as_deref(), Some(&[][..]), "another event comes first");
    assert_eq!(b.stream.poll_event(), Some(Event::Established));
    assert_eq!(received(b.stream.poll_event()), (1000, Outcome::Success, 8));

    a.submit(1, SOLICITED, 0, 9);
    exchange(&mut a, &mut b);
    let kept = b.memory.kept.replace(Vec::new()).expect("still there");
    let [message] = &kept[..] else { panic!("{kept:?}") };
    assert_eq!((message.buffer.id, message.len, message.solicited), (1001, 9, true));
    assert_eq!(message.invalidated, None);
    assert_eq!(b.memory.bytes[20_480..20_489], b.memory.bytes[..9], "placed before");
    assert!(b.stream.poll_event().is_none());

    // An own request that is complete, and was not asked for yet, comes first.
    b.submit(2, SEND, 0, 4);
    exchange(&mut b, &mut a);
    a.submit(3, SEND, 0, 10);
    exchange(&mut a, &mut b);
    assert_eq!(b.memory.kept.as_deref(), Some(&[][..]));
    assert_eq!(outcomes(&[b.stream.poll_event().expect("the Send")]), [(2, Outcome::Success)]);
    assert_eq!(received(b.stream.poll_event()), (1002, Outcome::Success, 10));

    // A receive that fails is none to keep.
    a.submit(4, SEND, 0, 11);
    a.stream.poll_transmit(&mut a.memory, &mut a.batch, NoClock);
    b.memory.broken.push(1003);
    b.feed(a.batch.staged());
    assert_eq!(b.memory.kept.as_deref(), Some(&[][..]));
    assert_eq!(received(b.stream.poll_event()), (1003, Outcome::LocalProtection, 0));
}
