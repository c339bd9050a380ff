//! The place where one awaited request finds its completion.
//!
//! An operation of the await style does not pass through a completion queue, where a poll elsewhere
//! could take it. It carries a [`Slot`]; the engine fills it, and the future that waits on it takes
//! the result out. A dropped future leaves its request running: the engine fills a slot that
//! nobody reads any more.

use std::future::poll_fn;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use parking_lot::Mutex;

use crate::wc::WorkCompletion;

/// One completion, delivered once to whoever waits for it.
#[derive(Debug, Default)]
pub(crate) struct Slot {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
enum State {
    /// Neither completed nor waited for.
    #[default]
    Idle,
    /// Waited for by this task.
    Waiting(Waker),
    /// Completed, not yet taken.
    Done(WorkCompletion),
    /// Completed and taken.
    Taken,
}

impl Slot {
    /// An empty slot, shared by the work request and the future that waits.
    pub(crate) fn new() -> Arc<Self> {
        Arc::default()
    }

    /// Stores the completion. The waker it returns is to be woken once no lock is held.
    pub(crate) fn complete(&self, wc: WorkCompletion) -> Option<Waker> {
        let mut state = self.state.lock();
        match std::mem::replace(&mut *state, State::Done(wc)) {
            State::Waiting(waker) => Some(waker),
            State::Idle | State::Done(_) | State::Taken => None,
        }
    }

    /// Takes the completion, or leaves the task's waker behind.
    pub(crate) fn poll(&self, cx: &Context<'_>) -> Poll<WorkCompletion> {
        let mut state = self.state.lock();
        match &mut *state {
            State::Done(_) => match std::mem::replace(&mut *state, State::Taken) {
                State::Done(wc) => Poll::Ready(wc),
                State::Idle | State::Waiting(_) | State::Taken => Poll::Pending,
            },
            State::Waiting(waker) => {
                waker.clone_from(cx.waker());
                Poll::Pending
            }
            State::Idle | State::Taken => {
                *state = State::Waiting(cx.waker().clone());
                Poll::Pending
            }
        }
    }

    /// Waits for the completion. Cancel-safe: a dropped wait loses nothing but the result.
    pub(crate) async fn wait(&self) -> WorkCompletion {
        poll_fn(|cx| self.poll(cx)).await
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};
    use std::task::Wake;

    use super::*;
    use crate::wc::{WcFlags, WcOpcode, WcStatus};

    #[derive(Default)]
    struct Count(AtomicU32);

    impl Wake for Count {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn completion() -> WorkCompletion {
        WorkCompletion {
            wr_id: 5,
            status: WcStatus::Success,
            opcode: WcOpcode::Send,
            vendor_err: 0,
            byte_len: 3,
            qp_num: 9,
            flags: WcFlags::empty(),
            invalidated_rkey: None,
            imm_data: None,
        }
    }

    #[test]
    fn a_waiting_task_is_woken_and_finds_the_completion_once() {
        let slot = Slot::new();
        let count = Arc::new(Count::default());
        let waker = Waker::from(Arc::clone(&count));
        let cx = Context::from_waker(&waker);
        assert!(slot.poll(&cx).is_pending());
        assert!(slot.poll(&cx).is_pending());
        slot.complete(completion()).expect("somebody waits").wake();
        assert_eq!(count.0.load(Ordering::Relaxed), 1);
        assert_eq!(slot.poll(&cx), Poll::Ready(completion()));
        assert!(slot.poll(&cx).is_pending(), "taken");
    }

    #[test]
    fn a_completion_nobody_waits_for_is_kept() {
        let slot = Slot::new();
        assert!(slot.complete(completion()).is_none());
        let cx = Context::from_waker(Waker::noop());
        assert_eq!(slot.poll(&cx), Poll::Ready(completion()));
    }
}
