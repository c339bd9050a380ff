//! Descriptors: none is lost, and a listener survives their shortage.
//!
//! In a process of its own, as the limit and the count are the whole process's.
#![allow(clippy::unwrap_used, reason = "a failed step is a failed test")]

mod cm_support;

use std::net::TcpStream;
use std::time::{Duration, Instant};

use cm_support::*;
use iwarp_verbs::DeviceConfig;
use iwarp_verbs::cm::{self, ConnParam, Listener};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Descriptors in use; `None` where the system does not tell.
fn in_use() -> Option<usize> {
    // One of them is the one that reads the directory.
    Some(std::fs::read_dir("/proc/self/fd").ok()?.count() - 1)
}

fn settles_at(expected: usize) {
    let started = Instant::now();
    while in_use().unwrap() != expected {
        assert!(started.elapsed() < GUARD, "{:?} descriptors, {expected} expected", in_use());
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn meet(world: &World, listener: &Listener) {
    let connecting = cm::connect(listener.local_addr(), &world.qp(), ConnParam::default()).unwrap();
    let request = listener.accept(GUARD).unwrap();
    let accepting = request.accept(&world.qp(), ConnParam::default()).unwrap();
    let (client, server) = (connecting.wait(GUARD).unwrap(), accepting.wait(GUARD).unwrap());
    client.disconnect();
    assert!(server.wait_closed(GUARD).is_some() && client.wait_closed(GUARD).is_some());
}

fn bad_requests_leave_nothing_behind(world: &World, listener: &Listener) {
    // FC-004
    for octets in [&b"GET / HTTP/1.1\r\n\r\n"[..], b"MPA ID Req Frame", b""] {
        for _ in 0..8 {
            let mut peer = Peer::connect(listener.local_addr());
            peer.send(octets);
            peer.fin();
            peer.expect_end();
        }
    }
    // Set-ups that are given up, by either side.
    for _ in 0..8 {
        drop(cm::connect(listener.local_addr(), &world.qp(), ConnParam::default()).unwrap());
    }
    let started = Instant::now();
    while let Ok(request) = listener.accept(QUIET) {
        assert!(started.elapsed() < GUARD);
        drop(request);
    }
}

fn a_shortage_passes(world: &World, listener: &Listener) {
    let limit = getrlimit(Resource::Nofile);
    let few = u64::try_from(in_use().unwrap() + 12).unwrap();
    setrlimit(Resource::Nofile, Rlimit { current: Some(few), ..limit }).unwrap();
    // Both ends are in this process, so this cannot go on for long.
    let mut clients = Vec::new();
    while let Ok(client) = TcpStream::connect(listener.local_addr()) {
        clients.push(client);
        assert!(clients.len() < 64, "no limit is in force");
    }
    // Nothing of it reaches the program, and a connect of its own says what is wrong.
    assert!(listener.try_accept().is_none());
    let connecting = cm::connect(listener.local_addr(), &world.qp(), ConnParam::default()).unwrap();
    let error = connecting.wait(GUARD).unwrap_err();
    assert!(error.to_string().contains("open files"), "{error}");
    assert_eq!(error.errno(), 24);
    setrlimit(Resource::Nofile, limit).unwrap();
    drop(clients);
    meet(world, listener);
}

#[test]
fn descriptors_are_given_back_and_may_run_short() {
    if in_use().is_none() {
        println!("skipped: this system does not tell which descriptors are in use");
        return;
    }
    let world = World::with(DeviceConfig::default().accept_timeout(SHORT));
    let listener = world.listener();
    // Whatever is made once is there now.
    meet(&world, &listener);
    std::thread::sleep(QUIET);
    let before = in_use().unwrap();

    bad_requests_leave_nothing_behind(&world, &listener);
    settles_at(before);
    a_shortage_passes(&world, &listener);
    settles_at(before);
    drop(listener);
    settles_at(before - 1);
}
