//! The device: what everything else is made from.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use crate::capture::Capture;
use crate::channel::CompletionChannel;
use crate::cm::{Channels, Handshakes};
pub(crate) use crate::config::{DeviceConfig, DeviceLimits};
use crate::cq::{CompletionQueue, CqInner};
use crate::engine::driver::Driver;
use crate::error::Error;
use crate::event::AsyncEvent;
use crate::event::AsyncEvents;
use crate::mem::Origin;
use crate::pd::{PdInner, ProtectionDomain};
use crate::stats::{DeviceCounters, DeviceStats, Past, QpStats};
use crate::sys::Sockets;
use crate::users::{Use, Used, User, Users};
use crate::wr::MESSAGE_MAX;

/// An iWARP device made of software: all TCP of this host is its network.
///
/// A handle, cheap to clone; its objects keep it alive. Opening starts no thread: the first connection
/// starts the driver, the thread that moves connections when no call of the program does.
///
/// # After `fork`
///
/// A child has copies of its parent's objects, but the connections are the parent's alone, and go on there
/// undisturbed (FC-064). Calls with these objects fail in the child with [`Error::Forked`] and its like in
/// [`PostErrorCause`](crate::PostErrorCause::Forked) and [`ConnectError`](crate::cm::ConnectError::Forked), or
/// find nothing where there is no error to give; dropping them closes nothing. Their memory is the child's
/// own copy, as all other memory is. A child that opens a device of its own has all that a new process has;
/// keys and queue pair numbers are drawn anew. Descriptors are closed when another program is executed.
/// Not to be done: to fork in one thread while another one is making, destroying or closing things, and to
/// use or to drop just these in the child.
#[derive(Debug, Clone)]
pub struct Device(pub(crate) Arc<DeviceInner>);

/// What all objects of a device share.
#[derive(Debug)]
pub(crate) struct DeviceInner {
    pub(crate) config: DeviceConfig,
    /// The process that opened it.
    pub(crate) origin: Origin,
    pub(crate) handshakes: Arc<Handshakes>,
    pub(crate) counters: DeviceCounters,
    pub(crate) sockets: Sockets,
    /// Channels of connection events.
    pub(crate) channels: Arc<Channels>,
    past: Mutex<Past>,
    driver: Driver,
    events: Arc<AsyncEvents>,
    users: Users,
    /// Number of the next completion queue, for logs.
    next_cq: AtomicU32,
    /// Number of the next shared receive queue, for logs.
    next_srq: AtomicU32,
}

impl DeviceInner {
    pub(crate) fn new(config: DeviceConfig) -> Result<Arc<Self>, Error> {
        config.check()?;
        let capture = config.pcap.as_deref().map(Capture::open).transpose();
        let capture = capture.map_err(|error| Error::io("begin the capture file", error))?;
        let events =
            AsyncEvents::new().map_err(|error| Error::io("make a descriptor for events", error))?;
        let (events, channels) = (Arc::new(events), Arc::<Channels>::default());
        Ok(Arc::new(Self {
            handshakes: Handshakes::new(config.max_pending_handshakes),
            origin: Origin::here(),
            counters: DeviceCounters::default(),
            past: Mutex::default(),
            sockets: Sockets::new(config.network.clone(), capture),
            driver: Driver::new(config.memory_budget, Arc::clone(&events), Arc::clone(&channels)),
            channels,
            events,
            next_cq: AtomicU32::new(0),
            users: Users::default(),
            next_srq: AtomicU32::new(0),
            config,
        }))
    }

    /// Fails in a process that was forked from the one that opened the device (FC-064).
    pub(crate) fn check_origin(&self) -> Result<(), Error> {
        if self.origin.is_here() { Ok(()) } else { Err(Error::Forked) }
    }

    /// What moves connections when nobody else does.
    #[inline]
    pub(crate) fn driver(&self) -> &Driver {
        &self.driver
    }

    pub(crate) fn events(&self) -> &AsyncEvents {
        &self.events
    }

    /// Drops events about a queue pair that nobody has fetched.
    pub(crate) fn bury_qp_events(&self, number: u32) {
        self.events.bury_qp(number);
    }

    /// Drops what was not fetched about a queue pair that is being destroyed.
    pub(crate) fn forget_qp_events(&self, number: u32) {
        self.events.forget_qp(number);
    }

    /// Blocks until all fetched events about a queue pair are acknowledged (FC-040).
    pub(crate) fn wait_qp_acked(&self, number: u32) {
        self.events.wait_qp_acked(number);
    }

    /// A connection is over that has counted this.
    pub(crate) fn add_past(&self, stats: &QpStats) {
        let mut past = self.past.lock();
        past.total.add(stats);
        past.ended += 1;
    }

    pub(crate) fn number_cq(&self) -> u32 {
        self.next_cq.fetch_add(1, Ordering::Relaxed)
    }

    pub(crate) fn number_srq(&self) -> u32 {
        self.next_srq.fetch_add(1, Ordering::Relaxed)
    }
}

impl Used for DeviceInner {
    const WHAT: &'static str = "device";

    fn users(&self) -> &Users {
        &self.users
    }
}

impl Device {
    /// Opens a device. Several may be open in one process; objects of one cannot be used with another.
    ///
    /// Takes one descriptor, starts no thread.
    ///
    /// # Errors
    /// [`Error::Config`] if the settings contradict each other, [`Error::Io`] if there is no descriptor.
    pub fn open(config: DeviceConfig) -> Result<Self, Error> {
        DeviceInner::new(config).map(Self)
    }

    /// Makes a protection domain. One of a device that was destroyed is as good as destroyed itself.
    #[must_use]
    pub fn alloc_pd(&self) -> ProtectionDomain {
        ProtectionDomain(PdInner::new(&self.0))
    }

    /// Makes a completion queue for at least `entries` completions.
    ///
    /// Memory is taken as entries are used, descriptors when somebody first waits on the queue.
    ///
    /// # Errors
    /// [`Error::Limit`] beyond [`DeviceLimits::max_cqe`] (FC-043), [`Error::Empty`] for 0,
    /// [`Error::Destroyed`] if the device is.
    pub fn create_cq(&self, entries: u32) -> Result<CompletionQueue, Error> {
        self.0.check_origin()?;
        CqInner::new(&self.0, entries, None).map(CompletionQueue::from_inner)
    }

    /// Makes a completion queue that tells `channel` when it was armed and something completes.
    ///
    /// # Errors
    /// As [`create_cq`](Self::create_cq), and [`Error::ForeignDevice`] for a channel of another device, or
    /// [`Error::Destroyed`] for one that was destroyed.
    pub fn create_cq_with_channel(
        &self,
        entries: u32,
        channel: &CompletionChannel,
    ) -> Result<CompletionQueue, Error> {
        self.0.check_origin()?;
        if !Arc::ptr_eq(&channel.inner().device, &self.0) {
            return Err(Error::ForeignDevice { what: "completion channel" });
        }
        let channel = Use::begin(channel.inner(), User::CompletionQueue)?;
        CqInner::new(&self.0, entries, Some(channel)).map(CompletionQueue::from_inner)
    }

    /// Makes a completion channel. Takes one descriptor.
    ///
    /// # Errors
    /// [`Error::Io`] if there is no descriptor, [`Error::Destroyed`] if the device is.
    pub fn create_channel(&self) -> Result<CompletionChannel, Error> {
        self.0.check_origin()?;
        CompletionChannel::new(&self.0)
    }

    /// What the device offers. Each limit can be used in full, as far as memory goes.
    #[must_use]
    pub fn attributes(&self) -> DeviceAttributes {
        let config = &self.0.config;
        DeviceAttributes {
            limits: config.limits,
            max_ird: config.max_ird.into(),
            max_ord: config.max_ord.into(),
            max_message: MESSAGE_MAX,
            atomics: if config.extensions { AtomicScope::Global } else { AtomicScope::None },
        }
    }

    /// The settings it was opened with.
    #[must_use]
    pub fn config(&self) -> &DeviceConfig {
        &self.0.config
    }

    /// What has happened so far, and what is held now.
    #[must_use]
    pub fn stats(&self) -> DeviceStats {
        let inner = &*self.0;
        let counters = &inner.counters;
        DeviceStats {
            connections: counters.connections.get(),
            requests_received: counters.requests_received.get(),
            requests_rejected: counters.requests_rejected.get(),
            setups_failed: counters.setups_failed.get(),
            terminates_sent: counters.terminates_sent.get(),
            terminates_received: counters.terminates_received.get(),
            connections_lost: counters.connections_lost.get(),
            cq_overruns: counters.cq_overruns.get(),
            driver_retries: inner.driver().retries(),
            capture_lost: inner.sockets.capture_lost(),
            memory_in_use: inner.driver().budget().used() as u64,
        }
    }

    /// What all connections so far have done, as a sum. Waits for the passes that may be running, one by one, so it
    /// takes longer the more connections there are.
    #[must_use]
    pub fn traffic(&self) -> QpStats {
        let past = || {
            let past = self.0.past.lock();
            (past.ended, past.total)
        };
        loop {
            let (before, mut sum) = past();
            for qp in self.0.driver().connected() {
                sum.add(&qp.live_stats());
            }
            // One that has ended meanwhile may be in neither.
            if past().0 == before {
                return sum;
            }
        }
    }

    /// A descriptor that is readable while an event can be fetched. It never blocks.
    #[must_use]
    pub fn async_fd(&self) -> BorrowedFd<'_> {
        self.0.events.as_fd()
    }

    /// The next asynchronous event, if there is one. Never blocks; to wait for it together with other
    /// things, poll [`async_fd`](Self::async_fd).
    ///
    /// # Errors
    /// [`Error::Io`] if the descriptor cannot be read, which is not to be expected; [`Error::Destroyed`] if there
    /// is none and the device was destroyed.
    pub fn next_async_event(&self) -> Result<Option<AsyncEvent>, Error> {
        self.0.check_origin()?;
        self.event_or_end(self.0.events.next())
    }

    /// Waits for the next asynchronous event, at most for `timeout` if there is one. `None`: the time is
    /// over.
    ///
    /// Blocks the calling thread. When several threads or tasks wait, each event goes to one of them.
    ///
    /// # Errors
    /// As [`next_async_event`](Self::next_async_event), also if the device is destroyed meanwhile.
    pub fn wait_async_event(
        &self,
        timeout: impl Into<Option<Duration>>,
    ) -> Result<Option<AsyncEvent>, Error> {
        // A time that cannot be expressed never comes.
        let deadline = timeout.into().and_then(|timeout| Instant::now().checked_add(timeout));
        self.0.check_origin()?;
        self.event_or_end(self.0.events.wait(deadline))
    }

    /// Waits for the next asynchronous event in a task of any runtime.
    ///
    /// Cancel-safe: a dropped call takes no event, and if it was to be woken, another waiter is.
    ///
    /// # Errors
    /// As [`wait_async_event`](Self::wait_async_event).
    pub async fn async_event(&self) -> Result<AsyncEvent, Error> {
        self.0.check_origin()?;
        let event = self.event_or_end(self.0.events.arrival().await)?;
        event.ok_or(Error::Destroyed { what: DeviceInner::WHAT })
    }

    fn event_or_end(
        &self,
        event: io::Result<Option<AsyncEvent>>,
    ) -> Result<Option<AsyncEvent>, Error> {
        match event.map_err(events_failed)? {
            None if self.0.users.is_destroyed() => {
                Err(Error::Destroyed { what: DeviceInner::WHAT })
            }
            event => Ok(event),
        }
    }

    /// Closes the device for all handles, and stops its thread.
    ///
    /// Not needed: a device ends with its last object. Blocks until the connections of queue pairs that were
    /// destroyed or dropped are over, and until peers have the rejections of their requests, each of which has
    /// a time limit ([`DeviceConfig::close_grace`]), and until the thread has ended. Whoever waits for an event is told then.
    ///
    /// # Errors
    /// [`Error::Busy`] while objects that were made from it exist, with the kind that has to go first;
    /// [`Error::Destroyed`] the second time.
    pub fn destroy(self) -> Result<(), Error> {
        self.0.check_origin()?;
        self.0.users.destroy(DeviceInner::WHAT)?;
        self.0.driver.stop();
        self.0.events.close();
        Ok(())
    }
}

fn events_failed(error: io::Error) -> Error {
    Error::io("read the descriptor for events", error)
}

/// What a device offers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct DeviceAttributes {
    /// Limits of single objects.
    pub limits: DeviceLimits,
    /// Largest IRD of a connection.
    pub max_ird: u32,
    /// Largest ORD of a connection.
    pub max_ord: u32,
    /// Octets of the longest message.
    pub max_message: u32,
    /// What Atomics are atomic with.
    pub atomics: AtomicScope,
}

/// What the Atomics of a device are atomic with. The integers are those of `enum ibv_atomic_cap`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u32)]
#[non_exhaustive]
pub enum AtomicScope {
    /// There are none: the extensions of RFC 7306 are [switched off](DeviceConfig::extensions).
    None = 0,
    /// With each other on one device. Not what this library offers.
    Device = 1,
    /// With each other on all devices of the process, and with atomic accesses of its processor.
    Global = 2,
}

impl AtomicScope {
    /// The integer libibverbs uses for this scope.
    #[must_use]
    pub const fn value(self) -> u32 {
        self as u32
    }
}
