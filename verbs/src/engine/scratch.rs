//! Staging memory of the thread that runs a pass.
//!
//! A connection owns no buffers while it is idle. A pass borrows those of its thread: received octets
//! are parsed there, and FPDUs are built there. Only what is left over when the pass ends, part of an
//! FPDU or octets that TCP did not take, moves to memory of the connection, and counts against the
//! device's budget (`budget.rs`).

use std::cell::Cell;

use iwarp_rdmap::TxBatch;

/// Octets that one receive call can take. An FPDU is at most a quarter of it.
pub(super) const RX_LEN: usize = 256 * 1024;

/// Octets that are built before they are given to TCP: 256 KiB of payload, with what is around it.
pub(super) const TX_LEN: usize = (256 + 4) * 1024;

thread_local! {
    static SCRATCH: Cell<Option<Box<Scratch>>> = const { Cell::new(None) };
}

/// The buffers of one thread.
pub(super) struct Scratch {
    pub(super) rx: Vec<u8>,
    /// Another one of the same length, for the time when a connection keeps the first.
    spare_rx: Vec<u8>,
    /// Absent while a connection holds it with unsent octets.
    pub(super) tx: Option<Box<TxBatch>>,
    /// For a device over its budget. As long as the longest FPDU that was built in it.
    lean: Option<Box<TxBatch>>,
}

impl Scratch {
    /// Runs a pass with the buffers of this thread.
    pub(super) fn with<R>(pass: impl FnOnce(&mut Self) -> R) -> R {
        // Taken out rather than borrowed: a pass that comes inside another one, from a waker say, or
        // while the thread ends, makes itself new ones.
        let mut scratch =
            SCRATCH.try_with(Cell::take).ok().flatten().unwrap_or_else(|| Box::new(Self::new()));
        let result = pass(&mut scratch);
        // A panic leaves without them, which is right: they may be half written.
        let _ = SCRATCH.try_with(|cell| cell.set(Some(scratch)));
        result
    }

    fn new() -> Self {
        Self { rx: vec![0; RX_LEN], spare_rx: Vec::new(), tx: None, lean: None }
    }

    /// Leaves the receive buffer to a connection.
    pub(super) fn leave_rx(&mut self) -> Vec<u8> {
        let mut spare = std::mem::take(&mut self.spare_rx);
        if spare.len() != RX_LEN {
            spare = vec![0; RX_LEN];
        }
        std::mem::replace(&mut self.rx, spare)
    }

    /// Goes on with the receive buffer that a connection was left.
    pub(super) fn take_back_rx(&mut self, buffer: Vec<u8>) {
        self.spare_rx = std::mem::replace(&mut self.rx, buffer);
    }

    /// An empty batch. A lean one has room for a single FPDU, or for several that are together no longer
    /// than the longest.
    #[allow(clippy::unnecessary_box_returns, reason = "it changes hands twice in each pass")]
    pub(super) fn take_tx(&mut self, lean: bool) -> Box<TxBatch> {
        if lean {
            // It grows with the first FPDU, and is full then.
            return self.lean.take().unwrap_or_else(|| Box::new(TxBatch::with_capacity(0)));
        }
        self.tx.take().unwrap_or_else(|| Box::new(TxBatch::with_capacity(TX_LEN)))
    }

    /// Keeps a batch for the next time, whatever is in it.
    pub(super) fn give_tx(&mut self, mut batch: Box<TxBatch>, lean: bool) {
        batch.clear();
        let place = if lean { &mut self.lean } else { &mut self.tx };
        place.get_or_insert(batch);
    }
}
