//! A member: increments, and takes its turns with the lock.

use std::{net::SocketAddr, time::Duration};

use indicatif::{ProgressBar, ProgressStyle};
use iwarp_examples::{
    failure::{Failure, Result, connected, what_ended},
    human::Time,
    mailbox::{MESSAGE_MAX, read_note, write_note},
    wire::WireArgs,
};
use iwarp_verbs::{
    Access, Device, DeviceConfig, MemoryRegion, QpConfig, RemoteMemory, SendRequest,
    cm::{self, Connection},
};
use serde::{Deserialize, Serialize};

use crate::host::{Offer, place};

/// Whoever looks on may wonder what takes so long.
const WORTH_TELLING: Duration = Duration::from_secs(1);

/// What a member does.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Plan {
    pub(crate) increments: u64,
    pub(crate) turns: u64,
    /// Time with the lock besides its work.
    pub(crate) keeps: Option<Duration>,
}

/// What it has done, told to the host in the end.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Told {
    pub(crate) increments: u64,
    pub(crate) turns: u64,
    /// `CompareSwaps` for the lock.
    pub(crate) tries: u64,
}

/// A connection to a host.
#[derive(Debug)]
pub(crate) struct Member {
    conn: Connection,
    number: u64,
    shared: RemoteMemory,
    /// Where answers go, laid out as the shared memory.
    local: MemoryRegion,
}

impl Member {
    pub(crate) async fn connect(there: &str, wire: &WireArgs) -> Result<Self> {
        let device = Device::open(DeviceConfig::from_env()?)?;
        let pd = device.alloc_pd();
        let cq = device.create_cq(16)?;
        let qp = pd.create_qp(&QpConfig::new(&cq).max_inline_data(MESSAGE_MAX))?;
        let local = pd.alloc(place::END, Access::LOCAL_WRITE)?;
        let conn = connected(cm::connect(there, &qp, wire.param())?).await?;
        let Offer { shared, number } = read_note(conn.private_data())?;
        Ok(Self { conn, number, shared: shared.into(), local })
    }

    /// The number that the host gave it.
    pub(crate) fn number(&self) -> u64 {
        self.number
    }

    /// Where its host is.
    pub(crate) fn host(&self) -> SocketAddr {
        self.conn.peer_addr()
    }

    /// Does all that is planned, and tells the host.
    pub(crate) async fn run(self, plan: Plan, quiet: bool) -> Result<Told> {
        match self.take_part(plan, quiet).await {
            Ok(told) => {
                self.conn.close().await;
                Ok(told)
            }
            Err(failure) => Err(what_ended(&self.conn, failure).await),
        }
    }

    async fn take_part(&self, plan: Plan, quiet: bool) -> Result<Told> {
        let bar = if quiet { ProgressBar::hidden() } else { bar(plan.increments + plan.turns) };
        let mut told = Told::default();
        // Both kinds take turns, in the proportion in which they are asked for.
        while told.increments < plan.increments || told.turns < plan.turns {
            let behind = u128::from(told.turns) * u128::from(plan.increments)
                <= u128::from(told.increments) * u128::from(plan.turns);
            if told.turns < plan.turns && (behind || told.increments == plan.increments) {
                told.tries += self.turn(plan.keeps, quiet).await?;
                told.turns += 1;
            } else {
                self.increment(told.increments).await?;
                told.increments += 1;
            }
            bar.set_position(told.increments + told.turns);
        }
        bar.finish_and_clear();
        self.conn.send_inline(write_note(&told)?).await?;
        Ok(told)
    }

    async fn increment(&self, before: u64) -> Result<()> {
        let at = place::COUNTER;
        let found = self.conn.fetch_add(self.local.slice(at..at + 8)?, self.word(at)?, 1).await?;
        if found < before {
            return Err(Failure::new(format_args!(
                "the counter was {found} after {before} increments of this member alone"
            )));
        }
        Ok(())
    }

    /// Takes the lock, changes the account, gives the lock back. Returns how often it tried.
    async fn turn(&self, keeps: Option<Duration>, quiet: bool) -> Result<u64> {
        let (lock, account) = (place::LOCK, place::ACCOUNT);
        let answer = self.local.slice(lock..lock + 8)?;
        let mut tries = 1;
        while self.conn.compare_swap(answer.clone(), self.word(lock)?, 0, self.number).await? != 0 {
            tries += 1;
            tokio::task::yield_now().await;
        }
        let there = self.shared.slice(account as u64..place::END as u64)?;
        self.conn.read(self.local.slice(account..)?, there).await?;
        for (at, more) in [(account, 1), (account + 8, self.number)] {
            self.local.store_u64(at, self.local.load_u64(at)? + more)?;
        }
        if let Some(time) = keeps {
            if time >= WORTH_TELLING && !quiet {
                println!("member {} has the lock for {}", self.number, Time(time));
            }
            tokio::time::sleep(time).await;
        }
        let write = SendRequest::write(0, self.local.slice(account..)?, there);
        self.conn.request(write).await?;
        // The Write need not have arrived yet: the Atomic waits for it there.
        let owner = self.conn.swap(answer, self.word(lock)?, 0).await?;
        if owner != self.number {
            return Err(Failure::new(format_args!(
                "member {owner} had the lock at the same time as member {}",
                self.number
            )));
        }
        Ok(tries)
    }

    fn word(&self, at: usize) -> Result<RemoteMemory> {
        Ok(self.shared.slice(at as u64..at as u64 + 8)?)
    }
}

fn bar(steps: u64) -> ProgressBar {
    let style = ProgressStyle::with_template("{bar:40} {pos}/{len} steps, {eta} left");
    // On standard error, and nothing at all where that is no terminal.
    ProgressBar::new(steps).with_style(style.expect("a template without mistakes"))
}
