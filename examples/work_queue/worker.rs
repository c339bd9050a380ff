//! The worker: computes what is written into its memory, and writes the results into that of the dispatcher.

use std::{net::SocketAddr, time::Duration};

use iwarp_examples::{
    failure::{Failure, Result, connected, what_ended},
    mailbox::{Grant, MESSAGE_MAX, Mailbox, read_note, write_note},
    wire::WireArgs,
};
use iwarp_verbs::{
    Access, Device, DeviceConfig, MemoryRegion, QpConfig, RemoteMemory, SendRequest,
    cm::{self, Connection},
};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

/// Octets of a result.
pub(crate) const RESULT: usize = 32;
/// In front of a job, its number.
pub(crate) const HEADER: usize = 8;
/// Jobs that a worker takes at once: while it works on one, the others are on their way.
pub(crate) const SLOTS: usize = 4;

/// What the dispatcher says when it accepts, in the private data.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct Offer {
    /// Its table of results.
    pub(crate) results: Grant,
    /// Octets of a job.
    pub(crate) size: u32,
}

/// What the ends tell each other by a Send.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) enum Note {
    /// The worker is ready, and its jobs go here.
    Ready(Grant),
    /// The dispatcher has no more of them.
    Done,
}

/// One connection to a dispatcher.
#[derive(Debug)]
pub(crate) struct Worker {
    conn: Connection,
    mailbox: Mailbox,
    results: RemoteMemory,
    jobs: MemoryRegion,
    size: usize,
}

impl Worker {
    pub(crate) async fn connect(there: &str, wire: &WireArgs) -> Result<Self> {
        let device = Device::open(DeviceConfig::from_env()?)?;
        let pd = device.alloc_pd();
        let sent = device.create_cq(16)?;
        // One for each job that may come in, and one for the last message.
        let depth = SLOTS + 1;
        let arrived = device.create_cq(64)?;
        let config =
            QpConfig::new(&sent).recv_cq(&arrived).max_recv_wr(64).max_inline_data(MESSAGE_MAX);
        let qp = pd.create_qp(&config)?;
        let mailbox = Mailbox::new(&pd, &qp, &arrived, depth)?;
        let conn = connected(cm::connect(there, &qp, wire.param())?).await?;
        let Offer { results, size } = read_note(conn.private_data())?;
        let size = size as usize;
        let jobs = pd.alloc(SLOTS * (HEADER + size), Access::LOCAL_WRITE | Access::REMOTE_WRITE)?;
        Ok(Self { conn, mailbox, results: results.into(), jobs, size })
    }

    /// Where its dispatcher is.
    pub(crate) fn dispatcher(&self) -> SocketAddr {
        self.conn.peer_addr()
    }

    /// Works until the dispatcher has nothing more to do. Gives the number of jobs.
    pub(crate) async fn run(mut self, takes: Option<Duration>) -> Result<u64> {
        let worked = self.work(takes).await;
        match worked {
            Ok(done) => {
                self.conn.close().await;
                Ok(done)
            }
            Err(failure) => Err(what_ended(&self.conn, failure).await),
        }
    }

    async fn work(&mut self, takes: Option<Duration>) -> Result<u64> {
        let ready = Note::Ready(self.jobs.remote().into());
        self.conn.send_inline(write_note(&ready)?).await?;
        let mut done = 0;
        loop {
            let message = self.mailbox.next().await?;
            let Some(slot) = message.immediate else {
                match read_note(&message.octets)? {
                    Note::Done => return Ok(done),
                    Note::Ready(_) => return Err(Failure::new("that is no dispatcher")),
                }
            };
            // The Write came before the number: the job is here, all of it.
            let at = slot as usize * (HEADER + self.size);
            let mut header = [0; HEADER];
            self.jobs.read_at(at, &mut header)?;
            let mut data = vec![0; self.size];
            self.jobs.read_at(at + HEADER, &mut data)?;
            let job = u32::try_from(u64::from_le_bytes(header))?;
            if let Some(time) = takes {
                tokio::time::sleep(time).await;
            }
            let place = u64::from(job) * RESULT as u64;
            let there = self.results.slice(place..place + RESULT as u64)?;
            let result = Sha256::digest(&data);
            self.conn.request(SendRequest::write_inline_with_imm(0, result, there, job)).await?;
            done += 1;
        }
    }
}
