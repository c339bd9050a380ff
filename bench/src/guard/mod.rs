//! The surroundings of a measurement: what would falsify it is set where that is allowed, and told where it is not.

pub(crate) mod cpu;
pub(crate) mod environment;
pub(crate) mod files;
pub(crate) mod network;
pub(crate) mod scheduler;
