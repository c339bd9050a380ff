//! [`usable_window`]: how much TCP can send at once. No memory of the program is touched, but asking is unsafe:
//! hence here.

use std::os::fd::BorrowedFd;

/// What is known of the usable window of a TCP connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Usable {
    /// Octets that the peer's window takes besides those that TCP has been given already, sent or not.
    pub(crate) octets: usize,
    /// The peer counts its window in words of 4 octets, or larger ones.
    pub(crate) in_words: bool,
}

/// Asks TCP; `None` where it does not tell (Linux before 5.4, other systems).
///
/// The window only grows afterwards: a peer should take nothing back that it has announced (RFC 9293 §3.8.6). From one
/// that does, FPDUs lose their segments until the end of the record.
#[cfg(all(target_os = "linux", not(iwarp_portable)))]
pub(crate) fn usable_window(socket: BorrowedFd<'_>) -> Option<Usable> {
    use std::mem::{offset_of, size_of};
    use std::os::fd::AsRawFd;

    const WINDOW_END: usize = offset_of!(libc::tcp_info, tcpi_snd_wnd) + size_of::<u32>();
    /// The peer's scale is the lower half of its octet where bit fields begin at the low end.
    const SCALE_SHIFT: u32 = if cfg!(target_endian = "big") { 4 } else { 0 };

    // By number, not through libc's functions, which a preloaded library may replace.
    let mut queued: libc::c_int = 0;
    // First the queue, then the window: what is acknowledged in between makes the result smaller, never larger.
    // SAFETY: the descriptor is open; the call writes one `c_int`.
    let failed = unsafe {
        libc::syscall(libc::SYS_ioctl, socket.as_raw_fd(), libc::TIOCOUTQ, &raw mut queued)
    };
    if failed != 0 {
        return None;
    }
    // SAFETY: all zero is a valid `tcp_info`, which is made of integers.
    let mut info: libc::tcp_info = unsafe { std::mem::zeroed() };
    let mut len = libc::socklen_t::try_from(size_of::<libc::tcp_info>()).ok()?;
    // SAFETY: the descriptor is open; the call writes at most `len` octets to `info`, which has so many, and
    // to `len` how many.
    let failed = unsafe {
        libc::syscall(
            libc::SYS_getsockopt,
            socket.as_raw_fd(),
            libc::IPPROTO_TCP,
            libc::TCP_INFO,
            &raw mut info,
            &raw mut len,
        )
    };
    if failed != 0 || usize::try_from(len).ok()? < WINDOW_END {
        return None;
    }
    let window = usize::try_from(info.tcpi_snd_wnd).ok()?;
    let scale = (info.tcpi_snd_rcv_wscale >> SCALE_SHIFT) & 0xF;
    Some(Usable {
        octets: window.saturating_sub(usize::try_from(queued).ok()?),
        in_words: scale >= 2,
    })
}

/// Nobody to ask.
#[cfg(not(all(target_os = "linux", not(iwarp_portable))))]
pub(crate) fn usable_window(_: BorrowedFd<'_>) -> Option<Usable> {
    None
}

#[cfg(all(test, target_os = "linux", not(any(iwarp_portable, loom, miri))))]
mod tests {
    use std::io::{Read, Write};
    use std::net::{TcpListener, TcpStream};
    use std::os::fd::AsFd;

    use super::*;

    #[test]
    fn what_is_queued_is_taken_off_and_what_is_read_comes_back() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut out = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (mut arrives, _) = listener.accept().unwrap();
        let first = usable_window(out.as_fd()).expect("Linux 5.4 or later");
        assert!(first.octets > 4096 && first.in_words, "{first:?}");
        out.set_nonblocking(true).unwrap();
        let mut sent = 0;
        while let Ok(some) = out.write(&[0; 10_000]) {
            sent += some;
        }
        assert!(sent > first.octets);
        assert_eq!(usable_window(out.as_fd()).unwrap().octets, 0, "nobody has read");
        drop(listener);
        let mut into = vec![0; sent];
        arrives.read_exact(&mut into).unwrap();
        // The acknowledgement of the last octets is under way.
        while usable_window(out.as_fd()).unwrap().octets == 0 {
            std::thread::yield_now();
        }
    }

    #[test]
    fn other_descriptors_have_no_window() {
        let (reads, _writes) = rustix::pipe::pipe().unwrap();
        assert_eq!(usable_window(reads.as_fd()), None);
    }
}
