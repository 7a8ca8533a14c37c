//! Steps of launches that run in slices ([`crate::launches`], `slice`).

use super::Machines;
use crate::Rests;
use crate::launches::{Form, FormKind, Outlook, Pending, Place, Spec, Start};
use crate::observer::{Expected, LONGEST_SLICE, SHORT, URGENT_SLICE};
use crate::turn::Turn;
use partita_device::AddressRange;
use partita_model::{ApplicationId, Nanos, OperationId};

impl Machines {
    /// Whether it is too early for the next slice of a launch: its session has enough on the
    /// device. Where no rests share time out, the slice gets a ticket of its own.
    pub(super) fn is_next_slice_early(
        &self,
        turn: &mut Turn<'_>,
        place: Place,
        pending: &mut Pending,
    ) -> bool {
        let Form::Slice(sliced) = &pending.form else { return false };
        if sliced.ticket.is_some() {
            // It waits for others, and goes on with that.
            return false;
        }
        let longest = self.longest_slice(place.application);
        let (_, time) = self.next_slice(turn, &pending.spec, longest);
        if self.launches.is_ahead(turn, place, (time, longest)) {
            return true;
        }
        let is_anew = pending.spec.first > 0 && turn.config().rests == Rests::Never;
        if let (Form::Slice(sliced), true) = (&mut pending.form, is_anew) {
            sliced.ticket = Some(OperationId(turn.next_id()));
        }
        false
    }

    /// Whether a slice waits for modules that the device loads only while no grids run.
    pub(super) fn waits_for_loading(&self, turn: &Turn<'_>, pending: &Pending) -> bool {
        matches!(pending.form, Form::Slice(_))
            && self.sessions.is_loading()
            && turn.device.loading_waits_for_grids()
    }

    /// Starts a launch, or the next slice of it.
    pub(super) fn start_slice(
        &mut self,
        turn: &mut Turn<'_>,
        place: (Place, AddressRange),
        mut pending: Box<Pending>,
    ) -> Start {
        let (id, name) = (pending.spec.id, pending.spec.kernel.name.clone());
        let longest = self.longest_slice(place.0.application);
        let (ctas, time) = self.next_slice(turn, &pending.spec, longest);
        if self.launches.is_ahead(turn, place.0, (time, longest)) {
            return Start::Later(pending);
        }
        let rounds =
            ctas.div_ceil(self.places(self.handover.ledger().sms(), pending.spec.cta).max(1));
        let expected = time.map(|time| Expected::of(time, rounds));
        let outlook = expected.map(|expected| Outlook { expected, limit: SHORT });
        let is_whole = pending.spec.first == 0 && ctas >= pending.spec.ctas();
        if let (Form::Slice(sliced), true) = (&pending.form, is_whole) {
            pending.form = Form::Original(sliced.whole.clone());
            let start = self.start_original(turn, place, pending);
            if let Start::Submit(_) = start {
                self.launches.expect(id, outlook);
                if let Some(account) = self.observer.account_mut(place.0.application) {
                    account.ran_as_written(&name, FormKind::Slice);
                }
            }
            return start;
        }
        let start = self.launches.start_slice(turn, place, pending, (ctas, outlook));
        if let Start::Submit(_) | Start::Part(_) = start {
            self.starts(turn, place.0);
            if let Some(account) = self.observer.account_mut(place.0.application) {
                account.ran_slice(&name);
            }
        }
        start
    }

    /// How many of a launch's CTAs run next, and the time that they are expected to take.
    fn next_slice(&self, turn: &Turn<'_>, spec: &Spec, longest: Nanos) -> (u64, Option<Nanos>) {
        let places = self.places(self.handover.ledger().sms(), spec.cta);
        let ctas = self.observer.next_slice(turn, spec, (places, longest));
        (ctas, self.observer.time_of_slice(spec, ctas))
    }

    /// The longest time of an application's slices of several rounds.
    fn longest_slice(&self, application: ApplicationId) -> Nanos {
        let is_beside_urgent = self.sessions.urgent().any(|urgent| urgent != application);
        if is_beside_urgent { URGENT_SLICE } else { LONGEST_SLICE }
    }
}
