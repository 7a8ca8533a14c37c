//! One run of one kernel of a PTX text, with nothing above the device. `partita emu run`, tests and
//! benches use it.

mod check;
mod forms;

use crate::gpu::{EmulatedGpu, Footprint, Options};
use crate::spec::Spec;
use forms::{Added, Rewritten};
use partita_device::{
    Activity, AddressRange, Device, DeviceError, Event, Fault, GridSpec, Horizon, ModuleFacts,
    Outcome, Work,
};
use partita_model::control::{self, Gates, Shape};
use partita_model::{
    DeviceAddress, Dim3, GridCounters, ModuleId, Nanos, OperationId, SmSet, StreamId, WindowId,
};
use partita_ptx::fence::{cell_bits, margin_bytes};
use rustix::time::{ClockId, clock_gettime};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The argument of a parameter.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Argument {
    /// A value: the parameter's bytes.
    Value(Vec<u8>),
    /// The address of a buffer that holds these bytes at first.
    Buffer(Vec<u8>),
}

/// In which form the kernel runs.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Form {
    /// The kernel as written.
    #[default]
    Original,
    /// Rewritten to persistent workers on all SMs.
    Worker {
        /// CTAs of a task, at most.
        task: u32,
    },
    /// Rewritten to tickets, launched in waves that fit on all SMs.
    Ticket,
    /// Rewritten so that every access stays inside the window's address cell.
    Fenced,
    /// Fenced, and rewritten so that a fault ends the launch alone and every wait can be ended, as
    /// a device with strict guards wants it.
    Contained,
}

/// A run.
#[derive(Clone, Debug)]
pub struct Run {
    /// The PTX text, of the original.
    pub ptx: Arc<str>,
    /// The kernel's name.
    pub kernel: String,
    /// Extent of the grid.
    pub grid: Dim3,
    /// Extent of a CTA.
    pub block: Dim3,
    /// Dynamic shared memory per CTA.
    pub dynamic_shared: u32,
    /// Arguments in order.
    pub arguments: Vec<Argument>,
    /// The form.
    pub form: Form,
    /// The modelled GPU.
    pub spec: Spec,
    /// Seed and timing.
    pub options: Options,
}

/// The result of a run.
#[derive(Clone, PartialEq, Debug)]
pub struct Ran {
    /// The buffers' contents afterwards, in the order of the arguments.
    pub buffers: Vec<Vec<u8>>,
    /// The grid's counters.
    pub counters: GridCounters,
    /// The output of the kernel.
    pub output: Vec<u8>,
}

/// Why a run has no result.
#[derive(Debug, thiserror::Error)]
pub enum DirectError {
    /// The PTX does not load.
    #[error("{0}")]
    Module(String),
    /// The module has no kernel of this name.
    #[error("no kernel is named `{name}`; there are {}", known.join(", "))]
    UnknownKernel {
        /// The name.
        name: String,
        /// The kernels of the module.
        known: Vec<String>,
    },
    /// The kernel cannot run on this device.
    #[error("kernel `{name}` cannot run: {reason}")]
    Refused {
        /// The name.
        name: String,
        /// The device's reason.
        reason: String,
    },
    /// The kernel cannot be rewritten.
    #[error("kernel `{name}` does not take the form: {reason}")]
    NoForm {
        /// The name.
        name: String,
        /// The rewriter's reason.
        reason: String,
    },
    /// Wrong number of arguments.
    #[error("kernel `{name}` takes {wanted} arguments, {given} were given")]
    ArgumentCount {
        /// The kernel.
        name: String,
        /// Parameters.
        wanted: usize,
        /// Arguments.
        given: usize,
    },
    /// An argument of the wrong size.
    #[error("argument {index} of kernel `{name}` has {wanted} bytes, {given} were given")]
    ArgumentSize {
        /// The kernel.
        name: String,
        /// The argument's place, from 1.
        index: usize,
        /// Bytes of the parameter.
        wanted: u32,
        /// Bytes of the argument.
        given: u32,
    },
    /// The kernel has not ended.
    #[error(
        "the kernel has not ended after {warp_instructions} warp instructions; does it wait for \
         something?"
    )]
    TooLong {
        /// The limit.
        warp_instructions: u64,
    },
    /// The device refused.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// The kernel is at fault.
    #[error("{0}")]
    Fault(Box<Fault>),
    /// The code that contains the kernel's faults has ended it.
    #[error("kernel `{name}` was ended: {reason}")]
    Ended {
        /// The name.
        name: String,
        /// What it did.
        reason: &'static str,
    },
}

const WINDOW: WindowId = WindowId(1);
/// The window of a contained kernel's control block.
const CONTROL: WindowId = WindowId(2);
const MODULE: ModuleId = ModuleId(1);
const STREAM: StreamId = StreamId(1);

/// A horizon that is never reached.
const FAR: Horizon = Horizon { until: None, warp_instructions: u64::MAX };

/// A run whose module is loaded and whose buffers are filled.
pub struct Prepared<'a> {
    run: &'a Run,
    gpu: EmulatedGpu,
    launch: GridSpec,
    buffers: Vec<(DeviceAddress, usize)>,
    /// The control block of a rewritten kernel.
    control: Option<DeviceAddress>,
    /// The window's cell with the margins around it.
    reach: AddressRange,
    /// Launches by [`Prepared::again`].
    launches: u64,
}

impl Prepared<'_> {
    /// Launches the kernel once more, as it stands and on what earlier launches left behind, on
    /// these SMs only.
    ///
    /// # Errors
    /// [`DirectError`].
    pub fn again(&mut self, sms: SmSet) -> Result<GridCounters, DirectError> {
        self.launches += 1;
        let operation = OperationId(self.launches);
        self.gpu.confine_stream(STREAM, sms);
        self.gpu.enqueue(STREAM, operation, Work::Launch(self.launch.clone()))?;
        finish(&mut self.gpu, operation, u64::MAX)?;
        Ok(self.gpu.take_counters(operation).unwrap_or_default())
    }

    /// Launches the kernel `count` times in one stream without waiting in between; tells when each
    /// ended.
    ///
    /// # Errors
    /// [`DirectError`].
    pub fn burst(&mut self, count: u64) -> Result<Vec<Nanos>, DirectError> {
        for launch in 1..=count {
            let operation = OperationId(self.launches + launch);
            self.gpu.enqueue(STREAM, operation, Work::Launch(self.launch.clone()))?;
        }
        self.launches += count;
        let (mut times, mut events) = (Vec::new(), Vec::new());
        while self.gpu.poll(FAR, &mut events) == Activity::Busy || !events.is_empty() {
            for event in events.drain(..) {
                if let Event::Done { time, outcome, .. } = event {
                    if let Outcome::Fault(fault) = outcome {
                        return Err(DirectError::Fault(fault));
                    }
                    times.push(time);
                }
            }
        }
        Ok(times)
    }

    /// The addresses of global memory that a fenced kernel can name. Nothing of other tenants lies
    /// there.
    #[must_use]
    pub fn reach(&self) -> AddressRange {
        self.reach
    }

    /// The device.
    #[must_use]
    pub fn gpu(&self) -> &EmulatedGpu {
        &self.gpu
    }
}

/// Runs a kernel.
///
/// # Errors
/// [`DirectError`].
pub fn run(run: &Run) -> Result<Ran, DirectError> {
    prepare(run)?.run()
}

/// Does everything of a run but run it.
///
/// # Errors
/// [`DirectError`].
pub fn prepare(run: &Run) -> Result<Prepared<'_>, DirectError> {
    let mut gpu = EmulatedGpu::new(run.spec.clone(), run.options);
    let bytes: u64 =
        run.arguments.iter().map(|argument| room(argument).next_multiple_of(256) + 256).sum();
    // The size is a multiple of 2 MiB. The module's variables lie at the window's end.
    let window_bytes = (bytes + (256 << 20) + run.ptx.len() as u64 * 4).next_multiple_of(2 << 20);
    let cell_bits = cell_bits(window_bytes);
    let rewritten = match run.form {
        Form::Original => Rewritten::original(run.ptx.clone()),
        form => forms::rewrite(&run.ptx, &run.kernel, form, cell_bits)?,
    };
    let base = gpu.reserve(WINDOW, window_bytes)?;
    load(&mut gpu, &rewritten.text, &run.kernel)?;
    check::guards(&gpu, run, rewritten.hidden_shared)?;
    gpu.create_stream(STREAM)?;

    let mut params = Vec::new();
    let mut buffers = Vec::new();
    let mut next = base.0;
    let layout = original_parameters(&gpu, run, rewritten.added.len())?;
    for (index, (argument, &(offset, size))) in run.arguments.iter().zip(&layout).enumerate() {
        let value = match argument {
            Argument::Value(value) => value.clone(),
            Argument::Buffer(contents) => {
                let range = AddressRange { start: DeviceAddress(next), bytes: room(argument) };
                gpu.allocate(WINDOW, range)?;
                gpu.poke(range.start, contents)?;
                buffers.push((range.start, contents.len()));
                next += range.bytes.next_multiple_of(256);
                range.start.0.to_le_bytes().to_vec()
            }
        };
        if value.len() != size as usize {
            return Err(DirectError::ArgumentSize {
                name: run.kernel.clone(),
                index: index + 1,
                wanted: size,
                given: value.len() as u32,
            });
        }
        params.resize(offset as usize, 0);
        params.extend_from_slice(&value);
    }
    check::handles(run, &rewritten.handles, &params)?;
    let mut grid = run.grid;
    let task = match run.form {
        Form::Original | Form::Fenced | Form::Contained => None,
        Form::Worker { task } => Some(task),
        Form::Ticket => Some(1),
    };
    let mut control = None;
    let mut access = vec![AddressRange { start: base, bytes: window_bytes }];
    for added in &rewritten.added {
        let value = match added {
            Added::Cell => base.0 >> cell_bits << cell_bits,
            Added::Control => {
                let bytes = control::block_bytes(run.spec.sms);
                // A contained kernel may write anywhere in its own window.
                let (window, start) = match run.form {
                    Form::Contained => {
                        let bytes = bytes.next_multiple_of(2 << 20);
                        let start = gpu.reserve(CONTROL, bytes)?;
                        access.push(AddressRange { start, bytes });
                        (CONTROL, start)
                    }
                    _ => (WINDOW, DeviceAddress(next.next_multiple_of(128))),
                };
                let block = AddressRange { start, bytes };
                gpu.allocate(window, block)?;
                if let Some(task) = task {
                    // Whole clusters claim. With several on an SM a GPC may hold fewer, and the
                    // rest wait.
                    let ctas = u32::try_from(rewritten.cluster.count()).unwrap_or(1);
                    let workers = worker_count(&gpu, run).next_multiple_of(ctas);
                    let by_place = run.form != Form::Ticket;
                    let grids = (run.grid, rewritten.cluster);
                    let contents = control_block(grids, task, workers, run.spec.sms, by_place);
                    gpu.poke(block.start, &contents)?;
                    grid = Dim3::linear(workers);
                }
                control = Some(block.start);
                block.start.0
            }
        };
        params.resize(params.len().next_multiple_of(8), 0);
        params.extend_from_slice(&value.to_le_bytes());
    }
    let launch = GridSpec {
        cooperative: false,
        cluster: Dim3::linear(1),
        module: MODULE,
        kernel: run.kernel.as_str().into(),
        grid,
        block: run.block,
        dynamic_shared: run.dynamic_shared.saturating_add(rewritten.hidden_shared),
        params,
        access,
    };
    let (cell, margin) = (base.0 >> cell_bits << cell_bits, margin_bytes(cell_bits));
    let start = DeviceAddress(cell.saturating_sub(margin));
    let reach = AddressRange { start, bytes: (1 << cell_bits) + 2 * margin };
    Ok(Prepared { run, gpu, launch, buffers, control, reach, launches: 0 })
}

impl Prepared<'_> {
    /// Runs it.
    ///
    /// # Errors
    /// [`DirectError`].
    pub fn run(self) -> Result<Ran, DirectError> {
        self.run_timed().map(|(ran, _)| ran)
    }

    /// Runs it, and tells how much of the host's processor time it took from the launch to its
    /// completion; where several threads execute kernels, how much time passed.
    ///
    /// # Errors
    /// [`DirectError`].
    pub fn run_timed(self) -> Result<(Ran, Duration), DirectError> {
        self.run_limited(u64::MAX)
    }

    /// Runs the kernel, up to about `warp_instructions` warp instructions.
    ///
    /// # Errors
    /// [`DirectError`]; [`DirectError::TooLong`] where it takes more.
    pub fn run_within(self, warp_instructions: u64) -> Result<Ran, DirectError> {
        self.run_limited(warp_instructions).map(|(ran, _)| ran)
    }

    fn run_limited(mut self, warp_instructions: u64) -> Result<(Ran, Duration), DirectError> {
        debug_assert_eq!(self.launch.kernel.as_ref(), self.run.kernel);
        let mut output = Vec::new();
        let mut counters = GridCounters::default();
        let mut took = Duration::ZERO;
        for wave in 1.. {
            let operation = OperationId(wave);
            let (start, began) = (processor_time(), Instant::now());
            self.gpu.enqueue(STREAM, operation, Work::Launch(self.launch.clone()))?;
            output.extend(finish(&mut self.gpu, operation, warp_instructions)?);
            took += match self.run.options.helpers {
                0 => processor_time().saturating_sub(start),
                _ => began.elapsed(),
            };
            counters.add(&self.gpu.take_counters(operation).unwrap_or_default());
            if self.left()? == 0 {
                break;
            }
        }
        self.ended()?;
        let mut contents = Vec::new();
        for (address, bytes) in self.buffers {
            let mut buffer = vec![0; bytes];
            self.gpu.peek(address, &mut buffer)?;
            contents.push(buffer);
        }
        Ok((Ran { buffers: contents, counters, output }, took))
    }
}

impl Prepared<'_> {
    /// Asks a contained kernel to end as soon as it looks, before it begins.
    ///
    /// # Errors
    /// [`DeviceError`].
    pub fn ask_to_end(&mut self) -> Result<(), DeviceError> {
        let Some(block) = self.control else { return Ok(()) };
        self.gpu.poke(DeviceAddress(block.0 + control::ABORT), &1_u32.to_le_bytes())
    }

    /// Whether a contained kernel has told of a fault of its own.
    fn ended(&mut self) -> Result<(), DirectError> {
        let Some(block) = self.control else { return Ok(()) };
        let mut fault = [0; 4];
        self.gpu.peek(DeviceAddress(block.0 + control::FAULT), &mut fault)?;
        match forms::reason(u32::from_le_bytes(fault)) {
            Some(reason) => Err(DirectError::Ended { name: self.run.kernel.clone(), reason }),
            None => Ok(()),
        }
    }

    /// CTAs that further waves of tickets must run. Each wave runs some, because all SMs are
    /// allowed.
    fn left(&mut self) -> Result<u64, DirectError> {
        let (Form::Ticket, Some(block)) = (self.run.form, self.control) else { return Ok(0) };
        let mut completed = [0; 8];
        self.gpu.peek(DeviceAddress(block.0 + control::COMPLETED), &mut completed)?;
        let total = u64::try_from(self.run.grid.count()).unwrap_or(u64::MAX);
        Ok(total.saturating_sub(u64::from_le_bytes(completed)))
    }
}

/// Processor time of this thread: what other programs of a busy host take does not count.
#[must_use]
pub fn processor_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec.try_into().unwrap_or(0), time.tv_nsec.try_into().unwrap_or(0))
}

fn room(argument: &Argument) -> u64 {
    match argument {
        Argument::Value(_) => 0,
        Argument::Buffer(contents) => contents.len().max(1) as u64,
    }
}

/// Loads the module and checks that it has the kernel.
fn load(gpu: &mut EmulatedGpu, text: &Arc<str>, kernel: &str) -> Result<ModuleFacts, DirectError> {
    gpu.load_module(MODULE, WINDOW, text.clone())?;
    let mut events = Vec::new();
    gpu.poll(FAR, &mut events);
    for event in events {
        match event {
            Event::ModuleRefused { reason, .. } => return Err(DirectError::Module(reason)),
            Event::ModuleLoaded { facts, .. } => {
                if let Some(refused) = facts.refused.iter().find(|refused| refused.name == kernel) {
                    return Err(DirectError::Refused {
                        name: refused.name.clone(),
                        reason: refused.reason(),
                    });
                }
                if !facts.kernels.iter().any(|known| known.name == kernel) {
                    let known = facts.kernels.into_iter().map(|known| known.name).collect();
                    return Err(DirectError::UnknownKernel { name: kernel.to_owned(), known });
                }
                return Ok(facts);
            }
            _ => {}
        }
    }
    Err(DirectError::Module("the device did not answer".to_owned()))
}

/// Offset and size of each parameter that the original kernel has.
fn original_parameters(
    gpu: &EmulatedGpu,
    run: &Run,
    added: usize,
) -> Result<Vec<(u32, u32)>, DirectError> {
    let program = gpu.program(MODULE, &run.kernel);
    let mut params: Vec<(u32, u32)> = program
        .map_or(Vec::new(), |program| program.params.iter().map(|p| (p.offset, p.bytes)).collect());
    params.truncate(params.len().saturating_sub(added));
    if params.len() != run.arguments.len() {
        return Err(DirectError::ArgumentCount {
            name: run.kernel.clone(),
            wanted: params.len(),
            given: run.arguments.len(),
        });
    }
    Ok(params)
}

/// The workers that fit on all SMs at once, at most one a CTA. The engine chooses the same number
/// while it does not know how long a CTA takes.
fn worker_count(gpu: &EmulatedGpu, run: &Run) -> u32 {
    let spec = gpu.spec();
    let per_sm = gpu.program(MODULE, &run.kernel).map_or(1, |program| {
        let threads = u32::try_from(run.block.count()).unwrap_or(1024);
        Footprint::of(program, threads, run.dynamic_shared, spec).per_sm(spec)
    });
    let all = u64::from(per_sm.max(1)) * u64::from(spec.sms);
    u32::try_from(run.grid.count().min(u128::from(all))).unwrap_or(1).max(1)
}

/// Open gates for all SMs. Where `by_place` holds, the workers of the main grid have their first
/// tasks by place.
#[must_use]
pub fn open_gates(grid: Dim3, task: u32, main_ctas: u32, sms: u16, by_place: bool) -> Gates {
    let mut gates = Gates::new(sms, task);
    if by_place {
        let even = u16::try_from(main_ctas / u32::from(sms.max(1))).unwrap_or(u16::MAX);
        gates = gates.by_place_for(&vec![even; sms.into()], linear(grid));
    }
    gates.permit(&SmSet::range(0, sms), &SmSet::EMPTY);
    gates
}

/// A control block with [`open_gates`], as the engine would write it.
#[must_use]
pub fn control_block(
    (grid, cluster): (Dim3, Dim3),
    task: u32,
    main_ctas: u32,
    sms: u16,
    by_place: bool,
) -> Vec<u8> {
    let gates = open_gates(grid, task, main_ctas, sms, by_place);
    let mut block = vec![0; control::block_bytes(sms) as usize];
    let shape = Shape { grid, cluster, first: 0, end: linear(grid), main_ctas, gates: &gates };
    control::initial(&shape, &mut block);
    block
}

fn linear(grid: Dim3) -> u64 {
    u64::try_from(grid.count()).unwrap_or(u64::MAX)
}

fn finish(
    gpu: &mut EmulatedGpu,
    grid: OperationId,
    warp_instructions: u64,
) -> Result<Vec<u8>, DirectError> {
    let mut output = Vec::new();
    let mut events = Vec::new();
    loop {
        let activity = gpu.poll(Horizon { until: None, warp_instructions }, &mut events);
        let busy = events.is_empty() && activity != Activity::Idle;
        for event in events.drain(..) {
            match event {
                Event::Output { text, .. } => output.extend(text),
                Event::Done { operation, outcome, .. } if operation == grid => {
                    return match outcome {
                        Outcome::Fault(fault) => Err(DirectError::Fault(fault)),
                        Outcome::Complete | Outcome::Cancelled => Ok(output),
                    };
                }
                _ => {}
            }
        }
        if activity == Activity::Idle {
            return Ok(output);
        }
        if busy {
            return Err(DirectError::TooLong { warp_instructions });
        }
    }
}
