//! The applications on each SM over time.
//!
//! The hardware chooses where it places a worker's CTA. A CTA on an SM of another application reads
//! the signal and leaves. One CTA of a launch's main grid may stay where it is, idle, until the
//! launch is complete, even after the SM has gone to another application. Two applications
//! therefore do meet: briefly, or with an idle CTA. Applications that share an SM meet there for as
//! long as both hold it, and until one has left. And where the CTAs of a loser linger on an SM, its
//! next owner joins them there after some time.

use partita_model::{ApplicationId, Nanos, OperationId, ResidencyKind, SmId, SmSet, TraceEntry};
use std::collections::BTreeMap;

/// The longest time for reading the signal. It takes two reads of memory, which other applications
/// may keep busy.
pub const GLANCE: Nanos = Nanos(10_000);

/// For how long CTAs linger on an SM that their application has lost, at least, until its next
/// owner joins them.
#[must_use]
pub fn patience() -> Nanos {
    partita_engine::EngineConfig::default().lingers_after()[0]
}

/// A CTA: its grid, and its index there.
type Cta = (OperationId, u64);

/// One CTA on an SM.
#[derive(Clone, Copy, Debug)]
struct Guest {
    application: ApplicationId,
    since: Nanos,
}

/// When each application held which SM: beginnings and ends.
#[derive(Default)]
struct Grants(BTreeMap<(ApplicationId, SmId), Vec<(Nanos, Nanos)>>);

impl Grants {
    fn of(entries: &[TraceEntry]) -> Self {
        let mut held: BTreeMap<ApplicationId, SmSet> = BTreeMap::new();
        let mut grants = Grants::default();
        for entry in entries {
            let TraceEntry::Resize { time, application, to, .. } = entry else { continue };
            let had = held.insert(*application, *to).unwrap_or(SmSet::EMPTY);
            for sm in to.difference(&had).iter() {
                let times = grants.0.entry((*application, sm)).or_default();
                times.push((*time, Nanos(u64::MAX)));
            }
            for sm in had.difference(to).iter() {
                let last = grants.0.get_mut(&(*application, sm)).and_then(|times| times.last_mut());
                if let Some((_, end)) = last {
                    *end = *time;
                }
            }
        }
        grants
    }

    /// The first moment, between two, from which on one of two applications had an SM on which CTAs
    /// of the other lingered. They were there when the other lost the SM, `patience` before or
    /// earlier; it may have had the SM again meanwhile.
    fn joined(
        &self,
        [one, other]: [Guest; 2],
        sm: SmId,
        between: [Nanos; 2],
        patience: Nanos,
    ) -> Option<Nanos> {
        let times = |id| self.0.get(&(id, sm)).map_or(&[][..], Vec::as_slice);
        let lingers = |loser: Guest, given: Nanos| {
            let mut losses = times(loser.application).iter().map(|(_, lost)| *lost);
            losses.any(|lost| loser.since <= lost && lost.0.saturating_add(patience.0) <= given.0)
        };
        let joins = |loser: Guest, winner: Guest| {
            let held = times(winner.application).iter();
            let held = held.filter(|(given, end)| *given <= between[1] && *end >= between[0]);
            held.map(|(given, _)| *given).filter(move |given| lingers(loser, *given)).min()
        };
        let first = joins(one, other).into_iter().chain(joins(other, one)).min();
        first.map(|moment| moment.max(between[0]))
    }

    /// When two applications began to share an SM, of the first time that they did between two
    /// moments.
    fn shared(&self, both: [ApplicationId; 2], sm: SmId, between: [Nanos; 2]) -> Option<Nanos> {
        let [one, other] = both.map(|id| self.0.get(&(id, sm)).map_or(&[][..], Vec::as_slice));
        let pairs = one.iter().flat_map(|one| other.iter().map(move |other| (one, other)));
        let common = pairs.map(|(one, other)| (one.0.max(other.0), one.1.min(other.1)));
        let here =
            common.filter(|(begin, end)| begin < end && *begin <= between[1] && *end >= between[0]);
        here.map(|(begin, _)| begin).min()
    }
}

/// Goes through a trace; the longest time that CTAs of two applications were on one SM together.
/// Of each grid one CTA does not count that leaves [`GLANCE`] before the last one or later. Only
/// the time counts before both hold the SM, and before one is given it on which CTAs of the other
/// linger, for `patience` at least.
///
/// # Errors
/// CTAs that come twice, leave without having come, or never leave.
pub fn longest_meeting(entries: &[TraceEntry], patience: Nanos) -> Result<Nanos, String> {
    let grants = Grants::of(entries);
    let mut ends: BTreeMap<OperationId, Nanos> = BTreeMap::new();
    let mut exits: BTreeMap<Cta, Nanos> = BTreeMap::new();
    let mut meetings: Vec<(Nanos, [Cta; 2])> = Vec::new();
    let mut present: BTreeMap<SmId, BTreeMap<Cta, Guest>> = BTreeMap::new();
    for entry in entries {
        let TraceEntry::Residency { change, application, launch } = entry else { continue };
        let sm = present.entry(change.sm).or_default();
        let (cta, now) = ((change.grid, change.cta), change.time);
        let place = || {
            let grid = change.grid.0;
            format!(
                "at {} ns CTA {} of grid {grid} ({application}, {launch}) on SM {}",
                now.0, change.cta, change.sm.0
            )
        };
        match change.kind {
            ResidencyKind::Start => {
                if sm.insert(cta, Guest { application: *application, since: now }).is_some() {
                    return Err(format!("{}: comes twice", place()));
                }
            }
            ResidencyKind::Exit => {
                let guest = sm
                    .remove(&cta)
                    .ok_or_else(|| format!("{}: leaves without having come", place()))?;
                ends.insert(change.grid, now);
                exits.insert(cta, now);
                let others = sm.iter().filter(|(_, other)| other.application != guest.application);
                meetings.extend(others.map(|(other_cta, other)| {
                    let begin = guest.since.max(other.since);
                    let both = [guest.application, other.application];
                    let shared = grants.shared(both, change.sm, [begin, now]);
                    let guests = [guest, *other];
                    let joined = grants.joined(guests, change.sm, [begin, now], patience);
                    let end = shared.into_iter().chain(joined).min().unwrap_or(now);
                    (end.saturating_sub(begin), [cta, *other_cta])
                }));
            }
        }
    }
    if let Some((sm, guests)) = present.iter().find(|(_, guests)| !guests.is_empty()) {
        return Err(format!("{} CTAs never leave SM {}", guests.len(), sm.0));
    }
    // The longest meetings first: of each, the CTA that leaves nearer to the end of its grid may be
    // the one that stays.
    meetings.sort_unstable_by_key(|(met, _)| std::cmp::Reverse(*met));
    let before_end = |cta: &Cta| ends[&cta.0].saturating_sub(exits[cta]);
    let mut stays: BTreeMap<OperationId, Cta> = BTreeMap::new();
    for (met, ctas) in meetings {
        if ctas.iter().any(|cta| stays.get(&cta.0) == Some(cta)) {
            continue;
        }
        let may_stay = |cta: &&Cta| before_end(cta) <= GLANCE && !stays.contains_key(&cta.0);
        match ctas.iter().filter(may_stay).min_by_key(|cta| before_end(cta)) {
            Some(cta) => drop(stays.insert(cta.0, *cta)),
            None => return Ok(met),
        }
    }
    Ok(Nanos(0))
}

#[cfg(test)]
mod tests {
    use super::*;
    use partita_model::{LaunchId, ResidencyChange};

    fn entry(
        time: u64,
        sm: u16,
        (application, cta): (u32, u64),
        kind: ResidencyKind,
    ) -> TraceEntry {
        let grid = OperationId(application.into());
        let change = ResidencyChange { time: Nanos(time), sm: SmId(sm), grid, cta, kind };
        TraceEntry::Residency {
            change,
            application: ApplicationId(application),
            launch: LaunchId(9),
        }
    }

    /// Two applications with one CTA each that is of interest, and one elsewhere that is the last
    /// of its grid.
    fn meeting(first: [u64; 2], second: [u64; 2]) -> Vec<TraceEntry> {
        use ResidencyKind::{Exit, Start};
        let mut entries = vec![
            entry(first[0], 0, (1, 0), Start),
            entry(first[1], 0, (1, 0), Exit),
            entry(second[0], 0, (2, 0), Start),
            entry(second[1], 0, (2, 0), Exit),
        ];
        for application in [1, 2] {
            entries.push(entry(
                0,
                7 + u16::try_from(application).unwrap(),
                (application, 1),
                Start,
            ));
            entries.push(entry(
                1_000_000,
                7 + u16::try_from(application).unwrap(),
                (application, 1),
                Exit,
            ));
        }
        entries.sort_by_key(|entry| match entry {
            TraceEntry::Residency { change, .. } => (change.time, change.kind == Start),
            TraceEntry::Resize { .. } => unreachable!("there is none"),
        });
        entries
    }

    /// An application has SM 0 from then on, or no longer.
    fn resize(time: u64, application: u32, has: bool) -> TraceEntry {
        let [from, to] = [!has, has].map(|has| SmSet::range(0, u16::from(has)));
        TraceEntry::Resize { time: Nanos(time), application: ApplicationId(application), from, to }
    }

    const PATIENCE: Nanos = Nanos(20);

    fn longest(entries: &[TraceEntry]) -> Result<Nanos, String> {
        longest_meeting(entries, PATIENCE)
    }

    #[test]
    fn who_comes_to_lingering_ctas_late_enough_meets_none() {
        let with = |resizes: &[(u64, u32, bool)], second: [u64; 2]| {
            let resizes = resizes.iter().map(|&(time, id, has)| resize(time, id, has));
            let entries = meeting([0, 90], second).into_iter();
            longest(&resizes.chain(entries).collect::<Vec<_>>())
        };
        let handed = |time| [(0, 1, true), (5, 1, false), (time, 2, true)];
        assert_eq!(with(&handed(25), [30, 91]), Ok(Nanos(0)));
        assert_eq!(with(&handed(24), [30, 91]), Ok(Nanos(60)), "too early");
        assert_eq!(with(&handed(25), [22, 91]), Ok(Nanos(3)), "22 to 25");
        // It has had the SM again meanwhile.
        let again =
            |given| [(0, 1, true), (5, 1, false), (7, 1, true), (23, 1, false), (given, 2, true)];
        assert_eq!(with(&again(24), [30, 91]), Ok(Nanos(60)));
        assert_eq!(with(&again(25), [30, 91]), Ok(Nanos(0)));
        // What the second was given before is over.
        let before = [(0, 1, true), (2, 1, false), (25, 2, true), (28, 2, false)];
        assert_eq!(with(&before, [30, 91]), Ok(Nanos(60)));
        // The other way round: the second's CTA comes to an SM of the first, and stays.
        let foreign = [(0, 1, true), (25, 2, true), (40, 2, false)];
        assert_eq!(with(&foreign, [1, 20]), Ok(Nanos(19)));
    }

    #[test]
    fn who_shares_an_sm_meets_there() {
        let with = |resizes: &[(u64, u32, bool)]| {
            let resizes = resizes.iter().map(|&(time, id, has)| resize(time, id, has));
            let entries = meeting([0, 90], [5, 91]).into_iter();
            longest(&resizes.chain(entries).collect::<Vec<_>>())
        };
        assert_eq!(with(&[(0, 1, true), (0, 2, true)]), Ok(Nanos(0)));
        assert_eq!(with(&[(0, 1, true), (8, 2, true)]), Ok(Nanos(3)), "5 to 8");
        assert_eq!(with(&[(0, 1, true), (8, 2, true), (9, 1, false)]), Ok(Nanos(3)));
        assert_eq!(with(&[(0, 1, true), (5, 1, false), (5, 2, true)]), Ok(Nanos(85)), "in turn");
        assert_eq!(with(&[(0, 1, true), (95, 2, true)]), Ok(Nanos(85)), "too late");
    }

    #[test]
    fn meetings_are_measured() {
        use ResidencyKind::{Exit, Start};
        assert_eq!(longest(&meeting([0, 5], [5, 6])), Ok(Nanos(0)), "in turn");
        assert_eq!(longest(&meeting([0, 90], [5, 8])), Ok(Nanos(3)));
        assert_eq!(longest(&meeting([0, 90], [5, 91])), Ok(Nanos(85)));
        let waiting = [
            entry(0, 0, (1, 0), Start),
            entry(5, 0, (2, 0), Start),
            entry(80, 0, (2, 0), Exit),
            entry(90, 0, (1, 0), Exit),
        ];
        assert_eq!(longest(&waiting), Ok(Nanos(0)), "the last of their grids");
        assert!(longest(&waiting[2..]).unwrap_err().contains("without having come"));
        assert!(longest(&waiting[..2]).unwrap_err().contains("never leave"));
        assert!(longest(&[waiting[0].clone(), waiting[0].clone()]).unwrap_err().contains("twice"));
    }
}
