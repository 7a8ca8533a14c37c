//! Launches at the head of their stream that wait for room or for their turn.
//!
//! They stand in queues, one for each application and [`Kind`]. Inside a queue the order of tickets
//! decides ([`super::admission`]), so nobody looks behind a queue's first launch. What this page
//! costs depends on the number of applications that wait, not on the number of their launches.

use partita_model::{ApplicationId, OperationId, SessionId, StreamId};
use std::collections::{BTreeMap, BTreeSet};

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
}

/// The launches that wait of one kind, by application. No queue is empty.
type Queues = BTreeMap<ApplicationId, BTreeSet<OperationId>>;

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
        self.queues_mut(waiting.kind).entry(waiting.application).or_default().insert(id);
    }

    pub(super) fn remove(&mut self, id: OperationId) {
        let Some(Waiting { application, kind, .. }) = self.all.remove(&id) else { return };
        let queues = self.queues_mut(kind);
        if let Some(queue) = queues.get_mut(&application) {
            queue.remove(&id);
            if queue.is_empty() {
                queues.remove(&application);
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
        first.filter_map(|&id| Some((id, *self.all.get(&id)?))).collect()
    }

    /// The launch behind a ticket in a queue.
    pub(super) fn behind(
        &self,
        id: OperationId,
        of: (Kind, ApplicationId),
    ) -> Option<(OperationId, Waiting)> {
        let queue = self.queues(of.0).get(&of.1)?;
        let next = *queue.range(OperationId(id.0 + 1)..).next()?;
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
            queues.filter(move |(_, queue)| queue.first().is_some_and(|first| *first < id));
        before.map(|(application, _)| *application)
    }

    /// Whether an application waits with a lower ticket.
    pub(super) fn is_before(
        &self,
        id: OperationId,
        (kind, application): (Kind, ApplicationId),
    ) -> bool {
        let first = self.queues(kind).get(&application).and_then(BTreeSet::first);
        first.is_some_and(|first| *first < id)
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
            waiting.insert(id, Waiting { application, session, stream, kind });
        }
        assert_eq!(waiting.of_kind(Kind::Confined).count(), 0);
        assert!(waiting.is_before(OperationId(6), (Kind::Alone, application)));
        assert!(!waiting.is_before(id, (Kind::Alone, application)));
        waiting.remove(id);
        assert!(waiting.is_empty() && waiting.first().is_empty());
    }
}
