//! The completions of one queue, in order.

use std::collections::VecDeque;
use std::sync::Arc;

use smallvec::SmallVec;

use super::QueueSlots;
use crate::wc::WorkCompletion;

/// A completion on its way to the program.
#[derive(Debug)]
pub(crate) struct Cqe {
    pub(crate) wc: WorkCompletion,
    /// It is one that [`Notify::Solicited`](crate::Notify::Solicited) asks for: a message with the
    /// solicited-event bit, or an error.
    pub(crate) solicited_event: bool,
    /// Places of its work queue that become free when it is polled.
    pub(crate) release: Option<(Arc<QueueSlots>, u32)>,
}

/// Entries up to a capacity. Once it has overrun it takes no more, and keeps what it has.
#[derive(Debug)]
pub(super) struct Ring {
    entries: VecDeque<Entry>,
    capacity: usize,
    overrun: bool,
}

#[derive(Debug)]
struct Entry {
    wc: WorkCompletion,
    release: Option<(Arc<QueueSlots>, u32)>,
}

/// What became of a completion.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Pushed {
    Stored,
    /// There was no room: the queue is broken from now on.
    Overrun,
    /// The queue was broken before.
    Dropped,
}

/// Places to give back once the ring is unlocked: one count for completions of the same queue in a row.
pub(super) type Releases = SmallVec<[(Arc<QueueSlots>, u32); 2]>;

impl Ring {
    /// Memory is taken as entries come.
    pub(super) fn new(capacity: u32) -> Self {
        Self {
            entries: VecDeque::new(),
            capacity: usize::try_from(capacity).unwrap_or(usize::MAX),
            overrun: false,
        }
    }

    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    pub(super) fn has_overrun(&self) -> bool {
        self.overrun
    }

    /// Appends a completion. One that finds no place is lost, and gives its own places back through
    /// `releases`: nobody will ever poll it.
    pub(super) fn push(
        &mut self,
        wc: WorkCompletion,
        release: Option<(Arc<QueueSlots>, u32)>,
        releases: &mut Releases,
    ) -> Pushed {
        if !self.overrun && self.entries.len() < self.capacity {
            self.entries.push_back(Entry { wc, release });
            return Pushed::Stored;
        }
        collect(release, releases);
        if std::mem::replace(&mut self.overrun, true) { Pushed::Dropped } else { Pushed::Overrun }
    }

    /// Takes the oldest.
    pub(super) fn pop(&mut self, releases: &mut Releases) -> Option<WorkCompletion> {
        let Entry { wc, release } = self.entries.pop_front()?;
        collect(release, releases);
        Some(wc)
    }

    /// Takes up to `max` of the oldest.
    pub(super) fn drain(
        &mut self,
        max: usize,
        out: &mut Vec<WorkCompletion>,
        releases: &mut Releases,
    ) -> usize {
        let n = max.min(self.entries.len());
        for Entry { wc, release } in self.entries.drain(..n) {
            collect(release, releases);
            out.push(wc);
        }
        n
    }

    /// Throws away the completions of one queue pair.
    pub(super) fn purge(&mut self, qp_number: u32, releases: &mut Releases) {
        self.entries.retain_mut(|entry| {
            let stays = entry.wc.qp_num != qp_number;
            if !stays {
                collect(entry.release.take(), releases);
            }
            stays
        });
    }
}

#[inline]
fn collect(release: Option<(Arc<QueueSlots>, u32)>, releases: &mut Releases) {
    let Some((slots, n)) = release else { return };
    match releases.last_mut() {
        Some((last, sum)) if Arc::ptr_eq(last, &slots) => *sum = sum.saturating_add(n),
        _ => releases.push((slots, n)),
    }
}
