//! What an end needs before it is connected, and the few words that the two ends exchange.

use iwarp_examples::{
    failure::Result,
    mailbox::{MESSAGE_MAX, Mailbox},
};
use iwarp_verbs::{Device, ProtectionDomain, QpConfig, QueuePair};
use serde::{Deserialize, Serialize};

/// Receives kept posted for the other end's messages.
const RECEIVES: u32 = 64;

/// What the connecting end wants: the private data of its MPA Request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Hello {
    /// A tour of the operations, on so many octets of the other end's memory.
    Tour { octets: u64 },
    /// To bring a file.
    File { name: String, octets: u64 },
}

/// A message after the connection was set up.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Note {
    /// So many octets of your memory are written: look at them.
    Written { octets: u64 },
    /// I know of them, and am going to look.
    Here,
    /// I looked at so many octets, and all are as they should be.
    Checked { octets: u64 },
    /// I revoked nothing myself: your message did, and my completion said so.
    Revoked { rkey: u32 },
    /// The file is complete; this is the SHA-256 of what I sent, or of what I got.
    Digest { octets: u64, sha256: String },
    /// One more slot of the ring is free.
    Free,
}

/// The objects of one end.
///
/// A *device* stands for an adapter. A *protection domain* says which memory and which queue pairs belong together. A
/// *queue pair* is one end of a connection, with a queue of what to send and one of where to receive. A *completion
/// queue* says which of those requests are done.
#[derive(Debug)]
pub(crate) struct End {
    pub(crate) pd: ProtectionDomain,
    pub(crate) qp: QueuePair,
    pub(crate) mailbox: Mailbox,
}

impl End {
    pub(crate) fn new(device: &Device) -> Result<Self> {
        let pd = device.alloc_pd();
        let sent = device.create_cq(64)?;
        let arrived = device.create_cq(RECEIVES)?;
        let config = QpConfig::new(&sent)
            .recv_cq(&arrived)
            .max_send_wr(64)
            .max_recv_wr(RECEIVES)
            .max_inline_data(MESSAGE_MAX);
        let qp = pd.create_qp(&config)?;
        let mailbox = Mailbox::new(&pd, &qp, &arrived, RECEIVES as usize)?;
        Ok(Self { pd, qp, mailbox })
    }
}
