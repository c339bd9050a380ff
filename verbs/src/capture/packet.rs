//! Ethernet, IP and TCP headers that nobody sent, around octets that somebody did.
//!
//! The format of the file is pcap with times in nanoseconds; that of the packets is RFC 894, RFC 791, RFC 8200 and
//! RFC 9293, of which only what a reader needs is filled in. Both are a few fixed fields, fewer lines than the use
//! of a library for them.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// First octets of a capture file: nanoseconds, version 2.4, no limit but this, Ethernet.
pub(super) fn file_header() -> Vec<u8> {
    let mut out = Vec::with_capacity(24);
    out.extend_from_slice(&0xa1b2_3c4d_u32.to_le_bytes());
    out.extend_from_slice(&2_u16.to_le_bytes());
    out.extend_from_slice(&4_u16.to_le_bytes());
    out.extend_from_slice(&[0; 8]);
    out.extend_from_slice(&0x0004_0000_u32.to_le_bytes());
    out.extend_from_slice(&1_u32.to_le_bytes());
    out
}

/// Octets in front of each packet.
const RECORD_HEADER: usize = 16;
const ETHERNET: usize = 14;
const IPV4: usize = 20;
const IPV6: usize = 40;
const TCP: usize = 20;

/// Payload of one packet, so that the lengths of all headers can be written.
pub(super) const PAYLOAD_MOST: usize = 65_535 - IPV4 - TCP;

/// Octets that one packet adds to the file, at most.
pub(super) const fn record_len(payload: usize) -> usize {
    RECORD_HEADER + ETHERNET + IPV6 + TCP + payload
}

bitflags::bitflags! {
    /// Control bits of TCP.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub(super) struct Flags: u8 {
        const FIN = 0x01;
        const SYN = 0x02;
        const RST = 0x04;
        const PSH = 0x08;
        const ACK = 0x10;
    }
}

/// One packet, without its payload.
#[derive(Clone, Copy, Debug)]
pub(super) struct Header {
    pub(super) from: SocketAddr,
    pub(super) to: SocketAddr,
    pub(super) sequence: u32,
    pub(super) acknowledged: u32,
    pub(super) flags: Flags,
}

impl Header {
    /// Appends the record of a packet with up to [`PAYLOAD_MOST`] octets.
    pub(super) fn write(&self, out: &mut Vec<u8>, payload: &[u8]) {
        let (from, to) = families(self.from.ip(), self.to.ip());
        let tcp_len = TCP + payload.len();
        let ip_len = if from.is_ipv4() { IPV4 } else { IPV6 };
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO);
        // The seconds of the format end in 2106.
        out.extend_from_slice(&u32::try_from(since.as_secs()).unwrap_or(u32::MAX).to_le_bytes());
        out.extend_from_slice(&since.subsec_nanos().to_le_bytes());
        let len = u32::try_from(ETHERNET + ip_len + tcp_len).unwrap_or(u32::MAX);
        out.extend_from_slice(&len.to_le_bytes());
        out.extend_from_slice(&len.to_le_bytes());
        // Made-up, locally administered stations: the lower port is one, the higher the other.
        let station = |own: SocketAddr, other: SocketAddr| {
            [2, 0, 0, 0, 0, if (own.port(), own.ip()) < (other.port(), other.ip()) { 1 } else { 2 }]
        };
        out.extend_from_slice(&station(self.to, self.from));
        out.extend_from_slice(&station(self.from, self.to));
        let mut sum = Sum::default();
        match (from, to) {
            (IpAddr::V4(from), IpAddr::V4(to)) => {
                out.extend_from_slice(&0x0800_u16.to_be_bytes());
                write_ipv4(out, from, to, tcp_len);
                sum.add(&from.octets());
                sum.add(&to.octets());
            }
            (from, to) => {
                out.extend_from_slice(&0x86dd_u16.to_be_bytes());
                let (from, to) = (six(from), six(to));
                write_ipv6(out, from, to, tcp_len);
                sum.add(&from.octets());
                sum.add(&to.octets());
            }
        }
        sum.add(&[0, PROTOCOL_TCP]);
        sum.add(&short(tcp_len).to_be_bytes());
        let at = out.len();
        self.write_tcp(out);
        sum.add(out.get(at..).unwrap_or_default());
        sum.add(payload);
        let checksum = sum.finish().to_be_bytes();
        if let Some(place) = out.get_mut(at + 16..at + 18) {
            place.copy_from_slice(&checksum);
        }
        out.extend_from_slice(payload);
    }

    fn write_tcp(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.from.port().to_be_bytes());
        out.extend_from_slice(&self.to.port().to_be_bytes());
        out.extend_from_slice(&self.sequence.to_be_bytes());
        out.extend_from_slice(&self.acknowledged.to_be_bytes());
        // Five words of header; the window is as good as any.
        out.extend_from_slice(&[5 << 4, self.flags.bits(), 0xff, 0xff, 0, 0, 0, 0]);
    }
}

const PROTOCOL_TCP: u8 = 6;

/// Lengths are limited by [`PAYLOAD_MOST`].
fn short(len: usize) -> u16 {
    u16::try_from(len).unwrap_or(u16::MAX)
}

/// Both in one family: IPv4 if it can be.
fn families(from: IpAddr, to: IpAddr) -> (IpAddr, IpAddr) {
    match (from.to_canonical(), to.to_canonical()) {
        (IpAddr::V4(from), IpAddr::V4(to)) => (from.into(), to.into()),
        (from, to) => (six(from).into(), six(to).into()),
    }
}

fn six(ip: IpAddr) -> Ipv6Addr {
    match ip {
        IpAddr::V4(v4) => v4.to_ipv6_mapped(),
        IpAddr::V6(v6) => v6,
    }
}

fn write_ipv4(out: &mut Vec<u8>, from: Ipv4Addr, to: Ipv4Addr, payload: usize) {
    let at = out.len();
    out.extend_from_slice(&[0x45, 0]);
    out.extend_from_slice(&short(IPV4 + payload).to_be_bytes());
    // Not to be fragmented.
    out.extend_from_slice(&[0, 0, 0x40, 0, 64, PROTOCOL_TCP, 0, 0]);
    out.extend_from_slice(&from.octets());
    out.extend_from_slice(&to.octets());
    let mut sum = Sum::default();
    sum.add(out.get(at..).unwrap_or_default());
    let checksum = sum.finish().to_be_bytes();
    if let Some(place) = out.get_mut(at + 10..at + 12) {
        place.copy_from_slice(&checksum);
    }
}

fn write_ipv6(out: &mut Vec<u8>, from: Ipv6Addr, to: Ipv6Addr, payload: usize) {
    out.extend_from_slice(&[0x60, 0, 0, 0]);
    out.extend_from_slice(&short(payload).to_be_bytes());
    out.extend_from_slice(&[PROTOCOL_TCP, 64]);
    out.extend_from_slice(&from.octets());
    out.extend_from_slice(&to.octets());
}

/// The checksum of the Internet protocols (RFC 1071). Pieces but the last have an even length.
#[derive(Default)]
struct Sum(u64);

impl Sum {
    fn add(&mut self, octets: &[u8]) {
        let (pairs, rest) = octets.as_chunks::<2>();
        let sum: u64 = pairs.iter().map(|&pair| u64::from(u16::from_be_bytes(pair))).sum();
        let last = rest.first().map_or(0, |&octet| u64::from(octet) << 8);
        self.0 += sum + last;
    }

    fn finish(self) -> u16 {
        let mut sum = self.0;
        while sum > 0xffff {
            sum = (sum & 0xffff) + (sum >> 16);
        }
        !u16::try_from(sum).unwrap_or(u16::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn packet(from: &str, to: &str, payload: &[u8]) -> Vec<u8> {
        let header = Header {
            from: from.parse().unwrap(),
            to: to.parse().unwrap(),
            sequence: 1,
            acknowledged: 2,
            flags: Flags::ACK | Flags::PSH,
        };
        let mut out = Vec::new();
        header.write(&mut out, payload);
        assert!(out.len() <= record_len(payload.len()));
        let len = u32::from_le_bytes(out[8..12].try_into().unwrap());
        assert_eq!(out.len(), RECORD_HEADER + len as usize);
        out.split_off(RECORD_HEADER)
    }

    /// The sum over octets that include their checksum.
    fn verify(octets: &[u8], pseudo: &[u8]) -> u16 {
        let mut sum = Sum::default();
        sum.add(pseudo);
        sum.add(octets);
        sum.finish()
    }

    #[test]
    fn checksums_verify_for_both_families_and_odd_lengths() {
        for payload in [&b""[..], b"odd", b"even"] {
            let v4 = packet("192.0.2.1:1000", "192.0.2.2:2000", payload);
            assert_eq!(v4[12..14], [8, 0]);
            assert_eq!(verify(&v4[14..34], &[]), 0);
            let len = short(TCP + payload.len()).to_be_bytes();
            assert_eq!(verify(&v4[34..], &[&v4[26..34], &[0, 6], &len].concat()), 0);
            assert_eq!(v4[54..], *payload);

            let v6 = packet("[2001:db8::1]:1000", "[2001:db8::2]:2000", payload);
            assert_eq!(v6[12..14], [0x86, 0xdd]);
            assert_eq!(verify(&v6[54..], &[&v6[22..54], &[0, 6], &len].concat()), 0);
        }
    }

    #[test]
    fn mapped_addresses_are_shown_as_ipv4() {
        let octets = packet("[::ffff:192.0.2.1]:1", "192.0.2.2:2", b"");
        assert_eq!(octets[12..14], [8, 0]);
        assert_eq!(octets[26..34], [192, 0, 2, 1, 192, 0, 2, 2]);
    }

    #[test]
    fn the_two_directions_have_the_same_two_stations() {
        let there = packet("192.0.2.1:1", "192.0.2.2:2", b"");
        let back = packet("192.0.2.2:2", "192.0.2.1:1", b"");
        assert_eq!([&there[..6], &there[6..12]], [&back[6..12], &back[..6]]);
        assert_ne!(there[..6], there[6..12]);
    }

    #[test]
    fn the_longest_packet_has_lengths_that_fit() {
        let longest = packet("192.0.2.1:1", "192.0.2.2:2", &vec![0; PAYLOAD_MOST]);
        assert_eq!(longest[16..18], [0xff, 0xff]);
    }
}
