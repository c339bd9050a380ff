//! A network link in user space that delays, loses and reorders packets.
//!
//! Two TUN devices and a queue between them: what the host routes into one comes out of the other, late, in another
//! order, or not at all. Move one of the devices into another network namespace and two programs on one machine are
//! joined by a bad network, without the kernel's netem, which many kernels lack:
//!
//! ```text
//! cargo run --release --example link -- --delay 1ms --loss 0.1% --reorder 1% &
//! ip link set iwarp-b netns PID
//! ```
//!
//! `two_hosts.sh` does all of it. The program ends on Ctrl-C or SIGTERM and then prints what it did to the packets.

use std::process::ExitCode;

#[cfg(target_os = "linux")]
fn main() -> ExitCode {
    linux::main()
}

#[cfg(not(target_os = "linux"))]
fn main() -> ExitCode {
    eprintln!("link: TUN devices that can be moved between namespaces exist on Linux only");
    ExitCode::FAILURE
}

#[cfg(target_os = "linux")]
mod linux {
    use std::{
        cmp::Reverse,
        collections::BinaryHeap,
        io,
        process::ExitCode,
        sync::{
            Arc, Condvar, Mutex, MutexGuard, PoisonError,
            atomic::{AtomicU64, Ordering},
        },
        thread,
        time::{Duration, Instant},
    };

    use clap::Parser;
    use iwarp_examples::impair::{Fate, Impairer, Impairment, parse_rate, parse_share, parse_time};
    use serde::Serialize;
    use tappers::{Interface, Tun};
    use tokio::signal::unix::{SignalKind, signal};

    /// Join two TUN devices by a link that delays, loses and reorders packets.
    ///
    /// Needs the right to create network devices: root, or the root of a user namespace (unshare -Urn) that may open
    /// /dev/net/tun. Prints `ready A B` when both devices exist, and the counters of both directions at the end.
    #[derive(Debug, Parser)]
    #[command(name = "link")]
    struct Args {
        /// Name of the one device.
        #[arg(long, default_value = "iwarp-a")]
        a: String,
        /// Name of the other device.
        #[arg(long, default_value = "iwarp-b")]
        b: String,
        /// Everything in the words of tc: "delay 1ms 100us loss 0.1% reorder 1% rate 1gbit limit 1000". The options
        /// below change single values of it.
        #[arg(long, default_value = "")]
        netem: Impairment,
        /// How long every packet is held, such as 1ms.
        #[arg(long, value_parser = parse_time)]
        delay: Option<Duration>,
        /// Spread of the delay to both sides, such as 100us. Packets whose delays cross change places.
        #[arg(long, value_parser = parse_time)]
        jitter: Option<Duration>,
        /// Share of packets that vanish, such as 0.1%.
        #[arg(long, value_parser = parse_share)]
        loss: Option<f64>,
        /// Share of packets that skip the delay and overtake, such as 1%.
        #[arg(long, value_parser = parse_share)]
        reorder: Option<f64>,
        /// Rate of each direction, such as 100mbit.
        #[arg(long, value_parser = parse_rate)]
        rate: Option<u64>,
        /// Seed of all chance: the same packets meet the same fate again.
        #[arg(long, default_value_t = 1)]
        seed: u64,
        /// Print the counters as one JSON object.
        #[arg(long)]
        json: bool,
    }

    impl Args {
        fn impairment(&self) -> Result<Impairment, Box<dyn std::error::Error>> {
            let link = Impairment {
                delay: self.delay.unwrap_or(self.netem.delay),
                jitter: self.jitter.unwrap_or(self.netem.jitter),
                loss: self.loss.unwrap_or(self.netem.loss),
                reorder: self.reorder.unwrap_or(self.netem.reorder),
                rate: self.rate.or(self.netem.rate),
                limit: self.netem.limit,
            };
            Ok(link.check()?)
        }
    }

    pub(super) fn main() -> ExitCode {
        let args = Args::parse();
        match run(&args) {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => {
                eprintln!("link: {error}");
                ExitCode::FAILURE
            }
        }
    }

    fn run(args: &Args) -> Result<(), Box<dyn std::error::Error>> {
        let link = args.impairment()?;
        let a = Arc::new(open(&args.a)?);
        let b = Arc::new(open(&args.b)?);
        let there = Lane::start(&a, &b, Impairer::new(link.clone(), args.seed), link.limit);
        let back = Lane::start(&b, &a, Impairer::new(link.clone(), !args.seed), link.limit);

        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        runtime.block_on(async {
            let mut terminate = signal(SignalKind::terminate())?;
            println!("ready {} {}", args.a, args.b);
            tokio::select! {
                end = tokio::signal::ctrl_c() => end,
                _ = terminate.recv() => Ok(()),
            }
        })?;

        report(args, &there.counters.read(), &back.counters.read())?;
        Ok(())
    }

    fn open(name: &str) -> Result<Tun, String> {
        Interface::new(name)
            .and_then(Tun::new_named)
            .map_err(|error| format!("cannot create TUN device {name}: {error}"))
    }

    fn report(args: &Args, there: &Counts, back: &Counts) -> Result<(), serde_json::Error> {
        if args.json {
            #[derive(Serialize)]
            struct Report<'a> {
                seed: u64,
                a_to_b: &'a Counts,
                b_to_a: &'a Counts,
            }
            let report = Report { seed: args.seed, a_to_b: there, b_to_a: back };
            println!("{}", serde_json::to_string(&report)?);
            return Ok(());
        }
        for (from, to, counts) in [(&args.a, &args.b, there), (&args.b, &args.a, back)] {
            println!(
                "{from} -> {to}: {} packets in ({} octets), {} lost, {} overtook, {} found the queue full, {} out, \
                 {} refused by the device",
                counts.packets,
                counts.octets,
                counts.lost,
                counts.overtook,
                counts.overflowed,
                counts.forwarded,
                counts.refused,
            );
        }
        Ok(())
    }

    /// One direction: a thread that takes packets in, a queue ordered by time, a thread that puts them out.
    struct Lane {
        queue: Mutex<Queue>,
        changed: Condvar,
        counters: Counters,
    }

    #[derive(Default)]
    struct Queue {
        waiting: BinaryHeap<Reverse<Waiting>>,
        sequence: u64,
        ended: bool,
    }

    /// Ordered by departure, packets of one instant by arrival.
    #[derive(PartialEq, Eq, PartialOrd, Ord)]
    struct Waiting {
        leaves: Instant,
        sequence: u64,
        packet: Box<[u8]>,
    }

    impl Lane {
        fn start(from: &Arc<Tun>, to: &Arc<Tun>, fates: Impairer, limit: usize) -> Arc<Self> {
            let lane = Arc::new(Self {
                queue: Mutex::default(),
                changed: Condvar::new(),
                counters: Counters::default(),
            });
            // Both threads end with the process: a blocked read of a TUN device has no other end.
            thread::spawn({
                let (lane, from) = (Arc::clone(&lane), Arc::clone(from));
                move || lane.take_in(&from, fates, limit)
            });
            thread::spawn({
                let (lane, to) = (Arc::clone(&lane), Arc::clone(to));
                move || lane.put_out(&to)
            });
            lane
        }

        fn take_in(&self, device: &Tun, mut fates: Impairer, limit: usize) {
            let mut buffer = vec![0; 65_536];
            loop {
                let packet = match device.recv(&mut buffer) {
                    Ok(length) => &buffer[..length],
                    Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                    // The device went away with its namespace.
                    Err(_) => break,
                };
                add(&self.counters.packets, 1);
                add(&self.counters.octets, packet.len() as u64);
                let leaves = match fates.decide(Instant::now(), packet.len()) {
                    Fate::Lost => {
                        add(&self.counters.lost, 1);
                        continue;
                    }
                    Fate::Delayed(at) => at,
                    Fate::Overtakes(at) => {
                        add(&self.counters.overtook, 1);
                        at
                    }
                };
                let mut queue = self.lock();
                if queue.waiting.len() >= limit {
                    add(&self.counters.overflowed, 1);
                    continue;
                }
                let sequence = queue.sequence;
                queue.sequence += 1;
                queue.waiting.push(Reverse(Waiting { leaves, sequence, packet: packet.into() }));
                drop(queue);
                self.changed.notify_one();
            }
            self.lock().ended = true;
            self.changed.notify_one();
        }

        fn put_out(&self, device: &Tun) {
            while let Some(packet) = self.next_due() {
                match device.send(&packet) {
                    Ok(_) => add(&self.counters.forwarded, 1),
                    // A device that is down takes nothing: to the sender a loss like any other.
                    Err(_) => add(&self.counters.refused, 1),
                }
            }
        }

        /// Waits until a packet may leave; `None` when no packet will come any more.
        fn next_due(&self) -> Option<Box<[u8]>> {
            let mut queue = self.lock();
            loop {
                let now = Instant::now();
                match queue.waiting.peek().map(|Reverse(first)| first.leaves) {
                    Some(leaves) if leaves <= now => {
                        return queue.waiting.pop().map(|Reverse(first)| first.packet);
                    }
                    Some(leaves) => {
                        let (guard, _) = self
                            .changed
                            .wait_timeout(queue, leaves - now)
                            .unwrap_or_else(PoisonError::into_inner);
                        queue = guard;
                    }
                    None if queue.ended => return None,
                    None => {
                        queue = self.changed.wait(queue).unwrap_or_else(PoisonError::into_inner);
                    }
                }
            }
        }

        fn lock(&self) -> MutexGuard<'_, Queue> {
            self.queue.lock().unwrap_or_else(PoisonError::into_inner)
        }
    }

    #[derive(Default)]
    struct Counters {
        packets: AtomicU64,
        octets: AtomicU64,
        lost: AtomicU64,
        overtook: AtomicU64,
        overflowed: AtomicU64,
        forwarded: AtomicU64,
        refused: AtomicU64,
    }

    #[derive(Serialize)]
    struct Counts {
        packets: u64,
        octets: u64,
        lost: u64,
        overtook: u64,
        overflowed: u64,
        forwarded: u64,
        refused: u64,
    }

    impl Counters {
        fn read(&self) -> Counts {
            let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
            Counts {
                packets: get(&self.packets),
                octets: get(&self.octets),
                lost: get(&self.lost),
                overtook: get(&self.overtook),
                overflowed: get(&self.overflowed),
                forwarded: get(&self.forwarded),
                refused: get(&self.refused),
            }
        }
    }

    fn add(counter: &AtomicU64, number: u64) {
        counter.fetch_add(number, Ordering::Relaxed);
    }
}
