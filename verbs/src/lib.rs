//! iWARP verbs in user space: remote direct memory access over plain TCP.
//!
//! A program registers memory, connects a queue pair to a peer, and posts work requests: write into the peer's
//! memory, read from it, or send a message into a buffer that the peer has posted. No adapter, kernel
//! module or privilege is needed, and on the wire it is the protocol of RFC 5040, 5041, 5044 and 6581, which
//! iWARP adapters and Linux's siw speak as well.
//!
//! # Objects
//!
//! The names are those of the field, and a verbs programmer will find the rules of libibverbs; integer values
//! of statuses, opcodes, flags and states are the same.
//!
//! ```text
//!  Device ─┬─ ProtectionDomain ─┬─ MemoryRegion ── MrSlice        what may be touched, and by whom
//!          │                    ├─ SharedReceiveQueue             receives for many queue pairs
//!          │                    └─ QueuePair ◄── cm: connection   a send queue and a receive queue
//!          ├─ CompletionQueue ◄────────┘                          where finished requests are reported
//!          └─ CompletionChannel                                   a descriptor that tells of them
//! ```
//!
//! All of them are handles: cheap to clone, usable from any thread, without lifetimes. Children keep their
//! parents alive, work requests keep their memory alive, and dropping a handle never blocks.
//!
//! A program that wants to know that something is gone calls `destroy()`. It ends the object for all its handles,
//! refuses while something uses it, with the kind that has to go first, and waits for events about it that were
//! fetched and not acknowledged.
//!
//! # How data moves
//!
//! - Posting a request tries the socket at once, in the calling thread. What TCP does not take now is sent by
//!   whoever comes next.
//! - Polling a completion queue that is empty reads the sockets of its connections. A program that polls
//!   gets the shortest latency; one that sleeps in [`wait`](CompletionQueue::wait) or awaits
//!   [`next`](CompletionQueue::next) sleeps on those sockets.
//! - A thread of the library, the driver, does the same when nobody else does. So memory can be written and
//!   read by peers although the program makes no call at all, and no runtime is needed to post or to poll.
//! - Octets reach registered memory only after their CRC has been checked, the last ones of a message last: a
//!   program may poll memory for them ([`MemoryRegion::load_u64`]).
//!
//! A Send or Write is complete when its octets have left local memory, a Read when they are there. Only a Read or an
//! answer of the peer's program proves that what was sent before has arrived.
//!
//! # Two styles
//!
//! The same objects serve both. *Verbs*: post requests with numbers of your own, and take their completions from
//! a queue:
//!
//! ```
//! use std::time::Duration;
//! use iwarp_verbs::cm::{self, ConnParam, ListenConfig, Listener};
//! use iwarp_verbs::{
//!     Access, Device, DeviceConfig, QpConfig, RecvRequest, RemoteMemory, SendRequest, WcOpcode,
//! };
//!
//! const LIMIT: Duration = Duration::from_secs(10);
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let device = Device::open(DeviceConfig::from_env()?)?;
//! let listener = Listener::bind(&device, "127.0.0.1:0", ListenConfig::default())?;
//! let address = listener.local_addr();
//!
//! // The server offers memory, tells the client where it is, and waits for a message.
//! let server = std::thread::spawn({
//!     let device = device.clone();
//!     move || -> Result<Vec<u8>, Box<dyn std::error::Error + Send + Sync>> {
//!         let (pd, cq) = (device.alloc_pd(), device.create_cq(16)?);
//!         let shared = pd.alloc(4096, Access::LOCAL_WRITE | Access::REMOTE_WRITE)?;
//!         let qp = pd.create_qp(&QpConfig::new(&cq))?;
//!         // Posted before the connection is there, so it is there for the first message.
//!         qp.post_recv(RecvRequest::new(1, ()))?;
//!
//!         let offer = ConnParam::default().private_data(shared.remote().to_bytes());
//!         let connection = listener.accept(LIMIT)?.accept(&qp, offer)?.wait(LIMIT)?;
//!         let received = cq.wait(LIMIT)?.expect("a message in time").ok()?;
//!         assert_eq!((received.wr_id, received.opcode), (1, WcOpcode::Recv));
//!
//!         // The Write was sent before the Send, so its octets are here.
//!         let mut text = vec![0; 5];
//!         shared.read_at(100, &mut text)?;
//!         connection.disconnect();
//!         Ok(text)
//!     }
//! });
//!
//! let (pd, cq) = (device.alloc_pd(), device.create_cq(16)?);
//! let local = pd.alloc(4096, Access::empty())?;
//! local.write_at(0, b"hello")?;
//! let qp = pd.create_qp(&QpConfig::new(&cq))?;
//! let connection = cm::connect(address, &qp, ConnParam::default())?.wait(LIMIT)?;
//! let offer: [u8; 20] = connection.private_data().try_into()?;
//! let remote = RemoteMemory::from_bytes(offer);
//!
//! qp.post_send_list([
//!     SendRequest::write(7, local.slice(0..5)?, remote.slice(100..)?).unsignaled(),
//!     SendRequest::send(8, ()),
//! ])?;
//! let mut completions = Vec::with_capacity(16);
//! while cq.poll(&mut completions) == 0 {}
//! assert_eq!((completions[0].wr_id, completions[0].is_success()), (8, true));
//!
//! assert_eq!(server.join().expect("the server").map_err(|error| error.to_string())?, b"hello");
//! # Ok(())
//! # }
//! ```
//!
//! *Futures*: await single operations of a [`cm::Connection`]. They complete into their futures and into no queue; see
//! [`aio`].
//!
//! # What a peer can do
//!
//! No more than the rights of a region and of the queue pair allow, checked for each segment that comes in; and no
//! more harm than to its own connection. Memory that peers make the library hold has a limit for the whole device
//! ([`DeviceConfig::memory_budget`]), and so has the time that they may take. TCP itself is as trustworthy as
//! the network: there is no encryption and no authentication here.
//!
//! # Testing programs
//!
//! A [`MemoryNetwork`] in place of TCP runs connections inside of the process and, under a seed, cuts, delays and
//! drops them: [`DeviceConfig::network`].
//!
//! # Seeing what happens
//!
//! [`QueuePair::stats`], [`Device::stats`] and [`Device::traffic`] count; `tracing` events of the targets `iwarp::setup`
//! and `iwarp::connection` tell of the life of connections; [`DeviceConfig::pcap`] records them for Wireshark.
//!
//! # Environment
//!
//! [`DeviceConfig::from_env`] lists the variables that programs understand that were not written for them.

#![deny(unsafe_code)]

pub mod aio;
mod attr;
mod capture;
mod channel;
pub mod cm;
mod config;
mod cq;
mod cq_arm;
mod device;
mod engine;
mod error;
mod event;
mod mem;
#[doc(hidden)]
pub mod micro;
mod network;
mod pd;
mod qp;
mod srq;
mod stats;
mod sync;
mod sys;
mod trace;
mod users;
mod wc;
mod wr;

pub use attr::{QpAttributes, QpCaps, QpChange, QpConfig, QpState};
pub use channel::{CompletionChannel, CqEvent};
pub use config::{ConfigError, DeviceConfig, DeviceLimits};
pub use cq::CompletionQueue;
pub use cq_arm::Notify;
pub use device::{AtomicScope, Device, DeviceAttributes};
pub use error::Error;
pub use event::{AsyncEvent, AsyncEventKind, EventSource};
pub use iwarp_mpa::{FpduLimit, Revision, RtrTypes};
pub use iwarp_rdmap::{AtomicOperation, Initiator, Terminate, TerminateCode};
pub use mem::{
    Access, FastRegion, Mapping, MemoryError, MemoryRegion, MemoryWindow, MrSlice, Owned,
    RegisterError, RemoteMemory, Reregister, ReregisterError, StableBytes, WindowBinding,
    WindowType,
};
pub use network::{ConnectionReport, Cuts, Direction, Faults, Loss, MemoryNetwork};
pub use pd::ProtectionDomain;
pub use qp::{Ending, QueuePair, WeakQueuePair};
pub use srq::{SharedReceiveQueue, SrqAttributes, SrqChange, SrqConfig};
pub use stats::{DeviceStats, QpStats};
pub use wc::{FailedCompletion, WcFlags, WcOpcode, WcStatus, WorkCompletion};
pub use wr::{
    PostError, PostErrorCause, RawSge, RecvRequest, SendFlags, SendOperation, SendRequest, Sgl,
};
