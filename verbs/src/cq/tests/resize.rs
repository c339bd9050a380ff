//! Queues that change their size (FC-041).

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use super::{device, ids, push};
use crate::error::Error;
use crate::wc::WcStatus;

/// FC-041: grown with ten pending while others arrive; refused below what is stored.
#[test]
fn fc_041_a_queue_grows_with_completions_in_it_and_shrinks_to_what_it_holds() {
    let device = device();
    let cq = device.create_cq(16).unwrap();
    (0..10).for_each(|id| push(&cq, 1, id));
    let error = cq.resize(5).unwrap_err();
    assert!(matches!(error, Error::CqContent { asked: 5, stored: 10 }), "{error}");
    assert_eq!((error.errno(), cq.capacity(), cq.len()), (22, 16, 10));
    assert_eq!(cq.resize(0).unwrap_err().errno(), 22);
    let max = device.attributes().limits.max_cqe;
    let error = cq.resize(max + 1).unwrap_err();
    assert!(matches!(error, Error::Limit { .. }), "{error}");
    assert_eq!(error.errno(), 22);
    cq.resize(max).unwrap();
    cq.resize(10).unwrap();
    assert_eq!(cq.capacity(), 10);
    cq.resize(4096).unwrap();
    (10..4096).for_each(|id| push(&cq, 1, id));
    assert!(!cq.has_overrun());
    let mut all = Vec::with_capacity(5000);
    assert_eq!(cq.poll(&mut all), 4096);
    assert_eq!(ids(&all), (0..4096).collect::<Vec<_>>());

    // The new size holds as the old one did.
    cq.resize(2).unwrap();
    (0..3).for_each(|id| push(&cq, 1, id));
    assert!(cq.has_overrun());
    assert!(matches!(cq.resize(10), Err(Error::CqOverrun { capacity: 2 })));
    assert_eq!(cq.len(), 2);
    let other = cq.clone();
    cq.destroy().unwrap();
    assert!(matches!(other.resize(10), Err(Error::Destroyed { .. })));
}

/// FC-041: sizes change all the time, while four threads push and two poll. Nothing is lost, handed out
/// twice, or out of the order of its queue pair.
#[test]
fn fc_041_resizing_under_load_loses_nothing() {
    const EACH: u64 = 20_000;
    const QPS: u32 = 4;
    let cq = device().create_cq(4096).unwrap();
    let over = AtomicBool::new(false);
    let taken = AtomicBool::new(false);
    let logs = thread::scope(|scope| {
        let pushers: Vec<_> = (0..QPS)
            .map(|qp| {
                let cq = &cq;
                scope.spawn(move || {
                    for id in 0..EACH {
                        // Never more than fits into the smallest size, whatever the others do.
                        while cq.len() > 400 {
                            thread::yield_now();
                        }
                        push(cq, qp, id);
                    }
                })
            })
            .collect();
        let poller = scope.spawn(|| {
            let mut log: HashMap<u32, u64> = HashMap::new();
            let mut batch = Vec::with_capacity(7);
            let mut left = EACH * u64::from(QPS);
            while left > 0 {
                left -= cq.poll(&mut batch) as u64;
                for wc in batch.drain(..) {
                    let next = log.entry(wc.qp_num).or_default();
                    assert_eq!(wc.wr_id, *next, "queue pair {}", wc.qp_num);
                    *next += 1;
                }
            }
            taken.store(true, Ordering::Relaxed);
            log
        });
        let resizer = scope.spawn(|| {
            let mut done = 0;
            while !over.load(Ordering::Relaxed) || done == 0 {
                for size in [500, 4096, 404, 1000] {
                    cq.resize(size).unwrap();
                    done += 1;
                    thread::yield_now();
                }
            }
            done
        });
        for pusher in pushers {
            pusher.join().unwrap();
        }
        let log = poller.join().unwrap();
        over.store(true, Ordering::Relaxed);
        assert!(resizer.join().unwrap() > 0);
        log
    });
    assert!(taken.into_inner() && !cq.has_overrun() && cq.is_empty());
    assert!((0..QPS).all(|qp| logs[&qp] == EACH));
}

/// FC-043: thousands of queue pairs on one queue. Each that goes takes its completions with it, and leaves
/// those of the others in their order.
#[test]
fn fc_043_thousands_of_queue_pairs_share_one_queue() {
    const QPS: u64 = 4096;
    const DEPTH: u32 = 4;
    let device = device();
    let cq = device.create_cq(u32::try_from(QPS).unwrap() * 2 * DEPTH).unwrap();
    let pd = device.alloc_pd();
    let config = crate::QpConfig::new(&cq).max_send_wr(DEPTH).max_recv_wr(DEPTH);
    let qps: Vec<_> = (0..QPS).map(|_| pd.create_qp(&config).unwrap()).collect();
    for (id, qp) in (0..).zip(&qps) {
        qp.post_recv_list((0..4).map(|_| crate::RecvRequest::new(id, ()))).unwrap();
        qp.modify(crate::QpState::Err).unwrap();
        qp.post_send_list((0..4).map(|_| crate::SendRequest::send(id, ()))).unwrap();
    }
    assert_eq!(cq.len() as u64, QPS * 8);
    assert!(!cq.has_overrun());
    // Every second one goes with its completions, the others are polled.
    for qp in qps.iter().step_by(2) {
        qp.destroy().unwrap();
    }
    let mut all = Vec::with_capacity(cq.len());
    assert_eq!(cq.poll(&mut all) as u64, QPS * 4);
    assert!(all.iter().all(|wc| wc.wr_id % 2 == 1 && wc.status == WcStatus::WrFlushErr));
    assert!(all.chunks(8).all(|of_one| of_one.iter().all(|wc| wc.qp_num == of_one[0].qp_num)));
    drop(qps);
    cq.destroy().unwrap();
    pd.destroy().unwrap();
}
