//! How many strangers may be in the middle of their start-up at once (SEC-22).
//!
//! Anyone can open a TCP connection and then say nothing. Such connections cost a descriptor and less than
//! 2.5 KiB until their time is over; their number is limited for the whole device. At the limit
//! a newcomer takes the place of the oldest, provided that this one has had some time: an honest crowd
//! is through by then, and who holds on to a place without a word has to come back for it all the time.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::trace::SETUP;

/// The time that a start-up has for certain. A peer that speaks needs one round trip.
const GRANTED: Duration = Duration::from_millis(500);

/// The start-ups in progress at the listeners of one device.
#[derive(Debug)]
pub(crate) struct Handshakes {
    places: Arc<Semaphore>,
    /// As many again may be told that they were rejected.
    farewells: Arc<Semaphore>,
    running: Mutex<BTreeMap<u64, Running>>,
    arrivals: AtomicU64,
}

#[derive(Debug)]
struct Running {
    since: Instant,
    cancelled: CancellationToken,
}

/// One start-up's place; given back when dropped.
#[derive(Debug)]
pub(crate) struct Place {
    handshakes: Arc<Handshakes>,
    arrival: u64,
    cancelled: CancellationToken,
    _permit: OwnedSemaphorePermit,
}

impl Handshakes {
    /// At most `limit` at once, and at least one.
    pub(crate) fn new(limit: usize) -> Arc<Self> {
        let limit = limit.clamp(1, Semaphore::MAX_PERMITS);
        Arc::new(Self {
            places: Arc::new(Semaphore::new(limit)),
            farewells: Arc::new(Semaphore::new(limit)),
            running: Mutex::default(),
            arrivals: AtomicU64::new(0),
        })
    }

    /// Waits for a place. Runs on a tokio runtime with a timer.
    pub(crate) async fn enter(self: &Arc<Self>) -> Place {
        let place = Arc::clone(&self.places).acquire_owned();
        tokio::pin!(place);
        let mut displace = self.next_displacement();
        let permit = loop {
            match tokio::time::timeout_at(displace, place.as_mut()).await {
                Ok(permit) => break permit,
                // A place that is made comes as soon as its task has run. To make another one at once
                // would cost somebody who is not in the way.
                Err(_) if self.cancel_oldest() => displace = Instant::now() + GRANTED,
                Err(_) => displace = self.next_displacement(),
            }
        };
        // The semaphore is never closed.
        let permit = permit.unwrap_or_else(|_| unreachable!("the semaphore is never closed"));
        let arrival = self.arrivals.fetch_add(1, Ordering::Relaxed);
        let cancelled = CancellationToken::new();
        let running = Running { since: Instant::now(), cancelled: cancelled.clone() };
        self.running.lock().insert(arrival, running);
        Place { handshakes: Arc::clone(self), arrival, cancelled, _permit: permit }
    }

    /// A place for a rejected peer that is waited for, so that the Reply arrives; `None` if there are too many
    /// of them. They could stay for as long as the grace lasts, and cost no more than a Request each.
    pub(crate) fn farewell(&self) -> Option<OwnedSemaphorePermit> {
        Arc::clone(&self.farewells).try_acquire_owned().ok()
    }

    /// When somebody may be displaced.
    fn next_displacement(&self) -> Instant {
        let oldest = self.running.lock().first_key_value().map(|(_, running)| running.since);
        // Without one the place is about to be given back.
        oldest.unwrap_or_else(Instant::now) + GRANTED
    }

    /// Displaces the oldest, unless it has not had its time.
    fn cancel_oldest(&self) -> bool {
        let mut running = self.running.lock();
        let Some(oldest) = running.first_entry() else { return false };
        let age = oldest.get().since.elapsed();
        if age < GRANTED {
            return false;
        }
        let Running { cancelled, .. } = oldest.remove();
        drop(running);
        tracing::debug!(target: SETUP, ?age, "too many start-ups, the oldest is given up");
        cancelled.cancel();
        true
    }
}

impl Place {
    /// Runs the start-up; `None` if it has to make room before it is done.
    pub(crate) async fn occupy<T>(&self, start_up: impl Future<Output = T>) -> Option<T> {
        self.cancelled.run_until_cancelled(start_up).await
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.handshakes.running.lock().remove(&self.arrival);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn enter(handshakes: &Arc<Handshakes>) -> tokio::task::JoinHandle<Place> {
        let handshakes = Arc::clone(handshakes);
        tokio::spawn(async move { handshakes.enter().await })
    }

    // SEC-22
    #[tokio::test(start_paused = true)]
    async fn a_newcomer_displaces_the_oldest_and_only_it() {
        let handshakes = Handshakes::new(2);
        let first = handshakes.enter().await;
        tokio::time::sleep(GRANTED * 2).await;
        let second = handshakes.enter().await;
        let started = Instant::now();
        let newcomer = enter(&handshakes);
        assert_eq!(first.occupy(std::future::pending::<()>()).await, None);
        assert!(started.elapsed() < GRANTED, "it had had its time");
        drop(first);
        let third = newcomer.await.unwrap();
        assert_eq!(second.occupy(std::future::ready(2)).await, Some(2));
        assert_eq!(third.occupy(std::future::ready(3)).await, Some(3));
        drop((second, third));
        assert!(handshakes.running.lock().is_empty());
    }

    // SEC-22
    #[tokio::test(start_paused = true)]
    async fn one_newcomer_displaces_one_of_many() {
        let handshakes = Handshakes::new(3);
        let places = [handshakes.enter().await, handshakes.enter().await, handshakes.enter().await];
        tokio::time::sleep(GRANTED * 2).await;
        let newcomer = enter(&handshakes);
        let [first, second, third] = places;
        assert_eq!(first.occupy(std::future::pending::<()>()).await, None);
        drop(first);
        newcomer.await.unwrap();
        assert_eq!(second.occupy(std::future::ready(2)).await, Some(2));
        assert_eq!(third.occupy(std::future::ready(3)).await, Some(3));
    }

    #[tokio::test(start_paused = true)]
    async fn everybody_is_granted_some_time() {
        let handshakes = Handshakes::new(1);
        let first = handshakes.enter().await;
        let newcomer = enter(&handshakes);
        let started = Instant::now();
        assert_eq!(first.occupy(std::future::pending::<()>()).await, None);
        assert!(started.elapsed() >= GRANTED);
        drop(first);
        newcomer.await.unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn a_place_given_back_in_time_displaces_nobody() {
        let handshakes = Handshakes::new(1);
        let first = handshakes.enter().await;
        let newcomer = enter(&handshakes);
        tokio::time::sleep(GRANTED / 2).await;
        assert_eq!(first.occupy(std::future::ready(1)).await, Some(1));
        drop(first);
        newcomer.await.unwrap();
    }
}
