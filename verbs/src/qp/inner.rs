//! What all holders of a queue pair share, and what they may ask of it.

use std::fmt;
use std::io;
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::Instant;

use event_listener::Event;
use iwarp_mpa::{FpduLimit, Negotiated};
use iwarp_rdmap::{Initiator, Stream, StreamConfig, Terminate, TerminateCode};
use parking_lot::Mutex;

use super::number::Number;
use super::rq::ReceiveQueue;
use super::sq::SendQueue;
use super::state::{Action, QpEvent, StateCell};
use super::{QpHandle, WeakQueuePair};
use crate::attr::{QpAttributes, QpCaps, QpConfig, QpState};
use crate::config::DeviceConfig;
use crate::cq::CqInner;
use crate::device::DeviceInner;
use crate::engine::driver::Driver;
use crate::engine::gather::Gather;
use crate::engine::kick::Kick;
use crate::engine::{Asked, AskedWord, Caller, Engine, Link, Observer, Sizes};
use crate::error::Error;
use crate::mem::{Access, PdId, Peer, Region};
use crate::pd::PdInner;
use crate::stats::QpStats;
use crate::sys::Socket;

/// Shared by handles, completion queues and the driver.
pub(crate) struct QpInner {
    pub(crate) number: u32,
    /// Frees the number with the queue pair.
    _number: Number,
    pub(crate) device: Arc<DeviceInner>,
    pub(crate) domain: PdId,
    /// What windows of type 2 that are bound through it are associated with.
    pub(crate) stream: PdId,
    windows: Mutex<Vec<Weak<Region>>>,
    pub(crate) send_cq: Arc<CqInner>,
    pub(crate) recv_cq: Arc<CqInner>,
    pub(crate) caps: QpCaps,
    pub(crate) signal_all: bool,
    /// What the queue pair itself lets its peer do.
    pub(super) remote_access: AtomicU32,
    /// Whether its peer may revoke keys.
    pub(crate) remote_invalidate: bool,
    /// Whether the messages of RFC 7306 are used and served.
    pub(crate) extensions: bool,
    pub(crate) sq: SendQueue,
    pub(crate) rq: ReceiveQueue,
    pub(crate) state: StateCell,
    pub(crate) kick: Kick,
    pub(crate) engine: Mutex<Engine>,
    pub(crate) asked: AskedWord,
    pub(crate) gather: Gather,
    /// On the driver's list of those to be run.
    pub(crate) scheduled: AtomicBool,
    /// ... unless a program polls for it.
    pub(crate) polled: AtomicBool,
    /// The last pass left something to do that nothing will announce again.
    pub(crate) rest: AtomicBool,
    /// How often the engine was run; written by whoever runs it.
    pub(crate) runs: AtomicU32,
    /// The driver leaves the socket alone: a program polls for it.
    pub(crate) parked: AtomicBool,
    pub(crate) observer: Mutex<Option<Arc<dyn Observer>>>,
    /// Notified when the connection is over.
    pub(crate) closed: Event,
    /// Of the present connection, or the last one.
    pub(super) connection: Mutex<Connection>,
    /// The completion queues count this queue pair: it is neither destroyed nor let go.
    attached: AtomicBool,
    /// What the program holds, for events to give it back.
    handle: OnceLock<Weak<QpHandle>>,
}

impl fmt::Debug for QpInner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("QueuePair")
            .field("number", &self.number)
            .field("state", &self.state.get())
            .finish_non_exhaustive()
    }
}

/// A connection did not begin. Its socket is as it was, for a last word to the peer.
#[derive(Debug, thiserror::Error)]
#[error("{error}")]
pub(crate) struct NotStarted {
    pub(crate) error: Error,
    pub(crate) socket: Socket,
}

/// Sets what a connection needs, and gives the EMSS.
fn prepare(socket: &Socket, config: &DeviceConfig) -> io::Result<u32> {
    socket.set_no_delay(true)?;
    socket.set_keepalive(config.keepalive)?;
    socket.set_user_timeout(config.user_timeout)?;
    socket.emss()
}

/// What can be asked about a connection.
#[derive(Debug, Default)]
pub(super) struct Connection {
    /// Reads of the peer, and own ones, that may be outstanding.
    ird: u32,
    pub(super) ord: u32,
    /// What was negotiated.
    pub(super) ord_max: u32,
    /// Not there while all is well: most connections are idle, and there may be ten thousand.
    end: Option<Box<End>>,
}

impl Connection {
    /// Nothing is negotiated any more. How the connection ended can still be asked.
    pub(super) fn forget_limits(&mut self) {
        *self = Self { end: self.end.take(), ..Self::default() };
    }
}

/// What is known of a connection that is over, or about to be.
#[derive(Debug, Default)]
struct End {
    ending: Option<Ending>,
    stats: QpStats,
}

/// The Terminate that ended a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Ending {
    /// Who found the error: this side, its program, or the peer.
    pub by: Initiator,
    /// The message, with the headers of what it complains about.
    pub terminate: Terminate,
}

impl QpInner {
    /// `config` has been checked.
    pub(super) fn create(pd: &PdInner, config: &QpConfig) -> Result<Arc<Self>, Error> {
        let QpConfig {
            send_cq,
            recv_cq,
            caps,
            signal_all,
            remote_access,
            remote_invalidate,
            extensions,
            srq,
            max_shared_receives,
        } = config;
        // FC-071: there is no queue that would have these sizes.
        let caps = match srq {
            Some(_) => QpCaps { max_recv_wr: 0, max_recv_sge: 0, ..*caps },
            None => *caps,
        };
        let number = Number::draw().ok_or(Error::Limit {
            what: "queue pairs",
            asked: 1 << 24,
            max: (1 << 24) - 1,
        })?;
        let qp = Arc::new_cyclic(|me| Self {
            number: number.get(),
            rq: match srq {
                None => ReceiveQueue::own(caps.max_recv_wr),
                Some(srq) => {
                    let most = *max_shared_receives;
                    ReceiveQueue::shared(srq.inner(), most, number.get(), me)
                }
            },
            _number: number,
            device: Arc::clone(&pd.device),
            domain: pd.id,
            stream: PdId::new(),
            windows: Mutex::default(),
            send_cq: Arc::clone(send_cq.inner()),
            recv_cq: Arc::clone(recv_cq.inner()),
            caps,
            signal_all: *signal_all,
            remote_access: AtomicU32::new(remote_access.bits()),
            remote_invalidate: *remote_invalidate,
            extensions: *extensions && pd.device.config.extensions,
            sq: SendQueue::new(caps.max_send_wr),
            // FC-070
            state: StateCell::new(QpState::Init),
            kick: Kick::new(),
            engine: Mutex::default(),
            asked: AskedWord::default(),
            gather: Gather::default(),
            scheduled: AtomicBool::new(false),
            polled: AtomicBool::new(false),
            rest: AtomicBool::new(false),
            runs: AtomicU32::new(0),
            parked: AtomicBool::new(false),
            observer: Mutex::new(None),
            closed: Event::new(),
            connection: Mutex::default(),
            attached: AtomicBool::new(true),
            handle: OnceLock::new(),
        });
        if let Some(share) = qp.rq.share() {
            share.attach(&qp.rq.slots)?;
        }
        qp.send_cq.attach(&qp);
        qp.recv_cq.attach(&qp);
        // One that breaks from here on knows this queue pair.
        if qp.check_queues().is_err() {
            qp.overrun();
        }
        Ok(qp)
    }

    /// To be called once, by who makes the handle.
    pub(super) fn set_handle(&self, handle: &Arc<QpHandle>) {
        let set = self.handle.set(Arc::downgrade(handle));
        debug_assert!(set.is_ok(), "a queue pair has one handle");
    }

    /// The name that events give to the program.
    pub(crate) fn name(&self) -> WeakQueuePair {
        WeakQueuePair::new(self.number, self.handle.get().cloned().unwrap_or_default())
    }

    pub(super) fn query(&self) -> QpAttributes {
        let (ird, ord) = {
            let connection = self.connection.lock();
            (connection.ird, connection.ord)
        };
        QpAttributes {
            state: self.state.get(),
            number: self.number,
            caps: self.caps,
            remote_access: self.remote_access(),
            remote_invalidate: self.remote_invalidate,
            extensions: self.extensions,
            signal_all: self.signal_all,
            ird,
            ord,
            receives_held: self.rq.share().map(|_| self.rq.slots.in_use()),
        }
    }

    /// What the peer may do at most.
    fn remote_access(&self) -> Access {
        Access::from_bits_retain(self.remote_access.load(Ordering::Relaxed))
    }

    /// Key of the socket in sets of sockets.
    pub(crate) fn key(&self) -> u64 {
        self.number.into()
    }

    pub(crate) fn driver(&self) -> &Driver {
        self.device.driver()
    }

    /// The queue pair as memory sees it.
    pub(crate) fn peer(&self) -> Peer {
        Peer {
            domain: self.domain,
            stream: self.stream,
            rights: self.remote_access(),
            invalidates: self.remote_invalidate,
        }
    }

    /// A receive may be there that the stream waits for: has it look, in the calling thread. Never blocks.
    pub(crate) fn resume(self: &Arc<Self>) {
        self.ask(Asked::RECEIVE);
        self.drive(Caller::Post);
    }

    /// As [`resume`](Self::resume), by the driver.
    pub(crate) fn resume_later(self: &Arc<Self>) {
        self.ask(Asked::RECEIVE);
        self.driver().schedule(self);
    }

    /// Adds a request for the next pass, without running it.
    pub(crate) fn ask(&self, asked: Asked) {
        self.asked.add(asked);
    }

    /// Reserves an idle queue pair for one connect or accept, so that a second one fails at its call.
    /// [`start`](Self::start) or [`fail_setup`](Self::fail_setup) ends the claim.
    pub(crate) fn claim_setup(&self) -> Result<(), Error> {
        self.state.claim().map_err(|state| Error::State { what: "connect the queue pair", state })
    }

    /// Begins full operation on a connected socket: `Init` to `Rts`.
    ///
    /// `leftover` are octets of the FPDU stream that were read behind the start-up frame. With `end`
    /// the exchange succeeded on the wire but the connection cannot be used: that Terminate is sent at
    /// once and the connection ends (CONN-17, CONN-25, CONN-27). On `Err` nothing has begun, and the
    /// state is what it was.
    pub(crate) fn start(
        self: &Arc<Self>,
        socket: Socket,
        negotiated: &Negotiated,
        leftover: Vec<u8>,
        observer: Option<Arc<dyn Observer>>,
        fpdu_limit: FpduLimit,
        end: Option<TerminateCode>,
    ) -> Result<(), NotStarted> {
        let failed = |source| Error::io("prepare a connected socket", source);
        let config = &self.device.config;
        let emss = match prepare(&socket, config) {
            Ok(emss) => emss,
            Err(source) => return Err(NotStarted { error: failed(source), socket }),
        };
        let span = crate::trace::connection(self.number, &socket, negotiated.role);
        let sizes = Sizes { limit: fpdu_limit, emss, markers: negotiated.send_markers };
        let mut parameters = StreamConfig::new(negotiated, sizes.plan());
        parameters.strict_receive = config.strict_receive;
        parameters.extensions = self.extensions;
        parameters.hold_back = config.hold_back;
        parameters.partial_fpdu = config.partial_fpdu;
        parameters.close_grace = config.close_grace;
        let mut stream = Stream::new(parameters);
        if let Some(code) = end {
            stream.terminate(code, Instant::now());
        }
        {
            let mut engine = self.engine.lock();
            if engine.is_abandoned() {
                return Err(NotStarted { error: Error::Destroyed { what: "queue pair" }, socket });
            }
            // From here on posts wait for the lock, so that none finds `Rts` without a connection.
            if let Err(source) = self.driver().connect(self, socket.as_fd()) {
                return Err(NotStarted { error: failed(source), socket });
            }
            if let Err(state) = self.state.step(QpEvent::Connected) {
                self.driver().disconnect(self, socket.as_fd());
                let error = Error::State { what: "start the connection", state };
                return Err(NotStarted { error, socket });
            }
            let socket = Arc::new(socket);
            self.send_cq.socket_added(self, &socket);
            self.recv_cq.socket_added(self, &socket);
            *self.observer.lock() = observer;
            let Negotiated { ird, ord, .. } = *negotiated;
            *self.connection.lock() = Connection { ird, ord, ord_max: ord, end: None };
            engine
                .connect(Link::new(socket, stream, leftover, sizes, self.driver()).trace_in(span));
        }
        self.device.counters.connections.count();
        self.drive(Caller::Driver);
        Ok(())
    }

    /// The connect or accept that this queue pair was claimed for has failed: to `Err`, flushing what
    /// was posted (FC-035).
    pub(crate) fn fail_setup(self: &Arc<Self>) {
        self.change(QpEvent::SetupFailed);
    }

    /// Ends the connection: the FPDU in flight is finished, the rest flushed, then FIN. Nothing happens
    /// without a connection, or if it is ending already. Never blocks.
    pub(crate) fn disconnect(self: &Arc<Self>) {
        self.change(QpEvent::Disconnect);
    }

    /// Ends the connection after all that is posted. In the end as [`disconnect`](Self::disconnect), if
    /// that takes too long. Never blocks.
    pub(crate) fn close(self: &Arc<Self>) {
        if self.state.get() == QpState::Rts && self.device.origin.is_here() {
            self.ask(Asked::CLOSE);
            self.drive(Caller::Post);
        }
    }

    /// Resets the connection, if there is one, and flushes: to `Err`. Never blocks.
    pub(crate) fn abort(self: &Arc<Self>) {
        self.change(QpEvent::Modify(QpState::Err));
    }

    /// SEC-09: a completion queue of this queue pair has overrun. Never blocks, and runs no pass over a connection
    /// here.
    pub(crate) fn overrun(self: &Arc<Self>) {
        self.ask(Asked::OVERRUN);
        if self.driver().is_running() {
            self.driver().schedule(self);
        } else {
            self.drive(Caller::Post);
        }
    }

    /// # Errors
    /// [`Error::CqOverrun`] if a completion queue has overrun.
    pub(super) fn check_queues(&self) -> Result<(), Error> {
        self.send_cq.check_overrun()?;
        self.recv_cq.check_overrun()
    }

    /// Takes a step of the state table and does what it says.
    fn change(self: &Arc<Self>, event: QpEvent) {
        if !self.device.origin.is_here() {
            return;
        }
        self.send_gathered();
        if let Ok(action) = self.state.step(event) {
            self.act(action);
        }
    }

    pub(super) fn act(self: &Arc<Self>, action: Action) {
        match action {
            Action::None | Action::Reset => return,
            Action::Flush => {}
            Action::Disconnect => self.ask(Asked::DISCONNECT),
            Action::Terminate => self.ask(Asked::TERMINATE),
            Action::Abort => self.ask(Asked::ABORT),
        }
        self.drive(Caller::Post);
    }
}

impl QpInner {
    /// The last handle is gone: ends the connection, and lets go of everything once it is over. Never
    /// blocks.
    pub(super) fn abandon(self: &Arc<Self>) {
        self.send_gathered();
        self.ask(Asked::ABANDON);
        self.drive(Caller::Post);
    }

    /// Takes everything away at once. Waits for the pass that may be running, and, after `released` was
    /// called, for events to be acknowledged.
    pub(super) fn destroy(self: &Arc<Self>, released: impl FnOnce()) -> Result<(), Error> {
        self.device.check_origin()?;
        self.send_gathered();
        // FC-076: with the engine locked no pass runs, and those that follow find nothing to touch.
        let mut engine = self.engine.lock();
        if !self.attached.load(Ordering::Acquire) {
            return Err(Error::Destroyed { what: "queue pair" });
        }
        let out = engine.retire(self);
        drop(engine);
        self.release();
        out.send(self);
        self.send_cq.purge(self.number);
        self.recv_cq.purge(self.number);
        // What is framed already is still to be sent, and the connection to be closed.
        self.driver().schedule(self);
        released();
        self.closed.notify(usize::MAX);
        self.device.forget_qp_events(self.number);
        self.device.wait_qp_acked(self.number);
        Ok(())
    }

    /// Lets go of the completion queues. They and the protection domain can be destroyed from here on.
    pub(crate) fn release(&self) {
        if !self.attached.swap(false, Ordering::AcqRel) {
            return;
        }
        // Nobody who polls drives it from here on.
        self.parked.store(false, Ordering::Release);
        self.send_cq.detach(self);
        self.recv_cq.detach(self);
        if let Some(share) = self.rq.share() {
            share.detach();
        }
        // V5
        self.end_windows();
    }

    /// Puts the windows of type 2 that are bound through it out of force: they are the domain's again.
    pub(super) fn end_windows(&self) {
        let windows = std::mem::take(&mut *self.windows.lock());
        for window in windows.iter().filter_map(Weak::upgrade) {
            let ended = window.invalidate();
            debug_assert_eq!(ended, Ok(()), "nothing lies over a window");
        }
    }

    /// A window of type 2 is bound, and this queue pair's until that ends.
    pub(crate) fn owns(&self, window: &Arc<Region>) {
        let mut windows = self.windows.lock();
        if windows.len() == windows.capacity() {
            windows.retain(|window| window.strong_count() > 0);
        }
        windows.push(Arc::downgrade(window));
    }

    /// Whether a Send of the peer waits for a receive.
    #[cfg(test)]
    pub(crate) fn is_held_back(&self) -> bool {
        self.engine.lock().is_held_back()
    }

    /// Whether the queue pair was destroyed, or let go after its last handle was dropped.
    pub(crate) fn is_gone(&self) -> bool {
        !self.attached.load(Ordering::Acquire)
    }

    /// Has the completion queues forget the socket.
    pub(crate) fn unwatch(&self) {
        if !self.is_gone() {
            self.send_cq.socket_removed(self);
            self.recv_cq.socket_removed(self);
        }
    }

    /// Remembers the Terminate that ends the connection.
    pub(crate) fn remember(&self, ending: Ending) {
        self.connection.lock().end.get_or_insert_default().ending = Some(ending);
    }

    /// Keeps what a connection has counted beyond its end.
    pub(crate) fn conclude(&self, stats: QpStats) {
        self.device.add_past(&stats);
        self.connection.lock().end.get_or_insert_default().stats = stats;
    }

    /// Of the connection that there is now. Waits for the pass that may be running.
    pub(crate) fn live_stats(&self) -> QpStats {
        self.engine.lock().stats().unwrap_or_default()
    }

    /// Waits for the pass that may be running.
    pub(super) fn stats(&self) -> QpStats {
        let live = self.engine.lock().stats();
        let over = || self.connection.lock().end.as_ref().map(|end| end.stats);
        live.or_else(over).unwrap_or_default()
    }

    /// The Terminate that ends the present connection, or ended the last one.
    pub(crate) fn ending(&self) -> Option<Ending> {
        self.connection.lock().end.as_ref()?.ending
    }
}

impl Drop for QpInner {
    fn drop(&mut self) {
        // Events about it that nobody fetched would stay for ever, and its number is free for another.
        self.device.bury_qp_events(self.number);
    }
}

#[cfg(test)]
#[cfg(not(any(loom, miri)))]
mod tests {
    use std::net::{Ipv4Addr, TcpListener, TcpStream};
    use std::time::Duration;

    use rustix::net::sockopt;

    use super::*;

    fn connected() -> (TcpStream, Socket) {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let peer = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        (peer, Socket::from_stream(listener.accept().unwrap().0).unwrap())
    }

    // MPA-091
    #[test]
    fn what_the_device_says_is_set_on_the_socket() {
        let (_peer, socket) = connected();
        let [idle, interval] = [7, 3].map(Duration::from_secs);
        let config = DeviceConfig::default()
            .keepalive(idle, interval, 4)
            .user_timeout(Duration::from_millis(9500));
        assert!(prepare(&socket, &config).unwrap() >= 536);
        assert!(sockopt::tcp_nodelay(&socket).unwrap());
        assert!(sockopt::socket_keepalive(&socket).unwrap());
        assert_eq!(sockopt::tcp_keepidle(&socket).unwrap(), idle);
        assert_eq!(sockopt::tcp_keepintvl(&socket).unwrap(), interval);
        assert_eq!(sockopt::tcp_keepcnt(&socket).unwrap(), 4);
        #[cfg(target_os = "linux")]
        assert_eq!(sockopt::tcp_user_timeout(&socket).unwrap(), 9500);

        let config = config.no_keepalive().user_timeout(Duration::ZERO);
        prepare(&socket, &config).unwrap();
        assert!(!sockopt::socket_keepalive(&socket).unwrap());
        #[cfg(target_os = "linux")]
        assert_eq!(sockopt::tcp_user_timeout(&socket).unwrap(), 0);
    }
}
