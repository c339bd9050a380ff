//! The client: asks for changes, and helps itself to the rest.

use iwarp_examples::{
    failure::{Failure, Result},
    mailbox::{Grant, MESSAGE_MAX, Mailbox, read_note, write_note},
    wire::WireArgs,
};
use iwarp_verbs::{
    Access, Device, MemoryRegion, QpConfig, RemoteMemory,
    cm::{self, Connection},
};

use crate::{
    server::{Answer, Ask},
    table::{WINDOW_OCTETS, find, window_of},
};

/// Reads of one GET before it gives up on a slot that changes all the time.
const TRIES: u32 = 1000;

/// One connection to a store.
#[derive(Debug)]
pub(crate) struct Client {
    conn: Connection,
    mailbox: Mailbox,
    /// The table, in the server's memory.
    table: RemoteMemory,
    /// Where the windows of GETs land.
    window: MemoryRegion,
    /// Reads that met a slot while it was being changed.
    pub(crate) torn: u64,
}

impl Client {
    pub(crate) async fn connect(device: &Device, there: &str, wire: &WireArgs) -> Result<Self> {
        let pd = device.alloc_pd();
        let sent = device.create_cq(16)?;
        let arrived = device.create_cq(1)?;
        let config =
            QpConfig::new(&sent).recv_cq(&arrived).max_recv_wr(1).max_inline_data(MESSAGE_MAX);
        let qp = pd.create_qp(&config)?;
        let mailbox = Mailbox::new(&pd, &qp, &arrived, 1)?;
        let window = pd.alloc(WINDOW_OCTETS, Access::LOCAL_WRITE)?;
        let conn = cm::connect(there, &qp, wire.param())?.await?;
        let table = read_note::<Grant>(conn.private_data())?.into();
        Ok(Self { conn, mailbox, table, window, torn: 0 })
    }

    /// One-sided: the server's program does not take part, and its load does not matter.
    pub(crate) async fn get(&mut self, key: &str) -> Result<Option<String>> {
        let start = window_of(key, self.table.len);
        let theirs = self.table.slice(start..start + WINDOW_OCTETS as u64)?;
        let mut window = [0; WINDOW_OCTETS];
        for _ in 0..TRIES {
            self.conn.read(self.window.as_slice_all(), theirs).await?;
            self.window.read_at(0, &mut window)?;
            if let Ok(found) = find(key, &window) {
                return Ok(found);
            }
            self.torn += 1;
        }
        Err(Failure::new(format_args!("the slots of {key} were being changed {TRIES} times")))
    }

    pub(crate) async fn put(&mut self, key: &str, value: &str) -> Result<()> {
        let ask = Ask::Put { key: key.to_owned(), value: value.to_owned() };
        self.ask_done(&ask).await.map(|_| ())
    }

    /// Whether it was there.
    pub(crate) async fn delete(&mut self, key: &str) -> Result<bool> {
        self.ask_done(&Ask::Delete { key: key.to_owned() }).await
    }

    /// How many requests the server's program has handled.
    pub(crate) async fn requests(&mut self) -> Result<u64> {
        match self.ask(&Ask::Requests).await? {
            Answer::Requests { number } => Ok(number),
            _ => Err(Failure::new("the server answered another question")),
        }
    }

    /// Ends the connection in order.
    pub(crate) async fn close(self) {
        self.conn.close().await;
    }

    async fn ask_done(&mut self, ask: &Ask) -> Result<bool> {
        match self.ask(ask).await? {
            Answer::Done { found } => Ok(found),
            Answer::Refused { why } => Err(Failure::new(why)),
            Answer::Requests { .. } => Err(Failure::new("the server answered another question")),
        }
    }

    async fn ask(&mut self, ask: &Ask) -> Result<Answer> {
        self.conn.send_inline(write_note(ask)?).await?;
        self.mailbox.note().await
    }
}
