//! Many producers and consumers: nothing is lost, handed out twice, or slept through.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::thread;

use parking_lot::Mutex;

use super::{FORGOTTEN, device, poll_once, push};
use crate::Notify;
use crate::cq::QueueSlots;
use crate::wc::WorkCompletion;

/// Lets producers run on when a consumer has failed, so that the test ends.
struct Released<'a>(&'a AtomicU64);

impl Drop for Released<'_> {
    fn drop(&mut self) {
        if thread::panicking() {
            self.0.store(u64::MAX / 2, Ordering::Release);
        }
    }
}

/// FC-038: arm, poll, sleep on the channel, against a producer that goes on as soon as it is seen.
#[test]
fn no_completion_slips_in_between_arming_and_sleeping() {
    const ROUNDS: u64 = 20_000;
    let device = device();
    let channel = device.create_channel().unwrap();
    let cq = device.create_cq_with_channel(4, &channel).unwrap();
    let seen = AtomicU64::new(0);
    thread::scope(|scope| {
        scope.spawn(|| {
            for id in 1..=ROUNDS {
                push(&cq, 1, id);
                while seen.load(Ordering::Acquire) < id {
                    thread::yield_now();
                }
            }
        });
        let _released = Released(&seen);
        let mut next = 1;
        let mut take = || {
            let wc = cq.poll_one()?;
            assert_eq!(wc.wr_id, next);
            seen.store(next, Ordering::Release);
            next += 1;
            Some(wc.wr_id)
        };
        // Armed only when there is nothing, so that most of the time it is not.
        loop {
            let found = take().or_else(|| {
                cq.arm(Notify::Any).unwrap();
                take()
            });
            match found {
                Some(ROUNDS) => break,
                Some(_) => {}
                None => {
                    let event = channel.wait_event(FORGOTTEN).unwrap();
                    event.expect("asleep with a completion in the queue");
                }
            }
        }
    });
}

/// FC-038 for threads that sleep on the queue itself, several at once: none sleeps while there is
/// something, however producers and sleepers meet.
#[test]
fn no_sleeping_thread_is_forgotten() {
    const PRODUCERS: u64 = 2;
    const EACH: u64 = 10_000;
    const SLEEPERS: usize = 3;
    let cq = device().create_cq(64).unwrap();
    let taken = AtomicU64::new(0);
    thread::scope(|scope| {
        for _ in 0..SLEEPERS {
            scope.spawn(|| {
                let _released = Released(&taken);
                loop {
                    let wc = cq.wait(FORGOTTEN).unwrap().expect("forgotten");
                    if wc.wr_id == u64::MAX {
                        return;
                    }
                    taken.fetch_add(1, Ordering::Release);
                }
            });
        }
        let produced = AtomicU64::new(0);
        thread::scope(|producers| {
            for qp in 0..PRODUCERS {
                let (cq, taken, produced) = (&cq, &taken, &produced);
                producers.spawn(move || {
                    for id in 0..EACH {
                        let n = produced.fetch_add(1, Ordering::Relaxed) + 1;
                        push(cq, u32::try_from(qp).unwrap(), id);
                        // Now and then all sleepers get the time to fall asleep.
                        let ahead = if id % 8 == 0 { 1 } else { 16 };
                        while taken.load(Ordering::Acquire) + ahead <= n {
                            thread::yield_now();
                        }
                    }
                });
            }
        });
        (0..SLEEPERS).for_each(|_| push(&cq, 9, u64::MAX));
    });
    assert_eq!(taken.into_inner(), PRODUCERS * EACH);
}

/// FC-038 for tasks without any runtime, some of which give up waiting all the time.
#[test]
fn no_awaiting_task_is_forgotten() {
    const EACH: u64 = 20_000;
    const TASKS: usize = 3;
    let cq = device().create_cq(64).unwrap();
    let taken = AtomicU64::new(0);
    // `false`: time to go.
    let take = |wc: WorkCompletion| {
        taken.fetch_add(1, Ordering::Release);
        wc.wr_id < EACH
    };
    thread::scope(|scope| {
        for task in 0..TASKS {
            let (cq, take) = (&cq, &take);
            let released = Released(&taken);
            let run = async move {
                let _released = released;
                loop {
                    // Polled once and dropped: if it was woken meanwhile, another must be.
                    if task == 0
                        && let Some(wc) = poll_once(cq.next()).await
                        && !take(wc.unwrap())
                    {
                        return;
                    }
                    if !take(cq.next().await.unwrap()) {
                        return;
                    }
                }
            };
            scope.spawn(move || crate::aio::wait(run, FORGOTTEN).expect("forgotten"));
        }
        for id in 0..EACH {
            push(&cq, 1, id);
            // Now and then all tasks get the time to fall asleep.
            let ahead = if id % 8 == 0 { 0 } else { 16 };
            while taken.load(Ordering::Acquire) + ahead < id + 1 {
                thread::yield_now();
            }
        }
        (0..TASKS).for_each(|_| push(&cq, 9, EACH));
    });
    assert_eq!(taken.into_inner(), EACH + TASKS as u64);
}

/// FC-039: each completion is handed out once, and those of one queue in order.
#[test]
fn many_threads_poll_one_queue() {
    const POLLERS: usize = 8;
    const QPS: u32 = 16;
    const EACH: u64 = 1_000;
    let cq = device().create_cq(u32::try_from(EACH).unwrap() * QPS).unwrap();
    let clock = AtomicU64::new(0);
    let left = AtomicU64::new(EACH * u64::from(QPS));
    let log = Mutex::new(Vec::new());
    thread::scope(|scope| {
        for qp in 0..QPS {
            let cq = &cq;
            scope.spawn(move || (0..EACH).for_each(|id| push(cq, qp, id)));
        }
        for _ in 0..POLLERS {
            scope.spawn(|| {
                let mut own = Vec::new();
                let mut batch = Vec::with_capacity(5);
                while left.load(Ordering::Relaxed) > 0 {
                    let before = clock.fetch_add(1, Ordering::SeqCst);
                    let n = cq.poll(&mut batch);
                    let after = clock.fetch_add(1, Ordering::SeqCst);
                    left.fetch_sub(n as u64, Ordering::Relaxed);
                    own.extend(batch.drain(..).map(|wc| (wc.qp_num, wc.wr_id, before, after)));
                }
                log.lock().append(&mut own);
            });
        }
    });
    let mut log = log.into_inner();
    log.sort_unstable();
    let mut expected = (0..QPS).flat_map(|qp| (0..EACH).map(move |id| (qp, id)));
    // A poll that ended before another one began must have got the earlier completions.
    let mut latest_begin = 0;
    for (qp, id, before, after) in log {
        assert_eq!(expected.next(), Some((qp, id)), "lost or handed out twice");
        if id == 0 {
            latest_begin = 0;
        }
        assert!(after > latest_begin, "completion {id} of {qp} overtook an earlier one");
        latest_begin = before.max(latest_begin);
    }
    assert_eq!(expected.next(), None);
}

/// FC-066: never more than the capacity, never a place lost.
#[test]
fn places_are_counted_exactly_by_many_threads() {
    const CAPACITY: u32 = 5;
    const ROUNDS: u32 = 20_000;
    let slots = QueueSlots::new(CAPACITY);
    let inside = AtomicUsize::new(0);
    thread::scope(|scope| {
        for thread in 0..4 {
            let (slots, inside) = (&slots, &inside);
            scope.spawn(move || {
                for round in 0..ROUNDS {
                    let n = 1 + (round + thread) % 3;
                    if !slots.reserve(n) {
                        continue;
                    }
                    let now = inside.fetch_add(n as usize, Ordering::SeqCst) + n as usize;
                    assert!(now <= CAPACITY as usize, "{now} places of {CAPACITY}");
                    inside.fetch_sub(n as usize, Ordering::SeqCst);
                    slots.release(n);
                }
            });
        }
    });
    assert_eq!(slots.in_use(), 0);
    assert!(slots.reserve(CAPACITY));
    assert!(!slots.reserve(1));
}
