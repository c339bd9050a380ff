//! Why an example gave up, in one line.

use std::{error::Error, fmt, process::ExitCode, time::Duration};

use iwarp_verbs::{
    CompletionQueue, QpState, WorkCompletion,
    cm::{CloseReason, ConnectError, Connecting, Connection},
};

/// What went wrong, for a person to read.
#[derive(Clone, PartialEq, Eq)]
pub struct Failure(String);

/// The result of what an example does.
pub type Result<T, E = Failure> = std::result::Result<T, E>;

impl Failure {
    /// A failure that is no library's error.
    pub fn new(what: impl fmt::Display) -> Self {
        Self(what.to_string())
    }

    /// Ends a program that is called `name`: prints the line, if there is one, and gives the exit code.
    #[must_use]
    pub fn exit(name: &str, result: Result<()>) -> ExitCode {
        match result {
            Ok(()) => ExitCode::SUCCESS,
            Err(failure) => {
                eprintln!("{name}: {failure}");
                ExitCode::FAILURE
            }
        }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl<E: Error> From<E> for Failure {
    fn from(error: E) -> Self {
        Self(error.to_string())
    }
}

/// Waits for a connection. A peer that rejects it may have said why, in words.
pub async fn connected(connecting: Connecting) -> Result<Connection> {
    connecting.await.map_err(|error| match &error {
        ConnectError::Rejected { addr, private_data, .. } if !private_data.is_empty() => {
            let why = String::from_utf8_lossy(private_data);
            Failure::new(format_args!("{addr} rejected the connection: {why}"))
        }
        _ => error.into(),
    })
}

/// Why the connection is gone, in place of the error that a request saw of it.
///
/// A request that is cut off comes back "flushed"; the connection knows by what. A failure that left
/// the connection alone stays what it is.
pub async fn what_ended(conn: &Connection, failure: Failure) -> Failure {
    if conn.qp().state() == QpState::Rts {
        return failure;
    }
    match tokio::time::timeout(Duration::from_secs(5), conn.closed()).await {
        Ok(CloseReason::Orderly) => {
            Failure::new(format_args!("{} went away too early", conn.peer_addr()))
        }
        Ok(reason) => Failure::new(format_args!("lost {}: {reason}", conn.peer_addr())),
        Err(_) => failure,
    }
}

/// Waits for a completion of a connection, blocking the calling thread. If the request failed, and the connection with
/// it, the failure is what ended that.
pub fn wait_done(cq: &CompletionQueue, conn: &Connection) -> Result<WorkCompletion> {
    // `None` would be the end of a time that was not given.
    let completion = cq.wait(None)?.ok_or_else(|| Failure::new("there was no completion"))?;
    completion.ok().map_err(|failed| match conn.wait_closed(Duration::from_secs(1)) {
        Some(reason) => Failure::new(format_args!("lost {}: {reason}", conn.peer_addr())),
        None => failed.into(),
    })
}

/// Says what was being done when an error came up.
pub trait Context<T> {
    /// Puts `what` and a colon in front.
    fn context(self, what: impl fmt::Display) -> Result<T>;
}

impl<T, E: fmt::Display> Context<T> for Result<T, E> {
    fn context(self, what: impl fmt::Display) -> Result<T> {
        self.map_err(|error| Failure(format!("{what}: {error}")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_is_one_line_with_its_circumstances() {
        let gone = std::io::Error::from(std::io::ErrorKind::NotFound);
        let failure = Err::<(), _>(gone).context("cannot open x").unwrap_err();
        assert_eq!(failure.to_string(), "cannot open x: entity not found");
        assert_eq!(
            Failure::from("x".parse::<u8>().unwrap_err()).to_string(),
            "invalid digit found in string"
        );
    }
}
