//! What a device was asked to do, in a file: [`Recorder`] writes it, [`entries`] reads it.
//!
//! A recording has what decides the contents of memory, in the order in which it was enqueued: one after the other is an
//! order that the streams permit, because an operation can wait only for earlier ones. Markers, waits and the streams
//! themselves are left out. A copy from the host is recorded with the bytes as they are when it is enqueued. Arrays and textures are
//! not recorded; an entry says that they were used.
//!
//! An entry is a line of JSON; those with contents are followed by so many bytes as the line says.

use partita_device::{Activity, AddressRange, Device, DeviceError, Event, Horizon, Launch, Work};
use partita_model::texture::{ArrayShape, TextureSpec};
use partita_model::{
    CacheShape, Calibration, DeviceAddress, DeviceCounters, DeviceFacts, Dim3, GridCounters, ModuleId, Nanos,
    OperationId, Sharing, SmSet, StreamId, WindowId,
};
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::io::{self, BufRead, BufReader, BufWriter, Read, Write};
use std::path::Path;
use std::sync::Arc;

/// One thing that the device was asked to do.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Entry {
    /// A window was reserved and got this address.
    Reserve {
        /// Its id.
        window: WindowId,
        /// Its size.
        bytes: u64,
        /// Where it begins.
        base: DeviceAddress,
    },
    /// A window was given back.
    Release {
        /// Its id.
        window: WindowId,
    },
    /// A range became live.
    Allocate {
        /// The window that it lies in.
        window: WindowId,
        /// Its first byte.
        start: DeviceAddress,
        /// Its size.
        bytes: u64,
    },
    /// The range that begins there is no longer live.
    Free {
        /// Its first byte.
        start: DeviceAddress,
    },
    /// A module was loaded.
    Load {
        /// Its id.
        module: ModuleId,
        /// The window that its variables lie in.
        window: WindowId,
        /// The text.
        ptx: String,
    },
    /// A module was unloaded.
    Unload {
        /// Its id.
        module: ModuleId,
    },
    /// Memory was written from outside.
    Write {
        /// Where.
        to: DeviceAddress,
        /// What.
        #[serde(skip)]
        bytes: Vec<u8>,
    },
    /// Memory was read to the outside.
    Read {
        /// Where.
        from: DeviceAddress,
        /// How much.
        bytes: u64,
    },
    /// [`Work::CopyOnDevice`].
    Copy {
        /// Where to.
        to: DeviceAddress,
        /// Where from.
        from: DeviceAddress,
        /// How much.
        bytes: u64,
    },
    /// [`Work::Fill`].
    Fill {
        /// Where to.
        to: DeviceAddress,
        /// The element.
        value: u32,
        /// Its size.
        width: u8,
        /// How many.
        count: u64,
    },
    /// [`Work::Launch`].
    Launch {
        /// The module.
        module: ModuleId,
        /// Its kernel.
        kernel: String,
        /// Extent of the grid in CTAs.
        grid: Dim3,
        /// Extent of a CTA in threads.
        block: Dim3,
        /// Dynamic shared memory per CTA.
        dynamic_shared: u32,
        /// First byte and size of each range that it may touch.
        access: Vec<(DeviceAddress, u64)>,
        /// The parameter space.
        #[serde(skip)]
        params: Vec<u8>,
    },
    /// Something that recordings do not have.
    Unsupported {
        /// What.
        what: String,
    },
}

#[derive(Serialize, Deserialize)]
struct Line {
    entry: Entry,
    /// Bytes that follow the line.
    contents: usize,
}

impl Entry {
    fn contents(&mut self) -> Option<&mut Vec<u8>> {
        match self {
            Entry::Write { bytes, .. } => Some(bytes),
            Entry::Launch { params, .. } => Some(params),
            _ => None,
        }
    }
}

/// Reads a recording. One whose end is missing gives what is whole of it.
///
/// # Errors
/// Where the file cannot be read, or is no recording.
pub fn entries(path: &Path) -> io::Result<Vec<Entry>> {
    let mut file = BufReader::new(File::open(path)?);
    let mut entries = Vec::new();
    let mut text = String::new();
    while file.read_line(&mut text)? > 0 && text.ends_with('\n') {
        let Line { mut entry, contents } = serde_json::from_str(&text)?;
        if let Some(into) = entry.contents()
            && file.by_ref().take(contents as u64).read_to_end(into)? < contents
        {
            break;
        }
        entries.push(entry);
        text.clear();
    }
    Ok(entries)
}

/// A device that writes down what it is asked to do.
#[derive(Debug)]
pub struct Recorder<D> {
    device: D,
    file: BufWriter<File>,
}

impl<D: Device> Recorder<D> {
    /// Records into this file, which is made, or emptied.
    ///
    /// # Errors
    /// Where that is not possible.
    pub fn new(device: D, path: &Path) -> io::Result<Self> {
        Ok(Recorder { device, file: BufWriter::new(File::create(path)?) })
    }

    /// Written at once: whoever has the device may be killed at any moment.
    fn note(&mut self, mut entry: Entry) -> Result<(), DeviceError> {
        let contents = entry.contents().map_or(Vec::new(), std::mem::take);
        let line = Line { entry, contents: contents.len() };
        let mut write = || {
            serde_json::to_writer(&mut self.file, &line)?;
            self.file.write_all(b"\n")?;
            self.file.write_all(&contents)?;
            self.file.flush()
        };
        write().map_err(|error| DeviceError::Unsupported(format!("the recording cannot be written: {error}")))
    }

    fn note_work(&mut self, work: &Work) -> Result<(), DeviceError> {
        match work {
            Work::Marker | Work::Wait { .. } | Work::WaitValue { .. } => Ok(()),
            Work::Launch(launch) => {
                let Launch { module, kernel, grid, block, dynamic_shared, params, access } = launch.clone();
                self.note(Entry::Launch {
                    module,
                    kernel: kernel.to_string(),
                    grid,
                    block,
                    dynamic_shared,
                    access: access.iter().map(|range| (range.start, range.bytes)).collect(),
                    params,
                })
            }
            Work::CopyToDevice { to, from } => {
                let mut bytes = vec![0; from.bytes() as usize];
                from.read(0, &mut bytes);
                self.note(Entry::Write { to: *to, bytes })
            }
            Work::CopyToHost { to, from } => self.note(Entry::Read { from: *from, bytes: to.bytes() }),
            Work::CopyOnDevice { to, from, bytes } => {
                self.note(Entry::Copy { to: *to, from: *from, bytes: *bytes })
            }
            Work::Fill { to, value, width, count } => {
                self.note(Entry::Fill { to: *to, value: *value, width: *width, count: *count })
            }
        }
    }
}

impl<D: Device> Device for Recorder<D> {
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

    fn now(&self) -> Nanos {
        self.device.now()
    }

    fn reserve(&mut self, window: WindowId, bytes: u64) -> Result<DeviceAddress, DeviceError> {
        let base = self.device.reserve(window, bytes)?;
        self.note(Entry::Reserve { window, bytes, base })?;
        Ok(base)
    }

    fn release(&mut self, window: WindowId) -> Result<(), DeviceError> {
        self.note(Entry::Release { window })?;
        self.device.release(window)
    }

    fn allocate(&mut self, window: WindowId, range: AddressRange) -> Result<(), DeviceError> {
        self.device.allocate(window, range)?;
        self.note(Entry::Allocate { window, start: range.start, bytes: range.bytes })
    }

    fn free(&mut self, start: DeviceAddress) -> Result<(), DeviceError> {
        self.device.free(start)?;
        self.note(Entry::Free { start })
    }

    fn load_module(&mut self, module: ModuleId, window: WindowId, ptx: Arc<str>) -> Result<(), DeviceError> {
        self.note(Entry::Load { module, window, ptx: ptx.to_string() })?;
        self.device.load_module(module, window, ptx)
    }

    fn unload_module(&mut self, module: ModuleId) -> Result<(), DeviceError> {
        self.device.unload_module(module)?;
        self.note(Entry::Unload { module })
    }

    fn create_stream(&mut self, stream: StreamId) -> Result<(), DeviceError> {
        self.device.create_stream(stream)
    }

    fn destroy_stream(&mut self, stream: StreamId) -> Result<(), DeviceError> {
        self.device.destroy_stream(stream)
    }

    fn enqueue(&mut self, stream: StreamId, operation: OperationId, work: Work) -> Result<(), DeviceError> {
        self.device.enqueue(stream, operation, work.clone())?;
        self.note_work(&work)
    }

    fn cancel(&mut self, operation: OperationId) -> Result<(), DeviceError> {
        self.note(Entry::Unsupported { what: "a cancelled operation".to_owned() })?;
        self.device.cancel(operation)
    }

    fn peek(&mut self, address: DeviceAddress, into: &mut [u8]) -> Result<(), DeviceError> {
        self.device.peek(address, into)
    }

    fn poke(&mut self, address: DeviceAddress, bytes: &[u8]) -> Result<(), DeviceError> {
        self.device.poke(address, bytes)?;
        self.note(Entry::Write { to: address, bytes: bytes.to_vec() })
    }

    fn create_array(&mut self, window: WindowId, shape: &ArrayShape) -> Result<DeviceAddress, DeviceError> {
        self.note(Entry::Unsupported { what: "an array".to_owned() })?;
        self.device.create_array(window, shape)
    }

    fn destroy_array(&mut self, array: DeviceAddress) -> Result<(), DeviceError> {
        self.device.destroy_array(array)
    }

    fn create_texture(&mut self, window: WindowId, spec: &TextureSpec) -> Result<u64, DeviceError> {
        self.note(Entry::Unsupported { what: "a texture".to_owned() })?;
        self.device.create_texture(window, spec)
    }

    fn destroy_texture(&mut self, window: WindowId, texture: u64) -> Result<(), DeviceError> {
        self.device.destroy_texture(window, texture)
    }

    fn trace_residency(&mut self, on: bool) -> Result<(), DeviceError> {
        self.device.trace_residency(on)
    }

    fn gate(&mut self, sms: SmSet) -> Result<(), DeviceError> {
        self.device.gate(sms)
    }

    fn grid_counters(&self, operation: OperationId) -> Option<GridCounters> {
        self.device.grid_counters(operation)
    }

    fn counters(&self) -> Option<DeviceCounters> {
        self.device.counters()
    }

    fn poll(&mut self, horizon: Horizon, events: &mut Vec<Event>) -> Activity {
        self.device.poll(horizon, events)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{EmulatedGpu, Options, Spec};

    #[test]
    fn what_was_asked_is_read_back() {
        let folder = std::env::temp_dir().join(format!("partita-record-{}", std::process::id()));
        let gpu = EmulatedGpu::new(Spec::named("cd-search-24").unwrap(), Options::default());
        let mut recorder = Recorder::new(gpu, &folder).unwrap();
        let window = WindowId(7);
        let base = recorder.reserve(window, 1 << 21).unwrap();
        recorder.allocate(window, AddressRange { start: base, bytes: 64 }).unwrap();
        recorder.poke(base, b"\n{\0").unwrap();
        recorder.create_stream(StreamId(0)).unwrap();
        let fill = Work::Fill { to: base, value: 3, width: 4, count: 2 };
        recorder.enqueue(StreamId(0), OperationId(1), fill).unwrap();
        assert!(recorder.free(DeviceAddress(base.0 + 1)).is_err(), "what is refused is not recorded");
        recorder.free(base).unwrap();
        let mut whole = std::fs::read(&folder).unwrap();
        let expected = [
            Entry::Reserve { window, bytes: 1 << 21, base },
            Entry::Allocate { window, start: base, bytes: 64 },
            Entry::Write { to: base, bytes: b"\n{\0".to_vec() },
            Entry::Fill { to: base, value: 3, width: 4, count: 2 },
            Entry::Free { start: base },
        ];
        assert_eq!(entries(&folder).unwrap(), expected);
        whole.pop();
        std::fs::write(&folder, whole).unwrap();
        assert_eq!(entries(&folder).unwrap(), expected[..4]);
        std::fs::remove_file(&folder).unwrap();
    }
}
