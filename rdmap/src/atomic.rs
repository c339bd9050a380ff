//! Atomic Operations (RFC 7306 §5): what they do to a value, and the messages that ask and answer.

use iwarp_ddp::Stag;
use zerocopy::{FromBytes, IntoBytes};

use crate::error::OperationError;
use crate::wire::{
    ATOMIC_REQUEST_LEN, ATOMIC_RESPONSE_LEN, AtomicRequestLayout, AtomicResponseLayout,
};

/// What is done to 64 bits of the responder's memory, at once; the requester is told what they were.
///
/// The value is a number of the responder's host; operands and the original value cross the wire in network
/// order (EXT-09).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum AtomicOperation {
    /// Adds to the value (RFC 7306 §5.1.1).
    FetchAdd {
        /// What to add.
        add: u64,
        /// Each 1 is the top bit of a field that is added to on its own: no carry leaves it. With 0 all 64
        /// bits are one field.
        mask: u64,
    },
    /// Compares, and swaps if equal (RFC 7306 §5.1.2). With masks of all ones it is the usual
    /// compare-and-swap, with a `compare_mask` of 0 a plain swap.
    CompareSwap {
        /// What the value should be.
        compare: u64,
        /// The bits that are compared.
        compare_mask: u64,
        /// What it becomes.
        swap: u64,
        /// The bits that are replaced.
        swap_mask: u64,
    },
}

impl AtomicOperation {
    /// An addition to all 64 bits.
    #[must_use]
    pub const fn fetch_add(add: u64) -> Self {
        Self::FetchAdd { add, mask: 0 }
    }

    /// A swap of all 64 bits, if they are `compare`.
    #[must_use]
    pub const fn compare_swap(compare: u64, swap: u64) -> Self {
        Self::CompareSwap { compare, compare_mask: u64::MAX, swap, swap_mask: u64::MAX }
    }

    /// A swap of all 64 bits, whatever they are.
    #[must_use]
    pub const fn swap(swap: u64) -> Self {
        Self::CompareSwap { compare: 0, compare_mask: 0, swap, swap_mask: u64::MAX }
    }

    /// What becomes of a value.
    ///
    /// ```
    /// use iwarp_rdmap::AtomicOperation;
    ///
    /// assert_eq!(AtomicOperation::fetch_add(1).apply(41), 42);
    /// // Two fields of 32 bits: the carry of the lower one is lost.
    /// let fields = AtomicOperation::FetchAdd { add: 1, mask: 1 << 31 | 1 << 63 };
    /// assert_eq!(fields.apply(0x0000_0007_ffff_ffff), 0x0000_0007_0000_0000);
    /// assert_eq!(AtomicOperation::compare_swap(1, 9).apply(1), 9);
    /// assert_eq!(AtomicOperation::compare_swap(1, 9).apply(2), 2);
    /// ```
    #[must_use]
    pub const fn apply(self, original: u64) -> u64 {
        match self {
            // EXT-06. Without their top bits the fields cannot carry into each other; of the top bit itself
            // the sum is an exclusive or. What the highest field carries is lost anyway.
            Self::FetchAdd { add, mask } => {
                (original & !mask).wrapping_add(add & !mask) ^ ((original ^ add) & mask)
            }
            // EXT-07
            Self::CompareSwap { compare, compare_mask, swap, swap_mask } => {
                if (original ^ compare) & compare_mask == 0 {
                    (original & !swap_mask) | (swap & swap_mask)
                } else {
                    original
                }
            }
        }
    }
}

/// Numbers of the operations on the wire.
mod code {
    pub(super) const FETCH_ADD: u32 = 0;
    pub(super) const COMPARE_SWAP: u32 = 2;
    /// The other bits of the field are reserved.
    pub(super) const MASK: u32 = 0x0f;
}

/// Atomic Request: what to do, and where (RFC 7306 §5.2.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct AtomicRequest {
    /// Chosen by the requester, and sent back with the response.
    pub id: u32,
    /// Names the responder's buffer.
    pub stag: Stag,
    /// Tagged offset in it; the memory there has to be aligned to 8 octets.
    pub offset: u64,
    /// What to do.
    pub operation: AtomicOperation,
}

impl AtomicRequest {
    /// Reads the header.
    ///
    /// # Errors
    /// [`OperationError::AtomicRequestLength`] unless `octets` are exactly one ([`ATOMIC_REQUEST_LEN`]), and
    /// [`OperationError::AtomicOpcode`] if the operation has no name.
    pub fn parse(octets: &[u8]) -> Result<Self, OperationError> {
        let wrong = OperationError::AtomicRequestLength { len: octets.len() };
        let layout = AtomicRequestLayout::ref_from_bytes(octets).map_err(|_| wrong)?;
        let operation = match layout.operation.get() & code::MASK {
            // What FetchAdd has in the fields that compare is not looked at.
            code::FETCH_ADD => {
                AtomicOperation::FetchAdd { add: layout.data.get(), mask: layout.mask.get() }
            }
            code::COMPARE_SWAP => AtomicOperation::CompareSwap {
                compare: layout.compare.get(),
                compare_mask: layout.compare_mask.get(),
                swap: layout.data.get(),
                swap_mask: layout.mask.get(),
            },
            other => return Err(OperationError::AtomicOpcode(other)), // EXT-13
        };
        let stag = Stag::from_raw(layout.stag.get());
        Ok(Self { id: layout.id.get(), stag, offset: layout.offset.get(), operation })
    }

    /// The octets on the wire.
    #[must_use]
    pub fn to_bytes(self) -> [u8; ATOMIC_REQUEST_LEN] {
        let (operation, data, mask, compare, compare_mask) = match self.operation {
            AtomicOperation::FetchAdd { add, mask } => (code::FETCH_ADD, add, mask, 0, u64::MAX),
            AtomicOperation::CompareSwap { compare, compare_mask, swap, swap_mask } => {
                (code::COMPARE_SWAP, swap, swap_mask, compare, compare_mask)
            }
        };
        let layout = AtomicRequestLayout {
            operation: operation.into(),
            id: self.id.into(),
            stag: self.stag.raw().into(),
            offset: self.offset.into(),
            data: data.into(),
            mask: mask.into(),
            compare: compare.into(),
            compare_mask: compare_mask.into(),
        };
        let mut octets = [0; ATOMIC_REQUEST_LEN];
        octets.copy_from_slice(layout.as_bytes());
        octets
    }
}

/// Atomic Response: what the value was (RFC 7306 §5.2.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct AtomicResponse {
    /// That of the request.
    pub id: u32,
    /// The value before the operation.
    pub original: u64,
}

impl AtomicResponse {
    /// Reads the header.
    ///
    /// # Errors
    /// [`OperationError::AtomicResponseLength`] unless `octets` are exactly one ([`ATOMIC_RESPONSE_LEN`]).
    pub fn parse(octets: &[u8]) -> Result<Self, OperationError> {
        let wrong = OperationError::AtomicResponseLength { len: octets.len() };
        let layout = AtomicResponseLayout::ref_from_bytes(octets).map_err(|_| wrong)?;
        Ok(Self { id: layout.id.get(), original: layout.original.get() })
    }

    /// The octets on the wire.
    #[must_use]
    pub fn to_bytes(self) -> [u8; ATOMIC_RESPONSE_LEN] {
        let layout = AtomicResponseLayout { id: self.id.into(), original: self.original.into() };
        let mut octets = [0; ATOMIC_RESPONSE_LEN];
        octets.copy_from_slice(layout.as_bytes());
        octets
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::arithmetic_side_effects, reason = "a panic is a failed test")]

    use proptest::prelude::*;

    use super::*;

    /// Field by field, from the lowest bit up.
    fn add_by_fields(original: u64, add: u64, mask: u64) -> u64 {
        let mut sum = 0;
        let mut carry = 0;
        for bit in 0..64 {
            let digits = (original >> bit & 1) + (add >> bit & 1) + carry;
            sum |= (digits & 1) << bit;
            carry = if mask >> bit & 1 == 1 { 0 } else { digits >> 1 };
        }
        sum
    }

    #[test]
    fn other_lengths_and_operations_are_refused() {
        // EXT-13, RDMAP-081
        let request = AtomicRequest {
            id: 1,
            stag: Stag::from_raw(2),
            offset: 3,
            operation: AtomicOperation::swap(4),
        };
        let octets = request.to_bytes();
        for len in 0..ATOMIC_REQUEST_LEN {
            let expected = OperationError::AtomicRequestLength { len };
            assert_eq!(AtomicRequest::parse(&octets[..len]), Err(expected));
        }
        assert!(AtomicRequest::parse(&[&octets[..], &[0]].concat()).is_err());
        for code in 0..16 {
            let mut other = octets;
            other[3] = code;
            let parsed = AtomicRequest::parse(&other);
            if matches!(code, 0 | 2) {
                assert!(parsed.is_ok());
            } else {
                assert_eq!(parsed, Err(OperationError::AtomicOpcode(code.into())));
            }
        }
        assert!(AtomicResponse::parse(&[0; 11]).is_err());
        assert!(AtomicResponse::parse(&[0; 13]).is_err());
    }

    proptest! {
        /// EXT-06
        #[test]
        fn fields_are_added_on_their_own(original: u64, add: u64, mask: u64) {
            let operation = AtomicOperation::FetchAdd { add, mask };
            prop_assert_eq!(operation.apply(original), add_by_fields(original, add, mask));
            let plain = AtomicOperation::fetch_add(add);
            prop_assert_eq!(plain.apply(original), original.wrapping_add(add));
        }

        /// EXT-07
        #[test]
        fn bits_outside_of_the_masks_do_not_matter(
            original: u64, compare: u64, compare_mask: u64, swap: u64, swap_mask: u64,
        ) {
            // Half of the time equal where it counts.
            for compare in [compare, original ^ (compare & !compare_mask)] {
                let operation =
                    AtomicOperation::CompareSwap { compare, compare_mask, swap, swap_mask };
                let result = operation.apply(original);
                let equal = original & compare_mask == compare & compare_mask;
                for bit in 0..64 {
                    let source = if equal && swap_mask >> bit & 1 == 1 { swap } else { original };
                    prop_assert_eq!(result >> bit & 1, source >> bit & 1, "bit {}", bit);
                }
            }
        }

        /// EXT-09
        #[test]
        fn what_is_written_is_read(id: u32, stag: u32, offset: u64, operands: [u64; 4], add: bool) {
            let [compare, compare_mask, swap, swap_mask] = operands;
            let operation = if add {
                AtomicOperation::FetchAdd { add: swap, mask: swap_mask }
            } else {
                AtomicOperation::CompareSwap { compare, compare_mask, swap, swap_mask }
            };
            let request = AtomicRequest { id, stag: Stag::from_raw(stag), offset, operation };
            prop_assert_eq!(AtomicRequest::parse(&request.to_bytes()), Ok(request));
            let response = AtomicResponse { id, original: swap };
            prop_assert_eq!(AtomicResponse::parse(&response.to_bytes()), Ok(response));
        }
    }
}
