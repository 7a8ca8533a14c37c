//! What the runs of `partita bench punyala` say.

use super::threes::{self, Threes};
use super::{Known, time};
use partita_bench::Random;
use partita_bench::pairing::{Pairing, gain};
use partita_bench::plot::{Bars, sorted_bars};
use partita_bench::queues::{Plan, Queue, kind};
use partita_cli::report::Metric;
use partita_cli::table::Table;
use partita_model::{ContentionClass, GroupSize, InterferenceMatrix};
use partita_policy::{Needs, Pattern, Sizes, Slowdowns, matching, throughput};
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::time::Instant;

/// Makespans of pairs in nanoseconds, by the name of an arrangement.
#[derive(Debug, Default)]
pub struct Pairs(pub BTreeMap<(&'static str, [usize; 2]), f64>);

/// Programs of which each pair's slowdowns are known, when their integer program is timed.
const DIFFERENT: usize = 20;

/// The mean host time of the integer program for a queue of different programs.
fn programs_millis() -> f64 {
    const SEEDS: u64 = 5;
    let queue = Queue { name: String::new(), members: (0..DIFFERENT).collect() };
    let classes = [ContentionClass::Compute; DIFFERENT];
    let mut spent = 0.0;
    for seed in 0..SEEDS {
        let (mut random, mut known) = (Random::new(seed), Slowdowns::default());
        for of in 0..DIFFERENT {
            for beside in 0..DIFFERENT {
                let slowdown = 1.0 + random.below(1_500) as f64 / 1e3;
                known.pairs.measure(kind(of), kind(beside), slowdown);
            }
        }
        let start = Instant::now();
        let plan = queue.matched_by_program(&classes, &known, 2);
        // A queue that is not matched would take no time.
        spent += if plan.is_ok() { start.elapsed().as_secs_f64() } else { f64::INFINITY };
    }
    spent * 1e3 / SEEDS as f64
}

/// Times of one queue in nanoseconds.
#[derive(Debug)]
pub struct Times {
    pub name: String,
    pub applications: usize,
    /// Each policy, and the time where it was measured.
    pub policies: Vec<(&'static str, Option<f64>)>,
    /// The value that the integer program reached ÷ the greatest.
    pub value: f64,
}

/// The baseline: pairs in the order of arrival on even shares.
const BASE: &str = "even";

/// Pairs of a queue, by the integer program.
pub struct Plans<'a> {
    /// Over classes.
    pub ilp: &'a Plan,
    /// Over programs: with the slowdowns of all pairs, and of those pairs that have run in the
    /// plan over classes.
    pub by_program: [Plan; 2],
}

impl Times {
    /// The times of a queue's plans.
    pub fn new(
        pairing: &Pairing<'_>,
        queue: &Queue,
        plans: &Plans<'_>,
        pairs: &Pairs,
        live: Option<f64>,
        value: f64,
    ) -> Times {
        let arrival = queue.by_arrival();
        let even = |two: [usize; 2]| pairs.0.get(&("even", two)).copied().unwrap_or(f64::INFINITY);
        let oracle = queue.best_pairs(&even);
        let serial = queue.members.iter().map(|&member| pairing.solos[member].original).sum();
        let policies = vec![
            (BASE, time(&arrival, "even", pairs)),
            ("serial", Some(serial)),
            ("FCFS", time(&arrival, "fcfs", pairs)),
            ("profile-based", time(&arrival, "profile-based", pairs)),
            ("ILP", time(plans.ilp, "even", pairs)),
            ("programs", time(&plans.by_program[0], "even", pairs)),
            ("second pass", time(&plans.by_program[1], "even", pairs)),
            ("ILP+SMRA", time(plans.ilp, "smra", pairs)),
            ("ILP+CD-search", time(plans.ilp, "cd-search", pairs)),
            ("oracle", time(&oracle, "even", pairs)),
            ("live", live),
        ];
        Times { name: queue.name.clone(), applications: queue.members.len(), policies, value }
    }

    /// The time under a policy.
    fn of(&self, policy: &str) -> Option<f64> {
        self.policies.iter().find(|(name, _)| *name == policy).and_then(|(_, time)| *time)
    }

    /// Throughput above that of the baseline in per cent.
    fn gain(&self, policy: &str) -> Option<f64> {
        Some(100.0 * gain(self.of(policy)?, self.of(BASE)?))
    }
}

/// Everything that was measured with one seed.
pub struct Figures<'a> {
    pub pairing: &'a Pairing<'a>,
    /// All programs, those that no queue has too.
    pub programs: &'a [Known],
    pub matrix: &'a InterferenceMatrix,
    pub pairs: &'a Pairs,
    pub times: Vec<Times>,
    /// The queues that were cut into groups of three.
    pub threes: Vec<Threes>,
}

impl Figures<'_> {
    /// Means over the queues of 20 (§4.1.1 to §4.1.5), and beside them the paper's.
    pub fn metrics(&self) -> Vec<Metric> {
        let mut metrics = Vec::new();
        let queues: Vec<&Times> =
            self.times.iter().filter(|t| t.name != "14 applications").collect();
        let mean = |policy: &str| {
            let gains: Option<Vec<f64>> = queues.iter().map(|times| times.gain(policy)).collect();
            gains.map(|gains| gains.iter().sum::<f64>() / gains.len().max(1) as f64)
        };
        let goals = [("ILP", 7.7), ("ILP+SMRA", 16.6)];
        for (policy, _) in self.times.first().map_or(&[][..], |times| &times.policies) {
            let Some(value) = mean(policy).filter(|_| *policy != BASE) else { continue };
            let name = format!("{policy}: mean gain over even, queues of 20");
            let goal = goals.iter().find(|(name, _)| name == policy);
            metrics.push(match goal {
                Some((_, paper)) => {
                    let metric = Metric::at_least(name, value, "%", *paper);
                    Metric { paper: Some(*paper), ..metric }
                }
                None => Metric::plain(name, value, "%"),
            });
        }
        // Gains by §4.1.1 to §4.1.5, and by the summary.
        let papers = [
            ("equal", [9.0, 17.0]),
            ("A-heavy", [-3.0, 2.0]),
            ("M-heavy", [32.5, 32.0]),
            ("MC-heavy", [0.0, 3.0]),
            ("C-heavy", [0.0, 29.0]),
        ];
        for times in &self.times {
            for (at, policy) in
                ["ILP", "ILP+SMRA", "ILP+CD-search", "programs", "second pass", "live"]
                    .into_iter()
                    .enumerate()
            {
                let Some(value) = times.gain(policy) else { continue };
                let paper = papers.iter().find(|(name, _)| *name == times.name);
                let paper = paper.and_then(|(_, gains)| gains.get(at)).copied();
                let name = format!("{}: {policy} over even", times.name);
                metrics.push(Metric { paper, ..Metric::plain(name, value, "%") });
            }
        }
        for (name, policy, paper) in [("ILP", "ILP", 19.0), ("ILP+SMRA", "ILP+SMRA", 36.0)] {
            if let Some(value) = mean(policy) {
                let name = format!("{name}: the same beside the paper's summary");
                metrics.push(Metric { paper: Some(paper), ..Metric::plain(name, value, "%") });
            }
        }
        metrics.extend(self.threes.iter().flat_map(Threes::metrics));
        metrics.extend(self.quality());
        metrics
    }

    /// How good matching and SMRA are by themselves.
    fn quality(&self) -> Vec<Metric> {
        let least = self.times.iter().map(|times| times.value).fold(f64::INFINITY, f64::min);
        let to_oracle = self
            .times
            .iter()
            .filter_map(|times| Some(100.0 * (times.of("ILP")? / times.of("oracle")? - 1.0)));
        let to_oracle = to_oracle.fold(f64::NEG_INFINITY, f64::max);
        let smra: Vec<f64> = self
            .pairs
            .0
            .iter()
            .filter(|((name, _), _)| *name == "smra")
            .filter_map(|((_, two), smra)| {
                Some(100.0 * gain(*smra, *self.pairs.0.get(&("even", *two))?))
            })
            .collect();
        let worst = smra.iter().copied().fold(f64::INFINITY, f64::min);
        let mean = smra.iter().sum::<f64>() / smra.len().max(1) as f64;
        vec![
            Metric::at_least(
                "ILP: value of the exhaustive matching, least",
                100.0 * least,
                "%",
                99.0,
            ),
            Metric::plain("ILP: time above the best pairs by program, most", to_oracle, "%"),
            Metric::plain("SMRA: mean gain over even, pairs", mean, "%"),
            Metric::at_least("SMRA: worst gain over even, pairs", worst, "%", -2.0),
            Metric::at_most("matching of 20 applications", self.matching_millis(), "ms", 10.0),
            Metric::at_most("matching of 20 different programs", programs_millis(), "ms", 10.0),
        ]
    }

    /// The mean host time of the integer program for the queues of 20.
    fn matching_millis(&self) -> f64 {
        let value = |pattern: &Pattern| throughput(pattern, self.matrix);
        let queues = [[5, 5, 5, 5], [3, 3, 3, 11], [11, 3, 3, 3], [3, 11, 3, 3], [3, 3, 11, 3]];
        let start = Instant::now();
        let solved = queues
            .iter()
            .filter(|queue| matching(**queue, GroupSize::default(), Sizes::Full, &value).is_ok())
            .count();
        start.elapsed().as_secs_f64() * 1e3 / solved.max(1) as f64
    }

    /// Gains of every queue, the programs and the matrix.
    pub fn table(&self) -> String {
        let mut text = String::new();
        let mut programs = Table::new(&["PROGRAM", "CLASS", "DRAM", "LLC", "IPC", "R"]);
        for known in self.programs.iter().filter(|known| known.is_chosen) {
            let Needs { dram, llc, issue, ratio } = known.needs;
            programs.row(vec![
                known.name.clone(),
                known.class.to_string(),
                format!("{:.0} %", 100.0 * dram),
                format!("{:.0} %", 100.0 * llc),
                format!("{:.1} %", 100.0 * issue),
                format!("{ratio:.3}"),
            ]);
        }
        let _ = write!(text, "\nprograms alone\n\n{}", programs.render());
        let mut matrix = Table::new(&["SLOWDOWN OF", "BESIDE M", "MC", "C", "A"]);
        for of in ContentionClass::ALL {
            let entry = |beside| {
                let entry = self.matrix.of(of, beside);
                match entry.measured {
                    0 => format!("({:.2})", entry.slowdown),
                    count => format!("{:.2} of {count}", entry.slowdown),
                }
            };
            let cells = ContentionClass::ALL.map(entry);
            matrix.row([of.to_string()].into_iter().chain(cells));
        }
        let _ = write!(text, "\nmean slowdowns, estimates in brackets\n\n{}", matrix.render());
        let mut heading = vec!["QUEUE"];
        let policies = self.times.first().map_or(&[][..], |times| &times.policies);
        heading.extend(policies.iter().skip(1).map(|(name, _)| *name));
        let mut table = Table::new(&heading);
        for times in &self.times {
            let gain = |(policy, _): &(&str, Option<f64>)| {
                times.gain(policy).map_or(String::new(), |gain| format!("{gain:+.1} %"))
            };
            let name = [format!("{} ({})", times.name, times.applications)];
            table.row(name.into_iter().chain(times.policies.iter().skip(1).map(gain)));
        }
        let _ = write!(text, "\nthroughput over even shares by arrival\n\n{}", table.render());
        let _ = write!(text, "{}", threes::table(&self.threes));
        text
    }

    pub fn queues_csv(&self) -> String {
        let mut text = "queue,applications,policy,time_ns,gain_percent\n".to_owned();
        for times in &self.times {
            for (policy, time) in &times.policies {
                let (Some(time), Some(gain)) = (time, times.gain(policy)) else { continue };
                let Times { name, applications, .. } = times;
                let _ = writeln!(text, "{name},{applications},{policy},{time:.0},{gain:.2}");
            }
        }
        text.push_str(&self.threes.iter().map(Threes::csv).collect::<String>());
        text
    }

    pub fn pairs_csv(&self) -> String {
        let mut text = "first,second,policy,makespan_ns\n".to_owned();
        for ((policy, two), makespan) in &self.pairs.0 {
            let [first, second] = two.map(|member| &*self.pairing.applications[member].name);
            let _ = writeln!(text, "{first},{second},{policy},{makespan:.0}");
        }
        text
    }

    pub fn programs_csv(&self) -> String {
        let mut text = "program,class,dram_part,llc_part,issue_part,ratio,in_queues\n".to_owned();
        for Known { name, needs, class, is_chosen } in self.programs {
            let Needs { dram, llc, issue, ratio } = needs;
            let _ = writeln!(
                text,
                "{name},{class},{dram:.4},{llc:.4},{issue:.4},{ratio:.4},{is_chosen}"
            );
        }
        text
    }

    pub fn plot(&self) -> String {
        let names = self.times.iter().map(|times| times.name.clone()).collect();
        let kinds =
            ["FCFS", "profile-based", "ILP", "programs", "ILP+SMRA", "ILP+CD-search", "oracle"];
        let kinds = kinds.into_iter().filter_map(|policy| {
            let gains: Option<Vec<f64>> =
                self.times.iter().map(|times| times.gain(policy)).collect();
            Some((policy.to_owned(), gains?))
        });
        let bars = Bars { names, kinds: kinds.collect() };
        sorted_bars("Queues: throughput over even shares by arrival", "per cent", &bars)
    }
}
