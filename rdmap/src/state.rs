//! The states of a stream and what leads from one to the other.

use std::fmt;

/// Where a stream stands between the end of the MPA start-up and the end of its TCP connection: in order, with
/// a Terminate, or because TCP is lost (RDMAP-064).
///
/// | state | what it means | input | output |
/// |---|---|---|---|
/// | `FirstWait` | responder, nothing received yet | processed | held (MPA-029) |
/// | `Full` | in full operation | processed | all |
/// | `Finishing` | closing in order: what was submitted is still carried out | processed | all |
/// | `Closing` | nothing more to say: FIN is due or sent, the peer's is awaited | discarded | FPDUs in flight, FIN |
/// | `Terminating` | an error, here or there | discarded | FPDUs in flight, Terminate, FIN |
/// | `Closed` | over | | |
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum State {
    /// Responder that has not received an FPDU: its sender is held.
    FirstWait,
    /// Full operation.
    Full,
    /// Orderly close begun; submitted work is still carried out, new work is refused.
    Finishing,
    /// Orderly close, nothing left to send but FIN.
    Closing,
    /// Error found, or Terminate received; the stream is being closed.
    Terminating,
    /// Over: nothing is sent or received any more.
    Closed,
}

impl State {
    /// Whether new operations are taken.
    #[must_use]
    pub const fn accepts_work(self) -> bool {
        matches!(self, Self::FirstWait | Self::Full)
    }

    /// Whether FPDUs of the peer are looked at, or only discarded (MPA-083, DDP-059).
    #[must_use]
    pub const fn receives(self) -> bool {
        matches!(self, Self::FirstWait | Self::Full | Self::Finishing)
    }
}

impl fmt::Display for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::FirstWait => "waiting for the first FPDU",
            Self::Full => "full operation",
            Self::Finishing => "finishing",
            Self::Closing => "closing",
            Self::Terminating => "terminating",
            Self::Closed => "closed",
        })
    }
}

/// What can happen to a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Trigger {
    /// A valid FPDU came in while none had before.
    FirstFpdu,
    /// Octets came in while nothing was expected any more.
    LateInput,
    /// An error of the kind that a Terminate reports.
    Fault,
    /// An error that is not reported to the peer, or its Terminate.
    Silent,
    /// FIN, and nothing is left to do.
    FinIdle,
    /// FIN, and what is left to do needs nothing more from the peer.
    FinOutput,
    /// Orderly close asked for.
    Close,
    /// Close asked for that does not wait for what was submitted.
    Disconnect,
    /// All submitted work is done and sent.
    WorkDone,
    /// Both halves of the connection are closed.
    BothClosed,
    /// The time for closing is over.
    Grace,
    /// TCP is gone.
    Lost,
    /// Reset asked for, or nothing else is possible.
    Reset,
}

/// What to do on a transition.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Action {
    /// Go on: nothing else changes.
    Continue,
    /// Let the sender go (MPA-029).
    Release,
    /// Send Terminate behind what is in flight, then FIN.
    Terminate,
    /// Stop sending and receiving; FIN behind what is in flight.
    Stop,
    /// Remember that the close was not clean.
    MarkBadClose,
    /// Report the end.
    End,
    /// Reset TCP, report the end.
    Reset,
}

/// The transition table; `None` where the trigger means nothing in this state.
#[allow(clippy::match_same_arms, reason = "a table: a line for each rule, though some do the same")]
pub(crate) const fn next(state: State, trigger: Trigger) -> Option<(State, Action)> {
    use Action as A;
    use State::{Closed, Closing, Finishing, FirstWait, Full, Terminating};
    use Trigger as T;
    Some(match (state, trigger) {
        // MPA-029, CONN-29
        (FirstWait, T::FirstFpdu) => (Full, A::Release),
        (Finishing, T::FirstFpdu) => (Finishing, A::Release),

        // MPA-029: a held sender sends no Terminate either. (First FPDUs that are valid for MPA and bad
        // for RDMAP have released it: decision D1.)
        (FirstWait, T::Fault | T::Silent) => (Terminating, A::Stop),
        (Full | Finishing, T::Fault) => (Terminating, A::Terminate),
        // RDMAP-054, RDMAP-056
        (Full | Finishing, T::Silent) => (Terminating, A::Stop),

        // A FIN that leaves work behind which needs the peer is a fault (RDMAP-082).
        (FirstWait | Full | Finishing, T::FinIdle) => (Closing, A::Stop),
        // FC-029, DDP-043: what was submitted goes out through the half that is open.
        (Full | Finishing, T::FinOutput) => (Finishing, A::Continue),

        // DDP-041
        (FirstWait | Full, T::Close) => (Finishing, A::Continue),
        (FirstWait | Full | Finishing, T::Disconnect) => (Closing, A::Stop),
        (Finishing, T::WorkDone) => (Closing, A::Stop),

        (Closing, T::LateInput) => (Closing, A::MarkBadClose),
        (Closing | Terminating, T::BothClosed | T::Grace) => (Closed, A::End),

        (Closed, _) => return None,
        (_, T::Lost) => (Closed, A::End),
        (_, T::Reset) => (Closed, A::Reset),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const STATES: [State; 6] = [
        State::FirstWait,
        State::Full,
        State::Finishing,
        State::Closing,
        State::Terminating,
        State::Closed,
    ];

    const TRIGGERS: [Trigger; 13] = [
        Trigger::FirstFpdu,
        Trigger::LateInput,
        Trigger::Fault,
        Trigger::Silent,
        Trigger::FinIdle,
        Trigger::FinOutput,
        Trigger::Close,
        Trigger::Disconnect,
        Trigger::WorkDone,
        Trigger::BothClosed,
        Trigger::Grace,
        Trigger::Lost,
        Trigger::Reset,
    ];

    /// Every state with every trigger, compared with the table written out.
    #[test]
    fn the_table_is_this_one() {
        let rows = TRIGGERS.map(|trigger| {
            let cells = STATES.map(|state| match next(state, trigger) {
                None => "-".to_owned(),
                Some((to, action)) => format!("{to:?}/{action:?}"),
            });
            format!("{trigger:?} | {}", cells.join(" | "))
        });
        let expected = [
            // FirstWait | Full | Finishing | Closing | Terminating | Closed
            "FirstFpdu | Full/Release | - | Finishing/Release | - | - | -",
            "LateInput | - | - | - | Closing/MarkBadClose | - | -",
            "Fault | Terminating/Stop | Terminating/Terminate | Terminating/Terminate | - | - | -",
            "Silent | Terminating/Stop | Terminating/Stop | Terminating/Stop | - | - | -",
            "FinIdle | Closing/Stop | Closing/Stop | Closing/Stop | - | - | -",
            "FinOutput | - | Finishing/Continue | Finishing/Continue | - | - | -",
            "Close | Finishing/Continue | Finishing/Continue | - | - | - | -",
            "Disconnect | Closing/Stop | Closing/Stop | Closing/Stop | - | - | -",
            "WorkDone | - | - | Closing/Stop | - | - | -",
            "BothClosed | - | - | - | Closed/End | Closed/End | -",
            "Grace | - | - | - | Closed/End | Closed/End | -",
            "Lost | Closed/End | Closed/End | Closed/End | Closed/End | Closed/End | -",
            "Reset | Closed/Reset | Closed/Reset | Closed/Reset | Closed/Reset | Closed/Reset | -",
        ];
        assert_eq!(rows, expected);
    }

    /// The end is reached from everywhere, and never left; and no state comes back.
    #[test]
    fn states_only_go_forward() {
        for state in STATES {
            for trigger in TRIGGERS {
                let Some((to, action)) = next(state, trigger) else { continue };
                assert!(to >= state, "{state:?} {trigger:?}");
                assert_eq!(
                    to == State::Closed,
                    matches!(action, Action::End | Action::Reset),
                    "{state:?} {trigger:?}"
                );
                // RDMAP-051: a state that sends Terminate is left by it, for one that cannot.
                if action == Action::Terminate {
                    assert_eq!(to, State::Terminating);
                }
            }
            assert_eq!(next(state, Trigger::Lost).is_some(), state != State::Closed);
        }
    }

    #[test]
    fn each_state_has_a_name_of_its_own() {
        let names: std::collections::BTreeSet<_> =
            STATES.iter().map(std::string::ToString::to_string).collect();
        assert_eq!(names.len(), STATES.len());
        assert_eq!(State::FirstWait.to_string(), "waiting for the first FPDU");
    }

    #[test]
    fn what_a_state_lets_through() {
        let receives = STATES.map(State::receives);
        assert_eq!(receives, [true, true, true, false, false, false]);
        let works = STATES.map(State::accepts_work);
        assert_eq!(works, [true, true, false, false, false, false]);
    }
}
