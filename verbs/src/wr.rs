//! Work requests: what a program posts, and why a post can be refused.

mod local;
mod operation;
mod refusal;
#[cfg(test)]
mod tests;

use iwarp_rdmap::AtomicOperation;
use smallvec::SmallVec;

pub use self::operation::{SendFlags, SendOperation};
pub use self::refusal::{PostError, PostErrorCause};
use crate::attr::QpCaps;
use crate::mem::{Access, MrSlice, PdId, RemoteMemory};
use crate::qp::wqe::Payload;

/// One element of a raw request: memory by address and key, as in C.
///
/// Nothing is checked before the request runs; then the key must name a region of the queue pair's
/// protection domain that holds all the octets and has the right that the request needs. An element of
/// length 0 is not looked at.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct RawSge {
    /// Address of the first octet, or its offset in a region whose addresses start elsewhere.
    pub addr: u64,
    /// Octets.
    pub length: u32,
    /// The region's key.
    pub lkey: u32,
}

/// The local memory of a request: any number of slices of registered regions.
///
/// Made from one [`MrSlice`], an array or a `Vec` of them, or `()` for none:
///
/// ```
/// use iwarp_verbs::{Access, Device, DeviceConfig, RecvRequest};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let pd = Device::open(DeviceConfig::default())?.alloc_pd();
/// let region = pd.alloc(8192, Access::LOCAL_WRITE)?;
/// let none = RecvRequest::new(1, ());
/// let one = RecvRequest::new(2, region.slice(..64)?);
/// let two = RecvRequest::new(3, [region.slice(64..128)?, region.slice(4096..)?]);
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, Default)]
pub struct Sgl(SmallVec<[MrSlice; 1]>);

impl From<()> for Sgl {
    fn from((): ()) -> Self {
        Self::default()
    }
}

impl From<MrSlice> for Sgl {
    fn from(slice: MrSlice) -> Self {
        let mut slices = SmallVec::new();
        slices.push(slice);
        Self(slices)
    }
}

impl<const N: usize> From<[MrSlice; N]> for Sgl {
    fn from(slices: [MrSlice; N]) -> Self {
        Self(slices.into_iter().collect())
    }
}

impl From<Vec<MrSlice>> for Sgl {
    fn from(slices: Vec<MrSlice>) -> Self {
        Self(SmallVec::from_vec(slices))
    }
}

impl FromIterator<MrSlice> for Sgl {
    fn from_iter<I: IntoIterator<Item = MrSlice>>(slices: I) -> Self {
        Self(slices.into_iter().collect())
    }
}

/// A request for the send queue: a Send, an RDMA Write, an RDMA Read or an Atomic.
///
/// A request holds the memory it uses: a region is not freed as long as a request names it, and the
/// octets must be left alone until the request is done. `id` comes back as
/// [`WorkCompletion::wr_id`](crate::WorkCompletion::wr_id); the library does not look at it.
///
/// Requests are signalled, that is reported when they succeed, unless
/// [`unsignaled`](Self::unsignaled) is called. Failures are always reported.
#[derive(Debug, Clone)]
pub struct SendRequest {
    pub(crate) id: u64,
    pub(crate) operation: SendOperation,
    pub(crate) payload: Payload,
    pub(crate) flags: SendFlags,
    /// Octets that the peer offered, if the program told.
    remote_len: Option<u64>,
    /// An invalidation was asked of something else than a Send: posting refuses it.
    misplaced_invalidate: bool,
    /// A window is bound in the way that is another type's: posting refuses it.
    misplaced_window: bool,
}

impl SendRequest {
    /// Sends the octets of `sgl` into the peer's next receive.
    ///
    /// Success means that they have left local memory for good, not that they have arrived.
    pub fn send(id: u64, sgl: impl Into<Sgl>) -> Self {
        Self::new(id, SendOperation::Send, Payload::Slices(sgl.into().0))
    }

    /// Sends a copy of `octets`, made now.
    pub fn send_inline(id: u64, octets: impl AsRef<[u8]>) -> Self {
        Self::new(id, SendOperation::Send, inline([octets]))
    }

    /// Sends a copy of all `parts`, one behind the other, made now (FC-067).
    pub fn send_inline_parts(id: u64, parts: impl IntoIterator<Item = impl AsRef<[u8]>>) -> Self {
        Self::new(id, SendOperation::Send, inline(parts))
    }

    /// Writes the octets of `sgl` to the start of `remote`.
    ///
    /// Success means that they have left local memory for good, not that they have arrived.
    pub fn write(id: u64, sgl: impl Into<Sgl>, remote: RemoteMemory) -> Self {
        Self::to(id, Payload::Slices(sgl.into().0), remote)
    }

    /// Writes a copy of `octets`, made now, to the start of `remote`.
    pub fn write_inline(id: u64, octets: impl AsRef<[u8]>, remote: RemoteMemory) -> Self {
        Self::to(id, inline([octets]), remote)
    }

    /// Writes a copy of all `parts`, one behind the other and made now, to the start of `remote`.
    pub fn write_inline_parts(
        id: u64,
        parts: impl IntoIterator<Item = impl AsRef<[u8]>>,
        remote: RemoteMemory,
    ) -> Self {
        Self::to(id, inline(parts), remote)
    }

    /// Writes the octets of `sgl` to the start of `remote`, and tells the peer's program: its next receive
    /// completes as [`RecvRdmaWithImm`](crate::WcOpcode::RecvRdmaWithImm) with `imm`, once all of the Write
    /// is placed.
    ///
    /// Nothing is placed in that receive, so one without elements will do. One completion is reported, when
    /// both the Write and the data behind it have left local memory. RFC 7306 has to be served at both ends
    /// (FC-073): a peer that does not know it ends the connection, and where it is switched off here
    /// ([`QpConfig::extensions`](crate::QpConfig::extensions)) posting refuses the request.
    pub fn write_with_imm(id: u64, sgl: impl Into<Sgl>, remote: RemoteMemory, imm: u32) -> Self {
        Self::to(id, Payload::Slices(sgl.into().0), remote).with_imm(imm)
    }

    /// As [`write_with_imm`](Self::write_with_imm), with a copy of `octets` that is made now.
    pub fn write_inline_with_imm(
        id: u64,
        octets: impl AsRef<[u8]>,
        remote: RemoteMemory,
        imm: u32,
    ) -> Self {
        Self::to(id, inline([octets]), remote).with_imm(imm)
    }

    /// Reads from the start of `remote` as many octets as `sgl` has.
    ///
    /// The regions need [`Access::LOCAL_WRITE`], nothing more: no key of theirs reaches the peer
    /// (FC-026). Success means that the octets are there, and that everything this side sent before has
    /// arrived.
    pub fn read(id: u64, sgl: impl Into<Sgl>, remote: RemoteMemory) -> Self {
        let operation = SendOperation::RdmaRead { remote_addr: remote.addr, rkey: remote.rkey };
        Self {
            remote_len: Some(remote.len),
            ..Self::new(id, operation, Payload::Slices(sgl.into().0))
        }
    }

    /// Adds `add` to the number of 64 bits at the start of `remote`, atomically, and puts what it was into
    /// `original`: one element of eight octets, which get a number in host order.
    ///
    /// The number is one of the peer's host, in its order of octets, and its memory must be aligned to eight
    /// octets. The peer's region needs [`Access::REMOTE_ATOMIC`], the local one [`Access::LOCAL_WRITE`].
    /// Atomic with respect to all other Atomics on that memory, and to the accesses that
    /// [`MemoryRegion::fetch_add_u64`](crate::MemoryRegion::fetch_add_u64) tells of. Counts as a Read of the
    /// connection's ORD. Success means that it is done, and that everything this side sent before has arrived.
    pub fn fetch_add(id: u64, original: impl Into<Sgl>, remote: RemoteMemory, add: u64) -> Self {
        Self::atomic(id, original, remote, AtomicOperation::fetch_add(add))
    }

    /// Replaces the number at the start of `remote` by `swap` if it is `compare`, atomically. Otherwise as
    /// [`fetch_add`](Self::fetch_add); whether it was replaced, the original value tells.
    pub fn compare_swap(
        id: u64,
        original: impl Into<Sgl>,
        remote: RemoteMemory,
        compare: u64,
        swap: u64,
    ) -> Self {
        Self::atomic(id, original, remote, AtomicOperation::compare_swap(compare, swap))
    }

    /// Replaces the number at the start of `remote` by `swap`, atomically. Otherwise as
    /// [`fetch_add`](Self::fetch_add).
    pub fn swap(id: u64, original: impl Into<Sgl>, remote: RemoteMemory, swap: u64) -> Self {
        Self::atomic(id, original, remote, AtomicOperation::swap(swap))
    }

    /// Any Atomic Operation, with masks perhaps, on the number at the start of `remote`. Otherwise as
    /// [`fetch_add`](Self::fetch_add).
    pub fn atomic(
        id: u64,
        original: impl Into<Sgl>,
        remote: RemoteMemory,
        operation: AtomicOperation,
    ) -> Self {
        let operation = SendOperation::of_atomic(remote.rkey, remote.addr, operation);
        Self {
            remote_len: Some(remote.len),
            ..Self::new(id, operation, Payload::Slices(original.into().0))
        }
    }

    /// Any request, with memory named by address and key: what a C program posts.
    ///
    /// Signalled only if `flags` say so.
    pub fn raw(
        id: u64,
        operation: SendOperation,
        elements: impl IntoIterator<Item = RawSge>,
        flags: SendFlags,
    ) -> Self {
        let payload = Payload::Raw(elements.into_iter().collect());
        Self { flags, ..Self::new(id, operation, payload) }
    }

    /// Any request with a copy of all `parts`, made now: what a C program posts with inline data.
    pub fn raw_inline(
        id: u64,
        operation: SendOperation,
        parts: impl IntoIterator<Item = impl AsRef<[u8]>>,
        flags: SendFlags,
    ) -> Self {
        Self { flags, ..Self::new(id, operation, inline(parts)) }
    }

    /// Makes the peer invalidate its key `rkey` after the message is placed. For Sends only; posting
    /// refuses it for others.
    #[must_use]
    pub fn invalidate(mut self, rkey: u32) -> Self {
        match self.operation {
            SendOperation::Send | SendOperation::SendWithInvalidate { .. } => {
                self.operation = SendOperation::SendWithInvalidate { rkey };
            }
            _ => self.misplaced_invalidate = true,
        }
        self
    }

    /// Marks the message so that it wakes a peer that armed its queue for
    /// [`Notify::Solicited`](crate::Notify::Solicited). For Sends and Writes with immediate data only, whose
    /// messages take a receive; posting refuses it for others.
    #[must_use]
    pub fn solicited(mut self) -> Self {
        self.flags |= SendFlags::SOLICITED;
        self
    }

    /// Starts the request only when all earlier Reads and Atomics of the queue pair are complete.
    ///
    /// Those that send nothing wait in any case until earlier Sends and Writes have left local memory, so a
    /// fenced [`local_invalidate`](Self::local_invalidate) waits for all that is ahead of it.
    #[must_use]
    pub fn fence(mut self) -> Self {
        self.flags |= SendFlags::FENCE;
        self
    }

    /// Does not report success.
    ///
    /// The place in the queue is free again once a later request has been reported and polled, so at
    /// least one request of each queue length must be signalled.
    #[must_use]
    pub fn unsignaled(mut self) -> Self {
        self.flags -= SendFlags::SIGNALED;
        self
    }

    /// The number that its completion carries.
    #[must_use]
    pub fn id(&self) -> u64 {
        self.id
    }

    /// What it does.
    #[must_use]
    pub fn operation(&self) -> SendOperation {
        self.operation
    }

    /// Its options.
    #[must_use]
    pub fn flags(&self) -> SendFlags {
        self.flags
    }

    /// Length of its message in octets.
    #[must_use]
    pub fn message_len(&self) -> u64 {
        self.payload.len()
    }

    fn new(id: u64, operation: SendOperation, payload: Payload) -> Self {
        Self {
            id,
            operation,
            payload,
            flags: SendFlags::SIGNALED,
            remote_len: None,
            misplaced_invalidate: false,
            misplaced_window: false,
        }
    }

    /// Makes a Write one with immediate data.
    fn with_imm(mut self, imm: u32) -> Self {
        if let SendOperation::RdmaWrite { remote_addr, rkey } = self.operation {
            self.operation = SendOperation::RdmaWriteWithImm { remote_addr, rkey, imm };
        }
        self
    }

    fn to(id: u64, payload: Payload, remote: RemoteMemory) -> Self {
        let operation = SendOperation::RdmaWrite { remote_addr: remote.addr, rkey: remote.rkey };
        Self { remote_len: Some(remote.len), ..Self::new(id, operation, payload) }
    }

    /// What an Atomic needs: one element of eight octets, and a place that is a multiple of 8.
    fn check_atomic(&self) -> Result<(), PostErrorCause> {
        let (elements, len) = (self.payload.elements(), self.payload.len());
        if elements != 1 || len != 8 {
            return Err(PostErrorCause::AtomicSink { elements, len });
        }
        match self.operation.atomic() {
            Some((_, addr, _)) if !addr.is_multiple_of(8) => {
                Err(PostErrorCause::Misaligned { addr })
            }
            _ => Ok(()),
        }
    }

    /// All that posting checks besides the state of the queue pair and the room in its queue. Returns
    /// the length of the message.
    pub(crate) fn check(&self, caps: &QpCaps, domain: PdId) -> Result<u32, PostErrorCause> {
        if self.operation.is_local() {
            return self.check_local(domain).map(|()| 0);
        }
        let (solicitable, read) = match self.operation {
            SendOperation::Send
            | SendOperation::SendWithInvalidate { .. }
            | SendOperation::RdmaWriteWithImm { .. } => (true, false),
            // V6
            SendOperation::SendWithImm { .. } => {
                return Err(PostErrorCause::NotSupported(
                    "a Send with immediate data, which iWARP cannot carry,",
                ));
            }
            SendOperation::RdmaRead { .. } => (false, true),
            SendOperation::RdmaWrite { .. }
            | SendOperation::LocalInvalidate { .. }
            | SendOperation::BindWindow { .. }
            | SendOperation::Register { .. } => (false, false),
            SendOperation::FetchAdd { .. }
            | SendOperation::CompareSwap { .. }
            | SendOperation::MaskedFetchAdd { .. }
            | SendOperation::MaskedCompareSwap { .. } => {
                self.check_atomic()?;
                (false, true)
            }
        };
        if self.misplaced_invalidate {
            return Err(PostErrorCause::NotSupported("invalidation by anything but a Send"));
        }
        if self.flags.contains(SendFlags::SOLICITED) && !solicitable {
            return Err(PostErrorCause::NotSupported(
                "a solicited event of a message that takes no receive",
            ));
        }
        if !SendFlags::all().contains(self.flags) {
            return Err(PostErrorCause::NotSupported("a flag that is not known"));
        }
        if read && matches!(self.payload, Payload::Inline(_)) {
            return Err(PostErrorCause::NotSupported(
                "inline data as the sink of a Read or Atomic",
            ));
        }
        let need = if read { Access::LOCAL_WRITE } else { Access::empty() };
        check_elements(&self.payload, caps.max_send_sge, domain, need)?;
        let len = self.payload.len();
        if matches!(self.payload, Payload::Inline(_)) && len > u64::from(caps.max_inline_data) {
            return Err(PostErrorCause::InlineTooLong { len, max: caps.max_inline_data });
        }
        // FC-063: 64-bit arithmetic, so a sum of 2^32 is no 0.
        let message = u32::try_from(len)
            .map_err(|_| PostErrorCause::MessageTooLong { len, max: MESSAGE_MAX })?;
        match self.remote_len {
            Some(remote) if len > remote => Err(PostErrorCause::OutOfBounds { len, remote }),
            _ => Ok(message),
        }
    }
}

/// A buffer for one message of the peer.
///
/// It holds its memory as a [`SendRequest`] does; the regions need [`Access::LOCAL_WRITE`]. A message
/// longer than the buffer is an error that ends the connection; a shorter one leaves the rest alone.
#[derive(Debug, Clone)]
pub struct RecvRequest {
    pub(crate) id: u64,
    pub(crate) payload: Payload,
}

impl RecvRequest {
    /// Receives the next message into `sgl`; with `()` only a message without octets fits (FC-068).
    pub fn new(id: u64, sgl: impl Into<Sgl>) -> Self {
        Self { id, payload: Payload::Slices(sgl.into().0) }
    }

    /// Receives into memory named by address and key: what a C program posts.
    pub fn raw(id: u64, elements: impl IntoIterator<Item = RawSge>) -> Self {
        Self { id, payload: Payload::Raw(elements.into_iter().collect()) }
    }

    /// The number that its completion carries.
    #[must_use]
    pub fn id(&self) -> u64 {
        self.id
    }

    /// Octets that fit.
    #[must_use]
    pub fn capacity(&self) -> u64 {
        self.payload.len()
    }

    /// All that posting checks besides the state of the queue pair and the room in its queue. Returns
    /// the octets that fit.
    pub(crate) fn check(&self, max_sge: u32, domain: PdId) -> Result<u64, PostErrorCause> {
        check_elements(&self.payload, max_sge, domain, Access::LOCAL_WRITE)?;
        Ok(self.payload.len())
    }
}

/// Octets of the longest message (RFC 5041 §4.2 counts them in 32 bits).
pub(crate) const MESSAGE_MAX: u32 = u32::MAX;

fn inline(parts: impl IntoIterator<Item = impl AsRef<[u8]>>) -> Payload {
    let mut copy = SmallVec::new();
    for part in parts {
        copy.extend_from_slice(part.as_ref());
    }
    Payload::Inline(copy)
}

fn check_elements(
    payload: &Payload,
    max: u32,
    domain: PdId,
    need: Access,
) -> Result<(), PostErrorCause> {
    let have = match payload {
        Payload::Inline(_) | Payload::Work(_) => return Ok(()),
        Payload::Slices(slices) => slices.len(),
        Payload::Raw(elements) => elements.len(),
    };
    if have as u64 > u64::from(max) {
        return Err(PostErrorCause::TooManyElements { have, max });
    }
    // Keys of raw elements are looked at when the request runs, as a C program expects.
    let Payload::Slices(slices) = payload else { return Ok(()) };
    for (element, slice) in slices.iter().enumerate() {
        // Nothing is checked of an element without octets (FC-068).
        if slice.is_empty() {
            continue;
        }
        let region = slice.region().region();
        if region.domain() != domain {
            return Err(PostErrorCause::ForeignRegion { element });
        }
        let have = region.access();
        if !have.contains(need) {
            return Err(PostErrorCause::Rights { element, need, have });
        }
        if region.is_deregistered() {
            return Err(PostErrorCause::Deregistered { element });
        }
    }
    Ok(())
}
