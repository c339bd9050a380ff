//! Settings from the environment.

use std::ffi::OsString;
use std::time::Duration;

use iwarp_mpa::{FpduLimit, Revision, RtrTypes};

use super::{ConfigError, DeviceConfig};
use crate::sys::Keepalive;

impl DeviceConfig {
    /// The defaults, changed by environment variables:
    ///
    /// | variable | value |
    /// |---|---|
    /// | `IWARP_FPDU_LIMIT` | `emss`, or octets |
    /// | `IWARP_CRC` | `1`, `on`, `yes`, `true` or `0`, `off`, `no`, `false` |
    /// | `IWARP_MARKERS` | the same |
    /// | `IWARP_MPA_REVISION` | `1` or `2` |
    /// | `IWARP_PEER_TO_PEER` | `all`, `none`, or some of `send`, `write`, `read` with commas between |
    /// | `IWARP_IRD`, `IWARP_ORD` | Reads, up to 128 |
    /// | `IWARP_STRICT_RECEIVE`, `IWARP_EXTENSIONS` | as `IWARP_CRC` |
    /// | `IWARP_HOLD_BACK`, `IWARP_PARTIAL_FPDU`, `IWARP_CLOSE_GRACE`, `IWARP_CONNECT_TIMEOUT`, `IWARP_ACCEPT_TIMEOUT`, `IWARP_FIRST_FPDU_DELAY`, `IWARP_USER_TIMEOUT` | seconds, such as `2` or `0.25` |
    /// | `IWARP_KEEPALIVE` | `off`, or idle seconds, interval seconds and count: `10,5,3` |
    /// | `IWARP_MAX_PENDING_HANDSHAKES` | peers |
    /// | `IWARP_PCAP` | path of a file that records all connections, `%p` in it being the process: [`pcap`](Self::pcap) |
    /// | `IWARP_MEMORY_BUDGET` | octets, with `k`, `m` or `g` behind for powers of 1024 |
    ///
    /// A variable that is not set, or empty, changes nothing.
    ///
    /// # Errors
    /// [`ConfigError`] names the first variable with a value that means nothing, and what it may be.
    pub fn from_env() -> Result<Self, ConfigError> {
        Self::from_variables(|name| std::env::var_os(name))
    }

    pub(crate) fn from_variables(
        variable: impl Fn(&str) -> Option<OsString>,
    ) -> Result<Self, ConfigError> {
        let mut config = Self::default();
        for setting in SETTINGS {
            let Some(value) = variable(setting.name).filter(|value| !value.is_empty()) else {
                continue;
            };
            let understood = value
                .to_str()
                .is_some_and(|text| (setting.apply)(&mut config, text.trim()).is_some());
            if !understood {
                return Err(ConfigError {
                    setting: setting.name,
                    value: value.to_string_lossy().into_owned(),
                    expected: setting.expected,
                });
            }
        }
        config.check()?;
        Ok(config)
    }
}

struct Setting {
    name: &'static str,
    expected: &'static str,
    /// `None`: not understood.
    apply: fn(&mut DeviceConfig, &str) -> Option<()>,
}

const SWITCH: &str = "1, on, yes or true, or 0, off, no or false";
const SECONDS: &str = "seconds, such as 2 or 0.25";
const DEPTH: &str = "a number of Reads up to 128";

/// Assigns if the value was understood.
fn set<T>(place: &mut T, value: Option<T>) -> Option<()> {
    *place = value?;
    Some(())
}

const SETTINGS: &[Setting] = &[
    Setting {
        name: "IWARP_FPDU_LIMIT",
        expected: "emss, or a number of octets",
        apply: |config, text| set(&mut config.fpdu_limit, fpdu_limit(text)),
    },
    Setting {
        name: "IWARP_CRC",
        expected: SWITCH,
        apply: |config, text| set(&mut config.crc, switch(text)),
    },
    Setting {
        name: "IWARP_MARKERS",
        expected: SWITCH,
        apply: |config, text| set(&mut config.markers, switch(text)),
    },
    Setting {
        name: "IWARP_MPA_REVISION",
        expected: "1 or 2",
        apply: |config, text| set(&mut config.mpa_revision, revision(text)),
    },
    Setting {
        name: "IWARP_PEER_TO_PEER",
        expected: "all, none, or some of send, write and read with commas between",
        apply: |config, text| set(&mut config.peer_to_peer, rtr_types(text)),
    },
    Setting {
        name: "IWARP_IRD",
        expected: DEPTH,
        apply: |config, text| set(&mut config.ird, read_depth(text, config.max_ird)),
    },
    Setting {
        name: "IWARP_ORD",
        expected: DEPTH,
        apply: |config, text| set(&mut config.ord, read_depth(text, config.max_ord)),
    },
    Setting {
        name: "IWARP_STRICT_RECEIVE",
        expected: SWITCH,
        apply: |config, text| set(&mut config.strict_receive, switch(text)),
    },
    Setting {
        name: "IWARP_EXTENSIONS",
        expected: SWITCH,
        apply: |config, text| set(&mut config.extensions, switch(text)),
    },
    Setting {
        name: "IWARP_HOLD_BACK",
        expected: SECONDS,
        apply: |config, text| set(&mut config.hold_back, seconds(text)),
    },
    Setting {
        name: "IWARP_PARTIAL_FPDU",
        expected: SECONDS,
        apply: |config, text| set(&mut config.partial_fpdu, seconds(text)),
    },
    Setting {
        name: "IWARP_CLOSE_GRACE",
        expected: SECONDS,
        apply: |config, text| set(&mut config.close_grace, seconds(text)),
    },
    Setting {
        name: "IWARP_CONNECT_TIMEOUT",
        expected: SECONDS,
        apply: |config, text| set(&mut config.connect_timeout, seconds(text)),
    },
    Setting {
        name: "IWARP_ACCEPT_TIMEOUT",
        expected: SECONDS,
        apply: |config, text| set(&mut config.accept_timeout, seconds(text)),
    },
    Setting {
        name: "IWARP_FIRST_FPDU_DELAY",
        expected: SECONDS,
        apply: |config, text| set(&mut config.first_fpdu_delay, seconds(text)),
    },
    Setting {
        name: "IWARP_USER_TIMEOUT",
        expected: SECONDS,
        apply: |config, text| set(&mut config.user_timeout, seconds(text)),
    },
    Setting {
        name: "IWARP_KEEPALIVE",
        expected: "off, or idle seconds, interval seconds and count, such as 10,5,3",
        apply: |config, text| {
            let off = text.eq_ignore_ascii_case("off");
            set(&mut config.keepalive, if off { Some(None) } else { keepalive(text).map(Some) })
        },
    },
    Setting {
        name: "IWARP_MAX_PENDING_HANDSHAKES",
        expected: "a number of peers, at least 1",
        apply: |config, text| {
            let peers = text.parse().ok().filter(|&peers| peers > 0);
            set(&mut config.max_pending_handshakes, peers)
        },
    },
    Setting {
        name: "IWARP_PCAP",
        expected: "the path of a file, as UTF-8",
        apply: |config, text| set(&mut config.pcap, Some(Some(text.into()))),
    },
    Setting {
        name: "IWARP_MEMORY_BUDGET",
        expected: "octets, with k, m or g behind for powers of 1024",
        apply: |config, text| set(&mut config.memory_budget, octets(text)),
    },
];

fn switch(text: &str) -> Option<bool> {
    match text.to_ascii_lowercase().as_str() {
        "1" | "on" | "yes" | "true" => Some(true),
        "0" | "off" | "no" | "false" => Some(false),
        _ => None,
    }
}

fn fpdu_limit(text: &str) -> Option<FpduLimit> {
    if text.eq_ignore_ascii_case("emss") {
        return Some(FpduLimit::Emss);
    }
    text.parse().ok().filter(|&octets| octets > 0).map(FpduLimit::Octets)
}

fn revision(text: &str) -> Option<Revision> {
    match text {
        "1" => Some(Revision::V1),
        "2" => Some(Revision::V2),
        _ => None,
    }
}

fn rtr_types(text: &str) -> Option<RtrTypes> {
    let text = text.to_ascii_lowercase();
    match text.as_str() {
        "all" => return Some(RtrTypes::all()),
        "none" => return Some(RtrTypes::empty()),
        _ => {}
    }
    text.split(',').try_fold(RtrTypes::empty(), |kinds, kind| {
        Some(
            kinds
                | match kind.trim() {
                    "send" => RtrTypes::SEND,
                    "write" => RtrTypes::WRITE,
                    "read" => RtrTypes::READ,
                    _ => return None,
                },
        )
    })
}

fn read_depth(text: &str, max: u16) -> Option<u16> {
    text.parse().ok().filter(|&depth| depth <= max)
}

fn seconds(text: &str) -> Option<Duration> {
    Duration::try_from_secs_f64(text.parse().ok()?).ok()
}

fn keepalive(text: &str) -> Option<Keepalive> {
    let mut parts = text.split(',').map(|part| part.trim().parse::<u32>().ok().filter(|&n| n > 0));
    let mut next = || parts.next().flatten();
    let (idle, interval, count) = (next()?, next()?, next()?);
    parts.next().is_none().then(|| Keepalive {
        idle: Duration::from_secs(idle.into()),
        interval: Duration::from_secs(interval.into()),
        count,
    })
}

fn octets(text: &str) -> Option<usize> {
    let text = text.to_ascii_lowercase();
    let (digits, shift) = match text.as_bytes().last()? {
        b'k' => (text.get(..text.len() - 1)?, 10),
        b'm' => (text.get(..text.len() - 1)?, 20),
        b'g' => (text.get(..text.len() - 1)?, 30),
        _ => (text.as_str(), 0),
    };
    digits.trim_end().parse::<usize>().ok()?.checked_mul(1_usize.checked_shl(shift)?)
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::*;

    fn parse(variables: &[(&str, &str)]) -> Result<DeviceConfig, ConfigError> {
        let map: HashMap<_, _> = variables.iter().copied().collect();
        DeviceConfig::from_variables(|name| map.get(name).map(OsString::from))
    }

    #[test]
    fn an_empty_environment_gives_the_defaults() {
        assert_eq!(parse(&[]).unwrap(), DeviceConfig::default());
        let empty: Vec<_> = SETTINGS.iter().map(|setting| (setting.name, "")).collect();
        assert_eq!(parse(&empty).unwrap(), DeviceConfig::default());
        DeviceConfig::default().check().unwrap();
    }

    #[test]
    fn every_variable_has_its_effect() {
        let secs = Duration::from_secs;
        let base = DeviceConfig::default;
        let table = [
            ("IWARP_FPDU_LIMIT", "emss", base().fpdu_limit(FpduLimit::Emss)),
            ("IWARP_FPDU_LIMIT", "60000", base().fpdu_limit(FpduLimit::Octets(60_000))),
            ("IWARP_CRC", "off", base().crc(false)),
            ("IWARP_MARKERS", "Yes", base().markers(true)),
            ("IWARP_MPA_REVISION", "1", base().mpa_revision(Revision::V1)),
            ("IWARP_PEER_TO_PEER", "none", base().peer_to_peer(RtrTypes::empty())),
            (
                "IWARP_PEER_TO_PEER",
                "read, Write",
                base().peer_to_peer(RtrTypes::READ | RtrTypes::WRITE),
            ),
            ("IWARP_IRD", "128", base().ird(128)),
            ("IWARP_ORD", "0", base().ord(0)),
            ("IWARP_STRICT_RECEIVE", "1", base().strict_receive(true)),
            ("IWARP_EXTENSIONS", "off", base().extensions(false)),
            ("IWARP_HOLD_BACK", "0.25", base().hold_back(Duration::from_millis(250))),
            ("IWARP_PARTIAL_FPDU", "7", base().partial_fpdu(secs(7))),
            ("IWARP_CLOSE_GRACE", "8", base().close_grace(secs(8))),
            ("IWARP_CONNECT_TIMEOUT", "9", base().connect_timeout(secs(9))),
            ("IWARP_ACCEPT_TIMEOUT", " 4 ", base().accept_timeout(secs(4))),
            ("IWARP_FIRST_FPDU_DELAY", "0.1", base().first_fpdu_delay(Duration::from_millis(100))),
            ("IWARP_USER_TIMEOUT", "0", base().user_timeout(secs(0))),
            ("IWARP_KEEPALIVE", "off", base().no_keepalive()),
            ("IWARP_KEEPALIVE", "20, 2, 9", base().keepalive(secs(20), secs(2), 9)),
            ("IWARP_MAX_PENDING_HANDSHAKES", "7", base().max_pending_handshakes(7)),
            ("IWARP_PCAP", "/tmp/wire-%p.pcap", base().pcap("/tmp/wire-%p.pcap")),
            ("IWARP_MEMORY_BUDGET", "3M", base().memory_budget(3 << 20)),
            ("IWARP_MEMORY_BUDGET", "1234567", base().memory_budget(1_234_567)),
        ];
        for setting in SETTINGS {
            assert!(table.iter().any(|row| row.0 == setting.name), "{} untested", setting.name);
        }
        for (name, value, expected) in table {
            assert_eq!(parse(&[(name, value)]).unwrap(), expected, "{name}={value}");
            assert_ne!(expected, base(), "{name}={value} shows nothing");
        }
    }

    #[test]
    fn a_value_that_means_nothing_is_an_error_with_its_name() {
        let table = [
            ("IWARP_FPDU_LIMIT", "0"),
            ("IWARP_FPDU_LIMIT", "mtu"),
            ("IWARP_CRC", "maybe"),
            ("IWARP_MARKERS", "2"),
            ("IWARP_MPA_REVISION", "3"),
            ("IWARP_PEER_TO_PEER", "send,"),
            ("IWARP_IRD", "129"),
            ("IWARP_ORD", "-1"),
            ("IWARP_STRICT_RECEIVE", "x"),
            ("IWARP_EXTENSIONS", "7306"),
            ("IWARP_HOLD_BACK", "-1"),
            ("IWARP_PARTIAL_FPDU", "NaN"),
            ("IWARP_CLOSE_GRACE", "1e300"),
            ("IWARP_CONNECT_TIMEOUT", "5s"),
            ("IWARP_ACCEPT_TIMEOUT", "inf"),
            ("IWARP_FIRST_FPDU_DELAY", "soon"),
            ("IWARP_USER_TIMEOUT", "long"),
            ("IWARP_KEEPALIVE", "10,5"),
            ("IWARP_KEEPALIVE", "10,5,3,1"),
            ("IWARP_KEEPALIVE", "10,0,3"),
            ("IWARP_MAX_PENDING_HANDSHAKES", "0"),
            ("IWARP_MEMORY_BUDGET", "k"),
            ("IWARP_MEMORY_BUDGET", "99999999999999999999"),
            ("IWARP_MEMORY_BUDGET", "18446744073709551615g"),
        ];
        for (name, value) in table {
            let error = parse(&[(name, value)]).unwrap_err();
            assert_eq!((error.setting, error.value.as_str()), (name, value));
            let text = error.to_string();
            assert!(text.contains(name) && text.contains("expected"), "{text}");
        }
    }

    #[cfg(unix)]
    #[test]
    fn a_value_that_is_no_text_is_an_error() {
        use std::os::unix::ffi::OsStringExt;

        let error = DeviceConfig::from_variables(|name| {
            (name == "IWARP_CRC").then(|| OsString::from_vec(vec![b'1', 0xFF]))
        });
        assert_eq!(error.unwrap_err().setting, "IWARP_CRC");
    }
}
