//! The number of CTAs that fit on an SM (CUDA C++ Programming Guide, "Hardware Multithreading";
//! CUDA Driver API, "Occupancy").
//!
//! [`partita_model::occupancy`] says what a CTA takes of an SM. Here are CUDA's questions about it.

use partita_client::KernelReply;
use partita_model::DeviceFacts;
use partita_model::occupancy::{SHARED_UNIT, WARP_THREADS};

/// Resident CTAs of `threads` threads per SM.
#[must_use]
pub fn ctas_per_sm(
    facts: &DeviceFacts,
    kernel: &KernelReply,
    threads: u32,
    dynamic_shared: u64,
) -> u32 {
    if threads == 0 || threads > kernel.max_threads.min(facts.threads_per_cta) {
        return 0;
    }
    let shared = always_shared(kernel).saturating_add(dynamic_shared);
    if shared > facts.shared_per_cta_optin.0 {
        return 0;
    }
    facts.ctas_on_an_sm(threads, kernel.registers, shared)
}

/// Shared memory that a CTA has whatever the program asks for.
#[must_use]
pub fn always_shared(kernel: &KernelReply) -> u64 {
    kernel.static_shared.saturating_add(kernel.hidden_shared.into())
}

/// Shared memory that each of `ctas` CTAs on one SM can have.
#[must_use]
pub fn shared_per_cta(facts: &DeviceFacts, ctas: u32) -> u64 {
    let share = facts.shared_per_sm.0 / u64::from(ctas.max(1)) / SHARED_UNIT * SHARED_UNIT;
    share.saturating_sub(facts.shared_reserved.0).min(facts.shared_per_cta_optin.0)
}

/// A block size and the CTAs of it that fit on an SM.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Block {
    /// Threads per CTA.
    pub threads: u32,
    /// Resident CTAs per SM.
    pub ctas_per_sm: u32,
}

/// The block size, in whole warps up to `limit` threads (0: no limit), with the most resident
/// threads; the largest of several that have as many.
pub fn best_block(
    facts: &DeviceFacts,
    kernel: &KernelReply,
    dynamic_shared: impl Fn(u32) -> u64,
    limit: u32,
) -> Block {
    let most = kernel.max_threads.min(facts.threads_per_cta);
    let most = if limit == 0 { most } else { most.min(limit) };
    let mut best = Block { threads: 0, ctas_per_sm: 0 };
    let aligned = (WARP_THREADS..=most).step_by(WARP_THREADS as usize);
    for threads in aligned.chain((most % WARP_THREADS != 0).then_some(most)) {
        let ctas_per_sm = ctas_per_sm(facts, kernel, threads, dynamic_shared(threads));
        if ctas_per_sm * threads >= best.ctas_per_sm * best.threads && ctas_per_sm > 0 {
            best = Block { threads, ctas_per_sm };
        }
    }
    best
}

#[cfg(test)]
mod tests {
    use super::*;
    use partita_model::{Bytes, ComputeCapability, DeviceKind, Timekeeping};

    /// The limits of compute capability 9.0 (CUDA C++ Programming Guide, "Technical
    /// Specifications").
    fn hopper() -> DeviceFacts {
        DeviceFacts {
            kind: DeviceKind::Emulated,
            timekeeping: Timekeeping::Simulated,
            name: String::new(),
            uuid: [0; 16],
            compute_capability: ComputeCapability { major: 9, minor: 0 },
            sm_count: 132,
            sm_clock_khz: 1,
            memory_clock_khz: 1,
            memory_bus_bits: 1,
            memory: Bytes(1),
            llc: Bytes(1),
            threads_per_sm: 2048,
            ctas_per_sm: 32,
            registers_per_sm: 65_536,
            shared_per_sm: Bytes(228 << 10),
            shared_per_cta: Bytes(48 << 10),
            shared_per_cta_optin: Bytes(227 << 10),
            threads_per_cta: 1024,
            register_parts: 4,
            shared_reserved: Bytes(1024),
            absent_sms: partita_model::SmSet::EMPTY,
        }
    }

    fn kernel(registers: u32, static_shared: u64, max_threads: u32) -> KernelReply {
        KernelReply {
            name: String::new(),
            params: Vec::new(),
            registers,
            static_shared,
            local: 0,
            max_threads,
            form: String::new(),
            place: 0,
            launches: false,
            hidden_shared: 0,
        }
    }

    #[test]
    fn the_scarcest_resource_decides() {
        let check = |kernel: &KernelReply, threads, dynamic, expect| {
            assert_eq!(
                ctas_per_sm(&hopper(), kernel, threads, dynamic),
                expect,
                "{kernel:?} {threads} {dynamic}"
            );
        };
        check(&kernel(32, 0, 1024), 256, 0, 8);
        check(&kernel(64, 0, 1024), 256, 0, 4);
        check(&kernel(33, 0, 1024), 256, 0, 6);
        check(&kernel(40, 0, 1024), 96, 0, 16);
        check(&kernel(16, 0, 1024), 32, 0, 32);
        check(&kernel(16, 48 << 10, 1024), 128, 0, 4);
        check(&kernel(16, 0, 1024), 128, 227 << 10, 1);
        check(&kernel(16, 1, 1024), 128, 227 << 10, 0);
        check(&kernel(16, 0, 512), 1024, 0, 0);
        check(&kernel(0, 0, 1024), 1024, 0, 2);
        // What the program does not know of takes room, too.
        let hidden = |bytes| KernelReply { hidden_shared: bytes, ..kernel(16, 50 << 10, 1024) };
        check(&hidden(0), 128, 0, 4);
        check(&hidden(7 << 10), 128, 0, 3);
        check(&hidden(7 << 10), 128, 170 << 10, 1);
        check(&hidden((7 << 10) + 1), 128, 170 << 10, 0);
    }

    #[test]
    fn the_best_block_fills_the_sm() {
        let check = |kernel: &KernelReply, limit, threads, ctas_per_sm| {
            assert_eq!(best_block(&hopper(), kernel, |_| 0, limit), Block { threads, ctas_per_sm });
        };
        check(&kernel(32, 0, 1024), 0, 1024, 2);
        check(&kernel(32, 0, 1024), 256, 256, 8);
        check(&kernel(64, 0, 1024), 0, 1024, 1);
        check(&kernel(255, 0, 100), 0, 64, 4);
    }

    #[test]
    fn shared_memory_is_divided() {
        assert_eq!(shared_per_cta(&hopper(), 1), 227 << 10);
        assert_eq!(shared_per_cta(&hopper(), 4), (57 << 10) - 1024);
        assert_eq!(shared_per_cta(&hopper(), 0), 227 << 10);
    }
}
