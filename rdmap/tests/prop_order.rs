//! Fence, ORD and completion against a model that knows only the rules.
#![allow(
    clippy::arithmetic_side_effects,
    clippy::cast_possible_truncation,
    clippy::indexing_slicing,
    reason = "a test"
)]

mod common;

use std::collections::VecDeque;

use common::endpoint::{Endpoint, SEND, outcomes, read, write};
use common::memory::TestMemory;
use common::peer::{Peer, seen};
use common::{CRC, config};
use iwarp_mpa::Role;
use iwarp_rdmap::{Opcode, OperationKind, Outcome};
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
    /// The peer answers the oldest Read, if it has one.
    Answer,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let fence = || prop::bool::weighted(0.3);
    let step = prop_oneof![
        1 => (fence(), 0_usize..4000).prop_map(|(fence, len)| Step::Send { fence, len }),
        1 => (fence(), 0_usize..4000).prop_map(|(fence, len)| Step::Write { fence, len }),
        2 => fence().prop_map(|fence| Step::Read { fence }),
        2 => Just(Step::Answer),
    ];
    proptest::collection::vec(step, 0..40)
}

/// The send queue as RFC 5040 and the verbs describe it.
#[derive(Default)]
struct Model {
    ord: usize,
    waiting: VecDeque<(u64, Opcode, bool)>,
    /// Sent and not complete, in order: number, whether a Read without answer.
    sent: VecDeque<(u64, bool)>,
    wire: Vec<Opcode>,
    complete: Vec<u64>,
}

impl Model {
    fn outstanding(&self) -> usize {
        self.sent.iter().filter(|(_, unanswered)| *unanswered).count()
    }

    /// Everything that may be sent is sent, and everything that may complete completes.
    fn run(&mut self) {
        while let Some(&(id, opcode, fence)) = self.waiting.front() {
            let is_read = opcode == Opcode::ReadRequest;
            // FC-025, RDMAP-062: the queue stops at the first that may not go.
            if fence && self.outstanding() > 0 || is_read && self.outstanding() >= self.ord {
                break;
            }
            self.waiting.pop_front();
            self.wire.push(opcode);
            self.sent.push_back((id, is_read));
        }
        // ORD-13
        while let Some(&(id, false)) = self.sent.front() {
            self.sent.pop_front();
            self.complete.push(id);
        }
    }

    fn answer(&mut self) -> bool {
        let oldest = self.sent.iter_mut().find(|(_, unanswered)| *unanswered);
        oldest.map(|(_, unanswered)| *unanswered = false).is_some()
    }
}

proptest! {
    /// ORD-11, ORD-13, ORD-15, RDMAP-012, RDMAP-043, RDMAP-062, FC-025
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
                    if model.answer() {
                        endpoint.feed(&peer.response(0x1234_5678, 0x2000, b"data", true));
                    }
                    None
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
