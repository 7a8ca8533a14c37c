//! Sessions: their applications, streams and queues, events, gates, memory and modules.
//!
//! A session that fails keeps its memory until it is closed, as a CUDA context does after a sticky
//! error. A session that closes has its grids cancelled and its queue dropped at once. Its memory
//! goes when the last of its operations is done. Other sessions do not notice.
//!
//! This machine owns every operation, and knows of launches only what stands in its queues. Whether
//! a launch may start is the business of [`crate::launches`].

mod ahead;
mod copies;
mod copy_order;
mod copy_times;
mod events;
mod exports;
mod forms;
mod memory;
mod modules;
mod queue;
mod record;
mod relocation;
mod requests;
mod shared_events;
mod streams;
mod terms;
mod textures;
mod waiting;
mod window;

pub(crate) use copies::CopyTurn;
pub(crate) use modules::program_line;
pub(crate) use queue::{Head, Retired, Submitted};
pub(crate) use record::{Call, Forming, LoadedInstance, Queued, Session, Then};
pub(crate) use requests::{Answer, Refusal, Taken};
pub use terms::TermsError;

use crate::effects::Effect;
use crate::turn::{Bug, Turn};
use crate::{
    About, Action, CancelError, CloseReason, Holding, LogLevel, OpenError, Payload, SessionGrant,
    SessionIdentity, StreamHandle, StreamKind,
};
use partita_device::{AddressRange, Device, DeviceError, Guards, HostMemory, HostSpan};
use partita_model::{
    ApplicationId, CudaResult, Entitlement, MemoryQuota, ModuleId, OperationId, SessionId,
    SessionsPerUser, StreamId, TenantId, WindowId,
};
use record::{Loads, Module, Operation, SessionState, Stage, Stream};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use window::Window;

/// A window has room for all of the device's memory, and at least this much. Addresses cost
/// nothing, and the account refuses programs that over-allocate.
const MIN_WINDOW_BYTES: u64 = 64 << 30;

/// A window that was reserved.
struct Reserved {
    range: AddressRange,
    guards: Guards,
    /// It takes few addresses, and does not hold all of the device's memory.
    small: bool,
}

/// Whether a tenant's next window is a small one. A tenant has at most as many full windows as are
/// free, so that a tenant with many sessions leaves full windows to each of the others.
fn is_small(full: usize, taken: usize, own: usize) -> bool {
    own >= full.saturating_sub(taken)
}

/// What gets a partition: one session, or the sessions of one tenant with the same tag.
pub(crate) struct Application {
    pub(crate) name: String,
    pub(crate) tenant: TenantId,
    pub(crate) tag: Option<String>,
    pub(crate) sessions: BTreeSet<SessionId>,
    /// All its sessions are closing.
    pub(crate) leaving: bool,
    layers: terms::Layers,
    /// What it may have.
    pub(crate) entitlement: Entitlement,
}

/// The machine of sessions.
#[derive(Default)]
pub(crate) struct Sessions {
    records: BTreeMap<SessionId, Session>,
    applications: BTreeMap<ApplicationId, Application>,
    last_application: u32,
    // Boxed: entries come and go with each launch, and a map moves its neighbours each time.
    operations: BTreeMap<OperationId, Box<Operation>>,
    /// What the device is loading.
    loading: BTreeMap<ModuleId, Loads>,
    /// Prepared modules that the device does not get yet, and until when.
    held: BTreeMap<(SessionId, crate::ModuleHandle), modules::Held>,
    copies: copies::Copies,
    copy_times: copy_times::CopyTimes,
    quotas: Vec<MemoryQuota>,
    /// The most sessions of one tenant; without it, no limit.
    per_user: Option<SessionsPerUser>,
    /// Tenants that may run kernels that nothing holds to their own memory; `None`: all.
    unfenced: BTreeSet<Option<TenantId>>,
    terms: terms::TermsBook,
    exports: exports::Exports,
    shared_events: shared_events::SharedEvents,
    /// Requests that wait until no kernel runs.
    postponed: Vec<(Call, crate::Request)>,
    /// The device is gone: nothing is given back to it.
    lost: bool,
}

/// What a session's cancelled queue held.
pub(crate) struct Dropped {
    pub(crate) application: ApplicationId,
    /// How many of them were launches, and how many of these keep to their application's SMs.
    pub(crate) launches: usize,
    pub(crate) confined: usize,
}

impl Sessions {
    /// Opens a session and reserves its window.
    pub(crate) fn open(
        &mut self,
        turn: &mut Turn<'_>,
        identity: SessionIdentity,
    ) -> Result<SessionGrant, OpenError> {
        let id = identity.session;
        if self.records.contains_key(&id) {
            return Err(OpenError::Taken(id));
        }
        self.check_tenant(identity.tenant)?;
        self.check_asked(&identity)?;
        let no_window = |source| OpenError::NoWindow { session: id, source };
        let window_id = WindowId(turn.next_id());
        let reserved = self.reserve_window(turn, window_id, identity.tenant).map_err(no_window)?;
        let legacy = StreamId(turn.next_id());
        if let Err(source) = turn.device.create_stream(legacy) {
            let _ = turn.device.release(window_id);
            return Err(no_window(source));
        }
        let Reserved { range: window, guards, small } = reserved;
        let application = self.join_application(&identity);
        let session = Session {
            application,
            arena: None,
            staging_bytes: u64::MAX,
            window_id,
            window: Window::new(window),
            guards,
            is_small: small,
            memory_used: 0,
            memory_slack: 0,
            state: SessionState::Open,
            streams: BTreeMap::from([(legacy, Stream::new(StreamKind::Blocking))]),
            handles: BTreeMap::from([(StreamHandle::LEGACY, legacy)]),
            legacy,
            backlog: BTreeSet::new(),
            awaiting_turn: BTreeSet::new(),
            parked: BTreeMap::new(),
            events: BTreeMap::new(),
            modules: BTreeMap::new(),
            arrays: BTreeMap::new(),
            textures: BTreeSet::new(),
            waiters: Vec::new(),
            word_waits: BTreeMap::new(),
            gates: BTreeMap::new(),
            operations: 0,
            loading: 0,
            orphans: Vec::new(),
            identity,
        };
        self.records.insert(id, session);
        Ok(SessionGrant { window, application })
    }

    /// A full window, or a small one where few full ones are left.
    fn reserve_window(
        &self,
        turn: &mut Turn<'_>,
        id: WindowId,
        tenant: TenantId,
    ) -> Result<Reserved, DeviceError> {
        let least = turn.facts().memory.0.max(MIN_WINDOW_BYTES);
        let bytes = turn.config().window.map_or(least, |bytes| bytes.0);
        let of_full = |own: Option<TenantId>| {
            let all = self.records.values().filter(|session| !session.is_small);
            all.filter(|session| own.is_none_or(|own| session.identity.tenant == own)).count()
        };
        let small = |device: &mut dyn Device| {
            let window = device.reserve_small(id)?;
            Ok(Reserved { range: window.range, guards: window.guards, small: true })
        };
        if is_small(turn.device.full_windows(bytes), of_full(None), of_full(Some(tenant))) {
            match small(turn.device) {
                // Its windows are all full ones.
                Err(DeviceError::Unsupported(_)) => {}
                result => return result,
            }
        }
        match turn.device.reserve(id, bytes) {
            Ok(start) => {
                let range = AddressRange { start, bytes };
                Ok(Reserved { range, guards: turn.common.guards, small: false })
            }
            // Windows that the device had for itself may have left their addresses in pieces.
            Err(error) => small(turn.device).map_err(|_| error),
        }
    }

    /// Whether a tenant may have one more session. Sessions that close still hold their windows.
    pub(crate) fn check_tenant(&self, tenant: TenantId) -> Result<(), OpenError> {
        let Some(SessionsPerUser(most)) = self.per_user else { return Ok(()) };
        let own = self.records.values().filter(|session| session.identity.tenant == tenant);
        match own.count() < most as usize {
            true => Ok(()),
            false => Err(OpenError::TooMany { tenant, most }),
        }
    }

    /// The application that a session joins, if it is there.
    fn joined(&self, identity: &SessionIdentity) -> Option<ApplicationId> {
        let same = |application: &Application| {
            !application.leaving
                && identity.tag.is_some()
                && application.tag == identity.tag
                && application.tenant == identity.tenant
        };
        self.applications.iter().find(|(_, a)| same(a)).map(|(&id, _)| id)
    }

    fn join_application(&mut self, identity: &SessionIdentity) -> ApplicationId {
        if let Some(id) = self.joined(identity)
            && let Some(application) = self.applications.get_mut(&id)
        {
            application.sessions.insert(identity.session);
            application.layers = application.layers.and_asked(identity.asked);
            self.settle_terms();
            return id;
        }
        self.last_application += 1;
        let id = ApplicationId(self.last_application);
        let application = Application {
            name: identity.program.clone(),
            tenant: identity.tenant,
            tag: identity.tag.clone(),
            sessions: BTreeSet::from([identity.session]),
            leaving: false,
            layers: terms::Layers::default().and_asked(identity.asked),
            entitlement: Entitlement::default(),
        };
        self.applications.insert(id, application);
        self.settle_terms();
        id
    }

    /// Gives a session the memory that its copies name by ranges.
    pub(crate) fn set_arena(&mut self, session: SessionId, arena: Arc<dyn HostMemory>) {
        // The session may have gone meanwhile.
        if let Some(record) = self.records.get_mut(&session) {
            record.arena = Some(arena);
        }
    }

    /// Lets a session's kernels reach memory that the session shares with the host, where the
    /// device can: at the addresses that are returned.
    pub(crate) fn map_host(
        &mut self,
        turn: &mut Turn<'_>,
        session: SessionId,
        memory: HostSpan,
        variables: u64,
    ) -> Option<AddressRange> {
        let record = self.records.get_mut(&session)?;
        record.staging_bytes = memory.memory().1;
        let range = record.window.room_for_host(memory.bytes())?;
        let mapping = turn.device.host_mapping()?;
        match mapping.map_host(record.window_id, range.start, memory, variables) {
            Ok(()) => {
                record.window.set_host(range);
                Some(range)
            }
            Err(error) => {
                let text = format!("host memory is not mapped: {error}");
                turn.log(LogLevel::Warning, Some(session), text);
                None
            }
        }
    }

    /// Begins to close a session. Whether that is new: unknown sessions and those that close
    /// already are left alone.
    pub(crate) fn close(
        &mut self,
        turn: &mut Turn<'_>,
        session: SessionId,
        reason: CloseReason,
    ) -> bool {
        let Some(record) = self.records.get_mut(&session) else { return false };
        if record.state == SessionState::Closing {
            return false;
        }
        record.state = SessionState::Closing;
        record.take_waiters();
        let (pid, id) = (record.identity.pid, record.application);
        if reason == CloseReason::Died && record.operations > 0 {
            let text =
                format!("{session} (process {pid}) died with work in flight: it is cancelled");
            turn.log(LogLevel::Info, Some(session), text);
        }
        let closing = |id: &SessionId| {
            self.records.get(id).is_none_or(|other| other.state == SessionState::Closing)
        };
        if let Some(application) = self.applications.get_mut(&id)
            && application.sessions.iter().all(closing)
        {
            application.leaving = true;
            self.settle_terms();
            turn.push(Effect::Leave(id));
        }
        true
    }

    /// Whether a session is there and does not close yet.
    pub(crate) fn can_end(&self, session: SessionId) -> bool {
        self.records.get(&session).is_some_and(|record| record.state != SessionState::Closing)
    }

    /// Makes an error stick to a session: every request from now on gets `code`. Whether that is
    /// new.
    pub(crate) fn fail(
        &mut self,
        turn: &mut Turn<'_>,
        session: SessionId,
        code: CudaResult,
        text: String,
    ) -> bool {
        let Some(record) = self.records.get_mut(&session).filter(|record| record.is_open()) else {
            return false;
        };
        record.state = SessionState::Failed(code);
        let (program, pid) = (&record.identity.program, record.identity.pid);
        let line = format!("{session} ({program}, process {pid}): {code}: {text}");
        let application = Some(record.application);
        let about = About { application, ..session.into() }.error(code);
        turn.log(LogLevel::Warning, about, line);
        turn.act(Action::Sticky { session, code, text });
        for waiter in record.take_waiters() {
            turn.reply(Call { session, sequence: waiter.sequence }, code, Payload::None);
        }
        true
    }

    /// Drops what a session has queued, and ends its waits for words of memory.
    pub(crate) fn drop_queued(
        &mut self,
        turn: &mut Turn<'_>,
        session: SessionId,
    ) -> Option<Dropped> {
        // The session may have gone meanwhile, and with it everything queued.
        self.forget_copies(turn, session);
        let record = self.records.get_mut(&session)?;
        record.backlog.clear();
        record.awaiting_turn.clear();
        record.parked.clear();
        let operations: Vec<OperationId> = record
            .streams
            .values_mut()
            .flat_map(|stream| std::mem::take(&mut stream.queue))
            .collect();
        record.operations -= operations.len();
        // Nobody will write these words any more.
        let waits = std::mem::take(&mut record.word_waits);
        let code = match record.state {
            SessionState::Failed(code) => Some(code),
            SessionState::Open | SessionState::Closing => None,
        };
        let application = record.application;
        let (mut launches, mut confined) = (0, 0);
        for id in &operations {
            let Some(operation) = self.operations.remove(id) else {
                turn.bug(session, Bug::NoOperation(*id));
                continue;
            };
            if let Stage::Queued(Queued::Launch(spec)) = &operation.stage {
                launches += 1;
                confined += usize::from(spec.is_confined());
            }
            if let (Then::Reply { sequence, .. }, Some(code)) = (operation.then, code) {
                turn.reply(Call { session, sequence }, code, Payload::None);
            }
        }
        for id in operations {
            self.wake_others(turn, id);
        }
        for (wait, (address, word)) in waits {
            // A device that cannot end a wait finds the word that it waits for. A wait that was
            // still queued is not known to the device.
            if turn.device.cancel(wait).is_err() {
                let bytes = word.value.to_le_bytes();
                let _ = turn.device.poke(address, &bytes[..usize::from(word.width)]);
            }
        }
        Some(Dropped { application, launches, confined })
    }

    /// Gives everything of a closing session back once nothing of it is in flight. Its application
    /// where the session was the last.
    pub(crate) fn release_if_done(
        &mut self,
        turn: &mut Turn<'_>,
        id: SessionId,
        side_streams: impl FnOnce() -> BTreeSet<StreamId>,
    ) -> Option<Released> {
        let done = self.records.get(&id).is_some_and(|session| {
            session.state == SessionState::Closing
                && session.operations == 0
                && session.loading == 0
        });
        let session = done.then(|| self.records.remove(&id)).flatten()?;
        let instances = session.modules.values().filter_map(|module| match module {
            Module::Loaded(instance) => Some(instance),
            Module::Preparing { .. } | Module::Loading { .. } => None,
        });
        let modules = instances.flat_map(LoadedInstance::ids);
        let mut errors = Vec::new();
        if !self.lost {
            for module in modules.chain(session.orphans.iter().copied()) {
                errors.extend(turn.device.unload_module(module).err());
            }
            for stream in session.streams.into_keys().chain(side_streams()) {
                errors.extend(turn.device.destroy_stream(stream).err());
            }
            for (address, _) in session.window.allocations() {
                errors.extend(turn.device.free(address).err());
            }
            errors.extend(turn.device.release(session.window_id).err());
        }
        self.leave_exports(turn, id);
        self.leave_events(id, session.events.values());
        for error in errors {
            turn.log_error(Some(id), format!("{id} left something behind: {error}"));
        }
        turn.act(Action::Released { session: id });
        let mut last = None;
        if let Some(application) = self.applications.get_mut(&session.application) {
            application.sessions.remove(&id);
            if application.sessions.is_empty() {
                let had = turn.common.meter.usage(session.application, turn.now());
                let tag = application.tag.take();
                self.terms.application_left(application.tenant, tag, &had);
                self.applications.remove(&session.application);
                last = Some(session.application);
            }
        }
        Some(Released { application: last })
    }

    /// The device is gone, and with it all work of everyone. Sessions stay, in error, until their
    /// clients go.
    pub(crate) fn device_lost(&mut self, turn: &mut Turn<'_>, text: &str) {
        let code = CudaResult::ERROR_DEVICE_UNAVAILABLE;
        self.lost = true;
        for (&id, session) in &mut self.records {
            let waiters = std::mem::take(&mut session.waiters);
            session.modules.clear();
            let was = std::mem::replace(&mut session.state, SessionState::Failed(code));
            if was == SessionState::Closing {
                session.state = was;
                turn.act(Action::Released { session: id });
                continue;
            }
            turn.act(Action::Sticky { session: id, code, text: text.to_owned() });
            for waiter in waiters {
                turn.reply(Call { session: id, sequence: waiter.sequence }, code, Payload::None);
            }
        }
        self.records.retain(|_, session| session.state != SessionState::Closing);
        for operation in std::mem::take(&mut self.operations).into_values() {
            let session = operation.session;
            if let Then::Reply { sequence, .. } = operation.then
                && self.records.contains_key(&session)
            {
                turn.reply(Call { session, sequence }, code, Payload::None);
            }
        }
        self.loading.clear();
        self.exports = exports::Exports::default();
        self.shared_events = shared_events::SharedEvents::default();
        self.copies.device_lost();
        self.copy_times = copy_times::CopyTimes::default();
        for session in self.records.values_mut() {
            session.operations = 0;
            session.loading = 0;
            (session.memory_used, session.memory_slack) = (0, 0);
            session.streams.clear();
            session.backlog.clear();
            session.awaiting_turn.clear();
            session.parked.clear();
        }
        let records = &self.records;
        self.applications.retain(|_, application| {
            application.sessions.retain(|session| records.contains_key(session));
            !application.sessions.is_empty()
        });
    }

    pub(crate) fn is_lost(&self) -> bool {
        self.lost
    }

    // What others may know.

    pub(crate) fn get(&self, id: SessionId) -> Option<&Session> {
        self.records.get(&id)
    }

    /// Says whose a log line is, as far as its session or application is known.
    pub(crate) fn name(&self, about: &mut About) {
        if let Some(record) = about.session.and_then(|session| self.get(session)) {
            about.tenant = Some(record.identity.tenant);
            about.application = Some(record.application);
        }
        if let Some(application) = about.application.and_then(|id| self.application(id)) {
            about.tenant = Some(application.tenant);
        }
    }

    pub(crate) fn application(&self, id: ApplicationId) -> Option<&Application> {
        self.applications.get(&id)
    }

    /// Every application that has a session, in order of id.
    pub(crate) fn applications(&self) -> impl Iterator<Item = (ApplicationId, &Application)> {
        self.applications.iter().map(|(&id, application)| (id, application))
    }

    /// Applications with a session that stays.
    pub(crate) fn staying(&self) -> impl Iterator<Item = (ApplicationId, &Application)> {
        self.applications().filter(|(_, application)| !application.leaving)
    }

    /// Whether the device loads a module.
    pub(crate) fn is_loading(&self) -> bool {
        !self.loading.is_empty()
    }

    /// Whether nothing is queued, in flight or being loaded.
    pub(crate) fn is_at_rest(&self) -> bool {
        self.operations.is_empty()
            && self.loading.is_empty()
            && self.copies.is_at_rest()
            && self.copy_times.is_empty()
    }

    /// Device memory in use by all sessions, in bytes.
    pub(crate) fn memory_used(&self) -> u64 {
        self.records.values().map(Session::memory_used).sum()
    }

    /// What each session holds, in order of session.
    pub(crate) fn holdings(&self) -> impl Iterator<Item = Holding> + '_ {
        self.records.iter().map(|(&session, record)| Holding {
            session,
            tenant: record.identity.tenant,
            window: record.window_id,
            operations: record.operations,
            allocations: record.window.live_ranges(),
            can_end: record.state != SessionState::Closing,
        })
    }

    pub(crate) fn set_sessions_per_user(&mut self, most: SessionsPerUser) {
        self.per_user = Some(most);
    }

    pub(crate) fn set_quotas(&mut self, quotas: &[MemoryQuota]) {
        self.quotas = quotas.to_vec();
    }

    pub(crate) fn set_unfenced(&mut self, tenants: impl IntoIterator<Item = Option<TenantId>>) {
        self.unfenced = tenants.into_iter().collect();
    }

    /// Whether a tenant may run kernels that could reach other tenants' memory.
    pub(crate) fn may_run_unfenced(&self, tenant: TenantId) -> bool {
        [Some(tenant), None].iter().any(|who| self.unfenced.contains(who))
    }

    /// Whether a session's launches can be ended: by its tenant, or by an administrator.
    pub(crate) fn check_cancel(
        &self,
        session: SessionId,
        by: Option<TenantId>,
    ) -> Result<(), CancelError> {
        let may = |record: &Session| by.is_none_or(|tenant| record.identity.tenant == tenant);
        let Some(record) = self.records.get(&session).filter(|record| record.is_open()) else {
            let known = self.records.iter().filter(|(_, record)| record.is_open() && may(record));
            let known: Vec<String> = known.map(|(id, _)| id.0.to_string()).collect();
            let known = if known.is_empty() { "none".to_owned() } else { known.join(", ") };
            return Err(CancelError::Unknown { session, known });
        };
        if !may(record) {
            return Err(CancelError::Foreign(session));
        }
        if record.operations == 0 { Err(CancelError::Nothing(session)) } else { Ok(()) }
    }
}

/// What the end of a session means for the other machines.
pub(crate) struct Released {
    /// The application that has no session left.
    pub(crate) application: Option<ApplicationId>,
}

#[cfg(test)]
mod tests {
    use super::is_small;
    use proptest::prelude::*;

    proptest! {
        /// In any order of requests, each of four tenants gets a full window. A tenant alone gets
        /// half of the full windows.
        #[test]
        fn each_tenant_gets_a_full_window(
            full in 14..300_usize,
            asks in proptest::collection::vec(0..4_usize, 0..2000),
        ) {
            let mut own = [0; 4];
            for tenant in asks.into_iter().chain(0..4) {
                if !is_small(full, own.iter().sum(), own[tenant]) {
                    own[tenant] += 1;
                }
            }
            prop_assert!(own.iter().all(|own| *own >= 1) && own.iter().sum::<usize>() < full);
            let mut alone = 0;
            while !is_small(full, alone, alone) {
                alone += 1;
            }
            prop_assert_eq!(alone, full.div_ceil(2));
        }
    }
}
