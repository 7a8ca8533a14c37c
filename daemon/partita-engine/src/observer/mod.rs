//! The observer: what applications do, what the policy is shown of it, and what it orders.
//!
//! | file | subject |
//! | --- | --- |
//! | `account` | what each application has done |
//! | `accounts` | all accounts, and which applications have work or take part in sharing |
//! | `composition` | what requests consist of, and what they would take on other SMs |
//! | `cta_times` | how long CTAs take, and how many a worker claims at once |
//! | `gaps` | how long an application without work keeps its SMs |
//! | `queueing` | how long requests wait inside their program |
//! | `need` | how many SMs an application can use |
//! | `right_size` | the fewest SMs that meet a latency target |
//! | `launch_times` | how long launches take, and which may run as they were written |
//! | `slices` | how large the slices of a launch are |
//! | `profiling` | what kernels do, counted at their first launches |
//! | `hit_rates` | the LLC's hit rate of an application that runs alone |
//!
//! This machine reads no control block and moves no border. Launches tell it what they have
//! completed, and it answers with the policy's orders.

mod account;
mod accounts;
mod composition;
mod cta_times;
mod gaps;
mod hit_rates;
mod launch_times;
mod need;
mod profiling;
mod queueing;
mod right_size;
mod slices;

pub(crate) use account::Account;
pub(crate) use cta_times::{TaskSize, task_size};
pub(crate) use launch_times::{Expected, LONG, SHORT, Took};
pub(crate) use profiling::{CountGroup, ProfileKey, count_range};
pub(crate) use slices::{LONGEST_SLICE, URGENT_SLICE};

use crate::handover::ledger::Ledger;
use crate::launches::{Count, Measured, Pending, Spec};
use crate::turn::Turn;
use crate::{About, LogLevel};
use accounts::Accounts;
use composition::{Part, Size};
use cta_times::CtaTimes;
use hit_rates::{HitRates, at_rate};
use launch_times::LaunchTimes;
use partita_device::AddressRange;
use partita_model::profile::{KernelProfile, LaunchShape};
use partita_model::{
    ApplicationId, DeviceAddress, GridCounters, Nanos, SessionId, Timekeeping, Traffic, WindowId,
};
use partita_policy::latency::{Fitted, Gpu, Work};
use partita_policy::{
    Character, Deciders, Even, Everyone, Kind, Launched, Observation, Policy, PolicySettings,
    traffic_of,
};
use profiling::Profiles;
use slices::Slices;
use std::sync::Arc;

/// Nanoseconds of a launch before its first CTA, as the latency model takes them to be.
const LAUNCH: f64 = 2_500.0;

/// The machine of observations.
pub(crate) struct Observer {
    policy: Policy,
    accounts: Accounts,
    cta_times: CtaTimes,
    launch_times: LaunchTimes,
    slices: Slices,
    profiles: Profiles,
    hit_rates: HitRates,
    /// The GPU as the latency model sees it.
    latency: Option<Gpu>,
}

impl Observer {
    /// Until [`Observer::set_policy`] the policy shares SMs out evenly. `blocks` is the window of
    /// control blocks, at the end of which there is room for others.
    pub(crate) fn new(turn: &mut Turn<'_>, window: WindowId, blocks: AddressRange) -> Self {
        let settings = PolicySettings {
            idle_grace: turn.config().idle_grace,
            ..PolicySettings::new(turn.facts().sm_clock_khz)
        };
        Observer {
            policy: Policy::new(settings, Box::new(Everyone::default()), Box::new(Even)),
            accounts: Accounts::default(),
            cta_times: CtaTimes::default(),
            launch_times: LaunchTimes::default(),
            slices: Slices::default(),
            profiles: Profiles::new(turn.device, window, blocks),
            hit_rates: HitRates::default(),
            latency: Gpu::of(&turn.device.calibration(), LAUNCH).ok(),
        }
    }

    pub(crate) fn policy(&self) -> &Policy {
        &self.policy
    }

    pub(crate) fn set_policy(&mut self, (selector, partitioner): Deciders) {
        self.policy.replace(selector, partitioner);
    }

    /// Shows the policy the applications. Whether it has new orders.
    pub(crate) fn show(&mut self, turn: &mut Turn<'_>, seen: &Observation) -> bool {
        let moved = self.policy.observe(seen).is_some();
        while let Some(notice) = self.policy.poll_notice() {
            turn.log(LogLevel::Warning, About::default(), partita_policy::notice(&notice));
        }
        for application in &seen.applications {
            let id = application.application;
            self.accounts.set_active(id, self.policy.takes_part(id));
        }
        moved
    }

    /// When the policy wants to look again, over the applications on which it decides: at the end
    /// of a window, or when an idle application's SMs are lent. While none of them has work there
    /// is nothing to look at.
    pub(crate) fn policy_due(&self, is_policed: impl Fn(ApplicationId) -> bool) -> Option<Nanos> {
        // Few applications of a crowd have work: they are asked first.
        let is_active = |id| self.account(id).is_some_and(Account::is_active);
        if !self.at_work().any(|id| is_active(id) && is_policed(id)) {
            return None;
        }
        // The policy knows only who was idle when it last looked.
        let idle = self.accounts.active().filter(|(_, account)| !account.has_work());
        let idle = idle.filter(|(id, _)| is_policed(*id));
        let grace = idle.map(|(_, account)| account.lends_at()).min();
        grace.into_iter().chain(self.policy.next_at()).min()
    }

    // Accounts.

    pub(crate) fn account(&self, id: ApplicationId) -> Option<&Account> {
        self.accounts.get(id)
    }

    /// An application has come. Without work it keeps its SMs for `longest_grace` at most.
    pub(crate) fn open_account(&mut self, id: ApplicationId, now: Nanos, longest_grace: Nanos) {
        self.accounts.open(id, now, longest_grace);
    }

    /// The account of an application that has not left.
    pub(crate) fn account_mut(&mut self, id: ApplicationId) -> Option<&mut Account> {
        self.accounts.get_mut(id)
    }

    /// An application has one more launch that keeps to its partition. Whether it has to join.
    pub(crate) fn demand_began(&mut self, turn: &mut Turn<'_>, id: ApplicationId) -> bool {
        let now = turn.now();
        let (has_to_join, was_idle) = self.accounts.demand_began(id, now);
        if was_idle {
            turn.common.meter.works(id, now, true);
        }
        has_to_join
    }

    /// An application has queued a launch. Whether it needs other SMs than before.
    pub(crate) fn queued(
        &mut self,
        turn: &Turn<'_>,
        (id, spec): (ApplicationId, &Spec),
        (is_confined, ctas_per_sm): (bool, u16),
    ) -> bool {
        let Observer { accounts, profiles, latency, .. } = self;
        let Some(account) = accounts.get_mut(id) else { return false };
        let kernel = spec.profile.clone().map(|key| (key, launched(spec, ctas_per_sm)));
        let part = match is_confined {
            true => Part::Own(Size { ctas: spec.ctas(), kernel }),
            false => Part::Alone,
        };
        account.queued(turn.now(), part, &|key, launched, sms| {
            predicted(latency.as_ref(), profiles.get(key)?, launched, sms)
        })
    }

    /// `launches` launches of an application, of any form, are over.
    pub(crate) fn over(&mut self, id: ApplicationId, now: Nanos, launches: usize) {
        if let Some(account) = self.accounts.get_mut(id) {
            account.over(now, launches);
        }
    }

    /// A wait of the host for work of an application has ended.
    pub(crate) fn waited(&mut self, id: ApplicationId) {
        let Observer { accounts, profiles, latency, .. } = self;
        if let Some(account) = accounts.get_mut(id) {
            account.waited(&|key, launched, sms| {
                predicted(latency.as_ref(), profiles.get(key)?, launched, sms)
            });
        }
    }

    /// `launches` such launches have ended.
    pub(crate) fn demand_ended(&mut self, turn: &mut Turn<'_>, id: ApplicationId, launches: usize) {
        let now = turn.now();
        if self.accounts.demand_ended(id, now, launches) {
            turn.common.meter.works(id, now, false);
        }
    }

    /// The application takes part in sharing from now on, or no longer.
    pub(crate) fn set_active(&mut self, id: ApplicationId, active: bool) {
        self.accounts.set_active(id, active);
    }

    /// Applications that take part in sharing.
    pub(crate) fn active(&self) -> impl Iterator<Item = ApplicationId> {
        self.accounts.active().map(|(id, _)| id)
    }

    /// Applications that have work.
    pub(crate) fn at_work(&self) -> impl Iterator<Item = ApplicationId> {
        self.accounts.at_work()
    }

    pub(crate) fn forget_session(&mut self, session: SessionId) {
        self.profiles.forget_session(session);
    }

    pub(crate) fn forget_application(&mut self, id: ApplicationId) {
        self.accounts.close(id);
        self.profiles.forget(id);
        self.hit_rates.forget(id);
    }

    /// A launch has completed CTAs: the number that the account has, and the number now.
    pub(crate) fn completed(
        &mut self,
        now: Nanos,
        (id, spec): (ApplicationId, &Spec),
        ctas_per_sm: u16,
        (before, after): (u64, u64),
    ) {
        // The last launches of an application may end when its account is closed.
        let Some(account) = self.accounts.get_mut(id) else { return };
        let done = after.saturating_sub(before);
        account.ctas_completed += done;
        if let Some(key) = &spec.profile {
            account.saw_kernel(now, key, (as_float(done), launched(spec, ctas_per_sm)));
        }
        if let Some(profile) = spec.profile.as_ref().and_then(|key| self.profiles.get(key)) {
            let (after, before) = (traffic_of(profile, after), traffic_of(profile, before));
            let traffic = after.combine(&before, u64::saturating_sub);
            account.add_profiled(&at_rate(traffic, self.hit_rates.get(id)));
        }
    }

    // CTA times.

    /// What is known of the time of a launch's CTAs.
    pub(crate) fn cta_time(&self, spec: &Spec) -> Option<Nanos> {
        let kept = || self.profiles.get(spec.profile.as_ref()?)?.cta_time;
        self.cta_times.get(spec).or_else(kept)
    }

    /// Corrects the time of a launch's CTAs by what was seen. The task size that follows.
    pub(crate) fn correct(
        &mut self,
        turn: &mut Turn<'_>,
        spec: &Spec,
        seen: &Measured,
    ) -> TaskSize {
        let known = self.cta_times.get(spec);
        let cta = seen.time.correct(known);
        self.cta_times.keep(spec, cta);
        if seen.is_final || known.is_none() {
            self.profile_cta_time(turn, spec, seen.time.mean);
        }
        task_size(spec, spec.total(), seen.working, Some(cta))
    }

    /// Bounds the time of a launch's CTAs from above.
    pub(crate) fn bound(&mut self, turn: &mut Turn<'_>, spec: &Spec, bound: Nanos) {
        if self.cta_time(spec).is_none_or(|known| bound < known) {
            self.cta_times.keep(spec, bound);
            self.profile_cta_time(turn, spec, bound);
        }
    }

    fn profile_cta_time(&mut self, turn: &mut Turn<'_>, spec: &Spec, time: Nanos) {
        if let Some(key) = &spec.profile {
            self.profiles.keep_cta_time(turn, key, time);
        }
    }

    /// Notes a kernel's speed: its launch had the whole GPU and completed `ctas` CTAs in `time`.
    pub(crate) fn saw_alone(
        &mut self,
        turn: &mut Turn<'_>,
        spec: &Spec,
        (time, ctas): (Nanos, u64),
    ) {
        if let Some(key) = &spec.profile {
            self.profiles.keep_alone(turn, key, as_float(time.0) / as_float(ctas.max(1)));
        }
    }

    // Launch times.

    /// What is expected of a launch in its original form on SMs with `places` for its CTAs, and
    /// whether that form may run.
    pub(crate) fn expected(&self, spec: &Spec, places: u64) -> Option<(Expected, bool)> {
        let kept = || self.profiles.get(spec.profile.as_ref()?)?.cta_time;
        self.launch_times.get(spec, spec.ctas().div_ceil(places.max(1)), kept)
    }

    /// A launch is over that had SMs with `places` for its CTAs. An original bounds the time of its
    /// CTAs.
    pub(crate) fn saw_launch(&mut self, turn: &mut Turn<'_>, spec: &Spec, took: Took, places: u64) {
        let ctas = spec.ctas().max(1);
        self.launch_times.saw(spec, took, ctas.div_ceil(places.max(1)));
        if took.is_original {
            let spent = took.time.0.saturating_mul(places.min(ctas));
            self.bound(turn, spec, Nanos(spent / ctas));
        }
    }

    // Slices.

    /// The number of CTAs in the next slice of a launch; `spec` has the CTAs that are left. `round`
    /// is the number of CTAs that the GPU holds at once, `longest` the longest time of a slice of
    /// several rounds. Where the answer is all CTAs, the rest of
    /// the launch stays in one piece.
    pub(crate) fn next_slice(
        &self,
        turn: &Turn<'_>,
        spec: &Spec,
        (round, longest): (u64, Nanos),
    ) -> u64 {
        self.slices.next(spec, round, Some(longest).filter(|_| tells_time(turn)))
    }

    /// The expected time of a slice with `ctas` CTAs.
    pub(crate) fn time_of_slice(&self, spec: &Spec, ctas: u64) -> Option<Nanos> {
        self.slices.time_of(spec, ctas)
    }

    /// A slice, or a launch that ran whole in place of slices, has taken `time`.
    pub(crate) fn saw_slice(&mut self, turn: &Turn<'_>, spec: &Spec, time: Nanos, round: u64) {
        if tells_time(turn) {
            self.slices.saw(spec, time, round);
        }
    }

    // Profiles.

    pub(crate) fn learn(&mut self, hash: &Arc<str>, profiles: &[(LaunchShape, KernelProfile)]) {
        self.profiles.learn(hash, profiles);
    }

    pub(crate) fn profile(&self, key: &ProfileKey) -> Option<KernelProfile> {
        self.profiles.get(key).copied()
    }

    /// Cuts a launch into the parts in which it runs: those before the last, which are none unless
    /// it is to be counted, and the last.
    pub(crate) fn cut(
        &mut self,
        turn: &mut Turn<'_>,
        ledger: &Ledger,
        session: SessionId,
        pending: Box<Pending>,
        is_counted: bool,
    ) -> (Vec<Pending>, Box<Pending>) {
        self.profiles.cut(turn, ledger, session, pending, is_counted)
    }

    /// Gives a counting launch its block.
    pub(crate) fn begin_counting(
        &mut self,
        turn: &mut Turn<'_>,
        pending: &mut Pending,
    ) -> Option<DeviceAddress> {
        self.profiles.begin(turn, pending)
    }

    /// A part of a launch that counts has ended.
    pub(crate) fn part_done(
        &mut self,
        turn: &mut Turn<'_>,
        launch: (ApplicationId, &Spec),
        count: Count,
        complete: bool,
    ) {
        self.profiles.part_done(turn, launch, count, complete);
    }

    // What the device counts.

    /// An application starts a grid; `has_company`: another has some on the device.
    pub(crate) fn starts(&mut self, turn: &mut Turn<'_>, id: ApplicationId, has_company: bool) {
        self.hit_rates.starts(turn, id, has_company);
    }

    pub(crate) fn look_at_hit_rates(&mut self, turn: &mut Turn<'_>) {
        self.hit_rates.look(turn);
    }

    /// A grid of an application has ended.
    pub(crate) fn count_grid(&mut self, id: ApplicationId, counters: Option<GridCounters>) {
        // Devices that do not count tell nothing.
        if let (Some(account), Some(counters)) = (self.accounts.get_mut(id), counters) {
            account.add_counted(&counters.traffic());
        }
    }

    /// What an application's CTAs did, of those whose kernels have a profile. `None` where none
    /// has, nor will have soon.
    pub(crate) fn profiled_traffic(&self, id: ApplicationId, soon: bool) -> Option<Traffic> {
        let profiled = self.accounts.get(id)?.profiled();
        (profiled.ctas > 0 || soon).then_some(profiled)
    }

    /// A launch was queued: what its application is taken for includes it from now on.
    pub(crate) fn saw_kernel(
        &mut self,
        now: Nanos,
        (id, spec): (ApplicationId, &Spec),
        ctas_per_sm: u16,
    ) {
        if let (Some(account), Some(key)) = (self.accounts.get_mut(id), &spec.profile) {
            account.saw_kernel(now, key, (0.0, launched(spec, ctas_per_sm)));
        }
    }

    /// What an application asks of a GPU that it has to itself, by its kernels of late; `None`
    /// where none of them was counted. Kernels whose speed alone is known go before others.
    pub(crate) fn character(&self, id: ApplicationId) -> Option<Character> {
        let recent = self.accounts.get(id)?.recent();
        let kernels: Vec<(Character, f64)> = recent
            .filter_map(|(key, ctas, launched)| {
                let character = Character::of(self.profiles.get(key)?, launched)?;
                Some((Character { kind: Some(kind(key)), ..character }, ctas))
            })
            .collect();
        let timed: Vec<(Character, f64)> =
            kernels.iter().filter(|(kernel, _)| kernel.alone.is_some()).copied().collect();
        Character::mean(&timed).or_else(|| Character::mean(&kernels))
    }

    pub(crate) fn is_at_rest(&self) -> bool {
        self.profiles.in_use() == 0
    }

    /// The device is gone, and all work with it.
    pub(crate) fn device_lost(&mut self, stays: impl Fn(ApplicationId) -> bool) {
        self.hit_rates.reset();
        self.accounts.forget_work(stays);
    }

    #[cfg(test)]
    pub(crate) fn hit_rate(&self, id: ApplicationId) -> Option<f64> {
        self.hit_rates.get(id)
    }
}

/// The predicted time of a launch alone on a number of SMs, in nanoseconds.
fn predicted(
    gpu: Option<&Gpu>,
    profile: &KernelProfile,
    launched: Launched,
    sms: u16,
) -> Option<f64> {
    let gpu = gpu.filter(|gpu| gpu.check(sms).is_ok())?;
    let work = Work::of(profile, launched, None).ok()?;
    Some(Fitted::new(gpu, &work).alone(sms) + gpu.launch)
}

/// What tells this kernel and shape from others, in every run.
fn kind((hash, shape): &ProfileKey) -> Kind {
    let LaunchShape { block: (x, y, z), grid_log2, dynamic_shared } = *shape;
    let words = [x, y, z, u32::from(grid_log2), dynamic_shared];
    Kind::of(hash.bytes().chain(words.into_iter().flat_map(u32::to_le_bytes)))
}

/// The shape of a launch of which an SM holds `ctas_per_sm` CTAs.
fn launched(spec: &Spec, ctas_per_sm: u16) -> Launched {
    let threads = u32::try_from(spec.block.count()).unwrap_or(u32::MAX);
    Launched {
        warps: threads.div_ceil(32),
        ctas_per_sm: ctas_per_sm.into(),
        ctas: spec.grid_ctas(),
    }
}

#[expect(clippy::cast_precision_loss, reason = "only ratios are formed")]
fn as_float(count: u64) -> f64 {
    count as f64
}

/// Whether the device tells how long work takes.
fn tells_time(turn: &Turn<'_>) -> bool {
    turn.facts().timekeeping != Timekeeping::Off
}
