//! Which asynchronous event the end of a connection raises.

use iwarp_ddp::TaggedError;
use iwarp_rdmap::{CloseCause, Error, Initiator, Terminate, TerminateCode};

use crate::event::AsyncEventKind;

/// An event for the program, or none.
pub(super) type Verdict = Option<AsyncEventKind>;

/// For a Terminate that goes out or has come in.
pub(super) fn of_terminate(by: Initiator, terminate: &Terminate, cause: Option<&Error>) -> Verdict {
    match (by, cause) {
        (Initiator::User, _) if terminate.code == TerminateCode::STREAM_CATASTROPHIC => {
            // A completion queue has overrun; nothing else asks for this one.
            Some(AsyncEventKind::QpFatal)
        }
        (Initiator::User, _) => None,
        (Initiator::Local | Initiator::Remote, Some(error)) => of_error(error),
        (Initiator::Local | Initiator::Remote, None) => {
            let code = terminate.likely_code();
            Some(match (code.layer(), code.error_type()) {
                (0 | 1, 1) => AsyncEventKind::QpAccessErr,
                (0 | 1, 2) => AsyncEventKind::QpReqErr,
                _ => AsyncEventKind::QpFatal,
            })
        }
    }
}

/// For an end without a Terminate.
pub(super) fn of_close(cause: &CloseCause) -> Verdict {
    match cause {
        CloseCause::Orderly | CloseCause::User => None,
        CloseCause::Error(error) => of_error(error),
        CloseCause::LateInput | CloseCause::GraceExpired => Some(AsyncEventKind::QpReqErr),
        // `Terminated` was decided when it came.
        _ => Some(AsyncEventKind::QpFatal),
    }
}

fn of_error(error: &Error) -> Verdict {
    Some(match error {
        Error::Ddp(
            iwarp_ddp::Error::Tagged(TaggedError::Version) | iwarp_ddp::Error::Untagged(_),
        )
        | Error::Operation(_)
        | Error::BadTerminate(_) => AsyncEventKind::QpReqErr,
        Error::Ddp(iwarp_ddp::Error::Tagged(_)) | Error::Protection(_) => {
            AsyncEventKind::QpAccessErr
        }
        // Told by the completion of the request whose memory it was.
        Error::Local(_) | Error::Requested(_) => return None,
        _ => AsyncEventKind::QpFatal,
    })
}
