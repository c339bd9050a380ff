//! CRC32c (RFC 5044 §4.4, MPA-056), and the only file that names a crate for it.

// CRC32c of some octets, as a number; on the wire its least significant octet goes first.
#[cfg(feature = "crc-fast")]
pub(crate) use crc_fast::crc32_iscsi as crc32c;
#[cfg(not(feature = "crc-fast"))]
pub(crate) use crc32c::crc32c;

#[cfg(test)]
#[allow(
    clippy::indexing_slicing,
    clippy::arithmetic_side_effects,
    clippy::cast_possible_truncation,
    reason = "a wrong index or sum fails the test"
)]
mod tests {
    use super::crc32c;

    fn bit_by_bit(octets: &[u8]) -> u32 {
        !octets.iter().fold(!0, |crc, octet| {
            (0..8).fold(crc ^ u32::from(*octet), |crc, _| {
                (crc >> 1) ^ if crc & 1 == 1 { 0x82F6_3B78 } else { 0 }
            })
        })
    }

    fn octets(len: usize) -> Vec<u8> {
        (0..len).map(|i| (i.wrapping_mul(0x9E37_79B1) >> 11) as u8).collect()
    }

    #[derive(serde::Deserialize)]
    struct Book {
        count: usize,
        vectors: Vec<Vector>,
    }

    #[derive(serde::Deserialize)]
    struct Vector {
        name: String,
        hex: String,
        fields: Fields,
    }

    #[derive(serde::Deserialize)]
    struct Fields {
        crc_value: String,
        crc_wire: String,
    }

    // MPA-056
    #[test]
    fn known_answers() {
        let book: Book =
            serde_json::from_str(include_str!("../tests/vectors/crc32c.json")).unwrap();
        assert_eq!(book.vectors.len(), book.count);
        for Vector { name, hex, fields } in book.vectors {
            let crc = crc32c(&hex::decode(hex).unwrap());
            assert_eq!(format!("{crc:#010x}"), fields.crc_value, "{name}");
            assert_eq!(hex::encode(crc.to_le_bytes()), fields.crc_wire, "{name}");
        }
        assert_eq!(crc32c(b"123456789"), 0xE306_9283);
    }

    /// Whichever crate is in use against the portable one and the definition, on each length and
    /// alignment at which a fast one may change its ways.
    #[test]
    fn every_length_and_alignment() {
        let octets = octets(600);
        for len in 0..=512 {
            for start in 0..64 {
                let piece = &octets[start..start + len];
                let crc = crc32c(piece);
                assert_eq!(crc, ::crc32c::crc32c(piece), "{len} octets at {start}");
                if start == len % 64 {
                    assert_eq!(crc, bit_by_bit(piece), "{len} octets at {start}");
                }
            }
        }
    }

    #[test]
    fn every_longer_length() {
        let octets = octets(66_100);
        let lengths = (512..5_000).chain((5_000..66_000).step_by(61)).chain(65_500..=65_544);
        for len in lengths {
            let piece = &octets[len % 61..][..len];
            assert_eq!(crc32c(piece), ::crc32c::crc32c(piece), "{len} octets");
        }
    }

    proptest::proptest! {
        #![proptest_config(proptest::test_runner::Config { cases: 200, ..Default::default() })]
        #[test]
        fn any_octets(octets in proptest::collection::vec(proptest::num::u8::ANY, 0..3_000)) {
            proptest::prop_assert_eq!(crc32c(&octets), ::crc32c::crc32c(&octets));
        }
    }
}
