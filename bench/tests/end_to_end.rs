//! The program as a whole, with cases of some milliseconds: what it prints is complete and adds up. How fast anything
//! was is not looked at.

use std::io::{BufRead, BufReader};
use std::process::{Command, Output, Stdio};

use serde_json::Value;

fn bench(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_iwarp-bench"))
        .args(args)
        .stdin(Stdio::null())
        .output()
        .expect("the program starts")
}

/// Runs it, and reads what it prints.
fn report(args: &[&str]) -> Value {
    let output = bench(args);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{args:?}: {errors}");
    serde_json::from_slice(&output.stdout).expect("JSON")
}

fn figures(report: &Value) -> &[Value] {
    report["figures"].as_array().expect("figures")
}

/// Looks at what every figure must have: `rounds` samples at each side, each of which counted something.
fn check(report: &Value, rounds: usize) {
    assert_eq!(report["tool"], "iwarp-bench");
    assert_eq!(report["rounds"], rounds);
    assert!(report["environment"]["congestion"].is_string());
    assert!(report["environment"]["notes"].is_array());
    assert!(!figures(report).is_empty());
    for figure in figures(report) {
        let what = figure["what"].as_str().expect("a name");
        for (case, samples) in [("ours", "samples"), ("reference", "reference_samples")] {
            let samples = figure[samples].as_array().expect("samples");
            let expected = if figure[case].is_null() { 0 } else { rounds };
            assert_eq!(samples.len(), expected, "{what}: {case}");
            for sample in samples {
                let operations = sample["operations"].as_u64().expect("a count");
                assert!(operations > 0, "{what}: {case}");
                let (rate, seconds) = (&sample["per_second"], &sample["seconds"]);
                let counted = rate.as_f64().expect("a rate") * seconds.as_f64().expect("seconds");
                // Two directions have two clocks.
                let both = figure["ours"]["work"]["stream"]["both_ways"] == true;
                let operations_again = format!("{counted:.0}").parse::<u64>().expect("a number");
                assert!(both || operations_again.abs_diff(operations) <= 1, "{what}: {counted}");
                assert!(sample["cpu_client"].as_f64().expect("CPU") > 0.0, "{what}: {case}");
                if let Some(times) = sample["times"].as_object() {
                    let at = |name: &str| times[name].as_u64().expect("a time");
                    let order = ["min", "p50", "p99", "p999", "max"].map(at);
                    assert!(order.is_sorted(), "{what}: {order:?}");
                    assert!(times["count"].as_u64() >= Some(operations), "{what}: {times:?}");
                }
            }
        }
        let value = figure["value"]["median"].as_f64().expect("a value");
        assert!(value > 0.0, "{what}");
        if !figure["reference"].is_null() {
            let ratio = |name: &str| figure["ratio"][name].as_f64().expect("a ratio");
            let order = [ratio("min"), ratio("median"), ratio("max")];
            assert!(order[0] > 0.0 && order.is_sorted(), "{what}: {order:?}");
        }
        if !figure["target"].is_null() {
            let verdict = figure["verdict"].as_str();
            assert!(["goal", "bar", "missed"].map(Some).contains(&verdict), "{what}: {verdict:?}");
        }
    }
}

#[test]
fn the_table_is_complete() {
    let rows = "1,2,3,4,5,6,7,8,9,10,11,12,15,16,17";
    let report = report(&[
        "table",
        "--quick",
        "--rows",
        rows,
        "--rounds",
        "1",
        "--seconds",
        "0.004",
        "--pin",
        "none",
        "--json",
    ]);
    check(&report, 1);
    let mut found: Vec<u64> =
        figures(&report).iter().map(|figure| figure["row"].as_u64().expect("a row")).collect();
    found.dedup();
    found.sort_unstable();
    found.dedup();
    let expected: Vec<u64> = rows.split(',').map(|row| row.parse().expect("a row")).collect();
    assert_eq!(found, expected);
}

#[test]
fn idle_and_busy_connections_are_counted() {
    let report = report(&[
        "connections",
        // So many that a buffer which a thread gives back meanwhile does not outweigh them.
        "--idle",
        "300",
        "--busy",
        "3",
        "--rounds",
        "2",
        "--seconds",
        "0.004",
        "--pin",
        "none",
        "--shared-network",
        "--json",
    ]);
    check(&report, 2);
    let sample = &figures(&report)[0]["samples"][0];
    assert_eq!(sample["connections"], 300);
    for end in ["memory_client", "memory_server"] {
        let octets = sample[end].as_f64().expect("octets");
        assert!((100.0..1e6).contains(&octets), "{end}: {octets}");
    }
}

#[test]
fn options_reach_the_wire() {
    let report = report(&[
        "bandwidth",
        "--op",
        "write,send",
        "--size",
        "10000",
        "--crc",
        "both",
        "--fpdu",
        "emss",
        "--footprint",
        "3",
        "--wait",
        "poll,block",
        "--bidirectional",
        "--rounds",
        "1",
        "--seconds",
        "0.004",
        "--pin",
        "none",
        "--json",
    ]);
    check(&report, 1);
    assert_eq!(figures(&report).len(), 8);
    for figure in figures(&report) {
        assert_eq!(figure["ours"]["wire"]["fpdu"], "emss");
        assert_eq!(figure["ours"]["work"]["stream"]["footprint"], 3);
        assert_eq!(figure["reference"]["work"]["stream"]["both_ways"], true);
    }
}

/// Short cases that need no processor of their own.
const BRIEF: [&str; 6] = ["--rounds", "1", "--seconds", "0.004", "--pin", "none"];

fn brief<'a>(args: &[&'a str]) -> Vec<&'a str> {
    args.iter().copied().chain(BRIEF).collect()
}

/// Operation and size of each figure.
fn work<'a>(report: &'a Value, kind: &str) -> Vec<(&'a str, u64)> {
    let of = |figure: &'a Value| {
        let ours = &figure["ours"];
        let op = ours["work"][kind]["op"].as_str().expect("an operation");
        (op, ours["size"].as_u64().expect("a size"))
    };
    figures(report).iter().map(of).collect()
}

/// The program itself compares what both ends counted: receives that immediate data completed, and the numbers that
/// Atomics added to.
#[test]
fn immediate_data_and_atomics_are_measured() {
    // The shorter message is inline data, the longer one is not. Of the sizes an Atomic takes its own.
    let latency = report(&brief(&[
        "latency",
        "--op",
        "write-imm,atomic",
        "--wait",
        "poll,block,await",
        "--size",
        "8,25",
        "--inline",
        "8",
        "--json",
    ]));
    check(&latency, 1);
    let of_a_wait = [("write-imm", 8), ("write-imm", 25), ("atomic", 8)];
    assert_eq!(work(&latency, "ping_pong"), of_a_wait.repeat(3));
    let metric = |figure: &Value| figure["metric"].as_str().expect("a metric").to_owned();
    let metrics: Vec<_> = figures(&latency)[..3].iter().map(metric).collect();
    assert_eq!(metrics, ["half_round_trip", "half_round_trip", "whole_operation"]);

    let rate = report(&brief(&[
        "rate",
        "--op",
        "write-imm,atomic",
        "--list",
        "1,16",
        "--size",
        "8,200",
        "--depth",
        "128",
        "--json",
    ]));
    check(&rate, 1);
    let writes = [("write-imm", 8), ("write-imm", 200)].repeat(2);
    assert_eq!(work(&rate, "stream"), [writes, vec![("atomic", 8); 2]].concat());

    for ways in [&[][..], &["--bidirectional"]] {
        let mut args = vec!["bandwidth", "--op", "write-imm", "--size", "10000", "--json"];
        args.extend(["--wait", "poll,block", "--footprint", "3"]);
        args.extend(ways);
        let bandwidth = report(&brief(&args));
        check(&bandwidth, 1);
        assert_eq!(work(&bandwidth, "stream"), [("write-imm", 10000); 2]);
    }

    let output = bench(&brief(&["latency", "--op", "write-imm,atomic", "--size", "8"]));
    let table = String::from_utf8_lossy(&output.stdout);
    for what in ["Write with immediate 8 B polling", "Atomic 8 B polling"] {
        assert!(table.contains(what), "{table}");
    }
}

#[test]
fn atomics_are_refused_where_they_make_no_sense() {
    for (args, reason) in [
        (&["bandwidth", "--op", "write,atomic"][..], "bandwidth"),
        (&["latency", "--op", "atomic", "--size", "64,4k"], "8 octets"),
        (&["rate", "--op", "atomic", "--size", "64"], "8 octets"),
        (&["rate", "--op", "atomic", "--depth", "129", "--list", "1"], "ORD"),
    ] {
        let output = bench(&brief(args));
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success(), "{args:?}");
        assert!(errors.contains("Atomic") && errors.contains(reason), "{args:?}: {errors}");
    }
}

#[test]
fn a_server_of_its_own_serves_a_client() {
    let mut server = Command::new(env!("CARGO_BIN_EXE_iwarp-bench"))
        .args(["serve", "--listen", "127.0.0.1:0", "--once"])
        .stdout(Stdio::piped())
        .spawn()
        .expect("the server starts");
    let mut line = String::new();
    let stdout = server.stdout.take().expect("its output");
    BufReader::new(stdout).read_line(&mut line).expect("its address");
    let addr = line.trim().strip_prefix("listening on ").expect("its address");
    let report = report(&[
        "latency",
        "--connect",
        addr,
        "--size",
        "1,24",
        "--wait",
        "poll,block,await",
        "--markers",
        "--rounds",
        "1",
        "--seconds",
        "0.004",
        "--pin",
        "none",
        "--json",
    ]);
    check(&report, 1);
    assert_eq!(figures(&report).len(), 18);
    assert!(server.wait().expect("the server ends").success());
}

#[test]
fn errors_say_what_and_where() {
    // Nothing listens at the discard port of a test machine.
    let output = bench(&["latency", "--connect", "127.0.0.1:9", "--json"]);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success());
    assert!(errors.contains("127.0.0.1:9"), "{errors}");
    assert!(output.stdout.is_empty());

    // Too many requests for one queue: it is the client that is refused, and the program ends.
    let output = bench(&[
        "rate",
        "--size",
        "8",
        "--list",
        "1",
        "--depth",
        "1000000",
        "--rounds",
        "1",
        "--seconds",
        "0.004",
        "--pin",
        "none",
    ]);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success());
    assert!(errors.contains("round 1") && errors.contains("send queue"), "{errors}");
}
