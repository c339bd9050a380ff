//! From the octets of the peer to memory and events.

use iwarp_ddp::TAGGED_HEADER_LEN;
use iwarp_mpa::Step;

use super::{Blocked, Partial, PeerHalf, Stream};
use crate::clock::Clock;
use crate::counters::add;
use crate::event::{Event, Input, Need};
use crate::memory::{LAST_OCTETS, Memory, Received, Straight};
use crate::opcode::Opcode;
use crate::operation::Outcome;
use crate::recv::{Accepted, Blame};
use crate::state::{State, Trigger};
use crate::terminate::Culprit;

impl<B> Stream<B> {
    /// Takes octets of the peer, in order: those that the last call left, then new ones.
    ///
    /// Works on all whole FPDUs at the front of `input`, up to a budget. Octets that are not consumed have
    /// to be kept as the call left them (markers may have been taken out) and shown again with what
    /// follows; [`Need`] says what that takes. Whatever is wrong with the input is reported by events and
    /// to the peer, not by this call. Once the stream is over, all input is consumed and discarded.
    ///
    /// Tell the stream first what TCP has accepted ([`handle_transmitted`](Self::handle_transmitted)): a
    /// response to a Read whose request is not known to be on the wire is an error.
    pub fn handle_input<M: Memory<B>>(
        &mut self,
        input: &mut [u8],
        memory: &mut M,
        mut now: impl Clock,
    ) -> Input {
        let clock: &mut dyn Clock = &mut now;
        let mut consumed = 0_usize;
        let mut budget = self.limits.input_burst;
        let need = loop {
            let rest = input.get_mut(consumed..).unwrap_or_default();
            let left = rest.len();
            if !self.state.receives() {
                // DDP-006, DDP-059
                self.discard(left, clock);
                consumed = input.len();
                break Need::Nothing;
            }
            let placed = self.deframer.passed_by();
            let ulpdu = match self.deframer.next(rest) {
                Ok(Step::Need(octets)) => {
                    self.wait_for_rest(left, octets, consumed > 0, clock);
                    break Need::More(octets);
                }
                Ok(Step::Ulpdu(ulpdu)) => ulpdu,
                Err(error) => {
                    if matches!(error, iwarp_mpa::Error::Crc { .. }) {
                        add(&mut self.counters.crc_errors, 1);
                    }
                    // MPA-058, MPA-081, MPA-083, MPA-084
                    self.fail(error.into(), None, Blame::Nobody, clock);
                    continue;
                }
            };
            if budget == 0 {
                break Need::Again;
            }
            budget = budget.saturating_sub(1);
            let accepted = self.receiver.accept(ulpdu, placed, memory, self.transmitted);
            // Decision D1: valid for MPA is enough. But who begins with a Terminate has failed to set the
            // connection up (CONN-27), and establishes none.
            if self.sender.is_held() && !matches!(accepted, Ok(Accepted::Terminate(_))) {
                self.step(Trigger::FirstFpdu, clock);
            }
            match accepted {
                Ok(Accepted::Blocked) => {
                    if self.blocked.is_none() {
                        add(&mut self.counters.held_back, 1);
                        let deadline = self.limits.hold_back.after(clock.now());
                        let culprit = Culprit::of_ulpdu(ulpdu);
                        self.blocked = Some(Box::new(Blocked { deadline, culprit }));
                    }
                    break Need::Receive;
                }
                Ok(accepted) => {
                    consumed = consumed.saturating_add(self.consume());
                    self.apply(accepted, memory, clock);
                }
                Err(refused) => {
                    consumed = consumed.saturating_add(self.consume());
                    let culprit = Some(&refused.culprit);
                    self.fail(refused.error, culprit, refused.blame, clock);
                }
            }
        };
        self.drained = matches!(need, Need::More(_));
        if !self.drained {
            self.partial = None;
        } else if self.peer == PeerHalf::FinRead {
            self.end_of_input(input.len().saturating_sub(consumed), clock);
        }
        self.settle(clock);
        Input { consumed, need }
    }

    /// What of the FPDU at the front of `input` may go straight to its sink, past the caller's buffer.
    ///
    /// `input` is what the last [`handle_input`](Self::handle_input) did not consume; that call said
    /// [`Need::More`]. This is for whoever finds it cheaper to have the socket put payload where it belongs
    /// than to copy it there; nobody has to ask. What is right with the segment so far was checked, except for
    /// the memory: that is for the caller to check, all [`len`](Straight::len) octets of it, and again for every
    /// call that moves octets. Whatever is not to be had this way goes on coming through the buffer, and
    /// whoever is at fault is found there.
    ///
    /// `None` where CRC or markers are in use, so that nothing is placed that was not checked (MPA-058);
    /// for all but Writes and responses to own Reads; and when less than [`LAST_OCTETS`] are missing.
    #[must_use]
    pub fn straight<'a>(&'a self, input: &'a [u8]) -> Option<Straight<'a, B>> {
        if !self.state.receives() || self.sender.is_held() {
            return None;
        }
        let unfinished = self.deframer.unfinished(input)?;
        let (sink, len) = self.receiver.straight(&unfinished, self.transmitted)?;
        let held = unfinished.ulpdu.get(TAGGED_HEADER_LEN..)?;
        let free = len.checked_sub(held.len())?.checked_sub(LAST_OCTETS)?;
        let placed = unfinished.passed_by;
        (free > 0).then_some(Straight { sink, len, placed, held, free })
    }

    /// So many octets of the payload that [`straight`](Self::straight) told of were put into its sink: those
    /// that it held first, which the caller takes out of its buffer, then those behind them that came from the
    /// socket.
    pub fn handle_straight(&mut self, octets: usize) {
        self.deframer.pass_by(octets);
    }

    /// The peer's FIN was read, behind all octets that were shown to
    /// [`handle_input`](Self::handle_input); `unread` of those it did not consume.
    ///
    /// To be called once. While a Send is held back, or the budget of a call was spent, FIN is only noted:
    /// it takes effect when the octets before it have been dealt with.
    pub fn handle_eof(&mut self, unread: usize, mut now: impl Clock) {
        let clock: &mut dyn Clock = &mut now;
        if self.peer != PeerHalf::Open || self.state == State::Closed {
            return;
        }
        self.peer = PeerHalf::FinRead;
        // MPA-087, DDP-007
        self.events.push_back(Event::PeerClosed);
        if self.state.receives() && self.drained {
            self.end_of_input(unread, clock);
        }
        self.settle(clock);
    }

    fn end_of_input(&mut self, unread: usize, clock: &mut dyn Clock) {
        self.partial = None;
        match self.deframer.handle_eof(unread) {
            Ok(()) => self.peer_closed(clock),
            // MPA-088: inside an FPDU.
            Err(error) => self.fail(error.into(), None, Blame::Nobody, clock),
        }
    }

    fn consume(&mut self) -> usize {
        let passed_by = self.deframer.passed_by();
        let octets = self.deframer.consume();
        self.blocked = None;
        add(&mut self.counters.fpdus_in, 1);
        add(&mut self.counters.octets_in, octets.saturating_add(passed_by));
        octets
    }

    #[inline]
    fn apply<M: Memory<B>>(
        &mut self,
        accepted: Accepted<B>,
        memory: &mut M,
        clock: &mut dyn Clock,
    ) {
        match accepted {
            Accepted::Segment | Accepted::Blocked => {}
            Accepted::Message(opcode) => self.counters.messages_in.count(opcode),
            Accepted::Received { opcode, buffer, len, invalidated, immediate } => {
                self.counters.messages_in.count(opcode);
                // Events stay in the order in which things happened.
                self.retire_operations();
                let solicited = opcode.is_solicited();
                let message = Received { buffer, len, solicited, invalidated, immediate };
                let message =
                    if self.events.is_empty() { memory.received(message) } else { Some(message) };
                if let Some(Received { buffer, len, solicited, invalidated, immediate }) = message {
                    self.make_room();
                    self.events.push_back(Event::ReceiveDone {
                        buffer,
                        outcome: Outcome::Success,
                        len,
                        solicited,
                        invalidated,
                        immediate,
                    });
                }
            }
            Accepted::Answered { opcode, operation } => {
                self.counters.messages_in.count(opcode);
                self.sender.answered(operation);
                self.retire_operations();
            }
            Accepted::Request { opcode, response } => {
                self.counters.messages_in.count(opcode);
                self.sender.respond(response); // RDMAP-032
            }
            Accepted::Terminate(terminate) => {
                self.counters.messages_in.count(Opcode::Terminate);
                self.terminated(terminate, clock);
            }
        }
    }

    /// Input that nobody looks at any more.
    fn discard(&mut self, octets: usize, clock: &mut dyn Clock) {
        // Of a segment that was cut short, what went past the buffer has come as well.
        let octets = octets.saturating_add(self.deframer.abandon());
        if octets > 0 {
            add(&mut self.counters.octets_discarded, octets);
            self.step(Trigger::LateInput, clock);
        }
    }

    /// An incomplete FPDU may take its time, counted from its first octet.
    fn wait_for_rest(
        &mut self,
        left: usize,
        needed: usize,
        is_another: bool,
        clock: &mut dyn Clock,
    ) {
        let missing = needed.saturating_sub(left);
        self.partial = match self.partial {
            _ if left == 0 => None,
            Some(Partial { deadline, .. }) if !is_another => Some(Partial { deadline, missing }),
            _ => {
                let deadline = self.limits.partial_fpdu.after(clock.now());
                Some(Partial { deadline, missing })
            }
        };
    }
}
