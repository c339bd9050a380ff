//! Thousands of messages of random kinds and sizes, in both directions at once, with CRC.

use iwarp_verbs::{
    Access, FpduLimit, MemoryRegion, RecvRequest, RemoteMemory, SendRequest, cm::ConnParam,
};

use super::Case;
use crate::interop::{
    Lab, Result, ensure, failed,
    ours::Ours,
    pair::{Pair, Plan, Role},
    pattern::{self, Message, MessageKind},
};

const GROUP: &str =
    "Sends, Writes and Reads of random sizes below 64 KiB, both ways at once, CRC on";
const COUNT: u64 = 10_000;
const SHORT: u64 = 320;
/// Messages of a batch and direction; each has a slot of its own.
const BATCH: u64 = 32;
const SLOT: usize = 65_536;
/// The empty Send behind a batch.
const LAST: u64 = 1_000_000;
/// What stands behind a message that is to come in.
const GUARD: u8 = 0x5c;
/// Directions, as the guest numbers them.
const TO_SIW: u64 = 0;
const TO_US: u64 = 1;

pub(super) fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for (limit, words) in
        [(None, "default FPDU limit"), (Some(FpduLimit::Emss), "an FPDU in each segment")]
    {
        for role in Role::BOTH {
            let name = format!("{COUNT} each way, {words}");
            cases.push(
                Case::new(GROUP, name, role, move |lab| run(lab, role, limit, COUNT))
                    .needs_segments(),
            );
        }
    }
    for role in Role::BOTH {
        let name = format!("{SHORT} each way, default FPDU limit");
        cases.push(Case::new(GROUP, name, role, move |lab| run(lab, role, None, SHORT)).smoke());
    }
    for case in &mut cases {
        case.settings = &[("mpa_crc_required", "1")];
    }
    cases
}

fn run(lab: &mut Lab, role: Role, limit: Option<FpduLimit>, count: u64) -> Result<String> {
    let change = |param: ConnParam| match limit {
        Some(limit) => param.fpdu_limit(limit),
        None => param,
    };
    let mut pair = Pair::new(lab, Plan::new(role).with(change), 4096)?;
    ensure!(pair.connection.crc(), "no CRC");
    if role == Role::SiwConnects {
        // Our sender waits for siw's first FPDU, and a batch begins at both ends at once.
        pair.transfer(super::transfer::Operation::SEND, super::super::pair::End::Siw, 1, 1)?;
    }
    let seed = count ^ u64::from(limit.is_some());
    let mut stream = Stream::new(&mut pair, seed)?;
    let mut first = 0;
    while first < count {
        let batch = BATCH.min(count - first);
        stream.batch(&mut pair, first, batch)?;
        first += batch;
    }
    let octets = (0..count).map(|index| {
        let sizes = [TO_SIW, TO_US].map(|direction| pattern::message(seed, direction, index).len);
        sizes.iter().sum::<usize>()
    });
    let megabytes = octets.sum::<usize>() / 1_000_000;
    pair.close()?;
    Ok(format!("{megabytes} MB"))
}

/// This end of it; the guest's is `bulk.c`, and both do the same.
struct Stream {
    seed: u64,
    /// Incoming Sends and Writes, and one slot more for the empty Send.
    incoming: MemoryRegion,
    /// What the peer's Reads take.
    source: MemoryRegion,
    /// What goes out, and where own Reads go.
    outgoing: MemoryRegion,
    incoming_there: RemoteMemory,
    source_there: RemoteMemory,
}

impl Stream {
    fn new(pair: &mut Pair, seed: u64) -> Result<Self> {
        let len = SLOT * (usize::try_from(BATCH)? + 1);
        let incoming_there = pair.siw.region(1, len, "lw", 0)?;
        let source_there = pair.siw.region(2, len, "r", 0)?;
        pair.siw.region(3, len, "l", 0)?;
        let pd = &pair.ours.pd;
        Ok(Self {
            seed,
            incoming: pd.alloc(len, Access::LOCAL_WRITE | Access::REMOTE_WRITE)?,
            source: pd.alloc(len, Access::REMOTE_READ)?,
            outgoing: pd.alloc(len, Access::LOCAL_WRITE)?,
            incoming_there,
            source_there,
        })
    }

    fn batch(&mut self, pair: &mut Pair, first: u64, count: u64) -> Result<()> {
        let seed = self.seed;
        pair.siw.say(format!("prepare {seed} {first} {count} 1 2 3"))?;
        let coming: Vec<Message> =
            (0..count).map(|index| pattern::message(seed, TO_US, first + index)).collect();
        let going: Vec<Message> =
            (0..count).map(|index| pattern::message(seed, TO_SIW, first + index)).collect();
        self.prepare(&pair.ours, first, &coming)?;
        pair.siw.answer()?;
        let (incoming, source) = (self.incoming.remote(), self.source.remote());
        pair.siw.say(format!(
            "run {} {} {} {}",
            incoming.addr, incoming.rkey, source.addr, source.rkey
        ))?;
        self.post(&pair.ours, first, &going)?;
        self.take(&pair.ours, first, &going, &coming)?;
        let done = pair.siw.answer()?;
        ensure!(done.word(0) == "done", "siw: {:?}", done.words);
        Ok(())
    }

    fn prepare(&self, ours: &Ours, first: u64, coming: &[Message]) -> Result<()> {
        for (index, message) in coming.iter().enumerate() {
            let at = index * SLOT;
            match message.kind {
                MessageKind::Read => {
                    self.source.write_at(at, &pattern::octets(message.len, message.pattern))?;
                    continue;
                }
                MessageKind::Send | MessageKind::Write => {
                    self.incoming.fill(at..=at + message.len, GUARD)?;
                }
            }
            if message.kind == MessageKind::Send {
                let room = self.incoming.slice(at..at + SLOT)?;
                ours.qp.post_recv(RecvRequest::new(first + index as u64, room))?;
            }
        }
        Ok(ours.qp.post_recv(RecvRequest::new(LAST, ()))?)
    }

    fn post(&self, ours: &Ours, first: u64, going: &[Message]) -> Result<()> {
        for (index, message) in going.iter().enumerate() {
            let (id, at) = (first + index as u64, index * SLOT);
            let here = self.outgoing.slice(at..at + message.len)?;
            let there = at as u64..(at + message.len) as u64;
            if message.kind != MessageKind::Read {
                self.outgoing.write_at(at, &pattern::octets(message.len, message.pattern))?;
            }
            ours.qp.post_send(match message.kind {
                MessageKind::Send => SendRequest::send(id, here),
                MessageKind::Write => {
                    SendRequest::write(id, here, self.incoming_there.slice(there)?)
                }
                MessageKind::Read => SendRequest::read(id, here, self.source_there.slice(there)?),
            })?;
        }
        Ok(ours.qp.post_send(SendRequest::send(LAST, ()))?)
    }

    /// Waits for everything, and compares.
    fn take(&self, ours: &Ours, first: u64, going: &[Message], coming: &[Message]) -> Result<()> {
        for id in (first..).take(going.len()).chain([LAST]) {
            ours.expect_sent(id)?;
        }
        let sends = (first..).zip(coming).filter(|(_, message)| message.kind == MessageKind::Send);
        for (id, len) in sends.map(|(id, message)| (id, message.len)).chain([(LAST, 0)]) {
            let completion = ours.received()?;
            let whole = completion.is_success() && completion.byte_len as usize == len;
            ensure!(
                completion.wr_id == id && whole,
                "message {id} of {len} octets: {completion:?}"
            );
        }
        for (index, (went, came)) in going.iter().zip(coming).enumerate() {
            let (id, at) = (first + index as u64, index * SLOT);
            if went.kind == MessageKind::Read {
                compare(&self.outgoing, at, went, None)
                    .map_err(|at| failed(format!("Read {id} differs at {at}")))?;
            }
            if came.kind != MessageKind::Read {
                compare(&self.incoming, at, came, Some(GUARD))
                    .map_err(|at| failed(format!("message {id} differs at {at}")))?;
            }
        }
        Ok(())
    }
}

/// Where a message in memory differs from what it has to be, with what has to be behind it.
fn compare(
    region: &MemoryRegion,
    at: usize,
    message: &Message,
    behind: Option<u8>,
) -> std::result::Result<(), usize> {
    let mut wanted = pattern::octets(message.len, message.pattern);
    wanted.extend(behind);
    let mut found = vec![0; wanted.len()];
    region.read_at(at, &mut found).map_err(|_| 0_usize)?;
    found.iter().zip(&wanted).position(|(found, wanted)| found != wanted).map_or(Ok(()), Err)
}
