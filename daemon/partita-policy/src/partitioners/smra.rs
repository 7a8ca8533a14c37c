//! SMRA (Punyala §3.2.4, algorithm 1): SMs move from applications that make little of them.
//!
//! ```text
//! even split, measured ──► scores differ ──► n_r SMs move, measured ──► throughput grew: again
//!                                │                    └──► throughput fell: undone ──┐
//!                                └──► all alike ──────────────► watch ◄──────────────┘
//! ```
//!
//! A score says that an application makes little of its SMs: 1 for a low IPC, 2 for a high
//! bandwidth, 3 for both. After every interval SMs go from the highest score to the lowest. A move
//! after which throughput is lower is undone. An application at R_min gives no more SMs.
//!
//! # Parameters that the paper leaves out
//!
//! | parameter | value | reason |
//! | --- | --- | --- |
//! | T_C | an interval of 20,000 cycles or more, after 20,000 cycles of warm-up | CD-search's intervals (§4.1), which tell speeds to about 3 % |
//! | IPC_thr | 0.2 of the issue slots of the application's SMs | ε of §3.2.1 as its text has it |
//! | BW_thr | 0.3 of DRAM's peak | β of §3.2.1 as its text has it |
//! | n_r | an eighth of the even share | the speed of who scales with SMs changes by 12 %, which an interval tells from its noise |
//! | R_min | a quarter of the even share | nobody falls below a quarter of its even speed by moves alone |
//!
//! # What differs from the paper
//!
//! - The paper's throughput adds instructions. Here it adds speeds, each as a part of the speed
//!   alone, because instructions of two programs do not compare.
//! - A move that was undone is not tried again until the scores or the speeds have changed, and
//!   pauses before that double. As printed it would be tried in every second interval.
//! - A group that comes again goes on where it was.

use crate::measuring::{Clock, Speed};
use crate::models::{float, taken};
use crate::partitioners::even::even_plan;
use crate::plans::allot;
use crate::{ApplicationSample, Awaits, Decision, IntervalRequest, Partitioner, Plan, Sample};
use partita_model::{ApplicationId, Calibration, Cause, Cycles, EvenReason, Nanos, Note, SmSet};
use std::collections::BTreeMap;

/// What can be set about SMRA. The table above gives the reasons of the defaults.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct SmraSettings {
    /// IPC_thr: a lower part of the issue slots of its SMs is a low IPC.
    pub low_issue: f64,
    /// BW_thr: a greater part of DRAM's peak is a high bandwidth.
    pub high_bandwidth: f64,
    /// n_r as a part of the even share; one SM at least.
    pub step: f64,
    /// R_min as a part of the even share; one SM at least.
    pub least: f64,
    /// T_C: the intervals while SMs move.
    pub interval: IntervalRequest,
    /// The intervals of watching.
    pub watch: IntervalRequest,
    /// The change of throughput that ends watching, as a part: more than two intervals' noise.
    pub tolerance: f64,
    /// The pause between two searches; it doubles each time.
    pub pause: Cycles,
    /// The longest such pause: some seconds.
    pub longest_pause: Cycles,
}

impl Default for SmraSettings {
    fn default() -> Self {
        let interval = IntervalRequest {
            warm_up: Cycles(20_000),
            at_least: Cycles(20_000),
            ctas: 64,
            at_most: Cycles(400_000),
            awaits: Awaits::Everybody,
            launches: false,
        };
        SmraSettings {
            low_issue: 0.2,
            high_bandwidth: 0.3,
            step: 0.125,
            least: 0.25,
            interval,
            watch: IntervalRequest {
                at_least: Cycles(100_000),
                ctas: 256,
                at_most: Cycles(2_000_000),
                ..interval
            },
            tolerance: 0.1,
            pause: Cycles(2_000_000),
            longest_pause: Cycles(2_000_000_000),
        }
    }
}

/// Intervals that are measured again where one says nothing of somebody.
const PATIENCE: u8 = 3;
/// Groups that are remembered. Beyond that the group is forgotten that was away longest.
const MOST_GROUPS: usize = 64;

/// What is being measured.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Stage {
    /// Nothing: there is one application at most.
    Rest,
    /// The even split.
    Even,
    /// The plan after a move.
    Move,
    /// Whether things stay as they are.
    Watch,
}

impl Stage {
    fn name(self) -> &'static str {
        match self {
            Stage::Rest => "rest",
            Stage::Even => "profile",
            Stage::Move => "move",
            Stage::Watch => "watch",
        }
    }
}

/// SMs that go from one member to another, by place.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Transfer {
    from: usize,
    to: usize,
    sms: u16,
}

/// A group and what was found of it.
#[derive(Clone, Debug)]
struct Group {
    members: Vec<ApplicationId>,
    sms: SmSet,
    stage: Stage,
    plan: Plan,
    /// The speeds on the even split, and these as parts of the speeds alone.
    references: Vec<(Speed, f64)>,
    /// The last throughput with the plan before the present move, or with the present plan.
    throughput: f64,
    /// The move that is being measured.
    transfer: Option<Transfer>,
    /// The move that was undone.
    undone: Option<Transfer>,
    retries: u8,
    /// The next search begins no sooner.
    rests_until: Nanos,
    pause: Cycles,
    /// Its place in the order in which groups were left.
    left: u64,
}

/// The SMRA partitioner.
#[derive(Clone, Debug)]
pub struct Smra {
    settings: SmraSettings,
    hardware: Calibration,
    group: Group,
    away: BTreeMap<Vec<ApplicationId>, Group>,
    left: u64,
}

impl Smra {
    /// SMRA for a GPU with these numbers.
    #[must_use]
    pub fn new(settings: SmraSettings, hardware: Calibration) -> Self {
        let group = Group {
            members: Vec::new(),
            sms: SmSet::EMPTY,
            stage: Stage::Rest,
            plan: Plan::default(),
            references: Vec::new(),
            throughput: 0.0,
            transfer: None,
            undone: None,
            retries: 0,
            rests_until: Nanos(0),
            pause: settings.pause,
            left: 0,
        };
        Smra { settings, hardware, group, away: BTreeMap::new(), left: 0 }
    }

    /// Other applications or SMs than before: the group before is kept, this one goes on where it
    /// was, or begins.
    fn change_group(&mut self, sample: &Sample, members: Vec<ApplicationId>) -> Decision {
        let pause = self.settings.pause;
        let fresh = Group {
            members: members.clone(),
            sms: sample.sms,
            pause,
            ..Smra::new(self.settings, self.hardware).group
        };
        let known = self.away.remove(&members).filter(|group| group.sms == sample.sms);
        let is_known = known.is_some();
        let before = std::mem::replace(&mut self.group, known.unwrap_or(fresh));
        if before.members.len() > 1 {
            self.left += 1;
            self.away.insert(before.members.clone(), Group { left: self.left, ..before });
        }
        if self.away.len() > MOST_GROUPS {
            let longest = self.away.iter().min_by_key(|(_, group)| group.left);
            if let Some(members) = longest.map(|(members, _)| members.clone()) {
                self.away.remove(&members);
            }
        }
        if is_known { self.decision(Vec::new()) } else { self.begin(sample) }
    }

    /// The even split, which is measured where there are several.
    fn begin(&mut self, sample: &Sample) -> Decision {
        let (plan, notes) = even_plan(sample, EvenReason::Profiling);
        let group = &mut self.group;
        group.plan = plan;
        group.references.clear();
        (group.transfer, group.undone, group.retries) = (None, None, 0);
        group.stage = if group.members.len() > 1 { Stage::Even } else { Stage::Rest };
        self.decision(notes)
    }

    /// Takes the even split for the unit, and moves.
    fn judge_even(&mut self, sample: &Sample) -> Decision {
        let clock = f64::from(self.hardware.sm_clock_khz) / 1e6;
        let reference = |id: &ApplicationId| {
            let seen = sample.find(*id)?;
            let speed = seen.speed().filter(|speed| speed.progress.ctas > 0)?;
            let nanos = float(speed.busy_cycles) / clock;
            let alone = seen.character.and_then(|character| character.alone);
            Some((speed, alone.map(|alone| float(speed.progress.ctas) * alone / nanos)))
        };
        let all: Option<Vec<_>> = self.group.members.iter().map(reference).collect();
        let Some(all) = all else { return self.again() };
        let are_known = all.iter().all(|(_, part)| part.is_some());
        let part = |part: Option<f64>| part.filter(|_| are_known).unwrap_or(1.0);
        self.group.references = all.into_iter().map(|(speed, of)| (speed, part(of))).collect();
        self.group.throughput = self.group.references.iter().map(|(_, part)| part).sum();
        self.next_move(sample, Vec::new())
    }

    /// The sum of speeds in an interval; `None` where it says nothing of somebody.
    fn throughput(&self, sample: &Sample) -> Option<f64> {
        let speed = |(id, (reference, part)): (&ApplicationId, &(Speed, f64))| {
            Some(sample.find(*id)?.speed()?.relative_to(reference)? * part)
        };
        self.group.members.iter().zip(&self.group.references).map(speed).sum()
    }

    /// A move was measured.
    fn judge_move(&mut self, sample: &Sample) -> Decision {
        let Some(transfer) = self.group.transfer else { return self.watch(Vec::new()) };
        let Some(throughput) = self.throughput(sample) else { return self.again() };
        let Transfer { from, to, sms } = transfer;
        let (from, to) = (self.group.members[from], self.group.members[to]);
        let relative = throughput / self.group.throughput.max(f64::MIN_POSITIVE);
        let notes = vec![Note::Judged { from, to, sms, relative }];
        self.group.transfer = None;
        if relative >= 1.0 {
            self.group.throughput = throughput;
            return self.next_move(sample, notes);
        }
        let back = Transfer { from: transfer.to, to: transfer.from, sms };
        self.shift(sample, back);
        self.group.undone = Some(transfer);
        self.watch(notes)
    }

    /// Moves SMs from the highest score to the lowest, if the scores differ.
    fn next_move(&mut self, sample: &Sample, mut notes: Vec<Note>) -> Decision {
        let scored = self.scored(sample);
        notes.extend(scored.iter().map(|(_, note)| note.clone()));
        let Some(transfer) = self.transfer(&scored) else { return self.watch(notes) };
        let Transfer { from, to, sms } = transfer;
        let (from, to) = (self.group.members[from], self.group.members[to]);
        notes.push(Note::Moves { from, to, sms });
        self.shift(sample, transfer);
        self.group.transfer = Some(transfer);
        self.go_to(Stage::Move, notes)
    }

    /// The move that the scores ask for, unless it was undone before.
    fn transfer(&self, scored: &[(usize, Note)]) -> Option<Transfer> {
        let (sms, least) = self.grains();
        let score = |note: &Note| match note {
            Note::Scored { score, .. } => *score,
            _ => 0,
        };
        let may_give = |at: usize| {
            let has = self.group.plan.sms(self.group.members[at]).len();
            has >= least.saturating_add(sms)
        };
        // Of equal scores the one with the lowest id.
        let donors = scored.iter().rev().filter(|(at, _)| may_give(*at));
        let (from, highest) = donors.max_by_key(|(_, note)| score(note))?;
        let (to, lowest) = scored.iter().min_by_key(|(_, note)| score(note))?;
        let transfer = Transfer { from: *from, to: *to, sms };
        let differ = score(highest) > score(lowest);
        (differ && self.group.undone != Some(transfer)).then_some(transfer)
    }

    /// n_r and R_min.
    fn grains(&self) -> (u16, u16) {
        let count = u16::try_from(self.group.members.len()).unwrap_or(u16::MAX).max(1);
        let even = f64::from(self.group.sms.len()) / f64::from(count);
        // At most the number of SMs.
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "bounded")]
        let part = |of: f64| (even * of).clamp(1.0, f64::from(u16::MAX)) as u16;
        (part(self.settings.step), part(self.settings.least))
    }

    /// The scores of members whose instructions are known, by place.
    fn scored(&self, sample: &Sample) -> Vec<(usize, Note)> {
        let score = |(at, id): (usize, &ApplicationId)| {
            let seen = sample.find(*id)?;
            let (issue_part, dram_part) = self.uses(seen)?;
            let is_low = issue_part < self.settings.low_issue;
            let is_high = dram_part > self.settings.high_bandwidth;
            let score = u8::from(is_low) + 2 * u8::from(is_high);
            Some((at, Note::Scored { application: *id, score, issue_part, dram_part }))
        };
        self.group.members.iter().enumerate().filter_map(score).collect()
    }

    /// The parts of the issue slots of its SMs, and of DRAM's peak, that an application takes.
    fn uses(&self, seen: &ApplicationSample) -> Option<(f64, f64)> {
        let speed = seen.speed()?;
        let traffic = speed.progress.traffic?;
        let sms = self.group.plan.sms(seen.application).len().max(1);
        let slots =
            float(speed.busy_cycles) * f64::from(sms) * self.hardware.warp_instructions_per_cycle;
        let [_, dram] = taken(&self.hardware, &traffic, speed.busy_cycles);
        Some((float(traffic.warp_instructions) / slots, dram))
    }

    fn shift(&mut self, sample: &Sample, transfer: Transfer) {
        let has = |id: &ApplicationId| (*id, self.group.plan.sms(*id));
        let holders: Vec<_> = self.group.members.iter().map(has).collect();
        let mut counts: Vec<u16> = holders.iter().map(|(_, sms)| sms.len()).collect();
        let moved = transfer.sms.min(counts[transfer.from].saturating_sub(1));
        counts[transfer.from] -= moved;
        counts[transfer.to] = counts[transfer.to].saturating_add(moved);
        self.group.plan = allot(sample.sms, &holders, &counts);
    }

    /// An interval of watching has ended.
    fn look(&mut self, sample: &Sample) -> Decision {
        let now = sample.now;
        let Some(throughput) = self.throughput(sample).filter(|_| now >= self.group.rests_until)
        else {
            return self.decision(Vec::new());
        };
        let relative = throughput / self.group.throughput.max(f64::MIN_POSITIVE);
        let has_changed = (relative - 1.0).abs() > self.settings.tolerance;
        if !has_changed && self.transfer(&self.scored(sample)).is_none() {
            return self.decision(Vec::new());
        }
        let clock = Clock { khz: self.hardware.sm_clock_khz };
        let group = &mut self.group;
        group.rests_until = Nanos(now.0.saturating_add(clock.nanos(group.pause).0));
        let longest = self.settings.longest_pause;
        group.pause = Cycles(group.pause.0.saturating_mul(2).min(longest.0));
        self.begin(sample)
    }

    fn watch(&mut self, notes: Vec<Note>) -> Decision {
        self.go_to(Stage::Watch, notes)
    }

    /// Measures again where an interval said nothing of somebody; gives up in the end.
    fn again(&mut self) -> Decision {
        self.group.retries += 1;
        if self.group.retries > PATIENCE {
            self.watch(Vec::new())
        } else {
            self.decision(Vec::new())
        }
    }

    fn go_to(&mut self, stage: Stage, notes: Vec<Note>) -> Decision {
        (self.group.stage, self.group.retries) = (stage, 0);
        self.decision(notes)
    }

    fn decision(&self, notes: Vec<Note>) -> Decision {
        let Group { stage, plan, .. } = &self.group;
        Decision {
            plan: plan.clone(),
            stalled: SmSet::EMPTY,
            gated: SmSet::EMPTY,
            stage: stage.name(),
            notes,
            next: match stage {
                Stage::Rest => None,
                Stage::Even | Stage::Move => Some(self.settings.interval),
                Stage::Watch => Some(self.settings.watch),
            },
        }
    }
}

impl Partitioner for Smra {
    fn name(&self) -> &'static str {
        "smra"
    }

    fn step(&mut self, sample: &Sample) -> Decision {
        let members: Vec<ApplicationId> =
            sample.applications.iter().map(|a| a.application).collect();
        if members != self.group.members || sample.sms != self.group.sms {
            return self.change_group(sample, members);
        }
        if matches!(sample.cause, Cause::Configuration | Cause::Terms) {
            return self.begin(sample);
        }
        if sample.cause != Cause::Interval || sample.interval.is_none() {
            return self.decision(Vec::new());
        }
        match self.group.stage {
            Stage::Rest => self.decision(Vec::new()),
            Stage::Even => self.judge_even(sample),
            Stage::Move => self.judge_move(sample),
            Stage::Watch => self.look(sample),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use partita_model::{IntervalRecord, Progress, Traffic};

    const HARDWARE: Calibration = Calibration {
        sms: 32,
        sm_clock_khz: 1_000_000,
        warp_instructions_per_cycle: 1.0,
        access_bytes: 32,
        noc_bytes_per_second: 100e9,
        llc_bytes_per_second: 100e9,
        dram_bytes_per_second: 100e9,
        dram_utilisation: 0.5,
    };
    /// Cycles of an interval.
    const SPAN: u64 = 100_000;

    /// What an application does in an interval, in warp instructions and DRAM accesses a cycle.
    type Rates = (f64, f64);

    /// Plays intervals: `rates` says what each application does with its SMs.
    fn play(rates: &dyn Fn(u32, u16) -> Rates, count: u32, intervals: u64) -> (Smra, Vec<u16>) {
        let mut smra = Smra::new(SmraSettings::default(), HARDWARE);
        let mut plan = Plan::default();
        for step in 0..=intervals {
            let application = |id: u32| {
                let partition = plan.sms(ApplicationId(id));
                let (issue, dram) = rates(id, partition.len());
                #[expect(
                    clippy::cast_possible_truncation,
                    clippy::cast_sign_loss,
                    reason = "positive and small"
                )]
                let count = |rate: f64| (rate * SPAN as f64) as u64;
                let traffic = Traffic {
                    warp_instructions: count(issue),
                    llc_accesses: count(dram),
                    ..Traffic::default()
                };
                let progress = Progress { ctas: count(issue) / 10, traffic: Some(traffic) };
                let (span, busy) = (Cycles(SPAN), Cycles(SPAN));
                ApplicationSample {
                    partition,
                    progress,
                    span,
                    busy,
                    ..ApplicationSample::unseen(id)
                }
            };
            let now = Nanos(step * SPAN);
            let record = IntervalRecord { settled: now, start: now, end: now, cycles: SPAN };
            let sample = Sample {
                now,
                cause: if step == 0 { Cause::Membership } else { Cause::Interval },
                interval: (step > 0).then_some(record),
                sms: SmSet::range(0, 32),
                applications: (1..=count).map(application).collect(),
            };
            plan = smra.step(&sample).plan;
        }
        let counts = (1..=count).map(|id| plan.sms(ApplicationId(id)).len()).collect();
        (smra, counts)
    }

    /// Computes with all its SMs: score 0.
    fn compute(sms: u16) -> Rates {
        (f64::from(sms) * 0.5, 0.01)
    }

    /// Takes more bandwidth than 0.3 of DRAM's, whatever its SMs: score 3.
    fn memory(_: u16) -> Rates {
        (1.0, 1.2)
    }

    #[test]
    fn sms_go_to_the_lowest_score_until_r_min() {
        let rates = |id, sms| if id == 1 { memory(sms) } else { compute(sms) };
        let (smra, counts) = play(&rates, 2, 12);
        // A quarter of 16 SMs stays, in steps of two.
        assert_eq!(counts, [4, 28]);
        assert_eq!(smra.group.stage, Stage::Watch);
    }

    #[test]
    fn a_move_that_lost_is_undone_once() {
        // What bandwidth it gets is in proportion to its SMs, and the other gains nothing.
        let rates = |id, sms| {
            if id == 1 { (f64::from(sms) / 16.0, 2.0) } else { (8.0, 0.01) }
        };
        for intervals in [2, 3, 20] {
            let (smra, counts) = play(&rates, 2, intervals);
            assert_eq!(counts, [16, 16], "after {intervals}");
            assert!(smra.group.undone.is_some());
        }
    }

    #[test]
    fn who_is_alike_keeps_even_shares() {
        for rates in [compute as fn(u16) -> Rates, memory] {
            let (_, counts) = play(&|_, sms| rates(sms), 3, 12);
            assert_eq!(counts, [11, 11, 10]);
        }
    }

    #[test]
    fn nobody_falls_below_r_min() {
        for count in 2..=8_u32 {
            let rates = |id: u32, sms| if id % 2 == 1 { memory(sms) } else { compute(sms) };
            let (_, counts) = play(&rates, count, 60);
            let least = (f64::from(32_u16) / f64::from(count) * 0.25).floor().max(1.0);
            assert_eq!(counts.iter().sum::<u16>(), 32);
            assert!(counts.iter().all(|sms| f64::from(*sms) >= least), "{counts:?}");
        }
    }
}

#[cfg(test)]
#[path = "smra_tests.rs"]
mod step_tests;
