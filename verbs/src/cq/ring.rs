//! The completions of one queue, in order.

use std::collections::VecDeque;
use std::sync::Arc;

use smallvec::SmallVec;

use super::QueueSlots;
use crate::wc::WorkCompletion;

/// A completion on its way to the program.
#[derive(Debug)]
pub(crate) struct Cqe<'a> {
    pub(crate) wc: WorkCompletion,
    /// It is one that [`Notify::Solicited`](crate::Notify::Solicited) asks for: a message with the
    /// solicited-event bit, or an error.
    pub(crate) solicited_event: bool,
    /// Places of its work queue that become free when it is polled.
    pub(crate) release: Option<(&'a Arc<QueueSlots>, u32)>,
}

/// Entries up to a capacity. Once it has overrun it takes no more, and keeps what it has.
#[derive(Debug)]
pub(super) struct Ring {
    entries: VecDeque<Entry>,
    /// Whose places the entries give back, in the same order. The last one stays when its entries are gone:
    /// most likely the next one is of the same queue, and no count of references has to be touched for it.
    runs: VecDeque<Run>,
    capacity: usize,
    overrun: bool,
}

#[derive(Debug)]
struct Entry {
    wc: WorkCompletion,
    places: u32,
}

/// Entries in a row of one work queue.
#[derive(Debug)]
struct Run {
    slots: Option<Arc<QueueSlots>>,
    entries: usize,
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

/// Queues of which so many places have become free, to be told once the ring is unlocked: somebody waits for
/// them.
pub(super) type Awaited = SmallVec<[(Arc<QueueSlots>, u32); 1]>;

impl Ring {
    /// Memory is taken as entries come.
    pub(super) fn new(capacity: u32) -> Self {
        Self {
            entries: VecDeque::new(),
            runs: VecDeque::new(),
            capacity: usize::try_from(capacity).unwrap_or(usize::MAX),
            overrun: false,
        }
    }

    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    /// Changes how many it takes; not below what it holds.
    pub(super) fn resize(&mut self, capacity: u32) {
        self.capacity = usize::try_from(capacity).unwrap_or(usize::MAX);
        debug_assert!(self.entries.len() <= self.capacity, "completions would have no place");
        self.entries.shrink_to(self.capacity);
    }

    pub(super) fn has_overrun(&self) -> bool {
        self.overrun
    }

    /// Appends a completion. One that finds no room is lost, and gives its own places back: nobody will
    /// ever poll it.
    pub(super) fn push(
        &mut self,
        wc: WorkCompletion,
        release: Option<(&Arc<QueueSlots>, u32)>,
        awaited: &mut Awaited,
    ) -> Pushed {
        let (slots, places) = release.map_or((None, 0), |(slots, n)| (Some(slots), n));
        if !self.overrun && self.entries.len() < self.capacity {
            self.entries.push_back(Entry { wc, places });
            self.lengthen_run(slots);
            return Pushed::Stored;
        }
        give_back(slots, places, awaited);
        if std::mem::replace(&mut self.overrun, true) { Pushed::Dropped } else { Pushed::Overrun }
    }

    #[inline]
    fn lengthen_run(&mut self, slots: Option<&Arc<QueueSlots>>) {
        if let Some(last) = self.runs.back_mut() {
            if last.slots.as_ref().map(Arc::as_ptr) == slots.map(Arc::as_ptr) {
                last.entries += 1;
                return;
            }
            if last.entries == 0 {
                *last = Run { slots: slots.cloned(), entries: 1 };
                return;
            }
        } else {
            self.runs.reserve_exact(1);
        }
        self.runs.push_back(Run { slots: slots.cloned(), entries: 1 });
    }

    /// Takes the oldest.
    pub(super) fn pop(&mut self, awaited: &mut Awaited) -> Option<WorkCompletion> {
        let Entry { wc, places } = self.entries.pop_front()?;
        self.shorten_run(1, places, awaited);
        Some(wc)
    }

    /// Takes up to `max` of the oldest.
    pub(super) fn drain(
        &mut self,
        max: usize,
        out: &mut Vec<WorkCompletion>,
        awaited: &mut Awaited,
    ) -> usize {
        let n = max.min(self.entries.len());
        let mut left = n;
        while let Some(run) = self.runs.front()
            && left > 0
        {
            let taken = left.min(run.entries);
            let mut places = 0;
            for entry in self.entries.drain(..taken) {
                places += entry.places;
                out.push(entry.wc);
            }
            self.shorten_run(taken, places, awaited);
            left -= taken;
        }
        n
    }

    /// So many entries were taken from the front, all of the first run, with so many places.
    #[inline]
    fn shorten_run(&mut self, entries: usize, places: u32, awaited: &mut Awaited) {
        let Some(run) = self.runs.front_mut() else { return };
        give_back(run.slots.as_ref(), places, awaited);
        run.entries -= entries;
        if run.entries == 0 && self.runs.len() > 1 {
            self.runs.pop_front();
        }
    }

    /// Throws away everything: nobody will poll it.
    pub(super) fn clear(&mut self, awaited: &mut Awaited) {
        let mut entries = std::mem::take(&mut self.entries);
        for Run { slots, entries: len } in std::mem::take(&mut self.runs) {
            let places = entries.drain(..len).map(|entry| entry.places).sum();
            give_back(slots.as_ref(), places, awaited);
        }
    }

    /// Throws away the completions of one queue pair.
    pub(super) fn purge(&mut self, qp_number: u32, awaited: &mut Awaited) {
        // Moving them all is for when it must be: there may be thousands of queue pairs (FC-043).
        if !self.entries.iter().any(|entry| entry.wc.qp_num == qp_number) {
            return;
        }
        let mut entries = std::mem::take(&mut self.entries);
        for Run { slots, entries: len } in std::mem::take(&mut self.runs) {
            for entry in entries.drain(..len) {
                if entry.wc.qp_num == qp_number {
                    give_back(slots.as_ref(), entry.places, awaited);
                } else {
                    self.entries.push_back(entry);
                    self.lengthen_run(slots.as_ref());
                }
            }
        }
    }
}

#[inline]
fn give_back(slots: Option<&Arc<QueueSlots>>, places: u32, awaited: &mut Awaited) {
    if let Some(slots) = slots
        && places > 0
        && slots.give_back(places)
    {
        awaited.push((Arc::clone(slots), places));
    }
}

/// Tells those who wait for places, with the ring unlocked.
#[inline]
pub(super) fn tell(awaited: Awaited) {
    for (slots, n) in awaited {
        slots.tell(n);
    }
}
