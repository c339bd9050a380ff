//! What either end refuses, and the Terminate that says so.
//!
//! siw lays the Terminate's bit fields out in the order of a little-endian machine: layer and type of what it sends are
//! swapped, and so are those that it shows of what it received.

use iwarp_verbs::{
    Access, DeviceConfig, Initiator, RemoteMemory, SendRequest, TerminateCode, WcStatus,
};

use super::Case;
use crate::interop::{
    Lab, Result, ensure, failed,
    ours::LIMIT,
    pair::{End, Ends, Pair, Plan, Role},
    siw::{FLUSHED, SUCCESS},
};

const MEMORY: usize = 8192;
const LEN: usize = 64;

/// What is wrong with an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    /// There is no such `STag`.
    Unknown,
    /// The `STag`'s low octet, the key, is another.
    Key,
    /// The end is outside of the region.
    Bounds,
    /// The region lacks the right.
    Right,
    /// The region is of another protection domain.
    Domain,
    /// The `STag` was invalidated.
    Invalidated,
    /// No receive is posted.
    NoReceive,
    /// The receive is shorter than the message.
    TooLong,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Write,
    Read,
    Send,
    SendInvalidate,
}

struct Violation {
    kind: Kind,
    fault: Fault,
    name: &'static str,
    /// What siw says, by layer, type and code; `None` if it does not mind.
    siw: Option<(u8, u8, u8)>,
    /// What we say.
    ours: (u8, u8, u8),
}

const VIOLATIONS: [Violation; 13] = [
    violation(Kind::Write, Fault::Unknown, "Write, no such STag", Some((1, 1, 0)), (1, 1, 0)),
    violation(Kind::Write, Fault::Key, "Write, wrong key in the STag", Some((1, 1, 0)), (1, 1, 0)),
    violation(
        Kind::Write,
        Fault::Bounds,
        "Write past the end of the region",
        Some((1, 1, 1)),
        (1, 1, 1),
    ),
    violation(Kind::Write, Fault::Right, "Write without the right", Some((1, 1, 0)), (1, 1, 0)),
    violation(
        Kind::Write,
        Fault::Domain,
        "Write, other protection domain",
        Some((1, 1, 2)),
        (1, 1, 2),
    ),
    violation(
        Kind::Write,
        Fault::Invalidated,
        "Write, STag invalidated before",
        Some((1, 1, 0)),
        (1, 1, 0),
    ),
    violation(Kind::Read, Fault::Unknown, "Read, no such STag", Some((0, 1, 0)), (0, 1, 0)),
    violation(
        Kind::Read,
        Fault::Bounds,
        "Read past the end of the region",
        Some((0, 1, 1)),
        (0, 1, 1),
    ),
    violation(Kind::Read, Fault::Right, "Read without the right", None, (0, 1, 2)),
    violation(
        Kind::Read,
        Fault::Domain,
        "Read, other protection domain",
        Some((0, 1, 3)),
        (0, 1, 3),
    ),
    violation(Kind::Send, Fault::NoReceive, "Send without a receive", Some((1, 2, 2)), (1, 2, 2)),
    violation(
        Kind::Send,
        Fault::TooLong,
        "Send longer than its receive",
        Some((1, 2, 2)),
        (1, 2, 5),
    ),
    violation(
        Kind::SendInvalidate,
        Fault::Unknown,
        "Send with Invalidate, no such STag",
        None,
        (0, 2, 9),
    ),
];

const fn violation(
    kind: Kind,
    fault: Fault,
    name: &'static str,
    siw: Option<(u8, u8, u8)>,
    ours: (u8, u8, u8),
) -> Violation {
    Violation { kind, fault, name, siw, ours }
}

pub(super) fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for (group, from) in [("Refused by siw", End::Ours), ("Refused by us", End::Siw)] {
        for violation in &VIOLATIONS {
            for role in Role::BOTH {
                let run = move |lab: &mut Lab| match from {
                    End::Ours => refused_by_siw(lab, role, violation),
                    End::Siw => refused_by_us(lab, role, violation),
                };
                let case = Case::new(group, violation.name, role, run);
                let smoke = matches!(violation.fault, Fault::Bounds | Fault::NoReceive);
                cases.push(if smoke { case.smoke() } else { case });
            }
        }
    }
    cases
}

impl Violation {
    fn is_send(&self) -> bool {
        matches!(self.kind, Kind::Send | Kind::SendInvalidate)
    }

    /// The place that the operation names, made of a region where it would be allowed.
    fn place(&self, region: RemoteMemory) -> RemoteMemory {
        let len = LEN as u64;
        let RemoteMemory { addr, rkey, .. } = region;
        match self.fault {
            Fault::Unknown => RemoteMemory { addr, len, rkey: rkey ^ 0x5a5a_5a00 },
            Fault::Key => RemoteMemory { addr, len, rkey: rkey ^ 1 },
            Fault::Bounds => RemoteMemory { addr: addr + region.len - len + 1, len, rkey },
            _ => RemoteMemory { addr, len, rkey },
        }
    }

    /// Letters of the rights that the region has at siw.
    fn rights(&self) -> &'static str {
        match (self.fault, self.kind) {
            (Fault::Right, Kind::Read) => "lw",
            (Fault::Right, _) => "lr",
            _ => "lrw",
        }
    }

    fn access(&self) -> Access {
        match (self.fault, self.kind) {
            (Fault::Right, Kind::Read) => Access::LOCAL_WRITE | Access::REMOTE_WRITE,
            (Fault::Right, _) => Access::LOCAL_WRITE | Access::REMOTE_READ,
            _ => Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ,
        }
    }
}

fn connected(lab: &mut Lab, role: Role) -> Result<Pair> {
    // A Send without a receive is refused at once, not held back for some seconds.
    let config = DeviceConfig::default().strict_receive(true);
    let mut pair = Ends::new(lab, config, MEMORY)?.connect(lab, Plan::new(role))?;
    if role == Role::SiwConnects {
        // siw speaks first.
        pair.transfer(super::transfer::Operation::SEND, End::Siw, 1, 1)?;
    }
    Ok(pair)
}

fn refused_by_siw(lab: &mut Lab, role: Role, violation: &Violation) -> Result<String> {
    let mut pair = connected(lab, role)?;
    let domain = u32::from(violation.fault == Fault::Domain);
    let region = pair.siw.region(1, LEN, violation.rights(), domain)?;
    pair.siw.blank(1, LEN)?;
    let place = violation.place(region);
    let (siw, ours) = (&mut pair.siw, &pair.ours);
    let here = ours.memory.slice(..LEN)?;
    if violation.fault == Fault::Invalidated {
        siw.recv(8, 0, 0)?;
        ours.qp.post_send(SendRequest::send(8, ()).invalidate(region.rkey))?;
        ours.expect_sent(8)?;
        siw.received()?;
    }
    match violation.fault {
        Fault::TooLong => siw.recv(9, 0, LEN / 2)?,
        Fault::NoReceive => {}
        _ if violation.is_send() => siw.recv(9, 0, LEN)?,
        _ => {}
    }
    ours.qp.post_send(match violation.kind {
        Kind::Write => SendRequest::write(9, here, place),
        Kind::Read => SendRequest::read(9, here, place),
        Kind::Send => SendRequest::send(9, here),
        Kind::SendInvalidate => SendRequest::send(9, here).invalidate(place.rkey),
    })?;
    let completion = ours.sent()?;
    let Some((layer, error_type, code)) = violation.siw else {
        ensure!(completion.is_success(), "siw did mind: {completion:?}");
        if violation.kind == Kind::SendInvalidate {
            let received = siw.received()?;
            ensure!(
                received.status != SUCCESS,
                "siw has invalidated what is not there: {received:?}"
            );
            return Ok("an error at its receiver, and no Terminate".into());
        }
        pair.close()?;
        return Ok("siw does not look at the right".into());
    };
    let wanted = TerminateCode::from_parts(layer, error_type, code);
    let reason = pair.connection.wait_closed(LIMIT);
    let ending = ours.qp.ending().ok_or_else(|| failed(format!("no Terminate: {reason:?}")))?;
    let by_siw = ending.by == Initiator::Remote && ending.terminate.likely_code() == wanted;
    ensure!(by_siw, "{wanted} was expected: {ending:?}");
    let status = match violation.kind {
        Kind::Read => WcStatus::RemAccessErr,
        _ => WcStatus::Success,
    };
    ensure!(completion.status == status, "{completion:?}");
    if violation.kind == Kind::Write {
        let first = siw.ask("octet 1 0")?.number(0)?;
        ensure!(first == 0xa5, "siw has placed what it refused");
    }
    siw.ended()?;
    Ok(format!("Terminate {wanted}"))
}

fn refused_by_us(lab: &mut Lab, role: Role, violation: &Violation) -> Result<String> {
    let mut pair = connected(lab, role)?;
    let (siw, ours) = (&mut pair.siw, &pair.ours);
    let other = ours.device.alloc_pd();
    let pd = if violation.fault == Fault::Domain { &other } else { &ours.pd };
    let region = pd.alloc(LEN, violation.access())?;
    let place = violation.place(region.remote());
    if violation.fault == Fault::Invalidated {
        ours.recv(8, 0)?;
        siw.ask(format!("post send-inv 8 0 0 0 {}", place.rkey))?;
        siw.expect_sent(8)?;
        ensure!(ours.received()?.is_success(), "the STag was not invalidated");
    }
    match violation.fault {
        Fault::TooLong => ours.recv(9, LEN / 2)?,
        Fault::NoReceive => {}
        _ if violation.is_send() => ours.recv(9, LEN)?,
        _ => {}
    }
    lab.guest.log()?;
    siw.ask(match violation.kind {
        Kind::Write => format!("post write 9 0 0 {LEN} {} {}", place.addr, place.rkey),
        Kind::Read => format!("post read 9 0 0 {LEN} {} {}", place.addr, place.rkey),
        Kind::Send => format!("post send 9 0 0 {LEN}"),
        Kind::SendInvalidate => format!("post send-inv 9 0 0 {LEN} {}", place.rkey),
    })?;
    // A Send or Write is done when it has been sent, unless the Terminate is faster.
    let completion = siw.sent()?;
    let fits = completion.id == 9 && (violation.kind != Kind::Read || completion.status == FLUSHED);
    ensure!(fits, "siw: {completion:?}");
    siw.ended()?;
    let reason = pair.connection.wait_closed(LIMIT);
    let ending = ours.qp.ending().ok_or_else(|| failed(format!("no Terminate: {reason:?}")))?;
    let (layer, error_type, code) = violation.ours;
    let wanted = TerminateCode::from_parts(layer, error_type, code);
    let by_us = ending.by == Initiator::Local && ending.terminate.code == wanted;
    ensure!(by_us, "{wanted} was expected: {ending:?}");
    let mut octets = [1; LEN];
    region.read_at(0, &mut octets)?;
    ensure!(octets == [0; LEN], "what was refused has been placed");
    let shown = format!("siw: got TERMINATE. layer {error_type}, type {layer}, code {code}");
    let log = lab.guest.log()?;
    ensure!(log.contains(&shown), "siw's log lacks {shown:?}: {log:?}");
    Ok(format!("Terminate {wanted}"))
}
