//! From operations and Read Responses to octets for TCP.

use iwarp_ddp::{Cut, LocalFault, Refusal, Segmenter, TaggedHeader, UntaggedHeader};
use iwarp_mpa::{FrameError, Framer, SizePlan};

use super::Stream;
use crate::batch::{Chunk, TxBatch, UsableWindow};
use crate::clock::Clock;
use crate::counters::add;
use crate::error::{Error, LocalError, ProtectionError};
use crate::memory::{Memory, WorkRefused};
use crate::recv::Blame;
use crate::send::{Body, Draft, Header, Sent, Step};
use crate::state::State;

/// Why a segment did not go out.
enum Fault {
    /// The batch is full.
    NoRoom,
    Local(LocalFault),
    Remote(Refusal),
    Mpa(iwarp_mpa::Error),
}

impl<B> Stream<B> {
    /// Fills `out` with the next record: whole FPDUs, as many as fit and as stand well in TCP segments.
    ///
    /// `false`: `out` is empty, and there is nothing to send now, unless `out`
    /// [asks](TxBatch::asks_window) for a window. What `out` held before is dropped, so
    /// everything in it must have been accepted by TCP, or TCP must be lost. What is handed out cannot be
    /// taken back; as TCP accepts it, [`handle_transmitted`](Self::handle_transmitted) has to be told.
    pub fn poll_transmit<M: Memory<B>>(
        &mut self,
        memory: &mut M,
        out: &mut TxBatch,
        mut now: impl Clock,
    ) -> bool {
        let clock: &mut dyn Clock = &mut now;
        out.clear();
        if self.state == State::Closed {
            return false;
        }
        let mut record = Record::default();
        loop {
            let draft = match self.sender.next(self.blocked.is_some()) {
                Ok(Some(Step::Segment(draft))) => draft,
                Ok(Some(Step::Perform)) => {
                    // What is ahead goes to TCP before: then it is complete, or waits for the peer.
                    if !out.is_empty() {
                        break;
                    }
                    self.perform(memory, clock);
                    continue;
                }
                Ok(Some(Step::Execute)) => {
                    // What an earlier Read is to tell is read first, also where that happens as TCP takes it.
                    if out.reads_remote() {
                        break;
                    }
                    self.execute(memory, clock);
                    continue;
                }
                Ok(None) => break,
                Err(error) => {
                    self.own_failed(error, clock);
                    continue;
                }
            };
            let size = &self.limits.size;
            let crc = self.limits.crc;
            let cut = match record.cut(size, &self.framer, &draft, crc, &out.window) {
                Next::Fpdu(cut) => cut,
                Next::Record => break,
                Next::Window => {
                    out.ask_window();
                    break;
                }
            };
            match self.send(&draft, cut, memory, out) {
                Ok(wire_len) => {
                    let ulpdu_len = draft.header_len().saturating_add(cut.len as usize);
                    if !record.push(&self.limits.size, wire_len, ulpdu_len) {
                        break;
                    }
                    if out.len() >= out.most || !self.sender.may_send() {
                        break;
                    }
                }
                Err(Fault::NoRoom) => break,
                // RDMAP-070: a Terminate goes out instead of the message.
                Err(Fault::Local(fault)) => self.own_failed(LocalError::Source(fault), clock),
                Err(Fault::Remote(refusal)) => {
                    let culprit = self.sender.response_failed();
                    let error = ProtectionError::from(refusal).into();
                    self.fail(error, culprit.as_ref(), Blame::Nobody, clock);
                }
                Err(Fault::Mpa(error)) => {
                    // A Terminate that cannot be framed is the last thing that is tried.
                    let is_last_word = self.sender.has_terminate();
                    self.fail(Error::Mpa(error), None, Blame::Nobody, clock);
                    if is_last_word {
                        break;
                    }
                }
            }
        }
        !out.is_empty()
    }

    /// Carries out the present operation, which sends nothing.
    #[cold]
    fn perform<M: Memory<B>>(&mut self, memory: &mut M, clock: &mut dyn Clock) {
        let Some(work) = self.sender.current_buffer() else { return };
        match memory.perform(work) {
            Ok(()) => {
                self.sender.performed();
                // It may have been the last thing that a close waits for.
                self.settle(clock);
            }
            Err(WorkRefused) => self.own_failed(LocalError::WorkRefused, clock),
        }
    }

    /// Carries out the peer's Atomic whose turn has come.
    #[cold]
    fn execute<M: Memory<B>>(&mut self, memory: &mut M, clock: &mut dyn Clock) {
        let Some(request) = self.sender.due_atomic() else { return };
        match memory.atomic(request.stag, request.offset, request.operation) {
            Ok(original) => self.sender.executed(original),
            Err(refusal) => {
                let culprit = self.sender.response_failed();
                self.fail(refusal.into(), culprit.as_ref(), Blame::Nobody, clock);
            }
        }
    }

    fn own_failed(&mut self, error: LocalError, clock: &mut dyn Clock) {
        self.sender.own_failed(error);
        self.fail(error.into(), None, Blame::Nobody, clock);
    }

    /// Builds one segment, frames it into `out`, and lets both halves know. Gives its length on the wire.
    #[inline]
    fn send<M: Memory<B>>(
        &mut self,
        draft: &Draft,
        cut: Cut,
        memory: &mut M,
        out: &mut TxBatch,
    ) -> Result<usize, Fault> {
        let Some((header, body)) = self.sender.segment(draft, cut) else {
            return Err(Fault::NoRoom);
        };
        let payload_len = cut.len as usize;
        let gathered = match out.gather_from {
            Some(least) if cut.len >= least.max(1) && self.framer.can_gather() => {
                gathered_chunk(&body, payload_len)
            }
            _ => None,
        };
        let wire_len = if let Some(chunk) = gathered {
            if let Body::Remote { stag, offset } = body {
                memory.check_tagged(stag, offset, cut.len).map_err(Fault::Remote)?;
            }
            self.frame_around(header.as_bytes(), chunk, out)?
        } else {
            let ulpdu_len = header.as_bytes().len().saturating_add(payload_len);
            let room = out.room(self.framer.framed_len(ulpdu_len)).ok_or(Fault::NoRoom)?;
            let wire_len = self
                .framer
                .frame(room, ulpdu_len, |ulpdu| fill(ulpdu, &header, &body, memory))
                .map_err(|error| match error {
                    FrameError::Fill(fault) => fault,
                    FrameError::Mpa(error) => Fault::Mpa(error),
                })?;
            out.push_staged(wire_len);
            wire_len
        };
        let end = self.framer.position();
        add(&mut self.counters.fpdus_out, 1);
        add(&mut self.counters.octets_out, wire_len);
        if cut.last {
            self.counters.messages_out.count(draft.opcode);
        }
        match self.sender.sent(draft, cut, end) {
            Sent::Nothing => {}
            Sent::Requested(expected) => self.receiver.expect(expected),
            Sent::Answered => self.receiver.answered(),
        }
        Ok(wire_len)
    }

    /// Frames a payload that stays where it is.
    fn frame_around(
        &mut self,
        header: &[u8],
        chunk: Chunk,
        out: &mut TxBatch,
    ) -> Result<usize, Fault> {
        let payload_len = chunk.len();
        let mut tail = [0; 8];
        let room = out.room(GATHERED_ROOM).ok_or(Fault::NoRoom)?;
        let (head_len, tail_len) =
            self.framer.frame_gathered(header, payload_len, room, &mut tail).map_err(Fault::Mpa)?;
        out.push_staged(head_len);
        out.push_gathered(chunk);
        if let Some(room) = out.room(tail_len)
            && let Some(tail) = tail.get(..tail_len)
        {
            room.copy_from_slice(tail);
            out.push_staged(tail_len);
        }
        Ok(head_len.saturating_add(payload_len).saturating_add(tail_len))
    }
}

/// Head (length field and the longer header) and tail (pad and CRC) of an FPDU whose payload is gathered.
const GATHERED_ROOM: usize = 2 + iwarp_ddp::UNTAGGED_HEADER_LEN + 8;

/// The piece of a batch for a payload that is not copied; `None` if it has to be.
fn gathered_chunk<B>(body: &Body<'_, B>, len: usize) -> Option<Chunk> {
    match *body {
        Body::Local { op, offset, .. } => Some(Chunk::Local { op, offset, len }),
        Body::Remote { stag, offset } => Some(Chunk::Remote { stag, offset, len }),
        Body::Octets(_) => None,
    }
}

/// Writes one ULPDU: the only copy between memory and TCP.
#[inline]
fn fill<B, M: Memory<B>>(
    ulpdu: &mut [u8],
    header: &Header,
    body: &Body<'_, B>,
    memory: &mut M,
) -> Result<(), Fault> {
    let header = header.as_bytes();
    let Some((front, payload)) = ulpdu.split_at_mut_checked(header.len()) else {
        return Err(Fault::NoRoom);
    };
    front.copy_from_slice(header);
    if payload.is_empty() {
        return Ok(());
    }
    match body {
        Body::Octets(octets) => {
            let len = payload.len();
            payload.copy_from_slice(octets.get(..len).ok_or(Fault::NoRoom)?);
            Ok(())
        }
        Body::Local { buffer, offset, .. } => {
            memory.read_local(buffer, *offset, payload).map_err(Fault::Local)
        }
        // SEC-04: checked again for each segment.
        Body::Remote { stag, offset } => {
            memory.read_tagged(*stag, *offset, payload).map_err(Fault::Remote)
        }
    }
}

/// How a record goes on.
enum Next {
    /// With this part of a message.
    Fpdu(Cut),
    /// Not at all: the next FPDU begins another one.
    Record,
    /// Not before it is known how much TCP can send.
    Window,
}

/// How far the record has come.
///
/// Full-size FPDUs that fill whole segments may follow each other without end: none pushes the next one
/// off its boundary. Behind a smaller one the record goes on only as long as all that follows is together
/// no larger than one full-size FPDU: with FPDUs of one segment ([`FpduLimit::Emss`](iwarp_mpa::FpduLimit))
/// several small ones share that segment and none is cut (MPA-072, MPA-073); with larger FPDUs, which lie
/// across segments anyway, small ones may too. It stays within the [window](UsableWindow), or is one segment
/// or one FPDU. Where FPDUs share segments by plan, none of this counts.
#[derive(Debug, Default)]
struct Record {
    len: usize,
    /// Octets behind the last FPDU that filled whole segments.
    loose: usize,
}

impl Record {
    /// The part of a message that goes into the next FPDU.
    #[inline]
    fn cut(
        &self,
        size: &SizePlan,
        framer: &Framer,
        draft: &Draft,
        crc: bool,
        window: &UsableWindow,
    ) -> Next {
        let header_len = draft.header_len();
        let room = if draft.opcode.queue().is_none() {
            TaggedHeader::max_payload(size.mulpdu)
        } else {
            UntaggedHeader::max_payload(size.mulpdu)
        };
        // DDP-025, MPA-042
        let Some(mut cut) = Segmenter::new(draft.len, room).cut_at(draft.offset) else {
            return Next::Record;
        };
        let ulpdu_len = |payload: u32| header_len.saturating_add(payload as usize);
        if !size.shares_segments {
            let wire_len = framer.framed_len(ulpdu_len(cut.len));
            if self.loose != 0
                && self.loose.saturating_add(wire_len) > framer.framed_len(size.mulpdu)
            {
                return Next::Record;
            }
            let end = self.len.saturating_add(wire_len);
            if end > window.octets && !size.is_one_segment(end) {
                if window.stale {
                    return Next::Window;
                }
                if self.len > 0 {
                    return Next::Record;
                }
                if crc {
                    let whole = size.keeps_trailer_whole_in(ulpdu_len(cut.len), window.in_words);
                    cut = shortened(draft, cut, whole.saturating_sub(header_len));
                }
            }
        }
        if !crc || size.keeps_trailer_whole(self.len, ulpdu_len(cut.len)) {
            return Next::Fpdu(cut);
        }
        // Linux siw takes an FPDU for damaged if a segment ends between its pad and its CRC. A new record
        // helps, or at its beginning, some octets less.
        if self.len > 0 {
            return Next::Record;
        }
        let shorter = std::iter::successors(Some(cut.len), |len| Some(len.checked_sub(1)? & !3))
            .take(4)
            .find(|&len| size.keeps_trailer_whole(0, ulpdu_len(len)));
        Next::Fpdu(shorter.map_or(cut, |len| shortened(draft, cut, len as usize)))
    }

    /// An FPDU was added. Gives whether the record may go on.
    #[inline]
    fn push(&mut self, size: &SizePlan, wire_len: usize, ulpdu_len: usize) -> bool {
        self.len = self.len.saturating_add(wire_len);
        let is_full = ulpdu_len >= size.mulpdu;
        if !is_full || size.ends_record {
            self.loose = self.loose.saturating_add(wire_len);
        }
        !(is_full && size.ends_record)
    }
}

/// The same cut with a payload of `len` octets, if that is less, and if the message may be cut there.
fn shortened(draft: &Draft, cut: Cut, len: usize) -> Cut {
    // Some are one segment by definition (RDMAP-081), however short those of TCP are.
    match u32::try_from(len) {
        Ok(len) if 0 < len && len < cut.len && !draft.opcode.is_one_segment() => {
            Cut { len, last: false, ..cut }
        }
        _ => cut,
    }
}
