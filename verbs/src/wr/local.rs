//! Requests of the send queue that send nothing: they bind windows, and register and invalidate keys.
//!
//! They take effect in their turn: when what is ahead of them has left local memory, with a
//! [`fence`](SendRequest::fence) also when earlier Reads are complete, and before anything behind them
//! begins. So a Send that tells the peer a key may follow the request that makes the key valid.

use super::{PostErrorCause, SendFlags, SendOperation, SendRequest};
use crate::mem::{FastRegion, LocalWork, Mapping, MemoryWindow, PdId, WindowBinding, WindowType};
use crate::qp::QueuePair;
use crate::qp::wqe::Payload;
use crate::wr::PostError;

impl SendRequest {
    /// Takes a key of this side out of force: that of a region, a fast-registered region, or a window of
    /// type 2 that is bound through this queue pair. To invalidate what is invalid already succeeds.
    ///
    /// When it has completed, no octet moves through the key any more. Fails with
    /// [`LocQpOpErr`](crate::WcStatus::LocQpOpErr) if the queue pair may not, the key is unknown, or a window
    /// is bound to the region.
    #[must_use]
    pub fn local_invalidate(id: u64, rkey: u32) -> Self {
        let operation = SendOperation::LocalInvalidate { rkey };
        Self::new(id, operation, Payload::Raw(smallvec::SmallVec::new()))
    }

    /// Binds a window of type 2, which has to be unbound, under
    /// [`rkey_with(key)`](MemoryWindow::rkey_with). The peer of this queue pair can use it then, and no other.
    ///
    /// Fails with [`MwBindErr`](crate::WcStatus::MwBindErr) if the window is bound when its turn comes, or is
    /// gone, or its region is not valid any more. A key octet that was not used before keeps out peers that
    /// still know an old key.
    #[must_use]
    pub fn bind_window(id: u64, window: &MemoryWindow, key: u8, binding: WindowBinding) -> Self {
        let operation = SendOperation::BindWindow { rkey: window.rkey_with(key) };
        let mut request =
            Self::work(id, operation, LocalWork::Bind { window: window.clone(), key, binding });
        request.misplaced_window = window.window_type() == WindowType::One;
        request
    }

    /// Gives a fast-registered region, which has to be invalid, the memory of `mapping` under
    /// [`rkey_with(key)`](FastRegion::rkey_with).
    ///
    /// Fails with [`LocQpOpErr`](crate::WcStatus::LocQpOpErr) if it is valid when its turn comes, or gone, or
    /// if a region that it maps was deregistered.
    #[must_use]
    pub fn register(id: u64, region: &FastRegion, key: u8, mapping: Mapping) -> Self {
        let operation = SendOperation::Register { rkey: region.rkey_with(key) };
        Self::work(id, operation, LocalWork::Register { region: region.clone(), key, mapping })
    }

    fn work(id: u64, operation: SendOperation, work: LocalWork) -> Self {
        Self::new(id, operation, Payload::Work(Box::new(work)))
    }

    /// What posting checks of requests that send nothing.
    pub(super) fn check_local(&self, domain: PdId) -> Result<(), PostErrorCause> {
        if self.misplaced_invalidate {
            return Err(PostErrorCause::NotSupported("invalidation by anything but a Send"));
        }
        if self.misplaced_window {
            return Err(PostErrorCause::NotSupported(
                "a work request that binds a window of type 1",
            ));
        }
        if !(SendFlags::FENCE | SendFlags::SIGNALED).contains(self.flags) {
            return Err(PostErrorCause::NotSupported("a flag of a request that sends nothing"));
        }
        match (&self.payload, self.operation) {
            (Payload::Work(work), _) => Ok(work.check(domain)?),
            (Payload::Raw(elements), SendOperation::LocalInvalidate { .. })
                if elements.is_empty() =>
            {
                Ok(())
            }
            (Payload::Raw(_) | Payload::Slices(_) | Payload::Inline(_), _) => {
                Err(PostErrorCause::NotSupported("local work with the elements of a message"))
            }
        }
    }
}

impl QueuePair {
    /// Posts a request that binds a window of type 1, in place of what it is bound to, and returns the key
    /// that the window will have: another one each time. With [`WindowBinding::none`], or no octets, the
    /// window is only unbound.
    ///
    /// `flags` may have [`SendFlags::FENCE`] and [`SendFlags::SIGNALED`]. The binding is in force when the
    /// request has completed, and before any later request of the queue pair begins; the old key is out of
    /// force then. Every peer of the protection domain can use it. A request that fails with
    /// [`MwBindErr`](crate::WcStatus::MwBindErr) leaves the window as it was.
    ///
    /// # Errors
    /// As for [`post_send`](Self::post_send); [`PostErrorCause::Memory`] for a region or rights that do not
    /// allow it, and [`PostErrorCause::NotSupported`] for a window of type 2, which
    /// [`SendRequest::bind_window`] binds.
    pub fn bind_window(
        &self,
        id: u64,
        window: &MemoryWindow,
        binding: WindowBinding,
        flags: SendFlags,
    ) -> Result<u32, PostError> {
        let key = window.next_key();
        let mut request = SendRequest::bind_window(id, window, key, binding);
        request.misplaced_window = window.window_type() == WindowType::Two;
        request.flags = flags;
        self.post_send(request)?;
        Ok(window.rkey_with(key))
    }
}
