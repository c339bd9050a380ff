//! Captures as tshark, Wireshark's program for terminals, understands them.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A capture file of one test, removed when it ends.
#[derive(Debug)]
pub struct File(pub PathBuf);

impl File {
    /// A name that no other test of any process has.
    #[must_use]
    pub fn new(name: &str) -> Self {
        Self(std::env::temp_dir().join(format!("iwarp-{}-{name}.pcap", std::process::id())))
    }
}

impl Drop for File {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// Whether there is a tshark here.
#[must_use]
pub fn is_there() -> bool {
    Command::new("tshark").arg("--version").output().is_ok_and(|output| output.status.success())
}

/// What it prints of a capture.
#[must_use]
pub fn run(file: &Path, show: &[&str]) -> String {
    let output = Command::new("tshark")
        .arg("-r")
        .arg(file)
        // By its start-up frames alone is it to be known as MPA; whatever is inside of a Send is not looked at.
        .args(["-o", "tcp.check_checksum:TRUE", "-o", "ip.check_checksum:TRUE"])
        .args(["--disable-heuristic", "rpcrdma_iwarp", "--disable-heuristic", "smb_direct_iwarp"])
        .args(show)
        .output()
        .expect("tshark runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("UTF-8")
}

/// The values of one field, in all packets.
#[must_use]
pub fn fields(file: &Path, field: &str) -> Vec<String> {
    let text =
        run(file, &["-T", "fields", "-E", "occurrence=a", "-E", "aggregator=,", "-e", field]);
    text.split(['\n', ',']).filter(|value| !value.is_empty()).map(str::to_owned).collect()
}

/// The lines of the full text with this in them.
#[must_use]
pub fn lines(file: &Path, with: &str) -> Vec<String> {
    run(file, &["-V"]).lines().filter(|line| line.contains(with)).map(str::to_owned).collect()
}

/// One FPDU, or one start-up frame.
#[derive(Debug)]
pub struct Dissected {
    /// Port of TCP it comes from.
    pub from: u16,
    fields: BTreeMap<String, String>,
}

impl Dissected {
    /// The value of a field, as tshark shows it.
    #[must_use]
    pub fn text(&self, field: &str) -> Option<&str> {
        self.fields.get(field).map(String::as_str)
    }

    /// The value of a field that is a number.
    #[must_use]
    pub fn number(&self, field: &str) -> Option<u64> {
        let text = self.text(field)?;
        let number = match text.strip_prefix("0x") {
            Some(digits) => u64::from_str_radix(digits, 16),
            None => text.parse(),
        };
        Some(number.expect("a number"))
    }

    /// The number that has to be there.
    #[must_use]
    pub fn the(&self, field: &str) -> u64 {
        self.number(field).unwrap_or_else(|| panic!("no {field} in {self:?}"))
    }
}

/// All start-up frames and FPDUs of a capture, in its order, and what tshark calls malformed.
#[must_use]
pub fn dissect(file: &Path) -> (Vec<Dissected>, Vec<String>) {
    let pdml = run(file, &["-T", "pdml"]);
    let mut found: Vec<Dissected> = Vec::new();
    let mut malformed = Vec::new();
    let mut from = 0;
    let mut inside = false;
    for line in pdml.lines() {
        if line.contains("<packet>") {
            inside = false;
        }
        let Some(name) = attribute(line, "name") else { continue };
        if name.starts_with("_ws.malformed") {
            malformed.push(line.trim().to_owned());
        }
        let value = attribute(line, "show").unwrap_or_default();
        match name {
            "tcp.srcport" => from = value.parse().expect("a port"),
            "iwarp_mpa.ulpdulength" | "iwarp_mpa.key.req" | "iwarp_mpa.key.rep" => {
                found.push(Dissected { from, fields: BTreeMap::new() });
                inside = true;
            }
            _ => {}
        }
        if inside
            && name.starts_with("iwarp")
            && let Some(last) = found.last_mut()
        {
            last.fields.entry(name.to_owned()).or_insert_with(|| value.to_owned());
        }
    }
    (found, malformed)
}

/// The value of an attribute of a line of XML.
fn attribute<'a>(line: &'a str, name: &str) -> Option<&'a str> {
    let (_, rest) = line.split_once(&format!(" {name}=\""))?;
    rest.split_once('"').map(|(value, _)| value)
}
