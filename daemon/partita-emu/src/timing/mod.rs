//! How long it takes.
//!
//! Time is integer picoseconds. An SM executes *segments*: straight runs of instructions that wait for nothing inside
//! ([`segment`]). A segment starts when its warp is ready and the SM has an issue slot, takes its critical path, and
//! leaves behind memory transactions that travel through L1, the LLC and DRAM ([`memory`]), each with tags and a
//! limited bandwidth; the next segment that needs their values waits for them.
//!
//! # Deviations from a GPU, all towards simplicity
//!
//! - Within a segment the schedule is the one of a warp alone; the SM's issue slots are shared as a fluid.
//! - SMs advance in turns of [`crate::gpu::QUANTUM_CYCLES`] cycles. Bandwidth is kept in buckets, so a turn's order does not
//!   decide who gets it; the order of atomics on one address between SMs is that of turns.
//! - One pool of bandwidth for the LLC and one for DRAM: no slices, channels, rows or banks.
//! - Registers that wait for memory are remembered as 64 classes per warp; two of one class wait together.

pub mod cache;
pub mod calendar;
pub mod memory;
pub mod segment;
