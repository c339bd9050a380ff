//! The cable between two namespaces: a good one, a bad one, one that is pulled out.

use std::{
    process::{Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use crate::{
    child::{self, Child},
    netns::{Host, Hosts, Skip},
};

/// Address of host A on the link.
pub const ADDRESS_A: &str = "10.77.0.1";
/// Address of host B on the link.
pub const ADDRESS_B: &str = "10.77.0.2";

const DEVICE_A: &str = "iwarp-a";
const DEVICE_B: &str = "iwarp-b";

/// A link between the two hosts.
#[derive(Debug)]
pub struct Link<'h> {
    hosts: &'h Hosts,
    /// The example `link`, where the kernel has no netem.
    forwarder: Option<Child>,
}

impl<'h> Link<'h> {
    /// A veth pair with this MTU.
    #[must_use]
    pub fn good(hosts: &'h Hosts, mtu: u32) -> Self {
        join_by_veth(hosts);
        Self { hosts, forwarder: None }.configured(mtu)
    }

    /// A link that does to packets what `netem` says, in the words of tc.
    ///
    /// By the kernel's netem where there is one, else by the example `link`.
    pub fn bad(hosts: &'h Hosts, mtu: u32, netem: &str) -> Result<Self, Skip> {
        join_by_veth(hosts);
        let impaired = |host, device| {
            hosts.succeeds(host, &format!("tc qdisc add dev {device} root netem {netem}"))
        };
        if impaired(Host::A, DEVICE_A) && impaired(Host::B, DEVICE_B) {
            return Ok(Self { hosts, forwarder: None }.configured(mtu));
        }
        hosts.run(Host::A, &format!("ip link delete {DEVICE_A}"));
        let forwarder = Some(join_by_example(hosts, netem)?);
        Ok(Self { hosts, forwarder }.configured(mtu))
    }

    /// Pulls the cable out of `host`: nothing arrives any more at either end, and nobody is told.
    pub fn unplug(&self, host: Host) {
        self.hosts.run(host, &format!("ip link set {} down", device(host)));
    }

    /// Puts it back.
    pub fn plug(&self, host: Host) {
        self.hosts.run(host, &format!("ip link set {} up", device(host)));
    }

    /// What the example `link` did, as JSON, if it is it that joins the hosts. Ends the link.
    #[must_use]
    pub fn finish(mut self) -> Option<String> {
        let mut forwarder = self.forwarder.take()?;
        forwarder.terminate();
        Some(forwarder.wait().stdout)
    }

    fn configured(self, mtu: u32) -> Self {
        for (host, address) in [(Host::A, ADDRESS_A), (Host::B, ADDRESS_B)] {
            let device = device(host);
            self.hosts.run(host, "ip link set lo up");
            self.hosts.run(host, &format!("ip link set {device} mtu {mtu} up"));
            self.hosts.run(host, &format!("ip address add {address}/30 dev {device}"));
        }
        self
    }
}

const fn device(host: Host) -> &'static str {
    match host {
        Host::A => DEVICE_A,
        Host::B => DEVICE_B,
    }
}

fn join_by_veth(hosts: &Hosts) {
    hosts.run(Host::A, &format!("ip link add {DEVICE_A} type veth peer name {DEVICE_B}"));
    move_to_b(hosts);
}

fn join_by_example(hosts: &Hosts, netem: &str) -> Result<Child, Skip> {
    let mut command = hosts.command(Host::A, child::example("link"));
    command.args(["--a", DEVICE_A, "--b", DEVICE_B, "--netem", netem, "--json"]);
    let mut forwarder = Child::start(&mut command);
    let deadline = Instant::now() + Duration::from_secs(10);
    while !hosts.succeeds(Host::A, &format!("ip link show {DEVICE_B}")) {
        if !forwarder.is_running() || Instant::now() > deadline {
            let said = forwarder.wait().stderr;
            return Err(Skip(format!("no netem in the kernel, and no own link: {}", said.trim())));
        }
        thread::sleep(Duration::from_millis(5));
    }
    move_to_b(hosts);
    Ok(forwarder)
}

fn move_to_b(hosts: &Hosts) {
    let holder = hosts.process(Host::B);
    hosts.run(Host::A, &format!("ip link set {DEVICE_B} netns {holder}"));
}

/// Switches segmentation offload off on both ends, so that segments are what a wire would carry.
pub fn switch_offload_off(hosts: &Hosts) -> Result<(), Skip> {
    let installed = Command::new("ethtool").arg("--version").stdout(Stdio::null()).status();
    installed.map_err(|_| Skip("ethtool is not installed".into()))?;
    for host in [Host::A, Host::B] {
        hosts.run(host, &format!("ethtool --offload {} tso off gso off gro off", device(host)));
    }
    Ok(())
}
