//! What no attribute of a GPU says, found out before its first session.
//!
//! Whether loading code waits for running kernels, which streams hold up others, and which signals
//! reach a running kernel depends on the GPU and on its driver. A process of its own tries it
//! ([`trials`]) while nothing is on the GPU, because a trial may hang, or end its context.
//! [`inquiry`] starts that process, bounds it, and keeps its findings for the GPU and driver.
//!
//! What was not found out is taken to be at its worst. [`Habits::limits`] says by name what the
//! GPU's users do without.

pub(crate) mod inquiry;
mod trials;

pub use trials::run;

use crate::options::SignalPath;
use serde::{Deserialize, Serialize};
use std::fmt;

/// A question about a GPU and its driver.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Check {
    /// Do copies reach a word at which a running kernel looks?
    Copies,
    /// Do stores to mapped memory of the host?
    Mapped,
    /// Can an operation that cannot begin hold up other streams?
    Streams,
    /// Is code loaded and unloaded beside a running kernel?
    Loading,
    /// Does a kernel with more local memory than any before begin beside a running kernel?
    LocalMemory,
    /// Are pages locked and unlocked beside a running kernel?
    Locking,
    /// Is memory unmapped beside a running kernel?
    Unmapping,
    /// Are green contexts made and ended beside a running kernel?
    GreenContexts,
    /// Are arrays with memory of the driver's made and ended beside a running kernel?
    Arrays,
}

impl Check {
    /// All, in the order in which they are tried.
    pub const ALL: [Check; 9] = [
        Check::Copies,
        Check::Mapped,
        Check::Streams,
        Check::Loading,
        Check::LocalMemory,
        Check::Locking,
        Check::Unmapping,
        Check::GreenContexts,
        Check::Arrays,
    ];

    /// The calls that a check of this kind makes while a kernel runs.
    fn calls(self) -> Option<&'static str> {
        match self {
            Check::Copies | Check::Mapped | Check::Streams => None,
            Check::Loading => Some("loading code"),
            Check::LocalMemory => Some("room for local memory"),
            Check::Locking => Some("page-locking"),
            Check::Unmapping => Some("unmapping"),
            Check::GreenContexts => Some("green contexts"),
            Check::Arrays => Some("arrays"),
        }
    }
}

impl fmt::Display for Check {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Check::Copies => "signals by copies",
            Check::Mapped => "signals by mapped memory",
            Check::Streams => "independent streams",
            Check::Loading => "loading beside kernels",
            Check::LocalMemory => "local memory beside kernels",
            Check::Locking => "page-locking beside kernels",
            Check::Unmapping => "unmapping beside kernels",
            Check::GreenContexts => "green contexts beside kernels",
            Check::Arrays => "arrays beside kernels",
        })
    }
}

/// The answer to a question.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Finding {
    /// The question.
    pub check: Check,
    /// Whether the answer is the better one.
    pub holds: bool,
    /// Streams, in the order in which they were made, of which none holds up another; `None` where
    /// none of all that were made does. Only for [`Check::Streams`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub apart: Option<u32>,
    /// How long the signal, or the call, took.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub micros: Option<f64>,
    /// What kept it from being tried.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub obstacle: Option<String>,
}

impl Finding {
    fn new(check: Check, holds: bool) -> Finding {
        Finding { check, holds, apart: None, micros: None, obstacle: None }
    }

    fn failed(check: Check, obstacle: impl Into<String>) -> Finding {
        Finding { obstacle: Some(obstacle.into()), ..Finding::new(check, false) }
    }
}

/// What the process of the self-test says, a line each.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Told {
    /// A check begins.
    Begins(Check),
    /// It has ended.
    Found(Finding),
}

/// How the backend treats a GPU.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Habits {
    /// The streams that were made first, of which none holds up another.
    pub(crate) connections: u32,
    /// The way of signals.
    pub(crate) signals: SignalPath,
    /// Whether some calls wait for running grids, and hold up other calls meanwhile.
    pub(crate) waits: bool,
    /// Whether kernels and the host share host memory that is mapped into a window: where a test
    /// says so, or signals are wanted there.
    pub(crate) words: bool,
    /// What users of the GPU do without, and why.
    pub(crate) limits: Vec<String>,
}

/// Connections to a GPU (CUDA C++ Programming Guide, `CUDA_DEVICE_MAX_CONNECTIONS`, which
/// `partitad` sets to this).
const CONNECTIONS: u32 = 32;

impl Habits {
    /// The habits of a GPU of which nothing is known.
    pub(crate) fn worst(signals: SignalPath) -> Habits {
        let (waits, words, limits) = (true, signals == SignalPath::Mapped, Vec::new());
        Habits { connections: CONNECTIONS, signals, waits, words, limits }
    }

    /// The habits that follow from findings. Signals go by the wanted way where it works.
    pub(crate) fn of(findings: &[Finding], wanted: SignalPath) -> Habits {
        let mut habits = Habits::worst(wanted);
        let find = |check| findings.iter().find(|finding| finding.check == check);
        let holds = |check| find(check).is_some_and(|finding| finding.holds);
        for finding in findings {
            if let Some(obstacle) = &finding.obstacle {
                habits.limits.push(format!("{}: not known: {obstacle}", finding.check));
            }
        }
        let (this, other) = match wanted {
            SignalPath::Copy => (Check::Copies, (SignalPath::Mapped, Check::Mapped)),
            SignalPath::Mapped => (Check::Mapped, (SignalPath::Copy, Check::Copies)),
        };
        if find(this).is_some() && !holds(this) {
            if holds(other.1) {
                habits.signals = other.0;
                habits.limits.push(format!("{this} do not reach running kernels: {} do", other.1));
            } else {
                let text = "no signal reaches running kernels: borders move between launches only";
                habits.limits.push(text.to_owned());
            }
        }
        if let Some(streams) = find(Check::Streams).filter(|finding| finding.obstacle.is_none()) {
            habits.connections = streams.apart.unwrap_or(u32::MAX);
            if let Some(apart) = streams.apart {
                habits.limits.push(format!(
                    "streams after the {apart} first hold up others: they take one operation at a \
                     time"
                ));
            }
        }
        habits.words = find(Check::Mapped).map_or(habits.words, |finding| finding.holds);
        if find(Check::Mapped).is_some() && !habits.words {
            let text = "no memory is shared with running kernels: ends of kernels that may stop \
                        themselves wait for copies";
            habits.limits.push(text.to_owned());
        }
        let asked = Check::ALL.into_iter().filter(|check| check.calls().is_some());
        let waiting: Vec<Check> = asked.filter(|check| !holds(*check)).collect();
        habits.waits = !waiting.is_empty();
        let names: Vec<&str> = waiting
            .iter()
            .filter(|check| find(**check).is_some_and(|finding| finding.obstacle.is_none()))
            .filter_map(|check| check.calls())
            .collect();
        if !names.is_empty() {
            habits.limits.push(format!(
                "these wait for running kernels, so launches pause for them: {}",
                names.join(", ")
            ));
        }
        habits
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(except: &[Finding]) -> Vec<Finding> {
        let usual = |check| {
            let excepted = except.iter().find(|finding| finding.check == check).cloned();
            excepted.unwrap_or_else(|| Finding::new(check, true))
        };
        Check::ALL.into_iter().map(usual).collect()
    }

    #[test]
    fn a_gpu_on_which_everything_holds_has_no_limits() {
        let habits = Habits::of(&all(&[]), SignalPath::Copy);
        assert_eq!(habits.limits, Vec::<String>::new());
        assert!(!habits.waits && habits.connections == u32::MAX);
        assert_eq!(habits.signals, SignalPath::Copy);
    }

    #[test]
    fn what_fails_is_replaced_and_named() {
        let check = |except: &[Finding], wanted, expected: Habits, words: &str| {
            let found = Habits::of(&all(except), wanted);
            assert!(found.limits.iter().any(|limit| limit.contains(words)), "{:?}", found.limits);
            assert_eq!(Habits { limits: Vec::new(), ..found }, expected, "{words}");
        };
        let best = Habits {
            connections: u32::MAX,
            signals: SignalPath::Copy,
            waits: false,
            words: true,
            limits: Vec::new(),
        };
        let no = |check| Finding::new(check, false);
        let mapped = Habits { signals: SignalPath::Mapped, ..best.clone() };
        check(&[no(Check::Copies)], SignalPath::Copy, mapped.clone(), "by copies do not reach");
        let copies = Habits { words: false, ..best.clone() };
        check(&[no(Check::Mapped)], SignalPath::Mapped, copies, "signals by copies do");
        let none = [no(Check::Copies), no(Check::Mapped)];
        let mapped = Habits { words: false, ..mapped };
        check(&none, SignalPath::Mapped, mapped, "borders move between launches");
        let few = Finding { apart: Some(7), ..no(Check::Streams) };
        let seven = Habits { connections: 7, ..best.clone() };
        check(&[few], SignalPath::Copy, seven, "after the 7 first");
        let waits = Habits { waits: true, ..best.clone() };
        check(&[no(Check::Locking)], SignalPath::Copy, waits.clone(), ": page-locking");
        let hung = Finding::failed(Check::Loading, "it did not end within 5 s");
        check(&[hung], SignalPath::Copy, waits, "loading beside kernels: not known: it did not");
        let hung = Finding::failed(Check::Streams, "lost");
        let usual = Habits { connections: CONNECTIONS, ..best };
        check(&[hung], SignalPath::Copy, usual, "independent streams: not known: lost");
    }

    #[test]
    fn what_was_not_asked_is_at_its_worst_and_no_limit_is_claimed() {
        assert_eq!(Habits::of(&[], SignalPath::Mapped), Habits::worst(SignalPath::Mapped));
    }
}
