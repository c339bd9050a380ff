//! Which operation the peer's Terminate is about.

use iwarp_ddp::Segment;

use super::queue::Sight;
use super::{Part, Sender};
use crate::message::ReadRequest;
use crate::opcode::{Opcode, queue as qn};
use crate::operation::{OperationKind, Outcome};
use crate::terminate::{DdpHeader, Terminate};
use crate::wire::Control;

impl<B> Sender<B> {
    /// The peer's Terminate is about one of the operations.
    pub(crate) fn blame(&mut self, terminate: &Terminate) {
        let code = terminate.likely_code();
        let verdict = match (code.layer(), code.error_type(), code.code()) {
            (0 | 1, 1, _) => Outcome::RemoteAccess,
            (0, 2, 0x06) => Outcome::RemoteInvalidRequest,
            (0 | 1, 2, _) => Outcome::RemoteOperation,
            // Of no operation: local errors of the peer, and of the transport.
            _ => return,
        };
        let Some(header) = &terminate.ddp_header else {
            // One deployed stack shows no headers for these.
            if code.error_type() == 2 {
                self.blame_oldest_read(verdict);
            }
            return;
        };
        if header.is_tagged() {
            self.blame_write(verdict, header);
        } else {
            self.blame_untagged(verdict, header, terminate.read_request.as_ref());
        }
    }

    fn blame_oldest_read(&mut self, verdict: Outcome) {
        self.queue.condemn_first(verdict, None, |_, _, sight| sight.outstanding);
    }

    fn blame_write(&mut self, verdict: Outcome, header: &DdpHeader) {
        let Ok(Segment::Tagged(segment)) = Segment::parse(header.as_bytes()) else {
            return;
        };
        // A Read Response is nobody's operation here, even if a Write goes to the same buffer.
        let opcode = Control::from_octet(segment.rsvd_ulp).opcode();
        if opcode == Opcode::ReadResponse.raw() {
            return;
        }
        let begun = self.offset > 0 || self.part == Part::Immediate;
        let present = begun.then_some(Sight { outstanding: false, msn: None });
        self.queue.condemn_first(verdict, present, |kind, len, _| match *kind {
            OperationKind::Write { stag, offset }
            | OperationKind::WriteImmediate { stag, offset, .. } => {
                let within = segment.offset.wrapping_sub(offset);
                stag == segment.stag && (within < u64::from(len) || within == 0)
            }
            _ => false,
        });
    }

    fn blame_untagged(
        &mut self,
        verdict: Outcome,
        header: &DdpHeader,
        request: Option<&ReadRequest>,
    ) {
        let Ok(Segment::Untagged(segment)) = Segment::parse(header.as_bytes()) else {
            return;
        };
        let msn = Some(segment.msn);
        let present =
            (self.offset > 0).then_some(Sight { outstanding: false, msn: Some(self.send_msn) });
        match segment.queue {
            qn::READ_REQUEST => {
                let by_number = self.queue.condemn_first(verdict, None, |_, _, sight| {
                    sight.outstanding && sight.msn == msn
                });
                // Linux siw puts something else there; then the request it shows tells, or the order.
                let by_request = by_number
                    || request.is_some_and(|request| {
                        self.queue.condemn_first(verdict, None, |kind, _, sight| {
                        sight.outstanding
                            && matches!(*kind, OperationKind::Read { sink_stag, source_stag, .. }
                                    if sink_stag == request.sink_stag
                                        && source_stag == request.source_stag)
                    })
                    });
                if !by_request {
                    self.blame_oldest_read(verdict);
                }
            }
            qn::SEND => {
                self.queue.condemn_first(verdict, present, |kind, _, sight| {
                    let takes_receive = matches!(
                        kind,
                        OperationKind::Send { .. } | OperationKind::WriteImmediate { .. }
                    );
                    takes_receive && sight.msn == msn
                });
            }
            _ => {}
        }
    }
}
