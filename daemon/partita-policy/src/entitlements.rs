//! What terms leave to selector and partitioner: who runs in any case, and between what numbers of
//! SMs each application may have.
//!
//! Where nothing was said of any application, nothing here is asked and nothing changes.
//!
//! - **Minimum**: an application has it whenever it has work. An application that would take the
//!   last SM leaves one to those without a minimum, so that nobody starves. Where minima do not
//!   fit, reserved ones go first, and then the application that came first.
//! - **Maximum**: it holds always, also where SMs stay empty.
//! - **Priority**: `latency` applications take the SMs that they need from `batch` applications,
//!   down to the minimum of these, one SM at least. `normal` applications keep their fair part.
//! - **Weight**: it divides what is left.
//!
//! An application with a minimum or the priority `latency` takes no turns. Other applications take
//! turns of 2 ms where fewer SMs are left than there are applications. `batch` applications take
//! turns on one SM at least where urgent applications need all others. So an application of
//! positive weight waits for 2 ms × (applications in turns ÷ SMs left for them), at most.

use crate::plans::{Bounds, allot, fair_counts, fitted};
use crate::selectors::{Rota, Selected};
use crate::{ApplicationSample, Decision, Plan, Sample};
use partita_model::{ApplicationId, Entitlement, Nanos, Note, Priority, SmSet, SmsOf, Weight};
use std::collections::{BTreeSet, VecDeque};

/// What keeps terms from one decision to the next: whose turn it is.
#[derive(Clone, Debug, Default)]
pub(crate) struct Entitlements {
    /// Turns of applications without a minimum.
    common: Rota,
    /// Turns of those of them that leave their SMs to an urgent application.
    yielding: Rota,
}

/// Whether anything was said of an application.
pub(crate) fn are_any(sample: &Sample) -> bool {
    sample.applications.iter().any(|a| !a.entitlement.is_neutral())
}

impl Entitlements {
    /// When turns change, if applications take any.
    pub(crate) fn again_at(&self) -> Option<Nanos> {
        self.common.again_at().into_iter().chain(self.yielding.again_at()).min()
    }

    /// Nothing is said of anybody: no turns.
    pub(crate) fn rest(&mut self) {
        self.common.rest();
        self.yielding.rest();
    }

    /// Corrects whom a selector runs: applications that always run do, and those that find no SM
    /// beside them take turns. Nobody shares SMs in parts.
    pub(crate) fn admit(&mut self, sample: &Sample, selected: &mut Selected) {
        let total = sample.sms.len();
        let mut running = BTreeSet::new();
        let (mut common, mut yielding) = (BTreeSet::new(), BTreeSet::new());
        let (mut owed, mut needed) = (0_u16, 0_u16);
        let is_urgent = has(sample, Priority::Latency);
        // The selector did not know of the room that terms leave.
        let no_room = selected.notes.iter().filter_map(|note| match note {
            Note::NoRoom { application } => Some(*application),
            _ => None,
        });
        let no_room: BTreeSet<ApplicationId> = no_room.collect();
        let waits_for_room = |id: &ApplicationId| no_room.contains(id);
        for application in &sample.applications {
            let (id, entitlement) = (application.application, &application.entitlement);
            if entitlement.always_runs() {
                let urgent = entitlement.priority == Priority::Latency;
                let need = entitlement.need.unwrap_or(total).min(entitlement.max);
                let least = entitlement.min.max(1);
                owed = owed.saturating_add(least);
                needed = needed.saturating_add(if urgent { need.max(least) } else { least });
                running.insert(id);
            } else if selected.together.contains(&id) || waits_for_room(&id) {
                let yields = is_urgent && entitlement.priority == Priority::Batch;
                if yields { &mut yielding } else { &mut common }.insert((id, entitlement.weight));
            }
        }
        let is_anyone_else = !common.is_empty() || !yielding.is_empty();
        if running.len() + usize::from(is_anyone_else) > usize::from(total) {
            // They do not fit, minima or not.
            common.extend(sample.applications.iter().filter_map(|a| {
                running.contains(&a.application).then_some((a.application, a.entitlement.weight))
            }));
            common.append(&mut yielding);
            running.clear();
            owed = 0;
        }
        if total.saturating_sub(owed) < 2 {
            common.append(&mut yielding);
        }
        let room = |taken: u16| total.saturating_sub(taken).max(u16::from(total > 1));
        let others = match running.is_empty() {
            true => total,
            false => room(owed.saturating_add(u16::from(!yielding.is_empty()))),
        };
        let (some, mut waiting) = in_turns(&mut self.common, sample.now, &common, others);
        let of_batch = room(needed.saturating_add(u16::try_from(some.len()).unwrap_or(u16::MAX)));
        let (more, wait) = in_turns(&mut self.yielding, sample.now, &yielding, of_batch);
        waiting.extend(wait);
        running.extend(some.into_iter().chain(more));
        selected.notes.retain(|note| match note {
            Note::Waits { application } => !running.contains(application),
            Note::NoRoom { .. } => false,
            _ => true,
        });
        let no_room = waiting.into_iter().map(|application| Note::NoRoom { application });
        selected.notes.extend(no_room);
        selected.together = running;
        selected.parts.clear();
    }

    /// Writes into the sample between what numbers of SMs each application may have. Everybody in
    /// the sample runs.
    pub(crate) fn bound(sample: &mut Sample) {
        let bounds = bounds(sample);
        for (application, bounds) in sample.applications.iter_mut().zip(bounds) {
            application.bounds = bounds;
        }
    }

    /// The decision, where the bounds leave no choice: at most one application's number of SMs is
    /// open, and it gets what is left.
    pub(crate) fn decision(sample: &Sample) -> Option<Decision> {
        let open = sample.applications.iter().filter(|a| a.bounds.least < a.bounds.most);
        if open.count() > 1 || sample.applications.is_empty() {
            return None;
        }
        let (holders, bounds) = parts(sample);
        let counts = fair_counts(sample.sms.len(), &holders, &bounds);
        Some(Decision {
            plan: allot(sample.sms, &holders, &counts),
            stalled: SmSet::EMPTY,
            gated: SmSet::EMPTY,
            stage: "terms",
            notes: Vec::new(),
            next: None,
        })
    }

    /// Keeps a partitioner's decision to the bounds, the SMs on which workers wait too, and says
    /// what each application is owed.
    pub(crate) fn keep(sample: &Sample, decision: &mut Decision) {
        let (_, bounds) = parts(sample);
        let planned = |a: &ApplicationSample| (a.application, decision.plan.sms(a.application));
        let holders: Vec<(ApplicationId, SmSet)> =
            sample.applications.iter().map(planned).collect();
        let wanted: Vec<u16> = holders.iter().map(|(_, sms)| sms.len()).collect();
        let counts = fitted(sample.sms.len(), &wanted, &bounds);
        if counts != wanted {
            decision.plan = allot(sample.sms, &holders, &counts);
        }
        for application in &sample.applications {
            let own = decision.plan.sms(application.application);
            let may_wait = usize::from(own.len().saturating_sub(application.bounds.least));
            let waiting = own.intersection(&decision.stalled);
            let resumed: SmSet = waiting.iter().skip(may_wait).collect();
            decision.stalled = decision.stalled.difference(&resumed);
        }
        decision.notes.extend(notes(sample, &decision.plan));
    }
}

/// Who runs and who waits where there is room for so many. Applications of weight 0 come after all
/// others.
fn in_turns(
    rota: &mut Rota,
    now: Nanos,
    who: &BTreeSet<(ApplicationId, Weight)>,
    room: u16,
) -> (BTreeSet<ApplicationId>, Vec<ApplicationId>) {
    let ids = |with: &dyn Fn(Weight) -> bool| -> BTreeSet<ApplicationId> {
        who.iter().filter(|(_, weight)| with(*weight)).map(|(id, _)| *id).collect()
    };
    let (all, weighing) = (ids(&|_| true), ids(&|weight| weight.get() > 0));
    let room = usize::from(room);
    let running = match room.checked_sub(weighing.len()) {
        None | Some(0) => rota.choose(now, &weighing, room),
        Some(left) => {
            let idle = all.difference(&weighing).copied().collect();
            &weighing | &rota.choose(now, &idle, left)
        }
    };
    let waiting = all.difference(&running).copied().collect();
    (running, waiting)
}

fn parts(sample: &Sample) -> (Vec<(ApplicationId, SmSet)>, Vec<Bounds>) {
    let holder = |a: &ApplicationSample| (a.application, a.partition.intersection(&sample.sms));
    let holders = sample.applications.iter().map(holder).collect();
    (holders, sample.applications.iter().map(|a| a.bounds).collect())
}

/// What each application is owed and why, where anything was said of it.
fn notes(sample: &Sample, plan: &Plan) -> Vec<Note> {
    let is_said = |a: &ApplicationSample| !a.entitlement.is_neutral();
    if !sample.applications.iter().any(is_said) {
        return Vec::new();
    }
    let exchanged = exchanged(sample, plan);
    let part = |(application, sms): (ApplicationId, u16)| SmsOf { application, sms };
    let note = |a: &ApplicationSample| Note::Entitled {
        takes: exchanged
            .iter()
            .filter(|(taker, ..)| *taker == a.application)
            .map(|(_, giver, sms)| part((*giver, *sms)))
            .collect(),
        leaves: exchanged
            .iter()
            .filter(|(_, giver, _)| *giver == a.application)
            .map(|(taker, _, sms)| part((*taker, *sms)))
            .collect(),
        application: a.application,
        entitlement: a.entitlement,
        gets: plan.sms(a.application).len(),
        least: a.bounds.least,
        need: a.entitlement.need,
        yields: a.entitlement.priority == Priority::Batch && has(sample, Priority::Latency),
    };
    sample.applications.iter().filter(|a| is_said(a)).map(note).collect()
}

/// SMs beyond an equal split: the application that has them, the application that has fewer for it,
/// and their number. Where several have more and several fewer, they pair up in order of their ids.
fn exchanged(sample: &Sample, plan: &Plan) -> Vec<(ApplicationId, ApplicationId, u16)> {
    let ids = || sample.applications.iter().map(|a| a.application);
    let nothing: Vec<_> = ids().map(|id| (id, SmSet::EMPTY)).collect();
    let equal = vec![Bounds { weight: 1, ..Bounds::default() }; nothing.len()];
    let fair = fair_counts(sample.sms.len(), &nothing, &equal);
    let (mut takers, mut givers) = (VecDeque::new(), VecDeque::new());
    for (id, fair) in ids().zip(fair) {
        let has = plan.sms(id).len();
        if has > fair {
            takers.push_back((id, has - fair));
        } else if has < fair {
            givers.push_back((id, fair - has));
        }
    }
    let mut exchanged = Vec::new();
    while let (Some((taker, more)), Some((giver, fewer))) = (takers.front_mut(), givers.front_mut())
    {
        let sms = (*more).min(*fewer);
        exchanged.push((*taker, *giver, sms));
        (*more, *fewer) = (*more - sms, *fewer - sms);
        if *more == 0 {
            takers.pop_front();
        }
        if givers.front().is_some_and(|(_, fewer)| *fewer == 0) {
            givers.pop_front();
        }
    }
    exchanged
}

fn has(sample: &Sample, priority: Priority) -> bool {
    sample.applications.iter().any(|a| a.entitlement.priority == priority)
}

/// The bounds by minimum, maximum and weight, then those by priority.
fn bounds(sample: &Sample) -> Vec<Bounds> {
    let total = sample.sms.len();
    let all: Vec<Entitlement> = sample.applications.iter().map(|a| a.entitlement).collect();
    let mut bounds = by_terms(total, &all);
    if !has(sample, Priority::Latency) {
        return bounds;
    }
    // Whoever has SMs now has no influence: bounds that follow trials would end them.
    let nothing = |a: &ApplicationSample| (a.application, SmSet::EMPTY);
    let holders: Vec<_> = sample.applications.iter().map(nothing).collect();
    let fair = fair_counts(total, &holders, &bounds);
    let is = |at: usize, priority| all[at].priority == priority;
    // What `normal` applications keep, and `batch` applications cannot leave.
    for (at, bounds) in bounds.iter_mut().enumerate() {
        if is(at, Priority::Normal) {
            bounds.least = fair[at];
        }
    }
    let kept: u16 =
        (0..all.len()).filter(|&at| !is(at, Priority::Latency)).map(|at| bounds[at].least).sum();
    let urgent: Vec<usize> = (0..all.len()).filter(|&at| is(at, Priority::Latency)).collect();
    let wanted: Vec<Bounds> = urgent
        .iter()
        .map(|&at| {
            let Bounds { least, most, weight } = bounds[at];
            let need = all[at].need.unwrap_or(most).max(least).max(1);
            Bounds { least, most: most.min(need), weight }
        })
        .collect();
    let theirs: Vec<_> = urgent.iter().map(|&at| holders[at]).collect();
    let given = fair_counts(total.saturating_sub(kept), &theirs, &wanted);
    for (&at, given) in urgent.iter().zip(given) {
        (bounds[at].least, bounds[at].most) = (given, given);
    }
    // What nobody else can use is of use to them.
    let most = bounds.iter().map(|bounds| u32::from(bounds.most)).sum::<u32>();
    if most < u32::from(total) {
        for &at in &urgent {
            bounds[at].most = all[at].max.max(bounds[at].least);
        }
    }
    bounds
}

/// The bounds by minimum, maximum and weight. The least numbers fit into `total`.
fn by_terms(total: u16, all: &[Entitlement]) -> Vec<Bounds> {
    let weighs = |entitlement: &Entitlement| u16::from(entitlement.weight.get() > 0);
    // One SM for each where there are enough, and minima from what is left then.
    let each: u16 = all.iter().map(weighs).fold(0, u16::saturating_add);
    let mut left = total.saturating_sub(each);
    let mut bounds = vec![Bounds::default(); all.len()];
    let mut order: Vec<usize> = (0..all.len()).collect();
    order.sort_by_key(|&at| !all[at].reserved);
    for at in order {
        let entitlement = &all[at];
        let own = weighs(entitlement);
        let more = entitlement.min.saturating_sub(own).min(left);
        left -= more;
        let least = if each <= total { own + more } else { more };
        let (most, weight) = (entitlement.max.max(least), entitlement.weight.get());
        bounds[at] = Bounds { least, most, weight };
    }
    bounds
}

#[cfg(test)]
mod tests {
    use super::*;
    use partita_model::{Cause, SmAmount, Terms};
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    fn entitled(min: u16, max: u16, weight: i64, priority: Priority) -> Entitlement {
        let terms = Terms {
            min: Some(SmAmount::Sms(min)),
            max: Some(SmAmount::Sms(max)),
            weight: Some(Weight::try_from(weight).unwrap()),
            priority: Some(priority),
            ..Terms::default()
        };
        Entitlement::of(&terms, 999)
    }

    fn sample(sms: u16, of: &[Entitlement]) -> Sample {
        let application = |(id, &entitlement): (u32, &Entitlement)| ApplicationSample {
            entitlement,
            ..ApplicationSample::unseen(id)
        };
        Sample {
            now: Nanos(0),
            cause: Cause::Membership,
            interval: None,
            sms: SmSet::range(0, sms),
            applications: (1..).zip(of).map(application).collect(),
        }
    }

    /// What each gets where a partitioner asks for `wanted`.
    fn given(sms: u16, of: &[Entitlement], wanted: &[u16]) -> Vec<u16> {
        let mut sample = sample(sms, of);
        Entitlements::bound(&mut sample);
        let ids = || sample.applications.iter().map(|a| a.application);
        let mut decision = Entitlements::decision(&sample).unwrap_or_else(|| {
            let none: Vec<_> = ids().map(|id| (id, SmSet::EMPTY)).collect();
            Decision {
                plan: allot(sample.sms, &none, wanted),
                stalled: SmSet::EMPTY,
                gated: SmSet::EMPTY,
                stage: "",
                notes: Vec::new(),
                next: None,
            }
        });
        Entitlements::keep(&sample, &mut decision);
        ids().map(|id| decision.plan.sms(id).len()).collect()
    }

    const ANY: u16 = u16::MAX;

    #[test]
    fn it_is_told_who_has_the_sms_of_whom() {
        let of = [
            entitled(0, ANY, 1, Priority::Latency),
            Entitlement::default(),
            entitled(0, ANY, 1, Priority::Batch),
            entitled(0, 1, 1, Priority::Normal),
        ];
        let mut sample = sample(24, &of);
        Entitlements::bound(&mut sample);
        let holders: Vec<_> = (1..=4).map(|id| (ApplicationId(id), SmSet::EMPTY)).collect();
        let plan = allot(sample.sms, &holders, &[14, 8, 1, 1]);
        let told: Vec<_> = notes(&sample, &plan)
            .into_iter()
            .map(|note| match note {
                Note::Entitled { application, takes, leaves, .. } => {
                    let list = |parts: Vec<SmsOf>| -> Vec<(u32, u16)> {
                        parts.iter().map(|part| (part.application.0, part.sms)).collect()
                    };
                    (application.0, list(takes), list(leaves))
                }
                other => panic!("{other:?}"),
            })
            .collect();
        let expected = [
            (1, vec![(3, 5), (4, 3)], vec![]),
            (3, vec![], vec![(1, 5)]),
            (4, vec![], vec![(1, 3), (2, 2)]),
        ];
        assert_eq!(told, expected);
    }

    #[test]
    fn minimum_maximum_and_weight() {
        let neutral = Entitlement::default();
        let (normal, batch) = (Priority::Normal, Priority::Batch);
        let at_least = |min| entitled(min, ANY, 1, normal);
        let at_most = |max| entitled(0, max, 1, normal);
        assert_eq!(given(24, &[at_least(16), neutral], &[12, 12]), [16, 8]);
        assert_eq!(given(24, &[at_most(6), neutral], &[12, 12]), [6, 18]);
        assert_eq!(given(24, &[at_most(6)], &[24]), [6], "also where the rest is idle");
        assert_eq!(given(24, &[at_most(6), at_most(4)], &[12, 12]), [6, 4]);
        // Minima that do not fit: the first goes first, and everybody has an SM.
        assert_eq!(given(24, &[at_least(20), at_least(20), neutral], &[8, 8, 8]), [20, 3, 1]);
        assert_eq!(given(2, &[at_least(2), at_least(2), neutral], &[1, 1, 0]), [1, 1, 0]);
        let reserved = Entitlement { reserved: true, ..at_least(20) };
        assert_eq!(given(24, &[at_least(20), reserved, neutral], &[8, 8, 8]), [3, 20, 1]);
        // Without an application that is urgent `batch` means nothing.
        assert_eq!(given(24, &[entitled(0, ANY, 1, batch), neutral], &[12, 12]), [12, 12]);
    }

    #[test]
    fn batch_leaves_its_sms_to_latency_and_normal_does_not() {
        let neutral = Entitlement::default();
        let urgent = |need| Entitlement { need, ..entitled(0, ANY, 1, Priority::Latency) };
        let batch = |min| entitled(min, ANY, 1, Priority::Batch);
        assert_eq!(given(24, &[urgent(None), batch(0)], &[12, 12]), [23, 1]);
        assert_eq!(given(24, &[urgent(None), batch(5)], &[12, 12]), [19, 5]);
        assert_eq!(given(24, &[urgent(Some(9)), batch(0)], &[12, 12]), [9, 15]);
        assert_eq!(given(24, &[urgent(Some(0)), batch(0)], &[12, 12]), [1, 23]);
        assert_eq!(given(24, &[urgent(None), neutral], &[12, 12]), [12, 12]);
        assert_eq!(given(24, &[urgent(None), neutral, batch(0)], &[8, 8, 8]), [15, 8, 1]);
        // What it does not need goes to everybody.
        assert_eq!(given(24, &[urgent(Some(4)), neutral, batch(0)], &[8, 8, 8])[0], 4);
        assert_eq!(given(24, &[urgent(None), urgent(None), batch(0)], &[8, 8, 8]), [12, 11, 1]);
        // SMs that nobody else may use stay of use.
        assert_eq!(given(24, &[urgent(Some(4))], &[24]), [24]);
        let bounded = entitled(0, 6, 1, Priority::Batch);
        assert_eq!(given(24, &[urgent(Some(4)), bounded], &[12, 12]), [18, 6]);
    }

    #[test]
    fn whoever_always_runs_takes_no_turns() {
        let mut entitlements = Entitlements::default();
        let of = [entitled(2, ANY, 1, Priority::Normal), Entitlement::default()];
        let all: Vec<Entitlement> = of.into_iter().chain([Entitlement::default(); 3]).collect();
        let mut turns = BTreeMap::<ApplicationId, u32>::new();
        let mut now = 0;
        for _ in 0..40 {
            let sample = Sample { now: Nanos(now), ..sample(4, &all) };
            // The selector had it wait.
            let mut selected = Selected {
                together: (2..=5).map(ApplicationId).collect(),
                notes: vec![Note::Waits { application: ApplicationId(1) }],
                ..Selected::default()
            };
            entitlements.admit(&sample, &mut selected);
            assert_eq!(selected.together.len(), 3);
            assert!(selected.together.contains(&ApplicationId(1)));
            assert!(!selected.notes.contains(&Note::Waits { application: ApplicationId(1) }));
            selected.together.iter().for_each(|id| *turns.entry(*id).or_default() += 1);
            now = entitlements.again_at().unwrap().0;
        }
        assert_eq!(turns.remove(&ApplicationId(1)), Some(40));
        assert!(turns.values().all(|turns| *turns == 20), "{turns:?}");
    }

    #[test]
    fn as_many_minima_as_sms_take_no_turns() {
        let minimum = entitled(1, ANY, 1, Priority::Normal);
        let admitted = |of: &[Entitlement]| {
            let mut selected = Selected::default();
            Entitlements::default().admit(&sample(4, of), &mut selected);
            selected.together.len()
        };
        assert_eq!(admitted(&[minimum; 4]), 4);
        assert_eq!(given(4, &[minimum; 4], &[1; 4]), [1; 4]);
        assert_eq!(admitted(&[minimum; 5]), 4, "turns");
    }

    fn any_entitlement() -> impl Strategy<Value = Entitlement> {
        let priority =
            prop_oneof![Just(Priority::Batch), Just(Priority::Normal), Just(Priority::Latency)];
        (0_u16..40, 1_u16..200, 0_i64..9, priority, prop::option::of(0_u16..200)).prop_map(
            |(min, max, weight, priority, need)| Entitlement {
                need,
                ..entitled(min, max, weight, priority)
            },
        )
    }

    proptest! {
        #[test]
        fn minima_hold_where_they_can_and_maxima_always(
            sms in 1_u16..200,
            of in prop::collection::vec(any_entitlement(), 1..17),
            wanted in prop::collection::vec(0_u16..200, 17),
        ) {
            let counts = given(sms, &of, &wanted[..of.len()]);
            prop_assert!(counts.iter().sum::<u16>() <= sms);
            // A minimum is an SM at least, which everybody of positive weight has.
            let owed = |e: &Entitlement| e.min.max(u16::from(e.weight.get() > 0));
            let fits = of.iter().map(owed).sum::<u16>() <= sms;
            for (gets, entitlement) in counts.iter().zip(&of) {
                prop_assert!(*gets <= entitlement.max);
                prop_assert!(!fits || *gets >= owed(entitlement), "{:?}", counts);
            }
        }
    }
}

#[cfg(test)]
#[path = "entitlements_tests.rs"]
mod admission_tests;
