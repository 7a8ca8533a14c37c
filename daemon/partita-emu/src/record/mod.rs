//! A file of all requests to an emulated GPU and their results. [`Recorder`] writes it, [`entries`]
//! and [`Recording`] read it, [`replay`] repeats it.
//!
//! The first line of a recording says what the file is and how the GPU was set up. Each further
//! line is a [`Step`] in JSON. A step with contents says their number of bytes, and the bytes
//! follow the line. The steps are all accepted calls in order, and between them the device's
//! progress and its events.
//!
//! Host memory for kernels ([`partita_device::HostMapping::map_host`]) is refused while a recording
//! is made: its program may change the memory at any moment, and a replay could not.
//!
//! [`entries`] gives the steps that decide the contents of memory, in the order of enqueueing. The
//! streams permit that order, because an operation can wait for earlier operations only.
//!
//! A recording whose process was killed has no [`Step::End`]. [`entries`] refuses it; [`replay`]
//! repeats what there is.

mod recorder;
pub mod replay;

pub use recorder::Recorder;

use crate::gpu::Options;
use crate::spec::{Spec, SpecError};
use partita_model::texture::{ArrayShape, TextureSpec};
use partita_model::{
    AwaitedWord, DeviceAddress, DeviceCounters, Dim3, GridCounters, MemoryAccess, ModuleId, Nanos,
    OperationId, SmSet, StreamId, WindowId,
};
use serde::{Deserialize, Serialize};
use std::fs::{File, TryLockError};
use std::io::{self, BufRead, BufReader, Read};
use std::path::Path;

/// The format of recordings that this version writes and reads.
const FORMAT: u32 = 2;

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
    /// A window that takes few addresses was reserved and got this address.
    ReserveSmall {
        /// Its id.
        window: WindowId,
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
    /// [`partita_device::Work::CopyOnDevice`].
    Copy {
        /// Where to.
        to: DeviceAddress,
        /// Where from.
        from: DeviceAddress,
        /// How much.
        bytes: u64,
    },
    /// [`partita_device::Work::Fill`].
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
    /// [`partita_device::Work::Launch`].
    Launch {
        /// The module.
        module: ModuleId,
        /// Its kernel.
        kernel: String,
        /// Extent of the grid in CTAs.
        grid: Dim3,
        /// Extent of a CTA in threads.
        block: Dim3,
        /// Extent of a cluster in CTAs, where the launch has clusters.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        cluster: Option<Dim3>,
        /// Dynamic shared memory per CTA.
        dynamic_shared: u32,
        /// First byte and size of each range that it may touch.
        access: Vec<(DeviceAddress, u64)>,
        /// The parameter space.
        #[serde(skip)]
        params: Vec<u8>,
        /// The SMs that its grid is kept to ([`partita_device::Work::LaunchOn`]).
        #[serde(default, skip_serializing_if = "Option::is_none")]
        sms: Option<SmSet>,
    },
    /// An operation that recordings do not support.
    Unsupported {
        /// The operation's name.
        what: String,
    },
}

/// One line of a recording.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Step {
    /// A call that decides the contents of memory.
    Entry {
        /// The call.
        entry: Entry,
        /// Stream and operation of enqueued work; `None` for a call that takes effect at once.
        queued: Option<(StreamId, OperationId)>,
    },
    /// [`partita_device::Work::Marker`].
    Marker(StreamId, OperationId),
    /// [`partita_device::Work::Wait`]; the last number is the awaited operation.
    Wait(StreamId, OperationId, OperationId),
    /// [`partita_device::Work::WaitValue`] for conditions other than [`Step::WaitValue`]'s.
    WaitWord(StreamId, OperationId, DeviceAddress, AwaitedWord),
    /// [`partita_device::Work::WaitValue`] until 64 bits at an address reach a value.
    WaitValue(StreamId, OperationId, DeviceAddress, u64),
    /// A stream was created.
    CreateStream(StreamId),
    /// A stream was destroyed.
    DestroyStream(StreamId),
    /// An operation was cancelled.
    Cancel(OperationId),
    /// An allocation was moved from the first address to the second.
    Relocate(DeviceAddress, DeviceAddress),
    /// The first bytes of the allocation at the first address were also mapped at the second
    /// address.
    Alias(DeviceAddress, DeviceAddress, u64),
    /// Kernels' access to the allocation at an address changed.
    Protect(DeviceAddress, MemoryAccess),
    /// The allocation at the first address was also mapped at the second, in another window.
    Lend(DeviceAddress, DeviceAddress),
    /// An array was created at this address.
    CreateArray(WindowId, ArrayShape, DeviceAddress),
    /// An array was destroyed.
    DestroyArray(DeviceAddress),
    /// A texture or surface object was created with this number.
    CreateTexture(WindowId, Box<TextureSpec>, u64),
    /// A texture or surface object was destroyed.
    DestroyTexture(WindowId, u64),
    /// The tracing of residency was turned on or off.
    TraceResidency(bool),
    /// These SMs were gated, and all others powered.
    Gate(SmSet),
    /// The bytes of a copy from the host changed between its enqueueing and its execution.
    Staged {
        /// The copy.
        operation: OperationId,
        /// The bytes that were copied.
        #[serde(skip)]
        bytes: Vec<u8>,
    },
    /// The device advanced.
    Advance {
        /// The latest time to reach, if any.
        until: Option<Nanos>,
        /// The time reached, in picoseconds.
        now_ps: u64,
        /// The events.
        seen: Vec<Seen>,
    },
    /// A digest of the live memory of one window, or of all windows.
    Memory {
        /// The window; `None` for all.
        window: Option<WindowId>,
        /// Digest of addresses and contents.
        digest: u64,
    },
    /// The end of the run: its time in picoseconds, and the device's counters.
    End(u64, Box<DeviceCounters>),
}

/// Something that the device told.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Seen {
    /// An operation has ended.
    Done {
        /// The operation.
        operation: OperationId,
        /// The time of its end.
        time: Nanos,
        /// The outcome, as text.
        outcome: String,
        /// The counters of a grid.
        counters: Option<Box<GridCounters>>,
        /// Digest of the bytes that a copy to the host wrote.
        copied: Option<u64>,
    },
    /// Digest of any other event.
    Event(u64),
}

#[derive(Serialize, Deserialize)]
struct Line {
    step: Step,
    /// Number of bytes that follow the line.
    contents: usize,
}

/// The first line.
#[derive(Serialize, Deserialize)]
struct Header {
    partita_recording: u32,
    version: String,
    /// The specification in TOML.
    spec: String,
    options: Options,
}

impl Step {
    fn contents(&mut self) -> Option<&mut Vec<u8>> {
        match self {
            Step::Entry { entry: Entry::Write { bytes, .. }, .. } | Step::Staged { bytes, .. } => {
                Some(bytes)
            }
            Step::Entry { entry: Entry::Launch { params, .. }, .. } => Some(params),
            _ => None,
        }
    }
}

/// Why a file is not read as a recording.
#[derive(Debug, thiserror::Error)]
pub enum RecordingError {
    /// The system's error.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// The file is not a recording.
    #[error(
        "this is no recording of Partita: make one with `partita run --device emu,record=FILE \
         PROGRAM`"
    )]
    Foreign,
    /// Another version made the recording.
    #[error(
        "this is a recording of format {found}, made by Partita {version}; this is Partita {}, \
         which reads format \
         {FORMAT}: record again, or read it with that version",
        env!("CARGO_PKG_VERSION")
    )]
    Version {
        /// The file's format.
        found: u32,
        /// The program that wrote it.
        version: String,
    },
    /// The recording's specification is not valid.
    #[error("the recording's specification cannot be used: {0}")]
    Spec(#[from] SpecError),
    /// A line is malformed.
    #[error("the recording is damaged: step {step} at byte {byte} cannot be read: {reason}")]
    Damaged {
        /// Number of the line, from 1.
        step: usize,
        /// First byte of the line.
        byte: u64,
        /// The reason.
        reason: String,
    },
    /// The last step is not whole.
    #[error("the recording is cut off: step {step} at byte {byte} is not all there")]
    Truncated {
        /// Number of the line, from 1.
        step: usize,
        /// First byte of the line.
        byte: u64,
    },
    /// The end is missing.
    #[error(
        "the recording has no end behind step {steps} at byte {bytes}: its daemon was killed, or \
         the file was cut; record again, and end the daemon by SIGTERM"
    )]
    NoEnd {
        /// The steps that are there.
        steps: usize,
        /// The bytes that are there.
        bytes: u64,
    },
    /// The end has not been written yet.
    #[error("the recording has no end yet, because a daemon still records: end the daemon first")]
    Unfinished,
}

/// A recording that is being read, step by step.
pub struct Recording {
    /// The modelled GPU.
    pub spec: Spec,
    /// How it was set up.
    pub options: Options,
    /// The version of Partita that wrote it.
    pub version: String,
    file: BufReader<File>,
    byte: u64,
    steps: usize,
}

impl Recording {
    /// Opens a recording.
    ///
    /// # Errors
    /// [`RecordingError`].
    pub fn open(path: &Path) -> Result<Recording, RecordingError> {
        /// The longest first line in bytes; specifications and options are shorter.
        const LONGEST: u64 = 1 << 16;
        let mut file = BufReader::new(File::open(path)?);
        let mut line = Vec::new();
        file.by_ref().take(LONGEST).read_until(b'\n', &mut line)?;
        let value: serde_json::Value =
            serde_json::from_slice(&line).map_err(|_| RecordingError::Foreign)?;
        let format =
            value["partita_recording"].as_u64().and_then(|format| u32::try_from(format).ok());
        let found = format.ok_or(RecordingError::Foreign)?;
        if found != FORMAT {
            let version = value["version"].as_str().unwrap_or("of an unknown version").to_owned();
            return Err(RecordingError::Version { found, version });
        }
        let damaged = |error: serde_json::Error| RecordingError::Damaged {
            step: 0,
            byte: 0,
            reason: error.to_string(),
        };
        let header: Header = serde_json::from_value(value).map_err(damaged)?;
        let spec = Spec::from_text("in the recording", &header.spec)?;
        let byte = line.len() as u64;
        Ok(Recording {
            spec,
            options: header.options,
            version: header.version,
            file,
            byte,
            steps: 0,
        })
    }

    /// Whether a device still records into the file.
    fn is_being_made(&self) -> bool {
        let file = self.file.get_ref();
        match file.try_lock_shared() {
            Err(TryLockError::WouldBlock) => true,
            Ok(()) => {
                // A reader keeps no recorder away.
                drop(file.unlock());
                false
            }
            // A file system without locks.
            Err(TryLockError::Error(_)) => false,
        }
    }

    /// The next step; `None` behind the last one, which is [`Step::End`] in a whole recording.
    ///
    /// # Errors
    /// [`RecordingError`].
    pub fn step(&mut self) -> Result<Option<Step>, RecordingError> {
        let mut text = Vec::new();
        self.file.read_until(b'\n', &mut text)?;
        if text.is_empty() {
            return Ok(None);
        }
        self.steps += 1;
        let (step, byte) = (self.steps, self.byte);
        if text.last() != Some(&b'\n') {
            return Err(RecordingError::Truncated { step, byte });
        }
        let damaged = |error: serde_json::Error| RecordingError::Damaged {
            step,
            byte,
            reason: error.to_string(),
        };
        let Line { step: mut read, contents } = serde_json::from_slice(&text).map_err(damaged)?;
        self.byte += text.len() as u64 + contents as u64;
        if let Some(into) = read.contents()
            && self.file.by_ref().take(contents as u64).read_to_end(into)? < contents
        {
            return Err(RecordingError::Truncated { step, byte });
        }
        Ok(Some(read))
    }
}

/// What of a whole recording decides the contents of memory.
///
/// # Errors
/// Where the file cannot be read, is no recording, or has no end: [`RecordingError::Truncated`],
/// [`RecordingError::NoEnd`], and [`RecordingError::Unfinished`] while a device records.
pub fn entries(path: &Path) -> Result<Vec<Entry>, RecordingError> {
    let mut recording = Recording::open(path)?;
    let is_being_made = recording.is_being_made();
    let mut entries = Vec::new();
    let unsupported = |what: &str| Entry::Unsupported { what: what.to_owned() };
    loop {
        match recording.step() {
            Ok(Some(Step::End(..))) => return Ok(entries),
            Ok(None) | Err(RecordingError::Truncated { .. }) if is_being_made => {
                return Err(RecordingError::Unfinished);
            }
            Ok(None) => {
                let Recording { steps, byte: bytes, .. } = recording;
                return Err(RecordingError::NoEnd { steps, bytes });
            }
            Err(error) => return Err(error),
            Ok(Some(Step::Entry { entry, .. })) => entries.push(entry),
            Ok(Some(Step::Cancel(_))) => entries.push(unsupported("a cancelled operation")),
            Ok(Some(Step::Relocate(..))) => entries.push(unsupported("memory that moves")),
            Ok(Some(Step::Alias(..))) => entries.push(unsupported("memory at several addresses")),
            Ok(Some(Step::Lend(..))) => entries.push(unsupported("memory of several processes")),
            Ok(Some(Step::CreateArray(..))) => entries.push(unsupported("an array")),
            Ok(Some(Step::CreateTexture(..))) => entries.push(unsupported("a texture")),
            Ok(Some(_)) => {}
        }
    }
}

/// Mixes bytes into a digest that depends on their order. A change of any byte changes the digest,
/// because multiplication by an odd number and exclusive or with a shift are both invertible.
pub(crate) fn digest(before: u64, bytes: &[u8]) -> u64 {
    let mix = |digest: u64, word: u64| {
        let product = (digest ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        product ^ (product >> 32)
    };
    let (words, rest) = bytes.as_chunks::<8>();
    let digest = words.iter().fold(before, |digest, word| mix(digest, u64::from_le_bytes(*word)));
    rest.iter().fold(mix(digest, bytes.len() as u64), |digest, byte| mix(digest, u64::from(*byte)))
}

#[cfg(test)]
mod tests;
