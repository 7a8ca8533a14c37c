//! Quantities with their unit in the type.

use serde::{Deserialize, Serialize};
use std::fmt;
use std::ops::{Add, AddAssign, Sub};

macro_rules! quantity {
    ($(#[$doc:meta])* $name:ident, $suffix:literal) => {
        $(#[$doc])*
        #[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default, Serialize,
            Deserialize)]
        #[serde(transparent)]
        pub struct $name(pub u64);

        impl Add for $name {
            type Output = Self;
            fn add(self, other: Self) -> Self {
                $name(self.0 + other.0)
            }
        }

        impl AddAssign for $name {
            fn add_assign(&mut self, other: Self) {
                self.0 += other.0;
            }
        }

        impl Sub for $name {
            type Output = Self;
            fn sub(self, other: Self) -> Self {
                $name(self.0 - other.0)
            }
        }

        impl $name {
            /// The difference, or zero where `other` is the larger.
            #[must_use]
            pub const fn saturating_sub(self, other: Self) -> Self {
                $name(self.0.saturating_sub(other.0))
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!("{}", $suffix), self.0)
            }
        }
    };
}

quantity! {
    /// Cycles of the SM clock.
    Cycles, " cycles"
}
quantity! {
    /// Nanoseconds of device time. On the emulated GPU device time is simulated.
    Nanos, " ns"
}
quantity! {
    /// A number of bytes.
    Bytes, " B"
}

/// Access to memory (CUDA Driver API, `CUmemAccess_flags`). A later variant allows more.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MemoryAccess {
    /// No access.
    None,
    /// Reads only.
    Read,
    /// Reads and writes.
    ReadWrite,
}

/// An address in the device's generic address space, as a kernel sees it.
#[derive(
    Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct DeviceAddress(pub u64);

impl DeviceAddress {
    /// The address `bytes` further on, or `None` where it would wrap.
    #[must_use]
    pub const fn checked_add(self, bytes: u64) -> Option<Self> {
        match self.0.checked_add(bytes) {
            Some(sum) => Some(DeviceAddress(sum)),
            None => None,
        }
    }
}

impl fmt::Display for DeviceAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}", self.0)
    }
}
