//! What the property tests share.

use proptest::test_runner::{Config, FileFailurePersistence};

/// A configuration of `cases` runs; inputs that failed are kept beside the test and run first next time.
pub(crate) fn config(cases: u32) -> Config {
    Config {
        cases,
        failure_persistence: Some(Box::new(FileFailurePersistence::WithSource("regressions"))),
        ..Config::default()
    }
}
