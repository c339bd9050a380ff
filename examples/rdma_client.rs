//! Blocking style, the shortest program of all: one message there, and one back.
//!
//! ```text
//! cargo run --release --example rdma_client -- -s HOST
//! ```
//!
//! The other end is `rdma_server`, this one's or that of rdma-core. Without it, and without options, both have the
//! addresses that rdma-core's have: 127.0.0.1 and port 7471.

use std::process::ExitCode;

use clap::Parser;
use iwarp_examples::failure::{Failure, Result, wait_done};
use iwarp_verbs::{
    Access, Device, DeviceConfig, QpConfig, RecvRequest, SendRequest,
    cm::{self, ConnParam},
};

/// Octets of both messages. What they are is of no matter.
const MESSAGE: usize = 16;

/// Send a message of 16 octets to `rdma_server`, and wait for its answer.
#[derive(Debug, Parser)]
#[command(name = "rdma_client")]
struct Args {
    /// The server: a name or an IP address.
    #[arg(short = 's', long, value_name = "HOST", default_value = "127.0.0.1")]
    server: String,
    /// Its TCP port.
    #[arg(short = 'p', long, default_value_t = 7471)]
    port: u16,
}

fn main() -> ExitCode {
    let args = Args::parse();
    println!("rdma_client: start");
    let done = run(&args);
    println!("rdma_client: end {}", if done.is_ok() { 0 } else { -1 });
    Failure::exit("rdma_client", done)
}

fn run(args: &Args) -> Result<()> {
    let device = Device::open(DeviceConfig::from_env()?)?;
    let pd = device.alloc_pd();
    let (sent, arrived) = (device.create_cq(1)?, device.create_cq(1)?);
    let config =
        QpConfig::new(&sent).recv_cq(&arrived).max_send_wr(1).max_recv_wr(1).max_inline_data(16);
    let qp = pd.create_qp(&config)?;
    let answer = pd.alloc(MESSAGE, Access::LOCAL_WRITE)?;
    // Before there is a connection: so it is there whenever the answer comes.
    qp.post_recv(RecvRequest::new(0, answer.as_slice_all()))?;

    let conn =
        cm::connect((args.server.as_str(), args.port), &qp, ConnParam::default())?.wait(None)?;
    qp.post_send(SendRequest::send_inline(0, [0; MESSAGE]))?;
    wait_done(&sent, &conn)?;
    wait_done(&arrived, &conn)?;
    conn.disconnect();
    Ok(())
}
