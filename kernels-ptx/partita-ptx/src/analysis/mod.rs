//! What passes need to know of a body: its flow of control, which threads may part where, what
//! waits for whom, whether CTAs may wait for each other.

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
