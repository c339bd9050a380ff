//! Protection domains: which queue pairs may touch which memory.

use std::sync::Arc;

use crate::attr::QpConfig;
use crate::cq::{CompletionQueue, Hold};
use crate::device::{Device, DeviceInner};
use crate::error::Error;
use crate::mem::{Domain, MemoryError, PdId};
use crate::qp::QueuePair;
use crate::srq::{SharedReceiveQueue, SrqConfig};
use crate::users::{Use, Used, User, Users};

/// A protection domain: queue pairs made from it can use the memory registered in it, and no other; so can
/// their peers, each within the rights of its queue pair (DDP-064).
///
/// A handle, cheap to clone. It keeps its device alive; queue pairs and regions keep their domain alive.
/// Memory is registered with `alloc`, `register` and `register_raw`.
#[derive(Debug, Clone)]
pub struct ProtectionDomain(pub(crate) Arc<PdInner>);

/// What all handles of a protection domain share.
#[derive(Debug)]
pub(crate) struct PdInner {
    pub(crate) id: PdId,
    pub(crate) device: Use<DeviceInner>,
    users: Users,
}

impl Used for PdInner {
    const WHAT: &'static str = "protection domain";

    fn users(&self) -> &Users {
        &self.users
    }
}

impl PdInner {
    pub(crate) fn new(device: &Arc<DeviceInner>) -> Arc<Self> {
        let device = Use::begin_or_keep(device, User::ProtectionDomain);
        Arc::new(Self { id: PdId::new(), device, users: Users::default() })
    }

    /// The domain as registered memory sees it: one for each region, which counts as a user until it is
    /// deregistered.
    pub(crate) fn domain(self: &Arc<Self>) -> Result<Domain, MemoryError> {
        self.domain_for(User::MemoryRegion)
    }

    /// The same, for this kind of user.
    pub(crate) fn domain_for(self: &Arc<Self>, user: User) -> Result<Domain, MemoryError> {
        if self.device.users().is_destroyed() {
            return Err(MemoryError::DomainDestroyed);
        }
        let parent = Use::begin(self, user).map_err(|error| match error {
            Error::Forked => MemoryError::Forked,
            _ => MemoryError::DomainDestroyed,
        })?;
        Ok(Domain { id: self.id, parent: Arc::new(parent) })
    }
}

impl ProtectionDomain {
    /// Makes a queue pair, in the state `Init`: not connected, receives may be posted.
    ///
    /// It gets exactly what `config` asks for. Does not block, and starts no thread.
    ///
    /// # Errors
    /// [`Error::Limit`] if more is asked for than the device offers; [`Error::ForeignDevice`] if a
    /// completion queue or the shared receive queue belongs to another one; [`Error::Destroyed`] if the domain,
    /// its device or one of them is gone; [`Error::CqOverrun`] if a completion queue has overrun.
    pub fn create_qp(&self, config: &QpConfig) -> Result<QueuePair, Error> {
        let device = &self.0.device;
        device.check_origin()?;
        config.check(&device.config.limits)?;
        if device.users().is_destroyed() {
            return Err(Error::Destroyed { what: DeviceInner::WHAT });
        }
        let pd = Use::begin(&self.0, User::QueuePair)?;
        let _hold_send = hold(device, &config.send_cq, "send completion queue")?;
        let _hold_recv = hold(device, &config.recv_cq, "receive completion queue")?;
        if let Some(srq) = &config.srq
            && !Arc::ptr_eq(srq.inner().device(), device)
        {
            return Err(Error::ForeignDevice { what: "shared receive queue" });
        }
        QueuePair::create(pd, config)
    }

    /// Makes a shared receive queue for memory of this domain. Takes memory as receives are posted.
    ///
    /// # Errors
    /// [`Error::Limit`] if more is asked for than the device offers, or a limit beyond the size;
    /// [`Error::Empty`] for a size of 0.
    pub fn create_srq(&self, config: &SrqConfig) -> Result<SharedReceiveQueue, Error> {
        SharedReceiveQueue::create(&self.0, config)
    }

    /// The device.
    #[must_use]
    pub fn device(&self) -> Device {
        Device(Arc::clone(&self.0.device))
    }

    /// Gives the domain up for all handles, unless something uses it.
    ///
    /// Not needed: the domain ends with its last user. It tells a program that believes to have cleaned
    /// up whether it has. What has been destroyed or deregistered does not count, though handles to it are left.
    ///
    /// # Errors
    /// [`Error::Busy`] while queue pairs, shared receive queues or regions use it, with the kind that has to go first;
    /// [`Error::Destroyed`] the second time.
    pub fn destroy(self) -> Result<(), Error> {
        self.0.device.check_origin()?;
        self.0.users.destroy(PdInner::WHAT)?;
        self.0.device.end();
        Ok(())
    }
}

/// Keeps a completion queue of the device from being destroyed.
fn hold<'a>(
    device: &Arc<DeviceInner>,
    cq: &'a CompletionQueue,
    what: &'static str,
) -> Result<Hold<'a>, Error> {
    if !Arc::ptr_eq(&cq.inner().device, device) {
        return Err(Error::ForeignDevice { what });
    }
    let hold = cq.inner().hold().ok_or(Error::Destroyed { what })?;
    // It would lose every completion.
    cq.inner().check_overrun()?;
    Ok(hold)
}
