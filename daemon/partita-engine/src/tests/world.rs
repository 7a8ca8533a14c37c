//! An engine, a fake device and a shell between them.

use super::fake_device::FakeDevice;
use crate::{
    Action, CloseReason, Engine, EngineConfig, Fallback, Fence, FormsOf, ImageId, KernelForm,
    Later, LoadedModule, ModuleHandle, ParamLayout, Payload, PrepareError, PreparedKernel,
    PreparedModule, Purpose, RegisterBound, Request, Rests, SessionIdentity, Slice, Source,
    StreamHandle,
};
use partita_device::{Activity, Device, Event, Horizon};
use partita_model::request::Launch;
use partita_model::{
    ApplicationId, CudaResult, DeviceAddress, Dim3, Nanos, PartitionerKind, PolicyConfig,
    SessionId, SmSet, TenantId, Terms,
};
use partita_policy::{Even, Selector};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// The module that [`World::session`] loads. Its kernels by index; those named in it without
/// `alone` are workers.
pub(crate) const MODULE: ModuleHandle = ModuleHandle(1);
/// A line a kernel, as [`FakeDevice`] takes them: its name, microseconds a CTA, registers a thread
/// (16 where none are given). Entries that end in `-original` or `-counting`, and slices, belong to
/// the kernel above.
const PTX: &str = concat!(
    "short 1\n",
    "medium 5\n",
    "long 20\n",
    "alone 10\n",
    "fault 1\n",
    "fault-alone 1\n",
    "hungry 1 256\n",
    "rows 2 96\n",
    "rows-original 10 32\n",
    "grid-alone 3\n",
    "shared 1\n",
    "ticket 10\n",
    "fault-ticket 1\n",
    "spin 1\n",
    "spin-ticket 1\n",
    "spin-alone 1\n",
    "counted 5\n",
    "counted-counting 20\n",
    "shared-counted 1\n",
    "shared-counted-counting 1\n",
    "fenced 1\n",
    "loose 1\n",
    "following 1\n",
    "brisk 2\n",
    "brisk-original 2\n",
    "brisk-ticket 2\n",
    "brisk-ticket-original 2\n",
    "brisk-awaiting 2\n",
    "brisk-awaiting-original 2\n",
    "brisk-straight 2\n",
    "brisk-straight-original 2\n",
    "sliced-alone 10\n",
    "slice-alone 10\n",
    "spin-sliced-alone 1\n",
    "spin-slice-alone 1\n",
    "fault-sliced-alone 1\n",
    "fault-slice-alone 1\n",
    "cluster-ticket 10\n",
    "cluster-ticket-original 10\n",
    "polling-alone 10\n",
    "spin-some 1\n",
    "risky 1\n",
);
pub(crate) const SHORT: u32 = 0;
pub(crate) const MEDIUM: u32 = 1;
pub(crate) const LONG: u32 = 2;
pub(crate) const ALONE: u32 = 3;
pub(crate) const FAULT: u32 = 4;
pub(crate) const FAULT_ALONE: u32 = 5;
pub(crate) const HUNGRY: u32 = 6;
/// Its worker needs full rows and more registers than its original.
pub(crate) const ROWS: u32 = 7;
/// Wants a workspace.
pub(crate) const GRID_ALONE: u32 = 8;
/// Limited by a bandwidth.
pub(crate) const SHARED: u32 = 9;
/// Cannot be workers.
pub(crate) const TICKET: u32 = 10;
pub(crate) const FAULT_TICKET: u32 = 11;
/// Never end by themselves.
pub(crate) const SPIN: u32 = 12;
pub(crate) const SPIN_TICKET: u32 = 13;
pub(crate) const SPIN_ALONE: u32 = 14;
/// Kernels that can count themselves: one that hardly touches memory, one that is limited by a
/// bandwidth.
pub(crate) const COUNTED: u32 = 15;
pub(crate) const SHARED_COUNTED: u32 = 16;
/// One that keeps to its window by itself, one that nothing keeps there.
pub(crate) const FENCED: u32 = 17;
pub(crate) const LOOSE: u32 = 18;
/// Its CTAs wait for those before them.
pub(crate) const FOLLOWING: u32 = 19;
/// Kernels whose originals stand beside them: a worker and one that cannot be a worker.
pub(crate) const BRISK: u32 = 20;
pub(crate) const BRISK_TICKET: u32 = 21;
/// The same of a kernel that may wait for what others write, and of one without loops.
pub(crate) const BRISK_AWAITING: u32 = 22;
pub(crate) const BRISK_STRAIGHT: u32 = 23;
/// Kernels that run alone in slices: one that ends, one that never does, one that faults.
pub(crate) const SLICED: u32 = 24;
pub(crate) const SPIN_SLICED: u32 = 25;
pub(crate) const FAULT_SLICED: u32 = 26;
/// Its tickets claim whole clusters.
pub(crate) const CLUSTER_TICKET: u32 = 27;
/// Looks at the abort flag, and ends.
pub(crate) const POLLING: u32 = 28;
/// Ends on some SMs only.
pub(crate) const SPIN_SOME: u32 = 29;
/// Keeps to its window by its own code, and its faults reach others.
pub(crate) const RISKY: u32 = 30;
/// Images that the shell knows.
pub(crate) const GOOD_IMAGE: ImageId = ImageId(1);
pub(crate) const BAD_IMAGE: ImageId = ImageId(2);
pub(crate) const MALFORMED_IMAGE: ImageId = ImageId(3);
/// Its kernel 0 is a worker of 72 registers, and has 64 as it was written.
pub(crate) const WIDE_IMAGE: ImageId = ImageId(4);
/// Its kernel has blocks of known size, 40 registers, and 32 as it was written; the other's has 40
/// either way.
pub(crate) const CROWDING_IMAGE: ImageId = ImageId(7);
pub(crate) const CROWDED_IMAGE: ImageId = ImageId(8);

/// Its kernel 0 has its form later ([`World::give_form`]).
pub(crate) const LATE_IMAGE: ImageId = ImageId(9);

/// Machine code, with the kernels [`MACHINE`], [`QUICK_MACHINE`] and [`SPIN_MACHINE`].
pub(crate) const MACHINE_IMAGE: ImageId = ImageId(5);
const MACHINE_CODE: &str = "machine 40\nquick 2\nspin 1";
pub(crate) const MACHINE: u32 = 0;
pub(crate) const QUICK_MACHINE: u32 = 1;
pub(crate) const SPIN_MACHINE: u32 = 2;

pub(crate) struct World {
    pub(crate) engine: Engine,
    pub(crate) device: FakeDevice,
    pub(crate) replies: BTreeMap<(SessionId, u64), (CudaResult, Payload)>,
    /// Everything else that the engine wanted, in order.
    pub(crate) actions: Vec<Action>,
    pub(crate) released: BTreeSet<SessionId>,
    /// What modules were prepared for, in order.
    pub(crate) purposes: Vec<Purpose>,
    /// Forms that were asked for and not given.
    pub(crate) forms: Vec<(SessionId, FormsOf, Purpose)>,
    next_sequence: u64,
    next_session: u64,
}

impl World {
    pub(crate) fn new(sm_count: u16) -> Self {
        World::with_config(
            sm_count,
            EngineConfig { window: Some(partita_model::Bytes(1 << 26)), ..EngineConfig::default() },
        )
    }

    pub(crate) fn set_policy(&mut self, partitioner: PartitionerKind) {
        let config = PolicyConfig { partitioner, ..PolicyConfig::default() };
        let deciders = partita_policy::build(&config, &self.device.calibration()).unwrap();
        self.engine.set_policy(&mut self.device, deciders);
    }

    /// Lets this selector choose, and gives those that share no SM the same number each.
    pub(crate) fn select_by(&mut self, selector: impl Selector + Send + 'static) {
        self.engine.set_policy(&mut self.device, (Box::new(selector), Box::new(Even)));
        self.act();
    }

    pub(crate) fn with_config(sm_count: u16, config: EngineConfig) -> Self {
        World::on(FakeDevice::new(sm_count), config)
    }

    /// A world whose device tells faults by words.
    pub(crate) fn with_words(sm_count: u16) -> Self {
        let mut device = FakeDevice::new(sm_count);
        device.has_words = true;
        let window = Some(partita_model::Bytes(1 << 26));
        World::on(device, EngineConfig { window, ..EngineConfig::default() })
    }

    fn on(mut device: FakeDevice, config: EngineConfig) -> Self {
        let engine = Engine::new(config, &mut device).unwrap();
        World {
            engine,
            device,
            replies: BTreeMap::new(),
            actions: Vec::new(),
            released: BTreeSet::new(),
            purposes: Vec::new(),
            forms: Vec::new(),
            next_sequence: 1,
            next_session: 1,
        }
    }

    pub(crate) fn open(&mut self, tag: Option<&str>) -> (SessionId, ApplicationId) {
        self.open_as(TenantId(1000), tag)
    }

    pub(crate) fn open_as(
        &mut self,
        tenant: TenantId,
        tag: Option<&str>,
    ) -> (SessionId, ApplicationId) {
        let session = SessionId(self.next_session);
        self.next_session += 1;
        let identity = SessionIdentity {
            session,
            tenant,
            pid: 42,
            program: "program".to_owned(),
            tag: tag.map(str::to_owned),
            asked: Terms::default(),
        };
        let grant = self.engine.open_session(&mut self.device, identity).unwrap();
        self.device.applications.insert(grant.window.start.0, grant.application);
        (session, grant.application)
    }

    /// A session with [`MODULE`] loaded.
    pub(crate) fn session(&mut self) -> (SessionId, ApplicationId) {
        self.session_of(None)
    }

    /// The same of an application with this tag.
    pub(crate) fn session_of(&mut self, tag: Option<&str>) -> (SessionId, ApplicationId) {
        let (session, application) = self.open(tag);
        let (code, _) =
            self.ask(session, Request::ModuleLoad { module: MODULE, image: GOOD_IMAGE });
        assert_eq!(code, CudaResult::SUCCESS);
        (session, application)
    }

    pub(crate) fn send(&mut self, session: SessionId, request: Request) -> u64 {
        let sequence = self.next_sequence;
        self.next_sequence += 1;
        self.engine.handle_request(&mut self.device, session, sequence, request);
        self.act();
        sequence
    }

    /// Sends a request and runs until it is answered.
    pub(crate) fn ask(&mut self, session: SessionId, request: Request) -> (CudaResult, Payload) {
        let sequence = self.send(session, request);
        self.await_reply(session, sequence)
    }

    pub(crate) fn await_reply(
        &mut self,
        session: SessionId,
        sequence: u64,
    ) -> (CudaResult, Payload) {
        for _ in 0..20_000 {
            if let Some(reply) = self.replies.get(&(session, sequence)) {
                return reply.clone();
            }
            assert_eq!(
                self.step(),
                Activity::Busy,
                "the device is idle and request {sequence} has no reply"
            );
        }
        panic!("request {sequence} of {session} has no reply");
    }

    pub(crate) fn code(&mut self, session: SessionId, request: Request) -> u32 {
        self.ask(session, request).0.0
    }

    pub(crate) fn alloc(&mut self, session: SessionId, bytes: u64) -> DeviceAddress {
        match self.ask(session, Request::MemAlloc { bytes }) {
            (_, Payload::Address(address)) => address,
            other => panic!("{other:?}"),
        }
    }

    pub(crate) fn module(&mut self, session: SessionId, module: ModuleHandle) -> Arc<LoadedModule> {
        match self.ask(session, Request::ModuleLoad { module, image: GOOD_IMAGE }) {
            (_, Payload::Module(module)) => module,
            other => panic!("{other:?}"),
        }
    }

    pub(crate) fn launch(stream: u64, kernel: u32, ctas: u32) -> Launch {
        Launch {
            stream: StreamHandle(stream),
            module: MODULE,
            kernel,
            grid: Dim3::linear(ctas),
            block: Dim3::linear(256),
            dynamic_shared: 0,
            cooperative: false,
            cluster: Dim3::linear(1),
            params: vec![0; 12],
        }
    }

    pub(crate) fn start(&mut self, session: SessionId, stream: u64, kernel: u32, ctas: u32) {
        let sequence = self.send(session, Request::Launch(World::launch(stream, kernel, ctas)));
        assert_eq!(self.replies[&(session, sequence)].0, CudaResult::SUCCESS);
    }

    pub(crate) fn synchronize(&mut self, session: SessionId) -> u32 {
        self.code(session, Request::Synchronize { stream: None })
    }

    pub(crate) fn close(&mut self, session: SessionId, reason: CloseReason) {
        self.engine.close_session(&mut self.device, session, reason);
        self.act();
    }

    pub(crate) fn set_plan(&mut self, plan: &[(ApplicationId, &str)]) -> Result<(), String> {
        let plan = plan.iter().map(|(id, sms)| (*id, sms.parse().unwrap())).collect();
        let result = self.engine.set_plan(&mut self.device, plan);
        self.act();
        result.map_err(|error| error.to_string())
    }

    pub(crate) fn partition(&self, application: ApplicationId) -> SmSet {
        let reports = self.engine.partition_reports();
        reports
            .iter()
            .find(|report| report.application == application)
            .map_or(SmSet::EMPTY, |report| report.sms)
    }

    /// Lets the device go to the next event or timer.
    pub(crate) fn step(&mut self) -> Activity {
        let mut events = Vec::new();
        let horizon = Horizon { until: self.engine.next_timer(), warp_instructions: u64::MAX };
        let mut activity = self.device.poll(horizon, &mut events);
        let is_quiet = activity == Activity::Idle && events.is_empty();
        for event in events {
            self.engine.handle_event(&mut self.device, event);
        }
        let rests =
            self.engine.common.config.rests == Rests::ByDevice && self.engine.awaits_timer();
        if let Some(timer) = self.engine.next_timer().filter(|_| is_quiet && rests) {
            self.device.now = self.device.now.max(timer.0);
            activity = Activity::Busy;
        }
        if activity == Activity::Busy {
            self.engine.handle_timer(&mut self.device);
        }
        self.act();
        self.check();
        activity
    }

    /// Runs for so long, or until nothing is left to do.
    pub(crate) fn run_for(&mut self, micros: u64) {
        let end = self.device.now + micros * 1_000;
        while self.device.now < end {
            let mut events = Vec::new();
            let until = self.engine.next_timer().map_or(end, |timer| timer.0.min(end));
            let horizon = Horizon { until: Some(Nanos(until)), warp_instructions: u64::MAX };
            let activity = self.device.poll(horizon, &mut events);
            let quiet = activity == Activity::Idle && events.is_empty();
            for event in events {
                self.engine.handle_event(&mut self.device, event);
            }
            if quiet {
                self.device.now = end;
            }
            self.engine.handle_timer(&mut self.device);
            self.act();
            self.check();
        }
    }

    pub(crate) fn run(&mut self) {
        for _ in 0..20_000 {
            if self.step() == Activity::Idle {
                return;
            }
        }
        panic!("the device is never done");
    }

    pub(crate) fn event(&mut self, event: Event) {
        self.engine.handle_event(&mut self.device, event);
        self.act();
    }

    fn act(&mut self) {
        while let Some(action) = self.engine.poll_action() {
            match action {
                Action::Reply { session, sequence, code, payload } => {
                    let before = self.replies.insert((session, sequence), (code, payload));
                    assert!(before.is_none(), "request {sequence} of {session} is answered twice");
                }
                Action::Prepare { session, module, image, purpose, .. } => {
                    self.purposes.push(purpose.clone());
                    let result = prepare(image, &purpose);
                    self.engine.handle_prepared(&mut self.device, session, module, result);
                }
                Action::PrepareForms { session, of, purpose, .. } => {
                    self.purposes.push(purpose.clone());
                    self.forms.push((session, of, purpose));
                }
                Action::Released { session } => {
                    assert!(self.released.insert(session), "{session} released twice")
                }
                Action::Log { text, .. } if text.contains("a bug in Partita") => panic!("{text}"),
                other => self.actions.push(other),
            }
        }
    }

    /// Gives the form that was asked for first: a text for the device, or nothing.
    pub(crate) fn give_form(&mut self, ptx: Option<&str>) {
        let (session, of, purpose) = self.forms.remove(0);
        let registers = match purpose {
            Purpose::RunWithin(_) => RegisterBound::Settled,
            Purpose::Run | Purpose::Registers(_) => RegisterBound::Nothing,
        };
        let no_form = PrepareError { code: CudaResult::ERROR_INVALID_PTX, text: "no".to_owned() };
        let result = ptx.ok_or(no_form).map(|ptx| PreparedModule {
            ptx: ptx.into(),
            code: None,
            kernels: vec![PreparedKernel { registers, ..kernel("late") }],
            lines: None,
            later: None,
        });
        self.engine.handle_forms(&mut self.device, session, of, result);
        self.act();
    }

    /// What must hold at every moment.
    fn check(&self) {
        let reports = self.engine.partition_reports();
        for (i, a) in reports.iter().enumerate() {
            for b in &reports[i + 1..] {
                let fits = match (a.part, b.part) {
                    (Some(one), Some(other)) => one.fits_beside(other),
                    _ => false,
                };
                assert!(a.sms.is_disjoint(&b.sms) || fits, "{a:?} {b:?}");
            }
        }
    }

    /// Closes everything and checks that nothing is left.
    pub(crate) fn finish(mut self) {
        for session in 1..self.next_session {
            self.close(SessionId(session), CloseReason::Goodbye);
        }
        self.run();
        assert_eq!(self.released.len() as u64, self.next_session - 1);
        assert!(self.engine.is_at_rest());
        assert_eq!(self.engine.memory_used(), 0);
        assert_eq!(self.engine.application_reports(), []);
        let [windows, _, modules, streams] = self.device.leftovers();
        assert_eq!(
            [windows, modules, streams],
            [1, 0, 0],
            "only the control blocks' window is left"
        );
    }
}

fn prepare(image: ImageId, purpose: &Purpose) -> Result<PreparedModule, PrepareError> {
    match image {
        GOOD_IMAGE => Ok(PreparedModule {
            ptx: PTX.into(),
            code: None,
            kernels: kernels().map(kernel).collect(),
            lines: Some(Arc::from([0, 17])),
            later: None,
        }),
        MACHINE_IMAGE => {
            let names = MACHINE_CODE.lines().map(|line| line.split(' ').next().unwrap());
            let fence = Fence::None("it is machine code".to_owned());
            let machine = |name| PreparedKernel {
                form: KernelForm::MachineCode,
                fence: fence.clone(),
                ..kernel(name)
            };
            let code = Some(MACHINE_CODE.as_bytes().into());
            Ok(PreparedModule {
                ptx: "".into(),
                code,
                kernels: names.map(machine).collect(),
                lines: None,
                later: None,
            })
        }
        WIDE_IMAGE => {
            let (ptx, registers) = match purpose {
                Purpose::Run => ("wide 10 72", RegisterBound::Nothing),
                Purpose::Registers(_) => ("wide 10 64", RegisterBound::Nothing),
                Purpose::RunWithin(_) => ("wide 10 64", RegisterBound::Settled),
            };
            let kernels = vec![PreparedKernel { registers, ..kernel("wide") }];
            Ok(PreparedModule { ptx: ptx.into(), code: None, kernels, lines: None, later: None })
        }
        CROWDING_IMAGE | CROWDED_IMAGE => {
            let (ptx, registers) = match purpose {
                Purpose::Run => ("wide 10 40", RegisterBound::Blocks),
                Purpose::Registers(_) if image == CROWDED_IMAGE => {
                    ("wide 10 40", RegisterBound::Blocks)
                }
                Purpose::Registers(_) => ("wide 10 32", RegisterBound::Blocks),
                Purpose::RunWithin(_) => ("wide 10 40", RegisterBound::Settled),
            };
            let kernels = vec![PreparedKernel { registers, ..kernel("wide") }];
            Ok(PreparedModule { ptx: ptx.into(), code: None, kernels, lines: None, later: None })
        }
        LATE_IMAGE => {
            let (reason, workspace, abort) = (String::new(), false, false);
            let form = KernelForm::Original { reason, workspace, abort };
            Ok(PreparedModule {
                ptx: "late 10".into(),
                code: None,
                kernels: vec![PreparedKernel { form, later: true, ..kernel("late") }],
                lines: None,
                later: Some(Later { source: Source(Arc::new(())), room_bytes: 10 }),
            })
        }
        MALFORMED_IMAGE => Ok(PreparedModule {
            ptx: "nonsense".into(),
            code: None,
            kernels: Vec::new(),
            lines: None,
            later: None,
        }),
        _ => Err(PrepareError {
            code: CudaResult::ERROR_NO_BINARY_FOR_GPU,
            text: "only SASS for sm_75".to_owned(),
        }),
    }
}

fn kernels() -> impl Iterator<Item = &'static str> {
    let names = PTX.lines().map(|line| line.split(' ').next().unwrap());
    let beside = ["-original", "-counting", "slice-alone"];
    names.filter(move |name| !beside.iter().any(|end| name.ends_with(end)))
}

/// The original beside a kernel.
fn beside(name: &str) -> Option<Fallback> {
    let is_needed = name == "rows";
    (is_needed || ["brisk", "cluster"].iter().any(|part| name.starts_with(part))).then(|| {
        Fallback {
            entry: format!("{name}-original").into(),
            for_broken_rows: is_needed,
            for_cooperative: is_needed,
            abort: false,
        }
    })
}

fn kernel(name: &str) -> PreparedKernel {
    let form = if name.ends_with("alone") {
        let workspace = name == "grid-alone";
        let abort = name.starts_with("spin") || name.starts_with("polling");
        KernelForm::Original { reason: "it uses clusters".to_owned(), workspace, abort }
    } else if name.contains("ticket") {
        let reason = "line 7: lanes may skip this".to_owned();
        let cta_values = Some(["%x", "%y", "%z"].map(str::to_owned));
        KernelForm::Ticket {
            cta_values,
            fallback: beside(name),
            reason,
            clusters: name.starts_with("cluster"),
        }
    } else {
        let fallback = beside(name);
        KernelForm::Worker { cta_values: Some(["%x", "%y", "%z"].map(str::to_owned)), fallback }
    };
    PreparedKernel {
        name: name.into(),
        entry: name.into(),
        params: vec![ParamLayout { offset: 0, bytes: 8 }, ParamLayout { offset: 8, bytes: 4 }],
        param_bytes: 12,
        form,
        fence: match name {
            "fenced" => Fence::Code,
            "risky" => Fence::Uncontained("line 3: an mbarrier".to_owned()),
            "loose" => Fence::None("line 3: a call through a register".to_owned()),
            _ => Fence::Device,
        },
        registers: RegisterBound::Settled,
        later: false,
        hash: (["counted", "brisk", "sliced"].iter().any(|part| name.contains(part)))
            .then(|| name.into()),
        awaits: name.contains("awaiting") || name == "following",
        follows: name == "following",
        hidden_shared: if name == "fenced" { 672 } else { 0 },
        handles: if name == "fenced" { [0].into() } else { [].into() },
        gives_up: name == "long" || name.contains("ticket"),
        loops: !name.contains("straight"),
        counting: name.contains("counted").then(|| format!("{name}-counting").into()),
        slice: name.contains("sliced").then(|| Slice {
            entry: name.replace("sliced", "slice").into(),
            abort: name.starts_with("spin"),
        }),
    }
}
