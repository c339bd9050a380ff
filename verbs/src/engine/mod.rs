//! The engine: what moves a connection forward, whoever runs it.
//!
//! A queue pair has one engine, and whoever has something to do runs a *pass* of it: the thread that
//! posts, the thread that polls a completion queue, the driver. The kick word decides who, and sees
//! that nobody's work is forgotten (`kick.rs`). A pass takes posted requests, reads the socket, feeds
//! the protocol stream, writes the socket, and turns what has ended into completions. It never blocks.
//!
//! | file | holds |
//! |---|---|
//! | `kick.rs`, `asked.rs` | who runs, and what it is asked to do besides moving data |
//! | `gather.rs` | requests posted one by one that are sent together |
//! | `watch.rs` | what the driver looks at now and then, lest it be left behind |
//! | `link.rs` | a connection, and one pass over it |
//! | `rx.rs`, `tx.rs` | the two directions |
//! | `window.rs` | how much TCP sends at once |
//! | `share.rs` | how long a pass stays |
//! | `scratch.rs`, `budget.rs` | staging memory: borrowed for a pass, charged between passes |
//! | `memory.rs` | registered memory and the receive queue, as the stream sees them |
//! | `report.rs`, `verdict.rs` | completions; events of the device |
//! | `outbox.rs` | what is told to others once the lock is released |
//! | `driver.rs`, `parking.rs` | the thread that runs passes when nobody else does |

mod asked;
mod budget;
pub(crate) mod driver;
pub(crate) mod gather;
pub(crate) mod kick;
mod link;
mod memory;
mod outbox;
mod parking;
mod report;
mod rx;
mod scratch;
mod share;
mod tx;
mod verdict;
mod watch;
mod window;

#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::io;
use std::os::fd::AsFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use iwarp_rdmap::{CloseCause, LostCause, Operation};
use parking_lot::MutexGuard;

pub(crate) use self::asked::{Asked, AskedWord};
use self::gather::Polls;
pub(crate) use self::link::{Link, Sizes};
use self::memory::Recent;
pub(crate) use self::outbox::Outbox;
use self::report::Reporter;
use crate::attr::QpState;
use crate::cq::Hand;
use crate::event::AsyncEventKind;
use crate::qp::QpInner;
use crate::qp::state::{Action as QpAction, QpEvent};
use crate::qp::wqe::{RecvWqe, Wqe};
use crate::stats::QpStats;

/// Passes for others before a caller hands over to the driver and goes its way.
const LOOKS_FOR_OTHERS: u32 = 2;

/// Passes in a row that the driver gives one queue pair before others get their turn.
const LOOKS_OF_DRIVER: u32 = 16;

/// Who runs a pass, which decides what it looks at and how long it stays.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Caller {
    /// A thread that posted, or asked for something: sends, does not look at the socket's input.
    Post,
    /// A poll of a completion queue: it will be back.
    Poll,
    /// A report of a completion queue's wait set, which comes only once.
    Wait,
    /// The driver.
    Driver,
}

/// What a drive found.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Drove {
    /// Octets moved or something completed.
    pub(crate) found_work: bool,
    /// Another thread is in the engine.
    pub(crate) busy: bool,
}

/// What one pass did.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Progress {
    found_work: bool,
    /// It ended because its budget was spent.
    more: bool,
}

/// Told about the life of a connection; implemented by the connection manager. Called without any
/// lock held, from whichever thread ran the pass; must not block.
pub(crate) trait Observer: Send + Sync {
    /// Both directions can be used: at once at the initiator, and at the responder when the first valid
    /// FPDU, the negotiated ready-to-receive message perhaps, has come in (CONN-29). At most once, and
    /// before [`closed`](Self::closed).
    fn established(&self);
    /// The connection is over; called exactly once after a successful start, whatever ended it.
    fn closed(&self, cause: &CloseCause, clean: bool);
}

/// The protected part of a queue pair: what only the holder of the kick touches.
#[derive(Default)]
pub(crate) struct Engine {
    link: Option<Box<Link>>,
    reporter: Reporter,
    /// Requests on their way from the send queue to the stream. Empty between passes, or in order in
    /// front of the send queue.
    incoming: VecDeque<Operation<Wqe>>,
    /// Receives on their way from the receive queue to the stream. In front of those that are still there.
    ahead: VecDeque<RecvWqe>,
    recent: Recent,
    /// Nobody has a handle any more: everything goes with the connection.
    abandoned: bool,
    /// The program was told that no receive of a shared queue is outstanding; until the next `Reset`.
    last_wqe_told: bool,
}

impl Engine {
    /// Changes how many Reads and Atomics of ours may be outstanding.
    pub(crate) fn set_ord(&mut self, ord: u32) {
        if let Some(link) = &mut self.link {
            link.stream.set_ord(ord);
        }
    }

    /// Whether a connection exists.
    pub(crate) fn is_connected(&self) -> bool {
        self.link.is_some()
    }

    #[cfg(test)]
    pub(crate) fn is_held_back(&self) -> bool {
        self.link.as_ref().is_some_and(|link| link.stream.is_blocked())
    }

    /// Whether the program was told all that it is told about the end.
    pub(crate) fn is_told(&self, qp: &QpInner) -> bool {
        self.last_wqe_told || qp.rq.share().is_none() || qp.state.get() != QpState::Err
    }

    /// The queue pair is as good as new.
    pub(crate) fn renew(&mut self) {
        self.last_wqe_told = false;
    }

    /// Takes over a connection that begins.
    pub(crate) fn connect(&mut self, link: Box<Link>) {
        self.reporter.reset();
        self.link = Some(link);
    }

    /// The queue pair is destroyed: requests vanish, and nothing touches memory or completion queues
    /// from here on. What it returns is to be sent once the lock is released.
    #[must_use]
    pub(crate) fn retire(&mut self, qp: &Arc<QpInner>) -> Outbox {
        let mut out = Outbox::default();
        self.abandoned = true;
        self.reporter.silence();
        if let Some(link) = &mut self.link {
            qp.unwatch();
            link.detach(qp, &mut self.ahead, &mut self.reporter, &mut out);
        } else {
            // Before the flush, so that a receive which comes too late for it is flushed by who posts it.
            qp.state.follow(QpEvent::SetupFailed);
        }
        self.flush(qp, &mut out);
        out
    }

    /// Whether no connection may begin any more.
    pub(crate) fn is_abandoned(&self) -> bool {
        self.abandoned
    }
}

impl QpInner {
    /// Runs the engine until nobody wants more of it, or hands over to the driver. If somebody runs it
    /// already, that one will look again.
    pub(crate) fn drive(self: &Arc<Self>, who: Caller) -> Drove {
        if self.kick.try_enter() {
            return self.run(who, None, &mut Hand::default());
        }
        if who != Caller::Post {
            // The holder may be one who posts, and would not look at the input by itself.
            self.ask(Asked::INPUT);
        }
        if self.kick.enter() {
            self.run(who, None, &mut Hand::default())
        } else {
            Drove { found_work: false, busy: true }
        }
    }

    /// Runs the engine unless somebody does already. That one is to look again if requests wait.
    pub(crate) fn drive_for_poll(self: &Arc<Self>, hand: &mut Hand) -> Drove {
        let waiting = self.sq.any();
        if self.kick.try_enter() || (waiting && self.kick.enter()) {
            let drove = self.run(Caller::Poll, None, hand);
            if let Some((places, receives)) = hand.take_places() {
                if receives { &self.rq.slots } else { &self.sq.slots }.release(places);
            }
            if waiting {
                self.gather.sent_by_poll(self.polls());
            }
            drove
        } else {
            Drove { found_work: false, busy: true }
        }
    }

    /// Posts an operation and runs the engine; past the send queue if nothing waits there.
    pub(crate) fn drive_operation(self: &Arc<Self>, operation: Operation<Wqe>) {
        if self.kick.try_enter() {
            self.run(Caller::Post, Some(operation), &mut Hand::default());
            return;
        }
        self.sq.append([operation]);
        if self.kick.enter() {
            self.run(Caller::Post, None, &mut Hand::default());
        }
    }

    /// Puts an operation into the send queue to be sent together with those that follow.
    pub(crate) fn gather_operation(self: &Arc<Self>, operation: Operation<Wqe>) {
        if self.sq.gather(operation) {
            self.drive(Caller::Post);
            self.gather.sent();
        } else if self.gather.watch.announce() {
            self.driver().watch(self);
        }
    }

    /// Whether the driver has to watch what is left to polls, and does not yet: where these have many to try, they
    /// may come to this one late, or the program polls the queue that has lost sight of it.
    #[must_use = "the driver is to watch it"]
    fn begins_watch(&self) -> bool {
        (self.send_cq.is_crowded() || self.recv_cq.is_crowded()) && self.gather.watch.announce()
    }

    /// Whether there is something to do that nothing will announce again.
    #[inline]
    pub(crate) fn has_rest(&self) -> bool {
        self.rest.load(Ordering::Relaxed) || self.sq.any()
    }

    /// Sends what was gathered, before something that is not to overtake it.
    pub(crate) fn send_gathered(self: &Arc<Self>) {
        if self.sq.any() {
            self.drive(Caller::Post);
        }
    }

    /// Polls of the completion queues so far.
    #[inline]
    pub(crate) fn polls(&self) -> Polls {
        let [send, receive] = [self.send_cq.lease(), self.recv_cq.lease()];
        let empty = send.polls().wrapping_add(receive.polls());
        let all = empty.wrapping_add(send.finds()).wrapping_add(receive.finds());
        Polls { empty, all }
    }

    fn run(
        self: &Arc<Self>,
        who: Caller,
        mut posted: Option<Operation<Wqe>>,
        hand: &mut Hand,
    ) -> Drove {
        if !self.device.origin.is_here() {
            // FC-064: the connection is the parent's.
            self.kick.hand_over();
            return Drove::default();
        }
        let limit = if who == Caller::Driver { LOOKS_OF_DRIVER } else { LOOKS_FOR_OTHERS };
        self.runs.store(self.runs.load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
        let mut found_work = false;
        let mut looks = 0;
        loop {
            let progress = self.turn(who, &mut posted, hand);
            if self.rest.load(Ordering::Relaxed) != progress.more {
                self.rest.store(progress.more, Ordering::Relaxed);
            }
            if let Some(operation) = posted.take() {
                // The pass panicked before it came to it.
                self.sq.append([operation]);
                continue;
            }
            found_work |= progress.found_work;
            looks += 1;
            if !progress.more && self.kick.leave() {
                break;
            }
            // Without a driver there was never a connection, and what others post is quickly flushed.
            if (progress.more || looks > limit) && self.driver().is_running() {
                // Whoever is next kicks in its turn, so what was asked for meanwhile is not lost.
                self.kick.hand_over();
                self.pass_on(who);
                break;
            }
        }
        Drove { found_work, busy: false }
    }

    /// Leaves the rest to others.
    fn pass_on(self: &Arc<Self>, who: Caller) {
        match who {
            // Of a parked queue pair the driver knows already, and its program goes on polling: both at
            // once would only be in each other's way.
            Caller::Post | Caller::Poll if self.parked.load(Ordering::Acquire) => {
                if self.begins_watch() {
                    self.driver().watch(self);
                }
                return;
            }
            Caller::Post | Caller::Wait => {}
            // The driver is to know, but to act only if nobody polls (any more).
            Caller::Poll | Caller::Driver => self.polled.store(true, Ordering::Release),
        }
        self.driver().schedule(self);
    }

    /// One pass, and what it leaves to be told. Never panics, so that whoever entered also leaves.
    fn turn(
        self: &Arc<Self>,
        who: Caller,
        posted: &mut Option<Operation<Wqe>>,
        hand: &mut Hand,
    ) -> Progress {
        let mut out = Outbox::of(hand);
        let progress = {
            let mut engine = self.engine.lock();
            // Whatever a panic leaves behind is only looked at to throw it away.
            let pass = catch_unwind(AssertUnwindSafe(|| engine.pass(self, who, posted, &mut out)));
            pass.unwrap_or_else(|_| {
                let buried = catch_unwind(AssertUnwindSafe(|| self.bury(&mut engine, &mut out)));
                if buried.is_err() {
                    tracing::error!(qp = self.number, "the end of the connection panicked as well");
                }
                Progress { found_work: true, more: false }
            })
        };
        hand.take_over(&mut out.hand);
        out.send(self);
        progress
    }

    /// A pass panicked: this connection ends, and no other.
    #[cold]
    fn bury(self: &Arc<Self>, engine: &mut MutexGuard<'_, Engine>, out: &mut Outbox) {
        tracing::error!(qp = self.number, "a pass panicked: the connection is reset");
        let Engine { link, reporter, .. } = &mut **engine;
        if let Some(link) = link.as_mut() {
            // Most often the stream is still good enough to give back what it holds.
            let given_back = catch_unwind(AssertUnwindSafe(|| link.abandon(self, reporter, out)));
            if given_back.is_err() {
                tracing::error!(qp = self.number, "requests of the connection are lost");
            }
        }
        self.state.follow(QpEvent::Closed);
        if engine.is_connected() {
            out.raise(AsyncEventKind::QpFatal);
            engine.end(self, CloseCause::Lost(LostCause::Io(io::ErrorKind::Other)), false, out);
        }
    }
}

impl Engine {
    fn pass(
        &mut self,
        qp: &Arc<QpInner>,
        who: Caller,
        posted: &mut Option<Operation<Wqe>>,
        out: &mut Outbox,
    ) -> Progress {
        let asked = qp.asked.take();
        self.abandoned |= asked.contains(Asked::ABANDON);
        let Self { link, reporter, incoming, ahead, recent, .. } = self;
        let Some(live) = link else {
            // Without a connection, what is asked of one has no effect.
            if let Some(operation) = posted.take() {
                qp.sq.append([operation]);
            }
            if asked.contains(Asked::OVERRUN)
                && qp.state.step(QpEvent::Modify(QpState::Err)) == Ok(QpAction::Flush)
            {
                // One that was never connected cannot report any more either. // FC-042
                out.raise(AsyncEventKind::QpFatal);
            }
            if asked.contains(Asked::TELL_DRAINED) {
                out.raise(AsyncEventKind::SqDrained);
            }
            if self.abandoned {
                self.reporter.silence();
                self.flush(qp, out);
                qp.release();
            } else if qp.state.get() == QpState::Err {
                self.flush(qp, out);
                if qp.closed.total_listeners() > 0 {
                    out.flushed();
                }
            }
            return Progress::default();
        };
        let progress = live.pass(qp, who, asked, posted, reporter, recent, incoming, ahead, out);
        live.count(who, progress.found_work);
        if let Some((cause, clean)) = live.take_end() {
            self.end(qp, cause, clean, out);
            return Progress { found_work: true, more: false };
        }
        progress
    }

    /// What the connection has counted, if there is one.
    pub(crate) fn stats(&self) -> Option<QpStats> {
        self.link.as_ref().map(|link| link.stats())
    }

    /// The connection is over: flush, forget, tell.
    fn end(&mut self, qp: &Arc<QpInner>, cause: CloseCause, clean: bool, out: &mut Outbox) {
        self.flush(qp, out);
        if let Some(link) = self.link.take() {
            qp.conclude(link.stats());
            qp.unwatch();
            qp.driver().disconnect(qp, link.socket.as_fd());
            qp.parked.store(false, Ordering::Release);
            link.finish(qp.driver());
        }
        if self.abandoned {
            qp.release();
        }
        out.closed(cause, clean);
    }

    /// Flushes both queues. What the stream had has come back before. // FC-031, FC-033, FC-034
    fn flush(&mut self, qp: &QpInner, out: &mut Outbox) {
        self.reporter.flush_sends(qp, &mut self.incoming, out);
        qp.sq.take(&mut self.incoming);
        self.reporter.flush_sends(qp, &mut self.incoming, out);
        self.reporter.settle(qp);
        self.reporter.flush_receives(qp, &mut self.ahead, out);
        // FC-074: behind the completions, also if there were none.
        if qp.rq.share().is_some() && !self.last_wqe_told && !self.abandoned {
            self.last_wqe_told = true;
            out.raise(AsyncEventKind::QpLastWqeReached);
        }
    }
}
