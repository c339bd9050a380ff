//! Who sends next: own messages or Read Responses.

/// The two sources of messages of one direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Turn {
    Own,
    Response,
}

/// The own message whose segment could go out now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct OwnReady {
    pub(crate) tagged: bool,
    /// Some of its segments went out already.
    pub(crate) begun: bool,
}

/// The Read Response whose segment could go out now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ResponseReady {
    /// That of a Read is, that of an Atomic is not.
    pub(crate) tagged: bool,
    pub(crate) begun: bool,
}

/// Shares the stream between own messages and Read Responses, one FPDU at a time. A Send may so be complete at
/// its sink before an earlier Read Request or Atomic Request is answered (ORD-14, ORD-19).
///
/// Neither side sends more than a burst of FPDUs while the other waits, but for one thing: two tagged
/// messages, an own Write and a Read Response, are never mixed. DDP would allow it, as each tagged segment
/// says where it goes. But nothing in a tagged segment says which message its L bit ends, and a deployed
/// receiver (Linux siw) closes the connection when the opcode changes inside a tagged message. Sends,
/// requests and the answers to Atomics are untagged, so they go out between the segments of a long Response and the other way
/// round; a Write and a Response wait for each other's last segment.
#[derive(Debug)]
pub(crate) struct Arbiter {
    burst: usize,
    turn: Turn,
    /// FPDUs in a row that `turn` has had.
    run: usize,
}

impl Arbiter {
    pub(crate) fn new(burst: usize) -> Self {
        Self { burst: burst.max(1), turn: Turn::Own, run: 0 }
    }

    #[inline]
    pub(crate) fn choose(
        &self,
        own: Option<OwnReady>,
        response: Option<ResponseReady>,
    ) -> Option<Turn> {
        match (own, response) {
            (None, None) => None,
            (None, Some(_)) => Some(Turn::Response),
            (Some(_), None)
            | (
                Some(OwnReady { tagged: true, begun: true }),
                Some(ResponseReady { tagged: true, .. }),
            ) => Some(Turn::Own),
            (Some(OwnReady { tagged: true, .. }), Some(ResponseReady { begun: true, .. })) => {
                Some(Turn::Response)
            }
            (Some(_), Some(_)) if self.run < self.burst => Some(self.turn),
            (Some(_), Some(_)) => Some(match self.turn {
                Turn::Own => Turn::Response,
                Turn::Response => Turn::Own,
            }),
        }
    }

    /// An FPDU went out.
    #[inline]
    pub(crate) fn sent(&mut self, turn: Turn) {
        if turn == self.turn {
            self.run = self.run.saturating_add(1);
        } else {
            self.turn = turn;
            self.run = 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RESPONSE: Option<ResponseReady> = Some(ResponseReady { tagged: true, begun: false });
    const BEGUN: Option<ResponseReady> = Some(ResponseReady { tagged: true, begun: true });
    const ATOMIC: Option<ResponseReady> = Some(ResponseReady { tagged: false, begun: false });

    const fn own(tagged: bool, begun: bool) -> OwnReady {
        OwnReady { tagged, begun }
    }

    fn turns(
        arbiter: &mut Arbiter,
        count: usize,
        own: impl Into<Option<OwnReady>>,
        response: Option<ResponseReady>,
    ) -> String {
        let own = own.into();
        (0..count)
            .map(|_| match arbiter.choose(own, response) {
                Some(turn) => {
                    arbiter.sent(turn);
                    if turn == Turn::Own { 'o' } else { 'r' }
                }
                None => '-',
            })
            .collect()
    }

    #[test]
    fn bursts_alternate_while_both_wait() {
        let mut arbiter = Arbiter::new(2);
        assert_eq!(turns(&mut arbiter, 8, own(false, false), BEGUN), "oorroorr");
    }

    #[test]
    fn who_is_alone_goes_on() {
        let mut arbiter = Arbiter::new(2);
        assert_eq!(turns(&mut arbiter, 5, None, BEGUN), "rrrrr");
        assert_eq!(turns(&mut arbiter, 5, own(true, true), None), "ooooo");
        assert_eq!(turns(&mut arbiter, 1, None, None), "-");
    }

    #[test]
    fn whoever_comes_new_waits_no_longer_than_a_burst() {
        let mut arbiter = Arbiter::new(3);
        turns(&mut arbiter, 50, None, BEGUN);
        assert_eq!(turns(&mut arbiter, 1, own(false, false), BEGUN), "o");
        let mut arbiter = Arbiter::new(3);
        turns(&mut arbiter, 50, own(false, true), None);
        assert_eq!(turns(&mut arbiter, 1, own(false, true), RESPONSE), "r");
    }

    #[test]
    fn two_tagged_messages_do_not_mix() {
        let mut arbiter = Arbiter::new(1);
        assert_eq!(turns(&mut arbiter, 4, own(true, true), RESPONSE), "oooo");
        assert_eq!(turns(&mut arbiter, 4, own(true, false), BEGUN), "rrrr");
        // At a boundary of both, the one that has waited goes first.
        assert_eq!(turns(&mut arbiter, 1, own(true, false), RESPONSE), "o");
    }

    #[test]
    fn the_answer_to_an_atomic_goes_between_the_segments_of_a_write() {
        let mut arbiter = Arbiter::new(2);
        assert_eq!(turns(&mut arbiter, 4, own(true, true), ATOMIC), "oorr");
    }

    #[test]
    fn a_burst_of_zero_counts_as_one() {
        let mut arbiter = Arbiter::new(0);
        assert_eq!(turns(&mut arbiter, 4, own(false, false), BEGUN), "oror");
    }
}
