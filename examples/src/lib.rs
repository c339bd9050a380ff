//! What the examples share. The examples themselves are the files beside this crate's manifest.
//!
//! | example | style | shows |
//! |---|---|---|
//! | `two_host` | await | every operation once, each octet checked; a file of any size by one-sided writes |
//! | `kv_store` | await | a key-value store whose GETs are RDMA Reads that the server never hears of |
//! | `work_queue` | both | jobs and results by RDMA Write with immediate data; all workers share their receives |
//! | `counter_lock` | await | a counter and a lock in memory of a host whose program does nothing |
//! | `rping` | await | what the `rping` of rdma-core does, with whom it speaks: Read there, Write back |
//! | `rdma_client`, `rdma_server` | blocking | one message there and one back, with those of rdma-core too |
//! | `ping_pong` | polling | how long a message takes between two ends that poll |
//! | `link` | | a bad network in user space, for kernels without netem |
//!
//! `two_hosts.sh` runs `two_host`, or another of them, between two network namespaces.

pub mod failure;
pub mod human;
pub mod impair;
pub mod mailbox;
pub mod pattern;
pub mod wire;

/// The library's use as the README shows it, compiled and run.
#[cfg(doctest)]
#[doc = include_str!("../../README.md")]
struct Readme;
