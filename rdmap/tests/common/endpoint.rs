//! One stream, driven by hand.

use std::time::{Duration, Instant};

use iwarp_ddp::Stag;
use iwarp_rdmap::{
    AtomicOperation, Chunk, CloseCause, Event, Initiator, Input, Need, Operation, OperationKind,
    Outcome, Shutdown, Straight, Stream, StreamConfig, SubmitError, TerminateCode, TxBatch,
};

use super::memory::{Buf, Region, TestMemory};
use super::{ramp_of, start};

/// A stream with its memory, its buffer of unread octets and a clock.
#[derive(Debug)]
pub struct Endpoint {
    pub stream: Stream<Buf>,
    pub memory: TestMemory,
    pub rx: Vec<u8>,
    pub now: Instant,
    pub batch: TxBatch,
    pub need: Option<Need>,
}

impl Endpoint {
    pub fn new(config: StreamConfig, memory: TestMemory) -> Self {
        Self {
            stream: Stream::new(config),
            memory,
            rx: Vec::new(),
            now: start(),
            batch: TxBatch::with_capacity(1 << 16),
            need: None,
        }
    }

    /// Octets of the peer come in.
    pub fn feed(&mut self, octets: &[u8]) -> Input {
        self.rx.extend_from_slice(octets);
        self.read()
    }

    /// Octets of the peer come in, in one piece, and long payload goes straight into its sink. Gives how many
    /// went that way.
    pub fn feed_straight(&mut self, octets: &[u8]) -> usize {
        let (passed_by, held) = self.pass_by(octets);
        self.rx.truncate(self.rx.len() - held);
        self.stream.handle_straight(held + passed_by);
        self.feed(&octets[passed_by..]);
        passed_by
    }

    /// Puts payload into its sink: what is held, and what follows. Gives the octets of both.
    fn pass_by(&mut self, octets: &[u8]) -> (usize, usize) {
        let Some(Straight { sink, len, held, free, .. }) = self.stream.straight(&self.rx) else {
            return (0, 0);
        };
        assert!(held.len() + free < len, "the last octets go the other way");
        let Some(at) = self.memory.straight_sink(&sink, len) else { return (0, 0) };
        let (front, rest) = self.memory.bytes[at..at + len].split_at_mut(held.len());
        front.copy_from_slice(held);
        let free = free.min(octets.len());
        rest[..free].copy_from_slice(&octets[..free]);
        (free, held.len())
    }

    /// The stream looks at what is unread.
    pub fn read(&mut self) -> Input {
        loop {
            let input = self.stream.handle_input(&mut self.rx, &mut self.memory, self.now);
            self.rx.drain(..input.consumed);
            self.need = Some(input.need);
            if input.need != Need::Again {
                return input;
            }
        }
    }

    /// The peer's FIN comes in.
    pub fn eof(&mut self) {
        self.stream.handle_eof(self.rx.len(), self.now);
    }

    /// One record, with its octets as they would go out, if there is anything to send. TCP has accepted
    /// none of it.
    pub fn record(&mut self) -> Option<Vec<u8>> {
        let may_transmit = self.stream.may_transmit();
        let transmits = self.stream.poll_transmit(&mut self.memory, &mut self.batch, self.now);
        assert!(may_transmit || !transmits, "the quick look denied what there is");
        transmits.then(|| octets_of(&self.batch, &self.stream, &self.memory))
    }

    /// TCP accepts octets.
    pub fn accepted(&mut self, octets: usize) {
        self.stream.handle_transmitted(octets, self.now);
    }

    /// All that the stream has to send, accepted as it comes.
    pub fn transmit(&mut self) -> Vec<u8> {
        let mut sent = Vec::new();
        while let Some(record) = self.record() {
            self.accepted(record.len());
            sent.extend_from_slice(&record);
        }
        sent
    }

    pub fn events(&mut self) -> Vec<Event<Buf>> {
        std::iter::from_fn(|| self.stream.poll_event()).collect()
    }

    pub fn shutdowns(&mut self) -> Vec<Shutdown> {
        std::iter::from_fn(|| self.stream.poll_shutdown()).collect()
    }

    pub fn wait(&mut self, time: Duration) {
        self.now += time;
        self.stream.handle_timeout(self.now);
    }

    pub fn submit(&mut self, id: u64, kind: OperationKind, at: usize, len: usize) {
        self.try_submit(id, kind, at, len).unwrap();
    }

    pub fn submit_fenced(&mut self, id: u64, kind: OperationKind, at: usize, len: usize) {
        let buffer = Buf { id, at, len };
        let operation = Operation { kind, len: len as u32, fence: true, buffer };
        self.stream.submit(operation).unwrap();
    }

    pub fn try_submit(
        &mut self,
        id: u64,
        kind: OperationKind,
        at: usize,
        len: usize,
    ) -> Result<(), SubmitError<Buf>> {
        let buffer = Buf { id, at, len };
        self.stream.submit(Operation { kind, len: len as u32, fence: false, buffer })
    }
}

/// The octets of a batch, gathered from where they are.
pub fn octets_of(batch: &TxBatch, stream: &Stream<Buf>, memory: &TestMemory) -> Vec<u8> {
    let mut octets = Vec::with_capacity(batch.len());
    for chunk in batch.chunks() {
        match *chunk {
            Chunk::Staged(ref range) => octets.extend_from_slice(&batch.staged()[range.clone()]),
            Chunk::Local { op, offset, len } => {
                let buffer = stream.source_buffer(op).expect("operation of a batch in flight");
                let at = buffer.at + offset as usize;
                octets.extend_from_slice(&memory.bytes[at..at + len]);
            }
            Chunk::Remote { stag, offset, len } => {
                let region = memory.regions.iter().find(|region| region.stag == stag).unwrap();
                let at = region.at + (offset - region.base) as usize;
                octets.extend_from_slice(&memory.bytes[at..at + len]);
            }
        }
    }
    assert_eq!(octets.len(), batch.len());
    octets
}

/// `STag` of the memory that [`target`] opens to the peer.
pub const OPEN: u32 = 0x00be_ef01;
/// `STag` of the sinks of [`read`].
pub const SINK: u32 = 0x1234_5678;

/// An endpoint with 8192 octets open to the peer at offset 0x1000, and receives of 64 octets, numbered from
/// 1000 on.
pub fn target(config: StreamConfig, receives: usize) -> Endpoint {
    let mut memory = TestMemory::new(16_384);
    memory.regions = vec![Region::new(OPEN, 0x1000, 0, 8192)];
    memory.bytes[..8192].copy_from_slice(&ramp_of(8192));
    for id in 0..receives {
        memory.post(1000 + id as u64, 8192 + 64 * id, 64);
    }
    Endpoint::new(config, memory)
}

pub const SUCCESS: Outcome = Outcome::Success;
pub const FLUSHED: Outcome = Outcome::Flushed;
pub const SEND: OperationKind = OperationKind::Send { solicited: false, invalidate: None };

pub const fn write(stag: u32, offset: u64) -> OperationKind {
    OperationKind::Write { stag: Stag::from_raw(stag), offset }
}

/// A Read into the sink that the vectors use: `STag` 0x12345678, offset 0x2000.
pub const fn read(stag: u32, offset: u64) -> OperationKind {
    OperationKind::Read {
        sink_stag: Stag::from_raw(SINK),
        sink_offset: 0x2000,
        source_stag: Stag::from_raw(stag),
        source_offset: offset,
    }
}

/// An Atomic on the memory that the peer opened.
pub fn atomic(stag: u32, offset: u64, operation: AtomicOperation) -> OperationKind {
    OperationKind::Atomic { stag: Stag::from_raw(stag), offset, operation: Box::new(operation) }
}

/// What became of operations and receives, in order: `(number, outcome)`.
pub fn outcomes(events: &[Event<Buf>]) -> Vec<(u64, Outcome)> {
    events
        .iter()
        .filter_map(|event| match event {
            Event::OperationDone { buffer, outcome, .. }
            | Event::ReceiveDone { buffer, outcome, .. } => Some((buffer.id, *outcome)),
            _ => None,
        })
        .collect()
}

/// The Terminate that was reported, and whose it was.
pub fn terminated(events: &[Event<Buf>]) -> Option<(Initiator, TerminateCode)> {
    let mut all = events.iter().filter_map(|event| match event {
        Event::Terminated { by, terminate, .. } => Some((*by, terminate.code)),
        _ => None,
    });
    let first = all.next();
    assert_eq!(all.next(), None, "more than one Terminate");
    first
}

/// How the stream ended.
pub fn closed(events: &[Event<Buf>]) -> Option<(bool, &CloseCause)> {
    match events.last() {
        Some(Event::Closed { clean, cause }) => Some((*clean, cause)),
        _ => None,
    }
}
