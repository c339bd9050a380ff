//! Fence, ORD and completion against a model that knows only the rules.
#![allow(
    clippy::arithmetic_side_effects,
    clippy::cast_possible_truncation,
    clippy::indexing_slicing,
    reason = "a test"
)]

mod common;

use std::collections::VecDeque;

use common::endpoint::{Endpoint, SEND, atomic, outcomes, read, write};
use common::memory::TestMemory;
use common::peer::{Peer, seen};
use common::{CRC, config};
use iwarp_mpa::Role;
use iwarp_rdmap::{AtomicOperation, Opcode, OperationKind, Outcome};
use proptest::prelude::*;

#[derive(Clone, Copy, Debug)]
enum Step {
    Send {
        fence: bool,
        len: usize,
    },
    Write {
        fence: bool,
        len: usize,
    },
    Read {
        fence: bool,
    },
    Atomic {
        fence: bool,
    },
    /// The peer answers the oldest Read or Atomic, if it has one.
    Answer,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let fence = || prop::bool::weighted(0.3);
    let step = prop_oneof![
        1 => (fence(), 0_usize..4000).prop_map(|(fence, len)| Step::Send { fence, len }),
        1 => (fence(), 0_usize..4000).prop_map(|(fence, len)| Step::Write { fence, len }),
        2 => fence().prop_map(|fence| Step::Read { fence }),
        2 => fence().prop_map(|fence| Step::Atomic { fence }),
        3 => Just(Step::Answer),
    ];
    proptest::collection::vec(step, 0..40)
}

/// What the peer owes.
#[derive(Clone, Copy, Debug)]
enum Answer {
    Read,
    Atomic { id: u32 },
}

/// The send queue as RFC 5040 and the verbs describe it.
#[derive(Default)]
struct Model {
    ord: usize,
    waiting: VecDeque<(u64, Opcode, bool)>,
    /// Sent and not complete, in order: number, and the answer that is to come.
    sent: VecDeque<(u64, Option<Answer>)>,
    /// Requests and answers to Atomics so far.
    requests: u32,
    atomics: u32,
    wire: Vec<Opcode>,
    complete: Vec<u64>,
}

impl Model {
    fn outstanding(&self) -> usize {
        self.sent.iter().filter(|(_, answer)| answer.is_some()).count()
    }

    /// Everything that may be sent is sent, and everything that may complete completes.
    fn run(&mut self) {
        while let Some(&(id, opcode, fence)) = self.waiting.front() {
            let is_request = matches!(opcode, Opcode::ReadRequest | Opcode::AtomicRequest);
            // FC-025, RDMAP-062: the queue stops at the first that may not go.
            if fence && self.outstanding() > 0 || is_request && self.outstanding() >= self.ord {
                break;
            }
            self.waiting.pop_front();
            self.wire.push(opcode);
            self.requests += u32::from(is_request);
            let answer = match opcode {
                Opcode::ReadRequest => Some(Answer::Read),
                Opcode::AtomicRequest => Some(Answer::Atomic { id: self.requests }),
                _ => None,
            };
            self.sent.push_back((id, answer));
        }
        // ORD-13
        while let Some(&(id, None)) = self.sent.front() {
            self.sent.pop_front();
            self.complete.push(id);
        }
    }

    /// The answer to the oldest request.
    fn answer(&mut self) -> Option<Answer> {
        self.sent.iter_mut().find_map(|(_, answer)| answer.take())
    }
}

proptest! {
    /// ORD-11, ORD-13, ORD-15, RDMAP-012, RDMAP-043, RDMAP-062, FC-025, ORD-17, EXT-10, EXT-16
    #[test]
    fn fence_and_ord_are_kept_and_nothing_waits_without_need(steps in steps(), ord in 1_u32..5) {
        let mut config = config(Role::Initiator);
        config.ord = ord;
        let mut endpoint = Endpoint::new(config, TestMemory::new(8192));
        let mut model = Model { ord: ord as usize, ..Model::default() };
        let mut peer = Peer::new(CRC);
        let (mut wire, mut complete) = (Vec::new(), Vec::new());
        // In the end all Reads are answered.
        let answers = std::iter::repeat_n(Step::Answer, steps.len());
        for (id, step) in (0..).zip(steps.into_iter().chain(answers)) {
            let operation: Option<(OperationKind, Opcode, bool, usize)> = match step {
                Step::Send { fence, len } => Some((SEND, Opcode::Send, fence, len)),
                Step::Write { fence, len } => Some((write(9, 0), Opcode::Write, fence, len)),
                Step::Read { fence } => Some((read(7, 0), Opcode::ReadRequest, fence, 4)),
                Step::Answer => {
                    match model.answer() {
                        Some(Answer::Read) => {
                            endpoint.feed(&peer.response(0x1234_5678, 0x2000, b"data", true));
                        }
                        Some(Answer::Atomic { id: request }) => {
                            // EXT-10, EXT-11: two queues, two counts.
                            model.atomics += 1;
                            let value = u64::from(request) << 32;
                            endpoint.feed(&peer.atomic_response(model.atomics, request, value));
                            prop_assert_eq!(&endpoint.memory.bytes[..8], value.to_ne_bytes());
                        }
                        None => {}
                    }
                    None
                }
                Step::Atomic { fence } => {
                    let add = AtomicOperation::fetch_add(1);
                    Some((atomic(7, 8, add), Opcode::AtomicRequest, fence, 8))
                }
            };
            if let Some((kind, opcode, fence, len)) = operation {
                model.waiting.push_back((id, opcode, fence));
                if fence {
                    endpoint.submit_fenced(id, kind, 0, len);
                } else {
                    endpoint.submit(id, kind, 0, len);
                }
            }
            model.run();
            let sent = endpoint.transmit();
            wire.extend(seen(&sent).iter().filter(|fpdu| fpdu.last).map(|fpdu| fpdu.opcode));
            let done = outcomes(&endpoint.events());
            prop_assert!(done.iter().all(|(_, outcome)| *outcome == Outcome::Success));
            complete.extend(done.iter().map(|(id, _)| *id));
            prop_assert_eq!(&wire, &model.wire);
            prop_assert_eq!(&complete, &model.complete);
            prop_assert_eq!(endpoint.stream.outstanding_reads(), model.outstanding());
        }
        prop_assert!(model.waiting.is_empty() && model.sent.is_empty());
        prop_assert!(!endpoint.stream.has_pending_work());
    }
}
