//! From the octets of an input to what happens to a stream.

use std::collections::VecDeque;
use std::time::Duration;

use iwarp_ddp::{Stag, UntaggedHeader};
use iwarp_mpa::{FpduLimit, Framing, Role, Rtr, SizePlan};
use iwarp_rdmap::{
    AtomicOperation, AtomicRequest, AtomicResponse, LostCause, Opcode, Operation, OperationKind,
    ReadRequest, StreamConfig, TerminateCode,
};

use super::layout::{
    BASE, FOREIGN, LOCAL, MADE, MADE_END, MOST, OPEN, OPERATION_LEN, READABLE, RECEIVE_LEN,
    WRITABLE, operation_at, receive,
};
use crate::bytes::Bytes;
use crate::common::memory::{Buf, Region};
use crate::common::peer::{Seen, tagged};
use crate::fpdu;

/// The first octets of an input.
#[derive(Clone, Copy, Debug)]
pub(super) struct Setup {
    pub(super) config: StreamConfig,
    /// Long payload is gathered.
    pub(super) gathers: bool,
    /// The owner of the memory keeps what was received.
    pub(super) keeps: bool,
    /// The end, if the input has none: the peer's FIN, or this side's disconnect.
    pub(super) ends_with_fin: bool,
    pub(super) cuts: [u8; 3],
}

impl Setup {
    pub(super) fn read(input: &mut Bytes<'_>) -> Self {
        let [flags, depths, more] = [input.u8(), input.u8(), input.u8()];
        let role = if flags & 1 != 0 { Role::Responder } else { Role::Initiator };
        let mut config = crate::common::config(role);
        config.framing = Framing {
            crc: flags & 2 != 0,
            receive_markers: flags & 4 != 0,
            send_markers: flags & 8 != 0,
        };
        config.strict_receive = flags & 16 != 0;
        config.extensions = flags & 32 == 0;
        config.rtr =
            [None, Some(Rtr::Send), Some(Rtr::Write), Some(Rtr::Read)][usize::from(flags >> 6)];
        config.ird = u32::from(depths & 7);
        config.ord = u32::from(depths >> 3 & 7);
        config.input_burst = 1 + usize::from(more & 7);
        config.response_burst = 1 + usize::from(more >> 3 & 3);
        // Next to the wrap.
        config.first_msn = if more & 32 != 0 { u32::MAX } else { 1 };
        config.size = size(more >> 6, config.framing.send_markers);
        Self {
            config,
            gathers: depths & 64 != 0,
            keeps: depths & 128 != 0,
            ends_with_fin: more & 128 != 0,
            cuts: [input.u8(), input.u8(), input.u8()],
        }
    }
}

fn size(choice: u8, markers: bool) -> SizePlan {
    let emss = [1460, 200, 536, 65_483][usize::from(choice & 3)];
    SizePlan::new(emss, FpduLimit::Emss, markers)
}

/// Something that happens.
#[derive(Debug)]
pub(super) enum Step {
    /// Octets of the peer.
    Feed(Vec<u8>),
    /// The peer's FIN.
    Eof,
    Submit(Operation<Buf>),
    Post(Buf),
    /// All there is to send goes out.
    Send,
    /// So many octets of what there is to send.
    SendSome(usize),
    /// The memory that is being sent from is gone.
    SourceFault,
    Wait(Duration),
    Close,
    Disconnect,
    Abort,
    Terminate(TerminateCode),
    Lost(LostCause),
    Open(Region),
    /// The region with this number is revoked.
    Revoke(usize),
    /// The buffer with this number can be used no more.
    Break(u64),
    Ord(u32),
    Size(SizePlan),
    Shrink,
}

/// What the input asks for, and what the peer has to know for messages that are in order.
#[derive(Debug)]
pub(super) struct Script {
    setup: Setup,
    /// Octets of the peer.
    sent: u64,
    fin: bool,
    queues: [Queue; 4],
    /// What this side has asked for, in order.
    due: VecDeque<Due>,
    made: usize,
    made_stag: u32,
    /// How many operations there are so far. They are numbered from 0 on.
    operations: u64,
    receives: usize,
    /// Changes to the next ULPDU, and to the next FPDU.
    bent: Option<(u8, u8)>,
    damaged: Option<(u16, u8)>,
    /// Where own Reads and Atomics put what they get.
    pub(super) sinks: Vec<Buf>,
}

#[derive(Clone, Copy, Debug)]
struct Queue {
    msn: u32,
    offset: u32,
}

#[derive(Debug)]
enum Due {
    Read { stag: Stag, offset: u64, left: u32 },
    Atomic { id: u32 },
}

impl Script {
    pub(super) fn new(setup: Setup) -> Self {
        let first = |msn| Queue { msn, offset: 0 };
        let msn = setup.config.first_msn;
        Self {
            setup,
            sent: 0,
            fin: false,
            queues: [first(msn), first(msn), first(1), first(msn)],
            due: VecDeque::new(),
            made: MADE,
            made_stag: 0,
            operations: 0,
            receives: 0,
            bent: None,
            damaged: None,
            sinks: Vec::new(),
        }
    }

    /// This side has sent something, and the peer takes note of what it is asked for.
    pub(super) fn saw(&mut self, fpdus: &[Seen]) {
        for fpdu in fpdus {
            match fpdu.opcode {
                Opcode::ReadRequest => {
                    let request = ReadRequest::parse(&fpdu.payload).expect("a Read Request");
                    let (stag, offset) = (request.sink_stag, request.sink_offset);
                    self.due.push_back(Due::Read { stag, offset, left: request.len });
                }
                Opcode::AtomicRequest => {
                    let request = AtomicRequest::parse(&fpdu.payload).expect("an Atomic Request");
                    self.due.push_back(Due::Atomic { id: request.id });
                }
                _ => {}
            }
        }
    }

    /// The next thing that happens; `None` where the input ends.
    pub(super) fn step(&mut self, input: &mut Bytes<'_>) -> Option<Step> {
        loop {
            if input.is_empty() {
                return None;
            }
            if let Some(step) = self.read(input) {
                return Some(step);
            }
        }
    }

    /// `None` if it is nothing by itself.
    fn read(&mut self, input: &mut Bytes<'_>) -> Option<Step> {
        let ulpdu = match input.u8() % 32 {
            0 => return self.feed(input.counted().to_vec()),
            1 => {
                let len = input.u16().into();
                return self.feed(input.take(len).to_vec());
            }
            2 => input.counted().to_vec(),
            3 => self.send(input),
            4 => self.write(input),
            5 => self.request(input),
            6 => self.atomic(input),
            7 => self.response(input),
            8 => self.atomic_response(input),
            9 => self.untagged(Opcode::Terminate, true, 0, input.counted()),
            10 => self.immediate(input),
            11 => {
                // A header of the input's own, and payload as long as it likes.
                let mut ulpdu = input.counted().to_vec();
                ulpdu.extend(fpdu::ramp((input.u16() % 0xff00).into()));
                ulpdu
            }
            12 => {
                self.bent = Some((input.u8(), input.u8()));
                return None;
            }
            13 => {
                self.damaged = Some((input.u16(), input.u8()));
                return None;
            }
            14 => return self.fin().then_some(Step::Eof),
            15..=20 => return self.submit(input),
            21 => return self.post(input),
            22 => return Some(Step::Send),
            23 => return Some(Step::SendSome(input.u16().into())),
            24 => return Some(Step::Wait(Duration::from_millis(u64::from(input.u8()) * 50))),
            25 => return Self::local(input),
            26 => return self.open(input),
            27 => return Some(Step::Revoke(usize::from(input.u8()))),
            28 => return Some(Step::Break(Self::number(input))),
            29 => return Some(Step::Ord(u32::from(input.u8()).min(self.setup.config.ord))),
            30 => {
                let markers = self.setup.config.framing.send_markers;
                return Some(Step::Size(size(input.u8(), markers)));
            }
            _ => return Some(Step::Shrink),
        };
        self.frame(ulpdu)
    }

    pub(super) fn fin(&mut self) -> bool {
        !std::mem::replace(&mut self.fin, true)
    }

    /// The peer has sent these, unless it has ended its half.
    fn feed(&mut self, octets: Vec<u8>) -> Option<Step> {
        if self.fin || octets.is_empty() {
            return None;
        }
        self.sent += octets.len() as u64;
        Some(Step::Feed(octets))
    }

    /// A good FPDU, unless the input has asked for another.
    fn frame(&mut self, mut ulpdu: Vec<u8>) -> Option<Step> {
        if let Some((place, change)) = self.bent.take()
            && !ulpdu.is_empty()
        {
            let place = usize::from(place) % ulpdu.len();
            ulpdu[place] ^= change;
        }
        let Framing { receive_markers, crc, .. } = self.setup.config.framing;
        let mut octets = fpdu::build(&ulpdu, self.sent & !3, receive_markers, crc);
        if let Some((place, change)) = self.damaged.take() {
            let place = usize::from(place) % octets.len();
            octets[place] ^= change;
        }
        self.feed(octets)
    }

    /// A write that names the open memory, in order and in its frame.
    pub(super) fn another_write(&mut self) -> Option<Step> {
        let header = tagged(Opcode::Write, OPEN, BASE, true);
        self.frame([&header.to_bytes()[..], b"accepted by mistake"].concat())
    }

    /// The next segment on the queue of an opcode.
    fn untagged(&mut self, opcode: Opcode, last: bool, word: u32, payload: &[u8]) -> Vec<u8> {
        let queue = opcode.queue().unwrap_or(0);
        let state = &mut self.queues[queue as usize];
        let header = UntaggedHeader {
            last,
            rsvd_ulp: 0x40 | opcode.raw(),
            rsvd_ulp_word: word,
            queue,
            msn: state.msn,
            offset: state.offset,
        };
        if last {
            *state = Queue { msn: state.msn.wrapping_add(1), offset: 0 };
        } else {
            state.offset = state.offset.wrapping_add(payload.len() as u32);
        }
        [&header.to_bytes()[..], payload].concat()
    }

    fn stag(&self, choice: u8) -> u32 {
        const STAGS: [u32; 6] = [OPEN, READABLE, WRITABLE, FOREIGN, LOCAL, 0];
        STAGS.get(usize::from(choice % 8)).copied().unwrap_or(self.made_stag)
    }

    /// A place in memory: an `STag` and an offset, mostly inside of what the `STag` opens.
    fn place(&self, input: &mut Bytes<'_>) -> (u32, u64) {
        let choice = input.u8();
        let stag = self.stag(choice);
        match choice >> 6 {
            0 => (stag, BASE + u64::from(input.u8())),
            1 => (stag, BASE + u64::from(input.u16() % 4200)),
            2 => (stag, BASE.wrapping_add_signed(i64::from(input.u16().cast_signed()))),
            _ => (stag, input.u64()),
        }
    }

    fn send(&mut self, input: &mut Bytes<'_>) -> Vec<u8> {
        let flags = input.u8();
        let opcode = Opcode::send(flags & 2 != 0, flags & 4 != 0);
        let word = self.stag(flags >> 4);
        self.untagged(opcode, flags & 1 == 0, word, &fpdu::ramp(input.u8().into()))
    }

    fn write(&mut self, input: &mut Bytes<'_>) -> Vec<u8> {
        let (stag, offset) = self.place(input);
        let flags = input.u8();
        let len = if flags & 2 == 0 { input.u8().into() } else { input.u16() % 4200 };
        let header = tagged(Opcode::Write, stag, offset, flags & 1 == 0);
        [&header.to_bytes()[..], &fpdu::ramp(len.into())].concat()
    }

    fn request(&mut self, input: &mut Bytes<'_>) -> Vec<u8> {
        let (stag, source_offset) = self.place(input);
        let request = ReadRequest {
            sink_stag: Stag::from_raw(7),
            sink_offset: u64::from(input.u8()) << 60,
            len: input.u16().into(),
            source_stag: Stag::from_raw(stag),
            source_offset,
        };
        self.untagged(Opcode::ReadRequest, true, 0, &request.to_bytes())
    }

    fn atomic(&mut self, input: &mut Bytes<'_>) -> Vec<u8> {
        let (stag, offset) = self.place(input);
        let operation = atomic_operation(input);
        let stag = Stag::from_raw(stag);
        let request = AtomicRequest { id: input.u8().into(), stag, offset, operation };
        self.untagged(Opcode::AtomicRequest, true, 0, &request.to_bytes())
    }

    fn immediate(&mut self, input: &mut Bytes<'_>) -> Vec<u8> {
        let opcode = Opcode::immediate(input.u8() & 1 != 0);
        self.untagged(opcode, true, 0, &fpdu::ramp(8))
    }

    /// The next part of the answer that is due, mostly.
    fn response(&mut self, input: &mut Bytes<'_>) -> Vec<u8> {
        let flags = input.u8();
        let len = u32::from(input.u16() % 2048);
        let (mut stag, mut offset, mut len, mut last) = (0, 0, len, flags & 1 == 0);
        if let Some(Due::Read { stag: sink, offset: at, left }) = self.due.front_mut() {
            (stag, offset) = (sink.raw(), *at);
            if flags & 2 == 0 {
                // No more than is owed, and the last flag where it belongs.
                len = len.min(*left);
                last = len == *left;
            }
            *at = at.wrapping_add(len.into());
            *left = left.saturating_sub(len);
            if last {
                self.due.pop_front();
            }
        }
        let header = tagged(Opcode::ReadResponse, stag, offset, last);
        [&header.to_bytes()[..], &fpdu::ramp(len as usize)].concat()
    }

    fn atomic_response(&mut self, input: &mut Bytes<'_>) -> Vec<u8> {
        let id = match self.due.front() {
            Some(&Due::Atomic { id }) => {
                self.due.pop_front();
                id
            }
            _ => input.u8().into(),
        };
        let response = AtomicResponse { id, original: u64::from(id) << 32 | 0xfeed };
        self.untagged(Opcode::AtomicResponse, true, 0, &response.to_bytes())
    }

    /// An operation of this side.
    fn submit(&mut self, input: &mut Bytes<'_>) -> Option<Step> {
        let flags = input.u8();
        let id = self.operations;
        if id == MOST as u64 {
            return None;
        }
        self.operations += 1;
        let stag = Stag::from_raw(7);
        let offset = u64::from(flags) << 8;
        let mut len = usize::from(input.u16()) % (OPERATION_LEN + 1);
        let kind = match flags % 8 {
            0 => OperationKind::Send { solicited: flags & 16 != 0, invalidate: None },
            1 => OperationKind::Send { solicited: false, invalidate: Some(stag) },
            2 => OperationKind::Write { stag, offset },
            3 => {
                let solicited = flags & 16 != 0;
                OperationKind::WriteImmediate { stag, offset, immediate: *b"immediat", solicited }
            }
            4 | 5 => {
                // As the RTR has it, or as an input from elsewhere wants it.
                let (sink_stag, sink_offset) = if flags & 16 != 0 {
                    (Stag::from_raw(input.u32()), input.u64())
                } else {
                    (Stag::from_raw(0x1234_5678), 0x2000)
                };
                OperationKind::Read {
                    sink_stag,
                    sink_offset,
                    source_stag: stag,
                    source_offset: offset,
                }
            }
            6 => {
                len = 8;
                let operation = Box::new(atomic_operation(input));
                OperationKind::Atomic { stag, offset, operation }
            }
            _ => OperationKind::Local,
        };
        let buffer = Buf { id, at: operation_at(id), len };
        if matches!(kind, OperationKind::Read { .. } | OperationKind::Atomic { .. }) {
            self.sinks.push(buffer);
        }
        let fence = flags & 32 != 0;
        Some(Step::Submit(Operation { kind, len: len as u32, fence, buffer }))
    }

    fn post(&mut self, input: &mut Bytes<'_>) -> Option<Step> {
        let len = usize::from(input.u8()).min(RECEIVE_LEN);
        if self.receives == MOST {
            return None;
        }
        self.receives += 1;
        Some(Step::Post(receive(self.receives - 1, len)))
    }

    /// What this side does with its connection.
    fn local(input: &mut Bytes<'_>) -> Option<Step> {
        Some(match input.u8() % 8 {
            0 | 1 => Step::Close,
            2 => Step::Disconnect,
            3 => Step::Abort,
            4 => Step::Terminate(TerminateCode::LOCAL_CATASTROPHIC),
            5 => Step::Lost(LostCause::Reset),
            6 => Step::SourceFault,
            _ => return None,
        })
    }

    fn open(&mut self, input: &mut Bytes<'_>) -> Option<Step> {
        const NAMED: [u32; 5] = [OPEN, READABLE, WRITABLE, FOREIGN, LOCAL];
        let (stag, base, len) = (input.u32(), input.u64(), usize::from(input.u16()));
        let rights = input.u8();
        if self.made > MADE || NAMED.contains(&stag) || len > MADE_END - MADE {
            return None;
        }
        self.made += len;
        self.made_stag = stag;
        let mut region = Region::new(stag, base, MADE, len as u64);
        region.read = rights & 1 == 0;
        region.write = rights & 2 == 0;
        region.atomic = rights & 4 == 0;
        Some(Step::Open(region))
    }

    /// Of an operation or a receive that there is.
    fn number(input: &mut Bytes<'_>) -> u64 {
        let choice = input.u8();
        let index = usize::from(choice) % MOST;
        if choice & 128 != 0 { receive(index, 0).id } else { index as u64 }
    }
}

fn atomic_operation(input: &mut Bytes<'_>) -> AtomicOperation {
    let flags = input.u8();
    let number = u64::from(flags >> 2) << 30;
    match flags % 3 {
        0 => AtomicOperation::fetch_add(number),
        1 => AtomicOperation::FetchAdd { add: number, mask: 1 << 31 },
        _ => AtomicOperation::compare_swap(0, number),
    }
}
