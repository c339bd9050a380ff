//! The server: changes the table when it is asked to, and sleeps through every GET.

use std::{cell::Cell, rc::Rc};

use iwarp_examples::{
    failure::{Context, Result},
    mailbox::{Grant, MESSAGE_MAX, Mailbox, write_note},
    wire::WireArgs,
};
use iwarp_verbs::{
    Access, Device, DeviceConfig, MemoryRegion, ProtectionDomain, QpConfig, QpState,
    cm::{CloseReason, ConnectRequest, ListenConfig, Listener},
};
use serde::{Deserialize, Serialize};

use crate::table::{SLOT, Table, WINDOW};

/// Messages that a client may have on their way.
const REQUESTS: u32 = 4;

/// What a client asks by a Send. A GET is not among it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) enum Ask {
    Put {
        key: String,
        value: String,
    },
    Delete {
        key: String,
    },
    /// How many requests have come in so far, this one not counted.
    Requests,
}

/// The answer, also a Send.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) enum Answer {
    Done { found: bool },
    Requests { number: u64 },
    Refused { why: String },
}

pub(crate) struct Server {
    device: Device,
    pd: ProtectionDomain,
    listener: Listener,
    memory: MemoryRegion,
    table: Table,
    requests: Cell<u64>,
    wire: WireArgs,
}

impl Server {
    pub(crate) fn new(here: &str, slots: usize, wire: WireArgs) -> Result<Rc<Self>> {
        let device = Device::open(DeviceConfig::from_env()?)?;
        let pd = device.alloc_pd();
        let listener =
            Listener::bind(&device, here, ListenConfig::default()).context("cannot listen")?;
        // Clients may read it. None may write it: that is for the server alone, who keeps it in order.
        let access = Access::LOCAL_WRITE | Access::REMOTE_READ;
        let memory = pd.alloc(slots.max(WINDOW) * SLOT, access)?;
        let table = Table::new(memory.clone());
        Ok(Rc::new(Self { device, pd, listener, memory, table, requests: Cell::new(0), wire }))
    }

    pub(crate) fn listener(&self) -> &Listener {
        &self.listener
    }

    /// Serves whoever comes, for ever. To be run in a `LocalSet`: the table has one thread.
    pub(crate) async fn run(self: Rc<Self>) {
        loop {
            let request = self.listener.next().await;
            let server = Rc::clone(&self);
            tokio::task::spawn_local(async move {
                let peer = request.peer_addr();
                if let Err(failure) = server.serve(request).await {
                    eprintln!("client {peer}: {failure}");
                }
            });
        }
    }

    async fn serve(&self, request: ConnectRequest) -> Result<()> {
        let sent = self.device.create_cq(REQUESTS)?;
        let arrived = self.device.create_cq(REQUESTS)?;
        let config = QpConfig::new(&sent)
            .recv_cq(&arrived)
            .max_recv_wr(REQUESTS)
            .max_inline_data(MESSAGE_MAX);
        let qp = self.pd.create_qp(&config)?;
        let mut mailbox = Mailbox::new(&self.pd, &qp, &arrived, REQUESTS as usize)?;
        let grant = write_note(&Grant::from(self.memory.remote()))?;
        let conn = request.accept(&qp, self.wire.param().private_data(grant))?.await?;
        loop {
            let ask = match mailbox.note().await {
                Ok(ask) => ask,
                Err(failure) if conn.qp().state() == QpState::Rts => return Err(failure),
                // The receives came back unused: the client has left, or was lost.
                Err(_) => match conn.closed().await {
                    CloseReason::Orderly => return Ok(()),
                    reason => return Err(reason.into()),
                },
            };
            conn.send_inline(write_note(&self.answer(ask))?).await?;
        }
    }

    fn answer(&self, ask: Ask) -> Answer {
        let before = self.requests.get();
        self.requests.set(before + 1);
        let done = match ask {
            Ask::Put { key, value } => self.table.put(&key, &value).map(|()| true),
            Ask::Delete { key } => self.table.delete(&key),
            Ask::Requests => return Answer::Requests { number: before },
        };
        match done {
            Ok(found) => Answer::Done { found },
            Err(failure) => Answer::Refused { why: failure.to_string() },
        }
    }
}
