//! Forecasts for applications of a daemon: what each would take on so many SMs, who fits to whom,
//! and how many SMs a target needs.
//!
//! These are the latency models ([`crate::latency`]) over what a status report has: kernels with
//! their profiles, the sizes of their launches, and the device's numbers. Launches are taken to be
//! repeated. Nothing here is changed or decided.

use crate::calibrated;
use crate::latency::{Beside, Gpu, LatencyError, Prediction, Work, predict};
use crate::models::Launched;
use partita_model::{
    AdviceReport, AdviceRequest, ApplicationReport, Forecast, ForecastReport, ForecastRequest,
    GpuReport, KernelReport, LaunchSize, PairAdvice, PairsReport, PartitionReport,
};

/// Nanoseconds of a launch where the device was not measured.
const LAUNCH_NANOS: f64 = 2_500.0;
/// Splits of a pair that are compared: in eighths of all SMs.
const PARTS: u16 = 8;

/// Why there is no forecast.
#[derive(Clone, PartialEq, Debug, thiserror::Error)]
pub enum ForecastError {
    /// No application has this id or name.
    #[error("no application `{0}`; {1}")]
    Unknown(String, String),
    /// Several programs have this name.
    #[error("several applications run `{name}`: name one by its id, {ids}")]
    Ambiguous {
        /// The name.
        name: String,
        /// The ids.
        ids: String,
    },
    /// The application has launched no such kernel.
    #[error("{program} has launched no kernel `{kernel}`; {known}")]
    Kernel {
        /// The program.
        program: String,
        /// What was asked for.
        kernel: String,
        /// What there is.
        known: String,
    },
    /// No profile says what the kernels do.
    #[error(
        "{0}: no kernel has a profile with its time alone; profiles are counted under all \
         policies but even and static while another program is connected, and timed while the \
         program has the GPU to itself"
    )]
    Unprofiled(String),
    /// The GPU's numbers are missing.
    #[error("the daemon knows no bandwidths of this GPU; let it run under cd-search first")]
    NoCalibration,
    /// No application was named.
    #[error("no application is named; name at least one with its number of SMs")]
    Nobody,
    /// No SM is left.
    #[error("{0} applications do not fit on {1} SMs; ask without the other applications")]
    Crowded(usize, u16),
    /// A target that is no time.
    #[error("a target of {0} ns is no time; name nanoseconds above 0")]
    Target(f64),
    /// The models refuse.
    #[error(transparent)]
    Model(#[from] LatencyError),
}

/// What a status report has of one GPU.
#[derive(Clone, Copy, Debug)]
pub struct Facts<'a> {
    /// The GPU.
    pub gpu: &'a GpuReport,
    /// Its applications.
    pub applications: &'a [ApplicationReport],
    /// Their SMs.
    pub partitions: &'a [PartitionReport],
}

/// A kernel of an application, as the models see it.
struct Chosen<'a> {
    application: &'a ApplicationReport,
    kernel: &'a KernelReport,
    work: Work,
}

impl<'a> Facts<'a> {
    /// Applications that run together, each on so many SMs.
    ///
    /// # Errors
    /// An application or kernel is unknown or has no profile, or the SMs do not fit.
    pub fn forecast(&self, request: &ForecastRequest) -> Result<ForecastReport, ForecastError> {
        if request.members.is_empty() {
            return Err(ForecastError::Nobody);
        }
        let member = |member: &partita_model::ForecastMember| {
            let chosen = self.chosen(&member.application, member.kernel.as_deref())?;
            Ok((chosen, member.sms))
        };
        let members =
            request.members.iter().map(member).collect::<Result<Vec<_>, ForecastError>>()?;
        Ok(ForecastReport { forecasts: self.predicted(&members)?, left_out: Vec::new() })
    }

    /// The applications on the SMs that they have.
    ///
    /// # Errors
    /// The GPU's numbers are missing.
    pub fn present(&self) -> Result<ForecastReport, ForecastError> {
        let mut left_out = Vec::new();
        let mut members = Vec::new();
        for application in self.applications {
            let own = self.partitions.iter().find(|own| own.application == application.id);
            let sms = own.map_or(0, |own| own.sms.len());
            match heaviest(application) {
                Ok(chosen) if sms > 0 => members.push((chosen, sms)),
                Ok(_) => left_out.push(format!("{} has no SMs", named(application))),
                Err(error) => left_out.push(error.to_string()),
            }
        }
        Ok(ForecastReport { forecasts: self.predicted(&members)?, left_out })
    }

    /// All pairs of applications, each with its best split, the greatest throughput first.
    ///
    /// # Errors
    /// The GPU's numbers are missing.
    pub fn pairs(&self) -> Result<PairsReport, ForecastError> {
        let gpu = self.models()?;
        let mut left_out = Vec::new();
        let mut known = Vec::new();
        for application in self.applications {
            match heaviest(application) {
                Ok(chosen) => known.push(chosen),
                Err(error) => left_out.push(error.to_string()),
            }
        }
        let mut pairs = Vec::new();
        for (index, one) in known.iter().enumerate() {
            for other in &known[index + 1..] {
                pairs.push(best_split(&gpu, [one, other])?);
            }
        }
        pairs.sort_by(|a, b| b.throughput.total_cmp(&a.throughput));
        Ok(PairsReport { pairs, left_out })
    }

    /// The fewest SMs with which a launch is expected to take no longer than the target: alone, or
    /// beside the other applications on equal parts of the other SMs.
    ///
    /// # Errors
    /// The application or kernel is unknown or has no profile, the target is no time, or there are
    /// more applications than SMs.
    pub fn advice(&self, request: &AdviceRequest) -> Result<AdviceReport, ForecastError> {
        let target = request.target_ns;
        if !(target.is_finite() && target > 0.0) {
            return Err(ForecastError::Target(target));
        }
        let chosen = self.chosen(&request.application, request.kernel.as_deref())?;
        let gpu = self.models()?;
        let (mut others, mut left_out) = (Vec::new(), Vec::new());
        let is_other = |own: &&ApplicationReport| own.id != chosen.application.id;
        for other in self.applications.iter().filter(is_other).filter(|_| request.beside_others) {
            match heaviest(other) {
                Ok(other) => others.push(other),
                Err(error) => left_out.push(error.to_string()),
            }
        }
        let count = u16::try_from(others.len()).unwrap_or(u16::MAX);
        let most = gpu.sms.saturating_sub(count);
        for sms in 1..=most {
            let (each, more) = ((gpu.sms - sms) / count.max(1), (gpu.sms - sms) % count.max(1));
            let parts = (0..count).map(|index| each + u16::from(index < more));
            let launches = others.iter().zip(parts).map(|(other, sms)| (other.work, sms));
            let launches: Vec<(Work, u16)> =
                std::iter::once((chosen.work, sms)).chain(launches).collect();
            let mut found = predict(&gpu, &launches, Beside::Repeated)?.into_iter();
            let Some(own) = found.next() else { break };
            if own.likely <= target || sms == most {
                let (met, is_certain) = (own.likely <= target, own.upper <= target);
                let others = others.iter().zip(found).map(|(other, found)| told(other, found));
                let others = others.collect();
                let forecast = told(&chosen, own);
                return Ok(AdviceReport { met, is_certain, forecast, others, left_out });
            }
        }
        Err(ForecastError::Crowded(others.len() + 1, gpu.sms))
    }

    fn predicted(&self, members: &[(Chosen<'_>, u16)]) -> Result<Vec<Forecast>, ForecastError> {
        let gpu = self.models()?;
        let works: Vec<(Work, u16)> =
            members.iter().map(|(chosen, sms)| (chosen.work, *sms)).collect();
        let found = predict(&gpu, &works, Beside::Repeated)?;
        Ok(members.iter().zip(found).map(|((chosen, _), found)| told(chosen, found)).collect())
    }

    /// The GPU as the models see it, by what was measured of it where that is known.
    fn models(&self) -> Result<Gpu, ForecastError> {
        let specified = self.gpu.calibration.ok_or(ForecastError::NoCalibration)?;
        let measured = self.gpu.measured.as_ref();
        let hardware = measured.and_then(|measured| calibrated(&specified, measured));
        let launch = measured.map_or(LAUNCH_NANOS, |measured| measured.launch_nanos);
        Ok(Gpu::of(&hardware.unwrap_or(specified), launch)?)
    }

    /// The application with an id or a name, and a kernel of it.
    fn chosen(&self, name: &str, kernel: Option<&str>) -> Result<Chosen<'a>, ForecastError> {
        let application = self.application(name)?;
        let Some(wanted) = kernel else { return heaviest(application) };
        let kernels: Vec<&KernelReport> =
            application.kernels.iter().filter(|kernel| kernel.name == wanted).collect();
        if kernels.is_empty() {
            let names = application.kernels.iter().map(|kernel| kernel.name.as_str());
            return Err(ForecastError::Kernel {
                program: named(application),
                kernel: wanted.to_owned(),
                known: listed("it has launched", names),
            });
        }
        let found = kernels.into_iter().find_map(|kernel| chosen_kernel(application, kernel));
        found.ok_or_else(|| ForecastError::Unprofiled(format!("{}: {wanted}", named(application))))
    }

    fn application(&self, name: &str) -> Result<&'a ApplicationReport, ForecastError> {
        let by_id = name.parse::<u32>().ok();
        let is_meant = |application: &&ApplicationReport| {
            by_id.map_or(application.name == name, |id| application.id.0 == id)
        };
        let found: Vec<&ApplicationReport> = self.applications.iter().filter(is_meant).collect();
        match found[..] {
            [one] => Ok(one),
            [] => {
                let ids: Vec<String> = self.applications.iter().map(named).collect();
                let known = listed("there are", ids.iter().map(String::as_str));
                Err(ForecastError::Unknown(name.to_owned(), known))
            }
            _ => {
                let ids: Vec<String> = found.iter().map(|own| own.id.0.to_string()).collect();
                Err(ForecastError::Ambiguous { name: name.to_owned(), ids: ids.join(", ") })
            }
        }
    }
}

/// The split of two applications with the greatest sum of speeds.
fn best_split(gpu: &Gpu, pair: [&Chosen<'_>; 2]) -> Result<PairAdvice, ForecastError> {
    let mut best: Option<PairAdvice> = None;
    for part in 1..PARTS {
        let first = (gpu.sms * part / PARTS).max(1);
        let sms = [first, gpu.sms.saturating_sub(first)];
        let launches = [(pair[0].work, sms[0]), (pair[1].work, sms[1])];
        let found = predict(gpu, &launches, Beside::Repeated)?;
        let speeds = [0, 1].map(|of| found[of].whole / found[of].likely);
        let throughput = speeds[0] + speeds[1];
        if best.as_ref().is_none_or(|best| throughput > best.throughput) {
            best = Some(PairAdvice {
                applications: pair.map(|chosen| chosen.application.id),
                programs: pair.map(|chosen| chosen.application.name.clone()),
                sms,
                speeds,
                throughput,
            });
        }
    }
    best.ok_or(ForecastError::NoCalibration)
}

/// The kernel that takes the most time of an application: launches × time of a launch.
fn heaviest(application: &ApplicationReport) -> Result<Chosen<'_>, ForecastError> {
    let known = application.kernels.iter();
    let known = known.filter_map(|kernel| chosen_kernel(application, kernel));
    #[expect(clippy::cast_precision_loss, reason = "only compared")]
    let weight = |chosen: &Chosen<'_>| chosen.kernel.launches as f64 * chosen.work.whole;
    let heaviest = known.max_by(|a, b| weight(a).total_cmp(&weight(b)));
    heaviest.ok_or_else(|| ForecastError::Unprofiled(named(application)))
}

fn chosen_kernel<'a>(
    application: &'a ApplicationReport,
    kernel: &'a KernelReport,
) -> Option<Chosen<'a>> {
    let LaunchSize { ctas, warps, ctas_per_sm } = kernel.latest?;
    let launched = Launched { warps, ctas_per_sm, ctas };
    let work = Work::of(kernel.profile.as_ref()?, launched, None).ok()?;
    Some(Chosen { application, kernel, work })
}

fn told(chosen: &Chosen<'_>, found: Prediction) -> Forecast {
    Forecast {
        application: chosen.application.id,
        program: chosen.application.name.clone(),
        kernel: chosen.kernel.name.clone(),
        sms: found.sms,
        whole_ns: found.whole,
        alone_ns: found.alone,
        likely_ns: found.likely,
        lower_ns: found.lower,
        upper_ns: found.upper,
        speed: found.whole / found.likely,
        dram_gbps: found.bandwidth,
        reason: found.reason,
    }
}

fn named(application: &ApplicationReport) -> String {
    format!("application {} ({})", application.id.0, application.name)
}

/// Names behind some words, or that there are none.
fn listed<'b>(words: &str, names: impl Iterator<Item = &'b str>) -> String {
    let names: Vec<&str> = names.collect();
    if names.is_empty() {
        "none is connected".to_owned()
    } else {
        format!("{words} {}", names.join(", "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use partita_model::{
        ApplicationId, Calibration, Counts, ForecastMember, KernelProfile, LlcUse, SmSet,
    };
    use serde_json::{from_value, json};

    fn gpu() -> GpuReport {
        from_value(json!({
            "name": "test", "kind": "emulated", "timekeeping": "simulated",
            "compute_capability": {"major": 9, "minor": 0}, "sms": 30, "memory_bytes": 0,
            "memory_used_bytes": 0, "device_time_ns": 0, "energy_nj": null, "pid": 0, "restarts": 0,
            "calibration": {
                "sms": 30, "sm_clock_khz": 1_365_000, "warp_instructions_per_cycle": 4.0,
                "access_bytes": 32, "noc_bytes_per_second": 1.3e12, "llc_bytes_per_second": 1.0e12,
                "dram_bytes_per_second": 3.3e11, "dram_utilisation": 0.5
            }
        }))
        .unwrap()
    }

    /// An application whose kernel takes 100 ns from CTA to CTA and moves so many sectors.
    fn application(id: u32, name: &str, sectors: u64) -> ApplicationReport {
        let counts = Counts {
            ctas: 10,
            warp_instructions: 10_000,
            thread_instructions: 320_000,
            global_loads: sectors * 10 / 4,
            sectors: sectors * 10,
            ..Counts::default()
        };
        let accesses = sectors * 10;
        let llc = LlcUse { least: accesses, accesses, most: accesses, ..LlcUse::default() };
        let profile =
            KernelProfile { launches: 2, counts, llc, alone: Some(100.0), cta_time: None };
        from_value(json!({
            "id": id, "name": name, "tenant": 0, "sessions": [], "pids": [], "memory_used_bytes": 0,
            "class": null, "launches_completed": 3, "ctas_completed": 0,
            "kernels": [{
                "name": "kernel", "form": "worker", "reason": null, "launches": 3,
                "profile": profile, "latest": {"ctas": 10_000, "warps": 8, "ctas_per_sm": 4}
            }]
        }))
        .unwrap()
    }

    fn asked(members: &[(&str, u16)]) -> ForecastRequest {
        let member = |&(application, sms): &(&str, u16)| ForecastMember {
            application: application.to_owned(),
            kernel: None,
            sms,
        };
        ForecastRequest { members: members.iter().map(member).collect() }
    }

    #[test]
    fn forecasts_are_of_the_named_applications() {
        let gpu = gpu();
        // 288 GB/s and 3 GB/s.
        let applications = [application(1, "moves", 900), application(2, "computes", 10)];
        let facts = Facts { gpu: &gpu, applications: &applications, partitions: &[] };
        let found = facts.forecast(&asked(&[("moves", 15), ("2", 15)])).unwrap().forecasts;
        assert_eq!([found[0].application.0, found[1].application.0], [1, 2]);
        assert!((found[1].speed - 0.5).abs() < 0.05, "{:?}", found[1]);
        assert!(found[0].speed > 0.7, "{:?}", found[0]);
        let pairs = facts.pairs().unwrap().pairs;
        assert!(pairs.len() == 1 && pairs[0].throughput > 1.2, "{pairs:?}");
    }

    #[test]
    fn a_target_has_its_fewest_sms() {
        let gpu = gpu();
        let applications = [application(2, "computes", 10)];
        let facts = Facts { gpu: &gpu, applications: &applications, partitions: &[] };
        let advice = |target_ns| {
            let application = "computes".to_owned();
            let beside_others = false;
            facts.advice(&AdviceRequest { application, kernel: None, target_ns, beside_others })
        };
        let found = advice(2_100_000.0).unwrap();
        assert!(found.met && (14..=16).contains(&found.forecast.sms), "{found:?}");
        assert!(found.others.is_empty() && found.left_out.is_empty(), "{found:?}");
        let found = advice(500_000.0).unwrap();
        assert!(!found.met && found.forecast.sms == 30, "{found:?}");
        assert_eq!(advice(-1.0), Err(ForecastError::Target(-1.0)));
    }

    /// A neighbour that fills DRAM slows a launch that needs it, so the target needs more SMs.
    #[test]
    fn a_target_beside_others_tells_what_they_keep() {
        let gpu = gpu();
        let unprofiled = ApplicationReport { kernels: Vec::new(), ..application(3, "unknown", 1) };
        let applications =
            [application(1, "moves", 900), application(2, "moves too", 900), unprofiled];
        let facts = Facts { gpu: &gpu, applications: &applications, partitions: &[] };
        let advice = |target_ns, beside_others| {
            let application = "moves".to_owned();
            facts.advice(&AdviceRequest { application, kernel: None, target_ns, beside_others })
        };
        let target = 1.5 * advice(1.0, false).unwrap().forecast.whole_ns;
        let (alone, beside) = (advice(target, false).unwrap(), advice(target, true).unwrap());
        assert!(alone.met && alone.others.is_empty(), "{alone:?}");
        assert!(beside.forecast.sms > alone.forecast.sms, "{alone:?} {beside:?}");
        assert!(beside.left_out[0].starts_with("application 3 (unknown)"), "{beside:?}");
        let [other] = &beside.others[..] else { panic!("{beside:?}") };
        assert_eq!(other.sms + beside.forecast.sms, 30);
        assert!(other.speed < 1.0, "{other:?}");
        let never = advice(1.0, true).unwrap();
        assert!(!never.met && !never.is_certain && never.forecast.sms == 29, "{never:?}");
    }

    #[test]
    fn what_is_unknown_is_named() {
        let gpu = gpu();
        let mut applications = vec![application(1, "a", 1), application(2, "a", 1)];
        applications.push(ApplicationReport { kernels: Vec::new(), ..application(3, "b", 1) });
        let facts = Facts { gpu: &gpu, applications: &applications, partitions: &[] };
        let refused =
            |members: &[(&str, u16)]| facts.forecast(&asked(members)).unwrap_err().to_string();
        let known = "application 1 (a), application 2 (a), application 3 (b)";
        assert_eq!(refused(&[("c", 3)]), format!("no application `c`; there are {known}"));
        assert_eq!(refused(&[("a", 3)]), "several applications run `a`: name one by its id, 1, 2");
        assert!(refused(&[("3", 3)]).starts_with("application 3 (b): no kernel has a profile"));
        assert_eq!(
            refused(&[("1", 20), ("2", 20)]),
            "latency model: 40 SMs; the GPU has 30, and at least 1 is needed"
        );
        assert_eq!(facts.forecast(&asked(&[])), Err(ForecastError::Nobody));
        assert_eq!(facts.present().unwrap().left_out.len(), 3);
        assert_eq!(facts.pairs().unwrap().left_out.len(), 1);
    }

    #[test]
    fn the_present_is_of_those_that_have_sms() {
        let gpu = gpu();
        let applications = [1, 2, 3].map(|id| application(id, "computes", 10));
        let partition = |&(id, first, count): &(u32, u16, u16)| PartitionReport {
            application: ApplicationId(id),
            sms: SmSet::range(first, count),
            pinned: false,
            part: None,
        };
        let partitions: Vec<_> = [(2, 0, 20), (1, 20, 10)].iter().map(partition).collect();
        let facts = Facts { gpu: &gpu, applications: &applications, partitions: &partitions };
        let found = facts.present().unwrap();
        let sms: Vec<_> = found.forecasts.iter().map(|own| (own.application.0, own.sms)).collect();
        assert_eq!(sms, [(1, 10), (2, 20)]);
        assert_eq!(found.left_out, ["application 3 (computes) has no SMs"]);
    }

    /// The speeds of a split are those of a forecast for it.
    #[test]
    fn a_pair_has_the_speeds_of_its_split() {
        let gpu = gpu();
        let applications = [application(1, "moves", 900), application(2, "computes", 10)];
        let facts = Facts { gpu: &gpu, applications: &applications, partitions: &[] };
        let pair = facts.pairs().unwrap().pairs.remove(0);
        let found = facts.forecast(&asked(&[("1", pair.sms[0]), ("2", pair.sms[1])])).unwrap();
        for (speed, forecast) in pair.speeds.iter().zip(&found.forecasts) {
            let expected = forecast.whole_ns / forecast.likely_ns;
            assert!((speed - expected).abs() < 1e-12, "{pair:?} {forecast:?}");
        }
        assert!((pair.throughput - pair.speeds[0] - pair.speeds[1]).abs() < 1e-12, "{pair:?}");
    }

    /// 100 launches of 1 ms take longer than 90 of half of that, and than one of 50 ms.
    #[test]
    fn the_kernel_that_takes_the_most_time_is_meant_where_none_is_named() {
        let gpu = gpu();
        let mut program = application(1, "a", 10);
        let kernel = program.kernels.remove(0);
        let of = |(name, launches, ctas): (&str, u64, u64)| {
            let latest = kernel.latest.map(|latest| LaunchSize { ctas, ..latest });
            KernelReport { name: name.to_owned(), launches, latest, ..kernel.clone() }
        };
        program.kernels =
            [("many", 100, 10_000), ("short", 90, 5_000), ("long", 1, 500_000)].map(of).into();
        let applications = [program];
        let facts = Facts { gpu: &gpu, applications: &applications, partitions: &[] };
        let named = |kernel: Option<&str>| {
            let mut request = asked(&[("a", 15)]);
            request.members[0].kernel = kernel.map(str::to_owned);
            facts.forecast(&request).map(|found| found.forecasts[0].kernel.clone())
        };
        assert_eq!(named(None).unwrap(), "many");
        assert_eq!(named(Some("short")).unwrap(), "short");
        assert_eq!(
            named(Some("other")).unwrap_err().to_string(),
            "application 1 (a) has launched no kernel `other`; it has launched many, short, long"
        );
    }

    #[test]
    fn others_have_equal_parts_of_what_advice_leaves() {
        let mut gpu = gpu();
        let applications = [1, 2, 3, 4].map(|id| application(id, "computes", 10));
        let advice = |gpu: &GpuReport, target_ns| {
            let facts = Facts { gpu, applications: &applications, partitions: &[] };
            let application = "1".to_owned();
            let beside_others = true;
            facts.advice(&AdviceRequest { application, kernel: None, target_ns, beside_others })
        };
        // 1 ms on 30 SMs: targets that need 10, 15 and 20 SMs or so, and one that none meets.
        for target in [3.1e6, 2.1e6, 2.0e6, 1.6e6, 1.5e6, 1.0] {
            let found = advice(&gpu, target).unwrap();
            let sms: Vec<u16> = found.others.iter().map(|other| other.sms).collect();
            assert_eq!(found.forecast.sms + sms.iter().sum::<u16>(), 30, "{target}: {sms:?}");
            assert!(sms.len() == 3 && sms[0] - sms[2] <= 1, "{target}: {sms:?}");
        }
        assert_eq!(advice(&gpu, 0.0), Err(ForecastError::Target(0.0)));
        gpu.calibration = gpu.calibration.map(|known| Calibration { sms: 3, ..known });
        assert_eq!(advice(&gpu, 1e6), Err(ForecastError::Crowded(4, 3)));
    }
}
