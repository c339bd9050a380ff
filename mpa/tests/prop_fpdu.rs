//! FPDUs: what a framer makes, a deframer takes apart, wherever the stream is cut.
#![allow(clippy::unwrap_used, reason = "a failed step fails the test")]

mod common;

use common::{Reader, config, frame, framing, pieces, reference_fpdu};
use iwarp_mpa::{Deframer, Error, FrameError, Framer, Framing, Step, ULPDU_MAX_SENT, framed_len};
use proptest::collection::vec;
use proptest::prelude::*;

/// Stream offsets at which an FPDU can start: any phase, small and beyond what 32 bits can count.
fn position() -> impl Strategy<Value = u64> {
    prop_oneof![
        4 => 0_u64..2_048,
        // MPA-066: across 4 GiB, and anywhere.
        2 => (1_u64 << 32) - 2_048..(1_u64 << 32) + 2_048,
        1 => 0..u64::MAX - (1 << 20),
    ]
    .prop_map(|position| position & !3)
}

fn ulpdu() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        4 => vec(any::<u8>(), 0..80),
        2 => vec(any::<u8>(), 400..1_600),
        1 => vec(any::<u8>(), 15_000..17_000),
    ]
}

/// Lengths of the pieces a stream arrives in.
fn cut() -> impl Strategy<Value = Vec<usize>> {
    prop_oneof![Just(vec![]), Just(vec![1]), vec(1_usize..8, 1..20), vec(1_usize..3_000, 1..20),]
}

fn stream(framing: Framing, position: u64, ulpdus: &[Vec<u8>]) -> Vec<u8> {
    let mut framer = Framer::with_position(&framing, position);
    ulpdus.iter().flat_map(|ulpdu| frame(&mut framer, ulpdu)).collect()
}

proptest! {
    #![proptest_config(config(256))]

    // MPA-040, MPA-044, MPA-046, MPA-047, MPA-049, MPA-057, MPA-062, MPA-065
    #[test]
    fn framer_agrees_with_the_definition(
        position in position(),
        ulpdus in vec(ulpdu(), 1..6),
        markers: bool,
        crc: bool,
    ) {
        let mut framer = Framer::with_position(&framing(markers, crc), position);
        let mut at = position;
        for ulpdu in &ulpdus {
            let wire = frame(&mut framer, ulpdu);
            prop_assert_eq!(&wire, &reference_fpdu(ulpdu, at, markers, crc));
            prop_assert_eq!(wire.len(), framed_len(ulpdu.len(), markers, at));
            prop_assert_eq!(wire.len() % 4, 0);
            at += wire.len() as u64;
            prop_assert_eq!(framer.position(), at);
        }
    }

    // MPA-053, MPA-067, MPA-074, MPA-075, MPA-076
    #[test]
    fn any_cut_gives_the_same_ulpdus(
        position in position(),
        ulpdus in vec(ulpdu(), 0..8),
        cut in cut(),
        markers: bool,
        crc: bool,
    ) {
        let framing = framing(markers, crc);
        let octets = stream(framing, position, &ulpdus);
        let mut reader = Reader::new(framing, position);
        for piece in pieces(&octets, &cut) {
            reader.read(piece);
        }
        prop_assert_eq!(&reader.error, &None);
        prop_assert_eq!(&reader.ulpdus, &ulpdus);
        prop_assert_eq!(reader.unread(), 0);
        prop_assert_eq!(reader.position(), position + octets.len() as u64);
        prop_assert_eq!(reader.eof(), Ok(()));
    }

    // FC-003: a caller that reads exactly what is asked for is never left waiting.
    #[test]
    fn need_is_always_met_by_the_fpdu_itself(
        position in position(),
        ulpdus in vec(ulpdu(), 1..6),
        markers: bool,
        crc: bool,
    ) {
        let framing = framing(markers, crc);
        let octets = stream(framing, position, &ulpdus);
        let mut reader = Reader::new(framing, position);
        reader.read(&[]);
        let mut read = 0;
        let mut asked = 0;
        while read < octets.len() {
            let missing = reader.missing();
            prop_assert!(missing > 0);
            prop_assert!(read + missing <= octets.len(), "asks for octets of the next FPDU");
            reader.read(&octets[read..read + missing]);
            read += missing;
            asked += 1;
        }
        prop_assert_eq!(&reader.ulpdus, &ulpdus);
        // Once for the length and once for the rest.
        prop_assert_eq!(asked, 2 * ulpdus.len());
    }

    // MPA-012, MPA-013: the two directions of a connection have nothing to do with each other.
    #[test]
    fn markers_are_per_direction(
        there in vec(ulpdu(), 1..4),
        back in vec(ulpdu(), 1..4),
        markers_there: bool,
        markers_back: bool,
        cut in cut(),
    ) {
        let near =
            Framing { send_markers: markers_there, receive_markers: markers_back, crc: true };
        let far = Framing { send_markers: markers_back, receive_markers: markers_there, crc: true };
        for (sender, receiver, ulpdus) in [(near, far, there), (far, near, back)] {
            let octets = stream(sender, 0, &ulpdus);
            let mut reader = Reader::new(receiver, 0);
            pieces(&octets, &cut).for_each(|piece| reader.read(piece));
            prop_assert_eq!(&reader.ulpdus, &ulpdus);
            let first = reference_fpdu(&ulpdus[0], 0, sender.send_markers, true);
            prop_assert!(octets.starts_with(&first));
        }
    }

    // MPA-058, MPA-083: nothing of a damaged FPDU is handed up, nor anything behind it.
    #[test]
    fn a_flipped_bit_is_never_delivered(
        position in position(),
        ulpdus in vec(vec(any::<u8>(), 0..700), 1..6),
        at: prop::sample::Index,
        bit in 0_u8..8,
        cut in cut(),
        markers: bool,
    ) {
        let framing = framing(markers, true);
        let mut octets = Vec::new();
        let mut ends = Vec::new();
        let mut framer = Framer::with_position(&framing, position);
        for ulpdu in &ulpdus {
            octets.extend(frame(&mut framer, ulpdu));
            ends.push(octets.len());
        }
        let at = at.index(octets.len());
        octets[at] ^= 1 << bit;
        let whole = ends.iter().filter(|end| **end <= at).count();

        let mut reader = Reader::new(framing, position);
        pieces(&octets, &cut).for_each(|piece| reader.read(piece));
        prop_assert_eq!(&reader.ulpdus[..], &ulpdus[..whole]);
        // A length made longer may leave the reader waiting; the end of the stream ends that.
        match reader.error {
            Some(Error::Crc { .. }) => prop_assert!(reader.eof().is_err()),
            None => prop_assert_eq!(reader.eof().map_err(|error| error.code()), Err(Some(1))),
            Some(other) => prop_assert!(false, "{}", other),
        }
    }

    // MPA-015, MPA-055: without CRC the field is there and means nothing.
    #[test]
    fn without_crc_its_field_holds_anything(
        ulpdus in vec(ulpdu(), 1..4),
        junk: [u8; 4],
        markers: bool,
    ) {
        let framing = framing(markers, false);
        let mut reader = Reader::new(framing, 0);
        let mut framer = Framer::new(&framing);
        for ulpdu in &ulpdus {
            let mut wire = frame(&mut framer, ulpdu);
            let end = wire.len();
            // MPA-050
            prop_assert_eq!(&wire[end - 4..], &[0; 4]);
            wire[end - 4..].copy_from_slice(&junk);
            reader.read(&wire);
        }
        prop_assert_eq!(&reader.ulpdus, &ulpdus);
    }

    // MPA-082: a marker that points elsewhere is found though the CRC is right, and without CRC
    // too.
    #[test]
    fn a_marker_must_point_to_its_fpdu(
        position in position(),
        len in 0_usize..2_000,
        which: prop::sample::Index,
        wrong: u16,
        crc: bool,
    ) {
        let framing = framing(true, crc);
        let mut wire = reference_fpdu(&common::ramp(len), position, true, false);
        let first = usize::try_from(position.next_multiple_of(512) - position).unwrap();
        let places: Vec<usize> = (first..wire.len()).step_by(512).collect();
        prop_assume!(!places.is_empty());
        let place = places[which.index(places.len())];
        let right = u16::from_be_bytes([wire[place + 2], wire[place + 3]]);
        // MPA-060: the two low bits make no difference.
        prop_assume!(wrong & !3 != right);
        wire[place + 2..place + 4].copy_from_slice(&wrong.to_be_bytes());
        let end = wire.len() - 4;
        if crc {
            let sum = common::reference_crc(&wire[..end]);
            wire[end..].copy_from_slice(&sum.to_le_bytes());
        }
        let mut reader = Reader::new(framing, position);
        reader.read(&wire);
        prop_assert!(reader.ulpdus.is_empty());
        let expected = Error::Marker {
            position: position + place as u64,
            expected: right,
            found: wrong & !3,
        };
        prop_assert_eq!(reader.error, Some(expected));
    }

    #[test]
    fn gathered_and_framed_are_the_same_octets(
        header in vec(any::<u8>(), 0..40),
        payload in vec(any::<u8>(), 0..300),
        position in position(),
    ) {
        let framing = framing(false, false);
        let mut gathering = Framer::with_position(&framing, position);
        let mut framing_one = Framer::with_position(&framing, position);
        let ulpdu = [&header[..], &payload[..]].concat();
        let expected = frame(&mut framing_one, &ulpdu);

        let (mut head, mut tail) = ([0xEE; 64], [0xEE; 8]);
        let (head_len, tail_len) =
            gathering.frame_gathered(&header, payload.len(), &mut head, &mut tail).unwrap();
        let wire = [&head[..head_len], &payload[..], &tail[..tail_len]].concat();
        prop_assert_eq!(wire, expected);
        prop_assert_eq!(gathering.position(), framing_one.position());
    }

    /// What fails leaves the stream where it was.
    #[test]
    fn a_failed_fpdu_takes_no_place(
        position in position(),
        ulpdu in vec(any::<u8>(), 1..700),
        markers: bool,
        crc: bool,
    ) {
        let framing = framing(markers, crc);
        let mut framer = Framer::with_position(&framing, position);
        let need = framer.framed_len(ulpdu.len());
        let mut out = vec![0; need];

        let refused = framer.frame(&mut out, ulpdu.len(), |_| Err("source is gone"));
        prop_assert_eq!(refused, Err(FrameError::Fill("source is gone")));
        let short = framer.frame(&mut out[..need - 1], ulpdu.len(), |_| Ok::<(), ()>(()));
        let too_small = Error::BufferTooSmall { need, have: need - 1 };
        prop_assert_eq!(short, Err(FrameError::Mpa(too_small)));
        // MPA-043
        let long = framer.frame(&mut out, ULPDU_MAX_SENT + 1, |_| Ok::<(), ()>(()));
        let too_long = Error::UlpduTooLong { len: ULPDU_MAX_SENT + 1, max: ULPDU_MAX_SENT };
        prop_assert_eq!(long, Err(FrameError::Mpa(too_long)));

        prop_assert_eq!(framer.position(), position);
        let expected = reference_fpdu(&ulpdu, position, markers, crc);
        prop_assert_eq!(frame(&mut framer, &ulpdu), expected);
    }

    /// No octets whatever make a deframer panic, ask for less than there is, or go back on an
    /// error.
    #[test]
    fn any_octets_are_survived(
        octets in vec(any::<u8>(), 0..3_000),
        cut in cut(),
        position in position(),
        markers: bool,
        crc: bool,
    ) {
        let mut reader = Reader::new(framing(markers, crc), position);
        pieces(&octets, &cut).for_each(|piece| reader.read(piece));
    }
}

proptest! {
    #![proptest_config(config(24))]

    /// The longest ULPDUs, sent and received, with markers and without.
    #[test]
    fn the_longest_ulpdus(
        less in 0_usize..800,
        position in position(),
        markers: bool,
        crc: bool,
    ) {
        let framing = framing(markers, crc);
        let longest = common::ramp(ULPDU_MAX_SENT - less);
        let beyond = common::ramp(65_535 - less % 767);
        let mut framer = Framer::with_position(&framing, position);
        let sent = frame(&mut framer, &longest);
        prop_assert_eq!(&sent, &reference_fpdu(&longest, position, markers, crc));
        // Up to what ULPDU_Length can say, all is accepted.
        let wire = reference_fpdu(&beyond, framer.position(), markers, crc);
        let mut reader = Reader::new(framing, position);
        reader.read(&sent);
        pieces(&wire, &[30_000]).for_each(|piece| reader.read(piece));
        prop_assert_eq!(reader.error, None);
        prop_assert_eq!(reader.ulpdus, vec![longest, beyond]);
    }
}

/// MPA-066: a stream that really is longer than 4 GiB, walked by its lengths alone.
#[test]
fn every_phase_of_a_long_stream() {
    let framing = framing(true, true);
    let mut position = (1_u64 << 32) - 40_000;
    let mut ulpdu_len = 0;
    while position < (1 << 32) + 40_000 {
        ulpdu_len = (ulpdu_len + 37) % 1_500;
        let ulpdu = common::ramp(ulpdu_len);
        let mut framer = Framer::with_position(&framing, position);
        let mut wire = frame(&mut framer, &ulpdu);
        assert_eq!(wire, reference_fpdu(&ulpdu, position, true, true));
        let mut deframer = Deframer::with_position(&framing, position);
        assert_eq!(deframer.next(&mut wire), Ok(Step::Ulpdu(&ulpdu)));
        assert_eq!(deframer.consume(), framed_len(ulpdu_len, true, position));
        position = deframer.position();
        assert_eq!(position, framer.position());
    }
}
