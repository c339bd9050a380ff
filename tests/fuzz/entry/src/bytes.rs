//! The input of a target, read from the front.

/// What is left of an input. Behind its end there are zeros, so that every input means something.
#[derive(Debug)]
pub(crate) struct Bytes<'a>(&'a [u8]);

impl<'a> Bytes<'a> {
    pub(crate) const fn new(octets: &'a [u8]) -> Self {
        Self(octets)
    }

    pub(crate) const fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The next octets, as many as there are.
    pub(crate) fn take(&mut self, len: usize) -> &'a [u8] {
        let (front, rest) = self.0.split_at(len.min(self.0.len()));
        self.0 = rest;
        front
    }

    /// All that is left.
    pub(crate) fn rest(&mut self) -> &'a [u8] {
        std::mem::take(&mut self.0)
    }

    fn array<const N: usize>(&mut self) -> [u8; N] {
        let mut octets = [0; N];
        let there = self.take(N);
        octets[..there.len()].copy_from_slice(there);
        octets
    }

    pub(crate) fn u8(&mut self) -> u8 {
        let [octet] = self.array();
        octet
    }

    pub(crate) fn u16(&mut self) -> u16 {
        u16::from_be_bytes(self.array())
    }

    pub(crate) fn u32(&mut self) -> u32 {
        u32::from_be_bytes(self.array())
    }

    pub(crate) fn u64(&mut self) -> u64 {
        u64::from_be_bytes(self.array())
    }

    /// Octets behind their number, which has one octet.
    pub(crate) fn counted(&mut self) -> &'a [u8] {
        let len = self.u8();
        self.take(len.into())
    }
}

/// `octets` in pieces of the lengths in `cuts`, over and over; a length of 0 is all that is left.
pub(crate) fn pieces(octets: &[u8], cuts: [u8; 3]) -> impl Iterator<Item = &[u8]> {
    let mut rest = octets;
    let mut lengths = cuts.into_iter().cycle();
    std::iter::from_fn(move || {
        if rest.is_empty() {
            return None;
        }
        let len = match lengths.next() {
            None | Some(0) => rest.len(),
            Some(len) => usize::from(len).min(rest.len()),
        };
        let (piece, behind) = rest.split_at(len);
        rest = behind;
        Some(piece)
    })
}
