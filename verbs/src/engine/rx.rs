//! Receiving: from the socket through the thread's buffer into the stream.

use std::io;

use iwarp_rdmap::{LostCause, Need};

use super::Caller;
use super::driver::Driver;
use super::link::{Clock, Link};
use super::memory::QpMemory;
use super::scratch::{RX_LEN, Scratch};

/// Octets that tell the length of an FPDU, unless a marker comes first.
const LENGTH_FIELD: usize = 2;

/// What a connection keeps of its input between passes.
#[derive(Debug, Default)]
pub(super) struct Rx {
    /// Octets read and not consumed: part of an FPDU, or FPDUs that wait for a receive. Empty, and
    /// without memory, while the connection is idle.
    held: Vec<u8>,
    /// Octets that the stream wants to see at once.
    need: usize,
    /// What the budget was charged.
    charged: usize,
    /// `held` has whole FPDUs that were not looked at for lack of time.
    pending: bool,
    /// Nothing more is read: FIN was, or TCP is lost.
    pub(super) ended: bool,
}

/// How a look at the socket ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Received {
    /// There was nothing, or only what is consumed and held now.
    Drained { moved: bool },
    /// The budget of the pass is spent.
    More,
}

impl Rx {
    /// Octets that were read during set-up, behind the start-up frame (FC-001).
    pub(super) fn with_leftover(leftover: Vec<u8>, driver: &Driver) -> Self {
        let charged = leftover.capacity();
        driver.charge(0, charged);
        Self { pending: !leftover.is_empty(), held: leftover, charged, ..Self::default() }
    }

    /// Gives back what the budget was charged.
    pub(super) fn release(&mut self, driver: &Driver) {
        self.held = Vec::new();
        driver.charge(std::mem::take(&mut self.charged), 0);
    }

    /// Keeps what was not consumed, in memory just large enough for what the stream waits for.
    fn keep(&mut self, rest: &[u8], need: usize, driver: &Driver) {
        self.need = need;
        if rest.is_empty() {
            if self.charged > 0 {
                self.release(driver);
            }
            return;
        }
        // Over budget, what has not come is not charged.
        let wanted =
            if driver.budget().has_room(RX_LEN) { rest.len().max(need) } else { rest.len() };
        if self.held.capacity() < wanted || self.held.capacity() / 2 > wanted {
            self.held = Vec::with_capacity(wanted);
        } else {
            self.held.clear();
        }
        self.held.extend_from_slice(rest);
        let charged = self.held.capacity();
        driver.charge(std::mem::replace(&mut self.charged, charged), charged);
    }
}

impl Link {
    /// Reads until the socket is empty, the stream wants a receive, or the budget is spent.
    pub(super) fn receive(
        &mut self,
        mem: &mut QpMemory<'_>,
        scratch: &mut Scratch,
        clock: &mut Clock,
        driver: &Driver,
    ) -> Received {
        if self.rx.ended {
            return Received::Drained { moved: false };
        }
        let budget = super::share::of_pass(mem.qp(), Caller::Poll);
        let buffer = &mut scratch.rx;
        let mut len = self.rx.held.len();
        if buffer.len() <= len {
            buffer.resize(len * 2, 0);
        }
        buffer[..len].copy_from_slice(&self.rx.held);
        let mut need = self.rx.need;
        let mut moved = false;
        let mut taken = 0;
        // FPDUs that wait, for a receive or for this pass, come first.
        let mut read = !(self.stream.is_blocked() || std::mem::take(&mut self.rx.pending));
        let outcome = loop {
            let mut empty = false;
            if read {
                // Over budget, FPDU by FPDU: nothing but the next one can stay over. What a stream that
                // is over discards does not stay.
                let frugal = !driver.budget().has_room(RX_LEN) && self.stream.state().receives();
                let limit = if frugal {
                    need.max(len + LENGTH_FIELD).min(buffer.len())
                } else {
                    buffer.len()
                };
                match self.socket.recv(&mut buffer[len..limit]) {
                    Ok(0) => {
                        self.peer_is_silent(len, clock);
                        len = 0;
                        break Received::Drained { moved: true };
                    }
                    Ok(received) => {
                        empty = len + received < limit;
                        len += received;
                        taken += received;
                        moved = true;
                    }
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                        if self.tx.lost.is_some() {
                            // Whatever came before the loss has been read.
                            self.peer_is_silent(len, clock);
                            len = 0;
                            moved = true;
                        }
                        break Received::Drained { moved };
                    }
                    Err(error) => {
                        self.lost(lost_cause(&error));
                        len = 0;
                        break Received::Drained { moved: true };
                    }
                }
            }
            read = true;
            let mut at = 0;
            let waits = loop {
                let input = self.stream.handle_input(&mut buffer[at..len], mem, clock.now());
                at += input.consumed;
                moved |= input.consumed > 0;
                match input.need {
                    Need::Again => {}
                    Need::More(octets) => {
                        need = octets;
                        break false;
                    }
                    Need::Receive => {
                        need = 0;
                        break true;
                    }
                    Need::Nothing => {
                        need = 0;
                        at = len;
                        break false;
                    }
                }
            };
            if at < len {
                buffer.copy_within(at..len, 0);
            }
            len -= at;
            if waits && let Some(cause) = self.tx.lost {
                // A receive may never come, and nothing else will.
                self.lost(cause);
                len = 0;
            }
            // Where TCP is lost, what is left is read to its end at once.
            if waits || (empty && self.tx.lost.is_none()) {
                break Received::Drained { moved };
            }
            if taken >= budget {
                break Received::More;
            }
        };
        self.rx.keep(&buffer[..len], need, driver);
        outcome
    }

    /// The peer's direction is over: FIN, or the end of what was there before TCP was lost.
    fn peer_is_silent(&mut self, unread: usize, clock: &mut Clock) {
        if let Some(cause) = self.tx.lost {
            self.lost(cause);
        } else {
            self.rx.ended = true;
            self.stream.handle_eof(unread, clock.now());
        }
    }

    /// TCP is gone.
    pub(super) fn lost(&mut self, cause: LostCause) {
        self.rx.ended = true;
        self.stream.handle_lost(cause);
    }
}

/// What an error of the socket means.
pub(super) fn lost_cause(error: &io::Error) -> LostCause {
    match error.kind() {
        io::ErrorKind::ConnectionReset
        | io::ErrorKind::ConnectionAborted
        | io::ErrorKind::BrokenPipe => LostCause::Reset,
        io::ErrorKind::TimedOut => LostCause::TimedOut,
        kind => LostCause::Io(kind),
    }
}
