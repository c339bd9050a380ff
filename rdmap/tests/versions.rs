//! The versions of DDP and RDMAP that go with the revisions of MPA.
#![allow(clippy::indexing_slicing, reason = "a test")]

mod common;

use common::endpoint::{Endpoint, SEND, read, write};
use common::ethernet;
use common::memory::TestMemory;
use common::peer::seen;
use iwarp_mpa::{Negotiated, Role};
use iwarp_rdmap::StreamConfig;

#[test]
fn both_revisions_of_mpa_go_with_version_1() {
    // MPA-035, MPA-036
    for revision in [1, 2] {
        let negotiated = Negotiated {
            role: Role::Initiator,
            revision,
            crc: true,
            send_markers: false,
            receive_markers: false,
            ird: 2,
            ord: 2,
            peer_ird: None,
            peer_ord: None,
            rtr: None,
            private_data: bytes::Bytes::new(),
        };
        let config = StreamConfig::new(&negotiated, ethernet());
        let mut endpoint = Endpoint::new(config, TestMemory::new(64));
        for (id, kind) in (0..).zip([SEND, write(9, 0), read(8, 0)]) {
            endpoint.submit(id, kind, 0, 4);
        }
        let sent = seen(&endpoint.transmit());
        let versions: Vec<_> =
            sent.iter().map(|fpdu| (fpdu.ulpdu[0] & 0x03, fpdu.ulpdu[1] >> 6)).collect();
        assert_eq!(versions, [(1, 1); 3], "revision {revision}");
    }
}
