//! Facts of a body that passes need: its control flow, the places where threads may part, the
//! instructions that wait, whether CTAs may wait for each other, and what a form waits for.

pub mod cfg;
pub mod divergence;
pub mod hazard;
pub mod ranges;
mod reach;
pub mod spin;
pub mod sync;
pub mod trips;

pub use cfg::{BlockId, Cfg};
pub use divergence::{Divergence, Level};
pub use ranges::Ranges;
pub use sync::{Masks, Sync};
