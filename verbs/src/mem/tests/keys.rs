//! The keys themselves: unpredictable, and not soon used again.

use std::collections::{HashSet, VecDeque};
use std::sync::Arc;

use iwarp_ddp::Stag;

use super::*;

/// FC-059: keys of living regions stay apart, those of the last dead ones name nothing.
#[test]
fn keys_over_a_long_life() {
    let (rounds, live, remembered) = match () {
        () if cfg!(miri) => (60, 10, 10),
        () if cfg!(debug_assertions) => (1 << 17, 1000, 100),
        () => (1 << 20, 1000, 100),
    };
    let home = domain();
    let mut regions = VecDeque::new();
    let mut freed = VecDeque::new();
    let table = KeyTable::of_process();
    for round in 0..rounds {
        let region = MemoryRegion::alloc(home.clone(), 0, Access::REMOTE_READ).unwrap();
        assert_ne!(region.rkey(), 0);
        assert_ne!(region.rkey() >> 8, 0);
        regions.push_back(region);
        if regions.len() > live {
            let oldest: MemoryRegion = regions.pop_front().unwrap();
            freed.push_back(Stag::from_raw(oldest.rkey()));
            if round % 2 == 0 { oldest.deregister().unwrap() } else { drop(oldest) }
        }
        if freed.len() > remembered {
            freed.pop_front();
        }
        if round % 1024 == 0 || round == rounds - 1 {
            for &stag in &freed {
                assert!(table.lookup(stag).is_none(), "{stag} came back to life");
            }
            for region in &regions {
                let found = table.lookup(Stag::from_raw(region.rkey())).unwrap();
                assert!(Arc::ptr_eq(&found, region.region()));
            }
        }
    }
    let keys: HashSet<_> = regions.iter().map(|region| region.rkey() >> 8).collect();
    assert_eq!(keys.len(), live);
}

/// SEC-07: every bit of a key is as good as a coin, successive keys are unrelated, and the index space
/// is used all over.
#[test]
#[cfg_attr(miri, ignore = "many regions")]
fn keys_are_unpredictable() {
    const KEYS: u32 = 1 << 15;
    let home = domain();
    let regions: Vec<_> = (0..KEYS)
        .map(|_| MemoryRegion::alloc(home.clone(), 0, Access::REMOTE_READ).unwrap())
        .collect();
    let keys: Vec<u32> = regions.iter().map(MemoryRegion::rkey).collect();
    // Six standard deviations of a fair coin: a good source fails once in 10^7 runs.
    let tolerance = 6.0 * (f64::from(KEYS) / 4.0).sqrt();
    let balanced = |what: &str, words: &mut dyn Iterator<Item = u32>| {
        let mut ones = [0_u32; 32];
        for word in words {
            for (bit, ones) in ones.iter_mut().enumerate() {
                *ones += word >> bit & 1;
            }
        }
        for (bit, &ones) in ones.iter().enumerate() {
            let off = (f64::from(ones) - f64::from(KEYS) / 2.0).abs();
            assert!(off < tolerance, "bit {bit} of {what}: {ones} of {KEYS}");
        }
    };
    balanced("the key", &mut keys.iter().copied());
    balanced("two successive keys", &mut keys.windows(2).map(|pair| pair[0] ^ pair[1]));
    let steps: HashSet<_> = keys.windows(2).map(|pair| pair[1].wrapping_sub(pair[0])).collect();
    assert!(steps.len() > keys.len() * 9 / 10, "successive keys lie in a pattern");
    let mut used = [0_u32; 256];
    for key in &keys {
        used[(key >> 24) as usize] += 1;
    }
    let expected = f64::from(KEYS) / 256.0;
    let chi2: f64 = used.iter().map(|&n| (f64::from(n) - expected).powi(2) / expected).sum();
    // 255 degrees of freedom: mean 255, standard deviation 22.6.
    assert!((100.0..420.0).contains(&chi2), "the index space is used unevenly: {chi2}");
}
