//! One of the streams, and what it has said so far.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use iwarp_mpa::Framing;
use iwarp_rdmap::{
    Chunk, CloseCause, Counters, Event, Initiator, Messages, Need, Opcode, Outcome, Shutdown, State,
};

use super::layout;
use super::script::{Setup, Step};
use crate::bytes::pieces;
use crate::common::endpoint::Endpoint;
use crate::common::memory::Buf;
use crate::common::peer::{Observer, Seen};

/// Longer than any limit of time of a stream.
pub(super) const LONGEST_WAIT: Duration = Duration::from_secs(31);

/// The longest FPDU that anybody can send, with a marker every 512 octets, and one in front.
const LONGEST_FPDU: usize = 65_544 + 4 * (65_544_usize.div_ceil(508) + 1);

/// How the octets of the peer are shown.
#[derive(Clone, Copy, Debug)]
pub(super) enum Way {
    /// Step by step.
    Whole,
    /// In pieces.
    Pieces([u8; 3]),
    /// In pieces, and payload goes into memory directly where it can.
    Straight([u8; 3]),
}

#[derive(Debug)]
pub(super) struct Side {
    endpoint: Endpoint,
    way: Way,
    /// Octets of the batch that TCP has not accepted.
    pending: usize,
    /// Operations that the stream has taken.
    submitted: Vec<u64>,
    events: Vec<Event<Buf>>,
    shutdowns: Vec<Shutdown>,
    sent: Vec<u8>,
    observer: Observer,
    seen: Vec<Seen>,
    /// Octets that TCP has accepted.
    accepted: u64,
    /// Where own requests end that TCP has not accepted in full.
    requests: VecDeque<u64>,
    /// Own requests that it has.
    requested: u64,
    /// Numbers of the next messages on the queues.
    msn: [u32; 4],
    terminated: bool,
    /// What there was when the stream stopped receiving.
    frozen: Option<(Vec<u8>, usize, Messages)>,
}

impl Side {
    pub(super) fn new(setup: &Setup, way: Way) -> Self {
        let Framing { send_markers, crc, .. } = setup.config.framing;
        let mut endpoint = Endpoint::new(setup.config, layout::memory());
        if setup.gathers {
            endpoint.batch.gather_from = Some(16);
        }
        endpoint.memory.kept = setup.keeps.then(Vec::new);
        let msn = setup.config.first_msn;
        Self {
            endpoint,
            way,
            pending: 0,
            submitted: Vec::new(),
            events: Vec::new(),
            shutdowns: Vec::new(),
            sent: Vec::new(),
            observer: Observer::new(Framing {
                send_markers: false,
                receive_markers: send_markers,
                crc,
            }),
            seen: Vec::new(),
            accepted: 0,
            requests: VecDeque::new(),
            requested: 0,
            msn: [msn, msn, 1, msn],
            terminated: false,
            frozen: None,
        }
    }

    pub(super) fn state(&self) -> State {
        self.endpoint.stream.state()
    }

    pub(super) fn counters(&self) -> &Counters {
        self.endpoint.stream.counters()
    }

    pub(super) fn is_closed(&self) -> bool {
        matches!(self.events.last(), Some(Event::Closed { .. }))
    }

    /// Own Read Requests and Atomic Requests that the peer can have seen.
    pub(super) const fn requests_on_the_wire(&self) -> u64 {
        self.requested
    }

    /// What went out since the last call.
    pub(super) fn take_seen(&mut self) -> Vec<Seen> {
        std::mem::take(&mut self.seen)
    }

    pub(super) fn happens(&mut self, step: &Step) {
        match step {
            Step::Feed(octets) => self.feed(octets),
            Step::Eof => self.endpoint.eof(),
            Step::Submit(operation) => {
                let accepts = self.state().accepts_work();
                match self.endpoint.stream.submit(operation.clone()) {
                    Ok(()) => self.submitted.push(operation.buffer.id),
                    Err(refused) => {
                        assert!(!accepts);
                        assert_eq!(refused.operation, *operation, "given back as it was");
                    }
                }
            }
            Step::Post(buffer) => {
                self.endpoint.memory.post(buffer.id, buffer.at, buffer.len);
                if self.endpoint.stream.is_blocked() {
                    self.endpoint.read();
                }
            }
            Step::Send => while self.send_some(usize::MAX) {},
            Step::SendSome(octets) => {
                self.send_some(*octets);
            }
            Step::SourceFault => self.source_fault(),
            Step::Wait(time) => self.endpoint.wait(*time),
            Step::Close => self.endpoint.stream.close(self.endpoint.now),
            Step::Disconnect => self.endpoint.stream.disconnect(self.endpoint.now),
            Step::Abort => self.endpoint.stream.abort(),
            Step::Terminate(code) => self.endpoint.stream.terminate(*code, self.endpoint.now),
            Step::Lost(cause) => self.endpoint.stream.handle_lost(*cause),
            Step::Open(region) => self.endpoint.memory.regions.push(region.clone()),
            Step::Revoke(index) => {
                let regions = &mut self.endpoint.memory.regions;
                let index = index % regions.len();
                regions[index].valid = false;
            }
            Step::Break(id) => self.endpoint.memory.broken.push(*id),
            Step::Ord(ord) => self.endpoint.stream.set_ord(*ord),
            Step::Size(size) => self.endpoint.stream.set_size(*size),
            Step::Shrink => self.endpoint.stream.shrink_to_fit(),
        }
        self.take_events();
        self.check_frozen();
    }

    fn feed(&mut self, octets: &[u8]) {
        // Who is closing sends FIN when the last answer has come, and what comes then is late: here the cut may
        // be seen.
        let whole = self.state() == State::Finishing;
        match self.way {
            Way::Pieces(cuts) if !whole => {
                for piece in pieces(octets, cuts) {
                    self.endpoint.feed(piece);
                    self.check_input();
                }
            }
            Way::Straight(cuts) => {
                for piece in pieces(octets, if whole { [0; 3] } else { cuts }) {
                    self.endpoint.feed_straight(piece);
                    self.check_input();
                }
            }
            Way::Whole | Way::Pieces(_) => {
                self.endpoint.feed(octets);
                self.check_input();
            }
        }
    }

    /// What of the input is left is what the stream says.
    fn check_input(&self) {
        let unread = self.endpoint.rx.len();
        match self.endpoint.need {
            Some(Need::More(octets)) => assert!(unread < octets && octets <= LONGEST_FPDU),
            Some(Need::Receive) => assert!(self.endpoint.stream.is_blocked()),
            Some(Need::Nothing) => assert_eq!(unread, 0, "kept what nobody will look at"),
            Some(Need::Again) | None => unreachable!("the endpoint goes on by itself"),
        }
    }

    /// TCP takes so many octets of what there is to send, but not of more than one record. Gives whether there were
    /// any.
    fn send_some(&mut self, octets: usize) -> bool {
        if self.pending == 0 {
            let may = self.endpoint.stream.may_transmit();
            let is_closed = self.state() == State::Closed;
            let Some(record) = self.endpoint.record() else { return false };
            assert!(may && !is_closed, "sends, though it said that it would not");
            assert!(self.shutdowns.is_empty(), "sends behind its own end");
            self.pending = record.len();
            self.observe(&record);
        }
        let accepted = octets.min(self.pending);
        self.pending -= accepted;
        self.endpoint.accepted(accepted);
        self.accepted += accepted as u64;
        while self.requests.front().is_some_and(|&end| end <= self.accepted) {
            self.requests.pop_front();
            self.requested += 1;
        }
        accepted > 0
    }

    fn observe(&mut self, record: &[u8]) {
        self.sent.extend_from_slice(record);
        for fpdu in self.observer.see(record) {
            assert!(!self.terminated, "a message behind a Terminate");
            self.terminated = fpdu.opcode == Opcode::Terminate;
            if let Some((queue, msn, _)) = fpdu.untagged {
                assert_eq!(fpdu.opcode.queue(), Some(queue));
                let due = &mut self.msn[queue as usize];
                assert_eq!(msn, *due, "a number that is not due");
                if fpdu.last {
                    *due = due.wrapping_add(1);
                }
            }
            if matches!(fpdu.opcode, Opcode::ReadRequest | Opcode::AtomicRequest) {
                self.requests.push_back(fpdu.end);
            }
            self.seen.push(fpdu);
        }
        assert!(self.observer.is_between(), "a record ends inside of an FPDU");
    }

    /// Memory that is sent from is gone, if some is.
    fn source_fault(&mut self) {
        if self.pending == 0 {
            return;
        }
        let chunks = self.endpoint.batch.chunks().to_vec();
        if let Some(chunk) = chunks.iter().find(|chunk| !matches!(chunk, Chunk::Staged(_))) {
            self.endpoint.stream.handle_source_fault(chunk);
            self.pending = 0;
        }
    }

    fn take_events(&mut self) {
        let events = self.endpoint.events();
        assert!(events.is_empty() || !self.is_closed(), "an event behind the last one");
        self.events.extend(events);
        self.shutdowns.extend(self.endpoint.shutdowns());
        let twice = self.shutdowns.iter().filter(|&&told| told == Shutdown::Write).count() > 1;
        assert!(!twice && self.shutdowns.len() <= 2);
    }

    /// DDP-059, MPA-083: once the stream has ended, nothing that the peer sends has any effect.
    fn check_frozen(&mut self) {
        if self.state().receives() {
            return;
        }
        let memory = &self.endpoint.memory;
        let taken = memory.taken.len();
        let came = &self.endpoint.stream.counters().messages_in;
        match &self.frozen {
            None => self.frozen = Some((memory.bytes.clone(), taken, came.clone())),
            Some(frozen) => {
                assert!(frozen.0 == memory.bytes, "memory changes behind the end");
                assert_eq!((frozen.1, &frozen.2), (taken, came), "accepted behind the end");
            }
        }
    }

    /// Another side, to which the same has happened, cannot be told from this one.
    pub(super) fn compare(&self, other: &Self) {
        let (one, two) = (&self.endpoint, &other.endpoint);
        assert_eq!(self.state(), other.state());
        assert_eq!(self.counters(), other.counters());
        assert_eq!(self.events, other.events);
        assert_eq!(self.shutdowns, other.shutdowns);
        assert_eq!(self.sent, other.sent);
        assert_eq!(self.pending, other.pending);
        assert_eq!(missing(one), missing(two));
        assert_eq!(timeout(one), timeout(two));
        assert_eq!(one.stream.is_blocked(), two.stream.is_blocked());
        assert_eq!(one.stream.outstanding_reads(), two.stream.outstanding_reads());
        assert_eq!(one.stream.queued_operations(), two.stream.queued_operations());
        assert_eq!(one.memory.taken, two.memory.taken);
        assert_eq!(one.memory.kept, two.memory.kept);
        assert_eq!(one.memory.performed, two.memory.performed);
        let is_ahead = matches!(other.way, Way::Straight(_))
            && (!two.rx.is_empty() || !self.state().receives());
        // Payload of a segment that is not whole may be in place already, and that of one that failed.
        if !is_ahead && !other.has_been_ahead() {
            assert!(one.memory.bytes == two.memory.bytes, "memory tells the sides apart");
        }
    }

    /// Whether octets of a segment that was refused may lie in memory.
    fn has_been_ahead(&self) -> bool {
        matches!(self.way, Way::Straight(_)) && self.frozen.is_some()
    }

    /// At the very end.
    pub(super) fn check_end(&self, sinks: &[Buf]) {
        assert_eq!(self.state(), State::Closed);
        assert!(self.is_closed());
        let closed = self.events.iter().filter(|event| matches!(event, Event::Closed { .. }));
        assert_eq!(closed.count(), 1);
        self.check_cause();
        self.check_work();
        layout::check(&self.endpoint.memory, sinks, &self.events);
    }

    /// RDMAP-073: one Terminate at most, and what it tells is what ended the stream.
    fn check_cause(&self) {
        let Some(Event::Closed { clean, cause }) = self.events.last() else {
            unreachable!("it was looked for")
        };
        assert_eq!(*clean, *cause == CloseCause::Orderly);
        let mut terminated = self.events.iter().filter_map(|event| match event {
            Event::Terminated { by, terminate, cause } => Some((by, terminate, cause)),
            _ => None,
        });
        if let Some((by, terminate, error)) = terminated.next() {
            let expected = match (by, error) {
                (Initiator::Local, Some(error)) => CloseCause::Error(error.clone()),
                (Initiator::Remote, None) => CloseCause::Terminated(*terminate),
                (Initiator::User, Some(_)) => CloseCause::User,
                (by, error) => panic!("{error:?} by {by:?}"),
            };
            assert_eq!(*cause, expected);
        }
        assert!(terminated.next().is_none());
    }

    /// RDMAP-055, ORD-13: all has come back, once and in order.
    fn check_work(&self) {
        let mut done = Vec::new();
        let mut received = Vec::new();
        let mut culprits = 0;
        let mut all_succeed = true;
        for event in &self.events {
            let (Event::OperationDone { buffer, outcome, .. }
            | Event::ReceiveDone { buffer, outcome, .. }) = event
            else {
                continue;
            };
            culprits += u32::from(!matches!(outcome, Outcome::Success | Outcome::Flushed));
            all_succeed &= *outcome == Outcome::Success;
            match event {
                Event::OperationDone { .. } => done.push(buffer.id),
                _ => received.push(buffer.id),
            }
        }
        assert!(culprits <= 1, "more than one culprit");
        let is_clean = matches!(self.events.last(), Some(Event::Closed { clean: true, .. }));
        assert!(all_succeed || !is_clean, "a clean end that has flushed something");
        assert_eq!(done, self.submitted);
        received.extend(self.endpoint.memory.kept.iter().flatten().map(|kept| kept.buffer.id));
        received.sort_unstable();
        assert_eq!(received, self.endpoint.memory.taken);
        assert_eq!(self.endpoint.stream.queued_operations(), 0);
    }
}

/// Octets that the stream waits for, or what else it waits for.
fn missing(endpoint: &Endpoint) -> Result<usize, Option<Need>> {
    match endpoint.need {
        Some(Need::More(octets)) => Ok(octets - endpoint.rx.len()),
        other => Err(other),
    }
}

/// When the stream wants to be called, from now on.
fn timeout(endpoint: &Endpoint) -> Option<Duration> {
    let now: Instant = endpoint.now;
    endpoint.stream.poll_timeout().map(|at| at.saturating_duration_since(now))
}
