//! Attributes: what is asked for at creation, and what a query tells.

use std::fmt;

use crate::cq::CompletionQueue;
use crate::device::DeviceLimits;
use crate::error::Error;
use crate::mem::Access;
use crate::srq::SharedReceiveQueue;

/// State of a queue pair. The integers are those of `enum ibv_qp_state`.
///
/// `Rtr` is never entered: on iWARP one step leads from `Init` to `Rts`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u32)]
#[non_exhaustive]
pub enum QpState {
    /// Not usable for anything before it is moved to `Init`.
    Reset = 0,
    /// Not connected. Receives may be posted. What a new queue pair is (FC-070).
    Init = 1,
    /// Ready to receive; not used on iWARP.
    Rtr = 2,
    /// Connected.
    Rts = 3,
    /// An orderly close has begun.
    Sqd = 4,
    /// An error was found, or a Terminate sent or received; the connection is being closed.
    Sqe = 5,
    /// Not connected any more; whatever is posted is flushed.
    Err = 6,
}

impl QpState {
    /// All states.
    pub const ALL: [Self; 7] =
        [Self::Reset, Self::Init, Self::Rtr, Self::Rts, Self::Sqd, Self::Sqe, Self::Err];

    /// The integer libibverbs uses for this state.
    #[must_use]
    pub const fn value(self) -> u32 {
        self as u32
    }
}

impl fmt::Display for QpState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Reset => "RESET",
            Self::Init => "INIT",
            Self::Rtr => "RTR",
            Self::Rts => "RTS",
            Self::Sqd => "SQD",
            Self::Sqe => "SQE",
            Self::Err => "ERR",
        })
    }
}

/// Sizes of a queue pair. What is asked for is what is given, exactly (FC-066, FC-071).
///
/// Any of them may be 0 (FC-010).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct QpCaps {
    /// Requests that may be outstanding on the send queue.
    pub max_send_wr: u32,
    /// Receives that may be outstanding.
    pub max_recv_wr: u32,
    /// Elements of one request of the send queue.
    pub max_send_sge: u32,
    /// Elements of one receive.
    pub max_recv_sge: u32,
    /// Octets of inline data in one request.
    pub max_inline_data: u32,
}

impl Default for QpCaps {
    fn default() -> Self {
        Self {
            max_send_wr: 128,
            max_recv_wr: 128,
            max_send_sge: 4,
            max_recv_sge: 4,
            max_inline_data: 128,
        }
    }
}

impl QpCaps {
    /// Refuses what the device does not offer.
    pub(crate) fn check(&self, limits: &DeviceLimits) -> Result<(), Error> {
        let table = [
            ("send queue requests", self.max_send_wr, limits.max_qp_wr),
            ("receives", self.max_recv_wr, limits.max_qp_wr),
            ("elements of a send request", self.max_send_sge, limits.max_sge),
            ("elements of a receive", self.max_recv_sge, limits.max_sge),
            ("octets of inline data", self.max_inline_data, limits.max_inline_data),
        ];
        for (what, asked, max) in table {
            if asked > max {
                return Err(Error::Limit { what, asked: asked.into(), max: max.into() });
            }
        }
        Ok(())
    }
}

/// What a new queue pair is to be.
///
/// ```
/// use iwarp_verbs::{Access, Device, DeviceConfig, QpConfig};
///
/// # fn main() -> Result<(), iwarp_verbs::Error> {
/// let device = Device::open(DeviceConfig::default())?;
/// let cq = device.create_cq(64)?;
/// let config = QpConfig::new(&cq)
///     .max_send_wr(32)
///     .max_recv_wr(32)
///     .remote_access(Access::REMOTE_READ);
/// let qp = device.alloc_pd().create_qp(&config)?;
/// assert_eq!(qp.query().caps.max_send_wr, 32);
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
pub struct QpConfig {
    pub(crate) send_cq: CompletionQueue,
    pub(crate) recv_cq: CompletionQueue,
    pub(crate) caps: QpCaps,
    pub(crate) signal_all: bool,
    pub(crate) remote_access: Access,
    pub(crate) remote_invalidate: bool,
    pub(crate) extensions: bool,
    pub(crate) srq: Option<SharedReceiveQueue>,
    pub(crate) max_shared_receives: Option<u32>,
}

impl QpConfig {
    /// A queue pair that reports to `cq`: the requests of both queues, unless [`recv_cq`](Self::recv_cq)
    /// names another one for receives. Sizes are those of [`QpCaps::default`]; the peer may do
    /// what the rights of regions allow.
    #[must_use]
    pub fn new(cq: &CompletionQueue) -> Self {
        Self {
            send_cq: cq.clone(),
            recv_cq: cq.clone(),
            caps: QpCaps::default(),
            signal_all: false,
            remote_access: Access::REMOTE,
            remote_invalidate: true,
            extensions: true,
            srq: None,
            max_shared_receives: None,
        }
    }

    /// Where receives complete.
    #[must_use]
    pub fn recv_cq(mut self, cq: &CompletionQueue) -> Self {
        self.recv_cq = cq.clone();
        self
    }

    /// All sizes at once.
    #[must_use]
    pub const fn caps(mut self, caps: QpCaps) -> Self {
        self.caps = caps;
        self
    }

    /// Requests that may be outstanding on the send queue; a slot is free again once the completion of
    /// its request, or of a later one, has been polled.
    #[must_use]
    pub const fn max_send_wr(mut self, requests: u32) -> Self {
        self.caps.max_send_wr = requests;
        self
    }

    /// Receives that may be outstanding.
    #[must_use]
    pub const fn max_recv_wr(mut self, receives: u32) -> Self {
        self.caps.max_recv_wr = receives;
        self
    }

    /// Elements of one request of the send queue, Reads included.
    #[must_use]
    pub const fn max_send_sge(mut self, elements: u32) -> Self {
        self.caps.max_send_sge = elements;
        self
    }

    /// Elements of one receive.
    #[must_use]
    pub const fn max_recv_sge(mut self, elements: u32) -> Self {
        self.caps.max_recv_sge = elements;
        self
    }

    /// Octets of inline data in one request.
    #[must_use]
    pub const fn max_inline_data(mut self, octets: u32) -> Self {
        self.caps.max_inline_data = octets;
        self
    }

    /// Whether every request is reported, also one posted with
    /// [`unsignaled`](crate::SendRequest::unsignaled) (`sq_sig_all`, FC-069).
    #[must_use]
    pub const fn signal_all(mut self, all: bool) -> Self {
        self.signal_all = all;
        self
    }

    /// What the peer may do at most, whatever the rights of a region: any of
    /// [`Access::REMOTE_WRITE`], [`Access::REMOTE_READ`] and [`Access::REMOTE_ATOMIC`].
    #[must_use]
    pub const fn remote_access(mut self, access: Access) -> Self {
        self.remote_access = access;
        self
    }

    /// Whether the peer may revoke keys of the protection domain with Send with Invalidate, as it may by
    /// default. A key serves every queue pair of its domain: where the peers of a domain do not trust
    /// each other, refuse it. The peer then gets a Terminate 0/1/09 (RFC 5040 §8.1.1, SEC-06).
    #[must_use]
    pub const fn remote_invalidate(mut self, allowed: bool) -> Self {
        self.remote_invalidate = allowed;
        self
    }

    /// Whether the messages of RFC 7306 are used and served, immediate data and atomic operations, as they
    /// are by default. Nothing on the wire tells whether a peer knows them (EXT-02): programs agree on it,
    /// in their private data perhaps, or try and read the Terminate 0/2/06 of one that does not.
    ///
    /// Without them posting refuses such requests before anything is sent (FC-073), and a peer that sends
    /// such a message gets the same Terminate. [`DeviceConfig::extensions`](crate::DeviceConfig::extensions)
    /// switches them off for all queue pairs.
    #[must_use]
    pub const fn extensions(mut self, used: bool) -> Self {
        self.extensions = used;
        self
    }

    /// Takes receives from `srq`, which may be of another protection domain of the same device. There is no
    /// receive queue then: its sizes are 0, and nothing can be posted to it.
    #[must_use]
    pub fn shared_receive_queue(mut self, srq: &SharedReceiveQueue) -> Self {
        self.srq = Some(srq.clone());
        self
    }

    /// Receives of the shared queue that it may hold: those that messages of its peer are in, until their
    /// completions have been polled. At the bound the peer is held back as if there were no receive, so that
    /// it cannot take those of the others (RFC 5042 §6.4.3, SEC-12). At least 1; by default there is no bound.
    #[must_use]
    pub const fn max_shared_receives(mut self, receives: u32) -> Self {
        self.max_shared_receives = Some(receives);
        self
    }

    /// Refuses what the device does not offer.
    pub(crate) fn check(&self, limits: &DeviceLimits) -> Result<(), Error> {
        if self.max_shared_receives == Some(0) {
            return Err(Error::Empty { what: "share of a shared receive queue" });
        }
        if !Access::REMOTE.contains(self.remote_access) {
            return Err(Error::QueuePairRights { access: self.remote_access });
        }
        self.caps.check(limits)
    }
}

/// A change to a queue pair, for [`QueuePair::modify`](crate::QueuePair::modify).
///
/// ```
/// use iwarp_verbs::{Access, QpChange, QpState};
///
/// let change = QpChange::to(QpState::Init).remote_access(Access::REMOTE_READ);
/// # let _ = change;
/// let same = QpChange::from(QpState::Sqd).notify_drained();
/// # let _ = same;
/// ```
///
/// | attribute | may be changed in |
/// |---|---|
/// | state | see [`QueuePair::modify`](crate::QueuePair::modify) |
/// | remote access | `Init` and `Rts`, and on the way from `Reset` to `Init` |
/// | ORD | `Rts` |
///
/// Everything else is settled when the queue pair is made, or by the set-up of its connection.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[must_use = "nothing has changed yet"]
pub struct QpChange {
    pub(crate) state: Option<QpState>,
    pub(crate) remote_access: Option<Access>,
    pub(crate) ord: Option<u32>,
    pub(crate) notify_drained: bool,
}

impl QpChange {
    /// No change yet: the state stays.
    pub const fn new() -> Self {
        Self { state: None, remote_access: None, ord: None, notify_drained: false }
    }

    /// To this state.
    pub const fn to(state: QpState) -> Self {
        Self { state: Some(state), ..Self::new() }
    }

    /// What the peer may do at most from here on. When the call returns, no access goes on under the old
    /// rights.
    pub const fn remote_access(mut self, access: Access) -> Self {
        self.remote_access = Some(access);
        self
    }

    /// Reads of ours that may be outstanding (ORD), at most as many as were negotiated. Those that are on
    /// their way are not disturbed.
    pub const fn ord(mut self, ord: u32) -> Self {
        self.ord = Some(ord);
        self
    }

    /// With the state `Sqd`: an event [`SqDrained`](crate::AsyncEventKind::SqDrained) tells when everything
    /// of the send queue has come back.
    pub const fn notify_drained(mut self) -> Self {
        self.notify_drained = true;
        self
    }

    /// Refuses attributes that may not be changed in this state.
    pub(crate) fn check(&self, from: QpState) -> Result<(), Error> {
        use QpState::{Init, Reset, Rts, Sqd};
        let refuse = |what| Err(Error::State { what, state: from });
        let to = self.state.unwrap_or(from);
        if let Some(access) = self.remote_access {
            if !Access::REMOTE.contains(access) {
                return Err(Error::QueuePairRights { access });
            }
            if !matches!((from, to), (Reset | Init, Init) | (Rts, Rts)) {
                return refuse("change what the peer may do");
            }
        }
        if self.ord.is_some() && (from, to) != (Rts, Rts) {
            return refuse("change the ORD");
        }
        if self.notify_drained && (from, self.state) != (Rts, Some(Sqd)) {
            return refuse("tell when the send queue is drained");
        }
        Ok(())
    }
}

impl From<QpState> for QpChange {
    fn from(state: QpState) -> Self {
        Self::to(state)
    }
}

/// What a queue pair is at this moment.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct QpAttributes {
    /// Its state.
    pub state: QpState,
    /// Its number: 24 bits, unique in the process.
    pub number: u32,
    /// Its sizes.
    pub caps: QpCaps,
    /// What the peer may do at most.
    pub remote_access: Access,
    /// Whether the peer may revoke keys.
    pub remote_invalidate: bool,
    /// Whether the messages of RFC 7306 are used and served.
    pub extensions: bool,
    /// Whether every request is reported.
    pub signal_all: bool,
    /// Reads of the peer that are served at once, as negotiated (IRD); 0 before a connection.
    pub ird: u32,
    /// Reads of ours that may be outstanding (ORD), as negotiated or lowered since; 0 before a connection.
    pub ord: u32,
    /// Receives of a shared queue that it holds: being filled, or completed and not yet polled (SEC-12). `None`
    /// with a receive queue of its own.
    pub receives_held: Option<u32>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn states_have_the_values_of_libibverbs() {
        let table = [
            (QpState::Reset, 0),
            (QpState::Init, 1),
            (QpState::Rtr, 2),
            (QpState::Rts, 3),
            (QpState::Sqd, 4),
            (QpState::Sqe, 5),
            (QpState::Err, 6),
        ];
        for ((state, value), listed) in table.into_iter().zip(QpState::ALL) {
            assert_eq!((state, state.value()), (listed, value));
        }
    }

    #[test]
    fn access_rights_have_the_values_of_libibverbs() {
        let table = [
            (Access::LOCAL_WRITE, 1),
            (Access::REMOTE_WRITE, 2),
            (Access::REMOTE_READ, 4),
            (Access::REMOTE_ATOMIC, 8),
            (Access::MW_BIND, 16),
            (Access::ZERO_BASED, 32),
        ];
        for (access, value) in table {
            assert_eq!(access.bits(), value, "{access:?}");
        }
    }

    /// FC-071: each limit holds, and one more is refused with its name.
    #[test]
    fn every_size_is_checked_against_its_limit() {
        let limits = DeviceLimits::default();
        let most = QpCaps {
            max_send_wr: limits.max_qp_wr,
            max_recv_wr: limits.max_qp_wr,
            max_send_sge: limits.max_sge,
            max_recv_sge: limits.max_sge,
            max_inline_data: limits.max_inline_data,
        };
        most.check(&limits).expect("the limits themselves");
        let none = QpCaps {
            max_send_wr: 0,
            max_recv_wr: 0,
            max_send_sge: 0,
            max_recv_sge: 0,
            max_inline_data: 0,
        };
        // FC-010
        none.check(&limits).expect("zero is a size");
        let one_more = [
            QpCaps { max_send_wr: limits.max_qp_wr + 1, ..most },
            QpCaps { max_recv_wr: limits.max_qp_wr + 1, ..most },
            QpCaps { max_send_sge: limits.max_sge + 1, ..most },
            QpCaps { max_recv_sge: limits.max_sge + 1, ..most },
            QpCaps { max_inline_data: limits.max_inline_data + 1, ..most },
        ];
        let mut named = Vec::new();
        for caps in one_more {
            match caps.check(&limits) {
                Err(Error::Limit { what, asked, max }) => {
                    assert_eq!(asked, max + 1, "{what}");
                    named.push(what);
                }
                other => panic!("{caps:?} gave {other:?}"),
            }
        }
        named.sort_unstable();
        named.dedup();
        assert_eq!(named.len(), 5, "each limit has a name of its own");
    }
}
