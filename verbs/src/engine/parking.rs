//! Connections that the driver leaves alone because a program polls for them.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use super::Caller;
use crate::cq::CqInner;
use crate::qp::QpInner;

/// Between parking a queue pair and the first look whether its program still polls.
const FIRST_LOOK: Duration = Duration::from_micros(250);

/// Longest time between two looks: the longer a program has polled, the longer it may pause before the
/// driver takes over again. A look preempts somebody, the very program perhaps. What comes for a program that
/// has stopped waits for two of them at most, longer only while a pass is in progress.
const LAST_LOOK: Duration = Duration::from_millis(1);

/// Parked queue pairs, by the completion queue whose lease keeps them parked.
#[derive(Default)]
pub(super) struct Parking {
    lots: Vec<Lot>,
    next_look: Option<Instant>,
}

struct Lot {
    cq: Arc<CqInner>,
    /// Polls of it when the driver looked last.
    polls: u32,
    /// When to look, and how long after the look before.
    look: Instant,
    pause: Duration,
    /// Looks in a row that found no poll, but somebody inside of a pass.
    excused: u32,
    /// By number: one that was reset and connected anew may be here still.
    parked: HashMap<u32, Arc<QpInner>>,
    /// How many there may be before those whose connection is over are thrown out.
    sweep: usize,
}

/// How often a pass in progress counts as a poll. It may be the pass of a poll, which can take longer than
/// the pause; but a program that only posts must not keep the driver away for ever.
const EXCUSES: u32 = 2;

/// Parked queue pairs that are not worth a sweep.
const FEW: usize = 16;

impl Lot {
    fn add(&mut self, qp: &Arc<QpInner>) {
        if self.parked.len() >= self.sweep {
            self.parked.retain(|_, qp| qp.parked.load(Ordering::Acquire));
            self.sweep = (self.parked.len() * 2).max(FEW);
        }
        self.parked.insert(qp.number, Arc::clone(qp));
    }
}

impl Parking {
    /// Parks a queue pair whose socket has something to do, if a completion queue of it is leased, and sees it.
    /// Nobody polls for one that was destroyed, however busy its queues are.
    pub(super) fn park(&mut self, qp: &Arc<QpInner>) -> bool {
        let sees = |cq: &&Arc<CqInner>| cq.lease().is_held() && !cq.is_blind();
        let Some(cq) = [&qp.recv_cq, &qp.send_cq].into_iter().find(sees) else { return false };
        // Passes do not arm the socket from here on. One that runs now may have done so: that costs
        // one more report.
        if qp.parked.swap(true, Ordering::AcqRel) {
            // Others may have taken its turn since.
            cq.offer(qp);
            return true;
        }
        // Looked at behind the swap: whoever destroys it sets this first and takes it out of the lot then.
        if qp.is_gone() {
            qp.parked.store(false, Ordering::Release);
            return false;
        }
        cq.offer(qp);
        if let Some(lot) = self.lots.iter_mut().find(|lot| Arc::ptr_eq(&lot.cq, cq)) {
            lot.add(qp);
        } else {
            let look = Instant::now() + FIRST_LOOK;
            self.lots.push(Lot {
                cq: Arc::clone(cq),
                polls: cq.lease().polls(),
                look,
                pause: FIRST_LOOK,
                excused: 0,
                parked: HashMap::from([(qp.number, Arc::clone(qp))]),
                sweep: FEW,
            });
            self.next_look = Some(self.next_look.map_or(look, |next| next.min(look)));
        }
        true
    }

    /// When [`look`](Self::look) is due.
    pub(super) fn next_look(&self) -> Option<Instant> {
        self.next_look
    }

    /// Takes over the queue pairs of completion queues that are not polled any more.
    pub(super) fn look(&mut self, now: Instant) -> Option<Instant> {
        let mut lapsed = Vec::new();
        self.lots.retain_mut(|lot| {
            if lot.look > now {
                return true;
            }
            let polls = lot.cq.lease().polls();
            if polls != std::mem::replace(&mut lot.polls, polls) && !lot.cq.is_blind() {
                lot.excused = 0;
                lot.pause = (lot.pause * 2).min(LAST_LOOK);
                lot.look = now + lot.pause;
                return true;
            }
            if lot.excused < EXCUSES && lot.parked.values().any(|qp| qp.engine.is_locked()) {
                lot.excused += 1;
                lot.look = now + lot.pause;
                return true;
            }
            lot.cq.lease().lapse();
            lapsed.extend(lot.parked.drain().map(|(_, qp)| qp));
            false
        });
        self.next_look = self.lots.iter().map(|lot| lot.look).min();
        for qp in lapsed {
            qp.parked.store(false, Ordering::Release);
            qp.drive(Caller::Driver);
        }
        self.next_look
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::Setup;
    use super::*;

    #[test]
    fn one_that_is_parked_again_is_listed_once_and_a_destroyed_one_not_at_all() {
        let end = Setup::default().end();
        let qp = &end.qp.0.inner;
        let mut parking = Parking::default();
        assert!(!parking.park(qp), "nobody polls");
        while !qp.recv_cq.lease().is_held() {
            assert!(end.recv_cq.poll_one().is_none());
        }
        for _ in 0..2 {
            assert!(parking.park(qp));
            // As the end of a connection does.
            qp.parked.store(false, Ordering::Release);
        }
        assert_eq!(parking.lots.iter().map(|lot| lot.parked.len()).sum::<usize>(), 1);
        assert!(parking.park(qp));
        end.qp.destroy().expect("not destroyed yet");
        assert!(!qp.parked.load(Ordering::Acquire), "nobody who polls drives it");
        assert!(qp.recv_cq.lease().is_held());
        assert!(!parking.park(qp));
        assert!(!qp.parked.load(Ordering::Acquire));
    }

    #[test]
    fn the_driver_takes_over_what_a_queue_may_not_see() {
        let end = Setup::default().end();
        let qp = &end.qp.0.inner;
        let mut parking = Parking::default();
        let polls = || {
            while !qp.recv_cq.lease().is_held() {
                assert!(end.recv_cq.poll_one().is_none());
            }
        };
        polls();
        assert!(parking.park(qp));
        qp.recv_cq.go_blind();
        while let Some(look) = parking.next_look() {
            assert!(end.recv_cq.poll_one().is_none());
            parking.look(look);
        }
        assert!(!qp.parked.load(Ordering::Acquire));
        polls();
        assert!(!parking.park(qp));
    }

    #[test]
    fn one_that_stops_polling_is_taken_over_after_two_looks() {
        let end = Setup::default().end();
        let qp = &end.qp.0.inner;
        let mut parking = Parking::default();
        while !qp.recv_cq.lease().is_held() {
            assert!(end.recv_cq.poll_one().is_none());
        }
        assert!(parking.park(qp));
        // It polls for long, and for the last time right behind a look.
        let mut last = Instant::now();
        for _ in 0..20 {
            assert!(end.recv_cq.poll_one().is_none());
            last = parking.next_look().expect("parked");
            parking.look(last);
        }
        assert!(end.recv_cq.poll_one().is_none());
        let mut now = last;
        while let Some(look) = parking.next_look() {
            now = look;
            parking.look(now);
        }
        assert!(!qp.parked.load(Ordering::Acquire));
        assert!(!qp.recv_cq.lease().is_held());
        assert!(now - last <= LAST_LOOK * 2, "{:?}", now - last);
    }
}
