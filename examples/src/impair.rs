//! What a bad link does to packets: delay, jitter, loss, reordering, a rate.
//!
//! The words and their meaning are those of `tc … netem`, so that one description serves the kernel's queue discipline
//! where there is one and the program `link` where there is none. Every decision comes from a seeded generator and an
//! instant that the caller gives: the same packets meet the same fate again.

use std::{
    str::FromStr,
    time::{Duration, Instant},
};

use rand::{RngExt, SeedableRng, rngs::StdRng};

/// A description of a link, the same for both directions.
#[derive(Clone, Debug, PartialEq)]
pub struct Impairment {
    /// How long each packet is held.
    pub delay: Duration,
    /// Spread around `delay`, even on both sides; packets whose delays cross change places.
    pub jitter: Duration,
    /// Share of packets that vanish, 0 to 1.
    pub loss: f64,
    /// Share of packets that skip the delay and so overtake those that wait, 0 to 1.
    pub reorder: f64,
    /// Bits per second of packet, or no bound.
    pub rate: Option<u64>,
    /// Packets that may wait in one direction; those beyond are dropped, as a full router does.
    pub limit: usize,
}

impl Default for Impairment {
    fn default() -> Self {
        Self {
            delay: Duration::ZERO,
            jitter: Duration::ZERO,
            loss: 0.0,
            reorder: 0.0,
            rate: None,
            limit: 1000,
        }
    }
}

/// Why a description cannot be followed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ImpairmentError {
    /// A word that netem may know and this link does not.
    #[error(
        "`{0}` is not understood; known are delay TIME [JITTER], loss PERCENT, reorder PERCENT, rate RATE, limit PACKETS"
    )]
    UnknownWord(String),
    /// A keyword at the end of the line.
    #[error("`{0}` wants a value behind it")]
    MissingValue(&'static str),
    /// A value that does not read as a time, a percentage, a rate or a number.
    #[error("`{value}` is no {what}")]
    BadValue {
        /// What was expected, with an example.
        what: &'static str,
        /// What stood there.
        value: String,
    },
    /// Reordering without a delay.
    #[error("reordering needs a delay: a packet overtakes those that wait")]
    NothingToOvertake,
}

impl Impairment {
    /// Refuses combinations that would silently do nothing.
    pub fn check(self) -> Result<Self, ImpairmentError> {
        if self.reorder > 0.0 && self.delay.is_zero() {
            return Err(ImpairmentError::NothingToOvertake);
        }
        Ok(self)
    }
}

impl FromStr for Impairment {
    type Err = ImpairmentError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let mut link = Self::default();
        let mut words = text.split_whitespace().peekable();
        while let Some(word) = words.next() {
            let mut value = |name| words.next().ok_or(ImpairmentError::MissingValue(name));
            match word {
                "delay" => {
                    link.delay = parse_time(value("delay")?)?;
                    if let Some(jitter) = words.peek().and_then(|word| parse_time(word).ok()) {
                        link.jitter = jitter;
                        words.next();
                    }
                }
                "loss" => link.loss = parse_share(value("loss")?)?,
                "reorder" => link.reorder = parse_share(value("reorder")?)?,
                "rate" => link.rate = Some(parse_rate(value("rate")?)?),
                "limit" => link.limit = parse_limit(value("limit")?)?,
                other => return Err(ImpairmentError::UnknownWord(other.to_owned())),
            }
        }
        link.check()
    }
}

/// Reads `250us`, `1ms`, `1.5s`.
pub fn parse_time(text: &str) -> Result<Duration, ImpairmentError> {
    let (number, unit) = split_unit(text);
    let scale = match unit {
        "us" | "usec" | "usecs" => 1e-6,
        "ms" | "msec" | "msecs" => 1e-3,
        "s" | "sec" | "secs" => 1.0,
        _ => return Err(bad("time such as 250us, 1ms or 2s", text)),
    };
    number
        .and_then(|number| Duration::try_from_secs_f64(number * scale).ok())
        .ok_or_else(|| bad("time such as 250us, 1ms or 2s", text))
}

/// Reads `0.1%` as 0.001.
pub fn parse_share(text: &str) -> Result<f64, ImpairmentError> {
    let (number, unit) = split_unit(text);
    number
        .filter(|percent| unit == "%" && (0.0..=100.0).contains(percent))
        .map(|percent| percent / 100.0)
        .ok_or_else(|| bad("percentage such as 0.1%", text))
}

/// Reads `100mbit` as 100,000,000 bit/s, as tc does.
pub fn parse_rate(text: &str) -> Result<u64, ImpairmentError> {
    let (number, unit) = split_unit(text);
    let scale = match unit {
        "bit" => 1.0,
        "kbit" => 1e3,
        "mbit" => 1e6,
        "gbit" => 1e9,
        _ => return Err(bad("rate such as 100mbit", text)),
    };
    match number.map(|number| number * scale) {
        Some(rate) if (1.0..1e15).contains(&rate) => Ok(float_to_u64(rate)),
        _ => Err(bad("rate such as 100mbit", text)),
    }
}

fn parse_limit(text: &str) -> Result<usize, ImpairmentError> {
    text.parse()
        .ok()
        .filter(|&packets| packets > 0)
        .ok_or_else(|| bad("number of packets such as 1000", text))
}

fn split_unit(text: &str) -> (Option<f64>, &str) {
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(end);
    (number.parse().ok(), unit)
}

fn bad(what: &'static str, value: &str) -> ImpairmentError {
    ImpairmentError::BadValue { what, value: value.to_owned() }
}

#[allow(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "the caller has bounded the number"
)]
fn float_to_u64(number: f64) -> u64 {
    number as u64
}

/// The fate of one packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// It vanishes.
    Lost,
    /// It leaves at this instant, in its turn.
    Delayed(Instant),
    /// It leaves at this instant, before those that wait.
    Overtakes(Instant),
}

/// Decides for the packets of one direction, one after another.
#[derive(Debug)]
pub struct Impairer {
    link: Impairment,
    random: StdRng,
    line_free: Option<Instant>,
}

impl Impairer {
    /// The decisions depend on `seed` and on nothing else that the program does not say.
    #[must_use]
    pub fn new(link: Impairment, seed: u64) -> Self {
        Self { link, random: StdRng::seed_from_u64(seed), line_free: None }
    }

    /// What becomes of a packet of `octets` that arrived at `now`.
    pub fn decide(&mut self, now: Instant, octets: usize) -> Fate {
        if self.random.random_bool(self.link.loss) {
            return Fate::Lost;
        }
        let on_line = self.serialise(now, octets);
        if self.random.random_bool(self.link.reorder) {
            return Fate::Overtakes(on_line);
        }
        Fate::Delayed(on_line + self.draw_delay())
    }

    /// A packet takes its time on a line of bounded rate, behind the one before.
    fn serialise(&mut self, now: Instant, octets: usize) -> Instant {
        let Some(rate) = self.link.rate else { return now };
        let nanos = (octets as u128 * 8 * 1_000_000_000) / u128::from(rate);
        let done = self.line_free.map_or(now, |free| free.max(now))
            + Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX));
        self.line_free = Some(done);
        done
    }

    fn draw_delay(&mut self) -> Duration {
        if self.link.jitter.is_zero() {
            return self.link.delay;
        }
        let spread = self.random.random_range(-1.0..=1.0) * self.link.jitter.as_secs_f64();
        Duration::try_from_secs_f64(self.link.delay.as_secs_f64() + spread).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn netem_words_are_read_as_tc_reads_them() {
        let link: Impairment =
            "delay 1ms 100us loss 0.1% reorder 25% rate 100mbit limit 50".parse().unwrap();
        assert_eq!(
            link,
            Impairment {
                delay: Duration::from_millis(1),
                jitter: Duration::from_micros(100),
                loss: 0.001,
                reorder: 0.25,
                rate: Some(100_000_000),
                limit: 50,
            }
        );
        assert_eq!("".parse(), Ok(Impairment::default()));
    }

    #[test]
    fn what_is_not_understood_is_refused_by_name() {
        for (text, error) in [
            ("duplicate 1%", ImpairmentError::UnknownWord("duplicate".into())),
            ("loss 0.1% 25%", ImpairmentError::UnknownWord("25%".into())),
            ("delay", ImpairmentError::MissingValue("delay")),
            ("reorder 1%", ImpairmentError::NothingToOvertake),
        ] {
            assert_eq!(text.parse::<Impairment>(), Err(error), "{text}");
        }
        for text in ["delay 5", "delay -1ms", "loss 101%", "loss 0.1", "rate 0bit", "limit 0"] {
            let error = text.parse::<Impairment>().unwrap_err();
            assert!(matches!(error, ImpairmentError::BadValue { .. }), "{text}: {error}");
        }
    }

    #[test]
    fn shares_come_out_and_the_seed_decides() {
        let link: Impairment = "delay 1ms loss 10% reorder 20%".parse().unwrap();
        let now = Instant::now();
        let draw = |seed| {
            let mut impairer = Impairer::new(link.clone(), seed);
            (0..10_000).map(|_| impairer.decide(now, 1500)).collect::<Vec<_>>()
        };
        let fates = draw(1);
        let lost = fates.iter().filter(|fate| **fate == Fate::Lost).count();
        let first = fates.iter().filter(|fate| **fate == Fate::Overtakes(now)).count();
        assert!((800..1200).contains(&lost), "{lost}");
        assert!((1600..2000).contains(&first), "{first}");
        assert!(fates.iter().all(|fate| match fate {
            Fate::Delayed(at) => *at == now + Duration::from_millis(1),
            _ => true,
        }));
        assert_eq!(fates, draw(1));
        assert_ne!(fates, draw(2));
    }

    #[test]
    fn a_rate_spaces_packets_out() {
        // 1,500 octets at 12 Mbit/s take one millisecond.
        let mut impairer = Impairer::new("rate 12mbit".parse().unwrap(), 0);
        let now = Instant::now();
        for packet in 1..=3 {
            let at = now + Duration::from_millis(packet);
            assert_eq!(impairer.decide(now, 1500), Fate::Delayed(at));
        }
        let later = now + Duration::from_secs(1);
        let at = later + Duration::from_millis(1);
        assert_eq!(impairer.decide(later, 1500), Fate::Delayed(at));
    }

    #[test]
    fn jitter_stays_within_its_spread() {
        let mut impairer = Impairer::new("delay 2ms 1ms".parse().unwrap(), 7);
        let now = Instant::now();
        let mut seen = (Duration::MAX, Duration::ZERO);
        for _ in 0..1000 {
            let Fate::Delayed(at) = impairer.decide(now, 100) else { unreachable!() };
            seen = (seen.0.min(at - now), seen.1.max(at - now));
        }
        assert!(seen.0 >= Duration::from_millis(1) && seen.1 <= Duration::from_millis(3));
        assert!(seen.1 > seen.0 + Duration::from_millis(1), "{seen:?}");
    }
}
