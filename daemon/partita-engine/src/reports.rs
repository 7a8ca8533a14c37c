//! What the engine tells of itself.

use crate::Engine;
use crate::observer::Account;
use partita_device::Device;
use partita_model::TenantId;
use partita_model::{
    AccountsReport, ApplicationAccount, ApplicationId, ApplicationReport, Class, DecisionRecord,
    EventBatch, Happening, JobAccount, JobUsage, KernelReport, LaunchSize, Note, PartitionReport,
    PolicyReport, SessionId, SmSet,
};
use partita_policy::{Launched, explain, explain_pinned, explain_target};

impl Engine {
    /// Every application that has a session, in order of id.
    #[must_use]
    pub fn application_reports(&self) -> Vec<ApplicationReport> {
        let machines = &self.machines;
        let report = |(id, application): (ApplicationId, &crate::sessions::Application)| {
            let ids = application.sessions.iter();
            let sessions = || ids.clone().filter_map(|id| machines.sessions.get(*id));
            let account = machines.observer.account(id);
            ApplicationReport {
                id,
                name: application.name.clone(),
                tenant: application.tenant,
                sessions: application.sessions.iter().copied().collect(),
                pids: sessions().map(|session| session.identity().pid).collect(),
                memory_used_bytes: sessions().map(|session| session.memory_used()).sum(),
                class: self.class_of(id),
                launches_completed: account.map_or(0, |account| account.launches_completed()),
                ctas_completed: account.map_or(0, |account| account.ctas_completed()),
                stuck_ns: machines.launches.stuck_for(id).map(|time| time.0),
                copies_waiting: ids.clone().map(|id| machines.sessions.copies_waiting(*id)).sum(),
                entitlement: Some(application.entitlement).filter(|own| !own.is_silent()),
                target: account.and_then(Account::target),
                lent_ns: None,
                kernels: self.kernel_reports(id),
            }
        };
        machines.sessions.applications().map(report).collect()
    }

    /// The same, with the time until now for which each has lent SMs of its minimum.
    #[must_use]
    pub fn application_reports_now(&self, device: &dyn Device) -> Vec<ApplicationReport> {
        let mut reports = self.application_reports();
        for report in &mut reports {
            if report.entitlement.is_some_and(|entitlement| entitlement.min > 0) {
                report.lent_ns = Some(self.common.meter.usage(report.id, device.now()).lent_ns);
            }
        }
        reports
    }

    /// CTAs of original work that an application has completed at this moment: what
    /// [`Engine::application_reports`] says and what its running launches have done since the
    /// engine looked at them.
    #[must_use]
    pub fn ctas_completed_now(&self, device: &mut dyn Device, id: ApplicationId) -> u64 {
        let told = self.machines.observer.account(id).map_or(0, |account| account.ctas_completed());
        told + self.machines.launches.untold(device, id)
    }

    fn kernel_reports(&self, id: ApplicationId) -> Vec<KernelReport> {
        let observer = &self.machines.observer;
        let Some(account) = observer.account(id) else { return Vec::new() };
        let report = |(report, key): (&KernelReport, Option<_>)| {
            let profile = key.and_then(|key| observer.profile(key));
            let size = key.and_then(|key| account.size(key));
            let latest = size.map(|Launched { ctas, warps, ctas_per_sm }| LaunchSize {
                ctas,
                warps,
                ctas_per_sm,
            });
            KernelReport { profile, latest, ..report.clone() }
        };
        account.kernels().map(report).collect()
    }

    /// The policy's names, orders, reasons and last decisions.
    #[must_use]
    pub fn policy_report(&self) -> PolicyReport {
        let policy = self.machines.observer.policy();
        let (selector, partitioner) = policy.names();
        let current = policy.current();
        let stuck = self.machines.launches.stuck_sentences();
        let lingering = self.machines.handover.lingering().all().into_iter().map(|(id, sms)| {
            format!(
                "{id} has lost SMs {sms}, and CTAs of it are still there: others work beside them."
            )
        });
        let of_target = |(id, _)| {
            let target = self.machines.observer.account(id)?.target()?;
            Some(explain_target(id, &target))
        };
        let targets = self.machines.sessions.applications().filter_map(of_target);
        let pinned = self.machines.handover.pinned();
        let pinned = pinned.iter().map(|(id, sms)| explain_pinned(*id, sms));
        PolicyReport {
            sharing: self.common.sharing,
            selector: selector.to_owned(),
            partitioner: partitioner.to_owned(),
            stage: current.map(|record| record.stage.clone()).unwrap_or_default(),
            stalled: self.machines.handover.stalled(),
            gated: policy.orders().gated,
            why: self
                .explanation()
                .into_iter()
                .chain(pinned)
                .chain(targets)
                .chain(lingering)
                .chain(stuck)
                .collect(),
            decisions: policy.records().cloned().collect(),
        }
    }

    /// The reasons for the present partitions, in sentences. Empty before any application has had
    /// work.
    #[must_use]
    pub fn explanation(&self) -> Vec<String> {
        self.machines.observer.policy().current().map(explain).unwrap_or_default()
    }

    /// The policy's last decisions, oldest first.
    pub fn decisions(&self) -> impl Iterator<Item = &DecisionRecord> {
        self.machines.observer.policy().records()
    }

    /// An application's class by the last decision that says one.
    fn class_of(&self, id: ApplicationId) -> Option<Class> {
        let records = self.machines.observer.policy().records().rev();
        records.flat_map(|record| record.notes.iter()).find_map(|note| match note {
            Note::Classified { application, class, .. } if *application == id => Some(*class),
            _ => None,
        })
    }

    /// Every partition in force, in order of application: where workers may be at this moment.
    #[must_use]
    pub fn partition_reports(&self) -> Vec<PartitionReport> {
        let handover = &self.machines.handover;
        let report = |(application, sms)| PartitionReport {
            application,
            sms,
            pinned: handover.is_pinned(application),
            part: handover.part(application),
        };
        handover.partitions().map(report).collect()
    }

    /// SMs without power.
    #[must_use]
    pub fn gated(&self) -> SmSet {
        self.machines.handover.gated()
    }

    /// Whether nothing is queued, in flight or held for anything that was: what must be true once
    /// every session is released, and between any two pieces of work.
    #[must_use]
    pub fn is_at_rest(&self) -> bool {
        let machines = &self.machines;
        machines.sessions.is_at_rest()
            && machines.launches.is_at_rest()
            && machines.handover.is_at_rest()
            && machines.observer.is_at_rest()
    }

    /// What every application has had until `now`.
    #[must_use]
    pub fn accounts(&self, device: &dyn Device) -> AccountsReport {
        let (machines, now) = (&self.machines, device.now());
        let account = |(id, application): (ApplicationId, &crate::sessions::Application)| {
            let sessions = application.sessions.iter();
            let sessions = sessions.filter_map(|id| machines.sessions.get(*id));
            let account = machines.observer.account(id);
            ApplicationAccount {
                id,
                name: application.name.clone(),
                tag: application.tag.clone(),
                tenant: application.tenant,
                sessions: application.sessions.len(),
                sms: machines.handover.granted(id).len(),
                memory_used_bytes: sessions.map(|session| session.memory_used()).sum(),
                launches: account.map_or(0, |account| account.launches_completed()),
                ctas: account.map_or(0, |account| account.ctas_completed()),
                stuck: machines.launches.stuck_for(id).is_some(),
                entitlement: Some(application.entitlement).filter(|own| !own.is_silent()),
                target: account.and_then(Account::target),
                usage: self.common.meter.usage(id, now),
            }
        };
        let job = |(tenant, tag, left): (TenantId, &str, JobUsage)| {
            let is_own = |(_, application): &(ApplicationId, &crate::sessions::Application)| {
                application.tenant == tenant && application.tag.as_deref() == Some(tag)
            };
            let own = machines.sessions.applications().filter(is_own);
            let used = own.map(|(id, _)| JobUsage::of(&self.common.meter.usage(id, now)));
            JobAccount { tenant, tag: tag.to_owned(), used: used.fold(left, JobUsage::plus) }
        };
        AccountsReport {
            time: now,
            memory_used_bytes: self.memory_used(),
            energy_nj: device.nanojoules(),
            decisions: machines.observer.policy().current().map_or(0, |record| record.sequence),
            applications: machines.sessions.applications().map(account).collect(),
            totals: self.common.meter.totals().clone(),
            jobs: machines.sessions.left_of_jobs().map(job).collect(),
        }
    }

    /// The number of the last event.
    #[must_use]
    pub fn last_event(&self) -> u64 {
        self.common.journal.last()
    }

    /// Up to `most` events after the one with this number, decisions with their reasons.
    #[must_use]
    pub fn events_since(&self, after: u64, most: usize) -> EventBatch {
        let mut batch = self.common.journal.since(after, most);
        for event in &mut batch.events {
            if let Happening::Decision { decision, why, .. } = &mut event.what {
                let mut records = self.machines.observer.policy().records();
                let record = records.find(|record| record.sequence == *decision);
                *why = record.map(explain).unwrap_or_default();
            }
        }
        batch
    }

    /// Device memory in use by all sessions, in bytes.
    #[must_use]
    pub fn memory_used(&self) -> u64 {
        self.machines.sessions.memory_used()
    }

    /// Whether work of a session is in flight that may wait for what its program writes without a
    /// call: a kernel that may wait for memory and is given an address of host memory, or a stream
    /// that waits for a word there.
    #[must_use]
    pub fn awaits_host(&self, id: SessionId) -> bool {
        let awaits_word = |session: &crate::sessions::Session| session.awaits_host_word();
        self.machines.sessions.get(id).is_some_and(awaits_word)
            || self.machines.launches.awaits_host(id)
    }

    /// Whether a launch runs, or waits for SMs or for the device: only then can a timer
    /// ([`Engine::next_timer`]) let work go on while the device is at rest.
    #[must_use]
    pub fn awaits_timer(&self) -> bool {
        self.machines.launches.awaits_timer()
    }

    /// Operations of a session that are queued or in flight.
    #[must_use]
    pub fn operations(&self, session: SessionId) -> usize {
        self.machines.sessions.get(session).map_or(0, |session| session.operations())
    }

    /// Streams of a session that have something queued and wait for no other stream of it.
    #[must_use]
    pub fn queued_streams(&self, session: SessionId) -> usize {
        self.machines.sessions.get(session).map_or(0, |session| session.queued_streams())
    }
}
