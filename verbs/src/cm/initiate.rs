//! The connecting side: from an address to Full Operation, on the driver.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use iwarp_mpa::{
    FpduLimit, Initiator, Negotiated, Offer, Outcome, Revision, StartupError, Unusable,
};
use iwarp_rdmap::TerminateCode;
use tokio::time::timeout_at;

use super::address::Target;
use super::attach::AttachedStream;
use super::endpoint::{Agreement, Endpoint};
use super::error::{ConnectError, Phase, startup_error};
use super::farewell;
use super::param::ConnParam;
use super::socket::{Bound, Conversation, Source};
use crate::config::DeviceConfig;
use crate::engine::Observer;
use crate::qp::{NotStarted, QpInner};
use crate::sys::Socket;
use crate::trace::SETUP;

/// How long to wait before a refused connection is tried again.
const REFUSED_PAUSE: Duration = Duration::from_millis(50);

/// What one call of connect asked for, checked.
#[derive(Debug)]
pub(crate) struct Plan {
    offer: Offer,
    fallback: bool,
    timeout: Duration,
    retry_refused: Duration,
    transition: Transition,
}

/// How the stream becomes one of FPDUs.
#[derive(Clone, Copy, Debug)]
struct Transition {
    fpdu_limit: FpduLimit,
    /// How long the peer is let be after its Reply.
    delay: Duration,
}

/// A whole Reply, and the connection it came through.
struct Reached {
    conversation: Conversation,
    peer: SocketAddr,
    local: SocketAddr,
    outcome: Outcome,
    /// Octets of the FPDU stream that came with the Reply (FC-001).
    leftover: Vec<u8>,
}

impl Plan {
    /// Fails if the parameters do not fit into a Request (MPA-021).
    pub(crate) fn new(config: &DeviceConfig, param: ConnParam) -> Result<Self, ConnectError> {
        let timeout = param.timeout.unwrap_or(config.connect_timeout);
        let fallback = param.fallback.unwrap_or(true);
        let transition = Transition {
            fpdu_limit: param.fpdu_limit.unwrap_or(config.fpdu_limit),
            delay: param.first_fpdu_delay.unwrap_or(config.first_fpdu_delay),
        };
        let retry_refused = param.retry_refused;
        let offer = param.offer(config, timeout)?;
        Initiator::new(offer.clone(), Instant::now()).map_err(ConnectError::param)?;
        Ok(Self { offer, fallback, timeout, retry_refused, transition })
    }

    fn revision_1(&self) -> Offer {
        Offer { revision: Revision::V1, ..self.offer.clone() }
    }
}

/// Connects the queue pair; whatever comes of it is told to the endpoint, once.
pub(crate) async fn run(
    endpoint: Arc<Endpoint>,
    qp: Arc<QpInner>,
    target: Target,
    local: Option<Bound>,
    plan: Plan,
) {
    // MPA-010: one limit for the name, TCP and MPA together (FC-044).
    let deadline = tokio::time::Instant::now() + plan.timeout;
    let reached = match timeout_at(deadline, reach(&endpoint, &target, local, &plan)).await {
        Ok(Ok(reached)) => reached,
        Ok(Err(error)) => return endpoint.fail(error),
        Err(_) => return endpoint.fail(endpoint.timed_out()),
    };
    conclude(&endpoint, &qp, reached, plan.transition).await;
}

/// Connects the queue pair over a connection that the program made; see [`run`].
pub(crate) async fn run_attached(
    endpoint: Arc<Endpoint>,
    qp: Arc<QpInner>,
    stream: AttachedStream,
    plan: Plan,
) {
    let deadline = tokio::time::Instant::now() + plan.timeout;
    let peer = stream.peer;
    let exchanged = async {
        let (conversation, read_ahead) = stream.into_conversation()?;
        // CONN-08 does not apply: there is no second TCP connection to try.
        exchange(conversation, peer, plan.offer.clone(), &read_ahead)
            .await
            .map_err(|cause| ConnectError::startup(peer, Phase::Reply, cause))
    };
    match timeout_at(deadline, exchanged).await {
        Ok(Ok(reached)) => conclude(&endpoint, &qp, reached, plan.transition).await,
        Ok(Err(error)) => endpoint.fail(error),
        Err(_) => endpoint.fail(endpoint.timed_out()),
    }
}

/// Makes of a whole Reply whatever it says.
async fn conclude(
    endpoint: &Arc<Endpoint>,
    qp: &Arc<QpInner>,
    reached: Reached,
    transition: Transition,
) {
    let Reached { conversation, peer, local, outcome, leftover } = reached;
    let Transition { fpdu_limit, delay } = transition;
    if !delay.is_zero() && !matches!(outcome, Outcome::Rejected(_)) {
        tokio::time::sleep(delay).await;
    }
    match outcome {
        Outcome::Accepted(negotiated) => {
            let agreement = Agreement::new(peer, local, &negotiated);
            if !endpoint.open(agreement, &negotiated.private_data) {
                return;
            }
            let observer: Arc<dyn Observer> = Arc::<Endpoint>::clone(endpoint);
            let socket = conversation.into_socket();
            let started = qp.start(socket, &negotiated, leftover, Some(observer), fpdu_limit, None);
            if let Err(socket) = endpoint.started(qp, started) {
                apologize(endpoint, socket, &negotiated).await;
            }
        }
        // MPA-027
        Outcome::Rejected(rejection) => {
            endpoint.fail(ConnectError::Rejected {
                addr: peer,
                private_data: rejection.private_data,
                ird: rejection.peer_ird,
                ord: rejection.peer_ord,
            });
            conversation.close_gracefully(endpoint.device.config.close_grace).await;
        }
        Outcome::Unusable { reason, negotiated } => {
            let error = match reason {
                Unusable::InsufficientIrd => ConnectError::InsufficientIrd { addr: peer },
                Unusable::NoCommonRtr => ConnectError::NoCommonRtr { addr: peer },
            };
            // CONN-17, CONN-25, CONN-30: the peer is in Full Operation, and hears of it by a Terminate.
            let code = TerminateCode::from_parts(2, 0, reason.code());
            let socket = conversation.into_socket();
            let end = Some(code);
            if let Err(NotStarted { error, .. }) =
                qp.start(socket, &negotiated, leftover, None, fpdu_limit, end)
            {
                tracing::debug!(target: SETUP, %peer, %error, "no Terminate could be sent");
            }
            endpoint.fail(error);
        }
    }
}

/// Tells the peer, which is in Full Operation already, that this side cannot follow (CONN-27).
async fn apologize(endpoint: &Endpoint, socket: Socket, negotiated: &Negotiated) {
    let limit = endpoint.device.config.close_grace;
    let Some(fpdu) = farewell::terminate(negotiated, TerminateCode::SETUP_LOCAL) else { return };
    let Ok(conversation) = Conversation::accepted(socket) else { return };
    let sent = tokio::time::timeout(limit, conversation.write_all(&fpdu)).await;
    if matches!(sent, Ok(Ok(()))) {
        conversation.close_gracefully(limit).await;
    }
}

/// Gets a whole Reply from the peer, at one of its addresses.
async fn reach(
    endpoint: &Endpoint,
    target: &Target,
    local: Option<Bound>,
    plan: &Plan,
) -> Result<Reached, ConnectError> {
    let started = Instant::now();
    let addrs = if target.is_literal() {
        target.resolve()?
    } else {
        let target = target.clone();
        let lookup = tokio::task::spawn_blocking(move || target.resolve());
        // A resolver that was shut down with the device found nothing.
        lookup.await.map_err(|_| ConnectError::Cancelled)??
    };
    endpoint.enter_phase(Phase::Tcp);
    let source = local.as_ref().map(Bound::source);
    let mut prepared = local;
    loop {
        let mut failure = None;
        for (tried, &addr) in addrs.iter().enumerate() {
            let left = plan.timeout.saturating_sub(started.elapsed());
            // One silent address must not use up the time of the others.
            let others = u32::try_from(addrs.len().saturating_sub(tried)).unwrap_or(u32::MAX);
            let dial = dial(endpoint, addr, prepared.take(), source.as_ref());
            match tokio::time::timeout(left / others.max(1), dial).await {
                Ok(Ok(conversation)) => {
                    return converse(endpoint, conversation, addr, source.as_ref(), plan).await;
                }
                Ok(Err(error)) => failure = Some(error),
                Err(_) => failure = Some(endpoint.timed_out()),
            }
        }
        match failure {
            Some(ConnectError::Refused { .. }) if started.elapsed() < plan.retry_refused => {
                tokio::time::sleep(REFUSED_PAUSE).await;
            }
            failure => return Err(failure.unwrap_or(ConnectError::Cancelled)),
        }
    }
}

/// Opens the TCP connection.
async fn dial(
    endpoint: &Endpoint,
    addr: SocketAddr,
    prepared: Option<Bound>,
    source: Option<&Source>,
) -> Result<Conversation, ConnectError> {
    let bound = match (prepared, source) {
        (Some(bound), _) => Some(bound),
        (None, Some(source)) => Some(source.bind_again()?),
        (None, None) => None,
    };
    Conversation::connect(&endpoint.device.sockets, addr, bound).await
}

/// Exchanges start-up frames; once more with revision 1 if the peer seems not to know revision 2
/// (FC-007).
async fn converse(
    endpoint: &Endpoint,
    conversation: Conversation,
    addr: SocketAddr,
    source: Option<&Source>,
    plan: &Plan,
) -> Result<Reached, ConnectError> {
    endpoint.enter_phase(Phase::Reply);
    let cause = match exchange(conversation, addr, plan.offer.clone(), &[]).await {
        Ok(reached) => return Ok(reached),
        Err(cause) => cause,
    };
    let error = ConnectError::startup(addr, Phase::Reply, cause.clone());
    let oldest = plan.offer.revision == Revision::V1;
    if oldest || !plan.fallback || !cause.suggests_revision_1() {
        return Err(error);
    }
    tracing::debug!(target: SETUP, %addr, %cause, "trying again with MPA revision 1");
    // CONN-08: on a new TCP connection. If there is none, the first answer was the better one.
    let Ok(conversation) = dial(endpoint, addr, None, source).await else {
        return Err(error);
    };
    exchange(conversation, addr, plan.revision_1(), &[])
        .await
        .map_err(|cause| ConnectError::startup(addr, Phase::Reply, cause))
}

/// Sends the Request and takes the Reply, which may come in any pieces (FC-002).
///
/// `read_ahead` has come in before: the stream was used for something else until now.
async fn exchange(
    conversation: Conversation,
    peer: SocketAddr,
    offer: Offer,
    read_ahead: &[u8],
) -> Result<Reached, StartupError> {
    let mut initiator = Initiator::new(offer, Instant::now()).map_err(startup_error)?;
    while let Some(request) = initiator.poll_transmit() {
        if conversation.write_all(&request).await.is_err() {
            return Err(startup_error(initiator.handle_eof()));
        }
    }
    let mut buffer = [0; 2048];
    let mut input = read_ahead;
    loop {
        let (taken, outcome) = initiator.handle_input(input).map_err(startup_error)?;
        if let Some(outcome) = outcome {
            // FC-001: what follows the Reply is the FPDU stream's.
            let leftover = input.get(taken..).unwrap_or_default().to_vec();
            let local = conversation.local_addr();
            return Ok(Reached { conversation, peer, local, outcome, leftover });
        }
        let received = match conversation.read(&mut buffer).await {
            Ok(received) if received > 0 => received,
            Ok(_) | Err(_) => return Err(startup_error(initiator.handle_eof())),
        };
        input = buffer.get(..received).unwrap_or_default();
    }
}
