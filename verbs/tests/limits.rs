//! What was asked for is what can be used, on queue pairs without a connection.

#![allow(clippy::unwrap_used, reason = "a failed step is a failed test")]

use iwarp_verbs::{
    Access, CompletionQueue, Device, DeviceConfig, DeviceLimits, Error, PostErrorCause,
    ProtectionDomain, QpCaps, QpConfig, QpState, QueuePair, RecvRequest, SendRequest, SrqConfig,
    WcOpcode, WcStatus,
};
use proptest::prelude::*;

fn device() -> Device {
    Device::open(DeviceConfig::default()).unwrap()
}

struct Queues {
    pd: ProtectionDomain,
    cq: CompletionQueue,
}

impl Queues {
    fn new(entries: u32) -> Self {
        let device = device();
        Self { pd: device.alloc_pd(), cq: device.create_cq(entries).unwrap() }
    }

    fn qp(&self, caps: QpCaps) -> QueuePair {
        self.pd.create_qp(&QpConfig::new(&self.cq).caps(caps)).unwrap()
    }
}

/// Posts Sends until one is refused.
fn fill_sends(qp: &QueuePair) -> u32 {
    for n in 0.. {
        if let Err(error) = qp.post_send(SendRequest::send(n, ())) {
            let capacity = qp.query().caps.max_send_wr;
            assert_eq!(error.cause, PostErrorCause::QueueFull { capacity });
            assert_eq!((error.index, error.errno(), error.request.id()), (0, 12, n));
            return u32::try_from(n).unwrap();
        }
    }
    unreachable!()
}

/// Posts receives until one is refused.
fn fill_receives(qp: &QueuePair) -> u32 {
    for n in 0.. {
        if let Err(error) = qp.post_recv(RecvRequest::new(n, ())) {
            let capacity = qp.query().caps.max_recv_wr;
            assert_eq!(error.cause, PostErrorCause::QueueFull { capacity });
            assert_eq!((error.errno(), error.request.id()), (12, n));
            return u32::try_from(n).unwrap();
        }
    }
    unreachable!()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1000))]

    /// FC-071, FC-066, FC-010: sizes are given as asked, shown by the query, and usable in full.
    #[test]
    fn prop_sizes_are_the_truth(
        max_send_wr in 0..40_u32,
        max_recv_wr in 0..40_u32,
        max_send_sge in 0..=16_u32,
        max_recv_sge in 0..=16_u32,
        max_inline_data in 0..=512_u32,
    ) {
        let caps =
            QpCaps { max_send_wr, max_recv_wr, max_send_sge, max_recv_sge, max_inline_data };
        let queues = Queues::new(100);
        let qp = queues.qp(caps);
        prop_assert_eq!(qp.query().caps, caps);
        prop_assert_eq!(qp.query().state, QpState::Init);
        prop_assert_eq!(fill_receives(&qp), max_recv_wr);
        qp.modify(QpState::Err).unwrap();
        prop_assert_eq!(fill_sends(&qp), max_send_wr);
        // Everything comes back flushed, and then there is room again.
        let mut completions = Vec::with_capacity(100);
        queues.cq.poll(&mut completions);
        prop_assert_eq!(completions.len(), (max_send_wr + max_recv_wr) as usize);
        prop_assert!(completions.iter().all(|wc| wc.status == WcStatus::WrFlushErr));
        prop_assert_eq!((fill_sends(&qp), fill_receives(&qp)), (max_send_wr, max_recv_wr));

        // Elements and inline data up to their limits.
        if max_send_wr == 0 || max_recv_wr == 0 {
            return Ok(());
        }
        completions.clear();
        queues.cq.poll(&mut completions);
        let region = queues.pd.alloc(16, Access::LOCAL_WRITE).unwrap();
        let slices = |n: u32| vec![region.slice(0..1).unwrap(); n as usize];
        qp.post_send(SendRequest::send(1, slices(max_send_sge))).unwrap();
        let error = qp.post_send(SendRequest::send(1, slices(max_send_sge + 1))).unwrap_err();
        let have = max_send_sge as usize + 1;
        prop_assert_eq!(error.cause, PostErrorCause::TooManyElements { have, max: max_send_sge });
        qp.post_recv(RecvRequest::new(1, slices(max_recv_sge))).unwrap();
        let error = qp.post_recv(RecvRequest::new(1, slices(max_recv_sge + 1))).unwrap_err();
        let have = max_recv_sge as usize + 1;
        prop_assert_eq!(error.cause, PostErrorCause::TooManyElements { have, max: max_recv_sge });
        queues.cq.poll(&mut completions);
        let inline = vec![0; max_inline_data as usize + 1];
        qp.post_send(SendRequest::send_inline(1, &inline[1..])).unwrap();
        let error = qp.post_send(SendRequest::send_inline(1, &inline)).unwrap_err();
        let len = inline.len() as u64;
        prop_assert_eq!(error.cause, PostErrorCause::InlineTooLong { len, max: max_inline_data });
    }
}

/// SEC-17, FC-071, FC-043: each limit of the device holds, and one more is refused when the object is made.
#[test]
fn the_limits_of_the_device_are_usable() {
    let limits = DeviceLimits {
        max_qp_wr: 300,
        max_srq_wr: 400,
        max_sge: 5,
        max_cqe: 700,
        max_inline_data: 33,
    };
    let device = Device::open(DeviceConfig::default().limits(limits)).unwrap();
    assert_eq!(device.attributes().limits, limits);
    let cq = device.create_cq(700).unwrap();
    assert!(matches!(device.create_cq(701), Err(Error::Limit { max: 700, .. })));
    let most = QpCaps {
        max_send_wr: 300,
        max_recv_wr: 300,
        max_send_sge: 5,
        max_recv_sge: 5,
        max_inline_data: 33,
    };
    let pd = device.alloc_pd();
    let qp = pd.create_qp(&QpConfig::new(&cq).caps(most)).unwrap();
    assert_eq!(qp.query().caps, most);
    assert_eq!(fill_receives(&qp), 300);
    for more in [
        QpCaps { max_send_wr: 301, ..most },
        QpCaps { max_recv_wr: 301, ..most },
        QpCaps { max_send_sge: 6, ..most },
        QpCaps { max_recv_sge: 6, ..most },
        QpCaps { max_inline_data: 34, ..most },
    ] {
        let error = pd.create_qp(&QpConfig::new(&cq).caps(more)).unwrap_err();
        assert!(matches!(error, Error::Limit { .. }), "{more:?}: {error}");
        assert_eq!(error.errno(), 22);
    }
    let most = SrqConfig { max_wr: 400, max_sge: 5, limit: 400 };
    let srq = pd.create_srq(&most).unwrap();
    srq.post_recv_list((0..400).map(|id| RecvRequest::new(id, ()))).unwrap();
    let full = srq.post_recv(RecvRequest::new(400, ())).unwrap_err();
    assert_eq!(full.cause, PostErrorCause::QueueFull { capacity: 400 });
    for more in [
        SrqConfig { max_wr: 401, ..most },
        SrqConfig { max_sge: 6, ..most },
        SrqConfig { limit: 401, ..most },
    ] {
        let error = pd.create_srq(&more).unwrap_err();
        assert!(matches!(error, Error::Limit { .. }), "{more:?}: {error}");
        assert_eq!(error.errno(), 22);
    }
    let rights = QpConfig::new(&cq).remote_access(Access::LOCAL_WRITE);
    assert!(matches!(pd.create_qp(&rights), Err(Error::QueuePairRights { .. })));
}

/// FC-066: a place is free when its completion has been polled, one for one.
#[test]
fn a_polled_completion_makes_room_for_one_request() {
    let queues = Queues::new(64);
    let qp = queues.qp(QpCaps { max_send_wr: 8, ..QpCaps::default() });
    qp.modify(QpState::Err).unwrap();
    assert_eq!(fill_sends(&qp), 8);
    for round in 0..100 {
        let wc = queues.cq.poll_one().unwrap();
        assert_eq!((wc.status, wc.opcode), (WcStatus::WrFlushErr, WcOpcode::Send));
        qp.post_send(SendRequest::send(round, ())).unwrap();
        let full = qp.post_send(SendRequest::send(round, ())).unwrap_err();
        assert_eq!(full.cause, PostErrorCause::QueueFull { capacity: 8 });
    }
}

/// FC-065: of a list, those before the bad one are posted, those behind it are not looked at.
#[test]
fn a_list_stops_at_the_first_request_that_is_not_taken() {
    let queues = Queues::new(64);
    for bad in 0..4 {
        let qp = queues.qp(QpCaps::default());
        qp.modify(QpState::Err).unwrap();
        let mut list = (0..5_u64).map(|id| {
            if id == bad {
                SendRequest::send_inline(id, [0; 129])
            } else {
                SendRequest::send(id, ()).unsignaled()
            }
        });
        let error = qp.post_send_list(&mut list).unwrap_err();
        assert_eq!(error.index as u64, bad);
        assert_eq!(error.request.id(), bad);
        assert_eq!(error.cause, PostErrorCause::InlineTooLong { len: 129, max: 128 });
        let rest: Vec<_> = list.map(|request| request.id()).collect();
        assert_eq!(rest, (bad + 1..5).collect::<Vec<_>>(), "still in the hands of the program");
        let mut completions = Vec::with_capacity(64);
        queues.cq.poll(&mut completions);
        let posted: Vec<_> = completions.iter().map(|wc| wc.wr_id).collect();
        assert_eq!(posted, (0..bad).collect::<Vec<_>>());
    }
    // The same for receives, with a queue that fills up.
    let qp = queues.qp(QpCaps { max_recv_wr: 3, ..QpCaps::default() });
    let mut list = (0..5).map(|id| RecvRequest::new(id, ()));
    let error = qp.post_recv_list(&mut list).unwrap_err();
    assert_eq!((error.index, error.request.id()), (3, 3));
    assert_eq!(error.cause, PostErrorCause::QueueFull { capacity: 3 });
    assert_eq!(list.count(), 1);
    // A send queue takes nothing before it is connected.
    let error = qp.post_send(SendRequest::send(1, ())).unwrap_err();
    assert_eq!(error.cause, PostErrorCause::State(QpState::Init));
}
