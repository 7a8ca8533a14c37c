//! Machine code: kernels that nobody can rewrite, on the SMs of their application all the same.
//!
//! The device keeps a grid to whole *groups* of SMs ([`partita_device::Device::sm_groups`]). A
//! launch runs on those groups of which all SMs are granted to its application when it starts, and
//! stays there: it is not seen to work and cannot be told to leave. So a resize takes effect at its
//! application's next launch, and SMs that the application loses change hands when the launches on
//! them have ended.
//!
//! Partitions that the policy decides are rounded to groups for applications that launch machine
//! code ([`partita_policy::whole_groups`]); those that an administrator sets are kept as they are.
//! Where an application has no whole group, or the device cannot make what it has ready, its
//! machine code runs alone on the device, as originals do.

use crate::effects::Effect;
use crate::engine::earliest;
use crate::launching::Started;
use crate::state::{Launch, LaunchSpec};
use crate::watchdog::Watch;
use crate::{Engine, LogLevel};
use partita_device::{Confinement, Device, Work};
use partita_model::{ApplicationId, OperationId, SessionId, SmSet, StreamId};
use std::collections::{BTreeMap, BTreeSet};

/// Launches of one stream that the device is given ahead: all of them keep their SMs when borders
/// move.
const MOST_AHEAD: usize = 8;

/// Sets that were not made ready are remembered; when there are more, all are tried again.
const MOST_REMEMBERED: usize = 64;

impl Engine {
    /// An application launches machine code: from now on it is given whole groups.
    pub(crate) fn needs_groups(&mut self, id: ApplicationId) {
        let Some(application) = self.applications.get_mut(&id) else { return };
        if !std::mem::replace(&mut application.needs_groups, true) && application.active {
            self.effects.push(Effect::Replan);
        }
    }

    /// Rounds what the policy decided.
    pub(crate) fn round_targets(
        &self,
        device: &dyn Device,
        targets: &mut BTreeMap<ApplicationId, SmSet>,
    ) {
        let needs = |id: &ApplicationId| self.applications.get(id).is_some_and(|a| a.needs_groups);
        let rounded: BTreeSet<ApplicationId> = targets.keys().copied().filter(needs).collect();
        if !rounded.is_empty() {
            *targets = partita_policy::whole_groups(targets, device.sm_groups(), &rounded);
        }
    }

    /// Starts machine code on what its application has of whole groups.
    pub(crate) fn start_on_groups(
        &mut self,
        device: &mut dyn Device,
        main: OperationId,
        session: SessionId,
        application: ApplicationId,
        stream: StreamId,
        mut spec: Box<LaunchSpec>,
    ) -> Started {
        let ahead = self
            .launches
            .values()
            .filter(|l| l.stream == stream && !l.sms.is_empty() && !l.main_done);
        if ahead.count() >= MOST_AHEAD {
            return Err(spec);
        }
        let Some((granted, target)) =
            self.applications.get(&application).map(|a| (a.granted, a.target))
        else {
            return Ok(None);
        };
        let whole = |sms: &SmSet| {
            let inside = device.sm_groups().iter().filter(|group| group.difference(sms).is_empty());
            inside.fold(SmSet::EMPTY, |all, group| all.union(group))
        };
        let free = Some(whole(&granted.difference(&self.stalled))).filter(|free| !free.is_empty());
        let sms = free.unwrap_or_else(|| whole(&granted));
        if sms.is_empty() && (granted.is_empty() || !whole(&target).is_empty()) {
            // It gets some when others have left them.
            return Err(spec);
        }
        let reason = match self.unconfinable.get(&sms) {
            _ if sms.is_empty() => Some(format!(
                "machine code, and none of its application's SMs {granted} are a whole group"
            )),
            Some(reason) => Some(format!(
                "machine code, and SMs {sms} cannot be had as a green context: {reason}"
            )),
            None if self.confining.contains(&sms) => return Err(spec),
            None => match device.confine(sms) {
                Ok(Confinement::Ready) => None,
                Ok(Confinement::Pending) => {
                    self.confining.insert(sms);
                    self.apply_stalled(device);
                    return Err(spec);
                }
                Err(error) => Some(format!(
                    "machine code, and SMs {sms} cannot be had as a green context: {error}"
                )),
            },
        };
        if let Some(reason) = reason {
            let text = format!("kernel `{}` runs alone: {reason}", spec.kernel.name);
            self.log(LogLevel::Info, Some(session), text);
            self.demand_ended(application, device.now());
            spec.fallback = Some(reason);
            // As an original it may have to wait, and takes its turn where it stands.
            self.tick_at = earliest(self.tick_at, device.now());
            return Err(spec);
        }
        let Some(window) = self.sessions.get(&session).map(|session| session.window.range()) else {
            return Ok(None);
        };
        self.starts(device, application);
        if let Some(application) = self.applications.get_mut(&application) {
            application.workers_in_flight += 1;
            self.workers_in_flight += 1;
        }
        let work = Work::LaunchOn {
            launch: partita_device::Launch {
                cooperative: false,
                module: spec.module,
                kernel: spec.entry(),
                grid: spec.grid,
                block: spec.block,
                dynamic_shared: spec.dynamic_shared,
                params: spec.params.clone(),
                access: vec![window],
            },
            sms,
        };
        let (id, watch) = (spec.launch, Watch::new(device.now()));
        let launch = Launch {
            session,
            application,
            stream,
            main,
            main_done: false,
            spec,
            helpers: BTreeMap::new(),
            workspace: None,
            barrier: None,
            watch,
            sms,
            worker: None,
        };
        self.launches.insert(id, Box::new(launch));
        Ok(Some(work))
    }

    /// The device has made SMs ready, or cannot.
    pub(crate) fn confined(
        &mut self,
        device: &mut dyn Device,
        sms: SmSet,
        result: Result<(), String>,
    ) {
        self.confining.remove(&sms);
        if let Err(reason) = result {
            if self.unconfinable.len() >= MOST_REMEMBERED {
                self.unconfinable.clear();
            }
            self.log(LogLevel::Warning, None, format!("no green context for SMs {sms}: {reason}"));
            self.unconfinable.insert(sms, reason);
        }
        self.apply_stalled(device);
        self.effects.push(Effect::PumpWaiting);
    }
}
