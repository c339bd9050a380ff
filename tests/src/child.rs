//! Processes that a test starts: bounded in time, talking by lines, gone when the test is.
//!
//! A test that needs a second process runs its own binary again. The test function asks [`role`] first:
//!
//! ```no_run
//! use iwarp_tests::child::{Child, role, tell};
//!
//! // #[test]
//! fn a_peer_dies() {
//!     if role().as_deref() == Some("victim") {
//!         tell("ready");
//!         loop { std::thread::park() }
//!     }
//!     let mut victim = Child::again("a_peer_dies", "victim");
//!     assert_eq!(victim.hear(), "ready");
//!     victim.kill();
//! }
//! ```

use std::{
    env,
    ffi::OsStr,
    io::{self, BufRead, BufReader, Read, Write},
    path::{Path, PathBuf},
    process::{self, Command, ExitStatus, Stdio},
    sync::{
        OnceLock,
        mpsc::{Receiver, RecvTimeoutError, channel},
    },
    thread,
    time::{Duration, Instant},
};

use rustix::process::{Pid, Signal, kill_process};

/// How long a test waits for what must come. Not a measure of speed: only a hang takes so long.
pub const GUARD: Duration = Duration::from_mins(1);

const ROLE: &str = "IWARP_TEST_ROLE";
/// Tells our lines from those of the test runner, which may stand on the same line.
const MARK: &str = "@@ ";

/// The role that this process was started in by [`Child::again`]; `None` in the process that runs the tests.
#[must_use]
pub fn role() -> Option<String> {
    env::var(ROLE).ok()
}

/// Says a line to the process that started this one.
pub fn tell(line: impl std::fmt::Display) {
    let mut out = io::stdout().lock();
    // Nobody listening is no reason to fail: the starter may be gone, and then this process will be.
    let _ = writeln!(out, "{MARK}{line}").and_then(|()| out.flush());
}

/// Waits for a line from the process that started this one; empty when that one is gone.
#[must_use]
pub fn listen() -> String {
    let mut line = String::new();
    let _ = io::stdin().lock().read_line(&mut line);
    line.trim_end().to_owned()
}

/// What a process had said and how it ended.
#[derive(Debug)]
pub struct Ended {
    /// Exit code, or the signal that ended it.
    pub status: ExitStatus,
    /// All of standard output that was not heard before.
    pub stdout: String,
    /// All of standard error.
    pub stderr: String,
}

/// A running process. Dropping it kills it.
#[derive(Debug)]
pub struct Child {
    process: process::Child,
    lines: Receiver<String>,
    stderr: Option<thread::JoinHandle<String>>,
}

impl Child {
    /// Runs the test `name` of the running test binary once more, in `role`.
    #[must_use]
    pub fn again(name: &str, role: &str) -> Self {
        Self::start(Self::again_command(&mut Command::new(own_binary()), name, role))
    }

    /// Completes `command`, which must run the file [`own_binary`] (perhaps in a namespace), as [`Child::again`] does.
    pub fn again_command<'c>(command: &'c mut Command, name: &str, role: &str) -> &'c mut Command {
        command.args([name, "--exact", "--nocapture", "--include-ignored"]).env(ROLE, role)
    }

    /// Starts `command` with its three streams held here.
    ///
    /// # Panics
    /// If the program cannot be started.
    pub fn start(command: &mut Command) -> Self {
        let mut process = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap_or_else(|error| panic!("{command:?}: {error}"));
        let (said, lines) = channel();
        let stdout = BufReader::new(process.stdout.take().expect("piped"));
        thread::spawn(move || {
            for line in stdout.lines().map_while(Result::ok) {
                if said.send(line).is_err() {
                    break;
                }
            }
        });
        let mut errors = process.stderr.take().expect("piped");
        let stderr = thread::spawn(move || {
            let mut text = Vec::new();
            let _ = errors.read_to_end(&mut text);
            String::from_utf8_lossy(&text).into_owned()
        });
        Self { process, lines, stderr: Some(stderr) }
    }

    /// The process id.
    #[must_use]
    pub fn id(&self) -> u32 {
        self.process.id()
    }

    /// Next line of standard output, whole.
    ///
    /// # Panics
    /// If the process ends, or says nothing for [`GUARD`].
    pub fn line(&mut self) -> String {
        match self.lines.recv_timeout(GUARD) {
            Ok(line) => line,
            Err(RecvTimeoutError::Timeout) => panic!("the child said nothing for {GUARD:?}"),
            Err(RecvTimeoutError::Disconnected) => {
                let ended = self.wait();
                panic!("the child ended ({}) instead of speaking: {}", ended.status, ended.stderr)
            }
        }
    }

    /// What the process says next by [`tell`].
    ///
    /// # Panics
    /// As [`Child::line`].
    pub fn hear(&mut self) -> String {
        loop {
            let line = self.line();
            if let Some((_, said)) = line.split_once(MARK) {
                return said.to_owned();
            }
        }
    }

    /// Says a line to the process, for its [`listen`].
    pub fn say(&mut self, line: &str) {
        if let Some(stdin) = self.process.stdin.as_mut() {
            // A process that is gone shows itself at the next `hear`.
            let _ = writeln!(stdin, "{line}").and_then(|()| stdin.flush());
        }
    }

    /// `kill -9`.
    pub fn kill(&mut self) {
        let _ = self.process.kill();
    }

    /// Asks the process to end (SIGTERM).
    pub fn terminate(&mut self) {
        let _ = kill_process(Pid::from_child(&self.process), Signal::TERM);
    }

    /// Stops the process where it stands (SIGSTOP), or lets it go on.
    pub fn pause(&mut self, pause: bool) {
        let signal = if pause { Signal::STOP } else { Signal::CONT };
        let _ = kill_process(Pid::from_child(&self.process), signal);
    }

    /// Whether the process has not ended.
    pub fn is_running(&mut self) -> bool {
        matches!(self.process.try_wait(), Ok(None))
    }

    /// Waits for the end of the process.
    ///
    /// # Panics
    /// If it still runs after [`GUARD`]; it is killed then.
    pub fn wait(&mut self) -> Ended {
        drop(self.process.stdin.take());
        let deadline = Instant::now() + GUARD;
        let status = loop {
            match self.process.try_wait().expect("own child") {
                Some(status) => break status,
                None if Instant::now() > deadline => {
                    self.kill();
                    panic!("the child did not end within {GUARD:?}");
                }
                None => thread::sleep(Duration::from_millis(5)),
            }
        };
        let stdout = self.lines.iter().collect::<Vec<_>>().join("\n");
        let stderr = self.stderr.take().and_then(|reader| reader.join().ok()).unwrap_or_default();
        Ended { status, stdout, stderr }
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        self.kill();
        let _ = self.process.wait();
    }
}

/// The file of the running test binary.
///
/// # Panics
/// If the system does not tell.
#[must_use]
pub fn own_binary() -> PathBuf {
    env::current_exe().expect("the running program has a file")
}

/// Builds an example of this workspace (once per process) and returns its file.
///
/// # Panics
/// If the example does not build.
pub fn example(name: &str) -> PathBuf {
    static BUILT: OnceLock<()> = OnceLock::new();
    let directory = own_binary();
    // target/debug/deps/test-1234 → target/debug/examples/name
    let profile = directory.parent().and_then(Path::parent).expect("target/PROFILE/deps/TEST");
    BUILT.get_or_init(|| build_examples(profile));
    let file = profile.join("examples").join(name);
    assert!(file.exists(), "{} was not built", file.display());
    file
}

fn build_examples(profile: &Path) {
    let cargo = env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut build = Command::new(cargo);
    build
        .args(["build", "--quiet", "--package", "iwarp-examples", "--examples"])
        .arg("--manifest-path")
        .arg(concat!(env!("CARGO_MANIFEST_DIR"), "/../Cargo.toml"))
        .arg("--target-dir")
        .arg(profile.parent().expect("target/PROFILE"));
    match profile.file_name().and_then(OsStr::to_str) {
        Some("debug") | None => {}
        Some(profile) => {
            build.args(["--profile", profile]);
        }
    }
    let output = build.output().unwrap_or_else(|error| panic!("{build:?}: {error}"));
    assert!(output.status.success(), "{build:?}: {}", String::from_utf8_lossy(&output.stderr));
}
