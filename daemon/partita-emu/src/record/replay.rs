//! Repeats a recording in this process and compares the results.
//!
//! The same calls at the same device times must give the same completion times, outcomes and
//! counters of all operations, the same copies to the host, and the same memory when a window is
//! given back and at the end.
//!
//! Where a run had a horizon of time or work, the replay advances turn by turn until it has come as
//! far.

use super::{Entry, Recording, RecordingError, Seen, Step, digest};
use crate::EmulatedGpu;
use partita_device::{
    AddressRange, Aliasing, Counting, Device, DeviceError, Event, Gating, GridSpec, Horizon,
    HostMemory, HostSpan, Lending, Relocation, ResidencyTrace, Textures, Work,
};
use partita_model::{AwaitedWord, Nanos, OperationId, StreamId, WindowId};
use serde::Serialize;
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

/// The most differences that are described in words.
const TOLD: usize = 20;

/// The result of a replay.
#[derive(Clone, PartialEq, Debug, Default, Serialize)]
pub struct Comparison {
    /// The modelled GPU.
    pub device: String,
    /// The version of Partita that recorded.
    pub recorded_by: String,
    /// Steps of the recording.
    pub steps: u64,
    /// Grids.
    pub launches: u64,
    /// Copies between host and device, inside the device, and fills.
    pub copies: u64,
    /// Writes beside all streams: signals to running kernels, such as resizes, among them.
    pub writes: u64,
    /// Completions that were compared: time, outcome, counters, and what was copied to the host.
    pub completions: u64,
    /// Other events that were compared.
    pub events: u64,
    /// Contents of memory that were compared.
    pub memories: u64,
    /// Device time at the end, in nanoseconds.
    pub device_time_ns: u64,
    /// Whether the recording has an end; one of a process that was killed has none.
    pub complete: bool,
    /// How many things were different.
    pub different: u64,
    /// The first of them in words.
    pub differences: Vec<String>,
}

impl Seen {
    /// The record of an event that is no completion.
    pub(super) fn of(event: &Event) -> Seen {
        Seen::Event(digest(0, format!("{event:?}").as_bytes()))
    }
}

/// The bytes of a copy from the host.
struct Source(Vec<u8>);

impl HostMemory for Source {
    fn size(&self) -> u64 {
        self.0.len() as u64
    }

    fn read(&self, offset: u64, into: &mut [u8]) {
        let start = offset as usize;
        into.copy_from_slice(&self.0[start..start + into.len()]);
    }

    fn write(&self, _: u64, _: &[u8]) {}
}

/// The target of a copy to the host. Only a digest of the bytes is kept.
struct Sink {
    bytes: u64,
    digest: Arc<Mutex<u64>>,
}

impl HostMemory for Sink {
    fn size(&self) -> u64 {
        self.bytes
    }

    fn read(&self, _: u64, into: &mut [u8]) {
        into.fill(0);
    }

    fn write(&self, _: u64, from: &[u8]) {
        let mut before = self.digest.lock().unwrap_or_else(PoisonError::into_inner);
        *before = digest(*before, from);
    }
}

struct Replay {
    device: EmulatedGpu,
    /// Bytes that copies from the host found, where they differ from the enqueued bytes.
    staged: BTreeMap<OperationId, Vec<u8>>,
    to_host: BTreeMap<OperationId, Arc<Mutex<u64>>>,
    found: Comparison,
}

/// Replays a recording. One of a process that was killed has no end, and is replayed as far as it
/// goes ([`Comparison::complete`]).
///
/// # Errors
/// Where it cannot be read to its last byte.
pub fn replay(path: &Path) -> Result<Comparison, RecordingError> {
    let mut staged = BTreeMap::new();
    let mut recording = Recording::open(path)?;
    while let Some(step) = recording.step()? {
        if let Step::Staged { operation, bytes } = step {
            staged.insert(operation, bytes);
        }
    }
    let mut recording = Recording::open(path)?;
    let (spec, options) = (recording.spec.clone(), recording.options);
    let found = Comparison {
        device: spec.name.clone(),
        recorded_by: recording.version.clone(),
        ..Comparison::default()
    };
    let device = EmulatedGpu::new(spec, options);
    let mut replay = Replay { device, staged, to_host: BTreeMap::new(), found };
    while let Some(step) = recording.step()? {
        replay.found.steps += 1;
        replay.step(step);
    }
    replay.found.device_time_ns = replay.device.now().0;
    Ok(replay.found)
}

impl Replay {
    fn differs(&mut self, what: impl FnOnce() -> String) {
        self.found.different += 1;
        if self.found.differences.len() < TOLD {
            let step = self.found.steps;
            self.found.differences.push(format!("step {step}: {}", what()));
        }
    }

    /// Compares the answer to a call with the answer that was recorded.
    fn accepted<T: PartialEq + std::fmt::Debug>(
        &mut self,
        result: Result<T, DeviceError>,
        before: &T,
    ) {
        match result {
            Ok(now) if now == *before => {}
            Ok(now) => {
                self.differs(|| format!("the device answers {now:x?} and answered {before:x?}"))
            }
            Err(error) => {
                self.differs(|| format!("the device refuses what it had accepted: {error}"))
            }
        }
    }

    fn step(&mut self, step: Step) {
        let device = &mut self.device;
        match step {
            Step::Entry { entry, queued: Some((stream, operation)) } => {
                self.enqueue(stream, operation, entry)
            }
            Step::Entry { entry, queued: None } => self.entry(entry),
            Step::Marker(stream, operation) => self.work(stream, operation, Work::Marker),
            Step::Wait(stream, operation, on) => self.work(stream, operation, Work::Wait { on }),
            Step::WaitValue(stream, operation, address, value) => {
                let word = AwaitedWord::at_least(value);
                self.work(stream, operation, Work::WaitValue { address, word });
            }
            Step::WaitWord(stream, operation, address, word) => {
                self.work(stream, operation, Work::WaitValue { address, word });
            }
            Step::CreateStream(stream) => {
                let result = device.create_stream(stream);
                self.accepted(result, &());
            }
            Step::DestroyStream(stream) => {
                let result = device.destroy_stream(stream);
                self.accepted(result, &());
            }
            Step::Cancel(operation) => {
                let result = device.cancel(operation);
                self.accepted(result, &());
            }
            Step::Relocate(from, to) => {
                let result = device.relocate(from, to);
                self.accepted(result, &());
            }
            Step::Alias(home, start, bytes) => {
                let result = device.alias(home, AddressRange { start, bytes });
                self.accepted(result, &());
            }
            Step::Lend(home, to) => {
                let result = device.lend(home, to);
                self.accepted(result, &());
            }
            Step::Protect(address, access) => {
                let result = device.protect(address, access);
                self.accepted(result, &());
            }
            Step::CreateArray(window, shape, array) => {
                let result = device.create_array(window, &shape);
                self.accepted(result, &array);
            }
            Step::DestroyArray(array) => {
                let result = device.destroy_array(array);
                self.accepted(result, &());
            }
            Step::CreateTexture(window, spec, texture) => {
                let result = device.create_texture(window, &spec);
                self.accepted(result, &texture);
            }
            Step::DestroyTexture(window, texture) => {
                let result = device.destroy_texture(window, texture);
                self.accepted(result, &());
            }
            Step::TraceResidency(on) => {
                let result = device.trace_residency(on);
                self.accepted(result, &());
            }
            Step::Gate(sms) => {
                let result = device.gate(sms);
                self.accepted(result, &());
            }
            Step::Staged { .. } => {}
            Step::Advance { until, now_ps, seen } => self.advance(until, now_ps, &seen),
            Step::Memory { window, digest } => self.memory(window, digest),
            Step::End(now_ps, counters) => {
                self.found.complete = true;
                let (now, totals) = (self.device.now_ps(), self.device.totals());
                if now != now_ps {
                    self.differs(|| format!("the run ended at {now_ps} ps, this one at {now} ps"));
                }
                if totals != *counters {
                    self.differs(|| {
                        format!("the device's counters are {totals:?} and were {counters:?}")
                    });
                }
            }
        }
    }

    fn memory(&mut self, window: Option<WindowId>, expected: u64) {
        self.found.memories += 1;
        if self.device.memory_digest(window) != expected {
            self.differs(|| match window {
                Some(window) => format!("the memory of {window} holds something else"),
                None => "memory holds something else at the end".to_owned(),
            });
        }
    }

    /// Repeats a call that took effect at once.
    fn entry(&mut self, entry: Entry) {
        let device = &mut self.device;
        match entry {
            Entry::Reserve { window, bytes, base } => {
                let result = device.reserve(window, bytes);
                self.accepted(result, &base);
            }
            Entry::ReserveSmall { window, base } => {
                let result = device.reserve_small(window).map(|small| small.range.start);
                self.accepted(result, &base);
            }
            Entry::Release { window } => {
                let result = device.release(window);
                self.accepted(result, &());
            }
            Entry::Allocate { window, start, bytes } => {
                let result = device.allocate(window, AddressRange { start, bytes });
                self.accepted(result, &());
            }
            Entry::Free { start } => {
                let result = device.free(start);
                self.accepted(result, &());
            }
            Entry::Load { module, window, ptx } => {
                let result = device.load_module(module, window, ptx.into());
                self.accepted(result, &());
            }
            Entry::Unload { module } => {
                let result = device.unload_module(module);
                self.accepted(result, &());
            }
            Entry::Write { to, bytes } => {
                self.found.writes += 1;
                let result = device.poke(to, &bytes);
                self.accepted(result, &());
            }
            Entry::Read { .. }
            | Entry::Copy { .. }
            | Entry::Fill { .. }
            | Entry::Launch { .. }
            | Entry::Unsupported { .. } => {
                self.differs(|| "nobody does that beside all streams".to_owned())
            }
        }
    }

    fn enqueue(&mut self, stream: StreamId, operation: OperationId, entry: Entry) {
        let work = match entry {
            Entry::Write { to, bytes } => {
                let bytes = self.staged.remove(&operation).unwrap_or(bytes);
                Work::CopyToDevice { to, from: whole(Arc::new(Source(bytes))) }
            }
            Entry::Read { from, bytes } => {
                let digest = Arc::new(Mutex::new(0));
                self.to_host.insert(operation, Arc::clone(&digest));
                Work::CopyToHost { to: whole(Arc::new(Sink { bytes, digest })), from }
            }
            Entry::Copy { to, from, bytes } => Work::CopyOnDevice { to, from, bytes },
            Entry::Fill { to, value, width, count } => Work::Fill { to, value, width, count },
            Entry::Launch {
                module,
                kernel,
                grid,
                block,
                cluster,
                dynamic_shared,
                access,
                params,
                sms,
            } => {
                let access =
                    access.iter().map(|&(start, bytes)| AddressRange { start, bytes }).collect();
                let kernel = kernel.into();
                let launch = GridSpec {
                    module,
                    kernel,
                    grid,
                    block,
                    dynamic_shared,
                    params,
                    access,
                    cooperative: false,
                    cluster: cluster.unwrap_or(partita_model::Dim3::linear(1)),
                };
                match sms {
                    Some(sms) => Work::LaunchOn { launch, sms },
                    None => Work::Launch(launch),
                }
            }
            _ => return self.differs(|| "that is nothing that is enqueued".to_owned()),
        };
        self.work(stream, operation, work);
    }

    fn work(&mut self, stream: StreamId, operation: OperationId, work: Work) {
        match &work {
            Work::Launch(_) | Work::LaunchOn { .. } => self.found.launches += 1,
            Work::CopyToDevice { .. }
            | Work::CopyToHost { .. }
            | Work::CopyOnDevice { .. }
            | Work::Fill { .. } => self.found.copies += 1,
            Work::Marker | Work::Wait { .. } | Work::WaitValue { .. } => {}
        }
        let result = self.device.enqueue(stream, operation, work);
        self.accepted(result, &());
    }

    /// Advances to the recorded time.
    fn advance(&mut self, until: Option<Nanos>, now_ps: u64, seen: &[Seen]) {
        let mut events = Vec::new();
        loop {
            let (before, known) = (self.device.now_ps(), events.len());
            self.device.poll(Horizon { until, warp_instructions: 1 }, &mut events);
            let now = self.device.now_ps();
            let rests = now == before && events.len() == known;
            if now > now_ps || now == now_ps && events.len() >= seen.len() || rests {
                break;
            }
        }
        let now = self.device.now_ps();
        if now != now_ps {
            self.differs(|| {
                format!("the device comes as far as {now} ps and came as far as {now_ps} ps")
            });
        }
        if events.len() != seen.len() {
            self.differs(|| {
                format!("the device tells {} things and told {}", events.len(), seen.len())
            });
        }
        for (event, before) in events.iter().zip(seen) {
            self.compare(event, before);
        }
    }

    fn compare(&mut self, event: &Event, before: &Seen) {
        let now = match event {
            Event::Done { operation, time, outcome } => {
                self.found.completions += 1;
                let digest = self.to_host.remove(operation);
                Seen::Done {
                    operation: *operation,
                    time: *time,
                    outcome: format!("{outcome:?}"),
                    counters: self.device.grid_counters(*operation).map(Box::new),
                    copied: digest
                        .map(|digest| *digest.lock().unwrap_or_else(PoisonError::into_inner)),
                }
            }
            other => {
                self.found.events += 1;
                Seen::of(other)
            }
        };
        if now != *before {
            self.differs(|| match (&now, before) {
                (Seen::Done { .. }, Seen::Done { .. }) => format!("{now:?}, and it was {before:?}"),
                _ => format!("the device tells another thing: {event:?}"),
            });
        }
    }
}

fn whole(memory: Arc<dyn HostMemory>) -> HostSpan {
    let bytes = memory.size();
    HostSpan::new(memory, 0, bytes).expect("memory is inside itself")
}
