//! A GPU in software that executes PTX and keeps time.
//!
//! [`EmulatedGpu`] implements [`partita_device::Device`]. What an instruction means is in [`exec`],
//! how long it takes in [`timing`], what the modelled GPU is in [`spec`]; [`gpu`] brings them
//! together with streams and the hardware's block scheduler. [`direct`] runs one kernel of a PTX
//! text without any of the machinery above a device, [`record`] writes down what a device is asked
//! to do.
//!
//! The crate has no threads and no clock of its own: simulated time advances inside `poll`, and the
//! same calls give the same events.

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

pub use gpu::{Cancel, EmulatedGpu, Kernels, MemoryOrder, Options, Timing};
pub use setup::{Setup, SetupError};
pub use spec::{Spec, SpecError};
