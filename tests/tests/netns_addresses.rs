//! Addresses in hosts of unusual shape: equal link-local addresses on two links, one family only, loopback only.
#![allow(clippy::unwrap_used, reason = "a failed step is a failed test")]

use std::net::{SocketAddr, TcpListener};

use iwarp_tests::{
    child::{Child, GUARD, listen, own_binary, role, tell},
    netns::{Host, Hosts},
    skip,
};
use iwarp_verbs::{
    Device, DeviceConfig, QpConfig, QueuePair,
    cm::{self, BindOptions, ConnParam, ConnectError, ListenConfig, Listener},
};

/// A device, and queue pairs of it.
struct End {
    device: Device,
}

impl End {
    fn new() -> Self {
        Self { device: Device::open(DeviceConfig::default()).unwrap() }
    }

    fn qp(&self) -> QueuePair {
        let cq = self.device.create_cq(16).unwrap();
        self.device.alloc_pd().create_qp(&QpConfig::new(&cq)).unwrap()
    }

    fn listener(&self, at: &str) -> Result<Listener, ConnectError> {
        Listener::bind(&self.device, at, ListenConfig::default())
    }

    /// Connects through a listener of this process, and says where the two ends were.
    fn meet(&self, listener: &Listener, at: &str) -> [SocketAddr; 2] {
        let connecting = cm::connect(at, &self.qp(), ConnParam::default()).unwrap();
        let request = listener.accept(GUARD).unwrap();
        let accepting = request.accept(&self.qp(), ConnParam::default()).unwrap();
        let (client, server) = (connecting.wait(GUARD).unwrap(), accepting.wait(GUARD).unwrap());
        assert_eq!(client.peer_addr().port(), listener.local_addr().port());
        [server.local_addr(), server.peer_addr()]
    }
}

/// Runs this test once more on a host, in a role, and waits for its end.
fn run_on(hosts: &Hosts, name: &str, role: &str) {
    let mut command = hosts.command(Host::A, own_binary());
    let mut child = Child::start(Child::again_command(&mut command, name, role));
    let ended = child.wait();
    assert!(ended.status.success(), "{role}: {}", ended.stderr);
}

/// FC-053: two links, and at each of them the same two addresses. What tells them apart is the scope.
#[test]
fn fc_053_equal_addresses_on_two_links() {
    const NAME: &str = "fc_053_equal_addresses_on_two_links";
    const LINKS: [&str; 2] = ["one", "two"];
    match role().as_deref() {
        Some("listens") => return listens_on_both(LINKS),
        Some("connects") => return connects_over_both(LINKS),
        _ => {}
    }
    let hosts = match Hosts::make() {
        Ok(hosts) => hosts,
        Err(reason) => skip!(reason),
    };
    for link in LINKS {
        let holder = hosts.process(Host::B);
        hosts.run(Host::A, &format!("ip link add {link} type veth peer name {link}-b"));
        hosts.run(Host::A, &format!("ip link set {link}-b netns {holder}"));
        hosts.run(Host::B, &format!("ip link set {link}-b name {link}"));
        for (host, address) in [(Host::A, "fe80::a"), (Host::B, "fe80::b")] {
            if !hosts.succeeds(host, &format!("ip address add {address}/64 dev {link} nodad")) {
                skip!("this machine has no IPv6");
            }
            hosts.run(host, &format!("ip link set {link} up"));
        }
    }
    let start = |host, role| {
        let mut command = hosts.command(host, own_binary());
        Child::start(Child::again_command(&mut command, NAME, role))
    };
    let mut a = start(Host::A, "listens");
    assert_eq!(a.hear(), "listening");
    let mut b = start(Host::B, "connects");
    assert_eq!(b.hear(), "done");
    a.say("done");
    for child in [&mut a, &mut b] {
        let ended = child.wait();
        assert!(ended.status.success(), "{}", ended.stderr);
    }
}

fn listens_on_both(links: [&str; 2]) {
    let end = End::new();
    // The same address and port, twice; and each only once.
    let listeners = links.map(|link| end.listener(&format!("[fe80::a%{link}]:7471")).unwrap());
    let again = end.listener(&format!("[fe80::a%{}]:7471", links[0])).unwrap_err();
    assert!(matches!(again, ConnectError::Bind { .. }), "{again}");
    let without = end.listener("[fe80::a]:7472").unwrap_err();
    assert!(without.to_string().contains("needs its interface"), "{without}");
    tell("listening");
    for (link, listener) in links.iter().zip(&listeners) {
        let request = listener.accept(GUARD).unwrap();
        let (SocketAddr::V6(local), SocketAddr::V6(peer)) =
            (request.local_addr(), request.peer_addr())
        else {
            panic!("{request:?}");
        };
        // Addresses of the connection keep the scope, so that they can be used again.
        assert!(local.scope_id() != 0 && local.scope_id() == peer.scope_id(), "{request:?}");
        assert_eq!(request.private_data(), link.as_bytes());
        request.reject(link.as_bytes()).unwrap();
    }
    assert_eq!(listen(), "done");
}

fn connects_over_both(links: [&str; 2]) {
    let end = End::new();
    for link in links {
        let param = ConnParam::default().private_data(link);
        let at = format!("[fe80::a%{link}]:7471");
        let error = cm::connect(at, &end.qp(), param).unwrap().wait(GUARD).unwrap_err();
        assert_eq!(error.private_data(), link.as_bytes(), "{error}");
    }
    tell("done");
}

/// FC-054, FC-056: only loopback is up; with both families, and with either alone.
#[test]
fn fc_056_either_family_alone_is_enough() {
    const NAME: &str = "fc_056_either_family_alone_is_enough";
    match role().as_deref() {
        Some("both") => return both_families(),
        Some("IPv4") => return only_ipv4(),
        Some("IPv6") => return only_ipv6(),
        _ => {}
    }
    let hosts = match Hosts::make() {
        Ok(hosts) => hosts,
        Err(reason) => skip!(reason),
    };
    hosts.run(Host::A, "ip link set lo up");
    if hosts.succeeds(Host::A, "ip -6 address show dev lo to ::1") && has_ipv6() {
        run_on(&hosts, NAME, "both");
        hosts.run(Host::A, "ip address delete 127.0.0.1/8 dev lo");
        run_on(&hosts, NAME, "IPv6");
        hosts.run(Host::A, "ip address add 127.0.0.1/8 dev lo");
        hosts.run(Host::A, "ip address delete ::1/128 dev lo");
    } else {
        eprintln!("skipped in part: this machine has no IPv6");
    }
    run_on(&hosts, NAME, "IPv4");
}

fn has_ipv6() -> bool {
    TcpListener::bind("[::1]:0").is_ok()
}

fn both_families() {
    let end = End::new();
    for at in ["127.0.0.1", "127.0.0.2", "localhost", "[::1]"] {
        let listener = end.listener(&format!("{at}:0")).unwrap();
        let port = listener.local_addr().port();
        end.meet(&listener, &format!("{at}:{port}"));
    }
    // FC-052: one port, a listener for each family.
    let config = ListenConfig::default().bind(BindOptions::default().v6_only(true));
    let v6 = Listener::bind(&end.device, "[::]:0", config).unwrap();
    let port = v6.local_addr().port();
    let v4 = end.listener(&format!("0.0.0.0:{port}")).unwrap();
    assert!(end.meet(&v4, &format!("127.0.0.1:{port}")).iter().all(SocketAddr::is_ipv4));
    assert!(end.meet(&v6, &format!("[::1]:{port}")).iter().all(SocketAddr::is_ipv6));
}

fn only_ipv4() {
    let end = End::new();
    for at in ["127.0.0.1", "0.0.0.0", "localhost"] {
        let listener = end.listener(&format!("{at}:0")).unwrap();
        let port = listener.local_addr().port();
        end.meet(&listener, &format!("127.0.0.1:{port}"));
        // A name that has an IPv6 address as well leads to the one that works.
        end.meet(&listener, &format!("localhost:{port}"));
    }
    let error = end.listener("[::1]:0").unwrap_err();
    assert!(matches!(error, ConnectError::Bind { .. }), "{error}");
    // Whatever the routes say: there is nowhere to connect from.
    let connecting = cm::connect("[::1]:7471", &end.qp(), ConnParam::default()).unwrap();
    let error = connecting.wait(GUARD).unwrap_err();
    assert!(matches!(error, ConnectError::Unreachable { .. }), "{error}");
}

fn only_ipv6() {
    let end = End::new();
    for at in ["[::1]", "[::]"] {
        let listener = end.listener(&format!("{at}:0")).unwrap();
        let port = listener.local_addr().port();
        end.meet(&listener, &format!("[::1]:{port}"));
    }
    let error = end.listener("127.0.0.1:0").unwrap_err();
    assert!(matches!(error, ConnectError::Bind { .. }), "{error}");
}
