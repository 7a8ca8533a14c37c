//! `partita bench shares`: SMs and speed that applications get, against what their terms ask for.
//!
//! Each run gives applications parts of the SMs in one of four ways: a minimum that is also the
//! maximum, a weight, or a fixed split without a policy. A fourth way is a thread percentage of
//! MPS, under which SMs held are not known. Speed is held against two runs alone on the same number
//! of SMs: the kernels as they were written, and the same workers that share. The second tells what
//! neighbours cost, and the first also what being resizable costs.
//! Further runs change shares and measure how long running kernels take to follow ([`changes`]).

mod changes;

use crate::cd_search::seeds::combined;
use crate::evaluation::{Evaluation, Studied, write_files};
use changes::Changed;
use clap::Args;
use partita_bench::requests::{Traffic, server};
use partita_bench::{Application, Arrangement, Cell, Cells, Share, percentage, workloads};
use partita_cli::failure::Failure;
use partita_cli::report::{Metric, Report};
use partita_cli::table::Table;
use partita_emu::Spec;
use partita_model::{SmAmount, Terms, Weight};
use std::fmt::Write as _;

const EXAMPLES: &str = "\
Examples:
  partita bench shares --quick
      four pairs of programs at 10/90 and 50/50, and three of them with shares that change
  partita bench shares --kinds compute,memory --seeds 1,2,3
      two kinds of pairs at all splits, with three seeds
  partita bench shares --json | jq '.metrics[] | select(.met == false)'
      the goals that are missed, as JSON

Runs are kept under PARTITA_CACHE_DIR, else XDG_CACHE_HOME/partita. A new build of this program
computes them again.";

/// The modelled GPU where none is named.
const SPEC: &str = "gpgpu-sim-24";
/// Microseconds of a run.
const MICROS: u64 = 2_000;
const QUICK_MICROS: u64 = 1_000;
/// A speed counts from this part of a run on.
const WARM: u64 = 4;
/// SMs held may differ by this part of those asked for.
const HELD: f64 = 0.01;
/// The goal: where no bandwidth is shared, speed misses that of the same SMs alone by at most this
/// many per cent.
const MISSED: f64 = 3.0;
/// Requests of a burst, and nanoseconds from one burst to the next.
const BURST: usize = 4;
const BURSTS_APART: u64 = 500_000;

/// The splits, in parts. In a split of more than two, the two programs of a kind alternate.
const SPLITS: [(&str, &[u16]); 6] = [
    ("10/90", &[10, 90]),
    ("50/50", &[50, 50]),
    ("20/80", &[20, 80]),
    ("30/70", &[30, 70]),
    ("25/25/50", &[25, 25, 50]),
    ("16 × 1/16", &[1; 16]),
];
/// Splits of a quick run: the first.
const QUICK_SPLITS: usize = 2;

/// Measure the SMs and the speed that applications get, against what their terms ask for.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct SharesArgs {
    #[command(flatten)]
    common: Evaluation,

    /// The kinds of pairs [default: all].
    #[arg(long, value_enum, value_name = "KIND", value_delimiter = ',')]
    kinds: Vec<Kind>,

    /// Microseconds of device time of a run [default: 2,000; 1,000 with --quick].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(100..=100_000))]
    micros: Option<u64>,

    /// The seeds of the programs' data and of the choices that a GPU leaves open. With several
    /// seeds a figure is their mean, and its spread is their standard deviation.
    #[arg(long, alias = "seed", value_name = "SEED", value_delimiter = ',', default_value = "1")]
    seeds: Vec<u64>,
}

/// What bounds the programs of a pair.
#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum)]
enum Kind {
    /// Computing.
    Compute,
    /// Bandwidth of DRAM.
    Memory,
    /// One computing, one DRAM.
    Mixed,
    /// One works in bursts, one always.
    Bursty,
}

impl Kind {
    const ALL: [Kind; 4] = [Kind::Compute, Kind::Memory, Kind::Mixed, Kind::Bursty];

    fn programs(self) -> [&'static str; 2] {
        match self {
            Kind::Compute => ["dxtc", "bino"],
            Kind::Memory => ["lbm", "gesummv"],
            Kind::Mixed => ["dxtc", "lbm"],
            Kind::Bursty => ["server", "dxtc"],
        }
    }

    fn name(self) -> &'static str {
        match self {
            Kind::Compute => "compute",
            Kind::Memory => "memory",
            Kind::Mixed => "mixed",
            Kind::Bursty => "bursty",
        }
    }

    /// Whether shares change in a run of its own: where both programs always have work, so that an
    /// SM has somebody to leave and somebody to come.
    fn changes(self) -> bool {
        self != Kind::Bursty
    }

    /// Whether programs reach the speed that their SMs give: they neither share bandwidth that
    /// bounds them nor wait for work.
    fn is_free(self) -> bool {
        self == Kind::Compute
    }
}

/// A way to say what an application may have.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Way {
    Bounds,
    Weights,
    Fixed,
    Percentages,
}

impl Way {
    const ALL: [Way; 4] = [Way::Bounds, Way::Weights, Way::Fixed, Way::Percentages];

    fn name(self) -> &'static str {
        match self {
            Way::Bounds => "min = max",
            Way::Weights => "weight",
            Way::Fixed => "fixed",
            Way::Percentages => "MPS percentage",
        }
    }

    /// Terms with so many SMs as the minimum and the maximum of each.
    fn bounds(asked: &[u16]) -> Vec<Terms> {
        let bounds = |&sms: &u16| {
            let amount = Some(SmAmount::Sms(sms));
            Terms { min: amount, max: amount, ..Terms::default() }
        };
        asked.iter().map(bounds).collect()
    }

    fn arrangement(self, sms: u16, parts: &[u16], asked: &[u16]) -> Arrangement {
        let weight = |&part: &u16| Terms {
            weight: Weight::try_from(i64::from(part)).ok(),
            ..Terms::default()
        };
        match self {
            Way::Bounds => Arrangement::Terms(Way::bounds(asked)),
            Way::Weights => Arrangement::Terms(parts.iter().map(weight).collect()),
            Way::Fixed => Arrangement::Static(asked.to_vec()),
            Way::Percentages => {
                let part = |own: &u16| percentage(*own, sms);
                Arrangement::MpsPercentages(asked.iter().map(part).collect())
            }
        }
    }
}

/// SMs for each part, at least one: the largest remainders get what whole numbers leave.
fn divided(sms: u16, parts: &[u16]) -> Vec<u16> {
    let sum: u32 = parts.iter().map(|part| u32::from(*part)).sum();
    let exact = |part: u16| u32::from(sms) * u32::from(part);
    let whole = |part: u16| u16::try_from(exact(part) / sum.max(1)).unwrap_or(sms).max(1);
    let mut divided: Vec<u16> = parts.iter().map(|part| whole(*part)).collect();
    let mut order: Vec<usize> = (0..parts.len()).collect();
    order.sort_by_key(|place| std::cmp::Reverse(exact(parts[*place]) % sum.max(1)));
    let left = sms.saturating_sub(divided.iter().sum());
    order.iter().take(left.into()).for_each(|place| divided[*place] += 1);
    divided
}

/// One application of one run.
struct Row {
    kind: Kind,
    split: &'static str,
    way: Way,
    /// Its place in the split.
    place: usize,
    program: &'static str,
    asked: u16,
    /// On the average over the run; `None` under MPS, which tells nobody.
    held: Option<f64>,
    /// Against its kernels as they were written, alone on the SMs asked for.
    speed: f64,
    /// Against its workers alone on the SMs asked for.
    beside: f64,
}

impl SharesArgs {
    /// Measures.
    pub fn execute(self) -> Result<Vec<u8>, Failure> {
        let spec = Spec::find(self.common.spec.as_deref().unwrap_or(SPEC))?;
        let mut studied = Vec::new();
        for &seed in &self.seeds {
            studied.push(self.study(&spec, seed)?);
        }
        let report = Report {
            bench: "shares".into(),
            device: format!("{}, {} µs a run", spec.name, self.micros()),
            seed: self.seeds[0],
            metrics: combined(studied.iter().map(|studied| &*studied.metrics)),
        };
        self.common.shown(&report, &self.seeds, &studied)
    }

    fn micros(&self) -> u64 {
        self.micros.unwrap_or(if self.common.quick { QUICK_MICROS } else { MICROS })
    }

    /// Splits that this GPU has SMs for.
    fn splits(&self, sms: u16) -> impl Iterator<Item = (&'static str, &'static [u16])> {
        let count = if self.common.quick { QUICK_SPLITS } else { SPLITS.len() };
        SPLITS.into_iter().take(count).filter(move |(_, parts)| parts.len() <= usize::from(sms))
    }

    fn study(&self, spec: &Spec, seed: u64) -> Result<Studied, Failure> {
        let all = Programs::new(seed);
        let kinds = if self.kinds.is_empty() { &Kind::ALL[..] } else { &self.kinds };
        let runs = Runs { spec, micros: self.micros() };
        let mut cells = Evaluation::cells(seed)?;
        let mut wanted = Vec::new();
        for &kind in kinds {
            for (_, parts) in self.splits(spec.sms) {
                let asked = divided(spec.sms, parts);
                let programs = all.of(kind, parts.len());
                for way in Way::ALL {
                    wanted.push(runs.together(&programs, way.arrangement(spec.sms, parts, &asked)));
                }
                for (&program, &sms) in programs.iter().zip(&asked) {
                    wanted.extend(runs.alone(program, sms));
                }
            }
            wanted.extend(kind.changes().then(|| changes::cell(&runs, &all.of(kind, 2))));
        }
        self.common.compute("shares", &mut cells, &wanted)?;
        let mut rows = Vec::new();
        for &kind in kinds {
            for (split, parts) in self.splits(spec.sms) {
                let asked = divided(spec.sms, parts);
                let programs = all.of(kind, parts.len());
                for way in Way::ALL {
                    let cell = runs.together(&programs, way.arrangement(spec.sms, parts, &asked));
                    let shared = cells.get(&cell)?;
                    for (place, share) in shared.shares.iter().enumerate() {
                        let alone = runs.alone(programs[place], asked[place]);
                        let [original, workers] =
                            alone.map(|cell| runs.speed(&mut cells, share, &cell));
                        rows.push(Row {
                            kind,
                            split,
                            way,
                            place,
                            program: kind.programs()[place % 2],
                            asked: asked[place],
                            held: (way != Way::Percentages)
                                .then(|| share.sm_nanos as f64 / shared.nanos.max(1) as f64),
                            speed: original?,
                            beside: workers?,
                        });
                    }
                }
            }
        }
        let mut changed = Vec::new();
        for &kind in kinds.iter().filter(|kind| kind.changes()) {
            let cell = changes::cell(&runs, &all.of(kind, 2));
            let handovers = cells.get(&cell)?.handovers;
            changed.push(Changed::new(kind, handovers, &cells.profiles(&cell)?));
        }
        if let Some(folder) = &self.common.out {
            let of_seed = folder.join(format!("seed-{seed}"));
            let folder = if self.seeds.len() > 1 { &of_seed } else { folder };
            let files = [("shares.csv", csv(&rows)), ("changes.csv", changes::csv(&changed))];
            write_files(folder, &files)?;
        }
        let metrics = metrics(&rows).into_iter().chain(changes::metrics(&changed)).collect();
        Ok(Studied { metrics, text: table(&rows) + &changes::table(&changed) })
    }
}

/// The programs of all kinds.
struct Programs {
    all: Vec<Application>,
}

impl Programs {
    fn new(seed: u64) -> Programs {
        let mut all: Vec<Application> =
            workloads(seed).into_iter().map(|workload| workload.application).collect();
        all.push(server(seed));
        Programs { all }
    }

    /// `count` applications of a kind: its two programs alternate.
    fn of(&self, kind: Kind, count: usize) -> Vec<&Application> {
        let programs = kind.programs();
        let named = |name| self.all.iter().find(|one| one.name == name);
        (0..count).filter_map(|place| named(programs[place % programs.len()])).collect()
    }
}

/// Runs of one length on one GPU.
struct Runs<'a> {
    spec: &'a Spec,
    micros: u64,
}

impl<'a> Runs<'a> {
    fn together(&self, programs: &[&'a Application], arrangement: Arrangement) -> Cell<'a> {
        let nanos = self.micros * 1_000;
        let bursts = |program: &&Application| {
            if program.name == "server" {
                Traffic::bursts(BURST, BURSTS_APART, nanos + BURSTS_APART).launches(program)
            } else {
                Vec::new()
            }
        };
        let arrivals: Vec<Vec<u64>> = programs.iter().map(bursts).collect();
        // The last burst comes after the end, so that nobody leaves before.
        let ends = |arrivals: &Vec<u64>| {
            if arrivals.is_empty() { u64::MAX } else { arrivals.len() as u64 }
        };
        Cell {
            applications: programs.to_vec(),
            spec: self.spec,
            arrangement,
            cycles: (nanos * u64::from(self.spec.sm_clock_khz) / 1_000_000).max(1),
            launches: arrivals.iter().map(ends).collect(),
            arrivals,
        }
    }

    /// A program alone on `sms` SMs: its kernels as they were written, and as workers.
    fn alone(&self, program: &'a Application, sms: u16) -> [Cell<'a>; 2] {
        [Arrangement::Original(sms), Arrangement::Static(vec![sms])]
            .map(|arrangement| self.together(&[program], arrangement))
    }

    /// The speed of an application against a run alone, in per cent, once caches are warm.
    fn speed(&self, cells: &mut Cells, share: &Share, alone: &Cell<'a>) -> Result<f64, Failure> {
        let alone = cells.get(alone)?;
        let Some(alone) = alone.shares.first() else { return Ok(0.0) };
        let from = self.micros * 1_000 / WARM;
        // Beyond the last CTA it is not known how far the next one is.
        let to = share.track.last_growth().min(alone.track.last_growth());
        Ok(100.0 * share.track.speed_against(&alone.track, from, to))
    }
}

fn metrics(rows: &[Row]) -> Vec<Metric> {
    let mut metrics = Vec::new();
    for row in rows {
        let Row { kind, split, way, place, program, .. } = row;
        let (kind, way, place) = (kind.name(), way.name(), place + 1);
        let name = |what: &str| format!("{kind}, {split}, {way}, {place} {program}: {what}");
        let asked = f64::from(row.asked);
        metrics.push(Metric::plain(name("SMs asked for"), asked, ""));
        // CD-search moves the borders of weights, and an application without work lends its SMs.
        let holds = row.way != Way::Weights && row.kind != Kind::Bursty;
        metrics.extend(row.held.map(|found| {
            if holds {
                let met = (found - asked).abs() <= HELD * asked;
                let held = Metric::plain(name("SMs held"), found, "");
                Metric { goal: Some(asked), met: Some(met), ..held }
            } else {
                Metric::plain(name("SMs held"), found, "")
            }
        }));
        let of_originals = name("speed, of kernels as written on the same SMs alone");
        metrics.push(if row.kind.is_free() && row.way == Way::Bounds {
            Metric::at_least(of_originals, row.speed, "%", 100.0 - MISSED)
        } else {
            Metric::plain(of_originals, row.speed, "%")
        });
        metrics.push(Metric::plain(
            name("speed, of workers on the same SMs alone"),
            row.beside,
            "%",
        ));
    }
    metrics
}

fn table(rows: &[Row]) -> String {
    let mut table =
        Table::new(&["KIND", "SPLIT", "BY", "PROGRAM", "ASKED", "HELD", "SPEED", "BESIDE"]);
    for row in rows {
        table.row(vec![
            row.kind.name().into(),
            row.split.into(),
            row.way.name().into(),
            format!("{} {}", row.place + 1, row.program),
            row.asked.to_string(),
            row.held.map_or("-".to_owned(), |held| format!("{held:.2}")),
            format!("{:.1} %", row.speed),
            format!("{:.1} %", row.beside),
        ]);
    }
    format!(
        "\nSPEED: against the kernels as they were written, alone on the SMs asked for; BESIDE: \
         against the workers alone on them\n\n{}",
        table.render()
    )
}

fn csv(rows: &[Row]) -> String {
    let mut text =
        String::from("kind,split,way,place,program,asked,held,speed_percent,beside_percent\n");
    for Row { kind, split, way, place, program, asked, held, speed, beside } in rows {
        let (kind, way) = (kind.name(), way.name());
        let held = held.map_or("-".to_owned(), |held| format!("{held:.3}"));
        let _ = writeln!(
            text,
            "{kind},{split},{way},{place},{program},{asked},{held},{speed:.2},{beside:.2}"
        );
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_of_sms_add_up() {
        assert_eq!(divided(24, &[10, 90]), [2, 22]);
        assert_eq!(divided(24, &[30, 70]), [7, 17]);
        assert_eq!(divided(24, &[25, 25, 50]), [6, 6, 12]);
        assert_eq!(divided(4, &[10, 90]), [1, 3]);
        let sixteen = divided(24, &[1; 16]);
        assert_eq!((sixteen.iter().sum::<u16>(), sixteen[0], sixteen[15]), (24, 2, 1));
    }
}
