//! Groups that take turns: an adviser says who runs with whom, and every group gets its time.
//!
//! - **Unknown applications** run alone first, until their kernels were counted and their speed
//!   alone was measured, or for [`MEETING`] at most. Those of which nothing can be counted are
//!   taken as they are.
//! - **Turns.** A group runs for [`TURN`] for each of its members. Next comes the group with the
//!   member that was served least; who comes begins with what the least served has had. So a
//!   member waits for [`TURN`] × the number of others at most, besides meetings.
//! - **Nobody waits for nobody.** A group without work is no group; a single group has no turns. A
//!   group that works on no CTA for [`PATIENCE`] yields its turn: its program pauses, or its launch
//!   waits for one of another application. It comes again when another group has worked.
//! - **Disputed groups** are measured while they run, and the adviser learns their speeds.
//! - **Shared SMs.** Members of a group share each SM where the adviser names their parts. An
//!   application with a kernel of which no CTA fits into its part shares none from then on: it is a
//!   group of its own where the adviser would let it share.

use super::{Selected, Selector};
use crate::models::float;
use crate::{Adviser, Awaits, Candidate, Group, IntervalRequest, Sample, Slowdowns};
use partita_model::{ApplicationId, Cause, Cycles, Nanos, Note, SmPart};
use std::collections::{BTreeMap, BTreeSet};

/// A group's turn, for each of its members.
const TURN: Nanos = Nanos(2_000_000);
/// The longest time for which an unknown application runs alone, to be known.
const MEETING: Nanos = Nanos(20_000_000);
/// A group that works on no CTA for so long yields its turn.
const PATIENCE: Nanos = Nanos(100_000);
/// How often it is looked at those that run while others wait.
const LOOK: Nanos = Nanos(100_000);
/// How a disputed group is measured.
const MEASURE: IntervalRequest = IntervalRequest {
    warm_up: Cycles(20_000),
    at_least: Cycles(100_000),
    ctas: 1,
    at_most: Cycles(2_000_000),
    awaits: Awaits::Everybody,
    launches: true,
};
/// Applications that are remembered. Beyond that those that came first are forgotten.
const MOST: usize = 8192;

/// What is remembered of an application.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
struct Member {
    /// The time for which it ran while others waited, a part of its group's.
    served: Nanos,
    /// It has run alone to be known.
    met: bool,
    /// A CTA of it did not fit into its part of an SM.
    cramped: bool,
}

/// The parts of SMs that applications share; empty where they share none.
type Parts = BTreeMap<ApplicationId, SmPart>;

/// Who has the GPU now.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Running {
    members: Vec<ApplicationId>,
    parts: Parts,
    /// It is alone to be known.
    is_meeting: bool,
    since: Nanos,
    until: Nanos,
    /// When it is looked at them again.
    look: Nanos,
}

/// The selector of groups that an adviser makes.
pub struct Turns<A> {
    adviser: A,
    members: BTreeMap<ApplicationId, Member>,
    /// Those that had work at the last look.
    present: BTreeSet<ApplicationId>,
    /// While some wait: who does not.
    running: Option<Running>,
    /// Those who have yielded their turn since another group worked.
    yielded: BTreeSet<ApplicationId>,
    /// Whether those that run now are to be measured.
    measures: bool,
    clock_khz: u32,
}

impl<A: Adviser> Turns<A> {
    /// Turns of this adviser's groups, where SMs have this clock.
    #[must_use]
    pub fn new(adviser: A, clock_khz: u32) -> Self {
        Turns {
            adviser,
            members: BTreeMap::new(),
            present: BTreeSet::new(),
            running: None,
            yielded: BTreeSet::new(),
            measures: false,
            clock_khz,
        }
    }

    /// Remembers who is there. Who comes, or comes back, has been served as much as the least
    /// served of the others: nobody has a claim to the time for which it was away.
    fn remember(&mut self, sample: &Sample, candidates: &[Candidate]) {
        let stayed = candidates.iter().filter(|c| self.present.contains(&c.application));
        let stayed = stayed.filter_map(|c| self.members.get(&c.application));
        let served = stayed.map(|member| member.served).min().unwrap_or_default();
        for candidate in candidates {
            let member = self.members.entry(candidate.application).or_default();
            if !self.present.contains(&candidate.application) {
                member.served = member.served.max(served);
            }
            member.met |= is_known(candidate);
        }
        for application in sample.applications.iter().filter(|a| a.cramped) {
            self.members.entry(application.application).or_default().cramped = true;
        }
        self.present = candidates.iter().map(|candidate| candidate.application).collect();
        while self.members.len() > MOST {
            self.members.pop_first();
        }
    }

    /// Ends the turn of those that run, and charges them.
    fn end_turn(&mut self, now: Nanos) {
        let Some(running) = self.running.take() else { return };
        let count = u64::try_from(running.members.len()).unwrap_or(1).max(1);
        let part = Nanos(now.saturating_sub(running.since).0 / count);
        for id in &running.members {
            if let Some(member) = self.members.get_mut(id) {
                member.served = Nanos(member.served.0.saturating_add(part.0));
                member.met |= running.is_meeting && now >= running.until;
            }
        }
    }

    fn begin_turn(&mut self, now: Nanos, group: Group, is_meeting: bool) {
        let parts = parts(&group);
        let members = group.members;
        let count = u64::try_from(members.len()).unwrap_or(1);
        let length = if is_meeting { MEETING } else { Nanos(TURN.0.saturating_mul(count)) };
        let until = after(now, length);
        self.running = Some(Running { members, parts, is_meeting, since: now, until, look: now });
    }

    fn is_cramped(&self, id: ApplicationId) -> bool {
        self.members.get(&id).is_some_and(|member| member.cramped)
    }

    /// The adviser's groups, without those that cannot share SMs as they should.
    fn groups(&self, candidates: &[Candidate]) -> Vec<Group> {
        let apart = |group: Group| match parts(&group).keys().any(|id| self.is_cramped(*id)) {
            true => group.members.into_iter().map(Group::single).collect(),
            false => vec![group],
        };
        self.adviser.advise(candidates).into_iter().flat_map(apart).collect()
    }

    /// The group whose turn comes next: the one with the least served member.
    fn next<'a>(&self, groups: &'a [Group]) -> Option<&'a Group> {
        let served = |group: &Group| {
            let of = |id: &ApplicationId| self.members.get(id).map_or(Nanos(0), |m| m.served);
            group.members.iter().map(|id| (of(id), *id)).min()
        };
        let may = |group: &&Group| !group.members.iter().all(|id| self.yielded.contains(id));
        let eager = groups.iter().filter(may).min_by_key(|group| served(group));
        eager.or_else(|| groups.iter().min_by_key(|group| served(group)))
    }

    /// Whether those that run work on nothing. Who does ends the wait of those who have yielded.
    fn is_at_rest(&mut self, sample: &Sample) -> bool {
        let Some(Running { members, since, .. }) = &self.running else { return false };
        let works = |id: &ApplicationId| sample.find(*id).is_some_and(|a| a.rested < PATIENCE);
        let begun = sample.now.saturating_sub(*since) >= PATIENCE;
        let at_rest = begun && !members.iter().any(works);
        if at_rest {
            self.yielded.extend(members.iter().copied());
        } else if begun {
            self.yielded.clear();
        }
        at_rest
    }

    /// What those that run together did, where they were measured: speeds as parts of the speeds
    /// alone.
    fn speeds(&self, sample: &Sample, members: &[ApplicationId]) -> Option<Vec<f64>> {
        let speeds = members.iter().map(|&id| {
            let application = sample.find(id)?;
            let speed = application.speed()?;
            let nanos = float(speed.busy_cycles) * 1e6 / f64::from(self.clock_khz.max(1));
            let alone = application.character?.alone?;
            (speed.progress.ctas > 0).then(|| float(speed.progress.ctas) * alone / nanos)
        });
        speeds.collect()
    }

    /// Chooses who runs.
    fn choose(
        &mut self,
        sample: &Sample,
        candidates: &[Candidate],
    ) -> Option<(Vec<ApplicationId>, Parts)> {
        let now = sample.now;
        if let [only] = candidates {
            self.end_turn(now);
            return Some((vec![only.application], Parts::new()));
        }
        let at_rest = self.is_at_rest(sample);
        let is_there = |id: &ApplicationId| candidates.iter().any(|c| c.application == *id);
        let met = |id: &ApplicationId| self.members.get(id).is_some_and(|member| member.met);
        if let Some(Running { members, is_meeting: true, until, .. }) = &self.running {
            let goes_on = now < *until && members.iter().all(|id| is_there(id) && !met(id));
            if goes_on && !at_rest {
                return Some((members.clone(), Parts::new()));
            }
            self.end_turn(now);
        }
        let met = |id: &ApplicationId| self.members.get(id).is_some_and(|member| member.met);
        let can_be_known =
            |id: ApplicationId| sample.find(id).is_some_and(|application| application.profiled);
        let unknown = candidates.iter().map(|candidate| candidate.application);
        let strangers = unknown.filter(|id| !met(id) && !self.yielded.contains(id));
        let stranger = { strangers }.find(|id| can_be_known(*id));
        if let Some(stranger) = stranger {
            self.end_turn(now);
            self.begin_turn(now, Group::single(stranger), true);
            return Some((vec![stranger], Parts::new()));
        }
        let groups = self.groups(candidates);
        if groups.len() <= 1 {
            self.end_turn(now);
            return groups.into_iter().next().map(|group| {
                let parts = parts(&group);
                (group.members, parts)
            });
        }
        let goes_on = self.running.as_ref().is_some_and(|running| {
            now < running.until
                && !at_rest
                && groups.iter().any(|group| group.members == running.members)
        });
        if !goes_on {
            self.end_turn(now);
            let next = self.next(&groups)?.clone();
            self.begin_turn(now, next, false);
        }
        self.running.as_ref().map(|running| (running.members.clone(), running.parts.clone()))
    }
}

impl<A: Adviser> Selector for Turns<A> {
    fn name(&self) -> &'static str {
        self.adviser.name()
    }

    fn step(&mut self, sample: &Sample) -> Selected {
        let candidates: Vec<Candidate> = sample
            .applications
            .iter()
            .map(|a| Candidate { application: a.application, character: a.character })
            .collect();
        self.remember(sample, &candidates);
        if sample.cause == Cause::Interval && self.measures {
            let ran = sample.applications.iter().filter(|a| !a.partition.is_empty());
            let ran: Vec<ApplicationId> = ran.map(|a| a.application).collect();
            if let Some(speeds) = self.speeds(sample, &ran) {
                self.adviser.learn(&those(&candidates, &ran), &speeds);
            }
        }
        let (together, parts) = self.choose(sample, &candidates).unwrap_or_default();
        if let Some(running) = &mut self.running {
            running.look = after(sample.now, LOOK);
        }
        self.measures = self.adviser.is_disputed(&those(&candidates, &together));
        let is_meeting = self.running.as_ref().is_some_and(|running| running.is_meeting);
        let mut notes = if is_meeting {
            together.iter().map(|&application| Note::Met { application }).collect()
        } else {
            self.adviser.notes(&candidates)
        };
        let waiting = candidates.iter().map(|candidate| candidate.application);
        let waiting = waiting.filter(|id| !together.contains(id));
        notes.extend(waiting.map(|application| Note::Waits { application }));
        let cramped = candidates.iter().map(|candidate| candidate.application);
        let cramped = cramped.filter(|id| self.is_cramped(*id));
        notes.extend(cramped.map(|application| Note::Cramped { application }));
        Selected { together: together.into_iter().collect(), parts, notes }
    }

    fn again_at(&self) -> Option<Nanos> {
        let running = self.running.as_ref()?;
        Some(running.until.min(running.look))
    }

    fn interval(&self) -> Option<IntervalRequest> {
        self.measures.then_some(MEASURE)
    }

    fn slowdowns(&self) -> Option<&Slowdowns> {
        self.adviser.slowdowns()
    }
}

/// The parts of SMs that the members of a group share.
fn parts(group: &Group) -> Parts {
    let parts = group.expected.as_ref().map_or(&[][..], |expected| &expected.parts);
    group.members.iter().copied().zip(parts.iter().copied()).collect()
}

/// The moment so much later; time may be absurd.
fn after(now: Nanos, time: Nanos) -> Nanos {
    Nanos(now.0.saturating_add(time.0))
}

/// Those of the candidates, in order.
fn those(candidates: &[Candidate], ids: &[ApplicationId]) -> Vec<Candidate> {
    candidates.iter().filter(|candidate| ids.contains(&candidate.application)).copied().collect()
}

fn is_known(candidate: &Candidate) -> bool {
    candidate.character.is_some_and(|character| character.alone.is_some())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{ApplicationSample, Character, Expected};
    use partita_model::{Progress, SmSet};

    /// Says that 1 and 2 go together, and 3 and 4 to see what they do.
    #[derive(Default)]
    struct Couples {
        learnt: Vec<(Vec<u32>, f64)>,
    }

    impl Adviser for Couples {
        fn name(&self) -> &'static str {
            "couples"
        }

        fn advise(&self, candidates: &[Candidate]) -> Vec<Group> {
            let mut groups: Vec<Group> = Vec::new();
            for candidate in candidates {
                let id = candidate.application;
                let mate =
                    |group: &Group| group.members[0].0.div_ceil(2) == id.0.div_ceil(2) && id.0 <= 4;
                match groups.iter_mut().find(|group| mate(group)) {
                    Some(group) => group.members.push(id),
                    None => groups.push(Group { members: vec![id], expected: None }),
                }
            }
            groups
        }

        fn is_disputed(&self, members: &[Candidate]) -> bool {
            let ids: Vec<u32> = members.iter().map(|member| member.application.0).collect();
            ids == [3, 4] && self.learnt.is_empty()
        }

        fn learn(&mut self, members: &[Candidate], speeds: &[f64]) {
            let ids = members.iter().map(|member| member.application.0).collect();
            self.learnt.push((ids, speeds.iter().sum()));
        }
    }

    fn application(id: u32, alone: Option<f64>) -> ApplicationSample {
        ApplicationSample {
            profiled: true,
            character: alone.map(|nanos| Character { alone: Some(nanos), ..Character::default() }),
            ..ApplicationSample::unseen(id)
        }
    }

    fn sample(now: u64, applications: Vec<ApplicationSample>) -> Sample {
        Sample {
            now: Nanos(now),
            cause: Cause::Membership,
            interval: None,
            sms: SmSet::range(0, 8),
            applications,
        }
    }

    fn known(now: u64, ids: &[u32]) -> Sample {
        sample(now, ids.iter().map(|&id| application(id, Some(10.0))).collect())
    }

    fn turns() -> Turns<Couples> {
        Turns::new(Couples::default(), 1_000_000)
    }

    fn end<A>(turns: &Turns<A>) -> u64 {
        turns.running.as_ref().unwrap().until.0
    }

    fn ids(selected: &Selected) -> Vec<u32> {
        selected.together.iter().map(|id| id.0).collect()
    }

    #[test]
    fn a_single_group_takes_no_turns() {
        let mut turns = turns();
        assert_eq!(ids(&turns.step(&known(0, &[1, 2]))), [1, 2]);
        assert_eq!(turns.again_at(), None);
        assert_eq!(ids(&turns.step(&known(9, &[2]))), [2]);
        assert!(ids(&turns.step(&known(10, &[]))).is_empty());
        assert_eq!(turns.again_at(), None);
    }

    #[test]
    fn every_application_is_served_as_long_as_the_others() {
        let mut turns = turns();
        let (mut now, mut served) = (0, BTreeMap::<u32, u64>::new());
        let mut waits = BTreeMap::<u32, u64>::new();
        let all = [1, 2, 5, 6, 7];
        for _ in 0..400 {
            let together = ids(&turns.step(&known(now, &all)));
            let until = end(&turns);
            for id in all {
                let wait = waits.entry(id).or_default();
                if together.contains(&id) {
                    // In a pair each has half of the GPU.
                    *served.entry(id).or_default() += (until - now) / together.len() as u64;
                    *wait = 0;
                } else {
                    *wait += until - now;
                    assert!(*wait <= 4 * TURN.0, "{id} waits for {wait} ns");
                }
            }
            now = until;
        }
        let (least, most) = (served.values().min().unwrap(), served.values().max().unwrap());
        assert!(served.len() == 5 && most - least <= TURN.0, "{served:?}");
    }

    #[test]
    fn a_newcomer_is_served_like_the_others_and_who_was_away_too() {
        let mut turns = turns();
        let mut now = 0;
        for _ in 0..100 {
            turns.step(&known(now, &[5, 6]));
            now = end(&turns);
        }
        let mut served = BTreeMap::<u32, u64>::new();
        for round in 0..90 {
            let here: &[u32] = if round < 40 { &[5, 7] } else { &[5, 6, 7] };
            let together = ids(&turns.step(&known(now, here)));
            let until = end(&turns);
            *served.entry(together[0]).or_default() += until - now;
            now = until;
        }
        assert!(served[&5].abs_diff(served[&7]) <= 2 * TURN.0, "{served:?}");
        assert!(served[&6].abs_diff(50 * TURN.0 / 3) <= 2 * TURN.0, "{served:?}");
    }

    #[test]
    fn a_stranger_runs_alone_until_it_is_known() {
        let mut turns = turns();
        let with = |now, alone| sample(now, vec![application(1, Some(1.0)), application(2, alone)]);
        let selected = turns.step(&with(0, None));
        assert_eq!(ids(&selected), [2]);
        assert_eq!(selected.notes[0], Note::Met { application: ApplicationId(2) });
        assert_eq!(selected.notes[1], Note::Waits { application: ApplicationId(1) });
        assert_eq!(turns.again_at(), Some(LOOK));
        assert_eq!(ids(&turns.step(&with(LOOK.0, None))), [2]);
        assert_eq!(ids(&turns.step(&with(2 * LOOK.0, Some(5.0)))), [1, 2]);
        // It never runs alone for longer, and only once.
        let with = |now, alone| sample(now, vec![application(5, Some(1.0)), application(6, alone)]);
        let mut turns = Turns::new(Couples::default(), 1_000_000);
        let mut now = 0;
        while now < MEETING.0 {
            assert_eq!(ids(&turns.step(&with(now, None))), [6]);
            now = turns.again_at().unwrap().0;
        }
        // The other is given as much.
        for turn in 0..10 {
            assert_eq!(ids(&turns.step(&with(now, None))), [5], "turn {turn}");
            now = end(&turns);
        }
        assert_eq!(end(&turns), now);
    }

    #[test]
    fn who_works_on_nothing_yields() {
        let mut turns = turns();
        // 5 waits for something that 6 does.
        let seen = |now, five_works: bool| {
            let rested = if five_works { Nanos(0) } else { PATIENCE };
            let five = ApplicationSample { rested, ..application(5, Some(10.0)) };
            sample(now, vec![five, application(6, Some(10.0))])
        };
        assert_eq!(ids(&turns.step(&seen(0, false))), [5]);
        assert_eq!(turns.again_at(), Some(LOOK));
        assert_eq!(ids(&turns.step(&seen(PATIENCE.0 - 1, false))), [5], "it may begin to work yet");
        let mut now = PATIENCE.0;
        assert_eq!(ids(&turns.step(&seen(now, false))), [6], "nobody is ahead of nobody");
        let begun = now;
        while now < begun + TURN.0 {
            assert_eq!(ids(&turns.step(&seen(now, false))), [6]);
            now += LOOK.0;
        }
        assert_eq!(ids(&turns.step(&seen(now, false))), [5], "it comes again");
        assert_eq!(ids(&turns.step(&seen(now + LOOK.0, true))), [5]);
        // Where nobody works, everybody has a turn all the same.
        let idle = |now| {
            let rests = |id| ApplicationSample { rested: PATIENCE, ..application(id, Some(10.0)) };
            sample(now, vec![rests(5), rests(6), rests(7)])
        };
        let mut seen = BTreeSet::new();
        for look in 0..12 {
            seen.extend(ids(&turns.step(&idle(now + (2 + look) * LOOK.0))));
        }
        assert_eq!(seen, BTreeSet::from([5, 6, 7]));
    }

    #[test]
    fn who_cannot_be_known_is_not_waited_for() {
        let mut turns = turns();
        let unknown = ApplicationSample { profiled: false, ..application(2, None) };
        let sample = sample(0, vec![application(1, Some(1.0)), unknown]);
        assert_eq!(ids(&turns.step(&sample)), [1, 2]);
    }

    #[test]
    fn what_disputed_groups_do_is_learnt() {
        let mut turns = turns();
        let pair = |now, cause, ctas, partition: SmSet| {
            let ran = |id| ApplicationSample {
                progress: Progress { ctas, traffic: None },
                span: Cycles(1000),
                busy: Cycles(1000),
                partition,
                ..application(id, Some(10.0))
            };
            Sample { cause, ..sample(now, vec![ran(3), ran(4)]) }
        };
        turns.step(&pair(0, Cause::Membership, 0, SmSet::EMPTY));
        assert_eq!(turns.interval(), Some(MEASURE));
        // 60 and 60 CTAs in 1,000 ns, of 100 that each completes alone.
        turns.step(&pair(9, Cause::Interval, 60, SmSet::range(0, 4)));
        assert_eq!(turns.interval(), None);
        let [(members, throughput)] = &turns.adviser.learnt[..] else { panic!("one") };
        assert_eq!(members, &[3, 4]);
        assert!((throughput - 1.2).abs() < 1e-9, "{throughput}");
    }

    /// Says that 1 and 2 share SMs, and that 3 runs alone.
    struct Sharers;

    impl Adviser for Sharers {
        fn name(&self) -> &'static str {
            "sharers"
        }

        fn advise(&self, candidates: &[Candidate]) -> Vec<Group> {
            let ids: Vec<ApplicationId> = candidates.iter().map(|c| c.application).collect();
            let (pair, others): (Vec<_>, Vec<_>) = ids.into_iter().partition(|id| id.0 <= 2);
            let parts = [SmPart::new(1, 4), SmPart::new(3, 4)].map(Option::unwrap).to_vec();
            let expected = Some(Expected { parts, ..Expected::alone() });
            let together = match pair.len() {
                2 => vec![Group { members: pair, expected }],
                _ => pair.into_iter().map(Group::single).collect(),
            };
            together.into_iter().chain(others.into_iter().map(Group::single)).collect()
        }
    }

    #[test]
    fn members_share_sms_until_a_cta_of_one_does_not_fit() {
        let mut turns = Turns::new(Sharers, 1_000_000);
        let parts = |selected: &Selected| -> Vec<String> {
            selected.parts.iter().map(|(id, part)| format!("{} {part}", id.0)).collect()
        };
        let selected = turns.step(&known(0, &[1, 2]));
        assert_eq!(parts(&selected), ["1 1/4", "2 3/4"], "a single group has no turns");
        // With a third they take turns, and share in theirs.
        let mut seen = BTreeSet::new();
        let mut now = 1;
        for _ in 0..4 {
            let selected = turns.step(&known(now, &[1, 2, 3]));
            seen.insert((ids(&selected), parts(&selected).len()));
            now = end(&turns);
        }
        assert_eq!(seen, BTreeSet::from([(vec![1, 2], 2), (vec![3], 0)]));
        let cramped = |id| ApplicationSample { cramped: id == 2, ..application(id, Some(10.0)) };
        let selected = turns.step(&sample(now, vec![cramped(1), cramped(2)]));
        assert_eq!((ids(&selected).len(), parts(&selected).len()), (1, 0));
        assert!(selected.notes.contains(&Note::Cramped { application: ApplicationId(2) }));
        // It stays so.
        let selected = turns.step(&known(now + 1, &[1, 2]));
        assert_eq!((ids(&selected).len(), parts(&selected).len()), (1, 0));
    }

    #[test]
    fn so_many_are_remembered() {
        let mut turns = turns();
        let of = |id| Candidate { application: ApplicationId(id), character: None };
        let candidates: Vec<Candidate> = (0..8_195).map(of).collect();
        turns.remember(&known(0, &[]), &candidates);
        assert_eq!(turns.members.len(), 8_192);
        assert!(!turns.members.contains_key(&ApplicationId(2)), "those that came first go");
    }

    #[test]
    fn only_a_meeting_to_the_end_makes_known() {
        let with = |now, six: ApplicationSample| sample(now, vec![application(5, Some(1.0)), six]);
        // What cannot be known takes its turns; once it can be, it is met.
        let mut turns = turns();
        let unprofiled = ApplicationSample { profiled: false, ..application(6, None) };
        let mut now = 0;
        for _ in 0..4 {
            turns.step(&with(now, unprofiled.clone()));
            now = end(&turns);
        }
        let selected = turns.step(&with(now, application(6, None)));
        assert_eq!(ids(&selected), [6]);
        assert_eq!(selected.notes[0], Note::Met { application: ApplicationId(6) });
        // It goes away before that has ended, and is met when it comes back.
        assert_eq!(ids(&turns.step(&known(now + 1, &[5, 7]))), [5]);
        assert_eq!(ids(&turns.step(&with(now + 2, application(6, None)))), [6]);
        // Known at the very end of it, it need not be met again.
        assert_eq!(ids(&turns.step(&with(end(&turns), application(6, Some(3.0))))), [5]);
    }

    /// No CTA in an interval is no speed, and an interval of the partitioner is no dispute.
    #[test]
    fn what_says_nothing_is_not_learnt() {
        let pair = |now, cause, ctas| {
            let ran = |id| ApplicationSample {
                progress: Progress { ctas, traffic: None },
                span: Cycles(1000),
                busy: Cycles(1000),
                partition: SmSet::range(0, 4),
                ..application(id, Some(10.0))
            };
            Sample { cause, ..sample(now, vec![ran(3), ran(4)]) }
        };
        let mut turns = turns();
        for (now, cause, ctas, learnt) in [
            (0, Cause::Membership, 60, 0),
            (1, Cause::Interval, 0, 0),
            (2, Cause::Membership, 60, 0),
            (3, Cause::Interval, 60, 1),
            (4, Cause::Interval, 60, 1),
        ] {
            turns.step(&pair(now, cause, ctas));
            assert_eq!(turns.adviser.learnt.len(), learnt, "at {now}");
        }
    }
}
