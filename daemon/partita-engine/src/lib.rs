//! Sessions, streams, launches and partitions as a state machine without I/O.
//!
//! [`Engine`] gets what happens by its `handle_*` methods and says what it wants done by
//! [`Engine::poll_action`]. It drives the device, which is an argument of whatever may need it, and
//! nothing else: no thread, no file, no clock but the device's. The same inputs in the same order
//! give the same outputs. Ids rise, maps are ordered, and ties go to the lowest id.
//!
//! The engine knows neither CUDA's entry points nor PTX. Rewriting a module is slow and knows PTX,
//! so it is an action that the shell carries out ([`Action::Prepare`]).
//!
//! # Machines
//!
//! Four machines own the engine's state. The fields of each are private to its folder.
//!
//! | machine | owns |
//! | --- | --- |
//! | `sessions` | sessions, applications, streams and their queues, operations, events, gates, memory, modules |
//! | `launches` | launches by form, who waits and who may go, helper grids, control blocks, the watchdog |
//! | `handover` | one state per SM, pinned plans, stalled and gated SMs, the residency ledger |
//! | `observer` | the policy, accounts of applications, CTA times, kernels' profiles, hit rates |
//!
//! `trace` keeps the residency trace and `reports` says what the engine tells of itself. Neither
//! decides anything.
//!
//! A machine never calls another, with one exception: `launches` enters its launches in the ledger
//! of `handover`, which calls no machine. A step that concerns several machines stands in
//! `machines`, which keeps no state: it asks one machine, and hands the answer to the next.
//!
//! # Turns and effects
//!
//! Every input is one *turn* of the engine. A turn begins with one step. What follows from a step
//! is an *effect* (`effects`) at the end of an ordered queue: a failure, a pump of a queue, a look
//! of the policy, a handover, the end of an operation. The turn carries out one effect after the
//! other until none is left. So no step runs inside another. A session that is found faulty while
//! the engine takes its launch fails when that step is over.
//!
//! An operation ends in three effects, in this order: its session fails, if the operation did; its
//! launch, event or request learns of the end; its stream goes on. So no success is
//! reported after a failure.
//!
//! # Errors
//!
//! | whose | what happens |
//! | --- | --- |
//! | the program's | its session fails with CUDA's code, which sticks (`Effect::Fail`) |
//! | the client's: a broken protocol | its session ends |
//! | Partita's own: a record that an invariant promises is missing (`turn::Bug`) | a line of the log that says so, and one session ends |
//!
//! # Invariants
//!
//! - Every request gets exactly one reply, unless its session ends first.
//! - A session's requests reach nothing outside its window.
//! - SMs on which workers may be are disjoint between applications at every moment.
//! - Nothing of a session reaches the device after the session has failed.
//! - When a session is released, nothing of it is left: memory, streams, modules, control blocks,
//!   ledger entries.

mod action;
mod config;
mod effects;
mod engine;
mod handover;
mod journal;
mod kernel;
mod launches;
mod machines;
mod meter;
mod observer;
mod prepare;
mod reports;
mod request;
mod session;
mod sessions;
#[cfg(test)]
mod tests;
mod trace;
mod turn;

use partita_model::ParamLayout;
use partita_model::request::{
    ArenaRange, EventHandle, ImageId, ModuleHandle, Request, Sequence, StreamHandle, StreamKind,
};

pub use action::{About, Action, LogLevel};
pub use config::{CopyPolicy, EngineConfig, Rests};
pub use engine::Engine;
pub use handover::ledger::occupancy;
pub use launches::CancelError;
pub use partita_policy::PlanError;
pub use prepare::{
    Fallback, Fence, FormsOf, KernelForm, Later, PrepareError, PreparedKernel, PreparedModule,
    Purpose, RegisterBound, Slice, Source,
};
pub use request::{LoadedKernel, LoadedModule, Payload};
pub use session::{CloseReason, Holding, OpenError, SessionGrant, SessionIdentity};
pub use sessions::TermsError;
