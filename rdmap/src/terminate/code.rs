//! [`TerminateCode`]: the numbers a Terminate carries.

use std::fmt;

/// Layer, error type and error code of a Terminate, in the order of the wire: `0x12_05` is layer 1, type
/// 2, code 5 (RFC 5040 §4.8, RFC 5041 §7.2, RFC 5044 §8).
///
/// Codes that are not registered are accepted from a peer and shown as numbers (REG-03).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TerminateCode(u16);

impl TerminateCode {
    /// RDMAP, local catastrophic error: also what a user's own Terminate says.
    pub const LOCAL_CATASTROPHIC: Self = Self(0x0000);
    /// RDMAP: invalid `STag`.
    pub const INVALID_STAG: Self = Self(0x0100);
    /// RDMAP: base or bounds violation.
    pub const BOUNDS: Self = Self(0x0101);
    /// RDMAP: access rights violation.
    pub const RIGHTS: Self = Self(0x0102);
    /// RDMAP: `STag` not associated with the stream.
    pub const NOT_ASSOCIATED: Self = Self(0x0103);
    /// RDMAP: tagged offset wraps.
    pub const WRAP: Self = Self(0x0104);
    /// RDMAP: `STag` cannot be invalidated, for reasons of protection.
    pub const NOT_INVALIDATABLE: Self = Self(0x0109);
    /// RDMAP: invalid version.
    pub const INVALID_VERSION: Self = Self(0x0205);
    /// RDMAP: unexpected opcode.
    pub const UNEXPECTED_OPCODE: Self = Self(0x0206);
    /// RDMAP: catastrophic error, this stream only.
    pub const STREAM_CATASTROPHIC: Self = Self(0x0207);
    /// RDMAP: catastrophic error of the whole device.
    pub const GLOBAL_CATASTROPHIC: Self = Self(0x0208);
    /// RDMAP: `STag` cannot be invalidated, there is none.
    pub const INVALIDATE_UNKNOWN: Self = Self(0x0209);
    /// RDMAP: unspecified operation error.
    pub const OPERATION: Self = Self(0x02ff);
    /// DDP: no receive buffer for a message.
    pub const NO_BUFFER: Self = Self(0x1202);
    /// MPA: CRC error.
    pub const CRC: Self = Self(0x2002);
    /// MPA: marker and length disagree.
    pub const MARKER: Self = Self(0x2003);
    /// MPA: local catastrophic error while setting up (RFC 6581 §8).
    pub const SETUP_LOCAL: Self = Self(0x2005);
    /// MPA: insufficient IRD resources (RFC 6581 §8).
    pub const SETUP_IRD: Self = Self(0x2006);
    /// MPA: no matching RTR option (RFC 6581 §8).
    pub const SETUP_RTR: Self = Self(0x2007);

    /// From layer (0 RDMAP, 1 DDP, 2 MPA) and error type, four bits each, and the error code.
    #[must_use]
    pub const fn from_parts(layer: u8, error_type: u8, code: u8) -> Self {
        Self(u16::from_be_bytes([layer << 4 | error_type & 0x0f, code]))
    }

    /// What it says, in words; those of a code that is not registered are about its layer only.
    #[must_use]
    pub const fn meaning(self) -> &'static str {
        match (self.layer(), self.error_type(), self.code()) {
            (0, 0, _) => "RDMAP: local catastrophic error",
            (0, 1, 0x00) => "RDMAP: invalid STag",
            (0, 1, 0x01) => "RDMAP: base or bounds violation",
            (0, 1, 0x02) => "RDMAP: access rights violation",
            (0, 1, 0x03) => "RDMAP: STag not associated with the stream",
            (0, 1, 0x04) => "RDMAP: tagged offset wraps",
            (0, 1 | 2, 0x09) => "RDMAP: STag cannot be invalidated",
            (0, 1, _) => "RDMAP: remote protection error",
            (0, 2, 0x05) => "RDMAP: invalid version",
            (0, 2, 0x06) => "RDMAP: unexpected opcode",
            (0, 2, 0x07) => "RDMAP: catastrophic error of this stream",
            (0, 2, 0x08) => "RDMAP: catastrophic error of the device",
            (0, 2, _) => "RDMAP: remote operation error",
            (1, 0, _) => "DDP: local catastrophic error",
            (1, 1, 0x00) => "DDP, tagged: invalid STag",
            (1, 1, 0x01) => "DDP, tagged: base or bounds violation",
            (1, 1, 0x02) => "DDP, tagged: STag not associated with the stream",
            (1, 1, 0x03) => "DDP, tagged: tagged offset wraps",
            (1, 1, 0x04) => "DDP, tagged: invalid version",
            (1, 1, _) => "DDP, tagged: unknown error",
            (1, 2, 0x01) => "DDP, untagged: invalid queue number",
            (1, 2, 0x02) => "DDP, untagged: no receive for the message",
            (1, 2, 0x03) => "DDP, untagged: MSN out of range",
            (1, 2, 0x04) => "DDP, untagged: invalid message offset",
            (1, 2, 0x05) => "DDP, untagged: message too long for its receive",
            (1, 2, 0x06) => "DDP, untagged: invalid version",
            (1, 2, _) => "DDP, untagged: unknown error",
            (1, ..) => "DDP: unknown error",
            (2, 0, 0x01) => "MPA: TCP connection closed, terminated or lost",
            (2, 0, 0x02) => "MPA: CRC error",
            (2, 0, 0x03) => "MPA: marker and length disagree",
            (2, 0, 0x04) => "MPA: invalid start-up frame",
            (2, 0, 0x05) => "MPA: local catastrophic error while setting up",
            (2, 0, 0x06) => "MPA: insufficient IRD",
            (2, 0, 0x07) => "MPA: no matching ready-to-receive message",
            (2, ..) => "MPA: unknown error",
            (0, ..) => "RDMAP: unknown error",
            _ => "unknown error of an unknown layer",
        }
    }

    /// From the number that [`raw`](Self::raw) gives.
    #[must_use]
    pub const fn from_raw(raw: u16) -> Self {
        Self(raw)
    }

    /// The first two octets of the Terminate header as a number.
    #[must_use]
    pub const fn raw(self) -> u16 {
        self.0
    }

    /// The layer that found the error: 0 RDMAP, 1 DDP, 2 MPA.
    #[must_use]
    pub const fn layer(self) -> u8 {
        self.0.to_be_bytes()[0] >> 4
    }

    /// The error type within the layer.
    #[must_use]
    pub const fn error_type(self) -> u8 {
        self.0.to_be_bytes()[0] & 0x0f
    }

    /// The error code within the type.
    #[must_use]
    pub const fn code(self) -> u8 {
        self.0.to_be_bytes()[1]
    }
}

impl fmt::Display for TerminateCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}/{:02x}", self.layer(), self.error_type(), self.code())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_code_has_words_and_those_sent_have_their_own() {
        for raw in 0..=u16::MAX {
            assert!(!TerminateCode::from_raw(raw).meaning().is_empty());
        }
        let sent = [
            TerminateCode::LOCAL_CATASTROPHIC,
            TerminateCode::INVALID_STAG,
            TerminateCode::BOUNDS,
            TerminateCode::RIGHTS,
            TerminateCode::NOT_ASSOCIATED,
            TerminateCode::WRAP,
            TerminateCode::NOT_INVALIDATABLE,
            TerminateCode::INVALID_VERSION,
            TerminateCode::UNEXPECTED_OPCODE,
            TerminateCode::STREAM_CATASTROPHIC,
            TerminateCode::GLOBAL_CATASTROPHIC,
            TerminateCode::OPERATION,
            TerminateCode::NO_BUFFER,
            TerminateCode::CRC,
            TerminateCode::MARKER,
            TerminateCode::SETUP_LOCAL,
            TerminateCode::SETUP_IRD,
            TerminateCode::SETUP_RTR,
        ];
        let words: std::collections::BTreeSet<_> = sent.iter().map(|code| code.meaning()).collect();
        assert_eq!(words.len(), sent.len());
    }

    /// What is registered does not share its words with what is not, and those tell the type or at least the
    /// layer.
    #[test]
    fn words_are_as_precise_as_the_registry() {
        let registered = [
            (0, 1, &[0, 1, 2, 3, 4, 9][..]),
            (0, 2, &[5, 6, 7, 8, 9]),
            (1, 1, &[0, 1, 2, 3, 4]),
            (1, 2, &[1, 2, 3, 4, 5, 6]),
            (2, 0, &[1, 2, 3, 4, 5, 6, 7]),
        ];
        let words =
            |layer, error_type, code| TerminateCode::from_parts(layer, error_type, code).meaning();
        for (layer, error_type, codes) in registered {
            for code in 0..=u8::MAX {
                let own = words(layer, error_type, code) != words(layer, error_type, 0x7f);
                assert_eq!(own, codes.contains(&code), "{layer}/{error_type}/{code:02x}");
            }
        }
        let types =
            [(0, 0), (0, 1), (0, 2), (0, 3), (1, 0), (1, 1), (1, 2), (1, 3), (2, 1), (3, 0)];
        let of_types = types.map(|(layer, error_type)| words(layer, error_type, 0x7f));
        for (index, (layer, _)) in types.iter().enumerate() {
            assert!(!of_types[..index].contains(&of_types[index]), "{}", of_types[index]);
            let name = ["RDMAP", "DDP", "MPA", "unknown error of an unknown layer"];
            assert!(of_types[index].starts_with(name[usize::from(*layer)]));
        }
    }

    #[test]
    fn codes_read_as_three_numbers() {
        let code = TerminateCode::from_parts(1, 2, 0xff);
        assert_eq!((code.layer(), code.error_type(), code.code()), (1, 2, 0xff));
        assert_eq!(code.to_string(), "1/2/ff");
        assert_eq!(TerminateCode::from_raw(code.raw()), code);
        assert_eq!(TerminateCode::from_parts(0, 0xff, 0).error_type(), 0xf);
    }
}
