//! The network as the sockets above it see it.

use std::io::ErrorKind;
use std::net::SocketAddr;

use super::*;
use crate::sys::{Socket, Sockets};

fn addr(text: &str) -> SocketAddr {
    text.parse().unwrap()
}

fn listener(network: &MemoryNetwork, at: &str, backlog: u32) -> Socket {
    let socket = Sockets::new(Some(network.clone()), None).open(&addr(at)).unwrap();
    socket.bind(&addr(at)).unwrap();
    socket.listen(backlog).unwrap();
    socket
}

fn dial(network: &MemoryNetwork, to: SocketAddr) -> io::Result<Socket> {
    let socket = Sockets::new(Some(network.clone()), None).open(&to)?;
    assert!(socket.connect(&to)?, "connected at once");
    Ok(socket)
}

/// The initiator's end and the responder's.
fn pair(network: &MemoryNetwork) -> (Socket, Socket) {
    let listener = listener(network, "127.0.0.1:0", 1);
    let here = dial(network, listener.local_addr().unwrap()).unwrap();
    (here, listener.accept().unwrap().0)
}

fn kind<T: fmt::Debug>(result: io::Result<T>) -> ErrorKind {
    result.unwrap_err().kind()
}

/// Sends `octets` and receives them at the other end, in steps of at most the given lengths. Gives the places
/// where a read ended though more was there, and where an attempt was to find nothing.
fn carry(from: &Socket, to: &Socket, octets: &[u8], steps: [usize; 2]) -> [Vec<usize>; 4] {
    let [mut read_ends, mut write_ends, mut read_waits, mut write_waits] =
        [const { Vec::new() }; 4];
    let (mut sent, mut received) = (0, 0);
    let mut into = vec![0; steps[1]];
    while received < octets.len() {
        let piece = &octets[sent..octets.len().min(sent + steps[0])];
        match from.send(piece) {
            Ok(some) => {
                sent += some;
                if some < piece.len() {
                    write_ends.push(sent);
                }
            }
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::WouldBlock);
                assert!(from.writes_again());
                write_waits.push(sent);
            }
        }
        while received < sent {
            match to.recv(&mut into) {
                Ok(some) => {
                    assert_eq!(into[..some], octets[received..received + some]);
                    received += some;
                    if some < into.len() && received < sent {
                        read_ends.push(received);
                    }
                }
                Err(error) => {
                    assert_eq!(error.kind(), ErrorKind::WouldBlock);
                    assert!(to.reads_again());
                    read_waits.push(received);
                }
            }
        }
        // Nothing is there: a look that is too early uses up no attempt, and is announced.
        assert_eq!(kind(to.recv(&mut into)), ErrorKind::WouldBlock);
        assert!(!to.reads_again() && to.try_recv(&mut into).is_none());
    }
    [read_ends, write_ends, read_waits, write_waits]
}

#[test]
fn the_same_seed_cuts_at_the_same_octets_whatever_the_steps() {
    let octets: Vec<u8> = (0..4000_u32).map(|at| (at % 251) as u8).collect();
    let faults = Faults::none()
        .cut_reads(Cuts::of(1..=40).waits(0..=2))
        .cut_writes(Cuts::of(1..=90).waits(0..=1));
    let carried = |seed, steps| {
        let network = MemoryNetwork::new(seed).faults(faults.clone());
        let (here, there) = pair(&network);
        let there_and_back =
            [carry(&here, &there, &octets, steps), carry(&there, &here, &octets, steps)];
        assert_eq!(network.connections()[0].sent, [4000, 4000]);
        assert_eq!(network.connections()[0].received, [4000, 4000]);
        there_and_back
    };
    let whole = carried(9, [4000, 4000]);
    let [there, back] = &whole;
    assert!(there.iter().chain(back).all(|places| places.len() > 20), "{whole:?}");
    assert_ne!(there, back, "each direction has its own");
    assert_eq!(carried(9, [4000, 4000]), whole);
    assert_ne!(carried(10, [4000, 4000]), whole);
    for steps in [[1, 4000], [4000, 1], [7, 3], [100, 64]] {
        let [stepped, _] = carried(9, steps);
        // Steps end where they like, but never beyond a cut; and attempts wait at the same octets.
        for (ends, all) in stepped[..2].iter().zip(&there[..2]) {
            assert!(ends.iter().all(|end| all.contains(end)), "{steps:?}: {ends:?}");
        }
        assert_eq!(stepped[2..], there[2..], "{steps:?}");
    }
}

#[test]
fn a_drop_comes_at_its_octet_and_at_no_other() {
    for loss in [Loss::Reset, Loss::Close] {
        for octet in [0, 1, 99, 100] {
            for direction in Direction::BOTH {
                let network =
                    MemoryNetwork::new(1).faults(Faults::none().drop_at(direction, octet, loss));
                let (initiator, responder) = pair(&network);
                let (from, to) = match direction {
                    Direction::ToResponder => (initiator, responder),
                    Direction::ToInitiator => (responder, initiator),
                };
                let octets = usize::try_from(octet).unwrap();
                if octets > 0 {
                    // The other direction is not counted.
                    assert_eq!(to.send(&[1; 500]).unwrap(), 500);
                    assert_eq!(from.send(&[2; 60]).unwrap(), octets.min(60));
                }
                if octets > 60 {
                    assert_eq!(from.send(&[2; 200]).unwrap(), octets - 60);
                }
                let ends = |end: io::Result<usize>| match loss {
                    Loss::Reset => assert_eq!(kind(end), ErrorKind::ConnectionReset),
                    Loss::Close => assert_eq!(end.unwrap(), 0),
                };
                let refuses = |sent| match loss {
                    Loss::Reset => assert_eq!(kind(sent), ErrorKind::ConnectionReset),
                    Loss::Close => assert_eq!(kind(sent), ErrorKind::BrokenPipe),
                };
                refuses(from.send(&[3]));
                refuses(to.send(&[3]));
                let mut into = [0; 1000];
                if octets > 0 {
                    assert_eq!(to.recv(&mut into).unwrap(), octets);
                    assert_eq!(from.recv(&mut into).unwrap(), 500);
                }
                ends(to.recv(&mut into));
                ends(from.recv(&mut into));
                let reset = to.take_error().unwrap().map(|error| error.kind());
                assert_eq!(reset, (loss == Loss::Reset).then_some(ErrorKind::ConnectionReset));
                assert_eq!(network.connections()[0].dropped, Some((direction, octet, loss)));
            }
        }
    }
}

#[test]
fn faults_are_those_of_the_moment_of_connecting() {
    let network = MemoryNetwork::new(1);
    let (good, _peer) = pair(&network);
    network.set_faults(Faults::none().drop_at(Direction::ToResponder, 1, Loss::Reset));
    let (bad, _other) = pair(&network);
    network.set_faults(Faults::none());
    assert_eq!(good.send(b"fine").unwrap(), 4);
    assert_eq!(bad.send(b"fine").unwrap(), 1);
    // The n-th is the last.
    network.set_faults_of_next(2, Faults::none().drop_at(Direction::ToResponder, 1, Loss::Reset));
    let pairs = [(); 3].map(|()| pair(&network));
    assert_eq!(pairs.map(|(here, _there)| here.send(b"fine").unwrap()), [1, 1, 4]);
    let told = network.connections()[1].to_string();
    assert!(
        told.contains("1 to the responder")
            || told.contains("reset after octet 1 to the responder"),
        "{told}"
    );
}

#[test]
fn names_are_taken_found_and_freed() {
    let network = MemoryNetwork::new(1);
    let open = |at: &str| Sockets::new(Some(network.clone()), None).open(&addr(at)).unwrap();
    assert_eq!(kind(dial(&network, addr("192.0.2.1:5"))), ErrorKind::ConnectionRefused);

    let exact = listener(&network, "192.0.2.1:5", 4);
    let any = listener(&network, "0.0.0.0:6", 4);
    assert_eq!(kind(open("0.0.0.0:0").bind(&addr("0.0.0.0:5"))), ErrorKind::AddrInUse);
    assert_eq!(kind(open("[::]:0").bind(&addr("[::]:5"))), ErrorKind::AddrInUse);
    // FC-052
    let six = open("[::]:0");
    six.set_v6_only(true).unwrap();
    six.bind(&addr("[::]:5")).unwrap();

    let to_exact = dial(&network, addr("192.0.2.1:5")).unwrap();
    let (accepted, peer) = exact.accept().unwrap();
    assert_eq!(peer, to_exact.local_addr().unwrap());
    assert_eq!(accepted.local_addr().unwrap(), addr("192.0.2.1:5"));
    assert_eq!(accepted.peer_addr().unwrap(), peer);
    assert_eq!(to_exact.peer_addr().unwrap(), addr("192.0.2.1:5"));
    assert_ne!(peer.port(), 0);

    let to_any = dial(&network, addr("198.51.100.7:6")).unwrap();
    assert_eq!(any.accept().unwrap().0.local_addr().unwrap(), addr("198.51.100.7:6"));
    drop((any, to_any));
    assert_eq!(kind(dial(&network, addr("198.51.100.7:6"))), ErrorKind::ConnectionRefused);
    open("0.0.0.0:0").bind(&addr("0.0.0.0:6")).unwrap();

    // Another network is another world.
    assert_eq!(
        kind(dial(&MemoryNetwork::new(1), addr("192.0.2.1:5"))),
        ErrorKind::ConnectionRefused
    );
}

#[test]
fn a_listener_for_both_families_shows_ipv4_peers_as_mapped() {
    let network = MemoryNetwork::new(1);
    let both = listener(&network, "[::]:5", 4);
    let here = dial(&network, addr("192.0.2.9:5")).unwrap();
    let (there, peer) = both.accept().unwrap();
    assert_eq!(there.local_addr().unwrap(), addr("[::ffff:192.0.2.9]:5"));
    assert_eq!(peer.port(), here.local_addr().unwrap().port());
    assert!(peer.is_ipv6() && here.local_addr().unwrap().is_ipv4());
}

#[test]
fn a_full_backlog_is_to_be_tried_again_and_a_listener_that_goes_resets_who_waits() {
    let network = MemoryNetwork::new(1);
    let one = listener(&network, "127.0.0.1:0", 1);
    let to = one.local_addr().unwrap();
    assert_eq!(kind(one.accept()), ErrorKind::WouldBlock);
    let first = dial(&network, to).unwrap();
    assert_eq!(kind(dial(&network, to)), ErrorKind::WouldBlock);
    let (there, _) = one.accept().unwrap();
    let second = dial(&network, to).unwrap();
    drop(one);
    assert_eq!(kind(second.recv(&mut [0; 8])), ErrorKind::ConnectionReset);
    // FIN by closing, after what was sent.
    there.send(b"bye").unwrap();
    drop(there);
    assert_eq!(first.recv(&mut [0; 8]).unwrap(), 3);
    assert_eq!(first.recv(&mut [0; 8]).unwrap(), 0);
}

#[test]
fn an_abort_is_a_reset_at_the_other_end() {
    let (here, there) = pair(&MemoryNetwork::new(1));
    here.send(b"last").unwrap();
    here.abort().unwrap();
    assert_eq!(there.recv(&mut [0; 8]).unwrap(), 4);
    assert_eq!(kind(there.recv(&mut [0; 8])), ErrorKind::ConnectionReset);
    assert_eq!(kind(there.peer_addr()), ErrorKind::NotConnected);
}

#[test]
fn half_a_close_leaves_the_other_direction_open() {
    let (here, there) = pair(&MemoryNetwork::new(1));
    here.shutdown_write().unwrap();
    assert_eq!(there.recv(&mut [0; 8]).unwrap(), 0);
    there.send(b"still").unwrap();
    assert_eq!(here.recv(&mut [0; 8]).unwrap(), 5);
}
