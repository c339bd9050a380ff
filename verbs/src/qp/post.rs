//! Posting: the checks, a place in the queue, and the pass that follows.

use std::sync::Arc;

use iwarp_ddp::Stag;
use iwarp_rdmap::{IMMEDIATE_LEN, Operation, OperationKind};
use smallvec::SmallVec;

use super::QpInner;
use super::slot::Slot;
use super::wqe::{Payload, RecvWqe, Reply, SendWqe, Wqe};
use crate::attr::QpState;
use crate::engine::Caller;
use crate::engine::gather::Way;
use crate::mem::{KeyTable, LocalWork, random_u32};
use crate::wr::{PostError, PostErrorCause, RecvRequest, SendFlags, SendOperation, SendRequest};

/// Requests of a list that are appended under one lock.
const CHUNK: usize = 8;

impl QpInner {
    /// Posts one request and runs the engine: a small one is with TCP when this returns, unless it is one
    /// of a row and gathered (`gather.rs`).
    pub(crate) fn post_send(
        self: &Arc<Self>,
        request: SendRequest,
        reply: Reply,
    ) -> Result<(), PostError> {
        match self.admit_send(&request) {
            Ok(len) => {
                // A request that is awaited goes at once: its task has nothing else to do, or so it seems.
                // And without a connection there is nothing to wait for, nor a driver that would come.
                let way = match reply {
                    Reply::Cq if self.state.get() == QpState::Rts => self.gather.post(self.polls()),
                    Reply::Cq | Reply::Slot(_) => Way::Alone,
                };
                let operation = self.operation(request, len, reply);
                match way {
                    Way::Alone => self.drive_operation(operation),
                    Way::Follows => {
                        self.drive_operation(operation);
                        self.gather.sent();
                    }
                    Way::Waits => self.gather_operation(operation),
                }
                self.send_cq.offer(self);
                Ok(())
            }
            Err(cause) => Err(PostError { index: 0, cause, request: Box::new(request) }),
        }
    }

    /// Posts requests until one is refused, and runs the engine once for all of them.
    pub(crate) fn post_send_list(
        self: &Arc<Self>,
        requests: impl IntoIterator<Item = SendRequest>,
    ) -> Result<(), PostError> {
        let mut chunk: SmallVec<[Operation<Wqe>; CHUNK]> = SmallVec::new();
        let mut posted = false;
        let mut refused = None;
        for (index, request) in requests.into_iter().enumerate() {
            match self.admit_send(&request) {
                Ok(len) => chunk.push(self.operation(request, len, Reply::Cq)),
                // FC-065: what precedes it stays posted, what follows is not looked at.
                Err(cause) => {
                    refused = Some(PostError { index, cause, request: Box::new(request) });
                    break;
                }
            }
            if chunk.len() == CHUNK {
                self.sq.append(chunk.drain(..));
                posted = true;
            }
        }
        if !chunk.is_empty() {
            self.sq.append(chunk);
            posted = true;
        }
        if posted {
            self.drive(Caller::Post);
            self.send_cq.offer(self);
        }
        refused.map_or(Ok(()), Err)
    }

    /// Posts a request of the await style: it completes into the slot, and into no queue.
    pub(crate) fn post_send_awaited(
        self: &Arc<Self>,
        request: SendRequest,
    ) -> Result<Arc<Slot>, PostError> {
        let slot = Slot::new();
        self.post_send(request, Reply::Slot(Arc::clone(&slot)))?;
        Ok(slot)
    }

    /// Posts receives until one is refused.
    pub(crate) fn post_recv_list(
        self: &Arc<Self>,
        requests: impl IntoIterator<Item = RecvRequest>,
    ) -> Result<(), PostError<RecvRequest>> {
        let mut chunk: SmallVec<[RecvWqe; CHUNK]> = SmallVec::new();
        let mut refused = None;
        for (index, request) in requests.into_iter().enumerate() {
            if let Err(cause) = self.admit_recv(&request) {
                refused = Some(PostError { index, cause, request: Box::new(request) });
                break;
            }
            let RecvRequest { id, payload } = request;
            chunk.push(RecvWqe { wr_id: id, payload, reply: Reply::Cq });
            if chunk.len() == CHUNK {
                self.append_receives(chunk.drain(..));
            }
        }
        if !chunk.is_empty() {
            self.append_receives(chunk);
        }
        refused.map_or(Ok(()), Err)
    }

    /// Posts a receive.
    pub(crate) fn post_recv(
        self: &Arc<Self>,
        request: RecvRequest,
        reply: Reply,
    ) -> Result<(), PostError<RecvRequest>> {
        if let Err(cause) = self.admit_recv(&request) {
            return Err(PostError { index: 0, cause, request: Box::new(request) });
        }
        let RecvRequest { id, payload } = request;
        self.append_receives([RecvWqe { wr_id: id, payload, reply }]);
        Ok(())
    }

    /// Posts a receive of the await style.
    pub(crate) fn post_recv_awaited(
        self: &Arc<Self>,
        request: RecvRequest,
    ) -> Result<Arc<Slot>, PostError<RecvRequest>> {
        let slot = Slot::new();
        self.post_recv(request, Reply::Slot(Arc::clone(&slot)))?;
        Ok(slot)
    }

    /// Checks a request and takes its place in the queue. Returns the length of the message.
    #[inline]
    fn admit_send(&self, request: &SendRequest) -> Result<u32, PostErrorCause> {
        if !self.device.origin.is_here() {
            return Err(PostErrorCause::Forked);
        }
        let len = request.check(&self.caps, self.domain)?;
        if !self.extensions && request.operation.is_extension() {
            // FC-073: what the peer does not know is not sent.
            return Err(PostErrorCause::NotSupported(
                "an operation of RFC 7306 on a queue pair without its extensions",
            ));
        }
        match self.state.get() {
            // V3
            state @ (QpState::Reset | QpState::Init | QpState::Rtr) => {
                return Err(PostErrorCause::State(state));
            }
            QpState::Rts | QpState::Sqd | QpState::Sqe | QpState::Err => {}
        }
        // FC-066: the last check, so that nothing is half posted.
        if !self.sq.slots.reserve(1) {
            return Err(PostErrorCause::QueueFull { capacity: self.caps.max_send_wr });
        }
        Ok(len)
    }

    #[inline]
    fn admit_recv(&self, request: &RecvRequest) -> Result<(), PostErrorCause> {
        if !self.device.origin.is_here() {
            return Err(PostErrorCause::Forked);
        }
        if self.rq.share().is_some() {
            return Err(PostErrorCause::SharedReceives);
        }
        request.check(self.caps.max_recv_sge, self.domain)?;
        if self.state.get() == QpState::Reset {
            return Err(PostErrorCause::State(QpState::Reset));
        }
        if !self.rq.slots.reserve(1) {
            return Err(PostErrorCause::QueueFull { capacity: self.caps.max_recv_wr });
        }
        Ok(())
    }

    fn append_receives(self: &Arc<Self>, receives: impl IntoIterator<Item = RecvWqe>) {
        // Looked at with the queue locked: whoever flushes changes the state first and then empties the
        // queue under the lock, so either it takes these receives or this sees the state.
        let flushing = || self.state.get() > QpState::Rts;
        if self.rq.append(receives, flushing) {
            self.resume();
        }
    }

    #[inline]
    fn operation(&self, request: SendRequest, len: u32, reply: Reply) -> Operation<Wqe> {
        let SendRequest { id, operation, mut payload, flags, .. } = request;
        let kind = match operation {
            SendOperation::Send => OperationKind::Send {
                solicited: flags.contains(SendFlags::SOLICITED),
                invalidate: None,
            },
            SendOperation::SendWithInvalidate { rkey } => OperationKind::Send {
                solicited: flags.contains(SendFlags::SOLICITED),
                invalidate: Some(Stag::from_raw(rkey)),
            },
            SendOperation::RdmaWrite { remote_addr, rkey } => {
                OperationKind::Write { stag: Stag::from_raw(rkey), offset: remote_addr }
            }
            SendOperation::RdmaWriteWithImm { remote_addr, rkey, imm } => {
                OperationKind::WriteImmediate {
                    stag: Stag::from_raw(rkey),
                    offset: remote_addr,
                    immediate: immediate(imm),
                    solicited: flags.contains(SendFlags::SOLICITED),
                }
            }
            SendOperation::FetchAdd { .. }
            | SendOperation::CompareSwap { .. }
            | SendOperation::MaskedFetchAdd { .. }
            | SendOperation::MaskedCompareSwap { .. } => atomic(operation),
            SendOperation::SendWithImm { .. } => unreachable!("refused by the checks of posting"),
            SendOperation::RdmaRead { remote_addr, rkey } => OperationKind::Read {
                sink_stag: draw_sink(),
                sink_offset: 0,
                source_stag: Stag::from_raw(rkey),
                source_offset: remote_addr,
            },
            SendOperation::LocalInvalidate { rkey } => {
                let stag = Stag::from_raw(rkey);
                payload = Payload::Work(Box::new(LocalWork::Invalidate { stag }));
                OperationKind::Local
            }
            SendOperation::BindWindow { .. } | SendOperation::Register { .. } => {
                OperationKind::Local
            }
        };
        let signaled = self.signal_all || flags.contains(SendFlags::SIGNALED);
        let wqe = SendWqe { wr_id: id, opcode: operation.wc_opcode(), signaled, payload, reply };
        let fence = flags.contains(SendFlags::FENCE);
        Operation { kind, len, fence, buffer: Wqe::Send(wqe) }
    }
}

/// What the stream is to do for an Atomic.
#[cold]
fn atomic(operation: SendOperation) -> OperationKind {
    let Some((rkey, offset, operation)) = operation.atomic() else {
        unreachable!("called for Atomics")
    };
    OperationKind::Atomic { stag: Stag::from_raw(rkey), offset, operation: Box::new(operation) }
}

/// The eight octets for 32 bits: these first, in network order, and the rest zero.
fn immediate(imm: u32) -> [u8; IMMEDIATE_LEN] {
    let mut octets = [0; IMMEDIATE_LEN];
    octets[..4].copy_from_slice(&imm.to_be_bytes());
    octets
}

/// The `STag` that a Read shows to the peer for its sink: drawn for this Read, and the key of nothing, so
/// that the peer learns no key of ours and cannot use it for anything but the response (FC-026).
fn draw_sink() -> Stag {
    loop {
        let drawn = Stag::from_raw(random_u32());
        if drawn.raw() != 0 && KeyTable::of_process().lookup(drawn).is_none() {
            return drawn;
        }
    }
}
