//! What the protocol stream sees of registered memory and of the receive queue.

use std::collections::VecDeque;
use std::sync::{Arc, Weak};

use iwarp_ddp::{LocalFault, Placement, Refusal, Source, Stag};
use iwarp_rdmap::{
    AtomicOperation, AtomicRefusal, InvalidateRefusal, Memory, Outcome, Receive, Received, Sink,
    WorkRefused,
};

use super::outbox::Outbox;
use super::report::{Received as Message, Reporter};
use crate::mem::{Access, KeyTable, MemoryError, PdId, Peer, Region};
use crate::qp::QpInner;
use crate::qp::wqe::{Payload, RecvWqe, Wqe};

/// The memory behind one queue pair, for the length of one pass.
///
/// Every copy asks the region again whether it is allowed. Only the look-up of the key is kept: for the
/// pass, and weakly for the next one, so that an idle connection keeps no region alive.
pub(super) struct QpMemory<'a> {
    qp: &'a QpInner,
    peer: Peer,
    /// The region found last in this pass.
    found: Option<Arc<Region>>,
    recent: &'a mut Recent,
    /// Receives that have left the receive queue, and come before those in it.
    ahead: &'a mut VecDeque<RecvWqe>,
    /// The queue pair was destroyed: nothing moves any more.
    closed: bool,
    /// Makes completions, at once, of what is received.
    pub(super) reporter: &'a mut Reporter,
    pub(super) out: &'a mut Outbox,
    /// Receives taken in this pass.
    pub(super) taken: usize,
    /// Receives reported past the events in this pass.
    pub(super) reported: usize,
}

/// The region that a peer named last.
#[derive(Debug, Default)]
pub(super) struct Recent {
    stag: Option<Stag>,
    region: Weak<Region>,
}

impl Recent {
    /// The region with this key. A key that was taken out of force may still be found here, as it may
    /// have been found in the table a moment before; the region refuses it.
    fn find(&mut self, stag: Stag) -> Option<Arc<Region>> {
        if self.stag == Some(stag)
            && let Some(region) = self.region.upgrade()
        {
            return Some(region);
        }
        let region = KeyTable::of_process().lookup(stag)?;
        *self = Self { stag: Some(stag), region: Arc::downgrade(&region) };
        Some(region)
    }
}

impl<'a> QpMemory<'a> {
    pub(super) fn new(
        qp: &'a QpInner,
        recent: &'a mut Recent,
        ahead: &'a mut VecDeque<RecvWqe>,
        closed: bool,
        reporter: &'a mut Reporter,
        out: &'a mut Outbox,
    ) -> Self {
        let peer = qp.peer();
        Self { qp, peer, found: None, recent, ahead, closed, reporter, out, taken: 0, reported: 0 }
    }

    pub(super) fn qp(&self) -> &QpInner {
        self.qp
    }

    pub(super) fn domain(&self) -> PdId {
        self.peer.domain
    }

    /// Where memory lies that the peer reads and that is sent from in place: all checks, again.
    pub(super) fn remote_source(
        &mut self,
        stag: Stag,
        offset: u64,
        len: usize,
    ) -> Result<(Arc<Region>, usize), Refusal> {
        let (peer, need) = (self.peer, Access::REMOTE_READ);
        let at =
            self.with(stag, |region| region.check_remote(peer, stag, need, offset, len as u64))?;
        let region = self.found.clone().ok_or(Refusal::InvalidStag)?;
        Ok((region, at))
    }

    /// Does something with the region that has this key.
    ///
    /// A window or a fast-registered region may have got new memory under the key it had before; then what
    /// was found last is not it any more, and says so.
    #[inline]
    fn with<R, E: From<Refusal> + PartialEq>(
        &mut self,
        stag: Stag,
        mut access: impl FnMut(&Region) -> Result<R, E>,
    ) -> Result<R, E> {
        match access(self.find(stag)?) {
            Err(refusal) if refusal == Refusal::InvalidStag.into() => access(self.find_anew(stag)?),
            done => done,
        }
    }

    #[cold]
    fn find_anew(&mut self, stag: Stag) -> Result<&Region, Refusal> {
        self.found = None;
        *self.recent = Recent::default();
        self.find(stag)
    }

    /// Puts octets into a sink that the socket is to fill behind them. `None` if that is refused.
    pub(super) fn place(&mut self, sink: &Sink<'_, Wqe>, octets: &[u8]) -> Option<()> {
        match *sink {
            _ if octets.is_empty() => Some(()),
            Sink::Tagged { stag, offset } => self.place_tagged(stag, offset, octets).ok(),
            Sink::Local { buffer, offset } => self.place_local(buffer, offset, octets).ok(),
        }
    }

    /// Where memory lies that the socket is to put `len` octets into: all checks, again. `None` if one of them
    /// fails, and also unless all lie in one piece of one region.
    pub(super) fn straight_sink(
        &mut self,
        sink: &Sink<'_, Wqe>,
        len: usize,
    ) -> Option<(Arc<Region>, usize)> {
        if self.closed {
            return None;
        }
        let (region, at) = match *sink {
            Sink::Tagged { stag, offset } => {
                let (peer, need, len) = (self.peer, Access::REMOTE_WRITE, len as u64);
                let check = |region: &Region| region.check_remote(peer, stag, need, offset, len);
                let at = self.with(stag, check).ok()?;
                (self.found.clone()?, at)
            }
            Sink::Local { buffer, offset } => {
                let (domain, need) = (self.sink_domain(buffer), Access::LOCAL_WRITE);
                let mut found = None;
                walk(buffer.payload(), offset, len, |piece, _, part| {
                    found = match piece {
                        Piece::Region { region, offset }
                            if part == len && region.access().contains(need) =>
                        {
                            Some((Arc::clone(region), offset))
                        }
                        Piece::Raw { at, key } if part == len => {
                            Some(raw(domain, need, at, len, key)?)
                        }
                        _ => None,
                    };
                    Ok(())
                })
                .ok()?;
                found?
            }
        };
        region.is_in_one_piece(at, len).then_some((region, at))
    }

    /// The domain in which the keys of a receive or of the sink of a Read are looked up: with a shared receive
    /// queue they may be different ones.
    fn sink_domain(&self, sink: &Wqe) -> PdId {
        match sink {
            Wqe::Receive(_) => self.qp.rq.domain(self.peer.domain),
            Wqe::Send(_) => self.peer.domain,
        }
    }

    fn find(&mut self, stag: Stag) -> Result<&Region, Refusal> {
        if self.closed {
            return Err(Refusal::InvalidStag);
        }
        // The region itself compares the whole key again.
        if self.found.as_ref().is_none_or(|region| region.stag() != stag) {
            self.found = self.recent.find(stag);
        }
        self.found.as_deref().ok_or(Refusal::InvalidStag)
    }
}

impl Placement for QpMemory<'_> {
    type Buffer = Wqe;

    fn place_tagged(&mut self, stag: Stag, offset: u64, payload: &[u8]) -> Result<(), Refusal> {
        let peer = self.peer;
        self.with(stag, |region| region.place(peer, stag, offset, payload))
    }

    fn place_local(&mut self, sink: &Wqe, offset: u64, payload: &[u8]) -> Result<(), LocalFault> {
        let domain = self.sink_domain(sink);
        walk(sink.payload(), offset, payload.len(), |piece, from, len| {
            let octets = payload.get(from..from + len).ok_or(LocalFault::Length)?;
            match piece {
                // Refused at posting; nothing could be seen of it afterwards.
                Piece::Inline(_) => Err(LocalFault::Protection),
                Piece::Region { region, offset } => Ok(region.copy_in(offset, octets)?),
                Piece::Raw { at, key } => {
                    let (region, offset) = raw(domain, Access::LOCAL_WRITE, at, octets.len(), key)?;
                    Ok(region.copy_in(offset, octets)?)
                }
            }
        })
    }
}

impl Source for QpMemory<'_> {
    type Buffer = Wqe;

    fn check_tagged(&mut self, stag: Stag, offset: u64, len: u32) -> Result<(), Refusal> {
        let peer = self.peer;
        let need = Access::REMOTE_READ;
        self.with(stag, |region| region.check_remote(peer, stag, need, offset, u64::from(len)))
            .map(drop)
    }

    fn read_tagged(&mut self, stag: Stag, offset: u64, into: &mut [u8]) -> Result<(), Refusal> {
        let peer = self.peer;
        self.with(stag, |region| region.fetch(peer, stag, offset, into))
    }

    fn read_local(&mut self, source: &Wqe, offset: u64, into: &mut [u8]) -> Result<(), LocalFault> {
        let domain = self.peer.domain;
        walk(source.payload(), offset, into.len(), |piece, from, len| {
            let octets = into.get_mut(from..from + len).ok_or(LocalFault::Length)?;
            match piece {
                Piece::Inline(source) => {
                    octets.copy_from_slice(source);
                    Ok(())
                }
                Piece::Region { region, offset } => Ok(region.copy_out(offset, octets)?),
                Piece::Raw { at, key } => {
                    let (region, offset) = raw(domain, Access::empty(), at, octets.len(), key)?;
                    Ok(region.copy_out(offset, octets)?)
                }
            }
        })
    }
}

impl Memory<Wqe> for QpMemory<'_> {
    fn take_receive(&mut self) -> Option<Receive<Wqe>> {
        if self.closed {
            return None;
        }
        let next = self.ahead.pop_front();
        let wqe = next.or_else(|| self.qp.rq.take(self.ahead, self.out))?;
        self.taken += 1;
        let capacity = wqe.payload.len();
        Some(Receive { buffer: Wqe::Receive(wqe), capacity })
    }

    #[inline]
    fn received(&mut self, message: Received<Wqe>) -> Option<Received<Wqe>> {
        let Received { buffer, len, solicited, invalidated, immediate } = message;
        match buffer {
            Wqe::Receive(wqe) => {
                self.reported += 1;
                let invalidated = invalidated.map(Stag::raw);
                let message = Message { len, solicited, invalidated, immediate };
                self.reporter.received(self.qp, wqe, Outcome::Success, message, self.out);
                None
            }
            buffer @ Wqe::Send(_) => {
                Some(Received { buffer, len, solicited, invalidated, immediate })
            }
        }
    }

    fn check_atomic(&mut self, stag: Stag, offset: u64) -> Result<(), AtomicRefusal> {
        let peer = self.peer;
        self.with(stag, |region| region.check_atomic(peer, stag, offset))
    }

    fn atomic(
        &mut self,
        stag: Stag,
        offset: u64,
        operation: AtomicOperation,
    ) -> Result<u64, AtomicRefusal> {
        let peer = self.peer;
        // EXT-04
        self.with(stag, |region| region.atomic(peer, stag, offset, operation))
    }

    fn invalidate(&mut self, stag: Stag) -> Result<(), InvalidateRefusal> {
        let peer = self.peer;
        // RDMAP-045, RDMAP-077. What was found before may be the end of an earlier binding.
        let region = self.find_anew(stag).map_err(|_| InvalidateRefusal::Unknown)?;
        region.check_invalidate(peer, stag).map_err(|refusal| match refusal {
            Refusal::Rights => InvalidateRefusal::Rights,
            Refusal::NotAssociated => InvalidateRefusal::NotInvalidatable,
            Refusal::InvalidStag | Refusal::Wrap | Refusal::Bounds => InvalidateRefusal::Unknown,
        })?;
        // A window may have been bound to it just now.
        region.invalidate().map_err(|_| InvalidateRefusal::NotInvalidatable)
    }

    fn perform(&mut self, work: &Wqe) -> Result<(), WorkRefused> {
        let Payload::Work(work) = work.payload() else { return Err(WorkRefused) };
        if self.closed {
            return Err(WorkRefused);
        }
        match work.perform(self.peer) {
            Ok(window) => {
                if let Some(window) = window {
                    self.qp.owns(&window);
                }
                Ok(())
            }
            Err(error) => {
                tracing::debug!(qp = self.qp.number, %error, ?work, "local work request refused");
                Err(WorkRefused)
            }
        }
    }
}

/// A contiguous part of the local side of a request.
pub(super) enum Piece<'a> {
    Inline(&'a [u8]),
    Region { region: &'a Arc<Region>, offset: usize },
    Raw { at: u64, key: u32 },
}

/// Finds the region of an element that the program gave as address and key (RFC 5041 §7.1 asks the
/// same of remote buffers): valid, of this protection domain, with the right, and wide enough.
pub(super) fn raw(
    domain: PdId,
    need: Access,
    at: u64,
    len: usize,
    key: u32,
) -> Result<(Arc<Region>, usize), MemoryError> {
    let unknown = MemoryError::UnknownKey { key };
    let region = KeyTable::of_process().lookup(Stag::from_raw(key)).ok_or(unknown)?;
    let offset = region.check_local(domain, need, at, len as u64)?;
    Ok((region, offset))
}

/// Cuts `len` octets from `offset` on into pieces that lie in one element each, in order. The
/// function gets each piece, and where in the `len` octets it belongs.
#[inline]
pub(super) fn walk<'a>(
    payload: &'a Payload,
    offset: u64,
    len: usize,
    mut each: impl FnMut(Piece<'a>, usize, usize) -> Result<(), LocalFault>,
) -> Result<(), LocalFault> {
    // Mostly there is one element, and the range lies in it.
    if let Payload::Slices(slices) = payload
        && let [slice] = &slices[..]
        && let Some(room) = (slice.len() as u64).checked_sub(offset)
        && len as u64 <= room
    {
        let offset = slice.offset() + usize::try_from(offset).map_err(|_| LocalFault::Length)?;
        return each(Piece::Region { region: slice.region().region(), offset }, 0, len);
    }
    let mut cut = Cut { skip: offset, wanted: len, done: 0 };
    match payload {
        Payload::Inline(octets) => {
            if let Some((start, at, len)) = cut.next(octets.len() as u64) {
                let part = octets.get(start..start + len).ok_or(LocalFault::Length)?;
                each(Piece::Inline(part), at, len)?;
            }
        }
        Payload::Slices(slices) => {
            for slice in slices {
                if let Some((start, at, len)) = cut.next(slice.len() as u64) {
                    let offset = slice.offset() + start;
                    each(Piece::Region { region: slice.region().region(), offset }, at, len)?;
                }
            }
        }
        Payload::Raw(elements) => {
            for sge in elements {
                if let Some((start, at, len)) = cut.next(u64::from(sge.length)) {
                    let first = sge.addr.wrapping_add(start as u64);
                    each(Piece::Raw { at: first, key: sge.lkey }, at, len)?;
                }
            }
        }
        Payload::Work(_) => {}
    }
    if cut.done == cut.wanted { Ok(()) } else { Err(LocalFault::Length) }
}

/// Position of a walk over elements.
struct Cut {
    /// Octets of the request still in front of the range.
    skip: u64,
    wanted: usize,
    done: usize,
}

impl Cut {
    /// What of an element of `size` octets lies in the range: where in the element, where in the range,
    /// and how much. Nothing of length 0 is ever named, so the key of an empty element does not matter.
    fn next(&mut self, size: u64) -> Option<(usize, usize, usize)> {
        if self.skip >= size {
            self.skip -= size;
            return None;
        }
        let start = std::mem::take(&mut self.skip);
        let room = usize::try_from(size - start).unwrap_or(usize::MAX);
        let len = room.min(self.wanted - self.done);
        if len == 0 {
            return None;
        }
        let at = self.done;
        self.done += len;
        Some((usize::try_from(start).ok()?, at, len))
    }
}

#[cfg(test)]
mod tests {
    use smallvec::smallvec;

    use super::*;
    use crate::wr::RawSge;

    /// Which octets of which elements a range of the request is.
    fn pieces(
        sizes: &[u32],
        offset: u64,
        len: usize,
    ) -> Result<Vec<(u32, u64, usize)>, LocalFault> {
        let elements = sizes.iter().enumerate().map(|(index, &length)| RawSge {
            addr: (index as u64 + 1) << 32,
            length,
            lkey: u32::try_from(index).unwrap(),
        });
        let payload = Payload::Raw(elements.collect());
        let mut found = Vec::new();
        let mut next = 0;
        walk(&payload, offset, len, |piece, at, len| {
            let Piece::Raw { at: addr, key } = piece else { panic!("not raw") };
            assert_eq!(at, next, "pieces follow each other");
            next += len;
            found.push((key, addr & 0xffff_ffff, len));
            Ok(())
        })?;
        Ok(found)
    }

    #[test]
    fn a_range_is_cut_at_element_boundaries() {
        assert_eq!(pieces(&[4, 3, 5], 0, 12), Ok(vec![(0, 0, 4), (1, 0, 3), (2, 0, 5)]));
        assert_eq!(pieces(&[4, 3, 5], 3, 2), Ok(vec![(0, 3, 1), (1, 0, 1)]));
        assert_eq!(pieces(&[4, 3, 5], 7, 5), Ok(vec![(2, 0, 5)]));
        assert_eq!(pieces(&[4, 3, 5], 12, 0), Ok(vec![]));
    }

    /// FC-068: the key of an element without octets is never looked at.
    #[test]
    fn empty_elements_are_passed_over() {
        assert_eq!(pieces(&[0, 4, 0, 0, 2, 0], 2, 4), Ok(vec![(1, 2, 2), (4, 0, 2)]));
        assert_eq!(pieces(&[0], 0, 0), Ok(vec![]));
        assert_eq!(pieces(&[], 0, 0), Ok(vec![]));
    }

    /// FC-022: nothing outside of the elements is ever named.
    #[test]
    fn a_range_beyond_the_elements_is_a_length_error() {
        assert_eq!(pieces(&[4, 3], 5, 3), Err(LocalFault::Length));
        assert_eq!(pieces(&[4, 3], 8, 1), Err(LocalFault::Length));
        assert_eq!(pieces(&[4, 3], u64::MAX, 1), Err(LocalFault::Length));
    }

    #[test]
    fn inline_octets_are_a_single_piece() {
        let payload = Payload::Inline(smallvec![1, 2, 3, 4]);
        let mut seen = Vec::new();
        walk(&payload, 1, 2, |piece, _, _| {
            let Piece::Inline(octets) = piece else { panic!("not inline") };
            seen.extend_from_slice(octets);
            Ok(())
        })
        .unwrap();
        assert_eq!(seen, [2, 3]);
    }
}
