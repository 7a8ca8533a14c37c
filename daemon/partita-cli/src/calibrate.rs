//! `partita calibrate`: measures of a GPU what policies cannot learn from its users' programs.

use crate::failure::Failure;
use crate::progress::Bar;
use crate::sockets::{self, Probe};
use crate::state_dir::state_dir;
use crate::table::Table;
use clap::{Args, Subcommand};
use partita_gpu::device;
use partita_gpu::interference::{Interference, Rig};
use partita_gpu::store::Store;
use partita_model::{ContentionClass, DeviceKind, Timekeeping};
use serde::Serialize;
use std::fmt::Display;
use std::path::{Path, PathBuf};
use std::time::Instant;

const EXAMPLES: &str = "\
Examples:
  sudo partita calibrate interference --device cuda:0
      measure the first GPU, with partitad stopped; partitad reads the result at its next start
  partita calibrate interference --device emu:a100 --state-dir state
      measure an emulated GPU for a partitad with the same --state-dir
  partita calibrate interference --device emu:a100 --state-dir state --show
      print what was measured before

An interrupted command continues where it stopped.";

/// Measure a GPU for policies, once.
#[derive(Args, Debug)]
pub struct CalibrateArgs {
    #[command(subcommand)]
    command: Calibrate,
}

#[derive(Subcommand, Debug)]
enum Calibrate {
    Interference(InterferenceArgs),
}

/// Measure how much classes of programs slow each other down, for the selector `matching`.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
struct InterferenceArgs {
    /// The device, as partitad's --device names it.
    #[arg(long, value_name = "DEVICE", default_value = "auto")]
    device: String,

    /// The state folder of the partitad that will use the result [default: PARTITA_STATE_DIR, else
    /// the folder that partitad uses].
    #[arg(long, value_name = "DIR")]
    state_dir: Option<PathBuf>,

    /// Print what was measured before, and measure nothing.
    #[arg(long, conflicts_with_all = ["again", "beside"])]
    show: bool,

    /// Forget what was measured before.
    #[arg(long)]
    again: bool,

    /// Measure a GPU that a running partitad may be serving. Work of its users falsifies the
    /// result.
    #[arg(long)]
    beside: bool,

    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// The result.
#[derive(Serialize)]
struct Shown {
    device: String,
    classes: [String; 4],
    /// Rows are the classes that slow down, columns the classes beside them.
    slowdowns: Option<[[f64; 4]; 4]>,
}

impl CalibrateArgs {
    /// Measures.
    pub fn execute(self) -> Result<Vec<u8>, Failure> {
        let Calibrate::Interference(args) = self.command;
        args.execute()
    }
}

impl InterferenceArgs {
    fn execute(self) -> Result<Vec<u8>, Failure> {
        let folder = self.state_dir.clone().or_else(state_dir).ok_or_else(|| {
            Failure::new("there is no state folder: name one with --state-dir or PARTITA_STATE_DIR")
        })?;
        let device = device::open(&self.device, Some(&folder))
            .map_err(|error| Failure::new(format!("--device {}: {error}", self.device)))?;
        let name = device.facts().name.clone();
        let store =
            Store::open(&folder, &device.identity()).map_err(|error| no_folder(&folder, &error))?;
        let kept = store.read::<Interference>(Interference::FILE).filter(|_| !self.again);
        let mut found = kept.unwrap_or_default();
        if !self.show {
            if device.facts().timekeeping == Timekeeping::Off {
                return Err(Failure::new(format!(
                    "--device {}: this device keeps no time; leave out `timing=off`",
                    self.device
                )));
            }
            let serves = sockets::search(None, |name| std::env::var_os(name));
            let serves =
                serves.iter().find(|folder| matches!(sockets::probe(folder), Probe::Answers));
            if let (Some(folder), DeviceKind::Cuda, false) =
                (serves, device.facts().kind, self.beside)
            {
                return Err(Failure::new(format!(
                    "a partitad serves at {}, and work of its users would falsify the result: stop \
                     it (`systemctl stop partitad`), or say --beside",
                    folder.display()
                )));
            }
            let mut rig = Rig::new(device).map_err(|error| Failure::new(error.to_string()))?;
            measure(&mut found, &mut rig, &store, &folder)?;
        }
        let slowdowns = found.slowdowns();
        if self.json {
            let shown = Shown { device: name, classes: classes(), slowdowns };
            return Ok((serde_json::to_string(&shown)? + "\n").into_bytes());
        }
        let Some(slowdowns) = slowdowns else {
            let count = Interference::all().iter().filter(|one| found.has(**one)).count();
            return Err(Failure::new(format!(
                "{count} of {} measurements of {name} are there: run this command without --show",
                Interference::all().len()
            )));
        };
        Ok(table(&name, &slowdowns).into_bytes())
    }
}

/// Measures what is not there yet. Each measurement is kept at once.
fn measure(
    found: &mut Interference,
    rig: &mut Rig,
    store: &Store,
    folder: &Path,
) -> Result<(), Failure> {
    let all = Interference::all();
    let mut bar = Bar::new("interference", "measurements");
    let begun = Instant::now();
    let mut new = 0_u32;
    for (done, &measurement) in (1..).zip(&all) {
        if !found.has(measurement) {
            found
                .measure(rig, measurement)
                .map_err(|error| Failure::new(format!("{measurement}: {error}")))?;
            store.write(Interference::FILE, found);
            let kept = store.read::<Interference>(Interference::FILE);
            if !kept.is_some_and(|kept| kept.has(measurement)) {
                return Err(no_folder(folder, &"what was measured cannot be written"));
            }
            new += 1;
        }
        let each = begun.elapsed().as_secs_f64() / f64::from(new.max(1));
        let left = (all.len() - done) as f64 * each;
        bar.show((done, all.len()), &measurement.to_string(), (new > 0).then_some(left));
    }
    bar.end();
    Ok(())
}

fn no_folder(folder: &Path, error: &dyn Display) -> Failure {
    Failure::new(format!(
        "the state folder {}: {error}; name one that you may write to with --state-dir",
        folder.display()
    ))
}

/// The paper's letters.
fn classes() -> [String; 4] {
    ContentionClass::ALL.map(|class| class.to_string())
}

fn table(device: &str, slowdowns: &[[f64; 4]; 4]) -> String {
    let mut columns = vec!["CLASS"];
    let beside = ContentionClass::ALL.map(|class| format!("BESIDE {class}"));
    columns.extend(beside.iter().map(String::as_str));
    let mut table = Table::new(&columns);
    for (class, row) in classes().into_iter().zip(slowdowns) {
        let mut cells = vec![class];
        cells.extend(row.iter().map(|slowdown| format!("{slowdown:.2}")));
        table.row(cells);
    }
    format!("{device}: times as slow as alone, with half of the SMs each\n\n{}", table.render())
}
