//! The SMs to which the device keeps a grid.
//!
//! A device may keep a grid to a union of *groups* of SMs ([`partita_device::Confining`]). Machine
//! code needs that: nothing else confines it. Main grids of workers and waves of tickets gain by
//! it: their gates decide where they work, and where the device keeps them to their application's
//! SMs, no CTA starts elsewhere in vain. Launches that run as they were written may then run beside
//! other applications.
//!
//! What is kept to SMs keeps to them when borders move. The gates of workers and tickets still
//! tell them to leave; machine code and originals end first.

use super::spec::{Place, Run};
use super::{Launch, Launches};
use crate::effects::Effect;
use crate::handover::Handover;
use crate::turn::Turn;
use crate::{About, LogLevel};
use partita_device::{Confinement, GridSpec, Work};
use partita_model::{ApplicationId, Sharing, SmSet, StreamId};
use std::collections::{BTreeMap, BTreeSet};

/// Sets that were not made ready are remembered. When there are more, all are tried again.
const MOST_REMEMBERED: usize = 64;
/// Originals run on whole groups only. Of this many SMs of their application one may be left over.
const LEFT_OVER: u16 = 16;

/// What the device has said of sets of SMs.
#[derive(Default)]
pub(super) struct Confinements {
    /// Sets that the device makes ready.
    pending: BTreeSet<SmSet>,
    /// Sets that the device could not make ready, with the reason.
    refused: BTreeMap<SmSet, String>,
    /// The whole groups inside sets that were asked for.
    whole: BTreeMap<SmSet, SmSet>,
}

impl Confinements {
    pub(super) fn clear(&mut self) {
        *self = Confinements::default();
    }
}

/// Whether the device keeps grids to a set of SMs.
pub(super) enum Readiness {
    Ready,
    Pending,
    /// It does not, for this reason.
    Refused(String),
}

/// The union of the whole groups inside a set.
pub(super) fn whole_groups(turn: &Turn<'_>, sms: &SmSet) -> SmSet {
    let inside = turn.device.sm_groups().iter().filter(|group| group.difference(sms).is_empty());
    inside.fold(SmSet::EMPTY, |all, group| all.union(group))
}

/// A grid that the device keeps to some SMs, or to none.
pub(super) fn launch_on(kept_to: Option<SmSet>, launch: GridSpec) -> Work {
    match kept_to {
        Some(sms) => Work::LaunchOn { launch, sms },
        None => Work::Launch(launch),
    }
}

impl Launches {
    /// Whether the device makes SMs ready.
    pub(crate) fn is_confining(&self) -> bool {
        !self.confinements.pending.is_empty()
    }

    /// Asks the device to make a set of whole groups ready.
    pub(super) fn make_ready(&mut self, turn: &mut Turn<'_>, sms: SmSet) -> Readiness {
        if let Some(reason) = self.confinements.refused.get(&sms) {
            return Readiness::Refused(reason.clone());
        }
        if self.confinements.pending.contains(&sms) {
            return Readiness::Pending;
        }
        let Some(confining) = turn.device.confining() else {
            return Readiness::Refused("this device keeps no grid to SMs".to_owned());
        };
        match confining.confine(sms) {
            Ok(Confinement::Ready) => Readiness::Ready,
            Ok(Confinement::Pending) => {
                self.confinements.pending.insert(sms);
                turn.push(Effect::Stall);
                Readiness::Pending
            }
            Err(error) => Readiness::Refused(error.to_string()),
        }
    }

    /// The device has made SMs ready, or cannot.
    pub(crate) fn confined(&mut self, turn: &mut Turn<'_>, sms: SmSet, result: Result<(), String>) {
        self.confinements.pending.remove(&sms);
        if let Err(reason) = result {
            if self.confinements.refused.len() >= MOST_REMEMBERED {
                self.confinements.refused.clear();
            }
            let text = format!("no green context for SMs {sms}: {reason}");
            turn.log(LogLevel::Warning, About::default(), text);
            self.confinements.refused.insert(sms, reason);
        }
        turn.push(Effect::Stall);
        turn.push(Effect::PumpWaiting);
    }

    /// The SMs to which the device keeps the next main grid or wave of an application in `stream`:
    /// all that are open to it. `None` where the grid may start anywhere.
    pub(crate) fn kept_to(
        &mut self,
        turn: &mut Turn<'_>,
        handover: &Handover,
        application: ApplicationId,
        stream: StreamId,
    ) -> Option<SmSet> {
        let own = handover.open_to(application);
        self.kept_to_groups(turn, handover, own, stream).filter(|sms| *sms == own)
    }

    /// The SMs to which the device keeps a launch that runs as it was written: nearly all that are
    /// open to its application. `None` where the device keeps it to none, and where SMs are
    /// stalled, without power or shared: nothing would keep the launch to its part. So it is where
    /// workers of others linger.
    pub(crate) fn kept_as_written(
        &mut self,
        turn: &mut Turn<'_>,
        handover: &Handover,
        place: Place,
    ) -> Option<SmSet> {
        let own = handover.granted(place.application);
        let is_shared = handover.part(place.application).is_some();
        let closed = handover.stalled().union(&handover.gated());
        let taken = closed.union(&handover.lingering().sms());
        if is_shared || !own.is_disjoint(&taken) {
            return None;
        }
        let sms = self.kept_to_groups(turn, handover, own, place.stream)?;
        (own.difference(&sms).len() <= own.len() / LEFT_OVER).then_some(sms)
    }

    /// The SMs to which the device keeps the next helper grid of an application: all that it has
    /// been granted, where the device keeps grids to any SMs. Where groups have several SMs, a
    /// border that moves SM by SM would leave whole groups out.
    pub(super) fn helpers_kept_to(
        &mut self,
        turn: &mut Turn<'_>,
        handover: &Handover,
        place: Place,
    ) -> Option<SmSet> {
        let own = handover.granted(place.application).difference(&handover.stalled());
        let is_single = turn.device.sm_groups().len() == usize::from(handover.ledger().sms().len());
        let kept = || self.kept_to_groups(turn, handover, own, place.stream);
        is_single.then(kept).flatten().filter(|sms| *sms == own)
    }

    /// SMs that launches as written keep to: what is free there is not in the ledger.
    pub(super) fn taken_as_written(&self) -> SmSet {
        let taken = self.records.values().filter(|launch| launch.is_original());
        taken.filter_map(|launch| launch.kept_to()).fold(SmSet::EMPTY, |all, sms| all.union(&sms))
    }

    fn kept_to_groups(
        &mut self,
        turn: &mut Turn<'_>,
        handover: &Handover,
        own: SmSet,
        stream: StreamId,
    ) -> Option<SmSet> {
        if turn.common.sharing != Sharing::Spatial || own == handover.ledger().sms() {
            return None;
        }
        if self.confinements.whole.len() >= MOST_REMEMBERED {
            self.confinements.whole.clear();
        }
        let whole = self.confinements.whole.entry(own);
        let sms = *whole.or_insert_with(|| whole_groups(turn, &own));
        // Making SMs ready may hold up whatever else is asked of the device.
        let may_ask = self.confinements.pending.is_empty()
            && (self.in_flight.total() == 0 || !turn.device.loading_waits_for_grids());
        let is_ready = turn.device.confining()?.is_ready(&sms);
        if sms.is_empty() || !(is_ready || may_ask) || !self.has_lane(turn, sms, stream) {
            return None;
        }
        match self.make_ready(turn, sms) {
            Readiness::Ready => Some(sms),
            Readiness::Pending | Readiness::Refused(_) => None,
        }
    }

    /// Whether the device has room for one more stream with grids on these SMs.
    fn has_lane(&self, turn: &mut Turn<'_>, sms: SmSet, stream: StreamId) -> bool {
        let most = turn.device.confining().map_or(0, |confining| confining.streams());
        if most == usize::MAX {
            return true;
        }
        let grids = self.records.values().flat_map(|launch| {
            let main = (launch.place.stream, launch.kept_to().filter(|_| !launch.main_done));
            let helpers = launch.claims().into_iter().flat_map(|claims| claims.helpers.kept());
            std::iter::once(main).chain(helpers)
        });
        let there = grids.filter(|(_, kept_to)| *kept_to == Some(sms));
        let streams: BTreeSet<StreamId> = there.map(|(stream, _)| stream).collect();
        streams.len() < most || streams.contains(&stream)
    }
}

impl Launch {
    /// The SMs to which the device keeps the launch's main grid.
    pub(super) fn kept_to(&self) -> Option<SmSet> {
        match &self.run {
            Run::Worker(_) | Run::Ticket(_) => {
                self.claims().filter(|claims| claims.is_kept).map(|claims| claims.own)
            }
            Run::MachineCode(sms) => Some(*sms),
            Run::Original(original) => original.keeps_to,
        }
    }

    /// The SMs that the launch has had from its beginning on, where it has had the same. `granted`:
    /// the SMs that its application holds now.
    pub(crate) fn had(&self, granted: SmSet) -> Option<SmSet> {
        match &self.run {
            Run::Worker(_) | Run::Ticket(_) => {
                self.claims().map(|claims| claims.own).filter(|own| *own == granted)
            }
            Run::MachineCode(_) | Run::Original(_) => self.kept_to(),
        }
    }
}
