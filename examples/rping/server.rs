//! The server: reads what it is offered, and writes it where it is told to.

use std::rc::Rc;

use iwarp_examples::failure::{Context, Failure, Result, what_ended};
use iwarp_verbs::{
    Access, Device, DeviceConfig, MemoryRegion, QpState, RemoteMemory,
    cm::{CloseReason, ConnectRequest, Connection, ListenConfig, Listener},
};

use crate::{
    Plan,
    end::{End, param, say},
    protocol::{self, GO_AHEAD, compare, read_advert, text},
};

/// Listens, and serves one client, or all who come. To be run in a `LocalSet`.
pub(crate) async fn serve(plan: Plan) -> Result<()> {
    let device = Device::open(DeviceConfig::from_env()?)?;
    let here = (plan.host.as_str(), plan.port);
    let listener =
        Listener::bind(&device, here, ListenConfig::default()).context("cannot listen")?;
    if plan.port == 0 {
        say(format_args!("listening on {}", listener.local_addr()))?;
    }
    plan.talk.step(format_args!("waiting for a client at {}", listener.local_addr()));
    let plan = Rc::new(plan);
    if !plan.persistent {
        let request = listener.next().await;
        // Nobody else is kept waiting for nothing.
        drop(listener);
        return attend(&device, request, &plan).await;
    }
    loop {
        let request = listener.next().await;
        let (device, plan) = (device.clone(), Rc::clone(&plan));
        tokio::task::spawn_local(async move {
            let peer = request.peer_addr();
            if let Err(failure) = attend(&device, request, &plan).await {
                eprintln!("rping: client {peer}: {failure}");
            }
        });
    }
}

/// One client, from its request until it leaves.
async fn attend(device: &Device, request: ConnectRequest, plan: &Plan) -> Result<()> {
    plan.talk.step(format_args!("{} asks to connect", request.peer_addr()));
    let end = End::new(device)?;
    let memory = end.pd.alloc(plan.size as usize, Access::LOCAL_WRITE)?;
    let conn = request.accept(&end.qp, param(&plan.wire))?.await?;
    plan.talk.connected(&conn);

    let mut session = Session { plan, end, memory, conn };
    let mut served = 0;
    while let Some(source) = session.offer().await? {
        if let Err(failure) = session.one(served, source).await {
            let failure = what_ended(&session.conn, failure).await;
            return Err(failure).context(format_args!("ping {served}"));
        }
        served += 1;
    }
    plan.talk.step(format_args!("the client has left after {served} pings"));
    match plan.count {
        Some(count) if served < count.get() => {
            Err(Failure::new(format_args!("the client left after {served} of {count} pings")))
        }
        _ => Ok(()),
    }
}

struct Session<'p> {
    plan: &'p Plan,
    end: End,
    /// Where pings are read to and written from.
    memory: MemoryRegion,
    conn: Connection,
}

impl Session<'_> {
    /// Where the next ping is; `None` if the client has left, as it may between two pings.
    async fn offer(&mut self) -> Result<Option<RemoteMemory>> {
        match self.end.mailbox.next().await {
            // What it said last counts, even if it has left since.
            Ok(message) => self.advert("source", &message.octets).map(Some),
            Err(failure) if self.conn.qp().state() == QpState::Rts => Err(failure),
            // The receives came back unused.
            Err(_) => match self.conn.closed().await {
                CloseReason::Orderly => Ok(None),
                reason => Err(reason.into()),
            },
        }
    }

    async fn one(&mut self, number: u64, source: RemoteMemory) -> Result<()> {
        let talk = self.plan.talk;
        let len = self.room_for(source)?;
        let here = self.memory.slice(..len)?;
        self.conn.read(here.clone(), source).await?;
        talk.step("the source is read");
        let mut ping = vec![0; len];
        self.memory.read_at(0, &mut ping)?;
        if self.plan.validate {
            compare(&ping, &protocol::ping(number, len)).context("data mismatch")?;
        }
        talk.ping(format_args!("server ping data: {}", text(&ping)))?;
        self.conn.send_inline(GO_AHEAD).await?;

        let message = self.end.mailbox.next().await?;
        let sink = self.advert("sink", &message.octets)?;
        if sink.len < source.len {
            let (sink, source) = (sink.len, source.len);
            return Err(Failure::new(format_args!(
                "a sink of {sink} octets for a ping of {source}"
            )));
        }
        self.conn.write(here, sink.slice(..source.len)?).await?;
        // It cannot overtake the Write.
        self.conn.send_inline(GO_AHEAD).await?;
        talk.step("the sink is written");
        Ok(())
    }

    /// Octets of this ping, if it is not too long.
    fn room_for(&self, source: RemoteMemory) -> Result<usize> {
        let (len, most) = (source.len, u64::from(self.plan.size));
        if len > most {
            return Err(Failure::new(format_args!(
                "{len} octets, and at most {most} are taken; see -S"
            )));
        }
        Ok(usize::try_from(len)?)
    }

    fn advert(&self, what: &str, octets: &[u8]) -> Result<RemoteMemory> {
        let memory = read_advert(octets)?;
        self.plan.talk.step(format_args!(
            "{what} of the client: address {:#x}, key {:#010x}, {} octets",
            memory.addr, memory.rkey, memory.len
        ));
        Ok(memory)
    }
}
