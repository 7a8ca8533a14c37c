//! Kernels that launch kernels (CUDA C++ Programming Guide, "CUDA Dynamic Parallelism").
//!
//! A kernel of the program writes what it launches to memory of its launch
//! ([`partita_model::nested`]). Behind the launch its stream calls a function of the host, and then
//! waits at a gate. The function wakes a thread, which reads the memory and submits the operations
//! to streams of its own. Behind the last of them another function of the host wakes the thread,
//! and the gate opens. So work behind the launch comes when all kernels below it are done.
//!
//! Launches in one stream share their memory: the next begins when the records of the last have
//! been read.
//!
//! No operation begins before the kernel that asked for it has ended, which CUDA allows: it never
//! promises that the two run at once.

use crate::attributes;
use crate::context_calls::pending_launches;
use crate::devices;
use crate::error::{CuError, CuResult};
use crate::handles::DeviceIndex;
use crate::host_calls::without_signals;
use crate::launch::Prepared;
use crate::log;
use crate::module::{Function, Module};
use crate::runtime::{DRIVER_VERSION, Runtime};
use partita_client::{ClosedGate, EventHandle, Session, StreamHandle};
use partita_model::nested::{self, Line, MOST_DEPTH, Operation, Work};
use partita_model::{DeviceAddress, Dim3};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

/// The most streams on which operations of one launch run at once, by its depth. Launches below
/// one another hold streams at each depth, so their number is small where many may exist.
const STREAMS: [usize; 3] = [8, 2, 1];
/// The most launches that memory has room for because of the number of a launch's threads.
const MOST_BY_THREADS: u128 = 1 << 16;
/// The most units of a launch's memory, 1 GiB.
const MOST_UNITS: u64 = 1 << 24;

/// A device's launches by kernels.
pub struct Nested {
    device: DeviceIndex,
    /// Held by a thread that submits a launch.
    order: Mutex<()>,
    /// Tells the thread, once there is one.
    told: Mutex<Option<Sender<Told>>>,
    state: Mutex<State>,
    /// Whether the program's user knows that launches were lost.
    has_said: AtomicBool,
}

#[derive(Default)]
struct State {
    last: u64,
    /// Launches whose gates are closed.
    parents: HashMap<u64, Parent>,
    /// Memory of each stream with such launches in flight.
    of_streams: HashMap<StreamHandle, Weak<Memory>>,
    /// What no launch uses. A free would wait for all work of the session.
    memory: Vec<Memory>,
    /// Memory of launches that failed halfway.
    lost: Vec<Arc<Memory>>,
    streams: Vec<StreamHandle>,
    events: Vec<EventHandle>,
}

/// What the thread is told of a launch.
enum Told {
    /// Its own grid has ended.
    Over(u64),
    /// So have all grids below.
    Done(u64),
}

/// A launch of a kernel that may launch others.
struct Parent {
    gate: ClosedGate,
    stream: StreamHandle,
    memory: Arc<Memory>,
    module: Arc<Module>,
    depth: u32,
    used: Used,
}

/// What the operations of a launch use.
#[derive(Default)]
struct Used {
    streams: Vec<StreamHandle>,
    events: Vec<EventHandle>,
}

struct Memory {
    address: u64,
    units: u32,
}

impl State {
    /// Takes memory back that no launch uses any more.
    fn give_back(&mut self, stream: StreamHandle, memory: Arc<Memory>) {
        if let Ok(memory) = Arc::try_unwrap(memory) {
            self.memory.push(memory);
        }
        if self.of_streams.get(&stream).is_some_and(|memory| memory.strong_count() == 0) {
            self.of_streams.remove(&stream);
        }
    }
}

impl Nested {
    /// None, and no thread.
    pub fn new(device: DeviceIndex) -> Self {
        let (order, told, state) = (Mutex::new(()), Mutex::new(None), Mutex::default());
        Nested { device, order, told, state, has_said: AtomicBool::new(false) }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Submits a launch of a kernel that may launch others. `queue` is the place of the address
    /// among its parameters.
    pub fn launch(
        &self,
        runtime: &Runtime,
        (prepared, queue): (&Prepared, u32),
        stream: StreamHandle,
        depth: u32,
    ) -> CuResult {
        let module = runtime.modules.modules.get(prepared.kernel.module)?;
        // At the greatest depth there is no room.
        let units = if depth < MOST_DEPTH { units(prepared, &module) } else { 0 };
        // What clears the memory comes right before the launch, whichever threads launch.
        let _alone = self.order.lock().unwrap_or_else(PoisonError::into_inner);
        let memory = self.memory(runtime, units, stream)?;
        let params = params_with(prepared, queue, &memory);
        let started = self.start(runtime, (prepared, &params), stream, (&memory, units));
        let mut state = self.state();
        let followed = started.and_then(|told| {
            // The thread finds the launch, however soon it is told.
            state.last += 1;
            let gate = follow(runtime, stream, (told, state.last))?;
            Ok((state.last, gate))
        });
        match followed {
            Ok((id, gate)) => {
                let used = Used::default();
                state.parents.insert(id, Parent { gate, stream, memory, module, depth, used });
                Ok(())
            }
            Err(error) => {
                // The stream may still write there.
                state.lost.push(memory);
                Err(error)
            }
        }
    }

    /// Clears the memory and submits the launch.
    fn start(
        &self,
        runtime: &Runtime,
        (prepared, params): (&Prepared, &[u8]),
        stream: StreamHandle,
        (memory, units): (&Memory, u32),
    ) -> CuResult<Sender<Told>> {
        let told = self.thread()?;
        for (offset, value, count) in nested::clearing(units) {
            let to = DeviceAddress(memory.address + offset);
            runtime.session.fill(stream, to, value, 4, count)?;
        }
        prepared.submit_with(runtime, stream, params)?;
        Ok(told)
    }

    /// Waits for the launches of a module's kernels that are in flight: what they launch is the
    /// module's, too.
    pub fn settle(&self, session: &Session, module: u64) {
        let is_of_it = |parent: &Parent| parent.module.handle == module;
        let streams: BTreeSet<StreamHandle> = {
            let state = self.state();
            let parents = state.parents.values();
            parents.filter(|parent| is_of_it(parent)).map(|parent| parent.stream).collect()
        };
        for stream in streams {
            // What a destroyed stream still does is waited for with everything else.
            let waited = session.synchronize(Some(stream)).or_else(|_| session.synchronize(None));
            // The program has not asked for an answer, so the next one that it asks for has the
            // error.
            if let Err(error) = waited
                && session.check().is_ok()
            {
                session.fail_next_synchronization(error);
            }
        }
    }

    /// Frees the memory that no launch uses.
    pub fn clear(&self, session: &Session) {
        let mut state = self.state();
        let mut addresses: Vec<u64> = state.memory.drain(..).map(|memory| memory.address).collect();
        addresses.extend(state.lost.drain(..).map(|memory| memory.address));
        drop(state);
        for address in addresses {
            // Memory that cannot be freed any more ends with the session.
            let _ = session.mem_free(DeviceAddress(address));
        }
    }

    /// A way to the thread, which starts with the first launch.
    fn thread(&self) -> CuResult<Sender<Told>> {
        let mut told = self.told.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(told) = &*told {
            return Ok(told.clone());
        }
        let (sender, receiver) = channel();
        let device = self.device;
        let spawned = without_signals(|| {
            let thread = std::thread::Builder::new().name("partita-nested".to_owned());
            thread.spawn(move || serve(device, &receiver)).map(drop)
        });
        spawned.map_err(|_| CuError::OPERATING_SYSTEM)?;
        Ok(told.insert(sender).clone())
    }

    /// The memory of a stream's launches. It has room for `units` at least.
    fn memory(&self, runtime: &Runtime, units: u32, stream: StreamHandle) -> CuResult<Arc<Memory>> {
        let fits = |memory: &Memory| memory.units >= units;
        let mut state = self.state();
        let own = state.of_streams.get(&stream).and_then(Weak::upgrade);
        if let Some(memory) = own.filter(|memory| fits(memory)) {
            return Ok(memory);
        }
        let found = state.memory.iter().enumerate().filter(|(_, memory)| fits(memory));
        let found = found.min_by_key(|(_, memory)| memory.units).map(|(at, _)| at);
        let found = found.map(|at| state.memory.swap_remove(at));
        drop(state);
        let memory = match found {
            Some(memory) => memory,
            None => self.new_memory(runtime, units, stream)?,
        };
        let memory = Arc::new(memory);
        self.state().of_streams.insert(stream, Arc::downgrade(&memory));
        Ok(memory)
    }

    fn new_memory(&self, runtime: &Runtime, units: u32, stream: StreamHandle) -> CuResult<Memory> {
        let session = &runtime.session;
        // Few sizes serve all launches.
        let units = units.next_power_of_two();
        let address = session.mem_alloc(nested::bytes(units))?.0;
        let device = nested::Device {
            number: self.device.ordinal().cast_unsigned(),
            count: u32::try_from(devices::all()?.len()).unwrap_or(u32::MAX),
            version: DRIVER_VERSION.cast_unsigned(),
            dynamic_shared: u32::try_from(runtime.facts().shared_per_cta_optin.0)
                .unwrap_or(u32::MAX),
        };
        let header = device.header(|number| attributes::value(runtime.facts(), number));
        let to = DeviceAddress(address + nested::Device::HEADER_AT);
        session.copy_to_device_async(stream, to, &header)?;
        Ok(Memory { address, units })
    }

    fn stream(&self, session: &Session) -> CuResult<StreamHandle> {
        let found = self.state().streams.pop();
        found.map_or_else(|| Ok(session.create_stream(true, 0)?), Ok)
    }

    fn event(&self, session: &Session) -> CuResult<EventHandle> {
        let found = self.state().events.pop();
        found.map_or_else(|| Ok(session.create_event()?), Ok)
    }

    /// Lets the stream of a launch go on.
    fn finish(&self, session: &Session, id: u64) {
        let mut state = self.state();
        let Some(parent) = state.parents.remove(&id) else { return };
        let Parent { gate, stream, memory, used, module, .. } = parent;
        state.give_back(stream, memory);
        state.streams.extend(used.streams);
        state.events.extend(used.events);
        drop((state, module));
        // A session that has failed has no work behind the gate.
        let _ = session.open_gate(gate);
    }
}

/// Makes a stream wait behind a launch, and tells the thread when it is over.
fn follow(
    runtime: &Runtime,
    stream: StreamHandle,
    (told, id): (Sender<Told>, u64),
) -> CuResult<ClosedGate> {
    runtime.host_calls.add(&runtime.session, stream, move |outcome| {
        // A session whose work has failed has none behind the gate.
        if outcome.is_ok() {
            let _ = told.send(Told::Over(id));
        }
    })?;
    Ok(runtime.session.close_gate(stream)?)
}

/// The parameters of a launch with the address of its memory.
fn params_with(prepared: &Prepared, queue: u32, memory: &Memory) -> Vec<u8> {
    let mut params = prepared.params.clone();
    params.resize(queue as usize, 0);
    params.extend_from_slice(&memory.address.to_le_bytes());
    params
}

/// Units of memory for a launch.
fn units(prepared: &Prepared, module: &Module) -> u32 {
    let threads = prepared.grid.count().saturating_mul(prepared.block.count());
    let by_threads = u64::try_from(threads.min(MOST_BY_THREADS)).unwrap_or(u64::MAX);
    let launches = pending_launches().max(by_threads);
    let units = launches.saturating_mul(module.launch_units.into()).min(MOST_UNITS);
    u32::try_from(units).unwrap_or(u32::MAX)
}

fn serve(device: DeviceIndex, told: &Receiver<Told>) {
    let mut reader = None;
    while let Ok(told) = told.recv() {
        let found = devices::get(device.ordinal()).ok().and_then(|device| device.opened());
        let Some(runtime) = found else { return };
        let (session, nested) = (&runtime.session, &runtime.nested);
        let id = match told {
            Told::Done(id) => {
                nested.finish(session, id);
                continue;
            }
            Told::Over(id) => id,
        };
        let stream = match reader {
            Some(stream) => Ok(stream),
            None => nested.stream(session),
        };
        let began = stream.and_then(|stream| {
            reader = Some(stream);
            begin(runtime, id, stream)
        });
        match began {
            Ok(true) => {}
            Ok(false) => nested.finish(session, id),
            Err(error) => {
                runtime.fail_later("what a kernel launched was not submitted", error);
                nested.finish(session, id);
            }
        }
    }
}

/// Submits the operations that a launch's kernel has asked for, and returns whether there are any.
fn begin(runtime: &'static Runtime, id: u64, reader: StreamHandle) -> CuResult<bool> {
    let (session, nested) = (&runtime.session, &runtime.nested);
    let known = nested.state().parents.get(&id).map(|parent| {
        let memory = Memory { ..*parent.memory };
        (memory, Arc::clone(&parent.module), parent.depth)
    });
    let Some((memory, module, depth)) = known else { return Ok(false) };
    let mut counts = [0; nested::COUNTS_BYTES];
    session.copy_to_host(reader, &mut counts, DeviceAddress(memory.address))?;
    let used = nested::used(&counts, memory.units);
    // Kernels may do so again and again.
    if nested::is_over(&counts) && !nested.has_said.swap(true, Ordering::Relaxed) {
        log::say(format_args!(
            "a kernel asked for more launches than its memory holds: raise \
             cudaLimitDevRuntimePendingLaunchCount"
        ));
    }
    let mut records = vec![0; used as usize * nested::UNIT_BYTES];
    if !records.is_empty() {
        let from = DeviceAddress(memory.address + nested::HEADER_BYTES as u64);
        session.copy_to_host(reader, &mut records, from)?;
    }
    let operations = nested::operations(&records).map_err(|damage| {
        log::say(format_args!("a kernel has written over what it launched: {damage}"));
        CuError::ILLEGAL_ADDRESS
    })?;
    if operations.is_empty() {
        return Ok(false);
    }
    let mut batch = Batch::new(runtime, &module, depth);
    let submitted = batch.submit(&operations);
    let last = batch.join();
    if let Some(parent) = nested.state().parents.get_mut(&id) {
        parent.used = batch.used;
    }
    if let Err(error) = submitted {
        runtime.fail_later("not all launches of a kernel were submitted", error);
    }
    let (last, told) = (last?, nested.thread()?);
    runtime.host_calls.add(session, last, move |outcome| {
        if outcome.is_ok() {
            let _ = told.send(Told::Done(id));
        }
    })?;
    Ok(true)
}

/// The operations of one launch on their way to streams.
struct Batch<'a> {
    runtime: &'static Runtime,
    module: &'a Module,
    depth: u32,
    /// The stream of each order of operations.
    lines: BTreeMap<Line, usize>,
    /// The stream that the next order gets.
    next: usize,
    /// The program's events that were recorded.
    recorded: BTreeMap<u64, EventHandle>,
    /// Whether the first stream waits for the other streams.
    joined: bool,
    used: Used,
}

impl<'a> Batch<'a> {
    fn new(runtime: &'static Runtime, module: &'a Module, depth: u32) -> Self {
        let (lines, recorded, used) = (BTreeMap::new(), BTreeMap::new(), Used::default());
        Batch { runtime, module, depth, lines, next: 0, recorded, joined: false, used }
    }

    /// Submits all operations, also behind one that fails. The user is told of the first failure.
    fn submit(&mut self, operations: &[Operation]) -> CuResult {
        let mut failed = None;
        let (tails, others): (Vec<&Operation>, Vec<&Operation>) =
            operations.iter().partition(|operation| operation.line == Line::Tail);
        for operation in others {
            let stream = self.stream_of(operation.line)?;
            if let Err(error) = self.perform(&operation.work, stream) {
                failed.get_or_insert((operation, error));
            }
        }
        let last = self.join()?;
        for operation in tails {
            if let Err(error) = self.perform(&operation.work, last) {
                failed.get_or_insert((operation, error));
            }
        }
        if let Some((operation, error)) = failed {
            self.runtime.fail_later(&self.failure(&operation.work), error);
        }
        Ok(())
    }

    /// What has failed, for the user.
    fn failure(&self, work: &Work) -> String {
        let Work::Launch { kernel, grid, block, dynamic_shared, params } = work else {
            return format!("an operation of a kernel was not submitted ({work:?})");
        };
        let functions = &self.runtime.modules.functions;
        let found = self.module.kernel_at(*kernel).and_then(|handle| functions.get(handle));
        let name = found.map_or_else(|_| format!("number {kernel}"), |of| of.facts.name.clone());
        format!(
            "a kernel's launch of kernel {name} was not submitted (grid {grid}, block {block}, \
             {dynamic_shared} bytes of dynamic shared memory, {} bytes of parameters)",
            params.len()
        )
    }

    fn stream_of(&mut self, line: Line) -> CuResult<StreamHandle> {
        let place = match self.lines.get(&line) {
            Some(place) => *place,
            None => {
                let most = STREAMS[(self.depth as usize).min(STREAMS.len() - 1)];
                let place = self.next;
                self.next = (place + 1) % most;
                // Each operation that stands apart may have another stream.
                if line != Line::Apart {
                    self.lines.insert(line, place);
                }
                place
            }
        };
        self.stream_at(place)
    }

    fn stream_at(&mut self, place: usize) -> CuResult<StreamHandle> {
        while self.used.streams.len() <= place {
            let stream = self.runtime.nested.stream(&self.runtime.session)?;
            self.used.streams.push(stream);
        }
        Ok(self.used.streams[place])
    }

    /// The first stream. Its further work waits for the work of all other streams.
    fn join(&mut self) -> CuResult<StreamHandle> {
        let session = &self.runtime.session;
        let first = self.stream_at(0)?;
        if !self.joined {
            for stream in self.used.streams[1..].iter().copied() {
                let event = self.runtime.nested.event(session)?;
                self.used.events.push(event);
                session.record_event(event, stream)?;
                session.wait_event(first, event)?;
            }
            self.joined = true;
        }
        Ok(first)
    }

    fn perform(&mut self, work: &Work, stream: StreamHandle) -> CuResult {
        let (runtime, session) = (self.runtime, &self.runtime.session);
        match work {
            Work::Launch { kernel, grid, block, dynamic_shared, params } => {
                let function = self.module.kernel_at(*kernel)?;
                let kernel = runtime.modules.functions.get(function)?;
                let place = (*grid, *block, *dynamic_shared);
                let prepared = prepared(runtime, (function, kernel), place, params)?;
                prepared.submit_at(runtime, stream, self.depth + 1)
            }
            Work::Copy { to, from, bytes } => {
                let (to, from) = (DeviceAddress(*to), DeviceAddress(*from));
                Ok(session.copy_on_device(stream, to, from, *bytes)?)
            }
            Work::Fill { to, value, bytes } => {
                Ok(session.fill(stream, DeviceAddress(*to), u32::from(*value), 1, *bytes)?)
            }
            Work::Record { event } => {
                let handle = match self.recorded.get(event) {
                    Some(handle) => *handle,
                    None => {
                        let handle = runtime.nested.event(session)?;
                        self.used.events.push(handle);
                        *self.recorded.entry(*event).or_insert(handle)
                    }
                };
                Ok(session.record_event(handle, stream)?)
            }
            Work::Wait { event } => match self.recorded.get(event) {
                Some(handle) => Ok(session.wait_event(stream, *handle)?),
                None => Ok(()),
            },
        }
    }
}

fn prepared(
    runtime: &Runtime,
    (function, kernel): (u64, Arc<Function>),
    (grid, block, dynamic_shared): (Dim3, Dim3, u32),
    params: &[u8],
) -> CuResult<Prepared> {
    if params.len() != kernel.param_bytes {
        return Err(CuError::INVALID_VALUE);
    }
    let (cooperative, cluster, params) = (false, Dim3::linear(1), params.to_vec());
    let prepared = Prepared {
        function,
        kernel,
        grid,
        block,
        dynamic_shared,
        cooperative,
        cluster,
        shared_mode: 0,
        params,
    };
    prepared.check(runtime.facts())?;
    Ok(prepared)
}
