//! Questions and orders of `partitad`: the status, the trace, plans and policies, launches to
//! cancel.
//!
//! An order that cannot be carried out is refused with its reason, and changes nothing.

use super::Shell;
use crate::calibration;
use partita_device::Activity;
use partita_engine::{CancelError, PlanError, TermsError};
use partita_model::{
    Calibration, GpuConfig, GpuNumber, GpuReport, PolicyConfig, StatusReport, Timekeeping,
};
use partita_policy::calibrated;
use partita_wire::supervise::{Answer, Ask, FromGpu, PlanRequest, RefusalKind};
use std::collections::BTreeMap;

/// The most events of one answer.
const EVENTS_PER_ANSWER: usize = 512;

impl Shell {
    /// Announces an event to a `partitad` that knows all events before it, once.
    pub(super) fn announce(&mut self) {
        if self.announce_after.is_some_and(|last| last < self.engine.last_event()) {
            self.announce_after = None;
            self.tell(FromGpu::News);
        }
    }

    pub(super) fn read_control(&mut self) {
        self.obey_deferred();
        let Some(line) = &mut self.line else { return };
        let read = line.control.read();
        // What came before the end of the line counts.
        loop {
            let Some(line) = &mut self.line else { return };
            match line.control.next_question() {
                Ok(Some(question)) => self.take_question(question),
                Ok(None) => break,
                Err(error) => return self.lose_line(&error),
            }
        }
        if let Err(error) = read {
            self.lose_line(&error);
        }
    }

    pub(super) fn answer(&mut self, ask: Ask) -> Answer {
        match ask {
            Ask::Heartbeat => Answer::Done,
            Ask::EndWhenIdle => {
                self.ending.drain();
                Answer::Done
            }
            Ask::End => {
                self.ending.order();
                Answer::Done
            }
            Ask::Status => Answer::Status(Box::new(self.status())),
            Ask::Accounts => Answer::Accounts(Box::new(self.engine.accounts(&*self.device))),
            Ask::Events { after } => {
                let batch = self.engine.events_since(after, EVENTS_PER_ANSWER);
                self.announce_after = (!batch.more).then(|| self.engine.last_event());
                Answer::Events(batch)
            }
            Ask::Trace(None) => Answer::Trace(self.engine.trace_report(None)),
            Ask::Trace(Some(tenant)) => Answer::Trace(self.engine.trace_of(tenant)),
            Ask::SetPlan(plan) => self.set_plan(&plan),
            Ask::Configure(config) => self.configure(&config),
            Ask::CancelLaunches { session, by } => {
                self.device_activity = Activity::Busy;
                match self.engine.cancel_launches(self.device.as_mut(), session, by) {
                    Ok(()) => Answer::Done,
                    Err(error) => {
                        let kind = match error {
                            CancelError::Unknown { .. } => RefusalKind::NotFound,
                            CancelError::Foreign(_) => RefusalKind::Forbidden,
                            CancelError::Nothing(_) => RefusalKind::Conflict,
                        };
                        Answer::Refused { kind, detail: error.to_string() }
                    }
                }
            }
            Ask::SetTerms { application, terms, by } => {
                self.device_activity = Activity::Busy;
                match self.engine.set_terms(self.device.as_mut(), application, terms, by) {
                    Ok(()) => Answer::Done,
                    Err(error) => {
                        let kind = match error {
                            TermsError::Unknown(_) => RefusalKind::NotFound,
                            TermsError::Forbidden { .. } | TermsError::NotGranted { .. } => {
                                RefusalKind::Forbidden
                            }
                            TermsError::Impossible(_) => RefusalKind::Invalid,
                            TermsError::TooMany { .. } => RefusalKind::Conflict,
                        };
                        Answer::Refused { kind, detail: error.to_string() }
                    }
                }
            }
            Ask::Reserve(rules) => {
                self.device_activity = Activity::Busy;
                self.engine.set_reserved(self.device.as_mut(), &rules);
                Answer::Done
            }
            Ask::ClearPlan => {
                self.device_activity = Activity::Busy;
                self.engine.unpin(self.device.as_mut());
                Answer::Done
            }
        }
    }

    /// The hardware's numbers for a policy.
    fn calibration(&mut self, policy: &PolicyConfig) -> Calibration {
        let specified = self.device.calibration();
        if !policy.compares_speeds() {
            return specified;
        }
        let (device, store) = (self.device.as_mut(), self.store.as_deref());
        let measured =
            *self.measured.get_or_insert_with(|| calibration::obtain(&self.text, device, store));
        measured.and_then(|measured| calibrated(&specified, &measured)).unwrap_or(specified)
    }

    fn configure(&mut self, config: &GpuConfig) -> Answer {
        let refused = |detail: String| Answer::Refused { kind: RefusalKind::Invalid, detail };
        if config.policy.compares_speeds() && self.device.facts().timekeeping == Timekeeping::Off {
            let text = "this policy compares speeds, and this device keeps no time: use the \
                        selector `everyone` with the partitioner `even` or `static`";
            return refused(text.into());
        }
        let calibration = self.calibration(&config.policy);
        self.keep_slowdowns(true);
        let slowdowns = self.slowdowns();
        match partita_policy::build_with(&config.policy, &calibration, slowdowns) {
            Ok(deciders) => {
                self.device_activity = Activity::Busy;
                self.engine.set_limits(&config.limits);
                self.pool.set_limits(&config.limits);
                self.engine.set_originals(config.originals);
                // No other policy looks at profiles, and what is counted takes longer.
                self.engine.set_profiling(config.policy.compares_speeds());
                self.engine.set_sessions_per_user(config.sessions_per_user);
                self.engine.set_quotas(&config.quotas);
                self.memory.configure(&config.host_memory);
                self.set_unfenced(&config.unfenced);
                self.set_terms_rules(&config.terms, &config.askers);
                self.engine.set_policy(self.device.as_mut(), deciders);
                self.config = Some(config.clone());
                Answer::Done
            }
            Err(error) => refused(error.to_string()),
        }
    }

    fn set_plan(&mut self, plan: &PlanRequest) -> Answer {
        let mut partitions = BTreeMap::new();
        for partition in &plan.partitions {
            if partitions.insert(partition.application, partition.sms).is_some() {
                let detail = format!("{} is named twice", partition.application);
                return Answer::Refused { kind: RefusalKind::Invalid, detail };
            }
        }
        self.device_activity = Activity::Busy;
        match self.engine.set_plan(self.device.as_mut(), partitions) {
            Ok(()) => Answer::Done,
            Err(error) => {
                let kind = match error {
                    PlanError::Unknown { .. } => RefusalKind::NotFound,
                    PlanError::Overlap { .. } | PlanError::Starves { .. } => RefusalKind::Conflict,
                    PlanError::OutsideGpu { .. } | PlanError::Empty { .. } => RefusalKind::Invalid,
                };
                Answer::Refused { kind, detail: error.to_string() }
            }
        }
    }

    fn status(&self) -> StatusReport {
        let facts = self.device.facts();
        let gpu = GpuReport {
            // partitad fills in this field.
            number: GpuNumber(0),
            name: facts.name.clone(),
            kind: facts.kind,
            timekeeping: facts.timekeeping,
            compute_capability: facts.compute_capability,
            sms: facts.sm_count,
            memory_bytes: facts.memory.0,
            memory_used_bytes: self.engine.memory_used(),
            device_time_ns: self.device.now().0,
            host_time: self.pacer.rules(),
            patience_exceeded: self.pacer.exceeded(),
            stray_accesses: self.device.stray_accesses(),
            limits: self.device.limits().to_vec(),
            energy_nj: self.device.nanojoules(),
            calibration: Some(self.device.calibration()),
            measured: self.measured.flatten(),
            pid: std::process::id(),
            restarts: 0,
            last_restart: None,
        };
        StatusReport {
            version: env!("CARGO_PKG_VERSION").into(),
            gpu,
            applications: self.engine.application_reports_now(&*self.device),
            partitions: self.engine.partition_reports(),
            policy: self.engine.policy_report(),
            other_users: None,
            others: Vec::new(),
        }
    }
}
