//! The corpora and the regressions, without a fuzzer.

use std::fs;
use std::panic::catch_unwind;
use std::path::{Path, PathBuf};

use iwarp_fuzz_entry::{TARGETS, Target};

/// Where corpora and regressions lie.
fn folder(kind: &str, target: &Target) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(kind).join(target.name)
}

/// The inputs of a folder, in order; none if there is no such folder.
fn inputs(folder: &Path) -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir(folder) else { return Vec::new() };
    let mut inputs: Vec<_> = entries.map(|entry| entry.expect("an entry").path()).collect();
    inputs.sort();
    inputs
}

fn replay(target: &Target, inputs: &[PathBuf]) {
    let failed: Vec<_> = inputs
        .iter()
        .filter(|path| {
            let input = fs::read(path).expect("an input");
            catch_unwind(|| (target.run)(&input)).is_err()
        })
        .collect();
    assert!(failed.is_empty(), "{} fails with {failed:#?}", target.name);
}

#[test]
fn every_target_has_a_corpus_and_takes_it() {
    for target in &TARGETS {
        let inputs = inputs(&folder("corpus", target));
        assert!(inputs.len() >= 10, "{} inputs for {}", inputs.len(), target.name);
        replay(target, &inputs);
    }
}

/// What has once shown a fault does not show it again.
#[test]
fn regressions() {
    for target in &TARGETS {
        replay(target, &inputs(&folder("regressions", target)));
    }
}

/// Any octets are an input.
#[test]
fn short_and_plain_inputs() {
    for target in &TARGETS {
        (target.run)(&[]);
        for octet in 0..=u8::MAX {
            (target.run)(&[octet]);
            (target.run)(&[octet; 64]);
        }
    }
}

/// Each target of the library is one of libFuzzer's, and the reverse.
#[test]
fn targets_of_both_sides_agree() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fuzz_targets");
    let names: Vec<_> = inputs(&folder)
        .iter()
        .map(|path| path.file_stem().expect("a name").to_string_lossy().into_owned())
        .collect();
    let mut expected: Vec<_> = TARGETS.iter().map(|target| target.name).collect();
    expected.sort_unstable();
    assert_eq!(names, expected);
}
