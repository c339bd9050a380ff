//! RDMAP: what a ULPDU does to a stream is what RFC 5040, RFC 5041 and RFC 7306 say, with all that came before it.
//!
//! One side has a Read of 100 octets and an Atomic under way, two receives of 64 octets posted, room for two requests,
//! and memory of each kind. The model below does with each ULPDU what the standards ask for, in the order of checks
//! that `rdmap/src/recv.rs` names; memory, what was received and the octets of the Terminate have to be the same.
//!
//! Input: an octet of flags (1: strict receives; 2: without extensions; 4: nothing is under way; 8: the Atomic was first;
//! 16: requests are answered at once), then ULPDUs, each behind an octet of its length.

use std::collections::VecDeque;

use iwarp_ddp::Stag;
use iwarp_mpa::Role;
use iwarp_rdmap::{
    AtomicOperation, AtomicRequest, AtomicResponse, Event, Need, Opcode, OperationKind, Outcome,
    ReadRequest, StreamConfig,
};

use crate::bytes::Bytes;
use crate::common::endpoint::{Endpoint, OPEN, SINK, atomic, read};
use crate::common::memory::{Buf, Region, TestMemory};
use crate::common::peer::{Peer, Seen, seen};
use crate::common::vectors::expected_terminate;
use crate::common::{CRC, config};

const FOREIGN: u32 = 0x00be_ef02;
const LOCAL: u32 = 0x00be_ef03;
const BASE: u64 = 0x1000;
const OPEN_LEN: u64 = 4096;
/// Where receives and the buffers of this side's operations lie.
const RECEIVES: [usize; 2] = [4224, 4352];
const RECEIVE_LEN: usize = 64;
const READ: Buf = Buf { id: 0, at: 4480, len: 100 };
const ATOMIC: Buf = Buf { id: 1, at: 4608, len: 8 };
const MEMORY_LEN: usize = 4736;

/// ULPDUs of a peer, one after the other.
pub fn rdmap(input: &[u8]) {
    let mut input = Bytes::new(input);
    let flags = input.u8();
    let mut config = config(Role::Initiator);
    config.strict_receive = flags & 1 != 0;
    config.extensions = flags & 2 == 0;
    let mut endpoint = endpoint(config);
    let mut model = Model::new(config);
    if flags & 4 == 0 {
        begin(&mut endpoint, &mut model, flags & 8 != 0);
    }
    let answers = flags & 16 != 0;
    let mut peer = Peer::new(CRC);
    let mut events = Vec::new();
    while !input.is_empty() {
        let ulpdu = input.counted();
        let verdict = model.accept(ulpdu);
        endpoint.feed(&peer.frame(ulpdu));
        events.extend(endpoint.events());
        let is_over = !endpoint.stream.state().receives();
        assert_eq!(is_over, !matches!(verdict, Verdict::Fine | Verdict::Blocked), "{verdict:?}");
        assert_eq!(endpoint.need == Some(Need::Receive), verdict == Verdict::Blocked);
        match verdict {
            Verdict::Fine if answers => {
                let answered = seen(&endpoint.transmit());
                for fpdu in &answered {
                    model.answered(fpdu);
                }
                assert!(model.unanswered.is_empty(), "a request without an answer");
            }
            Verdict::Fine => {}
            Verdict::Blocked => break,
            Verdict::Silent => {
                assert!(endpoint.transmit().is_empty(), "a Terminate was answered");
                break;
            }
            Verdict::Fault(layer, etype, code) => {
                let expected = expected_terminate((layer, etype, code), ulpdu);
                let sent = endpoint.transmit();
                let ours = seen(&sent).pop().expect("a Terminate");
                let theirs = seen(&expected).pop().expect("a Terminate");
                assert_eq!(ours.ulpdu, theirs.ulpdu);
                break;
            }
        }
        assert!(model.memory == endpoint.memory.bytes, "memory differs");
    }
    assert!(model.memory == endpoint.memory.bytes, "memory differs at the end");
    events.extend(endpoint.events());
    let received: Vec<_> = events.iter().filter_map(received).collect();
    assert_eq!(received, model.received);
}

fn endpoint(config: StreamConfig) -> Endpoint {
    let mut memory = TestMemory::new(MEMORY_LEN);
    memory.bytes = octets();
    memory.regions = vec![
        Region::new(OPEN, BASE, 0, OPEN_LEN),
        Region::new(FOREIGN, BASE, 0, OPEN_LEN).foreign(),
        Region::new(LOCAL, BASE, 0, OPEN_LEN).local(),
    ];
    for (id, at) in (1000..).zip(RECEIVES) {
        memory.post(id, at, RECEIVE_LEN);
    }
    Endpoint::new(config, memory)
}

fn octets() -> Vec<u8> {
    (0..MEMORY_LEN).map(|at| (at % 241) as u8).collect()
}

/// The Read and the Atomic go out.
fn begin(endpoint: &mut Endpoint, model: &mut Model, atomic_first: bool) {
    let mut operations: [(Buf, OperationKind); 2] =
        [(READ, read(7, 0)), (ATOMIC, atomic(7, 0, AtomicOperation::fetch_add(1)))];
    if atomic_first {
        operations.reverse();
    }
    for (buffer, kind) in operations {
        endpoint.submit(buffer.id, kind, buffer.at, buffer.len);
    }
    for fpdu in seen(&endpoint.transmit()) {
        model.due.push_back(match fpdu.opcode {
            Opcode::ReadRequest => Due::Read,
            Opcode::AtomicRequest => {
                Due::Atomic(AtomicRequest::parse(&fpdu.payload).expect("a request").id)
            }
            other => panic!("{other:?}"),
        });
    }
}

/// A message that a receive has taken: its length, and Immediate Data.
fn received(event: &Event<Buf>) -> Option<(u64, u32, Option<[u8; 8]>)> {
    match event {
        Event::ReceiveDone { buffer, outcome: Outcome::Success, len, immediate, .. } => {
            Some((buffer.id, *len, *immediate))
        }
        _ => None,
    }
}

/// What has to become of a ULPDU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verdict {
    Fine,
    /// It waits for a receive.
    Blocked,
    /// The stream ends, and the peer is not told.
    Silent,
    /// The stream ends with this Terminate: layer, type, code.
    Fault(u8, u8, u8),
}

#[derive(Clone, Copy, Debug)]
enum Due {
    Read,
    Atomic(u32),
}

/// What a request of the peer asks for.
#[derive(Clone, Copy, Debug)]
enum Answer {
    Read { at: usize, left: usize },
    Atomic { at: usize, request: AtomicRequest },
}

/// What a receiver has to keep in mind, by the standards.
struct Model {
    memory: Vec<u8>,
    strict: bool,
    extensions: bool,
    open_is_valid: bool,
    /// Numbers of the next messages on queues 0, 1 and 3.
    send_msn: u32,
    request_msn: u32,
    atomic_msn: u32,
    /// Opcode and octets of the Send that is not complete.
    message: Option<(u8, usize)>,
    receives: usize,
    unanswered: VecDeque<Answer>,
    due: VecDeque<Due>,
    read: usize,
    /// The peer's Write: whether more of it is to come, and its octets.
    write: (bool, u32),
    received: Vec<(u64, u32, Option<[u8; 8]>)>,
}

/// A segment, field by field.
#[derive(Clone, Copy)]
struct Fields<'a> {
    opcode: u8,
    last: bool,
    word: u32,
    queue: u32,
    msn: u32,
    mo: u32,
    to: u64,
    payload: &'a [u8],
}

const TAG_MISMATCH: Verdict = Verdict::Fault(0, 2, 6);
const NOT_LAST: Verdict = Verdict::Fault(0, 2, 7);
const WRONG_LENGTH: Verdict = Verdict::Fault(0, 2, 0xff);
const BAD_MSN: Verdict = Verdict::Fault(1, 2, 3);
const BAD_MO: Verdict = Verdict::Fault(1, 2, 4);
const NO_BUFFER: Verdict = Verdict::Fault(1, 2, 2);
const BAD_QUEUE: Verdict = Verdict::Fault(1, 2, 1);

/// `Err` is what became of it early.
type Checked<T> = Result<T, Verdict>;

fn ensure(holds: bool, verdict: Verdict) -> Checked<()> {
    if holds { Ok(()) } else { Err(verdict) }
}

impl Model {
    fn new(config: StreamConfig) -> Self {
        Self {
            memory: octets(),
            strict: config.strict_receive,
            extensions: config.extensions,
            open_is_valid: true,
            send_msn: 1,
            request_msn: 1,
            atomic_msn: 1,
            message: None,
            receives: 0,
            unanswered: VecDeque::new(),
            due: VecDeque::new(),
            read: 0,
            write: (false, 0),
            received: Vec::new(),
        }
    }

    fn accept(&mut self, ulpdu: &[u8]) -> Verdict {
        self.dispatch(ulpdu).map_or_else(|verdict| verdict, |()| Verdict::Fine)
    }

    fn dispatch(&mut self, ulpdu: &[u8]) -> Checked<()> {
        let tagged = ulpdu.first().is_some_and(|octet| octet & 0x80 != 0);
        let header_len = if tagged { 14 } else { 18 };
        ensure(ulpdu.len() >= header_len, Verdict::Fault(1, 0, 0))?;
        let (control, rdmap) = (ulpdu[0], ulpdu[1]);
        let version = if tagged { Verdict::Fault(1, 1, 4) } else { Verdict::Fault(1, 2, 6) };
        ensure(control & 3 == 1, version)?;
        ensure(rdmap >> 6 == 1, Verdict::Fault(0, 2, 5))?;
        let opcode = rdmap & 0x0f;
        ensure(opcode < if self.extensions { 12 } else { 8 }, TAG_MISMATCH)?;
        let number = |at: usize, len: usize| {
            ulpdu[at..at + len].iter().fold(0_u64, |sum, octet| sum << 8 | u64::from(*octet))
        };
        let word = |at| if tagged { 0 } else { number(at, 4) as u32 };
        let fields = Fields {
            opcode,
            last: control & 0x40 != 0,
            word: number(2, 4) as u32,
            queue: word(6),
            msn: word(10),
            mo: word(14),
            to: if tagged { number(6, 8) } else { 0 },
            payload: &ulpdu[header_len..],
        };
        match (opcode, tagged) {
            (0, true) => self.write(&fields),
            (2, true) => self.response(&fields),
            (3..=6, false) => self.send(&fields),
            (8 | 9, false) => self.immediate(&fields),
            (1, false) => self.request(&fields),
            (10, false) => self.atomic(&fields),
            (11, false) => self.atomic_response(&fields),
            // RDMAP-054, RDMAP-056: right or wrong.
            (7, _) => Err(Verdict::Silent),
            _ => Err(TAG_MISMATCH),
        }
    }

    /// Where octets lie that the peer names. The numbers are those of the refusals: `STag`, domain, rights, wrap,
    /// bounds.
    fn find(&self, stag: u32, offset: u64, len: u64, refusals: [Verdict; 5]) -> Checked<usize> {
        let [invalid, foreign, rights, wrap, bounds] = refusals;
        match stag {
            OPEN if self.open_is_valid => {}
            FOREIGN => return Err(foreign),
            LOCAL => return Err(rights),
            _ => return Err(invalid),
        }
        ensure(offset.checked_add(len).is_some(), wrap)?;
        ensure(offset >= BASE && offset + len <= BASE + OPEN_LEN, bounds)?;
        Ok((offset - BASE) as usize)
    }

    fn place(&mut self, at: usize, payload: &[u8]) {
        self.memory[at..at + payload.len()].copy_from_slice(payload);
    }

    fn write(&mut self, fields: &Fields<'_>) -> Checked<()> {
        let len = fields.payload.len();
        if len > 0 {
            let refusals = [(1, 0), (1, 2), (1, 0), (1, 3), (1, 1)]
                .map(|(etype, code)| Verdict::Fault(1, etype, code));
            let at = self.find(fields.word, fields.to, len as u64, refusals)?;
            self.place(at, fields.payload);
        }
        let before = if self.write.0 { self.write.1 } else { 0 };
        self.write = (!fields.last, before + len as u32);
        Ok(())
    }

    fn response(&mut self, fields: &Fields<'_>) -> Checked<()> {
        let len = fields.payload.len();
        let Some(Due::Read) = self.due.front() else { return Err(Verdict::Fault(1, 1, 0)) };
        if len > 0 {
            ensure(fields.word == SINK, Verdict::Fault(1, 1, 0))?;
            ensure(fields.to == 0x2000 + self.read as u64, Verdict::Fault(1, 1, 1))?;
        }
        let end = self.read + len;
        let fits = end <= READ.len && (end == READ.len || !fields.last);
        ensure(fits, Verdict::Fault(1, 1, 1))?;
        self.place(READ.at + self.read, fields.payload);
        self.read = end;
        if fields.last {
            self.due.pop_front();
        }
        Ok(())
    }

    /// The receive for a message that begins.
    fn take_receive(&self) -> Checked<()> {
        if self.receives < RECEIVES.len() {
            return Ok(());
        }
        // A Send is not held back in front of an answer that is waited for.
        let waits = self.strict || !self.due.is_empty();
        Err(if waits { NO_BUFFER } else { Verdict::Blocked })
    }

    fn send(&mut self, fields: &Fields<'_>) -> Checked<()> {
        ensure(fields.queue == 0, BAD_QUEUE)?;
        let changed = self.message.is_some_and(|(opcode, _)| opcode != fields.opcode);
        ensure(!changed, TAG_MISMATCH)?;
        ensure(fields.msn == self.send_msn, BAD_MSN)?;
        if self.message.is_none() {
            self.take_receive()?;
            self.message = Some((fields.opcode, 0));
        }
        let placed = self.message.map_or(0, |(_, placed)| placed);
        ensure(fields.mo as usize == placed, BAD_MO)?;
        let end = placed + fields.payload.len();
        ensure(end <= RECEIVE_LEN, Verdict::Fault(1, 2, 5))?;
        self.place(RECEIVES[self.receives] + placed, fields.payload);
        if !fields.last {
            self.message = Some((fields.opcode, end));
            return Ok(());
        }
        self.send_msn += 1;
        self.forget_write();
        if matches!(fields.opcode, 4 | 6) {
            match fields.word {
                OPEN if self.open_is_valid => self.open_is_valid = false,
                FOREIGN => return Err(Verdict::Fault(0, 1, 9)),
                LOCAL => return Err(Verdict::Fault(0, 1, 2)),
                _ => return Err(Verdict::Fault(0, 2, 9)),
            }
        }
        self.complete(end as u32, None);
        Ok(())
    }

    fn complete(&mut self, len: u32, immediate: Option<[u8; 8]>) {
        self.received.push((1000 + self.receives as u64, len, immediate));
        self.receives += 1;
        self.message = None;
    }

    /// The peer's Write is not what came right before any more.
    fn forget_write(&mut self) {
        if !self.write.0 {
            self.write.1 = 0;
        }
    }

    fn immediate(&mut self, fields: &Fields<'_>) -> Checked<()> {
        ensure(fields.queue == 0, BAD_QUEUE)?;
        ensure(self.message.is_none(), TAG_MISMATCH)?;
        ensure(fields.msn == self.send_msn, BAD_MSN)?;
        self.take_receive()?;
        ensure(fields.mo == 0, BAD_MO)?;
        ensure(fields.last, NOT_LAST)?;
        let data = fields.payload.try_into().map_err(|_| Verdict::Fault(0, 2, 7))?;
        self.send_msn += 1;
        let len = if self.write.0 { 0 } else { self.write.1 };
        self.forget_write();
        self.complete(len, Some(data));
        Ok(())
    }

    /// What requests have in common.
    fn check_request(&self, fields: &Fields<'_>) -> Checked<()> {
        ensure(fields.queue == 1, BAD_QUEUE)?;
        ensure(fields.msn == self.request_msn, BAD_MSN)?;
        ensure(self.unanswered.len() < 2, NO_BUFFER)?;
        ensure(fields.mo == 0, BAD_MO)?;
        ensure(fields.last, NOT_LAST)
    }

    fn taken(&mut self, answer: Answer) {
        self.request_msn += 1;
        self.unanswered.push_back(answer);
        self.forget_write();
    }

    /// An answer has gone out, or part of one.
    fn answered(&mut self, fpdu: &Seen) {
        let answer = self.unanswered.pop_front().expect("a request");
        match (answer, fpdu.opcode) {
            (Answer::Read { at, left }, Opcode::ReadResponse) => {
                let len = fpdu.payload.len();
                assert_eq!(fpdu.payload, self.memory[at..at + len]);
                assert_eq!(fpdu.last, len == left);
                if !fpdu.last {
                    self.unanswered.push_front(Answer::Read { at: at + len, left: left - len });
                }
            }
            (Answer::Atomic { at, request }, Opcode::AtomicResponse) => {
                let octets = self.memory[at..at + 8].try_into().expect("eight octets");
                let original = u64::from_ne_bytes(octets);
                let response = AtomicResponse { id: request.id, original };
                assert_eq!(fpdu.payload, response.to_bytes());
                self.place(at, &request.operation.apply(original).to_ne_bytes());
            }
            (answer, opcode) => panic!("{opcode:?} for {answer:?}"),
        }
    }

    fn request(&mut self, fields: &Fields<'_>) -> Checked<()> {
        self.check_request(fields)?;
        let request = ReadRequest::parse(fields.payload).ok_or(WRONG_LENGTH)?;
        let mut at = 0;
        if request.len > 0 {
            let refusals = [0, 3, 2, 4, 1].map(|code| Verdict::Fault(0, 1, code));
            let stag = request.source_stag.raw();
            at = self.find(stag, request.source_offset, request.len.into(), refusals)?;
        }
        self.taken(Answer::Read { at, left: request.len as usize });
        Ok(())
    }

    fn atomic(&mut self, fields: &Fields<'_>) -> Checked<()> {
        self.check_request(fields)?;
        ensure(fields.payload.len() == 52, WRONG_LENGTH)?;
        ensure(matches!(fields.payload[3] & 0x0f, 0 | 2), TAG_MISMATCH)?;
        let request = AtomicRequest::parse(fields.payload).expect("as long as it has to be");
        let at = self.atomic_target(request.stag, request.offset)?;
        ensure(at.is_multiple_of(8), Verdict::Fault(0, 2, 7))?;
        self.taken(Answer::Atomic { at, request });
        Ok(())
    }

    fn atomic_target(&self, stag: Stag, offset: u64) -> Checked<usize> {
        let refusals = [0, 3, 2, 4, 1].map(|code| Verdict::Fault(0, 1, code));
        self.find(stag.raw(), offset, 8, refusals)
    }

    fn atomic_response(&mut self, fields: &Fields<'_>) -> Checked<()> {
        ensure(fields.queue == 3, BAD_QUEUE)?;
        ensure(fields.msn == self.atomic_msn, BAD_MSN)?;
        ensure(fields.mo == 0, BAD_MO)?;
        ensure(fields.last, NOT_LAST)?;
        let response = AtomicResponse::parse(fields.payload).map_err(|_| WRONG_LENGTH)?;
        let matches = matches!(self.due.front(), Some(Due::Atomic(id)) if *id == response.id);
        ensure(matches, WRONG_LENGTH)?;
        self.place(ATOMIC.at, &response.original.to_ne_bytes());
        self.atomic_msn += 1;
        self.due.pop_front();
        Ok(())
    }
}
