//! Blocking style, the shortest program of all: waits for one message, and answers it.
//!
//! ```text
//! cargo run --release --example rdma_server
//! ```
//!
//! The other end is `rdma_client`, this one's or that of rdma-core.

use std::process::ExitCode;

use clap::Parser;
use iwarp_examples::failure::{Context, Failure, Result, wait_done};
use iwarp_verbs::{
    Access, Device, DeviceConfig, QpConfig, RecvRequest, SendRequest,
    cm::{ConnParam, ListenConfig, Listener},
};

/// Octets of both messages. What they are is of no matter.
const MESSAGE: usize = 16;

/// Wait for one `rdma_client`, take its message of 16 octets, and answer with one.
#[derive(Debug, Parser)]
#[command(name = "rdma_server")]
struct Args {
    /// The local address to listen at; `::` is all of IPv6.
    #[arg(short = 's', long, value_name = "HOST", default_value = "0.0.0.0")]
    address: String,
    /// TCP port. 0 takes a free one, and it is said which.
    #[arg(short = 'p', long, default_value_t = 7471)]
    port: u16,
}

fn main() -> ExitCode {
    let args = Args::parse();
    println!("rdma_server: start");
    let done = run(&args);
    println!("rdma_server: end {}", if done.is_ok() { 0 } else { -1 });
    Failure::exit("rdma_server", done)
}

fn run(args: &Args) -> Result<()> {
    let device = Device::open(DeviceConfig::from_env()?)?;
    let here = (args.address.as_str(), args.port);
    let listener =
        Listener::bind(&device, here, ListenConfig::default()).context("cannot listen")?;
    if args.port == 0 {
        println!("listening on {}", listener.local_addr());
    }
    let request = listener.accept(None)?;

    let pd = device.alloc_pd();
    let (sent, arrived) = (device.create_cq(1)?, device.create_cq(1)?);
    let config =
        QpConfig::new(&sent).recv_cq(&arrived).max_send_wr(1).max_recv_wr(1).max_inline_data(16);
    let qp = pd.create_qp(&config)?;
    let message = pd.alloc(MESSAGE, Access::LOCAL_WRITE)?;
    // Before the request is accepted: the message may come the moment after.
    qp.post_recv(RecvRequest::new(0, message.as_slice_all()))?;

    let conn = request.accept(&qp, ConnParam::default())?.wait(None)?;
    wait_done(&arrived, &conn)?;
    qp.post_send(SendRequest::send_inline(0, [0; MESSAGE]))?;
    wait_done(&sent, &conn)?;
    conn.disconnect();
    Ok(())
}
