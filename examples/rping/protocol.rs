//! What the two ends say, octet by octet.

use iwarp_examples::{
    failure::{Failure, Result},
    pattern::Difference,
};
use iwarp_verbs::RemoteMemory;

/// The port that is taken if nothing is said.
pub(crate) const PORT: u16 = 7174;
/// Octets of a ping: the fewest have room for the text in front, the most are what all ends of this protocol take.
pub(crate) const SIZE_MIN: u32 = 23;
pub(crate) const SIZE_MAX: u32 = 65_535;
pub(crate) const SIZE_DEFAULT: u32 = 64;
/// RDMA Reads that this protocol has under way at once: the server's, of the one ping that there is.
pub(crate) const READS: u16 = 1;

/// Octets of every message, in both directions.
pub(crate) const MESSAGE: usize = 16;
/// The server's messages. That they come is all they say; the octets mean nothing.
pub(crate) const GO_AHEAD: [u8; MESSAGE] = [0; MESSAGE];

/// The client's message: address (64 bits), key (32 bits) and length (32 bits) of its memory, in network order.
pub(crate) fn advert(memory: RemoteMemory) -> Result<[u8; MESSAGE]> {
    let len = u32::try_from(memory.len)?;
    let mut octets = [0; MESSAGE];
    octets[..8].copy_from_slice(&memory.addr.to_be_bytes());
    octets[8..12].copy_from_slice(&memory.rkey.to_be_bytes());
    octets[12..].copy_from_slice(&len.to_be_bytes());
    Ok(octets)
}

/// The reverse of [`advert`], for octets that a peer sent.
pub(crate) fn read_advert(octets: &[u8]) -> Result<RemoteMemory> {
    let octets = message(octets)?;
    Ok(RemoteMemory {
        addr: u64::from_be_bytes(octets[..8].try_into()?),
        len: u32::from_be_bytes(octets[12..].try_into()?).into(),
        rkey: u32::from_be_bytes(octets[8..12].try_into()?),
    })
}

/// Refuses a message of another length.
pub(crate) fn message(octets: &[u8]) -> Result<[u8; MESSAGE]> {
    octets.try_into().map_err(|_| {
        let length = octets.len();
        Failure::new(format_args!("a message of {length} octets, where rping has {MESSAGE}"))
    })
}

/// The octets of the client's ping `number`, counted from 0: a C string that fills all `size` octets, with the number
/// in front, then a run through `A` to `z` that begins one letter further each time.
pub(crate) fn ping(number: u64, size: usize) -> Vec<u8> {
    let text_len = size.saturating_sub(1);
    let mut octets = format!("rdma-ping-{number}: ").into_bytes();
    octets.truncate(text_len);
    let room = text_len - octets.len();
    // There are 58 of them.
    let letters = (b'A'..=b'z').cycle().skip((number % 58) as usize);
    octets.extend(letters.take(room));
    octets.resize(size, 0);
    octets
}

/// The first octet that is not as it should be.
pub(crate) fn compare(found: &[u8], expected: &[u8]) -> Result<(), Difference> {
    let pairs = (0..).zip(found.iter().zip(expected));
    for (at, (&found, &expected)) in pairs {
        if found != expected {
            return Err(Difference { at, found, expected });
        }
    }
    Ok(())
}

/// The C string at the start of these octets, for people to read. A peer may have put anything there: what would steer
/// a terminal is shown as U+FFFD.
pub(crate) fn text(octets: &[u8]) -> String {
    let text = octets.split(|&octet| octet == 0).next().unwrap_or_default();
    String::from_utf8_lossy(text).replace(char::is_control, "\u{fffd}")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Seen of rdma-core's program, version 44, over the Linux kernel's siw.
    #[test]
    fn pings_and_adverts_are_those_of_rdma_core() {
        for (number, letters) in [
            (0, "ABCDEFGHIJKLMNOPQRSTUVWXYZ[\\]^_`abcdefghijklmnopqr"),
            (1, "BCDEFGHIJKLMNOPQRSTUVWXYZ[\\]^_`abcdefghijklmnopqrs"),
            (2, "CDEFGHIJKLMNOPQRSTUVWXYZ[\\]^_`abcdefghijklmnopqrst"),
        ] {
            let octets = ping(number, 64);
            assert_eq!(text(&octets), format!("rdma-ping-{number}: {letters}"));
            assert_eq!(octets.iter().position(|&octet| octet == 0), Some(63));
        }
        let octets = [0, 0, 0x55, 0xea, 0xce, 0x66, 0x13, 0x70, 0x01, 0x80, 0x1f, 0, 0, 0, 0, 0x40];
        let memory = RemoteMemory { addr: 0x55ea_ce66_1370, len: 64, rkey: 0x0180_1f00 };
        assert_eq!(read_advert(&octets), Ok(memory));
        assert_eq!(advert(memory), Ok(octets));
    }

    #[test]
    fn letters_begin_anew_behind_z_within_a_ping_and_from_ping_to_ping() {
        let octets = ping(57, 100);
        assert_eq!(text(&octets[..20]), "rdma-ping-57: zABCDE");
        assert_eq!(text(&ping(58, 20)), "rdma-ping-58: ABCDE");
        let long = ping(0, 200);
        assert_eq!(&long[13 + 56..13 + 60], b"yzAB");
    }

    #[test]
    fn octets_of_a_peer_do_not_steer_the_terminal() {
        assert_eq!(
            text(b"a\x1b[2J\r\n\xc2\x9bb\xff\0c"),
            "a\u{fffd}[2J\u{fffd}\u{fffd}\u{fffd}b\u{fffd}"
        );
    }

    #[test]
    fn every_size_is_kept() {
        for size in [0, 1, 5, 23, 24, 4096, 65_535] {
            for number in [0, 9, 10, u64::MAX] {
                let octets = ping(number, size);
                assert_eq!(octets.len(), size);
                assert_eq!(octets.iter().position(|&octet| octet == 0), size.checked_sub(1));
            }
        }
    }

    #[test]
    fn messages_of_other_lengths_and_memory_beyond_32_bits_are_refused() {
        for length in [0, 15, 17, 20, 512] {
            let error = read_advert(&vec![0; length]).unwrap_err().to_string();
            assert!(error.contains(&format!("{length} octets")), "{error}");
        }
        let memory = RemoteMemory { addr: 0, len: 1 << 32, rkey: 1 };
        assert!(advert(memory).is_err());
    }

    #[test]
    fn the_first_difference_is_named() {
        let expected = ping(4, 64);
        assert_eq!(compare(&expected, &expected), Ok(()));
        let mut found = expected.clone();
        found[30] ^= 4;
        found[31] ^= 4;
        let error = compare(&found, &expected).unwrap_err();
        assert_eq!((error.at, error.expected), (30, expected[30]));
    }
}
