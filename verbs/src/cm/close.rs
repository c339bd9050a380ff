//! How an established connection ended.

use std::sync::Arc;

use iwarp_rdmap::{CloseCause, LostCause, TerminateCode};

/// How an established connection ended. The first of several causes counts.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CloseReason {
    /// One side closed with nothing left to do, and the other agreed.
    #[error("closed in order")]
    Orderly,
    /// This side disconnected while something was still to be done, which was flushed.
    #[error("disconnected by this side")]
    Disconnected,
    /// The peer found an error and said so. The request that it names, if it is known, completed with
    /// an error.
    #[error("peer sent Terminate {code} ({})", code.meaning())]
    PeerTerminated {
        /// Layer, type and code, as the peer most likely meant them.
        code: TerminateCode,
    },
    /// This side found an error, and told the peer if that was possible.
    #[error("ended by an error found here: {0}")]
    Error(Arc<iwarp_rdmap::Error>),
    /// The peer went on sending after the orderly end.
    #[error("peer went on sending after the end")]
    LateInput,
    /// The peer did not close its side in time.
    #[error("peer did not close its side in time")]
    GraceExpired,
    /// Memory that was being sent from was deregistered in the middle of a message.
    #[error("memory was taken away while it was being sent")]
    SourceLost,
    /// TCP was lost: reset, or silent for too long.
    #[error("connection lost: {}", lost_text(*.0))]
    Lost(LostCause),
    /// Something else, in the words of the protocol stream.
    #[error("ended otherwise: {0}")]
    Other(Arc<str>),
}

const fn lost_text(cause: LostCause) -> &'static str {
    match cause {
        LostCause::Reset => "reset by the peer",
        LostCause::TimedOut => "the peer was silent for too long",
        LostCause::Io(_) => "the system gave it up",
    }
}

impl From<&CloseCause> for CloseReason {
    fn from(cause: &CloseCause) -> Self {
        match cause {
            CloseCause::Orderly => Self::Orderly,
            CloseCause::User => Self::Disconnected,
            CloseCause::Terminated(terminate) => {
                Self::PeerTerminated { code: terminate.likely_code() }
            }
            CloseCause::Error(error) => Self::Error(Arc::new(error.clone())),
            CloseCause::LateInput => Self::LateInput,
            CloseCause::GraceExpired => Self::GraceExpired,
            CloseCause::SourceLost => Self::SourceLost,
            CloseCause::Lost(cause) => Self::Lost(*cause),
            other => Self::Other(format!("{other:?}").into()),
        }
    }
}

impl CloseReason {
    /// Whether everything that was posted and everything that was sent was carried out.
    #[must_use]
    pub const fn is_orderly(&self) -> bool {
        matches!(self, Self::Orderly)
    }
}

#[cfg(test)]
mod tests {
    use iwarp_rdmap::{Terminate, TerminateCode};

    use super::*;

    #[test]
    fn every_cause_has_words_of_its_own() {
        let terminate = Terminate::new(TerminateCode::CRC);
        let causes = [
            CloseCause::Orderly,
            CloseCause::User,
            CloseCause::Terminated(terminate),
            CloseCause::Error(iwarp_rdmap::Error::Requested(TerminateCode::BOUNDS)),
            CloseCause::LateInput,
            CloseCause::GraceExpired,
            CloseCause::SourceLost,
            CloseCause::Lost(LostCause::Reset),
            CloseCause::Lost(LostCause::TimedOut),
            CloseCause::Lost(LostCause::Io(std::io::ErrorKind::Other)),
        ];
        let mut texts: Vec<_> =
            causes.iter().map(|cause| CloseReason::from(cause).to_string()).collect();
        assert!(texts[2].contains("2/0/02"), "{}", texts[2]);
        assert!(texts.iter().all(|text| !text.contains("otherwise")));
        texts.sort_unstable();
        texts.dedup();
        assert_eq!(texts.len(), causes.len());
        assert!(causes.iter().filter(|cause| CloseReason::from(*cause).is_orderly()).count() == 1);
    }
}
