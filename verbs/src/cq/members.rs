//! The queue pairs that report to one completion queue, and their sockets.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, OnceLock, Weak};

use parking_lot::Mutex;

use super::Hand;
use crate::engine::{Asked, Caller};
use crate::error::Error;
use crate::qp::QpInner;
use crate::sys::{Ready, Socket, WaitSet};

/// Connections that a poll tries one by one. Trying costs some 250 ns each.
const ACTIVE_MAX: usize = 8;

/// Empty polls between two looks at the sockets of those that are not active.
const LOOK_AROUND: u32 = 16;

/// Queue pairs, by number, and which of them a poll tries.
///
/// The *active* ones are tried by each poll that finds nothing: all that are connected, up to
/// [`ACTIVE_MAX`]; beyond that those with the latest work. The others are in the wait set, an epoll set of
/// all the queue's sockets, which a poll asks now and then, and in which threads and tasks sleep. One that
/// loses its place with something left to do, which the set would not report again, waits *aside* and is
/// tried by a poll before the active ones. The set is
/// made when the first of these needs it, so that a queue that is only ever polled for few connections
/// costs no descriptor, and its sockets are watched by nobody but the driver.
///
/// A system that is out of descriptors or of memory may refuse the set, or a socket's place in it. Polls and waits are
/// *blind* from then on: they may miss a connection, so the driver looks at all of them, as if nobody polled.
///
/// Nothing here keeps a queue pair alive. No lock is held while a queue pair is driven.
#[derive(Debug, Default)]
pub(super) struct Members {
    table: Mutex<HashMap<u32, Member>>,
    /// Made with `table` locked, so that no socket misses it.
    set: OnceLock<Arc<WaitSet>>,
    active: Mutex<Vec<Active>>,
    /// Those that have lost their place with something to do. Locked alone, or within `active`.
    aside: Mutex<VecDeque<Active>>,
    /// There are some.
    any_aside: AtomicBool,
    /// There are connected queue pairs that are not active.
    crowded: AtomicBool,
    /// More than one is connected.
    several: AtomicBool,
    /// Not all that are connected can be seen.
    blind: AtomicBool,
    /// Where the next poll begins, so that a busy connection does not shut the others out.
    turn: AtomicU32,
}

#[derive(Debug)]
struct Member {
    qp: Weak<QpInner>,
    /// While connected.
    socket: Option<Arc<Socket>>,
    /// How often it is attached: twice if both its work queues report here.
    attached: u32,
}

#[derive(Debug)]
struct Active {
    number: u32,
    qp: Weak<QpInner>,
    /// Turn in which it had work last.
    worked: u32,
}

impl Members {
    pub(super) fn attach(&self, qp: &Arc<QpInner>) {
        let mut table = self.table.lock();
        let member = table.entry(qp.number).or_insert_with(|| Member {
            qp: Arc::downgrade(qp),
            socket: None,
            attached: 0,
        });
        member.attached += 1;
    }

    pub(super) fn detach(&self, number: u32) {
        let mut table = self.table.lock();
        let Some(member) = table.get_mut(&number) else { return };
        member.attached -= 1;
        if member.attached > 0 {
            return;
        }
        if let Some(Member { socket: Some(socket), .. }) = table.remove(&number) {
            self.unwatch(number, &socket);
        }
        self.deactivate(number, &table);
    }

    pub(super) fn count(&self) -> usize {
        self.table.lock().len()
    }

    pub(super) fn socket_added(&self, number: u32, socket: &Arc<Socket>) {
        let mut table = self.table.lock();
        let Some(member) = table.get_mut(&number) else { return };
        if member.socket.is_some() {
            // Attached twice.
            return;
        }
        member.socket = Some(Arc::clone(socket));
        let qp = Weak::clone(&member.qp);
        self.watch(number, socket);
        let mut active = self.active.lock();
        if active.len() < ACTIVE_MAX {
            active.push(Active { number, qp, worked: self.turn.load(Ordering::Relaxed) });
            self.several.store(active.len() > 1, Ordering::Relaxed);
            return;
        }
        drop(active);
        self.crowded.store(true, Ordering::Relaxed);
        if let Err(error) = self.make_set(&table) {
            tracing::warn!(%error, "no descriptor to look at many connections at once");
            self.go_blind();
        }
    }

    pub(super) fn socket_removed(&self, number: u32) {
        let mut table = self.table.lock();
        let Some(member) = table.get_mut(&number) else { return };
        let Some(socket) = member.socket.take() else { return };
        self.unwatch(number, &socket);
        self.deactivate(number, &table);
    }

    /// Sees that the next polls try this queue pair.
    pub(super) fn offer(&self, qp: &Arc<QpInner>) {
        if !self.crowded.load(Ordering::Relaxed) {
            // All are active.
            return;
        }
        let worked = self.turn.load(Ordering::Relaxed);
        let mut active = self.active.lock();
        if qp.is_gone() {
            // Whoever detaches it takes it out with the lock held, and perhaps has already.
            return;
        }
        if let Some(known) = active.iter_mut().find(|active| active.number == qp.number) {
            known.worked = worked;
            return;
        }
        let entry = Active { number: qp.number, qp: Arc::downgrade(qp), worked };
        if active.len() < ACTIVE_MAX {
            active.push(entry);
            return;
        }
        let idlest = active.iter_mut().max_by_key(|active| worked.wrapping_sub(active.worked));
        let out = idlest.map(|idlest| std::mem::replace(idlest, entry));
        drop(active);
        if let Some(out) = out {
            self.set_aside(qp.number, out);
        }
    }

    /// One has lost its place to `taker`. With nothing locked: this may be its last reference.
    fn set_aside(&self, taker: u32, out: Active) {
        let has_rest = out.qp.upgrade().is_some_and(|qp| qp.has_rest());
        if !has_rest && !self.any_aside.load(Ordering::Relaxed) {
            return;
        }
        let mut aside = self.aside.lock();
        aside.retain(|waiting| waiting.number != taker && waiting.number != out.number);
        if has_rest {
            aside.push_back(out);
        }
        self.any_aside.store(!aside.is_empty(), Ordering::Relaxed);
    }

    /// Drives the one that has waited aside longest.
    #[cold]
    fn drive_aside(&self, hand: &mut Hand) {
        let waiting = {
            let mut aside = self.aside.lock();
            let waiting = aside.pop_front();
            self.any_aside.store(!aside.is_empty(), Ordering::Relaxed);
            waiting
        };
        if let Some(qp) = waiting.and_then(|waiting| waiting.qp.upgrade()) {
            qp.drive_for_poll(hand);
            if qp.has_rest() {
                self.offer(&qp);
            }
        }
    }

    /// Drives the active connections until `done`, and now and then looks for others with something to
    /// do. Never blocks. `missed` counts the polls that found nothing; `hand` is that of this one.
    pub(super) fn drive_active(&self, missed: u32, hand: &mut Hand, done: impl Fn(&Hand) -> bool) {
        let crowded = self.crowded.load(Ordering::Relaxed);
        if crowded && missed.is_multiple_of(LOOK_AROUND) {
            self.look_around();
            if done(hand) {
                return;
            }
        }
        if self.any_aside.load(Ordering::Relaxed) {
            self.drive_aside(hand);
            if done(hand) {
                return;
            }
        }
        let first = self.turn.load(Ordering::Relaxed);
        for (step, ahead) in (0..ACTIVE_MAX).zip(0..) {
            let turn = first.wrapping_add(ahead);
            let (qp, count) = {
                let active = self.active.lock();
                let place = if active.len() > 1 { turn as usize % active.len() } else { 0 };
                (active.get(place).and_then(|active| active.qp.upgrade()), active.len())
            };
            if let Some(qp) = qp {
                self.turn.store(turn.wrapping_add(1), Ordering::Relaxed);
                if qp.drive_for_poll(hand).found_work && crowded {
                    self.offer(&qp);
                }
                if done(hand) {
                    return;
                }
            }
            if step + 1 >= count {
                return;
            }
        }
    }

    fn look_around(&self) {
        let Some(set) = self.set.get() else { return };
        let mut ready = Vec::new();
        match set.poll_now(&mut ready) {
            Ok(()) => self.drive_ready(set, &mut ready),
            Err(error) => {
                tracing::error!(%error, "cannot look at the sockets of a completion queue");
            }
        }
    }

    /// Drives those whose sockets were reported. Each report is seen by one caller only, who must see to
    /// it that the socket is driven to would-block: a pass does that, or hands over to the driver.
    pub(super) fn drive_ready(&self, set: &WaitSet, ready: &mut Vec<Ready>) {
        for ready in ready.drain(..) {
            let Ok(number) = u32::try_from(ready.key) else { continue };
            let qp = self.table.lock().get(&number).and_then(|member| member.qp.upgrade());
            let Some(qp) = qp else { continue };
            if ready.hangup {
                qp.ask(Asked::HANGUP);
            }
            qp.drive(Caller::Wait);
            set.rearm(ready.key);
            self.offer(&qp);
        }
    }

    /// The wait set, made now if need be.
    pub(super) fn wait_set(&self) -> Result<&Arc<WaitSet>, Error> {
        if let Some(set) = self.set.get() {
            return Ok(set);
        }
        self.make_set(&self.table.lock())
    }

    /// Whether there are connections that are not active.
    #[inline]
    pub(super) fn is_crowded(&self) -> bool {
        self.crowded.load(Ordering::Relaxed)
    }

    /// Leaves the looking to the driver: slower, but nothing waits for ever.
    pub(super) fn go_blind(&self) {
        self.blind.store(true, Ordering::Relaxed);
    }

    /// Whether there may be connections that neither polls nor waits see.
    #[inline]
    pub(super) fn are_blind(&self) -> bool {
        self.blind.load(Ordering::Relaxed)
    }

    /// Whether more than one connection reports here.
    #[inline]
    pub(super) fn are_several(&self) -> bool {
        self.several.load(Ordering::Relaxed)
    }

    pub(super) fn wake_threads(&self) {
        // Whoever sleeps has made it.
        if let Some(set) = self.set.get() {
            set.wake();
        }
    }

    /// Moves all queue pairs to the error state, because their completions are being lost.
    pub(super) fn fail_all(&self) {
        let members: Vec<_> =
            self.table.lock().values().filter_map(|member| member.qp.upgrade()).collect();
        for qp in members {
            qp.overrun();
        }
    }

    /// `_table` shows that it is locked: a socket is added either before this looks, or after the set is
    /// there.
    fn make_set(&self, table: &HashMap<u32, Member>) -> Result<&Arc<WaitSet>, Error> {
        if self.set.get().is_none() {
            let set = WaitSet::new()
                .map_err(|error| Error::io("make a descriptor to wait with", error))?;
            let set = self.set.get_or_init(|| Arc::new(set));
            for (&number, member) in table {
                if let Some(socket) = &member.socket {
                    self.add(set, number, socket);
                }
            }
        }
        self.set.get().ok_or_else(|| {
            Error::io("make a descriptor to wait with", std::io::ErrorKind::Other.into())
        })
    }

    fn add(&self, set: &WaitSet, number: u32, socket: &Socket) {
        use std::os::fd::AsFd;

        if let Err(error) = set.add(socket.as_fd(), number.into()) {
            tracing::warn!(qp = number, %error, "socket not watched by its completion queue");
            self.go_blind();
        }
    }

    fn watch(&self, number: u32, socket: &Socket) {
        if let Some(set) = self.set.get() {
            self.add(set, number, socket);
        }
    }

    fn unwatch(&self, number: u32, socket: &Socket) {
        use std::os::fd::AsFd;

        if let Some(set) = self.set.get() {
            let removed = set.remove(socket.as_fd(), number.into());
            debug_assert!(removed.is_ok(), "a set of our own cannot fail: {removed:?}");
        }
    }

    fn deactivate(&self, number: u32, table: &HashMap<u32, Member>) {
        let mut active = self.active.lock();
        active.retain(|active| active.number != number);
        self.several.store(active.len() > 1, Ordering::Relaxed);
        if !self.crowded.load(Ordering::Relaxed) {
            return;
        }
        self.aside.lock().retain(|waiting| waiting.number != number);
        let connected = || table.iter().filter(|(_, member)| member.socket.is_some());
        let few = connected().take(ACTIVE_MAX + 1).count();
        self.several.store(few > 1, Ordering::Relaxed);
        if few <= ACTIVE_MAX {
            // All have a place again. Whoever is not connected has none to take.
            let worked = self.turn.load(Ordering::Relaxed);
            active.clear();
            active.extend(connected().map(|(&number, member)| Active {
                number,
                qp: Weak::clone(&member.qp),
                worked,
            }));
            self.crowded.store(false, Ordering::Relaxed);
        }
    }
}
