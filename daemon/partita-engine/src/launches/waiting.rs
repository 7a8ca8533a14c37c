//! Launches at the head of their stream that wait for room or for their turn.
//!
//! They stand in queues, one for each application and [`Kind`]. Inside a queue the priorities of
//! streams decide, and then the order of tickets ([`super::admission`]), so nobody looks behind a
//! queue's first launch. What this page costs depends on the number of applications that wait and
//! of priorities, not on the number of launches.

use partita_model::{ApplicationId, OperationId, SessionId, StreamId};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;

/// What a launch waits for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Kind {
    /// Room in its application's partition.
    Confined,
    /// The whole device.
    Alone,
}

impl Kind {
    pub(super) fn of(is_confined: bool) -> Kind {
        if is_confined { Kind::Confined } else { Kind::Alone }
    }
}

/// A launch that could start if it were let.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Waiting {
    pub(super) application: ApplicationId,
    pub(crate) session: SessionId,
    pub(crate) stream: StreamId,
    pub(super) kind: Kind,
    /// The priority of its stream: lower numbers go first.
    pub(super) priority: i32,
}

impl Waiting {
    /// Where a launch with this ticket stands in its queue.
    fn rank(&self, id: OperationId) -> Rank {
        match self.kind {
            Kind::Confined => (self.priority, id),
            Kind::Alone => (0, id),
        }
    }
}

/// Priority and ticket.
type Rank = (i32, OperationId);
type Queue = BTreeSet<Rank>;
/// The launches that wait of one kind, by application. No queue is empty.
type Queues = BTreeMap<ApplicationId, Queue>;

/// The lowest ticket of a queue.
fn lowest(queue: &Queue) -> Option<OperationId> {
    let behind = |&(priority, _): &Rank| {
        let last = Bound::Excluded((priority, OperationId(u64::MAX)));
        queue.range((last, Bound::Unbounded)).next().copied()
    };
    std::iter::successors(queue.first().copied(), behind).map(|(_, ticket)| ticket).min()
}

/// All launches that wait.
#[derive(Debug, Default)]
pub(super) struct WaitingLaunches {
    all: BTreeMap<OperationId, Waiting>,
    confined: Queues,
    alone: Queues,
}

impl WaitingLaunches {
    /// Enters a launch, or changes what it waits for.
    pub(super) fn insert(&mut self, id: OperationId, waiting: Waiting) {
        self.remove(id);
        self.all.insert(id, waiting);
        let queue = self.queues_mut(waiting.kind).entry(waiting.application).or_default();
        queue.insert(waiting.rank(id));
    }

    pub(super) fn remove(&mut self, id: OperationId) {
        let Some(waiting) = self.all.remove(&id) else { return };
        let queues = self.queues_mut(waiting.kind);
        if let Some(queue) = queues.get_mut(&waiting.application) {
            queue.remove(&waiting.rank(id));
            if queue.is_empty() {
                queues.remove(&waiting.application);
            }
        }
    }

    /// Forgets all launches of a session.
    pub(super) fn forget(&mut self, session: SessionId) {
        let of_session = self.all.iter().filter(|(_, waiting)| waiting.session == session);
        for id in of_session.map(|(id, _)| *id).collect::<Vec<_>>() {
            self.remove(id);
        }
    }

    pub(super) fn clear(&mut self) {
        *self = WaitingLaunches::default();
    }

    pub(super) fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    pub(super) fn contains(&self, id: OperationId) -> bool {
        self.all.contains_key(&id)
    }

    /// The first launch of each queue.
    pub(super) fn first(&self) -> BTreeMap<OperationId, Waiting> {
        let queues = self.confined.values().chain(self.alone.values());
        let first = queues.filter_map(BTreeSet::first);
        first.filter_map(|&(_, id)| Some((id, *self.all.get(&id)?))).collect()
    }

    /// The launch behind one in its queue, which need not be there any more.
    pub(super) fn behind(&self, id: OperationId, gone: Waiting) -> Option<(OperationId, Waiting)> {
        let queue = self.queues(gone.kind).get(&gone.application)?;
        let behind = (Bound::Excluded(gone.rank(id)), Bound::Unbounded);
        let (_, next) = *queue.range(behind).next()?;
        Some((next, *self.all.get(&next)?))
    }

    /// The applications that wait.
    pub(super) fn of_kind(&self, kind: Kind) -> impl Iterator<Item = ApplicationId> {
        self.queues(kind).keys().copied()
    }

    /// The applications that wait with a lower ticket.
    pub(super) fn before(
        &self,
        id: OperationId,
        kind: Kind,
    ) -> impl Iterator<Item = ApplicationId> {
        let queues = self.queues(kind).iter();
        let before =
            queues.filter(move |(_, queue)| lowest(queue).is_some_and(|lowest| lowest < id));
        before.map(|(application, _)| *application)
    }

    /// Whether a launch that keeps to its application's partition has others of the application
    /// before it.
    pub(super) fn is_own_before(&self, rank: Rank, application: ApplicationId) -> bool {
        let first = self.confined.get(&application).and_then(BTreeSet::first);
        first.is_some_and(|first| *first < rank)
    }

    fn queues(&self, kind: Kind) -> &Queues {
        match kind {
            Kind::Confined => &self.confined,
            Kind::Alone => &self.alone,
        }
    }

    fn queues_mut(&mut self, kind: Kind) -> &mut Queues {
        match kind {
            Kind::Confined => &mut self.confined,
            Kind::Alone => &mut self.alone,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_launch_that_waits_for_something_else_changes_its_queue() {
        let (id, application) = (OperationId(5), ApplicationId(1));
        let mut waiting = WaitingLaunches::default();
        for kind in [Kind::Confined, Kind::Alone] {
            let (session, stream) = (SessionId(1), StreamId(1));
            waiting.insert(id, Waiting { application, session, stream, kind, priority: 0 });
        }
        assert_eq!(waiting.of_kind(Kind::Confined).count(), 0);
        let is_before = |id: u64| waiting.before(OperationId(id), Kind::Alone).count() > 0;
        assert!(is_before(6) && !is_before(5));
        waiting.remove(id);
        assert!(waiting.is_empty() && waiting.first().is_empty());
    }

    #[test]
    fn priorities_go_before_tickets_and_the_lowest_ticket_counts_for_others() {
        let mut waiting = WaitingLaunches::default();
        let one = |kind, priority| Waiting {
            application: ApplicationId(1),
            session: SessionId(1),
            stream: StreamId(1),
            kind,
            priority,
        };
        for (id, priority) in [(5, 0), (6, -1), (7, -1), (8, 0)] {
            waiting.insert(OperationId(id), one(Kind::Confined, priority));
        }
        let mut order = Vec::new();
        let (mut id, mut next) = waiting.first().pop_first().unwrap();
        loop {
            order.push(id.0);
            waiting.remove(id);
            let Some(behind) = waiting.behind(id, next) else { break };
            (id, next) = behind;
        }
        assert_eq!(order, [6, 7, 5, 8]);
        waiting.insert(OperationId(5), one(Kind::Confined, 0));
        waiting.insert(OperationId(9), one(Kind::Confined, -1));
        assert!(waiting.before(OperationId(6), Kind::Confined).count() == 1);
        assert!(waiting.is_own_before((0, OperationId(4)), ApplicationId(1)));
        assert!(!waiting.is_own_before((-2, OperationId(10)), ApplicationId(1)));
        // Kernels that run alone keep the order of their tickets.
        for (id, priority) in [(20, 0), (21, -1)] {
            waiting.insert(OperationId(id), one(Kind::Alone, priority));
        }
        assert!(waiting.first().contains_key(&OperationId(20)));
    }
}
