//! The engine and a device in this process, without daemon, shim and clock: what stands between
//! them and applications that only launch kernels.

use partita_cli::failure::Failure;
use partita_device::{Device, Event, Horizon};
use partita_emu::{EmulatedGpu, Options, Spec};
use partita_engine::{
    Action, CloseReason, Engine, EngineConfig, Payload, PrepareError, PreparedModule, Purpose,
    SessionIdentity,
};
use partita_gpu::device::sleep;
use partita_gpu::prepare::{Target, prepare, prepare_forms};
use partita_gpu::uploads::Image;
use partita_model::ImageKind;
use partita_model::request::{ImageId, Launch, ModuleHandle, Request, StreamHandle};
use partita_model::{
    ApplicationId, CudaResult, DeviceAddress, Dim3, Nanos, Originals, SessionId, SmSet, TenantId,
    Terms,
};
use std::collections::{BTreeMap, BTreeSet};

const KERNELS: &str = include_str!("kernels.ptx");
const MODULE: ModuleHandle = ModuleHandle(1);
/// `mark` in [`KERNELS`].
pub const MARK: u32 = 0;
/// `empty` in [`KERNELS`].
pub const EMPTY: u32 = 1;

/// How a module is prepared for a device.
pub type Preparer = Box<dyn Fn(Target, &Purpose) -> Result<PreparedModule, PrepareError>>;

/// What runs, and on what.
pub struct Stage {
    pub engine: Engine,
    pub device: Box<dyn Device>,
    replies: BTreeMap<u64, (CudaResult, Payload)>,
    next_sequence: u64,
    failed: Option<String>,
    released: BTreeSet<SessionId>,
    preparer: Preparer,
    /// The latest end of an operation that the device has told.
    last_end: Nanos,
}

impl Stage {
    /// An empty one.
    pub fn new(spec: Spec, options: Options) -> Result<Stage, Failure> {
        Stage::on(Box::new(EmulatedGpu::new(spec, options)))
    }

    /// An empty one on a device.
    pub fn on(device: Box<dyn Device>) -> Result<Stage, Failure> {
        // What is measured are workers.
        let originals = Originals::Never;
        let config = EngineConfig { trace_entries: 1 << 22, originals, ..EngineConfig::default() };
        let preparer = |target: Target, purpose: &Purpose| {
            prepare(&image_of(KERNELS), target, purpose).map(|prepared| prepared.module)
        };
        Stage::with(device, config, Box::new(preparer))
    }

    /// An empty one whose applications have the module that `preparer` makes.
    pub fn with(
        mut device: Box<dyn Device>,
        config: EngineConfig,
        preparer: Preparer,
    ) -> Result<Stage, Failure> {
        let mut engine = Engine::new(config, device.as_mut())?;
        // Nobody else is here.
        engine.set_unfenced([None]);
        Ok(Stage {
            engine,
            device,
            replies: BTreeMap::new(),
            next_sequence: 1,
            failed: None,
            released: BTreeSet::new(),
            preparer,
            last_end: Nanos(0),
        })
    }

    /// The latest end of an operation that the device has told.
    pub fn last_end(&self) -> Nanos {
        self.last_end
    }

    /// One more application, with the kernels loaded.
    pub fn application(&mut self, session: u64) -> Result<(SessionId, ApplicationId), Failure> {
        let identity = SessionIdentity {
            session: SessionId(session),
            tenant: TenantId(0),
            pid: 0,
            program: "bench".to_owned(),
            tag: None,
            asked: Terms::default(),
        };
        let grant = self.engine.open_session(self.device.as_mut(), identity)?;
        let session = SessionId(session);
        self.ask(session, Request::ModuleLoad { module: MODULE, image: ImageId(1) })?;
        Ok((session, grant.application))
    }

    /// Device memory, zeroed.
    pub fn buffer(&mut self, session: SessionId, bytes: u64) -> Result<DeviceAddress, Failure> {
        let Payload::Address(to) = self.ask(session, Request::MemAlloc { bytes })? else {
            return Err(Failure::new("memory was asked for, and something else came"));
        };
        let fill =
            Request::Fill { stream: StreamHandle::LEGACY, to, value: 0, width: 1, count: bytes };
        self.ask(session, fill)?;
        Ok(to)
    }

    /// Launches a kernel in CTAs of one warp, each with so much shared memory.
    pub fn launch(
        &mut self,
        session: SessionId,
        kernel: u32,
        ctas: u32,
        dynamic_shared: u32,
        params: Vec<u8>,
    ) -> Result<(), Failure> {
        let (grid, block) = (Dim3::linear(ctas), Dim3::linear(32));
        let launch = Launch { grid, block, dynamic_shared, ..launch_of(kernel, params) };
        self.ask(session, Request::Launch(launch)).map(|_| ())
    }

    /// Launches a kernel in CTAs of so many threads.
    pub fn launch_blocks(
        &mut self,
        session: SessionId,
        kernel: u32,
        (ctas, threads): (u32, u32),
        params: Vec<u8>,
    ) -> Result<(), Failure> {
        let (grid, block) = (Dim3::linear(ctas), Dim3::linear(threads));
        let launch = Launch { grid, block, ..launch_of(kernel, params) };
        self.ask(session, Request::Launch(launch)).map(|_| ())
    }

    /// Waits for everything of several sessions; when each had ended.
    pub fn synchronize_all(&mut self, sessions: &[SessionId]) -> Result<Vec<Nanos>, Failure> {
        let mut ends = vec![None; sessions.len()];
        let mut sequences = Vec::new();
        for &session in sessions {
            sequences.push(self.begin(session, Request::Synchronize { stream: None }));
        }
        while ends.contains(&None) {
            for (end, sequence) in ends.iter_mut().zip(&sequences) {
                if let Some(reply) = self.replies.remove(sequence) {
                    self.checked(reply)?;
                    *end = Some(self.device.now());
                }
            }
            if ends.contains(&None) {
                self.step(None)?;
            }
        }
        Ok(ends.into_iter().flatten().collect())
    }

    /// Waits for everything of a session.
    pub fn synchronize(&mut self, session: SessionId) -> Result<(), Failure> {
        self.ask(session, Request::Synchronize { stream: None }).map(|_| ())
    }

    /// Ends an application's session, and what runs of it.
    pub fn close(&mut self, session: SessionId, reason: CloseReason) -> Result<(), Failure> {
        self.engine.close_session(self.device.as_mut(), session, reason);
        self.carry_out();
        while !self.released.remove(&session) {
            self.step(None)?;
        }
        Ok(())
    }

    /// Moves the borders.
    pub fn plan(&mut self, plan: BTreeMap<ApplicationId, SmSet>) -> Result<(), Failure> {
        Ok(self.engine.set_plan(self.device.as_mut(), plan)?)
    }

    /// Lets device time go on by so much.
    pub fn run_for(&mut self, time: Nanos) -> Result<(), Failure> {
        let end = self.device.now() + time;
        while self.device.now() < end {
            self.step(Some(end))?;
        }
        Ok(())
    }

    /// The words of device memory.
    pub fn words(&mut self, at: DeviceAddress, count: usize) -> Result<Vec<u32>, Failure> {
        let mut bytes = vec![0; count * 4];
        self.device.peek(at, &mut bytes)?;
        Ok(bytes.as_chunks::<4>().0.iter().map(|word| u32::from_le_bytes(*word)).collect())
    }

    fn ask(&mut self, session: SessionId, request: Request) -> Result<Payload, Failure> {
        let sequence = self.begin(session, request);
        loop {
            if let Some(reply) = self.replies.remove(&sequence) {
                return self.checked(reply);
            }
            self.step(None)?;
        }
    }

    /// Hands a request in; its number.
    fn begin(&mut self, session: SessionId, request: Request) -> u64 {
        let sequence = self.next_sequence;
        self.next_sequence += 1;
        self.engine.handle_request(self.device.as_mut(), session, sequence, request);
        self.carry_out();
        sequence
    }

    fn checked(&mut self, (code, payload): (CudaResult, Payload)) -> Result<Payload, Failure> {
        let failed = self.failed.take().unwrap_or_default();
        let error = || Failure::new(format!("{code} {failed}: {payload:?}"));
        if code.is_success() { Ok(payload.clone()) } else { Err(error()) }
    }

    fn step(&mut self, end: Option<Nanos>) -> Result<(), Failure> {
        let until = self.engine.next_timer().into_iter().chain(end).min();
        let mut events = Vec::new();
        let horizon = Horizon { until, warp_instructions: u64::MAX };
        let before = self.device.now();
        self.device.poll(horizon, &mut events);
        let nothing = events.is_empty() && self.device.now() == before;
        for event in events {
            if let Event::Done { time, .. } = &event {
                self.last_end = self.last_end.max(*time);
            }
            self.engine.handle_event(self.device.as_mut(), event);
        }
        let due = self.engine.next_timer().is_some_and(|timer| timer <= self.device.now());
        if due {
            self.engine.handle_timer(self.device.as_mut());
        }
        if nothing && !due && self.device.news().is_some() {
            // Time goes on by itself.
            sleep(self.device.as_ref());
        } else if nothing && !due {
            return Err(Failure::new(
                "the device has nothing left to do, and something is waited for",
            ));
        }
        self.carry_out();
        Ok(())
    }

    fn carry_out(&mut self) {
        while let Some(action) = self.engine.poll_action() {
            match action {
                Action::Reply { sequence, code, payload, .. } => {
                    self.replies.insert(sequence, (code, payload));
                }
                Action::Prepare { session, module, purpose, guards, .. } => {
                    let originals = self.engine.originals();
                    let target = Target { originals, guards, ..Target::of(self.device.as_mut()) };
                    let result = (self.preparer)(target, &purpose);
                    self.engine.handle_prepared(self.device.as_mut(), session, module, result);
                }
                Action::PrepareForms { session, of, source, loaded, purpose, guards } => {
                    let originals = self.engine.originals();
                    let target = Target { originals, guards, ..Target::of(self.device.as_mut()) };
                    let result = prepare_forms(&source, of.kernel, &loaded, target, &purpose)
                        .map(|prepared| prepared.module);
                    self.engine.handle_forms(self.device.as_mut(), session, of, result);
                }
                Action::Released { session } => {
                    self.released.insert(session);
                }
                Action::Sticky { text, .. } => self.failed = Some(text),
                _ => {}
            }
        }
    }
}

/// A module's text as a program hands it over.
pub fn image_of(text: &str) -> Image {
    let bytes = text.as_bytes();
    Image { kind: ImageKind::Ptx, unpacked_bytes: bytes.len() as u64, bytes: bytes.into() }
}

/// A launch of one thread.
fn launch_of(kernel: u32, params: Vec<u8>) -> Launch {
    Launch {
        stream: StreamHandle::LEGACY,
        module: MODULE,
        kernel,
        grid: Dim3::linear(1),
        block: Dim3::linear(1),
        dynamic_shared: 0,
        cooperative: false,
        cluster: Dim3::linear(1),
        params,
    }
}
