//! More connections on one completion queue than an empty poll tries.

use std::sync::atomic::Ordering;
use std::thread;

use super::*;
use crate::wr::SendRequest;

/// More than a poll tries by far.
const MANY: usize = 24;

/// Connected pairs; all of one side share their completion queues. Sockets take whole messages.
fn many(setup: &Setup, n: usize) -> Vec<Pair> {
    let first = setup.ends();
    let sibling = |of: &End| {
        let config = QpConfig::new(&of.send_cq)
            .recv_cq(&of.recv_cq)
            .max_send_wr(64)
            .max_recv_wr(64)
            .max_inline_data(512);
        End {
            device: of.device.clone(),
            pd: of.pd.clone(),
            send_cq: of.send_cq.clone(),
            recv_cq: of.recv_cq.clone(),
            qp: of.pd.create_qp(&config).expect("a queue pair"),
        }
    };
    let mut pairs: Vec<_> =
        (1..n).map(|_| Pair { a: sibling(&first.a), b: sibling(&first.b) }).collect();
    pairs.push(first);
    for pair in &pairs {
        let (left, right) = wide_tcp_pair();
        setup.start(&pair.b, right, Role::Responder);
        setup.start(&pair.a, left, Role::Initiator);
    }
    pairs
}

/// What one side sends has room at the other before anybody reads.
pub(super) fn wide_tcp_pair() -> (TcpStream, TcpStream) {
    use socket2::{Domain, Socket, Type};

    let listener = Socket::new(Domain::IPV4, Type::STREAM, None).expect("a socket");
    listener.set_recv_buffer_size(6 << 20).expect("a size");
    let any: std::net::SocketAddr = "127.0.0.1:0".parse().expect("an address");
    listener.bind(&any.into()).expect("a port");
    listener.listen(1).expect("a listener");
    let address = listener.local_addr().expect("bound").as_socket().expect("of IPv4");
    let left = TcpStream::connect(address).expect("a connection");
    let (right, _) = listener.accept().expect("the same");
    (left, right.into())
}

/// The program posts a few on each, and then only polls: those that polls do not try are sent as well.
#[test]
fn requests_gathered_on_many_connections_are_sent_while_the_program_polls() {
    let pairs = many(&Setup { signal_all: true, ..Setup::default() }, MANY);
    let far = pairs[0].b.region(8);
    let cq = &pairs[0].a.send_cq;
    for pair in &pairs {
        pair.a.qp.0.inner.gather.always.store(true, Ordering::Relaxed);
    }
    for pair in &pairs {
        for id in 0..3 {
            let request = SendRequest::write_inline(id, [1; 8], far.remote());
            pair.a.qp.post_send(request).unwrap();
        }
    }
    // Each empty poll tries one of those that have lost their place.
    let polls = 100 * MANY;
    let sent = (0..polls).filter_map(|_| cq.poll_one()).filter(WorkCompletion::is_success).count();
    assert_eq!(sent, 3 * MANY, "after {polls} polls");
}

/// As `until`, but it gives nobody else a turn: the driver might take a pause for the end of the polls.
#[track_caller]
fn without_a_pause(what: &str, mut so: impl FnMut() -> bool) {
    let start = Instant::now();
    while !so() {
        assert!(start.elapsed() < HANG, "still waiting for {what}");
    }
}

/// Passes end in the middle of messages that are all in the sockets already, and nothing announces the
/// rest; the target polls all the time.
#[test]
fn long_writes_into_many_connections_arrive_while_the_program_polls() {
    const LEN: usize = 1 << 20;
    let pairs = many(&Setup::default(), MANY);
    let near = pairs[0].a.region(LEN);
    let fars: Vec<_> = pairs.iter().map(|pair| pair.b.region(LEN)).collect();
    let cq = &pairs[0].b.recv_cq;
    for round in 1..=8 {
        for _ in 0..50 {
            assert!(cq.poll_one().is_none());
        }
        near.store_u64(LEN - 8, round).unwrap();
        thread::scope(|scope| {
            scope.spawn(|| {
                for (pair, far) in pairs.iter().zip(&fars) {
                    let request = SendRequest::write(round, near.as_slice_all(), far.remote());
                    pair.a.qp.post_send(request).unwrap();
                }
            });
            without_a_pause("all of them", || {
                assert!(cq.poll_one().is_none());
                fars.iter().all(|far| far.load_u64(LEN - 8).unwrap() == round)
            });
        });
        for _ in 0..MANY {
            assert!(poll(&pairs[0].a.send_cq).is_success());
        }
    }
}

/// When few are left, a poll tries all of them again, though some had no place before.
#[test]
fn those_that_are_left_are_tried_by_every_poll() {
    let mut pairs = many(&Setup::default(), MANY);
    let cq = pairs[0].b.recv_cq.clone();
    for pair in pairs.drain(4..) {
        pair.b.qp.destroy().expect("not destroyed yet");
    }
    assert!(!cq.inner().is_crowded());
    let near = pairs[0].a.pattern(64, 1);
    for pair in &pairs {
        let far = pair.b.region(64);
        pair.a.qp.post_send(SendRequest::write(1, near.as_slice_all(), far.remote())).unwrap();
        until("the octets", || cq.poll_one().is_none() && content(&far) == content(&near));
    }
}
