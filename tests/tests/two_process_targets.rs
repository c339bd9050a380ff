//! A target in another process: one that polls, one that sleeps, one that spins, one whose runtime is gone, one that is
//! killed, and many connections at once. The target is this test binary once more.
#![allow(
    missing_docs,
    clippy::unwrap_used,
    clippy::cast_possible_truncation,
    reason = "test code; a panic is a failed test"
)]

use std::{collections::HashSet, net::SocketAddr, thread, time::Duration};

use iwarp_tests::{
    child::{Child, GUARD, role, tell},
    live::next,
};
use iwarp_verbs::{
    Access, CompletionQueue, Device, DeviceConfig, MemoryRegion, ProtectionDomain, QpConfig,
    QpState, QueuePair, RecvRequest, RemoteMemory, SendRequest, WcStatus, WorkCompletion,
    cm::{self, ConnParam, Connection, ListenConfig, Listener},
};

const SHARED: usize = 1 << 20;
const RECEIVES: usize = 64;
const MESSAGE: usize = 64;

/// One side of a connection, with memory that the other may use.
struct Side {
    device: Device,
    pd: ProtectionDomain,
    cq: CompletionQueue,
    shared: MemoryRegion,
    inbox: MemoryRegion,
}

impl Side {
    fn new() -> Self {
        let device = Device::open(DeviceConfig::default()).unwrap();
        let pd = device.alloc_pd();
        let cq = device.create_cq(4096).unwrap();
        let open = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ;
        let shared = pd.alloc(SHARED, open).unwrap();
        let inbox = pd.alloc(RECEIVES * MESSAGE, Access::LOCAL_WRITE).unwrap();
        Self { device, pd, cq, shared, inbox }
    }

    fn qp(&self, receives: usize) -> QueuePair {
        let qp = self.pd.create_qp(&QpConfig::new(&self.cq)).unwrap();
        for id in 0..receives {
            self.post_receive(&qp, id);
        }
        qp
    }

    fn post_receive(&self, qp: &QueuePair, id: usize) {
        let room = self.inbox.slice(id * MESSAGE..(id + 1) * MESSAGE).unwrap();
        // Refused only after the end of the test's connection.
        let _ = qp.post_recv(RecvRequest::new(id as u64, room));
    }

    fn listen(&self) -> Listener {
        Listener::bind(&self.device, "127.0.0.1:0", ListenConfig::default()).unwrap()
    }

    /// Accepts one connection; its private data is the key of `shared`.
    fn accept(&self, listener: &Listener, receives: usize) -> (QueuePair, Connection) {
        let qp = self.qp(receives);
        let request = listener.accept(GUARD).unwrap();
        let key = ConnParam::default().private_data(self.shared.remote().to_bytes());
        let connection = request.accept(&qp, key).unwrap().wait(GUARD).unwrap();
        (qp, connection)
    }

    fn connect(&self, addr: SocketAddr, receives: usize) -> (QueuePair, Connection, RemoteMemory) {
        let qp = self.qp(receives);
        let connection = cm::connect(addr, &qp, ConnParam::default()).unwrap().wait(GUARD).unwrap();
        let key = RemoteMemory::from_bytes(connection.private_data().try_into().unwrap());
        (qp, connection, key)
    }
}

/// What the target does with its one connection.
fn target(kind: &str) {
    match kind {
        // Polls, and posts a receive for each that is used.
        "polls" => {
            let side = Side::new();
            let listener = side.listen();
            tell(listener.local_addr());
            let (qp, connection) = side.accept(&listener, RECEIVES);
            while connection.wait_closed(Duration::ZERO).is_none() {
                while let Some(completion) = side.cq.poll_one() {
                    if completion.is_success() && completion.opcode.is_receive() {
                        side.post_receive(&qp, usize::try_from(completion.wr_id).unwrap());
                    }
                }
            }
        }
        // Makes no call at all once it is connected.
        "sleeps" => {
            let side = Side::new();
            let listener = side.listen();
            tell(listener.local_addr());
            let _connection = side.accept(&listener, 0);
            tell("asleep");
            loop {
                thread::park();
            }
        }
        // Holds up the only thread of its own runtime.
        "spins" => {
            let runtime =
                tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async {
                let side = Side::new();
                let listener = side.listen();
                tell(listener.local_addr());
                let qp = side.qp(0);
                let key = ConnParam::default().private_data(side.shared.remote().to_bytes());
                let request = listener.next().await;
                let _connection = request.accept(&qp, key).unwrap().await.unwrap();
                tell("spinning");
                loop {
                    std::hint::spin_loop();
                }
            });
        }
        // Was set up in a runtime that does not exist any more.
        "lost its runtime" => {
            let side = Side::new();
            let runtime =
                tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            let _connection = runtime.block_on(async {
                let listener = side.listen();
                tell(listener.local_addr());
                let qp = side.qp(1);
                let key = ConnParam::default().private_data(side.shared.remote().to_bytes());
                let request = listener.next().await;
                let connection = request.accept(&qp, key).unwrap().await.unwrap();
                // A wait that the runtime was part of, too.
                let _ = tokio::time::timeout(Duration::from_millis(50), side.cq.next()).await;
                connection
            });
            drop(runtime);
            tell("alone");
            loop {
                thread::park();
            }
        }
        other => panic!("{other}"),
    }
}

/// Runs the target in another process, and connects to it.
fn start(test: &str, kind: &str) -> (Child, SocketAddr) {
    let mut child = Child::again(test, kind);
    let addr = child.hear().parse().unwrap();
    (child, addr)
}

/// Writes and reads back, many times and in many sizes, without any help of the target's program.
fn exercise(side: &Side, qp: &QueuePair, key: RemoteMemory) {
    let mut octets = vec![0; SHARED];
    for round in 0..40u64 {
        let length = (1 << (round % 20)) + usize::try_from(round).unwrap();
        let pattern: Vec<u8> =
            (0..length as u64).map(|at| (at ^ (at >> 8) ^ round).to_le_bytes()[0]).collect();
        let from = usize::try_from(round * 977).unwrap();
        side.shared.write_at(from, &pattern).unwrap();
        let there = key.slice(from as u64..(from + length) as u64).unwrap();
        let here = side.shared.slice(from..from + length).unwrap();
        qp.post_send(SendRequest::write(2 * round, here.clone(), there)).unwrap();
        assert_eq!(completed(&side.cq, 2 * round), WcStatus::Success);
        side.shared.fill(.., 0).unwrap();
        qp.post_send(SendRequest::read(2 * round + 1, here, there)).unwrap();
        assert_eq!(completed(&side.cq, 2 * round + 1), WcStatus::Success);
        side.shared.read_at(0, &mut octets).unwrap();
        assert!(octets[from..from + length] == pattern, "round {round}");
    }
}

fn completed(cq: &CompletionQueue, id: u64) -> WcStatus {
    let completion = next(cq);
    assert_eq!(completion.wr_id, id);
    completion.status
}

/// Design §4, promises: one-sided traffic goes on at a target whose program makes no call at all.
#[test]
fn a_target_that_sleeps() {
    a_target_that("a_target_that_sleeps", "sleeps");
}

/// The same, with a program that spins in its own runtime.
#[test]
fn a_target_that_spins_in_its_runtime() {
    a_target_that("a_target_that_spins_in_its_runtime", "spins");
}

/// The same, with a program that has dropped its runtime.
#[test]
fn a_target_that_lost_its_runtime() {
    a_target_that("a_target_that_lost_its_runtime", "lost its runtime");
}

fn a_target_that(test: &str, kind: &str) {
    if let Some(role) = role() {
        return target(&role);
    }
    let (mut child, addr) = start(test, kind);
    let side = Side::new();
    let (qp, connection, key) = side.connect(addr, 0);
    child.hear();
    exercise(&side, &qp, key);
    connection.disconnect();
    // The target's library answers the FIN, although its program does nothing.
    assert!(connection.wait_closed(GUARD).is_some_and(|reason| reason.is_orderly()));
}

/// Two processes, one awaits and one polls; every message and every octet arrives.
#[test]
fn one_polls_and_one_awaits() {
    if let Some(role) = role() {
        return target(&role);
    }
    let (mut child, addr) = start("one_polls_and_one_awaits", "polls");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let side = Side::new();
        let qp = side.qp(0);
        let connection = cm::connect(addr, &qp, ConnParam::default()).unwrap().await.unwrap();
        let key = RemoteMemory::from_bytes(connection.private_data().try_into().unwrap());
        let pattern: Vec<u8> =
            (0..SHARED as u32).map(|at| (at ^ (at >> 8)).to_le_bytes()[0]).collect();
        side.shared.write_at(0, &pattern).unwrap();
        for round in 0..10u64 {
            connection.write(side.shared.as_slice_all(), key).await.unwrap();
            for number in 0..20u64 {
                connection.send_inline((round * 20 + number).to_be_bytes()).await.unwrap();
            }
            side.shared.fill(.., 0).unwrap();
            connection.read(side.shared.as_slice_all(), key).await.unwrap();
            let mut octets = vec![0; SHARED];
            side.shared.read_at(0, &mut octets).unwrap();
            assert!(octets == pattern, "round {round}");
        }
        assert!(connection.close().await.is_orderly());
    });
    assert!(child.wait().status.success());
}

/// FC-033, FC-080, DDP-003, DDP-045: the other process is killed in the middle of everything. Each request of
/// the survivor completes once, in its order, and the end of the connection is told.
#[test]
fn a_target_that_is_killed() {
    if let Some(role) = role() {
        return target(&role);
    }
    for round in 0..5u64 {
        let (mut child, addr) = start("a_target_that_is_killed", "polls");
        let side = Side::new();
        let (qp, connection, key) = side.connect(addr, 10);
        let mut posted = 0;
        let mut ended: Vec<WorkCompletion> = Vec::new();
        // 1,000 requests and more, some of them on their way at the time of death.
        let kill_at = 300 + 150 * round;
        while qp.state() == QpState::Rts {
            while posted - (ended.len() as u64) < 40 {
                let part = 64 << 10;
                let here = side.shared.slice(..part).unwrap();
                let there = key.slice(..part as u64).unwrap();
                let request = match posted % 4 {
                    0 => SendRequest::read(posted, here, there),
                    1 | 2 => SendRequest::write(posted, here, there),
                    _ => SendRequest::send_inline(posted, [1; 40]),
                };
                qp.post_send(request).unwrap();
                posted += 1;
                if posted == kill_at {
                    child.kill();
                }
            }
            side.cq.poll(&mut ended);
        }
        // Often lost; but a process may die just when all is answered, and the system says FIN for it.
        assert!(connection.wait_closed(GUARD).is_some());
        while ended.len() < usize::try_from(posted).unwrap() + 10 {
            ended.push(next(&side.cq));
        }
        assert!(side.cq.poll_one().is_none(), "more completions than requests");
        let of = |receives: bool| {
            ended.iter().filter(move |it| it.opcode.is_receive() == receives).collect::<Vec<_>>()
        };
        let (sends, receives) = (of(false), of(true));
        assert!(sends.iter().map(|it| it.wr_id).eq(0..posted), "round {round}");
        assert!(receives.iter().map(|it| it.wr_id).eq(0..10), "round {round}");
        let flushed = sends.iter().position(|it| !it.is_success()).unwrap_or(sends.len());
        assert!(flushed >= 100, "the transfer had hardly begun");
        assert!(
            sends[flushed..].iter().chain(&receives).all(|it| it.status == WcStatus::WrFlushErr)
        );
        // FC-031: and so it goes on.
        qp.post_send(SendRequest::send_inline(posted, b"late")).unwrap();
        assert_eq!(completed(&side.cq, posted), WcStatus::WrFlushErr);
    }
}

/// The process that connects is killed; the one that listens goes on with others.
#[test]
fn an_initiator_that_is_killed() {
    if let Some(role) = role() {
        let side = Side::new();
        let (qp, _connection, key) = side.connect(role.parse().unwrap(), 0);
        tell("connected");
        loop {
            let all = side.shared.as_slice_all();
            qp.post_send(SendRequest::write(0, all, key)).unwrap();
            assert!(next(&side.cq).is_success());
        }
    }
    let side = Side::new();
    let listener = side.listen();
    for _ in 0..3 {
        let addr = listener.local_addr().to_string();
        let mut child = Child::again("an_initiator_that_is_killed", &addr);
        let (qp, connection) = side.accept(&listener, RECEIVES);
        assert_eq!(child.hear(), "connected");
        thread::sleep(Duration::from_millis(20));
        child.kill();
        // Between two FPDUs the end that the system makes looks like one in order.
        assert!(connection.wait_closed(GUARD).is_some());
        let flushed: Vec<u64> = (0..RECEIVES).map(|_| next(&side.cq).wr_id).collect();
        assert!(flushed.iter().copied().eq(0..RECEIVES as u64));
        assert_eq!(qp.state(), QpState::Err);
    }
}

/// FC-043, FC-039: 200 connections at once, on one completion queue at either end.
#[test]
fn two_hundred_connections() {
    const CONNECTIONS: usize = 200;
    if role().is_some() {
        let side = Side::new();
        let listener = side.listen();
        tell(listener.local_addr());
        let mut open = Vec::new();
        for _ in 0..CONNECTIONS {
            open.push(side.accept(&listener, 2));
        }
        // Each message goes back to whom it came from.
        let mut echoed = 0;
        while echoed < CONNECTIONS * 10 {
            let completion = next(&side.cq);
            assert!(completion.is_success(), "{completion:?}");
            if !completion.opcode.is_receive() {
                continue;
            }
            let mut octets = [0; 8];
            let number = open
                .iter()
                .position(|(qp, _)| qp.number() == completion.qp_num)
                .expect("a queue pair of ours");
            side.inbox
                .read_at(usize::try_from(completion.wr_id).unwrap() * MESSAGE, &mut octets)
                .unwrap();
            let (qp, _) = &open[number];
            side.post_receive(qp, usize::try_from(completion.wr_id).unwrap());
            qp.post_send(SendRequest::send_inline(0, octets)).unwrap();
            echoed += 1;
        }
        for (_, connection) in &open {
            connection.wait_closed(GUARD).unwrap();
        }
        return;
    }
    let (mut child, addr) = start("two_hundred_connections", "echoes");
    let side = Side::new();
    let pending: Vec<_> = (0..CONNECTIONS)
        .map(|_| {
            let qp = side.qp(2);
            let connecting = cm::connect(addr, &qp, ConnParam::default().timeout(GUARD)).unwrap();
            (qp, connecting)
        })
        .collect();
    let open: Vec<_> =
        pending.into_iter().map(|(qp, connecting)| (qp, connecting.wait(GUARD).unwrap())).collect();
    for round in 0..10u64 {
        for (number, (qp, _)) in open.iter().enumerate() {
            let message = (round * 1000 + number as u64).to_be_bytes();
            qp.post_send(SendRequest::send_inline(number as u64, message)).unwrap();
        }
        let (mut sent, mut answered) = (HashSet::new(), HashSet::new());
        while sent.len() < CONNECTIONS || answered.len() < CONNECTIONS {
            let completion = next(&side.cq);
            assert!(completion.is_success(), "{completion:?}");
            let seen = if completion.opcode.is_receive() { &mut answered } else { &mut sent };
            assert!(seen.insert(completion.qp_num), "twice");
            if completion.opcode.is_receive() {
                let (qp, _) = open.iter().find(|(qp, _)| qp.number() == completion.qp_num).unwrap();
                side.post_receive(qp, usize::try_from(completion.wr_id).unwrap());
            }
        }
    }
    for (_, connection) in &open {
        connection.disconnect();
    }
    let ended = child.wait();
    assert!(ended.status.success(), "{}", ended.stderr);
}
