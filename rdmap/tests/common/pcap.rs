//! Recordings in pcap files: the octets of TCP, in order, without a word of what is above.

use std::collections::{BTreeMap, HashMap};

/// One of the two ends of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Side {
    Initiator,
    Responder,
}

impl Side {
    pub const BOTH: [Self; 2] = [Self::Initiator, Self::Responder];

    pub fn other(self) -> Self {
        match self {
            Self::Initiator => Self::Responder,
            Self::Responder => Self::Initiator,
        }
    }
}

/// A packet.
#[derive(Clone, Copy, Debug)]
pub struct Arrival {
    pub from: Side,
    /// Octets of that side that are there in order, with this packet.
    pub octets: usize,
    pub fin: bool,
    pub reset: bool,
}

/// One TCP connection.
#[derive(Debug)]
pub struct Connection {
    /// All octets that the initiator sent, and those that the responder sent.
    pub octets: [Vec<u8>; 2],
    /// Packets that bring octets or an end, in the order of the recording.
    pub arrivals: Vec<Arrival>,
}

/// One TCP segment.
struct Packet<'a> {
    source: (&'a [u8], u16),
    sink: (&'a [u8], u16),
    sequence: u32,
    flags: u8,
    payload: &'a [u8],
}

const FIN: u8 = 0x01;
const SYN: u8 = 0x02;
const RST: u8 = 0x04;
const ACK: u8 = 0x10;

/// The TCP segments in a classic pcap file of Ethernet frames with IPv4, written on a little-endian machine.
fn packets(file: &[u8]) -> Vec<Packet<'_>> {
    assert_eq!(file[..4], [0xd4, 0xc3, 0xb2, 0xa1], "a classic pcap file in microseconds");
    assert_eq!(file[20..24], [1, 0, 0, 0], "of Ethernet");
    let mut rest = &file[24..];
    let mut packets = Vec::new();
    while let Some((header, behind)) = rest.split_first_chunk::<16>() {
        let [captured, original] =
            [8, 12].map(|at| u32::from_le_bytes(*header[at..].first_chunk().unwrap()));
        assert_eq!(captured, original, "a whole packet");
        let (frame, behind) = behind.split_at(captured as usize);
        rest = behind;
        if frame[12..14] != [0x08, 0x00] || frame[23] != 6 {
            continue;
        }
        let ip = &frame[14..14 + usize::from(u16::from_be_bytes([frame[16], frame[17]]))];
        let tcp = &ip[usize::from(ip[0] & 15) * 4..];
        packets.push(Packet {
            source: (&ip[12..16], u16::from_be_bytes([tcp[0], tcp[1]])),
            sink: (&ip[16..20], u16::from_be_bytes([tcp[2], tcp[3]])),
            sequence: u32::from_be_bytes(*tcp[4..].first_chunk().unwrap()),
            flags: tcp[13],
            payload: &tcp[usize::from(tcp[12] >> 4) * 4..],
        });
    }
    assert!(rest.is_empty(), "octets behind the last packet");
    packets
}

/// What is put together of one direction.
#[derive(Default)]
struct Assembly {
    first: u32,
    octets: Vec<u8>,
    /// Octets that are ahead of others, by their place.
    early: BTreeMap<usize, Vec<u8>>,
}

impl Assembly {
    fn add(&mut self, packet: &Packet<'_>) {
        let at = packet.sequence.wrapping_sub(self.first) as usize;
        if packet.payload.is_empty() || at > 1 << 31 {
            return;
        }
        let slot = self.early.entry(at).or_default();
        if slot.len() < packet.payload.len() {
            *slot = packet.payload.to_vec();
        }
        while let Some(entry) = self.early.first_entry()
            && *entry.key() <= self.octets.len()
        {
            let (at, piece) = entry.remove_entry();
            let known = (self.octets.len() - at).min(piece.len());
            self.octets.extend_from_slice(&piece[known..]);
        }
    }
}

/// The TCP connections of a recording that has each of them from its SYN on, in the order of these.
pub fn connections(file: &[u8]) -> Vec<Connection> {
    let mut places = HashMap::new();
    let mut found: Vec<([Assembly; 2], Vec<Arrival>)> = Vec::new();
    for packet in packets(file) {
        let ends = (packet.source, packet.sink);
        if packet.flags & (SYN | ACK) == SYN && !places.contains_key(&ends) {
            places.insert(ends, (found.len(), Side::Initiator));
            places.insert((packet.sink, packet.source), (found.len(), Side::Responder));
            found.push(Default::default());
        }
        let (at, from) = places[&ends];
        let (assemblies, arrivals) = &mut found[at];
        let assembly = &mut assemblies[from as usize];
        if packet.flags & SYN != 0 {
            assembly.first = packet.sequence.wrapping_add(1);
            continue;
        }
        let before = assembly.octets.len();
        assembly.add(&packet);
        let octets = assembly.octets.len();
        let [fin, reset] = [FIN, RST].map(|flag| packet.flags & flag != 0);
        if octets > before || fin || reset {
            arrivals.push(Arrival { from, octets, fin, reset });
        }
    }
    let connection = |(assemblies, arrivals): ([Assembly; 2], _)| Connection {
        octets: assemblies.map(|assembly| assembly.octets),
        arrivals,
    };
    found.into_iter().map(connection).collect()
}
