//! The verbs style at both ends.

use std::net::SocketAddr;
use std::thread;
use std::time::Instant;

use iwarp_verbs::QueuePair;
use iwarp_verbs::cm::{BindOptions, ConnParam, Event, EventChannel, EventKind, Id};

use super::{GUARD, World, expect, readable};

/// Both ends of the verbs style in one process, with a channel each.
pub(crate) struct Ends {
    pub(crate) world: World,
    pub(crate) active: EventChannel,
    pub(crate) passive: EventChannel,
    pub(crate) listening: Id,
}

/// One connection: an id and a queue pair at each end.
pub(crate) struct Pair {
    pub(crate) active: Id,
    pub(crate) passive: Id,
    pub(crate) active_qp: QueuePair,
    pub(crate) passive_qp: QueuePair,
}

impl Ends {
    pub(crate) fn new() -> Self {
        let world = World::new();
        let (active, passive) = (world.channel(), world.channel());
        let listening = Id::new(&passive);
        listening.bind("127.0.0.1:0", BindOptions::default()).unwrap();
        listening.listen(0).unwrap();
        Self { world, active, passive, listening }
    }

    pub(crate) fn addr(&self) -> SocketAddr {
        self.listening.local_addr().unwrap()
    }

    /// A client that asks for a connection.
    pub(crate) fn ask(&self) -> (Id, QueuePair) {
        let (id, qp) = (Id::new(&self.active), self.world.qp());
        id.connect(self.addr(), &qp, ConnParam::default()).unwrap();
        (id, qp)
    }

    /// The same, and its request has come; nobody has fetched it.
    pub(crate) fn ask_and_wait(&self) -> (Id, QueuePair) {
        let client = self.ask();
        let started = Instant::now();
        while !readable(&self.passive) {
            assert!(started.elapsed() < GUARD);
            thread::yield_now();
        }
        client
    }

    pub(crate) fn connect(&self, sent: &[u8], answered: &[u8]) -> (Pair, [Event; 3]) {
        let (active, active_qp) = (Id::new(&self.active), self.world.qp());
        active.connect(self.addr(), &active_qp, ConnParam::default().private_data(sent)).unwrap();
        let request = expect(&self.passive, EventKind::ConnectRequest);
        let passive_qp = self.world.qp();
        request.id.accept(&passive_qp, ConnParam::default().private_data(answered)).unwrap();
        let here = expect(&self.active, EventKind::Established);
        let there = expect(&self.passive, EventKind::Established);
        assert_eq!((&here.id, &there.id), (&active, &request.id));
        let pair = Pair { active, passive: request.id.clone(), active_qp, passive_qp };
        (pair, [request, here, there])
    }
}
