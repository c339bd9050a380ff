//! Octets and messages that both ends can work out by themselves; the guest's twin is `tests/interop/guest/pattern.c`.

/// One message of a stream of random ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Message {
    pub(super) kind: MessageKind,
    pub(super) len: usize,
    pub(super) pattern: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum MessageKind {
    Send,
    Write,
    Read,
}

const fn mix(z: u64) -> u64 {
    let z = z.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// Fills `into` with the pattern of `seed`: 64-bit words, each a function of seed and place.
pub(super) fn fill(into: &mut [u8], seed: u64) {
    for (index, octets) in (0_u64..).zip(into.chunks_mut(8)) {
        let word = mix(seed.wrapping_add(index.wrapping_mul(0xd134_2543_de82_ef95)));
        octets.copy_from_slice(&word.to_le_bytes()[..octets.len()]);
    }
}

/// The first `len` octets of a pattern.
pub(super) fn octets(len: usize, seed: u64) -> Vec<u8> {
    let mut octets = vec![0; len];
    fill(&mut octets, seed);
    octets
}

/// Message `index` of `direction`: half of them Sends, lengths below 64 KiB with all orders of magnitude alike.
pub(super) fn message(seed: u64, direction: u64, index: u64) -> Message {
    let random = mix(mix(seed.wrapping_add(direction)).wrapping_add(index));
    let kind = match random & 3 {
        0 | 1 => MessageKind::Send,
        2 => MessageKind::Write,
        _ => MessageKind::Read,
    };
    let bits = (random >> 40) % 17;
    let len = (random >> 8) & ((1 << bits) - 1);
    // A Read of nothing that siw serves between others gets what another request asked for.
    let len = if kind == MessageKind::Read { len.max(1) } else { len };
    Message { kind, len: usize::try_from(len).expect("16 bits"), pattern: mix(random) }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What the guest makes of the same numbers, so that a change of one twin is noticed without a guest.
    #[test]
    fn the_numbers_are_those_of_the_guest() {
        assert_eq!(
            octets(11, 7),
            [0xd7, 0x0d, 0x32, 0x59, 0xe4, 0xe1, 0xcb, 0x63, 0xec, 0x10, 0x89]
        );
        let known = Message { kind: MessageKind::Send, len: 6, pattern: 0xcc49_c6e7_d873_20c6 };
        assert_eq!(message(5, 1, 9), known);
    }

    #[test]
    fn a_prefix_of_a_pattern_is_the_pattern_of_the_prefix() {
        let whole = octets(64, 3);
        for len in 0..64 {
            assert_eq!(octets(len, 3), whole[..len]);
        }
        assert_ne!(octets(64, 4), whole);
    }

    #[test]
    fn messages_are_of_all_kinds_and_sizes() {
        let all: Vec<Message> = (0..2000).map(|index| message(1, 0, index)).collect();
        for kind in [MessageKind::Send, MessageKind::Write, MessageKind::Read] {
            assert!(all.iter().filter(|message| message.kind == kind).count() > 300, "{kind:?}");
        }
        for bits in 1..16 {
            let sizes = (1 << bits)..(2 << bits);
            assert!(all.iter().any(|message| sizes.contains(&message.len)), "{bits}");
        }
        let empty: Vec<_> = all.iter().filter(|message| message.len == 0).collect();
        assert!(!empty.is_empty());
        assert!(empty.iter().all(|message| message.kind != MessageKind::Read));
        assert!(all.iter().all(|message| message.len < 1 << 16));
    }
}
