//! A stand-in for the data plane's shell: an engine, an emulated GPU, sessions.
//!
//! Every action of the engine is carried out at once, with one exception: modules take several
//! steps of the play to prepare, and their sessions may have ended by then. Replies are matched
//! with requests. The invariants are checked at every step.

use crate::images;
use crate::residents::{GLANCE, longest_meeting, patience};
use partita_device::{Activity, Device, DeviceError, Horizon, HostMemory};
use partita_emu::EmulatedGpu;
use partita_engine::{
    Action, CloseReason, Engine, EngineConfig, FormsOf, LoadedModule, Payload, Purpose,
    SessionGrant, SessionIdentity, Source,
};
use partita_gpu::prepare::prepare_forms;
use partita_model::request::{ArenaRange, ImageId, ModuleHandle, Request, Secret};
use partita_model::{CudaResult, Nanos, PartitionReport, SessionId, Sharing, Timekeeping};
use std::collections::{BTreeMap, BTreeSet};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::{Arc, Mutex, PoisonError};

/// The memory that a client shares with the daemon. It grows as it is used.
#[derive(Debug, Default)]
pub struct Arena(Mutex<Vec<u8>>);

impl Arena {
    /// Appends words, and says where they are.
    pub fn append(&self, words: &[u32]) -> ArenaRange {
        let mut bytes = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let offset = bytes.len() as u64;
        bytes.extend(words.iter().flat_map(|word| word.to_le_bytes()));
        ArenaRange { offset, bytes: bytes.len() as u64 - offset }
    }

    /// The words of a range.
    #[must_use]
    pub fn words(&self, range: ArenaRange) -> Vec<u32> {
        let mut bytes = vec![0; usize::try_from(range.bytes).expect("a range of a test")];
        self.read(range.offset, &mut bytes);
        bytes
            .chunks_exact(4)
            .map(|word| u32::from_le_bytes([word[0], word[1], word[2], word[3]]))
            .collect()
    }
}

impl HostMemory for Arena {
    fn size(&self) -> u64 {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).len() as u64
    }

    fn read(&self, offset: u64, into: &mut [u8]) {
        let bytes = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let start = usize::try_from(offset).expect("the span was checked");
        into.copy_from_slice(&bytes[start..start + into.len()]);
    }

    fn write(&self, offset: u64, from: &[u8]) {
        let mut bytes = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let start = usize::try_from(offset).expect("the span was checked");
        bytes[start..start + from.len()].copy_from_slice(from);
    }
}

/// The answer to a request.
pub type Reply = (CudaResult, Payload);

/// A module on its way, or forms of a kernel, for so many steps more.
struct Preparing {
    session: SessionId,
    wanted: Wanted,
    purpose: Purpose,
    steps: u64,
}

enum Wanted {
    Module(ModuleHandle, ImageId),
    Forms(FormsOf, Source, Arc<LoadedModule>),
}

/// An engine, a device, and what stands between them and the clients.
pub struct World {
    /// The engine.
    pub engine: Engine,
    /// The GPU.
    pub device: EmulatedGpu,
    replies: BTreeMap<(SessionId, u64), Reply>,
    outstanding: BTreeSet<(SessionId, u64)>,
    open: BTreeSet<SessionId>,
    released: BTreeSet<SessionId>,
    ended: BTreeSet<SessionId>,
    sticky: BTreeMap<SessionId, CudaResult>,
    preparing: Vec<Preparing>,
    next_sequence: u64,
    next_session: u64,
    digest: DefaultHasher,
    log: Option<Vec<String>>,
    broken: Option<String>,
}

impl World {
    /// An empty one on this GPU.
    ///
    /// # Errors
    /// If the engine cannot start.
    pub fn new(
        mut device: EmulatedGpu,
        config: EngineConfig,
        log: bool,
    ) -> Result<Self, DeviceError> {
        let mut engine = Engine::new(config, &mut device)?;
        let mut secrets = 0..;
        engine.set_secrets(move || Secret(secrets.next().expect("numbers do not end")));
        engine.set_trace(&mut device, true)?;
        Ok(World {
            engine,
            device,
            replies: BTreeMap::new(),
            outstanding: BTreeSet::new(),
            open: BTreeSet::new(),
            released: BTreeSet::new(),
            ended: BTreeSet::new(),
            sticky: BTreeMap::new(),
            preparing: Vec::new(),
            next_sequence: 1,
            next_session: 1,
            digest: DefaultHasher::new(),
            log: log.then(Vec::new),
            broken: None,
        })
    }

    /// Opens a session.
    ///
    /// # Errors
    /// The engine's error.
    pub fn open(
        &mut self,
        identity: impl FnOnce(SessionId) -> SessionIdentity,
    ) -> Result<(SessionId, SessionGrant), String> {
        let session = SessionId(self.next_session);
        self.next_session += 1;
        let grant = self
            .engine
            .open_session(&mut self.device, identity(session))
            .map_err(|e| e.to_string())?;
        self.open.insert(session);
        Ok((session, grant))
    }

    /// Sends a request; the number by which [`World::take_reply`] knows it.
    pub fn send(&mut self, session: SessionId, request: Request) -> u64 {
        let sequence = self.next_sequence;
        self.next_sequence += 1;
        if self.log.is_some() {
            self.note(format!("{session} asks {sequence}: {request:?}"));
        }
        if self.open.contains(&session) {
            self.outstanding.insert((session, sequence));
        }
        self.engine.handle_request(&mut self.device, session, sequence, request);
        self.carry_out();
        sequence
    }

    /// The reply to a request, once.
    pub fn take_reply(&mut self, session: SessionId, sequence: u64) -> Option<Reply> {
        self.replies.remove(&(session, sequence))
    }

    /// Closes a session.
    pub fn close(&mut self, session: SessionId, reason: CloseReason) {
        if self.log.is_some() {
            self.note(format!("{session} is closed: {reason:?}"));
        }
        self.forget(session);
        self.engine.close_session(&mut self.device, session, reason);
        self.carry_out();
    }

    /// Whether the engine has ended the session because it broke the protocol.
    #[must_use]
    pub fn was_ended(&self, session: SessionId) -> bool {
        self.ended.contains(&session)
    }

    /// The error that sticks to a session.
    #[must_use]
    pub fn sticky(&self, session: SessionId) -> Option<CudaResult> {
        self.sticky.get(&session).copied()
    }

    /// Does something with engine and device, and then what the engine wants.
    pub fn with<T>(&mut self, act: impl FnOnce(&mut Engine, &mut EmulatedGpu) -> T) -> T {
        let result = act(&mut self.engine, &mut self.device);
        self.carry_out();
        result
    }

    /// Lets the device go on, at most until `until`, and some `warp_instructions`.
    pub fn advance(&mut self, until: Nanos, warp_instructions: u64) -> Activity {
        let bound = self.engine.next_timer().map_or(until, |timer| timer.min(until));
        let mut events = Vec::new();
        let activity =
            self.device.poll(Horizon { until: Some(bound), warp_instructions }, &mut events);
        let news = !events.is_empty();
        for event in events {
            self.engine.handle_event(&mut self.device, event);
        }
        let mut timer = false;
        if self.engine.next_timer().is_some_and(|at| at <= self.device.now()) {
            timer = true;
            self.engine.handle_timer(&mut self.device);
        }
        let loads = self.prepare_some();
        self.carry_out();
        self.check();
        let waits = loads || !self.preparing.is_empty();
        if news || timer || waits { Activity::Busy } else { activity }
    }

    /// Whether modules were given to the engine, which the device has still to load.
    fn prepare_some(&mut self) -> bool {
        let (ready, rest) =
            std::mem::take(&mut self.preparing).into_iter().partition(|p| p.steps == 0);
        self.preparing = rest;
        for preparing in &mut self.preparing {
            preparing.steps -= 1;
        }
        let ready: Vec<Preparing> = ready;
        let loads = !ready.is_empty();
        for Preparing { session, wanted, purpose, .. } in ready {
            let sharing = self.device.sharing();
            match wanted {
                Wanted::Module(module, image) => {
                    let result = images::prepared(image, sharing, purpose, session);
                    self.engine.handle_prepared(&mut self.device, session, module, result);
                }
                Wanted::Forms(of, source, loaded) => {
                    let target = images::target(sharing);
                    let result = prepare_forms(&source, of.kernel, &loaded, target, &purpose)
                        .map(|prepared| prepared.module);
                    self.engine.handle_forms(&mut self.device, session, of, result);
                }
            }
        }
        loads
    }

    fn carry_out(&mut self) {
        while let Some(action) = self.engine.poll_action() {
            (self.device.now().0, format!("{action:?}")).hash(&mut self.digest);
            if self.log.is_some() {
                self.note(format!("engine: {action:?}"));
            }
            match action {
                Action::Reply { session, sequence, code, payload } => {
                    if self.outstanding.remove(&(session, sequence)) {
                        self.replies.insert((session, sequence), (code, payload));
                    } else {
                        self.breaks(format!(
                            "request {sequence} of {session} is answered a second time or after \
                             the session's end"
                        ));
                    }
                }
                Action::Sticky { session, code, .. } => {
                    self.sticky.insert(session, code);
                }
                Action::Prepare { session, module, image, sequence, purpose, .. } => {
                    let wanted = Wanted::Module(module, image);
                    let steps = sequence % 5;
                    self.preparing.push(Preparing { session, wanted, purpose, steps });
                }
                Action::PrepareForms { session, of, source, loaded, purpose, .. } => {
                    let wanted = Wanted::Forms(of, source, loaded);
                    let steps = u64::from(of.kernel) % 5;
                    self.preparing.push(Preparing { session, wanted, purpose, steps });
                }
                Action::EndSession { session, .. } => {
                    self.forget(session);
                    self.ended.insert(session);
                }
                Action::Released { session } => {
                    if !self.released.insert(session) {
                        self.breaks(format!("{session} is released twice"));
                    }
                    if self.open.contains(&session) {
                        self.breaks(format!("{session} is released and was not closed"));
                    }
                }
                Action::DeviceLost { reason } => {
                    self.breaks(format!("the device is lost: {reason}"))
                }
                Action::Log { text, .. } if text.contains("a bug in Partita") => self.breaks(text),
                Action::EventRecorded { .. }
                | Action::Profiled { .. }
                | Action::Output { .. }
                | Action::Log { .. } => {}
            }
        }
    }

    /// From now on nothing may be said to the session.
    fn forget(&mut self, session: SessionId) {
        self.open.remove(&session);
        self.outstanding.retain(|(of, _)| *of != session);
        self.replies.retain(|(of, _), _| *of != session);
    }

    /// Checks the invariants of every moment.
    fn check(&mut self) {
        let reports = self.engine.partition_reports();
        for (i, a) in reports.iter().enumerate() {
            let fit = |b: &&PartitionReport| match (a.part, b.part) {
                (Some(one), Some(other)) => one.fits_beside(other),
                _ => false,
            };
            let mut others = reports[i + 1..].iter().filter(|b| !a.sms.is_disjoint(&b.sms));
            if let Some(b) = others.find(|b| !fit(b)) {
                self.breaks(format!("partitions overlap: {a:?} and {b:?}"));
                return;
            }
        }
    }

    /// Checks the invariants at the end: every session closed, the device idle.
    pub fn check_end(&mut self) {
        let sessions = self.next_session - 1;
        if self.released.len() as u64 != sessions {
            let missing: Vec<u64> =
                (1..=sessions).filter(|id| !self.released.contains(&SessionId(*id))).collect();
            self.breaks(format!("of the sessions {missing:?} something is left"));
        }
        if !self.engine.is_at_rest() {
            self.breaks(
                "the engine holds operations, launches, ledger entries or control blocks"
                    .to_owned(),
            );
        }
        if self.engine.memory_used() != 0 {
            let bytes = self.engine.memory_used();
            self.breaks(format!("{bytes} bytes are still accounted"));
        }
        if !self.engine.application_reports().is_empty() {
            self.breaks("an application without sessions is left".to_owned());
        }
        if self.device.sharing() == Sharing::Spatial {
            let trace = self.engine.trace_report(None);
            if trace.dropped > 0 {
                self.breaks(format!("{} entries of the trace are missing", trace.dropped));
            }
            match longest_meeting(&trace.entries, patience()) {
                Ok(met) if met <= GLANCE || trace.timekeeping == Timekeeping::Off => {}
                Ok(met) => self.breaks(format!("two applications were on one SM for {} ns", met.0)),
                Err(what) => self.breaks(what),
            }
        }
    }

    /// Remembers the first thing that does not hold.
    pub fn breaks(&mut self, what: String) {
        if self.log.is_some() {
            self.note(format!("BROKEN: {what}"));
        }
        self.broken.get_or_insert(what);
    }

    /// The first thing that did not hold.
    #[must_use]
    pub fn broken(&self) -> Option<&str> {
        self.broken.as_deref()
    }

    /// A number that two plays of the same seed have in common: of everything that the engine
    /// wanted, and when.
    #[must_use]
    pub fn digest(&self) -> u64 {
        self.digest.finish()
    }

    /// Writes a line of the log, where there is one.
    pub fn note(&mut self, text: String) {
        let now = self.device.now().0;
        if let Some(log) = &mut self.log {
            log.push(format!("{now:>10} {text}"));
        }
    }

    /// The log, where one is kept.
    #[must_use]
    pub fn into_log(self) -> Vec<String> {
        self.log.unwrap_or_default()
    }
}
