//! Room on an SM for operations that real drivers carry out as kernels.
//!
//! A grid that does nothing goes before such an operation. It waits for room as every grid does,
//! behind the grids before it.

use crate::owner::WINDOW;
use partita_device::{Device, DeviceError, Event, GridSpec, Horizon};
use partita_emu::EmulatedGpu;
use partita_model::{Dim3, ModuleId, Nanos};

/// The module of the driver's own kernels. Modules of callers have other numbers.
const MODULE: ModuleId = ModuleId(1);

/// Threads of a CTA of a driver's fill.
const THREADS: u32 = 512;

const PTX: &str = "\
.version 7.0
.target sm_75
.address_size 64
.visible .entry room() { ret; }
";

/// Loads the driver's own kernels.
pub fn load(gpu: &mut EmulatedGpu) -> Result<(), DeviceError> {
    gpu.load_module(MODULE, WINDOW, PTX.into())?;
    let mut events = Vec::new();
    gpu.poll(Horizon { until: Some(Nanos(0)), warp_instructions: 1 }, &mut events);
    match events.first() {
        Some(Event::ModuleLoaded { .. }) => Ok(()),
        other => Err(DeviceError::Unsupported(format!("the driver's own kernels: {other:?}"))),
    }
}

/// A grid of one CTA that does nothing.
pub fn grid() -> GridSpec {
    GridSpec {
        module: MODULE,
        kernel: "room".into(),
        grid: Dim3::linear(1),
        block: Dim3::linear(THREADS),
        dynamic_shared: 0,
        params: Vec::new(),
        access: Vec::new(),
        cooperative: false,
        cluster: Dim3::linear(1),
    }
}
