//! The thread that owns the emulated GPU.
//!
//! It carries out commands of the driver's functions in the order in which they come, begins the
//! channels' operations ([`crate::channels`]), and advances the GPU while anything is in flight.
//! A fault of a grid ends the context: everything in flight ends, and every later call fails with
//! the fault's status.

use crate::channels::{Channels, Entry, Op, Place, Row, holds};
use crate::hardware;
use crate::host::{Mapped, OwnPageTables};
use crate::memory::WINDOW_RANGE;
use crate::room;
use crate::settings::Settings;
use crate::status::{self, Status};
use crate::streams::StreamCell;
use partita_device::{
    Activity, Device, DeviceError, Event, GridSpec, Horizon, ModuleFacts, Outcome, Reading, Work,
};
use partita_emu::{EmulatedGpu, Options, Spec, Timing};
use partita_model::{DeviceAddress, DeviceFacts, ModuleId, OperationId, SmSet, StreamId, WindowId};
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::c_void;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, TryRecvError, channel};
use std::time::{Duration, Instant};

/// The window of the emulated GPU in which everything lies.
pub const WINDOW: WindowId = WindowId(1);

/// Warp instructions between two looks for commands.
const SLICE: u64 = 4_096;
/// The pause between two looks at a word that only the host can change.
const WORD_LOOK: Duration = Duration::from_micros(100);

type Task = Box<dyn FnOnce(&mut Owner) + Send>;

enum Command {
    /// A function's question.
    Ask(Task),
    /// An operation of a stream.
    Submit(Entry),
    /// A function of the host has returned.
    HostDone(u64),
}

/// A function of the host that is due: the stream, the function, its argument.
type Due = (u64, extern "C" fn(*mut c_void), usize);

/// The callers' end.
pub struct Gpu {
    commands: Sender<Command>,
    reader: Option<Arc<dyn Reading>>,
}

impl Gpu {
    /// Starts the GPU that the settings name. `fault` is the context's status, and `mapped` the
    /// memory of the host that kernels reach in any case.
    pub fn start(
        settings: &Settings,
        fault: Arc<AtomicU32>,
        mapped: Mapped,
    ) -> Result<(Gpu, DeviceFacts), String> {
        let mut spec = Spec::find(&settings.gpu).map_err(|error| error.to_string())?;
        spec.memory_bytes = settings.memory.unwrap_or(spec.memory_bytes);
        spec.shared_reserved_bytes =
            if settings.habits.reserved_shared { hardware::RESERVED_SHARED } else { 0 };
        spec.register_parts = if settings.habits.parted_registers { 4 } else { 1 };
        let options = Options {
            seed: settings.seed,
            timing: if settings.timing { Timing::On } else { Timing::Off },
            ..Options::default()
        };
        let (commands, received) = channel();
        let (due, functions) = channel::<Due>();
        let done = commands.clone();
        let spawn = |name: &str, run: Box<dyn FnOnce() + Send>| {
            let thread = std::thread::Builder::new().name(name.into());
            thread.spawn(run).map_err(|error| error.to_string())
        };
        // As drivers do, one thread calls the functions of all streams.
        spawn("host functions", Box::new(move || run_functions(&functions, &done)))?;
        let (facts, told) = channel();
        let settings = settings.clone();
        let run = move || {
            let mut gpu = EmulatedGpu::new(spec, options);
            gpu.set_hardware(hardware::of(&settings, gpu.facts().sm_count));
            let reserved = gpu.reserve_range(WINDOW, WINDOW_RANGE);
            let device = gpu.facts().clone();
            let reader = gpu.reading();
            let reserved = reserved.and_then(|()| room::load(&mut gpu));
            let is_pageable = !settings.habits.no_pageable_access;
            gpu.set_page_tables(Box::new(OwnPageTables { is_pageable, mapped }));
            let answer = reserved.map(|()| (device, reader));
            if facts.send(answer.map_err(|error| error.to_string())).is_ok() {
                Owner::new(gpu, settings, received, due, fault).run();
            }
        };
        spawn("emulated GPU", Box::new(run))?;
        let (facts, reader) = told.recv().map_err(|error| error.to_string())??;
        Ok((Gpu { commands, reader }, facts))
    }

    /// Asks the owner, and waits for the answer.
    ///
    /// # Errors
    /// [`status::UNKNOWN`] where the owner has died.
    pub fn call<R: Send + 'static>(
        &self,
        question: impl FnOnce(&mut Owner) -> R + Send + 'static,
    ) -> Result<R, Status> {
        let (answer, answered) = channel();
        let task = move |owner: &mut Owner| {
            let _ = answer.send(question(owner));
        };
        self.commands.send(Command::Ask(Box::new(task))).map_err(|_| status::UNKNOWN)?;
        answered.recv().map_err(|_| status::UNKNOWN)
    }

    /// Waits for the grids that have begun.
    ///
    /// # Errors
    /// As [`Gpu::call`].
    pub fn drain(&self) -> Result<(), Status> {
        let (over, wait) = channel();
        self.call(move |owner| owner.tell_when_drained(over))?;
        // The owner drops the sender when it dies, and when the context ends.
        let _ = wait.recv();
        Ok(())
    }

    /// Reads a text on the calling thread, so that loading it takes less of the owner's time.
    pub fn read(&self, ptx: &Arc<str>) {
        if let Some(reader) = &self.reader {
            reader.read(ptx);
        }
    }

    /// Sends an operation of a stream.
    ///
    /// # Errors
    /// As [`Gpu::call`].
    pub fn submit(&self, stream: u64, op: Op) -> Result<(), Status> {
        let entry = Entry { stream, op };
        self.commands.send(Command::Submit(entry)).map_err(|_| status::UNKNOWN)
    }
}

fn run_functions(functions: &Receiver<Due>, done: &Sender<Command>) {
    for (stream, function, data) in functions {
        function(std::ptr::with_exposed_provenance_mut(data));
        if done.send(Command::HostDone(stream)).is_err() {
            return;
        }
    }
}

/// A stream on the GPU.
struct Lane {
    id: StreamId,
    cell: Arc<StreamCell>,
    channel: usize,
    /// Whether its first operation is in flight.
    is_busy: bool,
    /// Operations in its channel.
    queued: u64,
    is_destroyed: bool,
}

/// An operation in flight.
struct Flight {
    stream: u64,
    is_grid: bool,
    /// What follows it in the same operation of the stream.
    then: Option<Work>,
}

/// What the front of a channel does.
enum Front {
    /// It has begun, or has ended at once.
    Gone,
    /// It waits for another operation or for a function of the host.
    Waits,
    /// It waits for a word of memory.
    WaitsForWord,
}

/// The emulated GPU, and what is on it.
pub struct Owner {
    /// The GPU.
    pub gpu: EmulatedGpu,
    settings: Settings,
    start: Instant,
    /// When the idle GPU's clock last went on.
    caught_up: Instant,
    commands: Receiver<Command>,
    functions: Sender<Due>,
    fault: Arc<AtomicU32>,
    lanes: BTreeMap<u64, Lane>,
    channels: Channels,
    flight: BTreeMap<OperationId, Flight>,
    /// Callers that wait for grids.
    drains: Vec<(BTreeSet<OperationId>, Sender<()>)>,
    /// Modules whose loading has ended.
    loaded: BTreeMap<ModuleId, Result<ModuleFacts, String>>,
    next: u64,
}

impl Owner {
    fn new(
        gpu: EmulatedGpu,
        settings: Settings,
        commands: Receiver<Command>,
        functions: Sender<Due>,
        fault: Arc<AtomicU32>,
    ) -> Owner {
        let channels = match settings.habits.channels {
            true => Channels::shared(settings.seed),
            false => Channels::default(),
        };
        Owner {
            gpu,
            settings,
            start: Instant::now(),
            caught_up: Instant::now(),
            commands,
            functions,
            fault,
            lanes: BTreeMap::new(),
            channels,
            flight: BTreeMap::new(),
            drains: Vec::new(),
            loaded: BTreeMap::new(),
            next: 1,
        }
    }

    /// Serves until the last caller has gone.
    fn run(mut self) {
        let (mut activity, mut waits_for_word) = (Activity::Idle, false);
        loop {
            let mut command = match activity {
                Activity::Idle if waits_for_word => self.commands.recv_timeout(WORD_LOOK),
                Activity::Idle => self.commands.recv().map_err(|_| RecvTimeoutError::Disconnected),
                _ => self.commands.try_recv().map_err(at_once),
            };
            match activity {
                Activity::Idle => self.catch_up(),
                _ if self.settings.idle > 1 => self.caught_up = Instant::now(),
                _ => {}
            }
            while let Ok(received) = command {
                self.obey(received);
                command = self.commands.try_recv().map_err(at_once);
            }
            if matches!(command, Err(RecvTimeoutError::Disconnected)) {
                return;
            }
            waits_for_word = self.begin_all();
            activity = self.advance(None);
        }
    }

    fn obey(&mut self, command: Command) {
        match command {
            Command::Ask(task) => task(self),
            Command::Submit(entry) => match self.lanes.get_mut(&entry.stream) {
                Some(lane) if self.fault.load(Ordering::Acquire) == 0 => {
                    lane.queued += 1;
                    self.channels.push(lane.channel, entry);
                }
                Some(lane) => lane.cell.leave(),
                None => {}
            },
            Command::HostDone(stream) => self.end(stream),
        }
    }

    /// Lets the idle GPU's clock go on with the host's, or slower by the factor of `idle=`.
    fn catch_up(&mut self) {
        let nanos = |since: Duration| u64::try_from(since.as_nanos()).unwrap_or(u64::MAX);
        let now = match self.settings.idle {
            1 => nanos(self.start.elapsed()),
            slower => {
                let idle = std::mem::replace(&mut self.caught_up, Instant::now());
                self.gpu.now().0 + nanos(idle.elapsed() / slower)
            }
        };
        if self.settings.timing && self.gpu.now().0 < now {
            self.advance(Some(now));
        }
    }

    /// The present, in nanoseconds.
    fn now(&self) -> u64 {
        if self.settings.timing {
            return self.gpu.now().0;
        }
        u64::try_from(self.start.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }

    /// Makes a stream.
    pub fn create_stream(
        &mut self,
        handle: u64,
        cell: Arc<StreamCell>,
        priority: i32,
        sms: Option<SmSet>,
    ) -> Result<(), Status> {
        let id = StreamId(handle);
        self.gpu.create_stream(id).map_err(|error| complain(&error))?;
        self.gpu.set_stream_priority(id, priority).map_err(|error| complain(&error))?;
        if let Some(sms) = sms {
            self.gpu.confine_stream(id, sms);
        }
        let channel = self.channels.open();
        let lane = Lane { id, cell, channel, is_busy: false, queued: 0, is_destroyed: false };
        self.lanes.insert(handle, lane);
        Ok(())
    }

    /// Ends a stream when all of its operations have ended.
    pub fn destroy_stream(&mut self, handle: u64) {
        if let Some(lane) = self.lanes.get_mut(&handle) {
            lane.is_destroyed = true;
        }
        self.sweep(handle);
    }

    fn sweep(&mut self, handle: u64) {
        let is_over = |lane: &Lane| lane.is_destroyed && !lane.is_busy && lane.queued == 0;
        if self.lanes.get(&handle).is_some_and(is_over)
            && let Some(lane) = self.lanes.remove(&handle)
        {
            self.channels.close(lane.channel);
            // The stream is there, and it is empty.
            let _ = self.gpu.destroy_stream(lane.id);
        }
    }

    /// Loads a module. Returns what the GPU says of it.
    ///
    /// # Errors
    /// The reason in words.
    pub fn load(&mut self, module: ModuleId, ptx: Arc<str>) -> Result<ModuleFacts, String> {
        self.gpu.load_module(module, WINDOW, ptx).map_err(|error| error.to_string())?;
        // The event is there already: the emulated GPU loads at once.
        self.advance(Some(0));
        self.loaded.remove(&module).unwrap_or_else(|| Err("the GPU does not answer".to_owned()))
    }

    /// Drops the sender when all grids have ended that are in flight now.
    fn tell_when_drained(&mut self, over: Sender<()>) {
        let grids = self.flight.iter().filter(|(_, flight)| flight.is_grid);
        let grids: BTreeSet<OperationId> = grids.map(|(id, _)| *id).collect();
        if !grids.is_empty() {
            self.drains.push((grids, over));
        }
    }

    /// Begins what can begin. Whether an operation waits for a word of memory.
    fn begin_all(&mut self) -> bool {
        loop {
            let (mut any, mut waits_for_word) = (false, false);
            for channel in 0..self.channels.len() {
                loop {
                    match self.begin_first(channel) {
                        Some(Front::Gone) => any = true,
                        Some(Front::WaitsForWord) => {
                            waits_for_word = true;
                            break;
                        }
                        Some(Front::Waits) | None => break,
                    }
                }
            }
            if !any {
                return waits_for_word;
            }
        }
    }

    /// Begins the first operation of a channel, if it can begin.
    fn begin_first(&mut self, channel: usize) -> Option<Front> {
        let entry = self.channels.first(channel)?;
        let lane = self.lanes.get(&entry.stream)?;
        if lane.is_busy {
            return Some(Front::Waits);
        }
        match &entry.op {
            Op::Wait { event, number } if event.state().reached < *number => {
                return Some(Front::Waits);
            }
            Op::WaitValue { address, value, comparison } => {
                let mut word = [0; 8];
                // Memory that was unmapped in the meantime holds up no stream.
                let found = self.gpu.peek(DeviceAddress(*address), &mut word);
                if found.is_ok() && !holds(u64::from_le_bytes(word), *value, *comparison) {
                    return Some(Front::WaitsForWord);
                }
            }
            _ => {}
        }
        let Entry { stream, op } = self.channels.take(channel)?;
        if let Some(lane) = self.lanes.get_mut(&stream) {
            lane.queued -= 1;
            lane.is_busy = true;
        }
        self.begin(stream, op);
        Some(Front::Gone)
    }

    /// Begins an operation of a stream that has none in flight.
    fn begin(&mut self, stream: u64, op: Op) {
        let work = match op {
            Op::Launch(launch) if self.is_skipped(&launch) => return self.end(stream),
            Op::Launch(launch) => Work::Launch(launch),
            Op::ToDevice { to, from } => Work::CopyToDevice { to: DeviceAddress(to), from },
            Op::ToHost { to, from } => Work::CopyToHost { to, from: DeviceAddress(from) },
            Op::OnDevice { to, from, bytes } => {
                Work::CopyOnDevice { to: DeviceAddress(to), from: DeviceAddress(from), bytes }
            }
            Op::Fill { to, value, width, count } => {
                let fill = Work::Fill { to: DeviceAddress(to), value, width, count };
                if self.settings.habits.fills_need_room {
                    return self.enqueue(stream, Work::Launch(room::grid()), Some(fill));
                }
                fill
            }
            Op::Rows(rows) => match rows.iter().try_for_each(|row| self.copy_row(row)) {
                Ok(()) => Work::Marker,
                Err(error) => return self.fail(status::ILLEGAL_ADDRESS, &error.to_string()),
            },
            Op::Record { event, number } => {
                event.reach(number, self.now());
                return self.end(stream);
            }
            Op::Wait { .. } | Op::WaitValue { .. } => return self.end(stream),
            Op::Host { function, data } => {
                // The thread lives as long as this one.
                let _ = self.functions.send((stream, function, data));
                return;
            }
        };
        self.enqueue(stream, work, None);
    }

    fn is_skipped(&self, launch: &GridSpec) -> bool {
        self.settings.skip.as_deref().is_some_and(|skip| launch.kernel.contains(skip))
    }

    fn enqueue(&mut self, stream: u64, work: Work, then: Option<Work>) {
        let Some(lane) = self.lanes.get(&stream) else { return };
        let operation = OperationId(self.next);
        self.next += 1;
        let what = match &work {
            Work::Launch(GridSpec { kernel, .. }) => format!("kernel `{kernel}`"),
            _ => "a copy or fill".to_owned(),
        };
        let is_grid = matches!(work, Work::Launch(_));
        match self.gpu.enqueue(lane.id, operation, work) {
            Ok(()) => {
                self.flight.insert(operation, Flight { stream, is_grid, then });
            }
            // The GPU cannot execute an instruction of the kernel, or memory has gone.
            Err(error @ DeviceError::BadRange { .. }) => {
                self.fail(status::ILLEGAL_ADDRESS, &format!("{what}: {error}"));
            }
            Err(error) => self.fail(status::ILLEGAL_INSTRUCTION, &format!("{what}: {error}")),
        }
    }

    fn copy_row(&mut self, row: &Row) -> Result<(), DeviceError> {
        let mut bytes = vec![0; crate::abi::narrow(row.bytes)];
        match &row.from {
            Place::Device(from) => self.gpu.peek(DeviceAddress(*from), &mut bytes)?,
            Place::Host(from) => from.read(0, &mut bytes),
        }
        match &row.to {
            Place::Device(to) => self.gpu.poke(DeviceAddress(*to), &bytes),
            Place::Host(to) => {
                to.write(0, &bytes);
                Ok(())
            }
        }
    }

    /// The operation in flight of a stream has ended.
    fn end(&mut self, stream: u64) {
        if let Some(lane) = self.lanes.get_mut(&stream)
            && std::mem::take(&mut lane.is_busy)
        {
            lane.cell.leave();
        }
        self.sweep(stream);
    }

    /// Lets the GPU go on for a slice, or until a time in nanoseconds.
    fn advance(&mut self, until: Option<u64>) -> Activity {
        let mut events = Vec::new();
        let horizon = Horizon { until: until.map(partita_model::Nanos), warp_instructions: SLICE };
        let mut activity = self.gpu.poll(horizon, &mut events);
        if !events.is_empty() {
            // What has ended may let operations of channels begin.
            activity = Activity::Busy;
        }
        for event in events {
            match event {
                Event::Done { operation, outcome, .. } => self.done(operation, &outcome),
                Event::ModuleLoaded { module, facts } => {
                    self.loaded.insert(module, Ok(facts));
                }
                Event::ModuleRefused { module, reason } => {
                    self.loaded.insert(module, Err(reason));
                }
                Event::Output { text, .. } => self.print(&text),
                Event::Lost { reason } => self.fail(status::UNKNOWN, &reason),
                Event::Confined { .. }
                | Event::Reopened
                | Event::Residency(_)
                | Event::Notice { .. } => {}
            }
        }
        activity
    }

    fn done(&mut self, operation: OperationId, outcome: &Outcome) {
        let Some(Flight { stream, then, .. }) = self.flight.remove(&operation) else { return };
        // Dropping a sender tells its caller.
        self.drains.retain_mut(|(grids, _)| {
            grids.remove(&operation);
            !grids.is_empty()
        });
        match (outcome, then) {
            (Outcome::Fault(fault), _) if self.settings.habits.sticky_faults => {
                self.fail(status::of_fault(fault.kind), &fault.to_string());
            }
            (Outcome::Complete, Some(work)) => self.enqueue(stream, work, None),
            _ => self.end(stream),
        }
    }

    /// Ends the context.
    fn fail(&mut self, status: Status, reason: &str) {
        if self.fault.swap(status, Ordering::AcqRel) != 0 {
            return;
        }
        eprintln!("the emulated driver's context ends with error {status}: {reason}");
        for operation in std::mem::take(&mut self.flight).into_keys() {
            // Copies end by themselves.
            let _ = self.gpu.cancel(operation);
        }
        self.drains.clear();
        for stream in self.channels.clear() {
            if let Some(lane) = self.lanes.get_mut(&stream) {
                lane.queued = 0;
                lane.cell.leave();
            }
        }
        let streams: Vec<u64> = self.lanes.keys().copied().collect();
        streams.into_iter().for_each(|stream| self.end(stream));
    }

    /// Writes what a kernel has printed.
    fn print(&self, text: &[u8]) {
        if self.settings.habits.printf_on_stdout {
            crate::host::write_to_stdout(text);
        }
    }
}

/// The error of a look for a command that does not wait.
fn at_once(error: TryRecvError) -> RecvTimeoutError {
    match error {
        TryRecvError::Empty => RecvTimeoutError::Timeout,
        TryRecvError::Disconnected => RecvTimeoutError::Disconnected,
    }
}

/// Says on standard error what the emulated GPU refused.
fn complain(error: &DeviceError) -> Status {
    eprintln!("the emulated driver: {error}");
    match error {
        DeviceError::OutOfMemory { .. } => status::OUT_OF_MEMORY,
        DeviceError::Unsupported(_) => status::NOT_SUPPORTED,
        _ => status::INVALID_VALUE,
    }
}
