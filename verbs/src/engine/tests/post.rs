//! What posting refuses, and how places in the queues are counted.

use super::*;
use crate::attr::QpCaps;
use crate::wr::{PostErrorCause, RawSge, RecvRequest, SendFlags, SendOperation, SendRequest};

/// FC-065: the first request that is not taken is named and comes back; those before it run, those
/// after it were never looked at.
#[test]
fn a_list_stops_at_its_first_bad_request() {
    type Bad = (fn(&End) -> SendRequest, fn(&PostErrorCause) -> bool);
    let bad: [Bad; 4] = [
        (
            |a| {
                let slice = a.region(64).slice(..1).unwrap();
                SendRequest::send(99, vec![slice; 17])
            },
            |cause| matches!(cause, PostErrorCause::TooManyElements { have: 17, max: 16 }),
        ),
        (
            |_| SendRequest::send_inline(99, [0; 513]),
            |cause| matches!(cause, PostErrorCause::InlineTooLong { len: 513, max: 512 }),
        ),
        (
            |a| {
                // The region goes with its domain's last use; the request holds it.
                let foreign = alloc(&a.device.alloc_pd(), 8, ALL);
                SendRequest::send(99, foreign.as_slice_all())
            },
            |cause| matches!(cause, PostErrorCause::ForeignRegion { element: 0 }),
        ),
        (
            |a| {
                let far = a.region(8).remote();
                SendRequest::write_inline(99, b"12345678", far).invalidate(7)
            },
            |cause| matches!(cause, PostErrorCause::NotSupported(_)),
        ),
    ];
    for (request, expected) in bad {
        for at in 0..3_usize {
            let Pair { a, b } = Setup::default().connect();
            for _ in 0..3 {
                b.qp.post_recv(RecvRequest::new(0, ())).unwrap();
            }
            let mut list = (0..3_usize).map(|index| {
                if index == at { request(&a) } else { SendRequest::send(index as u64, ()) }
            });
            let error = a.qp.post_send_list(&mut list).unwrap_err();
            assert_eq!((error.index, error.request.id()), (at, 99));
            assert!(expected(&error.cause), "{}", error.cause);
            assert_eq!(list.count(), 2 - at, "the rest is still there");
            for id in 0..at {
                assert_success(&a.sent(), id as u64);
            }
            a.qp.post_send(SendRequest::send(50, ())).unwrap();
            assert_success(&a.sent(), 50);
        }
    }
}

/// FC-066: exactly as many as the queue holds, and a place is free when its completion is polled.
#[test]
fn a_full_queue_refuses_and_polling_frees_a_place() {
    let Pair { a, b } = Setup { requests: 8, ..Setup::default() }.connect();
    let far = b.region(64);
    let write = |id| SendRequest::write_inline(id, b"x", far.remote());
    for id in 0..8 {
        a.qp.post_send(write(id)).unwrap();
    }
    for id in 0..20 {
        let error = a.qp.post_send(write(100)).unwrap_err();
        assert!(matches!(error.cause, PostErrorCause::QueueFull { capacity: 8 }));
        assert_success(&a.sent(), id);
        a.qp.post_send(write(id + 8)).unwrap();
    }
    for id in 0..8 {
        b.qp.post_recv(RecvRequest::new(id, ())).unwrap();
    }
    let error = b.qp.post_recv(RecvRequest::new(8, ())).unwrap_err();
    assert!(matches!(error.cause, PostErrorCause::QueueFull { capacity: 8 }));
    a.sent();
    a.qp.post_send(SendRequest::send(0, ())).unwrap();
    assert_success(&b.received(), 0);
    b.qp.post_recv(RecvRequest::new(8, ())).unwrap();
}

/// FC-066: with every eighth signalled, the queue never fills up for good.
#[test]
fn unsignalled_requests_give_their_places_back_with_the_next_completion() {
    let Pair { a, b } = Setup { requests: 16, ..Setup::default() }.connect();
    let far = b.region(64);
    let mut outstanding = 0;
    for id in 0..20_000_u64 {
        let request = SendRequest::write_inline(id, id.to_le_bytes(), far.remote());
        let signaled = id % 8 == 7;
        let request = if signaled { request } else { request.unsignaled() };
        a.qp.post_send(request).unwrap_or_else(|error| panic!("{id}: {error}"));
        outstanding += u64::from(signaled);
        if outstanding == 2 {
            assert_success(&a.sent(), id - 8);
            outstanding -= 1;
        }
    }
    a.qp.post_send(SendRequest::read(0, (), far.remote())).unwrap();
    assert_success(&a.sent(), 19_999);
    assert_success(&a.sent(), 0);
    assert_eq!(far.load_u64(0).unwrap().to_le_bytes(), 19_999_u64.to_le_bytes());
    let slots = &a.qp.0.inner.sq.slots;
    assert_eq!(slots.in_use(), 0);
}

/// FC-071: what is asked for is given, told, and usable in full.
#[test]
fn capabilities_are_the_truth() {
    let device = Device::open(DeviceConfig::default()).unwrap();
    let pd = device.alloc_pd();
    let cq = device.create_cq(4096).unwrap();
    let limits = device.attributes().limits;
    let mut random = octets(600, 3).into_iter().map(u32::from);
    for _ in 0..100 {
        let mut below = |max: u32| random.next().unwrap_or(1) * (max + 1) / 256;
        let caps = QpCaps {
            max_send_wr: below(300),
            max_recv_wr: below(300),
            max_send_sge: below(limits.max_sge),
            max_recv_sge: below(limits.max_sge),
            max_inline_data: below(limits.max_inline_data),
        };
        let qp = pd.create_qp(&QpConfig::new(&cq).caps(caps)).unwrap();
        assert_eq!(qp.query().caps, caps);
        assert_eq!(qp.query().state, QpState::Init, "FC-070");
        let region = alloc(&pd, 16, ALL);
        let elements = || vec![region.slice(..1).unwrap(); caps.max_recv_sge as usize];
        for id in 0..caps.max_recv_wr {
            qp.post_recv(RecvRequest::new(id.into(), elements())).unwrap();
        }
        assert!(qp.post_recv(RecvRequest::new(0, ())).is_err());
        // V3: not before there is a connection.
        let error = qp.post_send(SendRequest::send(0, ())).unwrap_err();
        assert!(matches!(error.cause, PostErrorCause::State(QpState::Init)));
    }
    let more = QpCaps { max_send_sge: limits.max_sge + 1, ..QpCaps::default() };
    assert!(pd.create_qp(&QpConfig::new(&cq).caps(more)).is_err());
}

/// Queues of no length: nothing can be posted, and nothing breaks (FC-010).
#[test]
fn queues_may_have_no_places() {
    let Pair { a, b } = Setup { requests: 0, ..Setup::default() }.connect();
    for end in [&a, &b] {
        let error = end.qp.post_send(SendRequest::send(0, ())).unwrap_err();
        assert!(matches!(error.cause, PostErrorCause::QueueFull { capacity: 0 }));
        assert!(end.qp.post_recv(RecvRequest::new(0, ())).is_err());
    }
    a.qp.disconnect();
    a.wait_state(QpState::Err);
    b.wait_state(QpState::Err);
}

/// The raw path: keys are looked at when the request runs, each of them.
#[test]
fn raw_requests_name_memory_by_address_and_key() {
    let Pair { a, b } = Setup::default().connect();
    let near = a.pattern(64, 6);
    let far = b.region(64);
    let sge = |from: u64, length| RawSge { addr: near.addr() + from, length, lkey: near.lkey() };
    let to =
        |region: &MemoryRegion| RawSge { addr: region.addr(), length: 64, lkey: region.lkey() };
    let write = SendOperation::RdmaWrite { remote_addr: far.addr(), rkey: far.rkey() };
    let read = SendOperation::RdmaRead { remote_addr: far.addr(), rkey: far.rkey() };
    let back = a.region(64);
    let sink = b.region(64);
    b.qp.post_recv(RecvRequest::raw(4, [to(&sink)])).unwrap();
    let all = SendFlags::SIGNALED;
    a.qp.post_send_list([
        SendRequest::raw(1, write, [sge(0, 3), sge(3, 61)], all),
        SendRequest::raw(2, read, [to(&back)], all),
        SendRequest::raw(3, SendOperation::Send, [sge(0, 64)], all),
    ])
    .unwrap();
    for id in 1..=3 {
        assert_success(&a.sent(), id);
    }
    assert_success(&b.received(), 4);
    for region in [&far, &back, &sink] {
        assert!(content(region) == content(&near));
    }
    // One octet too many.
    a.qp.post_send(SendRequest::raw(5, SendOperation::Send, [sge(1, 64)], all)).unwrap();
    assert_eq!(a.sent().status, WcStatus::LocProtErr);
}
