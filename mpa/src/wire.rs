//! Start-up frames and the fixed parts of FPDUs, octet for octet (RFC 5044 §4 and §7.1, RFC 6581
//! §9).

use bitflags::bitflags;
use bytes::{Bytes, BytesMut};
use zerocopy::big_endian::U16;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::StartupError;

/// Octets of private data in a start-up frame, the enhanced block counted in (RFC 5044 §7.1.1).
///
/// Some peers take fewer: Linux siw and cxgb4 stop at 256.
pub const PRIVATE_DATA_MAX: usize = 512;

/// Octets of private data left to the program beside an enhanced block (RFC 6581 §9).
pub const ENHANCED_PRIVATE_DATA_MAX: usize = PRIVATE_DATA_MAX - ENHANCED_LEN;

/// Longest ULPDU that is sent, in octets (RFC 5044 §3).
pub const ULPDU_MAX_SENT: usize = 64_768;

/// Longest ULPDU that is accepted, in octets: all that `ULPDU_Length` can say.
pub const ULPDU_MAX_RECEIVED: usize = 65_535;

/// Least MULPDU, in octets, however small the EMSS (RFC 5044 §3).
pub const MULPDU_MIN: usize = 128;

/// Octets of a start-up frame without private data.
pub const STARTUP_HEADER_LEN: usize = 20;

pub(crate) const LENGTH_LEN: usize = 2;
pub(crate) const CRC_LEN: usize = 4;

const KEY_LEN: usize = 16;
const REQUEST_KEY: [u8; KEY_LEN] = *b"MPA ID Req Frame";
const REPLY_KEY: [u8; KEY_LEN] = *b"MPA ID Rep Frame";
/// The octet in which the two keys differ.
const KEY_KIND: usize = 9;
const REVISION: usize = 17;
const ENHANCED_LEN: usize = 4;

/// Highest revision of a start-up frame that is understood (RFC 6581).
const REVISION_MAX: u8 = 2;
/// First revision in which `S` means something.
const REVISION_ENHANCED: u8 = 2;

const PEER_TO_PEER: u16 = 0x8000;
const RTR_SEND: u16 = 0x4000;
const RTR_WRITE: u16 = 0x8000;
const RTR_READ: u16 = 0x4000;
const DEPTH_MASK: u16 = 0x3FFF;

/// Which side of the start-up this endpoint is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Role {
    /// Sends the Request, and the first FPDU.
    Initiator,
    /// Sends the Reply, and no FPDU before it has received one.
    Responder,
}

/// The two kinds of start-up frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FrameKind {
    /// Sent by the initiator.
    Request,
    /// Sent by the responder.
    Reply,
}

impl FrameKind {
    const fn key(self) -> &'static [u8; KEY_LEN] {
        match self {
            Self::Request => &REQUEST_KEY,
            Self::Reply => &REPLY_KEY,
        }
    }
}

bitflags! {
    /// Kinds of ready-to-receive message that a side can send or take (RFC 6581 §9.2).
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct RtrTypes: u8 {
        /// Control flag B: a Send of no octets.
        const SEND = 1;
        /// Control flag C: an RDMA Write of no octets.
        const WRITE = 2;
        /// Control flag D: an RDMA Read of no octets.
        const READ = 4;
    }
}

/// One kind of ready-to-receive message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Rtr {
    /// A Send of no octets. It uses up the responder's first receive.
    Send,
    /// An RDMA Write of no octets.
    Write,
    /// An RDMA Read of no octets. It takes one place of the responder's IRD.
    Read,
}

impl From<Rtr> for RtrTypes {
    fn from(rtr: Rtr) -> Self {
        match rtr {
            Rtr::Send => Self::SEND,
            Rtr::Write => Self::WRITE,
            Rtr::Read => Self::READ,
        }
    }
}

/// An IRD or ORD as a start-up frame states it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Depth {
    /// So many RDMA Reads, 0 to [`Depth::MAX`].
    Count(u16),
    /// The programs agree on the depth by other means; MPA leaves it alone (0x3FFF on the wire).
    NotNegotiated,
}

impl Depth {
    /// Highest depth that can be stated (CONN-28).
    pub const MAX: u16 = DEPTH_MASK - 1;

    /// The depth `count`, or the highest that can be stated.
    #[must_use]
    pub fn saturating(count: u32) -> Self {
        Self::Count(u16::try_from(count).unwrap_or(u16::MAX).min(Self::MAX))
    }

    /// The depth as a number, if it is one.
    #[must_use]
    pub fn count(self) -> Option<u32> {
        match self {
            Self::Count(count) => Some(count.into()),
            Self::NotNegotiated => None,
        }
    }

    const fn from_wire(field: u16) -> Self {
        match field & DEPTH_MASK {
            DEPTH_MASK => Self::NotNegotiated,
            count => Self::Count(count),
        }
    }

    const fn to_wire(self) -> Result<u16, StartupError> {
        match self {
            Self::Count(count) if count > Self::MAX => Err(StartupError::DepthTooLarge(count)),
            Self::Count(count) => Ok(count),
            Self::NotNegotiated => Ok(DEPTH_MASK),
        }
    }
}

/// The block that an enhanced start-up frame carries in front of its private data (RFC 6581 §9).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Enhanced {
    /// Control flag A: the responder may send first, once it has the initiator's RTR.
    pub peer_to_peer: bool,
    /// Request: what the initiator can send. Reply: what the responder takes. Empty without
    /// `peer_to_peer`.
    pub rtr: RtrTypes,
    /// Inbound RDMA Reads the sender of the frame can hold.
    pub ird: Depth,
    /// Outbound RDMA Reads the sender of the frame will have.
    pub ord: Depth,
}

impl Enhanced {
    fn from_wire(block: &EnhancedBlock) -> Self {
        let (ird, ord) = (block.ird.get(), block.ord.get());
        let peer_to_peer = ird & PEER_TO_PEER != 0;
        let mut rtr = RtrTypes::empty();
        // CONN-26: without A the other control flags mean nothing.
        if peer_to_peer {
            rtr.set(RtrTypes::SEND, ird & RTR_SEND != 0);
            rtr.set(RtrTypes::WRITE, ord & RTR_WRITE != 0);
            rtr.set(RtrTypes::READ, ord & RTR_READ != 0);
        }
        Self { peer_to_peer, rtr, ird: Depth::from_wire(ird), ord: Depth::from_wire(ord) }
    }

    fn to_wire(self) -> Result<EnhancedBlock, StartupError> {
        let mut ird = self.ird.to_wire()?;
        let mut ord = self.ord.to_wire()?;
        // CONN-26
        if self.peer_to_peer {
            ird |= PEER_TO_PEER;
            if self.rtr.contains(RtrTypes::SEND) {
                ird |= RTR_SEND;
            }
            if self.rtr.contains(RtrTypes::WRITE) {
                ord |= RTR_WRITE;
            }
            if self.rtr.contains(RtrTypes::READ) {
                ord |= RTR_READ;
            }
        }
        Ok(EnhancedBlock { ird: U16::new(ird), ord: U16::new(ord) })
    }
}

/// A Request or Reply Frame (RFC 5044 §7.1.1, RFC 6581 §6).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StartupFrame {
    /// Request or Reply.
    pub kind: FrameKind,
    /// M: the sender of the frame wants markers in what it receives.
    pub markers: bool,
    /// C: the sender of the frame wants CRCs, in both directions.
    pub crc: bool,
    /// R: the Request is refused. Of no meaning in a Request.
    pub reject: bool,
    /// MPA revision.
    pub revision: u8,
    /// The enhanced block, if S is set (revision 2).
    pub enhanced: Option<Enhanced>,
    /// The program's private data, without the enhanced block.
    pub private_data: Bytes,
}

impl StartupFrame {
    /// Reads the frame at the front of `input`; gives it with its length in octets.
    ///
    /// `None`: so far so good, but not all there. A fault is reported by the first octet that
    /// shows it, so no more than a valid frame's octets are ever waited for, and the result for a
    /// given stream does not depend on how it was cut (SEC-22). Whatever follows the frame is not
    /// looked at.
    pub fn parse(expected: FrameKind, input: &[u8]) -> Result<Option<(Self, usize)>, StartupError> {
        let wanted = Self::wanted(expected, input)?;
        let Some(frame) = input.get(..wanted) else { return Ok(None) };
        let Ok((header, private_data)) = StartupHeader::ref_from_prefix(frame) else {
            return Ok(None);
        };
        let flags = header.flags();
        let (enhanced, private_data) = if header.is_enhanced() {
            // CONN-03: the block is the front of the private data and counted in PD_Length.
            let (block, rest) = EnhancedBlock::ref_from_prefix(private_data)
                .map_err(|_| StartupError::EnhancedTruncated(header.private_data_length.get()))?;
            (Some(Enhanced::from_wire(block)), rest)
        } else {
            (None, private_data)
        };
        let frame = Self {
            kind: expected,
            markers: flags.contains(StartupFlags::M),
            crc: flags.contains(StartupFlags::C),
            reject: flags.contains(StartupFlags::R),
            revision: header.revision,
            enhanced,
            private_data: Bytes::copy_from_slice(private_data),
        };
        Ok(Some((frame, wanted)))
    }

    /// Octets a frame that begins like `input` has, as far as can be told: those of the header
    /// until it is there.
    pub(crate) fn wanted(expected: FrameKind, input: &[u8]) -> Result<usize, StartupError> {
        // MPA-006, MPA-007
        let differs = expected.key().iter().zip(input).position(|(key, octet)| key != octet);
        if let Some(offset) = differs {
            let is_request = input.get(KEY_KIND) == REQUEST_KEY.get(KEY_KIND);
            return Err(match expected {
                // MPA-008
                FrameKind::Reply if offset == KEY_KIND && is_request => {
                    StartupError::InitiatorInitiator
                }
                _ => StartupError::WrongKey { offset },
            });
        }
        // MPA-018; revision 0 is a frame of the RDMA Consortium: well formed, refused further up.
        if let Some(&revision) = input.get(REVISION).filter(|&&revision| revision > REVISION_MAX) {
            return Err(StartupError::Revision(revision));
        }
        let Ok((header, _)) = StartupHeader::ref_from_prefix(input) else {
            return Ok(STARTUP_HEADER_LEN);
        };
        let length = header.private_data_length.get();
        let private_data = usize::from(length);
        // MPA-019, MPA-020, SEC-22: refused before one octet of it is waited for.
        if private_data > PRIVATE_DATA_MAX {
            return Err(StartupError::PrivateDataLength(length));
        }
        // CONN-03
        if header.is_enhanced() && private_data < ENHANCED_LEN {
            return Err(StartupError::EnhancedTruncated(length));
        }
        Ok(STARTUP_HEADER_LEN.saturating_add(private_data))
    }

    /// The octets of the frame (MPA-032: no CRC, no markers, no pad).
    ///
    /// Fails if the private data does not fit (MPA-021) or a depth is out of range. The enhanced
    /// block is written whatever the revision says; reserved bits, and R of a Request, are 0
    /// (MPA-016, MPA-017).
    pub fn encode(&self) -> Result<Bytes, StartupError> {
        let (max, block_len) = match self.enhanced {
            Some(_) => (ENHANCED_PRIVATE_DATA_MAX, ENHANCED_LEN),
            None => (PRIVATE_DATA_MAX, 0),
        };
        let len = self.private_data.len();
        let too_long = StartupError::PrivateDataTooLong { len, max };
        if len > max {
            return Err(too_long);
        }
        let counted = len.saturating_add(block_len);
        let private_data_length = u16::try_from(counted).map_err(|_| too_long)?;

        let mut flags = StartupFlags::empty();
        flags.set(StartupFlags::M, self.markers);
        flags.set(StartupFlags::C, self.crc);
        flags.set(StartupFlags::R, self.reject && self.kind == FrameKind::Reply);
        flags.set(StartupFlags::S, self.enhanced.is_some());
        let header = StartupHeader {
            key: *self.kind.key(),
            flags: flags.bits(),
            revision: self.revision,
            private_data_length: U16::new(private_data_length),
        };

        let mut frame = BytesMut::with_capacity(STARTUP_HEADER_LEN.saturating_add(counted));
        frame.extend_from_slice(header.as_bytes());
        if let Some(enhanced) = self.enhanced {
            frame.extend_from_slice(enhanced.to_wire()?.as_bytes());
        }
        frame.extend_from_slice(&self.private_data);
        Ok(frame.freeze())
    }
}

bitflags! {
    /// Octet 16 of a start-up frame.
    #[derive(Clone, Copy)]
    struct StartupFlags: u8 {
        const M = 0x80;
        const C = 0x40;
        const R = 0x20;
        const S = 0x10;
    }
}

#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct StartupHeader {
    key: [u8; KEY_LEN],
    flags: u8,
    revision: u8,
    private_data_length: U16,
}

impl StartupHeader {
    const fn flags(&self) -> StartupFlags {
        // MPA-017: reserved bits are dropped unseen.
        StartupFlags::from_bits_truncate(self.flags)
    }

    /// In revision 1 the bit of S is a reserved one (CONN-01, CONN-04).
    const fn is_enhanced(&self) -> bool {
        self.revision >= REVISION_ENHANCED && self.flags().contains(StartupFlags::S)
    }
}

#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct EnhancedBlock {
    ird: U16,
    ord: U16,
}

/// A marker (RFC 5044 §4.2).
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub(crate) struct MarkerField {
    reserved: U16,
    fpdu_pointer: U16,
}

impl MarkerField {
    pub(crate) const fn new(fpdu_pointer: u16) -> Self {
        // MPA-059
        Self { reserved: U16::ZERO, fpdu_pointer: U16::new(fpdu_pointer) }
    }

    /// The distance back to `ULPDU_Length`.
    pub(crate) const fn fpdu_pointer(&self) -> u16 {
        // MPA-060, RFC 5044 erratum 1427: the low two bits are taken as 0.
        self.fpdu_pointer.get() & !3
    }
}

const _: () = {
    assert!(size_of::<StartupHeader>() == STARTUP_HEADER_LEN);
    assert!(size_of::<EnhancedBlock>() == ENHANCED_LEN);
    assert!(size_of::<MarkerField>() == crate::marker::LEN);
};

#[cfg(test)]
#[allow(clippy::indexing_slicing, reason = "a wrong index fails the test")]
mod tests {
    use super::*;

    fn frame(kind: FrameKind, enhanced: Option<Enhanced>, private_data: &[u8]) -> StartupFrame {
        StartupFrame {
            kind,
            markers: false,
            crc: true,
            reject: false,
            revision: if enhanced.is_some() { 2 } else { 1 },
            enhanced,
            private_data: Bytes::copy_from_slice(private_data),
        }
    }

    // MPA-004, MPA-006, MPA-032: octet for octet.
    #[test]
    fn plain_request() {
        let mut request = frame(FrameKind::Request, None, b"client\0");
        request.markers = true;
        let octets = request.encode().unwrap();
        assert_eq!(&octets[..16], b"MPA ID Req Frame");
        assert_eq!(&octets[16..], b"\xc0\x01\x00\x07client\0");
    }

    // CONN-03: 14 bits each, and two control flags above each.
    #[test]
    fn enhanced_frames() {
        let block = |rtr, ird, ord| Enhanced { peer_to_peer: true, rtr, ird, ord };
        let all = block(RtrTypes::all(), Depth::Count(1), Depth::Count(2));
        let request = frame(FrameKind::Request, Some(all), &[]).encode().unwrap();
        assert_eq!(&request[16..], &[0x50, 2, 0, 4, 0xC0, 1, 0xC0, 2]);

        let write = block(RtrTypes::WRITE, Depth::Count(2), Depth::Count(1));
        let reply = frame(FrameKind::Reply, Some(write), &[]).encode().unwrap();
        assert_eq!(&reply[..16], b"MPA ID Rep Frame");
        assert_eq!(&reply[16..], &[0x50, 2, 0, 4, 0x80, 2, 0x80, 1]);
    }

    // CONN-28: the highest depth, and the value that is none.
    #[test]
    fn depths() {
        assert_eq!(Depth::MAX, 16_382);
        assert_eq!(Depth::Count(16_382).to_wire(), Ok(0x3FFE));
        assert_eq!(Depth::NotNegotiated.to_wire(), Ok(0x3FFF));
        assert_eq!(Depth::Count(16_383).to_wire(), Err(StartupError::DepthTooLarge(16_383)));
        assert_eq!(Depth::from_wire(0xFFFF), Depth::NotNegotiated);
        assert_eq!(Depth::from_wire(0xFFFE), Depth::Count(16_382));
        assert_eq!(Depth::saturating(70_000), Depth::Count(16_382));
        assert_eq!(Depth::saturating(3), Depth::Count(3));
        let block = Enhanced {
            peer_to_peer: false,
            rtr: RtrTypes::empty(),
            ird: Depth::Count(0),
            ord: Depth::Count(16_383),
        };
        let refused = frame(FrameKind::Request, Some(block), &[]).encode();
        assert_eq!(refused, Err(StartupError::DepthTooLarge(16_383)));
    }

    // CONN-26
    #[test]
    fn rtr_flags_mean_nothing_without_peer_to_peer() {
        let block = Enhanced {
            peer_to_peer: false,
            rtr: RtrTypes::all(),
            ird: Depth::Count(4),
            ord: Depth::Count(4),
        };
        let octets = frame(FrameKind::Request, Some(block), &[]).encode().unwrap();
        assert_eq!(&octets[20..], &[0, 4, 0, 4]);
        let mut received = octets.to_vec();
        received[20] |= 0x40;
        received[22] |= 0xC0;
        let (parsed, _) = StartupFrame::parse(FrameKind::Request, &received).unwrap().unwrap();
        assert_eq!(parsed.enhanced, Some(Enhanced { rtr: RtrTypes::empty(), ..block }));
    }

    // MPA-016, MPA-017
    #[test]
    fn reserved_bits_are_sent_zero_and_not_looked_at() {
        let mut request = frame(FrameKind::Request, None, &[]);
        request.reject = true;
        let mut octets = request.encode().unwrap().to_vec();
        assert_eq!(octets[16], 0x40);
        // R, the bit that is S in revision 2 (CONN-04), and the other reserved ones.
        octets[16] = 0x7F;
        octets[19] = 3;
        octets.extend_from_slice(b"ulp");
        let (parsed, len) = StartupFrame::parse(FrameKind::Request, &octets).unwrap().unwrap();
        assert_eq!((len, parsed.enhanced, parsed.crc), (23, None, true));
        assert_eq!(&parsed.private_data[..], b"ulp");
    }

    // MPA-020, SEC-22: refused on the header alone.
    #[test]
    fn private_data_length_is_checked_before_it_is_waited_for() {
        let mut octets = frame(FrameKind::Request, None, &[]).encode().unwrap().to_vec();
        octets[18..20].copy_from_slice(&512_u16.to_be_bytes());
        assert_eq!(StartupFrame::parse(FrameKind::Request, &octets), Ok(None));
        octets[18..20].copy_from_slice(&513_u16.to_be_bytes());
        let refused = StartupFrame::parse(FrameKind::Request, &octets);
        assert_eq!(refused, Err(StartupError::PrivateDataLength(513)));
        octets[16..20].copy_from_slice(&[0x50, 2, 0, 3]);
        let refused = StartupFrame::parse(FrameKind::Request, &octets);
        assert_eq!(refused, Err(StartupError::EnhancedTruncated(3)));
    }

    // MPA-021
    #[test]
    fn private_data_of_this_side_must_fit() {
        let fits = |enhanced, len| frame(FrameKind::Reply, enhanced, &vec![0; len]).encode();
        let block = Enhanced {
            peer_to_peer: false,
            rtr: RtrTypes::empty(),
            ird: Depth::NotNegotiated,
            ord: Depth::NotNegotiated,
        };
        assert_eq!(fits(None, 512).unwrap().len(), 532);
        assert_eq!(fits(Some(block), 508).unwrap().len(), 532);
        let too_long = |len, max| Err(StartupError::PrivateDataTooLong { len, max });
        assert_eq!(fits(None, 513), too_long(513, 512));
        assert_eq!(fits(Some(block), 509), too_long(509, 508));
        assert_eq!(fits(None, 70_000), too_long(70_000, 512));
    }

    // MPA-059, MPA-060
    #[test]
    fn markers() {
        assert_eq!(MarkerField::new(0x14).as_bytes(), &[0, 0, 0, 0x14]);
        let received = MarkerField::ref_from_bytes(&[0xFF, 0xFF, 0x01, 0xFF]).unwrap();
        assert_eq!(received.fpdu_pointer(), 0x1FC);
    }
}
