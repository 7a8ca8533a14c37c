//! A GPU in software that executes PTX and keeps time.
//!
//! [`EmulatedGpu`] implements [`partita_device::Device`]. The parts are:
//!
//! - [`exec`]: what an instruction means;
//! - [`timing`]: how long an instruction takes;
//! - [`spec`]: which GPU is modelled;
//! - [`gpu`]: SMs, streams and the hardware's block scheduler;
//! - [`memory`]: global memory, host memory, textures, weak memory;
//! - [`direct`]: one run of one kernel, without anything above a device;
//! - [`record`]: a file of all requests to a device, and its replay.
//!
//! The crate has no threads and no clock. Simulated time advances inside `poll`. The same calls
//! give the same events.

#![expect(
    clippy::cast_possible_truncation,
    reason = "registers are cut to their width all over: that is what the instructions mean"
)]
#![expect(clippy::float_cmp, reason = "instructions compare exactly, and so do their tests")]
#![expect(
    clippy::needless_range_loop,
    reason = "loops over lanes index several rows at once, which is the form that vectorises"
)]

pub mod counters;
pub mod direct;
pub mod dispatch;
pub mod exec;
pub mod gpu;
pub mod memory;
pub mod record;
pub mod setup;
pub mod spec;
pub mod timing;

pub use gpu::{
    Cancel, EmulatedGpu, Hardware, Kernels, MemoryOrder, Options, Timing, Transfer, Way,
};
pub use memory::{MemoryCheck, PageTables};
pub use setup::{Setup, SetupError};
pub use spec::{Spec, SpecError};
