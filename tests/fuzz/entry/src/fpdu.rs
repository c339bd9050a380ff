//! FPDUs by the letter of RFC 5044 §4, octet by octet: a second implementation to compare with.

use iwarp_mpa::Error;

/// What a stream of FPDUs holds.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Content {
    pub(crate) ulpdus: Vec<Vec<u8>>,
    pub(crate) error: Option<Error>,
    /// Octets of FPDUs that were taken.
    pub(crate) taken: usize,
    /// Octets that the FPDU at the end needs before more can be said of it, if there was no error.
    pub(crate) need: usize,
}

/// Octets that differ from one place to the next.
pub(crate) fn ramp(len: usize) -> Vec<u8> {
    (0..len).map(|i| (i + (i >> 8)) as u8).collect()
}

/// One FPDU for the stream offset `position`.
pub(crate) fn build(ulpdu: &[u8], position: u64, markers: bool, crc: bool) -> Vec<u8> {
    let due = |wire: &[u8]| markers && position.wrapping_add(wire.len() as u64).is_multiple_of(512);
    let mut body = (ulpdu.len() as u16).to_be_bytes().to_vec();
    body.extend_from_slice(ulpdu);
    body.resize(body.len().next_multiple_of(4), 0);
    let mut wire = Vec::with_capacity(body.len() + 8);
    if due(&wire) {
        wire.extend_from_slice(&[0; 4]);
    }
    let start = wire.len();
    // Everything in front of a marker is a multiple of 4 long.
    for (index, word) in body.chunks(4).enumerate() {
        if index > 0 && due(&wire) {
            marker(&mut wire, start);
        }
        wire.extend_from_slice(word);
    }
    if due(&wire) {
        marker(&mut wire, start);
    }
    let sum = if crc { crc32c::crc32c(&wire) } else { 0 };
    wire.extend_from_slice(&sum.to_le_bytes());
    wire
}

/// Reserved half, then FPDUPTR.
fn marker(wire: &mut Vec<u8>, start: usize) {
    let distance = (wire.len() - start) as u16;
    wire.extend_from_slice(&[0, 0]);
    wire.extend_from_slice(&distance.to_be_bytes());
}

/// Takes a stream apart that starts at `position`.
pub(crate) fn take_apart(stream: &[u8], position: u64, markers: bool, crc: bool) -> Content {
    let mut content = Content::default();
    loop {
        let wire = &stream[content.taken..];
        match take_one(wire, position.wrapping_add(content.taken as u64), markers, crc) {
            Ok((ulpdu, len)) => {
                content.ulpdus.push(ulpdu);
                content.taken += len;
            }
            Err(Stop::Need(need)) => {
                content.need = need;
                return content;
            }
            Err(Stop::Error(error)) => {
                content.error = Some(error);
                return content;
            }
        }
    }
}

enum Stop {
    Need(usize),
    Error(Error),
}

fn take_one(
    wire: &[u8],
    position: u64,
    markers: bool,
    crc: bool,
) -> Result<(Vec<u8>, usize), Stop> {
    let due = |at: usize| markers && position.wrapping_add(at as u64).is_multiple_of(512);
    let start = if due(0) { 4 } else { 0 };
    let Some(length) = wire.get(start..start + 2) else { return Err(Stop::Need(start + 2)) };
    let ulpdu_len = usize::from(length[0]) << 8 | usize::from(length[1]);
    // Walk over the words of the body and over what lies between them.
    let words = (2 + ulpdu_len).div_ceil(4);
    let mut at = start;
    let mut inside = Vec::new();
    let mut places = Vec::with_capacity(words);
    for word in 0..words {
        if word > 0 && due(at) {
            inside.push(at);
            at += 4;
        }
        places.push(at);
        at += 4;
    }
    if due(at) {
        inside.push(at);
        at += 4;
    }
    let len = at + 4;
    let Some(wire) = wire.get(..len) else { return Err(Stop::Need(len)) };
    let received = u32::from_le_bytes(wire[at..].try_into().expect("four octets"));
    let computed = crc32c::crc32c(&wire[..at]);
    if crc && received != computed {
        return Err(Stop::Error(Error::Crc { position, computed, received }));
    }
    let leading = (start > 0).then_some((0, 0));
    let pointers = inside.into_iter().map(|place| (place, (place - start) as u16));
    for (place, expected) in leading.into_iter().chain(pointers) {
        // The two low bits are reserved.
        let found = u16::from_be_bytes([wire[place + 2], wire[place + 3]]) & !3;
        if found != expected {
            let position = position.wrapping_add(place as u64);
            return Err(Stop::Error(Error::Marker { position, expected, found }));
        }
    }
    let body = places.into_iter().flat_map(|place| &wire[place..place + 4]);
    Ok((body.skip(2).take(ulpdu_len).copied().collect(), len))
}
