//! The client: offers memory, and looks at what became of it.

use iwarp_examples::failure::{Context, Result, connected, what_ended};
use iwarp_verbs::{
    Access, Device, DeviceConfig, MemoryRegion,
    cm::{self, Connection},
};

use crate::{
    Plan,
    end::{End, param},
    protocol::{self, advert, compare, message, text},
};

/// Connects, and does all pings.
pub(crate) async fn ping(plan: Plan) -> Result<()> {
    let device = Device::open(DeviceConfig::from_env()?)?;
    let end = End::new(&device)?;
    let size = plan.size as usize;
    let source = end.pd.alloc(size, Access::REMOTE_READ)?;
    let sink = end.pd.alloc(size, Access::LOCAL_WRITE | Access::REMOTE_WRITE)?;
    let there = (plan.host.as_str(), plan.port);
    let conn = connected(cm::connect(there, &end.qp, param(&plan.wire))?).await?;
    plan.talk.connected(&conn);

    let mut client = Client { plan, end, source, sink, conn };
    match client.all().await {
        Ok(()) => {
            let ended = client.conn.close().await;
            client.plan.talk.step(format_args!("connection {ended}"));
            Ok(())
        }
        Err(failure) => Err(what_ended(&client.conn, failure).await),
    }
}

struct Client {
    plan: Plan,
    end: End,
    /// What the server reads.
    source: MemoryRegion,
    /// Where it writes that again.
    sink: MemoryRegion,
    conn: Connection,
}

impl Client {
    async fn all(&mut self) -> Result<()> {
        let count = self.plan.count.map_or(u64::MAX, u64::from);
        for number in 0..count {
            self.one(number).await.context(format_args!("ping {number}"))?;
        }
        Ok(())
    }

    async fn one(&mut self, number: u64) -> Result<()> {
        let talk = self.plan.talk;
        let ping = protocol::ping(number, self.plan.size as usize);
        self.source.write_at(0, &ping)?;
        self.offer("source", &self.source).await?;
        self.go_ahead().await?;
        talk.step("the server has read the source");

        self.offer("sink", &self.sink).await?;
        self.go_ahead().await?;
        talk.step("the server has written the sink");

        let mut back = vec![0; ping.len()];
        self.sink.read_at(0, &mut back)?;
        if self.plan.validate {
            compare(&back, &ping).context("data mismatch")?;
        }
        talk.ping(format_args!("ping data: {}", text(&back)))?;
        Ok(())
    }

    async fn offer(&self, what: &str, memory: &MemoryRegion) -> Result<()> {
        let remote = memory.remote();
        self.plan.talk.step(format_args!(
            "{what} advertised: address {:#x}, key {:#010x}, {} octets",
            remote.addr, remote.rkey, remote.len
        ));
        Ok(self.conn.send_inline(advert(remote)?).await?)
    }

    async fn go_ahead(&mut self) -> Result<()> {
        message(&self.end.mailbox.next().await?.octets)?;
        Ok(())
    }
}
