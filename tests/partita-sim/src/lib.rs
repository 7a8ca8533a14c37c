//! Seeded deterministic simulation: the real engine and the emulated GPU in a world of clients that
//! die, stall, flood and lie.
//!
//! [`run`] plays one seed. The seed decides the GPU, how it is shared, who comes and goes, what
//! they ask, when borders move, and how long modules take to prepare; nothing else does, so a seed
//! that fails fails again. No thread, no clock, no file.
//!
//! | module | what |
//! | --- | --- |
//! | [`world`] | stands for the data plane's shell: takes requests to the engine, its wishes to whom they concern, lets time go on |
//! | [`client`] | what clients do, and what a healthy one must find in its memory |
//! | [`residents`] | who was on which SM, from the trace |
//! | [`play`] | one seed from the first client to the last check |
//!
//! # What is checked
//!
//! - Every request gets one reply, none after its session has ended, and a healthy client's gets no
//!   error.
//! - A healthy client's memory is what its operations leave in the order of its streams and events,
//!   whatever others do.
//! - Every launch of a healthy client ends, and is counted once.
//! - Partitions are disjoint at every step, and CTAs of two applications meet on an SM only while
//!   one of them looks at the signal and leaves.
//! - At the end nothing is left: memory, windows, streams, modules, ledger, control blocks.

pub mod client;
pub mod play;
pub mod random;
pub mod residents;
pub mod world;

pub use play::{Outcome, run};

/// What went wrong, where, and in which seed.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error(
    "seed {seed}, step {step}, device time {nanos} ns: {what}\nto repeat: cargo run -p \
     partita-sim -- --seeds {seed} --log"
)]
pub struct Failure {
    /// The seed.
    pub seed: u64,
    /// The step of the play, from 0.
    pub step: u32,
    /// Device time in nanoseconds.
    pub nanos: u64,
    /// What does not hold.
    pub what: String,
}
