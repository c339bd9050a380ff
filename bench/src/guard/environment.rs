//! What a reader has to know to judge the figures.

use std::fs;

use serde::Serialize;

use super::{cpu, network, scheduler};

#[derive(Clone, Debug, Serialize)]
pub(crate) struct Environment {
    pub(crate) processor: String,
    pub(crate) processors: usize,
    pub(crate) kernel: String,
    pub(crate) build: &'static str,
    pub(crate) own_namespace: bool,
    pub(crate) congestion: String,
    pub(crate) loopback_mtu: Option<u32>,
    pub(crate) scheduler_group: String,
    pub(crate) load_average: String,
    /// Processor of the client, and of the server.
    pub(crate) pinned: Option<(usize, usize)>,
    pub(crate) both_ends_here: bool,
    /// What could not be set up: each may falsify the figures.
    pub(crate) notes: Vec<String>,
}

impl Environment {
    pub(crate) fn look() -> Self {
        let field = |path: &str| fs::read_to_string(path).unwrap_or_default().trim().to_owned();
        Self {
            processor: fs::read_to_string("/proc/cpuinfo")
                .ok()
                .and_then(|text| {
                    let line = text.lines().find(|line| line.starts_with("model name"))?;
                    Some(line.split_once(':')?.1.trim().to_owned())
                })
                .unwrap_or_else(|| "unknown".into()),
            processors: cpu::processors(),
            kernel: field("/proc/sys/kernel/osrelease"),
            build: if cfg!(debug_assertions) { "debug" } else { "release" },
            own_namespace: false,
            congestion: network::control(),
            loopback_mtu: network::loopback_mtu(),
            scheduler_group: scheduler::describe(),
            load_average: field("/proc/loadavg"),
            pinned: None,
            both_ends_here: true,
            notes: Vec::new(),
        }
    }

    /// Lines for people.
    pub(crate) fn lines(&self) -> Vec<String> {
        let pins = self.pinned.map_or_else(
            || "not pinned".to_owned(),
            |(client, server)| format!("client on processor {client}, server on {server}"),
        );
        let mut lines = vec![
            format!("{} × {}, Linux {}", self.processors, self.processor, self.kernel),
            format!(
                "{} build, {pins}, {}, congestion control {}, loopback MTU {}",
                self.build,
                if self.own_namespace { "own network namespace" } else { "shared network" },
                self.congestion,
                self.loopback_mtu.map_or_else(|| "?".into(), |mtu| mtu.to_string()),
            ),
            format!("scheduler group {}, load {}", self.scheduler_group, self.load_average),
        ];
        if cfg!(debug_assertions) {
            lines.push("! a debug build: the figures mean nothing".into());
        }
        lines.extend(self.notes.iter().map(|note| format!("! {note}")));
        lines
    }
}
