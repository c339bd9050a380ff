//! RDMAP (RFC 5040): one RDMA stream as pure values in and out.
//!
//! A [`Stream`] is one side of an RDMA connection from the end of the MPA start-up on. It puts the layers
//! together: framing and CRC from `iwarp-mpa`, segments and placement checks from `iwarp-ddp`, and on top of
//! them what this crate adds: messages, their order, Reads in both directions, Terminate, and the way a
//! stream ends. It does no IO, reads no clock and starts no thread. Octets, values and times go in; octets,
//! values and times come out. Whoever owns the socket and the memory drives it.
//!
//! # How data flows
//!
//! ```text
//!  submit ──► Sender ──► segments ──► Framer ──► TxBatch ──► TCP          handle_transmitted ──► OperationDone
//!                ▲  reads memory (Source)                                  (completion is acceptance by TCP)
//!                │ Read Requests to answer,
//!                │ Reads that are answered
//!  events ◄── Receiver ◄── segments ◄── Deframer ◄── handle_input ◄── TCP
//!                   writes memory (Placement), takes receives (Memory)
//! ```
//!
//! Sender and receiver share no state: they hand values to each other through the stream. One octet of
//! payload is copied once on its way out (or not at all: [`TxBatch::gather_from`]) and once on its way in,
//! and only after its FPDU was found whole and good; without CRC, where there is nothing to find, long payload
//! may go past the stream ([`Stream::straight`]). Nothing is allocated per FPDU.
//!
//! # Who calls what, in which order
//!
//! The driver owns a socket, a buffer of unread octets, a [`TxBatch`] and something that implements
//! [`Memory`]. All calls on one stream are made one at a time; none blocks.
//!
//! 1. **Out.** When something was submitted, when input was handled, and when TCP has room again:
//!    [`poll_transmit`](Stream::poll_transmit) fills the batch; write it, and report what TCP accepts with
//!    [`handle_transmitted`](Stream::handle_transmitted), piece by piece if it accepts pieces. Fill the
//!    batch again only when all of it was accepted. Go on until it returns `false`.
//! 2. **In.** When octets came: append them to the unread ones and call
//!    [`handle_input`](Stream::handle_input) with all of these; drop what was consumed and keep the rest as
//!    it is now. [`Need::More`] waits for octets; [`Need::Receive`] for a receive to be posted, and until
//!    then there is no point in reading on; with [`Need::Again`] call again soon; with [`Need::Nothing`] go on
//!    reading and discarding until FIN. Report acceptance (1) before input: TCP delivers no answer to what it
//!    has not accepted.
//! 3. **The end of TCP.** FIN: [`handle_eof`](Stream::handle_eof). A reset or an error:
//!    [`handle_lost`](Stream::handle_lost).
//! 4. **After any of these**, and after [`handle_timeout`](Stream::handle_timeout), [`close`](Stream::close) and
//!    its like: take all of [`poll_event`](Stream::poll_event), do what [`poll_shutdown`](Stream::poll_shutdown)
//!    says, and see to it that [`handle_timeout`](Stream::handle_timeout) is called at
//!    [`poll_timeout`](Stream::poll_timeout).
//! 5. [`Event::Closed`] is the last event. Everything that was submitted, and every receive that was taken,
//!    has come back by then. Close the socket and drop the stream.
//!
//! # What the stream sees to
//!
//! - **Order.** Messages go out and operations complete in the order of submission, also a Send behind a
//!   Read; a fence waits for all earlier Reads; never more Reads than ORD are under way, and the queue waits
//!   at the next one (RFC 5040 §5.5).
//! - **Both directions at once.** Read Responses take turns with own messages, FPDU by FPDU, except that a
//!   Write and a Response, both tagged, wait for each other's last segment.
//! - **A responder's silence** until the first FPDU has come (RFC 5044 §7.1.2), and the RTR message of an
//!   initiator, which neither side's user sees (RFC 6581 §9.2).
//! - **A Send without a receive** is held back for a while, unless that would keep the response of an own
//!   Read from coming, or the strict setting forbids it; then, or when the time is over, the stream ends.
//!   While a Send is held back no new Read is begun.
//! - **Errors.** The first one ends the stream: it is turned into a Terminate, which goes out behind the FPDUs
//!   that were handed out already, then FIN, and nothing of the peer is looked at any more. The table from
//!   errors to codes is in [`Error::terminate_code`].
//! - **The orderly end.** [`close`](Stream::close) carries out what was submitted, then sends FIN. A peer's FIN
//!   between two FPDUs delivers what came before it; queued Sends and Writes still go out through the half
//!   that is open (RFC 5041 §6.2.1). Whatever needs the peer's other half and cannot get it any more (own
//!   Reads, an unfinished message, Reads of the peer that are not answered) makes it a close with work
//!   pending: Terminate 0/2/07. Octets that arrive behind the own orderly FIN make the close unclean; they
//!   are discarded and not answered by a reset, which could destroy what the peer has not read yet.
//!
//! - **The extensions of RFC 7306**, unless they are [switched off](StreamConfig::extensions). A
//!   [Write with Immediate Data](OperationKind::WriteImmediate) is one operation. Atomics share ORD, IRD and
//!   the order of answers with Reads: one is executed when all that came before it is placed and all earlier
//!   Reads of the peer have been read from memory, so a lock may be given up by an Atomic behind the Read that
//!   it protects.
//!
//! # Example
//!
//! Two streams in one program, with queues of octets for TCP. One sends eight octets and reads them back.
//!
//! ```
//! use std::collections::VecDeque;
//! use std::ops::Range;
//! use std::time::Instant;
//!
//! use iwarp_ddp::{LocalFault, Placement, Refusal, Source, Stag, range_in};
//! use iwarp_mpa::{FpduLimit, Negotiated, Role, SizePlan};
//! use iwarp_rdmap::{
//!     Event, InvalidateRefusal, Memory, Operation, OperationKind, Outcome, Receive, Stream,
//!     StreamConfig, TxBatch,
//! };
//!
//! /// All of this memory is open to the peer under one `STag`. A buffer is a range of it.
//! struct Ram {
//!     octets: Vec<u8>,
//!     receives: VecDeque<Range<usize>>,
//! }
//!
//! const OPEN: Stag = Stag::from_raw(0x0000_0107);
//!
//! impl Ram {
//!     fn open(&mut self, stag: Stag, offset: u64, len: u64) -> Result<&mut [u8], Refusal> {
//!         if stag != OPEN {
//!             return Err(Refusal::InvalidStag);
//!         }
//!         let at = range_in(0, self.octets.len() as u64, offset, len)? as usize;
//!         Ok(&mut self.octets[at..at + len as usize])
//!     }
//!
//!     fn local(
//!         &mut self,
//!         buffer: &Range<usize>,
//!         offset: u64,
//!         len: usize,
//!     ) -> Result<&mut [u8], LocalFault> {
//!         let at = buffer.start + offset as usize;
//!         if at + len > buffer.end {
//!             return Err(LocalFault::Length);
//!         }
//!         self.octets.get_mut(at..at + len).ok_or(LocalFault::Protection)
//!     }
//! }
//!
//! impl Placement for Ram {
//!     type Buffer = Range<usize>;
//!     fn place_tagged(&mut self, stag: Stag, offset: u64, payload: &[u8]) -> Result<(), Refusal> {
//!         Ok(self.open(stag, offset, payload.len() as u64)?.copy_from_slice(payload))
//!     }
//!     fn place_local(&mut self, sink: &Range<usize>, offset: u64, payload: &[u8]) -> Result<(), LocalFault> {
//!         Ok(self.local(sink, offset, payload.len())?.copy_from_slice(payload))
//!     }
//! }
//!
//! impl Source for Ram {
//!     type Buffer = Range<usize>;
//!     fn check_tagged(&mut self, stag: Stag, offset: u64, len: u32) -> Result<(), Refusal> {
//!         self.open(stag, offset, u64::from(len)).map(drop)
//!     }
//!     fn read_tagged(&mut self, stag: Stag, offset: u64, into: &mut [u8]) -> Result<(), Refusal> {
//!         Ok(into.copy_from_slice(self.open(stag, offset, into.len() as u64)?))
//!     }
//!     fn read_local(&mut self, source: &Range<usize>, offset: u64, into: &mut [u8]) -> Result<(), LocalFault> {
//!         Ok(into.copy_from_slice(self.local(source, offset, into.len())?))
//!     }
//! }
//!
//! impl Memory<Range<usize>> for Ram {
//!     fn take_receive(&mut self) -> Option<Receive<Range<usize>>> {
//!         let buffer = self.receives.pop_front()?;
//!         Some(Receive { capacity: buffer.len() as u64, buffer })
//!     }
//!     fn invalidate(&mut self, _: Stag) -> Result<(), InvalidateRefusal> {
//!         Err(InvalidateRefusal::NotInvalidatable)
//!     }
//! }
//!
//! struct Side {
//!     stream: Stream<Range<usize>>,
//!     ram: Ram,
//!     batch: TxBatch,
//!     unread: Vec<u8>,
//! }
//!
//! impl Side {
//!     fn new(role: Role) -> Self {
//!         let negotiated = Negotiated {
//!             role, revision: 2, crc: true, send_markers: false, receive_markers: false,
//!             ird: 1, ord: 1, peer_ird: Some(1), peer_ord: Some(1), rtr: None,
//!             private_data: Default::default(),
//!         };
//!         let size = SizePlan::new(1460, FpduLimit::default(), false);
//!         Self {
//!             stream: Stream::new(StreamConfig::new(&negotiated, size)),
//!             ram: Ram { octets: vec![0; 64], receives: VecDeque::new() },
//!             batch: TxBatch::with_capacity(1 << 16),
//!             unread: Vec::new(),
//!         }
//!     }
//!
//!     /// Everything this side has to send goes to `peer`, who looks at it.
//!     fn send_all(&mut self, peer: &mut Side, now: Instant) {
//!         while self.stream.poll_transmit(&mut self.ram, &mut self.batch, now) {
//!             // This TCP accepts whole batches, and everything was copied to the staging octets.
//!             peer.unread.extend_from_slice(self.batch.staged());
//!             self.stream.handle_transmitted(self.batch.len(), now);
//!         }
//!         let input = peer.stream.handle_input(&mut peer.unread, &mut peer.ram, now);
//!         peer.unread.drain(..input.consumed);
//!     }
//! }
//!
//! # #[allow(clippy::disallowed_methods)]
//! let now = Instant::now();
//! let (mut here, mut there) = (Side::new(Role::Initiator), Side::new(Role::Responder));
//! here.ram.octets[..8].copy_from_slice(b"an octet");
//! there.ram.receives.push_back(16..32);
//!
//! let send = OperationKind::Send { solicited: false, invalidate: None };
//! here.stream.submit(Operation { kind: send, len: 8, fence: false, buffer: 0..8 }).unwrap();
//! let read = OperationKind::Read {
//!     sink_stag: OPEN, sink_offset: 40, source_stag: OPEN, source_offset: 16,
//! };
//! here.stream.submit(Operation { kind: read, len: 8, fence: false, buffer: 40..48 }).unwrap();
//!
//! here.send_all(&mut there, now); // Send, Read Request
//! there.send_all(&mut here, now); // Read Response
//!
//! let outcomes: Vec<_> = std::iter::from_fn(|| here.stream.poll_event())
//!     .filter_map(|event| match event {
//!         Event::OperationDone { outcome, .. } => Some(outcome),
//!         _ => None,
//!     })
//!     .collect();
//! assert_eq!(outcomes, [Outcome::Success, Outcome::Success]);
//! assert_eq!(&there.ram.octets[16..24], b"an octet");
//! assert_eq!(&here.ram.octets[40..48], b"an octet");
//!
//! let received = std::iter::from_fn(|| there.stream.poll_event())
//!     .find_map(|event| match event {
//!         Event::ReceiveDone { len, .. } => Some(len),
//!         _ => None,
//!     });
//! assert_eq!(received, Some(8));
//! ```
#![forbid(unsafe_code)]
#![warn(
    clippy::indexing_slicing,
    clippy::arithmetic_side_effects,
    clippy::cast_possible_truncation
)]

mod atomic;
mod batch;
mod clock;
mod config;
mod counters;
mod error;
mod event;
mod memory;
mod message;
mod opcode;
mod operation;
mod recv;
mod send;
mod state;
mod stream;
mod terminate;
mod wire;

pub use atomic::{AtomicOperation, AtomicRequest, AtomicResponse};
pub use batch::{Chunk, TxBatch, UsableWindow};
pub use clock::Clock;
pub use config::StreamConfig;
pub use counters::{Counters, Messages};
pub use error::{BadTerminate, Error, LocalError, OperationError, ProtectionError};
pub use event::{CloseCause, Event, Initiator, Input, LostCause, Need, Shutdown};
pub use memory::{
    AtomicRefusal, InvalidateRefusal, LAST_OCTETS, Memory, Receive, Received, Sink, Straight,
    WorkRefused,
};
pub use message::ReadRequest;
pub use opcode::Opcode;
pub use operation::{Operation, OperationKind, Outcome, SubmitError};
pub use state::State;
pub use stream::Stream;
pub use terminate::{DdpHeader, Terminate, TerminateCode};
pub use wire::{ATOMIC_REQUEST_LEN, ATOMIC_RESPONSE_LEN, IMMEDIATE_LEN, READ_REQUEST_LEN};
