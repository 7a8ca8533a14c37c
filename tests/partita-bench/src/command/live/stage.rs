//! The engine and a device in this process, without daemon, shim and clock: what stands between
//! them and applications that only launch kernels.

use partita_cli::failure::Failure;
use partita_device::{Device, Horizon};
use partita_emu::{EmulatedGpu, Options, Spec};
use partita_engine::{Action, CloseReason, Engine, EngineConfig, Payload, SessionIdentity};
use partita_gpu::device::sleep;
use partita_gpu::prepare::{Target, prepare};
use partita_gpu::uploads::Image;
use partita_model::ImageKind;
use partita_model::request::{ImageId, Launch, ModuleHandle, Request, StreamHandle};
use partita_model::{
    ApplicationId, CudaResult, DeviceAddress, Dim3, Nanos, SessionId, SmSet, TenantId,
};
use std::collections::{BTreeMap, BTreeSet};

const KERNELS: &str = include_str!("kernels.ptx");
const MODULE: ModuleHandle = ModuleHandle(1);
/// `mark` in [`KERNELS`].
pub const MARK: u32 = 0;
/// `empty` in [`KERNELS`].
pub const EMPTY: u32 = 1;

/// What runs, and on what.
pub struct Stage {
    pub engine: Engine,
    pub device: Box<dyn Device>,
    replies: BTreeMap<u64, (CudaResult, Payload)>,
    next_sequence: u64,
    failed: Option<String>,
    released: BTreeSet<SessionId>,
}

impl Stage {
    /// An empty one.
    pub fn new(spec: Spec, options: Options) -> Result<Stage, Failure> {
        Stage::on(Box::new(EmulatedGpu::new(spec, options)))
    }

    /// An empty one on a device.
    pub fn on(mut device: Box<dyn Device>) -> Result<Stage, Failure> {
        let config = EngineConfig { trace_entries: 1 << 22, ..EngineConfig::default() };
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
        })
    }

    /// One more application, with the kernels loaded.
    pub fn application(&mut self, session: u64) -> Result<(SessionId, ApplicationId), Failure> {
        let identity = SessionIdentity {
            session: SessionId(session),
            tenant: TenantId(0),
            pid: 0,
            program: "bench".to_owned(),
            tag: None,
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
        let request = Launch {
            stream: StreamHandle::LEGACY,
            module: MODULE,
            kernel,
            grid: Dim3::linear(ctas),
            block: Dim3::linear(32),
            dynamic_shared,
            cooperative: false,
            params,
        };
        self.ask(session, Request::Launch(request)).map(|_| ())
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
        let sequence = self.next_sequence;
        self.next_sequence += 1;
        self.engine.handle_request(self.device.as_mut(), session, sequence, request);
        self.carry_out();
        loop {
            if let Some((code, payload)) = self.replies.remove(&sequence) {
                let failed = self.failed.take().unwrap_or_default();
                let error = || Failure::new(format!("{code} {failed}: {payload:?}"));
                return if code.is_success() { Ok(payload.clone()) } else { Err(error()) };
            }
            self.step(None)?;
        }
    }

    fn step(&mut self, end: Option<Nanos>) -> Result<(), Failure> {
        let until = self.engine.next_timer().into_iter().chain(end).min();
        let mut events = Vec::new();
        let horizon = Horizon { until, warp_instructions: u64::MAX };
        let before = self.device.now();
        self.device.poll(horizon, &mut events);
        let nothing = events.is_empty() && self.device.now() == before;
        for event in events {
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
                Action::Prepare { session, module, purpose, .. } => {
                    let bytes = KERNELS.as_bytes();
                    let unpacked_bytes = bytes.len() as u64;
                    let image = Image { kind: ImageKind::Ptx, unpacked_bytes, bytes: bytes.into() };
                    let result = prepare(&image, Target::of(self.device.as_mut()), &purpose)
                        .map(|prepared| prepared.module);
                    self.engine.handle_prepared(self.device.as_mut(), session, module, result);
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
