//! The example `two_host` as its users run it: what it prints, and what it exits with when something is wrong.
#![allow(
    missing_docs,
    clippy::unwrap_used,
    clippy::cast_possible_truncation,
    reason = "test code; a panic is a failed test"
)]

use std::{
    env, fs,
    io::{Read, Write},
    net::TcpListener,
    path::PathBuf,
    process::Command,
    thread,
};

use iwarp_tests::child::{Child, Ended, example};

fn two_host(arguments: &[&str]) -> Child {
    Child::start(Command::new(example("two_host")).args(arguments))
}

fn run(arguments: &[&str]) -> Ended {
    two_host(arguments).wait()
}

/// A file of this test alone, gone with it.
struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str) -> Self {
        Self(env::temp_dir().join(format!("iwarp-test-{}-{name}", std::process::id())))
    }

    fn filled(name: &str, octets: usize) -> Self {
        let scratch = Self::new(name);
        let content: Vec<u8> =
            (0..octets).map(|at| (at ^ (at >> 8) ^ (at >> 16)).to_le_bytes()[0]).collect();
        fs::write(&scratch.0, content).unwrap();
        scratch
    }

    fn path(&self) -> &str {
        self.0.to_str().unwrap()
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

/// The listening end, and where it listens.
fn listening(arguments: &[&str]) -> (Child, String) {
    let mut listener = two_host(&[&["--listen", "127.0.0.1:0"], arguments].concat());
    let line = listener.line();
    let addr = line.strip_prefix("listening on ").expect(&line).to_owned();
    (listener, addr)
}

fn assert_fails(ended: &Ended, code: i32, says: &str) {
    assert_eq!(ended.status.code(), Some(code), "{ended:?}");
    let line = ended.stderr.trim_end();
    assert_eq!(line.lines().count(), 1, "one line: {line}");
    assert!(line.starts_with("two_host: ") && line.contains(says), "{line}");
}

#[test]
fn both_ends_in_one_command() {
    let ended = run(&["--size", "100k"]);
    assert!(ended.status.success(), "{ended:?}");
    for told in [
        "Send with Invalidate",
        "RDMA Write",
        "RDMA Read",
        "remote access error",
        "memory untouched",
    ] {
        assert!(ended.stdout.contains(told), "{told}: {}", ended.stdout);
    }
}

#[test]
fn options_of_the_wire_hold_in_every_combination() {
    for markers in [&["--markers"][..], &[]] {
        for crc in [&["--no-crc"][..], &[]] {
            for size in [&["--fpdu-limit", "emss"][..], &["--fpdu-limit", "65536"]] {
                for revision in ["1", "2"] {
                    let all =
                        [markers, crc, size, &["--mpa-revision", revision, "--json"]].concat();
                    let ended = run(&all);
                    assert!(ended.status.success(), "{all:?}: {ended:?}");
                    let told: serde_json::Value = serde_json::from_str(&ended.stdout).unwrap();
                    assert_eq!(told["ok"], true);
                    for end in ["connect", "listen"] {
                        let wire = &told[end]["connection"];
                        assert_eq!(wire["crc"], crc.is_empty(), "{all:?}");
                        assert_eq!(wire["mpa_revision"].to_string(), revision);
                        assert!(told[end]["steps"].as_array().unwrap().len() >= 4);
                    }
                }
            }
        }
    }
}

#[test]
fn two_roles_and_a_file() {
    let source = Scratch::filled("source", (9 << 20) + 12_345);
    let saved = Scratch::new("saved");
    let (mut listener, addr) = listening(&["--save", saved.path()]);
    let ended = run(&["--connect", &addr, "--file", source.path(), "--json"]);
    assert!(ended.status.success(), "{ended:?}");
    assert!(listener.wait().status.success());
    assert!(fs::read(&saved.0).unwrap() == fs::read(&source.0).unwrap());
    let told: serde_json::Value = serde_json::from_str(&ended.stdout).unwrap();
    assert_eq!(told["connect"]["steps"][0]["octets"], (9 << 20) + 12_345);
}

#[test]
fn an_empty_file() {
    let source = Scratch::filled("empty", 0);
    let ended = run(&["--file", source.path()]);
    assert!(ended.status.success(), "{ended:?}");
}

#[test]
fn a_refused_connection() {
    // A port that was free a moment ago.
    let addr = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
    assert_fails(&run(&["--connect", &addr]), 1, "refused the connection");
}

#[test]
fn a_wrong_address() {
    assert_fails(&run(&["--connect", "127.0.0.1"]), 1, "port is missing");
    assert_fails(&run(&["--connect", "no.such.host.invalid:7174"]), 1, "does not resolve");
    assert_fails(&run(&["--listen", "192.0.2.1:7174"]), 1, "cannot bind to 192.0.2.1:7174");
}

#[test]
fn a_missing_file() {
    assert_fails(&run(&["--file", "/no/such/file"]), 1, "cannot open /no/such/file: No such file");
    assert_fails(&run(&["--file", "/"]), 1, "/ is no regular file");
}

#[test]
fn a_peer_that_is_no_rdma_peer() {
    let server = TcpListener::bind("127.0.0.1:0").unwrap();
    let addr = server.local_addr().unwrap().to_string();
    let serving = thread::spawn(move || {
        let (mut stream, _) = server.accept().unwrap();
        let _ = stream.read(&mut [0; 512]);
        let _ = stream.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n");
    });
    assert_fails(&run(&["--connect", &addr]), 1, "does not speak MPA");
    serving.join().unwrap();
}

#[test]
fn wrong_usage() {
    for arguments in [
        &["--connect", "a:1", "--listen", "b:1"][..],
        &["--listen", "127.0.0.1:0", "--file", "x"],
        &["--size", "much"],
        &["--mpa-revision", "3"],
        &["--fpdu-limit", "some"],
    ] {
        assert_eq!(run(arguments).status.code(), Some(2), "{arguments:?}");
    }
}

#[test]
fn a_peer_that_is_killed_in_mid_file() {
    let source = Scratch::new("large");
    // A hole, which takes no room on the disk.
    fs::File::create(&source.0).unwrap().set_len(1 << 30).unwrap();
    for kill_listener in [true, false] {
        let saved = Scratch::new("part");
        let (mut listener, addr) = listening(&["--save", saved.path()]);
        let mut sender = two_host(&["--connect", &addr, "--file", source.path()]);
        // Its second line comes when the transfer begins.
        sender.line();
        sender.line();
        let (killed, survivor) =
            if kill_listener { (&mut listener, &mut sender) } else { (&mut sender, &mut listener) };
        killed.kill();
        assert_fails(&survivor.wait(), 1, "127.0.0.1:");
        if !kill_listener {
            assert!(!saved.0.exists(), "an incomplete file under its name");
            assert!(
                !saved.0.with_added_extension("part").exists(),
                "an incomplete file left behind"
            );
        }
        let _ = fs::remove_file(saved.0.with_added_extension("part"));
    }
}
