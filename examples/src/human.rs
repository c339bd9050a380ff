//! Numbers as people read them.

use std::{fmt, str::FromStr, time::Duration};

/// A number of octets: printed as `1.5 MiB`, read from `64`, `4k`, `1MiB`, `2G` (powers of 1024).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Octets(pub u64);

impl fmt::Display for Octets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const UNITS: [(&str, u64); 4] =
            [("TiB", 1 << 40), ("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)];
        match UNITS.iter().find(|(_, size)| self.0 >= *size) {
            None => write!(f, "{} B", self.0),
            Some((unit, size)) if self.0.is_multiple_of(*size) => {
                write!(f, "{} {unit}", self.0 / size)
            }
            Some((unit, size)) => write!(f, "{:.1} {unit}", as_f64(self.0) / as_f64(*size)),
        }
    }
}

/// Text that is no number of octets.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is no size such as 64, 4k, 1M or 2GiB")]
pub struct NoSize(String);

impl FromStr for Octets {
    type Err = NoSize;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let end = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
        let (number, unit) = text.split_at(end);
        let shift = match unit.trim().to_ascii_lowercase().as_str() {
            "" | "b" => Some(0),
            "k" | "kb" | "kib" => Some(10),
            "m" | "mb" | "mib" => Some(20),
            "g" | "gb" | "gib" => Some(30),
            "t" | "tb" | "tib" => Some(40),
            _ => None,
        };
        let size = shift.and_then(|shift| number.parse::<u64>().ok()?.checked_mul(1 << shift));
        size.map(Self).ok_or_else(|| NoSize(text.to_owned()))
    }
}

/// A time, with three digits that count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Time(pub Duration);

impl fmt::Display for Time {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let seconds = self.0.as_secs_f64();
        let (number, unit) = match seconds {
            s if s >= 1.0 => (s, "s"),
            s if s >= 1e-3 => (s * 1e3, "ms"),
            s if s >= 1e-6 => (s * 1e6, "µs"),
            s => (s * 1e9, "ns"),
        };
        let digits = match number {
            n if n < 10.0 => 2,
            n if n < 100.0 => 1,
            _ => 0,
        };
        write!(f, "{number:.digits$} {unit}")
    }
}

/// Octets moved in a time: printed as `1.24 GB/s` (powers of 1000, as links are rated).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rate(pub u64, pub Duration);

impl Rate {
    /// Octets per second.
    #[must_use]
    pub fn per_second(&self) -> f64 {
        as_f64(self.0) / self.1.as_secs_f64().max(f64::MIN_POSITIVE)
    }
}

impl fmt::Display for Rate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.per_second() {
            rate if rate >= 1e9 => write!(f, "{:.2} GB/s", rate / 1e9),
            rate if rate >= 1e6 => write!(f, "{:.1} MB/s", rate / 1e6),
            rate => write!(f, "{:.1} kB/s", rate / 1e3),
        }
    }
}

#[allow(clippy::cast_precision_loss, reason = "only for people to read")]
fn as_f64(number: u64) -> f64 {
    number as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn octets_are_printed_and_read() {
        for (number, text) in [
            (0, "0 B"),
            (1023, "1023 B"),
            (1024, "1 KiB"),
            (1536, "1.5 KiB"),
            (1 << 20, "1 MiB"),
            ((1 << 30) + 1, "1.0 GiB"),
        ] {
            assert_eq!(Octets(number).to_string(), text);
        }
        for (text, number) in [("64", 64), ("4k", 4096), ("1MiB", 1 << 20), ("2 G", 2 << 30)] {
            assert_eq!(text.parse(), Ok(Octets(number)));
        }
        for text in ["", "k", "1.5M", "-1", "1x", "99999999999999999T"] {
            assert!(text.parse::<Octets>().is_err(), "{text}");
        }
    }

    #[test]
    fn times_and_rates_keep_three_digits() {
        for (time, text) in [
            (Duration::from_nanos(850), "850 ns"),
            (Duration::from_nanos(12_345), "12.3 µs"),
            (Duration::from_micros(1_234), "1.23 ms"),
            (Duration::from_millis(98_700), "98.7 s"),
        ] {
            assert_eq!(Time(time).to_string(), text);
        }
        assert_eq!(Rate(5_000_000_000, Duration::from_secs(2)).to_string(), "2.50 GB/s");
        assert_eq!(Rate(1_500, Duration::from_secs(1)).to_string(), "1.5 kB/s");
        assert_eq!(Rate(0, Duration::ZERO).to_string(), "0.0 kB/s");
    }
}
