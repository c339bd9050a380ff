//! What a program asks for when it connects, accepts or listens.

use std::time::Duration;

use bytes::Bytes;
use iwarp_mpa::{Depth, FpduLimit, Offer, Revision, RtrTypes};

use super::error::ConnectError;
use crate::config::DeviceConfig;

/// Parameters of one connection, for [`connect`](super::connect) and for
/// [`accept`](super::ConnectRequest::accept).
///
/// Whatever is not set comes from the [`DeviceConfig`](crate::DeviceConfig). Each connection has its
/// own set, so one process may speak in different ways to different peers (FC-008). The value is copied
/// when the call is made (FC-014).
///
/// ```
/// use iwarp_verbs::cm::ConnParam;
///
/// let param = ConnParam::default().private_data(b"volume 7").ird(8).ord(4);
/// assert_eq!(param.private_data_len(), 8);
/// ```
#[derive(Clone, Debug, Default)]
pub struct ConnParam {
    pub(crate) private_data: Bytes,
    pub(crate) ird: Option<u16>,
    pub(crate) ord: Option<u16>,
    pub(crate) rtr: Option<RtrTypes>,
    pub(crate) crc: Option<bool>,
    pub(crate) markers: Option<bool>,
    pub(crate) revision: Option<Revision>,
    pub(crate) fallback: Option<bool>,
    pub(crate) fpdu_limit: Option<FpduLimit>,
    pub(crate) timeout: Option<Duration>,
    pub(crate) retry_refused: Duration,
    pub(crate) first_fpdu_delay: Option<Duration>,
}

impl ConnParam {
    /// Octets for the peer's program, at most 508, or 512 on a connection of revision 1. Copied.
    ///
    /// Some peers take fewer: Linux siw stops at 252.
    #[must_use]
    pub fn private_data(mut self, octets: impl AsRef<[u8]>) -> Self {
        self.private_data = Bytes::copy_from_slice(octets.as_ref());
        self
    }

    /// Length of the private data, in octets.
    #[must_use]
    pub fn private_data_len(&self) -> usize {
        self.private_data.len()
    }

    /// How many RDMA Reads of the peer this side serves at once (IRD); 0 to the device's
    /// [`max_ird`](crate::DeviceConfig::max_ird).
    ///
    /// librdmacm calls it `responder_resources`.
    #[must_use]
    pub const fn ird(mut self, depth: u16) -> Self {
        self.ird = Some(depth);
        self
    }

    /// How many RDMA Reads this side wants to have outstanding (ORD); 0 to the device's
    /// [`max_ord`](crate::DeviceConfig::max_ord). The peer may grant fewer.
    ///
    /// librdmacm calls it `initiator_depth`. With 0 every Read of this side fails.
    #[must_use]
    pub const fn ord(mut self, depth: u16) -> Self {
        self.ord = Some(depth);
        self
    }

    /// Kinds of ready-to-receive message this side can send and take; none turns the peer-to-peer model
    /// off (RFC 6581 §9.2, CONN-10).
    #[must_use]
    pub const fn rtr(mut self, kinds: RtrTypes) -> Self {
        self.rtr = Some(kinds);
        self
    }

    /// Whether this side asks for CRCs. They are used if either side asks (MPA-014).
    ///
    /// Without them a damaged message is noticed only by TCP's own checksum, so turn them off only
    /// where something else of equal strength protects the path (MPA-052).
    #[must_use]
    pub const fn crc(mut self, ask: bool) -> Self {
        self.crc = Some(ask);
        self
    }

    /// Whether this side asks its peer for markers (MPA-011). What the peer asks for is always done.
    #[must_use]
    pub const fn markers(mut self, ask: bool) -> Self {
        self.markers = Some(ask);
        self
    }

    /// The revision of MPA to begin with. The accepting side follows its peer.
    #[must_use]
    pub const fn revision(mut self, revision: Revision) -> Self {
        self.revision = Some(revision);
        self
    }

    /// Whether to try once more with revision 1, on a new TCP connection, when the peer closes on a
    /// Request of revision 2 (CONN-08); yes by default. Read depths and the peer-to-peer model are not
    /// negotiated then. Means nothing to the accepting side.
    #[must_use]
    pub const fn fallback(mut self, allowed: bool) -> Self {
        self.fallback = Some(allowed);
        self
    }

    /// The largest FPDU to send.
    #[must_use]
    pub const fn fpdu_limit(mut self, limit: FpduLimit) -> Self {
        self.fpdu_limit = Some(limit);
        self
    }

    /// Limit for the whole set-up: looking up the name, TCP, MPA, and the ready-to-receive message
    /// (MPA-010).
    #[must_use]
    pub const fn timeout(mut self, limit: Duration) -> Self {
        self.timeout = Some(limit);
        self
    }

    /// Goes on trying for so long while nothing listens at the peer; zero, the default, gives up at
    /// once. Means nothing to the accepting side.
    ///
    /// For programs that start both ends at the same time. The limit of [`timeout`](Self::timeout)
    /// stays.
    #[must_use]
    pub const fn retry_refused(mut self, time: Duration) -> Self {
        self.retry_refused = time;
        self
    }

    /// How long the connecting side lets its peer be after the Reply: no FPDU goes out before, and the
    /// connection is established only then. Comes on top of [`timeout`](Self::timeout). Means nothing to
    /// the accepting side, whose first FPDU always waits for one of the peer (MPA-029).
    ///
    /// For peers that reply before they are ready: Linux siw looks for data only some moments after its
    /// Reply, and leaves an FPDU that came before unread until more comes or the connection is closed. A
    /// tenth of a second was enough for it in all trials; a peer that follows RFC 5044 needs none. Towards siw combine it
    /// with the client-server model ([`rtr`](Self::rtr) without kinds): that kernel does not survive a peer
    /// that is gone before a ready-to-receive message that it waits for.
    #[must_use]
    pub const fn first_fpdu_delay(mut self, delay: Duration) -> Self {
        self.first_fpdu_delay = Some(delay);
        self
    }
}

impl ConnParam {
    /// What MPA is to offer: this set, and the device's settings where it says nothing.
    pub(crate) fn offer(
        self,
        config: &DeviceConfig,
        timeout: Duration,
    ) -> Result<Offer, ConnectError> {
        let depth = |asked: Option<u16>, default, max| match asked.unwrap_or(default) {
            depth if depth > max => Err(ConnectError::Depth { depth, max }),
            depth => Ok(Depth::Count(depth)),
        };
        Ok(Offer {
            revision: self.revision.unwrap_or(config.mpa_revision),
            markers: self.markers.unwrap_or(config.markers),
            crc: self.crc.unwrap_or(config.crc),
            ird: depth(self.ird, config.ird, config.max_ird)?,
            ord: depth(self.ord, config.ord, config.max_ord)?,
            rtr: self.rtr.unwrap_or(config.peer_to_peer),
            private_data: self.private_data,
            timeout,
        })
    }
}

/// How a local address is bound.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BindOptions {
    pub(crate) reuse: bool,
    pub(crate) v6_only: Option<bool>,
}

impl BindOptions {
    /// Lets a port be bound again while connections of an earlier listener linger (`SO_REUSEADDR`). It
    /// does not let two listeners share a port.
    #[must_use]
    pub const fn reuse(mut self, reuse: bool) -> Self {
        self.reuse = reuse;
        self
    }

    /// Whether an IPv6 address takes IPv6 only, or the wildcard IPv4 too (`IPV6_V6ONLY`, FC-052).
    /// Without this call the host's setting holds.
    #[must_use]
    pub const fn v6_only(mut self, only: bool) -> Self {
        self.v6_only = Some(only);
        self
    }
}

/// How a [`Listener`](super::Listener) listens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ListenConfig {
    pub(crate) bind: BindOptions,
    pub(crate) backlog: u32,
}

impl Default for ListenConfig {
    fn default() -> Self {
        Self { bind: BindOptions::default().reuse(true), backlog: 0 }
    }
}

impl ListenConfig {
    /// How the address is bound; with `reuse` by default.
    #[must_use]
    pub const fn bind(mut self, options: BindOptions) -> Self {
        self.bind = options;
        self
    }

    /// How many connections may wait for the program: as many requests that it has not taken yet, and
    /// as many TCP connections in the system as the system allows. 0, the default, means 128 (FC-050).
    #[must_use]
    pub const fn backlog(mut self, backlog: u32) -> Self {
        self.backlog = backlog;
        self
    }
}
