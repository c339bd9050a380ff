//! Protection domains: which queue pairs may touch which memory.

use std::sync::Arc;

use crate::attr::QpConfig;
use crate::cq::{CompletionQueue, Hold};
use crate::device::{Device, DeviceInner};
use crate::error::Error;
use crate::mem::{Domain, PdId};
use crate::qp::QueuePair;

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
    pub(crate) device: Arc<DeviceInner>,
}

impl PdInner {
    pub(crate) fn new(device: &Arc<DeviceInner>) -> Arc<Self> {
        Arc::new(Self { id: PdId::new(), device: Arc::clone(device) })
    }

    /// The domain as registered memory sees it. The region holds this object until it is deregistered.
    pub(crate) fn domain(self: &Arc<Self>) -> Domain {
        Domain { id: self.id, parent: Arc::<Self>::clone(self) }
    }
}

impl ProtectionDomain {
    /// Makes a queue pair, in the state `Init`: not connected, receives may be posted.
    ///
    /// It gets exactly what `config` asks for. Does not block, and starts no thread.
    ///
    /// # Errors
    /// [`Error::Limit`] if more is asked for than the device offers; [`Error::ForeignDevice`] if a
    /// completion queue belongs to another one; [`Error::Destroyed`] if a completion queue is gone.
    pub fn create_qp(&self, config: &QpConfig) -> Result<QueuePair, Error> {
        let device = &self.0.device;
        config.check(&device.config.limits)?;
        let _hold_send = hold(device, &config.send_cq, "send completion queue")?;
        let _hold_recv = hold(device, &config.recv_cq, "receive completion queue")?;
        QueuePair::create(&self.0, config)
    }

    /// The device.
    #[must_use]
    pub fn device(&self) -> Device {
        Device(Arc::clone(&self.0.device))
    }

    /// Gives the domain up, unless something uses it.
    ///
    /// Not needed: the domain ends with its last user. It tells a program that believes to have cleaned
    /// up whether it has.
    ///
    /// # Errors
    /// [`Error::Busy`] while queue pairs, regions or other handles exist.
    pub fn destroy(self) -> Result<(), Error> {
        match Arc::try_unwrap(self.0) {
            Ok(_) => Ok(()),
            Err(shared) => Err(Error::Busy {
                what: "protection domain",
                users: Arc::strong_count(&shared).saturating_sub(1),
                by: "queue pairs, regions or handles",
            }),
        }
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
    cq.inner().hold().ok_or(Error::Destroyed { what })
}
