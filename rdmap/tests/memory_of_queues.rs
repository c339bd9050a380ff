//! What the queues of a stream take, counted by the allocator: little for single messages, as much as they need
//! for many, and nothing any more when they were told so.
#![allow(
    clippy::arithmetic_side_effects,
    clippy::cast_possible_truncation,
    clippy::indexing_slicing,
    reason = "a test"
)]

mod common;

use std::alloc::System;

use cap::Cap;
use common::endpoint::{Endpoint, OPEN, SEND, target};
use common::memory::Buf;
use common::peer::{Peer, request};
use common::{CRC, config};
use iwarp_mpa::Role;
use iwarp_rdmap::Operation;

#[global_allocator]
static ALLOCATOR: Cap<System> = Cap::new(System, usize::MAX);

/// Octets that a step leaves allocated.
fn growth(step: impl FnOnce()) -> usize {
    let before = ALLOCATOR.allocated();
    step();
    ALLOCATOR.allocated() - before
}

/// The stream takes one Send of the peer, which makes an event.
fn receive(endpoint: &mut Endpoint, octets: &mut [u8]) {
    let input = endpoint.stream.handle_input(octets, &mut endpoint.memory, endpoint.now);
    assert_eq!(input.consumed, octets.len());
}

/// Not a test of the usual harness: its threads would be counted too.
fn main() {
    let many = 100;
    let mut config = config(Role::Initiator);
    config.ird = many;
    let mut endpoint = target(config, 2 + many as usize);
    endpoint.memory.taken.reserve(1000);
    let mut peer = Peer::new(CRC);
    let mut sends: Vec<_> = (1..=2 + many).map(|msn| peer.send(msn, b"data")).collect();
    let requests: Vec<_> = (1..=many).map(|msn| peer.request(msn, request(OPEN, 0, 0))).collect();
    let operation = |id| {
        let buffer = Buf { id, at: 0, len: 4 };
        Operation { kind: SEND, len: 4, fence: false, buffer }
    };
    // What the batch needs is its own affair, and there after the first record.
    endpoint.stream.submit(operation(0)).expect("taken");
    endpoint.transmit();
    endpoint.events();
    endpoint.stream.shrink_to_fit();
    let empty = ALLOCATOR.allocated();

    // Room for one where there is one, and no second.
    let one = growth(|| endpoint.stream.submit(operation(0)).expect("taken"));
    let two = growth(|| endpoint.stream.submit(operation(1)).expect("taken"));
    assert!(one > 0 && one < two, "operations: {one} octets, then {two}");
    let one = growth(|| receive(&mut endpoint, &mut sends[0]));
    let two = growth(|| receive(&mut endpoint, &mut sends[1]));
    assert!(one > 0 && one < two, "events: {one} octets, then {two}");

    // Many of everything: operations, events, and requests of the peer.
    for id in 2..u64::from(many) {
        endpoint.stream.submit(operation(id)).expect("taken");
    }
    for octets in &mut sends[2..] {
        receive(&mut endpoint, octets);
    }
    for octets in &requests {
        endpoint.feed(octets);
    }
    endpoint.rx = Vec::new();
    assert!(ALLOCATOR.allocated() > empty + 3 * 100 * size_of::<Buf>());
    endpoint.transmit();
    endpoint.events();
    assert!(!endpoint.stream.has_pending_work());
    endpoint.stream.shrink_to_fit();
    assert_eq!(ALLOCATOR.allocated(), empty, "something is kept, or given back twice");
}
