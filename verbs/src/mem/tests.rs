//! Regions and keys as peers, work requests and programs meet them.

use std::collections::{HashSet, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use iwarp_ddp::{Refusal, Stag};
use proptest::prelude::*;

use super::*;

fn domain() -> Domain {
    Domain { id: PdId::new(), parent: Arc::new(()) }
}

fn all_rights() -> Access {
    Access::LOCAL_WRITE | Access::REMOTE
}

fn peer_of(domain: &Domain) -> Peer {
    Peer { domain: domain.id, rights: Access::REMOTE, invalidates: true }
}

/// What the engine does with a peer's tagged segment.
fn place(peer: Peer, stag: u32, to: u64, payload: &[u8]) -> Result<(), Refusal> {
    // DDP-030
    if payload.is_empty() {
        return Ok(());
    }
    let stag = Stag::from_raw(stag);
    let region = KeyTable::of_process().lookup(stag).ok_or(Refusal::InvalidStag)?;
    region.place(peer, stag, to, payload)
}

fn fetch(peer: Peer, stag: u32, to: u64, len: usize) -> Result<Vec<u8>, Refusal> {
    if len == 0 {
        return Ok(Vec::new());
    }
    let stag = Stag::from_raw(stag);
    let region = KeyTable::of_process().lookup(stag).ok_or(Refusal::InvalidStag)?;
    let mut into = vec![0; len];
    region.fetch(peer, stag, to, &mut into).map(|()| into)
}

fn contents(region: &MemoryRegion) -> Vec<u8> {
    let mut octets = vec![0; region.len()];
    region.read_at(0, &mut octets).unwrap();
    octets
}

#[test]
fn memory_of_our_own_is_zeroed_and_starts_at_a_page() {
    let lengths: &[usize] = if cfg!(miri) { &[0, 1, 4095] } else { &[0, 1, 4095, 70_000, 1 << 20] };
    for &len in lengths {
        let region = MemoryRegion::alloc(domain(), len, all_rights()).unwrap();
        assert_eq!(region.len(), len);
        assert!(region.as_ptr().addr().is_multiple_of(4096));
        assert_eq!(region.addr(), region.as_ptr().addr() as u64);
        assert!(contents(&region).iter().all(|&octet| octet == 0));
    }
}

#[test]
fn a_given_buffer_comes_back_with_what_was_placed() {
    fn check<B: StableBytes + AsRef<[u8]>>(buffer: B) {
        let domain = domain();
        let owned = MemoryRegion::register(domain.clone(), buffer, all_rights()).unwrap();
        let region = owned.region().clone();
        place(peer_of(&domain), region.rkey(), region.addr() + 2, b"hello").unwrap();
        assert_eq!(contents(&region), b"..hello.");
        let buffer = owned.deregister();
        assert_eq!(buffer.as_ref(), b"..hello.");
        assert_eq!(region.read_at(0, &mut [0]), Err(MemoryError::Deregistered));
        assert_eq!(
            place(peer_of(&domain), region.rkey(), region.addr(), b"x"),
            Err(Refusal::InvalidStag)
        );
    }
    check(vec![b'.'; 8]);
    check(vec![b'.'; 8].into_boxed_slice());
    check(bytes::BytesMut::from(&[b'.'; 8][..]));

    let domain = domain();
    let boxed = Box::new([b'.'; 8]);
    let owned = MemoryRegion::register(domain.clone(), boxed, all_rights()).unwrap();
    owned.region().write_at(0, b"ab").unwrap();
    assert_eq!(*owned.deregister(), *b"ab......");
    let leaked: &'static mut [u8] = Box::leak(vec![b'.'; 8].into_boxed_slice());
    let owned = MemoryRegion::register(domain, leaked, all_rights()).unwrap();
    owned.region().write_at(6, b"ab").unwrap();
    let leaked = owned.deregister();
    assert_eq!(leaked, b"......ab");
    // SAFETY: leaked above as a box, and used by nobody any more.
    drop(unsafe { Box::from_raw(leaked) });
}

#[test]
fn a_refused_buffer_comes_back() {
    let refused =
        MemoryRegion::register(domain(), vec![1, 2, 3], Access::REMOTE_WRITE).unwrap_err();
    assert_eq!(refused.cause, MemoryError::NeedsLocalWrite { access: Access::REMOTE_WRITE });
    assert_eq!(refused.buffer, [1, 2, 3]);
    assert!(refused.to_string().contains("LOCAL_WRITE"), "{refused}");
}

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
    region.region().invalidate();
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

    source.region().invalidate();
    assert_eq!(check(&home, Access::empty(), base, 1), Err(MemoryError::Invalidated));
    assert_eq!(source.region().copy_out(0, &mut [0]), Err(MemoryError::Invalidated));
    source.clone().deregister().unwrap();
    assert_eq!(check(&home, Access::empty(), base, 1), Err(MemoryError::Deregistered));
    assert_eq!(source.deregister(), Err(MemoryError::Deregistered));
}

/// The program writes what it allocated or gave away, but raw memory only if it said so.
#[test]
fn what_the_program_may_write() {
    let ours = MemoryRegion::alloc(domain(), 8, Access::empty()).unwrap();
    ours.write_at(0, b"x").unwrap();
    let mut octets = 0_u64;
    let at = std::ptr::NonNull::from(&mut octets).cast();
    // SAFETY: readable, and only read.
    let raw =
        unsafe { MemoryRegion::register_raw(domain(), at, 8, 0, Access::REMOTE_READ) }.unwrap();
    let refused = Err(MemoryError::Rights { need: Access::LOCAL_WRITE, have: Access::REMOTE_READ });
    assert_eq!(raw.write_at(0, b"x"), refused);
    assert_eq!(raw.fill(.., 1), refused);
    assert_eq!(raw.store_u64(0, 1), refused);
    assert_eq!(raw.load_u64(0), Ok(0));
    raw.deregister().unwrap();
}

#[test]
fn words_must_be_aligned_and_inside() {
    let region = MemoryRegion::alloc(domain(), 20, all_rights()).unwrap();
    region.store_u64(8, 0x0102_0304_0506_0708).unwrap();
    assert_eq!(region.load_u64(8), Ok(0x0102_0304_0506_0708));
    assert_eq!(contents(&region)[8..16], 0x0102_0304_0506_0708_u64.to_ne_bytes());
    assert_eq!(region.load_u64(4), Err(MemoryError::Misaligned { offset: 4 }));
    let outside = MemoryError::OutOfBounds { offset: 16, len: 8, size: 20 };
    assert_eq!(region.store_u64(16, 0), Err(outside));
    assert_eq!(
        region.read_at(usize::MAX, &mut [0]).unwrap_err().to_string(),
        "1 octets at 18446744073709551615 are outside of 20 octets"
    );
}

#[test]
fn slices_stay_inside() {
    let region = MemoryRegion::alloc(domain(), 100, all_rights()).unwrap();
    let slice = region.slice(10..=19).unwrap();
    assert_eq!((slice.offset(), slice.len()), (10, 10));
    let inner = slice.slice(5..).unwrap();
    assert_eq!((inner.offset(), inner.len()), (15, 5));
    assert_eq!(inner.remote().addr, region.addr() + 15);
    assert!(slice.slice(5..11).is_err());
    assert!(region.slice(..101).is_err());
    assert!(region.slice(101..).is_err());
    assert!(region.slice(..=usize::MAX).is_err());
    #[expect(clippy::reversed_empty_ranges, reason = "what is tested")]
    let reversed = region.slice(3..2);
    assert!(reversed.is_err());
    assert!(region.slice(100..).unwrap().is_empty());
    assert_eq!(region.as_slice_all().len(), 100);

    let remote = region.remote();
    let part = remote.slice(1..3).unwrap();
    assert_eq!((part.addr, part.len, part.rkey), (region.addr() + 1, 2, region.rkey()));
    assert!(remote.slice(..=u64::MAX).is_err());
    assert!(remote.slice(100..=100).is_err());
    let high = RemoteMemory { addr: u64::MAX, len: 8, rkey: 1 };
    assert!(matches!(high.slice(1..2), Err(MemoryError::AddressWraps { .. })));
}

#[test]
fn advertised_memory_travels_in_20_octets() {
    let memory = RemoteMemory { addr: 0x0102_0304_0506_0708, len: 9, rkey: 0xa1b2_c3d4 };
    let octets = memory.to_bytes();
    assert_eq!(hex::encode(octets), "01020304050607080000000000000009a1b2c3d4");
    assert_eq!(RemoteMemory::from_bytes(octets), memory);
}

#[test]
fn invalidation_ends_the_key_but_not_the_program_s_own_access() {
    let home = domain();
    let region = MemoryRegion::alloc(home.clone(), 16, all_rights()).unwrap();
    let (peer, key) = (peer_of(&home), Stag::from_raw(region.rkey()));
    place(peer, key.raw(), region.addr(), b"result").unwrap();
    assert_eq!(
        region.region().check_invalidate(peer_of(&domain()), key),
        Err(Refusal::NotAssociated)
    );
    let powerless = Peer { rights: Access::empty(), ..peer };
    assert_eq!(region.region().check_invalidate(powerless, key), Err(Refusal::Rights));
    // FC-062: the check alone changes nothing.
    assert_eq!(region.region().check_invalidate(peer, key), Ok(()));
    assert!(region.is_valid());
    region.region().invalidate();
    assert!(!region.is_valid());
    assert_eq!(place(peer, key.raw(), region.addr(), b"late"), Err(Refusal::InvalidStag));
    assert_eq!(fetch(peer, key.raw(), region.addr(), 1), Err(Refusal::InvalidStag));
    assert_eq!(contents(&region)[..6], *b"result");
    // A second invalidation of the same key succeeds.
    assert_eq!(region.region().check_invalidate(peer, key), Ok(()));
    region.region().invalidate();
    let local = MemoryRegion::alloc(home, 16, Access::LOCAL_WRITE).unwrap();
    let key = Stag::from_raw(local.rkey());
    assert_eq!(local.region().check_invalidate(peer, key), Err(Refusal::Rights));
}

#[test]
fn a_region_holds_its_domain_until_it_is_deregistered() {
    let parent = Arc::new(());
    let domain = || Domain { id: PdId::new(), parent: Arc::<()>::clone(&parent) };
    let region = MemoryRegion::alloc(domain(), 8, all_rights()).unwrap();
    let slice = region.as_slice_all();
    assert_eq!(Arc::strong_count(&parent), 2);
    region.deregister().unwrap();
    assert_eq!(Arc::strong_count(&parent), 1, "though a slice is still there");
    drop(slice);
    let region = MemoryRegion::alloc(domain(), 8, all_rights()).unwrap();
    let key = Stag::from_raw(region.rkey());
    assert!(KeyTable::of_process().lookup(key).is_some());
    drop(region);
    assert_eq!(Arc::strong_count(&parent), 1);
    assert!(KeyTable::of_process().lookup(key).is_none(), "the last handle ends the region");
}

/// A dropped handle, or an `Owned` that nobody asked back, does not pull memory from under a request.
#[test]
fn a_slice_keeps_its_memory() {
    struct Noted(Vec<u8>, Arc<AtomicBool>);
    // SAFETY: as for the vector inside.
    unsafe impl StableBytes for Noted {
        fn as_mut_ptr(&mut self) -> *mut u8 {
            self.0.as_mut_ptr()
        }
        fn size(&self) -> usize {
            self.0.len()
        }
    }
    impl Drop for Noted {
        fn drop(&mut self) {
            self.1.store(true, Ordering::Relaxed);
        }
    }
    let dropped = Arc::new(AtomicBool::new(false));
    let buffer = Noted(vec![7; 32], Arc::clone(&dropped));
    let owned = MemoryRegion::register(domain(), buffer, all_rights()).unwrap();
    let slice = owned.region().slice(8..).unwrap();
    drop(owned);
    assert!(!dropped.load(Ordering::Relaxed));
    let mut octets = [0; 24];
    slice.region().region().copy_out(slice.offset(), &mut octets).unwrap();
    assert_eq!(octets, [7; 24]);
    drop(slice);
    assert!(dropped.load(Ordering::Relaxed));
}

#[test]
fn as_slice_shows_what_was_written() {
    let region = MemoryRegion::alloc(domain(), 4, all_rights()).unwrap();
    region.write_at(0, b"abcd").unwrap();
    // SAFETY: nobody writes while the slice lives.
    assert_eq!(unsafe { region.as_slice() }, b"abcd");
}

/// FC-059: keys of living regions stay apart, those of the last dead ones name nothing.
#[test]
fn keys_over_a_long_life() {
    let (rounds, live, remembered) = match () {
        () if cfg!(miri) => (60, 10, 10),
        () if cfg!(debug_assertions) => (1 << 17, 1000, 100),
        () => (1 << 20, 1000, 100),
    };
    let home = domain();
    let mut regions = VecDeque::new();
    let mut freed = VecDeque::new();
    let table = KeyTable::of_process();
    for round in 0..rounds {
        let region = MemoryRegion::alloc(home.clone(), 0, Access::REMOTE_READ).unwrap();
        assert_ne!(region.rkey(), 0);
        assert_ne!(region.rkey() >> 8, 0);
        regions.push_back(region);
        if regions.len() > live {
            let oldest: MemoryRegion = regions.pop_front().unwrap();
            freed.push_back(Stag::from_raw(oldest.rkey()));
            if round % 2 == 0 { oldest.deregister().unwrap() } else { drop(oldest) }
        }
        if freed.len() > remembered {
            freed.pop_front();
        }
        if round % 1024 == 0 || round == rounds - 1 {
            for &stag in &freed {
                assert!(table.lookup(stag).is_none(), "{stag} came back to life");
            }
            for region in &regions {
                let found = table.lookup(Stag::from_raw(region.rkey())).unwrap();
                assert!(Arc::ptr_eq(&found, region.region()));
            }
        }
    }
    let keys: HashSet<_> = regions.iter().map(|region| region.rkey() >> 8).collect();
    assert_eq!(keys.len(), live);
}

/// SEC-07: every bit of a key is as good as a coin, successive keys are unrelated, and the index space
/// is used all over.
#[test]
#[cfg_attr(miri, ignore = "many regions")]
fn keys_are_unpredictable() {
    const KEYS: u32 = 1 << 15;
    let home = domain();
    let regions: Vec<_> = (0..KEYS)
        .map(|_| MemoryRegion::alloc(home.clone(), 0, Access::REMOTE_READ).unwrap())
        .collect();
    let keys: Vec<u32> = regions.iter().map(MemoryRegion::rkey).collect();
    // Six standard deviations of a fair coin: a good source fails once in 10^7 runs.
    let tolerance = 6.0 * (f64::from(KEYS) / 4.0).sqrt();
    let balanced = |what: &str, words: &mut dyn Iterator<Item = u32>| {
        let mut ones = [0_u32; 32];
        for word in words {
            for (bit, ones) in ones.iter_mut().enumerate() {
                *ones += word >> bit & 1;
            }
        }
        for (bit, &ones) in ones.iter().enumerate() {
            let off = (f64::from(ones) - f64::from(KEYS) / 2.0).abs();
            assert!(off < tolerance, "bit {bit} of {what}: {ones} of {KEYS}");
        }
    };
    balanced("the key", &mut keys.iter().copied());
    balanced("two successive keys", &mut keys.windows(2).map(|pair| pair[0] ^ pair[1]));
    let steps: HashSet<_> = keys.windows(2).map(|pair| pair[1].wrapping_sub(pair[0])).collect();
    assert!(steps.len() > keys.len() * 9 / 10, "successive keys lie in a pattern");
    let mut used = [0_u32; 256];
    for key in &keys {
        used[(key >> 24) as usize] += 1;
    }
    let expected = f64::from(KEYS) / 256.0;
    let chi2: f64 = used.iter().map(|&n| (f64::from(n) - expected).powi(2) / expected).sum();
    // 255 degrees of freedom: mean 255, standard deviation 22.6.
    assert!((100.0..420.0).contains(&chi2), "the index space is used unevenly: {chi2}");
}

/// FC-061, SEC-04: whoever got memory back finds that nothing is placed in it any more.
#[test]
fn deregistration_is_final_during_streams_of_copies() {
    let until = Instant::now() + Duration::from_secs(u64::from(!cfg!(miri)));
    let home = domain();
    let peer = peer_of(&home);
    let target = AtomicU64::new(0);
    let done = AtomicBool::new(false);
    let placed = AtomicU64::new(0);
    thread::scope(|scope| {
        for stamp in [0x11, 0x22] {
            let (target, done, placed) = (&target, &done, &placed);
            scope.spawn(move || {
                let payload = vec![stamp; 4096];
                while !done.load(Ordering::Relaxed) {
                    let key = u32::try_from(target.load(Ordering::Acquire)).unwrap();
                    match place(peer, key, 0, &payload) {
                        Ok(()) => _ = placed.fetch_add(1, Ordering::Relaxed),
                        Err(Refusal::InvalidStag) => thread::yield_now(),
                        Err(other) => panic!("{other}"),
                    }
                }
            });
        }
        let mut rounds = 0_u32;
        while rounds < 3 || Instant::now() < until {
            let buffer = vec![0_u8; 4096];
            let access = all_rights() | Access::ZERO_BASED;
            let owned = MemoryRegion::register(home.clone(), buffer, access).unwrap();
            let before = placed.load(Ordering::Relaxed);
            target.store(u64::from(owned.region().rkey()), Ordering::Release);
            while placed.load(Ordering::Relaxed) < before + 2 {
                thread::yield_now();
            }
            // Every other time by the peer first.
            if rounds.is_multiple_of(2) {
                owned.region().region().invalidate();
                let key = Stag::from_raw(owned.region().rkey());
                assert_eq!(place(peer, key.raw(), 0, &[1]), Err(Refusal::InvalidStag));
                owned.region().fill(.., 0x55).unwrap();
                thread::yield_now();
                assert!(contents(owned.region()).iter().all(|&octet| octet == 0x55));
            }
            let mut buffer = owned.deregister();
            buffer.fill(0x33);
            for _ in 0..20 {
                thread::yield_now();
            }
            assert!(std::hint::black_box(&buffer).iter().all(|&octet| octet == 0x33));
            rounds += 1;
        }
        done.store(true, Ordering::Relaxed);
    });
}

/// The program's own copies end before the buffer is given back, too.
#[test]
fn deregistration_waits_for_the_program_s_other_threads() {
    let rounds = if cfg!(miri) { 3 } else { 300 };
    for _ in 0..rounds {
        let owned = MemoryRegion::register(domain(), vec![0_u8; 512], all_rights()).unwrap();
        let region = owned.region().clone();
        thread::scope(|scope| {
            for stamp in 1..3_u8 {
                let region = &region;
                scope.spawn(move || {
                    while region.write_at(0, &[stamp; 512]).is_ok() {
                        let _ = region.load_u64(0);
                    }
                });
            }
            thread::yield_now();
            let mut buffer = owned.deregister();
            buffer.fill(9);
            thread::yield_now();
            assert!(std::hint::black_box(&buffer).iter().all(|&octet| octet == 9));
        });
    }
}

#[derive(Clone, Debug)]
enum Step {
    Register { domain: usize, len: usize, access: u32 },
    Deregister { region: usize },
    Drop { region: usize },
    Invalidate { domain: usize, region: usize },
    Write { domain: usize, region: usize, offset: i64, len: usize },
    Read { domain: usize, region: usize, offset: i64, len: usize },
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let ranges = || (0_usize..2, 0_usize..8, -4_i64..80, 0_usize..40);
    let step = prop_oneof![
        3 => (0_usize..2, 0_usize..64, 0_u32..16).prop_map(|(domain, len, access)| {
            Step::Register { domain, len, access }
        }),
        1 => (0_usize..8).prop_map(|region| Step::Deregister { region }),
        1 => (0_usize..8).prop_map(|region| Step::Drop { region }),
        1 => (0_usize..2, 0_usize..8).prop_map(|(domain, region)| Step::Invalidate { domain, region }),
        6 => ranges().prop_map(|(domain, region, offset, len)| {
            Step::Write { domain, region, offset, len }
        }),
        4 => ranges().prop_map(|(domain, region, offset, len)| {
            Step::Read { domain, region, offset, len }
        }),
    ];
    prop::collection::vec(step, 1..80)
}

/// What a region ought to be: plain values.
struct Model {
    handle: Option<MemoryRegion>,
    key: u32,
    base: u64,
    domain: usize,
    access: Access,
    valid: bool,
    octets: Vec<u8>,
    /// The region is the middle of this.
    memory: Vec<u8>,
}

const MARGIN: usize = 16;

impl Model {
    fn allows(
        &self,
        domain: usize,
        need: Access,
        offset: i64,
        len: usize,
    ) -> Result<usize, Refusal> {
        if len == 0 {
            return Ok(0);
        }
        if !self.valid {
            return Err(Refusal::InvalidStag);
        }
        if self.domain != domain {
            return Err(Refusal::NotAssociated);
        }
        if !self.access.contains(need) {
            return Err(Refusal::Rights);
        }
        match usize::try_from(offset) {
            Ok(offset) if offset + len <= self.octets.len() => Ok(offset),
            _ => Err(Refusal::Bounds),
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: if cfg!(miri) { 3 } else { 300 },
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    /// Random lives of regions against the model: an access succeeds exactly if the model says so, and
    /// no octet outside of the region changes.
    #[test]
    fn accesses_are_allowed_exactly_as_registered(steps in steps()) {
        let domains = [domain(), domain()];
        let mut models: Vec<Model> = Vec::new();
        let mut stamp = 0_u8;
        for step in steps {
            match step {
                Step::Register { domain, len, access } => {
                    let access = Access::from_bits_truncate(access);
                    let mut memory = vec![0xee; len + 2 * MARGIN];
                    let at = std::ptr::NonNull::new(memory.as_mut_ptr().wrapping_add(MARGIN)).unwrap();
                    let base = at.addr().get() as u64;
                    let home = domains[domain].clone();
                    // SAFETY: the model keeps the memory until the region is gone, and only looks at it
                    // then.
                    let handle = unsafe { MemoryRegion::register_raw(home, at, len, base, access) };
                    let needs = access.intersects(Access::REMOTE_WRITE | Access::REMOTE_ATOMIC);
                    prop_assert_eq!(handle.is_ok(), !needs || access.contains(Access::LOCAL_WRITE));
                    if let Ok(handle) = handle {
                        models.push(Model {
                            key: handle.rkey(),
                            handle: Some(handle),
                            base,
                            domain,
                            access,
                            valid: true,
                            octets: vec![0xee; len],
                            memory,
                        });
                    }
                }
                Step::Deregister { region } => {
                    let Some(model) = models.get_mut(region) else { continue };
                    if let Some(handle) = model.handle.take() {
                        prop_assert_eq!(handle.deregister(), Ok(()));
                    }
                    model.valid = false;
                }
                Step::Drop { region } => {
                    let Some(model) = models.get_mut(region) else { continue };
                    model.handle = None;
                    model.valid = false;
                }
                Step::Invalidate { domain, region } => {
                    let Some(model) = models.get_mut(region) else { continue };
                    let stag = Stag::from_raw(model.key);
                    let found = KeyTable::of_process().lookup(stag);
                    prop_assert_eq!(found.is_some(), model.handle.is_some());
                    let Some(found) = found else { continue };
                    let allowed = found.check_invalidate(peer_of(&domains[domain]), stag);
                    let expected = if model.domain != domain {
                        Err(Refusal::NotAssociated)
                    } else if !model.access.intersects(Access::REMOTE) {
                        Err(Refusal::Rights)
                    } else {
                        Ok(())
                    };
                    prop_assert_eq!(allowed, expected);
                    if allowed.is_ok() {
                        found.invalidate();
                        model.valid = false;
                    }
                }
                Step::Write { domain, region, offset, len } => {
                    let Some(model) = models.get_mut(region) else { continue };
                    stamp = stamp.wrapping_add(1);
                    let to = model.base.wrapping_add_signed(offset);
                    let done = place(peer_of(&domains[domain]), model.key, to, &vec![stamp; len]);
                    let allowed = model.allows(domain, Access::REMOTE_WRITE, offset, len);
                    prop_assert_eq!(done, allowed.map(drop));
                    if let (Ok(at), true) = (allowed, len > 0) {
                        model.octets[at..at + len].fill(stamp);
                    }
                }
                Step::Read { domain, region, offset, len } => {
                    let Some(model) = models.get_mut(region) else { continue };
                    let from = model.base.wrapping_add_signed(offset);
                    let read = fetch(peer_of(&domains[domain]), model.key, from, len);
                    let allowed = model.allows(domain, Access::REMOTE_READ, offset, len);
                    prop_assert_eq!(read, allowed.map(|at| model.octets[at..at + len].to_vec()));
                }
            }
        }
        for model in models {
            if let Some(handle) = model.handle {
                prop_assert_eq!(handle.deregister(), Ok(()));
            }
            let (before, rest) = model.memory.split_at(MARGIN);
            let (inside, after) = rest.split_at(model.octets.len());
            prop_assert!(before.iter().chain(after).all(|&octet| octet == 0xee), "outside was touched");
            prop_assert_eq!(inside, &model.octets[..]);
        }
    }
}
