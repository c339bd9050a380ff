//! What a posted work request is while the library owns it.
//!
//! A [`Wqe`] is the buffer type of the protocol stream: it moves in when a request is submitted (or
//! a receive is taken) and comes back, exactly once, in the event that ends it.

use std::sync::Arc;

use smallvec::SmallVec;

use super::slot::Slot;
use crate::mem::{LocalWork, MrSlice};
use crate::wc::WcOpcode;
use crate::wr::RawSge;

/// The local octets of a request.
#[derive(Debug, Clone)]
pub(crate) enum Payload {
    /// Copied at posting; the program's buffer is its own again.
    Inline(SmallVec<[u8; 64]>),
    /// Slices of regions, kept alive by the request.
    Slices(SmallVec<[MrSlice; 1]>),
    /// Address, length and key as the program gave them, looked at when the request runs.
    Raw(SmallVec<[RawSge; 1]>),
    /// None: the request works on keys of this side.
    Work(Box<LocalWork>),
}

/// Where the completion of a request goes.
#[derive(Debug, Clone)]
pub(crate) enum Reply {
    /// To the completion queue of its work queue.
    Cq,
    /// To the future that awaits it, and to no completion queue.
    Slot(Arc<Slot>),
}

/// A posted request of the send queue.
#[derive(Debug)]
pub(crate) struct SendWqe {
    /// The program's name for it, untouched.
    pub(crate) wr_id: u64,
    /// What its completion says it was.
    pub(crate) opcode: WcOpcode,
    /// Whether success is reported; a failure always is.
    pub(crate) signaled: bool,
    /// Source of a Send or Write, sink of a Read or Atomic.
    pub(crate) payload: Payload,
    pub(crate) reply: Reply,
}

/// A posted receive.
#[derive(Debug)]
pub(crate) struct RecvWqe {
    pub(crate) wr_id: u64,
    pub(crate) payload: Payload,
    pub(crate) reply: Reply,
}

/// A work request in the hands of the stream.
#[derive(Debug)]
pub(crate) enum Wqe {
    Send(SendWqe),
    Receive(RecvWqe),
}

impl Payload {
    /// Elements; inline data is one.
    pub(crate) fn elements(&self) -> usize {
        match self {
            Self::Inline(_) => 1,
            Self::Slices(slices) => slices.len(),
            Self::Raw(elements) => elements.len(),
            Self::Work(_) => 0,
        }
    }

    /// Sum of the element lengths, in octets.
    pub(crate) fn len(&self) -> u64 {
        match self {
            Self::Inline(octets) => octets.len() as u64,
            Self::Slices(slices) => slices.iter().map(|slice| slice.len() as u64).sum(),
            Self::Raw(elements) => elements.iter().map(|sge| u64::from(sge.length)).sum(),
            Self::Work(_) => 0,
        }
    }
}

impl Wqe {
    pub(crate) fn payload(&self) -> &Payload {
        match self {
            Self::Send(wqe) => &wqe.payload,
            Self::Receive(wqe) => &wqe.payload,
        }
    }
}

#[cfg(all(test, target_pointer_width = "64"))]
mod tests {
    use iwarp_rdmap::{Event, Operation};

    use super::*;

    /// A request is moved some six times from its posting to its completion, so each octet counts.
    #[test]
    fn requests_are_no_larger_than_they_were() {
        let sizes = [size_of::<Wqe>(), size_of::<Operation<Wqe>>(), size_of::<Event<Wqe>>()];
        assert!(sizes <= [104, 144, 144], "{sizes:?}");
    }
}
