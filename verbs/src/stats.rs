//! Figures of a device and of its connections.
//!
//! What happens often is counted by plain additions where its pass writes anyway, in the connection; a device's sums
//! are made when somebody asks. Only what happens once for a connection is counted for the device at once.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};

use iwarp_rdmap::{Counters, Messages, Opcode};

/// Counts events of a device. Relaxed: a snapshot is exact only when nothing is going on.
#[derive(Debug, Default)]
pub(crate) struct DeviceCounters {
    pub(crate) connections: Counter,
    pub(crate) requests_received: Counter,
    pub(crate) requests_rejected: Counter,
    pub(crate) setups_failed: Counter,
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

    pub(crate) fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// A struct of numbers that can also be gone through by their names.
macro_rules! figures {
    ($(#[$about:meta])* pub struct $name:ident { $($(#[$what:meta])* pub $figure:ident,)+ }) => {
        $(#[$about])*
        #[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
        #[non_exhaustive]
        pub struct $name {
            $($(#[$what])* pub $figure: u64,)+
        }

        impl $name {
            /// All figures with their names, which stay as they are, for whatever exports them.
            pub fn iter(&self) -> impl Iterator<Item = (&'static str, u64)> + use<> {
                [$((stringify!($figure), self.$figure)),+].into_iter()
            }

            #[allow(dead_code, reason = "not all are summed up")]
            pub(crate) fn add(&mut self, other: &Self) {
                $(self.$figure = self.$figure.wrapping_add(other.$figure);)+
            }
        }

        /// `name=value` for each figure, with spaces between.
        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                for (index, (name, value)) in self.iter().enumerate() {
                    let space = if index == 0 { "" } else { " " };
                    write!(f, "{space}{name}={value}")?;
                }
                Ok(())
            }
        }
    };
}

figures! {
    /// What has happened on a device since it was opened, and what it holds now.
    pub struct DeviceStats {
        /// Connections that were set up.
        pub connections,
        /// Requests of peers that listeners have taken in.
        pub requests_received,
        /// Requests of peers that were rejected, by the program or because it let go of them.
        pub requests_rejected,
        /// Connects and accepts that have failed.
        pub setups_failed,
        /// Terminate messages sent: errors that this side found.
        pub terminates_sent,
        /// Terminate messages received: errors that peers found.
        pub terminates_received,
        /// Connections that ended with TCP: reset, timed out, or failed in another way.
        pub connections_lost,
        /// Completion queues that have overrun.
        pub cq_overruns,
        /// Times that the driver could not watch a socket and tried again.
        pub driver_retries,
        /// Packets that are missing in the [capture](crate::DeviceConfig::pcap), since its file was too slow.
        pub capture_lost,
        /// Octets that connections hold now in partial FPDUs and unsent data; the limit is
        /// [`memory_budget`](crate::DeviceConfig::memory_budget).
        pub memory_in_use,
    }
}

figures! {
    /// What has happened on the present connection of a queue pair, or the last one; or on all connections of a
    /// device, as a sum.
    ///
    /// Messages count when they are whole: outgoing ones when their last octet is built for sending,
    /// incoming ones when they are placed.
    pub struct QpStats {
        /// FPDUs received and found valid.
        pub fpdus_received,
        /// FPDUs built for sending.
        pub fpdus_sent,
        /// Octets on the wire of the FPDUs received.
        pub octets_received,
        /// Octets on the wire of the FPDUs built for sending.
        pub octets_sent,
        /// Messages of the Send family received.
        pub sends_received,
        /// Messages of the Send family sent.
        pub sends_sent,
        /// RDMA Writes of the peer that were placed.
        pub writes_received,
        /// RDMA Writes sent.
        pub writes_sent,
        /// RDMA Reads of the peer.
        pub reads_received,
        /// RDMA Reads sent.
        pub reads_sent,
        /// Atomic operations of the peer.
        pub atomics_received,
        /// Atomic operations sent.
        pub atomics_sent,
        /// Immediate Data messages received.
        pub immediates_received,
        /// Immediate Data messages sent.
        pub immediates_sent,
        /// Terminate messages received: 0 or 1 for a connection. Which it was, [`QueuePair::ending`] tells.
        ///
        /// [`QueuePair::ending`]: crate::QueuePair::ending
        pub terminates_received,
        /// Terminate messages sent: 0 or 1 for a connection.
        pub terminates_sent,
        /// FPDUs with a wrong CRC: 0 or 1 for a connection, since the first ends it.
        pub crc_errors,
        /// Times that a Send of the peer waited for a receive.
        pub held_back,
        /// Octets that came after the stream was over, and were discarded.
        pub octets_discarded,
        /// Requests that waited to be sent together with others
        /// ([`post_send`](crate::QueuePair::post_send)).
        pub gathered,
        /// Passes over the connection by threads that posted.
        pub passes_of_posts,
        /// Passes of polls that found something to do.
        pub polls_with_work,
        /// Passes of polls that found nothing.
        pub polls_without_work,
        /// Passes of threads and tasks that had waited for the socket.
        pub passes_of_waits,
        /// Passes of the library's own thread: nobody else was there.
        pub passes_of_driver,
    }
}

/// Passes over one connection, counted by whoever runs them.
#[derive(Debug, Clone, Default)]
pub(crate) struct Passes {
    pub(crate) posts: u64,
    /// With nothing to do, and with something.
    pub(crate) polls: [u64; 2],
    pub(crate) waits: u64,
    pub(crate) driver: u64,
    /// Requests that were gathered.
    pub(crate) gathered: u64,
}

impl QpStats {
    pub(crate) fn new(counters: &Counters, passes: &Passes) -> Self {
        let Counters { messages_in, messages_out, .. } = counters;
        let Passes { posts, polls: [polls_without_work, polls_with_work], .. } = *passes;
        Self {
            fpdus_received: counters.fpdus_in,
            fpdus_sent: counters.fpdus_out,
            octets_received: counters.octets_in,
            octets_sent: counters.octets_out,
            sends_received: of_all(messages_in, &SENDS),
            sends_sent: of_all(messages_out, &SENDS),
            writes_received: messages_in.of(Opcode::Write),
            writes_sent: messages_out.of(Opcode::Write),
            reads_received: messages_in.of(Opcode::ReadRequest),
            reads_sent: messages_out.of(Opcode::ReadRequest),
            atomics_received: messages_in.of(Opcode::AtomicRequest),
            atomics_sent: messages_out.of(Opcode::AtomicRequest),
            immediates_received: of_all(messages_in, &IMMEDIATES),
            immediates_sent: of_all(messages_out, &IMMEDIATES),
            terminates_received: counters.terminates_in(),
            terminates_sent: counters.terminates_out(),
            crc_errors: counters.crc_errors,
            held_back: counters.held_back,
            octets_discarded: counters.octets_discarded,
            gathered: passes.gathered,
            passes_of_posts: posts,
            polls_with_work,
            polls_without_work,
            passes_of_waits: passes.waits,
            passes_of_driver: passes.driver,
        }
    }
}

const SENDS: [Opcode; 4] =
    [Opcode::Send, Opcode::SendInvalidate, Opcode::SendSolicited, Opcode::SendSolicitedInvalidate];

const IMMEDIATES: [Opcode; 2] = [Opcode::Immediate, Opcode::ImmediateSolicited];

fn of_all(messages: &Messages, opcodes: &[Opcode]) -> u64 {
    opcodes.iter().map(|&opcode| messages.of(opcode)).sum()
}

/// What the connections of a device have counted that are over.
#[derive(Debug, Default)]
pub(crate) struct Past {
    pub(crate) total: QpStats,
    /// How many there are.
    pub(crate) ended: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_figure_has_its_name_and_its_place() {
        let mut stats = DeviceStats { connections: 1, memory_in_use: 7, ..DeviceStats::default() };
        let figures: Vec<_> = stats.iter().collect();
        assert_eq!(figures.first(), Some(&("connections", 1)));
        assert_eq!(figures.last(), Some(&("memory_in_use", 7)));
        stats.cq_overruns = 3;
        let text = stats.to_string();
        assert!(text.starts_with("connections=1 ") && text.contains(" cq_overruns=3 "), "{text}");
        assert_eq!(text.split(' ').count(), figures.len());
    }

    #[test]
    fn sums_go_figure_by_figure() {
        let one = QpStats { fpdus_sent: 1, gathered: u64::MAX, ..QpStats::default() };
        let mut sum = QpStats { fpdus_sent: 2, passes_of_driver: 5, gathered: 3, ..one };
        sum.add(&one);
        let expected =
            QpStats { fpdus_sent: 3, passes_of_driver: 5, gathered: 2, ..QpStats::default() };
        assert_eq!(sum, expected);
    }

    #[test]
    fn a_counter_counts() {
        let counter = Counter::default();
        counter.count();
        counter.count();
        assert_eq!(counter.get(), 2);
    }
}
