//! Sessions, streams, launches and partitions as a state machine without I/O.
//!
//! [`Engine`] gets what happens by its `handle_*` methods and says what it wants done by
//! [`Engine::poll_action`]. It drives the device, which is an argument of whatever may need it, and
//! nothing else: no thread, no file, no clock but the device's. The same inputs in the same order
//! give the same outputs; ids rise, maps are ordered, and ties go to the lowest id.
//!
//! The engine knows neither CUDA's entry points nor PTX. Rewriting a module is slow and knows PTX,
//! so it is an action that the shell carries out ([`Action::Prepare`]).
//!
//! # Where things are
//!
//! | module | subject |
//! | --- | --- |
//! | `sessions` | how sessions begin, fail and end |
//! | `requests` | what sessions ask; memory, events, waiting |
//! | `relocation` | memory that moves into reserved addresses |
//! | `modules` | from a prepared image to kernels |
//! | `queue` | streams: what goes to the device when |
//! | `launching` | launches: checks, turns |
//! | `layout` | launches: how many workers, and where |
//! | `ahead` | launches: how many are on the device |
//! | `endings` | launches: how they end, faults |
//! | `upkeep` | looking after running launches: who is missing |
//! | `helpers` | helper grids and their side streams |
//! | `watchdog` | launches that get nowhere |
//! | `tickets` | waves of tickets |
//! | `partitions` | who has which SMs, and how they change hands |
//! | `tasks` | how many CTAs a worker claims at once |
//! | `profiling` | what kernels do, counted at their first launches |
//! | `ledger` | what every SM has promised |
//! | `alone` | the LLC's hit rate of an application that runs alone, where the device counts |
//! | `traffic` | what applications executed, as far as the device counts; power |
//! | `control_block` | memory and content of control blocks |
//!
//! # Invariants
//!
//! - Every request gets exactly one reply, unless its session ends first.
//! - A session's requests reach nothing outside its window.
//! - SMs on which workers may be are disjoint between applications at every moment.
//! - When a session is released, nothing of it is left: memory, streams, modules, control blocks,
//!   ledger entries.

mod action;
mod ahead;
mod alone;
mod arrivals;
mod config;
mod control_block;
mod effects;
mod endings;
mod engine;
mod groups;
mod helpers;
mod launching;
mod layout;
mod ledger;
mod modules;
mod partitions;
mod prepare;
mod profiling;
mod queue;
mod relocation;
mod reports;
mod request;
mod requests;
mod sessions;
mod state;
mod tasks;
#[cfg(test)]
mod tests;
mod textures;
mod tickets;
mod trace;
mod traffic;
mod upkeep;
mod watchdog;
mod window;

use partita_model::ParamLayout;
use partita_model::request::{
    ArenaRange, EventHandle, ImageId, ModuleHandle, Request, Sequence, StreamHandle, StreamKind,
};

pub use action::{Action, LogLevel};
pub use config::EngineConfig;
pub use engine::{CloseReason, Engine, OpenError, SessionGrant, SessionIdentity};
pub use partita_policy::PlanError;
pub use prepare::{
    Fallback, Fence, KernelForm, PrepareError, PreparedKernel, PreparedModule, Purpose,
    RegisterBound,
};
pub use request::{LoadedKernel, LoadedModule, Payload};
pub use watchdog::CancelError;
