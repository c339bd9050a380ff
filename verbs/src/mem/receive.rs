//! [`receive_into`]: octets from a socket into registered memory, without a buffer in between.

use std::io;
use std::os::fd::BorrowedFd;

#[cfg(not(all(target_os = "linux", not(iwarp_portable))))]
use self::staged as imp;
#[cfg(all(target_os = "linux", not(iwarp_portable)))]
use self::vectored as imp;
use super::{MemoryError, Region};

/// From so many octets on it is faster to receive them where they belong than to copy them there.
pub(crate) const STRAIGHT_FROM: usize = imp::STRAIGHT_FROM;

/// Receives up to `len` octets to `offset` of `region`, and those that follow them into `behind`, without
/// blocking.
///
/// The region is in use for this one call. The outer error says that it is invalid, or that the range is
/// outside of it: then nothing was received. The inner result is that of the socket: how many octets came in
/// all, 0 if the peer has closed its direction, `WouldBlock` if there is nothing. Rights are the caller's
/// affair. In which order the octets become visible to a program that polls the region is not said.
pub(crate) fn receive_into(
    socket: BorrowedFd<'_>,
    region: &Region,
    offset: usize,
    len: usize,
    behind: &mut [u8],
) -> Result<io::Result<usize>, MemoryError> {
    imp::receive_into(socket, region, offset, len, behind)
}

/// One `recvmsg` straight into the region.
#[cfg(all(target_os = "linux", not(iwarp_portable)))]
mod vectored {
    use std::io;
    use std::os::fd::{AsRawFd, BorrowedFd};

    use crate::mem::{MemoryError, Region};

    pub(super) const STRAIGHT_FROM: usize = 32 * 1024;

    pub(super) fn receive_into(
        socket: BorrowedFd<'_>,
        region: &Region,
        offset: usize,
        len: usize,
        behind: &mut [u8],
    ) -> Result<io::Result<usize>, MemoryError> {
        let guard = region.use_guard().ok_or_else(|| region.why_invalid())?;
        region.program_may_write()?;
        let at = guard.range(offset, len)?;
        let mut pieces = [
            libc::iovec { iov_base: at.cast(), iov_len: len },
            libc::iovec { iov_base: behind.as_mut_ptr().cast(), iov_len: behind.len() },
        ];
        // SAFETY: all zero is a valid message header: no address, no control data, room for nothing.
        let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
        message.msg_iov = pieces.as_mut_ptr();
        message.msg_iovlen = pieces.len() as _;
        loop {
            // By number, not through libc's `recvmsg`, which a preloaded library may replace.
            // SAFETY: the descriptor is open; header and vector live until the call returns; the kernel
            // writes no octet but those of the range, which lies in the region, whose memory stays and
            // is writable while the guard is held and which no Rust reference points to, and those of
            // `behind`, which is exclusive.
            let received = unsafe {
                let message = &raw mut message;
                libc::syscall(libc::SYS_recvmsg, socket.as_raw_fd(), message, libc::MSG_DONTWAIT)
            };
            if let Ok(received) = usize::try_from(received) {
                return Ok(Ok(received));
            }
            let error = io::Error::last_os_error();
            if error.kind() != io::ErrorKind::Interrupted {
                return Ok(Err(error));
            }
        }
    }
}

/// Through a buffer, since a slice must not point to registered memory. That is not worth it, and nobody
/// should ask for it.
#[cfg(not(all(target_os = "linux", not(iwarp_portable))))]
mod staged {
    use std::io;
    use std::os::fd::BorrowedFd;

    use rustix::net::{RecvFlags, recv};

    use crate::mem::{MemoryError, Region};

    pub(super) const STRAIGHT_FROM: usize = usize::MAX;

    pub(super) fn receive_into(
        socket: BorrowedFd<'_>,
        region: &Region,
        offset: usize,
        len: usize,
        behind: &mut [u8],
    ) -> Result<io::Result<usize>, MemoryError> {
        let guard = region.use_guard().ok_or_else(|| region.why_invalid())?;
        region.program_may_write()?;
        guard.range(offset, len)?;
        let mut octets = vec![0; len + behind.len()];
        let mut receive = || recv(socket, &mut octets[..], RecvFlags::DONTWAIT);
        let received = match rustix::io::retry_on_intr(&mut receive) {
            Ok((received, _)) => received,
            Err(error) => return Ok(Err(error.into())),
        };
        let (front, rest) = octets[..received].split_at(len.min(received));
        guard.copy_in(offset, front)?;
        behind[..rest.len()].copy_from_slice(rest);
        Ok(Ok(received))
    }
}

#[cfg(test)]
#[cfg(not(any(loom, miri)))]
mod tests {
    use std::io::{ErrorKind, Write};
    use std::net::{TcpListener, TcpStream};
    use std::os::fd::AsFd;
    use std::sync::Arc;

    use super::*;
    use crate::mem::{Access, Domain, MemoryRegion, PdId};

    fn region(len: usize, access: Access) -> MemoryRegion {
        let domain = Domain { id: PdId::new(), parent: Arc::new(()) };
        MemoryRegion::alloc(domain, len, access).unwrap()
    }

    fn pair() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let out = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        (out, listener.accept().unwrap().0)
    }

    #[test]
    fn first_into_the_region_and_then_behind() {
        let memory = region(100, Access::LOCAL_WRITE);
        let (mut out, arrives) = pair();
        let receive = |offset, len, behind: &mut [u8]| {
            let socket = arrives.as_fd();
            receive_into(socket, memory.region(), offset, len, behind)
        };
        let mut behind = [0; 8];
        let nothing = receive(10, 20, &mut behind).unwrap();
        assert_eq!(nothing.unwrap_err().kind(), ErrorKind::WouldBlock);
        out.write_all(&[7; 15]).unwrap();
        assert_eq!(receive(10, 20, &mut behind).unwrap().unwrap(), 15);
        out.write_all(&[8; 30]).unwrap();
        assert_eq!(receive(25, 5, &mut behind).unwrap().unwrap(), 13);
        assert_eq!(behind, [8; 8]);
        assert_eq!(receive(30, 0, &mut behind).unwrap().unwrap(), 8);
        drop(out);
        assert_eq!(receive(99, 1, &mut []).unwrap().unwrap(), 1);
        while receive(99, 1, &mut []).unwrap().unwrap() > 0 {}
        let mut octets = [0; 100];
        memory.read_at(0, &mut octets).unwrap();
        let expected = [&[0; 10][..], &[7; 15], &[8; 5], &[0; 69], &[8]].concat();
        assert_eq!(octets[..], expected);
    }

    #[test]
    fn what_may_not_be_written_is_not_received() {
        let memory = region(100, Access::LOCAL_WRITE);
        let (mut out, arrives) = pair();
        out.write_all(b"octet").unwrap();
        let receive = |offset, len| {
            receive_into(arrives.as_fd(), memory.region(), offset, len, &mut [0; 8]).map(|_| ())
        };
        let outside = MemoryError::OutOfBounds { offset: 96, len: 5, size: 100 };
        assert_eq!(receive(96, 5), Err(outside));
        memory.region().invalidate().unwrap();
        assert_eq!(receive(0, 5), Err(MemoryError::Invalidated));
        memory.clone().deregister().unwrap();
        assert_eq!(receive(0, 5), Err(MemoryError::Deregistered));
        let mut left = [0; 9];
        let (left, _) =
            rustix::net::recv(&arrives, &mut left[..], rustix::net::RecvFlags::DONTWAIT).unwrap();
        assert_eq!(left, 5, "all is still there");
    }
}
