//! The contract, on a GPU.

use crate::cache::Cache;
use crate::clock::Clock;
use crate::driver::{Attribute, Context, Driver, Failure, Monitor, Place, Stream};
use crate::faults::{self, Suspect};
use crate::green::{Groups, MOST_CONTEXTS};
use crate::loader::{Loaded, Loader, Outcome, Variables};
use crate::news::News;
use crate::options::{Guarding, Options, SignalPath};
use crate::signals::{CopySignals, MappedSignals, Signals};
use crate::streams::{Ended, Rest, Streams};
use crate::tasks::Task;
use crate::windows::Windows;
use crate::zeros::{BY_COPIES, Zeros};
use crate::{OpenError, calibration};
use partita_device::{
    Activity, AddressRange, Confinement, Device, DeviceError, Event, Guards, Horizon, HostSpan, ModuleFacts,
    VariableFacts, Work,
};
use partita_model::texture::{ArrayShape, TextureSpec};
use partita_model::{
    Bytes, Calibration, ComputeCapability, DeviceAddress, DeviceFacts, DeviceKind, MemoryAccess, ModuleId,
    Nanos, OperationId, SmSet, StreamId, Timekeeping, WindowId,
};
use partita_ptx::settle::Part;
use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How long the owner looks by itself after something has happened: what a program waits for often comes soon, and
/// sleeping and waking cost tens of microseconds.
const ATTENTIVE: Duration = Duration::from_micros(50);

/// Memory that the driver keeps for itself while kernels are loaded and launched (stacks, printf, code).
const HEADROOM: u64 = 512 << 20;

/// Cells are large enough for windows of that, and for windows of all memory.
const LEAST_WINDOW_BYTES: u64 = 64 << 30;

/// Where a module's variables lie.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Placed {
    /// In the window.
    block: AddressRange,
    /// Where its managed variables are; 0 where it has none.
    managed: u64,
    /// Bytes of constants, from the block's beginning on.
    constants: u64,
    /// Where the driver has these; 0 where no code reads them.
    bank: u64,
}

/// Of the constants of modules, those in a range: where the driver has them, where they are in the window, and how many bytes.
pub(crate) fn constants_in(placed: &BTreeMap<ModuleId, Placed>, range: AddressRange) -> Vec<(u64, u64, u64)> {
    let overlap = |placed: &Placed| {
        let block = placed.block.start.0;
        let first = range.start.0.max(block);
        let end = range.end().min(block + placed.constants);
        (placed.bank != 0 && first < end).then(|| (placed.bank + (first - block), first, end - first))
    };
    placed.values().filter_map(overlap).collect()
}

fn refused(failure: Failure) -> DeviceError {
    DeviceError::Unsupported(failure.to_string())
}

/// A GPU behind NVIDIA's driver.
pub struct CudaDevice {
    facts: DeviceFacts,
    calibration: Calibration,
    identity: String,
    news: Arc<News>,
    clock: Clock,
    /// For marks of time and zeros.
    upkeep: Stream,
    signals: Box<dyn Signals>,
    windows: Windows,
    streams: Streams,
    loader: Loader,
    /// Modules and the windows that they are for.
    loading: BTreeMap<ModuleId, WindowId>,
    modules: BTreeMap<ModuleId, Loaded>,
    window_of_module: BTreeMap<ModuleId, WindowId>,
    /// Where variables of modules lie.
    placed: BTreeMap<ModuleId, Placed>,
    guards: Guards,
    /// Whether kernels reach what is mapped in this process.
    reaches_host: bool,
    groups: Groups,
    /// Sets of SMs whose contexts are being made.
    confining: BTreeSet<SmSet>,
    zeros: Zeros,
    last_event: Instant,
    /// Ended without the device having been asked.
    ended: Vec<Ended>,
    /// The context's end, which the next poll tells.
    failure: Option<Failure>,
    lost: bool,
    monitor: Option<Monitor>,
    /// What the GPU had used when it was opened.
    millijoules_before: Option<u64>,
}

impl CudaDevice {
    /// Opens a GPU.
    ///
    /// # Errors
    /// [`OpenError`].
    pub fn open(options: &Options) -> Result<Self, OpenError> {
        let driver = Driver::load(options.library.as_deref())?;
        let count = driver.device_count()?;
        let ordinal = options.ordinal.unwrap_or(0);
        if ordinal >= count {
            return Err(OpenError::NoDevice { ordinal, count });
        }
        let context = Context::open(driver, ordinal)?;
        let facts = facts(&context, ordinal)?;
        let capability = facts.compute_capability;
        if (capability.major, capability.minor) < (7, 5) {
            return Err(OpenError::TooOld { name: facts.name, capability });
        }
        if !context.loads_eagerly()? {
            return Err(OpenError::LazyLoading);
        }
        let news = News::new()?;
        let upkeep = Stream::new(&context, context.greatest_priority()?)?;
        let clock = Clock::start(&context, &upkeep)?;
        let signals: Box<dyn Signals> = match options.signals {
            SignalPath::Copy => Box::new(CopySignals::new(&context)?),
            SignalPath::Mapped => Box::new(MappedSignals::new(&context)?),
        };
        let version = context.driver().version();
        let identity = format!(
            "{}, compute capability {capability}, driver CUDA {version}, {} kHz, memory {} kHz",
            facts.name, facts.sm_clock_khz, facts.memory_clock_khz
        );
        let cache = options.cache.clone().map(|folder| Cache::new(folder, identity.clone()));
        let driver = context.driver();
        let waits = driver.device_attribute(ordinal, Attribute::CanUse64BitStreamMemOps)? != 0;
        let reaches_host = driver.device_attribute(ordinal, Attribute::PageableMemoryAccess)? != 0;
        let monitor = driver.device_pci_bus_id(ordinal).ok().and_then(|id| {
            let complain = |error| tracing::info!(%error, "no NVML: neither power nor utilisation is told");
            Monitor::open(options.nvml.as_deref(), &id).map_err(complain).ok()
        });
        let cell_bits = partita_ptx::fence::cell_bits(facts.memory.0.max(LEAST_WINDOW_BYTES));
        let guards = match options.guards {
            Guarding::On => Guards { cell_bits: Some(cell_bits), ends: true },
            Guarding::Off => Guards::default(),
        };
        let complain = |error| tracing::warn!(%error, "machine code is kept to no SMs: it runs alone");
        let groups = Groups::measure(&context, cache.as_ref()).map_err(complain).unwrap_or_default();
        let millijoules_before = monitor.as_ref().and_then(Monitor::millijoules);
        Ok(CudaDevice {
            windows: Windows::new(&context, cell_bits, options.part)?,
            zeros: Zeros::new(&context)?,
            streams: Streams::new(&context, &news, waits)?,
            loader: Loader::start(&context, cache, &news)?,
            calibration: calibration::from_facts(&facts),
            facts,
            identity,
            news,
            clock,
            upkeep,
            signals,
            loading: BTreeMap::new(),
            modules: BTreeMap::new(),
            window_of_module: BTreeMap::new(),
            placed: BTreeMap::new(),
            groups,
            confining: BTreeSet::new(),
            guards,
            reaches_host,
            last_event: Instant::now(),
            ended: Vec::new(),
            failure: None,
            lost: false,
            monitor,
            millijoules_before,
        })
    }

    fn place_of(&self, address: DeviceAddress, bytes: u64) -> Result<Place, DeviceError> {
        self.windows.place_of(address, bytes).ok_or(DeviceError::BadRange { address, bytes })
    }

    fn allocate_at(
        &mut self,
        window: WindowId,
        range: AddressRange,
        place: Place,
    ) -> Result<(), DeviceError> {
        let pieces = self.windows.allocate(window, range, place, &self.zeros)?;
        let zeroed = self.zero(pieces.clone(), place);
        if zeroed.is_err() {
            self.windows.abandon(window, range.start, &pieces)?;
        }
        zeroed
    }

    fn zero(&mut self, pieces: Vec<(u64, u64)>, place: Place) -> Result<(), DeviceError> {
        for (start, bytes) in pieces {
            self.zeros.zero(&self.upkeep, place, start, bytes).map_err(refused)?;
        }
        Ok(())
    }

    /// Puts a module's variables into its window, and tells its code where they are. Launches come behind.
    fn place_variables(
        &mut self,
        window: WindowId,
        variables: &Variables,
    ) -> Result<(Vec<VariableFacts>, Option<Placed>), DeviceError> {
        let layout = &variables.layout;
        if layout.header.is_none() {
            return Ok((Vec::new(), None));
        }
        let managed = self.place_managed(window, layout.managed_bytes, layout.alignment)?;
        let result = self.place_block(window, variables, managed);
        if result.is_err()
            && let Some(host) = self.windows.host_of(window)
        {
            host.free(DeviceAddress(managed));
        }
        let placed = result?;
        let facts = layout.variables.iter().map(|variable| {
            let base = if variable.part == Part::Managed { managed } else { placed.block.start.0 };
            VariableFacts {
                name: variable.name.clone(),
                address: DeviceAddress(base + variable.offset),
                size: Bytes(variable.bytes),
            }
        });
        Ok((facts.collect(), Some(placed)))
    }

    /// Makes room for variables that are declared managed; 0 where there are none.
    fn place_managed(&mut self, window: WindowId, bytes: u64, alignment: u64) -> Result<u64, DeviceError> {
        if bytes == 0 {
            return Ok(0);
        }
        let host = self.windows.host_of(window).ok_or_else(|| {
            DeviceError::Unsupported(
                "managed variables without memory that the host and the device share".to_owned(),
            )
        })?;
        host.allocate(bytes, alignment).map(|start| start.0)
    }

    fn place_block(
        &mut self,
        window: WindowId,
        variables: &Variables,
        managed: u64,
    ) -> Result<Placed, DeviceError> {
        let layout = &variables.layout;
        let (block, pieces) =
            self.windows.allocate_variables(window, layout.bytes, layout.alignment, &self.zeros)?;
        let placed = Placed { block, managed, constants: layout.constant_bytes, bank: variables.constants };
        let zeroed = self.zero(pieces.clone(), Place::Device);
        if let Err(error) = zeroed {
            self.windows.abandon(window, block.start, &pieces)?;
            return Err(error);
        }
        if let Err(error) = self.fill_variables(variables, &placed) {
            self.windows.free(block.start)?;
            return Err(error);
        }
        Ok(placed)
    }

    fn fill_variables(&mut self, variables: &Variables, placed: &Placed) -> Result<(), DeviceError> {
        let start = placed.block.start.0;
        // What was there before may have been another module's. Copies find room whatever runs; pokes come behind.
        let end = start + variables.layout.bytes.next_multiple_of(4);
        let pieces = (start..end).step_by(BY_COPIES).map(|at| (at, (end - at).min(BY_COPIES as u64)));
        self.zero(pieces.collect(), Place::Device)?;
        let mut constants = vec![0; usize::try_from(placed.constants).unwrap_or(0)];
        let contents = variables.layout.contents(start, placed.managed);
        for (part, at, contents) in contents.iter().chain(&variables.functions) {
            if *part != Part::Constant {
                let base = if *part == Part::Managed { placed.managed } else { start };
                self.poke(DeviceAddress(base + at), contents)?;
                continue;
            }
            let at = usize::try_from(*at).unwrap_or(usize::MAX);
            let into = at.checked_add(contents.len()).and_then(|end| constants.get_mut(at..end));
            if let Some(into) = into {
                into.copy_from_slice(contents);
            }
        }
        if !constants.is_empty() {
            self.poke(placed.block.start, &constants)?;
            if placed.bank != 0 {
                self.signals.poke(Place::Device, placed.bank, &constants).map_err(refused)?;
            }
        }
        if variables.header != 0 {
            let header = [start.to_le_bytes(), placed.managed.to_le_bytes()].concat();
            self.signals.poke(Place::Device, variables.header, &header).map_err(refused)?;
        }
        Ok(())
    }

    /// Constants of modules in a range that is written: where the driver has them, where they are in the window, and how many
    /// bytes.
    fn constants_in(&self, range: AddressRange) -> Vec<(u64, u64, u64)> {
        constants_in(&self.placed, range)
    }

    /// Where a range lies; peeks and pokes that follow find it zero where it is new.
    fn reach(&mut self, address: DeviceAddress, bytes: u64) -> Result<Place, DeviceError> {
        let place = self.place_of(address, bytes)?;
        if let Some(mark) = self.zeros.pending(address.0, bytes) {
            self.signals.wait_for(mark).map_err(refused)?;
        }
        Ok(place)
    }

    fn module_loaded(
        &mut self,
        module: ModuleId,
        loaded: Loaded,
        facts: ModuleFacts,
        events: &mut Vec<Event>,
    ) {
        let Some(window) = self.loading.remove(&module) else { return self.loader.unload(loaded) };
        match self.place_variables(window, &loaded.variables) {
            Ok((variables, placed)) => {
                self.modules.insert(module, loaded);
                self.window_of_module.insert(module, window);
                if let Some(placed) = placed {
                    self.placed.insert(module, placed);
                }
                events.push(Event::ModuleLoaded { module, facts: ModuleFacts { variables, ..facts } });
            }
            Err(error) => {
                self.loader.unload(loaded);
                events.push(Event::ModuleRefused { module, reason: format!("its variables: {error}") });
            }
        }
    }

    fn begin_loading(&mut self, module: ModuleId, window: WindowId) -> Result<(), DeviceError> {
        if !self.windows.knows(window) {
            return Err(DeviceError::BadId(window.to_string()));
        }
        if self.modules.contains_key(&module) || self.loading.contains_key(&module) {
            return Err(DeviceError::BadId(module.to_string()));
        }
        self.loading.insert(module, window);
        Ok(())
    }

    fn advance(&mut self, events: &mut Vec<Event>) -> Result<(), Failure> {
        for outcome in self.loader.take() {
            match outcome {
                Outcome::Load { module, result } => match *result {
                    Ok((loaded, facts)) => self.module_loaded(module, loaded, facts, events),
                    Err(reason) => {
                        self.loading.remove(&module);
                        events.push(Event::ModuleRefused { module, reason });
                    }
                },
                Outcome::Confine { sms, result } => {
                    self.confining.remove(&sms);
                    let result = result.map_err(|failure| failure.to_string()).and_then(|green| {
                        self.streams.add_context(sms, green, &self.news).map_err(|error| error.to_string())
                    });
                    events.push(Event::Confined { sms, result });
                }
            }
        }
        self.clock.tick(&self.upkeep)?;
        let mut ended = std::mem::take(&mut self.ended);
        self.streams.take_ended(&self.clock, &mut ended)?;
        self.zeros.tick()?;
        match self.submit(&mut ended) {
            // Memory of the driver's may be short for a moment: what was not submitted is tried again.
            Err(failure) if !failure.ends_the_device() => tracing::debug!(%failure, "not submitted"),
            result => result?,
        }
        ended.sort_by_key(|ended| ended.time);
        events.extend(ended.into_iter().map(|Ended { operation, time, outcome }| Event::Done {
            operation,
            time,
            outcome,
        }));
        Ok(())
    }

    fn submit(&mut self, ended: &mut Vec<Ended>) -> Result<(), Failure> {
        let windows = &self.windows;
        let mut rest = Rest {
            modules: &self.modules,
            placed: &self.placed,
            signals: self.signals.as_mut(),
            zeroed: self.zeros.barrier(),
            now: self.clock.now(),
            place_of: &|address| windows.place_of(DeviceAddress(address), 8),
        };
        self.streams.submit(&mut rest, ended)
    }

    /// The context is gone.
    fn lose(&mut self, failure: &Failure, events: &mut Vec<Event>) {
        if std::mem::replace(&mut self.lost, true) {
            return;
        }
        let suspects: Vec<Suspect> = self
            .streams
            .suspects()
            .into_iter()
            .map(|(operation, module, kernel)| Suspect {
                operation,
                module,
                window: self.window_of_module.get(&module).copied(),
                kernel,
            })
            .collect();
        events.extend(faults::end(failure, &suspects, self.clock.now()));
    }

    /// Work as streams carry it out: what is in host memory, and what on the device.
    fn task(&self, work: Work) -> Result<Task, DeviceError> {
        let host = |address, bytes| self.windows.host_at(address, bytes);
        let copy = |to: &HostSpan, from: &HostSpan, backwards| Task::HostCopy {
            to: to.clone(),
            from: from.clone(),
            backwards,
        };
        Ok(match &work {
            Work::CopyToDevice { to, from } => match host(*to, from.bytes()) {
                Some(to) => copy(&to, from, false),
                None => Task::Work(work),
            },
            Work::CopyToHost { to, from } => match host(*from, to.bytes()) {
                Some(from) => copy(to, &from, false),
                None => Task::Work(work),
            },
            Work::CopyOnDevice { to, from, bytes } => match (host(*to, *bytes), host(*from, *bytes)) {
                (Some(there), Some(here)) => copy(&there, &here, to.0 > from.0),
                (Some(there), None) => Task::Work(Work::CopyToHost { to: there, from: *from }),
                (None, Some(here)) => Task::Work(Work::CopyToDevice { to: *to, from: here }),
                (None, None) => Task::Work(work),
            },
            Work::Fill { to, value, width, count } => {
                let bytes = u64::from(*width).saturating_mul(*count);
                match host(*to, bytes) {
                    Some(to) => Task::HostFill { to, value: *value, width: *width },
                    None => Task::Work(work),
                }
            }
            Work::WaitValue { address, word } => match host(*address, word.width.into()) {
                Some(at) => Task::HostWait { at, word: *word },
                None => Task::Work(work),
            },
            _ => Task::Work(work),
        })
    }

    fn check(&self, work: &Work) -> Result<(), DeviceError> {
        let live = |address: DeviceAddress, bytes: u64| self.place_of(address, bytes).map(|_| ());
        match work {
            Work::LaunchOn { sms, .. } if !self.streams.has_context(sms) => {
                Err(DeviceError::BadLaunch(format!("SMs {sms} are not ready for machine code")))
            }
            Work::Launch(launch) | Work::LaunchOn { launch, .. } => {
                let loaded = self.modules.get(&launch.module);
                let loaded = loaded.ok_or_else(|| DeviceError::BadId(launch.module.to_string()))?;
                let kernel = loaded.kernels.get(&launch.kernel);
                let kernel =
                    kernel.ok_or_else(|| DeviceError::BadId(format!("kernel `{}`", launch.kernel)))?;
                let bad =
                    |what: String| Err(DeviceError::BadLaunch(format!("kernel `{}`: {what}", launch.kernel)));
                if launch.params.len() as u64 != kernel.param_bytes {
                    return bad(format!(
                        "{} bytes of parameters where it has {}",
                        launch.params.len(),
                        kernel.param_bytes
                    ));
                }
                let threads = launch.block.count();
                if threads == 0 || launch.grid.count() == 0 {
                    return bad("an empty grid or block".to_owned());
                }
                if threads > kernel.max_threads.into() {
                    return bad(format!("{threads} threads a CTA where it can have {}", kernel.max_threads));
                }
                if u64::from(launch.dynamic_shared) > self.facts.shared_per_cta_optin.0 {
                    return bad(format!("{} bytes of dynamic shared memory", launch.dynamic_shared));
                }
                Ok(())
            }
            Work::CopyToDevice { to, from } => live(*to, from.bytes()),
            Work::CopyToHost { to, from } => live(*from, to.bytes()),
            Work::CopyOnDevice { to, from, bytes } => live(*to, *bytes).and_then(|()| live(*from, *bytes)),
            Work::Fill { to, width, count, .. } => live(*to, u64::from(*width).saturating_mul(*count)),
            Work::WaitValue { address, word } => live(*address, u64::from(word.width)),
            Work::Marker | Work::Wait { .. } => Ok(()),
        }
    }
}

impl Device for CudaDevice {
    fn facts(&self) -> &DeviceFacts {
        &self.facts
    }

    fn calibration(&self) -> Calibration {
        self.calibration
    }

    fn identity(&self) -> String {
        self.identity.clone()
    }

    fn nanojoules(&self) -> Option<u64> {
        let now = self.monitor.as_ref()?.millijoules()?;
        Some(now.saturating_sub(self.millijoules_before?).saturating_mul(1_000_000))
    }

    fn guards(&self) -> Guards {
        self.guards
    }

    fn now(&self) -> Nanos {
        self.clock.now()
    }

    fn news(&self) -> Option<BorrowedFd<'_>> {
        Some(self.news.descriptor())
    }

    fn loading_waits_for_grids(&self) -> bool {
        true
    }

    fn reserve(&mut self, window: WindowId, bytes: u64) -> Result<DeviceAddress, DeviceError> {
        let base = self.windows.reserve(window, bytes)?;
        let scratch = self.windows.scratch(window).into_iter().collect();
        match self.zero(scratch, Place::Device) {
            Ok(()) => Ok(base),
            Err(error) => {
                self.release(window)?;
                Err(error)
            }
        }
    }

    fn release(&mut self, window: WindowId) -> Result<(), DeviceError> {
        // What nobody waits for any more may still be filled with zeros.
        let remains = self.windows.release(window)?.after(self.zeros.barrier().map(|(_, mark)| mark));
        self.loader.give_back(remains);
        Ok(())
    }

    fn allocate(&mut self, window: WindowId, range: AddressRange) -> Result<(), DeviceError> {
        self.allocate_at(window, range, Place::Device)
    }

    fn allocate_signals(&mut self, window: WindowId, range: AddressRange) -> Result<(), DeviceError> {
        self.allocate_at(window, range, self.signals.place())
    }

    fn free(&mut self, address: DeviceAddress) -> Result<(), DeviceError> {
        if let Some(remains) = self.windows.free(address)? {
            self.loader.give_back(remains.after(self.zeros.barrier().map(|(_, mark)| mark)));
        }
        Ok(())
    }

    /// By a copy inside the device, for which streams wait and nobody else: pages may hold several allocations, and unmapping might
    /// wait for grids.
    fn relocate(&mut self, from: DeviceAddress, to: DeviceAddress) -> Result<(), DeviceError> {
        let bad_range = DeviceError::BadRange { address: from, bytes: 0 };
        if self.windows.has_own(from) {
            return Err(DeviceError::Unsupported("moving memory that is reached elsewhere".to_owned()));
        }
        let bytes = self.windows.size_of(from).ok_or_else(|| bad_range.clone())?;
        let window = self.windows.window_of(from.0).ok_or(bad_range)?;
        let range = AddressRange { start: to, bytes };
        self.allocate_at(window, range, Place::Device)?;
        if let Err(failure) = self.zeros.move_there(&self.upkeep, to.0, from.0, bytes) {
            self.windows.free(to)?;
            return Err(refused(failure));
        }
        self.windows.free(from).map(|_| ())
    }

    fn alias(&mut self, home: DeviceAddress, range: AddressRange) -> Result<(), DeviceError> {
        self.windows.room_for_alias(home, range)?;
        if let Some(moved) = self.windows.make_own(home, &self.zeros)? {
            let (start, bytes) = moved.rest;
            let filled =
                self.zeros.move_there(&self.upkeep, moved.to, moved.from, moved.bytes).and_then(|()| {
                    if bytes > 0 {
                        self.zeros.zero(&self.upkeep, Place::Device, start, bytes)
                    } else {
                        Ok(())
                    }
                });
            if let Err(failure) = filled {
                if let Some(remains) = self.windows.unmake_own(home) {
                    self.loader.give_back(remains.after(self.zeros.barrier().map(|(_, mark)| mark)));
                }
                return Err(refused(failure));
            }
        }
        let view = self.windows.alias(home, range, &self.zeros)?;
        self.zeros.share(view, range.start.0, range.bytes);
        Ok(())
    }

    fn protect(&mut self, address: DeviceAddress, access: MemoryAccess) -> Result<(), DeviceError> {
        self.windows.protect(address, access)
    }

    fn map_host(
        &mut self,
        window: WindowId,
        start: DeviceAddress,
        memory: HostSpan,
        variables: u64,
    ) -> Result<(), DeviceError> {
        if !self.reaches_host {
            return Err(DeviceError::Unsupported(
                "memory of the host for kernels: the GPU does not use the host's page tables (NVIDIA's open kernel \
                 modules on Linux 6.1.24 or newer)"
                    .to_owned(),
            ));
        }
        self.windows.map_host(window, start, memory, variables)
    }

    fn load_module(&mut self, module: ModuleId, window: WindowId, ptx: Arc<str>) -> Result<(), DeviceError> {
        self.begin_loading(module, window)?;
        self.loader.load(module, ptx);
        Ok(())
    }

    fn runs_machine_code(&self) -> bool {
        true
    }

    fn load_code(&mut self, module: ModuleId, window: WindowId, image: Arc<[u8]>) -> Result<(), DeviceError> {
        self.begin_loading(module, window)?;
        self.loader.load_code(module, image);
        Ok(())
    }

    fn sm_groups(&self) -> &[SmSet] {
        self.groups.sms()
    }

    fn confine(&mut self, sms: SmSet) -> Result<Confinement, DeviceError> {
        let Some(groups) = self.groups.of(&sms) else {
            return Err(DeviceError::Unsupported(format!("SMs {sms} are no whole groups")));
        };
        if self.streams.has_context(&sms) {
            return Ok(Confinement::Ready);
        }
        if self.confining.contains(&sms) {
            return Ok(Confinement::Pending);
        }
        if self.streams.contexts() + self.confining.len() >= MOST_CONTEXTS {
            match self.streams.take_idle_context() {
                Some(green) => self.loader.end_context(green),
                None => {
                    return Err(DeviceError::Unsupported(format!(
                        "more than {MOST_CONTEXTS} green contexts"
                    )));
                }
            }
        }
        self.confining.insert(sms);
        self.loader.confine(sms, groups);
        Ok(Confinement::Pending)
    }

    fn unload_module(&mut self, module: ModuleId) -> Result<(), DeviceError> {
        let loaded = self.modules.remove(&module).ok_or_else(|| DeviceError::BadId(module.to_string()))?;
        let window = self.window_of_module.remove(&module);
        if let Some(placed) = self.placed.remove(&module) {
            // The window may have been released before, and the variables with it.
            let _ = self.windows.free(placed.block.start);
            if let Some(host) = window.and_then(|window| self.windows.host_of(window)) {
                host.free(DeviceAddress(placed.managed));
            }
        }
        self.loader.unload(loaded);
        Ok(())
    }

    fn create_stream(&mut self, stream: StreamId) -> Result<(), DeviceError> {
        self.streams.create(stream)
    }

    fn destroy_stream(&mut self, stream: StreamId) -> Result<(), DeviceError> {
        self.streams.destroy(stream)
    }

    fn enqueue(&mut self, stream: StreamId, operation: OperationId, work: Work) -> Result<(), DeviceError> {
        let task = self.task(work)?;
        if let Task::Work(work) = &task {
            self.check(work)?;
        }
        self.streams.enqueue(stream, operation, task)?;
        if !self.lost {
            let mut ended = std::mem::take(&mut self.ended);
            let result = self.submit(&mut ended);
            self.ended = ended;
            match result {
                Ok(()) => {}
                Err(failure) if failure.ends_the_device() => self.failure = Some(failure),
                // It is tried again at the next poll.
                Err(failure) => tracing::debug!(%failure, "not submitted"),
            }
        }
        Ok(())
    }

    fn cancel(&mut self, operation: OperationId) -> Result<(), DeviceError> {
        if self.streams.cancel(operation) || !self.streams.is_known(operation) {
            return Ok(());
        }
        Err(DeviceError::Unsupported("ending what is on the GPU already".to_owned()))
    }

    fn peek(&mut self, address: DeviceAddress, into: &mut [u8]) -> Result<(), DeviceError> {
        if let Some(memory) = self.windows.host_at(address, into.len() as u64) {
            memory.read(0, into);
            return Ok(());
        }
        let place = self.reach(address, into.len() as u64)?;
        self.signals.peek(place, address.0, into).map_err(refused)
    }

    fn poke(&mut self, address: DeviceAddress, bytes: &[u8]) -> Result<(), DeviceError> {
        if let Some(memory) = self.windows.host_at(address, bytes.len() as u64) {
            memory.write(0, bytes);
            return Ok(());
        }
        let place = self.reach(address, bytes.len() as u64)?;
        self.signals.poke(place, address.0, bytes).map_err(refused)?;
        for (bank, from, length) in
            self.constants_in(AddressRange { start: address, bytes: bytes.len() as u64 })
        {
            let at = usize::try_from(from - address.0).unwrap_or(0);
            let part = at..at + usize::try_from(length).unwrap_or(0);
            self.signals.poke(Place::Device, bank, &bytes[part]).map_err(refused)?;
        }
        Ok(())
    }

    fn create_array(&mut self, _window: WindowId, _shape: &ArrayShape) -> Result<DeviceAddress, DeviceError> {
        Err(DeviceError::Unsupported("arrays".to_owned()))
    }

    fn destroy_array(&mut self, array: DeviceAddress) -> Result<(), DeviceError> {
        Err(DeviceError::BadRange { address: array, bytes: 0 })
    }

    fn create_texture(&mut self, _window: WindowId, _spec: &TextureSpec) -> Result<u64, DeviceError> {
        Err(DeviceError::Unsupported("texture and surface objects".to_owned()))
    }

    fn destroy_texture(&mut self, _window: WindowId, texture: u64) -> Result<(), DeviceError> {
        Err(DeviceError::BadId(format!("texture {texture}")))
    }

    fn trace_residency(&mut self, on: bool) -> Result<(), DeviceError> {
        if on { Err(DeviceError::Unsupported("telling where each CTA is".to_owned())) } else { Ok(()) }
    }

    fn poll(&mut self, _horizon: Horizon, events: &mut Vec<Event>) -> Activity {
        if self.lost {
            return Activity::Idle;
        }
        self.news.hush();
        let before = events.len();
        let failed = self.failure.take().map_or(Ok(()), Err);
        if let Err(failure) = failed.and_then(|()| self.advance(events)) {
            self.lose(&failure, events);
            return Activity::Busy;
        }
        if events.len() > before {
            self.last_event = Instant::now();
            return Activity::Busy;
        }
        if self.streams.device_is_idle() {
            self.loader.idle();
        }
        if self.streams.is_idle() && !self.loader.is_loading() {
            return Activity::Idle;
        }
        let looks = self.streams.looks_for_values();
        if self.streams.looks_at_host() && !looks && self.streams.device_is_idle() {
            return Activity::Watching;
        }
        if self.last_event.elapsed() < ATTENTIVE || looks || self.streams.looks_at_host() {
            return Activity::Busy;
        }
        self.streams.arm();
        Activity::Waiting
    }
}

fn facts(context: &Context, ordinal: u32) -> Result<DeviceFacts, Failure> {
    let get = |attribute| context.driver().device_attribute(ordinal, attribute);
    let small = |value: u32| u8::try_from(value).unwrap_or(u8::MAX);
    let (free, _) = context.memory()?;
    Ok(DeviceFacts {
        kind: DeviceKind::Cuda,
        timekeeping: Timekeeping::Real,
        name: context.driver().device_name(ordinal)?,
        uuid: context.uuid()?,
        compute_capability: ComputeCapability {
            major: small(get(Attribute::ComputeCapabilityMajor)?),
            minor: small(get(Attribute::ComputeCapabilityMinor)?),
        },
        sm_count: u16::try_from(get(Attribute::MultiprocessorCount)?).unwrap_or(u16::MAX),
        sm_clock_khz: get(Attribute::ClockRate)?,
        memory_clock_khz: get(Attribute::MemoryClockRate)?,
        memory_bus_bits: get(Attribute::GlobalMemoryBusWidth)?,
        memory: Bytes(free.saturating_sub(HEADROOM.min(free / 16))),
        llc: Bytes(get(Attribute::L2CacheSize)?.into()),
        threads_per_sm: get(Attribute::MaxThreadsPerMultiprocessor)?,
        ctas_per_sm: get(Attribute::MaxBlocksPerMultiprocessor)?,
        registers_per_sm: get(Attribute::MaxRegistersPerMultiprocessor)?,
        shared_per_sm: Bytes(get(Attribute::MaxSharedMemoryPerMultiprocessor)?.into()),
        shared_per_cta: Bytes(get(Attribute::MaxSharedMemoryPerBlock)?.into()),
        shared_per_cta_optin: Bytes(get(Attribute::MaxSharedMemoryPerBlockOptin)?.into()),
        threads_per_cta: get(Attribute::MaxThreadsPerBlock)?,
    })
}
