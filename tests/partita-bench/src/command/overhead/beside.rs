//! What a program loses beside a neighbour.
//!
//! With partitions the program has half of the SMs. It is held against itself in original form
//! beside the same neighbour, where the hardware's scheduler gives each of the two half of the SMs
//! (`thread-percentage=50`). What is left between the two is the cost of the form.

use super::neighbour::Neighbour;
use super::program::{self, Way};
use super::recorded::Launches;
use partita_cli::report::Metric;
use partita_cli::run::child::Parts;
use std::ffi::OsString;

/// More time that a program may take on its half than in its original form on as many SMs, in
/// percent.
const GOAL: f64 = 5.0;
/// The part of the time that a neighbour must have work on the device.
const BUSY: f64 = 0.9;
/// Runs that are made.
pub const RUNS: usize = 4;

/// What has been found.
pub struct Beside {
    /// The figures.
    pub metrics: Vec<Metric>,
    /// How often patience ran out.
    pub late: u64,
    /// What limits the figures.
    pub notes: Vec<String>,
}

/// An arrangement of program and neighbour.
struct Arrangement {
    way: Way,
    has_neighbour: bool,
    /// Further options of the device.
    options: &'static str,
}

/// Runs the program alone, and beside the neighbour in three arrangements. `done` is told after
/// each run.
pub fn measure(
    parts: &Parts,
    program: &[OsString],
    neighbour: &Neighbour,
    mut done: impl FnMut(&str),
) -> Result<Beside, String> {
    let folder = tempfile::tempdir().map_err(|error| error.to_string())?;
    let (mut late, mut stayed, mut busy) = (0, true, 1.0_f64);
    let mut micros = |name: &str, arrangement: &Arrangement| {
        let Arrangement { way, has_neighbour, options } = *arrangement;
        let path = folder.path().join(name);
        let together = if has_neighbour { ",together=2" } else { "" };
        let device = format!("{}{options}{together},record={}", parts.device, path.display());
        let beside = has_neighbour.then_some(neighbour);
        let ran = program::run(&Parts { device, ..parts.clone() }, way, program, beside)?;
        let launches = Launches::read(&path, usize::from(has_neighbour));
        let launches = launches.map_err(|error| error.to_string())?;
        late += ran.late;
        if has_neighbour {
            stayed &= ran.neighbour_stayed;
            busy = busy.min(launches.neighbour_busy);
        }
        done(name);
        Ok::<f64, String>(launches.span.0 as f64 / 1e3)
    };
    let (written, shared) = (Way::Written, Way::Partitions);
    let halves = ",thread-percentage=50";
    let arrangement = |way, has_neighbour, options| Arrangement { way, has_neighbour, options };
    let alone = micros("alone", &arrangement(written, false, ""))?;
    let side_by_side = micros("beside-as-written", &arrangement(written, true, ""))?;
    let half = micros("halves-as-written", &arrangement(written, true, halves))?;
    let partition = micros("beside-with-partitions", &arrangement(shared, true, ""))?;
    let times = |span: f64| span / alone.max(1e-3);
    let metrics = vec![
        Metric::plain("alone as written, first to last operation", alone, "us"),
        Metric::plain("beside the neighbour as written", times(side_by_side), "times alone"),
        Metric::plain("as written on half of the SMs", times(half), "times alone"),
        Metric::plain("with partitions, on half of the SMs", times(partition), "times alone"),
        Metric::at_most(
            "cost of partitions beside the neighbour",
            (partition / half.max(1e-3) - 1.0) * 100.0,
            "% more time",
            GOAL,
        ),
    ];
    let mut notes = Vec::new();
    if !stayed {
        notes.push(format!(
            "{} ended before the program: figures beside it are those of a part of the run",
            neighbour.name()
        ));
    }
    if busy < BUSY {
        notes.push(format!(
            "{} had work on the device for {:.0} % of the program's time: figures beside it say \
             little about sharing",
            neighbour.name(),
            busy * 100.0
        ));
    }
    Ok(Beside { metrics, late, notes })
}
