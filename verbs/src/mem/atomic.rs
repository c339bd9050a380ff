//! Atomic accesses to eight octets of registered memory.
//!
//! They are the processor's own atomic instructions on the aligned word, so they are atomic with respect to
//! each other whoever runs them: any queue pair of any device of the process, the region's own methods, and a
//! program that has an `AtomicU64` there (EXT-04, EXT-05). As in `copy.rs`, on x86-64 they are `asm!` blocks.
//! All of them are sequentially consistent.
//!
//! A Write of a peer to the same word is seen whole if it ends there, like any other; it is no part of the
//! order of atomics.

use iwarp_rdmap::AtomicOperation;

/// Carries out an operation on a word, and tells what it was.
///
/// # Safety
///
/// `at` must be a multiple of 8 and valid for reads and writes of 8 octets, which nobody accesses through a
/// Rust reference except to an atomic.
pub(super) unsafe fn update(at: *mut u8, operation: AtomicOperation) -> u64 {
    if let AtomicOperation::FetchAdd { add, mask: 0 } = operation {
        // SAFETY: exactly the caller's promise.
        return unsafe { fetch_add(at, add) };
    }
    // SAFETY: the caller's promise covers reads.
    let mut original = unsafe { super::copy::load_u64(at) };
    loop {
        let new = operation.apply(original);
        // Also where nothing changes: an atomic that compares has its place among the others.
        // SAFETY: exactly the caller's promise.
        match unsafe { compare_exchange(at, original, new) } {
            Ok(()) => return original,
            Err(found) => original = found,
        }
    }
}

#[cfg(all(target_arch = "x86_64", not(miri)))]
unsafe fn fetch_add(at: *mut u8, add: u64) -> u64 {
    let mut value = add;
    // SAFETY: reads and writes 8 octets at `at`, with the bus locked.
    unsafe {
        std::arch::asm!(
            "lock xadd qword ptr [{at}], {value}",
            at = in(reg) at, value = inout(reg) value,
            options(nostack)
        );
    }
    value
}

/// `Err` with what was found, if it was not `current`.
#[cfg(all(target_arch = "x86_64", not(miri)))]
unsafe fn compare_exchange(at: *mut u8, current: u64, new: u64) -> Result<(), u64> {
    let found: u64;
    // SAFETY: reads and writes 8 octets at `at`, with the bus locked.
    unsafe {
        std::arch::asm!(
            "lock cmpxchg qword ptr [{at}], {new}",
            at = in(reg) at, new = in(reg) new, inout("rax") current => found,
            options(nostack)
        );
    }
    if found == current { Ok(()) } else { Err(found) }
}

#[cfg(not(all(target_arch = "x86_64", not(miri))))]
unsafe fn fetch_add(at: *mut u8, add: u64) -> u64 {
    use std::sync::atomic::{AtomicU64, Ordering};
    // SAFETY: 8 registered octets, aligned, and accessed atomically by all.
    let word = unsafe { AtomicU64::from_ptr(at.cast()) };
    word.fetch_add(add, Ordering::SeqCst)
}

#[cfg(not(all(target_arch = "x86_64", not(miri))))]
unsafe fn compare_exchange(at: *mut u8, current: u64, new: u64) -> Result<(), u64> {
    use std::sync::atomic::{AtomicU64, Ordering};
    // SAFETY: 8 registered octets, aligned, and accessed atomically by all.
    let word = unsafe { AtomicU64::from_ptr(at.cast()) };
    word.compare_exchange(current, new, Ordering::SeqCst, Ordering::SeqCst).map(drop)
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use std::ptr::NonNull;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU64, Ordering};
    use std::thread;

    use iwarp_ddp::{Refusal, Stag};
    use iwarp_rdmap::AtomicRefusal;
    use proptest::prelude::*;

    use super::*;
    use crate::mem::{Access, Domain, MemoryError, MemoryRegion, PdId, Peer};

    const ADD: AtomicOperation = AtomicOperation::fetch_add(1);

    fn domain() -> Domain {
        Domain { id: PdId::new(), parent: Arc::new(()) }
    }

    fn peer_of(home: &Domain) -> Peer {
        let rights = Access::REMOTE;
        Peer { domain: home.id, stream: PdId::new(), rights, invalidates: true }
    }

    fn all_rights() -> Access {
        Access::LOCAL_WRITE | Access::REMOTE
    }

    /// EXT-08: the address counts. An offset that is a multiple of 8 may lie across two words, and the other
    /// way round.
    #[test]
    fn the_address_is_what_has_to_be_aligned() {
        let home = domain();
        let peer = peer_of(&home);
        let mut words = [7_u64; 4];
        let start = NonNull::new(words.as_mut_ptr().cast::<u8>()).unwrap();
        let register = |skip: usize, iova| {
            let at = start.map_addr(|at| at.checked_add(skip).unwrap());
            // SAFETY: the words outlive the region, and are not touched while that exists.
            unsafe { MemoryRegion::register_raw(home.clone(), at, 24, iova, all_rights()) }.unwrap()
        };
        let run = |region: &MemoryRegion, to| {
            region.region().atomic(peer, Stag::from_raw(region.rkey()), to, ADD)
        };
        let crooked = register(4, 0x1000);
        for to in [0x1000, 0x1008, 0x1010] {
            assert_eq!(run(&crooked, to), Err(AtomicRefusal::Misaligned));
        }
        assert_eq!(run(&crooked, 0x1004), Ok(7), "the second word");
        assert_eq!(run(&crooked, 0x1014), Err(Refusal::Bounds.into()), "half of it");
        crooked.deregister().unwrap();
        let straight = register(0, 0x1003);
        assert_eq!(run(&straight, 0x1003), Ok(7));
        assert_eq!(run(&straight, 0x1008), Err(AtomicRefusal::Misaligned));
        straight.deregister().unwrap();
        assert_eq!(words, [8, 8, 7, 7]);
    }

    /// SEC-04: an invalidated key opens nothing, also to atomics.
    #[test]
    fn a_key_out_of_force_opens_nothing() {
        let home = domain();
        let peer = peer_of(&home);
        let region = MemoryRegion::alloc(home, 8, all_rights()).unwrap();
        let (stag, to) = (Stag::from_raw(region.rkey()), region.addr());
        assert_eq!(region.region().atomic(peer, stag, to, ADD), Ok(0));
        region.region().invalidate().unwrap();
        let refused = Err(Refusal::InvalidStag.into());
        assert_eq!(region.region().atomic(peer, stag, to, ADD), refused);
        // The program itself may still.
        assert_eq!(region.fetch_add_u64(0, 1), Ok(1));
    }

    #[test]
    fn the_programs_own_atomics_are_checked() {
        let region = MemoryRegion::alloc(domain(), 20, Access::empty()).unwrap();
        assert_eq!(region.fetch_add_u64(8, 5), Ok(0));
        assert_eq!(region.compare_swap_u64(8, 5, 9), Ok(5));
        assert_eq!(region.compare_swap_u64(8, 5, 1), Ok(9));
        assert_eq!(region.load_u64(8), Ok(9));
        assert_eq!(region.fetch_add_u64(4, 1), Err(MemoryError::Misaligned { offset: 4 }));
        let outside = MemoryError::OutOfBounds { offset: 16, len: 8, size: 20 };
        assert_eq!(region.compare_swap_u64(16, 0, 1), Err(outside));
        let other = region.clone();
        region.deregister().unwrap();
        assert_eq!(other.fetch_add_u64(8, 1), Err(MemoryError::Deregistered));

        let word = AtomicU64::new(0);
        let at = NonNull::new(word.as_ptr().cast()).unwrap();
        let access = Access::REMOTE_READ;
        // SAFETY: the word outlives the region, and is only accessed atomically.
        let region = unsafe { MemoryRegion::register_raw(domain(), at, 8, 0, access) }.unwrap();
        assert!(matches!(region.fetch_add_u64(0, 1), Err(MemoryError::Rights { .. })));
        assert_eq!(word.load(Ordering::Relaxed), 0);
    }

    /// EXT-05: the program's own atomics on the same word are part of the same order.
    #[test]
    fn no_update_is_lost_between_threads_and_kinds() {
        const ROUNDS: u64 = if cfg!(miri) { 20 } else { 20_000 };
        let word = AtomicU64::new(0);
        let mut failed_swaps = 0;
        thread::scope(|scope| {
            let threads: Vec<_> = (0..4)
                .map(|kind| {
                    let word = &word;
                    scope.spawn(move || {
                        let at = word.as_ptr().cast();
                        let mut failed = 0;
                        for _ in 0..ROUNDS {
                            let seen = word.load(Ordering::Relaxed);
                            let operation = match kind {
                                0 => AtomicOperation::fetch_add(1),
                                1 => AtomicOperation::FetchAdd { add: 1, mask: 1 << 63 },
                                2 => AtomicOperation::compare_swap(seen, seen + 1),
                                _ => {
                                    word.fetch_add(1, Ordering::Relaxed);
                                    continue;
                                }
                            };
                            // SAFETY: an `AtomicU64`.
                            let original = unsafe { update(at, operation) };
                            failed += u64::from(kind == 2 && original != seen);
                        }
                        failed
                    })
                })
                .collect();
            for thread in threads {
                failed_swaps += thread.join().unwrap();
            }
        });
        assert_eq!(word.load(Ordering::Relaxed), 4 * ROUNDS - failed_swaps);
    }

    proptest! {
        #![proptest_config(ProptestConfig {
            cases: if cfg!(miri) { 8 } else { 256 },
            failure_persistence: None,
            ..ProptestConfig::default()
        })]

        /// EXT-03: what the word becomes is what the operation says.
        #[test]
        fn a_word_becomes_what_the_operation_says(value: u64, operands: [u64; 4], kind in 0..4) {
            let [first, second, third, fourth] = operands;
            let operation = match kind {
                0 => AtomicOperation::fetch_add(first),
                1 => AtomicOperation::FetchAdd { add: first, mask: second },
                2 => AtomicOperation::compare_swap(value, first),
                _ => AtomicOperation::CompareSwap {
                    compare: first,
                    compare_mask: second & third & fourth,
                    swap: third,
                    swap_mask: fourth,
                },
            };
            let word = AtomicU64::new(value);
            // SAFETY: an `AtomicU64`.
            let original = unsafe { update(word.as_ptr().cast(), operation) };
            prop_assert_eq!(original, value);
            prop_assert_eq!(word.into_inner(), operation.apply(value));
        }
    }
}
