//! Instructions of the steps that no clock can time: a completion's way through its queue, and a placement.
//!
//! No connection exists, so no other thread runs beside the one that is counted. `docs/performance-micro.md`
//! tells what has to be installed.
#![allow(clippy::unwrap_used, reason = "a failed step is a failed benchmark")]
#![allow(missing_docs, reason = "the macros make public items")]

use std::hint::black_box;

use gungraun::{library_benchmark, library_benchmark_group, main};
use iwarp_verbs::{
    Access, CompletionQueue, Device, DeviceConfig, MemoryRegion, ProtectionDomain, QpConfig,
    QpState, QueuePair, SendRequest, WorkCompletion, micro,
};

/// Requests of one benchmark, so that what is done once does not count.
const REQUESTS: u64 = 64;

/// A queue pair that flushes what is posted, and room for what it reports.
fn flushing() -> (CompletionQueue, QueuePair, Vec<WorkCompletion>) {
    let device = Device::open(DeviceConfig::default()).unwrap();
    let cq = device.create_cq(256).unwrap();
    let qp = device.alloc_pd().create_qp(&QpConfig::new(&cq)).unwrap();
    qp.modify(QpState::Err).unwrap();
    let mut queues = (cq, qp, Vec::with_capacity(256));
    // Rings grow with their first use.
    post_each(&mut queues.1);
    poll_all(&mut queues);
    queues
}

/// As [`flushing`], with completions to be polled.
fn flushed() -> (CompletionQueue, QueuePair, Vec<WorkCompletion>) {
    let mut queues = flushing();
    post_each(&mut queues.1);
    queues
}

fn post_each(qp: &mut QueuePair) {
    for id in 0..REQUESTS {
        qp.post_send(SendRequest::send(id, ())).unwrap();
    }
}

fn poll_all((cq, _, out): &mut (CompletionQueue, QueuePair, Vec<WorkCompletion>)) {
    out.clear();
    assert_eq!(cq.poll(out) as u64, REQUESTS);
}

// Posting, flushing, and the completion's way into the queue.
#[library_benchmark]
#[bench::one_by_one(setup = flushing)]
fn post_and_push(
    mut queues: (CompletionQueue, QueuePair, Vec<WorkCompletion>),
) -> (CompletionQueue, QueuePair, Vec<WorkCompletion>) {
    post_each(black_box(&mut queues.1));
    queues
}

#[library_benchmark]
#[bench::all_at_once(setup = flushed)]
fn poll(
    mut queues: (CompletionQueue, QueuePair, Vec<WorkCompletion>),
) -> (CompletionQueue, QueuePair, Vec<WorkCompletion>) {
    poll_all(black_box(&mut queues));
    queues
}

#[library_benchmark]
#[bench::one_by_one(setup = flushed)]
fn poll_one(
    queues: (CompletionQueue, QueuePair, Vec<WorkCompletion>),
) -> (CompletionQueue, QueuePair, Vec<WorkCompletion>) {
    for _ in 0..REQUESTS {
        assert!(black_box(queues.0.poll_one()).is_some());
    }
    queues
}

/// A region among a thousand others, and octets to be written to it.
fn to_place(len: usize) -> (ProtectionDomain, MemoryRegion, Vec<MemoryRegion>, Vec<u8>) {
    let device = Device::open(DeviceConfig::default()).unwrap();
    let pd = device.alloc_pd();
    let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
    let others = (0..1000).map(|_| pd.alloc(64, access).unwrap()).collect();
    let region = pd.alloc(len, access).unwrap();
    (pd, region, others, vec![0x5a; len])
}

// Key look-up, all checks, and the copy.
#[library_benchmark]
#[bench::small(args = (64), setup = to_place)]
#[bench::long(args = (16_000), setup = to_place)]
fn place(
    memory: (ProtectionDomain, MemoryRegion, Vec<MemoryRegion>, Vec<u8>),
) -> (ProtectionDomain, MemoryRegion, Vec<MemoryRegion>, Vec<u8>) {
    let (pd, region, _, octets) = &memory;
    let remote = region.remote();
    for _ in 0..REQUESTS {
        assert!(micro::place(black_box(pd), remote.rkey, remote.addr, black_box(octets)));
    }
    memory
}

library_benchmark_group!(name = steps; benchmarks = post_and_push, poll, poll_one, place);
main!(library_benchmark_groups = steps);
