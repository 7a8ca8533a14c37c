//! What the engine tells of itself.

use crate::Engine;
use partita_model::{ApplicationReport, PartitionReport};

impl Engine {
    /// Every application that has a session, in order of id.
    #[must_use]
    pub fn application_reports(&self) -> Vec<ApplicationReport> {
        self.applications
            .iter()
            .map(|(&id, application)| {
                let sessions = || application.sessions.iter().filter_map(|id| self.sessions.get(id));
                ApplicationReport {
                    id,
                    name: application.name.clone(),
                    tenant: application.tenant,
                    sessions: application.sessions.iter().copied().collect(),
                    pids: sessions().map(|session| session.identity.pid).collect(),
                    memory_used_bytes: sessions().map(|session| session.memory_used).sum(),
                    launches_completed: application.launches_completed,
                    ctas_completed: application.ctas_completed,
                    kernels: application.kernels.clone(),
                }
            })
            .collect()
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

    /// Whether nothing is queued, in flight or held for anything that was: what must be true once every session is
    /// released, and between any two pieces of work.
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
    }

    /// Device memory in use by all sessions, in bytes.
    #[must_use]
    pub fn memory_used(&self) -> u64 {
        self.sessions.values().map(|session| session.memory_used).sum()
    }
}
