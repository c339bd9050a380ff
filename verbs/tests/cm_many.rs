//! Hundreds of set-ups at once, both ends in one process.
#![allow(clippy::unwrap_used, reason = "a failed step is a failed test")]

mod cm_support;

use cm_support::*;
use iwarp_verbs::cm::{self, ConnParam, ConnectError, EventKind, Id, Listener};
use iwarp_verbs::{Access, RecvRequest, SendRequest, WcStatus};

/// At least this many connections, unless the limit of descriptors is in the way.
const CONNECTIONS: usize = 200;

/// Two sockets a connection, and some for the rest.
fn affordable() -> usize {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
    let room = limit.map_or(usize::MAX, |limit| usize::try_from(limit).unwrap());
    let affordable = room.saturating_sub(100) / 3;
    if affordable < CONNECTIONS {
        println!("only {affordable} connections: the process may have {room} descriptors");
    }
    affordable.min(CONNECTIONS)
}

#[test]
fn two_hundred_connections_at_once() {
    let count = affordable();
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
    let count = affordable() / 4;
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
