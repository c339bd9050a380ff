//! Every operation, recorded by the library, as tshark decodes it: each FPDU is what it was meant to be.
//!
//! What is expected is worked out from the requests alone: kind and order of the messages, keys, offsets and lengths.
//! How a message is cut is the library's matter, so here it only has to be cut well: offsets that go on, and L at the
//! end.
#![allow(clippy::unwrap_used, reason = "a failed step is a failed test")]

use iwarp_tests::child::GUARD;
use iwarp_tests::skip;
use iwarp_tests::tshark::{self, Dissected, File};
use iwarp_verbs::cm::{self, ConnParam, ListenConfig, Listener};
use iwarp_verbs::{
    Access, CompletionQueue, Device, DeviceConfig, FpduLimit, MemoryNetwork, MemoryRegion,
    QpConfig, RecvRequest, RemoteMemory, SendRequest, WcStatus,
};

const PORT: u16 = 7471;
/// Payloads: none, each pad, about the size of one FPDU, and many of them.
const SIZES: [usize; 11] = [0, 1, 2, 3, 7, 64, 1500, 4096, 16_384, 65_536, 200_001];

/// The payloads of one way. With markers they end with 16,384 octets: behind an FPDU that ends exactly where a marker
/// is due, tshark 4.0 looks for one marker too many, and loses the thread. The octets of a run are always as many,
/// and up to there none ends so.
fn sizes(markers: bool) -> &'static [usize] {
    if markers { SIZES.split_at(9).0 } else { &SIZES }
}

/// A message of one side, as it has to be.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Message {
    from_initiator: bool,
    opcode: u64,
    /// Octets behind the DDP headers.
    len: u64,
    place: Place,
}

/// Where it goes.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Place {
    Tagged { stag: u64, offset: u64 },
    Untagged { queue: u64, msn: u64 },
}

const WRITE: u64 = 0;
const READ_REQUEST: u64 = 1;
const READ_RESPONSE: u64 = 2;
const SEND: u64 = 3;
const SEND_INVALIDATE: u64 = 4;
const SEND_SOLICITED: u64 = 5;
const SEND_SOLICITED_INVALIDATE: u64 = 6;
const TERMINATE: u64 = 7;
const IMMEDIATE: u64 = 8;
const IMMEDIATE_SOLICITED: u64 = 9;
const ATOMIC_REQUEST: u64 = 10;
const ATOMIC_RESPONSE: u64 = 11;

/// The messages that are due, in the order of each direction.
#[derive(Default)]
struct Due {
    messages: Vec<Message>,
    sends: u64,
    requests: u64,
    atomics: u64,
}

impl Due {
    fn tagged(&mut self, from_initiator: bool, opcode: u64, stag: u64, offset: u64, len: u64) {
        let place = Place::Tagged { stag, offset };
        self.messages.push(Message { from_initiator, opcode, len, place });
    }

    fn write(&mut self, remote: RemoteMemory, len: usize) {
        self.tagged(true, WRITE, remote.rkey.into(), remote.addr, len as u64);
    }

    fn send(&mut self, opcode: u64, len: usize) {
        self.sends += 1;
        let place = Place::Untagged { queue: 0, msn: self.sends };
        self.messages.push(Message { from_initiator: true, opcode, len: len as u64, place });
    }

    fn request(&mut self, opcode: u64, len: u64) {
        self.requests += 1;
        let place = Place::Untagged { queue: 1, msn: self.requests };
        self.messages.push(Message { from_initiator: true, opcode, len, place });
    }

    fn atomic(&mut self) {
        self.request(ATOMIC_REQUEST, 52);
        self.atomics += 1;
        let place = Place::Untagged { queue: 3, msn: self.atomics };
        self.messages.push(Message {
            from_initiator: false,
            opcode: ATOMIC_RESPONSE,
            len: 12,
            place,
        });
    }

    /// The sink of a Read is a key of that Read alone: it is the one that its request has.
    fn read(&mut self, len: usize) {
        self.request(READ_REQUEST, 28);
        self.tagged(false, READ_RESPONSE, 0, 0, len as u64);
    }
}

/// One way of the connections that are recorded.
#[derive(Clone, Copy, Debug)]
struct Way {
    crc: bool,
    markers: bool,
    limit: FpduLimit,
}

fn done(cq: &CompletionQueue) {
    let status = cq.wait(GUARD).unwrap().expect("a completion").status;
    assert_eq!(status, WcStatus::Success);
}

/// All operations in turn, and a Write that is refused. What goes over the wire.
fn run(way: Way, file: &File) -> Due {
    let network = MemoryNetwork::new(7);
    let config = DeviceConfig::default().network(&network).crc(way.crc).markers(way.markers);
    let config = config.fpdu_limit(way.limit).pcap(&file.0);
    let [client, server] = [config.clone(), config].map(|config| Device::open(config).unwrap());
    let at = format!("192.0.2.1:{PORT}");
    let listener = Listener::bind(&server, &at[..], ListenConfig::default()).unwrap();
    let rights = Access::LOCAL_WRITE | Access::REMOTE;
    let [(near_pd, near_qp, near_cq), (far_pd, far_qp, far_cq)] =
        [&client, &server].map(|device| {
            let pd = device.alloc_pd();
            let cq = device.create_cq(64).unwrap();
            let qp = pd.create_qp(&QpConfig::new(&cq)).unwrap();
            (pd, qp, cq)
        });
    let near = near_pd.alloc(200_008, rights).unwrap();
    let far = far_pd.alloc(200_008, rights).unwrap();
    near.write_at(0, &(0..=250).cycle().take(200_008).collect::<Vec<u8>>()).unwrap();
    let connecting =
        cm::connect(listener.local_addr(), &near_qp, ConnParam::default().private_data(b"hello"))
            .unwrap();
    let request = listener.accept(GUARD).unwrap();
    let accepting = request.accept(&far_qp, ConnParam::default()).unwrap();
    let connection = connecting.wait(GUARD).unwrap();
    let _accepted = accepting.wait(GUARD).unwrap();

    let mut due = Due::default();
    // The RTR: a Write of nothing.
    due.tagged(true, WRITE, 1, 0, 0);
    let receive = |len: usize| {
        far_qp.post_recv(RecvRequest::new(0, far.slice(0..len).unwrap())).unwrap();
    };
    let send = |request: SendRequest, len: usize| {
        receive(len);
        near_qp.post_send(request).unwrap();
        done(&near_cq);
        done(&far_cq);
    };
    for &len in sizes(way.markers) {
        let slice = near.slice(0..len).unwrap();
        near_qp.post_send(SendRequest::write(0, slice.clone(), far.remote())).unwrap();
        done(&near_cq);
        due.write(far.remote(), len);
        near_qp.post_send(SendRequest::read(0, slice.clone(), far.remote())).unwrap();
        done(&near_cq);
        due.read(len);
        send(SendRequest::send(0, slice.clone()), len);
        due.send(SEND, len);
        send(SendRequest::write_with_imm(0, slice, far.remote(), 7), 0);
        due.write(far.remote(), len);
        due.send(IMMEDIATE, 8);
    }
    let slice = near.slice(0..33).unwrap();
    send(SendRequest::send(0, slice.clone()).solicited(), 33);
    due.send(SEND_SOLICITED, 33);
    send(SendRequest::write_with_imm(0, slice.clone(), far.remote(), 7).solicited(), 0);
    due.write(far.remote(), 33);
    due.send(IMMEDIATE_SOLICITED, 8);
    let lent: [MemoryRegion; 2] = [(), ()].map(|()| far_pd.alloc(64, rights).unwrap());
    send(SendRequest::send(0, slice.clone()).invalidate(lent[0].rkey()), 33);
    due.send(SEND_INVALIDATE, 33);
    send(SendRequest::send(0, slice.clone()).solicited().invalidate(lent[1].rkey()), 33);
    due.send(SEND_SOLICITED_INVALIDATE, 33);
    let word = near.slice(0..8).unwrap();
    for request in [
        SendRequest::fetch_add(0, word.clone(), far.remote(), 5),
        SendRequest::compare_swap(0, word.clone(), far.remote(), 1, 2),
        SendRequest::swap(0, word, far.remote(), 3),
    ] {
        near_qp.post_send(request).unwrap();
        done(&near_cq);
        due.atomic();
    }
    let beyond = RemoteMemory { addr: far.remote().addr + 200_008, ..far.remote() };
    near_qp.post_send(SendRequest::write(0, slice, beyond)).unwrap();
    due.write(beyond, 33);
    let place = Place::Untagged { queue: 2, msn: 1 };
    due.messages.push(Message { from_initiator: false, opcode: TERMINATE, len: 20, place });
    connection.wait_closed(GUARD).expect("the end");
    due
}

/// The messages of one direction, put together from FPDUs.
fn messages(fpdus: &[&Dissected], from_initiator: bool) -> Vec<Message> {
    let mut open: Vec<(Option<u64>, Message)> = Vec::new();
    let mut found = Vec::new();
    for fpdu in fpdus {
        let tagged = fpdu.the("iwarp_ddp.tagged_flag") == 1;
        let header = if tagged { 14 } else { 18 };
        let len = fpdu.the("iwarp_mpa.ulpdulength").checked_sub(header).unwrap();
        let opcode = fpdu.the("iwarp_rdma.opcode");
        assert_eq!((fpdu.the("iwarp_ddp.dv"), fpdu.the("iwarp_rdma.version")), (1, 1));
        let (queue, place, at) = if tagged {
            let [stag, offset] =
                ["iwarp_ddp.stag", "iwarp_ddp.tagged_offset"].map(|field| fpdu.the(field));
            (None, Place::Tagged { stag, offset }, offset)
        } else {
            let [queue, msn, offset] =
                ["iwarp_ddp.qn", "iwarp_ddp.msn", "iwarp_ddp.mo"].map(|field| fpdu.the(field));
            (Some(queue), Place::Untagged { queue, msn }, offset)
        };
        let index = open.iter().position(|(of, _)| *of == queue).unwrap_or_else(|| {
            let message = Message { from_initiator, opcode, len: 0, place: place.clone() };
            open.push((queue, message));
            open.len() - 1
        });
        let message = &mut open[index].1;
        assert_eq!(message.opcode, opcode, "{fpdu:?}");
        let begin = match &message.place {
            Place::Tagged { stag, offset } => {
                assert_eq!(fpdu.the("iwarp_ddp.stag"), *stag, "{fpdu:?}");
                *offset
            }
            untagged @ Place::Untagged { .. } => {
                assert_eq!(*untagged, place, "{fpdu:?}");
                0
            }
        };
        assert_eq!(at, begin + message.len, "{fpdu:?}");
        message.len += len;
        if fpdu.the("iwarp_ddp.last_flag") == 1 {
            found.push(open.remove(index).1);
        }
    }
    assert!(open.is_empty(), "{open:?}");
    found
}

fn check(way: Way, file: &File, due: &Due) {
    let (frames, malformed) = tshark::dissect(&file.0);
    assert_eq!(malformed, [""; 0], "{way:?}");
    let (startup, fpdus): (Vec<_>, Vec<_>) =
        frames.iter().partition(|frame| frame.text("iwarp_mpa.ulpdulength").is_none());
    assert_eq!(startup.len(), 2, "{way:?}");
    for frame in startup {
        let [markers, crc] =
            ["iwarp_mpa.marker_flag", "iwarp_mpa.crc_flag"].map(|flag| frame.the(flag));
        assert_eq!((markers == 1, crc == 1), (way.markers, way.crc), "{frame:?}");
        assert_eq!((frame.the("iwarp_mpa.rev"), frame.the("iwarp_mpa.rej_flag")), (2, 0));
        let private = if frame.from == PORT { 4 } else { 4 + 5 };
        assert_eq!(frame.the("iwarp_mpa.pdlength"), private, "{frame:?}");
    }
    for from_initiator in [true, false] {
        let of = fpdus.iter().filter(|fpdu| (fpdu.from != PORT) == from_initiator).copied();
        let of: Vec<&Dissected> = of.collect();
        let mut found = messages(&of, from_initiator);
        // The key of a Read's sink is the library's choice; what comes back has it.
        let sinks: Vec<_> = fpdus
            .iter()
            .filter_map(|fpdu| {
                Some((fpdu.number("iwarp_rdma.sinkstag")?, fpdu.the("iwarp_rdma.sinkto")))
            })
            .collect();
        let responses = found.iter_mut().filter(|message| message.opcode == READ_RESPONSE);
        for (message, &(stag, offset)) in responses.zip(&sinks) {
            assert_eq!(message.place, Place::Tagged { stag, offset }, "{way:?}");
            message.place = Place::Tagged { stag: 0, offset: 0 };
        }
        let expected =
            due.messages.iter().filter(|message| message.from_initiator == from_initiator);
        assert_eq!(found, expected.cloned().collect::<Vec<_>>(), "{way:?}");
    }
    requests(&fpdus, way);
    // Sums: of every FPDU, or of none.
    let sums = tshark::lines(&file.0, "CRC check:");
    assert_eq!(sums.len(), if way.crc { fpdus.len() } else { 0 }, "{way:?}");
    assert!(sums.iter().all(|sum| sum.contains("(Good CRC32)")), "{way:?}: {sums:?}");
    assert_eq!(tshark::fields(&file.0, "iwarp_mpa.bad_length"), [""; 0], "{way:?}");
}

/// The headers of RDMAP itself.
fn requests(fpdus: &[&Dissected], way: Way) {
    let of = |opcode| fpdus.iter().filter(move |fpdu| fpdu.the("iwarp_rdma.opcode") == opcode);
    let read: Vec<_> = of(READ_REQUEST).map(|fpdu| fpdu.the("iwarp_rdma.rdmardsz")).collect();
    let asked: Vec<_> = sizes(way.markers).iter().map(|&size| size as u64).collect();
    assert_eq!(read, asked, "{way:?}");
    let written = of(WRITE).nth(1).unwrap();
    for request in of(READ_REQUEST) {
        let source = ["iwarp_rdma.srcstag", "iwarp_rdma.srcto"].map(|field| request.the(field));
        let target = ["iwarp_ddp.stag", "iwarp_ddp.tagged_offset"].map(|field| written.the(field));
        assert_eq!(source, target, "{way:?}");
    }
    let operations: Vec<_> =
        of(ATOMIC_REQUEST).map(|fpdu| fpdu.the("iwarp_rdma.atomic.opcode") & 15).collect();
    assert_eq!(operations, [0, 2, 2], "{way:?}");
    let invalidated = fpdus.iter().filter(|fpdu| fpdu.number("iwarp_rdma.inval_stag").is_some());
    assert_eq!(invalidated.count(), 2, "{way:?}");
    let terminate = of(TERMINATE).next().unwrap();
    assert_eq!(terminate.the("iwarp_rdma.term_layer"), 1, "{way:?}");
    assert_eq!(terminate.the("iwarp_rdma.term_etype_ddp"), 1, "{way:?}");
    assert_eq!(terminate.the("iwarp_rdma.term_errcode_ddp_tagged"), 1, "{way:?}");
    let headers = ["iwarp_rdma.term_hdrct_m", "iwarp_rdma.hdrct_d", "iwarp_rdma.hdrct_r"];
    assert_eq!(headers.map(|flag| terminate.the(flag)), [1, 1, 0], "{way:?}");
}

#[test]
fn every_operation_is_what_tshark_takes_it_for() {
    if !tshark::is_there() {
        skip!("no tshark, which decodes the captures");
    }
    for crc in [true, false] {
        for markers in [false, true] {
            for limit in [FpduLimit::Emss, FpduLimit::Octets(16_384)] {
                let way = Way { crc, markers, limit };
                let file = File::new(&format!("operations-{crc}-{markers}-{limit:?}"));
                let due = run(way, &file);
                check(way, &file, &due);
            }
        }
    }
}
