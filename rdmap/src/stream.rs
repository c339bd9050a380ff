//! [`Stream`]: sender, receiver, framing and state put together.
//!
//! This file holds the life of a stream; the paths of the data are in `input.rs` and `transmit.rs`.

mod input;
mod transmit;

use std::collections::VecDeque;
use std::time::Instant;

use iwarp_mpa::{Deframer, Framer, Role, SizePlan};

use crate::batch::Chunk;
use crate::clock::Clock;
use crate::config::{Limits, StreamConfig};
use crate::counters::Counters;
use crate::error::{Error, OperationError};
use crate::event::{CloseCause, Event, Initiator, LostCause, Shutdown};
use crate::operation::{Operation, Outcome, SubmitError};
use crate::recv::{Blame, Receiver};
use crate::send::{Done, Sender};
use crate::state::{Action, State, Trigger, next};
use crate::terminate::{Culprit, Terminate, TerminateCode};

/// One RDMA stream over one TCP connection, from the end of the MPA start-up on.
///
/// It does no IO and knows no clock: octets, values and times come in, octets and values go out. The crate's
/// first page tells who calls what in which order.
///
/// `B` is what the owner calls the local side of a work request. It moves in with
/// [`submit`](Self::submit) and with receives that the stream takes, and moves out in
/// events or what stands for them, exactly once each.
#[derive(Debug)]
pub struct Stream<B> {
    limits: Limits,
    state: State,
    framer: Framer,
    deframer: Deframer,
    sender: Sender<B>,
    receiver: Receiver<B>,
    events: VecDeque<Event<B>>,
    counters: Counters,
    /// Stream position up to which TCP accepted what is sent.
    transmitted: u64,
    /// A Send is held back for want of a receive.
    blocked: Option<Box<Blocked>>,
    /// Every whole FPDU that was shown is dealt with.
    drained: bool,
    /// When an incomplete FPDU has waited too long, and how many octets of it are missing.
    partial: Option<Partial>,
    /// When an end has taken too long.
    grace: Option<Instant>,
    peer: PeerHalf,
    fin: Notice,
    reset: Notice,
    /// Why the stream ends, unless it is an orderly close. Boxed, as all that is seldom there: ten thousand
    /// idle streams should cost no more than they must.
    cause: Option<Box<CloseCause>>,
}

/// The peer's half of the stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PeerHalf {
    Open,
    /// FIN was read, but not all that came before it is dealt with.
    FinRead,
    Closed,
}

/// Something to tell the driver once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Notice {
    NotDue,
    Due,
    Told,
}

#[derive(Debug)]
struct Blocked {
    deadline: Option<Instant>,
    culprit: Culprit,
}

#[derive(Clone, Copy, Debug)]
struct Partial {
    deadline: Option<Instant>,
    missing: usize,
}

impl<B> Stream<B> {
    /// A stream at the first octet of full operation.
    #[must_use]
    pub fn new(config: StreamConfig) -> Self {
        let is_responder = config.role == Role::Responder;
        let (send_rtr, expected_rtr) =
            if is_responder { (None, config.rtr) } else { (config.rtr, None) };
        let mut events = VecDeque::new();
        if !is_responder {
            events.push_back(Event::Established);
        }
        Self {
            state: if is_responder { State::FirstWait } else { State::Full },
            framer: Framer::new(&config.framing),
            deframer: Deframer::new(&config.framing),
            sender: Sender::new(&config, is_responder, send_rtr),
            receiver: Receiver::new(&config, expected_rtr),
            events,
            counters: Counters::default(),
            transmitted: 0,
            blocked: None,
            drained: true,
            partial: None,
            grace: None,
            peer: PeerHalf::Open,
            fin: Notice::NotDue,
            reset: Notice::NotDue,
            cause: None,
            limits: Limits::from(&config),
        }
    }

    /// Appends an operation to the send queue.
    ///
    /// It is refused, and given back, once the stream is closing. Otherwise it comes back in
    /// [`Event::OperationDone`]. The queue has no limit of its own.
    pub fn submit(&mut self, operation: Operation<B>) -> Result<(), SubmitError<B>> {
        // DDP-041
        if !self.state.accepts_work() {
            return Err(SubmitError { state: self.state, operation });
        }
        self.sender.submit(operation);
        Ok(())
    }

    /// Closes in order: all that was submitted goes out, Reads are waited for, the peer's Reads that are
    /// in are answered, then FIN. Not clean if the peer is in the middle of a message then.
    ///
    /// That may take as long as the peer pleases; [`disconnect`](Self::disconnect) and
    /// [`abort`](Self::abort) cut it short. Does nothing if the stream is closing already.
    pub fn close(&mut self, mut now: Instant) {
        self.step(Trigger::Close, &mut now);
        self.settle(&mut now);
    }

    /// Closes at once: the FPDUs that were handed out are finished, all other operations flushed, then
    /// FIN. Not clean if anything was pending.
    pub fn disconnect(&mut self, mut now: Instant) {
        self.retire_operations();
        if matches!(self.state, State::FirstWait | State::Full | State::Finishing)
            && (self.has_pending_work() || self.receiver.is_inside_message())
        {
            self.blame_end_on(CloseCause::User);
        }
        self.step(Trigger::Disconnect, &mut now);
        self.settle(&mut now);
    }

    /// Sends a Terminate without headers, and ends the stream.
    ///
    /// For users ([`TerminateCode::LOCAL_CATASTROPHIC`]), and for set-up that fails after the MPA frames
    /// were exchanged ([`TerminateCode::SETUP_IRD`] and its neighbours). A responder that has received
    /// nothing yet may not send it, and only closes (MPA-029).
    pub fn terminate(&mut self, code: TerminateCode, mut now: Instant) {
        let error = Error::Requested(code);
        self.fail_by(Initiator::User, error, None, Blame::Nobody, &mut now);
        self.settle(&mut now);
    }

    /// Resets TCP and flushes everything.
    pub fn abort(&mut self) {
        self.blame_end_on(CloseCause::User);
        self.end(Trigger::Reset);
    }

    /// TCP was lost: reset by the peer, timed out.
    pub fn handle_lost(&mut self, cause: LostCause) {
        self.blame_end_on(CloseCause::Lost(cause));
        self.end(Trigger::Lost);
        self.fin = Notice::Told; // There is nothing left to shut down.
    }

    /// The memory of a [`Chunk::Local`] or [`Chunk::Remote`] is gone at the moment it is to be written.
    ///
    /// The FPDU around it cannot be finished, so TCP is reset. The operation, if it is one of this side's,
    /// ends with [`Outcome::LocalProtection`].
    pub fn handle_source_fault(&mut self, chunk: &Chunk) {
        if let Chunk::Local { op, .. } = chunk {
            self.sender.source_lost(*op);
        }
        self.blame_end_on(CloseCause::SourceLost);
        self.end(Trigger::Reset);
    }

    /// The EMSS changed: messages are cut to the new sizes from the next segment on (DDP-001).
    pub fn set_size(&mut self, size: SizePlan) {
        // DDP-002: what was handed out stays as it is.
        self.limits.size = size;
    }

    /// Changes how many Reads may be outstanding at once (ORD): not beyond what the peer has agreed to serve
    /// ([`StreamConfig::ord`]). Those that are outstanding stay so, and one that is posted with 0 fails.
    pub fn set_ord(&mut self, ord: u32) {
        self.sender.set_ord(ord);
    }

    /// TCP accepted so many more octets of the batches handed out. Operations complete by this.
    pub fn handle_transmitted(&mut self, octets: usize, mut now: impl Clock) {
        let position = self.framer.position();
        debug_assert!(
            octets as u64 <= position.saturating_sub(self.transmitted),
            "more octets were accepted than were handed out"
        );
        self.transmitted = self.transmitted.saturating_add(octets as u64).min(position);
        self.settle(&mut now);
    }

    /// The next event, if there is one.
    #[inline]
    pub fn poll_event(&mut self) -> Option<Event<B>> {
        if let Some(event) = self.events.pop_front() {
            return Some(event);
        }
        self.sender.retire(self.transmitted).map(operation_done)
    }

    /// The buffer and the length of the next operation, if it has succeeded and the event of that is the
    /// next one: then this is that event, in a form that costs less.
    #[inline]
    pub fn poll_success(&mut self) -> Option<(B, u32)> {
        if self.events.is_empty() { self.sender.retire_success(self.transmitted) } else { None }
    }

    /// What to do with the TCP connection now, if anything. Each answer comes at most once.
    #[inline]
    pub fn poll_shutdown(&mut self) -> Option<Shutdown> {
        if self.reset == Notice::Due {
            self.reset = Notice::Told;
            self.fin = Notice::Told;
            return Some(Shutdown::Abort);
        }
        if self.fin == Notice::Due {
            self.fin = Notice::Told;
            return Some(Shutdown::Write);
        }
        None
    }

    /// When [`handle_timeout`](Self::handle_timeout) has to be called; earlier calls do no harm.
    #[inline]
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Instant> {
        if self.blocked.is_none() && self.partial.is_none() && self.grace.is_none() {
            return None;
        }
        let blocked = self.blocked.as_ref().and_then(|blocked| blocked.deadline);
        let partial = self.partial.and_then(|partial| partial.deadline);
        [blocked, partial, self.grace].into_iter().flatten().min()
    }

    /// Time has passed.
    pub fn handle_timeout(&mut self, now: Instant) {
        let mut clock = now;
        let is_due = |deadline: Option<Instant>| deadline.is_some_and(|at| at <= now);
        if let Some(blocked) = &self.blocked
            && is_due(blocked.deadline)
        {
            // Decision D2: the time to hold back is over.
            let culprit = blocked.culprit;
            let error = iwarp_ddp::UntaggedError::NoBuffer;
            self.fail(error.into(), Some(&culprit), Blame::Nobody, &mut clock);
        }
        if let Some(partial) = self.partial
            && is_due(partial.deadline)
        {
            // MPA-091: a peer that stops inside an FPDU is taken for dead.
            let error = Error::FpduStalled { missing: partial.missing };
            self.blame_end_on(CloseCause::Error(error));
            self.end(Trigger::Reset);
        }
        if is_due(self.grace) {
            // RDMAP-067, FC-028. What TCP accepted it may still deliver behind our back; what it did not
            // accept in time, it never will.
            let everything_is_out = self.fin != Notice::NotDue;
            self.blame_end_on(CloseCause::GraceExpired);
            self.end(if everything_is_out { Trigger::Grace } else { Trigger::Reset });
        }
        self.settle(&mut clock);
    }

    /// The buffer of an operation that a [`Chunk::Local`] names.
    #[must_use]
    pub fn source_buffer(&self, op: u64) -> Option<&B> {
        self.sender.buffer(op)
    }

    /// Gives back memory that the queues do not need at present. They take it again as they grow, so this is
    /// for a stream that is likely to be idle for a while.
    pub fn shrink_to_fit(&mut self) {
        self.events.shrink_to_fit();
        self.sender.shrink_to_fit();
    }

    /// Where the stream stands.
    #[must_use]
    pub const fn state(&self) -> State {
        self.state
    }

    /// What was counted.
    #[must_use]
    pub const fn counters(&self) -> &Counters {
        &self.counters
    }

    /// Whether a Send of the peer is held back for want of a receive: call
    /// [`handle_input`](Self::handle_input) again when one was posted.
    #[must_use]
    pub const fn is_blocked(&self) -> bool {
        self.blocked.is_some()
    }

    /// Own Reads and Atomics that wait for their response.
    #[must_use]
    pub const fn outstanding_reads(&self) -> usize {
        self.sender.outstanding_reads()
    }

    /// Operations that have not come back yet.
    #[must_use]
    pub fn queued_operations(&self) -> usize {
        self.sender.queued()
    }

    /// Whether [`poll_transmit`](Self::poll_transmit) may have something to hand out: a quick look, which
    /// may be wrong in saying so, and never is in denying it.
    #[inline]
    #[must_use]
    pub fn may_transmit(&self) -> bool {
        self.sender.may_send()
    }

    /// Whether something is left to do for this side: operations whose event was not polled, answers to the
    /// peer's Reads, octets that TCP has not accepted.
    #[must_use]
    pub fn has_pending_work(&self) -> bool {
        self.sender.has_work() || self.has_untransmitted()
    }

    fn has_untransmitted(&self) -> bool {
        self.transmitted != self.framer.position()
    }

    fn fail(
        &mut self,
        error: Error,
        culprit: Option<&Culprit>,
        blame: Blame,
        clock: &mut dyn Clock,
    ) {
        self.fail_by(Initiator::Local, error, culprit, blame, clock);
    }

    /// The first error of the stream ends it (RDMAP-065, RDMAP-068, DDP-044) and is reported to the user
    /// (RDMAP-069); all later ones are ignored (RDMAP-073).
    fn fail_by(
        &mut self,
        by: Initiator,
        error: Error,
        culprit: Option<&Culprit>,
        blame: Blame,
        clock: &mut dyn Clock,
    ) {
        let terminate = error.terminate(culprit);
        let trigger = if terminate.is_some() { Trigger::Fault } else { Trigger::Silent };
        let Some((_, action)) = next(self.state, trigger) else { return };
        tracing::debug!(%error, ?by, "stream fails");
        self.retire_operations();
        self.surrender(blame);
        let cause = match by {
            Initiator::User => CloseCause::User,
            Initiator::Local | Initiator::Remote => CloseCause::Error(error.clone()),
        };
        self.blame_end_on(cause);
        self.step(trigger, clock);
        // MPA-029: a held sender does not send a Terminate either.
        if action == Action::Terminate
            && !self.sender.is_held()
            && let Some(terminate) = terminate
        {
            self.sender.set_terminate(terminate);
            self.events.push_back(Event::Terminated { by, terminate, cause: Some(error) });
        }
    }

    /// The peer's Terminate ends the stream. It is not answered (RDMAP-054).
    fn terminated(&mut self, terminate: Terminate, clock: &mut dyn Clock) {
        tracing::debug!(code = %terminate.likely_code(), "peer terminates the stream");
        self.retire_operations();
        self.sender.blame(&terminate);
        self.surrender(Blame::Nobody);
        self.blame_end_on(CloseCause::Terminated(terminate));
        self.step(Trigger::Silent, clock);
        self.events.push_back(Event::Terminated { by: Initiator::Remote, terminate, cause: None });
    }

    /// Everything before the peer's FIN is dealt with.
    fn peer_closed(&mut self, clock: &mut dyn Clock) {
        self.peer = PeerHalf::Closed;
        self.retire_operations();
        // What needs only the half that is open is still done: queued Sends and Writes go out (FC-029,
        // DDP-043). What needs the other half cannot be done any more: Reads, the rest of a message, and
        // the first FPDU that a held sender waits for; nor is a peer that closed waiting for answers to
        // its own Reads. That is the close with work pending (RDMAP-082).
        let cannot_end = self.sender.unanswered_reads() > 0
            || self.sender.has_responses()
            || self.receiver.is_inside_message()
            || (self.sender.is_held() && self.sender.has_work());
        if cannot_end {
            self.fail(OperationError::FinWithWork.into(), None, Blame::Nobody, clock);
        } else if self.has_pending_work() {
            self.step(Trigger::FinOutput, clock);
        } else {
            self.step(Trigger::FinIdle, clock);
        }
    }

    /// Receiving is over: what is being filled goes back.
    fn surrender(&mut self, blame: Blame) {
        if let Some(buffer) = self.receiver.take_message() {
            let outcome = match blame {
                Blame::Receive(outcome) => outcome,
                Blame::Nobody | Blame::Request(_) => Outcome::Flushed,
            };
            self.events.push_back(Event::ReceiveDone {
                buffer,
                outcome,
                len: 0,
                solicited: false,
                invalidated: None,
                immediate: None,
            });
        }
        let mut verdict = match blame {
            Blame::Request(outcome) => Some(outcome),
            Blame::Nobody | Blame::Receive(_) => None,
        };
        while let Some(expected) = self.receiver.take_expected() {
            self.sender.unanswered(expected.operation, verdict.take());
        }
        self.blocked = None;
        self.partial = None;
    }

    /// The first cause that is not an orderly close stays.
    fn blame_end_on(&mut self, cause: CloseCause) {
        if self.cause.is_none() && cause != CloseCause::Orderly && self.state != State::Closed {
            self.cause = Some(Box::new(cause));
        }
    }

    /// Takes one step of the state table and does what it says.
    fn step(&mut self, trigger: Trigger, clock: &mut dyn Clock) {
        let Some(action) = self.enter(trigger) else { return };
        match action {
            Action::Continue => {}
            Action::Release => {
                self.sender.release();
                self.events.push_back(Event::Established);
            }
            Action::Terminate | Action::Stop => {
                self.surrender(Blame::Nobody);
                self.sender.stop();
                self.grace = self.limits.close_grace.after(clock.now());
            }
            Action::MarkBadClose => self.blame_end_on(CloseCause::LateInput),
            Action::End | Action::Reset => self.finish(action),
        }
    }

    /// As [`step`](Self::step), for triggers that end the stream in every state.
    fn end(&mut self, trigger: Trigger) {
        if let Some(action @ (Action::End | Action::Reset)) = self.enter(trigger) {
            self.finish(action);
        }
    }

    fn enter(&mut self, trigger: Trigger) -> Option<Action> {
        let (to, action) = next(self.state, trigger)?;
        if to != self.state {
            tracing::trace!(from = %self.state, %to, ?trigger, "stream state");
        }
        self.state = to;
        Some(action)
    }

    /// Everything goes back to its owner, and the end is reported.
    fn finish(&mut self, action: Action) {
        self.surrender(Blame::Nobody);
        self.sender.stop();
        self.grace = None;
        if action == Action::Reset {
            self.reset = Notice::Due;
        }
        self.flush_operations();
        let clean = self.cause.is_none();
        let cause = self.cause.as_deref().cloned().unwrap_or(CloseCause::Orderly);
        self.events.push_back(Event::Closed { clean, cause });
    }

    /// What follows from the present state of things without anybody asking. Called at the end of
    /// whatever may have changed something.
    #[inline]
    fn settle(&mut self, clock: &mut dyn Clock) {
        // As long as nothing ends, complete operations stay where they are until somebody asks for events.
        if !matches!(self.state, State::FirstWait | State::Full) {
            self.settle_end(clock);
        }
    }

    fn settle_end(&mut self, clock: &mut dyn Clock) {
        self.retire_operations();
        if self.state == State::Finishing && !self.has_pending_work() {
            // The answer to an RTR by Read would come too late for a clean close.
            let answer_to_come = self.sender.awaits_rtr() && self.peer == PeerHalf::Open;
            if !answer_to_come {
                if self.receiver.is_inside_message() {
                    // What the peer has begun will not be taken to its end.
                    self.blame_end_on(CloseCause::User);
                }
                self.step(Trigger::WorkDone, clock);
            }
        }
        if !matches!(self.state, State::Closing | State::Terminating) {
            return;
        }
        // What is still unread of the peer is discarded, so its FIN is all that counts.
        if self.peer == PeerHalf::FinRead {
            self.peer = PeerHalf::Closed;
        }
        // RDMAP-067: FIN goes behind the last FPDU. Nothing can complete any more then (FC-033).
        if self.fin == Notice::NotDue && !self.sender.has_terminate() && !self.has_untransmitted() {
            self.fin = Notice::Due;
            self.flush_operations();
        }
        if self.fin != Notice::NotDue && self.peer == PeerHalf::Closed {
            self.step(Trigger::BothClosed, clock);
        }
    }

    /// Makes events of the operations that are complete: what comes next must find none of them.
    fn retire_operations(&mut self) {
        while let Some(done) = self.sender.retire(self.transmitted) {
            self.make_room();
            self.events.push_back(operation_done(done));
        }
    }

    /// A ring begins with room for four events of some size, where an exchange of single messages needs room
    /// for one.
    #[inline]
    fn make_room(&mut self) {
        if self.events.capacity() == 0 {
            self.events.reserve_exact(1);
        }
    }

    /// Gives all operations back, those that are complete as such.
    fn flush_operations(&mut self) {
        self.retire_operations();
        // RDMAP-055, RDMAP-066, DDP-003, DDP-045
        while let Some(done) = self.sender.flush() {
            self.events.push_back(operation_done(done));
        }
    }
}

fn operation_done<B>(done: Done<B>) -> Event<B> {
    let Done { buffer, kind, outcome, len } = done;
    Event::OperationDone { buffer, kind, outcome, len }
}
