//! Random sequences of operations over a [`MemoryNetwork`] that cuts, delays and drops.
//!
//! Promise 5 of the design: every posted request is retired exactly once, in the order of its queue, with a
//! completion if it was signalled or has not succeeded; and what has succeeded is as a model says.
#![allow(clippy::unwrap_used, reason = "a failed step is a failed test")]

use std::ops::RangeInclusive;
use std::time::{Duration, Instant};

use iwarp_verbs::cm::{self, ConnParam, Connection, ListenConfig, Listener};
use iwarp_verbs::{
    Access, CompletionQueue, Cuts, Device, DeviceConfig, Direction, Faults, FpduLimit, Loss,
    MemoryNetwork, MemoryRegion, QpConfig, QpState, QueuePair, RecvRequest, SendRequest, WcStatus,
    WorkCompletion,
};
use proptest::collection::vec;
use proptest::prelude::*;

const GUARD: Duration = Duration::from_mins(1);
const MEMORY: usize = 40_000;
const LONGEST: usize = MEMORY / 2;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Write,
    Read,
    Send,
}

#[derive(Debug, Clone, Copy)]
struct Op {
    kind: Kind,
    len: usize,
    signaled: bool,
    /// Polls in between.
    polls: usize,
}

fn op() -> impl Strategy<Value = Op> {
    let kind = prop_oneof![Just(Kind::Write), Just(Kind::Read), Just(Kind::Send)];
    let len = prop_oneof![1 => Just(0), 4 => 1..300_usize, 2 => 300..LONGEST];
    (kind, len, any::<bool>(), 0..4_usize).prop_map(|(kind, len, signaled, polls)| Op {
        kind,
        len,
        signaled,
        polls,
    })
}

fn cuts() -> impl Strategy<Value = Option<Cuts>> {
    let lengths = prop_oneof![Just(1..=8_u64), Just(1..=100), Just(1000..=5000)];
    proptest::option::of((lengths, 0..4_u32).prop_map(
        |(lengths, waits): (RangeInclusive<u64>, u32)| Cuts::of(lengths).waits(0..=waits),
    ))
}

fn faults() -> impl Strategy<Value = Faults> {
    let loss = prop_oneof![Just(Loss::Reset), Just(Loss::Close)];
    let direction = prop_oneof![Just(Direction::ToResponder), Just(Direction::ToInitiator)];
    let drop = proptest::option::of((direction, 100..60_000_u64, loss));
    (cuts(), cuts(), drop).prop_map(|(reads, writes, drop)| {
        let mut faults = Faults::none();
        if let Some(cuts) = reads {
            faults = faults.cut_reads(cuts);
        }
        if let Some(cuts) = writes {
            faults = faults.cut_writes(cuts);
        }
        match drop {
            Some((direction, octet, loss)) => faults.drop_at(direction, octet, loss),
            None => faults,
        }
    })
}

/// One side, its queues apart.
struct End {
    qp: QueuePair,
    send_cq: CompletionQueue,
    recv_cq: CompletionQueue,
    source: MemoryRegion,
    reads: MemoryRegion,
    sinks: MemoryRegion,
    shared: MemoryRegion,
    sent: Vec<WorkCompletion>,
    received: Vec<WorkCompletion>,
    _device: Device,
}

fn octet(at: usize, seed: usize) -> u8 {
    u8::try_from((at * 7 + at / 251 + seed) % 256).unwrap()
}

impl End {
    fn new(device: &Device, ops: usize, receives: usize, seed: usize) -> Self {
        let pd = device.alloc_pd();
        let [send_cq, recv_cq] = [(); 2].map(|()| device.create_cq(256).unwrap());
        let config = QpConfig::new(&send_cq).recv_cq(&recv_cq).max_send_wr(64).max_recv_wr(64);
        let qp = pd.create_qp(&config).unwrap();
        let all = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ;
        let filled = |seed| {
            let region = pd.alloc(MEMORY, all).unwrap();
            let octets: Vec<u8> = (0..MEMORY).map(|at| octet(at, seed)).collect();
            region.write_at(0, &octets).unwrap();
            region
        };
        let end = Self {
            source: filled(seed),
            shared: filled(seed + 1),
            reads: pd.alloc(LONGEST * ops.max(1), all).unwrap(),
            sinks: pd.alloc(LONGEST * receives.max(1), all).unwrap(),
            qp,
            send_cq,
            recv_cq,
            sent: Vec::new(),
            received: Vec::new(),
            _device: device.clone(),
        };
        for id in 0..receives {
            let sink = end.sinks.slice(id * LONGEST..(id + 1) * LONGEST).unwrap();
            end.qp.post_recv(RecvRequest::new(id as u64, sink)).unwrap();
        }
        end
    }

    fn poll(&mut self) -> usize {
        self.send_cq.poll(&mut self.sent) + self.recv_cq.poll(&mut self.received)
    }

    /// Reads come from the first half of the peer's memory, Writes go to the second.
    fn post(&self, id: usize, op: Op, far: &MemoryRegion) {
        let source = self.source.slice(0..op.len).unwrap();
        let request = match op.kind {
            Kind::Write => {
                let to = (LONGEST as u64)..(LONGEST + op.len) as u64;
                SendRequest::write(id as u64, source, far.remote().slice(to).unwrap())
            }
            Kind::Read => {
                let sink = self.reads.slice(id * LONGEST..id * LONGEST + op.len).unwrap();
                SendRequest::read(id as u64, sink, far.remote().slice(0..op.len as u64).unwrap())
            }
            Kind::Send => SendRequest::send(id as u64, source),
        };
        let request = if op.signaled { request } else { request.unsignaled() };
        self.qp.post_send(request).unwrap();
    }

    /// What was posted to the send queue has ended once each, in its order.
    fn check_sends(&self, ops: &[Op], seed_of_peer: usize) -> Result<(), TestCaseError> {
        // The request behind all of them is signalled.
        let ended = |id: usize| ops.get(id).is_none_or(|op| op.signaled);
        let mut completions = self.sent.iter().peekable();
        let mut failed = false;
        for id in 0..=ops.len() {
            let found = completions.next_if(|wc| wc.wr_id == id as u64);
            match found {
                Some(wc) if wc.status == WcStatus::Success => {
                    prop_assert!(ended(id), "{id} was not signalled");
                    prop_assert!(!failed, "{id} succeeds behind a failure");
                }
                Some(wc) => {
                    // Nothing but the loss of TCP happens, which no request is to blame for.
                    prop_assert_eq!(wc.status, WcStatus::WrFlushErr);
                    failed = true;
                }
                None => prop_assert!(!ended(id) && !failed, "{id} is missing: {:?}", self.sent),
            }
            let succeeded = !failed;
            if let Some(op) = ops.get(id)
                && op.kind == Kind::Read
                && succeeded
            {
                let mut octets = vec![0; op.len];
                self.reads.read_at(id * LONGEST, &mut octets).unwrap();
                let expected: Vec<u8> = (0..op.len).map(|at| octet(at, seed_of_peer + 1)).collect();
                prop_assert!(octets == expected, "read {id} differs");
            }
        }
        prop_assert_eq!(completions.next(), None, "more than was posted, or out of order");
        Ok(())
    }

    /// The receives have ended once each, in their order, with the messages of the peer in theirs.
    fn check_receives(
        &self,
        posted: usize,
        from: &[Op],
        seed_of_peer: usize,
    ) -> Result<(), TestCaseError> {
        let messages: Vec<_> = from.iter().filter(|op| op.kind == Kind::Send).collect();
        let ids: Vec<_> = self.received.iter().map(|wc| wc.wr_id).collect();
        prop_assert_eq!(ids, (0..posted as u64).collect::<Vec<_>>());
        let mut failed = false;
        for (id, wc) in self.received.iter().enumerate() {
            if wc.status != WcStatus::Success {
                prop_assert_eq!(wc.status, WcStatus::WrFlushErr);
                failed = true;
                continue;
            }
            prop_assert!(!failed, "receive {id} succeeds behind a flushed one");
            prop_assert!(id < messages.len(), "nobody has sent message {id}");
            prop_assert_eq!(wc.byte_len as usize, messages[id].len);
            let mut octets = vec![0; messages[id].len];
            self.sinks.read_at(id * LONGEST, &mut octets).unwrap();
            let expected: Vec<u8> = (0..octets.len()).map(|at| octet(at, seed_of_peer)).collect();
            prop_assert!(octets == expected, "message {id} differs");
        }
        Ok(())
    }

    fn has_failed(&self) -> bool {
        self.qp.state() == QpState::Err
    }
}

/// Connects both; `None` if the network drops the connection before it is one.
fn connect(ends: [&End; 2], listener: &Listener) -> Option<[Connection; 2]> {
    let at = listener.local_addr();
    let connecting = cm::connect(at, &ends[0].qp, ConnParam::default()).unwrap();
    let Ok(request) = listener.accept(Duration::from_millis(200)) else {
        assert!(connecting.wait(GUARD).is_err(), "it was not lost, so its request comes");
        return None;
    };
    let accepting = request.accept(&ends[1].qp, ConnParam::default()).unwrap();
    let (initiator, responder) = (connecting.wait(GUARD), accepting.wait(GUARD));
    Some([initiator.ok()?, responder.ok()?])
}

fn run(seed: u64, faults: &Faults, ops: &[Vec<Op>; 2], limit: u32) -> Result<(), TestCaseError> {
    let network = MemoryNetwork::new(seed).faults(faults.clone());
    let config = DeviceConfig::default().network(&network).fpdu_limit(FpduLimit::Octets(limit));
    let devices = [(); 2].map(|()| Device::open(config.clone()).unwrap());
    let sends = |ops: &[Op]| ops.iter().filter(|op| op.kind == Kind::Send).count();
    // One receive is left over, and ends with the connection.
    let receives = [sends(&ops[1]) + 1, sends(&ops[0]) + 1];
    let mut ends = [
        End::new(&devices[0], ops[0].len(), receives[0], 10),
        End::new(&devices[1], ops[1].len(), receives[1], 20),
    ];
    let listener = Listener::bind(&devices[1], "192.0.2.1:0", ListenConfig::default()).unwrap();
    let connected = connect([&ends[0], &ends[1]], &listener);
    let started = Instant::now();
    if connected.is_some() {
        let far = [ends[1].shared.clone(), ends[0].shared.clone()];
        for id in 0..ops[0].len().max(ops[1].len()) {
            for side in 0..2 {
                if let Some(&op) = ops[side].get(id) {
                    ends[side].post(id, op, &far[side]);
                    for _ in 0..op.polls {
                        ends[side].poll();
                    }
                }
            }
        }
        for side in 0..2 {
            // The proof that everything before it has arrived.
            let proof = SendRequest::read(ops[side].len() as u64, (), far[side].remote());
            ends[side].qp.post_send(proof).unwrap();
        }
        let proven = |side: usize, end: &End| {
            end.has_failed() || end.sent.last().is_some_and(|wc| wc.wr_id == ops[side].len() as u64)
        };
        while !(0..2).all(|side| proven(side, &ends[side])) {
            prop_assert!(started.elapsed() < GUARD, "no end: {:?}", network.connections());
            for end in &mut ends {
                end.poll();
            }
        }
    }
    // However it went, this is the end of it.
    for end in &ends {
        end.qp.disconnect();
    }
    for (side, end) in ends.iter_mut().enumerate() {
        while !(end.has_failed() && end.received.len() >= receives[side]) {
            prop_assert!(started.elapsed() < GUARD, "no end of {side}: {:?}", end.qp);
            end.poll();
        }
        while end.poll() > 0 {}
        if connected.is_some() {
            end.check_sends(&ops[side], 10 + 10 * (1 - side))?;
        } else {
            prop_assert!(end.sent.is_empty());
        }
        end.check_receives(receives[side], &ops[1 - side], 10 + 10 * (1 - side))?;
    }
    if network.connections().iter().all(|connection| connection.dropped.is_none()) {
        let all = |end: &End| end.sent.iter().all(|wc| wc.status == WcStatus::Success);
        prop_assert!(ends.iter().all(all), "nothing was lost, and something failed");
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 48,
        max_shrink_iters: 100,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn every_request_is_retired_once_whatever_the_network_does(
        seed: u64,
        faults in faults(),
        ops in [vec(op(), 0..16), vec(op(), 0..16)],
        limit in prop_oneof![Just(600_u32), Just(1460), Just(16_384)],
    ) {
        run(seed, &faults, &ops, limit)?;
    }
}
