//! Two network namespaces on this machine, made by the test that uses them and gone with it.
//!
//! No root is needed where user namespaces are allowed. Where no namespace can be made, [`Hosts::make`] says why, and
//! the test prints that and passes as skipped.

use std::{
    ffi::OsStr,
    fmt, fs,
    path::PathBuf,
    process::{self, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

/// Why a test cannot run on this machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Skip(pub String);

impl fmt::Display for Skip {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// One of the two hosts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Host {
    /// The first, 10.77.0.1 once there is a link.
    A,
    /// The second, 10.77.0.2.
    B,
}

/// Two empty network namespaces. Dropping them ends both, with every device in them.
#[derive(Debug)]
pub struct Hosts {
    a: Holder,
    b: Holder,
}

impl Hosts {
    /// Makes both namespaces.
    pub fn make() -> Result<Self, Skip> {
        for tool in ["unshare", "nsenter", "ip"] {
            let mut question = Command::new(tool);
            question.arg("--version").stdout(Stdio::null()).stderr(Stdio::null());
            question.status().map_err(|_| Skip(format!("{tool} is not installed")))?;
        }
        // A user namespace of our own brings the right to make network namespaces; root may have it anyway.
        let a = Holder::start(Command::new("unshare").args(["-Urn"]), true)
            .or_else(|_| Holder::start(Command::new("unshare").arg("-n"), false))?;
        let b = Holder::start(a.enter("unshare").arg("-n"), a.user)?;
        Ok(Self { a, b })
    }

    /// A command that will run on `host`.
    pub fn command(&self, host: Host, program: impl AsRef<OsStr>) -> Command {
        self.holder(host).enter(program)
    }

    /// Runs a short command on `host` to its end.
    ///
    /// # Panics
    /// If it fails, with what it said.
    pub fn run(&self, host: Host, command: &str) {
        let mut words = command.split_whitespace();
        let program = words.next().expect("a command");
        let output = self
            .command(host, program)
            .args(words)
            .output()
            .unwrap_or_else(|error| panic!("{command}: {error}"));
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{host:?}: {command}: {said}");
    }

    /// Whether a short command on `host` succeeds.
    #[must_use]
    pub fn succeeds(&self, host: Host, command: &str) -> bool {
        let mut words = command.split_whitespace();
        words.next().is_some_and(|program| {
            let mut command = self.command(host, program);
            command.args(words).stdout(Stdio::null()).stderr(Stdio::null());
            command.status().is_ok_and(|status| status.success())
        })
    }

    /// The process that holds the namespace of `host` open.
    #[must_use]
    pub fn process(&self, host: Host) -> u32 {
        self.holder(host).process.id()
    }

    fn holder(&self, host: Host) -> &Holder {
        match host {
            Host::A => &self.a,
            Host::B => &self.b,
        }
    }
}

/// A sleeping process in whose namespace other commands run.
#[derive(Debug)]
struct Holder {
    process: process::Child,
    user: bool,
}

impl Holder {
    fn start(unshare: &mut Command, user: bool) -> Result<Self, Skip> {
        let process = unshare
            .args(["sleep", "infinity"])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .map_err(|error| Skip(format!("unshare cannot be run: {error}")))?;
        let mut holder = Self { process, user };
        holder.wait_for_sleep()?;
        Ok(holder)
    }

    /// The namespaces are there once `unshare` (behind `nsenter`) has become `sleep`.
    fn wait_for_sleep(&mut self) -> Result<(), Skip> {
        let name = PathBuf::from(format!("/proc/{}/comm", self.process.id()));
        let deadline = Instant::now() + Duration::from_secs(10);
        while Instant::now() < deadline {
            if fs::read_to_string(&name).is_ok_and(|name| name.trim() == "sleep") {
                return Ok(());
            }
            if !matches!(self.process.try_wait(), Ok(None)) {
                break;
            }
            thread::sleep(Duration::from_millis(2));
        }
        Err(Skip("this machine allows no network namespaces (unshare -Urn is refused)".into()))
    }

    fn enter(&self, program: impl AsRef<OsStr>) -> Command {
        let mut command = Command::new("nsenter");
        command.args(["--target", &self.process.id().to_string(), "--net"]);
        if self.user {
            command.args(["--user", "--preserve-credentials"]);
        }
        command.arg("--").arg(program);
        command
    }
}

impl Drop for Holder {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
