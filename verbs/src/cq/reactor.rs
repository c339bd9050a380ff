//! The sockets of a completion queue in the reactors of the program's runtimes.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::{fmt, io};

use parking_lot::Mutex;
use tokio::runtime::{Handle, Id};

use super::CqInner;
use crate::sys::{Ready, TaskWaiter, WaitSet};

/// Places that are kept for the next task.
const KEPT: usize = 8;

/// Where tasks wait for sockets: one place for each task that waits, kept for the next one of the same
/// runtime.
///
/// An accelerator and nothing more. Without a place a task is woken by whoever pushes the completion, the
/// driver if nobody else does.
#[derive(Default)]
pub(super) struct Reactors(Mutex<Vec<Place>>);

struct Place {
    runtime: Id,
    /// `None`: the runtime takes no descriptors.
    waiter: Option<TaskWaiter>,
}

/// A place that is taken.
pub(super) struct Taken<'a> {
    reactors: &'a Reactors,
    set: Arc<WaitSet>,
    runtime: Id,
    /// `None`: the place has failed and is not to be kept.
    waiter: Option<TaskWaiter>,
}

impl Reactors {
    /// A place in the present runtime, if there is one and it takes descriptors.
    pub(super) fn enter(&self, cq: &CqInner) -> Option<Taken<'_>> {
        let runtime = Handle::try_current().ok()?.id();
        let set = Arc::clone(cq.members().wait_set().ok()?);
        let known = {
            let mut places = self.0.lock();
            match places.iter().rposition(|place| place.runtime == runtime) {
                // It stays, to say that there will be none.
                Some(at) if places.get(at)?.waiter.is_none() => return None,
                Some(at) => places.remove(at).waiter,
                None => None,
            }
        };
        let waiter = match known {
            Some(waiter) => waiter,
            None => self.register(&set, runtime)?,
        };
        Some(Taken { reactors: self, set, runtime, waiter: Some(waiter) })
    }

    fn register(&self, set: &Arc<WaitSet>, runtime: Id) -> Option<TaskWaiter> {
        // tokio has no way to ask whether the runtime has a reactor, and panics without one.
        match catch_unwind(AssertUnwindSafe(|| set.task_waiter())) {
            Ok(Ok(waiter)) => waiter,
            Ok(Err(error)) => {
                tracing::debug!(%error, "a task has no descriptor to wait for sockets with");
                None
            }
            Err(_) => {
                tracing::debug!(
                    "a task waits in a runtime without IO; the driver moves its connections"
                );
                self.keep(Place { runtime, waiter: None });
                None
            }
        }
    }

    fn keep(&self, place: Place) {
        // It leaves the reactor after the lock is gone.
        let _oldest = {
            let mut places = self.0.lock();
            // Those of runtimes that are gone are at the front.
            let oldest = (places.len() >= KEPT).then(|| places.remove(0));
            places.push(place);
            oldest
        };
    }
}

impl Taken<'_> {
    /// As [`TaskWaiter::ready`].
    pub(super) async fn ready(&mut self, out: &mut Vec<Ready>) -> io::Result<()> {
        let Some(waiter) = &mut self.waiter else { return std::future::pending().await };
        let result = waiter.ready(out).await;
        if result.is_err() {
            self.waiter = None;
        }
        result
    }

    /// Drives the connections whose sockets were reported.
    pub(super) fn drive(&self, cq: &CqInner, ready: &mut Vec<Ready>) {
        cq.members().drive_ready(&self.set, ready);
    }
}

impl Drop for Taken<'_> {
    fn drop(&mut self) {
        if let Some(waiter) = self.waiter.take() {
            self.reactors.keep(Place { runtime: self.runtime, waiter: Some(waiter) });
        }
    }
}

impl Reactors {
    /// In a forked child: leaves all descriptors where they are. The sets that they would be taken out of
    /// are the parent's.
    pub(super) fn forget(&mut self) {
        std::mem::forget(std::mem::take(self.0.get_mut()));
    }
}

impl fmt::Debug for Reactors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reactors").field("places", &self.0.lock().len()).finish()
    }
}
