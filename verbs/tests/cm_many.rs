//! Hundreds of set-ups at once, both ends in one process.
#![allow(clippy::unwrap_used, reason = "a failed step is a failed test")]

mod cm_support;

use std::net::SocketAddr;
use std::time::Instant;

use cm_support::*;
use iwarp_verbs::cm::{self, ConnParam, ConnectError, EventKind, Id, Listener};
use iwarp_verbs::{Access, QpState, RecvRequest, SendRequest, WcStatus};

/// At least this many connections, unless the limit of descriptors is in the way.
const CONNECTIONS: usize = 200;

/// Two sockets a connection, and some for the rest.
fn affordable(wanted: usize) -> usize {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
    let room = limit.map_or(usize::MAX, |limit| usize::try_from(limit).unwrap());
    let affordable = room.saturating_sub(100) / 3;
    if affordable < wanted {
        println!("only {affordable} connections: the process may have {room} descriptors");
    }
    affordable.min(wanted)
}

#[test]
fn two_hundred_connections_at_once() {
    let count = affordable(CONNECTIONS);
    let world = World::new();
    let listener = world.listener();
    let region = world.pd.alloc(16 * count, Access::LOCAL_WRITE).unwrap();
    let clients: Vec<_> = (0..count)
        .map(|number| {
            let param = ConnParam::default().private_data(number.to_be_bytes()).timeout(GUARD);
            cm::connect(listener.local_addr(), &world.qp(), param).unwrap()
        })
        .collect();
    let servers: Vec<_> = (0..count)
        .map(|slot| {
            let request = listener.accept(GUARD).unwrap();
            let number = usize::from_be_bytes(request.private_data().try_into().unwrap());
            let qp = world.qp();
            let slice = region.slice(16 * slot..16 * slot + 16).unwrap();
            qp.post_recv(RecvRequest::new(number as u64, slice)).unwrap();
            let answer = number.to_le_bytes();
            request.accept(&qp, ConnParam::default().private_data(answer).timeout(GUARD)).unwrap()
        })
        .collect();
    let clients: Vec<_> = clients
        .into_iter()
        .enumerate()
        .map(|(number, connecting)| {
            let connection = connecting.wait(GUARD).unwrap();
            assert_eq!(connection.private_data(), number.to_le_bytes());
            connection
        })
        .collect();
    let servers: Vec<_> =
        servers.into_iter().map(|accepting| accepting.wait(GUARD).unwrap()).collect();

    // Each carries its own message.
    for (number, client) in clients.iter().enumerate() {
        let text = number.to_be_bytes();
        client.qp().post_send(SendRequest::send_inline(0, text).unsignaled()).unwrap();
    }
    let mut numbers: Vec<_> = world
        .completions(count)
        .iter()
        .map(|wc| {
            assert_eq!((wc.status, wc.byte_len), (WcStatus::Success, 8));
            usize::try_from(wc.wr_id).unwrap()
        })
        .collect();
    numbers.sort_unstable();
    assert_eq!(numbers, (0..count).collect::<Vec<_>>());

    // And all of them end.
    for client in &clients {
        client.disconnect();
    }
    for connection in clients.iter().chain(&servers) {
        assert!(connection.wait_closed(GUARD).is_some());
    }
}

#[test]
fn many_that_fail_do_not_disturb_many_that_succeed() {
    let world = World::new();
    let channel = world.channel();
    let listener: Listener = world.listener();
    let (_hold, refused) = closed_port();
    let count = affordable(CONNECTIONS) / 4;
    let ids: Vec<_> = (0..count)
        .map(|_| {
            let (id, qp) = (Id::new(&channel), world.qp());
            id.connect(refused, &qp, ConnParam::default()).unwrap();
            (id, qp)
        })
        .collect();
    let clients: Vec<_> = (0..count)
        .map(|_| {
            let param = ConnParam::default().timeout(GUARD);
            cm::connect(listener.local_addr(), &world.qp(), param).unwrap()
        })
        .collect();
    let mut servers = Vec::new();
    for number in 0..count {
        let request = listener.accept(GUARD).unwrap();
        if number % 2 == 0 {
            request.reject(b"odd ones only").unwrap();
        } else {
            servers.push(request.accept(&world.qp(), ConnParam::default()).unwrap());
        }
    }
    let mut rejected = 0;
    let mut connected = Vec::new();
    for connecting in clients {
        match connecting.wait(GUARD) {
            Ok(connection) => connected.push(connection),
            Err(ConnectError::Rejected { private_data, .. }) => {
                assert_eq!(&private_data[..], b"odd ones only");
                rejected += 1;
            }
            Err(error) => panic!("{error}"),
        }
    }
    assert_eq!((connected.len(), rejected), (count / 2, count - count / 2));
    for server in servers {
        server.wait(GUARD).unwrap();
    }
    for _ in 0..count {
        expect(&channel, EventKind::Rejected);
    }
    expect_none(&channel);
    drop(ids);
}

/// A listener whose queue is full: the system lets nobody in, and says nothing.
fn blackhole() -> (socket2::Socket, Vec<socket2::Socket>, SocketAddr) {
    let (full, addr) = closed_port();
    full.listen(0).unwrap();
    let mut waiting = Vec::new();
    loop {
        let client = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None);
        let client = client.unwrap();
        let connected = client.connect_timeout(&addr.into(), SHORT);
        waiting.push(client);
        if connected.is_err() {
            return (full, waiting, addr);
        }
        assert!(waiting.len() < 64, "no limit is in force");
    }
}

#[test]
fn fc_044_a_thousand_connects_to_a_blackhole() {
    let count = affordable(1000);
    let (_full, _waiting, addr) = blackhole();
    let world = World::new();
    let channel = world.channel();
    let param = ConnParam::default().timeout(GUARD * 10);
    // Each call would last for minutes if it waited.
    let started = Instant::now();
    let region = world.pd.alloc(8, Access::LOCAL_WRITE).unwrap();
    let attempts: Vec<_> = (0..count)
        .map(|number| {
            let (id, qp) = (Id::new(&channel), world.qp());
            qp.post_recv(RecvRequest::new(number as u64, region.as_slice_all())).unwrap();
            id.connect(addr, &qp, param.clone()).unwrap();
            (id, qp)
        })
        .collect();
    expect_none(&channel);
    for (id, _) in &attempts {
        assert!(id.disconnect().unwrap_err().to_string().contains("connecting"));
    }
    // Others are not held up by them.
    let listener = world.listener();
    let connecting = cm::connect(listener.local_addr(), &world.qp(), param).unwrap();
    let request = listener.accept(GUARD).unwrap();
    let accepting = request.accept(&world.qp(), ConnParam::default()).unwrap();
    connecting.wait(GUARD).unwrap();
    accepting.wait(GUARD).unwrap();
    // Half of them are destroyed, half are dropped; nothing is heard of any, but their receives come back.
    for (number, (id, qp)) in attempts.into_iter().enumerate() {
        if number % 2 == 0 {
            id.destroy().unwrap();
        } else {
            drop(id);
        }
        assert_eq!(qp.state(), QpState::Err);
        let flushed = world.completions(1);
        assert_eq!((flushed[0].wr_id, flushed[0].status), (number as u64, WcStatus::WrFlushErr));
    }
    expect_none(&channel);
    assert!(started.elapsed() < GUARD);
    channel.destroy().unwrap();
}

#[test]
fn requests_may_be_accepted_by_other_threads() {
    const CLIENTS: usize = 4;
    const EACH: usize = 8;
    let ends = Ends::new();
    let listener = ends.world.listener();
    std::thread::scope(|scope| {
        let (world, passive, listener) = (&ends.world, &ends.passive, &listener);
        // One thread takes events, and never answers itself; another one accepts.
        let (events, to_answer) = std::sync::mpsc::channel::<cm::Event>();
        scope.spawn(move || {
            let requests = std::iter::repeat_with(|| passive.wait_event(GUARD).unwrap())
                .filter(|event| event.kind == EventKind::ConnectRequest);
            requests.take(CLIENTS * EACH).for_each(|event| events.send(event).unwrap());
        });
        scope.spawn(move || {
            for event in to_answer {
                let qp = world.qp();
                event.id.accept(&qp, ConnParam::default().private_data(b"an id")).unwrap();
                // Kept until the peer has left.
                scope.spawn(move || {
                    while qp.state() != QpState::Err {
                        std::thread::yield_now();
                    }
                    drop(event);
                });
            }
        });
        // The same in the other style.
        let (requests, to_accept) = std::sync::mpsc::channel::<cm::ConnectRequest>();
        scope.spawn(move || {
            for _ in 0..CLIENTS * EACH {
                requests.send(listener.accept(GUARD).unwrap()).unwrap();
            }
        });
        scope.spawn(move || {
            for request in to_accept {
                let qp = world.qp();
                let param = ConnParam::default().private_data(b"a value");
                let accepting = request.accept(&qp, param).unwrap();
                // And a third one waits for what comes of it.
                scope.spawn(move || {
                    let connection = accepting.wait(GUARD).unwrap();
                    assert!(connection.wait_closed(GUARD).is_some());
                });
            }
        });
        for _ in 0..CLIENTS {
            let (by_id, by_value) = (ends.addr(), listener.local_addr());
            scope.spawn(move || {
                for _ in 0..EACH {
                    for (addr, answer) in [(by_id, &b"an id"[..]), (by_value, b"a value")] {
                        let param = ConnParam::default().timeout(GUARD);
                        let connecting = cm::connect(addr, &world.qp(), param).unwrap();
                        assert_eq!(connecting.wait(GUARD).unwrap().private_data(), answer);
                    }
                }
            });
        }
    });
}
