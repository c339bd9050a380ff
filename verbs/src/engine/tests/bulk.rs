//! Large transfers: what the fast paths may not give up.

use std::io::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use super::stall::wire_of;
use super::*;
use crate::wr::{RecvRequest, SendRequest};

const LEN: usize = 1 << 20;

/// Where each FPDU of a stream without markers begins, and the octets of the Write in it.
fn fpdus(wire: &[u8]) -> Vec<(usize, usize)> {
    let mut found = Vec::new();
    let mut at = 0;
    while at < wire.len() {
        let ulpdu = usize::from(u16::from_be_bytes([wire[at], wire[at + 1]]));
        found.push((at, ulpdu - 14));
        at += (2 + ulpdu).next_multiple_of(4) + 4;
    }
    found
}

/// Wherever an FPDU is damaged, and however much is received at a time, none of its octets are placed, nor
/// those of any behind it; and all before it are.
#[test]
fn nothing_of_a_damaged_fpdu_is_placed() {
    let setup = Setup::default();
    let end = setup.end();
    let far = end.region(LEN);
    let remote = far.remote();
    let (wire, _) = wire_of(&setup, |a| {
        let near = a.pattern(LEN, 1);
        a.qp.post_send(SendRequest::write(1, near.as_slice_all(), remote)).unwrap();
    });
    let sent = octets(LEN, 1);
    let fpdus = fpdus(&wire);
    assert!(fpdus.len() > 16);
    let config = QpConfig::new(&end.send_cq).recv_cq(&end.recv_cq);
    for damaged in [0, 1, 7, fpdus.len() - 1] {
        let (start, len) = fpdus[damaged];
        let before: usize = fpdus[..damaged].iter().map(|&(_, len)| len).sum();
        // In the DDP header, in the first, a middle and the last octet of payload, in the CRC.
        for place in [8, 16, 16 + len / 2, 16 + len - 1, (16 + len).next_multiple_of(4) + 3] {
            far.fill(.., 0xaa).unwrap();
            let mut wire = wire.clone();
            wire[start + place] ^= 0x10;
            let qp = end.pd.create_qp(&config).unwrap();
            let (mut peer, right) = tcp_pair();
            let socket = Socket::from_stream(right).unwrap();
            let negotiated = setup.negotiated(Role::Responder);
            qp.0.inner.start(socket, &negotiated, Vec::new(), None, setup.limit, None).unwrap();
            // It may be reset in the middle.
            let writer = thread::spawn(move || drop(peer.write_all(&wire)));
            until("the end", || {
                while end.recv_cq.poll_one().is_some() {}
                qp.state() == QpState::Err
            });
            let placed = content(&far);
            assert!(placed[..before] == sent[..before], "FPDU {damaged}, octet {place}");
            assert!(placed[before..].iter().all(|&o| o == 0xaa), "FPDU {damaged}, octet {place}");
            // MPA-081: a Terminate of layer 2, unless the responder may not speak yet.
            let code = qp.0.inner.ending().map(|ending| ending.terminate.code.raw());
            assert_eq!(code.map(|code| code >> 12), (damaged > 0).then_some(2));
            writer.join().unwrap();
        }
    }
}

/// A source that never stays the same while it is sent, on every way out: copied or gathered, in small
/// FPDUs and large ones, through a socket that takes all and one that takes a bit at a time.
#[test]
fn a_source_that_always_changes_breaks_nothing() {
    for (crc, limit, send_buffer) in [
        (true, FpduLimit::default(), None),
        (true, FpduLimit::Octets(1408), Some(20_000)),
        (true, FpduLimit::Emss, Some(50_000)),
        (false, FpduLimit::default(), None),
        (false, FpduLimit::Octets(5000), Some(20_000)),
        (false, FpduLimit::Emss, Some(50_000)),
    ] {
        let Pair { a, b } = Setup { crc, limit, send_buffer, ..Setup::default() }.connect();
        let near = a.region(LEN);
        let (far, back, sink) = (b.region(LEN), a.region(LEN), b.region(LEN));
        let stop = Arc::new(AtomicBool::new(false));
        let scribbler = {
            let (stop, regions) = (Arc::clone(&stop), [near.clone(), far.clone()]);
            thread::spawn(move || {
                for value in (0..=255).cycle() {
                    if stop.load(Ordering::Relaxed) {
                        break;
                    }
                    for region in &regions {
                        region.fill(.., value).unwrap();
                    }
                }
            })
        };
        for (id, len) in (0..).zip([1, 64, 1_000, 4_095, 4_096, 16_384, 65_536, 300_001, LEN]) {
            let (from, into) = (near.slice(0..len).unwrap(), back.slice(0..len).unwrap());
            b.qp.post_recv(RecvRequest::new(id, sink.as_slice_all())).unwrap();
            a.qp.post_send_list([
                SendRequest::write(3 * id, from.clone(), far.remote()),
                SendRequest::send(3 * id + 1, from),
                SendRequest::read(3 * id + 2, into, far.remote()),
            ])
            .unwrap();
            for id in 3 * id..3 * id + 3 {
                assert_success(&a.sent(), id);
            }
            assert_eq!(b.received().byte_len as usize, len);
        }
        stop.store(true, Ordering::Relaxed);
        scribbler.join().unwrap();
        assert_eq!((a.qp.state(), b.qp.state()), (QpState::Rts, QpState::Rts));
        assert_eq!((a.qp.stats().crc_errors, b.qp.stats().crc_errors), (0, 0));
    }
}

/// Peers that stop in the middle of an FPDU after a great deal of data: what is kept for them is within
/// the budget, and goes on where it was.
#[test]
fn what_a_busy_pass_keeps_is_counted_and_goes_on() {
    const BUDGET: usize = 2 << 20;
    let config = DeviceConfig::default().memory_budget(BUDGET);
    let setup = Setup { config, ..Setup::default() };
    let end = setup.end();
    let regions: Vec<_> = (0..8).map(|_| end.region(LEN)).collect();
    let config = QpConfig::new(&end.send_cq).recv_cq(&end.recv_cq);
    let mut peers: Vec<_> = regions
        .iter()
        .zip(0_usize..)
        .map(|(region, index)| {
            let remote = region.remote();
            let (wire, _) = wire_of(&setup, |a| {
                let near = a.pattern(LEN, 5);
                a.qp.post_send(SendRequest::write(1, near.as_slice_all(), remote)).unwrap();
            });
            let qp = end.pd.create_qp(&config).unwrap();
            let (mut peer, right) = tcp_pair();
            let socket = Socket::from_stream(right).unwrap();
            let negotiated = setup.negotiated(Role::Responder);
            qp.0.inner.start(socket, &negotiated, Vec::new(), None, setup.limit, None).unwrap();
            let cut = wire.len() - 3 - 7_000 * index;
            peer.write_all(&wire[..cut]).unwrap();
            (qp, peer, wire[cut..].to_vec())
        })
        .collect();
    let budget = end.device.0.driver().budget();
    let settled = |at_least: usize| {
        until("the octets to be held", || {
            while end.recv_cq.poll_one().is_some() {}
            budget.used() >= at_least
        });
    };
    // At least what has come of each last FPDU, which has 13 KiB; never more than half of the budget and
    // an FPDU of each.
    settled(8 * 10_000);
    assert!(budget.used() <= BUDGET / 2 + 8 * 66_000, "{} octets held", budget.used());
    // A few octets at a time, so that a buffer that was left is shrunk.
    for (_, peer, rest) in &mut peers {
        for part in rest.chunks(1_000) {
            peer.write_all(part).unwrap();
            while end.recv_cq.poll_one().is_some() {}
        }
    }
    let sent = octets(LEN, 5);
    for region in &regions {
        until("the last octets", || {
            while end.recv_cq.poll_one().is_some() {}
            content(region) == sent
        });
    }
    until("all to be given back", || budget.used() == 0);
}

/// Part of the longest FPDU there is waits in a buffer that polls have moved it to the front of, over itself.
#[test]
fn the_longest_fpdu_may_come_in_two_parts() {
    // As long as the one, and the gap before the other, can be: our own sender stops before that.
    const LENGTHS: [usize; 2] = [65_526, 65_535];
    let setup = Setup { crc: false, ..Setup::default() };
    let end = setup.end();
    let far = end.region(1 << 17);
    let mut wire = Vec::new();
    for (seed, len) in (1..).zip(LENGTHS) {
        let ulpdu = tagged(far.rkey(), far.addr(), &octets(len - 14, seed));
        wire.extend(u16::try_from(len).unwrap().to_be_bytes());
        wire.extend(ulpdu);
        wire.resize(wire.len().next_multiple_of(4) + 4, 0);
    }
    let (mut peer, right) = super::many::wide_tcp_pair();
    let (last, most) = wire.split_last().unwrap();
    peer.write_all(most).unwrap();
    setup.start(&end, right, Role::Responder);
    for _ in 0..1000 {
        assert!(end.recv_cq.poll_one().is_none());
    }
    peer.write_all(&[*last]).unwrap();
    let len = LENGTHS[1] - 14;
    let whole = octets(len, 2);
    until("the octets", || {
        assert!(end.recv_cq.poll_one().is_none());
        assert_eq!(end.qp.state(), QpState::Rts);
        content(&far)[..len] == whole[..]
    });
}

/// A tagged message of one segment.
pub(super) fn tagged(key: u32, offset: u64, payload: &[u8]) -> Vec<u8> {
    let mut ulpdu = vec![0xc1, 0x40];
    ulpdu.extend(key.to_be_bytes());
    ulpdu.extend(offset.to_be_bytes());
    ulpdu.extend(payload);
    ulpdu
}
