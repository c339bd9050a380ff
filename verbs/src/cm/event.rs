//! Events of the verbs style, and the channel they come through.

use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use bytes::Bytes;
use event_listener::Listener as _;
use parking_lot::Mutex;
use tokio::sync::OwnedSemaphorePermit;

use super::close::CloseReason;
use super::endpoint::Handle;
use super::error::{ConnectError, Phase};
use super::id::Id;
use crate::device::{Device, DeviceInner};
use crate::error::Error;
use crate::event::Ack;
use crate::sys::Notifier;
use crate::users::{Use, Used, User, Users};

/// What happened. The numbers are those of `enum rdma_cm_event_type`.
///
/// `TIMEWAIT_EXIT` (15) is never raised, nor does it come from the kernel's iWARP: the system keeps the
/// ports of old connections, and neither an id nor a queue pair has to wait for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
#[repr(u32)]
pub enum EventKind {
    /// The name of the peer does not resolve.
    AddressError = 1,
    /// A peer asks for a connection; the event's id is new, and waits for `accept` or `reject`.
    ConnectRequest = 4,
    /// The connection failed in another way than the others name: the peer does not follow MPA, or the
    /// negotiation did not succeed.
    ConnectError = 6,
    /// No answer in time, or no way to the peer.
    Unreachable = 7,
    /// The peer refused: nothing listens there, or its program said no, or it closed before it replied.
    Rejected = 8,
    /// The connection is in use.
    Established = 9,
    /// The connection is over, whatever ended it. Once for each connection that was established.
    Disconnected = 10,
    /// The device has failed, and is of no more use. The last event of each id, behind that of whatever it
    /// was doing; see [`AsyncEventKind::DeviceFatal`](crate::AsyncEventKind::DeviceFatal).
    DeviceRemoval = 11,
}

/// One event of a connection, delivered once.
///
/// Dropping it, and every copy of it, acknowledges it: [`Id::destroy`] waits for that (FC-040). Only a
/// `ConnectRequest` holds up nobody: its new id and its listener may both be destroyed while it is
/// handled (FC-049).
#[derive(Clone, Debug)]
pub struct Event {
    /// What happened.
    pub kind: EventKind,
    /// To which id.
    pub id: Id,
    /// The listening id that an [`EventKind::ConnectRequest`] came through, while it exists. The event
    /// keeps it, and so the listener, as long as it is kept itself.
    pub listener: Option<Id>,
    /// Why, for an event that tells of a failed set-up.
    pub status: Option<ConnectError>,
    /// How the connection ended, for [`EventKind::Disconnected`].
    pub reason: Option<CloseReason>,
    /// What the peer's program sent along. Only `ConnectRequest`, `Rejected`, and `Established` at the
    /// connecting side, or at either side of an attached stream, have any (FC-013).
    pub private_data: Bytes,
    /// The peer's IRD, a ceiling for this side's ORD; 0 if it was not said (CONN-11). In a
    /// `ConnectRequest` it is the most that `ConnParam::ord` can get.
    pub initiator_depth: u16,
    /// The peer's ORD, which it wants from this side's IRD; 0 if it was not said (CONN-11).
    pub responder_resources: u16,
    /// The peer, once it is known.
    pub peer: Option<SocketAddr>,
    /// Acknowledges when dropped.
    _ack: Option<Ack>,
}

/// The fields of an event that do not keep its id alive.
#[derive(Debug, Default)]
pub(crate) struct Facts {
    pub(crate) status: Option<ConnectError>,
    pub(crate) reason: Option<CloseReason>,
    pub(crate) private_data: Bytes,
    pub(crate) initiator_depth: u16,
    pub(crate) responder_resources: u16,
    pub(crate) peer: Option<SocketAddr>,
}

/// Depths have 14 bits on the wire.
pub(crate) fn narrow(depth: Option<u32>) -> u16 {
    depth.map_or(0, |depth| u16::try_from(depth).unwrap_or(u16::MAX))
}

/// Where events are waited for, for any number of ids.
///
/// Its descriptor ([`AsFd`]) is readable while an event is there; it may be put into any poll set.
/// Clones name the same channel.
#[derive(Clone, Debug)]
pub struct EventChannel(pub(crate) Arc<ChannelInner>);

pub(crate) struct ChannelInner {
    pub(crate) device: Use<DeviceInner>,
    users: Users,
    /// Ids whose events come here, by their addresses.
    ids: Mutex<HashMap<usize, Weak<Handle>>>,
    queue: Mutex<VecDeque<Queued>>,
    notifier: Notifier,
    arrived: event_listener::Event,
}

impl Used for ChannelInner {
    const WHAT: &'static str = "event channel";

    fn users(&self) -> &Users {
        &self.users
    }
}

/// An event that nobody has fetched. It does not keep its id alive, except that of a new request, which
/// nobody else can.
struct Queued {
    kind: EventKind,
    subject: Subject,
    facts: Facts,
}

enum Subject {
    Known(Weak<Handle>),
    Request { id: Id, listener: Weak<Handle>, _room: OwnedSemaphorePermit },
}

impl EventChannel {
    /// An empty channel for ids of this device.
    pub fn new(device: &Device) -> Result<Self, Error> {
        let channel = Arc::new(ChannelInner {
            device: Use::begin(&device.0, User::EventChannel)?,
            users: Users::default(),
            ids: Mutex::default(),
            queue: Mutex::default(),
            notifier: Notifier::new(true)
                .map_err(|cause| Error::io("make a descriptor for events", cause))?,
            arrived: event_listener::Event::new(),
        });
        device.0.channels.add(&channel);
        Ok(Self(channel))
    }

    /// Gives the channel up for all handles. Never blocks.
    ///
    /// Not needed: the channel ends with its last user. Threads that wait for an event find that there is
    /// none; a task that does waits for ever.
    ///
    /// # Errors
    /// [`Error::Busy`] while ids report to it (requests that nobody has fetched among them, as long as
    /// their listener lives), [`Error::Destroyed`] the second time.
    pub fn destroy(self) -> Result<(), Error> {
        self.0.device.check_origin()?;
        self.0.users.destroy(ChannelInner::WHAT)?;
        self.0.device.end();
        self.0.wake();
        Ok(())
    }

    /// Takes the next event if there is one. Never blocks.
    #[must_use]
    pub fn get_event(&self) -> Option<Event> {
        self.0.pop()
    }

    /// Waits for the next event, at most for `timeout` if there is one; `None` when the time is over.
    pub fn wait_event(&self, timeout: impl Into<Option<Duration>>) -> Option<Event> {
        let deadline = timeout.into().and_then(|timeout| Instant::now().checked_add(timeout));
        loop {
            if let Some(event) = self.0.pop() {
                return Some(event);
            }
            if !self.0.device.origin.is_here() {
                return None;
            }
            let arrival = self.0.arrived.listen();
            if let Some(event) = self.0.pop() {
                return Some(event);
            }
            if self.0.users.is_destroyed() {
                return None;
            }
            match deadline {
                None => arrival.wait(),
                Some(deadline) => {
                    if arrival.wait_deadline(deadline).is_none() {
                        return self.0.pop();
                    }
                }
            }
        }
    }

    /// Waits for the next event. Works in any runtime. Cancel-safe: a dropped wait takes no event, and
    /// passes on its wake if it had one.
    pub async fn next(&self) -> Event {
        loop {
            if let Some(event) = self.0.pop() {
                return event;
            }
            let arrival = self.0.arrived.listen();
            if let Some(event) = self.0.pop() {
                return event;
            }
            arrival.await;
        }
    }
}

/// The channels of a device, whose ids are told when it fails.
#[derive(Debug, Default)]
pub(crate) struct Channels(Mutex<Vec<Weak<ChannelInner>>>);

impl Channels {
    fn add(&self, channel: &Arc<ChannelInner>) {
        let mut channels = self.0.lock();
        channels.retain(|channel| channel.strong_count() > 0);
        channels.push(Arc::downgrade(channel));
    }

    /// The device has failed: each id hears of it.
    pub(crate) fn device_failed(&self) {
        let channels: Vec<_> = self.0.lock().iter().filter_map(Weak::upgrade).collect();
        for channel in channels {
            let ids: Vec<_> = channel.ids.lock().values().filter_map(Weak::upgrade).collect();
            for id in ids {
                id.0.device_removed();
            }
        }
    }
}

impl ChannelInner {
    /// The events of an id come here from now on.
    pub(crate) fn enroll(&self, id: &Weak<Handle>) {
        self.ids.lock().insert(id.as_ptr().addr(), Weak::clone(id));
    }

    /// ... and no more.
    pub(crate) fn dismiss(&self, id: &Weak<Handle>) {
        self.ids.lock().remove(&id.as_ptr().addr());
    }

    /// Queues an event of an id that its program holds.
    pub(crate) fn push(&self, kind: EventKind, id: Weak<Handle>, facts: Facts) {
        self.append(Queued { kind, subject: Subject::Known(id), facts });
    }

    /// Queues a request, which holds its room in the listener's backlog until it is fetched.
    pub(crate) fn push_request(
        &self,
        id: Id,
        listener: Weak<Handle>,
        room: OwnedSemaphorePermit,
        facts: Facts,
    ) {
        let subject = Subject::Request { id, listener, _room: room };
        self.append(Queued { kind: EventKind::ConnectRequest, subject, facts });
    }

    fn append(&self, queued: Queued) {
        {
            let mut queue = self.queue.lock();
            queue.push_back(queued);
            // Inside, so that the descriptor never says more or less than the queue holds.
            // The queue is the truth; a notification that failed costs a poll set its wake.
            let _ = self.notifier.notify(1);
        }
    }

    /// Wakes a waiter; after [`push`](Self::push), when no lock is held.
    pub(crate) fn wake(&self) {
        self.arrived.notify(usize::MAX);
    }

    fn pop(&self) -> Option<Event> {
        if !self.device.origin.is_here() {
            // FC-064: the parent's.
            return None;
        }
        loop {
            let queued = {
                let mut queue = self.queue.lock();
                let queued = queue.pop_front()?;
                let _ = self.notifier.try_take();
                queued
            };
            // An id that is gone takes its events along; its drop may be about to remove this one.
            if let Some(event) = queued.into_event() {
                return Some(event);
            }
        }
    }

    /// Takes out what is queued for an id, and the requests that came through it.
    pub(crate) fn purge(&self, id: *const Handle) {
        // Dropping a request's id comes back here, so that happens when the lock is released.
        let _dropped = self.extract(id);
    }

    /// Takes over what is queued for an id elsewhere, and the new ids of requests with it.
    pub(crate) fn adopt(self: &Arc<Self>, from: &Self, id: *const Handle) {
        for queued in from.extract(id) {
            if let Subject::Request { id: request, .. } = &queued.subject {
                request.report_to(self);
            }
            self.append(queued);
        }
    }

    fn extract(&self, id: *const Handle) -> Vec<Queued> {
        let mut queue = self.queue.lock();
        let (taken, kept) = std::mem::take(&mut *queue)
            .into_iter()
            .partition::<Vec<_>, _>(|queued| queued.concerns(id));
        *queue = kept.into();
        for _ in &taken {
            let _ = self.notifier.try_take();
        }
        taken
    }
}

impl Queued {
    fn concerns(&self, subject: *const Handle) -> bool {
        match &self.subject {
            Subject::Known(id) => std::ptr::eq(id.as_ptr(), subject),
            Subject::Request { id, listener, .. } => {
                std::ptr::eq(Arc::as_ptr(&id.0), subject)
                    || std::ptr::eq(listener.as_ptr(), subject)
            }
        }
    }

    fn into_event(self) -> Option<Event> {
        let (id, listener, ack) = match self.subject {
            Subject::Known(id) => {
                let id = Id(id.upgrade()?);
                // Destroyed since the event was taken out of the queue.
                let ack = id.0.0.acknowledge_later()?;
                (id, None, Some(ack))
            }
            Subject::Request { id, listener, .. } => (id, listener.upgrade().map(Id), None),
        };
        let Facts { status, reason, private_data, initiator_depth, responder_resources, peer } =
            self.facts;
        Some(Event {
            kind: self.kind,
            id,
            listener,
            status,
            reason,
            private_data,
            initiator_depth,
            responder_resources,
            peer,
            _ack: ack,
        })
    }
}

impl AsFd for EventChannel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.notifier.as_fd()
    }
}

impl fmt::Debug for ChannelInner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EventChannel")
            .field("queued", &self.queue.lock().len())
            .finish_non_exhaustive()
    }
}

impl From<&ConnectError> for EventKind {
    /// The event that tells of a failed set-up (FC-051).
    fn from(error: &ConnectError) -> Self {
        match error {
            ConnectError::Address { .. } | ConnectError::Resolve { .. } => Self::AddressError,
            ConnectError::Refused { .. }
            | ConnectError::Rejected { .. }
            | ConnectError::Closed { phase: Phase::Resolve | Phase::Tcp | Phase::Reply, .. } => {
                Self::Rejected
            }
            ConnectError::Unreachable { .. } | ConnectError::TimedOut { .. } => Self::Unreachable,
            // FC-045: an initiator that leaves is no rejection.
            ConnectError::Closed { .. }
            | ConnectError::Bind { .. }
            | ConnectError::Protocol { .. }
            | ConnectError::InsufficientIrd { .. }
            | ConnectError::NoCommonRtr { .. }
            | ConnectError::Ended { .. }
            | ConnectError::Param(_)
            | ConnectError::Local { .. }
            | ConnectError::QueuePair(_)
            | ConnectError::State { .. }
            | ConnectError::Depth { .. }
            | ConnectError::Driver(_)
            | ConnectError::NotConnected(_)
            | ConnectError::Forked
            | ConnectError::NoRequest { .. }
            | ConnectError::Cancelled => Self::ConnectError,
        }
    }
}
