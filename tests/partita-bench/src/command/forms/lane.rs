//! A device that follows a recording with its kernels in one form, and runs launches in it.

use partita_device::{Activity, AddressRange, Device, Event, GridSpec, Horizon, Outcome, Work};
use partita_emu::record::Entry;
use partita_emu::{EmulatedGpu, Options, Spec};
use partita_model::{DeviceAddress, Dim3, ModuleId, Nanos, OperationId, StreamId, WindowId};
use partita_ptx::analysis::spin::may_wait;
use partita_ptx::fence::cell_bits;
use partita_ptx::passes::{self, Applied};
use partita_ptx::{KernelReport, Pass, Rewrite, WorkerOptions};
use std::collections::{BTreeMap, BTreeSet};

/// Streams that a lane has.
pub const STREAMS: u64 = 4;

/// The window in which control blocks lie; a recording counts its own from 0.
const CONTROL_WINDOW: WindowId = WindowId(u64::MAX);

/// Bytes for a control block.
const CONTROL_BYTES: u64 = 1 << 16;

/// Begins what is said of a launch that the device does not take: with what a form adds, a CTA may
/// not fit an SM.
pub const REFUSED: &str = "not taken: ";

/// Live memory: where it begins, and its contents.
pub type Memory = Vec<(DeviceAddress, Vec<u8>)>;

/// A device and what it has of the recording.
pub struct Lane {
    /// Applied to every module. None: kernels stay as they are.
    pub passes: &'static [Pass],
    gpu: EmulatedGpu,
    modules: BTreeMap<ModuleId, LoadedModule>,
    windows: BTreeMap<WindowId, AddressRange>,
    /// Sizes of what is live, variables too.
    live: BTreeMap<DeviceAddress, u64>,
    /// Where launches find their control block.
    pub control: DeviceAddress,
    operations: u64,
    /// Faults of the launches since [`Lane::take_fault`].
    fault: Option<String>,
}

struct LoadedModule {
    window: WindowId,
    steps: Vec<(Pass, Vec<KernelReport>)>,
    refused: BTreeMap<String, String>,
    /// Kernels whose CTAs may wait for others.
    awaiting: BTreeSet<String>,
    /// The clusters that kernels require.
    clusters: BTreeMap<String, Dim3>,
    variables: Vec<DeviceAddress>,
}

/// A launch of a recording.
#[derive(Clone)]
pub struct Recorded {
    /// Its module.
    pub module: ModuleId,
    /// Its kernel.
    pub kernel: String,
    /// Its grid; checks change it.
    pub grid: Dim3,
    /// CTAs of one of its clusters.
    pub cluster: Dim3,
    /// Its block.
    pub block: Dim3,
    /// Its dynamic shared memory.
    pub dynamic_shared: u32,
    /// Its parameters.
    pub params: Vec<u8>,
}

impl Lane {
    /// A lane at a recording's start.
    pub fn new(spec: Spec, options: Options, passes: &'static [Pass]) -> Result<Lane, String> {
        let mut gpu = EmulatedGpu::new(spec, options);
        for stream in 0..STREAMS {
            gpu.create_stream(StreamId(stream)).map_err(|error| error.to_string())?;
        }
        Ok(Lane {
            passes,
            gpu,
            modules: BTreeMap::new(),
            windows: BTreeMap::new(),
            live: BTreeMap::new(),
            control: DeviceAddress(0),
            operations: 0,
            fault: None,
        })
    }

    /// SMs of the device.
    pub fn sms(&self) -> u16 {
        self.gpu.spec().sms
    }

    /// Does what an entry says of what exists. Contents and launches are left to the caller.
    pub fn follow(&mut self, entry: &Entry) -> Result<(), String> {
        match entry {
            Entry::Reserve { window, bytes, base } => {
                let found = self.gpu.reserve(*window, *bytes).map_err(|error| error.to_string())?;
                if found != *base {
                    return Err(format!("the window recorded at {base} lies at {found} here"));
                }
                self.windows.insert(*window, AddressRange { start: *base, bytes: *bytes });
            }
            Entry::Release { window } => {
                self.gpu.release(*window).map_err(|error| error.to_string())?;
                if let Some(range) = self.windows.remove(window) {
                    self.live.retain(|start, bytes| !range.contains(*start, *bytes));
                }
            }
            Entry::Allocate { window, start, bytes } => {
                let range = AddressRange { start: *start, bytes: *bytes };
                self.gpu.allocate(*window, range).map_err(|error| error.to_string())?;
                self.live.insert(*start, *bytes);
            }
            Entry::Free { start } => {
                self.gpu.free(*start).map_err(|error| error.to_string())?;
                self.live.remove(start);
            }
            Entry::Load { module, window, ptx } => self.load(*module, *window, ptx)?,
            Entry::Unload { module } => {
                self.gpu.unload_module(*module).map_err(|error| error.to_string())?;
                for variable in
                    self.modules.remove(module).map_or(Vec::new(), |module| module.variables)
                {
                    self.live.remove(&variable);
                }
            }
            _ => {}
        }
        Ok(())
    }

    fn load(&mut self, module: ModuleId, window: WindowId, ptx: &str) -> Result<(), String> {
        let parsed = partita_ptx::parse(ptx).map_err(|errors| errors.to_string())?;
        partita_ptx::verify(&parsed).map_err(|errors| errors.to_string())?;
        let bytes = self.windows.get(&window).map_or(0, |range| range.bytes);
        let options = WorkerOptions { cell_bits: cell_bits(bytes), ..WorkerOptions::default() };
        let awaiting = parsed.kernels().into_iter().filter(|kernel| may_wait(&parsed, kernel.func));
        let awaiting: BTreeSet<String> = awaiting.map(|kernel| kernel.name).collect();
        let Applied { module: rewritten, steps } = passes::apply(&parsed, self.passes, &options);
        let text =
            if self.passes.is_empty() { ptx.to_owned() } else { partita_ptx::print(&rewritten) };
        self.gpu.load_module(module, window, text.into()).map_err(|error| error.to_string())?;
        let mut events = Vec::new();
        self.gpu.poll(Horizon { until: None, warp_instructions: u64::MAX }, &mut events);
        for event in events {
            match event {
                Event::ModuleRefused { reason, .. } => return Err(reason),
                Event::ModuleLoaded { facts, .. } => {
                    let variables =
                        facts.variables.iter().map(|variable| variable.address).collect();
                    self.live.extend(
                        facts.variables.iter().map(|variable| (variable.address, variable.size.0)),
                    );
                    let refused =
                        facts.refused.iter().map(|kernel| (kernel.name.clone(), kernel.reason()));
                    let refused = refused.collect();
                    let clusters = facts
                        .kernels
                        .iter()
                        .filter_map(|kernel| Some((kernel.name.clone(), kernel.required_cluster?)));
                    self.modules.insert(
                        module,
                        LoadedModule {
                            window,
                            steps: steps.clone(),
                            refused,
                            awaiting: awaiting.clone(),
                            clusters: clusters.collect(),
                            variables,
                        },
                    );
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// Why a kernel does not run here, by a pass or by the device.
    pub fn refusal(&self, module: ModuleId, kernel: &str) -> Option<String> {
        let module = self.modules.get(&module)?;
        let refusals = module.steps.iter().flat_map(|(_, reports)| reports.iter());
        let refusal = refusals
            .filter(|report| report.name == kernel)
            .find_map(|report| report.refusals().first());
        refusal.map(ToString::to_string).or_else(|| module.refused.get(kernel).cloned())
    }

    /// Whether CTAs of a kernel may wait for others.
    pub fn awaits(&self, module: ModuleId, kernel: &str) -> bool {
        self.modules.get(&module).is_some_and(|module| module.awaiting.contains(kernel))
    }

    /// CTAs of a cluster of a launch that asks for these: where it names none, what the kernel
    /// requires.
    pub fn cluster(&self, module: ModuleId, kernel: &str, asked: Option<Dim3>) -> Dim3 {
        let required = || self.modules.get(&module)?.clusters.get(kernel).copied();
        asked.or_else(required).unwrap_or(Dim3::linear(1))
    }

    /// The form that a kernel has here, where it has a new one.
    pub fn rewrite(&self, module: ModuleId, kernel: &str) -> Option<&Rewrite> {
        let reports =
            self.modules.get(&module)?.steps.iter().flat_map(|(_, reports)| reports.iter());
        reports.filter(|report| report.name == kernel).find_map(|report| report.rewritten())
    }

    /// Where the parameters lie that a pass has added to a kernel.
    pub fn added(&self, module: ModuleId, kernel: &str, pass: Pass) -> Vec<u64> {
        let step = self
            .modules
            .get(&module)
            .and_then(|module| module.steps.iter().find(|step| step.0 == pass));
        let report =
            step.and_then(|(_, reports)| reports.iter().find(|report| report.name == kernel));
        report.map_or(Vec::new(), |report| report.added.iter().map(|param| param.offset).collect())
    }

    /// The first address of the cell of a module's window, as a fence needs it.
    pub fn cell(&self, module: ModuleId) -> u64 {
        let window = self.modules.get(&module).and_then(|module| self.windows.get(&module.window));
        window.map_or(0, |range| range.start.0 >> cell_bits(range.bytes) << cell_bits(range.bytes))
    }

    /// Everything that is live.
    pub fn memory(&mut self) -> Result<Memory, String> {
        let mut memory = Memory::new();
        for (&start, &bytes) in &self.live {
            let mut contents = vec![0; usize::try_from(bytes).map_err(|error| error.to_string())?];
            self.gpu.peek(start, &mut contents).map_err(|error| error.to_string())?;
            memory.push((start, contents));
        }
        Ok(memory)
    }

    /// Writes memory.
    pub fn write(&mut self, at: DeviceAddress, bytes: &[u8]) -> Result<(), String> {
        self.gpu.poke(at, bytes).map_err(|error| error.to_string())
    }

    /// Makes live memory what it was.
    pub fn restore(&mut self, memory: &Memory) -> Result<(), String> {
        memory.iter().try_for_each(|(start, contents)| self.write(*start, contents))
    }

    /// A fresh control block, the only one that the lane has.
    pub fn put_control(&mut self, contents: &[u8]) -> Result<(), String> {
        if self.control.0 == 0 {
            let start = self
                .gpu
                .reserve(CONTROL_WINDOW, CONTROL_BYTES)
                .map_err(|error| error.to_string())?;
            let range = AddressRange { start, bytes: CONTROL_BYTES };
            self.gpu.allocate(CONTROL_WINDOW, range).map_err(|error| error.to_string())?;
            self.control = start;
        }
        self.write(self.control, contents)
    }

    /// A word of the control block.
    pub fn control_word(&mut self, at: u64) -> u64 {
        let mut bytes = [0; 8];
        // It is live since `put_control`; before that there is nothing to read.
        drop(self.gpu.peek(DeviceAddress(self.control.0 + at), &mut bytes));
        u64::from_le_bytes(bytes)
    }

    /// Enqueues work that is no launch, and lets it end.
    pub fn work(&mut self, work: Work) -> Result<(), String> {
        self.operations += 1;
        self.gpu
            .enqueue(StreamId(0), OperationId(self.operations), work)
            .map_err(|error| error.to_string())?;
        self.settle(u64::MAX)
    }

    /// Enqueues a launch with these parameters.
    pub fn launch(
        &mut self,
        stream: u64,
        launch: &Recorded,
        params: Vec<u8>,
    ) -> Result<(), String> {
        self.operations += 1;
        let mut access: Vec<AddressRange> = self.windows.values().copied().collect();
        if self.control.0 != 0 {
            access.push(AddressRange { start: self.control, bytes: CONTROL_BYTES });
        }
        let work = Work::Launch(GridSpec {
            cooperative: false,
            cluster: launch.cluster,
            module: launch.module,
            kernel: launch.kernel.as_str().into(),
            grid: launch.grid,
            block: launch.block,
            dynamic_shared: launch.dynamic_shared,
            params,
            access,
        });
        let operation = OperationId(self.operations);
        self.gpu
            .enqueue(StreamId(stream), operation, work)
            .map_err(|error| format!("{REFUSED}{error}"))
    }

    /// Warp instructions of the last launch, which has ended.
    pub fn instructions(&mut self) -> u64 {
        self.gpu
            .take_counters(OperationId(self.operations))
            .map_or(0, |counters| counters.warp_instructions)
    }

    /// Lets so much device time pass.
    pub fn advance(&mut self, nanos: u64) {
        let until = Some(Nanos(self.gpu.now().0 + nanos));
        self.poll(Horizon { until, warp_instructions: u64::MAX });
    }

    fn poll(&mut self, horizon: Horizon) -> (Activity, bool) {
        let mut events = Vec::new();
        let activity = self.gpu.poll(horizon, &mut events);
        let quiet = events.is_empty();
        for event in events {
            if let Event::Done { outcome: Outcome::Fault(fault), .. } = event {
                self.fault.get_or_insert(fault.to_string());
            }
        }
        (activity, quiet)
    }

    /// Runs until nothing is left to do.
    pub fn settle(&mut self, warp_instructions: u64) -> Result<(), String> {
        const TURN: u64 = 1 << 16;
        let mut left = warp_instructions;
        while self.poll(Horizon { until: None, warp_instructions: TURN }).0 != Activity::Idle {
            left = left.saturating_sub(TURN);
            if left == 0 {
                for operation in 1..=self.operations {
                    // Those that have ended are left alone.
                    drop(self.gpu.cancel(OperationId(operation)));
                }
                self.poll(Horizon { until: None, warp_instructions: TURN });
                return Err("it does not end".to_owned());
            }
        }
        self.take_fault().map_or(Ok(()), Err)
    }

    /// The first fault, where there was one.
    pub fn take_fault(&mut self) -> Option<String> {
        self.fault.take()
    }
}
