//! [`Access`]: what may be done with registered memory, and by whom.

use super::MemoryError;

bitflags::bitflags! {
    /// Rights given to a memory region. The values are those of `enum ibv_access_flags`.
    ///
    /// Local reading, as the source of a Send or Write, is always allowed.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct Access: u32 {
        /// Receives and the answers to own Reads may be placed here.
        const LOCAL_WRITE = 1;
        /// A peer may write; needs [`LOCAL_WRITE`](Self::LOCAL_WRITE).
        const REMOTE_WRITE = 1 << 1;
        /// A peer may read.
        const REMOTE_READ = 1 << 2;
        /// A peer may run atomic operations; needs [`LOCAL_WRITE`](Self::LOCAL_WRITE).
        const REMOTE_ATOMIC = 1 << 3;
        /// Memory windows may be bound to the region.
        const MW_BIND = 1 << 4;
        /// Tagged offsets count from 0 instead of from the address.
        const ZERO_BASED = 1 << 5;
    }
}

impl Access {
    /// All rights that concern a peer.
    pub const REMOTE: Self = Self::REMOTE_WRITE.union(Self::REMOTE_READ).union(Self::REMOTE_ATOMIC);

    /// Refuses combinations that the verbs do not know.
    pub(crate) fn check(self) -> Result<Self, MemoryError> {
        let writes = self & (Self::REMOTE_WRITE | Self::REMOTE_ATOMIC);
        if !Self::all().contains(self) {
            return Err(MemoryError::UnknownAccess { bits: self.bits() & !Self::all().bits() });
        }
        if !writes.is_empty() && !self.contains(Self::LOCAL_WRITE) {
            return Err(MemoryError::NeedsLocalWrite { access: self });
        }
        Ok(self)
    }
}
