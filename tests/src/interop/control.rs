//! A line to siwpeer in the guest: one command, one answer.

use std::{
    io::{BufRead, BufReader, Write},
    net::TcpStream,
    time::Duration,
};

use super::{Failure, Result, failed};

/// How long an answer may take: longer than the guest itself waits for anything.
const LIMIT: Duration = Duration::from_mins(3);

/// What siwpeer says to a command that went well.
#[derive(Debug)]
pub(super) struct Answer {
    /// The words behind "ok".
    pub(super) words: Vec<String>,
    /// Lines that came before.
    pub(super) lines: Vec<String>,
}

impl Answer {
    /// The word at `index`.
    pub(super) fn word(&self, index: usize) -> &str {
        self.words.get(index).map_or("", String::as_str)
    }

    /// The word at `index` as a number.
    pub(super) fn number(&self, index: usize) -> Result<u64> {
        let word = self.word(index);
        word.parse().map_err(|_| failed(format!("siwpeer said {:?}", self.words)))
    }

    /// The word at `index` as octets.
    pub(super) fn octets(&self, index: usize) -> Result<Vec<u8>> {
        match self.word(index) {
            "-" => Ok(Vec::new()),
            digits => hex::decode(digits).map_err(|error| failed(format!("{digits}: {error}"))),
        }
    }
}

/// The connection.
#[derive(Debug)]
pub(super) struct Line {
    reader: BufReader<TcpStream>,
    last: String,
    /// An answer has not come: what comes later belongs to nothing.
    broken: bool,
}

impl Line {
    pub(super) fn new(stream: TcpStream) -> Result<Self> {
        stream.set_nonblocking(false)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(LIMIT))?;
        Ok(Self { reader: BufReader::new(stream), last: "hello".into(), broken: false })
    }

    /// Gives the line up.
    pub(super) const fn break_off(&mut self) {
        self.broken = true;
    }

    /// Whether a command was left without an answer.
    pub(super) const fn is_broken(&self) -> bool {
        self.broken
    }

    /// A command and its answer.
    pub(super) fn ask(&mut self, command: impl Into<String>) -> Result<Answer> {
        self.say(command)?;
        self.answer()
    }

    /// A command whose [`answer`](Self::answer) is asked for later.
    pub(super) fn say(&mut self, command: impl Into<String>) -> Result<()> {
        self.last = command.into();
        if self.broken {
            return Err(failed(format!(
                "the guest was not asked {:?}: it does not answer",
                self.last
            )));
        }
        let said = writeln!(self.reader.get_mut(), "{}", self.last);
        self.broken = said.is_err();
        Ok(said?)
    }

    pub(super) fn answer(&mut self) -> Result<Answer> {
        if self.broken {
            return Err(failed(format!(
                "an answer to {:?} would be that to another command",
                self.last
            )));
        }
        let mut lines = Vec::new();
        loop {
            let mut line = String::new();
            let read = self.reader.read_line(&mut line);
            self.broken |= !read.as_ref().is_ok_and(|&length| length > 0);
            let length = read.map_err(|error| {
                failed(format!("the guest does not answer {:?}: {error}", self.last))
            })?;
            if length == 0 {
                return Err(failed(format!("the guest is gone after {:?}", self.last)));
            }
            let line = line.trim_end();
            if let Some(told) = line.strip_prefix("| ") {
                lines.push(told.to_owned());
            } else if let Some(rest) = line.strip_prefix("ok") {
                let words = rest.split_whitespace().map(str::to_owned).collect();
                return Ok(Answer { words, lines });
            } else {
                let reason = line.strip_prefix("error ").unwrap_or(line);
                return Err(Failure(format!("siw, {:?}: {reason}", self.last)));
            }
        }
    }
}
