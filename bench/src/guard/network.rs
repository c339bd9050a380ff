//! A network namespace of its own, with a congestion control that does not pace.

use std::{
    env, fs, io,
    os::unix::process::CommandExt as _,
    process::{Command, Stdio},
};

const CONGESTION: &str = "/proc/sys/net/ipv4/tcp_congestion_control";
/// Set in the process that runs inside.
const INSIDE: &str = "IWARP_BENCH_NAMESPACE";

/// What became of the namespace.
pub(crate) struct Network {
    pub(crate) own: bool,
    pub(crate) notes: Vec<String>,
}

/// Starts this program anew in a namespace of its own if that is possible, and does not return then. `congestion` is
/// set there; `default` leaves what is.
pub(crate) fn enter(congestion: &str) -> Network {
    if env::var_os(INSIDE).is_some() {
        return furnish(congestion);
    }
    let mut notes = Vec::new();
    // The first is for root, the second for everybody where the system allows it.
    for flags in ["-n", "-Urn"] {
        let possible = Command::new("unshare")
            .args([flags, "--", "ip", "link", "set", "lo", "up"])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .status()
            .is_ok_and(|status| status.success());
        if !possible {
            continue;
        }
        let Ok(program) = env::current_exe() else { continue };
        let failed = Command::new("unshare")
            .args([flags, "--"])
            .arg(program)
            .args(env::args_os().skip(1))
            .env(INSIDE, "1")
            .exec();
        notes.push(format!("could not start in a network namespace: {failed}"));
    }
    if notes.is_empty() {
        notes.push("no network namespace of its own (unshare -n and -Urn are refused)".into());
    }
    if congestion != "default" && control() != congestion {
        notes.push(format!("congestion control is {}, not {congestion}", control()));
    }
    Network { own: false, notes }
}

fn furnish(congestion: &str) -> Network {
    let mut notes = Vec::new();
    let up = Command::new("ip").args(["link", "set", "lo", "up"]).stdin(Stdio::null()).status();
    if !up.as_ref().is_ok_and(std::process::ExitStatus::success) {
        notes.push(format!("could not bring up the loopback interface: {up:?}"));
    }
    if congestion != "default"
        && let Err(error) = set_control(congestion)
    {
        notes.push(format!("congestion control is {}, not {congestion}: {error}", control()));
    }
    Network { own: true, notes }
}

fn set_control(name: &str) -> io::Result<()> {
    if control() == name {
        return Ok(());
    }
    fs::write(CONGESTION, name)
}

/// The congestion control of new connections.
pub(crate) fn control() -> String {
    fs::read_to_string(CONGESTION).map_or_else(|_| "unknown".into(), |text| text.trim().into())
}

/// MTU of the loopback interface.
pub(crate) fn loopback_mtu() -> Option<u32> {
    fs::read_to_string("/sys/class/net/lo/mtu").ok()?.trim().parse().ok()
}
