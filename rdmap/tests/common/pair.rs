//! Two streams joined by byte pipes in virtual time.
//!
//! TCP is played by two queues of octets. Each accepts and delivers any number of octets at a time, as a
//! seeded generator decides, so every cut of the stream comes about; it can be closed, reset, and lost. An
//! observer on each pipe checks the rules that can be seen there.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use iwarp_ddp::Stag;
use iwarp_mpa::{Framing, Role, Rtr};
use iwarp_rdmap::{
    Event, LostCause, Need, Opcode, Operation, OperationKind, Shutdown, State, Stream,
    StreamConfig, TxBatch,
};
use rand::RngExt;
use rand_chacha::ChaCha8Rng;

use super::endpoint::octets_of;
use super::memory::{Buf, TestMemory};
use super::peer::{Observer, Seen};
use super::start;

/// What one side is to do.
#[derive(Debug, Default)]
pub struct Script {
    pub operations: VecDeque<Operation<Buf>>,
    /// Receives: number, place, capacity.
    pub receives: VecDeque<(u64, usize, usize)>,
}

#[derive(Debug)]
pub struct Side {
    pub stream: Stream<Buf>,
    pub memory: TestMemory,
    pub script: Script,
    pub events: Vec<Event<Buf>>,
    pub closed: bool,
    /// Operations of the script that the stream has taken.
    pub submitted: usize,
    batch: TxBatch,
    /// Its octets, and how many of them TCP has accepted.
    octets: Vec<u8>,
    accepted: usize,
    rx: Vec<u8>,
    /// What this side sends.
    pipe: Pipe,
    need: Need,
    role: Role,
}

/// One direction of TCP.
#[derive(Debug)]
struct Pipe {
    octets: VecDeque<u8>,
    room: usize,
    /// Octets that the other side has read.
    delivered: u64,
    fin: bool,
    fin_read: bool,
    reset: bool,
    wire: Wire,
}

/// What an observer knows of one direction.
#[derive(Debug)]
struct Wire {
    observer: Observer,
    config: StreamConfig,
    /// Fences of the operations, in order.
    fences: Vec<bool>,
    /// Whether each of them is a Write with Immediate Data.
    immediates: Vec<bool>,
    rtr_due: Option<Rtr>,
    begun: usize,
    own_open: bool,
    open_tagged: Option<(Opcode, Stag, u64)>,
    open_send: Option<(u32, u32)>,
    next_msn: [u32; 4],
    requests: usize,
    /// Where each answer of this direction ends.
    responses: Vec<u64>,
    first_end: Option<u64>,
    terminated: bool,
}

/// How large the pieces are that TCP takes and gives, and how much it holds.
#[derive(Clone, Copy, Debug)]
pub struct Tcp {
    pub most: usize,
    pub room: usize,
}

#[derive(Debug)]
pub struct Pair {
    pub sides: [Side; 2],
    pub now: Instant,
    pub rng: ChaCha8Rng,
    tcp: Tcp,
}

impl Pair {
    /// Initiator and responder.
    pub fn new(
        configs: [StreamConfig; 2],
        memories: [TestMemory; 2],
        scripts: [Script; 2],
        tcp: Tcp,
        rng: ChaCha8Rng,
    ) -> Self {
        let sides = configs.into_iter().zip(memories).zip(scripts);
        let mut sides =
            sides.map(|((config, memory), script)| Side::new(config, memory, script, tcp));
        let sides = [sides.next().unwrap(), sides.next().unwrap()];
        Self { sides, now: start(), rng, tcp }
    }

    /// One thing happens. Gives whether anything could.
    pub fn step(&mut self) -> bool {
        let first = self.rng.random_range(0..8);
        (0..8).any(|i| {
            let choice = (first + i) % 8;
            let side = choice % 2;
            match choice / 2 {
                0 => self.transmit(side),
                1 => self.deliver(side),
                2 => self.submit(side),
                _ => self.post(side),
            }
        })
    }

    /// Steps until nothing happens any more without time passing.
    pub fn settle(&mut self) {
        let mut steps = 0;
        while self.step() {
            steps += 1;
            assert!(steps < 2_000_000, "the pair does not come to rest");
        }
    }

    /// Steps and waits until both sides are closed.
    pub fn run_to_the_end(&mut self) {
        loop {
            self.settle();
            if self.sides.iter().all(|side| side.closed) {
                return;
            }
            assert!(self.wait(), "not closed, and nothing to wait for: {:?}", self.states());
        }
    }

    pub fn states(&self) -> [State; 2] {
        [self.sides[0].stream.state(), self.sides[1].stream.state()]
    }

    /// Time passes until the next timer.
    pub fn wait(&mut self) -> bool {
        let next = self.sides.iter().filter_map(|side| side.stream.poll_timeout()).min();
        let Some(next) = next else { return false };
        self.now = self.now.max(next);
        for side in 0..2 {
            self.sides[side].stream.handle_timeout(self.now);
            self.look(side);
        }
        true
    }

    pub fn wait_for(&mut self, time: Duration) {
        self.now += time;
        for side in 0..2 {
            self.sides[side].stream.handle_timeout(self.now);
            self.look(side);
        }
    }

    /// The stream hands octets to TCP, which accepts some.
    fn transmit(&mut self, at: usize) -> bool {
        let now = self.now;
        let side = &mut self.sides[at];
        if side.closed {
            return false;
        }
        if side.accepted == side.batch.len() {
            side.accepted = 0;
            let may_transmit = side.stream.may_transmit();
            if !side.stream.poll_transmit(&mut side.memory, &mut side.batch, now) {
                self.look(at);
                return false;
            }
            assert!(may_transmit, "the quick look denied what there is");
            side.octets = octets_of(&side.batch, &side.stream, &side.memory);
        }
        let waiting = side.batch.len() - side.accepted;
        let room = side.pipe.room.saturating_sub(side.pipe.octets.len());
        let most = waiting.min(room);
        if most == 0 {
            self.look(at);
            return false;
        }
        let count = self.rng.random_range(1..=most.min(self.tcp.most));
        let [side, peer] = self.both(at);
        let piece = &side.octets[side.accepted..side.accepted + count];
        if side.role == Role::Responder {
            // MPA-029
            let first = peer.pipe.wire.first_end;
            assert!(
                first.is_some_and(|end| end <= peer.pipe.delivered),
                "the responder sends before it has received"
            );
        }
        let answered = peer.pipe.answered();
        side.pipe.wire.see(piece, answered);
        side.pipe.octets.extend(piece);
        side.accepted += count;
        side.stream.handle_transmitted(count, now);
        self.look(at);
        true
    }

    /// Octets that `from` sent reach the other side, or its FIN does.
    fn deliver(&mut self, from: usize) -> bool {
        let now = self.now;
        let most = self.tcp.most;
        let count = self.sides[from].pipe.octets.len();
        let count = if count == 0 { 0 } else { self.rng.random_range(1..=count.min(most)) };
        let keeps_going = self.rng.random_bool(0.7);
        let [source, sink] = self.both(from);
        if source.pipe.reset {
            return false;
        }
        if sink.closed {
            // Nobody reads any more: what comes is answered by a reset.
            if count > 0 {
                source.pipe.octets.clear();
                source.stream.handle_lost(LostCause::Reset);
                self.look(from);
            }
            return count > 0;
        }
        // A driver does not read on while a Send is held back.
        let is_stuck = sink.stream.is_blocked() && sink.memory.receives.is_empty();
        if count > 0 && !is_stuck {
            sink.rx.extend(source.pipe.octets.drain(..count));
            source.pipe.delivered += count as u64;
        }
        let had_input = count > 0 && !is_stuck;
        let can_go_on = sink.need == Need::Again
            || (sink.stream.is_blocked() && !sink.memory.receives.is_empty());
        if had_input || can_go_on {
            loop {
                let input = sink.stream.handle_input(&mut sink.rx, &mut sink.memory, now);
                sink.rx.drain(..input.consumed);
                sink.need = input.need;
                if input.need != Need::Again || !keeps_going {
                    break;
                }
            }
            self.look(1 - from);
            return true;
        }
        if source.pipe.fin && !source.pipe.fin_read && source.pipe.octets.is_empty() {
            source.pipe.fin_read = true;
            sink.stream.handle_eof(sink.rx.len(), now);
            self.look(1 - from);
            return true;
        }
        false
    }

    fn submit(&mut self, at: usize) -> bool {
        let side = &mut self.sides[at];
        if !side.stream.state().accepts_work() {
            return false;
        }
        let Some(operation) = side.script.operations.pop_front() else { return false };
        side.pipe.wire.fences.push(operation.fence);
        let with_immediate = matches!(operation.kind, OperationKind::WriteImmediate { .. });
        side.pipe.wire.immediates.push(with_immediate);
        side.stream.submit(operation).unwrap();
        side.submitted += 1;
        true
    }

    fn post(&mut self, at: usize) -> bool {
        let side = &mut self.sides[at];
        let Some((id, place, capacity)) = side.script.receives.pop_front() else { return false };
        side.memory.post(id, place, capacity);
        true
    }

    /// All receives of a side are posted now.
    pub fn post_all(&mut self, at: usize) {
        while self.post(at) {}
    }

    /// What a side reports is noted and carried out.
    pub fn look(&mut self, at: usize) {
        let [side, peer] = self.both(at);
        let mut tcp_is_lost = false;
        while let Some(shutdown) = side.stream.poll_shutdown() {
            match shutdown {
                Shutdown::Write => {
                    assert_eq!(side.accepted, side.batch.len(), "FIN before the last octet");
                    assert!(!side.pipe.fin, "FIN twice");
                    side.pipe.fin = true;
                }
                Shutdown::Abort => {
                    side.pipe.reset = true;
                    side.pipe.octets.clear();
                    tcp_is_lost = true;
                }
            }
        }
        while let Some(event) = side.stream.poll_event() {
            assert!(!side.closed, "{event:?} after the end");
            side.closed |= matches!(event, Event::Closed { .. });
            side.events.push(event);
        }
        if side.closed && !side.pipe.reset {
            side.pipe.fin = true;
        }
        if tcp_is_lost && !peer.closed {
            peer.stream.handle_lost(LostCause::Reset);
            peer.pipe.octets.clear();
            self.look(1 - at);
        }
    }

    /// TCP goes away under both.
    pub fn lose_tcp(&mut self, cause: LostCause) {
        for at in 0..2 {
            let side = &mut self.sides[at];
            side.pipe.octets.clear();
            side.pipe.reset = true;
            side.stream.handle_lost(cause);
        }
        self.look(0);
        self.look(1);
    }

    /// Some octet on its way from `from` changes.
    pub fn corrupt(&mut self, from: usize) -> bool {
        let len = self.sides[from].pipe.octets.len();
        if len == 0 {
            return false;
        }
        let at = self.rng.random_range(0..len);
        let flip = self.rng.random_range(1..=255);
        if let Some(octet) = self.sides[from].pipe.octets.get_mut(at) {
            *octet ^= flip;
        }
        true
    }

    pub fn close(&mut self, at: usize) {
        self.sides[at].stream.close(self.now);
        self.look(at);
    }

    fn both(&mut self, at: usize) -> [&mut Side; 2] {
        let [first, second] = &mut self.sides;
        if at == 0 { [first, second] } else { [second, first] }
    }
}

impl Side {
    fn new(config: StreamConfig, memory: TestMemory, script: Script, tcp: Tcp) -> Self {
        let role = config.role;
        let wire = Wire {
            observer: Observer::new(Framing {
                receive_markers: config.framing.send_markers,
                ..config.framing
            }),
            rtr_due: config.rtr.filter(|_| role == Role::Initiator),
            next_msn: [config.first_msn, config.first_msn, 1, config.first_msn],
            fences: Vec::new(),
            immediates: Vec::new(),
            begun: 0,
            own_open: false,
            open_tagged: None,
            open_send: None,
            requests: 0,
            responses: Vec::new(),
            first_end: None,
            terminated: false,
            config,
        };
        Self {
            stream: Stream::new(config),
            memory,
            script,
            events: Vec::new(),
            closed: false,
            submitted: 0,
            batch: TxBatch::with_capacity(4096),
            octets: Vec::new(),
            accepted: 0,
            rx: Vec::new(),
            pipe: Pipe {
                octets: VecDeque::new(),
                room: tcp.room,
                delivered: 0,
                fin: false,
                fin_read: false,
                reset: false,
                wire,
            },
            need: Need::More(2),
            role,
        }
    }

    /// Payloads from so many octets on are not copied.
    pub fn gather_from(&mut self, least: u32) {
        self.batch.gather_from = Some(least);
    }
}

impl Pipe {
    /// Read Responses that have reached the other side whole.
    fn answered(&self) -> usize {
        self.wire.responses.iter().filter(|&&end| end <= self.delivered).count()
    }
}

impl Wire {
    /// Looks at octets as TCP accepts them. `answered` responses have come back so far.
    fn see(&mut self, octets: &[u8], answered: usize) {
        for seen in self.observer.see(octets) {
            assert!(!self.terminated, "{:?} after a Terminate", seen.opcode); // RDMAP-053
            self.first_end.get_or_insert(seen.end);
            assert!(seen.ulpdu.len() <= self.config.size.mulpdu, "longer than MULPDU");
            match seen.tagged {
                Some((stag, offset)) => self.tagged(&seen, stag, offset),
                None => self.untagged(&seen),
            }
            self.rules(&seen, answered);
        }
    }

    /// Two tagged messages are not mixed, and offsets go on where they were.
    fn tagged(&mut self, seen: &Seen, stag: Stag, offset: u64) {
        if let Some((opcode, open, next)) = self.open_tagged {
            assert_eq!((seen.opcode, stag, offset), (opcode, open, next), "tagged messages mixed");
        }
        let next = offset.wrapping_add(seen.payload.len() as u64);
        self.open_tagged = (!seen.last).then_some((seen.opcode, stag, next));
    }

    fn untagged(&mut self, seen: &Seen) {
        let (queue, msn, offset) = seen.untagged.unwrap();
        let next = &mut self.next_msn[queue as usize];
        assert_eq!(msn, *next, "MSN on queue {queue}");
        if seen.last {
            *next = next.wrapping_add(1);
        }
        if queue == 0 {
            let expected = self.open_send.map_or(0, |(_, offset)| offset);
            assert_eq!(offset, expected, "MO");
            let end = offset + seen.payload.len() as u32;
            self.open_send = (!seen.last).then_some((msn, end));
        } else {
            assert!(seen.last && offset == 0);
        }
    }

    fn rules(&mut self, seen: &Seen, answered: usize) {
        match seen.opcode {
            Opcode::Terminate => {
                self.terminated = true;
                return;
            }
            Opcode::ReadResponse | Opcode::AtomicResponse => {
                if seen.last {
                    self.responses.push(seen.end);
                }
                return;
            }
            _ => {}
        }
        // CONN-09, CONN-24
        let is_rtr = self.rtr_due.take().is_some_and(|rtr| {
            let opcode = match rtr {
                Rtr::Send => Opcode::Send,
                Rtr::Write => Opcode::Write,
                Rtr::Read => Opcode::ReadRequest,
            };
            assert_eq!(seen.opcode, opcode, "RTR");
            true
        });
        let is_request = matches!(seen.opcode, Opcode::ReadRequest | Opcode::AtomicRequest);
        if is_request {
            self.requests += 1;
            let allowed = (self.config.ord as usize).max(usize::from(is_rtr));
            // RDMAP-062, EXT-16
            assert!(self.requests - answered <= allowed, "more Reads and Atomics than ORD");
        }
        if is_rtr {
            return;
        }
        if !self.own_open {
            let earlier = self.requests - usize::from(is_request);
            if self.fences[self.begun] {
                // FC-025. The Read that served as RTR counts as well: it was answered long ago or not.
                let rtr = usize::from(self.config.rtr == Some(Rtr::Read));
                assert!(earlier - answered <= rtr, "fence");
            }
            self.begun += 1;
        }
        // EXT-31: what opens with the Write of one of these ends with its Immediate Data.
        let with_immediate = self.immediates.get(self.begun - 1).copied().unwrap_or(false);
        self.own_open = !seen.last || (with_immediate && seen.opcode == Opcode::Write);
    }
}
