//! Terminate: its codes, its octets, and which error goes out as which code.

mod code;

use std::fmt;

use iwarp_ddp::{TAGGED_HEADER_LEN, UNTAGGED_HEADER_LEN, header_octets};
use zerocopy::{FromBytes, IntoBytes};

pub use self::code::TerminateCode;
use crate::error::{BadTerminate, Error, LocalError, OperationError, ProtectionError};
use crate::message::ReadRequest;
use crate::wire::{READ_REQUEST_LEN, TERMINATE_CONTROL_LEN, TerminateControl, headers};

/// Longest Terminate header that is sent: control, length, untagged DDP header, Read Request header.
pub(crate) const TERMINATE_MAX: usize = TERMINATE_CONTROL_LEN
    .saturating_add(LENGTH_LEN)
    .saturating_add(UNTAGGED_HEADER_LEN)
    .saturating_add(READ_REQUEST_LEN);

const LENGTH_LEN: usize = 2;

/// The DDP header of a segment in error: 14 or 18 octets, by its T bit.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct DdpHeader {
    octets: [u8; UNTAGGED_HEADER_LEN],
    len: usize,
}

impl DdpHeader {
    /// The header at the front of `octets`; `None` if they end inside it.
    #[must_use]
    pub fn from_front(octets: &[u8]) -> Option<Self> {
        let header = header_octets(octets)?;
        let mut octets = [0; UNTAGGED_HEADER_LEN];
        octets.get_mut(..header.len())?.copy_from_slice(header);
        Some(Self { octets, len: header.len() })
    }

    /// The octets of the header.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        self.octets.get(..self.len).unwrap_or_default()
    }

    /// Whether it is the header of a tagged segment.
    #[must_use]
    pub const fn is_tagged(&self) -> bool {
        self.len == TAGGED_HEADER_LEN
    }
}

impl fmt::Debug for DdpHeader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("DdpHeader(")?;
        for octet in self.as_bytes() {
            write!(f, "{octet:02x}")?;
        }
        f.write_str(")")
    }
}

/// The content of a Terminate message (RFC 5040 §4.8; RDMAP-007).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Terminate {
    /// What went wrong, as the octets say it.
    pub code: TerminateCode,
    /// Length of the DDP segment in error, header and all.
    pub segment_len: Option<u16>,
    /// Its DDP header.
    pub ddp_header: Option<DdpHeader>,
    /// Its Read Request header, less what was answered already.
    pub read_request: Option<ReadRequest>,
    /// What a peer meant that lays these bit fields out in the order of a little-endian machine, as Linux
    /// siw does: layer and type are swapped in [`code`](Self::code), and the headers are found all the
    /// same. For reports only; `None` if the octets are in order.
    pub meant: Option<TerminateCode>,
}

impl Terminate {
    /// A Terminate without headers.
    #[must_use]
    pub const fn new(code: TerminateCode) -> Self {
        Self { code, segment_len: None, ddp_header: None, read_request: None, meant: None }
    }

    /// The best guess at what the peer meant: [`meant`](Self::meant), else [`code`](Self::code).
    #[must_use]
    pub fn likely_code(&self) -> TerminateCode {
        self.meant.unwrap_or(self.code)
    }

    /// Reads the octets behind the DDP header of a Terminate.
    ///
    /// Reserved bits and octets behind the announced headers are not looked at. The DDP header included
    /// says by its own T bit how long it is.
    pub fn parse(octets: &[u8]) -> Result<Self, BadTerminate> {
        let truncated = BadTerminate::Truncated { len: octets.len() };
        let (control, rest) = TerminateControl::ref_from_prefix(octets).map_err(|_| truncated)?;
        let code =
            TerminateCode::from_raw(u16::from_be_bytes([control.layer_and_type, control.code]));
        let flags = control.headers;
        let swapped = headers::swapped::ALL & flags;
        if flags & headers::ALL == 0 && swapped != 0 {
            let parts = Parts {
                length: swapped & headers::swapped::LENGTH != 0,
                ddp: swapped & headers::swapped::DDP != 0,
                // That stack sets R also where it appends no Read Request header.
                rdmap: swapped & headers::swapped::RDMAP != 0
                    && rest.len() >= TERMINATE_MAX.saturating_sub(TERMINATE_CONTROL_LEN),
            };
            // The reserved bits may be noise after all, so what does not fit is not taken for a header.
            let [high, low] = [control.layer_and_type >> 4, control.layer_and_type & 0x0f];
            let meant = TerminateCode::from_parts(low, high, control.code);
            return Ok(match parts.parse(code, rest) {
                Some(terminate) => Self { meant: Some(meant), ..terminate },
                None => Self::new(code),
            });
        }
        let parts = Parts {
            length: flags & headers::LENGTH != 0,
            ddp: flags & headers::DDP != 0,
            rdmap: flags & headers::RDMAP != 0,
        };
        parts.parse(code, rest).ok_or(truncated)
    }

    /// The octets behind the DDP header.
    #[must_use]
    pub fn to_vec(&self) -> Vec<u8> {
        let mut octets = [0; TERMINATE_MAX];
        let len = self.encode(&mut octets);
        octets.get(..len).unwrap_or_default().to_vec()
    }

    /// Writes the octets behind the DDP header to the front of `out`; returns how many.
    pub(crate) fn encode(&self, out: &mut [u8; TERMINATE_MAX]) -> usize {
        let mut flags = 0;
        // RDMAP-079: a flag is set only for what is there.
        if self.segment_len.is_some() {
            flags |= headers::LENGTH;
        }
        if self.ddp_header.is_some() {
            flags |= headers::DDP;
        }
        if self.read_request.is_some() {
            flags |= headers::RDMAP;
        }
        let [layer_and_type, code] = self.code.raw().to_be_bytes();
        // RDMAP-080: Reserved is 0.
        let control = TerminateControl { layer_and_type, code, headers: flags, reserved: 0 };
        let mut cursor = Cursor { out, len: 0 };
        cursor.put(control.as_bytes());
        // D3: nothing is sent for what is not flagged.
        if self.segment_len.is_some() || self.ddp_header.is_some() {
            cursor.put(&self.segment_len.unwrap_or(0).to_be_bytes());
        }
        if let Some(header) = &self.ddp_header {
            cursor.put(header.as_bytes());
        }
        if let Some(request) = &self.read_request {
            cursor.put(&request.to_bytes());
        }
        cursor.len
    }
}

/// Which parts a Terminate announces.
struct Parts {
    length: bool,
    ddp: bool,
    rdmap: bool,
}

impl Parts {
    fn parse(&self, code: TerminateCode, octets: &[u8]) -> Option<Terminate> {
        let mut terminate = Terminate::new(code);
        let mut rest = octets;
        if self.length || self.ddp {
            let (length, behind) = rest.split_at_checked(LENGTH_LEN)?;
            let length = u16::from_be_bytes(length.try_into().ok()?);
            terminate.segment_len = self.length.then_some(length);
            rest = behind;
        }
        if self.ddp {
            let header = DdpHeader::from_front(rest)?;
            rest = rest.get(header.len..)?;
            terminate.ddp_header = Some(header);
        }
        if self.rdmap {
            terminate.read_request = Some(ReadRequest::parse(rest.get(..READ_REQUEST_LEN)?)?);
        }
        Some(terminate)
    }
}

struct Cursor<'a> {
    out: &'a mut [u8; TERMINATE_MAX],
    len: usize,
}

impl Cursor<'_> {
    fn put(&mut self, octets: &[u8]) {
        let end = self.len.saturating_add(octets.len());
        // The largest Terminate is as long as the buffer, by definition.
        if let Some(slot) = self.out.get_mut(self.len..end) {
            slot.copy_from_slice(octets);
            self.len = end;
        }
    }
}

/// The segment that an error is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Culprit {
    pub(crate) ulpdu_len: usize,
    pub(crate) header: Option<DdpHeader>,
    /// Only where the segment is a Read Request, less what was answered.
    pub(crate) read_request: Option<ReadRequest>,
}

impl Culprit {
    pub(crate) fn of_ulpdu(ulpdu: &[u8]) -> Self {
        Self { ulpdu_len: ulpdu.len(), header: DdpHeader::from_front(ulpdu), read_request: None }
    }

    /// So many more octets of the segment were placed before.
    pub(crate) fn behind(self, placed: usize) -> Self {
        Self { ulpdu_len: self.ulpdu_len.saturating_add(placed), ..self }
    }
}

/// Which headers of the culprit a Terminate shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Show {
    Nothing,
    /// M and D.
    Segment,
    /// M and D, and R where the culprit is a Read Request. (EXT-21: of an Atomic Request there is no R.)
    Request,
}

impl Error {
    /// What a Terminate for this error says; `None` if none is sent.
    #[must_use]
    pub fn terminate_code(&self) -> Option<TerminateCode> {
        self.on_the_wire().map(|(code, _)| code)
    }

    /// The Terminate for this error.
    pub(crate) fn terminate(&self, culprit: Option<&Culprit>) -> Option<Terminate> {
        let (code, show) = self.on_the_wire()?;
        let mut terminate = Terminate::new(code);
        let Some(culprit) = culprit else { return Some(terminate) };
        if show == Show::Nothing {
            return Some(terminate);
        }
        // RDMAP-071, RDMAP-079
        terminate.segment_len = u16::try_from(culprit.ulpdu_len).ok();
        terminate.ddp_header = culprit.header;
        if show == Show::Request {
            terminate.read_request = culprit.read_request; // RDMAP-072
        }
        Some(terminate)
    }

    /// The one place that knows which error goes out as which code (conformance §11). New variants of any
    /// layer have to be given a place here before this compiles.
    fn on_the_wire(&self) -> Option<(TerminateCode, Show)> {
        Some(match self {
            // MPA-080: codes 1 and 4 are for this side only, nothing can be sent any more.
            Self::Mpa(error) => match error.code() {
                Some(1 | 4) => return None,
                Some(code) => (TerminateCode::from_parts(2, 0, code), Show::Nothing),
                None => (TerminateCode::LOCAL_CATASTROPHIC, Show::Nothing),
            },
            // DDP-061. There is no header to show of a segment that is too short for one.
            Self::Ddp(error) => {
                let show = if error.error_type() == 0 { Show::Nothing } else { Show::Segment };
                (TerminateCode::from_parts(1, error.error_type(), error.code()), show)
            }
            Self::Protection(error) => match error {
                // RDMAP-078, RDMAP-026
                ProtectionError::InvalidStag => (TerminateCode::INVALID_STAG, Show::Request),
                ProtectionError::Bounds => (TerminateCode::BOUNDS, Show::Request),
                ProtectionError::Rights => (TerminateCode::RIGHTS, Show::Request),
                ProtectionError::NotAssociated => (TerminateCode::NOT_ASSOCIATED, Show::Request),
                ProtectionError::Wrap => (TerminateCode::WRAP, Show::Request),
                // RDMAP-045
                ProtectionError::InvalidateRights => (TerminateCode::RIGHTS, Show::Segment),
                ProtectionError::NotInvalidatable => {
                    (TerminateCode::NOT_INVALIDATABLE, Show::Segment)
                }
            },
            Self::Operation(error) => match error {
                // RDMAP-075
                OperationError::Version(_) => (TerminateCode::INVALID_VERSION, Show::Segment),
                // RDMAP-074
                // EXT-13
                OperationError::Opcode(_)
                | OperationError::AtomicOpcode(_)
                | OperationError::TagMismatch(_)
                | OperationError::OpcodeChanged { .. } => {
                    (TerminateCode::UNEXPECTED_OPCODE, Show::Segment)
                }
                // RDMAP-081
                // EXT-30
                // EXT-08
                OperationError::NotLast
                | OperationError::ImmediateLength { .. }
                | OperationError::AtomicMisaligned => {
                    (TerminateCode::STREAM_CATASTROPHIC, Show::Segment)
                }
                // EXT-17
                OperationError::RequestLength { .. }
                | OperationError::AtomicRequestLength { .. }
                | OperationError::AtomicResponseLength { .. }
                | OperationError::AtomicUnmatched { .. } => {
                    (TerminateCode::OPERATION, Show::Segment)
                }
                // RDMAP-045
                OperationError::InvalidateUnknown => {
                    (TerminateCode::INVALIDATE_UNKNOWN, Show::Segment)
                }
                // RDMAP-082: no segment caused it.
                OperationError::FinWithWork => (TerminateCode::STREAM_CATASTROPHIC, Show::Nothing),
            },
            // RDMAP-070, RDMAP-080
            Self::Local(
                LocalError::Source(_)
                | LocalError::Sink(_)
                | LocalError::Receive(_)
                | LocalError::NoOrd
                | LocalError::WorkRefused,
            ) => (TerminateCode::LOCAL_CATASTROPHIC, Show::Nothing),
            Self::Requested(code) => (*code, Show::Nothing),
            // RDMAP-056: a Terminate is not answered. And a peer that stopped inside an FPDU is gone.
            Self::BadTerminate(
                BadTerminate::Tagged
                | BadTerminate::Segment(_)
                | BadTerminate::NotLast
                | BadTerminate::Truncated { .. },
            )
            | Self::FpduStalled { .. } => return None,
        })
    }
}

#[cfg(test)]
mod tests {
    use iwarp_ddp::{LocalFault, TaggedError, UntaggedError};
    use iwarp_mpa::StartupError;
    use proptest::prelude::*;

    use super::*;

    /// Every error of every layer with what it says on the wire: code, and headers of a Read Request that
    /// caused it. `None`: nothing is sent.
    fn table() -> Vec<(Error, Option<(u16, &'static str)>)> {
        let tagged = |error: TaggedError| Error::from(error);
        let untagged = |error: UntaggedError| Error::from(error);
        let crc = iwarp_mpa::Error::Crc { position: 0, computed: 1, received: 2 };
        let marker = iwarp_mpa::Error::Marker { position: 0, expected: 4, found: 8 };
        vec![
            (crc.into(), Some((0x2002, ""))),
            (marker.into(), Some((0x2003, ""))),
            (iwarp_mpa::Error::Truncated { position: 0, received: 3 }.into(), None),
            (iwarp_mpa::Error::from(StartupError::InitiatorInitiator).into(), None),
            (iwarp_mpa::Error::from(StartupError::TimedOut).into(), None),
            (iwarp_mpa::Error::GatherUnavailable.into(), Some((0x0000, ""))),
            (iwarp_ddp::Error::HeaderTruncated { len: 3 }.into(), Some((0x1000, ""))),
            (tagged(TaggedError::InvalidStag), Some((0x1100, "MD"))),
            (tagged(TaggedError::Bounds), Some((0x1101, "MD"))),
            (tagged(TaggedError::NotAssociated), Some((0x1102, "MD"))),
            (tagged(TaggedError::Wrap), Some((0x1103, "MD"))),
            (tagged(TaggedError::Version), Some((0x1104, "MD"))),
            (untagged(UntaggedError::InvalidQueue), Some((0x1201, "MD"))),
            (untagged(UntaggedError::NoBuffer), Some((0x1202, "MD"))),
            (untagged(UntaggedError::MsnRange), Some((0x1203, "MD"))),
            (untagged(UntaggedError::InvalidOffset), Some((0x1204, "MD"))),
            (untagged(UntaggedError::TooLong), Some((0x1205, "MD"))),
            (untagged(UntaggedError::Version), Some((0x1206, "MD"))),
            (ProtectionError::InvalidStag.into(), Some((0x0100, "MDR"))),
            (ProtectionError::Bounds.into(), Some((0x0101, "MDR"))),
            (ProtectionError::Rights.into(), Some((0x0102, "MDR"))),
            (ProtectionError::NotAssociated.into(), Some((0x0103, "MDR"))),
            (ProtectionError::Wrap.into(), Some((0x0104, "MDR"))),
            (ProtectionError::InvalidateRights.into(), Some((0x0102, "MD"))),
            (ProtectionError::NotInvalidatable.into(), Some((0x0109, "MD"))),
            (OperationError::Version(0).into(), Some((0x0205, "MD"))),
            (OperationError::Opcode(12).into(), Some((0x0206, "MD"))),
            (OperationError::TagMismatch(3).into(), Some((0x0206, "MD"))),
            (OperationError::OpcodeChanged { open: 3, found: 5 }.into(), Some((0x0206, "MD"))),
            (OperationError::NotLast.into(), Some((0x0207, "MD"))),
            (OperationError::ImmediateLength { len: 7 }.into(), Some((0x0207, "MD"))),
            (OperationError::AtomicMisaligned.into(), Some((0x0207, "MD"))),
            (OperationError::AtomicOpcode(1).into(), Some((0x0206, "MD"))),
            (OperationError::AtomicUnmatched { id: 1 }.into(), Some((0x02ff, "MD"))),
            (OperationError::AtomicRequestLength { len: 48 }.into(), Some((0x02ff, "MD"))),
            (OperationError::AtomicResponseLength { len: 0 }.into(), Some((0x02ff, "MD"))),
            (OperationError::FinWithWork.into(), Some((0x0207, ""))),
            (OperationError::InvalidateUnknown.into(), Some((0x0209, "MD"))),
            (OperationError::RequestLength { len: 27 }.into(), Some((0x02ff, "MD"))),
            (LocalError::Source(LocalFault::Protection).into(), Some((0x0000, ""))),
            (LocalError::Sink(LocalFault::Length).into(), Some((0x0000, ""))),
            (LocalError::Receive(LocalFault::Protection).into(), Some((0x0000, ""))),
            (LocalError::NoOrd.into(), Some((0x0000, ""))),
            (LocalError::WorkRefused.into(), Some((0x0000, ""))),
            (Error::Requested(TerminateCode::SETUP_IRD), Some((0x2006, ""))),
            (BadTerminate::Tagged.into(), None),
            (BadTerminate::Segment(UntaggedError::MsnRange).into(), None),
            (BadTerminate::NotLast.into(), None),
            (BadTerminate::Truncated { len: 3 }.into(), None),
            (Error::FpduStalled { missing: 1 }, None),
        ]
    }

    fn read_request() -> (Culprit, Vec<u8>) {
        let ulpdu = hex::decode(
            "414100000000000000010000000100000000\
             1234567800000000000020000000006400beef010000000000001000",
        )
        .unwrap();
        let request = ReadRequest::parse(&ulpdu[UNTAGGED_HEADER_LEN..]);
        (Culprit { read_request: request, ..Culprit::of_ulpdu(&ulpdu) }, ulpdu)
    }

    #[test]
    fn every_error_has_its_code_and_its_headers() {
        // DDP-061, RDMAP-070, RDMAP-071, RDMAP-072, RDMAP-079, RDMAP-080, CONN-30, MPA-080
        let (culprit, ulpdu) = read_request();
        for (error, expected) in table() {
            let terminate = error.terminate(Some(&culprit));
            assert_eq!(terminate.map(|terminate| terminate.code), error.terminate_code());
            let Some((code, shown)) = expected else {
                assert_eq!(terminate, None, "{error}");
                continue;
            };
            let octets = terminate.unwrap().to_vec();
            let [high, low] = code.to_be_bytes();
            let flags = match shown {
                "" => 0x00,
                "MD" => 0xc0,
                _ => 0xe0,
            };
            let mut expected = vec![high, low, flags, 0];
            if flags != 0 {
                expected.extend_from_slice(&[0, 46]);
                expected.extend_from_slice(&ulpdu[..18]);
            }
            if flags == 0xe0 {
                expected.extend_from_slice(&ulpdu[18..]);
            }
            assert_eq!(hex::encode(octets), hex::encode(expected), "{error}");
        }
    }

    #[test]
    fn an_error_without_a_segment_shows_none() {
        for (error, expected) in table() {
            let terminate = error.terminate(None);
            assert_eq!(terminate.is_some(), expected.is_some(), "{error}");
            let Some(terminate) = terminate else { continue };
            assert_eq!(terminate, Terminate::new(terminate.code));
            assert_eq!(terminate.to_vec().len(), TERMINATE_CONTROL_LEN);
        }
    }

    #[test]
    fn a_segment_without_a_whole_header_shows_its_length() {
        // `M` alone. No error of a segment so short asks for headers; the form is made all the same.
        let culprit = Culprit::of_ulpdu(&[0x41, 0x43, 0]);
        let terminate = Error::from(UntaggedError::Version).terminate(Some(&culprit)).unwrap();
        assert_eq!(terminate.to_vec(), [0x12, 0x06, 0x80, 0, 0, 3]);
    }

    #[test]
    fn announced_headers_have_to_be_there() {
        // RDMAP-056, RDMAP-079
        let (culprit, _) = read_request();
        let whole =
            Error::from(ProtectionError::Bounds).terminate(Some(&culprit)).unwrap().to_vec();
        assert_eq!(whole.len(), TERMINATE_MAX);
        for len in 0..whole.len() {
            let cut = Terminate::parse(&whole[..len]);
            assert_eq!(cut, Err(BadTerminate::Truncated { len }));
        }
        assert!(Terminate::parse(&whole).is_ok());
    }

    /// Each of M, D and R says for itself what follows, in both orders of the bits.
    #[test]
    fn every_combination_of_flags() {
        let (culprit, _) = read_request();
        let whole =
            Error::from(ProtectionError::Bounds).terminate(Some(&culprit)).unwrap().to_vec();
        for [m, d, r] in (0..8).map(|bits| [1, 2, 4].map(|bit| bits & bit != 0)) {
            let bits = |[length, ddp, rdmap]: [u8; 3]| {
                (u8::from(m) * length) | (u8::from(d) * ddp) | (u8::from(r) * rdmap)
            };
            for (flags, swapped) in [([0x80, 0x40, 0x20], false), ([0x01, 0x02, 0x04], true)] {
                let mut octets = whole.clone();
                octets[2] = bits(flags);
                let terminate = Terminate::parse(&octets).unwrap();
                let shown = (
                    terminate.segment_len.is_some(),
                    terminate.ddp_header.is_some(),
                    terminate.read_request.is_some(),
                );
                assert_eq!(shown, (m, d, r), "{:#04x}", octets[2]);
                assert_eq!(terminate.meant.is_some(), swapped && (m || d || r));
                if !swapped && (m || d || r) {
                    octets[2] |= 0x1f;
                    assert_eq!(Terminate::parse(&octets), Ok(terminate), "reserved bits");
                }
            }
        }
    }

    #[test]
    fn headers_print_as_their_octets() {
        let header =
            DdpHeader::from_front(b"\xC1\x40\0\xBE\xEF\x01\0\0\0\0\0\0\x10\0rest").unwrap();
        assert_eq!(format!("{header:?}"), "DdpHeader(c14000beef010000000000001000)");
    }

    #[test]
    fn the_little_endian_layout_is_understood() {
        // The Terminate of Linux siw for a Read: layer 0, type 1, M D R, the length that of the payload.
        let octets = hex::decode(
            "100007000000\
             414100000000000000010000004000000000\
             1234567800000000000020000000006400beef010000000000001000",
        )
        .unwrap();
        let terminate = Terminate::parse(&octets).unwrap();
        assert_eq!(terminate.code, TerminateCode::from_parts(1, 0, 0));
        assert_eq!(terminate.meant, Some(TerminateCode::INVALID_STAG));
        assert_eq!(terminate.likely_code(), TerminateCode::INVALID_STAG);
        assert_eq!(terminate.read_request.unwrap().len, 100);
        // R is set for a Send with Invalidate too, and nothing is behind the DDP header.
        let without = Terminate::parse(&octets[..24]).unwrap();
        assert!(without.ddp_header.is_some() && without.read_request.is_none());
        // What does not fit is noise in the reserved bits.
        let noise = Terminate::parse(&octets[..5]).unwrap();
        assert_eq!(noise, Terminate::new(TerminateCode::from_parts(1, 0, 0)));
    }

    proptest! {
        #[test]
        fn what_is_written_is_read(
            code: u16,
            len: u16,
            header in proptest::option::of((any::<bool>(), any::<[u8; 17]>())),
            request in proptest::option::of(any::<[u8; READ_REQUEST_LEN]>()),
        ) {
            let ddp_header = header.and_then(|(tagged, rest)| {
                let first = if tagged { 0xc1 } else { 0x41 };
                DdpHeader::from_front(&[&[first][..], &rest].concat())
            });
            let terminate = Terminate {
                segment_len: Some(len),
                ddp_header,
                read_request: request.and_then(|octets| ReadRequest::parse(&octets)),
                ..Terminate::new(TerminateCode::from_raw(code))
            };
            prop_assert_eq!(Terminate::parse(&terminate.to_vec()), Ok(terminate));
        }

        #[test]
        fn any_octets_are_read_or_refused(octets in proptest::collection::vec(any::<u8>(), 0..80)) {
            match Terminate::parse(&octets) {
                Ok(terminate) => prop_assert!(terminate.to_vec().len() <= octets.len().max(4)),
                Err(error) => {
                    prop_assert_eq!(error, BadTerminate::Truncated { len: octets.len() });
                }
            }
        }
    }
}
