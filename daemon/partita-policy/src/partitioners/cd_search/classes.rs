//! Classes: what the curves say of all SMs against half of them.
//!
//! The off-SM bandwidth model (§4.1.2) says the class where the profiles of an application's
//! kernels are known. It also says what is expected of the curve before it is measured: at demand
//! = supply an application lies on the border between the classes.
//!
//! Where they are not, the curve is **probed** (ours): an application is measured on more SMs than
//! the even split, lent by others that take next to no bandwidth; else with half of its SMs
//! stalled. Lent SMs say more, because the class is about all SMs.

use super::objectives::Objective;
use super::{CdSearch, Member, Stage};
use crate::models::{Curve, full, taken};
use crate::partitioners::even::even_plan;
use crate::plans::allot;
use crate::{ApplicationSample, Decision, Plan, Sample, classify};
use partita_model::{ApplicationId, Class, EvenReason, Evidence, IntervalRecord, Note, SmSet};

impl CdSearch {
    /// The even split was measured.
    pub(super) fn even_measured(&mut self, sample: &Sample, interval: &IntervalRecord) -> Decision {
        let few = self.settings.few_rounds;
        let mut silent = false;
        for member in &mut self.members {
            let seen = sample.find(member.application);
            let speed = seen.and_then(ApplicationSample::speed);
            let rounds = seen.and_then(|seen| seen.rounds).filter(|rounds| *rounds <= few);
            member.quick = seen.is_some_and(|seen| seen.warm_up_ctas > 0);
            member.slots = rounds.map(|rounds| rounds * f64::from(member.even()));
            member.reference = speed.filter(|speed| speed.progress.ctas > 0);
            member.observations = vec![(member.even(), 1.0)];
            // Some of its CTAs may be the first of their kernel: the next ones' traffic is known.
            let told = member.reference.is_some_and(|speed| speed.progress.traffic.is_some());
            silent |= member.reference.is_none() || seen.is_some_and(|a| a.profiled) && !told;
        }
        if silent && let Some(decision) = self.again() {
            return decision;
        }
        let open: Vec<usize> =
            (0..self.members.len()).filter(|&at| !self.classify(at, interval)).collect();
        if open.is_empty() { self.choose_objective(sample) } else { self.probe(sample, &open) }
    }

    /// Gives a member the class that follows without a probe; answers whether there is one.
    fn classify(&mut self, at: usize, interval: &IntervalRecord) -> bool {
        let member = &mut self.members[at];
        let traffic = member.reference.map(|speed| speed.progress.traffic);
        let found = match traffic {
            None => Some((Class::Unknown, Evidence::NoProgress { cycles: interval.cycles })),
            Some(Some(traffic)) => classify(&self.hardware, &traffic, self.settings.supply),
            Some(None) => None,
        };
        let single = Evidence::Scaling { fewer: 1, more: 1, gain: 1.0, limit: 1.0 };
        // With a single SM there is nothing to find out, nor to take away; nor is anything taken
        // away from a minimum.
        let has_none = member.fewest_to_probe() >= member.even();
        let found = found.or((member.even() < 2 || has_none).then_some((Class::Compute, single)));
        if let Some((class, evidence)) = found {
            (member.class, member.evidence) = (class, evidence);
            if let Evidence::Bandwidth { demand, supply, .. } = evidence {
                member.expected = Some(self.settings.border.powf(demand / supply));
            }
        }
        found.is_some()
    }

    /// The curve of an application on the border between the classes.
    fn border_curve(&self, slots: Option<f64>) -> Curve {
        Curve::new(self.hardware.sms, slots, self.settings.border)
    }

    /// The parts of LLC's and DRAM's bandwidth that some members took together on the even split;
    /// `None` where that is not known of each of them.
    fn taken_by(&self, who: impl Fn(usize) -> bool) -> Option<[f64; 2]> {
        let members = self.members.iter().enumerate().filter(|(at, _)| who(*at));
        members.into_iter().try_fold([0.0; 2], |sum, (_, member)| {
            let reference = member.reference?;
            let traffic = reference.progress.traffic?;
            let own = taken(&self.hardware, &traffic, reference.busy_cycles);
            Some([sum[0] + own[0], sum[1] + own[1]])
        })
    }

    /// Measures members whose class is open, on other SMs than the even split's.
    fn probe(&mut self, sample: &Sample, open: &[usize]) -> Decision {
        let lent = match open {
            [one] => self.lent_to(sample, *one),
            _ => None,
        };
        let lends = lent.is_some();
        if let Some(plan) = lent {
            self.plan = plan;
        }
        let mut notes = Vec::new();
        for &at in open {
            let member = &mut self.members[at];
            member.active = if lends { member.even() } else { member.fewest_to_probe() };
            let (application, of) = (member.application, member.even());
            let active = if lends { self.plan.sms(application).len() } else { member.active };
            notes.push(Note::Tries { application, active, of });
        }
        self.search.probed = open.to_vec();
        self.go_to(Stage::Probe, notes)
    }

    /// The plan in which one member has half of everybody else's SMs too; `None` where these may
    /// take bandwidth that it would then have, or where a last round of its CTAs would hide the
    /// gain and would not on half of its SMs.
    fn lent_to(&self, sample: &Sample, one: usize) -> Option<Plan> {
        let [llc, dram] = self.taken_by(|at| at != one)?;
        let mut counts: Vec<u16> = self.members.iter().map(|m| m.even().div_ceil(2)).collect();
        counts[one] = 0;
        let all: u16 = self.members.iter().map(Member::even).sum();
        counts[one] = all - counts.iter().sum::<u16>();
        let member = &self.members[one];
        let hides =
            |sms: u16| (full(member.slots, sms) / full(member.slots, member.even()) - 1.0).abs();
        let shows = hides(counts[one]) <= hides(member.even() / 2);
        let holders: Vec<(ApplicationId, SmSet)> =
            self.members.iter().map(|member| (member.application, member.own)).collect();
        let keep = |(counts, member): (&u16, &Member)| member.bounds.contain(*counts);
        let keeps = counts.iter().zip(&self.members).all(keep);
        let useful = keeps && counts[one] > member.even() && llc.max(dram) <= self.settings.modest;
        (useful && shows).then(|| allot(sample.sms, &holders, &counts))
    }

    /// A probe has ended: the curve of each member that was probed says its class.
    pub(super) fn probed(&mut self, sample: &Sample) -> Decision {
        let probed = self.search.probed.clone();
        let found: Vec<Option<f64>> =
            probed.iter().map(|&at| self.members[at].relative(sample)).collect();
        if found.contains(&None)
            && let Some(decision) = self.again()
        {
            return decision;
        }
        for (&at, relative) in probed.iter().zip(found) {
            let member = &self.members[at];
            let (even, lent) = (member.even(), self.plan.sms(member.application).len());
            let sms = if member.active < even { member.active } else { lent };
            let (fewer, more) = (sms.min(even), sms.max(even));
            let limit = self.border_curve(member.slots).gain(fewer, more);
            let gain = |relative: f64| if sms < even { 1.0 / relative.max(1e-6) } else { relative };
            // Who shows nothing keeps what it has.
            let gain = relative.map_or(limit, gain);
            let member = &mut self.members[at];
            member.class = if gain < limit { Class::Memory } else { Class::Compute };
            member.evidence = Evidence::Scaling { fewer, more, gain, limit };
            member.observations.extend(relative.map(|relative| (sms, relative)));
            member.active = even;
        }
        self.plan =
            Plan::of_disjoint(self.members.iter().map(|m| (m.application, m.own)).collect());
        self.choose_objective(sample)
    }

    fn choose_objective(&mut self, sample: &Sample) -> Decision {
        let any = |class| self.members.iter().any(|member| member.class == class);
        let mut notes: Vec<Note> = self.members.iter().map(Member::classified).collect();
        match (any(Class::Memory), any(Class::Compute)) {
            (true, true) => self.start_search(sample, Objective::Throughput, notes),
            (true, false) => self.start_search(sample, Objective::Power, notes),
            (false, _) => {
                notes.extend(even_plan(sample, EvenReason::NoneMemoryIntensive).1);
                self.go_to(Stage::Watch, notes)
            }
        }
    }
}
