//! Memory as a stream sees it.

use std::collections::VecDeque;

use iwarp_ddp::{LocalFault, Placement, Refusal, Source, Stag, range_in};
use iwarp_rdmap::{
    AtomicOperation, AtomicRefusal, InvalidateRefusal, Memory, Receive, Received, Sink, WorkRefused,
};

/// The local side of a work request: some octets of the [`TestMemory`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Buf {
    pub id: u64,
    pub at: usize,
    pub len: usize,
}

/// Registered memory.
#[derive(Clone, Debug)]
pub struct Region {
    pub stag: Stag,
    /// Tagged offset of the first octet.
    pub base: u64,
    /// Where it lies.
    pub at: usize,
    pub len: u64,
    pub read: bool,
    pub write: bool,
    pub atomic: bool,
    pub our_domain: bool,
    pub valid: bool,
}

impl Region {
    /// Remotely readable and writable, and open to atomics.
    pub fn new(stag: u32, base: u64, at: usize, len: u64) -> Self {
        Self {
            stag: Stag::from_raw(stag),
            base,
            at,
            len,
            read: true,
            write: true,
            atomic: true,
            our_domain: true,
            valid: true,
        }
    }

    pub fn local(self) -> Self {
        Self { read: false, write: false, atomic: false, ..self }
    }

    pub fn foreign(self) -> Self {
        Self { our_domain: false, ..self }
    }
}

/// A calls-for-calls implementation of the memory traits. Octets beyond the end of `bytes` read as 0 and
/// swallow what is written, so that regions may be larger than the machine.
#[derive(Debug, Default)]
pub struct TestMemory {
    pub bytes: Vec<u8>,
    pub regions: Vec<Region>,
    pub receives: VecDeque<Receive<Buf>>,
    /// Receives that the stream took, by number.
    pub taken: Vec<u64>,
    /// Messages that are kept when they are offered, if any are.
    pub kept: Option<Vec<Received<Buf>>>,
    /// Buffers that may not be touched.
    pub broken: Vec<u64>,
    /// Reads of regions that succeed before all fail.
    pub remote_reads_left: Option<usize>,
    /// Calls of each kind.
    pub checks: usize,
    pub placements: usize,
    pub atomics: usize,
    /// Looks at the buffers of work requests.
    pub buffers: usize,
    /// Local work that was carried out, by number. Work on a broken buffer is refused.
    pub performed: Vec<u64>,
}

impl TestMemory {
    pub fn new(len: usize) -> Self {
        Self { bytes: vec![0; len], ..Self::default() }
    }

    pub fn post(&mut self, id: u64, at: usize, len: usize) {
        let buffer = Buf { id, at, len };
        self.receives.push_back(Receive { buffer, capacity: len as u64 });
    }

    fn find(
        &self,
        stag: Stag,
        offset: u64,
        len: u64,
        right: impl Fn(&Region) -> bool,
    ) -> Result<usize, Refusal> {
        let region = self
            .regions
            .iter()
            .find(|region| region.stag == stag && region.valid)
            .ok_or(Refusal::InvalidStag)?;
        if !region.our_domain {
            return Err(Refusal::NotAssociated);
        }
        if !right(region) {
            return Err(Refusal::Rights);
        }
        Ok(region.at + usize::try_from(range_in(region.base, region.len, offset, len)?).unwrap())
    }

    /// Where an Atomic finds its eight octets. Places count as addresses.
    fn word(&self, stag: Stag, offset: u64) -> Result<usize, AtomicRefusal> {
        let at = self.find(stag, offset, 8, |region| region.atomic)?;
        if at.is_multiple_of(8) { Ok(at) } else { Err(AtomicRefusal::Misaligned) }
    }

    fn put(&mut self, at: usize, payload: &[u8]) {
        self.placements += 1;
        let here = payload.len().min(self.bytes.len().saturating_sub(at));
        if here > 0 {
            self.bytes[at..at + here].copy_from_slice(&payload[..here]);
        }
    }

    fn get(&self, at: usize, into: &mut [u8]) {
        let here = into.len().min(self.bytes.len().saturating_sub(at));
        if here > 0 {
            into[..here].copy_from_slice(&self.bytes[at..at + here]);
        }
        into[here..].fill(0);
    }

    /// Where `len` octets go that the socket puts there itself; `None` if one of the checks fails.
    pub fn straight_sink(&mut self, sink: &Sink<'_, Buf>, len: usize) -> Option<usize> {
        match *sink {
            Sink::Tagged { stag, offset } => {
                self.find(stag, offset, len as u64, |region| region.write).ok()
            }
            Sink::Local { buffer, offset } => self.local(buffer, offset, len).ok(),
        }
    }

    fn local(&mut self, buffer: &Buf, offset: u64, len: usize) -> Result<usize, LocalFault> {
        self.buffers += 1;
        if self.broken.contains(&buffer.id) {
            return Err(LocalFault::Protection);
        }
        let offset = usize::try_from(offset).unwrap();
        if offset + len > buffer.len {
            return Err(LocalFault::Length);
        }
        Ok(buffer.at + offset)
    }
}

impl Placement for TestMemory {
    type Buffer = Buf;

    fn place_tagged(&mut self, stag: Stag, offset: u64, payload: &[u8]) -> Result<(), Refusal> {
        assert!(!payload.is_empty(), "an empty segment is not to be checked");
        self.checks += 1;
        let at = self.find(stag, offset, payload.len() as u64, |region| region.write)?;
        self.put(at, payload);
        Ok(())
    }

    fn place_local(&mut self, sink: &Buf, offset: u64, payload: &[u8]) -> Result<(), LocalFault> {
        let at = self.local(sink, offset, payload.len())?;
        self.put(at, payload);
        Ok(())
    }
}

impl Source for TestMemory {
    type Buffer = Buf;

    fn check_tagged(&mut self, stag: Stag, offset: u64, len: u32) -> Result<(), Refusal> {
        assert_ne!(len, 0, "an empty Read is not to be checked");
        self.checks += 1;
        self.find(stag, offset, u64::from(len), |region| region.read).map(|_| ())
    }

    fn read_tagged(&mut self, stag: Stag, offset: u64, into: &mut [u8]) -> Result<(), Refusal> {
        if let Some(left) = &mut self.remote_reads_left {
            *left = left.checked_sub(1).ok_or(Refusal::InvalidStag)?;
        }
        let at = self.find(stag, offset, into.len() as u64, |region| region.read)?;
        self.get(at, into);
        Ok(())
    }

    fn read_local(&mut self, source: &Buf, offset: u64, into: &mut [u8]) -> Result<(), LocalFault> {
        let at = self.local(source, offset, into.len())?;
        self.get(at, into);
        Ok(())
    }
}

impl Memory<Buf> for TestMemory {
    fn take_receive(&mut self) -> Option<Receive<Buf>> {
        let receive = self.receives.pop_front()?;
        self.taken.push(receive.buffer.id);
        Some(receive)
    }

    fn received(&mut self, message: Received<Buf>) -> Option<Received<Buf>> {
        let Some(kept) = &mut self.kept else { return Some(message) };
        kept.push(message);
        None
    }

    fn check_atomic(&mut self, stag: Stag, offset: u64) -> Result<(), AtomicRefusal> {
        self.checks += 1;
        self.word(stag, offset).map(|_| ())
    }

    fn atomic(
        &mut self,
        stag: Stag,
        offset: u64,
        operation: AtomicOperation,
    ) -> Result<u64, AtomicRefusal> {
        let at = self.word(stag, offset)?;
        let mut octets = [0; 8];
        self.get(at, &mut octets);
        let original = u64::from_ne_bytes(octets);
        self.put(at, &operation.apply(original).to_ne_bytes());
        self.atomics += 1;
        Ok(original)
    }

    fn invalidate(&mut self, stag: Stag) -> Result<(), InvalidateRefusal> {
        let region = self
            .regions
            .iter_mut()
            .find(|region| region.stag == stag && region.valid)
            .ok_or(InvalidateRefusal::Unknown)?;
        if !region.our_domain {
            return Err(InvalidateRefusal::NotInvalidatable);
        }
        if !region.read && !region.write {
            return Err(InvalidateRefusal::Rights);
        }
        region.valid = false;
        Ok(())
    }

    fn perform(&mut self, work: &Buf) -> Result<(), WorkRefused> {
        if self.broken.contains(&work.id) {
            return Err(WorkRefused);
        }
        self.performed.push(work.id);
        Ok(())
    }
}
