//! Kernels on groups of SMs: machine code and originals, confined to the SMs of their application.
//!
//! The device keeps a grid to whole *groups* of SMs ([`partita_device::Device::sm_groups`]). A
//! launch runs on those groups of which all SMs are granted to its application when it starts, and
//! stays there: nothing is seen of its work, and it cannot be told to leave. So a resize takes
//! effect at its application's next launch, and SMs that the application loses change hands when
//! the launches on them have ended.
//!
//! Partitions that the policy decides are rounded to groups for applications that launch machine
//! code ([`partita_policy::whole_groups`]); those that an administrator sets are kept as they are.
//! Where an application has no whole group, or the device cannot make what it has ready, its
//! machine code runs alone on the device, as originals do.
//!
//! What holds for machine code holds for a kernel without a form, too: alone on the device it would
//! keep everybody waiting. Its launch keeps to groups where it has more CTAs than the device holds
//! at once ([`Pending::set_grouped`]). A launch of fewer CTAs may count on all of them being there
//! at once, and so does a cooperative one: these run alone.

use super::Launches;
use super::confinement::{Readiness, whole_groups};
use super::spec::{AsWritten, Barrier, Form, Launch, Pending, Place, Run, Spec, Start};
use super::watchdog::Watch;
use crate::handover::{Handover, Targets};
use crate::turn::Turn;
use crate::{About, LogLevel};
use partita_device::{AddressRange, Device, Work};
use partita_model::{ApplicationId, Sharing, SmSet, StreamId};
use partita_policy::Bounds;
use std::collections::BTreeSet;

/// Launches of one stream that the device is given ahead: all of them keep their SMs when borders
/// move.
const MOST_AHEAD: usize = 8;

/// Where a kernel on groups can run.
enum Confined {
    /// On these SMs.
    To(SmSet),
    /// Nowhere at present.
    NotYet,
    /// Nowhere but alone, for this reason.
    Never(String),
}

/// The form of machine code that cannot be kept to groups, for this reason.
fn runs_alone(turn: &mut Turn<'_>, place: Place, spec: &Spec, reason: &str) -> AsWritten {
    let reason = format!("machine code, and {reason}");
    let text = format!("kernel `{}` runs alone: {reason}", spec.kernel.name);
    turn.log(LogLevel::Info, About::from(place.session).kernel(&spec.kernel.name), text);
    AsWritten {
        entry: spec.kernel.entry.clone(),
        reason: Some(reason),
        barrier: Barrier::None,
        abort: false,
        keeps_to: None,
    }
}

impl Launches {
    /// Whether originals may keep to groups of SMs: the device has groups, and keeps grids to them.
    pub(crate) fn keeps_to_groups(&self, turn: &mut Turn<'_>) -> bool {
        turn.common.sharing == Sharing::Spatial
            && !turn.device.sm_groups().is_empty()
            && turn.device.confining().is_some()
    }

    /// An application launches what needs groups: from now on it is given whole groups. Whether
    /// that is new.
    pub(crate) fn needs_groups(&mut self, id: ApplicationId) -> bool {
        self.grouped.insert(id)
    }

    /// Rounds what the policy decided, within `bounds`. Nobody is to have the SMs `idle`.
    pub(crate) fn round_targets(
        &self,
        device: &dyn Device,
        handover: &Handover,
        targets: &mut Targets,
        idle: SmSet,
        bounds: impl Fn(ApplicationId) -> Bounds,
    ) {
        let rounded: BTreeSet<ApplicationId> =
            targets.sms.keys().copied().filter(|id| self.grouped.contains(id)).collect();
        // Who shares SMs shares all that there are.
        if !rounded.is_empty() && targets.parts.is_empty() {
            let groups = device.sm_groups();
            targets.sms =
                partita_policy::whole_groups(&targets.sms, groups, &rounded, idle, bounds);
        }
        self.keep_for_clusters(device, handover, targets);
    }

    /// Starts machine code, or an original, on what its application has of whole groups.
    pub(crate) fn start_on_groups(
        &mut self,
        turn: &mut Turn<'_>,
        handover: &Handover,
        (place, window): (Place, AddressRange),
        mut pending: Box<Pending>,
    ) -> Start {
        if self.ahead_on_groups(place.stream) >= MOST_AHEAD {
            return Start::Wait(pending);
        }
        let confined = match &pending.form {
            // Nothing has to keep it there.
            Form::Grouped(_) if handover.has_all(place.application) => {
                Confined::To(handover.ledger().sms())
            }
            _ => self.groups_for(turn, handover, place.application),
        };
        let sms = match confined {
            Confined::To(sms) => sms,
            Confined::NotYet => return Start::Wait(pending),
            Confined::Never(reason) => {
                pending.form = Form::Original(match &pending.form {
                    Form::Grouped(as_written) => as_written.clone(),
                    _ => runs_alone(turn, place, &pending.spec, &reason),
                });
                // It takes its turn as an original where it stands.
                self.look_by(turn.now());
                return Start::Demoted(pending);
            }
        };
        if let Form::Grouped(as_written) = &pending.form {
            let kept = AsWritten { keeps_to: Some(sms), ..as_written.clone() };
            pending.form = Form::Original(kept);
            return self.start_original(turn, (place, window), pending, None);
        }
        self.waiting.remove(place.main);
        self.took_off(turn, place.application, true);
        let Pending { mut spec, .. } = *pending;
        let work = Work::LaunchOn {
            launch: partita_device::GridSpec {
                cooperative: false,
                cluster: spec.cluster,
                module: spec.module,
                kernel: spec.kernel.entry.clone(),
                grid: spec.grid,
                block: spec.block,
                dynamic_shared: spec.dynamic_shared,
                params: spec.params.take(),
                access: vec![window],
            },
            sms,
        };
        let (id, watch) = (spec.id, Watch::new(turn.now()));
        let (run, begun, outlook) = (Run::MachineCode(sms), None, None);
        let launch = Launch { place, spec, main_done: false, begun, outlook, watch, run };
        self.records.insert(id, Box::new(launch));
        Start::Submit(work)
    }

    fn ahead_on_groups(&self, stream: StreamId) -> usize {
        let on_groups = |l: &&Launch| {
            let is_kept = match &l.run {
                Run::MachineCode(_) => true,
                Run::Original(original) => original.keeps_to.is_some(),
                Run::Worker(_) | Run::Ticket(_) => false,
            };
            l.place.stream == stream && !l.main_done && is_kept
        };
        self.records.values().map(Box::as_ref).filter(on_groups).count()
    }

    /// The whole groups on which an application's machine code or originals can run now.
    fn groups_for(
        &mut self,
        turn: &mut Turn<'_>,
        handover: &Handover,
        application: ApplicationId,
    ) -> Confined {
        if handover.part(application).is_some() {
            // Nothing would keep it to its part; the policy takes the two apart.
            return Confined::NotYet;
        }
        // Nothing holds the room of what runs here: nobody may linger on its SMs.
        let granted = handover.granted(application).difference(&handover.lingering().sms());
        let free = Some(whole_groups(turn, &granted.difference(&handover.stalled())));
        let sms = free.filter(|free| !free.is_empty());
        let sms = sms.unwrap_or_else(|| whole_groups(turn, &granted));
        if sms.is_empty() {
            let target = handover.target(application);
            if granted.is_empty() || !whole_groups(turn, &target).is_empty() {
                // The application gets some when others have left them.
                return Confined::NotYet;
            }
            return Confined::Never(format!(
                "none of its application's SMs {granted} are a whole group"
            ));
        }
        match self.make_ready(turn, sms) {
            Readiness::Ready => Confined::To(sms),
            Readiness::Pending => Confined::NotYet,
            Readiness::Refused(reason) => {
                Confined::Never(format!("SMs {sms} cannot be had as a green context: {reason}"))
            }
        }
    }
}
