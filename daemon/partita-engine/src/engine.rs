//! The engine's front: its state, inputs, outputs.

use crate::arrivals::Latency;
use crate::control_block::BlockPool;
use crate::effects::{Effect, Effects};
use crate::ledger::Ledger;
use crate::profiling::Profiles;
use crate::state::{Application, Launch, Operation, Session};
use crate::trace::Trace;
use crate::{Action, EngineConfig, LogLevel, Payload};
use partita_device::{AddressRange, Device, DeviceError, Event, Guards};
use partita_model::{
    ApplicationId, Console, CudaResult, DeviceFacts, LaunchId, MemoryQuota, ModuleId, Nanos,
    OperationId, SessionId, Sharing, SmSet, StreamId, TenantId, TraceEntry, TraceReport, WindowId,
};
use partita_policy::{Even, Everyone, Policy, PolicySettings};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

/// Who opens a session.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SessionIdentity {
    /// Its id, never used before.
    pub session: SessionId,
    /// Who is accounted.
    pub tenant: TenantId,
    /// The client's process id.
    pub pid: u32,
    /// The program's name.
    pub program: String,
    /// Sessions of one tenant with the same tag are one application; one without a tag is its own.
    pub tag: Option<String>,
}

/// What a session gets when it opens.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SessionGrant {
    /// Its window: every device address that it will ever be given lies inside.
    pub window: AddressRange,
    /// The application that it belongs to.
    pub application: ApplicationId,
}

/// Why a session could not be opened.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum OpenError {
    /// Its id is taken.
    #[error("{0} exists already")]
    Taken(SessionId),
    /// The device has no window for it.
    #[error("no device addresses are left for {session}: try again when a program has ended")]
    NoWindow {
        /// Whose.
        session: SessionId,
        /// What the device said.
        source: DeviceError,
    },
}

/// Why a session ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CloseReason {
    /// The program said goodbye.
    Goodbye,
    /// Its process is gone.
    Died,
}

/// A launch that could start if it were let.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Waiting {
    pub(crate) application: ApplicationId,
    pub(crate) session: SessionId,
    pub(crate) stream: StreamId,
    pub(crate) is_confined: bool,
}

/// The engine. See the crate's page.
pub struct Engine {
    pub(crate) facts: DeviceFacts,
    pub(crate) config: EngineConfig,
    pub(crate) quotas: Vec<MemoryQuota>,
    /// How the device is shared.
    pub(crate) sharing: Sharing,
    pub(crate) guards: Guards,
    /// Who may run kernels that nothing holds to their own memory; `None`: everyone.
    pub(crate) unfenced: BTreeSet<Option<TenantId>>,
    pub(crate) actions: VecDeque<Action>,
    pub(crate) effects: Effects,
    next_id: u64,
    next_application: u32,
    pub(crate) sessions: BTreeMap<SessionId, Session>,
    pub(crate) applications: BTreeMap<ApplicationId, Application>,
    // Boxed: entries come and go with each launch, and a map moves its neighbours each time.
    pub(crate) operations: BTreeMap<OperationId, Box<Operation>>,
    pub(crate) launches: BTreeMap<LaunchId, Box<Launch>>,
    /// Modules that the device is loading.
    pub(crate) loading: BTreeMap<ModuleId, (SessionId, crate::ModuleHandle)>,
    /// SMs that the device makes ready for machine code, and those that it could not, with the
    /// reason.
    pub(crate) confining: BTreeSet<SmSet>,
    pub(crate) unconfinable: BTreeMap<SmSet, String>,
    /// Launches at the head of their queue that wait for room or for the device to be theirs alone.
    pub(crate) waiting: BTreeMap<OperationId, Waiting>,
    /// Launches whose main grid is the first of its stream: those that may be running.
    pub(crate) front: BTreeSet<LaunchId>,
    /// Running launches with tasks left that have no place on any SM of their application.
    pub(crate) starved: BTreeMap<LaunchId, ApplicationId>,
    /// Launches in flight of all applications, by form.
    pub(crate) workers_in_flight: usize,
    pub(crate) originals_in_flight: usize,
    pub(crate) ledger: Ledger,
    pub(crate) blocks: BlockPool,
    pub(crate) policy: Policy,
    /// Partitions that an administrator has set.
    pub(crate) pinned: BTreeMap<ApplicationId, SmSet>,
    /// For each SM, who shall have it.
    pub(crate) owners: Vec<Option<ApplicationId>>,
    /// For each SM, who has lost it but may still have workers there.
    pub(crate) draining: Vec<Option<ApplicationId>>,
    /// Some SM has not reached its owner yet.
    pub(crate) handover_pending: bool,
    /// SMs whose workers wait: those that the policy names and those of [`Engine::set_stalled`].
    pub(crate) alone: crate::alone::Alone,
    pub(crate) stalled: SmSet,
    pub(crate) stalled_by_hand: SmSet,
    /// By when every worker has come to a task border since that last changed.
    pub(crate) stall_followed: Nanos,
    /// SMs that the policy wants to be without power.
    pub(crate) gated: SmSet,
    pub(crate) tick_at: Option<Nanos>,
    /// From sending a helper grid until its workers are seen.
    pub(crate) latency: Latency,
    /// How long a CTA of a kernel takes.
    pub(crate) cta_times: BTreeMap<(ModuleId, Arc<str>), Nanos>,
    /// What kernels do.
    pub(crate) profiles: Profiles,
    pub(crate) trace: Trace,
    pub(crate) lost: bool,
}

impl Engine {
    /// An engine for `device`, which nobody else drives. Until [`Engine::set_policy`] it shares SMs
    /// out evenly.
    ///
    /// # Errors
    /// Where the device has no window for the control blocks.
    pub fn new(config: EngineConfig, device: &mut dyn Device) -> Result<Self, DeviceError> {
        let facts = device.facts().clone();
        let blocks = BlockPool::new(device, WindowId(0))?;
        let settings = PolicySettings {
            idle_grace: config.idle_grace,
            ..PolicySettings::new(facts.sm_clock_khz)
        };
        Ok(Engine {
            ledger: Ledger::new(&facts),
            profiles: Profiles::new(device, WindowId(0), blocks.window()),
            blocks,
            actions: VecDeque::new(),
            effects: Effects::default(),
            next_id: 1,
            next_application: 1,
            sessions: BTreeMap::new(),
            applications: BTreeMap::new(),
            operations: BTreeMap::new(),
            launches: BTreeMap::new(),
            loading: BTreeMap::new(),
            confining: BTreeSet::new(),
            unconfinable: BTreeMap::new(),
            waiting: BTreeMap::new(),
            front: BTreeSet::new(),
            starved: BTreeMap::new(),
            workers_in_flight: 0,
            originals_in_flight: 0,
            policy: Policy::new(settings, Box::new(Everyone::default()), Box::new(Even)),
            pinned: BTreeMap::new(),
            owners: vec![None; facts.sm_count.into()],
            handover_pending: false,
            draining: vec![None; facts.sm_count.into()],
            alone: crate::alone::Alone::default(),
            stalled: SmSet::EMPTY,
            stalled_by_hand: SmSet::EMPTY,
            stall_followed: Nanos::default(),
            gated: SmSet::EMPTY,
            tick_at: None,
            latency: Latency::new(config.handover_tick, config.unsettled_tick),
            sharing: device.sharing(),
            guards: device.guards(),
            unfenced: BTreeSet::new(),
            cta_times: BTreeMap::new(),
            trace: Trace::new(config.trace_entries),
            lost: false,
            facts,
            quotas: Vec::new(),
            config,
        })
    }

    /// Takes what the device tells.
    pub fn handle_event(&mut self, device: &mut dyn Device, event: Event) {
        match event {
            Event::ModuleLoaded { module, facts } => self.module_loaded(device, module, facts),
            Event::ModuleRefused { module, reason } => self.module_refused(device, module, reason),
            Event::Confined { sms, result } => self.confined(device, sms, result),
            Event::Done { operation, time, outcome } => {
                self.look_at_traffic(device);
                self.operation_done(operation, time, outcome);
            }
            Event::Residency(change) => {
                if let Some((application, launch)) = self.owner_of(change.grid) {
                    self.trace.push(TraceEntry::Residency { change, application, launch });
                }
            }
            Event::Output { operation, text } => {
                if let Some(operation) = self.operations.get(&operation) {
                    self.actions.push_back(Action::Output {
                        session: operation.session,
                        console: Console::Output,
                        text,
                    });
                }
            }
            Event::Lost { reason } => self.device_lost(reason),
        }
        self.settle(device);
    }

    /// To be called when [`Engine::next_timer`] has come; calling it early does no harm.
    pub fn handle_timer(&mut self, device: &mut dyn Device) {
        let now = device.now();
        self.look_at_traffic(device);
        if self.policy_due().is_some_and(|at| at <= now) {
            self.effects.push(Effect::Replan);
            self.settle(device);
        }
        if self.tick_at.is_some_and(|at| at <= now) {
            self.look(device);
        }
        self.settle(device);
    }

    /// The device time at which [`Engine::handle_timer`] wants to be called. It matters only while
    /// the device is busy: an idle device needs no timer to go on.
    #[must_use]
    pub fn next_timer(&self) -> Option<Nanos> {
        self.tick_at.into_iter().chain(self.policy_due()).min()
    }

    /// The next thing to do.
    pub fn poll_action(&mut self) -> Option<Action> {
        self.actions.pop_front()
    }

    /// Turns the residency trace on or off.
    ///
    /// # Errors
    /// Where the device cannot tell residency.
    pub fn set_trace(&mut self, device: &mut dyn Device, on: bool) -> Result<(), DeviceError> {
        device.trace_residency(on)
    }

    /// What the trace holds from `since` on.
    #[must_use]
    pub fn trace_report(&self, since: Option<Nanos>) -> TraceReport {
        self.trace.report(self.facts.timekeeping, since)
    }

    pub(crate) fn next_id(&mut self) -> u64 {
        let id = self.next_id;
        self.next_id += 1;
        id
    }

    pub(crate) fn next_application(&mut self) -> ApplicationId {
        let id = ApplicationId(self.next_application);
        self.next_application += 1;
        id
    }

    pub(crate) fn reply(
        &mut self,
        session: SessionId,
        sequence: u64,
        code: CudaResult,
        payload: Payload,
    ) {
        self.actions.push_back(Action::Reply { session, sequence, code, payload });
    }

    pub(crate) fn log(&mut self, level: LogLevel, session: Option<SessionId>, text: String) {
        self.actions.push_back(Action::Log { level, session, text });
    }
}

/// The earlier of a time that may be set and another.
pub(crate) fn earliest(set: Option<Nanos>, other: Nanos) -> Option<Nanos> {
    Some(set.map_or(other, |set| set.min(other)))
}
