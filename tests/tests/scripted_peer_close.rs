//! How connections end against a scripted peer: Terminates, half closes, resets, and the lack of receives.
#![allow(
    missing_docs,
    clippy::unwrap_used,
    clippy::cast_possible_truncation,
    reason = "test code; a panic is a failed test"
)]

use std::{
    thread,
    time::{Duration, Instant},
};

use iwarp_tests::{
    live::{Live, QUIET, Role, Served},
    peer::{self, Heard, Peer, ReadRequest},
};
use iwarp_verbs::{
    Access, DeviceConfig, QpState, RemoteMemory, SendRequest, WcStatus,
    cm::{CloseReason, ConnParam},
};

fn connect(live: &Live, role: Role, receives: u32) -> (Peer, Served) {
    live.establish(role, &peer::request(), ConnParam::default(), receives)
}

fn live() -> Live {
    Live::new(DeviceConfig::default())
}

/// FC-028, RDMAP-052, RDMAP-053, RDMAP-054, RDMAP-066: a Terminate ends the connection, and no Terminate answers it.
#[test]
fn fc_028_a_terminate_is_followed_by_the_end() {
    let live = Live::new(DeviceConfig::default().close_grace(Duration::from_millis(300)));
    for role in Role::BOTH {
        let (mut peer, served) = connect(&live, role, 3);
        peer.send(&peer::terminate(0x1100));
        // The peer leaves TCP open and says no more.
        assert_eq!(peer.hear_out(), [Heard::Fin], "{role:?}");
        let reason = served.closed();
        let CloseReason::PeerTerminated { code } = reason else { panic!("{reason:?}") };
        assert_eq!(code.raw(), 0x1100);
        assert_eq!(served.end.qp.state(), QpState::Err);
        for id in 0..3 {
            let completion = served.end.next_receive();
            assert_eq!((completion.wr_id, completion.status), (id, WcStatus::WrFlushErr));
            assert_eq!(completion.vendor_err, 0x1100);
        }
    }
    // The other direction: our Terminate is answered with nothing at all, TCP stays open.
    let (mut peer, served) = connect(&live, Role::Initiator, 1);
    peer.send(&peer::write(0x0bad_bad0, 0, b"x"));
    assert_eq!(peer.hear_terminate().code, 0x1100);
    assert_eq!(peer.hear(), Heard::Fin);
    assert!(matches!(served.closed(), CloseReason::Error(_)));
    assert_eq!(served.end.next_receive().status, WcStatus::WrFlushErr);
}

/// RDMAP-073, RDMAP-051, DDP-059, MPA-083: of several errors the first is told, and what follows is not looked at.
#[test]
fn the_first_of_several_errors_counts() {
    let live = live();
    let region = live.pd.alloc(64, Access::LOCAL_WRITE | Access::REMOTE_WRITE).unwrap();
    let (mut peer, _served) = connect(&live, Role::Responder, 2);
    let octets = [
        peer.fpdu(&peer::write(region.rkey(), region.addr() + 60, b"12345")),
        peer.fpdu(&peer::write(0x0bad_bad0, 0, b"x")),
        peer.fpdu(&peer::write(region.rkey(), region.addr(), b"good")),
        peer.fpdu(&peer::send(1, b"good")),
    ]
    .concat();
    peer.say(&octets);
    assert_eq!(peer.hear_terminate().code, 0x1101);
    assert_eq!(peer.hear(), Heard::Fin);
    let mut octets = [1; 64];
    region.read_at(0, &mut octets).unwrap();
    assert_eq!(octets, [0; 64]);
}

/// FC-029, MPA-087, MPA-088, DDP-043, RDMAP-064: FIN behind a whole FPDU is an end in order; inside one it is none.
#[test]
fn fc_029_graceful_and_half_close() {
    let live = live();
    for role in Role::BOTH {
        let (mut peer, served) = connect(&live, role, 4);
        let octets: Vec<u8> =
            (1..=3).flat_map(|msn| peer.fpdu(&peer::send(msn, b"last words"))).collect();
        peer.say(&octets);
        peer.half_close();
        assert_eq!(peer.hear_out(), [Heard::Fin], "{role:?}");
        assert!(served.closed().is_orderly());
        for id in 0..4 {
            let completion = served.end.next_receive();
            let status = if id < 3 { WcStatus::Success } else { WcStatus::WrFlushErr };
            assert_eq!((completion.wr_id, completion.status), (id, status), "{role:?}");
        }

        let (mut peer, served) = connect(&live, role, 4);
        let octets: Vec<u8> =
            (1..=3).flat_map(|msn| peer.fpdu(&peer::send(msn, b"last words"))).collect();
        peer.say(&octets[..octets.len() - 1]);
        peer.half_close();
        // 2/0/01 is for this side alone: nothing has to be sent, and what is sent is no FPDU.
        let heard = peer.hear_out();
        assert!(matches!(heard.last(), Some(Heard::Fin | Heard::Reset)), "{role:?}: {heard:?}");
        assert!(!served.closed().is_orderly());
        for id in 0..4 {
            let completion = served.end.next_receive();
            let status = if id < 2 { WcStatus::Success } else { WcStatus::WrFlushErr };
            assert_eq!((completion.wr_id, completion.status), (id, status), "{role:?}");
        }
    }
}

/// RDMAP-082: FIN from the peer while a Read waits for its Response.
#[test]
fn a_fin_with_work_pending_is_a_bad_close() {
    let live = live();
    let sink = live.pd.alloc(64, Access::LOCAL_WRITE).unwrap();
    let (mut peer, served) = connect(&live, Role::Initiator, 0);
    let remote = RemoteMemory { addr: 1, len: 64, rkey: 2 };
    served.end.qp.post_send(SendRequest::read(1, sink.as_slice_all(), remote)).unwrap();
    ReadRequest::parse(&peer.hear_ulpdu()).expect("a Read Request");
    peer.half_close();
    assert_eq!(peer.hear_terminate().code, 0x0207);
    assert_eq!(peer.hear(), Heard::Fin);
    assert!(!served.closed().is_orderly());
    let completion = served.end.next_send();
    assert_eq!((completion.wr_id, completion.status), (1, WcStatus::WrFlushErr));
}

/// FC-030, DDP-051, DDP-062: a Send that finds no receive waits for one, for a bounded time; in strict mode it does not.
#[test]
fn fc_030_no_receive_posted() {
    let send_five = |live: &Live| {
        let (mut peer, served) = connect(live, Role::Responder, 4);
        for msn in 1..=5 {
            peer.send(&peer::send(msn, b"one of five"));
        }
        for id in 0..4 {
            assert_eq!(served.end.next_receive().wr_id, id);
        }
        (peer, served)
    };

    // Held back, and delivered when there is a place.
    let live = live();
    let (mut peer, served) = send_five(&live);
    assert!(peer.is_silent_for(Duration::from_millis(300)));
    served.end.post_recv(4);
    let completion = served.end.next_receive();
    assert_eq!(served.end.received(&completion), b"one of five");
    assert_eq!(served.end.qp.state(), QpState::Rts);

    // Held back for too long.
    let live = Live::new(DeviceConfig::default().hold_back(Duration::from_millis(200)));
    let (mut peer, _served) = send_five(&live);
    let begun = Instant::now();
    assert_eq!(peer.hear_terminate().code, 0x1202);
    assert!(begun.elapsed() > Duration::from_millis(50), "at once");

    // Strict.
    let live = Live::new(DeviceConfig::default().strict_receive(true));
    let (mut peer, _served) = send_five(&live);
    assert_eq!(peer.hear_terminate().code, 0x1202);
}

/// D2: with Reads of its own outstanding, whose Responses are behind the Send, waiting would be a deadlock.
#[test]
fn a_send_is_not_held_back_before_the_response_of_a_read() {
    let live = live();
    let sink = live.pd.alloc(64, Access::LOCAL_WRITE).unwrap();
    let (mut peer, served) = connect(&live, Role::Initiator, 0);
    let remote = RemoteMemory { addr: 1, len: 64, rkey: 2 };
    served.end.qp.post_send(SendRequest::read(1, sink.as_slice_all(), remote)).unwrap();
    ReadRequest::parse(&peer.hear_ulpdu()).expect("a Read Request");
    peer.send(&peer::send(1, b"in the way"));
    assert_eq!(peer.hear_terminate().code, 0x1202);
    assert_eq!(served.end.next_send().status, WcStatus::WrFlushErr);
}

/// FC-030, design §4: while a Send is held back, a peer that goes away is still noticed.
#[test]
fn a_peer_that_goes_away_while_held_back_is_noticed() {
    let live = live();
    let (mut peer, served) = connect(&live, Role::Responder, 0);
    peer.send(&peer::send(1, b"nobody waits for this"));
    assert!(peer.is_silent_for(QUIET));
    peer.reset();
    assert!(matches!(served.closed(), CloseReason::Lost(_)));
}

/// FC-031, FC-032: after the end posts are taken and flushed, in order, markers last.
#[test]
fn fc_031_posting_after_the_end() {
    let live = live();
    let (peer, served) = connect(&live, Role::Responder, 10);
    let end = &served.end;
    // The responder's sender is held, so these are outstanding.
    for id in 0..10 {
        let request = SendRequest::send_inline(id, b"never sent");
        end.qp.post_send(if id % 2 == 0 { request } else { request.unsignaled() }).unwrap();
    }
    peer.reset();
    served.closed();
    end.qp.post_send_list((10..15).map(|id| SendRequest::send_inline(id, b"late"))).unwrap();
    for id in 10..15 {
        end.post_recv(id);
    }
    for cq in [&end.send_cq, &end.recv_cq] {
        for id in 0..15 {
            let completion = iwarp_tests::live::next(cq);
            assert_eq!((completion.wr_id, completion.status), (id, WcStatus::WrFlushErr));
            assert_eq!(completion.qp_num, end.qp.number());
        }
    }
    assert!(end.drain().is_empty());
}

/// FC-033, FC-034: messages both ways, a reset at any time: each request is reported once, in its own queue.
#[test]
fn fc_033_complete_or_flushed_never_both() {
    let live = live();
    for round in 0..100u64 {
        let (mut peer, served) = connect(&live, Role::Initiator, 20);
        let pause = Duration::from_micros(round * 13 % 700);
        let other = thread::spawn(move || {
            for msn in 1..=20 {
                let octets = peer.fpdu(&peer::send(msn, &[7; 33]));
                peer.say_perhaps(&octets);
                if u64::from(msn) == round % 20 {
                    thread::sleep(pause);
                }
            }
            peer.reset();
        });
        for id in 0..20 {
            served.end.qp.post_send(SendRequest::send_inline(id, [9; 100])).unwrap();
        }
        other.join().unwrap();
        served.closed();
        for cq in [&served.end.send_cq, &served.end.recv_cq] {
            let mut all = Vec::new();
            while cq.poll(&mut all) > 0 {}
            let ids: Vec<u64> = all.iter().map(|it| it.wr_id).collect();
            assert_eq!(ids, (0..20).collect::<Vec<_>>(), "round {round}");
            let flushed_from = all.iter().position(|it| !it.is_success()).unwrap_or(20);
            assert!(all[flushed_from..].iter().all(|it| it.status == WcStatus::WrFlushErr));
        }
    }
}

/// MPA-088: an FPDU that is begun and never finished ends at its limit.
#[test]
fn a_stalled_fpdu_ends_at_its_limit() {
    let live = Live::new(DeviceConfig::default().partial_fpdu(Duration::from_millis(300)));
    let mut bystander = live.bystander();
    let (mut peer, served) = connect(&live, Role::Responder, 1);
    let octets = peer.fpdu(&peer::send(1, &[1; 60]));
    peer.say(&octets[..30]);
    assert!(!served.closed().is_orderly());
    assert_eq!(served.end.next_receive().status, WcStatus::WrFlushErr);
    bystander.goes_on();
}

/// DDP-041, RDMAP-064: what is posted goes out before a close in order; `disconnect` does not wait for it.
#[test]
fn close_sends_what_is_posted() {
    let live = live();
    let (mut peer, served) = connect(&live, Role::Initiator, 0);
    for id in 0..50 {
        served.end.qp.post_send(SendRequest::send_inline(id, [3; 64])).unwrap();
    }
    let closing = served.connection.clone();
    let closer = thread::spawn(move || iwarp_verbs::aio::wait(closing.close(), None));
    for _ in 0..50 {
        assert_eq!(peer.hear_ulpdu()[18..], [3; 64]);
    }
    assert_eq!(peer.hear(), Heard::Fin);
    drop(peer);
    assert!(closer.join().unwrap().is_some_and(|reason| reason.is_orderly()));
    for id in 0..50 {
        assert_eq!((served.end.next_send().wr_id), id);
    }
}
