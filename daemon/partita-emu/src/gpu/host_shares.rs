//! Shares of the host's time where the device keeps none.
//!
//! Without timing a turn gives every SM the same number of cycles, whatever its instructions cost
//! the host: an addition takes nanoseconds, the first touch of a page a microsecond for each
//! thread. A program that touches fresh pages would take nearly all of the host's time. So each
//! window, the context of one session, has an account of the time that its SMs, copies and fills
//! took, divided by its SMs. The level is the account of a window that had exactly its share. A
//! window waits while it is more than [`AHEAD`] above the level (start-time fair queueing).
//!
//! Invariants: of the windows with work on SMs one never waits. A window that used less than its
//! share is at most [`BEHIND`] below the level, so it saves nothing else up. Device time stays as
//! it is: a window that waits is late.
//!
//! A program that waits for the answer to each launch would wait for a turn of all SMs each time,
//! and stay below its share. So windows below the level by more than [`AHEAD`] run first, and the
//! turn ends with the poll. Among equals the SM that has waited longest runs first. So SMs that a
//! turn did not reach run in the next one, and a CTA that waits for a CTA of another SM sees it
//! run. Device time passes as far as the SMs that ran got in the mean, because the engine's
//! patience is in device time.

use partita_model::WindowId;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// How far a window that runs may be above the level, in nanoseconds of one SM.
const AHEAD: u64 = 200_000;
/// How far a window may be below the level.
const BEHIND: u64 = 2_000_000;
/// The run of an SM in a turn of the device, where all SMs of the window have work. A team's turn
/// that has begun ends.
const RUN: Duration = Duration::from_micros(200);
/// The longest run of an SM whose window has idle SMs.
const LONGEST_RUN: Duration = Duration::from_millis(1);
/// A whole SM in a share.
const WHOLE: u32 = 256;
/// Turns in which a share fades.
const FADING: u32 = 128;
/// The time of a team's turn for which its budget of instructions is chosen.
const TEAM_TURN: Duration = Duration::from_micros(100);
/// The time of a poll: others have calls that wait. It is longer where little of the host's time is
/// left for polls, and the longest where one window has been alone.
const POLL: Duration = Duration::from_micros(500);
const LONGEST_POLL: Duration = Duration::from_millis(20);
/// The time after which a window counts as alone.
const ALONE: Duration = Duration::from_millis(100);
/// How many times as long as the pause before it a poll is.
const POLL_FOR_PAUSE: u32 = 2;

/// What a window took.
#[derive(Clone, Copy, Debug)]
struct Account {
    /// Nanoseconds of one SM.
    taken: u64,
    /// The last turn in which it had work on SMs, and how many SMs these were.
    turn: u64,
    sms: u32,
    /// The SMs that it has had work on of late, times [`WHOLE`]: its share.
    share: u32,
    /// Instructions of a team's turn.
    budget: u32,
}

/// The accounts of all windows, see the module's page.
#[derive(Debug)]
pub struct HostShares {
    accounts: BTreeMap<WindowId, Account>,
    /// The account of a window that had its share of the time, no more and no less.
    level: u64,
    /// Nanoseconds of the present turn that were taken.
    spent: u64,
    /// Windows with work on SMs in the present turn.
    active: Vec<WindowId>,
    /// The number of the present turn.
    turn: u64,
    /// The budget of a team's turn that costs nothing unusual.
    most: u32,
    poll_ends: Instant,
    /// When the last poll ended that had not done all work.
    paused: Option<Instant>,
    /// When two windows had work, or another one than before.
    company: Instant,
    last: WindowId,
    /// The turn in which each SM ran last.
    ran_in: Vec<u64>,
    /// How many SMs of how many ran in the last turn.
    ran: (usize, usize),
}

/// A run of an SM that has begun.
#[derive(Clone, Copy, Debug)]
pub struct Run {
    /// When.
    pub began: Instant,
    /// How it goes on.
    pub pace: Pace,
}

/// How an SM runs: until when, and by turns of how many instructions.
#[derive(Clone, Copy, Debug)]
pub struct Pace {
    /// Whether the run ends with the present turn of a team.
    pub is_over: bool,
    /// Instructions of a team's turn.
    pub budget: u32,
    ends: Instant,
    most: u32,
}

impl Pace {
    /// A team's turn took the time from `began` to `now`. The budget of the next one follows.
    pub fn turn_took(&mut self, began: Instant, now: Instant) {
        let (took, wanted) = (now.duration_since(began).as_nanos(), TEAM_TURN.as_nanos());
        if took > 2 * wanted {
            let budget = u128::from(self.budget) * wanted / took;
            self.budget = u32::try_from(budget).unwrap_or(self.most).max(1);
        } else if took < wanted / 2 {
            self.budget = (2 * self.budget).min(self.most);
        }
        self.is_over = now >= self.ends;
    }
}

impl HostShares {
    /// No window has taken anything. `most` is the largest budget of a team's turn.
    #[must_use]
    pub fn new(most: u32) -> HostShares {
        HostShares {
            accounts: BTreeMap::new(),
            level: 0,
            spent: 0,
            active: Vec::new(),
            turn: 1,
            most,
            poll_ends: Instant::now(),
            paused: None,
            company: Instant::now(),
            last: WindowId(0),
            ran_in: Vec::new(),
            ran: (1, 1),
        }
    }

    /// A poll begins.
    pub fn begin_poll(&mut self, now: Instant) {
        let pause = self.paused.take().map_or(Duration::ZERO, |since| now.duration_since(since));
        let is_alone = now.duration_since(self.company) > ALONE;
        let shortest = if is_alone { LONGEST_POLL } else { POLL };
        self.poll_ends = now + (POLL_FOR_PAUSE * pause).clamp(shortest, LONGEST_POLL);
    }

    /// The poll ends, and SMs have work left.
    pub fn pause(&mut self) {
        self.paused = Some(Instant::now());
    }

    /// When the poll has taken its time.
    #[must_use]
    pub fn poll_ends(&self) -> Instant {
        self.poll_ends
    }

    /// Whether the poll has taken its time.
    #[must_use]
    pub fn is_poll_over(&self) -> bool {
        Instant::now() >= self.poll_ends
    }

    /// A turn begins, in which these SMs have work of these windows. Returns the order in which
    /// they run, and for each SM whether its window runs first.
    pub fn begin_turn(&mut self, with_work: &[(usize, WindowId)]) -> Vec<(usize, bool)> {
        self.advance();
        self.turn += 1;
        self.ran = (1, 1);
        self.active.clear();
        for &(_, window) in with_work {
            let fresh = self.fresh();
            let account = self.accounts.entry(window).or_insert(fresh);
            if account.turn < self.turn {
                (account.turn, account.sms) = (self.turn, 0);
                self.active.push(window);
            }
            account.sms += 1;
        }
        match self.active[..] {
            [] => {}
            [one] if one == self.last => {}
            [.., last] => {
                let now = Instant::now();
                (self.company, self.last) = (now, last);
                self.poll_ends = self.poll_ends.min(now + POLL);
            }
        }
        let mut least = u64::MAX;
        for window in &self.active {
            let Some(account) = self.accounts.get_mut(window) else { continue };
            account.taken = account.taken.max(self.level.saturating_sub(BEHIND));
            let faded = account.share - account.share / FADING;
            account.share = faded.max(account.sms.saturating_mul(WHOLE));
            least = least.min(account.taken);
        }
        if !self.active.is_empty() {
            self.level = self.level.max(least);
        }
        let is_first = |window| {
            self.accounts.get(&window).is_some_and(|account| account.taken + AHEAD < self.level)
        };
        let order = with_work.iter().map(|&(sm, window)| (sm, is_first(window)));
        let mut order: Vec<_> = order.collect();
        order.sort_by_key(|&(sm, first)| (!first, self.ran_in.get(sm).copied().unwrap_or(0), sm));
        order
    }

    /// An SM runs in this turn.
    pub fn runs(&mut self, sm: usize) {
        if self.ran_in.len() <= sm {
            self.ran_in.resize(sm + 1, 0);
        }
        self.ran_in[sm] = self.turn;
    }

    /// The turn ends after as many SMs as `ran`, and `left` others may run.
    pub fn cut_turn(&mut self, ran: usize, left: usize) {
        self.ran = (ran, ran + left);
    }

    /// Device time that passes in a turn, where `whole` passes while all SMs run: it is as far as
    /// SMs get in the mean.
    #[must_use]
    pub fn time_of_turn(&self, whole: u64) -> u64 {
        let (ran, of) = self.ran;
        (whole * ran as u64 / of as u64).max(1)
    }

    /// The level rises by what one SM had of the time of the last turn.
    fn advance(&mut self) {
        let shares = self.active.iter().filter_map(|window| self.accounts.get(window));
        let shares: u64 = shares.map(|account| u64::from(account.share)).sum();
        let spent = std::mem::take(&mut self.spent);
        self.level += spent.saturating_mul(WHOLE.into()).checked_div(shares).unwrap_or(0);
    }

    fn fresh(&self) -> Account {
        Account { taken: self.level, turn: 0, sms: 0, share: WHOLE, budget: self.most }
    }

    /// Whether a window's SMs run in this turn.
    #[must_use]
    pub fn may_run(&self, window: WindowId) -> bool {
        let limit = self.level + AHEAD;
        self.accounts.get(&window).is_none_or(|account| account.taken <= limit)
    }

    /// Whether a piece of a window's copy or fill may be done now, beside other windows' SMs.
    #[must_use]
    pub fn may_copy(&self, window: WindowId) -> bool {
        self.active.iter().all(|active| *active == window) || self.may_run(window)
    }

    /// An SM of a window runs from now on.
    #[must_use]
    pub fn run(&self, window: WindowId) -> Run {
        let began = Instant::now();
        let account = self.accounts.get(&window).copied().unwrap_or_else(|| self.fresh());
        // Its SMs with work may use the time that its idle SMs leave.
        let run = RUN * account.share / (WHOLE * account.sms.max(1));
        let ends = began + run.min(LONGEST_RUN);
        let pace = Pace { is_over: false, budget: account.budget, ends, most: self.most };
        Run { began, pace }
    }

    /// A window took that time on one SM, or for copies and fills. `budget` is that of its next
    /// team's turn.
    pub fn took(&mut self, window: WindowId, time: Duration, budget: Option<u32>) {
        let fresh = self.fresh();
        let account = self.accounts.entry(window).or_insert(fresh);
        if account.turn < self.turn {
            account.taken = account.taken.max(self.level.saturating_sub(BEHIND));
        }
        if window != self.last {
            self.company = Instant::now();
        }
        let nanos = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        self.spent += nanos;
        let nanos = nanos.saturating_mul(WHOLE.into()) / u64::from(account.share.max(WHOLE));
        account.taken = account.taken.saturating_add(nanos);
        account.budget = budget.unwrap_or(account.budget);
        if self.active.is_empty() {
            self.level = self.level.max(account.taken);
        }
    }

    /// The window is no more.
    pub fn forget(&mut self, window: WindowId) {
        self.accounts.remove(&window);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DEAR: WindowId = WindowId(1);
    const CHEAP: WindowId = WindowId(2);

    fn begin_turn(shares: &mut HostShares, windows: &[WindowId]) {
        let with_work: Vec<_> = windows.iter().copied().enumerate().collect();
        let order = shares.begin_turn(&with_work);
        assert_eq!(order.len(), windows.len());
    }

    /// Plays turns in which an SM of the first window takes 200 µs and one of the second 2 µs, and
    /// gives the time that each took.
    fn play(shares: &mut HostShares, windows: &[WindowId], turns: usize) -> [u64; 2] {
        let mut took = [0, 0];
        for _ in 0..turns {
            begin_turn(shares, windows);
            for &window in windows {
                let micros = if window == DEAR { 200 } else { 2 };
                if shares.may_run(window) {
                    shares.took(window, Duration::from_micros(micros), None);
                    took[usize::from(window == CHEAP)] += micros;
                }
            }
        }
        took
    }

    #[test]
    fn windows_get_the_time_of_their_sms_whatever_their_instructions_cost() {
        let mut shares = HostShares::new(512);
        let [dear, cheap] = play(&mut shares, &[DEAR, CHEAP], 10_000);
        assert!(dear.abs_diff(cheap) <= 600, "{dear} and {cheap} µs");
        let mut shares = HostShares::new(512);
        let [dear, cheap] = play(&mut shares, &[DEAR, CHEAP, CHEAP, CHEAP], 10_000);
        assert!((3 * dear).abs_diff(cheap) <= 3000, "{dear} and {cheap} µs on three SMs");
    }

    #[test]
    fn time_is_not_saved_up() {
        let mut shares = HostShares::new(512);
        play(&mut shares, &[DEAR], 1000);
        let [dear, cheap] = play(&mut shares, &[DEAR, CHEAP], 1000);
        assert!(dear.abs_diff(cheap) <= 600, "the newcomer is level: {dear} and {cheap} µs");
        play(&mut shares, &[CHEAP], 100_000);
        let [dear, _] = play(&mut shares, &[DEAR, CHEAP], 1000);
        // It has what it was behind, and as much again, because that raises the level.
        let saved = 2 * (BEHIND + AHEAD) / 1000;
        assert!(dear <= 2000 + saved + 600, "{dear} µs after a pause");
    }

    /// A window that used less than its share does not wait for the SMs of other windows. SMs that
    /// did not run in the last turn come before SMs that ran.
    #[test]
    fn who_is_behind_runs_first_and_turns_go_round() {
        let mut shares = HostShares::new(512);
        let work: Vec<_> = (0..8).map(|sm| (sm, if sm == 5 { CHEAP } else { DEAR })).collect();
        let order = |shares: &mut HostShares, ran: &[usize]| -> Vec<usize> {
            let order = shares.begin_turn(&work).into_iter().map(|(sm, _)| sm).collect();
            ran.iter().for_each(|&sm| shares.runs(sm));
            order
        };
        assert_eq!(order(&mut shares, &[0, 1, 2]), [0, 1, 2, 3, 4, 5, 6, 7]);
        shares.cut_turn(3, 5);
        assert_eq!(shares.time_of_turn(800), 300);
        assert_eq!(order(&mut shares, &[3, 6]), [3, 4, 5, 6, 7, 0, 1, 2]);
        shares.took(DEAR, Duration::from_millis(70), None);
        assert_eq!(order(&mut shares, &[5, 4]), [5, 4, 7, 0, 1, 2, 3, 6]);
        shares.took(CHEAP, Duration::from_millis(10), None);
        assert_eq!(order(&mut shares, &[]), [7, 0, 1, 2, 3, 6, 4, 5]);
    }

    #[test]
    fn a_poll_is_longer_where_pauses_are_long_and_one_window_is_alone() {
        let mut shares = HostShares::new(512);
        let mut poll = |windows: &[WindowId], pause: Option<Duration>, after: Duration| {
            begin_turn(&mut shares, windows);
            let now = shares.company + after;
            shares.paused = pause.map(|pause| now - pause);
            shares.begin_poll(now);
            shares.poll_ends - now
        };
        let both = [DEAR, CHEAP];
        assert_eq!(poll(&both, None, 2 * ALONE), LONGEST_POLL, "long after a turn");
        assert_eq!(poll(&both, None, ALONE / 2), POLL);
        assert_eq!(poll(&both, Some(POLL / 10), ALONE / 2), POLL);
        assert_eq!(poll(&both, Some(4 * POLL), ALONE / 2), 8 * POLL);
        assert_eq!(poll(&both, Some(100 * POLL), ALONE / 2), LONGEST_POLL);
        assert_eq!(poll(&[DEAR], None, ALONE / 2), POLL);
        assert_eq!(poll(&[DEAR], None, 2 * ALONE), LONGEST_POLL);
        assert_eq!(poll(&[CHEAP], None, ALONE / 2), POLL, "another one has come");
    }

    #[test]
    fn copies_wait_for_others_only() {
        let mut shares = HostShares::new(512);
        begin_turn(&mut shares, &[CHEAP]);
        assert!(shares.may_copy(DEAR));
        shares.took(DEAR, Duration::from_millis(1), None);
        assert!(!shares.may_copy(DEAR) && shares.may_run(CHEAP));
        begin_turn(&mut shares, &[]);
        assert!(shares.may_copy(DEAR), "nobody runs");
        begin_turn(&mut shares, &[DEAR]);
        assert!(shares.may_copy(DEAR), "nobody else runs");
    }

    #[test]
    fn dear_instructions_make_turns_of_teams_short() {
        let mut run = HostShares::new(512).run(DEAR);
        assert_eq!(run.pace.budget, 512);
        run.pace.turn_took(run.began, run.began + RUN / 10);
        assert_eq!((run.pace.budget, run.pace.is_over), (512, false));
        run.pace.turn_took(run.began, run.began + 100 * TEAM_TURN);
        assert_eq!((run.pace.budget, run.pace.is_over), (5, true));
        run.pace.turn_took(run.began, run.began + 1000 * TEAM_TURN);
        assert_eq!(run.pace.budget, 1);
        run.pace.turn_took(run.began, run.began + TEAM_TURN / 4);
        assert_eq!((run.pace.budget, run.pace.is_over), (2, false));
    }
}
