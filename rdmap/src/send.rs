//! The sending half of a stream: which segment goes out next, and what is in it.
//!
//! The [`Sender`] owns the send queue and the queue of answers. It deals in segments, not in octets:
//! the stream asks for the next [`Draft`], decides how much of it fits, has the segment built and framed, and
//! tells the sender that it went out. What the receiving half has to know comes back as a [`Sent`].

mod arbiter;
mod blame;
mod queue;
mod response;

use std::collections::VecDeque;

use iwarp_ddp::{
    Cut, LocalFault, Stag, TAGGED_HEADER_LEN, TaggedHeader, UNTAGGED_HEADER_LEN, UntaggedHeader,
};
use iwarp_mpa::Rtr;

use self::arbiter::{Arbiter, OwnReady, ResponseReady, Turn};
pub(crate) use self::queue::Done;
use self::queue::{Entry, SendQueue};
pub(crate) use self::response::{Answer, Response};
use crate::atomic::{AtomicRequest, AtomicResponse};
use crate::config::StreamConfig;
use crate::error::LocalError;
use crate::message::ReadRequest;
use crate::opcode::{Opcode, queue as qn};
use crate::operation::{Operation, OperationKind, Outcome};
use crate::terminate::{Culprit, TERMINATE_MAX, Terminate};
use crate::wire::{ATOMIC_REQUEST_LEN, Control, IMMEDIATE_LEN, READ_REQUEST_LEN};

/// `STag` of the RTR messages: one adapter family refuses 0 even where nobody may look at it.
const RTR_STAG: Stag = Stag::from_raw(1);

#[derive(Debug)]
pub(crate) struct Sender<B> {
    /// The responder's sender before the first FPDU came (MPA-029).
    held: bool,
    /// No message is begun or continued any more.
    stopped: bool,
    terminate: Option<Box<Terminate>>,
    rtr: Option<Rtr>,
    /// An RTR by Read waits for its response.
    rtr_outstanding: bool,
    ord: usize,
    queue: SendQueue<B>,
    /// Octets of the present operation that went out.
    offset: u32,
    part: Part,
    responses: VecDeque<Response>,
    arbiter: Arbiter,
    /// Numbers of the next messages on queues 0, 1 and 3.
    send_msn: u32,
    request_msn: u32,
    atomic_msn: u32,
}

/// Which message of the present operation is due.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Part {
    /// The first one, mostly the only one.
    Message,
    /// The Immediate Data behind a Write that went out.
    Immediate,
}

/// The segment that can go out next: some part of this message, from `offset` on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Draft {
    from: Origin,
    pub(crate) opcode: Opcode,
    /// Octets behind the DDP headers, of the whole message.
    pub(crate) len: u32,
    pub(crate) offset: u32,
}

/// What the sender does next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// Send a segment.
    Segment(Draft),
    /// Carry out the present operation, which sends nothing.
    Perform,
    /// Carry out the peer's Atomic whose turn to be answered has come.
    Execute,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Origin {
    Terminate,
    Rtr,
    Own,
    Response,
}

impl Draft {
    pub(crate) const fn header_len(&self) -> usize {
        if self.opcode.queue().is_none() { TAGGED_HEADER_LEN } else { UNTAGGED_HEADER_LEN }
    }
}

/// A DDP header to send.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Header {
    Tagged([u8; TAGGED_HEADER_LEN]),
    Untagged([u8; UNTAGGED_HEADER_LEN]),
}

impl Header {
    pub(crate) fn as_bytes(&self) -> &[u8] {
        match self {
            Self::Tagged(octets) => octets,
            Self::Untagged(octets) => octets,
        }
    }
}

/// What is behind the header.
#[derive(Debug)]
pub(crate) enum Body<'a, B> {
    /// These octets.
    Octets([u8; TERMINATE_MAX]),
    /// Octets of an own operation's buffer, from this place on.
    Local { op: u64, buffer: &'a B, offset: u64 },
    /// Octets of memory that the peer reads.
    Remote { stag: Stag, offset: u64 },
}

/// What a segment that went out means for the receiving half.
#[derive(Debug)]
pub(crate) enum Sent<B> {
    Nothing,
    /// An answer to this is to be expected.
    Requested(Expected<B>),
    /// A request of the peer is answered.
    Answered,
}

/// An own request whose answer is to come.
#[derive(Debug)]
pub(crate) struct Expected<B> {
    /// Number and buffer of the operation; `None` for an RTR.
    pub(crate) operation: Option<(u64, B)>,
    pub(crate) what: ExpectedAnswer,
    /// Stream position behind the request.
    pub(crate) requested: u64,
}

/// What is in the answer.
#[derive(Clone, Copy, Debug)]
pub(crate) enum ExpectedAnswer {
    /// So many octets for this place.
    Read { sink_stag: Stag, sink_offset: u64, len: u32 },
    /// The original value, under this identifier.
    Atomic { id: u32 },
}

impl<B> Sender<B> {
    pub(crate) fn new(config: &StreamConfig, held: bool, rtr: Option<Rtr>) -> Self {
        Self {
            held,
            stopped: false,
            terminate: None,
            rtr,
            rtr_outstanding: false,
            ord: usize::try_from(config.ord).unwrap_or(usize::MAX),
            queue: SendQueue::new(),
            offset: 0,
            part: Part::Message,
            responses: VecDeque::new(),
            arbiter: Arbiter::new(config.response_burst),
            send_msn: config.first_msn,
            request_msn: config.first_msn,
            atomic_msn: config.first_msn,
        }
    }

    pub(crate) const fn is_held(&self) -> bool {
        self.held
    }

    pub(crate) fn release(&mut self) {
        self.held = false;
    }

    pub(crate) fn submit(&mut self, operation: Operation<B>) {
        self.queue.push(operation);
    }

    pub(crate) fn respond(&mut self, response: Response) {
        self.responses.push_back(response);
    }

    /// Ends all sending, but for a Terminate that is set later.
    pub(crate) fn stop(&mut self) {
        self.stopped = true;
        self.responses.clear();
    }

    /// Sends this next, and nothing after it.
    pub(crate) fn set_terminate(&mut self, terminate: Terminate) {
        // RDMAP-051: the callers' state table lets this happen once.
        self.terminate = Some(Box::new(terminate));
    }

    pub(crate) fn shrink_to_fit(&mut self) {
        self.queue.shrink_to_fit();
        self.responses.shrink_to_fit();
    }

    pub(crate) const fn has_terminate(&self) -> bool {
        self.terminate.is_some()
    }

    /// Whether there is anything to send at all, be it that it has to wait.
    #[inline]
    pub(crate) fn may_send(&self) -> bool {
        self.queue.current().is_some()
            || !self.responses.is_empty()
            || self.terminate.is_some()
            || self.rtr.is_some()
    }

    /// Operations that are not complete, or requests of the peer that are not answered.
    pub(crate) fn has_work(&self) -> bool {
        !self.queue.is_empty() || self.has_responses()
    }

    pub(crate) fn has_responses(&self) -> bool {
        !self.responses.is_empty()
    }

    /// An RTR by Read went out, and its response is to come.
    pub(crate) const fn awaits_rtr(&self) -> bool {
        self.rtr_outstanding
    }

    pub(crate) fn queued(&self) -> usize {
        self.queue.len()
    }

    /// Changes how many Reads and Atomics may be outstanding; those that are, stay so.
    pub(crate) fn set_ord(&mut self, ord: u32) {
        self.ord = usize::try_from(ord).unwrap_or(usize::MAX);
    }

    /// Own Reads and Atomics that wait for a response, without the RTR.
    pub(crate) const fn outstanding_reads(&self) -> usize {
        self.queue.outstanding()
    }

    /// Own Reads and Atomics without a response, sent or not.
    pub(crate) const fn unanswered_reads(&self) -> usize {
        self.queue.unanswered()
    }

    pub(crate) fn buffer(&self, op: u64) -> Option<&B> {
        self.queue.buffer(op)
    }

    /// What goes out next, if anything may: RDMA messages and nothing else (RDMAP-060). With `reads_wait` no
    /// Read or Atomic is begun.
    #[inline]
    pub(crate) fn next(&self, reads_wait: bool) -> Result<Option<Step>, LocalError> {
        if self.held {
            // What sends nothing is not held back.
            let performs = !self.stopped && self.work_is_due();
            return Ok(performs.then_some(Step::Perform));
        }
        if let Some(terminate) = &self.terminate {
            let len = terminate.encode(&mut [0; TERMINATE_MAX]);
            let len = u32::try_from(len).unwrap_or(0);
            let from = Origin::Terminate;
            let opcode = Opcode::Terminate;
            return Ok(Some(Step::Segment(Draft { from, opcode, len, offset: 0 })));
        }
        if self.stopped {
            return Ok(None);
        }
        // CONN-09, CONN-24
        if let Some(rtr) = self.rtr {
            let (opcode, len) = match rtr {
                Rtr::Send => (Opcode::Send, 0),
                Rtr::Write => (Opcode::Write, 0),
                Rtr::Read => (Opcode::ReadRequest, READ_REQUEST_LEN_U32),
            };
            return Ok(Some(Step::Segment(Draft { from: Origin::Rtr, opcode, len, offset: 0 })));
        }
        if self.work_is_due() {
            return Ok(Some(Step::Perform));
        }
        if self.due_atomic().is_some() {
            return Ok(Some(Step::Execute));
        }
        let own = self.own(reads_wait)?;
        if self.part == Part::Immediate {
            // EXT-31. Nothing comes between the two: a receiver can tell the length of the Write.
            return Ok(own.map(Step::Segment));
        }
        let ready = own.map(|draft| OwnReady {
            tagged: draft.opcode.queue().is_none(),
            begun: draft.offset > 0,
        });
        let response = self.responses.front();
        let response_ready = response.map(|response| ResponseReady {
            tagged: response.opcode().queue().is_none(),
            begun: response.sent() > 0,
        });
        let draft = match self.arbiter.choose(ready, response_ready) {
            None => None,
            Some(Turn::Own) => own,
            Some(Turn::Response) => response.map(|response| Draft {
                from: Origin::Response,
                opcode: response.opcode(),
                len: response.len(),
                offset: response.sent(),
            }),
        };
        Ok(draft.map(Step::Segment))
    }

    /// Whether the present operation is local work that need not wait.
    #[inline]
    fn work_is_due(&self) -> bool {
        self.queue.current().is_some_and(|entry| {
            matches!(entry.kind, OperationKind::Local)
                && !(entry.fence && self.queue.outstanding() > 0)
        })
    }

    /// The peer's Atomic that is the next to be answered, and was not carried out: what is in front of it has
    /// gone out (ORD-20, EXT-14).
    #[inline]
    pub(crate) fn due_atomic(&self) -> Option<AtomicRequest> {
        match self.responses.front()?.answer {
            Answer::Atomic(request) => Some(request),
            Answer::Read { .. } | Answer::Original(_) => None,
        }
    }

    /// That Atomic was carried out, and this is what it found.
    pub(crate) fn executed(&mut self, original: u64) {
        if let Some(response) = self.responses.front_mut()
            && let Answer::Atomic(request) = response.answer
        {
            // EXT-15
            response.answer = Answer::Original(AtomicResponse { id: request.id, original });
        }
    }

    /// The present local work is in effect.
    pub(crate) fn performed(&mut self) {
        self.queue.performed();
    }

    /// The buffer of the present operation.
    pub(crate) fn current_buffer(&self) -> Option<&B> {
        self.queue.current_buffer()
    }

    /// The segment of the send queue that can go out.
    #[inline]
    fn own(&self, reads_wait: bool) -> Result<Option<Draft>, LocalError> {
        let Some(entry) = self.queue.current() else { return Ok(None) };
        let draft =
            |opcode, len| Some(Draft { from: Origin::Own, opcode, len, offset: self.offset });
        // FC-025: the fence waits for all earlier Reads and Atomics, not for one.
        if entry.fence && self.queue.outstanding() > 0 && self.offset == 0 {
            return Ok(None);
        }
        Ok(match entry.kind {
            OperationKind::Send { solicited, invalidate } => {
                draft(Opcode::send(solicited, invalidate.is_some()), entry.len)
            }
            // Waits for its fence.
            OperationKind::Local => None,
            OperationKind::WriteImmediate { solicited, .. } if self.part == Part::Immediate => {
                draft(Opcode::immediate(solicited), IMMEDIATE_LEN_U32)
            }
            OperationKind::Write { .. } | OperationKind::WriteImmediate { .. } => {
                draft(Opcode::Write, entry.len)
            }
            OperationKind::Read { .. } | OperationKind::Atomic { .. } => {
                // RDMAP-063
                if self.ord == 0 {
                    return Err(LocalError::NoOrd);
                }
                // RDMAP-062, EXT-16: the queue stops here, with all that is behind. An RTR by Read takes one of
                // the peer's places like any other.
                let outstanding =
                    self.queue.outstanding().saturating_add(usize::from(self.rtr_outstanding));
                if reads_wait || outstanding >= self.ord {
                    None
                } else if matches!(entry.kind, OperationKind::Read { .. }) {
                    draft(Opcode::ReadRequest, READ_REQUEST_LEN_U32)
                } else {
                    draft(Opcode::AtomicRequest, ATOMIC_REQUEST_LEN_U32)
                }
            }
        })
    }

    /// The segment for one piece of a draft.
    #[inline]
    pub(crate) fn segment(&self, draft: &Draft, cut: Cut) -> Option<(Header, Body<'_, B>)> {
        let rsvd_ulp = Control::octet(draft.opcode);
        let untagged = |queue, msn, invalidate: Option<Stag>| {
            let header = UntaggedHeader {
                last: false,
                rsvd_ulp,
                rsvd_ulp_word: invalidate.map_or(0, Stag::raw), // RDMAP-005
                queue,
                msn,
                offset: 0,
            };
            Header::Untagged(header.for_cut(cut).to_bytes())
        };
        let tagged = |stag, offset| {
            let header = TaggedHeader { last: false, rsvd_ulp, stag, offset };
            Header::Tagged(header.for_cut(cut).to_bytes())
        };
        Some(match draft.from {
            Origin::Terminate => {
                let mut octets = [0; TERMINATE_MAX];
                self.terminate.as_ref()?.encode(&mut octets);
                // RDMAP-050
                (untagged(qn::TERMINATE, 1, None), Body::Octets(octets))
            }
            Origin::Rtr => match self.rtr? {
                Rtr::Send => {
                    (untagged(qn::SEND, self.send_msn, None), Body::Octets([0; TERMINATE_MAX]))
                }
                Rtr::Write => (tagged(RTR_STAG, 0), Body::Octets([0; TERMINATE_MAX])),
                Rtr::Read => {
                    let header = untagged(qn::READ_REQUEST, self.request_msn, None);
                    (header, octets_body(&RTR_READ.to_bytes()))
                }
            },
            Origin::Response => {
                let (sink, body) = self.responses.front()?.body(cut.offset)?;
                let header = match sink {
                    Some((stag, offset)) => tagged(stag, offset),
                    // EXT-11
                    None => untagged(qn::ATOMIC_RESPONSE, self.atomic_msn, None),
                };
                (header, body)
            }
            Origin::Own => {
                let entry = self.queue.current()?;
                match entry.kind {
                    OperationKind::Send { invalidate, .. } => {
                        (untagged(qn::SEND, self.send_msn, invalidate), self.local(cut)?)
                    }
                    // EXT-30
                    OperationKind::WriteImmediate { immediate, .. }
                        if self.part == Part::Immediate =>
                    {
                        (untagged(qn::SEND, self.send_msn, None), octets_body(&immediate))
                    }
                    // RDMAP-013
                    OperationKind::Write { stag, offset }
                    | OperationKind::WriteImmediate { stag, offset, .. } => {
                        (tagged(stag, offset), self.local(cut)?)
                    }
                    OperationKind::Read { .. } => {
                        let header = untagged(qn::READ_REQUEST, self.request_msn, None);
                        (header, octets_body(&read_request(entry)?.to_bytes()))
                    }
                    // EXT-10: numbered among the Reads. The number will do as an identifier, too.
                    OperationKind::Atomic { stag, offset, ref operation } => {
                        let id = self.request_msn;
                        let request = AtomicRequest { id, stag, offset, operation: **operation };
                        let header = untagged(qn::READ_REQUEST, self.request_msn, None);
                        (header, octets_body(&request.to_bytes()))
                    }
                    OperationKind::Local => return None,
                }
            }
        })
    }

    fn local(&self, cut: Cut) -> Option<Body<'_, B>> {
        let op = self.queue.current_id();
        let buffer = self.queue.current_buffer()?;
        Some(Body::Local { op, buffer, offset: u64::from(cut.offset) })
    }

    /// The segment went out; `end` is the stream position behind it.
    #[inline]
    pub(crate) fn sent(&mut self, draft: &Draft, cut: Cut, end: u64) -> Sent<B> {
        match draft.from {
            Origin::Terminate => {
                self.terminate = None; // RDMAP-053: all else was stopped before it was set.
                Sent::Nothing
            }
            Origin::Rtr => self.sent_rtr(end),
            Origin::Response => {
                self.arbiter.sent(Turn::Response);
                if cut.last {
                    if draft.opcode == Opcode::AtomicResponse {
                        take_msn(&mut self.atomic_msn);
                    }
                    self.responses.pop_front();
                    return Sent::Answered;
                }
                if let Some(response) = self.responses.front_mut() {
                    response.advance(cut.offset.saturating_add(cut.len));
                }
                Sent::Nothing
            }
            Origin::Own => {
                self.arbiter.sent(Turn::Own);
                if !cut.last {
                    self.offset = cut.offset.saturating_add(cut.len);
                    return Sent::Nothing;
                }
                self.offset = 0;
                self.sent_own(end)
            }
        }
    }

    fn sent_rtr(&mut self, end: u64) -> Sent<B> {
        match self.rtr.take() {
            Some(Rtr::Send) => take_msn(&mut self.send_msn),
            Some(Rtr::Read) => {
                take_msn(&mut self.request_msn);
                self.rtr_outstanding = true;
                return Sent::Requested(Expected {
                    operation: None,
                    what: ExpectedAnswer::Read {
                        sink_stag: RTR_READ.sink_stag,
                        sink_offset: RTR_READ.sink_offset,
                        len: RTR_READ.len,
                    },
                    requested: end,
                });
            }
            Some(Rtr::Write) | None => 0,
        };
        Sent::Nothing
    }

    fn sent_own(&mut self, end: u64) -> Sent<B> {
        let Some(entry) = self.queue.current() else { return Sent::Nothing };
        match entry.kind {
            OperationKind::Send { .. } => {
                let msn = take_msn(&mut self.send_msn);
                self.queue.sent(end, Some(msn));
                Sent::Nothing
            }
            OperationKind::Write { .. } => {
                self.queue.sent(end, None);
                Sent::Nothing
            }
            OperationKind::Local => Sent::Nothing,
            OperationKind::WriteImmediate { .. } => {
                match self.part {
                    Part::Message => self.part = Part::Immediate,
                    Part::Immediate => {
                        self.part = Part::Message;
                        let msn = take_msn(&mut self.send_msn);
                        self.queue.sent(end, Some(msn));
                    }
                }
                Sent::Nothing
            }
            OperationKind::Read { sink_stag, sink_offset, .. } => {
                let what = ExpectedAnswer::Read { sink_stag, sink_offset, len: entry.len };
                let msn = take_msn(&mut self.request_msn);
                let operation = self.queue.requested(msn);
                Sent::Requested(Expected { operation, what, requested: end })
            }
            OperationKind::Atomic { .. } => {
                let msn = take_msn(&mut self.request_msn);
                let what = ExpectedAnswer::Atomic { id: msn };
                let operation = self.queue.requested(msn);
                Sent::Requested(Expected { operation, what, requested: end })
            }
        }
    }

    /// The present operation cannot be sent.
    pub(crate) fn own_failed(&mut self, error: LocalError) {
        let verdict = match error {
            LocalError::NoOrd | LocalError::WorkRefused => Outcome::LocalOperation,
            LocalError::Source(fault) | LocalError::Sink(fault) | LocalError::Receive(fault) => {
                local_outcome(fault)
            }
        };
        self.queue.condemn_current(verdict);
    }

    /// The present response cannot be made any more: what a Terminate tells of it.
    pub(crate) fn response_failed(&self) -> Option<Culprit> {
        self.responses.front().map(Response::culprit)
    }

    /// The memory of an operation that is on its way is gone.
    pub(crate) fn source_lost(&mut self, op: u64) {
        self.queue.condemn(op, Outcome::LocalProtection);
    }

    /// The answer to a Read or Atomic is complete.
    pub(crate) fn answered(&mut self, operation: Option<(u64, B)>) {
        match operation {
            Some((id, buffer)) => self.queue.answered(id, buffer),
            None => self.rtr_outstanding = false,
        }
    }

    /// A Read or Atomic whose answer will not come, with its own outcome if it is the culprit.
    pub(crate) fn unanswered(&mut self, operation: Option<(u64, B)>, verdict: Option<Outcome>) {
        if let Some((id, buffer)) = operation {
            self.queue.give_back(id, buffer, verdict);
        }
    }

    /// Takes the next operation that completed.
    #[inline]
    pub(crate) fn retire(&mut self, transmitted: u64) -> Option<Done<B>> {
        self.queue.retire(transmitted)
    }

    /// As [`retire`](Self::retire), for what has no other outcome than success.
    #[inline]
    pub(crate) fn retire_success(&mut self, transmitted: u64) -> Option<(B, u32)> {
        self.queue.retire_success(transmitted)
    }

    /// Takes the next operation, complete or not.
    pub(crate) fn flush(&mut self) -> Option<Done<B>> {
        self.queue.flush()
    }
}

/// How an operation or receive ends whose own buffer fails.
pub(crate) const fn local_outcome(fault: LocalFault) -> Outcome {
    match fault {
        LocalFault::Protection => Outcome::LocalProtection,
        LocalFault::Length => Outcome::LocalLength,
    }
}

#[allow(clippy::cast_possible_truncation, reason = "28")]
const READ_REQUEST_LEN_U32: u32 = READ_REQUEST_LEN as u32;
#[allow(clippy::cast_possible_truncation, reason = "52")]
const ATOMIC_REQUEST_LEN_U32: u32 = ATOMIC_REQUEST_LEN as u32;
#[allow(clippy::cast_possible_truncation, reason = "8")]
const IMMEDIATE_LEN_U32: u32 = IMMEDIATE_LEN as u32;

/// The Read that serves as RTR (RFC 6581 §9.2).
const RTR_READ: ReadRequest = ReadRequest {
    sink_stag: RTR_STAG,
    sink_offset: 0,
    len: 0,
    source_stag: RTR_STAG,
    source_offset: 0,
};

fn read_request<B>(entry: &Entry<B>) -> Option<ReadRequest> {
    let OperationKind::Read { sink_stag, sink_offset, source_stag, source_offset } = entry.kind
    else {
        return None;
    };
    Some(ReadRequest { sink_stag, sink_offset, len: entry.len, source_stag, source_offset })
}

/// A body of these octets and nothing else.
fn octets_body<'a, B, const LEN: usize>(body: &[u8; LEN]) -> Body<'a, B> {
    const { assert!(LEN <= TERMINATE_MAX, "bodies are no longer than a Terminate") };
    let mut octets = [0; TERMINATE_MAX];
    if let Some(front) = octets.first_chunk_mut() {
        *front = *body;
    }
    Body::Octets(octets)
}

/// The present number of a queue; the next one is one more, modulo 2^32.
fn take_msn(msn: &mut u32) -> u32 {
    // DDP-022, DDP-032
    let next = msn.wrapping_add(1);
    std::mem::replace(msn, next)
}
