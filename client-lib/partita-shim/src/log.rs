//! The messages that the shim writes to standard error.
//!
//! Some appear always: where the program is about to fail for a reason that its user can remedy.
//! `PARTITA_LOG`, the filter of the daemon's log, asks for more by the level that it has for all
//! targets or for `partita_shim`. `info` and `debug` name each refused call once; `trace` names
//! every call and its result. What is no filter asks for nothing.

use std::env;
use std::fmt::Arguments;
use std::io::{self, Write};
use std::sync::OnceLock;

/// The target of the shim's messages.
const TARGET: &str = "partita_shim";

/// How targets of Partita begin.
const OWN: &str = "partita";

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Level {
    Off,
    Error,
    Warn,
    Info,
    Debug,
    Trace,
}

impl Level {
    /// The level of this name or number, as the daemon's log has them.
    fn named(word: &str) -> Option<Level> {
        match word.to_ascii_lowercase().as_str() {
            "off" | "0" => Some(Level::Off),
            "error" | "1" => Some(Level::Error),
            "warn" | "2" => Some(Level::Warn),
            "info" | "3" => Some(Level::Info),
            "debug" | "4" => Some(Level::Debug),
            "trace" | "5" => Some(Level::Trace),
            _ => None,
        }
    }
}

/// Prints one line.
pub fn say(text: Arguments<'_>) {
    // A program that has closed its stderr must not fail for that.
    let _ = io::stderr().write_all(format!("partita: {text}\n").as_bytes());
}

/// Whether the user asked to hear of refused calls.
pub fn is_wanted() -> bool {
    level() >= Level::Info
}

/// Whether the user asked to hear of every call.
pub fn traces_calls() -> bool {
    level() == Level::Trace
}

fn level() -> Level {
    static LEVEL: OnceLock<Level> = OnceLock::new();
    *LEVEL.get_or_init(|| {
        let filter = env::var("PARTITA_LOG").unwrap_or_default();
        asked(&filter).unwrap_or(Level::Off)
    })
}

/// What a filter asks of the shim; `None` where it is no filter.
fn asked(filter: &str) -> Option<Level> {
    // The longest target that fits decides.
    let mut found = ("", Level::Off);
    for part in filter.split(',').map(str::trim).filter(|part| !part.is_empty()) {
        let (target, level) = match part.split_once('=') {
            // It is about spans, which the shim does not have.
            _ if part.contains('[') => continue,
            Some((target, level)) => (target, Level::named(level)?),
            None if part.starts_with(OWN) => (part, Level::Trace),
            None => ("", Level::named(part)?),
        };
        if TARGET.starts_with(target) && target.len() >= found.0.len() {
            found = (target, level);
        }
    }
    Some(found.1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_level_is_that_of_the_filter() {
        for (filter, level) in [
            ("", Level::Off),
            ("off", Level::Off),
            ("warn", Level::Warn),
            ("Info", Level::Info),
            ("4", Level::Debug),
            ("trace", Level::Trace),
            ("partitad=debug", Level::Off),
            ("partita_shim", Level::Trace),
            ("partita_shim=info, warn", Level::Info),
            ("trace,partita_shim=off", Level::Off),
            ("debug,partita_gpu=trace", Level::Debug),
            ("[session{id=7}]=trace,info", Level::Info),
        ] {
            assert_eq!(asked(filter), Some(level), "{filter}");
        }
    }

    #[test]
    fn nonsense_asks_for_nothing() {
        for filter in ["loud", "infos", "1e3", "partitad=loud", "info,yes", "info;debug", "="] {
            assert_eq!(asked(filter), None, "{filter}");
        }
    }
}
