//! What came of the cases.

use std::{
    fmt::{self, Write as _},
    fs,
    time::Duration,
};

use serde::Serialize;

use super::{
    cases::{self, Case},
    guest::Config,
    pair::Role,
};
use crate::sources;

/// The document that `--document` writes into.
pub const DOCUMENT: &str = "docs/interop.md";
/// The line before the results there.
pub const BEGIN: &str = "<!-- tests/interop/run --document -->";
/// The line behind.
pub const END: &str = "<!-- tests/interop/run: end -->";

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Outcome {
    /// With what there is to say about it.
    Passed(String),
    Failed(String),
    Skipped(String),
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Passed(note) if note.is_empty() => f.write_str("passed"),
            Self::Passed(note) => write!(f, "passed ({note})"),
            Self::Failed(reason) => write!(f, "FAILED: {reason}"),
            Self::Skipped(reason) => write!(f, "skipped: {reason}"),
        }
    }
}

#[derive(Debug, Serialize)]
struct Ran {
    group: &'static str,
    name: String,
    role: &'static str,
    outcome: Outcome,
    seconds: f64,
}

#[derive(Debug, Serialize)]
pub(super) struct Report {
    kernel: String,
    rdma_core: String,
    network: &'static str,
    cases: Vec<Ran>,
}

const fn role(role: Role) -> &'static str {
    match role {
        Role::SiwConnects => "siw connects",
        Role::WeConnect => "we connect",
    }
}

impl Report {
    pub(super) fn new(config: &Config) -> Self {
        let [kernel, rdma_core] = config.versions();
        let network = match config.tap {
            Some(_) => "a tap device, MTU 1500, segments as they are sent",
            None => "QEMU's user-mode network",
        };
        Self { kernel, rdma_core, network, cases: Vec::new() }
    }

    pub(super) fn add(&mut self, case: &Case, outcome: Outcome, took: Duration) {
        self.cases.push(Ran {
            group: case.group,
            name: case.name.clone(),
            role: role(case.role),
            outcome,
            seconds: took.as_secs_f64(),
        });
    }

    fn count(&self, wanted: impl Fn(&Outcome) -> bool) -> usize {
        self.cases.iter().filter(|ran| wanted(&ran.outcome)).count()
    }

    pub(super) fn failures(&self) -> usize {
        self.count(|outcome| matches!(outcome, Outcome::Failed(_)))
    }

    fn summary(&self) -> String {
        let passed = self.count(|outcome| matches!(outcome, Outcome::Passed(_)));
        let skipped = self.count(|outcome| matches!(outcome, Outcome::Skipped(_)));
        format!(
            "{} cases against siw of Linux {} (rdma-core {}) over {}: {passed} passed, {} failed, {skipped} skipped",
            self.cases.len(),
            self.kernel,
            self.rdma_core,
            self.network,
            self.failures(),
        )
    }

    pub(super) fn json(&self) -> String {
        serde_json::to_string_pretty(self).expect("a report is JSON")
    }

    /// The sum, and what did not pass.
    pub(super) fn plain(&self) -> String {
        let mut text = String::new();
        for Ran { group, name, role, outcome, .. } in &self.cases {
            if !matches!(outcome, Outcome::Passed(_)) {
                let _ = writeln!(text, "{group}: {name} [{role}]: {outcome}");
            }
        }
        text + &self.summary() + "\n"
    }

    /// The table of the document.
    fn markdown(&self) -> String {
        let mut text = format!("{}.\n", self.summary());
        let mut group = "";
        for (heading, name) in rows() {
            if heading != group {
                let _ =
                    writeln!(text, "\n| {heading} | siw connects | we connect |\n|---|---|---|");
                group = heading;
            }
            let cells = Role::BOTH.map(|role| self.cell(heading, &name, role));
            let _ = writeln!(text, "| {name} | {} | {} |", cells[0], cells[1]);
        }
        text
    }

    fn cell(&self, group: &str, name: &str, wanted: Role) -> String {
        let ran = self
            .cases
            .iter()
            .find(|ran| ran.group == group && ran.name == name && ran.role == role(wanted));
        ran.map_or_else(|| "—".into(), |ran| ran.outcome.to_string().replace('|', "\\|"))
    }

    /// Writes the results into [`DOCUMENT`].
    pub(super) fn document(&self) -> std::io::Result<()> {
        let path = sources::root().join(DOCUMENT);
        let text = fs::read_to_string(&path)?;
        let missing = || std::io::Error::other("the lines around the results are missing");
        let (before, rest) = text.split_once(BEGIN).ok_or_else(missing)?;
        let (_, after) = rest.split_once(END).ok_or_else(missing)?;
        let results = self.markdown();
        fs::write(path, format!("{before}{BEGIN}\n\n{results}\n{END}{after}"))
    }
}

/// The rows of the table: group and name of each case, both roles in one.
#[must_use]
pub fn rows() -> Vec<(&'static str, String)> {
    let mut rows: Vec<(&'static str, String)> = Vec::new();
    for Case { group, name, .. } in cases::all() {
        if !rows.iter().any(|row| row.0 == group && row.1 == name) {
            rows.push((group, name));
        }
    }
    rows
}
