//! Windows and fast-registered regions, without a connection.

use std::ptr::NonNull;
use std::sync::Arc;
use std::thread;

use iwarp_ddp::{Refusal, Stag};

use super::*;

const WINDOW: Access = Access::REMOTE;

/// Two queue pairs of one domain, one of another, and a region that windows can be bound to.
struct Scene {
    home: Domain,
    here: Peer,
    beside: Peer,
    elsewhere: Peer,
    region: MemoryRegion,
}

impl Scene {
    fn new() -> Self {
        let home = domain();
        let region = bindable(&home, 256);
        let (here, beside) = (peer_of(&home), peer_of(&home));
        Self { here, beside, elsewhere: peer_of(&domain()), region, home }
    }

    fn window(&self, kind: WindowType) -> MemoryWindow {
        MemoryWindow::new(self.home.clone(), kind).unwrap()
    }

    fn fast(&self) -> FastRegion {
        FastRegion::new(self.home.clone(), 256, 4, true).unwrap()
    }

    fn part(&self, from: usize, to: usize, access: Access) -> WindowBinding {
        WindowBinding::new(&self.region.slice(from..to).unwrap(), access)
    }
}

fn bindable(home: &Domain, len: usize) -> MemoryRegion {
    let access = Access::LOCAL_WRITE | Access::MW_BIND;
    MemoryRegion::alloc(home.clone(), len, access).unwrap()
}

fn bind(
    peer: Peer,
    window: &MemoryWindow,
    key: u8,
    binding: WindowBinding,
) -> Result<(), MemoryError> {
    LocalWork::Bind { window: window.clone(), key, binding }.perform(peer).map(drop)
}

fn register(peer: Peer, region: &FastRegion, key: u8, mapping: Mapping) -> Result<(), MemoryError> {
    LocalWork::Register { region: region.clone(), key, mapping }.perform(peer).map(drop)
}

fn invalidate(peer: Peer, key: u32) -> Result<(), MemoryError> {
    LocalWork::Invalidate { stag: Stag::from_raw(key) }.perform(peer).map(drop)
}

/// What the engine does with a peer's Send with Invalidate.
fn invalidate_remotely(peer: Peer, key: u32) -> Result<(), Refusal> {
    let stag = Stag::from_raw(key);
    let region = KeyTable::of_process().lookup(stag).ok_or(Refusal::InvalidStag)?;
    region.check_invalidate(peer, stag)?;
    region.invalidate().map_err(|_| Refusal::NotAssociated)
}

/// SEC-02, DDP-063: a window of type 2 is its queue pair's while it is bound, one of type 1 its domain's.
#[test]
fn windows_open_their_part_to_their_peers_and_no_more() {
    let scene = Scene::new();
    let Scene { here, beside, elsewhere, .. } = scene;
    for (kind, shared) in [(WindowType::One, true), (WindowType::Two, false)] {
        let window = scene.window(kind);
        assert_eq!((window.window_type(), kind.value()), (kind, if shared { 1 } else { 2 }));
        assert_eq!(place(here, window.rkey(), 0, b"x"), Err(Refusal::InvalidStag));
        bind(here, &window, 7, scene.part(64, 128, WINDOW)).unwrap();
        assert_eq!(window.rkey(), window.rkey_with(7));
        let RemoteMemory { addr, len, rkey } = window.remote();
        assert_eq!((addr, len, rkey), (scene.region.addr() + 64, 64, window.rkey()));
        place(here, rkey, addr + 62, b"ab").unwrap();
        assert_eq!(fetch(here, rkey, addr + 62, 2).unwrap(), b"ab");
        assert_eq!(place(here, rkey, addr + 63, b"ab"), Err(Refusal::Bounds));
        assert_eq!(place(here, rkey, addr - 1, b"ab"), Err(Refusal::Bounds));
        assert_eq!(place(here, rkey ^ 1, addr, b"ab"), Err(Refusal::InvalidStag));
        let other = place(beside, rkey, addr, b"ab");
        assert_eq!(other, if shared { Ok(()) } else { Err(Refusal::NotAssociated) });
        assert_eq!(fetch(elsewhere, rkey, addr, 1), Err(Refusal::NotAssociated));
        // The region's own key gives the peer nothing.
        assert_eq!(place(here, scene.region.rkey(), addr, b"ab"), Err(Refusal::Rights));
        // Nor can the window's be named as local memory.
        let view = KeyTable::of_process().lookup(Stag::from_raw(rkey)).unwrap();
        let named = view.check_local(scene.home.id, Access::empty(), addr, 1);
        assert_eq!(named, Err(MemoryError::WindowKey { key: rkey }));
    }
}

/// The rights table of verbs: what a region needs for each right of a window, and what windows cannot have.
#[test]
fn rights_of_windows() {
    let home = domain();
    let peer = peer_of(&home);
    let binding = Access::MW_BIND;
    let rights = [
        Access::empty(),
        Access::REMOTE_READ,
        Access::REMOTE_WRITE,
        Access::REMOTE_ATOMIC,
        Access::REMOTE,
    ];
    for write in [Access::empty(), Access::LOCAL_WRITE] {
        for bind_right in [Access::empty(), binding] {
            for remote in [Access::empty(), Access::REMOTE_READ] {
                let have = write | bind_right | remote;
                let region = MemoryRegion::alloc(home.clone(), 16, have).unwrap();
                for access in rights {
                    let window = MemoryWindow::new(home.clone(), WindowType::Two).unwrap();
                    let to = WindowBinding::new(&region.as_slice_all(), access);
                    let bound = bind(peer, &window, 1, to);
                    let writes = access.intersects(Access::REMOTE_WRITE | Access::REMOTE_ATOMIC);
                    let need = if writes { binding | Access::LOCAL_WRITE } else { binding };
                    // What the region itself lets peers do does not matter.
                    if have.contains(need) {
                        assert_eq!(bound, Ok(()), "{access:?} on {have:?}");
                    } else {
                        assert_eq!(bound, Err(MemoryError::Rights { need, have }));
                        continue;
                    }
                    let at = region.addr();
                    let done = |may| if may { Ok(()) } else { Err(Refusal::Rights) };
                    let write = place(peer, window.rkey(), at, b"x");
                    assert_eq!(write, done(access.contains(Access::REMOTE_WRITE)));
                    let read = fetch(peer, window.rkey(), at, 1).map(drop);
                    assert_eq!(read, done(access.contains(Access::REMOTE_READ)));
                }
            }
        }
    }
    let region = bindable(&home, 16);
    for access in [Access::LOCAL_WRITE, binding, binding | Access::REMOTE_READ] {
        let window = MemoryWindow::new(home.clone(), WindowType::One).unwrap();
        let access = access | Access::REMOTE_READ;
        let to = WindowBinding::raw(&region, region.addr(), 1, access);
        let other = access - Access::REMOTE_READ;
        let refused = Err(MemoryError::RightsOf { what: "memory window", access: other });
        assert_eq!(window.check(&to, home.id), refused);
        assert_eq!(bind(peer, &window, 1, to), refused);
    }
}

#[test]
fn what_a_window_cannot_be_bound_to() {
    let scene = Scene::new();
    let Scene { home, here, elsewhere, region, .. } = &scene;
    let window = scene.window(WindowType::Two);
    let access = Access::LOCAL_WRITE | Access::MW_BIND | Access::ZERO_BASED;
    let zero_based = MemoryRegion::alloc(home.clone(), 16, access).unwrap();
    let to = WindowBinding::new(&zero_based.as_slice_all(), WINDOW);
    assert_eq!(bind(*here, &window, 1, to), Err(MemoryError::ZeroBased));
    let foreign = bindable(&domain(), 16);
    let to = WindowBinding::new(&foreign.as_slice_all(), WINDOW);
    assert_eq!(bind(*here, &window, 1, to), Err(MemoryError::ForeignDomain));
    let all = || scene.part(0, 256, WINDOW);
    assert_eq!(bind(*elsewhere, &window, 1, all()), Err(MemoryError::ForeignDomain));
    let base = region.addr();
    for (addr, len) in [(base, 257), (base + 1, 256), (base - 1, 2), (base + 256, 1), (u64::MAX, 2)]
    {
        let to = WindowBinding::raw(region, addr, len, WINDOW);
        let outside = MemoryError::OutOfBounds { offset: addr, len, size: 256 };
        // Told at posting only if it was not asked for by address.
        assert_eq!(window.check(&to, home.id), Ok(()));
        assert_eq!(bind(*here, &window, 1, to), Err(outside));
    }
    assert!(!window.is_bound());
    invalidate(*here, region.rkey()).unwrap();
    assert_eq!(bind(*here, &window, 1, all()), Err(MemoryError::Invalidated));
    let gone = bindable(home, 16);
    let to = WindowBinding::new(&gone.as_slice_all(), WINDOW);
    gone.deregister().unwrap();
    assert_eq!(bind(*here, &window, 1, to), Err(MemoryError::Deregistered));
}

#[test]
fn a_window_may_count_from_0() {
    let scene = Scene::new();
    let window = scene.window(WindowType::One);
    bind(scene.here, &window, 1, scene.part(100, 104, WINDOW | Access::ZERO_BASED)).unwrap();
    assert_eq!(window.remote().addr, 0);
    place(scene.here, window.rkey(), 2, b"ab").unwrap();
    assert_eq!(place(scene.here, window.rkey(), 3, b"ab"), Err(Refusal::Bounds));
    assert_eq!(contents(&scene.region)[100..106], *b"\0\0ab\0\0");
}

/// What each of the two types, and a fast-registered region, allows in each state, and who may end it.
#[test]
fn states_and_operations() {
    #[derive(Clone, Copy, Debug, PartialEq)]
    enum What {
        Window(WindowType),
        Fast,
    }
    #[derive(Clone, Copy, Debug)]
    enum State {
        New,
        Valid,
        Invalidated,
        Freed,
    }
    for what in [What::Window(WindowType::One), What::Window(WindowType::Two), What::Fast] {
        for state in [State::New, State::Valid, State::Invalidated, State::Freed] {
            let scene = Scene::new();
            let Scene { here, beside, elsewhere, .. } = scene;
            let (window, fast) = (scene.window(WindowType::One), scene.fast());
            let window = match what {
                What::Window(kind) => scene.window(kind),
                What::Fast => window,
            };
            let key = || if what == What::Fast { fast.rkey() } else { window.rkey() };
            let open = |key| match what {
                What::Window(_) => bind(here, &window, key, scene.part(0, 64, WINDOW)),
                What::Fast => {
                    let access = Access::LOCAL_WRITE | Access::REMOTE_READ;
                    let mapping = Mapping::new([scene.region.slice(..64).unwrap()], access);
                    register(here, &fast, key, mapping)
                }
            };
            let end = || match what {
                // The key changes with each binding, to nothing as well.
                What::Window(WindowType::One) => bind(here, &window, 9, WindowBinding::none()),
                _ => invalidate(here, key()),
            };
            let free = || match what {
                What::Window(_) => window.clone().destroy(),
                What::Fast => fast.clone().destroy(),
            };
            match state {
                State::New => {}
                State::Valid => open(1).unwrap(),
                State::Invalidated => {
                    open(1).unwrap();
                    end().unwrap();
                }
                State::Freed => {
                    open(1).unwrap();
                    free().unwrap();
                }
            }
            let valid = matches!(state, State::Valid);
            let freed = matches!(state, State::Freed);
            let note = format!("{what:?} {state:?}");
            let old = key();
            let at = scene.region.addr();
            // Access.
            let read = fetch(here, old, at, 1).map(drop);
            assert_eq!(read, if valid { Ok(()) } else { Err(Refusal::InvalidStag) }, "{note}");
            // Invalidation: by another domain, by another queue pair of this one, by this one.
            let not_mine = |peer: Peer| match what {
                _ if freed => Err(Refusal::InvalidStag),
                What::Window(WindowType::One) => Err(Refusal::NotAssociated),
                What::Window(WindowType::Two) if valid && peer.stream != here.stream => {
                    Err(Refusal::NotAssociated)
                }
                _ if peer.domain != here.domain => Err(Refusal::NotAssociated),
                _ => Ok(()),
            };
            let try_remotely = |peer| {
                let stag = Stag::from_raw(old);
                let found = KeyTable::of_process().lookup(stag).ok_or(Refusal::InvalidStag)?;
                found.check_invalidate(peer, stag)
            };
            for peer in [elsewhere, beside, here] {
                assert_eq!(try_remotely(peer), not_mine(peer), "{note}");
                assert_eq!(fetch(here, old, at, 1).is_ok(), valid, "{note}: only looked at");
            }
            for peer in [elsewhere, beside, here] {
                // Locally nothing else is asked, and what is invalid may be invalidated.
                let expected = not_mine(peer).is_ok();
                assert_eq!(invalidate(peer, old).is_ok(), expected, "{note}");
            }
            // Another binding or registration.
            let reopened = open(2);
            match what {
                _ if freed => assert_eq!(reopened, Err(MemoryError::Deregistered), "{note}"),
                _ => assert_eq!(reopened, Ok(()), "{note}"),
            }
            if what != What::Window(WindowType::One) && !freed {
                let refused = Err(MemoryError::StillValid { key: key() });
                assert_eq!(open(3), refused, "{note}: valid already");
                assert!(fetch(here, key(), at, 1).is_ok(), "{note}: and stays as it is");
            }
            // The end.
            assert_eq!(free().is_ok(), !freed, "{note}");
            assert_eq!(fetch(here, key(), at, 1), Err(Refusal::InvalidStag), "{note}");
            assert!(invalidate(here, key()).is_err(), "{note}");
            scene.region.clone().deregister().unwrap();
        }
    }
}

/// FC-061: the old key of a window of type 1 is out of force when the next binding is done.
#[test]
fn a_window_of_type_1_moves() {
    let scene = Scene::new();
    let window = scene.window(WindowType::One);
    let base = scene.region.addr();
    let mut last = window.rkey();
    for turn in 0..300_usize {
        let key = window.next_key();
        let at = turn % 128;
        bind(scene.here, &window, key, scene.part(at, at + 8, WINDOW)).unwrap();
        assert_ne!(window.rkey(), last, "the key changes with each binding");
        assert_eq!(place(scene.here, last, base + at as u64, b"x"), Err(Refusal::InvalidStag));
        place(scene.here, window.rkey(), base + at as u64, b"x").unwrap();
        last = window.rkey();
    }
    // A binding that is refused leaves the old one in force.
    let outside = WindowBinding::raw(&scene.region, 0, 8, WINDOW);
    bind(scene.here, &window, 1, outside).unwrap_err();
    place(scene.here, last, base + 43, b"x").unwrap();
    assert_eq!(scene.region.clone().deregister().unwrap_err().errno(), 16);
    bind(scene.here, &window, window.next_key(), WindowBinding::none()).unwrap();
    assert!(!window.is_bound() && window.remote().len == 0);
    scene.region.deregister().unwrap();
}

/// FC-062: a key that is bound over cannot be invalidated, and neither check nor refusal changes anything.
#[test]
fn a_region_with_windows_stays() {
    let scene = Scene::new();
    let Scene { here, region, home, .. } = &scene;
    let access = Access::LOCAL_WRITE | Access::REMOTE | Access::MW_BIND;
    let open = MemoryRegion::alloc(home.clone(), 64, access).unwrap();
    let (first, second) = (scene.window(WindowType::One), scene.window(WindowType::Two));
    for window in [&first, &second] {
        bind(*here, window, 1, WindowBinding::new(&open.slice(..8).unwrap(), WINDOW)).unwrap();
    }
    let fast = scene.fast();
    let mapping = Mapping::new([open.slice(..8).unwrap()], Access::empty());
    register(*here, &fast, 1, mapping).unwrap();
    let busy = |windows, registrations| Err(MemoryError::InUse { windows, registrations });
    assert_eq!(open.clone().deregister(), busy(2, 1));
    assert_eq!(invalidate_remotely(*here, open.rkey()), Err(Refusal::NotAssociated));
    assert!(invalidate(*here, open.rkey()).is_err() && open.is_valid());
    first.destroy().unwrap();
    invalidate_remotely(*here, second.rkey()).unwrap();
    assert_eq!(open.clone().deregister(), busy(0, 1));
    // A registration that maps it does not need the region's own key.
    invalidate_remotely(*here, open.rkey()).unwrap();
    assert!(!open.is_valid() && fast.is_valid());
    drop(fast);
    open.deregister().unwrap();
    region.clone().deregister().unwrap();
}

/// A buffer comes back at once: what lies over it is put out of force.
#[test]
fn a_given_buffer_comes_back_from_under_its_windows() {
    let scene = Scene::new();
    let access = Access::LOCAL_WRITE | Access::MW_BIND;
    let owned = MemoryRegion::register(scene.home.clone(), vec![1; 64], access).unwrap();
    let window = scene.window(WindowType::Two);
    let all = owned.region().as_slice_all();
    bind(scene.here, &window, 1, WindowBinding::new(&all, WINDOW)).unwrap();
    let fast = scene.fast();
    register(scene.here, &fast, 1, Mapping::new([all], access - Access::MW_BIND)).unwrap();
    place(scene.here, window.rkey(), owned.region().addr(), b"!").unwrap();
    let (region, at) = (owned.region().clone(), owned.region().addr());
    let buffer = owned.deregister();
    assert_eq!(buffer[..2], *b"!\x01");
    assert!(!window.is_bound() && !fast.is_valid());
    assert_eq!(place(scene.here, window.rkey(), at, b"x"), Err(Refusal::InvalidStag));
    let to = WindowBinding::raw(&region, at, 1, WINDOW);
    assert_eq!(bind(scene.here, &window, 2, to), Err(MemoryError::Deregistered));
}

#[test]
fn memory_under_a_window_lives_as_long_as_the_binding() {
    let scene = Scene::new();
    let window = scene.window(WindowType::Two);
    let (here, base) = (scene.here, scene.region.addr());
    bind(here, &window, 1, scene.part(0, 8, WINDOW)).unwrap();
    let key = Stag::from_raw(scene.region.rkey());
    drop(scene);
    place(here, window.rkey(), base, b"still").unwrap();
    assert!(KeyTable::of_process().lookup(key).is_some());
    drop(window);
    assert!(KeyTable::of_process().lookup(key).is_none());
}

/// A fast-registered region may lie in several places; to peers it is one range.
#[test]
fn a_fast_registered_region_gathers_its_parts() {
    let scene = Scene::new();
    let Scene { home, here, region, .. } = &scene;
    let fast = scene.fast();
    let more = bindable(home, 16);
    let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ;
    let part = |from, to| region.slice(from..to).unwrap();
    let parts = [part(0, 5), part(100, 100), part(10, 13), more.slice(8..).unwrap()];
    register(*here, &fast, 3, Mapping::new(parts, access).iova(0x7000)).unwrap();
    let key = fast.rkey();
    assert_eq!(fast.remote(), RemoteMemory { addr: 0x7000, len: 16, rkey: key });
    assert_eq!(key, fast.rkey_with(3));
    place(*here, key, 0x7000, b"0123456789abcdef").unwrap();
    assert_eq!(contents(region)[..14], *b"01234\0\0\0\0\x00567\0");
    assert_eq!(contents(&more)[8..], *b"89abcdef");
    for (from, to) in [(0, 16), (4, 6), (5, 8), (7, 9), (15, 16)] {
        let octets = fetch(*here, key, 0x7000 + from as u64, to - from).unwrap();
        assert_eq!(octets, b"0123456789abcdef"[from..to]);
    }
    assert_eq!(fetch(*here, key, 0x7000 + 9, 8), Err(Refusal::Bounds));
    assert_eq!(place(*here, key, 0x6fff, b"xx"), Err(Refusal::Bounds));
    // It is local memory as well.
    let view = KeyTable::of_process().lookup(Stag::from_raw(key)).unwrap();
    assert_eq!(view.check_local(home.id, Access::LOCAL_WRITE, 0x7004, 4), Ok(4));
    view.copy_in(4, b"wxyz").unwrap();
    let mut back = [0; 6];
    view.copy_out(3, &mut back).unwrap();
    assert_eq!(&back, b"3wxyz8");
}

#[test]
fn what_a_fast_registered_region_cannot_have() {
    let scene = Scene::new();
    let Scene { home, here, elsewhere, region, .. } = &scene;
    let local = FastRegion::new(home.clone(), 64, 2, false).unwrap();
    let slice = |from, to| region.slice(from..to).unwrap();
    let try_it = |peer, mapping| {
        let done = register(peer, &local, 1, mapping);
        assert!(done.is_err() && !local.is_valid());
        done.unwrap_err()
    };
    let none = Access::empty();
    assert_eq!(
        try_it(*here, Mapping::new([slice(0, 65)], none)),
        MemoryError::OutOfBounds { offset: 0, len: 65, size: 64 }
    );
    assert_eq!(
        try_it(*here, Mapping::new([0, 8, 16].map(|at| slice(at, at + 1)), none)),
        MemoryError::TooManyRanges { have: 3, max: 2 }
    );
    let need = Access::REMOTE_READ;
    let mapping = Mapping::new([slice(0, 8)], need);
    assert_eq!(try_it(*here, mapping), MemoryError::Rights { need, have: none });
    let mapping = Mapping::new([slice(0, 8)], Access::REMOTE_WRITE);
    assert!(matches!(try_it(*here, mapping), MemoryError::NeedsLocalWrite { .. }));
    let mapping = Mapping::new([slice(0, 8)], Access::MW_BIND);
    assert!(matches!(try_it(*here, mapping), MemoryError::RightsOf { .. }));
    let mapping = Mapping::new([slice(0, 8)], none);
    assert_eq!(try_it(*elsewhere, mapping), MemoryError::ForeignDomain);
    let iova = u64::MAX - 6;
    let mapping = Mapping::new([slice(0, 8)], none).iova(iova);
    assert_eq!(try_it(*here, mapping), MemoryError::AddressWraps { at: iova, len: 8 });
    let read_only = MemoryRegion::alloc(home.clone(), 8, Access::REMOTE_READ).unwrap();
    let mapping = Mapping::new([read_only.as_slice_all()], Access::LOCAL_WRITE);
    let have = Access::REMOTE_READ;
    assert_eq!(try_it(*here, mapping), MemoryError::Rights { need: Access::LOCAL_WRITE, have });
    let gone = bindable(home, 8);
    let mapping = Mapping::new([gone.as_slice_all()], none);
    gone.deregister().unwrap();
    assert_eq!(try_it(*here, mapping), MemoryError::Deregistered);
    // A peer cannot invalidate what could never be its own.
    assert_eq!(invalidate_remotely(*here, local.rkey()), Err(Refusal::Rights));
    register(*here, &local, 1, Mapping::new([slice(0, 64)], none)).unwrap();
}

#[test]
fn memory_that_is_not_registered_otherwise() {
    let scene = Scene::new();
    let fast = scene.fast();
    let mut octets = [[1_u8; 8], [2; 8]];
    let [first, second] = octets.each_mut().map(|part| NonNull::from(part).cast::<u8>());
    let access = Access::LOCAL_WRITE | Access::REMOTE;
    // SAFETY: the octets outlive the registration, and are only looked at after it.
    let mapping = unsafe { Mapping::raw([(second, 8), (first, 4)], access) }.unwrap();
    register(scene.here, &fast, 1, mapping.iova(0)).unwrap();
    place(scene.here, fast.rkey(), 6, b"abcd").unwrap();
    invalidate(scene.here, fast.rkey()).unwrap();
    assert_eq!(octets, [*b"cd\x01\x01\x01\x01\x01\x01", *b"\x02\x02\x02\x02\x02\x02ab"]);
}

/// FC-061, SEC-04: whoever takes a window back, in whichever way, finds that nothing is placed any more.
#[test]
fn revocation_of_windows_is_final_during_streams_of_copies() {
    let rounds = if cfg!(miri) { 3 } else { 400 };
    let scene = Scene::new();
    let here = scene.here;
    for round in 0..rounds {
        let region = bindable(&scene.home, 64);
        let all = || WindowBinding::new(&region.as_slice_all(), WINDOW);
        let kind = if round % 2 == 0 { WindowType::One } else { WindowType::Two };
        let window = scene.window(kind);
        bind(here, &window, 1, all()).unwrap();
        let (key, at) = (window.rkey(), region.addr());
        thread::scope(|scope| {
            let peers: Vec<_> = (1..3_u8)
                .map(|stamp| {
                    scope.spawn(move || {
                        let mut placed = 0;
                        while place(here, key, at, &[stamp; 64]).is_ok() {
                            placed += 1;
                        }
                        placed
                    })
                })
                .collect();
            thread::yield_now();
            match round % 4 {
                0 => bind(here, &window, 2, all()).unwrap(),
                1 => invalidate(here, key).unwrap(),
                2 => bind(here, &window, 2, WindowBinding::none()).unwrap(),
                _ => window.clone().destroy().unwrap(),
            }
            region.fill(.., 9).unwrap();
            for peer in peers {
                let _: u64 = peer.join().unwrap();
            }
        });
        assert_eq!(contents(&region), [9; 64]);
    }
}

#[test]
fn windows_and_fast_regions_hold_their_domain_until_they_are_freed() {
    let parent = Arc::new(());
    let domain = || Domain { id: PdId::new(), parent: Arc::<()>::clone(&parent) };
    let window = MemoryWindow::new(domain(), WindowType::Two).unwrap();
    let fast = FastRegion::new(domain(), 1, 1, false).unwrap();
    assert_eq!(Arc::strong_count(&parent), 3);
    let (other, another) = (window.clone(), fast.clone());
    window.destroy().unwrap();
    fast.destroy().unwrap();
    assert_eq!(Arc::strong_count(&parent), 1, "though handles are left");
    assert_eq!(other.destroy(), Err(MemoryError::Deregistered));
    assert_eq!(another.destroy(), Err(MemoryError::Deregistered));
}
