//! What a queue pair is asked to do besides moving data, in one word.

use std::sync::atomic::{AtomicU32, Ordering};

bitflags::bitflags! {
    /// Requests to the next pass.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub(crate) struct Asked: u32 {
        /// The driver was told of the socket, which is silent since.
        const SOCKET = 1;
        /// ... and that both directions are over.
        const HANGUP = 1 << 1;
        /// A deadline may have come.
        const TIMER = 1 << 2;
        /// A receive was posted that the stream waits for.
        const RECEIVE = 1 << 4;
        /// End in order, after all that is posted.
        const CLOSE = 1 << 5;
        /// End in order, now.
        const DISCONNECT = 1 << 6;
        /// Send a Terminate 0/0/00.
        const TERMINATE = 1 << 7;
        /// A completion queue has overrun: send a Terminate 0/2/07.
        const OVERRUN = 1 << 8;
        /// Reset.
        const ABORT = 1 << 9;
        /// Nobody has a handle any more.
        const ABANDON = 1 << 10;
        /// Look at the input.
        const INPUT = 1 << 11;
        /// The device fails: send a Terminate 0/2/08.
        const DEVICE_FATAL = 1 << 12;
        /// Tell when nothing of the send queue is left.
        const TELL_DRAINED = 1 << 13;
        /// Panic, to see what survives.
        #[cfg(test)]
        const PANIC = 1 << 31;
    }
}

/// The word.
#[derive(Debug, Default)]
pub(crate) struct AskedWord(AtomicU32);

impl AskedWord {
    /// Adds requests. The engine has to be run afterwards; the kick makes them visible to the pass.
    pub(crate) fn add(&self, asked: Asked) {
        self.0.fetch_or(asked.bits(), Ordering::Release);
    }

    /// Takes all requests.
    #[inline]
    pub(crate) fn take(&self) -> Asked {
        // Mostly there are none, and a load does not take the cache line from others.
        if self.0.load(Ordering::Relaxed) == 0 {
            return Asked::empty();
        }
        Asked::from_bits_retain(self.0.swap(0, Ordering::Acquire))
    }
}
