//! Borders that move under a running kernel: the time for it, and that no CTA is lost.

use super::marks::Marks;
use super::stage::Stage;
use crate::shown;
use clap::Args;
use partita_bench::Random;
use partita_cli::failure::Failure;
use partita_cli::report::{Metric, Report};
use partita_emu::setup::DEFAULT_SPEC;
use partita_emu::{Options, Spec};
use partita_model::{ApplicationId, Nanos, OperationId, ResidencyKind, SmId, SmSet, TraceEntry};
use std::collections::{BTreeMap, BTreeSet};

const EXAMPLES: &str = "\
Examples:
  partita bench resize
      move borders under two running kernels; measure until the last worker has left and the \
      first new worker runs
  partita bench resize --spec cd-search-24 --seed 7 --json | jq '.metrics[] | {name, value, met}'
      the same on another GPU, with other borders, as JSON

Times are simulated: a slow host changes no figure.";

/// What a resize may take beside a task, and beside a launch, in nanoseconds.
const ALLOWANCE: u64 = 5_000;
/// A worker that says that it has left is gone from its place so much later at most.
const EXIT: Nanos = Nanos(1_000);
/// Workers on an SM: as in kernels that need much shared memory.
const PER_SM: u64 = 4;
/// So many rounds of CTAs at most run while some are counted, which takes longer.
const COUNTED_ROUNDS: u64 = 40;
/// The engine's longest task, where a CTA is not longer, and the most CTAs of a task.
const LONGEST_TASK: f64 = 20_000.0;
const MOST_CTAS: f64 = 10.0;

/// Measure how fast borders move under running kernels.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct ResizeArgs {
    /// The GPU to emulate: a name that `partita emu specs` lists, or a file's path with a slash.
    #[arg(long, value_name = "NAME", default_value = DEFAULT_SPEC)]
    spec: String,

    /// The number of borders to move for each kernel.
    #[arg(long, value_name = "N", default_value_t = 200,
        value_parser = clap::value_parser!(u32).range(2..=5_000))]
    resizes: u32,

    /// The seed of the borders.
    #[arg(long, value_name = "NUMBER", default_value_t = 1)]
    seed: u64,

    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// How long each SM took that changed hands, in nanoseconds.
#[derive(Default)]
struct Times {
    /// From the signal until the last worker had left it.
    gone: Vec<u64>,
    /// From then until the first worker of the new owner was there.
    come: Vec<u64>,
}

impl ResizeArgs {
    /// Measures.
    pub fn execute(&self) -> Result<Vec<u8>, Failure> {
        let spec = Spec::find(&self.spec)?;
        let mut metrics = Vec::new();
        for (name, nanoseconds) in [("CTAs of 30 us", 30_000), ("CTAs of 3 us", 3_000)] {
            metrics.extend(self.measure(&spec, name, nanoseconds)?);
        }
        let device = format!("{}, simulated time", spec.name);
        shown(&Report { bench: "resize".into(), device, seed: self.seed, metrics }, self.json)
    }

    fn measure(&self, spec: &Spec, name: &str, nanoseconds: u32) -> Result<Vec<Metric>, Failure> {
        let mut stage =
            Stage::new(spec.clone(), Options { seed: self.seed, ..Options::default() })?;
        let (first, a) = stage.application(1)?;
        let (second, b) = stage.application(2)?;
        let sms = spec.sms;
        // Long enough for a task, the change, and a pause that keeps changes apart.
        let pause = Nanos(u64::from(nanoseconds).max(20_000) * 2 + 40_000);
        let lasts =
            pause.0 * u64::from(self.resizes + 20) + COUNTED_ROUNDS * u64::from(nanoseconds);
        let ctas = u32::try_from(lasts / u64::from(nanoseconds) * PER_SM * u64::from(sms))?;
        let shared =
            u32::try_from(spec.shared_per_sm_bytes / PER_SM - 2 * spec.shared_granularity_bytes)?;
        let kernels = [
            Marks::launch(&mut stage, first, ctas, shared, nanoseconds)?,
            Marks::launch(&mut stage, second, ctas, shared, nanoseconds)?,
        ];
        // Until the kernels are counted: then they run in parts, between which no SM has workers.
        stage.run_for(Nanos(pause.0 * 4 + COUNTED_ROUNDS * u64::from(nanoseconds)))?;
        stage.engine.set_trace(stage.device.as_mut(), true)?;
        let (mut random, mut moves, mut border) = (Random::new(self.seed), Vec::new(), sms / 2);
        for _ in 0..self.resizes {
            // A border that stays where it is would be no resize.
            let step = 1 + u16::try_from(random.below(u64::from(sms) - 2))?;
            border = 1 + (border - 1 + step) % (sms - 1);
            let own = SmSet::range(0, border);
            moves.push(stage.device.now());
            stage.plan(BTreeMap::from([(a, own), (b, SmSet::range(0, sms).difference(&own))]))?;
            stage.run_for(pause)?;
        }
        stage.engine.set_trace(stage.device.as_mut(), false)?;
        let running =
            stage.engine.application_reports().iter().all(|report| report.launches_completed == 0);
        let trace = stage.engine.trace_report(None);
        if !running || trace.dropped > 0 {
            return Err(Failure::new(
                "a kernel ended, or the trace was full, before the last border had moved",
            ));
        }
        // Both kernels need not go on to their ends for what is measured: their first CTAs tell how
        // long one takes.
        let done =
            stage.engine.application_reports().iter().map(|r| r.ctas_completed).min().unwrap_or(0);
        let (longest, mean) = kernels[0].times(&mut stage, u32::try_from(done / 2)?)?;
        let times = times(&trace.entries, &moves, Nanos(u64::from(nanoseconds) / 2));
        let task = (LONGEST_TASK / mean).floor().clamp(1.0, MOST_CTAS) * longest as f64;
        let gone_goal = (task + ALLOWANCE as f64) / 1e3;
        let come_goal = (spec.launch_nanoseconds + ALLOWANCE) as f64 / 1e3;
        let mut metrics = vec![
            Metric::plain(
                format!("{name}: SMs that changed hands"),
                times.gone.len() as f64,
                "SMs",
            ),
            Metric::plain(format!("{name}: one task"), task / 1e3, "us"),
        ];
        metrics.extend(distribution(&format!("{name}: last worker gone"), times.gone, gone_goal));
        metrics.extend(distribution(
            &format!("{name}: then first new worker"),
            times.come,
            come_goal,
        ));
        Ok(metrics)
    }
}

/// The distribution of times, the largest of which has a goal.
fn distribution(name: &str, mut nanos: Vec<u64>, goal: f64) -> Vec<Metric> {
    nanos.sort_unstable();
    let at = |percent: usize| {
        let index = nanos.len().saturating_sub(1) * percent / 100;
        nanos.get(index).copied().unwrap_or_default() as f64 / 1e3
    };
    vec![
        Metric::plain(format!("{name}, median"), at(50), "us"),
        Metric::plain(format!("{name}, 99 %"), at(99), "us"),
        Metric::at_most(format!("{name}, worst"), at(100), "us", goal),
    ]
}

/// An SM that was taken from an application, until its new owner works there.
struct Taken {
    loser: ApplicationId,
    since: Nanos,
    given: Option<(ApplicationId, Nanos)>,
    /// The first worker of another application. One that comes a moment before the SM is granted
    /// begins then.
    came: Option<(ApplicationId, Nanos)>,
}

impl Taken {
    /// How long it took until the last worker had left, and from then until the first new one could
    /// work.
    fn times(&self, exits: &[(Nanos, ApplicationId)]) -> Option<(Nanos, Nanos)> {
        let ((owner, given), (guest, came)) = (self.given?, self.came?);
        let own = |(time, who): &&(Nanos, ApplicationId)| {
            *who == self.loser && *time >= self.since && *time <= given + EXIT
        };
        let exit = exits.iter().filter(own).map(|(time, _)| *time).max()?;
        let begins = given.max(came);
        (owner == guest && given >= self.since)
            .then(|| (exit.saturating_sub(self.since), begins.saturating_sub(exit)))
    }
}

/// From the trace, for each SM that changed hands at one of these moments. CTAs that were there for
/// less than `stay` were no workers: they found the SM foreign, and left.
fn times(entries: &[TraceEntry], moves: &[Nanos], stay: Nanos) -> Times {
    let (mut times, mut taken) = (Times::default(), BTreeMap::<SmId, Taken>::new());
    let workers = workers(entries, stay);
    let mut exits = BTreeMap::<SmId, Vec<_>>::new();
    for entry in entries {
        if let TraceEntry::Residency { change, application, .. } = entry
            && change.kind == ResidencyKind::Exit
            && workers.contains(&(change.grid, change.cta))
        {
            exits.entry(change.sm).or_default().push((change.time, *application));
        }
    }
    for entry in entries {
        match entry {
            TraceEntry::Resize { time, application, from, to } => {
                for sm in from.difference(to).iter().filter(|_| moves.contains(time)) {
                    let (loser, since) = (*application, *time);
                    taken.insert(sm, Taken { loser, since, given: None, came: None });
                }
                for sm in to.difference(from).iter() {
                    if let Some(taken) = taken.get_mut(&sm) {
                        taken.given = Some((*application, *time));
                        // Who is there and of the same application stays; others came and went in
                        // vain.
                        taken.came = taken.came.filter(|(guest, _)| guest == application);
                    }
                }
            }
            TraceEntry::Residency { change, application, .. } => {
                let Some(taken) = taken.get_mut(&change.sm) else { continue };
                let is_worker = workers.contains(&(change.grid, change.cta));
                if change.kind == ResidencyKind::Start && is_worker && *application != taken.loser {
                    taken.came = taken.came.or(Some((*application, change.time)));
                }
            }
        }
        let sms: Vec<SmId> = match entry {
            TraceEntry::Resize { from, to, .. } => to.difference(from).iter().collect(),
            TraceEntry::Residency { change, .. } => vec![change.sm],
        };
        for sm in sms {
            let exits = exits.get(&sm).map_or(&[][..], Vec::as_slice);
            if let Some((gone, come)) = taken.get(&sm).and_then(|taken| taken.times(exits)) {
                times.gone.push(gone.0);
                times.come.push(come.0);
                taken.remove(&sm);
            }
        }
    }
    times
}

/// The CTAs that were on an SM for so long at least, or came before the trace began, or were there
/// at its end.
fn workers(entries: &[TraceEntry], stay: Nanos) -> BTreeSet<(OperationId, u64)> {
    let (mut started, mut workers) = (BTreeMap::new(), BTreeSet::new());
    for entry in entries {
        let TraceEntry::Residency { change, .. } = entry else { continue };
        let cta = (change.grid, change.cta);
        match change.kind {
            ResidencyKind::Start => {
                started.insert(cta, change.time);
            }
            ResidencyKind::Exit => {
                let since = started.remove(&cta);
                if since.is_none_or(|since| change.time.saturating_sub(since) >= stay) {
                    workers.insert(cta);
                }
            }
        }
    }
    workers.extend(started.into_keys());
    workers
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A GPU that is quick to emulate.
    fn spec(sms: u16) -> Spec {
        Spec { sms, ..Spec::find("cd-search-24").unwrap() }
    }

    #[test]
    fn a_border_moves_in_time() {
        let args = ResizeArgs { spec: String::new(), resizes: 12, seed: 3, json: false };
        let metrics = args.measure(&spec(6), "x", 30_000).unwrap();
        assert!(metrics[0].value >= 12.0, "{metrics:?}");
        let missed: Vec<_> = metrics.iter().filter(|metric| metric.met == Some(false)).collect();
        assert!(missed.is_empty(), "{missed:?}");
    }

    #[test]
    fn ten_thousand_resizes_and_stalls_under_one_kernel_leave_its_result_right() {
        const CHANGES: u32 = 10_000;
        let sms = 6;
        let mut stage = Stage::new(spec(sms), Options { seed: 1, ..Options::default() }).unwrap();
        let sessions: Vec<_> = (1..=2).map(|id| stage.application(id).unwrap()).collect();
        let shared = u32::try_from(stage.device.facts().shared_per_sm.0 / 4 - 512).unwrap();
        let kernels: Vec<_> = sessions
            .iter()
            .map(|(session, _)| {
                Marks::launch(&mut stage, *session, 150_000, shared, 4_000).unwrap()
            })
            .collect();
        let (mut random, mut overlapping) = (Random::new(11), 0);
        for change in 0..CHANGES {
            if random.below(3) == 0 {
                // Stalled SMs stay their owner's.
                let stalled = (0..sms).filter(|_| random.below(4) == 0).map(SmId).collect();
                stage.engine.set_stalled(stage.device.as_mut(), stalled);
            } else {
                let mut plan = BTreeMap::new();
                while plan.len() < 2 {
                    plan.clear();
                    for sm in 0..sms {
                        let (_, owner) = sessions[usize::try_from(random.below(2)).unwrap()];
                        plan.entry(owner).or_insert(SmSet::EMPTY).insert(SmId(sm));
                    }
                }
                stage.plan(plan).unwrap();
                let granted: u16 =
                    stage.engine.partition_reports().iter().map(|part| part.sms.len()).sum();
                overlapping += u32::from(granted < sms);
            }
            // A task takes longer than most pauses.
            stage.run_for(Nanos(random.below(9_000))).unwrap();
            if change + 1 == CHANGES {
                let reports = stage.engine.application_reports();
                assert!(reports.iter().all(|report| report.launches_completed == 0), "{reports:?}");
                assert!(reports.iter().all(|report| report.ctas_completed > 1_000), "{reports:?}");
            }
        }
        assert!(
            overlapping > CHANGES / 4,
            "{overlapping} changes were under way when the next came"
        );
        stage.engine.set_stalled(stage.device.as_mut(), SmSet::EMPTY);
        for marks in kernels {
            let marked = marks.check(&mut stage).unwrap();
            assert_eq!(marked.wrong, 0);
            // Whoever has claimed a task begins its CTAs one after the other, and others go on
            // meanwhile.
            assert!(marked.displaced <= 4 * 6 * 10, "{}", marked.displaced);
        }
    }
}
