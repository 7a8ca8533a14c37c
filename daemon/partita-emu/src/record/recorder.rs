//! A device that records its requests and their results.

use super::{Entry, FORMAT, Header, Line, Seen, Step, digest};
use crate::EmulatedGpu;
use partita_device::{
    Activity, AddressRange, Aliasing, Confining, Counting, Device, DeviceError, Event, Gating,
    GridSpec, Guards, Horizon, HostMemory, HostSpan, Lending, LentShape, Reading, Relocation,
    ResidencyTrace, SmallWindow, TensorMaps, Textures, Work,
};
use partita_model::texture::{ArrayShape, TextureSpec};
use partita_model::{
    AwaitedWord, CacheShape, Calibration, DeviceAddress, DeviceCounters, DeviceFacts, GridCounters,
    HostTime, MemoryAccess, ModuleId, Nanos, OperationId, Sharing, SmSet, StreamId, WindowId,
};
use std::collections::BTreeMap;
use std::fs::{File, TryLockError};
use std::io::{self, BufWriter, Write};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// For how long a recorder waits for the one before it: a daemon ends a little later than the
/// program that it was for.
const PATIENCE: Duration = Duration::from_secs(5);

/// An emulated GPU whose calls are recorded.
pub struct Recorder {
    device: EmulatedGpu,
    file: BufWriter<File>,
    /// Copies in flight.
    copies: BTreeMap<OperationId, Copied>,
    /// The last advance, which an equal one may extend: its horizon and the time reached in
    /// picoseconds.
    open: Option<(Option<Nanos>, u64)>,
    /// Whether all effects at the present time are complete.
    settled: bool,
}

/// The bytes of a copy between device and host.
enum Copied {
    /// The digest of the bytes at the enqueueing, and the bytes at the execution.
    ToDevice(u64, Arc<Mutex<Vec<u8>>>),
    /// The digest of the bytes that the copy writes.
    ToHost(Arc<Mutex<u64>>),
}

/// Host memory that a copy to the device reads.
struct Found {
    span: HostSpan,
    bytes: Arc<Mutex<Vec<u8>>>,
}

impl HostMemory for Found {
    fn size(&self) -> u64 {
        self.span.bytes()
    }

    fn read(&self, offset: u64, into: &mut [u8]) {
        self.span.read(offset, into);
        self.bytes.lock().unwrap_or_else(PoisonError::into_inner).extend_from_slice(into);
    }

    fn write(&self, offset: u64, from: &[u8]) {
        self.span.write(offset, from);
    }
}

/// Host memory that a copy to the host writes.
struct Brought {
    span: HostSpan,
    digest: Arc<Mutex<u64>>,
}

impl HostMemory for Brought {
    fn size(&self) -> u64 {
        self.span.bytes()
    }

    fn read(&self, offset: u64, into: &mut [u8]) {
        self.span.read(offset, into);
    }

    fn write(&self, offset: u64, from: &[u8]) {
        self.span.write(offset, from);
        let mut before = self.digest.lock().unwrap_or_else(PoisonError::into_inner);
        *before = digest(*before, from);
    }
}

impl Recorder {
    /// Records into this file, which is made, or emptied. The file is locked (flock(2)) for as long
    /// as the recorder lives.
    ///
    /// # Errors
    /// Where that is not possible, or another device records into the file.
    pub fn new(device: EmulatedGpu, path: &Path) -> io::Result<Self> {
        let file = File::options().write(true).create(true).truncate(false).open(path)?;
        let began = Instant::now();
        // Where a file system has no locks, nobody else is noticed.
        while let Err(TryLockError::WouldBlock) = file.try_lock() {
            if began.elapsed() >= PATIENCE {
                let text = "another device records into this file: wait for its end, or name \
                            another one after `record=`";
                return Err(io::Error::other(text));
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        // Nothing else has a length to cut.
        if file.metadata()?.is_file() {
            file.set_len(0)?;
        }
        let mut file = BufWriter::new(file);
        let header = Header {
            partita_recording: FORMAT,
            version: env!("CARGO_PKG_VERSION").to_owned(),
            spec: toml::to_string(device.spec()).map_err(io::Error::other)?,
            options: device.options(),
        };
        serde_json::to_writer(&mut file, &header)?;
        file.write_all(b"\n")?;
        file.flush()?;
        Ok(Recorder { device, file, copies: BTreeMap::new(), open: None, settled: false })
    }

    /// Writes a step at once, because the process may be killed at any moment.
    fn write(&mut self, mut step: Step) -> io::Result<()> {
        let contents = step.contents().map_or(Vec::new(), std::mem::take);
        let line = Line { step, contents: contents.len() };
        serde_json::to_writer(&mut self.file, &line)?;
        self.file.write_all(b"\n")?;
        self.file.write_all(&contents)?;
        self.file.flush()
    }

    fn close_advance(&mut self) -> io::Result<()> {
        match self.open.take() {
            Some((until, now_ps)) => self.write(Step::Advance { until, now_ps, seen: Vec::new() }),
            None => Ok(()),
        }
    }

    /// Records a call that the device has accepted.
    fn note(&mut self, step: Step) -> Result<(), DeviceError> {
        self.settled = false;
        self.close_advance().and_then(|()| self.write(step)).map_err(unwritten)
    }

    fn note_entry(&mut self, entry: Entry) -> Result<(), DeviceError> {
        self.note(Step::Entry { entry, queued: None })
    }

    /// Adds a digest of the copied bytes to enqueued work.
    fn watch(&mut self, operation: OperationId, work: Work) -> Work {
        match work {
            Work::CopyToDevice { to, from } => {
                let bytes = Arc::new(Mutex::new(Vec::new()));
                let found = Copied::ToDevice(digest(0, &bytes_of(&from)), Arc::clone(&bytes));
                self.copies.insert(operation, found);
                Work::CopyToDevice { to, from: whole(Arc::new(Found { span: from, bytes })) }
            }
            Work::CopyToHost { to, from } => {
                let digest = Arc::new(Mutex::new(0));
                self.copies.insert(operation, Copied::ToHost(Arc::clone(&digest)));
                Work::CopyToHost { to: whole(Arc::new(Brought { span: to, digest })), from }
            }
            work => work,
        }
    }

    fn advanced(&mut self, until: Option<Nanos>, before: u64, events: &[Event]) -> io::Result<()> {
        let now_ps = self.device.now_ps();
        let moved = now_ps != before;
        if !moved && events.is_empty() {
            if self.settled {
                return Ok(());
            }
            self.settled = true;
        } else {
            self.settled = false;
        }
        if self.open.is_some_and(|(open, _)| open != until) {
            self.close_advance()?;
        }
        if events.is_empty() {
            self.open = Some((until, now_ps));
            return Ok(());
        }
        self.open = None;
        let mut seen = Vec::with_capacity(events.len());
        for event in events {
            let (told, staged) = told(&self.device, &mut self.copies, event);
            if let Some(staged) = staged {
                self.write(staged)?;
            }
            seen.push(told);
        }
        self.write(Step::Advance { until, now_ps, seen })
    }
}

fn unwritten(error: io::Error) -> DeviceError {
    DeviceError::Unsupported(format!("the recording cannot be written: {error}"))
}

fn bytes_of(span: &HostSpan) -> Vec<u8> {
    let mut bytes = vec![0; span.bytes() as usize];
    span.read(0, &mut bytes);
    bytes
}

fn whole(memory: Arc<dyn HostMemory>) -> HostSpan {
    let bytes = memory.size();
    HostSpan::new(memory, 0, bytes).expect("memory is inside itself")
}

/// The record of an event. For a copy from the host, also the bytes that it found, if these differ
/// from the enqueued bytes.
fn told(
    device: &EmulatedGpu,
    copies: &mut BTreeMap<OperationId, Copied>,
    event: &Event,
) -> (Seen, Option<Step>) {
    let Event::Done { operation, time, outcome } = event else {
        return (Seen::of(event), None);
    };
    let (mut copied, mut staged) = (None, None);
    match copies.remove(operation) {
        Some(Copied::ToHost(digest)) => {
            copied = Some(*digest.lock().unwrap_or_else(PoisonError::into_inner));
        }
        Some(Copied::ToDevice(expected, found)) => {
            let bytes = std::mem::take(&mut *found.lock().unwrap_or_else(PoisonError::into_inner));
            if digest(0, &bytes) != expected {
                staged = Some(Step::Staged { operation: *operation, bytes });
            }
        }
        None => {}
    }
    let counters = device.grid_counters(*operation).map(Box::new);
    let outcome = format!("{outcome:?}");
    (Seen::Done { operation: *operation, time: *time, outcome, counters, copied }, staged)
}

impl Drop for Recorder {
    fn drop(&mut self) {
        let digest = self.device.memory_digest(None);
        let memory = Step::Memory { window: None, digest };
        let end = Step::End(self.device.now_ps(), Box::new(self.device.totals()));
        // No caller is left to receive an error. The recording then has no end.
        drop(self.close_advance().and_then(|()| self.write(memory)).and_then(|()| self.write(end)));
    }
}

impl Device for Recorder {
    fn facts(&self) -> &DeviceFacts {
        self.device.facts()
    }

    fn calibration(&self) -> Calibration {
        self.device.calibration()
    }

    fn l1(&self) -> CacheShape {
        self.device.l1()
    }

    fn identity(&self) -> String {
        self.device.identity()
    }

    fn sharing(&self) -> Sharing {
        self.device.sharing()
    }

    fn guards(&self) -> Guards {
        self.device.guards()
    }

    fn host_time(&self) -> Option<HostTime> {
        self.device.host_time()
    }

    fn is_at_rest(&self) -> bool {
        self.device.is_at_rest()
    }

    fn sm_groups(&self) -> &[SmSet] {
        self.device.sm_groups()
    }

    fn gpcs(&self) -> &[SmSet] {
        self.device.gpcs()
    }

    fn now(&self) -> Nanos {
        self.device.now()
    }

    fn reserve(&mut self, window: WindowId, bytes: u64) -> Result<DeviceAddress, DeviceError> {
        let base = self.device.reserve(window, bytes)?;
        self.note_entry(Entry::Reserve { window, bytes, base })?;
        Ok(base)
    }

    fn full_windows(&self, bytes: u64) -> usize {
        self.device.full_windows(bytes)
    }

    fn reserve_small(&mut self, window: WindowId) -> Result<SmallWindow, DeviceError> {
        let small = self.device.reserve_small(window)?;
        self.note_entry(Entry::ReserveSmall { window, base: small.range.start })?;
        Ok(small)
    }

    fn release(&mut self, window: WindowId) -> Result<(), DeviceError> {
        let digest = self.device.memory_digest(Some(window));
        self.device.release(window)?;
        self.note(Step::Memory { window: Some(window), digest })?;
        self.note_entry(Entry::Release { window })
    }

    fn allocate(&mut self, window: WindowId, range: AddressRange) -> Result<(), DeviceError> {
        self.device.allocate(window, range)?;
        self.note_entry(Entry::Allocate { window, start: range.start, bytes: range.bytes })
    }

    fn free(&mut self, start: DeviceAddress) -> Result<(), DeviceError> {
        self.device.free(start)?;
        self.note_entry(Entry::Free { start })
    }

    fn load_module(
        &mut self,
        module: ModuleId,
        window: WindowId,
        ptx: Arc<str>,
    ) -> Result<(), DeviceError> {
        self.device.load_module(module, window, Arc::clone(&ptx))?;
        self.note_entry(Entry::Load { module, window, ptx: ptx.to_string() })
    }

    fn reading(&self) -> Option<Arc<dyn Reading>> {
        self.device.reading()
    }

    fn unload_module(&mut self, module: ModuleId) -> Result<(), DeviceError> {
        self.device.unload_module(module)?;
        self.note_entry(Entry::Unload { module })
    }

    fn create_stream(&mut self, stream: StreamId) -> Result<(), DeviceError> {
        self.device.create_stream(stream)?;
        self.note(Step::CreateStream(stream))
    }

    fn destroy_stream(&mut self, stream: StreamId) -> Result<(), DeviceError> {
        self.device.destroy_stream(stream)?;
        self.note(Step::DestroyStream(stream))
    }

    fn enqueue(
        &mut self,
        stream: StreamId,
        operation: OperationId,
        work: Work,
    ) -> Result<(), DeviceError> {
        let entry = match &work {
            Work::Marker => Err(Step::Marker(stream, operation)),
            Work::Wait { on } => Err(Step::Wait(stream, operation, *on)),
            Work::WaitValue { address, word } if *word == AwaitedWord::at_least(word.value) => {
                Err(Step::WaitValue(stream, operation, *address, word.value))
            }
            Work::WaitValue { address, word } => {
                Err(Step::WaitWord(stream, operation, *address, *word))
            }
            Work::Launch(launch) | Work::LaunchOn { launch, .. } => {
                let GridSpec {
                    module,
                    kernel,
                    grid,
                    block,
                    cluster,
                    dynamic_shared,
                    params,
                    access,
                    ..
                } = launch.clone();
                Ok(Entry::Launch {
                    module,
                    kernel: kernel.to_string(),
                    grid,
                    block,
                    cluster: (cluster.count() > 1).then_some(cluster),
                    dynamic_shared,
                    access: access.iter().map(|range| (range.start, range.bytes)).collect(),
                    params,
                    sms: match &work {
                        Work::LaunchOn { sms, .. } => Some(*sms),
                        _ => None,
                    },
                })
            }
            Work::CopyToDevice { to, from } => Ok(Entry::Write { to: *to, bytes: bytes_of(from) }),
            Work::CopyToHost { to, from } => Ok(Entry::Read { from: *from, bytes: to.bytes() }),
            Work::CopyOnDevice { to, from, bytes } => {
                Ok(Entry::Copy { to: *to, from: *from, bytes: *bytes })
            }
            Work::Fill { to, value, width, count } => {
                Ok(Entry::Fill { to: *to, value: *value, width: *width, count: *count })
            }
        };
        let work = self.watch(operation, work);
        if let Err(error) = self.device.enqueue(stream, operation, work) {
            self.copies.remove(&operation);
            return Err(error);
        }
        self.note(match entry {
            Ok(entry) => Step::Entry { entry, queued: Some((stream, operation)) },
            Err(step) => step,
        })
    }

    fn cancel(&mut self, operation: OperationId) -> Result<(), DeviceError> {
        self.device.cancel(operation)?;
        self.note(Step::Cancel(operation))
    }

    fn peek(&mut self, address: DeviceAddress, into: &mut [u8]) -> Result<(), DeviceError> {
        self.device.peek(address, into)
    }

    fn poke(&mut self, address: DeviceAddress, bytes: &[u8]) -> Result<(), DeviceError> {
        self.device.poke(address, bytes)?;
        self.note_entry(Entry::Write { to: address, bytes: bytes.to_vec() })
    }

    fn relocation(&mut self) -> Option<&mut dyn Relocation> {
        Some(self)
    }

    fn aliasing(&mut self) -> Option<&mut dyn Aliasing> {
        Some(self)
    }

    fn lending(&mut self) -> Option<&mut dyn Lending> {
        Some(self)
    }

    fn tensor_maps(&self) -> Option<&dyn TensorMaps> {
        self.device.tensor_maps()
    }

    fn confining(&mut self) -> Option<&mut dyn Confining> {
        self.device.confining()
    }

    fn gating(&mut self) -> Option<&mut dyn Gating> {
        Some(self)
    }

    fn residency_trace(&mut self) -> Option<&mut dyn ResidencyTrace> {
        Some(self)
    }

    fn counting(&self) -> Option<&dyn Counting> {
        self.device.counting().is_some().then_some(self as &dyn Counting)
    }

    fn poll(&mut self, horizon: Horizon, events: &mut Vec<Event>) -> Activity {
        let (before, known) = (self.device.now_ps(), events.len());
        let activity = self.device.poll(horizon, events);
        if let Err(error) = self.advanced(horizon.until, before, &events[known..]) {
            events
                .push(Event::Lost { reason: format!("the recording cannot be written: {error}") });
        }
        activity
    }
}

impl Textures for Recorder {
    fn create_array(
        &mut self,
        window: WindowId,
        shape: &ArrayShape,
    ) -> Result<DeviceAddress, DeviceError> {
        let array = self.device.create_array(window, shape)?;
        self.note(Step::CreateArray(window, *shape, array))?;
        Ok(array)
    }

    fn destroy_array(&mut self, array: DeviceAddress) -> Result<(), DeviceError> {
        self.device.destroy_array(array)?;
        self.note(Step::DestroyArray(array))
    }

    fn create_texture(&mut self, window: WindowId, spec: &TextureSpec) -> Result<u64, DeviceError> {
        let texture = self.device.create_texture(window, spec)?;
        self.note(Step::CreateTexture(window, Box::new(*spec), texture))?;
        Ok(texture)
    }

    fn destroy_texture(&mut self, window: WindowId, texture: u64) -> Result<(), DeviceError> {
        self.device.destroy_texture(window, texture)?;
        self.note(Step::DestroyTexture(window, texture))
    }
}

impl Relocation for Recorder {
    fn relocate(&mut self, from: DeviceAddress, to: DeviceAddress) -> Result<(), DeviceError> {
        self.device.relocate(from, to)?;
        self.note(Step::Relocate(from, to))
    }
}

impl Aliasing for Recorder {
    fn alias(&mut self, home: DeviceAddress, range: AddressRange) -> Result<(), DeviceError> {
        self.device.alias(home, range)?;
        self.note(Step::Alias(home, range.start, range.bytes))
    }

    fn protect(&mut self, address: DeviceAddress, access: MemoryAccess) -> Result<(), DeviceError> {
        self.device.protect(address, access)?;
        self.note(Step::Protect(address, access))
    }
}

impl Lending for Recorder {
    fn lent_shape(&self, home: DeviceAddress) -> Result<LentShape, DeviceError> {
        self.device.lent_shape(home)
    }

    fn lend(&mut self, home: DeviceAddress, to: DeviceAddress) -> Result<(), DeviceError> {
        self.device.lend(home, to)?;
        self.note(Step::Lend(home, to))
    }
}

impl Gating for Recorder {
    fn gate(&mut self, sms: SmSet) -> Result<(), DeviceError> {
        self.device.gate(sms)?;
        self.note(Step::Gate(sms))
    }
}

impl ResidencyTrace for Recorder {
    fn trace_residency(&mut self, on: bool) -> Result<(), DeviceError> {
        self.device.trace_residency(on)?;
        self.note(Step::TraceResidency(on))
    }
}

impl Counting for Recorder {
    fn grid_counters(&self, operation: OperationId) -> Option<GridCounters> {
        self.device.grid_counters(operation)
    }

    fn counters(&self) -> DeviceCounters {
        self.device.counters()
    }
}
