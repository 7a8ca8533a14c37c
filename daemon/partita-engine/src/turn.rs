//! What a machine gets for one turn besides its own fields: the device, and what all machines
//! share. Nothing here decides anything.

use crate::effects::{Effect, Effects};
use crate::journal::Journal;
use crate::meter::Meter;
use crate::{About, Action, EngineConfig, LogLevel, Payload, Rests};
use partita_device::{Device, Guards};
use partita_model::request::Secret;
use partita_model::{
    ApplicationId, CudaResult, DeviceFacts, Happening, LaunchId, ModuleId, Nanos, OperationId,
    SessionId, Sharing, StreamId,
};
use std::collections::VecDeque;
use std::panic::Location;

/// What all machines share.
pub(crate) struct Common {
    pub(crate) facts: DeviceFacts,
    pub(crate) config: EngineConfig,
    /// Host time, where the shell tells it.
    pub(crate) host_now: Nanos,
    /// How the device is shared.
    pub(crate) sharing: Sharing,
    pub(crate) guards: Guards,
    pub(crate) effects: Effects,
    pub(crate) actions: VecDeque<Action>,
    pub(crate) journal: Journal,
    pub(crate) meter: Meter,
    next_id: u64,
    /// Draws secrets. Without it nothing is shared between processes.
    pub(crate) secrets: Option<Secrets>,
}

/// A source of secrets.
pub(crate) type Secrets = Box<dyn FnMut() -> Secret + Send>;

impl Common {
    pub(crate) fn new(config: EngineConfig, device: &dyn Device) -> Self {
        Common {
            facts: device.facts().clone(),
            config,
            host_now: Nanos::default(),
            sharing: device.sharing(),
            guards: device.guards(),
            effects: Effects::default(),
            actions: VecDeque::new(),
            journal: Journal::default(),
            meter: Meter::default(),
            next_id: 1,
            secrets: None,
        }
    }

    /// A turn with `device`.
    pub(crate) fn turn<'a>(&'a mut self, device: &'a mut dyn Device) -> Turn<'a> {
        Turn { now: device.now(), device, common: self }
    }
}

/// The context of one step.
pub(crate) struct Turn<'a> {
    pub(crate) device: &'a mut dyn Device,
    pub(crate) common: &'a mut Common,
    /// The device time at its begin. A turn is short, and asking a real GPU's clock each time took
    /// 3 % of a launch.
    now: Nanos,
}

impl Turn<'_> {
    /// The device time at the turn's begin.
    pub(crate) fn now(&self) -> Nanos {
        self.now
    }

    /// The time by which kernels rest that run alone.
    pub(crate) fn rest_clock(&self) -> Nanos {
        match self.common.config.rests {
            Rests::ByHost => self.common.host_now,
            Rests::Never | Rests::ByDevice => self.now(),
        }
    }

    pub(crate) fn config(&self) -> &EngineConfig {
        &self.common.config
    }

    pub(crate) fn facts(&self) -> &DeviceFacts {
        &self.common.facts
    }

    /// An id that no operation, launch, stream, module or window has had.
    pub(crate) fn next_id(&mut self) -> u64 {
        let id = self.common.next_id;
        self.common.next_id += 1;
        id
    }

    /// A secret that nobody has; `None` where the engine has no source of secrets.
    pub(crate) fn secret(&mut self) -> Option<Secret> {
        self.common.secrets.as_mut().map(|draw| draw())
    }

    pub(crate) fn push(&mut self, effect: Effect) {
        self.common.effects.push(effect);
    }

    /// Whether effects of earlier steps come before one that is pushed now.
    pub(crate) fn has_effects(&self) -> bool {
        !self.common.effects.is_empty()
    }

    pub(crate) fn act(&mut self, action: Action) {
        self.common.actions.push_back(action);
    }

    /// Makes an error stick to a session, after the present step.
    pub(crate) fn fail(&mut self, session: SessionId, code: CudaResult, text: String) {
        self.push(Effect::Fail { session, code, text });
    }

    /// Enters an event in the journal.
    pub(crate) fn happened(&mut self, what: Happening) {
        let now = self.now();
        self.common.journal.push(now, what);
    }

    /// Reports a bug of the engine's own and ends the session that it concerns, after the present
    /// step. The process goes on.
    pub(crate) fn bug(&mut self, session: SessionId, bug: Bug) {
        self.push(Effect::Bug { session: Some(session), bug });
    }

    /// The value, or the report of a bug that concerns no known session.
    pub(crate) fn sound<T>(&mut self, result: Result<T, Bug>) -> Option<T> {
        result.map_err(|bug| self.push(Effect::Bug { session: None, bug })).ok()
    }

    pub(crate) fn reply(
        &mut self,
        call: crate::sessions::Call,
        code: CudaResult,
        payload: Payload,
    ) {
        let crate::sessions::Call { session, sequence } = call;
        self.act(Action::Reply { session, sequence, code, payload });
    }

    #[track_caller]
    pub(crate) fn log(&mut self, level: LogLevel, about: impl Into<About>, text: String) {
        self.act(Action::Log { level, about: about.into(), text, at: Location::caller() });
    }

    /// Logs the failure of something that the device must be able to do.
    #[track_caller]
    pub(crate) fn log_error(&mut self, about: impl Into<About>, text: String) {
        self.log(LogLevel::Error, about, text);
    }
}

/// A record that the engine's own invariants promise, and that is not there.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub(crate) enum Bug {
    /// A launch belongs to a session that has no record.
    #[error("{0} has no record")]
    NoSession(SessionId),
    /// An operation in a queue or on the device has no record.
    #[error("{0} has no record")]
    NoOperation(OperationId),
    /// An operation at the head of a queue holds nothing to submit.
    #[error("{0} holds nothing to submit")]
    NothingQueued(OperationId),
    /// An operation belongs to a stream that its session does not have.
    #[error("{0} is no stream of its session")]
    NoStream(StreamId),
    /// An operation belongs to a launch that has no record.
    #[error("{0} has no record")]
    NoLaunch(LaunchId),
    /// A module that the device loads has no record in its session.
    #[error("{0} has no record")]
    NoModule(ModuleId),
    /// A session's application has no record.
    #[error("{0} has no record")]
    NoApplication(ApplicationId),
    /// A launch of workers or tickets is not entered in the ledger.
    #[error("{0} is not entered in the ledger")]
    NotEntered(LaunchId),
    /// A step belongs to one form of a launch and met another.
    #[error("{0} has another form than its grids")]
    WrongForm(LaunchId),
}

/// The earlier of a time that may be set and another.
pub(crate) fn earliest(set: Option<Nanos>, other: Nanos) -> Option<Nanos> {
    Some(set.map_or(other, |set| set.min(other)))
}
