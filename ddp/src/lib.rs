//! Direct Data Placement (DDP, RFC 5041): the layer that knows where every octet goes.
//!
//! A *message* is cut into *segments*, each small enough for one FPDU of the layer below and each with a
//! header that says where its payload belongs, so that a receiver can put it there without waiting for
//! the rest. There are two models. A **tagged** segment names memory that the receiver has opened to its
//! peer: an [`Stag`] and an offset. An **untagged** one names a queue, the number of the message on it
//! and the offset in that message; the receiver chooses the buffer.
//!
//! The crate does no IO, keeps no clock, starts no thread and allocates nothing. It knows neither the
//! transport below, of which it only needs the maximum size of a segment, nor the meaning of the
//! messages above, for which it carries an octet (and in untagged headers a word) unread.
//!
//! # How data flows
//!
//! ```text
//! out   length of the message ── Segmenter ── Cut ── header.for_cut ── encode ──┐
//!       memory ── Source::read_local, read_tagged (responses) ──────────────────┴── ULPDU
//!
//! in    ULPDU ── Segment::parse ──┬── tagged ──── TaggedSegment::place ─────── Placement::place_tagged
//!                                 └── untagged ── UntaggedQueue: number, ───── Placement::place_local
//!                                                 offset, length
//! ```
//!
//! Views borrow from the octets they were parsed from. Memory is reached only through the two traits
//! [`Placement`] and [`Source`], which the owner of the memory implements; what such an implementation
//! has to refuse, and in which order, is in [`Refusal`].
//!
//! The transport keeps the order of segments (TCP does), so [`UntaggedQueue`] knows exactly which number
//! and which offset comes next, and refuses everything else.
//!
//! # Errors
//!
//! [`Error`] holds all that a peer can do wrong at this layer, with its number on the wire. DDP does not
//! end the stream: the layer above does, with a Terminate that carries [`Error::error_type`] and
//! [`Error::code`] as layer 1.
//!
//! # Example
//!
//! One message, cut for a small transport, sent, and put together again.
//!
//! ```
//! use iwarp_ddp::*;
//!
//! const MULPDU: usize = 128;
//! let message: Vec<u8> = (0..=255).collect();
//!
//! // Sender: the header of the message, then one segment for each cut.
//! let header = UntaggedHeader {
//!     last: true,
//!     rsvd_ulp: 0x43,
//!     rsvd_ulp_word: 0,
//!     queue: 0,
//!     msn: 1,
//!     offset: 0,
//! };
//! let room = UntaggedHeader::max_payload(MULPDU);
//! let wire: Vec<Vec<u8>> = Segmenter::new(256, room)
//!     .map(|cut| {
//!         let from = cut.offset as usize;
//!         let payload = &message[from..from + cut.len as usize];
//!         [&header.for_cut(cut).to_bytes(), payload].concat()
//!     })
//!     .collect();
//! assert_eq!(wire.len(), 3);
//!
//! // Receiver: the queue says where each segment goes in the buffer that was posted.
//! let mut queue = UntaggedQueue::new();
//! let mut buffer = vec![0; 300];
//! let mut received = None;
//! for ulpdu in &wire {
//!     let Segment::Untagged(segment) = Segment::parse(ulpdu)? else { unreachable!() };
//!     segment.check_queue(0)?;
//!     queue.check_msn(&segment)?;
//!     let at = queue.check_placement(&segment, buffer.len() as u64)? as usize;
//!     buffer[at..at + segment.payload.len()].copy_from_slice(segment.payload);
//!     received = queue.placed(&segment);
//! }
//! assert_eq!(received, Some(256));
//! assert_eq!(buffer[..256], message);
//!
//! // A repetition is not part of the order the transport promises.
//! let Segment::Untagged(again) = Segment::parse(&wire[0])? else { unreachable!() };
//! assert_eq!(queue.check_msn(&again), Err(UntaggedError::MsnRange));
//! # Ok::<(), Error>(())
//! ```

#![forbid(unsafe_code)]
#![warn(
    clippy::indexing_slicing,
    clippy::arithmetic_side_effects,
    clippy::cast_possible_truncation
)]

mod error;
mod placement;
mod receive;
mod segment;
mod segmenter;
mod stag;
mod wire;

pub use error::{Error, TaggedError, UntaggedError};
pub use placement::{LocalFault, Placement, Refusal, Source, range_in};
pub use receive::{Position, UntaggedQueue};
pub use segment::{
    Segment, TaggedHeader, TaggedSegment, UntaggedHeader, UntaggedSegment, header_octets,
};
pub use segmenter::{Cut, Segmenter};
pub use stag::Stag;
pub use wire::{TAGGED_HEADER_LEN, UNTAGGED_HEADER_LEN};
