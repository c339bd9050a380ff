//! Instructions of small messages there and back, over TCP: what the thread of both ends does, system calls left out.
//!
//! One thread plays both ends in turn, so that a message is always there when it is looked for: one poll finds it.
//! `docs/performance-micro.md` tells what has to be installed.
#![allow(clippy::unwrap_used, reason = "a failed step is a failed benchmark")]
#![allow(missing_docs, reason = "the macros make public items")]

use std::hint::black_box;

use gungraun::{library_benchmark, library_benchmark_group, main};
use iwarp_verbs::cm::{self, ConnParam, Connection, ListenConfig, Listener};
use iwarp_verbs::{
    Access, CompletionQueue, Device, DeviceConfig, MemoryRegion, QpConfig, QueuePair, RecvRequest,
    RemoteMemory, SendRequest,
};

/// Rounds of one benchmark, so that what is done once does not count.
const ROUNDS: u64 = 64;

/// Octets of a message.
const SIZE: usize = 64;

/// A request that no completion follows gives its place back with the next one that has one.
const SIGNAL_EVERY: u64 = 32;

struct End {
    cq: CompletionQueue,
    qp: QueuePair,
    memory: MemoryRegion,
    peer: RemoteMemory,
    #[expect(dead_code, reason = "kept until the end")]
    connection: Connection,
}

/// What the ends do with a message.
#[derive(Clone, Copy)]
enum Work {
    Write,
    Send,
}

impl End {
    fn send(&self, work: Work, round: u64) {
        let mut message = [7; SIZE];
        message[SIZE - 8..].copy_from_slice(&round.to_ne_bytes());
        let request = match work {
            Work::Write => SendRequest::write_inline(round, message, self.peer),
            Work::Send => SendRequest::send_inline(round, message),
        };
        let silent = !round.is_multiple_of(SIGNAL_EVERY);
        self.qp.post_send(if silent { request.unsignaled() } else { request }).unwrap();
    }

    fn post_recv(&self) {
        self.qp.post_recv(RecvRequest::new(0, self.memory.slice(..SIZE).unwrap())).unwrap();
    }

    /// Polls until the message of this round is here.
    fn take(&self, work: Work, round: u64) {
        loop {
            let received = self.cq.poll_one().is_some_and(|wc| wc.opcode.is_receive());
            let marked = self.memory.load_u64(SIZE - 8).unwrap() == round;
            match work {
                Work::Write if marked => return,
                Work::Send if received => {
                    assert!(marked, "another message than was sent");
                    return self.post_recv();
                }
                _ => {}
            }
        }
    }
}

/// Two ends that have talked for a while: the library's thread leaves them alone.
fn connected(work: Work) -> [End; 2] {
    let device = Device::open(DeviceConfig::default()).unwrap();
    let pd = device.alloc_pd();
    let listener = Listener::bind(&device, "127.0.0.1:0", ListenConfig::default()).unwrap();
    let ends = [(); 2].map(|()| {
        let cq = device.create_cq(64).unwrap();
        let qp = pd.create_qp(&QpConfig::new(&cq)).unwrap();
        let memory = pd.alloc(SIZE, Access::LOCAL_WRITE | Access::REMOTE_WRITE).unwrap();
        (cq, qp, memory)
    });
    let [(_, active, near), (_, passive, far)] = &ends;
    let (near, far) = (near.remote(), far.remote());
    let connecting = cm::connect(listener.local_addr(), active, ConnParam::default()).unwrap();
    let request = listener.accept(None).unwrap();
    let accepting = request.accept(passive, ConnParam::default()).unwrap();
    let connections = [connecting.wait(None).unwrap(), accepting.wait(None).unwrap()];
    let mut ends = ends
        .into_iter()
        .zip([far, near])
        .zip(connections)
        .map(|(((cq, qp, memory), peer), connection)| End { cq, qp, memory, peer, connection });
    let ends = [ends.next().unwrap(), ends.next().unwrap()];
    for end in &ends {
        (0..8).for_each(|_| end.post_recv());
    }
    play(&ends, work, 1);
    ends
}

fn play([here, there]: &[End; 2], work: Work, first: u64) {
    for round in first..first + ROUNDS {
        here.send(work, round);
        there.take(work, round);
        there.send(work, round);
        here.take(work, round);
    }
}

#[library_benchmark]
#[bench::write(args = (Work::Write), setup = connected)]
fn write(ends: [End; 2]) -> [End; 2] {
    play(black_box(&ends), Work::Write, 1 + ROUNDS);
    ends
}

#[library_benchmark]
#[bench::send(args = (Work::Send), setup = connected)]
fn send(ends: [End; 2]) -> [End; 2] {
    play(black_box(&ends), Work::Send, 1 + ROUNDS);
    ends
}

library_benchmark_group!(name = ping_pong; benchmarks = write, send);
main!(library_benchmark_groups = ping_pong);
