//! A program whose launch ends when the test says so.
//!
//! A test that observes a running kernel would otherwise depend on the machine's speed. A held
//! launch has more than a minute of work; the test releases it when the test has seen enough.

use crate::daemon::Daemon;
use std::path::Path;
use std::process::{Child, ChildStdin, Output, Stdio};

/// A running program that was started with the argument `held`. Dropping it releases the launch.
pub struct Held {
    child: Child,
    /// The launch ends when this end of the program's standard input is closed.
    input: ChildStdin,
}

impl Held {
    /// Starts `PROGRAM ARGUMENTS… held` on the daemon.
    ///
    /// # Panics
    /// Where `partita` cannot be started.
    #[must_use]
    pub fn start(daemon: &Daemon, program: &Path, arguments: &[&str]) -> Held {
        let mut command = daemon.run(program);
        command.args(arguments).arg("held").stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().expect("partita can be started");
        let input = child.stdin.take().expect("it is piped");
        Held { child, input }
    }

    /// The program's process.
    #[must_use]
    pub fn id(&self) -> rustix::process::Pid {
        rustix::process::Pid::from_child(&self.child)
    }

    /// Lets the launch end, and waits for the program's end.
    ///
    /// # Panics
    /// Where the program's output cannot be read.
    #[must_use]
    pub fn release(self) -> Output {
        drop(self.input);
        self.child.wait_with_output().expect("its output can be read")
    }

    /// Waits for the end of a program whose launch was not released.
    ///
    /// # Panics
    /// Where the program's output cannot be read.
    #[must_use]
    pub fn output(self) -> Output {
        let Held { child, input } = self;
        let output = child.wait_with_output().expect("its output can be read");
        drop(input);
        output
    }
}
