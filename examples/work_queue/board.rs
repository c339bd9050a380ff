//! Which job is where.

use std::collections::VecDeque;

/// All jobs of a dispatcher, from the first to the last.
#[derive(Debug)]
pub(crate) struct Board {
    waiting: VecDeque<u32>,
    done: Vec<bool>,
    left: u32,
    again: u64,
}

impl Board {
    pub(crate) fn new(jobs: u32) -> Self {
        Self {
            waiting: (0..jobs).collect(),
            done: vec![false; jobs as usize],
            left: jobs,
            again: 0,
        }
    }

    /// The next job to be handed out.
    pub(crate) fn next(&mut self) -> Option<u32> {
        self.waiting.pop_front()
    }

    /// Its worker is lost: another one is to do it, before all others.
    pub(crate) fn again(&mut self, job: u32) {
        self.again += 1;
        self.waiting.push_front(job);
    }

    /// `false` if it was done before.
    pub(crate) fn done(&mut self, job: u32) -> bool {
        let Some(done) = self.done.get_mut(job as usize) else { return false };
        let first = !std::mem::replace(done, true);
        self.left -= u32::from(first);
        first
    }

    /// Jobs that are not done.
    pub(crate) fn left(&self) -> u32 {
        self.left
    }

    /// Times that a job had to be handed out again.
    pub(crate) fn handed_out_again(&self) -> u64 {
        self.again
    }
}
