//! Ends of connections: in order, by either end or both, and by the death of either program.

use std::{
    env,
    net::SocketAddr,
    process::{Command, ExitCode},
    time::{Duration, Instant},
};

use iwarp_verbs::{
    Access, DeviceConfig, RemoteMemory, SendRequest, WcStatus,
    cm::{self, ConnParam, ListenConfig, Listener},
};

use super::Case;
use crate::{
    child::{Child, listen, tell},
    interop::{
        Lab, Result, ensure, failed,
        guest::HOST,
        ours::{LIMIT, Ours},
        pair::{End, FIRST_FPDU_DELAY, Pair, Plan, Role},
        siw::{FLUSHED, Settled, Siw},
    },
};

const GROUP: &str = "Ends";
const MEMORY: usize = (1 << 20) + 4096;
/// Receives that are posted at both ends and have to come back.
const RECEIVES: u64 = 3;
/// Requests of 1 MiB that are under way when a program is killed.
const UNDER_WAY: u64 = 64;

pub(super) fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    let mut add = |name, smoke, run: fn(&mut Lab, Role) -> Result<String>| {
        for role in Role::BOTH {
            let case = Case::new(GROUP, name, role, move |lab| run(lab, role));
            cases.push(if smoke { case.smoke() } else { case });
        }
    };
    add("we disconnect", true, |lab, role| in_order(lab, role, &[End::Ours]));
    add("siw disconnects", true, |lab, role| in_order(lab, role, &[End::Siw]));
    add("both disconnect at once", false, |lab, role| in_order(lab, role, &[End::Siw, End::Ours]));
    add("siw's program is killed", true, |lab, role| siw_dies(lab, role, Under::Nothing));
    add("siw's program is killed in the middle of its Writes", false, |lab, role| {
        siw_dies(lab, role, Under::Writes)
    });
    add("siw's program is killed while we read from it", false, |lab, role| {
        siw_dies(lab, role, Under::OurReads)
    });
    add("our program is killed", true, |lab, role| we_die(lab, role, false));
    add("our program is killed in the middle of its Writes", false, |lab, role| {
        we_die(lab, role, true)
    });
    cases
}

/// A connection over which each end has sent a message, with receives posted at both ends.
fn pair_with_receives(lab: &mut Lab, role: Role) -> Result<Pair> {
    let mut pair = Pair::new(lab, Plan::new(role), MEMORY)?;
    for from in role.initiator_first() {
        pair.transfer(super::transfer::Operation::SEND, from, 64, 77)?;
    }
    for id in 0..RECEIVES {
        pair.siw.recv(id, 0, 64)?;
        pair.ours.recv(id, 64)?;
    }
    Ok(pair)
}

fn siw_flushed(siw: &mut Siw) -> Result<()> {
    for id in 0..RECEIVES {
        let completion = siw.received()?;
        let flushed = completion.id == id && completion.status == FLUSHED;
        ensure!(flushed, "receive {id} of siw: {completion:?}");
    }
    siw.expect_quiet()
}

fn in_order(lab: &mut Lab, role: Role, by: &[End]) -> Result<String> {
    let mut pair = pair_with_receives(lab, role)?;
    for end in by {
        match end {
            End::Ours => pair.connection.disconnect(),
            End::Siw => pair.siw.say("disconnect")?,
        }
    }
    if by.contains(&End::Siw) {
        let answer = pair.siw.answer()?;
        ensure!(answer.word(0) == "disconnected", "siw: {:?}", answer.words);
    } else {
        pair.siw.ended()?;
    }
    let reason = pair.connection.wait_closed(LIMIT);
    ensure!(reason.as_ref().is_some_and(cm::CloseReason::is_orderly), "our end: {reason:?}");
    ensure!(pair.ours.qp.ending().is_none(), "a Terminate: {:?}", pair.ours.qp.ending());
    siw_flushed(&mut pair.siw)?;
    pair.ours.expect_flushed(RECEIVES)?;
    Ok(String::new())
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Under {
    Nothing,
    /// siw writes into our memory.
    Writes,
    OurReads,
}

fn siw_dies(lab: &mut Lab, role: Role, under: Under) -> Result<String> {
    let mut pair = pair_with_receives(lab, role)?;
    let here = pair.ours.memory.remote();
    let len = 1 << 20;
    match under {
        Under::Nothing => {}
        Under::Writes => {
            pair.siw.fill(0, len, 5)?;
            for id in 0..UNDER_WAY {
                pair.siw.say(format!("post write {id} 0 0 {len} {} {}", here.addr, here.rkey))?;
            }
            // The first has begun to come in, and there are many more.
            let deadline = Instant::now() + LIMIT;
            while pair.ours.memory.load_u64(0)?.to_le_bytes()
                != *super::super::pattern::octets(8, 5)
            {
                ensure!(Instant::now() < deadline, "no Write has come");
                std::thread::sleep(Duration::from_millis(1));
            }
        }
        Under::OurReads => {
            let slice = pair.ours.memory.slice(..len)?;
            for id in 0..UNDER_WAY {
                let read = SendRequest::read(id, slice.clone(), pair.there.slice(..len as u64)?);
                pair.ours.qp.post_send(read)?;
            }
            pair.ours.expect_sent(0)?;
        }
    }
    lab.guest.kill(pair.siw.process)?;
    let reason = pair.connection.wait_closed(LIMIT).ok_or_else(|| failed("our end lives"))?;
    // The kernel closes the stream for its program. Whether that is in order is for what was under way to say; between
    // two Writes it would be.
    ensure!(reason.is_orderly() || under != Under::Nothing, "nothing was under way: {reason}");
    if under == Under::OurReads {
        let mut failures = 0;
        for id in 1..UNDER_WAY {
            let completion = pair.ours.sent()?;
            ensure!(completion.wr_id == id, "out of order: {completion:?}");
            failures += u64::from(completion.status == WcStatus::WrFlushErr);
            ensure!(
                completion.is_success() || completion.status == WcStatus::WrFlushErr,
                "{completion:?}"
            );
        }
        ensure!(failures > 0, "all Reads were answered before the kill");
        ensure!(!reason.is_orderly(), "Reads were under way: {reason}");
    }
    pair.ours.expect_flushed(RECEIVES)?;
    Ok(reason.to_string())
}

/// Environment variable that makes of this program the one that is killed; its value tells what it does.
pub(in crate::interop) const VICTIM: &str = "IWARP_INTEROP_VICTIM";

fn we_die(lab: &mut Lab, role: Role, writing: bool) -> Result<String> {
    let mut siw = Siw::new(lab.guest.peer()?);
    let there = siw.region(0, MEMORY, "lrw", 0)?;
    let program = env::current_exe()?;
    let start = |what: String| Child::start(Command::new(program).env(VICTIM, what));
    let mut victim = match role {
        Role::WeConnect => {
            let (port, door) = lab.guest.port();
            siw.ask(format!("listen {port}"))?;
            let victim = start(format!("connect {door}"));
            siw.request()?;
            siw.say("accept 16 16 -")?;
            victim
        }
        Role::SiwConnects => {
            let mut victim = start(format!("listen {}", lab.guest.host_side()));
            let at: SocketAddr = victim.hear().parse()?;
            siw.ask(format!("resolve {HOST} {}", at.port()))?;
            siw.say("connect 16 16 -")?;
            victim
        }
    };
    siw.settled().and_then(Settled::established)?;
    for id in 0..RECEIVES {
        siw.recv(id, 0, 64)?;
    }
    // The accepting end may send only when the other one has.
    siw.ask("post send 9 0 0 0")?;
    siw.expect_sent(9)?;
    if writing {
        victim.say(&hex::encode(there.to_bytes()));
        siw.fill(0, 8, 1)?;
        ensure!(victim.hear() == "writing", "no Writes");
    } else {
        victim.say("-");
        ensure!(victim.hear() == "idle", "no connection");
    }
    victim.kill();
    siw.ended()?;
    siw_flushed(&mut siw)?;
    Ok(String::new())
}

/// The program that is killed: one end of a connection, which writes or does nothing.
pub(in crate::interop) fn victim(role: &str) -> ExitCode {
    match live(role) {
        Ok(never) => match never {},
        Err(reason) => {
            eprintln!("{}", reason.0);
            ExitCode::FAILURE
        }
    }
}

fn live(role: &str) -> Result<std::convert::Infallible> {
    let (role, address) = role.split_once(' ').ok_or_else(|| failed("no address"))?;
    let ours = Ours::new(DeviceConfig::default(), 1 << 20)?;
    ours.recv(1, 0)?;
    let _connection = if role == "listen" {
        let listener = Listener::bind(&ours.device, (address, 0), ListenConfig::default())?;
        tell(listener.local_addr());
        listener.accept(LIMIT)?.accept(&ours.qp, ConnParam::default())?.wait(LIMIT)?
    } else {
        let param = ConnParam::default().first_fpdu_delay(FIRST_FPDU_DELAY).timeout(LIMIT);
        cm::connect(address.parse::<SocketAddr>()?, &ours.qp, param)?.wait(LIMIT)?
    };
    ensure!(ours.received()?.is_success(), "siw's message has not come");
    let key = listen();
    if key == "-" {
        tell("idle");
        loop {
            std::thread::park();
        }
    }
    let key: [u8; 20] = hex::decode(key)?.try_into().map_err(|_| failed("no key"))?;
    let there = RemoteMemory::from_bytes(key);
    let source = ours.pd.alloc(1 << 20, Access::empty())?;
    for id in 0..UNDER_WAY {
        ours.qp.post_send(SendRequest::write(id, source.slice(..)?, there.slice(..1 << 20)?))?;
    }
    tell("writing");
    for id in 0.. {
        ours.expect_sent(id)?;
        let next = id + UNDER_WAY;
        ours.qp.post_send(SendRequest::write(next, source.slice(..)?, there.slice(..1 << 20)?))?;
    }
    Err(failed("Writes without end have ended"))
}
