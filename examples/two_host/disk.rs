//! Files at both ends of a transfer: read, hashed and written in threads of their own.

use std::{
    ffi::OsString,
    fs::{self, File},
    io::{Read, Write},
    path::{Path, PathBuf},
};

use iwarp_examples::failure::{Context, Failure, Result};
use sha2::{Digest, Sha256};
use tokio::{sync::mpsc, task::JoinHandle};

/// Pieces between disk and network, so that neither waits for each turn of the other.
const AHEAD: usize = 2;

/// A file to be sent, opened before anybody is bothered.
#[derive(Debug)]
pub(crate) struct Source {
    pub(crate) name: String,
    pub(crate) octets: u64,
    file: File,
}

impl Source {
    pub(crate) fn open(path: &Path) -> Result<Self> {
        let file = File::open(path).context(format_args!("cannot open {}", path.display()))?;
        let about = file.metadata().context(format_args!("cannot read {}", path.display()))?;
        if !about.is_file() {
            return Err(Failure::new(format_args!("{} is no regular file", path.display())));
        }
        // Shortened, so that it fits into private data whatever it is.
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        Ok(Self { name: name.chars().take(64).collect(), octets: about.len(), file })
    }

    /// Reads the file in pieces of `piece` octets; the task gives the digest at the end.
    pub(crate) fn read_ahead(
        self,
        piece: usize,
    ) -> (mpsc::Receiver<Vec<u8>>, JoinHandle<Result<String>>) {
        let (pieces, taken) = mpsc::channel(AHEAD);
        let reader = tokio::task::spawn_blocking(move || {
            let Self { file, name, octets } = self;
            let mut hash = Sha256::new();
            let mut left = octets;
            while left > 0 {
                let wanted = left.min(piece as u64);
                let mut octets = Vec::with_capacity(piece);
                let got = (&file).take(wanted).read_to_end(&mut octets);
                if (got.context(format_args!("cannot read {name}"))? as u64) < wanted {
                    return Err(Failure::new(format_args!("{name} became shorter meanwhile")));
                }
                hash.update(&octets);
                left -= wanted;
                if pieces.blocking_send(octets).is_err() {
                    // Nobody wants the rest: the connection is gone, and says so itself.
                    break;
                }
            }
            Ok(hex::encode(hash.finalize()))
        });
        (taken, reader)
    }
}

/// Where a file goes to: nowhere, or to `PATH.part` until its digest is known to be right.
///
/// What is not kept is removed.
#[derive(Debug)]
pub(crate) struct Sink {
    sha256: String,
    part: Option<Part>,
}

#[derive(Debug)]
struct Part {
    file: File,
    at: PathBuf,
    becomes: PathBuf,
}

impl Sink {
    pub(crate) fn create(save: Option<&Path>) -> Result<Self> {
        let part = save.map(Part::create).transpose()?;
        Ok(Self { sha256: String::new(), part })
    }

    /// Takes the file in pieces through the channel; the task gives it back, with its digest, when that is closed.
    pub(crate) fn write_behind(mut self) -> (mpsc::Sender<Vec<u8>>, JoinHandle<Result<Self>>) {
        let (given, mut pieces) = mpsc::channel::<Vec<u8>>(AHEAD);
        let writer = tokio::task::spawn_blocking(move || {
            let mut hash = Sha256::new();
            while let Some(octets) = pieces.blocking_recv() {
                hash.update(&octets);
                if let Some(part) = &mut self.part {
                    let written = part.file.write_all(&octets);
                    written.context(format_args!("cannot write {}", part.at.display()))?;
                }
            }
            self.sha256 = hex::encode(hash.finalize());
            Ok(self)
        });
        (given, writer)
    }

    pub(crate) fn sha256(&self) -> &str {
        &self.sha256
    }

    /// Gives the file its name.
    pub(crate) fn keep(mut self) -> Result<()> {
        let Some(part) = self.part.take() else { return Ok(()) };
        let kept = part.file.sync_all().and_then(|()| fs::rename(&part.at, &part.becomes));
        kept.context(format_args!("cannot save {}", part.becomes.display()))
    }
}

impl Drop for Sink {
    fn drop(&mut self) {
        if let Some(part) = &self.part {
            let _ = fs::remove_file(&part.at);
        }
    }
}

impl Part {
    fn create(becomes: &Path) -> Result<Self> {
        let mut at = OsString::from(becomes);
        at.push(".part");
        let at = PathBuf::from(at);
        let file = File::create(&at).context(format_args!("cannot create {}", at.display()))?;
        Ok(Self { file, at, becomes: becomes.to_owned() })
    }
}
