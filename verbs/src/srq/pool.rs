//! [`Pool`]: the receives of a shared receive queue, and those who wait for one.

use std::collections::{BTreeMap, HashMap, VecDeque};

/// Posted receives, first in, first out, and a line of users that found none.
///
/// A user that finds nothing stands in line, in the same step. For each receive that is posted one user is
/// called out of the line, in order, and that receive is kept for it: others find the pool empty as long as
/// there are no more receives than users called. So no more are woken than can be served, and who waits is
/// never overtaken by who comes later. A user called that does not come any more [leaves](Pool::leave),
/// and the next one is called in its place.
///
/// The caller locks it, and wakes those that were called when it has unlocked it.
#[derive(Debug)]
pub(super) struct Pool<T, W> {
    receives: VecDeque<T>,
    /// Who waits, by their turn.
    line: BTreeMap<u64, (u32, W)>,
    /// Users in line, or called out of it.
    standing: HashMap<u32, Standing>,
    /// The next turn.
    turn: u64,
    /// Users that were called and have not come.
    called: usize,
    /// With fewer receives left the program is told, once. 0: it does not want to know.
    limit: usize,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Standing {
    /// In line, with this turn.
    Waits(u64),
    /// A receive is kept for it.
    Called,
}

/// What somebody who wanted a receive got.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Taken<T> {
    /// Nothing: the user is in line, and will be called.
    pub(super) receive: Option<T>,
    /// This has brought the pool below its limit, which is disarmed now.
    pub(super) low: bool,
}

impl<T, W> Pool<T, W> {
    pub(super) fn new(limit: u32) -> Self {
        let mut pool = Self {
            receives: VecDeque::new(),
            line: BTreeMap::new(),
            standing: HashMap::new(),
            turn: 0,
            called: 0,
            limit: 0,
        };
        pool.arm(limit);
        pool
    }

    /// Receives that nobody has taken.
    pub(super) fn len(&self) -> usize {
        self.receives.len()
    }

    /// Users in line.
    pub(super) fn waiting(&self) -> usize {
        self.line.len()
    }

    /// The limit, 0 when it has been reached or none was set.
    pub(super) fn limit(&self) -> u32 {
        u32::try_from(self.limit).unwrap_or(u32::MAX)
    }

    /// Sets the limit anew. It is looked at when a receive is taken, and at no other time.
    pub(super) fn arm(&mut self, limit: u32) {
        self.limit = usize::try_from(limit).unwrap_or(usize::MAX);
    }

    /// Appends a receive. What [`call`](Self::call) has to follow.
    pub(super) fn add(&mut self, receive: T) {
        self.receives.push_back(receive);
    }

    /// Calls one user out of the line, if there is a receive for it.
    pub(super) fn call(&mut self) -> Option<W> {
        if self.called >= self.receives.len() {
            return None;
        }
        let (_, (user, waiter)) = self.line.pop_first()?;
        self.standing.insert(user, Standing::Called);
        self.called += 1;
        Some(waiter)
    }

    /// Takes the oldest receive for `user`, or puts it in line, where `waiter` stands for it.
    pub(super) fn take(&mut self, user: u32, waiter: impl FnOnce() -> W) -> Taken<T> {
        // Nearly always nobody waits.
        let standing = if self.standing.is_empty() { None } else { self.standing.get(&user) };
        match standing {
            Some(Standing::Waits(_)) => return Taken { receive: None, low: false },
            Some(Standing::Called) => {
                self.standing.remove(&user);
                self.called -= 1;
            }
            None if self.called < self.receives.len() => {}
            None => {
                self.standing.insert(user, Standing::Waits(self.turn));
                self.line.insert(self.turn, (user, waiter()));
                self.turn += 1;
                return Taken { receive: None, low: false };
            }
        }
        let receive = self.receives.pop_front();
        debug_assert!(receive.is_some(), "one was kept for each user called");
        let low = self.receives.len() < self.limit;
        if low {
            self.limit = 0;
        }
        Taken { receive, low }
    }

    /// `user` will take nothing any more. Whom [`call`](Self::call) names then is to be woken.
    pub(super) fn leave(&mut self, user: u32) {
        match self.standing.remove(&user) {
            Some(Standing::Waits(turn)) => {
                self.line.remove(&turn);
            }
            Some(Standing::Called) => self.called -= 1,
            None => {}
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn take(pool: &mut Pool<u32, u32>, user: u32) -> Option<u32> {
        pool.take(user, || user).receive
    }

    #[test]
    fn receives_come_in_order() {
        let mut pool = Pool::new(0);
        (0..3).for_each(|receive| pool.add(receive));
        assert_eq!(pool.call(), None, "nobody waits");
        assert_eq!([take(&mut pool, 7), take(&mut pool, 8)], [Some(0), Some(1)]);
        assert_eq!((pool.len(), pool.waiting()), (1, 0));
    }

    /// Two wait and one receive comes: one is called, and neither the other nor a third gets it.
    #[test]
    fn a_receive_is_kept_for_the_one_that_was_called() {
        let mut pool = Pool::new(0);
        assert_eq!([take(&mut pool, 1), take(&mut pool, 2)], [None, None]);
        pool.add(10);
        assert_eq!((pool.call(), pool.call()), (Some(1), None));
        assert_eq!([take(&mut pool, 2), take(&mut pool, 3)], [None, None]);
        assert_eq!(take(&mut pool, 1), Some(10));
        // Who has had one comes last.
        assert_eq!(take(&mut pool, 1), None);
        (11..14).for_each(|receive| pool.add(receive));
        assert_eq!([(); 4].map(|()| pool.call()), [Some(2), Some(3), Some(1), None]);
    }

    #[test]
    fn whoever_leaves_makes_room_for_the_next() {
        let mut pool = Pool::new(0);
        for user in 1..=3 {
            assert_eq!(take(&mut pool, user), None);
        }
        pool.leave(2);
        pool.add(10);
        assert_eq!(pool.call(), Some(1));
        pool.leave(1);
        assert_eq!(pool.call(), Some(3));
        pool.leave(1);
        assert_eq!(take(&mut pool, 3), Some(10));
        assert_eq!(pool.waiting(), 0);
    }

    #[test]
    fn the_limit_is_reached_once() {
        let mut pool = Pool::new(2);
        (0..4).for_each(|receive| pool.add(receive));
        let mut low = || pool.take(1, || 1).low;
        assert_eq!([low(), low(), low(), low()], [false, false, true, false]);
        assert_eq!(pool.limit(), 0);
        pool.arm(5);
        assert!(!pool.take(1, || 1).low, "nothing was taken");
        pool.add(9);
        assert_eq!(pool.call(), Some(1));
        assert!(pool.take(1, || 1).low);
    }

    #[derive(Debug, Clone, Copy)]
    enum Step {
        Add,
        Take(u32),
        Leave(u32),
        /// One of those called comes, if there is one.
        Come(usize),
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            3 => Just(Step::Add),
            3 => (0..6_u32).prop_map(Step::Take),
            1 => (0..6_u32).prop_map(Step::Leave),
            3 => any::<usize>().prop_map(Step::Come),
        ]
    }

    proptest! {
        /// Any order of steps: receives come out once and in order, and never is somebody in line while a
        /// receive is free.
        #[test]
        fn nobody_waits_beside_a_free_receive(steps in proptest::collection::vec(step(), 0..80)) {
            let mut pool = Pool::new(0);
            let (mut added, mut out, mut called) = (0, 0, Vec::new());
            for step in steps {
                let user = match step {
                    Step::Add => {
                        pool.add(added);
                        added += 1;
                        None
                    }
                    Step::Take(user) => Some(user),
                    Step::Leave(user) => {
                        pool.leave(user);
                        called.retain(|&other| other != user);
                        None
                    }
                    Step::Come(which) if called.is_empty() => {
                        let _ = which;
                        None
                    }
                    Step::Come(which) => Some(called[which % called.len()]),
                };
                if let Some(user) = user {
                    let was_called = called.contains(&user);
                    called.retain(|&other| other != user);
                    match take(&mut pool, user) {
                        Some(receive) => {
                            prop_assert_eq!(receive, out, "first in, first out");
                            out += 1;
                        }
                        None => prop_assert!(!was_called, "a receive was kept for it"),
                    }
                }
                called.extend(std::iter::from_fn(|| pool.call()));
                let left = (added - out) as usize;
                prop_assert_eq!(pool.len(), left);
                prop_assert!(called.len() <= left, "no more are called than there are receives");
                prop_assert!(pool.waiting() == 0 || called.len() == left, "somebody waits in vain");
            }
        }
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use loom::sync::Arc;
    use loom::thread;

    use super::*;
    use crate::engine::kick::Kick;
    use crate::sync::Mutex;
    use crate::sync::atomic::{AtomicU32, Ordering};

    /// A queue pair as far as receives are concerned: passes under the kick, and what it got.
    struct User {
        number: u32,
        kick: Kick,
        /// It wants a receive.
        wants: AtomicU32,
        /// It ends with its next pass.
        dies: AtomicU32,
        got: AtomicU32,
    }

    struct Model {
        pool: Mutex<Pool<u32, usize>>,
        users: [User; 2],
        woken: AtomicU32,
    }

    impl Model {
        fn new() -> Arc<Self> {
            let user = |number| User {
                number,
                kick: Kick::new(),
                wants: AtomicU32::new(1),
                dies: AtomicU32::new(0),
                got: AtomicU32::new(0),
            };
            let users = [user(0), user(1)];
            Arc::new(Self { pool: Mutex::new(Pool::new(0)), users, woken: AtomicU32::new(0) })
        }

        /// The engine: whoever runs it looks again before leaving.
        fn drive(&self, index: usize) {
            let user = &self.users[index];
            if !user.kick.enter() {
                return;
            }
            loop {
                let called = self.pass(user);
                // As the engine does, once no lock is held.
                self.wake(called);
                if user.kick.leave() {
                    return;
                }
            }
        }

        fn pass(&self, user: &User) -> Vec<usize> {
            if user.dies.load(Ordering::Relaxed) == 1 {
                user.wants.store(0, Ordering::Relaxed);
                let mut pool = self.pool.lock();
                pool.leave(user.number);
                return std::iter::from_fn(|| pool.call()).collect();
            }
            if user.wants.load(Ordering::Relaxed) == 1 {
                let index = if user.number == 0 { 0 } else { 1 };
                let taken = self.pool.lock().take(user.number, || index);
                if taken.receive.is_some() {
                    user.wants.store(0, Ordering::Relaxed);
                    user.got.store(user.got.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
                }
            }
            Vec::new()
        }

        fn post(&self, receive: u32) {
            let called: Vec<_> = {
                let mut pool = self.pool.lock();
                pool.add(receive);
                std::iter::from_fn(|| pool.call()).collect()
            };
            self.wake(called);
        }

        fn wake(&self, called: Vec<usize>) {
            for index in called {
                self.woken.fetch_add(1, Ordering::Relaxed);
                self.drive(index);
            }
        }

        fn got(&self) -> u32 {
            self.users.iter().map(|user| user.got.load(Ordering::Relaxed)).sum()
        }
    }

    fn model(check: impl Fn() + Sync + Send + 'static) {
        let mut model = loom::model::Builder::new();
        model.preemption_bound = Some(3);
        model.check(check);
    }

    /// Two that want a receive against one who posts two: both get one, and each is woken at most once.
    #[test]
    fn loom_no_wake_up_is_lost() {
        model(|| {
            let model = Model::new();
            let takers: Vec<_> = (0..2)
                .map(|index| {
                    let model = Arc::clone(&model);
                    thread::spawn(move || model.drive(index))
                })
                .collect();
            model.post(1);
            model.post(2);
            for taker in takers {
                taker.join().expect("a model thread panicked");
            }
            assert_eq!(model.got(), 2, "a receive lies beside one who waits");
            let pool = model.pool.lock();
            assert_eq!((pool.len(), pool.waiting(), pool.called), (0, 0, 0));
            assert!(model.woken.load(Ordering::Relaxed) <= 2, "more woken than receives posted");
        });
    }

    /// Both wait, one receive is posted, and meanwhile one of them ends: the other gets it, unless the first
    /// had it before.
    #[test]
    fn loom_who_ends_passes_its_wake_up_on() {
        model(|| {
            let model = Model::new();
            model.drive(0);
            model.drive(1);
            let poster = {
                let model = Arc::clone(&model);
                thread::spawn(move || model.post(1))
            };
            model.users[0].dies.store(1, Ordering::Relaxed);
            model.drive(0);
            poster.join().expect("a model thread panicked");
            assert_eq!(model.got(), 1, "the receive lies beside one who waits");
            let pool = model.pool.lock();
            assert_eq!((pool.len(), pool.called), (0, 0));
        });
    }
}
