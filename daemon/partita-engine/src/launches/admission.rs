//! Who may go.
//!
//! A worker, a ticket and machine code keep to their application's partition, and so does an
//! original whose application has every SM. What this page says of workers holds for all four. A
//! kernel in its original form cannot be confined otherwise, so no other application may have grids
//! on the device while it runs.
//!
//! The order of arrival decides. Every launch holds a ticket, the id of its main operation, which
//! rises with time.
//!
//! - A worker launch waits while an original of another application is in flight, or waits with a
//!   lower ticket.
//! - An original waits while anything of another application is in flight, or while an original of
//!   another application waits with a lower ticket. Where its own application has originals in
//!   flight, it waits for every launch with a lower ticket: originals that overlap would keep the
//!   device for ever. Where its application rests, it waits for the end of the rest, and
//!   no turn goes on while others wait ([`super::turns`]). While applications of priority `latency`
//!   are at work, it is held back ([`super::yielding`]). Nobody waits for an original that rests or
//!   is held back.
//! - A launch in slices waits as an original does. Where there are no rests, it takes a new ticket
//!   behind each slice ([`super::slice`]).
//! - Inside an application launches start in order of their streams' priorities and then of their
//!   tickets, as room allows. Priorities decide among launches that keep to a partition: an
//!   original that goes before others of its application would keep their lower ticket waiting.
//!
//! No application starves: only finitely many launches hold a lower ticket, none is added, and
//! rests and holding back end. Launches of a lower priority wait as long as their own program
//! launches others. Nobody deadlocks: no original waits for launches of its application, and the
//! original with the lowest ticket waits only for what is in flight, which ends without it, and for
//! the end of a rest or of holding back. A launch that keeps to a partition waits for originals,
//! and for the first launch of its application, which waits for originals only.

use super::Launches;
use super::spec::{Launch, Outlook, Pending, Place};
use super::waiting::{Kind, Waiting};
use crate::Rests;
use crate::observer::{Expected, SHORT};
use crate::turn::Turn;
use partita_model::{ApplicationId, LaunchId, Nanos, OperationId, Sharing};
use std::collections::BTreeMap;

/// Launches in flight, by whether they keep to a partition.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct InFlight {
    pub(super) confined: usize,
    pub(super) originals: usize,
}

impl InFlight {
    pub(super) fn total(self) -> usize {
        self.confined + self.originals
    }

    fn of_mut(&mut self, is_confined: bool) -> &mut usize {
        if is_confined { &mut self.confined } else { &mut self.originals }
    }
}

impl Launches {
    /// Whether a launch may start that holds the ticket `place.main`.
    pub(crate) fn may_go(&self, turn: &Turn<'_>, place: Place, is_confined: bool) -> bool {
        let (id, application) = (place.main, place.application);
        if turn.common.sharing != Sharing::Spatial {
            // The hardware's scheduler decides.
            return true;
        }
        let own = self.of.get(&application).copied().unwrap_or_default();
        let others_originals = self.in_flight.originals - own.originals;
        let now = turn.rest_clock();
        let waiting = &self.waiting;
        let is_other = |other: ApplicationId| other != application;
        let yields = |id| self.yielding.holds(id, turn.now());
        let would_go =
            |other| is_other(other) && !self.turns.is_resting(other, now) && !yields(other);
        if others_originals > 0 || waiting.before(id, Kind::Alone).any(would_go) {
            return false;
        }
        if is_confined {
            // An own launch goes first.
            return !waiting.is_own_before((place.priority, id), application)
                && !self.starved.values().any(|starved| *starved == application);
        }
        if own.originals > 0 {
            // Where applications rest, what came before others does not make their turns longer.
            let is_asked_for = match turn.config().rests {
                Rests::ByDevice | Rests::ByHost => {
                    waiting.of_kind(Kind::Confined).any(is_other)
                        || waiting.of_kind(Kind::Alone).any(would_go)
                }
                Rests::Never => waiting.before(id, Kind::Confined).any(is_other),
            };
            if is_asked_for {
                return false;
            }
        }
        self.in_flight.confined == own.confined
            && !self.turns.is_resting(application, now)
            && !yields(application)
    }

    /// A launch has started.
    pub(super) fn took_off(
        &mut self,
        turn: &Turn<'_>,
        application: ApplicationId,
        is_confined: bool,
    ) {
        self.turns.saw(turn, application);
        if !is_confined {
            self.turns.begin(application, turn.rest_clock());
            self.yielding.started(application);
        }
        *self.in_flight.of_mut(is_confined) += 1;
        *self.of.entry(application).or_default().of_mut(is_confined) += 1;
    }

    /// A launch is gone. The time of its application's turn, if that ends with it.
    pub(super) fn landed(
        &mut self,
        turn: &Turn<'_>,
        application: ApplicationId,
        is_confined: bool,
    ) -> Option<Nanos> {
        self.turns.saw(turn, application);
        *self.in_flight.of_mut(is_confined) -= 1;
        let own = self.of.entry(application).or_default();
        *own.of_mut(is_confined) -= 1;
        let is_last = own.originals == 0;
        if own.total() == 0 {
            self.of.remove(&application);
        }
        let took = is_last.then(|| self.turns.end(application, turn.rest_clock())).flatten()?;
        self.yielding.took(application, took);
        Some(took)
    }

    /// Whether other applications have launches in flight.
    pub(crate) fn has_company(&self, application: ApplicationId) -> bool {
        let own = self.of.get(&application).copied().unwrap_or_default();
        self.in_flight.total() > own.total()
    }

    /// Enters a launch that has to wait for room or for its turn.
    pub(crate) fn wait_for_turn(&mut self, turn: &Turn<'_>, place: Place, pending: &Pending) {
        let Place { session, application, stream, main, priority } = place;
        let kind = Kind::of(pending.is_confined());
        if kind == Kind::Alone {
            self.look_after_urgent(application, turn.now());
        }
        let waiting = Waiting { application, session, stream, kind, priority };
        self.waiting.insert(pending.ticket(main), waiting);
    }

    /// The waiting launches that may be the next to start: the first of each application and kind,
    /// by ticket.
    pub(crate) fn candidates(&self) -> BTreeMap<OperationId, Waiting> {
        self.waiting.first()
    }

    /// The candidate behind one that waits no longer.
    pub(crate) fn candidate_behind(
        &self,
        (id, gone): (OperationId, Waiting),
    ) -> Option<(OperationId, Waiting)> {
        let is_gone = !self.waiting.contains(id);
        is_gone.then(|| self.waiting.behind(id, gone)).flatten()
    }

    /// Whether launches of other applications wait for room or for their turn.
    pub(crate) fn is_other_waiting(&self, application: ApplicationId) -> bool {
        let mut kinds = [Kind::Confined, Kind::Alone].into_iter();
        kinds.any(|kind| self.waiting.of_kind(kind).any(|other| other != application))
    }

    /// Launches that the device has of a stream.
    pub(crate) fn on_stream(&self, place: Place) -> usize {
        let same = |launch: &&Launch| {
            (launch.place.session, launch.place.stream) == (place.session, place.stream)
        };
        let own = self.records.values().map(Box::as_ref).filter(same);
        own.filter(|launch| !launch.main_done).count()
    }

    /// What is expected of a launch that has started.
    pub(crate) fn expect(&mut self, id: LaunchId, outlook: Option<Outlook>) {
        if let Some(launch) = self.records.get_mut(&id) {
            launch.outlook = outlook;
        }
    }

    /// What is expected of all launches that the device has of an application, from now on. `None`
    /// where that is unknown of one, or where one runs longer than it may.
    pub(crate) fn expected_of(&self, application: ApplicationId, now: Nanos) -> Option<Expected> {
        let own = self.records.values().filter(|launch| launch.place.application == application);
        own.filter(|launch| !launch.main_done).try_fold(Expected::default(), |sum, launch| {
            let Outlook { expected, limit } = launch.outlook?;
            let run = now.saturating_sub(launch.begun.unwrap_or(now));
            (run <= expected.bound(limit)).then(|| sum.and(expected.after(run)))
        })
    }

    /// Whether another application has originals in flight that began when it was the only one.
    pub(crate) fn is_lent_to_another(&self, application: ApplicationId) -> bool {
        let mut others = self.records.values().filter(|l| l.place.application != application);
        others.any(|launch| {
            let is_long = launch.outlook.is_some_and(|outlook| outlook.limit > SHORT);
            is_long && launch.is_original() && !launch.main_done
        })
    }

    pub(crate) fn is_anyone_waiting(&self) -> bool {
        !self.waiting.is_empty()
    }
}
