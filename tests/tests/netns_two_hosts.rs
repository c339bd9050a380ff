//! The example between two hosts with a bad network, by hand and through its script.
#![allow(
    missing_docs,
    clippy::unwrap_used,
    clippy::cast_possible_truncation,
    reason = "test code; a panic is a failed test"
)]

use std::process::Command;

use iwarp_tests::{
    child::{Child, example},
    link::{ADDRESS_B, Link},
    netns::{Host, Hosts},
    skip,
};

const BAD: &str = "delay 1ms loss 0.1% reorder 1%";
const SCRIPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../examples/two_hosts.sh");
/// What the script exits with where a machine lacks something.
const SKIPPED: i32 = 77;

/// DDP-026, MPA-074: each kind of operation, and a file, through a link that delays, loses and reorders.
#[test]
fn a_bad_network_changes_no_octet() {
    let hosts = match Hosts::make() {
        Ok(hosts) => hosts,
        Err(reason) => skip!(reason),
    };
    let link = match Link::bad(&hosts, 1500, BAD) {
        Ok(link) => link,
        Err(reason) => skip!(reason),
    };
    let there = format!("{ADDRESS_B}:7174");
    let program = example("two_host");
    let file = program.to_str().unwrap();
    for leader in [&["--size", "3M"][..], &["--file", file], &["--size", "300k", "--markers"]] {
        let mut b = Child::start(hosts.command(Host::B, &program).args(["--listen", &there]));
        assert!(b.line().starts_with("listening"));
        let mut a = hosts.command(Host::A, &program);
        let mut a = Child::start(a.args(["--connect", &there]).args(leader));
        let (a, b) = (a.wait(), b.wait());
        assert!(a.status.success() && b.status.success(), "{leader:?}: {a:?} {b:?}");
    }
    // Where it was the example that made the network bad, it says that it did.
    if let Some(counts) = link.finish() {
        let counts = counts.lines().last().unwrap_or_default().to_owned();
        let counts: serde_json::Value = serde_json::from_str(&counts).unwrap();
        let a_to_b = &counts["a_to_b"];
        assert!(a_to_b["lost"].as_u64() > Some(0), "{counts}");
        assert!(a_to_b["overtook"].as_u64() > Some(0), "{counts}");
    }
}

#[test]
fn the_script_runs_and_tells_what_is_wrong() {
    let script = |arguments: &[&str]| {
        let mut command = Command::new(SCRIPT);
        command.args(arguments).env("TWO_HOST", example("two_host")).env("LINK", example("link"));
        Child::start(&mut command).wait()
    };
    let ended = script(&[]);
    if ended.status.code() == Some(SKIPPED) {
        skip!(ended.stderr);
    }
    assert!(ended.status.success(), "{ended:?}");
    assert!(ended.stdout.contains("A | ") && ended.stdout.contains("B | "), "{}", ended.stdout);
    // What two_host finds wrong is its to say, and its code that of the script.
    let ended = script(&["--file", "/no/such/file"]);
    assert_eq!(ended.status.code(), Some(1), "{ended:?}");
    assert!(ended.stderr.contains("cannot open /no/such/file"), "{}", ended.stderr);
    assert_eq!(script(&["--mtu", "none"]).status.code(), Some(2));
    assert_eq!(script(&["--size", "much"]).status.code(), Some(2));
    assert!(script(&["--help"]).stdout.contains("--netem"));
}

#[test]
fn the_script_with_a_bad_network() {
    for way in [&[][..], &["--own-link"]] {
        let mut command = Command::new(SCRIPT);
        command.env("TWO_HOST", example("two_host")).env("LINK", example("link"));
        command.args(way).args(["--netem", BAD, "--mtu", "9000", "--size", "2M"]);
        let ended = Child::start(&mut command).wait();
        if ended.status.code() == Some(SKIPPED) {
            skip!(ended.stderr);
        }
        assert!(ended.status.success(), "{ended:?}");
    }
}

/// Other examples through the same script: what one end takes is given to that end.
#[test]
fn the_script_runs_other_programs() {
    let queue = ["--to-b=--jobs=200", "--to-b=--size=4k", "--to-a=--takes=1ms"];
    let lock = ["--to-b=--members=1", "--to-a=--increments=200", "--to-a=--turns=50"];
    let rping = ["--to-a=-vV", "--to-a=-C2", "--to-b=-v"];
    for (program, words, a, b) in [
        ("work_queue", queue, "A | 200 jobs done", "each result is right"),
        ("counter_lock", lock, "A | 200 increments, and 50 turns", "B | 1 members in"),
        (
            "rping",
            rping,
            "A | ping data: rdma-ping-1: BCD",
            "B | server ping data: rdma-ping-1: BCD",
        ),
    ] {
        let mut command = Command::new(SCRIPT);
        command.env("TWO_HOST", example(program)).env("LINK", example("link"));
        command.args(["--program", program, "--netem", "delay 1ms reorder 1%"]);
        command.args(words.iter().flat_map(|word| {
            let (option, value) = word.split_once('=').expect("an option and what it is given");
            [option, value]
        }));
        let ended = Child::start(&mut command).wait();
        if ended.status.code() == Some(SKIPPED) {
            skip!(ended.stderr);
        }
        assert!(ended.status.success(), "{ended:?}");
        assert!(ended.stdout.contains(a), "{}", ended.stdout);
        assert!(ended.stdout.contains(b), "{}", ended.stdout);
    }
}
