//! [`Hand`]: the short way of a completion, from the pass that makes it to the poll that runs this pass.

use std::sync::atomic::Ordering;

use super::CqInner;
use super::ring::{Awaited, Cqe, give_back, tell};
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
/// those who sleep until there is something for them.
#[derive(Debug, Default)]
pub(crate) struct Hand {
    /// Address of the queue that is polled; 0 if none is.
    polled: usize,
    wc: Option<WorkCompletion>,
    /// Whose places have become free with it, and are waited for.
    awaited: Awaited,
}

impl Hand {
    pub(super) fn of(cq: &CqInner) -> Self {
        Self { polled: address(cq), ..Self::default() }
    }

    /// Whether there is something in it.
    #[inline]
    pub(super) fn is_full(&self) -> bool {
        self.wc.is_some()
    }

    /// Ends the poll. No lock may be held.
    #[inline]
    pub(super) fn close(self) -> Option<WorkCompletion> {
        tell(self.awaited);
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
        let (slots, places) = release.map_or((None, 0), |(slots, n)| (Some(slots), n));
        give_back(slots, places, &mut hand.awaited);
        hand.wc = Some(wc);
        if self.fires(solicited_event) {
            self.add(News { events: 1, ..News::default() }, wakes);
        }
    }
}

fn address(cq: &CqInner) -> usize {
    std::ptr::from_ref(cq).addr()
}
