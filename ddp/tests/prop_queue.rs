//! [`UntaggedQueue`] against a model, for sequences of segments that a faulty or hostile peer could send.

#![allow(
    clippy::arithmetic_side_effects,
    clippy::cast_possible_truncation,
    missing_docs,
    reason = "test code; a panic is a failed test"
)]

mod common;

use std::sync::LazyLock;

use iwarp_ddp::{Position, UntaggedError, UntaggedQueue, UntaggedSegment};
use proptest::prelude::*;

/// Payload to point at. Nobody reads it, so it takes no memory; a few of it reach 2^32.
static OCTETS: LazyLock<Vec<u8>> = LazyLock::new(|| vec![0; CHUNK as usize]);
const CHUNK: u32 = 1 << 26;

/// The rules, written the slow way: what the peer has sent of a message is a list of lengths.
struct Model {
    /// Messages that were completed.
    done: u64,
    first_msn: u32,
    open: Option<Vec<u64>>,
}

impl Model {
    fn next_msn(&self) -> u32 {
        ((u64::from(self.first_msn) + self.done) % (1 << 32)) as u32
    }

    fn so_far(&self) -> u64 {
        self.open.iter().flatten().sum()
    }

    fn accept(
        &mut self,
        segment: &UntaggedSegment<'_>,
        capacity: u64,
    ) -> Result<(Position, u64, Option<u32>), UntaggedError> {
        let len = segment.payload.len() as u64;
        let so_far = self.so_far();
        if segment.msn != self.next_msn() {
            return Err(UntaggedError::MsnRange);
        }
        if u64::from(segment.offset) != so_far {
            return Err(UntaggedError::InvalidOffset);
        }
        if so_far + len > capacity || so_far + len >= 1 << 32 {
            return Err(UntaggedError::TooLong);
        }
        let position = if self.open.is_some() { Position::Continuation } else { Position::First };
        if segment.last {
            self.open = None;
            self.done += 1;
            return Ok((position, so_far, Some((so_far + len) as u32)));
        }
        self.open.get_or_insert_default().push(len);
        Ok((position, so_far, None))
    }
}

/// One segment, relative to what is due.
#[derive(Clone, Debug)]
struct Step {
    msn: Field,
    offset: Field,
    len: u32,
    last: bool,
}

#[derive(Clone, Copy, Debug)]
enum Field {
    AsDue,
    OffBy(i32),
    Any(u32),
}

impl Field {
    fn value(self, due: u32) -> u32 {
        match self {
            Self::AsDue => due,
            Self::OffBy(distance) => due.wrapping_add_signed(distance),
            Self::Any(value) => value,
        }
    }
}

fn field() -> impl Strategy<Value = Field> {
    prop_oneof![
        12 => Just(Field::AsDue),
        1 => (-3..=3_i32).prop_map(Field::OffBy),
        1 => any::<u32>().prop_map(Field::Any),
    ]
}

fn step() -> impl Strategy<Value = Step> {
    let len = prop_oneof![
        1 => Just(0),
        6 => 1..2000_u32,
        1 => CHUNK - 10..=CHUNK,
    ];
    (field(), field(), len, any::<bool>()).prop_map(|(msn, offset, len, last)| Step {
        msn,
        offset,
        len,
        last,
    })
}

/// Small buffers, buffers near the longest message, and buffers larger than any message.
fn capacity() -> impl Strategy<Value = u64> {
    prop_oneof![0..6000_u64, (1 << 32) - 6000..=1_u64 << 32, Just(u64::MAX),]
}

fn segment(msn: u32, offset: u32, len: u32, last: bool) -> UntaggedSegment<'static> {
    let payload = OCTETS.get(..len as usize).expect("payloads are at most CHUNK octets");
    UntaggedSegment {
        last,
        rsvd_ulp: 0x43,
        rsvd_ulp_word: 0,
        queue: 0,
        msn,
        offset,
        payload,
        header: &[0; 18],
        ulpdu_len: 18 + payload.len(),
    }
}

/// All that a receiver asks of its queue for one segment.
fn receive(
    queue: &mut UntaggedQueue,
    segment: &UntaggedSegment<'_>,
    capacity: u64,
) -> Result<(Position, u64, Option<u32>), UntaggedError> {
    let position = queue.check_msn(segment)?;
    let at = queue.check_placement(segment, capacity)?;
    Ok((position, at, queue.placed(segment)))
}

proptest! {
    #![proptest_config(common::config(1_000))]

    #[test]
    fn queue_follows_the_model(
        first_msn in prop_oneof![Just(1), Just(u32::MAX - 2), any::<u32>()],
        // Segments of CHUNK octets placed before the rest, to come near the longest message.
        prefill in prop_oneof![Just(0_u32), Just(63), 0..70_u32],
        capacity in capacity(),
        steps in prop::collection::vec(step(), 0..60),
    ) {
        // DDP-022, DDP-023, DDP-052, DDP-053, DDP-054, SEC-23, FC-018
        let mut queue = UntaggedQueue::with_next_msn(first_msn);
        let mut model = Model { done: 0, first_msn, open: None };
        let prefill = std::iter::repeat_n(
            Step { msn: Field::AsDue, offset: Field::AsDue, len: CHUNK, last: false },
            prefill as usize,
        );
        for step in prefill.chain(steps) {
            let msn = step.msn.value(model.next_msn());
            let offset = step.offset.value(model.so_far() as u32);
            let segment = segment(msn, offset, step.len, step.last);

            let before = queue.clone();
            let outcome = receive(&mut queue, &segment, capacity);
            prop_assert_eq!(&outcome, &model.accept(&segment, capacity));
            if outcome.is_err() {
                prop_assert_eq!(&queue, &before);
            }
            prop_assert_eq!(queue.is_open(), model.open.is_some());
            prop_assert_eq!(queue.msn(), model.next_msn());
        }
    }

    /// Whatever a peer sends, nothing lands outside the buffer, and no message is told to be longer.
    #[test]
    fn placement_stays_inside_the_buffer(
        capacity in capacity(),
        segments in prop::collection::vec(
            (any::<u32>(), any::<u32>(), 0..=CHUNK, any::<bool>()), 0..20),
    ) {
        // DDP-052, DDP-053, SEC-03
        let mut queue = UntaggedQueue::new();
        for (offset, nearby, len, last) in segments {
            for offset in [offset, nearby % 8, 0] {
                let segment = segment(queue.msn(), offset, len, last);
                if let Ok((_, at, complete)) = receive(&mut queue, &segment, capacity) {
                    prop_assert!(at + u64::from(len) <= capacity);
                    prop_assert!(complete.is_none_or(|len| u64::from(len) <= capacity));
                }
            }
        }
    }
}

#[test]
fn longest_message_fills_the_offset_to_its_end() {
    // DDP-025, DDP-053
    let mut queue = UntaggedQueue::new();
    for at in 0..63 {
        let segment = segment(1, at * CHUNK, CHUNK, false);
        assert!(receive(&mut queue, &segment, u64::MAX).is_ok());
    }
    // One octet more would be a message of 2^32 octets, which no offset could have counted.
    let too_long = segment(1, 63 * CHUNK, CHUNK, true);
    assert_eq!(receive(&mut queue, &too_long, u64::MAX), Err(UntaggedError::TooLong));
    let longest = segment(1, 63 * CHUNK, CHUNK - 1, true);
    assert_eq!(
        receive(&mut queue, &longest, u64::MAX),
        Ok((Position::Continuation, 63 * u64::from(CHUNK), Some(u32::MAX)))
    );
}
