//! [`partita_device::Device`] on an NVIDIA GPU, through its driver.
//!
//! The driver is loaded when a device is opened, so the crate builds and its tests pass on machines
//! without one; tests load a stand-in (`tests/partita-fake-gpu`).
//!
//! # How it goes
//!
//! One thread owns the device and calls the contract's methods. It never waits for the GPU as a
//! whole: workers that wait for a signal ([`partita_model::control`]) would hold it, and the signal
//! comes from that thread. So
//!
//! - everything that making takes the whole device (streams, page-locked memory) is made when it is
//!   opened;
//! - modules are compiled, loaded and unloaded by a thread of their own (`loader`), and while one
//!   loads the engine lets no worker wait ([`partita_device::Device::loading_waits_for_grids`]);
//! - variables of modules lie in the window, whose kernels keep to it by their own code
//!   ([`partita_device::Device::guards`]), because the driver checks nothing;
//! - memory is mapped and unmapped page by page (`windows`), never allocated and freed;
//! - machine code that nobody has rewritten is loaded as a library, which belongs to no context,
//!   and launched on streams of green contexts (`green`);
//! - host memory for kernels is mapped where they look for it, and the GPU reads the host's page
//!   tables (`host`);
//! - arrays are given memory by an operation of a stream (`arrays`);
//! - ends are found by events (`streams`), and when there is nothing else to do threads wait for
//!   them (`news`).
//!
//! # What it leaves alone
//!
//! Which SMs a grid runs on is the rewritten kernel's business, who gets them the engine's.

mod arrays;
mod cache;
mod calibration;
mod clock;
mod device;
pub mod doctor;
pub mod driver;
mod faults;
mod green;
mod host;
mod loader;
mod locked;
mod news;
mod options;
mod signals;
mod streams;
mod submission;
mod tasks;
mod traffic;
mod windows;
mod zeros;

pub use device::CudaDevice;
pub use options::{Guarding, Options, OptionsError, SignalPath};

use driver::{Failure, LoadError};
use partita_model::ComputeCapability;
use std::io;

/// Why a GPU cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// There is no driver.
    #[error(transparent)]
    Driver(#[from] LoadError),
    /// There is no such GPU.
    #[error("there is no GPU {ordinal}: the driver shows {count}")]
    NoDevice {
        /// The number asked for.
        ordinal: u32,
        /// How many there are.
        count: u32,
    },
    /// It is too old.
    #[error("{name} has compute capability {capability}: 7.5 is the least")]
    TooOld {
        /// The GPU.
        name: String,
        /// What it can.
        capability: ComputeCapability,
    },
    /// Kernels would be loaded at their first launch, which waits for the whole device.
    #[error(
        "kernels are loaded lazily: set CUDA_MODULE_LOADING=EAGER in the environment of partita-gpu"
    )]
    LazyLoading,
    /// The driver's word.
    #[error(transparent)]
    Failure(#[from] Failure),
    /// The system's.
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
