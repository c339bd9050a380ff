//! One end of a connection, from the first call to the last event: a single state machine.
//!
//! Handles of both styles, set-up tasks on the driver and the engine share an [`Endpoint`]. Everybody
//! changes it through [`Endpoint::change`], under one short lock; events are queued under that lock, so
//! that they come in the order in which things happened, and wakers fire after it.
//!
//! | from | on | to | event |
//! |---|---|---|---|
//! | idle | bind | bound | |
//! | bound | listen | listening | a request for each peer |
//! | idle, bound | connect | connecting | |
//! | connecting | accepting Reply in | opening | |
//! | connecting | anything else | failed | by cause |
//! | requested | accept | replying | |
//! | requested | reject | refused | |
//! | replying | Reply sent | opening | |
//! | replying | peer gone, time-out | failed | by cause |
//! | opening | engine says established | established | `Established` |
//! | opening | engine says closed, time-out | failed | `ConnectError`, `Unreachable` |
//! | established | engine says closed | closed | `Disconnected` |
//! | any | handle dropped, destroy | released | none, ever |

use std::fmt;
use std::net::SocketAddr;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use bytes::Bytes;
use event_listener::{Event, EventListener};
use iwarp_mpa::{Negotiated, Role};
use iwarp_rdmap::CloseCause;
use parking_lot::Mutex;
use tokio::runtime;
use tokio::task::AbortHandle;

use super::accept::Pending;
use super::close::CloseReason;
use super::error::{ConnectError, Phase};
use super::event::{ChannelInner, EventKind, Facts, narrow};
use super::listen::Acceptor;
use super::socket::Bound;
use crate::device::DeviceInner;
use crate::engine::Observer;
use crate::event::{Ack, Unacked};
use crate::qp::{NotStarted, QpInner};
use crate::sys::Socket;
use crate::trace::SETUP;
use crate::users::{Use, User};

pub(crate) struct Endpoint {
    pub(crate) device: Arc<DeviceInner>,
    inner: Mutex<Inner>,
}

pub(crate) struct Inner {
    pub(crate) stage: Stage,
    pub(crate) sink: Option<Sink>,
    /// The queue pair from connect or accept on, until the connection is over.
    pub(crate) qp: Option<Arc<QpInner>>,
    pub(crate) task: Option<AbortHandle>,
    /// For those who wait for a change. Made by the first of them, and gone with the change, so that an
    /// idle connection has none.
    changed: Option<Event>,
}

/// Where events go: the channel of the id, in the verbs style.
pub(crate) struct Sink {
    pub(crate) channel: Use<ChannelInner>,
    pub(crate) id: Weak<Handle>,
    /// Events of the id that the program has fetched and not acknowledged.
    unacked: Arc<Unacked>,
}

impl Sink {
    pub(crate) fn new(channel: &Arc<ChannelInner>, id: &Weak<Handle>) -> Self {
        channel.enroll(id);
        let channel = Use::begin_or_keep(channel, User::Id);
        Self { channel, id: Weak::clone(id), unacked: Arc::default() }
    }
}

impl Sink {
    /// From here on events go elsewhere. Returns where they went.
    pub(crate) fn move_to(&mut self, channel: Use<ChannelInner>) -> Use<ChannelInner> {
        self.channel.dismiss(&self.id);
        channel.enroll(&self.id);
        std::mem::replace(&mut self.channel, channel)
    }
}

impl Drop for Sink {
    fn drop(&mut self) {
        self.channel.dismiss(&self.id);
    }
}

/// Where an endpoint is. Whatever does not last is boxed: there may be ten thousand, nearly all of them
/// established.
#[derive(Default)]
pub(crate) enum Stage {
    #[default]
    Idle,
    Bound(Box<Bound>),
    Listening(Acceptor),
    Connecting(Box<Attempt>),
    Requested(Box<Pending>),
    Replying(Box<Attempt>),
    Opening(Box<Attempt>, Arc<Agreement>, PrivateData),
    Established(Arc<Agreement>, PrivateData),
    Closed(Arc<Agreement>, PrivateData, Box<CloseReason>),
    Failed(Box<ConnectError>),
    Refused,
    Released,
}

/// What the peer's program said, in memory of its size.
pub(crate) type PrivateData = Box<[u8]>;

/// A program's hold on an endpoint: when it is dropped, whatever goes on there ends.
#[derive(Debug)]
pub(crate) struct Handle(pub(crate) Arc<Endpoint>);

impl Drop for Handle {
    fn drop(&mut self) {
        if !self.0.device.origin.is_here() {
            // FC-064: the parent's, with sockets in a reactor that is the parent's as well.
            std::mem::forget(Arc::clone(&self.0));
            return;
        }
        self.0.release();
    }
}

/// Held by a set-up. If that goes before it has come to its end, with the thread that it runs on or by a
/// panic, the endpoint hears of it.
struct UnderWay(Arc<Endpoint>);

impl Drop for UnderWay {
    fn drop(&mut self) {
        // Nothing happens to a set-up that was completed, or given up.
        let cause = std::io::Error::other("the thread of the device has ended");
        self.0.fail(ConnectError::Driver(Arc::new(cause)));
    }
}

/// A set-up in progress, for the text of a time-out.
#[derive(Clone, Debug)]
pub(crate) struct Attempt {
    pub(crate) peer: String,
    pub(crate) since: Instant,
    pub(crate) phase: Phase,
}

/// Where both sides are, and what of their agreement a program may ask for, or an event tells.
#[derive(Clone, Debug)]
pub(crate) struct Agreement {
    pub(crate) peer: SocketAddr,
    pub(crate) local: SocketAddr,
    pub(crate) ird: u32,
    pub(crate) ord: u32,
    peer_ird: Option<u32>,
    peer_ord: Option<u32>,
    pub(crate) revision: u8,
    pub(crate) crc: bool,
    /// The peer's private data comes with the end of the set-up: no request has told it before.
    pub(crate) tells_private_data: bool,
    /// Nothing more of the peer is needed to call the connection established.
    opens_at_once: bool,
}

impl Agreement {
    pub(crate) fn new(peer: SocketAddr, local: SocketAddr, negotiated: &Negotiated) -> Self {
        let Negotiated { role, revision, crc, ird, ord, peer_ird, peer_ord, rtr, .. } = *negotiated;
        let tells_private_data = role == Role::Initiator;
        let opens_at_once = role == Role::Initiator || rtr.is_none();
        Self {
            peer,
            local,
            ird,
            ord,
            peer_ird,
            peer_ord,
            revision,
            crc,
            tells_private_data,
            opens_at_once,
        }
    }
}

/// A set-up that came to its end.
pub(crate) struct Settled {
    pub(crate) agreement: Arc<Agreement>,
    pub(crate) private_data: PrivateData,
}

/// Channels to wake once the lock is released.
#[derive(Default)]
pub(crate) struct Emitted(Option<Arc<ChannelInner>>);

impl Emitted {
    pub(crate) fn wake(&mut self, channel: &Arc<ChannelInner>) {
        self.0 = Some(Arc::clone(channel));
    }
}

impl Endpoint {
    pub(crate) fn new(device: Arc<DeviceInner>, stage: Stage, sink: Option<Sink>) -> Arc<Self> {
        let inner = Inner { stage, sink, qp: None, task: None, changed: None };
        Arc::new(Self { device, inner: Mutex::new(inner) })
    }

    /// Changes the state, then wakes whoever waits for it.
    pub(crate) fn change<R>(&self, step: impl FnOnce(&mut Inner, &mut Emitted) -> R) -> R {
        let mut emitted = Emitted::default();
        let (result, changed) = {
            let mut inner = self.inner.lock();
            (step(&mut inner, &mut emitted), inner.changed.take())
        };
        if let Some(changed) = changed {
            changed.notify(usize::MAX);
        }
        if let Some(channel) = emitted.0 {
            channel.wake();
        }
        result
    }

    /// Looks at the state.
    pub(crate) fn look<R>(&self, at: impl FnOnce(&Inner) -> R) -> R {
        at(&self.inner.lock())
    }

    /// Resolves when the state has changed since the call.
    pub(crate) fn listen(&self) -> EventListener {
        self.inner.lock().changed.get_or_insert_default().listen()
    }

    /// The set-up went on to its next phase.
    pub(crate) fn enter_phase(&self, next: Phase) {
        if let Stage::Connecting(attempt) | Stage::Replying(attempt) = &mut self.inner.lock().stage
        {
            attempt.phase = next;
        }
    }

    /// The time-out of whatever is going on.
    pub(crate) fn timed_out(&self) -> ConnectError {
        self.look(|inner| match &inner.stage {
            Stage::Connecting(attempt) | Stage::Replying(attempt) | Stage::Opening(attempt, ..) => {
                attempt.timed_out()
            }
            _ => ConnectError::Cancelled,
        })
    }

    /// Sends a set-up on its way. To be called with nothing locked: on a runtime that has just ended it fails
    /// within the call.
    pub(crate) fn launch<T>(self: &Arc<Self>, runtime: &runtime::Handle, set_up: T)
    where
        T: Future<Output = ()> + Send + 'static,
    {
        let under_way = UnderWay(Arc::clone(self));
        let task = async move {
            let _under_way = under_way;
            set_up.await;
        };
        let task = runtime.spawn(task).abort_handle();
        let given_up = self.change(|inner, _| {
            if inner.stage.is_set_up() {
                inner.task = Some(task.clone());
            }
            matches!(inner.stage, Stage::Released)
        });
        if given_up {
            task.abort();
        }
    }

    /// The device has failed. What went on has its own event; this one is the last.
    pub(crate) fn device_removed(&self) {
        self.change(|inner, emitted| {
            inner.emit(EventKind::DeviceRemoval, Facts::default(), emitted);
        });
    }

    /// Everything is agreed and the engine is about to take over; `false` if the handle is gone.
    pub(crate) fn open(&self, agreement: Agreement, private_data: &[u8]) -> bool {
        self.change(|inner, _| {
            let (Stage::Connecting(attempt) | Stage::Replying(attempt)) = &inner.stage else {
                return false;
            };
            let attempt = Box::new(Attempt { phase: Phase::Rtr, ..Attempt::clone(attempt) });
            inner.stage = Stage::Opening(attempt, Arc::new(agreement), private_data.into());
            true
        })
    }

    /// The engine has taken over, or could not, and then gives the socket back. `Ok` tells whether the
    /// endpoint still wants the connection.
    pub(crate) fn started(
        &self,
        qp: &Arc<QpInner>,
        started: Result<(), NotStarted>,
    ) -> Result<bool, Socket> {
        if let Err(NotStarted { error, socket }) = started {
            self.fail(ConnectError::queue_pair(error));
            // Also if the handle was dropped meanwhile, and found no set-up that it could end.
            qp.fail_setup();
            return Err(socket);
        }
        let wanted = self.change(|inner, emitted| match &inner.stage {
            // Responder of the client-server model: established with its Reply, though its sender still
            // waits for the first FPDU (MPA-029).
            Stage::Opening(_, agreement, _) if agreement.opens_at_once => {
                inner.establish(emitted);
                true
            }
            stage => !matches!(stage, Stage::Released),
        });
        if !wanted {
            // The handle was dropped in between and found no connection to end.
            qp.disconnect();
        }
        Ok(wanted)
    }

    /// Resolves once the connection is established or has failed.
    pub(crate) async fn opened(&self) {
        loop {
            let change = self.listen();
            if !self.look(|inner| matches!(inner.stage, Stage::Opening(..))) {
                return;
            }
            change.await;
        }
    }

    /// The set-up failed before the engine took over. Queued receives are flushed (FC-035); one event
    /// tells of it.
    pub(crate) fn fail(&self, error: ConnectError) {
        if let Some(qp) = self.note_failure(error) {
            qp.fail_setup();
        }
    }

    /// The ready-to-receive message did not come in time.
    pub(crate) fn give_up(&self) {
        if let Some(qp) = self.note_failure(self.timed_out()) {
            qp.abort();
        }
    }

    fn note_failure(&self, error: ConnectError) -> Option<Arc<QpInner>> {
        self.change(|inner, emitted| {
            if !inner.stage.is_set_up() {
                return None;
            }
            self.fails(inner, error, emitted);
            inner.qp.take()
        })
    }

    /// The set-up is over, whoever has found that out.
    fn fails(&self, inner: &mut Inner, error: ConnectError, emitted: &mut Emitted) {
        self.device.counters.setups_failed.count();
        let qp = inner.qp.as_ref().map(|qp| qp.number);
        tracing::debug!(target: SETUP, qp, %error, "set-up failed");
        inner.fail(error, emitted);
    }

    /// How the set-up ended, if it did. Gives the private data to whoever asks first.
    pub(crate) fn settled(&self) -> Option<Result<Settled, ConnectError>> {
        let mut inner = self.inner.lock();
        match &mut inner.stage {
            Stage::Established(agreement, private_data)
            | Stage::Closed(agreement, private_data, _) => Some(Ok(Settled {
                agreement: Arc::clone(agreement),
                private_data: std::mem::take(private_data),
            })),
            Stage::Failed(error) => Some(Err(ConnectError::clone(error))),
            Stage::Released | Stage::Refused => Some(Err(ConnectError::Cancelled)),
            _ => None,
        }
    }

    /// How the connection ended, if it did.
    pub(crate) fn close_reason(&self) -> Option<CloseReason> {
        self.look(|inner| match &inner.stage {
            Stage::Closed(_, _, reason) => Some(CloseReason::clone(reason)),
            _ => None,
        })
    }

    /// Ends an established connection in order; also one that has ended already (FC-047).
    pub(crate) fn disconnect(&self) -> Result<(), ConnectError> {
        super::check_origin(&self.device)?;
        let qp = self.look(|inner| match &inner.stage {
            Stage::Established(..) => Ok(inner.qp.clone()),
            Stage::Closed(..) => Ok(None),
            // FC-046
            other => Err(other.refuses("disconnect")),
        })?;
        if let Some(qp) = qp {
            qp.disconnect();
        }
        Ok(())
    }

    /// A fetched event of this id, to be held until the program has acknowledged it; `None` if the id is
    /// gone, and nobody is to hear of it any more.
    pub(crate) fn acknowledge_later(&self) -> Option<Ack> {
        self.look(|inner| inner.sink.as_ref().map(|sink| sink.unacked.issue()))
    }

    /// As [`release`](Self::release), and blocks until fetched events are acknowledged (FC-040). Fails if
    /// that was done before.
    pub(crate) fn destroy(&self) -> Result<(), ConnectError> {
        super::check_origin(&self.device)?;
        let unacked = self.look(|inner| match &inner.stage {
            released @ Stage::Released => Err(released.refuses("destroy")),
            _ => Ok(inner.sink.as_ref().map(|sink| Arc::clone(&sink.unacked))),
        })?;
        self.release();
        if let Some(unacked) = unacked {
            unacked.wait_none();
        }
        Ok(())
    }

    /// The last handle is gone: what was going on ends, and nothing is reported any more (FC-044).
    pub(crate) fn release(&self) {
        let (stage, qp, task, sink) = self.change(|inner, _| {
            let stage = std::mem::replace(&mut inner.stage, Stage::Released);
            (stage, inner.qp.take(), inner.task.take(), inner.sink.take())
        });
        if let Some(sink) = sink {
            sink.channel.purge(sink.id.as_ptr());
        }
        if let Some(task) = task {
            task.abort();
        }
        match stage {
            Stage::Requested(pending) => pending.decline_silently(&self.device),
            Stage::Connecting(_) | Stage::Replying(_) => {
                if let Some(qp) = qp {
                    qp.fail_setup();
                }
            }
            Stage::Opening(..) | Stage::Established(..) => {
                if let Some(qp) = qp {
                    qp.disconnect();
                }
            }
            Stage::Idle
            | Stage::Bound(_)
            | Stage::Listening(_)
            | Stage::Closed(..)
            | Stage::Failed(_)
            | Stage::Refused
            | Stage::Released => {}
        }
    }
}

impl Observer for Endpoint {
    fn established(&self) {
        self.change(Inner::establish);
    }

    fn closed(&self, cause: &CloseCause, _clean: bool) {
        let reason = CloseReason::from(cause);
        let qp = self.change(|inner, emitted| {
            if matches!(&inner.stage, Stage::Opening(_, agreement, _) if agreement.opens_at_once) {
                // It all happened before `started` could say so.
                inner.establish(emitted);
            }
            match std::mem::take(&mut inner.stage) {
                Stage::Established(agreement, private_data) => {
                    let peer = Some(agreement.peer);
                    let facts = Facts { peer, reason: Some(reason.clone()), ..Facts::default() };
                    inner.stage = Stage::Closed(agreement, private_data, Box::new(reason));
                    inner.emit(EventKind::Disconnected, facts, emitted);
                }
                // FC-045: what was never established does not disconnect.
                Stage::Opening(_, agreement, _) => {
                    let error = ConnectError::Ended { addr: agreement.peer, reason };
                    self.fails(inner, error, emitted);
                }
                other => inner.stage = other,
            }
            inner.task = None;
            inner.qp.take()
        });
        drop(qp);
    }
}

impl Inner {
    pub(crate) fn emit(&self, kind: EventKind, facts: Facts, emitted: &mut Emitted) {
        if let Some(Sink { channel, id, .. }) = &self.sink {
            channel.push(kind, Weak::clone(id), facts);
            emitted.wake(channel);
        }
    }

    /// From opening to established.
    fn establish(&mut self, emitted: &mut Emitted) {
        let (agreement, mut private_data) = match std::mem::take(&mut self.stage) {
            Stage::Opening(_, agreement, private_data) => (agreement, private_data),
            other => {
                self.stage = other;
                return;
            }
        };
        let mut facts = Facts {
            peer: Some(agreement.peer),
            initiator_depth: narrow(agreement.peer_ird),
            responder_resources: narrow(agreement.peer_ord),
            ..Facts::default()
        };
        if self.sink.is_some() {
            let told = std::mem::take(&mut private_data);
            // FC-013: the accepting side has had it with the request.
            if agreement.tells_private_data {
                facts.private_data = told.into();
            }
        }
        let Agreement { peer, local, ird, ord, revision, crc, .. } = *agreement;
        let qp = self.qp.as_ref().map(|qp| qp.number);
        tracing::debug!(
            target: SETUP, qp, %peer, %local, ird, ord, revision, crc, "connection established"
        );
        self.stage = Stage::Established(agreement, private_data);
        self.task = None;
        self.emit(EventKind::Established, facts, emitted);
    }

    fn fail(&mut self, error: ConnectError, emitted: &mut Emitted) {
        let facts = Facts {
            private_data: Bytes::copy_from_slice(error.private_data()),
            peer: error.peer(),
            status: Some(error.clone()),
            ..Facts::default()
        };
        let kind = EventKind::from(&error);
        self.stage = Stage::Failed(Box::new(error));
        self.task = None;
        self.emit(kind, facts, emitted);
    }
}

impl Stage {
    fn is_set_up(&self) -> bool {
        matches!(self, Self::Connecting(_) | Self::Replying(_) | Self::Opening(..))
    }

    pub(crate) fn local_addr(&self) -> Option<SocketAddr> {
        match self {
            Self::Bound(bound) => Some(bound.addr()),
            Self::Listening(acceptor) => Some(acceptor.addr()),
            Self::Requested(pending) => Some(pending.local),
            Self::Opening(_, agreement, _)
            | Self::Established(agreement, _)
            | Self::Closed(agreement, ..) => Some(agreement.local),
            _ => None,
        }
    }

    pub(crate) fn peer_addr(&self) -> Option<SocketAddr> {
        match self {
            Self::Requested(pending) => Some(pending.peer),
            Self::Connecting(attempt) | Self::Replying(attempt) => attempt.peer.parse().ok(),
            Self::Opening(_, agreement, _)
            | Self::Established(agreement, _)
            | Self::Closed(agreement, ..) => Some(agreement.peer),
            Self::Failed(error) => error.peer(),
            _ => None,
        }
    }

    /// The error of a call that this state does not allow (FC-046).
    pub(crate) fn refuses(&self, call: &'static str) -> ConnectError {
        ConnectError::State { call, state: self.describe() }
    }

    const fn describe(&self) -> &'static str {
        match self {
            Self::Idle => "it is neither bound nor connected",
            Self::Bound(_) => "it is only bound",
            Self::Listening(_) => "it listens",
            Self::Connecting(_) => "it is connecting",
            Self::Requested(_) => "its request has not been answered",
            Self::Replying(_) | Self::Opening(..) => "it is accepting",
            Self::Established(..) => "it is connected",
            Self::Closed(..) => "its connection is over",
            Self::Failed(_) => "its connection failed",
            Self::Refused => "its request was rejected",
            Self::Released => "it was given up",
        }
    }
}

impl Attempt {
    pub(crate) fn timed_out(&self) -> ConnectError {
        // Nobody wants to read nanoseconds.
        let elapsed = self.since.elapsed();
        let after = Duration::new(elapsed.as_secs(), elapsed.subsec_millis() * 1_000_000);
        ConnectError::TimedOut { peer: self.peer.clone(), phase: self.phase, after }
    }
}

impl fmt::Debug for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = self.look(|inner| inner.stage.describe());
        f.debug_struct("Endpoint").field("state", &state).finish_non_exhaustive()
    }
}
