//! [`KeyTable`]: from a 32-bit key to a region.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, VecDeque};
use std::hash::{BuildHasherDefault, Hasher};
use std::io;
use std::sync::{Arc, Weak};

use iwarp_ddp::Stag;
use parking_lot::{Mutex, RwLock};
use rand::TryRng;
use rand::rngs::SysRng;

use super::{MemoryError, PerProcess, Region};

/// Look-ups of different keys rarely meet in one lock.
const SHARDS: usize = 16;

/// Indices that are not drawn again yet: those of the last so many regions that went away.
const RETIRED: usize = 1 << 16;

/// Half of the index space, so that drawing at random finds a free one at once.
const MOST: usize = 1 << 23;

/// All keys of the process.
///
/// A key is a 24-bit index and an 8-bit key, both drawn from the system's random source for each
/// region, so that a peer cannot guess one (SEC-07) and a forked child draws others than its parent.
/// Index 0 is never issued. An index that was given back rests until [`RETIRED`] others have been
/// given back after it (FC-059).
#[derive(Debug)]
pub(crate) struct KeyTable {
    shards: [RwLock<HashMap<u32, Slot, BuildHasherDefault<IndexHasher>>>; SHARDS],
    turnover: Mutex<Turnover>,
}

#[derive(Debug)]
enum Slot {
    Live { stag: Stag, region: Weak<Region> },
    Retired,
}

#[derive(Debug, Default)]
struct Turnover {
    live: usize,
    /// Oldest first.
    retired: VecDeque<u32>,
}

impl KeyTable {
    fn new() -> Self {
        Self { shards: Default::default(), turnover: Mutex::default() }
    }

    /// The one table of this process: keys are unique across devices.
    pub(crate) fn of_process() -> &'static Self {
        static TABLE: PerProcess<KeyTable> = PerProcess::new(KeyTable::new);
        TABLE.get()
    }

    /// Draws a key. It names nothing until [`publish`](Self::publish), and is given back with
    /// [`remove`](Self::remove).
    pub(super) fn reserve(&self) -> Result<Stag, MemoryError> {
        {
            let mut turnover = self.turnover.lock();
            if turnover.live >= MOST {
                return Err(MemoryError::NoKeyLeft { live: turnover.live });
            }
            turnover.live += 1;
        }
        let drawn = self.draw();
        if drawn.is_err() {
            self.turnover.lock().live -= 1;
        }
        drawn
    }

    fn draw(&self) -> Result<Stag, MemoryError> {
        loop {
            let drawn = SysRng
                .try_next_u32()
                .map_err(|error| MemoryError::NoRandomness(io::Error::from(error).kind()))?;
            let stag = Stag::from_raw(drawn);
            // FC-059: 0 names nothing.
            if stag.index() == 0 {
                continue;
            }
            if let Entry::Vacant(free) = self.shard(stag).write().entry(stag.index()) {
                free.insert(Slot::Live { stag, region: Weak::new() });
                return Ok(stag);
            }
        }
    }

    /// Lets the key that the region bears name it.
    pub(super) fn publish(&self, region: &Arc<Region>) {
        let stag = region.stag();
        let slot = Slot::Live { stag, region: Arc::downgrade(region) };
        self.shard(stag).write().insert(stag.index(), slot);
    }

    /// The region with exactly this key, valid or invalidated.
    #[inline]
    pub(crate) fn lookup(&self, stag: Stag) -> Option<Arc<Region>> {
        match self.shard(stag).read().get(&stag.index()) {
            // All 32 bits count.
            Some(Slot::Live { stag: live, region }) if *live == stag => region.upgrade(),
            _ => None,
        }
    }

    /// Makes the key name nothing. A second call changes nothing.
    pub(super) fn remove(&self, stag: Stag) {
        {
            let mut shard = self.shard(stag).write();
            let Some(slot) = shard.get_mut(&stag.index()) else { return };
            // The index may have been given to somebody else since the first call.
            if !matches!(&*slot, Slot::Live { stag: live, .. } if *live == stag) {
                return;
            }
            *slot = Slot::Retired;
        }
        let mut turnover = self.turnover.lock();
        turnover.live -= 1;
        turnover.retired.push_back(stag.index());
        let rested =
            if turnover.retired.len() > RETIRED { turnover.retired.pop_front() } else { None };
        drop(turnover);
        if let Some(index) = rested {
            self.shards[shard_of(index)].write().remove(&index);
        }
    }

    #[inline]
    fn shard(&self, stag: Stag) -> &RwLock<HashMap<u32, Slot, BuildHasherDefault<IndexHasher>>> {
        &self.shards[shard_of(stag.index())]
    }
}

#[inline]
fn shard_of(index: u32) -> usize {
    index as usize % SHARDS
}

/// Indices are random already; this only moves their entropy to where the map looks for it.
#[derive(Default)]
struct IndexHasher(u64);

impl Hasher for IndexHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, octets: &[u8]) {
        for &octet in octets {
            self.write_u32(u32::from(octet));
        }
    }

    fn write_u32(&mut self, index: u32) {
        self.0 = (self.0 ^ u64::from(index)).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(32);
    }
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use super::*;

    impl KeyTable {
        fn entries(&self) -> usize {
            self.shards.iter().map(|shard| shard.read().len()).sum()
        }

        fn live(&self) -> usize {
            self.turnover.lock().live
        }
    }

    #[test]
    fn only_the_whole_key_is_removed_and_once() {
        let table = KeyTable::new();
        let stag = table.reserve().unwrap();
        table.remove(Stag::from_raw(stag.raw() ^ 1));
        assert_eq!(table.live(), 1);
        table.remove(stag);
        table.remove(stag);
        assert_eq!((table.live(), table.entries()), (0, 1), "the index rests");
    }

    /// FC-059: an index rests while so many others are given back, and no longer.
    #[test]
    #[cfg_attr(miri, ignore = "many keys")]
    fn indices_rest_for_a_while() {
        let table = KeyTable::new();
        let first = table.reserve().unwrap();
        table.remove(first);
        for _ in 1..RETIRED {
            let stag = table.reserve().unwrap();
            assert_ne!(stag.index(), first.index());
            table.remove(stag);
        }
        assert_eq!(table.entries(), RETIRED);
        assert!(table.shard(first).read().contains_key(&first.index()));
        for _ in 0..3 {
            table.remove(table.reserve().unwrap());
        }
        assert_eq!(table.entries(), RETIRED);
        assert!(!table.shard(first).read().contains_key(&first.index()));
    }

    #[test]
    fn a_full_table_says_so() {
        let table = KeyTable::new();
        table.turnover.lock().live = MOST;
        assert_eq!(table.reserve(), Err(MemoryError::NoKeyLeft { live: MOST }));
    }
}
