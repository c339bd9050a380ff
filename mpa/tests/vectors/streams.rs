//! FPDUs, alone and in streams, with markers and without.

use iwarp_mpa::Framer;
use serde::Deserialize;

use crate::common::{Reader, frame, framing, pieces};
use crate::{ExpectedTerminate, book};

#[derive(Deserialize)]
struct StreamVector {
    name: String,
    kind: String,
    hex: String,
    length: usize,
    markers: bool,
    crc: bool,
    #[serde(default)]
    stream_start: u64,
    fields: StreamFields,
    expect: Option<ExpectedTerminate>,
}

#[derive(Deserialize)]
struct StreamFields {
    /// Of a file with one FPDU a vector.
    mpa: Option<MpaFields>,
    #[serde(default)]
    fpdus: Vec<FpduFields>,
}

#[derive(Deserialize)]
struct FpduFields {
    mpa: MpaFields,
    ulpdu_hex: Option<String>,
}

#[derive(Deserialize)]
struct MpaFields {
    ulpdu_length: usize,
    pad_length: usize,
    crc_wire: String,
    length: usize,
    stream_offset: Option<u64>,
    #[serde(default)]
    markers: Vec<MarkerFields>,
}

#[derive(Deserialize)]
struct MarkerFields {
    stream_offset: u64,
}

/// The FPDUs of a vector by its fields: ULPDU and place on the wire.
fn fpdus(vector: &StreamVector, octets: &[u8]) -> Vec<(Vec<u8>, std::ops::Range<usize>)> {
    let single = vector.fields.mpa.iter().map(|mpa| (mpa, None));
    let several = vector.fields.fpdus.iter().map(|fpdu| (&fpdu.mpa, fpdu.ulpdu_hex.as_ref()));
    let mut start = 0;
    let mut found = Vec::new();
    for (mpa, ulpdu_hex) in single.chain(several) {
        let wire = start..start + mpa.length;
        let position = vector.stream_start + start as u64;
        assert_eq!(mpa.stream_offset.unwrap_or(position), position);
        let marked = |index: &usize| {
            let at = position + *index as u64;
            mpa.markers.iter().any(|m| (m.stream_offset..m.stream_offset + 4).contains(&at))
        };
        let fpdu = &octets[wire.clone()];
        let body: Vec<u8> =
            (0..fpdu.len()).filter(|index| !marked(index)).map(|index| fpdu[index]).collect();
        assert_eq!(body.len(), 2 + mpa.ulpdu_length + mpa.pad_length + 4);
        assert_eq!(hex::encode(&body[body.len() - 4..]), mpa.crc_wire);
        let ulpdu = body[2..2 + mpa.ulpdu_length].to_vec();
        if let Some(expected) = ulpdu_hex {
            assert_eq!(hex::encode(&ulpdu), *expected);
        }
        start = wire.end;
        found.push((ulpdu, wire));
    }
    assert_eq!(start, octets.len());
    found
}

/// Places to cut at: all, or in a long stream those near its ends and its markers.
fn cuts(len: usize) -> impl Iterator<Item = usize> {
    (1..len).filter(move |at| {
        len < 5_000 || *at < 600 || len - at < 20 || (at + 4) % 512 < 8 && at % 4_096 < 1_024
    })
}

fn run_stream(vector: &StreamVector) {
    let name = vector.name.as_str();
    let octets = hex::decode(&vector.hex).unwrap();
    assert_eq!(octets.len(), vector.length, "{name}");
    let fpdus = fpdus(vector, &octets);
    let framing = framing(vector.markers, vector.crc);
    let expected: Vec<&[u8]> = fpdus.iter().map(|(ulpdu, _)| ulpdu.as_slice()).collect();

    let read = |lengths: &[usize]| {
        let mut reader = Reader::new(framing, vector.stream_start);
        let mut read = 0;
        for piece in pieces(&octets, lengths) {
            reader.read(piece);
            read += piece.len();
            if vector.kind != "invalid" {
                // MPA-076: an FPDU is shown when its last octet is in, and not before.
                let whole = fpdus.iter().filter(|(_, wire)| wire.end <= read).count();
                assert_eq!(reader.ulpdus.len(), whole, "{name} after {read}");
                assert!(read + reader.missing() <= octets.len() || whole == fpdus.len());
            }
        }
        reader
    };
    let check = |reader: &Reader| match &vector.expect {
        None => {
            assert_eq!(reader.error, None, "{name}");
            assert_eq!(reader.ulpdus, expected, "{name}");
            assert_eq!(reader.position(), vector.stream_start + octets.len() as u64, "{name}");
            assert_eq!(reader.eof(), Ok(()), "{name}");
        }
        Some(terminate) => {
            let error = reader.error.as_ref().unwrap();
            assert_eq!((terminate.layer, terminate.etype), (2, 0), "{name}");
            assert_eq!(error.code(), Some(terminate.code), "{name}");
            assert!(reader.ulpdus.is_empty(), "{name}");
        }
    };
    assert_eq!(vector.expect.is_some(), vector.kind == "invalid", "{name}");
    check(&read(&[]));
    check(&read(&[1]));
    // MPA-074
    for at in cuts(octets.len()) {
        check(&read(&[at, usize::MAX]));
    }

    // What is usual is also sent like that.
    if vector.kind == "valid" && name != "crc-off-junk" {
        let mut framer = Framer::with_position(&framing, vector.stream_start);
        let sent: Vec<u8> = expected.iter().flat_map(|ulpdu| frame(&mut framer, ulpdu)).collect();
        assert_eq!(sent, octets, "{name}");
    }
}

#[test]
fn single_fpdus() {
    let vectors = book::<StreamVector>("fpdu.json");
    // MPA-015, MPA-046, MPA-048, MPA-049, MPA-050, MPA-056
    vectors.iter().for_each(run_stream);
}

#[test]
fn marked_streams() {
    let vectors = book::<StreamVector>("markers.json");
    // MPA-030, MPA-057, MPA-059, MPA-060, MPA-062, MPA-063, MPA-064, MPA-065, MPA-067, MPA-082
    vectors.iter().for_each(run_stream);
}
