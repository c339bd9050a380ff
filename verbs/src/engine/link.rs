//! A live connection: its socket, its protocol stream, and one pass over both.

use std::collections::VecDeque;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use iwarp_mpa::{FpduLimit, SizePlan, mulpdu};
use iwarp_rdmap::{
    Clock, CloseCause, Event, Initiator, Operation, Outcome, Shutdown, State, Stream, TerminateCode,
};
use tracing::Span;
use tracing::span::EnteredSpan;

use super::asked::Asked;
use super::driver::Driver;
use super::memory::{QpMemory, Recent};
use super::outbox::Outbox;
use super::report::{Received as Message, Reporter};
use super::rx::{Received, Rx};
use super::scratch::{RX_LEN, Scratch};
use super::tx::{Sent, Tx};
use super::verdict::{self, Verdict};
use super::{Caller, Progress};
use crate::event::AsyncEventKind;
use crate::qp::state::QpEvent;
use crate::qp::wqe::{RecvWqe, Wqe};
use crate::qp::{Ending, QpInner};
use crate::stats::{Passes, QpStats};
use crate::sys::{Interest, Socket};
use crate::trace::{self, CONNECTION};

/// Batches between two looks at the EMSS, in the long run. TCP begins with a smaller one than it will
/// use, so the first looks come earlier.
const BATCHES_PER_EMSS: u32 = 1024;

/// Of so many polls that find TCP full, one reads. Both calls take the lock of the socket, which TCP needs
/// as well to make room.
const POLLS_PER_LOOK: u8 = 4;

/// What exists only while there is a connection.
#[allow(clippy::struct_excessive_bools, reason = "independent facts, each of its own life")]
pub(crate) struct Link {
    /// Shared with the completion queues that watch it.
    pub(super) socket: Arc<Socket>,
    pub(super) stream: Stream<Wqe>,
    pub(super) rx: Rx,
    pub(super) tx: Tx,
    pub(super) batches: u32,
    sizes: Sizes,
    /// Batches before the next look at the EMSS.
    emss_due: u32,
    /// What the driver was last asked to report, unless it has since.
    armed: Option<Interest>,
    /// The driver's set may have the socket, armed or not, and it was not silenced.
    pub(super) listed: bool,
    /// The deadline that the driver knows.
    deadline: Option<Instant>,
    /// When a close that waits for what is posted becomes one that does not.
    resort: Option<Instant>,
    /// The stream had nothing to send when it was asked last, and nothing has happened since.
    quiet: bool,
    /// Operations that the stream has.
    submitted: usize,
    /// Receives that the stream has.
    taken: usize,
    /// State of the stream after the last pass.
    state: State,
    /// The queue pair was destroyed: nothing moves to or from memory any more.
    closed: bool,
    /// Both directions of TCP are over, which the driver would report again and again.
    hung_up: bool,
    ended: Option<Box<(CloseCause, bool)>>,
    /// The socket is to be closed by a reset.
    reset: bool,
    /// Events taken from the stream ahead of their turn.
    foreseen: VecDeque<Event<Wqe>>,
    /// The program is to be told when nothing of the send queue is left.
    tell_drained: bool,
    /// What the program is told of the end, once a Terminate has decided it.
    verdict: Option<Verdict>,
    passes: Passes,
    /// Around each pass, if anybody listens.
    span: Option<Box<Span>>,
}

/// How long a close may wait for what is posted: as long as a silent peer is waited for.
fn close_limit(user_timeout: Duration) -> Duration {
    if user_timeout.is_zero() { Duration::from_secs(20) } else { user_timeout }
}

/// What the sizes of FPDUs depend on.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Sizes {
    /// The connection's limit.
    pub(crate) limit: FpduLimit,
    /// The EMSS as it was read last, in octets.
    pub(crate) emss: u32,
    /// Markers are sent.
    pub(crate) markers: bool,
}

impl Sizes {
    /// How messages are cut. Where segments are larger than the connection's limit, inside of a host, FPDUs
    /// share segments: ending a segment behind each would cost a system call for each. The default limit
    /// gives way to the segment there, and any other is kept.
    pub(crate) fn plan(&self) -> SizePlan {
        let Self { limit, emss, markers } = *self;
        let plan = SizePlan::new(emss, limit, markers);
        match limit {
            FpduLimit::Octets(octets) if emss > octets && !markers => {
                let mut plan = plan.sharing_segments();
                if limit != FpduLimit::default() {
                    plan.mulpdu = mulpdu(octets, false);
                }
                plan
            }
            _ => plan,
        }
    }
}

/// The time, read once a pass, and only if somebody asks.
#[derive(Default)]
pub(super) struct PassClock(Option<Instant>);

impl Clock for PassClock {
    fn now(&mut self) -> Instant {
        *self.0.get_or_insert_with(Instant::now)
    }
}

impl Link {
    pub(crate) fn new(
        socket: Arc<Socket>,
        stream: Stream<Wqe>,
        leftover: Vec<u8>,
        sizes: Sizes,
        driver: &Driver,
    ) -> Box<Self> {
        Box::new(Self {
            socket,
            state: stream.state(),
            stream,
            rx: Rx::with_leftover(leftover, driver),
            tx: Tx::default(),
            batches: 0,
            sizes,
            emss_due: 4,
            armed: None,
            listed: false,
            deadline: None,
            resort: None,
            quiet: false,
            submitted: 0,
            taken: 0,
            closed: false,
            hung_up: false,
            ended: None,
            reset: false,
            foreseen: VecDeque::new(),
            tell_drained: false,
            verdict: None,
            passes: Passes::default(),
            span: None,
        })
    }

    /// What is told of this connection is told within this span.
    pub(crate) fn trace_in(mut self: Box<Self>, span: Option<Box<Span>>) -> Box<Self> {
        self.span = span;
        self
    }

    fn entered(&self) -> Option<EnteredSpan> {
        self.span.as_ref().map(|span| Span::clone(span).entered())
    }

    /// What the connection has counted.
    pub(super) fn stats(&self) -> QpStats {
        QpStats::new(self.stream.counters(), &self.passes)
    }

    /// Counts a pass.
    #[inline]
    pub(super) fn count(&mut self, who: Caller, found_work: bool) {
        let passes = &mut self.passes;
        let count = match who {
            Caller::Poll => &mut passes.polls[usize::from(found_work)],
            Caller::Post => &mut passes.posts,
            Caller::Wait => &mut passes.waits,
            Caller::Driver => &mut passes.driver,
        };
        *count = count.wrapping_add(1);
    }

    /// How the connection ended, if it has.
    pub(super) fn take_end(&mut self) -> Option<(CloseCause, bool)> {
        self.ended.take().map(|ended| *ended)
    }

    /// After a panic: everything the stream has comes back, and the connection is reset.
    pub(super) fn abandon(&mut self, qp: &Arc<QpInner>, reporter: &mut Reporter, out: &mut Outbox) {
        let _entered = self.entered();
        self.reset = true;
        self.stream.abort();
        self.events(qp, reporter, out);
    }

    /// The queue pair is destroyed: from here on nothing moves to or from memory. What is framed
    /// already is still sent, and the connection ends in order.
    pub(super) fn detach(
        &mut self,
        qp: &Arc<QpInner>,
        ahead: &mut VecDeque<RecvWqe>,
        reporter: &mut Reporter,
        out: &mut Outbox,
    ) {
        if self.closed {
            return;
        }
        let _entered = self.entered();
        let mut recent = Recent::default();
        let mut mem = QpMemory::new(qp, &mut recent, ahead, false, reporter, out);
        if !self.stage_unsent(&mut mem) {
            // Part of an FPDU is out and the rest cannot follow.
            self.stream.abort();
        }
        self.closed = true;
        self.stream.disconnect(Instant::now());
        self.events(qp, reporter, out);
    }

    /// Closes the socket and gives back borrowed memory. Nobody watches the socket any more.
    pub(super) fn finish(mut self, driver: &Driver) {
        self.rx.release(driver);
        self.tx.release(driver);
        if self.reset
            && let Some(Err(error)) = Arc::into_inner(self.socket).map(Socket::abort)
        {
            tracing::debug!(%error, "socket closed without a reset");
        }
    }

    /// One pass: requests, submissions, input, output, events, timers, arming.
    #[allow(clippy::too_many_arguments, reason = "parts of the engine, borrowed apart")]
    pub(super) fn pass(
        &mut self,
        qp: &Arc<QpInner>,
        who: Caller,
        asked: Asked,
        posted: &mut Option<Operation<Wqe>>,
        reporter: &mut Reporter,
        recent: &mut Recent,
        incoming: &mut VecDeque<Operation<Wqe>>,
        ahead: &mut VecDeque<RecvWqe>,
        out: &mut Outbox,
    ) -> Progress {
        let driver = qp.driver();
        let mut progress = Progress::default();
        let mut _entered = None;
        Scratch::with(|scratch| {
            let mut first = None;
            if who == Caller::Poll && asked.is_empty() && !qp.sq.any() && self.only_waits(driver) {
                // The usual poll finds nothing: that much, and no more, is its cost.
                first = self.socket.try_recv(&mut scratch.rx);
                if first.is_none() {
                    return;
                }
            }
            _entered = self.entered();
            let mut clock = PassClock::default();
            let mut mem = QpMemory::new(qp, recent, ahead, self.closed, reporter, out);
            if !asked.is_empty() {
                self.obey(qp, asked, &mut clock, incoming);
            }
            let input = Asked::INPUT | Asked::SOCKET | Asked::RECEIVE | Asked::TIMER;
            let mut receives =
                who != Caller::Post || asked.intersects(input) || self.tx.lost.is_some();
            if who == Caller::Poll && asked.is_empty() && self.has_output() {
                receives &= self.tx.full.is_multiple_of(POLLS_PER_LOOK);
            }
            // A poster does not try a full socket again: the driver, or a poll, will.
            let mut sends =
                !(self.tx.blocked && who == Caller::Post && !asked.contains(Asked::SOCKET));
            loop {
                let mut moved = self.submit(qp, posted, incoming);
                if receives {
                    receives = false;
                    match self.receive(&mut mem, scratch, &mut clock, driver, first.take()) {
                        Received::Drained { moved: some } => moved |= some,
                        Received::More => {
                            moved = true;
                            progress.more = true;
                        }
                    }
                }
                self.quiet &= !moved && asked.is_empty();
                if sends && self.has_output() {
                    match self.transmit(&mut mem, scratch, &mut clock, driver, who) {
                        Sent::Done { moved: some } => {
                            let full = self.tx.blocked && !some;
                            self.tx.full = if full { self.tx.full.wrapping_add(1) } else { 0 };
                            moved |= some;
                        }
                        Sent::More => {
                            self.tx.full = 0;
                            moved = true;
                            progress.more = true;
                        }
                    }
                    sends = !self.tx.blocked && self.tx.lost.is_none();
                    self.quiet = sends && !progress.more;
                    if self.tx.lost.is_some() && !self.rx.ended {
                        // What the peer said before TCP failed, a Terminate perhaps, is still to be read.
                        receives = true;
                        continue;
                    }
                }
                self.taken += std::mem::take(&mut mem.taken);
                self.taken = self.taken.saturating_sub(std::mem::take(&mut mem.reported));
                moved |= self.events(qp, mem.reporter, mem.out);
                progress.found_work |= moved;
                if progress.more || !moved || !qp.sq.any() || self.ended.is_some() {
                    break;
                }
            }
        });
        if !progress.found_work && asked.is_empty() && who == Caller::Poll && !qp.sq.any() {
            // Nothing has changed, so there is nothing to follow it.
            return progress;
        }
        self.shut_down();
        self.follow(qp, reporter, incoming, ahead, out);
        if self.ended.is_none() {
            self.refresh_size();
            self.keep_time(qp, driver);
            self.arm(qp, driver);
        }
        progress
    }

    /// Whether there is anything to give to TCP, as far as is known.
    #[inline]
    fn has_output(&self) -> bool {
        !self.quiet && (self.tx.has_unsent() || self.stream.may_transmit())
    }

    /// Whether nothing can happen before the peer sends something, and a look at the socket may use the
    /// whole buffer.
    #[inline]
    fn only_waits(&self, driver: &Driver) -> bool {
        !self.has_output()
            && self.rx.is_idle()
            && self.tx.lost.is_none()
            && !self.stream.is_blocked()
            && driver.budget().has_room(RX_LEN)
    }

    /// Carries out what was asked for.
    #[inline(never)]
    fn obey(
        &mut self,
        qp: &QpInner,
        asked: Asked,
        clock: &mut PassClock,
        incoming: &mut VecDeque<Operation<Wqe>>,
    ) {
        if asked.contains(Asked::SOCKET) {
            self.armed = None;
            self.tx.blocked = false;
        }
        if asked.contains(Asked::HANGUP) {
            self.hung_up = true;
            // Nothing is read while a Send is held back, nor after FIN, so the end of TCP would go
            // unnoticed.
            if !self.reads()
                && let Ok(Some(error)) = self.socket.take_error()
            {
                self.lost(super::rx::lost_cause(&error));
            }
        }
        if asked.contains(Asked::TIMER) {
            self.deadline = None;
            self.stream.handle_timeout(clock.now());
            if self.resort.is_some_and(|at| at <= clock.now()) {
                self.resort = None;
                self.stream.disconnect(clock.now());
            }
        }
        if asked.contains(Asked::CLOSE) {
            // What is posted goes out first (DDP-041).
            self.submit(qp, &mut None, incoming);
            self.stream.close(clock.now());
            self.resort = clock.now().checked_add(close_limit(qp.device.config.user_timeout));
        }
        self.tell_drained |= asked.contains(Asked::TELL_DRAINED);
        if asked.intersects(Asked::DISCONNECT | Asked::ABANDON) {
            self.stream.disconnect(clock.now());
        }
        if asked.contains(Asked::OVERRUN) {
            // Also where no Terminate may be sent. // MPA-029
            self.verdict.get_or_insert(Some(AsyncEventKind::QpFatal));
            self.stream.terminate(TerminateCode::STREAM_CATASTROPHIC, clock.now());
        }
        if asked.contains(Asked::DEVICE_FATAL) {
            self.stream.terminate(TerminateCode::GLOBAL_CATASTROPHIC, clock.now());
        }
        if asked.contains(Asked::TERMINATE) {
            self.stream.terminate(TerminateCode::LOCAL_CATASTROPHIC, clock.now());
        }
        if asked.contains(Asked::ABORT) {
            self.stream.abort();
        }
        #[cfg(test)]
        assert!(!asked.contains(Asked::PANIC), "asked to panic");
    }

    /// Gives posted operations to the stream: those of the send queue, then the one that the caller
    /// brings along.
    #[inline]
    fn submit(
        &mut self,
        qp: &QpInner,
        posted: &mut Option<Operation<Wqe>>,
        incoming: &mut VecDeque<Operation<Wqe>>,
    ) -> bool {
        let accepts = self.stream.state().accepts_work();
        if accepts
            && !qp.sq.any()
            && let Some(operation) = posted.take()
        {
            match self.stream.submit(operation) {
                Ok(()) => self.submitted += 1,
                Err(refused) => qp.sq.append([refused.operation]),
            }
            return true;
        }
        if posted.is_some() {
            qp.sq.append(posted.take());
        }
        if !accepts || !qp.sq.any() {
            return false;
        }
        self.passes.gathered = self.passes.gathered.wrapping_add(qp.sq.take(incoming));
        while let Some(operation) = incoming.pop_front() {
            match self.stream.submit(operation) {
                Ok(()) => self.submitted += 1,
                Err(refused) => {
                    incoming.push_front(refused.operation);
                    break;
                }
            }
        }
        true
    }

    /// Reports what has ended.
    fn events(&mut self, qp: &Arc<QpInner>, reporter: &mut Reporter, out: &mut Outbox) -> bool {
        let mut any = false;
        if self.foreseen.is_empty() {
            // What has succeeded and nothing else, which is most of what there is.
            while let Some((buffer, len)) = self.stream.poll_success() {
                any = true;
                self.submitted = self.submitted.saturating_sub(1);
                reporter.end(qp, buffer, Outcome::Success, len, out);
            }
        }
        while let Some(event) = self.next_event(reporter) {
            any = true;
            match event {
                Event::OperationDone { buffer, outcome, len, .. } => {
                    self.submitted = self.submitted.saturating_sub(1);
                    reporter.end(qp, buffer, outcome, len, out);
                }
                Event::ReceiveDone { buffer, outcome, len, solicited, invalidated, immediate } => {
                    self.taken = self.taken.saturating_sub(1);
                    let invalidated = invalidated.map(iwarp_ddp::Stag::raw);
                    let message = Message { len, solicited, invalidated, immediate };
                    match buffer {
                        Wqe::Receive(wqe) => reporter.received(qp, wqe, outcome, message, out),
                        other @ Wqe::Send(_) => reporter.end(qp, other, outcome, len, out),
                    }
                }
                Event::Established => {
                    // Many a connection is set up long before it is used.
                    self.stream.shrink_to_fit();
                    out.established();
                }
                Event::Terminated { by, terminate, cause } => {
                    let counters = &qp.device.counters;
                    match by {
                        Initiator::User | Initiator::Local => counters.terminates_sent.count(),
                        Initiator::Remote => counters.terminates_received.count(),
                    }
                    trace::terminate(qp.number, by, &terminate, cause.as_ref());
                    self.verdict = Some(verdict::of_terminate(by, &terminate, cause.as_ref()));
                    qp.remember(Ending { by, terminate });
                }
                Event::PeerClosed => {}
                Event::Closed { clean, cause } => {
                    if let CloseCause::Lost(_) = cause {
                        qp.device.counters.connections_lost.count();
                    }
                    trace::end(qp.number, &cause);
                    let verdict = self.verdict.unwrap_or_else(|| verdict::of_close(&cause));
                    // An error that a completion tells is not told by an event as well. // V9
                    if let (Some(kind), false) = (verdict, reporter.culprit) {
                        out.raise(kind);
                    }
                    self.ended = Some(Box::new((cause, clean)));
                }
            }
        }
        any
    }

    /// The next event. Before a request is reported as failed, the Terminate that goes with it, which
    /// may come behind it, is noted.
    fn next_event(&mut self, reporter: &mut Reporter) -> Option<Event<Wqe>> {
        let event = self.foreseen.pop_front().or_else(|| self.stream.poll_event())?;
        if let Event::OperationDone { outcome, .. } | Event::ReceiveDone { outcome, .. } = &event
            && *outcome != Outcome::Success
            && self.foreseen.is_empty()
        {
            while let Some(later) = self.stream.poll_event() {
                if let Event::Terminated { terminate, .. } = &later {
                    reporter.set_terminate(terminate.likely_code().raw());
                }
                self.foreseen.push_back(later);
            }
        }
        if let Event::Terminated { terminate, .. } = &event {
            reporter.set_terminate(terminate.likely_code().raw());
        }
        Some(event)
    }

    /// Does to TCP what the stream asks for.
    fn shut_down(&mut self) {
        while let Some(shutdown) = self.stream.poll_shutdown() {
            match shutdown {
                Shutdown::Write => {
                    if let Err(error) = self.socket.shutdown_write() {
                        // The connection is gone already, which receiving will tell.
                        tracing::debug!(%error, "socket not shut down");
                    }
                }
                // The stream is over with it; the end of the link does it.
                Shutdown::Abort => self.reset = true,
            }
        }
    }

    /// Follows the state of the stream: what the program sees, and what is flushed.
    fn follow(
        &mut self,
        qp: &Arc<QpInner>,
        reporter: &mut Reporter,
        incoming: &mut VecDeque<Operation<Wqe>>,
        ahead: &mut VecDeque<RecvWqe>,
        out: &mut Outbox,
    ) {
        let state = self.stream.state();
        if state.accepts_work() {
            return;
        }
        if state != self.state {
            tracing::debug!(target: CONNECTION, qp = qp.number, from = %self.state, to = %state, "state");
            self.state = state;
            match state {
                State::FirstWait | State::Full => {}
                State::Finishing | State::Closing => qp.state.follow(QpEvent::Closing),
                State::Terminating => qp.state.follow(QpEvent::Terminating),
                State::Closed => qp.state.follow(QpEvent::Closed),
            }
        }
        // What the stream has comes first, in its order; what it has not follows. // FC-031, FC-032
        if self.submitted == 0 && (qp.sq.any() || !incoming.is_empty()) {
            reporter.flush_sends(qp, incoming, out);
            qp.sq.take(incoming);
            reporter.flush_sends(qp, incoming, out);
        }
        if self.tell_drained && self.submitted == 0 && !qp.sq.any() && incoming.is_empty() {
            self.tell_drained = false;
            out.raise(AsyncEventKind::SqDrained);
        }
        if !state.receives() && self.taken == 0 {
            reporter.flush_receives(qp, ahead, out);
        }
    }

    /// Looks now and then whether the path takes larger or smaller segments (DDP-001).
    fn refresh_size(&mut self) {
        if self.batches < self.emss_due {
            return;
        }
        self.batches = 0;
        self.emss_due = (self.emss_due * 4).min(BATCHES_PER_EMSS);
        if let Ok(emss) = self.socket.emss()
            && emss != self.sizes.emss
        {
            self.sizes.emss = emss;
            self.stream.set_size(self.sizes.plan());
        }
    }

    /// Tells the driver of an earlier deadline than it knows. A later one it will learn when it comes
    /// with the one it knows.
    fn keep_time(&mut self, qp: &QpInner, driver: &Driver) {
        let stream = self.stream.poll_timeout();
        if stream.is_none() && self.resort.is_none() {
            return;
        }
        if let Some(at) = [stream, self.resort].into_iter().flatten().min()
            && self.deadline.is_none_or(|known| at < known)
        {
            self.deadline = Some(at);
            driver.deadline(qp, at);
        }
    }

    /// Whether input is taken from the socket at present.
    fn reads(&self) -> bool {
        !self.rx.ended && !self.stream.is_blocked()
    }

    /// Has the driver told of whatever this connection waits for, unless a program polls for it.
    fn arm(&mut self, qp: &QpInner, driver: &Driver) {
        if qp.parked.load(Ordering::Acquire) {
            // Whoever polls or waits reads the socket, so that nobody else needs to be told of each segment; the pass
            // that ends the parking arms it again. Where nothing is read for now, only the set tells of a reset.
            if self.listed && self.reads() {
                self.listed = false;
                self.armed = None;
                driver.silence(qp, self.socket.as_fd());
            }
            return;
        }
        let wanted = Interest { read: self.reads(), write: self.tx.blocked };
        if self.hung_up && wanted == Interest::default() {
            // It would be reported at once, to no avail: the socket has nothing new to tell. Reading and
            // writing after a hang-up come to an end by themselves.
            return;
        }
        let known = self
            .armed
            .is_some_and(|armed| (armed.read || !wanted.read) && (armed.write || !wanted.write));
        if known {
            return;
        }
        self.listed = true;
        self.armed = driver.arm(qp, self.socket.as_fd(), wanted).then_some(wanted);
    }
}
