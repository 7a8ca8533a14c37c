//! Facts of a body that passes need: its control flow, the places where threads may part, the
//! instructions that wait, and whether CTAs may wait for each other.

pub mod cfg;
pub mod divergence;
pub mod hazard;
pub mod ranges;
mod reach;
pub mod spin;
pub mod sync;

pub use cfg::{BlockId, Cfg};
pub use divergence::{Divergence, Level};
pub use ranges::Ranges;
pub use sync::{Masks, Sync};
