//! The accepting side: a stranger's Request, and what the program makes of it.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use iwarp_mpa::{FpduLimit, Negotiated, Offer, Request, Responder, StartupError};
use tokio::time::timeout_at;

use super::attach::AttachedStream;
use super::endpoint::{Agreement, Attempt, Endpoint, Stage};
use super::error::{ConnectError, Phase, startup_error};
use super::event::{Facts, narrow};
use super::param::ConnParam;
use super::socket::Conversation;
use crate::device::DeviceInner;
use crate::engine::Observer;
use crate::qp::{QpInner, QueuePair};
use crate::trace::SETUP;

/// A Request that the program has not answered, and the connection it came through. No timer runs.
#[derive(Debug)]
pub(crate) struct Pending {
    conversation: Conversation,
    responder: Responder,
    pub(crate) request: Request,
    pub(crate) peer: SocketAddr,
    pub(crate) local: SocketAddr,
}

/// Takes a Request from a TCP connection just accepted. `None`: there was no valid one in time, and the
/// connection is closed; nobody hears of it (FC-004).
pub(crate) async fn take_request(
    conversation: Conversation,
    peer: SocketAddr,
    timeout: Duration,
) -> Option<Box<Pending>> {
    match await_request(conversation, peer, timeout, &[]).await {
        Ok(pending) => Some(pending),
        Err(cause) => {
            tracing::debug!(target: SETUP, %peer, %cause, "closed a connection without a valid request");
            None
        }
    }
}

/// Takes a Request, of which `read_ahead` has come in before. After an error the connection is closed.
async fn await_request(
    conversation: Conversation,
    peer: SocketAddr,
    timeout: Duration,
    read_ahead: &[u8],
) -> Result<Box<Pending>, StartupError> {
    let mut responder = Responder::new(timeout, Instant::now());
    // MPA-009, MPA-010: the limit is for the whole frame, however it trickles in.
    let deadline = responder.poll_timeout().map_or_else(far_future, tokio::time::Instant::from_std);
    let request = read_request(&conversation, &mut responder, read_ahead);
    match timeout_at(deadline, request).await.unwrap_or(Err(StartupError::TimedOut)) {
        Ok(request) => {
            let local = conversation.local_addr();
            Ok(Box::new(Pending { conversation, responder, request, peer, local }))
        }
        Err(cause) => {
            if let Some(farewell) = responder.poll_transmit() {
                let _ = timeout_at(deadline, conversation.write_all(&farewell)).await;
            }
            // MPA-022, MPA-085
            Err(cause)
        }
    }
}

/// For a limit that cannot be expressed.
fn far_future() -> tokio::time::Instant {
    tokio::time::Instant::now() + Duration::from_secs(1 << 30)
}

async fn read_request(
    conversation: &Conversation,
    responder: &mut Responder,
    read_ahead: &[u8],
) -> Result<Request, StartupError> {
    // MPA-005: nothing is sent before a valid Request is in. SEC-22: nothing is kept beyond one frame.
    let (_, mut request) = responder.handle_input(read_ahead).map_err(startup_error)?;
    loop {
        if let Some(request) = request {
            return Ok(request);
        }
        let taken = conversation.read_with(|octets| match octets {
            [] => Err(startup_error(responder.handle_eof())),
            octets => responder.handle_input(octets).map_err(startup_error),
        });
        (_, request) = match taken.await {
            Ok(taken) => taken?,
            Err(_) => return Err(startup_error(responder.handle_eof())),
        };
    }
}

/// Answers whoever sends a Request over a connection that the program made: accepts it, if it is valid
/// and the offer can be made.
pub(crate) async fn run_attached(
    endpoint: Arc<Endpoint>,
    qp: Arc<QpInner>,
    stream: AttachedStream,
    offer: Offer,
    fpdu_limit: FpduLimit,
) {
    let (peer, limit, since) = (stream.peer, offer.timeout, Instant::now());
    let (conversation, read_ahead) = match stream.into_conversation() {
        Ok(ready) => ready,
        Err(error) => return endpoint.fail(error),
    };
    let pending = match await_request(conversation, peer, limit, &read_ahead).await {
        Ok(pending) => pending,
        Err(StartupError::TimedOut) => return endpoint.fail(endpoint.timed_out()),
        Err(cause) => return endpoint.fail(ConnectError::startup(peer, Phase::Request, cause)),
    };
    // MPA-021: how much private data there may be is known only now.
    let (reply, negotiated) = match pending.responder.accept(&pending.request, &offer) {
        Ok(agreed) => agreed,
        Err(error) => {
            endpoint.fail(ConnectError::param(error));
            return pending.decline_silently(&endpoint.device);
        }
    };
    endpoint.enter_phase(Phase::SendReply);
    let timeout = limit.saturating_sub(since.elapsed());
    let acceptance = Acceptance { reply, negotiated, fpdu_limit, timeout, unseen: true };
    acceptance.carry_out(endpoint, qp, pending).await;
}

impl Endpoint {
    /// Accepts the Request that waits here; what comes of it is told to the endpoint. After an error
    /// the Request still waits.
    pub(crate) fn accept(
        self: &Arc<Self>,
        qp: &QueuePair,
        param: ConnParam,
    ) -> Result<(), ConnectError> {
        let config = &self.device.config;
        let timeout = param.timeout.unwrap_or(config.accept_timeout);
        let fpdu_limit = param.fpdu_limit.unwrap_or(config.fpdu_limit);
        let offer = param.offer(config, timeout)?;
        let handle = super::runtime(&self.device)?;
        let qp = &qp.0.inner;
        let task = self.change(|inner, _| {
            let pending = match std::mem::take(&mut inner.stage) {
                Stage::Requested(pending) => pending,
                other => {
                    let error = other.refuses("accept");
                    inner.stage = other;
                    return Err(error);
                }
            };
            // MPA-021, MPA-003
            let agreed = pending.responder.accept(&pending.request, &offer);
            let agreed = agreed.map_err(ConnectError::param).and_then(|agreed| {
                claim(&self.device, qp)?;
                Ok(agreed)
            });
            let (reply, negotiated) = match agreed {
                Ok(agreed) => agreed,
                Err(error) => {
                    inner.stage = Stage::Requested(pending);
                    return Err(error);
                }
            };
            inner.stage = Stage::Replying(Box::new(Attempt {
                peer: pending.peer.to_string(),
                since: Instant::now(),
                phase: Phase::SendReply,
            }));
            inner.qp = Some(Arc::clone(qp));
            tracing::debug!(target: SETUP, qp = qp.number, peer = %pending.peer, "accepting");
            let acceptance = Acceptance { reply, negotiated, fpdu_limit, timeout, unseen: false };
            let task = acceptance.carry_out(Arc::clone(self), Arc::clone(qp), pending);
            Ok(task)
        })?;
        self.launch(&handle, task);
        Ok(())
    }

    /// Rejects the Request that waits here. After an error it still waits.
    pub(crate) fn reject(&self, private_data: &[u8]) -> Result<(), ConnectError> {
        super::check_origin(&self.device)?;
        let (pending, reply) = self.change(|inner, _| {
            let pending = match std::mem::take(&mut inner.stage) {
                Stage::Requested(pending) => pending,
                other => {
                    let error = other.refuses("reject");
                    inner.stage = other;
                    return Err(error);
                }
            };
            match pending.responder.reject(&pending.request, private_data) {
                Ok(reply) => {
                    inner.stage = Stage::Refused;
                    Ok((pending, reply))
                }
                Err(error) => {
                    inner.stage = Stage::Requested(pending);
                    Err(ConnectError::param(error))
                }
            }
        })?;
        pending.decline(&self.device, reply);
        Ok(())
    }
}

/// Reserves the queue pair for this connection (MPA-003).
pub(crate) fn claim(device: &Arc<DeviceInner>, qp: &Arc<QpInner>) -> Result<(), ConnectError> {
    if !Arc::ptr_eq(device, &qp.device) {
        return Err(ConnectError::queue_pair(crate::Error::ForeignDevice { what: "queue pair" }));
    }
    qp.claim_setup().map_err(ConnectError::queue_pair)
}

/// What the program said yes to.
struct Acceptance {
    reply: Bytes,
    negotiated: Negotiated,
    fpdu_limit: FpduLimit,
    timeout: Duration,
    /// The program has not seen the Request.
    unseen: bool,
}

impl Acceptance {
    async fn carry_out(self, endpoint: Arc<Endpoint>, qp: Arc<QpInner>, pending: Box<Pending>) {
        let Pending { conversation, mut responder, request, peer, local } = *pending;
        let deadline = tokio::time::Instant::now() + self.timeout;
        if let Err(cause) = still_waiting(&conversation, &mut responder) {
            return endpoint.fail(ConnectError::startup(peer, Phase::Decision, cause));
        }
        // MPA-025
        match timeout_at(deadline, conversation.write_all(&self.reply)).await {
            Ok(Ok(())) => {}
            Ok(Err(_)) => {
                return endpoint.fail(ConnectError::Closed { addr: peer, phase: Phase::SendReply });
            }
            Err(_) => return endpoint.fail(endpoint.timed_out()),
        }
        let negotiated = self.negotiated;
        let mut agreement = Agreement::new(peer, local, &negotiated);
        agreement.tells_private_data = self.unseen;
        if !endpoint.open(agreement, &request.private_data) {
            return;
        }
        let observer: Arc<dyn Observer> = Arc::<Endpoint>::clone(&endpoint);
        let socket = conversation.into_socket();
        let started =
            qp.start(socket, &negotiated, Vec::new(), Some(observer), self.fpdu_limit, None);
        // Without it the socket is just closed: this side may not send first (MPA-029).
        let wanted = endpoint.started(&qp, started).unwrap_or(false);
        if wanted && negotiated.rtr.is_some() {
            // CONN-29: only the first FPDU establishes a connection of the peer-to-peer model.
            if timeout_at(deadline, endpoint.opened()).await.is_err() {
                endpoint.give_up();
            }
        }
    }
}

/// The initiator has nothing to say until it has the Reply; it may have left (FC-045).
fn still_waiting(
    conversation: &Conversation,
    responder: &mut Responder,
) -> Result<(), StartupError> {
    let mut buffer = [0; 64];
    match conversation.try_read(&mut buffer) {
        Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => Ok(()),
        Ok(received) if received > 0 => {
            // MPA-020, MPA-037
            let input = buffer.get(..received).unwrap_or_default();
            responder.handle_input(input).map(|_| ()).map_err(startup_error)
        }
        Ok(_) | Err(_) => Err(startup_error(responder.handle_eof())),
    }
}

impl Pending {
    /// What the request says, for an event.
    pub(crate) fn facts(&self) -> Facts {
        Facts {
            private_data: self.request.private_data.clone(),
            // FC-011: one side's IRD is the ceiling of the other side's ORD.
            initiator_depth: narrow(self.request.ird()),
            responder_resources: narrow(self.request.ord()),
            peer: Some(self.peer),
            ..Facts::default()
        }
    }

    /// Rejects without a reason, as for a request that its program let go.
    pub(crate) fn decline_silently(self: Box<Self>, device: &Arc<DeviceInner>) {
        if let Ok(reply) = self.responder.reject(&self.request, &[]) {
            self.decline(device, reply);
        }
    }

    /// Sends a rejecting Reply and closes in order, so that it arrives (FC-012, MPA-023).
    fn decline(self: Box<Self>, device: &Arc<DeviceInner>, reply: Bytes) {
        device.counters.requests_rejected.count();
        tracing::debug!(target: SETUP, peer = %self.peer, "request rejected");
        // Without its driver the device is going down, and TCP tells the peer.
        let Ok(handle) = super::runtime(device) else { return };
        let limit = device.config.close_grace;
        let Ok(farewell) = device.driver().farewell() else { return };
        // SEC-22: a crowd of rejected peers is not waited for. The Reply is in TCP's hands all the same, and arrives
        // unless the peer has sent more than its Request.
        let place = device.handshakes.farewell();
        // Held, so that the driver stays until the peer has it.
        let held = (farewell, Arc::clone(device));
        handle.spawn(async move {
            let sent = tokio::time::timeout(limit, self.conversation.write_all(&reply)).await;
            if matches!(sent, Ok(Ok(()))) && place.is_some() {
                self.conversation.close_gracefully(limit).await;
            }
            drop((place, held));
        });
    }
}
