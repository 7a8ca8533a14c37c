//! The messages that the shim writes to standard error.
//!
//! Without `PARTITA_LOG`, a message appears only where the program is about to fail for a reason
//! that its user can remedy. Any value of `PARTITA_LOG` names each refused call once; `calls` names
//! every call and its result.

use std::env;
use std::fmt::Arguments;
use std::io::{self, Write};
use std::sync::OnceLock;

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Level {
    Quiet,
    Refused,
    Calls,
}

/// Prints one line.
pub fn say(text: Arguments<'_>) {
    // A program that has closed its stderr must not fail for that.
    let _ = io::stderr().write_all(format!("partita: {text}\n").as_bytes());
}

/// Whether the user asked to hear of refused calls.
pub fn is_wanted() -> bool {
    level() >= Level::Refused
}

/// Whether the user asked to hear of every call.
pub fn traces_calls() -> bool {
    level() == Level::Calls
}

fn level() -> Level {
    static LEVEL: OnceLock<Level> = OnceLock::new();
    *LEVEL.get_or_init(|| match env::var("PARTITA_LOG").as_deref() {
        Ok("calls") => Level::Calls,
        Ok("") | Err(env::VarError::NotPresent) => Level::Quiet,
        _ => Level::Refused,
    })
}
