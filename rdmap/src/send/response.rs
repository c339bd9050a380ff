//! The peer's requests that are to be answered: Reads and Atomics, in the order in which they came.

use iwarp_ddp::Stag;

use super::{Body, octets_body};
use crate::atomic::{AtomicRequest, AtomicResponse};
use crate::message::ReadRequest;
use crate::opcode::Opcode;
use crate::terminate::{Culprit, DdpHeader};
use crate::wire::ATOMIC_RESPONSE_LEN;

/// A request of the peer that is to be answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Response {
    pub(crate) answer: Answer,
    /// The request's DDP header, for a Terminate.
    pub(crate) header: Option<DdpHeader>,
    pub(crate) ulpdu_len: usize,
}

/// What the answer is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    /// Octets of memory, of which so many went out.
    Read { request: ReadRequest, sent: u32 },
    /// What an Atomic will find, once its turn has come.
    Atomic(AtomicRequest),
    /// What an Atomic has found.
    Original(AtomicResponse),
}

/// Where the answer goes, if it is tagged.
pub(super) type Sink = Option<(Stag, u64)>;

impl Response {
    pub(super) const fn opcode(&self) -> Opcode {
        match self.answer {
            Answer::Read { .. } => Opcode::ReadResponse,
            Answer::Atomic(_) | Answer::Original(_) => Opcode::AtomicResponse,
        }
    }

    /// Octets behind the DDP headers, of the whole message.
    pub(super) const fn len(&self) -> u32 {
        match self.answer {
            Answer::Read { request, .. } => request.len,
            Answer::Atomic(_) | Answer::Original(_) => ATOMIC_RESPONSE_LEN_U32,
        }
    }

    /// Octets of them that went out.
    pub(super) const fn sent(&self) -> u32 {
        match self.answer {
            Answer::Read { sent, .. } => sent,
            Answer::Atomic(_) | Answer::Original(_) => 0,
        }
    }

    /// So many octets went out, and more are to come.
    pub(super) const fn advance(&mut self, octets: u32) {
        if let Answer::Read { sent, .. } = &mut self.answer {
            *sent = octets;
        }
    }

    /// What a Terminate tells of it that takes the place of the answer.
    pub(super) fn culprit(&self) -> Culprit {
        let read_request = match self.answer {
            Answer::Read { request, sent } => Some(request.advanced(sent)), // RDMAP-072
            Answer::Atomic(_) | Answer::Original(_) => None,                // EXT-21
        };
        Culprit { ulpdu_len: self.ulpdu_len, header: self.header, read_request }
    }

    /// The body of one segment of the answer, `offset` octets into it, and where it goes.
    pub(super) fn body<'a, B>(&self, offset: u32) -> Option<(Sink, Body<'a, B>)> {
        match self.answer {
            Answer::Read { request, .. } => {
                let stag = request.source_stag;
                let offset = request.source_offset.wrapping_add(u64::from(offset));
                // RDMAP-030, RDMAP-006: the requester's STag and offset go back unexamined.
                let sink = (request.sink_stag, request.sink_offset);
                Some((Some(sink), Body::Remote { stag, offset }))
            }
            Answer::Original(response) => Some((None, octets_body(&response.to_bytes()))),
            Answer::Atomic(_) => None,
        }
    }
}

#[allow(clippy::cast_possible_truncation, reason = "12")]
const ATOMIC_RESPONSE_LEN_U32: u32 = ATOMIC_RESPONSE_LEN as u32;
