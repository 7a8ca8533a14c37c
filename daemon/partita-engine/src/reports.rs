//! What the engine tells of itself.

use crate::Engine;
use crate::state::{Application, Launch};
use partita_device::Device;
use partita_model::{
    ApplicationId, ApplicationReport, Class, DecisionRecord, DeviceAddress, KernelReport, Note,
    PartitionReport, PolicyReport, SessionId, control,
};
use partita_policy::explain;

impl Engine {
    /// Every application that has a session, in order of id.
    #[must_use]
    pub fn application_reports(&self) -> Vec<ApplicationReport> {
        self.applications
            .iter()
            .map(|(&id, application)| {
                let sessions =
                    || application.sessions.iter().filter_map(|id| self.sessions.get(id));
                ApplicationReport {
                    id,
                    name: application.name.clone(),
                    tenant: application.tenant,
                    sessions: application.sessions.iter().copied().collect(),
                    pids: sessions().map(|session| session.identity.pid).collect(),
                    memory_used_bytes: sessions().map(|session| session.memory_used).sum(),
                    class: self.class_of(id),
                    launches_completed: application.launches_completed,
                    ctas_completed: application.ctas_completed,
                    stuck_ns: self.stuck_for(id).map(|time| time.0),
                    kernels: self.kernel_reports(application),
                }
            })
            .collect()
    }

    /// CTAs of original work that an application has completed at this moment: what
    /// [`Engine::application_reports`] says and what its running launches have done since the
    /// engine looked at them.
    #[must_use]
    pub fn ctas_completed_now(&self, device: &mut dyn Device, id: ApplicationId) -> u64 {
        let told = self.applications.get(&id).map_or(0, |application| application.ctas_completed);
        let running =
            self.launches.values().filter(|launch| launch.application == id && !launch.main_done);
        let since: u64 = running.map(|launch| untold(device, launch)).sum();
        told + since
    }

    fn kernel_reports(&self, application: &Application) -> Vec<KernelReport> {
        let profile = |report: &KernelReport| {
            let key = application
                .profile_keys
                .get(report.name.as_str())
                .filter(|_| report.form == "worker");
            key.and_then(|key| self.profiles.get(key)).copied()
        };
        let with =
            |report: &KernelReport| KernelReport { profile: profile(report), ..report.clone() };
        application.kernels.iter().map(with).collect()
    }

    /// What the policy does, and why.
    #[must_use]
    pub fn policy_report(&self) -> PolicyReport {
        let (selector, partitioner) = self.policy.names();
        let current = self.policy.current();
        PolicyReport {
            sharing: self.sharing,
            selector: selector.to_owned(),
            partitioner: partitioner.to_owned(),
            stage: current.map(|record| record.stage.clone()).unwrap_or_default(),
            stalled: self.stalled,
            gated: self.policy.orders().gated,
            why: self.explanation().into_iter().chain(self.stuck_sentences()).collect(),
            decisions: self.policy.records().cloned().collect(),
        }
    }

    /// Why the partitions are as they are, in sentences; empty where nobody has had work yet.
    #[must_use]
    pub fn explanation(&self) -> Vec<String> {
        self.policy.current().map(explain).unwrap_or_default()
    }

    /// The policy's last decisions, oldest first.
    pub fn decisions(&self) -> impl Iterator<Item = &DecisionRecord> {
        self.policy.records()
    }

    /// An application's class by the last decision that says one.
    fn class_of(&self, id: ApplicationId) -> Option<Class> {
        let notes = self.policy.records().rev().flat_map(|record| record.notes.iter());
        notes
            .filter_map(|note| match note {
                Note::Classified { application, class, .. } if *application == id => Some(*class),
                _ => None,
            })
            .next()
    }

    /// Every partition in force, in order of application: where workers may be at this moment.
    #[must_use]
    pub fn partition_reports(&self) -> Vec<PartitionReport> {
        self.applications
            .iter()
            .filter(|(_, application)| !application.granted.is_empty())
            .map(|(&id, application)| PartitionReport {
                application: id,
                sms: application.granted,
                pinned: self.pinned.contains_key(&id),
            })
            .collect()
    }

    /// Whether nothing is queued, in flight or held for anything that was: what must be true once
    /// every session is released, and between any two pieces of work.
    #[must_use]
    pub fn is_at_rest(&self) -> bool {
        self.operations.is_empty()
            && self.launches.is_empty()
            && self.waiting.is_empty()
            && self.front.is_empty()
            && self.loading.is_empty()
            && self.workers_in_flight + self.originals_in_flight == 0
            && self.ledger.is_empty()
            && self.blocks.in_use() == 0
            && self.profiles.in_use() == 0
    }

    /// Device memory in use by all sessions, in bytes.
    #[must_use]
    pub fn memory_used(&self) -> u64 {
        self.sessions.values().map(|session| session.memory_used).sum()
    }

    /// Whether work of a session is in flight that may wait for what its program writes without a
    /// call: a kernel that may wait for memory and is given an address of host memory, or a stream
    /// that waits for a word there.
    #[must_use]
    pub fn awaits_host(&self, id: SessionId) -> bool {
        let Some(session) = self.sessions.get(&id) else { return false };
        session.word_waits.values().any(|(address, _)| session.window.is_host(*address))
            || self.launches.values().any(|launch| launch.session == id && launch.spec.awaits_host)
    }

    /// Operations of a session that are queued or in flight.
    #[must_use]
    pub fn operations(&self, session: SessionId) -> usize {
        self.sessions.get(&session).map_or(0, |session| session.operations)
    }
}

/// CTAs that a running launch has completed and that its application's account does not have yet.
fn untold(device: &mut dyn Device, launch: &Launch) -> u64 {
    let Some(worker) = &launch.worker else {
        return device.grid_counters(launch.main).map_or(0, |counters| counters.ctas);
    };
    let mut word = [0; 8];
    match device.peek(DeviceAddress(worker.block.0 + control::COMPLETED), &mut word) {
        Ok(()) => u64::from_le_bytes(word).saturating_sub(worker.counted),
        // The device is lost: nothing counts any more.
        Err(_) => 0,
    }
}
