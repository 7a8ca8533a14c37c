//! A GPU and its contents. The contract's methods are in [`contract`].

mod checks;
mod contract;
mod lending;
mod output;
mod phases;
mod variables;

pub(crate) use variables::{Placed, constants_in};

use crate::arrays::{Arrays, Ended as EndedArray};
use crate::cache::Cache;
use crate::clock::Clock;
use crate::code::Loaded;
use crate::driver::{Attribute, Context, Driver, Failure, Monitor, Place, Stream};
use crate::faults::{self, Suspect};
use crate::green::Groups;
use crate::loader::{Loader, Outcome};
use crate::locked::Locked;
use crate::news::News;
use crate::options::{Guarding, Options, SignalPath};
use crate::self_test::{Habits, inquiry};
use crate::signals::Signals;
use crate::streams::{Ended, Rest, Streams};
use crate::traffic::Traffic;
use crate::windows::{Becomes, Windows};
use crate::zeros::Zeros;
use crate::{OpenError, calibration};
use output::Printing;
use partita_device::{AddressRange, DeviceError, Event, Guards, ModuleFacts, Phase};
use partita_model::{
    Bytes, Calibration, ComputeCapability, DeviceAddress, DeviceFacts, DeviceKind, ModuleId, SmSet,
    StreamId, Timekeeping, WindowId,
};
use phases::Phases;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How long the owner polls after an event before it sleeps. The next event often follows soon, and
/// sleeping and waking cost tens of microseconds.
const ATTENTIVE: Duration = Duration::from_micros(50);
/// Time without an event after which values of device memory are looked at now and then only. The
/// end of a grid still wakes the owner.
const PATIENT: Duration = Duration::from_millis(1);

/// Memory, in bytes, that the driver needs for loading and launching kernels (stacks, printf,
/// code).
const HEADROOM: u64 = 512 << 20;

/// Address cells are large enough for windows of this size and for windows of all memory.
const LEAST_WINDOW_BYTES: u64 = 64 << 30;

pub(crate) fn refused(failure: Failure) -> DeviceError {
    DeviceError::Unsupported(failure.to_string())
}

/// A GPU behind NVIDIA's driver.
pub struct CudaDevice {
    driver: Arc<Driver>,
    facts: DeviceFacts,
    calibration: Calibration,
    identity: String,
    habits: Habits,
    /// Whether long launches stay while the device drains.
    launches_stay: bool,
    news: Arc<News>,
    clock: Clock,
    /// The stream for time marks and zeroing.
    upkeep: Stream,
    signals: Signals,
    windows: Windows,
    arrays: Arrays,
    locked: Locked,
    streams: Streams,
    loader: Loader,
    phases: Phases,
    /// Modules that are being loaded, and their windows.
    loading: BTreeMap<ModuleId, WindowId>,
    modules: BTreeMap<ModuleId, Loaded>,
    window_of_module: BTreeMap<ModuleId, WindowId>,
    /// The addresses of modules' variables.
    placed: BTreeMap<ModuleId, Placed>,
    /// Modules whose kernels print.
    printing: BTreeMap<ModuleId, Printing>,
    guards: Guards,
    /// Ranges for which scratch memory makes room in the next phase.
    wanted: Vec<(WindowId, (AddressRange, Becomes))>,
    /// How kernels reach memory that is mapped in this process.
    host_access: HostAccess,
    /// Windows whose host memory is not page-locked, and why. None of their kernels may run.
    without_host: BTreeMap<WindowId, Failure>,
    groups: Groups,
    /// Sets of SMs whose contexts are being created.
    confining: BTreeSet<SmSet>,
    zeros: Zeros,
    last_event: Instant,
    /// Operations that ended before they reached the device.
    ended: Vec<Ended>,
    /// The context's failure, which the next poll reports.
    failure: Option<Failure>,
    lost: bool,
    monitor: Option<Monitor>,
    /// The LLC's counters, on GPUs that have them.
    traffic: Option<Traffic>,
    /// The GPU's energy counter at opening, in millijoules.
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
        // Another process cannot use the GPU where this one has it for itself.
        let habits = inquiry::habits(options, &target(&driver, ordinal)?);
        let context = Context::open(driver, ordinal)?;
        context.set_connections(habits.connections);
        let mut facts = facts(&context, ordinal)?;
        let capability = facts.compute_capability;
        if (capability.major, capability.minor) < (7, 5) {
            return Err(OpenError::TooOld { name: facts.name, capability });
        }
        if !context.loads_eagerly()? {
            return Err(OpenError::LazyLoading);
        }
        let news = News::new()?;
        let upkeep = Stream::new(&context, context.greatest_priority()?)?;
        let clock = Clock::start(&context, &upkeep, options.clock)?;
        let place = match habits.signals {
            SignalPath::Copy => Place::Device,
            SignalPath::Mapped => Place::Host,
        };
        let signals = Signals::new(&context, place)?;
        let version = context.driver().version();
        let identity = format!(
            "{}, compute capability {capability}, driver CUDA {version}, {} kHz, memory {} kHz",
            facts.name, facts.sm_clock_khz, facts.memory_clock_khz
        );
        let cache = options.cache.clone().map(|folder| Cache::new(folder, identity.clone()));
        facts.absent_sms =
            crate::numbers::absent(&context, &upkeep, cache.as_ref(), facts.sm_count)?;
        let driver = context.driver();
        let host_access = HostAccess::of(driver, ordinal)?;
        let defers = driver.device_attribute(ordinal, Attribute::DeferredMappingCudaArray)? != 0;
        let monitor = driver.device_pci_bus_id(ordinal).ok().and_then(|id| {
            let complain =
                |error| tracing::info!(%error, "no NVML, so no reports of power and utilisation");
            Monitor::open(options.nvml.as_deref(), &id).map_err(complain).ok()
        });
        let cell_bits = partita_ptx::fence::cell_bits(facts.memory.0.max(LEAST_WINDOW_BYTES));
        let guards = match options.guards {
            Guarding::On | Guarding::Strict => Guards {
                cell_bits: Some(cell_bits),
                ends: true,
                prints: true,
                contains: options.guards == Guarding::Strict,
            },
            Guarding::Off => Guards { prints: true, ..Guards::default() },
        };
        // These come first, so that each stream has a connection to the GPU for itself.
        let streams = Streams::new(&context, &news)?;
        let loader = Loader::start(&context, cache.clone(), &news)?;
        let complain =
            |error| tracing::warn!(%error, "machine code cannot be confined to SMs: it runs alone");
        let groups =
            Groups::measure(&context, cache.as_ref()).map_err(complain).unwrap_or_default();
        let counts = monitor.as_ref().is_some_and(Monitor::counts_traffic);
        let traffic = match driver.device_pci_bus_id(ordinal) {
            Ok(id) if counts => Some(Traffic::start(options.nvml.clone(), id)?),
            _ => None,
        };
        let millijoules_before = monitor.as_ref().and_then(Monitor::millijoules);
        Ok(CudaDevice {
            windows: Windows::new(
                &context,
                (cell_bits, options.part),
                options.prepared_windows,
                guards.contains,
            )?,
            arrays: Arrays::new(&context, defers),
            locked: Locked::default(),
            zeros: Zeros::new(&context)?,
            streams,
            loader,
            phases: Phases::new(),
            calibration: calibration::from_facts(&facts),
            driver: Arc::clone(context.driver()),
            facts,
            identity,
            habits,
            launches_stay: options.launches_stay,
            news,
            clock,
            upkeep,
            signals,
            loading: BTreeMap::new(),
            modules: BTreeMap::new(),
            window_of_module: BTreeMap::new(),
            placed: BTreeMap::new(),
            printing: BTreeMap::new(),
            groups,
            confining: BTreeSet::new(),
            guards,
            wanted: Vec::new(),
            host_access,
            without_host: BTreeMap::new(),
            last_event: Instant::now(),
            ended: Vec::new(),
            failure: None,
            lost: false,
            monitor,
            traffic,
            millijoules_before,
        })
    }

    fn place_of(&self, address: DeviceAddress, bytes: u64) -> Result<Place, DeviceError> {
        let own = || {
            self.modules.values().any(|loaded| loaded.has(address, bytes)).then_some(Place::Device)
        };
        let place = self.windows.place_of(address, bytes).or_else(own);
        place.ok_or(DeviceError::BadRange { address, bytes })
    }

    fn allocate_at(
        &mut self,
        window: WindowId,
        range: AddressRange,
        place: Place,
    ) -> Result<(), DeviceError> {
        self.make_room(window, (range, Becomes::Memory))?;
        let pieces = self.windows.allocate(window, range, place, &self.zeros)?;
        self.signals.outdate(range.start.0, range.bytes);
        let zeroed = self.zero(pieces.clone(), place);
        if zeroed.is_err() {
            self.windows.abandon(window, range.start, &pieces)?;
        }
        zeroed
    }

    /// Makes room where something mapped is in the way. Unmapping it waits for grids: where some
    /// are on the device, it happens in a phase.
    pub(super) fn make_room(
        &mut self,
        window: WindowId,
        range: (AddressRange, Becomes),
    ) -> Result<(), DeviceError> {
        if self.windows.is_free(window, range) {
            return Ok(());
        }
        if !self.habits.waits {
            return self.windows.clear(window, range, &self.zeros);
        }
        // Zeroing may be a kernel, too.
        let zeroed = self.zeros.barrier().map(|(_, mark)| mark);
        if self.streams.device_is_idle() && zeroed.is_none() {
            return self.windows.clear(window, range, &self.zeros);
        }
        self.wanted.push((window, range));
        self.loader.ask_for_phase(zeroed);
        Err(DeviceError::Busy)
    }

    fn zero(&mut self, pieces: Vec<(u64, u64)>, place: Place) -> Result<(), DeviceError> {
        for (start, bytes) in pieces {
            self.zeros.zero(&self.upkeep, place, start, bytes).map_err(refused)?;
        }
        Ok(())
    }

    /// Module constants in a written range: the driver's address, the address in the window, and
    /// the number of bytes.
    fn constants_in(&self, range: AddressRange) -> Vec<(u64, u64, u64)> {
        constants_in(&self.placed, range)
    }

    /// The place of a range. Later peeks and pokes wait for the zeroing of new memory.
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
            Ok((mut variables, placed)) => {
                if let Some(printing) = Printing::of(&loaded.printing, &variables) {
                    self.printing.insert(module, printing);
                }
                variables.extend(loaded.own.iter().cloned());
                self.modules.insert(module, loaded);
                self.window_of_module.insert(module, window);
                if let Some(placed) = placed {
                    self.placed.insert(module, placed);
                }
                events.push(Event::ModuleLoaded {
                    module,
                    facts: ModuleFacts { variables, ..facts },
                });
            }
            Err(error) => {
                self.loader.unload(loaded);
                events.push(Event::ModuleRefused {
                    module,
                    reason: format!("its variables: {error}"),
                });
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
        for outcome in self.take_outcomes() {
            match outcome {
                Outcome::Load { module, result } => match *result {
                    Ok((loaded, facts)) => self.module_loaded(module, loaded, facts, events),
                    Err(reason) => {
                        self.loading.remove(&module);
                        events.push(Event::ModuleRefused { module, reason });
                    }
                },
                Outcome::Lock { start, result } => self.locked.enter(start, result),
                Outcome::LockWindow { window, result } => {
                    if let Err(failure) = result {
                        tracing::warn!(%failure, "host memory is not page-locked");
                        self.without_host.insert(window, failure);
                    }
                }
                Outcome::Array { window, shape, result } => {
                    if let Some(ended) = self.arrays.enter(window, shape, result) {
                        self.end(ended);
                    }
                }
                // Where there are no phases, what was postponed is tried again now.
                Outcome::Over if !self.habits.waits => events.push(Event::Reopened),
                Outcome::Over => {}
                Outcome::Confine { sms, result } => {
                    self.confining.remove(&sms);
                    let result = result.map_err(|failure| failure.to_string()).and_then(|green| {
                        self.streams
                            .add_context(sms, green, &self.news)
                            .map_err(|error| error.to_string())
                    });
                    events.push(Event::Confined { sms, result });
                }
            }
        }
        self.clock.tick(&self.upkeep)?;
        let mut ended = std::mem::take(&mut self.ended);
        self.streams.take_ended(&self.clock, &mut ended)?;
        self.zeros.tick()?;
        match self.submit(None, &mut ended) {
            // The driver may be out of memory for a moment; the next poll submits the operation
            // again.
            Err(failure) if !failure.ends_the_device() => {
                tracing::debug!(%failure, "an operation was not submitted")
            }
            result => result?,
        }
        ended.sort_by_key(|ended| ended.time);
        events.extend(self.outputs(&ended));
        events.extend(ended.into_iter().map(|Ended { operation, time, outcome, .. }| {
            Event::Done { operation, time, outcome }
        }));
        Ok(())
    }

    /// Submits what the device can take: of all streams, or of one to which something was appended.
    fn submit(&mut self, of: Option<StreamId>, ended: &mut Vec<Ended>) -> Result<(), Failure> {
        if self.phases.phase() == Phase::Closed {
            return Ok(());
        }
        let (windows, zeros, printing) = (&self.windows, &self.zeros, &self.printing);
        let mut rest = Rest {
            modules: &self.modules,
            placed: &self.placed,
            signals: &mut self.signals,
            locked: &mut self.locked,
            zeroed: &|task| zeros.before(task),
            drains: self.phases.phase() == Phase::Draining,
            clock: &self.clock,
            place_of: &|address| windows.place_of(DeviceAddress(address), 8),
            count_of: &|module, kernel| printing.get(&module)?.count_for(kernel),
        };
        let result = match of {
            Some(stream) => self.streams.submit_appended(stream, &mut rest, ended),
            None => self.streams.submit(&mut rest, ended),
        };
        for memory in self.locked.take_wanted() {
            self.loader.lock(memory);
        }
        result
    }

    /// Reports the end of the context.
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

    /// Destroys an array or object after all operations that still use it.
    fn end(&mut self, ended: EndedArray) {
        self.loader.end(ended, self.zeros.barrier().map(|(_, mark)| mark));
    }
}

/// How kernels reach memory that is mapped in this process.
#[derive(Clone, Copy, PartialEq, Eq)]
enum HostAccess {
    /// By the host's page tables.
    Pageable,
    /// Where it is page-locked.
    Locked,
    /// Not at the host's addresses.
    None,
}

impl HostAccess {
    fn of(driver: &Driver, ordinal: u32) -> Result<HostAccess, Failure> {
        let has = |attribute| driver.device_attribute(ordinal, attribute).map(|value| value != 0);
        Ok(match has(Attribute::PageableMemoryAccess)? {
            true => HostAccess::Pageable,
            false if has(Attribute::CanUseHostPointerForRegisteredMem)? => HostAccess::Locked,
            false => HostAccess::None,
        })
    }
}

/// The GPU and driver of which the self-test tells something.
fn target(driver: &Driver, ordinal: u32) -> Result<String, Failure> {
    let (name, version) = (driver.device_name(ordinal)?, driver.version());
    let major = driver.device_attribute(ordinal, Attribute::ComputeCapabilityMajor)?;
    let minor = driver.device_attribute(ordinal, Attribute::ComputeCapabilityMinor)?;
    Ok(format!("{name}, compute capability {major}.{minor}, driver CUDA {version}"))
}

fn facts(context: &Context, ordinal: u32) -> Result<DeviceFacts, Failure> {
    let get = |attribute| context.driver().device_attribute(ordinal, attribute);
    let small = |value: u32| u8::try_from(value).unwrap_or(u8::MAX);
    let (free, _) = context.memory()?;
    let compute_capability = ComputeCapability {
        major: small(get(Attribute::ComputeCapabilityMajor)?),
        minor: small(get(Attribute::ComputeCapabilityMinor)?),
    };
    Ok(DeviceFacts {
        kind: DeviceKind::Cuda,
        timekeeping: Timekeeping::Real,
        name: context.driver().device_name(ordinal)?,
        uuid: context.uuid()?,
        compute_capability,
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
        register_parts: compute_capability.register_parts(),
        shared_reserved: Bytes(get(Attribute::ReservedSharedMemoryPerBlock)?.into()),
        // A kernel says which there are.
        absent_sms: SmSet::EMPTY,
    })
}
