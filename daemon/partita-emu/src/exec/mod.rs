//! What instructions mean.
//!
//! PTX is decoded once per module ([`decode`]) into a [`program::Program`]. A CTA's registers are
//! rows of 32 lanes; a [`team::Team`] of warps executes one instruction at a time over all its
//! active threads ([`step`]). Nothing in here knows how long anything takes: a run leaves behind a
//! [`trace::Trace`], which the timing model prices.
//!
//! # What it leaves alone
//!
//! - Unless memory is weak ([`access::weak`]), loads and stores take effect at once and in order
//!   (sequential consistency), and a missing fence goes unnoticed.
//! - Races are not detected.
//! - Approximate functions (`sin.approx`, `ex2.approx` …) give the correctly rounded result where
//!   the ISA allows an error; `div.full` and `div.approx` round to nearest.

pub mod access;
pub mod asynchronous;
pub mod atomics;
pub mod barrier;
pub mod bulk;
pub mod call;
pub mod convert;
pub mod cta;
pub mod decode;
pub mod float;
pub mod inst;
pub mod lane;
pub mod matrix;
pub mod mbarrier;
pub mod packed;
pub mod program;
pub mod quad;
pub mod registers;
pub mod rows;
pub mod special;
pub mod state;
pub mod step;
pub mod system;
pub mod team;
pub mod tensor;
pub mod texture;
pub mod trace;
pub mod warp;
