//! Host time: device time advances only as far as the programs let it.
//!
//! A program's next call takes effect a fixed charge of device time after its last call, or after
//! the answer that it waited for, whichever is later; the host's speed does not count. The device
//! may therefore advance to the earliest of these moments over all programs, and no further until
//! that program has called. A program that waits for the device holds up no other. Nor does a
//! program that has not called for as long as the patience: it is idle, or its host is slow, and it
//! counts in [`Pacer::exceeded`] where device time passes meanwhile. While a program's module is
//! prepared the daemon is the slow side, and the patience is longer.
//!
//! A kernel may wait for a write of its program into shared memory, and the program may answer the
//! kernel's writes; neither needs a call, and their time is the host's. No call may come before the
//! device goes on. Where such work is in flight ([`partita_engine::Engine::awaits_host`]) the
//! patience is therefore [`AWAITED`]. Only the kernel's code and arguments tell this: a device that
//! stands still shows nothing. A kernel that finds its host memory through other memory has the
//! whole patience.
//!
//! A program that calls again and again within its patience would hold up all others. The host time
//! for which it does is taken from a budget, of which it earns a tenth of the host time again.
//! Without budget a program has no patience left to use. All programs of a user together have one
//! such budget for the host time for which they hold up other users: a user that connects again and
//! again has no more of it.
//!
//! This is a conservative simulation with the charge as look-ahead. Where no patience and no budget
//! is exceeded, the order of calls and their device times depend on the programs alone, as long as
//! each program calls from one thread at a time.

use partita_model::{HostTime, Nanos, TenantId};
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// The time for preparing a module, as a multiple of the patience.
const PREPARING: u32 = 30;

/// The patience with a program for which a kernel may be waiting. If the host lets the program call
/// within this time, a program whose kernels do not wait stays deterministic.
const AWAITED: Duration = Duration::from_millis(10);

/// The part of the host time that passes and is added to a session's budget again, as a divisor.
const EARNED: u32 = 10;

/// The pace of one session.
#[derive(Clone, Copy, Debug)]
pub struct Pace {
    tenant: TenantId,
    /// The device time at which the session's next call takes effect.
    next: Nanos,
    /// The host time of the session's last call or answer.
    heard: Instant,
    late: bool,
    held_up: HeldUp,
}

/// The host time for which a session or a user has held others up, less what was earned since.
#[derive(Clone, Copy, Debug)]
struct HeldUp {
    time: Duration,
    /// When `time` was true.
    at: Instant,
    is_reported: bool,
}

impl HeldUp {
    fn new(host: Instant) -> HeldUp {
        HeldUp { time: Duration::ZERO, at: host, is_reported: false }
    }

    fn time(&self, host: Instant) -> Duration {
        self.time.saturating_sub(host.saturating_duration_since(self.at) / EARNED)
    }

    /// Takes `spent` from the budget. Whether the budget is used up for the first time.
    fn spend(&mut self, host: Instant, spent: Duration, budget: Duration) -> bool {
        self.time = self.time(host) + spent;
        self.at = host;
        let is_news = self.time >= budget && !self.is_reported;
        self.is_reported |= is_news;
        is_news
    }
}

impl Pace {
    /// When its next call takes effect.
    #[must_use]
    pub fn next(&self) -> Nanos {
        self.next
    }
}

/// The clocks when sessions are looked at.
#[derive(Clone, Copy, Debug)]
pub struct Moment {
    /// Device time.
    pub device: Nanos,
    /// Host time.
    pub host: Instant,
    /// Whether device time passes as soon as no session bounds it.
    pub time_passes: bool,
}

/// The rules and counts of all sessions.
#[derive(Clone, Debug)]
pub struct Pacer {
    rules: Option<HostTime>,
    exceeded: u64,
    /// Sessions that have arrived.
    arrived: u32,
    /// Users whose sessions have held up other users. A user's entry outlives its sessions.
    users: BTreeMap<TenantId, HeldUp>,
}

impl Pacer {
    /// A pacer with the device's rules; without rules no program is waited for.
    #[must_use]
    pub fn new(rules: Option<HostTime>) -> Self {
        Pacer { rules, exceeded: 0, arrived: 0, users: BTreeMap::new() }
    }

    /// The rules.
    #[must_use]
    pub fn rules(&self) -> Option<HostTime> {
        self.rules
    }

    /// The number of times that the patience with a program ran out while device time passed.
    #[must_use]
    pub fn exceeded(&self) -> u64 {
        self.exceeded
    }

    /// A session of a user arrives.
    pub fn arrives(&mut self, tenant: TenantId, device: Nanos, host: Instant) -> Pace {
        self.arrived = self.arrived.saturating_add(1);
        self.users.retain(|_, held_up| held_up.time(host) > Duration::ZERO);
        Pace { tenant, next: device, heard: host, late: false, held_up: HeldUp::new(host) }
    }

    /// Whether programs are still missing that start together.
    #[must_use]
    pub fn gathers(&self) -> bool {
        self.rules.is_some_and(|rules| self.arrived < rules.together)
    }

    /// Whether a session's next call may take effect.
    #[must_use]
    pub fn may_call(&self, pace: &Pace, device: Nanos) -> bool {
        self.rules.is_none() || pace.next <= device
    }

    /// A session has called.
    pub fn goes_on(&self, pace: &mut Pace, device: Nanos, host: Instant) {
        let charge = self.rules.map_or(Nanos(0), |rules| rules.call);
        let next = pace.next.max(device + charge);
        *pace = Pace { next, heard: host, late: false, ..*pace };
    }

    /// A waiting session is answered and goes on. Whether it waited is open before the moment of
    /// its next call: the host may not have got that far. An answer by then therefore changes
    /// nothing.
    pub fn answered(&self, pace: &mut Pace, device: Nanos, host: Instant) {
        if device > pace.next {
            self.goes_on(pace, device, host);
        } else {
            pace.heard = host;
        }
    }

    /// A session has held others up for `spent` until `host`. The budget, where the session has
    /// used it up for the first time.
    pub fn holds_up(&self, pace: &mut Pace, host: Instant, spent: Duration) -> Option<Duration> {
        let budget = self.budget()?;
        pace.held_up.spend(host, spent, budget).then_some(budget)
    }

    /// The sessions of a user have held up other users for `spent` until `host`. The budget, where
    /// the user has used it up for the first time.
    pub fn user_holds_up(
        &mut self,
        tenant: TenantId,
        host: Instant,
        spent: Duration,
    ) -> Option<Duration> {
        let budget = self.budget()?;
        let held_up = self.users.entry(tenant).or_insert_with(|| HeldUp::new(host));
        held_up.spend(host, spent, budget).then_some(budget)
    }

    fn budget(&self) -> Option<Duration> {
        Some(Duration::from_millis(self.rules?.budget_ms?.into()))
    }

    /// The device time up to which the device may go for a session that does not wait for it;
    /// `None` is no bound. `prepares`: a module of the session is being prepared. `awaited`: a
    /// kernel may be waiting for a write of the program that needs no call.
    pub fn bound(
        &mut self,
        pace: &mut Pace,
        moment: Moment,
        prepares: bool,
        awaited: impl FnOnce() -> bool,
    ) -> Option<Nanos> {
        let rules = self.rules?;
        let patience = Duration::from_millis(rules.patience_ms.into());
        let patience = if prepares { patience * PREPARING } else { patience };
        let silent = moment.host.saturating_duration_since(pace.heard);
        let users = self.users.get(&pace.tenant);
        let mut spent = users.into_iter().chain([&pace.held_up]).map(|held| held.time(moment.host));
        let has_budget = self.budget().is_none_or(|budget| spent.all(|spent| spent < budget));
        if has_budget && silent < patience && (silent < AWAITED || !awaited()) {
            return Some(pace.next);
        }
        if !pace.late && (moment.time_passes || moment.device > pace.next) {
            pace.late = true;
            self.exceeded += 1;
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RULES: HostTime =
        HostTime { call: Nanos(2_000), patience_ms: 100, together: 1, budget_ms: Some(500) };

    const USER: TenantId = TenantId(1000);
    const OTHER: TenantId = TenantId(1001);

    /// A device with work, at this time.
    fn busy(device: u64, host: Instant) -> Moment {
        Moment { device: Nanos(device), host, time_passes: true }
    }

    #[test]
    fn the_device_goes_on_by_the_charge_however_long_the_host_takes() {
        let mut pacer = Pacer::new(Some(RULES));
        let start = Instant::now();
        let mut pace = pacer.arrives(USER, Nanos(10), start);
        assert!(pacer.may_call(&pace, Nanos(10)));
        pacer.goes_on(&mut pace, Nanos(10), start);
        assert!(!pacer.may_call(&pace, Nanos(2_009)));
        assert_eq!(
            pacer.bound(&mut pace, busy(10, start + Duration::from_millis(99)), false, || false),
            Some(Nanos(2_010))
        );
        assert!(pacer.may_call(&pace, Nanos(2_010)));
    }

    #[test]
    fn patience_ends_and_is_counted_once() {
        let mut pacer = Pacer::new(Some(RULES));
        let start = Instant::now();
        let mut pace = pacer.arrives(USER, Nanos(0), start);
        let late = start + Duration::from_millis(101);
        assert_eq!(
            (
                pacer.bound(&mut pace, busy(0, late), false, || false),
                pacer.bound(&mut pace, busy(0, late), false, || false)
            ),
            (None, None)
        );
        assert_eq!(pacer.exceeded(), 1);
        pacer.goes_on(&mut pace, Nanos(50), late);
        assert_eq!(pacer.bound(&mut pace, busy(50, late), false, || false), Some(Nanos(2_050)));
        let late = late + Duration::from_millis(2_999);
        assert_eq!(
            pacer.bound(&mut pace, busy(50, late), true, || false),
            Some(Nanos(2_050)),
            "a module is prepared"
        );
        assert_eq!(pacer.exceeded(), 1);
    }

    #[test]
    fn who_is_awaited_is_given_less_time() {
        let mut pacer = Pacer::new(Some(RULES));
        let start = Instant::now();
        let mut pace = pacer.arrives(USER, Nanos(5), start);
        let soon = start + Duration::from_millis(9);
        let asked = || panic!("nobody needs to know so soon");
        assert_eq!(pacer.bound(&mut pace, busy(5, soon), false, asked), Some(Nanos(5)));
        let later = start + Duration::from_millis(10);
        let later = busy(5, later);
        assert_eq!(pacer.bound(&mut pace, later, false, || false), Some(Nanos(5)));
        assert_eq!((pacer.bound(&mut pace, later, false, || true), pacer.exceeded()), (None, 1));
    }

    #[test]
    fn a_pause_counts_only_where_device_time_passes() {
        let mut pacer = Pacer::new(Some(RULES));
        let start = Instant::now();
        let mut pace = pacer.arrives(USER, Nanos(5), start);
        let late = start + Duration::from_millis(101);
        let idle = Moment { time_passes: false, ..busy(5, late) };
        assert_eq!((pacer.bound(&mut pace, idle, false, || false), pacer.exceeded()), (None, 0));
        // Another session's calls have taken the device further.
        let passed = Moment { device: Nanos(6), ..idle };
        assert_eq!((pacer.bound(&mut pace, passed, false, || false), pacer.exceeded()), (None, 1));
    }

    #[test]
    fn who_has_held_up_others_for_long_holds_them_up_no_more() {
        let mut pacer = Pacer::new(Some(RULES));
        let start = Instant::now();
        let at = |millis| start + Duration::from_millis(millis);
        let mut pace = pacer.arrives(USER, Nanos(0), start);
        for call in 1..=5 {
            let host = at(call * 90);
            let spent = Duration::from_millis(90);
            assert_eq!(pacer.holds_up(&mut pace, host, spent), None, "{call}");
            pacer.goes_on(&mut pace, Nanos(0), host);
            let bound = pacer.bound(&mut pace, busy(0, host), false, || false);
            assert_eq!(bound, Some(Nanos(2_000)), "{call}");
        }
        let budget = Duration::from_millis(500);
        let spent = Duration::from_millis(200);
        assert_eq!(pacer.holds_up(&mut pace, at(650), spent), Some(budget));
        let again = pacer.holds_up(&mut pace, at(650), Duration::ZERO);
        assert_eq!(again, None, "it is said once");
        pacer.goes_on(&mut pace, Nanos(0), at(650));
        assert_eq!(pacer.bound(&mut pace, busy(0, at(700)), true, || false), None);
        // A tenth of the time is earned.
        pacer.goes_on(&mut pace, Nanos(0), at(2_000));
        let bound = pacer.bound(&mut pace, busy(0, at(2_000)), false, || false);
        assert_eq!(bound, Some(Nanos(2_000)));
    }

    #[test]
    fn a_user_holds_up_others_no_longer_by_connecting_again() {
        let mut pacer = Pacer::new(Some(RULES));
        let start = Instant::now();
        let at = |millis| start + Duration::from_millis(millis);
        let spent = Duration::from_millis(90);
        for session in 1..=5 {
            let mut pace = pacer.arrives(USER, Nanos(0), at(session * 90));
            assert!(pacer.bound(&mut pace, busy(0, at(session * 90)), false, || false).is_some());
            assert_eq!(pacer.user_holds_up(USER, at(session * 90), spent), None, "{session}");
        }
        let budget = pacer.user_holds_up(USER, at(600), Duration::from_millis(200));
        assert_eq!(budget, Some(Duration::from_millis(500)));
        let mut again = pacer.arrives(USER, Nanos(0), at(600));
        assert_eq!(pacer.bound(&mut again, busy(0, at(600)), false, || false), None);
        let mut other = pacer.arrives(OTHER, Nanos(0), at(600));
        assert!(pacer.bound(&mut other, busy(0, at(600)), false, || false).is_some());
        // The user earns as a session does.
        let mut later = pacer.arrives(USER, Nanos(0), at(3000));
        assert!(pacer.bound(&mut later, busy(0, at(3000)), false, || false).is_some());
    }

    #[test]
    fn an_answer_before_the_next_call_changes_nothing() {
        let pacer = Pacer::new(Some(RULES));
        let start = Instant::now();
        let mut pace = Pacer::new(None).arrives(USER, Nanos(0), start);
        pacer.goes_on(&mut pace, Nanos(0), start);
        pacer.answered(&mut pace, Nanos(2_000), start);
        assert_eq!(pace.next(), Nanos(2_000));
        pacer.answered(&mut pace, Nanos(2_500), start);
        assert_eq!(pace.next(), Nanos(4_500));
    }

    #[test]
    fn programs_that_start_together_wait_for_each_other() {
        let mut pacer = Pacer::new(Some(HostTime { together: 2, ..RULES }));
        pacer.arrives(USER, Nanos(0), Instant::now());
        assert!(pacer.gathers());
        pacer.arrives(USER, Nanos(0), Instant::now());
        assert!(!pacer.gathers());
    }

    #[test]
    fn without_rules_nobody_is_waited_for() {
        let mut pacer = Pacer::new(None);
        let start = Instant::now();
        let mut pace = pacer.arrives(USER, Nanos(0), start);
        pacer.goes_on(&mut pace, Nanos(5), start);
        assert!(pacer.may_call(&pace, Nanos(0)));
        let moment = busy(0, start);
        assert_eq!((pacer.bound(&mut pace, moment, false, || false), pacer.exceeded()), (None, 0));
    }
}
