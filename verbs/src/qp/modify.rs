//! Changes that a program asks for, and the end of what is outstanding.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::QpInner;
use super::state::{Action, QpEvent};
use crate::attr::{QpChange, QpState};
use crate::engine::{Asked, Caller};
use crate::error::Error;

impl QpInner {
    /// Changes state or attributes, all or nothing.
    pub(super) fn modify(self: &Arc<Self>, change: &QpChange) -> Result<(), Error> {
        self.device.check_origin()?;
        if self.is_gone() {
            return Err(Error::Destroyed { what: "queue pair" });
        }
        let refused = |state| Error::State { what: "change the state of the queue pair", state };
        if change.state == Some(QpState::Init) {
            self.check_queues()?;
        }
        if change.state == Some(QpState::Reset) {
            change.check(self.state.get())?;
            return self.reset();
        }
        self.send_gathered();
        let action = {
            // With no pass running, so that none goes on under what was before.
            let mut engine = self.engine.lock();
            change.check(self.state.get())?;
            let mut connection = self.connection.lock();
            if let Some(ord) = change.ord.filter(|&ord| ord > connection.ord_max) {
                let (asked, max) = (ord.into(), connection.ord_max.into());
                return Err(Error::Limit { what: "outstanding Reads (ORD)", asked, max });
            }
            // The last thing that may fail: the connection may just be ending.
            let action = match change.state {
                Some(to) => self.state.step(QpEvent::Modify(to)).map_err(refused)?,
                None => Action::None,
            };
            if let Some(ord) = change.ord {
                connection.ord = ord;
                engine.set_ord(ord);
            }
            if let Some(access) = change.remote_access {
                self.remote_access.store(access.bits(), Ordering::Relaxed);
            }
            if change.notify_drained {
                self.ask(Asked::TELL_DRAINED);
            }
            action
        };
        self.act(action);
        if change.ord.is_some() {
            // Reads may have waited for it.
            self.drive(Caller::Post);
        }
        Ok(())
    }

    /// Resolves when nothing is left that was posted, in `Err`.
    pub(super) async fn drained(&self) -> Result<(), Error> {
        loop {
            let closed = self.closed.listen();
            {
                let engine = self.engine.lock();
                if self.is_gone() {
                    return Err(Error::Destroyed { what: "queue pair" });
                }
                if !engine.is_connected() && self.sq.is_empty() && self.rq.is_empty() {
                    return Ok(());
                }
            }
            closed.await;
        }
    }

    /// Back to a fresh queue pair, if nothing is outstanding and no connection is left.
    fn reset(&self) -> Result<(), Error> {
        let mut engine = self.engine.lock();
        let idle = !engine.is_connected() && self.sq.is_empty() && self.rq.is_empty();
        let idle = idle && engine.is_told(self);
        let modify = QpEvent::Modify(QpState::Reset);
        match self.state.step_if(modify, |action| idle || action != Action::Reset) {
            Ok(_) => {
                engine.renew();
                self.connection.lock().forget_limits();
                // SEC-02: whoever is connected next is another stream.
                self.end_windows();
                Ok(())
            }
            Err(QpState::Init | QpState::Err) => {
                Err(Error::Busy { what: "queue pair", users: 1, by: "connection or work queue" })
            }
            Err(state) => Err(Error::State { what: "change the state of the queue pair", state }),
        }
    }
}
