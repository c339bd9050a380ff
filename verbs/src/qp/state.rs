//! The states of a queue pair, as one table.
//!
//! The protocol stream keeps the fine states of the connection; these are the ones a program sees
//! and may ask for. Names are libibverbs'; the verbs draft calls `Reset` and `Init` *Idle*, `Sqd`
//! *Closing*, `Sqe` *Terminate* and `Err` *Error*. `Rtr` is never entered: on iWARP one step leads
//! from `Init` to `Rts`.

use std::sync::atomic::{AtomicU8, Ordering};

use crate::attr::QpState;

/// What can happen to a queue pair.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum QpEvent {
    /// The set-up exchange succeeded: the stream is in full operation.
    Connected,
    /// Connect or accept failed.
    SetupFailed,
    /// The program asks for an orderly end.
    Disconnect,
    /// The program asks for a state.
    Modify(QpState),
    /// The stream began an orderly close without error (its own, or the peer's FIN).
    Closing,
    /// The stream found an error, or a Terminate was sent or received.
    Terminating,
    /// The stream is over, however it ended.
    Closed,
}

/// What entering the new state asks of the engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Action {
    /// Nothing.
    None,
    /// Finish the FPDU in flight, flush the rest, FIN.
    Disconnect,
    /// Send a Terminate 0/0/00, then FIN.
    Terminate,
    /// Reset the connection, flush everything.
    Abort,
    /// No connection exists; flush both queues.
    Flush,
    /// Return to a fresh queue pair, provided that nothing is outstanding.
    Reset,
}

/// The event has no meaning in this state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Illegal;

/// The table: state and event to the next state and what to do.
///
/// `Action::Reset` is refused by the caller while requests are outstanding, and `Action::Disconnect`
/// and its like take effect in the next engine pass.
#[allow(clippy::match_same_arms, reason = "one row for each rule of the contract")]
pub(crate) fn transition(from: QpState, event: QpEvent) -> Result<(QpState, Action), Illegal> {
    use QpEvent::{Closed, Closing, Connected, Disconnect, Modify, SetupFailed, Terminating};
    use QpState as S;
    let stay = Ok((from, Action::None));
    match (from, event) {
        (S::Init, Connected) => Ok((S::Rts, Action::None)),
        (_, Connected) => Err(Illegal),

        // Moving to error flushes from any state, after a failed set-up too. // FC-035
        (S::Reset | S::Init, SetupFailed) => Ok((S::Err, Action::Flush)),
        (_, SetupFailed) => stay,

        (S::Rts, Disconnect | Modify(S::Sqd)) => Ok((S::Sqd, Action::Disconnect)),
        // The peer, or an error, was first: the program still gets what it asked for. // FC-047
        (S::Sqd | S::Sqe | S::Err, Disconnect) => stay,
        (_, Disconnect) => Err(Illegal),

        (S::Rts | S::Sqd, Closing) => Ok((S::Sqd, Action::None)),
        (S::Rts | S::Sqd | S::Sqe, Terminating) => Ok((S::Sqe, Action::None)),
        (S::Rts | S::Sqd | S::Sqe, Closed) => Ok((S::Err, Action::None)),
        (_, Closing | Terminating | Closed) => stay,

        (S::Reset, Modify(S::Init)) => Ok((S::Init, Action::None)),
        (S::Reset, Modify(S::Reset))
        | (S::Init, Modify(S::Init))
        | (S::Rts, Modify(S::Rts))
        | (S::Err, Modify(S::Err)) => stay,
        (S::Init | S::Err, Modify(S::Reset)) => Ok((S::Reset, Action::Reset)),
        (S::Reset | S::Init, Modify(S::Err)) => Ok((S::Err, Action::Flush)),
        (S::Rts, Modify(S::Sqe)) => Ok((S::Sqe, Action::Terminate)),
        (S::Rts | S::Sqd | S::Sqe, Modify(S::Err)) => Ok((S::Err, Action::Abort)),
        (_, Modify(_)) => Err(Illegal),
    }
}

/// The state of one queue pair, changed only along the table.
///
/// One octet: the state, and whether a connect or accept has claimed the queue pair.
#[derive(Debug)]
pub(crate) struct StateCell(AtomicU8);

const CLAIMED: u8 = 0x80;

impl StateCell {
    pub(crate) fn new(state: QpState) -> Self {
        Self(AtomicU8::new(octet(state)))
    }

    #[inline]
    pub(crate) fn get(&self) -> QpState {
        of(self.0.load(Ordering::Acquire))
    }

    /// Reserves an idle queue pair for one connection. Fails with the state it is in.
    pub(crate) fn claim(&self) -> Result<(), QpState> {
        let idle = octet(QpState::Init);
        self.0
            .compare_exchange(idle, idle | CLAIMED, Ordering::AcqRel, Ordering::Acquire)
            .map(drop)
            .map_err(of)
    }

    /// Takes one step of the table, and ends a claim. Fails with the state it is in.
    pub(crate) fn step(&self, event: QpEvent) -> Result<Action, QpState> {
        self.step_if(event, |_| true)
    }

    /// As [`step`](Self::step), unless `allowed` refuses what the step would do.
    pub(crate) fn step_if(
        &self,
        event: QpEvent,
        allowed: impl Fn(Action) -> bool,
    ) -> Result<Action, QpState> {
        let mut seen = self.0.load(Ordering::Acquire);
        loop {
            let from = of(seen);
            let (to, action) = transition(from, event).map_err(|Illegal| from)?;
            if !allowed(action) {
                return Err(from);
            }
            // A step that stays leaves a claim in force.
            let next = if to == from { seen } else { octet(to) };
            match self.0.compare_exchange_weak(seen, next, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => return Ok(action),
                Err(now) => seen = now,
            }
        }
    }

    /// A step that the stream has taken already.
    pub(crate) fn follow(&self, event: QpEvent) {
        let followed = self.step(event);
        debug_assert!(followed.is_ok(), "{event:?} is possible in every state");
    }
}

/// Position in [`QpState::ALL`].
const fn octet(state: QpState) -> u8 {
    match state {
        QpState::Reset => 0,
        QpState::Init => 1,
        QpState::Rtr => 2,
        QpState::Rts => 3,
        QpState::Sqd => 4,
        QpState::Sqe => 5,
        QpState::Err => 6,
    }
}

#[inline]
fn of(octet: u8) -> QpState {
    let state = QpState::ALL.get(usize::from(octet & !CLAIMED)).copied();
    debug_assert!(state.is_some(), "only states are stored");
    state.unwrap_or(QpState::Err)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// FC-070: every state against every event, as the verbs contract has it. `-` is refused, `=`
    /// changes nothing; a letter after the state is what is done.
    #[test]
    fn the_whole_table() {
        let events: Vec<(&str, QpEvent)> = [
            ("connected", QpEvent::Connected),
            ("setup failed", QpEvent::SetupFailed),
            ("disconnect", QpEvent::Disconnect),
            ("closing", QpEvent::Closing),
            ("terminating", QpEvent::Terminating),
            ("closed", QpEvent::Closed),
            ("to RESET", QpEvent::Modify(QpState::Reset)),
            ("to INIT", QpEvent::Modify(QpState::Init)),
            ("to RTR", QpEvent::Modify(QpState::Rtr)),
            ("to RTS", QpEvent::Modify(QpState::Rts)),
            ("to SQD", QpEvent::Modify(QpState::Sqd)),
            ("to SQE", QpEvent::Modify(QpState::Sqe)),
            ("to ERR", QpEvent::Modify(QpState::Err)),
        ]
        .into();
        let mut table = String::new();
        for (name, event) in events {
            let mut row = vec![format!("{name:12}")];
            for from in QpState::ALL {
                let cell = match transition(from, event) {
                    Err(Illegal) => "-".to_owned(),
                    Ok((to, Action::None)) if to == from => "=".to_owned(),
                    Ok((to, action)) => {
                        let action = match action {
                            Action::None => "",
                            Action::Disconnect => " D",
                            Action::Terminate => " T",
                            Action::Abort => " A",
                            Action::Flush => " F",
                            Action::Reset => " R",
                        };
                        format!("{to}{action}")
                    }
                };
                row.push(format!("{cell:7}"));
            }
            table += row.join(" ").trim_end();
            table.push('\n');
        }
        let expected = "\
connected    -       RTS     -       -       -       -       -
setup failed ERR F   ERR F   =       =       =       =       =
disconnect   -       -       -       SQD D   =       =       =
closing      =       =       =       SQD     =       =       =
terminating  =       =       =       SQE     SQE     =       =
closed       =       =       =       ERR     ERR     ERR     =
to RESET     =       RESET R -       -       -       -       RESET R
to INIT      INIT    =       -       -       -       -       -
to RTR       -       -       -       -       -       -       -
to RTS       -       -       -       =       -       -       -
to SQD       -       -       -       SQD D   -       -       -
to SQE       -       -       -       SQE T   -       -       -
to ERR       ERR F   ERR F   -       ERR A   ERR A   ERR A   =
";
        assert_eq!(table, expected, "\n{table}");
    }

    #[test]
    fn a_queue_pair_is_claimed_once() {
        let cell = StateCell::new(QpState::Init);
        assert_eq!(cell.claim(), Ok(()));
        assert_eq!(cell.get(), QpState::Init);
        assert_eq!(cell.claim(), Err(QpState::Init), "somebody is connecting it");
        assert_eq!(cell.step(QpEvent::Modify(QpState::Init)), Ok(Action::None));
        assert_eq!(cell.claim(), Err(QpState::Init), "a step that stays changes nothing");
        assert_eq!(cell.step(QpEvent::Connected), Ok(Action::None));
        assert_eq!(cell.claim(), Err(QpState::Rts));
    }

    #[test]
    fn a_refused_step_changes_nothing() {
        let cell = StateCell::new(QpState::Err);
        let modify = QpEvent::Modify(QpState::Reset);
        assert_eq!(cell.step_if(modify, |action| action != Action::Reset), Err(QpState::Err));
        assert_eq!(cell.get(), QpState::Err);
        assert_eq!(cell.step(modify), Ok(Action::Reset));
        assert_eq!(cell.get(), QpState::Reset);
    }
}
