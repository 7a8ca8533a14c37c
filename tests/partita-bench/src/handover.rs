//! How long it takes until changed shares reach running kernels, by the trace of a run.

use partita_model::{ApplicationId, Nanos, ResidencyKind, SmId, SmSet, TraceEntry};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// A CTA that stays shorter found the SM foreign, and is no worker.
const STAY: Nanos = Nanos(2_000);

/// An SM that changed hands because terms changed. Times are nanoseconds from the change.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Handover {
    /// When the last worker of the application that lost the SM had left; `None` where that did not
    /// happen before the next change.
    pub left: Option<u64>,
    /// When the first worker of the application that gained the SM had come and stayed; `None` as
    /// for `left`.
    pub entered: Option<u64>,
}

/// SMs of each application.
pub(crate) type Partitions = BTreeMap<ApplicationId, SmSet>;

/// A change of terms.
pub(crate) struct Change {
    /// Device time of the change.
    pub(crate) at: Nanos,
    /// Device time of the next change, or of the end.
    pub(crate) until: Nanos,
    /// Partitions before the change.
    pub(crate) before: Partitions,
    /// Partitions when it is over.
    pub(crate) after: Partitions,
}

/// A CTA on an SM. A CTA that came before the trace began came at 0.
struct Stay {
    application: ApplicationId,
    sm: SmId,
    from: Nanos,
    /// `None` where it stays beyond the trace's end.
    to: Option<Nanos>,
}

/// Every SM that changed hands. The trace covers all changes.
pub(crate) fn handovers(entries: &[TraceEntry], changes: &[Change]) -> Vec<Handover> {
    let stays = stays(entries);
    let of_change = |change: &Change| {
        let lost = change.before.iter().flat_map(|(&loser, had)| {
            let has = change.after.get(&loser).copied().unwrap_or(SmSet::EMPTY);
            had.difference(&has).iter().map(move |sm| (loser, sm)).collect::<Vec<_>>()
        });
        let handover = |(loser, sm): (ApplicationId, SmId)| {
            let mut owners = change.after.iter().filter(|(_, has)| has.contains(sm));
            let (&winner, _) = owners.next()?;
            handover(&stays, change, sm, (loser, winner))
        };
        lost.filter_map(handover).collect::<Vec<_>>()
    };
    changes.iter().flat_map(of_change).collect()
}

/// The handover of one SM; `None` where its loser had no worker on it.
fn handover(
    stays: &[Stay],
    change: &Change,
    sm: SmId,
    (loser, winner): (ApplicationId, ApplicationId),
) -> Option<Handover> {
    let of = |application| {
        stays.iter().filter(move |stay| stay.application == application && stay.sm == sm)
    };
    let ended = |time: Option<Nanos>| time.filter(|time| *time < change.until);
    let ends = of(loser)
        .filter(|stay| stay.from < change.at && stay.to.is_none_or(|to| to >= change.at))
        .map(|stay| ended(stay.to));
    // The last one counts, and one that stays is later than all that leave.
    let left = ends.max_by_key(|end| end.unwrap_or(Nanos(u64::MAX)))?;
    let came = of(winner).filter(|stay| {
        let stayed = stay.to.is_none_or(|to| to.saturating_sub(stay.from) >= STAY);
        stayed && stay.from >= change.at && stay.from < change.until
    });
    let entered = came.map(|stay| stay.from).min();
    let after = |time: Nanos| time.saturating_sub(change.at).0;
    Some(Handover { left: left.map(after), entered: entered.map(after) })
}

fn stays(entries: &[TraceEntry]) -> Vec<Stay> {
    let (mut here, mut stays) = (BTreeMap::new(), Vec::new());
    for entry in entries {
        let TraceEntry::Residency { change, application, .. } = entry else { continue };
        let (cta, sm, application) = ((change.grid, change.cta), change.sm, *application);
        match change.kind {
            ResidencyKind::Start => {
                here.insert(cta, Stay { application, sm, from: change.time, to: None });
            }
            ResidencyKind::Exit => {
                let new = Stay { application, sm, from: Nanos(0), to: None };
                let stay = here.remove(&cta).unwrap_or(new);
                stays.push(Stay { to: Some(change.time), ..stay });
            }
        }
    }
    stays.extend(here.into_values());
    stays
}

#[cfg(test)]
mod tests {
    use super::*;
    use partita_model::{LaunchId, OperationId, ResidencyChange};

    fn entry(time: u64, application: u32, sm: u16, cta: u64, kind: ResidencyKind) -> TraceEntry {
        let (time, sm, grid) = (Nanos(time), SmId(sm), OperationId(application.into()));
        let change = ResidencyChange { time, sm, grid, cta, kind };
        let application = ApplicationId(application);
        TraceEntry::Residency { change, application, launch: LaunchId(1) }
    }

    #[test]
    fn handovers_go_from_the_change_to_the_last_and_the_first_worker() {
        use ResidencyKind::{Exit, Start};
        let sms = |first, count| SmSet::range(first, count);
        let parts = |border: u16| {
            let own =
                [(ApplicationId(1), sms(0, border)), (ApplicationId(2), sms(border, 4 - border))];
            own.into_iter().collect::<Partitions>()
        };
        let entries = [
            // On SM 1 two workers leave, one a while after the other, and a helper comes in vain.
            entry(10_500, 1, 1, 0, Exit),
            entry(11_000, 1, 1, 7, Start),
            entry(11_300, 1, 1, 7, Exit),
            entry(12_000, 1, 1, 1, Exit),
            // A worker of the other comes too early and again when it may.
            entry(11_000, 2, 1, 0, Start),
            entry(11_200, 2, 1, 0, Exit),
            entry(13_000, 2, 1, 1, Start),
            // It leaves when the border goes back, and the first returns after the end.
            entry(31_000, 2, 1, 1, Exit),
            entry(60_000, 1, 1, 9, Start),
        ];
        let at =
            |at, until, before, after| Change { at: Nanos(at), until: Nanos(until), before, after };
        let there = at(10_000, 30_000, parts(2), parts(1));
        let back = at(30_000, 50_000, parts(1), parts(2));
        let expected = [
            Handover { left: Some(2_000), entered: Some(3_000) },
            Handover { left: Some(1_000), entered: None },
        ];
        assert_eq!(handovers(&entries, &[there, back]), expected);
        // A worker that stays beyond the next change.
        let short = at(10_000, 11_500, parts(2), parts(1));
        let late = [Handover { left: None, entered: None }];
        assert_eq!(handovers(&entries, &[short]), late);
        assert!(handovers(&entries[4..], &[at(10_000, 30_000, parts(3), parts(2))]).is_empty());
    }
}
