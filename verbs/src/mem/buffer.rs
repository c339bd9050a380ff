//! Where registered octets live: [`StableBytes`] for memory that a program gives, [`Pages`] for ours.

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::ptr::NonNull;

use super::MemoryError;

/// Start of every region that the library allocates.
const PAGE: usize = 4096;

/// From this size on memory comes straight from the system: untouched pages then cost nothing.
#[cfg(all(unix, not(miri)))]
const MAPPED_FROM: usize = 128 << 10;

/// A buffer of octets that can be registered safely.
///
/// Registration takes the value, hands its octets to peers, and gives the value back when the region
/// is deregistered.
///
/// # Safety
///
/// For a value that is neither used nor dropped, `as_mut_ptr` must give a pointer that
/// - is valid for reading and writing `size` octets, all of them initialised,
/// - stays so, and stays at its place, when the value itself is moved to another place or thread,
/// - is not aliased: nobody else reads or writes these octets.
///
/// Both functions must give the same results each time.
pub unsafe trait StableBytes: Send + 'static {
    /// The first octet. May dangle if there are none.
    fn as_mut_ptr(&mut self) -> *mut u8;

    /// How many octets there are.
    fn size(&self) -> usize;
}

// SAFETY: the octets of a vector are on the heap, its length of them initialised; it is their owner.
unsafe impl StableBytes for Vec<u8> {
    fn as_mut_ptr(&mut self) -> *mut u8 {
        Self::as_mut_ptr(self)
    }

    fn size(&self) -> usize {
        self.len()
    }
}

// SAFETY: the octets are on the heap; the box is their owner.
unsafe impl StableBytes for Box<[u8]> {
    fn as_mut_ptr(&mut self) -> *mut u8 {
        (**self).as_mut_ptr()
    }

    fn size(&self) -> usize {
        self.len()
    }
}

// SAFETY: the octets are on the heap; the box is their owner.
unsafe impl<const N: usize> StableBytes for Box<[u8; N]> {
    fn as_mut_ptr(&mut self) -> *mut u8 {
        (**self).as_mut_ptr()
    }

    fn size(&self) -> usize {
        N
    }
}

// SAFETY: the reference is exclusive and outlives everything; the octets are not inside it.
unsafe impl StableBytes for &'static mut [u8] {
    fn as_mut_ptr(&mut self) -> *mut u8 {
        (**self).as_mut_ptr()
    }

    fn size(&self) -> usize {
        self.len()
    }
}

// SAFETY: the octets are on the heap, its length of them initialised; no other handle reaches them.
unsafe impl StableBytes for bytes::BytesMut {
    fn as_mut_ptr(&mut self) -> *mut u8 {
        (**self).as_mut_ptr()
    }

    fn size(&self) -> usize {
        self.len()
    }
}

/// Zeroed octets at the start of a page, owned by the library.
#[derive(Debug)]
pub(super) struct Pages {
    at: NonNull<u8>,
    origin: Origin,
}

#[derive(Debug)]
enum Origin {
    Nothing,
    Heap(Layout),
    #[cfg(all(unix, not(miri)))]
    Mapped(usize),
}

// SAFETY: exclusive ownership of plain octets, as a `Box<[u8]>` has.
unsafe impl Send for Pages {}

impl Pages {
    pub(super) fn new(len: usize) -> Result<Self, MemoryError> {
        if len == 0 {
            let at = NonNull::without_provenance(const { std::num::NonZero::new(PAGE).unwrap() });
            return Ok(Self { at, origin: Origin::Nothing });
        }
        #[cfg(all(unix, not(miri)))]
        if len >= MAPPED_FROM {
            return Self::mapped(len);
        }
        let layout =
            Layout::from_size_align(len, PAGE).map_err(|_| MemoryError::TooLarge { len })?;
        // SAFETY: the size is not 0.
        let at = unsafe { alloc_zeroed(layout) };
        let at = NonNull::new(at).ok_or(MemoryError::OutOfMemory { len })?;
        Ok(Self { at, origin: Origin::Heap(layout) })
    }

    #[cfg(all(unix, not(miri)))]
    fn mapped(len: usize) -> Result<Self, MemoryError> {
        use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous};

        if isize::try_from(len).is_err() {
            return Err(MemoryError::TooLarge { len });
        }
        let rights = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new private mapping at a place that the system chooses touches nothing that exists.
        let at = unsafe { mmap_anonymous(std::ptr::null_mut(), len, rights, MapFlags::PRIVATE) };
        let at = at.ok().and_then(|at| NonNull::new(at.cast()));
        let at = at.ok_or(MemoryError::OutOfMemory { len })?;
        Ok(Self { at, origin: Origin::Mapped(len) })
    }

    pub(super) fn at(&self) -> NonNull<u8> {
        self.at
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        match self.origin {
            Origin::Nothing => {}
            // SAFETY: allocated with this layout, and nobody uses it any more.
            Origin::Heap(layout) => unsafe { dealloc(self.at.as_ptr(), layout) },
            #[cfg(all(unix, not(miri)))]
            Origin::Mapped(len) => {
                // SAFETY: mapped with this length, and nobody uses it any more.
                let unmapped = unsafe { rustix::mm::munmap(self.at.as_ptr().cast(), len) };
                debug_assert_eq!(unmapped, Ok(()), "unmapping {len} octets of our own");
            }
        }
    }
}
