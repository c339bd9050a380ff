//! Two streams and a model of both memories: whatever the pieces in which TCP moves octets, and whatever
//! ends the connection at whatever octet, everything comes back once, in order, and as the model has it.
#![allow(
    clippy::arithmetic_side_effects,
    clippy::cast_possible_truncation,
    clippy::indexing_slicing,
    reason = "a test"
)]

mod common;

use common::config;
use common::memory::{Buf, Region, TestMemory};
use common::pair::{Pair, Script, Tcp};
use iwarp_ddp::Stag;
use iwarp_mpa::{FpduLimit, Framing, Role, Rtr, SizePlan};
use iwarp_rdmap::{
    AtomicOperation, CloseCause, Event, Initiator, LostCause, Operation, OperationKind, Outcome,
    StreamConfig, TerminateCode,
};
use proptest::prelude::*;
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

/// `STag` of the memory that each side opens to the other, and its first offset.
const OPEN: u32 = 0x0077_0001;
const BASE: u64 = 0xffff_0000;
const SINKS: u32 = 0x0088_0001;

/// How a connection is set up, as far as it matters here. Printed when a property fails.
#[derive(Clone, Debug)]
struct Setting {
    seed: u64,
    markers: [bool; 2],
    crc: bool,
    emss: u32,
    limit: FpduLimit,
    depth: [u32; 2],
    rtr: Option<Rtr>,
    burst: usize,
    input_burst: usize,
    tcp: (usize, usize),
    gather: Option<u32>,
    operations: [usize; 2],
    longest: usize,
}

fn setting() -> impl Strategy<Value = Setting> {
    let framing = (any::<[bool; 2]>(), any::<bool>());
    let size = (
        prop_oneof![Just(128_u32), Just(536), Just(1448), Just(1461), Just(9000)],
        prop_oneof![Just(FpduLimit::Emss), Just(FpduLimit::Octets(16_384))],
    );
    let rtr = prop_oneof![
        2 => Just(None),
        1 => Just(Some(Rtr::Send)),
        1 => Just(Some(Rtr::Write)),
        1 => Just(Some(Rtr::Read)),
    ];
    let tcp = prop_oneof![Just((1, 64)), Just((100, 1000)), Just((5000, 20_000))];
    let bursts = (1_usize..6, prop_oneof![Just(1_usize), Just(3), Just(256)]);
    let load = ([0_usize..12, 0..12], prop_oneof![Just(40_usize), Just(3000)]);
    let gather = proptest::option::of(1_u32..600);
    (any::<u64>(), framing, size, [1_u32..5, 1..5], rtr, tcp, bursts, load, gather).prop_map(
        |(seed, (markers, crc), (emss, limit), depth, rtr, tcp, bursts, load, gather)| Setting {
            seed,
            markers,
            crc,
            emss,
            limit,
            depth,
            rtr,
            burst: bursts.0,
            input_burst: bursts.1,
            // Single octets take long: less to send then.
            operations: if tcp.0 == 1 { load.0.map(|count| count / 2) } else { load.0 },
            longest: if tcp.0 == 1 { load.1.min(300) } else { load.1 },
            tcp,
            gather,
        },
    )
}

impl Setting {
    fn configs(&self) -> [StreamConfig; 2] {
        [Role::Initiator, Role::Responder].map(|role| {
            let at = usize::from(role == Role::Responder);
            let mut config = config(role);
            let [sends, receives] = [self.markers[at], self.markers[1 - at]];
            config.framing =
                Framing { send_markers: sends, receive_markers: receives, crc: self.crc };
            config.size = SizePlan::new(self.emss, self.limit, sends);
            config.ord = self.depth[1 - at];
            config.ird = self.depth[at];
            config.rtr = self.rtr;
            config.response_burst = self.burst;
            config.input_burst = self.input_burst;
            config
        })
    }

    fn tcp(&self) -> Tcp {
        Tcp { most: self.tcp.0, room: self.tcp.1 }
    }
}

/// What one side does, and what must come of it.
#[derive(Debug, Default)]
struct Plan {
    memory: TestMemory,
    operations: Vec<Operation<Buf>>,
    receives: Vec<(u64, usize, usize)>,
    /// What each operation puts into the peer's receives.
    messages: Vec<Message>,
    /// Where Reads put what, at last.
    sunk: Vec<(Buf, Vec<u8>)>,
    has_reads: bool,
}

/// What a receive of the peer is to tell, and to hold.
#[derive(Clone, Debug)]
struct Message {
    len: u32,
    solicited: bool,
    invalidate: Option<Stag>,
    immediate: Option<[u8; 8]>,
    payload: Vec<u8>,
}

const PIECE: usize = 4096;

/// Lays out one side's memory: sources and sinks, one piece for each operation; then receives; then, opened
/// to the peer, one piece for each operation of the peer.
struct Layout {
    own: usize,
    peers: usize,
}

impl Layout {
    fn receive(&self, message: usize) -> usize {
        (self.own + message) * PIECE
    }
    fn open(&self) -> usize {
        (self.own + self.peers) * PIECE
    }
    fn len(&self) -> usize {
        (self.own + 2 * self.peers) * PIECE
    }
}

/// What the peer's open memory holds before anything happens.
fn original(at: usize) -> u8 {
    (at.wrapping_mul(31) >> 3) as u8 ^ at as u8
}

fn plan(rng: &mut ChaCha8Rng, setting: &Setting, at: usize) -> Plan {
    let count = setting.operations[at];
    let layout = Layout { own: count, peers: setting.operations[1 - at] };
    let peer = Layout { own: layout.peers, peers: count };
    let mut memory = TestMemory::new(layout.len());
    for (i, octet) in memory.bytes.iter_mut().enumerate().skip(layout.open()) {
        *octet = original(i - layout.open());
    }
    memory.regions =
        vec![Region::new(OPEN, BASE, layout.open(), (layout.len() - layout.open()) as u64)];
    let mut plan = Plan { memory, ..Plan::default() };
    // The peer's open memory as it will be when the present operation is carried out.
    let mut open: Vec<u8> = (0..peer.len() - peer.open()).map(original).collect();
    for op in 0..count {
        let len = match rng.random_range(0..4) {
            0 => 0,
            1 => rng.random_range(1..=9),
            _ => rng.random_range(1..=setting.longest),
        };
        let source = op * PIECE;
        let buffer = Buf { id: op as u64, at: source, len };
        let mut fence = rng.random_bool(0.2);
        // Mostly a piece of its own; sometimes the piece of an earlier operation, so that order shows.
        let target = if op > 0 && rng.random_bool(0.3) { rng.random_range(0..op) } else { op };
        let offset = BASE + (target * PIECE) as u64;
        let immediate = rng.random_bool(0.4);
        // One in three requests is an Atomic, on the word that its piece begins with.
        let is_atomic = rng.random_bool(0.33);
        let kind = match rng.random_range(0..3) {
            0 => {
                let invalidate =
                    rng.random_bool(0.3).then(|| Stag::from_parts(0x4000 + op as u32, 7));
                OperationKind::Send { solicited: rng.random_bool(0.5), invalidate }
            }
            1 => {
                // Whatever was to be read there may not have been read yet (ORD-10).
                fence |= target != op;
                if immediate {
                    OperationKind::WriteImmediate {
                        stag: Stag::from_raw(OPEN),
                        offset,
                        immediate: rng.random(),
                        solicited: rng.random_bool(0.5),
                    }
                } else {
                    OperationKind::Write { stag: Stag::from_raw(OPEN), offset }
                }
            }
            _ if is_atomic => OperationKind::Atomic {
                stag: Stag::from_raw(OPEN),
                offset,
                operation: Box::new(any_atomic(rng)),
            },
            _ => OperationKind::Read {
                sink_stag: Stag::from_raw(SINKS),
                sink_offset: source as u64,
                source_stag: Stag::from_raw(OPEN),
                source_offset: offset,
            },
        };
        let len = if matches!(kind, OperationKind::Atomic { .. }) { 8 } else { len };
        let buffer = Buf { len, ..buffer };
        let place = target * PIECE..target * PIECE + len;
        if let OperationKind::Atomic { operation, .. } = &kind {
            plan.has_reads = true;
            // ORD-18, ORD-20: it sees the Writes and Atomics before it, and no Read before sees it.
            let word = &mut open[place];
            plan.sunk.push((buffer, word.to_vec()));
            let original = u64::from_ne_bytes(word.try_into().expect("8 octets"));
            word.copy_from_slice(&operation.apply(original).to_ne_bytes());
        } else if let OperationKind::Read { .. } = kind {
            plan.has_reads = true;
            // ORD-09: it sees the Writes before it.
            plan.sunk.push((buffer, open[place].to_vec()));
        } else {
            let payload: Vec<u8> = (0..len).map(|_| rng.random()).collect();
            plan.memory.bytes[source..source + len].copy_from_slice(&payload);
            if let OperationKind::Send { solicited, invalidate } = kind {
                let len = len as u32;
                let message = Message { len, solicited, invalidate, immediate: None, payload };
                plan.messages.push(message);
            } else {
                open[place].copy_from_slice(&payload);
                if let OperationKind::WriteImmediate { immediate, solicited, .. } = kind {
                    // The length of the Write, and nothing in the receive.
                    plan.messages.push(Message {
                        len: len as u32,
                        solicited,
                        invalidate: None,
                        immediate: Some(immediate),
                        payload: Vec::new(),
                    });
                }
            }
        }
        plan.operations.push(Operation { kind, len: len as u32, fence, buffer });
    }
    plan
}

fn any_atomic(rng: &mut ChaCha8Rng) -> AtomicOperation {
    match rng.random_range(0..4) {
        0 => AtomicOperation::fetch_add(rng.random()),
        1 => AtomicOperation::FetchAdd { add: rng.random(), mask: rng.random() },
        2 => AtomicOperation::swap(rng.random()),
        _ => {
            // Equal in few bits, so that it comes about.
            let compare_mask = 1 << rng.random_range(0..64) | 1 << rng.random_range(0..64);
            AtomicOperation::CompareSwap {
                compare: rng.random(),
                compare_mask,
                swap: rng.random(),
                swap_mask: rng.random(),
            }
        }
    }
}

/// Plans of both sides, with receives for all that the other sends and the regions it invalidates.
fn plans(rng: &mut ChaCha8Rng, setting: &Setting) -> [Plan; 2] {
    let mut plans = [plan(rng, setting, 0), plan(rng, setting, 1)];
    for at in 0..2 {
        let [own, peers] = [setting.operations[at], setting.operations[1 - at]];
        let layout = Layout { own, peers };
        let messages = plans[1 - at].messages.clone();
        for (i, Message { invalidate, payload, .. }) in messages.iter().enumerate() {
            let slack = rng.random_range(0..20);
            let capacity = (payload.len() + slack).min(PIECE);
            plans[at].receives.push((1000 + i as u64, layout.receive(i), capacity));
            if let Some(stag) = invalidate {
                plans[at].memory.regions.push(Region::new(stag.raw(), 0, 0, 1));
            }
        }
    }
    plans
}

fn pair(setting: &Setting) -> (Pair, [Plan; 2]) {
    let mut rng = ChaCha8Rng::seed_from_u64(setting.seed);
    let mut plans = plans(&mut rng, setting);
    let memories = plans.each_mut().map(|plan| std::mem::take(&mut plan.memory));
    let scripts = plans.each_ref().map(|plan| Script {
        operations: plan.operations.iter().cloned().collect(),
        receives: plan.receives.iter().copied().collect(),
    });
    let mut pair = Pair::new(setting.configs(), memories, scripts, setting.tcp(), rng);
    for (at, plan) in plans.iter().enumerate() {
        // Late receives are for sides without Reads: a Send is not held back in front of a response.
        if plan.has_reads || pair.rng.random_bool(0.3) {
            pair.post_all(at);
        }
        if let Some(least) = setting.gather {
            pair.sides[at].gather_from(least);
        }
    }
    (pair, plans)
}

/// Operations that came back, in order.
fn operations(events: &[Event<Buf>]) -> Vec<(u64, OperationKind, Outcome)> {
    events
        .iter()
        .filter_map(|event| match event {
            Event::OperationDone { buffer, kind, outcome, .. } => {
                Some((buffer.id, kind.clone(), *outcome))
            }
            _ => None,
        })
        .collect()
}

type Received = (u64, Outcome, u32, bool, Option<Stag>, Option<[u8; 8]>);

fn receives(events: &[Event<Buf>]) -> Vec<Received> {
    events
        .iter()
        .filter_map(|event| match event {
            Event::ReceiveDone { buffer, outcome, len, solicited, invalidated, immediate } => {
                Some((buffer.id, *outcome, *len, *solicited, *invalidated, *immediate))
            }
            _ => None,
        })
        .collect()
}

fn all_went_well(pair: &Pair, plans: &[Plan; 2]) {
    for at in 0..2 {
        let [plan, peer_plan] = [&plans[at], &plans[1 - at]];
        let side = &pair.sides[at];
        // ORD-13: in order of submission, all of them.
        let expected: Vec<_> = plan
            .operations
            .iter()
            .map(|operation| (operation.buffer.id, operation.kind.clone(), Outcome::Success))
            .collect();
        assert_eq!(operations(&side.events), expected, "side {at}");
        // RDMAP-041, RDMAP-043, RDMAP-044, ORD-07, ORD-21, EXT-31, EXT-32, EXT-33
        let expected: Vec<_> = peer_plan
            .messages
            .iter()
            .enumerate()
            .map(|(i, sent)| {
                let id = 1000 + i as u64;
                (id, Outcome::Success, sent.len, sent.solicited, sent.invalidate, sent.immediate)
            })
            .collect();
        assert_eq!(receives(&side.events), expected, "side {at}");
        contents(pair, plans, at, expected.len());
        for (buffer, octets) in &plan.sunk {
            let sink = &side.memory.bytes[buffer.at..buffer.at + buffer.len];
            assert!(sink == octets, "side {at}: Read {}", buffer.id);
        }
        // The peer's Writes and Atomics, one after the other.
        let layout = Layout { own: plan.operations.len(), peers: peer_plan.operations.len() };
        let mut open: Vec<u8> = (0..layout.len() - layout.open()).map(original).collect();
        for operation in &peer_plan.operations {
            if let OperationKind::Write { offset, .. }
            | OperationKind::WriteImmediate { offset, .. } = operation.kind
            {
                let place = (offset - BASE) as usize;
                let Buf { at: from, len, .. } = operation.buffer;
                let source = &pair.sides[1 - at].memory.bytes[from..from + len];
                open[place..place + len].copy_from_slice(source);
            }
            if let OperationKind::Atomic { offset, operation, .. } = &operation.kind {
                let place = (offset - BASE) as usize;
                let word: &mut [u8; 8] = open[place..].first_chunk_mut().expect("a word");
                *word = operation.apply(u64::from_ne_bytes(*word)).to_ne_bytes();
            }
        }
        assert!(side.memory.bytes[layout.open()..] == open, "side {at}: open memory");
        for stag in peer_plan.messages.iter().filter_map(|message| message.invalidate) {
            let region = side.memory.regions.iter().find(|region| region.stag == stag);
            assert!(region.is_some_and(|region| !region.valid), "{stag} is still valid");
        }
    }
}

/// The first `count` receives of a side hold what was sent.
fn contents(pair: &Pair, plans: &[Plan; 2], at: usize, count: usize) {
    let layout = Layout { own: plans[at].operations.len(), peers: plans[1 - at].operations.len() };
    for (i, Message { payload, .. }) in plans[1 - at].messages.iter().take(count).enumerate() {
        let place = layout.receive(i);
        let received = &pair.sides[at].memory.bytes[place..place + payload.len()];
        assert!(received == payload, "side {at}: receive {i}");
    }
}

fn closed(events: &[Event<Buf>]) -> (bool, &CloseCause) {
    match events.last() {
        Some(Event::Closed { clean, cause }) => (*clean, cause),
        other => panic!("{other:?} is no end"),
    }
}

proptest! {
    /// DDP-013, RDMAP-020, RDMAP-023, RDMAP-024, RDMAP-031, RDMAP-032, RDMAP-062, ORD-08, ORD-11, ORD-12, ORD-16, ORD-18, ORD-20, EXT-14, EXT-18, DDP-026, DDP-032, DDP-035,
    /// DDP-062, MPA-074, MPA-029, FC-022, FC-036
    #[test]
    fn everything_arrives_whatever_the_pieces(setting in setting()) {
        let (mut pair, plans) = pair(&setting);
        // A responder may send only when the initiator has: without RTR that takes an operation.
        let responder_is_held = setting.rtr.is_none() && setting.operations[0] == 0;
        pair.settle();
        if responder_is_held {
            prop_assert!(operations(&pair.sides[1].events).is_empty());
            return Ok(());
        }
        all_went_well(&pair, &plans);
        prop_assert!(pair.sides.iter().all(|side| side.stream.outstanding_reads() == 0));

        // RDMAP-064: the orderly way down, started by either.
        let first = pair.rng.random_range(0..2);
        pair.close(first);
        pair.run_to_the_end();
        for side in &pair.sides {
            prop_assert_eq!(closed(&side.events), (true, &CloseCause::Orderly));
            prop_assert!(side.events.contains(&Event::PeerClosed));
        }
        all_went_well(&pair, &plans);
    }

    /// DDP-041: a close in the middle of it all carries out what was submitted, and what is submitted late
    /// is refused.
    #[test]
    fn close_lets_submitted_work_finish(setting in setting(), steps in 0_usize..60) {
        let (mut pair, plans) = pair(&setting);
        pair.post_all(0);
        pair.post_all(1);
        for _ in 0..steps {
            pair.step();
        }
        // The peer says nothing on its own, so that nothing of its work is pending.
        let submitted = pair.sides[0].submitted;
        let peer_busy = pair.sides[1].submitted > 0;
        pair.sides[1].script.operations.clear();
        pair.close(0);
        pair.run_to_the_end();
        if peer_busy {
            prop_assert!(all_returned_once(&pair, &plans, true).is_ok());
        } else {
            let done = operations(&pair.sides[0].events);
            prop_assert_eq!(done.len(), submitted);
            prop_assert!(done.iter().all(|(_, _, outcome)| *outcome == Outcome::Success));
            prop_assert_eq!(closed(&pair.sides[0].events).0, true);
            prop_assert_eq!(closed(&pair.sides[1].events).0, true);
        }
    }

    /// DDP-003, DDP-045, RDMAP-055, RDMAP-066, RDMAP-069, FC-033: whatever ends it, at whatever octet.
    #[test]
    fn everything_comes_back_once_whatever_ends_it(
        setting in setting(),
        steps in 0_usize..400,
        end in proptest::sample::select(&End::ALL[..]),
        side in 0_usize..2,
    ) {
        let (mut pair, plans) = pair(&setting);
        for _ in 0..steps {
            pair.step();
        }
        end.happen(&mut pair, side);
        let intact = setting.crc || !matches!(end, End::Corrupt);
        pair.settle();
        if pair.sides.iter().all(|side| !side.closed) {
            // What has happened was no reason to end: now there is one.
            pair.sides[side].stream.abort();
            pair.look(side);
        }
        pair.run_to_the_end();
        if let Err(what) = all_returned_once(&pair, &plans, intact) {
            return Err(TestCaseError::fail(what));
        }
    }
}

#[derive(Clone, Copy, Debug)]
enum End {
    Close,
    BothClose,
    Disconnect,
    Terminate,
    BothTerminate,
    Abort,
    Lost,
    Corrupt,
    BreakLocalBuffers,
    Deregister,
    NeverPost,
}

impl End {
    const ALL: [Self; 11] = [
        Self::Close,
        Self::BothClose,
        Self::Disconnect,
        Self::Terminate,
        Self::BothTerminate,
        Self::Abort,
        Self::Lost,
        Self::Corrupt,
        Self::BreakLocalBuffers,
        Self::Deregister,
        Self::NeverPost,
    ];

    fn happen(self, pair: &mut Pair, at: usize) {
        let now = pair.now;
        match self {
            Self::Close => pair.close(at),
            Self::BothClose => {
                pair.close(at);
                pair.close(1 - at);
            }
            Self::Disconnect => pair.sides[at].stream.disconnect(now),
            Self::Terminate => {
                pair.sides[at].stream.terminate(TerminateCode::LOCAL_CATASTROPHIC, now);
            }
            Self::BothTerminate => {
                for side in &mut pair.sides {
                    side.stream.terminate(TerminateCode::LOCAL_CATASTROPHIC, now);
                }
            }
            Self::Abort => pair.sides[at].stream.abort(),
            Self::Lost => pair.lose_tcp(LostCause::TimedOut),
            Self::Corrupt => {
                pair.corrupt(at);
            }
            Self::BreakLocalBuffers => {
                pair.sides[at].memory.broken = (0..2000).collect();
            }
            Self::Deregister => pair.sides[at].memory.regions.clear(),
            Self::NeverPost => pair.sides[at].script.receives.clear(),
        }
        pair.look(0);
        pair.look(1);
    }
}

/// All that was given to the streams came back once, in order, and at most one of a side's in its own way.
/// What is damaged unnoticed is not compared.
fn all_returned_once(pair: &Pair, plans: &[Plan; 2], intact: bool) -> Result<(), String> {
    let check = |holds: bool, what: &str, at: usize| {
        if holds { Ok(()) } else { Err(format!("side {at}: {what}: {:?}", pair.sides[at].events)) }
    };
    for at in 0..2 {
        let [plan, peer_plan] = [&plans[at], &plans[1 - at]];
        let side = &pair.sides[at];
        let ended = |outcome: &Outcome| *outcome != Outcome::Success;

        let done = operations(&side.events);
        let ids: Vec<_> = done.iter().map(|(id, ..)| *id).collect();
        let submitted: Vec<_> = (0..side.submitted as u64).collect();
        check(ids == submitted, "operations that came back", at)?;
        let outcomes: Vec<_> = done.iter().map(|(_, _, outcome)| *outcome).collect();
        let good = outcomes.iter().take_while(|outcome| !ended(outcome)).count();
        check(outcomes[good..].iter().all(ended), "success behind a failure", at)?;

        let received = receives(&side.events);
        let ids: Vec<_> = received.iter().map(|(id, ..)| *id).collect();
        check(ids == side.memory.taken, "receives that came back", at)?;
        let whole = received.iter().take_while(|(_, outcome, ..)| !ended(outcome)).count();
        check(received.len() - whole <= 1, "more than one receive was being filled", at)?;
        for (received, sent) in received.iter().take(whole).zip(&peer_plan.messages) {
            let (_, _, len, solicited, invalidated, immediate) = *received;
            let same = (len, solicited, invalidated, immediate)
                == (sent.len, sent.solicited, sent.invalidate, sent.immediate);
            check(same || !intact, "a receive is not what was sent", at)?;
        }
        if intact {
            contents(pair, plans, at, whole);
        }

        // The one culprit that a side may have.
        let culprits = outcomes
            .iter()
            .chain(received.iter().map(|(_, outcome, ..)| outcome))
            .filter(|outcome| !matches!(outcome, Outcome::Success | Outcome::Flushed))
            .count();
        check(culprits <= 1, "several culprits", at)?;

        // ORD-15: what a Read delivered is right, also if the stream ended right behind it.
        for (buffer, octets) in &plan.sunk {
            if (buffer.id as usize) < good {
                let sink = &side.memory.bytes[buffer.at..buffer.at + buffer.len];
                check(sink == octets || !intact, "a Read delivered something else", at)?;
            }
        }
        let terminates =
            side.events.iter().filter(|event| matches!(event, Event::Terminated { .. })).count();
        check(terminates <= 1, "several Terminates", at)?;
        let counters = side.stream.counters();
        let by_us = side.events.iter().any(|event| {
            matches!(event, Event::Terminated { by: Initiator::Local | Initiator::User, .. })
        });
        check(counters.terminates_out() <= u64::from(by_us), "a Terminate without event", at)?;
        closed(&side.events);
    }
    Ok(())
}
