//! Settings of a device: in code, and from the environment for programs that cannot be changed.

mod env;

use std::path::PathBuf;
use std::time::Duration;

use iwarp_mpa::{FpduLimit, Revision, RtrTypes};

use crate::network::MemoryNetwork;
use crate::sys::Keepalive;

/// The deepest queue of Reads that can be set, in either direction: libibverbs counts them in 8 bits.
pub(crate) const READ_DEPTH_MAX: u16 = 255;

/// Limits of what can be asked of one object. A request for more fails when the object is made
/// (FC-043, FC-071). How many objects there can be is up to the system, which limits a process's
/// descriptors and memory (SEC-17).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DeviceLimits {
    /// Requests on one work queue. Default 32,768, at most 2,147,483,647.
    pub max_qp_wr: u32,
    /// Receives in one shared receive queue. Default 1,048,576, at most 2,147,483,647.
    pub max_srq_wr: u32,
    /// Elements of one request, Reads included. Default 16.
    pub max_sge: u32,
    /// Entries of one completion queue. Default 4,194,304. Memory is taken as entries are used.
    pub max_cqe: u32,
    /// Octets of inline data in one request. Default 512.
    pub max_inline_data: u32,
}

impl Default for DeviceLimits {
    fn default() -> Self {
        Self {
            max_qp_wr: 32_768,
            max_srq_wr: 1 << 20,
            max_sge: 16,
            max_cqe: 1 << 22,
            max_inline_data: 512,
        }
    }
}

/// Settings of a [`Device`](crate::Device), and defaults for its connections.
///
/// ```
/// use std::time::Duration;
/// use iwarp_verbs::{Device, DeviceConfig};
///
/// # fn main() -> Result<(), iwarp_verbs::Error> {
/// let config = DeviceConfig::default().connect_timeout(Duration::from_secs(2)).ird(32);
/// let device = Device::open(config)?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
#[allow(clippy::struct_excessive_bools, reason = "each is a setting of its own")]
pub struct DeviceConfig {
    pub(crate) fpdu_limit: FpduLimit,
    pub(crate) crc: bool,
    pub(crate) markers: bool,
    pub(crate) mpa_revision: Revision,
    pub(crate) peer_to_peer: RtrTypes,
    pub(crate) ird: u16,
    pub(crate) ord: u16,
    pub(crate) max_ird: u16,
    pub(crate) max_ord: u16,
    pub(crate) strict_receive: bool,
    pub(crate) extensions: bool,
    pub(crate) hold_back: Duration,
    pub(crate) partial_fpdu: Duration,
    pub(crate) close_grace: Duration,
    pub(crate) connect_timeout: Duration,
    pub(crate) accept_timeout: Duration,
    pub(crate) first_fpdu_delay: Duration,
    pub(crate) max_pending_handshakes: usize,
    pub(crate) keepalive: Option<Keepalive>,
    pub(crate) user_timeout: Duration,
    pub(crate) memory_budget: usize,
    pub(crate) limits: DeviceLimits,
    pub(crate) network: Option<MemoryNetwork>,
    pub(crate) pcap: Option<PathBuf>,
}

impl Default for DeviceConfig {
    fn default() -> Self {
        Self {
            fpdu_limit: FpduLimit::default(),
            crc: true,
            markers: false,
            mpa_revision: Revision::V2,
            peer_to_peer: RtrTypes::all(),
            ird: 16,
            ord: 16,
            max_ird: 128,
            max_ord: 128,
            strict_receive: false,
            extensions: true,
            hold_back: Duration::from_secs(5),
            partial_fpdu: Duration::from_secs(30),
            close_grace: Duration::from_secs(3),
            connect_timeout: Duration::from_secs(10),
            accept_timeout: Duration::from_secs(5),
            first_fpdu_delay: Duration::ZERO,
            max_pending_handshakes: 1024,
            keepalive: Some(Keepalive {
                idle: Duration::from_secs(10),
                interval: Duration::from_secs(5),
                count: 3,
            }),
            user_timeout: Duration::from_secs(20),
            memory_budget: 64 << 20,
            limits: DeviceLimits::default(),
            network: None,
            pcap: None,
        }
    }
}

impl DeviceConfig {
    /// The largest FPDU to send: one TCP segment as RFC 5044 recommends (MPA-042), or so many octets.
    /// Default 16 KiB, or one segment if that is more, as it is inside of a host. Any other number is kept
    /// there too.
    #[must_use]
    pub const fn fpdu_limit(mut self, limit: FpduLimit) -> Self {
        self.fpdu_limit = limit;
        self
    }

    /// Whether to ask for CRCs, which are used if either side asks (MPA-051). Default yes.
    #[must_use]
    pub const fn crc(mut self, ask: bool) -> Self {
        self.crc = ask;
        self
    }

    /// Whether to ask peers for markers. Default no. What a peer asks for is always done.
    #[must_use]
    pub const fn markers(mut self, ask: bool) -> Self {
        self.markers = ask;
        self
    }

    /// The revision of MPA that a connecting side begins with. Default 2.
    #[must_use]
    pub const fn mpa_revision(mut self, revision: Revision) -> Self {
        self.mpa_revision = revision;
        self
    }

    /// Kinds of ready-to-receive message to offer or take; none turns the peer-to-peer model off, and
    /// the connecting side then has to send first (RFC 6581 §9.2). Default all.
    #[must_use]
    pub const fn peer_to_peer(mut self, kinds: RtrTypes) -> Self {
        self.peer_to_peer = kinds;
        self
    }

    /// Reads of a peer that one connection serves at once, unless its parameters say otherwise.
    /// Default 16.
    #[must_use]
    pub const fn ird(mut self, depth: u16) -> Self {
        self.ird = depth;
        self
    }

    /// Reads that one connection may have outstanding, unless its parameters say otherwise. Default 16.
    #[must_use]
    pub const fn ord(mut self, depth: u16) -> Self {
        self.ord = depth;
        self
    }

    /// The largest [`ird`](Self::ird) of any connection, at most 255. Default 128.
    #[must_use]
    pub const fn max_ird(mut self, depth: u16) -> Self {
        self.max_ird = depth;
        self
    }

    /// The largest [`ord`](Self::ord) of any connection, at most 255. Default 128.
    #[must_use]
    pub const fn max_ord(mut self, depth: u16) -> Self {
        self.max_ord = depth;
        self
    }

    /// Whether a Send that finds no receive ends the connection at once. Otherwise, by default, the
    /// stream is held back for [`hold_back`](Self::hold_back) first (FC-030).
    #[must_use]
    pub const fn strict_receive(mut self, strict: bool) -> Self {
        self.strict_receive = strict;
        self
    }

    /// Whether queue pairs use and serve the messages of RFC 7306, unless their own
    /// [`extensions`](crate::QpConfig::extensions) are off. Default yes.
    #[must_use]
    pub const fn extensions(mut self, used: bool) -> Self {
        self.extensions = used;
        self
    }

    /// How long a Send may wait for a receive. Default 5 s.
    #[must_use]
    pub const fn hold_back(mut self, limit: Duration) -> Self {
        self.hold_back = limit;
        self
    }

    /// How long a peer may take for the rest of an FPDU that it has begun. Default 30 s.
    #[must_use]
    pub const fn partial_fpdu(mut self, limit: Duration) -> Self {
        self.partial_fpdu = limit;
        self
    }

    /// How long a connection that is being closed waits for its peer. Default 3 s.
    #[must_use]
    pub const fn close_grace(mut self, limit: Duration) -> Self {
        self.close_grace = limit;
        self
    }

    /// Limit for a connect as a whole: name, TCP, MPA. Default 10 s.
    #[must_use]
    pub const fn connect_timeout(mut self, limit: Duration) -> Self {
        self.connect_timeout = limit;
        self
    }

    /// How long a connecting peer may take for its Request, and for its first message once it was
    /// accepted. Default 5 s.
    #[must_use]
    pub const fn accept_timeout(mut self, limit: Duration) -> Self {
        self.accept_timeout = limit;
        self
    }

    /// How long a connecting side waits after the Reply before its first FPDU, unless its parameters say
    /// otherwise: [`ConnParam::first_fpdu_delay`](crate::cm::ConnParam::first_fpdu_delay). Default zero.
    #[must_use]
    pub const fn first_fpdu_delay(mut self, delay: Duration) -> Self {
        self.first_fpdu_delay = delay;
        self
    }

    /// Peers that may be in the middle of their Request at once; at the limit the oldest goes (SEC-22). As many
    /// again that were rejected may be waited for, so that they learn of it. Default 1024.
    #[must_use]
    pub const fn max_pending_handshakes(mut self, peers: usize) -> Self {
        self.max_pending_handshakes = peers;
        self
    }

    /// Finds dead peers of silent connections: after `idle` of silence, a question every `interval`, and
    /// the connection is lost after `count` questions without an answer. Whole seconds. Default 10 s,
    /// 5 s, 3.
    /// Whole seconds, 1 to 32767, and 1 to 127 probes.
    #[must_use]
    pub const fn keepalive(mut self, idle: Duration, interval: Duration, count: u32) -> Self {
        self.keepalive = Some(Keepalive { idle, interval, count });
        self
    }

    /// Never asks a silent peer whether it is alive: a queue pair that only receives may then wait for a
    /// dead one for ever.
    #[must_use]
    pub const fn no_keepalive(mut self) -> Self {
        self.keepalive = None;
        self
    }

    /// How long sent octets may stay without an acknowledgement before the connection is lost
    /// (`TCP_USER_TIMEOUT`). Zero leaves it to the system. Default 20 s.
    #[must_use]
    pub const fn user_timeout(mut self, limit: Duration) -> Self {
        self.user_timeout = limit;
        self
    }

    /// Octets that all connections together may hold in partial FPDUs and unsent data; beyond it data
    /// stays in the system's socket buffers (SEC-17). At least 1 MiB; default 64 MiB.
    #[must_use]
    pub const fn memory_budget(mut self, octets: usize) -> Self {
        self.memory_budget = octets;
        self
    }

    /// Limits of single objects.
    #[must_use]
    pub const fn limits(mut self, limits: DeviceLimits) -> Self {
        self.limits = limits;
        self
    }

    /// Connects through this network in memory rather than through TCP: for tests. What concerns only TCP,
    /// [`keepalive`](Self::keepalive) and [`user_timeout`](Self::user_timeout), has no effect there, since a peer
    /// in memory cannot vanish without a trace.
    #[must_use]
    pub fn network(mut self, network: &MemoryNetwork) -> Self {
        self.network = Some(network.clone());
        self
    }

    /// Records all connections of the device in this file, for Wireshark: the octets of each direction as TCP is
    /// given them and as they are received, whatever carries them, with made-up headers of Ethernet, IP and TCP.
    ///
    /// `%p` in the path stands for the number of the process. Devices of one process that are given the same path
    /// write one file, begun anew by the first of them; a connection between two of them is in it once. The file is
    /// whole when the last of them is gone.
    ///
    /// Connections do not wait for the file: what it is too slow for is left out and
    /// [counted](crate::DeviceStats::capture_lost). Everything is copied on its way, so figures of speed mean nothing.
    #[must_use]
    pub fn pcap(mut self, path: impl Into<PathBuf>) -> Self {
        self.pcap = Some(path.into());
        self
    }

    /// Refuses combinations that make no sense.
    pub(crate) fn check(&self) -> Result<(), ConfigError> {
        let refuse = |setting, value: u64, expected| {
            Err(ConfigError { setting, value: value.to_string(), expected })
        };
        if self.max_ird > READ_DEPTH_MAX {
            return refuse("max_ird", self.max_ird.into(), "at most 255");
        }
        if self.max_ord > READ_DEPTH_MAX {
            return refuse("max_ord", self.max_ord.into(), "at most 255");
        }
        if self.ird > self.max_ird {
            return refuse("ird", self.ird.into(), "at most max_ird");
        }
        if self.ord > self.max_ord {
            return refuse("ord", self.ord.into(), "at most max_ord");
        }
        if self.limits.max_qp_wr > WR_MAX {
            return refuse("max_qp_wr", self.limits.max_qp_wr.into(), "at most 2147483647");
        }
        if self.limits.max_srq_wr > WR_MAX {
            return refuse("max_srq_wr", self.limits.max_srq_wr.into(), "at most 2147483647");
        }
        if self.limits.max_sge > SGE_MAX {
            return refuse("max_sge", self.limits.max_sge.into(), "at most 16");
        }
        if self.memory_budget < BUDGET_MIN {
            return refuse("memory_budget", self.memory_budget as u64, "at least 1 MiB");
        }
        if let Some(Keepalive { idle, interval, count }) = self.keepalive {
            if !(1..=32_767).contains(&idle.as_secs()) {
                return refuse("keepalive idle seconds", idle.as_secs(), "1 to 32767");
            }
            if !(1..=32_767).contains(&interval.as_secs()) {
                return refuse("keepalive interval seconds", interval.as_secs(), "1 to 32767");
            }
            if !(1..=127).contains(&count) {
                return refuse("keepalive count", count.into(), "1 to 127");
            }
        }
        if self.limits.max_cqe == 0 {
            return refuse("max_cqe", 0, "at least 1");
        }
        Ok(())
    }
}

/// Requests of one work queue that can be counted.
const WR_MAX: u32 = i32::MAX.cast_unsigned();

/// Elements of a request that one `sendmsg` can gather with headers between.
const SGE_MAX: u32 = 16;

/// Room for the longest FPDUs of some connections at once: with less, none would ever move.
const BUDGET_MIN: usize = 1 << 20;

/// A setting that means nothing.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{setting} is {value:?}, expected {expected}")]
pub struct ConfigError {
    /// The environment variable or the setting.
    pub setting: &'static str,
    /// Its value.
    pub value: String,
    /// What it may be.
    pub expected: &'static str,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn combinations_are_checked_in_code_too() {
        let refused = |config: DeviceConfig| config.check().unwrap_err().setting;
        assert_eq!(refused(DeviceConfig::default().ird(129)), "ird");
        assert_eq!(refused(DeviceConfig::default().ord(129)), "ord");
        assert_eq!(refused(DeviceConfig::default().max_ird(256)), "max_ird");
        assert_eq!(refused(DeviceConfig::default().max_ord(256)), "max_ord");
        let limits = DeviceLimits { max_cqe: 0, ..DeviceLimits::default() };
        assert_eq!(refused(DeviceConfig::default().limits(limits)), "max_cqe");
        let limits = DeviceLimits { max_sge: 17, ..DeviceLimits::default() };
        assert_eq!(refused(DeviceConfig::default().limits(limits)), "max_sge");
        let limits = DeviceLimits { max_qp_wr: 1 << 31, ..DeviceLimits::default() };
        assert_eq!(refused(DeviceConfig::default().limits(limits)), "max_qp_wr");
        let limits = DeviceLimits { max_srq_wr: 1 << 31, ..DeviceLimits::default() };
        assert_eq!(refused(DeviceConfig::default().limits(limits)), "max_srq_wr");
        assert_eq!(refused(DeviceConfig::default().memory_budget((1 << 20) - 1)), "memory_budget");
        let second = Duration::from_secs(1);
        let keepalive = |idle, interval, count| {
            refused(DeviceConfig::default().keepalive(idle, interval, count))
        };
        assert_eq!(keepalive(second / 2, second, 1), "keepalive idle seconds");
        assert_eq!(keepalive(second, second * 40_000, 1), "keepalive interval seconds");
        assert_eq!(keepalive(second, second, 0), "keepalive count");
        assert_eq!(keepalive(second, second, 128), "keepalive count");
        DeviceConfig::default().max_ird(255).ird(255).check().unwrap();
    }
}
