//! What a stream asks of the owner of the memory and of the receive queue.

use iwarp_ddp::{Placement, Refusal, Source, Stag};

use crate::atomic::AtomicOperation;
use crate::wire::IMMEDIATE_LEN;

/// The memory and the receive queue behind a stream.
///
/// `B` is the local side of a work request, opaque to the stream: it comes in with an
/// [`Operation`](crate::Operation) or a [`Receive`] and goes back in an [`Event`](crate::Event).
/// Any call may fail at any time, for example because a region was deregistered between two segments
/// of one message: that ends the stream and nothing else. No call blocks.
pub trait Memory<B>: Placement<Buffer = B> + Source<Buffer = B> {
    /// Takes the next posted receive, in posting order; `None` if nothing is posted.
    ///
    /// A receive that was taken comes back in exactly one [`Event::ReceiveDone`](crate::Event::ReceiveDone),
    /// or in one call of [`received`](Self::received) that keeps it.
    fn take_receive(&mut self) -> Option<Receive<B>>;

    /// A receive has succeeded, and there is no event that comes before that of it.
    ///
    /// Whoever wants to know at once, without an event, keeps what it is given. The others give it back, as
    /// this does unless it is overridden, and get an
    /// [`Event::ReceiveDone`](crate::Event::ReceiveDone).
    #[inline]
    fn received(&mut self, message: Received<B>) -> Option<Received<B>> {
        Some(message)
    }

    /// Revokes the remote access of an `STag`, as a Send with Invalidate asks.
    ///
    /// Called after the last octet of the payload was placed and before the receive completes
    /// (RDMAP-046). On `Err` nothing has changed. When it returns `Ok`, no octet moves through the
    /// `STag` any more (SEC-04).
    fn invalidate(&mut self, stag: Stag) -> Result<(), InvalidateRefusal>;

    /// Checks that the peer may run an Atomic on the eight octets it names, when its request arrives.
    ///
    /// Like [`atomic`](Self::atomic), refuses all unless it is overridden: an owner whose memory has no
    /// atomics grants the right to nobody.
    fn check_atomic(&mut self, stag: Stag, offset: u64) -> Result<(), AtomicRefusal> {
        let _ = (stag, offset);
        Err(Refusal::Rights.into())
    }

    /// Carries out an Atomic of the peer, and tells what the value was: atomically with respect to all
    /// others on the same memory, whatever stream they come by (EXT-04). Checked again as in
    /// [`check_atomic`](Self::check_atomic). On `Err` nothing has changed.
    fn atomic(
        &mut self,
        stag: Stag,
        offset: u64,
        operation: AtomicOperation,
    ) -> Result<u64, AtomicRefusal> {
        let _ = (stag, offset, operation);
        Err(Refusal::Rights.into())
    }

    /// Carries out the work of an [`OperationKind::Local`](crate::OperationKind::Local), whose turn has come.
    ///
    /// When it returns `Ok`, the work is in effect. On `Err` nothing has changed, and the stream ends.
    /// Refuses whatever comes unless it is overridden: an owner that never submits such work has none.
    fn perform(&mut self, work: &B) -> Result<(), WorkRefused> {
        let _ = work;
        Err(WorkRefused)
    }
}

/// Why a peer may not run an Atomic on memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
pub enum AtomicRefusal {
    /// It may not touch this memory so.
    #[error(transparent)]
    Access(#[from] Refusal),
    /// The memory is not aligned to eight octets, whatever its offset is.
    #[error("memory is not aligned to 8 octets")]
    Misaligned,
}

/// Local work cannot be done: what it names is not there, or in the wrong state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("local work request refused")]
pub struct WorkRefused;

/// A posted receive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Receive<B> {
    /// Where its octets go.
    pub buffer: B,
    /// How many it takes.
    pub capacity: u64,
}

/// A message of the peer that is wholly placed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Received<B> {
    /// The receive that it has filled.
    pub buffer: B,
    /// Its octets.
    pub len: u32,
    /// The peer asked for a solicited event.
    pub solicited: bool,
    /// The `STag` that the peer asked to invalidate, and that is invalid now.
    pub invalidated: Option<Stag>,
    /// Immediate Data, of a message that is nothing else. `len` is then that of the Write in front of it.
    pub immediate: Option<[u8; IMMEDIATE_LEN]>,
}

/// Payload of the FPDU that is coming, and where it goes
/// ([`Stream::straight`](crate::Stream::straight)).
#[derive(Debug, PartialEq, Eq)]
pub struct Straight<'a, B> {
    /// Where the first octet of it goes.
    pub sink: Sink<'a, B>,
    /// All that is not in place yet, to the end of the segment.
    pub len: usize,
    /// What is in place already, in front of that.
    pub placed: usize,
    /// The first of it, in the caller's buffer, which ends with it.
    pub held: &'a [u8],
    /// So many behind those may come past the buffer. Not the last of the segment: they come through the
    /// buffer, and their placement makes all of it visible ([`LAST_OCTETS`]).
    pub free: usize,
}

/// A place in registered memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sink<'a, B> {
    /// Named by the peer, and to be checked as for
    /// [`place_tagged`](iwarp_ddp::Placement::place_tagged).
    Tagged {
        /// Names the buffer.
        stag: Stag,
        /// Tagged offset of the first octet.
        offset: u64,
    },
    /// In the buffer of an own Read, and to be checked as for
    /// [`place_local`](iwarp_ddp::Placement::place_local).
    Local {
        /// The local side of the Read.
        buffer: &'a B,
        /// Where in it the first octet goes.
        offset: u64,
    },
}

/// The end of a segment that never goes past the buffer.
///
/// A program that polls memory relies on the last octets of a message to be seen last; a socket promises
/// nothing of that kind, a placement does. As long as the line of a cache.
pub const LAST_OCTETS: usize = 64;

/// Why a peer may not invalidate an `STag` (conformance decision D5).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
pub enum InvalidateRefusal {
    /// It names nothing.
    #[error("STag names no registered memory")]
    Unknown,
    /// It belongs to another protection domain or stream, or is shared in a way that forbids it.
    #[error("STag cannot be invalidated by this peer")]
    NotInvalidatable,
    /// It gives the peer no access in the first place.
    #[error("STag has no remote access rights")]
    Rights,
}

#[cfg(test)]
mod tests {
    use iwarp_ddp::LocalFault;

    use super::*;

    /// Memory of an owner who writes no more than has to be written.
    struct Plain;

    impl Placement for Plain {
        type Buffer = ();

        fn place_tagged(&mut self, _: Stag, _: u64, _: &[u8]) -> Result<(), Refusal> {
            Err(Refusal::InvalidStag)
        }

        fn place_local(&mut self, (): &(), _: u64, _: &[u8]) -> Result<(), LocalFault> {
            Err(LocalFault::Protection)
        }
    }

    impl Source for Plain {
        type Buffer = ();

        fn check_tagged(&mut self, _: Stag, _: u64, _: u32) -> Result<(), Refusal> {
            Err(Refusal::InvalidStag)
        }

        fn read_tagged(&mut self, _: Stag, _: u64, _: &mut [u8]) -> Result<(), Refusal> {
            Err(Refusal::InvalidStag)
        }

        fn read_local(&mut self, (): &(), _: u64, _: &mut [u8]) -> Result<(), LocalFault> {
            Err(LocalFault::Protection)
        }
    }

    impl Memory<()> for Plain {
        fn take_receive(&mut self) -> Option<Receive<()>> {
            None
        }

        fn invalidate(&mut self, _: Stag) -> Result<(), InvalidateRefusal> {
            Err(InvalidateRefusal::Unknown)
        }
    }

    /// An owner who says nothing of them has neither atomics nor local work, and gets every receive as an event.
    #[test]
    fn what_is_not_overridden_grants_nothing_and_keeps_nothing() {
        let stag = Stag::from_raw(1);
        let refused = AtomicRefusal::Access(Refusal::Rights);
        assert_eq!(Plain.check_atomic(stag, 0), Err(refused));
        assert_eq!(Plain.atomic(stag, 0, AtomicOperation::swap(1)), Err(refused));
        assert_eq!(Plain.perform(&()), Err(WorkRefused));
        let message =
            Received { buffer: (), len: 3, solicited: true, invalidated: None, immediate: None };
        assert_eq!(Plain.received(message), Some(message));
    }
}
