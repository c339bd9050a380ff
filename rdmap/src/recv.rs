//! The receiving half of a stream: what a ULPDU of the peer means, and whether it may.
//!
//! The [`Receiver`] owns the receive that is being filled, the list of own Reads and Atomics whose answers are to
//! come, and the count of the peer's that are not answered. The checks of one segment are made in the order
//! of conformance §11, and the first that fails counts: header, DDP version, RDMAP version, opcode, T bit; then
//! untagged: queue, (opcode of the open message,) MSN, buffer, MO, length; tagged: `STag`, stream, rights, wrap,
//! bounds; then what the opcode asks for. Nothing is placed by a segment that is refused.

use std::collections::VecDeque;

use iwarp_ddp::{
    Position, Segment, Stag, TAGGED_HEADER_LEN, TaggedError, TaggedSegment, UntaggedError,
    UntaggedQueue, UntaggedSegment,
};
use iwarp_mpa::{Rtr, Unfinished};

use crate::atomic::{AtomicRequest, AtomicResponse};
use crate::config::StreamConfig;
use crate::error::{BadTerminate, Error, LocalError, OperationError, ProtectionError};
use crate::memory::{Memory, Receive, Sink};
use crate::message::ReadRequest;
use crate::opcode::{Opcode, queue as qn};
use crate::operation::Outcome;
use crate::send::{Answer, Expected, ExpectedAnswer, Response, local_outcome};
use crate::terminate::{Culprit, DdpHeader, Terminate};
use crate::wire::{Control, IMMEDIATE_LEN};

#[derive(Debug)]
pub(crate) struct Receiver<B> {
    sends: UntaggedQueue,
    requests: UntaggedQueue,
    terminates: UntaggedQueue,
    atomics: UntaggedQueue,
    /// The message on queue 0 that is not complete.
    message: Option<Message<B>>,
    write: PeerWrite,
    /// Own Reads and Atomics in the order of their requests: so they are answered.
    expected: VecDeque<Expected<B>>,
    /// Octets of the front Read's response that were placed.
    read_placed: u32,
    ird: usize,
    /// Read Requests and Atomic Requests of the peer that are not answered.
    unanswered: usize,
    /// One of them is the RTR, which takes no place of the others.
    rtr_unanswered: bool,
    /// The RTR that is due as the very first message.
    expected_rtr: Option<Rtr>,
    strict: bool,
    extensions: bool,
}

/// Octets of the peer's Write that came last.
#[derive(Clone, Copy, Debug)]
enum PeerWrite {
    /// More of it is to come.
    Open(u32),
    /// It is complete. 0 if another request of the peer came behind it.
    Ended(u32),
}

/// The own Read that a segment of a response belongs to.
struct Due<'a, B> {
    /// Number and buffer; `None` for an RTR.
    operation: Option<&'a (u64, B)>,
    /// Octets that are placed with the segment.
    end: u32,
}

#[derive(Debug)]
struct Message<B> {
    opcode: Opcode,
    receive: Receive<B>,
}

/// What a ULPDU was.
#[derive(Debug)]
pub(crate) enum Accepted<B> {
    /// Some part of a message, placed.
    Segment,
    /// A message with this opcode is complete, and nobody has to be told.
    Message(Opcode),
    /// A Send is complete, or Immediate Data.
    Received {
        opcode: Opcode,
        buffer: B,
        len: u32,
        invalidated: Option<Stag>,
        immediate: Option<[u8; IMMEDIATE_LEN]>,
    },
    /// The answer to the oldest own Read or Atomic is complete.
    Answered { opcode: Opcode, operation: Option<(u64, B)> },
    /// A Read Request or Atomic Request of the peer.
    Request { opcode: Opcode, response: Response },
    /// A Terminate of the peer.
    Terminate(Terminate),
    /// A message that finds no receive. Nothing has happened; the ULPDU is to be shown again.
    Blocked,
}

/// Why a ULPDU is refused.
#[derive(Debug)]
pub(crate) struct Refused {
    pub(crate) error: Error,
    pub(crate) culprit: Culprit,
    pub(crate) blame: Blame,
}

/// Which work request of this side is the culprit, if any, and how it ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Blame {
    Nobody,
    /// The receive that is being filled.
    Receive(Outcome),
    /// The oldest own Read or Atomic.
    Request(Outcome),
}

/// An error and its blame, before it is known what of the segment to show.
struct Fault {
    error: Error,
    blame: Blame,
    request: Option<ReadRequest>,
}

impl<E: Into<Error>> From<E> for Fault {
    fn from(error: E) -> Self {
        Self { error: error.into(), blame: Blame::Nobody, request: None }
    }
}

impl Fault {
    fn blaming(error: impl Into<Error>, blame: Blame) -> Self {
        Self { error: error.into(), blame, request: None }
    }

    #[cold]
    fn about(self, ulpdu: &[u8], placed: usize) -> Refused {
        let Self { error, blame, request } = self;
        let culprit = Culprit { read_request: request, ..Culprit::of_ulpdu(ulpdu).behind(placed) };
        Refused { error, culprit, blame }
    }
}

impl<B> Receiver<B> {
    pub(crate) fn new(config: &StreamConfig, expected_rtr: Option<Rtr>) -> Self {
        Self {
            sends: UntaggedQueue::with_next_msn(config.first_msn),
            requests: UntaggedQueue::with_next_msn(config.first_msn),
            terminates: UntaggedQueue::new(),
            atomics: UntaggedQueue::with_next_msn(config.first_msn),
            message: None,
            write: PeerWrite::Ended(0),
            expected: VecDeque::new(),
            read_placed: 0,
            ird: usize::try_from(config.ird).unwrap_or(usize::MAX),
            unanswered: 0,
            rtr_unanswered: false,
            expected_rtr,
            strict: config.strict_receive,
            extensions: config.extensions,
        }
    }

    /// An answer to this is to be expected, behind those of all before it.
    pub(crate) fn expect(&mut self, expected: Expected<B>) {
        self.expected.push_back(expected);
    }

    /// A request of the peer was answered, up to its last octet.
    pub(crate) fn answered(&mut self) {
        self.unanswered = self.unanswered.saturating_sub(1);
        self.rtr_unanswered = false; // It was the first of all.
    }

    /// Whether a message of the peer has begun and not ended.
    pub(crate) const fn is_inside_message(&self) -> bool {
        self.message.is_some() || matches!(self.write, PeerWrite::Open(_))
    }

    /// The receive that is being filled: it will not be filled any more.
    pub(crate) fn take_message(&mut self) -> Option<B> {
        self.message.take().map(|message| message.receive.buffer)
    }

    /// The next own Read or Atomic: its answer will not come any more.
    pub(crate) fn take_expected(&mut self) -> Option<Expected<B>> {
        self.expected.pop_front()
    }

    /// Checks one ULPDU and carries out what it says. Of its payload, `placed` octets are in memory already
    /// ([`straight`](Self::straight)) and not in `ulpdu`. `transmitted` is the stream position up to which TCP
    /// accepted what this side sends.
    #[inline]
    pub(crate) fn accept<M: Memory<B>>(
        &mut self,
        ulpdu: &[u8],
        placed: usize,
        memory: &mut M,
        transmitted: u64,
    ) -> Result<Accepted<B>, Refused> {
        match self.dispatch(ulpdu, placed, memory, transmitted) {
            Ok(accepted) => Ok(accepted),
            Err(fault) => Err(fault.about(ulpdu, placed)),
        }
    }

    /// Where the rest of the payload of a ULPDU goes of which only the front is there: header, and perhaps
    /// some payload, of which `placed` octets are in memory already. `None` if this side does not want it, or
    /// cannot say yet: then all of it is awaited.
    pub(crate) fn straight(
        &self,
        unfinished: &Unfinished<'_>,
        transmitted: u64,
    ) -> Option<(Sink<'_, B>, usize)> {
        let Ok(Segment::Tagged(segment)) = Segment::parse(unfinished.ulpdu) else { return None };
        let control = Control::from_octet(segment.rsvd_ulp);
        if !control.has_our_version() {
            return None;
        }
        let placed = unfinished.passed_by;
        let len = unfinished.ulpdu_len.checked_sub(TAGGED_HEADER_LEN)?;
        match Opcode::from_raw(control.opcode())? {
            Opcode::Write => {
                let offset = segment.offset.checked_add(placed as u64)?;
                Some((Sink::Tagged { stag: segment.stag, offset }, len.checked_sub(placed)?))
            }
            Opcode::ReadResponse => {
                let due = self.due_response(&segment, len, transmitted).ok()?;
                let (_, buffer) = due.operation?;
                let offset = u64::from(self.read_placed).saturating_add(placed as u64);
                Some((Sink::Local { buffer, offset }, len.checked_sub(placed)?))
            }
            _ => None,
        }
    }

    #[inline]
    fn dispatch<M: Memory<B>>(
        &mut self,
        ulpdu: &[u8],
        placed: usize,
        memory: &mut M,
        transmitted: u64,
    ) -> Result<Accepted<B>, Fault> {
        // RDMAP-076, FC-016: whatever fails here relies on no state but the segment's own.
        let segment = Segment::parse(ulpdu)?;
        let control = Control::from_octet(segment.rsvd_ulp());
        // RDMAP-075
        if !control.has_our_version() {
            return Err(OperationError::Version(control.version()).into());
        }
        let number = control.opcode();
        // RDMAP-074. EXT-02: where the opcodes of RFC 7306 are not served, the peer learns it so.
        let opcode = match Opcode::from_raw(number) {
            Some(opcode) if self.extensions || !opcode.is_extension() => opcode,
            _ => return Err(OperationError::Opcode(number).into()),
        };
        // Whatever comes first, an RTR comes no later.
        let first = self.expected_rtr.take();
        match (segment, opcode) {
            (Segment::Tagged(segment), Opcode::Write) => self.write(segment, placed, memory),
            (Segment::Tagged(segment), Opcode::ReadResponse) => {
                self.read_response(&segment, placed, memory, transmitted)
            }
            (Segment::Untagged(segment), opcode) if opcode.is_send() => {
                self.send(&segment, opcode, first, memory)
            }
            (Segment::Untagged(segment), opcode) if opcode.is_immediate() => {
                self.immediate(&segment, opcode, memory)
            }
            (Segment::Untagged(segment), Opcode::ReadRequest) => {
                self.read_request(&segment, first, memory)
            }
            (Segment::Untagged(segment), Opcode::AtomicRequest) => {
                self.atomic_request(&segment, memory)
            }
            (Segment::Untagged(segment), Opcode::AtomicResponse) => {
                self.atomic_response(&segment, memory, transmitted)
            }
            (Segment::Untagged(segment), Opcode::Terminate) => self.terminate(&segment),
            (Segment::Tagged(_), Opcode::Terminate) => Err(BadTerminate::Tagged.into()),
            // RDMAP-003, DDP-010, RDMAP-010
            _ => Err(OperationError::TagMismatch(number).into()),
        }
    }

    #[inline]
    fn write<M: Memory<B>>(
        &mut self,
        mut segment: TaggedSegment<'_>,
        placed: usize,
        memory: &mut M,
    ) -> Result<Accepted<B>, Fault> {
        segment.offset = segment.offset.wrapping_add(placed as u64);
        // DDP-017; DDP-030: an empty one is not checked.
        segment.place(memory)?;
        let before = match self.write {
            PeerWrite::Open(octets) => octets,
            PeerWrite::Ended(_) => 0,
        };
        let len = segment.payload.len().saturating_add(placed);
        let len = u32::try_from(len).unwrap_or(u32::MAX);
        let octets = before.saturating_add(len);
        // RDMAP-011: nobody is told.
        Ok(if segment.last {
            self.write = PeerWrite::Ended(octets);
            Accepted::Message(Opcode::Write)
        } else {
            self.write = PeerWrite::Open(octets);
            Accepted::Segment
        })
    }

    #[inline]
    fn send<M: Memory<B>>(
        &mut self,
        segment: &UntaggedSegment<'_>,
        opcode: Opcode,
        rtr: Option<Rtr>,
        memory: &mut M,
    ) -> Result<Accepted<B>, Fault> {
        // RDMAP-040
        segment.check_queue(qn::SEND)?;
        if let Some(open) = &self.message
            && open.opcode != opcode
        {
            let (open, found) = (open.opcode.raw(), opcode.raw());
            return Err(OperationError::OpcodeChanged { open, found }.into());
        }
        if self.sends.check_msn(segment)? == Position::First {
            if is_rtr(segment, opcode, rtr) {
                self.sends.check_placement(segment, 0)?;
                self.sends.placed(segment);
                return Ok(Accepted::Message(opcode));
            }
            if !self.take_receive(opcode, memory)? {
                return Ok(Accepted::Blocked);
            }
        }
        let Some(message) = &self.message else { return Err(UntaggedError::NoBuffer.into()) };
        let receive = &message.receive;
        let offset = self.sends.check_placement(segment, receive.capacity).map_err(|error| {
            // RDMAP-042
            let too_long = error == UntaggedError::TooLong;
            let outcome = if too_long { Outcome::LocalLength } else { Outcome::Flushed };
            Fault::blaming(error, Blame::Receive(outcome))
        })?;
        if !segment.payload.is_empty() {
            memory.place_local(&receive.buffer, offset, segment.payload).map_err(|fault| {
                Fault::blaming(LocalError::Receive(fault), Blame::Receive(local_outcome(fault)))
            })?;
        }
        let Some(len) = self.sends.placed(segment) else { return Ok(Accepted::Segment) };
        self.forget_write();
        let mut invalidated = None;
        if opcode.invalidates() {
            // RDMAP-046, FC-062: placed is all, completed nothing, and a refusal changes nothing.
            let stag = Stag::from_raw(segment.rsvd_ulp_word);
            memory.invalidate(stag).map_err(|refusal| {
                Fault::blaming(refusal, Blame::Receive(Outcome::InvalidateRefused))
            })?;
            invalidated = Some(stag);
        }
        let Some(buffer) = self.take_message() else { return Ok(Accepted::Message(opcode)) };
        // ORD-07, RDMAP-014, DDP-013, DDP-037, RDMAP-041
        Ok(Accepted::Received { opcode, buffer, len, invalidated, immediate: None })
    }

    /// Takes a receive for a message that begins; `false` if it is held back for want of one.
    #[inline]
    fn take_receive<M: Memory<B>>(
        &mut self,
        opcode: Opcode,
        memory: &mut M,
    ) -> Result<bool, UntaggedError> {
        // DDP-051, DDP-062
        match memory.take_receive() {
            Some(receive) => {
                self.message = Some(Message { opcode, receive });
                Ok(true)
            }
            None if self.strict || self.waits_for_response() => Err(UntaggedError::NoBuffer),
            None => Ok(false),
        }
    }

    /// The peer's last Write is not the last request any more.
    #[inline]
    const fn forget_write(&mut self) {
        if let PeerWrite::Ended(octets) = &mut self.write {
            *octets = 0;
        }
    }

    /// Immediate Data: a message among the Sends, of which nothing is placed.
    fn immediate<M: Memory<B>>(
        &mut self,
        segment: &UntaggedSegment<'_>,
        opcode: Opcode,
        memory: &mut M,
    ) -> Result<Accepted<B>, Fault> {
        // EXT-30, EXT-01: what a Send with Invalidate has in its header is not looked at.
        segment.check_queue(qn::SEND)?;
        if let Some(open) = &self.message {
            let (open, found) = (open.opcode.raw(), opcode.raw());
            return Err(OperationError::OpcodeChanged { open, found }.into());
        }
        self.sends.check_msn(segment)?;
        if !self.take_receive(opcode, memory)? {
            return Ok(Accepted::Blocked);
        }
        self.sends.check_placement(segment, u64::MAX)?;
        if !segment.last {
            return Err(OperationError::NotLast.into());
        }
        let immediate = segment.payload.try_into().map_err(|_| {
            let len = segment.payload.len();
            Fault::blaming(
                OperationError::ImmediateLength { len },
                Blame::Receive(Outcome::LocalLength),
            )
        })?;
        self.sends.placed(segment);
        let len = match self.write {
            PeerWrite::Ended(octets) => octets,
            PeerWrite::Open(_) => 0,
        };
        self.forget_write();
        let Some(buffer) = self.take_message() else { return Ok(Accepted::Message(opcode)) };
        // EXT-31, EXT-32, EXT-33, ORD-21: all that came before is placed by now.
        Ok(Accepted::Received {
            opcode,
            buffer,
            len,
            invalidated: None,
            immediate: Some(immediate),
        })
    }

    /// Own Reads or Atomics are under way whose answers would sit behind a Send that is held back. An RTR by Read
    /// is none of them: nobody waits for its response.
    fn waits_for_response(&self) -> bool {
        let is_rtr = |expected: &Expected<B>| expected.operation.is_none();
        self.expected.len() > usize::from(self.expected.front().is_some_and(is_rtr))
    }

    fn read_request<M: Memory<B>>(
        &mut self,
        segment: &UntaggedSegment<'_>,
        rtr: Option<Rtr>,
        memory: &mut M,
    ) -> Result<Accepted<B>, Fault> {
        self.check_request(segment, rtr)?;
        let len = segment.payload.len();
        let request =
            ReadRequest::parse(segment.payload).ok_or(OperationError::RequestLength { len })?;
        // RDMAP-025, RDMAP-027: of an empty Read nothing is checked.
        if request.len > 0 {
            // RDMAP-026, RDMAP-078
            memory.check_tagged(request.source_stag, request.source_offset, request.len).map_err(
                |refusal| Fault {
                    error: ProtectionError::from(refusal).into(),
                    blame: Blame::Nobody,
                    request: Some(request),
                },
            )?;
        }
        // RDMAP-020, RDMAP-022, RDMAP-023, RDMAP-024. ORD-09: all that came before is placed by now. ORD-10:
        // the memory is read when the response goes out.
        let response = self.request_taken(segment, Answer::Read { request, sent: 0 });
        Ok(Accepted::Request { opcode: Opcode::ReadRequest, response })
    }

    /// The checks that Read Requests and Atomic Requests have in common.
    fn check_request(
        &mut self,
        segment: &UntaggedSegment<'_>,
        rtr: Option<Rtr>,
    ) -> Result<(), Fault> {
        // RDMAP-021, EXT-10
        segment.check_queue(qn::READ_REQUEST)?;
        self.requests.check_msn(segment)?;
        // RDMAP-031, RDMAP-061, EXT-16, SEC-10, SEC-11. CONN-14: a Read that is the RTR has a place of its
        // own.
        self.rtr_unanswered |= rtr == Some(Rtr::Read);
        let places = self.ird.saturating_add(usize::from(self.rtr_unanswered));
        if self.unanswered >= places {
            return Err(UntaggedError::NoBuffer.into());
        }
        // RDMAP-081
        self.requests.check_placement(segment, u64::MAX)?;
        if segment.last { Ok(()) } else { Err(OperationError::NotLast.into()) }
    }

    /// A request passed all checks, and is to be answered.
    fn request_taken(&mut self, segment: &UntaggedSegment<'_>, answer: Answer) -> Response {
        self.requests.placed(segment);
        self.forget_write();
        self.unanswered = self.unanswered.saturating_add(1);
        let header = DdpHeader::from_front(segment.header);
        Response { answer, header, ulpdu_len: segment.ulpdu_len }
    }

    fn atomic_request<M: Memory<B>>(
        &mut self,
        segment: &UntaggedSegment<'_>,
        memory: &mut M,
    ) -> Result<Accepted<B>, Fault> {
        self.check_request(segment, None)?;
        let request = AtomicRequest::parse(segment.payload)?;
        // EXT-08, EXT-20. EXT-21: no header of the request is shown.
        memory.check_atomic(request.stag, request.offset)?;
        // EXT-12. ORD-18: all that came before is placed by now, and Reads that are not answered yet are
        // answered before this is carried out.
        let response = self.request_taken(segment, Answer::Atomic(request));
        Ok(Accepted::Request { opcode: Opcode::AtomicRequest, response })
    }

    fn atomic_response<M: Memory<B>>(
        &mut self,
        segment: &UntaggedSegment<'_>,
        memory: &mut M,
        transmitted: u64,
    ) -> Result<Accepted<B>, Fault> {
        // EXT-11, EXT-17
        segment.check_queue(qn::ATOMIC_RESPONSE)?;
        self.atomics.check_msn(segment)?;
        self.atomics.check_placement(segment, u64::MAX)?;
        if !segment.last {
            return Err(OperationError::NotLast.into());
        }
        let response = AtomicResponse::parse(segment.payload)?;
        let unmatched = OperationError::AtomicUnmatched { id: response.id };
        // EXT-18: the oldest request of all is the one that is answered.
        let expected = match self.expected.front() {
            Some(expected) if expected.requested <= transmitted => expected,
            _ => return Err(unmatched.into()),
        };
        match expected.what {
            ExpectedAnswer::Atomic { id } if id == response.id => {}
            ExpectedAnswer::Atomic { .. } => {
                return Err(Fault::blaming(unmatched, Blame::Request(Outcome::BadResponse)));
            }
            ExpectedAnswer::Read { .. } => return Err(unmatched.into()),
        }
        if let Some((_, buffer)) = &expected.operation {
            // EXT-09: a number of this host.
            memory.place_local(buffer, 0, &response.original.to_ne_bytes()).map_err(|fault| {
                Fault::blaming(LocalError::Sink(fault), Blame::Request(local_outcome(fault)))
            })?;
        }
        self.atomics.placed(segment);
        // ORD-17
        let operation = self.expected.pop_front().and_then(|expected| expected.operation);
        Ok(Accepted::Answered { opcode: Opcode::AtomicResponse, operation })
    }

    #[inline]
    fn read_response<M: Memory<B>>(
        &mut self,
        segment: &TaggedSegment<'_>,
        placed: usize,
        memory: &mut M,
        transmitted: u64,
    ) -> Result<Accepted<B>, Fault> {
        let len = segment.payload.len().saturating_add(placed);
        let Due { operation, end } = self.due_response(segment, len, transmitted)?;
        if let Some((_, buffer)) = operation
            && !segment.payload.is_empty()
        {
            let offset = u64::from(self.read_placed).saturating_add(placed as u64);
            memory.place_local(buffer, offset, segment.payload).map_err(|fault| {
                Fault::blaming(LocalError::Sink(fault), Blame::Request(local_outcome(fault)))
            })?;
        }
        if !segment.last {
            self.read_placed = end;
            return Ok(Accepted::Segment);
        }
        self.read_placed = 0;
        // RDMAP-033, ORD-08, ORD-16
        let operation = self.expected.pop_front().and_then(|expected| expected.operation);
        Ok(Accepted::Answered { opcode: Opcode::ReadResponse, operation })
    }

    /// The Read that a segment of a response with `len` octets of payload belongs to, and how many of its
    /// octets there are with them.
    #[inline]
    fn due_response(
        &self,
        segment: &TaggedSegment<'_>,
        len: usize,
        transmitted: u64,
    ) -> Result<Due<'_, B>, Fault> {
        // RDMAP-035. A peer that answers what was not sent yet answers something else.
        let (operation, sink_stag, sink_offset, owed) = match self.expected.front() {
            Some(&Expected {
                ref operation,
                what: ExpectedAnswer::Read { sink_stag, sink_offset, len },
                requested,
            }) if requested <= transmitted => (operation, sink_stag, sink_offset, len),
            _ => return Err(TaggedError::InvalidStag.into()),
        };
        let bad = |error: TaggedError| Fault::blaming(error, Blame::Request(Outcome::BadResponse));
        let placed = self.read_placed;
        // RDMAP-034, decision D8: exactly what was asked for. DDP-030: what an empty segment names is not
        // looked at.
        if len > 0 {
            if segment.stag != sink_stag {
                return Err(bad(TaggedError::InvalidStag));
            }
            if segment.offset != sink_offset.wrapping_add(u64::from(placed)) {
                return Err(bad(TaggedError::Bounds));
            }
        }
        // FC-017, SEC-23: not one octet more than is owed, and at L not one less.
        let end = u32::try_from(len)
            .ok()
            .and_then(|len| placed.checked_add(len))
            .filter(|&end| end <= owed && (end == owed || !segment.last))
            .ok_or_else(|| bad(TaggedError::Bounds))?;
        Ok(Due { operation: operation.as_ref(), end })
    }

    fn terminate(&mut self, segment: &UntaggedSegment<'_>) -> Result<Accepted<B>, Fault> {
        segment
            .check_queue(qn::TERMINATE)
            .and_then(|()| self.terminates.check_msn(segment))
            .and_then(|_| self.terminates.check_placement(segment, u64::MAX))
            .map_err(BadTerminate::Segment)?;
        if !segment.last {
            return Err(BadTerminate::NotLast.into());
        }
        // RDMAP-052
        Ok(Accepted::Terminate(Terminate::parse(segment.payload)?))
    }
}

/// Whether this is the Send that serves as RTR. It fills no receive: nobody posted one for it, and
/// nobody is to see it (FC-009, FC-036).
fn is_rtr(segment: &UntaggedSegment<'_>, opcode: Opcode, rtr: Option<Rtr>) -> bool {
    rtr == Some(Rtr::Send) && opcode == Opcode::Send && segment.last && segment.payload.is_empty()
}
