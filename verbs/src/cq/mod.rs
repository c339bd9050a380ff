//! Completion queues.
//!
//! | file | holds |
//! |---|---|
//! | `ring.rs`, `slots.rs` | completions in order; the places that polling them gives back |
//! | `hand.rs` | completions that go to a poll past the ring |
//! | `members.rs` | the queue pairs that report here, and which of them a poll tries |
//! | `lease.rs` | the word that keeps the driver away while a program polls |
//! | `wait.rs`, `gate.rs`, `reactor.rs` | sleeping threads and awaiting tasks |
//! | `wakes.rs` | who is told of new completions, once no lock is held |
//!
//! # Locks
//!
//! The ring's lock is taken inside of passes, with an engine held, and holds nobody up: nothing is called
//! under it. The lock of the members comes before that of the active ones. No lock of this module is held
//! while a queue pair is driven, a waker is called, or a descriptor is written.

mod gate;
mod hand;
mod lease;
mod members;
mod reactor;
mod ring;
mod slots;
#[cfg(all(test, not(loom)))]
mod tests;
mod wait;
mod wakes;

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Weak};

use event_listener::Event;
use parking_lot::Mutex;

use self::gate::Gate;
pub(crate) use self::hand::Hand;
pub(crate) use self::lease::Lease;
use self::members::Members;
use self::reactor::Reactors;
pub(crate) use self::ring::Cqe;
use self::ring::{Awaited, Pushed, Ring, tell};
pub(crate) use self::slots::QueueSlots;
use self::wait::Spins;
use self::wakes::News;
pub(crate) use self::wakes::Wakes;
use crate::channel::ChannelInner;
use crate::cq_arm::{Armed, Notify};
use crate::device::{Device, DeviceInner};
use crate::error::Error;
use crate::event::Unacked;
use crate::qp::QpInner;
use crate::sys::Socket;
use crate::users::{Use, User};
use crate::wc::WorkCompletion;

/// The queue has overrun. No ring is so long.
const BROKEN: u32 = 1 << 31;

/// Room that [`CompletionQueue::poll`] makes in a vector that has none.
const POLL_ROOM: usize = 16;

/// A completion queue: where work requests are reported when they are done.
///
/// A handle, cheap to clone; all methods may be called from any thread. Each completion is handed out
/// once, to whichever call comes first. Completions of one work queue come in the order of posting;
/// between queues there is no order.
///
/// There are four ways to learn of completions, which may be mixed:
///
/// - [`poll`](Self::poll) and [`poll_one`](Self::poll_one) never block. If there is nothing, they read the
///   sockets of the queue's connections themselves: a program that polls in a loop gets the shortest
///   latency there is, and the library's own thread stays asleep.
/// - [`wait`](Self::wait) sleeps on the sockets, in the calling thread.
/// - [`next`](Self::next) does the same for a task.
/// - [`arm`](Self::arm) has a [`CompletionChannel`](crate::CompletionChannel) told, whose descriptor a
///   program can watch together with others.
///
/// Connections move forward whether or not anybody calls any of these.
///
/// # Overrun
///
/// A completion that finds the queue full breaks it: what is stored stays and can be polled, that
/// completion and all later ones are lost, [`AsyncEventKind::CqErr`](crate::AsyncEventKind::CqErr) is raised
/// and the queue pairs that report here go to the error state (FC-042). A queue with as many entries as
/// its queue pairs can have requests outstanding cannot overrun.
#[derive(Debug, Clone)]
pub struct CompletionQueue(Arc<CqInner>);

/// What all handles of a completion queue share.
pub(crate) struct CqInner {
    me: Weak<Self>,
    pub(crate) device: Use<DeviceInner>,
    number: u32,
    /// Changed with the ring locked.
    capacity: AtomicU32,
    ring: Gate<Ring>,
    /// Entries of the ring, for polls to see without a lock that there are none; and [`BROKEN`].
    stored: AtomicU32,
    armed: Armed,
    channel: Option<Use<ChannelInner>>,
    /// Notified for tasks that await completions.
    told: Event,
    members: Members,
    reactors: Reactors,
    lease: Lease,
    spins: Spins,
    unacked: Arc<Unacked>,
    /// Queue pairs being made; `destroyed` is only set while there are none.
    holds: Mutex<Holds>,
    destroyed: AtomicBool,
}

#[derive(Debug, Default)]
struct Holds {
    count: usize,
    destroyed: bool,
}

/// Keeps a completion queue from being destroyed.
#[derive(Debug)]
pub(crate) struct Hold<'a>(&'a CqInner);

impl Drop for Hold<'_> {
    fn drop(&mut self) {
        self.0.holds.lock().count -= 1;
    }
}

impl CqInner {
    pub(crate) fn new(
        device: &Arc<DeviceInner>,
        entries: u32,
        channel: Option<Use<ChannelInner>>,
    ) -> Result<Arc<Self>, Error> {
        check_size(device, entries)?;
        let number = device.number_cq();
        let device = Use::begin(device, User::CompletionQueue)?;
        Ok(Arc::new_cyclic(|me| Self {
            me: Weak::clone(me),
            device,
            number,
            capacity: AtomicU32::new(entries),
            ring: Gate::new(Ring::new(entries)),
            stored: AtomicU32::new(0),
            armed: Armed::new(),
            channel,
            told: Event::new(),
            members: Members::default(),
            reactors: Reactors::default(),
            lease: Lease::default(),
            spins: Spins::default(),
            unacked: Arc::default(),
            holds: Mutex::default(),
            destroyed: AtomicBool::new(false),
        }))
    }

    /// Stores a completion and notes whom to tell. Never blocks, and calls nothing of the program's.
    ///
    /// Completions of one work queue must be pushed one after the other, in order.
    pub(crate) fn push(&self, cqe: Cqe<'_>, wakes: &mut Wakes) {
        let Cqe { wc, solicited_event, release } = cqe;
        let mut awaited = Awaited::new();
        let (pushed, waiting) = self.ring.change(|ring| {
            let pushed = ring.push(wc, release, &mut awaited);
            self.count(ring);
            pushed
        });
        tell(awaited);
        if pushed == Pushed::Dropped {
            return;
        }
        // After the completion is stored. An overrun is an error, so it satisfies any request.
        let overrun = pushed == Pushed::Overrun;
        let fired = self.fires(solicited_event || overrun);
        let news = News {
            threads: waiting.threads,
            tasks: match (waiting.tasks, overrun) {
                (false, _) => 0,
                (true, false) => 1,
                // All of them: there will be no completion for the others.
                (true, true) => usize::MAX,
            },
            events: u64::from(fired),
            overrun,
        };
        if !news.is_none() {
            self.add(news, wakes);
        }
    }

    /// Whether the queue was armed for such a completion, which it is not any more.
    #[inline]
    fn fires(&self, solicited_event: bool) -> bool {
        self.channel.is_some() && self.armed.take_on_push(solicited_event)
    }

    fn add(&self, news: News, wakes: &mut Wakes) {
        if let Some(me) = self.me.upgrade() {
            wakes.add(&me, news);
        }
    }

    /// Whether there are more connections than an empty poll tries.
    #[inline]
    pub(crate) fn is_crowded(&self) -> bool {
        self.members.is_crowded()
    }

    /// Whether there may be connections that those who poll or wait do not see.
    pub(crate) fn is_blind(&self) -> bool {
        self.members.are_blind()
    }

    /// As if the system had refused a descriptor.
    #[cfg(test)]
    pub(crate) fn go_blind(&self) {
        self.members.go_blind();
    }

    /// Whether more than one connection reports here.
    #[inline]
    pub(crate) fn has_several(&self) -> bool {
        self.members.are_several()
    }

    /// Makes a queue pair report here; once for each of its work queues that does.
    pub(crate) fn attach(&self, qp: &Arc<QpInner>) {
        self.members.attach(qp);
    }

    /// Ends what one [`attach`](Self::attach) began.
    pub(crate) fn detach(&self, qp: &QpInner) {
        self.members.detach(qp.number);
    }

    /// An attached queue pair is connected now.
    pub(crate) fn socket_added(&self, qp: &QpInner, socket: &Arc<Socket>) {
        self.members.socket_added(qp.number, socket);
    }

    /// An attached queue pair is not connected any more; to be called before the socket is closed. No
    /// reference to the socket is kept.
    pub(crate) fn socket_removed(&self, qp: &QpInner) {
        self.members.socket_removed(qp.number);
    }

    /// Sees that the next polls drive this queue pair: it has something to do, or soon will.
    #[inline]
    pub(crate) fn offer(&self, qp: &Arc<QpInner>) {
        self.members.offer(qp);
    }

    pub(crate) fn lease(&self) -> &Lease {
        &self.lease
    }

    /// Throws away the completions of a queue pair that is being destroyed.
    pub(crate) fn purge(&self, qp_number: u32) {
        let mut awaited = Awaited::new();
        {
            let mut ring = self.ring.lock();
            ring.purge(qp_number, &mut awaited);
            self.count(&ring);
        }
        tell(awaited);
    }

    /// Throws away all completions. The places of a shared receive queue that they hold are wanted still.
    fn clear(&self) {
        let mut awaited = Awaited::new();
        {
            let mut ring = self.ring.lock();
            ring.clear(&mut awaited);
            self.count(&ring);
        }
        tell(awaited);
    }

    /// Keeps the queue from being destroyed while a queue pair is made that will report to it.
    pub(crate) fn hold(&self) -> Option<Hold<'_>> {
        let mut holds = self.holds.lock();
        if holds.destroyed {
            return None;
        }
        holds.count += 1;
        Some(Hold(self))
    }

    pub(crate) fn is_destroyed(&self) -> bool {
        self.destroyed.load(Ordering::Acquire)
    }

    pub(crate) fn unacked(&self) -> &Arc<Unacked> {
        &self.unacked
    }

    fn capacity(&self) -> u32 {
        self.capacity.load(Ordering::Relaxed)
    }

    fn resize(&self, entries: u32) -> Result<(), Error> {
        self.device.check_origin()?;
        check_size(&self.device, entries)?;
        if self.is_destroyed() {
            return Err(Error::Destroyed { what: "completion queue" });
        }
        // Whoever pushes comes before or after: it finds the old size or the new one, and no completion moves.
        let mut ring = self.ring.lock();
        if ring.has_overrun() {
            return Err(Error::CqOverrun { capacity: self.capacity() });
        }
        if ring.len() > usize::try_from(entries).unwrap_or(usize::MAX) {
            return Err(Error::CqContent { asked: entries, stored: ring.len() });
        }
        ring.resize(entries);
        self.capacity.store(entries, Ordering::Relaxed);
        Ok(())
    }

    fn members(&self) -> &Members {
        &self.members
    }

    /// Keeps `stored` in step with the ring, which is locked.
    #[inline]
    fn count(&self, ring: &Ring) {
        let stored = u32::try_from(ring.len()).unwrap_or(u32::MAX) & !BROKEN;
        let broken = if ring.has_overrun() { BROKEN } else { 0 };
        self.stored.store(stored | broken, Ordering::Relaxed);
    }

    /// Whether a poll would find nothing. May be wrong by what happens at this moment; where that matters
    /// (`wait.rs`) the ring is asked with its lock held.
    #[inline]
    fn seems_empty(&self) -> bool {
        self.stored.load(Ordering::Relaxed) & !BROKEN == 0
    }

    /// Takes up to `max` completions.
    #[inline]
    fn drain(&self, max: usize, out: &mut Vec<WorkCompletion>) -> usize {
        if self.seems_empty() {
            return 0;
        }
        let mut awaited = Awaited::new();
        let n = {
            let mut ring = self.ring.lock();
            let n = ring.drain(max, out, &mut awaited);
            self.count(&ring);
            n
        };
        tell(awaited);
        n
    }

    #[inline]
    fn pop(&self) -> Option<WorkCompletion> {
        if self.seems_empty() { None } else { self.pop_for_certain() }
    }

    /// Takes one completion if there is one.
    fn pop_for_certain(&self) -> Option<WorkCompletion> {
        let mut awaited = Awaited::new();
        let wc = {
            let mut ring = self.ring.lock();
            let wc = ring.pop(&mut awaited);
            self.count(&ring);
            wc
        };
        tell(awaited);
        wc
    }

    /// Why no completion will ever come again.
    fn failure(&self) -> Option<Error> {
        if let Err(forked) = self.device.check_origin() {
            return Some(forked);
        }
        if self.is_destroyed() {
            return Some(Error::Destroyed { what: "completion queue" });
        }
        self.check_overrun().err()
    }

    /// # Errors
    /// [`Error::CqOverrun`] if it has overrun.
    pub(crate) fn check_overrun(&self) -> Result<(), Error> {
        let ring = self.ring.lock();
        if ring.has_overrun() {
            return Err(Error::CqOverrun { capacity: self.capacity() });
        }
        Ok(())
    }

    /// Moves the connections of the queue forward after a poll has found nothing. Gives a completion that went
    /// past the queue.
    fn progress(&self) -> Option<WorkCompletion> {
        let missed = self.lease.missed();
        let mut hand = Hand::of(self);
        self.members.drive_active(missed, &mut hand, |hand| hand.is_full() || !self.seems_empty());
        hand.close()
    }
}

/// Refuses a size that the device does not offer (FC-043).
fn check_size(device: &DeviceInner, entries: u32) -> Result<(), Error> {
    let max = device.config.limits.max_cqe;
    if entries == 0 {
        return Err(Error::Empty { what: "completion queue" });
    }
    if entries > max {
        let what = "completion queue entries";
        return Err(Error::Limit { what, asked: entries.into(), max: max.into() });
    }
    Ok(())
}

impl Drop for CqInner {
    fn drop(&mut self) {
        // FC-064
        if !self.device.origin.is_here() {
            self.reactors.forget();
            return;
        }
        // Its queue pairs are gone, and with them whoever waited for places of theirs.
        self.ring.lock().clear(&mut Awaited::new());
    }
}

impl CompletionQueue {
    pub(crate) fn from_inner(inner: Arc<CqInner>) -> Self {
        Self(inner)
    }

    pub(crate) fn inner(&self) -> &Arc<CqInner> {
        &self.0
    }

    /// Takes completions: appends to `out` as many as fit into it without growing, or up to 16 if it is
    /// full. Returns their number.
    ///
    /// If there are none, it reads from and writes to the sockets of the queue's connections, within
    /// bounds, and looks again. Never blocks.
    ///
    /// ```
    /// # use iwarp_verbs::{Device, DeviceConfig};
    /// # fn main() -> Result<(), iwarp_verbs::Error> {
    /// # let cq = Device::open(DeviceConfig::default())?.create_cq(64)?;
    /// let mut completions = Vec::with_capacity(32);
    /// completions.clear();
    /// cq.poll(&mut completions);
    /// for completion in &completions {
    ///     println!("request {}: {}", completion.wr_id, completion.status);
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub fn poll(&self, out: &mut Vec<WorkCompletion>) -> usize {
        let mut max = out.capacity() - out.len();
        if max == 0 {
            out.reserve(POLL_ROOM);
            max = POLL_ROOM;
        }
        let cq = &*self.0;
        let n = cq.drain(max, out);
        if n > 0 {
            cq.lease.found();
            return n;
        }
        let Some(wc) = cq.progress() else { return cq.drain(max, out) };
        out.push(wc);
        1 + cq.drain(max - 1, out)
    }

    /// Takes one completion. As [`poll`](Self::poll) otherwise.
    #[must_use = "the completion is handed out only once"]
    pub fn poll_one(&self) -> Option<WorkCompletion> {
        let cq = &*self.0;
        if let Some(wc) = cq.pop() {
            cq.lease.found();
            return Some(wc);
        }
        cq.progress().or_else(|| cq.pop())
    }

    /// Has the channel told of the next completion, once.
    ///
    /// A completion that is there already does not count, so: arm, poll until there is nothing more, then
    /// sleep on the channel. Arming twice before an event gives one event, by the wider request.
    ///
    /// # Errors
    /// [`Error::NoChannel`] if the queue was made without one.
    pub fn arm(&self, notify: Notify) -> Result<(), Error> {
        if self.0.channel.is_none() {
            return Err(Error::NoChannel);
        }
        self.0.armed.arm(notify);
        Ok(())
    }

    /// Acknowledges `n` events about the queue, of a channel or of the device, that were
    /// [left unacknowledged](crate::CqEvent::into_unacknowledged). One call may do so for any number.
    ///
    /// # Errors
    /// [`Error::Acknowledged`] if there are fewer; none is acknowledged then.
    pub fn ack_events(&self, n: u64) -> Result<(), Error> {
        self.0.unacked.ack(n)
    }

    /// Completions it can hold.
    #[must_use]
    pub fn capacity(&self) -> u32 {
        self.0.capacity()
    }

    /// Changes how many completions it can hold, at any time, also while some arrive (FC-041): none is lost
    /// and their order stays. It can hold exactly `entries` from here on.
    ///
    /// # Errors
    /// [`Error::CqContent`] if it holds more at this moment; [`Error::Limit`] beyond
    /// [`DeviceLimits::max_cqe`](crate::DeviceLimits::max_cqe), [`Error::Empty`] for 0;
    /// [`Error::CqOverrun`] if a completion was lost already, [`Error::Destroyed`] if the queue is
    /// destroyed. Then nothing has changed.
    pub fn resize(&self, entries: u32) -> Result<(), Error> {
        self.0.resize(entries)
    }

    /// Completions that wait to be polled. Connections are not looked at.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.ring.lock().len()
    }

    /// Whether no completion waits to be polled.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether a completion was lost for want of room.
    #[must_use]
    pub fn has_overrun(&self) -> bool {
        self.0.ring.lock().has_overrun()
    }

    /// The device.
    #[must_use]
    pub fn device(&self) -> Device {
        Device(Arc::clone(&self.0.device))
    }

    /// Gives the queue up for all handles.
    ///
    /// Not needed: the queue ends with its last user. Blocks until all events about it that the program has
    /// fetched are acknowledged, by dropping them; those not yet fetched vanish (FC-040). Completions
    /// that were not polled are lost.
    ///
    /// # Errors
    /// [`Error::Busy`] while queue pairs report to it, [`Error::Destroyed`] the second time.
    pub fn destroy(self) -> Result<(), Error> {
        self.0.device.check_origin()?;
        let what = "completion queue";
        {
            let mut holds = self.0.holds.lock();
            if holds.destroyed {
                return Err(Error::Destroyed { what });
            }
            let users = self.0.members.count() + holds.count;
            if users > 0 {
                return Err(Error::Busy { what, users, by: User::QueuePair.name(users) });
            }
            holds.destroyed = true;
            self.0.destroyed.store(true, Ordering::Release);
        }
        self.0.clear();
        self.0.release_waiters();
        self.0.device.events().forget_cq(&self.0);
        self.0.unacked.wait_none();
        if let Some(channel) = &self.0.channel {
            channel.end();
        }
        self.0.device.end();
        Ok(())
    }
}

impl PartialEq for CompletionQueue {
    /// Whether both name the same queue.
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Eq for CompletionQueue {}

impl fmt::Debug for CqInner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CompletionQueue")
            .field("number", &self.number)
            .field("capacity", &self.capacity)
            .field("stored", &self.stored)
            .finish_non_exhaustive()
    }
}
