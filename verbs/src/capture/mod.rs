//! Recording what goes over the connections of a device, for Wireshark.
//!
//! The octets are taken at the socket, as TCP is given them and as they are received: so they are whole whatever
//! encrypts or carries them below, and the start-up frames are among them. Around them go made-up headers of
//! Ethernet, IP and TCP, with a handshake in front, numbers that fit and checksums that are right.
//!
//! A pass appends to a buffer and goes on; a thread writes the buffer to the file. When the file is slower than the
//! connections and the buffer is full, packets are left out and counted, and nobody waits.

mod flow;
mod packet;

use std::collections::{HashMap, HashSet};
use std::fs::File;
use std::io::{self, Write as _};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Weak};
use std::thread::{self, JoinHandle};

use parking_lot::{Condvar, Mutex};

pub(crate) use self::flow::Tap;
use self::packet::Header;
use crate::mem::{Origin, PerProcess, without_signals};

/// Octets that wait for the file, at most.
const BUFFER: usize = 32 << 20;

/// A capture file that is being written. Devices of one process that are given the same path share it.
#[derive(Debug)]
pub(crate) struct Capture {
    path: PathBuf,
    origin: Origin,
    shared: Arc<Shared>,
    writer: Option<JoinHandle<()>>,
    /// Connections that one of their ends records, by initiator and responder: the other end, if it is in this
    /// process too, does not.
    flows: Mutex<HashSet<(SocketAddr, SocketAddr)>>,
}

#[derive(Debug, Default)]
struct Shared {
    pending: Mutex<Pending>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct Pending {
    records: Vec<u8>,
    lost: u64,
    failed: bool,
    ended: bool,
}

/// Captures by their path. A forked child has no thread that writes those of its parent.
static OPEN: PerProcess<Mutex<HashMap<PathBuf, Weak<Capture>>>> = PerProcess::new(Mutex::default);

impl Capture {
    /// Begins a file anew, or goes on with the one that another device of this process writes. `%p` in the path is
    /// the number of the process.
    pub(crate) fn open(path: &Path) -> io::Result<Arc<Self>> {
        let path = match path.to_str() {
            Some(text) => PathBuf::from(text.replace("%p", &std::process::id().to_string())),
            None => path.to_path_buf(),
        };
        let path = std::path::absolute(path)?;
        let mut captures = OPEN.get().lock();
        captures.retain(|_, capture| capture.strong_count() > 0);
        if let Some(capture) = captures.get(&path).and_then(Weak::upgrade) {
            return Ok(capture);
        }
        let mut file = File::create(&path)?;
        file.write_all(&packet::file_header())?;
        let shared = Arc::<Shared>::default();
        let thread = thread::Builder::new().name("iwarp-capture".into());
        let queue = Arc::clone(&shared);
        let writer = without_signals(|| thread.spawn(move || queue.write_to(file)))?;
        let flows = Mutex::default();
        let capture = Arc::new(Self {
            path: path.clone(),
            origin: Origin::here(),
            shared,
            writer: Some(writer),
            flows,
        });
        captures.insert(path, Arc::downgrade(&capture));
        Ok(capture)
    }

    /// Packets that were left out so far.
    pub(crate) fn lost(&self) -> u64 {
        self.shared.pending.lock().lost
    }

    /// Claims a connection for the end that asks; `false` if the other end has it.
    fn claim(&self, initiator: SocketAddr, responder: SocketAddr) -> bool {
        self.flows.lock().insert((initiator, responder))
    }

    fn unclaim(&self, initiator: SocketAddr, responder: SocketAddr) {
        if self.origin.is_here() {
            self.flows.lock().remove(&(initiator, responder));
        }
    }

    /// Appends a packet, or counts it as lost.
    fn packet(&self, header: &Header, payload: &[u8]) {
        if !self.origin.is_here() {
            return;
        }
        let mut pending = self.shared.pending.lock();
        if pending.failed || pending.records.len() + packet::record_len(payload.len()) > BUFFER {
            pending.lost += 1;
            if pending.lost.is_power_of_two() {
                let (path, lost) = (&self.path, pending.lost);
                tracing::warn!(path = %path.display(), lost, "packets are missing in the capture");
            }
            return;
        }
        let idle = pending.records.is_empty();
        header.write(&mut pending.records, payload);
        drop(pending);
        if idle {
            self.shared.changed.notify_one();
        }
    }
}

impl Shared {
    fn write_to(&self, mut file: File) {
        let mut records = Vec::new();
        loop {
            {
                let mut pending = self.pending.lock();
                while pending.records.is_empty() {
                    if pending.ended {
                        return;
                    }
                    self.changed.wait(&mut pending);
                }
                std::mem::swap(&mut pending.records, &mut records);
            }
            if let Err(error) = file.write_all(&records) {
                tracing::error!(%error, "the capture ends: its file cannot be written");
                let mut pending = self.pending.lock();
                pending.failed = true;
                pending.records.clear();
                return;
            }
            records.clear();
        }
    }
}

impl Drop for Capture {
    /// Waits until all that was recorded is in the file.
    fn drop(&mut self) {
        if !self.origin.is_here() {
            return;
        }
        self.shared.pending.lock().ended = true;
        self.shared.changed.notify_one();
        if let Some(writer) = self.writer.take() {
            let written = writer.join();
            debug_assert!(written.is_ok(), "the writer of a capture does not panic");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::packet::{Flags, PAYLOAD_MOST};
    use super::*;

    #[test]
    fn what_a_full_buffer_has_no_room_for_is_counted() {
        let capture = Capture {
            path: "nowhere".into(),
            origin: Origin::here(),
            shared: Arc::default(),
            // Nobody writes: the slowest of files.
            writer: None,
            flows: Mutex::default(),
        };
        let addr = "192.0.2.1:7471".parse().unwrap();
        let header =
            Header { from: addr, to: addr, sequence: 1, acknowledged: 1, flags: Flags::ACK };
        let payload = vec![0; PAYLOAD_MOST];
        let fits = BUFFER / packet::record_len(PAYLOAD_MOST);
        for _ in 0..fits {
            capture.packet(&header, &payload);
        }
        assert_eq!(capture.lost(), 0);
        for _ in 0..10 {
            capture.packet(&header, &payload);
        }
        assert!((8..=10).contains(&capture.lost()), "{}", capture.lost());
        assert!(capture.shared.pending.lock().records.len() <= BUFFER);
    }
}
