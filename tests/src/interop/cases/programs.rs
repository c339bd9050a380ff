//! Programs that know nothing of each other: rdma-core's rping over siw, and the example `rping` over this stack.

use std::{env, net::SocketAddr, process::Command};

use super::Case;
use crate::{
    child::Child,
    interop::{Lab, Result, ensure, failed, guest::HOST, pair::Role},
};

const GROUP: &str = "rping of rdma-core against the example `rping`";
const PINGS: u32 = 5;

pub(super) fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for octets in [64, 4096, 65_535] {
        for role in Role::BOTH {
            let name = format!("{PINGS} pings of {octets} octets, compared");
            let case = Case::new(GROUP, name, role, move |lab| pings(lab, role, octets));
            cases.push(if octets == 4096 { case.smoke() } else { case });
        }
    }
    cases
}

fn pings(lab: &mut Lab, role: Role, octets: u32) -> Result<String> {
    let program = env::current_exe()?.with_file_name("examples").join("rping");
    let usual = format!("-C {PINGS} -S {octets} -v -V");
    let ours = |words: String| {
        let mut command = Command::new(&program);
        // siw looks for data only some moments after its Reply.
        command.args(words.split_whitespace()).env("IWARP_FIRST_FPDU_DELAY", "0.2");
        Child::start(&mut command)
    };
    let (theirs, mut ours) = match role {
        Role::WeConnect => {
            let (port, door) = lab.guest.port();
            let server = lab.guest.start(&format!("rping -s -p {port} {usual}"))?;
            lab.guest.listens(port)?;
            (server, ours(format!("-c -a {} -p {} {usual}", door.ip(), door.port())))
        }
        Role::SiwConnects => {
            let mut server = ours(format!("-s -a {} -p 0 {usual}", lab.guest.host_side()));
            let line = server.line();
            let at = line.strip_prefix("listening on ").ok_or_else(|| failed(&line))?;
            let port = at.parse::<SocketAddr>()?.port();
            (lab.guest.start(&format!("rping -c -a {HOST} -p {port} {usual}"))?, server)
        }
    };
    let (status, said) = lab.guest.wait(theirs)?;
    let ended = ours.wait();
    // rping's server ends with a status of its own when its client has left.
    let client_is_theirs = role == Role::SiwConnects;
    ensure!(status == 0 || !client_is_theirs, "rping ended with {status}: {said:?}");
    ensure!(
        ended.status.success(),
        "ours ended with {}: {} {}",
        ended.status,
        ended.stdout,
        ended.stderr
    );
    let server_said = if client_is_theirs { ended.stdout.clone() } else { said.join("\n") };
    let pings = server_said.matches("server ping data").count();
    ensure!(pings == usize::try_from(PINGS)?, "the server has seen {pings} pings: {server_said}");
    Ok(String::new())
}
