//! How much of what is sent TCP sends at once, as far as the engine knows: records that go beyond it would not
//! keep their FPDUs at the starts of segments (MPA-072).

use iwarp_rdmap::UsableWindow;

use crate::sys::Socket;

/// With less room than this the end of the window is near.
const NEAR: u32 = 32 * 1024;

/// Octets after which somebody looks whether the end is still near, if no record has asked meanwhile.
const BETWEEN_LOOKS: u32 = 64 * 1024;

/// The usable window as it was at the last look, less what was sent since.
///
/// Nobody looks before a record of several segments needs it: small messages never do. Each look costs two short system
/// calls.
///
/// Near the end of the window TCP is told to take nothing while it has octets that it cannot send. So one
/// record lies beyond the window, for which TCP probes it and after which it announces room, and what follows is
/// cut once it is known how far the window has opened. Without that all that a socket buffer holds would lie
/// beyond the window, in the smallest of records, and a receiver that many small segments slow down would never
/// catch up.
///
/// Each idle connection has one of these, so figures are of the width that TCP gives them.
#[derive(Debug, Default)]
pub(super) struct Window {
    octets: u32,
    /// Octets sent near the end of the window since the last look.
    sent: u32,
    /// How many octets TCP might hold without sending them before it was told otherwise.
    unsent_most: u32,
    in_words: bool,
    /// Nothing was sent since the last look.
    fresh: bool,
    /// TCP has been told.
    near: bool,
}

impl Window {
    /// What the next record may take for known.
    #[inline]
    pub(super) fn usable(&mut self, socket: &Socket) -> UsableWindow {
        if self.near && self.sent >= BETWEEN_LOOKS {
            self.look(socket);
        }
        let octets = usize::try_from(self.octets).unwrap_or(usize::MAX);
        UsableWindow { octets, in_words: self.in_words, stale: !self.fresh }
    }

    /// TCP has taken so many octets.
    #[inline]
    pub(super) fn sent(&mut self, octets: usize) {
        let octets = u32::try_from(octets).unwrap_or(u32::MAX);
        self.octets = self.octets.saturating_sub(octets);
        self.sent = self.sent.saturating_add(octets);
        self.fresh = false;
    }

    /// Looks. TCP has all that was handed out.
    #[cold]
    pub(super) fn look(&mut self, socket: &Socket) {
        let UsableWindow { octets, in_words, .. } = socket.usable_window();
        self.octets = u32::try_from(octets).unwrap_or(u32::MAX);
        self.in_words = in_words;
        self.fresh = true;
        self.sent = 0;
        let near = self.octets < NEAR;
        if near && !self.near {
            if let Ok(before) = socket.set_unsent_most(1) {
                self.unsent_most = before;
                self.near = true;
            }
        } else if self.near && !near {
            match socket.set_unsent_most(self.unsent_most) {
                Ok(_) => self.near = false,
                // Slower, but as right; the next look tries again.
                Err(error) => tracing::debug!(%error, "TCP keeps taking little at a time"),
            }
        }
    }
}

#[cfg(test)]
#[cfg(not(any(loom, miri)))]
mod tests {
    use std::net::{TcpListener, TcpStream};

    use super::*;

    #[test]
    fn a_window_shrinks_and_ages_by_what_is_sent() {
        let (out, _arrives) = pair();
        let mut window = Window::default();
        let usable = window.usable(&out);
        assert_eq!((usable.octets, usable.stale), (0, true), "nobody has looked");
        window = Window { octets: 100_000, in_words: true, fresh: true, ..Window::default() };
        assert!(!window.usable(&out).stale);
        window.sent(40_000);
        let usable = window.usable(&out);
        assert_eq!((usable.octets, usable.stale), (60_000, true));
        window.sent(100_000);
        assert_eq!(window.usable(&out).octets, 0);
    }

    #[test]
    #[cfg(all(target_os = "linux", not(iwarp_portable)))]
    fn near_the_end_tcp_takes_nothing_behind_what_it_cannot_send() {
        use std::io::Read;

        let (out, mut arrives) = pair();
        let mut window = Window::default();
        window.look(&out);
        assert!(!window.near, "all of it is there");
        // More than the window, and less than the socket takes.
        let mut sent = 0;
        while socket_window(&out) > 0 {
            let Ok(some) = out.send(&[0; 10_000]) else {
                eprintln!("SKIPPED: a socket buffer holds less than the window here");
                return;
            };
            sent += some;
        }
        while let Ok(some) = out.send(&[0; 10_000]) {
            sent += some;
        }
        window.sent(sent);
        window.look(&out);
        assert!(window.near);
        assert_eq!(out.set_unsent_most(1).expect("an option of Linux"), 1);
        let usable = window.usable(&out);
        assert_eq!((usable.octets, usable.stale), (0, false));
        let mut into = vec![0; sent];
        arrives.read_exact(&mut into).expect("all of it");
        while socket_window(&out) < NEAR as usize {
            std::thread::yield_now();
        }
        // Without being asked, after a while.
        window.sent(BETWEEN_LOOKS as usize);
        assert!(window.usable(&out).octets >= NEAR as usize && !window.near);
        assert_eq!(out.set_unsent_most(0).expect("an option of Linux"), 0, "as it was");
    }

    #[cfg(all(target_os = "linux", not(iwarp_portable)))]
    fn socket_window(socket: &Socket) -> usize {
        socket.usable_window().octets
    }

    fn pair() -> (Socket, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let out = TcpStream::connect(listener.local_addr().expect("a name")).expect("a peer");
        (Socket::from_stream(out).expect("a socket"), listener.accept().expect("a peer").0)
    }
}
