//! Both ways of talking to the system keep the same promises.

use std::io::{self, ErrorKind};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::sockopt;

use super::*;

const LOOPBACK: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 0);
/// Nothing that is expected takes as long.
const LONG: Duration = Duration::from_secs(20);
/// Nothing that is not expected happens within.
const SHORT: Duration = Duration::from_millis(30);

const READ: Interest = Interest { read: true, write: false };
const WRITE: Interest = Interest { read: false, write: true };
const BOTH: Interest = Interest { read: true, write: true };

fn listener(addr: &SocketAddr) -> io::Result<Socket> {
    let socket = Socket::open(addr)?;
    socket.set_reuse_addr(true)?;
    socket.bind(addr)?;
    socket.listen(16)?;
    Ok(socket)
}

fn within(fd: impl AsFd, flags: PollFlags, limit: Duration) -> bool {
    let limit = Timespec::try_from(limit).unwrap();
    poll(&mut [PollFd::new(&fd, flags)], Some(&limit)).unwrap() > 0
}

/// A connected pair, the connecting side first.
fn pair() -> (Socket, Socket) {
    let listener = listener(&LOOPBACK).unwrap();
    let here = Socket::open(&LOOPBACK).unwrap();
    here.connect(&listener.local_addr().unwrap()).unwrap();
    assert!(within(&listener, PollFlags::IN, LONG));
    let (there, _) = listener.accept().unwrap();
    assert!(within(&here, PollFlags::OUT, LONG));
    assert!(here.take_error().unwrap().is_none());
    (here, there)
}

fn would_block<T: std::fmt::Debug>(result: io::Result<T>) -> bool {
    result.is_err_and(|error| error.kind() == ErrorKind::WouldBlock)
}

fn recv_all(socket: &Socket) -> usize {
    let mut total = 0;
    let mut into = [0; 4096];
    while let Ok(received @ 1..) = socket.recv(&mut into) {
        total += received;
    }
    total
}

fn on_runtime<T>(future: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async { tokio::time::timeout(LONG, future).await.expect("took too long") })
}

/// Waits for what comes within `SHORT`; nothing, it is hoped.
async fn silent(waiter: &mut DriverWaiter) {
    let mut out = Vec::new();
    let until = tokio::time::Instant::now() + SHORT;
    while let Ok(woken) = tokio::time::timeout_at(until, waiter.ready(&mut out)).await {
        assert_eq!(woken.unwrap(), Wakeup::default());
        assert_eq!(out, [], "nothing is armed");
    }
}

async fn next(waiter: &mut DriverWaiter) -> Ready {
    let mut out = Vec::new();
    while out.is_empty() {
        waiter.ready(&mut out).await.unwrap();
    }
    assert_eq!(out.len(), 1, "{out:?}");
    out[0]
}

#[test]
fn a_semaphore_counts_and_the_other_does_not() {
    let semaphore = Notifier::new(true).unwrap();
    let flag = Notifier::new(false).unwrap();
    for notifier in [&semaphore, &flag] {
        notifier.notify(0).unwrap();
        assert_eq!(notifier.try_take().unwrap(), None);
        assert!(!within(notifier, PollFlags::IN, Duration::ZERO));
        notifier.notify(2).unwrap();
        notifier.notify(1).unwrap();
        assert!(within(notifier, PollFlags::IN, Duration::ZERO));
    }
    for _ in 0..3 {
        assert_eq!(semaphore.try_take().unwrap(), Some(1));
    }
    assert_eq!(semaphore.try_take().unwrap(), None);
    assert_eq!(flag.try_take().unwrap(), Some(3));
    assert_eq!(flag.try_take().unwrap(), None);
    for notifier in [&semaphore, &flag] {
        notifier.notify(7).unwrap();
        notifier.drain().unwrap();
        assert!(!within(notifier, PollFlags::IN, Duration::ZERO));
        let flags = rustix::io::fcntl_getfd(notifier).unwrap();
        assert!(flags.contains(rustix::io::FdFlags::CLOEXEC));
    }
}

#[test]
fn more_notifications_than_a_pipe_holds() {
    let semaphore = Notifier::new(true).unwrap();
    semaphore.notify(70_000).unwrap();
    let mut taken = 0_u64;
    while let Some(some) = semaphore.try_take().unwrap() {
        taken += some;
        assert_eq!(within(&semaphore, PollFlags::IN, Duration::ZERO), taken < 70_000);
    }
    assert_eq!(taken, 70_000);
}

#[test]
fn octets_travel_and_nothing_blocks() {
    let (here, there) = pair();
    let mut into = [0; 16];
    assert!(would_block(here.recv(&mut into)));
    assert_eq!(there.send(b"hello").unwrap(), 5);
    assert!(within(&here, PollFlags::IN, LONG));
    assert_eq!(here.recv(&mut into[..2]).unwrap(), 2);
    assert_eq!(here.recv(&mut into[2..]).unwrap(), 3);
    assert_eq!(into[..5], *b"hello");
    assert_eq!(here.peer_addr().unwrap(), there.local_addr().unwrap());
    assert_eq!(here.local_addr().unwrap(), there.peer_addr().unwrap());
    while here.send(&[0; 4096]).is_ok() {}
    assert!(would_block(here.send(&[0])));

    there.shutdown_write().unwrap();
    assert!(within(&here, PollFlags::IN, LONG));
    assert_eq!(here.recv(&mut into).unwrap(), 0, "end of the stream");
    for socket in [&here, &there] {
        let flags = rustix::io::fcntl_getfd(socket).unwrap();
        assert!(flags.contains(rustix::io::FdFlags::CLOEXEC));
        let flags = rustix::fs::fcntl_getfl(socket).unwrap();
        assert!(flags.contains(rustix::fs::OFlags::NONBLOCK));
    }
}

#[test]
fn an_aborted_connection_is_reset() {
    let (here, there) = pair();
    here.send(b"lost").unwrap();
    here.abort().unwrap();
    assert!(within(&there, PollFlags::IN, LONG));
    let mut into = [0; 8];
    let error = loop {
        match there.recv(&mut into) {
            Ok(0) => panic!("a FIN instead of a reset"),
            Ok(_) => {}
            Err(error) if error.kind() == ErrorKind::WouldBlock => thread::yield_now(),
            Err(error) => break error,
        }
    };
    assert_eq!(error.kind(), ErrorKind::ConnectionReset);
    // Would raise SIGPIPE if it were not told not to.
    assert_eq!(there.send(b"x").unwrap_err().kind(), ErrorKind::BrokenPipe);
    there.shutdown_write().unwrap();
}

#[test]
fn a_refused_connection_says_so() {
    let free = listener(&LOOPBACK).unwrap().local_addr().unwrap();
    let socket = Socket::open(&free).unwrap();
    let refused = match socket.connect(&free) {
        Ok(connected) => {
            assert!(!connected);
            assert!(within(&socket, PollFlags::OUT, LONG));
            socket.take_error().unwrap().expect("refused")
        }
        Err(error) => error,
    };
    assert_eq!(refused.kind(), ErrorKind::ConnectionRefused);
    assert_eq!(socket.peer_addr().unwrap_err().kind(), ErrorKind::NotConnected);
}

#[test]
fn a_listener_that_nobody_calls_does_not_block() {
    let listener = listener(&LOOPBACK).unwrap();
    assert!(would_block(listener.accept()));
    let addr = listener.local_addr().unwrap();
    assert_ne!(addr.port(), 0);
    let second = Socket::open(&addr).unwrap();
    assert_eq!(second.bind(&addr).unwrap_err().kind(), ErrorKind::AddrInUse);
}

/// FC-052: the same port for both families.
#[test]
fn a_v6_only_listener_leaves_the_port_to_ipv4() {
    let any = SocketAddr::from((Ipv6Addr::UNSPECIFIED, 0));
    let bind = || {
        let socket = Socket::open(&any)?;
        socket.set_v6_only(true).unwrap();
        socket.bind(&any)?;
        Ok::<_, io::Error>(socket)
    };
    let begun = Instant::now();
    let (six, four, port) = loop {
        let six = match bind() {
            Ok(socket) => socket,
            Err(error) => {
                eprintln!("skipped: no IPv6 here: {error}");
                return;
            }
        };
        six.listen(1).unwrap();
        let port = six.local_addr().unwrap().port();
        match listener(&SocketAddr::from((Ipv4Addr::UNSPECIFIED, port))) {
            Ok(four) => break (six, four, port),
            // The system chose it among those that IPv6 has free; IPv4 may have somebody else's there.
            Err(error) if error.kind() == ErrorKind::AddrInUse && begun.elapsed() < LONG => {}
            Err(error) => panic!("port {port}: {error}"),
        }
    };

    let caller = Socket::open(&any).unwrap();
    let target = SocketAddr::from((Ipv6Addr::LOCALHOST, port));
    if let Err(error) = caller.connect(&target) {
        eprintln!("skipped: no IPv6 loopback here: {error}");
        return;
    }
    assert!(within(&six, PollFlags::IN, LONG));
    let (accepted, peer) = six.accept().unwrap();
    assert_eq!(accepted.local_addr().unwrap(), target);
    assert_eq!(peer, caller.local_addr().unwrap());
    assert!(would_block(four.accept()));
}

#[test]
fn settings_reach_the_system() {
    let (here, _there) = pair();
    here.set_no_delay(true).unwrap();
    assert!(sockopt::tcp_nodelay(&here).unwrap());
    let keepalive =
        Keepalive { idle: Duration::from_secs(30), interval: Duration::from_secs(5), count: 4 };
    here.set_keepalive(Some(keepalive)).unwrap();
    assert!(sockopt::socket_keepalive(&here).unwrap());
    assert_eq!(sockopt::tcp_keepidle(&here).unwrap(), keepalive.idle);
    assert_eq!(sockopt::tcp_keepintvl(&here).unwrap(), keepalive.interval);
    assert_eq!(sockopt::tcp_keepcnt(&here).unwrap(), 4);
    here.set_keepalive(None).unwrap();
    assert!(!sockopt::socket_keepalive(&here).unwrap());
    here.set_user_timeout(Duration::from_millis(12_345)).unwrap();
    #[cfg(target_os = "linux")]
    assert_eq!(sockopt::tcp_user_timeout(&here).unwrap(), 12_345);
}

/// MPA-071: what a segment carries, TCP options taken off. It begins at half of the peer's window
/// and grows with it, as far as the system lets that grow, so whoever cuts by it must ask again.
#[test]
fn the_segment_size_is_that_of_the_payload() {
    let (here, there) = pair();
    let first = here.emss().unwrap();
    assert!((536..65_536).contains(&first), "{first}");
    // The window grows as the system sees fit: soon, but not by a number of segments that could be told.
    let mut later = first;
    for _ in 0..5_000 {
        if later > 60_000 {
            break;
        }
        here.send(&vec![0; 65_536]).unwrap();
        assert!(within(&there, PollFlags::IN, LONG));
        recv_all(&there);
        let now = here.emss().unwrap();
        assert!(now >= later, "{later}, then {now}");
        later = now;
    }
    #[cfg(target_os = "linux")]
    {
        let timestamps = std::fs::read_to_string("/proc/sys/net/ipv4/tcp_timestamps").unwrap();
        let headers = if timestamps.trim() == "0" { 40 } else { 52 };
        let mtu = sockopt::ip_mtu(&here).unwrap();
        assert!((first + 1..=mtu - headers).contains(&later), "{first}, then {later} of {mtu}");
    }
}

#[test]
fn a_stream_of_the_program_s_becomes_ours() {
    let listener = TcpListener::bind(LOOPBACK).unwrap();
    let stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (peer, _) = listener.accept().unwrap();
    let socket = Socket::from_stream(stream).unwrap();
    assert!(would_block(socket.recv(&mut [0])));
    assert_eq!(socket.peer_addr().unwrap(), peer.local_addr().unwrap());
}

#[test]
fn an_armed_socket_is_reported_once() {
    on_runtime(async {
        let set = Arc::new(DriverSet::new().unwrap());
        let mut waiter = set.waiter().unwrap();
        let (here, there) = pair();
        set.add(here.as_fd(), 7).unwrap();
        there.send(b"x").unwrap();
        silent(&mut waiter).await;

        // Readable before it is armed.
        set.arm(here.as_fd(), 7, READ).unwrap();
        let ready = next(&mut waiter).await;
        assert_eq!(ready, Ready { key: 7, readable: true, writable: false, hangup: false });
        silent(&mut waiter).await;
        there.send(b"x").unwrap();
        silent(&mut waiter).await;

        set.arm(here.as_fd(), 7, BOTH).unwrap();
        let ready = next(&mut waiter).await;
        assert!(ready.readable && ready.writable && !ready.hangup);
        assert_eq!(recv_all(&here), 2);

        // Readable after it is armed.
        set.arm(here.as_fd(), 7, READ).unwrap();
        silent(&mut waiter).await;
        there.send(b"x").unwrap();
        assert!(next(&mut waiter).await.readable);
        assert_eq!(recv_all(&here), 1);
    });
}

#[test]
fn a_socket_that_was_silenced_can_be_armed_again() {
    on_runtime(async {
        let set = Arc::new(DriverSet::new().unwrap());
        let mut waiter = set.waiter().unwrap();
        let (here, there) = pair();
        set.add(here.as_fd(), 7).unwrap();
        set.silence(here.as_fd(), 7).unwrap();
        for round in 1..3 {
            set.arm(here.as_fd(), 7, READ).unwrap();
            set.silence(here.as_fd(), 7).unwrap();
            there.send(b"x").unwrap();
            silent(&mut waiter).await;
            set.arm(here.as_fd(), 7, READ).unwrap();
            assert!(next(&mut waiter).await.readable, "round {round}");
            set.silence(here.as_fd(), 7).unwrap();
            assert_eq!(recv_all(&here), 1);
        }
        set.remove(here.as_fd(), 7).unwrap();
    });
}

#[test]
fn a_silent_socket_stays_silent_whatever_happens() {
    on_runtime(async {
        let set = Arc::new(DriverSet::new().unwrap());
        let mut waiter = set.waiter().unwrap();
        let (here, there) = pair();
        set.add(here.as_fd(), 1).unwrap();
        there.send(b"x").unwrap();
        there.abort().unwrap();
        silent(&mut waiter).await;
        set.arm(here.as_fd(), 1, READ).unwrap();
        let ready = next(&mut waiter).await;
        assert!(ready.hangup && ready.readable && ready.writable);
        set.arm(here.as_fd(), 1, READ).unwrap();
        set.remove(here.as_fd(), 1).unwrap();
        silent(&mut waiter).await;
        set.remove(here.as_fd(), 1).unwrap();
    });
}

#[test]
fn room_to_send_is_reported() {
    on_runtime(async {
        let set = Arc::new(DriverSet::new().unwrap());
        let mut waiter = set.waiter().unwrap();
        let (here, there) = pair();
        set.add(here.as_fd(), 2).unwrap();
        let mut taken = 0;
        while let Ok(some) = here.send(&vec![0; 65_536]) {
            taken += some;
        }
        set.arm(here.as_fd(), 2, WRITE).unwrap();
        silent(&mut waiter).await;
        let mut received = 0;
        while received < taken {
            received += recv_all(&there);
        }
        let ready = next(&mut waiter).await;
        assert_eq!(ready, Ready { key: 2, readable: false, writable: true, hangup: false });
    });
}

#[test]
fn a_wake_up_is_kept_for_the_next_wait() {
    on_runtime(async {
        let set = Arc::new(DriverSet::new().unwrap());
        let mut waiter = set.waiter().unwrap();
        let mut out = Vec::new();
        let woken = Wakeup { woken: true, timer: false };
        set.wake().unwrap();
        set.wake().unwrap();
        assert_eq!(waiter.ready(&mut out).await.unwrap(), woken);
        silent(&mut waiter).await;
        let other = Arc::clone(&set);
        let thread = thread::spawn(move || {
            thread::sleep(SHORT);
            other.wake().unwrap();
        });
        assert_eq!(waiter.ready(&mut out).await.unwrap(), woken);
        thread.join().unwrap();
        assert_eq!(out, []);
        // A waiter that replaces another finds what the first one left.
        set.wake().unwrap();
        drop(waiter);
        let mut waiter = set.waiter().unwrap();
        assert_eq!(waiter.ready(&mut out).await.unwrap(), woken);
    });
}

#[test]
fn the_timer_comes_once_and_can_be_called_off() {
    on_runtime(async {
        let set = Arc::new(DriverSet::new().unwrap());
        let mut waiter = set.waiter().unwrap();
        let mut out = Vec::new();
        let timer = Wakeup { woken: false, timer: true };
        let before = Instant::now();
        set.set_timer(Some(SHORT)).unwrap();
        while waiter.ready(&mut out).await.unwrap() != timer {}
        assert!(before.elapsed() >= SHORT);
        silent(&mut waiter).await;
        set.set_timer(Some(Duration::ZERO)).unwrap();
        while waiter.ready(&mut out).await.unwrap() != timer {}
        set.set_timer(Some(SHORT / 3)).unwrap();
        set.set_timer(None).unwrap();
        silent(&mut waiter).await;
        set.set_timer(Some(Duration::from_hours(1))).unwrap();
        silent(&mut waiter).await;
        // Set anew from another thread while the driver sleeps.
        let other = Arc::clone(&set);
        let thread = thread::spawn(move || {
            thread::sleep(SHORT);
            other.set_timer(Some(Duration::from_micros(200))).unwrap();
        });
        while waiter.ready(&mut out).await.unwrap() != timer {}
        thread.join().unwrap();
    });
}

/// Octets that come while the driver reads, arms or falls asleep are all found.
#[test]
fn no_readiness_is_lost_between_reading_and_arming() {
    const OCTETS: u64 = 5_000;
    on_runtime(async {
        let set = Arc::new(DriverSet::new().unwrap());
        let mut waiter = set.waiter().unwrap();
        let (here, there) = pair();
        set.add(here.as_fd(), 3).unwrap();
        let taken = Arc::new(AtomicU64::new(0));
        let seen = Arc::clone(&taken);
        let writer = thread::spawn(move || {
            for octet in 0..OCTETS {
                while there.send(&[1]).is_err() {
                    thread::yield_now();
                }
                // Now and then only after all has been read, when the driver is about to sleep.
                let until = Instant::now() + LONG;
                while octet % 3 == 0 && seen.load(Ordering::Acquire) <= octet {
                    assert!(Instant::now() < until, "octet {octet} was not seen");
                    thread::yield_now();
                }
            }
            there
        });
        let mut total = 0;
        while total < OCTETS {
            total += recv_all(&here) as u64;
            taken.store(total, Ordering::Release);
            if total < OCTETS {
                set.arm(here.as_fd(), 3, READ).unwrap();
                assert!(next(&mut waiter).await.readable);
            }
        }
        writer.join().unwrap();
    });
}

#[test]
fn a_wait_ends_with_its_time() {
    let set = WaitSet::new().unwrap();
    let mut out = Vec::new();
    let before = Instant::now();
    while before.elapsed() < SHORT {
        set.wait(set.ticket(), Some(SHORT), &mut out).unwrap();
    }
    assert!(before.elapsed() < LONG);
    set.wait(set.ticket(), Some(Duration::ZERO), &mut out).unwrap();
    set.poll_now(&mut out).unwrap();
    assert_eq!(out, []);
}

/// Waits until a socket is reported readable.
fn readable(set: &WaitSet, key: u64) {
    let mut out = Vec::new();
    let until = Instant::now() + LONG;
    while !out.iter().any(|ready: &Ready| ready.readable) {
        assert!(Instant::now() < until, "not reported");
        out.clear();
        set.wait(set.ticket(), Some(LONG), &mut out).unwrap();
    }
    assert!(out.iter().all(|ready| ready.key == key), "{out:?}");
}

#[test]
fn a_socket_is_reported_when_more_comes() {
    let set = WaitSet::new().unwrap();
    let (here, there) = pair();
    set.add(here.as_fd(), 5).unwrap();
    for round in 0..20 {
        there.send(b"x").unwrap();
        readable(&set, 5);
        let mut out = Vec::new();
        if round % 2 == 0 {
            // Not read yet, and not reported again.
            set.poll_now(&mut out).unwrap();
            assert!(!out.iter().any(|ready| ready.readable), "{out:?}");
        }
        assert_eq!(recv_all(&here), 1);
        set.rearm(5);
    }
    there.send(b"x").unwrap();
    assert!(within(&here, PollFlags::IN, LONG));
    set.remove(here.as_fd(), 5).unwrap();
    let mut out = Vec::new();
    set.poll_now(&mut out).unwrap();
    set.wait(set.ticket(), Some(SHORT), &mut out).unwrap();
    assert_eq!(out, []);
}

/// A socket that joins while somebody sleeps is watched at once.
#[test]
fn a_socket_may_join_during_a_wait() {
    let set = WaitSet::new().unwrap();
    let (here, there) = pair();
    there.send(b"x").unwrap();
    assert!(within(&here, PollFlags::IN, LONG));
    thread::scope(|scope| {
        scope.spawn(|| readable(&set, 9));
        thread::sleep(SHORT);
        set.add(here.as_fd(), 9).unwrap();
    });
}

#[test]
fn one_wake_up_reaches_all_who_sleep() {
    const SLEEPERS: usize = 8;
    let set = WaitSet::new().unwrap();
    for _ in 0..20 {
        let asleep = AtomicUsize::new(0);
        let over = AtomicBool::new(false);
        thread::scope(|scope| {
            let sleepers: Vec<_> = (0..SLEEPERS)
                .map(|_| {
                    scope.spawn(|| {
                        let ticket = set.ticket();
                        asleep.fetch_add(1, Ordering::Relaxed);
                        let before = Instant::now();
                        while !over.load(Ordering::Relaxed) {
                            set.wait(ticket, Some(LONG), &mut Vec::new()).unwrap();
                        }
                        before.elapsed()
                    })
                })
                .collect();
            while asleep.load(Ordering::Relaxed) < SLEEPERS {
                thread::yield_now();
            }
            thread::sleep(Duration::from_millis(2));
            over.store(true, Ordering::Relaxed);
            set.wake();
            for sleeper in sleepers {
                assert!(sleeper.join().unwrap() < LONG, "slept through");
            }
        });
        // Nobody is left, so the next one sleeps.
        let before = Instant::now();
        set.wait(set.ticket(), Some(Duration::from_millis(5)), &mut Vec::new()).unwrap();
        assert!(before.elapsed() >= Duration::from_millis(5), "woken by the last one's alarm");
    }
}

/// Ticket, last look, sleep on one side; store, wake on the other.
#[test]
fn no_wake_up_is_lost_between_the_last_look_and_the_sleep() {
    const ROUNDS: u64 = 5_000;
    let set = WaitSet::new().unwrap();
    let stored = AtomicU64::new(0);
    let taken = AtomicU64::new(0);
    thread::scope(|scope| {
        scope.spawn(|| {
            for round in 1..=ROUNDS {
                stored.store(round, Ordering::Release);
                set.wake();
                while taken.load(Ordering::Acquire) < round {
                    thread::yield_now();
                }
            }
        });
        for round in 1..=ROUNDS {
            let before = Instant::now();
            loop {
                let ticket = set.ticket();
                if stored.load(Ordering::Acquire) == round {
                    break;
                }
                set.wait(ticket, Some(LONG), &mut Vec::new()).unwrap();
            }
            assert!(before.elapsed() < LONG, "round {round}: slept through");
            taken.store(round, Ordering::Release);
        }
    });
}

/// Tasks hear of sockets where there is a descriptor for all of them, and never of `wake`.
#[test]
fn tasks_wait_for_sockets() {
    on_runtime(async {
        let set = Arc::new(WaitSet::new().unwrap());
        let (here, there) = pair();
        set.add(here.as_fd(), 4).unwrap();
        let (Some(mut first), Some(mut second)) =
            (set.task_waiter().unwrap(), set.task_waiter().unwrap())
        else {
            // As it is in `portable.rs`.
            return;
        };
        for round in 0..50 {
            there.send(b"x").unwrap();
            // Two tasks of one runtime, of which either may get the report.
            let waiter = if round % 2 == 0 { &mut first } else { &mut second };
            let mut out = Vec::new();
            while !out.iter().any(|ready: &Ready| ready.readable) {
                out.clear();
                waiter.ready(&mut out).await.unwrap();
            }
            assert_eq!(recv_all(&here), 1);
            set.rearm(4);
        }
    });
}

#[test]
fn a_cancelled_wait_takes_nothing_and_owes_nothing() {
    on_runtime(async {
        let set = Arc::new(WaitSet::new().unwrap());
        let (here, there) = pair();
        set.add(here.as_fd(), 6).unwrap();
        let Some(mut waiter) = set.task_waiter().unwrap() else { return };
        let mut out = Vec::new();
        // The first report may be of room to send.
        while tokio::time::timeout(SHORT, waiter.ready(&mut out)).await.is_ok() {}
        out.clear();
        there.send(b"x").unwrap();
        // Polled and dropped without end, until a poll returns the report.
        while !out.iter().any(|ready| ready.readable) {
            let _ = tokio::time::timeout(Duration::from_micros(1), waiter.ready(&mut out)).await;
        }
        let cancelled = tokio::time::timeout(SHORT, waiter.ready(&mut out)).await;
        assert!(cancelled.is_err(), "one report");
        // A task that waits, but is not polled, keeps no thread awake.
        set.wake();
        let before = Instant::now();
        set.wait(set.ticket(), Some(SHORT), &mut out).unwrap();
        assert!(before.elapsed() >= SHORT);
    });
}
