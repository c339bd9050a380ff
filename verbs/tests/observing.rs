//! What a program can see of its connections: the events of `docs/observing.md`, and figures.
#![allow(clippy::unwrap_used, reason = "a failed step is a failed test")]

mod cm_support;

use std::fmt::{Debug, Write as _};
use std::sync::{Mutex, OnceLock};
use std::time::Instant;

use cm_support::{GUARD, World};
use iwarp_verbs::cm::{self, ConnParam, ConnectError, Connection, ListenConfig, Listener};
use iwarp_verbs::{
    Access, DeviceConfig, Direction, Faults, Loss, MemoryNetwork, MemoryRegion, QueuePair,
    RecvRequest, RemoteMemory, SendRequest, WcStatus,
};
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id};
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::layer::{Context, Layer, SubscriberExt as _};
use tracing_subscriber::registry::LookupSpan;

/// One event: `target level message name=value …`, and the spans around it in the same form.
#[derive(Clone, Debug)]
struct Told {
    level: Level,
    target: String,
    text: String,
    within: Vec<String>,
}

static TOLD: Mutex<Vec<Told>> = Mutex::new(Vec::new());

struct Fields(String);

impl Visit for Fields {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        match field.name() {
            "message" => self.0 = format!("{value:?}{}", self.0),
            name => write!(self.0, " {name}={value:?}").unwrap(),
        }
    }
}

struct Collector;

impl<S: Subscriber + for<'s> LookupSpan<'s>> Layer<S> for Collector {
    fn on_new_span(&self, attributes: &Attributes<'_>, id: &Id, context: Context<'_, S>) {
        let mut fields = Fields(String::new());
        attributes.record(&mut fields);
        context.span(id).unwrap().extensions_mut().insert(fields.0);
    }

    fn on_event(&self, event: &Event<'_>, context: Context<'_, S>) {
        let mut fields = Fields(String::new());
        event.record(&mut fields);
        let within = context.event_scope(event).into_iter().flatten().map(|span| {
            let fields = span.extensions().get::<String>().cloned().unwrap_or_default();
            format!("{}{fields}", span.name())
        });
        let told = Told {
            level: *event.metadata().level(),
            target: event.metadata().target().to_owned(),
            text: fields.0,
            within: within.collect(),
        };
        TOLD.lock().unwrap().push(told);
    }
}

/// Passes run in threads of the library too, so the collector is everybody's.
fn collect() {
    static ONCE: OnceLock<()> = OnceLock::new();
    ONCE.get_or_init(|| {
        let subscriber = tracing_subscriber::registry().with(Collector);
        tracing::subscriber::set_global_default(subscriber).unwrap();
    });
}

/// Waits for an event of this target whose text has all these parts.
#[track_caller]
fn told(target: &str, parts: &[&str]) -> Told {
    let started = Instant::now();
    loop {
        let found = TOLD
            .lock()
            .unwrap()
            .iter()
            .find(|told| {
                told.target == target && parts.iter().all(|&part| told.text.contains(part))
            })
            .cloned();
        if let Some(told) = found {
            return told;
        }
        if started.elapsed() > GUARD {
            let ours: Vec<_> = TOLD
                .lock()
                .unwrap()
                .iter()
                .filter(|told| told.target.starts_with("iwarp"))
                .cloned()
                .collect();
            panic!("nothing told of {parts:?}, only {ours:#?}");
        }
        std::thread::yield_now();
    }
}

const SETUP: &str = "iwarp::setup";
const CONNECTION: &str = "iwarp::connection";

fn qp(qp: &QueuePair) -> String {
    // Numbers are unique in the process, so tests can run side by side.
    format!(" qp={}", qp.number())
}

/// Two ends over a network in memory: the initiator first.
struct Pair {
    worlds: [World; 2],
    qps: [QueuePair; 2],
    connections: [Connection; 2],
    memory: [MemoryRegion; 2],
}

impl Pair {
    fn new(network: &MemoryNetwork) -> Self {
        let worlds = [(); 2].map(|()| World::with(DeviceConfig::default().network(network)));
        let qps = [worlds[0].qp(), worlds[1].qp()];
        let rights = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ;
        let memory = [0, 1].map(|side: usize| worlds[side].pd.alloc(4096, rights).unwrap());
        let listener =
            Listener::bind(&worlds[1].device, "192.0.2.1:0", ListenConfig::default()).unwrap();
        let connecting = cm::connect(listener.local_addr(), &qps[0], ConnParam::default()).unwrap();
        let accepting =
            listener.accept(GUARD).unwrap().accept(&qps[1], ConnParam::default()).unwrap();
        let connections = [connecting.wait(GUARD).unwrap(), accepting.wait(GUARD).unwrap()];
        Self { worlds, qps, connections, memory }
    }

    fn closed(&self) {
        for connection in &self.connections {
            connection.wait_closed(GUARD).expect("the end");
        }
    }
}

#[test]
fn a_refused_access_is_told_at_both_ends_in_words() {
    collect();
    let pair = Pair::new(&MemoryNetwork::new(1));
    let there = pair.memory[1].remote();
    let beyond = RemoteMemory { addr: there.addr + 4096, ..there };
    pair.qps[0]
        .post_send(SendRequest::write(1, pair.memory[0].slice(0..8).unwrap(), beyond))
        .unwrap();
    pair.closed();
    let [here, there] = [0, 1].map(|side: usize| qp(&pair.qps[side]));
    let words = "meaning=\"DDP, tagged: base or bounds violation\"";
    let sent = told(CONNECTION, &["Terminate sent", &there, "code=1/1/01", words, "cause="]);
    assert_eq!(sent.level, Level::INFO);
    let [span] = sent.within.try_into().unwrap();
    for part in ["connection", &there, " local=192.0.2.1:", " peer=", " role=\"responder\""] {
        assert!(span.contains(part), "{span}");
    }
    let received = told(CONNECTION, &["Terminate received", &here, "code=1/1/01", words]);
    assert!(received.within[0].contains(" role=\"initiator\""), "{received:?}");
    for (end, reason) in
        [(&here, "peer sent Terminate 1/1/01 (DDP, tagged: base"), (&there, "found here")]
    {
        let closed = told(CONNECTION, &["closed", end, reason]);
        assert_eq!(closed.level, Level::INFO);
        told(CONNECTION, &["state", end, "from=", "to="]);
        told(SETUP, &["connection established", end, "ird=", "crc=true"]);
    }
    told(SETUP, &["connecting", &here, "to=192.0.2.1:"]);
    told(SETUP, &["accepting", &there]);
}

#[test]
fn a_rejected_request_is_told_at_both_ends() {
    collect();
    let network = MemoryNetwork::new(1);
    let [client, server] = [(); 2].map(|()| World::with(DeviceConfig::default().network(&network)));
    let listener =
        Listener::bind(&server.device, "192.0.2.77:7471", ListenConfig::default()).unwrap();
    let end = client.qp();
    let connecting = cm::connect(listener.local_addr(), &end, ConnParam::default()).unwrap();
    let request = listener.accept(GUARD).unwrap();
    let peer = format!("peer={}", request.peer_addr());
    request.reject(b"no").unwrap();
    assert!(matches!(connecting.wait(GUARD), Err(ConnectError::Rejected { .. })));
    told(SETUP, &["request received", &peer, "local=192.0.2.77:7471", "revision=2"]);
    told(SETUP, &["request rejected", &peer]);
    let failed =
        told(SETUP, &["set-up failed", &end.number().to_string(), "rejected the connection"]);
    assert_eq!(failed.level, Level::DEBUG);
    assert_eq!(client.device.stats().setups_failed, 1);
    let stats = server.device.stats();
    assert_eq!((stats.requests_received, stats.requests_rejected, stats.connections), (1, 1, 0));
}

#[test]
fn a_lost_connection_is_told_with_its_reason() {
    collect();
    let network = MemoryNetwork::new(1);
    network.set_faults(Faults::none().drop_at(Direction::ToResponder, 2000, Loss::Reset));
    let pair = Pair::new(&network);
    let source = pair.memory[0].as_slice_all();
    pair.qps[0].post_send(SendRequest::write(1, source, pair.memory[1].remote())).unwrap();
    pair.closed();
    for end in &pair.qps {
        let closed = told(CONNECTION, &["closed", &qp(end), "connection lost: reset by the peer"]);
        assert_eq!(closed.level, Level::INFO);
        assert!(closed.within[0].starts_with("connection"), "{closed:?}");
    }
    assert_eq!(pair.worlds[0].device.stats().connections_lost, 1);
}

#[test]
fn an_orderly_end_is_no_news() {
    collect();
    let pair = Pair::new(&MemoryNetwork::new(1));
    pair.connections[0].disconnect();
    pair.closed();
    for end in &pair.qps {
        assert_eq!(told(CONNECTION, &["closed", &qp(end)]).level, Level::DEBUG);
    }
}

#[test]
fn figures_add_up() {
    let pair = Pair::new(&MemoryNetwork::new(1));
    let memory = |side: usize| pair.memory[side].as_slice_all();
    pair.qps[1].post_recv(RecvRequest::new(9, memory(1))).unwrap();
    let far = pair.memory[1].remote();
    let requests = [
        SendRequest::write(1, memory(0), far),
        SendRequest::read(2, memory(0), far),
        SendRequest::send(3, memory(0)),
    ];
    pair.qps[0].post_send_list(requests).unwrap();
    let sent = pair.worlds[0].completions(3);
    assert!(sent.iter().all(|wc| wc.status == WcStatus::Success), "{sent:?}");
    pair.worlds[1].completions(1);
    let [here, there] = [0, 1].map(|side: usize| pair.qps[side].stats());
    assert_eq!((here.fpdus_sent, here.octets_sent), (there.fpdus_received, there.octets_received));
    assert_eq!((there.fpdus_sent, there.octets_sent), (here.fpdus_received, here.octets_received));
    // The ready-to-receive message is a Write of no octets.
    assert_eq!((here.writes_sent, here.reads_sent, here.sends_sent), (2, 1, 1));
    assert_eq!((there.writes_received, there.reads_received, there.sends_received), (2, 1, 1));
    // Who made the passes is the machine's choice: the driver may be on the connection whenever a thread posts. It is
    // not every time.
    let started = Instant::now();
    let posted = loop {
        pair.qps[0].post_send(SendRequest::write(4, memory(0), far)).unwrap();
        pair.worlds[0].completions(1);
        let now = pair.qps[0].stats();
        if now.passes_of_posts > 0 {
            break now;
        }
        assert!(started.elapsed() < GUARD, "no post made a pass: {now}");
    };
    let passes = posted.passes_of_posts
        + posted.polls_with_work
        + posted.polls_without_work
        + posted.passes_of_waits
        + posted.passes_of_driver;
    assert!(passes > 1, "{posted}");
    let again = posted.writes_sent - here.writes_sent;
    assert_eq!(posted.octets_sent - here.octets_sent, again * (4096 + 20), "{posted}");
    // Of a connection that lives, and of the same one when it is over.
    let traffic = || pair.worlds[0].device.traffic();
    assert_eq!(traffic().fpdus_sent, posted.fpdus_sent);
    pair.connections[0].disconnect();
    pair.closed();
    assert_eq!(traffic(), pair.qps[0].stats());
    assert_eq!(pair.worlds[0].device.stats().connections, 1);
    assert_eq!(pair.worlds[0].device.stats().memory_in_use, 0);
    let named = traffic().iter().find(|(name, _)| *name == "reads_sent");
    assert_eq!(named, Some(("reads_sent", 1)));
}
