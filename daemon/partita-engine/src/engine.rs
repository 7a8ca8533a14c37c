//! The engine's front: inputs, outputs and the turn.

use crate::effects::Effect;
use crate::machines::Machines;
use crate::sessions::Call;
use crate::turn::{Common, Turn};
use crate::{
    Action, CancelError, EngineConfig, FormsOf, ModuleHandle, PrepareError, PreparedModule,
    Request, TermsError,
};
use partita_device::{AddressRange, Device, DeviceError, Event, HostMemory, HostSpan};
use partita_model::request::Secret;
use partita_model::{
    ApplicationId, CudaResult, KernelProfile, LaunchShape, Limits, MemoryQuota, Nanos, Originals,
    SessionId, SessionsPerUser, SmSet, TenantId, Terms, TermsRule, TraceReport,
};
use partita_policy::{Deciders, PlanError, Slowdowns};
use std::collections::BTreeMap;
use std::sync::Arc;

use crate::{CloseReason, Holding, OpenError, SessionGrant, SessionIdentity};

/// The engine. See the crate's page.
pub struct Engine {
    pub(crate) common: Common,
    pub(crate) machines: Machines,
}

impl Engine {
    /// An engine for `device`, which the engine alone drives. Until [`Engine::set_policy`] it
    /// shares SMs out evenly.
    ///
    /// # Errors
    /// Where the device has no window for the control blocks.
    pub fn new(config: EngineConfig, device: &mut dyn Device) -> Result<Self, DeviceError> {
        let mut common = Common::new(config, device);
        let machines = Machines::new(&mut common.turn(device))?;
        Ok(Engine { common, machines })
    }

    /// One turn: a step, and then its effects until none is left.
    fn turn<T>(
        &mut self,
        device: &mut dyn Device,
        step: impl FnOnce(&mut Machines, &mut Turn<'_>) -> T,
    ) -> T {
        let mut turn = self.common.turn(device);
        let result = step(&mut self.machines, &mut turn);
        while let Some(effect) = turn.common.effects.pop() {
            self.machines.carry_out(&mut turn, effect);
        }
        result
    }

    /// Takes an event of the device.
    pub fn handle_event(&mut self, device: &mut dyn Device, event: Event) {
        self.turn(device, |machines, turn| machines.event(turn, event));
    }

    /// Takes a request. `sequence` is the session's number of it; replies carry it. Requests of
    /// unknown sessions are dropped.
    pub fn handle_request(
        &mut self,
        device: &mut dyn Device,
        session: SessionId,
        sequence: u64,
        request: Request,
    ) {
        let call = Call { session, sequence };
        self.turn(device, |machines, turn| machines.request(turn, call, request));
    }

    /// Takes the result of an [`Action::Prepare`].
    pub fn handle_prepared(
        &mut self,
        device: &mut dyn Device,
        session: SessionId,
        module: ModuleHandle,
        result: Result<PreparedModule, PrepareError>,
    ) {
        self.turn(device, |machines, turn| {
            machines.prepared(turn, session, module, result);
        });
    }

    /// Takes the result of an [`Action::PrepareForms`].
    pub fn handle_forms(
        &mut self,
        device: &mut dyn Device,
        session: SessionId,
        of: FormsOf,
        result: Result<PreparedModule, PrepareError>,
    ) {
        self.turn(device, |machines, turn| {
            machines.sessions.forms_prepared(turn, session, of, result);
        });
    }

    /// To be called when [`Engine::next_timer`] has come; calling it early does no harm.
    pub fn handle_timer(&mut self, device: &mut dyn Device) {
        let now = device.now();
        let has_come = |time: Option<Nanos>| time.is_some_and(|at| at <= now);
        let policy_due = has_come(self.machines.policy_due());
        self.turn(device, |machines, turn| {
            machines.observer.look_at_hit_rates(turn);
            if policy_due {
                turn.push(Effect::Replan);
            }
        });
        if has_come(self.machines.launches.tick_at()) {
            self.turn(device, Machines::look);
        }
    }

    /// The device time at which [`Engine::handle_timer`] wants to be called. It matters only while
    /// the device is busy, or while [`Engine::awaits_timer`] says so.
    #[must_use]
    pub fn next_timer(&self) -> Option<Nanos> {
        let due = self.machines.policy_due();
        self.machines.launches.tick_at().into_iter().chain(due).min()
    }

    /// The device has run for `spent` more of the host's time. An emulated GPU may take minutes for
    /// a second of device time, so launches that keep others waiting are judged by this time too.
    /// Where nobody calls this, device time alone counts, and runs repeat exactly.
    pub fn device_worked(&mut self, device: &mut dyn Device, spent: Nanos) {
        self.turn(device, |machines, turn| machines.watch_host_time(turn, spent));
    }

    /// The host's time is `now`, from some beginning on: kernels that run alone may have rested
    /// enough by it ([`Rests::ByHost`](crate::Rests::ByHost)).
    pub fn host_time_is(&mut self, device: &mut dyn Device, now: Nanos) {
        self.common.host_now = now;
        if self.machines.launches.has_rested(now) {
            self.turn(device, |_, turn| turn.push(Effect::PumpWaiting));
        }
    }

    /// The host time at which [`Engine::host_time_is`] wants to be called, be the device busy or
    /// not.
    #[must_use]
    pub fn rest_ends(&self) -> Option<Nanos> {
        self.machines.launches.rest_ends()
    }

    /// The next action for the shell.
    pub fn poll_action(&mut self) -> Option<Action> {
        let mut action = self.common.actions.pop_front()?;
        if let Action::Log { about, .. } = &mut action {
            self.machines.sessions.name(about);
        }
        Some(action)
    }

    /// Whose an open session is, and the application that it belongs to.
    #[must_use]
    pub fn identity(&self, session: SessionId) -> Option<(&SessionIdentity, ApplicationId)> {
        let record = self.machines.sessions.get(session)?;
        Some((record.identity(), record.application()))
    }

    /// Opens a session and reserves its window.
    ///
    /// # Errors
    /// Where its id is taken or the device has no window left.
    pub fn open_session(
        &mut self,
        device: &mut dyn Device,
        identity: SessionIdentity,
    ) -> Result<SessionGrant, OpenError> {
        self.turn(device, |machines, turn| {
            let (tenant, came) = (identity.tenant, identity.clone());
            let grant = machines.sessions.open(turn, identity)?;
            machines.trace.enters(grant.application, tenant);
            machines.came(turn, grant.application, &came);
            let grace = turn.config().idle_grace;
            machines.observer.open_account(grant.application, turn.now(), grace);
            Ok(grant)
        })
    }

    /// Whether a tenant may have one more session.
    ///
    /// # Errors
    /// [`OpenError::TooMany`].
    pub fn check_tenant(&self, tenant: TenantId) -> Result<(), OpenError> {
        self.machines.sessions.check_tenant(tenant)
    }

    /// Whether a module of a session waits for launches of others. The device should go on.
    #[must_use]
    pub fn holds_module(&self, session: SessionId) -> bool {
        self.machines.sessions.holds_module(session)
    }

    /// Gives a session the memory that its copies name by ranges ([`crate::ArenaRange`]).
    pub fn set_arena(&mut self, session: SessionId, arena: Arc<dyn HostMemory>) {
        self.machines.sessions.set_arena(session, arena);
    }

    /// Lets a session's kernels reach memory that the session shares with the host, where the
    /// device can: at the addresses that are returned. The last `variables` bytes are for variables
    /// that its modules declare managed.
    pub fn map_host(
        &mut self,
        device: &mut dyn Device,
        session: SessionId,
        memory: HostSpan,
        variables: u64,
    ) -> Option<AddressRange> {
        self.turn(device, |machines, turn| {
            machines.sessions.map_host(turn, session, memory, variables)
        })
    }

    /// Ends a session: its work is cancelled, and once that is gone everything else of it.
    /// [`Action::Released`] says when. Unknown sessions are left alone.
    pub fn close_session(
        &mut self,
        device: &mut dyn Device,
        session: SessionId,
        reason: CloseReason,
    ) {
        self.turn(device, |machines, turn| machines.close(turn, session, reason));
    }

    /// Ends everything that a session has queued or running; the session fails with
    /// `CUDA_ERROR_LAUNCH_TIMEOUT`. Where a tenant asks, `by` names it: it may end only its own.
    ///
    /// # Errors
    /// Where there is no such session, or nothing of it to end, or it is another tenant's; nothing
    /// has changed then.
    pub fn cancel_launches(
        &mut self,
        device: &mut dyn Device,
        session: SessionId,
        by: Option<TenantId>,
    ) -> Result<(), CancelError> {
        self.turn(device, |machines, turn| {
            machines.sessions.check_cancel(session, by)?;
            let who = if by.is_some() { "its user" } else { "an administrator" };
            let text = format!("{who} ended its launches");
            turn.fail(session, CudaResult::ERROR_LAUNCH_TIMEOUT, text);
            Ok(())
        })
    }

    /// Ends everything that a session has queued or running, and its further requests fail with
    /// `code`. Unknown, failed and closing sessions are left alone.
    pub fn fail_session(
        &mut self,
        device: &mut dyn Device,
        session: SessionId,
        code: CudaResult,
        text: String,
    ) {
        self.turn(device, |_, turn| turn.fail(session, code, text));
    }

    /// What each session holds, in order of session.
    pub fn holdings(&self) -> impl Iterator<Item = Holding> + '_ {
        self.machines.sessions.holdings()
    }

    /// Sets the partitions of the named applications and keeps them (*pins*) until one of these
    /// applications leaves; the others share what is left.
    ///
    /// # Errors
    /// Where the plan cannot hold; nothing has changed then.
    pub fn set_plan(
        &mut self,
        device: &mut dyn Device,
        partitions: BTreeMap<ApplicationId, SmSet>,
    ) -> Result<(), PlanError> {
        self.turn(device, |machines, turn| {
            machines.set_plan(partitions)?;
            turn.push(Effect::Replan);
            Ok(())
        })
    }

    /// Gives all partitions back to the policy.
    pub fn unpin(&mut self, device: &mut dyn Device) {
        self.turn(device, |machines, turn| {
            machines.handover.unpin();
            turn.push(Effect::Replan);
        });
    }

    /// Replaces the selector and the partitioner.
    pub fn set_policy(&mut self, device: &mut dyn Device, deciders: Deciders) {
        self.turn(device, |machines, turn| {
            machines.observer.set_policy(deciders);
            turn.push(Effect::Replan);
        });
    }

    /// What the selector knows of slowdowns; `None` where it learns none.
    #[must_use]
    pub fn slowdowns(&self) -> Option<&Slowdowns> {
        self.machines.observer.policy().slowdowns()
    }

    /// Lets the workers on these SMs wait at their next task border, in addition to the SMs that
    /// the policy stalls.
    pub fn set_stalled(&mut self, device: &mut dyn Device, sms: SmSet) {
        self.turn(device, |machines, turn| {
            machines.handover.stall_by_hand(sms);
            turn.push(Effect::Stall);
        });
    }

    /// Changes how long launches may get nowhere.
    pub fn set_limits(&mut self, limits: &Limits) {
        let nanos = |ms: u32| Nanos(u64::from(ms) * 1_000_000);
        let config = &mut self.common.config;
        config.no_progress = nanos(limits.no_progress_ms);
        config.alone = nanos(limits.alone_ms);
        config.hold_up = nanos(limits.hold_up_ms);
    }

    /// Sets the source of the secrets that processes show to open each other's memory and events.
    /// Hostile programs guess, so the source must be random. Without one nothing is exported.
    pub fn set_secrets(&mut self, draw: impl FnMut() -> Secret + Send + 'static) {
        self.common.secrets = Some(Box::new(draw));
    }

    /// Changes whether first launches of kernels are counted from now on.
    pub fn set_profiling(&mut self, profiling: bool) {
        self.common.config.profiling = profiling;
    }

    /// When kernels run as they were written although they have another form.
    #[must_use]
    pub fn originals(&self) -> Originals {
        self.common.config.originals
    }

    /// Changes when kernels run as they were written. Modules that are prepared from then on have
    /// the originals for it.
    pub fn set_originals(&mut self, originals: Originals) {
        self.common.config.originals = originals;
    }

    /// Changes how many sessions one tenant may have. A tenant that has more keeps them.
    pub fn set_sessions_per_user(&mut self, most: SessionsPerUser) {
        self.machines.sessions.set_sessions_per_user(most);
    }

    /// Changes how much memory tenants may have. A tenant that has more keeps it.
    pub fn set_quotas(&mut self, quotas: &[MemoryQuota]) {
        self.machines.sessions.set_quotas(quotas);
    }

    /// Sets the tenants that may run kernels that nothing holds to their own memory; `None`: all.
    pub fn set_unfenced(&mut self, tenants: impl IntoIterator<Item = Option<TenantId>>) {
        self.machines.sessions.set_unfenced(tenants);
    }

    /// Sets the terms of applications by rules, and the tenants that may ask for more than rules
    /// grant; `None`: all.
    pub fn set_terms_rules(
        &mut self,
        device: &mut dyn Device,
        rules: &[TermsRule],
        askers: impl IntoIterator<Item = Option<TenantId>>,
    ) {
        self.turn(device, |machines, turn| {
            machines.sessions.set_terms_rules(rules, askers);
            turn.push(Effect::Replan);
        });
    }

    /// Sets what schedulers have reserved for the jobs of tenants.
    pub fn set_reserved(&mut self, device: &mut dyn Device, rules: &[TermsRule]) {
        self.turn(device, |machines, turn| {
            machines.sessions.set_reserved(rules);
            turn.push(Effect::Replan);
        });
    }

    /// Sets what one application may have, from now on and for its running kernels. Where a tenant
    /// asks, `by` names it.
    ///
    /// # Errors
    /// [`TermsError`]; nothing has changed then.
    pub fn set_terms(
        &mut self,
        device: &mut dyn Device,
        application: ApplicationId,
        terms: Terms,
        by: Option<TenantId>,
    ) -> Result<(), TermsError> {
        self.turn(device, |machines, turn| {
            machines.sessions.set_terms(application, terms, by)?;
            turn.push(Effect::Replan);
            Ok(())
        })
    }

    /// Takes the kept profiles of a kernel ([`Action::Profiled`]). Launches that were counted since
    /// the start go before them.
    pub fn learn(&mut self, hash: &Arc<str>, profiles: &[(LaunchShape, KernelProfile)]) {
        self.machines.observer.learn(hash, profiles);
    }

    /// Turns the residency trace on or off.
    ///
    /// # Errors
    /// Where the device cannot tell residency.
    pub fn set_trace(&mut self, device: &mut dyn Device, on: bool) -> Result<(), DeviceError> {
        match device.residency_trace() {
            Some(trace) => trace.trace_residency(on),
            None if on => Err(DeviceError::Unsupported("telling where each CTA is".to_owned())),
            None => Ok(()),
        }
    }

    /// The trace's entries from `since` on.
    #[must_use]
    pub fn trace_report(&self, since: Option<Nanos>) -> TraceReport {
        self.machines.trace.report(self.common.facts.timekeeping, since)
    }

    /// The trace's entries about one tenant's applications.
    #[must_use]
    pub fn trace_of(&self, tenant: TenantId) -> TraceReport {
        self.machines.trace.report_of(self.common.facts.timekeeping, tenant)
    }
}
