//! What a request of the send queue does, and its options.

use std::fmt;

use bitflags::bitflags;
use iwarp_rdmap::AtomicOperation;

use crate::wc::WcOpcode;

bitflags! {
    /// Options of a send request. The bits are those of `enum ibv_send_flags`.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
    pub struct SendFlags: u32 {
        /// Starts only when all earlier Reads and Atomics are complete.
        const FENCE = 1;
        /// Is reported also if it succeeds.
        const SIGNALED = 2;
        /// The receive it fills is a solicited event at the peer.
        const SOLICITED = 4;
    }
}

/// What a request of the send queue does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum SendOperation {
    /// Send a message into the peer's next receive.
    Send,
    /// The same, and invalidate one of the peer's keys after the message is placed.
    SendWithInvalidate {
        /// The key, as the peer told it.
        rkey: u32,
    },
    /// Write into the peer's memory.
    RdmaWrite {
        /// First tagged offset.
        remote_addr: u64,
        /// The peer's key.
        rkey: u32,
    },
    /// Write into the peer's memory, and tell it so: 32 bits reach its program with its next receive, once
    /// all of the Write is placed (RFC 7306 §6).
    RdmaWriteWithImm {
        /// First tagged offset.
        remote_addr: u64,
        /// The peer's key.
        rkey: u32,
        /// The 32 bits, as a number: both programs see the same one.
        imm: u32,
    },
    /// Send a message and 32 bits with it. For programs that try: iWARP has no such message, and posting
    /// refuses it. A Write with immediate data does the same for a peer that lends its memory.
    SendWithImm {
        /// The 32 bits.
        imm: u32,
    },
    /// Read from the peer's memory.
    RdmaRead {
        /// First tagged offset.
        remote_addr: u64,
        /// The peer's key.
        rkey: u32,
    },
    /// Add to a number of 64 bits in the peer's memory, atomically, and bring what it was (RFC 7306 §5).
    FetchAdd {
        /// Tagged offset of the number, a multiple of 8.
        remote_addr: u64,
        /// The peer's key.
        rkey: u32,
        /// What to add; beyond 2^64 it begins at 0 again.
        add: u64,
    },
    /// Replace a number of 64 bits in the peer's memory if it is the one expected, atomically, and bring what
    /// it was.
    CompareSwap {
        /// Tagged offset of the number, a multiple of 8.
        remote_addr: u64,
        /// The peer's key.
        rkey: u32,
        /// What it should be.
        compare: u64,
        /// What it becomes then.
        swap: u64,
    },
    /// [`FetchAdd`](Self::FetchAdd) on fields of the number, without carries between them. (libibverbs has
    /// no such request.)
    MaskedFetchAdd {
        /// Tagged offset of the number, a multiple of 8.
        remote_addr: u64,
        /// The peer's key.
        rkey: u32,
        /// What to add.
        add: u64,
        /// The top bit of each field.
        mask: u64,
    },
    /// [`CompareSwap`](Self::CompareSwap) that compares and replaces some of the bits. (libibverbs has no such
    /// request.)
    MaskedCompareSwap {
        /// Tagged offset of the number, a multiple of 8.
        remote_addr: u64,
        /// The peer's key.
        rkey: u32,
        /// What the compared bits should be.
        compare: u64,
        /// Which bits are compared.
        compare_mask: u64,
        /// What the replaced bits become.
        swap: u64,
        /// Which bits are replaced.
        swap_mask: u64,
    },
    /// Take a key of this side out of force. Sends nothing.
    LocalInvalidate {
        /// The key: of a region, a fast-registered region, or a window of type 2.
        rkey: u32,
    },
    /// Bind a memory window. Sends nothing.
    BindWindow {
        /// The key that it will have.
        rkey: u32,
    },
    /// Give memory to a fast-registered region. Sends nothing.
    Register {
        /// The key that it will have.
        rkey: u32,
    },
}

impl SendOperation {
    /// What a completion of it says.
    #[must_use]
    pub const fn wc_opcode(self) -> WcOpcode {
        match self {
            Self::Send | Self::SendWithInvalidate { .. } | Self::SendWithImm { .. } => {
                WcOpcode::Send
            }
            Self::RdmaWrite { .. } | Self::RdmaWriteWithImm { .. } => WcOpcode::RdmaWrite,
            Self::RdmaRead { .. } => WcOpcode::RdmaRead,
            Self::FetchAdd { .. } | Self::MaskedFetchAdd { .. } => WcOpcode::FetchAdd,
            Self::CompareSwap { .. } | Self::MaskedCompareSwap { .. } => WcOpcode::CompSwap,
            Self::LocalInvalidate { .. } => WcOpcode::LocalInv,
            Self::BindWindow { .. } => WcOpcode::BindMw,
            Self::Register { .. } => WcOpcode::RegMr,
        }
    }

    /// Whether it works on keys of this side, and sends nothing.
    #[must_use]
    pub const fn is_local(self) -> bool {
        matches!(
            self,
            Self::LocalInvalidate { .. } | Self::BindWindow { .. } | Self::Register { .. }
        )
    }

    /// Whether it takes messages of RFC 7306 to carry it out.
    #[must_use]
    pub const fn is_extension(self) -> bool {
        matches!(self, Self::RdmaWriteWithImm { .. }) || self.atomic().is_some()
    }

    /// Where and what, if it is an Atomic: key, tagged offset, operation.
    pub(crate) const fn atomic(self) -> Option<(u32, u64, AtomicOperation)> {
        Some(match self {
            Self::FetchAdd { remote_addr, rkey, add } => {
                (rkey, remote_addr, AtomicOperation::fetch_add(add))
            }
            Self::CompareSwap { remote_addr, rkey, compare, swap } => {
                (rkey, remote_addr, AtomicOperation::compare_swap(compare, swap))
            }
            Self::MaskedFetchAdd { remote_addr, rkey, add, mask } => {
                (rkey, remote_addr, AtomicOperation::FetchAdd { add, mask })
            }
            Self::MaskedCompareSwap {
                remote_addr,
                rkey,
                compare,
                compare_mask,
                swap,
                swap_mask,
            } => {
                let operation =
                    AtomicOperation::CompareSwap { compare, compare_mask, swap, swap_mask };
                (rkey, remote_addr, operation)
            }
            _ => return None,
        })
    }

    /// The request for an Atomic Operation: without masks wherever it needs none.
    pub(crate) const fn of_atomic(rkey: u32, remote_addr: u64, operation: AtomicOperation) -> Self {
        match operation {
            AtomicOperation::FetchAdd { add, mask: 0 } => Self::FetchAdd { remote_addr, rkey, add },
            AtomicOperation::FetchAdd { add, mask } => {
                Self::MaskedFetchAdd { remote_addr, rkey, add, mask }
            }
            AtomicOperation::CompareSwap {
                compare,
                compare_mask: u64::MAX,
                swap,
                swap_mask: u64::MAX,
            } => Self::CompareSwap { remote_addr, rkey, compare, swap },
            AtomicOperation::CompareSwap { compare, compare_mask, swap, swap_mask } => {
                Self::MaskedCompareSwap {
                    remote_addr,
                    rkey,
                    compare,
                    compare_mask,
                    swap,
                    swap_mask,
                }
            }
        }
    }

    /// The integer libibverbs uses for the request (`enum ibv_wr_opcode`). It has none for
    /// [`Register`](Self::Register), which has one that it does not use.
    #[must_use]
    pub const fn value(self) -> u32 {
        match self {
            Self::RdmaWrite { .. } => 0,
            Self::RdmaWriteWithImm { .. } => 1,
            Self::Send => 2,
            Self::SendWithImm { .. } => 3,
            Self::RdmaRead { .. } => 4,
            Self::CompareSwap { .. } => 5,
            Self::FetchAdd { .. } => 6,
            // Those of the kernel's verbs.
            Self::MaskedCompareSwap { .. } => 12,
            Self::MaskedFetchAdd { .. } => 13,
            Self::LocalInvalidate { .. } => 7,
            Self::BindWindow { .. } => 8,
            Self::SendWithInvalidate { .. } => 9,
            Self::Register { .. } => 32,
        }
    }
}

impl fmt::Display for SendOperation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Send => f.write_str("Send"),
            Self::SendWithInvalidate { rkey } => {
                write!(f, "Send with Invalidate of key {rkey:#010x}")
            }
            Self::RdmaWrite { remote_addr, rkey } => {
                write!(f, "RDMA Write to {remote_addr:#x}, key {rkey:#010x}")
            }
            Self::RdmaWriteWithImm { remote_addr, rkey, imm } => {
                write!(
                    f,
                    "RDMA Write to {remote_addr:#x}, key {rkey:#010x}, with immediate {imm:#010x}"
                )
            }
            Self::SendWithImm { imm } => write!(f, "Send with immediate {imm:#010x}"),
            Self::RdmaRead { remote_addr, rkey } => {
                write!(f, "RDMA Read of {remote_addr:#x}, key {rkey:#010x}")
            }
            Self::FetchAdd { remote_addr, rkey, .. }
            | Self::MaskedFetchAdd { remote_addr, rkey, .. } => {
                write!(f, "FetchAdd at {remote_addr:#x}, key {rkey:#010x}")
            }
            Self::CompareSwap { remote_addr, rkey, .. }
            | Self::MaskedCompareSwap { remote_addr, rkey, .. } => {
                write!(f, "CompareSwap at {remote_addr:#x}, key {rkey:#010x}")
            }
            Self::LocalInvalidate { rkey } => write!(f, "invalidation of key {rkey:#010x}"),
            Self::BindWindow { rkey } => write!(f, "binding of a window, key {rkey:#010x}"),
            Self::Register { rkey } => write!(f, "fast registration, key {rkey:#010x}"),
        }
    }
}
