//! How long it takes.
//!
//! Time is integer picoseconds. An SM executes *segments*: straight runs of instructions that wait
//! for nothing inside ([`segment`]). A segment starts when its warp is ready and the SM has an
//! issue slot, takes its critical path, and leaves behind memory transactions that travel through
//! the load/store unit, L1, the SM's port, a slice of the LLC and a DRAM channel ([`memory`]), each
//! with a limited bandwidth that all who come share; the next segment that needs their values waits
//! for them. So occupancy matters: the more warps, the more of them wait at once.
//!
//! # Deviations from a GPU, all towards simplicity
//!
//! - Within a segment the schedule is the one of a warp alone; the SM's issue slots are shared as a
//!   fluid. Short segments without global memory follow one another like one, up to
//!   [`segment::LONGEST`] instructions.
//! - SMs advance in turns of [`crate::gpu::QUANTUM_CYCLES`] cycles. Bandwidth is kept in buckets,
//!   so a turn's order does not decide who gets it; the order of atomics on one address between SMs
//!   is that of turns.
//! - DRAM has channels, but no rows and banks: its efficiency is a constant of the spec, and
//!   waiting for rows a mean by the load ([`crowd`]).
//! - A CTA keeps its room until its stores are acknowledged; a warp sends nothing to memory before
//!   what it sent last has left all queues.
//! - Registers that wait for memory are remembered as 64 classes per warp; two of one class wait
//!   together.

pub mod cache;
pub mod calendar;
pub mod crowd;
pub mod memory;
pub mod segment;
