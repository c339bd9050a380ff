//! What two sides make of each other's start-up frames (RFC 5044 §7.1, RFC 6581 §9).
//!
//! Pure functions: frames and offers in, frames and results out.
#![allow(clippy::similar_names, reason = "IRD and ORD are the standards' names")]

use core::time::Duration;

use bytes::Bytes;

use crate::StartupError;
use crate::wire::{
    Depth, ENHANCED_PRIVATE_DATA_MAX, Enhanced, FrameKind, PRIVATE_DATA_MAX, Role, Rtr, RtrTypes,
    StartupFrame,
};

/// How long an initiator waits for a whole Reply unless told otherwise (MPA-010).
pub const INITIATOR_TIMEOUT: Duration = Duration::from_secs(10);

/// How long a responder waits for a whole Request unless told otherwise (MPA-009).
pub const RESPONDER_TIMEOUT: Duration = Duration::from_secs(5);

/// The highest revision that an initiator offers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Revision {
    /// RFC 5044: nothing but markers and CRC is negotiated.
    V1,
    /// RFC 6581: read depths and the peer-to-peer model are negotiated too.
    #[default]
    V2,
}

/// One side's wishes for a connection.
///
/// The default is what this stack does unless told otherwise: revision 2, CRC, no markers towards
/// this side, [`Offer::DEFAULT_DEPTH`] reads each way, the peer-to-peer model by any RTR, no
/// private data.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Offer {
    /// Highest revision to offer. Without effect at a responder, which answers in the revision it
    /// is asked in.
    pub revision: Revision,
    /// Ask the peer for markers. Of no use where TCP delivers in order; the peer's wish is always
    /// met.
    pub markers: bool,
    /// Ask for CRCs. They are in use if either side asks (MPA-014). To do without them is for
    /// those who have protection of equal strength from end to end (MPA-052).
    pub crc: bool,
    /// Inbound RDMA Reads this side can hold: a limit, which is not exceeded. (A responder that
    /// names a Read as RTR makes 1 of 0, CONN-14.)
    ///
    /// As `Count` the number also holds where nothing is negotiated (revision 1, or the peer does
    /// not want to). `NotNegotiated` leaves it to the programs, and [`Negotiated::ird`] is 0.
    pub ird: Depth,
    /// Outbound RDMA Reads this side would like; lowered to what the peer can hold. See `ird`.
    pub ord: Depth,
    /// RTR messages this side can send (initiator) or take (responder).
    ///
    /// Initiator: none means the client-server model. Responder: the model is the initiator's
    /// choice, and none means no preference.
    pub rtr: RtrTypes,
    /// Private data for the peer's program: up to 512 octets, 508 in an enhanced frame.
    pub private_data: Bytes,
    /// How long the responder may take for its whole Reply. A responder has its limit already, from
    /// [`Responder::new`](crate::Responder::new).
    pub timeout: Duration,
}

impl Offer {
    /// Read depth of the default offer.
    pub const DEFAULT_DEPTH: u16 = 32;

    /// Whether a Request made of this offer is enhanced.
    fn is_enhanced(&self) -> bool {
        // CONN-01, CONN-05: no enhanced frame that asks for nothing enhanced.
        let wants_depths = self.ird != Depth::NotNegotiated || self.ord != Depth::NotNegotiated;
        self.revision == Revision::V2 && (wants_depths || !self.rtr.is_empty())
    }

    fn local_ird(&self) -> u32 {
        self.ird.count().unwrap_or(0)
    }

    fn local_ord(&self) -> u32 {
        self.ord.count().unwrap_or(0)
    }
}

impl Default for Offer {
    fn default() -> Self {
        Self {
            revision: Revision::V2,
            markers: false,
            // MPA-051, DDP-005
            crc: true,
            ird: Depth::Count(Self::DEFAULT_DEPTH),
            ord: Depth::Count(Self::DEFAULT_DEPTH),
            rtr: RtrTypes::all(),
            private_data: Bytes::new(),
            timeout: INITIATOR_TIMEOUT,
        }
    }
}

/// A peer's Request, for the program to accept or reject.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// Revision of MPA, 1 or 2 (MPA-035).
    pub revision: u8,
    /// The enhanced block, if there is one.
    pub enhanced: Option<Enhanced>,
    /// The initiator wants markers.
    pub markers: bool,
    /// The initiator wants CRCs.
    pub crc: bool,
    /// The initiator's private data.
    pub private_data: Bytes,
}

impl Request {
    /// Inbound reads the initiator can hold, if it says so (CONN-11).
    #[must_use]
    pub fn ird(&self) -> Option<u32> {
        self.enhanced.and_then(|enhanced| enhanced.ird.count())
    }

    /// Outbound reads the initiator would like, if it says so (CONN-11).
    #[must_use]
    pub fn ord(&self) -> Option<u32> {
        self.enhanced.and_then(|enhanced| enhanced.ord.count())
    }

    /// Octets of private data that fit into the Reply.
    #[must_use]
    pub const fn private_data_max(&self) -> usize {
        match self.enhanced {
            Some(_) => ENHANCED_PRIVATE_DATA_MAX,
            None => PRIVATE_DATA_MAX,
        }
    }

    pub(crate) fn from_frame(frame: StartupFrame) -> Result<Self, StartupError> {
        served(frame.revision)?;
        Ok(Self {
            revision: frame.revision,
            enhanced: frame.enhanced,
            markers: frame.markers,
            crc: frame.crc,
            private_data: frame.private_data,
        })
    }
}

/// What both sides agreed on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Negotiated {
    /// This side.
    pub role: Role,
    /// Revision of MPA; 1 and 2 both go with version 1 of DDP and RDMAP (MPA-035).
    pub revision: u8,
    /// CRCs are made and checked.
    pub crc: bool,
    /// The peer wants markers in what this side sends.
    pub send_markers: bool,
    /// This side wants markers in what the peer sends.
    pub receive_markers: bool,
    /// Inbound reads to hold. 0 if the offer left the number to the programs.
    pub ird: u32,
    /// Outbound reads to have at most, never more than the peer holds. 0 if the offer left the
    /// number to the programs.
    pub ord: u32,
    /// IRD in the peer's frame, if it states one (CONN-11).
    pub peer_ird: Option<u32>,
    /// ORD in the peer's frame, if it states one (CONN-11).
    pub peer_ord: Option<u32>,
    /// Initiator: the RTR to send in front of everything else. Responder: the RTR agreed on; any
    /// valid FPDU will do instead, and `None` says that no particular one is due. An RTR by Read
    /// may be sent whatever the ORD, 0 included.
    pub rtr: Option<Rtr>,
    /// The peer's private data.
    pub private_data: Bytes,
}

/// A Reply that refuses the connection. MPA ends with it, and TCP is open for the program to
/// close or use (MPA-027).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rejection {
    /// Revision of the Reply.
    pub revision: u8,
    /// IRD in the Reply (CONN-11).
    pub peer_ird: Option<u32>,
    /// ORD in the Reply: what the responder would need, if that is why it refused (CONN-15).
    pub peer_ord: Option<u32>,
    /// The responder's private data.
    pub private_data: Bytes,
}

/// Why an accepted connection cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Unusable {
    /// The responder's ORD is above the IRD of this side.
    InsufficientIrd,
    /// The responder takes none of the RTRs that this side offered.
    NoCommonRtr,
}

impl Unusable {
    /// Error code of the Terminate to send, layer 2, type 0 (CONN-30).
    #[must_use]
    pub const fn code(self) -> u8 {
        match self {
            Self::InsufficientIrd => 6,
            Self::NoCommonRtr => 7,
        }
    }
}

/// What an initiator learns from a Reply.
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use]
pub enum Outcome {
    /// Full Operation.
    Accepted(Negotiated),
    /// The responder refused.
    Rejected(Rejection),
    /// Full Operation, but only to send a Terminate with [`Unusable::code`] and close.
    Unusable {
        /// What is wrong.
        reason: Unusable,
        /// What holds until the connection is closed.
        negotiated: Negotiated,
    },
}

/// Revision 0 is the RDMA Consortium's: well formed, but of other protocols above (MPA-018).
const fn served(revision: u8) -> Result<(), StartupError> {
    match revision {
        // CONN-02
        1 | 2 => Ok(()),
        other => Err(StartupError::Revision(other)),
    }
}

/// The Request that makes an offer.
pub(crate) fn request(offer: &Offer) -> StartupFrame {
    let enhanced = offer.is_enhanced().then(|| Enhanced {
        // CONN-21
        peer_to_peer: !offer.rtr.is_empty(),
        rtr: offer.rtr,
        ird: offer.ird,
        ord: offer.ord,
    });
    StartupFrame {
        kind: FrameKind::Request,
        markers: offer.markers,
        crc: offer.crc,
        reject: false,
        revision: if enhanced.is_some() { 2 } else { 1 },
        enhanced,
        private_data: offer.private_data.clone(),
    }
}

/// The Reply that accepts a Request, and what holds then at the responder.
pub(crate) fn accept(request: &Request, offer: &Offer) -> (StartupFrame, Negotiated) {
    // MPA-014. Said again in the Reply, even if it is the initiator's wish alone: some initiators
    // go by the Reply.
    let crc = request.crc || offer.crc;
    let mut ird = offer.local_ird();
    let mut ord = offer.local_ord();
    let mut rtr = None;
    let enhanced = request.enhanced.map(|asked| {
        let choice = asked.peer_to_peer.then(|| choose_rtr(asked.rtr, offer.rtr));
        rtr = choice.filter(|&choice| asked.rtr.contains(choice.into()));
        // CONN-14: an RTR by Read needs a place, also if the initiator wants no other.
        let least = u16::from(choice == Some(Rtr::Read));
        ird = ird.max(least.into());
        let reply_ird = match (asked.ord, offer.ird) {
            // CONN-13, and D9: all there is, be it less than asked for.
            (Depth::Count(_), Depth::Count(held)) => Depth::Count(held.max(least)),
            // CONN-18
            (Depth::NotNegotiated, _) | (_, Depth::NotNegotiated) => Depth::NotNegotiated,
        };
        let reply_ord = match (asked.ird, offer.ord) {
            (Depth::Count(held), Depth::Count(wanted)) => {
                // CONN-12
                ord = held.min(wanted).into();
                Depth::Count(held.min(wanted))
            }
            // CONN-19
            (Depth::NotNegotiated, _) | (_, Depth::NotNegotiated) => Depth::NotNegotiated,
        };
        // CONN-22
        Enhanced {
            peer_to_peer: asked.peer_to_peer,
            rtr: choice.map_or(RtrTypes::empty(), RtrTypes::from),
            ird: reply_ird,
            ord: reply_ord,
        }
    });
    let frame = StartupFrame {
        kind: FrameKind::Reply,
        markers: offer.markers,
        crc,
        reject: false,
        revision: request.revision,
        enhanced,
        private_data: offer.private_data.clone(),
    };
    let negotiated = Negotiated {
        role: Role::Responder,
        revision: request.revision,
        crc,
        // MPA-011, MPA-012, MPA-013
        send_markers: request.markers,
        receive_markers: offer.markers,
        ird,
        ord,
        peer_ird: request.ird(),
        peer_ord: request.ord(),
        rtr,
        private_data: request.private_data.clone(),
    };
    (frame, negotiated)
}

/// The Reply that refuses a Request. Enhanced if the Request is (CONN-06).
pub(crate) fn reject(
    request: &Request,
    ird: Depth,
    ord: Depth,
    private_data: &[u8],
) -> StartupFrame {
    let enhanced = request.enhanced.map(|asked| Enhanced {
        peer_to_peer: asked.peer_to_peer,
        rtr: if asked.peer_to_peer {
            choose_rtr(asked.rtr, RtrTypes::all()).into()
        } else {
            RtrTypes::empty()
        },
        ird,
        ord,
    });
    StartupFrame {
        kind: FrameKind::Reply,
        markers: false,
        crc: request.crc,
        reject: true,
        revision: request.revision,
        enhanced,
        private_data: Bytes::copy_from_slice(private_data),
    }
}

/// The Reply to a Request of revision 0: this side's lowest revision, and nothing to go on with.
pub(crate) fn answer_to_revision_0() -> StartupFrame {
    StartupFrame {
        kind: FrameKind::Reply,
        markers: false,
        crc: true,
        reject: true,
        revision: 1,
        enhanced: None,
        private_data: Bytes::new(),
    }
}

/// What the initiator makes of the Reply to its Request.
pub(crate) fn conclude(offer: &Offer, reply: StartupFrame) -> Result<Outcome, StartupError> {
    served(reply.revision)?;
    let peer_ird = reply.enhanced.and_then(|enhanced| enhanced.ird.count());
    let peer_ord = reply.enhanced.and_then(|enhanced| enhanced.ord.count());
    if reply.reject {
        return Ok(Outcome::Rejected(Rejection {
            revision: reply.revision,
            peer_ird,
            peer_ord,
            private_data: reply.private_data,
        }));
    }
    // CONN-06
    match (offer.is_enhanced(), reply.enhanced) {
        (true, None) => return Err(StartupError::PlainReply(reply.revision)),
        (false, Some(_)) => return Err(StartupError::EnhancedReply),
        (true, Some(_)) | (false, None) => {}
    }

    let ird = offer.local_ird();
    let ord = match (offer.ord, peer_ird) {
        // CONN-16
        (Depth::Count(wanted), Some(held)) => held.min(wanted.into()),
        // CONN-20
        (Depth::NotNegotiated, _) | (_, None) => offer.local_ord(),
    };
    let rtr = reply.enhanced.and_then(|taken| prefer(taken.rtr & offer.rtr));
    let negotiated = Negotiated {
        role: Role::Initiator,
        revision: reply.revision,
        crc: offer.crc || reply.crc,
        // MPA-011, MPA-012, MPA-013
        send_markers: reply.markers,
        receive_markers: offer.markers,
        ird,
        ord,
        peer_ird,
        peer_ord,
        rtr,
        private_data: reply.private_data,
    };
    let insufficient = match (offer.ird, peer_ord) {
        (Depth::Count(held), Some(wanted)) => wanted > held.into(),
        // CONN-20
        (Depth::NotNegotiated, _) | (_, None) => false,
    };
    Ok(if insufficient {
        // CONN-17
        Outcome::Unusable { reason: Unusable::InsufficientIrd, negotiated }
    } else if reply.enhanced.is_some() && !offer.rtr.is_empty() && rtr.is_none() {
        // CONN-25, also for a reply that drops A.
        Outcome::Unusable { reason: Unusable::NoCommonRtr, negotiated }
    } else {
        // MPA-028
        Outcome::Accepted(negotiated)
    })
}

/// The RTR that a responder names: exactly one, as initiators that get several have been seen to
/// hang (FC-009); one that was asked for if it can be (CONN-23).
fn choose_rtr(asked: RtrTypes, taken: RtrTypes) -> Rtr {
    let taken = if taken.is_empty() { RtrTypes::all() } else { taken };
    prefer(asked & taken).or_else(|| prefer(taken)).unwrap_or(Rtr::Write)
}

/// The first of Write, Read and Send: a Write takes up nothing at the peer, a Read a place in its
/// IRD, a Send a receive.
fn prefer(types: RtrTypes) -> Option<Rtr> {
    [Rtr::Write, Rtr::Read, Rtr::Send].into_iter().find(|&rtr| types.contains(rtr.into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reply(enhanced: Option<Enhanced>) -> StartupFrame {
        StartupFrame {
            kind: FrameKind::Reply,
            markers: false,
            crc: true,
            reject: false,
            revision: if enhanced.is_some() { 2 } else { 1 },
            enhanced,
            private_data: Bytes::new(),
        }
    }

    fn block(ird: Depth, ord: Depth) -> Enhanced {
        Enhanced { peer_to_peer: true, rtr: RtrTypes::WRITE, ird, ord }
    }

    // CONN-01, CONN-21, D15, MPA-051, DDP-005
    #[test]
    fn default_request() {
        let frame = request(&Offer::default());
        assert!(frame.crc && !frame.markers);
        assert_eq!(frame.revision, 2);
        let enhanced = frame.enhanced.unwrap();
        assert!(enhanced.peer_to_peer && enhanced.rtr.is_all());
        assert_eq!(enhanced.ird, Depth::Count(Offer::DEFAULT_DEPTH));
    }

    // CONN-05: nothing enhanced is wanted, so nothing enhanced is sent.
    #[test]
    fn plain_if_nothing_else_is_wanted() {
        let nothing = Offer {
            ird: Depth::NotNegotiated,
            ord: Depth::NotNegotiated,
            rtr: RtrTypes::empty(),
            ..Offer::default()
        };
        let plain = request(&nothing);
        assert_eq!((plain.revision, plain.enhanced), (1, None));
        for wanted in [
            Offer { ird: Depth::Count(0), ..nothing.clone() },
            Offer { ord: Depth::Count(0), ..nothing.clone() },
            Offer { rtr: RtrTypes::SEND, ..nothing.clone() },
        ] {
            assert_eq!(request(&wanted).revision, 2);
        }
        let v1 = Offer { revision: Revision::V1, ..Offer::default() };
        assert_eq!(request(&v1).revision, 1);
    }

    // CONN-17, CONN-30
    #[test]
    fn more_reads_than_there_is_room_for() {
        let offer = Offer { ird: Depth::Count(4), ..Offer::default() };
        let fits = reply(Some(block(Depth::Count(4), Depth::Count(4))));
        assert!(matches!(conclude(&offer, fits), Ok(Outcome::Accepted(_))));
        let above = reply(Some(block(Depth::Count(4), Depth::Count(5))));
        let Ok(Outcome::Unusable { reason, negotiated }) = conclude(&offer, above) else {
            panic!("accepted");
        };
        assert_eq!((reason, reason.code()), (Unusable::InsufficientIrd, 6));
        assert_eq!((negotiated.ird, negotiated.peer_ord), (4, Some(5)));
    }

    // CONN-20: what is not negotiated changes nothing here.
    #[test]
    fn depths_left_to_the_programs() {
        let offer = Offer { ird: Depth::Count(4), ord: Depth::Count(9), ..Offer::default() };
        let left = reply(Some(block(Depth::NotNegotiated, Depth::NotNegotiated)));
        let Ok(Outcome::Accepted(negotiated)) = conclude(&offer, left) else {
            panic!("not accepted");
        };
        assert_eq!((negotiated.ird, negotiated.ord), (4, 9));
        assert_eq!((negotiated.peer_ird, negotiated.peer_ord), (None, None));
    }

    // CONN-22, CONN-25: a Reply that drops A takes no RTR; one that adds A asks for nothing.
    #[test]
    fn replies_that_change_the_model() {
        let dropped = Enhanced {
            peer_to_peer: false,
            rtr: RtrTypes::empty(),
            ..block(Depth::Count(1), Depth::Count(1))
        };
        let outcome = conclude(&Offer::default(), reply(Some(dropped)));
        assert!(matches!(outcome, Ok(Outcome::Unusable { reason: Unusable::NoCommonRtr, .. })));
        let client_server = Offer { rtr: RtrTypes::empty(), ..Offer::default() };
        let added = reply(Some(block(Depth::Count(1), Depth::Count(1))));
        let Ok(Outcome::Accepted(negotiated)) = conclude(&client_server, added) else {
            panic!("not accepted");
        };
        assert_eq!(negotiated.rtr, None);
    }

    // CONN-06
    #[test]
    fn replies_of_the_other_form() {
        let enhanced = Offer::default();
        let plain = Offer { revision: Revision::V1, ..Offer::default() };
        assert_eq!(conclude(&enhanced, reply(None)), Err(StartupError::PlainReply(1)));
        let unexpected = reply(Some(block(Depth::Count(1), Depth::Count(1))));
        assert_eq!(conclude(&plain, unexpected.clone()), Err(StartupError::EnhancedReply));
        let revision_0 = StartupFrame { revision: 0, ..reply(None) };
        assert_eq!(conclude(&plain, revision_0), Err(StartupError::Revision(0)));
        // A refusal is understood in either form, and with it what the program said.
        let refusal = StartupFrame { reject: true, ..reply(None) };
        assert!(matches!(conclude(&enhanced, refusal), Ok(Outcome::Rejected(_))));
        let refusal = StartupFrame { reject: true, ..unexpected };
        assert!(matches!(conclude(&plain, refusal), Ok(Outcome::Rejected(_))));
    }

    // CONN-23: a type is named even if none was asked for, and then none in particular is due.
    #[test]
    fn a_request_that_names_no_rtr() {
        let asked = Enhanced { rtr: RtrTypes::empty(), ..block(Depth::Count(1), Depth::Count(1)) };
        let request = Request {
            revision: 2,
            enhanced: Some(asked),
            markers: false,
            crc: true,
            private_data: Bytes::new(),
        };
        let (frame, negotiated) = accept(&request, &Offer::default());
        assert_eq!(frame.enhanced.unwrap().rtr, RtrTypes::WRITE);
        assert_eq!(negotiated.rtr, None);
        let only_read = Offer { rtr: RtrTypes::READ, ..Offer::default() };
        assert_eq!(accept(&request, &only_read).0.enhanced.unwrap().rtr, RtrTypes::READ);
    }
}
