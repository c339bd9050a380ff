//! The memory of the stream under test: what lies where, and what may change.

use iwarp_rdmap::{Event, Outcome};

use crate::common::memory::{Buf, Region, TestMemory};

/// `STag` of memory that is open to the peer for everything.
pub(super) const OPEN: u32 = 0x00be_ef01;
/// `STag` of memory of another protection domain.
pub(super) const FOREIGN: u32 = 0x00be_ef02;
/// `STag` of memory without remote access.
pub(super) const LOCAL: u32 = 0x00be_ef03;
/// `STag` of memory that may be read only.
pub(super) const READABLE: u32 = 0x00be_ef04;
/// `STag` of memory that may be written only.
pub(super) const WRITABLE: u32 = 0x00be_ef05;

/// Tagged offset of the first octet of the regions above.
pub(super) const BASE: u64 = 0x1000;
/// Octets of the open memory.
pub(super) const OPEN_LEN: u64 = 4096;

/// Where regions lie that the input makes, one behind the other.
pub(super) const MADE: usize = 5120;
pub(super) const MADE_END: usize = 9216;

/// Places for the operations of the input and for its receives. Behind each there is room that nobody may touch.
pub(super) const OPERATIONS: usize = 9280;
pub(super) const OPERATION_LEN: usize = 640;
const RECEIVES: usize = OPERATIONS + MOST * (OPERATION_LEN + GAP);
pub(super) const RECEIVE_LEN: usize = 256;
const END: usize = RECEIVES + MOST * (RECEIVE_LEN + GAP);

/// Operations, and receives, that an input can make.
pub(super) const MOST: usize = 12;
const GAP: usize = 64;
/// Numbers of receives start here.
const FIRST_RECEIVE: u64 = 1000;

/// What memory holds that nobody wrote: octets that differ from one place to the next.
static UNTOUCHED: [u8; END] = {
    let mut octets = [0; END];
    let mut at = 0;
    while at < END {
        octets[at] = (at % 251) as u8 ^ 0xa5;
        at += 1;
    }
    octets
};

/// All of it at the beginning.
pub(super) fn memory() -> TestMemory {
    let mut memory = TestMemory { bytes: UNTOUCHED.to_vec(), ..TestMemory::default() };
    let half = |stag, at, len| Region { atomic: false, ..Region::new(stag, BASE, at, len) };
    memory.regions = vec![
        Region::new(OPEN, BASE, 0, OPEN_LEN),
        Region { write: false, ..half(READABLE, 4160, 256) },
        Region { read: false, ..half(WRITABLE, 4480, 256) },
        Region::new(FOREIGN, BASE, 4800, 64).foreign(),
        Region::new(LOCAL, BASE, 4928, 64).local(),
    ];
    memory
}

/// Where the operation with this number finds its octets.
pub(super) const fn operation_at(id: u64) -> usize {
    OPERATIONS + id as usize * (OPERATION_LEN + GAP)
}

/// The receive number `index`.
pub(super) const fn receive(index: usize, len: usize) -> Buf {
    let at = RECEIVES + index * (RECEIVE_LEN + GAP);
    Buf { id: FIRST_RECEIVE + index as u64, at, len }
}

/// Nothing changed but what was granted: regions that the peer may write, sinks of own Reads and Atomics, and of
/// each receive that was taken so many octets as its message had.
pub(super) fn check(memory: &TestMemory, sinks: &[Buf], events: &[Event<Buf>]) {
    let mut expected = UNTOUCHED;
    let mut grant = |at: usize, len: usize| {
        expected[at..at + len].copy_from_slice(&memory.bytes[at..at + len]);
    };
    for region in &memory.regions {
        if region.our_domain && (region.write || region.atomic) {
            grant(region.at, region.len as usize);
        }
    }
    for sink in sinks {
        grant(sink.at, sink.len);
    }
    for event in events {
        if let Event::ReceiveDone { buffer, outcome, len, immediate, .. } = event {
            let placed = match (outcome, immediate) {
                (_, Some(_)) => 0,
                (Outcome::Success, None) => *len as usize,
                _ => buffer.len,
            };
            grant(buffer.at, placed);
        }
    }
    for kept in memory.kept.iter().flatten() {
        grant(kept.buffer.at, if kept.immediate.is_some() { 0 } else { kept.len as usize });
    }
    assert!(memory.bytes == expected, "an octet that was granted to nobody has changed");
}
