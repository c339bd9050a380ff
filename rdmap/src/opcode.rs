//! The RDMAP opcodes and what each of them demands of its segments.

/// An RDMAP opcode: what a message is (RFC 5040 §4.3, RFC 7306 §4).
///
/// The numbers are the low four bits of the RDMAP control octet. Numbers 0xC to 0xF have no name: 0xC to
/// 0xE are not assigned, 0xF is for experiments (RFC 6580 §3.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum Opcode {
    /// RDMA Write.
    Write = 0x0,
    /// RDMA Read Request.
    ReadRequest = 0x1,
    /// RDMA Read Response.
    ReadResponse = 0x2,
    /// Send.
    Send = 0x3,
    /// Send with Invalidate.
    SendInvalidate = 0x4,
    /// Send with Solicited Event.
    SendSolicited = 0x5,
    /// Send with Solicited Event and Invalidate.
    SendSolicitedInvalidate = 0x6,
    /// Terminate.
    Terminate = 0x7,
    /// Immediate Data (RFC 7306).
    Immediate = 0x8,
    /// Immediate Data with Solicited Event (RFC 7306).
    ImmediateSolicited = 0x9,
    /// Atomic Request (RFC 7306).
    AtomicRequest = 0xA,
    /// Atomic Response (RFC 7306).
    AtomicResponse = 0xB,
}

/// Untagged queues of RDMAP (RFC 5040 §3.1, RDMAP-001; RFC 7306 §5.2).
pub(crate) mod queue {
    /// Sends and Immediate Data.
    pub(crate) const SEND: u32 = 0;
    /// Read Requests and Atomic Requests.
    pub(crate) const READ_REQUEST: u32 = 1;
    /// Terminate.
    pub(crate) const TERMINATE: u32 = 2;
    /// Atomic Responses.
    pub(crate) const ATOMIC_RESPONSE: u32 = 3;
}

impl Opcode {
    /// All opcodes that have a name, by number.
    pub const ALL: [Self; 12] = [
        Self::Write,
        Self::ReadRequest,
        Self::ReadResponse,
        Self::Send,
        Self::SendInvalidate,
        Self::SendSolicited,
        Self::SendSolicitedInvalidate,
        Self::Terminate,
        Self::Immediate,
        Self::ImmediateSolicited,
        Self::AtomicRequest,
        Self::AtomicResponse,
    ];

    /// The opcode with this number; `None` if it has no name.
    #[inline]
    #[must_use]
    pub fn from_raw(number: u8) -> Option<Self> {
        // REG-01
        Self::ALL.get(usize::from(number)).copied()
    }

    /// The number on the wire.
    #[inline]
    #[must_use]
    pub const fn raw(self) -> u8 {
        self as u8
    }

    /// The untagged queue that messages of this kind travel on; `None` for tagged messages (RDMAP-003).
    #[inline]
    #[must_use]
    pub const fn queue(self) -> Option<u32> {
        match self {
            Self::Write | Self::ReadResponse => None,
            Self::Send
            | Self::SendInvalidate
            | Self::SendSolicited
            | Self::SendSolicitedInvalidate
            | Self::Immediate
            | Self::ImmediateSolicited => Some(queue::SEND),
            Self::ReadRequest | Self::AtomicRequest => Some(queue::READ_REQUEST),
            Self::Terminate => Some(queue::TERMINATE),
            Self::AtomicResponse => Some(queue::ATOMIC_RESPONSE),
        }
    }

    /// Whether this is one of the four Sends.
    #[inline]
    #[must_use]
    pub const fn is_send(self) -> bool {
        matches!(
            self,
            Self::Send | Self::SendInvalidate | Self::SendSolicited | Self::SendSolicitedInvalidate
        )
    }

    /// Whether the message raises a solicited event at its sink.
    #[inline]
    #[must_use]
    pub const fn is_solicited(self) -> bool {
        // RDMAP-044
        matches!(
            self,
            Self::SendSolicited | Self::SendSolicitedInvalidate | Self::ImmediateSolicited
        )
    }

    /// Whether the message names an `STag` to invalidate.
    #[inline]
    #[must_use]
    pub const fn invalidates(self) -> bool {
        matches!(self, Self::SendInvalidate | Self::SendSolicitedInvalidate)
    }

    /// Whether this is Immediate Data, with or without Solicited Event.
    #[inline]
    #[must_use]
    pub const fn is_immediate(self) -> bool {
        matches!(self, Self::Immediate | Self::ImmediateSolicited)
    }

    /// Whether a message of this kind is one segment by definition: RDMAP itself reads what is in it.
    #[inline]
    pub(crate) const fn is_one_segment(self) -> bool {
        // RDMAP-081, EXT-30, EXT-10
        matches!(self, Self::ReadRequest | Self::Terminate) || self.is_extension()
    }

    /// Whether RFC 7306 defines it. Such messages are refused where
    /// [`StreamConfig::extensions`](crate::StreamConfig::extensions) is off.
    #[inline]
    #[must_use]
    pub const fn is_extension(self) -> bool {
        matches!(
            self,
            Self::Immediate | Self::ImmediateSolicited | Self::AtomicRequest | Self::AtomicResponse
        )
    }

    /// The Send with these two properties.
    #[inline]
    #[must_use]
    pub const fn send(solicited: bool, invalidate: bool) -> Self {
        // FC-019: four kinds, four numbers.
        match (solicited, invalidate) {
            (false, false) => Self::Send,
            (false, true) => Self::SendInvalidate,
            (true, false) => Self::SendSolicited,
            (true, true) => Self::SendSolicitedInvalidate,
        }
    }

    /// Immediate Data with this property.
    #[inline]
    #[must_use]
    pub const fn immediate(solicited: bool) -> Self {
        if solicited { Self::ImmediateSolicited } else { Self::Immediate }
    }

    /// The name in RFC 5040 or RFC 7306.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Write => "RDMA Write",
            Self::ReadRequest => "RDMA Read Request",
            Self::ReadResponse => "RDMA Read Response",
            Self::Send => "Send",
            Self::SendInvalidate => "Send with Invalidate",
            Self::SendSolicited => "Send with Solicited Event",
            Self::SendSolicitedInvalidate => "Send with Solicited Event and Invalidate",
            Self::Terminate => "Terminate",
            Self::Immediate => "Immediate Data",
            Self::ImmediateSolicited => "Immediate Data with Solicited Event",
            Self::AtomicRequest => "Atomic Request",
            Self::AtomicResponse => "Atomic Response",
        }
    }
}

impl std::fmt::Display for Opcode {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_places_in_the_table() {
        for (number, opcode) in (0u8..).zip(Opcode::ALL) {
            assert_eq!(opcode.raw(), number);
            assert_eq!(Opcode::from_raw(number), Some(opcode));
        }
        // REG-01
        for number in 0xC..=0xF {
            assert_eq!(Opcode::from_raw(number), None);
        }
    }

    #[test]
    fn queues_are_those_of_the_registry() {
        // RDMAP-003, RDMAP-001
        let queues = Opcode::ALL.map(Opcode::queue);
        let expected = [
            None,
            Some(1),
            None,
            Some(0),
            Some(0),
            Some(0),
            Some(0),
            Some(2),
            Some(0),
            Some(0),
            Some(1),
            Some(3),
        ];
        assert_eq!(queues, expected);
    }

    #[test]
    fn names_are_those_of_the_standards() {
        let names = Opcode::ALL.map(|opcode| opcode.to_string());
        let expected = [
            "RDMA Write",
            "RDMA Read Request",
            "RDMA Read Response",
            "Send",
            "Send with Invalidate",
            "Send with Solicited Event",
            "Send with Solicited Event and Invalidate",
            "Terminate",
            "Immediate Data",
            "Immediate Data with Solicited Event",
            "Atomic Request",
            "Atomic Response",
        ];
        assert_eq!(names, expected);
    }

    #[test]
    fn four_sends_have_four_opcodes() {
        // FC-019
        for solicited in [false, true] {
            for invalidate in [false, true] {
                let opcode = Opcode::send(solicited, invalidate);
                assert!(opcode.is_send() && !opcode.is_extension());
                assert_eq!(opcode.is_solicited(), solicited);
                assert_eq!(opcode.invalidates(), invalidate);
            }
        }
    }

    #[test]
    fn only_four_opcodes_are_extensions() {
        let count = Opcode::ALL.into_iter().filter(|opcode| opcode.is_extension()).count();
        for solicited in [false, true] {
            let opcode = Opcode::immediate(solicited);
            assert!(opcode.is_immediate() && opcode.is_solicited() == solicited);
        }
        assert_eq!(count, 4);
        assert!(Opcode::ALL.iter().all(|opcode| !(opcode.is_send() && opcode.is_extension())));
    }
}
