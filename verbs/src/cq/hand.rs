//! [`Hand`]: the short way of a completion, from the pass that makes it to the poll that runs this pass.

use std::sync::atomic::Ordering;

use super::CqInner;
use super::ring::Cqe;
use super::wakes::{News, Wakes};
use crate::wc::WorkCompletion;

/// What a poll that has found nothing holds out to the passes that it runs.
///
/// The first completion that the polled queue gets goes into it, if the queue is empty: the poll would take
/// just this one out again. So the lock of the ring is taken neither for the one nor for the other. Whatever comes
/// behind it is stored, and found by this poll or by another one.
///
/// *Order.* Completions of one work queue are made with its engine locked. Those made before this pass are
/// therefore seen in the count of stored ones, unless they have been polled; and the one in the hand has been
/// polled, as far as others can tell. What is told of it is what would be told if it had been stored, except to
/// those who sleep until there is something for them. A waker that polls the same queue from inside of this poll comes
/// behind it: what it finds is later than what is in the hand.
#[derive(Debug, Default)]
pub(crate) struct Hand {
    /// Address of the queue that is polled; 0 if none is.
    polled: usize,
    wc: Option<WorkCompletion>,
    /// Places of its work queue that become free with it.
    places: u32,
}

impl Hand {
    #[inline]
    pub(super) fn of(cq: &CqInner) -> Self {
        Self { polled: address(cq), ..Self::default() }
    }

    /// For one of several passes: empty, and out as long as this one is.
    #[inline]
    pub(crate) fn lend(&self) -> Self {
        let polled = if self.is_full() { 0 } else { self.polled };
        Self { polled, ..Self::default() }
    }

    /// Takes what the pass has put into the hand that it was [lent](Self::lend).
    #[inline]
    pub(crate) fn take_over(&mut self, lent: &mut Self) {
        if lent.is_full() {
            self.wc = lent.wc.take();
            self.places = lent.places;
        }
    }

    /// Whether there is something in it.
    #[inline]
    pub(super) fn is_full(&self) -> bool {
        self.wc.is_some()
    }

    /// The places that are free now, and whether they are places for receives. To be given back, once, when no
    /// lock is held.
    #[inline]
    pub(crate) fn take_places(&mut self) -> Option<(u32, bool)> {
        let wc = self.wc.as_ref()?;
        let places = std::mem::take(&mut self.places);
        (places > 0).then(|| (places, wc.opcode.is_receive()))
    }

    /// Ends the poll.
    #[inline]
    pub(super) fn close(self) -> Option<WorkCompletion> {
        debug_assert_eq!(self.places, 0, "given back by who ran the pass");
        self.wc
    }
}

impl CqInner {
    /// As [`push`](Self::push), past the queue if `hand` is out for it.
    #[inline]
    pub(crate) fn deliver(&self, cqe: Cqe<'_>, hand: &mut Hand, wakes: &mut Wakes) {
        if hand.polled != address(self)
            || hand.is_full()
            || self.stored.load(Ordering::Relaxed) != 0
        {
            self.push(cqe, wakes);
            return;
        }
        let Cqe { wc, solicited_event, release } = cqe;
        hand.wc = Some(wc);
        hand.places = release.map_or(0, |(_, places)| places);
        if self.fires(solicited_event) {
            self.add(News { events: 1, ..News::default() }, wakes);
        }
    }
}

fn address(cq: &CqInner) -> usize {
    std::ptr::from_ref(cq).addr()
}
