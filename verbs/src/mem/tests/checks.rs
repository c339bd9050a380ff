//! What peers and work requests may do with a region.

use iwarp_ddp::{Refusal, Stag};

use super::*;

#[test]
fn rights_that_need_local_write() {
    for access in [Access::REMOTE_WRITE, Access::REMOTE_ATOMIC, Access::REMOTE] {
        assert_eq!(
            MemoryRegion::alloc(domain(), 8, access).unwrap_err(),
            MemoryError::NeedsLocalWrite { access }
        );
        MemoryRegion::alloc(domain(), 8, access | Access::LOCAL_WRITE).unwrap();
    }
    MemoryRegion::alloc(domain(), 8, Access::REMOTE_READ).unwrap();
    let unknown = Access::from_bits_retain(1 << 20 | 1);
    assert_eq!(
        MemoryRegion::alloc(domain(), 8, unknown).unwrap_err(),
        MemoryError::UnknownAccess { bits: 1 << 20 }
    );
}

/// SEC-01, SEC-03, SEC-05, SEC-13: the order of the checks, and each of them.
#[test]
fn remote_checks_in_their_order() {
    let home = domain();
    let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
    let region = MemoryRegion::alloc(home.clone(), 100, access).unwrap();
    let (peer, stranger) = (peer_of(&home), peer_of(&domain()));
    let key = Stag::from_raw(region.rkey());
    let base = region.addr();
    let check = |peer, stag, need, to, len| region.region().check_remote(peer, stag, need, to, len);

    assert_eq!(check(peer, key, Access::REMOTE_WRITE, base + 99, 1), Ok(99));
    assert_eq!(check(peer, key, Access::REMOTE_WRITE, base, 100), Ok(0));
    let bounds = Err(Refusal::Bounds);
    assert_eq!(check(peer, key, Access::REMOTE_WRITE, base, 101), bounds);
    assert_eq!(check(peer, key, Access::REMOTE_WRITE, base + 100, 1), bounds);
    assert_eq!(check(peer, key, Access::REMOTE_WRITE, base - 1, 1), bounds);
    // FC-063
    let top = 0xffff_ffff_ffff_fff0;
    assert_eq!(check(peer, key, Access::REMOTE_WRITE, top, 16), Err(Refusal::Wrap));
    assert_eq!(check(peer, key, Access::REMOTE_WRITE, top, 15), bounds);
    let read_only = Peer { rights: Access::REMOTE_READ, ..peer };
    assert_eq!(check(peer, key, Access::REMOTE_READ, top, 16), Err(Refusal::Rights));
    assert_eq!(check(read_only, key, Access::REMOTE_WRITE, top, 16), Err(Refusal::Rights));
    assert_eq!(check(stranger, key, Access::REMOTE_READ, top, 16), Err(Refusal::NotAssociated));
    let other_key = Stag::from_raw(key.raw() ^ 1);
    assert_eq!(check(stranger, other_key, Access::REMOTE_READ, top, 16), Err(Refusal::InvalidStag));
    region.region().invalidate().unwrap();
    assert_eq!(check(stranger, key, Access::REMOTE_READ, top, 16), Err(Refusal::InvalidStag));
    // DDP-030
    assert_eq!(check(stranger, other_key, Access::REMOTE_READ, top, 0), Ok(0));
}

#[test]
fn a_refused_segment_changes_nothing() {
    let home = domain();
    let region = MemoryRegion::alloc(home.clone(), 64, all_rights()).unwrap();
    region.fill(.., 0x11).unwrap();
    let (peer, key, base) = (peer_of(&home), region.rkey(), region.addr());
    assert_eq!(place(peer, key, base + 60, &[1; 5]), Err(Refusal::Bounds));
    assert_eq!(place(peer, key ^ 0x80, base, &[1; 5]), Err(Refusal::InvalidStag));
    assert_eq!(place(peer, 0, 0, &[1; 5]), Err(Refusal::InvalidStag));
    assert_eq!(place(peer_of(&domain()), key, base, &[1; 5]), Err(Refusal::NotAssociated));
    assert!(contents(&region).iter().all(|&octet| octet == 0x11));
}

#[test]
fn tagged_offsets_may_start_at_0_or_anywhere() {
    let home = domain();
    let access = all_rights() | Access::ZERO_BASED;
    let region = MemoryRegion::alloc(home.clone(), 16, access).unwrap();
    assert_eq!(region.addr(), 0);
    place(peer_of(&home), region.rkey(), 14, b"ab").unwrap();
    assert_eq!(place(peer_of(&home), region.rkey(), 15, b"ab"), Err(Refusal::Bounds));

    let mut octets = vec![0_u8; 16];
    let at = std::ptr::NonNull::new(octets.as_mut_ptr()).unwrap();
    let register = |iova| {
        // SAFETY: the vector outlives the region, and is not touched while that exists.
        unsafe { MemoryRegion::register_raw(home.clone(), at, 16, iova, all_rights()) }
    };
    let region = register(0xffff_0000_0000_0000).unwrap();
    place(peer_of(&home), region.rkey(), 0xffff_0000_0000_0004, b"abcd").unwrap();
    region.deregister().unwrap();
    // FC-060: the end must be an offset, too.
    let iova = u64::MAX - 15;
    assert_eq!(register(iova).unwrap_err(), MemoryError::AddressWraps { at: iova, len: 16 });
    register(iova - 1).unwrap().deregister().unwrap();
    assert_eq!(octets[4..8], *b"abcd");
}

#[test]
fn a_region_beyond_the_address_space_is_refused() {
    let at =
        std::ptr::NonNull::without_provenance(std::num::NonZero::new(usize::MAX - 4095).unwrap());
    // SAFETY: refused before anything is touched.
    let refused = unsafe { MemoryRegion::register_raw(domain(), at, 4096, 0, all_rights()) };
    assert!(matches!(refused, Err(MemoryError::AddressWraps { .. })), "{refused:?}");
    let refused = MemoryRegion::alloc(domain(), usize::MAX, all_rights());
    assert_eq!(refused.unwrap_err(), MemoryError::TooLarge { len: usize::MAX });
}

/// FC-058: a region of no octets grants nothing.
#[test]
fn a_region_of_no_octets_is_no_blank_cheque() {
    let home = domain();
    let region = MemoryRegion::alloc(home.clone(), 0, all_rights()).unwrap();
    let (peer, key, base) = (peer_of(&home), region.rkey(), region.addr());
    assert_eq!(place(peer, key, base, b"x"), Err(Refusal::Bounds));
    assert_eq!(fetch(peer, key, base, 1), Err(Refusal::Bounds));
    assert_eq!(place(peer, key, base, b""), Ok(()));
    let empty = MemoryRegion::register(home, Vec::new(), all_rights()).unwrap();
    assert!(empty.region().is_empty());
    assert_eq!(
        empty.region().load_u64(0).unwrap_err(),
        MemoryError::OutOfBounds { offset: 0, len: 8, size: 0 }
    );
    assert!(empty.deregister().is_empty());
}

/// FC-063: 64-bit arithmetic; pages that are not touched are not there.
#[test]
#[cfg(all(target_pointer_width = "64", not(miri)))]
fn a_region_larger_than_4_gib() {
    const LINE: u64 = 1 << 32;
    let home = domain();
    let region = MemoryRegion::alloc(home.clone(), 6 << 30, all_rights()).unwrap();
    let peer = peer_of(&home);
    let payload: Vec<u8> = (0..1_u32 << 20).map(|at| at.to_le_bytes()[1]).collect();
    let to = region.addr() + LINE - (1 << 19);
    place(peer, region.rkey(), to, &payload).unwrap();
    assert_eq!(fetch(peer, region.rkey(), to, payload.len()).unwrap(), payload);
    let mut across = vec![0; 16];
    region.read_at(usize::try_from(LINE).unwrap() - 8, &mut across).unwrap();
    assert_eq!(across, payload[(1 << 19) - 8..(1 << 19) + 8]);
    assert_eq!(fetch(peer, region.rkey(), region.addr(), 1).unwrap(), [0], "no wrap to the start");
    let wrapped = 0xffff_ffff_ffff_fff0;
    assert_eq!(place(peer, region.rkey(), wrapped, &[0; 32]), Err(Refusal::Wrap));
    region.deregister().unwrap();
}

#[test]
fn work_requests_are_checked_against_domain_rights_and_bounds() {
    let home = domain();
    let source = MemoryRegion::alloc(home.clone(), 16, Access::empty()).unwrap();
    let base = source.addr();
    let check =
        |domain: &Domain, need, at, len| source.region().check_local(domain.id, need, at, len);
    assert_eq!(check(&home, Access::empty(), base + 8, 8), Ok(8));
    assert_eq!(
        check(&home, Access::empty(), base + 8, 9),
        Err(MemoryError::OutOfBounds { offset: base + 8, len: 9, size: 16 })
    );
    let sink = Access::LOCAL_WRITE;
    let rights = MemoryError::Rights { need: sink, have: Access::empty() };
    assert_eq!(check(&home, sink, base, 1), Err(rights));
    assert_eq!(source.region().copy_in(0, b"x"), Err(rights));
    let foreign = Err(MemoryError::ForeignDomain);
    assert_eq!(check(&domain(), sink, base, 1), foreign);
    assert_eq!(check(&domain(), sink, base, 0), Ok(0), "no octets, no checks");

    source.region().invalidate().unwrap();
    assert_eq!(check(&home, Access::empty(), base, 1), Err(MemoryError::Invalidated));
    assert_eq!(source.region().copy_out(0, &mut [0]), Err(MemoryError::Invalidated));
    source.clone().deregister().unwrap();
    assert_eq!(check(&home, Access::empty(), base, 1), Err(MemoryError::Deregistered));
    assert_eq!(source.deregister(), Err(MemoryError::Deregistered));
}
