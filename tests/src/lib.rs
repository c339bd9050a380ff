//! What the tests across the crates share: processes, namespaces, links, and a peer that says anything.
//!
//! | module | holds |
//! |---|---|
//! | [`hostile`] | a device under attack, and a neighbour of the attackers that must not be hurt |
//! | [`live`] | a live endpoint for scripted peers |
//! | [`memory`] | what a process holds when it rests |
//! | [`peer`] | the scripted peer: start-up frames and FPDUs by hand, good and bad, over a plain TCP socket |
//! | [`child`] | processes a test starts, its own binary once more among them |
//! | [`netns`], [`link`] | two network namespaces and the cable between them |
//! | [`tshark`] | captures as tshark understands them |
//! | [`interop`] | this stack against the Linux kernel's siw in a virtual machine |
//! | [`sources`] | the sources as text, for tests that compare documents with them |
//!
//! The harness fails a test by panicking: where something of the harness itself goes wrong, the test says so.
#![allow(clippy::missing_panics_doc, reason = "a harness fails its test by panicking")]

pub mod child;
pub mod hostile;
pub mod interop;
pub mod link;
pub mod live;
pub mod memory;
pub mod netns;
pub mod peer;
pub mod sources;
pub mod tshark;

/// Ends a test that cannot run on this machine, with the reason in its output.
#[macro_export]
macro_rules! skip {
    ($reason:expr) => {{
        eprintln!("skipped: {}", $reason);
        return;
    }};
}
