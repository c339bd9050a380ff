//! Long payload that goes from the socket straight into its region.

use std::io::Write;

use iwarp_mpa::{Framer, Framing};
use iwarp_rdmap::LAST_OCTETS;

use super::stall::wire_of;
use super::*;
use crate::mem::STRAIGHT_FROM;
use crate::wr::{RecvRequest, SendRequest};

const LEN: usize = 1 << 20;

/// Longest payload of an FPDU that is sent: what one on the loopback device has.
const LONGEST: usize = 64_754;

fn bare() -> Setup {
    Setup { crc: false, ..Setup::default() }
}

/// Writes and Reads with FPDUs of the longest kind, and short ones between them, in pieces as the socket likes:
/// every octet is in its place, and none in another.
#[test]
fn long_and_short_in_any_pieces() {
    for send_buffer in [None, Some(20_000), Some(100_000)] {
        let Pair { a, b } = Setup { send_buffer, ..bare() }.connect();
        let (near, back) = (a.pattern(LEN, 3), a.region(LEN));
        let (far, inbox) = (b.region(LEN), b.region(64));
        let sent = content(&near);
        for (id, len) in (0..).zip([LEN, LONGEST, 65_536, 40_000, 200_001, LEN - 3]) {
            far.fill(.., 0).unwrap();
            back.fill(.., 0).unwrap();
            let (from, into) = (near.slice(0..len).unwrap(), back.slice(0..len).unwrap());
            b.qp.post_recv(RecvRequest::new(id, inbox.as_slice_all())).unwrap();
            a.qp.post_send_list([
                SendRequest::write(3 * id, from, far.remote()),
                SendRequest::send(3 * id + 1, near.slice(0..64).unwrap()),
                SendRequest::read(3 * id + 2, into, far.remote()),
            ])
            .unwrap();
            assert_eq!(b.received().byte_len, 64);
            for id in 3 * id..3 * id + 3 {
                assert_success(&a.sent(), id);
            }
            for region in [&far, &back] {
                let octets = content(region);
                assert!(octets[..len] == sent[..len], "{len} octets");
                assert!(octets[len..].iter().all(|&octet| octet == 0), "behind {len} octets");
            }
        }
    }
}

/// What a Write of [`LONGEST`] octets to `far` looks like on the wire: one FPDU, however long the segments
/// of this TCP are.
fn one_long_write(far: &MemoryRegion, crc: bool) -> Vec<u8> {
    fpdu(&super::bulk::tagged(far.rkey(), far.addr(), &octets(LONGEST, 5)), crc)
}

fn fpdu(ulpdu: &[u8], crc: bool) -> Vec<u8> {
    let mut framer = Framer::new(&Framing { send_markers: false, receive_markers: false, crc });
    let mut wire = vec![0; framer.framed_len(ulpdu.len())];
    framer
        .frame(&mut wire, ulpdu.len(), |room| {
            room.copy_from_slice(ulpdu);
            Ok::<_, ()>(())
        })
        .unwrap();
    wire
}

/// Short ones behind a long one come many at once: none of them is received on its own.
#[test]
fn what_is_short_does_not_begin_straight() {
    let setup = bare();
    let end = setup.end();
    let far = end.region(LONGEST + 2000);
    let (mut peer, right) = tcp_pair();
    setup.start(&end, right, Role::Responder);
    let inline = wire_of(&bare(), |a| {
        a.qp.post_send(SendRequest::write_inline(1, [0; 8], far.remote())).unwrap();
    });
    // A first FPDU, so that the responder may speak.
    peer.write_all(&inline.0).unwrap();
    let (long, sent) = (one_long_write(&far, false), octets(LONGEST, 5));
    peer.write_all(&long[..100]).unwrap();
    until("the front of the long one", || {
        assert!(end.recv_cq.poll_one().is_none());
        STRAIGHT_FROM == usize::MAX || content(&far)[..84] == sent[..84]
    });
    let ulpdu = super::bulk::tagged(far.rkey(), far.addr() + LONGEST as u64, &[7; 2000]);
    let short = fpdu(&ulpdu, false);
    peer.write_all(&[&long[100..], &short[..500]].concat()).unwrap();
    until("the long one", || {
        assert!(end.recv_cq.poll_one().is_none());
        content(&far)[..LONGEST] == sent
    });
    for _ in 0..1000 {
        assert!(end.recv_cq.poll_one().is_none());
    }
    assert!(content(&far)[LONGEST..].iter().all(|&octet| octet == 0));
    peer.write_all(&short[500..]).unwrap();
    until("the short one", || {
        assert!(end.recv_cq.poll_one().is_none());
        content(&far)[LONGEST..].iter().all(|&octet| octet == 7)
    });
}

/// SEC-04, FC-061: a key that is revoked in the middle of an FPDU, part of which is in place, lets no octet in
/// any more, and the connection ends with the Terminate that is due.
#[test]
fn revoked_in_the_middle_of_an_fpdu() {
    // In the header, where the straight way begins, in the payload, and in its last octets.
    for cut in [10, 16, 20_000, 50_000, 16 + LONGEST - 1] {
        let setup = bare();
        let end = setup.end();
        let far = end.region(LONGEST);
        far.fill(.., 0xaa).unwrap();
        let (mut peer, right) = tcp_pair();
        setup.start(&end, right, Role::Responder);
        let inline = wire_of(&bare(), |a| {
            a.qp.post_send(SendRequest::write_inline(1, [0xaa; 8], far.remote())).unwrap();
        });
        // A first FPDU, so that the responder may speak.
        peer.write_all(&inline.0).unwrap();
        let wire = one_long_write(&far, false);
        let sent = octets(LONGEST, 5);
        // The header and some payload first, with which the straight way begins.
        for (before, come) in [(0, cut.min(100)), (cut.min(100), cut)] {
            peer.write_all(&wire[before..come]).unwrap();
            let early = come.saturating_sub(16).min(LONGEST - LAST_OCTETS);
            until("the front of it", || {
                assert!(end.recv_cq.poll_one().is_none());
                STRAIGHT_FROM == usize::MAX || content(&far)[..early] == sent[..early]
            });
        }
        far.region().invalidate().unwrap();
        let frozen = content(&far);
        // It may be reset before it has read all.
        drop(peer.write_all(&wire[cut..]));
        until("the end", || {
            assert!(end.recv_cq.poll_one().is_none());
            end.qp.state() == QpState::Err
        });
        let code = end.qp.0.inner.ending().map(|ending| ending.terminate.code.raw());
        assert_eq!(code, Some(0x1100), "cut at {cut}");
        assert!(content(&far) == frozen, "cut at {cut}: an octet moved through a revoked key");
    }
}

/// MPA-058: with CRC, not an octet is placed before all have come.
#[test]
fn with_crc_nothing_is_placed_early() {
    let setup = Setup::default();
    let end = setup.end();
    let far = end.region(LONGEST);
    let (mut peer, right) = tcp_pair();
    setup.start(&end, right, Role::Responder);
    let wire = one_long_write(&far, true);
    let (last, most) = wire.split_last().unwrap();
    peer.write_all(most).unwrap();
    for _ in 0..1000 {
        assert!(end.recv_cq.poll_one().is_none());
    }
    assert!(content(&far).iter().all(|&octet| octet == 0));
    peer.write_all(&[*last]).unwrap();
    until("the octets", || {
        assert!(end.recv_cq.poll_one().is_none());
        content(&far) == octets(LONGEST, 5)
    });
}
