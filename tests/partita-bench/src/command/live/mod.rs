//! `partita bench resize` and `partita bench engine`: what live partitions cost, measured with the
//! engine and an emulated GPU in this process.

mod launches;
mod marks;
mod resize;
pub mod stage;

pub use launches::EngineArgs;
pub use marks::Marks;
pub use resize::ResizeArgs;
pub use stage::Stage;
