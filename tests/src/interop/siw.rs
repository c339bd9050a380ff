//! siw's end of one connection, by commands to siwpeer.

use iwarp_verbs::RemoteMemory;

use super::{
    Result,
    control::{Answer, Line},
    ensure, failed,
};

/// `enum ibv_wc_status`, as far as siw uses it here.
pub(super) const SUCCESS: u64 = 0;
pub(super) const FLUSHED: u64 = 5;
/// `IBV_WC_WITH_INV`.
const WITH_INVALIDATION: u64 = 8;

/// Where private data stands in an answer, behind IRD and ORD.
const PRIVATE_DATA: usize = 3;

/// A completion of siw.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Completion {
    pub(super) id: u64,
    pub(super) status: u64,
    pub(super) octets: u64,
    /// The key that a Send invalidated.
    pub(super) invalidated: Option<u64>,
}

/// How a set-up ended for siw.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Settled {
    /// With the private data of the responder's program, where siw is the initiator.
    Established(Vec<u8>),
    /// The event of `rdma_cm`, its status, and the private data.
    Failed(String, i64, Vec<u8>),
}

impl Settled {
    pub(super) fn established(self) -> Result<Vec<u8>> {
        match self {
            Self::Established(data) => Ok(data),
            Self::Failed(event, status, _) => Err(failed(format!("siw: {event}, status {status}"))),
        }
    }
}

#[derive(Debug)]
pub(super) struct Siw {
    pub(super) process: u32,
    line: Line,
}

impl Siw {
    pub(super) fn new((process, line): (u32, Line)) -> Self {
        Self { process, line }
    }

    pub(super) fn ask(&mut self, command: impl Into<String>) -> Result<Answer> {
        self.line.ask(command)
    }

    pub(super) fn say(&mut self, command: impl Into<String>) -> Result<()> {
        self.line.say(command)
    }

    pub(super) fn answer(&mut self) -> Result<Answer> {
        self.line.answer()
    }

    /// Registers memory region `number`; rights are letters of "lrw", and domain 1 is not the queue pair's.
    pub(super) fn region(
        &mut self,
        number: u32,
        len: usize,
        rights: &str,
        domain: u32,
    ) -> Result<RemoteMemory> {
        let answer = self.ask(format!("region {number} {len} {rights} {domain}"))?;
        let (addr, rkey) = (answer.number(0)?, answer.number(1)?);
        Ok(RemoteMemory { addr, len: len as u64, rkey: u32::try_from(rkey).map_err(failed)? })
    }

    pub(super) fn fill(&mut self, region: u32, len: usize, seed: u64) -> Result<()> {
        self.ask(format!("fill {region} 0 {len} {seed}")).map(drop)
    }

    pub(super) fn blank(&mut self, region: u32, len: usize) -> Result<()> {
        self.ask(format!("blank {region} 0 {len}")).map(drop)
    }

    /// Whether a region begins with a pattern, and the octet behind is still blank.
    pub(super) fn check(&mut self, region: u32, len: usize, seed: u64) -> Result<()> {
        let answer = self.ask(format!("check {region} 0 {len} {seed}"))?;
        let found = answer.words.join(" ");
        ensure!(found == "same", "{len} octets at siw: {found}");
        let behind = self.ask(format!("octet {region} {len}"))?.number(0)?;
        ensure!(behind == 0xa5, "the octet behind {len} octets at siw is {behind:#x}");
        Ok(())
    }

    pub(super) fn recv(&mut self, id: u64, region: u32, len: usize) -> Result<()> {
        self.ask(format!("recv {id} {region} 0 {len}")).map(drop)
    }

    pub(super) fn sent(&mut self) -> Result<Completion> {
        let answer = self.ask("sent")?;
        completion(&answer)
    }

    pub(super) fn received(&mut self) -> Result<Completion> {
        let answer = self.ask("received")?;
        completion(&answer)
    }

    /// Fails unless the next completion of the send queue is a success of request `id`.
    pub(super) fn expect_sent(&mut self, id: u64) -> Result<()> {
        let completion = self.sent()?;
        ensure!(completion.id == id && completion.status == SUCCESS, "siw: {completion:?}");
        Ok(())
    }

    /// Fails unless nothing completes for a moment.
    pub(super) fn expect_quiet(&mut self) -> Result<()> {
        let answer = self.ask("quiet 300")?;
        ensure!(answer.word(0) == "quiet", "siw completed something: {:?}", answer.words);
        Ok(())
    }

    /// The next request for a connection; its private data.
    pub(super) fn request(&mut self) -> Result<Vec<u8>> {
        self.ask("request")?.octets(PRIVATE_DATA)
    }

    /// What has come of `connect` or `accept`, which were said before.
    pub(super) fn settled(&mut self) -> Result<Settled> {
        let answer = self.answer()?;
        if answer.word(0) == "established" {
            return Ok(Settled::Established(answer.octets(PRIVATE_DATA)?));
        }
        let status = answer.word(1).parse().map_err(failed)?;
        Ok(Settled::Failed(answer.word(0).to_owned(), status, answer.octets(2)?))
    }

    /// Waits for the end of the connection.
    pub(super) fn ended(&mut self) -> Result<()> {
        self.ask("ended").map(drop)
    }
}

fn completion(answer: &Answer) -> Result<Completion> {
    let invalidates = answer.number(4)? & WITH_INVALIDATION != 0;
    Ok(Completion {
        id: answer.number(0)?,
        status: answer.number(1)?,
        octets: answer.number(3)?,
        invalidated: if invalidates { Some(answer.number(5)?) } else { None },
    })
}

/// Private data in a command.
pub(super) fn digits(octets: &[u8]) -> String {
    if octets.is_empty() { "-".into() } else { hex::encode(octets) }
}
