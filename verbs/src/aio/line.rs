//! The line before a full work queue: awaited requests that wait for a place, first come first served.
//!
//! What stands in the line is the request, not the future. The driver posts it when its turn comes, so
//! a future that its program has stopped polling for a while holds up nobody behind it.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use parking_lot::Mutex;

use super::RequestError;
use crate::cq::QueueSlots;
use crate::qp::QpInner;
use crate::qp::slot::Slot;
use crate::wr::{PostError, PostErrorCause, RecvRequest, SendRequest};

/// A request of either work queue.
pub(crate) trait Request: Sized + Send + 'static {
    fn post(self, qp: &Arc<QpInner>) -> Result<Arc<Slot>, PostError<Self>>;
    fn slots(qp: &QpInner) -> &QueueSlots;
}

impl Request for SendRequest {
    fn post(self, qp: &Arc<QpInner>) -> Result<Arc<Slot>, PostError<Self>> {
        qp.post_send_awaited(self)
    }

    fn slots(qp: &QpInner) -> &QueueSlots {
        &qp.sq.slots
    }
}

impl Request for RecvRequest {
    fn post(self, qp: &Arc<QpInner>) -> Result<Arc<Slot>, PostError<Self>> {
        qp.post_recv_awaited(self)
    }

    fn slots(qp: &QpInner) -> &QueueSlots {
        &qp.rq.slots
    }
}

/// Those that wait for a place in one work queue.
#[derive(Debug)]
pub(crate) struct Line<R>(Mutex<State<R>>);

#[derive(Debug)]
struct State<R> {
    waiting: VecDeque<Arc<Ticket<R>>>,
    /// A task posts for those who wait; there is never more than one.
    served: bool,
}

impl<R> Default for Line<R> {
    fn default() -> Self {
        Self(Mutex::new(State { waiting: VecDeque::new(), served: false }))
    }
}

/// A place in the line.
#[derive(Debug)]
struct Ticket<R>(Mutex<Fate<R>>);

#[derive(Debug)]
enum Fate<R> {
    Waiting(R, Option<Waker>),
    /// The driver has the request in its hands.
    Called(Option<Waker>),
    Posted(Arc<Slot>),
    Refused(PostErrorCause),
    /// The future is gone, or has its result.
    Left,
}

impl<R: Request> Line<R> {
    /// Posts the request now or when its turn comes; gives the slot in which it completes.
    ///
    /// Dropped before it was posted, it never is.
    pub(crate) async fn post(
        self: &Arc<Self>,
        qp: &Arc<QpInner>,
        request: R,
    ) -> Result<Arc<Slot>, RequestError> {
        let request = if self.0.lock().waiting.is_empty() {
            match attempt(request, qp)? {
                Ok(slot) => return Ok(slot),
                Err(request) => request,
            }
        } else {
            request
        };
        self.join(qp, request).await
    }

    fn join(self: &Arc<Self>, qp: &Arc<QpInner>, request: R) -> InLine<R> {
        let ticket = Arc::new(Ticket(Mutex::new(Fate::Waiting(request, None))));
        let served = {
            let mut state = self.0.lock();
            state.waiting.push_back(Arc::clone(&ticket));
            std::mem::replace(&mut state.served, true)
        };
        if !served {
            // There is a driver as long as there is a connection.
            match qp.device.driver().handle() {
                Ok(runtime) => drop(runtime.spawn(Arc::clone(self).serve(Arc::clone(qp)))),
                Err(error) => tracing::error!(%error, "nobody serves those who wait for a queue"),
            }
        }
        InLine { line: Arc::clone(self), ticket }
    }

    /// Posts those in the line, one after the other, until it is empty.
    async fn serve(self: Arc<Self>, qp: Arc<QpInner>) {
        loop {
            let Some(ticket) = self.next() else { return };
            let mut freed = R::slots(&qp).listen();
            // A queue pair that was destroyed frees nothing any more.
            let mut closed = qp.closed.listen();
            // Room that came before this listens is found here.
            if ticket.serve(&qp) {
                self.leave(&ticket);
                continue;
            }
            poll_fn(|cx| match Pin::new(&mut freed).poll(cx) {
                Poll::Ready(()) => Poll::Ready(()),
                Poll::Pending => Pin::new(&mut closed).poll(cx),
            })
            .await;
        }
    }

    /// Who is first in the line; if nobody is, the caller serves it no more.
    fn next(&self) -> Option<Arc<Ticket<R>>> {
        let mut state = self.0.lock();
        let first = state.waiting.front().map(Arc::clone);
        state.served = first.is_some();
        first
    }

    fn leave(&self, ticket: &Arc<Ticket<R>>) {
        self.0.lock().waiting.retain(|waiting| !Arc::ptr_eq(waiting, ticket));
    }
}

impl<R: Request> Ticket<R> {
    /// `false`: there is no room yet.
    fn serve(&self, qp: &Arc<QpInner>) -> bool {
        let request = {
            let mut fate = self.0.lock();
            match std::mem::replace(&mut *fate, Fate::Left) {
                Fate::Waiting(request, waker) => {
                    *fate = Fate::Called(waker);
                    request
                }
                settled => {
                    *fate = settled;
                    return true;
                }
            }
        };
        // Posting runs the engine and wakes tasks: no lock is held.
        let posted = attempt(request, qp);
        let mut fate = self.0.lock();
        let Fate::Called(waker) = std::mem::replace(&mut *fate, Fate::Left) else {
            // The future was dropped meanwhile: what was posted runs on, what was not is given up.
            return true;
        };
        *fate = match posted {
            Ok(Ok(slot)) => Fate::Posted(slot),
            Ok(Err(request)) => {
                *fate = Fate::Waiting(request, waker);
                return false;
            }
            Err(cause) => Fate::Refused(cause),
        };
        drop(fate);
        if let Some(waker) = waker {
            waker.wake();
        }
        true
    }
}

/// Posts; gives the request back if there may be room for it later.
fn attempt<R: Request>(
    request: R,
    qp: &Arc<QpInner>,
) -> Result<Result<Arc<Slot>, R>, PostErrorCause> {
    match request.post(qp) {
        Ok(slot) => Ok(Ok(slot)),
        Err(error) => match error.cause {
            PostErrorCause::QueueFull { capacity } if capacity > 0 => Ok(Err(*error.request)),
            cause => Err(cause),
        },
    }
}

/// Waits until the request is posted.
struct InLine<R: Request> {
    line: Arc<Line<R>>,
    ticket: Arc<Ticket<R>>,
}

impl<R: Request> Future for InLine<R> {
    type Output = Result<Arc<Slot>, RequestError>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut fate = self.ticket.0.lock();
        match &mut *fate {
            Fate::Waiting(_, waker) | Fate::Called(waker) => {
                *waker = Some(cx.waker().clone());
                return Poll::Pending;
            }
            Fate::Posted(_) | Fate::Refused(_) | Fate::Left => {}
        }
        match std::mem::replace(&mut *fate, Fate::Left) {
            Fate::Posted(slot) => Poll::Ready(Ok(slot)),
            Fate::Refused(cause) => Poll::Ready(Err(cause.into())),
            Fate::Waiting(..) | Fate::Called(_) | Fate::Left => Poll::Pending,
        }
    }
}

impl<R: Request> Drop for InLine<R> {
    fn drop(&mut self) {
        // The memory of a request that waited is free from here on.
        let fate = std::mem::replace(&mut *self.ticket.0.lock(), Fate::Left);
        if matches!(fate, Fate::Waiting(..)) {
            self.line.leave(&self.ticket);
        }
    }
}
