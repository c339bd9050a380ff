//! The host: offers the words, sleeps, and adds up.

use std::{
    cell::{Cell, RefCell},
    rc::Rc,
    time::{Duration, Instant},
};

use iwarp_examples::{
    failure::{Context, Failure, Result},
    mailbox::{Grant, MESSAGE_MAX, Mailbox, write_note},
    wire::WireArgs,
};
use iwarp_verbs::{
    Access, Device, DeviceConfig, MemoryRegion, ProtectionDomain, QpConfig,
    cm::{CloseReason, ConnectRequest, Connection, ListenConfig, Listener},
};
use serde::{Deserialize, Serialize};
use tokio::task::JoinSet;

use crate::member::Told;

/// Where things are in the shared memory. A word of 64 bits each, so all are aligned.
pub(crate) mod place {
    /// Incremented by whoever wants to.
    pub(crate) const COUNTER: usize = 0;
    /// Number of the member that has the lock, or 0.
    pub(crate) const LOCK: usize = 8;
    /// Number of changes, and the sum of the numbers of the members that made them. Only under the lock.
    pub(crate) const ACCOUNT: usize = 16;
    pub(crate) const END: usize = 32;
}

/// What a member is told when it is accepted, in the private data.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct Offer {
    /// The shared memory.
    pub(crate) shared: Grant,
    /// The member's number, not 0.
    pub(crate) number: u64,
}

/// What came of it.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub(crate) struct Figures {
    pub(crate) members: u32,
    pub(crate) members_lost: u32,
    pub(crate) nanoseconds: u64,
    pub(crate) counter: u64,
    /// Changes of the account.
    pub(crate) turns: u64,
    /// `CompareSwaps` that it took to get the lock so often.
    pub(crate) tries: u64,
    /// Times that a member was lost while it had the lock.
    pub(crate) locks_freed: u32,
}

#[derive(Debug)]
pub(crate) struct Host {
    device: Device,
    pd: ProtectionDomain,
    listener: Listener,
    shared: MemoryRegion,
    members: u32,
    wire: WireArgs,
    figures: Cell<Figures>,
    told: RefCell<Vec<(u64, Told)>>,
}

impl Host {
    pub(crate) fn new(here: &str, members: u32, wire: WireArgs) -> Result<Rc<Self>> {
        if members == 0 {
            return Err(Failure::new("there must be members to wait for"));
        }
        let device = Device::open(DeviceConfig::from_env()?)?;
        let pd = device.alloc_pd();
        let listener =
            Listener::bind(&device, here, ListenConfig::default()).context("cannot listen")?;
        let access = Access::LOCAL_WRITE
            | Access::REMOTE_READ
            | Access::REMOTE_WRITE
            | Access::REMOTE_ATOMIC;
        let shared = pd.alloc(place::END, access)?;
        let (figures, told) = Default::default();
        Ok(Rc::new(Self { device, pd, listener, shared, members, wire, figures, told }))
    }

    pub(crate) fn listener(&self) -> &Listener {
        &self.listener
    }

    /// Waits for all members to come and go, and compares. To be run in a `LocalSet`.
    pub(crate) async fn run(self: Rc<Self>) -> Result<Figures> {
        let mut parts = JoinSet::new();
        let mut begun = None;
        for number in 1..=u64::from(self.members) {
            let request = self.listener.next().await;
            begun.get_or_insert_with(Instant::now);
            let peer = request.peer_addr();
            let host = Rc::clone(&self);
            parts.spawn_local(async move {
                if let Err(failure) = host.attend(request, number).await {
                    eprintln!("member {number} at {peer}: {failure}");
                    host.count(|figures| figures.members_lost += 1);
                }
            });
        }
        while let Some(part) = parts.join_next().await {
            part?;
        }
        let time = begun.map_or(Duration::ZERO, |begun| begun.elapsed());
        self.settle(time)
    }

    /// One member, from its request to its end.
    async fn attend(&self, request: ConnectRequest, number: u64) -> Result<()> {
        let sent = self.device.create_cq(4)?;
        let arrived = self.device.create_cq(4)?;
        let config =
            QpConfig::new(&sent).recv_cq(&arrived).max_recv_wr(1).max_inline_data(MESSAGE_MAX);
        let qp = self.pd.create_qp(&config)?;
        let mut mailbox = Mailbox::new(&self.pd, &qp, &arrived, 1)?;
        let offer = write_note(&Offer { shared: self.shared.remote().into(), number })?;
        let conn = request.accept(&qp, self.wire.param().private_data(offer))?.await?;
        let told: Result<Told> = mailbox.note().await;
        self.leave(&conn, number).await?;
        self.told.borrow_mut().push((number, told?));
        Ok(())
    }

    /// Waits until the member is gone. What it held of the lock is everybody's again.
    async fn leave(&self, conn: &Connection, number: u64) -> Result<()> {
        let reason = conn.closed().await;
        // Nothing of that member is carried out any more, and what others do to the word at the same moment is atomic
        // with this.
        if self.shared.compare_swap_u64(place::LOCK, number, 0)? == number {
            self.count(|figures| figures.locks_freed += 1);
            return Err(Failure::new("went away with the lock, which is free again"));
        }
        match reason {
            CloseReason::Orderly => Ok(()),
            reason => Err(reason.into()),
        }
    }

    fn count(&self, change: impl FnOnce(&mut Figures)) {
        let mut figures = self.figures.get();
        change(&mut figures);
        self.figures.set(figures);
    }

    /// Compares the words with what the members have told.
    fn settle(&self, time: Duration) -> Result<Figures> {
        let word = |at| self.shared.load_u64(at);
        let [counter, lock] = [word(place::COUNTER)?, word(place::LOCK)?];
        let [changes, by] = [word(place::ACCOUNT)?, word(place::ACCOUNT + 8)?];
        let told = self.told.borrow();
        let sum = |of: fn(&(u64, Told)) -> u64| told.iter().map(of).sum::<u64>();
        let increments = sum(|(_, told)| told.increments);
        let turns = sum(|(_, told)| told.turns);
        let owed = sum(|(number, told)| number * told.turns);
        let tries = sum(|(_, told)| told.tries);
        self.count(|figures| {
            figures.members = self.members;
            figures.counter = counter;
            figures.turns = changes;
            figures.tries = tries;
        });
        let mut figures = self.figures.get();
        figures.nanoseconds = u64::try_from(time.as_nanos())?;
        // One that was lost has told nothing of what it did.
        let lost = figures.members_lost > 0;
        let fits = |is: u64, told: u64| if lost { is >= told } else { is == told };
        for (what, is, told) in [
            ("the counter", counter, increments),
            ("the number of changes", changes, turns),
            ("the account", by, owed),
        ] {
            if !fits(is, told) {
                return Err(Failure::new(format_args!("{what} is {is}, and should be {told}")));
            }
        }
        if lock != 0 {
            return Err(Failure::new(format_args!("the lock is still with member {lock}")));
        }
        Ok(figures)
    }
}
