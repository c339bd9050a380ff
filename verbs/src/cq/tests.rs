//! Completion queues without connections: completions are pushed by hand.

#![allow(clippy::unwrap_used, reason = "a failed step is a failed test")]

mod hand;
mod resize;
mod threads;

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use std::{iter, thread};

use proptest::prelude::*;
use tokio::runtime::Builder;

use super::*;
use crate::channel::{CompletionChannel, CqEvent};
use crate::config::DeviceConfig;
use crate::event::{AsyncEventKind, EventSource};
use crate::wc::{WcFlags, WcOpcode, WcStatus};

/// Longer than anything takes: who waits so long was forgotten.
const FORGOTTEN: Duration = Duration::from_mins(1);

fn device() -> Device {
    Device::open(DeviceConfig::default()).unwrap()
}

fn completion(qp_num: u32, wr_id: u64, status: WcStatus) -> WorkCompletion {
    WorkCompletion {
        wr_id,
        status,
        opcode: WcOpcode::Send,
        vendor_err: 0,
        byte_len: 0,
        qp_num,
        flags: WcFlags::empty(),
        invalidated_rkey: None,
        imm_data: None,
    }
}

fn push(cq: &CompletionQueue, qp_num: u32, wr_id: u64) {
    push_kind(cq, completion(qp_num, wr_id, WcStatus::Success), false);
}

fn push_kind(cq: &CompletionQueue, wc: WorkCompletion, solicited_event: bool) {
    let mut wakes = Wakes::default();
    cq.inner().push(Cqe { wc, solicited_event, release: None }, &mut wakes);
    wakes.fire();
}

fn ids(completions: &[WorkCompletion]) -> Vec<u64> {
    completions.iter().map(|wc| wc.wr_id).collect()
}

#[test]
fn handles_may_go_to_any_thread() {
    fn everywhere<T: Send + Sync + 'static>() {}
    everywhere::<Device>();
    everywhere::<crate::ProtectionDomain>();
    everywhere::<CompletionQueue>();
    everywhere::<CompletionChannel>();
    everywhere::<CqEvent>();
    everywhere::<crate::AsyncEvent>();
    everywhere::<crate::QueuePair>();
    everywhere::<crate::QpConfig>();
    everywhere::<crate::MemoryRegion>();
    everywhere::<crate::MrSlice>();
    everywhere::<crate::SendRequest>();
    everywhere::<crate::RecvRequest>();
    everywhere::<crate::PostError>();
    everywhere::<crate::Error>();
    everywhere::<crate::cm::Connection>();
    everywhere::<crate::cm::Listener>();
    everywhere::<crate::cm::EventChannel>();
    everywhere::<crate::cm::Id>();
}

/// FC-043: the limit can be had, one more is refused when the queue is made.
#[test]
fn the_size_is_what_was_asked_for_up_to_an_honest_limit() {
    let device = device();
    let max = device.attributes().limits.max_cqe;
    assert_eq!(device.create_cq(max).unwrap().capacity(), max);
    assert_eq!(device.create_cq(1).unwrap().capacity(), 1);
    let error = device.create_cq(max + 1).unwrap_err();
    assert_eq!(error.errno(), 22);
    assert!(matches!(error, Error::Limit { asked, .. } if asked == u64::from(max) + 1));
    assert_eq!(device.create_cq(0).unwrap_err().errno(), 22);
}

#[test]
fn poll_fills_the_room_that_a_vector_has() {
    let cq = device().create_cq(100).unwrap();
    (0..40).for_each(|id| push(&cq, 1, id));
    let mut exact = Vec::with_capacity(4);
    let room = exact.capacity();
    assert_eq!(cq.poll(&mut exact), room);
    assert_eq!(cq.poll(&mut exact), 16, "a full one gets room for sixteen");
    assert_eq!(ids(&exact), (0..room as u64 + 16).collect::<Vec<_>>());
    assert_eq!(cq.len(), 40 - room - 16);
    assert_eq!(cq.poll_one().unwrap().wr_id, room as u64 + 16);
}

/// FC-042: the queue tells once, keeps what it has, and nobody waits for what is lost.
#[test]
fn an_overrun_breaks_the_queue_and_keeps_what_is_stored() {
    let device = device();
    let channel = device.create_channel().unwrap();
    let cq = device.create_cq_with_channel(4, &channel).unwrap();
    let sleeper = {
        let cq = cq.clone();
        // It takes nothing: it waits for what never comes.
        thread::spawn(move || {
            loop {
                match cq.wait(FORGOTTEN) {
                    Ok(Some(_)) => {}
                    other => return other,
                }
            }
        })
    };
    while !cq.inner().lease().is_held() {
        thread::yield_now();
    }
    let slots = Arc::new(QueueSlots::new(10));
    assert!(slots.reserve(10));
    let stay = device.create_cq(4).unwrap();
    for id in 0..10 {
        let wc = completion(7, id, WcStatus::Success);
        let release = Some((&slots, 1));
        let mut wakes = Wakes::default();
        stay.inner().push(Cqe { wc, solicited_event: false, release }, &mut wakes);
        wakes.fire();
    }
    assert!(stay.has_overrun());
    assert_eq!(slots.in_use(), 4, "the lost ones give their places back at once");
    let mut polled = Vec::new();
    assert_eq!(stay.poll(&mut polled), 4);
    assert_eq!(ids(&polled), [0, 1, 2, 3]);
    assert_eq!(slots.in_use(), 0);
    push(&stay, 7, 11);
    assert_eq!(stay.poll(&mut polled), 0, "a broken queue takes no more");
    assert!(matches!(stay.wait(FORGOTTEN), Err(Error::CqOverrun { capacity: 4 })));

    let event = device.next_async_event().unwrap().unwrap();
    assert_eq!(event.kind(), AsyncEventKind::CqErr);
    assert!(matches!(event.source(), EventSource::CompletionQueue(of) if *of == stay));
    assert!(device.next_async_event().unwrap().is_none(), "told once");
    assert_eq!(device.stats().cq_overruns, 1);

    // Those who sleep hear of it, and so does an armed channel.
    cq.arm(Notify::Solicited).unwrap();
    let mut wakes = Wakes::default();
    // The sleeper may still be polling, and take some out.
    while !cq.has_overrun() {
        let wc = completion(7, 0, WcStatus::Success);
        cq.inner().push(Cqe { wc, solicited_event: false, release: None }, &mut wakes);
    }
    wakes.fire();
    assert!(matches!(sleeper.join().unwrap(), Err(Error::CqOverrun { .. })));
    assert_eq!(channel.wait_event(FORGOTTEN).unwrap().unwrap().cq(), &cq);
}

#[test]
fn an_unarmed_queue_tells_its_channel_nothing() {
    let device = device();
    let channel = device.create_channel().unwrap();
    let cq = device.create_cq_with_channel(4, &channel).unwrap();
    push(&cq, 1, 1);
    assert!(channel.get_event().unwrap().is_none());
    // Old completions do not fire.
    cq.arm(Notify::Any).unwrap();
    assert!(channel.get_event().unwrap().is_none());
    assert!(channel.wait_event(Duration::from_millis(1)).unwrap().is_none());
    push(&cq, 1, 2);
    assert_eq!(channel.get_event().unwrap().unwrap().ack(), cq);
    push(&cq, 1, 3);
    assert!(channel.get_event().unwrap().is_none(), "one event for each arming");
    assert!(matches!(device.create_cq(4).unwrap().arm(Notify::Any), Err(Error::NoChannel)));
}

#[test]
fn a_solicited_request_ignores_other_completions() {
    let device = device();
    let channel = device.create_channel().unwrap();
    let cq = device.create_cq_with_channel(16, &channel).unwrap();
    cq.arm(Notify::Solicited).unwrap();
    push(&cq, 1, 1);
    assert!(channel.get_event().unwrap().is_none());
    push_kind(&cq, completion(1, 2, WcStatus::WrFlushErr), true);
    assert!(channel.get_event().unwrap().is_some());
    // The wider request wins, in either order, and gives one event.
    for order in [[Notify::Any, Notify::Solicited], [Notify::Solicited, Notify::Any]] {
        for notify in order {
            cq.arm(notify).unwrap();
        }
        push(&cq, 1, 3);
        push_kind(&cq, completion(1, 4, WcStatus::Success), true);
        assert!(channel.get_event().unwrap().is_some(), "{order:?}");
        assert!(channel.get_event().unwrap().is_none(), "{order:?}");
    }
}

/// FC-037: two events before the first read, and a new edge for the third.
#[cfg(target_os = "linux")]
#[test]
fn a_channel_is_a_descriptor_for_edge_and_level_triggered_polling() {
    use std::os::fd::AsFd;

    use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
    use rustix::event::{PollFd, PollFlags, Timespec, poll};

    let device = device();
    let channel = device.create_channel().unwrap();
    let cqs = [(); 2].map(|()| device.create_cq_with_channel(16, &channel).unwrap());
    let set = epoll::create(CreateFlags::CLOEXEC).unwrap();
    let edge = EventFlags::IN | EventFlags::ET;
    epoll::add(&set, channel.as_fd(), EventData::new_u64(1), edge).unwrap();
    let zero = Timespec { tv_sec: 0, tv_nsec: 0 };
    let edges = || {
        let mut events = Vec::with_capacity(4);
        epoll::wait(&set, rustix::buffer::spare_capacity(&mut events), Some(&zero)).unwrap()
    };
    let readable = || {
        let mut fds = [PollFd::from_borrowed_fd(channel.as_fd(), PollFlags::IN)];
        poll(&mut fds, Some(&zero)).unwrap() == 1
    };
    assert_eq!((edges(), readable()), (0, false));
    for round in 0..3 {
        for cq in &cqs {
            cq.arm(Notify::Any).unwrap();
            push(cq, 1, round);
        }
        assert_eq!(edges(), 1, "round {round}");
        assert!(readable());
        let told: Vec<_> =
            iter::from_fn(|| channel.get_event().unwrap()).map(CqEvent::ack).collect();
        assert_eq!(told, cqs, "one event for each, in order");
        assert_eq!((edges(), readable()), (0, false));
    }
    cqs[1].arm(Notify::Any).unwrap();
    push(&cqs[1], 1, 9);
    assert_eq!(edges(), 1, "a new edge for the third");
    assert_eq!(channel.wait_event(FORGOTTEN).unwrap().unwrap().cq(), &cqs[1]);
}

/// FC-040: fetched events hold up the destruction, unfetched ones vanish.
#[test]
fn destruction_waits_for_fetched_events_only() {
    let device = device();
    let channel = device.create_channel().unwrap();
    let cq = device.create_cq_with_channel(16, &channel).unwrap();
    let mut fetched: Vec<_> = (0..3)
        .map(|id| {
            cq.arm(Notify::Any).unwrap();
            push(&cq, 1, id);
            channel.get_event().unwrap().unwrap()
        })
        .collect();
    cq.arm(Notify::Any).unwrap();
    push(&cq, 1, 4);
    let (destroyed, done) = std::sync::mpsc::channel();
    let other = cq.clone();
    thread::spawn(move || destroyed.send(cq.destroy()).unwrap());
    for _ in 0..2 {
        assert!(done.recv_timeout(Duration::from_millis(20)).is_err(), "too early");
        fetched.pop();
    }
    assert!(done.recv_timeout(Duration::from_millis(20)).is_err(), "too early");
    fetched.pop();
    done.recv_timeout(FORGOTTEN).unwrap().unwrap();
    assert!(channel.get_event().unwrap().is_none(), "unfetched events are dropped");
    assert!(matches!(other.wait(FORGOTTEN), Ok(Some(_)) | Err(Error::Destroyed { .. })));
    assert!(matches!(other.destroy(), Err(Error::Destroyed { .. })));

    let unfetched = device.create_cq_with_channel(16, &channel).unwrap();
    unfetched.arm(Notify::Any).unwrap();
    push(&unfetched, 1, 1);
    unfetched.destroy().unwrap();
    assert!(channel.get_event().unwrap().is_none());
}

#[test]
fn a_queue_in_use_is_not_destroyed_and_a_destroyed_one_is_not_used() {
    let device = device();
    let cq = device.create_cq(16).unwrap();
    let pd = device.alloc_pd();
    let config = crate::QpConfig::new(&cq);
    let qp = pd.create_qp(&config).unwrap();
    assert!(matches!(cq.clone().destroy(), Err(Error::Busy { users: 1, .. })));
    drop(qp);
    cq.clone().destroy().unwrap();
    assert!(matches!(pd.create_qp(&config), Err(Error::Destroyed { .. })));
    let foreign = Device::open(DeviceConfig::default()).unwrap().create_cq(16).unwrap();
    let channel = device.create_channel().unwrap();
    let told = device.create_cq_with_channel(16, &channel).unwrap();
    let other = channel.clone();
    assert!(matches!(channel.destroy(), Err(Error::Busy { users: 1, .. })));
    drop(told);
    other.destroy().unwrap();
    let mixed = crate::QpConfig::new(&device.create_cq(16).unwrap()).recv_cq(&foreign);
    assert!(matches!(pd.create_qp(&mixed), Err(Error::ForeignDevice { .. })));
}

#[test]
fn destruction_wakes_those_who_wait() {
    let cq = device().create_cq(16).unwrap();
    let waiter = {
        let cq = cq.clone();
        thread::spawn(move || cq.wait(FORGOTTEN))
    };
    let task = {
        let cq = cq.clone();
        thread::spawn(move || crate::aio::wait(cq.next(), FORGOTTEN).unwrap())
    };
    while !cq.inner().ring.change(|_| ()).1.threads || !cq.inner().ring.change(|_| ()).1.tasks {
        thread::yield_now();
    }
    cq.destroy().unwrap();
    assert!(matches!(waiter.join().unwrap(), Err(Error::Destroyed { .. })));
    assert!(matches!(task.join().unwrap(), Err(Error::Destroyed { .. })));
}

/// Polls a future once.
async fn poll_once<F: Future>(future: F) -> Option<F::Output> {
    let mut future = std::pin::pin!(future);
    std::future::poll_fn(|cx| {
        std::task::Poll::Ready(match future.as_mut().poll(cx) {
            std::task::Poll::Ready(output) => Some(output),
            std::task::Poll::Pending => None,
        })
    })
    .await
}

#[test]
fn awaiting_works_in_every_kind_of_runtime() {
    fn to_any_thread<T: Send>(value: T) -> T {
        value
    }

    let with = |runtime: std::io::Result<tokio::runtime::Runtime>| {
        let runtime = runtime.unwrap();
        let cq = device().create_cq(64).unwrap();
        for id in 0..3 {
            let other = cq.clone();
            let task = runtime.spawn(async move { to_any_thread(other.next()).await.unwrap() });
            let pusher = {
                let cq = cq.clone();
                thread::spawn(move || {
                    while !cq.inner().ring.change(|_| ()).1.tasks {
                        thread::yield_now();
                    }
                    push(&cq, 1, id);
                })
            };
            assert_eq!(runtime.block_on(task).unwrap().wr_id, id);
            pusher.join().unwrap();
        }
        cq
    };
    with(Builder::new_current_thread().enable_all().build());
    with(Builder::new_multi_thread().worker_threads(2).enable_all().build());
    // tokio panics for want of a reactor; that is caught, and remembered.
    with(Builder::new_current_thread().build());

    // A runtime that is gone is no hindrance for the next one.
    let first = Builder::new_current_thread().enable_all().build().unwrap();
    let second = Builder::new_current_thread().enable_all().build().unwrap();
    let cq = device().create_cq(64).unwrap();
    let wait = || async { poll_once(cq.next()).await };
    assert!(first.block_on(wait()).is_none());
    drop(first);
    assert!(second.block_on(wait()).is_none());
    push(&cq, 1, 5);
    assert_eq!(second.block_on(cq.next()).unwrap().wr_id, 5);
}

/// A wait that was woken and then dropped wakes another one instead.
#[test]
fn a_cancelled_wait_passes_its_wake_up_on() {
    use std::task::{Context, Wake, Waker};

    struct Count(AtomicUsize);

    impl Wake for Count {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }

    let cq = device().create_cq(8).unwrap();
    let wakers: Vec<_> = (0..2).map(|_| Arc::new(Count(AtomicUsize::new(0)))).collect();
    let woken = |at: usize| wakers[at].0.load(Ordering::SeqCst);
    let mut waits: Vec<_> = wakers
        .iter()
        .map(|waker| {
            let waker = Waker::from(Arc::clone(waker));
            let mut wait = Box::pin(cq.next());
            assert!(wait.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
            wait
        })
        .collect();
    push(&cq, 1, 1);
    assert_eq!((woken(0), woken(1)), (1, 0), "one task for one completion");
    drop(waits.remove(0));
    assert_eq!(woken(1), 1);
    let waker = Waker::from(Arc::clone(&wakers[1]));
    let polled = waits[0].as_mut().poll(&mut Context::from_waker(&waker));
    assert!(matches!(polled, std::task::Poll::Ready(Ok(wc)) if wc.wr_id == 1));
}

/// Whatever gives a place back tells who waits for one: the place itself, or the end of its completion.
#[test]
fn who_waits_for_a_place_is_told_of_one() {
    let cq = device().create_cq(1).unwrap();
    let ways: [fn(&CompletionQueue, &QueueSlots); 4] = [
        |_, slots| slots.release(1),
        |cq, _| assert!(cq.poll_one().is_some()),
        |cq, _| assert_eq!(cq.poll(&mut Vec::new()), 1),
        |cq, _| cq.inner().purge(1),
    ];
    for (way, free) in ways.into_iter().enumerate() {
        let slots = Arc::new(QueueSlots::new(1));
        assert!(slots.reserve(1));
        if way > 0 {
            let wc = completion(1, 7, WcStatus::Success);
            let mut wakes = Wakes::default();
            let release = Some((&slots, 1));
            cq.inner().push(Cqe { wc, solicited_event: false, release }, &mut wakes);
        }
        let waiter = {
            let slots = Arc::clone(&slots);
            thread::spawn(move || {
                crate::aio::wait(
                    async {
                        loop {
                            let freed = slots.listen();
                            if slots.reserve(1) {
                                return;
                            }
                            freed.await;
                        }
                    },
                    FORGOTTEN,
                )
            })
        };
        thread::sleep(Duration::from_millis(5));
        free(&cq, &slots);
        waiter.join().unwrap().expect("forgotten");
        assert_eq!(slots.in_use(), 1);
    }
}

#[derive(Debug, Clone)]
enum Step {
    Push { qp: u32, release: u32 },
    Poll { room: usize },
    PollOne,
    Purge { qp: u32 },
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        5 => (0..3_u32, 0..3_u32).prop_map(|(qp, release)| Step::Push { qp, release }),
        2 => (1..5_usize).prop_map(|room| Step::Poll { room }),
        2 => Just(Step::PollOne),
        1 => (0..3_u32).prop_map(|qp| Step::Purge { qp }),
    ];
    prop::collection::vec(step, 1..60)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    /// The queue against a plain list: order, overrun, and the places that come back (FC-042, FC-066).
    #[test]
    fn prop_a_queue_is_a_bounded_list(capacity in 1..8_u32, steps in steps()) {
        let cq = device().create_cq(capacity).unwrap();
        let slots: HashMap<u32, _> =
            (0..3).map(|qp| (qp, Arc::new(QueueSlots::new(1000)))).collect();
        let mut model: VecDeque<(u32, u64, u32)> = VecDeque::new();
        let mut broken = false;
        let mut next = 0;
        for step in steps {
            match step {
                Step::Push { qp, release } => {
                    prop_assert!(slots[&qp].reserve(release));
                    let cqe = Cqe {
                        wc: completion(qp, next, WcStatus::Success),
                        solicited_event: false,
                        release: Some((&slots[&qp], release)),
                    };
                    let mut wakes = Wakes::default();
                    cq.inner().push(cqe, &mut wakes);
                    wakes.fire();
                    broken |= model.len() == capacity as usize;
                    if !broken {
                        model.push_back((qp, next, release));
                    }
                    next += 1;
                }
                Step::Poll { room } => {
                    let mut out = Vec::with_capacity(room);
                    let expected = model.len().min(out.capacity());
                    prop_assert_eq!(cq.poll(&mut out), expected);
                    for wc in out {
                        let (qp, id, _) = model.pop_front().unwrap();
                        prop_assert_eq!((wc.qp_num, wc.wr_id), (qp, id));
                    }
                }
                Step::PollOne => {
                    let expected = model.pop_front().map(|(qp, id, _)| (qp, id));
                    prop_assert_eq!(cq.poll_one().map(|wc| (wc.qp_num, wc.wr_id)), expected);
                }
                Step::Purge { qp } => {
                    cq.inner().purge(qp);
                    model.retain(|entry| entry.0 != qp);
                }
            }
            prop_assert_eq!(cq.len(), model.len());
            prop_assert_eq!(cq.is_empty(), model.is_empty());
            prop_assert_eq!(cq.has_overrun(), broken);
            for (qp, slots) in &slots {
                let held: u32 = model.iter().filter(|entry| entry.0 == *qp).map(|e| e.2).sum();
                prop_assert_eq!(slots.in_use(), held);
            }
        }
    }

    /// Places against a plain number (FC-066).
    #[test]
    fn prop_places_are_a_bounded_number(
        capacity in 0..20_u32,
        steps in prop::collection::vec((any::<bool>(), 0..25_u32), 1..50),
    ) {
        let slots = QueueSlots::new(capacity);
        let mut taken = 0;
        for (take, n) in steps {
            if take {
                let fits = taken + n <= capacity;
                prop_assert_eq!(slots.reserve(n), fits, "{} of {}", taken, capacity);
                taken += if fits { n } else { 0 };
            } else {
                let n = n.min(taken);
                slots.release(n);
                taken -= n;
            }
            prop_assert_eq!(slots.in_use(), taken);
        }
        prop_assert!(!slots.reserve(u32::MAX));
    }
}
