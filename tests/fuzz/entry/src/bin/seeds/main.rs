//! First inputs for the targets, out of the test vectors and of recorded traffic.
//!
//! ```sh
//! cargo run -p iwarp-fuzz-entry --bin seeds -- OUT [CAPTURE.pcap...]
//! ```
//!
//! writes `OUT/TARGET/NAME`. What of these covers anything goes into the corpora with `tests/fuzz/run --minimize`.
#![allow(
    clippy::cast_possible_truncation,
    clippy::unwrap_used,
    reason = "a tool for developers, on files of the project"
)]

#[path = "../../../../../../rdmap/tests/common/pcap.rs"]
#[allow(
    dead_code,
    clippy::indexing_slicing,
    clippy::must_use_candidate,
    unreachable_pub,
    reason = "support code of the tests of `iwarp-rdmap`, of which this takes the octets only"
)]
mod pcap;
mod write;

use std::path::{Path, PathBuf};
use std::{env, fs};

use serde_json::Value;

use self::write::{Direction, Seed};

/// Longer ones make fuzzing slow.
const LONGEST: usize = 4096;

const VECTORS: [(&str, &str); 5] = [
    ("fpdu", include_str!("../../../../../../rdmap/tests/vectors/fpdu.json")),
    ("messages", include_str!("../../../../../../rdmap/tests/vectors/messages.json")),
    ("negative", include_str!("../../../../../../rdmap/tests/vectors/negative.json")),
    ("terminate", include_str!("../../../../../../rdmap/tests/vectors/terminate.json")),
    ("atomic", include_str!("../../../../../../rdmap/tests/vectors/atomic_semantics.json")),
];
const MARKERS: &str = include_str!("../../../../../../mpa/tests/vectors/markers.json");
const STARTUP: &str = include_str!("../../../../../../mpa/tests/vectors/mpa_startup.json");
const NEGOTIATION: &str = include_str!("../../../../../../mpa/tests/vectors/negotiation.json");

fn main() {
    let mut arguments = env::args_os().skip(1).map(PathBuf::from);
    let Some(out) = arguments.next() else {
        eprintln!("usage: seeds OUT [CAPTURE.pcap...]");
        std::process::exit(2);
    };
    let mut seeds = Seeds { out, written: 0 };
    vectors(&mut seeds);
    startup(&mut seeds);
    hand_made(&mut seeds);
    for path in arguments {
        capture(&mut seeds, &path);
    }
    println!("{} inputs", seeds.written);
}

/// Where inputs go.
struct Seeds {
    out: PathBuf,
    written: usize,
}

impl Seeds {
    fn put(&mut self, target: &str, name: &str, octets: &[u8]) {
        if octets.len() > LONGEST {
            return;
        }
        let folder = self.out.join(target);
        fs::create_dir_all(&folder).unwrap();
        fs::write(folder.join(name), octets).unwrap();
        self.written += 1;
    }
}

fn vectors_of(json: &str) -> Vec<Value> {
    let file: Value = serde_json::from_str(json).unwrap();
    file["vectors"].as_array().unwrap().clone()
}

fn octets(vector: &Value, key: &str) -> Vec<u8> {
    hex::decode(vector[key].as_str().unwrap()).unwrap()
}

fn vectors(seeds: &mut Seeds) {
    for (file, json) in VECTORS {
        for vector in vectors_of(json) {
            let name = format!("{file}-{}", vector["name"].as_str().unwrap());
            let crc = vector["crc"].as_bool().unwrap();
            let wire = octets(&vector, "hex");
            let ulpdus = write::ulpdus(&wire);
            seeds.put("deframer", &name, &write::stream(&wire, crc, 0));
            seeds.put("ddp", &name, &write::segments(&ulpdus));
            seeds.put("rdmap", &name, &write::ulpdu_list(&ulpdus));
            for ulpdu in ulpdus.iter().filter(|ulpdu| write::is_terminate(ulpdu)) {
                seeds.put("terminate", &name, &ulpdu[18..]);
            }
            let seed = Seed { crc, ..Seed::default() };
            seeds.put("stream", &name, &seed.as_vectors_have_it(&wire));
        }
    }
    for vector in vectors_of(MARKERS) {
        let name = format!("markers-{}", vector["name"].as_str().unwrap());
        let crc = vector["crc"].as_bool().unwrap();
        let start = vector["stream_start"].as_u64().unwrap_or(0);
        let wire = octets(&vector, "hex");
        seeds.put("deframer_markers", &name, &write::stream(&wire, crc, start));
        if start == 0 {
            let seed = Seed { crc, markers: true, ..Seed::default() };
            seeds.put("stream", &name, &seed.as_vectors_have_it(&wire));
        }
    }
}

fn startup(seeds: &mut Seeds) {
    for vector in vectors_of(STARTUP) {
        let name = format!("startup-{}", vector["name"].as_str().unwrap());
        let frame = octets(&vector, "hex");
        seeds.put("initiator", &name, &write::startup(&frame));
        seeds.put("responder", &name, &write::startup(&frame));
    }
    for vector in vectors_of(NEGOTIATION) {
        let name = format!("negotiation-{}", vector["name"].as_str().unwrap());
        seeds.put("responder", &name, &write::startup(&octets(&vector, "hex")));
        seeds.put("initiator", &name, &write::startup(&octets(&vector, "reply_hex")));
    }
}

/// What neither vectors nor traffic have.
fn hand_made(seeds: &mut Seeds) {
    // FC-017: a segment of a response that is longer than what is owed, and not the last.
    let mut surplus = vec![0x81, 0x42, 0x12, 0x34, 0x56, 0x78, 0, 0, 0, 0, 0, 0, 0x20, 0];
    surplus.resize(14 + 101, 7);
    seeds.put("rdmap", "fc-017-surplus", &write::ulpdu_list(&[&surplus]));
    seeds.put("stream", "straight-and-truncated", &write::straight_and_truncated());
}

/// Both directions of each connection, as the side saw them that received them.
fn capture(seeds: &mut Seeds, path: &Path) {
    let file = path.file_stem().unwrap().to_string_lossy().into_owned();
    for (index, connection) in pcap::connections(&fs::read(path).unwrap()).iter().enumerate() {
        let [request, reply] = connection.octets.each_ref().map(|octets| Direction::new(octets));
        let (Some(request), Some(reply)) = (request, reply) else { continue };
        let name = format!("{file}-{index}");
        seeds.put("responder", &name, &write::startup(request.startup));
        seeds.put("initiator", &name, &write::startup(reply.startup));
        for (side, came, went) in [("r", &request, &reply), ("i", &reply, &request)] {
            let name = format!("{name}-{side}");
            let ulpdus = write::ulpdus(came.fpdus);
            seeds.put("deframer", &name, &write::stream(came.fpdus, reply.crc(), 0));
            seeds.put("ddp", &name, &write::segments(&ulpdus));
            seeds.put("rdmap", &name, &write::ulpdu_list(&ulpdus));
            for ulpdu in ulpdus.iter().filter(|ulpdu| write::is_terminate(ulpdu)) {
                seeds.put("terminate", &name, &ulpdu[18..]);
            }
            let seed = Seed { crc: reply.crc(), responder: side == "r", ..Seed::default() };
            seeds.put("stream", &name, &seed.as_captured(came.fpdus, &write::ulpdus(went.fpdus)));
        }
    }
}
