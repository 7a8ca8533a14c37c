//! What instructions mean.
//!
//! [`decode`] turns PTX into a [`program::Program`], once per module. A CTA's registers are rows of
//! 32 lanes. A [`team::Team`] of warps executes one instruction at a time over all its active
//! threads ([`step`]). A run leaves a [`trace::Trace`], and the timing model prices it: nothing
//! here knows how long an instruction takes.
//!
//! # What it leaves alone
//!
//! - Loads and stores take effect at once and in order (sequential consistency), and a missing
//!   fence has no effect. [`access::weak`] is the exception.
//! - Data races are not detected. CTAs of kernels that can only race may run in any order
//!   ([`independent`]).
//! - Approximate functions (`sin.approx`, `ex2.approx` …) give the correctly rounded result where
//!   the ISA allows an error. `div.full` and `div.approx` round to nearest.

pub mod access;
pub mod async_store;
pub mod asynchronous;
pub mod atomics;
pub mod barrier;
pub mod block_scale;
pub mod bulk;
pub mod byte_rows;
pub mod call;
pub mod cluster;
pub mod convert;
pub mod cta;
pub mod decode;
pub mod float;
pub mod independent;
pub mod inst;
pub mod lane;
pub mod launch_control;
pub mod matrix;
pub mod mbarrier;
pub mod narrow;
pub mod narrow_convert;
pub mod packed;
pub mod pairs;
pub mod product;
pub mod program;
pub mod quad;
pub mod registers;
pub mod rows;
pub mod scratch;
pub mod sparse;
pub mod special;
pub mod state;
pub mod step;
pub mod system;
pub mod tcgen05;
pub mod team;
pub mod tensor;
pub mod tensor_copy;
pub mod tensormap;
pub mod texture;
pub mod trace;
pub mod warp;
pub mod warpgroup;
