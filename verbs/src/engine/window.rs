//! How much of what is sent TCP sends at once, as far as the engine knows: records that go beyond it would not
//! keep their FPDUs at the starts of segments (MPA-072).

use iwarp_rdmap::UsableWindow;

use crate::sys::Socket;

/// Octets that are sent between two looks at the window. One costs two short system calls; where the window is
/// the bottleneck each FPDU would ask for one.
const BETWEEN_LOOKS: usize = 64 * 1024;

/// The usable window as it was at the last look, less what was sent since.
///
/// Nobody looks before a record of several segments needs it: small messages never do.
#[derive(Debug, Default)]
pub(super) struct Window {
    octets: usize,
    in_words: bool,
    /// Octets to send before another look.
    fresh_for: usize,
}

impl Window {
    /// What the next record may take for known.
    #[inline]
    pub(super) fn usable(&self) -> UsableWindow {
        UsableWindow { octets: self.octets, in_words: self.in_words, stale: self.fresh_for == 0 }
    }

    /// TCP has taken so many octets.
    #[inline]
    pub(super) fn sent(&mut self, octets: usize) {
        self.octets = self.octets.saturating_sub(octets);
        self.fresh_for = self.fresh_for.saturating_sub(octets);
    }

    /// Looks. TCP has all that was handed out.
    #[cold]
    pub(super) fn look(&mut self, socket: &Socket) {
        let UsableWindow { octets, in_words, .. } = socket.usable_window();
        *self = Self { octets, in_words, fresh_for: BETWEEN_LOOKS };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_window_shrinks_and_ages_by_what_is_sent() {
        let mut window = Window::default();
        assert_eq!((window.usable().octets, window.usable().stale), (0, true), "nobody has looked");
        window = Window { octets: 100_000, in_words: true, fresh_for: BETWEEN_LOOKS };
        window.sent(BETWEEN_LOOKS - 1);
        assert!(!window.usable().stale);
        window.sent(1);
        assert!(window.usable().stale);
        assert_eq!(window.usable().octets, 100_000 - BETWEEN_LOOKS);
        window.sent(100_000);
        assert_eq!(window.usable().octets, 0);
    }
}
