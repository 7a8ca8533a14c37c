//! How long a policy takes to decide when an application comes, in host time.

use super::Candidate;
use partita_bench::{Random, measured};
use partita_cli::failure::Failure;
use partita_cli::report::Metric;
use partita_emu::Spec;
use partita_model::{ApplicationId, Entitlement, Nanos, PolicyConfig, Progress, SmSet, TenantId};
use partita_policy::{
    ApplicationObservation, Character, Kind, Observation, Policy, PolicySettings,
};
use std::time::Instant;

/// Applications, with the one that comes.
const COUNTS: [usize; 3] = [2, 4, 16];
/// Arrivals that are timed.
const ARRIVALS: u32 = 50;
/// Time between two looks of the policy.
const LOOK: Nanos = Nanos(50_000);

/// The median time of a decision of each policy.
pub fn metrics(spec: &Spec, candidates: &[Candidate]) -> Result<Vec<Metric>, Failure> {
    let mut metrics = Vec::new();
    for candidate in candidates {
        for count in COUNTS {
            let micros = median(spec, candidate, count)?;
            let name = format!("{}: an arrival among {count}, decision time", candidate.name);
            metrics.push(Metric::plain(name, micros, "us of host time"));
        }
    }
    Ok(metrics)
}

fn median(spec: &Spec, candidate: &Candidate, count: usize) -> Result<f64, Failure> {
    let config = PolicyConfig {
        selector: candidate.selector,
        partitioner: candidate.partitioner,
        ..PolicyConfig::default()
    };
    let hardware = measured(spec);
    let (selector, partitioner) = partita_policy::build(&config, &hardware)
        .map_err(|error| Failure::new(error.to_string()))?;
    let mut policy = Policy::new(PolicySettings::new(spec.sm_clock_khz), selector, partitioner);
    let mut random = Random::new(1);
    let mut applications: Vec<ApplicationObservation> = Vec::new();
    let (mut now, mut times) = (Nanos(0), Vec::new());
    for (id, arrival) in (1..).zip(0..ARRIVALS + 20) {
        if applications.len() == count {
            applications.remove(0);
            now += LOOK;
            policy.observe(&seen(spec, now, &applications));
        }
        applications.push(application(id, &mut random));
        now += LOOK;
        let seen = seen(spec, now, &applications);
        let begun = Instant::now();
        policy.observe(&seen);
        // The first arrivals fill the GPU.
        if arrival >= 20 {
            times.push(begun.elapsed().as_secs_f64() * 1e6);
        }
    }
    times.sort_by(f64::total_cmp);
    Ok(times[times.len() / 2])
}

fn seen(spec: &Spec, now: Nanos, applications: &[ApplicationObservation]) -> Observation {
    Observation {
        now,
        sms: SmSet::range(0, spec.sms),
        pinned: SmSet::EMPTY,
        settled: true,
        applications: applications.to_vec(),
    }
}

/// An application with a random character that has just come.
fn application(id: u32, random: &mut Random) -> ApplicationObservation {
    let mut up_to = |bound: u64| random.below(bound) as f64 + 1.0;
    let accesses = up_to(4_000);
    let sectors = accesses * up_to(8);
    let llc_sectors = sectors / up_to(4);
    let character = Character {
        warp_instructions: accesses * up_to(30),
        memory_instructions: accesses,
        sectors,
        llc_sectors,
        dram_sectors: llc_sectors / up_to(4),
        warps: up_to(8),
        ctas_per_sm: up_to(8),
        ctas_per_launch: up_to(4_000),
        alone: Some(up_to(2_000)),
        kind: Some(Kind(id.into())),
    };
    ApplicationObservation {
        application: ApplicationId(id),
        tenant: TenantId(id),
        tag: None,
        has_work: true,
        lends_at: Nanos(u64::MAX),
        busy: Nanos(0),
        total: Progress::default(),
        in_flight: 8,
        launched: 4_000,
        counting: false,
        stuck: false,
        character: Some(character),
        cramped: false,
        entitlement: Entitlement::default(),
    }
}
