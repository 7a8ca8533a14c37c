//! What hostile clients do. Each act is a process of its own, which acts until its parent kills it.
//!
//! An act asks for the wrong, too much or too slowly, with [`partita_client`] where that suffices
//! and with bytes ([`wire`]) elsewhere. The daemon may refuse any of it. An act prints how many
//! requests it made and how many the daemon refused ([`Tally`]).
//!
//! Where an act is to die or to stop in the middle of a call, its parent sends the signals
//! ([`Act::handling`]).
//!
//! No act has more processes than a busy tenant. One user with many applications has as many
//! shares, by the policies' rules, so that would prove nothing.

mod bombs;
mod client;
mod floods;
mod slow;
mod wire;

use crate::random::Random;
use clap::ValueEnum;
use serde::{Deserialize, Serialize};
use std::io::Write as _;
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// Pause after a refusal that ended a session. Without a pause an act only connects.
const AFTER_REFUSAL: Duration = Duration::from_millis(5);
/// How often a tally is printed, at most.
const BETWEEN_TALLIES: Duration = Duration::from_millis(100);

/// An act, by its name on the command line.
#[derive(
    Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, ValueEnum, Serialize, Deserialize,
)]
#[serde(rename_all = "kebab-case")]
pub enum Act {
    /// Allocations of 1 byte, and their frees.
    AllocFlood,
    /// Launches of one CTA that returns at once; nobody waits for them.
    LaunchFlood,
    /// Streams and events, hundreds at once; some wait for each other.
    StreamFlood,
    /// Connections that are dropped at each point of the handshake.
    HandshakeFlood,
    /// Requests to the API, right and wrong ones, eight at once.
    ApiFlood,
    /// As many sessions as the daemon gives.
    SessionFlood,
    /// Modules of many small kernels.
    ModuleFlood,
    /// Errors that the daemon logs.
    LogFlood,
    /// Random bytes in the session's memory and on its bell.
    Garbage,
    /// Records that end in the middle, or change while they are read.
    TornRecords,
    /// Requests whose answers nobody reads.
    NeverReads,
    /// One call every 0.9 s.
    SlowCalls,
    /// Requests to the API at one byte a second.
    SlowApi,
    /// Connections that say nothing.
    SlowHello,
    /// A stream that waits for a host function which does not return, with work behind it.
    ClosedGate,
    /// A client that is stopped in the middle of its calls, and goes on later.
    Stopped,
    /// Variables of megabytes with values, and of gigabytes without.
    BigVariables,
    /// PTX that is deep, long or odd.
    OddPtx,
    /// Packed images that unpack to much more than they are, or than they say.
    PackedBombs,
    /// Page-locked memory that a kernel touches, as much as there is.
    ManagedMemory,
    /// Device memory, as much as there is.
    DeviceMemory,
    /// Kernels that never end.
    Endless,
    /// Kernels that fault, or write outside their memory.
    Faults,
    /// Grids of two billion CTAs.
    HugeGrids,
    /// Kernels that run as they were written, because their module has too many for forms.
    Originals,
    /// A client that is killed in the middle of copies.
    KilledCopying,
    /// A client that is killed in the middle of launches.
    KilledLaunching,
    /// A client that is killed in the middle of handshakes.
    KilledConnecting,
    /// A client that is killed while its modules are prepared.
    KilledLoading,
}

/// What the parent does with an act's process.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Handling {
    /// Nothing before the end.
    Left,
    /// It kills the process at random moments, and starts the next.
    Killed,
    /// It stops the process at random moments, and lets it go on later.
    Stopped,
}

impl Act {
    /// The act's name on the command line.
    pub fn name(self) -> String {
        let value = self.to_possible_value().expect("no act is skipped");
        value.get_name().to_owned()
    }

    /// What the parent does with the act's process.
    pub fn handling(self) -> Handling {
        match self {
            Act::KilledCopying
            | Act::KilledLaunching
            | Act::KilledConnecting
            | Act::KilledLoading => Handling::Killed,
            Act::Stopped => Handling::Stopped,
            _ => Handling::Left,
        }
    }

    /// Whether the act uses up a limit of its user, so that it proves something only where the
    /// healthy programs are another user's.
    pub fn needs_other_user(self) -> bool {
        matches!(
            self,
            Act::SessionFlood
                | Act::ManagedMemory
                | Act::DeviceMemory
                | Act::BigVariables
                | Act::PackedBombs
                | Act::SlowHello
                | Act::HandshakeFlood
        )
    }

    fn run(self, attack: &mut Attack) -> Outcome {
        match self {
            Act::AllocFlood => floods::allocations(attack),
            Act::LaunchFlood => floods::launches(attack),
            Act::StreamFlood => floods::streams(attack),
            Act::HandshakeFlood | Act::KilledConnecting => wire::handshakes(attack),
            Act::ApiFlood => floods::api(attack),
            Act::SessionFlood => floods::sessions(attack),
            Act::ModuleFlood | Act::KilledLoading => floods::modules(attack),
            Act::LogFlood => floods::log(attack),
            Act::Garbage => wire::garbage(attack),
            Act::TornRecords => wire::torn_records(attack),
            Act::NeverReads => wire::never_reads(attack),
            Act::SlowCalls => slow::calls(attack),
            Act::SlowApi => slow::api(attack),
            Act::SlowHello => slow::hellos(attack),
            Act::ClosedGate => slow::closed_gate(attack),
            Act::Stopped | Act::KilledCopying => floods::copies(attack),
            Act::BigVariables => bombs::variables(attack),
            Act::OddPtx => bombs::odd_ptx(attack),
            Act::PackedBombs => bombs::packed(attack),
            Act::ManagedMemory => bombs::managed(attack),
            Act::DeviceMemory => bombs::device_memory(attack),
            Act::Endless => bombs::endless(attack),
            Act::Faults => bombs::faults(attack),
            Act::HugeGrids => bombs::huge_grids(attack),
            Act::Originals => bombs::originals(attack),
            Act::KilledLaunching => floods::long_launches(attack),
        }
    }
}

/// Why an act's session is over, or a request failed.
pub struct Refused(String);

impl<E: std::error::Error> From<E> for Refused {
    fn from(error: E) -> Refused {
        Refused(error.to_string())
    }
}

/// How one session of an act ends.
type Outcome<T = ()> = Result<T, Refused>;

/// What an act has.
struct Attack {
    sockets: PathBuf,
    random: Random,
    tally: Tally,
}

/// Acts until it is killed.
pub fn act_for_ever(act: Act, sockets: PathBuf, seed: u64) -> ! {
    for_ever(sockets, seed, |attack| act.run(attack))
}

/// Keeps its SMs busy until it is killed, as a well-behaved tenant does whose work is never done.
pub fn busy_for_ever(sockets: PathBuf, seed: u64) -> ! {
    for_ever(sockets, seed, floods::busy)
}

fn for_ever(sockets: PathBuf, seed: u64, act: impl Fn(&mut Attack) -> Outcome) -> ! {
    let mut attack = Attack { sockets, random: Random::new(seed), tally: Tally::default() };
    loop {
        if let Err(refused) = act(&mut attack) {
            attack.tally.refuse(refused);
            std::thread::sleep(AFTER_REFUSAL);
        }
    }
}

/// What an act has done, as it tells its parent.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Told {
    /// Requests.
    pub done: u64,
    /// Those that the daemon refused.
    pub refused: u64,
    /// The last refusal in words.
    pub last: Option<String>,
}

/// Counts requests and refusals, and prints the counts now and then.
#[derive(Debug, Default)]
struct Tally {
    told: Told,
    printed: Option<Instant>,
}

impl Tally {
    /// Counts a request, and hands its outcome on.
    fn count<T, E: Into<Refused>>(&mut self, outcome: Result<T, E>) -> Outcome<T> {
        self.told.done += 1;
        self.print();
        outcome.map_err(Into::into)
    }

    /// Counts a request whose refusal ends nothing.
    fn attempt<T, E: Into<Refused>>(&mut self, outcome: Result<T, E>) -> Option<T> {
        self.count(outcome).map_err(|refused| self.refuse(refused)).ok()
    }

    fn refuse(&mut self, Refused(text): Refused) {
        self.told.refused += 1;
        self.told.last = Some(text);
        self.print();
    }

    fn print(&mut self) {
        if self.printed.is_some_and(|printed| printed.elapsed() < BETWEEN_TALLIES) {
            return;
        }
        self.printed = Some(Instant::now());
        let text = serde_json::to_string(&self.told).expect("a tally is plain data");
        // A parent that has gone kills this process.
        let _ = writeln!(std::io::stdout().lock(), "{text}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_of_the_command_line() {
        assert_eq!(Act::AllocFlood.name(), "alloc-flood");
        for act in Act::value_variants() {
            assert_eq!(Act::from_str(&act.name(), false), Ok(*act));
        }
    }
}
