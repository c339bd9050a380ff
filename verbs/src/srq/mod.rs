//! Shared receive queues: receives for whichever of many queue pairs needs one next.
//!
//! | file | holds |
//! |---|---|
//! | `mod.rs` | [`SharedReceiveQueue`], what programs hold |
//! | `pool.rs` | the receives, and the line of those who wait for one |
//! | `share.rs` | what one queue pair has of it |
//!
//! # Locks
//!
//! The state's lock is taken inside of passes, with an engine held, and nothing is called under it. Queue pairs
//! that were called out of the line are driven with no lock held: by who posted, from the outbox of a pass, or
//! by the driver.

mod pool;
mod share;

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Weak};

use self::pool::Pool;
pub(crate) use self::share::Share;
use crate::cq::QueueSlots;
use crate::device::{Device, DeviceInner, DeviceLimits};
use crate::error::Error;
use crate::event::{Ack, AsyncEventKind, Unacked};
use crate::mem::PdId;
use crate::pd::{PdInner, ProtectionDomain};
use crate::qp::QpInner;
use crate::qp::wqe::{RecvWqe, Reply};
use crate::sync::Mutex;
use crate::users::{Use, Used, User};
use crate::wr::{PostError, PostErrorCause, RecvRequest};

/// In errors.
const WHAT: &str = "shared receive queue";

/// Queue pairs that a posting thread drives itself, before it leaves the others to the driver.
const DRIVEN_BY_POST: usize = 4;

/// What a new shared receive queue is to be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SrqConfig {
    /// Receives that may be outstanding: posted, being filled, or completed and not yet polled. At most
    /// [`DeviceLimits::max_srq_wr`].
    pub max_wr: u32,
    /// Elements of one receive. At most [`DeviceLimits::max_sge`].
    pub max_sge: u32,
    /// When fewer receives than this are left, [`AsyncEventKind::SrqLimitReached`] is raised, once; at most
    /// `max_wr`, and 0 for never.
    pub limit: u32,
}

impl Default for SrqConfig {
    fn default() -> Self {
        Self { max_wr: 1024, max_sge: 4, limit: 0 }
    }
}

impl SrqConfig {
    fn check(&self, limits: &DeviceLimits) -> Result<(), Error> {
        if self.max_wr == 0 {
            return Err(Error::Empty { what: WHAT });
        }
        let table = [
            ("receives in a shared queue", self.max_wr, limits.max_srq_wr),
            ("elements of a receive", self.max_sge, limits.max_sge),
            ("receives as the limit of a shared queue", self.limit, self.max_wr),
        ];
        for (what, asked, max) in table {
            if asked > max {
                return Err(Error::Limit { what, asked: asked.into(), max: max.into() });
            }
        }
        Ok(())
    }
}

/// What to change of a shared receive queue; `None` leaves a value as it is.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct SrqChange {
    /// See [`SrqConfig::max_wr`].
    pub max_wr: Option<u32>,
    /// See [`SrqConfig::limit`].
    pub limit: Option<u32>,
}

/// What a shared receive queue is at this moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct SrqAttributes {
    /// Receives that may be outstanding.
    pub max_wr: u32,
    /// Elements of one receive.
    pub max_sge: u32,
    /// The limit that is armed; 0 if none is, or it was reached.
    pub limit: u32,
    /// Receives that no queue pair has taken.
    pub available: u32,
    /// Receives that are outstanding: those available, those being filled, and those whose completions have not
    /// been polled.
    pub outstanding: u32,
    /// Queue pairs that take their receives from it.
    pub queue_pairs: usize,
    /// Of which so many are held back because there is none for them.
    pub waiting: usize,
}

/// A shared receive queue: receives that are used by many queue pairs, each message taking the oldest.
///
/// A server with a thousand connections needs as many receives as messages arrive before it has dealt with
/// them, and not a thousand times what one connection may need. A handle, cheap to clone; all methods may be
/// called from any thread and none blocks, except [`destroy`](Self::destroy) as it says.
///
/// - Receives are posted here, and not to the queue pairs made
///   [with it](crate::QpConfig::shared_receive_queue). Their memory is of the domain that the shared queue was
///   made from; the queue pairs may be of others.
/// - A message takes the oldest receive when its first segment comes in. The completion goes to the receive
///   queue of the queue pair, names it, and comes in the order of its messages. The place is free for another
///   receive when that completion has been polled (FC-066).
/// - A message that finds none waits, as it does with a queue of its own
///   ([`DeviceConfig::hold_back`](crate::DeviceConfig::hold_back)), and the other queue pairs do not. Posting
///   serves those that wait in the order in which they came, and wakes no more than it posts receives for.
/// - A queue pair that fails takes nothing with it but the receive that is being filled, which is flushed to
///   its completion queue. Once it has no receive any more,
///   [`AsyncEventKind::QpLastWqeReached`] is raised: what it still has to report is in its completion queues.
/// - How many receives each queue pair holds can be [seen](Self::holders), and
///   [bounded](crate::QpConfig::max_shared_receives) (SEC-12).
///
/// ```
/// use iwarp_verbs::{Access, Device, DeviceConfig, QpConfig, RecvRequest, SrqConfig};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let device = Device::open(DeviceConfig::default())?;
/// let (pd, cq) = (device.alloc_pd(), device.create_cq(256)?);
/// let srq = pd.create_srq(&SrqConfig { max_wr: 64, limit: 8, ..SrqConfig::default() })?;
/// let room = pd.alloc(64 * 1024, Access::LOCAL_WRITE)?;
/// for id in 0..64 {
///     srq.post_recv(RecvRequest::new(id as u64, room.slice(id * 1024..(id + 1) * 1024)?))?;
/// }
/// // As many of these as there are clients.
/// let qp = pd.create_qp(&QpConfig::new(&cq).shared_receive_queue(&srq))?;
/// assert_eq!(srq.query().available, 64);
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct SharedReceiveQueue(Arc<SrqHandle>);

/// The program's hold on a shared receive queue.
pub(crate) struct SrqHandle {
    inner: Arc<SrqInner>,
    /// Held by the program's handles only: a queue pair that is still closing keeps no domain in use.
    pd: Use<PdInner>,
}

/// What handles and queue pairs share.
pub(crate) struct SrqInner {
    handle: Weak<SrqHandle>,
    device: Arc<DeviceInner>,
    /// For logs.
    number: u32,
    domain: PdId,
    max_sge: u32,
    /// Places: taken at posting with the state locked.
    slots: Arc<QueueSlots>,
    unacked: Arc<Unacked>,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    pool: Pool<RecvWqe, Weak<QpInner>>,
    max_wr: u32,
    /// Queue pairs by their number, with the places that each holds.
    users: HashMap<u32, Arc<QueueSlots>>,
    /// Only while there are no users.
    destroyed: bool,
}

/// Queue pairs that were called out of the line. Also driven if the iterator of the program panics.
#[derive(Default)]
struct Called(Vec<Weak<QpInner>>);

impl Drop for Called {
    fn drop(&mut self) {
        for (turn, qp) in self.0.iter().filter_map(Weak::upgrade).enumerate() {
            if turn < DRIVEN_BY_POST {
                qp.resume();
            } else {
                qp.resume_later();
            }
        }
    }
}

impl SharedReceiveQueue {
    pub(crate) fn create(pd: &Arc<PdInner>, config: &SrqConfig) -> Result<Self, Error> {
        pd.device.check_origin()?;
        config.check(&pd.device.config.limits)?;
        let SrqConfig { max_wr, max_sge, limit } = *config;
        if pd.device.users().is_destroyed() {
            return Err(Error::Destroyed { what: DeviceInner::WHAT });
        }
        let pd = Use::begin(pd, User::SharedReceiveQueue)?;
        Ok(Self(Arc::new_cyclic(|handle| {
            let inner = SrqInner {
                handle: Weak::clone(handle),
                device: Arc::clone(&pd.device),
                number: pd.device.number_srq(),
                domain: pd.id,
                max_sge,
                slots: Arc::new(QueueSlots::new(max_wr)),
                unacked: Arc::default(),
                state: Mutex::new(State {
                    pool: Pool::new(limit),
                    max_wr,
                    users: HashMap::new(),
                    destroyed: false,
                }),
            };
            SrqHandle { inner: Arc::new(inner), pd }
        })))
    }

    pub(crate) fn from_handle(handle: Arc<SrqHandle>) -> Self {
        Self(handle)
    }

    pub(crate) fn inner(&self) -> &Arc<SrqInner> {
        &self.0.inner
    }

    /// Posts one receive.
    ///
    /// # Errors
    /// As [`QueuePair::post_recv`](crate::QueuePair::post_recv): a full queue, or memory that does not fit. The
    /// error gives the request back.
    pub fn post_recv(&self, request: RecvRequest) -> Result<(), PostError<RecvRequest>> {
        self.post_recv_list([request])
    }

    /// Posts receives in order; stops at the first that is refused: those before it are posted, it comes back
    /// in the error, and those after it are not looked at (FC-065).
    pub fn post_recv_list(
        &self,
        requests: impl IntoIterator<Item = RecvRequest>,
    ) -> Result<(), PostError<RecvRequest>> {
        let srq = &self.0.inner;
        let mut called = Called::default();
        let mut refused = None;
        for (index, request) in requests.into_iter().enumerate() {
            // FC-064
            if !srq.device.origin.is_here() {
                let cause = PostErrorCause::Forked;
                refused = Some(PostError { index, cause, request: Box::new(request) });
                break;
            }
            // The program's iterator runs with nothing locked.
            match srq.post(request) {
                Ok(woken) => called.0.extend(woken),
                Err((cause, request)) => {
                    refused = Some(PostError { index, cause, request: Box::new(request) });
                    break;
                }
            }
        }
        drop(called);
        refused.map_or(Ok(()), Err)
    }

    /// Changes its size or its limit.
    ///
    /// A limit is armed by setting it, also to the value that it has, and looked at whenever a receive is
    /// taken: with fewer left it is raised once and is 0 from then on. If fewer are left already, that is with
    /// the next one taken.
    ///
    /// # Errors
    /// [`Error::TooSmall`] for a size below the number of receives outstanding, [`Error::Limit`] for one beyond
    /// that of the device and for a limit beyond the size, [`Error::Empty`] for a size of 0, and
    /// [`Error::Destroyed`]. Nothing is changed then.
    pub fn modify(&self, change: SrqChange) -> Result<(), Error> {
        let srq = &self.0.inner;
        srq.device.check_origin()?;
        let mut state = srq.state.lock();
        if state.destroyed {
            return Err(Error::Destroyed { what: WHAT });
        }
        let max_wr = change.max_wr.unwrap_or(state.max_wr);
        let limit = change.limit.unwrap_or_else(|| state.pool.limit());
        SrqConfig { max_wr, max_sge: srq.max_sge, limit }.check(&srq.device.config.limits)?;
        if max_wr != state.max_wr {
            srq.slots.resize(max_wr).map_err(|taken| Error::TooSmall {
                what: "receives in a shared queue",
                asked: max_wr.into(),
                needed: taken.into(),
            })?;
            state.max_wr = max_wr;
        }
        if change.limit.is_some() {
            state.pool.arm(limit);
        }
        Ok(())
    }

    /// Its attributes at this moment.
    #[must_use]
    pub fn query(&self) -> SrqAttributes {
        let srq = &self.0.inner;
        let state = srq.state.lock();
        SrqAttributes {
            max_wr: state.max_wr,
            max_sge: srq.max_sge,
            limit: state.pool.limit(),
            available: u32::try_from(state.pool.len()).unwrap_or(u32::MAX),
            outstanding: srq.slots.in_use(),
            queue_pairs: state.users.len(),
            waiting: state.pool.waiting(),
        }
    }

    /// The numbers of its queue pairs, each with the receives that it holds, being filled or completed and not
    /// yet polled: to find the peer that takes more than its share (SEC-12). In no order.
    #[must_use]
    pub fn holders(&self) -> Vec<(u32, u32)> {
        let state = self.0.inner.state.lock();
        state.users.iter().map(|(&number, slots)| (number, slots.in_use())).collect()
    }

    /// Acknowledges events about it that were
    /// [taken apart](crate::AsyncEvent::into_unacknowledged) without being acknowledged.
    ///
    /// # Errors
    /// [`Error::Acknowledged`] if there are fewer; then nothing is acknowledged.
    pub fn ack_events(&self, n: u64) -> Result<(), Error> {
        self.0.inner.unacked.ack(n)
    }

    /// The protection domain of the memory in its receives.
    #[must_use]
    pub fn pd(&self) -> ProtectionDomain {
        ProtectionDomain(Arc::clone(&self.0.pd))
    }

    /// The device.
    #[must_use]
    pub fn device(&self) -> Device {
        Device(Arc::clone(&self.0.inner.device))
    }

    /// Gives the queue up for all handles. Receives that were not taken vanish without completion.
    ///
    /// Not needed: the queue ends with its last user. Blocks until the program has acknowledged the
    /// asynchronous events about it that it has fetched; those not yet fetched vanish (FC-040).
    ///
    /// # Errors
    /// [`Error::Busy`] while queue pairs use it, [`Error::Destroyed`] the second time.
    pub fn destroy(&self) -> Result<(), Error> {
        let srq = &self.0.inner;
        srq.device.check_origin()?;
        let unused = {
            let mut state = srq.state.lock();
            if state.destroyed {
                return Err(Error::Destroyed { what: WHAT });
            }
            let users = state.users.len();
            if users > 0 {
                return Err(Error::Busy { what: WHAT, users, by: User::QueuePair.name(users) });
            }
            state.destroyed = true;
            std::mem::replace(&mut state.pool, Pool::new(0))
        };
        // They may hold the last handles of their regions.
        drop(unused);
        self.0.pd.end();
        srq.device.events().forget_srq(&self.0);
        srq.unacked.wait_none();
        Ok(())
    }
}

impl PartialEq for SharedReceiveQueue {
    /// Whether both name the same queue.
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0.inner, &other.0.inner)
    }
}

impl Eq for SharedReceiveQueue {}

impl fmt::Debug for SharedReceiveQueue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.inner.fmt(f)
    }
}

impl SrqInner {
    pub(crate) fn device(&self) -> &Arc<DeviceInner> {
        &self.device
    }

    /// Posts a receive, and tells who is to be woken for it.
    #[allow(clippy::result_large_err, reason = "given on at once")]
    fn post(
        &self,
        request: RecvRequest,
    ) -> Result<Option<Weak<QpInner>>, (PostErrorCause, RecvRequest)> {
        if let Err(cause) = request.check(self.max_sge, self.domain) {
            return Err((cause, request));
        }
        let mut state = self.state.lock();
        if state.destroyed {
            return Err((PostErrorCause::Destroyed { what: WHAT }, request));
        }
        if !self.slots.reserve(1) {
            return Err((PostErrorCause::QueueFull { capacity: state.max_wr }, request));
        }
        let RecvRequest { id, payload } = request;
        state.pool.add(RecvWqe { wr_id: id, payload, reply: Reply::Cq });
        Ok(state.pool.call())
    }

    /// Tells the program that few receives are left.
    pub(crate) fn raise_limit(&self) {
        let gone = || self.state.lock().destroyed;
        let kind = AsyncEventKind::SrqLimitReached;
        self.device.events().raise_srq(kind, Weak::clone(&self.handle), gone);
    }
}

impl SrqHandle {
    /// One more event about it is fetched; `None` if it was destroyed, and there is to be none any more.
    pub(crate) fn issue_ack(&self) -> Option<Ack> {
        let state = self.inner.state.lock();
        (!state.destroyed).then(|| self.inner.unacked.issue())
    }
}

impl fmt::Debug for SrqHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.fmt(f)
    }
}

impl fmt::Debug for SrqInner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SharedReceiveQueue").field("number", &self.number).finish_non_exhaustive()
    }
}
