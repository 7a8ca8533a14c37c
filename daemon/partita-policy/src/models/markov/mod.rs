//! The Markov chain model of Kernelet (TPDS '14, §4.3): how fast two kernels are that share an SM.
//!
//! A warp is ready or idle. A ready warp issues one instruction in a round and goes idle where the
//! instruction accesses memory. An idle warp waits for its access; the wait grows linearly with the
//! accesses that are outstanding. The number of idle warps of each kernel is a Markov chain, and
//! its stationary distribution gives the instructions per cycle (IPC).
//!
//! | file | subject | source |
//! | --- | --- | --- |
//! | `inputs` | the SM, a kernel's demand, latency of an access | Table 1; "Uncoalesced Access" |
//! | `one` | transitions, stationary distribution, IPC of one kernel, the base latency's fit | Eq. 1–3 |
//! | `pair` | two kernels: IPC of each, co-scheduling profit, balanced slice ratio | Eq. 4–7, §2.2 |
//!
//! | symbol in the paper | here | unit |
//! | --- | --- | --- |
//! | W | [`Workload::warps`] × CTAs on the SM | warps |
//! | R_m | [`Workload::memory_ratio`] | 1, in \[0, 1\] |
//! | a_0 | [`Sm::llc_cycles`], [`Sm::dram_cycles`] × the sectors that get there | cycles a sector |
//! | b_0 | [`Workload::base_cycles`] | cycles |
//! | x | outstanding sectors of the SM's idle warps | sectors |
//! | D_i | `one::round_cycles` | cycles |
//! | P_(i→r) | `one::wake`: D ÷ L, at most 1 | 1 |
//! | IPC, cIPC | [`Alone::ipc`], [`Shared::ipc`] | warp instructions a cycle of one SM |
//! | CP | [`Shared::profit`] | 1 |
//!
//! # Units of warps
//!
//! The paper folds an SM of several warp schedulers into a virtual SM of one scheduler by dividing
//! warps and bandwidth by the number of schedulers. The model here folds further: a *unit* is a
//! number of warps that are ready or idle together, and a kernel alone has at most
//! [`Model::units`] of them. A unit of a kernel has as many warps in company as alone, so the two
//! predictions share the error of folding.
//!
//! # What this leaves alone
//!
//! Barriers, dependencies between instructions, instructions that issue together, and what one
//! kernel does to the other's hits in L1 and LLC.

mod inputs;
mod one;
mod pair;

pub use inputs::{ModelError, Sm, Workload};
pub use one::Alone;
pub use pair::{Ratio, Shared};

use inputs::{MOST_UNITS, count};
use partita_model::Calibration;

/// The model of one GPU.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Model {
    sm: Sm,
    units: u32,
}

impl Model {
    /// Units of a kernel alone by default: a pair has at most some 25 states, and an arrival among
    /// 15 other kernels is decided within 1 ms.
    /// `cargo run --release -p partita-policy --example markov` measures the choice.
    pub const UNITS: u32 = 8;

    /// The model of a GPU, with at most so many units of warps for a kernel alone: 1 to 16.
    ///
    /// # Errors
    /// The calibration describes no GPU, or the number of units is out of range.
    pub fn new(hardware: &Calibration, units: u32) -> Result<Self, ModelError> {
        if !(1..=count(MOST_UNITS)).contains(&units) {
            return Err(ModelError::field("units", f64::from(units), "a number from 1 to 16"));
        }
        Ok(Model { sm: Sm::of(hardware)?, units })
    }

    /// The SM.
    #[must_use]
    pub fn sm(&self) -> &Sm {
        &self.sm
    }

    /// The most units of a kernel alone.
    #[must_use]
    pub fn units(&self) -> u32 {
        self.units
    }
}
