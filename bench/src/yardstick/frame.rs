//! A stream of which every octet is copied once and summed at the sender, and received into a staging buffer, summed
//! and copied to its place at the receiver.
//!
//! With CRC on no iWARP can do with less: what was summed must be what is sent, although the program may write its
//! memory meanwhile, and nothing may be placed before its sum is checked. So the ratio to this is what is ours.

use std::io::{Read, Write};
use std::net::TcpStream;

use anyhow::{Context, Result, bail};

use super::ping_pong::{send, turned_away};
use super::stream::{READ, Ring, finish, stride, timed};
use crate::case::{Case, Pace, Stream};
use crate::guard::cpu;
use crate::stats::EndReport;

/// Length and place.
const HEAD: usize = 16;
const CRC: usize = 4;
/// Octets of payload in a frame at most.
const PAYLOAD: usize = 60 << 10;
/// Octets that are staged before they are written.
const PIECE: usize = 256 << 10;

pub(super) fn drive(stream: &TcpStream, case: &Case, s: Stream, pace: Pace) -> Result<EndReport> {
    let source = Ring::new(case.size, s.footprint).into_octets();
    let mut base = 0;
    let mut staged = Vec::with_capacity(PIECE + 2 * (PAYLOAD + HEAD + CRC));
    let report = timed(stride(case.size), pace, || {
        for (i, payload) in source[base..base + case.size].chunks(PAYLOAD).enumerate() {
            put(&mut staged, base + i * PAYLOAD, payload);
            if staged.len() >= PIECE {
                send(stream, &staged)?;
                staged.clear();
            }
        }
        base = if base + case.size >= source.len() { 0 } else { base + case.size };
        send(stream, &staged)?;
        staged.clear();
        Ok(())
    })?;
    finish(stream)?;
    Ok(report)
}

fn put(staged: &mut Vec<u8>, place: usize, payload: &[u8]) {
    let begin = staged.len();
    staged.extend_from_slice(&(payload.len() as u64).to_le_bytes());
    staged.extend_from_slice(&(place as u64).to_le_bytes());
    staged.extend_from_slice(payload);
    let sum = crc_fast::crc32_iscsi(&staged[begin..]);
    staged.extend_from_slice(&sum.to_le_bytes());
}

pub(super) fn serve(mut stream: &TcpStream, case: &Case, s: Stream) -> Result<EndReport> {
    super::set_up(stream, case)?;
    let mut memory = vec![1; case.size * s.footprint];
    let mut staged = vec![0; 2 * READ];
    let (mut begin, mut end, mut octets, mut empty) = (0, 0, 0_u64, 0);
    let meter = cpu::Meter::start();
    loop {
        match stream.read(&mut staged[end..]) {
            Ok(0) => break,
            Ok(n) => (end, empty) = (end + n, 0),
            Err(error) => {
                turned_away(error, &mut empty).context("plain TCP: read")?;
                continue;
            }
        }
        while let Some((taken, payload)) = take(&staged[begin..end], &mut memory)? {
            begin += taken;
            octets += payload as u64;
        }
        if begin == end {
            (begin, end) = (0, 0);
        } else if staged.len() - end < READ {
            staged.copy_within(begin..end, 0);
            (begin, end) = (0, end - begin);
        }
    }
    let cpu_seconds = meter.seconds();
    stream.set_nonblocking(false)?;
    stream.write_all(&[1])?;
    let total = octets / case.size as u64;
    Ok(EndReport { cpu_seconds, cpu_over: total, total, ..EndReport::default() })
}

/// Places one frame, if it is all there. Returns its length and that of its payload.
fn take(staged: &[u8], memory: &mut [u8]) -> Result<Option<(usize, usize)>> {
    let Some((head, rest)) = staged.split_first_chunk::<HEAD>() else { return Ok(None) };
    let number = |part: &[u8]| part.try_into().map_or(u64::MAX, u64::from_le_bytes);
    let (len, place) = (number(&head[..8]), number(&head[8..]));
    let (Ok(len), Ok(place)) = (usize::try_from(len), usize::try_from(place)) else {
        bail!("plain TCP: a frame that makes no sense");
    };
    if len > PAYLOAD {
        bail!("plain TCP: a frame that is too long");
    }
    if rest.len() < len + CRC {
        return Ok(None);
    }
    let (payload, rest) = rest.split_at(len);
    if crc_fast::crc32_iscsi(&staged[..HEAD + len]).to_le_bytes() != rest[..CRC] {
        bail!("plain TCP: a frame with a wrong CRC");
    }
    memory
        .get_mut(place..)
        .and_then(|memory| memory.get_mut(..len))
        .context("plain TCP: a frame beside the memory")?
        .copy_from_slice(payload);
    Ok(Some((HEAD + len + CRC, len)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_are_placed_once_whole_and_right() {
        let mut staged = Vec::new();
        put(&mut staged, 3, b"abc");
        put(&mut staged, 0, b"xyz");
        let mut memory = [0; 6];
        assert_eq!(take(&staged[..20], &mut memory).expect("part"), None);
        assert_eq!(take(&staged, &mut memory).expect("whole"), Some((23, 3)));
        assert_eq!(take(&staged[23..], &mut memory).expect("whole"), Some((23, 3)));
        assert_eq!(&memory, b"xyzabc");
        assert!(take(&staged, &mut memory[..5]).is_err(), "beside the memory");
        staged[17] ^= 1;
        assert!(take(&staged, &mut memory).is_err(), "a changed octet");
    }
}
