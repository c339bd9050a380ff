//! What a queue pair tells of itself, and what it lets its peer do.
#![allow(clippy::unwrap_used, reason = "a failed step is a failed test")]

mod cm_support;

use cm_support::{GUARD, Side, connect};
use iwarp_verbs::cm::Connection;
use iwarp_verbs::{
    Access, Initiator, QpConfig, QpStats, QueuePair, RecvRequest, SendRequest, WcStatus,
};

/// Connects two queue pairs.
fn join(near: &QueuePair, far_side: &Side, far: &QueuePair) -> (Connection, Connection) {
    connect(&far_side.listen(), near, far)
}

#[test]
fn a_queue_pair_counts_what_happens_and_remembers_it() {
    let (near, far) = (Side::new(), Side::new());
    let a = near.pd.create_qp(&QpConfig::new(&near.cq)).unwrap();
    let b = far.pd.create_qp(&QpConfig::new(&far.cq)).unwrap();
    assert_eq!(a.stats(), QpStats::default(), "before there is a connection");
    b.post_recv(RecvRequest::new(1, far.region.slice(0..64).unwrap())).unwrap();
    let (near_end, far_end) = join(&a, &far, &b);

    let remote = far.region.remote();
    let local = |range| near.region.slice(range).unwrap();
    a.post_send(SendRequest::write(1, local(0..100), remote.slice(0..100).unwrap())).unwrap();
    a.post_send(SendRequest::write(2, local(0..100), remote.slice(0..100).unwrap())).unwrap();
    a.post_send(SendRequest::read(3, local(0..8), remote.slice(0..8).unwrap())).unwrap();
    a.post_send(SendRequest::send(4, local(0..9)).solicited()).unwrap();
    for wr_id in 1..=4 {
        let done = near.cq.wait(GUARD).unwrap().unwrap().ok().unwrap();
        assert_eq!(done.wr_id, wr_id);
    }
    far.cq.wait(GUARD).unwrap().unwrap().ok().unwrap();

    let live = b.stats();
    // The Write that opens a peer-to-peer connection is one more.
    assert_eq!((live.writes_received, live.reads_received, live.sends_received), (3, 1, 1));
    assert_eq!((live.crc_errors, live.terminates_received, live.terminates_sent), (0, 0, 0));
    let sent = a.stats();
    assert_eq!((sent.writes_sent, sent.reads_sent, sent.sends_sent), (3, 1, 1));
    assert_eq!((sent.fpdus_sent, sent.octets_sent), (live.fpdus_received, live.octets_received));
    assert_eq!((sent.fpdus_received, live.fpdus_sent), (1, 1), "the response to the Read");

    near_end.disconnect();
    far_end.wait_closed(GUARD).unwrap();
    near_end.wait_closed(GUARD).unwrap();
    // The end itself took a pass of somebody; what moved is what it was.
    let moved = |stats: &QpStats| {
        let passes = |name: &str| name.starts_with("passes_of") || name.starts_with("polls_with");
        stats.iter().filter(|(name, _)| !passes(name)).collect::<Vec<_>>()
    };
    assert_eq!(moved(&b.stats()), moved(&live), "kept beyond the end");
    assert_eq!(b.ending(), None, "nothing was wrong");
}

/// SEC-06, decision D7: a queue pair may refuse that its peer revokes keys of the whole domain.
#[test]
fn sec_06_a_peer_may_be_kept_from_revoking_keys() {
    for allowed in [true, false] {
        let (near, far) = (Side::new(), Side::new());
        let a = near.pd.create_qp(&QpConfig::new(&near.cq)).unwrap();
        let config = QpConfig::new(&far.cq).remote_invalidate(allowed);
        let b = far.pd.create_qp(&config).unwrap();
        assert_eq!(b.query().remote_invalidate, allowed);
        let elsewhere = far.pd.create_qp(&QpConfig::new(&far.cq)).unwrap();
        let shared = far.pd.alloc(64, Access::LOCAL_WRITE | Access::REMOTE_WRITE).unwrap();
        b.post_recv(RecvRequest::new(7, far.region.slice(0..64).unwrap())).unwrap();
        let (_near_end, far_end) = join(&a, &far, &b);
        let c = near.pd.create_qp(&QpConfig::new(&near.cq)).unwrap();
        let _other = join(&c, &far, &elsewhere);

        let source = near.region.slice(0..5).unwrap();
        a.post_send(SendRequest::send(1, source.clone()).invalidate(shared.rkey())).unwrap();
        let received = far.cq.wait(GUARD).unwrap().unwrap();
        let write = SendRequest::write(2, source, shared.remote().slice(0..5).unwrap());
        if allowed {
            let received = received.ok().unwrap();
            assert_eq!(received.invalidated_rkey, Some(shared.rkey()));
        } else {
            assert_eq!(received.status, WcStatus::RemInvReqErr);
            far_end.wait_closed(GUARD).unwrap();
            let ending = b.ending().unwrap();
            assert_eq!(ending.by, Initiator::Local);
            assert_eq!(ending.terminate.code.to_string(), "0/1/09");
            // The others of the domain go on using the key.
            c.post_send(write).unwrap();
            let mut seen = [1; 5];
            while seen != [0; 5] {
                shared.read_at(0, &mut seen).unwrap();
            }
        }
    }
}

/// What nobody fetched about a queue pair goes with it: a peer cannot fill memory by coming back.
#[test]
fn events_end_with_their_queue_pair() {
    let (near, far) = (Side::new(), Side::new());
    for _ in 0..5 {
        let a = near.pd.create_qp(&QpConfig::new(&near.cq)).unwrap();
        let b = far.pd.create_qp(&QpConfig::new(&far.cq)).unwrap();
        let (near_end, far_end) = join(&a, &far, &b);
        // A Write that is out of bounds at the target; the safe way to ask for it is a stale key.
        let gone = far.pd.alloc(64, Access::LOCAL_WRITE | Access::REMOTE_WRITE).unwrap();
        let remote = gone.remote();
        gone.deregister().unwrap();
        let source = near.region.slice(0..5).unwrap();
        a.post_send(SendRequest::write(1, source, remote.slice(0..5).unwrap())).unwrap();
        far_end.wait_closed(GUARD).unwrap();
        near_end.wait_closed(GUARD).unwrap();
    }
    let started = std::time::Instant::now();
    loop {
        // The driver lets go of the last one in its own time.
        let mut left = 0;
        while let Some(event) = far.device.next_async_event().unwrap() {
            drop(event);
            left += 1;
        }
        if left == 0 {
            break;
        }
        assert!(started.elapsed() < GUARD, "events of queue pairs that are gone");
    }
}

/// The signal mask in a `status` file of a thread.
#[cfg(target_os = "linux")]
fn blocked_signals(status: &str) -> u64 {
    let blocked = status.lines().find_map(|line| line.strip_prefix("SigBlk:")).unwrap();
    u64::from_str_radix(blocked.trim(), 16).unwrap()
}

/// The program's signals are not taken by the library's thread.
#[cfg(target_os = "linux")]
#[test]
fn the_driver_thread_takes_no_signals() {
    let (near, far) = (Side::new(), Side::new());
    let a = near.pd.create_qp(&QpConfig::new(&near.cq)).unwrap();
    let b = far.pd.create_qp(&QpConfig::new(&far.cq)).unwrap();
    let _ends = join(&a, &far, &b);
    let mut drivers = 0;
    for task in std::fs::read_dir("/proc/self/task").unwrap() {
        let task = task.unwrap().path();
        // Threads of other tests may end meanwhile.
        let Ok(name) = std::fs::read_to_string(task.join("comm")) else { continue };
        let Ok(status) = std::fs::read_to_string(task.join("status")) else { continue };
        let blocked = blocked_signals(&status);
        if name.trim() == "iwarp-driver" {
            drivers += 1;
            for signal in [1, 2, 10, 14, 15, 17] {
                assert_ne!(blocked & (1 << (signal - 1)), 0, "signal {signal}");
            }
        }
    }
    // Of this thread only: others, of other tests, may be about to start a driver.
    let status = std::fs::read_to_string("/proc/thread-self/status").unwrap();
    let blocked = blocked_signals(&status);
    assert_eq!(blocked & (1 << 13), 0, "the mask was not put back");
    assert!(drivers >= 2, "{drivers} drivers");
}
