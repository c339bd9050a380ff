//! Programs that know nothing of each other: rdma-core's over siw, and the examples of the same name over this stack.

use std::{env, net::SocketAddr, process::Command};

use super::Case;
use crate::{
    child::Child,
    interop::{Failure, Lab, Result, ensure, failed, guest::HOST, pair::Role},
};

const PINGS: u32 = 5;

/// Both programs of an application, as rdma-core has them and as the examples have them.
struct Programs {
    /// Program and words that say which end it is.
    client: &'static str,
    server: &'static str,
    /// The option before an address.
    address: &'static str,
    /// What is said to both.
    usual: String,
}

pub(super) fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for octets in [64, 4096, 65_535] {
        for role in Role::BOTH {
            let group = "rping of rdma-core against the example `rping`";
            let name = format!("{PINGS} pings of {octets} octets, compared");
            let case = Case::new(group, name, role, move |lab| pings(lab, role, octets));
            cases.push(if octets == 4096 { case.smoke() } else { case });
        }
    }
    for role in Role::BOTH {
        let group = "rdma_client and rdma_server of rdma-core against the examples";
        cases.push(Case::new(group, "a message, and its answer", role, move |lab| {
            message(lab, role)
        }));
    }
    cases
}

fn pings(lab: &mut Lab, role: Role, octets: u32) -> Result<String> {
    let usual = format!("-C {PINGS} -S {octets} -v -V");
    let programs = Programs { client: "rping -c", server: "rping -s", address: "-a", usual };
    let (server_said, _) = programs.run(lab, role)?;
    let pings = server_said.matches("server ping data").count();
    ensure!(pings == usize::try_from(PINGS)?, "the server has seen {pings} pings: {server_said}");
    Ok(String::new())
}

fn message(lab: &mut Lab, role: Role) -> Result<String> {
    let (client, server) = ("rdma_client", "rdma_server");
    let programs = Programs { client, server, address: "-s", usual: String::new() };
    let (server_said, client_said) = programs.run(lab, role)?;
    for (name, said) in [(server, &server_said), (client, &client_said)] {
        ensure!(said.trim_end().ends_with(&format!("{name}: end 0")), "{said}");
    }
    Ok(String::new())
}

impl Programs {
    /// Runs the one end in the guest and the other here; what the server and the client have said.
    fn run(&self, lab: &mut Lab, role: Role) -> Result<(String, String)> {
        let Self { client, server, address, usual } = self;
        let (theirs, mut ours) = match role {
            Role::WeConnect => {
                let (port, door) = lab.guest.port();
                let server = lab.guest.start(&format!("{server} -p {port} {usual}"))?;
                lab.guest.listens(port)?;
                let (host, port) = (door.ip(), door.port());
                (server, example(&format!("{client} {address} {host} -p {port} {usual}"))?)
            }
            Role::SiwConnects => {
                let host = lab.guest.host_side();
                let mut server = example(&format!("{server} {address} {host} -p 0 {usual}"))?;
                let at = loop {
                    if let Some(at) = server.line().strip_prefix("listening on ") {
                        break at.parse::<SocketAddr>()?;
                    }
                };
                let client = format!("{client} {address} {HOST} -p {} {usual}", at.port());
                (lab.guest.start(&client)?, server)
            }
        };
        let number = u32::try_from(theirs)?;
        let theirs = lab.guest.wait(theirs);
        if theirs.is_err() {
            // Neither may hold its port while other cases run.
            ours.kill();
            let _ = lab.guest.kill(number);
        }
        let ended = ours.wait();
        let told = format!("ours ended with {}: {} {}", ended.status, ended.stdout, ended.stderr);
        let (status, said) =
            theirs.map_err(|Failure(reason)| failed(format!("siw: {reason}; {told}")))?;
        ensure!(ended.status.success(), "{told}; siw's with {status}: {said:?}");
        // rping's server ends with a status of its own when its client has left.
        let client_is_theirs = role == Role::SiwConnects;
        ensure!(status == 0 || !client_is_theirs, "siw's ended with {status}: {said:?}");
        let said = said.join("\n");
        Ok(if client_is_theirs { (ended.stdout, said) } else { (said, ended.stdout) })
    }
}

/// Starts an example of this workspace, which `tests/interop/run` has built.
fn example(words: &str) -> Result<Child> {
    let mut words = words.split_whitespace();
    let name = words.next().ok_or_else(|| failed("no program"))?;
    let mut command = Command::new(env::current_exe()?.with_file_name("examples").join(name));
    // siw looks for data only some moments after its Reply.
    command.args(words).env("IWARP_FIRST_FPDU_DELAY", "0.2");
    Ok(Child::start(&mut command))
}
