//! Connections between the two, in both roles.

use std::time::Duration;

use iwarp_verbs::{
    DeviceConfig, RemoteMemory,
    cm::{self, ConnParam, ConnectError, Connection, ListenConfig, Listener},
};

use super::{
    Lab, Result, ensure,
    guest::HOST,
    ours::{LIMIT, Ours},
    siw::{Settled, Siw, digits},
};

/// Who opens the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Role {
    SiwConnects,
    WeConnect,
}

impl Role {
    pub(super) const BOTH: [Self; 2] = [Self::SiwConnects, Self::WeConnect];

    /// Both ends; first the one that may speak first.
    pub(super) const fn initiator_first(self) -> [End; 2] {
        match self {
            Self::SiwConnects => [End::Siw, End::Ours],
            Self::WeConnect => [End::Ours, End::Siw],
        }
    }
}

/// One of the two ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    Siw,
    Ours,
}

/// What the accepting side's program does with the request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Decision {
    Accept,
    Reject(Vec<u8>),
    /// It never hears of it.
    Unasked,
}

/// How a connection is to be made.
#[derive(Clone, Debug)]
pub(super) struct Plan {
    pub(super) role: Role,
    pub(super) param: ConnParam,
    /// IRD and ORD that siw's program asks for.
    pub(super) depths: (u16, u16),
    /// Private data of siw's program.
    pub(super) data: Vec<u8>,
    pub(super) decision: Decision,
}

/// siw looks for data only some moments after its Reply.
pub(super) const FIRST_FPDU_DELAY: Duration = Duration::from_millis(200);

impl Plan {
    /// The defaults of both sides; where we connect, siw is let be for a moment behind its Reply.
    pub(super) fn new(role: Role) -> Self {
        let param = ConnParam::default().first_fpdu_delay(FIRST_FPDU_DELAY).timeout(LIMIT);
        Self { role, param, depths: (16, 16), data: Vec::new(), decision: Decision::Accept }
    }

    pub(super) fn with(mut self, change: impl FnOnce(ConnParam) -> ConnParam) -> Self {
        self.param = change(self.param);
        self
    }
}

/// What has come of a set-up, at both ends.
#[derive(Debug)]
pub(super) struct SetUp {
    pub(super) ours: std::result::Result<Connection, ConnectError>,
    /// Not known where siw's program was never asked.
    pub(super) siw: Option<Settled>,
    /// Private data of the request, as the accepting side's program saw it.
    pub(super) asked: Vec<u8>,
}

/// Both ends before they are connected.
#[derive(Debug)]
pub(super) struct Ends {
    pub(super) siw: Siw,
    pub(super) ours: Ours,
    /// Region 0 of siw, all rights.
    pub(super) there: RemoteMemory,
}

impl Ends {
    /// With so much memory each.
    pub(super) fn new(lab: &mut Lab, config: DeviceConfig, memory: usize) -> Result<Self> {
        let mut siw = Siw::new(lab.guest.peer()?);
        let there = siw.region(0, memory, "lrw", 0)?;
        Ok(Self { siw, ours: Ours::new(config, memory)?, there })
    }

    pub(super) fn set_up(&mut self, lab: &mut Lab, plan: Plan) -> Result<SetUp> {
        match plan.role {
            Role::WeConnect => self.we_connect(lab, plan),
            Role::SiwConnects => self.siw_connects(lab, plan),
        }
    }

    fn we_connect(&mut self, lab: &mut Lab, plan: Plan) -> Result<SetUp> {
        let (port, door) = lab.guest.port();
        self.siw.ask(format!("listen {port}"))?;
        let connecting = cm::connect(door, &self.ours.qp, plan.param)?;
        let mut asked = Vec::new();
        let siw = match plan.decision {
            Decision::Unasked => None,
            Decision::Reject(data) => {
                asked = self.siw.request()?;
                self.siw.ask(format!("reject {}", digits(&data)))?;
                None
            }
            Decision::Accept => {
                asked = self.siw.request()?;
                let (ird, ord) = plan.depths;
                self.siw.say(format!("accept {ird} {ord} {}", digits(&plan.data)))?;
                Some(self.siw.settled()?)
            }
        };
        Ok(SetUp { ours: connecting.wait(LIMIT), siw, asked })
    }

    fn siw_connects(&mut self, lab: &mut Lab, plan: Plan) -> Result<SetUp> {
        let at = (lab.guest.host_side(), 0);
        let listener = Listener::bind(&self.ours.device, at, ListenConfig::default())?;
        self.siw.ask(format!("resolve {HOST} {}", listener.local_addr().port()))?;
        let (ird, ord) = plan.depths;
        self.siw.say(format!("connect {ird} {ord} {}", digits(&plan.data)))?;
        let request = listener.accept(LIMIT)?;
        let asked = request.private_data().to_vec();
        match plan.decision {
            Decision::Accept | Decision::Unasked => {
                let accepting = request.accept(&self.ours.qp, plan.param)?;
                let siw = Some(self.siw.settled()?);
                Ok(SetUp { ours: accepting.wait(LIMIT), siw, asked })
            }
            Decision::Reject(data) => {
                request.reject(&data)?;
                let siw = Some(self.siw.settled()?);
                Ok(SetUp { ours: Err(ConnectError::Cancelled), siw, asked })
            }
        }
    }

    /// A connection that has to come about.
    pub(super) fn connect(mut self, lab: &mut Lab, plan: Plan) -> Result<Pair> {
        let SetUp { ours, siw, .. } = self.set_up(lab, plan)?;
        let connection = ours?;
        siw.map(Settled::established).transpose()?;
        let Self { siw, ours, there } = self;
        Ok(Pair { siw, ours, there, connection })
    }
}

/// A connection.
#[derive(Debug)]
pub(super) struct Pair {
    pub(super) siw: Siw,
    pub(super) ours: Ours,
    pub(super) there: RemoteMemory,
    pub(super) connection: Connection,
}

impl Pair {
    /// A connection with so much memory at both ends.
    pub(super) fn new(lab: &mut Lab, plan: Plan, memory: usize) -> Result<Self> {
        Ends::new(lab, DeviceConfig::default(), memory)?.connect(lab, plan)
    }

    /// Ends it in order, from this side, and looks whether both have it so.
    pub(super) fn close(mut self) -> Result<()> {
        self.connection.disconnect();
        self.siw.ended()?;
        let reason = self.connection.wait_closed(LIMIT);
        ensure!(reason.as_ref().is_some_and(cm::CloseReason::is_orderly), "our end: {reason:?}");
        self.siw.ask("bye").map(drop)
    }
}
