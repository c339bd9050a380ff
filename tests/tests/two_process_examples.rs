//! The smaller examples as their users run them.
#![allow(missing_docs, clippy::unwrap_used, reason = "test code; a panic is a failed test")]

use std::process::Command;

use iwarp_tests::child::{Child, Ended, example};

fn start(name: &str, arguments: &[&str]) -> Child {
    Child::start(Command::new(example(name)).args(arguments))
}

fn run(name: &str, arguments: &[&str]) -> Ended {
    start(name, arguments).wait()
}

fn json(name: &str, arguments: &[&str]) -> serde_json::Value {
    let ended = run(name, arguments);
    assert!(ended.status.success(), "{name} {arguments:?}: {ended:?}");
    serde_json::from_str(&ended.stdout).unwrap()
}

fn listening(name: &str) -> (Child, String) {
    let mut listener = start(name, &["--listen", "127.0.0.1:0"]);
    let line = listener.line();
    let addr = line.strip_prefix("listening on ").expect("where").to_owned();
    (listener, addr)
}

#[test]
fn ping_pong_measures_by_send_and_by_write() {
    for operation in ["send", "write"] {
        for size in ["8", "64", "100000"] {
            let arguments = [
                "--operation",
                operation,
                "--size",
                size,
                "--rounds",
                "200",
                "--warm-up",
                "20",
                "--json",
            ];
            let told = json("ping_pong", &arguments);
            assert_eq!(told["rounds"], 200);
            let times = &told["nanoseconds"];
            let [min, p50, max] = ["min", "p50", "max"].map(|name| times[name].as_u64().unwrap());
            assert!(0 < min && min <= p50 && p50 <= max, "{told}");
        }
    }
    let (mut listener, addr) = listening("ping_pong");
    let ended = run("ping_pong", &["--connect", &addr, "--rounds", "50"]);
    assert!(ended.stdout.contains("median"), "{ended:?}");
    assert!(listener.wait().status.success());
    assert_eq!(run("ping_pong", &["--size", "7"]).status.code(), Some(1));
}

/// RDMAP-022: the server's program hears of no GET.
#[test]
fn kv_store_serves_gets_without_the_server() {
    let told = json("kv_store", &["--json"]);
    assert_eq!(told["requests_during_gets"], 0, "{told}");
    assert_eq!(told["requests_during_puts"], told["puts"], "{told}");
    assert!(told["racing_gets"].as_u64() > Some(1000), "{told}");
}

#[test]
fn kv_store_from_the_command_line() {
    let (_server, addr) = listening("kv_store");
    let client = |arguments: &[&str]| run("kv_store", &[&["--connect", &addr], arguments].concat());
    assert!(client(&["put", "tea", "green"]).status.success());
    assert_eq!(client(&["get", "tea"]).stdout, "green");
    assert!(client(&["put", "tea", "black"]).status.success());
    assert_eq!(client(&["get", "tea"]).stdout, "black");
    assert!(client(&["delete", "tea"]).status.success());
    for command in [&["get", "tea"], &["delete", "tea"]] {
        let ended = client(command);
        assert_eq!(ended.status.code(), Some(1), "{ended:?}");
        assert!(ended.stderr.contains("no such key"), "{ended:?}");
    }
    let too_long = "x".repeat(300);
    let ended = client(&["put", "tea", &too_long]);
    assert_eq!(ended.status.code(), Some(1), "{ended:?}");
}
