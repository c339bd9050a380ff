//! Random lives of regions against a model.

use iwarp_ddp::{Refusal, Stag};
use proptest::prelude::*;

use super::*;

#[derive(Clone, Debug)]
enum Step {
    Register { domain: usize, len: usize, access: u32 },
    Deregister { region: usize },
    Drop { region: usize },
    Invalidate { domain: usize, region: usize },
    Write { domain: usize, region: usize, offset: i64, len: usize },
    Read { domain: usize, region: usize, offset: i64, len: usize },
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let ranges = || (0_usize..2, 0_usize..8, -4_i64..80, 0_usize..40);
    let step = prop_oneof![
        3 => (0_usize..2, 0_usize..64, 0_u32..16).prop_map(|(domain, len, access)| {
            Step::Register { domain, len, access }
        }),
        1 => (0_usize..8).prop_map(|region| Step::Deregister { region }),
        1 => (0_usize..8).prop_map(|region| Step::Drop { region }),
        1 => (0_usize..2, 0_usize..8).prop_map(|(domain, region)| Step::Invalidate { domain, region }),
        6 => ranges().prop_map(|(domain, region, offset, len)| {
            Step::Write { domain, region, offset, len }
        }),
        4 => ranges().prop_map(|(domain, region, offset, len)| {
            Step::Read { domain, region, offset, len }
        }),
    ];
    prop::collection::vec(step, 1..80)
}

/// What a region ought to be: plain values.
struct Model {
    handle: Option<MemoryRegion>,
    key: u32,
    base: u64,
    domain: usize,
    access: Access,
    valid: bool,
    octets: Vec<u8>,
    /// The region is the middle of this.
    memory: Vec<u8>,
}

const MARGIN: usize = 16;

impl Model {
    fn allows(
        &self,
        domain: usize,
        need: Access,
        offset: i64,
        len: usize,
    ) -> Result<usize, Refusal> {
        if len == 0 {
            return Ok(0);
        }
        if !self.valid {
            return Err(Refusal::InvalidStag);
        }
        if self.domain != domain {
            return Err(Refusal::NotAssociated);
        }
        if !self.access.contains(need) {
            return Err(Refusal::Rights);
        }
        match usize::try_from(offset) {
            Ok(offset) if offset + len <= self.octets.len() => Ok(offset),
            _ => Err(Refusal::Bounds),
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: if cfg!(miri) { 3 } else { 300 },
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    /// Random lives of regions against the model: an access succeeds exactly if the model says so, and
    /// no octet outside of the region changes.
    #[test]
    fn accesses_are_allowed_exactly_as_registered(steps in steps()) {
        let domains = [domain(), domain()];
        let mut models: Vec<Model> = Vec::new();
        let mut stamp = 0_u8;
        for step in steps {
            match step {
                Step::Register { domain, len, access } => {
                    let access = Access::from_bits_truncate(access);
                    let mut memory = vec![0xee; len + 2 * MARGIN];
                    let at = std::ptr::NonNull::new(memory.as_mut_ptr().wrapping_add(MARGIN)).unwrap();
                    let base = at.addr().get() as u64;
                    let home = domains[domain].clone();
                    // SAFETY: the model keeps the memory until the region is gone, and only looks at it
                    // then.
                    let handle = unsafe { MemoryRegion::register_raw(home, at, len, base, access) };
                    let needs = access.intersects(Access::REMOTE_WRITE | Access::REMOTE_ATOMIC);
                    prop_assert_eq!(handle.is_ok(), !needs || access.contains(Access::LOCAL_WRITE));
                    if let Ok(handle) = handle {
                        models.push(Model {
                            key: handle.rkey(),
                            handle: Some(handle),
                            base,
                            domain,
                            access,
                            valid: true,
                            octets: vec![0xee; len],
                            memory,
                        });
                    }
                }
                Step::Deregister { region } => {
                    let Some(model) = models.get_mut(region) else { continue };
                    if let Some(handle) = model.handle.take() {
                        prop_assert_eq!(handle.deregister(), Ok(()));
                    }
                    model.valid = false;
                }
                Step::Drop { region } => {
                    let Some(model) = models.get_mut(region) else { continue };
                    model.handle = None;
                    model.valid = false;
                }
                Step::Invalidate { domain, region } => {
                    let Some(model) = models.get_mut(region) else { continue };
                    let stag = Stag::from_raw(model.key);
                    let found = KeyTable::of_process().lookup(stag);
                    prop_assert_eq!(found.is_some(), model.handle.is_some());
                    let Some(found) = found else { continue };
                    let allowed = found.check_invalidate(peer_of(&domains[domain]), stag);
                    let expected = if model.domain != domain {
                        Err(Refusal::NotAssociated)
                    } else if !model.access.intersects(Access::REMOTE) {
                        Err(Refusal::Rights)
                    } else {
                        Ok(())
                    };
                    prop_assert_eq!(allowed, expected);
                    if allowed.is_ok() {
                        found.invalidate().unwrap();
                        model.valid = false;
                    }
                }
                Step::Write { domain, region, offset, len } => {
                    let Some(model) = models.get_mut(region) else { continue };
                    stamp = stamp.wrapping_add(1);
                    let to = model.base.wrapping_add_signed(offset);
                    let done = place(peer_of(&domains[domain]), model.key, to, &vec![stamp; len]);
                    let allowed = model.allows(domain, Access::REMOTE_WRITE, offset, len);
                    prop_assert_eq!(done, allowed.map(drop));
                    if let (Ok(at), true) = (allowed, len > 0) {
                        model.octets[at..at + len].fill(stamp);
                    }
                }
                Step::Read { domain, region, offset, len } => {
                    let Some(model) = models.get_mut(region) else { continue };
                    let from = model.base.wrapping_add_signed(offset);
                    let read = fetch(peer_of(&domains[domain]), model.key, from, len);
                    let allowed = model.allows(domain, Access::REMOTE_READ, offset, len);
                    prop_assert_eq!(read, allowed.map(|at| model.octets[at..at + len].to_vec()));
                }
            }
        }
        for model in models {
            if let Some(handle) = model.handle {
                prop_assert_eq!(handle.deregister(), Ok(()));
            }
            let (before, rest) = model.memory.split_at(MARGIN);
            let (inside, after) = rest.split_at(model.octets.len());
            prop_assert!(before.iter().chain(after).all(|&octet| octet == 0xee), "outside was touched");
            prop_assert_eq!(inside, &model.octets[..]);
        }
    }
}
