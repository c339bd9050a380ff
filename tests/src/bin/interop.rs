//! What `tests/interop/run` runs: see `iwarp_tests::interop`.

use std::process::ExitCode;

fn main() -> ExitCode {
    iwarp_tests::interop::main()
}
