//! The send queue: operations in order, from submission to completion.

use std::collections::VecDeque;

use crate::operation::{Operation, OperationKind, Outcome};

/// An operation that is over.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Done<B> {
    pub(crate) buffer: B,
    pub(crate) kind: OperationKind,
    pub(crate) outcome: Outcome,
    pub(crate) len: u32,
}

#[derive(Debug)]
pub(crate) struct Entry<B> {
    pub(crate) kind: OperationKind,
    pub(crate) len: u32,
    pub(crate) fence: bool,
    /// Away while the entry is an outstanding Read or Atomic: the receiver has it.
    buffer: Option<B>,
    progress: Progress,
    /// Set for the one entry that ends in its own way.
    verdict: Option<Outcome>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Progress {
    /// Not a whole message went out yet.
    Queued,
    /// A Send or Write whose last octet is the one before this stream position.
    Sent { end: u64, msn: Option<u32> },
    /// A Read or Atomic that waits for its response.
    Outstanding { msn: u32 },
    /// A Read or Atomic whose response came, or local work that is in effect.
    Answered,
}

impl<B> Entry<B> {
    /// Whether it takes an answer of the peer: a Read or an Atomic, which are counted together (EXT-10).
    pub(crate) const fn is_request(&self) -> bool {
        matches!(self.kind, OperationKind::Read { .. } | OperationKind::Atomic { .. })
    }
}

/// Operations in order of submission (ORD-11, RDMAP-012, RDMAP-043). The front part went out and waits to complete, then comes the one
/// that is being sent, then those that wait.
#[derive(Debug)]
pub(crate) struct SendQueue<B> {
    entries: VecDeque<Entry<B>>,
    /// Number of the front entry. Numbers are never used twice on a stream.
    base: u64,
    /// Place of the entry to send from.
    current: usize,
    /// Reads and Atomics that wait for a response.
    outstanding: usize,
    /// Reads and Atomics without a response, sent or not.
    unanswered: usize,
}

impl<B> SendQueue<B> {
    pub(crate) const fn new() -> Self {
        Self { entries: VecDeque::new(), base: 0, current: 0, outstanding: 0, unanswered: 0 }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    pub(crate) fn shrink_to_fit(&mut self) {
        self.entries.shrink_to_fit();
    }

    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }

    /// Reads and Atomics that wait for a response.
    pub(crate) const fn outstanding(&self) -> usize {
        self.outstanding
    }

    /// Reads and Atomics without a response, sent or not.
    pub(crate) const fn unanswered(&self) -> usize {
        self.unanswered
    }

    #[inline]
    pub(crate) fn push(&mut self, operation: Operation<B>) {
        let Operation { kind, len, fence, buffer } = operation;
        let entry = Entry {
            kind,
            len,
            fence,
            buffer: Some(buffer),
            progress: Progress::Queued,
            verdict: None,
        };
        if entry.is_request() {
            self.unanswered = self.unanswered.saturating_add(1);
        }
        if self.entries.capacity() == 0 {
            // A ring begins with room for four of these, where an exchange of single messages needs one.
            self.entries.reserve_exact(1);
        }
        self.entries.push_back(entry);
    }

    /// The operation to send from.
    #[inline]
    pub(crate) fn current(&self) -> Option<&Entry<B>> {
        self.entries.get(self.current)
    }

    /// Its number.
    #[inline]
    pub(crate) fn current_id(&self) -> u64 {
        self.base.wrapping_add(self.current as u64)
    }

    /// The buffer of the operation to send from.
    #[inline]
    pub(crate) fn current_buffer(&self) -> Option<&B> {
        self.current()?.buffer.as_ref()
    }

    pub(crate) fn buffer(&self, id: u64) -> Option<&B> {
        self.entries.get(self.place(id)?)?.buffer.as_ref()
    }

    fn place(&self, id: u64) -> Option<usize> {
        usize::try_from(id.wrapping_sub(self.base)).ok()
    }

    /// The last segment of the present Send or Write went out.
    #[inline]
    pub(crate) fn sent(&mut self, end: u64, msn: Option<u32>) {
        if let Some(entry) = self.entries.get_mut(self.current) {
            entry.progress = Progress::Sent { end, msn };
            self.current = self.current.saturating_add(1);
        }
    }

    /// The request of the present Read or Atomic went out. Gives its number and its buffer, which comes back with
    /// [`answered`](Self::answered) or [`give_back`](Self::give_back).
    pub(crate) fn requested(&mut self, msn: u32) -> Option<(u64, B)> {
        let id = self.current_id();
        let entry = self.entries.get_mut(self.current)?;
        let buffer = entry.buffer.take()?;
        entry.progress = Progress::Outstanding { msn };
        self.current = self.current.saturating_add(1);
        self.outstanding = self.outstanding.saturating_add(1);
        Some((id, buffer))
    }

    /// The present local work is in effect.
    pub(crate) fn performed(&mut self) {
        if let Some(entry) = self.entries.get_mut(self.current) {
            entry.progress = Progress::Answered;
            self.current = self.current.saturating_add(1);
        }
    }

    /// The response of a Read or Atomic is complete.
    pub(crate) fn answered(&mut self, id: u64, buffer: B) {
        let Some(entry) = self.place(id).and_then(|place| self.entries.get_mut(place)) else {
            return;
        };
        entry.buffer = Some(buffer);
        entry.progress = Progress::Answered;
        self.outstanding = self.outstanding.saturating_sub(1);
        self.unanswered = self.unanswered.saturating_sub(1);
    }

    /// The buffer of a Read or Atomic whose response will not come.
    pub(crate) fn give_back(&mut self, id: u64, buffer: B, verdict: Option<Outcome>) {
        if let Some(entry) = self.place(id).and_then(|place| self.entries.get_mut(place)) {
            entry.buffer = Some(buffer);
            entry.verdict = entry.verdict.or(verdict);
        }
    }

    /// The present operation is the culprit.
    pub(crate) fn condemn_current(&mut self, verdict: Outcome) {
        if let Some(entry) = self.entries.get_mut(self.current) {
            entry.verdict = Some(verdict);
        }
    }

    /// The operation with this number is the culprit.
    pub(crate) fn condemn(&mut self, id: u64, verdict: Outcome) {
        if let Some(entry) = self.place(id).and_then(|place| self.entries.get_mut(place)) {
            entry.verdict = Some(verdict);
        }
    }

    /// The first operation that `is_meant` and whose sending has begun; `in_sending` tells what is known
    /// of the present one. Gives whether there was one.
    pub(crate) fn condemn_first(
        &mut self,
        verdict: Outcome,
        present: Option<Sight>,
        is_meant: impl Fn(&OperationKind, u32, Sight) -> bool,
    ) -> bool {
        let sights = self.entries.iter().map(|entry| match entry.progress {
            Progress::Sent { msn, .. } => Some(Sight { outstanding: false, msn }),
            Progress::Outstanding { msn } => Some(Sight { outstanding: true, msn: Some(msn) }),
            Progress::Queued | Progress::Answered => None,
        });
        let found = self.entries.iter().zip(sights).enumerate().find(|(place, (entry, sight))| {
            let sight = if *place == self.current { present } else { *sight };
            sight.is_some_and(|sight| is_meant(&entry.kind, entry.len, sight))
        });
        let Some((place, _)) = found else { return false };
        if let Some(entry) = self.entries.get_mut(place) {
            entry.verdict = Some(verdict);
        }
        true
    }

    /// Takes the front operation if it is complete: in order, whatever finished first (ORD-13).
    #[inline]
    pub(crate) fn retire(&mut self, transmitted: u64) -> Option<Done<B>> {
        if self.front_is_complete(transmitted) { self.take_front(Outcome::Success) } else { None }
    }

    /// The same, of which only buffer and length are wanted.
    #[inline]
    pub(crate) fn retire_success(&mut self, transmitted: u64) -> Option<(B, u32)> {
        if !self.front_is_complete(transmitted) {
            return None;
        }
        let entry = self.entries.front_mut()?;
        let success = entry.buffer.take().map(|buffer| (buffer, entry.len));
        self.drop_front();
        success
    }

    #[inline]
    fn front_is_complete(&self, transmitted: u64) -> bool {
        self.entries.front().is_some_and(|front| {
            front.verdict.is_none()
                && match front.progress {
                    // ORD-12, DDP-036
                    Progress::Sent { end, .. } => end <= transmitted,
                    Progress::Answered => true, // ORD-15
                    Progress::Queued | Progress::Outstanding { .. } => false,
                }
        })
    }

    #[inline]
    fn drop_front(&mut self) {
        self.entries.pop_front();
        self.base = self.base.wrapping_add(1);
        self.current = self.current.saturating_sub(1);
    }

    /// Takes the front operation although it is not complete.
    pub(crate) fn flush(&mut self) -> Option<Done<B>> {
        self.take_front(Outcome::Flushed)
    }

    #[inline]
    fn take_front(&mut self, outcome: Outcome) -> Option<Done<B>> {
        // Out of its place, rather than with all the rest of the entry.
        let entry = self.entries.front_mut()?;
        let done = entry.buffer.take().map(|buffer| Done {
            buffer,
            kind: std::mem::replace(&mut entry.kind, OperationKind::Local),
            outcome: entry.verdict.unwrap_or(outcome),
            len: entry.len,
        });
        self.drop_front();
        done
    }
}

/// What is known of an operation whose sending has begun.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Sight {
    /// It is a Read or Atomic that waits for its response.
    pub(crate) outstanding: bool,
    /// Message number, of those that have one.
    pub(crate) msn: Option<u32>,
}

#[cfg(test)]
mod tests {
    use iwarp_ddp::Stag;

    use super::*;

    const SEND: OperationKind = OperationKind::Send { solicited: false, invalidate: None };
    const READ: OperationKind = OperationKind::Read {
        sink_stag: Stag::from_raw(1),
        sink_offset: 0,
        source_stag: Stag::from_raw(2),
        source_offset: 0,
    };

    fn queue(kinds: &[OperationKind]) -> SendQueue<usize> {
        let mut queue = SendQueue::new();
        for (buffer, kind) in kinds.iter().enumerate() {
            let kind = kind.clone();
            queue.push(Operation { kind, len: 10, fence: false, buffer });
        }
        queue
    }

    fn retired(queue: &mut SendQueue<usize>, transmitted: u64) -> Vec<usize> {
        std::iter::from_fn(|| queue.retire(transmitted)).map(|done| done.buffer).collect()
    }

    #[test]
    fn a_send_is_done_when_its_last_octet_is_accepted() {
        // ORD-12
        let mut queue = queue(&[SEND, SEND]);
        queue.sent(100, Some(1));
        queue.sent(200, Some(2));
        assert_eq!(retired(&mut queue, 99), []);
        assert_eq!(retired(&mut queue, 100), [0]);
        assert_eq!(retired(&mut queue, 200), [1]);
        assert!(queue.is_empty());
    }

    #[test]
    fn what_is_behind_a_read_waits_for_it() {
        // ORD-13
        let mut queue = queue(&[READ, SEND, READ, SEND]);
        let (first, buffer) = queue.requested(1).unwrap();
        queue.sent(200, Some(1));
        let (second, other) = queue.requested(2).unwrap();
        queue.sent(300, Some(2));
        assert_eq!(queue.outstanding(), 2);
        assert_eq!(retired(&mut queue, 300), []);
        // Answers come in order (RDMAP-032); nothing here depends on it.
        queue.answered(second, other);
        assert_eq!(retired(&mut queue, 300), []);
        queue.answered(first, buffer);
        assert_eq!(retired(&mut queue, 300), [0, 1, 2, 3]);
        assert_eq!((queue.outstanding(), queue.unanswered()), (0, 0));
    }

    #[test]
    fn flush_gives_everything_back_in_order() {
        let mut queue = queue(&[READ, SEND, SEND]);
        let (id, buffer) = queue.requested(1).unwrap();
        queue.sent(100, Some(1));
        queue.condemn_current(Outcome::LocalProtection);
        queue.give_back(id, buffer, None);
        let flushed: Vec<_> = std::iter::from_fn(|| queue.flush()).collect();
        let outcomes: Vec<_> = flushed.iter().map(|done| (done.buffer, done.outcome)).collect();
        let expected =
            [(0, Outcome::Flushed), (1, Outcome::Flushed), (2, Outcome::LocalProtection)];
        assert_eq!(outcomes, expected);
    }

    #[test]
    fn a_condemned_operation_does_not_succeed() {
        let mut queue = queue(&[SEND]);
        queue.sent(100, Some(1));
        queue.condemn(0, Outcome::RemoteAccess);
        assert_eq!(retired(&mut queue, 100), []);
        assert_eq!(queue.flush().unwrap().outcome, Outcome::RemoteAccess);
    }

    #[test]
    fn numbers_stay_when_earlier_operations_leave() {
        let mut queue = queue(&[SEND, SEND, SEND]);
        queue.sent(100, Some(1));
        assert_eq!(retired(&mut queue, 100), [0]);
        assert_eq!(queue.current_id(), 1);
        assert_eq!(queue.buffer(0), None);
        assert_eq!(queue.buffer(2), Some(&2));
        assert_eq!(queue.buffer(3), None);
    }

    #[test]
    fn the_operation_a_terminate_names_is_found() {
        let mut queue = queue(&[READ, SEND, READ, READ]);
        let first = queue.requested(1).unwrap();
        queue.sent(100, Some(1));
        let second = queue.requested(2).unwrap();
        let is_read =
            |_: &OperationKind, _: u32, sight: Sight| sight.outstanding && sight.msn == Some(2);
        assert!(queue.condemn_first(Outcome::RemoteAccess, None, is_read));
        // The third Read has not gone out: no Terminate can be about it.
        let is_third = |_: &OperationKind, _: u32, sight: Sight| sight.msn == Some(3);
        assert!(!queue.condemn_first(Outcome::RemoteAccess, None, is_third));
        queue.give_back(first.0, first.1, None);
        queue.give_back(second.0, second.1, None);
        let outcomes: Vec<_> =
            std::iter::from_fn(|| queue.flush()).map(|done| done.outcome).collect();
        let flushed = Outcome::Flushed;
        assert_eq!(outcomes, [flushed, flushed, Outcome::RemoteAccess, flushed]);
    }
}
