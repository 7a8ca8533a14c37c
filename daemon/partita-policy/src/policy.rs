//! The policy loop: from what is seen of the applications to orders for the engine.
//!
//! [`Policy`] is shown the applications whenever something may have changed, and at the latest when
//! it asks to be ([`Policy::next_at`]). It keeps track of who has work, lends the SMs of those who
//! have had none for a while, measures intervals, asks selector and partitioner, and keeps a record
//! of every decision.
//!
//! # Invariants
//!
//! - Partitions are of the SMs to be shared out, and disjoint but for two applications that share
//!   each of their SMs; stalled SMs are in partitions, gated ones are in none.
//! - Where anyone has work, every SM is in a partition, gated, or beyond all maxima.
//! - What is shown may be late, wrong or absurd: decisions may be poor then, but they hold all of
//!   the above.

use crate::entitlements::{self, Entitlements};
use crate::measuring::{Clock, Intervals, Measured, Reading};
use crate::{
    ApplicationSample, Awaits, Bounds, Character, Decision, Partitioner, Plan, Sample, Selected,
    Selector, Slowdowns,
};
use partita_model::{
    ApplicationId, ApplicationRecord, Cause, DecisionRecord, Entitlement, Nanos, Notice, Progress,
    SmSet, TenantId,
};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// What can be set about the loop.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PolicySettings {
    /// SM clock, for intervals that are set in cycles.
    pub sm_clock_khz: u32,
    /// An interval begins again where nobody had work for so long.
    pub idle_grace: Nanos,
    /// Workers that have not followed a decision for so long are reported and no longer waited for.
    pub settle_limit: Nanos,
    /// Decisions that are remembered.
    pub records: usize,
}

impl PolicySettings {
    /// The defaults for a GPU with this clock.
    #[must_use]
    pub fn new(sm_clock_khz: u32) -> Self {
        PolicySettings {
            sm_clock_khz,
            idle_grace: Nanos(1_000_000),
            settle_limit: Nanos(10_000_000),
            records: 64,
        }
    }
}

/// What is seen at one moment.
#[derive(Clone, PartialEq, Debug)]
pub struct Observation {
    /// Device time.
    pub now: Nanos,
    /// The SMs to share out.
    pub sms: SmSet,
    /// SMs that an administrator has pinned.
    pub pinned: SmSet,
    /// Whether every worker is where the last orders want it, and waits where they want it to wait.
    pub settled: bool,
    /// All applications that may get SMs.
    pub applications: Vec<ApplicationObservation>,
}

/// One application at one moment.
#[derive(Clone, PartialEq, Debug)]
pub struct ApplicationObservation {
    /// Which.
    pub application: ApplicationId,
    /// Who is accounted.
    pub tenant: TenantId,
    /// Its tag, if it has one.
    pub tag: Option<String>,
    /// Whether it has launches queued or running.
    pub has_work: bool,
    /// If it has none: when it lends its SMs to those who have some, and takes part no longer.
    pub lends_at: Nanos,
    /// Device time for which it has had work since it came, the present piece included.
    pub busy: Nanos,
    /// What it has done since it came.
    pub total: Progress,
    /// CTAs that have been claimed and not completed: so many may complete at once.
    pub in_flight: u64,
    /// All CTAs of the launches that these belong to.
    pub launched: u64,
    /// Whether some of its CTAs are being counted, and take longer for it.
    pub counting: bool,
    /// Whether a launch of it is stuck: no interval waits for it.
    pub stuck: bool,
    /// What it asks of a GPU that it has to itself, where that was counted.
    pub character: Option<Character>,
    /// A launch of it waits, because one of its CTAs does not fit into its part of an SM.
    pub cramped: bool,
    /// What it may have of the SMs.
    pub entitlement: Entitlement,
}

/// What the engine shall bring about.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Orders {
    /// Who has which SMs.
    pub plan: Plan,
    /// Where workers wait at the next task border.
    pub stalled: SmSet,
    /// SMs that stay empty to save power.
    pub gated: SmSet,
}

/// What the loop knows of an application.
#[derive(Clone, Debug)]
struct Tracked {
    /// Whether it takes part: it has work, or had until a moment ago, or nobody else wants its SMs.
    active: bool,
    has_work: bool,
    lends_at: Nanos,
    /// When it was last seen to work on CTAs.
    worked: Nanos,
    total: Progress,
    busy: Nanos,
    in_flight: u64,
    launched: u64,
    counting: bool,
    stuck: bool,
    cramped: bool,
    entitlement: Entitlement,
}

/// The policy loop.
pub struct Policy {
    settings: PolicySettings,
    selector: Box<dyn Selector + Send>,
    partitioner: Box<dyn Partitioner + Send>,
    now: Nanos,
    sms: SmSet,
    pinned: SmSet,
    tracked: BTreeMap<ApplicationId, Tracked>,
    members: BTreeSet<ApplicationId>,
    /// Those of them that run at present.
    together: BTreeSet<ApplicationId>,
    orders: Orders,
    intervals: Intervals,
    /// The interval under way is the selector's wish, not the partitioner's.
    measures_for_selector: bool,
    sequence: u64,
    records: VecDeque<DecisionRecord>,
    /// The last record that says why things are as they are.
    explains: Option<DecisionRecord>,
    notices: VecDeque<Notice>,
    /// Selector or partitioner are new and have not been asked yet.
    replaced: bool,
    /// A launch has just been found that does not fit into its application's part of an SM.
    is_cramped: bool,
    entitlements: Entitlements,
    /// What somebody may have has just changed.
    is_entitled_anew: bool,
}

impl Policy {
    /// A loop that has not seen anyone yet.
    #[must_use]
    pub fn new(
        settings: PolicySettings,
        selector: Box<dyn Selector + Send>,
        partitioner: Box<dyn Partitioner + Send>,
    ) -> Self {
        let clock = Clock { khz: settings.sm_clock_khz };
        Policy {
            intervals: Intervals::new(clock, settings.settle_limit),
            settings,
            selector,
            partitioner,
            now: Nanos(0),
            sms: SmSet::EMPTY,
            pinned: SmSet::EMPTY,
            tracked: BTreeMap::new(),
            members: BTreeSet::new(),
            together: BTreeSet::new(),
            orders: Orders::default(),
            measures_for_selector: false,
            sequence: 0,
            records: VecDeque::new(),
            explains: None,
            notices: VecDeque::new(),
            replaced: false,
            is_cramped: false,
            entitlements: Entitlements::default(),
            is_entitled_anew: false,
        }
    }

    /// Goes on with others who answer the two questions. What is in force stays until they are
    /// asked, by the next [`Policy::observe`].
    pub fn replace(
        &mut self,
        selector: Box<dyn Selector + Send>,
        partitioner: Box<dyn Partitioner + Send>,
    ) {
        self.selector = selector;
        self.partitioner = partitioner;
        self.intervals.begin(self.now, None, false, &BTreeMap::new());
        self.replaced = true;
    }

    /// Looks at what is, and answers with new orders where others are needed.
    pub fn observe(&mut self, seen: &Observation) -> Option<&Orders> {
        let looked = self.now;
        self.now = self.now.max(seen.now);
        self.pinned = seen.pinned;
        let applications: BTreeMap<ApplicationId, &ApplicationObservation> =
            seen.applications.iter().rev().map(|a| (a.application, a)).collect();
        let worked = self.longest_work(&applications);
        self.track(&applications);
        if self.now.saturating_sub(looked).saturating_sub(worked) >= self.settings.idle_grace {
            self.intervals.restart(self.now);
        }
        let members: BTreeSet<ApplicationId> =
            self.tracked.iter().filter(|(_, tracked)| tracked.active).map(|(&id, _)| id).collect();
        let readings = self.readings(&members);
        let measured = self.intervals.observe(self.now, seen.settled, &readings);
        if let Some(since) = self.intervals.take_overdue() {
            self.notices.push_back(Notice::NotSettled { since });
        }
        let is_cramped = std::mem::take(&mut self.is_cramped);
        let is_entitled_anew = std::mem::take(&mut self.is_entitled_anew);
        if members != self.members || seen.sms != self.sms || is_cramped {
            self.members = members;
            self.sms = seen.sms;
            self.replaced = false;
            return self.decide(&applications, Cause::Membership, None);
        }
        if std::mem::take(&mut self.replaced) {
            return self.decide(&applications, Cause::Configuration, None);
        }
        if is_entitled_anew {
            return self.decide(&applications, Cause::Terms, None);
        }
        if measured.is_none() && self.turn_ends().is_none_or(|at| at > self.now) {
            return None;
        }
        self.decide(&applications, Cause::Interval, measured)
    }

    /// When it wants to be shown the applications again at the latest.
    #[must_use]
    pub fn next_at(&self) -> Option<Nanos> {
        let tracked = || self.tracked.values();
        let wanted = tracked().any(|tracked| tracked.has_work);
        let idle = tracked().filter(|tracked| wanted && tracked.active && !tracked.has_work);
        let grace = idle.map(|tracked| tracked.lends_at).min();
        let turn = self.turn_ends();
        grace.into_iter().chain(self.intervals.next_at(self.now)).chain(turn).min()
    }

    /// Whether an application shares the SMs: it has work, or has not been without for long, or
    /// nobody else has any.
    #[must_use]
    pub fn takes_part(&self, application: ApplicationId) -> bool {
        self.members.contains(&application)
    }

    /// The names of selector and partitioner.
    #[must_use]
    pub fn names(&self) -> (&'static str, &'static str) {
        (self.selector.name(), self.partitioner.name())
    }

    /// What the selector knows of slowdowns; `None` where it learns none.
    #[must_use]
    pub fn slowdowns(&self) -> Option<&Slowdowns> {
        self.selector.slowdowns()
    }

    /// The orders in force.
    #[must_use]
    pub fn orders(&self) -> &Orders {
        &self.orders
    }

    /// The decisions that are remembered, oldest first.
    pub fn records(&self) -> impl DoubleEndedIterator<Item = &DecisionRecord> {
        self.records.iter()
    }

    /// The decision that explains the present partitions.
    #[must_use]
    pub fn current(&self) -> Option<&DecisionRecord> {
        self.explains.as_ref()
    }

    /// The next thing that an administrator should know of.
    pub fn poll_notice(&mut self) -> Option<Notice> {
        self.notices.pop_front()
    }

    /// When selector or terms let others run.
    fn turn_ends(&self) -> Option<Nanos> {
        self.selector.again_at().into_iter().chain(self.entitlements.again_at()).min()
    }

    /// How long the one with the most work has had some since the last look.
    fn longest_work(&self, seen: &BTreeMap<ApplicationId, &ApplicationObservation>) -> Nanos {
        let since = |id, busy: Nanos| {
            let before = self.tracked.get(id).map_or(Nanos(0), |tracked| tracked.busy);
            busy.saturating_sub(before)
        };
        seen.iter().map(|(id, application)| since(id, application.busy)).max().unwrap_or(Nanos(0))
    }

    fn track(&mut self, seen: &BTreeMap<ApplicationId, &ApplicationObservation>) {
        let now = self.now;
        self.tracked.retain(|id, _| seen.contains_key(id));
        for (&id, application) in seen {
            let tracked = self.tracked.entry(id).or_insert_with(|| Tracked {
                active: false,
                has_work: false,
                lends_at: now,
                worked: now,
                total: application.total,
                busy: Nanos(0),
                in_flight: 0,
                launched: 0,
                counting: false,
                stuck: false,
                cramped: false,
                entitlement: application.entitlement,
            });
            let before = std::mem::replace(&mut tracked.entitlement, application.entitlement);
            self.is_entitled_anew |= before != application.entitlement && tracked.active;
            self.is_cramped |= application.cramped && !tracked.cramped;
            tracked.cramped = application.cramped;
            if application.in_flight > 0 || application.total.ctas != tracked.total.ctas {
                tracked.worked = now;
            }
            tracked.busy = application.busy;
            tracked.in_flight = application.in_flight;
            tracked.launched = application.launched;
            tracked.counting = application.counting;
            tracked.stuck = application.stuck;
            tracked.lends_at = application.lends_at;
            tracked.has_work = application.has_work;
            tracked.active |= application.has_work;
            tracked.total = application.total;
        }
        if self.tracked.values().any(|tracked| tracked.has_work) {
            for tracked in self.tracked.values_mut() {
                tracked.active &= tracked.has_work || now < tracked.lends_at;
            }
        }
    }

    fn readings(&self, members: &BTreeSet<ApplicationId>) -> BTreeMap<ApplicationId, Reading> {
        let awaits = self.intervals.awaits();
        let measured = |id| match awaits {
            Awaits::Everybody => true,
            Awaits::Holders(sms) => !self.orders.plan.sms(id).is_disjoint(&sms),
        };
        // An application of weight 0 may have no SM for long.
        let may_work = |id, tracked: &Tracked| {
            tracked.entitlement.weight.get() > 0 || !self.orders.plan.sms(id).is_empty()
        };
        let reading = |id: ApplicationId, tracked: &Tracked| Reading {
            total: tracked.total,
            busy: tracked.busy,
            in_flight: tracked.in_flight,
            launched: tracked.launched,
            counting: tracked.counting,
            awaited: tracked.has_work && !tracked.stuck && may_work(id, tracked) && measured(id),
        };
        members.iter().filter_map(|id| Some((*id, reading(*id, self.tracked.get(id)?)))).collect()
    }

    fn decide(
        &mut self,
        seen: &BTreeMap<ApplicationId, &ApplicationObservation>,
        cause: Cause,
        measured: Option<Measured>,
    ) -> Option<&Orders> {
        let mut sample = self.sample(seen, cause, measured.as_ref());
        let mut selected = self.selector.step(&sample);
        let is_entitled = entitlements::are_any(&sample);
        if is_entitled {
            self.entitlements.admit(&sample, &mut selected);
        } else {
            self.entitlements.rest();
        }
        let Selected { together, parts, notes } = selected;
        if cause == Cause::Interval {
            let is_partitioners = measured.is_some() && !self.measures_for_selector;
            if together != self.together || parts != *self.orders.plan.parts() {
                // What was measured was measured with others.
                sample = self.sample(seen, Cause::Membership, None);
            } else if !is_partitioners {
                if measured.is_some() {
                    let readings = self.readings(&self.members);
                    self.intervals.begin(self.now, self.selector.interval(), false, &readings);
                }
                return None;
            }
        }
        self.together.clone_from(&together);
        sample.applications.retain(|a| together.contains(&a.application));
        let mut settled = Plan::shared(sample.sms, &parts).map(Decision::shared);
        if is_entitled {
            Entitlements::bound(&mut sample);
            settled = Entitlements::decision(&sample);
        }
        let mut decision = settled.unwrap_or_else(|| self.partitioner.step(&sample));
        if is_entitled {
            Entitlements::keep(&sample, &mut decision);
        }
        decision.notes.extend(notes);
        let next = decision.next.or_else(|| self.selector.interval());
        self.measures_for_selector = decision.next.is_none();

        let taken = decision.plan.taken();
        let orders = Orders {
            stalled: decision.stalled.intersection(&taken),
            gated: decision.gated.intersection(&self.sms).difference(&taken),
            plan: decision.plan.clone(),
        };
        let changed = orders != self.orders;
        self.record(&sample, &decision, &orders, changed);
        let readings = self.readings(&self.members);
        let warm = changed || sample.cause != Cause::Interval;
        self.intervals.begin(self.now, next, warm, &readings);
        self.orders = orders;
        changed.then_some(&self.orders)
    }

    fn sample(
        &self,
        seen: &BTreeMap<ApplicationId, &ApplicationObservation>,
        cause: Cause,
        measured: Option<&Measured>,
    ) -> Sample {
        let clock = Clock { khz: self.settings.sm_clock_khz };
        let applications = self
            .members
            .iter()
            .filter_map(|id| seen.get(id))
            .map(|application| {
                let id = application.application;
                let partition = self.orders.plan.sms(id);
                let done = measured
                    .and_then(|measured| measured.done.get(&id))
                    .copied()
                    .unwrap_or_default();
                ApplicationSample {
                    application: id,
                    tenant: application.tenant,
                    tag: application.tag.clone(),
                    partition,
                    stalled: partition.intersection(&self.orders.stalled),
                    progress: done.progress,
                    span: clock.cycles(done.span),
                    busy: clock.cycles(done.busy),
                    warm_up_ctas: done.warm_up_ctas,
                    rounds: done.rounds,
                    profiled: application.total.traffic.is_some(),
                    rested: self.now.saturating_sub(
                        self.tracked.get(&id).map_or(self.now, |tracked| tracked.worked),
                    ),
                    character: application.character,
                    cramped: application.cramped,
                    entitlement: application.entitlement,
                    bounds: Bounds::default(),
                }
            })
            .collect();
        let interval = measured.map(|measured| measured.interval);
        Sample { now: self.now, cause, interval, sms: self.sms, applications }
    }

    fn record(&mut self, sample: &Sample, decision: &Decision, orders: &Orders, changed: bool) {
        if !changed && decision.notes.is_empty() {
            return;
        }
        self.sequence += 1;
        let record = DecisionRecord {
            sequence: self.sequence,
            time: sample.now,
            partitioner: self.partitioner.name().to_owned(),
            cause: sample.cause,
            interval: sample.interval,
            sms: sample.sms,
            pinned: self.pinned,
            applications: sample
                .applications
                .iter()
                .map(|application| {
                    let gets = orders.plan.sms(application.application);
                    ApplicationRecord {
                        application: application.application,
                        had: application.partition,
                        had_stalled: application.stalled,
                        progress: application.progress,
                        gets,
                        stalled: gets.intersection(&orders.stalled),
                        part: orders.plan.part(application.application),
                    }
                })
                .collect(),
            gated: orders.gated,
            stage: decision.stage.to_owned(),
            notes: decision.notes.clone(),
        };
        self.explains = Some(record.clone());
        if self.records.len() >= self.settings.records {
            self.records.pop_front();
        }
        self.records.push_back(record);
    }
}

#[cfg(test)]
#[path = "policy_tests.rs"]
mod tests;
