//! Where a stream is cut, held up and dropped: functions of the seed and of the place in the stream.

use super::faults::{Cuts, Direction, Drop, Faults, Loss};

/// Numbers drawn from a seed: `SplitMix64`, written out so that a seed means the same in every version.
#[derive(Clone, Debug)]
pub(super) struct Draw(u64);

impl Draw {
    /// A sequence of its own for each label.
    pub(super) fn new(seed: u64, label: [u64; 3]) -> Self {
        let mut draw = Self(seed);
        for part in label {
            draw.0 ^= part.wrapping_mul(0xd6e8_feb8_6659_fd93);
            draw.0 = draw.next();
        }
        draw
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut word = self.0;
        word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        word ^ (word >> 31)
    }

    /// From `least` to `most`, both included.
    fn within(&mut self, (least, most): (u64, u64)) -> u64 {
        let span = u128::from(most.saturating_sub(least)) + 1;
        let offset = (u128::from(self.next()) * span) >> 64;
        least.saturating_add(u64::try_from(offset).unwrap_or(u64::MAX))
    }
}

/// What one attempt may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Leave {
    /// Move up to so many octets.
    Go(u64),
    /// Come back: the attempt finds nothing, and nothing will announce that the next one does.
    Wait,
}

/// One side of one direction: where it is, and what comes next.
#[derive(Debug)]
pub(super) struct Progress {
    at: u64,
    cuts: Option<(Cuts, Draw)>,
    /// The place that the next attempt does not go beyond.
    next_cut: u64,
    /// Attempts that will find nothing.
    waits: u64,
}

impl Progress {
    pub(super) fn new(cuts: Option<&Cuts>, draw: Draw) -> Self {
        let mut this =
            Self { at: 0, cuts: cuts.cloned().map(|cuts| (cuts, draw)), next_cut: 0, waits: 0 };
        this.plan();
        this
    }

    /// Octets so far.
    pub(super) const fn at(&self) -> u64 {
        self.at
    }

    /// Whether the next attempt is to find nothing.
    pub(super) const fn waits(&self) -> bool {
        self.waits > 0
    }

    /// What this attempt may do.
    pub(super) fn attempt(&mut self) -> Leave {
        if self.waits > 0 {
            self.waits -= 1;
            return Leave::Wait;
        }
        Leave::Go(self.next_cut - self.at)
    }

    /// So many octets have moved, no more than there was leave for.
    pub(super) fn moved(&mut self, octets: usize) {
        self.at = self.at.saturating_add(octets as u64);
        if self.at >= self.next_cut {
            self.plan();
        }
    }

    fn plan(&mut self) {
        match &mut self.cuts {
            None => self.next_cut = u64::MAX,
            Some((cuts, draw)) => {
                self.next_cut = self.at.saturating_add(draw.within(cuts.lengths));
                self.waits = draw.within(cuts.waits);
            }
        }
    }
}

/// Where a connection is dropped, settled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct DropPoint {
    pub(super) direction: Direction,
    pub(super) octet: u64,
    pub(super) loss: Loss,
}

impl DropPoint {
    pub(super) fn of(faults: &Faults, mut draw: Draw) -> Option<Self> {
        Some(match *faults.drop.as_ref()? {
            Drop::At { direction, octet, loss } => Self { direction, octet, loss },
            Drop::Within { octets, loss } => Self {
                direction: if draw.within((0, 1)) == 0 {
                    Direction::ToResponder
                } else {
                    Direction::ToInitiator
                },
                octet: draw.within((0, octets - 1)),
                loss,
            },
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn places(seed: u64, steps: impl Fn(u64) -> u64) -> (Vec<u64>, Vec<u64>) {
        let cuts = Cuts::of(1..=50).waits(0..=2);
        let mut progress = Progress::new(Some(&cuts), Draw::new(seed, [1, 2, 3]));
        let (mut ends, mut waits) = (Vec::new(), Vec::new());
        let mut attempt = 0;
        while progress.at() < 2000 {
            attempt += 1;
            match progress.attempt() {
                Leave::Wait => waits.push(progress.at()),
                Leave::Go(most) => {
                    let some = steps(attempt).min(most);
                    progress.moved(usize::try_from(some).unwrap());
                    if some == most {
                        ends.push(progress.at());
                    }
                }
            }
        }
        // The last steps overshoot by different amounts.
        ends.retain(|&at| at <= 1900);
        waits.retain(|&at| at <= 1900);
        (ends, waits)
    }

    #[test]
    fn cuts_depend_on_the_seed_and_not_on_the_steps() {
        let all_at_once = places(7, |_| u64::MAX);
        assert!(all_at_once.0.len() > 50 && all_at_once.1.len() > 20);
        assert_eq!(places(7, |_| 1), all_at_once);
        assert_eq!(places(7, |attempt| attempt % 9 + 1), all_at_once);
        assert_ne!(places(8, |_| u64::MAX), all_at_once);
    }

    #[test]
    fn a_seed_means_the_same_for_ever() {
        let mut draw = Draw::new(1, [0, 0, 0]);
        let drawn: Vec<_> = (0..6).map(|_| draw.within((1, 1000))).collect();
        assert_eq!(drawn, [885, 404, 839, 577, 608, 901]);
    }

    #[test]
    fn draws_keep_within_their_range_and_reach_its_ends() {
        let mut draw = Draw::new(3, [0, 0, 1]);
        let drawn: Vec<_> = (0..1000).map(|_| draw.within((3, 7))).collect();
        assert_eq!((drawn.iter().min(), drawn.iter().max()), (Some(&3), Some(&7)));
        assert_eq!(draw.within((9, 9)), 9);
        // The whole range of the type can be asked for.
        draw.within((0, u64::MAX));
    }

    #[test]
    fn a_drop_within_is_below_its_limit_in_either_direction() {
        let faults = Faults::none().reset_within(10);
        let points: Vec<_> = (0..200)
            .map(|number| DropPoint::of(&faults, Draw::new(5, [number, 0, 0])).unwrap())
            .collect();
        for direction in Direction::BOTH {
            let octets: Vec<_> = points
                .iter()
                .filter(|point| point.direction == direction)
                .map(|point| point.octet)
                .collect();
            assert_eq!((octets.iter().min(), octets.iter().max()), (Some(&0), Some(&9)));
        }
        assert_eq!(DropPoint::of(&Faults::none(), Draw::new(5, [0; 3])), None);
    }
}
