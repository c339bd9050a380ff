//! Completion channels: a descriptor that tells of completion queues.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use crate::cq::{CompletionQueue, CqInner};
use crate::device::DeviceInner;
use crate::error::Error;
use crate::event::Ack;
use crate::sys::{Notifier, wait_readable};
use crate::users::{Use, Used, User, Users};

/// A completion channel: tells which of its completion queues have something, once for each time they
/// were armed.
///
/// A handle, cheap to clone. Its descriptor is readable as long as an event can be fetched, so it can be
/// watched together with others, by level or by edge (FC-037). The way to use it:
///
/// 1. [`arm`](CompletionQueue::arm) the queue,
/// 2. poll it until nothing is left: what came before the arming gives no event,
/// 3. wait for an event, and begin anew.
///
/// An event may come although its completion was polled meanwhile. A channel costs a system call and a
/// thread's wake-up more than [`CompletionQueue::wait`].
#[derive(Debug, Clone)]
pub struct CompletionChannel(Arc<ChannelInner>);

/// What all handles of a completion channel share.
#[derive(Debug)]
pub(crate) struct ChannelInner {
    pub(crate) device: Use<DeviceInner>,
    users: Users,
    /// One notification for each event, so that one read takes one event.
    notifier: Notifier,
    /// An event that nobody fetches keeps no queue alive.
    events: Mutex<VecDeque<Weak<CqInner>>>,
}

impl Used for ChannelInner {
    const WHAT: &'static str = "completion channel";

    fn users(&self) -> &Users {
        &self.users
    }
}

impl ChannelInner {
    /// Appends `n` events about a queue. No lock is held.
    pub(crate) fn tell(&self, cq: &Arc<CqInner>, n: u64) {
        {
            let mut events = self.events.lock();
            (0..n).for_each(|_| events.push_back(Arc::downgrade(cq)));
        }
        // After the events, so that whoever finds the descriptor readable finds them too.
        if let Err(error) = self.notifier.notify(n) {
            tracing::error!(%error, "completion event without notice");
        }
    }

    fn get(&self) -> io::Result<Option<CqEvent>> {
        while self.notifier.try_take()?.is_some() {
            let cq = self.events.lock().pop_front().and_then(|cq| cq.upgrade());
            // Those about queues that are gone are dropped (FC-040).
            // Counted first, and then looked at: a destruction that is under way either waits for this event,
            // or is seen here.
            let Some(cq) = cq else { continue };
            let ack = cq.unacked().issue();
            if !cq.is_destroyed() {
                return Ok(Some(CqEvent { cq: CompletionQueue::from_inner(cq), ack }));
            }
        }
        Ok(None)
    }
}

impl CompletionChannel {
    pub(crate) fn new(device: &Arc<DeviceInner>) -> Result<Self, Error> {
        let notifier = Notifier::new(true)
            .map_err(|error| Error::io("make a descriptor for a completion channel", error))?;
        Ok(Self(Arc::new(ChannelInner {
            device: Use::begin(device, User::CompletionChannel)?,
            users: Users::default(),
            notifier,
            events: Mutex::default(),
        })))
    }

    pub(crate) fn inner(&self) -> &Arc<ChannelInner> {
        &self.0
    }

    /// The next event, if there is one. Never blocks.
    ///
    /// # Errors
    /// [`Error::Io`] if the descriptor cannot be read, which is not to be expected; [`Error::Destroyed`] if
    /// the channel is.
    pub fn get_event(&self) -> Result<Option<CqEvent>, Error> {
        self.0.device.check_origin()?;
        if self.0.users.is_destroyed() {
            return Err(Error::Destroyed { what: ChannelInner::WHAT });
        }
        self.0.get().map_err(|error| Error::io("read a completion channel", error))
    }

    /// Waits for an event, at most for `timeout` if there is one. `None`: the time is over.
    ///
    /// Blocks the calling thread. When several threads wait, each event goes to one of them.
    ///
    /// # Errors
    /// As [`get_event`](Self::get_event), also if the channel is destroyed meanwhile.
    pub fn wait_event(
        &self,
        timeout: impl Into<Option<Duration>>,
    ) -> Result<Option<CqEvent>, Error> {
        // A time that cannot be expressed never comes.
        let deadline = timeout.into().and_then(|timeout| Instant::now().checked_add(timeout));
        loop {
            if let Some(event) = self.get_event()? {
                return Ok(Some(event));
            }
            let more = wait_readable(self.as_fd(), deadline)
                .map_err(|error| Error::io("wait for a completion channel", error))?;
            if !more {
                return Ok(None);
            }
        }
    }

    /// Gives the channel up for all handles, unless something uses it. Whoever waits for an event gets an
    /// error.
    ///
    /// Not needed: the channel ends with its last user.
    ///
    /// # Errors
    /// [`Error::Busy`] while completion queues use it, [`Error::Destroyed`] the second time.
    pub fn destroy(self) -> Result<(), Error> {
        self.0.device.check_origin()?;
        self.0.users.destroy(ChannelInner::WHAT)?;
        self.0.device.end();
        // Nobody takes this notice, so it wakes all who sleep, and whoever comes.
        self.0.notifier.notify(1).map_err(|error| Error::io("wake a completion channel", error))
    }
}

impl AsFd for CompletionChannel {
    /// Readable as long as an event can be fetched. To be polled only: reading it takes an event that
    /// nobody will see.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.notifier.as_fd()
    }
}

/// A completion queue was armed, and something completed.
///
/// Dropping it acknowledges it; [`CompletionQueue::destroy`] waits for that (FC-040).
#[derive(Debug)]
pub struct CqEvent {
    cq: CompletionQueue,
    /// Acknowledges when dropped.
    ack: Ack,
}

impl CqEvent {
    /// The queue.
    #[must_use]
    pub fn cq(&self) -> &CompletionQueue {
        &self.cq
    }

    /// Acknowledges, and gives the queue.
    #[must_use]
    pub fn ack(self) -> CompletionQueue {
        self.cq
    }
    /// Gives the queue without acknowledging: [`CompletionQueue::ack_events`] has to be called some day, for
    /// any number of events at once, and the destruction of the queue waits for that.
    #[must_use = "the queue is to be told of the acknowledgement"]
    pub fn into_unacknowledged(self) -> CompletionQueue {
        self.ack.leave();
        self.cq
    }
}
