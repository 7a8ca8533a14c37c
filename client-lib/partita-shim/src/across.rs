//! Work that involves two devices: copies between devices, and streams that wait for another
//! device's events.
//!
//! No device knows another device, so this process connects them. A stream that must wait stands at
//! a gate, and this module opens the gate. For an event, the gate opens when a stream of the
//! event's device, made for this purpose, has reached the event. For a copy, the gate opens when
//! the bytes have been carried. The order is that of the stream that the program names. No thread
//! of the program waits where CUDA's call would not wait, except for copies from a device to
//! pageable memory.
//!
//! # Invariants
//!
//! - A gate opens once, whatever becomes of the device that it waits for: dropping a [`Held`] opens
//!   its gate.
//! - What opens gates never waits for a gate. Functions that streams call only pass work on. The
//!   thread that carries bytes waits only for streams of this library's own, which contain nothing
//!   else.

use crate::abi::Memory;
use crate::copy::{Place, Until};
use crate::devices;
use crate::error::{CuError, CuResult};
use crate::event::Event;
use crate::host_calls::without_signals;
use crate::runtime::Runtime;
use partita_client::{CallError, ClosedGate, EventHandle, StreamHandle};
use partita_model::DeviceAddress;
use std::sync::mpsc::{Sender, channel};
use std::sync::{Mutex, OnceLock, PoisonError};

/// The most bytes of one step of a copy.
const PIECE_BYTES: u64 = 4 << 20;

/// A stream that stands at a gate, or will, until the drop of this value.
struct Held {
    runtime: &'static Runtime,
    gate: ClosedGate,
}

impl Held {
    fn new(runtime: &'static Runtime, stream: StreamHandle) -> CuResult<Self> {
        Ok(Held { runtime, gate: runtime.session.close_gate(stream)? })
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        // A failed session has no work after the gate.
        let _ = self.runtime.session.open_gate(self.gate);
    }
}

/// `cuStreamWaitEvent` with an event of another device.
pub fn wait_event(
    runtime: &'static Runtime,
    stream: StreamHandle,
    of: &'static Runtime,
    event: &Event,
) -> CuResult {
    if of.session.query_event(event.client)? {
        return Ok(());
    }
    let held = Held::new(runtime, stream)?;
    after(of, event.client, move |_| drop(held))
}

/// Calls `then` on a thread of this library after an event. No stream of the program waits for the
/// call.
fn after(
    of: &'static Runtime,
    event: EventHandle,
    then: impl FnOnce(Result<(), CallError>) + Send + 'static,
) -> CuResult {
    let relay = of.session.create_stream(true, 0)?;
    of.session.wait_event(relay, event)?;
    of.host_calls.add(&of.session, relay, then)?;
    Ok(of.session.destroy_stream(relay)?)
}

/// One end of a copy.
enum End {
    /// An address of the program's memory.
    Host(u64),
    /// Bytes that were already read from the program's memory.
    Bytes(Vec<u8>),
    Device(&'static Runtime, DeviceAddress),
}

impl End {
    fn of(runtime: &'static Runtime, place: Place) -> Self {
        match place {
            Place::Host(memory) => End::Host(memory.address()),
            Place::Device(address) => End::Device(owner(runtime, address), DeviceAddress(address)),
        }
    }
}

/// The device of an address. Arrays lie in no window and belong to the device of `runtime`.
fn owner(runtime: &'static Runtime, address: u64) -> &'static Runtime {
    devices::holding(address).unwrap_or(runtime)
}

/// Whether a copy has an end on another device than its stream's.
pub fn concerns(runtime: &Runtime, to: Place, from: Place) -> bool {
    let elsewhere = |place: Place| match place {
        Place::Host(_) => false,
        Place::Device(address) => {
            devices::holding(address).is_some_and(|of| of.index != runtime.index)
        }
    };
    devices::several_are_open() && (elsewhere(to) || elsewhere(from))
}

/// Copies `bytes` bytes where [`concerns`] holds.
pub fn copy(
    runtime: &Runtime,
    stream: StreamHandle,
    to: Place,
    from: Place,
    bytes: u64,
    until: Until,
) -> CuResult {
    let runtime = devices::opened_at(runtime.index)?;
    let (to, from) = (End::of(runtime, to), End::of(runtime, from));
    match (until, to, from) {
        (Until::Submitted, to @ End::Device(..), End::Host(from)) => {
            let size = usize::try_from(bytes).map_err(|_| CuError::INVALID_VALUE)?;
            let from = if is_page_locked(from) {
                End::Host(from)
            } else {
                End::Bytes(Memory::at(from).bytes(size)?.to_vec())
            };
            submit(runtime, stream, to, from, bytes)
        }
        (Until::Submitted, End::Host(to), from) if !is_page_locked(to) => {
            runtime.session.synchronize(Some(stream))?;
            carry(End::Host(to), from, bytes)
        }
        (Until::Submitted, to, from) => submit(runtime, stream, to, from, bytes),
        (Until::Done, to, from) => {
            runtime.session.synchronize(Some(stream))?;
            // Such a copy follows all work that the devices' default streams wait for (CUDA Driver
            // API, `cuMemcpyPeer`).
            for end in [&to, &from] {
                if let End::Device(of, _) = end {
                    of.session.synchronize(Some(StreamHandle::LEGACY))?;
                }
            }
            carry(to, from, bytes)
        }
    }
}

fn is_page_locked(address: u64) -> bool {
    devices::opened().any(|runtime| {
        runtime.host.find(address).is_some_and(|_| !runtime.host.is_registered(address))
    })
}

/// Queues a copy for the stream's turn, and makes the stream wait for its end.
fn submit(
    runtime: &'static Runtime,
    stream: StreamHandle,
    to: End,
    from: End,
    bytes: u64,
) -> CuResult {
    let session = &runtime.session;
    let reached = session.create_event()?;
    let submitted = session.record_event(reached, stream).map_err(CuError::from).and_then(|()| {
        let held = Held::new(runtime, stream)?;
        let work = move || {
            if let Err(error) = carry(to, from, bytes) {
                runtime.fail_later("a copy between devices failed", error);
            }
            drop(held);
        };
        let carrier = carrier()?;
        after(runtime, reached, move |outcome| {
            if outcome.is_ok() {
                // The thread outlives the sender, so sending succeeds.
                let _ = carrier.send(Box::new(work));
            }
        })
    });
    session.destroy_event(reached)?;
    submitted
}

type Work = Box<dyn FnOnce() + Send>;

/// The thread that carries bytes.
fn carrier() -> CuResult<Sender<Work>> {
    static CARRIER: Mutex<Option<Sender<Work>>> = Mutex::new(None);
    let mut carrier = CARRIER.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(carrier) = &*carrier {
        return Ok(carrier.clone());
    }
    let (sender, work) = channel::<Work>();
    let started = without_signals(|| {
        let thread = std::thread::Builder::new().name("partita-copies".to_owned());
        thread.spawn(move || work.into_iter().for_each(|work| work()))
    });
    started.map_err(|_| CuError::OPERATING_SYSTEM)?;
    Ok(carrier.insert(sender).clone())
}

/// Copies, and returns at the end of the copy. It uses no stream of the program.
fn carry(to: End, from: End, bytes: u64) -> CuResult {
    let size = usize::try_from(bytes).map_err(|_| CuError::INVALID_VALUE)?;
    match (to, from) {
        (End::Device(of, to), End::Host(from)) => {
            Ok(of.session.copy_to_device(own_stream(of)?, to, Memory::at(from).bytes(size)?)?)
        }
        (End::Device(of, to), End::Bytes(from)) => {
            Ok(of.session.copy_to_device(own_stream(of)?, to, &from)?)
        }
        (End::Host(to), End::Device(of, from)) => {
            Ok(of.session.copy_to_host(own_stream(of)?, Memory::at(to).bytes_mut(size)?, from)?)
        }
        (End::Device(of, to), End::Device(from_of, from)) => {
            let mut piece =
                vec![0; usize::try_from(bytes.min(PIECE_BYTES)).map_err(|_| CuError::UNKNOWN)?];
            let mut done = 0;
            while done < bytes {
                let length = usize::try_from((bytes - done).min(PIECE_BYTES))
                    .map_err(|_| CuError::UNKNOWN)?;
                let piece = &mut piece[..length];
                from_of.session.copy_to_host(
                    own_stream(from_of)?,
                    piece,
                    DeviceAddress(from.0 + done),
                )?;
                of.session.copy_to_device(own_stream(of)?, DeviceAddress(to.0 + done), piece)?;
                done += length as u64;
            }
            Ok(())
        }
        _ => Err(CuError::INVALID_VALUE),
    }
}

/// A stream of this library's on a device, which waits for no other.
fn own_stream(of: &'static Runtime) -> CuResult<StreamHandle> {
    static STREAMS: [OnceLock<StreamHandle>; partita_client::MAX_GPUS] =
        [const { OnceLock::new() }; partita_client::MAX_GPUS];
    let place = &STREAMS[usize::from(of.index.0)];
    match place.get() {
        Some(stream) => Ok(*stream),
        None => {
            let stream = of.session.create_stream(true, 0)?;
            Ok(*place.get_or_init(|| stream))
        }
    }
}
