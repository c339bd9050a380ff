//! The connection manager: connect, listen, accept, reject, disconnect; in two styles over one core.
//!
//! In the *Rust style* a connection is a value. [`connect`] and [`Listener`] give futures that also
//! have blocking twins, and end in a [`Connection`]. In the *verbs style*, that of librdmacm, there are
//! ids and events: [`Id`], [`EventChannel`], [`Event`]. Both sides of a connection choose their style
//! on their own.
//!
//! # How a connection comes about
//!
//! ```text
//! connect:  address → TCP → MPA Request ──────────► Request: ConnectRequest
//!                                                        accept │ reject
//!           Reply in  ◄──────────────────────────── MPA Reply   ▼
//!           established, RTR out ─────────────────► RTR in: established
//! ```
//!
//! Nothing here blocks or polls: set-ups run as tasks of the device's driver, each within a time limit,
//! and then the socket belongs to the queue pair's engine. An endpoint is one state machine
//! (`endpoint.rs`). Its end comes from the engine, once, whatever brought it about.
//!
//! The connecting side must send first, unless the two agree on the peer-to-peer model, as they do by
//! default: a ready-to-receive message of the library then opens the connection for both (RFC 6581
//! §9.2). What the accepting side posts before is held until it may be sent (MPA-029).
//!
//! # What the peer can do
//!
//! A peer that connects and says nothing, or something else than MPA, costs a descriptor and a few
//! kilobytes for at most [`accept_timeout`](crate::DeviceConfig::accept_timeout). The
//! [number of such peers](crate::DeviceConfig::max_pending_handshakes) is limited, and at the limit the
//! oldest goes (SEC-22). Programs never hear of them.
//!
//! # Example
//!
//! Both ends in one program, one awaited and one not:
//!
//! ```
//! use std::time::Duration;
//! use iwarp_verbs::cm::{self, ConnParam, ListenConfig, Listener};
//! use iwarp_verbs::{Device, DeviceConfig, QpConfig};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let device = Device::open(DeviceConfig::default())?;
//! let pd = device.alloc_pd();
//! let cq = device.create_cq(64)?;
//!
//! let listener = Listener::bind(&device, "127.0.0.1:0", ListenConfig::default())?;
//! let qp = pd.create_qp(&QpConfig::new(&cq))?;
//! let connecting =
//!     cm::connect(listener.local_addr(), &qp, ConnParam::default().private_data(b"volume 7"))?;
//!
//! let request = listener.accept(Duration::from_secs(10))?;
//! assert_eq!(request.private_data(), b"volume 7");
//! let accepted_qp = pd.create_qp(&QpConfig::new(&cq))?;
//! let accepting = request.accept(&accepted_qp, ConnParam::default().private_data(b"welcome"))?;
//!
//! let connection = connecting.wait(Duration::from_secs(10))?;
//! let accepted = accepting.wait(Duration::from_secs(10))?;
//! assert_eq!(connection.private_data(), b"welcome");
//!
//! connection.disconnect();
//! assert!(accepted.wait_closed(Duration::from_secs(10)).is_some());
//! # Ok(())
//! # }
//! ```

mod accept;
mod address;
mod attach;
mod close;
mod connection;
mod endpoint;
mod error;
mod event;
mod farewell;
mod handshakes;
mod id;
mod initiate;
mod listen;
mod param;
mod socket;

use std::sync::Arc;

use tokio::runtime;

pub use address::Address;
pub use attach::Attach;
pub use close::CloseReason;
pub use connection::{Connecting, Connection};
pub use error::{ConnectError, Phase};
pub(crate) use event::Channels;
pub use event::{Event, EventChannel, EventKind};
pub(crate) use handshakes::Handshakes;
pub use id::Id;
pub use iwarp_mpa::Role;
pub use listen::{ConnectRequest, Listener};
pub use param::{BindOptions, ConnParam, ListenConfig};

use crate::device::DeviceInner;
use crate::qp::QueuePair;
use endpoint::{Endpoint, Handle, Stage};

/// Connects a queue pair to a peer: the Rust style.
///
/// Returns at once, also for a name that has to be looked up; the set-up goes on in the background
/// (FC-044). An error here means that nothing was begun and that the queue pair can be used again.
/// Receives posted before are there for the peer's first message.
///
/// If the set-up fails later, the queue pair goes to the error state and flushes what was posted to it
/// (FC-035).
pub fn connect(
    addr: impl Into<Address>,
    qp: &QueuePair,
    param: ConnParam,
) -> Result<Connecting, ConnectError> {
    let endpoint = Endpoint::new(Arc::clone(&qp.0.inner.device), Stage::Idle, None);
    let handle = Handle(endpoint);
    handle.0.connect(&addr.into(), qp, param)?;
    Ok(Connecting::new(handle, qp.clone()))
}

/// Makes an RDMA connection of a TCP connection that exists already, and may have carried something else
/// until now (MPA-002): the Rust style.
///
/// Both programs have to know where in each direction the other use of the stream ends, and which of
/// them is the [`Role::Initiator`]: that one sends the Request, the other one waits for it, and accepts
/// it with what `param` says. From the call on the stream belongs to the connection; what the program
/// has read of it too far goes into [`Attach::read_ahead`].
///
/// Returns at once; the start-up goes on in the background, with the time limit of
/// [`ConnParam::timeout`] or else of the device ([`connect_timeout`], [`accept_timeout`]). The initiator
/// does not try revision 1 by itself, as that would take another connection. An error here means that
/// nothing was sent and that the queue pair can be used again; the stream is closed then, as it is when
/// the start-up fails later (MPA-022). For the queue pair see [`connect`].
///
/// [`connect_timeout`]: crate::DeviceConfig::connect_timeout
/// [`accept_timeout`]: crate::DeviceConfig::accept_timeout
///
/// ```
/// use std::net::{TcpListener, TcpStream};
/// use std::time::Duration;
/// use iwarp_verbs::cm::{self, ConnParam, Role};
/// use iwarp_verbs::{Device, DeviceConfig, QpConfig};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let device = Device::open(DeviceConfig::default())?;
/// let (pd, cq) = (device.alloc_pd(), device.create_cq(16)?);
/// let (here, there) = (pd.create_qp(&QpConfig::new(&cq))?, pd.create_qp(&QpConfig::new(&cq))?);
///
/// let listener = TcpListener::bind("127.0.0.1:0")?;
/// let client = TcpStream::connect(listener.local_addr()?)?;
/// let (server, _) = listener.accept()?;
/// // ... the two talk, and agree to go on with RDMA ...
/// let accepting = cm::attach(server, Role::Responder, &there, ConnParam::default())?;
/// let connecting = cm::attach(client, Role::Initiator, &here, ConnParam::default())?;
/// let limit = Duration::from_secs(10);
/// let (_there, here) = (accepting.wait(limit)?, connecting.wait(limit)?);
/// assert_eq!(here.peer_addr(), listener.local_addr()?);
/// # Ok(())
/// # }
/// ```
pub fn attach(
    stream: impl Into<Attach>,
    role: Role,
    qp: &QueuePair,
    param: ConnParam,
) -> Result<Connecting, ConnectError> {
    let endpoint = Endpoint::new(Arc::clone(&qp.0.inner.device), Stage::Idle, None);
    let handle = Handle(endpoint);
    handle.0.attach(stream.into(), role, qp, param)?;
    Ok(Connecting::new(handle, qp.clone()))
}

/// Fails in a process that was forked from the one that opened the device (FC-064).
fn check_origin(device: &DeviceInner) -> Result<(), ConnectError> {
    if device.origin.is_here() { Ok(()) } else { Err(ConnectError::Forked) }
}

/// The runtime of the device's driver, for set-ups.
fn runtime(device: &Arc<DeviceInner>) -> Result<runtime::Handle, ConnectError> {
    check_origin(device)?;
    device.driver().handle().map_err(|cause| ConnectError::Driver(Arc::new(cause)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shared<T: Send + Sync + 'static>() {}

    #[test]
    fn everything_may_go_anywhere() {
        shared::<Id>();
        shared::<EventChannel>();
        shared::<Event>();
        shared::<Listener>();
        shared::<ConnectRequest>();
        shared::<Connecting>();
        shared::<Connection>();
        shared::<ConnectError>();
    }

    #[test]
    fn errors_are_small_enough_to_return() {
        assert!(size_of::<ConnectError>() <= 96, "{}", size_of::<ConnectError>());
    }
}
