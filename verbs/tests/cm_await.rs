//! The await style: in any runtime or none, beside the polling style, and dropped at any moment.
#![allow(clippy::unwrap_used, reason = "a failed step is a failed test")]

mod cm_support;

use std::pin::Pin;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use cm_support::*;
use iwarp_verbs::aio::{self, RequestError};
use iwarp_verbs::cm::{self, CloseReason, ConnParam, ConnectError, Connection};
use iwarp_verbs::{
    Access, DeviceConfig, MemoryRegion, QpConfig, QueuePair, RecvRequest, RemoteMemory,
    SendRequest, WcStatus,
};
use rand::rngs::SmallRng;
use rand::{RngExt as _, SeedableRng as _};

const ALL: Access = Access::LOCAL_WRITE.union(Access::REMOTE_WRITE).union(Access::REMOTE_READ);

/// A connection within the process.
struct Pair {
    world: World,
    client: Connection,
    server: Connection,
}

impl Pair {
    fn new() -> Self {
        let world = World::new();
        let (client, server) = (world.qp(), world.qp());
        Self::with(world, &client, &server)
    }

    fn with(world: World, client: &QueuePair, server: &QueuePair) -> Self {
        let listener = world.listener();
        let connecting = cm::connect(listener.local_addr(), client, ConnParam::default()).unwrap();
        let request = listener.accept(GUARD).unwrap();
        let accepting = request.accept(server, ConnParam::default()).unwrap();
        let (client, server) = (connecting.wait(GUARD).unwrap(), accepting.wait(GUARD).unwrap());
        Self { world, client, server }
    }

    fn region(&self, len: usize) -> MemoryRegion {
        self.world.pd.alloc(len, ALL).unwrap()
    }
}

/// Waits in the calling thread, for as long as a test may take.
fn done<T>(future: impl Future<Output = T>) -> T {
    aio::wait(future, GUARD).expect("done in time")
}

/// Polls once.
fn poll_once<F: Future + ?Sized>(future: Pin<&mut F>) -> Poll<F::Output> {
    future.poll(&mut Context::from_waker(Waker::noop()))
}

async fn all_operations(pair: &Pair) {
    let (local, remote) = (pair.region(256), pair.region(256));
    let offer = remote.remote();
    local.write_at(0, &[7; 64]).unwrap();

    pair.client.write(local.slice(0..64).unwrap(), offer).await.unwrap();
    pair.client.read(local.slice(64..128).unwrap(), offer).await.unwrap();
    let mut back = [0; 64];
    local.read_at(64, &mut back).unwrap();
    assert_eq!(back, [7; 64]);

    pair.client.write_inline([9; 8], offer).await.unwrap();
    let (received, sent) = tokio::join!(
        pair.server.recv(remote.slice(128..256).unwrap()),
        pair.client.send(local.slice(0..100).unwrap()),
    );
    sent.unwrap();
    assert_eq!(received.unwrap().len, 100);
    let mut head = [0; 8];
    remote.read_at(0, &mut head).unwrap();
    assert_eq!(head, [9; 8]);

    let (received, sent) = tokio::join!(
        pair.server.recv(remote.slice(128..256).unwrap()),
        pair.client.send_with_invalidate((), offer.rkey),
    );
    sent.unwrap();
    assert_eq!(received.unwrap().invalidated_rkey, Some(remote.lkey()));

    let (received, sent) =
        tokio::join!(pair.client.recv(local.as_slice_all()), pair.server.send_inline(b"bye"));
    sent.unwrap();
    assert_eq!(received.unwrap().len, 3);
}

#[tokio::test(flavor = "current_thread")]
async fn every_operation_in_a_single_threaded_runtime() {
    all_operations(&Pair::new()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_operation_in_a_runtime_with_threads() {
    let pair = Pair::new();
    tokio::spawn(async move { all_operations(&pair).await }).await.unwrap();
}

#[test]
fn every_operation_without_a_runtime() {
    done(all_operations(&Pair::new()));
}

#[test]
fn a_connection_outlives_the_runtime_it_was_made_in() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let pair = runtime.block_on(async {
        let pair = Pair::new();
        all_operations(&pair).await;
        pair
    });
    drop(runtime);
    done(all_operations(&pair));
}

#[test]
fn both_styles_on_one_connection() {
    let pair = Pair::new();
    let region = pair.region(4096);
    let slice = |index: usize| region.slice(64 * index..64 * (index + 1)).unwrap();
    // Receives of both styles take messages in the order in which they were posted.
    let mut awaited: Vec<_> = Vec::new();
    for index in 0..8 {
        if index % 2 == 0 {
            pair.server.qp().post_recv(RecvRequest::new(index as u64, slice(index))).unwrap();
        } else {
            let mut receive = Box::pin(pair.server.recv(slice(index)));
            assert!(poll_once(receive.as_mut()).is_pending());
            awaited.push(receive);
        }
    }
    for index in 0..8u8 {
        if index % 4 < 2 {
            done(pair.client.send_inline([index])).unwrap();
        } else {
            let send = SendRequest::send_inline(100 + u64::from(index), [index]);
            pair.client.qp().post_send(send).unwrap();
        }
    }
    for receive in awaited {
        assert_eq!(done(receive).unwrap().len, 1);
    }
    // Nothing of the awaited ones is in the completion queue.
    let mut ids: Vec<_> = pair.world.completions(8).iter().map(|wc| wc.wr_id).collect();
    ids.sort_unstable();
    assert_eq!(ids, [0, 2, 4, 6, 102, 103, 106, 107]);
    assert!(pair.world.cq.poll_one().is_none());
    for index in 0..8 {
        let mut octet = [0xff];
        region.read_at(64 * index, &mut octet).unwrap();
        assert_eq!(usize::from(octet[0]), index);
    }
}

#[test]
fn a_full_send_queue_is_waited_for_in_order() {
    let world = World::with(DeviceConfig::default().hold_back(GUARD));
    let client = world.pd.create_qp(&QpConfig::new(&world.cq).max_send_wr(2)).unwrap();
    let server = world.qp();
    let pair = Pair::with(world, &client, &server);
    let region = pair.region(64 * 1024);
    let remote = region.remote();
    let sink = pair.region(64 * 1024);
    // Reads fill a queue of two: behind a Send that finds no receive they are not answered.
    done(pair.client.send_inline([0xee])).unwrap();
    let mut reads: Vec<_> = (0..4)
        .map(|_| {
            Box::pin(pair.client.read(
                sink.slice(1024..64 * 1024).unwrap(),
                RemoteMemory { len: 63 * 1024, ..remote },
            ))
        })
        .collect();
    for read in &mut reads {
        assert!(poll_once(read.as_mut()).is_pending());
    }
    let mut sends: Vec<_> =
        (0..20u8).map(|index| Box::pin(pair.client.send_inline([index]))).collect();
    for send in &mut sends {
        assert!(poll_once(send.as_mut()).is_pending());
    }
    pair.server.qp().post_recv(RecvRequest::new(20, sink.slice(20..=20).unwrap())).unwrap();
    for index in 0..20 {
        let slice = sink.slice(index..=index).unwrap();
        pair.server.qp().post_recv(RecvRequest::new(index as u64, slice)).unwrap();
    }
    // Awaited in the wrong order, they are posted in the right one: who is first in the line holds up
    // nobody by not being polled.
    for send in sends.into_iter().rev() {
        done(send).unwrap();
    }
    for read in reads {
        done(read).unwrap();
    }
    let completions = pair.world.completions(21);
    assert_eq!((completions[0].status, completions[0].wr_id), (WcStatus::Success, 20));
    for (index, wc) in completions[1..].iter().enumerate() {
        assert_eq!((wc.status, wc.wr_id), (WcStatus::Success, index as u64));
        let mut octet = [0xff];
        sink.read_at(index, &mut octet).unwrap();
        assert_eq!(usize::from(octet[0]), index);
    }
}

#[test]
fn a_queue_of_no_places_refuses() {
    let world = World::new();
    let config = QpConfig::new(&world.cq).max_send_wr(0).max_recv_wr(0);
    let client = world.pd.create_qp(&config).unwrap();
    let server = world.qp();
    let pair = Pair::with(world, &client, &server);
    assert!(matches!(done(pair.client.send_inline(b"")), Err(RequestError::Post(_))));
    assert!(matches!(done(pair.client.recv(())), Err(RequestError::Post(_))));
}

#[test]
fn requests_that_cannot_be_posted_say_why() {
    let pair = Pair::new();
    let foreign = pair.world.device.alloc_pd().alloc(8, ALL).unwrap();
    let error = done(pair.client.send(foreign.as_slice_all())).unwrap_err();
    assert!(error.to_string().contains("another protection domain"), "{error}");
    let error = done(pair.client.send_inline([0; 10_000])).unwrap_err();
    assert!(error.to_string().contains("inline"), "{error}");
    // The connection is not hurt.
    done(all_operations(&pair));
}

#[test]
fn the_end_of_a_connection_ends_what_waits_for_it() {
    let pair = Pair::new();
    let region = pair.region(64);
    let mut receive = Box::pin(pair.server.recv(region.as_slice_all()));
    let mut closed = Box::pin(pair.server.closed());
    assert!(poll_once(receive.as_mut()).is_pending());
    assert!(poll_once(closed.as_mut()).is_pending());
    pair.client.disconnect();
    match done(receive) {
        Err(RequestError::Failed(failed)) => assert_eq!(failed.0.status, WcStatus::WrFlushErr),
        other => panic!("{other:?}"),
    }
    assert!(done(closed).is_orderly());
    // And what comes later.
    assert!(matches!(done(pair.server.send_inline(b"late")), Err(RequestError::Failed(_))));
    assert!(done(pair.client.closed()).is_orderly());
}

#[test]
fn a_destroyed_queue_pair_ends_what_is_awaited() {
    let world = World::with(DeviceConfig::default().close_grace(SHORT));
    let client = world.pd.create_qp(&QpConfig::new(&world.cq).max_send_wr(2)).unwrap();
    let server = world.qp();
    let pair = Pair::with(world, &client, &server);
    let region = pair.region(64);
    let mut receive = Box::pin(pair.client.recv(region.as_slice_all()));
    assert!(poll_once(receive.as_mut()).is_pending());
    // The peer has no receive, so what is sent in earnest stays; more than the queue takes waits.
    let big = pair.region(8 << 20);
    let mut sends: Vec<_> =
        (0..6).map(|_| Box::pin(pair.client.send(big.as_slice_all()))).collect();
    for send in &mut sends {
        assert!(poll_once(send.as_mut()).is_pending());
    }
    client.destroy().unwrap();
    assert!(done(receive).is_err());
    for send in sends {
        assert!(done(send).is_err());
    }
    assert!(done(pair.client.send_inline(b"late")).is_err());
}

#[test]
fn close_sends_what_was_posted_first() {
    let pair = Pair::new();
    let region = pair.region(1 << 20);
    let sink = pair.region(1 << 20);
    let receives: Vec<_> = (0..4)
        .map(|_| {
            let mut receive = Box::pin(pair.server.recv(sink.as_slice_all()));
            assert!(poll_once(receive.as_mut()).is_pending());
            receive
        })
        .collect();
    let mut sends = Vec::new();
    for _ in 0..4 {
        let mut send = Box::pin(pair.client.send(region.as_slice_all()));
        if poll_once(send.as_mut()).is_pending() {
            sends.push(send);
        }
    }
    assert!(matches!(done(pair.client.close()), CloseReason::Orderly));
    for send in sends {
        done(send).unwrap();
    }
    for receive in receives {
        assert_eq!(done(receive).unwrap().len, 1 << 20);
    }
    assert!(done(pair.server.closed()).is_orderly());
    // Closing again is no error.
    assert!(done(pair.client.close()).is_orderly());
}

#[test]
fn dropping_the_last_handle_disconnects() {
    let pair = Pair::new();
    let again = pair.client.clone();
    drop(pair.client);
    let mut closed = Box::pin(pair.server.closed());
    assert!(aio::wait(closed.as_mut(), QUIET).is_none());
    drop(again);
    assert!(done(closed).is_orderly());
}

/// Awaits a future, or drops it after some polls.
fn torture<T>(rng: &mut SmallRng, future: impl Future<Output = T>) -> (u32, Option<T>) {
    let mut future = Box::pin(future);
    let patience = rng.random_range(0..4);
    for polls in 0..patience {
        if let Poll::Ready(output) = poll_once(future.as_mut()) {
            return (polls + 1, Some(output));
        }
        if rng.random() {
            std::thread::yield_now();
        }
    }
    if rng.random_ratio(1, 4) {
        return (patience + 1, Some(done(future)));
    }
    (patience, None)
}

#[test]
fn dropped_operations_run_on_or_never_began() {
    for seed in 0..20 {
        println!("seed {seed}");
        let mut rng = SmallRng::seed_from_u64(seed);
        let pair = Pair::new();
        let (local, sink) = (pair.region(4096), pair.region(4096));
        let offer = sink.remote();
        for id in 0..60 {
            let slice = sink.slice(64 * id..64 * (id + 1)).unwrap();
            pair.server.qp().post_recv(RecvRequest::new(id as u64, slice)).unwrap();
        }
        // A message is sent exactly if its future was polled: the queue has room for all of them.
        let mut sent = Vec::new();
        for number in 0..60u8 {
            let (polls, _) = match rng.random_range(0..3) {
                0 => torture(&mut rng, pair.client.send_inline([number])),
                1 => {
                    let slice = local.slice(0..512).unwrap();
                    torture(&mut rng, pair.client.read(slice, RemoteMemory { len: 512, ..offer }));
                    continue;
                }
                _ => {
                    let at = usize::from(number);
                    local.write_at(1024 + at, &[number]).unwrap();
                    let slice = local.slice(1024 + at..1025 + at).unwrap();
                    torture(&mut rng, pair.client.send(slice))
                }
            };
            if polls > 0 {
                sent.push(number);
            }
        }
        for (id, wc) in pair.world.completions(sent.len()).iter().enumerate() {
            assert_eq!((wc.status, wc.wr_id, wc.byte_len), (WcStatus::Success, id as u64, 1));
            let mut octet = [0xff];
            sink.read_at(64 * id, &mut octet).unwrap();
            assert_eq!(octet[0], sent[id]);
        }
        assert!(pair.world.cq.poll_one().is_none());
        // Everything still works.
        done(pair.client.send_inline(b"last")).unwrap();
        assert_eq!(pair.world.completions(1)[0].byte_len, 4);
    }
}

#[test]
fn a_dropped_place_in_the_line_is_given_up() {
    for seed in 0..10 {
        println!("seed {seed}");
        let mut rng = SmallRng::seed_from_u64(seed);
        let world = World::new();
        let client = world.pd.create_qp(&QpConfig::new(&world.cq).max_send_wr(1)).unwrap();
        let server = world.qp();
        let pair = Pair::with(world, &client, &server);
        let (big, small) = (pair.region(1 << 18), pair.region(4096));
        for id in 0..60 {
            let slice = small.slice(8 * id..8 * (id + 1)).unwrap();
            pair.server.qp().post_recv(RecvRequest::new(id as u64, slice)).unwrap();
        }
        let mut waiting = Vec::new();
        let mut number = 0u8;
        for _ in 0..40 {
            match rng.random_range(0..4) {
                0 => {
                    let remote = big.remote();
                    let sink = big.as_slice_all();
                    torture(&mut rng, pair.client.read(sink, remote));
                }
                1 | 2 => {
                    let mut send = Box::pin(pair.client.send_inline([number]));
                    number += 1;
                    if poll_once(send.as_mut()).is_pending() {
                        waiting.push(send);
                    }
                }
                _ => {
                    if !waiting.is_empty() {
                        drop(waiting.swap_remove(rng.random_range(0..waiting.len())));
                    }
                }
            }
        }
        let kept = waiting.len();
        for send in waiting {
            done(send).unwrap();
        }
        done(pair.client.send_inline([0xee])).unwrap();
        // Those that were kept have arrived, in order, and perhaps some that were dropped too late.
        let mut numbers = Vec::new();
        while numbers.last() != Some(&0xee) {
            let id = usize::try_from(pair.world.completions(1)[0].wr_id).unwrap();
            let mut octet = [0];
            small.read_at(8 * id, &mut octet).unwrap();
            numbers.push(octet[0]);
        }
        assert!(numbers.len() > kept, "{numbers:?}");
        assert!(numbers.is_sorted_by(|a, b| a < b), "{numbers:?}");
    }
}

#[test]
fn dropped_receives_still_take_their_message() {
    let pair = Pair::new();
    let region = pair.region(256);
    // Never polled: nothing was posted.
    drop(pair.server.recv(region.slice(0..64).unwrap()));
    let mut dropped = Box::pin(pair.server.recv(region.slice(64..128).unwrap()));
    assert!(poll_once(dropped.as_mut()).is_pending());
    drop(dropped);
    let mut kept = Box::pin(pair.server.recv(region.slice(128..192).unwrap()));
    assert!(poll_once(kept.as_mut()).is_pending());
    done(pair.client.send_inline(b"first")).unwrap();
    done(pair.client.send_inline(b"second")).unwrap();
    assert_eq!(done(kept).unwrap().len, 6);
    let mut text = [0; 5];
    region.read_at(64, &mut text).unwrap();
    assert_eq!(&text, b"first");
    region.read_at(0, &mut text).unwrap();
    assert_eq!(&text, &[0; 5]);

    // With a limit: the future is kept, and polled by reference.
    let mut receive = Box::pin(pair.server.recv(region.slice(192..256).unwrap()));
    assert!(aio::wait(receive.as_mut(), Duration::from_millis(5)).is_none());
    done(pair.client.send_inline(b"third")).unwrap();
    assert_eq!(done(receive).unwrap().len, 5);
}

#[tokio::test(flavor = "current_thread")]
async fn set_ups_dropped_at_any_moment_leave_nothing_behind() {
    let world = World::new();
    let listener = world.listener();
    for seed in 0..60 {
        let mut rng = SmallRng::seed_from_u64(seed);
        let (client_qp, server_qp) = (world.qp(), world.qp());
        let name = seed.to_be_bytes();
        // A second attempt of a client that was let down would only confuse.
        let param = ConnParam::default().private_data(name).fallback(false);
        let mut connecting =
            Box::pin(cm::connect(listener.local_addr(), &client_qp, param).unwrap());
        for _ in 0..rng.random_range(0..3) {
            let _ = poll_once(connecting.as_mut());
            tokio::task::yield_now().await;
        }
        if rng.random_ratio(1, 3) {
            // Its request may or may not have come.
            continue;
        }
        let request = loop {
            // Waits that are given up take no request.
            let impatient = Duration::from_micros(rng.random_range(0..300));
            let request = match tokio::time::timeout(impatient, listener.next()).await {
                Ok(request) => request,
                Err(_) => tokio::time::timeout(GUARD, listener.next()).await.unwrap(),
            };
            // Others are of attempts that were given up.
            if request.private_data() == name {
                break request;
            }
        };
        if rng.random_ratio(1, 4) {
            drop(request);
            let error = tokio::time::timeout(GUARD, connecting).await.unwrap().unwrap_err();
            assert!(matches!(error, ConnectError::Rejected { .. }), "seed {seed}: {error}");
            continue;
        }
        let mut accepting = Box::pin(request.accept(&server_qp, ConnParam::default()).unwrap());
        let _ = poll_once(accepting.as_mut());
        if rng.random_ratio(1, 3) {
            drop(accepting);
            // Rejected, closed, or established and then over: but it comes to an end.
            match tokio::time::timeout(GUARD, connecting).await.unwrap() {
                Ok(connection) => drop(connection.closed().await),
                Err(ConnectError::Closed { .. } | ConnectError::Refused { .. }) => {}
                Err(error) => panic!("seed {seed}: {error}"),
            }
        }
    }
    // A connection of which nothing was dropped.
    let (client_qp, server_qp) = (world.qp(), world.qp());
    let param = ConnParam::default().private_data(b"real");
    let connecting = cm::connect(listener.local_addr(), &client_qp, param).unwrap();
    loop {
        let request = tokio::time::timeout(GUARD, listener.next()).await.unwrap();
        if request.private_data() == b"real" {
            let accepting = request.accept(&server_qp, ConnParam::default()).unwrap();
            let (client, server) = (connecting.await.unwrap(), accepting.await.unwrap());
            let pair = Pair { world, client, server };
            all_operations(&pair).await;
            break;
        }
    }
}

/// EXT-03, EXT-32: the operations of RFC 7306, and what their futures return.
#[test]
fn atomics_return_what_was_there_and_immediate_data_arrives() {
    let pair = Pair::new();
    let word = pair.world.pd.alloc(8, Access::LOCAL_WRITE | Access::REMOTE).unwrap();
    let (original, offer) = (pair.region(8), word.remote());
    let sink = || original.as_slice_all();
    assert_eq!(done(pair.client.fetch_add(sink(), offer, 5)), Ok(0));
    assert_eq!(done(pair.client.compare_swap(sink(), offer, 4, 9)), Ok(5), "not replaced");
    assert_eq!(done(pair.client.compare_swap(sink(), offer, 5, 9)), Ok(5));
    assert_eq!(done(pair.client.swap(sink(), offer, 1 << 31)), Ok(9));
    let fields = iwarp_verbs::AtomicOperation::FetchAdd { add: 1 << 31, mask: 1 << 31 };
    assert_eq!(done(pair.client.atomic(sink(), offer, fields)), Ok(1 << 31));
    assert_eq!(word.load_u64(0), Ok(0), "the carry is lost");

    let (data, far) = (pair.region(64), pair.region(64));
    let told = done(async {
        let write = pair.client.write_with_imm(data.slice(..40).unwrap(), far.remote(), 0xfeed);
        let (told, written) = tokio::join!(pair.server.recv(()), write);
        written.unwrap();
        told.unwrap()
    });
    assert_eq!((told.len, told.imm_data, told.invalidated_rkey), (40, Some(0xfeed), None));
}
