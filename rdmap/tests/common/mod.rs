//! What the tests of this crate share: memory, a peer that writes its own octets, streams that are driven by hand or
//! joined in pairs, and what TCP carried in a recording.
#![allow(
    dead_code,
    clippy::arithmetic_side_effects,
    clippy::cast_possible_truncation,
    clippy::indexing_slicing,
    clippy::unwrap_used,
    clippy::missing_panics_doc,
    clippy::must_use_candidate,
    clippy::struct_excessive_bools,
    unreachable_pub,
    reason = "support code of tests, of which no test file uses all"
)]

pub mod endpoint;
pub mod memory;
pub mod pair;
pub mod pcap;
pub mod peer;
pub mod vectors;

use std::time::Instant;

use iwarp_mpa::{FpduLimit, Framing, Negotiated, Role, SizePlan};
use iwarp_rdmap::StreamConfig;

/// Some moment. Time in tests is counted from here.
pub fn start() -> Instant {
    // The core is told the time; a test has to get one from somewhere.
    #[allow(clippy::disallowed_methods, reason = "a first instant, for virtual time")]
    Instant::now()
}

/// Framing with CRC and without markers.
pub const CRC: Framing = Framing { send_markers: false, receive_markers: false, crc: true };

/// FPDUs of one segment of 1460 octets.
pub fn ethernet() -> SizePlan {
    SizePlan::new(1460, FpduLimit::Emss, false)
}

/// A plain stream: CRC, no markers, IRD and ORD 2.
pub fn config(role: Role) -> StreamConfig {
    let negotiated = Negotiated {
        role,
        revision: 2,
        crc: true,
        send_markers: false,
        receive_markers: false,
        ird: 2,
        ord: 2,
        peer_ird: Some(2),
        peer_ord: Some(2),
        rtr: None,
        private_data: bytes::Bytes::new(),
    };
    StreamConfig::new(&negotiated, ethernet())
}

/// Octet `i` of a message in the test vectors.
pub fn ramp(i: usize) -> u8 {
    (i + (i >> 8)) as u8
}

/// The first `len` octets of a message in the test vectors.
pub fn ramp_of(len: usize) -> Vec<u8> {
    (0..len).map(ramp).collect()
}
