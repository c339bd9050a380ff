//! The dispatcher: one shared receive queue, one completion queue, and as many workers as come.

use std::{
    collections::HashMap,
    time::{Duration, Instant},
};

use indicatif::{ProgressBar, ProgressStyle};
use iwarp_examples::{
    failure::{Context, Failure, Result},
    human::Octets,
    mailbox::{MESSAGE_MAX, read_note, write_note},
    pattern::Pattern,
    wire::WireArgs,
};
use iwarp_verbs::{
    Access, AsyncEvent, AsyncEventKind, CompletionQueue, Device, DeviceConfig, MemoryRegion,
    ProtectionDomain, QpConfig, QpState, QueuePair, RecvRequest, RemoteMemory, SendRequest,
    SharedReceiveQueue, SrqChange, SrqConfig, WorkCompletion,
    cm::{ConnectRequest, ListenConfig, Listener},
};
use serde::Serialize;
use sha2::{Digest, Sha256};

use crate::{
    board::Board,
    worker::{HEADER, Note, Offer, RESULT, SLOTS},
};

const MESSAGE: usize = MESSAGE_MAX as usize;
/// How long workers may take to leave when all is done.
const FAREWELL: Duration = Duration::from_secs(10);

/// What there is to do.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Plan {
    pub(crate) jobs: u32,
    pub(crate) size: Octets,
    pub(crate) receives: u32,
    /// No progress is shown.
    pub(crate) quiet: bool,
}

/// What came of it.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub(crate) struct Figures {
    pub(crate) jobs: u32,
    pub(crate) octets_each: u64,
    pub(crate) nanoseconds: u64,
    pub(crate) workers: u32,
    pub(crate) workers_lost: u32,
    pub(crate) handed_out_again: u64,
    pub(crate) receives: u32,
    /// Receives that one worker held at most.
    pub(crate) most_held: u32,
    /// Times that a worker's message waited for a receive.
    pub(crate) held_back: u64,
    /// Times that fewer than a quarter of the receives were left.
    pub(crate) limits_reached: u32,
}

/// A worker, as the dispatcher sees it.
#[derive(Debug)]
struct Worker {
    qp: QueuePair,
    /// Where its jobs go, once it has told.
    jobs: Option<RemoteMemory>,
    /// What is being written there.
    staging: MemoryRegion,
    /// The job in each slot.
    slots: [Option<u32>; SLOTS],
}

#[derive(Debug)]
pub(crate) struct Dispatcher {
    device: Device,
    pd: ProtectionDomain,
    listener: Listener,
    /// All that completes: receives and Writes of all workers.
    cq: CompletionQueue,
    srq: SharedReceiveQueue,
    /// Where messages land.
    room: MemoryRegion,
    results: MemoryRegion,
    plan: Plan,
    size: usize,
    wire: WireArgs,
    board: Board,
    /// By the number of their queue pairs.
    workers: HashMap<u32, Worker>,
    figures: Figures,
}

impl Dispatcher {
    pub(crate) fn new(here: &str, plan: Plan, wire: WireArgs) -> Result<Self> {
        let size = u32::try_from(plan.size.0).context("a job of that size")? as usize;
        if plan.jobs == 0 || plan.receives == 0 {
            return Err(Failure::new("there must be jobs to do and receives to share"));
        }
        let device = Device::open(DeviceConfig::from_env()?)?;
        let pd = device.alloc_pd();
        let cq = device.create_cq(1 << 16)?;
        let limit = plan.receives.div_ceil(4);
        let srq = pd.create_srq(&SrqConfig { max_wr: plan.receives, max_sge: 1, limit })?;
        let room = pd.alloc(plan.receives as usize * MESSAGE, Access::LOCAL_WRITE)?;
        let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
        let results = pd.alloc(plan.jobs as usize * RESULT, access)?;
        let listener =
            Listener::bind(&device, here, ListenConfig::default()).context("cannot listen")?;
        let figures = Figures {
            jobs: plan.jobs,
            octets_each: plan.size.0,
            receives: plan.receives,
            ..Figures::default()
        };
        let board = Board::new(plan.jobs);
        let workers = HashMap::new();
        let this = Self {
            device,
            pd,
            listener,
            cq,
            srq,
            room,
            results,
            plan,
            size,
            wire,
            board,
            workers,
            figures,
        };
        for id in 0..u64::from(plan.receives) {
            this.post_recv(id)?;
        }
        Ok(this)
    }

    pub(crate) fn listener(&self) -> &Listener {
        &self.listener
    }

    /// Hands out jobs until all are done, and lets the workers go. To be run in a `LocalSet`.
    pub(crate) async fn run(mut self) -> Result<Figures> {
        let bar = if self.plan.quiet { ProgressBar::hidden() } else { bar(self.plan.jobs) };
        let mut begun = None;
        while self.board.left() > 0 {
            self.step().await?;
            if begun.is_none() && !self.workers.is_empty() {
                begun = Some(Instant::now());
            }
            bar.set_position((self.plan.jobs - self.board.left()).into());
        }
        let time = begun.map_or(Duration::ZERO, |begun| begun.elapsed());
        self.figures.nanoseconds = u64::try_from(time.as_nanos())?;
        bar.finish_and_clear();
        for worker in self.workers.values() {
            let note = SendRequest::send_inline(0, write_note(&Note::Done)?);
            if worker.qp.post_send(note).is_err() {
                // It is still connecting, and finds that there is nothing to do.
                worker.qp.modify(QpState::Err)?;
            }
        }
        let leave = async {
            while !self.workers.is_empty() {
                self.step().await?;
            }
            Ok::<_, Failure>(())
        };
        match tokio::time::timeout(FAREWELL, leave).await {
            Ok(left) => left?,
            // Their connections end with this program.
            Err(_) => eprintln!("work_queue: some workers did not leave in time"),
        }
        self.figures.handed_out_again = self.board.handed_out_again();
        Ok(self.figures)
    }

    async fn step(&mut self) -> Result<()> {
        tokio::select! {
            request = self.listener.next() => self.greet(request),
            done = self.cq.next() => self.completed(&done?),
            event = self.device.async_event() => self.happened(&event?),
        }
    }

    /// Takes a worker on: its queue pair has no receives, and needs none.
    fn greet(&mut self, request: ConnectRequest) -> Result<()> {
        let peer = request.peer_addr();
        let slots = u32::try_from(SLOTS)?;
        let config = QpConfig::new(&self.cq)
            .shared_receive_queue(&self.srq)
            // SEC-12: whoever sends more than it has jobs for waits, and not the others.
            .max_shared_receives(2 * slots)
            .max_send_wr(4 * slots)
            .max_inline_data(MESSAGE_MAX);
        let qp = self.pd.create_qp(&config)?;
        let size = u32::try_from(self.size)?;
        let offer = write_note(&Offer { results: self.results.remote().into(), size })?;
        let accepting = request.accept(&qp, self.wire.param().private_data(offer))?;
        let staging = self.pd.alloc(SLOTS * (HEADER + self.size), Access::empty())?;
        self.figures.workers += 1;
        let worker = Worker { qp: qp.clone(), jobs: None, staging, slots: [None; SLOTS] };
        self.workers.insert(qp.number(), worker);
        tokio::task::spawn_local(async move {
            match accepting.await {
                // Its end is an event of the device; this only says why.
                Ok(connection) => drop(connection.closed().await),
                Err(failure) => eprintln!("worker {peer}: {failure}"),
            }
        });
        Ok(())
    }

    fn completed(&mut self, done: &WorkCompletion) -> Result<()> {
        if !done.opcode.is_receive() {
            // A Write that failed: its worker is lost, and the event that says so takes care of its jobs.
            return Ok(());
        }
        if done.is_success() {
            let held = self.srq.holders().into_iter().map(|(_, held)| held).max().unwrap_or(0);
            // This one has just been given back.
            self.figures.most_held = self.figures.most_held.max(held + 1);
            match done.imm_data {
                Some(job) => self.result(done.qp_num, job)?,
                None => self.message(done)?,
            }
        }
        // Whatever became of it, the receive is ours again.
        self.post_recv(done.wr_id)
    }

    /// A worker says that it is ready.
    fn message(&mut self, done: &WorkCompletion) -> Result<()> {
        let at = usize::try_from(done.wr_id)? * MESSAGE;
        let mut octets = vec![0; done.byte_len as usize];
        self.room.read_at(at, &mut octets)?;
        let Some(worker) = self.workers.get_mut(&done.qp_num) else { return Ok(()) };
        let needed = (SLOTS * (HEADER + self.size)) as u64;
        match read_note(&octets).map(|note| match note {
            Note::Ready(jobs) => Some(RemoteMemory::from(jobs)),
            Note::Done => None,
        }) {
            Ok(Some(jobs)) if jobs.len >= needed => worker.jobs = Some(jobs),
            Ok(_) | Err(_) => {
                eprintln!("work_queue: a peer that is no worker is sent away");
                worker.qp.disconnect();
                return Ok(());
            }
        }
        for slot in 0..SLOTS {
            self.hand_out(done.qp_num, slot)?;
        }
        Ok(())
    }

    /// A result is in the table.
    fn result(&mut self, number: u32, job: u32) -> Result<()> {
        let Some(worker) = self.workers.get_mut(&number) else { return Ok(()) };
        let Some(slot) = worker.slots.iter().position(|&in_slot| in_slot == Some(job)) else {
            eprintln!("work_queue: a worker that answers what it was not asked is sent away");
            worker.qp.disconnect();
            return Ok(());
        };
        worker.slots[slot] = None;
        let mut result = [0; RESULT];
        self.results.read_at(job as usize * RESULT, &mut result)?;
        if result[..] != Sha256::digest(data(job, self.size))[..] {
            return Err(Failure::new(format_args!("the result of job {job} is wrong")));
        }
        if !self.board.done(job) {
            return Err(Failure::new(format_args!("job {job} was done twice")));
        }
        self.hand_out(number, slot)
    }

    /// Writes the next job into a slot of a worker; the number that goes along tells it which.
    fn hand_out(&mut self, number: u32, slot: usize) -> Result<()> {
        let Some(worker) = self.workers.get_mut(&number) else { return Ok(()) };
        let (Some(jobs), None) = (worker.jobs, worker.slots[slot]) else { return Ok(()) };
        let Some(job) = self.board.next() else { return Ok(()) };
        let len = HEADER + self.size;
        let at = slot * len;
        worker.staging.write_at(at, &u64::from(job).to_le_bytes())?;
        worker.staging.write_at(at + HEADER, &data(job, self.size))?;
        let there = jobs.slice(at as u64..(at + len) as u64)?;
        let from = worker.staging.slice(at..at + len)?;
        // If it is lost already the Write is flushed, and the job handed out again.
        worker.slots[slot] = Some(job);
        let slot = u32::try_from(slot)?;
        Ok(worker.qp.post_send(SendRequest::write_with_imm(0, from, there, slot))?)
    }

    fn happened(&mut self, event: &AsyncEvent) -> Result<()> {
        match event.kind() {
            // Few receives are left. A program could post more; this one wants to know how often.
            AsyncEventKind::SrqLimitReached => {
                self.figures.limits_reached += 1;
                let limit = Some(self.plan.receives.div_ceil(4));
                Ok(self.srq.modify(SrqChange { limit, ..SrqChange::default() })?)
            }
            // A worker is gone, in order or not: nothing more of it will come.
            AsyncEventKind::QpLastWqeReached => {
                let number = event.source().queue_pair_number();
                self.lose(number.unwrap_or_default())
            }
            _ => Ok(()),
        }
    }

    fn lose(&mut self, number: u32) -> Result<()> {
        // What it had finished before counts: its results are in the completion queue.
        while let Some(done) = self.cq.poll_one() {
            self.completed(&done)?;
        }
        let Some(worker) = self.workers.remove(&number) else { return Ok(()) };
        self.figures.held_back += worker.qp.stats().held_back;
        if self.board.left() > 0 {
            self.figures.workers_lost += 1;
        }
        worker.slots.into_iter().flatten().for_each(|job| self.board.again(job));
        // Others may have nothing to do by now.
        let free: Vec<_> = self.workers.keys().copied().collect();
        for number in free {
            for slot in 0..SLOTS {
                self.hand_out(number, slot)?;
            }
        }
        Ok(())
    }

    fn post_recv(&self, id: u64) -> Result<()> {
        let at = usize::try_from(id)? * MESSAGE;
        let room = self.room.slice(at..at + MESSAGE)?;
        Ok(self.srq.post_recv(RecvRequest::new(id, room))?)
    }
}

/// What a job is about: both ends could tell, but the worker does not look.
fn data(job: u32, size: usize) -> Vec<u8> {
    Pattern::new(job.into()).octets(0, size)
}

fn bar(jobs: u32) -> ProgressBar {
    let style = ProgressStyle::with_template(
        "{bar:40} {percent:>3}% {pos}/{len} jobs {per_sec} {eta} left",
    );
    // On standard error, and nothing at all where that is no terminal.
    ProgressBar::new(jobs.into()).with_style(style.expect("a template without mistakes"))
}
