//! Faults that implementations have shown in the field, as far as this layer takes part in them.

#![allow(
    clippy::indexing_slicing,
    clippy::arithmetic_side_effects,
    missing_docs,
    reason = "test code; a panic is a failed test"
)]

use iwarp_ddp::{
    Error, Position, Segment, TAGGED_HEADER_LEN, TaggedError, UNTAGGED_HEADER_LEN, UntaggedError,
    UntaggedHeader, UntaggedQueue, header_octets,
};

/// A Send on queue 0 of four octets.
fn send(queue: u32, msn: u32, offset: u32, last: bool) -> Vec<u8> {
    let header = UntaggedHeader { last, rsvd_ulp: 0x43, rsvd_ulp_word: 0, queue, msn, offset };
    [&header.to_bytes()[..], b"data"].concat()
}

/// All that a receiver with buffers of 64 octets asks for one segment on queue 0.
fn receive(queue: &mut UntaggedQueue, ulpdu: &[u8]) -> Result<Option<u32>, Error> {
    let Segment::Untagged(segment) = Segment::parse(ulpdu)? else { panic!("a tagged segment") };
    segment.check_queue(0)?;
    queue.check_msn(&segment)?;
    queue.check_placement(&segment, 64)?;
    Ok(queue.placed(&segment))
}

/// FC-015: a segment shorter than its own header, for every opcode and kind.
#[test]
fn fc_015_segment_shorter_than_its_header() {
    // DDP-024, SEC-23
    assert_eq!(Segment::parse(&[]), Err(Error::HeaderTruncated { len: 0 }));
    for opcode in 0..16 {
        for (control, header) in [
            (0x01, UNTAGGED_HEADER_LEN),
            (0x41, UNTAGGED_HEADER_LEN),
            (0x81, TAGGED_HEADER_LEN),
            (0xC1, TAGGED_HEADER_LEN),
        ] {
            let mut octets = vec![0xFF; header];
            octets[0] = control;
            octets[1] = 0x40 | opcode;
            for len in 0..header {
                let fault = Segment::parse(&octets[..len]).unwrap_err();
                assert_eq!(fault, Error::HeaderTruncated { len });
                assert_eq!((fault.error_type(), fault.code()), (0, 0));
                assert_eq!(header_octets(&octets[..len]), None);
            }
            // The shortest segment there is: a header and nothing else.
            let segment = Segment::parse(&octets).unwrap();
            assert_eq!(segment.payload(), b"");
            assert_eq!(segment.ulpdu_len(), header);
        }
    }
}

/// FC-016: a header fault in the very first segment, when there is no message yet to speak of.
#[test]
fn fc_016_header_fault_in_the_first_segment() {
    // DDP-015: the fault and the header to report come from the octets alone.
    for version in [0, 2, 3] {
        let mut octets = send(0, 1, 0, true);
        octets[0] = 0x40 | version;
        let fault = Segment::parse(&octets).unwrap_err();
        assert_eq!(fault, UntaggedError::Version.into());
        assert_eq!((fault.error_type(), fault.code()), (2, 6));
        assert_eq!(header_octets(&octets), Some(&octets[..18]));

        octets[0] = 0xC0 | version;
        let fault = Segment::parse(&octets).unwrap_err();
        assert_eq!(fault, TaggedError::Version.into());
        assert_eq!((fault.error_type(), fault.code()), (1, 4));
        assert_eq!(header_octets(&octets), Some(&octets[..14]));
    }
    // DDP-050
    for number in [3, u32::MAX] {
        let mut queue = UntaggedQueue::new();
        let fault = receive(&mut queue, &send(number, 1, 0, true)).unwrap_err();
        assert_eq!(fault, UntaggedError::InvalidQueue.into());
        assert_eq!((fault.error_type(), fault.code()), (2, 1));
        assert_eq!(queue, UntaggedQueue::new());
    }
}

/// FC-018: numbers and offsets that deviate are refused, and the books stay right.
#[test]
fn fc_018_sequence_numbers_and_offsets() {
    let refused = |queue: &mut UntaggedQueue, ulpdu: &[u8], code| {
        let before = queue.clone();
        let fault = receive(queue, ulpdu).unwrap_err();
        assert_eq!((fault.error_type(), fault.code()), (2, code), "{fault}");
        assert_eq!(*queue, before);
    };
    // DDP-054: neither 0 nor 2 where 1 is due.
    let mut queue = UntaggedQueue::new();
    refused(&mut queue, &send(0, 0, 0, true), 3);
    refused(&mut queue, &send(0, 2, 0, true), 3);
    assert_eq!(receive(&mut queue, &send(0, 1, 0, true)), Ok(Some(4)));
    // A repetition.
    refused(&mut queue, &send(0, 1, 0, true), 3);
    // DDP-052: a gap in the offset, and an offset one behind the payload.
    assert_eq!(receive(&mut queue, &send(0, 2, 0, false)), Ok(None));
    refused(&mut queue, &send(0, 2, 16, true), 4);
    refused(&mut queue, &send(0, 2, 5, true), 4);
    // DDP-020: another number inside the message.
    refused(&mut queue, &send(0, 3, 4, true), 3);
    assert_eq!(receive(&mut queue, &send(0, 2, 4, true)), Ok(Some(8)));
    assert_eq!(receive(&mut queue, &send(0, 3, 0, true)), Ok(Some(4)));
}

/// FC-018: five messages across the wrap of the number.
#[test]
fn fc_018_sequence_numbers_wrap() {
    // DDP-022
    let mut queue = UntaggedQueue::with_next_msn(0xFFFF_FFFE);
    for msn in [0xFFFF_FFFE, 0xFFFF_FFFF, 0, 1, 2] {
        let ulpdu = send(0, msn, 0, true);
        let Ok(Segment::Untagged(segment)) = Segment::parse(&ulpdu) else { panic!("refused") };
        assert_eq!(queue.check_msn(&segment), Ok(Position::First));
        assert_eq!(receive(&mut queue, &ulpdu), Ok(Some(4)));
    }
    assert_eq!(queue.msn(), 3);
}
