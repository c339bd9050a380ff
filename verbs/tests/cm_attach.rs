//! MPA over TCP connections that exist already, in both roles.
#![allow(clippy::unwrap_used, reason = "a failed step is a failed test")]

mod cm_support;

use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::OwnedFd;
use std::time::Instant;

use cm_support::*;
use iwarp_mpa::{Revision, RtrTypes, StartupFrame};
use iwarp_verbs::cm::{
    self, Attach, BindOptions, ConnParam, ConnectError, Connecting, EventKind, Id, Phase, Role,
};
use iwarp_verbs::{
    Access, Device, DeviceConfig, QpConfig, QpState, QueuePair, RecvRequest, SendRequest, WcStatus,
};

/// Both ends of a plain TCP connection.
fn streams() -> [TcpStream; 2] {
    let (listener, addr) = raw_listener();
    let near = TcpStream::connect(addr).unwrap();
    [near, listener.accept().unwrap().0]
}

fn failure(connecting: Connecting) -> ConnectError {
    connecting.wait(GUARD).unwrap_err()
}

/// The queue pair of a set-up that has failed follows soon.
fn ends_in_error(qp: &QueuePair) {
    let started = Instant::now();
    while qp.state() != QpState::Err {
        assert!(started.elapsed() < GUARD, "{qp:?}");
        std::thread::yield_now();
    }
}

// MPA-002
#[test]
fn mpa_002_a_stream_in_use_becomes_a_connection() {
    let world = World::new();
    let region = world.pd.alloc(64, Access::LOCAL_WRITE).unwrap();
    let [mut near, mut far] = streams();
    // Something else comes first, in both directions.
    near.write_all(b"upgrade\n").unwrap();
    let mut line = [0; 8];
    far.read_exact(&mut line).unwrap();
    far.write_all(b"go on\n").unwrap();
    near.read_exact(&mut line[..6]).unwrap();

    let (here, there) = (world.qp(), world.qp());
    there.post_recv(RecvRequest::new(1, region.as_slice_all())).unwrap();
    let expected = (near.local_addr().unwrap(), near.peer_addr().unwrap());
    let param = ConnParam::default().private_data(b"hello").ird(3).ord(2);
    let connecting = cm::attach(near, Role::Initiator, &here, param).unwrap();
    let param = ConnParam::default().private_data(b"welcome");
    let accepting = cm::attach(far, Role::Responder, &there, param).unwrap();
    let (client, server) = (connecting.wait(GUARD).unwrap(), accepting.wait(GUARD).unwrap());
    assert_eq!((client.local_addr(), client.peer_addr()), expected);
    assert_eq!((server.peer_addr(), server.local_addr()), expected);
    assert_eq!((client.private_data(), server.private_data()), (&b"welcome"[..], &b"hello"[..]));
    assert_eq!((client.revision(), client.ird(), client.ord(), server.ord()), (2, 3, 2, 3));

    client.qp().post_send(SendRequest::send_inline(2, b"ping").unsignaled()).unwrap();
    let [arrived] = world.completions(1).try_into().unwrap();
    assert_eq!((arrived.wr_id, arrived.status, arrived.byte_len), (1, WcStatus::Success, 4));
    client.disconnect();
    assert!(server.wait_closed(GUARD).unwrap().is_orderly());
}

// MPA-002
#[test]
fn mpa_002_what_was_read_too_far_is_not_lost() {
    let world = World::new();
    let region = world.pd.alloc(64, Access::LOCAL_WRITE).unwrap();
    // Of the Request, any part of it.
    let request = request_v2(4, 4, b"early");
    let octets = request.encode().unwrap();
    for cut in [0, 1, 16, 20, octets.len() - 1, octets.len()] {
        let [near, far] = streams();
        let mut peer = Peer::over(near);
        peer.send(&octets[cut..]);
        let stream = Attach::new(far).read_ahead(&octets[..cut]);
        let qp = world.qp();
        let accepting = cm::attach(stream, Role::Responder, &qp, ConnParam::default()).unwrap();
        assert!(!peer.read_reply().reject, "cut at {cut}");
        assert_eq!(accepting.wait(GUARD).unwrap().private_data(), b"early");
    }
    // Of the Reply, and of the FPDU behind it, which a peer sends that knows what is coming.
    let [near, far] = streams();
    let mut peer = Peer::over(far);
    let reply = StartupFrame { kind: iwarp_mpa::FrameKind::Reply, ..request_v1(b"late") };
    let mut octets = reply.encode().unwrap().to_vec();
    octets.extend(peer.send_fpdu(b"first"));
    let rest = octets.split_off(30);
    peer.send(&rest);
    let qp = world.qp();
    qp.post_recv(RecvRequest::new(1, region.as_slice_all())).unwrap();
    let param = ConnParam::default().revision(Revision::V1).rtr(RtrTypes::empty());
    let stream = Attach::new(near).read_ahead(octets);
    let connection = cm::attach(stream, Role::Initiator, &qp, param).unwrap().wait(GUARD).unwrap();
    assert_eq!((connection.private_data(), connection.revision()), (&b"late"[..], 1));
    assert_eq!(world.completions(1)[0].byte_len, 5);
    assert_eq!(peer.read_request().revision, 1);
}

#[test]
fn what_was_read_too_far_is_in_the_capture() {
    let file = std::env::temp_dir().join(format!("iwarp-{}-attached.pcap", std::process::id()));
    let device = Device::open(DeviceConfig::default().pcap(&file)).unwrap();
    let (pd, cq) = (device.alloc_pd(), device.create_cq(4).unwrap());
    let [near, far] = streams();
    let mut peer = Peer::over(near);
    let octets = request_v1(b"told already").encode().unwrap();
    peer.send(&octets[30..]);
    let qp = pd.create_qp(&QpConfig::new(&cq)).unwrap();
    let stream = Attach::new(far).read_ahead(&octets[..30]);
    let accepting = cm::attach(stream, Role::Responder, &qp, ConnParam::default()).unwrap();
    assert!(!peer.read_reply().reject);
    drop((peer, accepting, qp, cq, pd, device));
    // A thread writes it.
    let started = Instant::now();
    let count = |found: &[u8]| {
        let recorded = std::fs::read(&file).unwrap();
        recorded.windows(found.len()).filter(|window| *window == found).count()
    };
    while count(&octets) == 0 {
        assert!(started.elapsed() < GUARD, "the Request is not there in one piece");
        std::thread::yield_now();
    }
    assert_eq!(count(&octets), 1);
    std::fs::remove_file(&file).unwrap();
}

// MPA-022
#[test]
fn mpa_022_a_stream_that_does_not_turn_to_mpa_is_closed() {
    let world = World::new();
    // Leftovers of the other use, where MPA should begin.
    for read_ahead in [&b""[..], b"QUIT\r\n"] {
        let [near, far] = streams();
        let mut peer = Peer::over(near);
        if read_ahead.is_empty() {
            peer.send(b"GET / HTTP/1.1\r\n\r\n");
        }
        let qp = world.qp();
        let stream = Attach::new(far).read_ahead(read_ahead);
        let accepting = cm::attach(stream, Role::Responder, &qp, ConnParam::default()).unwrap();
        let error = failure(accepting);
        assert!(matches!(error, ConnectError::Protocol { .. }), "{error}");
        assert_eq!(error.errno(), 71);
        peer.expect_end();
        ends_in_error(&qp);
    }
    // MPA-008: both ends believe to be the initiator; MPA-026.
    let [near, far] = streams();
    let ends = [near, far].map(|stream| {
        cm::attach(stream, Role::Initiator, &world.qp(), ConnParam::default()).unwrap()
    });
    for end in ends {
        // Who reads second may find the stream closed.
        let error = failure(end);
        assert!(
            matches!(error, ConnectError::Protocol { .. } | ConnectError::Closed { .. }),
            "{error}"
        );
    }
}

// MPA-009
#[test]
fn mpa_009_a_responder_does_not_wait_for_ever() {
    let world = World::new();
    let [near, far] = streams();
    let mut peer = Peer::over(near);
    let param = ConnParam::default().timeout(SHORT);
    let error = failure(cm::attach(far, Role::Responder, &world.qp(), param).unwrap());
    assert!(matches!(error, ConnectError::TimedOut { phase: Phase::Request, .. }), "{error}");
    peer.expect_end();

    let [near, far] = streams();
    drop(near);
    let error =
        failure(cm::attach(far, Role::Responder, &world.qp(), ConnParam::default()).unwrap());
    assert!(matches!(error, ConnectError::Closed { phase: Phase::Request, .. }), "{error}");
    assert_eq!(EventKind::from(&error), EventKind::ConnectError);
}

#[test]
fn only_tcp_connections_can_be_attached() {
    let world = World::new();
    let qp = world.qp();
    let attach = |stream: OwnedFd| {
        let error = cm::attach(stream, Role::Initiator, &qp, ConnParam::default()).unwrap_err();
        assert!(matches!(error, ConnectError::NotConnected(_)), "{error}");
        error.errno()
    };
    let (file, udp) = (tempfile(), UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap());
    let (unix, _other) = std::os::unix::net::UnixStream::pair().unwrap();
    let listening = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let errnos = [file, udp.into(), unix.into(), listening.into()].map(attach);
    // ENOTSOCK, EPROTOTYPE, EAFNOSUPPORT, ENOTCONN
    assert_eq!(errnos, [88, 91, 97, 107]);
    assert_eq!(qp.state(), QpState::Init);
    // The queue pair can be used; and with one that cannot, the stream goes.
    let [near, far] = streams();
    let _connecting = cm::attach(near, Role::Initiator, &qp, ConnParam::default()).unwrap();
    drop(far);
    let [near, far] = streams();
    let error = cm::attach(near, Role::Initiator, &qp, ConnParam::default()).unwrap_err();
    assert!(matches!(error, ConnectError::QueuePair(_)), "{error}");
    Peer::over(far).expect_end();
}

/// Some descriptor that is no socket.
fn tempfile() -> OwnedFd {
    std::fs::File::open("/dev/null").unwrap().into()
}

#[test]
fn ids_attach_too() {
    let world = World::new();
    let channel = world.channel();
    let [near, far] = streams();
    let (active, passive) = (Id::new(&channel), Id::new(&channel));
    let (here, there) = (world.qp(), world.qp());
    passive.attach(far, Role::Responder, &there, ConnParam::default()).unwrap();
    assert!(passive.disconnect().unwrap_err().to_string().contains("accepting"));
    let param = ConnParam::default().private_data(b"volume 7");
    active.attach(near, Role::Initiator, &here, param).unwrap();
    for _ in 0..2 {
        let event = expect(&channel, EventKind::Established);
        assert!(event.private_data.is_empty() || event.id == passive, "{event:?}");
        // FC-013: nobody has seen the initiator's before.
        assert_eq!(event.id == passive, &event.private_data[..] == b"volume 7");
    }
    active.disconnect().unwrap();
    expect(&channel, EventKind::Disconnected);
    expect(&channel, EventKind::Disconnected);

    // FC-044, FC-046: an id is used once, and dropping it gives the set-up up.
    let [near, far] = streams();
    let error = active.attach(near, Role::Initiator, &world.qp(), ConnParam::default());
    assert!(error.unwrap_err().to_string().contains("is over"));
    Peer::over(far).expect_end();
    let bound = Id::new(&channel);
    bound.bind("127.0.0.1:0", BindOptions::default()).unwrap();
    let [near, _far] = streams();
    let error = bound.attach(near, Role::Initiator, &world.qp(), ConnParam::default());
    assert!(error.unwrap_err().to_string().contains("bound"));
    for role in [Role::Initiator, Role::Responder] {
        let [near, far] = streams();
        let (id, qp) = (Id::new(&channel), world.qp());
        id.attach(near, role, &qp, ConnParam::default()).unwrap();
        drop(id);
        let mut peer = Peer::over(far);
        let _ = peer.stream.read_to_end(&mut Vec::new());
        ends_in_error(&qp);
    }
    expect_none(&channel);
}
