//! One completion queue for more connections than the adapters allow.

#![allow(clippy::unwrap_used, reason = "a failed step is a failed test")]

mod cm_support;

use cm_support::{GUARD, World};
use iwarp_verbs::cm::{self, ConnParam};
use iwarp_verbs::{Access, Error, QpConfig, RecvRequest, SendRequest};

/// Beyond 1025, where others gave up.
const CONNECTIONS: usize = 1100;

/// Requests of each work queue.
const DEPTH: u32 = 2;

/// FC-043: a queue that is sized for all of them, transfers on all of them, and one entry too many refused
/// when the queue is made.
#[test]
fn fc_043_more_than_a_thousand_connections_report_to_one_queue() {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
    let room = limit.map_or(usize::MAX, |limit| usize::try_from(limit).unwrap());
    let count = CONNECTIONS.min(room.saturating_sub(200) / 3);
    if count < CONNECTIONS {
        println!("only {count} connections: the process may have {room} descriptors");
    }
    let world = World::new();
    let entries = u32::try_from(count).unwrap() * 2 * 2 * DEPTH;
    let cq = world.device.create_cq(entries).unwrap();
    let config = QpConfig::new(&cq).max_send_wr(DEPTH).max_recv_wr(DEPTH);
    let sink = world.pd.alloc(8, Access::LOCAL_WRITE).unwrap();
    let listener = world.listener();
    let param = || ConnParam::default().timeout(GUARD);
    let ends: Vec<_> = (0..count)
        .map(|_| {
            let pair = [(); 2].map(|()| world.pd.create_qp(&config).unwrap());
            for qp in &pair {
                qp.post_recv(RecvRequest::new(1, sink.as_slice_all())).unwrap();
            }
            let connecting = cm::connect(listener.local_addr(), &pair[0], param()).unwrap();
            let accepting = listener.accept(GUARD).unwrap().accept(&pair[1], param()).unwrap();
            (connecting.wait(GUARD).unwrap(), accepting.wait(GUARD).unwrap())
        })
        .collect();
    for (near, far) in &ends {
        near.qp().post_send(SendRequest::send_inline(2, [7; 8])).unwrap();
        far.qp().post_send(SendRequest::send_inline(2, [7; 8])).unwrap();
    }
    let mut sums = std::collections::HashMap::new();
    for _ in 0..4 * count {
        let wc = cq.wait(GUARD).unwrap().expect("in time").ok().unwrap();
        *sums.entry(wc.qp_num).or_insert(0) += wc.wr_id;
    }
    assert_eq!(sums.len(), 2 * count);
    assert!(sums.values().all(|&sum| sum == 1 + 2), "one receive and one Send of each");
    assert!(!cq.has_overrun());
    let max = world.device.attributes().limits.max_cqe;
    let refused = world.device.create_cq(max + 1).unwrap_err();
    assert!(matches!(refused, Error::Limit { .. }) && refused.errno() == 22, "{refused}");
}
