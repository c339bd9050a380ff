//! What may be done to a queue pair in which state: every state against every call, compared with tables
//! written out (FC-070).

use std::fmt::Write as _;
use std::net::TcpStream;

use super::*;
use crate::attr::QpChange;
use crate::error::Error;
use crate::event::AsyncEventKind;
use crate::mem::RemoteMemory;
use crate::wc::WcOpcode;
use crate::wr::{RecvRequest, SendRequest};

const NOWHERE: RemoteMemory = RemoteMemory { addr: 0x1000, len: 1 << 20, rkey: 0x1234_5678 };

/// The states that are ever entered. A peer that says nothing keeps the passing ones from passing.
const REACHED: [QpState; 6] =
    [QpState::Reset, QpState::Init, QpState::Rts, QpState::Sqd, QpState::Sqe, QpState::Err];

/// A queue pair in a state, with its silent peer.
fn in_state(state: QpState) -> (End, Option<TcpStream>) {
    let setup = Setup::default();
    let end = setup.end();
    match state {
        QpState::Init => return (end, None),
        QpState::Reset | QpState::Err => {
            end.qp.modify(state).expect("from the beginning");
            return (end, None);
        }
        QpState::Rtr => panic!("never entered"),
        QpState::Rts | QpState::Sqd | QpState::Sqe => {}
    }
    let (left, right) = tcp_pair();
    setup.start(&end, left, Role::Initiator);
    if state != QpState::Rts {
        end.qp.modify(state).expect("from full operation");
    }
    assert_eq!(end.qp.state(), state);
    (end, Some(right))
}

fn outcome(result: Result<(), Error>, end: &End) -> String {
    match result {
        Ok(()) => end.qp.state().to_string(),
        Err(error) => format!("-{}", error.errno()),
    }
}

/// What is done to a queue pair, and what to write into the table.
type Call<'a> = &'a dyn Fn(&End) -> String;

/// A row for each call, a column for each of [`REACHED`].
fn table(rows: &[(&str, Call<'_>)]) -> String {
    let mut table = String::new();
    for (name, call) in rows {
        let mut row = format!("{name:14}");
        for state in REACHED {
            let (end, _peer) = in_state(state);
            let before = (end.qp.state(), end.qp.query().remote_access, end.qp.query().ord);
            let cell = call(&end);
            if cell.starts_with('-') {
                let now = (end.qp.state(), end.qp.query().remote_access, end.qp.query().ord);
                assert_eq!(now, before, "{name} was refused in {state}, and has changed something");
            }
            write!(row, " {cell:8}").unwrap();
        }
        table += row.trim_end();
        table.push('\n');
    }
    table
}

/// FC-070, contract of states: each state against each target and each attribute. A number is what `errno`
/// would say.
#[test]
fn fc_070_every_change_in_every_state() {
    let rights = Access::REMOTE_READ;
    let to = |change: QpChange| move |end: &End| outcome(end.qp.modify(change), end);
    let changes = [
        ("RESET", QpChange::to(QpState::Reset)),
        ("INIT", QpChange::to(QpState::Init)),
        ("RTR", QpChange::to(QpState::Rtr)),
        ("RTS", QpChange::to(QpState::Rts)),
        ("SQD", QpChange::to(QpState::Sqd)),
        ("SQE", QpChange::to(QpState::Sqe)),
        ("ERR", QpChange::to(QpState::Err)),
        ("nothing", QpChange::new()),
        ("rights", QpChange::new().remote_access(rights)),
        ("INIT+rights", QpChange::to(QpState::Init).remote_access(rights)),
        ("RTS+rights", QpChange::to(QpState::Rts).remote_access(rights)),
        ("ERR+rights", QpChange::to(QpState::Err).remote_access(rights)),
        ("no right", QpChange::new().remote_access(Access::LOCAL_WRITE)),
        ("ORD", QpChange::new().ord(1)),
        ("RTS+ORD", QpChange::to(QpState::Rts).ord(1)),
        ("ORD beyond", QpChange::new().ord(17)),
        ("SQD+ORD", QpChange::to(QpState::Sqd).ord(1)),
        ("SQD+drained", QpChange::to(QpState::Sqd).notify_drained()),
        ("drained", QpChange::new().notify_drained()),
    ]
    .map(|(name, change)| (name, to(change)));
    let rows: Vec<(&str, Call<'_>)> =
        changes.iter().map(|(name, call)| (*name, call as Call<'_>)).collect();
    let found = table(&rows);
    // On      RESET    INIT     RTS      SQD      SQE      ERR
    let expected = "\
RESET          RESET    RESET    -22      -22      -22      RESET
INIT           INIT     INIT     -22      -22      -22      -22
RTR            -22      -22      -22      -22      -22      -22
RTS            -22      -22      RTS      -22      -22      -22
SQD            -22      -22      SQD      -22      -22      -22
SQE            -22      -22      SQE      -22      -22      -22
ERR            ERR      ERR      ERR      ERR      ERR      ERR
nothing        RESET    INIT     RTS      SQD      SQE      ERR
rights         -22      INIT     RTS      -22      -22      -22
INIT+rights    INIT     INIT     -22      -22      -22      -22
RTS+rights     -22      -22      RTS      -22      -22      -22
ERR+rights     -22      -22      -22      -22      -22      -22
no right       -22      -22      -22      -22      -22      -22
ORD            -22      -22      RTS      -22      -22      -22
RTS+ORD        -22      -22      RTS      -22      -22      -22
ORD beyond     -22      -22      -22      -22      -22      -22
SQD+ORD        -22      -22      -22      -22      -22      -22
SQD+drained    -22      -22      SQD      -22      -22      -22
drained        -22      -22      -22      -22      -22      -22
";
    assert_eq!(found, expected, "\n{found}");
}

/// Contract of posting: what becomes of a request in each state. `queued`: it is taken and stays; `flushed`:
/// its completion comes at once.
#[test]
fn fc_031_every_posting_in_every_state() {
    let send = |end: &End| match end.qp.post_send(SendRequest::read(7, (), NOWHERE)) {
        Err(error) => format!("-{}", error.errno()),
        Ok(()) => became(&end.send_cq, WcOpcode::RdmaRead, end.qp.number()),
    };
    let send_list = |end: &End| match end.qp.post_send_list([
        SendRequest::read(7, (), NOWHERE).unsignaled(),
        SendRequest::read(8, (), NOWHERE),
    ]) {
        Err(error) => format!("-{}", error.errno()),
        Ok(()) => became(&end.send_cq, WcOpcode::RdmaRead, end.qp.number()),
    };
    let receive = |end: &End| match end.qp.post_recv(RecvRequest::new(7, ())) {
        Err(error) => format!("-{}", error.errno()),
        Ok(()) => became(&end.recv_cq, WcOpcode::Recv, end.qp.number()),
    };
    let found = table(&[("send", &send), ("send list", &send_list), ("receive", &receive)]);
    // On      RESET    INIT     RTS      SQD      SQE      ERR
    let expected = "\
send           -22      -22      queued   flushed  flushed  flushed
send list      -22      -22      queued   flushed  flushed  flushed
receive        -22      queued   queued   flushed  flushed  flushed
";
    assert_eq!(found, expected, "\n{found}");
}

/// The flush happens in the call that posts, so that one look says it.
fn became(cq: &CompletionQueue, opcode: WcOpcode, qp_num: u32) -> String {
    if cq.is_empty() {
        return "queued".into();
    }
    let wc = poll(cq);
    assert_eq!((wc.wr_id, wc.status, wc.opcode), (7, WcStatus::WrFlushErr, opcode));
    assert_eq!(wc.qp_num, qp_num);
    "flushed".into()
}

/// Contract of destruction: in any state, once, and nothing is left of it; and drained from any state.
#[test]
fn fc_076_destroyed_and_drained_in_every_state() {
    let requests = |end: &End| {
        // As far as the state takes them.
        let _ = end.qp.post_recv(RecvRequest::new(1, ()));
        let _ = end.qp.post_send(SendRequest::read(2, (), NOWHERE));
    };
    let destroy = |end: &End| {
        requests(end);
        end.qp.destroy().unwrap();
        assert!(end.send_cq.is_empty() && end.recv_cq.is_empty(), "nothing is left behind");
        assert!(matches!(end.qp.destroy(), Err(Error::Destroyed { .. })));
        assert!(matches!(end.qp.modify(QpState::Err), Err(Error::Destroyed { .. })));
        assert!(matches!(end.qp.drain(HANG), Err(Error::Destroyed { .. })));
        end.send_cq.clone().destroy().unwrap();
        end.recv_cq.clone().destroy().unwrap();
        end.pd.clone().destroy().unwrap();
        "gone".to_owned()
    };
    let drain = |end: &End| {
        requests(end);
        assert!(end.qp.drain(HANG).unwrap(), "in time");
        let inner = &end.qp.0.inner;
        let ends = end.send_cq.len() + end.recv_cq.len();
        let taken = inner.sq.slots.in_use() + inner.rq.slots.in_use();
        assert_eq!(ends, taken as usize, "each request that was taken has come back");
        assert!(end.qp.drain(HANG).unwrap(), "again");
        // Drained means that it can be made anew.
        end.qp.modify(QpState::Reset).unwrap();
        let anew = end.qp.query();
        assert_eq!((anew.ird, anew.ord), (0, 0), "of no connection");
        ends.to_string()
    };
    let found = table(&[("destroy", &destroy), ("drain", &drain)]);
    // On      RESET    INIT     RTS      SQD      SQE      ERR
    let expected = "\
destroy        gone     gone     gone     gone     gone     gone
drain          0        1        2        2        2        2
";
    assert_eq!(found, expected, "\n{found}");
}

/// A drain needs no room in the queues, and waits for what others post meanwhile.
#[test]
fn a_drain_waits_for_everything_while_others_post() {
    for _ in 0..20 {
        let Pair { a, b } = Setup { requests: 64, ..Setup::default() }.connect();
        let posted = std::sync::atomic::AtomicU32::new(0);
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    while a.qp.post_recv(RecvRequest::new(1, ())).is_ok() {
                        posted.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
                        let _ = a.qp.post_send(SendRequest::read(2, (), NOWHERE));
                    }
                });
            }
            assert!(a.qp.drain(HANG).unwrap());
        });
        assert!(a.qp.drain(HANG).unwrap());
        assert_eq!(a.recv_cq.len(), 64);
        assert_eq!(posted.into_inner(), 64);
        assert_eq!(crate::aio::wait(b.qp.drained(), HANG).unwrap().ok(), Some(()));
    }
}

/// The ORD can be lowered, and raised again up to what was negotiated, while Reads are on their way: never
/// more than it says are outstanding from there on, and all complete in order.
#[test]
fn the_ord_is_changed_while_reads_are_outstanding() {
    let setup = Setup { depth: 8, ..Setup::default() };
    let Pair { a, b } = setup.connect();
    let far = b.pattern(64, 3);
    let near = a.region(64);
    let error = a.qp.modify(QpChange::new().ord(9)).unwrap_err();
    assert!(matches!(error, Error::Limit { asked: 9, max: 8, .. }), "{error}");
    let mut posted = 0..;
    let mut completed = 0..;
    for ord in [1, 8, 2, 1, 8, 3] {
        for _ in 0..10 {
            let read = SendRequest::read(posted.next().unwrap(), near.as_slice_all(), far.remote());
            a.qp.post_send(read).unwrap();
        }
        a.qp.modify(QpChange::to(QpState::Rts).ord(ord)).unwrap();
        assert_eq!(a.qp.query().ord, ord);
        for _ in 0..10 {
            assert_success(&a.sent(), completed.next().unwrap());
        }
    }
    assert!(content(&near) == content(&far));
    // None at all: a Read is an error of the program.
    a.qp.modify(QpChange::new().ord(0)).unwrap();
    a.qp.post_send(SendRequest::read(99, near.as_slice_all(), far.remote())).unwrap();
    let wc = a.sent();
    assert_eq!((wc.wr_id, wc.status), (99, WcStatus::LocQpOpErr));
}

/// What the peer may do is changed on a live connection: refused from the return of the call on.
#[test]
fn the_rights_of_the_peer_are_changed_in_full_operation() {
    let Pair { a, b } = Setup::default().connect();
    let far = b.region(64);
    let near = a.region(64);
    let slice = || near.as_slice_all();
    a.qp.post_send(SendRequest::read(1, slice(), far.remote())).unwrap();
    assert_success(&a.sent(), 1);
    b.qp.modify(QpChange::new().remote_access(Access::REMOTE_READ)).unwrap();
    assert_eq!(b.qp.query().remote_access, Access::REMOTE_READ);
    a.qp.post_send(SendRequest::read(2, slice(), far.remote())).unwrap();
    assert_success(&a.sent(), 2);
    a.qp.post_send(SendRequest::write(3, slice(), far.remote())).unwrap();
    b.wait_state(QpState::Err);
    assert_eq!(b.qp.ending().expect("a Terminate").terminate.code.to_string(), "1/1/00");
    let event = b.device.wait_async_event(HANG).unwrap().expect("an event");
    assert_eq!(event.kind(), AsyncEventKind::QpAccessErr);
    match event.source() {
        crate::EventSource::QueuePair(qp) => assert_eq!(qp.upgrade(), Some(b.qp.clone())),
        other => panic!("{other:?}"),
    }
}

/// `SQ_DRAINED`, for who asked: when the last of the send queue has come back, done or flushed, and before the
/// connection is over.
#[test]
fn a_drained_send_queue_is_told_of_once() {
    for outstanding in [0, 3] {
        let (end, peer) = in_state(QpState::Rts);
        for id in 0..outstanding {
            end.qp.post_send(SendRequest::read(id, (), NOWHERE)).unwrap();
        }
        end.qp.modify(QpChange::to(QpState::Sqd).notify_drained()).unwrap();
        let event = end.device.wait_async_event(HANG).unwrap().expect("an event");
        assert_eq!(event.kind(), AsyncEventKind::SqDrained);
        assert_eq!(event.source().queue_pair_number(), Some(end.qp.number()));
        assert_eq!(end.send_cq.len() as u64, outstanding, "all have come back");
        drop(peer);
        end.wait_state(QpState::Err);
        let kinds: Vec<_> =
            std::iter::from_fn(|| end.device.next_async_event().unwrap().map(|event| event.kind()))
                .collect();
        assert!(!kinds.contains(&AsyncEventKind::SqDrained), "{kinds:?}");
    }
    // Not for who did not ask.
    let (end, peer) = in_state(QpState::Sqd);
    drop(peer);
    end.wait_state(QpState::Err);
    let told = end.device.next_async_event().unwrap().map(|event| event.kind());
    assert_ne!(told, Some(AsyncEventKind::SqDrained));
}

/// FC-042, SEC-09: an overrun takes along those who report to the queue, connected or not, also as a responder that
/// has not heard from its peer; a broken queue takes no new ones.
#[test]
fn fc_042_an_overrun_reaches_queue_pairs_that_are_not_connected() {
    let setup = Setup { entries: 2, ..Setup::default() };
    let end = setup.end();
    let config = || QpConfig::new(&end.send_cq);
    let idle = end.pd.create_qp(&config()).unwrap();
    idle.post_recv(RecvRequest::new(1, ())).unwrap();
    let (_left, right) = tcp_pair();
    // Held: no Terminate may go out, and none does.
    setup.start(&end, right, Role::Responder);
    let other = end.pd.create_qp(&config()).unwrap();
    other.modify(QpState::Err).unwrap();
    for id in 0..3 {
        other.post_send(SendRequest::send(id, ())).unwrap();
    }
    end.wait_state(QpState::Err);
    until("the end of the idle one", || idle.state() == QpState::Err);
    let mut told: Vec<_> = Vec::new();
    until("three events", || {
        told.extend(
            end.device
                .next_async_event()
                .unwrap()
                .map(|event| (event.kind(), event.source().queue_pair_number())),
        );
        told.len() == 3
    });
    told.sort_by_key(|(kind, number)| (kind.value(), *number));
    let mut expected = vec![
        (AsyncEventKind::CqErr, None),
        (AsyncEventKind::QpFatal, Some(idle.number())),
        (AsyncEventKind::QpFatal, Some(end.qp.number())),
    ];
    expected.sort_by_key(|(kind, number)| (kind.value(), *number));
    assert_eq!(told, expected);
    assert!(end.qp.ending().is_none());
    assert!(matches!(end.pd.create_qp(&config()), Err(Error::CqOverrun { capacity: 2 })));
    until("a reset", || idle.modify(QpState::Reset).is_ok());
    assert!(matches!(idle.modify(QpState::Init), Err(Error::CqOverrun { .. })));
}
