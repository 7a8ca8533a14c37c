//! A device by itself, for measurements: one window, a few streams, one call at a time. It works on
//! any device, so that what measures a GPU can be tried on the emulator.

use partita_device::{
    Activity, AddressRange, Device, DeviceError, Event, GridSpec, Horizon, ModuleFacts, Outcome,
    Work,
};
use partita_gpu::device::sleep;
use partita_model::{DeviceAddress, Dim3, ModuleId, Nanos, OperationId, StreamId, WindowId};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How long anything may take that ends by itself.
const PATIENCE: Duration = Duration::from_secs(60);

/// Between allocations, so that none touches another.
const ALIGNMENT: u64 = 512;

/// Streams of a rig, by number.
pub const STREAMS: u64 = 4;

/// Why a measurement failed.
#[derive(Debug, thiserror::Error)]
pub enum RigError {
    /// The device refused a call.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// It refused a module.
    #[error("a module was refused: {0}")]
    Module(String),
    /// Work ended otherwise than it should.
    #[error("a measurement's work ended badly: {0}")]
    Work(String),
    /// Nothing came.
    #[error("nothing happened for {} s", PATIENCE.as_secs())]
    Patience,
}

/// A device in use.
pub struct Rig<'a> {
    device: &'a mut dyn Device,
    window: WindowId,
    next_address: u64,
    next: u64,
    ended: BTreeMap<OperationId, (Nanos, Outcome)>,
    loaded: BTreeMap<ModuleId, Result<ModuleFacts, String>>,
    modules: Vec<ModuleId>,
}

/// A grid of one kernel, one-dimensional.
#[derive(Clone, Debug)]
pub struct Grid<'k> {
    /// The module.
    pub module: ModuleId,
    /// The kernel.
    pub kernel: &'k str,
    /// CTAs.
    pub ctas: u32,
    /// Threads of each.
    pub threads: u32,
    /// Its parameters as the kernel declares them.
    pub params: Vec<u8>,
}

impl<'a> Rig<'a> {
    /// Takes a window of so many bytes, and streams. Ids begin where no engine's do.
    ///
    /// # Errors
    /// [`RigError::Device`].
    pub fn new(device: &'a mut dyn Device, bytes: u64) -> Result<Self, RigError> {
        const FIRST: u64 = 1 << 40;
        let window = WindowId(FIRST);
        let base = device.reserve(window, bytes)?;
        for stream in 0..STREAMS {
            device.create_stream(StreamId(FIRST + stream))?;
        }
        Ok(Rig {
            device,
            window,
            next_address: base.0,
            next: FIRST,
            ended: BTreeMap::new(),
            loaded: BTreeMap::new(),
            modules: Vec::new(),
        })
    }

    /// Gives everything back.
    ///
    /// # Errors
    /// [`RigError::Device`].
    pub fn end(self) -> Result<(), RigError> {
        for module in self.modules {
            self.device.unload_module(module)?;
        }
        for stream in 0..STREAMS {
            self.device.destroy_stream(StreamId((1 << 40) + stream))?;
        }
        Ok(self.device.release(self.window)?)
    }

    /// The device.
    pub fn device(&mut self) -> &mut dyn Device {
        self.device
    }

    /// Memory of so many bytes.
    ///
    /// # Errors
    /// [`RigError::Device`].
    pub fn memory(&mut self, bytes: u64) -> Result<DeviceAddress, RigError> {
        let range = self.addresses(bytes);
        self.device.allocate(self.window, range)?;
        Ok(range.start)
    }

    /// Memory for signals, of so many bytes.
    ///
    /// # Errors
    /// [`RigError::Device`].
    pub fn signals(&mut self, bytes: u64) -> Result<DeviceAddress, RigError> {
        // Apart from everything else: it may be another kind of memory.
        self.next_address = self.next_address.next_multiple_of(2 << 20);
        let range = self.addresses(bytes.next_multiple_of(2 << 20));
        self.device.allocate_signals(self.window, range)?;
        Ok(range.start)
    }

    fn addresses(&mut self, bytes: u64) -> AddressRange {
        let start = DeviceAddress(self.next_address);
        self.next_address = (self.next_address + bytes + 1).next_multiple_of(ALIGNMENT);
        AddressRange { start, bytes }
    }

    fn id(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    /// Begins to load a module.
    ///
    /// # Errors
    /// [`RigError::Device`].
    pub fn begin_load(&mut self, ptx: &str) -> Result<ModuleId, RigError> {
        let module = ModuleId(self.id());
        self.device.load_module(module, self.window, ptx.into())?;
        Ok(module)
    }

    /// Whether a module that was begun has come; lets the device go on a little.
    ///
    /// # Errors
    /// [`RigError::Module`] where it was refused.
    pub fn has_loaded(&mut self, module: ModuleId) -> Result<bool, RigError> {
        self.turn(None)?;
        match self.loaded.get(&module) {
            None => Ok(false),
            Some(Ok(_)) => {
                if !self.modules.contains(&module) {
                    self.modules.push(module);
                }
                Ok(true)
            }
            Some(Err(reason)) => Err(RigError::Module(reason.clone())),
        }
    }

    /// Loads a module.
    ///
    /// # Errors
    /// [`RigError`].
    pub fn load(&mut self, ptx: &str) -> Result<ModuleId, RigError> {
        let module = self.begin_load(ptx)?;
        let end = Instant::now() + PATIENCE;
        while !self.has_loaded(module)? {
            self.still(end)?;
        }
        Ok(module)
    }

    fn still(&self, end: Instant) -> Result<(), RigError> {
        if Instant::now() < end { Ok(()) } else { Err(RigError::Patience) }
    }

    /// Appends an operation to a stream, one of [`STREAMS`].
    ///
    /// # Errors
    /// [`RigError::Device`].
    pub fn enqueue(&mut self, stream: u64, work: Work) -> Result<OperationId, RigError> {
        let operation = OperationId(self.id());
        self.device.enqueue(StreamId((1 << 40) + stream), operation, work)?;
        Ok(operation)
    }

    /// Appends a grid.
    ///
    /// # Errors
    /// [`RigError::Device`].
    pub fn launch(&mut self, stream: u64, grid: &Grid<'_>) -> Result<OperationId, RigError> {
        let launch = GridSpec {
            cooperative: false,
            cluster: Dim3::linear(1),
            module: grid.module,
            kernel: Arc::from(grid.kernel),
            grid: Dim3 { x: grid.ctas, y: 1, z: 1 },
            block: Dim3 { x: grid.threads, y: 1, z: 1 },
            dynamic_shared: 0,
            params: grid.params.clone(),
            access: vec![AddressRange { start: DeviceAddress(0), bytes: u64::MAX }],
        };
        self.enqueue(stream, Work::Launch(launch))
    }

    /// Lets the device go on: until then, or a little.
    ///
    /// # Errors
    /// [`RigError::Work`] where the device is lost.
    pub fn turn(&mut self, until: Option<Nanos>) -> Result<(), RigError> {
        let mut events = Vec::new();
        let activity = self.device.poll(Horizon { until, warp_instructions: 1 << 16 }, &mut events);
        let quiet = events.is_empty();
        for event in events {
            match event {
                Event::Done { operation, time, outcome } => {
                    self.ended.insert(operation, (time, outcome));
                }
                Event::ModuleLoaded { module, facts } => {
                    self.loaded.insert(module, Ok(facts));
                }
                Event::ModuleRefused { module, reason } => {
                    self.loaded.insert(module, Err(reason));
                }
                Event::Lost { reason } => return Err(RigError::Work(reason)),
                Event::Confined { .. }
                | Event::Reopened
                | Event::Residency(_)
                | Event::Notice { .. }
                | Event::Output { .. } => {}
            }
        }
        if quiet && activity == Activity::Waiting && until.is_none() {
            sleep(self.device);
        }
        Ok(())
    }

    /// When an operation ended; lets the device go on until it has.
    ///
    /// # Errors
    /// [`RigError`].
    pub fn wait(&mut self, operation: OperationId) -> Result<Nanos, RigError> {
        let end = Instant::now() + PATIENCE;
        while !self.ended.contains_key(&operation) {
            self.turn(None)?;
            self.still(end)?;
        }
        match self.ended.remove(&operation) {
            Some((time, Outcome::Complete)) => Ok(time),
            other => Err(RigError::Work(format!("{other:?}"))),
        }
    }

    /// Whether it has ended, as far as is known.
    #[must_use]
    pub fn has_ended(&self, operation: OperationId) -> bool {
        self.ended.contains_key(&operation)
    }

    /// How long a grid takes on the device, alone.
    ///
    /// # Errors
    /// [`RigError`].
    pub fn time(&mut self, grid: &Grid<'_>) -> Result<Nanos, RigError> {
        let before = self.enqueue(0, Work::Marker)?;
        let launched = self.launch(0, grid)?;
        let start = self.wait(before)?;
        let end = self.wait(launched)?;
        Ok(Nanos(end.saturating_sub(start).0.max(1)))
    }

    /// The `u64` at an address.
    ///
    /// # Errors
    /// [`RigError::Device`].
    pub fn word(&mut self, address: DeviceAddress) -> Result<u64, RigError> {
        let mut word = [0; 8];
        self.device.peek(address, &mut word)?;
        Ok(u64::from_le_bytes(word))
    }
}

/// A parameter space: the parts one after the other, each aligned to its size.
#[must_use]
pub fn params(parts: &[Param]) -> Vec<u8> {
    let mut bytes: Vec<u8> = Vec::new();
    for part in parts {
        match part {
            Param::Wide(value) => {
                bytes.resize(bytes.len().next_multiple_of(8), 0);
                bytes.extend(value.to_le_bytes());
            }
            Param::Word(value) => bytes.extend(value.to_le_bytes()),
        }
    }
    bytes
}

/// A parameter.
#[derive(Clone, Copy, Debug)]
pub enum Param {
    /// Of 8 bytes.
    Wide(u64),
    /// Of 4 bytes.
    Word(u32),
}
