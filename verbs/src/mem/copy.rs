//! The only instructions that touch registered memory.
//!
//! Registered memory may be written by a peer, by the program and by this library at the same moment,
//! so no Rust reference to it ever exists and no ordinary load or store is used. On x86-64 the octets
//! move inside `asm!` blocks, which the compiler must take as an access it knows nothing about;
//! elsewhere, and under Miri, every octet is an `AtomicU8`. Both are compiled into the tests of the
//! other's machine.
//!
//! # What a program that polls memory may rely on
//!
//! [`copy_in`] stores the octets before the *final word* first, in no particular order, and then the
//! final word. The final word is that part of the copy which lies in the naturally aligned eight
//! octets that hold its last octet: one to eight octets. Each of its stores is a Release, in ascending
//! order, and each is as large as alignment and length permit. So:
//!
//! - whoever has seen the last octet of a copy (with Acquire, as [`load_u64`] does) sees all of it;
//! - a naturally aligned integer of 2, 4 or 8 octets that ends where the copy ends is seen whole, old
//!   or new;
//! - no octet outside the range is ever written, not even with the value it has.
//!
//! An integer that lies elsewhere, or is not aligned, may be seen half old and half new.
//! What [`copy_out`] makes of octets that change meanwhile is for each some value that it had; the
//! private copy does not change afterwards, and only that is summed, parsed or sent.

#![allow(
    clippy::inline_always,
    reason = "each is a handful of instructions, and the caller's length is often known"
)]

#[cfg(not(all(target_arch = "x86_64", not(miri))))]
use self::octets::Octets as Native;
#[cfg(all(target_arch = "x86_64", not(miri)))]
use self::x86_64::Assembly as Native;

/// How octets are moved. The contracts are those of the functions below with the same names.
trait Moves {
    /// Plain copy, in no particular order, but before any later [`store_release`](Self::store_release).
    unsafe fn copy_in(to: *mut u8, from: *const u8, len: usize);
    unsafe fn copy_out(to: *mut u8, from: *const u8, len: usize);
    unsafe fn fill(to: *mut u8, value: u8, len: usize);
    /// Copies 1, 2, 4 or 8 octets at once; `to` is a multiple of `size`.
    unsafe fn store_release(to: *mut u8, from: *const u8, size: usize);
    unsafe fn load_u64(at: *const u8) -> u64;
}

/// Copies `len` private octets into registered memory, the final word last and with Release.
///
/// # Safety
///
/// `to` must be valid for writes of `len` octets, which nobody accesses through a Rust reference;
/// `from` must be valid for reads of `len` octets that nobody writes and that do not overlap.
#[inline]
pub(super) unsafe fn copy_in(to: *mut u8, from: *const u8, len: usize) {
    // SAFETY: exactly the caller's promise.
    unsafe { copy_in_by::<Native>(to, from, len) };
}

#[inline(always)]
unsafe fn copy_in_by<M: Moves>(to: *mut u8, from: *const u8, len: usize) {
    if len == 0 {
        return;
    }
    let final_word = len.min(to.addr().wrapping_add(len - 1) % 8 + 1);
    let body = len - final_word;
    // SAFETY: the body is a part of what the caller vouches for.
    unsafe { M::copy_in(to, from, body) };
    let mut done = body;
    while done < len {
        let at = to.wrapping_add(done);
        let source = from.wrapping_add(done);
        let step = aligned_step(at.addr(), len - done);
        // SAFETY: `done + step <= len`, and `at` is a multiple of `step`.
        unsafe { M::store_release(at, source, step) };
        done += step;
    }
}

/// Copies `len` octets of registered memory into a private buffer.
///
/// # Safety
///
/// `from` must be valid for reads of `len` octets, which nobody accesses through a Rust reference that
/// allows writing; `to` must be valid for writes of `len` octets that nobody else accesses.
#[inline]
pub(super) unsafe fn copy_out(to: *mut u8, from: *const u8, len: usize) {
    // SAFETY: exactly the caller's promise.
    unsafe { Native::copy_out(to, from, len) };
}

/// Sets `len` octets of registered memory to `value`.
///
/// # Safety
///
/// As for the destination of [`copy_in`].
#[inline]
pub(super) unsafe fn fill(to: *mut u8, value: u8, len: usize) {
    // SAFETY: exactly the caller's promise.
    unsafe { Native::fill(to, value, len) };
}

/// Reads eight octets at once, with Acquire: what was copied in before them is visible afterwards.
///
/// # Safety
///
/// `at` must be a multiple of 8 and valid for reads of 8 octets, as in [`copy_out`].
#[inline]
pub(super) unsafe fn load_u64(at: *const u8) -> u64 {
    // SAFETY: exactly the caller's promise.
    unsafe { Native::load_u64(at) }
}

/// Writes eight octets at once, with Release.
///
/// # Safety
///
/// `at` must be a multiple of 8 and valid for writes of 8 octets, as in [`copy_in`].
#[inline]
pub(super) unsafe fn store_u64(at: *mut u8, value: u64) {
    let octets = value.to_ne_bytes();
    // One store, since the place is aligned.
    // SAFETY: the caller's promise, and eight private octets.
    unsafe { copy_in(at, octets.as_ptr(), octets.len()) };
}

/// The largest of 8, 4, 2, 1 that divides `address` and is not more than `left` (at least 1).
///
/// Miri knows no atomic accesses of different sizes to the same octets, so there it is 1.
#[inline]
fn aligned_step(address: usize, left: usize) -> usize {
    if cfg!(miri) {
        return 1;
    }
    let aligned = 1 << address.trailing_zeros().min(3);
    let fits = 1 << left.ilog2().min(3);
    aligned.min(fits)
}

#[cfg(target_arch = "x86_64")]
#[cfg_attr(miri, allow(dead_code, reason = "Miri cannot run assembly"))]
mod x86_64 {
    use std::arch::asm;

    use super::Moves;

    /// From here on the string instruction is faster than a loop of 16-octet moves.
    const STRING_FROM: usize = 768;

    pub(super) struct Assembly;

    impl Moves for Assembly {
        /// Plain copy; on this processor a later store becomes visible after all of it, including the
        /// stores of a string instruction.
        #[inline(always)]
        unsafe fn copy_in(to: *mut u8, from: *const u8, len: usize) {
            // SAFETY: the same contract.
            unsafe { copy(to, from, len) };
        }

        #[inline(always)]
        unsafe fn copy_out(to: *mut u8, from: *const u8, len: usize) {
            // SAFETY: the same contract.
            unsafe { copy(to, from, len) };
        }

        /// Every store of this processor is a Release.
        #[inline(always)]
        unsafe fn store_release(to: *mut u8, from: *const u8, size: usize) {
            match size {
                // SAFETY: the caller vouches for `size` octets on both sides, aligned at `to`.
                8 => unsafe { move_8(to, from) },
                // SAFETY: as above.
                4 => unsafe { move_4(to, from) },
                // SAFETY: as above.
                2 => unsafe { move_2(to, from) },
                // SAFETY: as above.
                _ => unsafe { move_1(to, from) },
            }
        }

        /// Every load of this processor is an Acquire.
        #[inline(always)]
        unsafe fn load_u64(at: *const u8) -> u64 {
            let value;
            // Not `readonly`, although it is: with that, the compiler might keep what it has read of other
            // memory before, and this would be no Acquire.
            // SAFETY: reads 8 octets at `at`.
            unsafe {
                asm!(
                    "mov {value}, qword ptr [{at}]",
                    value = out(reg) value, at = in(reg) at,
                    options(nostack, preserves_flags)
                );
            }
            value
        }

        #[inline(always)]
        unsafe fn fill(to: *mut u8, value: u8, len: usize) {
            // SAFETY: writes `len` octets at `to`.
            unsafe {
                asm!(
                    "rep stosb",
                    inout("rcx") len => _, inout("rdi") to => _, in("al") value,
                    options(nostack, preserves_flags)
                );
            }
        }
    }

    #[inline(always)]
    unsafe fn copy(to: *mut u8, from: *const u8, len: usize) {
        if len >= STRING_FROM {
            // SAFETY: reads `len` octets at `from`, writes them at `to`; the direction flag is clear
            // at every `asm!`.
            unsafe {
                asm!(
                    "rep movsb",
                    inout("rcx") len => _, inout("rdi") to => _, inout("rsi") from => _,
                    options(nostack, preserves_flags)
                );
            }
        } else if len >= 16 {
            let last = len - 16;
            let mut done = 0;
            while done < last {
                // SAFETY: `done + 16 < len`.
                unsafe { move_16(to.wrapping_add(done), from.wrapping_add(done)) };
                done += 16;
            }
            // Overlaps what was just copied, with the same octets.
            // SAFETY: `last + 16 == len`.
            unsafe { move_16(to.wrapping_add(last), from.wrapping_add(last)) };
        } else {
            // SAFETY: the same contract.
            unsafe { copy_short(to, from, len) };
        }
    }

    /// Up to 15 octets: two moves that may overlap, of the largest size that fits.
    #[inline(always)]
    unsafe fn copy_short(to: *mut u8, from: *const u8, len: usize) {
        if len >= 8 {
            // SAFETY: at least 8 octets.
            unsafe { move_8(to, from) };
            // SAFETY: the last 8 of them.
            unsafe { move_8(to.wrapping_add(len - 8), from.wrapping_add(len - 8)) };
        } else if len >= 4 {
            // SAFETY: at least 4 octets.
            unsafe { move_4(to, from) };
            // SAFETY: the last 4 of them.
            unsafe { move_4(to.wrapping_add(len - 4), from.wrapping_add(len - 4)) };
        } else if len >= 2 {
            // SAFETY: at least 2 octets.
            unsafe { move_2(to, from) };
            // SAFETY: the last 2 of them.
            unsafe { move_2(to.wrapping_add(len - 2), from.wrapping_add(len - 2)) };
        } else if len == 1 {
            // SAFETY: one octet.
            unsafe { move_1(to, from) };
        }
    }

    #[inline(always)]
    unsafe fn move_16(to: *mut u8, from: *const u8) {
        // SAFETY: reads 16 octets at `from`, writes them at `to`; neither needs alignment.
        unsafe {
            asm!(
                "movups {octets}, xmmword ptr [{from}]",
                "movups xmmword ptr [{to}], {octets}",
                octets = out(xmm_reg) _, from = in(reg) from, to = in(reg) to,
                options(nostack, preserves_flags)
            );
        }
    }

    #[inline(always)]
    unsafe fn move_8(to: *mut u8, from: *const u8) {
        // SAFETY: reads 8 octets at `from`, writes them at `to`.
        unsafe {
            asm!(
                "mov {octets}, qword ptr [{from}]",
                "mov qword ptr [{to}], {octets}",
                octets = out(reg) _, from = in(reg) from, to = in(reg) to,
                options(nostack, preserves_flags)
            );
        }
    }

    #[inline(always)]
    unsafe fn move_4(to: *mut u8, from: *const u8) {
        // SAFETY: reads 4 octets at `from`, writes them at `to`.
        unsafe {
            asm!(
                "mov {octets:e}, dword ptr [{from}]",
                "mov dword ptr [{to}], {octets:e}",
                octets = out(reg) _, from = in(reg) from, to = in(reg) to,
                options(nostack, preserves_flags)
            );
        }
    }

    #[inline(always)]
    unsafe fn move_2(to: *mut u8, from: *const u8) {
        // SAFETY: reads 2 octets at `from`, writes them at `to`.
        unsafe {
            asm!(
                "movzx {octets:e}, word ptr [{from}]",
                "mov word ptr [{to}], {octets:x}",
                octets = out(reg) _, from = in(reg) from, to = in(reg) to,
                options(nostack, preserves_flags)
            );
        }
    }

    #[inline(always)]
    unsafe fn move_1(to: *mut u8, from: *const u8) {
        // SAFETY: reads one octet at `from`, writes it at `to`.
        unsafe {
            asm!(
                "mov {octet}, byte ptr [{from}]",
                "mov byte ptr [{to}], {octet}",
                octet = out(reg_byte) _, from = in(reg) from, to = in(reg) to,
                options(nostack, preserves_flags)
            );
        }
    }
}

/// One atomic access per octet, larger ones only where this module promises them.
#[cfg_attr(
    all(target_arch = "x86_64", not(miri)),
    allow(dead_code, reason = "the choice of other processors; here only the tests run it")
)]
mod octets {
    use std::sync::atomic::{AtomicU8, AtomicU16, AtomicU32, AtomicU64, Ordering};

    use super::Moves;

    pub(super) struct Octets;

    impl Moves for Octets {
        #[inline]
        unsafe fn copy_in(to: *mut u8, from: *const u8, len: usize) {
            for at in 0..len {
                // SAFETY: inside the caller's private octets.
                let octet = unsafe { from.wrapping_add(at).read() };
                let target = to.wrapping_add(at);
                // SAFETY: inside the caller's registered octets, which are accessed atomically.
                let target = unsafe { AtomicU8::from_ptr(target) };
                target.store(octet, Ordering::Relaxed);
            }
        }

        #[inline]
        unsafe fn copy_out(to: *mut u8, from: *const u8, len: usize) {
            for at in 0..len {
                let source = from.wrapping_add(at).cast_mut();
                // SAFETY: inside the caller's registered octets, which are accessed atomically. Pages
                // that may not be written are not: a load asks no more of the machine.
                let source = unsafe { AtomicU8::from_ptr(source) };
                let octet = source.load(Ordering::Relaxed);
                // SAFETY: inside the caller's private octets.
                unsafe { to.wrapping_add(at).write(octet) };
            }
        }

        #[inline]
        unsafe fn fill(to: *mut u8, value: u8, len: usize) {
            for at in 0..len {
                // SAFETY: inside the caller's registered octets, which are accessed atomically.
                let target = unsafe { AtomicU8::from_ptr(to.wrapping_add(at)) };
                target.store(value, Ordering::Relaxed);
            }
        }

        #[inline]
        unsafe fn store_release(to: *mut u8, from: *const u8, size: usize) {
            match size {
                8 => {
                    // SAFETY: the caller vouches for 8 private octets.
                    let value = unsafe { from.cast::<u64>().read_unaligned() };
                    // SAFETY: 8 registered octets, aligned.
                    let target = unsafe { AtomicU64::from_ptr(to.cast()) };
                    target.store(value, Ordering::Release);
                }
                4 => {
                    // SAFETY: the caller vouches for 4 private octets.
                    let value = unsafe { from.cast::<u32>().read_unaligned() };
                    // SAFETY: 4 registered octets, aligned.
                    let target = unsafe { AtomicU32::from_ptr(to.cast()) };
                    target.store(value, Ordering::Release);
                }
                2 => {
                    // SAFETY: the caller vouches for 2 private octets.
                    let value = unsafe { from.cast::<u16>().read_unaligned() };
                    // SAFETY: 2 registered octets, aligned.
                    let target = unsafe { AtomicU16::from_ptr(to.cast()) };
                    target.store(value, Ordering::Release);
                }
                _ => {
                    // SAFETY: the caller vouches for one private octet.
                    let value = unsafe { from.read() };
                    // SAFETY: one registered octet.
                    let target = unsafe { AtomicU8::from_ptr(to) };
                    target.store(value, Ordering::Release);
                }
            }
        }

        #[inline]
        unsafe fn load_u64(at: *const u8) -> u64 {
            if cfg!(miri) {
                let octets = std::array::from_fn(|octet| {
                    // SAFETY: one of 8 registered octets.
                    let source = unsafe { AtomicU8::from_ptr(at.wrapping_add(octet).cast_mut()) };
                    source.load(Ordering::Acquire)
                });
                return u64::from_ne_bytes(octets);
            }
            // SAFETY: 8 registered octets, aligned.
            let source = unsafe { AtomicU64::from_ptr(at.cast_mut().cast()) };
            source.load(Ordering::Acquire)
        }
    }
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use std::cell::UnsafeCell;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::thread;

    use proptest::prelude::*;

    use super::*;

    const GUARD: u8 = 0xa5;

    /// Memory that threads share, in words so that its alignment is known.
    struct Shared(Box<[UnsafeCell<u64>]>);

    // SAFETY: only touched through `Moves`.
    unsafe impl Sync for Shared {}

    impl Shared {
        fn new(octets: usize) -> Self {
            let word = u64::from_ne_bytes([GUARD; 8]);
            Self((0..octets.div_ceil(8)).map(|_| UnsafeCell::new(word)).collect())
        }

        fn at(&self, offset: usize) -> *mut u8 {
            self.0.as_ptr().cast_mut().cast::<u8>().wrapping_add(offset)
        }
    }

    fn pattern(len: usize) -> Vec<u8> {
        (0..len).map(|at| u8::try_from(at * 7 % 127).unwrap()).collect()
    }

    fn round_trip<M: Moves>(offset: usize, len: usize) {
        let shared = Shared::new(offset + len + 8);
        let source = pattern(len + 3);
        // SAFETY: `offset + len + 8` octets are there, and private octets on the other side.
        unsafe { copy_in_by::<M>(shared.at(offset), source.as_ptr().wrapping_add(3), len) };
        let mut around = vec![0; offset + len + 8];
        // SAFETY: as above.
        unsafe { M::copy_out(around.as_mut_ptr(), shared.at(0), around.len()) };
        assert!(around[..offset].iter().all(|&octet| octet == GUARD), "before {offset}+{len}");
        assert_eq!(around[offset..offset + len], source[3..], "{offset}+{len}");
        assert!(around[offset + len..].iter().all(|&octet| octet == GUARD), "after {offset}+{len}");

        // SAFETY: as above.
        unsafe { M::fill(shared.at(offset), 0x3c, len) };
        // SAFETY: as above.
        unsafe { M::copy_out(around.as_mut_ptr(), shared.at(0), around.len()) };
        let inside = offset..offset + len;
        for (at, &octet) in around.iter().enumerate() {
            assert_eq!(octet, if inside.contains(&at) { 0x3c } else { GUARD }, "{offset}+{len}");
        }
    }

    #[test]
    fn every_short_length_at_every_alignment() {
        let longest = if cfg!(miri) { 20 } else { 300 };
        for len in 0..=longest {
            for offset in 0..16 {
                round_trip::<Native>(offset, len);
                round_trip::<octets::Octets>(offset, len);
            }
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig {
            cases: if cfg!(miri) { 4 } else { 128 },
            failure_persistence: None,
            ..ProptestConfig::default()
        })]

        #[test]
        fn any_length(offset in 0_usize..64, len in 0_usize..5_000) {
            let len = if cfg!(miri) { len % 200 } else { len };
            round_trip::<Native>(offset, len);
            round_trip::<octets::Octets>(offset, len);
        }
    }

    /// Takes down where the final word begins and how it is stored.
    mod recorded {
        use std::cell::RefCell;

        thread_local! {
            pub(super) static STORES: RefCell<Vec<(usize, usize)>> = const { RefCell::new(Vec::new()) };
        }

        pub(super) struct Recorder;

        impl super::Moves for Recorder {
            unsafe fn copy_in(to: *mut u8, _: *const u8, len: usize) {
                STORES.with_borrow_mut(|stores| stores.push((to.addr(), len)));
            }

            unsafe fn copy_out(_: *mut u8, _: *const u8, _: usize) {}

            unsafe fn fill(_: *mut u8, _: u8, _: usize) {}

            unsafe fn store_release(to: *mut u8, _: *const u8, size: usize) {
                STORES.with_borrow_mut(|stores| stores.push((to.addr(), size)));
            }

            unsafe fn load_u64(_: *const u8) -> u64 {
                0
            }
        }
    }

    #[test]
    #[cfg_attr(miri, ignore = "stores are single octets there")]
    fn the_final_word_is_stored_in_aligned_pieces_that_hold_every_aligned_integer_at_the_end() {
        let base = std::ptr::without_provenance_mut::<u8>(0x1000);
        for offset in 0..16 {
            for len in 1..64 {
                recorded::STORES.take();
                // SAFETY: the recorder touches no memory.
                unsafe {
                    copy_in_by::<recorded::Recorder>(base.wrapping_add(offset), base, len);
                }
                let stores = recorded::STORES.take();
                let (body, words) = stores.split_first().unwrap();
                let mut at = body.0 + body.1;
                assert!(at > 0x1000 + offset + len - 9, "at most eight octets are the final word");
                for &(place, size) in words {
                    assert_eq!(place, at, "ascending, without gaps");
                    assert!(size.is_power_of_two() && place.is_multiple_of(size));
                    at += size;
                }
                assert_eq!(at, 0x1000 + offset + len);
                let last = words.last().unwrap().1;
                for integer in [2, 4, 8] {
                    if at.is_multiple_of(integer) && len >= integer {
                        assert!(last >= integer, "{integer} octets at the end of {offset}+{len}");
                    }
                }
            }
        }
    }

    /// Messages of equal octets, one after the other in the same place: who sees the last octet of one
    /// sees all of it, or of a later one.
    fn last_octet_last<M: Moves>(offset: usize, len: usize, rounds: u8) {
        let shared = Shared::new(offset + len + 8);
        // SAFETY: inside.
        unsafe { M::fill(shared.at(0), 0, offset + len) };
        let taken = AtomicBool::new(true);
        thread::scope(|scope| {
            scope.spawn(|| {
                for round in 1..=rounds {
                    while !taken.swap(false, Ordering::Acquire) {
                        thread::yield_now();
                    }
                    let message = vec![round; len];
                    // SAFETY: inside; the other side only uses `Moves`.
                    unsafe { copy_in_by::<M>(shared.at(offset), message.as_ptr(), len) };
                }
            });
            let mut message = vec![0; len];
            // Polls the word that the message ends with, in the way of `load_u64`.
            let last = (offset + len - 8) & !7;
            for round in 1..=rounds {
                loop {
                    // SAFETY: inside, aligned.
                    let word = unsafe { M::load_u64(shared.at(last)) };
                    if word == u64::from_ne_bytes([round; 8]) {
                        break;
                    }
                    thread::yield_now();
                }
                // SAFETY: inside.
                unsafe { M::copy_out(message.as_mut_ptr(), shared.at(offset), len) };
                assert!(message.iter().all(|&octet| octet == round), "{round} at {offset}+{len}");
                taken.store(true, Ordering::Release);
            }
        });
    }

    #[test]
    fn a_poller_that_sees_the_end_sees_all() {
        let (rounds, lengths): (u8, &[usize]) =
            if cfg!(miri) { (3, &[16, 24]) } else { (100, &[16, 64, 1_024, 9_000]) };
        for &len in lengths {
            // Ends on a word, so that the whole of the word belongs to the message.
            for offset in [0, 8] {
                last_octet_last::<Native>(offset, len, rounds);
                last_octet_last::<octets::Octets>(offset, len, rounds);
            }
        }
    }
}
