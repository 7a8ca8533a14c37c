//! Seeded deterministic simulation: the real engine and the emulated GPU among clients that die,
//! stall, flood and lie.
//!
//! [`run`] plays one seed. The seed alone decides the GPU, its way of sharing, the clients' coming
//! and going, their requests, the moves of borders, and the time that modules take to prepare. A
//! seed that fails therefore fails again. The simulation has no thread, no clock and no file.
//!
//! | module | subject |
//! | --- | --- |
//! | [`world`] | stands for the data plane's shell: passes requests to the engine, carries out its actions, advances time |
//! | [`images`] | the clients' module, as the data plane prepares it |
//! | [`client`] | what clients do, and what a healthy one must find in its memory |
//! | [`residents`] | the applications on each SM over time, from the trace |
//! | [`play`] | one seed from the first client to the last check |
//!
//! # What is checked
//!
//! - Every request gets one reply, none after its session has ended. A healthy client's reply is no
//!   error.
//! - A healthy client's memory holds the results of its operations in the order of its streams and
//!   events, whatever other clients do.
//! - Every launch of a healthy client ends, and is counted once.
//! - Partitions are disjoint at every step. CTAs of two applications meet on an SM only while one
//!   of them reads the signal and leaves, or where CTAs of one have lingered on an SM that it lost.
//! - At the end nothing is left: memory, windows, streams, modules, ledger, control blocks.

pub mod client;
pub mod fickle;
pub mod images;
pub mod play;
pub mod random;
pub mod residents;
pub mod world;

pub use play::{Outcome, run};

/// A violated invariant, with its place and seed.
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
    /// The invariant that does not hold.
    pub what: String,
}
