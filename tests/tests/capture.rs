//! Captures that a device writes, read by tshark: every FPDU is there, and is understood.
#![allow(clippy::unwrap_used, reason = "a failed step is a failed test")]

use std::path::Path;

use iwarp_tests::child::GUARD;
use iwarp_tests::skip;
use iwarp_tests::tshark::{self, File, fields, lines};
use iwarp_verbs::cm::{self, ConnParam, ListenConfig, Listener};
use iwarp_verbs::{
    Access, CompletionQueue, Cuts, Device, DeviceConfig, Faults, FpduLimit, MemoryNetwork,
    QpConfig, QueuePair, RecvRequest, SendRequest, WcStatus,
};

fn next(cq: &CompletionQueue) -> WcStatus {
    cq.wait(GUARD).unwrap().expect("a completion").status
}

/// Connects two devices and moves messages of all kinds, up to a refused Write. The number of FPDUs.
fn exchange(configs: [DeviceConfig; 2], at: &str) -> u64 {
    let [client, server] = configs.map(|config| Device::open(config).unwrap());
    let listener = Listener::bind(&server, at, ListenConfig::default()).unwrap();
    let [(near, near_qp, near_cq), (far, far_qp, far_cq)] = [&client, &server].map(|device| {
        let pd = device.alloc_pd();
        let cq = device.create_cq(64).unwrap();
        let qp = pd.create_qp(&QpConfig::new(&cq)).unwrap();
        let rights = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ;
        (pd.alloc(200_000, rights).unwrap(), qp, cq)
    });
    far_qp.post_recv(RecvRequest::new(1, far.slice(0..100).unwrap())).unwrap();
    let connecting =
        cm::connect(listener.local_addr(), &near_qp, ConnParam::default().private_data(b"hi"))
            .unwrap();
    let request = listener.accept(GUARD).unwrap();
    let accepting = request.accept(&far_qp, ConnParam::default()).unwrap();
    let connection = connecting.wait(GUARD).unwrap();
    let _accepted = accepting.wait(GUARD).unwrap();
    let all = near.as_slice_all();
    near_qp.post_send(SendRequest::write(1, all.clone(), far.remote())).unwrap();
    near_qp.post_send(SendRequest::read(2, all, far.remote())).unwrap();
    near_qp.post_send(SendRequest::send(3, near.slice(0..77).unwrap())).unwrap();
    for _ in 0..3 {
        assert_eq!(next(&near_cq), WcStatus::Success, "{:?}", connection.wait_closed(GUARD));
    }
    assert_eq!(next(&far_cq), WcStatus::Success);
    // Nobody can write there: the end is a Terminate.
    let beyond = iwarp_verbs::RemoteMemory { addr: far.remote().addr + 200_000, ..far.remote() };
    near_qp.post_send(SendRequest::write(4, near.slice(0..9).unwrap(), beyond)).unwrap();
    connection.wait_closed(GUARD).expect("the end");
    let fpdus = |qp: &QueuePair| qp.stats().fpdus_sent;
    fpdus(&near_qp) + fpdus(&far_qp)
}

fn check(file: &Path, fpdus: u64, crc: bool) {
    assert_eq!(fields(file, "iwarp_mpa.key.req").len(), 1);
    assert_eq!(fields(file, "iwarp_mpa.key.rep").len(), 1);
    assert_eq!(fields(file, "iwarp_mpa.ulpdulength").len() as u64, fpdus);
    let opcodes = fields(file, "iwarp_rdma.opcode");
    assert_eq!(opcodes.len() as u64, fpdus);
    for opcode in ["0x00", "0x01", "0x02", "0x03", "0x07"] {
        assert!(opcodes.iter().any(|seen| seen == opcode), "no {opcode} in {opcodes:?}");
    }
    let sums = lines(file, "CRC check:");
    assert_eq!(sums.len() as u64, if crc { fpdus } else { 0 });
    assert!(sums.iter().all(|sum| sum.contains("(Good CRC32)")), "{sums:?}");
    for (field, what) in [
        ("tcp.analysis.flags", "a segment is missing, or there twice"),
        ("tcp.checksum_bad.expert", "a TCP checksum"),
        ("ip.checksum_bad.expert", "an IP checksum"),
        ("iwarp_mpa.bad_length", "a length"),
    ] {
        assert_eq!(fields(file, field), [""; 0], "{what}");
    }
    let flags = fields(file, "tcp.flags");
    assert_eq!(flags.iter().filter(|flags| flags.ends_with("02")).count(), 1, "one SYN");
}

#[test]
fn a_connection_in_memory_is_recorded_whole_whatever_cuts_it() {
    if !tshark::is_there() {
        skip!("no tshark, which reads the captures");
    }
    for (crc, markers, at) in [
        (true, false, "192.0.2.1:7471"),
        (true, true, "[2001:db8::1]:7471"),
        (false, false, "192.0.2.1:7471"),
    ] {
        let file = File::new(&format!("memory-{crc}-{markers}"));
        let faults = Faults::none().cut_reads(Cuts::of(1..=3000)).cut_writes(Cuts::of(1..=3000));
        let network = MemoryNetwork::new(5).faults(faults);
        let config = DeviceConfig::default().network(&network).crc(crc).markers(markers);
        // Both ends are here, and one of them records it.
        let recorded = config.clone().pcap(&file.0);
        let fpdus = exchange([recorded.clone(), recorded], at);
        check(&file.0, fpdus, crc);
    }
}

#[test]
fn a_connection_of_tcp_is_recorded_by_either_end() {
    if !tshark::is_there() {
        skip!("no tshark, which reads the captures");
    }
    for recorded in 0..2 {
        let file = File::new(&format!("tcp-{recorded}"));
        let config = DeviceConfig::default().fpdu_limit(FpduLimit::Octets(9000));
        let mut configs = [config.clone(), config];
        configs[recorded] = configs[recorded].clone().pcap(&file.0);
        let fpdus = exchange(configs, "127.0.0.1:0");
        check(&file.0, fpdus, true);
    }
}

#[test]
fn a_file_that_cannot_be_made_is_an_error_of_opening() {
    let config = DeviceConfig::default().pcap("/nowhere/at/all.pcap");
    let error = Device::open(config).unwrap_err();
    assert!(error.to_string().contains("begin the capture file"), "{error}");
}
