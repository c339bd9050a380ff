//! Pipes, poll(2) and tokio's readiness: what any Unix has.
//!
//! The sets keep a copy of each descriptor, so that one closed by its owner cannot be confused with
//! another that got its number; the copy goes when the socket is removed.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::future::poll_fn;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::{Errno, FdFlags, fcntl_dupfd_cloexec, fcntl_setfd, ioctl_fionbio};
use tokio::io::unix::AsyncFd;
use tokio::time::Sleep;

use super::sleepers::{Sleepers, Ticket};
use super::{Interest, KEY_MAX, Ready, Wakeup};
use crate::mem::watch;

/// A descriptor that is readable while something is to be told.
#[derive(Debug)]
pub(crate) struct Notifier {
    read: Arc<OwnedFd>,
    write: OwnedFd,
    semaphore: bool,
    /// Notifications that found the pipe full.
    owed: Mutex<u64>,
}

impl Notifier {
    /// With `semaphore`, each take counts one notification; without, all of them.
    pub(crate) fn new(semaphore: bool) -> io::Result<Self> {
        let (read, write) = rustix::pipe::pipe()?;
        for end in [&read, &write] {
            fcntl_setfd(end, FdFlags::CLOEXEC)?;
            ioctl_fionbio(end, true)?;
        }
        Ok(Self { read: Arc::new(read), write, semaphore, owed: Mutex::new(0) })
    }

    /// Tells `n` times. Never blocks; from any thread.
    pub(crate) fn notify(&self, n: u64) -> io::Result<()> {
        let mut owed = self.owed.lock();
        *owed = owed.saturating_add(n);
        self.pay(&mut owed)
    }

    /// Moves what is owed into the pipe, as far as it takes it.
    fn pay(&self, owed: &mut u64) -> io::Result<()> {
        const TOKENS: [u8; 256] = [0; 256];
        while *owed > 0 {
            let some = TOKENS.len().min(usize::try_from(*owed).unwrap_or(usize::MAX));
            match retry(|| rustix::io::write(&self.write, &TOKENS[..some])) {
                Ok(written) => *owed -= written as u64,
                // The pipe is as readable as can be; `try_take` makes room.
                Err(Errno::AGAIN) => return Ok(()),
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    /// Takes one notification (semaphore) or all of them, and says how many; `None` if there was none.
    pub(crate) fn try_take(&self) -> io::Result<Option<u64>> {
        let mut owed = self.owed.lock();
        let mut taken = 0;
        loop {
            let mut tokens = [0; 4096];
            let wanted = if self.semaphore { 1 } else { tokens.len() };
            match retry(|| rustix::io::read(&*self.read, &mut tokens[..wanted])) {
                Ok(read) => taken += read as u64,
                Err(Errno::AGAIN) => break,
                Err(error) => return Err(error.into()),
            }
            self.pay(&mut owed)?;
            if self.semaphore {
                break;
            }
        }
        Ok((taken > 0).then_some(taken))
    }

    /// Takes all notifications.
    pub(crate) fn drain(&self) -> io::Result<()> {
        while self.try_take()?.is_some() && self.semaphore {}
        Ok(())
    }
}

impl AsFd for Notifier {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.read.as_fd()
    }
}

/// The driver's sockets. Each is reported once, then silent until it is armed again.
///
/// All functions but [`waiter`](Self::waiter) may be called from any thread, and never block.
#[derive(Debug, Default)]
pub(crate) struct DriverSet(Mutex<Driven>);

#[derive(Debug, Default)]
struct Driven {
    sockets: HashMap<u64, Member>,
    woken: bool,
    timer: Option<Instant>,
    /// The driver, while it sleeps.
    driver: Option<Waker>,
}

#[derive(Debug)]
struct Member {
    socket: Arc<OwnedFd>,
    /// `None`: silent.
    armed: Option<Interest>,
}

impl DriverSet {
    #[expect(clippy::unnecessary_wraps, reason = "same as linux.rs")]
    pub(crate) fn new() -> io::Result<Self> {
        Ok(Self::default())
    }

    /// Makes a socket known, silent. `key` must be below [`KEY_MAX`](super::KEY_MAX) and unique.
    pub(crate) fn add(&self, socket: BorrowedFd<'_>, key: u64) -> io::Result<()> {
        debug_assert!(key < KEY_MAX, "key {key} is used inside");
        let socket = copy_of(socket)?;
        self.change(|driven| {
            driven.sockets.insert(key, Member { socket, armed: None });
        });
        Ok(())
    }

    /// Reports the socket once when it is as wanted, at once if it is so now. Replaces an earlier arming.
    pub(crate) fn arm(
        &self,
        _socket: BorrowedFd<'_>,
        key: u64,
        interest: Interest,
    ) -> io::Result<()> {
        self.change(|driven| match driven.sockets.get_mut(&key) {
            Some(member) => {
                member.armed = Some(interest);
                Ok(())
            }
            None => Err(Errno::NOENT.into()),
        })
    }

    /// Reports nothing of a socket until it is armed again, but what the driver already has.
    #[expect(clippy::unnecessary_wraps, reason = "same as linux.rs")]
    pub(crate) fn silence(&self, _socket: BorrowedFd<'_>, key: u64) -> io::Result<()> {
        self.change(|driven| {
            if let Some(member) = driven.sockets.get_mut(&key) {
                member.armed = None;
            }
        });
        Ok(())
    }

    /// Forgets a socket; to be called before it is closed. A report that the driver already has, but
    /// has not looked at, is not taken back.
    #[expect(clippy::unnecessary_wraps, reason = "same as linux.rs")]
    pub(crate) fn remove(&self, _socket: BorrowedFd<'_>, key: u64) -> io::Result<()> {
        self.change(|driven| {
            driven.sockets.remove(&key);
        });
        Ok(())
    }

    /// Wakes the driver, or keeps it from sleeping next time.
    #[expect(clippy::unnecessary_wraps, reason = "same as linux.rs")]
    pub(crate) fn wake(&self) -> io::Result<()> {
        self.change(|driven| driven.woken = true);
        Ok(())
    }

    /// Wakes the driver after `after`, once; `None` calls it off. As fine as tokio's timers: a
    /// millisecond.
    #[expect(clippy::unnecessary_wraps, reason = "same as linux.rs")]
    pub(crate) fn set_timer(&self, after: Option<Duration>) -> io::Result<()> {
        let at = after.and_then(|after| Instant::now().checked_add(after));
        self.change(|driven| driven.timer = at);
        Ok(())
    }

    /// The driver's end of the set; to be made inside its tokio runtime, by one task at a time.
    #[expect(clippy::unnecessary_wraps, reason = "same as linux.rs")]
    pub(crate) fn waiter(self: &Arc<Self>) -> io::Result<DriverWaiter> {
        let timer = Box::pin(tokio::time::sleep(Duration::ZERO));
        Ok(DriverWaiter { set: Arc::clone(self), watched: Watched::default(), timer })
    }

    /// Changes the set, and lets the driver look at it.
    fn change<T>(&self, change: impl FnOnce(&mut Driven) -> T) -> T {
        let mut driven = self.0.lock();
        let result = change(&mut driven);
        let asleep = driven.driver.take();
        drop(driven);
        if let Some(asleep) = asleep {
            asleep.wake();
        }
        result
    }
}

/// Where the driver sleeps.
#[derive(Debug)]
pub(crate) struct DriverWaiter {
    set: Arc<DriverSet>,
    watched: Watched,
    timer: Pin<Box<Sleep>>,
}

impl DriverWaiter {
    /// Waits until at least one socket is ready, or the set is woken, or the timer has come, and
    /// appends the sockets to `out`. May return with nothing at all. Safe to cancel: nothing is taken
    /// from the set before it returns.
    pub(crate) async fn ready(&mut self, out: &mut Vec<Ready>) -> io::Result<Wakeup> {
        poll_fn(|context| self.poll_ready(context, out)).await
    }

    fn poll_ready(
        &mut self,
        context: &mut Context<'_>,
        out: &mut Vec<Ready>,
    ) -> Poll<io::Result<Wakeup>> {
        let mut driven = self.set.0.lock();
        driven.driver = Some(context.waker().clone());
        let armed: Vec<_> = driven
            .sockets
            .iter()
            .filter_map(|(&key, member)| Some((key, Arc::clone(&member.socket), member.armed?)))
            .collect();
        let before = out.len();
        self.watched.poll(context, &armed, out)?;
        for ready in &out[before..] {
            if let Some(member) = driven.sockets.get_mut(&ready.key) {
                member.armed = None;
            }
        }
        let mut wakeup = Wakeup { woken: std::mem::take(&mut driven.woken), timer: false };
        if let Some(at) = driven.timer {
            self.timer.as_mut().reset(at.into());
            if self.timer.as_mut().poll(context).is_ready() {
                driven.timer = None;
                wakeup.timer = true;
            }
        }
        if out.len() > before || wakeup != Wakeup::default() {
            return Poll::Ready(Ok(wakeup));
        }
        Poll::Pending
    }
}

/// What the members of a [`WaitSet`] are watched for.
const READ: Interest = Interest { read: true, write: false };

/// The sockets of one completion queue, for the threads and tasks that wait on it.
///
/// A socket is reported once, when it is readable; not again until [`rearm`](Self::rearm). So whoever
/// gets a report must see that the socket is driven to would-block. Whoever waits for room to send
/// arms the [`DriverSet`].
#[derive(Debug)]
pub(crate) struct WaitSet {
    sockets: Mutex<HashMap<u64, Member>>,
    alarm: Notifier,
    sleepers: Sleepers,
}

impl WaitSet {
    pub(crate) fn new() -> io::Result<Self> {
        Ok(Self {
            sockets: Mutex::default(),
            alarm: Notifier::new(false)?,
            sleepers: Sleepers::default(),
        })
    }

    /// Watches a socket. `key` must be below [`KEY_MAX`](super::KEY_MAX) and unique.
    pub(crate) fn add(&self, socket: BorrowedFd<'_>, key: u64) -> io::Result<()> {
        debug_assert!(key < KEY_MAX, "key {key} is used inside");
        let member = Member { socket: copy_of(socket)?, armed: Some(READ) };
        self.sockets.lock().insert(key, member);
        // Those asleep do not know it.
        self.wake();
        Ok(())
    }

    /// Forgets a socket; to be called before it is closed.
    #[expect(clippy::unnecessary_wraps, reason = "same as linux.rs")]
    pub(crate) fn remove(&self, _socket: BorrowedFd<'_>, key: u64) -> io::Result<()> {
        self.sockets.lock().remove(&key);
        Ok(())
    }

    /// Says that a socket was driven to would-block, so that it is reported when more comes.
    pub(crate) fn rearm(&self, key: u64) {
        let mut sockets = self.sockets.lock();
        let Some(member) = sockets.get_mut(&key) else { return };
        let silent = member.armed.replace(READ).is_none();
        drop(sockets);
        if silent {
            self.wake();
        }
    }

    /// To be taken before the last look at the queue; see [`Ticket`].
    pub(crate) fn ticket(&self) -> Ticket {
        self.sleepers.ticket()
    }

    /// Sleeps until a socket is ready, somebody wakes the set, or the time is over, and appends the
    /// sockets to `out`. Returns at once if the set was woken since the ticket was taken. May return
    /// early with nothing, after a signal for example.
    pub(crate) fn wait(
        &self,
        ticket: Ticket,
        timeout: Option<Duration>,
        out: &mut Vec<Ready>,
    ) -> io::Result<()> {
        let Some(_asleep) = self.sleep(ticket) else { return Ok(()) };
        self.poll_for(timeout, out)
    }

    /// What is ready now. Never blocks.
    pub(crate) fn poll_now(&self, out: &mut Vec<Ready>) -> io::Result<()> {
        self.poll_for(Some(Duration::ZERO), out)
    }

    /// Wakes everybody who sleeps, or has a ticket and is about to.
    pub(crate) fn wake(&self) {
        self.sleepers.wake(|| {
            let told = self.alarm.notify(1);
            debug_assert!(told.is_ok(), "a pipe of our own cannot fail: {told:?}");
        });
    }

    /// There is none: each task would have to watch every socket by itself, so the driver does it.
    #[expect(clippy::unused_self, clippy::unnecessary_wraps, reason = "same as linux.rs")]
    pub(crate) fn task_waiter(self: &Arc<Self>) -> io::Result<Option<TaskWaiter>> {
        Ok(None)
    }

    fn poll_for(&self, timeout: Option<Duration>, out: &mut Vec<Ready>) -> io::Result<()> {
        let armed = self.armed();
        let before = out.len();
        poll_sockets(&armed, Some(&self.alarm), timeout, out)?;
        self.silence(&out[before..]);
        Ok(())
    }

    fn armed(&self) -> Vec<(u64, Arc<OwnedFd>, Interest)> {
        let sockets = self.sockets.lock();
        let armed = |(&key, member): (&u64, &Member)| {
            Some((key, Arc::clone(&member.socket), member.armed?))
        };
        sockets.iter().filter_map(armed).collect()
    }

    fn silence(&self, reported: &[Ready]) {
        let mut sockets = self.sockets.lock();
        for ready in reported {
            if let Some(member) = sockets.get_mut(&ready.key) {
                member.armed = None;
            }
        }
    }

    fn sleep(&self, ticket: Ticket) -> Option<Asleep<'_>> {
        self.sleepers.enter(ticket).then(|| Asleep { set: self, ticket })
    }
}

struct Asleep<'a> {
    set: &'a WaitSet,
    ticket: Ticket,
}

impl Drop for Asleep<'_> {
    fn drop(&mut self) {
        self.set.sleepers.leave(self.ticket, || {
            let drained = self.set.alarm.drain();
            debug_assert!(drained.is_ok(), "a pipe of our own cannot fail: {drained:?}");
        });
    }
}

/// Where a task sleeps on the sockets of a [`WaitSet`]: nowhere, here.
#[derive(Debug)]
pub(crate) enum TaskWaiter {}

impl TaskWaiter {
    #[expect(clippy::unused_async, reason = "same as linux.rs")]
    pub(crate) async fn ready(&mut self, _out: &mut Vec<Ready>) -> io::Result<()> {
        match *self {}
    }
}

/// Sockets in the reactor of one runtime: each with the set's copy of its descriptor, which shows
/// whether it is still the same socket, and one more, since a runtime takes each descriptor only once
/// and may have several waiters.
#[derive(Debug, Default)]
struct Watched(HashMap<u64, (Arc<OwnedFd>, AsyncFd<Arc<OwnedFd>>)>);

impl Watched {
    /// Appends those of `wanted` that are ready now; if none is, the task is woken when one may be.
    fn poll(
        &mut self,
        context: &mut Context<'_>,
        wanted: &[(u64, Arc<OwnedFd>, Interest)],
        out: &mut Vec<Ready>,
    ) -> io::Result<()> {
        let keep: HashMap<u64, &Arc<OwnedFd>> =
            wanted.iter().map(|(key, socket, _)| (*key, socket)).collect();
        self.0.retain(|key, (watched, _)| {
            keep.get(key).is_some_and(|socket| Arc::ptr_eq(socket, watched))
        });
        // The reactor tells of changes, and remembers what it told. So its memory is wiped until it
        // would wake us, and only then is the system asked how things are.
        for (key, socket, interest) in wanted {
            let (_, watched) = match self.0.entry(*key) {
                Entry::Occupied(known) => known.into_mut(),
                Entry::Vacant(new) => {
                    let both = tokio::io::Interest::READABLE | tokio::io::Interest::WRITABLE;
                    new.insert((Arc::clone(socket), watch(copy_of(socket.as_fd())?, both)?))
                }
            };
            while interest.read
                && let Poll::Ready(told) = watched.poll_read_ready(context)
            {
                told?.clear_ready();
            }
            while interest.write
                && let Poll::Ready(told) = watched.poll_write_ready(context)
            {
                told?.clear_ready();
            }
        }
        poll_sockets(wanted, None, Some(Duration::ZERO), out)
    }
}

/// One poll(2). A signal or the alarm ends it with nothing.
fn poll_sockets(
    wanted: &[(u64, Arc<OwnedFd>, Interest)],
    alarm: Option<&Notifier>,
    timeout: Option<Duration>,
    out: &mut Vec<Ready>,
) -> io::Result<()> {
    let mut polled: Vec<_> = wanted
        .iter()
        .map(|(_, socket, interest)| {
            let mut flags = PollFlags::empty();
            flags.set(PollFlags::IN, interest.read);
            flags.set(PollFlags::OUT, interest.write);
            PollFd::new(&**socket, flags)
        })
        .chain(alarm.map(|alarm| PollFd::new(alarm, PollFlags::IN)))
        .collect();
    // Durations beyond what the system can express are as good as none.
    let timeout = timeout.and_then(|timeout| Timespec::try_from(timeout).ok());
    match poll(&mut polled, timeout.as_ref()) {
        Ok(_) | Err(Errno::INTR) => {}
        Err(error) => return Err(error.into()),
    }
    for ((key, _, _), polled) in wanted.iter().zip(&polled) {
        let flags = polled.revents();
        let over = flags.intersects(PollFlags::HUP | PollFlags::ERR | PollFlags::NVAL);
        if !flags.is_empty() {
            out.push(Ready {
                key: *key,
                readable: over || flags.contains(PollFlags::IN),
                writable: over || flags.contains(PollFlags::OUT),
                hangup: over,
            });
        }
    }
    Ok(())
}

fn copy_of(socket: BorrowedFd<'_>) -> io::Result<Arc<OwnedFd>> {
    Ok(Arc::new(fcntl_dupfd_cloexec(socket, 0)?))
}

fn retry<T>(call: impl FnMut() -> Result<T, Errno>) -> Result<T, Errno> {
    rustix::io::retry_on_intr(call)
}
