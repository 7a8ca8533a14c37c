//! What one application has done since it came.

use super::composition::{Part, Prior};
use super::gaps::Gaps;
use super::need::Need;
use super::right_size::RightSize;
use super::{ProfileKey, as_float};
use crate::Fence;
use crate::launches::{FormKind, Pending};
use partita_model::{KernelReport, LatencyTarget, Nanos, TargetReport, Traffic};
use partita_policy::Launched;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Kernels that an application's report lists.
const MAX_KERNEL_REPORTS: usize = 1024;
/// After so long a CTA counts for half in what the application is taken for.
const HALF_LIFE: Nanos = Nanos(100_000_000);
/// Kernels whose CTAs count there.
const MAX_RECENT: usize = 256;

/// The account of one application.
#[derive(Default)]
pub(crate) struct Account {
    /// Whether the application counts as working; its grace time is over otherwise.
    active: bool,
    /// Launches of workers and tickets queued or in flight.
    demand: usize,
    idle_since: Nanos,
    /// Launches of all forms queued or in flight, and when the last of them ended.
    work: usize,
    rests_since: Nanos,
    /// Times without work between two launches.
    gaps: Gaps,
    /// The longest time for which it keeps its SMs without work.
    longest_grace: Nanos,
    /// CTAs of its largest launch of late.
    need: Need,
    /// The fewest SMs that meet its latency target.
    right_size: RightSize,
    /// Since when it has had such launches, if it has.
    busy_since: Nanos,
    /// The time for which it had some before that.
    busy_before: Nanos,
    launches_completed: u64,
    pub(super) ctas_completed: u64,
    /// Traffic of its completed CTAs whose kernels have a profile.
    profiled: Traffic,
    /// Traffic of its grids that have ended, where the device counts.
    counted: Traffic,
    /// Where its kernels' profiles are found, by name: of the shape that was launched last.
    profile_keys: BTreeMap<Arc<str>, ProfileKey>,
    /// CTAs of late, by kernel and shape, and how the kernel was launched last.
    recent: BTreeMap<ProfileKey, (f64, Launched)>,
    /// When they were halved last.
    halved: Nanos,
    /// How each kernel and shape was launched last, for reports: these do not fade.
    sizes: BTreeMap<ProfileKey, Launched>,
    kernels: Vec<KernelReport>,
    /// A CTA of it did not fit into its part of an SM.
    cramped: bool,
    /// Where among them a kernel is, by name and form.
    kernel_index: BTreeMap<(Arc<str>, FormKind), usize>,
}

impl Account {
    pub(super) fn new(now: Nanos, longest_grace: Nanos) -> Self {
        Account { idle_since: now, busy_since: now, longest_grace, ..Account::default() }
    }

    /// Sets for how long the application keeps its SMs without work, at most.
    pub(crate) fn set_longest_grace(&mut self, longest: Nanos) {
        self.longest_grace = longest;
    }

    pub(crate) fn has_work(&self) -> bool {
        self.demand > 0
    }

    pub(crate) fn is_active(&self) -> bool {
        self.active
    }

    /// The application takes part in sharing from now on, or no longer.
    pub(super) fn set_active(&mut self, active: bool) {
        self.active = active;
    }

    /// Whether a CTA of it did not fit into its part of an SM.
    pub(crate) fn is_cramped(&self) -> bool {
        self.cramped
    }

    pub(crate) fn set_cramped(&mut self) {
        self.cramped = true;
    }

    /// When the application lends its SMs if it stays without work.
    pub(crate) fn lends_at(&self) -> Nanos {
        self.idle_since + self.gaps.grace(self.longest_grace)
    }

    /// SMs of a GPU with `sm_count` that its launches can use: one for each CTA of the largest of
    /// late or of the `launched` that run, and no more than its latency target asks for.
    pub(crate) fn need(&self, launched: u64, sm_count: u16) -> u16 {
        let ctas = self.need.ctas().max(launched);
        let usable = u16::try_from(ctas).unwrap_or(u16::MAX).min(sm_count);
        self.right_size.sms().map_or(usable, |fewest| usable.min(fewest))
    }

    /// A launch is queued. Whether the application needs other SMs than before.
    pub(super) fn queued(&mut self, now: Nanos, part: Part, prior: Prior<'_>) -> bool {
        let grace = self.gaps.grace(self.longest_grace);
        if self.work == 0 && now > self.rests_since + grace {
            self.right_size.paused(self.rests_since, prior);
        }
        self.work += 1;
        let needs_others = match &part {
            Part::Own(size) => self.need.saw(now, size.ctas),
            Part::Alone => false,
        };
        // Both take note of the launch.
        needs_others | self.right_size.launched(now, part, prior)
    }

    /// `launches` launches of any form are over.
    pub(super) fn over(&mut self, now: Nanos, launches: usize) {
        self.work = self.work.saturating_sub(launches);
        if self.work == 0 && launches > 0 {
            self.rests_since = now;
        }
    }

    /// A launch that ran alone, or a slice, took so long.
    pub(crate) fn took_alone(&mut self, time: Nanos) {
        self.right_size.took_alone(time);
    }

    /// A wait of the host has ended.
    pub(super) fn waited(&mut self, prior: Prior<'_>) {
        if self.work == 0 {
            self.right_size.waited(self.rests_since, prior);
        }
    }

    /// Sets the latency target.
    pub(crate) fn set_target(&mut self, target: Option<LatencyTarget>) {
        self.right_size.set_target(target);
    }

    /// Notes the number of SMs that the application has now.
    pub(crate) fn holds(&mut self, sms: u16) {
        self.right_size.holds(sms);
    }

    /// What became of the latency target, if there is one.
    pub(crate) fn target(&self) -> Option<TargetReport> {
        self.right_size.report()
    }

    /// Time with work since the application came.
    pub(crate) fn busy(&self, now: Nanos) -> Nanos {
        let present = if self.has_work() { now.saturating_sub(self.busy_since) } else { Nanos(0) };
        self.busy_before + present
    }

    pub(crate) fn launches_completed(&self) -> u64 {
        self.launches_completed
    }

    pub(crate) fn ctas_completed(&self) -> u64 {
        self.ctas_completed
    }

    /// The application has one more launch that keeps to its partition. Whether it has to join.
    pub(super) fn demand_began(&mut self, now: Nanos) -> bool {
        if self.demand == 0 {
            // The time before the first launch is no gap.
            if self.busy_before > Nanos(0) {
                self.gaps.saw(now.saturating_sub(self.idle_since), self.longest_grace);
            }
            self.busy_since = now;
        }
        self.demand += 1;
        !self.active
    }

    /// `launches` such launches have ended.
    pub(super) fn demand_ended(&mut self, now: Nanos, launches: usize) {
        self.demand -= launches;
        if self.demand == 0 && launches > 0 {
            self.idle_since = now;
            self.busy_before += now.saturating_sub(self.busy_since);
        }
    }

    pub(crate) fn launch_completed(&mut self) {
        self.launches_completed += 1;
    }

    /// Notes a kernel of the application: a launch of it was queued, or completed `ctas` CTAs.
    pub(super) fn saw_kernel(
        &mut self,
        now: Nanos,
        key: &ProfileKey,
        (ctas, launched): (f64, Launched),
    ) {
        if now.saturating_sub(self.halved) >= HALF_LIFE {
            self.halved = now;
            self.recent.retain(|_, (ctas, _)| {
                *ctas /= 2.0;
                *ctas >= 0.5
            });
        }
        if let Some(seen) = self.recent.get_mut(key) {
            *seen = (seen.0 + ctas, launched);
        } else if self.recent.len() < MAX_RECENT {
            // A kernel counts as its first launch before a CTA of it has ended: an application is
            // not what its smallest kernel is.
            self.recent.insert(key.clone(), (ctas.max(as_float(launched.ctas)).max(1.0), launched));
        }
        if let Some(size) = self.sizes.get_mut(key) {
            *size = launched;
        } else if self.sizes.len() < MAX_RECENT {
            self.sizes.insert(key.clone(), launched);
        }
    }

    /// How a kernel was launched last.
    pub(crate) fn size(&self, key: &ProfileKey) -> Option<Launched> {
        self.sizes.get(key).copied()
    }

    /// The kernels of late, with their CTAs.
    pub(super) fn recent(&self) -> impl Iterator<Item = (&ProfileKey, f64, Launched)> {
        self.recent.iter().map(|(key, (ctas, launched))| (key, *ctas, *launched))
    }

    pub(super) fn add_profiled(&mut self, traffic: &Traffic) {
        self.profiled = self.profiled.combine(traffic, u64::saturating_add);
    }

    pub(super) fn profiled(&self) -> Traffic {
        self.profiled
    }

    pub(super) fn add_counted(&mut self, traffic: &Traffic) {
        self.counted = self.counted.combine(traffic, u64::saturating_add);
    }

    /// Traffic of grids that have ended, where the device counts.
    pub(crate) fn counted(&self) -> Traffic {
        self.counted
    }

    /// Enters a launch in the report of kernels. The line for the log, where it is the kernel's
    /// first in a form that is not the best.
    pub(crate) fn count_launch(&mut self, application: &str, pending: &Pending) -> Option<String> {
        let (name, form) = (&pending.spec.kernel.name, pending.kind());
        if let Some(key) = &pending.spec.profile
            && self.profile_keys.get(name) != Some(key)
        {
            self.profile_keys.insert(name.clone(), key.clone());
        }
        let place = (name.clone(), form);
        if let Some(&index) = self.kernel_index.get(&place) {
            self.kernels[index].launches += 1;
            return None;
        }
        if self.kernels.len() >= MAX_KERNEL_REPORTS {
            return None;
        }
        let report = KernelReport {
            name: name.to_string(),
            form: form.name().to_owned(),
            reason: pending.reason().cloned(),
            unfenced: match &pending.spec.kernel.fence {
                Fence::None(why) | Fence::Uncontained(why) => Some(why.clone()),
                Fence::Device | Fence::Code => None,
            },
            launches: 1,
            as_written: 0,
            slices: 0,
            profile: None,
            latest: None,
        };
        let how = match form {
            FormKind::Ticket => "runs as tickets",
            FormKind::Slice => "runs in slices, each alone",
            FormKind::Grouped => "runs as it was written, on groups of SMs",
            FormKind::Worker | FormKind::MachineCode | FormKind::Original => "runs alone",
        };
        let line = report.reason.as_ref();
        let line = line.map(|reason| format!("kernel `{name}` of {application} {how}: {reason}"));
        self.kernel_index.insert(place, self.kernels.len());
        self.kernels.push(report);
        line
    }

    /// A launch that was entered in the form `kind` has started as it was written.
    pub(crate) fn ran_as_written(&mut self, name: &Arc<str>, kind: FormKind) {
        if let Some(&index) = self.kernel_index.get(&(name.clone(), kind)) {
            self.kernels[index].as_written += 1;
        }
    }

    /// A slice of a launch has started.
    pub(crate) fn ran_slice(&mut self, name: &Arc<str>) {
        if let Some(&index) = self.kernel_index.get(&(name.clone(), FormKind::Slice)) {
            self.kernels[index].slices += 1;
        }
    }

    /// The kernels that were launched, and for each that runs as workers where its profile is.
    pub(crate) fn kernels(&self) -> impl Iterator<Item = (&KernelReport, Option<&ProfileKey>)> {
        self.kernels.iter().map(|report| {
            let is_worker = report.form == FormKind::Worker.name();
            let key = self.profile_keys.get(report.name.as_str()).filter(|_| is_worker);
            (report, key)
        })
    }

    /// All work is gone with the device.
    pub(super) fn forget_work(&mut self) {
        (self.demand, self.work) = (0, 0);
        self.active = false;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use partita_model::Dim3;
    use partita_model::profile::LaunchShape;

    #[test]
    fn a_kernel_counts_as_its_launch_before_a_cta_has_ended() {
        let mut account = Account::new(Nanos(0), Nanos(1_000_000));
        let key = |hash: &str| (Arc::from(hash), LaunchShape::new(1, Dim3::linear(32), 0));
        let launched = |ctas| Launched { warps: 1, ctas_per_sm: 1, ctas };
        account.saw_kernel(Nanos(1), &key("few"), (0.0, launched(2)));
        account.saw_kernel(Nanos(1), &key("many"), (0.0, launched(1_000)));
        let counts: Vec<f64> = account.recent().map(|(_, ctas, _)| ctas).collect();
        assert_eq!(counts, [2.0, 1_000.0]);
        // What it completes is added.
        account.saw_kernel(Nanos(2), &key("few"), (2.0, launched(2)));
        assert_eq!(account.recent().next().map(|(_, ctas, _)| ctas), Some(4.0));
    }
}
