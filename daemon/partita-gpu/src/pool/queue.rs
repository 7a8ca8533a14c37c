//! Whose module is prepared next.
//!
//! Modules are prepared whole, and nobody knows how long one takes before it is done. So the queue
//! goes by time spent, which is forgotten by halves ([`HALF_LIFE`]):
//!
//! - Next comes a job of the tenant with the least time spent, and of that tenant's session with
//!   the least.
//! - A session has at most half of the threads, and a tenant all but one.
//! - The last free thread takes no job of a tenant that has spent more than [`QUICK`] lately. So a
//!   newcomer finds a thread, however many tenants have slow modules.
//!
//! The queue has no lock and no clock: callers give the time.

use partita_model::{SessionId, TenantId};
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// The time in which a tenant's time spent counts for half as much.
const HALF_LIFE: Duration = Duration::from_secs(30);

/// The time spent with which a tenant may take the last free thread. It suffices for the modules of
/// most programs.
const QUICK: Duration = Duration::from_secs(2);

/// Whose a job is.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Owner {
    /// The user.
    pub tenant: TenantId,
    /// The user's session.
    pub session: SessionId,
}

/// The number of a running job.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Ticket(u64);

/// A job that a thread begins.
pub(super) struct Begun<J> {
    pub ticket: Ticket,
    pub job: J,
    /// Set when nobody waits for the job any more.
    pub cancelled: Arc<AtomicBool>,
}

struct Running {
    ticket: Ticket,
    owner: Owner,
    since: Instant,
    cancelled: Arc<AtomicBool>,
}

/// Jobs that wait and jobs that run.
pub(super) struct Queue<J> {
    threads: usize,
    waiting: BTreeMap<Owner, VecDeque<J>>,
    running: Vec<Running>,
    tenants: BTreeMap<TenantId, Spent>,
    sessions: BTreeMap<SessionId, Spent>,
    next: u64,
}

/// Time spent, as of a moment.
#[derive(Clone, Copy)]
struct Spent {
    seconds: f64,
    at: Instant,
}

impl Spent {
    fn seconds(self, now: Instant) -> f64 {
        let halves = now.saturating_duration_since(self.at).div_duration_f64(HALF_LIFE);
        self.seconds * (-halves).exp2()
    }
}

impl<J> Queue<J> {
    pub fn new(threads: usize) -> Self {
        Queue {
            threads,
            waiting: BTreeMap::new(),
            running: Vec::new(),
            tenants: BTreeMap::new(),
            sessions: BTreeMap::new(),
            next: 0,
        }
    }

    /// Adds a job behind its session's others.
    pub fn push(&mut self, owner: Owner, job: J) {
        self.waiting.entry(owner).or_default().push_back(job);
    }

    /// The job that a free thread begins now; `None` where each one has to wait.
    pub fn begin(&mut self, now: Instant) -> Option<Begun<J>> {
        let free = self.threads.checked_sub(self.running.len()).filter(|free| *free > 0)?;
        let may_begin = |owner: &Owner| {
            let is_last = free == 1 && self.threads > 1;
            self.runs(|other| other == *owner) < (self.threads / 2).max(1)
                && self.runs(|other| other.tenant == owner.tenant) < (self.threads - 1).max(1)
                && (!is_last || self.of_tenant(owner.tenant, now) < QUICK.as_secs_f64())
        };
        let owners = self.waiting.keys().copied().filter(may_begin);
        let rank = |owner: &Owner| {
            (self.of_tenant(owner.tenant, now), self.of_session(owner.session, now))
        };
        let ranked = owners.map(|owner| (rank(&owner), owner));
        let less = |a: &((f64, f64), Owner), b: &((f64, f64), Owner)| {
            let tenants = a.0.0.total_cmp(&b.0.0);
            tenants.then(a.0.1.total_cmp(&b.0.1)).then(a.1.cmp(&b.1))
        };
        let (_, owner) = ranked.min_by(less)?;
        let jobs = self.waiting.get_mut(&owner)?;
        let job = jobs.pop_front()?;
        if jobs.is_empty() {
            self.waiting.remove(&owner);
        }
        self.next += 1;
        let (ticket, cancelled) = (Ticket(self.next), Arc::new(AtomicBool::new(false)));
        self.running.push(Running { ticket, owner, since: now, cancelled: Arc::clone(&cancelled) });
        Some(Begun { ticket, job, cancelled })
    }

    /// A job has ended.
    pub fn end(&mut self, ticket: Ticket, now: Instant) {
        let at = self.running.iter().position(|running| running.ticket == ticket);
        let Some(at) = at else { return };
        let Running { owner, since, cancelled, .. } = self.running.swap_remove(at);
        let took = now.saturating_duration_since(since).as_secs_f64();
        let total = |spent: Option<&Spent>| {
            let seconds = took + spent.map_or(0.0, |spent| spent.seconds(now));
            Spent { seconds, at: now }
        };
        self.tenants.insert(owner.tenant, total(self.tenants.get(&owner.tenant)));
        // What little is left of long ago changes no order.
        self.tenants.retain(|_, spent| spent.seconds(now) > 1e-3);
        if !cancelled.load(Ordering::Relaxed) {
            self.sessions.insert(owner.session, total(self.sessions.get(&owner.session)));
        }
    }

    /// Drops the waiting jobs of a session that has ended, and cancels its running ones.
    pub fn forget(&mut self, session: SessionId) {
        self.waiting.retain(|owner, _| owner.session != session);
        self.sessions.remove(&session);
        for running in self.running.iter().filter(|running| running.owner.session == session) {
            running.cancelled.store(true, Ordering::Relaxed);
        }
    }

    fn runs(&self, of: impl Fn(Owner) -> bool) -> usize {
        self.running.iter().filter(|running| of(running.owner)).count()
    }

    /// Seconds that a tenant has spent, with those of its running jobs.
    fn of_tenant(&self, tenant: TenantId, now: Instant) -> f64 {
        let before = self.tenants.get(&tenant).map_or(0.0, |spent| spent.seconds(now));
        before + self.in_flight(now, |owner| owner.tenant == tenant)
    }

    fn of_session(&self, session: SessionId, now: Instant) -> f64 {
        let before = self.sessions.get(&session).map_or(0.0, |spent| spent.seconds(now));
        before + self.in_flight(now, |owner| owner.session == session)
    }

    fn in_flight(&self, now: Instant, of: impl Fn(Owner) -> bool) -> f64 {
        let running = self.running.iter().filter(|running| of(running.owner));
        running.map(|running| now.saturating_duration_since(running.since).as_secs_f64()).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn owner(tenant: u32, session: u64) -> Owner {
        Owner { tenant: TenantId(tenant), session: SessionId(session) }
    }

    /// Begins what may begin.
    fn begin(queue: &mut Queue<&'static str>, now: Instant) -> Vec<Begun<&'static str>> {
        std::iter::from_fn(|| queue.begin(now)).collect()
    }

    fn names(begun: &[Begun<&'static str>]) -> Vec<&'static str> {
        begun.iter().map(|begun| begun.job).collect()
    }

    #[test]
    fn threads_are_left_for_others() {
        let (mut queue, now) = (Queue::new(4), Instant::now());
        for job in ["a1", "a2", "a3"] {
            queue.push(owner(1, 1), job);
        }
        assert_eq!(names(&begin(&mut queue, now)), ["a1", "a2"], "half for a session");
        queue.push(owner(1, 2), "b1");
        queue.push(owner(1, 3), "c1");
        assert_eq!(names(&begin(&mut queue, now)), ["b1"], "one is left by a tenant");
        queue.push(owner(2, 4), "d1");
        assert_eq!(names(&begin(&mut queue, now)), ["d1"]);
    }

    #[test]
    fn the_last_thread_is_for_tenants_with_little_time() {
        let (mut queue, start) = (Queue::new(4), Instant::now());
        for (tenant, job) in [(1, "a"), (2, "b"), (3, "c")] {
            queue.push(owner(tenant, tenant.into()), job);
        }
        assert_eq!(begin(&mut queue, start).len(), 3);
        for (tenant, job) in [(1, "a2"), (2, "b2"), (3, "c2")] {
            queue.push(owner(tenant, tenant.into()), job);
        }
        let later = start + Duration::from_secs(3);
        assert_eq!(begin(&mut queue, later).len(), 0);
        queue.push(owner(4, 9), "d");
        assert_eq!(names(&begin(&mut queue, later)), ["d"]);
    }

    #[test]
    fn turns_go_by_time_and_time_is_forgotten() {
        let (mut queue, start) = (Queue::new(1), Instant::now());
        let run = |queue: &mut Queue<&'static str>, now: Instant, seconds: u64| {
            let begun = queue.begin(now).unwrap();
            queue.end(begun.ticket, now + Duration::from_secs(seconds));
            begun.job
        };
        for (tenant, job) in [(1, "slow"), (1, "slow"), (2, "quick"), (2, "quick"), (2, "quick")] {
            queue.push(owner(tenant, tenant.into()), job);
        }
        let order: Vec<_> = [10, 1, 1, 1, 10]
            .into_iter()
            .zip(0..)
            .map(|(takes, at)| run(&mut queue, start + Duration::from_secs(20 + at), takes))
            .collect();
        assert_eq!(order, ["slow", "quick", "quick", "quick", "slow"]);
        let later = start + HALF_LIFE * 40;
        queue.push(owner(3, 3), "other");
        assert_eq!(run(&mut queue, later, 1), "other");
        assert_eq!(queue.tenants.keys().copied().collect::<Vec<_>>(), [TenantId(3)]);
    }

    #[test]
    fn what_nobody_waits_for_is_dropped() {
        let (mut queue, now) = (Queue::new(4), Instant::now());
        for job in ["a1", "a2", "a3"] {
            queue.push(owner(1, 1), job);
        }
        queue.push(owner(1, 2), "b1");
        let begun = begin(&mut queue, now);
        queue.forget(SessionId(1));
        let is_cancelled = |begun: &Begun<_>| begun.cancelled.load(Ordering::Relaxed);
        assert_eq!(begun.iter().map(is_cancelled).collect::<Vec<_>>(), [true, true, false]);
        for begun in begun {
            queue.end(begun.ticket, now);
        }
        assert!(queue.begin(now).is_none());
        assert_eq!(queue.sessions.keys().copied().collect::<Vec<_>>(), [SessionId(2)]);
    }
}
