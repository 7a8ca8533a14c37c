//! [`partita_device::Device`] on an NVIDIA GPU, through its driver.
//!
//! The driver is loaded when a device is opened. The crate therefore builds, and its tests pass, on
//! machines without a driver; tests load a stand-in (`tests/partita-fake-gpu`).
//!
//! # Design
//!
//! One thread owns the device and calls the contract's methods. This thread never waits for the GPU
//! as a whole: workers may wait for a signal ([`partita_model::control`]), and the signal comes
//! from this thread. It follows:
//!
//! - Objects whose creation occupies the whole device (streams, page-locked memory) are made when
//!   the device is opened.
//! - A thread of its own compiles, loads and unloads modules (`loader`), in phases in which nothing
//!   is on the device and the owner makes no call of the driver ([`partita_device::Phase`]). While
//!   something waits for a phase, the engine lets no worker wait
//!   ([`partita_device::Device::loading_waits_for_grids`]).
//! - Variables of modules lie in the window. Kernels keep to the window by their own code
//!   ([`partita_device::Device::guards`]), because the driver checks nothing.
//! - Memory is mapped and unmapped page by page (`windows`), never allocated and freed.
//! - Code is loaded as a library, which belongs to no context (`code`). Machine code that is not
//!   rewritten is launched on streams of green contexts (`green`).
//! - Host memory for kernels is mapped at the addresses that kernels use, and the GPU reads the
//!   host's page tables (`host`).
//! - An operation of a stream gives arrays their memory (`arrays`).
//! - What depends on the GPU and driver, and no attribute says, is tried when the device is opened
//!   (`self_test`).
//! - Events mark the ends of operations (`streams`). When there is nothing else to do, threads wait
//!   for these events (`news`).
//!
//! # What this crate leaves alone
//!
//! The rewritten kernel decides which SMs it works on. The engine decides which application has an
//! SM.

mod arrays;
mod cache;
mod calibration;
mod clock;
mod code;
mod device;
pub mod doctor;
pub mod driver;
mod faults;
mod green;
mod host;
mod loader;
mod locked;
mod looks;
mod news;
mod numbers;
mod options;
pub mod self_test;
mod signals;
mod streams;
mod submission;
mod tasks;
mod traffic;
mod windows;
mod zeros;

pub use device::CudaDevice;
pub use options::{ClockSource, Guarding, Options, OptionsError, SignalPath, Tester};

pub use numbers::NumbersError;

use driver::{Failure, LoadError};
use partita_model::ComputeCapability;
use std::io;

/// Why a GPU cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The driver cannot be used.
    #[error(transparent)]
    Driver(#[from] LoadError),
    /// No GPU has this number.
    #[error("there is no GPU {ordinal}: the driver shows {count}")]
    NoDevice {
        /// The number asked for.
        ordinal: u32,
        /// The number of GPUs.
        count: u32,
    },
    /// The GPU is too old.
    #[error("{name} has compute capability {capability}: Partita needs 7.5 or higher")]
    TooOld {
        /// The GPU.
        name: String,
        /// The GPU's compute capability.
        capability: ComputeCapability,
    },
    /// CUDA would load kernels at their first launch and wait for the whole device.
    #[error(
        "kernels are loaded lazily: set CUDA_MODULE_LOADING=EAGER in the environment of partita-gpu"
    )]
    LazyLoading,
    /// The numbers of its SMs are unknown.
    #[error(transparent)]
    Numbers(#[from] NumbersError),
    /// The driver's error.
    #[error(transparent)]
    Failure(#[from] Failure),
    /// The system's error.
    #[error("cannot start the device's threads: {0}")]
    System(#[from] io::Error),
}

impl OpenError {
    /// Whether there is simply no GPU here, and no fault in one.
    #[must_use]
    pub fn means_none(&self) -> bool {
        match self {
            OpenError::Driver(LoadError::Missing { .. }) => true,
            // CUDA_ERROR_NO_DEVICE
            OpenError::Driver(LoadError::Start(failure)) => failure.code == 100,
            OpenError::NoDevice { count, .. } => *count == 0,
            _ => false,
        }
    }
}
