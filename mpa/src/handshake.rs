//! The exchange of start-up frames (RFC 5044 §7.1.2), one state machine a side.
//!
//! Neither reads nor writes anything, nor knows the time. Octets from the peer go into
//! `handle_input`, octets for the peer come out of `poll_transmit` or as results, time goes into
//! `handle_timeout`.

use std::time::{Duration, Instant};

use bytes::Bytes;

use crate::negotiate::{self, Negotiated, Offer, Outcome, Request};
use crate::wire::{Depth, FrameKind, StartupFrame};
use crate::{Error, StartupError};

/// The side that sends the Request.
///
/// Order of calls: everything of `poll_transmit` to the peer, then `handle_input` with what comes
/// in, `handle_timeout` when `poll_timeout` is due, `handle_eof` when the connection ends; until
/// there is an outcome or an error. After an error the TCP connection is to be closed.
#[derive(Debug)]
pub struct Initiator {
    offer: Offer,
    request: Option<Bytes>,
    reply: Reception,
}

impl Initiator {
    /// Starts a connection; fails if the offer does not fit into a Request.
    pub fn new(offer: Offer, now: Instant) -> Result<Self, Error> {
        let request = negotiate::request(&offer).encode()?;
        let reply = Reception::new(FrameKind::Reply, now, offer.timeout);
        Ok(Self { offer, request: Some(request), reply })
    }

    /// The Request, once (MPA-004).
    pub fn poll_transmit(&mut self) -> Option<Bytes> {
        self.request.take()
    }

    /// Takes octets from the peer, in any cut; gives how many, and the outcome once the Reply is
    /// whole.
    ///
    /// No octet behind the Reply is taken: those belong to the FPDU stream, which starts there, as
    /// it does behind the Request (MPA-001, FC-001).
    pub fn handle_input(&mut self, input: &[u8]) -> Result<(usize, Option<Outcome>), Error> {
        let (taken, reply) = self.reply.take(input)?;
        let Some(reply) = reply else { return Ok((taken, None)) };
        match negotiate::conclude(&self.offer, reply) {
            Ok(outcome) => Ok((taken, Some(outcome))),
            Err(error) => Err(self.reply.fail(error)),
        }
    }

    /// The connection was closed or reset.
    pub fn handle_eof(&mut self) -> Error {
        self.reply.handle_eof()
    }

    /// When `handle_timeout` is to be called, while there is neither outcome nor error.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Instant> {
        self.reply.poll_timeout()
    }

    /// Fails if the time for the Reply is over (MPA-010). Calling it early does no harm.
    pub fn handle_timeout(&mut self, now: Instant) -> Result<(), Error> {
        self.reply.handle_timeout(now)
    }
}

/// The side that sends the Reply.
///
/// Order of calls as for [`Initiator`], until there is a Request or an error. The Request is then
/// for the program to [`accept`](Self::accept) or [`reject`](Self::reject), at its leisure: no
/// timer runs. What else arrives before it has decided goes into `handle_input` too, and is an
/// error.
#[derive(Debug)]
pub struct Responder {
    request: Reception,
    farewell: Option<Bytes>,
}

impl Responder {
    /// Waits for a Request up to `timeout` from `now` (MPA-009).
    #[must_use]
    pub fn new(timeout: Duration, now: Instant) -> Self {
        Self { request: Reception::new(FrameKind::Request, now, timeout), farewell: None }
    }

    /// Takes octets from the peer, in any cut; gives how many, and the Request once it is whole.
    ///
    /// An initiator has nothing to send before it has the Reply, so octets behind the Request are
    /// an error (MPA-020), whether they come with it or later.
    pub fn handle_input(&mut self, input: &[u8]) -> Result<(usize, Option<Request>), Error> {
        let (taken, frame) = self.request.take(input)?;
        let request = match frame.map(Request::from_frame).transpose() {
            Ok(request) => request,
            Err(error) => return Err(self.refuse(error)),
        };
        match input.len().saturating_sub(taken) {
            0 => Ok((taken, request)),
            len => Err(self.request.fail(StartupError::DataAfterRequest { len })),
        }
    }

    fn refuse(&mut self, error: StartupError) -> Error {
        if error == StartupError::Revision(0) {
            self.farewell = negotiate::answer_to_revision_0().encode().ok();
        }
        self.request.fail(error)
    }

    /// After an error: what to send before closing, once. Only a Request of revision 0 is
    /// answered, by a rejecting Reply that names revision 1.
    pub fn poll_transmit(&mut self) -> Option<Bytes> {
        self.farewell.take()
    }

    /// The connection was closed or reset.
    pub fn handle_eof(&mut self) -> Error {
        self.request.handle_eof()
    }

    /// When `handle_timeout` is to be called, while there is neither Request nor error.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Instant> {
        self.request.poll_timeout()
    }

    /// Fails if the time for the Request is over (MPA-009, MPA-010). Calling it early does no harm.
    pub fn handle_timeout(&mut self, now: Instant) -> Result<(), Error> {
        self.request.handle_timeout(now)
    }

    /// Accepts a Request: the Reply to send, and what holds from then on (MPA-025).
    ///
    /// This side must send no FPDU before it has received one (MPA-029); the layer above sees to
    /// that. Fails if the exchange has failed; also if the private data of the offer does not
    /// fit, and then nothing has happened.
    pub fn accept(&self, request: &Request, offer: &Offer) -> Result<(Bytes, Negotiated), Error> {
        self.request.check()?;
        let (reply, negotiated) = negotiate::accept(request, offer);
        Ok((reply.encode()?, negotiated))
    }

    /// Refuses a Request: the Reply to send (MPA-023). MPA ends with it, and TCP is left to the
    /// program (MPA-024).
    ///
    /// Fails as [`accept`](Self::accept) does.
    pub fn reject(&self, request: &Request, private_data: &[u8]) -> Result<Bytes, Error> {
        // No complaint about the depths: what was asked for is mirrored.
        let (ird, ord) = request
            .enhanced
            .map_or((Depth::NotNegotiated, Depth::NotNegotiated), |asked| (asked.ord, asked.ird));
        self.reject_with_depths(request, ird, ord, private_data)
    }

    /// As [`reject`](Self::reject), and tells an enhanced initiator the depths that would have been
    /// needed (CONN-15).
    pub fn reject_with_depths(
        &self,
        request: &Request,
        ird: Depth,
        ord: Depth,
        private_data: &[u8],
    ) -> Result<Bytes, Error> {
        self.request.check()?;
        Ok(negotiate::reject(request, ird, ord, private_data).encode()?)
    }
}

/// A start-up frame on its way in.
#[derive(Debug)]
struct Reception {
    kind: FrameKind,
    /// What is there of the frame, 532 octets at most (SEC-22).
    octets: Vec<u8>,
    state: State,
}

#[derive(Debug)]
enum State {
    /// The frame is due by then, if there is such a time.
    Waiting(Option<Instant>),
    /// It came, and had so many octets.
    Whole(usize),
    Failed(StartupError),
}

impl Reception {
    fn new(kind: FrameKind, now: Instant, timeout: Duration) -> Self {
        Self { kind, octets: Vec::new(), state: State::Waiting(now.checked_add(timeout)) }
    }

    /// Takes what `input` holds of the frame, and gives the frame when that was the last of it.
    fn take(&mut self, input: &[u8]) -> Result<(usize, Option<StartupFrame>), Error> {
        self.check()?;
        if let State::Whole(_) = self.state {
            return Ok((0, None));
        }
        let mut taken: usize = 0;
        loop {
            let wanted = match StartupFrame::wanted(self.kind, &self.octets) {
                Ok(wanted) => wanted,
                Err(error) => return Err(self.fail(error)),
            };
            let missing = wanted.saturating_sub(self.octets.len());
            if missing == 0 {
                break;
            }
            let rest = input.get(taken..).unwrap_or_default();
            let piece = rest.get(..missing).unwrap_or(rest);
            if piece.is_empty() {
                return Ok((taken, None));
            }
            self.octets.extend_from_slice(piece);
            taken = taken.saturating_add(piece.len());
        }
        match StartupFrame::parse(self.kind, &self.octets) {
            Ok(frame) => {
                self.state = State::Whole(self.octets.len());
                self.octets = Vec::new();
                Ok((taken, frame.map(|(frame, _)| frame)))
            }
            Err(error) => Err(self.fail(error)),
        }
    }

    /// Ends the exchange, whichever frame was badly formed (MPA-022, MPA-026); the same error meets
    /// every later call.
    fn fail(&mut self, error: StartupError) -> Error {
        self.octets = Vec::new();
        self.state = State::Failed(error.clone());
        error.into()
    }

    fn check(&self) -> Result<(), Error> {
        match &self.state {
            State::Waiting(_) | State::Whole(_) => Ok(()),
            State::Failed(error) => Err(error.clone().into()),
        }
    }

    fn handle_eof(&mut self) -> Error {
        let received = match &self.state {
            State::Waiting(_) => self.octets.len(),
            State::Whole(len) => *len,
            State::Failed(error) => return error.clone().into(),
        };
        self.fail(StartupError::Closed { received })
    }

    fn poll_timeout(&self) -> Option<Instant> {
        match self.state {
            State::Waiting(deadline) => deadline,
            State::Whole(_) | State::Failed(_) => None,
        }
    }

    fn handle_timeout(&mut self, now: Instant) -> Result<(), Error> {
        self.check()?;
        match self.poll_timeout() {
            // MPA-009, MPA-010
            Some(deadline) if now >= deadline => Err(self.fail(StartupError::TimedOut)),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
#[allow(
    clippy::indexing_slicing,
    clippy::arithmetic_side_effects,
    reason = "a wrong index fails the test"
)]
mod tests {
    use super::*;
    use crate::Revision;

    const SECOND: Duration = Duration::from_secs(1);

    #[allow(clippy::disallowed_methods, reason = "the start of a test's own time")]
    fn now() -> Instant {
        Instant::now()
    }

    fn request() -> Bytes {
        Initiator::new(Offer::default(), now()).unwrap().poll_transmit().unwrap()
    }

    // MPA-004
    #[test]
    fn the_request_is_sent_once() {
        let mut initiator = Initiator::new(Offer::default(), now()).unwrap();
        assert!(initiator.poll_transmit().is_some());
        assert_eq!(initiator.poll_transmit(), None);
    }

    // MPA-008
    #[test]
    fn two_initiators_find_out() {
        let mut initiator = Initiator::new(Offer::default(), now()).unwrap();
        let error = initiator.handle_input(&request()).unwrap_err();
        assert_eq!(error, StartupError::InitiatorInitiator.into());
        assert_eq!(initiator.poll_timeout(), None);
    }

    // MPA-009: of two responders, neither ever says anything.
    #[test]
    fn two_responders_time_out() {
        let start = now();
        let mut responder = Responder::new(SECOND, start);
        assert_eq!(responder.poll_transmit(), None);
        assert_eq!(responder.poll_timeout(), Some(start + SECOND));
        assert_eq!(responder.handle_timeout(start), Ok(()));
        let error = responder.handle_timeout(start + SECOND).unwrap_err();
        assert_eq!(error, StartupError::TimedOut.into());
    }

    /// The program may take its time to decide.
    #[test]
    fn the_timer_ends_with_the_request() {
        let start = now();
        let mut responder = Responder::new(SECOND, start);
        responder.handle_input(&request()).unwrap();
        assert_eq!(responder.poll_timeout(), None);
        assert_eq!(responder.handle_timeout(start + 100 * SECOND), Ok(()));
        // And a time too long to be told is no time limit.
        assert_eq!(Responder::new(Duration::MAX, start).poll_timeout(), None);
    }

    // MPA-018: a revision 0 peer learns which revision is served, any other is cut off.
    #[test]
    fn revision_0_is_answered() {
        let mut octets = request().to_vec();
        octets[16..].copy_from_slice(&[0xC0, 0, 0, 0, 1, 2, 3, 4]);
        let mut responder = Responder::new(SECOND, now());
        let error = responder.handle_input(&octets).unwrap_err();
        assert_eq!(error, StartupError::Revision(0).into());
        let farewell = responder.poll_transmit().unwrap();
        assert_eq!(&farewell[16..], &[0x60, 1, 0, 0]);
        assert_eq!(responder.poll_transmit(), None);

        octets[17] = 3;
        let mut responder = Responder::new(SECOND, now());
        assert_eq!(responder.handle_input(&octets), Err(StartupError::Revision(3).into()));
        assert_eq!(responder.poll_transmit(), None);
    }

    // MPA-020: with the Request or later, before the program has answered.
    #[test]
    fn octets_behind_the_request() {
        let glued = [&request()[..], &[0; 3]].concat();
        let mut responder = Responder::new(SECOND, now());
        let error = responder.handle_input(&glued).unwrap_err();
        assert_eq!(error, StartupError::DataAfterRequest { len: 3 }.into());

        let mut responder = Responder::new(SECOND, now());
        let (_, shown) = responder.handle_input(&request()).unwrap();
        assert_eq!(responder.handle_input(&[]), Ok((0, None)));
        let error = responder.handle_input(&[0; 5]).unwrap_err();
        assert_eq!(error, StartupError::DataAfterRequest { len: 5 }.into());
        // A decision that comes too late is told so.
        let shown = shown.unwrap();
        assert_eq!(responder.accept(&shown, &Offer::default()).unwrap_err(), error);
        assert_eq!(responder.reject(&shown, &[]), Err(error));
    }

    #[test]
    fn the_initiator_does_not_wait_for_the_decision() {
        let mut responder = Responder::new(SECOND, now());
        let (len, shown) = responder.handle_input(&request()).unwrap();
        let error = responder.handle_eof();
        assert_eq!(error, StartupError::Closed { received: len }.into());
        assert_eq!(responder.accept(&shown.unwrap(), &Offer::default()), Err(error));
    }

    // MPA-021
    #[test]
    fn long_private_data_can_be_made_shorter() {
        let mut responder = Responder::new(SECOND, now());
        let (_, shown) = responder.handle_input(&request()).unwrap();
        let shown = shown.unwrap();
        assert_eq!(shown.private_data_max(), 508);
        let offer = |len| Offer { private_data: vec![1; len].into(), ..Offer::default() };
        let too_long = Error::from(StartupError::PrivateDataTooLong { len: 509, max: 508 });
        assert_eq!(responder.accept(&shown, &offer(509)).unwrap_err(), too_long);
        assert_eq!(responder.reject(&shown, &[1; 509]), Err(too_long));
        let (reply, _) = responder.accept(&shown, &offer(508)).unwrap();
        assert_eq!(reply.len(), 532);

        let plain = Offer { revision: Revision::V1, ..Offer::default() };
        let request = Initiator::new(plain, now()).unwrap().poll_transmit().unwrap();
        let mut responder = Responder::new(SECOND, now());
        let (_, shown) = responder.handle_input(&request).unwrap();
        assert_eq!(shown.unwrap().private_data_max(), 512);
    }

    // MPA-023, CONN-06, CONN-15
    #[test]
    fn rejections() {
        let mut responder = Responder::new(SECOND, now());
        let (_, shown) = responder.handle_input(&request()).unwrap();
        let shown = shown.unwrap();
        let mirrored = responder.reject(&shown, b"busy").unwrap();
        assert_eq!(&mirrored[16..], b"\x70\x02\x00\x08\x80\x20\x80\x20busy");
        let needed =
            responder.reject_with_depths(&shown, Depth::Count(2), Depth::Count(64), &[]).unwrap();
        assert_eq!(&needed[16..], b"\x70\x02\x00\x04\x80\x02\x80\x40");
    }
}
