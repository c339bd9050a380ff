//! [`Tenants`]: windows and fast registrations that lie over a region, and what they keep it from.

use std::sync::Weak;

use super::{MemoryError, Region};
use crate::sync::Mutex;

/// Why a view holds on to a region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Tenancy {
    /// A window is bound: the region can be neither deregistered nor invalidated.
    Window,
    /// A fast-registered region has octets of it: the region cannot be deregistered.
    Mapping,
}

/// Who has a lease of a region's memory.
///
/// A tenant enters before its own key opens and leaves after nobody moves octets through that key any
/// more. So a region that is shut while it has no tenant stays without, and its memory is in nobody's
/// hands but its own.
#[derive(Debug)]
pub(super) struct Tenants<T = Weak<Region>>(Mutex<House<T>>);

#[derive(Debug)]
struct House<T> {
    windows: u32,
    mappings: u32,
    shut: bool,
    /// Those that entered, and some that have left since.
    guests: Vec<T>,
}

impl<T> Tenants<T> {
    pub(super) fn new() -> Self {
        Self(Mutex::new(House { windows: 0, mappings: 0, shut: false, guests: Vec::new() }))
    }

    /// Takes a tenant in, unless the region is shut or `refuses`, which is asked with the house locked.
    pub(super) fn enter(
        &self,
        tenancy: Tenancy,
        guest: T,
        gone: impl Fn(&T) -> bool,
        refuses: impl FnOnce() -> Result<(), MemoryError>,
    ) -> Result<(), MemoryError> {
        let mut house = self.0.lock();
        if house.shut {
            return Err(MemoryError::Deregistered);
        }
        refuses()?;
        match tenancy {
            Tenancy::Window => house.windows += 1,
            Tenancy::Mapping => house.mappings += 1,
        }
        if house.guests.len() == house.guests.capacity() {
            house.guests.retain(|guest| !gone(guest));
        }
        house.guests.push(guest);
        Ok(())
    }

    pub(super) fn leave(&self, tenancy: Tenancy) {
        let mut house = self.0.lock();
        match tenancy {
            Tenancy::Window => house.windows -= 1,
            Tenancy::Mapping => house.mappings -= 1,
        }
    }

    /// Windows that are bound.
    pub(super) fn windows(&self) -> u32 {
        self.0.lock().windows
    }

    /// Does something that no window may be bound for, and none can be meanwhile.
    pub(super) fn without_windows(&self, then: impl FnOnce()) -> Result<(), MemoryError> {
        let house = self.0.lock();
        if house.windows > 0 {
            return Err(house.busy());
        }
        then();
        Ok(())
    }

    /// Takes nobody in from here on, or fails if somebody is there.
    pub(super) fn shut(&self) -> Result<(), MemoryError> {
        let mut house = self.0.lock();
        if !house.shut && house.windows + house.mappings > 0 {
            return Err(house.busy());
        }
        house.shut = true;
        Ok(())
    }

    /// Takes nobody in from here on, and gives all who may be there, to be put out.
    pub(super) fn shut_on(&self) -> Vec<T> {
        let mut house = self.0.lock();
        house.shut = true;
        std::mem::take(&mut house.guests)
    }
}

impl<T> House<T> {
    fn busy(&self) -> MemoryError {
        MemoryError::InUse { windows: self.windows, registrations: self.mappings }
    }
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use super::*;

    #[test]
    fn a_house_with_tenants_is_not_shut() {
        let tenants = Tenants::new();
        tenants.enter(Tenancy::Window, 1, |_| false, || Ok(())).unwrap();
        tenants.enter(Tenancy::Mapping, 2, |_| false, || Ok(())).unwrap();
        let busy = Err(MemoryError::InUse { windows: 1, registrations: 1 });
        assert_eq!(tenants.shut(), busy);
        assert_eq!(tenants.without_windows(|| panic!("a window is bound")), busy);
        tenants.leave(Tenancy::Window);
        let mut done = false;
        tenants.without_windows(|| done = true).unwrap();
        assert!(done && tenants.shut().is_err());
        tenants.leave(Tenancy::Mapping);
        tenants.shut().unwrap();
        let refused = tenants.enter(Tenancy::Mapping, 3, |_| false, || Ok(()));
        assert_eq!(refused, Err(MemoryError::Deregistered));
        tenants.shut().unwrap();
    }

    #[test]
    fn a_refused_guest_is_not_counted() {
        let tenants = Tenants::new();
        let refused =
            tenants.enter(Tenancy::Window, 1, |_| false, || Err(MemoryError::Invalidated));
        assert_eq!(refused, Err(MemoryError::Invalidated));
        assert_eq!(tenants.windows(), 0);
        assert!(tenants.shut_on().is_empty());
    }

    #[test]
    fn those_who_left_are_forgotten_in_time() {
        let tenants = Tenants::new();
        for guest in 0..100 {
            tenants.enter(Tenancy::Window, guest, |&guest| guest < 90, || Ok(())).unwrap();
            tenants.leave(Tenancy::Window);
        }
        assert!(tenants.shut_on().len() < 20);
    }
}

#[cfg(test)]
#[cfg(loom)]
mod loom_tests {
    use loom::sync::Arc;
    use loom::sync::atomic::{AtomicU32, Ordering};
    use loom::thread;

    use super::*;
    use crate::mem::use_count::UseCount;

    /// A region's memory, a window over it, and the table that leads to the window: `published` is set
    /// when the window's key opens.
    struct Model {
        octet: AtomicU32,
        tenants: Tenants<()>,
        published: AtomicU32,
        window: UseCount,
    }

    impl Model {
        fn new() -> Arc<Self> {
            Arc::new(Self {
                octet: AtomicU32::new(0),
                tenants: Tenants::new(),
                published: AtomicU32::new(0),
                window: UseCount::new(),
            })
        }

        fn bind(&self) -> bool {
            let entered = self.tenants.enter(Tenancy::Window, (), |()| false, || Ok(())).is_ok();
            if entered {
                self.published.store(1, Ordering::Release);
            }
            entered
        }

        fn unbind(&self) {
            self.window.close();
            self.window.wait_idle();
            self.tenants.leave(Tenancy::Window);
        }

        /// What a peer does that knows the window's key.
        fn place(&self) {
            if self.published.load(Ordering::Acquire) == 1 && self.window.enter() {
                self.octet.store(1, Ordering::Relaxed);
                self.window.leave();
            }
        }
    }

    fn modelled(check: impl Fn() + Send + Sync + 'static) {
        let mut model = loom::model::Builder::new();
        model.preemption_bound = Some(3);
        model.check(check);
    }

    /// FC-061, SEC-04: a region that could be deregistered beside the unbinding of its last window is in
    /// nobody's hands: what its owner writes then stays.
    #[test]
    fn loom_the_last_window_leaves_before_the_region() {
        modelled(|| {
            let model = Model::new();
            assert!(model.bind());
            let peer = {
                let model = Arc::clone(&model);
                thread::spawn(move || model.place())
            };
            let unbinder = {
                let model = Arc::clone(&model);
                thread::spawn(move || model.unbind())
            };
            let ended = model.tenants.shut().is_ok();
            if ended {
                model.octet.store(9, Ordering::Relaxed);
            }
            peer.join().expect("the peer");
            unbinder.join().expect("who unbinds");
            assert!(!ended || model.octet.load(Ordering::Relaxed) == 9, "placed after the end");
        });
    }

    /// FC-061: of a bind and a deregistration at once exactly one is done.
    #[test]
    fn loom_a_window_is_bound_or_the_region_ends() {
        modelled(|| {
            let model = Model::new();
            let binder = {
                let model = Arc::clone(&model);
                thread::spawn(move || {
                    let bound = model.bind();
                    model.place();
                    bound
                })
            };
            let ended = model.tenants.shut().is_ok();
            if ended {
                model.octet.store(9, Ordering::Relaxed);
            }
            let bound = binder.join().expect("who binds");
            assert_ne!(bound, ended);
            assert_eq!(model.octet.load(Ordering::Relaxed), if ended { 9 } else { 1 });
        });
    }
}
