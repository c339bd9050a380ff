//! Devices, memory and connections of a case.

use std::collections::VecDeque;
use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail};
use iwarp_verbs::cm::{self, CloseReason, Connecting, Connection, ListenConfig, Listener};
use iwarp_verbs::{
    Access, CompletionQueue, Device, DeviceConfig, MemoryRegion, ProtectionDomain, QpConfig,
    QueuePair, RecvRequest, RemoteMemory, WorkCompletion,
};

use crate::case::{ATOMIC, Case, ORD_MOST, Op, Pace, Stream, Wait, Work};
use crate::control::Stop;
use crate::memory;
use crate::paced::SLOTS;

const LIMIT: Duration = Duration::from_secs(10);
/// Set-ups that go on at once.
const AT_ONCE: usize = 64;
const BACKLOG: u32 = 4096;
/// Octets of the bulk message of a fairness case.
pub(super) const BULK: usize = 1 << 20;
/// Receives that are posted for a stream of Sends or of Writes with immediate data, for each that the sender may have
/// outstanding.
const RECEIVES_PER_SEND: usize = 2;

/// One end of the connections of a case.
pub(super) struct Session {
    pub(super) pd: ProtectionDomain,
    pub(super) cq: CompletionQueue,
    pub(super) ends: Vec<End>,
    /// What is sent from here.
    pub(super) source: MemoryRegion,
    /// Where messages come in, and what a peer may read.
    pub(super) memory: MemoryRegion,
    device: Device,
    pub(super) receives: usize,
    config: Sizes,
}

/// One end of one connection.
pub(super) struct End {
    pub(super) qp: QueuePair,
    pub(super) conn: Connection,
    /// The peer's memory.
    pub(super) remote: RemoteMemory,
}

#[derive(Clone, Copy)]
struct Sizes {
    memory: usize,
    send: u32,
    receive: u32,
    inline: u32,
    reads: u16,
    connections: usize,
}

impl Sizes {
    fn of(case: &Case) -> Self {
        let mut sizes = Self {
            memory: case.size.max(8),
            send: 128,
            receive: 128,
            inline: u32::try_from(case.wire.inline.min(case.size)).unwrap_or(0),
            reads: 16,
            connections: 1,
        };
        match case.work {
            Work::Stream(s) => {
                sizes.memory = (case.size * s.footprint).max(8);
                sizes.send = s.depth as u32 + 2;
                sizes.receive = (s.depth * RECEIVES_PER_SEND).max(64) as u32;
                sizes.reads = s.depth.clamp(1, ORD_MOST) as u16;
                sizes.connections = s.connections;
            }
            Work::Idle { connections } => sizes.connections = connections + 1,
            Work::Fairness { .. } => sizes.memory = BULK,
            Work::Target { .. } => sizes.memory = SLOTS * 8,
            Work::PingPong { .. } => {}
        }
        sizes
    }
}

impl Session {
    fn open(case: &Case, sizes: Sizes) -> Result<Self> {
        let device = Device::open(DeviceConfig::from_env()?)?;
        let pd = device.alloc_pd();
        // Room for every request of every connection: a queue takes memory as it is used.
        let entries = (sizes.send + sizes.receive) as usize * sizes.connections;
        let cq = device.create_cq(u32::try_from(entries).unwrap_or(u32::MAX).min(4 << 20))?;
        let mut all = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ;
        if case.op() == Some(Op::Atomic) {
            all |= Access::REMOTE_ATOMIC;
        }
        let memory = pd.alloc(sizes.memory, all)?;
        let source = pd.alloc(sizes.memory, Access::LOCAL_WRITE)?;
        memory.fill(.., 0)?;
        source.fill(.., 7)?;
        Ok(Self {
            pd,
            cq,
            ends: Vec::new(),
            source,
            memory,
            device,
            receives: receives(case),
            config: sizes,
        })
    }

    /// A queue pair with its first receives.
    fn queue_pair(&self, case: &Case) -> Result<QueuePair> {
        let sizes = self.config;
        let config = QpConfig::new(&self.cq)
            .max_send_wr(sizes.send)
            .max_recv_wr(sizes.receive)
            .max_inline_data(sizes.inline);
        let qp = self.pd.create_qp(&config)?;
        for _ in 0..self.receives {
            qp.post_recv(self.receive(case)?)?;
        }
        Ok(qp)
    }

    /// The receive that is posted again and again.
    pub(super) fn receive(&self, case: &Case) -> Result<RecvRequest> {
        match case.work {
            // The Send that follows a Write only wakes.
            Work::PingPong { op: Op::Write } => Ok(RecvRequest::new(0, ())),
            // Nothing is placed in the receive that immediate data completes.
            _ if case.op() == Some(Op::WriteImm) => Ok(RecvRequest::new(0, ())),
            _ => Ok(RecvRequest::new(0, self.memory.slice(..case.size)?)),
        }
    }

    /// Atomics that the peer has carried out here: each adds 1 to one of the numbers, which begin at 0.
    pub(super) fn atomics(&self) -> Result<u64> {
        let numbers = (0..self.memory.len()).step_by(ATOMIC);
        numbers.map(|at| Ok(self.memory.load_u64(at)?)).sum()
    }

    /// The connecting end.
    pub(super) fn connect(case: &Case, addr: SocketAddr, connections: usize) -> Result<Self> {
        let sizes = Sizes::of(case);
        let mut session = Self::open(case, sizes)?;
        for _ in 0..connections {
            let qp = session.queue_pair(case)?;
            let end = session.connect_one(case, addr, sizes.reads, qp)?;
            session.ends.push(end);
        }
        Ok(session)
    }

    fn connect_one(&self, case: &Case, addr: SocketAddr, reads: u16, qp: QueuePair) -> Result<End> {
        let param = case.wire.param().ird(reads).ord(reads);
        let param = param.private_data(self.memory.remote().to_bytes());
        let conn = cm::connect(addr, &qp, param)
            .and_then(|connecting| connecting.wait(LIMIT))
            .with_context(|| format!("cannot connect to {addr}"))?;
        End::new(qp, conn, case)
    }

    /// Opens connections beside those of the session, to do nothing with them: send queue of 16, one receive.
    pub(super) fn connect_idle(&mut self, case: &Case, addr: SocketAddr, n: usize) -> Result<()> {
        let mut under_way = VecDeque::with_capacity(AT_ONCE);
        self.ends.reserve_exact(n);
        let mut opened = 0;
        while opened < n || !under_way.is_empty() {
            if opened < n && under_way.len() < AT_ONCE {
                let qp = self.idle_queue_pair()?;
                let param = case.wire.param().private_data(self.memory.remote().to_bytes());
                under_way.push_back((qp.clone(), cm::connect(addr, &qp, param)?));
                opened += 1;
                continue;
            }
            if let Some((qp, connecting)) = under_way.pop_front() {
                let conn = connecting
                    .wait(LIMIT)
                    .with_context(|| format!("connection {} of {n} to {addr}", self.ends.len()))?;
                self.ends.push(End::new(qp, conn, case)?);
            }
        }
        Ok(())
    }

    fn idle_queue_pair(&self) -> Result<QueuePair> {
        let qp = self.pd.create_qp(&QpConfig::new(&self.cq).max_send_wr(16).max_recv_wr(1))?;
        qp.post_recv(RecvRequest::new(0, ()))?;
        Ok(qp)
    }

    /// Takes the next completion if one is there, after a look at the sockets. Failures become errors.
    #[inline]
    pub(super) fn poll(&self) -> Result<Option<WorkCompletion>> {
        match self.cq.poll_one() {
            None => Ok(None),
            Some(wc) if wc.is_success() => Ok(Some(wc)),
            Some(wc) => Err(self.failed(wc)),
        }
    }

    /// Sleeps until a completion is there, but not for long: the caller looks around then.
    pub(super) fn sleep(&self) -> Result<Option<WorkCompletion>> {
        match self.cq.wait(Duration::from_millis(50))? {
            None => Ok(None),
            Some(wc) if wc.is_success() => Ok(Some(wc)),
            Some(wc) => Err(self.failed(wc)),
        }
    }

    pub(super) fn next(&self, wait: Wait) -> Result<Option<WorkCompletion>> {
        match wait {
            Wait::Poll => self.poll(),
            Wait::Block | Wait::Await => self.sleep(),
        }
    }

    fn failed(&self, wc: WorkCompletion) -> anyhow::Error {
        let end = self.ends.iter().find(|end| end.qp.number() == wc.qp_num);
        let reason = end.and_then(|end| end.conn.wait_closed(Duration::from_secs(1)));
        match (reason, wc.ok()) {
            (Some(reason), _) => anyhow!("iWARP: {reason}"),
            (None, Err(failed)) => anyhow!("iWARP: {failed}"),
            (None, Ok(_)) => anyhow!("iWARP: the connection is over"),
        }
    }

    /// Ends all connections, in order.
    pub(super) fn close(&self) {
        for end in &self.ends {
            end.conn.disconnect();
        }
        for end in &self.ends {
            let _: Option<CloseReason> = end.conn.wait_closed(Duration::from_secs(5));
        }
    }
}

impl End {
    fn new(qp: QueuePair, conn: Connection, case: &Case) -> Result<Self> {
        if conn.crc() != case.wire.crc {
            bail!("CRC was to be {}, but is {}", case.wire.crc, conn.crc());
        }
        let grant = conn.private_data().try_into().context("the peer did not offer its memory")?;
        let remote = RemoteMemory::from_bytes(grant);
        Ok(Self { qp, conn, remote })
    }
}

fn receives(case: &Case) -> usize {
    if case.wait == Wait::Await {
        // Each future posts its own.
        return 0;
    }
    match case.work {
        Work::Fairness { .. } => 4,
        Work::PingPong { op } if op.takes_receive() => 4,
        Work::PingPong { op: Op::Write } if case.wait != Wait::Poll => 4,
        Work::Stream(s) if s.op.takes_receive() => (s.depth * RECEIVES_PER_SEND).max(64),
        // For the word that the other end is done.
        Work::Stream(Stream { both_ways: true, .. }) => 1,
        _ => 0,
    }
}

/// The accepting end before its peers are there.
pub(super) struct Listening {
    listener: Listener,
    session: Session,
    pub(super) case: Case,
    pub(super) pace: Pace,
}

impl Listening {
    pub(super) fn new(case: &Case, pace: Pace, ip: IpAddr) -> Result<Self> {
        let session = Session::open(case, Sizes::of(case))?;
        let config = ListenConfig::default().backlog(BACKLOG);
        let listener = Listener::bind(&session.device, SocketAddr::new(ip, 0), config)
            .context("cannot listen")?;
        Ok(Self { listener, session, case: case.clone(), pace })
    }

    pub(super) fn local_port(&self) -> u16 {
        self.listener.local_addr().port()
    }

    pub(super) fn accept(mut self, connections: usize, stop: &Stop) -> Result<Session> {
        let reads = self.session.config.reads;
        for _ in 0..connections {
            let qp = self.session.queue_pair(&self.case)?;
            let param = self.case.wire.param().ird(reads).ord(reads);
            let end = self.accept_one(stop, qp, param)?;
            self.session.ends.push(end);
        }
        Ok(self.session)
    }

    fn accept_one(&self, stop: &Stop, qp: QueuePair, param: cm::ConnParam) -> Result<End> {
        let (connecting, grant) = self.answer(stop, &qp, param)?;
        let conn = connecting.wait(LIMIT).context("cannot accept")?;
        self.end(qp, conn, grant)
    }

    fn end(&self, qp: QueuePair, conn: Connection, grant: [u8; 20]) -> Result<End> {
        if conn.crc() != self.case.wire.crc {
            bail!("CRC was to be {}, but is {}", self.case.wire.crc, conn.crc());
        }
        Ok(End { qp, conn, remote: RemoteMemory::from_bytes(grant) })
    }

    /// Takes the next request, and accepts it.
    fn answer(
        &self,
        stop: &Stop,
        qp: &QueuePair,
        param: cm::ConnParam,
    ) -> Result<(Connecting, [u8; 20])> {
        let deadline = Instant::now() + LIMIT;
        let request = loop {
            match self.listener.accept(Duration::from_millis(100)) {
                Ok(request) => break request,
                Err(_) if !stop.now() && Instant::now() < deadline => {}
                Err(error) => return Err(error).context("the client did not connect"),
            }
        };
        let grant =
            request.private_data().try_into().context("the peer did not offer its memory")?;
        let param = param.private_data(self.session.memory.remote().to_bytes());
        Ok((request.accept(qp, param)?, grant))
    }

    /// Accepts one connection that works, then `n` that do nothing. Also tells the octets that these took.
    pub(super) fn accept_idle(mut self, n: usize, stop: &Stop) -> Result<(Session, usize)> {
        let qp = self.session.queue_pair(&self.case)?;
        let end = self.accept_one(stop, qp, self.case.wire.param())?;
        self.session.ends.push(end);
        let before = memory::allocated();
        let mut under_way = VecDeque::with_capacity(AT_ONCE);
        self.session.ends.reserve_exact(n);
        let mut taken = 0;
        while taken < n || !under_way.is_empty() {
            if taken < n && under_way.len() < AT_ONCE {
                let qp = self.session.idle_queue_pair()?;
                let (connecting, grant) = self
                    .answer(stop, &qp, self.case.wire.param())
                    .with_context(|| format!("connection {taken} of {n}"))?;
                under_way.push_back((qp, connecting, grant));
                taken += 1;
                continue;
            }
            if let Some((qp, connecting, grant)) = under_way.pop_front() {
                let conn = connecting.wait(LIMIT).context("cannot accept")?;
                let end = self.end(qp, conn, grant)?;
                self.session.ends.push(end);
            }
        }
        let used = memory::allocated().saturating_sub(before);
        Ok((self.session, used))
    }
}
