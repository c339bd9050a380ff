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

/// SEC-12, FC-073, FC-074: many workers on one shared receive queue, with fewer receives than results may come in.
#[test]
fn work_queue_shares_its_receives() {
    let told = json("work_queue", &["--jobs", "600", "--size", "2k", "--receives", "3", "--json"]);
    assert_eq!(
        (&told["jobs"], &told["workers"], &told["workers_lost"]),
        (&600.into(), &4.into(), &0.into())
    );
    assert!(told["limits_reached"].as_u64() > Some(0), "{told}");
    let most_held = told["most_held"].as_u64();
    assert!(Some(1) <= most_held && most_held <= Some(3), "{told}");
}

/// FC-074: a worker that is killed loses no job and no receive.
#[test]
fn work_queue_survives_its_workers() {
    let arguments =
        ["--listen", "127.0.0.1:0", "--jobs", "150", "--size", "100", "--receives", "4"];
    let mut dispatcher = start("work_queue", &arguments);
    let addr = dispatcher.line().strip_prefix("listening on ").expect("where").to_owned();
    // It has jobs from the first moment on, and never comes to an end with them.
    let mut lost = start("work_queue", &["--connect", &addr, "--takes", "30s"]);
    assert!(lost.line().starts_with("working for "));
    let worker = || start("work_queue", &["--connect", &addr, "--takes", "5ms"]);
    let mut others = [worker(), worker()];
    std::thread::sleep(std::time::Duration::from_millis(300));
    lost.kill();
    let mut done = 0;
    for other in &mut others {
        let ended = other.wait();
        assert!(ended.status.success(), "{ended:?}");
        let jobs = ended.stdout.lines().last().and_then(|line| line.split(' ').next());
        let jobs = jobs.and_then(|jobs| jobs.parse::<u32>().ok());
        done += jobs.expect("a number of jobs");
    }
    let ended = dispatcher.wait();
    assert!(ended.status.success(), "{ended:?}");
    assert!(ended.stdout.contains("1 workers were lost, and 4 jobs handed out again"), "{ended:?}");
    assert_eq!(done, 150);
    for arguments in [&["--jobs", "0"][..], &["--receives", "0"]] {
        let ended = run("work_queue", arguments);
        assert_eq!(ended.status.code(), Some(1), "{ended:?}");
    }
    assert!(run("work_queue", &["--help"]).stdout.contains("--receives"));
}

/// EXT-04: many members, one counter and one lock, and the host's own `CompareSwap` beside theirs.
#[test]
fn counter_lock_loses_nothing() {
    let told = json(
        "counter_lock",
        &["--members", "3", "--increments", "2000", "--turns", "300", "--json"],
    );
    assert_eq!((&told["counter"], &told["turns"]), (&6000.into(), &900.into()), "{told}");
    assert_eq!((&told["members_lost"], &told["locks_freed"]), (&0.into(), &0.into()), "{told}");
    assert!(told["tries"].as_u64() >= Some(900), "{told}");
}

/// A member that is killed while it has the lock keeps nobody from it.
#[test]
fn counter_lock_survives_its_members() {
    let mut host = start("counter_lock", &["--listen", "127.0.0.1:0", "--members", "2"]);
    let addr = host.line().strip_prefix("listening on ").expect("where").to_owned();
    let member = |arguments: &[&str]| {
        start("counter_lock", &[&["--connect", &addr, "--increments", "10"], arguments].concat())
    };
    let mut lost = member(&["--turns", "1", "--keeps", "300s"]);
    assert_eq!(lost.line(), format!("member 1 of {addr}"));
    assert_eq!(lost.line(), "member 1 has the lock for 300 s");
    let mut other = member(&["--turns", "20"]);
    assert_eq!(other.line(), format!("member 2 of {addr}"));
    lost.kill();
    let ended = other.wait();
    assert!(ended.status.success(), "{ended:?}");
    assert!(ended.stdout.contains("10 increments, and 20 turns with the lock"), "{ended:?}");
    let ended = host.wait();
    assert!(ended.status.success(), "{ended:?}");
    assert!(ended.stdout.contains("1 members were lost, and 1 times with the lock"), "{ended:?}");
    assert_eq!(run("counter_lock", &["--members", "0"]).status.code(), Some(1));
    assert!(run("counter_lock", &["--help"]).stdout.contains("--turns"));
}
