//! Sleeping for completions: threads in [`CompletionQueue::wait`], tasks in [`CompletionQueue::next`].
//!
//! # Why no wake-up is lost
//!
//! Whoever is about to sleep (the *waiter*) and whoever pushes a completion (the *pusher*) meet in the
//! lock of the ring (`gate.rs`):
//!
//! ```text
//! waiter                                    pusher
//! 1  says that it waits                     1  locks the ring: stores the completion,
//! 2  takes a ticket, or begins to listen       reads whether anybody waits, unlocks
//! 3  locks the ring: looks for completions  2  leaves all locks of the engine
//! 4  sleeps, with the ticket                3  wakes, if step 1 said so
//! ```
//!
//! Two sections of one lock have an order. If the pusher's comes first, the waiter finds the completion in
//! step 3. If the waiter's comes first, then its step 1 happened before the pusher's section, whose
//! read sees it, relaxed as it is, and step 3 of the pusher comes after the waiter's ticket: a wake-up
//! between ticket and sleep makes the sleep return at once, one after that ends it. In between are only
//! passes of the pusher, which are bounded, and [`Wakes`](super::Wakes) fires also when it is dropped.
//!
//! *Several waiters.* A wake-up of threads reaches all of them, and each looks again; so none of them can
//! take what another one needs. Tasks are woken one for each completion. One that is woken and
//! dropped before it runs passes that on (`event-listener` does it), one that is woken and finds that
//! somebody else took the completion sleeps again, and the completions of the somebody else woke a task
//! of their own. Threads and tasks are woken independently of each other, so a task that was woken but is
//! not run by its executor holds up no thread.
//!
//! *Asleep on sockets while the driver pushes.* The alarm is a member of the same epoll set as the
//! sockets, so it makes no difference to the sleeper who moved the connection.
//!
//! *Reports of sockets.* The kernel gives each to one caller of the set, be it a waiter or a poll, and that
//! one drives the connection to would-block at once, in the same call, with nothing in between that could
//! be cancelled. If another thread is in that engine already, it is asked to look again before it leaves.
//! Whatever completes is pushed, and wakes whoever waits.
//!
//! *Nobody drives.* A waiter holds the lease, so that the driver leaves sockets to it; but the driver looks
//! a quarter of a millisecond later whether that happened, and takes over. A task whose runtime is
//! busy or gone therefore delays its connections by that much, and no more.

use std::future::poll_fn;
use std::io;
use std::pin::pin;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};
use std::task::Poll;
use std::thread;
use std::time::{Duration, Instant};

use event_listener::listener;

use super::{CompletionQueue, CqInner};
use crate::error::Error;
use crate::wc::WorkCompletion;

/// How long a waiting thread polls before it sleeps: what a wake-up costs, some times over.
const SPIN: Duration = Duration::from_micros(20);

impl CompletionQueue {
    /// Waits for a completion, at most for `timeout` if there is one. `None`: the time is over.
    ///
    /// Blocks the calling thread: it polls for a moment, if there is more than one processor, then sleeps on
    /// the sockets of the queue's connections. Takes descriptors when it is first called. Not to be
    /// called from a task of an asynchronous runtime.
    ///
    /// # Errors
    /// [`Error::CqOverrun`] when no completion is left of a queue that has overrun, [`Error::Destroyed`] when
    /// it is destroyed, [`Error::Io`] if there is no descriptor to sleep with.
    pub fn wait(
        &self,
        timeout: impl Into<Option<Duration>>,
    ) -> Result<Option<WorkCompletion>, Error> {
        if let Some(wc) = self.poll_one() {
            return Ok(Some(wc));
        }
        let timeout = timeout.into();
        if timeout.is_some_and(|timeout| timeout.is_zero()) {
            // Nothing to sleep with is needed for that.
            return self.0.failure().map_or(Ok(None), Err);
        }
        // A time that cannot be expressed never comes.
        self.0.wait(timeout.and_then(|timeout| Instant::now().checked_add(timeout)))
    }

    /// Waits for a completion.
    ///
    /// In a tokio runtime the task sleeps on the sockets of the queue's connections, and moves them itself
    /// when they have something: the shortest way to a task. Outside of tokio, or when the runtime has
    /// no time, the library's thread moves the connections and wakes the task. So it does in a runtime
    /// without an IO driver (`enable_io`); tokio then prints a panic message, once, which is caught.
    ///
    /// Cancel-safe: a dropped call takes no completion, and if it was to be woken, another waiter is.
    ///
    /// # Errors
    /// [`Error::CqOverrun`] when no completion is left of a queue that has overrun, [`Error::Destroyed`] when
    /// it is destroyed.
    pub async fn next(&self) -> Result<WorkCompletion, Error> {
        if let Some(wc) = self.poll_one() {
            return Ok(wc);
        }
        let cq = &*self.0;
        let mut sockets = cq.reactors.enter(cq);
        let mut ready = Vec::new();
        loop {
            // Steps 1 to 3 of the head of this file.
            let _waiter = cq.ring.task();
            listener!(cq.told => told);
            if let Some(wc) = cq.pop_for_certain() {
                cq.lease.found();
                return Ok(wc);
            }
            if let Some(failure) = cq.failure() {
                return Err(failure);
            }
            match &mut sockets {
                None => {
                    // Nobody but the driver moves the connections, so it must not be kept away.
                    cq.lease.lapse();
                    told.await;
                }
                Some(at) => {
                    cq.lease.take();
                    match first(told, at.ready(&mut ready)).await {
                        Ok(()) => {}
                        Err(Ok(())) => at.drive(cq, &mut ready),
                        Err(Err(error)) => {
                            given_up(&error);
                            sockets = None;
                        }
                    }
                }
            }
        }
    }
}

/// The runtime is shutting down, most likely. The driver goes on without it.
fn given_up(error: &io::Error) {
    tracing::debug!(%error, "a task cannot wait for sockets");
}

/// Waits for whichever comes first. The other one is not polled again.
async fn first<A, B>(a: impl Future<Output = A>, b: impl Future<Output = B>) -> Result<A, B> {
    let (mut a, mut b) = (pin!(a), pin!(b));
    poll_fn(|context| match a.as_mut().poll(context) {
        Poll::Ready(a) => Poll::Ready(Ok(a)),
        Poll::Pending => b.as_mut().poll(context).map(Err),
    })
    .await
}

impl CqInner {
    fn wait(&self, deadline: Option<Instant>) -> Result<Option<WorkCompletion>, Error> {
        let set = Arc::clone(self.members().wait_set()?);
        // Step 1 of the head of this file, for as long as the call lasts.
        let _waiter = self.ring.thread();
        let _sleeper = self.lease.sleeper();
        let mut ready = Vec::new();
        let mut spin = self.spins.begin();
        loop {
            let ticket = set.ticket();
            if let Some(wc) = self.pop_for_certain() {
                spin.found();
                self.lease.found();
                return Ok(Some(wc));
            }
            if let Some(failure) = self.failure() {
                return Err(failure);
            }
            let left = deadline.map(|at| at.saturating_duration_since(Instant::now()));
            if left.is_some_and(|left| left.is_zero()) {
                return Ok(None);
            }
            if spin.goes_on() {
                if let Some(wc) = self.progress() {
                    spin.found();
                    self.lease.found();
                    return Ok(Some(wc));
                }
                continue;
            }
            set.wait(ticket, left, &mut ready)
                .map_err(|error| Error::io("wait for the sockets of a completion queue", error))?;
            self.members().drive_ready(&set, &mut ready);
            // The driver is to see that somebody was here.
            self.lease.take();
        }
    }

    /// Awaits something that a connection of this queue will bring about, and moves the connections
    /// meanwhile as [`CompletionQueue::next`] does; an awaited request for example, whose completion passes
    /// by the queue (`aio.rs`). `done` has to be woken by whoever brings it about. Cancel-safe if `done` is.
    pub(crate) async fn attend<T>(&self, done: impl Future<Output = T>) -> T {
        let mut done = pin!(done);
        // Most often it is there already, and no place is needed.
        if let Poll::Ready(done) = poll_fn(|context| Poll::Ready(done.as_mut().poll(context))).await
        {
            return done;
        }
        let mut sockets = self.reactors.enter(self);
        let mut ready = Vec::new();
        while let Some(at) = &mut sockets {
            // The driver is to see that somebody was here.
            self.lease.take();
            match first(done.as_mut(), at.ready(&mut ready)).await {
                Ok(done) => return done,
                Err(Ok(())) => at.drive(self, &mut ready),
                Err(Err(error)) => {
                    given_up(&error);
                    sockets = None;
                }
            }
        }
        done.await
    }

    /// Lets everybody who waits find out that there is nothing to wait for.
    pub(super) fn release_waiters(&self) {
        self.members().wake_threads();
        self.told.notify(usize::MAX);
    }
}

/// Whether polling before a sleep has paid lately.
///
/// It does when the answer comes within [`SPIN`] and there is a processor to poll on. When nothing came
/// several times, because the peer is slow, or because it waits for this very processor, waits sleep at
/// once, and only now and then one tries again.
#[derive(Debug)]
pub(super) struct Spins {
    /// Spins that may still fail.
    credit: AtomicU32,
    /// Waits that did not spin.
    skipped: AtomicU32,
}

impl Spins {
    const CREDIT: u32 = 8;
    const RETRY: u32 = 64;

    fn begin(&self) -> Spin<'_> {
        // With one processor, whoever could bring a completion would have to wait for this thread.
        static POSSIBLE: OnceLock<bool> = OnceLock::new();
        let possible = *POSSIBLE.get_or_init(|| {
            thread::available_parallelism().is_ok_and(|processors| processors.get() > 1)
        });
        let worthwhile = possible
            && (self.credit.load(Ordering::Relaxed) > 0
                || self.skipped.fetch_add(1, Ordering::Relaxed) % Self::RETRY == Self::RETRY - 1);
        Spin { spins: self, until: worthwhile.then(|| Instant::now() + SPIN) }
    }
}

impl Default for Spins {
    fn default() -> Self {
        Self { credit: AtomicU32::new(Self::CREDIT), skipped: AtomicU32::new(0) }
    }
}

/// The polls before one sleep.
struct Spin<'a> {
    spins: &'a Spins,
    until: Option<Instant>,
}

impl Spin<'_> {
    fn goes_on(&mut self) -> bool {
        let Some(until) = self.until else { return false };
        if Instant::now() < until {
            return true;
        }
        self.until = None;
        self.spins
            .credit
            .update(Ordering::Relaxed, Ordering::Relaxed, |left| left.saturating_sub(1));
        false
    }

    /// A completion was found. While spinning, that is worth several failures.
    fn found(&self) {
        if self.until.is_some() && self.spins.credit.load(Ordering::Relaxed) < Spins::CREDIT {
            self.spins.credit.store(Spins::CREDIT, Ordering::Relaxed);
        }
    }
}
