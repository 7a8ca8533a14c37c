//! Facts about a device, fixed at its start.

use crate::{Bytes, Nanos, SmSet};
use serde::{Deserialize, Serialize};
use std::fmt;

/// A compute capability, e.g. 9.0.
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
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

/// The kind of a device. Reports always name it, so that nobody takes one for the other.
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DeviceKind {
    /// The GPU in software.
    Emulated,
    /// A GPU behind NVIDIA's driver.
    Cuda,
}

/// The meaning of device time.
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Timekeeping {
    /// Real: a clock runs beside the work.
    Real,
    /// Simulated: the time that the modelled GPU would need.
    #[default]
    Simulated,
    /// Off: nothing is modelled. Times only rise, between operations and inside a kernel.
    Off,
}

/// The way in which applications share a device.
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Sharing {
    /// Partita's way: each application has SMs of its own.
    #[default]
    Spatial,
    /// A baseline: kernels run unchanged, and the hardware gives the whole device to one context
    /// after the other.
    TimeSlice,
    /// A baseline, as under MPS: kernels of all contexts run unchanged at once, where the
    /// hardware's block scheduler puts them.
    Mps,
}

impl Sharing {
    /// Every way, in the order of the variants.
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

/// The worth of host time on a device whose time is simulated. Between two calls of a program a
/// fixed charge passes, however long the host took.
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct HostTime {
    /// Device time from one call of a program to its next, in nanoseconds.
    pub call: Nanos,
    /// Host time in milliseconds after which the device stops waiting for a program's next call.
    pub patience_ms: u32,
    /// Number of programs that must have come before anything runs, so that they start at the same
    /// device time.
    pub together: u32,
    /// Host time in milliseconds for which one program may hold up the device's time while others
    /// wait for the device. A tenth of the time that passes is added to it again. `None`: no limit.
    #[serde(default)]
    pub budget_ms: Option<u32>,
}

/// The fixed properties of a device. Limits are those of CUDA's device attributes of the same
/// names.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct DeviceFacts {
    /// Emulated or real.
    pub kind: DeviceKind,
    /// The meaning of its times.
    pub timekeeping: Timekeeping,
    /// The name that `cuDeviceGetName` gives.
    pub name: String,
    /// The 16 bytes of `cuDeviceGetUuid`.
    pub uuid: [u8; 16],
    /// Its compute capability.
    pub compute_capability: ComputeCapability,
    /// Number of SMs.
    pub sm_count: u16,
    /// SM clock in kHz.
    pub sm_clock_khz: u32,
    /// Memory clock in kHz.
    pub memory_clock_khz: u32,
    /// Width of the memory bus in bits.
    pub memory_bus_bits: u32,
    /// Device memory in bytes.
    pub memory: Bytes,
    /// Size of the LLC in bytes.
    pub llc: Bytes,
    /// Resident threads per SM.
    pub threads_per_sm: u32,
    /// Resident CTAs per SM.
    pub ctas_per_sm: u32,
    /// 32-bit registers per SM.
    pub registers_per_sm: u32,
    /// Shared memory per SM in bytes.
    pub shared_per_sm: Bytes,
    /// Shared memory in bytes that one CTA may have without opting in.
    pub shared_per_cta: Bytes,
    /// Shared memory in bytes that one CTA may have after opting in.
    pub shared_per_cta_optin: Bytes,
    /// Threads per CTA.
    pub threads_per_cta: u32,
    /// Parts of an SM among which its registers are divided. A warp's registers lie in one part.
    #[serde(default = "one_part")]
    pub register_parts: u8,
    /// Shared memory in bytes that each CTA takes beside its own
    /// (`CU_DEVICE_ATTRIBUTE_RESERVED_SHARED_MEMORY_PER_BLOCK`).
    #[serde(default)]
    pub shared_reserved: Bytes,
    /// Numbers below the greatest `%smid` that no SM has (PTX ISA, "%nsmid"). Empty as a rule.
    #[serde(default)]
    pub absent_sms: SmSet,
}

impl DeviceFacts {
    /// Its SMs, by `%smid`.
    #[must_use]
    pub fn sms(&self) -> SmSet {
        SmSet::range(0, self.sm_numbers()).difference(&self.absent_sms)
    }

    /// `%nsmid`: above the number of every SM.
    #[must_use]
    pub fn sm_numbers(&self) -> u16 {
        self.sm_count + self.absent_sms.len()
    }
}

fn one_part() -> u8 {
    1
}
