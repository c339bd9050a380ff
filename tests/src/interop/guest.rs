//! The guest: a virtual machine with the kernel's siw, and siwpeer in it.

use std::{
    fs::{self, File},
    io::ErrorKind,
    net::{SocketAddr, TcpListener},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use super::{
    Failure, Result,
    control::{Answer, Line},
    failed,
};

/// The guest's address, on either kind of network.
pub(super) const GUEST: &str = "10.0.2.15";
/// The host's, as the guest sees it.
pub(super) const HOST: &str = "10.0.2.2";

/// An emulated machine beside other work boots in a minute or two.
const BOOT_LIMIT: Duration = Duration::from_secs(400);
/// siwpeer listens on these in turn, so that the end of one connection is not in the way of the next.
const PORTS: std::ops::Range<u16> = 7200..7232;
/// siw's settings that cases change, and their defaults.
const DEFAULTS: [(&str, &str); 5] = [
    ("mpa_version", "2"),
    ("mpa_crc_required", "0"),
    ("mpa_crc_strict", "0"),
    ("peer_to_peer", "0"),
    ("rtr_type", "192"),
];

/// What of the kernel's messages means that something went wrong there.
const ALARMS: [&str; 4] = ["BUG:", "Oops", "WARNING:", "siw: crc error"];

/// The network device may neither put segments together nor take them apart.
const NO_SEGMENTATION: &str = ",gso=off,host_tso4=off,host_tso6=off,host_ecn=off,host_ufo=off,\
    guest_tso4=off,guest_tso6=off,guest_ecn=off,guest_ufo=off";

/// How the guest is run.
#[derive(Clone, Debug)]
pub(super) struct Config {
    /// Where `tests/interop/build` has put it.
    pub(super) folder: PathBuf,
    /// `kvm` or `tcg`.
    pub(super) accel: String,
    /// The tap device, or else the user-mode network.
    pub(super) tap: Option<String>,
    pub(super) pcap: Option<PathBuf>,
    pub(super) console: Option<PathBuf>,
}

impl Config {
    /// Versions of what is in the guest.
    pub(super) fn versions(&self) -> [String; 2] {
        ["kernel", "rdma-core"].map(|name| {
            fs::read_to_string(self.folder.join(name)).unwrap_or_default().trim().to_owned()
        })
    }
}

/// A guest that has booted. Dropping it ends it.
#[derive(Debug)]
pub(super) struct Guest {
    machine: Child,
    listener: TcpListener,
    agent: Line,
    settings: [String; DEFAULTS.len()],
    /// Where the host reaches each port of [`PORTS`].
    doors: Vec<SocketAddr>,
    next_port: usize,
    has_tap: bool,
    /// The first of the kernel's messages that was one of [`ALARMS`], until it is taken.
    alarm: Option<String>,
}

impl Guest {
    pub(super) fn boot(config: &Config) -> Result<Self> {
        let here = if config.tap.is_some() { HOST } else { "127.0.0.1" };
        let listener = TcpListener::bind((here, 0))?;
        let control = listener.local_addr()?.port();
        let doors = doors(config.tap.is_some())?;
        let mut command = Command::new("qemu-system-x86_64");
        command.args(machine(config, control, &doors)).stdin(Stdio::null());
        match &config.console {
            Some(path) => {
                let file = File::options().create(true).append(true).open(path)?;
                command.stderr(file.try_clone()?).stdout(file)
            }
            None => command.stdout(Stdio::null()).stderr(Stdio::null()),
        };
        let mut machine = command.spawn()?;
        let agent = match accept(&listener, &mut machine) {
            Ok(agent) => agent,
            Err(error) => {
                let _ = machine.kill();
                let _ = machine.wait();
                return Err(error);
            }
        };
        let settings = DEFAULTS.map(|(_, value)| value.to_owned());
        let has_tap = config.tap.is_some();
        let mut guest =
            Self { machine, listener, agent, settings, doors, next_port: 0, has_tap, alarm: None };
        guest.agent.answer()?;
        if guest.has_tap {
            // Segments are to reach siw as they come.
            guest.agent.ask("gro 0")?;
        }
        Ok(guest)
    }

    /// Whether TCP goes through to the guest, segment by segment.
    pub(super) const fn has_tap(&self) -> bool {
        self.has_tap
    }

    /// Whether another case can be tried in it: the machine runs, and its agent has answered whatever it was asked.
    pub(super) fn is_usable(&mut self) -> bool {
        self.is_running() && !self.agent.is_broken()
    }

    fn is_running(&mut self) -> bool {
        matches!(self.machine.try_wait(), Ok(None))
    }

    /// siw's settings for the connections to come: these, and the defaults of all others.
    pub(super) fn set(&mut self, settings: &[(&str, &str)]) -> Result<()> {
        for (name, _) in settings {
            assert!(DEFAULTS.iter().any(|(known, _)| known == name), "no setting {name}");
        }
        for ((name, default), now) in DEFAULTS.iter().zip(&mut self.settings) {
            let chosen = settings.iter().find(|(changed, _)| changed == name);
            let value = chosen.map_or(*default, |(_, value)| *value);
            if now != value {
                self.agent.ask(format!("set {name} {value}"))?;
                value.clone_into(now);
            }
        }
        Ok(())
    }

    /// A new process with one end of a connection; its number and its line.
    pub(super) fn peer(&mut self) -> Result<(u32, Line)> {
        self.agent.ask("peer")?;
        let line = accept(&self.listener, &mut self.machine);
        if line.is_err() {
            // What comes later would be taken for the next one.
            self.agent.break_off();
        }
        let mut line = line?;
        let hello = line.answer()?;
        let number = hello.number(1)?;
        Ok((u32::try_from(number).map_err(failed)?, line))
    }

    /// `kill -9` of a process.
    pub(super) fn kill(&mut self, process: u32) -> Result<()> {
        self.agent.ask(format!("kill {process}")).map(drop)
    }

    /// The kernel's messages since the last time. The alarms among them are kept for [`take_alarm`](Self::take_alarm).
    pub(super) fn log(&mut self) -> Result<Vec<String>> {
        let lines = self.agent.ask("log")?.lines;
        let mut alarms =
            lines.iter().filter(|line| ALARMS.iter().any(|alarm| line.contains(alarm)));
        self.alarm = self.alarm.take().or_else(|| alarms.next().cloned());
        Ok(lines)
    }

    /// The first alarm of the kernel since the last time, as far as the guest still tells.
    pub(super) fn take_alarm(&mut self) -> Option<String> {
        if let Err(Failure(reason)) = self.log() {
            self.alarm.get_or_insert_with(|| format!("nothing any more: {reason}"));
        }
        self.alarm.take()
    }

    /// Starts a program; its process number.
    pub(super) fn start(&mut self, command: &str) -> Result<u64> {
        self.agent.ask(format!("start {command}"))?.number(0)
    }

    /// Waits until something listens at a port of the guest.
    pub(super) fn listens(&mut self, port: u16) -> Result<()> {
        self.agent.ask(format!("listens {port}")).map(drop)
    }

    /// Waits for the end of a program: its exit status and what it said.
    pub(super) fn wait(&mut self, process: u64) -> Result<(u64, Vec<String>)> {
        let Answer { words, lines } = self.agent.ask(format!("wait {process} 120000"))?;
        let status = words.first().and_then(|word| word.parse().ok());
        status.map(|status| (status, lines)).ok_or_else(|| failed("no exit status"))
    }

    /// A port for siwpeer to listen at, and where the host reaches it.
    pub(super) fn port(&mut self) -> (u16, SocketAddr) {
        let index = self.next_port % self.doors.len();
        self.next_port += 1;
        let port = PORTS.start + u16::try_from(index).expect("a few ports");
        (port, self.doors[index])
    }

    /// Where a listener of the host has to be for the guest to reach it at [`HOST`].
    pub(super) const fn host_side(&self) -> &'static str {
        if self.has_tap { HOST } else { "127.0.0.1" }
    }
}

impl Drop for Guest {
    fn drop(&mut self) {
        let _ = self.agent.say("off");
        let deadline = Instant::now() + Duration::from_secs(5);
        while self.is_running() && Instant::now() < deadline {
            thread::sleep(Duration::from_millis(50));
        }
        let _ = self.machine.kill();
        let _ = self.machine.wait();
    }
}

fn doors(has_tap: bool) -> Result<Vec<SocketAddr>> {
    if has_tap {
        return PORTS.map(|port| Ok(format!("{GUEST}:{port}").parse()?)).collect();
    }
    // All at once, so that they differ; free again when QEMU wants them.
    let listeners: Vec<TcpListener> =
        PORTS.map(|_| TcpListener::bind("127.0.0.1:0")).collect::<std::io::Result<_>>()?;
    Ok(listeners.iter().map(TcpListener::local_addr).collect::<std::io::Result<_>>()?)
}

/// QEMU's arguments.
fn machine(config: &Config, control: u16, doors: &[SocketAddr]) -> Vec<String> {
    let file = |name: &str| path(&config.folder.join(name));
    let mut device = "virtio-net-pci,netdev=net,romfile=".to_owned();
    let network = if let Some(tap) = &config.tap {
        device += NO_SEGMENTATION;
        // The header that tells of checksums would be in the capture as well.
        let header = if config.pcap.is_some() { "off" } else { "on" };
        format!("tap,id=net,ifname={tap},script=no,downscript=no,vnet_hdr={header}")
    } else {
        let forwarded = PORTS
            .zip(doors)
            .map(|(port, door)| format!(",hostfwd=tcp:127.0.0.1:{}-:{port}", door.port()));
        forwarded.fold("user,id=net".to_owned(), |all, one| all + &one)
    };
    let (accel, processor) = match config.accel.as_str() {
        "tcg" => ("tcg,thread=multi".to_owned(), "max"),
        other => (other.to_owned(), "host"),
    };
    let command_line = format!(
        "console=ttyS0 quiet loglevel=3 panic=-1 oops=panic rdinit=/init mitigations=off iwarp.control={control}"
    );
    let mut arguments: Vec<String> =
        ["-nodefaults", "-no-user-config", "-no-reboot"].map(String::from).into();
    for (option, value) in [
        ("-display", "none".to_owned()),
        ("-monitor", "none".to_owned()),
        ("-serial", "stdio".to_owned()),
        ("-accel", accel),
        ("-cpu", processor.to_owned()),
        ("-smp", "1".to_owned()),
        ("-m", "512".to_owned()),
        ("-kernel", file("vmlinux")),
        ("-initrd", file("initramfs")),
        ("-append", command_line),
        ("-netdev", network),
        ("-device", device),
    ] {
        arguments.extend([option.to_owned(), value]);
    }
    if let Some(pcap) = &config.pcap {
        let dump = format!("filter-dump,id=dump,netdev=net,file={}", path(pcap));
        arguments.extend(["-object".to_owned(), dump]);
    }
    arguments
}

fn path(path: &Path) -> String {
    path.to_string_lossy().into_owned()
}

/// The next connection of siwpeer; an error if the machine ends first.
fn accept(listener: &TcpListener, machine: &mut Child) -> Result<Line> {
    listener.set_nonblocking(true)?;
    let deadline = Instant::now() + BOOT_LIMIT;
    loop {
        match listener.accept() {
            Ok((stream, _)) => return Line::new(stream),
            Err(error) if error.kind() != ErrorKind::WouldBlock => return Err(error.into()),
            Err(_) => {}
        }
        if let Some(status) = machine.try_wait()? {
            return Err(failed(format!("the guest has ended: {status}")));
        }
        if Instant::now() > deadline {
            return Err(failed("the guest does not come up"));
        }
        thread::sleep(Duration::from_millis(5));
    }
}
