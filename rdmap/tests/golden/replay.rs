//! A stream in the place of one side of a recorded connection.
//!
//! It hears what the other side sent, octet for octet, and is given the operations that the side it stands for was
//! given, each when its first octet is in the recording. So both halves of it are tried at once: what it makes of
//! siw's octets, and what octets it makes itself where siw made those of the recording.

use std::collections::BTreeMap;

use iwarp_ddp::Stag;
use iwarp_rdmap::{Event, LostCause, OperationKind, StreamConfig};

use super::capture::{Connection, Message, Side};
use super::common::endpoint::{Endpoint, write};
use super::common::memory::{Buf, Region, TestMemory};

/// What memory holds that nobody wrote.
const UNTOUCHED: u8 = 0xa5;

/// What the side has not got, of all that the other side's messages need.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lack {
    Nothing,
    /// The `STag` of the other side's last message names nothing.
    Region,
    /// Its region begins so many octets before the message, and has so many.
    Room {
        before: u64,
        len: u64,
    },
    /// It may not be read or written.
    Right,
    /// It is of another protection domain.
    Domain,
    /// No receive is posted.
    Receives,
    /// None is left for the last Send.
    LastReceive,
    /// The last receive has so many octets only.
    ReceiveOf(usize),
    /// The buffer of the last receive is not to be used any more.
    ReceiveMemory,
    /// Time: all Reads come before the first of them can be answered.
    Turns,
}

/// The stream, its memory, and what the memory has to be.
#[derive(Debug)]
pub struct Replay<'a> {
    connection: &'a Connection,
    side: Side,
    pub endpoint: Endpoint,
    /// Octets of memory as they are to be, worked out from the recording.
    pub model: Vec<u8>,
    /// Where each of the side's operations has its buffer, by the place of the message among the side's.
    buffers: BTreeMap<usize, Buf>,
    /// Buffers of receives, in order.
    pub receives: Vec<Buf>,
    /// Long payload goes past the buffer where it may.
    pub straight: bool,
    /// What a TCP segment brought is heard alone, and not with what follows it.
    pub by_segment: bool,
    pub sent: Vec<u8>,
    /// Octets of it that were sent before anything had been heard.
    pub sent_unheard: usize,
    pub events: Vec<Event<Buf>>,
    /// Octets that were fed.
    heard: usize,
    /// The messages of the other side that were put into the model.
    modelled: usize,
    /// How many of the other side's messages are taken. The model has nothing of those behind.
    pub taken: usize,
    /// The other side's Reads that were prepared.
    prepared: usize,
    /// Whether the stream sends its first message by itself: the RTR.
    sends_rtr: bool,
    lack: Lack,
}

impl<'a> Replay<'a> {
    pub fn new(connection: &'a Connection, side: Side, config: StreamConfig, lack: Lack) -> Self {
        let theirs = &connection.half(side.other()).messages;
        let ours = &connection.half(side).messages;
        let mut memory = TestMemory::default();
        let regions = regions(theirs, lack);
        let mut len = 0;
        for mut region in regions {
            region.at = len;
            len += region.len as usize;
            memory.regions.push(region);
        }
        let mut receives = Vec::new();
        let sends: Vec<_> = theirs.iter().filter(|message| is_send(message)).collect();
        for (id, send) in sends.iter().enumerate() {
            let is_last = id + 1 == sends.len();
            let capacity = match lack {
                Lack::ReceiveOf(capacity) if is_last => capacity,
                _ => send.payload.len(),
            };
            let buffer = Buf { id: id as u64, at: len, len: capacity };
            if lack == Lack::Receives || (lack == Lack::LastReceive && is_last) {
                continue;
            }
            if lack == Lack::ReceiveMemory && is_last {
                memory.broken.push(buffer.id);
            }
            memory.post(buffer.id, buffer.at, buffer.len);
            receives.push(buffer);
            len += capacity;
        }
        let mut buffers = BTreeMap::new();
        for (at, message) in ours.iter().enumerate().filter(|(_, message)| message.is_operation()) {
            let buffer = Buf { id: 1_000_000 + at as u64, at: len, len: size_of(message) };
            len += buffer.len;
            buffers.insert(at, buffer);
        }
        memory.bytes = vec![UNTOUCHED; len];
        for (at, buffer) in &buffers {
            if ours[*at].row.kind != "ReadRequest" {
                memory.bytes[buffer.at..][..buffer.len].copy_from_slice(&ours[*at].payload);
            }
        }
        let sends_rtr = config.rtr.is_some() && side == Side::Initiator;
        let model = memory.bytes.clone();
        Self {
            connection,
            side,
            endpoint: Endpoint::new(config, memory),
            model,
            buffers,
            receives,
            straight: false,
            by_segment: false,
            sent: Vec::new(),
            sent_unheard: 0,
            events: Vec::new(),
            heard: connection.half(side.other()).startup_len(),
            modelled: 0,
            taken: theirs.len(),
            prepared: 0,
            sends_rtr,
            lack,
        }
    }

    /// The whole recording. What is heard between two steps of this side comes in pieces as `cut` says, which is
    /// told how many octets there are and gives how many of them come at once.
    pub fn run(&mut self, mut cut: impl FnMut(usize) -> usize) {
        let mut done = 0;
        let mut waiting = 0;
        for arrival in &self.connection.arrivals {
            if arrival.from != self.side {
                waiting = arrival.octets;
                if arrival.fin || arrival.reset || self.by_segment {
                    self.hear(waiting, &mut cut);
                }
                if arrival.fin {
                    self.endpoint.eof();
                }
                if arrival.reset {
                    self.endpoint.stream.handle_lost(LostCause::Reset);
                }
                self.flush();
                continue;
            }
            // What this side did, it may have done because of what it had heard.
            self.hear(waiting, &mut cut);
            let ours = &self.connection.half(self.side).messages;
            while let Some(message) = ours.iter().filter(|message| message.is_operation()).nth(done)
                && message.start() < arrival.octets
            {
                done += 1;
                if !(self.sends_rtr && done == 1) {
                    self.begin(message);
                }
            }
            if arrival.fin {
                let now = self.endpoint.now;
                self.endpoint.stream.close(now);
            }
            if arrival.reset {
                self.endpoint.stream.abort();
            }
            self.flush();
        }
        self.hear(waiting, &mut cut);
    }

    fn begin(&mut self, message: &Message) {
        let ours = &self.connection.half(self.side).messages;
        let at = ours.iter().position(|other| std::ptr::eq(other, message)).unwrap();
        let buffer = self.buffers[&at];
        let operation = iwarp_rdmap::Operation {
            kind: operation(message),
            len: buffer.len as u32,
            fence: false,
            buffer,
        };
        // A stream that has found an error takes no more, where siw had not come so far yet.
        let _ = self.endpoint.stream.submit(operation);
        self.flush();
    }

    /// Octets come, up to this place of the other half.
    fn hear(&mut self, up_to: usize, cut: &mut impl FnMut(usize) -> usize) {
        let theirs = self.connection.half(self.side.other());
        while self.heard < up_to {
            // Reads find what siw's memory held when it answered them: so each is answered before more comes.
            let request = theirs
                .messages
                .iter()
                .filter(|message| message.row.kind == "ReadRequest")
                .nth(self.prepared)
                .filter(|message| message.end() <= up_to && self.lack != Lack::Turns);
            let end = request.map_or(up_to, Message::end);
            self.advance_model(end);
            if let Some(request) = request {
                self.prepare(request);
            }
            while self.heard < end {
                let piece = cut(end - self.heard).clamp(1, end - self.heard);
                let octets = &theirs.octets[self.heard..self.heard + piece];
                if self.straight {
                    self.endpoint.feed_straight(octets);
                } else {
                    self.endpoint.feed(octets);
                }
                self.heard += piece;
            }
            self.flush();
        }
    }

    /// Memory is made what it was when siw answered this Read.
    fn prepare(&mut self, request: &Message) {
        let nth = self.prepared;
        self.prepared += 1;
        let ours = &self.connection.half(self.side).messages;
        let is_response = |message: &&Message| message.row.kind.ends_with("ReadResponse");
        let Some(response) = ours.iter().filter(is_response).nth(nth) else { return };
        let stag = Stag::from_raw(request.row.stag("source"));
        let Some(at) = self.place(stag, request.row.hex("source_to"), response.payload.len())
        else {
            return;
        };
        for octets in [&mut self.endpoint.memory.bytes, &mut self.model] {
            octets[at..at + response.payload.len()].copy_from_slice(&response.payload);
        }
    }

    /// What the messages of the other side that end up to there do to memory.
    fn advance_model(&mut self, up_to: usize) {
        let theirs = &self.connection.half(self.side.other()).messages;
        while let Some(message) = theirs.get(self.modelled)
            && message.end() <= up_to
        {
            if self.modelled < self.taken {
                self.model_message(message);
            }
            self.modelled += 1;
        }
    }

    fn model_message(&mut self, message: &Message) {
        let theirs = &self.connection.half(self.side.other()).messages;
        let before = |kind: fn(&Message) -> bool| {
            theirs[..self.modelled].iter().filter(|message| kind(message)).count()
        };
        let place = if message.row.kind.ends_with("Write") && message.row.has("stag") {
            let stag = Stag::from_raw(message.row.stag("stag"));
            self.place(stag, message.row.hex("to"), message.payload.len())
        } else if message.row.kind.ends_with("ReadResponse") {
            let nth = before(|message| message.row.kind.ends_with("ReadResponse"));
            let ours = &self.connection.half(self.side).messages;
            let requests =
                ours.iter().enumerate().filter(|(_, message)| message.row.kind == "ReadRequest");
            let buffer = requests.map(|(at, _)| self.buffers[&at]).nth(nth);
            buffer.filter(|buffer| buffer.len >= message.payload.len()).map(|buffer| buffer.at)
        } else if is_send(message) {
            let nth = before(is_send);
            let fits = |buffer: &&Buf| buffer.len >= message.payload.len();
            self.receives.get(nth).filter(fits).map(|buffer| buffer.at)
        } else {
            None
        };
        if let Some(at) = place {
            self.model[at..at + message.payload.len()].copy_from_slice(&message.payload);
        }
    }

    /// Where octets of a region are, if all of them are in it.
    fn place(&self, stag: Stag, offset: u64, len: usize) -> Option<usize> {
        let region = self.endpoint.memory.regions.iter().find(|region| region.stag == stag)?;
        let from = offset.checked_sub(region.base)?;
        (from + len as u64 <= region.len).then(|| region.at + from as usize)
    }

    /// What the stream has to send goes out, and what it reports is noted.
    fn flush(&mut self) {
        let sent = self.endpoint.transmit();
        if self.endpoint.stream.counters().fpdus_in == 0 {
            self.sent_unheard += sent.len();
        }
        self.sent.extend(sent);
        self.events.extend(self.endpoint.events());
        self.endpoint.shutdowns();
    }
}

fn is_send(message: &Message) -> bool {
    message.row.kind.trim_start_matches("Unfinished").starts_with("Send")
}

/// Octets of the message that an operation moves.
pub fn size_of(message: &Message) -> usize {
    match &message.row.kind[..] {
        "ReadRequest" => message.row.number("size"),
        _ => message.payload.len(),
    }
}

fn operation(message: &Message) -> OperationKind {
    let row = &message.row;
    match &row.kind[..] {
        "Write" => write(row.stag("stag"), row.hex("to")),
        "ReadRequest" => OperationKind::Read {
            sink_stag: Stag::from_raw(row.stag("sink")),
            sink_offset: row.hex("sink_to"),
            source_stag: Stag::from_raw(row.stag("source")),
            source_offset: row.hex("source_to"),
        },
        kind => OperationKind::Send {
            solicited: kind.contains("Solicited"),
            invalidate: row.has("invalidate").then(|| Stag::from_raw(row.stag("invalidate"))),
        },
    }
}

/// The regions that messages name, as large as they need; with the lack in the one that the last of them names.
fn regions(messages: &[Message], lack: Lack) -> Vec<Region> {
    let mut named: BTreeMap<u32, (u64, u64)> = BTreeMap::new();
    let mut last = None;
    for message in messages {
        let row = &message.row;
        let (stag, from, len) = match row.kind.trim_start_matches("Unfinished") {
            "Write" if row.has("stag") => ("stag", row.hex("to"), message.payload.len() as u64),
            "ReadRequest" if row.has("source") => {
                ("source", row.hex("source_to"), row.number("size") as u64)
            }
            _ if row.has("invalidate") => ("invalidate", u64::MAX, 0),
            _ => continue,
        };
        let stag = row.stag(stag);
        let (start, end) = named.entry(stag).or_insert((u64::MAX, 0));
        if len > 0
            && let Some(behind) = from.checked_add(len)
        {
            *start = from.min(*start);
            *end = behind.max(*end);
        }
        last = Some((stag, from));
    }
    let regions = named.into_iter().filter_map(|(stag, (start, end))| {
        // Nothing but an empty message, or one that invalidates: some octets somewhere.
        let (start, end) = if start < end { (start, end) } else { (0x1000, 0x1010) };
        let region = Region::new(stag, start, 0, end - start);
        match (lack, last) {
            (Lack::Region, Some((of, _))) if of == stag => None,
            (Lack::Right, Some((of, _))) if of == stag => Some(region.local()),
            (Lack::Domain, Some((of, _))) if of == stag => Some(region.foreign()),
            (Lack::Room { before, len }, Some((of, from))) if of == stag => {
                Some(Region { base: from - before, len, ..region })
            }
            _ => Some(region),
        }
    });
    regions.collect()
}
