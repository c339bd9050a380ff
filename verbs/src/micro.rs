//! Single steps of the engine that no public call reaches alone, for `benches/`. Not part of the interface.

use iwarp_ddp::Stag;

use crate::mem::{Access, KeyTable, Peer};
use crate::pd::ProtectionDomain;

/// Places a tagged segment as the engine does for a peer with all rights in this domain: the key is looked
/// up, and all checks are made before the copy. Whether it was placed.
#[must_use]
pub fn place(pd: &ProtectionDomain, key: u32, offset: u64, payload: &[u8]) -> bool {
    let domain = pd.0.id;
    let peer = Peer { domain, stream: domain, rights: Access::all(), invalidates: true };
    let stag = Stag::from_raw(key);
    let region = KeyTable::of_process().lookup(stag);
    region.is_some_and(|region| region.place(peer, stag, offset, payload).is_ok())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Device, DeviceConfig};

    #[test]
    fn octets_are_placed_only_within_the_region_and_its_domain() {
        let device = Device::open(DeviceConfig::default()).unwrap();
        let pd = device.alloc_pd();
        let region = pd.alloc(16, Access::LOCAL_WRITE | Access::REMOTE_WRITE).unwrap();
        let (key, addr) = (region.rkey(), region.remote().addr);
        assert!(place(&pd, key, addr + 8, &[7; 8]));
        assert_eq!(region.load_u64(8).unwrap(), u64::from_ne_bytes([7; 8]));
        assert!(!place(&pd, key, addr + 9, &[8; 8]), "beyond the end");
        assert!(!place(&pd, key ^ 1, addr, &[8; 8]), "another key");
        assert!(!place(&device.alloc_pd(), key, addr, &[8; 8]), "another domain");
        assert_eq!(region.load_u64(0).unwrap(), 0);
    }
}
