//! Sending: from the stream through the thread's batch into the socket.

use std::io;
use std::os::fd::AsFd;
use std::sync::Arc;

use iwarp_rdmap::{Chunk, LostCause, TxBatch};
use smallvec::SmallVec;

use iwarp_ddp::Source as _;

use super::Caller;
use super::driver::Driver;
use super::link::{Link, PassClock};
use super::memory::{Piece, QpMemory, raw, walk};
use super::rx::lost_cause;
use super::scratch::{Scratch, TX_LEN};
use super::window::Window;
use crate::mem::{Access, GatherList, Region, SendFlags};
use crate::sys::Socket;

/// Unsent octets up to here are copied to memory of their size, rather than keeping the whole batch.
const SMALL: usize = 16 * 1024;

/// Payloads from here on stay where they are, where neither CRC nor markers ask for a copy.
const GATHER_FROM: u32 = 4096;

/// Octets of one record. Those that are longer do not make TCP faster.
const RECORD_MOST: usize = 1 << 20;

/// What a connection keeps of its output between passes.
#[derive(Debug, Default)]
pub(super) struct Tx {
    unsent: Unsent,
    charged: usize,
    /// What TCP can send at once.
    window: Window,
    /// TCP took no more.
    pub(super) blocked: bool,
    /// Attempts in a row that found TCP full.
    pub(super) full: u8,
    /// TCP failed while sending. What the peer sent before is still read.
    pub(super) lost: Option<LostCause>,
}

/// Octets handed out by the stream that TCP has not taken.
#[derive(Debug, Default)]
enum Unsent {
    #[default]
    Nothing,
    /// A batch, and how much of it was sent.
    Batch(Box<TxBatch>, usize),
    /// The staged rest of one, and how much of it was sent.
    Octets(Vec<u8>, usize),
}

/// How sending ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Sent {
    /// All there was, or all that TCP takes.
    Done { moved: bool },
    /// The budget of the pass is spent.
    More,
}

/// How one attempt ended.
enum Attempt {
    Sent(usize),
    Blocked,
    Lost(LostCause),
    /// The memory of this piece is gone.
    SourceGone(Chunk),
}

impl Tx {
    /// Whether TCP has not taken all that the stream handed out.
    #[inline]
    pub(super) fn has_unsent(&self) -> bool {
        !matches!(self.unsent, Unsent::Nothing)
    }

    /// Gives back what the budget was charged.
    pub(super) fn release(&mut self, driver: &Driver) {
        self.unsent = Unsent::Nothing;
        driver.charge(std::mem::take(&mut self.charged), 0);
    }

    fn keep(&mut self, unsent: Unsent, driver: &Driver) {
        if self.charged == 0 && matches!(unsent, Unsent::Nothing) {
            self.unsent = unsent;
            return;
        }
        let charged = match &unsent {
            Unsent::Nothing => 0,
            Unsent::Batch(batch, _) => batch.staged().len().max(TX_LEN),
            Unsent::Octets(octets, _) => octets.capacity(),
        };
        self.unsent = unsent;
        driver.charge(std::mem::replace(&mut self.charged, charged), charged);
    }
}

impl Link {
    /// Sends until TCP takes no more, nothing is left, or the budget is spent.
    pub(super) fn transmit(
        &mut self,
        mem: &mut QpMemory<'_>,
        scratch: &mut Scratch,
        clock: &mut PassClock,
        driver: &Driver,
        who: Caller,
    ) -> Sent {
        let budget = super::share::of_pass(mem.qp(), who);
        self.tx.blocked = false;
        if self.tx.lost.is_some() {
            return Sent::Done { moved: false };
        }
        let mut moved = false;
        let mut taken = 0;
        // Over budget, FPDUs are built one by one, and what stays over is kept in memory of its size.
        let mut lean = false;
        let (mut batch, mut at) = match std::mem::take(&mut self.tx.unsent) {
            Unsent::Nothing => {
                lean = !driver.budget().has_room(TX_LEN);
                (scratch.take_tx(lean), 0)
            }
            Unsent::Batch(batch, at) => (batch, at),
            Unsent::Octets(octets, mut at) => {
                let complete = loop {
                    match send(&self.socket, &octets[at..]) {
                        Attempt::Sent(sent) => {
                            at += sent;
                            moved = true;
                            self.tx.window.sent(sent);
                            self.stream.handle_transmitted(sent, &mut *clock);
                            if at == octets.len() {
                                break true;
                            }
                        }
                        other => break self.stopped(other),
                    }
                };
                if !complete {
                    self.tx.keep(Unsent::Octets(octets, at), driver);
                    return self.stops(moved);
                }
                lean = !driver.budget().has_room(TX_LEN);
                (scratch.take_tx(lean), 0)
            }
        };
        let outcome = loop {
            if at == batch.len() {
                at = 0;
                // Also if the record had begun: it was sent, and the next one need not be as short.
                if batch.asks_window() {
                    self.tx.window.look(&self.socket);
                }
                batch.clear();
                batch.gather_from = (!lean && !self.socket.copies()).then_some(GATHER_FROM);
                batch.most = budget.min(RECORD_MOST);
                if taken >= budget {
                    break Sent::More;
                }
                // After what was posted alone, there is nothing to ask for.
                if !self.stream.may_transmit() {
                    break Sent::Done { moved };
                }
                batch.window = self.tx.window.usable(&self.socket);
                if !self.stream.poll_transmit(mem, &mut batch, &mut *clock) {
                    if batch.asks_window() {
                        continue;
                    }
                    break Sent::Done { moved };
                }
                self.batches = self.batches.wrapping_add(1);
            }
            match self.send_batch(mem, &batch, at) {
                Attempt::Sent(sent) => {
                    at += sent;
                    taken += sent;
                    moved = true;
                    self.tx.window.sent(sent);
                    self.stream.handle_transmitted(sent, &mut *clock);
                }
                other => {
                    self.stopped(other);
                    break self.stops(moved);
                }
            }
        };
        if at == batch.len() || self.tx.lost.is_some() {
            scratch.give_tx(batch, lean);
            self.tx.keep(Unsent::Nothing, driver);
        } else if let Some(rest) = staged_rest(&batch, at, if lean { usize::MAX } else { SMALL }) {
            let octets = rest.to_vec();
            scratch.give_tx(batch, lean);
            self.tx.keep(Unsent::Octets(octets, 0), driver);
        } else {
            self.tx.keep(Unsent::Batch(batch, at), driver);
        }
        outcome
    }

    /// Copies unsent octets that lie in registered memory, so that no memory is needed any more. `false`
    /// if they cannot be read.
    pub(super) fn stage_unsent(&mut self, mem: &mut QpMemory<'_>) -> bool {
        let Unsent::Batch(batch, at) = &self.tx.unsent else { return true };
        let mut octets = Vec::with_capacity(batch.len() - at);
        let mut skip = *at;
        for chunk in batch.chunks() {
            let len = chunk.len();
            if skip >= len {
                skip -= len;
                continue;
            }
            let from = std::mem::take(&mut skip);
            let start = octets.len();
            octets.resize(start + len - from, 0);
            let into = &mut octets[start..];
            let read = match chunk {
                Chunk::Staged(range) => {
                    into.copy_from_slice(&batch.staged()[range.start + from..range.end]);
                    true
                }
                Chunk::Local { op, offset, .. } => self
                    .stream
                    .source_buffer(*op)
                    .is_some_and(|wqe| mem.read_local(wqe, offset + from as u64, into).is_ok()),
                Chunk::Remote { stag, offset, .. } => {
                    mem.read_tagged(*stag, offset.wrapping_add(from as u64), into).is_ok()
                }
            };
            if !read {
                return false;
            }
        }
        self.tx.unsent = Unsent::Octets(octets, 0);
        true
    }

    /// Deals with an attempt that sent nothing. Always `false`.
    fn stopped(&mut self, attempt: Attempt) -> bool {
        match attempt {
            Attempt::Sent(_) => {}
            Attempt::Blocked => self.tx.blocked = !self.socket.writes_again(),
            Attempt::Lost(cause) => self.tx.lost = Some(cause),
            Attempt::SourceGone(chunk) => {
                self.stream.handle_source_fault(&chunk);
                self.tx.lost = Some(LostCause::Reset);
            }
        }
        false
    }

    /// How a pass ends whose last attempt sent nothing.
    fn stops(&self, moved: bool) -> Sent {
        if self.socket.writes_again() { Sent::More } else { Sent::Done { moved } }
    }

    /// One system call for what is left of a batch.
    fn send_batch(&self, mem: &mut QpMemory<'_>, batch: &TxBatch, at: usize) -> Attempt {
        if let [Chunk::Staged(range)] = batch.chunks()
            && let Some(octets) = batch.staged().get(range.start + at..range.end)
        {
            return send(&self.socket, octets);
        }
        self.gather(mem, batch, at)
    }

    /// Sends staged octets and registered memory together.
    #[cold]
    fn gather(&self, mem: &mut QpMemory<'_>, batch: &TxBatch, at: usize) -> Attempt {
        let mut pieces: SmallVec<[Gathered<'_>; 16]> = SmallVec::new();
        // What is left for another call goes on in this record, perhaps within an FPDU.
        let mut flags = SendFlags::END_OF_RECORD;
        let mut skip = at;
        for chunk in batch.chunks() {
            let len = chunk.len();
            if skip >= len {
                skip -= len;
                continue;
            }
            if pieces.len() + 16 > GatherList::MAX {
                flags = SendFlags::empty();
                break;
            }
            if self.collect(mem, batch, chunk, std::mem::take(&mut skip), &mut pieces).is_err() {
                return Attempt::SourceGone(chunk.clone());
            }
        }
        let mut list = GatherList::new();
        for piece in &pieces {
            match piece {
                Gathered::Octets(octets) => list.push_bytes(octets),
                Gathered::Region { region, offset, len, chunk } => {
                    if list.push_region(region, *offset, *len).is_err() {
                        return Attempt::SourceGone((*chunk).clone());
                    }
                }
            }
        }
        attempt(list.send(self.socket.as_fd(), flags))
    }

    /// Finds the memory of one chunk, from `skip` on.
    fn collect<'a>(
        &'a self,
        mem: &mut QpMemory<'_>,
        batch: &'a TxBatch,
        chunk: &'a Chunk,
        skip: usize,
        pieces: &mut SmallVec<[Gathered<'a>; 16]>,
    ) -> Result<(), ()> {
        match chunk {
            Chunk::Staged(range) => {
                let octets = batch.staged().get(range.start + skip..range.end).ok_or(())?;
                pieces.push(Gathered::Octets(octets));
                Ok(())
            }
            Chunk::Local { op, offset, len } => {
                let wqe = self.stream.source_buffer(*op).ok_or(())?;
                let from = offset + skip as u64;
                let domain = mem.domain();
                walk(wqe.payload(), from, len - skip, |piece, _, len| {
                    pieces.push(match piece {
                        Piece::Inline(octets) => Gathered::Octets(octets),
                        Piece::Region { region, offset } => {
                            Gathered::Region { region: Arc::clone(region), offset, len, chunk }
                        }
                        Piece::Raw { at, key } => {
                            let (region, offset) = raw(domain, Access::empty(), at, len, key)?;
                            Gathered::Region { region, offset, len, chunk }
                        }
                    });
                    Ok(())
                })
                .map_err(drop)
            }
            Chunk::Remote { stag, offset, len } => {
                let from = offset.wrapping_add(skip as u64);
                let len = len - skip;
                let (region, offset) = mem.remote_source(*stag, from, len).map_err(drop)?;
                pieces.push(Gathered::Region { region, offset, len, chunk });
                Ok(())
            }
        }
    }
}

/// Memory that one system call sends.
enum Gathered<'a> {
    Octets(&'a [u8]),
    Region { region: Arc<Region>, offset: usize, len: usize, chunk: &'a Chunk },
}

/// What is left of a batch, if it is staged, contiguous and no longer than `most`.
fn staged_rest(batch: &TxBatch, at: usize, most: usize) -> Option<&[u8]> {
    let [Chunk::Staged(range)] = batch.chunks() else { return None };
    let rest = batch.staged().get(range.start + at..range.end)?;
    (rest.len() <= most).then_some(rest)
}

/// Sends private octets, which end a record (MPA-072).
#[inline]
fn send(socket: &Socket, octets: &[u8]) -> Attempt {
    attempt(socket.send_record(octets))
}

fn attempt(sent: io::Result<usize>) -> Attempt {
    match sent {
        Ok(sent) => Attempt::Sent(sent),
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Attempt::Blocked,
        Err(error) => Attempt::Lost(lost_cause(&error)),
    }
}
