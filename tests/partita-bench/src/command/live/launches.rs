//! The cost of the engine for a launch, and of a step of the policy.

use super::stage::{EMPTY, Stage};
use crate::shown;
use clap::Args;
use partita_cli::failure::Failure;
use partita_cli::report::{Metric, Report};
use partita_emu::setup::DEFAULT_SPEC;
use partita_emu::{Options, Spec};
use partita_model::{
    ApplicationId, Entitlement, Nanos, PartitionerKind, PolicyConfig, Progress, Sharing, SmSet,
    TenantId,
};
use partita_policy::{ApplicationObservation, Observation, Policy, PolicySettings, build};
use std::time::Instant;

const EXAMPLES: &str = "\
Examples:
  partita bench engine
      compare 10,000 dependent empty kernels as workers with the originals; measure a policy step
  partita bench engine --spec cd-search-24 --json | jq '.metrics[] | {name, value, met}'
      the same on another GPU, as JSON

Launches are measured in simulated time, policy steps in host time.";

/// How much longer 10,000 dependent empty kernels may take as workers.
const LAUNCH_GOAL: f64 = 1.3;
const LAUNCHES: u32 = 10_000;
/// A step of the policy may take so many microseconds on the host, for so many applications on so
/// many SMs.
const STEP_GOAL: f64 = 20.0;
const APPLICATIONS: u32 = 16;
const SMS: u16 = 132;
const STEPS: u32 = 20_000;

/// Measure the cost of the engine for a launch, and of a step of the policy.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct EngineArgs {
    /// The GPU to emulate: a name that `partita emu specs` lists, or a file's path with a slash.
    #[arg(long, value_name = "NAME", default_value = DEFAULT_SPEC)]
    spec: String,

    /// Print JSON.
    #[arg(long)]
    json: bool,
}

impl EngineArgs {
    /// Measures.
    pub fn execute(&self) -> Result<Vec<u8>, Failure> {
        let spec = Spec::find(&self.spec)?;
        let original = chain(&spec, Sharing::Mps, LAUNCHES)?;
        let worker = chain(&spec, Sharing::Spatial, LAUNCHES)?;
        let each = |time: Nanos| time.0 as f64 / f64::from(LAUNCHES) / 1e3;
        let steps = policy_steps(&spec)?;
        let at = |percent: usize| steps[(steps.len() - 1) * percent / 100];
        let metrics = vec![
            Metric::plain("dependent empty kernel as written", each(original), "us"),
            Metric::plain("dependent empty kernel as a worker", each(worker), "us"),
            Metric::at_most(
                "10,000 of them, workers / as written",
                worker.0 as f64 / original.0 as f64,
                "",
                LAUNCH_GOAL,
            ),
            Metric::plain("policy step, 16 applications on 132 SMs, median", at(50), "us"),
            Metric::at_most("policy step, 99 %", at(99), "us", STEP_GOAL),
        ];
        shown(&Report { bench: "engine".into(), device: spec.name, seed: 0, metrics }, self.json)
    }
}

/// How long so many empty kernels take one after the other in one stream, in simulated time.
fn chain(spec: &Spec, sharing: Sharing, launches: u32) -> Result<Nanos, Failure> {
    let mut stage = Stage::new(spec.clone(), Options { sharing, ..Options::default() })?;
    let (session, _) = stage.application(1)?;
    let start = stage.device.now();
    for _ in 0..launches {
        stage.launch(session, EMPTY, 1, 0, Vec::new())?;
    }
    stage.synchronize(session)?;
    Ok(stage.device.now().saturating_sub(start))
}

/// Times of the policy's steps in microseconds, in order: applications come, are searched for,
/// watched, and go.
fn policy_steps(spec: &Spec) -> Result<Vec<f64>, Failure> {
    let hardware = partita_model::Calibration { sms: SMS, ..spec.calibration() };
    let config = PolicyConfig { partitioner: PartitionerKind::CdSearch, ..PolicyConfig::default() };
    let (selector, partitioner) = build(&config, &hardware)?;
    let mut policy = Policy::new(PolicySettings::new(spec.sm_clock_khz), selector, partitioner);
    // In tenths of a CTA.
    let mut done = vec![0_u64; APPLICATIONS as usize];
    let mut steps = Vec::new();
    let pause = Nanos(10_000);
    let mut now = Nanos(0);
    for step in 0..STEPS {
        now += pause;
        let orders = policy.orders().clone();
        for (id, done) in (1..).zip(&mut done) {
            let own = orders.plan.sms(ApplicationId(id)).difference(&orders.stalled);
            // Every second one gains nothing beyond four SMs.
            let useful = if id % 2 == 0 { own.len().min(4) } else { own.len() };
            *done += u64::from(useful) * 8;
        }
        // One of them goes and comes back now and then, which starts the search anew.
        let away = 1 + (step / 2_000) % APPLICATIONS;
        let applications = (1..=APPLICATIONS)
            .filter(|id| *id != away || step % 2_000 < 1_900)
            .map(|id| ApplicationObservation {
                application: ApplicationId(id),
                tenant: TenantId(1000),
                tag: None,
                has_work: true,
                lends_at: now,
                busy: now,
                total: Progress { ctas: done[id as usize - 1] / 10, traffic: None },
                in_flight: 32,
                launched: 4096,
                counting: false,
                stuck: false,
                character: None,
                cramped: false,
                entitlement: Entitlement::default(),
            })
            .collect();
        let (sms, pinned) = (SmSet::range(0, SMS), SmSet::EMPTY);
        let seen = Observation { now, sms, pinned, settled: true, applications };
        let begin = Instant::now();
        policy.observe(&seen);
        steps.push(begin.elapsed().as_secs_f64() * 1e6);
    }
    steps.sort_by(f64::total_cmp);
    Ok(steps)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_chains_are_measured() {
        let spec = Spec::find("cd-search-24").unwrap();
        let [original, worker] =
            [Sharing::Mps, Sharing::Spatial].map(|s| chain(&spec, s, 300).unwrap());
        // No kernel begins before the one before it has ended, and a launch takes its latency.
        for time in [original, worker] {
            assert!(time.0 >= 300 * spec.launch_nanoseconds, "{original:?}, {worker:?}");
        }
        assert!(worker > original);
    }
}
