//! CD-search (Zhao et al., ICS '18): classify, then search as the classes demand.
//!
//! ```text
//!            ┌────────────── other applications, or a class that no longer fits ──────────────┐
//!            ▼                                                                                │
//! even, profile (§4.1) ──► probe without counters ──► all compute: stay even (§3.3) ─┤
//!                                                          ├──► both classes: performance (§4.2) ┤
//!                                                          └──► all memory: power (§4.3) ────────┘
//! ```
//!
//! - **Profile**: one window at an even split. Its speeds are the reference of everything that
//!   follows; what the CTAs that completed in it do, by their kernels' profiles, gives the class by
//!   the off-SM bandwidth model ([`crate::classify`]).
//! - **Unsaturated** (ours): where the model sees more demand than supply, and yet all applications
//!   together took less of LLC and DRAM than two thirds of what these were measured to deliver,
//!   nobody waited for bandwidth: demand is that of instructions that never wait, and these waited
//!   for something else. Bandwidth saturates exponentially with the SMs that share it (Masola,
//!   JSSPP '23, Eq. 17): where half of the SMs take the part u of it, all of them take 2 − u times
//!   as much. So who takes less than half of it with half of the SMs is 1.5 times as fast with all.
//! - **Probe** (ours): an application of which the model cannot be sure
//!   ([`CdSearchSettings::trust`]) is measured once more with more SMs, or with fewer. Its class
//!   follows from the gain of the larger number over the smaller. What that says of all SMs is
//!   extrapolated. See [`probe`]. Where all together take more than half of the bandwidth it would
//!   show how they compete: then the likelier class stands.
//! - **Performance**: memory-intensive applications wait on more and more of their SMs, in steps of
//!   two, until one more step would cost more than 5 % of the reference. Compute-intensive ones
//!   then get what the others do not need, evenly (§7.4.3).
//! - **Refine** (ours): instead of waiting SMs change hands in the performance mode, and what all
//!   do together says how many. See [`refine`]. [`CdSearchSettings::refine`] chooses between the
//!   two.
//! - **Power**: half of the SMs of each wait, then half of the others, until that is too slow; the
//!   ratio of the reference to that speed is where the search begins; SMs are resumed one at a time
//!   until everybody reaches 95 %. The others are gated. The paper takes that ratio with one SM
//!   each: with few CTAs in flight such a window takes as long as all others, and all programs
//!   nearly stand while it does. Where windows are long it goes down in steps of two instead.
//! - **Alone** (ours): whoever comes first, and is not certainly compute-intensive, is measured on
//!   all SMs and with half of them stalled: that is the gain by which classes are defined, which no
//!   window beside others can measure. See [`solo`].
//! - **Watch** (ours): the speeds after a search are kept and compared with later ones. See
//!   [`watch`].
//!
//! In the paper's searches nothing changes hands: workers wait, and go on where they were. All
//! memory-intensive applications are searched at the same time; the paper says that for the power
//! mode only.
//!
//! An application that completes nothing in a profile ([`Class::Unknown`]) keeps its even share,
//! and the others are treated as if it was not there.

mod probe;
mod refine;
mod search;
mod solo;
mod watch;

use crate::measuring::{Clock, Speed};
use crate::models::taken;
use crate::partitioners::even::{even_plan, holders};
use crate::{
    ApplicationSample, Awaits, CalibrationError, Decision, Partitioner, Plan, Sample,
    WindowRequest, check_calibration, classify,
};
use partita_model::{
    ApplicationId, Calibration, Cause, Class, Cycles, EvenReason, Evidence, Note, SmSet,
    SupplyModel, WindowRecord,
};
use std::collections::{BTreeMap, BTreeSet};

/// What can be set about CD-search. The defaults are the paper's where it has any.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct CdSearchSettings {
    /// How supply is computed.
    pub supply: SupplyModel,
    /// Which classes of the off-SM bandwidth model stand without a probe: ours; the paper's
    /// counters leave no doubt.
    pub trust: Trust,
    /// SMs that the performance mode stalls at once (§4.2: two).
    pub step: u16,
    /// Speed that a memory-intensive application keeps, of its reference (§4.2: loses at most 5 %;
    /// §4.3: within 95 %).
    pub keep: f64,
    /// The windows of profile and search (§4.1, §4.2: 20K cycles warm-up, 20K cycles profiling). At
    /// least 64 CTAs and the bound are ours: with fewer, the count's grain hides a loss of 5 %.
    pub search: WindowRequest,
    /// The windows of watching: ours.
    pub watch: WindowRequest,
    /// Part of the gain in proportion to SMs below which more SMs do not help: ours. With twice the
    /// SMs the limit is a speed-up of 1.5, by which the evaluation tells the classes apart too.
    pub linear: f64,
    /// Deviation from the speed seen before that is a misfit: ours.
    pub tolerance: f64,
    /// Windows in a row that must say so: ours.
    pub misfits: u8,
    /// In the power mode, what one application may lack besides where all together keep enough:
    /// ours. They share one bandwidth; each SM that one resumes takes some of it from the others,
    /// who would resume one in turn.
    pub lack: f64,
    /// Windows that must say that it lost too much, taken together, before that is believed: ours.
    /// A window that happens to contain the end of a kernel shows a loss that has nothing to do
    /// with SMs.
    pub confirm: u8,
    /// Below that part of the reference one window is believed: ours. It is twice the loss that is
    /// allowed.
    pub plain: f64,
    /// Windows that are measured again where one says nothing: ours.
    pub patience: u8,
    /// The pause after which a misfit may lead to a new classification. It doubles every time:
    /// ours.
    pub pause: Cycles,
    /// The longest such pause: ours.
    pub longest_pause: Cycles,
    /// Whether the performance mode moves SMs and looks what all together do, instead of stalling
    /// them as the paper does: ours.
    pub refine: bool,
    /// Such steps at most: ours.
    pub trials: u8,
    /// The part by which they must do more for a plan to be tried, and to stay in the place of the
    /// even split: ours.
    pub worth: f64,
    /// A neighbour of the best plan is tried even where it promises to be worse by that part: ours.
    pub doubt: f64,
    /// The part of its reference that such steps leave everybody: ours.
    pub least: f64,
    /// Where the profile's window takes so long nobody waits on half of its SMs in the power mode:
    /// ours. It is ten times the shortest.
    pub long: Cycles,
}

impl Default for CdSearchSettings {
    fn default() -> Self {
        CdSearchSettings {
            supply: SupplyModel::Printed,
            trust: Trust::Likely,
            step: 2,
            keep: 0.95,
            search: WindowRequest {
                warm_up: Cycles(20_000),
                at_least: Cycles(20_000),
                ctas: 64,
                at_most: Cycles(400_000),
                awaits: Awaits::Everybody,
                launches: false,
            },
            watch: WindowRequest {
                warm_up: Cycles(20_000),
                at_least: Cycles(100_000),
                ctas: 256,
                at_most: Cycles(2_000_000),
                awaits: Awaits::Everybody,
                launches: false,
            },
            linear: 0.5,
            tolerance: 0.25,
            misfits: 2,
            lack: 0.05,
            confirm: 2,
            plain: 0.9,
            patience: 3,
            pause: Cycles(2_000_000),
            longest_pause: Cycles(2_000_000_000),
            refine: true,
            trials: 8,
            worth: 0.01,
            doubt: 0.02,
            least: 0.6,
            long: Cycles(200_000),
        }
    }
}

/// Which classes of the off-SM bandwidth model stand without being measured.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Trust {
    /// Those that are the same wherever between its bounds a profile's truth lies.
    #[default]
    Certain,
    /// All of them, by the likeliest values.
    Likely,
    /// None: every application is probed.
    Nothing,
}

/// What it knows of an application that takes part.
#[derive(Clone, Debug)]
struct Member {
    application: ApplicationId,
    /// Its set of the even split.
    own: SmSet,
    /// SMs of that which work; the others wait.
    active: u16,
    class: Class,
    evidence: Evidence,
    /// What the off-SM bandwidth model says, whether that stands or not.
    modelled: Option<(Class, Evidence)>,
    quick: bool,
    /// Rounds of CTAs of its launches with an even share.
    rounds: Option<f64>,
    reference: Option<Speed>,
    search: search::Search,
    watch: watch::Watched,
}

impl Trust {
    fn holds(self, evidence: &Evidence) -> bool {
        match self {
            Trust::Certain => matches!(evidence, Evidence::Bandwidth { certain: true, .. }),
            Trust::Likely => true,
            Trust::Nothing => false,
        }
    }
}

impl Member {
    fn even(&self) -> u16 {
        self.own.len()
    }

    /// Its SMs that wait: those with the highest numbers, so that the others can stay where they
    /// are.
    fn waiting(&self) -> SmSet {
        self.own.iter().skip(self.active.into()).collect()
    }

    /// A speed ÷ the reference.
    fn relative(&self, speed: Option<Speed>) -> Option<f64> {
        speed?.relative_to(self.reference.as_ref()?)
    }

    fn classified(&self) -> Note {
        Note::Classified {
            application: self.application,
            class: self.class,
            evidence: self.evidence,
            // Where it is the evidence itself there is nothing to add.
            modelled: self.modelled.filter(|(_, evidence)| *evidence != self.evidence),
            quick: self.quick,
        }
    }
}

/// What it is doing.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Stage {
    /// At most one application: nothing to decide.
    Alone,
    /// One application: it is measured for the time when others come.
    Solo {
        half: bool,
        retries: u8,
    },
    Profile {
        retries: u8,
    },
    /// Some work on half of their SMs.
    Probe {
        retries: u8,
    },
    /// One has SMs of the others.
    Grow {
        member: usize,
        retries: u8,
    },
    Performance,
    /// Power mode: half as many.
    PowerFewer,
    /// Power mode: one more at a time.
    PowerMore,
    Refine,
    Watch,
}

impl Stage {
    fn name(self) -> &'static str {
        match self {
            Stage::Alone => "alone",
            Stage::Solo { .. } => "solo",
            Stage::Profile { .. } => "profile",
            Stage::Probe { .. } | Stage::Grow { .. } => "probe",
            Stage::Performance => "performance",
            Stage::PowerFewer | Stage::PowerMore => "power",
            Stage::Refine => "refine",
            Stage::Watch => "watch",
        }
    }
}

/// The CD-search partitioner.
#[derive(Clone, Debug)]
pub struct CdSearch {
    settings: CdSearchSettings,
    hardware: Calibration,
    stage: Stage,
    members: Vec<Member>,
    /// The plan at the end of the last search, or the even split.
    plan: Plan,
    gated: SmSet,
    epoch: watch::Epoch,
    refine: refine::Refine,
    /// How long the window of the profile took.
    profile_cycles: Cycles,
    /// What was found of applications while they were alone.
    solo: BTreeMap<ApplicationId, (Class, Evidence)>,
}

impl CdSearch {
    /// CD-search for a GPU.
    ///
    /// # Errors
    /// Where the calibration describes none.
    pub fn new(
        settings: CdSearchSettings,
        hardware: Calibration,
    ) -> Result<Self, CalibrationError> {
        check_calibration(&hardware)?;
        Ok(CdSearch {
            epoch: watch::Epoch::new(settings.pause),
            settings,
            hardware,
            stage: Stage::Alone,
            members: Vec::new(),
            plan: Plan::default(),
            gated: SmSet::EMPTY,
            refine: refine::Refine::default(),
            profile_cycles: Cycles(0),
            solo: BTreeMap::new(),
        })
    }

    /// Starts at an even split. `probe` are those whose class shall be measured, whatever their
    /// counters say.
    fn begin(
        &mut self,
        sample: &Sample,
        probe: &BTreeSet<ApplicationId>,
        mut notes: Vec<Note>,
    ) -> Decision {
        let (plan, why) = even_plan(sample, EvenReason::Profiling);
        notes.extend(why);
        self.members = holders(sample)
            .iter()
            .map(|&(application, _)| {
                let own = plan.sms(application);
                Member {
                    application,
                    own,
                    active: own.len(),
                    class: Class::Unknown,
                    evidence: Evidence::NoProgress { cycles: 0 },
                    modelled: None,
                    quick: false,
                    rounds: None,
                    reference: None,
                    search: search::Search::new(own.len()),
                    watch: watch::Watched::new(probe.contains(&application)),
                }
            })
            .collect();
        self.plan = plan;
        self.gated = SmSet::EMPTY;
        self.solo.retain(|id, _| find(sample, *id).is_some() && !probe.contains(id));
        self.stage = match &self.members[..] {
            [one] if one.even() > 1 && !self.solo.contains_key(&one.application) => {
                Stage::Solo { half: false, retries: 0 }
            }
            [] | [_] => Stage::Alone,
            _ => Stage::Profile { retries: 0 },
        };
        self.decision(notes)
    }

    /// The decision that the present state amounts to.
    fn decision(&self, notes: Vec<Note>) -> Decision {
        let stalled = match self.stage {
            Stage::Solo { .. }
            | Stage::Probe { .. }
            | Stage::Performance
            | Stage::PowerFewer
            | Stage::PowerMore => {
                self.members.iter().fold(SmSet::EMPTY, |all, member| all.union(&member.waiting()))
            }
            Stage::Alone
            | Stage::Profile { .. }
            | Stage::Grow { .. }
            | Stage::Refine
            | Stage::Watch => SmSet::EMPTY,
        };
        // A class stands for long: what one window says of a search the next ones correct.
        let classifying = WindowRequest { launches: true, ..self.settings.search };
        let next = match self.stage {
            Stage::Alone => None,
            Stage::Watch => Some(self.settings.watch),
            // What the others do meanwhile says nothing of them.
            Stage::Probe { .. } => Some(WindowRequest { awaits: Awaits::Stalled, ..classifying }),
            Stage::Solo { .. } | Stage::Profile { .. } | Stage::Grow { .. } => Some(classifying),
            _ => Some(self.settings.search),
        };
        let (plan, gated) = (self.plan.clone(), self.gated);
        Decision { plan, stalled, gated, stage: self.stage.name(), notes, next }
    }

    fn clock(&self) -> Clock {
        Clock { khz: self.hardware.sm_clock_khz }
    }

    /// The speed of a member in a window; `None` where it had work for less than half of the time.
    fn speed(sample: &Sample, application: ApplicationId) -> Option<Speed> {
        let application = find(sample, application)?;
        let busy_cycles = application.busy.0.min(application.span.0);
        let enough = busy_cycles > 0 && busy_cycles >= application.span.0 / 2;
        enough.then_some(Speed { progress: application.progress, busy_cycles })
    }

    fn profiled(&mut self, sample: &Sample, window: &WindowRecord, retries: u8) -> Decision {
        let mut silent = false;
        self.profile_cycles = Cycles(window.cycles);
        for member in &mut self.members {
            let speed = CdSearch::speed(sample, member.application);
            let seen = find(sample, member.application);
            member.quick = seen.is_some_and(|a| a.warm_up_ctas > 0);
            member.rounds = seen.and_then(|a| a.rounds);
            member.reference = speed.filter(|speed| speed.progress.ctas > 0);
            silent |= member.reference.is_none();
            // Some of its CTAs may have been the first of their kernel: the next ones' traffic is
            // known.
            let told =
                member.reference.is_some_and(|reference| reference.progress.traffic.is_some());
            silent |= seen.is_some_and(|a| a.profiled) && !told && !member.watch.probe;
        }
        if silent && retries < self.settings.patience {
            self.stage = Stage::Profile { retries: retries + 1 };
            return self.decision(Vec::new());
        }
        let mut probing = false;
        let all = taken_by(&self.hardware, &self.members);
        for member in &mut self.members {
            let Some(reference) = member.reference else {
                member.class = Class::Unknown;
                member.evidence = Evidence::NoProgress { cycles: window.cycles };
                continue;
            };
            let traffic = reference.progress.traffic.filter(|_| !member.watch.probe);
            let modelled = traffic.and_then(|t| classify(&self.hardware, &t, self.settings.supply));
            member.modelled = modelled;
            let certain = modelled.filter(|(_, evidence)| self.settings.trust.holds(evidence));
            let free = || {
                unsaturated(
                    &self.hardware,
                    &self.settings,
                    all,
                    &reference,
                    member.even(),
                    modelled?.1,
                )
            };
            let trusts = self.settings.trust != Trust::Nothing;
            let free = trusts.then(free).flatten();
            let measured =
                self.solo.get(&member.application).filter(|_| !member.watch.probe).copied();
            let contended = all.is_some_and(|all| all[0].max(all[1]) >= 1.0 - self.settings.linear);
            let stands = match measured.or(certain) {
                measured @ Some((_, Evidence::Scaling { .. })) => measured,
                Some((Class::Memory, _)) | None => free
                    .map(|evidence| (Class::Compute, evidence))
                    .or(certain)
                    // A probe would show how they compete.
                    .or(modelled
                        .filter(|(class, _)| contended && trusts && *class == Class::Memory)),
                certain => certain,
            };
            match stands {
                Some((class, evidence)) => {
                    member.class = class;
                    member.evidence = evidence;
                    member.watch.probe = false;
                }
                None if member.even() > 1 => {
                    member.watch.probe = true;
                    probing = true;
                }
                None => {
                    // With a single SM there is nothing to find out, nor to take away.
                    member.class = Class::Compute;
                    member.evidence =
                        Evidence::Scaling { fewer: 1, more: 1, gain: 1.0, limit: 1.0 };
                }
            }
        }
        if probing { self.start_probe(sample) } else { self.choose_mode(sample) }
    }

    /// Whether the profile has shown that windows take so long that nobody should wait in them.
    fn is_long(&self) -> bool {
        self.profile_cycles >= self.settings.long
    }

    fn choose_mode(&mut self, sample: &Sample) -> Decision {
        let any = |class| self.members.iter().any(|member| member.class == class);
        let notes = self.members.iter().map(Member::classified).collect();
        match (any(Class::Memory), any(Class::Compute)) {
            (false, _) => self.stay_even(notes),
            (true, true) if self.settings.refine => self.start_refine(sample, notes),
            (true, true) => self.start_performance(sample, notes),
            (true, false) if self.is_long() => self.start_performance(sample, notes),
            (true, false) => self.start_power(sample, notes),
        }
    }

    fn stay_even(&mut self, mut notes: Vec<Note>) -> Decision {
        let sizes = || self.members.iter().map(Member::even);
        notes.push(Note::Even {
            applications: u16::try_from(self.members.len()).unwrap_or(u16::MAX),
            least: sizes().min().unwrap_or(0),
            most: sizes().max().unwrap_or(0),
            reason: EvenReason::NoneMemoryIntensive,
        });
        self.stage = Stage::Watch;
        self.decision(notes)
    }
}

impl Partitioner for CdSearch {
    fn name(&self) -> &'static str {
        "cd-search"
    }

    fn step(&mut self, sample: &Sample) -> Decision {
        let same = self.members.len() == sample.applications.len()
            && self
                .members
                .iter()
                .zip(&sample.applications)
                .all(|(m, a)| m.application == a.application);
        let window = match (sample.cause, sample.window) {
            (Cause::Window, Some(window)) if same => window,
            _ => {
                self.epoch = watch::Epoch::new(self.settings.pause);
                return self.begin(sample, &BTreeSet::new(), Vec::new());
            }
        };
        match self.stage {
            Stage::Alone => self.decision(Vec::new()),
            Stage::Solo { half: false, retries } => self.solo_on_all(sample, retries),
            Stage::Solo { half: true, retries } => self.solo_on_half(sample, retries),
            Stage::Profile { retries } => self.profiled(sample, &window, retries),
            Stage::Probe { retries } => self.probed(sample, retries),
            Stage::Grow { member, retries } => self.grown(sample, member, retries),
            Stage::Performance => self.performance(sample),
            Stage::PowerFewer => self.power_fewer(sample),
            Stage::PowerMore => self.power_more(sample),
            Stage::Refine => self.refined(sample),
            Stage::Watch => self.watched(sample),
        }
    }
}

/// The parts of LLC's and DRAM's bandwidth that these take together; `None` where that is not known
/// of all of them.
fn taken_by<'a>(
    hardware: &Calibration,
    members: impl IntoIterator<Item = &'a Member>,
) -> Option<[f64; 2]> {
    members.into_iter().try_fold([0.0; 2], |sum, member| {
        let reference = member.reference?;
        let own = taken(hardware, &reference.progress.traffic?, reference.busy_cycles);
        Some([sum[0] + own[0], sum[1] + own[1]])
    })
}

/// Whether an application with `sms` SMs had all the bandwidth that it could use, and would have
/// with all SMs: then these would make it as much faster than half of them as compute-intensive
/// applications are. `all` is what everybody took.
fn unsaturated(
    hardware: &Calibration,
    settings: &CdSearchSettings,
    all: Option<[f64; 2]>,
    speed: &Speed,
    sms: u16,
    modelled: Evidence,
) -> Option<Evidence> {
    let Evidence::Bandwidth { demand, supply, .. } = modelled else { return None };
    let half = hardware.sms / 2;
    let limit = 1.0 / gain_limit(half, half.saturating_mul(2), settings.linear);
    let own = taken(hardware, &speed.progress.traffic?, speed.busy_cycles);
    // Who has fewer than half of the SMs would take in proportion more with half.
    let own = own[0].max(own[1]) * (f64::from(half) / f64::from(sms.max(1))).max(1.0);
    let all = all?;
    let taken = all[0].max(all[1]);
    let own_limit = 1.0 - settings.linear;
    (taken < limit && own < own_limit).then_some(Evidence::Unsaturated {
        demand,
        supply,
        taken,
        own,
        limit,
        own_limit,
    })
}

/// The gain from `fewer` to `more` SMs below which an application is memory-intensive.
fn gain_limit(fewer: u16, more: u16, linear: f64) -> f64 {
    1.0 + linear * (f64::from(more) / f64::from(fewer.max(1)) - 1.0)
}

fn find(sample: &Sample, application: ApplicationId) -> Option<&ApplicationSample> {
    sample.applications.iter().find(|a| a.application == application)
}
