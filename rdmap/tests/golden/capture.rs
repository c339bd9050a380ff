//! Recordings of real siw traffic (`tests/captures`), and what a second decoder says is in them.
//!
//! Nothing here uses the library. Of TCP's octets FPDUs are cut out by their length fields. `messages.tsv`, written by
//! `decode.py`, has the meaning.

use std::collections::{BTreeMap, HashMap};
use std::ops::Range;
use std::path::PathBuf;

pub use super::common::pcap::Side;
use super::common::pcap::{self, Arrival};

/// One recording, as `index.tsv` has it.
#[derive(Debug)]
pub struct Capture {
    pub name: String,
    /// Octets of a TCP segment at most, of both directions.
    pub mss: u32,
    /// The side that is no siw but octets made by hand, if one is.
    pub hand_made: Option<Side>,
    pub connections: Vec<Connection>,
}

/// One TCP connection.
#[derive(Debug)]
pub struct Connection {
    /// Capture, number, and of hand-made ones the case.
    pub name: String,
    halves: [Half; 2],
    /// Packets that bring octets or an end, in the order of the recording.
    pub arrivals: Vec<Arrival>,
}

impl Connection {
    /// What a side sent.
    pub fn half(&self, side: Side) -> &Half {
        &self.halves[side as usize]
    }
}

/// One direction of a connection.
#[derive(Debug, Default)]
pub struct Half {
    /// All octets of TCP, in order.
    pub octets: Vec<u8>,
    /// The start-up frame: its line in `messages.tsv`, and its octets at the front of `octets`.
    pub startup: Option<(Row, usize)>,
    /// The messages behind it, in the order of their ends; those that never end are last.
    pub messages: Vec<Message>,
    /// Totals and the end of TCP.
    pub end: Row,
}

/// A line of `messages.tsv`.
#[derive(Clone, Debug, Default)]
pub struct Row {
    /// What it is: the opcode's name, with `Unfinished` in front if the message has no end.
    pub kind: String,
    fields: HashMap<String, String>,
}

impl Row {
    pub fn text(&self, field: &str) -> &str {
        self.fields.get(field).unwrap_or_else(|| panic!("no {field} in {self:?}"))
    }

    pub fn has(&self, field: &str) -> bool {
        self.fields.contains_key(field)
    }

    pub fn number(&self, field: &str) -> usize {
        self.text(field).parse().unwrap()
    }

    /// Of fields that are written in hexadecimal digits: `STag`s and offsets.
    pub fn hex(&self, field: &str) -> u64 {
        u64::from_str_radix(self.text(field), 16).unwrap()
    }

    pub fn stag(&self, field: &str) -> u32 {
        self.hex(field) as u32
    }
}

/// A message, cut out by the length fields of its FPDUs.
#[derive(Debug)]
pub struct Message {
    pub row: Row,
    pub fpdus: Vec<Fpdu>,
    /// What is behind the DDP headers.
    pub payload: Vec<u8>,
}

impl Message {
    /// Where its first octet is in its half.
    pub fn start(&self) -> usize {
        self.fpdus[0].octets.start
    }

    /// Where it ends.
    pub fn end(&self) -> usize {
        self.fpdus.last().unwrap().octets.end
    }

    /// A message that a program asked for, and not an answer.
    pub fn is_operation(&self) -> bool {
        let is_write = self.row.kind == "Write" && self.row.has("stag");
        let is_read = self.row.kind == "ReadRequest" && self.row.has("source");
        is_write || is_read || self.is_send()
    }

    pub fn is_send(&self) -> bool {
        self.row.kind.starts_with("Send") && self.row.has("queue")
    }
}

/// Places in the octets of a half.
#[derive(Clone, Debug)]
pub struct Fpdu {
    pub octets: Range<usize>,
    pub ulpdu: Range<usize>,
}

impl Fpdu {
    /// Pad octets of it.
    pub fn pad(&self) -> Range<usize> {
        self.ulpdu.end..self.octets.end - 4
    }
}

fn directory() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/captures")
}

fn table(name: &str) -> Vec<Vec<String>> {
    let text = std::fs::read_to_string(directory().join(name)).unwrap();
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    lines.map(|line| line.split('\t').map(str::to_owned).collect()).collect()
}

/// All captures of the index, in its order.
pub fn captures() -> Vec<Capture> {
    let mut rows = BTreeMap::<(String, String), Vec<(String, Row)>>::new();
    for line in table("messages.tsv") {
        let [capture, number, side, kind, fields] = <[String; 5]>::try_from(line).unwrap();
        let fields = fields.split_whitespace().filter_map(|field| field.split_once('='));
        let fields = fields.map(|(name, value)| (name.to_owned(), value.to_owned())).collect();
        rows.entry((capture, number)).or_default().push((side, Row { kind, fields }));
    }
    let cases: HashMap<_, _> = table("cases.tsv")
        .into_iter()
        .map(|line| <[String; 3]>::try_from(line).unwrap())
        .map(|[capture, number, case]| ((capture, number), case))
        .collect();
    let captures = table("index.tsv").into_iter().map(|line| {
        let [name, mss, hand_made, _shows] = <[String; 4]>::try_from(line).unwrap();
        let octets = std::fs::read(directory().join(format!("{name}.pcap"))).unwrap();
        let recorded = pcap::connections(&octets).into_iter().enumerate();
        let connections = recorded.map(|(at, pcap::Connection { octets, arrivals })| {
            let key = (name.clone(), (at + 1).to_string());
            let case = cases.get(&key).map(|case| format!(" ({case})")).unwrap_or_default();
            let rows = rows.remove(&key).unwrap();
            let mut halves = octets.map(|octets| Half { octets, ..Half::default() });
            for (half, letter) in halves.iter_mut().zip(["I", "R"]) {
                let of_side = rows.iter().filter(|(of, _)| of == letter);
                half.explain(of_side.map(|(_, row)| row.clone()));
            }
            Connection { name: format!("{name} {}{case}", at + 1), halves, arrivals }
        });
        let connections = connections.collect();
        let hand_made = match &hand_made[..] {
            "I" => Some(Side::Initiator),
            "R" => Some(Side::Responder),
            _ => None,
        };
        Capture { name, mss: mss.parse().unwrap(), hand_made, connections }
    });
    let captures: Vec<_> = captures.collect();
    assert!(rows.is_empty(), "described, and not in a capture: {:?}", rows.keys());
    captures
}

impl Half {
    /// Puts the meaning to the octets. They have to fit.
    fn explain(&mut self, rows: impl Iterator<Item = Row>) {
        let mut rows = rows.peekable();
        let mut at = 0;
        if let Some(row) = rows.next_if(|row| row.kind == "Request" || row.kind == "Reply") {
            at = 20 + usize::from(u16::from_be_bytes([self.octets[18], self.octets[19]]));
            self.startup = Some((row, at));
        }
        let mut open: Vec<(u32, Message)> = Vec::new();
        while let Some(fpdu) = self.fpdu_at(at).filter(|_| at > 0) {
            at = fpdu.octets.end;
            let ulpdu = &self.octets[fpdu.ulpdu.clone()];
            let is_tagged = ulpdu[0] & 0x80 != 0;
            let (queue, header) = match ulpdu.get(6..10) {
                _ if is_tagged => (u32::MAX, 14),
                Some(queue) if ulpdu.len() >= 18 => {
                    (u32::from_be_bytes(queue.try_into().unwrap()), 18)
                }
                _ => (u32::MAX - 1, ulpdu.len()),
            };
            let is_last = ulpdu[0] & 0x40 != 0 || queue == u32::MAX - 1;
            let payload = ulpdu[header..].to_vec();
            let place = open.iter().position(|(of, _)| *of == queue).unwrap_or_else(|| {
                let message =
                    Message { row: Row::default(), fpdus: Vec::new(), payload: Vec::new() };
                open.push((queue, message));
                open.len() - 1
            });
            open[place].1.fpdus.push(fpdu);
            open[place].1.payload.extend_from_slice(&payload);
            if is_last {
                let (_, mut message) = open.remove(place);
                message.row = rows.next().unwrap();
                assert!(!message.row.kind.starts_with("Unfinished"));
                self.messages.push(message);
            }
        }
        for (_, mut message) in open {
            message.row = rows.next().unwrap();
            assert!(message.row.kind.starts_with("Unfinished"));
            self.messages.push(message);
        }
        for message in self.messages.iter().filter(|message| message.row.has("len")) {
            assert_eq!(message.payload.len(), message.row.number("len"));
            assert_eq!(message.fpdus.len(), message.row.number("fpdus"));
        }
        self.end = rows.next().unwrap();
        assert_eq!(self.end.kind, "End");
        assert_eq!(self.octets.len() - at, self.end.number("left"), "{self:?}");
        assert!(rows.next().is_none());
    }

    fn fpdu_at(&self, at: usize) -> Option<Fpdu> {
        let length = self.octets.get(at..at + 2)?;
        let len = usize::from(u16::from_be_bytes(length.try_into().unwrap()));
        let end = at + (2 + len).next_multiple_of(4) + 4;
        (len >= 14 && end <= self.octets.len())
            .then(|| Fpdu { octets: at..end, ulpdu: at + 2..at + 2 + len })
    }

    /// The octets behind the start-up frame.
    pub fn stream(&self) -> &[u8] {
        &self.octets[self.startup_len()..]
    }

    pub fn startup_len(&self) -> usize {
        self.startup.as_ref().map_or(0, |(_, len)| *len)
    }

    pub fn ended_by(&self, end: &str) -> bool {
        self.end.text("tcp").split('+').any(|of| of == end)
    }

    pub fn terminate(&self) -> Option<&Message> {
        self.messages.iter().find(|message| message.row.kind == "Terminate")
    }
}
