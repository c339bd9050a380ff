//! The verbs style: ids, calls that return at once, and events.

use std::net::SocketAddr;
use std::sync::{Arc, Weak};
use std::time::Instant;

use iwarp_mpa::Role;
use tokio::sync::OwnedSemaphorePermit;

use super::accept::{Pending, claim};
use super::address::Address;
use super::attach::Attach;
use super::endpoint::{Attempt, Endpoint, Handle, Sink, Stage};
use super::error::{ConnectError, Phase};
use super::event::{ChannelInner, EventChannel};
use super::initiate::{self, Plan};
use super::listen::Acceptor;
use super::param::{BindOptions, ConnParam};
use super::socket::bind_first;
use crate::device::DeviceInner;
use crate::qp::QueuePair;
use crate::trace::SETUP;
use crate::users::{Use, User};

/// One end of a connection, or of the attempt at one, or a listener; the `rdma_cm_id` of a Rust
/// program.
///
/// No call blocks, except that binding to a name looks it up. What comes of a call is told by an
/// [`Event`](super::Event) on the channel. Clones name the same id. When the last clone is dropped,
/// what was going on ends (a set-up is cancelled, a connection disconnected, a listener closed) and no
/// event of this id comes any more, fetched later or not (FC-044).
///
/// An id is used once: after its connection is over, or failed, make a new one. So is the queue pair,
/// until it has been reset.
#[derive(Clone, Debug)]
pub struct Id(pub(crate) Arc<Handle>);

impl Id {
    /// An id whose events go to `channel`; if that was destroyed, to nobody.
    #[must_use]
    pub fn new(channel: &EventChannel) -> Self {
        Self::with_stage(&channel.0, Stage::Idle)
    }

    fn with_stage(channel: &Arc<ChannelInner>, stage: Stage) -> Self {
        let device = Arc::clone(&channel.device);
        Self(Arc::new_cyclic(|id: &Weak<Handle>| {
            Handle(Endpoint::new(device, stage, Some(Sink::new(channel, id))))
        }))
    }

    /// Gives the id a local address: before [`listen`](Self::listen), or to choose where to connect
    /// from. With port 0 the system chooses, and [`local_addr`](Self::local_addr) tells at once
    /// (FC-055).
    pub fn bind(&self, addr: impl Into<Address>, options: BindOptions) -> Result<(), ConnectError> {
        super::check_origin(&self.endpoint().device)?;
        // Outside of the lock: a name may take its time.
        let bound = bind_first(&self.endpoint().device.sockets, &addr.into(), options)?;
        self.endpoint().change(|inner, _| match inner.stage {
            Stage::Idle => {
                inner.stage = Stage::Bound(Box::new(bound));
                Ok(())
            }
            ref other => Err(other.refuses("bind")),
        })
    }

    /// The local address, once there is one.
    #[must_use]
    pub fn local_addr(&self) -> Option<SocketAddr> {
        self.endpoint().look(|inner| inner.stage.local_addr())
    }

    /// The peer's address, once there is one.
    #[must_use]
    pub fn peer_addr(&self) -> Option<SocketAddr> {
        self.endpoint().look(|inner| inner.stage.peer_addr())
    }

    /// Begins to listen at the bound address: requests come as events with ids of their own.
    ///
    /// Up to `backlog` requests wait to be fetched; 0 means 128 (FC-050).
    pub fn listen(&self, backlog: u32) -> Result<(), ConnectError> {
        let endpoint = self.endpoint();
        let deliver = {
            let device = Arc::clone(&endpoint.device);
            let listener = Arc::downgrade(endpoint);
            move |pending, room| deliver(&device, &listener, pending, room)
        };
        endpoint.change(|inner, _| {
            let bound = match std::mem::take(&mut inner.stage) {
                Stage::Bound(bound) => bound,
                other => {
                    let error = other.refuses("listen");
                    inner.stage = other;
                    return Err(error);
                }
            };
            let acceptor = Acceptor::start(&endpoint.device, *bound, backlog, Box::new(deliver))?;
            inner.stage = Stage::Listening(acceptor);
            Ok(())
        })
    }

    /// Connects the queue pair to a peer. One event tells what came of it: `Established`, or why not.
    pub fn connect(
        &self,
        addr: impl Into<Address>,
        qp: &QueuePair,
        param: ConnParam,
    ) -> Result<(), ConnectError> {
        self.endpoint().connect(&addr.into(), qp, param)
    }

    /// Connects the queue pair over a TCP connection that exists already, in either role; see
    /// [`attach`](super::attach). One event tells what came of it, as for [`connect`](Self::connect). For
    /// an id that was not bound. After an error the id is as before, and the stream closed.
    pub fn attach(
        &self,
        stream: impl Into<Attach>,
        role: Role,
        qp: &QueuePair,
        param: ConnParam,
    ) -> Result<(), ConnectError> {
        self.endpoint().attach(stream.into(), role, qp, param)
    }

    /// Accepts the request of this id, and connects the queue pair. One event tells what came of it.
    ///
    /// After an error the request still waits for an answer.
    pub fn accept(&self, qp: &QueuePair, param: ConnParam) -> Result<(), ConnectError> {
        self.endpoint().accept(qp, param)
    }

    /// Rejects the request of this id, with up to 508 octets for the peer's program, or 512 if it asked
    /// with revision 1. No event follows.
    pub fn reject(&self, private_data: &[u8]) -> Result<(), ConnectError> {
        self.endpoint().reject(private_data)
    }

    /// Ends the connection in order: the FPDU in flight is finished, what else is posted is flushed. A
    /// `Disconnected` event follows at both ends, once. No error if the peer was first (FC-047).
    pub fn disconnect(&self) -> Result<(), ConnectError> {
        self.endpoint().disconnect()
    }

    /// Destroys the id for all its handles: what was going on ends as when the last one is dropped, and no
    /// event of it comes any more. The port of a listener is free when this returns.
    ///
    /// Blocks until the events of this id that the program has fetched are acknowledged, by dropping them,
    /// except that of its request (FC-040); so not to be called by who holds one. Those not yet fetched
    /// vanish. Not needed: dropping the last handle does the same without waiting, as an event holds its
    /// id.
    ///
    /// # Errors
    /// [`ConnectError::State`] the second time.
    pub fn destroy(&self) -> Result<(), ConnectError> {
        self.endpoint().destroy()
    }

    /// Lets the events of this id come through another channel of the same device: those that wait
    /// already included, and for a listener the requests, with their new ids. Events that were fetched
    /// before stay with who fetched them. Never blocks.
    pub fn migrate(&self, channel: &EventChannel) -> Result<(), ConnectError> {
        super::check_origin(&self.endpoint().device)?;
        if !Arc::ptr_eq(&self.endpoint().device, &channel.0.device) {
            return Err(ConnectError::State {
                call: "migrate",
                state: "the channel belongs to another device",
            });
        }
        let joined = Use::begin(&channel.0, User::Id).map_err(|_| ConnectError::State {
            call: "migrate",
            state: "the channel was destroyed",
        })?;
        let old = self.endpoint().change(|inner, _| {
            let sink = inner.sink.as_mut()?;
            let old = sink.move_to(joined);
            // In here, so that no event of this id can overtake those that waited.
            channel.0.adopt(&old, Arc::as_ptr(&self.0));
            Some(old)
        });
        drop(old);
        channel.0.wake();
        Ok(())
    }

    /// The id of a request that nobody has fetched goes with its event.
    pub(super) fn report_to(&self, channel: &Arc<ChannelInner>) {
        let old = self.endpoint().change(|inner, _| {
            let sink = inner.sink.as_mut()?;
            let joined = Use::begin_or_keep(channel, User::Id);
            Some(sink.move_to(joined))
        });
        drop(old);
    }

    fn endpoint(&self) -> &Arc<Endpoint> {
        &self.0.0
    }
}

/// Two ids are equal if they are the same.
impl PartialEq for Id {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Eq for Id {}

impl std::hash::Hash for Id {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        Arc::as_ptr(&self.0).hash(state);
    }
}

/// Makes an id for a request and queues the event, unless the listener is gone.
fn deliver(
    device: &Arc<DeviceInner>,
    listener: &Weak<Endpoint>,
    pending: Box<Pending>,
    room: OwnedSemaphorePermit,
) {
    let mut pending = Some(pending);
    if let Some(listener) = listener.upgrade() {
        listener.change(|inner, emitted| {
            let (Stage::Listening(_), Some(sink)) = (&inner.stage, &inner.sink) else { return };
            let Some(pending) = pending.take() else { return };
            let facts = pending.facts();
            let id = Id::with_stage(&sink.channel, Stage::Requested(pending));
            sink.channel.push_request(id, Weak::clone(&sink.id), room, facts);
            emitted.wake(&sink.channel);
        });
    }
    if let Some(pending) = pending {
        pending.decline_silently(device);
    }
}

impl Endpoint {
    /// Begins to connect; what comes of it is told to the endpoint. After an error it is as before.
    pub(crate) fn connect(
        self: &Arc<Self>,
        address: &Address,
        qp: &QueuePair,
        param: ConnParam,
    ) -> Result<(), ConnectError> {
        let target = address.peer()?;
        let plan = Plan::new(&self.device.config, param)?;
        let runtime = super::runtime(&self.device)?;
        let qp = &qp.0.inner;
        let task = self.change(|inner, _| {
            if !matches!(inner.stage, Stage::Idle | Stage::Bound(_)) {
                return Err(inner.stage.refuses("connect"));
            }
            claim(&self.device, qp)?;
            tracing::debug!(target: SETUP, qp = qp.number, to = %target, "connecting");
            let attempt =
                Attempt { peer: target.to_string(), since: Instant::now(), phase: Phase::Resolve };
            let bound =
                match std::mem::replace(&mut inner.stage, Stage::Connecting(Box::new(attempt))) {
                    Stage::Bound(bound) => Some(*bound),
                    _ => None,
                };
            inner.qp = Some(Arc::clone(qp));
            Ok(initiate::run(Arc::clone(self), Arc::clone(qp), target, bound, plan))
        })?;
        self.launch(&runtime, task);
        Ok(())
    }
}
