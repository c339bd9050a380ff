//! Messages that RDMAP itself reads: the Read Request. (Terminate has its own file.)

use iwarp_ddp::Stag;
use zerocopy::{FromBytes, IntoBytes};

use crate::wire::{READ_REQUEST_LEN, ReadRequestLayout};

/// RDMA Read Request: what to read, and where the response goes (RFC 5040 §4.4).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ReadRequest {
    /// Names the requester's buffer. The responder copies it into the response unexamined.
    pub sink_stag: Stag,
    /// Tagged offset in the requester's buffer, copied likewise.
    pub sink_offset: u64,
    /// Octets to read.
    pub len: u32,
    /// Names the responder's buffer.
    pub source_stag: Stag,
    /// Tagged offset in the responder's buffer.
    pub source_offset: u64,
}

impl ReadRequest {
    /// Reads the header; `None` unless `octets` are exactly one ([`READ_REQUEST_LEN`]).
    #[must_use]
    pub fn parse(octets: &[u8]) -> Option<Self> {
        let layout = ReadRequestLayout::ref_from_bytes(octets).ok()?;
        Some(Self {
            sink_stag: Stag::from_raw(layout.sink_stag.get()),
            sink_offset: layout.sink_offset.get(),
            len: layout.len.get(),
            source_stag: Stag::from_raw(layout.source_stag.get()),
            source_offset: layout.source_offset.get(),
        })
    }

    /// The octets on the wire.
    #[must_use]
    pub fn to_bytes(self) -> [u8; READ_REQUEST_LEN] {
        // RDMAP-006
        let layout = ReadRequestLayout {
            sink_stag: self.sink_stag.raw().into(),
            sink_offset: self.sink_offset.into(),
            len: self.len.into(),
            source_stag: self.source_stag.raw().into(),
            source_offset: self.source_offset.into(),
        };
        let mut octets = [0; READ_REQUEST_LEN];
        octets.copy_from_slice(layout.as_bytes());
        octets
    }

    /// What is left of the request when `answered` octets of it have gone out.
    #[must_use]
    pub fn advanced(self, answered: u32) -> Self {
        // RDMAP-072. The requester's offset is its own affair and may wrap.
        Self {
            sink_offset: self.sink_offset.wrapping_add(u64::from(answered)),
            len: self.len.saturating_sub(answered),
            source_offset: self.source_offset.wrapping_add(u64::from(answered)),
            ..self
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn octets_are_those_of_the_figure() {
        // RDMAP-006
        let request = ReadRequest {
            sink_stag: Stag::from_raw(0x1234_5678),
            sink_offset: 0x2000,
            len: 100,
            source_stag: Stag::from_raw(0x00be_ef01),
            source_offset: 0x1000,
        };
        let octets = hex::decode("1234567800000000000020000000006400beef010000000000001000");
        assert_eq!(request.to_bytes().to_vec(), octets.unwrap());
    }

    #[test]
    fn one_octet_less_or_more_is_no_request() {
        // RDMAP-081
        let octets = [0; READ_REQUEST_LEN + 1];
        assert!(ReadRequest::parse(&octets).is_none());
        assert!(ReadRequest::parse(&octets[..READ_REQUEST_LEN - 1]).is_none());
        assert!(ReadRequest::parse(&octets[..READ_REQUEST_LEN]).is_some());
        assert!(ReadRequest::parse(&[]).is_none());
    }

    proptest! {
        #[test]
        fn octets_and_values_agree(octets: [u8; READ_REQUEST_LEN]) {
            let request = ReadRequest::parse(&octets).unwrap();
            prop_assert_eq!(request.to_bytes(), octets);
        }

        #[test]
        fn advancing_keeps_the_end(octets: [u8; READ_REQUEST_LEN], answered: u32) {
            // RDMAP-072
            let request = ReadRequest::parse(&octets).unwrap();
            let answered = answered.min(request.len);
            let rest = request.advanced(answered);
            prop_assert_eq!(rest.len, request.len.wrapping_sub(answered));
            prop_assert_eq!(
                rest.source_offset.wrapping_add(u64::from(rest.len)),
                request.source_offset.wrapping_add(u64::from(request.len))
            );
            prop_assert_eq!(rest.advanced(rest.len).len, 0);
        }
    }
}
