//! Applications through engine, policy and emulated GPU, in this process.
//!
//! Each application is a session of the engine whose program enqueues pass after pass in one
//! stream, some launches ahead of the device, and never waits for anything else. A program that
//! answers requests waits once a pass, until it has read back the answer. Its memory gets
//! its contents before time begins; so does what a pass must find as it was, between two passes.
//! Everything else takes the time that it takes through the daemon, but for what the rings and the
//! program's own host code would add.

mod answers;
mod settling;
mod terms;

use crate::application::Application;
use crate::arrangement::{Arrangement, parts};
use crate::fixed_parts::FixedParts;
use crate::handover::Change;
use crate::hardware::measured;
use crate::history::History;
use crate::outcome::{Profiles, RunError, Share, Shared};
use crate::player::{BATCH, Player};
use crate::track::Track;
use answers::Inbox;
use partita_device::{Activity, Counting, Device, Event, Gating, Horizon};
use partita_emu::{EmulatedGpu, Options, Spec};
use partita_engine::{Action, CloseReason, Engine, EngineConfig, Payload, SessionIdentity};
use partita_gpu::prepare::{Target, prepare, prepare_forms};
use partita_gpu::uploads::Image;
use partita_model::profile::{KernelProfile, LaunchShape};
use partita_model::request::{ImageId, ModuleHandle, Request, StreamHandle, StreamKind};
use partita_model::{
    CudaResult, DeviceAddress, DeviceCounters, ImageKind, Nanos, Originals, PolicyConfig,
    SessionId, Sharing, SmId, SmSet, StreamId, TenantId, Terms,
};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// How often it is looked how far everybody got: a thousandth of a usual run.
const SAMPLE: Nanos = Nanos(2_000);
/// Entries of the trace of a run whose terms change.
const TRACE: usize = 1 << 20;
/// A run that counts waits no longer for a kernel without a profile after so many cycles and passes
/// of each application: a kernel's first two launches are counted, and the third tells its speed.
const COUNT_CYCLES: u64 = 2_000_000;
const COUNT_PASSES: u64 = 3;

/// A run.
#[derive(Clone, Debug)]
pub struct Run<'a> {
    /// The modelled GPU.
    pub spec: &'a Spec,
    /// How it is shared.
    pub arrangement: Arrangement,
    /// Decides what a GPU leaves open.
    pub seed: u64,
    /// How long it runs, in cycles of the SM clock.
    pub cycles: u64,
    /// The launches of each application, after which it has nothing more to do; of applications
    /// beyond the list there is no end. Where all have ended, the run ends.
    pub launches: Vec<u64>,
    /// When the launches of each application arrive, rising, in nanoseconds from the start: the
    /// program enqueues none before. Launches beyond a list, and those of applications beyond the
    /// lists, are there from the start. An arrival is noticed within 2 µs.
    pub arrivals: Vec<Vec<u64>>,
    /// What earlier runs have kept.
    pub profiles: Profiles,
    /// Whether to tell what each application leaves in its memory ([`crate::outputs::Outputs`]).
    /// Such a run ends with the applications that have an end, and waits for the launches under
    /// way, which count for nothing else. Applications without an end enqueue few launches ahead.
    pub outputs: bool,
}

/// Runs applications together.
///
/// # Errors
/// Where one cannot be loaded or launched, or faults.
pub fn run(applications: &[&Application], how: &Run<'_>) -> Result<Shared, RunError> {
    Stage::new(applications, how)?.play(how)
}

struct Stage<'a> {
    device: EmulatedGpu,
    engine: Engine,
    players: Vec<Player<'a>>,
    images: BTreeMap<ImageId, Arc<str>>,
    sharing: Sharing,
    sequence: u64,
    replies: BTreeMap<u64, (CudaResult, Payload)>,
    trouble: Option<(SessionId, String)>,
    profiles: Profiles,
    /// Changes of terms so far.
    changes: Vec<Change>,
    /// Device time of the first launch.
    begin: Nanos,
}

impl<'a> Stage<'a> {
    fn new(applications: &[&'a Application], how: &Run<'_>) -> Result<Stage<'a>, RunError> {
        let nobody = |reason: String| RunError { application: "the device".to_owned(), reason };
        let (sharing, thread_percentage) = how.arrangement.sharing(how.spec.sms);
        let options = Options { seed: how.seed, sharing, thread_percentage, ..Options::default() };
        let mut device = EmulatedGpu::new(how.spec.clone(), options);
        // Only searches want profiles, and what is counted takes longer.
        let policy = how.arrangement.policy();
        let compares = policy.as_ref().is_some_and(PolicyConfig::compares_speeds);
        let profiling = compares || how.arrangement == Arrangement::Count;
        // Applications alone are measured as workers, too.
        let originals = match how.arrangement {
            Arrangement::Terms(_) | Arrangement::ChangingTerms(_) => Originals::Short,
            _ => Originals::Never,
        };
        let terms = how.arrangement.terms();
        let trace_entries = if terms.len() > 1 { TRACE } else { 0 };
        let config =
            EngineConfig { trace_entries, profiling, originals, ..EngineConfig::default() };
        let mut engine =
            Engine::new(config, &mut device).map_err(|error| nobody(error.to_string()))?;
        for (hash, shapes) in &how.profiles {
            engine.learn(&hash.as_str().into(), shapes);
        }
        if let Some(config) = policy {
            let deciders = partita_policy::build(&config, &measured(how.spec))
                .map_err(|error| nobody(error.to_string()))?;
            engine.set_policy(&mut device, deciders);
        }
        let mut stage = Stage {
            device,
            engine,
            players: Vec::new(),
            images: BTreeMap::new(),
            sharing,
            sequence: 0,
            replies: BTreeMap::new(),
            trouble: None,
            profiles: Profiles::new(),
            changes: Vec::new(),
            begin: Nanos(0),
        };
        for (session, application) in (1..).map(SessionId).zip(applications) {
            let others: BTreeSet<StreamId> = stage.device.streams().collect();
            stage.enter(session, application).map_err(|reason| RunError {
                application: application.name.clone(),
                reason: stage.trouble.take().map_or(reason, |(_, trouble)| trouble),
            })?;
            stage.set_client(&how.arrangement, &others).map_err(nobody)?;
        }
        for (player, &launches) in stage.players.iter_mut().zip(&how.launches) {
            player.left = Some(launches);
        }
        for (player, arrivals) in stage.players.iter_mut().zip(&how.arrivals) {
            player.arrivals.clone_from(arrivals);
        }
        if how.outputs {
            let endless = |player: &&mut Player<'_>| player.left.is_none();
            stage.players.iter_mut().filter(endless).for_each(Player::enqueue_few);
        }
        if let Arrangement::Static(counts) = &how.arrangement {
            stage.pin(counts).map_err(nobody)?;
        }
        if let Some((_, first)) = terms.first() {
            stage.set_terms(&[], first).map_err(nobody)?;
        }
        if trace_entries > 0 {
            let set = stage.engine.set_trace(&mut stage.device, true);
            set.map_err(|error| nobody(error.to_string()))?;
        }
        if let Arrangement::Parts(parts) = &how.arrangement {
            let ids = stage.players.iter().map(|player| player.id);
            let selector = FixedParts(ids.zip(parts.iter().copied()).collect());
            let deciders = (Box::new(selector) as _, Box::new(partita_policy::Even) as _);
            stage.engine.set_policy(&mut stage.device, deciders);
        }
        Ok(stage)
    }

    /// Opens a session, loads modules, makes memory.
    fn enter(&mut self, session: SessionId, application: &'a Application) -> Result<(), String> {
        let identity = SessionIdentity {
            session,
            tenant: TenantId(0),
            pid: 0,
            program: application.name.clone(),
            tag: None,
            asked: Terms::default(),
        };
        let grant = self
            .engine
            .open_session(&mut self.device, identity)
            .map_err(|error| error.to_string())?;
        let mut modules = Vec::new();
        for (handle, text) in (1..).zip(&application.modules) {
            let image = ImageId(session.0 << 32 | handle);
            self.images.insert(image, Arc::clone(text));
            match self.ask(session, Request::ModuleLoad { module: ModuleHandle(handle), image })? {
                Payload::Module(module) => modules.push(module),
                other => return Err(format!("a module came as {other:?}")),
            }
        }
        let mut places = Vec::new();
        for buffer in &application.buffers {
            match self.ask(session, Request::MemAlloc { bytes: buffer.bytes.max(1) })? {
                Payload::Address(address) => places.push(address.0),
                other => return Err(format!("memory came as {other:?}")),
            }
        }
        for (buffer, place) in application.buffers.iter().zip(&places) {
            let mut contents = buffer.placed(&places);
            contents.resize(usize::try_from(buffer.bytes).map_err(|error| error.to_string())?, 0);
            self.device
                .poke(DeviceAddress(*place), &contents)
                .map_err(|error| error.to_string())?;
        }
        for variable in &application.variables {
            let variables =
                modules.get(variable.module).map_or(&[][..], |module| &module.variables);
            let place = variables.iter().find(|found| *found.name == *variable.name);
            let place = place.ok_or_else(|| format!("no variable `{}`", variable.name))?;
            self.device
                .poke(place.address, &variable.contents)
                .map_err(|error| error.to_string())?;
        }
        let mut streams = vec![StreamHandle::LEGACY];
        if application.streams > 0 {
            streams = (1..).take(application.streams as usize).map(StreamHandle).collect();
            for &stream in &streams {
                let kind = StreamKind::NonBlocking;
                self.ask(session, Request::StreamCreate { stream, kind, priority: 0 })?;
            }
        }
        if let Some(inbox) = Inbox::of(application) {
            self.engine.set_arena(session, Arc::new(inbox));
        }
        self.players.push(Player {
            application,
            session,
            id: grant.application,
            places,
            modules,
            streams,
            next: 0,
            enqueued: 0,
            arrivals: Vec::new(),
            awaited: Vec::new(),
            answered: Vec::new(),
            batch: BATCH,
            adapts: false,
            target: None,
            outputs: None,
            left: None,
            has_left: false,
            track: Track::default(),
            sm_nanos: 0,
        });
        Ok(())
    }

    /// Gives all streams but those of `others` what MPS gives the player who came last: a priority,
    /// or a part of the SMs.
    fn set_client(
        &mut self,
        arrangement: &Arrangement,
        others: &BTreeSet<StreamId>,
    ) -> Result<(), String> {
        let last = self.players.len().saturating_sub(1);
        let own: Vec<_> = self.device.streams().filter(|id| !others.contains(id)).collect();
        match arrangement {
            Arrangement::MpsPriorities(all) => {
                let priority = all.get(last).copied().unwrap_or(0);
                let set = |stream| self.device.set_stream_priority(stream, priority);
                own.into_iter().try_for_each(set).map_err(|error| error.to_string())
            }
            Arrangement::MpsPercentages(all) => {
                let parts = parts(all, self.device.spec().sms);
                for (stream, part) in own.into_iter().zip(parts.get(last).into_iter().cycle()) {
                    self.device.confine_stream(stream, *part);
                }
                Ok(())
            }
            _ => Ok(()),
        }
    }

    /// Gives each player so many SMs and takes power from the others.
    fn pin(&mut self, counts: &[u16]) -> Result<(), String> {
        let (mut first, mut plan) = (0, BTreeMap::new());
        for (player, &count) in self.players.iter().zip(counts) {
            plan.insert(player.id, (first..first + count).map(SmId).collect::<SmSet>());
            first += count;
        }
        self.engine.set_plan(&mut self.device, plan).map_err(|error| error.to_string())?;
        let rest = (first..self.device.spec().sms).map(SmId).collect();
        self.device.gate(rest).map_err(|error| error.to_string())
    }

    fn play(mut self, how: &Run<'_>) -> Result<Shared, RunError> {
        let begin = self.device.now();
        self.begin = begin;
        let before = self.device.counters();
        let clock = u64::from(self.device.facts().sm_clock_khz.max(1));
        let end = Nanos(begin.0 + how.cycles * 1_000_000 / clock);
        let mut sample = begin + SAMPLE;
        for index in 0..self.players.len() {
            self.feed(index).map_err(|reason| self.error(index, reason))?;
        }
        let mut history = History::default();
        let terms = how.arrangement.terms();
        let mut changes = terms.windows(2).peekable();
        while self.device.now() < end {
            let change = changes.peek().map_or(end, |change| begin + Nanos(change[1].0));
            self.advance(sample.min(end).min(change));
            if let Some(terms) = changes.next_if(|_| change <= self.device.now()) {
                self.change_terms(&terms[0].1, &terms[1].1)
                    .map_err(|reason| RunError { application: "terms".to_owned(), reason })?;
            }
            if let Some((session, reason)) = self.trouble.take() {
                let index =
                    self.players.iter().position(|player| player.session == session).unwrap_or(0);
                return Err(self.error(index, reason));
            }
            for index in 0..self.players.len() {
                self.feed(index).map_err(|reason| self.error(index, reason))?;
            }
            self.part_with_ended(begin, how)?;
            if self.device.now() >= sample {
                sample = self.device.now() + SAMPLE;
                self.look(begin);
                history.read(&self.engine, begin);
                if how.arrangement == Arrangement::Count && self.has_counted(begin) {
                    break;
                }
            }
            if self.players.iter().all(Player::has_ended) || how.outputs && self.has_only_endless()
            {
                break;
            }
        }
        self.look(begin);
        history.read(&self.engine, begin);
        let counters = self.device.counters().since(&before);
        let nanos = self.device.now().saturating_sub(begin).0;
        let handovers = self
            .handovers()
            .map_err(|reason| RunError { application: "the trace".to_owned(), reason })?;
        self.look_at_targets();
        if how.outputs {
            self.end_launches()?;
        }
        Ok(Shared { handovers, ..self.told(history, counters, nanos) })
    }

    /// Whether a run that counts has nothing more to learn. Kernels that are counted in part are
    /// waited for; kernels that are never counted are not, once they had their chance.
    fn has_counted(&self, begin: Nanos) -> bool {
        if self.knows_all() {
            return true;
        }
        let clock = u64::from(self.device.facts().sm_clock_khz.max(1));
        let had_time = self.device.now() >= begin + Nanos(COUNT_CYCLES * 1_000_000 / clock);
        let is_known = self.profiles.values().flatten().all(|(_, profile)| is_known(profile));
        had_time && is_known && self.players.iter().all(|player| player.has_passed(COUNT_PASSES))
    }

    /// Whether two launches of each kind have been counted, one of which found caches as another
    /// had left them, and it is known how fast each is alone.
    fn knows_all(&self) -> bool {
        let mut wanted = BTreeSet::new();
        for step in self.players.iter().flat_map(|player| &player.application.pass) {
            let ctas = u64::try_from(step.grid.count()).unwrap_or(u64::MAX);
            wanted.insert((&step.kernel, LaunchShape::new(ctas, step.block, step.dynamic_shared)));
        }
        let known =
            self.profiles.values().flatten().filter(|(_, profile)| is_known(profile)).count();
        known >= wanted.len()
    }

    fn told(self, history: History, counters: DeviceCounters, nanos: u64) -> Shared {
        let reports = self.engine.partition_reports();
        let facts = self.device.facts().clone();
        let shares = self.players.into_iter().map(|player| {
            let ctas_per_sm = player.ctas_per_sm(&facts);
            let classes = history.classes.get(&player.id);
            let report = reports.iter().find(|report| report.application == player.id);
            Share {
                track: player.track,
                class: classes.map(|classes| classes.first),
                evidence: classes.map(|classes| classes.evidence),
                last_class: classes.map(|classes| classes.last),
                sms: report.map_or(0, |report| report.sms.len()),
                sm_nanos: player.sm_nanos,
                ctas_per_sm,
                answered: { player.answered.iter() }
                    .map(|at| at.saturating_sub(self.begin).0)
                    .collect(),
                target: player.target,
                outputs: player.outputs,
            }
        });
        Shared {
            shares: shares.collect(),
            nanos,
            counters,
            searched: history.searched,
            again: history.again,
            stage: history.stage,
            decisions: history.decisions,
            handovers: Vec::new(),
            profiles: self.profiles,
        }
    }

    fn error(&self, player: usize, reason: String) -> RunError {
        RunError { application: self.players[player].application.name.clone(), reason }
    }

    /// Closes the sessions of applications that have ended, as a process does at its end. On a
    /// static split they stay: the engine gives up the plan of all when one of them leaves.
    fn part_with_ended(&mut self, begin: Nanos, how: &Run<'_>) -> Result<(), RunError> {
        let ended = |player: &Player<'_>| player.has_ended() && !player.has_left;
        if !self.players.iter().any(ended) {
            return Ok(());
        }
        self.look(begin);
        self.look_at_targets();
        if how.outputs {
            self.digest(|player| player.has_ended())?;
        }
        let Stage { players, engine, device, .. } = self;
        for player in players.iter_mut().filter(|player| player.has_ended()) {
            let stays = matches!(how.arrangement, Arrangement::Static(_));
            if !std::mem::replace(&mut player.has_left, true) && !stays {
                engine.close_session(device, player.session, CloseReason::Goodbye);
            }
        }
        self.carry_out();
        Ok(())
    }

    /// Notes how far everybody got, and with which SMs.
    fn look(&mut self, begin: Nanos) {
        let now = self.device.now().saturating_sub(begin).0;
        let reports = self.engine.partition_reports();
        for player in &mut self.players {
            let report = reports.iter().find(|report| report.application == player.id);
            let sms = report.map_or(0, |report| u64::from(report.sms.len()));
            player.sm_nanos += sms * now.saturating_sub(player.track.end());
            player.track.see(now, self.engine.ctas_completed_now(&mut self.device, player.id));
        }
    }

    /// Enqueues what the program has to say now.
    fn feed(&mut self, index: usize) -> Result<(), String> {
        loop {
            let player = &mut self.players[index];
            let now = self.device.now();
            player.await_batches(now, |sequence| self.replies.remove(&sequence).is_some());
            let (size, ahead) = player.ahead();
            let size = player
                .left
                .map_or(size, |left| usize::try_from(left).unwrap_or(usize::MAX).min(size));
            let size = player.arrived(size, now.saturating_sub(self.begin).0);
            if player.application.pass.is_empty() || size == 0 || player.awaited.len() >= ahead {
                return Ok(());
            }
            self.restore(index)?;
            for _ in 0..size {
                self.launch(index)?;
            }
            let player = &self.players[index];
            let (session, end) = (player.session, player.end_of_batch());
            let sequence = self.send(session, end);
            self.players[index].awaited.push((sequence, self.device.now()));
        }
    }

    fn launch(&mut self, index: usize) -> Result<(), String> {
        let player = &mut self.players[index];
        let launch = player.next_launch()?;
        let session = player.session;
        self.ask(session, Request::Launch(launch)).map(|_| ())
    }

    fn restore(&mut self, index: usize) -> Result<(), String> {
        let player = &self.players[index];
        for restored in &player.application.restored {
            let bytes = restored.of(player.application, &player.places);
            let bytes = bytes.ok_or("what is restored is not in its buffer")?;
            let to = DeviceAddress(player.places[restored.buffer] + restored.offset);
            self.device.poke(to, &bytes).map_err(|error| error.to_string())?;
        }
        Ok(())
    }

    fn send(&mut self, session: SessionId, request: Request) -> u64 {
        self.sequence += 1;
        self.engine.handle_request(&mut self.device, session, self.sequence, request);
        self.carry_out();
        self.sequence
    }

    /// Sends a request and waits for what comes of it.
    fn ask(&mut self, session: SessionId, request: Request) -> Result<Payload, String> {
        let sequence = self.send(session, request);
        loop {
            if let Some((code, payload)) = self.replies.remove(&sequence) {
                return match (code, payload) {
                    (CudaResult::SUCCESS, payload) => Ok(payload),
                    (code, Payload::Explanation(text)) => Err(format!("{code}: {text}")),
                    (code, _) => Err(code.to_string()),
                };
            }
            if self.advance(Nanos(u64::MAX)) == Activity::Idle
                && !self.replies.contains_key(&sequence)
            {
                return Err("a request is never answered".to_owned());
            }
        }
    }

    /// Lets the device go on, no further than `until`, and the engine follow it.
    fn advance(&mut self, until: Nanos) -> Activity {
        let until = self.engine.next_timer().map_or(until, |timer| timer.min(until));
        let until = Some(until).filter(|until| *until != Nanos(u64::MAX));
        let mut events: Vec<Event> = Vec::new();
        let horizon = Horizon { until, warp_instructions: u64::MAX };
        let mut activity = self.device.poll(horizon, &mut events);
        for event in events {
            self.engine.handle_event(&mut self.device, event);
            activity = Activity::Busy;
        }
        if self.engine.next_timer().is_some_and(|timer| timer <= self.device.now()) {
            self.engine.handle_timer(&mut self.device);
            activity = Activity::Busy;
        }
        self.carry_out();
        activity
    }

    fn carry_out(&mut self) {
        while let Some(action) = self.engine.poll_action() {
            match action {
                Action::Reply { sequence, code, payload, .. } => {
                    self.replies.insert(sequence, (code, payload));
                }
                Action::Prepare { session, module, image, purpose, guards, .. } => {
                    let text = self.images.get(&image).cloned().unwrap_or_default();
                    let image = Image {
                        kind: ImageKind::Ptx,
                        unpacked_bytes: text.len() as u64,
                        bytes: text.as_bytes().into(),
                    };
                    let originals = self.engine.originals();
                    let target = Target { originals, guards, ..self.sharing.into() };
                    let prepared =
                        prepare(&image, target, &purpose).map(|prepared| prepared.module);
                    self.engine.handle_prepared(&mut self.device, session, module, prepared);
                }
                Action::PrepareForms { session, of, source, loaded, purpose, guards } => {
                    let originals = self.engine.originals();
                    let target = Target { originals, guards, ..self.sharing.into() };
                    let prepared = prepare_forms(&source, of.kernel, &loaded, target, &purpose)
                        .map(|prepared| prepared.module);
                    self.engine.handle_forms(&mut self.device, session, of, prepared);
                }
                Action::Sticky { session, code, text } => {
                    self.trouble.get_or_insert((session, format!("{code}: {text}")));
                }
                Action::EndSession { session, reason } => {
                    self.trouble.get_or_insert((session, reason));
                }
                Action::DeviceLost { reason } => {
                    self.trouble.get_or_insert((SessionId(0), reason));
                }
                Action::Profiled { hash, profiles } => {
                    self.profiles.insert(hash.to_string(), profiles);
                }
                Action::EventRecorded { .. }
                | Action::Output { .. }
                | Action::Released { .. }
                | Action::Log { .. } => {}
            }
        }
    }
}

/// Whether a kernel's profile has everything that a policy asks for.
fn is_known(profile: &KernelProfile) -> bool {
    profile.launches >= 2 && profile.alone.is_some()
}
