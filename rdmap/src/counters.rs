//! What a stream counts.

use crate::opcode::Opcode;

/// Counters of one stream. They only grow, and wrap where they overflow.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Counters {
    /// Valid FPDUs received and dealt with.
    pub fpdus_in: u64,
    /// FPDUs handed out to be sent.
    pub fpdus_out: u64,
    /// Octets of the wire in `fpdus_in`.
    pub octets_in: u64,
    /// Octets of the wire in `fpdus_out`.
    pub octets_out: u64,
    /// Octets discarded because the stream was over.
    pub octets_discarded: u64,
    /// Whole messages received, by [`Opcode`].
    pub messages_in: Messages,
    /// Whole messages handed out to be sent, by [`Opcode`].
    pub messages_out: Messages,
    /// FPDUs with a wrong CRC. More than one cannot be: the first ends the stream.
    pub crc_errors: u64,
    /// Times that a Send was held back for want of a receive.
    pub held_back: u64,
}

impl Counters {
    /// Terminate messages received: 0 or 1.
    #[must_use]
    pub fn terminates_in(&self) -> u64 {
        self.messages_in.of(Opcode::Terminate)
    }

    /// Terminate messages handed out to be sent: 0 or 1.
    #[must_use]
    pub fn terminates_out(&self) -> u64 {
        self.messages_out.of(Opcode::Terminate)
    }
}

/// One count for each opcode.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Messages {
    /// Of the opcodes of plain Writes, Reads and Sends, which come first.
    common: [u64; COMMON],
    /// Of the others, which most streams never see; there from the first of them on.
    rare: Option<Box<[u64; Opcode::ALL.len() - COMMON]>>,
}

/// Write, Read Request, Read Response and Send.
const COMMON: usize = 4;

impl Messages {
    /// Messages with this opcode.
    #[must_use]
    pub fn of(&self, opcode: Opcode) -> u64 {
        let at = usize::from(opcode.raw());
        let count =
            self.common.get(at).or_else(|| self.rare.as_ref()?.get(at.checked_sub(COMMON)?));
        count.copied().unwrap_or(0)
    }

    #[inline]
    pub(crate) fn count(&mut self, opcode: Opcode) {
        let at = usize::from(opcode.raw());
        match self.common.get_mut(at) {
            Some(count) => *count = count.wrapping_add(1),
            None => self.count_rare(at.saturating_sub(COMMON)),
        }
    }

    #[inline(never)]
    fn count_rare(&mut self, at: usize) {
        if let Some(count) = self.rare.get_or_insert_default().get_mut(at) {
            *count = count.wrapping_add(1);
        }
    }
}

/// Adds to a counter.
#[inline]
pub(crate) fn add(counter: &mut u64, amount: usize) {
    *counter = counter.wrapping_add(amount as u64);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn opcodes_are_counted_apart() {
        let mut messages = Messages::default();
        messages.count(Opcode::Send);
        messages.count(Opcode::Send);
        messages.count(Opcode::AtomicResponse);
        let counts = Opcode::ALL.map(|opcode| messages.of(opcode));
        assert_eq!(counts, [0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0, 1]);
        assert_eq!(messages.rare.map(|rare| rare.len()), Some(8), "a count for each, and no more");
    }
}
