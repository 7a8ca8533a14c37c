//! The devices that this process sees. Each has a session of its own, which is opened at the
//! device's first use.
//!
//! The daemon describes its devices beforehand. A program that asks only for names and attributes
//! is therefore no application on any GPU. A daemon with one GPU gives the session at once.

use crate::attributes;
use crate::context::current_handle;
use crate::error::{CuError, CuResult};
use crate::handles::{DeviceIndex, Kind, device_of, first_handle};
use crate::log;
use crate::output;
use crate::runtime::Runtime;
use crate::visible;
use partita_client::{ConnectError, Found, GpuOffer, Session, find_socket_dir};
use partita_model::{DeviceAddress, DeviceFacts, GpuNumber};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};

static DEVICES: OnceLock<Vec<Device>> = OnceLock::new();
/// Set in a forked child of an initialised process.
static FORKED: AtomicBool = AtomicBool::new(false);
/// Set when a second device is opened, and never reset.
static SEVERAL_OPEN: AtomicBool = AtomicBool::new(false);

/// A device.
pub struct Device {
    index: DeviceIndex,
    /// The daemon's GPU number; `None` for a daemon's only GPU.
    number: Option<GpuNumber>,
    facts: DeviceFacts,
    folder: PathBuf,
    opening: Mutex<()>,
    runtime: OnceLock<Runtime>,
}

impl Device {
    fn new(index: DeviceIndex, offer: GpuOffer, folder: PathBuf) -> Self {
        let GpuOffer { number, facts } = offer;
        let (opening, runtime) = (Mutex::new(()), OnceLock::new());
        Device { index, number: Some(number), facts, folder, opening, runtime }
    }

    /// The daemon's facts about the device.
    pub fn facts(&self) -> &DeviceFacts {
        &self.facts
    }

    /// `CUdevice`.
    pub fn ordinal(&self) -> i32 {
        self.index.ordinal()
    }

    /// The reported place: domain, bus, device.
    pub fn pci(&self) -> [i32; 3] {
        let [domain, bus, device] = attributes::PCI;
        [domain, bus + self.number.map_or(0, |number| i32::from(number.0)), device]
    }

    /// The handle of its primary context, which is known before there is one.
    pub fn primary_context(&self) -> u64 {
        first_handle(Kind::Context, self.index)
    }

    /// Its state, if it has been used.
    pub fn opened(&self) -> Option<&Runtime> {
        self.runtime.get()
    }

    /// Its state; connects where it has not been used.
    pub fn open(&self) -> CuResult<&Runtime> {
        if let Some(runtime) = self.runtime.get() {
            return Ok(runtime);
        }
        let _guard = self.opening.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(runtime) = self.runtime.get() {
            return Ok(runtime);
        }
        let number = self.number.unwrap_or(GpuNumber(0));
        let session =
            Session::connect_to(&self.folder, number, output::write).map_err(|error| {
                log::say(format_args!("{error}"));
                CuError::DEVICE_UNAVAILABLE
            })?;
        self.check_window(&session)?;
        if opened().next().is_some() {
            SEVERAL_OPEN.store(true, Ordering::Relaxed);
        }
        let runtime = Runtime::new(self.index, session)?;
        Ok(self.runtime.get_or_init(|| runtime))
    }

    /// Checks that the new window overlaps no other, so that an address identifies its device.
    fn check_window(&self, session: &Session) -> CuResult {
        let new = session.window();
        for other in opened() {
            let old = other.session.window();
            if old.contains(new.base) || new.contains(old.base) {
                log::say(format_args!(
                    "device {} has the same device addresses as device {}: the driver did not \
                     place them apart; let \
                     programs use one GPU each, by CUDA_VISIBLE_DEVICES",
                    self.index.0, other.index.0
                ));
                return Err(CuError::DEVICE_UNAVAILABLE);
            }
        }
        Ok(())
    }
}

/// All devices, if `cuInit` has succeeded in this very process.
pub fn all() -> CuResult<&'static [Device]> {
    if FORKED.load(Ordering::Relaxed) {
        return Err(CuError::NOT_INITIALIZED);
    }
    DEVICES.get().map(Vec::as_slice).ok_or(CuError::NOT_INITIALIZED)
}

/// The device of a `CUdevice`.
pub fn get(ordinal: i32) -> CuResult<&'static Device> {
    let devices = all()?;
    usize::try_from(ordinal)
        .ok()
        .and_then(|index| devices.get(index))
        .ok_or(CuError::INVALID_DEVICE)
}

/// The device that a handle is of.
pub fn of(handle: u64) -> CuResult<Option<&'static Runtime>> {
    Ok(all()?.get(usize::from(device_of(handle).0)).and_then(Device::opened))
}

/// The device that a context is of. Its primary context may be named before it is used, and is used
/// then.
pub fn of_context(handle: u64) -> CuResult<&'static Runtime> {
    let device = all()?.get(usize::from(device_of(handle).0)).ok_or(CuError::INVALID_CONTEXT)?;
    match device.opened() {
        Some(runtime) => Ok(runtime),
        None if handle == device.primary_context() => device.open(),
        None => Err(CuError::INVALID_CONTEXT),
    }
}

/// The states of all devices that have been used.
pub fn opened() -> impl Iterator<Item = &'static Runtime> {
    all().unwrap_or_default().iter().filter_map(Device::opened)
}

/// The state of a device that has been used.
pub fn opened_at(index: DeviceIndex) -> CuResult<&'static Runtime> {
    get(index.ordinal())?.opened().ok_or(CuError::INVALID_DEVICE)
}

/// Whether there is more than one such.
pub fn several_are_open() -> bool {
    SEVERAL_OPEN.load(Ordering::Relaxed)
}

/// The device whose window contains the address.
pub fn holding(address: u64) -> Option<&'static Runtime> {
    opened().find(|runtime| runtime.session.window().contains(DeviceAddress(address)))
}

/// The device that the calling thread's current context is of; without one the first that has been
/// used, or else the first.
pub fn any() -> CuResult<&'static Runtime> {
    let devices = all()?;
    let handle = current_handle();
    if handle != 0
        && let Some(runtime) = of(handle)?
    {
        return Ok(runtime);
    }
    match opened().next() {
        Some(runtime) => Ok(runtime),
        None => devices.first().ok_or(CuError::NO_DEVICE)?.open(),
    }
}

/// `cuInit`.
pub fn initialize() -> CuResult {
    static CONNECTING: Mutex<()> = Mutex::new(());
    if FORKED.load(Ordering::Relaxed) {
        return Err(CuError::NOT_INITIALIZED);
    }
    if DEVICES.get().is_some() {
        return Ok(());
    }
    let _guard = CONNECTING.lock().unwrap_or_else(PoisonError::into_inner);
    if DEVICES.get().is_some() {
        return Ok(());
    }
    let devices = find()?;
    if devices.is_empty() {
        return Err(CuError::NO_DEVICE);
    }
    watch_forks()?;
    DEVICES.get_or_init(|| devices);
    Ok(())
}

/// The devices of this process.
fn find() -> CuResult<Vec<Device>> {
    let variable = |name| std::env::var(name).ok();
    let (order, listed) = (variable("CUDA_DEVICE_ORDER"), variable("CUDA_VISIBLE_DEVICES"));
    if listed.as_deref().is_some_and(visible::hides_all) {
        return Ok(Vec::new());
    }
    let folder = find_socket_dir();
    match Session::connect_to_only(&folder, output::write).map_err(|error| say_once(&error))? {
        Found::Session(session) => {
            let offer = GpuOffer { number: GpuNumber(0), facts: session.facts().clone() };
            if !visible::shows(&offer, listed.as_deref()) {
                return Ok(Vec::new());
            }
            let device = Device { number: None, ..Device::new(DeviceIndex(0), offer, folder) };
            let runtime = Runtime::new(device.index, *session)?;
            device.runtime.get_or_init(|| runtime);
            Ok(vec![device])
        }
        Found::Offer(offers) => {
            let chosen = visible::choose(offers, order.as_deref(), listed.as_deref());
            let devices = (0..).map(DeviceIndex).zip(chosen);
            Ok(devices.map(|(index, offer)| Device::new(index, offer, folder.clone())).collect())
        }
    }
}

fn say_once(error: &ConnectError) -> CuError {
    static SAID: AtomicBool = AtomicBool::new(false);
    if !SAID.swap(true, Ordering::Relaxed) {
        log::say(format_args!("{error}"));
    }
    // The code that makes runtimes say "no CUDA-capable device is detected" and go on if they can
    // do without.
    CuError::NO_DEVICE
}

fn watch_forks() -> CuResult {
    extern "C" fn in_child() {
        FORKED.store(true, Ordering::Relaxed);
    }
    // SAFETY: the handler only stores to an atomic, and the library is linked to stay loaded (`-z
    // nodelete`).
    let failed = unsafe { libc::pthread_atfork(None, None, Some(in_child)) };
    if failed == 0 { Ok(()) } else { Err(CuError::OPERATING_SYSTEM) }
}
