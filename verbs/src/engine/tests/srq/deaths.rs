//! Queue pairs that end while they share their receives.

use std::collections::BTreeSet;

use proptest::collection::vec;
use proptest::prelude::*;

use super::*;

const LAST: AsyncEventKind = AsyncEventKind::QpLastWqeReached;

/// FC-074: a hundred queue pairs, reset in random order, some by their peers: a hundred events, no receive
/// lost, and the limit told once.
#[test]
fn fc_074_each_death_is_told_once_and_no_receive_is_lost() {
    const N: usize = 100;
    let hall = Hall::new(N, &SrqConfig { max_wr: 256, limit: 130, ..SrqConfig::default() });
    hall.post(0..200);
    for client in 0..N {
        hall.send(client, 0);
    }
    until("the messages", || hall.srq.query().available == 100);
    // Any order will do, as long as it is not that of their making.
    let mut next = 37;
    for turn in 0..N {
        let Pair { a, b } = &hall.pairs[next];
        let qp = if turn % 2 == 0 { &b.qp } else { &a.qp };
        qp.modify(QpState::Err).unwrap();
        next = (next + 61) % N;
    }
    let mut numbers = Vec::new();
    let mut limits = 0;
    until("the events", || {
        for event in hall.events() {
            match event {
                (kind, number) if kind == LAST => numbers.extend(number),
                (AsyncEventKind::SrqLimitReached, _) => limits += 1,
                // Of those that their peers have reset.
                (kind, _) => assert_eq!(kind, AsyncEventKind::QpFatal),
            }
        }
        numbers.len() >= N
    });
    numbers.sort_unstable();
    let mut expected: Vec<_> = (0..N).map(|client| hall.number(client)).collect();
    expected.sort_unstable();
    assert_eq!((numbers, limits), (expected, 1));
    let mut taken: Vec<_> = poll_n(&hall.server.recv_cq, N).iter().map(|wc| wc.wr_id).collect();
    taken.sort_unstable();
    assert_eq!(taken, (0..100).collect::<Vec<_>>());
    // Whatever happens to the dead now, it is not told again.
    for Pair { b, .. } in &hall.pairs {
        b.qp.modify(QpState::Err).unwrap();
        b.qp.post_send(SendRequest::send(1, ())).unwrap();
    }
    assert_eq!(poll_n(&hall.server.send_cq, N).len(), N);
    assert!(hall.events().iter().all(|event| event.0 != LAST));
    let now = hall.srq.query();
    assert_eq!((now.available, now.outstanding, now.waiting), (100, 100, 0));
}

/// FC-074, FC-034: the event is the marker of a drain: all completions are there when it can be fetched.
#[test]
fn what_was_taken_is_reported_before_the_event() {
    for round in 0..20 {
        let hall = Hall::new(1, &SrqConfig::default());
        hall.post(0..64);
        for id in 0..round {
            hall.send(0, id);
        }
        hall.pairs[0].b.qp.modify(QpState::Err).unwrap();
        let mut ended = false;
        until("the event", || {
            ended |= hall.events().iter().any(|event| event.0 == LAST);
            ended
        });
        let left = hall.srq.query().available;
        assert_eq!(hall.server.recv_cq.len() as u32, 64 - left, "round {round}");
        assert_eq!(hall.pairs[0].b.qp.query().receives_held, Some(64 - left));
    }
}

/// A drain needs no place in the receive queue, which has none: when it is done, all is reported.
#[test]
fn a_queue_pair_with_a_shared_queue_can_be_drained() {
    let hall = Hall::new(1, &SrqConfig::default());
    hall.post(0..64);
    for id in 0..10 {
        hall.send(0, id);
    }
    let Pair { b, .. } = &hall.pairs[0];
    b.qp.post_send(SendRequest::read(5, (), hall.server.region(8).remote())).unwrap();
    assert!(b.qp.drain(HANG).unwrap());
    let left = hall.srq.query();
    assert_eq!(hall.server.recv_cq.len() as u32, left.outstanding - left.available);
    assert_eq!(hall.server.send_cq.len(), 1);
    wait_events(&hall.server.device, LAST, 1);
}

/// Also without a connection, and again when it has been used anew; not for those that were destroyed.
#[test]
fn fc_074_the_event_comes_with_each_end_and_not_with_destruction() {
    let hall = Hall::new(0, &SrqConfig::default());
    let device = &hall.server.device;
    let seat = hall.seat(|qp| qp);
    let number = Some(seat.qp.number());
    for _ in 0..3 {
        seat.qp.modify(QpState::Err).unwrap();
        assert_eq!(events(device), [(LAST, number)]);
        seat.qp.modify(QpState::Err).unwrap();
        seat.qp.modify(QpState::Reset).unwrap();
        assert_eq!(events(device), []);
        seat.qp.modify(QpState::Init).unwrap();
    }
    // From `Reset` without a use, nothing has ended.
    seat.qp.modify(QpState::Reset).unwrap();
    seat.qp.modify(QpState::Init).unwrap();
    seat.qp.0.inner.claim_setup().unwrap();
    seat.qp.0.inner.fail_setup();
    assert_eq!(events(device), [(LAST, number)]);
    seat.qp.modify(QpState::Reset).unwrap();
    seat.qp.modify(QpState::Init).unwrap();
    // An orderly end is one as well.
    let pair = Pair { a: hall.setup.end(), b: seat };
    hall.setup.join(&pair);
    pair.a.qp.disconnect();
    pair.b.wait_state(QpState::Err);
    assert_eq!(wait_events(device, LAST, 1), [number]);
    assert_eq!(events(&pair.a.device), [], "it has receives of its own");
    pair.b.qp.destroy().unwrap();
    let connected = Hall::new(1, &SrqConfig::default());
    connected.pairs[0].b.qp.destroy().unwrap();
    hall.seat(|qp| qp).qp.destroy().unwrap();
    drop(hall.seat(|qp| qp));
    assert_eq!((events(device), connected.events()), (vec![], vec![]));
    hall.srq.destroy().unwrap();
}

#[derive(Debug, Clone, Copy)]
enum Step {
    Post(u64),
    Send(usize, u64),
    Poll(usize),
    Kill(usize, Kill),
}

#[derive(Debug, Clone, Copy)]
enum Kill {
    /// The server resets, its client resets, either ends in order.
    Reset,
    Vanish,
    Leave,
    Disconnect,
    /// Completions that were not polled go with it.
    Destroy,
}

const CLIENTS: usize = 6;
const ROOM: usize = 16;

fn step() -> impl Strategy<Value = Step> {
    let kill = prop_oneof![
        2 => Just(Kill::Reset),
        2 => Just(Kill::Vanish),
        2 => Just(Kill::Leave),
        1 => Just(Kill::Disconnect),
        1 => Just(Kill::Destroy),
    ];
    prop_oneof![
        3 => (1..6_u64).prop_map(Step::Post),
        6 => (0..CLIENTS, 1..4_u64).prop_map(|(client, n)| Step::Send(client, n)),
        3 => (1..8_usize).prop_map(Step::Poll),
        1 => (0..CLIENTS, kill).prop_map(|(client, kill)| Step::Kill(client, kill)),
    ]
}

/// What came of the receives.
struct Books {
    posted: u64,
    /// Each receive that was reported.
    reported: BTreeSet<u64>,
    /// The next message of each client, by the number of its queue pair at the server.
    next: BTreeMap<u32, u64>,
    room: MemoryRegion,
}

impl Books {
    fn enter(&mut self, wc: &WorkCompletion) -> Result<(), TestCaseError> {
        prop_assert!(wc.wr_id < self.posted, "never posted: {:?}", wc);
        prop_assert!(self.reported.insert(wc.wr_id), "reported twice: {:?}", wc);
        if wc.status == WcStatus::Success {
            let next = self.next.entry(wc.qp_num).or_default();
            let at = usize::try_from(wc.wr_id).unwrap() * ROOM;
            prop_assert_eq!(self.room.load_u64(at).unwrap(), *next, "out of order: {:?}", wc);
            prop_assert_eq!(self.room.load_u64(at + 8).unwrap(), u64::from(wc.qp_num));
            *next += 1;
        } else {
            prop_assert_eq!(wc.status, WcStatus::WrFlushErr);
        }
        Ok(())
    }
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 48,
        max_shrink_iters: 200,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    /// No receive is lost or delivered twice when queue pairs die: each is reported once, or still there, or it
    /// went with the destruction of the queue pair that had taken it. Each client's messages come in order.
    #[test]
    fn no_receive_is_lost_or_delivered_twice(
        steps in vec(step(), 1..80),
        bound in proptest::option::of(1..4_u32),
        limit in 0..20_u32,
    ) {
        let config = SrqConfig { max_wr: 512, limit, ..SrqConfig::default() };
        let hall = Hall::with(CLIENTS, &config, |qp| match bound {
            Some(bound) => qp.max_shared_receives(bound),
            None => qp,
        });
        let mut books = Books {
            posted: 0,
            reported: BTreeSet::new(),
            next: BTreeMap::new(),
            room: hall.server.region(ROOM * 512),
        };
        let mut sent = [0_u64; CLIENTS];
        let mut destroyed = BTreeSet::new();
        for step in steps {
            match step {
                Step::Post(n) => {
                    let range = books.posted..books.posted + n;
                    books.posted += n;
                    hall.srq.post_recv_list(range.map(|id| {
                        let at = usize::try_from(id).unwrap() * ROOM;
                        RecvRequest::new(id, books.room.slice(at..at + ROOM).unwrap())
                    })).unwrap();
                }
                Step::Send(client, n) => for _ in 0..n {
                    let text = [sent[client], hall.number(client).into()].map(u64::to_ne_bytes);
                    let request = SendRequest::send_inline_parts(0, text).unsignaled();
                    // Of one that has ended it is flushed.
                    if hall.pairs[client].a.qp.post_send(request).is_ok() {
                        sent[client] += 1;
                    }
                },
                Step::Poll(n) => for _ in 0..n {
                    if let Some(wc) = hall.server.recv_cq.poll_one() {
                        books.enter(&wc)?;
                    }
                },
                Step::Kill(client, kill) => {
                    let Pair { a, b } = &hall.pairs[client];
                    match kill {
                        Kill::Reset => drop(b.qp.modify(QpState::Err)),
                        Kill::Vanish => drop(a.qp.modify(QpState::Err)),
                        Kill::Leave => a.qp.disconnect(),
                        Kill::Disconnect => b.qp.disconnect(),
                        Kill::Destroy => if b.qp.destroy().is_ok() {
                            destroyed.insert(client);
                        },
                    }
                }
            }
        }
        let living = (0..CLIENTS).filter(|client| !destroyed.contains(client));
        for client in living.clone() {
            drop(hall.pairs[client].b.qp.modify(QpState::Err));
        }
        let mut told = Vec::new();
        until("the last receives", || {
            told.extend(hall.events().into_iter().filter(|event| event.0 == LAST));
            living.clone().all(|client| told.contains(&(LAST, Some(hall.number(client)))))
        });
        while let Some(wc) = hall.server.recv_cq.poll_one() {
            prop_assert!(!destroyed.iter().any(|&client| hall.number(client) == wc.qp_num));
            books.enter(&wc)?;
        }
        told.sort_unstable_by_key(|event| event.1);
        let before = told.len();
        told.dedup();
        prop_assert_eq!(told.len(), before, "told twice");
        let left = hall.srq.query();
        prop_assert_eq!((left.outstanding, left.waiting), (left.available, 0));
        // Those that destroyed queue pairs had taken.
        let gone = books.posted - books.reported.len() as u64 - u64::from(left.available);
        prop_assert!(gone == 0 || !destroyed.is_empty(), "{} receives are lost", gone);
        prop_assert!(hall.srq.holders().iter().all(|&(_, held)| held == 0));

        // An heir finds all that is left, in order and untouched.
        let heir = Pair { a: hall.setup.end(), b: hall.seat(|qp| qp) };
        hall.setup.join(&heir);
        let mut last = None;
        for id in 0..left.available {
            let text = [id.into(), u64::from(heir.b.qp.number())].map(u64::to_ne_bytes);
            heir.a.qp.post_send(SendRequest::send_inline_parts(0, text).unsignaled()).unwrap();
            let wc = hall.received();
            prop_assert!(wc.is_success() && last < Some(wc.wr_id), "{:?} after {:?}", wc, last);
            last = Some(wc.wr_id);
            books.enter(&wc)?;
        }
        prop_assert_eq!(hall.srq.query().outstanding, 0);
    }
}
