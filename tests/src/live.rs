//! A live verbs endpoint for scripted peers: a device, its memory, and connections in either role.

use std::{net::SocketAddr, time::Duration};

use iwarp_mpa::{FrameKind, RtrTypes, StartupFrame};
use iwarp_verbs::{
    Access, CompletionQueue, Device, DeviceConfig, MemoryRegion, ProtectionDomain, QpConfig,
    QueuePair, RecvRequest, WorkCompletion,
    cm::{self, ConnParam, Connection, ListenConfig, Listener},
};

use crate::{
    child::GUARD,
    peer::{self, Peer, PeerListener},
};

/// Octets of each receive that [`Live`] posts.
pub const RECEIVE: usize = 64;

/// Which side of the start-up the live endpoint is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// It connects to the scripted peer.
    Initiator,
    /// The scripted peer connects to it.
    Responder,
}

impl Role {
    /// Both.
    pub const BOTH: [Self; 2] = [Self::Initiator, Self::Responder];
}

/// A device that listens on the loopback.
#[derive(Debug)]
pub struct Live {
    /// The device.
    pub device: Device,
    /// Its main protection domain.
    pub pd: ProtectionDomain,
    /// The listener.
    pub listener: Listener,
}

impl Live {
    /// A device with this configuration, which connects without peer-to-peer mode unless a test asks for it.
    #[must_use]
    pub fn new(config: DeviceConfig) -> Self {
        let device = Device::open(config).expect("a device");
        let pd = device.alloc_pd();
        let listener = Listener::bind(&device, "127.0.0.1:0", ListenConfig::default())
            .expect("a port of the loopback");
        Self { device, pd, listener }
    }

    /// Where it listens.
    #[must_use]
    pub fn addr(&self) -> SocketAddr {
        self.listener.local_addr()
    }

    /// A queue pair with so many receives of [`RECEIVE`] octets posted.
    #[must_use]
    pub fn end(&self, receives: u32) -> End {
        self.end_in(&self.pd, receives)
    }

    /// The same in another protection domain.
    #[must_use]
    pub fn end_in(&self, pd: &ProtectionDomain, receives: u32) -> End {
        let send_cq = self.device.create_cq(1024).expect("a completion queue");
        let recv_cq = self.device.create_cq(1024).expect("a completion queue");
        let config = QpConfig::new(&send_cq).recv_cq(&recv_cq).max_recv_wr(256).max_send_wr(256);
        let qp = pd.create_qp(&config).expect("a queue pair");
        let inbox = pd.alloc(256 * RECEIVE, Access::LOCAL_WRITE).expect("memory");
        let end = End { qp, send_cq, recv_cq, inbox };
        for id in 0..receives {
            end.post_recv(id.into());
        }
        end
    }

    /// Connects a fresh queue pair with a scripted peer. The live side is what `role` says; the peer's frame is
    /// `frame`, made a Request or a Reply as it has to be.
    #[must_use]
    pub fn establish(
        &self,
        role: Role,
        frame: &StartupFrame,
        param: ConnParam,
        receives: u32,
    ) -> (Peer, Served) {
        let end = self.end(receives);
        self.establish_end(role, frame, param, end)
    }

    /// The same with a queue pair that is there already.
    #[must_use]
    pub fn establish_end(
        &self,
        role: Role,
        frame: &StartupFrame,
        param: ConnParam,
        end: End,
    ) -> (Peer, Served) {
        match role {
            Role::Responder => {
                let frame = StartupFrame { kind: FrameKind::Request, ..frame.clone() };
                let mut peer = Peer::dial(self.addr());
                peer.send_startup(&frame);
                let request = self.listener.accept(GUARD).expect("the peer's request");
                let accepting = request.accept(&end.qp, param).expect("an acceptable request");
                let reply = peer.read_startup(FrameKind::Reply);
                peer.begin(&reply, &frame);
                let connection = accepting.wait(GUARD).expect("a connection");
                (peer, Served { end, connection })
            }
            Role::Initiator => Self::connect_to(&PeerListener::bind(), frame, param, end),
        }
    }

    /// The initiator's side of it, to a peer that listens already.
    #[must_use]
    pub fn connect_to(
        listener: &PeerListener,
        frame: &StartupFrame,
        param: ConnParam,
        end: End,
    ) -> (Peer, Served) {
        let frame = StartupFrame { kind: FrameKind::Reply, ..frame.clone() };
        let param = param.rtr(RtrTypes::empty());
        let connecting = cm::connect(listener.addr(), &end.qp, param).expect("a connect");
        let (peer, _) = listener.establish(&frame);
        let connection = connecting.wait(GUARD).expect("a connection");
        (peer, Served { end, connection })
    }

    /// A second connection, which has to go on whatever happens to the first.
    #[must_use]
    pub fn bystander(&self) -> Bystander {
        let (peer, served) =
            self.establish(Role::Responder, &peer::request(), ConnParam::default(), 1);
        Bystander { peer, served, msn: 0 }
    }
}

/// A queue pair with its completion queues, one for each direction.
#[derive(Debug)]
pub struct End {
    /// The queue pair.
    pub qp: QueuePair,
    /// Completions of requests.
    pub send_cq: CompletionQueue,
    /// Completions of receives.
    pub recv_cq: CompletionQueue,
    /// Memory of the receives: receive `id` has octets `id * RECEIVE..` of it.
    pub inbox: MemoryRegion,
}

impl End {
    /// Posts receive `id`.
    pub fn post_recv(&self, id: u64) {
        let at = usize::try_from(id).expect("a small number") % 256 * RECEIVE;
        let room = self.inbox.slice(at..at + RECEIVE).expect("inside");
        self.qp.post_recv(RecvRequest::new(id, room)).expect("room in the queue");
    }

    /// The octets that receive `id` took.
    #[must_use]
    pub fn received(&self, completion: &WorkCompletion) -> Vec<u8> {
        let at = usize::try_from(completion.wr_id).expect("a small number") % 256 * RECEIVE;
        let mut octets = vec![0; completion.byte_len as usize];
        self.inbox.read_at(at, &mut octets).expect("inside");
        octets
    }

    /// The next completion of a receive.
    #[must_use]
    pub fn next_receive(&self) -> WorkCompletion {
        next(&self.recv_cq)
    }

    /// The next completion of a request.
    #[must_use]
    pub fn next_send(&self) -> WorkCompletion {
        next(&self.send_cq)
    }

    /// All completions that are there, of both queues; nothing is waited for.
    #[must_use]
    pub fn drain(&self) -> Vec<WorkCompletion> {
        let mut all = Vec::new();
        while self.send_cq.poll(&mut all) + self.recv_cq.poll(&mut all) > 0 {}
        all
    }
}

/// The next completion of a queue.
#[must_use]
pub fn next(cq: &CompletionQueue) -> WorkCompletion {
    cq.wait(GUARD).expect("a completion queue in order").expect("a completion within the guard")
}

/// A connected queue pair.
#[derive(Debug)]
pub struct Served {
    /// The queue pair and what belongs to it.
    pub end: End,
    /// Its connection.
    pub connection: Connection,
}

impl Served {
    /// Waits for the end of the connection; how it ended.
    #[allow(clippy::must_use_candidate, reason = "often the end alone is of interest")]
    pub fn closed(&self) -> cm::CloseReason {
        self.connection.wait_closed(GUARD).expect("an end of the connection")
    }
}

/// A connection of the same device that has nothing to do with the one under test.
#[derive(Debug)]
pub struct Bystander {
    peer: Peer,
    served: Served,
    msn: u32,
}

impl Bystander {
    /// Exchanges a message each way, which fails the test if it does not go.
    pub fn goes_on(&mut self) {
        self.msn += 1;
        let message = self.msn.to_be_bytes();
        self.peer.send(&peer::send(self.msn, &message));
        let completion = self.served.end.next_receive();
        assert!(completion.is_success(), "the bystander: {completion:?}");
        assert_eq!(self.served.end.received(&completion), message);
        self.served.end.post_recv(0);
        let answer = iwarp_verbs::SendRequest::send_inline(u64::from(self.msn), message);
        self.served.end.qp.post_send(answer).expect("room in the queue");
        assert_eq!(self.peer.hear_ulpdu()[18..], message);
        assert!(self.served.end.next_send().is_success());
    }
}

/// How long a test looks whether something that must not happen does.
pub const QUIET: Duration = Duration::from_millis(100);
