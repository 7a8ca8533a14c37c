//! How a command fails: a message for people and an exit code.

use std::io::Write;
use std::process::ExitCode;

/// A command's failure. Errors of the families convert into it; the exit code is 1 unless they say
/// otherwise.
#[derive(Debug, PartialEq, Eq)]
pub struct Failure {
    message: String,
    /// Whether the message begins with a place of its own, `FILE:LINE:COL:`, and needs nobody's
    /// name before it.
    located: bool,
    code: u8,
    /// What belongs on stdout all the same.
    output: Vec<u8>,
}

impl Failure {
    /// A failure with exit code 1.
    pub fn new(message: impl Into<String>) -> Self {
        Failure { message: message.into(), located: false, code: 1, output: Vec::new() }
    }

    /// A failure with exit code 1 whose lines say where in the user's files they belong, as
    /// compilers do, so that editors can follow them.
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

    /// Takes what belongs on stdout.
    pub fn take_output(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.output)
    }

    /// What failed, as it is said on stderr.
    pub fn text(&self) -> String {
        if self.located { self.message.clone() } else { format!("partita: {}", self.message) }
    }

    /// What the process ends with.
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

/// Says something on stderr in the command's name.
pub fn complain(message: &str) {
    say(&format!("partita: {message}"));
}

/// Says something on stderr. Nobody may be there to read it, which is not our failure.
pub fn say(line: &str) {
    drop(writeln!(std::io::stderr(), "{line}"));
}
