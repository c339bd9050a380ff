//! This stack against the Linux kernel's siw, which runs in a virtual machine: `tests/interop/run`.
//!
//! | file | holds |
//! |---|---|
//! | `guest.rs`, `control.rs` | the machine, and the line to siwpeer in it |
//! | `siw.rs`, `ours.rs` | the two ends of a connection |
//! | `pair.rs` | connections between them, in both roles |
//! | `pattern.rs` | what is sent, known to both ends |
//! | `cases/` | what is tried |
//! | `report.rs` | what came of it, for people, for machines, and for `docs/interop.md` |
//!
//! Cases fail by an error rather than by a panic: the next one runs all the same, in a new guest if the old one is gone.

mod cases;
mod control;
mod guest;
mod ours;
mod pair;
mod pattern;
mod report;
mod siw;

use std::{
    fmt::Display,
    panic::{AssertUnwindSafe, catch_unwind},
    path::PathBuf,
    process::ExitCode,
    time::Instant,
};

pub use self::report::{BEGIN, DOCUMENT, END, rows};
use self::{
    cases::Case,
    guest::{Config, Guest},
    report::{Outcome, Report},
};

/// Why a case failed.
#[derive(Clone, Debug)]
struct Failure(String);

impl<E: std::error::Error> From<E> for Failure {
    fn from(error: E) -> Self {
        Self(error.to_string())
    }
}

type Result<T> = std::result::Result<T, Failure>;

fn failed(reason: impl Display) -> Failure {
    Failure(reason.to_string())
}

/// Fails the case unless something holds.
macro_rules! ensure {
    ($holds:expr, $($reason:tt)+) => {
        if !$holds {
            return Err($crate::interop::Failure(format!($($reason)+)));
        }
    };
}
use ensure;

/// What cases work with.
#[derive(Debug)]
struct Lab {
    guest: Guest,
}

impl Lab {
    /// Runs one case.
    fn run(&mut self, case: &Case) -> Outcome {
        if case.needs_segments && !self.guest.has_tap() {
            return Outcome::Skipped(
                "needs a network that carries segments as they are sent".into(),
            );
        }
        // What the cases share with the tests panics where something of the harness goes wrong.
        let result = catch_unwind(AssertUnwindSafe(|| self.attempt(case)));
        let result = result.unwrap_or_else(|_| Err(failed("a panic, which is above")));
        match (result, self.guest.take_alarm()) {
            (Ok(note), None) => Outcome::Passed(note),
            (Ok(_), Some(line)) => Outcome::Failed(format!("the kernel said: {line}")),
            (Err(Failure(reason)), None) => Outcome::Failed(reason),
            (Err(Failure(reason)), Some(line)) => {
                Outcome::Failed(format!("{reason}; the kernel said: {line}"))
            }
        }
    }

    fn attempt(&mut self, case: &Case) -> Result<String> {
        if let Some(line) = self.guest.take_alarm() {
            return Err(failed(format!("after the case before, the kernel said: {line}")));
        }
        self.guest.set(case.settings)?;
        (case.run)(self)
    }
}

/// The command line, as `tests/interop/run` gives it.
#[derive(Debug, Default)]
#[allow(clippy::struct_excessive_bools, reason = "each is an option of its own")]
struct Options {
    config: Option<Config>,
    smoke: bool,
    only: Vec<String>,
    list: bool,
    json: bool,
    document: bool,
}

impl Options {
    fn parse(mut arguments: impl Iterator<Item = String>) -> std::result::Result<Self, String> {
        let mut options = Self::default();
        let (mut folder, mut accel, mut tap, mut pcap, mut console) =
            (None, None, None, None, None);
        while let Some(argument) = arguments.next() {
            let mut value = || arguments.next().ok_or_else(|| format!("{argument} wants a value"));
            match argument.as_str() {
                "--guest" => folder = Some(PathBuf::from(value()?)),
                "--accel" => accel = Some(value()?),
                "--tap" => tap = Some(value()?),
                "--pcap" => pcap = Some(PathBuf::from(value()?)),
                "--console" => console = Some(PathBuf::from(value()?)),
                "--only" => options.only.push(value()?.to_lowercase()),
                "--subset" => match value()?.as_str() {
                    "all" => options.smoke = false,
                    "smoke" => options.smoke = true,
                    other => return Err(format!("--subset is all or smoke, not {other}")),
                },
                "--list" => options.list = true,
                "--json" => options.json = true,
                "--document" => options.document = true,
                other => return Err(format!("unknown argument {other}")),
            }
        }
        if options.document && (options.smoke || !options.only.is_empty()) {
            return Err("--document wants the whole matrix".into());
        }
        options.config =
            folder.zip(accel).map(|(folder, accel)| Config { folder, accel, tap, pcap, console });
        Ok(options)
    }

    fn wants(&self, case: &Case) -> bool {
        let name = case.to_string().to_lowercase();
        (!self.smoke || case.smoke) && self.only.iter().all(|words| name.contains(words))
    }
}

/// The program behind `tests/interop/run`.
#[must_use]
pub fn main() -> ExitCode {
    if let Some(role) = std::env::var_os(cases::VICTIM) {
        return cases::victim(&role.to_string_lossy());
    }
    let options = match Options::parse(std::env::args().skip(1)) {
        Ok(options) => options,
        Err(wrong) => {
            eprintln!("interop: {wrong}; see tests/interop/run --help");
            return ExitCode::from(2);
        }
    };
    let mut cases = cases::all();
    cases.retain(|case| options.wants(case));
    if options.list {
        for case in &cases {
            println!("{case}");
        }
        return ExitCode::SUCCESS;
    }
    let Some(config) = &options.config else {
        eprintln!("interop: no guest; tests/interop/run knows where it is");
        return ExitCode::from(2);
    };
    let report = carry_out(config, &cases);
    if options.json {
        println!("{}", report.json());
    } else {
        print!("{}", report.plain());
    }
    if options.document {
        match report.document() {
            Ok(()) => eprintln!("interop: {DOCUMENT} has the results"),
            Err(error) => {
                eprintln!("interop: {DOCUMENT}: {error}");
                return ExitCode::FAILURE;
            }
        }
    }
    if report.failures() == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// After so many guests in a row that did not boot no other one is tried: each takes minutes to wait for.
const BOOTS_IN_VAIN: u32 = 2;

/// Runs cases, each in the guest that there is, or in a new one.
fn carry_out(config: &Config, cases: &[Case]) -> Report {
    let mut report = Report::new(config);
    let mut lab: Option<Lab> = None;
    let mut in_vain = 0;
    for (number, case) in (1..).zip(cases) {
        let began = Instant::now();
        let booted = if in_vain < BOOTS_IN_VAIN {
            boot(config, lab.take())
        } else {
            Err(failed("it did not boot before"))
        };
        in_vain = if booted.is_ok() { 0 } else { in_vain + 1 };
        let outcome = match booted {
            Err(Failure(reason)) => Outcome::Failed(format!("no guest: {reason}")),
            Ok(mut booted) => {
                let outcome = booted.run(case);
                if booted.guest.is_usable() {
                    lab = Some(booted);
                }
                outcome
            }
        };
        let took = began.elapsed();
        eprintln!("{number:>4}/{} {:>6.1} s  {case}: {outcome}", cases.len(), took.as_secs_f64());
        report.add(case, outcome, took);
    }
    report
}

fn boot(config: &Config, lab: Option<Lab>) -> Result<Lab> {
    if let Some(lab) = lab {
        return Ok(lab);
    }
    let began = Instant::now();
    let guest = Guest::boot(config)?;
    eprintln!("interop: a guest has booted in {:.0} s", began.elapsed().as_secs_f64());
    Ok(Lab { guest })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(arguments: &[&str]) -> std::result::Result<Options, String> {
        Options::parse(arguments.iter().map(|&argument| argument.to_owned()))
    }

    #[test]
    fn what_is_asked_for_is_what_runs() {
        let all = cases::all();
        let chosen = |arguments: &[&str]| {
            let options = parse(arguments).unwrap();
            all.iter().filter(|case| options.wants(case)).count()
        };
        assert_eq!(chosen(&[]), all.len());
        assert!((5..all.len()).contains(&chosen(&["--subset", "smoke"])));
        let writes = chosen(&["--only", "WRITE", "--only", "crc on"]);
        assert!((1..chosen(&["--only", "write"])).contains(&writes));
        assert_eq!(chosen(&["--only", "there is no such case"]), 0);
    }

    #[test]
    fn wrong_usage_is_told() {
        for wrong in
            [&["--subset", "some"][..], &["--only"], &["--fast"], &["--document", "--only", "read"]]
        {
            assert!(parse(wrong).is_err(), "{wrong:?}");
        }
        assert!(parse(&["--guest", "folder", "--accel", "tcg"]).unwrap().config.is_some());
        assert!(parse(&["--guest", "folder"]).unwrap().config.is_none());
    }
}
