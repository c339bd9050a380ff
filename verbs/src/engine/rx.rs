//! Receiving: from the socket through the thread's buffer into the stream.

use std::io;
use std::ops::Range;
use std::os::fd::AsFd;

use iwarp_rdmap::{LostCause, Need, Straight};

use super::Caller;
use super::driver::Driver;
use super::link::{Link, PassClock};
use super::memory::QpMemory;
use super::scratch::{RX_LEN, Scratch};
use crate::mem::{STRAIGHT_FROM, receive_into};

/// Octets that tell the length of an FPDU, unless a marker comes first.
const LENGTH_FIELD: usize = 2;

/// A pass that has taken so many octets leaves its buffer with the connection, if part of an FPDU is in
/// it: more is to be expected at once, and would be copied to and fro.
const BUSY: usize = 64 * 1024;

/// Room for what follows payload that goes straight into its region: the end of its FPDU, a short one perhaps
/// that ends the message, and the front of the next long one. What is more has to be copied.
const BEHIND: usize = 4096;

/// Part of an FPDU up to here is copied to memory of its own between passes, however busy they are.
const SHORT: usize = 2 * BEHIND;

/// What a connection keeps of its input between passes.
#[derive(Debug, Default)]
pub(super) struct Rx {
    /// Octets read and not consumed: part of an FPDU, or FPDUs that wait for a receive. Empty, and
    /// without memory, while the connection is idle.
    held: Vec<u8>,
    /// Where they are in it. A whole buffer of the thread, left here by a busy pass, has others around them.
    at: Range<usize>,
    /// Octets that the stream wants to see at once.
    need: usize,
    /// What the budget was charged.
    charged: usize,
    /// `held` has whole FPDUs that were not looked at for lack of time.
    pending: bool,
    /// Payload went straight into its region a moment ago, and more may.
    straight: bool,
    /// Nothing more is read: FIN was, or TCP is lost.
    pub(super) ended: bool,
}

/// One read from the socket.
struct Read {
    /// Octets in all, as the socket says it.
    result: io::Result<usize>,
    /// Octets for which there was room.
    room: usize,
    /// So many of them, the first, went straight into their region.
    straight: usize,
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
        let at = 0..leftover.len();
        Self { pending: !at.is_empty(), held: leftover, at, charged, ..Self::default() }
    }

    /// Nothing is held, and more may come.
    #[inline]
    pub(super) fn is_idle(&self) -> bool {
        self.held.is_empty() && self.at.is_empty() && !self.ended
    }

    /// Gives back what the budget was charged.
    pub(super) fn release(&mut self, driver: &Driver) {
        self.held = Vec::new();
        self.at = 0..0;
        driver.charge(std::mem::take(&mut self.charged), 0);
    }

    /// Has what is held in the buffer of the thread. Gives where.
    fn bring(&mut self, scratch: &mut Scratch) -> Range<usize> {
        let at = self.at.clone();
        if self.held.len() == RX_LEN {
            scratch.take_back_rx(std::mem::take(&mut self.held));
            return at;
        }
        if scratch.rx.len() <= at.len() {
            scratch.rx.resize(at.len() * 2, 0);
        }
        scratch.rx[..at.len()].copy_from_slice(&self.held[at.clone()]);
        0..at.len()
    }

    /// What [`bring`](Self::bring) has brought in the buffer of a busy pass is at the front of it now, and
    /// `len` octets long. (A copy that is still held stays where it is.)
    fn moved_to_front(&mut self, len: usize) {
        if self.held.is_empty() && !self.at.is_empty() {
            self.at = 0..len;
        }
    }

    /// Nothing has been read since [`bring`](Self::bring).
    fn put_back(&mut self, scratch: &mut Scratch) {
        // A copy is still here.
        if !self.at.is_empty() && self.held.is_empty() {
            self.held = scratch.leave_rx();
        }
    }

    /// Keeps what was not consumed, in the buffer where it is after a busy pass, or else in memory just
    /// large enough for what the stream waits for.
    fn keep(
        &mut self,
        scratch: &mut Scratch,
        rest: Range<usize>,
        need: usize,
        busy: bool,
        driver: &Driver,
    ) {
        self.need = need;
        if rest.is_empty() {
            if self.charged > 0 {
                self.release(driver);
            }
            return;
        }
        let busy = busy && rest.len() > SHORT;
        if busy && scratch.rx.len() == RX_LEN && driver.budget().has_plenty(RX_LEN) {
            self.held = scratch.leave_rx();
            self.at = rest;
        } else {
            // Over budget, what has not come is not charged.
            let room = driver.budget().has_room(RX_LEN);
            let wanted = if room { rest.len().max(need) } else { rest.len() };
            if self.held.capacity() < wanted || self.held.capacity() / 2 > wanted {
                self.held = Vec::with_capacity(wanted);
            } else {
                self.held.clear();
            }
            self.at = 0..rest.len();
            self.held.extend_from_slice(&scratch.rx[rest]);
        }
        let charged = self.held.capacity();
        driver.charge(std::mem::replace(&mut self.charged, charged), charged);
    }
}

impl Link {
    /// Reads until the socket is empty, the stream wants a receive, or the budget is spent. `first` is the
    /// result of the first read, into the thread's whole buffer, if that has been made.
    pub(super) fn receive(
        &mut self,
        mem: &mut QpMemory<'_>,
        scratch: &mut Scratch,
        clock: &mut PassClock,
        driver: &Driver,
        mut first: Option<io::Result<usize>>,
    ) -> Received {
        if self.rx.ended {
            return Received::Drained { moved: false };
        }
        let budget = super::share::of_pass(mem.qp(), Caller::Poll);
        let Range { mut start, mut end } = self.rx.bring(scratch);
        let buffer = &mut scratch.rx;
        let mut need = self.rx.need;
        let mut moved = false;
        let mut taken = 0;
        // FPDUs that wait, for a receive or for this pass, come first.
        let waiting = self.stream.is_blocked() || std::mem::take(&mut self.rx.pending);
        let mut read = !waiting;
        let outcome = loop {
            let mut empty = false;
            if read {
                if start > 0 && end > buffer.len() / 2 {
                    buffer.copy_within(start..end, 0);
                    end -= start;
                    start = 0;
                    self.rx.moved_to_front(end);
                }
                let before = end;
                let part = match first.take() {
                    Some(result) => Read { result, room: buffer.len() - end, straight: 0 },
                    None => self.read_on(mem, buffer, start, &mut end, &mut need, driver),
                };
                moved |= end < before;
                match part.result {
                    Ok(0) => {
                        self.peer_is_silent(end - start, clock);
                        end = start;
                        break Received::Drained { moved: true };
                    }
                    Ok(received) => {
                        empty = received < part.room && !self.socket.is_shaped();
                        end += received - part.straight;
                        taken += received;
                        moved = true;
                    }
                    Err(_) if self.socket.reads_again() && self.tx.lost.is_some() => continue,
                    Err(_) if self.socket.reads_again() => break Received::More,
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                        if self.tx.lost.is_some() {
                            // Whatever came before the loss has been read.
                            self.peer_is_silent(end - start, clock);
                            end = start;
                            moved = true;
                        } else if !moved && !waiting {
                            self.rx.put_back(scratch);
                            return Received::Drained { moved };
                        }
                        break Received::Drained { moved };
                    }
                    Err(error) => {
                        self.lost(lost_cause(&error));
                        end = start;
                        break Received::Drained { moved: true };
                    }
                }
            }
            read = true;
            let waits = loop {
                let input = self.stream.handle_input(&mut buffer[start..end], mem, &mut *clock);
                start += input.consumed;
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
                        start = end;
                        break false;
                    }
                }
            };
            if waits && let Some(cause) = self.tx.lost {
                // A receive may never come, and nothing else will.
                self.lost(cause);
                start = end;
            }
            if start == end {
                (start, end) = (0, 0);
            }
            // Where TCP is lost, what is left is read to its end at once.
            if waits || (empty && self.tx.lost.is_none()) {
                break Received::Drained { moved };
            }
            if taken >= budget {
                break Received::More;
            }
        };
        self.rx.keep(scratch, start..end, need, taken >= BUSY, driver);
        outcome
    }

    fn read(&self, into: &mut [u8]) -> Read {
        Read { result: self.socket.recv(into), room: into.len(), straight: 0 }
    }

    /// Reads what follows the octets from `start` to `end` of the buffer: long payload straight into its
    /// region, if it may go there, and anything else into the buffer. `end` goes back over payload that is in
    /// its region now, and `need`, of which that was a part, gets less.
    #[inline]
    fn read_on(
        &mut self,
        mem: &mut QpMemory<'_>,
        buffer: &mut [u8],
        start: usize,
        end: &mut usize,
        need: &mut usize,
        driver: &Driver,
    ) -> Read {
        // Over budget, FPDU by FPDU: nothing but the next one can stay over. What a stream that is over
        // discards does not stay.
        if !driver.budget().has_room(RX_LEN) && self.stream.state().receives() {
            let limit = (start + *need).max(*end + LENGTH_FIELD).min(buffer.len());
            return self.read(&mut buffer[*end..limit]);
        }
        let missing = (start + *need).saturating_sub(*end);
        if (missing < STRAIGHT_FROM && !self.rx.straight) || self.socket.copies() {
            return self.read(&mut buffer[*end..]);
        }
        let before = *end;
        let straight = self.read_straight(mem, buffer, start, end);
        *need = need.saturating_sub(before - *end);
        if let Some(read) = straight {
            self.rx.straight = true;
            return read;
        }
        let mut limit = buffer.len();
        if std::mem::take(&mut self.rx.straight) {
            // What comes behind this FPDU may go straight again.
            limit = limit.min((start + *need).max(*end) + BEHIND);
        }
        self.read(&mut buffer[*end..limit])
    }

    /// As [`read_on`](Self::read_on), for payload that goes straight into its region; `None` for any other.
    fn read_straight(
        &mut self,
        mem: &mut QpMemory<'_>,
        buffer: &mut [u8],
        start: usize,
        end: &mut usize,
    ) -> Option<Read> {
        let Straight { sink, len, placed, held, free } =
            self.stream.straight(&buffer[start..*end])?;
        // What has begun goes on; and while long ones follow each other, so do those that end a message. But
        // short ones of their own come many at once through the buffer.
        let least = if self.rx.straight { BEHIND } else { STRAIGHT_FROM };
        if placed == 0 && free < least {
            return None;
        }
        let (region, at) = mem.straight_sink(&sink, len)?;
        let held_len = held.len();
        mem.place(&sink, held)?;
        self.stream.handle_straight(held_len);
        *end -= held_len;
        let limit = buffer.len().min(*end + BEHIND);
        let behind = &mut buffer[*end..limit];
        let room = free + behind.len();
        // Whoever has revoked the region meanwhile is found when the last octets are placed.
        let result =
            receive_into(self.socket.as_fd(), &region, at + held_len, free, behind).ok()?;
        let straight = result.as_ref().map_or(0, |&received| received.min(free));
        self.stream.handle_straight(straight);
        Some(Read { result, room, straight })
    }

    /// The peer's direction is over: FIN, or the end of what was there before TCP was lost.
    fn peer_is_silent(&mut self, unread: usize, clock: &mut PassClock) {
        if let Some(cause) = self.tx.lost {
            self.lost(cause);
        } else {
            self.rx.ended = true;
            self.stream.handle_eof(unread, &mut *clock);
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
