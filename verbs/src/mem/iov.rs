//! [`GatherList`]: one send over private octets and registered memory.

use std::io;
use std::os::fd::BorrowedFd;

use super::{MemoryError, Region};

#[cfg(not(all(target_os = "linux", not(iwarp_portable))))]
use self::staged as imp;
#[cfg(all(target_os = "linux", not(iwarp_portable)))]
use self::vectored as imp;

bitflags::bitflags! {
    /// How a [`GatherList`] is sent.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub(crate) struct SendFlags: u8 {
        /// What follows starts a new TCP segment (`MSG_EOR`), where the system knows that.
        const END_OF_RECORD = 1;
    }
}

/// What one system call sends: private octets and ranges of registered memory, in order.
///
/// Regions are in use from the push to the end of the list's life, so a list is made, sent once and
/// dropped; a peer that does not read must never hold up a deregistration.
#[derive(Debug, Default)]
pub(crate) struct GatherList<'a>(imp::List<'a>);

impl<'a> GatherList<'a> {
    /// Pieces that one list can hold; the system's own limit is not smaller.
    pub(crate) const MAX: usize = 1024;

    pub(crate) fn new() -> Self {
        Self::default()
    }

    /// Whether [`MAX`](Self::MAX) pieces have been pushed: send before more are.
    pub(crate) fn is_full(&self) -> bool {
        self.0.pieces() >= Self::MAX
    }

    /// Appends private octets.
    ///
    /// # Panics
    ///
    /// If the list [is full](Self::is_full).
    pub(crate) fn push_bytes(&mut self, octets: &'a [u8]) {
        assert!(!self.is_full(), "more than {} pieces in one send", Self::MAX);
        if !octets.is_empty() {
            self.0.push_bytes(octets);
        }
    }

    /// Appends `len` octets of `region`, and puts it in use. Rights are the caller's affair.
    ///
    /// Fails without effect if the region is invalid or the range is outside of it.
    ///
    /// # Panics
    ///
    /// If the list [is full](Self::is_full).
    pub(crate) fn push_region(
        &mut self,
        region: &'a Region,
        offset: usize,
        len: usize,
    ) -> Result<(), MemoryError> {
        assert!(!self.is_full(), "more than {} pieces in one send", Self::MAX);
        self.0.push_region(region, offset, len)
    }

    /// Sends without blocking and without SIGPIPE, and says how many octets the socket took: possibly
    /// fewer than were pushed. `WouldBlock` if it took none. The list is used up either way.
    pub(crate) fn send(self, socket: BorrowedFd<'_>, flags: SendFlags) -> io::Result<usize> {
        self.0.send(socket, flags)
    }
}

/// `sendmsg` straight from the regions.
#[cfg(all(target_os = "linux", not(iwarp_portable)))]
mod vectored {
    use std::io;
    use std::marker::PhantomData;
    use std::os::fd::{AsRawFd, BorrowedFd};

    use smallvec::SmallVec;

    use super::SendFlags;
    use crate::mem::guard::UseGuard;
    use crate::mem::{MemoryError, Region};

    #[derive(Default)]
    pub(super) struct List<'a> {
        pieces: SmallVec<[libc::iovec; 16]>,
        in_use: SmallVec<[UseGuard<'a>; 8]>,
        /// Octets that could not be sent from where they are.
        copies: Vec<Vec<u8>>,
        private: PhantomData<&'a [u8]>,
    }

    impl<'a> List<'a> {
        pub(super) fn pieces(&self) -> usize {
            self.pieces.len()
        }

        pub(super) fn push_bytes(&mut self, octets: &'a [u8]) {
            self.push(octets.as_ptr().cast_mut(), octets.len());
        }

        pub(super) fn push_region(
            &mut self,
            region: &'a Region,
            offset: usize,
            len: usize,
        ) -> Result<(), MemoryError> {
            let guard = region.use_guard().ok_or_else(|| region.why_invalid())?;
            match guard.range(offset, len) {
                Ok(_) if len == 0 => {}
                Ok(at) => {
                    self.push(at, len);
                    self.in_use.push(guard);
                }
                // In several pieces, which may be too many for one call.
                Err(error) => {
                    if !guard.is_in_parts(offset, len) {
                        return Err(error);
                    }
                    let mut copy = vec![0; len];
                    guard.copy_out(offset, &mut copy)?;
                    // Of a vector, since a `Box` that is moved takes back what it lent.
                    self.push(copy.as_mut_ptr(), len);
                    self.copies.push(copy);
                }
            }
            Ok(())
        }

        fn push(&mut self, at: *mut u8, len: usize) {
            self.pieces.push(libc::iovec { iov_base: at.cast(), iov_len: len });
        }

        pub(super) fn send(
            mut self,
            socket: BorrowedFd<'_>,
            flags: SendFlags,
        ) -> io::Result<usize> {
            let mut how = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
            if flags.contains(SendFlags::END_OF_RECORD) {
                how |= libc::MSG_EOR;
            }
            // SAFETY: all zero is a valid message header: no address, no control data, nothing to send.
            let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
            message.msg_iov = self.pieces.as_mut_ptr();
            message.msg_iovlen = self.pieces.len() as _;
            loop {
                // By number, not through libc's `sendmsg`, which a preloaded library may replace.
                // SAFETY: the descriptor is open; header and vector live until the call returns; the
                // kernel only reads the octets, which are borrowed, owned by `copies`, or kept in place by `in_use`.
                let sent = unsafe {
                    libc::syscall(libc::SYS_sendmsg, socket.as_raw_fd(), &raw const message, how)
                };
                if let Ok(sent) = usize::try_from(sent) {
                    return Ok(sent);
                }
                let error = io::Error::last_os_error();
                if error.kind() != io::ErrorKind::Interrupted {
                    return Err(error);
                }
            }
        }
    }

    impl std::fmt::Debug for List<'_> {
        fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            f.debug_struct("List")
                .field("pieces", &self.pieces.len())
                .field("in_use", &self.in_use)
                .finish()
        }
    }
}

/// Registered octets are copied to a buffer first, the rest is as portable as `sendmsg`.
#[cfg(not(all(target_os = "linux", not(iwarp_portable))))]
mod staged {
    use std::io::{self, IoSlice};
    use std::ops::Range;
    use std::os::fd::BorrowedFd;

    use rustix::net::{SendAncillaryBuffer, SendFlags as How, sendmsg};

    use super::SendFlags;
    use crate::mem::{MemoryError, Region};

    #[derive(Debug, Default)]
    pub(super) struct List<'a> {
        pieces: Vec<Piece<'a>>,
        staged: Vec<u8>,
    }

    #[derive(Debug)]
    enum Piece<'a> {
        Private(&'a [u8]),
        Staged(Range<usize>),
    }

    impl<'a> List<'a> {
        pub(super) fn pieces(&self) -> usize {
            self.pieces.len()
        }

        pub(super) fn push_bytes(&mut self, octets: &'a [u8]) {
            self.pieces.push(Piece::Private(octets));
        }

        pub(super) fn push_region(
            &mut self,
            region: &'a Region,
            offset: usize,
            len: usize,
        ) -> Result<(), MemoryError> {
            let guard = region.use_guard().ok_or_else(|| region.why_invalid())?;
            if let Err(error) = guard.range(offset, len)
                && !guard.is_in_parts(offset, len)
            {
                return Err(error);
            }
            let start = self.staged.len();
            self.staged.resize(start + len, 0);
            guard.copy_out(offset, &mut self.staged[start..])?;
            if len > 0 {
                self.pieces.push(Piece::Staged(start..start + len));
            }
            Ok(())
        }

        pub(super) fn send(self, socket: BorrowedFd<'_>, flags: SendFlags) -> io::Result<usize> {
            let pieces: Vec<_> = self
                .pieces
                .iter()
                .map(|piece| match piece {
                    Piece::Private(octets) => IoSlice::new(octets),
                    Piece::Staged(range) => IoSlice::new(&self.staged[range.clone()]),
                })
                .collect();
            let mut how = How::DONTWAIT;
            // Where there is no such flag the socket itself was told to raise no signal.
            #[cfg(not(any(target_vendor = "apple", windows)))]
            {
                how |= How::NOSIGNAL;
            }
            if flags.contains(SendFlags::END_OF_RECORD) {
                how |= How::EOR;
            }
            let send = || sendmsg(socket, &pieces, &mut SendAncillaryBuffer::default(), how);
            Ok(rustix::io::retry_on_intr(send)?)
        }
    }
}

#[cfg(test)]
#[cfg(not(any(loom, miri)))]
mod tests {
    use std::io::{ErrorKind, Read};
    use std::net::{TcpListener, TcpStream};
    use std::os::fd::AsFd;
    use std::sync::Arc;

    use proptest::prelude::*;

    use super::*;
    use crate::mem::{Access, Domain, MemoryRegion, PdId};

    fn region(len: usize) -> MemoryRegion {
        let domain = Domain { id: PdId::new(), parent: Arc::new(()) };
        let region = MemoryRegion::alloc(domain, len, Access::LOCAL_WRITE).unwrap();
        let octets: Vec<u8> = (0..len).map(|at| u8::try_from(at % 251).unwrap()).collect();
        region.write_at(0, &octets).unwrap();
        region
    }

    fn pair() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let out = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        (out, listener.accept().unwrap().0)
    }

    #[derive(Clone, Debug)]
    enum Part {
        Private(Vec<u8>),
        Region { offset: usize, len: usize },
    }

    fn parts() -> impl Strategy<Value = Vec<Part>> {
        let part = prop_oneof![
            proptest::collection::vec(any::<u8>(), 0..50).prop_map(Part::Private),
            (0_usize..5_000, 0_usize..5_000).prop_map(|(offset, len)| Part::Region { offset, len }),
        ];
        proptest::collection::vec(part, 1..40)
    }

    proptest! {
        #![proptest_config(ProptestConfig {
            cases: 64,
            failure_persistence: None,
            ..ProptestConfig::default()
        })]

        #[test]
        fn what_is_pushed_is_what_arrives(parts in parts(), end_of_record: bool) {
            let region = region(10_000);
            let (out, mut arrives) = pair();
            let mut list = GatherList::new();
            let mut expected = Vec::new();
            for part in &parts {
                match part {
                    Part::Private(octets) => {
                        list.push_bytes(octets);
                        expected.extend_from_slice(octets);
                    }
                    Part::Region { offset, len } => {
                        list.push_region(region.region(), *offset, *len).unwrap();
                        let start = expected.len();
                        expected.resize(start + len, 0);
                        region.read_at(*offset, &mut expected[start..]).unwrap();
                    }
                }
            }
            let flags =
                if end_of_record { SendFlags::END_OF_RECORD } else { SendFlags::empty() };
            let sent = list.send(out.as_fd(), flags).unwrap();
            drop(out);
            let mut received = Vec::new();
            arrives.read_to_end(&mut received).unwrap();
            prop_assert_eq!(&received, &expected[..sent]);
            prop_assert_eq!(sent, expected.len(), "that much fits into any socket");
        }
    }

    /// FC-022: a socket that takes some of it says exactly how much, at whatever octet it stops.
    #[test]
    fn a_part_that_was_taken_is_counted_to_the_octet() {
        let region = region(1 << 20);
        let (out, mut arrives) = pair();
        arrives.set_nonblocking(true).unwrap();
        rustix::net::sockopt::set_socket_send_buffer_size(&out, 100_000).unwrap();
        let mut into = vec![0; 70_001];
        let (mut sent, mut received, mut partial) = (0, 0, 0);
        while received < region.len() {
            if sent < region.len() {
                let mut list = GatherList::new();
                let mut at = sent;
                // Pieces of odd sizes, so that a socket rarely stops between two.
                while at < region.len() {
                    let len = 40_009.min(region.len() - at);
                    list.push_region(region.region(), at, len).unwrap();
                    at += len;
                }
                let all = region.len() - sent;
                match list.send(out.as_fd(), SendFlags::empty()) {
                    Ok(taken) => {
                        assert!(taken > 0);
                        partial += usize::from(taken < all);
                        sent += taken;
                    }
                    Err(error) => assert_eq!(error.kind(), ErrorKind::WouldBlock),
                }
            }
            if let Ok(some) = arrives.read(&mut into) {
                assert_ne!(some, 0);
                for (at, &octet) in into[..some].iter().enumerate() {
                    assert_eq!(usize::from(octet), (received + at) % 251);
                }
                received += some;
            }
            assert!(received <= sent);
        }
        assert!(partial > 0, "the socket took all at once: no test");
    }

    #[test]
    fn a_region_is_in_use_until_the_list_is_gone() {
        let memory = region(64);
        let other = memory.clone();
        let mut list = GatherList::new();
        list.push_region(memory.region(), 0, 64).unwrap();
        let outside = MemoryError::OutOfBounds { offset: 60, len: 5, size: 64 };
        assert_eq!(list.push_region(memory.region(), 60, 5), Err(outside));
        let (out, mut arrives) = pair();
        std::thread::scope(|scope| {
            let waits = scope.spawn(|| other.deregister());
            while memory.is_valid() {
                std::thread::yield_now();
            }
            // Whichever way it is sent: the refused range left no trace.
            assert_eq!(list.send(out.as_fd(), SendFlags::empty()).unwrap(), 64);
            waits.join().unwrap().unwrap();
        });
        let mut received = [0; 64];
        arrives.read_exact(&mut received).unwrap();
        assert_eq!(received[63], 63);
        let mut list = GatherList::new();
        let refused = list.push_region(memory.region(), 0, 1);
        assert_eq!(refused, Err(MemoryError::Deregistered));
    }

    #[test]
    fn as_many_pieces_as_the_system_takes() {
        let memory = region(1);
        let (out, mut arrives) = pair();
        let mut list = GatherList::new();
        while !list.is_full() {
            list.push_region(memory.region(), 0, 1).unwrap();
        }
        assert_eq!(list.send(out.as_fd(), SendFlags::END_OF_RECORD).unwrap(), GatherList::MAX);
        let mut received = vec![1; GatherList::MAX];
        arrives.read_exact(&mut received).unwrap();
        assert!(received.iter().all(|&octet| octet == 0));
    }

    #[test]
    fn a_closed_connection_is_an_error_and_no_signal() {
        let (out, arrives) = pair();
        drop(arrives);
        let error = loop {
            let mut list = GatherList::new();
            list.push_bytes(b"x");
            match list.send(out.as_fd(), SendFlags::empty()) {
                Ok(_) => std::thread::yield_now(),
                Err(error) => break error,
            }
        };
        assert!(
            matches!(error.kind(), ErrorKind::BrokenPipe | ErrorKind::ConnectionReset),
            "{error}"
        );
    }
}
