//! Engine, policy and emulated GPU for programs that copy.

use super::programs::{THREADS, shared};
use super::spans::Spans;
use super::{Program, Round, Seen};
use crate::outcome::RunError;
use partita_device::{Activity, Device, Event, Horizon, HostMemory, HostSpan, ResidencyTrace};
use partita_emu::{EmulatedGpu, Options, Spec, Transfer};
use partita_engine::{Action, Engine, EngineConfig, Payload, SessionIdentity};
use partita_gpu::prepare::{Target, prepare, prepare_forms};
use partita_gpu::uploads::Image;
use partita_model::request::{
    ArenaRange, ImageId, Launch, ModuleHandle, Request, StreamHandle, StreamKind,
};
use partita_model::{
    CudaResult, DeviceAddress, Dim3, ImageKind, Nanos, ResidencyKind, SessionId, TenantId, Terms,
};
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

const KERNELS: &str = include_str!("sleep.ptx");
const MODULE: ModuleHandle = ModuleHandle(1);

/// Runs programs for a span of device time, from their first requests on.
///
/// # Errors
/// Where one cannot be loaded, or a request fails.
pub fn play(
    spec: &Spec,
    programs: &[Program],
    (seed, config): (u64, EngineConfig),
    span: Nanos,
) -> Result<Seen, RunError> {
    let failed = |reason: String| RunError { application: "the device".to_owned(), reason };
    let mut stage = Stage::new(spec, seed, config).map_err(failed)?;
    for (index, program) in programs.iter().enumerate() {
        stage.enter(index, program).map_err(|reason| RunError {
            application: format!("program {index}"),
            reason: stage.trouble.take().unwrap_or(reason),
        })?;
    }
    stage.play(span).map_err(failed)
}

/// Host memory whose contents do not matter.
struct Blank(u64);

impl HostMemory for Blank {
    fn size(&self) -> u64 {
        self.0
    }

    fn read(&self, _: u64, into: &mut [u8]) {
        into.fill(0);
    }

    fn write(&self, _: u64, _: &[u8]) {}
}

/// A stream and where it is in its rounds.
struct Loop {
    program: usize,
    session: SessionId,
    stream: StreamHandle,
    round: Round,
    memory: DeviceAddress,
    /// Rounds under way, oldest first.
    under_way: VecDeque<UnderWay>,
}

/// A round that was asked for.
struct UnderWay {
    asked: Nanos,
    /// The last copy to the device, until it has ended.
    to_device: Option<u64>,
    /// The last request, which is answered when the round has ended.
    last: u64,
}

struct Stage {
    device: EmulatedGpu,
    engine: Engine,
    loops: Vec<Loop>,
    sequence: u64,
    replies: BTreeMap<u64, (CudaResult, Payload)>,
    trouble: Option<String>,
    /// CTAs that are resident now, and since when there is one.
    resident: u64,
    since: Nanos,
    kernels: Spans,
    transfers: Vec<Transfer>,
}

impl Stage {
    fn new(spec: &Spec, seed: u64, config: EngineConfig) -> Result<Stage, String> {
        let mut device = EmulatedGpu::new(spec.clone(), Options { seed, ..Options::default() });
        let engine = Engine::new(config, &mut device).map_err(|error| error.to_string())?;
        device.trace_residency(true).map_err(|error| error.to_string())?;
        device.watch_transfers();
        Ok(Stage {
            device,
            engine,
            loops: Vec::new(),
            sequence: 0,
            replies: BTreeMap::new(),
            trouble: None,
            resident: 0,
            since: Nanos(0),
            kernels: Spans::default(),
            transfers: Vec::new(),
        })
    }

    /// Opens a session, loads the kernel, makes streams and memory.
    fn enter(&mut self, index: usize, program: &Program) -> Result<(), String> {
        let session = SessionId(index as u64 + 1);
        let identity = SessionIdentity {
            session,
            tenant: TenantId(program.user),
            pid: 0,
            program: format!("program {index}"),
            tag: None,
            asked: Terms::default(),
        };
        self.engine.open_session(&mut self.device, identity).map_err(|error| error.to_string())?;
        let longest = |round: &Round| round.to_device.iter().chain(&round.to_host).max().copied();
        let most = program.rounds.iter().filter_map(longest).max().unwrap_or(1);
        let arena: Arc<dyn HostMemory> = Arc::new(Blank(most));
        self.engine.set_arena(session, Arc::clone(&arena));
        // All of it is page-locked, so copies do not block the program.
        if let Some(memory) = HostSpan::new(arena, 0, most) {
            self.engine.map_host(&mut self.device, session, memory, 0);
        }
        self.ask(session, Request::ModuleLoad { module: MODULE, image: ImageId(1) })?;
        for (number, round) in (1..).zip(&program.rounds) {
            let stream = StreamHandle(number);
            let kind = StreamKind::NonBlocking;
            self.ask(session, Request::StreamCreate { stream, kind, priority: 0 })?;
            let bytes = longest(round).unwrap_or(1);
            let Payload::Address(memory) = self.ask(session, Request::MemAlloc { bytes })? else {
                return Err("memory was asked for, and something else came".to_owned());
            };
            self.loops.push(Loop {
                program: index,
                session,
                stream,
                round: round.clone(),
                memory,
                under_way: VecDeque::new(),
            });
        }
        Ok(())
    }

    fn play(mut self, span: Nanos) -> Result<Seen, String> {
        let begin = self.device.now();
        let end = begin + span;
        self.transfers.clear();
        let programs = self.loops.iter().map(|one| one.program + 1).max().unwrap_or(0);
        let mut seen =
            Seen { rounds: vec![0; programs], bytes: vec![0; programs], ..Seen::default() };
        while self.device.now() < end {
            for index in 0..self.loops.len() {
                while self.loops[index].under_way.len() < self.loops[index].round.ahead as usize {
                    self.ask_for_round(index)?;
                }
            }
            if self.advance(end) == Activity::Idle {
                return Err("nothing happens any more".to_owned());
            }
            self.look_at_replies(&mut seen)?;
            if let Some(trouble) = self.trouble.take() {
                return Err(trouble);
            }
        }
        if self.resident > 0 {
            self.kernels.push(self.since, end);
        }
        seen.kernels = self.kernels.length();
        for transfer in &self.transfers {
            let (from, to) = (transfer.begin.min(end), transfer.end.min(end));
            seen.transfers += to.saturating_sub(from);
            seen.hidden += self.kernels.covered(from, to);
        }
        Ok(seen)
    }

    fn ask_for_round(&mut self, index: usize) -> Result<(), String> {
        let Loop { session, stream, memory, .. } = self.loops[index];
        let round = self.loops[index].round.clone();
        let asked = self.device.now();
        let mut to_device = None;
        for &bytes in &round.to_device {
            let from = ArenaRange { offset: 0, bytes };
            let request = Request::CopyToDevice { stream, to: memory, from };
            to_device = Some(self.send(session, request));
        }
        let launch = Launch {
            stream,
            module: MODULE,
            kernel: 0,
            grid: Dim3::linear(round.ctas),
            block: Dim3::linear(THREADS),
            dynamic_shared: shared(self.device.spec()),
            cooperative: false,
            cluster: Dim3::linear(1),
            params: u32::try_from(round.cta_time.0)
                .map_err(|error| error.to_string())?
                .to_le_bytes()
                .to_vec(),
        };
        self.ask(session, Request::Launch(launch))?;
        let mut last = 0;
        for &bytes in &round.to_host {
            let to = ArenaRange { offset: 0, bytes };
            last = self.send(session, Request::CopyToHost { stream, to, from: memory });
        }
        if round.ahead == 1 {
            // The program waits for the round. Others learn of a round's end by an event.
            last = self.send(session, Request::Synchronize { stream: Some(stream) });
        }
        self.loops[index].under_way.push_back(UnderWay { asked, to_device, last });
        Ok(())
    }

    /// Notes which launches have become ready, and which rounds have ended.
    fn look_at_replies(&mut self, seen: &mut Seen) -> Result<(), String> {
        let now = self.device.now();
        let mut codes = BTreeMap::new();
        for (sequence, (code, payload)) in std::mem::take(&mut self.replies) {
            if !code.is_success() {
                return Err(format!("{code}: {payload:?}"));
            }
            codes.insert(sequence, code);
        }
        for one in &mut self.loops {
            for round in &mut one.under_way {
                if round.to_device.is_some_and(|copy| codes.contains_key(&copy)) {
                    round.to_device = None;
                    seen.readiness.push(now.saturating_sub(round.asked));
                }
            }
            while one.under_way.front().is_some_and(|round| codes.contains_key(&round.last)) {
                one.under_way.pop_front();
                seen.rounds[one.program] += 1;
                let copies = one.round.to_device.iter().chain(&one.round.to_host);
                seen.bytes[one.program] += copies.sum::<u64>();
            }
        }
        Ok(())
    }

    fn send(&mut self, session: SessionId, request: Request) -> u64 {
        self.sequence += 1;
        self.engine.handle_request(&mut self.device, session, self.sequence, request);
        self.carry_out();
        self.sequence
    }

    /// Sends a request and waits for its answer.
    fn ask(&mut self, session: SessionId, request: Request) -> Result<Payload, String> {
        let sequence = self.send(session, request);
        loop {
            match self.replies.remove(&sequence) {
                Some((CudaResult::SUCCESS, payload)) => return Ok(payload),
                Some((code, payload)) => return Err(format!("{code}: {payload:?}")),
                None if self.advance(Nanos(u64::MAX)) == Activity::Idle => {
                    return Err("a request is never answered".to_owned());
                }
                None => {}
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
        self.transfers.extend(self.device.take_transfers());
        for event in events {
            self.look_at(&event);
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

    fn look_at(&mut self, event: &Event) {
        let Event::Residency(change) = event else { return };
        match change.kind {
            ResidencyKind::Start => {
                if self.resident == 0 {
                    self.since = change.time;
                }
                self.resident += 1;
            }
            ResidencyKind::Exit => {
                self.resident -= 1;
                if self.resident == 0 {
                    self.kernels.push(self.since, change.time);
                }
            }
        }
    }

    fn carry_out(&mut self) {
        while let Some(action) = self.engine.poll_action() {
            match action {
                Action::Reply { sequence, code, payload, .. } => {
                    self.replies.insert(sequence, (code, payload));
                }
                Action::Prepare { session, module, purpose, guards, .. } => {
                    let image = Image {
                        kind: ImageKind::Ptx,
                        unpacked_bytes: KERNELS.len() as u64,
                        bytes: KERNELS.as_bytes().into(),
                    };
                    let originals = self.engine.originals();
                    let target = Target { originals, guards, ..Target::of(&mut self.device) };
                    let prepared =
                        prepare(&image, target, &purpose).map(|prepared| prepared.module);
                    self.engine.handle_prepared(&mut self.device, session, module, prepared);
                }
                Action::PrepareForms { session, of, source, loaded, purpose, guards } => {
                    let originals = self.engine.originals();
                    let target = Target { originals, guards, ..Target::of(&mut self.device) };
                    let prepared = prepare_forms(&source, of.kernel, &loaded, target, &purpose)
                        .map(|prepared| prepared.module);
                    self.engine.handle_forms(&mut self.device, session, of, prepared);
                }
                Action::Sticky { code, text, .. } => {
                    self.trouble.get_or_insert(format!("{code}: {text}"));
                }
                Action::EndSession { reason, .. } | Action::DeviceLost { reason } => {
                    self.trouble.get_or_insert(reason);
                }
                Action::Profiled { .. }
                | Action::EventRecorded { .. }
                | Action::Output { .. }
                | Action::Released { .. }
                | Action::Log { .. } => {}
            }
        }
    }
}
