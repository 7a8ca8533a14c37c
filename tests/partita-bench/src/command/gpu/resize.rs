//! How soon borders move under two running kernels, through the engine: from the decision until
//! every SM that changed hands is its new owner's, which is when the last worker of the old one was
//! seen to have left.

use super::Effort;
use super::probe::first_sms;
use crate::live::{Marks, Stage};
use partita_cli::failure::Failure;
use partita_cli::report::Metric;
use partita_device::Device;
use partita_engine::CloseReason;
use partita_model::{ApplicationId, Nanos, SmSet};
use std::collections::BTreeMap;

/// How long a CTA takes: Partita's longest task.
const CTA_NANOSECONDS: u32 = 20_000;
/// Workers on an SM: as in kernels that need much shared memory.
const PER_SM: u64 = 4;
/// Between two borders.
const PAUSE: Nanos = Nanos(60_000);
/// What a resize may take beside a task, in nanoseconds.
const ALLOWANCE: u64 = 50_000;

/// Measures, and gives the device back.
pub fn metrics(
    device: Box<dyn Device>,
    effort: Effort,
) -> Result<(Vec<Metric>, Box<dyn Device>), Failure> {
    let resizes: u16 = if effort == Effort::Full { 500 } else { 8 };
    let mut stage = Stage::on(device)?;
    let facts = stage.device.facts().clone();
    let sms = facts.sm_count;
    let (first, a) = stage.application(1)?;
    let (second, b) = stage.application(2)?;
    let shared = u32::try_from(facts.shared_per_sm.0 / PER_SM - 2048)?;
    let lasts = 4 * PAUSE.0 * u64::from(resizes + 20);
    let ctas = u32::try_from(lasts / u64::from(CTA_NANOSECONDS) * PER_SM * u64::from(sms))?;
    for session in [first, second] {
        Marks::launch(&mut stage, session, ctas, shared, CTA_NANOSECONDS)?;
    }
    stage.run_for(Nanos(PAUSE.0 * 4))?;
    let mut times = Vec::new();
    let all = facts.sms();
    for change in 0..resizes {
        // There and back, by ever more SMs.
        let step = 1 + change / 2 % (sms / 2).max(1);
        let border = if change % 2 == 0 { (sms / 2 + step).min(sms - 1) } else { (sms / 2).max(1) };
        let own = first_sms(&facts, border);
        let plan = BTreeMap::from([(a, own), (b, all.difference(&own))]);
        let before = stage.device.now();
        stage.plan(plan.clone())?;
        while !is_granted(&stage, &plan) {
            stage.run_for(Nanos(1))?;
        }
        times.push(stage.device.now().saturating_sub(before).0);
        stage.run_for(PAUSE)?;
    }
    let ended =
        stage.engine.application_reports().iter().any(|report| report.launches_completed > 0);
    for session in [first, second] {
        stage.close(session, CloseReason::Goodbye)?;
    }
    if ended {
        return Err(Failure::new("a kernel ended before the last border had moved"));
    }
    times.sort_unstable();
    let at = |percent: usize| times[(times.len() - 1) * percent / 100] as f64 / 1e3;
    let goal = f64::from(CTA_NANOSECONDS + u32::try_from(ALLOWANCE)?) / 1e3;
    let metrics = vec![
        Metric::plain("borders that moved", times.len() as f64, "borders"),
        Metric::plain("until all SMs have changed hands, median", at(50), "us"),
        Metric::at_most("until all SMs have changed hands, 99 %", at(99), "us", goal),
    ];
    Ok((metrics, stage.device))
}

fn is_granted(stage: &Stage, plan: &BTreeMap<ApplicationId, SmSet>) -> bool {
    let reports = stage.engine.partition_reports();
    plan.iter()
        .all(|(id, sms)| reports.iter().any(|part| part.application == *id && part.sms == *sms))
}
