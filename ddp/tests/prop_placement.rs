//! [`range_in`] against arithmetic that cannot overflow.

#![allow(missing_docs, clippy::arithmetic_side_effects, reason = "test code")]

mod common;

use iwarp_ddp::{Refusal, range_in};
use proptest::prelude::*;

/// Every order of magnitude, and both ends.
fn number() -> impl Strategy<Value = u64> {
    prop_oneof![
        any::<u64>(),
        0..100_u64,
        (0..100_u64).prop_map(|below| u64::MAX - below),
        (0..64_u32, any::<u64>()).prop_map(|(shift, value)| value >> shift),
    ]
}

proptest! {
    #![proptest_config(common::config(5_000))]

    #[test]
    fn answer_is_that_of_wide_arithmetic(
        base in number(), size in number(), offset in number(), len in number(),
    ) {
        // DDP-057, DDP-058, SEC-03, SEC-23
        let wide = u128::from;
        let expected = if wide(offset) + wide(len) >= 1 << 64 {
            Err(Refusal::Wrap)
        } else if offset < base || wide(offset) + wide(len) > wide(base) + wide(size) {
            Err(Refusal::Bounds)
        } else {
            Ok(offset - base)
        };
        prop_assert_eq!(range_in(base, size, offset, len), expected);
    }

    /// Ranges that begin inside, and end within a few octets of the end on either side.
    #[test]
    fn end_is_exact(
        base in number().prop_map(|base| base.min(u64::MAX - 2000)),
        (size, start) in (1..1000_u64).prop_flat_map(|size| (Just(size), 0..size)),
        slack in -3..=3_i64,
    ) {
        // DDP-057
        let len = (size - start).checked_add_signed(slack).unwrap_or(0);
        let expected = if start + len <= size { Ok(start) } else { Err(Refusal::Bounds) };
        prop_assert_eq!(range_in(base, size, base + start, len), expected);
    }
}
