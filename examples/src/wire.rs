//! Command-line options for how two ends speak, the same in every example.

use clap::Args;
use iwarp_mpa::{FpduLimit, Revision};
use iwarp_verbs::cm::ConnParam;

/// How this end wants to speak; what it says nothing of is the library's default.
#[derive(Args, Clone, Debug, Default)]
pub struct WireArgs {
    /// Ask for markers in what arrives here: every 512 octets a pointer to the start of its FPDU, by
    /// which an adapter can find its way in segments that arrive out of order (RFC 5044 §4.2).
    /// Software behind a TCP of its own never needs them.
    #[arg(long, help_heading = "What is on the wire")]
    pub markers: bool,
    /// Do not ask for a CRC on every FPDU. It is off only if neither end asks. Then TCP's checksum of 16
    /// bits alone protects the data.
    #[arg(long, help_heading = "What is on the wire")]
    pub no_crc: bool,
    /// Largest FPDU to send: `emss`, what fits into one TCP segment, or a number of octets. Large
    /// ones are cheaper; some adapters take no more than 16 KiB.
    #[arg(
        long,
        value_name = "emss|OCTETS",
        value_parser = parse_fpdu_limit,
        help_heading = "What is on the wire"
    )]
    pub fpdu_limit: Option<FpduLimit>,
    /// Revision of MPA to ask for: 2 (RFC 6581) negotiates how many RDMA Reads may be under way, and
    /// who may speak first; 1 (RFC 5044) does not.
    #[arg(
        long,
        value_name = "1|2",
        value_parser = parse_revision,
        conflicts_with = "listen",
        help_heading = "What is on the wire"
    )]
    pub mpa_revision: Option<Revision>,
}

impl WireArgs {
    /// The parameters of a connection, without private data.
    #[must_use]
    pub fn param(&self) -> ConnParam {
        let mut param = ConnParam::default().markers(self.markers);
        if self.no_crc {
            param = param.crc(false);
        }
        if let Some(limit) = self.fpdu_limit {
            param = param.fpdu_limit(limit);
        }
        if let Some(revision) = self.mpa_revision {
            param = param.revision(revision);
        }
        param
    }
}

fn parse_fpdu_limit(text: &str) -> Result<FpduLimit, String> {
    match text {
        "emss" => Ok(FpduLimit::Emss),
        octets => octets
            .parse()
            .map(FpduLimit::Octets)
            .map_err(|_| "neither `emss` nor a number of octets".to_owned()),
    }
}

fn parse_revision(text: &str) -> Result<Revision, String> {
    match text {
        "1" => Ok(Revision::V1),
        "2" => Ok(Revision::V2),
        _ => Err("there are revisions 1 and 2".to_owned()),
    }
}
