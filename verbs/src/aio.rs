//! The await style: requests as futures on a [`Connection`].
//!
//! ```
//! use iwarp_verbs::cm::{self, ConnParam, ListenConfig, Listener};
//! use iwarp_verbs::{Access, Device, DeviceConfig, QpConfig};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let device = Device::open(DeviceConfig::default())?;
//! let pd = device.alloc_pd();
//! let cq = device.create_cq(64)?;
//! let listener = Listener::bind(&device, "127.0.0.1:0", ListenConfig::default())?;
//!
//! let qp = pd.create_qp(&QpConfig::new(&cq))?;
//! let connecting = cm::connect(listener.local_addr(), &qp, ConnParam::default())?;
//! let request = listener.next().await;
//! let server_qp = pd.create_qp(&QpConfig::new(&cq))?;
//! let accepting = request.accept(&server_qp, ConnParam::default())?;
//! let (client, server) = (connecting.await?, accepting.await?);
//!
//! // The server offers memory; the client writes to it, reads it back, and says so.
//! let shared = pd.alloc(4096, Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ)?;
//! let offer = shared.remote();
//! let note = pd.alloc(64, Access::LOCAL_WRITE)?;
//! let local = pd.alloc(4096, Access::LOCAL_WRITE)?;
//! local.write_at(0, b"one-sided")?;
//!
//! let (told, sent) = tokio::join!(server.recv(note.as_slice_all()), async {
//!     client.write(local.slice(0..9)?, offer).await?;
//!     client.read(local.slice(100..109)?, offer).await?;
//!     client.send_inline(b"done").await?;
//!     Ok::<_, Box<dyn std::error::Error>>(())
//! });
//! sent?;
//! assert_eq!(told?.len, 4);
//! let mut back = [0; 9];
//! local.read_at(100, &mut back)?;
//! assert_eq!(&back, b"one-sided");
//!
//! client.close().await;
//! # Ok(())
//! # }
//! ```
//!
//! # Rules
//!
//! - A request completes into its own future, never into a completion queue; so both styles can be
//!   mixed on one connection, and a `poll` elsewhere takes nothing away.
//! - Nothing happens before a future is first polled. Then the request is posted, and runs on whether
//!   or not the future is polled again, or dropped: the memory it uses stays registered until it is
//!   done, and the result is lost. A dropped [`recv`](Connection::recv) that was posted so still takes
//!   a message; to wait with a limit, keep the future and poll it by reference.
//! - When the send queue is full the next request waits, first come first served.
//! - The futures need no particular runtime: the device's driver moves everything. [`wait`] runs one in
//!   the calling thread.

mod line;

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

use iwarp_rdmap::AtomicOperation;

pub(crate) use self::line::Line;
use crate::cm::Connection;
use crate::mem::{MemoryError, MrSlice, RemoteMemory};
use crate::wc::{FailedCompletion, WorkCompletion};
use crate::wr::{PostErrorCause, RecvRequest, SendRequest, Sgl};

/// Why an awaited request was not carried out.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RequestError {
    /// It was not posted, and nothing happened.
    #[error("request not posted: {0}")]
    Post(#[from] PostErrorCause),
    /// It was posted and failed, or the connection ended first.
    #[error(transparent)]
    Failed(#[from] FailedCompletion),
    /// It was carried out, but the region with the result was deregistered before it was looked at.
    #[error("result not readable: {0}")]
    Result(#[from] MemoryError),
}

/// A message that was received.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Received {
    /// Its length, in octets; the rest of the buffer is as it was.
    pub len: u32,
    /// The local key that the peer asked to invalidate, and that is invalid now.
    pub invalidated_rkey: Option<u32>,
    /// The 32 bits of the peer's Write with immediate data, if that is what came: `len` is then the length
    /// of the Write, and the buffer as it was.
    pub imm_data: Option<u32>,
}

impl Connection {
    /// Sends a message into the peer's next receive.
    ///
    /// Success means that the octets have left local memory for good, not that they have arrived; an
    /// answer of the peer, or a [`read`](Self::read), proves that. Cancel-safe, see the
    /// [rules](crate::aio#rules).
    pub async fn send(&self, data: impl Into<Sgl>) -> Result<(), RequestError> {
        self.request(SendRequest::send(0, data)).await.map(drop)
    }

    /// Sends a copy of `octets`, made when the future is first polled; at most as many as the queue
    /// pair takes inline.
    pub async fn send_inline(&self, octets: impl AsRef<[u8]>) -> Result<(), RequestError> {
        self.request(SendRequest::send_inline(0, octets)).await.map(drop)
    }

    /// Sends a message that also makes the peer invalidate one of its keys, after the message is
    /// placed.
    pub async fn send_with_invalidate(
        &self,
        data: impl Into<Sgl>,
        rkey: u32,
    ) -> Result<(), RequestError> {
        self.request(SendRequest::send(0, data).invalidate(rkey)).await.map(drop)
    }

    /// Writes to the start of the peer's memory `remote`. Success means what it means for
    /// [`send`](Self::send).
    pub async fn write(
        &self,
        data: impl Into<Sgl>,
        remote: RemoteMemory,
    ) -> Result<(), RequestError> {
        self.request(SendRequest::write(0, data, remote)).await.map(drop)
    }

    /// Writes a copy of `octets`, made when the future is first polled; at most as many as the queue
    /// pair takes inline.
    pub async fn write_inline(
        &self,
        octets: impl AsRef<[u8]>,
        remote: RemoteMemory,
    ) -> Result<(), RequestError> {
        self.request(SendRequest::write_inline(0, octets, remote)).await.map(drop)
    }

    /// Writes to the start of the peer's memory `remote`, and completes the peer's next receive with `imm`
    /// once all of it is there ([`Received::imm_data`]). Success means what it means for
    /// [`send`](Self::send).
    pub async fn write_with_imm(
        &self,
        data: impl Into<Sgl>,
        remote: RemoteMemory,
        imm: u32,
    ) -> Result<(), RequestError> {
        self.request(SendRequest::write_with_imm(0, data, remote, imm)).await.map(drop)
    }

    /// Reads from the start of the peer's memory `remote` as many octets as `into` has.
    ///
    /// Success means that they are there, and that everything sent before has arrived.
    pub async fn read(
        &self,
        into: impl Into<Sgl>,
        remote: RemoteMemory,
    ) -> Result<(), RequestError> {
        self.request(SendRequest::read(0, into, remote)).await.map(drop)
    }

    /// Adds `add` to the number of 64 bits at the start of the peer's memory `remote`, atomically
    /// ([`SendRequest::fetch_add`]). Returns what it was, which `original`, eight octets, holds as well.
    ///
    /// Success means that it is done, and that everything sent before has arrived. Cancel-safe in the sense of
    /// the [rules](crate::aio#rules): once polled it is carried out, and only the answer is lost.
    pub async fn fetch_add(
        &self,
        original: MrSlice,
        remote: RemoteMemory,
        add: u64,
    ) -> Result<u64, RequestError> {
        self.atomic(original, remote, AtomicOperation::fetch_add(add)).await
    }

    /// Replaces the number of 64 bits at the start of the peer's memory `remote` by `swap` if it is `compare`,
    /// atomically. Returns what it was: it was replaced if that is `compare`. Otherwise as
    /// [`fetch_add`](Self::fetch_add).
    pub async fn compare_swap(
        &self,
        original: MrSlice,
        remote: RemoteMemory,
        compare: u64,
        swap: u64,
    ) -> Result<u64, RequestError> {
        self.atomic(original, remote, AtomicOperation::compare_swap(compare, swap)).await
    }

    /// Replaces the number of 64 bits at the start of the peer's memory `remote`, atomically, and returns what
    /// it was. Otherwise as [`fetch_add`](Self::fetch_add).
    pub async fn swap(
        &self,
        original: MrSlice,
        remote: RemoteMemory,
        swap: u64,
    ) -> Result<u64, RequestError> {
        self.atomic(original, remote, AtomicOperation::swap(swap)).await
    }

    /// Any Atomic Operation, with masks perhaps. Otherwise as [`fetch_add`](Self::fetch_add).
    pub async fn atomic(
        &self,
        original: MrSlice,
        remote: RemoteMemory,
        operation: AtomicOperation,
    ) -> Result<u64, RequestError> {
        self.request(SendRequest::atomic(0, original.clone(), remote, operation)).await?;
        let mut octets = [0; 8];
        original.region().read_at(original.offset(), &mut octets)?;
        Ok(u64::from_ne_bytes(octets))
    }

    /// Carries out any request of the send queue, with its flags; its id comes back in the completion.
    /// Whether it is signalled makes no difference here.
    pub async fn request(&self, request: SendRequest) -> Result<WorkCompletion, RequestError> {
        let qp = &self.0.qp.0.inner;
        let slot = self.0.lines().sends.post(qp, request).await?;
        Ok(qp.send_cq.attend(slot.wait()).await.ok()?)
    }

    /// Receives the next message into `into`, behind the receives that were posted before.
    ///
    /// Dropped after it was first polled, it still takes its message: keep it, and poll it by
    /// reference, to wait with a limit.
    pub async fn recv(&self, into: impl Into<Sgl>) -> Result<Received, RequestError> {
        let request = RecvRequest::new(0, into);
        let qp = &self.0.qp.0.inner;
        let slot = self.0.lines().receives.post(qp, request).await?;
        let wc = qp.recv_cq.attend(slot.wait()).await.ok()?;
        Ok(Received {
            len: wc.byte_len,
            invalidated_rkey: wc.invalidated_rkey,
            imm_data: wc.imm_data,
        })
    }
}

/// Runs a future in the calling thread, at most for `timeout` if there is one; `None` when the time is
/// over first.
///
/// The blocking twin of every future of this library, none of which needs a runtime. A future that was
/// not done is dropped, with what that means for it. Not to be called from within a runtime's task.
///
/// ```
/// use std::time::Duration;
/// use iwarp_verbs::aio;
///
/// assert_eq!(aio::wait(async { 7 }, None), Some(7));
/// assert_eq!(aio::wait(std::future::pending::<()>(), Duration::from_millis(1)), None);
/// ```
pub fn wait<F: Future>(future: F, timeout: impl Into<Option<Duration>>) -> Option<F::Output> {
    let deadline = timeout.into().and_then(|timeout| Instant::now().checked_add(timeout));
    let unpark = Arc::new(Unpark { thread: thread::current(), woken: AtomicBool::new(false) });
    let waker = Waker::from(Arc::clone(&unpark));
    let mut cx = Context::from_waker(&waker);
    let mut future = pin!(future);
    loop {
        if let Poll::Ready(output) = future.as_mut().poll(&mut cx) {
            return Some(output);
        }
        while !unpark.woken.swap(false, Ordering::Acquire) {
            match deadline.map(|deadline| deadline.saturating_duration_since(Instant::now())) {
                None => thread::park(),
                Some(left) if left.is_zero() => return None,
                Some(left) => thread::park_timeout(left),
            }
        }
    }
}

struct Unpark {
    thread: Thread,
    /// Parking has spurious wake-ups, and its token may be taken by somebody else's park.
    woken: AtomicBool,
}

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.woken.store(true, Ordering::Release);
        self.thread.unpark();
    }
}
