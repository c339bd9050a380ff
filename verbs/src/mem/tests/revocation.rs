//! When a key is out of force, no octet moves through it any more.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use iwarp_ddp::{Refusal, Stag};

use super::*;

#[test]
fn invalidation_ends_the_key_but_not_the_program_s_own_access() {
    let home = domain();
    let region = MemoryRegion::alloc(home.clone(), 16, all_rights()).unwrap();
    let (peer, key) = (peer_of(&home), Stag::from_raw(region.rkey()));
    place(peer, key.raw(), region.addr(), b"result").unwrap();
    assert_eq!(
        region.region().check_invalidate(peer_of(&domain()), key),
        Err(Refusal::NotAssociated)
    );
    let powerless = Peer { rights: Access::empty(), ..peer };
    assert_eq!(region.region().check_invalidate(powerless, key), Err(Refusal::Rights));
    // FC-062: the check alone changes nothing.
    assert_eq!(region.region().check_invalidate(peer, key), Ok(()));
    assert!(region.is_valid());
    region.region().invalidate().unwrap();
    assert!(!region.is_valid());
    assert_eq!(place(peer, key.raw(), region.addr(), b"late"), Err(Refusal::InvalidStag));
    assert_eq!(fetch(peer, key.raw(), region.addr(), 1), Err(Refusal::InvalidStag));
    assert_eq!(contents(&region)[..6], *b"result");
    // A second invalidation of the same key succeeds.
    assert_eq!(region.region().check_invalidate(peer, key), Ok(()));
    region.region().invalidate().unwrap();
    let local = MemoryRegion::alloc(home, 16, Access::LOCAL_WRITE).unwrap();
    let key = Stag::from_raw(local.rkey());
    assert_eq!(local.region().check_invalidate(peer, key), Err(Refusal::Rights));
}

/// FC-061, SEC-04: whoever got memory back finds that nothing is placed in it any more.
#[test]
fn deregistration_is_final_during_streams_of_copies() {
    let until = Instant::now() + Duration::from_secs(u64::from(!cfg!(miri)));
    let home = domain();
    let peer = peer_of(&home);
    let target = AtomicU64::new(0);
    let done = AtomicBool::new(false);
    let placed = AtomicU64::new(0);
    thread::scope(|scope| {
        for stamp in [0x11, 0x22] {
            let (target, done, placed) = (&target, &done, &placed);
            scope.spawn(move || {
                let payload = vec![stamp; 4096];
                while !done.load(Ordering::Relaxed) {
                    let key = u32::try_from(target.load(Ordering::Acquire)).unwrap();
                    match place(peer, key, 0, &payload) {
                        Ok(()) => _ = placed.fetch_add(1, Ordering::Relaxed),
                        Err(Refusal::InvalidStag) => thread::yield_now(),
                        Err(other) => panic!("{other}"),
                    }
                }
            });
        }
        let mut rounds = 0_u32;
        while rounds < 3 || Instant::now() < until {
            let buffer = vec![0_u8; 4096];
            let access = all_rights() | Access::ZERO_BASED;
            let owned = MemoryRegion::register(home.clone(), buffer, access).unwrap();
            let before = placed.load(Ordering::Relaxed);
            target.store(u64::from(owned.region().rkey()), Ordering::Release);
            while placed.load(Ordering::Relaxed) < before + 2 {
                thread::yield_now();
            }
            // Every other time by the peer first.
            if rounds.is_multiple_of(2) {
                owned.region().region().invalidate().unwrap();
                let key = Stag::from_raw(owned.region().rkey());
                assert_eq!(place(peer, key.raw(), 0, &[1]), Err(Refusal::InvalidStag));
                owned.region().fill(.., 0x55).unwrap();
                thread::yield_now();
                assert!(contents(owned.region()).iter().all(|&octet| octet == 0x55));
            }
            let mut buffer = owned.deregister();
            buffer.fill(0x33);
            for _ in 0..20 {
                thread::yield_now();
            }
            assert!(std::hint::black_box(&buffer).iter().all(|&octet| octet == 0x33));
            rounds += 1;
        }
        done.store(true, Ordering::Relaxed);
    });
}

/// The program's own copies end before the buffer is given back, too.
#[test]
fn deregistration_waits_for_the_program_s_other_threads() {
    let rounds = if cfg!(miri) { 3 } else { 300 };
    for _ in 0..rounds {
        let owned = MemoryRegion::register(domain(), vec![0_u8; 512], all_rights()).unwrap();
        let region = owned.region().clone();
        thread::scope(|scope| {
            for stamp in 1..3_u8 {
                let region = &region;
                scope.spawn(move || {
                    while region.write_at(0, &[stamp; 512]).is_ok() {
                        let _ = region.load_u64(0);
                    }
                });
            }
            thread::yield_now();
            let mut buffer = owned.deregister();
            buffer.fill(9);
            thread::yield_now();
            assert!(std::hint::black_box(&buffer).iter().all(|&octet| octet == 9));
        });
    }
}
