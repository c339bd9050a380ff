//! Processes that really fork.
//!
//! Each test runs its scenario in a process of its own, where no other test holds a lock at that moment.

use std::any::Any;
use std::io::{self, Write as _};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, WaitOptions, kill_process, waitpid};

use iwarp_ddp::Stag;

use super::*;
use crate::cm::{self, ConnParam, ConnectError, Connection, EventKind, ListenConfig, Listener};
use crate::mem::{
    FastRegion, KeyTable, LocalWork, Mapping, MemoryWindow, PdId, Peer, WindowBinding,
};
use crate::{
    Access, CompletionChannel, CompletionQueue, Device, DeviceConfig, Error, MemoryError,
    MemoryRegion, Owned, PostErrorCause, ProtectionDomain, QpConfig, QueuePair, RecvRequest,
    SendRequest, SharedReceiveQueue, SrqChange, SrqConfig, WindowType,
};

const GUARD: Duration = Duration::from_secs(30);

const ROLE: &str = "IWARP_FORK_TEST";

/// Runs `scenario` in a process that runs nothing else: this binary once more.
fn alone(name: &str, scenario: fn()) {
    if std::env::var_os(ROLE).is_some() {
        return scenario();
    }
    let mut again = Command::new(std::env::current_exe().unwrap());
    again.args([&format!("mem::fork::tests::{name}"), "--exact", "--nocapture"]).env(ROLE, "1");
    let output = again.output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{}: {said}", output.status);
    let ran = String::from_utf8_lossy(&output.stdout);
    assert!(ran.contains("1 passed"), "{ran}");
}

/// A forked child. Dropping it ends it.
struct Child(Pid);

impl Child {
    fn run(scenario: impl FnOnce()) -> Self {
        // SAFETY: the child goes on with a copy of this thread only. The C library keeps its own locks usable
        // there, and what else the child runs into is what is being tested. It never returns from here.
        let child = unsafe { libc::fork() };
        match child {
            0 => {
                let code = match catch_unwind(AssertUnwindSafe(scenario)) {
                    Ok(()) => 0,
                    Err(panic) => {
                        let _ = io::stderr().write_all(message(&*panic));
                        1
                    }
                };
                // SAFETY: ends this process, with the handlers that the C library has for that.
                unsafe { libc::exit(code) }
            }
            child => Self(Pid::from_raw(child).unwrap_or_else(|| {
                panic!("cannot fork: {}", io::Error::last_os_error());
            })),
        }
    }

    fn is_over(&self) -> bool {
        match waitpid(Some(self.0), WaitOptions::NOHANG).unwrap() {
            None => false,
            Some((_, status)) => {
                assert_eq!(status.exit_status(), Some(0), "{status:?}");
                true
            }
        }
    }

    fn wait(self) {
        let started = Instant::now();
        while !self.is_over() {
            if started.elapsed() > GUARD {
                kill_process(self.0, Signal::KILL).unwrap();
                panic!("the child hangs");
            }
            thread::sleep(Duration::from_millis(1));
        }
    }
}

fn message(panic: &(dyn Any + Send)) -> &[u8] {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("a panic").as_bytes()
}

/// A connection of the process with itself, and what it needs.
struct World {
    device: Device,
    pd: ProtectionDomain,
    cq: CompletionQueue,
    told: CompletionChannel,
    srq: SharedReceiveQueue,
    listener: Listener,
    client: Connection,
    server: Connection,
}

impl World {
    fn new() -> Self {
        let device = Device::open(DeviceConfig::default()).unwrap();
        let pd = device.alloc_pd();
        let cq = device.create_cq(64).unwrap();
        let told = device.create_channel().unwrap();
        let srq = pd.create_srq(&SrqConfig::default()).unwrap();
        let listener = Listener::bind(&device, "127.0.0.1:0", ListenConfig::default()).unwrap();
        let (client, server) = connect(&pd, &cq, &listener);
        Self { device, pd, cq, told, srq, listener, client, server }
    }

    /// A message, and a Write that nobody but the driver sees arrive.
    fn exchange(&self) {
        let rights = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
        let region = self.pd.alloc(64, rights).unwrap();
        let receive = RecvRequest::new(1, region.slice(..32).unwrap());
        self.server.qp().post_recv(receive).unwrap();
        let send = SendRequest::send_inline(2, b"goes on").unsignaled();
        self.client.qp().post_send(send).unwrap();
        let done = self.cq.wait(GUARD).unwrap().expect("a message");
        assert!(done.is_success() && done.wr_id == 1, "{done:?}");

        let word = 0x0123_4567_89ab_cdef_u64;
        let source = self.pd.alloc(8, Access::empty()).unwrap();
        source.write_at(0, &word.to_ne_bytes()).unwrap();
        let remote = region.remote().slice(32..40).unwrap();
        let write = SendRequest::write(3, source.as_slice_all(), remote).unsignaled();
        self.client.qp().post_send(write).unwrap();
        let started = Instant::now();
        while region.load_u64(32).unwrap() != word {
            assert!(started.elapsed() < GUARD, "the Write does not arrive");
            thread::yield_now();
        }
    }
}

fn connect(
    pd: &ProtectionDomain,
    cq: &CompletionQueue,
    listener: &Listener,
) -> (Connection, Connection) {
    let qp = || -> QueuePair { pd.create_qp(&QpConfig::new(cq)).unwrap() };
    let connecting = cm::connect(listener.local_addr(), &qp(), ConnParam::default()).unwrap();
    let request = listener.accept(GUARD).unwrap();
    let accepting = request.accept(&qp(), ConnParam::default()).unwrap();
    (connecting.wait(GUARD).unwrap(), accepting.wait(GUARD).unwrap())
}

#[test]
fn each_process_of_a_line_knows_itself() {
    alone("each_process_of_a_line_knows_itself", || {
        static OWN: PerProcess<Origin> = PerProcess::new(Origin::here);
        let grandparent = Origin::here();
        assert!(grandparent.is_here() && *OWN.get() == grandparent);
        let drawn = random_u32();
        Child::run(|| {
            let parent = Origin::here();
            assert!(parent.is_here() && !grandparent.is_here());
            assert_eq!(*OWN.get(), parent);
            assert!(std::ptr::eq(OWN.get(), OWN.get()));
            assert_ne!(random_u32(), drawn);
            Child::run(|| {
                assert!(Origin::here().is_here() && !parent.is_here() && !grandparent.is_here());
                assert_eq!(*OWN.get(), Origin::here());
            })
            .wait();
            // Two children of one parent, too.
            assert!(parent.is_here());
        })
        .wait();
        assert!(grandparent.is_here() && *OWN.get() == grandparent);
    });
}

/// FC-064: the parent's connections live on, whatever the child does with its copies.
#[test]
fn fc_064_a_child_disturbs_nothing() {
    alone("fc_064_a_child_disturbs_nothing", || {
        let mut parent = Some(parent());
        // Nobody answers.
        let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let mut connecting = parent.as_ref().map(|(world, ..)| {
            let qp = world.pd.create_qp(&QpConfig::new(&world.cq)).unwrap();
            cm::connect(silent.local_addr().unwrap(), &qp, ConnParam::default()).unwrap()
        });
        let child = Child::run(|| {
            let (world, channel, listening, memory) = parent.take().unwrap();
            // Registered memory is memory: half a page of it, and the half beside it.
            let mut page = [0; 4096];
            memory.read_at(0, &mut page).unwrap();
            assert_eq!((page[0], page[4095]), (7, 9));
            calls_fail(&world);
            assert!(channel.get_event().is_none() && channel.wait_event(None).is_none());
            for error in [listening.disconnect(), listening.reject(b""), listening.destroy()] {
                assert!(matches!(error, Err(ConnectError::Forked)), "{error:?}");
            }
            assert!(matches!(channel.clone().destroy(), Err(Error::Forked)));
            world.client.disconnect();
            world.server.qp().disconnect();
            // None of these will ever come to its end here.
            assert_eq!(world.client.wait_closed(None), None);
            let error = connecting.take().unwrap().wait(None).unwrap_err();
            assert!(matches!(error, ConnectError::Forked), "{error:?}");
            // The last handles of everything.
            drop((listening, channel, memory));
            let World { device, pd, cq, told, srq, listener, client, server } = world;
            drop((client, server));
            drop((listener, cq, told, srq, pd));
            drop(device);
        });
        let (world, channel, ..) = parent.as_ref().unwrap();
        let started = Instant::now();
        while !child.is_over() {
            assert!(started.elapsed() < GUARD, "the child hangs");
            world.exchange();
        }
        // Nothing is gone from any set of descriptors.
        thread::sleep(Duration::from_millis(5));
        world.exchange();
        let event = channel.wait_event(GUARD).expect("the event that was waiting");
        assert_eq!(event.kind, EventKind::ConnectRequest);
        let (client, server) = connect(&world.pd, &world.cq, &world.listener);
        for (here, there) in [(&client, &server), (&world.client, &world.server)] {
            here.disconnect();
            assert!(there.wait_closed(GUARD).unwrap().is_orderly());
        }
    });
}

/// FC-064: whoever was moving octets at that moment is not there in the child, and is not waited for.
#[test]
fn fc_064_memory_that_was_in_use_holds_up_nothing() {
    alone("fc_064_memory_that_was_in_use_holds_up_nothing", || {
        let mut memory = Some(Memory::new());
        let found = memory.as_ref().unwrap().keys().map(|key| {
            let found = KeyTable::of_process().lookup(Stag::from_raw(key));
            found.expect("a key in force")
        });
        let inside = found.each_ref().map(|region| region.use_guard().expect("in force"));
        Child::run(|| {
            let Memory { pd, region, owned, window, fast } = memory.take().unwrap();
            let errors = [
                region.clone().deregister(),
                window.clone().destroy(),
                fast.clone().destroy(),
                pd.alloc(8, Access::empty()).map(drop),
                pd.alloc_window(WindowType::One).map(drop),
            ];
            for error in errors {
                assert_eq!(error, Err(MemoryError::Forked));
            }
            assert_eq!(MemoryError::Forked.errno(), 19);
            assert!(matches!(pd.clone().destroy(), Err(Error::Forked)));
            // What is in it is the child's own.
            region.write_at(0, b"mine").unwrap();
            drop((region, window, fast, pd));
            assert_eq!(owned.deregister(), [7; 64]);
        })
        .wait();
        drop(inside);
        let Memory { pd, region, owned, window, fast } = memory.take().unwrap();
        let mut octets = [1; 4];
        region.read_at(0, &mut octets).unwrap();
        assert_eq!(octets, [0; 4]);
        window.destroy().unwrap();
        fast.destroy().unwrap();
        region.deregister().unwrap();
        assert_eq!(owned.deregister(), [7; 64]);
        pd.destroy().unwrap();
    });
}

/// A domain with one of each.
struct Memory {
    pd: ProtectionDomain,
    region: MemoryRegion,
    owned: Owned<Vec<u8>>,
    window: MemoryWindow,
    fast: FastRegion,
}

impl Memory {
    fn new() -> Self {
        let pd = Device::open(DeviceConfig::default()).unwrap().alloc_pd();
        let access = Access::LOCAL_WRITE | Access::MW_BIND;
        let region = pd.alloc(64, access).unwrap();
        let owned = pd.register(vec![7; 64], access).unwrap();
        let window = pd.alloc_window(WindowType::One).unwrap();
        let fast = pd.alloc_fast_region(64, 1, true).unwrap();
        let rights = Access::REMOTE;
        let peer = Peer { domain: pd.0.id, stream: PdId::new(), rights, invalidates: true };
        let binding = WindowBinding::new(&region.as_slice_all(), Access::REMOTE_READ);
        LocalWork::Bind { window: window.clone(), key: 1, binding }.perform(peer).unwrap();
        let mapping = Mapping::new([owned.region().as_slice_all()], Access::REMOTE_READ);
        LocalWork::Register { region: fast.clone(), key: 1, mapping }.perform(peer).unwrap();
        Self { pd, region, owned, window, fast }
    }

    fn keys(&self) -> [u32; 4] {
        let Self { region, owned, window, fast, .. } = self;
        [region.rkey(), owned.region().rkey(), window.rkey(), fast.rkey()]
    }
}

/// A process with everything in it, and a request that waits.
fn parent() -> (World, cm::EventChannel, cm::Id, crate::MemoryRegion) {
    let world = World::new();
    let channel = cm::EventChannel::new(&world.device).unwrap();
    let listening = cm::Id::new(&channel);
    listening.bind("127.0.0.1:0", cm::BindOptions::default()).unwrap();
    listening.listen(0).unwrap();
    let qp = world.pd.create_qp(&QpConfig::new(&world.cq)).unwrap();
    let to = listening.local_addr().unwrap();
    let mut pending = Some(cm::connect(to, &qp, ConnParam::default()).unwrap());
    let started = Instant::now();
    let queued = || format!("{channel:?}").contains("queued: 1");
    while !queued() {
        assert!(started.elapsed() < GUARD, "{channel:?}");
        thread::yield_now();
    }
    // It need not go on, and a request stays.
    drop(pending.take());
    let memory = world.pd.alloc(4096, Access::LOCAL_WRITE).unwrap();
    memory.write_at(0, &[7]).unwrap();
    memory.write_at(4095, &[9]).unwrap();
    world.exchange();
    (world, channel, listening, memory)
}

fn calls_fail(world: &World) {
    let qp = world.client.qp();
    let refused = qp.post_send(SendRequest::send_inline(9, b"not mine")).unwrap_err();
    assert_eq!((refused.cause.clone(), refused.errno()), (PostErrorCause::Forked, 19));
    let refused = world.server.qp().post_recv(RecvRequest::new(9, ())).unwrap_err();
    assert_eq!(refused.cause, PostErrorCause::Forked);
    assert!(world.cq.poll_one().is_none());
    let errors = [
        world.cq.wait(GUARD).map(drop),
        qp.modify(crate::QpState::Err),
        qp.destroy(),
        world.device.create_cq(1).map(drop),
        world.pd.create_qp(&QpConfig::new(&world.cq)).map(drop),
        world.device.next_async_event().map(drop),
        // What would take something out of descriptors that the parent has as well.
        world.cq.clone().destroy(),
        world.told.clone().destroy(),
        world.srq.destroy(),
        world.pd.clone().destroy(),
        world.device.clone().destroy(),
        // ... and what the parent alone decides.
        world.cq.resize(128),
        world.srq.modify(SrqChange { limit: Some(1), ..SrqChange::default() }),
        world.device.create_channel().map(drop),
        world.pd.create_srq(&SrqConfig::default()).map(drop),
    ];
    for error in errors {
        assert!(matches!(error, Err(Error::Forked)), "{error:?}");
    }
    let errors = [
        world.listener.accept(GUARD).map(drop),
        Listener::bind(&world.device, "127.0.0.1:0", ListenConfig::default()).map(drop),
        cm::connect(world.listener.local_addr(), qp, ConnParam::default()).map(drop),
    ];
    for error in errors {
        assert!(matches!(error, Err(ConnectError::Forked)), "{error:?}");
    }
    assert!(world.listener.try_accept().is_none());
}

/// FC-064: threads, keys and numbers of its own.
#[test]
fn fc_064_a_child_begins_afresh() {
    alone("fc_064_a_child_begins_afresh", || {
        let world = World::new();
        world.exchange();
        let known = drawn(&world);
        let (read, write) = std::io::pipe().unwrap();
        let child = Child::run(|| {
            // With the parent's objects there all the time.
            let own = World::new();
            own.exchange();
            let told = drawn(&own).map(u32::to_ne_bytes).concat();
            rustix::io::write(&write, &told).unwrap();
        });
        child.wait();
        drop(write);
        let mut theirs = [0; 12];
        rustix::io::read(&read, &mut theirs).unwrap();
        let mine = drawn(&world);
        for (at, theirs) in theirs.chunks_exact(4).enumerate() {
            let theirs = u32::from_ne_bytes(theirs.try_into().unwrap());
            assert!(theirs != known[at] && theirs != mine[at], "number {at}: {theirs:#x}");
        }
        world.exchange();
    });
}

/// What must not be the same in two processes: a key, the number of a queue pair, a key for a Read.
fn drawn(world: &World) -> [u32; 3] {
    let region = world.pd.alloc(8, Access::empty()).unwrap();
    let qp = world.pd.create_qp(&QpConfig::new(&world.cq)).unwrap();
    [region.lkey(), qp.number(), random_u32()]
}
