//! The table: slots of fixed size in one region, laid out so that a stranger can read them at any moment.
//!
//! A key lives in one of the [`WINDOW`] slots from its home on, and its home follows from the key alone. So a client
//! finds it with one Read of the whole window, and needs nothing from the server but where the table is.
//!
//! A Read may meet a slot that is being changed. Each slot therefore carries a checksum over its content: a reader
//! that finds it wrong has seen a mixture of old and new, and reads again.

use iwarp_examples::failure::{Failure, Result};
use iwarp_verbs::MemoryRegion;

/// Octets of a slot.
pub(crate) const SLOT: usize = 256;
/// Slots that a key may be in.
pub(crate) const WINDOW: usize = 8;
/// Octets of a window.
pub(crate) const WINDOW_OCTETS: usize = SLOT * WINDOW;

/// Sum, length of the key, length of the value.
const HEADER: usize = 12;
/// Octets of key and value together.
pub(crate) const ENTRY_MAX: usize = SLOT - HEADER;

/// What a slot holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Slot {
    Empty,
    Entry {
        key: String,
        value: String,
    },
    /// Seen while it was being changed.
    Torn,
}

impl Slot {
    pub(crate) fn parse(octets: &[u8; SLOT]) -> Self {
        if octets.iter().all(|octet| *octet == 0) {
            return Self::Empty;
        }
        Self::parse_entry(octets).unwrap_or(Self::Torn)
    }

    fn parse_entry(octets: &[u8; SLOT]) -> Option<Self> {
        let (sum, content) = octets.split_first_chunk::<8>()?;
        let (key_len, rest) = content.split_first_chunk::<2>()?;
        let (value_len, rest) = rest.split_first_chunk::<2>()?;
        let (key, rest) = rest.split_at_checked(u16::from_be_bytes(*key_len).into())?;
        let (value, _) = rest.split_at_checked(u16::from_be_bytes(*value_len).into())?;
        if u64::from_be_bytes(*sum) != hash(content) {
            return None;
        }
        let text = |octets| Some(std::str::from_utf8(octets).ok()?.to_owned());
        Some(Self::Entry { key: text(key)?, value: text(value)? })
    }

    fn encode(key: &str, value: &str) -> Result<[u8; SLOT]> {
        if key.is_empty() || key.len() + value.len() > ENTRY_MAX {
            return Err(Failure::new(format_args!(
                "a key must not be empty, and with its value be no more than {ENTRY_MAX} octets"
            )));
        }
        let content: Vec<u8> = [
            &u16::try_from(key.len()).map_err(Failure::new)?.to_be_bytes()[..],
            &u16::try_from(value.len()).map_err(Failure::new)?.to_be_bytes(),
            key.as_bytes(),
            value.as_bytes(),
        ]
        .concat();
        let mut octets = [0; SLOT];
        octets[8..8 + content.len()].copy_from_slice(&content);
        let sum = hash(&octets[8..]);
        octets[..8].copy_from_slice(&sum.to_be_bytes());
        Ok(octets)
    }
}

/// Where the window of a key begins, in octets, in a table of so many octets.
pub(crate) fn window_of(key: &str, table: u64) -> u64 {
    let homes = (table / SLOT as u64).saturating_sub(WINDOW as u64) + 1;
    hash(key.as_bytes()) % homes * SLOT as u64
}

/// Looks for a key in its window. `Err`: some slot was torn, so look again.
pub(crate) fn find(key: &str, window: &[u8]) -> std::result::Result<Option<String>, Torn> {
    let (slots, _) = window.as_chunks::<SLOT>();
    let mut torn = false;
    for slot in slots {
        match Slot::parse(slot) {
            Slot::Entry { key: found, value } if found == key => return Ok(Some(value)),
            Slot::Torn => torn = true,
            Slot::Entry { .. } | Slot::Empty => {}
        }
    }
    if torn { Err(Torn) } else { Ok(None) }
}

/// A slot of the window was being changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Torn;

/// The server's hold on the table: the only one that changes it.
#[derive(Debug)]
pub(crate) struct Table(MemoryRegion);

impl Table {
    pub(crate) fn new(memory: MemoryRegion) -> Self {
        Self(memory)
    }

    pub(crate) fn put(&self, key: &str, value: &str) -> Result<()> {
        let entry = Slot::encode(key, value)?;
        let at = self.place(key, true)?;
        let at = at.ok_or_else(|| Failure::new("there is no room left where this key belongs"))?;
        Ok(self.0.write_at(at, &entry)?)
    }

    /// Whether it was there.
    pub(crate) fn delete(&self, key: &str) -> Result<bool> {
        match self.place(key, false)? {
            None => Ok(false),
            Some(at) => self.0.write_at(at, &[0; SLOT]).map(|()| true).map_err(Failure::from),
        }
    }

    /// Offset of the slot that holds the key or, if there is none and one is wanted, of a free one.
    fn place(&self, key: &str, or_free: bool) -> Result<Option<usize>> {
        let start = usize::try_from(window_of(key, self.0.len() as u64)).map_err(Failure::new)?;
        let mut window = [0; WINDOW_OCTETS];
        self.0.read_at(start, &mut window)?;
        let (slots, _) = window.as_chunks::<SLOT>();
        let is_key = |slot: &Slot| matches!(slot, Slot::Entry { key: found, .. } if found == key);
        let slots: Vec<Slot> = slots.iter().map(Slot::parse).collect();
        let free = || slots.iter().position(|slot| or_free && *slot == Slot::Empty);
        Ok(slots.iter().position(is_key).or_else(free).map(|slot| start + slot * SLOT))
    }
}

/// FNV-1a: the same on every machine, and in few lines.
fn hash(octets: &[u8]) -> u64 {
    octets.iter().fold(0xcbf2_9ce4_8422_2325, |hash, octet| {
        (hash ^ u64::from(*octet)).wrapping_mul(0x0000_0100_0000_01b3)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_comes_back_as_it_was_put() {
        let octets = Slot::encode("colour", "green").unwrap();
        let entry = Slot::Entry { key: "colour".into(), value: "green".into() };
        assert_eq!(Slot::parse(&octets), entry);
        assert_eq!(Slot::parse(&[0; SLOT]), Slot::Empty);
        let longest = "v".repeat(ENTRY_MAX - 1);
        assert!(matches!(Slot::parse(&Slot::encode("k", &longest).unwrap()), Slot::Entry { .. }));
        assert!(Slot::encode("k", &(longest + "v")).is_err());
        assert!(Slot::encode("", "v").is_err());
    }

    #[test]
    fn every_mixture_of_two_entries_is_noticed() {
        let old = Slot::encode("key", &"a".repeat(200)).unwrap();
        let new = Slot::encode("key", &"b".repeat(200)).unwrap();
        let differ: Vec<usize> = (0..SLOT).filter(|&at| old[at] != new[at]).collect();
        for cut in 1..SLOT {
            let mut mixed = old;
            mixed[..cut].copy_from_slice(&new[..cut]);
            let whole = differ.iter().all(|&at| at < cut) || differ.iter().all(|&at| at >= cut);
            assert_eq!(Slot::parse(&mixed) == Slot::Torn, !whole, "cut at {cut}");
        }
    }

    #[test]
    fn a_slot_that_is_being_filled_or_emptied_is_noticed() {
        let full = Slot::encode("key", "value").unwrap();
        let end = full.iter().rposition(|octet| *octet != 0).unwrap();
        for cut in 1..=end {
            let mut mixed = [0; SLOT];
            mixed[..cut].copy_from_slice(&full[..cut]);
            assert_eq!(Slot::parse(&mixed), Slot::Torn, "filled up to {cut}");
            let mut mixed = full;
            mixed[..cut].fill(0);
            assert_eq!(Slot::parse(&mixed), Slot::Torn, "emptied up to {cut}");
        }
    }

    #[test]
    fn windows_lie_inside_the_table() {
        let table = 64 * SLOT as u64;
        for number in 0..1000 {
            let start = window_of(&number.to_string(), table);
            assert!(start.is_multiple_of(SLOT as u64));
            assert!(start + WINDOW_OCTETS as u64 <= table);
        }
    }

    #[test]
    fn a_torn_slot_hides_a_key_but_not_another() {
        let mut window = vec![0; WINDOW_OCTETS];
        window[SLOT..2 * SLOT].copy_from_slice(&Slot::encode("there", "x").unwrap());
        assert_eq!(find("there", &window), Ok(Some("x".into())));
        assert_eq!(find("elsewhere", &window), Ok(None));
        window[0] = 1;
        assert_eq!(find("there", &window), Ok(Some("x".into())));
        assert_eq!(find("elsewhere", &window), Err(Torn));
    }
}
