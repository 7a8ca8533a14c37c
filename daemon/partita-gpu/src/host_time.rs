//! Whose time: device time goes on only as far as the programs let it.
//!
//! A program's next call takes effect a fixed charge of device time after its call before, or,
//! where that is later, after the answer that it waited for; however long the host took. So the
//! device may advance to the earliest of these moments over all programs and no further, until that
//! program has called. A program that waits for the device holds nobody up, nor does one that has
//! not called for as long as the patience: it is idle, or a slow host, and counts as one of
//! [`Pacer::exceeded`]. While a program's module is prepared it is us who are slow, and the
//! patience is longer.
//!
//! A kernel that waits for what its program writes into memory that they share, and the program
//! that answers what the kernel writes, need no calls, and their time is the host's whatever we do.
//! No call may come before the device goes on, so where such work is in flight
//! ([`partita_engine::Engine::awaits_host`]) the patience is [`AWAITED`]. That is known from the
//! kernel's code and arguments alone: a device that stands still shows nothing. A kernel that finds
//! its host memory through other memory has the whole patience.
//!
//! This is a conservative simulation with the charge as look-ahead. Where no patience is exceeded,
//! the order of calls and their device times depend on the programs alone, as long as each calls
//! from one thread at a time.

use partita_model::{HostTime, Nanos};
use std::time::{Duration, Instant};

/// How many times the patience a module may take to be prepared.
const PREPARING: u32 = 30;

/// The patience with a program for which a kernel may be waiting. Programs that need no kernel to
/// wait, and have such work in flight, are as determined as before on hosts that let them call so
/// soon.
const AWAITED: Duration = Duration::from_millis(10);

/// Where one session is.
#[derive(Clone, Copy, Debug)]
pub struct Pace {
    /// When its next call takes effect.
    next: Nanos,
    /// When it was last heard of or answered.
    heard: Instant,
    late: bool,
}

impl Pace {
    /// When its next call takes effect.
    #[must_use]
    pub fn next(&self) -> Nanos {
        self.next
    }
}

/// What holds for all sessions.
#[derive(Clone, Copy, Debug)]
pub struct Pacer {
    rules: Option<HostTime>,
    exceeded: u64,
    /// Sessions that have come.
    arrived: u32,
}

impl Pacer {
    /// By the device's rules; without any, nobody is waited for.
    #[must_use]
    pub fn new(rules: Option<HostTime>) -> Self {
        Pacer { rules, exceeded: 0, arrived: 0 }
    }

    /// The rules.
    #[must_use]
    pub fn rules(&self) -> Option<HostTime> {
        self.rules
    }

    /// How often a program was not waited for any more.
    #[must_use]
    pub fn exceeded(&self) -> u64 {
        self.exceeded
    }

    /// A session has come.
    pub fn arrives(&mut self, device: Nanos, host: Instant) -> Pace {
        self.arrived = self.arrived.saturating_add(1);
        Pace { next: device, heard: host, late: false }
    }

    /// Whether programs are missing that are to start together.
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
        *pace = Pace { next: pace.next.max(device + charge), heard: host, late: false };
    }

    /// A session that waited was answered and goes on. Whether it waited is open before its next
    /// call could take effect: it may not have got that far on the host. So an answer by then
    /// changes nothing.
    pub fn answered(&self, pace: &mut Pace, device: Nanos, host: Instant) {
        if device > pace.next {
            self.goes_on(pace, device, host);
        } else {
            pace.heard = host;
        }
    }

    /// How far the device may go for a session that does not wait for it; `None`: as far as it
    /// likes. `prepares`: a module of the session is being prepared. `awaited`: a kernel may be
    /// waiting for what the program writes without a call.
    pub fn bound(
        &mut self,
        pace: &mut Pace,
        host: Instant,
        prepares: bool,
        awaited: impl FnOnce() -> bool,
    ) -> Option<Nanos> {
        let rules = self.rules?;
        let patience = Duration::from_millis(rules.patience_ms.into());
        let patience = if prepares { patience * PREPARING } else { patience };
        let silent = host.saturating_duration_since(pace.heard);
        if silent < patience && (silent < AWAITED || !awaited()) {
            return Some(pace.next);
        }
        if !pace.late {
            pace.late = true;
            self.exceeded += 1;
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RULES: HostTime = HostTime { call: Nanos(2_000), patience_ms: 100, together: 1 };

    #[test]
    fn the_device_goes_on_by_the_charge_however_long_the_host_takes() {
        let mut pacer = Pacer::new(Some(RULES));
        let start = Instant::now();
        let mut pace = pacer.arrives(Nanos(10), start);
        assert!(pacer.may_call(&pace, Nanos(10)));
        pacer.goes_on(&mut pace, Nanos(10), start);
        assert!(!pacer.may_call(&pace, Nanos(2_009)));
        assert_eq!(
            pacer.bound(&mut pace, start + Duration::from_millis(99), false, || false),
            Some(Nanos(2_010))
        );
        assert!(pacer.may_call(&pace, Nanos(2_010)));
    }

    #[test]
    fn patience_ends_and_is_counted_once() {
        let mut pacer = Pacer::new(Some(RULES));
        let start = Instant::now();
        let mut pace = pacer.arrives(Nanos(0), start);
        let late = start + Duration::from_millis(101);
        assert_eq!(
            (
                pacer.bound(&mut pace, late, false, || false),
                pacer.bound(&mut pace, late, false, || false)
            ),
            (None, None)
        );
        assert_eq!(pacer.exceeded(), 1);
        pacer.goes_on(&mut pace, Nanos(50), late);
        assert_eq!(pacer.bound(&mut pace, late, false, || false), Some(Nanos(2_050)));
        let late = late + Duration::from_millis(2_999);
        assert_eq!(
            pacer.bound(&mut pace, late, true, || false),
            Some(Nanos(2_050)),
            "a module is prepared"
        );
        assert_eq!(pacer.exceeded(), 1);
    }

    #[test]
    fn who_is_awaited_is_given_less_time() {
        let mut pacer = Pacer::new(Some(RULES));
        let start = Instant::now();
        let mut pace = pacer.arrives(Nanos(5), start);
        let soon = start + Duration::from_millis(9);
        let asked = || panic!("nobody needs to know so soon");
        assert_eq!(pacer.bound(&mut pace, soon, false, asked), Some(Nanos(5)));
        let later = start + Duration::from_millis(10);
        assert_eq!(pacer.bound(&mut pace, later, false, || false), Some(Nanos(5)));
        assert_eq!((pacer.bound(&mut pace, later, false, || true), pacer.exceeded()), (None, 1));
    }

    #[test]
    fn an_answer_before_the_next_call_changes_nothing() {
        let pacer = Pacer::new(Some(RULES));
        let start = Instant::now();
        let mut pace = Pacer::new(None).arrives(Nanos(0), start);
        pacer.goes_on(&mut pace, Nanos(0), start);
        pacer.answered(&mut pace, Nanos(2_000), start);
        assert_eq!(pace.next(), Nanos(2_000));
        pacer.answered(&mut pace, Nanos(2_500), start);
        assert_eq!(pace.next(), Nanos(4_500));
    }

    #[test]
    fn programs_that_start_together_wait_for_each_other() {
        let mut pacer = Pacer::new(Some(HostTime { together: 2, ..RULES }));
        pacer.arrives(Nanos(0), Instant::now());
        assert!(pacer.gathers());
        pacer.arrives(Nanos(0), Instant::now());
        assert!(!pacer.gathers());
    }

    #[test]
    fn without_rules_nobody_is_waited_for() {
        let mut pacer = Pacer::new(None);
        let start = Instant::now();
        let mut pace = pacer.arrives(Nanos(0), start);
        pacer.goes_on(&mut pace, Nanos(5), start);
        assert!(pacer.may_call(&pace, Nanos(0)));
        assert_eq!((pacer.bound(&mut pace, start, false, || false), pacer.exceeded()), (None, 0));
    }
}
