//! Messages between two ends: Sends that find a receive waiting for them.
//!
//! A Send carries no address. It takes the next receive that the other side has posted, and lands in
//! the memory which that names. So a side that expects messages keeps receives posted: a mailbox is a
//! region cut into slots, one receive for each, posted again as soon as its message was taken out.

use iwarp_verbs::{
    Access, CompletionQueue, MemoryRegion, ProtectionDomain, QueuePair, RecvRequest, RemoteMemory,
};
use serde::{Deserialize, Serialize, de::DeserializeOwned};

use crate::failure::{Context, Failure, Result};

/// Octets of the longest message.
pub const MESSAGE_MAX: u32 = 512;
const SLOT: usize = MESSAGE_MAX as usize;

/// The receives of one queue pair.
#[derive(Debug)]
pub struct Mailbox {
    qp: QueuePair,
    arrivals: CompletionQueue,
    slots: MemoryRegion,
}

/// A message that was taken out.
#[derive(Clone, Debug)]
pub struct Message {
    /// What the peer sent.
    pub octets: Vec<u8>,
    /// The key of ours that the message revoked on its arrival, if it was a Send with Invalidate.
    pub revoked: Option<u32>,
    /// What it carried besides, if it was immediate data behind a Write: then there are no octets, those of the
    /// Write are where it went.
    pub immediate: Option<u32>,
}

impl Mailbox {
    /// Posts `depth` receives to `qp`. Best done before it is connected: then they are there when the
    /// first message comes.
    ///
    /// Completions of receives must go to `arrivals`, and nothing else must.
    pub fn new(
        pd: &ProtectionDomain,
        qp: &QueuePair,
        arrivals: &CompletionQueue,
        depth: usize,
    ) -> Result<Self> {
        let slots = pd.alloc(depth * SLOT, Access::LOCAL_WRITE)?;
        let mailbox = Self { qp: qp.clone(), arrivals: arrivals.clone(), slots };
        for slot in 0..depth {
            mailbox.post(slot)?;
        }
        Ok(mailbox)
    }

    /// Waits for the next message.
    ///
    /// Fails when the connection has ended: then the receives come back unused.
    pub async fn next(&mut self) -> Result<Message> {
        let arrival = self.arrivals.next().await?.ok()?;
        // The number that the receive was posted with.
        let slot = usize::try_from(arrival.wr_id).map_err(Failure::new)?;
        // Immediate data places nothing here; the length is that of the Write before it.
        let len = if arrival.imm_data.is_some() { 0 } else { arrival.byte_len as usize };
        let mut octets = vec![0; len];
        self.slots.read_at(slot * SLOT, &mut octets)?;
        self.post(slot)?;
        let (revoked, immediate) = (arrival.invalidated_rkey, arrival.imm_data);
        Ok(Message { octets, revoked, immediate })
    }

    /// Waits for the next message and reads it as a note.
    pub async fn note<N: DeserializeOwned>(&mut self) -> Result<N> {
        read_note(&self.next().await?.octets)
    }

    fn post(&self, slot: usize) -> Result<()> {
        let at = slot * SLOT;
        let room = self.slots.slice(at..at + SLOT)?;
        Ok(self.qp.post_recv(RecvRequest::new(slot as u64, room))?)
    }
}

/// Leave to write and read memory: in a note, or in the private data of a connection.
///
/// Whoever knows these three numbers may use the memory as its rights allow, from now on until the
/// key is revoked, and without asking again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Grant {
    addr: u64,
    len: u64,
    rkey: u32,
}

impl From<RemoteMemory> for Grant {
    fn from(RemoteMemory { addr, len, rkey }: RemoteMemory) -> Self {
        Self { addr, len, rkey }
    }
}

impl From<Grant> for RemoteMemory {
    fn from(Grant { addr, len, rkey }: Grant) -> Self {
        Self { addr, len, rkey }
    }
}

/// Reads what the other end wrote with [`write_note`].
pub fn read_note<N: DeserializeOwned>(octets: &[u8]) -> Result<N> {
    serde_json::from_slice(octets).context("the other end sent what this program does not know")
}

/// A note on the wire is JSON: short, and readable in a capture. Fails if it is longer than a message may be.
pub fn write_note<N: Serialize>(note: &N) -> Result<Vec<u8>> {
    let octets = serde_json::to_vec(note)?;
    if octets.len() > SLOT {
        return Err(Failure::new(format_args!(
            "a message of {} octets, at most {MESSAGE_MAX} fit",
            octets.len()
        )));
    }
    Ok(octets)
}
