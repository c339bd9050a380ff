//! DDP: segments are read as RFC 5041 draws them, an untagged queue takes what continues it and nothing else, and
//! a message is cut into pieces that make it up.
//!
//! Input: two octets of buffer size, four of a first MSN, four of message length and two of payload for the cuts; then
//! segments, each behind an octet of flags (1: the numbers of an untagged segment are made those that are due) and
//! one of its length.

use iwarp_ddp::{
    Error, Position, Segment, Segmenter, Stag, TaggedError, TaggedHeader, TaggedSegment,
    UntaggedError, UntaggedHeader, UntaggedQueue, UntaggedSegment, header_octets,
};

use crate::bytes::Bytes;

/// Segments of DDP, and what a receiver of untagged ones makes of them.
pub fn ddp(input: &[u8]) {
    let mut input = Bytes::new(input);
    let capacity = u64::from(input.u16());
    let first = input.u32();
    cuts(input.u32(), input.u16().into());
    let mut model = Model { msn: first, open: false, placed: 0 };
    let mut queue = UntaggedQueue::with_next_msn(first);
    while !input.is_empty() {
        let flags = input.u8();
        let mut ulpdu = input.counted().to_vec();
        if flags & 1 != 0 && ulpdu.len() >= 18 {
            ulpdu[10..14].copy_from_slice(&model.msn.to_be_bytes());
            ulpdu[14..18].copy_from_slice(&(model.placed as u32).to_be_bytes());
        }
        let segment = Segment::parse(&ulpdu);
        assert_eq!(segment, read(&ulpdu));
        match segment {
            Ok(segment) => again(&segment, &ulpdu),
            Err(error) => named(error, &ulpdu),
        }
        if let Ok(Segment::Untagged(segment)) = segment {
            receive(&mut queue, &mut model, &segment, capacity);
        }
    }
}

/// A segment by the figures of RFC 5041 §4.
fn read(ulpdu: &[u8]) -> Result<Segment<'_>, Error> {
    let len = ulpdu.len();
    let is_tagged = ulpdu.first().is_some_and(|octet| octet & 0x80 != 0);
    let header_len = if is_tagged { 14 } else { 18 };
    if len < header_len {
        return Err(Error::HeaderTruncated { len });
    }
    let (header, payload) = ulpdu.split_at(header_len);
    let number = |at: usize, octets: usize| {
        header[at..at + octets].iter().fold(0_u64, |sum, octet| sum << 8 | u64::from(*octet))
    };
    let last = header[0] & 0x40 != 0;
    let is_ours = header[0] & 0x03 == 1;
    let rsvd_ulp = header[1];
    match (is_tagged, is_ours) {
        (true, false) => Err(TaggedError::Version.into()),
        (false, false) => Err(UntaggedError::Version.into()),
        (true, true) => Ok(Segment::Tagged(TaggedSegment {
            last,
            rsvd_ulp,
            stag: Stag::from_raw(number(2, 4) as u32),
            offset: number(6, 8),
            payload,
            header,
            ulpdu_len: len,
        })),
        (false, true) => Ok(Segment::Untagged(UntaggedSegment {
            last,
            rsvd_ulp,
            rsvd_ulp_word: number(2, 4) as u32,
            queue: number(6, 4) as u32,
            msn: number(10, 4) as u32,
            offset: number(14, 4) as u32,
            payload,
            header,
            ulpdu_len: len,
        })),
    }
}

/// What was read is written as it came, but for reserved bits.
fn again(segment: &Segment<'_>, ulpdu: &[u8]) {
    let header = match *segment {
        Segment::Tagged(segment) => TaggedHeader::from(segment).to_bytes().to_vec(),
        Segment::Untagged(segment) => UntaggedHeader::from(segment).to_bytes().to_vec(),
    };
    assert_eq!(header[0], ulpdu[0] & 0xc3);
    assert_eq!(header[1..], ulpdu[1..header.len()]);
    assert_eq!(header_octets(ulpdu), Some(segment.header()));
    assert_eq!([segment.header(), segment.payload()].concat(), ulpdu);
}

fn named(error: Error, ulpdu: &[u8]) {
    let number = (error.error_type(), error.code());
    match error {
        Error::HeaderTruncated { len } => {
            assert_eq!((len, header_octets(ulpdu)), (ulpdu.len(), None));
            assert_eq!(number, (0, 0));
        }
        Error::Tagged(_) => assert_eq!(number, (1, 4)),
        Error::Untagged(_) => assert_eq!(number, (2, 6)),
        other => panic!("{other:?}"),
    }
}

/// What a receiver has to know of a queue.
struct Model {
    msn: u32,
    open: bool,
    placed: u64,
}

impl Model {
    fn verdict(
        &self,
        segment: &UntaggedSegment<'_>,
        capacity: u64,
    ) -> Result<Position, UntaggedError> {
        if segment.msn != self.msn {
            Err(UntaggedError::MsnRange)
        } else if u64::from(segment.offset) != self.placed {
            Err(UntaggedError::InvalidOffset)
        } else if self.placed + segment.payload.len() as u64 > capacity {
            Err(UntaggedError::TooLong)
        } else {
            Ok(if self.open { Position::Continuation } else { Position::First })
        }
    }
}

fn receive(
    queue: &mut UntaggedQueue,
    model: &mut Model,
    segment: &UntaggedSegment<'_>,
    capacity: u64,
) {
    let before = queue.clone();
    let verdict = queue.check_msn(segment).and_then(|position| {
        let at = queue.check_placement(segment, capacity)?;
        assert_eq!(at, model.placed);
        Ok(position)
    });
    assert_eq!(verdict, model.verdict(segment, capacity));
    assert_eq!(*queue, before, "a check changes nothing");
    if verdict.is_err() {
        return;
    }
    let end = model.placed + segment.payload.len() as u64;
    let complete = queue.placed(segment);
    assert_eq!(complete, segment.last.then_some(end as u32));
    *model = if segment.last {
        Model { msn: model.msn.wrapping_add(1), open: false, placed: 0 }
    } else {
        Model { open: true, placed: end, ..*model }
    };
    assert_eq!((queue.msn(), queue.is_open()), (model.msn, model.open));
}

/// The pieces of a message follow each other without a gap, and the last one says so.
fn cuts(len: u32, room: u32) {
    let mut end = 0_u64;
    let mut segmenter = Segmenter::new(len, room);
    for index in 0..256 {
        let expected = segmenter.cut_at(segmenter.offset());
        let Some(cut) = segmenter.next() else {
            assert!(index > 0 && end == u64::from(len), "ends early");
            assert!(segmenter.is_finished());
            return;
        };
        assert_eq!(Some(cut), expected);
        assert_eq!(u64::from(cut.offset), end);
        assert!(cut.len <= room.max(1));
        end += u64::from(cut.len);
        assert_eq!(cut.last, end == u64::from(len));
        assert!(cut.last || cut.len == room.max(1), "a short piece in the middle");
        assert_eq!(u64::from(segmenter.offset()), end);
    }
    assert!(end <= u64::from(len), "goes on behind the end");
}
