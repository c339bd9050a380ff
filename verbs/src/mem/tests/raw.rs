//! Memory that the program keeps: whether it is there, and registered again.

use std::ptr::NonNull;

use iwarp_ddp::Refusal;

use super::*;
use crate::pd::ProtectionDomain;
use crate::{Device, DeviceConfig};

fn pd() -> ProtectionDomain {
    Device::open(DeviceConfig::default()).unwrap().alloc_pd()
}

#[cfg(all(target_os = "linux", not(miri)))]
mod there {
    use std::ffi::c_void;
    use std::fs::File;

    use rustix::mm::{MapFlags, MprotectFlags, ProtFlags, mmap, mmap_anonymous, mprotect, munmap};

    use super::*;

    const PAGE: usize = 1 << 16;

    /// A mapping of the test's own.
    struct Mapped(*mut c_void, usize);

    impl Mapped {
        fn anonymous(len: usize) -> Self {
            let rights = ProtFlags::READ | ProtFlags::WRITE;
            let how = MapFlags::PRIVATE | MapFlags::NORESERVE;
            // SAFETY: a new mapping at a place that the system chooses.
            Self(unsafe { mmap_anonymous(std::ptr::null_mut(), len, rights, how) }.unwrap(), len)
        }

        fn file(file: &File, len: usize) -> Self {
            let rights = ProtFlags::READ | ProtFlags::WRITE;
            // SAFETY: a new mapping at a place that the system chooses.
            let at = unsafe { mmap(std::ptr::null_mut(), len, rights, MapFlags::SHARED, file, 0) };
            Self(at.unwrap(), len)
        }

        fn at(&self, offset: usize) -> NonNull<u8> {
            NonNull::new(self.0.cast::<u8>().wrapping_add(offset)).unwrap()
        }

        fn protect(&self, offset: usize, rights: MprotectFlags) {
            let at = self.0.wrapping_byte_add(offset);
            // SAFETY: a page of this mapping, to which there is no reference.
            unsafe { mprotect(at, PAGE, rights) }.unwrap();
        }

        fn hole(&self, offset: usize) {
            let at = self.0.wrapping_byte_add(offset);
            // SAFETY: a page of this mapping, which nobody uses.
            unsafe { munmap(at, PAGE) }.unwrap();
        }
    }

    impl Drop for Mapped {
        fn drop(&mut self) {
            // SAFETY: mapped by this test, and used by nobody any more.
            unsafe { munmap(self.0, self.1) }.unwrap();
        }
    }

    fn register(at: NonNull<u8>, len: usize, access: Access) -> Result<MemoryRegion, MemoryError> {
        // SAFETY: the mapping outlives the region, and if parts of it cannot be touched, it is refused.
        unsafe { pd().register_raw(at, len, access) }
    }

    /// FC-060: memory that is not there, or does not allow it, is refused to the octet.
    #[test]
    fn fc_060_memory_that_is_not_there_is_refused() {
        let mapped = Mapped::anonymous(8 * PAGE);
        let (read, write) = (Access::REMOTE_READ, Access::LOCAL_WRITE | Access::REMOTE_WRITE);
        register(mapped.at(0), 8 * PAGE, write).unwrap().deregister().unwrap();
        mapped.protect(2 * PAGE, MprotectFlags::READ);
        mapped.protect(4 * PAGE, MprotectFlags::empty());
        mapped.hole(6 * PAGE);
        let address = |offset| mapped.at(offset).addr().get() as u64;
        let no_access = |offset, access| MemoryError::NotAccessible { at: address(offset), access };
        let nothing = |offset| MemoryError::NotMapped { at: address(offset) };
        let table = [
            (0, 2 * PAGE, write, None),
            (0, 2 * PAGE + 1, write, Some(no_access(2 * PAGE, write))),
            (0, 4 * PAGE, read, None),
            (0, 4 * PAGE + 1, read, Some(no_access(4 * PAGE, read))),
            (5 * PAGE, PAGE, write, None),
            (5 * PAGE - 1, 2, read, Some(no_access(5 * PAGE - 1, read))),
            (5 * PAGE, PAGE + 1, read, Some(nothing(6 * PAGE))),
            (6 * PAGE, 1, read, Some(nothing(6 * PAGE))),
            (7 * PAGE, PAGE, write, None),
            // FC-058: nothing is asked for nothing.
            (6 * PAGE, 0, write, None),
        ];
        for (offset, len, access, refused) in table {
            let region = register(mapped.at(offset), len, access);
            assert_eq!(region.as_ref().err(), refused.as_ref(), "{len} octets at {offset}");
            // SAFETY: as above.
            let fast = unsafe { Mapping::raw([(mapped.at(offset), len)], access) };
            assert_eq!(fast.as_ref().err(), refused.as_ref(), "{len} octets at {offset}");
        }
        assert_eq!(nothing(0).errno(), 14);
        assert_eq!(no_access(0, read).errno(), 13);
    }

    /// FC-060: a mapped file is only there as far as it reaches; touching more raises a signal.
    #[test]
    fn fc_060_a_mapped_file_may_be_short() {
        let name = std::env::temp_dir().join(format!("iwarp-mapped-{}", std::process::id()));
        let file = File::options().read(true).write(true).create_new(true).open(&name).unwrap();
        std::fs::remove_file(&name).unwrap();
        file.set_len(2 * PAGE as u64).unwrap();
        let mapped = Mapped::file(&file, 4 * PAGE);
        let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
        let region = register(mapped.at(0), 2 * PAGE, access).unwrap();
        region.write_at(2 * PAGE - 4, b"file").unwrap();
        region.deregister().unwrap();
        // Systems before Linux 5.14 cannot tell.
        let page = rustix::param::page_size();
        // SAFETY: a page of this mapping; the call reports what cannot be read.
        let asked = unsafe {
            let behind = mapped.at(2 * PAGE).as_ptr().cast();
            rustix::mm::madvise(behind, page, rustix::mm::Advice::LinuxPopulateRead)
        };
        if asked == Err(rustix::io::Errno::INVAL) {
            return;
        }
        let refused = register(mapped.at(0), 2 * PAGE + 1, access).unwrap_err();
        assert!(matches!(refused, MemoryError::NotMapped { .. }), "{refused}");
        file.set_len(PAGE as u64).unwrap();
        register(mapped.at(0), 2 * PAGE, access).unwrap_err();
        register(mapped.at(0), PAGE, access).unwrap().deregister().unwrap();
    }

    /// FC-063: a registration touches nothing, however much it is.
    #[test]
    #[cfg(target_pointer_width = "64")]
    fn fc_063_raw_memory_beyond_4_gib_stays_untouched() {
        let len = 6 << 30;
        let mapped = Mapped::anonymous(len);
        let home = pd();
        // SAFETY: the mapping outlives the region.
        let region = unsafe { home.register_raw(mapped.at(0), len, all_rights()) }.unwrap();
        let peer = peer_of(&home.0.domain().unwrap());
        let at = region.addr() + (1 << 32) - 4;
        place(peer, region.rkey(), at, b"across it").unwrap();
        assert_eq!(fetch(peer, region.rkey(), at + 2, 4).unwrap(), b"ross");
        assert_eq!(fetch(peer, region.rkey(), region.addr(), 8).unwrap(), [0; 8]);
        let status = std::fs::read_to_string("/proc/self/statm").unwrap();
        let resident: usize = status.split(' ').nth(1).unwrap().parse().unwrap();
        assert!(resident < (2 << 30) / rustix::param::page_size(), "{resident} pages");
        region.deregister().unwrap();
    }
}

fn open(region: &MemoryRegion, peer: Peer) -> (bool, bool) {
    let write = place(peer, region.rkey(), region.addr(), b"w");
    let read = fetch(peer, region.rkey(), region.addr(), 1);
    (write.is_ok(), read.is_ok())
}

#[test]
fn reregistration_changes_rights_and_domain_and_keeps_the_octets() {
    let (first, second) = (pd(), pd());
    let [here, there] = [&first, &second].map(|pd| peer_of(&pd.0.domain().unwrap()));
    let region = first.alloc(64, Access::LOCAL_WRITE | Access::REMOTE_READ).unwrap();
    region.write_at(1, b"content").unwrap();
    let old = region.clone();
    let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
    let region = region.reregister(&Reregister::new().access(access)).unwrap();
    assert_ne!(region.rkey(), old.rkey());
    assert_eq!((open(&region, here), open(&region, there)), ((true, false), (false, false)));
    assert_eq!(place(here, old.rkey(), region.addr(), b"x"), Err(Refusal::InvalidStag));
    assert_eq!(old.read_at(0, &mut [0]), Err(MemoryError::Deregistered));
    assert_eq!(contents(&region)[1..8], *b"content");
    let region = region.reregister(&Reregister::new().pd(&second)).unwrap();
    first.destroy().unwrap();
    assert_eq!((open(&region, here), open(&region, there)), ((false, false), (true, false)));
    let zero_based = Reregister::new().access(access | Access::ZERO_BASED);
    let region = region.reregister(&zero_based).unwrap();
    assert_eq!((region.addr(), open(&region, there)), (0, (true, false)));
    let region = region.reregister(&Reregister::new().access(Access::REMOTE_READ)).unwrap();
    assert_eq!(region.addr(), region.as_ptr().addr() as u64);
    assert_eq!(open(&region, there), (false, true));
    region.deregister().unwrap();
    second.destroy().unwrap();
}

/// What is left of a region after each failure.
#[test]
fn failed_reregistration() {
    let home = pd();
    let access = Access::LOCAL_WRITE | Access::MW_BIND;
    let region = home.alloc(64, access).unwrap();
    let window = home.alloc_window(WindowType::One).unwrap();
    let peer = peer_of(&home.0.domain().unwrap());
    let all = WindowBinding::new(&region.as_slice_all(), Access::REMOTE_READ);
    LocalWork::Bind { window: window.clone(), key: 1, binding: all }.perform(peer).unwrap();
    let change = Reregister::new().access(Access::REMOTE_READ);
    // As it was: a bound window, or another domain that is gone.
    let error = region.reregister(&change).unwrap_err();
    assert!(matches!(error.cause, MemoryError::InUse { windows: 1, .. }), "{error}");
    let region = error.region.unwrap();
    assert!(region.is_valid() && window.is_bound());
    window.destroy().unwrap();
    let gone = pd();
    gone.clone().destroy().unwrap();
    let error = region.reregister(&Reregister::new().pd(&gone)).unwrap_err();
    assert_eq!(error.cause, MemoryError::DomainDestroyed);
    let region = error.region.unwrap();
    assert!(region.is_valid());
    // No more: rights that contradict each other.
    let other = region.clone();
    let wrong = Reregister::new().access(Access::REMOTE_WRITE);
    let error = region.reregister(&wrong).unwrap_err();
    assert!(matches!(error.cause, MemoryError::NeedsLocalWrite { .. }), "{error}");
    assert!(error.region.is_none() && error.to_string().contains("registered no more"));
    assert_eq!(other.deregister(), Err(MemoryError::Deregistered));
    // A buffer that is to be given back.
    let owned = home.register(vec![0; 8], access).unwrap();
    let error = owned.region().clone().reregister(&change).unwrap_err();
    assert_eq!(error.cause, MemoryError::OwnedBuffer);
    assert!(error.region.unwrap().is_valid());
    assert_eq!(owned.deregister(), [0; 8]);
    home.destroy().unwrap();
}

#[test]
fn raw_memory_is_registered_anew_with_another_range() {
    let home = pd();
    let peer = peer_of(&home.0.domain().unwrap());
    let mut octets = [0_u8; 32];
    let [low, high] = [0, 16].map(|at| NonNull::new(&raw mut octets[at]).unwrap());
    // SAFETY: the octets outlive the regions, and are only looked at after them; only what is promised to
    // be writable is written.
    let region = unsafe { home.register_raw_at(low, 16, 0x5000, Access::REMOTE_READ) }.unwrap();
    let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
    // Nobody promised that the memory may be written.
    let error = region.reregister(&Reregister::new().access(access)).unwrap_err();
    let (need, have) = (Access::LOCAL_WRITE, Access::REMOTE_READ);
    assert_eq!(error.cause, MemoryError::Rights { need, have });
    let region = error.region.unwrap().reregister(&Reregister::new()).unwrap();
    assert_eq!((region.addr(), open(&region, peer)), (0x5000, (false, true)));
    let change = Reregister::new().access(access);
    // SAFETY: as above.
    let region = unsafe { region.reregister_raw(high, 8, &change) }.unwrap();
    assert_eq!((region.addr(), region.len()), (high.addr().get() as u64, 8));
    place(peer, region.rkey(), region.addr() + 7, b"x").unwrap();
    assert_eq!(place(peer, region.rkey(), region.addr() + 8, b"x"), Err(Refusal::Bounds));
    // SAFETY: refused, before anything is touched.
    let error = unsafe { region.reregister_raw(high, usize::MAX, &change) }.unwrap_err();
    assert!(matches!(error.cause, MemoryError::AddressWraps { .. }) && error.region.is_none());
    assert_eq!(octets[16..], *b"\0\0\0\0\0\0\0x\0\0\0\0\0\0\0\0");
    let ours = home.alloc(8, access).unwrap();
    // SAFETY: refused.
    let error = unsafe { ours.reregister_raw(low, 8, &change) }.unwrap_err();
    assert!(error.cause == MemoryError::OwnedBuffer && error.region.is_some());
}
