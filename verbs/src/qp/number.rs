//! Queue pair numbers: 24 bits, unique in the process.

use std::collections::HashSet;

use parking_lot::Mutex;

use crate::mem::{PerProcess, random_u32};

/// Numbers in use, and where to look for the next.
struct Numbers {
    used: HashSet<u32>,
    next: u32,
}

static NUMBERS: PerProcess<Mutex<Numbers>> = PerProcess::new(|| {
    // A random start, so that two processes of one host, or one before and after a restart, seldom
    // share numbers.
    Mutex::new(Numbers { used: HashSet::new(), next: random_u32() })
});

const MASK: u32 = 0xff_ffff;

/// Numbers that are never issued: libibverbs gives these two a meaning of their own.
const RESERVED: u32 = 2;

/// A number, taken until it is dropped.
#[derive(Debug)]
pub(super) struct Number(u32);

impl Number {
    /// The next free number; `None` if all sixteen million are taken.
    pub(super) fn draw() -> Option<Self> {
        let mut numbers = NUMBERS.get().lock();
        if numbers.used.len() >= (MASK - RESERVED) as usize {
            return None;
        }
        loop {
            let number = numbers.next & MASK;
            numbers.next = numbers.next.wrapping_add(1);
            if number >= RESERVED && numbers.used.insert(number) {
                return Some(Self(number));
            }
        }
    }

    pub(super) fn get(&self) -> u32 {
        self.0
    }
}

impl Drop for Number {
    fn drop(&mut self) {
        NUMBERS.get().lock().used.remove(&self.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_different_and_of_24_bits() {
        let taken: Vec<Number> = (0..1000).map(|_| Number::draw().unwrap()).collect();
        let different: HashSet<u32> = taken.iter().map(Number::get).collect();
        assert_eq!(different.len(), taken.len());
        assert!(different.iter().all(|number| (RESERVED..=MASK).contains(number)));
    }
}
