//! eventfd, epoll and timerfd.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use rustix::event::{EventfdFlags, Timespec, eventfd};
use rustix::io::Errno;
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, timerfd_create, timerfd_settime,
};
use tokio::io::unix::AsyncFd;

use super::sleepers::{Sleepers, Ticket};
use super::{Interest, KEY_MAX, Ready, Wakeup};
use crate::mem::watch;

const WAKE_KEY: u64 = KEY_MAX + 1;
const TIMER_KEY: u64 = KEY_MAX + 2;

/// Events taken by one system call.
const HARVEST: usize = 64;

/// A descriptor that is readable while something is to be told.
#[derive(Debug)]
pub(crate) struct Notifier {
    eventfd: OwnedFd,
    semaphore: bool,
}

impl Notifier {
    /// With `semaphore`, each take counts one notification; without, all of them.
    pub(crate) fn new(semaphore: bool) -> io::Result<Self> {
        let mut flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        flags.set(EventfdFlags::SEMAPHORE, semaphore);
        Ok(Self { eventfd: eventfd(0, flags)?, semaphore })
    }

    /// Tells `n` times. Never blocks; from any thread.
    pub(crate) fn notify(&self, n: u64) -> io::Result<()> {
        if n == 0 {
            return Ok(());
        }
        match retry(|| rustix::io::write(&self.eventfd, &n.to_ne_bytes())) {
            // Full: as readable as can be.
            Ok(_) | Err(Errno::AGAIN) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// Takes one notification (semaphore) or all of them, and says how many; `None` if there was none.
    pub(crate) fn try_take(&self) -> io::Result<Option<u64>> {
        let mut count = [0; 8];
        match retry(|| rustix::io::read(&self.eventfd, &mut count)) {
            Ok(_) => Ok(Some(u64::from_ne_bytes(count))),
            Err(Errno::AGAIN) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// Takes all notifications.
    pub(crate) fn drain(&self) -> io::Result<()> {
        while self.try_take()?.is_some() && self.semaphore {}
        Ok(())
    }
}

impl AsFd for Notifier {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.eventfd.as_fd()
    }
}

/// The driver's sockets. Each is reported once, then silent until it is armed again.
///
/// All functions but [`waiter`](Self::waiter) may be called from any thread, and never block.
#[derive(Debug)]
pub(crate) struct DriverSet {
    epoll: Arc<OwnedFd>,
    wake: Notifier,
    timer: OwnedFd,
}

impl DriverSet {
    pub(crate) fn new() -> io::Result<Self> {
        let epoll = epoll::create(CreateFlags::CLOEXEC)?;
        let wake = Notifier::new(false)?;
        let flags = TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK;
        let timer = timerfd_create(TimerfdClockId::Monotonic, flags)?;
        epoll::add(&epoll, &wake, EventData::new_u64(WAKE_KEY), EventFlags::IN)?;
        epoll::add(&epoll, &timer, EventData::new_u64(TIMER_KEY), EventFlags::IN)?;
        Ok(Self { epoll: Arc::new(epoll), wake, timer })
    }

    /// Makes a socket known, silent. `key` must be below [`KEY_MAX`](super::KEY_MAX) and unique.
    #[expect(clippy::unused_self, clippy::unnecessary_wraps, reason = "same as portable.rs")]
    pub(crate) fn add(&self, _socket: BorrowedFd<'_>, key: u64) -> io::Result<()> {
        debug_assert!(key < KEY_MAX, "key {key} is used inside");
        // The kernel would report hang-ups of a member from its first moment on, so the socket joins
        // when it is armed first.
        Ok(())
    }

    /// Reports the socket once when it is as wanted, at once if it is so now. Replaces an earlier arming.
    pub(crate) fn arm(
        &self,
        socket: BorrowedFd<'_>,
        key: u64,
        interest: Interest,
    ) -> io::Result<()> {
        let mut flags = EventFlags::ONESHOT;
        flags.set(EventFlags::IN | EventFlags::RDHUP, interest.read);
        flags.set(EventFlags::OUT, interest.write);
        let data = EventData::new_u64(key);
        match epoll::modify(&self.epoll, socket, data, flags) {
            Err(Errno::NOENT) => Ok(epoll::add(&self.epoll, socket, data, flags)?),
            done => Ok(done?),
        }
    }

    /// Reports nothing of a socket until it is armed again, but what the driver already has. A member of the set that
    /// is merely not armed costs the peer's `send` over loopback some 0.15 us for each segment: the kernel comes by all the
    /// same, under two locks.
    pub(crate) fn silence(&self, socket: BorrowedFd<'_>, key: u64) -> io::Result<()> {
        self.remove(socket, key)
    }

    /// Forgets a socket; to be called before it is closed. A report that the driver already has, but
    /// has not looked at, is not taken back.
    pub(crate) fn remove(&self, socket: BorrowedFd<'_>, _key: u64) -> io::Result<()> {
        match epoll::delete(&self.epoll, socket) {
            Ok(()) | Err(Errno::NOENT) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// Wakes the driver, or keeps it from sleeping next time.
    pub(crate) fn wake(&self) -> io::Result<()> {
        self.wake.notify(1)
    }

    /// Wakes the driver after `after`, once; `None` calls it off. Fine enough for tens of microseconds.
    pub(crate) fn set_timer(&self, after: Option<Duration>) -> io::Result<()> {
        let off = Timespec { tv_sec: 0, tv_nsec: 0 };
        let value = match after {
            None => off,
            // Zero would call it off.
            Some(after) => timespec(after.max(Duration::from_nanos(1))),
        };
        let once = Itimerspec { it_interval: off, it_value: value };
        timerfd_settime(&self.timer, TimerfdTimerFlags::empty(), &once)?;
        Ok(())
    }

    /// The driver's end of the set; to be made inside its tokio runtime, by one task at a time.
    pub(crate) fn waiter(self: &Arc<Self>) -> io::Result<DriverWaiter> {
        let epoll = watch(Arc::clone(&self.epoll), tokio::io::Interest::READABLE)?;
        Ok(DriverWaiter { set: Arc::clone(self), epoll })
    }

    fn harvest(&self, out: &mut Vec<Ready>) -> io::Result<(Wakeup, usize)> {
        let mut wakeup = Wakeup::default();
        let harvested = harvest(&self.epoll, Some(Duration::ZERO), |key, flags| match key {
            WAKE_KEY => wakeup.woken = true,
            TIMER_KEY => wakeup.timer = true,
            _ => out.push(ready(key, flags)),
        })?;
        if wakeup.woken {
            self.wake.drain()?;
        }
        if wakeup.timer {
            // Nothing to read if it was set anew since: then it has not come.
            let mut expirations = [0; 8];
            match retry(|| rustix::io::read(&self.timer, &mut expirations)) {
                Ok(_) => {}
                Err(Errno::AGAIN) => wakeup.timer = false,
                Err(error) => return Err(error.into()),
            }
        }
        Ok((wakeup, harvested))
    }
}

/// Where the driver sleeps.
#[derive(Debug)]
pub(crate) struct DriverWaiter {
    set: Arc<DriverSet>,
    epoll: AsyncFd<Arc<OwnedFd>>,
}

impl DriverWaiter {
    /// Waits until at least one socket is ready, or the set is woken, or the timer has come, and
    /// appends the sockets to `out`. May return with nothing at all. Safe to cancel: nothing is taken
    /// from the set before it returns.
    pub(crate) async fn ready(&mut self, out: &mut Vec<Ready>) -> io::Result<Wakeup> {
        loop {
            let mut guard = self.epoll.readable().await?;
            let (wakeup, harvested) = self.set.harvest(out)?;
            if harvested < HARVEST {
                guard.clear_ready();
            }
            if harvested > 0 {
                return Ok(wakeup);
            }
        }
    }
}

/// The sockets of one completion queue, for the threads and tasks that wait on it.
///
/// A socket is reported to *one* of those who wait, when it becomes readable or writable or more
/// arrives; not again until it was read or written to would-block. So whoever gets a report must see
/// that the socket is driven so far.
#[derive(Debug)]
pub(crate) struct WaitSet {
    epoll: Arc<OwnedFd>,
    alarm: Notifier,
    sleepers: Sleepers,
}

impl WaitSet {
    pub(crate) fn new() -> io::Result<Self> {
        let epoll = epoll::create(CreateFlags::CLOEXEC)?;
        let alarm = Notifier::new(false)?;
        // Level-triggered, so that it reaches all sleepers.
        epoll::add(&epoll, &alarm, EventData::new_u64(WAKE_KEY), EventFlags::IN)?;
        Ok(Self { epoll: Arc::new(epoll), alarm, sleepers: Sleepers::default() })
    }

    /// Watches a socket. `key` must be below [`KEY_MAX`](super::KEY_MAX) and unique.
    pub(crate) fn add(&self, socket: BorrowedFd<'_>, key: u64) -> io::Result<()> {
        debug_assert!(key < KEY_MAX, "key {key} is used inside");
        // Edge-triggered without one-shot: nothing is to be armed again on the fast path. Both
        // directions at once cost nothing, since the kernel only tells of space after a full buffer.
        let flags = EventFlags::IN | EventFlags::OUT | EventFlags::RDHUP | EventFlags::ET;
        Ok(epoll::add(&self.epoll, socket, EventData::new_u64(key), flags)?)
    }

    /// Forgets a socket; to be called before it is closed.
    pub(crate) fn remove(&self, socket: BorrowedFd<'_>, _key: u64) -> io::Result<()> {
        match epoll::delete(&self.epoll, socket) {
            Ok(()) | Err(Errno::NOENT) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// Says that a socket was driven to would-block, so that it is reported when more comes. The
    /// kernel knows by itself; costs nothing here.
    #[inline]
    #[expect(clippy::unused_self, reason = "same as portable.rs")]
    pub(crate) fn rearm(&self, _key: u64) {}

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
        self.harvest(timeout, out)?;
        Ok(())
    }

    /// What is ready now. Never blocks.
    pub(crate) fn poll_now(&self, out: &mut Vec<Ready>) -> io::Result<()> {
        self.harvest(Some(Duration::ZERO), out)?;
        Ok(())
    }

    /// Wakes everybody who sleeps, or has a ticket and is about to.
    pub(crate) fn wake(&self) {
        self.sleepers.wake(|| {
            let told = self.alarm.notify(1);
            debug_assert!(told.is_ok(), "an eventfd of our own cannot fail: {told:?}");
        });
    }

    /// For one task to wait with, inside its tokio runtime, whichever that is.
    pub(crate) fn task_waiter(self: &Arc<Self>) -> io::Result<Option<TaskWaiter>> {
        // One runtime may have several waiters, but takes each descriptor only once.
        let copy = rustix::io::fcntl_dupfd_cloexec(&self.epoll, 0)?;
        let epoll = watch(Arc::new(copy), tokio::io::Interest::READABLE)?;
        Ok(Some(TaskWaiter { set: Arc::clone(self), epoll }))
    }

    fn harvest(&self, timeout: Option<Duration>, out: &mut Vec<Ready>) -> io::Result<usize> {
        harvest(&self.epoll, timeout, |key, flags| {
            if key != WAKE_KEY {
                out.push(ready(key, flags));
            }
        })
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
            debug_assert!(drained.is_ok(), "an eventfd of our own cannot fail: {drained:?}");
        });
    }
}

/// Where a task sleeps on the sockets of a [`WaitSet`].
///
/// It hears of sockets only, not of [`WaitSet::wake`]: a task that is woken may not run for a long time,
/// and the threads that sleep in the set must not wait for it.
#[derive(Debug)]
pub(crate) struct TaskWaiter {
    set: Arc<WaitSet>,
    epoll: AsyncFd<Arc<OwnedFd>>,
}

impl TaskWaiter {
    /// Waits until a socket is ready, and appends what is to `out`; may return with nothing. Safe to
    /// cancel: nothing is taken from the set before it returns.
    pub(crate) async fn ready(&mut self, out: &mut Vec<Ready>) -> io::Result<()> {
        loop {
            let mut guard = self.epoll.readable().await?;
            let harvested = self.set.harvest(Some(Duration::ZERO), out)?;
            if harvested < HARVEST {
                guard.clear_ready();
            }
            if harvested > 0 {
                return Ok(());
            }
        }
    }
}

/// One `epoll_wait`. Returns the number of events, whatever they were; 0 after a signal.
#[inline]
fn harvest(
    epoll: &OwnedFd,
    timeout: Option<Duration>,
    mut each: impl FnMut(u64, EventFlags),
) -> io::Result<usize> {
    let mut space = [const { MaybeUninit::<epoll::Event>::uninit() }; HARVEST];
    let timeout = timeout.map(timespec);
    let events = match epoll::wait(epoll, &mut space, timeout.as_ref()) {
        Ok((events, _)) => events,
        Err(Errno::INTR) => return Ok(0),
        Err(error) => return Err(error.into()),
    };
    for event in &*events {
        // The kernel's structure is packed on some processors.
        let (data, flags) = (event.data, event.flags);
        each(data.u64(), flags);
    }
    Ok(events.len())
}

fn ready(key: u64, flags: EventFlags) -> Ready {
    let over = flags.intersects(EventFlags::HUP | EventFlags::ERR);
    Ready {
        key,
        readable: over || flags.intersects(EventFlags::IN | EventFlags::RDHUP),
        writable: over || flags.contains(EventFlags::OUT),
        hangup: over,
    }
}

/// Durations beyond what the system can express end there.
fn timespec(duration: Duration) -> Timespec {
    Timespec::try_from(duration).unwrap_or(Timespec { tv_sec: i64::MAX, tv_nsec: 0 })
}

fn retry<T>(call: impl FnMut() -> Result<T, Errno>) -> Result<T, Errno> {
    rustix::io::retry_on_intr(call)
}
