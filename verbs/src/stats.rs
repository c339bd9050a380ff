//! Counters of a device.

use std::sync::atomic::{AtomicU64, Ordering};

use iwarp_rdmap::{Counters, Opcode};

/// Counts events of a device. Relaxed: a snapshot is exact only when nothing is going on.
#[derive(Debug, Default)]
pub(crate) struct DeviceCounters {
    pub(crate) connections: Counter,
    pub(crate) terminates_sent: Counter,
    pub(crate) terminates_received: Counter,
    pub(crate) connections_lost: Counter,
    pub(crate) cq_overruns: Counter,
}

/// One number that only grows.
#[derive(Debug, Default)]
pub(crate) struct Counter(AtomicU64);

impl Counter {
    /// One more.
    pub(crate) fn count(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

impl DeviceCounters {
    pub(crate) fn snapshot(&self) -> DeviceStats {
        DeviceStats {
            connections: self.connections.get(),
            terminates_sent: self.terminates_sent.get(),
            terminates_received: self.terminates_received.get(),
            connections_lost: self.connections_lost.get(),
            cq_overruns: self.cq_overruns.get(),
        }
    }
}

/// What has happened on a device since it was opened.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct DeviceStats {
    /// Connections that were set up.
    pub connections: u64,
    /// Terminate messages sent: errors that this side found.
    pub terminates_sent: u64,
    /// Terminate messages received: errors that peers found.
    pub terminates_received: u64,
    /// Connections that ended with TCP: reset, timed out, or failed in another way.
    pub connections_lost: u64,
    /// Completion queues that have overrun.
    pub cq_overruns: u64,
}

/// What has happened on the present connection of a queue pair, or the last one.
///
/// Messages count when they are whole: outgoing ones when their last octet is built for sending,
/// incoming ones when they are placed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct QpStats {
    /// FPDUs received and found valid.
    pub fpdus_received: u64,
    /// FPDUs built for sending.
    pub fpdus_sent: u64,
    /// Octets on the wire of the FPDUs received.
    pub octets_received: u64,
    /// Octets on the wire of the FPDUs built for sending.
    pub octets_sent: u64,
    /// Messages of the Send family received.
    pub sends_received: u64,
    /// Messages of the Send family sent.
    pub sends_sent: u64,
    /// RDMA Writes of the peer that were placed.
    pub writes_received: u64,
    /// RDMA Writes sent.
    pub writes_sent: u64,
    /// RDMA Reads of the peer.
    pub reads_received: u64,
    /// RDMA Reads sent.
    pub reads_sent: u64,
    /// Terminate messages received: 0 or 1.
    pub terminates_received: u64,
    /// Terminate messages sent: 0 or 1.
    pub terminates_sent: u64,
    /// FPDUs with a wrong CRC: 0 or 1, since the first ends the connection.
    pub crc_errors: u64,
    /// Times that a Send of the peer waited for a receive.
    pub held_back: u64,
}

impl From<&Counters> for QpStats {
    fn from(counters: &Counters) -> Self {
        let sends = |messages: &iwarp_rdmap::Messages| {
            let kinds = [
                Opcode::Send,
                Opcode::SendInvalidate,
                Opcode::SendSolicited,
                Opcode::SendSolicitedInvalidate,
            ];
            kinds.iter().map(|&opcode| messages.of(opcode)).sum()
        };
        let Counters { messages_in, messages_out, .. } = counters;
        Self {
            fpdus_received: counters.fpdus_in,
            fpdus_sent: counters.fpdus_out,
            octets_received: counters.octets_in,
            octets_sent: counters.octets_out,
            sends_received: sends(messages_in),
            sends_sent: sends(messages_out),
            writes_received: messages_in.of(Opcode::Write),
            writes_sent: messages_out.of(Opcode::Write),
            reads_received: messages_in.of(Opcode::ReadRequest),
            reads_sent: messages_out.of(Opcode::ReadRequest),
            terminates_received: counters.terminates_in(),
            terminates_sent: counters.terminates_out(),
            crc_errors: counters.crc_errors,
            held_back: counters.held_back,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_snapshot_shows_each_counter_in_its_place() {
        let counters = DeviceCounters::default();
        let all = [
            &counters.connections,
            &counters.terminates_sent,
            &counters.terminates_received,
            &counters.connections_lost,
            &counters.cq_overruns,
        ];
        for (times, counter) in (1..).zip(all) {
            (0..times).for_each(|_| counter.count());
        }
        let expected = DeviceStats {
            connections: 1,
            terminates_sent: 2,
            terminates_received: 3,
            connections_lost: 4,
            cq_overruns: 5,
        };
        assert_eq!(counters.snapshot(), expected);
    }
}
