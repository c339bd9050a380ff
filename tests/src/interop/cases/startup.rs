//! Start-up: private data, rejections, read depths, who speaks first, CRC and markers.

use iwarp_verbs::{
    DeviceConfig, Initiator, Revision, RtrTypes, SendRequest, TerminateCode,
    cm::{CloseReason, ConnectError},
};

use super::{Case, transfer::Operation};
use crate::interop::{
    Lab, Result, ensure, failed,
    guest::HOST,
    ours::{LIMIT, Ours},
    pair::{Decision, End, Ends, Pair, Plan, Role, SetUp},
    pattern,
    siw::{Settled, Siw},
};

const GROUP: &str = "Start-up";
const MEMORY: usize = 65_536 + 4096;
const MARKERS_OR_CRC_REFUSED: &str = "siw refuses";

type Settings = &'static [(&'static str, &'static str)];

const V1: Settings = &[("mpa_version", "1")];
const P2P_WRITE: Settings = &[("peer_to_peer", "1"), ("rtr_type", "128")];
const P2P_READ: Settings = &[("peer_to_peer", "1"), ("rtr_type", "64")];
const P2P: Settings = &[("peer_to_peer", "1")];
const CRC_REQUIRED: Settings = &[("mpa_crc_required", "1")];
const CRC_REFUSED: Settings = &[("mpa_crc_strict", "1")];

pub(super) fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    let mut add =
        |name: &str, settings: Settings, smoke, run: fn(&mut Lab, Role) -> Result<String>| {
            for role in Role::BOTH {
                let case =
                    Case::new(GROUP, name, role, move |lab| run(lab, role)).settings(settings);
                cases.push(if smoke { case.smoke() } else { case });
            }
        };

    add("private data up to 252 octets, revision 2", &[], true, |lab, role| {
        private_data(lab, role, Revision::V2)
    });
    add("private data up to 255 octets, revision 1", V1, false, |lab, role| {
        private_data(lab, role, Revision::V1)
    });
    add("rejected with private data, revision 2", &[], true, |lab, role| {
        rejected(lab, role, Revision::V2)
    });
    add("rejected with private data, revision 1", V1, false, |lab, role| {
        rejected(lab, role, Revision::V1)
    });
    add("nothing listens", &[], false, nothing_listens);
    add("IRD and ORD of each side are the other's ceiling", &[], true, depths);
    add("IRD and ORD of 0: no Reads, but Writes", &[], false, no_reads);
    add("the responder speaks first, client-server model", &[], false, |lab, role| {
        responder_first(lab, role, RtrTypes::empty())
    });
    add("ready to receive by a Write", P2P_WRITE, true, |lab, role| {
        responder_first(lab, role, RtrTypes::WRITE)
    });
    add("ready to receive by a Read", P2P_READ, false, |lab, role| {
        responder_first(lab, role, RtrTypes::READ)
    });
    add("CRC that only we ask for", &[], false, |lab, role| crc(lab, role, true, true));
    add("CRC that only siw wants", CRC_REQUIRED, false, |lab, role| {
        // As responder siw does not ask for what the Request does not.
        crc(lab, role, false, role == Role::SiwConnects)
    });
    add("CRC that siw refuses", CRC_REFUSED, false, |lab, role| {
        refused(lab, Plan::new(role).with(|param| param.crc(true)))
    });
    add("markers, which siw refuses", &[], false, |lab, role| {
        refused(lab, Plan::new(role).with(|param| param.markers(true)))
    });
    add("20 connections, a message right behind each start-up", &[], false, many);
    // In the other role the Terminate would be ours, in place of the first FPDU: that kernel does not survive it.
    let name = "no ready-to-receive message in common";
    cases.push(Case::new(GROUP, name, Role::SiwConnects, no_common_rtr).settings(P2P));
    cases
}

fn private_data(lab: &mut Lab, role: Role, revision: Revision) -> Result<String> {
    // siw itself sends a wrong length for 252 octets and more in front of which IRD and ORD stand.
    let (from_siw, from_us) = match revision {
        Revision::V1 => ([0, 1, 64, 255], [0, 1, 64, 255]),
        Revision::V2 => ([0, 1, 64, 251], [0, 1, 64, 252]),
    };
    for (theirs, ours) in from_siw.into_iter().zip(from_us) {
        let (theirs, ours) = (pattern::octets(theirs, 1), pattern::octets(ours, 2));
        let mut plan = Plan::new(role).with(|param| param.revision(revision).private_data(&ours));
        plan.data.clone_from(&theirs);
        let mut ends = Ends::new(lab, DeviceConfig::default(), MEMORY)?;
        let SetUp { ours: connection, siw, asked } = ends.set_up(lab, plan)?;
        let connection = connection?;
        let told = siw.ok_or_else(|| failed("siw was not asked"))?.established()?;
        let (of_siw, of_us) = match role {
            Role::SiwConnects => (&asked[..], &told),
            Role::WeConnect => (connection.private_data(), &asked),
        };
        ensure!(of_siw == theirs, "{} octets of siw came as {of_siw:?}", theirs.len());
        let whole = is_in_words(&ours, of_us);
        ensure!(whole, "{} octets of ours came as {of_us:?}", ours.len());
        connection.disconnect();
        ends.siw.ended()?;
        connection.wait_closed(LIMIT);
    }
    Ok(String::new())
}

/// Whether these are the octets that were sent, filled up as `rdma_cm` does: it hands out whole words.
fn is_in_words(sent: &[u8], came: &[u8]) -> bool {
    let padding = came.strip_prefix(sent);
    padding.is_some_and(|octets| octets.len() < 4 && octets.iter().all(|&octet| octet == 0))
}

fn rejected(lab: &mut Lab, role: Role, revision: Revision) -> Result<String> {
    // siw looks at a FIN before it looks at the Reply in front of it, if its machine is slow enough to have both.
    const ATTEMPTS: u32 = 5;
    for _ in 1..ATTEMPTS {
        if rejected_with_reason(lab, role, revision)? {
            return Ok(String::new());
        }
    }
    // QEMU's user-mode network always has the FIN in the segment of the Reply.
    let came = rejected_with_reason(lab, role, revision)?;
    ensure!(came || !lab.guest.has_tap(), "siw has overlooked our reason {ATTEMPTS} times");
    Ok(if came { String::new() } else { "siw looks at the FIN first".into() })
}

/// Whether the reason was looked at.
fn rejected_with_reason(lab: &mut Lab, role: Role, revision: Revision) -> Result<bool> {
    let reason = pattern::octets(37, 9);
    let mut plan = Plan::new(role).with(|param| param.revision(revision).fallback(false));
    plan.decision = Decision::Reject(reason.clone());
    let mut ends = Ends::new(lab, DeviceConfig::default(), MEMORY)?;
    let SetUp { ours, siw, .. } = ends.set_up(lab, plan)?;
    match role {
        Role::WeConnect => match ours {
            Err(ConnectError::Rejected { private_data, .. }) => {
                ensure!(private_data == reason, "siw's reason came as {private_data:?}");
                Ok(true)
            }
            other => Err(failed(format!("{other:?}"))),
        },
        Role::SiwConnects => match siw {
            Some(Settled::Failed(event, _, data)) => {
                ensure!(event == "RDMA_CM_EVENT_REJECTED", "siw: {event}");
                let lost = data.is_empty();
                ensure!(lost || is_in_words(&reason, &data), "our reason came as {data:?}");
                Ok(!lost)
            }
            other => Err(failed(format!("siw: {other:?}"))),
        },
    }
}

fn nothing_listens(lab: &mut Lab, role: Role) -> Result<String> {
    match role {
        Role::WeConnect => {
            let ours = Ours::new(DeviceConfig::default(), 64)?;
            let (_, door) = lab.guest.port();
            let plan = Plan::new(role);
            let result = iwarp_verbs::cm::connect(door, &ours.qp, plan.param)?.wait(LIMIT);
            // The user-mode network accepts, and finds out then.
            let fits = match &result {
                Err(ConnectError::Refused { .. }) => true,
                Err(ConnectError::Closed { .. }) => !lab.guest.has_tap(),
                _ => false,
            };
            ensure!(fits, "{result:?}");
        }
        Role::SiwConnects => {
            let mut siw = Siw::new(lab.guest.peer()?);
            let free =
                std::net::TcpListener::bind((lab.guest.host_side(), 0))?.local_addr()?.port();
            siw.ask(format!("resolve {HOST} {free}"))?;
            siw.say("connect 1 1 -")?;
            // rdma_connect itself fails where TCP comes to nothing.
            let settled = siw.settled();
            let refused = settled.as_ref().is_err_and(|error| error.0.contains("refused"));
            ensure!(refused, "siw: {settled:?}");
        }
    }
    Ok(String::new())
}

fn depths(lab: &mut Lab, role: Role) -> Result<String> {
    let mut notes = Vec::new();
    // Our IRD and ORD, siw's IRD and ORD.
    for (ird, ord, siw_ird, siw_ord) in
        [(16, 16, 16, 16), (1, 8, 4, 2), (8, 1, 2, 4), (128, 128, 128, 128)]
    {
        let mut plan = Plan::new(role).with(|param| param.ird(ird).ord(ord));
        plan.depths = (siw_ird, siw_ord);
        let mut pair = Pair::new(lab, plan, MEMORY)?;
        // siw as responder serves as many as were asked for, up to its limit of 128.
        let served = if role == Role::WeConnect { ord } else { siw_ird };
        let depths = (pair.connection.ord(), pair.connection.ird());
        let wanted = (u32::from(ord.min(served)), u32::from(ird));
        ensure!(depths == wanted, "our ORD and IRD are {depths:?} instead of {wanted:?}");
        notes.push(format!("{}/{}", depths.0, depths.1));
        for from in role.initiator_first() {
            // First of all a message, for a responder may not speak before.
            pair.transfer(Operation::SEND, from, 64, 7)?;
            reads_at_once(&mut pair, from)?;
        }
        pair.close()?;
    }
    Ok(format!("our ORD and IRD: {}", notes.join(", ")))
}

/// More Reads at once than any depth but the greatest.
fn reads_at_once(pair: &mut Pair, from: End) -> Result<()> {
    const READS: u64 = 20;
    const LEN: usize = 1000;
    let octets = pattern::octets(LEN * usize::try_from(READS)?, 11);
    match from {
        End::Ours => {
            pair.siw.fill(0, octets.len(), 11)?;
            for id in 0..READS {
                let range = usize::try_from(id)? * LEN..(usize::try_from(id)? + 1) * LEN;
                let there = pair.there.slice(range.start as u64..range.end as u64)?;
                pair.ours.qp.post_send(SendRequest::read(
                    id,
                    pair.ours.memory.slice(range)?,
                    there,
                ))?;
            }
            for id in 0..READS {
                pair.ours.expect_sent(id)?;
            }
            let mut found = vec![0; octets.len()];
            pair.ours.memory.read_at(0, &mut found)?;
            ensure!(found == octets, "our Reads brought something else");
        }
        End::Siw => {
            pair.ours.memory.write_at(0, &octets)?;
            pair.siw.blank(0, octets.len() + 1)?;
            let here = pair.ours.memory.remote();
            for id in 0..READS {
                let off = id * LEN as u64;
                pair.siw.ask(format!(
                    "post read {id} 0 {off} {LEN} {} {}",
                    here.addr + off,
                    here.rkey
                ))?;
            }
            for id in 0..READS {
                pair.siw.expect_sent(id)?;
            }
            pair.siw.check(0, octets.len(), 11)?;
        }
    }
    Ok(())
}

fn no_reads(lab: &mut Lab, role: Role) -> Result<String> {
    let mut plan = Plan::new(role).with(|param| param.ird(0).ord(0));
    plan.depths = (0, 0);
    let mut pair = Pair::new(lab, plan, MEMORY)?;
    ensure!((pair.connection.ird(), pair.connection.ord()) == (0, 0), "there are depths");
    for from in role.initiator_first() {
        pair.transfer(Operation::Write, from, 1000, 3)?;
    }
    pair.close()?;
    Ok(String::new())
}

/// The accepting side's program sends before the other one has said anything.
fn responder_first(lab: &mut Lab, role: Role, rtr: RtrTypes) -> Result<String> {
    let plan =
        Plan::new(role).with(|param| if role == Role::WeConnect { param.rtr(rtr) } else { param });
    let mut pair = Pair::new(lab, plan, MEMORY)?;
    match role {
        Role::WeConnect => pair.transfer(Operation::SEND, End::Siw, 100, 1)?,
        Role::SiwConnects if rtr.is_empty() => {
            let Pair { siw, ours, .. } = &mut pair;
            siw.blank(0, 101)?;
            siw.recv(1, 0, 100)?;
            ours.fill(100, 1)?;
            ours.qp.post_send(SendRequest::send(1, ours.memory.slice(..100)?))?;
            // MPA-029
            siw.expect_quiet()?;
            ours.qp.post_recv(iwarp_verbs::RecvRequest::new(2, ()))?;
            siw.ask("post send 2 0 0 0")?;
            siw.expect_sent(2)?;
            ours.expect_sent(1)?;
            ensure!(siw.received()?.octets == 100 && ours.received()?.is_success(), "no messages");
            siw.check(0, 100, 1)?;
        }
        Role::SiwConnects => pair.transfer(Operation::SEND, End::Ours, 100, 1)?,
    }
    for from in [End::Ours, End::Siw] {
        pair.transfer(Operation::Write, from, 5000, 2)?;
        pair.transfer(Operation::Read, from, 5000, 3)?;
    }
    pair.close()?;
    Ok(String::new())
}

fn no_common_rtr(lab: &mut Lab) -> Result<String> {
    // With CRC siw's Terminate would be a damaged FPDU: during start-up it makes no CRC, whatever was agreed.
    let plan = Plan::new(Role::SiwConnects).with(|param| param.rtr(RtrTypes::SEND).crc(false));
    let mut ends = Ends::new(lab, DeviceConfig::default(), MEMORY)?;
    let SetUp { ours, siw, .. } = ends.set_up(lab, plan)?;
    ensure!(matches!(siw, Some(Settled::Failed(..))), "siw: {siw:?}");
    if let Ok(connection) = &ours {
        connection.wait_closed(LIMIT);
    }
    let ending = ends.ours.qp.ending();
    let ending = ending.ok_or_else(|| failed(format!("no Terminate: {ours:?}, {siw:?}")))?;
    // Layer and type are swapped, and without headers nothing tells that they are.
    let swapped = TerminateCode::from_parts(0, 2, TerminateCode::SETUP_RTR.code());
    let by_siw = ending.by == Initiator::Remote && ending.terminate.code == swapped;
    ensure!(by_siw, "{swapped} was expected: {ending:?}");
    Ok(format!("Terminate {}, as siw writes it", TerminateCode::SETUP_RTR))
}

fn crc(lab: &mut Lab, role: Role, asked: bool, used: bool) -> Result<String> {
    let mut pair = Pair::new(lab, Plan::new(role).with(|param| param.crc(asked)), MEMORY)?;
    ensure!(pair.connection.crc() == used, "CRC is {}", pair.connection.crc());
    for from in role.initiator_first() {
        for operation in [Operation::SEND, Operation::Write, Operation::Read] {
            pair.transfer(operation, from, 65_535, 5)?;
        }
    }
    pair.close()?;
    Ok(if used { "CRC on" } else { "CRC off: as responder siw follows the Request" }.into())
}

/// siw does not want what we ask for, and says so in a Reply or closes.
fn refused(lab: &mut Lab, mut plan: Plan) -> Result<String> {
    let role = plan.role;
    plan.decision = Decision::Unasked;
    plan.param = plan.param.fallback(false);
    let mut ends = Ends::new(lab, DeviceConfig::default(), MEMORY)?;
    let SetUp { ours, siw, .. } = ends.set_up(lab, plan)?;
    match role {
        Role::WeConnect => {
            ensure!(matches!(ours, Err(ConnectError::Rejected { .. })), "{ours:?}");
            Ok(format!("{MARKERS_OR_CRC_REFUSED} by its Reply"))
        }
        Role::SiwConnects => {
            ensure!(matches!(siw, Some(Settled::Failed(..))), "siw: {siw:?}");
            let reason = match &ours {
                Ok(connection) => connection.wait_closed(LIMIT),
                Err(ConnectError::Ended { reason, .. }) => Some(reason.clone()),
                Err(other) => return Err(failed(format!("{other:?}"))),
            };
            let ended = matches!(reason, Some(CloseReason::Orderly | CloseReason::Lost(_)));
            ensure!(ended, "our end: {reason:?}");
            Ok(format!("{MARKERS_OR_CRC_REFUSED} by closing"))
        }
    }
}

fn many(lab: &mut Lab, role: Role) -> Result<String> {
    for _ in 0..20 {
        let mut pair = Pair::new(lab, Plan::new(role), MEMORY)?;
        let [first, _] = role.initiator_first();
        pair.transfer(Operation::SEND, first, 64, 1)?;
        pair.close()?;
    }
    Ok(String::new())
}
