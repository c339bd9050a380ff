//! What programs do with their regions.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use iwarp_ddp::{Refusal, Stag};

use super::*;

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
