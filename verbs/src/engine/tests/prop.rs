//! Random sequences of operations through two real queue pairs, against a model of their memory and of
//! their completions.

use proptest::collection::vec;
use proptest::prelude::*;

use super::*;
use crate::wr::{RecvRequest, SendRequest};

const MEMORY: usize = 200_000;

#[derive(Debug, Clone, Copy)]
enum Kind {
    Write,
    Read,
    Send,
    Inline,
}

/// One request: how many octets, where in the remote memory, in how many elements.
#[derive(Debug, Clone, Copy)]
struct Op {
    kind: Kind,
    len: usize,
    at: usize,
    elements: usize,
    fence: bool,
    signaled: bool,
    listed: bool,
}

fn op() -> impl Strategy<Value = Op> {
    let kind = prop_oneof![
        3 => Just(Kind::Write),
        3 => Just(Kind::Read),
        2 => Just(Kind::Send),
        1 => Just(Kind::Inline),
    ];
    let len = prop_oneof![
        1 => Just(0),
        4 => 1..200_usize,
        2 => 200..20_000_usize,
        1 => 20_000..MEMORY / 2,
    ];
    (kind, len, 0..MEMORY / 2, 1..=16_usize, any::<[bool; 3]>()).prop_map(
        |(kind, len, at, elements, [fence, signaled, listed])| {
            let len = if matches!(kind, Kind::Inline) { len % 513 } else { len };
            Op { kind, len, at, elements, fence, signaled, listed }
        },
    )
}

#[derive(Debug, Clone)]
struct Case {
    crc: bool,
    markers: bool,
    depth: u32,
    limit: u32,
    small_buffer: bool,
    ops: [Vec<Op>; 2],
}

fn case() -> impl Strategy<Value = Case> {
    let ops = || vec(op(), 0..24);
    (
        any::<[bool; 3]>(),
        1..5_u32,
        prop_oneof![Just(1400), Just(16_384), Just(64_768)],
        ops(),
        ops(),
    )
        .prop_map(|([crc, markers, small_buffer], depth, limit, left, right)| Case {
            crc,
            markers,
            depth,
            limit,
            small_buffer,
            ops: [left, right],
        })
}

/// One direction: what one side asks of the other, and what must come of it.
struct Direction {
    ops: Vec<Op>,
    /// Sources of Writes and Sends, never changed.
    source: MemoryRegion,
    /// A piece for each Read, and one for each Send at the other side.
    reads: MemoryRegion,
    sinks: MemoryRegion,
    /// The other side's memory, and its model.
    far: MemoryRegion,
    model: Vec<u8>,
    /// What each Read must show; `None` where a later Write may have overtaken it (ORD-10).
    shown: Vec<(usize, Option<Vec<u8>>)>,
    sent: Vec<(usize, Vec<u8>)>,
}

impl Direction {
    fn new(ops: &[Op], here: &End, there: &End, seed: u8) -> Self {
        let mut this = Self {
            ops: ops.to_vec(),
            source: here.pattern(MEMORY, seed),
            reads: here.region(MEMORY * ops.len().max(1) / 2),
            sinks: there.region(MEMORY * ops.len().max(1) / 2),
            far: there.pattern(MEMORY, seed + 1),
            model: octets(MEMORY, seed + 1),
            shown: Vec::new(),
            sent: Vec::new(),
        };
        this.predict();
        this
    }

    fn predict(&mut self) {
        let source = content(&self.source);
        let mut unsettled = 0;
        for (index, op) in self.ops.iter().enumerate() {
            if op.fence {
                unsettled = self.shown.len();
            }
            let range = op.at..op.at + op.len;
            match op.kind {
                Kind::Write => {
                    self.model[range].copy_from_slice(&source[op.at / 2..op.at / 2 + op.len]);
                    for (_, shown) in &mut self.shown[unsettled..] {
                        *shown = None;
                    }
                }
                Kind::Read => self.shown.push((index, Some(self.model[range].to_vec()))),
                Kind::Send | Kind::Inline => {
                    self.sent.push((index, source[op.at / 2..op.at / 2 + op.len].to_vec()));
                }
            }
        }
    }

    /// Posts the receives for the Sends.
    fn prepare(&self, there: &End) {
        for (index, message) in &self.sent {
            let at = index * (MEMORY / 2);
            let sink = self.sinks.slice(at..at + message.len()).unwrap();
            there.qp.post_recv(RecvRequest::new(*index as u64, sink)).unwrap();
        }
    }

    fn request(&self, index: usize, op: Op) -> SendRequest {
        let id = index as u64;
        let cut = |region: &MemoryRegion, at: usize| {
            let each = op.len.div_ceil(op.elements).max(1);
            (0..op.elements)
                .map(|element| {
                    let from = (element * each).min(op.len);
                    let to = (from + each).min(op.len);
                    region.slice(at + from..at + to).unwrap()
                })
                .collect::<Vec<_>>()
        };
        let remote = self.far.remote().slice(op.at as u64..(op.at + op.len) as u64).unwrap();
        let request = match op.kind {
            Kind::Write => SendRequest::write(id, cut(&self.source, op.at / 2), remote),
            Kind::Read => SendRequest::read(id, cut(&self.reads, index * (MEMORY / 2)), remote),
            Kind::Send => SendRequest::send(id, cut(&self.source, op.at / 2)),
            Kind::Inline => {
                let mut octets = vec![0; op.len];
                self.source.read_at(op.at / 2, &mut octets).unwrap();
                SendRequest::send_inline(id, octets)
            }
        };
        let request = if op.fence { request.fence() } else { request };
        if op.signaled { request } else { request.unsignaled() }
    }

    fn post(&self, here: &End) {
        let mut list = Vec::new();
        for (index, &op) in self.ops.iter().enumerate() {
            list.push(self.request(index, op));
            if !op.listed {
                here.qp.post_send_list(list.drain(..)).unwrap();
            }
        }
        here.qp.post_send_list(list).unwrap();
        // The proof that everything before it has arrived.
        here.qp.post_send(SendRequest::read(9999, (), self.far.remote())).unwrap();
    }

    fn check(&self, here: &End, there: &End) -> Result<(), TestCaseError> {
        for (index, op) in self.ops.iter().enumerate().filter(|(_, op)| op.signaled) {
            let wc = here.sent();
            prop_assert_eq!((wc.wr_id, wc.status), (index as u64, WcStatus::Success));
            prop_assert_eq!(wc.byte_len as usize, op.len);
        }
        let wc = here.sent();
        prop_assert_eq!((wc.wr_id, wc.status), (9999, WcStatus::Success));
        for (index, message) in &self.sent {
            let wc = there.received();
            prop_assert_eq!((wc.wr_id, wc.status), (*index as u64, WcStatus::Success));
            prop_assert_eq!(wc.byte_len as usize, message.len());
        }
        prop_assert!(content(&self.far) == self.model, "remote memory differs");
        let (reads, sinks) = (content(&self.reads), content(&self.sinks));
        for (index, shown) in &self.shown {
            let at = index * (MEMORY / 2);
            if let Some(shown) = shown {
                prop_assert!(reads[at..at + shown.len()] == shown[..], "read {} differs", index);
            }
        }
        for (index, message) in &self.sent {
            let at = index * (MEMORY / 2);
            prop_assert!(sinks[at..at + message.len()] == message[..], "send {} differs", index);
        }
        Ok(())
    }
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 24,
        max_shrink_iters: 200,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn sequences_of_operations_do_what_the_model_does(case in case()) {
        let setup = Setup {
            crc: case.crc,
            markers: case.markers,
            depth: case.depth,
            limit: FpduLimit::Octets(case.limit),
            send_buffer: case.small_buffer.then_some(1),
            ..Setup::default()
        };
        let pair = setup.ends();
        let [left, right] = &case.ops;
        let there = Direction::new(left, &pair.a, &pair.b, 1);
        let back = Direction::new(right, &pair.b, &pair.a, 7);
        there.prepare(&pair.b);
        back.prepare(&pair.a);
        setup.join(&pair);
        there.post(&pair.a);
        back.post(&pair.b);
        there.check(&pair.a, &pair.b)?;
        back.check(&pair.b, &pair.a)?;
        prop_assert_eq!(pair.a.qp.0.inner.sq.slots.in_use(), 0);
    }
}
