//! What `tracing` is told, and by which names programs choose from it: `docs/observing.md` lists the events.
//!
//! Nothing is told of single messages. Where nobody listens, a pass over a connection costs one more branch.

use std::fmt;

use iwarp_mpa::Role;
use iwarp_rdmap::{CloseCause, Initiator, Terminate};
use tracing::Span;

use crate::cm::CloseReason;
use crate::sys::Socket;

/// The target of what happens while connections are set up.
pub(crate) const SETUP: &str = "iwarp::setup";

/// The target of what happens to connections that there are, and of their spans.
pub(crate) const CONNECTION: &str = "iwarp::connection";

/// The span of a connection, if anybody listens.
pub(crate) fn connection(qp: u32, socket: &Socket, role: Role) -> Option<Box<Span>> {
    if !tracing::span_enabled!(target: CONNECTION, tracing::Level::DEBUG) {
        return None;
    }
    let name = |addr: std::io::Result<std::net::SocketAddr>| -> Box<dyn fmt::Display> {
        match addr {
            Ok(addr) => Box::new(addr),
            Err(_) => Box::new("unknown"),
        }
    };
    let span = tracing::debug_span!(
        target: CONNECTION,
        "connection",
        qp,
        local = %name(socket.local_addr()),
        peer = %name(socket.peer_addr()),
        role = match role {
            Role::Initiator => "initiator",
            Role::Responder => "responder",
        },
    );
    (!span.is_disabled()).then(|| Box::new(span))
}

/// A Terminate goes out, for this cause, or has come in.
#[cold]
pub(crate) fn terminate(
    qp: u32,
    by: Initiator,
    terminate: &Terminate,
    cause: Option<&iwarp_rdmap::Error>,
) {
    let code = terminate.likely_code();
    let meaning = code.meaning();
    match cause {
        Some(cause) if by != Initiator::Remote => {
            tracing::info!(target: CONNECTION, qp, %code, meaning, %cause, "Terminate sent");
        }
        _ => tracing::info!(target: CONNECTION, qp, %code, meaning, "Terminate received"),
    }
}

/// A connection is over.
#[cold]
pub(crate) fn end(qp: u32, cause: &CloseCause) {
    let reason = CloseReason::from(cause);
    match cause {
        CloseCause::Orderly | CloseCause::User => {
            tracing::debug!(target: CONNECTION, qp, %reason, "closed");
        }
        _ => tracing::info!(target: CONNECTION, qp, %reason, "closed"),
    }
}
