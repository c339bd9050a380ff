//! Arguments that cannot be: each gives an error that says what is wrong, with the number that a C program
//! expects, and changes nothing.

#![allow(clippy::unwrap_used, reason = "a failed step is a failed test")]

mod cm_support;

use cm_support::World;
use iwarp_verbs::cm::{self, ConnParam, EventChannel, Id};
use iwarp_verbs::{
    Access, Error, Notify, QpCaps, QpChange, QpConfig, QpState, RecvRequest, SendRequest,
};

const INVAL: i32 = 22;
const NOMEM: i32 = 12;
const BUSY: i32 = 16;

/// FC-075: foreign, destroyed, missing and oversized arguments of each call that makes or changes an object.
#[test]
fn fc_075_bad_arguments_give_a_number_and_words() {
    let (ours, theirs) = (World::new(), World::new());
    let limits = ours.device.attributes().limits;
    let (channel, foreign_channel) =
        (ours.device.create_channel().unwrap(), theirs.device.create_channel().unwrap());
    let qp = ours.qp();
    let gone = ours.qp();
    gone.destroy().unwrap();
    let config = || QpConfig::new(&ours.cq);
    let caps = QpCaps::default();
    let too_many = QpCaps { max_send_wr: limits.max_qp_wr + 1, ..caps };
    let create = |config: &QpConfig| ours.pd.create_qp(config).map(drop);
    let told = ours.device.create_cq_with_channel(4, &channel).unwrap();
    let table: [(&str, Result<(), Error>, i32); 19] = [
        ("a queue of no entries", ours.device.create_cq(0).map(drop), INVAL),
        ("a queue too large", ours.device.create_cq(limits.max_cqe + 1).map(drop), INVAL),
        (
            "a queue with another device's channel",
            ours.device.create_cq_with_channel(4, &foreign_channel).map(drop),
            INVAL,
        ),
        ("a size of no entries", ours.cq.resize(0), INVAL),
        ("a size too large", ours.cq.resize(limits.max_cqe + 1), INVAL),
        ("arming without a channel", ours.cq.arm(Notify::Any), INVAL),
        ("acknowledging what was not fetched", ours.cq.ack_events(1), INVAL),
        ("another device's queue for sends", create(&QpConfig::new(&theirs.cq)), INVAL),
        ("another device's queue for receives", create(&config().recv_cq(&theirs.cq)), INVAL),
        ("too many requests", create(&config().caps(too_many)), INVAL),
        (
            "a right that queue pairs have not",
            create(&config().remote_access(Access::LOCAL_WRITE)),
            INVAL,
        ),
        ("a state that is never entered", qp.modify(QpState::Rtr), INVAL),
        (
            "a right that queue pairs have not, later",
            qp.modify(QpChange::new().remote_access(Access::MW_BIND)),
            INVAL,
        ),
        ("an ORD before there is a connection", qp.modify(QpChange::new().ord(1)), INVAL),
        ("a state for what is destroyed", gone.modify(QpState::Err), INVAL),
        ("draining what is destroyed", gone.drain(None).map(drop), INVAL),
        ("destroying twice", gone.destroy(), INVAL),
        ("acknowledging about a queue pair", qp.ack_events(1), INVAL),
        ("a domain in use", ours.pd.clone().destroy(), BUSY),
    ];
    for (what, result, errno) in table {
        let error = result.expect_err(what);
        assert_eq!(error.errno(), errno, "{what}: {error}");
        assert!(error.to_string().len() > 10, "{what}: {error}");
    }
    drop(told);

    // Memory.
    let refused = ours.pd.alloc(8, Access::REMOTE_WRITE).unwrap_err();
    assert_eq!(Error::from(refused).errno(), INVAL);
    let refused = ours.pd.alloc(isize::MAX as usize - 4096, Access::empty()).unwrap_err();
    assert_eq!(Error::from(refused).errno(), NOMEM);

    // Posting.
    let region = theirs.pd.alloc(8, Access::LOCAL_WRITE).unwrap();
    let slice = || region.as_slice_all();
    assert_eq!(qp.post_recv(RecvRequest::new(1, slice())).unwrap_err().errno(), INVAL);
    assert_eq!(qp.post_send(SendRequest::send(1, ())).unwrap_err().errno(), INVAL);
    qp.modify(QpState::Err).unwrap();
    assert_eq!(qp.post_send(SendRequest::send(1, slice())).unwrap_err().errno(), INVAL);
    let many = vec![ours.pd.alloc(8, Access::empty()).unwrap().as_slice_all(); 5];
    assert_eq!(qp.post_send(SendRequest::send(1, many)).unwrap_err().errno(), INVAL);
    for _ in 0..caps.max_send_wr {
        qp.post_send(SendRequest::send(1, ())).unwrap();
    }
    assert_eq!(qp.post_send(SendRequest::send(1, ())).unwrap_err().errno(), NOMEM);

    // Connections.
    let listener = ours.listener();
    let refused = cm::connect(listener.local_addr(), &gone, ConnParam::default()).unwrap_err();
    assert_eq!(refused.errno(), INVAL, "{refused}");
    let refused = cm::connect(listener.local_addr(), &qp, ConnParam::default()).unwrap_err();
    assert_eq!(refused.errno(), INVAL, "a queue pair in error: {refused}");
    let id = Id::new(&EventChannel::new(&ours.device).unwrap());
    let elsewhere = EventChannel::new(&theirs.device).unwrap();
    assert_eq!(id.migrate(&elsewhere).unwrap_err().errno(), INVAL);
    let foreign = theirs.qp();
    let refused = id.connect(listener.local_addr(), &foreign, ConnParam::default()).unwrap_err();
    assert_eq!(refused.errno(), INVAL, "another device's queue pair: {refused}");
}
