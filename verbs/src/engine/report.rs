//! From the ends of requests to completions: statuses, slots, and what is not reported.

use std::collections::VecDeque;

use iwarp_rdmap::{IMMEDIATE_LEN, Operation, Outcome};

use super::outbox::Outbox;
use crate::cq::{CqInner, Cqe, QueueSlots};
use crate::qp::QpInner;
use crate::qp::wqe::{RecvWqe, Reply, SendWqe, Wqe};
use crate::wc::{WcFlags, WcOpcode, WcStatus, WorkCompletion};

/// Makes the completions of one queue pair.
#[derive(Debug, Default)]
pub(super) struct Reporter {
    /// Slots of requests that succeeded unsignalled: they become free with the next completion of the
    /// send queue, or with the connection.
    unreported: u32,
    /// Code of the Terminate that was sent or received.
    terminate: u16,
    /// The queue pair was destroyed: requests go away silently, except to those who await one.
    silent: bool,
    /// A request failed with a status of its own.
    pub(super) culprit: bool,
}

/// A message that was received.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Received {
    pub(super) len: u32,
    pub(super) solicited: bool,
    pub(super) invalidated: Option<u32>,
    pub(super) immediate: Option<[u8; IMMEDIATE_LEN]>,
}

impl Reporter {
    pub(super) fn set_terminate(&mut self, code: u16) {
        self.terminate = code;
    }

    pub(super) fn silence(&mut self) {
        self.silent = true;
    }

    /// A fresh connection begins.
    pub(super) fn reset(&mut self) {
        debug_assert_eq!(self.unreported, 0, "released when the last connection ended");
        self.terminate = 0;
        self.culprit = false;
    }

    /// A request of the send queue ended.
    pub(super) fn sent(
        &mut self,
        qp: &QpInner,
        wqe: SendWqe,
        outcome: Outcome,
        len: u32,
        out: &mut Outbox,
    ) {
        let SendWqe { wr_id, opcode, signaled, payload, reply } = wqe;
        // What the request held, a region perhaps, is free before anybody hears that it is done.
        drop(payload);
        let slots = self.unreported + 1;
        let status = self.status(of_operation(outcome, opcode));
        if self.silent && matches!(reply, Reply::Cq) {
            qp.sq.slots.release(slots);
            self.unreported = 0;
            return;
        }
        if status == WcStatus::Success && !signaled && matches!(reply, Reply::Cq) {
            self.unreported = slots;
            return;
        }
        self.unreported = 0;
        let wc = self.completion(qp, wr_id, status, opcode, len);
        let solicited_event = !wc.is_success();
        deliver(&qp.send_cq, &qp.sq.slots, reply, wc, solicited_event, slots, out);
    }

    /// A receive ended.
    pub(super) fn received(
        &mut self,
        qp: &QpInner,
        wqe: RecvWqe,
        outcome: Outcome,
        message: Received,
        out: &mut Outbox,
    ) {
        let RecvWqe { wr_id, payload, reply } = wqe;
        drop(payload);
        let status = self.status(status(outcome));
        if self.silent && matches!(reply, Reply::Cq) {
            qp.rq.slots.release(1);
            return;
        }
        let mut wc = self.completion(qp, wr_id, status, WcOpcode::Recv, message.len);
        if let (true, Some(key)) = (wc.is_success(), message.invalidated) {
            wc.flags |= WcFlags::WITH_INV;
            wc.invalidated_rkey = Some(key);
        }
        if let (true, Some([first, second, third, fourth, ..])) =
            (wc.is_success(), message.immediate)
        {
            // EXT-32: the first four octets, in network order.
            wc.opcode = WcOpcode::RecvRdmaWithImm;
            wc.flags |= WcFlags::WITH_IMM;
            wc.imm_data = Some(u32::from_be_bytes([first, second, third, fourth]));
        }
        let solicited_event = message.solicited || !wc.is_success();
        deliver(&qp.recv_cq, &qp.rq.slots, reply, wc, solicited_event, 1, out);
    }

    /// Flushes operations that no stream has.
    pub(super) fn flush_sends(
        &mut self,
        qp: &QpInner,
        operations: &mut VecDeque<Operation<Wqe>>,
        out: &mut Outbox,
    ) {
        for operation in operations.drain(..) {
            self.end(qp, operation.buffer, Outcome::Flushed, 0, out);
        }
    }

    /// No completion comes any more that would release the slots of what succeeded unsignalled.
    pub(super) fn settle(&mut self, qp: &QpInner) {
        let slots = std::mem::take(&mut self.unreported);
        if slots > 0 {
            qp.sq.slots.release(slots);
        }
    }

    /// Flushes receives that no stream has: those that have left the queue ahead, and those in it.
    pub(super) fn flush_receives(
        &mut self,
        qp: &QpInner,
        ahead: &mut VecDeque<RecvWqe>,
        out: &mut Outbox,
    ) {
        for wqe in std::mem::take(ahead).into_iter().chain(qp.rq.drain(out)) {
            self.end(qp, Wqe::Receive(wqe), Outcome::Flushed, 0, out);
        }
    }

    /// A request of either queue ended without a message.
    pub(super) fn end(
        &mut self,
        qp: &QpInner,
        wqe: Wqe,
        outcome: Outcome,
        len: u32,
        out: &mut Outbox,
    ) {
        match wqe {
            Wqe::Send(wqe) => self.sent(qp, wqe, outcome, len, out),
            Wqe::Receive(wqe) => {
                let message = Received { len, ..Received::default() };
                self.received(qp, wqe, outcome, message, out);
            }
        }
    }

    fn status(&mut self, status: WcStatus) -> WcStatus {
        self.culprit |= !matches!(status, WcStatus::Success | WcStatus::WrFlushErr);
        status
    }

    fn completion(
        &self,
        qp: &QpInner,
        wr_id: u64,
        status: WcStatus,
        opcode: WcOpcode,
        len: u32,
    ) -> WorkCompletion {
        let success = status == WcStatus::Success;
        WorkCompletion {
            wr_id,
            status,
            opcode,
            vendor_err: if success { 0 } else { self.terminate.into() },
            byte_len: if success { len } else { 0 },
            qp_num: qp.number,
            flags: WcFlags::empty(),
            invalidated_rkey: None,
            imm_data: None,
        }
    }
}

/// Puts a completion where it belongs: into the queue, or into the hands of who awaits it.
fn deliver(
    cq: &CqInner,
    slots: &std::sync::Arc<QueueSlots>,
    reply: Reply,
    wc: WorkCompletion,
    solicited_event: bool,
    count: u32,
    out: &mut Outbox,
) {
    match reply {
        Reply::Cq => {
            let release = Some((slots, count));
            cq.deliver(Cqe { wc, solicited_event, release }, &mut out.hand, &mut out.wakes);
        }
        Reply::Slot(slot) => {
            // Nobody polls it, so its place is free at once.
            slots.release(count);
            out.wakers.extend(slot.complete(wc));
        }
    }
}

/// How the end of a request of the send queue is reported.
#[inline]
fn of_operation(outcome: Outcome, opcode: WcOpcode) -> WcStatus {
    match (outcome, opcode) {
        (Outcome::LocalOperation, WcOpcode::BindMw) => WcStatus::MwBindErr,
        _ => status(outcome),
    }
}

/// The table of conformance and verbs contract: how an operation's end is reported.
fn status(outcome: Outcome) -> WcStatus {
    match outcome {
        Outcome::Success => WcStatus::Success,
        Outcome::Flushed => WcStatus::WrFlushErr,
        Outcome::LocalProtection => WcStatus::LocProtErr,
        Outcome::LocalLength => WcStatus::LocLenErr,
        Outcome::LocalOperation => WcStatus::LocQpOpErr,
        Outcome::RemoteAccess => WcStatus::RemAccessErr,
        Outcome::RemoteInvalidRequest | Outcome::InvalidateRefused => WcStatus::RemInvReqErr,
        Outcome::RemoteOperation => WcStatus::RemOpErr,
        Outcome::BadResponse => WcStatus::BadRespErr,
    }
}
