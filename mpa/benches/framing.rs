//! Instructions of framing, deframing and CRC, counted by valgrind.
//!
//! `cargo install gungraun-runner` once, in the version that `Cargo.lock` has of `gungraun`; then `cargo bench`.
//! What CRC takes is the difference between a benchmark with and without it.
#![allow(clippy::unwrap_used, reason = "a failed step is a failed benchmark")]
#![allow(missing_docs, reason = "the macros make public items")]

use std::hint::black_box;

use gungraun::{library_benchmark, library_benchmark_group, main};
use iwarp_mpa::{Deframer, Framer, Framing, Step};

/// FPDUs of one benchmark, so that what is done once does not count.
const FPDUS: usize = 16;

fn framing(crc: bool, markers: bool) -> Framing {
    Framing { send_markers: markers, receive_markers: markers, crc }
}

/// A framer, a ULPDU of so many octets, and room for all FPDUs.
fn to_frame(len: usize, crc: bool, markers: bool) -> (Framer, Vec<u8>, Vec<u8>) {
    let framer = Framer::new(&framing(crc, markers));
    (framer, vec![0x5a; len], vec![0; FPDUS * (len + 64 + len / 64)])
}

fn build((framer, ulpdu, out): &mut (Framer, Vec<u8>, Vec<u8>)) -> usize {
    let mut at = 0;
    for _ in 0..FPDUS {
        let room = out.get_mut(at..).unwrap_or_default();
        let fill = |into: &mut [u8]| {
            into.copy_from_slice(ulpdu);
            Ok::<(), ()>(())
        };
        at += framer.frame(room, ulpdu.len(), fill).unwrap();
    }
    at
}

/// A deframer and the octets of all FPDUs.
fn to_deframe(len: usize, crc: bool, markers: bool) -> (Deframer, Vec<u8>) {
    let mut built = to_frame(len, crc, markers);
    let octets = build(&mut built);
    built.2.truncate(octets);
    (Deframer::new(&framing(crc, markers)), built.2)
}

#[library_benchmark]
#[bench::small(args = (64, true, false), setup = to_frame)]
#[bench::small_no_crc(args = (64, false, false), setup = to_frame)]
#[bench::long(args = (16_000, true, false), setup = to_frame)]
#[bench::long_no_crc(args = (16_000, false, false), setup = to_frame)]
#[bench::long_markers(args = (16_000, true, true), setup = to_frame)]
fn frame(mut built: (Framer, Vec<u8>, Vec<u8>)) -> (Framer, Vec<u8>, Vec<u8>) {
    black_box(build(black_box(&mut built)));
    built
}

#[library_benchmark]
#[bench::small(args = (64, true, false), setup = to_deframe)]
#[bench::small_no_crc(args = (64, false, false), setup = to_deframe)]
#[bench::long(args = (16_000, true, false), setup = to_deframe)]
#[bench::long_no_crc(args = (16_000, false, false), setup = to_deframe)]
#[bench::long_markers(args = (16_000, true, true), setup = to_deframe)]
fn deframe((mut deframer, mut octets): (Deframer, Vec<u8>)) -> Vec<u8> {
    let mut at = 0;
    for _ in 0..FPDUS {
        match deframer.next(black_box(&mut octets[at..])).unwrap() {
            Step::Ulpdu(ulpdu) => black_box(ulpdu.len()),
            Step::Need(octets) => panic!("{octets} octets needed"),
        };
        at += deframer.consume();
    }
    octets
}

library_benchmark_group!(name = mpa; benchmarks = frame, deframe);
main!(library_benchmark_groups = mpa);
