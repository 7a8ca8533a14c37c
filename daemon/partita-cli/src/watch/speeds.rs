//! Speeds and shares of applications, from several readings of `/v1/status`.
//!
//! A speed is a part of the speed alone: completed CTAs × nanoseconds of a CTA alone ÷ elapsed
//! device time. The time of a CTA alone is the profile's ([`KernelProfile::alone`]); kernels weigh
//! by the CTAs that the application launched of them since the first reading. Where a kernel that
//! weighs has no such profile, the speed is unknown and is not guessed.
//!
//! [`KernelProfile::alone`]: partita_model::KernelProfile::alone

use partita_model::{ApplicationId, ApplicationReport, GpuStatus, PartitionReport};
use std::collections::{BTreeMap, VecDeque};

/// Readings that speeds and shares are taken over.
const READINGS: usize = 8;

/// The last readings of one GPU.
#[derive(Clone, Debug, Default)]
pub struct Speeds {
    readings: VecDeque<Reading>,
}

#[derive(Clone, Debug)]
struct Reading {
    time: u64,
    sms: u16,
    applications: BTreeMap<ApplicationId, (ApplicationReport, u16)>,
}

/// What an application did between the first and the last reading.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Pace {
    /// The part of the speed alone, where profiles know that.
    pub speed: Option<f64>,
    /// The part of the time of all SMs that the application held, from 0 to 1.
    pub share: f64,
    /// Whether it completed a CTA.
    pub moves: bool,
}

/// One application as tables show it.
#[derive(Clone, Debug)]
pub struct Row<'a> {
    /// The application.
    pub application: &'a ApplicationReport,
    /// Its partition.
    pub partition: Option<&'a PartitionReport>,
    /// What it did of late, once that is known.
    pub pace: Option<Pace>,
}

impl Row<'_> {
    /// The number of its SMs.
    pub fn sms(&self) -> u16 {
        self.partition.map_or(0, |partition| partition.sms.len())
    }

    /// Its state in one word.
    pub fn state(&self) -> &'static str {
        match self.pace {
            _ if self.application.stuck_ns.is_some() => "stuck",
            Some(pace) if pace.moves => "runs",
            _ if self.application.copies_waiting > 0 => "copies",
            _ if self.sms() == 0 => "waits",
            Some(_) => "idle",
            None => "new",
        }
    }
}

impl Speeds {
    /// Adds a reading. A GPU whose device time went back has begun anew.
    pub fn add(&mut self, status: &GpuStatus) {
        let time = status.gpu.device_time_ns;
        match self.readings.back() {
            Some(last) if last.time > time => self.readings.clear(),
            Some(last) if last.time == time => drop(self.readings.pop_back()),
            _ => {}
        }
        let held: BTreeMap<ApplicationId, u16> = status
            .partitions
            .iter()
            .map(|partition| (partition.application, partition.sms.len()))
            .collect();
        let applications = status.applications.iter().map(|application| {
            let sms = held.get(&application.id).copied().unwrap_or(0);
            (application.id, (application.clone(), sms))
        });
        self.readings.push_back(Reading {
            time,
            sms: status.gpu.sms,
            applications: applications.collect(),
        });
        if self.readings.len() > READINGS {
            self.readings.pop_front();
        }
    }

    /// The applications of the latest reading, in its order.
    pub fn rows<'a>(&self, status: &'a GpuStatus) -> impl Iterator<Item = Row<'a>> {
        status.applications.iter().map(|application| Row {
            application,
            partition: status.partitions.iter().find(|one| one.application == application.id),
            pace: self.of(application.id),
        })
    }

    /// The pace of an application; `None` before its second reading.
    pub fn of(&self, application: ApplicationId) -> Option<Pace> {
        let mut seen = self.readings.iter().filter_map(|reading| {
            let (report, sms) = reading.applications.get(&application)?;
            Some((reading, report, *sms))
        });
        let (first, before, mut sms) = seen.next()?;
        let (mut time, mut held, mut now) = (first.time, 0.0, None);
        for (reading, report, sms_then) in seen {
            held += f64::from(sms) * float(reading.time - time);
            (time, sms, now) = (reading.time, sms_then, Some(report));
        }
        let now = now?;
        let elapsed = float(time - first.time);
        let done = now.ctas_completed.saturating_sub(before.ctas_completed);
        Some(Pace {
            speed: alone(before, now).map(|alone| float(done) * alone / elapsed),
            share: held / (elapsed * f64::from(first.sms.max(1))),
            moves: done > 0,
        })
    }
}

/// Nanoseconds of a CTA alone, as the mean over the CTAs launched between two reports. Without a
/// launch between them, the mean is over all launches so far.
fn alone(before: &ApplicationReport, now: &ApplicationReport) -> Option<f64> {
    if let [kernel] = now.kernels.as_slice() {
        return kernel.profile?.alone;
    }
    let mean = |launches: &dyn Fn(usize) -> u64| {
        let (mut ctas, mut time) = (0.0, 0.0);
        for (index, kernel) in now.kernels.iter().enumerate() {
            let launches = launches(index);
            if launches == 0 {
                continue;
            }
            let of_it = float(launches) * float(kernel.latest?.ctas);
            ctas += of_it;
            time += of_it * kernel.profile?.alone?;
        }
        (ctas > 0.0).then(|| time / ctas)
    };
    let since = |index: usize| {
        let before = before.kernels.get(index).map_or(0, |kernel| kernel.launches);
        now.kernels[index].launches.saturating_sub(before)
    };
    if (0..now.kernels.len()).any(|index| since(index) > 0) {
        mean(&since)
    } else {
        mean(&|index| now.kernels[index].launches)
    }
}

#[expect(clippy::cast_precision_loss, reason = "a rounded figure is shown")]
fn float(count: u64) -> f64 {
    count as f64
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::watch::samples;

    #[test]
    fn a_speed_is_work_by_its_time_alone() {
        let mut speeds = Speeds::default();
        let id = ApplicationId(1);
        let mut status = samples::gpu(0);
        speeds.add(&status);
        assert_eq!(speeds.of(id), None, "one reading tells no speed");
        status.gpu.device_time_ns += 1000;
        status.applications[0].ctas_completed += 60;
        speeds.add(&status);
        let pace = speeds.of(id).unwrap();
        assert_eq!(pace.speed, None, "no profile, no speed");
        assert!((pace.share - 0.5).abs() < 1e-9 && pace.moves, "12 of 24 SMs: {pace:?}");

        status.applications[0].kernels[0].profile =
            Some(partita_model::KernelProfile { alone: Some(10.0), ..Default::default() });
        speeds.add(&status);
        let speed = speeds.of(id).unwrap().speed.unwrap();
        assert!((speed - 0.6).abs() < 1e-9, "60 CTAs of 10 ns each in 1000 ns: {speed}");
        status.partitions[0].sms = partita_model::SmSet::EMPTY;
        status.gpu.device_time_ns += 1000;
        speeds.add(&status);
        let pace = speeds.of(id).unwrap();
        assert!((pace.share - 0.5).abs() < 1e-9, "SMs count from their reading on: {pace:?}");
        status.gpu.device_time_ns += 2000;
        speeds.add(&status);
        let pace = speeds.of(id).unwrap();
        assert!((pace.share - 0.25).abs() < 1e-9, "half of the time 12 of 24 SMs: {pace:?}");
    }

    #[test]
    fn kernels_weigh_by_their_ctas() {
        let mut status = samples::gpu(0);
        let application = &mut status.applications[0];
        let mut other = application.kernels[0].clone();
        let kernel = &mut application.kernels[0];
        for (kernel, alone, ctas) in [(kernel, 10.0, 100), (&mut other, 40.0, 300)] {
            kernel.launches = 1;
            kernel.profile =
                Some(partita_model::KernelProfile { alone: Some(alone), ..Default::default() });
            kernel.latest = Some(partita_model::LaunchSize { ctas, warps: 1, ctas_per_sm: 1 });
        }
        application.kernels.push(other);
        let before = application.clone();
        let near = |found: Option<f64>, expected: f64| {
            assert!((found.unwrap() - expected).abs() < 1e-9, "{found:?}, not {expected}");
        };
        near(alone(&before, application), 32.5);
        application.kernels[0].launches += 3;
        near(alone(&before, application), 10.0);
        application.kernels[1].launches += 1;
        near(alone(&before, application), 25.0);
        application.kernels[1].profile = None;
        assert_eq!(alone(&before, application), None);
    }

    #[test]
    fn a_gpu_that_begins_anew_has_no_past() {
        let mut speeds = Speeds::default();
        let mut status = samples::gpu(0);
        speeds.add(&status);
        status.gpu.device_time_ns += 5;
        speeds.add(&status);
        assert!(speeds.of(ApplicationId(1)).is_some());
        status.gpu.device_time_ns = 1;
        speeds.add(&status);
        assert_eq!(speeds.of(ApplicationId(1)), None);
    }
}
