//! The Terminate of a connection that no queue pair ever carried.

use iwarp_ddp::UntaggedHeader;
use iwarp_mpa::{Framer, Framing, Negotiated};
use iwarp_rdmap::{Opcode, Terminate, TerminateCode};

/// RDMAP version 1 in the control octet.
const RDMAP_VERSION: u8 = 1 << 6;

/// The queue of Terminate messages (RFC 5040 §5.4).
const TERMINATE_QUEUE: u32 = 2;

/// The first and last FPDU of a stream: a Terminate with this code, for a set-up that failed on this
/// side after the start-up frames were exchanged (CONN-27, CONN-30).
pub(crate) fn terminate(negotiated: &Negotiated, code: TerminateCode) -> Option<Vec<u8>> {
    let header = UntaggedHeader {
        last: true,
        rsvd_ulp: RDMAP_VERSION | Opcode::Terminate.raw(),
        rsvd_ulp_word: 0,
        queue: TERMINATE_QUEUE,
        msn: 1,
        offset: 0,
    };
    let mut ulpdu = header.to_bytes().to_vec();
    ulpdu.extend(Terminate::new(code).to_vec());
    let mut framer = Framer::new(&Framing::from(negotiated));
    let mut fpdu = vec![0; framer.framed_len(ulpdu.len())];
    let fill = |room: &mut [u8]| {
        room.copy_from_slice(&ulpdu);
        Ok::<_, std::convert::Infallible>(())
    };
    // A Terminate without headers is far below any limit.
    framer.frame(&mut fpdu, ulpdu.len(), fill).ok()?;
    Some(fpdu)
}

#[cfg(test)]
mod tests {
    use iwarp_mpa::{Deframer, Role, Step};
    use iwarp_rdmap::Terminate;

    use super::*;

    // CONN-27, CONN-30, RDMAP-080
    #[test]
    fn the_terminate_is_a_whole_fpdu_of_any_framing() {
        for (send_markers, crc) in [(false, true), (true, true), (false, false), (true, false)] {
            let negotiated = Negotiated {
                role: Role::Initiator,
                revision: 2,
                crc,
                send_markers,
                receive_markers: !send_markers,
                ird: 1,
                ord: 1,
                peer_ird: None,
                peer_ord: None,
                rtr: None,
                private_data: bytes::Bytes::new(),
            };
            let mut fpdu = terminate(&negotiated, TerminateCode::SETUP_LOCAL).unwrap();
            let receiver = Framing { send_markers: false, receive_markers: send_markers, crc };
            let mut deframer = Deframer::new(&receiver);
            let Step::Ulpdu(ulpdu) = deframer.next(&mut fpdu).unwrap() else {
                panic!("not a whole FPDU");
            };
            let iwarp_ddp::Segment::Untagged(segment) = iwarp_ddp::Segment::parse(ulpdu).unwrap()
            else {
                panic!("not untagged");
            };
            assert_eq!((segment.queue, segment.msn, segment.offset), (2, 1, 0));
            assert_eq!(segment.rsvd_ulp, 0x47);
            let parsed = Terminate::parse(segment.payload).unwrap();
            assert_eq!(parsed, Terminate::new(TerminateCode::SETUP_LOCAL));
        }
    }
}
