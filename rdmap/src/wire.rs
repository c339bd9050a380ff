//! Layouts on the wire: the RDMAP control octet, the Read Request header, the Terminate header.

use zerocopy::byteorder::big_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::opcode::Opcode;

/// Octets of the RDMA Read Request header (RFC 5040 §4.4).
pub const READ_REQUEST_LEN: usize = size_of::<ReadRequestLayout>();
/// Octets of the Terminate control field (RFC 5040 §4.8).
pub(crate) const TERMINATE_CONTROL_LEN: usize = size_of::<TerminateControl>();

/// Octets of Immediate Data (RFC 7306 §6.3).
pub const IMMEDIATE_LEN: usize = 8;

/// Octets of the Atomic Request header (RFC 7306 §5.2.1).
pub const ATOMIC_REQUEST_LEN: usize = size_of::<AtomicRequestLayout>();
/// Octets of the Atomic Response header (RFC 7306 §5.2.2).
pub const ATOMIC_RESPONSE_LEN: usize = size_of::<AtomicResponseLayout>();

/// Of RDMAP, whichever revision of MPA is in use (MPA-035).
const VERSION: u8 = 1;

/// The first octet that DDP carries for RDMAP: version, reserved bits, opcode (RFC 5040 §4.1, RDMAP-002).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Control(u8);

impl Control {
    const OPCODE: u8 = 0x0f;

    #[inline]
    pub(crate) const fn from_octet(octet: u8) -> Self {
        Self(octet)
    }

    /// The octet to send: version 1, reserved bits 0.
    #[inline]
    pub(crate) const fn octet(opcode: Opcode) -> u8 {
        // RDMAP-004, MPA-036
        VERSION << 6 | opcode.raw()
    }

    #[inline]
    pub(crate) const fn version(self) -> u8 {
        self.0 >> 6
    }

    #[inline]
    pub(crate) const fn has_our_version(self) -> bool {
        self.version() == VERSION
    }

    /// Number of the opcode, whether it has a name or not. The reserved bits do not matter.
    #[inline]
    pub(crate) const fn opcode(self) -> u8 {
        self.0 & Self::OPCODE
    }
}

/// RDMA Read Request header (RFC 5040 §4.4).
#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub(crate) struct ReadRequestLayout {
    pub(crate) sink_stag: U32,
    pub(crate) sink_offset: U64,
    pub(crate) len: U32,
    pub(crate) source_stag: U32,
    pub(crate) source_offset: U64,
}

/// Atomic Request header (RFC 7306 §5.2.1).
#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub(crate) struct AtomicRequestLayout {
    pub(crate) operation: U32,
    pub(crate) id: U32,
    pub(crate) stag: U32,
    pub(crate) offset: U64,
    /// To add, or to swap in.
    pub(crate) data: U64,
    pub(crate) mask: U64,
    pub(crate) compare: U64,
    pub(crate) compare_mask: U64,
}

/// Atomic Response header (RFC 7306 §5.2.2).
#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub(crate) struct AtomicResponseLayout {
    pub(crate) id: U32,
    pub(crate) original: U64,
}

/// First four octets of a Terminate: what went wrong, and which headers follow (RFC 5040 §4.8).
#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub(crate) struct TerminateControl {
    pub(crate) layer_and_type: u8,
    pub(crate) code: u8,
    pub(crate) headers: u8,
    pub(crate) reserved: u8,
}

/// Header control bits of a Terminate.
pub(crate) mod headers {
    /// M: the DDP segment length is valid.
    pub(crate) const LENGTH: u8 = 0x80;
    /// D: the DDP header is there.
    pub(crate) const DDP: u8 = 0x40;
    /// R: the Read Request header is there.
    pub(crate) const RDMAP: u8 = 0x20;
    /// All three.
    pub(crate) const ALL: u8 = LENGTH | DDP | RDMAP;

    /// The same three as one deployed stack lays them out on little-endian machines.
    pub(crate) mod swapped {
        pub(crate) const LENGTH: u8 = 0x01;
        pub(crate) const DDP: u8 = 0x02;
        pub(crate) const RDMAP: u8 = 0x04;
        pub(crate) const ALL: u8 = LENGTH | DDP | RDMAP;
    }
}

const _: () = assert!(READ_REQUEST_LEN == 28);
const _: () = assert!(ATOMIC_REQUEST_LEN == 52);
const _: () = assert!(ATOMIC_RESPONSE_LEN == 12);
const _: () = assert!(TERMINATE_CONTROL_LEN == 4);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_octets_are_0x40_and_the_opcode() {
        // RDMAP-002, RDMAP-004
        for opcode in Opcode::ALL {
            let octet = Control::octet(opcode);
            assert_eq!(octet, 0x40 | opcode.raw());
            assert!(Control::from_octet(octet).has_our_version());
        }
    }

    #[test]
    fn reserved_bits_do_not_matter() {
        // RDMAP-004
        let control = Control::from_octet(0x73);
        assert!(control.has_our_version());
        assert_eq!(control.opcode(), 3);
    }

    #[test]
    fn other_versions_are_told_apart() {
        // RDMAP-075
        for (octet, version) in [(0x03, 0), (0x83, 2), (0xc3, 3)] {
            let control = Control::from_octet(octet);
            assert_eq!((control.version(), control.has_our_version()), (version, false));
        }
    }
}
