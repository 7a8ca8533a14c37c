//! `partita bench punyala`: the evaluation of Punyala (2017, §4) on programs of its four classes.

mod figures;
mod threes;

use crate::cd_search::seeds::combined;
use crate::evaluation::{Evaluation, Studied, write_files};
use clap::Args;
use figures::{Figures, Pairs, Plans, Times};
use partita_bench::pairing::{Pairing, makespan, split_makespan};
use partita_bench::queues::{Plan, Queue, chosen, class, kind, needs, pair, queues};
use partita_bench::{Application, Arrangement, Cell, Cells, eight, samples, workloads};
use partita_cli::failure::Failure;
use partita_cli::report::Report;
use partita_emu::Spec;
use partita_model::{ContentionClass, PartitionerKind, SelectorKind};
use partita_policy::{Needs, Slowdowns};
use std::collections::{BTreeMap, BTreeSet};

const EXAMPLES: &str = "\
Examples:
  partita bench punyala --quick
      measure the queues with two programs of each class and short runs
  partita bench punyala --quick --json | jq '.metrics[] | {name, value, paper}'
      the same, as JSON
  partita bench punyala --out results
      measure all queues; after an interruption, the same command continues

Runs are kept under PARTITA_CACHE_DIR, else XDG_CACHE_HOME/partita. A new build of this program
computes them again.";

/// The paper's GPU (table 4.1).
const SPEC: &str = "punyala-60";
/// What an application has to do, in SM cycles alone, and the same of a quick run: a search of SMRA
/// takes some intervals of 40,000 cycles, and should be a small part of a pair's time.
const WORK: u64 = 3_000_000;
const QUICK_WORK: u64 = 300_000;
/// Programs of each class, and the same of a quick run.
const PROGRAMS: usize = 4;
const QUICK_PROGRAMS: usize = 2;
/// SMs of the first application that the profile-based method compares, in quarters of all.
const QUARTERS: [u16; 3] = [1, 2, 3];

const EVEN: Arrangement = Arrangement::Policy(SelectorKind::Everyone, PartitionerKind::Even);
const SMRA: Arrangement = Arrangement::Policy(SelectorKind::Everyone, PartitionerKind::Smra);
const CD_SEARCH: Arrangement =
    Arrangement::Policy(SelectorKind::Everyone, PartitionerKind::CdSearch);
const LIVE: Arrangement = Arrangement::Policy(SelectorKind::Matching, PartitionerKind::Smra);

/// Measure Punyala's matching and SMRA: throughput of queues against even shares in the order of
/// arrival.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct PunyalaArgs {
    #[command(flatten)]
    common: Evaluation,

    /// The time that each application works alone, in SM cycles [default: 3,000,000; 300,000 with
    /// --quick].
    #[arg(long, value_name = "N",
        value_parser = clap::value_parser!(u64).range(100_000..=1_000_000_000))]
    cycles: Option<u64>,

    /// Programs of each class, at most [default: 4; 2 with --quick].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u8).range(1..=16))]
    programs: Option<u8>,

    /// The queues that run through engine and selector as a whole, from the first
    /// [default: all; 1 with --quick].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u8).range(0..=6))]
    live: Option<u8>,

    /// The queues that are cut into groups of three, too, from the first
    /// [default: all; 1 with --quick].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u8).range(0..=6))]
    threes: Option<u8>,

    /// The seeds of the programs' data, of the queues, and of the choices that a GPU leaves open.
    /// With several seeds a figure is their mean, and its spread is their standard deviation.
    #[arg(long, alias = "seed", value_name = "SEED", value_delimiter = ',', default_value = "1")]
    seeds: Vec<u64>,
}

/// A program with its class.
#[derive(Clone)]
struct Known {
    name: String,
    needs: Needs,
    class: ContentionClass,
    is_chosen: bool,
}

/// The programs of the queues, and what each is alone.
struct Programs<'a> {
    pairing: Pairing<'a>,
    classes: Vec<ContentionClass>,
    /// Places by class, in the order in which queues take them.
    by_class: BTreeMap<ContentionClass, Vec<usize>>,
    /// All programs, those that no queue has too.
    all: Vec<Known>,
}

impl PunyalaArgs {
    /// Measures.
    pub fn execute(self) -> Result<Vec<u8>, Failure> {
        let spec = Spec::find(self.common.spec.as_deref().unwrap_or(SPEC))?;
        let studied: Vec<Studied> =
            self.seeds.iter().map(|&seed| self.study(&spec, seed)).collect::<Result<_, _>>()?;
        let report = Report {
            bench: "punyala".into(),
            device: format!("{}, {} cycles of work", spec.name, self.work()),
            seed: self.seeds[0],
            metrics: combined(studied.iter().map(|studied| &*studied.metrics)),
        };
        self.common.shown(&report, &self.seeds, &studied)
    }

    /// Measures with one seed.
    fn study(&self, spec: &Spec, seed: u64) -> Result<Studied, Failure> {
        let all = programs(seed);
        let mut cells = Evaluation::cells(seed)?;
        let programs = self.alone(spec, &all, seed, &mut cells)?;
        let queues = queues(&programs.by_class, seed);
        let pairing = &programs.pairing;
        let mut pairs = Pairs::default();
        let every = pairing.pairs();
        self.measure("even", &EVEN, pairing, &every, &mut cells, &mut pairs)?;
        let slowdowns = interference(&programs, &every, &mut cells)?;
        let matrix = slowdowns.classes.clone();
        let mut plans = Vec::new();
        for queue in &queues {
            let matched = queue.matched(&programs.classes, &matrix);
            plans.push(matched.map_err(|error| Failure::new(error.to_string()))?);
        }
        let ilp: Vec<[usize; 2]> = plans.iter().flat_map(|(plan, _)| plan.clone()).collect();
        let fcfs: Vec<[usize; 2]> = queues.iter().flat_map(Queue::by_arrival).collect();
        self.measure("smra", &SMRA, pairing, &ilp, &mut cells, &mut pairs)?;
        self.measure("cd-search", &CD_SEARCH, pairing, &ilp, &mut cells, &mut pairs)?;
        self.measure("fcfs", &Arrangement::Mps, pairing, &fcfs, &mut cells, &mut pairs)?;
        self.by_profile(pairing, &fcfs, &mut cells, &mut pairs)?;
        let lives = self.live(pairing, &queues, &mut cells)?;
        let threes = self.threes(&programs, &queues, &slowdowns, &mut cells)?;
        let mut times = Vec::new();
        for ((queue, (plan, value)), live) in queues.iter().zip(&plans).zip(lives) {
            let best = queue.best_value(&programs.classes, &matrix);
            let by_program = by_program(queue, plan, &programs.classes, &slowdowns)?;
            let plans = Plans { ilp: plan, by_program };
            times.push(Times::new(pairing, queue, &plans, &pairs, live, value / best));
        }
        let figures = Figures {
            pairing,
            programs: &programs.all,
            matrix: &matrix,
            pairs: &pairs,
            times,
            threes,
        };
        if let Some(folder) = &self.common.out {
            let of_seed = folder.join(format!("seed-{seed}"));
            let folder = if self.seeds.len() > 1 { &of_seed } else { folder };
            let files = [
                ("queues.svg", figures.plot()),
                ("queues.csv", figures.queues_csv()),
                ("pairs.csv", figures.pairs_csv()),
                ("programs.csv", figures.programs_csv()),
                ("interference.json", serde_json::to_string_pretty(&matrix)? + "\n"),
            ];
            write_files(folder, &files)?;
        }
        Ok(Studied { metrics: figures.metrics(), text: figures.table() })
    }

    fn work(&self) -> u64 {
        self.cycles.unwrap_or(if self.common.quick { QUICK_WORK } else { WORK })
    }

    fn default_programs(&self) -> usize {
        if self.common.quick { QUICK_PROGRAMS } else { PROGRAMS }
    }

    /// The class of each program, and what those of the queues do alone.
    fn alone<'a>(
        &self,
        spec: &'a Spec,
        all: &'a [Application],
        seed: u64,
        cells: &mut Cells,
    ) -> Result<Programs<'a>, Failure> {
        let first = Pairing::new(spec, all.iter().collect(), self.work()).first_cells();
        self.common.compute("classes", cells, &first)?;
        let mut known = Vec::new();
        for (cell, application) in first.iter().zip(all) {
            let (needs, name) = (needs(spec, &cells.get(cell)?), application.name.clone());
            known.push(Known { name, needs, class: class(&needs), is_chosen: false });
        }
        let classes: Vec<ContentionClass> = known.iter().map(|known| known.class).collect();
        let most = self.programs.map_or(self.default_programs(), usize::from);
        let mut by_class = chosen(&classes, most, seed);
        let members: BTreeSet<usize> = by_class.values().flatten().copied().collect();
        members.iter().for_each(|&place| known[place].is_chosen = true);
        for place in by_class.values_mut().flatten() {
            *place = members.range(..*place).count();
        }
        let applications = members.iter().map(|&place| &all[place]).collect();
        let mut pairing = Pairing::new(spec, applications, self.work());
        pairing.take_work(cells)?;
        self.common.compute("alone", cells, &pairing.alone_cells(&EVEN))?;
        pairing.take_alone(&EVEN, cells)?;
        let classes = members.iter().map(|&place| classes[place]).collect();
        Ok(Programs { pairing, classes, by_class, all: known })
    }

    /// Makespans of pairs under an arrangement.
    fn measure(
        &self,
        name: &'static str,
        arrangement: &Arrangement,
        pairing: &Pairing<'_>,
        wanted: &[[usize; 2]],
        cells: &mut Cells,
        pairs: &mut Pairs,
    ) -> Result<(), Failure> {
        let cell = |two: &[usize; 2]| pairing.cell(two, arrangement.clone());
        let runs: Vec<Cell<'_>> = wanted.iter().map(cell).collect();
        self.common.compute(name, cells, &runs)?;
        for (two, run) in wanted.iter().zip(&runs) {
            pairs.0.insert((name, *two), makespan(&cells.get(run)?));
        }
        Ok(())
    }

    /// The profile-based method that the paper compares with: each pair has the split of quarters
    /// of the SMs in which the speeds alone on so many SMs add up to most, from beginning to end.
    fn by_profile(
        &self,
        pairing: &Pairing<'_>,
        wanted: &[[usize; 2]],
        cells: &mut Cells,
        pairs: &mut Pairs,
    ) -> Result<(), Failure> {
        let sms = pairing.spec.sms;
        let part = |quarters: u16| (sms * quarters / 4).max(1);
        let members: BTreeSet<usize> = wanted.iter().flatten().copied().collect();
        let alone = |member: usize, quarters: u16| Cell {
            launches: Vec::new(),
            cycles: pairing.work,
            ..pairing.cell(&[member], Arrangement::Original(part(quarters)))
        };
        let each = |&member: &usize| QUARTERS.map(|quarters| alone(member, quarters));
        let curves: Vec<Cell<'_>> = members.iter().flat_map(each).collect();
        self.common.compute("profiles", cells, &curves)?;
        let mut speeds = BTreeMap::new();
        for &member in &members {
            for quarters in QUARTERS {
                let shared = cells.get(&alone(member, quarters))?;
                speeds.insert((member, quarters), speed(pairing, member, &shared, 0));
            }
        }
        let split = |two: &[usize; 2]| {
            let sum =
                |quarters: &u16| speeds[&(two[0], *quarters)] + speeds[&(two[1], 4 - quarters)];
            // The even split where it is as good as another.
            let best = [2, 1, 3].into_iter().rev();
            best.max_by(|one, other| sum(one).total_cmp(&sum(other))).unwrap_or(2)
        };
        let cell = |two: &[usize; 2]| {
            let first = part(split(two));
            let arrangement = Arrangement::Static(vec![first, sms - first]);
            Cell { launches: Vec::new(), cycles: pairing.work, ..pairing.cell(two, arrangement) }
        };
        let runs: Vec<Cell<'_>> = wanted.iter().map(cell).collect();
        self.common.compute("profile-based", cells, &runs)?;
        for (two, run) in wanted.iter().zip(&runs) {
            let shared = cells.get(run)?;
            let speeds = [0, 1].map(|place| speed(pairing, two[place], &shared, place));
            let alone = two.map(|member| pairing.solos[member].original);
            pairs.0.insert(("profile-based", *two), split_makespan(speeds, alone));
        }
        Ok(())
    }

    /// Whole queues under the selector, all applications there from the start.
    fn live(
        &self,
        pairing: &Pairing<'_>,
        queues: &[Queue],
        cells: &mut Cells,
    ) -> Result<Vec<Option<f64>>, Failure> {
        let default = if self.common.quick { 1 } else { queues.len() };
        let count = self.live.map_or(default, usize::from);
        let cell = |queue: &Queue| pairing.cell(&queue.members, LIVE);
        let runs: Vec<Cell<'_>> = queues.iter().take(count).map(cell).collect();
        self.common.compute("live", cells, &runs)?;
        let mut found = vec![None; queues.len()];
        for (place, run) in found.iter_mut().zip(&runs) {
            *place = Some(makespan(&cells.get(run)?));
        }
        Ok(found)
    }
}

/// Pairs by the integer program over programs, with the slowdowns of all pairs of programs, and of
/// the pairs only that the plan over classes has: those that have run once the queue has.
fn by_program(
    queue: &Queue,
    ilp: &Plan,
    classes: &[ContentionClass],
    slowdowns: &Slowdowns,
) -> Result<[Plan; 2], Failure> {
    let mut seen = Slowdowns { classes: slowdowns.classes.clone(), ..Slowdowns::default() };
    for two in ilp {
        let kinds = two.map(kind);
        for (of, beside) in [(kinds[0], kinds[1]), (kinds[1], kinds[0])] {
            if let Some(pair) = slowdowns.pairs.of(of, beside) {
                seen.pairs.measure(of, beside, pair.slowdown);
            }
        }
    }
    let plan = |known: &Slowdowns| {
        let groups = queue.matched_by_program(classes, known, 2);
        let groups = groups.map_err(|error| Failure::new(error.to_string()))?;
        Ok::<Plan, Failure>(groups.iter().map(|group| pair(group[0], group[1])).collect())
    };
    Ok([plan(slowdowns)?, plan(&seen)?])
}

/// Every program of ours whose kind the paper's benchmarks may have; the classes decide which of
/// them a queue has.
fn programs(seed: u64) -> Vec<Application> {
    let mut all: Vec<Application> =
        workloads(seed).into_iter().map(|workload| workload.application).collect();
    for application in samples(seed).into_iter().chain(eight(seed)) {
        let is_new = all.iter().all(|known| known.name != application.name);
        if is_new {
            all.push(application);
        }
    }
    all
}

/// The speed of an application in a run, as a part of the speed alone of its kernels as they are.
fn speed(
    pairing: &Pairing<'_>,
    member: usize,
    shared: &partita_bench::Shared,
    place: usize,
) -> f64 {
    let whole = pairing.ctas(member) / pairing.solos[member].original.max(1.0);
    let track = &shared.shares[place].track;
    track.ctas() as f64 / track.last_growth().max(1) as f64 / whole.max(f64::MIN_POSITIVE)
}

/// Slowdowns from the pairs that were measured on even shares (§3.2.2): the time of each
/// application in a pair ÷ its time alone, by class and by program.
fn interference(
    programs: &Programs<'_>,
    pairs: &[[usize; 2]],
    cells: &mut Cells,
) -> Result<Slowdowns, Failure> {
    let mut found = Slowdowns::default();
    for two in pairs {
        let shared = cells.get(&programs.pairing.cell(two, EVEN))?;
        let [one, other] = [0, 1].map(|place| {
            let alone = programs.pairing.solos[two[place]].original.max(1.0);
            shared.shares[place].track.last_growth() as f64 / alone
        });
        let [first, second] = two.map(|member| programs.classes[member]);
        found.classes.measure(first, second, one);
        found.classes.measure(second, first, other);
        let [first, second] = two.map(kind);
        found.pairs.measure(first, second, one);
        found.pairs.measure(second, first, other);
    }
    Ok(found)
}

/// The time of a plan under an arrangement; `None` where a pair was not measured.
fn time(plan: &Plan, name: &'static str, pairs: &Pairs) -> Option<f64> {
    plan.iter().map(|two| pairs.0.get(&(name, *two)).copied()).sum()
}
