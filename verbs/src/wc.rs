//! Work completions: what a completion queue hands out for a finished work request.

use std::fmt;

use bitflags::bitflags;

/// How a work request ended. The integers are those of `enum ibv_wc_status`.
///
/// At most one request of a queue pair ends with something else than [`Success`](Self::Success) or
/// [`WrFlushErr`](Self::WrFlushErr). The statuses of `InfiniBand` timers do not occur: TCP owns
/// retransmission.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u32)]
#[non_exhaustive]
pub enum WcStatus {
    /// The request is done; what that proves depends on the operation ([`WcOpcode`]).
    Success = 0,
    /// A message was longer than the receive it met, or a local length was out of range.
    LocLenErr = 1,
    /// The request could not be carried out, such as a Read on a connection with an ORD of 0.
    LocQpOpErr = 2,
    /// An element of the request named memory that is not valid for it: key, domain, bounds or right.
    LocProtErr = 4,
    /// The request was never (wholly) carried out because the connection ended before.
    WrFlushErr = 5,
    /// A memory window could not be bound.
    MwBindErr = 6,
    /// The answer to a Read did not fit the Read.
    BadRespErr = 7,
    /// A local access was refused for lack of a right, where that is told apart from
    /// [`LocProtErr`](Self::LocProtErr).
    LocAccessErr = 8,
    /// The peer, or this side, refused the request as invalid (opcode, or a key to invalidate).
    RemInvReqErr = 9,
    /// The peer refused access to its memory.
    RemAccessErr = 10,
    /// The peer could not complete the operation.
    RemOpErr = 11,
    /// A failure of the device that no other status fits.
    FatalErr = 19,
    /// Any other failure.
    GeneralErr = 21,
}

impl WcStatus {
    /// Whether the request was carried out.
    #[must_use]
    pub const fn is_success(self) -> bool {
        matches!(self, Self::Success)
    }

    /// The integer libibverbs uses for this status.
    #[must_use]
    pub const fn value(self) -> u32 {
        self as u32
    }
}

impl fmt::Display for WcStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Success => "success",
            Self::LocLenErr => "local length error",
            Self::LocQpOpErr => "local queue pair operation error",
            Self::LocProtErr => "local protection error",
            Self::WrFlushErr => "flushed, the connection ended before the request was done",
            Self::MwBindErr => "memory window bind error",
            Self::BadRespErr => "bad response",
            Self::LocAccessErr => "local access error",
            Self::RemInvReqErr => "invalid request",
            Self::RemAccessErr => "remote access error",
            Self::RemOpErr => "remote operation error",
            Self::FatalErr => "fatal error",
            Self::GeneralErr => "general error",
        })
    }
}

/// What kind of request a completion is for. The integers are those of `enum ibv_wc_opcode`.
///
/// What success proves: a [`Send`](Self::Send) or [`RdmaWrite`](Self::RdmaWrite) has left local memory for
/// good, so its buffer may be reused, but it need not have arrived; an [`RdmaRead`](Self::RdmaRead) has been
/// placed, and everything sent before it has arrived; a window that is bound, a region that is registered or a
/// key that is invalidated is so from then on, which the peer does not know of; a [`Recv`](Self::Recv) has been placed together with
/// every earlier Write and Send of the peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u32)]
#[non_exhaustive]
pub enum WcOpcode {
    /// A Send of any kind.
    Send = 0,
    /// An RDMA Write.
    RdmaWrite = 1,
    /// An RDMA Read.
    RdmaRead = 2,
    /// An atomic compare-and-swap; the original value is in its place.
    CompSwap = 3,
    /// An atomic addition; the original value is in its place.
    FetchAdd = 4,
    /// The binding of a memory window.
    BindMw = 5,
    /// The invalidation of a key of this side.
    LocalInv = 6,
    /// A fast registration. libibverbs has no such operation; the number is one that it does not use.
    RegMr = 32,
    /// A receive that took a Send.
    Recv = 128,
    /// A receive that took the immediate data of an RDMA Write. All of the Write is placed, and nothing in
    /// the receive's own memory.
    RecvRdmaWithImm = 129,
}

impl WcOpcode {
    /// The integer libibverbs uses for this opcode.
    #[must_use]
    pub const fn value(self) -> u32 {
        self as u32
    }

    /// Whether the completion belongs to a receive queue. libibverbs tests the same bit (128).
    #[must_use]
    pub const fn is_receive(self) -> bool {
        self.value() & Self::Recv.value() != 0
    }
}

bitflags! {
    /// Which optional fields of a [`WorkCompletion`] count. The bits are those of `enum ibv_wc_flags`.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
    pub struct WcFlags: u32 {
        /// [`WorkCompletion::imm_data`] is what the peer sent.
        const WITH_IMM = 2;
        /// [`WorkCompletion::invalidated_rkey`] names the key that the peer's Send invalidated.
        const WITH_INV = 8;
    }
}

/// One finished work request.
///
/// `wr_id`, `status`, `qp_num` and `vendor_err` always count. The other fields count only with
/// [`WcStatus::Success`]; `opcode` is nevertheless that of the request in every case.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WorkCompletion {
    /// The number the program gave the request.
    pub wr_id: u64,
    /// How it ended.
    pub status: WcStatus,
    /// What it was.
    pub opcode: WcOpcode,
    /// The 16-bit code (layer, type, error code) of the Terminate that ended the connection, sent or
    /// received; 0 if there was none.
    pub vendor_err: u32,
    /// Octets received or read; for a Send or Write the octets sent. Of
    /// [`RecvRdmaWithImm`](WcOpcode::RecvRdmaWithImm) those of the Write that the peer sent right before the
    /// immediate data, 0 if there was none.
    pub byte_len: u32,
    /// Number of the queue pair the request was posted to.
    pub qp_num: u32,
    /// Which optional fields count.
    pub flags: WcFlags,
    /// The local key that the message invalidated (Send with Invalidate), if it did.
    pub invalidated_rkey: Option<u32>,
    /// The 32 bits of immediate data that the message carried, if it did.
    pub imm_data: Option<u32>,
}

impl WorkCompletion {
    /// Whether the request was carried out.
    #[must_use]
    pub const fn is_success(&self) -> bool {
        self.status.is_success()
    }

    /// The completion itself if it is a success, else itself as the error.
    ///
    /// # Errors
    /// [`FailedCompletion`] with everything the completion says.
    pub fn ok(self) -> Result<Self, FailedCompletion> {
        if self.is_success() { Ok(self) } else { Err(FailedCompletion(self)) }
    }
}

/// A completion that is no success, as an error.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "{:?} request {} of queue pair {} failed: {} (vendor error {:#06x})",
    .0.opcode, .0.wr_id, .0.qp_num, .0.status, .0.vendor_err
)]
pub struct FailedCompletion(pub WorkCompletion);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn statuses_have_the_values_of_libibverbs() {
        let table = [
            (WcStatus::Success, 0),
            (WcStatus::LocLenErr, 1),
            (WcStatus::LocQpOpErr, 2),
            (WcStatus::LocProtErr, 4),
            (WcStatus::WrFlushErr, 5),
            (WcStatus::MwBindErr, 6),
            (WcStatus::BadRespErr, 7),
            (WcStatus::LocAccessErr, 8),
            (WcStatus::RemInvReqErr, 9),
            (WcStatus::RemAccessErr, 10),
            (WcStatus::RemOpErr, 11),
            (WcStatus::FatalErr, 19),
            (WcStatus::GeneralErr, 21),
        ];
        for (status, value) in table {
            assert_eq!(status.value(), value, "{status:?}");
        }
    }

    #[test]
    fn opcodes_and_flags_have_the_values_of_libibverbs() {
        let table = [
            (WcOpcode::Send, 0, false),
            (WcOpcode::RdmaWrite, 1, false),
            (WcOpcode::RdmaRead, 2, false),
            (WcOpcode::CompSwap, 3, false),
            (WcOpcode::FetchAdd, 4, false),
            (WcOpcode::BindMw, 5, false),
            (WcOpcode::LocalInv, 6, false),
            (WcOpcode::RegMr, 32, false),
            (WcOpcode::Recv, 128, true),
            (WcOpcode::RecvRdmaWithImm, 129, true),
        ];
        for (opcode, value, receive) in table {
            assert_eq!(opcode.value(), value, "{opcode:?}");
            assert_eq!(opcode.is_receive(), receive, "{opcode:?}");
        }
        assert_eq!((WcFlags::WITH_IMM.bits(), WcFlags::WITH_INV.bits()), (2, 8));
    }

    #[test]
    fn a_failure_says_which_request_and_why() {
        let wc = WorkCompletion {
            wr_id: 7,
            status: WcStatus::RemAccessErr,
            opcode: WcOpcode::RdmaRead,
            vendor_err: 0x0101,
            byte_len: 0,
            qp_num: 12,
            flags: WcFlags::empty(),
            invalidated_rkey: None,
            imm_data: None,
        };
        let error = wc.clone().ok().unwrap_err();
        assert_eq!(error.0, wc);
        let text = error.to_string();
        assert!(text.contains("request 7") && text.contains("0x0101"), "{text}");
        assert!(WorkCompletion { status: WcStatus::Success, ..wc }.ok().is_ok());
    }
}
