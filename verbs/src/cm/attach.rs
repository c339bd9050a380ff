//! TCP connections that the program made: MPA start-up over a stream that may have been used before (MPA-002).

use std::net::{SocketAddr, TcpStream};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Instant;

use iwarp_mpa::Role;

use super::accept::{self, claim};
use super::endpoint::{Attempt, Endpoint, Stage};
use super::error::{ConnectError, Phase};
use super::initiate::{self, Plan};
use super::param::ConnParam;
use super::socket::Conversation;
use crate::qp::{QpInner, QueuePair};
use crate::sys::{Socket, Sockets};

/// A TCP connection of the program's, to be given to [`attach`](super::attach).
///
/// A [`TcpStream`] or any owned descriptor of a connected TCP socket. It becomes non-blocking and is not
/// inherited by other programs from then on; copies of it that the program keeps share the former, and
/// must not be used for reading or writing any more.
#[derive(Debug)]
pub struct Attach {
    stream: OwnedFd,
    read_ahead: Vec<u8>,
}

impl Attach {
    /// A connection of which nothing was read too far.
    pub fn new(stream: impl Into<OwnedFd>) -> Self {
        Self { stream: stream.into(), read_ahead: Vec::new() }
    }

    /// Octets that the program has read from the stream already, and that belong to the start-up: what
    /// came behind the end of the stream's other use.
    #[must_use]
    pub fn read_ahead(mut self, octets: impl Into<Vec<u8>>) -> Self {
        self.read_ahead = octets.into();
        self
    }
}

impl From<TcpStream> for Attach {
    fn from(stream: TcpStream) -> Self {
        Self::new(stream)
    }
}

impl From<OwnedFd> for Attach {
    fn from(stream: OwnedFd) -> Self {
        Self::new(stream)
    }
}

/// A stream that was looked at: it is connected.
pub(crate) struct AttachedStream {
    socket: Socket,
    pub(crate) peer: SocketAddr,
    read_ahead: Vec<u8>,
}

impl AttachedStream {
    fn new(
        sockets: &Sockets,
        Attach { stream, read_ahead }: Attach,
        role: Role,
    ) -> Result<Self, ConnectError> {
        let look = || {
            let socket = sockets.adopt(stream, role == Role::Initiator, &read_ahead)?;
            let peer = socket.peer_addr()?;
            Ok(Self { socket, peer, read_ahead })
        };
        look().map_err(|cause| ConnectError::NotConnected(Arc::new(cause)))
    }

    /// On the runtime that will drive it.
    pub(crate) fn into_conversation(self) -> Result<(Conversation, Vec<u8>), ConnectError> {
        let Self { socket, peer, read_ahead } = self;
        let conversation = Conversation::accepted(socket).map_err(|cause| ConnectError::Local {
            peer: peer.to_string(),
            cause: Arc::new(cause),
        })?;
        Ok((conversation, read_ahead))
    }
}

impl Endpoint {
    /// Begins MPA over the stream; what comes of it is told to the endpoint. After an error it is as
    /// before.
    pub(crate) fn attach(
        self: &Arc<Self>,
        stream: Attach,
        role: Role,
        qp: &QueuePair,
        param: ConnParam,
    ) -> Result<(), ConnectError> {
        let config = &self.device.config;
        let stream = AttachedStream::new(&self.device.sockets, stream, role)?;
        let runtime = super::runtime(&self.device)?;
        let qp = &qp.0.inner;
        let attempt = |phase| {
            Box::new(Attempt { peer: stream.peer.to_string(), since: Instant::now(), phase })
        };
        match role {
            Role::Initiator => {
                let plan = Plan::new(config, param)?;
                let stage = Stage::Connecting(attempt(Phase::Reply));
                self.begin(stage, qp, &runtime, |endpoint, qp| {
                    initiate::run_attached(endpoint, qp, stream, plan)
                })
            }
            Role::Responder => {
                let timeout = param.timeout.unwrap_or(config.accept_timeout);
                let fpdu_limit = param.fpdu_limit.unwrap_or(config.fpdu_limit);
                let offer = param.offer(config, timeout)?;
                let stage = Stage::Replying(attempt(Phase::Request));
                self.begin(stage, qp, &runtime, |endpoint, qp| {
                    accept::run_attached(endpoint, qp, stream, offer, fpdu_limit)
                })
            }
        }
    }

    /// Claims the queue pair and sends the set-up on its way, if nothing is going on here.
    fn begin<T>(
        self: &Arc<Self>,
        stage: Stage,
        qp: &Arc<QpInner>,
        runtime: &tokio::runtime::Handle,
        set_up: impl FnOnce(Arc<Self>, Arc<QpInner>) -> T,
    ) -> Result<(), ConnectError>
    where
        T: Future<Output = ()> + Send + 'static,
    {
        self.change(|inner, _| {
            if !matches!(inner.stage, Stage::Idle) {
                return Err(inner.stage.refuses("attach"));
            }
            claim(&self.device, qp)?;
            inner.stage = stage;
            inner.qp = Some(Arc::clone(qp));
            Ok(())
        })?;
        self.launch(runtime, set_up(Arc::clone(self), Arc::clone(qp)));
        Ok(())
    }
}
