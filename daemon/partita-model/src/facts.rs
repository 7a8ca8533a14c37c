//! What a device says of itself once, at its start.

use crate::{Bytes, Nanos};
use serde::{Deserialize, Serialize};
use std::fmt;

/// A compute capability, e.g. 9.0.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
pub struct ComputeCapability {
    /// The number before the point.
    pub major: u8,
    /// The number after the point.
    pub minor: u8,
}

impl fmt::Display for ComputeCapability {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.major, self.minor)
    }
}

/// What kind of device it is: people must never take one for the other.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DeviceKind {
    /// The GPU in software.
    Emulated,
    /// A GPU behind NVIDIA's driver.
    Cuda,
}

/// What the times that a device tells are worth.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Timekeeping {
    /// A clock ran beside the work.
    Real,
    /// The times are those that the modelled GPU would have needed.
    #[default]
    Simulated,
    /// Nothing was modelled: times only rise, from one operation to the next and inside a kernel.
    Off,
}

/// How a device is shared between applications.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Sharing {
    /// Each application has SMs of its own: Partita's way.
    #[default]
    Spatial,
    /// Kernels run as they are and the hardware gives the whole device to one context after the
    /// other: a baseline.
    TimeSlice,
    /// Kernels run as they are, of all contexts at once, where the hardware's block scheduler puts
    /// them, as under MPS: a baseline.
    Mps,
}

impl Sharing {
    /// All of them.
    pub const ALL: [Sharing; 3] = [Sharing::Spatial, Sharing::TimeSlice, Sharing::Mps];

    /// The name in command lines and reports.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Sharing::Spatial => "spatial",
            Sharing::TimeSlice => "timeslice",
            Sharing::Mps => "mps",
        }
    }
}

/// What host time is worth to a device whose own time is simulated: between two calls of a program
/// a fixed charge passes, however long the host took.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct HostTime {
    /// Device time from one call of a program to its next.
    pub call: Nanos,
    /// Host time after which a program that does not call is not waited for any more, in
    /// milliseconds.
    pub patience_ms: u32,
    /// Nothing runs until so many programs have come, so that they start at the same device time.
    pub together: u32,
}

/// The fixed properties of a device. Limits are those of CUDA's device attributes of the same
/// names.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct DeviceFacts {
    /// Emulated or real.
    pub kind: DeviceKind,
    /// What its times are worth.
    pub timekeeping: Timekeeping,
    /// The name that `cuDeviceGetName` gives.
    pub name: String,
    /// The 16 bytes of `cuDeviceGetUuid`.
    pub uuid: [u8; 16],
    /// What it can execute.
    pub compute_capability: ComputeCapability,
    /// Number of SMs.
    pub sm_count: u16,
    /// SM clock in kHz.
    pub sm_clock_khz: u32,
    /// Memory clock in kHz.
    pub memory_clock_khz: u32,
    /// Width of the memory bus in bits.
    pub memory_bus_bits: u32,
    /// Device memory.
    pub memory: Bytes,
    /// Size of the LLC.
    pub llc: Bytes,
    /// Resident threads per SM.
    pub threads_per_sm: u32,
    /// Resident CTAs per SM.
    pub ctas_per_sm: u32,
    /// 32-bit registers per SM.
    pub registers_per_sm: u32,
    /// Shared memory per SM.
    pub shared_per_sm: Bytes,
    /// Shared memory that one CTA may have without opting in.
    pub shared_per_cta: Bytes,
    /// Shared memory that one CTA may have after opting in.
    pub shared_per_cta_optin: Bytes,
    /// Threads per CTA.
    pub threads_per_cta: u32,
}
