//! The SMs of the driver's groups, and green contexts of sets of groups.
//!
//! The driver divides a GPU's SMs into groups and reports each group's size, not its SMs. When a
//! device is opened, before any session uses it, a kernel reports the SMs of each group
//! ([`Groups::measure`]). Where the measurement contradicts the driver, grids are kept to no SMs:
//! machine code runs alone.
//!
//! The loading thread makes a context when a set of SMs is first requested, with [`STREAMS`]
//! streams. It tries the context by recording an event in each stream, because events belong to the
//! primary context. A context is kept until another set needs its place.

use crate::cache::Cache;
use crate::driver::{Context, Event, Failure, Green, SmGroup};
use crate::numbers::{NumbersError, Seer};
use partita_model::SmSet;
use std::sync::Arc;

/// Streams of each green context. This many of the programs' streams can launch machine code in it
/// at once.
pub(crate) const STREAMS: usize = 4;

/// The most green contexts at a time.
pub(crate) const MOST_CONTEXTS: usize = 16;

/// The reason why the groups are unknown.
#[derive(Debug, thiserror::Error)]
pub(crate) enum MeasureError {
    #[error(transparent)]
    Driver(#[from] Failure),
    #[error(transparent)]
    Numbers(#[from] NumbersError),
    #[error("the driver reports a group of {said} SMs, whose CTAs ran on {seen} SMs")]
    Differs { said: u32, seen: SmSet },
    #[error("SMs {0} are in two groups")]
    Overlap(SmSet),
}

/// The groups of a GPU, in order of their first SMs.
#[derive(Debug, Default)]
pub(crate) struct Groups {
    groups: Vec<SmGroup>,
    sms: Vec<SmSet>,
}

impl Groups {
    /// Measures the groups. The device must be idle.
    pub(crate) fn measure(
        context: &Arc<Context>,
        cache: Option<&Cache>,
    ) -> Result<Groups, MeasureError> {
        let parts = context.sm_groups(1, usize::MAX)?;
        let most = parts.iter().map(|group| group.sms).max().unwrap_or(0);
        let seer = Seer::load(context, cache, most)?;
        let found = match seer.is_for_all_contexts() {
            true => seen(context, &seer, &parts),
            false => Err(Failure::unsupported("cuLibraryLoadData").into()),
        };
        seer.unload()?;
        let mut found: Vec<(SmSet, SmGroup)> = found?.into_iter().zip(parts).collect();
        found.sort_by_key(|(sms, _)| sms.iter().next());
        let mut all = SmSet::EMPTY;
        for (sms, _) in &found {
            if !all.is_disjoint(sms) {
                return Err(MeasureError::Overlap(all.intersection(sms)));
            }
            all = all.union(sms);
        }
        let (sms, groups) = found.into_iter().unzip();
        Ok(Groups { groups, sms })
    }

    /// The SMs of each group.
    pub(crate) fn sms(&self) -> &[SmSet] {
        &self.sms
    }

    /// The groups whose union is a set of SMs.
    pub(crate) fn of(&self, sms: &SmSet) -> Option<Vec<SmGroup>> {
        let inside = |group: &&(&SmSet, &SmGroup)| group.0.difference(sms).is_empty();
        let pairs: Vec<(&SmSet, &SmGroup)> = self.sms.iter().zip(&self.groups).collect();
        let inside: Vec<_> = pairs.iter().filter(inside).collect();
        let union = inside.iter().fold(SmSet::EMPTY, |all, (sms, _)| all.union(sms));
        (union == *sms && !sms.is_empty())
            .then(|| inside.iter().map(|(_, group)| **group).collect())
    }
}

/// The SMs on which CTAs of each group ran.
fn seen(
    context: &Arc<Context>,
    seer: &Seer,
    parts: &[SmGroup],
) -> Result<Vec<SmSet>, MeasureError> {
    let mut all = Vec::new();
    for group in parts {
        let green = context.green_of(std::slice::from_ref(group), 1)?;
        let mut streams = green.streams.iter();
        let places = streams.try_fold(SmSet::EMPTY, |_, stream| seer.places(stream, group.sms));
        green.destroy()?;
        let seen = places?;
        if u32::from(seen.len()) != group.sms {
            return Err(MeasureError::Differs { said: group.sms, seen });
        }
        all.push(seen);
    }
    Ok(all)
}

/// Creates a green context and tries its streams.
pub(crate) fn make(context: &Arc<Context>, groups: &[SmGroup]) -> Result<Green, Failure> {
    let green = context.green_of(groups, STREAMS)?;
    let tried = Event::new(context).and_then(|event| {
        green.streams.iter().try_for_each(|stream| {
            stream.record(&event)?;
            event.wait()
        })
    });
    match tried {
        Ok(()) => Ok(green),
        Err(failure) => {
            green.destroy()?;
            Err(failure)
        }
    }
}
