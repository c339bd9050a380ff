//! The test vectors, as far as these tests read them.

use serde::Deserialize;
use serde_json::Value;

#[derive(Debug, Deserialize)]
pub struct File {
    pub count: usize,
    pub vectors: Vec<Vector>,
}

#[derive(Clone, Debug, Deserialize)]
pub struct Vector {
    pub name: String,
    pub kind: String,
    pub summary: String,
    pub hex: String,
    pub crc: bool,
    #[serde(default)]
    pub response_hex: String,
    pub fields: Value,
    #[serde(default)]
    pub expect: Value,
    #[serde(default)]
    pub context: Value,
}

impl File {
    pub fn parse(json: &str) -> Self {
        let file: Self = serde_json::from_str(json).unwrap();
        assert_eq!(file.count, file.vectors.len());
        file
    }
}

impl Vector {
    pub fn octets(&self) -> Vec<u8> {
        hex::decode(&self.hex).unwrap()
    }

    /// The fields of each FPDU.
    pub fn fpdus(&self) -> Vec<Fpdu> {
        match self.fields.get("fpdus") {
            Some(fpdus) => fpdus.as_array().unwrap().iter().map(Fpdu::new).collect(),
            None => vec![Fpdu::new(&self.fields)],
        }
    }

    /// The ULPDUs, cut out by their length fields.
    pub fn ulpdus(&self) -> Vec<Vec<u8>> {
        let octets = self.octets();
        let mut rest = &octets[..];
        let mut ulpdus = Vec::new();
        while let Some((length, behind)) = rest.split_first_chunk() {
            let len = usize::from(u16::from_be_bytes(*length));
            ulpdus.push(behind[..len].to_vec());
            rest = &rest[((2 + len + 3) & !3) + 4..];
        }
        ulpdus
    }
}

/// Fields of one FPDU.
#[derive(Clone, Debug)]
pub struct Fpdu(Value);

impl Fpdu {
    fn new(value: &Value) -> Self {
        Self(value.clone())
    }

    fn at(&self, path: &str) -> &Value {
        self.0.pointer(path).unwrap_or_else(|| panic!("{path} of {}", self.0))
    }

    pub fn number(&self, path: &str) -> u64 {
        number(self.at(path))
    }

    pub fn has(&self, path: &str) -> bool {
        self.0.pointer(path).is_some()
    }

    pub fn flag(&self, path: &str) -> bool {
        self.at(path).as_bool().unwrap()
    }

    pub fn octets(&self, path: &str) -> Vec<u8> {
        hex::decode(self.at(path).as_str().unwrap()).unwrap()
    }

    pub fn opcode(&self) -> u8 {
        self.number("/rdmap/opcode") as u8
    }

    pub fn stag(&self, path: &str) -> u32 {
        self.number(path) as u32
    }
}

/// A number, or a string "0x…".
pub fn number(value: &Value) -> u64 {
    match value {
        Value::String(text) => u64::from_str_radix(text.strip_prefix("0x").unwrap(), 16).unwrap(),
        _ => value.as_u64().unwrap(),
    }
}

/// What memory holds that nobody wrote.
pub const UNTOUCHED: u8 = 0xa5;
/// The Read that vectors have outstanding is the operation with this number.
pub const READ_ID: u64 = 100;

/// The FPDU of the Terminate that has to answer a ULPDU, octet for octet, if nothing was sent before it or no
/// markers are in use.
pub fn expected_terminate(code: (u8, u8, u8), ulpdu: &[u8]) -> Vec<u8> {
    let (layer, etype, code) = code;
    let mut octets = vec![0x41, 0x47, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 1, 0, 0, 0, 0];
    let has_header = layer < 2 && etype != 0;
    let tagged = ulpdu.first().is_some_and(|octet| octet & 0x80 != 0);
    let is_read_request = !tagged && ulpdu.get(1).is_some_and(|octet| octet & 0x0f == 1);
    let show_request = (layer, etype) == (0, 1) && is_read_request;
    let flags = match (has_header, show_request) {
        (false, _) => 0x00,
        (true, false) => 0xc0,
        (true, true) => 0xe0,
    };
    octets.extend_from_slice(&[layer << 4 | etype, code, flags, 0]);
    if has_header {
        octets.extend_from_slice(&(ulpdu.len() as u16).to_be_bytes());
        octets.extend_from_slice(&ulpdu[..if tagged { 14 } else { 18 }]);
    }
    if show_request {
        octets.extend_from_slice(&ulpdu[18..46]);
    }
    super::peer::Peer::new(super::CRC).frame(&octets)
}
