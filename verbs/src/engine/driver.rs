//! The driver: the thread that moves connections when nobody else does.
//!
//! One per device, started with its first connection or set-up. It sleeps in an epoll set of the
//! device's sockets, runs the timers of the connections, and carries a single-threaded tokio runtime
//! for the set-up tasks of the connection manager. A socket is reported once and then silent until it
//! is armed again by the pass that follows; while a program polls the completion queues of a queue pair
//! (holds their *lease*), the driver does not run that pass, and the first pass of somebody else takes the socket out of
//! the set. The driver looks now and then whether the program still polls.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::io;
use std::os::fd::BorrowedFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock, mpsc};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tokio::runtime::{Builder, Handle};

use super::asked::Asked;
use super::budget::Budget;
use super::watch::Watching;
use super::{Caller, parking::Parking};
use crate::cm::Channels;
use crate::event::{AsyncEventKind, AsyncEvents};
use crate::mem::{Origin, without_signals};
use crate::qp::QpInner;
use crate::stats::Counter;
use crate::sys::{DriverSet, DriverWaiter, Interest, Ready};

/// The device's hold on its driver. Dropping it ends the thread.
#[derive(Debug)]
pub(crate) struct Driver {
    budget: Budget,
    origin: Origin,
    events: Arc<AsyncEvents>,
    channels: Arc<Channels>,
    /// Only one start at a time, and a failed one may be tried again, unless there is to be none any more.
    starting: Mutex<Start>,
    running: OnceLock<Arc<Shared>>,
    retries: Counter,
    /// How many arming attempts are to fail.
    #[cfg(test)]
    failing: std::sync::atomic::AtomicU32,
    thread: Mutex<Option<JoinHandle<()>>>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Start {
    Possible,
    Refused,
}

/// What the driver's thread and everybody else share.
#[derive(Debug)]
struct Shared {
    set: Arc<DriverSet>,
    runtime: Handle,
    inbox: Mutex<Inbox>,
    /// The thread has been woken and has not looked into the inbox since.
    woken: AtomicBool,
    /// The thread has come to its end.
    over: AtomicBool,
    /// Where that is told.
    events: Arc<AsyncEvents>,
    channels: Arc<Channels>,
    /// Has the thread fail.
    #[cfg(test)]
    broken: AtomicBool,
    /// Queue pairs with a connection, by number: what keeps them alive without a handle.
    connected: Mutex<HashMap<u64, Arc<QpInner>>>,
}

#[derive(Debug, Default)]
struct Inbox {
    /// To be run once.
    runnable: Vec<Arc<QpInner>>,
    /// Queue pairs that have begun to gather requests, or that polls may forget with something to do.
    gathering: Vec<Arc<QpInner>>,
    /// New deadlines.
    deadlines: Vec<(Instant, u64)>,
    /// The device is gone.
    ended: bool,
    /// It is being closed: the end comes when no connection is left.
    ending: bool,
    /// Farewells under way, which are waited for as well.
    farewells: usize,
}

/// Something that has still to be said to a peer: the end of the device waits until this is dropped.
#[derive(Debug)]
pub(crate) struct Farewell(Arc<Shared>);

impl Farewell {
    fn begin(shared: &Arc<Shared>) -> Self {
        shared.inbox.lock().farewells += 1;
        Self(Arc::clone(shared))
    }
}

impl Drop for Farewell {
    fn drop(&mut self) {
        let ending = {
            let mut inbox = self.0.inbox.lock();
            inbox.farewells -= 1;
            inbox.ending
        };
        if ending {
            self.0.wake();
        }
    }
}

impl Driver {
    /// What befalls the thread is told as an event, of the device and of each id.
    pub(crate) fn new(
        memory_budget: usize,
        events: Arc<AsyncEvents>,
        channels: Arc<Channels>,
    ) -> Self {
        Self {
            budget: Budget::new(memory_budget),
            origin: Origin::here(),
            events,
            channels,
            starting: Mutex::new(Start::Possible),
            running: OnceLock::new(),
            retries: Counter::default(),
            #[cfg(test)]
            failing: std::sync::atomic::AtomicU32::new(0),
            thread: Mutex::new(None),
        }
    }

    /// The runtime of the driver, for set-up tasks; starts the thread.
    pub(crate) fn handle(&self) -> io::Result<Handle> {
        Ok(self.start()?.runtime.clone())
    }

    /// Has the end of the device wait for a task that says something to a peer; starts the thread.
    pub(crate) fn farewell(&self) -> io::Result<Farewell> {
        Ok(Farewell::begin(self.start()?))
    }

    /// Times that a socket could not be armed, which was tried again.
    pub(crate) fn retries(&self) -> u64 {
        self.retries.get()
    }

    /// Queue pairs with a connection.
    pub(crate) fn connected(&self) -> Vec<Arc<QpInner>> {
        let Some(shared) = self.running.get() else { return Vec::new() };
        shared.connected.lock().values().cloned().collect()
    }

    /// Memory that connections hold between passes.
    pub(crate) fn budget(&self) -> &Budget {
        &self.budget
    }

    /// Makes a connection known, silent until it is armed.
    pub(crate) fn connect(&self, qp: &Arc<QpInner>, socket: BorrowedFd<'_>) -> io::Result<()> {
        let shared = self.start()?;
        shared.set.add(socket, qp.key())?;
        shared.connected.lock().insert(qp.key(), Arc::clone(qp));
        // If the thread fails just now, it has either found this one (`Shared::fail`), or is seen here.
        if shared.over.load(Ordering::Relaxed) {
            self.disconnect(qp, socket);
            return Err(ended());
        }
        Ok(())
    }

    /// Forgets a connection that is over.
    pub(crate) fn disconnect(&self, qp: &QpInner, socket: BorrowedFd<'_>) {
        let Some(shared) = self.running.get() else { return };
        let removed = shared.set.remove(socket, qp.key());
        debug_assert!(removed.is_ok(), "a set of our own cannot fail: {removed:?}");
        let (qp, none_left) = {
            let mut connected = shared.connected.lock();
            (connected.remove(&qp.key()), connected.is_empty())
        };
        if none_left && shared.inbox.lock().ending {
            shared.wake();
        }
        // If this was the last reference, the end of it is no business of that lock.
        drop(qp);
    }

    /// Has the socket reported once. `false`: it will not be, and has to be armed again by the pass to which the
    /// driver comes in some moments.
    #[must_use]
    pub(super) fn arm(&self, qp: &QpInner, socket: BorrowedFd<'_>, interest: Interest) -> bool {
        // Without a driver there is nobody to tell, now or later.
        let Some(shared) = self.live() else { return true };
        let armed = shared.set.arm(socket, qp.key(), interest);
        #[cfg(test)]
        let armed = if self.fails() { Err(io::ErrorKind::OutOfMemory.into()) } else { armed };
        if let Err(error) = &armed {
            // Out of kernel memory, or of the user's watches: a socket that had left the set joins it anew. Without
            // another try the connection would stand still.
            self.retries.count();
            tracing::warn!(qp = qp.number, %error, "socket not armed");
            shared.deadline(Instant::now() + RETRY, qp.key());
        }
        armed.is_ok()
    }

    /// Whether this attempt is one of those that are to fail.
    #[cfg(test)]
    fn fails(&self) -> bool {
        let one_less = |left: u32| left.checked_sub(1);
        self.failing.fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_less).is_ok()
    }

    /// Has so many attempts to arm a socket fail.
    #[cfg(test)]
    pub(super) fn fail_arming(&self, times: u32) {
        self.failing.store(times, Ordering::Relaxed);
    }

    /// Has the socket not reported until it is armed again.
    pub(super) fn silence(&self, qp: &QpInner, socket: BorrowedFd<'_>) {
        let Some(shared) = self.live() else { return };
        let silenced = shared.set.silence(socket, qp.key());
        debug_assert!(silenced.is_ok(), "a set of our own cannot fail: {silenced:?}");
    }

    /// Whether the thread has been started, and goes on.
    pub(crate) fn is_running(&self) -> bool {
        self.live().is_some()
    }

    /// What is shared with the thread, if there is anybody to share with.
    fn live(&self) -> Option<&Arc<Shared>> {
        self.running.get().filter(|shared| !shared.over.load(Ordering::Relaxed))
    }

    /// Has the thread fail.
    #[cfg(test)]
    pub(super) fn break_down(&self) {
        if let Some(shared) = self.running.get() {
            shared.broken.store(true, Ordering::Relaxed);
            shared.wake();
        }
    }

    /// Has a connection run soon by the driver.
    pub(crate) fn schedule(&self, qp: &Arc<QpInner>) {
        let Some(shared) = self.live() else { return };
        if !qp.scheduled.swap(true, Ordering::AcqRel) {
            shared.inbox.lock().runnable.push(Arc::clone(qp));
            shared.wake();
        }
    }

    /// Has the driver look now and then at what a connection has left to do.
    pub(super) fn watch(&self, qp: &Arc<QpInner>) {
        let Some(shared) = self.live() else { return };
        shared.inbox.lock().gathering.push(Arc::clone(qp));
        shared.wake();
    }

    /// Has a connection run by the driver at some time.
    pub(super) fn deadline(&self, qp: &QpInner, at: Instant) {
        if let Some(shared) = self.live() {
            shared.deadline(at, qp.key());
        }
    }

    /// Ends the thread, once the connections that are left are over, and rejections have arrived. Blocks until then, unless this is the
    /// thread itself. No connection begins any more.
    pub(crate) fn stop(&self) {
        *self.starting.lock() = Start::Refused;
        if let Some(shared) = self.running.get() {
            shared.inbox.lock().ending = true;
            shared.wake();
        }
        let thread = self.thread.lock().take();
        if let Some(thread) = thread
            && thread.thread().id() != thread::current().id()
            && thread.join().is_err()
        {
            tracing::error!("the driver has panicked");
        }
    }

    /// Changes what a connection holds.
    pub(super) fn charge(&self, from: usize, to: usize) {
        if from != to {
            self.budget.change(from, to);
        }
    }

    fn start(&self) -> io::Result<&Arc<Shared>> {
        if let Some(shared) = self.running.get() {
            if shared.over.load(Ordering::Relaxed) {
                return Err(ended());
            }
            return Ok(shared);
        }
        let starting = self.starting.lock();
        if *starting == Start::Refused {
            return Err(io::Error::other("the device was destroyed"));
        }
        if self.running.get().is_none() {
            let (shared, thread) = spawn(&self.events, &self.channels)?;
            *self.thread.lock() = Some(thread);
            let set = self.running.set(shared);
            debug_assert!(set.is_ok(), "only set with the lock held");
        }
        self.running.get().ok_or_else(|| io::Error::other("driver did not start"))
    }
}

fn ended() -> io::Error {
    io::Error::other("the thread of the device has ended")
}

impl Drop for Driver {
    fn drop(&mut self) {
        // Every queue pair holds the device, so none is left. In a forked child the thread is not there, and
        // the set is the parent's (FC-064).
        if let Some(shared) = self.running.get()
            && self.origin.is_here()
        {
            shared.inbox.lock().ended = true;
            shared.wake();
        }
    }
}

impl Shared {
    fn deadline(&self, at: Instant, key: u64) {
        self.inbox.lock().deadlines.push((at, key));
        self.wake();
    }

    fn wake(&self) {
        if !self.woken.swap(true, Ordering::AcqRel) {
            let woken = self.set.wake();
            debug_assert!(woken.is_ok(), "a set of our own cannot fail: {woken:?}");
        }
    }

    /// The thread is over without having been told: nothing moves connections any more but the program's
    /// own calls, and timers and set-ups not at all. All connections end, and the program is told.
    #[cold]
    fn fail(&self) {
        tracing::error!("the driver has failed: all connections of the device end");
        self.over.store(true, Ordering::Relaxed);
        let connected: Vec<_> = self.connected.lock().values().map(Arc::clone).collect();
        for qp in connected {
            // The peer is told why if that is possible at once.
            qp.ask(Asked::DEVICE_FATAL);
            qp.drive(Caller::Post);
            qp.abort();
        }
        self.events.raise_device(AsyncEventKind::DeviceFatal);
    }

    fn find(&self, key: u64) -> Option<Arc<QpInner>> {
        self.connected.lock().get(&key).cloned()
    }
}

/// Pause before a failed arming is tried again.
const RETRY: Duration = Duration::from_millis(10);

/// Pauses after which the driver gives up.
const RETRIES: u32 = 100;

/// Deadlines that are not worth a sweep.
const FEW: usize = 64;

/// Starts the thread, and waits until its runtime is there.
fn spawn(
    events: &Arc<AsyncEvents>,
    channels: &Arc<Channels>,
) -> io::Result<(Arc<Shared>, JoinHandle<()>)> {
    let (started, start) = mpsc::channel();
    let thread = thread::Builder::new().name("iwarp-driver".into());
    let (events, channels) = (Arc::clone(events), Arc::clone(channels));
    let run_thread = move || {
        let prepared = Builder::new_current_thread().enable_all().build().and_then(|runtime| {
            let _inside = runtime.enter();
            let (shared, waiter) = prepare(events, channels)?;
            Ok((runtime, shared, waiter))
        });
        let (runtime, shared, waiter) = match prepared {
            Ok(prepared) => prepared,
            Err(error) => {
                let _ = started.send(Err(error));
                return;
            }
        };
        let _ = started.send(Ok(Arc::clone(&shared)));
        drop(started);
        let run = AssertUnwindSafe(|| runtime.block_on(run(&shared, waiter)));
        if catch_unwind(run).is_ok_and(|ended| ended) {
            shared.over.store(true, Ordering::Relaxed);
            // Not to wait for a resolver that hangs.
            runtime.shutdown_background();
        } else {
            shared.fail();
            // Set-ups fail as they go with it, and then the ids hear of the device.
            runtime.shutdown_background();
            shared.channels.device_failed();
        }
    };
    // The program's signals are for its own threads.
    let thread = without_signals(|| thread.spawn(run_thread))?;
    let started =
        start.recv().unwrap_or_else(|_| Err(io::Error::other("driver thread ended at its start")));
    Ok((started?, thread))
}

/// To be called inside of the runtime.
fn prepare(
    events: Arc<AsyncEvents>,
    channels: Arc<Channels>,
) -> io::Result<(Arc<Shared>, DriverWaiter)> {
    let set = Arc::new(DriverSet::new()?);
    let waiter = set.waiter()?;
    let shared = Shared {
        set,
        runtime: Handle::current(),
        inbox: Mutex::default(),
        woken: AtomicBool::new(false),
        over: AtomicBool::new(false),
        events,
        channels,
        #[cfg(test)]
        broken: AtomicBool::new(false),
        connected: Mutex::default(),
    };
    Ok((Arc::new(shared), waiter))
}

/// Runs until the device is gone: `true`. `false`: it cannot go on.
async fn run(shared: &Shared, mut waiter: DriverWaiter) -> bool {
    let mut agenda = Agenda::default();
    let mut ready = Vec::new();
    let mut retries = 0;
    while retries < RETRIES {
        // Yields now and then of itself, so that set-up tasks get their turn however busy the
        // connections are.
        match waiter.ready(&mut ready).await {
            Ok(_) => retries = 0,
            Err(error) => {
                // Readiness of our own descriptor: nothing that a connection did, and nothing to be done.
                tracing::error!(%error, "driver cannot wait for sockets");
                retries += 1;
                tokio::time::sleep(RETRY).await;
            }
        }
        #[cfg(test)]
        assert!(!shared.broken.load(Ordering::Relaxed), "broken for a test");
        // A fault in one turn must not stop the connections that others have.
        match catch_unwind(AssertUnwindSafe(|| agenda.turn(shared, &mut ready))) {
            Ok(true) => return true,
            Ok(false) => {}
            Err(_) => tracing::error!("a turn of the driver panicked"),
        }
    }
    false
}

/// What the driver itself remembers between turns.
#[derive(Default)]
struct Agenda {
    deadlines: BinaryHeap<Reverse<(Instant, u64)>>,
    /// How many of them there may be before those are thrown out whose connection is over.
    sweep: usize,
    parking: Parking,
    watching: Watching,
    runnable: Vec<Arc<QpInner>>,
    /// When the timer goes off.
    timer: Option<Instant>,
}

impl Agenda {
    /// Deals with all that has come up. `true`: the device is gone.
    fn turn(&mut self, shared: &Shared, ready: &mut Vec<Ready>) -> bool {
        // Whatever is put into the inbox from here on wakes the thread again.
        shared.woken.swap(false, Ordering::AcqRel);
        {
            let mut inbox = shared.inbox.lock();
            let idle = inbox.farewells == 0 && shared.connected.lock().is_empty();
            if inbox.ended || (inbox.ending && idle) {
                return true;
            }
            std::mem::swap(&mut inbox.runnable, &mut self.runnable);
            self.deadlines.extend(inbox.deadlines.drain(..).map(Reverse));
            inbox.gathering.drain(..).for_each(|qp| self.watching.add(qp));
        }
        self.sweep(shared);
        for ready in ready.drain(..) {
            if let Some(qp) = shared.find(ready.key) {
                self.socket_ready(&qp, ready);
            }
        }
        for qp in self.runnable.drain(..) {
            qp.scheduled.store(false, Ordering::Release);
            if !(qp.polled.swap(false, Ordering::AcqRel) && self.parking.park(&qp)) {
                qp.drive(Caller::Driver);
            } else if qp.begins_watch() {
                self.watching.add(qp);
            }
        }
        self.keep_time(shared);
        false
    }

    fn socket_ready(&mut self, qp: &Arc<QpInner>, ready: Ready) {
        qp.ask(if ready.hangup { Asked::SOCKET | Asked::HANGUP } else { Asked::SOCKET });
        if ready.hangup || !self.parking.park(qp) {
            qp.drive(Caller::Driver);
        }
    }

    /// Peers that come and go leave deadlines behind that are due much later: there are not to be more of them
    /// than of connections.
    fn sweep(&mut self, shared: &Shared) {
        if self.deadlines.len() <= self.sweep.max(FEW) {
            return;
        }
        let connected = shared.connected.lock();
        self.deadlines.retain(|Reverse((_, key))| connected.contains_key(key));
        drop(connected);
        self.sweep = self.deadlines.len() * 2;
        self.deadlines.shrink_to(self.sweep.max(FEW));
    }

    fn keep_time(&mut self, shared: &Shared) {
        let (mut next, mut gathered) = (self.parking.next_look(), self.watching.next_look());
        if next.is_some() || gathered.is_some() || !self.deadlines.is_empty() {
            let now = Instant::now();
            while let Some(&Reverse((at, key))) = self.deadlines.peek()
                && at <= now
            {
                self.deadlines.pop();
                if let Some(qp) = shared.find(key) {
                    qp.ask(Asked::TIMER);
                    qp.drive(Caller::Driver);
                }
            }
            if next.is_some_and(|at| at <= now) {
                next = self.parking.look(now);
            }
            if gathered.is_some_and(|at| at <= now) {
                gathered = self.watching.look(now);
            }
        }
        let due = self.deadlines.peek().map(|Reverse((at, _))| *at);
        let timer = [next, gathered, due].into_iter().flatten().min();
        if timer != self.timer || self.timer.is_some_and(|at| at <= Instant::now()) {
            let after = timer.map(|at| at.saturating_duration_since(Instant::now()));
            let set = shared.set.set_timer(after);
            debug_assert!(set.is_ok(), "a timer of our own cannot fail: {set:?}");
            self.timer = timer;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::Setup;
    use super::*;

    /// SEC-17: a storm of connections that come to an end leaves no more deadlines than a few.
    #[test]
    fn deadlines_of_connections_that_are_over_are_thrown_out() {
        let pair = Setup::default().connect();
        let qp = &pair.a.qp.0.inner;
        let shared = qp.driver().running.get().expect("a connection has started it");
        let mut agenda = Agenda::default();
        let later = Instant::now() + Duration::from_hours(1);
        agenda.deadlines.push(Reverse((later, qp.key())));
        for gone in 0..10_000 {
            agenda.deadlines.push(Reverse((later, u64::MAX - gone)));
            agenda.sweep(shared);
            assert!(agenda.deadlines.len() <= FEW + 1);
        }
        assert!(agenda.deadlines.capacity() <= 4 * FEW, "{}", agenda.deadlines.capacity());
        let mut left = agenda.deadlines.into_iter();
        assert!(left.any(|Reverse((_, key))| key == qp.key()), "that of a live one stays");
    }
}
