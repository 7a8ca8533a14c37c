//! The number of CTAs that an SM holds, and what each takes of it (CUDA C++ Programming Guide,
//! "Multiprocessor Level" and "Technical Specifications per Compute Capability"; CUDA's occupancy
//! calculator).
//!
//! Registers are given to a warp in units of 256. An SM has its registers in parts
//! ([`DeviceFacts::register_parts`]), and a warp's registers lie in one part. So a part's rest that
//! is too small for a warp is lost. Here this rest counts for the warps of the part: the sum over
//! an SM's warps is then within its registers exactly where the warps have room.
//!
//! Engine, shim, emulated GPU and emulated driver use this page, so they agree on which CTAs have
//! room.

use crate::{ComputeCapability, DeviceFacts};

/// Threads of a warp.
pub const WARP_THREADS: u32 = 32;
/// Registers are given to a warp in this unit.
pub const REGISTER_UNIT: u32 = 256;
/// Bytes in which shared memory is given to a CTA, from compute capability 8.0 on.
pub const SHARED_UNIT: u64 = 128;

/// Registers that a warp takes of an SM with `per_sm` registers in `parts` parts, where each thread
/// has `per_thread`. Where a part has no room for a warp, the warp takes its bare registers.
#[must_use]
pub fn warp_registers(per_sm: u32, parts: u8, per_thread: u32) -> u32 {
    let bare = per_thread.saturating_mul(WARP_THREADS).next_multiple_of(REGISTER_UNIT);
    let part = per_sm / u32::from(parts.max(1));
    match part.checked_div(bare) {
        Some(warps @ 1..) => part / warps,
        _ => bare,
    }
}

impl DeviceFacts {
    /// Registers that a warp takes of an SM, where each thread has `per_thread`.
    #[must_use]
    pub fn warp_registers(&self, per_thread: u32) -> u32 {
        warp_registers(self.registers_per_sm, self.register_parts, per_thread)
    }

    /// Bytes of shared memory that a CTA takes of an SM, where its kernel uses `used`.
    #[must_use]
    pub fn cta_shared(&self, used: u64) -> u64 {
        used.saturating_add(self.shared_reserved.0).next_multiple_of(SHARED_UNIT)
    }

    /// CTAs of `threads` threads that an SM holds, where each thread has `registers` registers and
    /// each CTA uses `shared` bytes of shared memory.
    #[must_use]
    pub fn ctas_on_an_sm(&self, threads: u32, registers: u32, shared: u64) -> u32 {
        let warps = threads.div_ceil(WARP_THREADS).max(1);
        let warps_by_registers = match self.warp_registers(registers) {
            0 => u32::MAX,
            of_warp => self.registers_per_sm / of_warp,
        };
        let by_shared = match self.cta_shared(shared) {
            0 => u32::MAX,
            bytes => u32::try_from(self.shared_per_sm.0 / bytes).unwrap_or(u32::MAX),
        };
        let warps_by_threads = self.threads_per_sm / WARP_THREADS;
        (warps_by_registers.min(warps_by_threads) / warps).min(by_shared).min(self.ctas_per_sm)
    }
}

impl ComputeCapability {
    /// Parts of an SM among which its registers are divided (CUDA's occupancy calculator).
    #[must_use]
    pub fn register_parts(self) -> u8 {
        match (self.major, self.minor) {
            (0..=2, _) => 1,
            (6, 0) => 2,
            _ => 4,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The warps that fit, part by part, as the hardware has them.
    fn warps(per_sm: u32, parts: u32, per_thread: u32) -> u32 {
        per_sm / parts / (per_thread * 32).next_multiple_of(256) * parts
    }

    #[test]
    fn as_many_warps_have_room_as_in_the_parts() {
        for (per_sm, parts) in [(65_536, 4), (65_536, 2), (32_768, 1)] {
            for per_thread in 1..=255 {
                let taken = warp_registers(per_sm, u8::try_from(parts).unwrap(), per_thread);
                let fit = warps(per_sm, parts, per_thread);
                assert_eq!(per_sm / taken, fit, "{per_sm} {parts} {per_thread}");
                assert!(taken >= per_thread * 32);
            }
        }
        // The rest of each part is too small for a sixth warp: 20 warps, and not 23.
        assert_eq!(65_536 / warp_registers(65_536, 4, 88), 20);
    }

    #[test]
    fn a_warp_that_no_part_holds_takes_its_bare_registers() {
        assert_eq!(warp_registers(8_192, 4, 255), 8_192);
        assert_eq!(warp_registers(65_536, 0, 32), 1_024);
        assert_eq!(warp_registers(65_536, 4, 0), 0);
    }

    #[test]
    fn parts_by_capability() {
        let parts = |major, minor| ComputeCapability { major, minor }.register_parts();
        assert_eq!([parts(2, 0), parts(6, 0), parts(6, 1), parts(9, 0)], [1, 2, 4, 4]);
    }
}
