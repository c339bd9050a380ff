//! A socket of a [`MemoryNetwork`](super::MemoryNetwork), as it is before, while and after it is connected.

use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use parking_lot::Mutex;
use rustix::io::Errno;
use rustix::net::{self, RecvFlags, SendFlags};

use super::wire::{End, descriptors};
use super::{MemoryNetwork, Name};
use crate::mem::Origin;

/// All of a socket but its own descriptor, which whoever has it holds, and passes as `here`.
#[derive(Debug)]
pub(crate) struct MemorySocket {
    origin: Origin,
    network: MemoryNetwork,
    /// The far end of the descriptor: for the peer, or for those who ring at a listener.
    far: Mutex<Option<OwnedFd>>,
    reuse: AtomicBool,
    v6_only: AtomicBool,
    name: OnceLock<Name>,
    queue: OnceLock<Arc<Queue>>,
    end: OnceLock<End>,
}

/// Connections that were made and not accepted yet.
#[derive(Debug)]
pub(super) struct Queue {
    origin: Origin,
    waiting: Mutex<VecDeque<(OwnedFd, End)>>,
    /// What is written here makes the listener readable.
    bell: OwnedFd,
    backlog: usize,
}

impl MemorySocket {
    /// A socket bound to nothing, and its descriptor.
    pub(crate) fn open(network: &MemoryNetwork) -> io::Result<(OwnedFd, Self)> {
        let (here, far) = descriptors()?;
        Ok((here, Self::new(network, Some(far))))
    }

    fn new(network: &MemoryNetwork, far: Option<OwnedFd>) -> Self {
        Self {
            origin: Origin::here(),
            network: network.clone(),
            far: Mutex::new(far),
            reuse: AtomicBool::new(false),
            v6_only: AtomicBool::new(false),
            name: OnceLock::new(),
            queue: OnceLock::new(),
            end: OnceLock::new(),
        }
    }

    pub(crate) fn set_reuse_addr(&self, on: bool) {
        self.reuse.store(on, Ordering::Relaxed);
    }

    pub(crate) fn set_v6_only(&self, on: bool) {
        self.v6_only.store(on, Ordering::Relaxed);
    }

    pub(crate) fn bind(&self, addr: &SocketAddr) -> io::Result<()> {
        if self.name.get().is_some() {
            return Err(Errno::INVAL.into());
        }
        let v6_only = self.v6_only.load(Ordering::Relaxed);
        let name = self.network.reserve(*addr, v6_only, self.reuse.load(Ordering::Relaxed))?;
        self.name.set(name).map_err(|name| {
            self.network.release(&name);
            Errno::INVAL.into()
        })
    }

    pub(crate) fn listen(&self, backlog: u32) -> io::Result<()> {
        let name = self.name.get().ok_or(Errno::INVAL)?;
        let bell = self.far.lock().take().ok_or(Errno::INVAL)?;
        let queue = Arc::new(Queue {
            origin: self.origin,
            waiting: Mutex::default(),
            bell,
            backlog: usize::try_from(backlog).unwrap_or(usize::MAX).max(1),
        });
        self.network.listen(name, &queue)?;
        self.queue.set(queue).map_err(|_| Errno::INVAL.into())
    }

    /// The next connection: its descriptor and the rest of it.
    pub(crate) fn accept(&self, here: BorrowedFd<'_>) -> io::Result<(OwnedFd, Self)> {
        let queue = self.queue.get().ok_or(Errno::INVAL)?;
        let mut waiting = queue.waiting.lock();
        let next = waiting.pop_front();
        if waiting.is_empty() {
            // Silent until somebody rings again, which takes the lock.
            let mut rings = [0; 256];
            while let Ok((1.., _)) = net::recv(here, &mut rings, RecvFlags::DONTWAIT) {}
        }
        let (descriptor, end) = next.ok_or(Errno::AGAIN)?;
        let socket = Self::new(&self.network, None);
        let _ = socket.end.set(end);
        Ok((descriptor, socket))
    }

    /// Connects at once. `WouldBlock`: the listener has as many that wait as it takes; try again later.
    pub(crate) fn connect(&self, here: BorrowedFd<'_>, addr: &SocketAddr) -> io::Result<()> {
        if self.name.get().is_none() {
            let mut any = super::local_of(addr);
            any.set_port(0);
            self.bind(&any)?;
        }
        let name = self.name.get().ok_or(Errno::INVAL)?;
        let mut far = self.far.lock();
        if far.is_none() {
            return Err(Errno::ISCONN.into());
        }
        let end = self.network.connect(name, *addr, &mut far)?;
        end.begin(here);
        self.end.set(end).map_err(|_| Errno::ISCONN.into())
    }

    fn end(&self) -> io::Result<&End> {
        Ok(self.end.get().ok_or(Errno::NOTCONN)?)
    }

    pub(crate) fn local_addr(&self) -> io::Result<SocketAddr> {
        let end = self.end.get().map(End::local);
        Ok(end.or_else(|| self.name.get().map(|name| name.addr)).ok_or(Errno::INVAL)?)
    }

    pub(crate) fn peer_addr(&self) -> io::Result<SocketAddr> {
        self.end()?.peer()
    }

    /// As [`peer_addr`](Self::peer_addr), and known whatever has happened since.
    pub(crate) fn name_of_peer(&self) -> io::Result<SocketAddr> {
        Ok(self.end()?.name_of_peer())
    }

    pub(crate) fn recv(&self, here: BorrowedFd<'_>, into: &mut [u8]) -> io::Result<usize> {
        self.end()?.recv(here, into)
    }

    pub(crate) fn send(&self, here: BorrowedFd<'_>, octets: &[u8]) -> io::Result<usize> {
        self.end()?.send(here, octets)
    }

    /// What went wrong, if the descriptor does not know it.
    pub(crate) fn take_error(&self) -> Option<io::Error> {
        self.end.get()?.error()
    }

    /// Whether the last attempt to receive was held up, and another one is to be made soon.
    pub(crate) fn reads_again(&self) -> bool {
        self.end.get().is_some_and(End::reads_again)
    }

    /// Whether the last attempt to send was held up, and another one is to be made soon.
    pub(crate) fn writes_again(&self) -> bool {
        self.end.get().is_some_and(End::writes_again)
    }

    pub(crate) fn reset(&self, here: BorrowedFd<'_>) {
        if let Some(end) = self.end.get() {
            end.reset(here);
        }
    }

    pub(crate) fn emss(&self) -> u32 {
        self.network.segment_size()
    }
}

impl Drop for MemorySocket {
    fn drop(&mut self) {
        // A forked child leaves the network to its parent.
        if let Some(name) = self.name.get().filter(|_| self.origin.is_here()) {
            self.network.release(name);
        }
    }
}

impl Queue {
    /// Whether one more may wait.
    pub(super) fn has_room(&self) -> bool {
        self.waiting.lock().len() < self.backlog
    }

    pub(super) fn push(&self, descriptor: OwnedFd, end: End) {
        let mut waiting = self.waiting.lock();
        waiting.push_back((descriptor, end));
        // Full: it is as readable as can be.
        let _ = net::send(&self.bell, &[1], SendFlags::DONTWAIT);
    }
}

impl Drop for Queue {
    fn drop(&mut self) {
        if !self.origin.is_here() {
            return;
        }
        // Nobody will ever accept them, which TCP tells the peers.
        for (descriptor, end) in self.waiting.get_mut() {
            end.reset(descriptor.as_fd());
        }
    }
}
