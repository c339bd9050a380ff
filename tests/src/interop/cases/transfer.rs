//! Operations of all kinds and sizes, each from both ends, with what arrived compared octet by octet.

use std::time::Duration;

use iwarp_verbs::{Access, MemoryRegion, RecvRequest, Revision, SendRequest};

use super::Case;
use crate::interop::{
    Lab, Result, ensure,
    pair::{End, Pair, Plan, Role},
    siw::SUCCESS,
};

const GROUP: &str = "Operations, both ways";
const SMALL: [usize; 7] = [0, 1, 7, 64, 1500, 4096, 65_536];
const LARGE: [usize; 2] = [1 << 20, 16 << 20];
/// The largest message and a guard behind it.
const MEMORY: usize = (16 << 20) + 4096;
/// An event that must come; one that must not is waited for a moment only.
const EVENT: Duration = Duration::from_mins(1);
const NO_EVENT: Duration = Duration::from_millis(20);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Operation {
    Send { solicited: bool, invalidate: bool },
    Write,
    Read,
}

impl Operation {
    pub(super) const SEND: Self = Self::Send { solicited: false, invalidate: false };
    const ALL: [Self; 6] = [
        Self::SEND,
        Self::Send { solicited: true, invalidate: false },
        Self::Send { solicited: false, invalidate: true },
        Self::Send { solicited: true, invalidate: true },
        Self::Write,
        Self::Read,
    ];

    const fn name(self) -> &'static str {
        match self {
            Self::Send { solicited: false, invalidate: false } => "Send",
            Self::Send { solicited: true, invalidate: false } => "Send with SE",
            Self::Send { solicited: false, invalidate: true } => "Send with Invalidate",
            Self::Send { solicited: true, invalidate: true } => "Send with SE and Invalidate",
            Self::Write => "Write",
            Self::Read => "Read",
        }
    }
}

pub(super) fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for (revision, number) in [(Revision::V2, 2), (Revision::V1, 1)] {
        for crc in [true, false] {
            for operation in Operation::ALL {
                let large = (&LARGE[..], "1 and 16 MiB");
                let small = (&SMALL[..], "0 to 65,536 octets");
                for (sizes, words) in [small, large] {
                    let on = if crc { "on" } else { "off" };
                    let name =
                        format!("{}, {words}, revision {number}, CRC {on}", operation.name());
                    for role in Role::BOTH {
                        let run =
                            move |lab: &mut Lab| run(lab, role, revision, crc, operation, sizes);
                        let case = Case::new(GROUP, name.clone(), role, run)
                            .settings(settings(number, crc));
                        let small = number == 2 && crc && sizes == &SMALL[..];
                        cases.push(if small { case.smoke() } else { case });
                    }
                }
            }
        }
    }
    cases
}

/// What siw asks for when it connects.
const fn settings(revision: u8, crc: bool) -> &'static [(&'static str, &'static str)] {
    match (revision, crc) {
        (1, true) => &[("mpa_version", "1"), ("mpa_crc_required", "1")],
        (1, false) => &[("mpa_version", "1")],
        (_, true) => &[("mpa_crc_required", "1")],
        (_, false) => &[],
    }
}

fn run(
    lab: &mut Lab,
    role: Role,
    revision: Revision,
    crc: bool,
    operation: Operation,
    sizes: &[usize],
) -> Result<String> {
    let plan = Plan::new(role).with(|param| param.revision(revision).crc(crc));
    let mut pair = Pair::new(lab, plan, MEMORY)?;
    let number = if revision == Revision::V1 { 1 } else { 2 };
    ensure!(pair.connection.revision() == number, "revision {}", pair.connection.revision());
    ensure!(pair.connection.crc() == crc, "CRC is {}", pair.connection.crc());
    let mut id = 0;
    for from in role.initiator_first() {
        for &len in sizes {
            id += 1;
            pair.transfer(operation, from, len, id)?;
        }
    }
    pair.close()?;
    Ok(String::new())
}

impl Pair {
    /// One operation of `len` octets asked for by `from`, and everything that has to be true of it.
    pub(super) fn transfer(
        &mut self,
        operation: Operation,
        from: End,
        len: usize,
        id: u64,
    ) -> Result<()> {
        let done = match (operation, from) {
            (Operation::Send { solicited, invalidate }, End::Ours) => {
                self.send_to_siw(len, id, solicited, invalidate)
            }
            (Operation::Send { solicited, invalidate }, End::Siw) => {
                self.send_to_us(len, id, solicited, invalidate)
            }
            (Operation::Write, End::Ours) => self.write_to_siw(len, id),
            (Operation::Write, End::Siw) => self.write_to_us(len, id),
            (Operation::Read, End::Ours) => self.read_from_siw(len, id),
            (Operation::Read, End::Siw) => self.read_from_us(len, id),
        };
        done.map_err(|reason| {
            super::super::Failure(format!("{len} octets from {from:?}: {}", reason.0))
        })
    }

    fn send_to_siw(
        &mut self,
        len: usize,
        id: u64,
        solicited: bool,
        invalidate: bool,
    ) -> Result<()> {
        let Self { siw, ours, .. } = self;
        siw.blank(0, len + 1)?;
        siw.recv(id, 0, len)?;
        ours.fill(len, id)?;
        let mut request = SendRequest::send(id, ours.memory.slice(..len)?);
        let mut key = None;
        if invalidate {
            let rkey = siw.region(1, 64, "lrw", 0)?.rkey;
            request = request.invalidate(rkey);
            key = Some(u64::from(rkey));
        }
        ours.qp.post_send(if solicited { request.solicited() } else { request })?;
        ours.expect_sent(id)?;
        let completion = siw.received()?;
        let whole =
            completion.id == id && completion.status == SUCCESS && completion.octets == len as u64;
        // siw's library does not tell which key it was; that it is out of force is a case of its own.
        let told = completion.invalidated.is_none_or(|told| Some(told) == key);
        ensure!(whole && told, "siw received {completion:?}, key {key:?}");
        // siw has no event for solicited messages only, so there is none to wait for.
        siw.check(0, len, id)
    }

    fn send_to_us(&mut self, len: usize, id: u64, solicited: bool, invalidate: bool) -> Result<()> {
        let Self { siw, ours, .. } = self;
        ours.blank(len + 1)?;
        ours.recv(id, len)?;
        ours.arm()?;
        siw.fill(0, len, id)?;
        let rights = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
        let region: Option<MemoryRegion> =
            invalidate.then(|| ours.pd.alloc(64, rights)).transpose()?;
        let key = region.as_ref().map(MemoryRegion::rkey);
        let kind = match (solicited, invalidate) {
            (false, false) => "send",
            (true, false) => "send-se",
            (false, true) => "send-inv",
            (true, true) => "send-se-inv",
        };
        let key_word = key.map(|key| key.to_string()).unwrap_or_default();
        siw.ask(format!("post {kind} {id} 0 0 {len} {key_word}"))?;
        siw.expect_sent(id)?;
        let completion = ours.received()?;
        let whole = completion.wr_id == id
            && completion.is_success()
            && completion.byte_len as usize == len;
        ensure!(
            whole && completion.invalidated_rkey == key,
            "we received {completion:?}, key {key:?}"
        );
        let event = ours.has_event(if solicited { EVENT } else { NO_EVENT })?;
        ensure!(event == solicited, "an event here: {event}");
        let valid = region.is_some_and(|region| region.is_valid());
        ensure!(!valid, "the region is still valid");
        ours.check(len, id)
    }

    /// A Send behind tells that it has arrived.
    fn write_to_siw(&mut self, len: usize, id: u64) -> Result<()> {
        let Self { siw, ours, there, .. } = self;
        siw.blank(0, len + 1)?;
        siw.recv(id, 0, 0)?;
        ours.fill(len, id)?;
        let write = SendRequest::write(id, ours.memory.slice(..len)?, there.slice(..len as u64)?);
        ours.qp.post_send(write)?;
        ours.qp.post_send(SendRequest::send(id, ()))?;
        ours.expect_sent(id)?;
        ours.expect_sent(id)?;
        let completion = siw.received()?;
        ensure!(
            completion.status == SUCCESS && completion.octets == 0,
            "siw received {completion:?}"
        );
        siw.check(0, len, id)
    }

    fn write_to_us(&mut self, len: usize, id: u64) -> Result<()> {
        let Self { siw, ours, .. } = self;
        ours.blank(len + 1)?;
        ours.qp.post_recv(RecvRequest::new(id, ()))?;
        siw.fill(0, len, id)?;
        let here = ours.memory.remote();
        siw.ask(format!("post write {id} 0 0 {len} {} {}", here.addr, here.rkey))?;
        siw.ask(format!("post send {id} 0 0 0"))?;
        siw.expect_sent(id)?;
        siw.expect_sent(id)?;
        let completion = ours.received()?;
        ensure!(completion.is_success() && completion.byte_len == 0, "we received {completion:?}");
        ours.check(len, id)
    }

    fn read_from_siw(&mut self, len: usize, id: u64) -> Result<()> {
        let Self { siw, ours, there, .. } = self;
        siw.fill(0, len, id)?;
        ours.blank(len + 1)?;
        let read = SendRequest::read(id, ours.memory.slice(..len)?, there.slice(..len as u64)?);
        ours.qp.post_send(read)?;
        let completion = ours.sent()?;
        let whole = completion.is_success() && completion.byte_len as usize == len;
        ensure!(completion.wr_id == id && whole, "our Read: {completion:?}");
        ours.check(len, id)
    }

    fn read_from_us(&mut self, len: usize, id: u64) -> Result<()> {
        let Self { siw, ours, .. } = self;
        ours.fill(len, id)?;
        siw.blank(0, len + 1)?;
        let here = ours.memory.remote();
        siw.ask(format!("post read {id} 0 0 {len} {} {}", here.addr, here.rkey))?;
        siw.expect_sent(id)?;
        siw.check(0, len, id)
    }
}
