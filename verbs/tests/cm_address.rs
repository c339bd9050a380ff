//! Addresses, ports and backlogs.
#![allow(clippy::unwrap_used, reason = "a failed step is a failed test")]

mod cm_support;

use std::net::{Ipv6Addr, SocketAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use cm_support::*;
use iwarp_verbs::cm::{
    self, Address, BindOptions, ConnParam, ConnectError, ListenConfig, Listener,
};

/// Whether this host has IPv6 at all (FC-056).
fn has_ipv6() -> bool {
    let has = TcpListener::bind((Ipv6Addr::LOCALHOST, 0)).is_ok();
    if !has {
        println!("skipped: this host has no IPv6 loopback address");
    }
    has
}

/// Connects both ways through a listener and exchanges private data.
fn meet(world: &World, listener: &Listener, at: impl Into<Address>) {
    let connecting =
        cm::connect(at, &world.qp(), ConnParam::default().private_data(b"hello")).unwrap();
    let request = listener.accept(GUARD).unwrap();
    assert_eq!(request.private_data(), b"hello");
    let accepting = request.accept(&world.qp(), ConnParam::default()).unwrap();
    let (client, server) = (connecting.wait(GUARD).unwrap(), accepting.wait(GUARD).unwrap());
    assert_eq!(client.local_addr().port(), server.peer_addr().port());
    assert_eq!(client.peer_addr().port(), listener.local_addr().port());
}

fn bind(
    world: &World,
    addr: impl Into<Address>,
    options: BindOptions,
) -> Result<Listener, ConnectError> {
    Listener::bind(&world.device, addr, ListenConfig::default().bind(options))
}

#[track_caller]
fn in_use(result: Result<Listener, ConnectError>, addr: SocketAddr) {
    let error = result.unwrap_err();
    assert!(matches!(error, ConnectError::Bind { .. }), "{error}");
    assert_eq!(error.errno(), 98);
    let text = error.to_string();
    assert!(text.contains(&addr.to_string()) && text.contains("in use"), "{text}");
}

#[test]
fn fc_054_loopback_in_every_spelling() {
    let world = World::new();
    for host in ["127.0.0.1", "127.0.0.2", "localhost"] {
        let listener = bind(&world, (host, 0), BindOptions::default()).unwrap();
        assert_ne!(listener.local_addr().port(), 0);
        meet(&world, &listener, (host, listener.local_addr().port()));
    }
    // The wildcard is met at any address of the host.
    let listener = bind(&world, "0.0.0.0:0", BindOptions::default()).unwrap();
    meet(&world, &listener, ("127.0.0.1", listener.local_addr().port()));
}

#[test]
fn fc_054_ipv6_loopback() {
    if !has_ipv6() {
        return;
    }
    let world = World::new();
    let listener = bind(&world, "[::1]:0", BindOptions::default()).unwrap();
    assert!(listener.local_addr().is_ipv6());
    meet(&world, &listener, listener.local_addr());
    meet(&world, &listener, ("::1", listener.local_addr().port()));
    // FC-053: loopback has an interface too, which may be named.
    let scoped = format!("[::1%1]:{}", listener.local_addr().port());
    meet(&world, &listener, scoped);
}

#[test]
fn fc_052_one_port_for_both_families() {
    if !has_ipv6() {
        return;
    }
    let world = World::new();
    // Connections of the listeners before linger.
    let options = BindOptions::default().reuse(true);
    let only = options.v6_only(true);
    let begun = Instant::now();
    let (v4, v6, port) = loop {
        let v4 = bind(&world, "0.0.0.0:0", options).unwrap();
        let port = v4.local_addr().port();
        match bind(&world, (Ipv6Addr::UNSPECIFIED, port), only) {
            Ok(v6) => break (v4, v6, port),
            // It was free for IPv4; somebody else may have it for IPv6.
            Err(error) if error.errno() == 98 && begun.elapsed() < GUARD => {}
            Err(error) => panic!("port {port}: {error}"),
        }
    };
    meet(&world, &v4, ("127.0.0.1", port));
    meet(&world, &v6, ("::1", port));

    // Without the option the second wants both.
    drop(v6);
    let both = options.v6_only(false);
    let wildcard = SocketAddr::from((Ipv6Addr::UNSPECIFIED, port));
    in_use(bind(&world, wildcard, both), wildcard);
    drop(v4);
    let v6 = bind(&world, wildcard, both).unwrap();
    meet(&world, &v6, ("127.0.0.1", port));
    meet(&world, &v6, ("::1", port));
}

#[test]
fn fc_055_ports_are_shared_with_ordinary_sockets() {
    let world = World::new();
    let (_foreign, addr) = raw_listener();
    for reuse in [false, true] {
        in_use(bind(&world, addr, BindOptions::default().reuse(reuse)), addr);
    }

    let listener = world.listener();
    assert!(TcpListener::bind(listener.local_addr()).is_err());
    // An ordinary client reaches it at once.
    TcpStream::connect(listener.local_addr()).unwrap();
}

#[test]
fn fc_055_a_port_is_free_when_its_listener_is_gone() {
    let world = World::new();
    let mut addr: SocketAddr = "127.0.0.1:0".parse().unwrap();
    for _ in 0..50 {
        // Not even with address reuse: that would hide a listener that is still closing.
        let listener = bind(&world, addr, BindOptions::default().reuse(false)).unwrap();
        addr = listener.local_addr();
        in_use(bind(&world, addr, BindOptions::default()), addr);
        drop(listener);
    }
    // The same for ids.
    let channel = world.channel();
    for _ in 0..50 {
        let id = cm::Id::new(&channel);
        id.bind(addr, BindOptions::default()).unwrap();
        assert_eq!(id.local_addr(), Some(addr));
        id.listen(1).unwrap();
        assert_eq!(id.local_addr(), Some(addr));
    }
}

#[test]
fn fc_055_reuse_bridges_connections_that_linger() {
    let world = World::new();
    let listener = world.listener();
    let addr = listener.local_addr();
    let connecting = cm::connect(addr, &world.qp(), ConnParam::default()).unwrap();
    let accepting =
        listener.accept(GUARD).unwrap().accept(&world.qp(), ConnParam::default()).unwrap();
    let (client, server) = (connecting.wait(GUARD).unwrap(), accepting.wait(GUARD).unwrap());
    // Closed from the side of the listener, which then lingers in TIME_WAIT.
    server.disconnect();
    assert!(server.wait_closed(GUARD).is_some() && client.wait_closed(GUARD).is_some());
    drop(listener);
    let listener = bind(&world, addr, BindOptions::default().reuse(true)).unwrap();
    meet(&world, &listener, addr);
}

#[test]
fn fc_053_scopes_are_part_of_the_address() {
    let world = World::new();
    for addr in ["[fe80::1]:0", "[fe80::1%0]:0"] {
        let error = bind(&world, addr, BindOptions::default()).unwrap_err();
        assert!(error.to_string().contains("needs its interface"), "{error}");
    }
    // An interface that does not exist.
    let error = bind(&world, "[fe80::1%no-such-if]:0", BindOptions::default()).unwrap_err();
    assert!(matches!(error, ConnectError::Resolve { .. } | ConnectError::Bind { .. }), "{error}");
}

#[test]
fn addresses_of_other_hosts_cannot_be_bound() {
    let world = World::new();
    let error = bind(&world, "192.0.2.1:0", BindOptions::default()).unwrap_err();
    assert!(matches!(error, ConnectError::Bind { .. }), "{error}");
    assert!(error.to_string().contains("192.0.2.1"), "{error}");
    let error = bind(&world, "no-such-host.invalid:0", BindOptions::default()).unwrap_err();
    assert!(matches!(error, ConnectError::Resolve { .. }), "{error}");
}

#[test]
fn fc_051_no_route_is_unreachable() {
    // A multicast address is never the end of a TCP connection, whatever the routes of this host.
    let world = World::new();
    let connecting = cm::connect("224.0.0.1:7471", &world.qp(), ConnParam::default()).unwrap();
    let error = connecting.wait(GUARD).unwrap_err();
    assert!(matches!(error, ConnectError::Unreachable { .. }), "{error}");
    assert!(error.to_string().contains("224.0.0.1:7471"), "{error}");
    assert_eq!(cm::EventKind::from(&error), cm::EventKind::Unreachable);
}

#[test]
fn fc_050_any_backlog_is_cheap() {
    let world = World::new();
    for backlog in [0, 1, 1024, 100_000, u32::MAX] {
        let config = ListenConfig::default().backlog(backlog);
        let listener = Listener::bind(&world.device, "127.0.0.1:0", config).unwrap();
        meet(&world, &listener, listener.local_addr());
    }
}

#[test]
fn fc_050_a_short_backlog_makes_clients_wait_not_fail() {
    let world = World::new();
    let config = ListenConfig::default().backlog(1);
    let listener = Listener::bind(&world.device, "127.0.0.1:0", config).unwrap();
    let clients: Vec<_> = (0..3)
        .map(|_| {
            cm::connect(listener.local_addr(), &world.qp(), ConnParam::default().timeout(GUARD))
                .unwrap()
        })
        .collect();
    // The program is slow; no more than the backlog waits in its queue.
    let started = Instant::now();
    while !format!("{listener:?}").contains("waiting: 1") {
        assert!(started.elapsed() < GUARD);
        std::thread::sleep(Duration::from_millis(1));
    }
    std::thread::sleep(QUIET);
    assert!(format!("{listener:?}").contains("waiting: 1"));
    let mut accepted = Vec::new();
    for _ in 0..3 {
        let request = listener.accept(GUARD).unwrap();
        accepted.push(request.accept(&world.qp(), ConnParam::default()).unwrap());
    }
    for connecting in clients.into_iter().chain(accepted) {
        connecting.wait(GUARD).unwrap();
    }
}

#[test]
fn waiting_for_a_request_has_a_limit() {
    let world = World::new();
    let listener = world.listener();
    let error = listener.accept(Duration::from_millis(20)).unwrap_err();
    assert!(matches!(error, ConnectError::NoRequest { .. }), "{error}");
    assert!(error.to_string().contains(&listener.local_addr().to_string()), "{error}");
    assert!(listener.try_accept().is_none());
}
