//! Who uses an object: what its destruction is refused for, by name.

use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;

use crate::error::Error;
use crate::mem::Origin;

/// What uses another object, in the order in which a program has to take it away.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum User {
    Id,
    Listener,
    EventChannel,
    QueuePair,
    SharedReceiveQueue,
    MemoryWindow,
    MemoryRegion,
    CompletionQueue,
    CompletionChannel,
    ProtectionDomain,
}

impl User {
    const ALL: [Self; 10] = [
        Self::Id,
        Self::Listener,
        Self::EventChannel,
        Self::QueuePair,
        Self::SharedReceiveQueue,
        Self::MemoryWindow,
        Self::MemoryRegion,
        Self::CompletionQueue,
        Self::CompletionChannel,
        Self::ProtectionDomain,
    ];

    /// The name of so many of them.
    pub(crate) fn name(self, count: usize) -> &'static str {
        let (one, several) = match self {
            Self::Id => ("id", "ids"),
            Self::Listener => ("listener", "listeners"),
            Self::EventChannel => ("event channel", "event channels"),
            Self::QueuePair => ("queue pair", "queue pairs"),
            Self::SharedReceiveQueue => ("shared receive queue", "shared receive queues"),
            Self::MemoryWindow => ("memory window", "memory windows"),
            Self::MemoryRegion => ("memory region", "memory regions"),
            Self::CompletionQueue => ("completion queue", "completion queues"),
            Self::CompletionChannel => ("completion channel", "completion channels"),
            Self::ProtectionDomain => ("protection domain", "protection domains"),
        };
        if count == 1 { one } else { several }
    }
}

/// How many of each kind use an object, and whether it was destroyed: never while there are some.
///
/// In a forked child it takes no lock, which a thread that is not there may hold, and nothing of it can be
/// used, or destroyed (FC-064).
#[derive(Debug)]
pub(crate) struct Users {
    origin: Origin,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    counts: [usize; User::ALL.len()],
    destroyed: bool,
}

impl Default for Users {
    fn default() -> Self {
        Self { origin: Origin::here(), state: Mutex::default() }
    }
}

impl Users {
    /// Marks the object as destroyed, unless something uses it.
    ///
    /// # Errors
    /// [`Error::Busy`] names one kind of users, the one to be taken away first; [`Error::Destroyed`] if
    /// somebody was faster; [`Error::Forked`].
    pub(crate) fn destroy(&self, what: &'static str) -> Result<(), Error> {
        if !self.origin.is_here() {
            return Err(Error::Forked);
        }
        let mut state = self.state.lock();
        if state.destroyed {
            return Err(Error::Destroyed { what });
        }
        let used = User::ALL.into_iter().zip(state.counts).find(|(_, count)| *count > 0);
        if let Some((user, users)) = used {
            return Err(Error::Busy { what, users, by: user.name(users) });
        }
        state.destroyed = true;
        Ok(())
    }

    pub(crate) fn is_destroyed(&self) -> bool {
        self.origin.is_here() && self.state.lock().destroyed
    }

    fn enter(&self, user: User, what: &'static str) -> Result<(), Error> {
        if !self.origin.is_here() {
            return Err(Error::Forked);
        }
        let mut state = self.state.lock();
        if state.destroyed {
            return Err(Error::Destroyed { what });
        }
        state.counts[user as usize] += 1;
        Ok(())
    }

    fn leave(&self, user: User) {
        if self.origin.is_here() {
            self.state.lock().counts[user as usize] -= 1;
        }
    }
}

/// An object that others use.
pub(crate) trait Used {
    /// Its name in errors.
    const WHAT: &'static str;

    fn users(&self) -> &Users;
}

/// One object's use of another: keeps it alive, and counts until it is [over](Self::end) or dropped.
#[derive(Debug)]
pub(crate) struct Use<T: Used> {
    of: Arc<T>,
    user: User,
    counts: AtomicBool,
}

impl<T: Used> Use<T> {
    /// # Errors
    /// [`Error::Destroyed`] if it was destroyed; [`Error::Forked`].
    pub(crate) fn begin(of: &Arc<T>, user: User) -> Result<Self, Error> {
        of.users().enter(user, T::WHAT)?;
        Ok(Self { of: Arc::clone(of), user, counts: AtomicBool::new(true) })
    }

    /// Keeps an object alive, counting only if it was not destroyed.
    pub(crate) fn begin_or_keep(of: &Arc<T>, user: User) -> Self {
        let counts = AtomicBool::new(of.users().enter(user, T::WHAT).is_ok());
        Self { of: Arc::clone(of), user, counts }
    }

    /// Counts no more: the user was destroyed, though handles to it may still be there.
    pub(crate) fn end(&self) {
        if self.counts.swap(false, Ordering::AcqRel) {
            self.of.users().leave(self.user);
        }
    }
}

impl<T: Used> Drop for Use<T> {
    fn drop(&mut self) {
        self.end();
    }
}

impl<T: Used> Deref for Use<T> {
    type Target = Arc<T>;

    fn deref(&self) -> &Arc<T> {
        &self.of
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, Default)]
    struct Thing(Users);

    impl Used for Thing {
        const WHAT: &'static str = "thing";

        fn users(&self) -> &Users {
            &self.0
        }
    }

    #[test]
    fn an_object_in_use_says_by_whom_and_one_that_is_destroyed_gets_no_users() {
        let thing = Arc::new(Thing::default());
        let all: Vec<_> =
            User::ALL.into_iter().map(|user| Use::begin(&thing, user).unwrap()).collect();
        let second = Use::begin(&thing, User::QueuePair).unwrap();
        for (user, using) in User::ALL.into_iter().zip(all) {
            let users = if user == User::QueuePair { 2 } else { 1 };
            let error = thing.0.destroy(Thing::WHAT).unwrap_err();
            let expected = format!("the thing is in use by {users} {}", user.name(users));
            assert_eq!((error.to_string(), error.errno()), (expected, 16));
            using.end();
            using.end();
            if user == User::QueuePair {
                second.end();
            }
        }
        thing.0.destroy(Thing::WHAT).unwrap();
        assert!(thing.0.is_destroyed());
        let again = thing.0.destroy(Thing::WHAT).unwrap_err();
        assert_eq!(again.to_string(), "the thing was destroyed");
        assert!(Use::begin(&thing, User::QueuePair).is_err());
        drop(Use::begin_or_keep(&thing, User::QueuePair));
    }
}
