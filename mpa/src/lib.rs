//! MPA: iWARP's framing on TCP (RFC 5044, enhanced set-up of RFC 6581), without IO.
//!
//! TCP carries octets, DDP wants messages kept apart and checked. MPA puts each of DDP's
//! segments, a *ULPDU*, into an *FPDU*: length, ULPDU, pad, CRC32c, and markers where the
//! receiver asked for them. Before the first FPDU the two ends exchange one *start-up frame* each
//! and agree on CRC, markers, read depths and who may send first.
//!
//! This crate is that and nothing else. It opens no socket, starts no thread and reads no clock:
//! octets, and the time, are arguments. What the ULPDUs mean is DDP's business.
//!
//! # How data flows
//!
//! ```text
//! set-up
//!     Offer ──► Initiator ──── Request ───► Responder
//!                   │                           │
//!                   ◄───────── Reply ─────── accept(Offer)
//!                   ▼                           ▼
//!              Negotiated                  Negotiated
//!                   ▼                           ▼
//! Full Operation  Framing                    Framing
//!     ULPDU ───► Framer ────── FPDUs ─────► Deframer ───► ULPDU
//!     ULPDU ◄── Deframer ───── FPDUs ────── Framer ◄───── ULPDU
//! ```
//!
//! - **Set-up.** [`Initiator`] and [`Responder`] are state machines: `poll_transmit` gives octets
//!   to send, `handle_input` takes octets that came, in any cut, and says how many belonged to
//!   the frame; the rest is the FPDU stream's. `poll_timeout` and `handle_timeout` bound the
//!   wait. What both sides agreed on is [`Negotiated`].
//! - **Sending.** [`Framer::frame`] builds an FPDU in a buffer of the caller's, who writes the
//!   ULPDU into place. [`SizePlan`] says how large FPDUs should be, so that they start at TCP
//!   segments.
//! - **Receiving.** [`Deframer::next`] looks at the front of a buffer of the caller's and shows
//!   the ULPDU there once its FPDU is whole and its CRC right, or says how many octets that
//!   takes. Nothing of a damaged FPDU is ever shown.
//!
//! Neither allocates, and neither copies, except where markers are put in or taken out.
//!
//! What is *not* here: the rule that a responder sends no FPDU before it has received one
//! (MPA-029) is kept where messages are scheduled, in `iwarp-rdmap`; a retry with revision 1 on a
//! new TCP connection is the connection manager's, told by [`StartupError::suggests_revision_1`].
//!
//! # Example
//!
//! ```
//! use std::time::Instant;
//!
//! use iwarp_mpa::{Deframer, Framer, Framing, Initiator, Offer, Outcome, Responder, Step};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! // Two ends, and instead of a network the octets handed over.
//! let offer = Offer::default();
//! let mut initiator = Initiator::new(offer.clone(), Instant::now())?;
//! let mut responder = Responder::new(iwarp_mpa::RESPONDER_TIMEOUT, Instant::now());
//!
//! let request = initiator.poll_transmit().expect("the Request");
//! let (_, asked) = responder.handle_input(&request)?;
//! let asked = asked.expect("all of it came at once");
//! let (reply, there) = responder.accept(&asked, &offer)?;
//! let (_, outcome) = initiator.handle_input(&reply)?;
//! let Some(Outcome::Accepted(here)) = outcome else { panic!("{outcome:?}") };
//! assert!(here.crc && there.crc);
//!
//! // Full Operation: a ULPDU into an FPDU …
//! let ulpdu = b"a DDP segment";
//! let mut framer = Framer::new(&Framing::from(&here));
//! let mut wire = vec![0; framer.framed_len(ulpdu.len())];
//! framer.frame(&mut wire, ulpdu.len(), |room| {
//!     room.copy_from_slice(ulpdu);
//!     Ok::<(), std::convert::Infallible>(())
//! })?;
//!
//! // … and out again, at first with only half of it there.
//! let mut deframer = Deframer::new(&Framing::from(&there));
//! let half = wire.len() / 2;
//! assert_eq!(deframer.next(&mut wire[..half])?, Step::Need(20));
//! assert_eq!(deframer.next(&mut wire)?, Step::Ulpdu(ulpdu));
//! assert_eq!(deframer.consume(), 20);
//! # Ok(())
//! # }
//! ```
//!
//! # Features
//!
//! - `crc-fast` (default): CRC32c by the crate of that name, several times faster on current
//!   processors than the portable one that is used without it.
//! - `codec`: `FpduCodec` and `StartupCodec`, the same as `tokio_util` codecs, for tools and
//!   scripted peers.
#![forbid(unsafe_code)]
#![warn(
    clippy::indexing_slicing,
    clippy::arithmetic_side_effects,
    clippy::cast_possible_truncation
)]

#[cfg(feature = "codec")]
mod codec;
mod crc;
mod deframer;
mod error;
mod fpdu;
mod handshake;
mod marker;
mod negotiate;
mod size;
mod wire;

#[cfg(feature = "codec")]
pub use codec::{CodecError, FpduCodec, StartupCodec};
pub use deframer::{Deframer, Step, Unfinished};
pub use error::{Error, StartupError};
pub use fpdu::{FrameError, Framer, Framing, framed_len};
pub use handshake::{Initiator, Responder};
pub use negotiate::{
    INITIATOR_TIMEOUT, Negotiated, Offer, Outcome, RESPONDER_TIMEOUT, Rejection, Request, Revision,
    Unusable,
};
pub use size::{FpduLimit, SizePlan, mulpdu};
pub use wire::{
    Depth, ENHANCED_PRIVATE_DATA_MAX, Enhanced, FrameKind, MULPDU_MIN, PRIVATE_DATA_MAX, Role, Rtr,
    RtrTypes, STARTUP_HEADER_LEN, StartupFrame, ULPDU_MAX_RECEIVED, ULPDU_MAX_SENT,
};
