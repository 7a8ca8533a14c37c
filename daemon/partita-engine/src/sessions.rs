//! How sessions begin, fail and end.
//!
//! A session that fails keeps its memory until it is closed, as a CUDA context does after a sticky
//! error. A session that closes has its grids cancelled and its queue dropped at once; its memory
//! goes when the last of its operations is done. Other sessions do not notice.

use crate::control_block::{signal_abort, signal_completed};
use crate::effects::Effect;
use crate::state::{Application, LaunchForm, Module, Queued, Session, SessionState, Stream, Then};
use crate::window::Window;
use crate::{
    Action, CloseReason, Engine, LogLevel, OpenError, Payload, SessionGrant, SessionIdentity,
    StreamHandle, StreamKind,
};
use partita_device::{AddressRange, Device, DeviceError, HostMemory, HostSpan};
use partita_model::{
    ApplicationId, CudaResult, LaunchId, Nanos, OperationId, SessionId, SmSet, StreamId, Traffic,
    WindowId,
};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// A window has room for all of the device's memory, and so much at least: addresses cost nothing,
/// and programs that over-allocate get `OUT_OF_MEMORY` by the account.
const MIN_WINDOW_BYTES: u64 = 64 << 30;

/// So many sessions get such windows. On devices with more memory than [`LATER_WINDOW_BYTES`] those
/// that come when there are as many get that much, so that the 47 bits of a device address serve
/// hundreds.
const FULL_WINDOWS: usize = 64;

/// See [`FULL_WINDOWS`].
const LATER_WINDOW_BYTES: u64 = 128 << 30;

/// How large the window of one more session should be.
fn window_bytes(memory: u64, sessions: usize) -> u64 {
    let full = memory.max(MIN_WINDOW_BYTES);
    if sessions < FULL_WINDOWS { full } else { full.min(LATER_WINDOW_BYTES) }
}

impl Engine {
    /// Opens a session and reserves its window.
    ///
    /// # Errors
    /// Where its id is taken or the device has no window left.
    pub fn open_session(
        &mut self,
        device: &mut dyn Device,
        identity: SessionIdentity,
    ) -> Result<SessionGrant, OpenError> {
        let id = identity.session;
        if self.sessions.contains_key(&id) {
            return Err(OpenError::Taken(id));
        }
        let bytes = match self.config.window {
            Some(bytes) => bytes.0,
            None => window_bytes(self.facts.memory.0, self.sessions.len()),
        };
        let no_window = |source| OpenError::NoWindow { session: id, source };
        let window_id = WindowId(self.next_id());
        let start = device.reserve(window_id, bytes).map_err(no_window)?;
        let legacy = StreamId(self.next_id());
        if let Err(source) = device.create_stream(legacy) {
            let _ = device.release(window_id);
            return Err(no_window(source));
        }
        let window = AddressRange { start, bytes };
        let application = self.join_application(&identity, device.now());
        let session = Session {
            application,
            window_id,
            window: Window::new(window),
            memory_used: 0,
            arena: None,
            state: SessionState::Open,
            streams: BTreeMap::from([(legacy, Stream::new(StreamKind::Blocking))]),
            handles: BTreeMap::from([(StreamHandle::LEGACY, legacy)]),
            legacy,
            backlog: BTreeSet::new(),
            side_streams: BTreeSet::new(),
            idle_side_streams: BTreeSet::new(),
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
        self.sessions.insert(id, session);
        Ok(SessionGrant { window, application })
    }

    /// Gives a session the memory that its copies name by ranges ([`crate::ArenaRange`]).
    pub fn set_arena(&mut self, session: SessionId, arena: Arc<dyn HostMemory>) {
        if let Some(record) = self.sessions.get_mut(&session) {
            record.arena = Some(arena);
        }
    }

    /// Lets a session's kernels reach memory that it shares with the host, where the device can: at
    /// the addresses that are returned. The last `variables` bytes are for variables that its
    /// modules declare managed.
    pub fn map_host(
        &mut self,
        device: &mut dyn Device,
        session: SessionId,
        memory: HostSpan,
        variables: u64,
    ) -> Option<AddressRange> {
        let record = self.sessions.get_mut(&session)?;
        let range = record.window.room_for_host(memory.bytes())?;
        match device.map_host(record.window_id, range.start, memory, variables) {
            Ok(()) => {
                record.window.set_host(range);
                Some(range)
            }
            Err(DeviceError::Unsupported(_)) => None,
            Err(error) => {
                self.log(
                    LogLevel::Warning,
                    Some(session),
                    format!("host memory is not mapped: {error}"),
                );
                None
            }
        }
    }

    fn join_application(&mut self, identity: &SessionIdentity, now: Nanos) -> ApplicationId {
        let same = |application: &Application| {
            !application.leaving
                && identity.tag.is_some()
                && application.tag == identity.tag
                && application.tenant == identity.tenant
        };
        if let Some((&id, application)) = self.applications.iter_mut().find(|(_, a)| same(a)) {
            application.sessions.insert(identity.session);
            return id;
        }
        let id = self.next_application();
        let application = Application {
            name: identity.program.clone(),
            tenant: identity.tenant,
            tag: identity.tag.clone(),
            sessions: BTreeSet::from([identity.session]),
            leaving: false,
            demand: 0,
            workers_in_flight: 0,
            originals_in_flight: 0,
            needs_groups: false,
            active: false,
            idle_since: now,
            busy_since: now,
            busy_before: Nanos(0),
            target: SmSet::EMPTY,
            granted: SmSet::EMPTY,
            launches_completed: 0,
            ctas_completed: 0,
            profile_keys: BTreeMap::new(),
            kernel_index: BTreeMap::new(),
            profiled: Traffic::default(),
            hit_rate: None,
            traffic_ended: Traffic::default(),
            kernels: Vec::new(),
        };
        self.applications.insert(id, application);
        id
    }

    /// Ends a session: its work is cancelled, and once that is gone everything else of it.
    /// [`Action::Released`] says when. Unknown sessions are left alone.
    pub fn close_session(
        &mut self,
        device: &mut dyn Device,
        session: SessionId,
        reason: CloseReason,
    ) {
        let Some(record) = self.sessions.get_mut(&session) else { return };
        if record.state == SessionState::Closing {
            return;
        }
        record.state = SessionState::Closing;
        record.take_waiters();
        let (application, busy, pid) =
            (record.application, record.operations > 0, record.identity.pid);
        if reason == CloseReason::Died && busy {
            let text =
                format!("{session} (process {pid}) died with work in flight: it is cancelled");
            self.log(LogLevel::Info, Some(session), text);
        }
        self.cancel_work(device, session);
        self.part_from_application(application);
        self.effects.push(Effect::Release(session));
        self.effects.push(Effect::PumpWaiting);
        self.settle(device);
    }

    /// Ends a session that broke the protocol.
    pub(crate) fn end_session(
        &mut self,
        device: &mut dyn Device,
        session: SessionId,
        reason: String,
    ) {
        self.log(LogLevel::Warning, Some(session), format!("{session} is ended: {reason}"));
        self.actions.push_back(Action::EndSession { session, reason });
        self.close_session(device, session, CloseReason::Goodbye);
    }

    /// Makes an error stick to a session: its work is cancelled and every request from now on gets
    /// `code`.
    pub(crate) fn fail_session(
        &mut self,
        device: &mut dyn Device,
        session: SessionId,
        code: CudaResult,
        text: String,
    ) {
        let Some(record) = self.sessions.get_mut(&session) else { return };
        if record.state != SessionState::Open {
            return;
        }
        record.state = SessionState::Failed(code);
        let waiters = record.take_waiters();
        let line = format!(
            "{session} ({}, process {}): {code}: {text}",
            record.identity.program, record.identity.pid
        );
        self.log(LogLevel::Warning, Some(session), line);
        self.actions.push_back(Action::Sticky { session, code, text });
        for waiter in waiters {
            self.reply(session, waiter.sequence, code, Payload::None);
        }
        self.cancel_work(device, session);
        self.effects.push(Effect::PumpWaiting);
    }

    /// Drops what a session has queued and cancels its grids.
    fn cancel_work(&mut self, device: &mut dyn Device, session: SessionId) {
        let Some(record) = self.sessions.get_mut(&session) else { return };
        record.backlog.clear();
        let queued: Vec<OperationId> = record
            .streams
            .values_mut()
            .flat_map(|stream| std::mem::take(&mut stream.queue))
            .collect();
        record.operations -= queued.len();
        // Nobody will write these words any more.
        let waits = std::mem::take(&mut record.word_waits);
        let application = record.application;
        let code = match record.state {
            SessionState::Failed(code) => Some(code),
            SessionState::Open | SessionState::Closing => None,
        };
        for id in queued {
            self.waiting.remove(&id);
            let Some(operation) = self.operations.remove(&id) else { continue };
            if let Some(Queued::Launch(spec)) = &operation.queued
                && spec.is_confined()
            {
                self.demand_ended(application, device.now());
            }
            if let (Then::Reply { sequence }, Some(code)) = (operation.then, code) {
                self.reply(session, sequence, code, Payload::None);
            }
        }
        for (wait, (address, word)) in waits {
            // A device that cannot end it finds what it waits for. One that was still queued is not
            // known to the device.
            if device.cancel(wait).is_err() {
                let _ = device.poke(address, &word.value.to_le_bytes()[..usize::from(word.width)]);
            }
        }
        let launches: Vec<LaunchId> =
            self.launches.iter().filter(|(_, l)| l.session == session).map(|(id, _)| *id).collect();
        for id in launches {
            let launch = &self.launches[&id];
            // Devices that cannot cancel rely on the flag; those that can need no flag. Neither can
            // fail otherwise.
            if let Some(block) =
                launch.worker.as_ref().map(|worker| worker.block).or(launch.workspace)
            {
                let _ = signal_abort(device, block);
            }
            if !launch.main_done
                && device.cancel(launch.main).is_err()
                && launch.spec.form() == LaunchForm::Ticket
                && let Some(worker) = &launch.worker
            {
                let _ = signal_completed(device, worker.block, launch.spec.total());
            }
            for &helper in launch.helpers.keys() {
                let _ = device.cancel(helper);
            }
        }
    }

    fn part_from_application(&mut self, id: ApplicationId) {
        let Some(application) = self.applications.get(&id) else { return };
        let stays = application.sessions.iter().any(|session| {
            self.sessions.get(session).is_some_and(|session| session.state != SessionState::Closing)
        });
        if stays || application.leaving {
            return;
        }
        if let Some(application) = self.applications.get_mut(&id) {
            application.leaving = true;
            application.active = false;
        }
        if self.pinned.contains_key(&id) {
            self.pinned.clear();
            let text = format!("{id} leaves: its pinned plan ends, the policy takes over");
            self.log(LogLevel::Info, None, text);
        }
        self.effects.push(Effect::Replan);
    }

    /// Gives everything of a closing session back once nothing of it is in flight.
    pub(crate) fn release_if_done(&mut self, device: &mut dyn Device, id: SessionId) {
        let done = self.sessions.get(&id).is_some_and(|session| {
            session.state == SessionState::Closing
                && session.operations == 0
                && session.loading == 0
        });
        if !done {
            return;
        }
        let Some(session) = self.sessions.remove(&id) else { return };
        let modules = session.modules.into_values().filter_map(|module| match module {
            Module::Loaded(instance) => Some(instance.id),
            Module::Preparing { .. } | Module::Loading { .. } => None,
        });
        let mut errors = Vec::new();
        if !self.lost {
            for module in modules.chain(session.orphans) {
                errors.extend(device.unload_module(module).err());
            }
            for stream in session.streams.into_keys().chain(session.side_streams) {
                errors.extend(device.destroy_stream(stream).err());
            }
            for (address, _) in session.window.allocations() {
                errors.extend(device.free(address).err());
            }
            errors.extend(device.release(session.window_id).err());
        }
        for error in errors {
            self.log(LogLevel::Error, Some(id), format!("{id} left something behind: {error}"));
        }
        self.profiles.forget_session(id);
        if let Some(application) = self.applications.get_mut(&session.application) {
            application.sessions.remove(&id);
            if application.sessions.is_empty() {
                self.applications.remove(&session.application);
                self.profiles.forget(session.application);
            }
        }
        self.actions.push_back(Action::Released { session: id });
    }

    /// The device is gone, and with it all work of everyone. Sessions stay, in error, until their
    /// clients go.
    pub(crate) fn device_lost(&mut self, reason: String) {
        if self.lost {
            return;
        }
        self.lost = true;
        let code = CudaResult::ERROR_DEVICE_UNAVAILABLE;
        let text = format!("the device was lost: {reason}");
        let ids: Vec<SessionId> = self.sessions.keys().copied().collect();
        for id in ids {
            let Some(session) = self.sessions.get_mut(&id) else { continue };
            let waiters = std::mem::take(&mut session.waiters);
            let was = std::mem::replace(&mut session.state, SessionState::Failed(code));
            session.modules.clear();
            if was == SessionState::Closing {
                self.sessions.remove(&id);
                self.actions.push_back(Action::Released { session: id });
                continue;
            }
            self.actions.push_back(Action::Sticky { session: id, code, text: text.clone() });
            for waiter in waiters {
                self.reply(id, waiter.sequence, code, Payload::None);
            }
        }
        let operations = std::mem::take(&mut self.operations);
        for operation in operations.into_values() {
            if let Then::Reply { sequence } = operation.then
                && self.sessions.contains_key(&operation.session)
            {
                self.reply(operation.session, sequence, code, Payload::None);
            }
        }
        self.forget_device_state();
        self.log(LogLevel::Error, None, text);
        self.actions.push_back(Action::DeviceLost { reason });
    }

    fn forget_device_state(&mut self) {
        self.launches.clear();
        self.loading.clear();
        self.alone = crate::alone::Alone::default();
        self.confining.clear();
        self.unconfinable.clear();
        self.waiting.clear();
        self.front.clear();
        self.starved.clear();
        self.workers_in_flight = 0;
        self.originals_in_flight = 0;
        self.pinned.clear();
        self.draining.fill(None);
        self.owners.fill(None);
        self.handover_pending = false;
        self.tick_at = None;
        self.ledger = crate::ledger::Ledger::new(&self.facts);
        for session in self.sessions.values_mut() {
            session.operations = 0;
            session.loading = 0;
            session.memory_used = 0;
            session.streams.clear();
            session.side_streams.clear();
            session.idle_side_streams.clear();
            session.backlog.clear();
        }
        let sessions = &self.sessions;
        self.applications.retain(|_, application| {
            application.sessions.retain(|session| sessions.contains_key(session));
            application.demand = 0;
            application.workers_in_flight = 0;
            application.originals_in_flight = 0;
            application.active = false;
            application.granted = SmSet::EMPTY;
            application.target = SmSet::EMPTY;
            !application.sessions.is_empty()
        });
    }
}
