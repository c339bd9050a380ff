//! The scheduler's group: against a build in another terminal a nice value does nothing, the group's does.

use std::{fs, io, process, thread};

const AUTOGROUP: &str = "/proc/self/autogroup";

/// Gives the group of this session the most of the processors, until it is dropped.
pub(crate) struct Favoured {
    before: i32,
}

impl Favoured {
    /// Fails where it is not allowed, or the kernel has no groups.
    pub(crate) fn begin() -> io::Result<Self> {
        let before = nice(&fs::read_to_string(AUTOGROUP)?)
            .ok_or_else(|| io::Error::other("no group of its own"))?;
        fs::write(AUTOGROUP, "-20")?;
        thread::spawn(move || restore_when_interrupted(before));
        Ok(Self { before })
    }
}

/// The group is that of the user's terminal, and outlives a program that is interrupted.
fn restore_when_interrupted(before: i32) {
    let Ok(runtime) = tokio::runtime::Builder::new_current_thread().enable_io().build() else {
        return;
    };
    if let Ok(code) = runtime.block_on(interruption()) {
        restore(before);
        process::exit(code);
    }
}

/// The exit code for the signal that ends the program.
async fn interruption() -> io::Result<i32> {
    use tokio::signal::unix::{SignalKind, signal};

    let mut hang_up = signal(SignalKind::hangup())?;
    let mut end = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    Ok(tokio::select! {
        _ = hang_up.recv() => 129,
        _ = end.recv() => 143,
        _ = interrupt.recv() => 130,
    })
}

fn restore(before: i32) {
    // The shell behind us may not mind, but others would.
    let _ = fs::write(AUTOGROUP, before.to_string());
}

impl Drop for Favoured {
    fn drop(&mut self) {
        restore(self.before);
    }
}

/// The group as the kernel describes it.
pub(crate) fn describe() -> String {
    fs::read_to_string(AUTOGROUP).map_or_else(|_| "none".into(), |text| text.trim().into())
}

/// Reads `/autogroup-51 nice 0`.
fn nice(text: &str) -> Option<i32> {
    text.trim().rsplit_once("nice ")?.1.parse().ok()
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_groups_nice_value_is_read() {
        assert_eq!(super::nice("/autogroup-51 nice -20\n"), Some(-20));
        assert_eq!(super::nice("/"), None);
    }
}
