//! What the runs of `partita bench masola` say.

use partita_bench::latencies::{Group, Latencies};
use partita_bench::plot::{Bars, Line, curves, sorted_bars};
use partita_cli::report::Metric;
use partita_cli::table::Table;
use partita_policy::latency::{Fitted, Form, Prediction, bandwidth, isolated};
use std::fmt::Write as _;

/// What the paper reports (§7.3, §8.1), in per cent: the mean size of the errors.
const PAPER_GROUPS: f64 = 10.7;
const PAPER_SMALL_GROUPS: f64 = 4.1;
const PAPER_BANDWIDTH: f64 = 11.2;
/// The greatest size of an error alone (§6), in per cent.
const PAPER_ALONE_WORST: f64 = 30.0;
/// Kernels that take less of the nominal bandwidth on all SMs have no bandwidth to predict: the few
/// sectors that they move follow from how many SMs ask for the same ones.
const LEAST_BANDWIDTH: f64 = 0.01;
/// Partita's goals, in per cent.
const GOAL_ALONE: f64 = 10.0;
const GOAL_GROUPS: f64 = 5.0;
const GOAL_BANDWIDTH: f64 = 6.0;

/// Kernels, with what was measured and predicted of them.
pub struct Set<'a> {
    /// What stands before its figures' names.
    pub name: &'static str,
    pub study: Latencies<'a>,
    pub groups: Vec<Found>,
}

/// A group: nanoseconds of each member.
pub struct Found {
    pub members: Group,
    pub measured: Vec<f64>,
    /// Alone on the same SMs, measured.
    pub alone: Vec<f64>,
    /// By Eq. 5–16, from measured times alone.
    pub printed: Vec<f64>,
    pub mended: Vec<f64>,
    /// By our model, from measured times alone.
    pub ours: Vec<f64>,
    /// By our model, from profiles and times on all SMs.
    pub profiled: Vec<Prediction>,
}

/// Everything that was measured.
pub struct Figures<'a> {
    pub sets: Vec<Set<'a>>,
}

/// One kernel on one number of SMs, alone: measured, then by each model.
struct Alone {
    kernel: usize,
    sms: u16,
    measured: f64,
    printed: f64,
    mended: f64,
    ours: f64,
    profiled: f64,
}

/// The relative error of a prediction, in per cent.
fn error(predicted: f64, measured: f64) -> f64 {
    100.0 * (predicted / measured - 1.0)
}

/// The mean size of errors.
fn size(errors: impl IntoIterator<Item = f64>) -> f64 {
    let (mut sum, mut count) = (0.0, 0.0_f64);
    for error in errors {
        sum += f64::abs(error);
        count += 1.0;
    }
    sum / count.max(1.0)
}

/// The greatest size of errors.
fn worst(errors: impl IntoIterator<Item = f64>) -> f64 {
    errors.into_iter().map(f64::abs).fold(0.0, f64::max)
}

impl Set<'_> {
    /// All but those on all SMs, where the time is an input.
    fn alone(&self) -> Vec<Alone> {
        self.on_part(|kernel, sms, (measured, _)| {
            let (solo, gpu) = (&self.study.solos[kernel], &self.study.gpu);
            let ours = |work| Fitted::new(gpu, work).alone(sms) + gpu.launch;
            let paper = |form| isolated(gpu, &solo.counted, sms, form) + gpu.launch;
            Alone {
                kernel,
                sms,
                measured,
                printed: paper(Form::Printed),
                mended: paper(Form::Mended),
                ours: ours(&solo.counted),
                profiled: ours(&solo.profiled),
            }
        })
    }

    /// Bandwidth: Eq. 17 and ours, as errors in per cent, of kernels that take at least a part of
    /// the nominal bandwidth on all SMs.
    fn bandwidths(&self, least: f64) -> [Vec<f64>; 2] {
        let both = self.on_part(|kernel, sms, (_, measured)| {
            let (work, gpu) = (&self.study.solos[kernel].counted, &self.study.gpu);
            if work.bandwidth() < least * gpu.nominal {
                return [f64::NAN; 2];
            }
            let fitted = Fitted::new(gpu, work);
            let moved = fitted.bandwidth(sms) * fitted.alone(sms);
            let ours = moved / (fitted.alone(sms) + gpu.launch);
            [error(bandwidth(gpu, work, sms), measured), error(ours, measured)]
        });
        [0, 1]
            .map(|of| both.iter().map(|pair| pair[of]).filter(|error| error.is_finite()).collect())
    }

    fn on_part<T>(&self, of: impl Fn(usize, u16, (f64, f64)) -> T) -> Vec<T> {
        let all = self.study.spec.sms;
        let kernels = self.study.solos.iter().enumerate();
        kernels
            .flat_map(|(kernel, solo)| {
                let part = solo.alone.iter().filter(|(sms, _)| **sms < all);
                part.map(|(&sms, &measured)| of(kernel, sms, measured)).collect::<Vec<_>>()
            })
            .collect()
    }

    /// Errors of a model over the members of groups of so many.
    fn errors(
        &self,
        sizes: std::ops::RangeInclusive<usize>,
        of: fn(&Found, usize) -> f64,
    ) -> Vec<f64> {
        let groups = self.groups.iter().filter(|group| sizes.contains(&group.members.len()));
        groups
            .flat_map(|group| {
                (0..group.members.len())
                    .map(|member| error(of(group, member), group.measured[member]))
            })
            .collect()
    }

    fn metrics(&self) -> Vec<Metric> {
        let named = |name: &str| format!("{}{name}", self.name);
        let plain = |name: &str, value| Metric::plain(named(name), value, "%");
        let judged = |name: &str, value, goal, paper| {
            let metric = Metric::at_most(named(name), value, "%", goal);
            Metric { paper: Some(paper).filter(|_| self.name.is_empty()), ..metric }
        };
        let alone = self.alone();
        let of = |of: fn(&Alone) -> f64| {
            alone.iter().map(|alone| error(of(alone), alone.measured)).collect::<Vec<f64>>()
        };
        let [eq_17, bandwidth] = self.bandwidths(LEAST_BANDWIDTH);
        let [_, of_all] = self.bandwidths(0.0);
        let all = |of: fn(&Found, usize) -> f64| size(self.errors(2..=usize::MAX, of));
        let ours: fn(&Found, usize) -> f64 = |group, member| group.ours[member];
        let mut metrics = vec![
            Metric::at_most(named("alone, mean error"), size(of(|a| a.ours)), "%", GOAL_ALONE),
            Metric {
                paper: Some(PAPER_ALONE_WORST).filter(|_| self.name.is_empty()),
                ..plain("alone, worst error", worst(of(|a| a.ours)))
            },
            plain("alone, mean error by the profile", size(of(|a| a.profiled))),
            plain("alone, mean error of Eq. 4 as printed", size(of(|a| a.printed))),
            plain("alone, worst error of Eq. 4 as printed", worst(of(|a| a.printed))),
            plain("alone, mean error of Eq. 4 mended", size(of(|a| a.mended))),
            judged("groups, mean error", all(ours), GOAL_GROUPS, PAPER_GROUPS),
            plain("groups, worst error", worst(self.errors(2..=usize::MAX, ours))),
            Metric {
                paper: Some(PAPER_SMALL_GROUPS).filter(|_| self.name.is_empty()),
                ..plain("groups of 2 and 3, mean error", size(self.errors(2..=3, ours)))
            },
            plain("groups of 4 to 6, mean error", size(self.errors(4..=6, ours))),
            plain(
                "groups, mean error of the times alone",
                all(|group, member| group.alone[member]),
            ),
            plain(
                "groups, mean error of Eq. 8 as printed",
                all(|group, member| group.printed[member]),
            ),
            plain("groups, mean error of Eq. 8 mended", all(|group, member| group.mended[member])),
            plain(
                "groups, mean error from the time on all SMs",
                all(|group, member| group.profiled[member].likely),
            ),
            judged("bandwidth, mean error", size(bandwidth), GOAL_BANDWIDTH, PAPER_BANDWIDTH),
            plain("bandwidth, mean error of Eq. 17", size(eq_17)),
            plain("bandwidth, mean error with kernels that take next to none", size(of_all)),
        ];
        metrics.push(Metric::plain(named("groups, times within bounds"), self.within(), "%"));
        metrics.push(Metric::plain(named("kernels"), self.study.kernels.len() as f64, ""));
        metrics.push(Metric::plain(named("groups"), self.groups.len() as f64, ""));
        metrics
    }

    /// The part of the members whose time lies between the bounds of the prediction.
    fn within(&self) -> f64 {
        let members =
            self.groups.iter().flat_map(|group| group.profiled.iter().zip(&group.measured));
        let is_within = |(found, measured): (&Prediction, &f64)| {
            if (found.lower..=found.upper).contains(measured) { 0.0 } else { 100.0 }
        };
        100.0 - size(members.map(is_within))
    }

    fn kernel(&self, kernel: usize) -> &str {
        &self.study.kernels[kernel].name
    }
}

impl Figures<'_> {
    pub fn metrics(&self) -> Vec<Metric> {
        self.sets.iter().flat_map(Set::metrics).collect()
    }

    /// Each kernel: mean errors alone and in groups, in per cent.
    pub fn tables(&self) -> String {
        let heading = ["KERNEL", "ALL SMS, US", "DRAM, GB/S", "ALONE", "EQ. 4", "GROUPS", "EQ. 8"];
        let mut table = Table::new(&heading);
        for set in &self.sets {
            let alone = set.alone();
            for (kernel, solo) in set.study.solos.iter().enumerate() {
                let own = alone.iter().filter(|alone| alone.kernel == kernel);
                let of =
                    |of: fn(&Alone) -> f64| size(own.clone().map(|a| error(of(a), a.measured)));
                let in_groups = |of: fn(&Found, usize) -> f64| {
                    size(set.groups.iter().flat_map(|group| {
                        let own = group.members.iter().enumerate();
                        own.filter(|(_, member)| member.0 == kernel)
                            .map(|(place, _)| error(of(group, place), group.measured[place]))
                            .collect::<Vec<f64>>()
                    }))
                };
                table.row(vec![
                    set.kernel(kernel).to_owned(),
                    format!("{:.1}", solo.counted.whole / 1000.0),
                    format!("{:.1}", solo.counted.bandwidth()),
                    format!("{:.1} %", of(|alone| alone.ours)),
                    format!("{:.1} %", of(|alone| alone.printed)),
                    format!("{:.1} %", in_groups(|group, member| group.ours[member])),
                    format!("{:.1} %", in_groups(|group, member| group.printed[member])),
                ]);
            }
        }
        format!(
            "\nMean size of the errors of each kernel: ours, and the paper's as printed\n\n{}",
            table.render()
        )
    }

    /// Why each member of each group is expected to take its time.
    pub fn reasons(&self) -> String {
        let mut text = String::new();
        for set in &self.sets {
            for group in &set.groups {
                for ((kernel, _), found) in group.members.iter().zip(&group.profiled) {
                    let _ = writeln!(text, "{}: {}", set.kernel(*kernel), found.reason);
                }
            }
        }
        text
    }

    pub fn files(&self) -> Vec<(&'static str, String)> {
        vec![
            ("alone.csv", self.alone_csv()),
            ("groups.csv", self.groups_csv()),
            ("alone.svg", self.curves()),
            ("groups.svg", self.bars()),
        ]
    }

    fn alone_csv(&self) -> String {
        let mut text = "kernel,sms,measured_ns,ours_ns,by_profile_ns,eq4_printed_ns,eq4_mended_ns,\
                        measured_gbps\n"
            .to_owned();
        for set in &self.sets {
            for alone in set.alone() {
                let Alone { kernel, sms, measured, printed, mended, ours, profiled } = alone;
                let (_, gbps) = set.study.solos[kernel].alone[&sms];
                let name = set.kernel(kernel);
                let _ = write!(text, "{name},{sms},{measured:.0},{ours:.0},{profiled:.0}");
                let _ = writeln!(text, ",{printed:.0},{mended:.0},{gbps:.2}");
            }
        }
        text
    }

    fn groups_csv(&self) -> String {
        let mut text =
            "group,kernel,sms,measured_ns,alone_ns,ours_ns,eq8_printed_ns,eq8_mended_ns,\
                        from_all_sms_ns,lower_ns,upper_ns\n"
                .to_owned();
        let groups =
            self.sets.iter().flat_map(|set| set.groups.iter().map(move |group| (set, group)));
        for (number, (set, group)) in (1..).zip(groups) {
            for (place, (kernel, sms)) in group.members.iter().enumerate() {
                let found = &group.profiled[place];
                let _ = writeln!(
                    text,
                    "{number},{},{sms},{:.0},{:.0},{:.0},{:.0},{:.0},{:.0},{:.0},{:.0}",
                    set.kernel(*kernel),
                    group.measured[place],
                    group.alone[place],
                    group.ours[place],
                    group.printed[place],
                    group.mended[place],
                    found.likely,
                    found.lower,
                    found.upper
                );
            }
        }
        text
    }

    /// Times alone over SMs, as parts of the time on all SMs: measured and by our model.
    fn curves(&self) -> String {
        let mut lines = Vec::new();
        let Some(set) = self.sets.first() else { return String::new() };
        for (kernel, solo) in set.study.solos.iter().enumerate() {
            let fitted = Fitted::new(&set.study.gpu, &solo.counted);
            let whole = solo.counted.whole + set.study.gpu.launch;
            let at = |sms: u16, nanos: f64| (f64::from(sms), whole / nanos);
            let measured = solo.alone.iter().map(|(&sms, &(nanos, _))| at(sms, nanos)).collect();
            let predicted =
                solo.alone.keys().map(|&sms| at(sms, fitted.alone(sms) + set.study.gpu.launch));
            let name = set.kernel(kernel).to_owned();
            lines.push(Line { name: name.clone(), points: measured, dashed: false });
            lines.push(Line { name: String::new(), points: predicted.collect(), dashed: true });
        }
        curves("Speed alone: measured, and predicted (dashed)", "SMs", "speed, all SMs = 1", &lines)
    }

    /// The mean size of the errors of each group.
    fn bars(&self) -> String {
        let Some(set) = self.sets.first() else { return String::new() };
        let of = |of: fn(&Found, usize) -> f64| {
            let mean = |group: &Found| {
                size((0..group.members.len()).map(|at| error(of(group, at), group.measured[at])))
            };
            set.groups.iter().map(mean).collect::<Vec<f64>>()
        };
        let bars = Bars {
            names: (1..=set.groups.len()).map(|number| number.to_string()).collect(),
            kinds: vec![
                ("ours".to_owned(), of(|group, member| group.ours[member])),
                ("Eq. 8 as printed".to_owned(), of(|group, member| group.printed[member])),
            ],
        };
        sorted_bars("Groups: mean size of the errors", "per cent", &bars)
    }
}
