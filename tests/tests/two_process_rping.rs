//! The examples `rping`, `rdma_client` and `rdma_server`: between two processes, and with a scripted peer that says what
//! rdma-core's programs say, octet by octet, or something else.
#![allow(missing_docs, clippy::unwrap_used, reason = "test code; a panic is a failed test")]

use std::{net::TcpListener, process::Command};

use iwarp_mpa::StartupFrame;
use iwarp_tests::{
    child::{Child, Ended, example},
    peer::{
        Heard, Peer, PeerListener, ReadRequest, depths, read_response, reply, request, send, write,
    },
};

/// The first ping of rdma-core's client, as it was seen on the wire.
const PING_0: &[u8; 64] = b"rdma-ping-0: ABCDEFGHIJKLMNOPQRSTUVWXYZ[\\]^_`abcdefghijklmnopqr\0";
const GO_AHEAD: [u8; 16] = [0; 16];

fn start(name: &str, arguments: &[&str]) -> Child {
    Child::start(Command::new(example(name)).args(arguments))
}

/// A server on a free port of this address, and its port.
fn serving(name: &str, address: &[&str], arguments: &[&str]) -> (Child, String) {
    let mut server = start(name, &[address, &["-p", "0"], arguments].concat());
    let mut line = server.line();
    if line == format!("{name}: start") {
        line = server.line();
    }
    let addr = line.strip_prefix("listening on ").expect("where");
    let port = addr.rsplit(':').next().expect("a port").to_owned();
    (server, port)
}

fn rping_server(arguments: &[&str]) -> (Child, String) {
    serving("rping", &["-s", "-a", "127.0.0.1"], arguments)
}

fn rping_client(port: &str, arguments: &[&str]) -> Ended {
    start("rping", &[&["-c", "-a", "127.0.0.1", "-p", port], arguments].concat()).wait()
}

fn assert_fails(ended: &Ended, says: &str) {
    assert_eq!(ended.status.code(), Some(1), "{ended:?}");
    let line = ended.stderr.trim_end();
    assert_eq!(line.lines().count(), 1, "one line: {line}");
    assert!(line.starts_with("rping: ") && line.contains(says), "{line}");
}

/// Letters of a ping of `size` octets.
fn text(number: usize, size: usize) -> String {
    let front = format!("rdma-ping-{number}: ");
    let letters = (0..size - 1 - front.len()).map(|at| (b'A'..=b'z').nth((number + at) % 58));
    front + &letters.map(|letter| char::from(letter.unwrap())).collect::<String>()
}

#[test]
fn pings_of_all_sizes_come_back_and_are_told_as_users_know_it() {
    for size in [23, 64, 1000, 4096, 65_535] {
        let size_text = size.to_string();
        let (mut server, port) = rping_server(&["-v", "-V", "-C", "3"]);
        let ended = rping_client(&port, &["-vV", "-C3", "-S", &size_text]);
        assert!(ended.status.success() && ended.stderr.is_empty(), "{ended:?}");
        let lines = |front| (0..3).map(|n| format!("{front}{}", text(n, size))).collect::<Vec<_>>();
        assert_eq!(ended.stdout.lines().collect::<Vec<_>>(), lines("ping data: "));
        let ended = server.wait();
        assert!(ended.status.success() && ended.stderr.is_empty(), "{ended:?}");
        assert_eq!(ended.stdout.lines().collect::<Vec<_>>(), lines("server ping data: "));
    }
}

#[test]
fn letters_and_numbers_go_on_beyond_their_first_round() {
    let (mut server, port) = rping_server(&["-V"]);
    let ended = rping_client(&port, &["-v", "-V", "-C", "130"]);
    assert!(ended.status.success(), "{ended:?}");
    assert_eq!(ended.stdout.lines().count(), 130);
    assert_eq!(ended.stdout.lines().last(), Some(&*format!("ping data: {}", text(129, 64))));
    let ended = server.wait();
    assert!(ended.status.success() && ended.stdout.is_empty(), "{ended:?}");
}

#[test]
fn over_ipv6_and_with_everything_on_the_wire_that_can_be() {
    let wire = ["--markers", "--fpdu-limit", "512"];
    for (address, wire) in [("::1", &[][..]), ("127.0.0.1", &wire), ("127.0.0.1", &["--no-crc"])] {
        let (mut server, port) =
            serving("rping", &["-s", "-a", address], &[&["-V"], wire].concat());
        let client = ["-c", "-a", address, "-p", &port, "-C", "2", "-V", "-S", "5000"];
        let ended = start("rping", &[&client, wire].concat()).wait();
        assert!(ended.status.success(), "{address} {wire:?}: {ended:?}");
        assert!(server.wait().status.success());
    }
    let (mut server, port) = rping_server(&["-V"]);
    let ended = rping_client(&port, &["-C", "2", "-V", "--mpa-revision", "1"]);
    assert!(ended.status.success(), "{ended:?}");
    assert!(server.wait().status.success());
}

#[test]
fn steps_are_told_on_standard_error() {
    let (mut server, port) = rping_server(&["-d"]);
    let ended = rping_client(&port, &["-d", "-C", "1"]);
    for told in ["IRD 1, ORD 1", "source advertised", "has written the sink", "closed in order"] {
        assert!(ended.stderr.contains(told), "{told}: {ended:?}");
    }
    assert!(ended.stdout.is_empty(), "{ended:?}");
    let ended = server.wait();
    for told in ["asks to connect", "the source is read", "has left after 1 pings"] {
        assert!(ended.stderr.contains(told), "{told}: {ended:?}");
    }
}

#[test]
fn a_server_misses_pings_it_was_told_to_expect() {
    let (mut server, port) = rping_server(&["-C", "5"]);
    assert!(rping_client(&port, &["-C", "3"]).status.success());
    assert_fails(&server.wait(), "the client left after 3 of 5 pings");
    // More are welcome.
    let (mut server, port) = rping_server(&["-C", "2"]);
    assert!(rping_client(&port, &["-C", "3"]).status.success());
    assert!(server.wait().status.success());
}

#[test]
fn a_persistent_server_outlives_its_clients() {
    let (mut server, port) = rping_server(&["-P", "-V", "-S", "100"]);
    let endless = ["-c", "-a", "127.0.0.1", "-p", &port, "-v"];
    let mut lost = start("rping", &endless);
    assert_eq!(lost.line(), format!("ping data: {}", text(0, 64)));
    // At the same time, and one whose pings are too long.
    assert!(rping_client(&port, &["-C", "20", "-V"]).status.success());
    assert_fails(&rping_client(&port, &["-C", "20", "-S", "101"]), "went away");
    lost.kill();
    assert!(rping_client(&port, &["-C", "20", "-V"]).status.success());
    assert!(server.is_running());
    server.kill();
    let told = server.wait().stderr;
    assert!(told.contains("rping: client 127.0.0.1:"), "{told}");
    assert!(told.contains("101 octets, and at most 100 are taken"), "{told}");
}

#[test]
fn what_cannot_be_is_refused_in_one_line() {
    let nobody = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = nobody.local_addr().unwrap().port().to_string();
    let ended = start("rping", &["-s", "-a", "127.0.0.1", "-p", &port]).wait();
    assert_fails(&ended, "cannot listen: cannot bind to 127.0.0.1:");
    drop(nobody);
    assert_fails(&rping_client(&port, &[]), "refused the connection: nothing listens there");

    let (mut server, port) = rping_server(&["-S", "64"]);
    assert_fails(&rping_client(&port, &["-S", "65"]), "went away too early");
    assert_fails(&server.wait(), "ping 0: 65 octets, and at most 64 are taken");
}

#[test]
fn wrong_usage_is_told_apart() {
    for arguments in [
        &[][..],
        &["-c"],
        &["-s", "-c", "-a", "::1"],
        &["-c", "-P", "-a", "::1"],
        &["-s", "-S", "22"],
        &["-s", "-S", "65536"],
        &["-s", "-C", "-1"],
        &["-s", "--mpa-revision", "1"],
    ] {
        let ended = start("rping", arguments).wait();
        assert_eq!(ended.status.code(), Some(2), "{arguments:?}: {ended:?}");
    }
    let help = start("rping", &["--help"]).wait().stdout;
    for option in ["-s", "-c", "-a", "-p", "-C", "-S", "-v", "-V", "-d", "-P"] {
        assert!(help.contains(&format!("  {option}, --")), "{option}: {help}");
    }
}

// --- with a scripted peer ------------------------------------------------------------------------------------------

/// Starts a client that offers what siw offers: the peer-to-peer model is not in it.
fn start_as_on_siw(name: &str, arguments: &[&str]) -> Child {
    Child::start(Command::new(example(name)).args(arguments).env("IWARP_PEER_TO_PEER", "none"))
}

/// What rdma-core's client sends, and what its server answers: IRD and ORD of 1, no private data.
fn startup(frame: StartupFrame) -> StartupFrame {
    StartupFrame { enhanced: Some(depths(1, 1)), ..frame }
}

/// Address, key and length in a message of the client.
fn read_advert(ulpdu: &[u8], msn: u32) -> (u64, u32, u32) {
    let octets: [u8; 16] = ulpdu[18..].try_into().expect("16 octets of message");
    assert_eq!(ulpdu, send(msn, &octets), "a Send in one segment");
    let word = |at: usize| u32::from_be_bytes(octets[at..at + 4].try_into().unwrap());
    (u64::from_be_bytes(octets[..8].try_into().unwrap()), word(8), word(12))
}

fn advert(addr: u64, key: u32, len: u32) -> Vec<u8> {
    [&addr.to_be_bytes()[..], &key.to_be_bytes(), &len.to_be_bytes()].concat()
}

/// One ping of 64 octets by the client under test, with `pong` written back; how it ended.
fn client_gets(pong: &[u8], arguments: &[&str]) -> Ended {
    let listener = PeerListener::bind();
    let port = listener.addr().port().to_string();
    let client = ["-c", "-a", "127.0.0.1", "-p", &port, "-C", "1"];
    let mut client = start_as_on_siw("rping", &[&client, arguments].concat());
    let (mut server, asked) = listener.establish(&startup(reply()));
    assert_eq!(asked, startup(request()));

    let (addr, key, len) = read_advert(&server.hear_ulpdu(), 1);
    assert_eq!(len, 64);
    let read = ReadRequest {
        sink_stag: 0xc229_9d00,
        sink_offset: 0x5618_0e8a_e550,
        length: len,
        source_stag: key,
        source_offset: addr,
    };
    server.send(&read.ulpdu(1));
    let response = read_response(read.sink_stag, read.sink_offset, PING_0);
    assert_eq!(server.hear_ulpdu(), response);
    server.send(&send(1, &GO_AHEAD));

    let (addr, key, len) = read_advert(&server.hear_ulpdu(), 2);
    assert_eq!(len, 64);
    server.send(&write(key, addr, pong));
    server.send(&send(2, &GO_AHEAD));
    assert_eq!(server.hear(), Heard::Fin);
    drop(server);
    client.wait()
}

#[test]
fn a_client_says_what_that_of_rdma_core_says() {
    let ended = client_gets(PING_0, &["-V", "-v"]);
    assert!(ended.status.success(), "{ended:?}");
    assert_eq!(ended.stdout, format!("ping data: {}", text(0, 64)));
}

#[test]
fn a_client_sees_a_pong_that_is_not_its_ping() {
    let mut pong = *PING_0;
    pong[40] = b'!';
    assert_fails(
        &client_gets(&pong, &["-V"]),
        "ping 0: data mismatch: octet 40 is 0x21 and should be 0x5c",
    );
    // All of it counts, the octet behind the text too, and what was not written.
    let mut pong = *PING_0;
    pong[63] = b'!';
    assert_fails(&client_gets(&pong, &["-V"]), "data mismatch: octet 63");
    assert_fails(&client_gets(&PING_0[..50], &["-V"]), "data mismatch: octet 50");
    // Who does not ask is not told.
    let ended = client_gets(&pong, &["-v"]);
    assert!(ended.status.success() && ended.stdout.ends_with("pqr!"), "{ended:?}");
}

#[test]
fn a_client_whose_server_leaves_or_sends_something_else_fails() {
    for (said, told) in [
        (None, "went away too early"),
        (Some(&[0; 15][..]), "a message of 15 octets, where rping has 16"),
        (Some(&[0; 17]), "a message of 17 octets, where rping has 16"),
    ] {
        let listener = PeerListener::bind();
        let port = listener.addr().port().to_string();
        let client = ["-c", "-a", "127.0.0.1", "-p", &port];
        let mut client = start_as_on_siw("rping", &client);
        let (mut server, _) = listener.establish(&startup(reply()));
        read_advert(&server.hear_ulpdu(), 1);
        match said {
            None => server.half_close(),
            Some(octets) => server.send(&send(1, octets)),
        }
        assert_eq!(server.hear(), Heard::Fin);
        drop(server);
        assert_fails(&client.wait(), told);
    }
}

/// A server under test, and a connection to it whose start-up is done.
fn served(arguments: &[&str]) -> (Child, Peer) {
    let (server, port) = rping_server(arguments);
    let addr = format!("127.0.0.1:{port}").parse().unwrap();
    let (client, answer) = Peer::establish(addr, &startup(request()));
    assert_eq!(answer, startup(reply()));
    (server, client)
}

const SOURCE: (u64, u32) = (0x55ea_ce66_1370, 0x0180_1f00);
const SINK: (u64, u32) = (0x55ea_ce66_1550, 0x7c08_ed00);

/// Offers `ping` by the message `msn`, and lets the server read it.
fn offer(client: &mut Peer, msn: u32, ping: &[u8]) {
    let len = u32::try_from(ping.len()).unwrap();
    client.send(&send(msn, &advert(SOURCE.0, SOURCE.1, len)));
    let read = ReadRequest::parse(&client.hear_ulpdu()).expect("a Read Request");
    assert_eq!((read.source_offset, read.source_stag, read.length), (SOURCE.0, SOURCE.1, len));
    client.send(&read_response(read.sink_stag, read.sink_offset, ping));
}

#[test]
fn a_server_says_what_that_of_rdma_core_says() {
    let (mut server, mut client) = served(&["-v", "-V", "-C", "2"]);
    let second = text(1, 200) + "\0";
    for (number, ping) in (0_u32..).zip([PING_0, second.as_bytes()]) {
        offer(&mut client, 2 * number + 1, ping);
        assert_eq!(client.hear_ulpdu(), send(2 * number + 1, &GO_AHEAD));
        let len = u32::try_from(ping.len()).unwrap();
        client.send(&send(2 * number + 2, &advert(SINK.0, SINK.1, len)));
        assert_eq!(client.hear_ulpdu(), write(SINK.1, SINK.0, ping));
        assert_eq!(client.hear_ulpdu(), send(2 * number + 2, &GO_AHEAD));
    }
    client.half_close();
    assert_eq!(client.hear(), Heard::Fin);
    let ended = server.wait();
    assert!(ended.status.success(), "{ended:?}");
    let told = format!("server ping data: {}\nserver ping data: {}", text(0, 64), text(1, 200));
    assert_eq!(ended.stdout, told);
}

#[test]
fn a_server_sees_a_ping_that_is_none() {
    let mut ping = *PING_0;
    ping[13] = b'!';
    let (mut server, mut client) = served(&["-V"]);
    offer(&mut client, 1, &ping);
    assert_eq!(client.hear(), Heard::Fin);
    drop(client);
    assert_fails(&server.wait(), "ping 0: data mismatch: octet 13 is 0x21 and should be 0x41");

    // One that does not look sends it back as it is.
    let (mut server, mut client) = served(&[]);
    offer(&mut client, 1, &ping);
    assert_eq!(client.hear_ulpdu(), send(1, &GO_AHEAD));
    client.send(&send(2, &advert(SINK.0, SINK.1, 64)));
    assert_eq!(client.hear_ulpdu(), write(SINK.1, SINK.0, &ping));
    assert_eq!(client.hear_ulpdu(), send(2, &GO_AHEAD));
    drop(client);
    assert!(server.wait().status.success());
}

#[test]
fn a_server_whose_client_leaves_within_a_ping_or_sends_something_else_fails() {
    let (mut server, mut client) = served(&[]);
    offer(&mut client, 1, PING_0);
    assert_eq!(client.hear_ulpdu(), send(1, &GO_AHEAD));
    drop(client);
    assert_fails(&server.wait(), "ping 0: 127.0.0.1:");

    let (mut server, mut client) = served(&[]);
    offer(&mut client, 1, PING_0);
    assert_eq!(client.hear_ulpdu(), send(1, &GO_AHEAD));
    client.send(&send(2, &advert(SINK.0, SINK.1, 63)));
    assert_eq!(client.hear(), Heard::Fin);
    drop(client);
    assert_fails(&server.wait(), "ping 0: a sink of 63 octets for a ping of 64");

    let (mut server, mut client) = served(&[]);
    client.send(&send(1, &[0; 20]));
    assert_eq!(client.hear(), Heard::Fin);
    drop(client);
    assert_fails(&server.wait(), "a message of 20 octets, where rping has 16");

    // Also if it leaves at once, in order: the last word was none of rping's.
    let (mut server, mut client) = served(&[]);
    client.send(&send(1, &[0; 20]));
    client.half_close();
    assert_eq!(client.hear(), Heard::Fin);
    drop(client);
    assert_fails(&server.wait(), "a message of 20 octets, where rping has 16");
}

// --- rdma_client and rdma_server -----------------------------------------------------------------------------------

fn ends_with_0(name: &str, ended: &Ended) {
    assert!(ended.status.success() && ended.stderr.is_empty(), "{ended:?}");
    assert_eq!(ended.stdout.lines().last(), Some(&*format!("{name}: end 0")), "{ended:?}");
}

#[test]
fn rdma_client_and_rdma_server_exchange_a_message() {
    let (mut server, port) = serving("rdma_server", &[], &[]);
    let ended = start("rdma_client", &["-p", &port]).wait();
    assert_eq!(ended.stdout.lines().next(), Some("rdma_client: start"));
    ends_with_0("rdma_client", &ended);
    ends_with_0("rdma_server", &server.wait());

    let (mut server, port) = serving("rdma_server", &["-s", "::1"], &[]);
    ends_with_0("rdma_client", &start("rdma_client", &["-s", "::1", "-p", &port]).wait());
    ends_with_0("rdma_server", &server.wait());
    let ended = start("rdma_client", &["-p", &port]).wait();
    assert_eq!(ended.status.code(), Some(1), "{ended:?}");
    assert!(ended.stdout.ends_with("rdma_client: end -1"), "{ended:?}");
    assert!(ended.stderr.contains("refused the connection"), "{ended:?}");
}

#[test]
fn rdma_client_and_rdma_server_say_what_those_of_rdma_core_say() {
    let message = send(1, &[0; 16]);
    let listener = PeerListener::bind();
    let port = listener.addr().port().to_string();
    let mut client = start_as_on_siw("rdma_client", &["-p", &port]);
    let (mut server, asked) = listener.establish(&reply());
    assert!(asked.private_data.is_empty(), "{asked:?}");
    assert_eq!(server.hear_ulpdu(), message);
    server.send(&message);
    assert_eq!(server.hear(), Heard::Fin);
    drop(server);
    ends_with_0("rdma_client", &client.wait());

    let (mut server, port) = serving("rdma_server", &["-s", "127.0.0.1"], &[]);
    let addr = format!("127.0.0.1:{port}").parse().unwrap();
    let (mut client, answer) = Peer::establish(addr, &request());
    assert!(answer.private_data.is_empty(), "{answer:?}");
    client.send(&message);
    assert_eq!(client.hear_ulpdu(), message);
    assert_eq!(client.hear(), Heard::Fin);
    drop(client);
    ends_with_0("rdma_server", &server.wait());

    // A peer that leaves without a word.
    let (mut server, port) = serving("rdma_server", &["-s", "127.0.0.1"], &[]);
    let addr = format!("127.0.0.1:{port}").parse().unwrap();
    let (client, _) = Peer::establish(addr, &request());
    drop(client);
    let ended = server.wait();
    assert_eq!(ended.status.code(), Some(1), "{ended:?}");
    assert!(ended.stderr.starts_with("rdma_server: lost 127.0.0.1:"), "{ended:?}");
}
