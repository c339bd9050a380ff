//! This stack's end of one connection, by the public interface alone.

use std::time::Duration;

use iwarp_verbs::{
    Access, CompletionChannel, CompletionQueue, Device, DeviceConfig, MemoryRegion, Notify,
    ProtectionDomain, QpConfig, QueuePair, RecvRequest, WcStatus, WorkCompletion,
};

use super::{Result, ensure, failed, pattern};

/// How long anything may take that must happen: an emulated guest beside other work is slow.
pub(super) const LIMIT: Duration = Duration::from_mins(2);

/// What memory holds where nothing was written.
const BLANK: u8 = 0xa5;

#[derive(Debug)]
pub(super) struct Ours {
    pub(super) device: Device,
    pub(super) pd: ProtectionDomain,
    pub(super) qp: QueuePair,
    pub(super) memory: MemoryRegion,
    send_cq: CompletionQueue,
    recv_cq: CompletionQueue,
    channel: CompletionChannel,
}

impl Ours {
    /// A device, and a queue pair with so much memory that a peer may read and write.
    pub(super) fn new(config: DeviceConfig, memory: usize) -> Result<Self> {
        let device = Device::open(config)?;
        let pd = device.alloc_pd();
        let channel = device.create_channel()?;
        let send_cq = device.create_cq(512)?;
        let recv_cq = device.create_cq_with_channel(512, &channel)?;
        let qp = pd.create_qp(&QpConfig::new(&send_cq).recv_cq(&recv_cq))?;
        let rights = Access::LOCAL_WRITE | Access::REMOTE_READ | Access::REMOTE_WRITE;
        let memory = pd.alloc(memory, rights)?;
        Ok(Self { device, pd, qp, memory, send_cq, recv_cq, channel })
    }

    /// The next completion of the send queue, whatever it says.
    pub(super) fn sent(&self) -> Result<WorkCompletion> {
        self.send_cq.wait(LIMIT)?.ok_or_else(|| failed("no completion of our send queue"))
    }

    /// The next completion of the receive queue, whatever it says.
    pub(super) fn received(&self) -> Result<WorkCompletion> {
        self.recv_cq.wait(LIMIT)?.ok_or_else(|| failed("no completion of our receive queue"))
    }

    /// Fails unless the next completion of the send queue is a success of request `id`.
    pub(super) fn expect_sent(&self, id: u64) -> Result<()> {
        let completion = self.sent()?;
        ensure!(completion.wr_id == id && completion.is_success(), "ours: {completion:?}");
        Ok(())
    }

    /// Takes the receives `0..count`, which are posted and have to be flushed, once each.
    pub(super) fn expect_flushed(&self, count: u64) -> Result<()> {
        for id in 0..count {
            let completion = self.received()?;
            let flushed = completion.wr_id == id && completion.status == WcStatus::WrFlushErr;
            ensure!(flushed, "receive {id} of ours: {completion:?}");
        }
        ensure!(self.recv_cq.poll_one().is_none(), "a receive of ours was reported twice");
        Ok(())
    }

    /// Posts a receive of `len` octets at the front of the memory.
    pub(super) fn recv(&self, id: u64, len: usize) -> Result<()> {
        Ok(self.qp.post_recv(RecvRequest::new(id, self.memory.slice(..len)?))?)
    }

    /// Asks for an event at the next solicited completion of a receive.
    pub(super) fn arm(&self) -> Result<()> {
        Ok(self.recv_cq.arm(Notify::Solicited)?)
    }

    /// Whether that event comes within `time`.
    pub(super) fn has_event(&self, time: Duration) -> Result<bool> {
        Ok(self.channel.wait_event(time)?.is_some())
    }

    pub(super) fn fill(&self, len: usize, seed: u64) -> Result<()> {
        Ok(self.memory.write_at(0, &pattern::octets(len, seed))?)
    }

    pub(super) fn blank(&self, len: usize) -> Result<()> {
        Ok(self.memory.fill(..len, BLANK)?)
    }

    /// Whether the memory begins with a pattern, and the octet behind is still blank.
    pub(super) fn check(&self, len: usize, seed: u64) -> Result<()> {
        self.check_at(0, len, seed, BLANK)
    }

    /// The same at `offset`, with `behind` as the octet behind.
    pub(super) fn check_at(&self, offset: usize, len: usize, seed: u64, behind: u8) -> Result<()> {
        let mut found = vec![0; len + 1];
        self.memory.read_at(offset, &mut found)?;
        let mut wanted = pattern::octets(len, seed);
        wanted.push(behind);
        let differs = found.iter().zip(&wanted).position(|(found, wanted)| found != wanted);
        match differs {
            None => Ok(()),
            Some(at) => Err(failed(format!("{len} octets of ours differ at {at}"))),
        }
    }
}
