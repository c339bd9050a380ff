//! [`Armed`]: the request to be told about the next completion.

use crate::sync::atomic::{AtomicU32, Ordering};

/// Nothing is asked for.
const IDLE: u32 = 0;
const SOLICITED: u32 = 1;
/// Wider than [`SOLICITED`], and larger.
const ANY: u32 = 2;

/// Which completions a program wants to be told of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Notify {
    /// The next completion of any kind.
    Any,
    /// The next receive of a message with the solicited-event bit, or the next completion in error.
    Solicited,
}

/// One-shot request for a notification, set by consumers and taken by producers.
///
/// The order of steps makes it safe. A consumer arms, then polls once more, then sleeps. A producer
/// stores the completion, then calls [`take_on_push`](Self::take_on_push). Both change the word by a
/// read-modify-write, so one comes first: if it is the arming, the producer sees it and notifies; if
/// it is the producer, the arming has synchronised with it and the second poll finds the completion
/// (FC-038).
#[derive(Debug)]
pub(crate) struct Armed(AtomicU32);

impl Armed {
    pub(crate) fn new() -> Self {
        Self(AtomicU32::new(IDLE))
    }

    /// Asks for one notification. Asked twice, the wider request counts, and once.
    #[inline]
    pub(crate) fn arm(&self, notify: Notify) {
        let wanted = match notify {
            Notify::Any => ANY,
            Notify::Solicited => SOLICITED,
        };
        self.0.fetch_max(wanted, Ordering::AcqRel);
    }

    /// Whether a completion that has just been stored must be notified; the request is then used up.
    ///
    /// `solicited`: it is a receive with the solicited-event bit, or any completion in error.
    #[inline]
    #[must_use = "the request is used up: notify"]
    pub(crate) fn take_on_push(&self, solicited: bool) -> bool {
        if solicited {
            return self.0.swap(IDLE, Ordering::AcqRel) != IDLE;
        }
        let mut seen = self.0.load(Ordering::Relaxed);
        loop {
            // Written even if it stays the same: a mere look could miss a request while its consumer
            // misses the completion.
            let next = if seen == ANY { IDLE } else { seen };
            match self.0.compare_exchange_weak(seen, next, Ordering::AcqRel, Ordering::Relaxed) {
                Ok(_) => return seen == ANY,
                Err(now) => seen = now,
            }
        }
    }
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use super::*;

    #[test]
    fn fires_once_for_each_arming() {
        let armed = Armed::new();
        assert!(!armed.take_on_push(true), "not armed");
        armed.arm(Notify::Any);
        assert!(armed.take_on_push(false));
        assert!(!armed.take_on_push(false));
        assert!(!armed.take_on_push(true));
    }

    #[test]
    fn a_solicited_request_waits_for_its_kind() {
        let armed = Armed::new();
        armed.arm(Notify::Solicited);
        assert!(!armed.take_on_push(false));
        assert!(!armed.take_on_push(false));
        assert!(armed.take_on_push(true));
        assert!(!armed.take_on_push(true));
    }

    #[test]
    fn the_wider_request_wins_and_fires_once() {
        for order in [[Notify::Any, Notify::Solicited], [Notify::Solicited, Notify::Any]] {
            let armed = Armed::new();
            for notify in order {
                armed.arm(notify);
            }
            assert!(armed.take_on_push(false), "{order:?}");
            assert!(!armed.take_on_push(true), "{order:?}");
        }
    }
}

#[cfg(test)]
#[cfg(loom)]
mod loom_tests {
    use loom::sync::Arc;
    use loom::sync::atomic::{AtomicU32, Ordering};
    use loom::thread;

    use super::*;

    /// `stored` is the queue: a count without any ordering of its own. `woken` is the channel.
    struct Model {
        armed: Armed,
        stored: AtomicU32,
        woken: AtomicU32,
    }

    impl Model {
        fn new() -> Arc<Self> {
            Arc::new(Self {
                armed: Armed::new(),
                stored: AtomicU32::new(0),
                woken: AtomicU32::new(0),
            })
        }

        fn push(&self, solicited: bool) {
            self.stored.fetch_add(1, Ordering::Relaxed);
            if self.armed.take_on_push(solicited) {
                self.woken.fetch_add(1, Ordering::Relaxed);
            }
        }
    }

    /// FC-038: a consumer that armed and then found nothing is woken.
    #[test]
    fn loom_no_wake_up_is_lost() {
        for (notify, solicited) in
            [(Notify::Any, false), (Notify::Any, true), (Notify::Solicited, true)]
        {
            loom::model(move || {
                let model = Model::new();
                let producers: Vec<_> = (0..2)
                    .map(|_| {
                        let model = Arc::clone(&model);
                        thread::spawn(move || model.push(solicited))
                    })
                    .collect();
                model.armed.arm(notify);
                let found = model.stored.load(Ordering::Relaxed);
                for producer in producers {
                    producer.join().expect("a producer");
                }
                let woken = model.woken.load(Ordering::Relaxed);
                assert!(woken <= 1, "one arming, {woken} events");
                assert!(woken == 1 || found == 2, "asleep with {} unseen", 2 - found);
            });
        }
    }

    /// A producer that is not asked for must not hide the request from the one that is.
    #[test]
    fn loom_an_unsolicited_push_leaves_the_request() {
        loom::model(|| {
            let model = Model::new();
            let other = {
                let model = Arc::clone(&model);
                thread::spawn(move || model.push(false))
            };
            let asked = {
                let model = Arc::clone(&model);
                thread::spawn(move || model.push(true))
            };
            model.armed.arm(Notify::Solicited);
            let found = model.stored.load(Ordering::Relaxed);
            other.join().expect("a producer");
            asked.join().expect("a producer");
            let woken = model.woken.load(Ordering::Relaxed);
            assert!(woken <= 1);
            // Not woken: the solicited push came first, so the poll after arming saw it.
            assert!(woken == 1 || found >= 1);
        });
    }

    /// Two consumers arm: whoever finds nothing may count on an event, which is shared.
    #[test]
    fn loom_two_consumers() {
        loom::model(|| {
            let model = Model::new();
            let producer = {
                let model = Arc::clone(&model);
                thread::spawn(move || model.push(false))
            };
            let second = {
                let model = Arc::clone(&model);
                thread::spawn(move || {
                    model.armed.arm(Notify::Solicited);
                })
            };
            model.armed.arm(Notify::Any);
            let found = model.stored.load(Ordering::Relaxed);
            second.join().expect("a consumer");
            producer.join().expect("a producer");
            assert!(model.woken.load(Ordering::Relaxed) == 1 || found == 1);
        });
    }
}
