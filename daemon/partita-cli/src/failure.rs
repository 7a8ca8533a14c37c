//! The failure of a command: a message for the user and an exit code.

use std::io::Write;
use std::process::ExitCode;

/// A command's failure. Errors of the families convert into it; the exit code is 1 unless they say
/// otherwise.
#[derive(Debug, PartialEq, Eq)]
pub struct Failure {
    message: String,
    /// Whether the message begins with a place, `FILE:LINE:COL:`, instead of the command's name.
    located: bool,
    code: u8,
    /// Output that belongs on stdout in spite of the failure.
    output: Vec<u8>,
}

impl Failure {
    /// What a command prints gets lost.
    pub fn unwritten(error: &std::io::Error) -> Self {
        Failure::new(format!("cannot write to stdout: {error}"))
    }

    /// A failure with exit code 1.
    pub fn new(message: impl Into<String>) -> Self {
        Failure { message: message.into(), located: false, code: 1, output: Vec::new() }
    }

    /// A failure with exit code 1 whose lines begin with a place in the user's files, as compilers
    /// report them: editors can follow these.
    pub fn located(message: impl Into<String>) -> Self {
        Failure { message: message.into(), located: true, code: 1, output: Vec::new() }
    }

    /// The same failure with another exit code.
    pub fn with_code(self, code: u8) -> Self {
        Failure { code, ..self }
    }

    /// The same failure after some output.
    pub fn after(self, output: Vec<u8>) -> Self {
        Failure { output, ..self }
    }

    /// Takes the output that belongs on stdout.
    pub fn take_output(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.output)
    }

    /// The message for stderr.
    pub fn text(&self) -> String {
        if self.located { self.message.clone() } else { format!("partita: {}", self.message) }
    }

    /// The exit code of the process.
    pub fn exit_code(&self) -> ExitCode {
        ExitCode::from(self.code)
    }
}

// `Failure` itself is no `Error`, or this would overlap with the identity.
impl<E: std::error::Error> From<E> for Failure {
    fn from(error: E) -> Self {
        Failure::new(error.to_string())
    }
}

/// Writes a line to stderr, after the command's name.
pub fn complain(message: &str) {
    say(&format!("partita: {message}"));
}

/// Writes a line to stderr. A closed stderr is no failure.
pub fn say(line: &str) {
    drop(writeln!(std::io::stderr(), "{line}"));
}
