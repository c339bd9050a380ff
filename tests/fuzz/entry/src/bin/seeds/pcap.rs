//! Just enough of pcap, IPv4 and TCP to get the octets of both directions out of a recording that lost nothing.

use std::collections::BTreeMap;

/// Octets of the side that connected, and of the other one.
pub(crate) type Connection = [Vec<u8>; 2];

/// Address and port.
type Place = (u32, u16);

/// One direction on its way.
#[derive(Default)]
struct Half {
    first: Option<u32>,
    pieces: BTreeMap<u32, Vec<u8>>,
}

/// The TCP connections of a classic pcap file of Ethernet or raw IP frames, in the order of their first segments.
pub(crate) fn connections(file: &[u8]) -> Vec<Connection> {
    let mut keys: Vec<(Place, Place)> = Vec::new();
    let mut halves: BTreeMap<(Place, Place), Half> = BTreeMap::new();
    let link = u32::from_le_bytes(file[20..24].try_into().unwrap());
    let mut rest = &file[24..];
    while let Some((head, behind)) = rest.split_at_checked(16) {
        let len = u32::from_le_bytes(head[8..12].try_into().unwrap()) as usize;
        let (frame, behind) = behind.split_at(len);
        rest = behind;
        let ip = if link == 1 { &frame[14..] } else { frame };
        let Some((from, to, seq, flags, payload)) = segment(ip) else { continue };
        if flags & 0x12 == 0x02 && !keys.contains(&(from, to)) {
            keys.push((from, to));
        }
        let half = halves.entry((from, to)).or_default();
        let is_syn = flags & 0x02 != 0;
        let first = *half.first.get_or_insert_with(|| seq.wrapping_add(u32::from(is_syn)));
        if !payload.is_empty() {
            half.pieces.entry(seq.wrapping_sub(first)).or_insert_with(|| payload.to_vec());
        }
    }
    let mut octets = |key| {
        let mut octets = Vec::new();
        for (at, piece) in halves.remove(&key).unwrap_or_default().pieces {
            // What was sent again is there already.
            let known = octets.len().saturating_sub(at as usize).min(piece.len());
            if at as usize <= octets.len() {
                octets.extend_from_slice(&piece[known..]);
            }
        }
        octets
    };
    keys.into_iter().map(|(from, to)| [octets((from, to)), octets((to, from))]).collect()
}

/// From, to, sequence number, flags and payload of a TCP segment.
fn segment(ip: &[u8]) -> Option<(Place, Place, u32, u8, &[u8])> {
    if ip.first()? >> 4 != 4 || ip.get(9) != Some(&6) {
        return None;
    }
    let word = |at: usize| Some(u32::from_be_bytes(ip.get(at..at + 4)?.try_into().ok()?));
    let head = usize::from(ip[0] & 0x0f) * 4;
    let total = usize::from(u16::from_be_bytes([ip[2], ip[3]]));
    // Length 0: the kernel was to cut it, and it was recorded before.
    let tcp = ip.get(head..if total == 0 { ip.len() } else { total })?;
    let port = |at: usize| Some(u16::from_be_bytes(tcp.get(at..at + 2)?.try_into().ok()?));
    let seq = u32::from_be_bytes(tcp.get(4..8)?.try_into().ok()?);
    let payload = tcp.get(usize::from(tcp.get(12)? >> 4) * 4..)?;
    Some(((word(12)?, port(0)?), (word(16)?, port(2)?), seq, tcp[13], payload))
}
