//! The applications on each SM over time.
//!
//! The hardware chooses where it places a worker's CTA. A CTA on an SM of another application reads
//! the signal and leaves. One CTA of a launch's main grid may stay where it is, idle, until the
//! launch is complete, even after the SM has gone to another application. Two applications
//! therefore do meet: briefly, or with an idle CTA.

use partita_model::{ApplicationId, Nanos, OperationId, ResidencyKind, SmId, TraceEntry};
use std::collections::BTreeMap;

/// The longest time for reading the signal. It takes two reads of memory, which other applications
/// may keep busy.
pub const GLANCE: Nanos = Nanos(10_000);

/// A CTA: its grid, and its index there.
type Cta = (OperationId, u64);

/// One CTA on an SM.
#[derive(Clone, Copy, Debug)]
struct Guest {
    application: ApplicationId,
    since: Nanos,
}

/// Goes through a trace; the longest time that CTAs of two applications were on one SM together.
/// Of each grid one CTA does not count that leaves [`GLANCE`] before the last one or later.
///
/// # Errors
/// CTAs that come twice, leave without having come, or never leave.
pub fn longest_meeting(entries: &[TraceEntry]) -> Result<Nanos, String> {
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
                    (now.saturating_sub(guest.since.max(other.since)), [cta, *other_cta])
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

    #[test]
    fn meetings_are_measured() {
        use ResidencyKind::{Exit, Start};
        assert_eq!(longest_meeting(&meeting([0, 5], [5, 6])), Ok(Nanos(0)), "in turn");
        assert_eq!(longest_meeting(&meeting([0, 90], [5, 8])), Ok(Nanos(3)));
        assert_eq!(longest_meeting(&meeting([0, 90], [5, 91])), Ok(Nanos(85)));
        let waiting = [
            entry(0, 0, (1, 0), Start),
            entry(5, 0, (2, 0), Start),
            entry(80, 0, (2, 0), Exit),
            entry(90, 0, (1, 0), Exit),
        ];
        assert_eq!(longest_meeting(&waiting), Ok(Nanos(0)), "the last of their grids");
        assert!(longest_meeting(&waiting[2..]).unwrap_err().contains("without having come"));
        assert!(longest_meeting(&waiting[..2]).unwrap_err().contains("never leave"));
        assert!(
            longest_meeting(&[waiting[0].clone(), waiting[0].clone()])
                .unwrap_err()
                .contains("twice")
        );
    }
}
