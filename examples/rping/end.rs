//! What both ends have.

use std::{
    fmt,
    io::{self, Write},
};

use iwarp_examples::{failure::Result, mailbox::Mailbox, wire::WireArgs};
use iwarp_verbs::{
    Device, ProtectionDomain, QpConfig, QueuePair,
    cm::{ConnParam, Connection},
};

use crate::protocol::{MESSAGE, READS};

/// Messages that may come in before this end has looked at one. The protocol has one under way; a second makes sure
/// that an end that breaks this rule is seen to.
const RECEIVES: u32 = 2;

/// The objects of one connection.
#[derive(Debug)]
pub(crate) struct End {
    pub(crate) pd: ProtectionDomain,
    pub(crate) qp: QueuePair,
    pub(crate) mailbox: Mailbox,
}

impl End {
    pub(crate) fn new(device: &Device) -> Result<Self> {
        let pd = device.alloc_pd();
        let sent = device.create_cq(16)?;
        let arrived = device.create_cq(RECEIVES)?;
        let inline = u32::try_from(MESSAGE)?;
        let config =
            QpConfig::new(&sent).recv_cq(&arrived).max_recv_wr(RECEIVES).max_inline_data(inline);
        let qp = pd.create_qp(&config)?;
        let mailbox = Mailbox::new(&pd, &qp, &arrived, RECEIVES as usize)?;
        Ok(Self { pd, qp, mailbox })
    }
}

/// Both ends ask for the same: one Read at a time, no private data.
pub(crate) fn param(wire: &WireArgs) -> ConnParam {
    wire.param().ird(READS).ord(READS)
}

/// A line on standard output. An error if nobody takes it.
pub(crate) fn say(line: impl fmt::Display) -> io::Result<()> {
    writeln!(io::stdout(), "{line}")
}

/// What is told, and where.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Talk {
    pub(crate) verbose: bool,
    pub(crate) debug: bool,
}

impl Talk {
    /// A ping, by [`say`].
    pub(crate) fn ping(self, line: impl fmt::Display) -> io::Result<()> {
        if self.verbose { say(line) } else { Ok(()) }
    }

    /// A step, on standard error.
    pub(crate) fn step(self, line: impl fmt::Display) {
        if self.debug {
            eprintln!("{line}");
        }
    }

    pub(crate) fn connected(self, conn: &Connection) {
        self.step(format_args!(
            "connected with {} by MPA revision {}, CRC {}, IRD {}, ORD {}",
            conn.peer_addr(),
            conn.revision(),
            if conn.crc() { "on" } else { "off" },
            conn.ird(),
            conn.ord(),
        ));
    }
}
