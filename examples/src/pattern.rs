//! Octets that both ends can work out for themselves, so that each can check every one it gets.

/// A sequence without a short period, different for each seed.
///
/// A transfer that drops, repeats or moves octets does not go unseen, as it might with zeros or a
/// counter of one octet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pattern {
    seed: u64,
}

/// The first octet that is not as it should be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("octet {at} is {found:#04x} and should be {expected:#04x}")]
pub struct Difference {
    /// Where, from the start of the sequence.
    pub at: u64,
    /// What is there.
    pub found: u8,
    /// What should be there.
    pub expected: u8,
}

impl Pattern {
    /// The sequence of this seed.
    #[must_use]
    pub const fn new(seed: u64) -> Self {
        Self { seed }
    }

    /// Octets `from..from + length` of the sequence.
    #[must_use]
    pub fn octets(&self, from: u64, length: usize) -> Vec<u8> {
        let skip = (from % 8) as usize;
        let mut octets = Vec::with_capacity(skip + length + 8);
        let mut word = from / 8;
        while octets.len() < skip + length {
            octets.extend(self.word(word).to_le_bytes());
            word += 1;
        }
        octets.truncate(skip + length);
        octets.drain(..skip);
        octets
    }

    /// Compares `octets` with the sequence from its octet `from` on.
    pub fn check(&self, from: u64, octets: &[u8]) -> Result<(), Difference> {
        let mut start = from;
        for piece in octets.chunks(4096) {
            let right = self.octets(start, piece.len());
            if piece != right {
                let differs = (start..).zip(piece.iter().zip(&right));
                for (at, (&found, &expected)) in differs {
                    if found != expected {
                        return Err(Difference { at, found, expected });
                    }
                }
            }
            start += piece.len() as u64;
        }
        Ok(())
    }

    /// The finaliser of splitmix64 over the number of the word.
    const fn word(self, number: u64) -> u64 {
        let word = self.seed.wrapping_add(number).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        word ^ (word >> 31)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_part_of_the_sequence_can_be_made_and_checked() {
        let pattern = Pattern::new(3);
        let all = pattern.octets(0, 10_000);
        assert_eq!(pattern.octets(4090, 5000), all[4090..9090]);
        assert_eq!(pattern.octets(123, 77), all[123..200]);
        assert_eq!(pattern.check(123, &all[123..200]), Ok(()));
    }

    #[test]
    fn the_first_difference_is_named() {
        let pattern = Pattern::new(3);
        let mut octets = pattern.octets(100, 50);
        octets[7] ^= 0x80;
        octets[9] ^= 1;
        let found = octets[7];
        let expected = found ^ 0x80;
        assert_eq!(pattern.check(100, &octets), Err(Difference { at: 107, found, expected }));
    }

    #[test]
    fn moved_octets_and_other_seeds_differ() {
        let octets = Pattern::new(3).octets(0, 64);
        for from in 1..64 {
            assert!(Pattern::new(3).check(from, &octets).is_err());
        }
        assert!(Pattern::new(4).check(0, &octets).is_err());
    }
}
