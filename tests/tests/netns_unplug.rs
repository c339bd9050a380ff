//! Two hosts, and the cable between them is pulled out: nobody tells, and still both ends find out.
#![allow(
    missing_docs,
    clippy::unwrap_used,
    clippy::cast_possible_truncation,
    reason = "test code; a panic is a failed test"
)]

use std::{thread, time::Duration};

use iwarp_tests::{
    child::{Child, GUARD, listen, own_binary, role, tell},
    link::{ADDRESS_B, Link},
    live::next,
    netns::{Host, Hosts},
    skip,
};
use iwarp_verbs::{
    Access, AsyncEventKind, Device, DeviceConfig, QpConfig, QpState, RecvRequest, RemoteMemory,
    SendRequest, WcStatus,
    cm::{self, CloseReason, ConnParam, ListenConfig, Listener},
};

const RECEIVES: u64 = 8;

/// Seconds instead of the minutes that TCP takes by itself.
fn impatient() -> Device {
    let second = Duration::from_secs(1);
    let config = DeviceConfig::default().keepalive(second, second, 2).user_timeout(3 * second);
    Device::open(config).unwrap()
}

/// One end: connects or listens, then waits for the end of the connection; what it saw goes to the test.
fn end(role: &str) {
    let device = impatient();
    let pd = device.alloc_pd();
    let cq = device.create_cq(256).unwrap();
    let open = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ;
    let memory = pd.alloc(1 << 20, open).unwrap();
    let qp = pd.create_qp(&QpConfig::new(&cq)).unwrap();
    for id in 0..RECEIVES {
        qp.post_recv(RecvRequest::new(id, memory.slice(..64).unwrap())).unwrap();
    }
    let connection = if role == "listens" {
        let listener = Listener::bind(&device, (ADDRESS_B, 7174), ListenConfig::default()).unwrap();
        tell("listening");
        let request = listener.accept(GUARD).unwrap();
        let key = ConnParam::default().private_data(memory.remote().to_bytes());
        request.accept(&qp, key).unwrap().wait(GUARD).unwrap()
    } else {
        cm::connect((ADDRESS_B, 7174), &qp, ConnParam::default()).unwrap().wait(GUARD).unwrap()
    };
    tell("connected");

    let mut posted = 0;
    if role == "connects and sends" {
        let key = RemoteMemory::from_bytes(connection.private_data().try_into().unwrap());
        let send = |id| SendRequest::write(id, memory.as_slice_all(), key);
        assert_eq!(listen(), "unplugged");
        while posted < 32 {
            qp.post_send(send(posted)).unwrap();
            posted += 1;
        }
        qp.post_send(SendRequest::read(posted, memory.as_slice_all(), key)).unwrap();
        posted += 1;
    }
    let reason = connection.wait_closed(GUARD).expect("an end of the connection");
    assert!(matches!(reason, CloseReason::Lost(_)), "{reason:?}");
    let mut receives = 0..RECEIVES;
    let mut sends = 0..posted;
    for _ in 0..RECEIVES + posted {
        let completion = next(&cq);
        let order = if completion.opcode.is_receive() { &mut receives } else { &mut sends };
        assert_eq!(order.next(), Some(completion.wr_id));
        let left_before = !completion.opcode.is_receive() && completion.is_success();
        assert!(left_before || completion.status == WcStatus::WrFlushErr, "{completion:?}");
    }
    assert!(cq.poll_one().is_none());
    assert_eq!(qp.state(), QpState::Err);
    let event = device.next_async_event().unwrap().expect("an event about the queue pair");
    assert_eq!(event.kind(), AsyncEventKind::QpFatal);
    tell("noticed");
}

/// FC-080, MPA-091: flush and disconnect within a settable time, idle and with data outstanding.
#[test]
fn fc_080_an_unplugged_cable_is_noticed() {
    const NAME: &str = "fc_080_an_unplugged_cable_is_noticed";
    if let Some(role) = role() {
        return end(&role);
    }
    for initiator in ["connects and waits", "connects and sends"] {
        let hosts = match Hosts::make() {
            Ok(hosts) => hosts,
            Err(reason) => skip!(reason),
        };
        let link = Link::good(&hosts, 1500);
        let start = |host, role| {
            let mut command = hosts.command(host, own_binary());
            Child::start(Child::again_command(&mut command, NAME, role))
        };
        let mut b = start(Host::B, "listens");
        assert_eq!(b.hear(), "listening");
        let mut a = start(Host::A, initiator);
        assert_eq!((a.hear(), b.hear()), ("connected".into(), "connected".into()));
        thread::sleep(Duration::from_millis(50));
        link.unplug(Host::B);
        a.say("unplugged");
        assert_eq!(a.hear(), "noticed", "{initiator}");
        assert_eq!(b.hear(), "noticed", "{initiator}");
        for child in [&mut a, &mut b] {
            let ended = child.wait();
            assert!(ended.status.success(), "{initiator}: {}", ended.stderr);
        }
    }
}

/// A cable that is put back in time loses nothing.
#[test]
fn a_cable_that_is_put_back() {
    const NAME: &str = "a_cable_that_is_put_back";
    if let Some(role) = role() {
        let device = Device::open(DeviceConfig::default()).unwrap();
        let pd = device.alloc_pd();
        let cq = device.create_cq(256).unwrap();
        let memory = pd.alloc(1 << 20, Access::LOCAL_WRITE | Access::REMOTE_WRITE).unwrap();
        let qp = pd.create_qp(&QpConfig::new(&cq)).unwrap();
        qp.post_recv(RecvRequest::new(0, memory.slice(..64).unwrap())).unwrap();
        if role == "listens" {
            let listener =
                Listener::bind(&device, (ADDRESS_B, 7174), ListenConfig::default()).unwrap();
            tell("listening");
            let request = listener.accept(GUARD).unwrap();
            let connection =
                request.accept(&qp, ConnParam::default()).unwrap().wait(GUARD).unwrap();
            let arrived = next(&cq);
            assert!(arrived.is_success(), "{arrived:?}");
            tell("arrived");
            connection.wait_closed(GUARD).unwrap();
        } else {
            let param = ConnParam::default();
            let connection =
                cm::connect((ADDRESS_B, 7174), &qp, param).unwrap().wait(GUARD).unwrap();
            tell("connected");
            assert_eq!(listen(), "unplugged");
            qp.post_send(SendRequest::send_inline(1, b"patience")).unwrap();
            tell("sent");
            assert_eq!(listen(), "arrived");
            connection.disconnect();
        }
        return;
    }
    let hosts = match Hosts::make() {
        Ok(hosts) => hosts,
        Err(reason) => skip!(reason),
    };
    let link = Link::good(&hosts, 1500);
    let start = |host, role| {
        let mut command = hosts.command(host, own_binary());
        Child::start(Child::again_command(&mut command, NAME, role))
    };
    let mut b = start(Host::B, "listens");
    assert_eq!(b.hear(), "listening");
    let mut a = start(Host::A, "connects");
    assert_eq!(a.hear(), "connected");
    link.unplug(Host::B);
    a.say("unplugged");
    assert_eq!(a.hear(), "sent");
    thread::sleep(Duration::from_millis(300));
    link.plug(Host::B);
    assert_eq!(b.hear(), "arrived");
    a.say("arrived");
    for child in [&mut a, &mut b] {
        let ended = child.wait();
        assert!(ended.status.success(), "{}", ended.stderr);
    }
}
