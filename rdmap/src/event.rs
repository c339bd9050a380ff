//! What a stream reports.

use iwarp_ddp::Stag;

use crate::error::Error;
use crate::operation::{OperationKind, Outcome};
use crate::terminate::Terminate;
use crate::wire::IMMEDIATE_LEN;

/// Something that the user of the stream is to know.
///
/// Every submitted operation and every receive that was taken comes back in exactly one event, before
/// [`Event::Closed`], which is the last.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event<B> {
    /// Both directions can be used: at once at the initiator, at the responder when the first valid FPDU
    /// is in (CONN-29).
    Established,
    /// An operation ended. In the order of submission, also across kinds (ORD-13).
    OperationDone {
        /// The local side, back from the stream.
        buffer: B,
        /// What was to be done.
        kind: OperationKind,
        /// How it ended.
        outcome: Outcome,
        /// Octets of the message, as submitted.
        len: u32,
    },
    /// A receive that was taken ended.
    ReceiveDone {
        /// The receive, back from the stream.
        buffer: B,
        /// How it ended.
        outcome: Outcome,
        /// Octets of the message; 0 unless it succeeded. With Immediate Data: of the peer's Write that came
        /// right before it, 0 if none did.
        len: u32,
        /// The peer asked for a solicited event.
        solicited: bool,
        /// The `STag` that the peer asked to invalidate, and that is invalid now.
        invalidated: Option<Stag>,
        /// Immediate Data, if that is what took the receive. Nothing of it is in the buffer.
        immediate: Option<[u8; IMMEDIATE_LEN]>,
    },
    /// A Terminate goes out, or has come in. At most one of them on a stream.
    Terminated {
        /// Whose it is.
        by: Initiator,
        /// What it says.
        terminate: Terminate,
        /// The error it reports; `None` for the peer's.
        cause: Option<Error>,
    },
    /// The peer closed its half (MPA-087).
    PeerClosed,
    /// The stream is over, and so is its TCP connection: drop it. Nothing follows.
    Closed {
        /// Both sides had finished what they had begun, and closed in order.
        clean: bool,
        /// What brought the end about.
        cause: CloseCause,
    },
}

/// Who started it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Initiator {
    /// The user of this side.
    User,
    /// This side, for an error it found.
    Local,
    /// The peer.
    Remote,
}

/// What brought a stream to its end; the first of several causes counts.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum CloseCause {
    /// One side closed with nothing left to do, and the other agreed.
    Orderly,
    /// An error found here. A Terminate was sent if the error has one and it still could be sent.
    Error(Error),
    /// The peer's Terminate.
    Terminated(Terminate),
    /// The user asked for the end while work was pending: disconnect, terminate, abort.
    User,
    /// The peer went on sending after the orderly end of this side's half.
    LateInput,
    /// The peer did not close its half in time.
    GraceExpired,
    /// Memory that was being sent from was taken away in the middle of an FPDU.
    SourceLost,
    /// TCP was lost.
    Lost(LostCause),
}

/// How TCP was lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum LostCause {
    /// Reset by the peer.
    Reset,
    /// No answer for too long.
    TimedOut,
    /// Something else.
    Io(std::io::ErrorKind),
}

/// What to do with the TCP connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Shutdown {
    /// Send FIN: everything before it was accepted by TCP. Go on reading.
    Write,
    /// Reset.
    Abort,
}

/// What became of the octets given to [`Stream::handle_input`](crate::Stream::handle_input).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Input {
    /// Octets at the front of the input that are done with; the rest is to be kept, as it is now, and
    /// shown again with what follows.
    pub consumed: usize,
    /// What the stream waits for.
    pub need: Need,
}

/// What a stream waits for before it can go on with its input.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Need {
    /// So many octets in total at the front of the unconsumed input.
    More(usize),
    /// A receive: a Send is held back until one is posted. Show the same octets again then.
    Receive,
    /// Nothing: the work of one call was done. Show the rest again soon.
    Again,
    /// The stream is over: whatever comes is discarded. Go on reading until FIN, and keep calling, so
    /// that late input is noticed.
    Nothing,
}
